"""The benchmarks compare like with like, and keep what they measured."""

import json
import subprocess
import sys

import pandas as pd
import pytest
import torch
from outputs import network_outputs

import symgen
from symgen.book.bills import Bill
from symgen.split import published

bill = pytest.importorskip("benchmarks.bill")
movement = pytest.importorskip("benchmarks.movement")
dense = pytest.importorskip("benchmarks.published")
rows = pytest.importorskip("benchmarks.rows")


def test_dense_matrices_change_nothing_in_the_published_procedure():
    v = network_outputs(6, 3)
    fast = published.published(v, rate=1e-3, steps=300)
    with dense.dense(6):
        slow = published.published(v, rate=1e-3, steps=300)
        assert published.moebius(v.float()).shape == v.shape
    torch.testing.assert_close(slow.effects, fast.effects, rtol=0, atol=1e-3)
    assert published.moebius is symgen.moebius


def test_rows_are_kept_until_forced(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FOLDER", tmp_path)
    calls = []

    def measure():
        calls.append(1)
        return [rows.Row("a", "b", 1.0, 4.0, "s", 4.0, must=3)]

    first = rows.kept("group", "quick", False, measure)
    assert rows.kept("group", "quick", False, measure) == first and len(calls) == 1
    rows.kept("group", "quick", True, measure)
    assert len(calls) == 2
    kept = json.loads((tmp_path / "quick" / "group.json").read_text())
    assert kept["rows"][0]["met"] is True and kept["machine"] == rows.machine()
    assert ">= 3" in rows.table(first) and "yes" in rows.table(first)


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({}, None),
        ({"must": 2}, True),
        ({"must": 3}, False),
        ({"limit": 2}, False),
        ({"limit": 3}, True),
    ],
)
def test_a_limit_is_met_or_not(limits, met):
    assert rows.Row("a", "b", 1.0, 2.5, "s", 2.5, **limits).met is met


def test_the_command_knows_its_groups():
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, check=True
    )
    assert "--quick" in told.stdout and "--store" in told.stdout


def test_movement_counts_what_moved_and_how_far_claims_did(tmp_path, monkeypatch):
    table = pd.DataFrame({"step": [0, 1], "power": [0.5, 0.25], "seconds": [1.0, 2.0]})
    claims = pd.DataFrame(
        {"claim": ["a", "b", "b"], "setting": "here", "measure": ["H", "N", "H"], "bound": 0.0,
         "value": [0.5, 1.0, 2.0], "low95": [0.4, 1.0, 1.0], "high95": [0.6, 1.0, 3.0],
         "verdict": ["shown", "undecided", "undecided"]}
    )  # fmt: skip
    for name, by in (("one", 0.0), ("other", 0.05)):
        folder = tmp_path / name / "tables"
        folder.mkdir(parents=True)
        table.assign(power=table["power"] + [0, by], seconds=[3.0 + by, 4.0]).to_csv(
            folder / "01.dynamics.csv", index=False
        )
        claims.assign(
            value=claims["value"] + [by, 0, 0],
            verdict=["shown", *["absent" if by else "undecided"] * 2],
        ).to_csv(folder / "01.claims.csv", index=False)
    # A chapter that one of them has not run to the end is left out.
    table.to_csv(tmp_path / "one" / "tables" / "02.half.csv", index=False)
    (row,) = movement.compare(tmp_path / "one", tmp_path / "other").to_dict("records")
    assert row["numbers"] == 4 + 12 and row["moved"] == pytest.approx(2 / 16)
    assert (row["claims"], row["verdicts changed"]) == (2, 1)
    assert row["shift"] == pytest.approx(0.5)
    kept = tmp_path / "movement.csv"
    for place in ("threads", "elsewhere", "elsewhere"):
        given = ["movement", str(tmp_path / "one"), str(tmp_path / "other"), "--place", place]
        monkeypatch.setattr("sys.argv", [*given, "--store", str(kept)])
        movement.main()
    assert pd.read_csv(kept)["place"].tolist() == ["threads", "elsewhere"]


def test_the_bill_of_a_preset_has_a_row_a_chapter_and_their_sum(monkeypatch):
    def counted(book, wanted):
        for k, (name, given, runs) in enumerate(wanted, 1):
            assert runs and given["preset"] == "paper"
            known = (7200.0 * k, bill.GIB * k, 2 * bill.GIB, 0.0) if k < 4 else (None,) * 4
            yield Bill(name, *known, "timed here")

    monkeypatch.setattr(bill, "bills", counted)
    table = bill.bill("paper")
    assert table.columns.tolist() == ["chapter", "hours", "disk (GiB)", "memory (GiB)"]
    names = table["chapter"].tolist()
    assert "05_llm_interactions" in names and "how_fast" not in names and names[-1] == "all"
    assert table.iloc[-1, 1:].tolist() == [12.0, 6.0, 2.0] and table["hours"].isna().sum() > 5


def test_the_memory_of_a_bill_is_that_of_the_gpu_where_there_is_one(monkeypatch):
    def counted(book, wanted):
        return [Bill(name, 1.0, 0.0, bill.GIB, 7 * bill.GIB, "") for name, *_ in wanted]

    monkeypatch.setattr(bill, "bills", counted)
    assert set(bill.bill("gpu")["memory (GiB)"]) == {7.0}


def test_a_bill_is_kept_beside_those_of_other_presets(monkeypatch, tmp_path):
    hours = iter([1.0, 2.0, 0.1256])

    def counted(preset):
        return pd.DataFrame({"chapter": ["when"], "hours": [next(hours)], "disk (GiB)": [0.1256]})

    monkeypatch.setattr(bill, "bill", counted)
    for preset in ("paper", "gpu", "gpu"):
        given = ["bill", preset, "--store", str(tmp_path / "bills.csv")]
        monkeypatch.setattr("sys.argv", given)
        bill.main()
    kept = pd.read_csv(tmp_path / "bills.csv")
    assert kept[["place", "hours"]].values.tolist() == [["paper", 1.0], ["gpu", 0.13]]
    assert set(kept["disk (GiB)"]) == {0.1}
