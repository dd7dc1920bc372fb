"""How the rows of a data set are divided into disjoint parts with equal classes (App. E.1, N)."""

import numpy as np
import torch

from symgen.data.parts import Part
from symgen.data.rows import Rows
from symgen.literal import nearest

SPLITS = ("halves", "test", "thirds", "parts:K")


def part_names(split: str) -> tuple[list[str], int]:
    """Return the names of the trained parts, and how many of them share the training set."""
    if split == "halves":
        return ["target", "baseline"], 2
    if split == "test":
        return ["target", "baseline"], 1
    if split == "thirds":
        return ["A", "B", "C"], 3
    kind, _, number = split.partition(":")
    if kind == "parts" and number.isdigit() and int(number) >= 1:
        return ["target", *(f"baseline{k}" for k in range(1, int(number) + 1))], int(number) + 1
    raise ValueError(
        f'split="{split}" is unknown; expected one of {", ".join(SPLITS)} with a number for '
        f"K.{nearest(split, SPLITS)}"
    )


def aliases(names: list[str]) -> dict[str, str]:
    """Return the further names under which parts go, so that "target" and "baseline" exist."""
    if names[0] == "A":
        return {"target": "A", "baseline": "B"}
    return {} if names[1] == "baseline" else {"baseline": "baseline1"}


def choose_classes(rows: Rows, wanted: int | list | None, name: str) -> tuple[list[int], list[str]]:
    """Return the indices and names of the classes that are kept."""
    known = rows.classes
    if wanted is None:
        # A subset of a data set may name classes of which it holds no sample.
        kept = [int(c) for c in np.unique(rows.labels[rows.labels >= 0])]
    elif isinstance(wanted, int):
        if not 2 <= wanted <= len(known):
            raise ValueError(
                f'classes={wanted}: "{name}" has {len(known)} classes; ask for 2 to {len(known)}'
            )
        kept = list(range(wanted))
    else:
        for c in wanted:
            if c not in known and not (isinstance(c, int) and 0 <= c < len(known)):
                raise ValueError(
                    f'"{name}" has no class {c!r}; it has {", ".join(known)}.{nearest(c, known)}'
                )
        kept = sorted({known.index(c) if c in known else c for c in wanted})
    if len(kept) < 2:
        raise ValueError(f'"{name}": a classification needs at least 2 classes, got {len(kept)}')
    return kept, [known[c] for c in kept]


def deal(
    rows: Rows, kept: list[int], count: int, size: int | None, seed: int, what: str
) -> list[np.ndarray]:
    """Deal row numbers into `count` disjoint parts with the same number of rows of each class."""
    generator = np.random.default_rng([seed, 7])
    piles = [generator.permutation(np.flatnonzero(rows.labels == c)) for c in range(max(kept) + 1)]
    piles = [piles[c] for c in kept]
    available = np.array([len(pile) // count for pile in piles])
    quota = available
    if size is not None:
        if not 1 <= size <= available.sum():
            raise ValueError(
                f"{size} samples in each of {count} part(s) were asked for, but the {what} has "
                f"{sum(map(len, piles))}, which gives at most {available.sum()} in each"
            )
        # Shares as in the whole set; what rounding leaves goes to the largest remainders.
        exact = size * available / available.sum()
        quota = np.floor(exact).astype(int)
        quota[np.argsort(quota - exact, kind="stable")[: size - quota.sum()]] += 1
    empty = [rows.classes[c] for c, q in zip(kept, quota, strict=True) if q == 0]
    if empty:
        raise ValueError(
            f"no sample is left of class {', '.join(empty[:5])} in the {what} when it is divided "
            f"into {count} part(s) of {int(quota.sum())} samples; use more samples or fewer classes"
        )
    parts = [
        np.concatenate([pile[k::count][:q] for pile, q in zip(piles, quota, strict=True)])
        for k in range(count)
    ]
    return [generator.permutation(part) for part in parts]


def add_noise(part: Part, share: float, classes: int, seed: int, k: int) -> None:
    """Replace a share of the labels, each by another class drawn at random."""
    generator = np.random.default_rng([seed, 13, k])
    count = round(share * len(part))
    chosen = generator.permutation(len(part))[:count]
    step = torch.from_numpy(generator.integers(1, classes, size=count))
    part.labels = part.labels.clone()
    part.labels[chosen] = (part.labels[chosen] + step) % classes
