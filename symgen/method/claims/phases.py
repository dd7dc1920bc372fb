"""Rules about training: the three findings, the untrained network, and what each phase learns.

Each takes what was followed of one training, whose samples are the repetitions then, or of several
trainings of one study, which are the repetitions then: samples of one training say nothing of
another.
"""

import functools
import math
from collections.abc import Callable

from torch import Tensor

from symgen.method.claims.judgement import Contrast, Judgement, above, below, lead, share
from symgen.method.dynamics import THIRDS, Curves
from symgen.method.statistics import interval

# Differences up to these count as none: of shares, counts (over their mean), orders, losses (nats)
# and strengths (log odds).
SHARE, COUNT, ORDER, NATS, ODDS = 0.02, 0.05, 0.05, 0.02, 0.05


def count(dynamics: Curves) -> Judgement:
    """Finding 1: N falls from the untrained network to its lowest point on the way, then rises.

    On the way means at a checkpoint between the first and the last. The lowest point is picked on
    one half of the repetitions and measured on the other, both ways round. Changes are told as
    shares of the mean N over all checkpoints; those up to 0.05 count as none. Where N has clearly
    risen before it falls, that counts against the claim.
    """
    scale = float(dynamics.curves["count"].mean()) or 1.0
    told = functools.partial(_share_of_mean, scale)
    return _there_and_back(dynamics, "count", -1, ("N", "lowest"), told)


def power(dynamics: Curves) -> Judgement:
    """Finding 2: H rises from the untrained network to its peak on the way, then falls.

    On the way means at a checkpoint between the first and the last. The peak is picked on one half
    of the repetitions and measured on the other, both ways round. Changes up to 0.02 count as none.
    Where H has clearly fallen before it rises, that counts against the claim.
    """
    told = functools.partial(lead, margin=SHARE)
    return _there_and_back(dynamics, "power", 1, ("H", "largest"), told)


def power_above_chance(dynamics: Curves) -> Judgement:
    """Above its chance level, H rises from the untrained network to its peak on the way, and falls.

    The chance level is H with the variables of the baselines relabelled at random; it falls where
    interactions become more, or of higher order. Measured and judged as finding 2; changes up to
    0.02 count as none.
    """
    told = functools.partial(lead, margin=SHARE, most=2.0)
    return _there_and_back(dynamics, "lift", 1, ("H above chance", "largest"), told)


def gap(dynamics: Curves) -> Judgement:
    """Finding 3: from the peak of H on the way to the end, H falls and the loss gap widens.

    H is measured as for finding 2, so that this fall is the one there. The gap is the mean loss on
    test samples less that on training samples (at most 500 of each in a single training; in
    several, those that each was evaluated on); it is compared between the peak of the mean H and
    the end. Where it is negative at the peak, as wrong training labels make it, it is compared with
    0. Falls up to 0.02 and changes up to 0.02 nats count as none. Where at the
    end no gap above 0.02 nats is clearly open, the claim is tested only if H clearly falls.
    """
    _, fall, _ = dynamics.turn("power", 1)
    samples, peak = _known(fall), _extreme(dynamics, "power", 1, slice(1, -1))
    end = dynamics.gap(dynamics.steps[-1])
    if peak is None or math.isnan(end.mean):
        return _judged(dynamics, [], samples, _missing(dynamics, "H"))
    falls = lead("H, from where it is largest on the way to the end", fall, -1, SHARE)
    if not end.low > NATS and falls.verdict != "shown":
        return _judged(
            dynamics, [], samples, f"no loss gap is clearly open at the end: {end:+.2f} nats"
        )
    closed = dynamics.gap(peak).mean < 0
    change = dynamics.gap(dynamics.steps[-1], since=None if closed else peak)
    widens = above("loss gap, from there to the end", change, margin=NATS, unit="nats")
    note = f"The mean H on the way is largest at step {peak}; the gap ends at {end:+.2f} nats."
    return _judged(dynamics, [falls, widens], samples, note)


def untrained_orders(dynamics: Curves) -> Judgement:
    """Before training, orders from n/3 to 2n/3 hold more salient strength than those below do.

    And more than those above do. Both are compared one by one, as shares of the strength.
    Leads up to 0.02 count as none. Nothing is tested with n < 4, where no order lies below n/3.
    """
    low, middle, high = (dynamics.curves[name][:, 0] for name in THIRDS)
    if dynamics.n < 4:
        note = "with fewer than 4 variables no order lies below n/3"
        return _judged(dynamics, [], len(middle), note)
    leads = {"below": middle - low, "above": middle - high}
    return _judged(
        dynamics,
        [
            lead(f"untrained: share of middle orders less that {k}", x, margin=SHARE)
            for k, x in leads.items()
        ],
        _known(middle),
    )


def untrained_cancel(dynamics: Curves) -> Judgement:
    """Before training, less than 0.2 of a sample's salient strength is left when signs cancel.

    That is the size of the sum of its effects over the sum of their sizes. Distances up to 0.02
    count as none.
    """
    left = dynamics.curves["uncancelled"][:, 0]
    little = share("untrained: share of strength that is left", left, -1, 0.2, SHARE)
    note = f"{1 - little.value.mean:.0%} cancels; the paper names no bound, 0.2 is ours."
    return _judged(dynamics, [little], _known(left), note * bool(_known(left)))


def untrained_transfer(dynamics: Curves) -> Judgement:
    """Before training, H is below one half. Distances up to 0.02 count as none."""
    start = dynamics.curves["power"][:, 0]
    return _judged(dynamics, [share("untrained: H", start, -1, 0.5, SHARE)], _known(start))


def untrained_baseline(dynamics: Curves) -> Judgement:
    """At the end of training, H is larger than with untrained baseline networks in their place.

    These have the architecture and the masking in common with the target, and nothing it learned.
    Differences up to 0.02 count as none.
    """
    return _null(dynamics, "untrained", "untrained baselines")


def other_class(dynamics: Curves) -> Judgement:
    """At the end of training, H is larger than where the baselines are asked about another class.

    Their output is that of the class after the true one then, on the same samples and masks.
    Differences up to 0.02 count as none.
    """
    return _null(dynamics, "other_class", "baselines asked about another class")


def _null(dynamics: Curves, name: str, words: str) -> Judgement:
    if name not in dynamics.curves:
        return _judged(dynamics, [], len(dynamics), f"no H with {words} was measured")
    ahead = dynamics.curves["power"][:, -1] - dynamics.curves[name][:, -1]
    measure = f"H less H with {words}, last checkpoint"
    return _judged(dynamics, [lead(measure, ahead, margin=SHARE)], _known(ahead))


def phase_1(dynamics: Curves) -> Judgement:
    """The mean order of salient interactions falls from the untrained network to the peak of H.

    Orders are weighted by strength. The peak is picked between the first and the last checkpoint on
    one half of the repetitions, and the change is measured on the other, both ways round. Changes
    up to 0.05 count as none. Nothing is tested where the mean H has no peak on the way.
    """
    change, _, _ = dynamics.turn("mean_order", 1, by="power")
    moved = below("mean order, untrained to the peak of H", interval(change), margin=ORDER)
    return _around_peak(dynamics, moved, _known(change))


def phase_2(dynamics: Curves) -> Judgement:
    """The mean order of salient interactions rises from the peak of H to the end.

    Orders are weighted by strength. The peak is picked between the first and the last checkpoint on
    one half of the repetitions, and the change is measured on the other, both ways round. Changes
    up to 0.05 count as none. Nothing is tested where the mean H has no peak on the way.
    """
    _, change, _ = dynamics.turn("mean_order", 1, by="power")
    moved = above("mean order, peak of H to the end", interval(change), margin=ORDER)
    return _around_peak(dynamics, moved, _known(change))


def phase_3(dynamics: Curves) -> Judgement:
    """From t2 to the end non-generalizable strength grows, and by more than generalizable strength.

    The boundary t2 (for r = 1) is picked on one half of the repetitions and the changes are
    measured on the other, both ways round. Changes up to 0.05 log odds count as none. Nothing is
    tested where the averages over all of them have no t2 before the last checkpoint.
    """
    found = dynamics.phases()
    if found.t2 is None or found.t2 == dynamics.steps[-1]:
        return _judged(dynamics, [], len(dynamics), f"{found.reason} (for r = 1)")
    grown, other = map(dynamics.since_t2, ("non_generalizable", "generalizable"))
    contrasts = [
        above(measure, interval(change), margin=ODDS, unit="log odds")
        for measure, change in (
            ("non-generalizable strength, t2 to the end", grown),
            ("the same less generalizable strength", grown - other),
        )
    ]
    return _judged(dynamics, contrasts, _known(grown), f"On average, t2 is {found.t2}.")


def _share_of_mean(scale: float, measure: str, values: Tensor, side: int) -> Contrast:
    return Contrast(measure, interval(values / scale), side, margin=COUNT, unit="of mean N")


def _there_and_back(
    dynamics: Curves,
    name: str,
    side: int,
    words: tuple[str, str],
    told: Callable[[str, Tensor, int], Contrast],
) -> Judgement:
    """Judge that a quantity moves to an extreme (1: largest, -1: lowest) first, and then back."""
    symbol, most = words
    to, after, astray = dynamics.turn(name, side)
    at, samples = _extreme(dynamics, name, side), _known(to)
    if at is None or len(dynamics.steps) < 3:
        return _judged(dynamics, [], samples, _missing(dynamics, symbol))
    contrasts = [
        told(f"{symbol}, untrained to where it is {most} on the way", to, side),
        told(f"{symbol}, from there to the end", after, -side),
    ]
    detour = told(f"{symbol}, untrained to farthest astray before that", astray, side)
    contrasts += [detour] * (detour.verdict == "opposite")
    note = f"The mean {symbol} is {most} at step {at}; halves of the {dynamics.unit} may differ."
    return _judged(dynamics, contrasts, samples, note)


def _around_peak(dynamics: Curves, moved: Contrast, samples: int) -> Judgement:
    found = dynamics.phases()
    if found.t1 is None:
        return _judged(dynamics, [], samples, found.reason)
    return _judged(dynamics, [moved], samples, f"On average, t1 is {found.t1}.")


def _extreme(
    dynamics: Curves, name: str, side: int, among: slice = slice(None)
) -> int | None:  # fmt: skip
    """Return the step at which the mean over all samples is largest (1) or lowest (-1)."""
    means = side * dynamics.curves[name].nanmean(0)[among]
    if means.isnan().all():
        return None
    return dynamics.steps[among][int(means.nan_to_num(nan=-math.inf).argmax())]


def _missing(dynamics: Curves, symbol: str) -> str:
    if len(dynamics.steps) < 3:
        return "no checkpoint lies between the first and the last"
    if dynamics.curves["power"].isnan().all():
        return f"{symbol} is not defined at any checkpoint"
    return "the losses are not known"


def _known(values: Tensor) -> int:
    return int((~values.isnan()).sum())


def _judged(
    dynamics: Curves, contrasts: list[Contrast], count: int, note: str = ""
) -> Judgement:  # fmt: skip
    return Judgement(contrasts, count, note, dynamics.unit)
