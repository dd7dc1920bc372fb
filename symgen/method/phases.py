"""The boundaries of the three phases, from averages over training."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from symgen.fingerprints import refusal


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phase boundaries of a training run (App. I); None where there is none.

    Attributes:
        t1: step at which H peaks, the end of the first phase.
        t2: first step after t1 at which non-generalizable strength grows, and faster.
        reason: in words, what was found and why a boundary may be missing.
    """

    t1: int | None
    t2: int | None
    reason: str

    def of(self, step: int) -> int | None:
        """Return the phase (1, 2 or 3) that a step lies in; None without t1."""
        if self.t1 is None:
            return None
        if step <= self.t1:
            return 1
        return 2 if self.t2 is None or step <= self.t2 else 3


@refusal
def _refuse_order(steps: Sequence[int]) -> None:
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"steps are {[*steps][:10]}; expected those of the checkpoints, ascending")


def phases(
    steps: Sequence[int],
    power: Sequence[float],
    strength_gen: Sequence[float],
    strength_non: Sequence[float],
    r: float = 1.0,
) -> Phases:
    """Return the phase boundaries t1 and t2 (App. I).

    t1 is the step at which H is largest. t2 is the first step after it at which, since the
    checkpoint before, non-generalizable strength grew, and generalizable strength by less than
    r times as much. No boundary is forced: without a rise of H there is no t1, and while H still
    rises at the end, the first phase is not over.

    Args:
        steps: of the checkpoints, ascending.
        power: H at each; NaN where there is none, which is passed over.
        strength_gen, strength_non: summed strength of salient generalizable and
            non-generalizable interactions at each.
        r: ratio of the two gains that ends the second phase, > 0 (the paper gives no value).

    Raises:
        ValueError: for quantities of other lengths, or steps that do not ascend.

    Example:
        >>> phases([0, 1, 2, 3], [0.2, 0.6, 0.5, 0.4], [1, 3, 5, 5], [4, 2, 3, 6])
        Phases(t1=1, t2=3, reason=...)
    """
    _refuse_order(steps)
    lengths = {len(steps), len(power), len(strength_gen), len(strength_non)}
    if len(lengths) != 1 or len(steps) < 2:
        raise ValueError(
            "phases needs one value of each quantity a checkpoint, for at least 2 checkpoints; "
            f"got lengths {len(steps)}, {len(power)}, {len(strength_gen)}, {len(strength_non)}"
        )
    if not r > 0:
        raise ValueError(f"r must be positive, got {r}")
    known = [i for i in range(len(steps)) if not math.isnan(power[i])]
    if not known:
        return Phases(None, None, "H is not defined at any checkpoint: no phase is seen")
    peak = max(known, key=lambda i: power[i])
    t1 = steps[peak]
    if peak == known[0]:
        return Phases(None, None, "H is largest before training: no first phase is seen")
    if peak == known[-1]:
        reason = "H still rises at the last checkpoint: the first phase is not over"
        return Phases(None, None, reason)
    for i in range(peak + 1, len(steps)):
        gain = strength_gen[i] - strength_gen[i - 1]
        loss = strength_non[i] - strength_non[i - 1]
        if loss > 0 and gain < r * loss:
            return Phases(
                t1,
                steps[i],
                f"H peaks at step {t1}; at step {steps[i]}, first after that, non-generalizable "
                f"strength grows faster than generalizable strength (ratio r = {r:g})",
            )
    return Phases(
        t1,
        None,
        f"H peaks at step {t1}; at no checkpoint after that does non-generalizable strength grow, "
        f"and faster than generalizable strength (ratio r = {r:g}), so no third phase is seen",
    )
