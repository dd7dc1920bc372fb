# make book: environment, all chapters at preset quick, site.   make test: environment, all tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PRESET ?= cpu

.PHONY: help book test html slides edition lab bench verify lint clean environment
help:
	@echo "make book     run every chapter (preset quick), build the site, print its address"
	@echo "make test     run the whole test suite"
	@echo "make html     build the site from stored outputs, without running any chapter"
	@echo "make slides   write the slides of the course from stored outputs, print their address"
	@echo "make edition  run and store what is not stored yet of preset cpu (PRESET=gpu: of another), bill first"
	@echo "make lab      open the chapters in JupyterLab, to change and run them"
	@echo "make verify   check that stored outputs are what today's code gives"
	@echo "make bench    measure speed and accuracy"
	@echo "make lint     check style"
	@echo "make clean    delete what was built; the environment and stored results stay"

# Chapters that fail (status 1) do not keep the others from their pages.
book: $(READY)
	@$(BIN)/symgen run all --preset quick --workers 2 --yes; status=$$?; [ $$status -le 1 ] || exit $$status; \
	$(BIN)/symgen html --from _build/runs/quick && exit $$status

# First the tests and then the chapters, file by file on one core each: their networks are small, and
# threads and processes would wait for each other. Then three chapters as users run them, with as
# many threads and processes as the machine gives; the last takes language models to the processes.
# Their tables have to be those that are stored, exactly where nothing is trained. How far numbers
# of trained networks have moved is told, and not judged: that is known for one processor only.
AS_USERS := $(addprefix chapters/,00_planted_logic.ipynb 01_interaction_extraction.ipynb 06_fine_tuning.ipynb)

test: $(READY)
	@failed=0; \
	OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 $(BIN)/python -m pytest -q -n logical --maxprocesses 4 \
	  tests symgen --ignore tests/test_notebooks.py --ignore tests/test_fresh_tables.py \
	  || failed=1; \
	rm -rf _build/fresh; export SYMGEN_OUT='$(CURDIR)/_build/fresh'; \
	OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 $(BIN)/python -m pytest -q -n logical --maxprocesses 4 \
	  tests/test_notebooks.py chapters $(addprefix --ignore ,$(AS_USERS)) || failed=1; \
	$(BIN)/python -m pytest -q $(AS_USERS) || failed=1; \
	$(BIN)/python -m pytest -q tests/test_fresh_tables.py -k "not lie_where_they_lay" || failed=1; \
	$(BIN)/python -m pytest -q tests/test_fresh_tables.py -k lie_where_they_lay \
	  || echo "These numbers lie farther from the stored ones than the tolerances say; not judged."; \
	exit $$failed

html: $(READY)
	@$(BIN)/symgen html

slides: $(READY)
	@$(BIN)/symgen slides

# What was measured of single trainings is kept as it comes, so that hours can be split into evenings.
edition: $(READY)
	$(BIN)/symgen run all --preset $(PRESET) --store

lab: $(READY)
	@cd chapters && '$(abspath $(BIN))/jupyter-lab'

verify: $(READY)
	@$(BIN)/symgen verify

bench: $(READY)
	$(BIN)/python -m benchmarks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf _build

environment: $(READY)

# The file `ready` is written last: an installation that was cut short is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(None if sys.version_info >= (3, 11) else "symgen needs Python 3.11 or newer, and $(PYTHON) is Python " + v + ": run `make PYTHON=python3.12 ...`, or another newer one")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo 'symgen needs the venv module of $(PYTHON): on Debian and Ubuntu, `apt-get install python3-venv`' >&2; exit 1; }
	@echo 'Installing the environment into $(VENV); it takes some minutes and 7 GB the first time.'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[book,test,llm]'
	@touch $@
