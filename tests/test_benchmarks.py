"""The benchmarks run, compare two sides in one run, and write nothing unless asked to."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarks import __main__, offline, solvers
from symgen.book import notebooks
from symgen.data import sources


def test_a_group_of_the_benchmarks_prints_both_sides():
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-store", "--only", "growth"]
    before = sorted((ROOT / "data" / "benchmarks").iterdir())
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    header = next(line for line in done.stdout.splitlines() if "against" in line)
    assert {"what", "against", "ours", "theirs", "unit"} <= set(header.split())
    assert sorted((ROOT / "data" / "benchmarks").iterdir()) == before


def test_a_run_of_one_group_keeps_the_rows_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(__main__, "FOLDER", tmp_path)
    for turn, groups in enumerate((["few", "growth"], ["growth"])):
        rows = [{"what": f"run {turn}"}]
        monkeypatch.setattr(
            __main__, "GROUPS", dict.fromkeys(groups, lambda quick, rows=rows: rows)
        )
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", *groups])
        __main__.main()
    (path,) = tmp_path.iterdir()
    stored = json.loads(path.read_text())
    assert {name: group["rows"][0]["what"] for name, group in stored.items()} == {
        "few": "run 0", "growth": "run 1",
    }  # fmt: skip
    assert stored["few"]["machine"]["threads"]


# The newest shapiq says that it takes LightGBM.
@pytest.mark.filterwarnings("ignore:XGBoost is not installed")
def test_planted_terms_come_back_and_errors_stand_next_to_times():
    time, error = solvers.sampled(quick=True)
    assert time["unit"] == "s per sample" and time["ours"] <= 5
    assert time["note"] == "3 of 3 terms found, 3 effects"
    assert error["unit"] == "relative error of Shapley values" and error["ours"] < 1e-9
    if "not installed" not in error["against"]:
        assert error["ours"] <= error["theirs"]


def test_the_pack_for_a_machine_without_internet_holds_what_that_machine_lacks(
    tmp_path, monkeypatch
):
    wheels = offline.closure(offline.ADDED) - offline.closure(offline.PRESENT)
    assert {"papermill", "ipykernel", "nbclient", "jupyter-client"} <= wheels
    assert not wheels & {"torch", "numpy", "pandas", "transformers"}
    assert sorted(offline.ORDER.split()) == [
        path.stem
        for path in sorted((ROOT / "chapters").glob("*.ipynb"))
        if path.stem[0] in "0ABCD"  # the others need no GPU
    ]
    # An archive of git knows its commit, since there is no git on the other machine.
    command = ["git", "archive", "HEAD", "symgen/book/commit.txt"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", tmp_path], input=archive, check=True)
    head = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    monkeypatch.setattr(notebooks, "PACKAGE", tmp_path / "symgen")
    short = notebooks.package_commit()
    assert len(short) >= 7 and commit.startswith(short)


def test_the_pack_holds_the_first_rows_of_each_split(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(ROOT / "tests" / "data" / "mirror"))
    offline.write_rows("stanfordnlp/sst2", {"train": 5}, tmp_path / "stanfordnlp" / "sst2")
    whole = sources.open_splits("stanfordnlp/sst2")
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    packed = sources.open_splits("stanfordnlp/sst2")
    assert len(packed["train"]) == 5 and packed["train"][:] == whole["train"][:5]
    assert packed["validation"][:] == whole["validation"][:]
