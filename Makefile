# make book: environment, all chapters at preset quick, site.   make test: environment, all tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PRESET ?= cpu

.PHONY: help book test golden html edition offline lab verify bench lint clean environment
help:
	@echo "make book     run every chapter (preset quick), build the site, print its address"
	@echo "make test     run the test suite"
	@echo "make golden   write the golden numbers anew, after a change of results that is meant"
	@echo "make html     build the site from stored chapters (edition cpu, or PRESET=quick), running none"
	@echo "make edition  run and store all chapters at preset cpu (or PRESET=gpu)"
	@echo "make offline  pack what a machine without internet needs for preset gpu (_build/offline)"
	@echo "make lab      open a copy of the chapters in JupyterLab (_build/lab)"
	@echo "make verify   list stored pages whose code has changed since they ran"
	@echo "make bench    measure speed and accuracy"
	@echo "make lint     check style and types"
	@echo "make clean    delete what was built; copies of chapters, results and the environment stay"

# A chapter that fails (status 1) does not keep the others from their pages.
book: $(READY)
	@$(BIN)/symgen run all --preset quick --workers 2; status=$$?; [ $$status -le 1 ] || exit $$status; \
	$(BIN)/symgen html --from _build/runs/quick && exit $$status

# One thread per process: the networks of the tests are small.
test: $(READY)
	OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

golden: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/compute.py --write

html: $(READY)
	@$(BIN)/symgen html --edition $(PRESET)

# Trainings are kept as they are measured, so that an edition can be interrupted and continued.
edition: $(READY)
	$(BIN)/symgen run all --preset $(PRESET) --store

offline: $(READY)
	$(BIN)/python -m benchmarks.offline _build/offline

lab: $(READY)
	@[ -d _build/lab ] || { mkdir -p _build && cp -R chapters _build/lab; }
	@echo 'Your copy of the chapters is in _build/lab; delete this folder to start afresh.'
	@cd _build/lab && '$(abspath $(BIN))/jupyter-lab' 00_planted_logic.ipynb

verify: $(READY)
	@$(BIN)/symgen verify

bench: $(READY)
	$(BIN)/python -m benchmarks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python symgen

# Results stay: what readers wrote or waited for.
clean:
	@for path in _build/*; do \
	  [ -e "$$path" ] || continue; \
	  case "$$path" in \
	    _build/lab | _build/runs | _build/sweeps | _build/tables) echo "kept: $$path" ;; \
	    *) echo "deleted: $$path"; rm -rf "$$path" ;; \
	  esac; \
	done

environment: $(READY)

# The file `ready` is written last, so an interrupted installation starts again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "symgen needs Python 3.11 or newer; run: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo 'symgen needs the venv module of $(PYTHON); on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@echo 'Installing the environment into $(VENV); the first time takes some minutes and 7 GB.'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[book,test]'
	@touch $@
