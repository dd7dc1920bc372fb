"""Phase boundaries are where App. I has them; what was extracted once is found again."""

import math

import pandas as pd
import pytest
import torch

import symgen
from symgen.method.dynamics import bootstrap_phases

POWER = [0.2, 0.6, 0.5, 0.4]


@pytest.mark.parametrize(
    ("gained", "lost", "expected"),
    [
        # Both shrink at step 2, the generalizable strength more: no gain of the other.
        ([1, 5, 3, 1], [4, 4, 3, 4], 3),
        ([1, 5, 3, 1], [4, 4, 3, 2], None),
        ([1, 5, 3, 1], [4, 4, 4, 4], None),
        ([1, 5, 3, 2], [4, 4, 5, 5], 2),
    ],
)
def test_the_third_phase_needs_non_generalizable_strength_to_grow(gained, lost, expected):
    found = symgen.phases([0, 1, 2, 3], POWER, gained, lost)
    assert (found.t1, found.t2) == (1, expected)
    assert ("no third phase" in found.reason) == (expected is None)


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.49), (0.45, 0.45), (0.3, 0.2)])
def test_with_r_1_a_share_below_one_half_puts_t2_right_after_t1(before, after):
    """What the chapter on the three phases says: growing strength, and a share that does not."""
    share, total = [0.1, before, after, after], [1, 2, 3, 4]
    gained = [s * t for s, t in zip(share, total, strict=True)]
    lost = [t - g for g, t in zip(gained, total, strict=True)]
    found = symgen.phases([0, 1, 2, 3], POWER, gained, lost)
    assert (found.t1, found.t2) == (1, 2)


def test_masked_outputs_are_stored_apart_from_the_split_found_for_them(tmp_path, monkeypatch):
    """Other noise bounds and tolerances need no forward pass, and another network does."""
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    study = symgen.Study("digits", "cnn", train_size=60, epochs=1, checkpoints=1, samples=2, n=4)
    run, extractor = study.runs[0], study.extractor(progress=False)
    model, calls = run.load(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    first = extractor(model, run.key())
    assert calls and torch.equal(first.bias, extractor.outputs(model)[:, 0])
    calls.clear()
    again = study.extractor(progress=False, noise=0.1)(model, run.key())
    assert not calls
    assert float((first.objective - again.objective).min()) > 0
    assert torch.equal(extractor(model, run.key()).effects, first.effects) and not calls
    other = extractor(run.load(0), run.key(0))
    assert not torch.equal(other.bias, first.bias)
    extractor(model, {"another": "network"})
    assert calls


def test_checkpoints_without_a_power_do_not_decide_the_phases():
    """A network that is not trained yet may have no salient interaction at all."""
    gained, lost = [1, 3, 5, 5], [4, 2, 3, 6]
    found = symgen.phases([0, 1, 2, 3], [math.nan, 0.2, 0.6, 0.5], gained, lost)
    assert found.t1 == 2
    assert symgen.phases([0, 1, 2, 3], [0.2, 0.6, math.nan, math.nan], gained, lost).t1 is None
    nothing = symgen.phases([0, 1, 2, 3], [math.nan] * 4, gained, lost)
    assert nothing.t1 is None and "not defined at any checkpoint" in nothing.reason
    assert symgen.phases([0, 1, 2, 3], [0.2, math.nan, 0.6, 0.5], gained, lost).t1 == 2


def test_resampled_phases_pass_over_samples_without_a_power():
    rows = [
        {"step": t, "sample": s, "power": p, "generalizable": g, "non_generalizable": n}
        for s in range(3)
        for t, p, g, n in zip(range(4), POWER, [1, 3, 5, 5], [4, 2, 3, 6], strict=True)
    ]
    table = pd.DataFrame(rows)
    table.loc[table["step"] == 2, "power"] = math.nan
    drawn = bootstrap_phases(table, draws=20)
    assert drawn.drop_duplicates().to_dict("records") == [{"t1": 1, "t2": 3}]


def test_a_summary_keeps_the_intervals_of_shares_within_0_and_1():
    v = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inter, other = (symgen.Interactions.from_moebius(x) for x in (v[0], v[0] + 2 * v[1]))
    losses = pd.DataFrame({"step": [0], "train_loss": [1.0], "test_loss": [2.0]})
    (row,) = symgen.Dynamics([0], [inter], [other], losses).summary().to_dict("records")
    for name in ("power", "power_low", "power_high", "chance"):
        assert 0 <= row[f"{name}_low95"] <= row[name] <= row[f"{name}_high95"] <= 1
