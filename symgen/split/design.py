"""Rows and columns of the program of sampled states: masked states, and sets of few variables."""

from itertools import combinations
from math import comb

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symgen.split.sparsify import MAX_VARIABLES as EXACT_LAST

# More would not fit into the 63 bits of a state.
MAX_VARIABLES = 62
# Orders are allowed, up to the fourth, while there are no more columns than this; each step takes
# about (sampled states)^2 times as many multiplications.
HIGHEST, COLUMNS = 4, 40_000


def draw_states(n: int, count: int, seed: int = 0) -> Int[Tensor, " count"]:
    """Draw different masked states at random, each as likely; of all, all come.

    The fully masked and the unmasked one are always the first two, and the first states are the
    same whatever the count.

    Args:
        n: variables, 1 to 62.
        count: states, 2 to 2**n.
        seed: of the draw.

    Example:
        >>> draw_states(20, 4).tolist()[:2]
        [0, 1048575]
    """
    if not 1 <= n <= MAX_VARIABLES or not 2 <= count <= 2**n:
        raise ValueError(
            f"{count} states of n = {n} variables: expected 2 to 2^n states, and n of 1 to "
            f"{MAX_VARIABLES}"
        )
    rng, drawn = np.random.default_rng(seed), {0: None, 2**n - 1: None}
    if n <= EXACT_LAST:
        drawn |= dict.fromkeys(rng.permutation(2**n).tolist())
    while len(drawn) < count:
        drawn |= dict.fromkeys(rng.integers(2**n, size=2 * count).tolist())
    return torch.tensor([*drawn][:count])


def candidates(
    n: int, max_order: int | None = None
) -> tuple[Int[Tensor, " candidate"], Bool[Tensor, " candidate"]]:
    """Return the sets of up to `max_order` variables, and which of them stand for an OR.

    An OR of one variable is an AND of it, and is not among them.

    Args:
        n: variables.
        max_order: by default as many as give at most 40,000 candidates, up to four.

    Example:
        >>> index, is_or = candidates(3, 2)
        >>> index.tolist(), int(is_or.sum())
        ([1, 2, 4, 3, 5, 6, 3, 5, 6], 3)
    """
    if max_order is None:
        sizes = np.cumsum([2 * comb(n, k) for k in range(1, HIGHEST + 1)]) - n
        max_order = max(1, int((sizes <= COLUMNS).sum()))
    if max_order < 1:
        raise ValueError(f"max_order = {max_order}: expected 1 or more")
    sets = [
        sum(1 << i for i in some)
        for k in range(1, min(max_order, n) + 1)
        for some in combinations(range(n), k)
    ]
    both = torch.tensor(sets + sets[n:])
    return both, torch.arange(len(both)) >= len(sets)


def design(
    states: Int[Tensor, " state"],
    index: Int[Tensor, " candidate"],
    is_or: Bool[Tensor, " candidate"],
) -> Float[Tensor, "state candidate"]:
    """Return A: 1 where an AND has all its variables in a state, or an OR any."""
    present = states[:, None] & index
    return torch.where(is_or, present != 0, present == index).double()
