r"""The sparsest split by an interior-point method with dense systems, for few variables.

Mehrotra's primal-dual predictor-corrector with Gondzio's centrality correctors. Every dual
iterate is feasible and every primal iterate is made feasible, so each step has its own certificate.

Each step solves one system (A D A' + E) u = r with diagonal D and E. Its matrix needs no matrix
product. For the AND columns (Z) and the OR columns (Y),

.. math:: (Z\,\mathrm{diag}(a)Z^\top)_{SR} = f_{S \cap R}, \qquad
          (Y\,\mathrm{diag}(b)Y^\top)_{SR} = g_N - g_{\bar S} - g_{\bar R} + g_{\overline{S \cup R}}

with f and g the zeta transforms of a and b.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from symgen.split.few import without_dust
from symgen.split.program import Program
from symgen.split.symmetric import symmetric_basis
from symgen.transforms import zeta

# First value of every complementarity product, if max(w) - min(w) = 1.
START = 0.01
CORRECTORS = 3
TO_BOUNDARY = 0.995
# From this many variables on, a CPU factors systems in blocks of this many columns.
LARGE = 9
BLOCK = 96


def minimize(
    program: Program, tol: float, max_iter: int, keep: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

    Args:
        program: the scaled programs; zero effects are not feasible in any of them.
        tol: relative gap at which a sample is finished.
        max_iter: largest number of steps.
        keep: relative gap that the removal of dust keeps, tol by default; 0 leaves the dust.
    """
    keep = tol if keep is None else keep
    effects = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    live = torch.arange(len(program), device=program.w.device)
    iterate = _Iterate(program)
    for step in range(max_iter):
        iterate.advance()
        done = (iterate.gap() <= tol) | (step == max_iter - 1)
        if done.any():
            effects[live[done]], bound[live[done]] = iterate[done].cleaned(keep)
            if done.all():
                break
            live, iterate = live[~done], iterate[~done]
    return effects, bound


@dataclasses.dataclass
class _Iterate:
    """The state of the method: primal and dual values of all pairs, mu, and the best effects."""

    program: Program
    primal: Tensor = None
    dual: Tensor = None
    mu: Tensor = None
    best: Tensor = None
    objective: Tensor = None
    low: Tensor = None
    newton: "_Newton | None" = None
    step: int = 0

    def __post_init__(self) -> None:
        if self.primal is not None:
            return
        program = self.program
        pairs, eps = program.pairs, program.eps[:, None]
        cost = program.cost.repeat(1, 2, 1)
        # Centred from the start: every product is the same.
        self.primal = torch.cat([START / cost, eps.where(pairs[:, 4:], 1.0)], 1).where(pairs, 1.0)
        self.dual = torch.cat([cost, (START / eps).where(pairs[:, 4:], 1.0)], 1)
        self.mu = torch.zeros_like(program.w)
        self.best = program.repaired(torch.zeros_like(self.primal[:, :2]))
        # Giving all to AND is feasible but does not count. If it is optimal, the method would stay
        # there, off the centre, and never look at the same given to OR.
        self.objective = torch.full_like(program.w[:, 0], torch.inf)
        self.low = torch.zeros_like(self.objective)

    def __getitem__(self, kept: Tensor) -> "_Iterate":
        names = [f.name for f in dataclasses.fields(self) if f.name != "step"]
        return _Iterate(*(getattr(self, name)[kept] for name in names), self.step)

    def gap(self) -> Tensor:
        return (self.objective - self.low) / self.objective

    def advance(self) -> None:
        """Take one predictor-corrector step and keep what it certifies."""
        program = self.program
        primal, dual, pairs = self.primal, self.dual, program.pairs
        self.newton = None  # frees the old matrices before the new ones are formed
        newton = self.newton = _Newton(self)
        self.step += 1
        count = pairs.sum((1, 2))
        product = (primal * dual * pairs).sum((1, 2))
        move = newton.toward(torch.zeros_like(primal))
        reach = move.lengths(self).clamp(max=1.0)
        ahead = (move.ahead(self, reach) * pairs).sum((1, 2))
        centre = ((ahead / product) ** 3 * product / count)[:, None, None]
        target = (centre - move.primal * move.dual) * pairs
        move = newton.toward(target)
        reach = move.lengths(self).clamp(max=1.0)
        for _ in range(CORRECTORS):
            # Gondzio: look beyond the boundary, and pull back the products that strayed.
            further = (reach + 0.3).clamp(max=1.0)
            value = move.ahead(self, further)
            stray = (value.clamp(0.1 * centre, 10 * centre) - value).clamp(min=-10 * centre)
            retarget = target + stray * pairs
            other = newton.toward(retarget)
            longer = other.lengths(self).clamp(max=1.0)
            better = longer.sum(0) > reach.sum(0) + 0.02
            if not better.any():
                break
            target = torch.where(better[:, None, None], retarget, target)
            reach = torch.where(better, longer, reach)
            move = move.mixed(other, better)
        x = newton.effects(move)
        # Once more for rounding errors, then exactly.
        rest = program.excess(x)
        x = x + program.explained(rest, newton.weight, newton.slack, newton.solve)
        self._certify(program.repaired(x))
        to_primal, to_dual = (TO_BOUNDARY * reach).clamp(max=1.0)[:, :, None, None]
        self.primal = primal + to_primal * move.primal
        self.mu = self.mu + to_dual[:, :, 0] * move.mu
        self.dual = dual + to_dual * move.dual
        # Computed from mu again, so that rounding errors do not add up.
        product = program.adjoint(self.mu)
        self.dual[:, :4] = torch.cat([program.cost - product, program.cost + product], 1)
        self.dual[:, :4].clamp_(min=1e-14)
        self.low = torch.maximum(self.low, program.bound(self.mu))

    def _certify(self, x: Tensor) -> None:
        """Keep the feasible x if it is the best so far."""
        objective = self.program.objective(x)
        # All points of the optimal face are equal up to rounding, and later ones are more central.
        better = objective <= self.objective * (1 + 1e-9)
        self.best = torch.where(better[:, None, None], x, self.best)
        self.objective = torch.where(better, objective, self.objective)

    def cleaned(self, tol: float) -> tuple[Tensor, Tensor]:
        """Return the best effects, with zeros off the support of the optimum."""
        product = 1 - torch.minimum(self.dual[:, :2], self.dual[:, 2:4]) / self.program.cost
        newton = self.newton
        return without_dust(
            self.program, self.best, self.low, product, tol, newton.weight, newton.slack,
            newton.solve,
        ), self.low  # fmt: skip


@dataclasses.dataclass
class _Move:
    """A step for every pair, and for mu."""

    primal: Tensor
    dual: Tensor
    mu: Tensor

    def lengths(self, at: _Iterate) -> Tensor:
        """Return how far primal and dual can go until a value turns zero, shape (2, sample)."""

        def reach(value: Tensor, step: Tensor) -> Tensor:
            return torch.where(step < 0, -value / step, torch.inf).flatten(1).amin(1)

        return torch.stack([reach(at.primal, self.primal), reach(at.dual, self.dual)])

    def ahead(self, at: _Iterate, length: Tensor) -> Tensor:
        """Return the products after a step of these lengths (2, sample)."""
        to_primal, to_dual = length[:, :, None, None]
        return (at.primal + to_primal * self.primal) * (at.dual + to_dual * self.dual)

    def mixed(self, other: "_Move", choose: Tensor) -> "_Move":
        chosen = choose[:, None, None]
        return _Move(
            torch.where(chosen, other.primal, self.primal),
            torch.where(chosen, other.dual, self.dual),
            torch.where(choose[:, None], other.mu, self.mu),
        )


class _Newton:
    """The Newton system at an iterate: factored once, solved for several right-hand sides."""

    def __init__(self, at: _Iterate):
        self.at, self.program = at, at.program
        pairs = at.program.pairs
        self.ratio = at.primal / at.dual
        self.weight = (self.ratio[:, :2] + self.ratio[:, 2:4]) * at.program.columns
        both = (at.dual[:, 4:] / at.primal[:, 4:]).sum(1)
        self.slack = torch.where(pairs[:, 4], 1 / both, 0.0)
        self.solve = self._solver(at.step)

    def _solver(self, step: int) -> Callable[[Tensor], Tensor]:
        """Return the solver of the system. The first system is often symmetric, and then faster."""
        program, n = self.program, self.program.n
        if step or n < LARGE or len(program) > 1 or program.w.is_cuda:
            return _Dense(self.weight, self.slack)
        if not program.eps > 0 or not (program.cost == 1).all():
            return _Dense(self.weight, self.slack)
        basis = symmetric_basis(n, program.w.device)
        one = 2 ** torch.arange(n + 1) - 1  # states of order 0, 1, 2, ...
        blocks = basis.inverse(self.weight[:, 0, one], self.weight[:, 1, one], self.slack[:, one])
        return functools.partial(basis.apply, blocks)

    def __getitem__(self, kept: Tensor) -> "_Newton":
        part = object.__new__(_Newton)
        for name in ("ratio", "weight", "slack"):
            setattr(part, name, getattr(self, name)[kept])
        part.solve = self.solve if len(self.program) == 1 else self.solve[kept]
        return part

    def toward(self, target: Tensor) -> _Move:
        """Return the step that makes every product equal to its target, to first order."""
        at, program = self.at, self.program
        level = target / at.dual
        shift = self.slack * (
            at.mu - (target[:, 4] / at.primal[:, 4] - target[:, 5] / at.primal[:, 5])
        )
        residual = (at.primal[:, 5] - at.primal[:, 4]) / 2
        rest = program.w - residual - program.outputs(level[:, :2] - level[:, 2:4]) - shift
        mu = self.solve(rest * program.rows)
        product = program.adjoint(mu)
        bend = (self.slack * mu + shift)[:, None]
        dual = torch.cat([-product, product], 1)
        primal = level[:, :4] - at.primal[:, :4] - self.ratio[:, :4] * dual
        primal = torch.cat([primal, -bend, bend], 1) * program.pairs
        slope = at.dual[:, 4:] / at.primal[:, 4:]
        closing = target[:, 4:] / at.primal[:, 4:] - at.dual[:, 4:] - slope * primal[:, 4:]
        dual = torch.cat([dual, closing], 1) * program.pairs
        return _Move(primal, dual, mu)

    def effects(self, move: _Move) -> Tensor:
        """Return the effects at the end of the full step, which match w to first order."""
        parts = (self.at.primal + move.primal)[:, :4] * self.program.pairs[:, :4]
        return parts[:, :2] - parts[:, 2:]


class _Dense:
    """A solver of (A diag(weight) A' + diag(slack)) u = rest on the nonempty states.

    All in double precision: single precision saves a twentieth of the time, and fails on
    ill-conditioned systems.
    """

    def __init__(self, weight: Tensor, slack: Tensor):
        # On a CPU, batched factorizations only copy more than single ones.
        self.group = len(weight) if weight.is_cuda else 1
        pairs = zip(weight.split(self.group), slack.split(self.group), strict=True)
        self.factors = [_factor(*pair) for pair in pairs]

    def __call__(self, rest: Tensor) -> Tensor:
        solved = []
        for part, factor in zip(rest.split(self.group), self.factors, strict=True):
            half = torch.linalg.solve_triangular(factor, part.unsqueeze(-1), upper=False)
            solved.append(torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1))
        return torch.cat(solved)

    def __getitem__(self, kept: Tensor) -> "_Dense":
        part = object.__new__(_Dense)
        if self.group == 1:
            places = kept.nonzero().flatten().tolist()
            part.group, part.factors = 1, [self.factors[i] for i in places]
        else:
            part.group, part.factors = int(kept.sum()), [self.factors[0][kept]]
        return part


def _normal_matrix(weight: Tensor, slack: Tensor) -> Tensor:
    """Return A diag(weight) A' + diag(slack), with 1 for the empty state; its lower blocks only.

    The gathers go over the low variables first and then copy whole blocks for the high ones, which
    is much faster than gathering single numbers.
    """
    n = weight.shape[-1].bit_length() - 1
    low = min(n, 7)
    inner = torch.arange(2**low, device=weight.device)

    def table(values: Tensor, combine: Callable) -> Tensor:
        values = values.view(len(values), -1, len(inner))
        pairs = combine(inner[:, None], inner).flatten()
        return values.index_select(-1, pairs).unflatten(-1, (len(inner), len(inner)))

    above = zeta(weight[:, 1]).flip(-1)
    both, either = table(zeta(weight[:, 0]), torch.bitwise_and), table(above, torch.bitwise_or)
    row = (above[:, :1] - above).view(len(weight), -1, len(inner), 1)
    column = above.view(len(weight), -1, 1, len(inner))
    matrix = weight.new_empty(len(weight), 2**n, 2**n)
    blocks = matrix.view(len(weight), 2 ** (n - low), len(inner), -1, len(inner))
    for i in range(2 ** (n - low)):
        for j in range(i + 1):
            block = blocks[:, i, :, j]
            torch.add(both[:, i & j], either[:, i | j], out=block)
            block += row[:, i]
            block -= column[:, j]
    matrix[:, :, 0] = matrix[:, 0, :] = 0
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    diagonal += slack
    diagonal[:, 0] = 1
    return matrix


def _factor(weight: Tensor, slack: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the normal matrix."""
    factor, failed = _cholesky(_normal_matrix(weight, slack))
    # Rounding can make the matrix indefinite, and vanishing weights make it singular. The smallest
    # sufficient multiple of the identity repairs both.
    strength = 1e-15
    while failed.any() and strength < 1:
        matrix = _normal_matrix(weight, slack)
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        largest = diagonal.amax(-1, keepdim=True)
        diagonal += strength * largest * (failed > 0)[:, None]
        factor, failed = _cholesky(matrix)
        strength *= 100
    return factor


def _cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower factor, and per matrix whether it failed; the matrix is overwritten.

    A CPU factors one block of columns after another, because it is fast at matrix products. The
    part above the diagonal stays as it was.
    """
    size = matrix.shape[-1]
    if matrix.is_cuda or size < 2**LARGE:
        return torch.linalg.cholesky_ex(matrix)
    (one,) = matrix
    for start in range(0, size, BLOCK):
        stop = start + BLOCK
        left = one[start:, :start]
        column = one[start:, start:stop]
        if start:
            column -= left @ left[:BLOCK].T
        corner, failed = torch.linalg.cholesky_ex(column[:BLOCK])
        if failed:
            return matrix, failed[None]
        column[:BLOCK] = corner
        if stop < size:
            below = torch.linalg.solve_triangular(corner.T, column[BLOCK:], upper=True, left=False)
            column[BLOCK:] = below
    return matrix, torch.zeros(1, dtype=torch.int32)
