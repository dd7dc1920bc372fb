"""Fewer effects at the same certificate: dust removal, and reweighting within the optimal face."""

from collections.abc import Callable

import highspy
import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from symgen.split.program import Program

# An effect is set to zero if its dual product stays this far from its cost. The wider margin, which
# keeps more effects, goes first: if it fails, the narrower one fails too.
MARGINS = (0.3, 0.05)
# Repairs aim at a noise bound smaller by this share of tol, so that they need not be exact.
INSIDE = 0.5
REPAIRS = 6
# Effects below SMALL, as a share of the largest, are small. Those below NARROW are left out later.
SMALL, NARROW = 1e-3, 1e-5
BOOST, TURNS = 20.0, 4
# The first turn stops at this multiple of tol.
ROUGH = 2.0
# At most so many remaining columns, and numbers in them, make a small linear program. Without noise
# most outputs need more columns: they have no model with few effects.
MOST_COLUMNS, MOST_NUMBERS = 512, 2**22


def without_dust(
    program: Program,
    best: Tensor,
    low: Tensor,
    product: Tensor,
    tol: float,
    weight: Tensor,
    slack: Tensor,
    solve: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return feasible effects without dust, if that keeps the certificate.

    Dust: tiny effects that an inner point leaves where the optimum has zeros.

    Args:
        program: scaled programs of the samples.
        best: feasible effects (sample, 2, state), returned if zeros fail.
        low: their lower bounds (sample,).
        product: abs(A'mu) / cost, near 1 on the optimum's support.
        tol: relative gap to keep; 0 leaves the dust.
        weight, slack: diagonals of the system A diag(weight) A' + diag(slack). Its solution
            assigns the outputs of the removed effects to the remaining ones.
        solve: solves this system, exactly or approximately.
    """
    objective = program.objective(best)
    allowed = torch.maximum(tol * objective, objective - low)
    cleaned, live = best.clone(), torch.ones_like(low, dtype=torch.bool)
    for margin in MARGINS if tol else ():
        support = (product > 1 - margin) & program.columns
        live = live & (support.sum((1, 2)) < program.columns.sum())
        x = best * support
        for _ in range(REPAIRS):
            rest = program.excess(x, 1 - min(INSIDE * tol, 0.1)) * live[:, None]
            if program.negligible(rest).all():
                break
            x = x + program.explained(rest, weight * support, slack, solve)
        live = (
            live & program.negligible(program.excess(x)) & (program.objective(x) - low <= allowed)
        )
        if not live.any():
            break
        cleaned = torch.where(live[:, None, None], x, cleaned)
    return cleaned


def reweighted(
    program: Program, x: Tensor, low: Tensor, tol: float, minimize: Callable[..., tuple]
) -> Tensor:
    """Return feasible effects that are few, and as sparse as the optimum up to tol.

    Small effects get larger costs, and the program is solved again. This is reweighted l1
    minimization (Candes, Wakin and Boyd 2008, doi:10.1007/s00041-008-9045-x), started at the inner
    point x. So the result depends neither on the batch nor on the order of variables.

    Args:
        program: scaled programs of the samples.
        x: feasible effects, near the optimum.
        low: their lower bounds (sample,).
        tol: relative gap to keep, of the sum of absolute effects.
        minimize: solves a program, given a gap to stop at and a gap to keep when removing dust.
    """
    least = program.objective(x)
    most = torch.maximum(low / (1 - min(tol, 0.5)), least)
    share = _smallness(x)
    # With 1 instead of BOOST, the objective could not exceed the optimum by more than tol.
    extra = BOOST * tol * least / (share * x.abs()).sum((1, 2))
    weighted = program.weighted(1 + extra[:, None, None] * share)
    y, _ = minimize(weighted, ROUGH * tol, tol)
    few = torch.where((program.objective(y) <= most)[:, None, None], y, x)
    for i in range(len(x)):
        one = program[torch.tensor([i], device=x.device)]
        few[i] = _corner(one, few[i], y[i], float(extra[i]), float(most[i]), tol)
    return few


def _smallness(x: Tensor) -> Tensor:
    """Return 1 for zero effects, falling to SMALL for the largest of a sample."""
    return 1 / (1 + x.abs() / (SMALL * x.abs().amax((-2, -1), keepdim=True)))


def _corner(
    program: Program, few: Tensor, y: Tensor, extra: float, most: float, tol: float
) -> Tensor:
    """Return the fewest effects that reweighting reaches among the larger effects of y.

    Args:
        program: scaled program of one sample.
        few: the result so far (2, state), returned if no better one is found.
        y: solution of the last reweighted program (2, state); its small effects are left out.
        extra: additional cost of a zero effect; the largest effect costs about 1.
        most: largest allowed sum of absolute effects.
        tol: relative gap; the noise bound is tightened by a tenth of it.
    """
    eps = float(program.eps) * (1 - 0.1 * min(tol, 0.1))
    w, narrow = program.w[0, 1:].cpu().numpy(), NARROW
    limit = min(MOST_COLUMNS, MOST_NUMBERS >> program.n)
    while (y.abs() > narrow * y.abs().max()).sum() > limit and narrow < SMALL:
        narrow *= 10  # many tiny effects hide few larger ones
    for _ in range(TURNS):
        kind, members = (y.abs() > narrow * y.abs().max()).nonzero().T.cpu().numpy()
        if len(members) > limit:
            break
        matrix = columns(np.arange(1, 2**program.n), members, kind == 1)
        cost = 1 + extra * _smallness(y).cpu().numpy()[kind, members]
        x = _unique(matrix, w - eps, w + eps, cost)
        z = torch.zeros_like(y)
        z[kind, members] = torch.from_numpy(x).to(z)
        if not program.negligible(program.excess(z[None])):
            narrow /= 100
        elif float(z.abs().sum()) > most:
            extra /= 2
        elif (z != 0).sum() < (few != 0).sum():
            few = y = z
        else:
            break
    return few


def columns(states: np.ndarray, members: np.ndarray, is_or: np.ndarray) -> np.ndarray:
    """Return A (state, column): 1 if an AND has all its members in a state, or an OR any."""
    present = states[:, None] & members
    return np.where(is_or, present != 0, present == members).astype(float)


def least_cost(
    matrix: np.ndarray, low: np.ndarray, high: np.ndarray, cost: np.ndarray, solver: str = "simplex"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the x with low <= matrix x <= high of least cost * abs(x), and the duals of the rows.

    Args:
        matrix: shape (row, column).
        low, high: bounds of the rows.
        cost: costs of the columns.
        solver: "simplex", or "ipm" for an inner point of all optimal x.
    """
    both = sparse.csc_array(np.hstack([matrix, -matrix]))
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = both.shape
    program.col_cost_ = np.tile(cost, 2)
    program.col_lower_ = np.zeros(2 * len(cost))
    program.col_upper_ = np.full(2 * len(cost), np.inf)
    program.row_lower_ = low
    program.row_upper_ = high
    entries = program.a_matrix_
    entries.format_ = highspy.MatrixFormat.kColwise
    entries.start_ = both.indptr
    entries.index_ = both.indices
    entries.value_ = both.data
    highs = highspy._core._Highs()  # the class above it prints a banner
    options = {"output_flag": False, "threads": 1, "solver": solver, "run_crossover": "off"}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(program)
    highs.run()
    solution = highs.getSolution()
    plus, minus = np.split(np.array(solution.col_value), 2)
    return plus - minus, np.array(solution.row_dual)


def _unique(matrix: np.ndarray, low: np.ndarray, high: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Return the x of least cost; if several are optimal, an inner point of them.

    So the result does not depend on the order of the columns.
    """
    x, dual = least_cost(matrix, low, high, cost)
    # Another optimum would use a column that costs nothing here, or leave a bound of a row.
    free = (np.abs(dual @ matrix) > cost * (1 - 1e-7)) & (x == 0)
    at = np.minimum(abs(matrix @ x - low), abs(matrix @ x - high)) < 1e-9
    if free.any() or (at & (abs(dual) < 1e-7)).any():
        x, _ = least_cost(matrix, low, high, cost, "ipm")
    return x
