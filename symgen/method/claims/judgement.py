"""Contrasts and judgements: from intervals to verdicts."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from symgen.method.statistics import Interval, bounded, interval

#: What can become of a claim: beyond the margin on the claimed side, or on the other; within the
#: margin; the interval too wide to say; no interval at all.
VERDICTS = ("shown", "opposite", "absent", "undecided", "not tested")


@dataclasses.dataclass(frozen=True)
class Contrast:
    """One number on which a claim hangs, and on which side of a bound the claim has it.

    Attributes:
        measure: what was measured, in words.
        value: it, with its 95 % interval.
        side: 1 where the claim says "above the bound", -1 for "below".
        bound: that the claim names.
        margin: a distance to the bound that counts as none, in the unit of the value.
        unit: of the value; "1" for none.
        within: the least and the most that the value can be, in its unit, where there are such.
        count: repetitions behind it, where these are fewer than behind others of the claim.
    """

    measure: str
    value: Interval
    side: int
    bound: float = 0.0
    margin: float = 0.0
    unit: str = "1"
    within: tuple[float, float] | None = None
    count: int | None = None

    @property
    def leads(self) -> bool:
        """Whether the mean lies where the claim has it, beyond the margin."""
        return self.side * (self.value.mean - self.bound) > self.margin

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        low, high = sorted(self.side * (end - self.bound) for end in self.value[1:])
        if math.isnan(low):
            return "not tested"
        if low > self.margin:
            return "shown"
        if high < -self.margin:
            return "opposite"
        return "absent" if -self.margin <= low and high <= self.margin else "undecided"

    @property
    def open(self) -> str:
        """What an undecided one may still be, where that is not everything; else empty."""
        if self.verdict != "undecided":
            return ""
        low, high = sorted(self.side * (end - self.bound) for end in self.value[1:])
        if high <= self.margin:
            return "absent or opposite"
        return "shown or absent" if low >= -self.margin else ""

    def decided_by(self, samples: int) -> int | None:
        """Return how many samples would decide, were the mean what it is; None where none would.

        Args:
            samples: behind the interval at hand, whose width shrinks with their square root.
        """
        if self.verdict != "undecided":
            return samples
        away = self.side * (self.value.mean - self.bound)
        distance = max(abs(away) - self.margin, self.margin - abs(away))
        if distance <= 0:
            return None
        half = max(self.value.high - self.value.mean, self.value.mean - self.value.low)
        return math.ceil(samples * (half / distance) ** 2)


def above(
    measure: str, value: Interval, bound: float = 0.0, margin: float = 0.0, **more: Any
) -> Contrast:
    """Return the contrast of a claim that something lies above a bound; see `Contrast`."""
    return Contrast(measure, value, 1, bound, margin, **more)


def below(
    measure: str, value: Interval, bound: float = 0.0, margin: float = 0.0, **more: Any
) -> Contrast:
    """Return the contrast of a claim that something lies below a bound; see `Contrast`."""
    return Contrast(measure, value, -1, bound, margin, **more)


def share(measure: str, values: Tensor, side: int, bound: float, margin: float = 0.0) -> Contrast:
    """Return the contrast of a claim about shares (sample,) of a whole; see `Contrast`."""
    value = interval(values, share=True)
    return Contrast(measure, value, side, bound, margin, within=(0.0, 1.0))


def lead(
    measure: str, values: Tensor, side: int = 1, margin: float = 0.02, most: float = 1.0
) -> Contrast:
    """Return the contrast of a claim about differences of shares; see `Contrast`.

    Args:
        measure, side, margin: see there; the bound is 0.
        values: (sample,).
        most: 1, or 2 for differences of such differences.
    """
    within = (-most, most)
    return Contrast(measure, bounded(values, *within), side, margin=margin, within=within)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What became of a claim in one setting.

    Attributes:
        contrasts: all of which the claim needs; none where it could not be tested.
        samples: how many of the unit are behind them.
        note: what a reader has to know besides, such as why nothing could be tested.
        unit: of repetition: "trainings", or "cells" of a map of them, or "samples" of one training,
            which say nothing of others.

    Example:
        >>> two = [above("a", Interval(0.5, 0.4, 0.6)), below("b", Interval(0.1, -0.2, 0.3))]
        >>> Judgement(two[:1], 20).verdict, Judgement(two, 20).verdict
        ('shown', 'undecided')
        >>> Judgement([above("a", Interval(-0.2, -0.4, -0.1), margin=0.2)], 20).open
        'absent or opposite'
    """

    contrasts: list[Contrast]
    samples: int
    note: str = ""
    unit: str = "samples"

    @property
    def verdict(self) -> str:
        """The verdict of all contrasts together, one of `VERDICTS`."""
        found = {contrast.verdict for contrast in self.contrasts} or {"not tested"}
        if found == {"shown"}:
            return "shown"
        return next(v for v in ("not tested", "opposite", "absent", "undecided") if v in found)

    @property
    def open(self) -> str:
        """What an undecided claim may still be; see `Contrast`."""
        if self.verdict != "undecided":
            return ""
        found = {contrast.open for contrast in self.contrasts if contrast.verdict == "undecided"}
        if "absent or opposite" in found:
            return "absent or opposite"
        return found.pop() if len(found) == 1 else ""

    @property
    def decided_by(self) -> int | None:
        """How many of the unit would decide the claim, were all means what they are; None where
        no number would.

        One contrast that ends as absent or opposite decides it; else it needs all of them.

        Example:
            >>> no = above("a", Interval(0.0, -0.25, 0.25), margin=0.125)
            >>> yes = above("b", Interval(0.25, -0.25, 0.75), margin=0.125)
            >>> Judgement([no, yes], 10).decided_by, Judgement([yes], 10).decided_by
            (40, 160)
        """
        needed = {one: one.decided_by(one.count or self.samples) for one in self.contrasts}
        against = [count for one, count in needed.items() if count and not one.leads]
        if against:
            return min(against)
        return None if None in needed.values() or not needed else max(needed.values())


class Repeated(list):
    """What a rule takes, once for every training or every cell of a map; see `judge`."""


def judge(rule: Callable[..., Judgement], case: Any) -> Judgement:
    """Return what a rule says of one setting.

    Args:
        rule: of a claim.
        case: what it takes, a tuple of several; or `Repeated`, where the rule is about samples of
            one training and there are several. Then each training counts as one number for each
            contrast, the mean over its samples, and intervals are over trainings. Where the rule is
            about trainings, the several are cells of a map of them. Contrasts that fewer than half
            of them, or fewer than two, have are left out.
    """
    trainings = case if isinstance(case, Repeated) else [case]
    judged = [rule(*one) if isinstance(one, tuple) else rule(one) for one in trainings]
    if len(judged) == 1:
        return judged[0]
    found: dict[tuple, list[Contrast]] = {}
    for each in judged:
        for one in each.contrasts:
            found.setdefault((one.measure, one.side, one.bound), []).append(one)
    tested = sum(bool(each.contrasts) for each in judged)
    contrasts = [
        dataclasses.replace(same[0], value=_together(same), count=len(same))
        for same in found.values()
        if len(same) >= max(2, tested / 2)
    ]
    unit = "cells" if judged[0].unit == "trainings" else "trainings"
    few = "too few of them can be tested alike" if tested else judged[0].note
    return Judgement(contrasts, tested, "" if contrasts else few, unit)


def _together(same: Sequence[Contrast]) -> Interval:
    means = torch.tensor([one.value.mean for one in same], dtype=torch.float64)
    return bounded(means, *same[0].within) if same[0].within else interval(means)


def verdicts(rule: Callable[..., Judgement], cases: Mapping[Any, Any]) -> pd.Series:
    """Return what a rule says in each of several settings, to see whether it hangs on them.

    Args:
        rule: of a claim.
        cases: setting (a name, a number, or several of them) to what `judge` takes.
    """
    return pd.Series({setting: judge(rule, case).verdict for setting, case in cases.items()})
