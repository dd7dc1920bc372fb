"""Chapters are run: what is kept, skipped, refused, and left after a failure."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import nbformat
import pandas as pd
import psutil
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
    nested = {"value": [{"network": "mine:build"}]}
    assert run.execute(*args, nested, out).status == "done"
    assert run.execute(*args, nested, out).status == "done"
    assert run.execute(*args, {"value": "at 12:30"}, out).status == "done"
    assert run.execute(*args, {"value": "at 12:30"}, out).status == "unchanged"


def test_an_edited_package_runs_again_also_without_git(ran, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "PACKAGE", tmp_path)
    hashes = []
    for text in ("n = 1", "n = 2"):
        (tmp_path / "module.py").write_text(text)
        notebooks.package_hash.cache_clear()
        hashes.append(notebooks.package_hash())
    notebooks.package_hash.cache_clear()
    assert hashes[0] != hashes[1]
    page = ran / "_build" / "runs" / "quick" / "02_second.ipynb"
    record = nbformat.read(page, as_version=4).metadata["symgen"]
    about = {
        name: record[name] for name in run.identity(notebooks.read_chapter(ran, "02_second"), {})
    }
    assert run.is_unchanged(page, about, {})
    assert not run.is_unchanged(page, {**about, "package": hashes[0]}, {})


def test_a_failure_is_shown_next_to_the_last_good_copy(copied):
    out = copied / "_build" / "runs" / "quick"
    before = (out / "02_second.ipynb").read_bytes()
    result = call("run", "02_second", "-p", "fail", "true", "--out", str(out))
    assert result.exit_code == 1, result.output
    line = result.output.splitlines()[0]
    assert "cell [3] raised RuntimeError: in " in line and "02_second.failed.ipynb" in line
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


def test_an_executed_copy_that_was_edited_keeps_its_cells_under_another_name(copied):
    outcome = run.execute(copied, "02_second", "quick", {}, copied / "new")
    edited = notebooks.read(outcome.path)
    edited.cells[0].source += "\n\nA note of mine."
    notebooks.write(edited, outcome.path)
    again = run.execute(copied, "02_second", "quick", {"value": 2.0}, copied / "new")
    assert again.message.endswith("the edited copy is now 02_second.edited-1.ipynb")
    kept = notebooks.read(copied / "new" / "02_second.edited-1.ipynb")
    assert kept.cells[0].source.endswith("A note of mine.")
    third = run.execute(copied, "02_second", "quick", {"value": 3.0}, copied / "new")
    assert third.status == "done" and "edited" not in third.message


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
        (["run", "00_first", "-p", "n", "[1"], "-p n: '[1' is not a value in YAML"),
        (["run", "00_first", "-p", "n", "010"], "-p n: '010' is not a value in YAML: 010 starts with 0"),
        (["run", "00_first", "-p", "n", "[00]"], "-p n: '[00]' is not a value in YAML: 00 starts with 0"),
        (["run", "00_first", "-p", "n", "!!int abc"], "-p n: '!!int abc' is not a value in YAML"),
        (["run", "00_first", "-p", "n", "!!set {a}"], "-p n: '!!set {a}' is not a value in YAML"),
        (["run", "00_first", "-p", "n", "{1: 2}"], "-p n: '{1: 2}' is not a value in YAML"),
        (["run", "00_first", "-p", "n", "9" * 5000], "is not a value in YAML"),
        (["run", "00_first", "-p", "n", "\udcff"], "-p n: 'utf-8' codec can't decode"),
        (["run", "00_first", "--minutes", "nan"], "--minutes is nan; expected a number"),
        (["run", "00_first", "--minutes", "-1"], "--minutes is -1.0; expected a number"),
        (["run", "00_first", "--out", "../_toc.yml"], "--out ../_toc.yml cannot be written to"),
        (["run", "lab/02_secnd.ipynb"], 'chapter "lab/02_secnd.ipynb" is unknown'),
        (["course", "00_first.ipynb"], "FOLDER 00_first.ipynb cannot be written to"),
        (["sweep", "00_first.ipynb", "--out", "00_first.ipynb"], "00_first.ipynb"),
        (["sweep", "."], ". cannot be read"),
        (["run", "00_first", "-p", "n", "1", "--store"], "and an unmodified preset"),
        (["run", "00_first", "--preset", "smoke", "--store"], "and an unmodified preset"),
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
             "{a: 2}": {"a": 2}, "cnn": "cnn", "2026-01-31": "2026-01-31", "1_000": 1000, "0": 0, "no": False, "'8'": "8", "-.5": -0.5, "false": False}  # fmt: skip
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
    (told,) = re.findall(r"00_first: about (\d+) s", result.output)
    assert abs(float(told) - seconds) < 0.51  # told in whole seconds; a half may go either way
    assert "02_second: no stored run" in result.output


def test_verify_lists_pages_whose_cells_changed(copied):
    assert call("verify").output == "All stored pages are up to date.\n"
    path = copied / "chapters" / "02_second.ipynb"
    source = nbformat.read(path, as_version=4)
    source.cells[0].source = "# Another title"
    nbformat.write(source, path)
    assert call("verify").exit_code == 0
    source.cells[-1].source += "\nvalue"
    nbformat.write(source, path)
    stored = copied / "data" / "editions" / "quick"
    (stored / "00_first.ipynb").unlink()
    (stored / "tables" / "00_first.power.csv").unlink()
    result = call("verify")
    assert result.exit_code == 1
    assert result.output == "quick: 00_first is missing\nquick: 02_second is stale\n"


def edit_output(folder):
    path = folder / "00_first.ipynb"
    path.write_text(path.read_text().replace("safe words", "forged words"))


DAMAGES = {
    "truncated page": lambda folder: os.truncate(folder / "00_first.ipynb", 500),
    "deleted page": lambda folder: (folder / "00_first.ipynb").unlink(),
    "deleted table": lambda folder: (folder / "tables" / "00_first.power.csv").unlink(),
    "edited table": lambda folder: (folder / "tables" / "00_first.power.csv").write_text("H\n1\n"),
    "added table": lambda folder: (folder / "tables" / "00_first.claims.csv").write_text("a\n1\n"),
    "forged output": edit_output,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_lists_pages_and_tables_that_are_not_what_a_run_wrote(copied, name):
    DAMAGES[name](copied / "data" / "editions" / "quick")
    result = call("verify")
    assert result.exit_code == 1 and result.output == "quick: 00_first is damaged\n"


def test_a_run_replaces_only_what_a_run_made(copied):
    lab = copied / "_build" / "lab"
    (lab / "tables").mkdir(parents=True)
    shutil.copy(copied / "chapters" / "02_second.ipynb", lab)
    (lab / "tables" / "02_second.mine.csv").write_text("a\n1\n")
    before = (lab / "02_second.ipynb").read_bytes()
    result = call("run", "02_second", "--out", str(lab))
    assert result.exit_code == 1 and "02_second.ipynb was not made by `symgen run`" in result.output
    assert (lab / "02_second.ipynb").read_bytes() == before
    (lab / "02_second.ipynb").rename(lab / "02_second.failed.ipynb")
    assert "was not made by `symgen run`" in call("run", "02_second", "--out", str(lab)).output
    (lab / "02_second.failed.ipynb").unlink()
    for value in ("1", "2"):
        assert call("run", "02_second", "-p", "value", value, "--out", str(lab)).exit_code == 0
    assert (lab / "tables" / "02_second.mine.csv").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_make_clean_keeps_what_readers_made_and_says_what_it_deletes(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = {"lab", "runs", "sweeps", "tables"}
    for name in {*kept, "html", "site-work"}:
        (tmp_path / "_build" / name).mkdir(parents=True)
    done = subprocess.run(
        ["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "deleted: _build/html\n" in done.stdout and "kept: _build/lab\n" in done.stdout
    assert {path.name for path in (tmp_path / "_build").iterdir()} == kept


def test_the_notebook_that_was_named_is_run(copied, monkeypatch):
    monkeypatch.chdir(copied)
    lab = copied / "_build" / "lab"
    lab.mkdir(parents=True)
    notebook = nbformat.read(copied / "chapters" / "02_second.ipynb", as_version=4)
    notebook.cells[1].source += "\nmine = 3"
    notebook.cells[3].source = "print('my own', mine, os.getcwd())"
    nbformat.write(notebook, lab / "02_second.ipynb")
    named = "_build/lab/02_second.ipynb"
    assert notebooks.chosen_chapters(copied, [named]) == [str(lab / "02_second.ipynb")]
    assert notebooks.chosen_chapters(copied, ["chapters/02_second.ipynb"]) == ["02_second"]
    assert call("run", named, "--store").exit_code == 2
    result = call("run", named, "-p", "mine", "4")
    assert result.exit_code == 0, result.output
    (page,) = (copied / "_build" / "runs").glob("quick-*/02_second.ipynb")
    assert text_of(page) == "my own 4 ./_build/lab\n"


def test_a_full_disk_is_reported_and_the_next_chapter_is_tried(book, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notebooks, "write", full)
    monkeypatch.setattr(run, "_papermill", lambda source, *_: (source, None))
    result = call("run", "all")
    assert result.exit_code == 1, result.output
    assert result.output.count("failed: [Errno 28] No space left on device") == 2


def test_ctrl_c_ends_with_status_130(book, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_all", stopped)
    assert call("run", "all").exit_code == 130


def test_a_worker_ends_when_its_parent_was_killed(tmp_path):
    """After kill -9 nobody else would end it."""
    worker = tmp_path / "worker.pid"
    code = (
        "import os, time\n"
        "from symgen.device import end_with\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    end_with(parent)\n"
        f"    open({str(worker)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: worker.exists() and worker.read_text())
    parent.kill()
    parent.wait()
    pid = int(worker.read_text())
    wait_until(lambda: not is_running(pid))


def wait_until(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited for 2 minutes")


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_default_that_a_run_did_not_use_may_change(ran):
    source = notebooks.read_chapter(ran, "02_second")
    before, given = notebooks.cells_hash(source), notebooks.cells_hash(source, ["value"])
    parameters = source.cells[1]
    parameters.source = parameters.source.replace("# anything", "# any number")
    assert notebooks.cells_hash(source) == before
    parameters.source = parameters.source.replace("1.0", "2.0")
    assert notebooks.cells_hash(source) != before
    assert notebooks.cells_hash(source, ["value"]) == given


def test_store_replaces_page_and_tables(copied):
    tables = copied / "data" / "editions" / "quick" / "tables"
    page = tables.parent / "02_second.ipynb"
    stored = nbformat.read(page, as_version=4)
    stored.metadata["symgen"]["tables"] = {"02_second.old.csv": ""}
    nbformat.write(stored, page)
    (tables / "02_second.old.csv").write_text("a\n1\n")
    result = call("run", "02_second", "--store")
    assert result.exit_code == 0, result.output
    assert not (tables / "02_second.old.csv").exists() and (tables / "00_first.power.csv").exists()
    assert call("verify").exit_code == 0


@pytest.mark.parametrize(("preset", "commit"), [("quick", ""), ("cpu", "abc")])
def test_store_asks_larger_presets_to_keep_their_trainings(copied, monkeypatch, preset, commit):
    monkeypatch.setattr(notebooks, "package_commit", lambda: "abc")
    seen = []
    monkeypatch.setattr(run, "run_all", lambda *given: seen.append(given[-1]) or [])
    assert call("run", "02_second", "--preset", preset, "--store").exit_code == 0
    assert seen == [commit]


def test_chapters_side_by_side_share_the_cores_and_neighbours_do_not_meet(monkeypatch):
    monkeypatch.setattr(run, "cpu_count", lambda: 6)
    monkeypatch.setattr(run, "Parallel", lambda **_: lambda jobs: [a for _, a, _ in jobs])
    for workers, order in {1: "abcde", 2: "acebd"}.items():
        jobs = list(run.run_all(ROOT, list("abcde"), "quick", {}, ROOT, workers))
        assert "".join(job[2] for job in jobs) == order
        assert {job[-1] for job in jobs} == {6 // workers}
