"""What interactions refuse, and what is said of them: nothing here changes a number of theirs."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from symgen.fingerprints import refusal, same_numbers


@same_numbers
def in_one_line(kind: type) -> type:
    """Have interactions print what they are of, in place of all their numbers."""

    def told(self) -> str:
        gap = max(self.gap.flatten().tolist(), default=0.0)
        parts = [f"{self.bias.numel()} sample(s)", f"n = {self.n}", f"gap <= {gap:.1e}"]
        if "held_out" in vars(self) and not (errors := self.errors.nanmean()).isnan():
            parts.append(f"{errors:.1%} of the variance on held-out states unexplained")
        return f"<{kind.__name__}: {', '.join(parts)}>"

    kind.__repr__ = told
    return kind


@same_numbers
def equal_by_content(kind: type) -> type:
    """Have interactions be equal where all they hold is, NaN included, names and identity too."""

    def equal(self: Any, other: object) -> Any:
        if not isinstance(other, kind):
            return NotImplemented
        mine, others = (
            {k: x.cpu().numpy() if isinstance(x, Tensor) else x for k, x in vars(given).items()}
            for given in (self, other)
        )
        number = [k for k, x in mine.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        return mine.keys() == others.keys() and all(
            np.array_equal(x, others[k], equal_nan=k in number) if isinstance(x, np.ndarray)
            else x == others[k] for k, x in mine.items()
        )  # fmt: skip

    kind.__eq__, kind.__hash__ = equal, None
    return kind


@same_numbers
def known_as_relabelled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have interactions with other labels tell so, since their names are no slip then."""

    @functools.wraps(method)
    def relabelled(self: Any, labels: Sequence[int]) -> Any:
        found = method(self, labels)
        object.__setattr__(found, "relabelled_by", [*labels])
        return found

    return relabelled


@refusal
def refuse_other_shapes(inter: Any) -> None:
    for name in ("objective", "gap", "full"):
        if (shape := tuple(getattr(inter, name).shape)) != tuple(inter.bias.shape):
            raise ValueError(
                f"{name} must have the shape of bias, {tuple(inter.bias.shape)}, a number for each "
                f"sample; got {shape}"
            )
    refuse_other_names(inter.names, (*inter.bias.shape, inter.n))


@refusal
def refuse_other_names(names: Any, shape: tuple[int, ...]) -> None:
    """Refuse names that are neither one for each variable nor such a list for each sample.

    Args:
        names: of the variables, or None.
        shape: of the samples and, last, n.

    Raises:
        ValueError: with both shapes.
    """
    if names is None:
        return
    try:
        found = np.shape(names if isinstance(names, np.ndarray) else list(names))
    except ValueError:  # lists of several lengths
        found = tuple(len(x) for x in names)
    if found not in (shape[-1:], shape):
        raise ValueError(
            f"names are of shape {found}; expected a list of {shape[-1]} names, or one for each "
            f"sample: {shape}"
        )


@refusal
def refuse_inner_ellipsis(index: Any) -> None:
    # It would stand for another number of axes in effects, which have one more, than in biases.
    if isinstance(index, tuple) and any(x is Ellipsis for x in index[:-1]):
        raise IndexError(
            "an index of samples has no ... before others; write s[:, 0] for s[..., 0]"
        )


@refusal
def refuse_sampled(path: str | os.PathLike, found: str | None) -> None:
    if found and found.startswith("symgen.sampled_interactions"):
        raise ValueError(
            f"{path} holds interactions of a sample of the masked states; read them with "
            "SampledInteractions.load of symgen.split.sampled"
        )
