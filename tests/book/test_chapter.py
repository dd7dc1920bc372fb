"""One execution of a chapter: what it keeps, records, judges and says of itself."""

import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from symgen.book import tables
from symgen.book.chapter import Chapter
from symgen.fingerprints import RECORD, code_fingerprint, reached

VARIABLES = {"preset": "quick", "n": 3, "_hidden": 1, "In": [], "Out": {}, "json": json}


def test_a_chapter_keeps_its_parameters_and_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_OUT", str(tmp_path))
    chapter = Chapter("name", VARIABLES)
    frame = chapter.record("small", pd.DataFrame({"n": [3]}))
    assert frame.shape == (1, 1)
    assert (tmp_path / "tables" / "name.small.csv").read_text() == "n\n3\n"
    bundle = chapter.provenance()._repr_mimebundle_()
    record = bundle[RECORD]
    # JupyterLab prefers plain JSON to a table.
    assert set(bundle) == {"text/plain", "text/html", RECORD}
    assert json.loads(json.dumps(record)) == record
    assert record["parameters"] == {"preset": "quick", "n": 3}
    assert record["code"] == code_fingerprint()
    assert record["memory"]["host"] > 10
    assert set(record["tables"]) == {"small"}
    assert "code fingerprint" in bundle["text/plain"]
    assert "<table" in bundle["text/html"]
    shutil.rmtree(tmp_path / "tables")
    monkeypatch.delenv("SYMGEN_OUT")
    Chapter("name", VARIABLES).record("small", frame)
    assert not (tmp_path / "tables").exists()


def test_a_chapter_is_no_result_of_what_only_checks_or_shows():
    names = {name for name, _ in reached("from symgen import Chapter\nChapter()")}
    assert "Chapter" in names
    assert not names & {"check_parameters", "Provenance", "peak_memory", "versions", "atomic"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of their parents")
def test_the_memory_of_a_process_is_its_own_and_not_that_of_who_started_it():
    child = "from symgen.book.chapter import peak_memory; print(peak_memory()['host'])"
    parent = (
        "import subprocess, sys; held = b'x' * 2**30\n"
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True).stdout)"
    )
    told = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True)
    assert 50 < int(re.search(r"\d+", told.stdout)[0]) < 1000


def test_units_are_in_the_header_of_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_OUT", str(tmp_path))
    chapter = Chapter("a_chapter", {})
    frame = pd.DataFrame({"step": [1], "loss": [0.5]})
    assert chapter.record("losses", frame, units={"loss": "nats"}) is frame
    header = (tmp_path / "tables" / "a_chapter.losses.csv").read_text().splitlines()[0]
    assert header == "step,loss [nats]"
    with pytest.raises(ValueError, match="'lose' is no column of losses: step, loss"):
        chapter.record("losses", frame, units={"lose": "nats"})


def test_what_a_failed_chapter_left_from_an_earlier_run_is_not_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "DATA", tmp_path / "data")
    run = tmp_path / "run"
    for folder in ("data/editions/cpu", "run"):
        (tmp_path / folder / "tables").mkdir(parents=True)
        for chapter in ("c", "d"):
            pd.DataFrame({"x": [1]}).to_csv(
                tmp_path / folder / f"tables/{chapter}.t.csv", index=False
            )
    monkeypatch.setenv("SYMGEN_OUT", str(run))
    chapter = Chapter("reader", {"preset": "quick"})
    assert len(chapter.results("t")) == 4
    before = chapter.inputs["t"]
    assert capsys.readouterr().out == ""
    (run / "c.failed.ipynb").touch()
    found = chapter.results("t")
    assert found[["preset", "chapter"]].values.tolist() == [
        ["quick", "d"],
        ["cpu", "c"],
        ["cpu", "d"],
    ]
    assert found.attrs["failed"] == ["c"]
    assert capsys.readouterr().out == "Left out, since they failed in this run: c.\n"
    assert chapter.inputs["t"] != before


def test_the_record_tells_the_number_of_threads(monkeypatch, one_thread):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shown = Chapter("a_chapter", {}).provenance()
    assert (shown.record["threads"], shown.record["OMP_NUM_THREADS"]) == (1, "3")
    text = "1 (OMP_NUM_THREADS 3)"
    assert f"threads: {text}" in shown._repr_mimebundle_()["text/plain"]
    assert f"<th>threads</th><td>{text}</td>" in shown._repr_mimebundle_()["text/html"]
    monkeypatch.delenv("OMP_NUM_THREADS")
    again = Chapter("a_chapter", {}).provenance()._repr_mimebundle_()
    assert "threads: 1 (OMP_NUM_THREADS unset)" in again["text/plain"]
