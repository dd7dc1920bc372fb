"""Rules about removal, on simulated losses of which the truth is known."""

import collections

import pytest
import torch

from symgen.method import claims

RULES = (claims.removal_gap, claims.removal_control, claims.removal_train, claims.removal_test)


def losses(
    seed, samples=60, gap=1.0, train=0.0, test=0.0, control=(0.0, 0.0), noise=0.3, spread=0.5
):
    """Losses with a gap of about so much, which the removals change by so much on average."""
    generator = torch.Generator().manual_seed(seed)

    def random():
        return torch.randn(samples, generator=generator, dtype=torch.float64)

    before = 0.05 * random().exp(), (0.9 * gap + 0.05) * (spread * random()).exp()
    return tuple(
        {
            "nothing": x,
            "non-generalizable": x + change + noise * random(),
            "random": x + other + noise * random(),
        }
        for x, change, other in zip(before, (train, test), control, strict=True)
    )


def verdicts(rule, count=200, **truth):
    return collections.Counter(rule(*losses(seed, **truth)).verdict for seed in range(count))


@pytest.mark.parametrize(
    "rule, truth",
    [
        (claims.removal_gap, {"train": 0.5, "test": -0.5}),
        (claims.removal_control, {"train": 0.5}),
        (claims.removal_control, {"control": (-0.5, 0)}),
        (claims.removal_train, {"train": 0.5}),
        (claims.removal_test, {"test": -0.3}),
        (claims.removal_test, {"test": -0.3, "gap": 0.0}),
    ],
)
def test_what_is_planted_is_shown(rule, truth):
    assert verdicts(rule, 40, **truth)["shown"] >= 38


@pytest.mark.parametrize(
    "rule, truth",
    [
        (claims.removal_gap, {"train": -0.5, "test": 0.5}),
        (claims.removal_control, {"train": -0.5}),
        (claims.removal_train, {"train": -0.5}),
        (claims.removal_test, {"test": 0.6}),
        (claims.removal_test, {"test": 0.3, "gap": 0.0}),
    ],
)
def test_the_opposite_is_found_too(rule, truth):
    assert verdicts(rule, 40, **truth)["opposite"] >= 36


@pytest.mark.parametrize("spread", [0.5, 1.0])
@pytest.mark.parametrize("samples", [10, 60])
def test_false_alarms_are_rare_where_nothing_changes(samples, spread):
    for rule in RULES[:3]:
        found = verdicts(rule, 300, samples=samples, spread=spread)
        assert found["shown"] + found["opposite"] <= 15, (rule.__name__, found)


@pytest.mark.parametrize("samples", [10, 60])
def test_a_rise_by_a_tenth_of_the_gap_is_seldom_taken_for_less_or_more(samples):
    for truth in ({"test": 0.1}, {"test": 0.02, "gap": 0.0}):
        found = verdicts(claims.removal_test, 300, samples=samples, **truth)
        assert found["shown"] <= 15 and found["opposite"] <= 15, found


def test_a_removal_of_nothing_is_absent_and_does_not_raise_the_test_loss():
    pair = losses(0, noise=0)
    found = [rule(*pair).verdict for rule in RULES]
    assert found == ["absent", "absent", "absent", "shown"]


def test_without_a_clear_gap_nothing_is_said_of_its_cause():
    pair = losses(0, gap=0.0, train=0.5)
    for rule in RULES[:2]:
        judged = rule(*pair)
        assert judged.verdict == "not tested" and judged.contrasts == []
        assert "no clear loss gap" in judged.note and "nats" in judged.note
    assert claims.removal_train(*pair).verdict == "shown"


def test_a_gap_within_the_margin_is_none():
    even = torch.zeros(20, dtype=torch.float64)
    one = dict.fromkeys(("nothing", "non-generalizable", "random"), even)
    for rule in RULES[:2]:
        assert rule(one, {k: x + 0.01 for k, x in one.items()}).verdict == "not tested"
        assert rule(one, {k: x + 0.03 for k, x in one.items()}).verdict == "absent"


@pytest.mark.parametrize("rule", RULES)
def test_one_sample_and_unknown_losses_are_not_tested(rule):
    pair = losses(0)
    one = tuple({k: x[:1] for k, x in group.items()} for group in pair)
    lost = tuple({k: x * torch.nan for k, x in group.items()} for group in pair)
    none = tuple({k: x[:0] for k, x in group.items()} for group in pair)
    for given in (one, lost, none):
        assert rule(*given).verdict == "not tested"
    assert "unknown" in claims.removal_gap(*one).note


def test_how_many_samples_stand_behind_a_verdict():
    train, test = losses(0, samples=30)[0], losses(1, samples=20)[1]
    assert [rule(train, test).samples for rule in RULES] == [50, 50, 30, 20]


def test_the_rise_of_the_test_loss_is_told_as_a_share_of_the_gap():
    base = torch.linspace(1, 2, 20).double()
    one = {"nothing": base - 1, "non-generalizable": base - 1}
    two = {"nothing": base, "non-generalizable": base + 0.3}
    [contrast] = claims.removal_test(one, two).contrasts
    assert contrast.value.mean == pytest.approx(0.3) and contrast.bound == 0.1
