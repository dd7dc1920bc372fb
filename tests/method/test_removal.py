"""Removal keeps its books: strengths, gaps and shares agree with their definitions."""

import numpy as np
import pandas as pd
import pytest
import torch

import symgen
from symgen.method.dynamics import Dynamics
from symgen.method.removal import (
    answer_table,
    closed_table,
    gap_closed,
    loss_gap,
    losses_at,
    random_share,
    removal_losses,
    removal_table,
    sure_answers,
)
from symgen.method.transfer import cross_entropy


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


def test_removing_what_does_not_generalize_is_equation_12(pair, outputs):
    g = symgen.transfer(*pair)
    losses = removal_losses(pair[0], g, draws=3)
    # Of the network, which the logical model may miss by the noise.
    v = outputs[0, :, -1]
    assert (v - pair[0].predict()[:, -1]).abs().max() > 1e-3
    expected = cross_entropy(symgen.remove(v, pair[0], g))
    torch.testing.assert_close(losses["non-generalizable"], expected)
    torch.testing.assert_close(losses["nothing"], torch.log1p(torch.exp(-v)))


def test_the_gap_closes_fully_or_not_at_all():
    train, test = torch.zeros(12).double(), torch.linspace(1, 2, 12).double()
    same = {"nothing": train, "non-generalizable": train, "random": train}
    other = {"nothing": test, "non-generalizable": train, "random": test}
    assert loss_gap(train, test).mean == pytest.approx(1.5)
    assert gap_closed(same, other).mean == pytest.approx(1)
    assert gap_closed(same, other, "random") == pytest.approx((0, 0, 0))
    assert np.isnan(gap_closed(same, same).mean)
    few = [{k: x[::2] for k, x in losses.items()} for losses in (same, other)]
    assert gap_closed(*few).mean == pytest.approx(1)
    one = [{k: x[:1] for k, x in losses.items()} for losses in (same, other)]
    assert np.isnan(gap_closed(*one).mean)
    table = removal_table(same, other).set_index(["removed", "group"])["loss"]
    assert table["nothing", "gap"] == pytest.approx(1.5)


def test_a_gap_within_the_margin_is_none_and_is_not_closed():
    train = torch.zeros(12).double()
    for size, known in ((0.015, False), (0.03, True)):
        test = train + size
        losses = [{"nothing": x, "non-generalizable": train, "random": x} for x in (train, test)]
        found = closed_table({"a": tuple(losses)}).set_index("removed")["closed"]
        assert found.notna().tolist() == [known, known]
        if known:
            assert found["non-generalizable"] == pytest.approx(1)
            assert found["random"] == pytest.approx(0)


def test_losses_at_a_checkpoint_are_of_its_own_interactions(pair):
    first, last = pair
    dynamics = Dynamics([0, 5], [last, first], [last], pd.DataFrame())
    found = losses_at(dynamics, 5, seed=3)
    expected = removal_losses(first, symgen.transfer(first, last), seed=3)
    assert found.keys() == expected.keys()
    for name, losses in expected.items():
        torch.testing.assert_close(found[name], losses)
    # A network that is its own baseline loses nothing.
    own = losses_at(dynamics, 0)
    torch.testing.assert_close(own["non-generalizable"], own["nothing"])


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
