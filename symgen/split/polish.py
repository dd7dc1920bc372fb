"""Set to zero what the dual keeps off the support, and give what it explained to the rest."""

from collections.abc import Callable

import torch
from torch import Tensor

from symgen.split.linear_program import Program

# An effect whose dual product stays this far from 1 is set to zero. The wider margin, which keeps
# more effects, goes first: where it fails the narrower one would fail too.
MARGINS = (0.3, 0.05)
# Repairs aim at a noise bound smaller by this share of the gap asked for, so that they need not
# be exact, and are repeated so often.
INSIDE = 0.5
ROUNDS = 6
ITERATIONS = 20


def sparser(
    program: Program,
    best: Tensor,
    low: Tensor,
    product: Tensor,
    tol: float,
    weight: Tensor,
    slack: Tensor,
    solve: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return feasible effects with zeros wherever that keeps the certificate.

    Args:
        program: scaled programs of the samples.
        best: feasible effects (sample, 2, state), returned where zeros do not work.
        low: their lower bounds (sample,).
        product: absolute products A'mu, near 1 on the optimum's support.
        tol: relative gap to keep.
        weight, slack: of the system (A diag(weight) A' + diag(slack)) by which the remaining
            effects share what the others explained.
        solve: its solution, or an approximation to it.
    """
    objective = best.abs().sum((1, 2))
    allowed = torch.maximum(tol * objective, objective - low)
    found, live = best.clone(), torch.ones_like(low, dtype=torch.bool)
    for margin in MARGINS:
        support = (product > 1 - margin) & program.columns
        live = live & (support.sum((1, 2)) < program.columns.sum())
        x = best * support
        for _ in range(ROUNDS):
            rest = program.excess(x, 1 - min(INSIDE * tol, 0.1)) * live[:, None]
            if program.negligible(rest).all():
                break
            x = x + explained(program, rest, weight * support, slack, solve)
        live = live & program.feasible(x) & (x.abs().sum((1, 2)) - low <= allowed)
        if not live.any():
            break
        found = torch.where(live[:, None, None], x, found)
    return found


def explained(
    program: Program,
    rest: Tensor,
    weight: Tensor,
    slack: Tensor,
    solve: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return effects that take `rest` on, by conjugate gradients with `solve` before them."""
    tiny = torch.finfo(rest.dtype).tiny
    u = torch.zeros_like(rest)
    toward = ahead = solve(rest)
    size = (rest * ahead).sum(-1, keepdim=True)
    for _ in range(ITERATIONS):
        # A sample that is done must not move with others that are not.
        toward = toward * ~program.negligible(rest)[:, None]
        if not toward.any():
            break
        image = (program.outputs(weight * program.adjoint(toward)) + slack * toward) * program.rows
        length = size / (image * toward).sum(-1, keepdim=True).clamp(min=tiny)
        u, rest = u + length * toward, rest - length * image
        ahead = solve(rest)
        size, before = (rest * ahead).sum(-1, keepdim=True), size
        toward = ahead + size / before.clamp(min=tiny) * toward
    return weight * program.adjoint(u)
