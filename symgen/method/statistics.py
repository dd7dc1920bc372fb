"""Means over repetitions and their intervals."""

from typing import Any, NamedTuple

import numpy as np
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
