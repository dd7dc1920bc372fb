r"""The sparsest split by an interior-point method with dense systems, for few variables.

Mehrotra's primal-dual predictor-corrector with Gondzio's centrality correctors. Every dual
iterate is feasible and every primal iterate is made so, hence each step carries its own
certificate.

Each step solves one system (A D A' + E) u = r with diagonal D and E. Its matrix needs no
matrix product, since for the AND columns (Z) and the OR columns (Y)

.. math:: (Z\,\mathrm{diag}(a)Z^\top)_{SR} = f_{S \cap R}, \qquad
          (Y\,\mathrm{diag}(b)Y^\top)_{SR} = g_N - g_{\bar S} - g_{\bar R} + g_{\overline{S \cup R}}

with f and g the zeta transforms of a and b.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from symgen.program import Program
from symgen.transforms import count_variables, zeta

# An effect whose dual product stays this far from 1 is set to zero; the wider margin, which
# keeps more effects, is tried where the narrower one loses feasibility or the certificate.
MARGINS = (0.02, 0.2)
# First value of every complementarity product, where max abs(w) = 1.
START = 0.01
CORRECTORS = 2
TO_BOUNDARY = 0.995


def minimize(program: Program, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,).

    Args:
        program: the scaled programs; none of them explained by zero effects.
        tol: relative gap at which a sample is done.
        max_iter: steps after which to stop.
    """
    found = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    live = torch.arange(len(program), device=program.w.device)
    iterate = _Iterate(program)
    for step in range(max_iter):
        iterate.advance()
        done = (iterate.gap() <= tol) | (step == max_iter - 1)
        if done.any():
            found[live[done]], bound[live[done]] = iterate[done].polished(tol)
            if done.all():
                break
            live, iterate = live[~done], iterate[~done]
    return found, bound


@dataclasses.dataclass
class _Iterate:
    """Where the method stands: primal and dual values of all pairs, mu, and the best so far."""

    program: Program
    primal: Tensor = None
    dual: Tensor = None
    mu: Tensor = None
    best: Tensor = None
    objective: Tensor = None
    low: Tensor = None

    def __post_init__(self) -> None:
        if self.primal is not None:
            return
        program = self.program
        pairs, eps = program.pairs, program.eps[:, None]
        self.primal = torch.full_like(pairs, START, dtype=program.w.dtype)
        self.dual = torch.ones_like(self.primal)
        # Centred from the start: every product is the same.
        self.primal[:, 4:] = eps.where(pairs[:, 4:], 1.0)
        self.dual[:, 4:] = (START / eps).where(pairs[:, 4:], 1.0)
        self.primal = self.primal.where(pairs, 1.0)
        self.mu = torch.zeros_like(program.w)
        self.best = program.repaired(torch.zeros_like(self.primal[:, :2]))
        self.objective = self.best.abs().sum((1, 2))
        self.low = torch.zeros_like(self.objective)

    def __getitem__(self, kept: Tensor) -> "_Iterate":
        values = (getattr(self, f.name)[kept] for f in dataclasses.fields(self))
        return _Iterate(*values)

    def gap(self) -> Tensor:
        return (self.objective - self.low) / self.objective

    def advance(self) -> None:
        """Take one predictor-corrector step and keep what it certifies."""
        program = self.program
        primal, dual, pairs = self.primal, self.dual, program.pairs
        newton = _Newton(self)
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
        # Once more for what rounding left, then exactly.
        x = x + newton.explain(program.excess(x))
        self._certify(program.repaired(x))
        to_primal, to_dual = (TO_BOUNDARY * reach).clamp(max=1.0)[:, :, None, None]
        self.primal = primal + to_primal * move.primal
        self.mu = self.mu + to_dual[:, :, 0] * move.mu
        self.dual = dual + to_dual * move.dual
        # Computed from mu again, so that rounding does not add up.
        product = program.adjoint(self.mu)
        self.dual[:, :4] = torch.cat([1 - product, 1 + product], 1).clamp(min=1e-14)
        self.low = torch.maximum(self.low, program.bound(self.mu))

    def _certify(self, x: Tensor) -> None:
        """Keep the feasible x where it is the best so far."""
        objective = x.abs().sum((1, 2))
        better = objective < self.objective
        self.best = torch.where(better[:, None, None], x, self.best)
        self.objective = torch.where(better, objective, self.objective)

    def polished(self, tol: float) -> tuple[Tensor, Tensor]:
        """Return the best effects, with those the dual keeps off the support set to zero.

        What the zeroed effects leave unexplained is given to the others by one more Newton
        system, so that the result stays sparse. Where that loses the certificate (or
        feasibility), the effects stay as they were.
        """
        program, best = self.program, self.best
        allowed = torch.maximum(tol * self.objective, self.objective - self.low)
        pending = torch.ones_like(self.low, dtype=torch.bool)
        for margin in MARGINS:
            support = (self.dual[:, :2] < margin) | (self.dual[:, 2:4] < margin)
            newton = _Newton(self, support)
            x = self.best * support
            for _ in range(3):
                x = x + newton.explain(program.excess(x))
            sparse = program.feasible(x)
            sparse &= x.abs().sum((1, 2)) - self.low <= allowed
            best = torch.where((sparse & pending)[:, None, None], x, best)
            pending = pending & ~sparse
            if not pending.any():
                break
        return best, self.low


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
        where = choose[:, None, None]
        return _Move(
            torch.where(where, other.primal, self.primal),
            torch.where(where, other.dual, self.dual),
            torch.where(choose[:, None], other.mu, self.mu),
        )


class _Newton:
    """The Newton system at an iterate: factored once, solved for several right-hand sides."""

    def __init__(self, at: _Iterate, support: Tensor | None = None):
        self.at, self.program = at, at.program
        pairs = at.program.pairs
        self.ratio = at.primal / at.dual
        kept = at.program.columns if support is None else support & at.program.columns
        self.weight = (self.ratio[:, :2] + self.ratio[:, 2:4]) * kept
        both = (at.dual[:, 4:] / at.primal[:, 4:]).sum(1)
        self.slack = torch.where(pairs[:, 4], 1 / both, 0.0)
        self.solve = _cholesky(self.weight, self.slack)

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

    def explain(self, residual: Tensor) -> Tensor:
        """Return the change of effects, smallest in the system's weights, that adds `residual`."""
        return self.weight * self.program.adjoint(self.solve(residual * self.program.rows))


def _cholesky(weight: Tensor, slack: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a solver of (A diag(weight) A' + diag(slack)) u = rest for every sample."""
    n = count_variables(weight)
    states = torch.arange(1, 2**n, device=weight.device)
    m = len(states)
    meet = (states[:, None] & states).flatten()
    join = (states[:, None] | states).flatten()
    # On a CPU one matrix keeps all cores busy and batched calls only copy more.
    group = len(weight) if weight.is_cuda else 1
    factors = []
    for part, extra in zip(weight.split(group), slack.split(group), strict=True):
        below = zeta(part[:, 0])
        above = zeta(part[:, 1]).flip(-1)
        matrix = below.index_select(-1, meet).add_(above.index_select(-1, join)).view(-1, m, m)
        matrix += (above[:, :1] - above[:, 1:]).unsqueeze(-1)
        matrix -= above[:, 1:].unsqueeze(-2)
        factors.append(_factor(matrix, extra[:, 1:]))

    def solve(rest: Tensor) -> Tensor:
        parts = rest[:, 1:, None].split(group)
        found = [torch.cholesky_solve(b, f) for b, f in zip(parts, factors, strict=True)]
        return torch.nn.functional.pad(torch.cat(found).squeeze(-1), (1, 0))

    return solve


def _factor(matrix: Tensor, slack: Tensor) -> Tensor:
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    diagonal += slack
    largest = diagonal.amax(-1, keepdim=True)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    # Rounding can make the matrix indefinite, and too few kept effects make it singular: a
    # small multiple of the identity, no larger than it must be, repairs both.
    for strength in (1e-14, 1e-12, 1e-10, 1e-8):
        if not failed.any():
            break
        diagonal += strength * largest * (failed > 0)[:, None]
        factor, failed = torch.linalg.cholesky_ex(matrix)
    return factor
