"""Results of chapters: which are read, by whom, and that stored ones are what they should be."""

import nbformat
import pandas as pd
import pytest
from conftest import small_chapter
from test_parameters import run_chapter

from symgen.book import runs, tables
from symgen.book.chapter import Chapter
from symgen.method.claims import VERDICTS

CLAIMS = tables.reported("claims")


def test_stored_claims_are_known_and_hold_numbers_that_fit_their_intervals():
    found = tables.read_results("claims")
    assert len(found)
    assert set(found["claim"]) <= set(CLAIMS["claim"])
    assert set(found["verdict"]) <= set(VERDICTS)
    whole = found.dropna(subset=["value", "low95", "high95"])
    assert (whole["low95"] <= whole["high95"]).all()
    home = CLAIMS.set_index("claim")["chapter"]
    # The map of trainings asks the rules of chapter 3 once more, over all of its cells.
    of = found["claim"].map(home)
    again = (of == "03_three_phase_dynamics") & (found["chapter"] == "when")
    assert ((of == found["chapter"]) | again).all()


def test_a_run_stands_for_its_preset_and_stored_editions_for_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "DATA", tmp_path / "data")
    for folder, value in (("data/editions/quick", 1), ("data/editions/cpu", 2), ("run", 3)):
        (tmp_path / folder / "tables").mkdir(parents=True)
        pd.DataFrame({"x": [value]}).to_csv(tmp_path / folder / "tables/c.t.csv", index=False)
    stored = tables.read_results("t")
    assert stored.values.tolist() == [["quick", "c", 1], ["cpu", "c", 2]]
    during = tables.read_results("t", tmp_path / "run", "quick")
    assert during.values.tolist() == [["quick", "c", 3], ["cpu", "c", 2]]
    assert tables.read_results("none").columns.tolist() == ["preset", "chapter"]


READER = """\
found = chapter.results("t")
print(found.values.tolist())
"""


def test_a_chapter_that_reads_results_runs_again_when_they_change(book, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "DATA", tmp_path / "data")
    nbformat.write(small_chapter("c_reads", READER), book / "chapters" / "c_reads.ipynb")
    out = tmp_path / "out"
    (out / "tables").mkdir(parents=True)
    table = out / "tables" / "b.t.csv"
    table.write_text("x\n1\n")

    def status():
        return runs.execute(book, "c_reads", "quick", {}, out).status

    assert [status(), status()] == ["done", "unchanged"]
    table.write_text("x\n2\n")
    assert [status(), status()] == ["done", "unchanged"]


def test_missing_tables_of_the_paper_are_told():
    with pytest.raises(FileNotFoundError, match=r"no clams.csv in data/paper, which holds claims"):
        tables.reported("clams")


def test_the_comparison_of_nothing_says_that_nothing_was_tested(monkeypatch):
    nothing = pd.DataFrame(columns=["preset", "chapter"])
    monkeypatch.setattr(Chapter, "results", lambda self, table: nothing)
    said = "\n".join(said for *_, said in run_chapter("paper_vs_here", {"preset": "quick"}))
    assert said.count("no run has measured it") == len(CLAIMS)
