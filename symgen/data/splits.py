"""The rows of a data set, and how they are divided into parts (App. E.1, N)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from symgen.names import unknown
from symgen.storage import fingerprint

SPLITS = ("halves", "test", "thirds", "parts:K")
Indices = Sequence[int] | np.ndarray | Tensor


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one split, in one form for every source.

    Attributes:
        kind: ``"image"`` or ``"text"``.
        labels: (row,) class indices, -1 if unknown.
        classes: names of the classes.
        take: function from row numbers to raw inputs: encoded bytes, uint8 arrays (height, width,
            channel), strings, or pairs of strings.
        boxes: (row, 4) bounding boxes in pixels, or None.
    """

    kind: str
    labels: np.ndarray
    classes: list[str]
    take: Callable[[Any], list]
    boxes: np.ndarray | None = None


class Part:
    """Inputs and their labels: the samples that one network is trained or tested on.

    Each kind of data defines the methods that raise `NotImplementedError` here.

    Attributes:
        labels: (sample,) int64 class indices, as the networks are trained on them.
        chunk: number of samples that are evaluated at once.
    """

    chunk = 250

    def __init__(self, labels: Int[Tensor, "sample"]):
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return inputs of some samples as the network takes them, and labels."""
        raise NotImplementedError

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Return the same, augmented at random."""
        raise NotImplementedError

    def show(self, i: int) -> Any:
        """Return sample i for display."""
        raise NotImplementedError

    def _content(self) -> list:
        """Return what decides the fingerprint."""
        raise NotImplementedError

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content: inputs, labels and preprocessing."""
        return fingerprint([self.labels, self._content()])


def part_names(split: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of the trained parts, and further names that stand for some of them."""
    if split in ("halves", "test"):
        return ["target", "baseline"], {}
    if split == "thirds":
        return ["A", "B", "C"], {"target": "A", "baseline": "B"}
    kind, _, number = split.partition(":")
    if kind == "parts" and number.isdigit() and int(number) >= 1:
        baselines = [f"baseline{k + 1}" for k in range(int(number))]
        return ["target", *baselines], {"baseline": "baseline1"}
    raise unknown("split", split, SPLITS)


def deal(
    rows: Rows, kept: list[int], count: int, size: int | None, seed: int, origin: str
) -> list[np.ndarray]:
    """Deal row numbers into `count` disjoint parts with the same number of rows per class.

    Args:
        rows: rows of one split.
        kept: class indices.
        count: number of parts.
        size: samples per part; None takes all.
        seed: seed of the draw.
        origin: source of the rows, for messages.
    """
    generator = np.random.default_rng([seed, 7])
    piles = [generator.permutation(np.flatnonzero(rows.labels == c)) for c in kept]
    available = np.array([len(pile) // count for pile in piles])
    quota = available
    if size is not None:
        if not 1 <= size <= available.sum():
            raise ValueError(
                f"{count} part(s) of {size} samples each: the {origin} has "
                f"{sum(map(len, piles))} samples, which gives at most {available.sum()} per part"
            )
        # Shares as in the whole set. The rest after rounding goes to the largest remainders.
        exact = size * available / available.sum()
        quota = np.floor(exact).astype(int)
        quota[np.argsort(quota - exact, kind="stable")[: size - quota.sum()]] += 1
    if not quota.all():
        raise ValueError(
            f"no sample of class {kept[quota.argmin()]} remains if the {origin} is divided into "
            f"{count} part(s) of {int(quota.sum())} samples; use more samples or fewer classes"
        )
    parts = []
    for k in range(count):
        chosen = [pile[k::count][:q] for pile, q in zip(piles, quota, strict=True)]
        parts.append(generator.permutation(np.concatenate(chosen)))
    return parts


def with_noise(labels: Tensor, share: float, classes: int, seed: int, k: int) -> Tensor:
    """Return the labels of part number k, a share of them replaced by another class at random."""
    generator = np.random.default_rng([seed, 13, k])
    count = round(share * len(labels))
    chosen = generator.permutation(len(labels))[:count]
    step = torch.from_numpy(generator.integers(1, classes, size=count))
    labels = labels.clone()
    labels[chosen] = (labels[chosen] + step) % classes
    return labels
