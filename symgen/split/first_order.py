r"""The sparsest split for many variables, by operator splitting with exact symmetric projections.

A first-order method for the barrier problem that defines the central path,

.. math:: \min \sum_T \varphi_\mu(x_T) + \sum_S \psi_\mu(r_S)
          \quad\text{subject to}\quad Ax + r = w,

With costs of 1, its duals are y = A'u inside (-1, 1), with x = 2 mu y / (1 - y^2), and likewise for
r within its bounds. The interior-point method has the same solution at the same mu, so both choose
the same one of several optima. Over-relaxed Douglas-Rachford splitting alternates between the
barrier, a cubic equation in every entry, and the projection onto Ax + r = w. The metric of the
projection has weights that depend on the order alone, so `SymmetricBasis` solves it exactly in
O(2**(3n/2)). Every 20 iterations, Anderson's extrapolation is tried, and kept if it helps. Then mu
decreases, until the gap is reached.

Measured on outputs of a small network (n = 10, noise 0.02 and 0), single samples need 300 to 600
iterations to a gap of 1e-3, and 2,000 with equal weights or without the barrier.
"""

import functools

import torch
from torch import Tensor

from symgen.split.few import without_dust
from symgen.split.program import Program
from symgen.split.symmetric import symmetric_basis
from symgen.transforms import interaction_order, moebius, superset_sum, zeta

RELAXATION = 1.6
ROUND = 20
MEMORY = 5
# First sum of all products if max(w) - min(w) = 1, its factor from one step to the next, and its
# last value as a share of tol.
START, DECREASE, SHARE = 6.0, 0.3, 0.3


def minimize(
    program: Program, tol: float, max_iter: int, keep: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

    Args:
        program: the scaled programs; zero effects are not feasible in any of them.
        tol: relative gap at which a sample is finished.
        max_iter: largest number of steps, each of two rounds of 20 iterations.
        keep: relative gap that the removal of dust keeps, tol by default; 0 leaves the dust.
    """
    keep = tol if keep is None else keep
    effects = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    noisy = program.eps[:, 0] > 0
    for group, equations in ((noisy, _States), (~noisy, _Effects)):
        if not group.any():
            continue
        live = group.nonzero().squeeze(-1)
        path = _Path(program[live], equations(program[live]))
        for step in range(max_iter):
            path.advance(tol)
            done = (path.gap() <= tol) | (step == max_iter - 1)
            if done.any():
                effects[live[done]], bound[live[done]] = path[done].cleaned(keep)
                if done.all():
                    break
                live, path = live[~done], path[~done]
    return effects, bound


def _root(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the y in (-1, 1) with a y + b y / (1 - y^2) = z, the middle root of a cubic."""
    size = z.abs() / a
    third, square = (1 + b / a) / 3, size**2
    # The discriminant multiplied out, so that nothing cancels if the cubic has a small root.
    apart = third**3 + square * (third**2 / 3 - (third - 1) ** 2 / 4) + square**2 / 27
    angle = torch.atan2(apart.clamp(min=0).sqrt(), size * (third - 1 + 2 * square / 27) / 2)
    y = size / 3 + 2 * (third + square / 9).sqrt() * torch.cos((angle - 2 * torch.pi) / 3)
    return torch.copysign(y.clamp(0, 1), z)


class _States:
    """The equations A x + r = w, one per state."""

    def __init__(self, program: Program):
        self.program, self.aim = program, program.w

    def __getitem__(self, kept: Tensor) -> "_States":
        return type(self)(self.program[kept])

    def outputs(self, x: Tensor) -> Tensor:
        return self.program.outputs(x)

    def adjoint(self, u: Tensor) -> Tensor:
        return self.program.adjoint(u)

    def dual(self, u: Tensor) -> Tensor:
        """Return mu, which belongs to states, for a u that belongs to the equations."""
        return u

    def rest(self, x: Tensor, tol: float) -> Tensor:
        return self.program.excess(x, 1 - 0.1 * tol)


class _Effects(_States):
    """The same equations without r after a Moebius transform, in which AND effects stand alone.

    An OR over T is a sum of ANDs: every nonempty subset of T with alternating signs. These
    equations have a far better condition, but with noise the states' own equations are needed.
    """

    def __init__(self, program: Program):
        self.program, self.aim = program, moebius(program.w)
        order = interaction_order(program.n).to(program.w.device)
        self.parity = 1.0 - 2.0 * (order % 2).to(program.w.dtype)
        self.sign = -self.parity * (order > 0)

    def outputs(self, x: Tensor) -> Tensor:
        return x[:, 0] + self.sign * superset_sum(x[:, 1])

    def adjoint(self, u: Tensor) -> Tensor:
        return torch.stack([u, zeta(self.sign * u)], 1) * self.program.columns

    def dual(self, u: Tensor) -> Tensor:
        return self.parity * superset_sum(self.parity * u)

    def rest(self, x: Tensor, tol: float) -> Tensor:
        return self.aim - self.outputs(x)


def _by_order(eps: Tensor, n: int) -> list[Tensor]:
    """Return the weights of AND effects, OR effects and residual by order, each (sample, n + 1).

    Noise takes over a part of high orders, so their effects are smaller. The numbers were chosen by
    measurement. They change the number of iterations, not the result.
    """
    order = torch.arange(n + 1, dtype=eps.dtype, device=eps.device)
    weight = (2.5 * eps).clamp(0.006, 0.06) * (0.25 + 0.45 / (1 + eps / 0.003)) ** order
    slack = [2.5 * eps * (order > 0)] if bool((eps > 0).any()) else []
    return [weight * (order > 0), weight * (order > 1), *slack]


class _Path:
    """The state of the method: z of the splitting, mu, and the best certified effects.

    The middle axis of z, x and weight is: AND effects, OR effects, and with noise the residual.
    """

    def __init__(self, program: Program, equations: _States):
        self.program, self.equations = program, equations
        self.basis = symmetric_basis(program.n, program.w.device)
        by_order = _by_order(program.eps, program.n)
        order = interaction_order(program.n).to(program.w.device)
        self.weight = torch.stack(by_order, 1)[..., order]
        self.inverse = self.basis.inverse(*by_order)
        self.z = torch.zeros_like(self.weight)
        self.count = program.pairs.sum((1, 2))
        self.total = torch.full_like(program.w[:, 0], START)
        self.best = program.repaired(self.z[:, :2])
        # Giving all to AND is feasible but does not count. If it is optimal, the method would stay
        # there, off the centre, and never look at the same given to OR.
        self.objective = torch.full_like(program.w[:, 0], torch.inf)
        self.low = torch.zeros_like(self.objective)
        self.dual = torch.zeros_like(self.best)

    def __getitem__(self, kept: Tensor) -> "_Path":
        part = object.__new__(_Path)
        whole = ("basis", "inverse")
        part.__dict__.update({k: x if k in whole else x[kept] for k, x in self.__dict__.items()})
        part.inverse = [block[kept] for block in self.inverse]
        return part

    def gap(self) -> Tensor:
        return (self.objective - self.low) / self.objective

    def advance(self, tol: float) -> None:
        """Take one step at the present mu, keep what it certifies, and lower mu."""
        for _ in range(2):
            self._round()
        x, _, u = self._iterate(self.z)
        self._certify(x[:, :2], u, tol)
        floor = SHARE * tol * self.objective
        ahead = torch.minimum(self.total, torch.maximum(DECREASE * self.total, floor))
        # The duals stay, so z follows the metric.
        change = (_factor(ahead) / _factor(self.total))[:, None, None]
        self.z = x + change * (self.z - x)
        self.total = ahead

    def _solve(self, rest: Tensor) -> Tensor:
        return self.basis.apply(self.inverse, rest) / _factor(self.total)[:, None]

    def _iterate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the barrier's point x, its reflection's projection minus x, and the dual u."""
        program = self.program
        weight = _factor(self.total)[:, None, None] * self.weight
        double = 2 * (self.total / self.count)[:, None, None]
        effects, residual = z[:, :2], z[:, 2:]
        present = weight.where(weight > 0, 1.0)[:, :2] * program.cost
        x = effects - weight[:, :2] * program.cost * _root(effects, present, double / program.cost)
        eps = program.eps[:, None]
        r = eps * _root(residual, eps.expand_as(residual), double * weight[:, 2:] / eps)
        x = torch.cat([x, r], 1)
        q = 2 * x - z
        u = self._solve(self.equations.aim - self.equations.outputs(q) - q[:, 2:].sum(1))
        pull = torch.cat([self.equations.adjoint(u), u[:, None].expand_as(residual)], 1)
        return x, q - x + weight * pull, u

    def _round(self) -> None:
        """Iterate, then go to the extrapolation of the last differences if it is better."""
        points, moves = [], []
        for i in range(ROUND):
            _, move, _ = self._iterate(self.z)
            if i >= ROUND - MEMORY - 1:
                points.append(self.z)
                moves.append(move)
            self.z = self.z + RELAXATION * move
        ahead = self._extrapolated(torch.stack(points, 1), torch.stack(moves, 1))
        here = self._norm(self._iterate(self.z)[1])
        better = self._norm(self._iterate(ahead)[1]) < here
        self.z = torch.where(better[:, None, None], ahead, self.z)

    def _norm(self, move: Tensor) -> Tensor:
        return (move**2 / self.weight.where(self.weight > 0, 1.0)).sum((1, 2))

    def _extrapolated(self, points: Tensor, moves: Tensor) -> Tensor:
        """Anderson's extrapolation: the point at which the moves, taken as linear, cancel."""
        root = self.weight.where(self.weight > 0, 1.0).sqrt()[:, None]
        change, last = moves.diff(dim=1), moves[:, -1]
        scaled = (change / root).flatten(2)
        gram = scaled @ scaled.mT
        trace = gram.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
        gram += (1e-8 * trace + torch.finfo(gram.dtype).tiny) * torch.eye(MEMORY).to(gram)
        share = torch.linalg.solve(gram, scaled @ (last[:, None] / root).flatten(2).mT)
        back = (share[..., None] * (points.diff(dim=1) + RELAXATION * change)).sum(1)
        return points[:, -1] + RELAXATION * last - back

    def _certify(self, x: Tensor, u: Tensor, tol: float) -> None:
        program, equations = self.program, self.equations
        self.dual = equations.adjoint(u)
        self.low = torch.maximum(self.low, program.bound(equations.dual(u)))
        weight = _factor(self.total)[:, None, None] * self.weight[:, :2]
        for _ in range(3):
            x = x + weight * equations.adjoint(self._solve(equations.rest(x, tol)))
        x = program.repaired(x)
        objective = program.objective(x)
        # All points of the optimal face are equal up to rounding, and later ones are more central.
        better = objective <= self.objective * (1 + 1e-9)
        self.best = torch.where(better[:, None, None], x, self.best)
        self.objective = torch.where(better, objective, self.objective)

    def cleaned(self, tol: float) -> tuple[Tensor, Tensor]:
        """Return the best effects, with zeros off the support of the optimum, and their bounds."""
        solve, equations = functools.partial(self.basis.apply, self.inverse), self.equations
        if isinstance(equations, _Effects):
            states = solve
            solve = lambda rest: equations.dual(states(moebius(rest))) * self.program.rows  # noqa: E731
        return without_dust(
            self.program, self.best, self.low, self.dual.abs() / self.program.cost, tol,
            self.weight[:, :2], self.weight[:, 2:].sum(1), solve,
        ), self.low  # fmt: skip


def _factor(total: Tensor) -> Tensor:
    """Return by how much the metric is larger at this sum of products than at the end."""
    return (total / 0.02).clamp(min=1.0)
