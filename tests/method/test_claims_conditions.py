"""Rules about the sparsity conditions, on simulated outputs of which the truth is known."""

import collections

import pytest
import torch

from symgen import zeta
from symgen.interactions import Interactions
from symgen.method import claims

N = 4


def by_size(u):
    """Outputs of which u is the mean over the states of each size."""
    return u[..., [s.bit_count() for s in range(2 ** (u.shape[-1] - 1))]]


def powers(seed, samples=60, p=1.0, without=0.0, falls=0.0, spread=0.15):
    """Outputs u(m) = m^p of scattered p; some have no p, some fall at a step."""
    generator = torch.Generator().manual_seed(seed)
    exponent = p * (spread * torch.randn(samples, 1, generator=generator).double()).exp()
    u = torch.arange(N + 1).double() ** exponent
    u[torch.rand(samples, generator=generator) < without, 1] = -0.5
    falling = torch.rand(samples, generator=generator) < falls
    u[falling, 2] = 0.9 * u[falling, 1]
    return by_size(u)


def orders(seed, samples=60, share=0.05):
    """Interactions of which such a share of strength, on average, lies above order n/2."""
    generator = torch.Generator().manual_seed(seed)
    effects = torch.zeros(samples, 2**N, dtype=torch.float64)
    high = 2 * share * torch.rand(samples, generator=generator).double()
    effects[:, 0b0111], effects[:, 0b0010] = high, 1 - high
    v = zeta(effects)
    return Interactions.from_moebius(v), v


def verdicts(rule, draw, count, **truth):
    cases = (draw(seed, **truth) for seed in range(count))
    return collections.Counter(
        rule(*(case if isinstance(case, tuple) else (case,))).verdict for case in cases
    )


@pytest.mark.parametrize(
    "rule, draw, truth",
    [
        (claims.condition_1, orders, {"share": 0.03}),
        (claims.condition_2, powers, {}),
        (claims.condition_3, powers, {"p": 1.04}),
    ],
)
def test_what_is_planted_is_shown(rule, draw, truth):
    assert verdicts(rule, draw, 30, **truth)["shown"] >= 28


@pytest.mark.parametrize(
    "rule, draw, truth",
    [
        (claims.condition_1, orders, {"share": 0.08}),
        (claims.condition_2, powers, {"falls": 0.35}),
        (claims.condition_3, powers, {"p": 1.5}),
        (claims.condition_3, powers, {"p": 0.7}),
        (claims.condition_3, powers, {"without": 0.4}),
    ],
)
def test_the_opposite_is_found_too(rule, draw, truth):
    assert verdicts(rule, draw, 30, **truth)["opposite"] >= 28


@pytest.mark.parametrize(
    "rule, draw, truth",
    [
        (claims.condition_1, orders, {}),
        (claims.condition_2, powers, {"falls": 0.1}),
        (claims.condition_3, powers, {"p": 1.04, "without": 0.1}),
        (claims.condition_3, powers, {"p": 1.2}),
        (claims.condition_3, powers, {"p": 0.9}),
    ],
)
@pytest.mark.parametrize("samples", [20, 80])
def test_on_the_limit_there_is_seldom_a_verdict(rule, draw, truth, samples):
    found = verdicts(rule, draw, 300, samples=samples, **truth)
    assert found["shown"] + found["opposite"] <= 15, found


def test_both_ways_to_count_are_asked():
    """An OR over all variables is one interaction, and ANDs of every order without a split."""
    samples, zeros = 100, torch.zeros(100, dtype=torch.float64)
    effects = torch.zeros(2, samples, 2**N, dtype=torch.float64)
    effects[1, :, -1] = 1.0
    v = torch.ones(samples, 2**N, dtype=torch.float64)
    v[:, 0] = 0.0
    judged = claims.condition_1(Interactions(*effects, zeros, zeros, zeros, zeros + 1), v)
    # Of the 15 ANDs of one size, 5 are of orders 3 and 4; the one OR is of order 4.
    assert [c.value.mean for c in judged.contrasts] == pytest.approx([1, 5 / 15])
    effects[1, :, -1], effects[0, :, 1] = 0.0, 1.0
    judged = claims.condition_1(Interactions(*effects, zeros, zeros, zeros, zeros + 1), v)
    assert [c.verdict for c in judged.contrasts] == ["shown", "opposite"]
    assert judged.verdict == "opposite"


@pytest.mark.parametrize("samples", [0, 1])
def test_one_sample_or_none_is_not_tested(samples):
    inter, v = orders(0)
    assert claims.condition_1(inter[:samples], v[:samples]).verdict == "not tested"
    for rule in (claims.condition_2, claims.condition_3):
        assert rule(powers(0)[:samples]).verdict == "not tested"


def test_dead_outputs_say_nothing():
    dead = torch.full((20, 2**N), 3.0, dtype=torch.float64)
    assert claims.condition_1(Interactions.from_moebius(dead), dead).verdict == "not tested"
    assert claims.condition_2(dead).verdict == "not tested"
    judged = claims.condition_3(dead)
    assert judged.verdict == "not tested" and "rises" in judged.note
    some = torch.cat([dead, powers(0)])
    assert claims.condition_2(some) == claims.condition_2(powers(0))
    assert claims.condition_1(Interactions.from_moebius(some), some).samples == 60


def test_one_variable_is_nothing_to_compare():
    v = torch.tensor([[0.0, 1.0]] * 20, dtype=torch.float64)
    for judged in (claims.condition_1(Interactions.from_moebius(v), v), claims.condition_3(v)):
        assert judged.verdict == "not tested" and "one variable" in judged.note


def test_few_samples_have_no_interval_of_the_median():
    judged = claims.condition_3(powers(0, samples=5))
    assert judged.verdict == "not tested" and judged.samples == 5
