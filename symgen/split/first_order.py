r"""The sparsest split for many variables, by splitting with exact symmetric projections.

A first-order method for the barrier problem that defines the central path,

.. math:: \min \sum_T \varphi_\mu(x_T) + \sum_S \psi_\mu(r_S)
          \quad\text{subject to}\quad Ax + r = w,

whose duals are A'u inside (-1, 1), with x = 2 mu y / (1 - y^2) for y = A'u, and likewise for r
within its bounds. Its solution is the one the interior-point method has at the same mu, so ties
between optima are broken in the same way. Over-relaxed Douglas-Rachford splitting alternates
between the barrier, a cubic equation in every entry, and the projection onto Ax + r = w in a
metric whose weights depend on the order alone, which `SymmetricBasis` solves exactly in
O(2**(3n/2)). Every 20 iterations Anderson's extrapolation is tried and kept where it helps; then
mu goes down until the gap is met.

Measured on outputs of a small network (n = 10, noise 0.02 and 0): with the weights alike for all
orders, or with the bare l1 norm instead of its barrier, single samples need 2,000 iterations to a
gap of 1e-3; this needs 300 to 600, and its effects are within 6 % of the analytic centre, where
the bare splitting ends 25 to 40 % away, since the optimal faces of such outputs are large.
Conjugate gradients on the interior-point method's own systems took more than 50,000.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from symgen.split.linear_program import Program
from symgen.split.polish import sparser
from symgen.split.symmetric import symmetric_basis
from symgen.transforms import interaction_order, moebius, superset_sum, zeta

RELAXATION = 1.6
ROUND = 20
MEMORY = 5
# First sum of all products where max(w) - min(w) = 1, its factor from one step to the
# next, and the share of tol that it ends at.
START = 6.0
DECREASE = 0.3
SHARE = 0.3


def minimize(program: Program, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

    Args:
        program: the scaled programs; none of them explained by zero effects.
        tol: relative gap at which a sample is done.
        max_iter: steps, of two rounds of 20 iterations, after which to stop.
    """
    found = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    noisy = program.eps[:, 0] > 0
    for group, equations in ((noisy, _States), (~noisy, _Effects)):
        if group.any():
            part = program[group]
            found[group], bound[group] = _follow(_Path(part, equations(part)), tol, max_iter)
    return found, bound


def _follow(path: "_Path", tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return effects and bounds of all samples of a path, each followed as far as it takes."""
    found, bound = torch.zeros_like(path.best), torch.zeros_like(path.low)
    live = torch.arange(len(bound), device=bound.device)
    for step in range(max_iter):
        path.advance(tol)
        done = (path.gap() <= tol) | (step == max_iter - 1)
        if done.any():
            found[live[done]], bound[live[done]] = path[done].polished(tol)
            if done.all():
                break
            live, path = live[~done], path[~done]
    return found, bound


def _root(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the y in (-1, 1) with a y + b y / (1 - y^2) = z, the middle root of a cubic."""
    size = z.abs() / a
    third, square = (1 + b / a) / 3, size**2
    # The discriminant multiplied out, so that nothing cancels where the cubic has a small root.
    apart = third**3 + square * (third**2 / 3 - (third - 1) ** 2 / 4) + square**2 / 27
    angle = torch.atan2(apart.clamp(min=0).sqrt(), size * (third - 1 + 2 * square / 27) / 2)
    y = size / 3 + 2 * (third + square / 9).sqrt() * torch.cos((angle - 2 * torch.pi) / 3)
    return torch.copysign(y.clamp(0, 1), z)


_BY_SAMPLE = (
    "program", "equations", "weight", "z", "count", "total", "best", "objective", "low", "dual",
)  # fmt: skip


class _States:
    """The equations A x + r = w, one for every state."""

    def __init__(self, program: Program):
        self.program, self.aim = program, program.w

    def __getitem__(self, kept: Tensor) -> "_States":
        return _States(self.program[kept])

    def outputs(self, x: Tensor) -> Tensor:
        return self.program.outputs(x)

    def adjoint(self, u: Tensor) -> Tensor:
        return self.program.adjoint(u)

    def dual(self, u: Tensor) -> Tensor:
        """Return mu, which belongs to states, for a u that belongs to the equations."""
        return u

    def solver(self, solve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the solver of the states' system that belongs to one of these equations."""
        return solve

    def rest(self, x: Tensor, tol: float) -> Tensor:
        return self.program.excess(x, 1 - 0.1 * tol)


class _Effects(_States):
    """The same without r after a Moebius transform, where AND effects stand alone.

    An OR over T is, as a sum of ANDs, every nonempty subset of T with alternating signs. Only
    without noise are the states' own equations not needed, and these are far better conditioned.
    """

    def __init__(self, program: Program):
        self.program, self.aim = program, moebius(program.w)
        order = interaction_order(program.n).to(program.w.device)
        self.parity = 1.0 - 2.0 * (order % 2).to(program.w.dtype)
        self.sign = -self.parity * (order > 0)

    def __getitem__(self, kept: Tensor) -> "_Effects":
        return _Effects(self.program[kept])

    def outputs(self, x: Tensor) -> Tensor:
        return x[:, 0] + self.sign * superset_sum(x[:, 1])

    def adjoint(self, u: Tensor) -> Tensor:
        return torch.stack([u, zeta(self.sign * u)], 1) * self.program.columns

    def dual(self, u: Tensor) -> Tensor:
        return self.parity * superset_sum(self.parity * u)

    def solver(self, solve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda rest: self.dual(solve(moebius(rest))) * self.program.rows

    def rest(self, x: Tensor, tol: float) -> Tensor:
        return self.aim - self.outputs(x)


def _by_order(eps: Tensor, n: int) -> list[Tensor]:
    """Return the weights of effects by order (sample, n + 1), AND and OR, and of the residual.

    Noise takes up what high orders would have to explain, so that they stay smaller. The
    numbers were found by measurement and change how many iterations it takes, not the result.
    """
    order = torch.arange(n + 1, dtype=eps.dtype, device=eps.device)
    weight = (2.5 * eps).clamp(0.006, 0.06) * (0.25 + 0.45 / (1 + eps / 0.003)) ** order
    slack = [2.5 * eps * (order > 0)] if bool((eps > 0).any()) else []
    return [weight * (order > 0), weight * (order > 1), *slack]


class _Path:
    """Where the method stands: z of the splitting, mu, and the best certified so far.

    The middle axis of z, x and weight is: AND effects, OR effects, and with noise residual.
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
        # All given to AND, which is feasible but does not count: where it is optimal it would
        # stay, off the centre, while the same given to OR is never looked at.
        self.objective = torch.full_like(program.w[:, 0], torch.inf)
        self.low = torch.zeros_like(self.objective)
        self.dual = torch.zeros_like(self.best)

    def __getitem__(self, kept: Tensor) -> "_Path":
        part = object.__new__(_Path)
        part.__dict__.update(self.__dict__)
        for name in _BY_SAMPLE:
            setattr(part, name, getattr(self, name)[kept])
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
        """Return the barrier's point x, its reflection's projection less x, and the dual u."""
        program = self.program
        program.go_on()
        weight = _factor(self.total)[:, None, None] * self.weight
        double = 2 * (self.total / self.count)[:, None, None]
        effects, residual = z[:, :2], z[:, 2:]
        present = weight.where(weight > 0, 1.0)[:, :2]
        x = effects - weight[:, :2] * _root(effects, present, double.expand_as(effects))
        eps = program.eps[:, None]
        r = eps * _root(residual, eps.expand_as(residual), double * weight[:, 2:] / eps)
        x = torch.cat([x, r], 1)
        q = 2 * x - z
        u = self._solve(self.equations.aim - self.equations.outputs(q) - q[:, 2:].sum(1))
        pull = torch.cat([self.equations.adjoint(u), u[:, None].expand_as(residual)], 1)
        return x, q - x + weight * pull, u

    def _round(self) -> None:
        """Iterate, then try where the last differences point to, and go there if it is better."""
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
        """Anderson's extrapolation: where the moves, seen as linear, would cancel."""
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
        objective = x.abs().sum((1, 2))
        # Within the optimal face all are as good but for rounding, and later is more central.
        better = objective <= self.objective * (1 + 1e-9)
        self.best = torch.where(better[:, None, None], x, self.best)
        self.objective = torch.where(better, objective, self.objective)

    def polished(self, tol: float) -> tuple[Tensor, Tensor]:
        """Return the best effects, with those the dual keeps off the support set to zero."""
        slack = self.weight[:, 2:].sum(1)
        return sparser(
            self.program,
            self.best,
            self.low,
            self.dual.abs(),
            tol,
            self.weight[:, :2],
            slack,
            self.equations.solver(functools.partial(self.basis.apply, self.inverse)),
        ), self.low


def _factor(total: Tensor) -> Tensor:
    """Return by how much the metric is larger at this sum of products than at the end."""
    return (total / 0.02).clamp(min=1.0)
