"""Measured trainings: summaries, peaks and phases."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from golden import compute
from method.examples import drawn, trainings, with_effects
from scipy import stats

import symgen
from symgen.method import training_curves as tc
from symgen.method.study import Study


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: symgen.measure(Study(baselines=0)), "at least 1"),
        (lambda: symgen.measure(Study(samples=10**6)), "samples"),
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


def power_by_hand(target, baselines, orders):
    """H per sample as it is defined (Eq. 5, 8, 13), over the interactions of some orders."""
    order = np.array([state.bit_count() for state in range(2**target.n)])
    effects, *others = (inter.effects.numpy() for inter in (target, *baselines))

    def is_salient(effects):
        return abs(effects) > 0.05 * abs(effects).max((1, 2), keepdims=True)

    found = np.any([is_salient(other) & (other * effects > 0) for other in others], 0)
    strength = abs(effects) * is_salient(effects) * np.isin(order, orders)
    with np.errstate(invalid="ignore"):
        return (strength * found).sum((1, 2)) / strength.sum((1, 2))


def no_level(target, baselines, orders=None, draws=0):
    return torch.zeros_like(target.bias)


def test_measured_powers_by_order_are_those_of_the_definition(tmp_path, monkeypatch):
    """One training with seven variables, so that there are interactions of high orders."""
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    # Chance levels take most of the time, and are not compared here.
    monkeypatch.setattr("symgen.method.generalization.chance_level", no_level)
    monkeypatch.setattr(tc, "chance_level", no_level)
    settings = {
        "train_size": 60, "epochs": 1, "samples": 6, "n": 7, "checkpoints": 1, "noise": 0.0,
        "layer": "input", "options": {"width": 4}, "evaluation_size": 50, "seed": 1,
    }  # fmt: skip
    with compute.float64_network() as network:
        study = Study.of(settings, network=network)
        table = symgen.measure(study, nulls=True, workers=1)
        run, *others = study.runs
        target = study.interactions(run)
        baselines, untrained = ([study.interactions(x, step) for x in others] for step in (-1, 0))
    low, rest, high = [1, 2], [3, 4, 5, 6, 7], [6, 7]
    lead = power_by_hand(target, baselines, low) - power_by_hand(target, baselines, high)
    expected = {
        "H_low": power_by_hand(target, baselines, low),
        "H_high": power_by_hand(target, baselines, high),
        "H_rest": power_by_hand(target, baselines, rest),
        "H_lead": lead,
        "untrained_low": power_by_hand(target, untrained, low),
        "untrained_rest": power_by_hand(target, untrained, rest),
    }
    for name, values in expected.items():
        assert tc.last(table, name).item() == pytest.approx(np.nanmean(values)), name


def test_summaries_are_t_intervals_over_trainings():
    table = trainings(spread=0.1, H=[0.2, 0.4], N=[5.0, 6.0])
    summary = tc.summary(table, ["H"]).set_index("step")
    values = tc.curves(table, "H")[1]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert len(summary) == 2
    assert summary.loc[1].tolist() == pytest.approx(["H", values.mean(), low, high])
    assert tc.last(table, "H").tolist() == values.tolist()


def test_summaries_of_spectra_keep_order_and_sign():
    parts = [trainings(spread=0.1, spectrum=[0.2, 0.4], seed=k).assign(order=k % 2 + 1, sign="+-"[k // 2])
             for k in range(4)]  # fmt: skip
    table = pd.concat(parts)
    summary = tc.summary(table, ["spectrum"])
    assert list(summary.columns) == ["step", "quantity", "order", "sign", "mean", "low", "high"]
    means = table.groupby(["order", "sign", "step"])["value"].mean()
    found = summary.set_index(["order", "sign", "step"])["mean"]
    pd.testing.assert_series_equal(found.sort_index(), means, check_names=False)


def test_a_peak_is_picked_on_the_other_trainings():
    # Each training has its own lucky checkpoint; nobody's luck counts for itself.
    lucky = [trainings(spread=0.0, seeds=1, H=[float(step == k + 1) for step in range(6)])
             for k in range(4)]  # fmt: skip
    table = pd.concat(one.assign(seed=k) for k, one in enumerate(lucky))
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


def test_values_of_dead_samples_are_left_out():
    effects = drawn(0).effects.clone()
    effects[0] = 0
    inter, alive = with_effects(effects), with_effects(effects[1:])
    inter.full[0] = 0.0
    one = tc.checkpoint_values(inter, [drawn(1)])
    other = tc.checkpoint_values(alive, [drawn(1)[1:]])
    for name in ("H", "H_rest", "N", "mean_order"):
        torch.testing.assert_close(one[name], other[name])
    for name in ("chance", "excess"):  # each place in a batch has its own draws
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0.02)
