"""The linear program of the sparsest AND-OR split, and the way of a method to its optimum."""

from collections.abc import Callable

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
        cost: costs of the effects, shape (sample, 2, state); 1 for the sparsest split.
        columns: which AND and OR effects may be nonzero, shape (2, state).
        rows: which states count, shape (state,).
        pairs: which products exist, shape (sample, 6, state).
    """

    def __init__(self, w: Tensor, eps: Tensor):
        self.n, self.w, self.eps = count_variables(w), w, eps[:, None]
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
        """Return A x, the sum of the effects on every state.

        The first two rows of x (sample, row, state) are effects, a third is the residual.
        """
        return and_or_outputs(x[:, :2])

    def adjoint(self, mu: Tensor) -> Tensor:
        """Return A' mu, shape (sample, 2, state)."""
        return and_or_adjoint(mu) * self.columns

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
            weight, slack: diagonals of the system A diag(weight) A' + diag(slack).
            solve: solves this system, exactly or approximately.
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


class CentralPath:
    """The best certified effects of a method, on its way to the optimum.

    A method adds `advance` and `cleaned`. Both take the relative gap that is aimed at.

    Attributes:
        program: the scaled programs; zero effects are not feasible in any of them.
        best: feasible effects, shape (sample, 2, state).
        objective: their cost, shape (sample,).
        low: proven lower bounds, shape (sample,).
    """

    def __init__(self, program: Program):
        self.program = program
        self.best = program.repaired(torch.zeros_like(program.w)[:, None].repeat(1, 2, 1))
        # Giving all to AND is feasible but does not count. If it is optimal, the method would stay
        # there, off the centre, and never look at the same given to OR.
        self.objective = torch.full_like(program.w[:, 0], torch.inf)
        self.low = torch.zeros_like(self.objective)

    def __getitem__(self, kept: Tensor) -> "CentralPath":
        part = object.__new__(type(self))
        part.__dict__.update({name: x[kept] for name, x in self.__dict__.items()})
        return part

    def advance(self, tol: float) -> None:
        """Take one step."""
        raise NotImplementedError

    def cleaned(self, tol: float) -> Tensor:
        """Return the best effects, with zeros off the support of the optimum."""
        raise NotImplementedError

    def gap(self) -> Tensor:
        """Return the certified relative distance of the objective from the optimum."""
        return (self.objective - self.low) / self.objective

    def certify(self, x: Tensor, mu: Tensor) -> None:
        """Keep the effects, made feasible, and the bound that mu proves, if they are better."""
        x = self.program.repaired(x)
        objective = self.program.objective(x)
        # All points of the optimal face are equal up to rounding, and later ones are more central.
        better = objective <= self.objective * (1 + 1e-9)
        self.best = torch.where(better[:, None, None], x, self.best)
        self.objective = torch.where(better, objective, self.objective)
        self.low = torch.maximum(self.low, self.program.bound(mu))

    def follow(self, tol: float, max_iter: int, keep: float | None = None) -> tuple[Tensor, Tensor]:
        """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

        Args:
            tol: relative gap at which a sample is finished.
            max_iter: largest number of steps.
            keep: relative gap that the removal of dust keeps, tol by default; 0 leaves the dust.
        """
        effects, bound = torch.zeros_like(self.best), torch.zeros_like(self.low)
        path, live = self, torch.arange(len(bound), device=bound.device)
        for step in range(max_iter):
            path.advance(tol)
            done = (path.gap() <= tol) | (step == max_iter - 1)
            if done.any():
                finished = path[done]
                bound[live[done]] = finished.low
                effects[live[done]] = finished.cleaned(tol if keep is None else keep)
                if done.all():
                    break
                live, path = live[~done], path[~done]
        return effects, bound
