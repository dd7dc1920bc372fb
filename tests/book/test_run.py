"""Chapters are run: what is kept, skipped, refused, and left after a failure."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest
from click.testing import CliRunner

from book.small_book import ROOT
from symgen.book import cli, editions, notebooks, run


def call(*words):
    return CliRunner().invoke(cli.app, list(words))


def text_of(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.get("text", "") for c in cells for o in c.get("outputs", []))


def test_a_run_leaves_the_page_its_tables_and_what_produced_them(ran):
    out = ran / "_build" / "runs" / "quick"
    page = nbformat.read(out / "00_first.ipynb", as_version=4)
    about = page.metadata["symgen"]
    source = notebooks.read_chapter(ran, "00_first")
    assert about["cells"] == notebooks.cells_hash(source) == notebooks.cells_hash(page)
    assert about["preset"] == "quick" and about["reused"] == 5 and about["seconds"] > 5
    assert about["versions"]["torch"] and about["date"].startswith("20") and about["device"]
    assert about["parameters"] == {} and "papermill" not in page.metadata
    kinds = {
        kind for cell in page.cells for o in cell.get("outputs", []) for kind in o.get("data", {})
    }
    assert notebooks.PROVENANCE not in kinds and "text/html" in kinds
    table = pd.read_csv(out / "tables" / "00_first.power.csv")
    assert table["H"].tolist() == pytest.approx([1 / 3, 3])
    assert sorted(p.name for p in out.iterdir()) == ["00_first.ipynb", "02_second.ipynb", "tables"]


def test_pages_know_no_folder_of_this_machine(ran):
    printed = text_of(ran / "_build" / "runs" / "quick" / "02_second.ipynb")
    assert printed == "1.0 ./chapters\n"


def test_an_equal_run_is_skipped_unless_something_changed(copied, monkeypatch):
    monkeypatch.setattr(notebooks, "package_commit", lambda: "abc")
    out, args = copied / "new", (copied, "02_second", "quick")
    assert run.execute(*args, {}, out).status == "done"
    assert run.execute(*args, {}, out).status == "unchanged"
    changed = run.execute(*args, {"value": [float("nan"), None]}, out)
    assert changed.status == "done" and text_of(changed.path) == "[nan, None] ./chapters\n"
    about = json.loads(changed.path.read_text(), parse_constant=pytest.fail)["metadata"]["symgen"]
    assert about["parameters"] == {"value": "[.nan, null]"}
    # The reader's own code may have changed.
    assert run.execute(*args, {"value": "mine:build"}, out).status == "done"
    assert run.execute(*args, {"value": "mine:build"}, out).status == "done"
    monkeypatch.setattr(notebooks, "package_commit", lambda: "abc+")
    assert run.execute(*args, {"value": "mine:build"}, out).status == "done"


def test_a_failure_is_shown_next_to_the_last_good_copy(copied):
    out = copied / "_build" / "runs" / "quick"
    before = (out / "02_second.ipynb").read_bytes()
    result = call("run", "02_second", "-p", "fail", "true", "--out", str(out))
    assert result.exit_code == 1, result.output
    assert "cell [3] raised RuntimeError: in " in result.output
    assert (out / "02_second.ipynb").read_bytes() == before
    failed = nbformat.read(out / "02_second.failed.ipynb", as_version=4)
    errors = [o for c in failed.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert errors[0].evalue == "in ./chapters"
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_a_run_whose_time_is_over_stops_with_status_75(copied):
    result = call("run", "02_second", "-p", "fail", "time", "--minutes", "9")
    assert result.exit_code == 75, result.output
    assert "02_second: in " in result.output
    assert not [*(copied / "_build" / "runs").glob("*/*.failed.ipynb")]
    result = call("run", "02_second", "-p", "value", "0", "--minutes", "0")
    assert result.exit_code == 75 and "not started; run again" in result.output


def test_a_chapter_may_print_ten_thousand_lines(copied):
    outcome = run.execute(copied, "02_second", "quick", {"value": "much"}, copied / "new")
    assert text_of(outcome.path).count("\n") == 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "01_first"], 'chapter "01_first" is unknown; expected one of 00_first, 02_second. '
         'Did you mean "00_first"?'),
        (["run", "00_first", "--preset", "qick"], 'Did you mean "quick"?'),
        (["run", "00_first", "-p", "rat", "1"], 'parameter of 00_first "rat" is unknown; expected '
         'one of n, rate, settings. Did you mean "rate"?'),
        (["run", "00_first", "-p", "preset", "cpu"], 'parameter of 00_first "preset" is unknown'),
        (["run", "00_first", "-p", "n", "1", "-p", "n", "2"], "-p n is given twice"),
        (["run", "00_first", "-p", "n", "[1"], "'[1' is not YAML"),
        (["run", "00_first", "-p", "n", "1", "--store"], "--store needs an unmodified preset"),
        (["run", "00_first", "--preset", "smoke", "--store"], "--store needs an unmodified preset"),
        (["run", "00_first", "--out", "../chapters"], "is part of the book"),
        (["html", "--edition", "gpu"], 'edition "gpu" is unknown; expected one of quick, cpu'),
        (["html", "--from", "nowhere"], "no executed chapter in nowhere"),
        (["html", "--from", "a", "--edition", "b"], "not both"),
        (["sweep", "nosuch.yml"], "nosuch.yml cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_that_says_why(book, words, message):
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert message in result.output and result.output.startswith("symgen: ")
    assert len(result.output.strip().splitlines()) == 1


def test_parameters_are_read_as_yaml():
    texts = {"8": 8, "1e-3": 1e-3, "None": None, "null": None, "[1, .inf]": [1, float("inf")],
             "{a: 2}": {"a": 2}, "cnn": "cnn", "'8'": "8", "-.5": -0.5, "false": False}  # fmt: skip
    assert {text: notebooks.from_yaml(text) for text in texts} == texts


def test_a_preset_and_the_command_line_replace_single_settings(book):
    resolved = notebooks.resolve(book, "00_first", "cpu", {"settings": {"depth": 3}})
    expected = {"preset": "cpu", "n": 5, "settings": {"epochs": 1, "width": 2, "depth": 3}}
    assert resolved == expected


def test_names_need_no_utf8_terminal(book):
    command = [sys.executable, "-m", "symgen", "run", "02_second", "-p", "value", "ü",
               "--out", str(book / "out")]  # fmt: skip
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=book, env=plain, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert text_of(book / "out" / "02_second.ipynb").startswith("ü ")


def test_a_dry_run_scales_the_stored_seconds(ran, monkeypatch):
    import symgen.book.chapter

    monkeypatch.chdir(ran)
    stored = nbformat.read(editions.edition_folder(ran, "quick") / "00_first.ipynb", as_version=4)
    about = stored.metadata["symgen"]
    monkeypatch.setattr(symgen.book.chapter, "timed_batch", lambda: 3 * about["batch"])
    result = call("run", "all", "--dry-run")
    assert result.exit_code == 0
    seconds = 3 * (about["seconds"] - 5)
    assert f"00_first: about {seconds:,.0f} s" in result.output
    assert "02_second: no stored run" in result.output


def test_verify_lists_pages_whose_cells_changed(copied):
    assert call("verify").exit_code == 0
    path = copied / "chapters" / "02_second.ipynb"
    source = nbformat.read(path, as_version=4)
    source.cells[0].source = "# Another title"
    nbformat.write(source, path)
    assert call("verify").exit_code == 0
    source.cells[-1].source += "\nvalue"
    nbformat.write(source, path)
    stored = copied / "data" / "editions" / "quick" / "00_first.ipynb"
    stored.unlink()
    result = call("verify")
    assert result.exit_code == 1
    assert result.output == "quick: 00_first is missing\nquick: 02_second is stale\n"


def test_a_default_that_a_run_did_not_use_may_change(ran):
    source = notebooks.read_chapter(ran, "02_second")
    before, given = notebooks.cells_hash(source), notebooks.cells_hash(source, ["value"])
    parameters = source.cells[1]
    parameters.source = parameters.source.replace("# anything", "# any number")
    assert notebooks.cells_hash(source) == before
    parameters.source = parameters.source.replace("1.0", "2.0")
    assert notebooks.cells_hash(source) != before
    assert notebooks.cells_hash(source, ["value"]) == given


def test_store_replaces_page_and_tables(copied, monkeypatch):
    monkeypatch.setattr(notebooks, "package_commit", lambda: "abc")
    tables = copied / "data" / "editions" / "quick" / "tables"
    (tables / "02_second.old.csv").write_text("a\n1\n")
    started = time.time()
    result = call("run", "02_second", "--store")
    assert result.exit_code == 0, result.output
    assert not (tables / "02_second.old.csv").exists() and (tables / "00_first.claims.csv").exists()
    assert (tables.parent / "02_second.ipynb").stat().st_mtime >= started - 1


@pytest.mark.parametrize("preset, commit", [("quick", None), ("cpu", "abc")])
def test_store_asks_larger_presets_to_record_their_trainings(copied, monkeypatch, preset, commit):
    monkeypatch.setattr(notebooks, "package_commit", lambda: "abc")
    monkeypatch.setenv("SYMGEN_RECORD", "")
    monkeypatch.delenv("SYMGEN_RECORD")
    seen = []
    monkeypatch.setattr(
        run, "run_all", lambda *_: seen.append(os.environ.get("SYMGEN_RECORD")) or []
    )
    assert call("run", "02_second", "--preset", preset, "--store").exit_code == 0
    assert seen == [commit]


def test_chapters_side_by_side_share_the_cores_and_neighbours_do_not_meet(monkeypatch):
    monkeypatch.setattr(run, "cpu_count", lambda: 6)
    monkeypatch.setattr(run, "Parallel", lambda **_: lambda jobs: [a for _, a, _ in jobs])
    for workers, order in {1: "abcde", 2: "acebd"}.items():
        jobs = list(run.run_all(ROOT, list("abcde"), "quick", {}, ROOT, workers))
        assert "".join(job[1] for job in jobs) == order
        assert {job[-1] for job in jobs} == {6 // workers}
