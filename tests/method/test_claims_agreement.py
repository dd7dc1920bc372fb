"""The rule about cross-validation: judges who agree, who do not, and who know nothing."""

from collections import Counter

import torch
from drawn_effects import drawn, interactions, shared

from symgen.method.agreement import Agreement
from symgen.method.claims import cross_validation

FEW = (0, 0.1, 0.05, 0.02, 0.0, 0.0, 0.0)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def halves(target):
    """What two networks hold that share no interaction of a target."""
    return (interactions(target.effects * (target.order % 2 == odd)) for odd in (0, 1))


def test_judges_who_find_the_same_half_agree():
    some = generator(0)
    target = drawn(some, 20)
    known = shared(some, target, 0.6, FEW)
    untrained = drawn(some, 20)
    judged = cross_validation(Agreement.of(target, known, known, untrained, draws=10))
    assert judged.verdict == "shown" and judged.samples == 20
    assert "1.00" in judged.note


def test_agreement_with_an_untrained_network_too_says_nothing_of_learning():
    some = generator(1)
    target = drawn(some, 20)
    known = shared(some, target, 0.6, FEW)
    judged = cross_validation(Agreement.of(target, known, known, known, draws=10))
    assert judged.contrasts[0].verdict == "shown" and judged.contrasts[1].value.mean == 0
    assert judged.verdict != "shown"


def test_judges_who_accept_other_orders_disagree():
    some = generator(2)
    target = drawn(some, 30, rates=(0, 0.6, 0.3, 0.2, 0.1, 0.1, 0.1))
    even, odd = halves(target)
    judged = cross_validation(Agreement.of(target, odd, even, drawn(some, 30), draws=10))
    assert judged.contrasts[0].value.mean == 0.0  # relabelled, too, they accept other orders
    judged = cross_validation(Agreement.of(target, odd, even, even, draws=10))
    assert judged.verdict == "opposite"


def test_judges_who_know_nothing_are_seldom_found_to_agree():
    verdicts = Counter()
    for seed in range(200):
        some = generator(seed)
        target, b, c, untrained = (drawn(some, 12, 5) for _ in range(4))
        found = Agreement.of(target, b, c, untrained, draws=10, seed=seed)
        verdicts[cross_validation(found).verdict] += 1
    assert verdicts["shown"] + verdicts["opposite"] <= 10, verdicts


def test_one_sample_and_judges_who_accept_nothing_are_not_tested():
    some = generator(3)
    four = [drawn(some, 8) for _ in range(4)]
    one = cross_validation(Agreement.of(*(x[:1] for x in four), draws=2))
    assert one.verdict == "not tested"
    nothing = interactions(torch.zeros_like(four[0].effects))
    none = cross_validation(Agreement.of(four[0], nothing, nothing, nothing, draws=2))
    assert none.verdict == "not tested" and none.samples == 0
    assert "not defined" in none.note
