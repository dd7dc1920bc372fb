"""Measured trainings: the same numbers as before, kept, read and summarized; phases."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from method.examples import trainings
from scipy import stats

import symgen
from symgen.method import records, training_curves as tc
from symgen.method.study import Study
from symgen.method.transfer import checkpoint_values

GOLDEN = Path(__file__).with_name("golden_measure.csv")
TINY = {"train_size": 60, "epochs": 2, "samples": 4, "n": 4, "checkpoints": 1,
        "evaluation_size": 50}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SYMGEN_TRAININGS", str(tmp_path / "trainings"))
    return tmp_path / "trainings"


def test_a_training_gives_the_numbers_that_version_0_1_measured():
    parameters = {"train_size": 100, "epochs": 20, "samples": 6, "n": 7, "checkpoints": 3,
                  "label_noise": 0.3, "dtype": "float64", "seed": 3}  # fmt: skip
    table = symgen.measure(Study.of(parameters), nulls=True)
    keys = ["step", "quantity", "order", "sign"]
    expected = pd.read_csv(GOLDEN, dtype={"sign": object})
    both = expected.merge(table, on=keys, how="left", suffixes=("_old", ""), validate="1:1")
    assert len(both) == 246 and both["seed"].notna().all()
    new = set(table["quantity"]) - set(expected["quantity"])
    assert new == {"H_rest", "H_lead", "untrained_low", "untrained_rest"}
    # The networks are trained in single precision, and splits are exact to 1e-3.
    # On another processor a baseline's interaction near the threshold can become salient. Where
    # this was seen, two shares left the tighter bounds, by up to 0.007.
    pairs = both["value"], both["value_old"]
    assert np.isclose(*pairs, rtol=0.01, atol=2e-3, equal_nan=True).mean() > 0.97
    np.testing.assert_allclose(*pairs, rtol=0.01, atol=0.01)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A cache with two measured trainings, and their table."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYMGEN_CACHE", str(folder))
        patch.setenv("SYMGEN_TRAININGS", str(folder / "none"))
        return folder, symgen.measure(Study.of(TINY), seeds=2, workers=1)


@pytest.fixture
def measured(stored, tmp_path):
    shutil.copytree(stored[0], tmp_path / "cache")
    return stored[1]


def test_trainings_are_kept_one_by_one(measured, monkeypatch):
    monkeypatch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
    again = symgen.measure(Study.of(TINY), seeds=[10, 0])
    pd.testing.assert_frame_equal(
        again.sort_values("seed", kind="stable", ignore_index=True), measured
    )


def test_processes_side_by_side_give_the_same_table(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "other"))
    again = symgen.measure(Study.of(TINY), seeds=2, workers=2)
    pd.testing.assert_frame_equal(again, measured)


@pytest.fixture
def recording(monkeypatch):
    """As under `symgen run --store`, at a commit of this name."""
    monkeypatch.setenv("SYMGEN_RECORD", "abc1234")


def append(study, table, seconds):
    for _, one in table.groupby("seed"):
        records.append_measured(study.settings, one, seconds)


def test_recorded_trainings_are_read_if_settings_and_version_match(
    measured, folder, recording, monkeypatch
):
    study = Study.of(TINY)
    append(study, measured[measured["seed"] == 0], 12.0)
    append(study, measured[measured["seed"] == 10], 13.0)
    index = records.read_index()
    assert list(index.columns) == records.INDEX and index["seed"].tolist() == [0, 10]
    assert json.loads(index["settings"][0]) == study.settings
    assert index["seconds"].tolist() == [12.0, 13.0] and set(index["commit"]) == {"abc1234"}
    lines = (folder / f"{index['study'][0]}.csv").read_bytes().decode().split("\n")
    assert lines[0] == "seed,step,quantity,order,sign,value" and "\r" not in lines[1]

    monkeypatch.setenv("SYMGEN_CACHE", str(folder / "empty"))
    monkeypatch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
    records.READ.clear()
    again = symgen.measure(study, seeds=2)
    pd.testing.assert_frame_equal(again, measured, rtol=1e-6)
    assert sorted(records.READ.values()) == [(12.0, "cpu"), (13.0, "cpu")]
    monkeypatch.setitem(records.VERSION, "measure", 99)
    assert records.read_measured(study.settings, [0]) == [None]
    assert records.read_measured(study.changed(n=3).settings, [0]) == [None]


def test_a_run_that_is_stored_records_the_trainings_that_it_measures(folder, monkeypatch):
    study = Study.of(TINY)
    expected = symgen.measure(study, workers=1)
    assert not folder.exists()
    monkeypatch.setenv("SYMGEN_RECORD", "abc1234")
    symgen.measure(study, seeds=[0, 20], workers=2)
    index = records.read_index().set_index("seed")
    assert sorted(index.index) == [0, 20] and (index["seconds"] > 0).all()
    monkeypatch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
    monkeypatch.setenv("SYMGEN_CACHE", str(folder / "empty"))
    pd.testing.assert_frame_equal(symgen.measure(study), expected, rtol=1e-6)


def test_storing_a_training_again_replaces_it(measured, recording):
    study = Study.of(TINY)
    append(study, measured, 10.0)
    append(study, measured.assign(value=1.0), 20.0)
    (table,) = records.read_measured(study.settings, [10])
    assert (table["value"] == 1).all() and records.read_index()["seconds"].tolist() == [20.0] * 2


def test_a_recorded_training_without_untrained_baselines_is_measured_again(measured, recording):
    study = Study.of(TINY)
    append(study, measured, 10.0)
    table = symgen.measure(study, nulls=True, workers=1)
    assert tc.curves(table, "untrained").shape == tc.curves(table, "H").shape
    (stored,) = records.read_measured(study.settings, [0])
    assert (stored["quantity"] == "untrained").any()
    assert not (symgen.measure(study)["quantity"] == "untrained").any()


def test_data_of_a_reader_is_neither_read_nor_recorded(measured, recording, tmp_path):
    (tmp_path / "photos").mkdir()
    for change in ({"dataset": str(tmp_path / "photos")}, {"network": "mine:build"}):
        study = Study.of(TINY, **change)
        append(study, measured, 1.0)
        assert records.read_measured(study.settings, [0]) == [None] and records.read_index().empty


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: symgen.measure(Study.of(TINY, baselines=0)), "at least 1"),
        (lambda: symgen.measure(Study.of(TINY, samples=10**6)), "samples"),
        (lambda: tc.curves(trainings(H=[0.0]), "h_low"), "is unknown; expected one of H"),
        (lambda: symgen.phases([0, 2, 1], [0] * 3, [0] * 3, [0] * 3), "ascending steps"),
        (lambda: symgen.phases([0, 1], [0, 1], [0, 1], [0]), r"lengths \[2, 2, 2, 1\]"),
        (lambda: symgen.phases([0, 1], [0, 1], [0, 1], [0, 1], r=0), "r > 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(call, message, monkeypatch):
    monkeypatch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
    with pytest.raises((ValueError, MemoryError), match=message):
        call()


def test_summaries_are_t_intervals_over_trainings():
    table = trainings(spread=0.1, H=[0.2, 0.4], N=[5.0, 6.0])
    summary = tc.summary(table, ["H", "N"]).set_index(["quantity", "step"])
    values = tc.curves(table, "H")[1]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert summary.loc[("H", 1)].tolist() == pytest.approx([values.mean(), low, high])
    assert len(tc.summary(table, ["N"])) == 2
    assert tc.last(table, "H").tolist() == values.tolist()


def test_summaries_of_spectra_keep_order_and_sign(measured):
    summary = tc.summary(measured, ["spectrum"])
    assert list(summary.columns) == ["step", "quantity", "order", "sign", "mean", "low", "high"]
    one = measured[(measured["quantity"] == "spectrum") & (measured["step"] == 0)]
    means = one.groupby(["order", "sign"])["value"].mean()
    first = summary[summary["step"] == 0].set_index(["order", "sign"])["mean"]
    pd.testing.assert_series_equal(first.sort_index(), means, check_names=False)


def test_a_peak_is_picked_on_the_other_trainings():
    # Each training has its own lucky checkpoint; nobody's luck counts for itself.
    rows = []
    for seed in range(4):
        curve = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        curve[1 + seed] = 1.0
        rows += [(seed, step, "H", np.nan, None, x) for step, x in enumerate(curve)]
    table = pd.DataFrame(rows, columns=records.COLUMNS)
    assert (tc.peak(table, "H")["at"] == 0).all()
    shared = trainings(spread=0.0, H=[0.1, 0.3, 0.6, 0.2], gap=[0.0, 0.1, 0.2, 0.9])
    assert tc.peak(shared, "H").iloc[0].tolist() == [0.1, 0.6, 0.2]
    assert tc.peak(shared, "gap", by="H").iloc[0].tolist() == [0.0, 0.2, 0.9]
    assert tc.peak(shared, "H", side=-1)["at"].tolist() == [0.3] * 6
    assert tc.peak(shared[shared["seed"] == 0], "H")["at"].isna().all()


def test_changes_since_t2_use_the_t2_of_the_other_trainings():
    curves = {"H": [0.1, 0.5, 0.4, 0.3], "generalizable": [1.0, 2.0, 2.0, 2.0],
              "non_generalizable": [1.0, 1.0, 2.0, 5.0]}  # fmt: skip
    table = trainings(spread=0.0, **curves)
    assert tc.phases_of(table) == tc.Phases(1, 2, tc.phases_of(table).reason)
    assert tc.since_t2(table, "non_generalizable").tolist() == [3.0] * 6
    assert tc.since_t2(table[table["seed"] == 0], "H").isna().all()


@pytest.mark.parametrize(
    "power, gen, non, t1, t2",
    [
        ([0.2, 0.6, 0.5], [1, 3, 5], [4, 2, 3], 10, None),  # gen grows faster
        ([0.2, 0.6, 0.5], [1, 3, 3], [4, 2, 3], 10, 20),
        ([0.2, 0.5, 0.6], [1, 3, 3], [4, 2, 3], None, None),  # still rises
        ([0.7, 0.5, 0.6], [1, 3, 3], [4, 2, 3], None, None),  # falls from the start
        ([0.2, math.nan, 0.1], [1, 3, 3], [4, 2, 3], None, None),
        ([math.nan] * 3, [1, 3, 3], [4, 2, 3], None, None),
    ],
)
def test_no_phase_boundary_is_forced(power, gen, non, t1, t2):
    phases = symgen.phases([0, 10, 20], power, gen, non)
    assert (phases.t1, phases.t2) == (t1, t2) and phases.reason


def test_values_of_dead_samples_are_left_out(monkeypatch):
    from method.examples import drawn, with_effects

    effects = drawn(0).effects.clone()
    effects[0] = 0
    inter, alive = with_effects(effects), with_effects(effects[1:])
    inter.full[0] = 0.0
    one, other = (checkpoint_values(x, [y]) for x, y in
                  ((inter, drawn(1)), (alive, with_effects(drawn(1).effects[1:]))))  # fmt: skip
    for name in ("H", "chance", "excess", "N", "mean_order"):
        torch.testing.assert_close(one[name], other[name])
