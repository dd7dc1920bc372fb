"""Studies, the claims that chapters judge, and the tables that pages are built from."""

import ast
import re
import subprocess
import sys

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, small_chapter
from test_parameters import run_chapter

import symgen
from symgen import Study
from symgen.book import notebooks as editions
from symgen import figures as plots
from symgen.book import tables as results
from symgen.book import runs
from symgen.book import site
from symgen.book.chapter import VERDICTS, Chapter
from symgen.transforms import and_or_outputs

CHAPTERS = runs.chapter_names(ROOT)
CLAIMS = symgen.reported("claims")


def code_of(name):
    notebook = runs.read_chapter(ROOT, name)
    return "\n".join(cell.source for cell in editions.own_code(notebook))


def claimed(name):
    """The names that a chapter hands to `chapter.claim`, and texts that could be such names."""
    texts = set()
    for node in ast.walk(ast.parse(code_of(name))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return texts & set(CLAIMS["claim"])


def test_every_claim_is_judged_by_the_chapter_it_names():
    for name, rows in CLAIMS.groupby("chapter"):
        if name in CHAPTERS:
            assert set(rows["claim"]) <= claimed(name), name


def test_stored_claims_are_known_and_hold_numbers_that_fit_their_intervals():
    found = results.read_results("claims")
    assert len(found)
    assert set(found["claim"]) <= set(CLAIMS["claim"])
    assert set(found["verdict"]) <= set(VERDICTS)
    whole = found.dropna(subset=["value", "low95", "high95"])
    assert (whole["low95"] <= whole["high95"]).all()
    home = CLAIMS.set_index("claim")["chapter"]
    assert (found["claim"].map(home) == found["chapter"]).all()


def test_a_study_finds_the_same_networks_and_interactions_again():
    study = Study.of({"train_size": 60, "epochs": 1, "other": 3}, samples=3, n=4, checkpoints=2)
    assert study.title == "cnn on digits"
    target, others = study.interactions()
    assert target.and_.shape == (3, 16)
    assert len(others) == 1
    again, _ = Study.of(
        {"train_size": 60, "epochs": 1}, samples=3, n=4, checkpoints=2
    ).interactions()
    assert torch.equal(target.and_, again.and_)
    table = study.accuracies
    assert table["part"].tolist() == ["target", "baseline"]
    assert table["training samples"].tolist() == [60, 60]
    assert table["test accuracy"].between(0, 1).all()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["target", "baseline"]),
        ({"baselines": 3}, ["target", "baseline1", "baseline2", "baseline3"]),
        ({"split": "thirds"}, ["A", "B", "C"]),
        ({"split": "test"}, ["target", "baseline"]),
        ({"baselines": 0}, ["target"]),
        ({"baselines": 0, "split": "test"}, ["target"]),
    ],
)
def test_a_study_names_the_parts_of_its_networks(options, names):
    study = Study(train_size=20, **options)
    assert study.names == names
    assert set(names) <= set(study.data.parts)


def test_a_study_refuses_what_it_does_not_have():
    with pytest.raises(ValueError, match='a study has no "netwrk".*network'):
        Study.of({}, netwrk="cnn")


def test_a_claim_needs_a_known_verdict_and_is_kept_once_a_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_OUT", str(tmp_path))
    chapter = Chapter("a_chapter", {"network": "cnn", "dataset": "digits"})
    with pytest.raises(ValueError, match="one of shown, partly, not shown, not tested"):
        chapter.claim("gap", "perhaps", "what")
    chapter.claim("gap", "shown", "first")
    chapter.claim("gap", "partly", "second", symgen.Interval(0.5, 0.1, 0.9), "nats", 20)
    chapter.claim("gap", "shown", "third", 2.0, setting="another")
    table = pd.read_csv(tmp_path / "tables" / "a_chapter.claims.csv")
    assert table["measure"].tolist() == ["second", "third"]
    assert table["setting"].tolist() == ["cnn on digits", "another"]
    assert table.loc[0, ["value", "low95", "high95"]].tolist() == [0.5, 0.1, 0.9]
    assert np.isnan(table.loc[1, "low95"])


def test_units_are_in_the_header_of_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_OUT", str(tmp_path))
    chapter = Chapter("a_chapter", {})
    frame = pd.DataFrame({"step": [1], "loss": [0.5]})
    assert chapter.record("losses", frame, units={"loss": "nats"}) is frame
    header = (tmp_path / "tables" / "a_chapter.losses.csv").read_text().splitlines()[0]
    assert header == "step,loss [nats]"
    with pytest.raises(ValueError, match="'lose' is no column of losses: step, loss"):
        chapter.record("losses", frame, units={"lose": "nats"})


def test_a_run_stands_for_its_preset_and_stored_editions_for_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DATA", tmp_path / "data")
    for folder, value in (("data/editions/quick", 1), ("data/editions/cpu", 2), ("run", 3)):
        (tmp_path / folder / "tables").mkdir(parents=True)
        pd.DataFrame({"x": [value]}).to_csv(tmp_path / folder / "tables/c.t.csv", index=False)
    stored = results.read_results("t")
    assert stored.values.tolist() == [["quick", "c", 1], ["cpu", "c", 2]]
    during = results.read_results("t", tmp_path / "run", "quick")
    assert during.values.tolist() == [["quick", "c", 3], ["cpu", "c", 2]]
    assert results.read_results("none").columns.tolist() == ["preset", "chapter"]


def test_what_a_failed_chapter_left_from_an_earlier_run_is_not_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "DATA", tmp_path / "data")
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


PUBLIC = """
import sys, symgen
assert "torch" not in sys.modules
import symgen.split.sparsify
assert callable(symgen.sparsify) and symgen.sparsify.__module__ == "symgen.sparsify"
from symgen import Study, phases
from symgen import figures as plots
assert set(symgen.__all__) <= set(dir(symgen))
assert all(getattr(symgen, name) is not None for name in symgen.__all__)
assert not hasattr(symgen, "nosuch")
namespace = {}
exec("from symgen import *", namespace)
assert namespace["train"] is symgen.train
"""


def test_public_names_are_loaded_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", PUBLIC], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


READER = """\
found = chapter.results("t")
print(found.values.tolist())
"""


def test_a_chapter_that_reads_results_runs_again_when_they_change(book, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DATA", tmp_path / "data")
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
        symgen.reported("clams")


@pytest.fixture(scope="module")
def graph():
    effects = torch.zeros(2, 2**4, dtype=torch.float64)
    effects[0, 0b0011], effects[0, 0b1000], effects[1, 0b1110] = 2.0, -1.0, 0.5
    inter = symgen.sparsify(and_or_outputs(effects[0], effects[1]), noise=0.0)
    return plots.plot_graph(inter, ["a", "b", "c", "d"], target="word")


def test_the_graph_shows_every_interaction_with_its_sign_and_effect(graph):
    ax, table = graph
    texts = [text.get_text() for text in ax.texts]
    assert {"a", "b", "c", "d", "word", "∧", "∨"} <= set(texts)
    for effect in table["effect"]:
        assert f"{effect:+.2f}" in texts
    assert [label.get_text() for label in ax.get_yticklabels()] == ["order 1", "order 2", "order 3"]


COMPARISON = pd.DataFrame(
    {
        "claim": ["one", "one", "two"],
        "place": ["Fig. 1", "Fig. 1", "App. Z"],
        "statement": ["It <rises>", "It <rises>", "It falls"],
        "paper_value": ["much", "much", "3 %"],
        "chapter": ["03_three_phase_dynamics"] * 2 + ["E_penalty"],
        "preset": ["quick", "cpu", None],
        "setting": ["cnn on digits", "resnet20 on cifar10", None],
        "measure": ["the rise", "the rise", None],
        "value": [0.25, 0.5, None],
        "low95": [0.1, None, None],
        "high95": [0.4, None, None],
        "unit": ["1", "nats", None],
        "samples": [20, 30, None],
        "verdict": ["shown", "not shown", "not tested"],
    }
)


def test_verdicts_are_drawn_once_a_claim_and_setting():
    ax, wide = plots.plot_verdicts(COMPARISON)
    assert wide.shape == (2, 2)
    assert [t.get_text() for t in ax.texts] == ["+", "-"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2"]
    labels = [t.get_text() for t in ax.figure.legends[0].get_texts()]
    assert [label.split(maxsplit=1)[1] for label in labels] == list(VERDICTS)


def compared(found, monkeypatch):
    """What the page that compares says of some results."""
    monkeypatch.setattr(Chapter, "results", lambda self, table: found)
    return "\n".join(said for *_, said in run_chapter("paper_vs_here", {"preset": "quick"}))


def test_the_comparison_says_when_a_chapter_failed_and_what_stored_editions_stand_for(monkeypatch):
    found = results.read_results("claims")
    said = compared(found, monkeypatch)
    assert "Take care" not in said
    others = set(found["preset"]) - {"quick"}
    assert others and f"preset {' and '.join(sorted(others))} are those of its stored" in said
    name = "05_llm_interactions"
    found = found[(found["chapter"] != name) & (found["preset"] == "quick")]
    found.attrs["failed"] = [name]
    said = compared(found, monkeypatch)
    assert f"In this run of preset `quick`, {name} failed." in said
    for statement in CLAIMS["statement"][CLAIMS["chapter"] == name]:
        assert said.count(statement) >= 2  # what is lost, and what is not tested
    assert "stored edition" not in said


def test_the_comparison_of_nothing_says_that_nothing_was_tested(monkeypatch):
    said = compared(pd.DataFrame(columns=["preset", "chapter"]), monkeypatch)
    assert f"and {len(CLAIMS)} were not tested" in said


def test_the_table_of_claims_has_values_intervals_and_links():
    html = plots.claims_table(COMPARISON)._repr_html_()
    for text in ("It &lt;rises&gt;", "0.25 [0.1, 0.4]", "0.5 nats", "no run has measured it"):
        assert text in html
    assert 'href="03_three_phase_dynamics.html"' in html


def test_benchmarks_are_shown_with_what_they_should_be():
    rows = pd.DataFrame(
        {
            "what": ["a", "b"], "against": ["x", "y"], "ours": [1.0, 2.0], "theirs": [50.0, None],
            "unit": ["s", "GiB"], "ratio": [50.0, 0.5], "must": [30.0, None],
            "limit": [None, 1.0], "met": [True, False],
        }
    )  # fmt: skip
    html = plots.benchmark_table(rows)._repr_html_()
    for text in ("at least 30", "at most 1", "<td>yes</td>", "<b>no</b>"):
        assert text in html


def test_markers_in_pages_become_tables():
    text = site._table(ROOT, "paper/reported.csv Appendix K", [])
    assert "VGG-11 on CIFAR-10 | 28 | percent" in text
    costs = site._table(ROOT, "costs", [])
    for name in CHAPTERS:
        assert f"| [{name}]({name}) | quick |" in costs
    for page in (ROOT / "chapters").glob("*.md"):
        for marker in re.findall(r"<!-- table: (.+?) -->", page.read_text()):
            assert site._table(ROOT, marker, []).startswith("|"), marker
