r"""The sparsest AND-OR split of a set function, with a certificate of how sparse it is.

With w = v - v[0], and A the map from effects to outputs (`and_or_outputs`), the split solves

.. math:: \min \|x\|_1 \quad\text{subject to}\quad |w_S - (Ax)_S| \le \varepsilon
          \text{ for every nonempty } S,

the linear program behind Theorem 1 and App. A.1, A.2. Its dual is

.. math:: \max \mu^\top w - \varepsilon\|\mu\|_1 \quad\text{subject to}\quad
          |A^\top\mu| \le 1,

so any such mu proves a lower bound on the objective. The method is Mehrotra's primal-dual
predictor-corrector with Gondzio's centrality correctors. Every dual iterate is feasible and
every primal iterate is made so, hence each step carries its own certificate.

Each step solves one system (A D A' + E) u = r with diagonal D and E. Its matrix needs no
matrix product, since for the AND columns (Z) and the OR columns (Y)

.. math:: (Z\,\mathrm{diag}(a)Z^\top)_{SR} = f_{S \cap R}, \qquad
          (Y\,\mathrm{diag}(b)Y^\top)_{SR} = g_N - g_{\bar S} - g_{\bar R} + g_{\overline{S \cup R}}

with f and g the zeta transforms of a and b.
"""

import dataclasses
import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from symgen.interactions import Interactions
from symgen.transforms import (
    and_or_adjoint,
    and_or_outputs,
    count_variables,
    interaction_order,
    moebius,
    zeta,
)

MAX_VARIABLES = 16
DENSE_VARIABLES = 12
MEMORY = 2**29
# An effect whose dual product stays this far from 1 is set to zero; the wider margin, which
# keeps more effects, is tried where the narrower one loses feasibility or the certificate.
MARGINS = (0.02, 0.2)
# Tolerated excess over the noise bound after that, times (1e-3 + eps), where max abs(w) = 1.
EXACT = 1e-7
# First value of every complementarity product, where max abs(w) = 1.
START = 0.01
CORRECTORS = 2
TO_BOUNDARY = 0.995


class ConvergenceWarning(UserWarning):
    """The certified gap is larger than the one asked for."""


def sparsify(
    v: Float[Tensor, "*batch state"],
    noise: float = 0.02,
    tol: float = 1e-3,
    max_iter: int = 100,
    progress: bool = False,
) -> Interactions:
    """Return the sparsest AND and OR effects that explain v on every masked state.

    Minimizes the sum of absolute effects subject to abs(d[S] - v[S]) <= noise * abs(v[N] - v[0])
    and d[0] = v[0], down to a certified relative gap. Where optima are many, the result is the
    point of the central path at that gap, which tends to the analytic centre of the optimal
    face: the same for every batch and every numbering of the variables. Effects that the dual
    certificate keeps away from the optimum's support are then set to zero, and feasibility and
    certificate computed again.

    Args:
        v: outputs on all 2**n masked states, 1 <= n <= 16, bit i of the index set when variable
            i is present. Any leading axes; tensor or array; solved in float64 on v's device.
        noise: kappa >= 0, share of abs(v[N] - v[0]) by which d may miss v (App. A.2).
        tol: relative gap (objective - bound) / objective to reach, > 0.
        max_iter: interior-point steps after which to stop and warn.
        progress: whether to show a bar.

    Returns:
        Interactions in float64, in the shape of v.

    Raises:
        ValueError: for a wrong shape, NaN or infinite values (naming the state), or arguments
            out of range.

    Warns:
        ConvergenceWarning: with the worst gap, where `max_iter` steps did not reach `tol`.

    Example:
        >>> v = torch.tensor([0.0, 1.0, 1.0, 1.0])  # an OR of two variables
        >>> inter = sparsify(v, noise=0.0)
        >>> inter.or_.tolist(), inter.and_.abs().max().item()
        ([0.0, 0.0, 0.0, 1.0], 0.0)
    """
    v = _checked(v, noise, tol, max_iter)
    n, shape = count_variables(v), v.shape[:-1]
    flat = v.reshape(-1, 2**n)
    span = (flat[:, -1] - flat[:, 0]).abs()
    effects = flat.new_zeros(len(flat), 2, 2**n)
    bound = flat.new_zeros(len(flat))
    work = 6 * 2**n if n > DENSE_VARIABLES else 4**n
    size = max(1, MEMORY // (3 * 8 * work))
    bar = tqdm(total=len(flat), desc="sparsify", unit="sample", disable=not progress)
    with bar, torch.no_grad():
        for start in range(0, len(flat), size):
            part = slice(start, start + size)
            w = flat[part] - flat[part, :1]
            scale = w.abs().amax(-1).clamp(min=torch.finfo(w.dtype).tiny)
            program = _Program(w / scale[:, None], noise * span[part] / scale)
            x, low = _minimize(program, tol, max_iter)
            effects[part], bound[part] = x * scale[:, None, None], low * scale
            bar.update(len(w))
    objective = effects.abs().sum((-2, -1))
    gap = ((objective - bound) / objective).nan_to_num(0.0).clamp(min=0.0)
    if len(gap) and gap.max() > tol:
        late = int((gap > tol).sum())
        warnings.warn(
            f"sparsify: {late} of {len(gap)} samples did not reach the relative gap {tol:g} in "
            f"{max_iter} steps; the worst is {float(gap.max()):.2g}. Raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Interactions(
        and_=effects[:, 0].reshape(*shape, -1),
        or_=effects[:, 1].reshape(*shape, -1),
        bias=flat[:, 0].reshape(shape),
        objective=objective.reshape(shape),
        gap=gap.reshape(shape),
        span=span.reshape(shape),
    )


def _checked(v: Tensor, noise: float, tol: float, max_iter: int) -> Tensor:
    v = torch.as_tensor(v).detach().to(torch.float64)
    n = count_variables(v)
    if not 1 <= n <= MAX_VARIABLES:
        need = 80 * 8 * 2.0**n / 2**30
        raise ValueError(
            f"sparsify takes 1 to {MAX_VARIABLES} variables; v has {n} (the last axis is 2**n, "
            f"about {need:.1f} GiB of work a sample). Group variables into fewer, larger ones."
        )
    if not bool(v.isfinite().all()):
        where = (~v.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"v must be finite; it is {float(v[tuple(where)])} at sample {where[:-1]}, masked "
            f"state {where[-1]} (binary {where[-1]:0{n}b}, the last digit is variable 0)"
        )
    if not noise >= 0 or not tol > 0 or max_iter < 1:
        raise ValueError(
            "noise must be >= 0, tol > 0 and max_iter >= 1; "
            f"got noise={noise}, tol={tol}, max_iter={max_iter}"
        )
    return v


class _Program:
    """The linear programs of a batch, scaled to max abs(w) = 1.

    Six products of a positive primal and a positive dual value go to zero together, for every
    state: the positive parts of AND and OR effects with 1 - A'mu, their negative parts with
    1 + A'mu, and the two distances of the residual r to its bounds with the two parts of mu.
    """

    def __init__(self, w: Tensor, eps: Tensor):
        self.n = count_variables(w)
        self.w, self.eps = w, eps[:, None]
        order = interaction_order(self.n).to(w.device)
        self.columns = torch.stack([order > 0, order > 1])
        self.rows = order > 0
        noisy = (self.eps > 0) & self.rows
        self.pairs = torch.cat(
            [self.columns.repeat(2, 1).expand(len(w), 4, -1), noisy[:, None].expand(-1, 2, -1)], 1
        )

    def __getitem__(self, kept: Tensor) -> "_Program":
        part = object.__new__(_Program)
        part.__dict__.update(self.__dict__)
        part.w, part.eps, part.pairs = self.w[kept], self.eps[kept], self.pairs[kept]
        return part

    def outputs(self, x: Tensor) -> Tensor:
        return and_or_outputs(x[:, 0], x[:, 1])

    def adjoint(self, mu: Tensor) -> Tensor:
        return torch.stack(and_or_adjoint(mu), 1) * self.columns

    def excess(self, x: Tensor) -> Tensor:
        """By how much w - Ax leaves the noise bound, on every nonempty state."""
        residual = self.w - self.outputs(x)
        return (residual - residual.clamp(-self.eps, self.eps)) * self.rows

    def repaired(self, x: Tensor) -> Tensor:
        """Return x made feasible by giving the excess to AND, which can represent anything."""
        extra = moebius(self.excess(x))
        return torch.stack([x[:, 0] + extra, x[:, 1]], 1)

    def bound(self, mu: Tensor) -> Tensor:
        """The lower bound that mu proves, after scaling it into the feasible set."""
        reach = self.adjoint(mu).abs().amax((1, 2)).clamp(min=1.0)
        return ((mu * self.w).sum(-1) - (self.eps * mu.abs()).sum(-1)) / reach


def _minimize(program: _Program, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,)."""
    found = program.w.new_zeros(len(program.w), 2, 2**program.n)
    bound = program.w.new_zeros(len(program.w))
    # Zero effects explain all there is where nothing leaves the noise bound.
    live = (program.excess(found).abs().amax(-1) > 0).nonzero().squeeze(-1)
    if not len(live):
        return found, bound
    iterate = _Iterate(program[live])
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

    program: _Program
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
            sparse = program.excess(x).abs().amax(-1) <= EXACT * (1e-3 + program.eps[:, 0])
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
        shift = self.slack * (at.mu - (target[:, 4] / at.primal[:, 4] - target[:, 5] / at.primal[:, 5]))
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
