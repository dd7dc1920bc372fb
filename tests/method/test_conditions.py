"""The measures of the sparsity conditions, against their definitions in plain loops."""

import itertools
import math

import pytest
import torch
from scipy import stats

from symgen import moebius
from symgen.method import conditions
from symgen.method.statistics import mean_difference, median_interval


def outputs(samples, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


def test_average_output_is_the_mean_over_states_of_one_size():
    v, n = outputs(3, 4), 4
    u = conditions.average_output(v)
    for m in range(n + 1):
        states = [s for s in range(2**n) if s.bit_count() == m]
        assert torch.allclose(u[:, m], (v[:, states] - v[:, :1]).mean(-1))


def test_strength_above_adds_up_what_is_of_higher_order():
    effects, n = moebius(outputs(2, 4)), 4
    effects[:, 0] = 0
    tail = conditions.strength_above(effects)
    for above in range(n + 1):
        high = [t for t in range(2**n) if t.bit_count() > above]
        right = effects[:, high].abs().sum(-1) / effects.abs().sum(-1)
        assert torch.allclose(tail[:, above], right, atol=1e-12)


def holds(u, p):
    pairs = itertools.combinations(range(1, len(u)), 2)
    return all(u[a] >= (a / b) ** p * u[b] - 1e-12 for a, b in pairs)


@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_exponent_holds_and_a_smaller_one_does_not(seed):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(40, 6, generator=generator, dtype=torch.float64) + 0.8
    u[:, 0] = 0
    found = conditions.smallest_exponent(u)
    assert found.isnan().any() and (found > 0).any()
    grid = [0.01 * k for k in range(1, 2000)]
    for row, p in zip(u.tolist(), found.tolist(), strict=True):
        if math.isnan(p):
            assert not any(holds(row, q) for q in grid)
        elif p > 0:
            assert holds(row, p) and not holds(row, p * 0.99 - 1e-9)
        else:
            assert holds(row, 1e-9)


def test_powers_of_m_have_their_own_exponent_and_a_fall_has_none_to_speak_of():
    m = torch.arange(7, dtype=torch.float64)
    u = torch.stack([m**0.9, m**1.2, -m, torch.where(m == 1, -1.0, m)])
    p = conditions.smallest_exponent(u)
    assert torch.allclose(p[:2], torch.tensor([0.9, 1.2], dtype=torch.float64))
    assert p[2] == 0 and p[3].isnan()
    assert conditions.downward(u).tolist()[:3] == [0, 0, 1]


def test_one_variable_leaves_nothing_to_compare():
    u = conditions.average_output(outputs(5, 1))
    assert conditions.smallest_exponent(u).tolist() == [0] * 5


def test_shuffling_keeps_the_outputs_and_both_ends():
    v = outputs(3, 5)
    mixed = conditions.shuffled(v, seed=1)
    assert torch.equal(mixed[:, [0, -1]], v[:, [0, -1]])
    assert torch.equal(mixed.sort(-1).values, v.sort(-1).values)
    assert not torch.equal(mixed, v)
    assert torch.equal(mixed, conditions.shuffled(v, seed=1))


def test_the_median_lies_in_its_interval_and_nothing_has_none():
    found = median_interval(torch.tensor([3.0, 1.0, torch.nan, 2.0]))
    assert found.mean == 2 and math.isnan(found.low)
    found = median_interval(torch.arange(7.0))
    assert found == (3, 0, 6)
    assert f"{median_interval(torch.tensor([torch.nan]))}" == "not defined"


def test_the_difference_of_two_groups_needs_two_samples_of_each():
    one, other = torch.tensor([4.0, 5.0, 9.0]), torch.tensor([1.0, 2.0])
    found = mean_difference(one, other)
    assert found.mean == pytest.approx(4.5) and found.low < found.mean < found.high
    back = mean_difference(other, one)
    assert back.mean == pytest.approx(-4.5)
    assert f"{mean_difference(one, other[:1])}" == "not defined"
    one = torch.tensor([4.0, 5.0, 6.0])
    low, high = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert mean_difference(one, other)[1:] == pytest.approx((low, high))
    one = torch.tensor([4.0, 5.0, 9.0])
    many = mean_difference(one.repeat(20), other.repeat(20))
    assert many.mean == pytest.approx(4.5) and 3 < many.low < many.mean < many.high < 6
