"""Removal keeps its books: strengths, gaps and shares agree with their definitions."""

import numpy as np
import pandas as pd
import pytest
import torch

import symgen
from symgen.method.dynamics import bootstrap_phases
from symgen.method.removal import gap_closed, loss_gap, random_share, removal_losses, removal_table
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
    assert gap_closed(*one).verdict() == "not tested"
    table = removal_table(same, other).set_index(["removed", "group"])["loss"]
    assert table["nothing", "gap"] == pytest.approx(1.5)


def test_resampled_phases_agree_where_all_samples_do():
    power = [0.2, 0.6, 0.5, 0.4]
    rows = [
        {"step": t, "sample": s, "power": p, "generalizable": g, "non_generalizable": n}
        for s in range(4)
        for t, p, g, n in zip(range(4), power, [1, 3, 5, 5], [4, 2, 3, 6], strict=True)
    ]
    drawn = bootstrap_phases(pd.DataFrame(rows), draws=20)
    assert drawn.drop_duplicates().to_dict("records") == [{"t1": 1, "t2": 3}]
