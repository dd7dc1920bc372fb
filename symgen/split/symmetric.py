r"""Exact and fast solutions of systems that treat all variables alike.

A matrix over the 2**n states that does not change under renumbering of the variables splits into
small blocks. The variables form two halves. The states of a half of k variables have an orthonormal
basis e(l, p, m): l = 0..k//2 numbers the kinds of symmetry, p the copies of a kind, and m = l..k-l
is the order of the states on which the vector is nonzero. It starts from a vector of order l whose
sums over supersets vanish, raised order by order. In the product of the two bases, a symmetric
matrix connects only vectors that agree in (l, p) of both halves, in the same way for every p. For
n = 14, 16 blocks of at most 64 x 64 replace a matrix of 16,384 x 16,384. Weights of states that
depend on their order alone stay diagonal.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from symgen.transforms import interaction_order, moebius, zeta


def _half(k: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return the basis of k variables, columns by (l, p, m), and copies and length per kind l."""
    order, states = interaction_order(k), torch.arange(2**k)
    up = torch.zeros(2**k, 2**k, dtype=torch.float64)
    for i in range(k):
        without = states[states >> i & 1 == 0]
        up[without | 1 << i, without] = 1
    columns, kinds = [], []
    for kind in range(k // 2 + 1):
        here, below = order == kind, order == kind - 1
        # The null space of the sums over supersets: lowering from order `kind` gives nothing.
        lowest = torch.linalg.svd(up[here][:, below].T, full_matrices=True).Vh[int(below.sum()) :]
        vector = torch.zeros(2**k, len(lowest), dtype=torch.float64)
        vector[here] = lowest.T
        raised = [vector]
        for m in range(kind, k - kind):
            vector = up @ vector / math.sqrt((m + 1 - kind) * (k - kind - m))
            raised.append(vector)
        columns.append(torch.stack(raised, -1).flatten(1))
        kinds.append((len(lowest), len(raised)))
    return torch.cat(columns, 1), kinds


@dataclasses.dataclass(frozen=True)
class _Block:
    """One pair of kinds, one kind per half of the variables.

    Attributes:
        part: place of its coefficients among all coefficients.
        copies: number of its copies; each has the same matrices.
        order: order of the states on which each of its basis vectors is nonzero, shape (size,).
        and_: AND matrix A in this basis, shape (size, size).
        or_: OR matrix A in this basis.
        split: OR matrix after a Moebius transform of the outputs, which turns the AND matrix into
            the identity.
    """

    part: slice
    copies: int
    order: Tensor
    and_: Tensor
    or_: Tensor
    split: Tensor


class SymmetricBasis:
    """The basis for n variables, and the AND and OR matrices within each of its blocks."""

    def __init__(self, n: int, device: torch.device | str = "cpu"):
        sizes = n - n // 2, n // 2
        bases, kinds = zip(*(_half(k) for k in sizes), strict=True)
        subset, inverse, mirror = (
            [self._within(*half, transform) for half in zip(bases, kinds, strict=True)]
            for transform in (zeta, moebius, lambda one: one.flip(0))
        )
        index = torch.arange(2**n).view(2 ** sizes[0], 2 ** sizes[1])
        self.blocks, gather, start = [], [], 0
        for high, (copies, length, at, one) in enumerate(self._ranges(kinds[0])):
            for low, (copies_, length_, at_, one_) in enumerate(self._ranges(kinds[1])):
                place = index[at, at_].view(copies, length, copies_, length_)
                gather.append(place.transpose(1, 2).flatten())
                below = torch.kron(subset[0][high], subset[1][low])
                complement = torch.kron(mirror[0][high], mirror[1][low])
                every = torch.kron(one, one_)
                # T meets S unless T lies inside the complement of S.
                meets = torch.outer(every, every) - complement @ below
                split = torch.kron(inverse[0][high], inverse[1][low]) @ meets
                order = torch.arange(length)[:, None] + torch.arange(length_) + high + low
                part = slice(start, start + len(gather[-1]))
                matrices = (x.to(device) for x in (order.flatten(), below, meets, split))
                self.blocks.append(_Block(part, copies * copies_, *matrices))
                start = part.stop
        self.high, self.low = (b.to(device) for b in bases)
        self.gather = torch.cat(gather).to(device)
        self.scatter = self.gather.argsort()

    @staticmethod
    def _ranges(kinds: list[tuple[int, int]]) -> Iterator[tuple[int, int, slice, Tensor]]:
        """Yield copies, length, columns, and the constant function's coefficients, per kind."""
        start = 0
        for kind, (copies, length) in enumerate(kinds):
            k = length - 1
            ones = [math.sqrt(math.comb(k, m)) if kind == 0 else 0.0 for m in range(length)]
            columns = slice(start, start + copies * length)
            yield copies, length, columns, torch.tensor(ones, dtype=torch.float64)
            start = columns.stop

    @staticmethod
    def _within(
        basis: Tensor, kinds: list[tuple[int, int]], transform: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Return the matrix of a transform within each kind."""
        matrix, start, parts = transform(torch.eye(len(basis)).double()).T, 0, []
        for copies, length in kinds:
            vectors = basis[:, start : start + length]
            parts.append(vectors.T @ matrix @ vectors)
            start += copies * length
        return parts

    def inverse(self, and_: Tensor, or_: Tensor, slack: Tensor | None = None) -> "Inverse":
        """Return (A W A' + diag(slack))**-1 on the nonempty states.

        Args:
            and_, or_: weights of the effects by order, each (sample, n + 1).
            slack: diagonal by order, (sample, n + 1). Without it, the system is that of the
                Moebius transforms of the outputs, which has a far better condition.
        """
        inverses = []
        for block in self.blocks:
            left = block.split if slack is None else block.or_
            matrix = (left * or_[:, None, block.order]) @ left.T
            if slack is None:
                matrix += torch.diag_embed(and_[:, block.order])
            else:
                matrix += (block.and_ * and_[:, None, block.order]) @ block.and_.T
                matrix += torch.diag_embed(slack[:, block.order])
            kept = (block.order > 0).to(matrix.dtype)
            matrix = matrix * kept * kept[:, None] + torch.diag(1 - kept)
            inverses.append(torch.cholesky_inverse(torch.linalg.cholesky(matrix)) * kept)
        return Inverse(self, inverses)


@dataclasses.dataclass(frozen=True)
class Inverse:
    """The inverse of a system, by its blocks (sample, row, column) in the symmetric basis."""

    basis: SymmetricBasis
    blocks: list[Tensor]

    def __getitem__(self, kept: Tensor) -> "Inverse":
        return Inverse(self.basis, [block[kept] for block in self.blocks])

    def __call__(self, values: Tensor) -> Tensor:
        """Return its product with values (sample, state)."""
        basis = self.basis
        grid = values.view(len(values), len(basis.high), len(basis.low))
        inside = (basis.high.T @ (grid @ basis.low)).flatten(1).index_select(1, basis.gather)
        outside = torch.empty_like(inside)
        for block, matrix in zip(basis.blocks, self.blocks, strict=True):
            part = inside[:, block.part].view(len(values), block.copies, -1)
            outside[:, block.part] = (part @ matrix.mT).flatten(1)
        grid = outside.index_select(1, basis.scatter).view_as(grid)
        return (basis.high @ (grid @ basis.low.T)).flatten(1)


@functools.lru_cache(maxsize=4)
def symmetric_basis(n: int, device: torch.device) -> SymmetricBasis:
    """Return the basis for n variables on a device, kept for the next call."""
    return SymmetricBasis(n, device)
