"""The measures of Appendix B against their definitions, and t intervals against scipy."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from symgen.method import conditions
from symgen.method.statistics import interval
from symgen.transforms import interaction_order


def test_average_output_and_strength_above_are_means_by_order():
    v = torch.randn(3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = interaction_order(4)
    u, above = conditions.average_output(v), conditions.strength_above(v)
    for m in range(5):
        expected = v[:, order == m].mean(1) - v[:, 0]
        torch.testing.assert_close(u[:, m], expected)
        share = v.abs()[:, order > m].sum(1) / v.abs()[:, 1:].sum(1)
        torch.testing.assert_close(above[:, m], share)


@pytest.mark.parametrize("seed", range(20))
def test_smallest_exponent_is_the_smallest_that_keeps_the_bound(seed):
    steps = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.6
    u = torch.cat([torch.zeros(1).double(), steps.cumsum(0)])

    def holds(p):
        pairs = itertools.combinations(range(1, 6), 2)
        return all(u[a] >= (a / b) ** p * u[b] - 1e-9 for a, b in pairs)

    p = float(conditions.smallest_exponent(u))
    grid = [q for q in np.geomspace(1e-3, 1e3, 400) if holds(q)]
    if math.isnan(p):
        assert not grid
    else:
        assert grid and grid[0] >= p * 0.999 and (p == 0 or grid[0] <= p * 1.04)


def test_a_polynomial_has_its_own_exponent_and_an_or_never_falls():
    u = torch.arange(6).double() ** 1.7
    assert float(conditions.smallest_exponent(u)) == pytest.approx(1.7)
    plain_or = torch.ones(16).double()
    plain_or[0] = 0.0
    assert conditions.never_falls(conditions.average_output(plain_or)) == 1


def test_shuffled_outputs_are_the_same_but_for_their_order():
    v = torch.arange(32.0).reshape(2, 16)
    mixed = conditions.shuffled(v, seed=1)
    assert torch.equal(mixed.sort(-1).values, v) and not torch.equal(mixed, v)
    assert torch.equal(mixed[:, [0, -1]], v[:, [0, -1]])
    assert torch.equal(mixed, conditions.shuffled(v, seed=1))


def test_an_interval_is_that_of_the_t_test_and_leaves_out_nan():
    values = np.random.default_rng(0).normal(size=9)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    for given in (values, torch.tensor([*values, math.nan]), [*values]):
        assert interval(given) == pytest.approx((values.mean(), *expected))


@pytest.mark.parametrize(
    "values, text",
    [
        ([], "not defined"),
        ([math.nan], "not defined"),
        ([2.0], "2.00"),
        ([0.1] * 3, "0.10 [0.10, 0.10]"),
        ([0.0, 0.0], "0.00 [0.00, 0.00]"),
    ],
)
def test_an_interval_as_text(values, text):
    assert f"{interval(values)}" == text
