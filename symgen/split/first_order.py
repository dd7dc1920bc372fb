r"""The sparsest split for many variables, by operator splitting with exact symmetric projections.

A first-order method for the barrier problem that defines the central path,

.. math:: \min \sum_T \varphi_\mu(x_T) + \sum_S \psi_\mu(r_S)
          \quad\text{subject to}\quad Ax + r = w.

Here :math:`\varphi_\mu(x)` is the minimum of :math:`p - \mu\log p + q - \mu\log q` with x = p - q:
the absolute value of x with a barrier. The barrier
:math:`\psi_\mu(r) = -\mu\log(\epsilon - r) - \mu\log(\epsilon + r)` keeps r within the noise bound.

With costs of 1, the duals are y = A'u inside (-1, 1), with x = 2 mu y / (1 - y^2), and likewise for
r within its bounds. The interior-point method has the same solution at the same mu, so both choose
the same one of several optima. Over-relaxed Douglas-Rachford splitting alternates between the
barrier, a cubic equation in every entry, and the projection onto Ax + r = w. The metric of the
projection has weights that depend on the order alone, so `SymmetricBasis` solves it exactly in
O(2**(3n/2)). Every 20 iterations, Anderson's extrapolation is tried, and kept if it helps. Every 40
iterations mu decreases. Once it is low, the metric is scaled for every sample so that effects and
duals move equally far in it.

On outputs of a small network trained on CIFAR-10 (100 samples, noise 0.02), half of the samples
need at most 480 iterations to a gap of 1e-3 with n = 8, and nine in ten at most 800; 880 and 1,440
with n = 10. With a scale that is the same for all samples, 15 of 100 were left after 4,000
iterations with n = 10.
"""

import torch
from torch import Tensor

from symgen.split.few import without_dust
from symgen.split.program import CentralPath, Program
from symgen.split.symmetric import symmetric_basis
from symgen.transforms import interaction_order, moebius, superset_sum, zeta

RELAXATION = 1.6
ROUND = 20
MEMORY = 5
# First sum of all products if max(w) - min(w) = 1, its factor from one step to the next, and its
# last value as a share of tol.
START, DECREASE, SHARE = 6.0, 0.3, 0.3
# Largest change of `_Path.pace` in one step, its range, and the number of steps after which it
# changes half as fast. If it always changed as fast, some samples would never settle.
CHANGE, LEAST, MOST, SETTLE = 3.0, 0.05, 50.0, 20


def minimize(
    program: Program, tol: float, max_iter: int, keep: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return feasible effects and proven lower bounds; see `CentralPath.follow`.

    A step takes two rounds of 20 iterations.
    """
    effects = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    noisy = program.eps[:, 0] > 0
    for group, method in ((noisy, _Path), (~noisy, _ExactPath)):
        if group.any():
            effects[group], bound[group] = method(program[group]).follow(tol, max_iter, keep)
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


def _by_order(eps: Tensor, n: int) -> list[Tensor]:
    """Return the weights of AND effects, OR effects and residual by order, each (sample, n + 1).

    Noise takes over a part of high orders, so their effects are smaller. The numbers were chosen by
    measurement. They change the number of iterations, not the result.
    """
    order = torch.arange(n + 1, dtype=eps.dtype, device=eps.device)
    weight = (2.5 * eps).clamp(0.006, 0.06) * (0.25 + 0.45 / (1 + eps / 0.003)) ** order
    slack = [2.5 * eps * (order > 0)] if bool((eps > 0).any()) else []
    return [weight * (order > 0), weight * (order > 1), *slack]


class _Path(CentralPath):
    """The method on the equations A x + r = w, one per state.

    The middle axis of z, x and weight is: AND effects, OR effects, and with noise the residual.

    Attributes:
        z: iterate of the splitting.
        total: the sum of all products, which stands for mu.
        weight, inverse: the metric up to its scale, and the inverse of its system A W A'.
        pace: factor of the metric's scale that is adapted to the sample.
        steps: number of times that `pace` was adapted.
        x, dual: the barrier's point and the dual (A'u, u) of the last step.
    """

    def __init__(self, program: Program):
        super().__init__(program)
        by_order = _by_order(program.eps, program.n)
        order = interaction_order(program.n).to(program.w.device)
        self.weight = torch.stack(by_order, 1)[..., order]
        self.inverse = symmetric_basis(program.n, program.w.device).inverse(*by_order)
        self.z = torch.zeros_like(self.weight)
        self.count = program.pairs.sum((1, 2))
        self.total = torch.full_like(program.w[:, 0], START)
        self.pace, self.steps = torch.ones_like(self.total), torch.zeros_like(self.total)
        self.x, self.dual = torch.zeros_like(self.z), torch.zeros_like(self.z)
        self.aim = program.w

    def _outputs(self, x: Tensor) -> Tensor:
        return self.program.outputs(x)

    def _adjoint(self, u: Tensor) -> Tensor:
        return self.program.adjoint(u)

    def _dual(self, u: Tensor) -> Tensor:
        """Return (A'u, u), shaped like z."""
        return torch.cat([self._adjoint(u), u[:, None].expand_as(self.z[:, 2:])], 1)

    def _states(self, u: Tensor) -> Tensor:
        """Return the dual of the states for a u that belongs to the equations."""
        return u

    def _rest(self, x: Tensor, tol: float) -> Tensor:
        return self.program.excess(x, 1 - 0.1 * tol)

    def _inverse(self, rest: Tensor) -> Tensor:
        """Return the u that explains outputs of states."""
        return self.inverse(rest)

    def advance(self, tol: float) -> None:
        """Take one step at the present mu, keep what it certifies, and lower mu."""
        for _ in range(2):
            self._round()
        x, _, u = self._iterate(self.z)
        dual = self._dual(u)
        moved = self._norm(x - self.x).sqrt()
        dual_moved = (self.weight * (dual - self.dual) ** 2).sum((1, 2)).sqrt()
        self.x, self.dual = x, dual
        self._certify(x[:, :2], u, tol)
        scale, floor, total = self._scale(), SHARE * tol * self.objective, self.total
        self.total = torch.minimum(total, torch.maximum(DECREASE * total, floor))
        # As long as mu decreases as fast as it may, it decides how far they move.
        settled = self.total > DECREASE * total
        change = (moved / (scale * dual_moved)) ** (SETTLE / (SETTLE + self.steps) / 2)
        change = change.nan_to_num(1.0).clamp(1 / CHANGE, CHANGE).where(settled, 1.0)
        self.pace, self.steps = (self.pace * change).clamp(LEAST, MOST), self.steps + settled
        # The duals stay, so z follows the metric.
        self.z = x + (self._scale() / scale)[:, None, None] * (self.z - x)

    def _scale(self) -> Tensor:
        """Return the scale of the metric, shape (sample,).

        The weights of `_by_order` suit the end of the path, where mu is small. Earlier, mu is
        larger and the barrier flatter, so larger weights suit it.
        """
        return self.pace * (self.total / 0.02).clamp(min=1.0)

    def _solve(self, rest: Tensor) -> Tensor:
        return self.inverse(rest) / self._scale()[:, None]

    def _iterate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the barrier's point x, its reflection's projection minus x, and the dual u."""
        program = self.program
        weight = self._scale()[:, None, None] * self.weight
        double = 2 * (self.total / self.count)[:, None, None]
        effects, residual = z[:, :2], z[:, 2:]
        present = weight.where(weight > 0, 1.0)[:, :2] * program.cost
        x = effects - weight[:, :2] * program.cost * _root(effects, present, double / program.cost)
        eps = program.eps[:, None]
        r = eps * _root(residual, eps.expand_as(residual), double * weight[:, 2:] / eps)
        x = torch.cat([x, r], 1)
        q = 2 * x - z
        u = self._solve(self.aim - self._outputs(q) - q[:, 2:].sum(1))
        return x, q - x + weight * self._dual(u), u

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
        weight = self._scale()[:, None, None] * self.weight[:, :2]
        for _ in range(3):
            x = x + weight * self._adjoint(self._solve(self._rest(x, tol)))
        self.certify(x, self._states(u))

    def cleaned(self, tol: float) -> Tensor:
        """Return the best effects, with zeros off the support of the optimum."""
        return without_dust(
            self.program, self.best, self.low, self.dual[:, :2].abs() / self.program.cost, tol,
            self.weight[:, :2], self.weight[:, 2:].sum(1), self._inverse,
        )  # fmt: skip


class _ExactPath(_Path):
    """The method without noise, on the same equations after a Moebius transform.

    AND effects stand alone in them. An OR over T is a sum of ANDs: every nonempty subset of T with
    alternating signs. These equations have a far better condition, but with noise the states' own
    equations are needed.
    """

    def __init__(self, program: Program):
        super().__init__(program)
        self.aim = moebius(program.w)
        order = interaction_order(program.n).to(program.w.device)
        self.parity = (1.0 - 2.0 * (order % 2).to(program.w)).expand_as(program.w)
        self.sign = -self.parity * program.rows

    def _outputs(self, x: Tensor) -> Tensor:
        return x[:, 0] + self.sign * superset_sum(x[:, 1])

    def _adjoint(self, u: Tensor) -> Tensor:
        return torch.stack([u, zeta(self.sign * u)], 1) * self.program.columns

    def _states(self, u: Tensor) -> Tensor:
        return self.parity * superset_sum(self.parity * u)

    def _rest(self, x: Tensor, tol: float) -> Tensor:
        return self.aim - self._outputs(x)

    def _inverse(self, rest: Tensor) -> Tensor:
        return self._states(self.inverse(moebius(rest))) * self.program.rows
