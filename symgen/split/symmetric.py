r"""Exact and fast solutions of systems that treat all variables alike.

A matrix over the 2**n states that does not change under renumbering of the variables splits into
small blocks. The variables form two halves. The states of a half of k variables have an orthonormal
basis e(l, p, m). Here l = 0..k//2 numbers the kinds of symmetry, and p the copies of a kind. The
vector is nonzero on states of order m = l..k-l. It starts from a vector of order l whose
sums over supersets vanish, raised order by order. In the product of the two bases, a symmetric
matrix connects only vectors that agree in (l, p) of both halves, in the same way for every p. For
n = 14, 16 blocks of at most 64 x 64 replace a matrix of 16,384 x 16,384. Weights of states that
depend on their order alone stay diagonal.
"""

import dataclasses
import functools
import itertools
import math

import torch
from torch import Tensor

from symgen.transforms import interaction_order, moebius, zeta


def _half(k: int) -> tuple[Tensor, list[Tensor]]:
    """Return the basis of k variables, and the places of its columns per kind, (copy, order)."""
    states = torch.arange(2**k)
    order = interaction_order(k)
    inside = states[:, None] & states == states
    up = (inside & (order[:, None] == order + 1)).double()
    columns, places = [], []
    start = 0
    for kind in range(k // 2 + 1):
        here = order == kind
        # The null space of the sums over supersets: lowering from order `kind` gives nothing.
        values, lowest = torch.linalg.eigh((up @ up.T)[here][:, here])
        lowest = lowest[:, values < 0.5]
        vector = torch.zeros(2**k, lowest.shape[1], dtype=torch.float64)
        vector[here] = lowest
        raised = [vector]
        for m in range(kind, k - kind):
            vector = up @ vector / math.sqrt((m + 1 - kind) * (k - kind - m))
            raised.append(vector)
        part = torch.stack(raised, -1)
        columns.append(part.flatten(1))
        places.append(start + torch.arange(part[0].numel()).view(part[0].shape))
        start += part[0].numel()
    return torch.cat(columns, 1), places


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
        high, high_places = _half(n - n // 2)
        low, low_places = _half(n // 2)
        order = interaction_order(n)
        index = torch.arange(2**n).view(len(high), len(low))
        self.blocks: list[_Block] = []
        gather = []
        start = 0
        for above, below in itertools.product(high_places, low_places):
            place = index[above[:, :, None, None], below].transpose(1, 2)
            gather.append(place.flatten())
            # One copy is enough, because all have the same matrices.
            vectors = torch.kron(high[:, above[0]], low[:, below[0]])
            ands = zeta(vectors.T)
            # T meets S unless T lies inside the complement of S.
            ors = vectors.sum(0)[:, None] - ands.flip(1)
            orders = order[vectors.abs().argmax(0)]
            matrices = [(image @ vectors).T for image in (ands, ors, moebius(ors))]
            part = slice(start, start + place.numel())
            tensors = (x.to(device) for x in (orders, *matrices))
            self.blocks.append(_Block(part, len(above) * len(below), *tensors))
            start = part.stop
        self.high = high.to(device)
        self.low = low.to(device)
        self.gather = torch.cat(gather).to(device)
        self.scatter = self.gather.argsort()

    def inverse(self, and_: Tensor, or_: Tensor, slack: Tensor) -> "Inverse":
        """Return (A W A' + diag(slack))**-1 on the nonempty states.

        For samples without slack, it is that of the Moebius transforms of the outputs, which has a
        far better condition.

        Args:
            and_, or_: weights of the effects by order, each (sample, n + 1).
            slack: diagonal by order, (sample, n + 1).
        """
        exact = ~slack.any(1)[:, None, None]
        inverses = []
        for block in self.blocks:
            one = torch.eye(len(block.order)).to(block.and_)
            ands = and_[:, None, block.order]
            ors = or_[:, None, block.order]
            matrix = (block.and_ * ands) @ block.and_.T + (block.or_ * ors) @ block.or_.T
            matrix += one * slack[:, None, block.order]
            other = one * ands + (block.split * ors) @ block.split.T
            kept = block.order > 0
            matrix = torch.where(kept & kept[:, None], torch.where(exact, other, matrix), one)
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
