"""The linear program of the sparsest AND-OR split: its products, repairs and lower bounds."""

import threading
from collections.abc import Callable
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

# Tolerated excess over the noise bound, times (1e-3 + eps), if max(w) - min(w) = 1.
EXACT = 1e-7
# Conjugate gradient steps of `Program.explained`.
ITERATIONS = 20


class Program:
    """The linear programs of a batch, scaled to max(w) - min(w) = 1.

    Each minimizes the sum of cost * abs(x). Its dual has the constraint abs(A'mu) <= cost.

    Six products of a positive primal and a positive dual value go to zero together in every state.
    They pair the positive parts of AND and OR effects with cost - A'mu, their negative parts with
    cost + A'mu, and the two distances of the residual r to its bounds with the two parts of mu.

    Attributes:
        w: outputs minus v[0], shape (sample, state).
        eps: noise bound, shape (sample, 1).
        cost: of effects, shape (sample, 2, state); 1 for the sparsest split.
        columns: which AND and OR effects may be nonzero, shape (2, state).
        rows: which states count, shape (state,).
        pairs: which products exist, shape (sample, 6, state).
        stop: set from another thread to end the work on this program.
    """

    def __init__(self, w: Tensor, eps: Tensor, stop: threading.Event | None = None):
        self.n, self.stop = count_variables(w), stop
        self.w, self.eps = w, eps[:, None]
        order = interaction_order(self.n).to(w.device)
        self.columns = torch.stack([order > 0, order > 1])
        self.rows = order > 0
        self.cost = torch.ones_like(w)[:, None].expand(-1, 2, -1)
        noisy = (self.eps > 0) & self.rows
        self.pairs = torch.cat(
            [self.columns.repeat(2, 1).expand(len(w), 4, -1), noisy[:, None].expand(-1, 2, -1)], 1
        )

    def __len__(self) -> int:
        return len(self.w)

    def __getitem__(self, kept: Tensor) -> "Program":
        part = object.__new__(Program)
        part.__dict__.update(self.__dict__)
        for name in ("w", "eps", "cost", "pairs"):
            setattr(part, name, getattr(self, name)[kept])
        return part

    def weighted(self, cost: Tensor) -> "Program":
        """Return the same programs with other costs."""
        other = object.__new__(Program)
        other.__dict__.update(self.__dict__ | {"cost": cost})
        return other

    def outputs(self, x: Tensor) -> Tensor:
        """Return A x, the sum of the effects (sample, 2, state) on every state."""
        return and_or_outputs(x[:, 0], x[:, 1])

    def adjoint(self, mu: Tensor) -> Tensor:
        """Return A' mu, shape (sample, 2, state).

        Raises:
            CancelledError: after `stop` was set. Every iteration of every method comes here.
        """
        if self.stop is not None and self.stop.is_set():
            raise CancelledError
        return torch.stack(and_or_adjoint(mu), 1) * self.columns

    def objective(self, x: Tensor) -> Tensor:
        """Return the total cost of effects, shape (sample,)."""
        return (self.cost * x.abs()).sum((1, 2))

    def excess(self, x: Tensor, share: float = 1.0) -> Tensor:
        """Return by how much w - Ax leaves this share of the noise bound, on nonempty states."""
        residual = self.w - self.outputs(x)
        eps = share * self.eps
        return (residual - residual.clamp(-eps, eps)) * self.rows

    def repaired(self, x: Tensor) -> Tensor:
        """Return x made feasible by giving the excess to AND, which can represent anything."""
        extra = moebius(self.excess(x))
        return torch.stack([x[:, 0] + extra, x[:, 1]], 1)

    def negligible(self, rest: Tensor) -> Tensor:
        """Return whether a part of the outputs is no larger than rounding, shape (sample,)."""
        return rest.abs().amax(-1) <= EXACT * (1e-3 + self.eps[:, 0])

    def bound(self, mu: Tensor) -> Tensor:
        """Return the lower bound that mu proves, after scaling it into the feasible set."""
        mu = mu * self.rows
        reach = (self.adjoint(mu).abs() / self.cost).amax((1, 2)).clamp(min=1.0)
        return ((mu * self.w).sum(-1) - (self.eps * mu.abs()).sum(-1)) / reach

    def explained(
        self, rest: Tensor, weight: Tensor, slack: Tensor, solve: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return effects that explain `rest`, by preconditioned conjugate gradients.

        Args:
            rest: outputs, shape (sample, state).
            weight, slack: of the system A diag(weight) A' + diag(slack).
            solve: its solution, or an approximation to it.
        """
        tiny = torch.finfo(rest.dtype).tiny
        u = torch.zeros_like(rest)
        toward = ahead = solve(rest)
        size = (rest * ahead).sum(-1, keepdim=True)
        for _ in range(ITERATIONS):
            # A finished sample must not move with the others.
            toward = toward * ~self.negligible(rest)[:, None]
            if not toward.any():
                break
            image = (self.outputs(weight * self.adjoint(toward)) + slack * toward) * self.rows
            length = size / (image * toward).sum(-1, keepdim=True).clamp(min=tiny)
            u, rest = u + length * toward, rest - length * image
            ahead = solve(rest)
            size, before = (rest * ahead).sum(-1, keepdim=True), size
            toward = ahead + size / before.clamp(min=tiny) * toward
        return weight * self.adjoint(u)
