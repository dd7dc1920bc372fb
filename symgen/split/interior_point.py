r"""The sparsest split by an interior-point method with dense systems, for few variables.

Mehrotra's primal-dual predictor-corrector with Gondzio's centrality correctors. Every dual
iterate is feasible and every primal iterate is made feasible, so each step has its own certificate.

Each step solves one system (A D A' + E) u = r with diagonal D and E. Its matrix needs no matrix
product. For the AND columns (Z) and the OR columns (Y),

.. math:: (Z\,\mathrm{diag}(a)Z^\top)_{SR} = f_{S \cap R}, \qquad
          (Y\,\mathrm{diag}(b)Y^\top)_{SR} = g_N - g_{\bar S} - g_{\bar R} + g_{\overline{S \cup R}}

with f and g the zeta transforms of a and b.
"""

import torch
from torch import Tensor

from symgen.split.few import without_dust
from symgen.split.program import CentralPath, Program
from symgen.split.symmetric import Inverse, symmetric_basis
from symgen.transforms import zeta

# First value of every complementarity product, if max(w) - min(w) = 1.
START = 0.01
CORRECTORS = 3
TO_BOUNDARY = 0.995
# From this many variables on, the first system is solved in the symmetric basis.
LARGE = 9


def minimize(
    program: Program, tol: float, max_iter: int, keep: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return feasible effects and proven lower bounds; see `CentralPath.follow`."""
    return _Path(program).follow(tol, max_iter, keep)


class _Path(CentralPath):
    """The state of the method.

    Attributes:
        pair: primal and dual values of all products, shape (sample, 2, 6, state).
        mu: the dual of the states, shape (sample, state).
        ratio, weight, slack, factor: the Newton system; see `_prepare`.
    """

    def __init__(self, program: Program):
        super().__init__(program)
        pairs, eps = program.pairs, program.eps[:, None]
        cost = program.cost.repeat(1, 2, 1)
        # Centred from the start: every product is the same.
        primal = torch.cat([START / cost, eps.where(pairs[:, 4:], 1.0)], 1).where(pairs, 1.0)
        dual = torch.cat([cost, (START / eps).where(pairs[:, 4:], 1.0)], 1)
        self.pair = torch.stack([primal, dual], 1)
        self.mu = torch.zeros_like(program.w)

    def advance(self, tol: float) -> None:
        """Take one predictor-corrector step and keep what it certifies."""
        program, pairs = self.program, self.program.pairs
        self._prepare()
        count = pairs.sum((1, 2))
        product = (self.pair.prod(1) * pairs).sum((1, 2))
        move, _ = self._toward(torch.zeros_like(self.pair[:, 0]))
        ahead = (self._ahead(move, self._reach(move)) * pairs).sum((1, 2))
        centre = ((ahead / product) ** 3 * product / count)[:, None, None]
        target = (centre - move.prod(1)) * pairs
        move, mu = self._toward(target)
        reach = self._reach(move)
        for _ in range(CORRECTORS):
            # Gondzio: look beyond the boundary, and pull back the products that strayed.
            value = self._ahead(move, (reach + 0.3).clamp(max=1.0))
            stray = (value.clamp(0.1 * centre, 10 * centre) - value).clamp(min=-10 * centre)
            retarget = target + stray * pairs
            other, other_mu = self._toward(retarget)
            longer = self._reach(other)
            better = longer.sum(1, keepdim=True) > reach.sum(1, keepdim=True) + 0.02
            if not better.any():
                break
            target = torch.where(better[..., None], retarget, target)
            move = torch.where(better[..., None, None], other, move)
            mu, reach = torch.where(better, other_mu, mu), torch.where(better, longer, reach)
        # At the end of the full step, effects match w to first order.
        parts = (self.pair + move)[:, 0, :4] * pairs[:, :4]
        x = parts[:, :2] - parts[:, 2:]
        # Once more for rounding errors.
        x = x + program.explained(program.excess(x), self.weight, self.slack, self._solve)
        reach = (TO_BOUNDARY * reach).clamp(max=1.0)
        self.pair = self.pair + reach[..., None, None] * move
        self.mu = self.mu + reach[:, 1:] * mu
        # Computed from mu again, so that rounding errors do not add up.
        product = program.adjoint(self.mu)
        self.pair[:, 1, :4] = torch.cat([program.cost - product, program.cost + product], 1)
        self.pair[:, 1, :4].clamp_(min=1e-14)
        self.certify(x, self.mu)

    def _prepare(self) -> None:
        """Factor the system (A diag(weight) A' + diag(slack)) u = rest at the present point."""
        self.factor = torch.empty(0)  # frees the old matrices before the new ones are formed
        primal, dual = self.pair.unbind(1)
        self.ratio = primal / dual
        self.weight = (self.ratio[:, :2] + self.ratio[:, 2:4]) * self.program.columns
        both = (dual[:, 4:] / primal[:, 4:]).sum(1)
        self.slack = torch.where(self.program.pairs[:, 4], 1 / both, 0.0)
        self.factor = self._symmetric() or _factor(self.weight, self.slack)

    def _symmetric(self) -> Inverse | None:
        """Return the inverse at the start, where weights depend on the order alone.

        It saves the first of about eight factorizations. None if the weights depend on more than
        the order.
        """
        program, n = self.program, self.program.n
        starts = self.objective.isinf().all() and n >= LARGE and not program.w.is_cuda
        if not starts or not (program.eps > 0).all() or not (program.cost == 1).all():
            return None
        one = 2 ** torch.arange(n + 1) - 1  # states of order 0, 1, 2, ...
        weight, slack = self.weight[:, :, one], self.slack[:, one]
        return symmetric_basis(n, program.w.device).inverse(weight[:, 0], weight[:, 1], slack)

    def _solve(self, rest: Tensor) -> Tensor:
        if isinstance(self.factor, Inverse):
            return self.factor(rest)
        half = torch.linalg.solve_triangular(self.factor, rest[..., None], upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)[..., 0]

    def _toward(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step that makes every product equal to its target, to first order.

        It is a step of the pairs, (sample, 2, 6, state), and of mu.
        """
        program, (primal, dual) = self.program, self.pair.unbind(1)
        level = target / dual
        shift = self.slack * (self.mu - (target[:, 4] / primal[:, 4] - target[:, 5] / primal[:, 5]))
        residual = (primal[:, 5] - primal[:, 4]) / 2
        rest = program.w - residual - program.outputs(level[:, :2] - level[:, 2:4]) - shift
        mu = self._solve(rest * program.rows)
        product = program.adjoint(mu)
        bend = (self.slack * mu + shift)[:, None]
        to_dual = torch.cat([-product, product], 1)
        to_primal = level[:, :4] - primal[:, :4] - self.ratio[:, :4] * to_dual
        to_primal = torch.cat([to_primal, -bend, bend], 1) * program.pairs
        slope = dual[:, 4:] / primal[:, 4:]
        closing = target[:, 4:] / primal[:, 4:] - dual[:, 4:] - slope * to_primal[:, 4:]
        to_dual = torch.cat([to_dual, closing], 1) * program.pairs
        return torch.stack([to_primal, to_dual], 1), mu

    def _reach(self, move: Tensor) -> Tensor:
        """Return the largest primal and dual step lengths, at most 1, shape (sample, 2)."""
        share = torch.where(move < 0, -self.pair / move, torch.inf)
        return share.flatten(2).amin(2).clamp(max=1.0)

    def _ahead(self, move: Tensor, reach: Tensor) -> Tensor:
        """Return the products after these shares of a step."""
        return (self.pair + reach[..., None, None] * move).prod(1)

    def cleaned(self, tol: float) -> Tensor:
        """Return the best effects, with zeros off the support of the optimum."""
        dual = self.pair[:, 1]
        product = 1 - torch.minimum(dual[:, :2], dual[:, 2:4]) / self.program.cost
        return without_dust(
            self.program, self.best, self.low, product, tol, self.weight, self.slack, self._solve
        )


def _normal_matrix(weight: Tensor, slack: Tensor) -> Tensor:
    """Return A diag(weight) A' + diag(slack), with 1 for the empty state; its lower blocks only.

    The gathers go over the low variables first and then copy whole blocks for the high ones, which
    is much faster than gathering single numbers.
    """
    n = weight.shape[-1].bit_length() - 1
    low = torch.arange(2 ** min(n, 7), device=weight.device)

    def table(values: Tensor, pairs: Tensor) -> Tensor:
        values = values.view(len(values), -1, len(low))
        return values.index_select(-1, pairs.flatten()).unflatten(-1, pairs.shape)

    above = zeta(weight[:, 1]).flip(-1)
    both = table(zeta(weight[:, 0]), low[:, None] & low)
    either = table(above, low[:, None] | low)
    row = (above[:, :1] - above).view(len(weight), -1, len(low), 1)
    column = above.view(len(weight), -1, 1, len(low))
    matrix = weight.new_empty(len(weight), 2**n, 2**n)
    blocks = matrix.view(len(weight), both.shape[1], len(low), -1, len(low))
    for i in range(both.shape[1]):
        for j in range(i + 1):
            block = torch.add(both[:, i & j], either[:, i | j], out=blocks[:, i, :, j])
            block += row[:, i]
            block -= column[:, j]
    matrix[:, :, 0] = matrix[:, 0, :] = 0
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    diagonal += slack
    diagonal[:, 0] = 1
    return matrix


def _factor(weight: Tensor, slack: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the normal matrix.

    All in double precision: single precision saves a twentieth of the time, and fails on
    ill-conditioned systems.
    """
    failed = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
    weak, strength = torch.zeros_like(failed), 0.0
    while strength < 1:
        matrix = _normal_matrix(weight, slack)
        # Rounding can make the matrix indefinite, and vanishing weights make it singular. A small
        # multiple of the identity repairs both.
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        diagonal += strength * diagonal.amax(-1, keepdim=True) * weak[:, None]
        # LAPACK stores columns. Given the transpose, it works in place, and half again as fast.
        columns = matrix.mT
        torch.linalg.cholesky_ex(columns, upper=True, out=(columns, failed))
        if not failed.any():
            break
        weak, strength = weak | (failed > 0), max(100 * strength, 1e-15)
    return matrix
