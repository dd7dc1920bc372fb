"""The linear program of the sparsest AND-OR split, and the way of a method to its optimum."""

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
# Corrections of rounding errors in a step.
CORRECTIONS = 2
# An effect is set to zero if its dual product stays this far from its cost. The wider margin, which
# keeps more effects, goes first: if it fails, the narrower one fails too.
MARGINS = (0.3, 0.05)
# Repairs aim at a noise bound smaller by this share of tol, so that they need not be exact.
INSIDE = 0.5
REPAIRS = 10


class Program:
    """The linear programs of a batch, scaled to max(w) - min(w) = 1.

    Each minimizes the sum of cost * abs(x). Its dual has the constraint abs(A'mu) <= cost.

    Six products of two positive values go to zero together in every state. They pair the positive
    parts of AND and OR effects with cost - A'mu, and the positive part of mu with eps - r, where r
    is the residual w - Ax. The negative parts pair with cost + A'mu and eps + r.

    Attributes:
        w: outputs minus v[0], shape (sample, state).
        eps: noise bound, shape (sample, 1).
        cost: costs of the effects, shape (sample, 2, state); 1 for the sparsest split.
        columns: which AND and OR effects may be nonzero, shape (2, state).
        rows: which states count, shape (state,).
        pairs: which products exist for AND effects, OR effects and mu, (sample, 3, state).
    """

    def __init__(self, w: Tensor, eps: Tensor, cost: Tensor | None = None):
        self.n = count_variables(w)
        self.w = w
        self.eps = eps
        self.cost = torch.ones_like(w)[:, None].expand(-1, 2, -1) if cost is None else cost
        order = interaction_order(self.n).to(w.device)
        self.columns = torch.stack([order > 0, order > 1])
        self.rows = order > 0
        effects = self.columns.expand(len(w), 2, -1)
        self.pairs = torch.cat([effects, ((eps > 0) & self.rows)[:, None]], 1)

    def __len__(self) -> int:
        return len(self.w)

    def __getitem__(self, kept: Tensor | slice) -> "Program":
        return Program(self.w[kept], self.eps[kept], self.cost[kept])

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


class CentralPath:
    """The best certified effects of a method, on its way to the optimum.

    A method adds `advance`, `product` and `solve`.

    Attributes:
        program: the scaled programs; zero effects are not feasible in any of them.
        best: feasible effects, shape (sample, 2, state).
        objective: their cost, shape (sample,).
        low: proven lower bounds, shape (sample,).
        weight: how easily effects change, shape (sample, 2 or more, state).
    """

    weight: Tensor

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
        """Take one step towards the relative gap tol."""
        raise NotImplementedError

    def product(self) -> Tensor:
        """Return abs(A'mu) / cost, which is 1 on the support of the optimum."""
        raise NotImplementedError

    def solve(self, rest: Tensor) -> Tensor:
        """Return u such that the effects weight * A'u nearly explain these outputs."""
        raise NotImplementedError

    def gap(self) -> Tensor:
        """Return the certified relative distance of the objective from the optimum."""
        return (self.objective - self.low) / self.objective

    def corrected(self, x: Tensor, share: float, times: int, kept: Tensor | float = 1.0) -> Tensor:
        """Return effects closer to a share of the noise bound, by changing the kept ones."""
        for _ in range(times):
            u = self.solve(self.program.excess(x, share))
            x = x + kept * self.weight[:, :2] * self.program.adjoint(u)
        return x

    def certify(self, x: Tensor, mu: Tensor, share: float = 1.0) -> None:
        """Keep the effects, made feasible, and the bound that mu proves, if they are better.

        Args:
            x: effects that match w up to a share of the noise bound, to first order.
            mu: dual of the states.
            share: this share.
        """
        x = self.program.repaired(self.corrected(x, share, CORRECTIONS))
        objective = self.program.objective(x)
        # All points of the optimal face are equal up to rounding, and later ones are more central.
        better = objective <= self.objective * (1 + 1e-9)
        self.best = x.where(better[:, None, None], self.best)
        self.objective = objective.where(better, self.objective)
        self.low = self.low.maximum(self.program.bound(mu))

    def cleaned(self, tol: float) -> Tensor:
        """Return the best effects without dust, if that keeps the certificate.

        Dust: tiny effects that an inner point leaves where the optimum has zeros. The other effects
        take over their outputs.

        Args:
            tol: relative gap to keep.
        """
        program = self.program
        allowed = torch.maximum(tol * self.objective, self.objective - self.low)
        product = self.product()
        cleaned = self.best
        live = torch.ones_like(self.low, dtype=torch.bool)
        for margin in MARGINS:
            support = (product > 1 - margin) & program.columns
            x = self.best * support
            live = live & (x != self.best).any(-1).any(-1)
            if not live.any():
                break
            x = self.corrected(x, 1 - min(INSIDE * tol, 0.1), REPAIRS, support)
            live = live & program.negligible(program.excess(x))
            live = live & (program.objective(x) - self.low <= allowed)
            cleaned = x.where(live[:, None, None], cleaned)
        return cleaned

    def follow(self, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
        """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

        Args:
            tol: relative gap at which a sample is finished.
            max_iter: largest number of steps.
        """
        effects = torch.zeros_like(self.best)
        bound = torch.zeros_like(self.low)
        path, live = self, torch.arange(len(bound), device=bound.device)
        for step in range(max_iter):
            path.advance(tol)
            done = (path.gap() <= tol) | (step == max_iter - 1)
            if done.any():
                finished = path[done]
                bound[live[done]] = finished.low
                effects[live[done]] = finished.cleaned(tol)
                if done.all():
                    break
                live, path = live[~done], path[~done]
        return effects, bound
