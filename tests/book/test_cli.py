"""The command line: what it refuses, what it skips, what it keeps."""

import ast
import asyncio
import errno
import gc
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from click.testing import CliRunner
from conftest import ROOT, small_chapter

from symgen.book import cli, editions, notebooks, presets, runs, site, stopping
from symgen.models.cost import Estimate


def symgen(*arguments):
    """Run the command in this process; an unforeseen exception fails the test."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def change(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def executed(book, name, folder="_build/runs/quick"):
    return nbformat.read(book / folder / f"{name}.ipynb", as_version=4)


REFUSALS = [
    (["run"], ["no chapter named", "'all'", "a_first, b_second"]),
    (["run", "a_frist"], ["unknown chapter 'a_frist'", '"a_first"', "Known: a_first, b_second"]),
    (["run", "zzzz"], ["unknown chapter 'zzzz'", "Known: a_first, b_second"]),
    (["run", "all", "--preset", "quik"], ["unknown preset 'quik'", '"quick"', "quick, cpu"]),
    (
        ["run", "a_first", "-p", "raet", "1"],
        ["unknown parameter of a_first 'raet'", '"rate"', "preset, n, rate, dataset, fail"],
    ),
    (["run", "a_first", "-p", "n", "--force"], ["'n' of a_first", "'--force'"]),
    (["run", "a_first", "--out", "chapters"], ["--out chapters", "part of the book itself"]),
    (["run", "a_first", "--out", "."], ["--out .", "part of the book itself"]),
    (["run", "a_first", "-p", "n", "many"], ["'n' of a_first", "'many'", "default, 3 (int)"]),
    (["run", "a_first", "-p", "n", "2.5"], ["'n' of a_first", "'2.5'", "default, 3 (int)"]),
    (["run", "a_first", "-p", "n", "true"], ["'n' of a_first", "'true'"]),
    (["run", "a_first", "-p", "n", "1:30"], ["'n' of a_first", "'1:30'", "default, 3 (int)"]),
    (["run", "a_first", "-p", "n", "0x10"], ["'n' of a_first", "'0x10'", "default, 3 (int)"]),
    (["run", "a_first", "-p", "rate", "nan"], ["'rate' of a_first", "'nan'", "default, 0.1"]),
    (["run", "a_first", "-p", "rate", ".nan"], ["'rate' of a_first", "'.nan'", "default, 0.1"]),
    (["run", "a_first", "-p", "rate", "-inf"], ["'rate' of a_first", "'-inf'", "default, 0.1"]),
    (["run", "a_first", "-p", "rate", "1e999"], ["'rate' of a_first", "'1e999'"]),
    (["run", "a_first", "-p", "fail", "yes"], ["'fail' of a_first", "default, False (bool)"]),
    (["run", "a_first", "-p", "fail", "3"], ["'fail' of a_first", "default, False (bool)"]),
    (["run", "a_first", "-p", "preset", "cpu"], ["write --preset cpu, or in the file of a sweep"]),
    (["run", "a_first", "--out", "_build/html/x"], ["_build/html/x is where a site is built"]),
    (["run", "a_first", "--out", "_build/site-src"], ["is where a site is built"]),
    (["run", "a_first", "-p", "preset", "fast"], ["unknown preset 'fast'", "Known: "]),
    (["run", "a_first", "--store", "-p", "n", "4"], ["--store", "leave out -p"]),
    (["html", "--edition", "gqu"], ["unknown edition 'gqu'", "Known: quick"]),
    (["html", "--from", "nowhere"], ["no folder nowhere", "symgen run all"]),
    (["sweep", "none.yml"], ["no file none.yml", "chapter, preset and grid"]),
    (["cache", "netwroks"], ["unknown kind of stored result 'netwroks'"]),
]


HEAVY = {"torch", "papermill", "matplotlib", "pandas", "lark"}
LOADED = f"""
import sys
from symgen.__main__ import app
try:
    app()
finally:
    print("loaded:", *sorted({HEAVY} & set(sys.modules)))
"""


def loaded_by(*arguments, folder=ROOT):
    """The exit code of a command, and which of the heavy libraries it has imported."""
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.rpartition("loaded:")[2].split()


SLIPS = [
    (["--help"], 0),
    (["run", "--help"], 0),
    (["run", "nosuch"], 2),
    (["run", "all", "--preset", "quik"], 2),
    (["run", "00_planted_logic", "-p", "nosuch", "1"], 2),
    (["run", "00_planted_logic", "-p", "n", "many"], 2),
    (["run", "01_interaction_extraction", "-p", "network", "resnet"], 2),
    (["run", "02_order_generalization", "-p", "dataset", "digts"], 2),
    (["run", "05_llm_interactions", "-p", "model", "tiny-lama"], 2),
]


@pytest.mark.parametrize(("arguments", "code"), SLIPS)
def test_a_slip_is_answered_before_anything_heavy_is_imported(arguments, code):
    assert loaded_by(*arguments) == (code, [])


def test_a_chapter_that_is_unchanged_loads_nothing_heavy(book):
    symgen("run", "b_second")
    assert loaded_by("run", "b_second", folder=book) == (0, [])


def test_what_runs_a_chapter_loads_no_more_than_that_takes(book):
    code, loaded = loaded_by("run", "b_second", folder=book)
    assert code == 0 and set(loaded) <= {"papermill", "pandas"}
    assert executed(book, "b_second").cells


def test_names_and_values_are_checked_before_a_kernel_starts(book, monkeypatch):
    seen = []

    def check_parameters(chapter, parameters):
        seen.append((chapter, parameters["n"], parameters["rate"]))
        if parameters["dataset"] == "digts":
            raise ValueError("no data set digts: take digits")

    monkeypatch.setattr(presets, "check_parameters", check_parameters)
    result = symgen("run", "a_first", "-p", "dataset", "digts", "-p", "n", "4")
    assert (result.exit_code, result.stderr) == (2, "symgen: no data set digts: take digits\n")
    assert seen == [("a_first", 4, 0.1)]


@pytest.mark.parametrize(("arguments", "parts"), REFUSALS, ids=lambda x: " ".join(x[:2]))
def test_a_refusal_says_what_was_given_what_is_known_and_what_to_do(book, arguments, parts):
    result = symgen(*arguments)
    assert result.exit_code == 2
    for part in parts:
        assert part in result.stderr
    assert result.stderr.startswith("symgen: ")
    assert not (book / "_build").exists()


def test_outside_a_book_the_projects_own_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (presets.book_folder() / "symgen").is_dir()
    monkeypatch.setattr(presets, "BOOK", tmp_path / "site-packages" / "symgen" / "shipped")
    result = symgen("run", "all")
    assert result.exit_code == 2
    assert "no book found in" in result.stderr
    assert "such as a clone of the project" in result.stderr


def test_parameters_are_read_as_yaml():
    def read(text, default):
        return presets._value("chapter", "name", text, default)

    assert read("8", 3) == 8
    assert read("1e-3", 0.1) == 0.001
    assert read("010", 3) == 10
    assert read("-7", 3) == -7
    assert read("yes", "text") == "yes"
    assert read("[yes, on, 2020-01-01]", ["text"]) == ["yes", "on", "2020-01-01"]
    assert read("1:30", "text") == "1:30"
    assert read("2", 0.1) == 2
    assert read("[1, 2]", [0]) == [1, 2]
    assert read("2", "text") == "2"
    assert read("uoft-cs/cifar10", "digits") == "uoft-cs/cifar10"
    assert read("null", 3) is None
    assert read("7", None) == 7
    assert read("false", True) is False


def test_a_run_is_recorded_and_not_repeated_until_something_changes(book):
    result = symgen("run", "a_first")
    assert result.exit_code == 0, result.output
    first = executed(book, "a_first")
    about = first.metadata.symgen
    assert about.preset == "quick"
    assert about.parameters == {}
    assert about.seconds > 0
    assert not [c for c in first.cells if "injected-parameters" in c.metadata.get("tags", [])]

    result = symgen("run", "a_first")
    assert "unchanged since its last run" in result.output
    assert executed(book, "a_first") == first

    # Prose may be mended without a run; the executed copy takes it over when the site is built.
    chapter = book / "chapters" / "a_first.ipynb"
    change(chapter, "Its goals.", "Its aims.")
    assert "unchanged" in symgen("run", "a_first").output
    page = notebooks.refresh(first, nbformat.read(chapter, as_version=4))
    assert "Its aims." in page.cells[0].source
    assert page.cells[3].outputs == first.cells[3].outputs

    change(chapter, "n is", "n equals")
    assert "done in" in symgen("run", "a_first").output
    assert "n equals 3" in executed(book, "a_first").cells[3].outputs[0].text
    assert "done in" in symgen("run", "a_first", "--force").output


def test_long_values_of_parameters_have_several_lines_on_a_page(book):
    many = [{"network": "resnet20", "epochs": k, "samples": 50} for k in range(4)]
    chapter = book / "chapters" / "a_first.ipynb"
    source = nbformat.read(chapter, as_version=4)
    ran = nbformat.v4.new_code_cell(f"# Parameters\nn = 3\nothers = {many}\nsize = None")
    ran.metadata.tags = ["injected-parameters"]
    executed = nbformat.read(chapter, as_version=4)
    executed.cells.insert(2, ran)
    page = notebooks.refresh(executed, source)
    (shown,) = (c.source for c in page.cells if "injected-parameters" in c.metadata.get("tags", []))
    assert max(map(len, shown.splitlines())) <= 80 and len(shown.splitlines()) == 7
    assert ast.unparse(ast.parse(shown)) == ast.unparse(ast.parse(ran.source))
    assert shown.startswith("# Parameters\nn = 3\n") and shown.endswith("\nsize = None")


def test_a_damaged_copy_is_made_again(book):
    symgen("run", "a_first")
    path = book / "_build/runs/quick/a_first.ipynb"
    path.write_text(path.read_text()[:500])
    assert "done in" in symgen("run", "a_first").output


def test_other_parameters_do_not_touch_the_presets_run(book):
    symgen("run", "a_first")
    before = executed(book, "a_first")
    result = symgen("run", "a_first", "-p", "n", "4", "--parameter", "rate", "1e-3")
    assert result.exit_code == 0, result.output
    (folder,) = (book / "_build/runs").glob("quick-*")
    other = executed(book, "a_first", folder)
    assert other.metadata.symgen.parameters == {"n": 4, "rate": 0.001}
    assert other.cells[2].metadata.tags == ["injected-parameters"]
    assert "n is 4" in other.cells[4].outputs[0].text
    assert executed(book, "a_first") == before


def test_a_preset_reaches_the_chapter_and_can_be_overridden(book):
    nbformat.write(small_chapter("a_first"), book / "chapters/a_first.ipynb")
    symgen("run", "a_first", "--preset", "cpu", "--out", "here")
    ran = executed(book, "a_first", "here")
    assert ran.metadata.symgen.memory.host > 10
    record = notebooks.provenance_record(ran)
    assert (record["preset"], record["parameters"]["n"]) == ("cpu", 5)
    symgen("run", "a_first", "--preset", "cpu", "-p", "n", "6", "--out", "here")
    assert executed(book, "a_first", "here").metadata.symgen.parameters.n == 6


def test_tables_land_in_the_folder_of_the_run(book, monkeypatch):
    monkeypatch.delenv("SYMGEN_FROM", raising=False)
    work = "import pandas\nchapter.record('small', pandas.DataFrame({'n': [n]}))"
    nbformat.write(small_chapter("a_first", work), book / "chapters/a_first.ipynb")
    symgen("run", "a_first", "--out", "here")
    assert (book / "here/tables/a_first.small.csv").read_text() == "n\n3\n"
    assert not {"SYMGEN_FROM", "SYMGEN_OUT", "SYMGEN_RUN"} & set(os.environ)


def test_a_run_tells_what_it_warned_of_once(book):
    work = "import warnings\nfor _ in 'ab':\n    warnings.warn('mind the gap')\nprint(n)"
    nbformat.write(small_chapter("a_first", work), book / "chapters/a_first.ipynb")
    told = symgen("run", "a_first").output
    assert told.count("UserWarning: mind the gap") == 1


def test_a_failing_chapter_is_told_kept_and_does_not_stop_the_others(book):
    chapter = book / "chapters" / "a_first.ipynb"
    change(chapter, "fail = False", "fail = True")
    result = symgen("run", "all")
    assert result.exit_code == 1
    assert "ValueError: failed as told" in result.stderr
    assert "cell [3]" in result.stderr
    assert "1 of 2 failed: a_first" in result.stderr
    out = book / "_build/runs/quick"
    assert sorted(p.name for p in out.glob("*.ipynb")) == ["a_first.failed.ipynb", "b_second.ipynb"]

    change(chapter, "fail = True", "fail = False")
    result = symgen("run", "all")
    assert result.exit_code == 0
    assert "unchanged" in result.output
    assert sorted(p.name for p in out.glob("*.ipynb")) == ["a_first.ipynb", "b_second.ipynb"]


def test_several_chapters_at_a_time_end_as_one_after_the_other(book):
    """Both wait for each other; what reads their results begins when they have ended."""
    wait = """
import time
from pathlib import Path
Path(f"begun {chapter.name}").touch()
while not all(Path(f"begun {name}").exists() for name in ("a_first", "b_second")):
    time.sleep(0.1)
"""
    table = """
if fail:
    raise ValueError("failed as told")
import pandas
chapter.record("claims", pandas.DataFrame({"claim": [chapter.name, n]}))
"""
    # The one that reads their results stands between them.
    reads = "print(sorted(map(str, chapter.results('claims')['claim'])))"
    for name, work in {"a_first": wait + table, "a_reads": reads, "b_second": wait + table}.items():
        nbformat.write(small_chapter(name, work), book / f"chapters/{name}.ipynb")
    (book / "chapters/presets/quick.yml").write_text("a_first: {}\na_reads: {}\nb_second: {}\n")
    (book / "data/editions").mkdir(parents=True)
    ran = symgen("run", "all", "--workers", "2", "-p", "n", "4", "--out", "here")
    assert ran.exit_code == 0, ran.output
    assert "[3/3] a_reads (preset quick)\n  done in" in ran.stdout
    (found,) = executed(book, "a_reads", "here").cells[4].outputs
    assert found.text == "['4', '4', 'a_first', 'b_second']\n"
    again = symgen("run", "all", "--workers", "2", "-p", "n", "4", "--out", "here")
    assert again.stdout.count("  unchanged in") == 3

    change(book / "chapters/b_second.ipynb", "fail = False", "fail = True")
    ran = symgen("run", "all", "--workers", "3", "-p", "n", "4", "--out", "here")
    assert ran.exit_code == 1
    assert "  failed in" in ran.stderr and "ValueError: failed as told" in ran.stderr
    assert "1 of 3 failed: b_second" in ran.stderr
    assert (book / "here/b_second.failed.ipynb").exists()


PATH = "import os, sys\nsys.path.append(os.environ['SYMGEN_FROM'])\n"
TABLE = "import pandas\nchapter.record('small', pandas.DataFrame({'n': [n]}))\n"


def test_a_failed_run_keeps_the_good_copy_and_its_tables(book):
    path, out = book / "chapters/a_first.ipynb", book / "_build/runs/quick"
    work = TABLE + "if fail:\n    raise ValueError('failed as told')"
    nbformat.write(small_chapter("a_first", work), path)
    assert symgen("run", "a_first").exit_code == 0
    good = executed(book, "a_first")

    change(path, "n = 3", "n = 5")
    change(path, "fail = False", "fail = True")
    assert symgen("run", "a_first").exit_code == 1
    assert executed(book, "a_first") == good
    assert (out / "tables/a_first.small.csv").read_text() == "n\n3\n"
    code = notebooks.own_code(executed(book, "a_first.failed"))
    kinds = [[o.output_type for o in cell.outputs] for cell in code]
    assert kinds[2][-1] == "error" and "error" not in kinds[0] + kinds[1] + kinds[3]

    change(path, "fail = True", "fail = False")
    assert symgen("run", "a_first").exit_code == 0
    assert (out / "tables/a_first.small.csv").read_text() == "n\n5\n"
    left = sorted(p.name for p in out.iterdir())  # the lock lies there for the next run
    assert left == [".a_first.lock", "a_first.ipynb", "tables"]


def test_a_failed_chapter_runs_again_though_an_older_copy_is_whole(book):
    symgen("run", "a_first")
    (book / "_build/runs/quick/a_first.failed.ipynb").write_text("{}")
    assert "done in" in symgen("run", "a_first").output


def test_a_chapter_whose_kernel_dies_shows_where(book):
    nbformat.write(
        small_chapter("a_first", "import os\nos._exit(1)", False), book / "chapters/a_first.ipynb"
    )
    result = symgen("run", "all")
    assert result.exit_code == 1
    assert "DeadKernelError" in result.stderr and "1 of 2 failed: a_first" in result.stderr
    code = notebooks.own_code(executed(book, "a_first.failed"))
    assert [cell.outputs[0].ename for cell in code if cell.outputs] == ["DeadKernelError"]
    assert code[2].outputs


def test_a_chapter_that_cannot_be_written_does_not_stop_the_others(book, monkeypatch):
    write = notebooks.write_notebook

    def full(notebook, path, *rest):
        if path.name.startswith("a_first"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(notebook, path, *rest)

    monkeypatch.setattr(notebooks, "write_notebook", full)
    result = symgen("run", "all")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert "1 of 2 failed: a_first" in result.stderr
    assert executed(book, "b_second")


@pytest.mark.parametrize("command", [["run", "all"], ["sweep", "grid.yml"]])
def test_a_folder_that_cannot_be_written_into_is_told_in_one_sentence(book, command):
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2]}\n")
    (book / "file").write_text("")
    result = symgen(*command, "--out", book / "file" / "below")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"symgen: cannot write into {book / 'file' / 'below'} (")
    assert "--out" in line


def test_a_damaged_chapter_is_told_in_one_sentence(book):
    path = book / "chapters/a_first.ipynb"
    for text in (path.read_text()[:300], "null", "[]", "{}"):
        path.write_text(text)
        result = symgen("run", "a_first")
        assert result.exit_code == 2
        assert f"{path} cannot be read as a notebook" in result.stderr


SPOILS = {
    "deleted": lambda table: table.unlink(),
    "emptied": lambda table: table.write_text(""),
    "altered": lambda table: table.write_text("n\n4\n"),
    "no text": lambda table: table.write_bytes(b"n\n\xff\n"),
}


def test_a_run_leaves_files_of_others_beside_its_tables(book):
    nbformat.write(small_chapter("a_first", TABLE), book / "chapters/a_first.ipynb")
    symgen("run", "a_first")
    notes = book / "_build/runs/quick/tables/a_first.my_notes.csv"
    notes.write_text("mine")
    assert "unchanged" in symgen("run", "a_first").output
    assert "stored" in symgen("run", "a_first", "--force", "--store").output
    assert notes.read_text() == "mine"
    assert not (book / "data/editions/quick/tables/a_first.my_notes.csv").exists()


def test_a_run_whose_tables_were_touched_is_not_unchanged(book, monkeypatch):
    nbformat.write(small_chapter("a_first", TABLE), book / "chapters/a_first.ipynb")
    tables = book / "_build/runs/quick/tables"
    symgen("run", "a_first")
    ran = executed(book, "a_first")

    def again(*_):
        aside = Path(os.environ["SYMGEN_OUT"]) / "tables"
        aside.mkdir(parents=True)
        (aside / "a_first.small.csv").write_text("n\n3\n")
        return ran

    monkeypatch.setattr(runs, "_papermill", again)  # which would take seconds each time
    for name, spoil in SPOILS.items():
        spoil(tables / "a_first.small.csv")
        assert "done in" in symgen("run", "a_first").output, name
        assert [p.read_text() for p in tables.iterdir()] == ["n\n3\n"], name
        assert "unchanged" in symgen("run", "a_first").output, name


def test_a_run_of_what_is_the_readers_own_is_unchanged_until_that_is_changed(book, monkeypatch):
    monkeypatch.setattr(presets, "check_parameters", lambda *_: None)
    look = "import own_net; display(chapter.provenance())"
    nbformat.write(small_chapter("a_first", f"{PATH}{look}"), book / "chapters/a_first.ipynb")
    (book / "pictures/cat").mkdir(parents=True)
    (book / "own_net.py").write_text("import own_help")
    (book / "own_help.py").write_text("width = 1")
    asked = ("run", "a_first", "-p", "dataset", "./pictures", "--out", "out")
    assert "done in" in symgen(*asked).output and "unchanged" in symgen(*asked).output
    (book / "pictures/cat/1.png").write_bytes(b"one")
    assert "done in" in symgen(*asked).output and "unchanged" in symgen(*asked).output
    (book / "own_help.py").write_text("width = 2")  # which these parameters do not name
    assert "unchanged" in symgen(*asked).output
    asked = ("run", "a_first", "-p", "dataset", "own_net:build", "--out", "out")
    assert "done in" in symgen(*asked).output and "unchanged" in symgen(*asked).output
    (book / "own_help.py").write_text("width = 3")
    assert "done in" in symgen(*asked).output


@pytest.mark.parametrize(("status", "builds"), [(0, True), (1, True), (2, False), (143, False)])
def test_make_book_builds_the_site_though_chapters_fail(tmp_path, status, builds):
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    program = tmp_path / ".venv/bin/symgen"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$@"\n[ "$1" != run ] || exit {status}\n')
    program.chmod(0o755)
    (tmp_path / ".venv/ready").touch()
    command = ["make", "-s", "book"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = ["run all --preset quick --workers 2 --yes", "html --from _build/runs/quick"]
    assert done.stdout.splitlines() == lines[: 1 + builds]
    assert bool(done.returncode) == bool(status)


def test_make_lab_opens_the_chapters_with_the_environments_own_program(tmp_path):
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    program = tmp_path / ".venv/bin/jupyter-lab"
    program.parent.mkdir(parents=True)
    (tmp_path / "chapters").mkdir()
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    (tmp_path / ".venv/ready").touch()
    done = subprocess.run(["make", "-s", "lab"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "chapters"), done.stderr


def test_a_run_ends_with_where_its_page_is_and_opens_it(book, monkeypatch):
    from symgen.book import site

    opened, built = [], []
    monkeypatch.setattr(cli.click, "launch", opened.append)

    def build(book, edition, folder, workplace):
        built.append((edition, folder, workplace))
        return workplace / "_build" / "html" / "chapters" / "index.html"

    def execute(book, name, preset, given, out, *_):
        return runs.Outcome("failed" if given else "done", out / f"{name}.ipynb", "told")

    monkeypatch.setattr(site, "build", build)
    monkeypatch.setattr(runs, "execute", execute)
    ran = symgen("run", "a_first")
    assert ran.stdout.splitlines()[-2:] == [
        "To see it as a page: symgen html --from _build/runs/quick",
        "To go on from it: jupyter-lab _build/runs/quick/a_first.ipynb",
    ]
    assert not built
    page = (book / "_build/html/chapters/a_first.html").as_uri()
    ran = symgen("run", "a_first", "--open")
    assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (0, page)
    assert built == [(None, book / "_build/runs/quick", book)]
    assert opened == [page]
    # A page says that its chapter failed.
    ran = symgen("run", "a_first", "--open", "-p", "fail", "true")
    assert (ran.exit_code, opened, len(built)) == (1, [page, page], 2)


def test_who_has_the_package_without_the_book_is_told_what_to_install(book, monkeypatch):
    monkeypatch.setitem(sys.modules, "papermill", None)
    ran = symgen("run", "a_first")
    assert ran.exit_code == 1
    assert "papermill is missing" in ran.stderr and "pip install 'symgen[book]'" in ran.stderr


BREAKS = {
    "ValueError: failed as told": ("fail = False", "fail = True"),
    "ImportError: cannot import name 'nosuch'": ("from pathlib", "from symgen import nosuch #"),
    "SyntaxError": ('print("n is"', "print("),
    "NameError": ("n = 3", "n = 3 + three"),
    "invalid syntax": ("n = 3", "n = = 3"),
}


@pytest.mark.parametrize("told", BREAKS)
def test_a_book_with_a_broken_chapter_is_built_and_named(book, monkeypatch, told):
    from symgen.book import site

    def sphinx(stage, output, *_):
        shutil.copytree(stage, output / "_build" / "html")

    monkeypatch.setattr(site, "_sphinx", sphinx)
    monkeypatch.setattr(site, "fetch_scripts", lambda *_: None)
    (book / "_static").mkdir()
    for name in ("_config.yml", "references.bib"):
        (book / name).touch()
    change(book / "chapters/a_first.ipynb", *(json.dumps(x)[1:-1] for x in BREAKS[told]))
    ran, built = symgen("run", "all"), symgen("html", "--from", "_build/runs/quick")
    assert (ran.exit_code, built.exit_code) == (1, 0)
    assert told in ran.stderr
    assert ran.stderr.splitlines()[-1] == "symgen: 1 of 2 failed: a_first"
    assert executed(book, "b_second")
    first = book / "_build/html/chapters/a_first.html"
    assert built.output.splitlines()[-1] == first.resolve().as_uri()


WAIT = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)"
# As what computes: it hears of the end of its kernel when its library comes back to Python.
BUSY = """import pathlib, time
pathlib.Path('begun').touch()
try:
    time.sleep(600)
finally:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        pass"""
# A shell that starts a job in the background has it ignore Ctrl-C.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


@pytest.mark.parametrize("number", CODES, ids=lambda n: n.name)
@pytest.mark.parametrize("command", ["run", "several", "sweep", "html"])
def test_nothing_is_left_when_a_signal_ends_a_command(book, command, number):
    begun = book / "chapters/begun"
    work = BUSY if command == "run" else WAIT
    nbformat.write(small_chapter("a_first", work, False), book / "chapters/a_first.ipynb")
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2, 3, 4]}\n")
    words = {
        "run": ["a_first"],
        "several": ["all", "--workers", "2"],
        "sweep": ["grid.yml", "--workers", "2"],
        "html": [],
    }[command]
    if command == "html":  # whose builder loads an extension that takes its time
        (book / "_static").mkdir()
        (book / "references.bib").touch()
        (book / "_build/vendor/site").mkdir(parents=True)
        (book / "slow.py").write_text(WAIT.replace("'begun'", repr(str(begun))))
        (book / "_config.yml").write_text("sphinx: {extra_extensions: [slow]}\n")
    begins = START + "from symgen.book import cli; cli.app()"
    if command == "html":
        begins = begins.replace("cli.app", "site.fetch_scripts = lambda _: None; cli.app")
        begins = begins.replace("import cli", "import cli, site")
    with subprocess.Popen(
        [sys.executable, "-c", begins, command.replace("several", "run"), *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{book}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert begun.exists() and family
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    _, left = psutil.wait_procs(family, timeout=30)
    for each in left:
        each.kill()
    assert not left
    assert process.returncode == CODES[number]
    if number != signal.SIGKILL:
        name = "building the site" if command == "html" else "a_first"
        # A progress bar that nobody closed may end after it, with a line of its own.
        assert any("stopped while" in x and name in x for x in told.splitlines()), repr(told)
        assert "cli.py" not in told and "never retrieved" not in told
        assert "Traceback" not in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_that_a_library_takes_for_its_own_error_ends_the_run(
    book, monkeypatch, caplog, number
):
    started, library = [], logging.getLogger("asyncio")

    def execute(book, name, *_):
        started.append(name)
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except BaseException as error:
            loop = asyncio.new_event_loop()
            loop.create_future().set_exception(ValueError("of a cell that was stopped"))
            loop.close()
            gc.collect()
            return runs.Outcome("failed", book / "none", repr(error))

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr(library, "level", library.level)
    before = signal.signal(signal.SIGINT, stopping.CTRL_C)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    result = symgen("run", "all")
    kept = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, before)
    assert (result.exit_code, started) == (128 + number, ["a_first"])
    assert "stopped while running a_first" in result.stderr
    assert not caplog.records  # nor the whole trace of what nobody waits for any more
    assert kept == handlers


def test_a_killed_run_is_continued_by_the_next(book):
    waiting = "import time\nprint('waiting')\ntime.sleep(600)"
    nbformat.write(small_chapter("b_second", waiting, False), book / "chapters/b_second.ipynb")
    command = [sys.executable, "-m", "symgen", "run", "all"]
    out = book / "_build/runs/quick"
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while (
            not (out / ".b_second.partial/b_second.ipynb").exists() and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    assert (out / "a_first.ipynb").exists()
    assert not (out / "b_second.ipynb").exists()

    nbformat.write(small_chapter("b_second", whole=False), book / "chapters/b_second.ipynb")
    result = symgen("run", "all")
    assert result.exit_code == 0, result.output
    assert result.output.count("unchanged") == 1
    assert sorted(p.name for p in out.glob("*.ipynb")) == ["a_first.ipynb", "b_second.ipynb"]


@pytest.mark.parametrize("force", [False, True])
def test_a_second_run_into_a_folder_waits_for_the_first(book, force):
    """It once removed what the first one had written, which then failed at its end."""
    work = "import time\ntime.sleep(4)\nprint('ran')"
    nbformat.write(small_chapter("a_first", work), book / "chapters/a_first.ipynb")
    out, command = book / "_build/runs/quick", ["run", "a_first", *["--force"] * force]
    with subprocess.Popen(
        [sys.executable, "-m", "symgen", *command], stdout=subprocess.PIPE, text=True
    ) as first:
        deadline = time.monotonic() + 120
        while not (out / ".a_first.partial").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        second = symgen(*command)
        assert first.wait(timeout=120) == 0, first.stdout.read()
        assert "done in" in first.stdout.read()
    assert second.exit_code == 0, second.output
    assert "Waiting for another run of a_first into" in second.output
    assert ("done in" if force else "unchanged") in second.output
    assert executed(book, "a_first").cells


def test_store_keeps_sources_and_scrubs_the_machine(book):
    work = """\
from pathlib import Path
print("at", Path.cwd().resolve() / "x.txt", "of", Path.home() / "y")
from IPython.display import HTML
HTML(f"<i>{Path.cwd().resolve()}</i>")"""
    path = book / "chapters" / "a_first.ipynb"
    nbformat.write(small_chapter("a_first", work), path)
    before = nbformat.read(path, as_version=4)
    assert symgen("run", "all", "--store").exit_code == 0
    after = nbformat.read(path, as_version=4)
    assert [c.source for c in after.cells] == [c.source for c in before.cells]
    assert [c.id for c in after.cells] == [c.id for c in before.cells]
    assert [c.metadata for c in after.cells] == [c.metadata for c in before.cells]
    text = path.read_text()
    assert "at ./chapters/x.txt of ~/y" in text
    for forbidden in (
        str(book.resolve()),
        os.path.expanduser("~") + "/",
        "papermill",
        'execution"',
    ):
        assert forbidden not in text
    assert set(after.metadata) == {"kernelspec", "language_info", "symgen"}
    assert symgen("verify").exit_code == 0

    assert symgen("run", "a_first", "--preset", "cpu", "--store").exit_code == 0
    assert (book / "data/editions/cpu/a_first.ipynb").exists()
    assert path.read_text() == text


def test_store_keeps_the_tables_of_the_run_and_todays_prose(book):
    work = "import pandas\nchapter.record('small', pandas.DataFrame({'n': [n]}))"
    path = book / "chapters" / "b_second.ipynb"
    tables = book / "data/editions/quick/tables"
    # What an earlier form of the chapter wrote goes with it.
    nbformat.write(small_chapter("b_second", work.replace("small", "gone")), path)
    assert symgen("run", "b_second", "--store").exit_code == 0
    assert [p.name for p in tables.iterdir()] == ["b_second.gone.csv"]
    (tables / "a_first.other.csv").write_text("of another chapter")
    nbformat.write(small_chapter("b_second", work), path)
    assert symgen("run", "b_second", "--store").exit_code == 0
    assert sorted(p.name for p in tables.iterdir()) == ["a_first.other.csv", "b_second.small.csv"]
    assert (tables / "b_second.small.csv").read_text() == "n\n3\n"

    change(path, "Its goals.", "Its goals, in other words.")
    assert "unchanged" in symgen("run", "b_second", "--store").output
    assert "Its goals, in other words." in path.read_text()
    assert "b_second" not in symgen("verify").stderr


def test_store_keeps_all_of_the_old_copy_where_it_cannot_write_the_new(book, monkeypatch):
    path, work = book / "chapters/a_first.ipynb", TABLE + TABLE.replace("small", "tiny")
    nbformat.write(small_chapter("a_first", work), path)
    assert symgen("run", "a_first", "--store").exit_code == 0
    stored = [path, *sorted((book / "data/editions/quick/tables").iterdir())]
    before = [p.read_text() for p in stored]
    assert len(before) == 3
    assert "a_first: " not in symgen("verify").stderr
    stored[1].write_text("n\n4\n")
    assert "a_first: its tables are not those of its run" in symgen("verify").stderr
    stored[1].write_text(before[1])
    copyfile = shutil.copyfile

    def full(source, target):
        if "tiny" in str(source) and "editions" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        return copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    run = book / "_build/runs/quick"
    for table in (run / "tables").iterdir():
        table.write_text("n\n9\n")
    with pytest.raises(OSError):
        editions.store(book, "quick", run / "a_first.ipynb")
    assert [p.read_text() for p in stored] == before
    assert sorted(p.name for p in stored[1].parent.iterdir()) == [p.name for p in stored[1:]]


def test_scrub_leaves_binary_data_alone(book):
    home = os.path.expanduser("~")
    output = nbformat.v4.new_output(
        "display_data", {"image/png": f"{home}/", "text/html": f"x{home}/ {home}/z"}
    )
    notebook = small_chapter("a_first")
    notebook.cells[3].outputs = [output]
    data = notebooks.scrub(notebook, book, "a_first").cells[3].outputs[0].data
    assert data == {"image/png": f"{home}/", "text/html": f"x{home}/ ~/z"}


def test_what_a_training_was_expected_to_take_is_not_stored(book):
    expected = Estimate(6.0, 2**20, 2**34, 2**20, 2**36, book)
    told = f"TrainingRun(cnn on baseline2 of digits, 960 steps, 15 checkpoints, a02): {expected}\n"
    notebook = small_chapter("a_first")
    notebook.cells[3].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=text) for text in (told, told + "H\n")
    ]
    outputs = notebooks.scrub(notebook, book, "a_first").cells[3].outputs
    assert [output.text for output in outputs] == ["H\n"]


def test_widgets_are_numbered_alike_in_every_run(book):
    def with_widget(identifier):
        notebook = small_chapter("a_first")
        view = {"application/vnd.jupyter.widget-view+json": {"model_id": identifier}}
        notebook.cells[3].outputs = [nbformat.v4.new_output("display_data", view)]
        state = {"state": {identifier: {"model_name": "IntSliderModel"}}}
        notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": state}
        return notebooks.scrub(notebook, book, "a_first")

    assert with_widget("a" * 32) == with_widget("b" * 32)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_scrubbed_twice_keeps_its_widgets(book, seed):
    kinds = ["VBoxModel", "HTMLModel", "IntSliderModel", "LabelModel"]
    kinds = [*kinds, *["LayoutModel"] * 4, "LinkModel"]
    drawn = random.Random(seed)
    box, *parts, link = ids = [f"{drawn.getrandbits(128):032x}" for _ in kinds]
    state = {i: {"model_name": kind, "state": {}} for i, kind in zip(ids, kinds, strict=True)}
    state[box]["state"]["children"] = [f"IPY_MODEL_{i}" for i in parts[:3]]
    for i, layout in zip([box, *parts[:3]], parts[3:], strict=True):
        state[i]["state"]["layout"] = f"IPY_MODEL_{layout}"
    state[link]["state"] = {"source": [f"IPY_MODEL_{parts[1]}", "value"]}
    notebook = small_chapter("a_first")
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": box}}
    notebook.cells[3].outputs = [nbformat.v4.new_output("display_data", view)]
    state = dict(sorted(state.items()))
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": state}}
    # A file has its widgets in the order of their names.
    once = nbformat.reads(nbformat.writes(notebooks.scrub(notebook, book, "a_first")), 4)
    assert notebooks.scrub(once, book, "a_first") == once
    (found,) = once.metadata.widgets.values()
    assert sorted(m["model_name"] for m in found["state"].values()) == sorted(kinds)
    (shown,) = once.cells[3].outputs[0].data.values()
    children = found["state"][shown["model_id"]]["state"]["children"]
    names = [found["state"][c.removeprefix("IPY_MODEL_")]["model_name"] for c in children]
    assert names == kinds[1:4]


@pytest.fixture
def stored(book):
    assert symgen("run", "all", "--store").exit_code == 0
    return book


def test_verify_names_what_is_stale_and_why(stored, monkeypatch):
    assert "2 chapters show what today's code gives" in symgen("verify").output
    path = stored / "chapters" / "a_first.ipynb"
    fresh = path.read_text()

    def reasons():
        result = symgen("verify")
        assert result.exit_code == 1
        assert "stale: a_first" in result.stderr
        assert "b_second:" not in result.stderr
        assert "symgen run a_first --store" in result.stderr
        return result.stderr

    change(path, "n is", "n equals")
    assert "its code cells were changed after it ran" in reasons()

    path.write_text(fresh)
    code = json.loads(fresh)["metadata"]["symgen"]["code"]
    path.write_text(fresh.replace(code, "0" * 16))
    told = reasons()
    assert "symgen's code was changed after it ran" in told
    assert "fingerprint does not match" in told

    path.write_text(fresh)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells[1:]:
        cell.outputs = []
    nbformat.write(notebook, path)
    assert "it holds no outputs" in reasons()

    notebook.cells[3].outputs = [
        nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])
    ]
    nbformat.write(notebook, path)
    assert "it shows an error" in reasons()

    nbformat.write(small_chapter("a_first"), path)
    assert "no outputs of a run" in reasons()

    path.write_text(fresh)
    monkeypatch.setattr(notebooks, "code_fingerprint", lambda *modules: "f" * 16)
    result = symgen("verify")
    assert "stale: a_first" in result.stderr
    assert "stale: b_second" in result.stderr


def test_verify_lists_old_editions_without_failing(stored):
    symgen("run", "a_first", "--preset", "cpu", "--store")
    assert "older than the code" not in symgen("verify").output
    path = stored / "data/editions/cpu/a_first.ipynb"
    code = json.loads(path.read_text())["metadata"]["symgen"]["code"]
    change(path, code, "0" * 16)
    result = symgen("verify")
    assert result.exit_code == 0
    assert "older than the code: cpu/a_first" in result.output


def test_a_default_that_a_preset_replaces_makes_none_of_its_pages_stale(stored):
    symgen("run", "a_first", "--preset", "cpu", "--store")
    chapter = stored / "chapters/a_first.ipynb"
    given = json.loads((stored / "data/editions/cpu/a_first.ipynb").read_text())
    given = given["metadata"]["symgen"]["parameters"]
    cell = next(
        c for c in json.loads(chapter.read_text())["cells"] if "parameters" in str(c["metadata"])
    )
    replaced = next(k for k in given if k != "preset")
    line = next(x for x in "".join(cell["source"]).splitlines() if x.startswith(f"{replaced} ="))
    change(chapter, line, f"{replaced} = 123  # another")
    told = symgen("verify").output
    assert "stale: a_first" in told and "older than the code: cpu/a_first" not in told
    kept = next(x for x in "".join(cell["source"]).splitlines() if x.split(" =")[0] not in given
                and " =" in x)  # fmt: skip
    change(chapter, kept, f"{kept.split(' =')[0]} = 321")
    assert (
        "older than the code: cpu/a_first: its code cells were changed" in symgen("verify").output
    )


def test_cache_lists_and_clears(book, monkeypatch, tmp_path):
    from symgen import storage as provenance

    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    assert "nothing is stored" in symgen("cache").output
    for kind in ("networks", "outputs"):
        provenance.cached(kind, {"seed": 0}, dict)
    lines = symgen("cache").output.splitlines()
    assert [line.split()[:2] for line in lines] == [["networks", "1"], ["outputs", "1"]]
    # Where nobody answers, nothing is deleted.
    assert symgen("cache", "--clear").exit_code == 1
    assert "deleted" in symgen("cache", "networks", "--clear", "--yes").output
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["outputs"]
    symgen("cache", "--clear", "--yes")
    assert not list((tmp_path / "cache").iterdir())


def test_cache_asks_before_it_deletes(book, monkeypatch, tmp_path):
    from symgen import storage as provenance

    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    provenance.cached("outputs", {"seed": 0}, dict)
    for answer, kept in [("n\n", True), ("\n", True), ("y\n", False)]:
        asked = CliRunner().invoke(cli.app, ["cache", "--clear"], input=answer)
        assert f"Delete outputs in {tmp_path}?" in asked.output
        assert (asked.exit_code, (tmp_path / "outputs").exists()) == (int(kept), kept)


def test_clearing_the_cache_touches_nothing_of_others(book, monkeypatch, tmp_path):
    """The cache is a home folder, in which some folders have the names of ours."""
    import torch

    from symgen import storage as provenance

    home = tmp_path / "home"
    monkeypatch.setenv("SYMGEN_CACHE", str(home))
    mine = ["letter.txt", ".profile", "photos/0123456789abcdef.json", "training/plan.txt"]
    for name in mine:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    tensors = {"x": torch.ones(1)}
    # "training" is in use by its owner: what is stored there is never deleted.
    for name in ("training/0123456789abcdef/step-00000001", "networks/0123456789abcdef"):
        provenance.store(home / f"{name}.safetensors", tensors, {})
    run = home / "runs" / "0123456789abcdef"
    provenance.store(run / "step-00000001.safetensors", tensors, {})
    for name in ("run.json", ".lock", f".step-00000002.json.{'0' * 32}.part"):
        (run / name).write_text("ours")
    mine += ["networks/notes.json", "runs/0123456789abcdef/notes.txt"]
    for name in mine[-2:]:
        (home / name).write_text("mine")
    links = {
        home / "linked": home / "photos",
        home / "networks/fedcba9876543210": home / "photos",
        home / "networks/fedcba9876543210.json": home / "letter.txt",
        run / "step-00000003.json": home / "letter.txt",
    }
    for link, aim in links.items():
        link.symlink_to(aim)
    (home / "photos" / provenance.TAG).write_text("Signature: 8a477f597d28d172789f06886806bc55")
    walked = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (walked.append(str(path)), scan(path))[1])
    assert [line.split()[0] for line in symgen("cache").output.splitlines()] == ["networks", "runs"]
    assert not any("photos" in path for path in walked)
    cleared = symgen("cache", "--clear", "--yes")
    assert cleared.exit_code == 0 and "3 entries of others are left" in cleared.output
    assert all((home / name).read_text() == "mine" for name in mine)
    assert all(link.is_symlink() for link in links)
    assert (home / "training/0123456789abcdef/step-00000001.safetensors").exists()
    assert not list((home / "networks").glob("*.safetensors"))
    assert sorted(p.name for p in run.iterdir()) == ["notes.txt", "step-00000003.json"]


def test_without_a_home_the_cache_is_asked_for(book, monkeypatch):
    from symgen import storage as provenance

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SYMGEN_CACHE")
    monkeypatch.setattr(provenance.Path, "home", homeless)
    result = symgen("cache")
    assert result.exit_code == 2 and "set SYMGEN_CACHE" in result.stderr


PRESETS = [
    ("a_first: 3\n", "cpu.yml must hold, under a_first, parameters"),
    ("a_first: [n]\n", "cpu.yml must hold, under a_first, parameters"),
    ("a_first: {n: 1:30}\n", "'n' of a_first is given as '1:30'"),
    ("a_first: {3: 1}\n", "cpu.yml cannot be read as YAML: every name must be a word"),
    ("[]\n", "cpu.yml must hold a mapping from names"),
    ("a: [\n", "cpu.yml cannot be read as YAML: line 2, column 1: "),
    ("a: \xff", "cpu.yml cannot be read as YAML: "),
]


@pytest.mark.parametrize(("text", "part"), PRESETS)
def test_a_faulty_preset_is_refused(book, text, part):
    (book / "chapters/presets/cpu.yml").write_text(text, encoding="latin-1")
    result = symgen("run", "a_first", "--preset", "cpu")
    assert result.exit_code == 2
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_progress_bars_leave_executed_chapters_and_other_widgets_stay():
    model = {"bar": "FloatProgressModel", "box": "HBoxModel", "slider": "IntSliderModel"}
    model |= {"link": "LinkModel", "layout": "LayoutModel", "other": "LayoutModel"}
    refers = {"box": ["bar", "other"], "slider": ["layout"], "link": ["slider"]}
    state = {
        key: {"model_name": name, "state": {"x": [f"IPY_MODEL_{r}" for r in refers.get(key, [])]}}
        for key, name in model.items()
    }
    shown = [
        nbformat.v4.new_output("display_data", {notebooks.WIDGET_VIEW: {"model_id": key}})
        for key in ("box", "slider")
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("run()", outputs=shown)],
        metadata={"widgets": {notebooks.WIDGET_STATE: {"state": state}}},
    )
    clean = notebooks.drop_progress(notebook)
    kept = clean.metadata["widgets"][notebooks.WIDGET_STATE]["state"]
    assert set(kept) == {"slider", "layout", "link"}
    assert [o.data[notebooks.WIDGET_VIEW]["model_id"] for o in clean.cells[0].outputs] == ["slider"]


def test_what_a_reader_has_changed_in_an_executed_copy_is_kept_aside(book):
    out = book / "_build/runs/quick"
    assert symgen("run", "a_first").exit_code == 0
    assert "by hand" not in symgen("run", "a_first", "--force").output
    for number, text in enumerate(("My notes.", "More of them.")):
        copy = executed(book, "a_first")
        copy.cells.append(nbformat.v4.new_markdown_cell(text))
        nbformat.write(copy, out / "a_first.ipynb")
        again = symgen("run", "a_first", "--force")
        assert "changed in a_first.ipynb by hand is kept" in again.output
        name = f"a_first.edited{2 * number or ''}.ipynb"
        assert nbformat.read(out / name, as_version=4).cells[-1].source == text
        assert executed(book, "a_first").cells[-1].source != text


def test_a_notebook_that_is_none_of_the_books_is_not_taken_for_one(book, tmp_path):
    mine = tmp_path / "mine" / "a_first.ipynb"
    mine.parent.mkdir()
    nbformat.write(small_chapter("a_first"), mine)
    result = symgen("run", mine)
    assert result.exit_code == 2 and "is none of the book's chapters" in result.stderr
    for own in ("chapters/a_first.ipynb", "a_first", "a_first.ipynb"):
        assert symgen("run", own, "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "a_first", "-p", "n", "2", "-p", "n", "4"), "-p n is given twice"),
        (("run", "all", "a_frist"), "unknown chapter 'a_frist'"),
        (("sweep", "twice.yml", "--dry-run"), "n is given twice"),
        (("sweep", "twice.yml", "--workers", "0"), "--workers"),
    ],
)
def test_no_part_of_what_was_asked_is_dropped(book, words, told):
    (book / "twice.yml").write_text("chapter: a_first\ngrid:\n  n: [2]\n  n: [4]\n")
    result = symgen(*words)
    assert result.exit_code == 2 and told in result.stderr


def test_a_chapter_is_not_run_under_the_name_of_another(book):
    """A copy of a chapter once replaced the tables of the one it was made from."""
    copy = book / "chapters" / "mine.ipynb"
    shutil.copyfile(book / "chapters" / "b_second.ipynb", copy)
    result = symgen("run", "mine")
    assert result.exit_code == 2
    assert "mine calls itself b_second" in result.stderr
    assert 'write symgen.Chapter("mine", ...)' in result.stderr
    change(copy, "b_second", "mine")
    assert symgen("run", "mine").exit_code == 0
    assert "unchanged" in symgen("run", "mine").output


def test_a_text_may_be_given_that_is_empty():
    assert presets._value("a_first", "prompt", "", "Once upon") == ""
    assert presets._value("a_first", "prompt", "null", "Once upon") is None
    given = {"prompt": ""}
    assert given.items() <= presets.resolve(ROOT, "05_llm_interactions", "quick", given).items()


def test_a_book_is_laid_out_where_a_shell_stands(book, tmp_path, monkeypatch):
    (folder := tmp_path / "of mine").mkdir()
    result = symgen("new", folder)
    assert result.exit_code == 0 and f"  cd '{folder}'" in result.stdout
    assert {path.name for path in folder.iterdir()} == {"_toc.yml", "chapters"}
    (here := tmp_path / "here").mkdir()
    monkeypatch.setattr(presets, "BOOK", book)
    monkeypatch.chdir(here)
    result = symgen("new", ".")
    assert result.exit_code == 0, result.output
    assert "cd " not in result.stdout and "  symgen run a_first --open" in result.stdout
    assert (Path.cwd() / "chapters/a_first.ipynb").is_file()
    (link := tmp_path / "link").symlink_to(tmp_path / "far", target_is_directory=True)
    (tmp_path / "far").mkdir()
    assert symgen("new", link).exit_code == 0
    assert (tmp_path / "far/_toc.yml").is_file() and link.is_symlink()


def test_a_book_of_another_kind_is_not_taken_for_one(book, tmp_path, monkeypatch):
    other = tmp_path / "other"
    (other / "chapters" / "deep").mkdir(parents=True)
    (other / "_toc.yml").write_text("format: jb-book\nroot: intro\n")
    monkeypatch.chdir(other / "chapters" / "deep")
    monkeypatch.setattr(presets, "BOOK", book)
    assert presets.book_folder() == book
    assert presets.workplace() == other / "chapters" / "deep"
    for chapter in (book / "chapters").glob("*.ipynb"):
        chapter.unlink()
    result = symgen("verify")
    assert result.exit_code == 2 and "holds no chapters" in result.stderr


def test_what_a_chapter_warned_of_is_told_of_several_at_a_time_too(book):
    warn = "import warnings\nwarnings.warn('look at this')\nprint(n)"
    for name in ("a_first", "b_second"):
        nbformat.write(small_chapter(name, warn), book / f"chapters/{name}.ipynb")
    ran = symgen("run", "all", "--workers", "2")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("  UserWarning: look at this") == 2
    assert ran.stdout.count("To see it as a page") == 1
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2]}\n")
    ran = symgen("sweep", "grid.yml")
    assert "done\n  UserWarning: look at this" in ran.stdout, ran.output
    assert "look at this" not in (book / "_build/sweeps/grid/index.csv").read_text()


def test_a_copy_that_papermill_made_of_a_stored_chapter_tells_its_own_parameters(book):
    """It says in its metadata what the copied one ran with."""
    assert symgen("run", "b_second", "--store").exit_code == 0
    folder = book / "mine"
    folder.mkdir()
    told = {}
    for name, given in {"same": {}, "other": {"n": 7, "rate": 0.5}}.items():
        runs._papermill(book, "b_second", given, folder / "b_second.ipynb")
        page = site._page(book, "b_second", [folder])
        told[name] = next(x.source for x in page.cells if 'class="edition"' in x.source)
        costs = site._costs(book, [folder])
        ran = notebooks.provenance_record(page)["seconds"]
        stored = notebooks.provenance_record(presets.read_chapter(book, "b_second"))["seconds"]
        assert costs["seconds"].tolist() == [round(ran if name == "same" else stored)]
    assert told["same"].partition("Preset")[2].startswith(" <b>quick</b>")
    assert " = " not in told["same"].partition("Preset")[2]
    assert "n = 7, rate = 0&#46;5" in told["other"]
