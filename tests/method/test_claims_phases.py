"""The rules about training find what is planted, and seldom what is not there."""

import collections

import pandas as pd
import pytest
import torch

from symgen.interactions import Interactions
from symgen.method import claims
from symgen.method.dynamics import Dynamics
from symgen.transforms import interaction_order

THERE_AND_BACK = [0.0, 0.4, 1.0, 0.7, 0.4]
SPREAD = {"power": 0.1, "count": 4.0, "mean_order": 0.3, "generalizable": 1, "non_generalizable": 1}


def followed(curves, losses=None, n=4):
    """What was measured of some samples, as if it came of interactions."""
    count, looks = curves["power"].shape
    steps = [0, *(2**k for k in range(1, looks))]
    empty = Interactions.from_moebius(torch.zeros(count, 2**n))
    records = pd.DataFrame({"step": steps})
    found = Dynamics(steps, [empty] * looks, [empty], records, losses or {})
    found.__dict__["curves"] = {name: values.double() for name, values in curves.items()}
    return found


def simulated(seed=0, samples=30, looks=5, gap=(0.0, 0.0), noise=1.0, **means):
    """Samples that scatter around given means at every checkpoint, and losses around given gaps."""
    generator = torch.Generator().manual_seed(seed)

    def around(mean, spread):
        own = spread * torch.randn(samples, 1, generator=generator)
        return mean + noise * (own + spread * torch.randn(samples, looks, generator=generator))

    level = {"power": 0.5, "count": 20.0, "mean_order": 2.0}
    level |= {"generalizable": 4.0, "non_generalizable": 4.0} | means
    curves = {k: around(torch.as_tensor(v), SPREAD[k]) for k, v in level.items()}
    found = followed(curves)
    before, after = gap
    peak = found.phases().t1 or 1
    for step in found.steps:
        train, test = (torch.randn(300, generator=generator).exp() for _ in range(2))
        found.losses[step] = train, test + (after if step > peak else before)
    return found


def shape(low, high, values=THERE_AND_BACK):
    return low + (high - low) * torch.tensor(values)


RISE_AND_FALL = {"power": shape(0.2, 0.8)}
PLANTED = [
    (claims.count, {"count": shape(40, 10)}),
    (claims.power, RISE_AND_FALL),
    (claims.gap, {**RISE_AND_FALL, "gap": (0.0, 2.0)}),
    (claims.phase_1, {**RISE_AND_FALL, "mean_order": shape(3, 1)}),
    (claims.phase_2, {**RISE_AND_FALL, "mean_order": shape(3, 1)}),
    (
        claims.phase_3,
        {
            **RISE_AND_FALL,
            "generalizable": torch.tensor([1.0, 3, 5, 5, 6]),
            "non_generalizable": torch.tensor([4.0, 4, 4, 6, 14]),
        },
    ),
]
OPPOSITE = [
    (claims.count, {"count": shape(10, 40)}),
    (claims.power, {"power": shape(0.8, 0.2)}),
    (claims.power, {"power": shape(0.2, 0.8, [0.0, 0.2, 0.4, 0.6, 1.0])}),
    (claims.gap, {**RISE_AND_FALL, "gap": (2.0, 0.2)}),
    (claims.phase_1, {**RISE_AND_FALL, "mean_order": shape(1, 3)}),
    (claims.phase_2, {**RISE_AND_FALL, "mean_order": shape(1, 3)}),
    (
        claims.phase_3,
        {
            **RISE_AND_FALL,
            "generalizable": torch.tensor([1.0, 3, 5, 5, 14]),
            "non_generalizable": torch.tensor([4.0, 4, 4, 6, 8]),
        },
    ),
]
TRAINING = [rule for rule, _ in PLANTED]


@pytest.mark.parametrize(("rule", "planted"), PLANTED)
def test_what_is_planted_is_shown(rule, planted):
    assert [rule(simulated(seed, **planted)).verdict for seed in range(10)] == ["shown"] * 10


@pytest.mark.parametrize(("rule", "planted"), OPPOSITE)
def test_the_opposite_is_found_as_such(rule, planted):
    assert [rule(simulated(seed, **planted)).verdict for seed in range(10)] == ["opposite"] * 10


@pytest.mark.parametrize("rule", TRAINING)
@pytest.mark.parametrize(("samples", "looks"), [(15, 5), (30, 8)])
def test_where_nothing_happens_alarms_are_rare(rule, samples, looks):
    """Checkpoints that differ by chance alone, whose extremes stand out all the same."""
    found = collections.Counter(
        rule(simulated(seed, samples, looks, gap=(0.5, 0.5))).verdict for seed in range(200)
    )
    assert found["shown"] <= 5
    assert found["shown"] + found["opposite"] <= 10


def test_picking_an_extreme_alone_shows_no_rise_and_no_fall():
    """Without the halves the first change would be found in most of these: nothing happens."""
    flat, naive = [], 0
    for seed in range(100):
        found = simulated(seed, 100, 12)
        power, turned = found.curves["power"], found.turn("power", 1)
        at = int(power.mean(0)[1:-1].argmax()) + 1
        naive += float((power[:, at] - power[:, 0]).mean())
        flat.append([float(x.mean()) for x in turned[:2]])
    chance = 0.1 * (2 / 100 / 100) ** 0.5
    assert naive / 100 > 5 * chance
    assert torch.tensor(flat).mean(0).abs().max() < 4 * chance


@pytest.mark.parametrize("rule", TRAINING)
def test_one_sample_or_none_that_has_h_is_not_tested(rule):
    one = simulated(samples=1, **RISE_AND_FALL, gap=(0.0, 2.0))
    assert rule(one).verdict == "not tested"
    none = simulated(power=torch.nan)
    if rule is not claims.count:
        judged = rule(none)
        assert (judged.verdict, judged.contrasts) == ("not tested", [])
        assert "H is not defined at any checkpoint" in judged.note
    between = followed({k: x[:, :2] for k, x in simulated().curves.items()})
    assert rule(between).verdict == "not tested"


def test_samples_without_h_are_left_out():
    found = simulated(samples=40, **RISE_AND_FALL)
    found.curves["power"][:10] = torch.nan
    judged = claims.power(found)
    assert (judged.verdict, judged.samples) == ("shown", 30)
    found.curves["power"][:, 0] = torch.nan
    assert claims.power(found).verdict == "not tested"


def test_a_count_that_rises_before_it_falls_counts_against_finding_1():
    """As where a first step of training doubles N: 74, 143, 34, 85."""
    detour = shape(40, 10, [0.0, -1.0, 1.0, 0.7, 0.4])
    judged = claims.count(simulated(count=detour))
    assert judged.verdict == "opposite"
    assert [c.verdict for c in judged.contrasts] == ["shown", "shown", "opposite"]
    assert "astray" in judged.contrasts[-1].measure
    assert len(claims.count(simulated(count=shape(40, 10))).contrasts) == 2


def test_finding_3_needs_a_gap_to_speak_of_or_a_fall():
    flat = claims.gap(simulated(noise=0.1))
    assert (flat.verdict, flat.contrasts) == ("not tested", [])
    assert flat.note.startswith("no loss gap is clearly open at the end")
    falling = claims.gap(simulated(**RISE_AND_FALL))
    assert falling.verdict in ("absent", "undecided") and len(falling.contrasts) == 2
    without = followed(simulated(**RISE_AND_FALL).curves)
    assert claims.gap(without).note == "the losses are not known"


def test_what_lies_within_the_margin_is_absent():
    plain = simulated(samples=50, noise=0.02, power=shape(0.5, 0.505))
    assert claims.power(plain).verdict == "absent"
    even = simulated(samples=50, noise=0.02, **RISE_AND_FALL, mean_order=shape(2, 2.01))
    assert [claims.phase_1(even).verdict, claims.phase_2(even).verdict] == ["absent"] * 2


@pytest.mark.parametrize("rule", [claims.phase_1, claims.phase_2, claims.phase_3])
def test_without_a_peak_on_the_way_phases_are_not_tested(rule):
    rising = simulated(noise=0.1, power=shape(0.2, 0.8, [0.0, 0.2, 0.4, 0.6, 1.0]))
    judged = rule(rising)
    assert (judged.verdict, judged.contrasts) == ("not tested", [])
    of = " (for r = 1)" if rule is claims.phase_3 else ""
    assert judged.note == "H still rises at the last checkpoint: the first phase is not over" + of


def untrained(effects, shared=0.0):
    """A network before training, and a baseline that agrees on a share of it, else disagrees."""
    generator = torch.Generator().manual_seed(0)

    def interactions(effects):
        zero, size = torch.zeros(len(effects)).double(), effects.abs().sum(-1)
        return Interactions(effects, torch.zeros_like(effects), zero, size, zero, effects.sum(-1))

    same = torch.rand(effects.shape, generator=generator) < shared
    both = [interactions(x) for x in (effects, torch.where(same, effects, -effects))]
    return Dynamics([0], both[:1], both[1:], pd.DataFrame({"step": [0]}))


def drawn(strength, samples=30, signs=0.5, seed=0):
    """Effects of random size and sign, by order."""
    generator = torch.Generator().manual_seed(seed)
    shape = samples, 2 ** (len(strength) - 1)
    size = torch.tensor(strength)[interaction_order(len(strength) - 1)]
    sign = torch.where(torch.rand(shape, generator=generator) < signs, 1.0, -1.0)
    return (size * sign * torch.rand(shape, generator=generator)).double()


SPINDLE, EDGE = [0.0, 0.1, 1.0, 1.0, 1.0, 0.1, 0.1], [0.0, 9.0, 0.1, 0.1, 0.1, 0.1, 0.1]
JUDGED = [
    (claims.untrained_orders, (drawn(SPINDLE),), (drawn(EDGE),)),
    (claims.untrained_cancel, (drawn(SPINDLE),), (drawn(SPINDLE, signs=0.95),)),
    (claims.untrained_transfer, (drawn(SPINDLE), 0.2), (drawn(SPINDLE), 0.8)),
]


@pytest.mark.parametrize(("rule", "shown", "opposite"), JUDGED)
def test_the_untrained_network_is_judged_by_what_is_planted(rule, shown, opposite):
    assert rule(untrained(*shown)).verdict == "shown"
    assert rule(untrained(*opposite)).verdict == "opposite"
    assert rule(untrained(shown[0][:1])).verdict == "not tested"
    nothing = rule(untrained(torch.zeros(5, 64).double()))
    assert (nothing.verdict, nothing.samples) == ("not tested", 0)


def thirds_alike(generator):
    """Three effects in each third of the orders, all drawn alike."""
    effects, order = torch.zeros(12, 64).double(), interaction_order(6)
    for size in (1, 3, 5):
        (states,) = (order == size).nonzero(as_tuple=True)
        for row in effects:
            chosen = states[torch.randperm(len(states), generator=generator)[:3]]
            row[chosen] = 0.5 + torch.rand(3, generator=generator).double()
    return effects


def a_fifth_left(generator):
    """Two effects of either sign, of which between none and 0.4 is left, 0.2 on average."""
    left = 0.4 * torch.rand(12, generator=generator).double()
    return torch.stack([0 * left, 1 + left, left - 1, 0 * left], -1)


@pytest.mark.parametrize(
    ("rule", "draw"),
    [(claims.untrained_orders, thirds_alike), (claims.untrained_cancel, a_fifth_left)],
)
def test_at_the_bound_itself_alarms_are_rare(rule, draw):
    found = collections.Counter(
        rule(untrained(draw(torch.Generator().manual_seed(seed)))).verdict for seed in range(200)
    )
    assert found["shown"] + found["opposite"] <= 10 and not found["not tested"]


def test_at_one_half_alarms_of_h_are_rare():
    verdicts = collections.Counter(
        claims.untrained_transfer(simulated(seed, 12, 3)).verdict for seed in range(200)
    )
    assert verdicts["shown"] + verdicts["opposite"] <= 10


def test_three_variables_have_no_low_orders_to_compare_with():
    judged = claims.untrained_orders(untrained(drawn([0.0, 1.0, 1.0, 1.0])))
    assert (judged.verdict, judged.contrasts) == ("not tested", [])
    assert "fewer than 4 variables" in judged.note
