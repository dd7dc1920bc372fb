"""Means over repetitions, their intervals, and verdicts on claims about them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from torch import Tensor


class Interval(NamedTuple):
    """A mean with its 95 % interval; NaN if it does not exist.

    Example:
        >>> f"{Interval(0.25, 0.1, 0.4)}", f"{Interval(2.0, 1.5, 2.5):.1f}"
        ('0.25 [0.10, 0.40]', '2.0 [1.5, 2.5]')
    """

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if np.isnan(self.mean):
            return "not defined"
        if np.isnan(self.low):
            return f"{self.mean:{spec}}"
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def array(values: Any) -> np.ndarray:
    """Return numbers (tensor, table column, list) as a flat float64 array without NaN."""
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[~np.isnan(flat)]


def interval(values: Any) -> Interval:
    """Return the mean of independent values and its 95 % t interval; NaN values are left out.

    Args:
        values: one number per repetition: a tensor, a table column or a list. Give differences
            for a paired comparison.

    Returns:
        Equal values have an interval without width. A single value has no interval (NaN).

    Example:
        >>> f"{interval([0.1, 0.2, 0.3])}"
        '0.20 [-0.05, 0.45]'
    """
    known = array(values)
    mean = float(known.mean()) if len(known) else np.nan
    if len(known) < 2:
        return Interval(mean, np.nan, np.nan)
    error = stats.sem(known)
    if error <= 1e-12 * np.abs(known).max():  # equal except for rounding
        return Interval(mean, mean, mean)
    low, high = stats.t.interval(0.95, len(known) - 1, mean, error)
    return Interval(mean, float(low), float(high))


def mean_intervals(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Return mean, low and high of `interval` per group, in the order of the table.

    Args:
        table: one row per repetition.
        by: columns that make a group.
        value: column with the numbers.
    """
    groups = table.groupby(by, sort=False, dropna=False)[value]
    rows = [(*group, *interval(values)) for group, values in groups]
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high"])


@dataclasses.dataclass(frozen=True, eq=False)
class Contrast:
    """A number that a claim depends on.

    Attributes:
        label: what the number is, in words.
        values: one number per repetition; NaN is left out.
        side: 1 if the claim says "above the margin", -1 for "below minus the margin", 0 for a
            control, which has no verdict.
        margin: how small an effect counts as none, in the unit of the values. A negative margin
            states by how much a quantity may move against the claim.
        unit: unit of the values; empty for shares and counts.
    """

    label: str
    values: Any
    side: int
    margin: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", array(self.values))

    @property
    def interval(self) -> Interval:
        """The mean and its 95 % t interval."""
        return interval(self.values)

    @property
    def verdict(self) -> str:
        """See `judge`; empty for a control."""
        return judge(self.values, self.side, self.margin) if self.side else ""


Contrasts = list[Contrast]


def judge(values: Any, side: int, margin: float = 0.0) -> str:
    """Return the verdict on a claim about a mean, by its 95 % t interval.

    Args:
        values: one per repetition.
        side: 1 if the claim says "above the margin", -1 for "below minus the margin".
        margin: see `Contrast`.

    Returns:
        "holds" if the whole interval lies beyond the margin on the claimed side, "fails" if all of
        it lies short of the margin, else "open" (also for a single value).

    Example:
        >>> judge([0.1, 0.2, 0.3, 0.2], 1), judge([0.1, 0.2, 0.3, 0.2], -1), judge([0.1], 1)
        ('holds', 'fails', 'open')
    """
    _, low, high = interval(side * array(values))
    if low > margin:
        return "holds"
    return "fails" if high < margin else "open"


def verdict(contrasts: Sequence[Contrast]) -> str:
    """Return the verdict on a claim: it holds if all contrasts hold, and fails if any fails.

    Returns:
        "holds", "fails" or "open"; empty if all are controls.
    """
    verdicts = {c.verdict for c in contrasts if c.side}
    if "fails" in verdicts or not verdicts:
        return "fails" if verdicts else ""
    return "holds" if verdicts == {"holds"} else "open"


def control(label: str, values: Any, unit: str = "") -> Contrast:
    """Return a contrast without a verdict."""
    return Contrast(label, values, 0, unit=unit)


def without_verdict(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return the same numbers as controls, such as those of networks that learned nothing."""
    return [dataclasses.replace(one, side=0) for one in contrasts]
