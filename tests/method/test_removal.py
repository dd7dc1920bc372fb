"""Removal keeps its books: strengths, gaps and shares agree with their definitions."""

import numpy as np
import pandas as pd
import pytest
import torch

import symgen
from symgen.method.dynamics import Dynamics
from symgen.method.removal import (
    REMOVALS,
    Removal,
    answer_table,
    closed_table,
    cross_entropy,
    gap_parts,
    loss_gap,
    output_parts,
    permuted_share,
    random_share,
    removal_table,
    removed_outputs,
    shrinkage,
    sure_answers,
)


@pytest.fixture(scope="module")
def outputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 32, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def pair(outputs):
    return symgen.sparsify(outputs[0]), symgen.sparsify(outputs[0] + 0.5 * outputs[1])


def removed(inter, g):
    salient = torch.stack(inter.salient(), -2)
    return (inter.effects.abs() * salient * (1 - torch.stack(g, -2))).sum((-2, -1))


def test_random_removal_takes_the_same_strength_from_every_sample(pair):
    g = symgen.transfer(*pair)
    for seed in range(5):
        control = random_share(pair[0], g, seed)
        assert all(((s >= 0) & (s <= 1)).all() for s in control)
        torch.testing.assert_close(removed(pair[0], control), removed(pair[0], g))
    first, second = (random_share(pair[0], g, seed) for seed in (1, 2))
    assert not torch.equal(first[0], second[0])


def test_permuted_removal_takes_as_many_interactions_from_every_sample(pair):
    g = symgen.transfer(*pair)
    salient = torch.stack(pair[0].salient(), -2)

    def lost(share):
        return (salient * (1 - torch.stack(share, -2))).sum((-2, -1))

    controls = [permuted_share(pair[0], g, seed) for seed in range(30)]
    for control in controls:
        assert torch.equal(lost(control), lost(g))
    # Each salient interaction keeps the sample's mean of G, on average over draws.
    mean = torch.stack([torch.stack(c, -2) for c in controls]).mean(0)
    kept = 1 - lost(g) / salient.sum((-2, -1))
    for row, where, expected in zip(mean, salient, kept, strict=True):
        assert row[where].mean() == pytest.approx(float(expected), abs=1e-6)
        assert float(row[where].std()) < 0.25


def test_removing_what_does_not_generalize_is_equation_12(pair, outputs):
    g = symgen.transfer(*pair)
    found = removed_outputs(pair[0], g, draws=3)
    # Of the network, which the logical model may miss by the noise.
    v = outputs[0, :, -1]
    assert (v - pair[0].predict()[:, -1]).abs().max() > 1e-3
    torch.testing.assert_close(found["non-generalizable"][0], symgen.remove(v, pair[0], g))
    torch.testing.assert_close(found["nothing"][0], v)
    assert {k: len(x) for k, x in found.items()} == {
        "nothing": 1, "non-generalizable": 1, "random": 3, "permuted": 3,
    }  # fmt: skip


@pytest.fixture
def followed(pair):
    first, last = pair
    train = Dynamics([0, 5], [last, first], [last], pd.DataFrame())
    return train, Dynamics([0, 5], [last[:4], first[2:]], [last[2:]], pd.DataFrame())


def test_losses_at_a_checkpoint_are_of_its_own_interactions(pair, followed):
    first, last = pair
    found = Removal.of(*followed, 5, seed=3)
    expected = removed_outputs(first, symgen.transfer(first, last), seed=3)
    assert tuple(found.train) == REMOVALS and len(found) == 6 + 4
    for name, v in expected.items():
        torch.testing.assert_close(found.train[name], cross_entropy(v).mean(0))
    odds = Removal.of(*followed, 5, seed=3, measure="log odds")
    torch.testing.assert_close(odds.train["random"], -expected["random"].mean(0))
    # A network that is its own baseline loses nothing.
    own = Removal.of(*followed, 0).train
    torch.testing.assert_close(own["non-generalizable"], own["nothing"])


def test_shrinking_meets_the_training_loss_where_it_can(pair):
    before = torch.tensor([4.0, 3.0, 1.0, -0.5]).double()
    after = before - torch.tensor([1.0, 2.0, 0.5, 0.0])
    factor = shrinkage(before, after)
    assert 0 < factor < 1
    assert float(cross_entropy(factor * before).mean()) == pytest.approx(
        float(cross_entropy(after).mean())
    )
    assert shrinkage(before, before + 1) == 1.0
    assert shrinkage(before, before - 9) == 0.0  # worse than knowing nothing
    assert shrinkage(-before, -before - 1) == 1.0  # where shrinking would help
    found = Removal.of(
        Dynamics([0], [pair[0]], [pair[1]], pd.DataFrame()),
        Dynamics([0], [pair[1]], [pair[0]], pd.DataFrame()), 0,
    )  # fmt: skip
    means = [float(found.train[k].mean()) for k in ("nothing", "non-generalizable", "shrunk")]
    if means[1] > means[0]:
        assert means[2] <= means[1] + 1e-9


def test_the_parts_of_an_output_sum_to_it_and_to_the_gap(pair, followed):
    g = symgen.transfer(*pair)
    parts = output_parts(pair[0], g)
    torch.testing.assert_close(sum(parts.values()).sum(-1), pair[0].full)
    lost = parts["non-generalizable"].sum(-1).abs()
    assert (lost <= removed(pair[0], g) + 1e-9).all()
    gap = sum(gap_parts(*followed, 5).values()).sum()
    train, test = (x.interactions[1].full.mean() for x in followed)
    torch.testing.assert_close(gap, train - test)


def test_the_gap_closes_fully_or_not_at_all():
    train, test = torch.zeros(12).double(), torch.linspace(1, 2, 12).double()
    same = {"nothing": train, "non-generalizable": train, "random": train}
    other = {"nothing": test, "non-generalizable": train, "random": test}
    both = Removal(same, other)
    assert loss_gap(train, test).mean == pytest.approx(1.5)
    assert both.closed().mean == pytest.approx(1)
    assert both.closed("random") == pytest.approx((0, 0, 0))
    assert both.closed(less="random").mean == pytest.approx(1)
    assert np.isnan(Removal(same, same).closed().mean)
    few = [{k: x[::2] for k, x in losses.items()} for losses in (same, other)]
    assert Removal(*few).closed().mean == pytest.approx(1)
    one = [{k: x[:1] for k, x in losses.items()} for losses in (same, other)]
    assert np.isnan(Removal(*one).closed().mean)
    table = removal_table(both).set_index(["removed", "group"])["loss"]
    assert table["nothing", "gap"] == pytest.approx(1.5)
    with pytest.raises(ValueError, match="removed must be one of .*, got 'nosense'"):
        both.closed("nosense")


def test_a_share_of_the_gap_of_trainings_is_that_of_the_mean_gaps():
    before, left = torch.tensor([2.0, 2.4, 3.0]).double(), torch.tensor([1.0, 1.2, 1.5]).double()
    zero = torch.zeros(3).double()
    found = Removal(
        {"nothing": zero, "non-generalizable": zero},
        {"nothing": before, "non-generalizable": left}, unit="trainings",
    )  # fmt: skip
    # Each closes half of its own, so that trainings do not differ, however wide their gaps.
    assert found.closed() == pytest.approx((0.5, 0.5, 0.5)) and len(found) == 3


def test_a_gap_within_the_margin_is_none_and_is_not_closed():
    train = torch.zeros(12).double()
    for size, known in ((0.015, False), (0.03, True)):
        test = train + size
        losses = [{"nothing": x, "non-generalizable": train, "random": x} for x in (train, test)]
        found = closed_table({"a": Removal(*losses)}).set_index("removed")["closed"]
        assert found.notna().tolist() == [known, known]
        if known:
            assert found["non-generalizable"] == pytest.approx(1)
            assert found["random"] == pytest.approx(0)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_bounds_of_the_accuracy_hold_for_any_logits(classes):
    generator = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(2000, classes, generator=generator, dtype=torch.float64)
    v = logits[:, 0] - logits[:, 1:].logsumexp(-1)
    surely, perhaps = sure_answers(v, classes)
    right = logits.argmax(-1) == 0
    assert (surely <= right).all() and (right <= perhaps).all()
    assert torch.equal(surely, perhaps) == (classes == 2)


def test_answers_before_and_after_and_their_change():
    before, after = torch.tensor([2.0, 1, -1, -5]), torch.tensor([-1.0, 1, -1, 1])
    table = answer_table({"test": (before, after)}, classes=10)
    found = table.set_index(["outputs", "bound"])["share"]
    assert found["before", "surely right"] == 0.5 and found["before", "possibly right"] == 0.75
    assert found["after", "surely right"] == 0.5 and found["after", "possibly right"] == 1
    assert found["change", "surely right"] == 0 and found["change", "possibly right"] == 0.25
    change = table[(table["outputs"] == "change") & (table["bound"] == "surely right")].iloc[0]
    assert change["low95"] < 0 < change["high95"]


def test_no_answer_that_changed_leaves_room_for_losses_as_for_gains():
    v = torch.tensor([2.0, 1, -1, -5])
    table = answer_table({"test": (v, v)}, classes=10)
    change = table[table["outputs"] == "change"]
    assert len(change) == 2 and (change["share"] == 0).all()
    # Clopper and Pearson: of four, none.
    assert change["high95"].to_numpy() == pytest.approx(1 - 0.025 ** (1 / 4))
    assert (change["low95"] == -change["high95"]).all()


def test_log_odds_may_lie_below_zero_and_losses_in_nats_may_not():
    some = torch.tensor([0.1, 0.1, 6.0]).double()
    losses = {"nothing": some, "non-generalizable": some}
    for measure in ("nats", "log odds"):
        table = removal_table(Removal(losses, losses, measure=measure))
        low = table[table["group"] != "gap"]["low95"]
        assert (low == 0).all() if measure == "nats" else (low < 0).all()
