"""The rules about orders and about the continuous measure, where the truth is known."""

import collections

import pytest
import torch

from symgen.interactions import Interactions
from symgen.method import claims
from symgen.method.claims import (
    low_orders,
    low_orders_above_chance,
    similarity_shape,
    similarity_strict,
)
from symgen.transforms import interaction_order

N = 5


def networks(generator, samples, keep_low, keep_high, factor=1.0):
    """Return a target and a baseline that shares so much of its low and of its other orders."""
    order, shape = interaction_order(N), (samples, 2**N)

    def some(share):
        kept = torch.rand(shape, generator=generator) < share
        signs = torch.randint(2, shape, generator=generator) * 2.0 - 1.0
        size = 1.0 + torch.rand(shape, generator=generator, dtype=torch.float64)
        return torch.where(kept & (order > 0), signs * size, 0.0)

    effects = some(0.3)
    chance = torch.where(order <= 2, keep_low, keep_high)
    shared = torch.rand(shape, generator=generator) < chance
    elsewhere = torch.where(effects == 0, some(0.1), 0.0)

    def made(and_):
        zero = torch.zeros(samples, dtype=torch.float64)
        total = torch.ones(samples, dtype=torch.float64)
        return Interactions(and_, torch.zeros_like(and_), zero, and_.abs().sum(-1), zero, total)

    return made(effects), made(torch.where(shared, factor * effects, 0.0) + elsewhere)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


RULES = (low_orders, low_orders_above_chance)


@pytest.mark.parametrize("rule", RULES)
def test_low_orders_that_transfer_more_are_found_and_the_reverse_too(generator, rule):
    found = rule(*networks(generator, 30, 0.9, 0.3))
    assert found.verdict == "shown" and found.samples == 30
    assert found.contrasts[0].measure.endswith("less orders from 3 on")
    assert rule(*networks(generator, 30, 0.3, 0.9)).verdict == "opposite"


@pytest.mark.parametrize("rule", RULES)
def test_low_orders_that_transfer_alike_are_seldom_called_otherwise(generator, rule):
    found = [rule(*networks(generator, 12, 0.6, 0.6)).verdict for _ in range(100)]
    assert sum(v in ("shown", "opposite") for v in found) <= 8


def test_a_lead_that_is_chance_alone_counts_for_the_figure_and_not_above_chance():
    """Both networks fill the low orders at random: many sets in common, none of them learned."""
    order, drawn = interaction_order(N), torch.Generator().manual_seed(1)
    often = torch.where(order <= 2, 0.9, 0.1) * (order > 0)

    def made():
        and_ = torch.bernoulli(often.expand(40, -1), generator=drawn).double()
        zero, total = torch.zeros(40).double(), torch.ones(40).double()
        return Interactions(and_, torch.zeros_like(and_), zero, and_.sum(-1), zero, total)

    pair = made(), made()
    assert low_orders(*pair).verdict == "shown"
    assert low_orders_above_chance(*pair).verdict != "shown"


def test_one_sample_and_dead_outputs_are_not_tested(generator):
    target, baseline = networks(generator, 1, 0.9, 0.3)
    for rule in (*RULES, similarity_strict, similarity_shape):
        assert rule(target, baseline).verdict == "not tested"
    target, baseline = networks(generator, 6, 0.9, 0.3)
    dead = Interactions(*(torch.zeros_like(getattr(target, f)) for f in (
        "and_", "or_", "bias", "objective", "gap", "full")))  # fmt: skip
    for rule in (*RULES, similarity_strict, similarity_shape):
        assert rule(dead, baseline).verdict == "not tested"


@pytest.mark.parametrize("rule", RULES)
def test_orders_of_a_threshold_take_part(generator, rule):
    target, baseline = networks(generator, 10, 0.9, 0.3)
    high = rule(target, baseline, {"tau": 1e9, "relative_to": "absolute"})
    assert high.verdict == "not tested" and high.samples == 0


def test_the_continuous_metric_is_stricter_where_shared_effects_are_unequal(generator):
    # What is shared is three times as strong; what is not, has the other sign: nothing comes back.
    unequal = networks(generator, 20, 0.6, 0.6, factor=3.0)
    assert similarity_strict(*unequal).verdict == "shown"
    equal = networks(generator, 20, 1.1, 1.1, factor=1.005)
    assert similarity_strict(*equal).verdict == "absent"


def test_shapes_are_similar_where_only_the_size_differs(generator):
    target, baseline = networks(generator, 40, 0.9, 0.1, factor=2.0)
    assert similarity_shape(target, baseline).verdict == "shown"
    # Nothing but chance decides what is shared, so that the rest has the same shape.
    random = [similarity_shape(*networks(generator, 10, 0.5, 0.5)).verdict for _ in range(30)]
    assert random.count("shown") <= 3


def against(seed, lead=0.0, samples=20):
    """Shares of a rule's strength, of which those of the rule are larger by so much."""
    generator = torch.Generator().manual_seed(seed)
    names = ("precision", "base", "recall", "false")
    names += tuple(f"{name} by chance" for name in names if name != "base")
    level = torch.rand(len(names), samples, generator=generator).double() * 0.4 + 0.2
    found = dict(zip(names, level, strict=True))
    return {k: x + lead * (k in ("precision", "recall")) for k, x in found.items()}


@pytest.mark.parametrize("rule", [claims.rule_precision, claims.rule_recall])
def test_transfer_is_held_against_a_known_rule(rule):
    assert [rule(against(seed, 0.3)).verdict for seed in range(10)] == ["shown"] * 10
    assert [rule(against(seed, -0.3)).verdict for seed in range(10)] == ["opposite"] * 10
    found = collections.Counter(rule(against(seed)).verdict for seed in range(300))
    assert found["shown"] + found["opposite"] <= 15
    # A lead that relabelled baselines have as well is none.
    lucky = against(0, 0.3)
    lucky |= {f"{k} by chance": lucky[k] for k in ("precision", "recall", "false")}
    assert rule(lucky).verdict == "absent"
    none = {k: x * torch.nan for k, x in against(0).items()}
    assert rule(none).verdict == "not tested"
