"""Rules about several baselines: what is planted is shown, what is not there is not."""

from collections import Counter

import torch
from drawn_effects import drawn, drawn_effects, interactions, shared

from symgen.method.claims import baselines_grow, baselines_two
from symgen.method.witnesses import Witnesses

MANY, FEW = (0, 0.6, 0.5, 0.4), (0, 0.1, 0.05, 0.02)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def by_hits(count, total, samples=20, n=6):
    """A target of which each interaction is shared by just so many baselines, in turn."""
    target = drawn(generator(0), samples, n)
    place = torch.arange(2 * 2**n).reshape(2, -1)
    baselines = [interactions(target.effects * ((place + k) % total < count)) for k in range(total)]
    return Witnesses.of(target, baselines, draws=10)


def test_growth_at_every_order_is_shown():
    some = generator(1)
    target = drawn(some, 40, 5, MANY)
    baselines = [shared(some, target, 0.35, FEW) for _ in range(5)]
    judged = baselines_grow(Witnesses.of(target, baselines, draws=10))
    assert [c.measure[-1] for c in judged.contrasts] == ["1", "2", "3"]
    assert judged.verdict == "shown" and judged.samples == 40


def test_growth_at_all_orders_but_one_is_not_shown():
    some = generator(2)
    target = drawn(some, 40, 5, MANY)
    baselines = [shared(some, target, 0.35, FEW) for _ in range(5)]
    # At order 2 all baselines are the first one.
    mixed = [
        interactions(torch.where(target.order == 2, baselines[0].effects, b.effects))
        for b in baselines
    ]
    judged = baselines_grow(Witnesses.of(target, mixed, draws=10))
    verdicts = [c.verdict for c in judged.contrasts]
    assert [v == "shown" for v in verdicts] == [True, False, True], verdicts
    assert judged.verdict != "shown"


def test_baselines_that_shun_the_target_grow_by_chance_alone():
    some = generator(3)
    target = drawn(some, 40, 4, (0, 0.4, 0.4, 0.4, 0.0))
    baselines = [shared(some, target, 0.0, (0, 0.3, 0.3, 0.3, 0)) for _ in range(4)]
    assert baselines_grow(Witnesses.of(target, baselines, draws=10)).verdict == "opposite"


def test_the_second_baseline_is_worth_more_than_the_others_where_it_finds_the_rest():
    judged = baselines_two(by_hits(3, 4))
    assert judged.verdict == "shown" and judged.samples == 20
    second, ahead = (c.value.mean for c in judged.contrasts)
    assert 0.1 < second < 0.25 and ahead > 0.1
    judged = baselines_two(by_hits(1, 5))
    assert [c.verdict for c in judged.contrasts] == ["shown", "opposite"]
    assert judged.verdict == "opposite"


def test_fewer_than_four_baselines_say_nothing_about_two():
    judged = baselines_two(by_hits(2, 3))
    assert judged.verdict == "not tested" and "3 baseline networks" in judged.note


def test_baselines_that_have_nothing_to_do_with_the_target_are_seldom_found_to_help():
    found = {baselines_grow: Counter(), baselines_two: Counter()}
    for seed in range(200):
        some = generator(seed)
        target, *baselines = (drawn(some, 12, 5) for _ in range(5))
        witnesses = Witnesses.of(target, baselines, draws=10, seed=seed)
        for rule, verdicts in found.items():
            verdicts[rule(witnesses).verdict] += 1
    for verdicts in found.values():
        assert verdicts.total() == 200
        assert verdicts["shown"] + verdicts["opposite"] <= 10, verdicts


def test_one_sample_no_interactions_and_no_total_effect_are_not_tested():
    some = generator(4)
    target, *baselines = (drawn(some, 12) for _ in range(5))
    nothing = interactions(torch.zeros_like(target.effects))
    flat = interactions(drawn_effects(some, 12), full=0.0)
    cases = [(target[:1], [b[:1] for b in baselines]), (nothing, baselines), (flat, baselines)]
    for case in cases:
        for rule in (baselines_grow, baselines_two):
            assert rule(Witnesses.of(*case, draws=2)).verdict == "not tested"
