"""Removal, its controls, and the share of the loss gap that closes."""

import math

import pytest
import torch
from method.examples import drawn, trainings
from scipy.stats import ttest_1samp

import symgen
from symgen.method import removal
from symgen.method.statistics import interval


@pytest.fixture
def case():
    target = drawn(0, samples=8)
    return target, symgen.transfer(target, drawn(1, samples=8))


def strength(inter, share):
    """The salient strength of each sample that a removal takes."""
    return (inter.effects.abs() * inter.salient() * (1 - share)).sum((1, 2))


def test_remove_subtracts_salient_effects_that_do_not_transfer(case):
    inter, g = case
    size = inter.effects.abs()
    gone = (size > 0.05 * size.amax((1, 2), keepdim=True)) & (g == 0)
    v = symgen.remove_interactions(inter.full, inter, g)
    torch.testing.assert_close(v, 5.0 - (inter.effects * gone).sum((1, 2)))


def test_random_removal_takes_the_same_strength_and_permuted_removal_the_same_number(case):
    inter, g = case
    marked = inter.salient()
    for seed in range(3):
        random = removal.random_share(inter, g, seed)
        torch.testing.assert_close(strength(inter, random), strength(inter, g))
        permuted = removal.permuted_share(g, seed)
        assert torch.equal((permuted * marked).sum((1, 2)), (g * marked).sum((1, 2)))
        assert not torch.equal(permuted * marked, g * marked)
    # All seeds together reach every salient interaction.
    shares = [removal.random_share(inter, g, k) for k in range(40)]
    assert ((torch.stack(shares).amin(0) < 1) >= marked).float().mean() > 0.95


def test_losses_are_those_of_the_outputs_after_each_removal(case):
    inter, g = case
    other = drawn(2, samples=8)
    test = other, symgen.transfer(other, drawn(1, samples=8))
    losses = removal.removal_losses(case, test, seed=4, draws=3)
    removed = symgen.remove_interactions(inter.full, inter, g)
    expected = torch.log1p((-removed).exp()).mean()
    for kind in ("non_generalizable", "shrunk"):
        torch.testing.assert_close(losses[f"removal_train_{kind}"], expected)
    torch.testing.assert_close(losses["removal_v_train_non_generalizable"], -removed.mean())
    factor = removal.shrinkage(inter.full, removed)
    assert 0 < factor < 1 and float(losses["removal_v_test_shrunk"]) == pytest.approx(-5 * factor)
    # Random removal is a mean over draws.
    shares = [removal.random_share(inter, g, k) for k in (4, 5, 6)]
    v = torch.stack([symgen.remove_interactions(inter.full, inter, share) for share in shares])
    torch.testing.assert_close(losses["removal_v_train_random"], -v.mean())
    torch.testing.assert_close(losses["removal_train_random"], removal.cross_entropy(v).mean())


def test_shrinkage_at_its_ends():
    one = torch.tensor([1.0, 2.0])
    assert removal.shrinkage(one, 2 * one) == 1  # the loss does not rise
    assert removal.shrinkage(one, one - 9) == 0  # no factor reaches it
    assert math.isnan(removal.shrinkage(one, one * math.nan))


def test_the_parts_add_up_to_the_output(case):
    inter, g = case
    parts = removal.output_parts(inter, g)
    torch.testing.assert_close(sum(x.sum(-1) for x in parts.values()), inter.full)
    left = inter.full - parts["non_generalizable"].sum(-1)
    torch.testing.assert_close(left, symgen.remove_interactions(inter.full, inter, g))


def losses(gap, closed, spread=0.0):
    kinds = {"nothing": 0, "non_generalizable": closed, "random": closed / 2, "permuted": 0}
    values = {f"removal_train_{k}": [0.3] for k in [*kinds, "shrunk"]}
    values |= {f"removal_test_{k}": [0.3 + gap * (1 - x)] for k, x in kinds.items()}
    return trainings(spread=spread, removal_test_shrunk=[0.3 + gap], **values)


def test_closure_is_the_share_of_the_gap_that_closes():
    table = losses(0.5, 0.4)
    assert removal.closure(table).tolist() == pytest.approx([0.4] * 6)
    assert removal.closure(table, minus="random").tolist() == pytest.approx([0.2] * 6)
    assert removal.closure(losses(0.01, 0.4)).isna().all()


def test_the_interval_of_closure_is_that_of_a_ratio():
    covered = 0
    for seed in range(60):
        table = losses(0.5, 0.4)
        table["value"] += trainings(seed=seed, spread=0.05, x=[0.0] * 10)["value"]
        one = interval(removal.closure(table))
        gaps = table.pivot(index="seed", columns="quantity", values="value")
        gap = {k: gaps[f"removal_test_{k}"] - gaps[f"removal_train_{k}"]
               for k in ("nothing", "non_generalizable")}  # fmt: skip
        ratio = 1 - gap["non_generalizable"].mean() / gap["nothing"].mean()
        assert one.mean == pytest.approx(ratio)
        # Fieller's test: is the ratio 0.4?
        parts = gap["nothing"] - gap["non_generalizable"] - 0.4 * gap["nothing"]
        covered += (one.low <= 0.4 <= one.high) == (ttest_1samp(parts, 0).pvalue > 0.05)
    assert covered >= 54
