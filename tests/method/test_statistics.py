"""Intervals hold the truth as often as they say, and one sample has none."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import symgen
from symgen.method import conditions, spectra
from symgen.method.removal import Removal, removed_outputs
from symgen.method.statistics import mean_difference, median_interval, resampled

DRAWS = 1500
LEAST = 0.93


def covers(found, truth):
    low, high = np.array([(x.low, x.high) for x in found]).T
    return float(np.mean((low <= truth) & (truth <= high)))


def of_means(draw, size, **options):
    values = torch.from_numpy(draw(np.random.default_rng(size), (DRAWS, size)))
    return [symgen.interval(x, **options) for x in values]


def normal(rng, shape):
    return rng.normal(size=shape)


def exponential(rng, shape):
    return rng.exponential(size=shape)


def log_normal(rng, shape):
    return rng.lognormal(size=shape)


def some_shares(rng, shape):
    return rng.beta(0.5, 2, size=shape)


def mostly_one(rng, shape):
    return 1 - (rng.random(shape) < 0.2) * rng.random(shape)


def rare(rng, shape):
    return (rng.random(shape) < 0.1).astype(float)


@pytest.mark.parametrize(
    ("draw", "mean", "size", "least"),
    [
        *((normal, 0.0, size, LEAST) for size in (2, 4, 5, 10, 30)),
        *((exponential, 1.0, size, LEAST) for size in (10, 30)),
        *((some_shares, 0.2, size, LEAST) for size in (10, 30)),
        *((rare, 0.1, size, LEAST) for size in (2, 4, 5, 10, 30)),
        (log_normal, math.exp(0.5), 30, LEAST),
        # No simple method reaches more here; the module says so.
        *((exponential, 1.0, size, 0.89) for size in (2, 4)),
        *((log_normal, math.exp(0.5), size, 0.87) for size in (2, 4)),
        (log_normal, math.exp(0.5), 10, 0.9),
        (log_normal, math.exp(0.5), 5, 0.87),
    ],
)
def test_intervals_of_means_hold_the_mean(draw, mean, size, least):
    assert covers(of_means(draw, size), mean) >= least


@pytest.mark.parametrize("size", [2, 5, 10, 30])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [(some_shares, 0.2), (mostly_one, 0.9), (rare, 0.1)],
)
def test_intervals_of_shares_hold_the_mean_and_stay_within_0_and_1(draw, mean, size):
    found = of_means(draw, size, share=True)
    assert covers(found, mean) >= LEAST
    assert all(0 <= x.low <= x.mean <= x.high <= 1 for x in found)


def pooled(part, whole):
    return float(part.sum() / whole.sum())


@pytest.mark.parametrize("size", [2, 5, 10, 20])
def test_intervals_of_pooled_shares_hold_the_share(size):
    # As many draws as it takes for the answer not to depend on the seed.
    rng, draws = np.random.default_rng(size), 8000
    whole = torch.from_numpy(rng.lognormal(0, 0.5, size=(draws, size)))
    part = whole * torch.from_numpy(rng.beta(4, 2, size=(draws, size)))
    found = [resampled(pooled, a, b, share=True) for a, b in zip(part, whole, strict=True)]
    assert covers(found, 4 / 6) >= LEAST
    assert all(0 <= x.low <= x.mean <= x.high <= 1 for x in found)


def test_of_a_mean_the_jackknife_is_the_interval_of_the_mean():
    values = torch.from_numpy(exponential(np.random.default_rng(0), (12,)))
    found = resampled(lambda x: float(x.mean()), values)
    assert found == pytest.approx(symgen.interval(values))


def test_resampling_gives_the_value_of_all_samples_and_an_interval_around_a_mean():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = resampled(lambda a: float(a.mean()), x)
    assert found.mean == pytest.approx(float(x.mean()))
    assert found.low < found.mean < found.high
    assert found == resampled(lambda a: float(a.mean()), x)


@pytest.mark.parametrize("size", [2, 5, 10, 30])
def test_intervals_of_differences_hold_the_difference(size):
    rng = np.random.default_rng(size)
    one, other = (torch.from_numpy(rng.exponential(size=(DRAWS, size))) for _ in range(2))
    found = [mean_difference(3 * a, b) for a, b in zip(one, other, strict=True)]
    assert covers(found, 2.0) >= (LEAST if size >= 10 else 0.9)


@pytest.mark.parametrize("size", [5, 10, 30])
def test_intervals_of_the_gap_that_closes_hold_its_share(size):
    rng = np.random.default_rng(size)

    def losses(mean):
        before = torch.from_numpy(rng.gamma(3, mean / 3, size=(DRAWS, size)))
        after = 0.6 * before + 0.1 + torch.from_numpy(rng.normal(0, 0.1, size=before.shape))
        return [{"nothing": a, "random": b} for a, b in zip(before, after, strict=True)]

    pairs = zip(losses(0.3), losses(3.0), strict=True)
    found = [Removal(one, two).closed("random") for one, two in pairs]
    found = [x for x in found if not math.isnan(x.mean)]
    assert len(found) > DRAWS / 2 and covers(found, 0.4) >= LEAST


@pytest.mark.parametrize("size", [6, 11, 30])
def test_intervals_of_medians_hold_the_median(size):
    values = torch.from_numpy(log_normal(np.random.default_rng(size), (300, size)))
    assert covers([median_interval(x) for x in values], 1.0) >= LEAST
    assert f"{median_interval(values[0, :5]):.9f}" == f"{float(values[0, :5].median()):.9f}"


def test_one_sample_has_no_interval():
    one = torch.tensor([0.4], dtype=torch.float64)
    found = [
        symgen.interval(one), symgen.interval(one, share=True), symgen.interval(one > 0),
        symgen.interval(0 * one), median_interval(one),
        resampled(pooled, one, one), resampled(pooled, one, one, share=True),
    ]  # fmt: skip
    assert all(math.isnan(x.low) and math.isnan(x.high) for x in found)
    assert {x.side() for x in found} == {0}


def test_equal_values_have_no_width_unless_they_could_be_answers():
    same = torch.full((7,), 0.3, dtype=torch.float64)
    for found in (symgen.interval(same), symgen.interval(same, share=True)):
        assert found == pytest.approx((0.3, 0.3, 0.3), abs=1e-9)
    assert resampled(pooled, same, 2 * same, share=True) == pytest.approx((0.5, 0.5, 0.5))
    # As many answers that all agree leave room for one that does not.
    clopper = stats.binomtest(0, 7).proportion_ci()
    for none in (same < 0, 0 * same):
        assert symgen.interval(none)[1:] == pytest.approx((clopper.low, clopper.high))
    part = resampled(pooled, same, same, share=True)
    assert part == pytest.approx((1, 1 - clopper.high, 1))


@pytest.mark.parametrize("whole", [0.0, 1.0, 1 + 1e-12, -1e-12])
def test_a_number_at_the_end_of_its_range_stays_within_it(whole):
    """Where all samples give 1 and all but one of them less, or rounding gives a little more."""
    for less in (0.0, 1e-13, 0.2):
        found = resampled(
            lambda x, less=less: abs(whole - less * (len(x) < 5)), torch.ones(5), share=True
        )
        assert 0 <= found.low <= found.mean <= found.high <= 1


def test_few_differences_of_one_sign_that_look_like_answers_show_nothing():
    """Counts that rise by 0 or 1 are not shares, whose mean is positive where one value is."""
    rise = torch.tensor([1.0, 0.0, 0.0])
    assert symgen.interval(rise).side() == 0
    assert symgen.interval(rise, share=True).side() == symgen.interval(rise > 0).side() == 1


def test_an_interval_is_never_narrower_than_students():
    for draw in (normal, exponential, log_normal):
        for values in draw(np.random.default_rng(0), (50, 8)):
            found = symgen.interval(torch.from_numpy(values))
            low, high = stats.ttest_1samp(values, 0).confidence_interval()
            assert found.low <= low + 1e-9 and high - 1e-9 <= found.high


def test_values_that_are_no_shares_are_refused():
    with pytest.raises(ValueError, match=r"shares must lie in \[0, 1\], got 1.5; call interval"):
        symgen.interval(torch.tensor([0.5, 1.5]), share=True)


@pytest.mark.parametrize("spec", ["", ".0f", "+.1f", ".0%", "f", "g", ".3g"])
def test_any_interval_can_be_written(spec):
    for value in (math.inf, -math.inf, math.nan, 0.0, 1e-5, -1e-300, 3.0):
        text = f"{symgen.Interval(value, value, value):{spec}}"
        assert text == "not defined" if math.isnan(value) else "[" in text


def test_numbers_that_are_not_finite_have_no_interval():
    for wrong in (math.inf, -math.inf):
        values = torch.tensor([1.0, wrong, 2.0])
        assert math.isnan(symgen.interval(values).low)


def test_what_nothing_can_be_drawn_from_is_refused():
    v = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inter = symgen.Interactions.from_moebius(v)
    g = symgen.transfer(inter, inter)
    for call in (
        lambda: symgen.chance_level(inter, inter, draws=0),
        lambda: removed_outputs(inter, g, draws=0),
        lambda: spectra.halves_distance(symgen.order_spectrum(inter), draws=0),
        lambda: symgen.Dynamics([0], [inter], [inter], pd.DataFrame()).boundaries(draws=-1),
    ):
        with pytest.raises(ValueError, match=r"draws must be at least 1, got (0|-1); give how"):
            call()
    losses = {"nothing": torch.rand(3), "random": torch.rand(3)}
    with pytest.raises(ValueError, match=r"removed must be one of \['nothing'.*got 'nope'"):
        Removal(losses, losses).closed("nope")


def test_one_variable_meets_every_condition_with_any_exponent():
    u = conditions.average_output(torch.tensor([[0.0, 2.0], [1.0, -2.0]]))
    assert conditions.smallest_exponent(u).tolist() == [0, 0]
