"""A row of the table, and how it is timed."""

import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(function: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Return the shortest wall time of some calls, and the last result."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times), result


def in_turn(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int
) -> tuple[float, float]:
    """Return the median wall times of two functions, taken in turn on the same machine."""
    times = torch.tensor([[seconds(f)[0] for f in (first, second)] for _ in range(repeats)])
    return tuple(times.median(0).values.tolist())


def row(what: str, against: str, ours: float, theirs: float, unit: str, note: str = "") -> dict:
    """Return one comparison; `ratio` is theirs / ours."""
    ratio = theirs / ours if ours else float("nan")
    return {"what": what, "against": against, "ours": ours, "theirs": theirs, "unit": unit,
            "ratio": ratio, "note": note}  # fmt: skip
