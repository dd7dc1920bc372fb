"""Phase boundaries are where App. I has them, and nowhere else."""

import copy
import dataclasses
import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch

import symgen
from symgen.interactions import Interactions
from symgen.masking.mask_values import MaskValue
from symgen.method.dynamics import _refuse_one_value
from symgen.method.statistics import halves, mean_difference

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


def test_checkpoints_without_a_power_do_not_decide_the_phases():
    """A network that is not trained yet may have no salient interaction at all."""
    gained, lost = [1, 3, 5, 5], [4, 2, 3, 6]
    found = symgen.phases([0, 1, 2, 3], [math.nan, 0.2, 0.6, 0.5], gained, lost)
    assert found.t1 == 2
    assert symgen.phases([0, 1, 2, 3], [0.2, 0.6, math.nan, math.nan], gained, lost).t1 is None
    nothing = symgen.phases([0, 1, 2, 3], [math.nan] * 4, gained, lost)
    assert nothing.t1 is None and "not defined at any checkpoint" in nothing.reason
    assert symgen.phases([0, 1, 2, 3], [0.2, math.nan, 0.6, 0.5], gained, lost).t1 == 2


def followed(losses=None, **curves):
    """What was measured of some samples, as if it came of interactions."""
    curves = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in curves.items()}
    count, looks = next(iter(curves.values())).shape
    nothing = Interactions.from_moebius(torch.zeros(count, 4))
    records = pd.DataFrame({"step": range(looks)})
    found = symgen.Dynamics([*range(looks)], [nothing] * looks, [nothing], records, losses or {})
    found.__dict__["curves"] = curves
    return found


def three_phases(samples):
    rows = {"power": POWER, "generalizable": [1, 3, 5, 5], "non_generalizable": [4, 2, 3, 6]}
    return followed(**{name: [row] * samples for name, row in rows.items()})


def test_resampled_phases_agree_where_all_samples_do():
    found = three_phases(4)
    drawn = found.boundaries(draws=20)
    assert drawn.drop_duplicates().to_dict("records") == [{"t1": 1, "t2": 3}]
    told = {"r": 1.0, "t1": "1", "t1_again": 1.0, "t2": "3", "t2_again": 1.0}
    assert found.certainty() == told
    later = found.certainty(r=0.1)
    assert (later["t1"], later["t2"], later["t2_again"]) == ("1", "3", 1.0)
    one = three_phases(1).certainty()
    assert one["t2"] == "3" and math.isnan(one["t1_again"]) and math.isnan(one["t2_again"])


def test_resampled_phases_pass_over_samples_without_a_power():
    found = three_phases(3)
    found.curves["power"][:, 2] = math.nan
    drawn = found.boundaries(draws=20)
    assert drawn.drop_duplicates().to_dict("records") == [{"t1": 1, "t2": 3}]


def test_resamples_tell_how_often_a_boundary_is_found_again():
    """Half of the samples peak at one checkpoint, half at the next; some resamples tie."""
    early, late = [0.1, 0.9, 0.5, 0.1], [0.1, 0.5, 0.9, 0.1]
    level = {"generalizable": [[1.0] * 4] * 20, "non_generalizable": [[1.0] * 4] * 20}
    found = followed(power=[early, late] * 10, **level)
    drawn = found.boundaries(draws=200)
    assert set(drawn["t1"]) == {1, 2} and drawn["t2"].isna().all()
    told = found.certainty()
    assert (told["t1"], told["t2"], told["t2_again"]) == ("1", "none", 1.0)
    assert 0.4 < told["t1_again"] < 0.75
    assert not found.boundaries(seed=1).equals(found.boundaries(seed=2))
    assert found.phases(units=torch.arange(1, 20, 2)).t1 == 2


def test_a_turn_is_picked_by_the_samples_that_are_not_measured():
    """One half peaks at step 1, the other at step 2, so that each is measured where it does not."""
    (half, other), _ = halves(8)
    power = torch.zeros(8, 4)
    power[half] = torch.tensor([0.1, 0.9, 0.3, 0.2])
    power[other] = torch.tensor([0.1, 0.4, 0.8, 0.2])
    to, back, astray = followed(power=power).turn("power", 1)
    assert to[half].unique().tolist() == pytest.approx([0.2])
    assert to[other].unique().tolist() == pytest.approx([0.3])
    assert back[half].unique().tolist() == pytest.approx([-0.1])
    assert back[other].unique().tolist() == pytest.approx([-0.2])
    assert astray.unique().tolist() == [0]


def test_a_turn_lies_between_the_ends_and_may_be_that_of_another_quantity():
    order = [[5.0, 4.0, 1.0, 3.0]] * 4
    found = followed(power=[[0.9, 0.2, 0.4, 1.0]] * 4, mean_order=order)
    to, back, astray = (x[0].item() for x in found.turn("power", 1))
    assert (to, back, astray) == pytest.approx((-0.5, 0.6, -0.7))
    to, back, _ = (x[0].item() for x in found.turn("mean_order", 1, by="power"))
    assert (to, back) == (-4, 2)
    to, back, astray = (x[0].item() for x in found.turn("mean_order", -1))
    assert (to, back, astray) == (-4, 2, 0)
    found.curves["mean_order"][:, 1] = 7
    assert found.turn("mean_order", -1)[2].tolist() == [2] * 4
    for nothing in ([[0.1, 0.2]] * 4, [[0.1, 0.9, 0.2]], [[0.1, math.nan, 0.2]] * 4):
        assert all(x.isnan().all() for x in followed(power=nothing).turn("power", 1))


def test_changes_since_t2_are_picked_by_the_other_half():
    (half, other), _ = halves(6)
    found = three_phases(6)
    assert found.since_t2("generalizable").tolist() == [0] * 6
    # Without growth, one half has no t2, so that nothing is measured of the other.
    found.curves["non_generalizable"][half] = 1.0
    found.curves["generalizable"][half, 3] = 9
    assert found.since_t2("generalizable")[half].tolist() == [0] * 3
    assert found.since_t2("generalizable")[other].isnan().all()
    found.curves["non_generalizable"][other, 2] = 8
    assert found.since_t2("generalizable")[half].tolist() == [4] * 3


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
def test_halves_are_halves(count):
    pairs = halves(count)
    for measured, picks in pairs:
        assert not (measured & picks).any() and (measured | picks).all()
        assert abs(int(measured.sum()) - int(picks.sum())) <= 1
    assert torch.equal(pairs[0][0], pairs[1][1])
    if count == 30:  # neither the beginning nor every other one, which classes take turns in
        first = pairs[0][0]
        assert 0 < first[:15].sum() < 15 and 0 < first[::2].sum() < 15
        assert not torch.equal(first, halves(count, seed=1)[0][0])


@pytest.fixture(scope="module")
def pair():
    v = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [Interactions.from_moebius(x) for x in (v[0], v[0] + 2 * v[1])]


def test_a_summary_keeps_the_intervals_of_shares_within_0_and_1(pair):
    losses = pd.DataFrame({"step": [0], "train_loss": [1.0], "test_loss": [2.0]})
    (row,) = symgen.Dynamics([0], pair[:1], pair[1:], losses).summary().to_dict("records")
    for name in ("power", "power_low", "power_high", "chance"):
        assert 0 <= row[f"{name}_low95"] <= row[name] <= row[f"{name}_high95"] <= 1
    assert row["gap"] == 1 and "gap_low95" not in row


def test_curves_are_what_the_functions_of_the_method_give(pair):
    target, baseline = pair
    records = pd.DataFrame({"step": [0, 1, 5], "train_loss": 1.0, "test_loss": 2.0, "epoch": 0.5})
    found = symgen.Dynamics([0, 5], [baseline, target], [baseline], records)
    assert {x.shape for x in found.curves.values()} == {(3, 2)} and len(found) == 3
    g = symgen.transfer(target, baseline)
    expected = symgen.generalization_power(target, g)
    assert torch.equal(found.curves["power"][:, 1], expected)
    assert found.curves["power"][:, 0].tolist() == pytest.approx([1, 1, 1])
    strength = found.curves["generalizable"] + found.curves["non_generalizable"]
    total = symgen.order_spectrum(target).abs().sum((-2, -1))
    assert torch.allclose(strength[:, 1], total)
    summary = found.summary()
    assert summary["step"].tolist() == [0, 5] and summary["epoch"].tolist() == [0.5, 0.5]
    assert summary["power"].tolist() == pytest.approx(found.curves["power"].mean(0).tolist())


def test_losses_and_gap_of_a_summary_are_those_of_the_same_samples(pair):
    generator = torch.Generator().manual_seed(1)
    losses = {t: tuple(torch.rand(2, 9, generator=generator).unbind()) for t in (0, 5)}
    records = pd.DataFrame({"step": [0, 5], "train_loss": 7.0, "test_loss": 8.0, "epoch": 0.5})
    found = symgen.Dynamics([0, 5], pair, pair[1:], records, losses)
    table = found.summary().set_index("step")
    for step, (train, _) in losses.items():
        row = table.loc[step]
        assert row["train_loss"] == pytest.approx(float(train.mean()))
        assert row["gap"] == pytest.approx(row["test_loss"] - row["train_loss"])
        assert row["gap_low95"] < row["gap"] < row["gap_high95"]
    change = found.gap(5, since=0)
    assert change.mean == pytest.approx(table["gap"][5] - table["gap"][0])
    moved = [after - before for before, after in zip(losses[0], losses[5], strict=True)]
    assert change == mean_difference(*moved[::-1])


def test_what_has_no_checkpoints_is_not_followed():
    run = symgen.Checkpoints([lambda: np.sum])
    with pytest.raises(ValueError, match=r"a baseline is Linear; .*Checkpoints\(\[lambda: network"):
        symgen.track(run, [torch.nn.Linear(2, 2)], symgen.extract)
    with pytest.raises(ValueError, match="a run is Linear"):
        symgen.track(torch.nn.Linear(2, 2), [run], symgen.extract)


def test_what_extract_takes_and_returns_is_told_where_it_does_not_fit():
    run, other = (symgen.Checkpoints([lambda: torch.nn.Linear(2, 2)]) for _ in "ab")
    with pytest.raises(ValueError, match=r"key=\.\.\., .* takes \(n, k\); name its second"):
        symgen.track(run, [other], lambda n, k: None)
    with pytest.raises(ValueError, match="there are no baselines; expected one or more"):
        symgen.track(run, [], lambda n, key: None)
    with pytest.raises(ValueError, match="returns is NoneType; expected Interactions"):
        symgen.track(run, [other], lambda n, key: None)
    with pytest.raises(ValueError, match="returns is Tensor; expected Interactions"):
        symgen.track(run, [other], lambda n, key: torch.zeros(1, 4))


@pytest.mark.parametrize("other", [0, 1, 2, 3])
def test_a_training_is_followed_by_the_same_samples_throughout(other):
    """H of other samples would be a number like any other."""
    run = symgen.Checkpoints([lambda: torch.nn.Linear(2, 2)] * 2)
    baselines = [symgen.Checkpoints([lambda: torch.nn.Linear(2, 3)] * 2) for _ in "ab"]
    made = []

    def extract(network, key):
        found = symgen.sparsify(torch.tensor([[0.0, 1.0, 1.0, 3.0]]))
        made.append(dataclasses.replace(found, about={"inputs": str(len(made) == other)}))
        return made[-1]

    with pytest.raises(ValueError, match="other samples or variables for one network"):
        symgen.track(run, baselines, extract, progress=False)
    assert len(made) == (2 if other < 2 else 4)  # baselines come first
    other = None
    assert len(symgen.track(run, baselines, extract, progress=False)) == 1


def test_a_mask_value_of_one_network_does_not_serve_all():
    """It is of another scale in every network, and the numbers would look like any others."""
    run = symgen.Checkpoints([lambda: torch.nn.Linear(2, 2)])
    value = MaskValue(torch.ones(2, 1, 1), "relu1")

    def extract(model, key):
        return symgen.extract(model, None, None, value, key=key)

    for given in (extract, functools.partial(symgen.extract, mask_value=value)):
        with pytest.raises(ValueError, match="value is the mask value of one .* its layer relu1"):
            symgen.track(run, [symgen.Checkpoints([lambda: None])], given)
    zero, pixels = MaskValue(torch.zeros(()), "relu1"), MaskValue(torch.ones(2, 1, 1), None)
    for fine in (zero, pixels, lambda model: value):
        _refuse_one_value(functools.partial(symgen.extract, mask_value=fine))


def test_a_training_is_not_followed_by_a_sample_of_the_states_which_the_baselines_tell_first():
    looked = []

    class Run:
        steps, records = [0, 1], pd.DataFrame({"step": [0, 1]})

        def __init__(self, name):
            self.name = name

        def load(self, step):
            looked.append((self.name, step))
            return lambda x: x @ np.eye(20)[:, :2]

        def key(self, step):
            return {"name": self.name, "step": step}

    inputs = symgen.Inputs(torch.eye(20)[:2].numpy(), [0, 0])

    def extract(model, key):
        variables = torch.arange(20)[None]
        return symgen.extract(model, inputs, variables, torch.zeros(20), states=30, held_out=10)

    with pytest.raises(ValueError, match="SampledInteractions, of a sample of the masked states"):
        symgen.track(Run("target"), [Run("baseline")], extract)
    assert looked == [("baseline", 1)]


@pytest.mark.parametrize("steps", [[3, 2, 1, 0], [0, 1, 1, 2]])
def test_phases_of_steps_that_do_not_ascend_are_refused(steps):
    with pytest.raises(ValueError, match="expected those of the checkpoints, ascending"):
        symgen.phases(steps, [0.4, 0.5, 0.6, 0.2], [5, 5, 3, 1], [6, 3, 2, 4])


def test_a_baseline_that_is_the_run_itself_at_its_end_is_refused():
    """H was 1 there, whichever file it was loaded from."""
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]

    def of(network):
        return lambda: network

    run = symgen.Checkpoints([of(layers[0]), of(layers[1])])
    same, other = (symgen.Checkpoints([of(copy.deepcopy(layers[k]))]) for k in (1, 2))

    def extract(network, key):
        return symgen.sparsify(torch.tensor([[0.0, 1.0, 1.0, 3.0]]))

    with pytest.raises(ValueError, match="baseline 1 is the network of the run itself"):
        symgen.track(run, [other, same], extract, progress=False)
    assert symgen.track(run, [other], extract, progress=False).steps == [0, 1]
