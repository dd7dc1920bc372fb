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

from symgen.split.program import CentralPath, Program
from symgen.transforms import zeta

# First value of every complementarity product, if max(w) - min(w) = 1.
START = 0.01
CORRECTORS = 3
TO_BOUNDARY = 0.995


class InteriorPoint(CentralPath):
    """The state of the method.

    Attributes:
        pair: the two values of every product, (sample, 2, 2, 3, state). The axes are: free part or
            distance to its bound; sign; AND effects, OR effects or mu.
        mu: the dual of the states, shape (sample, state).
        ratio, weight, slack, factor: the Newton system; see `_prepare`.
    """

    def __init__(self, program: Program):
        super().__init__(program)
        bound = torch.cat([program.cost, program.eps[:, None].expand_as(program.w[:, None])], 1)
        # Centred from the start: every product is the same.
        pair = torch.stack([START / bound, bound], 1).where(program.pairs[:, None], 1.0)
        self.pair = pair[:, :, None].repeat(1, 1, 2, 1, 1)
        self.mu = torch.zeros_like(program.w)

    def advance(self, tol: float) -> None:
        """Take one predictor-corrector step and keep what it certifies."""
        program, pairs = self.program, self.program.pairs[:, None]
        self._prepare()
        size = (self.pair.prod(1) * pairs).sum((1, 2, 3))
        move, _ = self._toward(torch.zeros_like(self.pair[:, 0]))
        ahead = (self._ahead(move, self._reach(move)).prod(1) * pairs).sum((1, 2, 3))
        centre = (ahead / size) ** 3 * size / (2 * pairs.sum((1, 2, 3)))
        centre = centre[:, None, None, None]
        target = (centre - move.prod(1)) * pairs
        move, mu = self._toward(target)
        reach = self._reach(move)
        for _ in range(CORRECTORS):
            # Gondzio: look beyond the boundary, and pull back the products that strayed.
            value = self._ahead(move, (reach + 0.3).clamp(max=1.0)).prod(1)
            stray = (value.clamp(0.1 * centre, 10 * centre) - value).clamp(min=-10 * centre)
            retarget = target + stray * pairs
            other, other_mu = self._toward(retarget)
            longer = self._reach(other)
            better = longer.sum(1, keepdim=True) > reach.sum(1, keepdim=True) + 0.02
            if not better.any():
                break
            target = retarget.where(better[..., None, None], target)
            move = other.where(better[..., None, None, None], move)
            mu, reach = other_mu.where(better, mu), longer.where(better, reach)
        # At the end of the full step, effects match w to first order.
        plus, minus = ((self.pair + move)[:, 0, :, :2] * program.columns).unbind(1)
        x = plus - minus
        reach = (TO_BOUNDARY * reach).clamp(max=1.0)
        self.pair = self._ahead(move, reach)
        self.mu = self.mu + reach[:, 1:] * mu
        # Computed from mu again, so that rounding errors do not add up.
        product = program.adjoint(self.mu)
        distance = torch.stack([program.cost - product, program.cost + product], 1)
        self.pair[:, 1, :, :2] = distance.clamp(min=1e-14)
        self.certify(x, self.mu)

    def _prepare(self) -> None:
        """Factor the system (A diag(weight) A' + diag(slack)) u = rest at the present point."""
        self.factor = torch.empty(0)  # frees the old matrices before the new ones are formed
        self.ratio = self.pair[:, 0] / self.pair[:, 1]
        total = self.ratio.sum(1)
        self.weight = total[:, :2] * self.program.columns
        self.slack = torch.where(self.program.pairs[:, 2], 1 / total[:, 2], 0.0)
        self.factor = _factor(self.weight, self.slack)

    def solve(self, rest: Tensor) -> Tensor:
        """Return the solution of the Newton system."""
        # Much faster than torch.cholesky_solve.
        half = torch.linalg.solve_triangular(self.factor, rest[..., None], upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)[..., 0]

    def _toward(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the steps of the pairs and of mu towards these products, to first order."""
        program, (free, distance) = self.program, self.pair.unbind(1)
        level = target / distance
        plus, minus = level.unbind(1)
        aim = plus - minus
        residual = (distance[:, 1, 2] - distance[:, 0, 2]) / 2
        shift = self.slack * (self.mu - aim[:, 2])
        rest = program.w - residual - program.outputs(aim) - shift
        mu = self.solve(rest * program.rows)
        # Of A'mu and of the residual.
        change = torch.cat([program.adjoint(mu), (self.slack * mu + shift)[:, None]], 1)
        to_distance = torch.stack([-change, change], 1) * program.pairs[:, None]
        to_free = (level - free - self.ratio * to_distance) * program.pairs[:, None]
        return torch.stack([to_free, to_distance], 1), mu

    def _reach(self, move: Tensor) -> Tensor:
        """Return the largest primal and dual step lengths, at most 1, shape (sample, 2)."""
        share = torch.where(move < 0, -self.pair / move, torch.inf).amin((2, 4)).flatten(1)
        # Effects and the residual's distances are primal, mu and the effects' distances dual.
        return share[:, [[0, 1, 5], [3, 4, 2]]].amin(2).clamp(max=1.0)

    def _ahead(self, move: Tensor, reach: Tensor) -> Tensor:
        """Return the pairs after these shares of a step."""
        return self.pair + reach[:, [[0, 0, 1], [1, 1, 0]]][:, :, None, :, None] * move

    def product(self) -> Tensor:
        """Return abs(A'mu) / cost."""
        return 1 - self.pair[:, 1, :, :2].amin(1) / self.program.cost


def _normal_matrix(weight: Tensor, slack: Tensor) -> Tensor:
    """Return A diag(weight) A' + diag(slack), with 1 for the empty state; its lower blocks only.

    The gathers go over the low variables first and then copy whole blocks for the high ones, which
    is much faster than gathering single numbers.
    """
    n = weight.shape[-1].bit_length() - 1
    low = torch.arange(2 ** min(n, 7), device=weight.device)
    shape = len(weight), -1, len(low)
    ands, above = zeta(weight).unbind(1)
    above = above.flip(-1)
    both = ands.reshape(shape)[..., low[:, None] & low]
    either = above.reshape(shape)[..., low[:, None] | low]
    row = (above[:, :1] - above).reshape(shape)[..., None]
    column = above.reshape(shape)[..., None, :]
    matrix = weight.new_empty(len(weight), 2**n, 2**n)
    blocks = matrix.view(len(weight), both.shape[1], len(low), -1, len(low))
    for i in range(both.shape[1]):
        for j in range(i + 1):
            blocks[:, i, :, j] = both[:, i & j] + either[:, i | j] + row[:, i] - column[:, j]
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
