"""Rules about removal, on simulated losses of which the truth is known."""

import collections
from dataclasses import replace

import pytest
import torch

from symgen.method import claims
from symgen.method.removal import Removal

LEADS = (claims.removal_control, claims.removal_permuted, claims.removal_shrunk)
OF_A_GAP = (claims.removal_gap, *LEADS)
RULES = (*OF_A_GAP, claims.removal_train, claims.removal_test)
CONTROLS = ("random", "permuted", "shrunk")


def met(removal):
    """Let shrinking meet the mean training loss after the removal, and leave the gap as it is."""
    train, test = removal.train, removal.test
    rise = train["non-generalizable"] - train["nothing"]
    rise = rise if removal.unit == "trainings" else rise.mean()
    train["shrunk"] = train["nothing"] + rise
    test["shrunk"] = test["shrunk"] + rise
    return removal


def losses(
    seed, samples=60, gap=1.0, train=0.0, test=0.0, control=(0.0, 0.0), noise=0.3, spread=0.5
):
    """Losses with a gap of about so much, which the removals change by so much on average."""
    generator = torch.Generator().manual_seed(seed)

    def random():
        return torch.randn(samples, generator=generator, dtype=torch.float64)

    before = 0.05 * random().exp(), (0.9 * gap + 0.05) * (spread * random()).exp()
    return met(Removal(*(
        {"nothing": x, "non-generalizable": x + change + noise * random()}
        | {k: x + other + noise * random() for k in CONTROLS}
        for x, change, other in zip(before, (train, test), control, strict=True)
    )))  # fmt: skip


def trainings(seed, count=8, gap=1.0, train=0.0, test=0.0, control=(0.0, 0.0), spread=0.2):
    """Mean losses of trainings, each with a gap and changes of its own."""
    generator = torch.Generator().manual_seed(seed)

    def around(mean, spread):
        drawn = torch.randn(count, generator=generator, dtype=torch.float64)
        return mean + spread * drawn

    before = around(0.3, 0.05), around(0.3 + gap, spread)
    return met(Removal(*(
        {"nothing": x, "non-generalizable": x + around(change, 0.05)}
        | {k: x + around(other, 0.05) for k in CONTROLS}
        for x, change, other in zip(before, (train, test), control, strict=True)
    ), unit="trainings"))  # fmt: skip


def verdicts(rule, count=200, **truth):
    return collections.Counter(rule(losses(seed, **truth)).verdict for seed in range(count))


@pytest.mark.parametrize(
    "rule, truth",
    [
        (claims.removal_gap, {"train": 0.5, "test": -0.5}),
        *((rule, {"train": 0.5}) for rule in LEADS),
        *((rule, {"control": (-0.5, 0)}) for rule in LEADS[:2]),
        (claims.removal_shrunk, {"control": (0, 0.5)}),
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
        *((rule, {"train": -0.5}) for rule in LEADS),
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
    for rule in RULES[:-1]:
        found = verdicts(rule, 300, samples=samples, spread=spread)
        assert found["shown"] + found["opposite"] <= 15, (rule.__name__, found)


@pytest.mark.parametrize("samples", [10, 60])
def test_a_rise_by_a_tenth_of_the_gap_is_seldom_taken_for_less_or_more(samples):
    for truth in ({"test": 0.1}, {"test": 0.02, "gap": 0.0}):
        found = verdicts(claims.removal_test, 300, samples=samples, **truth)
        assert found["shown"] <= 15 and found["opposite"] <= 15, found


def test_a_removal_of_nothing_is_absent_and_does_not_raise_the_test_loss():
    found = [rule(losses(0, noise=0)).verdict for rule in RULES]
    assert found == ["absent"] * 5 + ["shown"]


def test_without_a_clear_gap_nothing_is_said_of_its_cause():
    without = losses(0, gap=0.0, train=0.5)
    for rule in OF_A_GAP:
        judged = rule(without)
        assert judged.verdict == "not tested" and judged.contrasts == []
        assert "no clear loss gap" in judged.note and "nats" in judged.note
    assert claims.removal_train(without).verdict == "shown"


def test_shrinking_that_meets_no_training_loss_is_no_control():
    pair = losses(0)
    pair.train["shrunk"] = pair.train["shrunk"] - 0.05
    judged = claims.removal_shrunk(pair)
    assert (judged.verdict, judged.note) == (
        "not tested", "no factor gives the training loss after the removal"
    )  # fmt: skip
    several = trainings(0)
    several.train["shrunk"][3] += 0.05
    judged = claims.removal_shrunk(several)
    assert judged.verdict == "not tested" and judged.note.startswith(
        "in 1 of 8 trainings no factor"
    )
    assert claims.removal_control(several).verdict != "not tested"


def test_the_training_loss_cannot_fall_below_zero():
    given = trainings(0, count=3)
    low = given.train["nothing"].mean()
    given.train["non-generalizable"] = given.train["nothing"] + torch.tensor([0.5, 0.0, -0.1])
    (contrast,) = claims.removal_train(given).contrasts
    assert contrast.value.low == pytest.approx(-float(low))
    # Log odds may.
    (contrast,) = claims.removal_train(replace(given, measure="log odds")).contrasts
    assert contrast.value.low < -float(low) - 0.01


def test_a_gap_within_the_margin_is_none():
    even = torch.zeros(20, dtype=torch.float64)
    one = dict.fromkeys(("nothing", "non-generalizable", *CONTROLS), even)
    for rule in OF_A_GAP:
        assert rule(Removal(one, {k: x + 0.01 for k, x in one.items()})).verdict == "not tested"
        assert rule(Removal(one, {k: x + 0.03 for k, x in one.items()})).verdict == "absent"


@pytest.mark.parametrize("rule", RULES)
def test_one_sample_and_unknown_losses_are_not_tested(rule):
    pair = losses(0)
    for change in (lambda x: x[:1], lambda x: x * torch.nan, lambda x: x[:0]):
        given = Removal(*({k: change(x) for k, x in g.items()} for g in (pair.train, pair.test)))
        assert rule(given).verdict == "not tested"
    one = Removal(*({k: x[:1] for k, x in g.items()} for g in (pair.train, pair.test)))
    assert "unknown" in claims.removal_gap(one).note


def test_how_many_samples_stand_behind_a_verdict():
    both = Removal(losses(0, samples=30).train, losses(1, samples=20).test)
    assert [rule(both).samples for rule in RULES] == [50, 50, 50, 50, 30, 20]
    found = [rule(trainings(0)) for rule in RULES]
    assert [(x.samples, x.unit) for x in found] == [(8, "trainings")] * 6


@pytest.mark.parametrize("count", [4, 8])
def test_false_alarms_of_trainings_are_rare_where_nothing_changes(count):
    for rule in RULES[:-1]:
        found = collections.Counter(rule(trainings(seed, count)).verdict for seed in range(300))
        assert found["shown"] + found["opposite"] <= 15, (rule.__name__, found)


@pytest.mark.parametrize("rule", RULES)
def test_eight_trainings_show_what_changes_by_a_fifth_of_the_gap(rule):
    """The power: changes of 0.2 nats, of which trainings differ by 0.05, in a gap of 1."""
    truth = {"test": -0.2} if rule is claims.removal_test else {"train": 0.2}
    found = collections.Counter(rule(trainings(seed, **truth)).verdict for seed in range(100))
    assert found["shown"] >= 80


def test_trainings_are_compared_within_themselves():
    """Gaps that differ from training to training do not hide what all trainings lose alike."""
    wide = trainings(0, train=0.2, spread=0.5)
    assert claims.removal_gap(wide).verdict == "shown"
    assert claims.removal_gap(Removal(wide.train, wide.test)).verdict != "shown"


def test_the_rise_of_the_test_loss_is_told_as_a_share_of_the_gap():
    base = torch.linspace(1, 2, 20).double()
    one = {"nothing": base - 1, "non-generalizable": base - 1}
    two = {"nothing": base, "non-generalizable": base + 0.3}
    [contrast] = claims.removal_test(Removal(one, two)).contrasts
    assert contrast.value.mean == pytest.approx(0.3) and contrast.bound == 0.1
