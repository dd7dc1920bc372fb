"""The linear program of the sparsest AND-OR split: its products, repairs and lower bounds."""

import threading
from concurrent.futures import CancelledError

import torch
from torch import Tensor

from symgen.transforms import (
    and_or_adjoint,
    and_or_outputs,
    count_variables,
    interaction_order,
    moebius,
)

# Tolerated excess over the noise bound, times (1e-3 + eps), where max(w) - min(w) = 1.
EXACT = 1e-7


class Program:
    """The linear programs of a batch, scaled to max(w) - min(w) = 1.

    Six products of a positive primal and a positive dual value go to zero together, for every
    state: the positive parts of AND and OR effects with 1 - A'mu, their negative parts with
    1 + A'mu, and the two distances of the residual r to its bounds with the two parts of mu.

    Attributes:
        w: outputs less v[0], shape (sample, state).
        eps: noise bound, shape (sample, 1).
        columns: which AND and OR effects there are, shape (2, state).
        rows: which states count, shape (state,).
        pairs: which products there are, shape (sample, 6, state).
        stop: set from another thread to end the work on this program.
    """

    def __init__(self, w: Tensor, eps: Tensor, stop: threading.Event | None = None):
        self.n, self.stop = count_variables(w), stop
        self.w, self.eps = w, eps[:, None]
        order = interaction_order(self.n).to(w.device)
        self.columns = torch.stack([order > 0, order > 1])
        self.rows = order > 0
        noisy = (self.eps > 0) & self.rows
        self.pairs = torch.cat(
            [self.columns.repeat(2, 1).expand(len(w), 4, -1), noisy[:, None].expand(-1, 2, -1)], 1
        )

    def __len__(self) -> int:
        return len(self.w)

    def __getitem__(self, kept: Tensor) -> "Program":
        part = object.__new__(Program)
        part.__dict__.update(self.__dict__)
        part.w, part.eps, part.pairs = self.w[kept], self.eps[kept], self.pairs[kept]
        return part

    def go_on(self) -> None:
        """Raise where the work is to end; every iteration of every method calls this."""
        if self.stop is not None and self.stop.is_set():
            raise CancelledError

    def outputs(self, x: Tensor) -> Tensor:
        """Return A x, what the effects (sample, 2, state) add up to on every state."""
        return and_or_outputs(x[:, 0], x[:, 1])

    def adjoint(self, mu: Tensor) -> Tensor:
        """Return A' mu, shape (sample, 2, state)."""
        self.go_on()
        return torch.stack(and_or_adjoint(mu), 1) * self.columns

    def excess(self, x: Tensor, share: float = 1.0) -> Tensor:
        """Return by how much w - Ax leaves this share of the noise bound, on nonempty states."""
        residual = self.w - self.outputs(x)
        eps = share * self.eps
        return (residual - residual.clamp(-eps, eps)) * self.rows

    def repaired(self, x: Tensor) -> Tensor:
        """Return x made feasible by giving the excess to AND, which can represent anything."""
        extra = moebius(self.excess(x))
        return torch.stack([x[:, 0] + extra, x[:, 1]], 1)

    def feasible(self, x: Tensor) -> Tensor:
        """Return whether nothing but rounding leaves the noise bound, shape (sample,)."""
        return self.negligible(self.excess(x))

    def negligible(self, rest: Tensor) -> Tensor:
        """Return whether a part of the outputs is no larger than rounding, shape (sample,)."""
        return rest.abs().amax(-1) <= EXACT * (1e-3 + self.eps[:, 0])

    def bound(self, mu: Tensor) -> Tensor:
        """Return the lower bound that mu proves, after scaling it into the feasible set."""
        mu = mu * self.rows
        reach = self.adjoint(mu).abs().amax((1, 2)).clamp(min=1.0)
        return ((mu * self.w).sum(-1) - (self.eps * mu.abs()).sum(-1)) / reach
