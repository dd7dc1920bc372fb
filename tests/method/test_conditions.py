"""The measures of the sparsity conditions, against their definitions in plain loops."""

import itertools
import math

import pytest
import torch
from scipy import stats

import symgen
from symgen import moebius
from symgen.interactions import Interactions
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


@pytest.mark.parametrize("n", range(3, 12))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_step_of_the_average_output(n, dtype):
    # A plain OR of all variables never falls, and any small p will do for it.
    v = torch.full((3, 2**n), 0.1, dtype=dtype) * torch.tensor([[1.0], [3.0], [7.0]], dtype=dtype)
    v[:, 0] = 0
    u = conditions.average_output(v)
    assert u.dtype == dtype
    assert (u[:, 1:] == u[:, 1:2]).all()
    assert (conditions.never_falls(u) == 1).all()
    assert (conditions.smallest_exponent(u) == 0).all()
    assert (conditions.downward(u) == 0).all()
    unknown = v.clone()
    unknown[0, 1] = torch.nan
    assert conditions.average_output(unknown).isnan().any(-1).tolist() == [True, False, False]


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


def test_what_never_moves_is_no_sample_that_never_falls():
    u = conditions.average_output(torch.tensor([[1.0, 1, 1, 1], [0, 1, 2, 3], [0, -1, 2, 3]]))
    found = conditions.never_falls(u)
    assert found[0].isnan() and found[1:].tolist() == [1, 1]
    assert conditions.never_falls(torch.tensor([0.0, 1, 2, 1])) == 0


def by_size(u):
    """Outputs of which u is the mean over the states of each size."""
    return u[..., [s.bit_count() for s in range(2 ** (u.shape[-1] - 1))]]


def test_values_of_samples_that_are_known():
    m = torch.arange(5, dtype=torch.float64)
    v = by_size(torch.stack([m, m**2, -m, torch.tensor([0, -1.0, 1, 2, 3]).double()]))
    # Of the sum nothing is of order 2 or more; of the square half the strength is, of order 2.
    above, holds, p, rises = conditions.condition_values(v).values()
    expected = moebius(v - v[:, :1])
    high = torch.tensor([t.bit_count() > 2 for t in range(16)])
    assert torch.allclose(above, (expected.abs() * high).sum(-1) / expected.abs().sum(-1))
    assert above[:2].tolist() == pytest.approx([0, 0])
    assert holds.tolist() == [1, 1, 0, 0]
    assert p[:2].tolist() == pytest.approx([1, 2]) and p[2:].isnan().all()
    assert rises.tolist() == [1, 1, 0, 1]


def test_tables_hold_means_of_shares_medians_of_p_and_paired_changes():
    m = torch.arange(5, dtype=torch.float64)
    up = by_size(torch.stack([m, m**2, m**5]))
    mixed = by_size(torch.stack([m, -m, m**5]))
    table = conditions.condition_table({"a": {"early": mixed, "trained": up}})
    found = table.set_index(["checkpoint", "measure"])["value"]
    assert found["trained", conditions.MEDIAN] == pytest.approx(2)
    assert found["early", conditions.MEDIAN] == pytest.approx(3)
    assert found["early", "2: samples that never fall"] == pytest.approx(2 / 3)
    assert found["trained", "samples whose output rises"] == 1
    changes = conditions.condition_changes({"a": {"early": mixed, "trained": up}})
    change = changes.set_index("measure")["change"]
    assert conditions.MEDIAN not in change
    assert change["samples whose output rises"] == pytest.approx(1 / 3)
    assert set(changes["since"]) == {"early"}


def test_examples_span_all_p_and_hold_the_largest_and_one_without():
    p = torch.tensor([0.3, torch.nan, 2.0, 0.1, 1.0, torch.nan, 0.7])
    found = conditions.examples(p, 3)
    assert found[0] == 3 and 2 in found and len(set(found)) == len(found)
    assert sum(bool(p[k].isnan()) for k in found) == 1
    values = [float(p[k]) for k in found if not p[k].isnan()]
    assert values == sorted(values)
    assert conditions.examples(torch.tensor([torch.nan]), 0) == [0]


def test_counts_keep_the_threshold_and_the_noise_of_all_variables():
    n = 5
    effects = torch.zeros(3, 2**n, dtype=torch.float64)
    # Of the first variables, of all, and one that is not salient beside the largest.
    effects[:, 0b00011], effects[:, 0b11111], effects[:, 0b00100] = 1.0, 30.0, 1.2
    v = symgen.zeta(effects)
    inter = Interactions.from_moebius(v)
    counts = conditions.salient_counts(v, inter, [2, 3, 5, 9], noise=0.0)
    assert [*counts] == [2, 3, 5]
    # With all variables from k on present, the large one is there when the first k are; what
    # remains of 1.0 and 1.2 is below tau = 1.5 but where they meet the large one.
    assert counts[5].tolist() == [1, 1, 1]
    for k in (2, 3):
        some = symgen.sparsify(v[:, -(2**k) :], noise=0.0)
        right = sum(x.sum(-1) for x in some.salient(tau=1.5)).double()
        assert counts[k].tolist() == right.tolist() and (right > 0).all()
    free = conditions.salient_counts(v, inter, [2], noise=0.5)
    loose = symgen.sparsify(v[:, -4:], noise=0.5 * 32.2 / float(v[0, -1] - v[0, -4]))
    assert free[2].tolist() == sum(x.sum(-1) for x in loose.salient(tau=1.5)).tolist()


def grown(law, spread=0.1, samples=60, sizes=(4, 6, 8, 10, 12)):
    generator = torch.Generator().manual_seed(0)
    scale = (spread * torch.randn(samples, generator=generator)).exp().double()
    return {n: scale * law(n) for n in sizes}


def test_growth_tells_a_power_from_an_exponential():
    generator = torch.Generator().manual_seed(1)
    for law, side in ((lambda n: n**1.5, -1), (lambda n: 1.5**n, 1)):
        noisy = {
            n: c * (0.05 * torch.randn(len(c), generator=generator)).exp()
            for n, c in grown(law).items()
        }
        found = conditions.growth(noisy)
        assert found.misfit.side() == side
        if side < 0:
            assert found.exponent.low < 1.5 < found.exponent.high + 0.01
            assert found.exponent.mean == pytest.approx(1.5, abs=0.05)


def test_counts_that_do_not_grow_or_are_too_few_have_no_law():
    for counts in (
        grown(lambda n: n, sizes=(4, 6)),
        grown(lambda n: 20 - n),
        grown(lambda n: 5 + (n == 8)),
    ):
        assert all(math.isnan(x) for interval in conditions.growth(counts) for x in interval)
    zeros = {n: torch.tensor([0.0, n]).double() for n in (2, 4, 8)}
    assert math.isfinite(conditions.growth(zeros).exponent.mean)


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
