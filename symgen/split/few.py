"""Fewer effects at the same certificate, by reweighting within the optimal face."""

from collections.abc import Callable

import highspy
import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from symgen.split.program import Program

# Effects below SMALL, as a share of the largest, are small. Those below NARROW are left out later.
SMALL, NARROW = 1e-3, 1e-5
# How much more small effects cost.
BOOST = 20.0
# Small linear programs per sample, and how many columns and numbers they have at most. Without
# noise most outputs need more columns: they have no model with few effects.
TURNS, MOST_COLUMNS, MOST_NUMBERS = 4, 512, 2**22


def reweighted(
    program: Program, x: Tensor, low: Tensor, tol: float, solve: Callable[[Program], Tensor]
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
        solve: returns near-optimal effects of a program.
    """
    least = program.objective(x)
    most = torch.maximum(low / (1 - min(tol, 0.5)), least)
    share = _smallness(x)
    # With 1 instead of BOOST, the objective could not exceed the optimum by more than tol.
    extra = BOOST * tol * least / (share * x.abs()).sum((1, 2))
    y = solve(Program(program.w, program.eps, 1 + extra[:, None, None] * share))
    few = y.where((program.objective(y) <= most)[:, None, None], x)
    for i in range(len(x)):
        one = program[i : i + 1]
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
    w = program.w[0, 1:].cpu().numpy()
    narrow = NARROW
    limit = min(MOST_COLUMNS, MOST_NUMBERS >> program.n)
    while (y.abs() > narrow * y.abs().max()).sum() > limit and narrow < SMALL:
        narrow *= 10  # many tiny effects hide few larger ones
    for _ in range(TURNS):
        kept = y.abs() > narrow * y.abs().max()
        if kept.sum() > limit:
            break
        kind, members = kept.nonzero().T.cpu().numpy()
        matrix = columns(np.arange(1, 2**program.n), members, kind == 1)
        cost = 1 + extra * _smallness(y)[kept].cpu().numpy()
        z = torch.zeros_like(y)
        z[kept] = torch.from_numpy(_unique(matrix, w - eps, w + eps, cost)).to(z)
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
        solver: of HiGHS: "simplex" returns a corner of all optimal x, "ipx" an inner point. So does
            "hipo", which needs `highspy-extras`; of sampled states it takes 0.7 to 5 times as long.
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
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("solver", solver)
    highs.setOptionValue("run_crossover", "off")
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
    bound = np.minimum(abs(matrix @ x - low), abs(matrix @ x - high)) < 1e-9
    if free.any() or (bound & (abs(dual) < 1e-7)).any():
        x, _ = least_cost(matrix, low, high, cost, "ipx")
    return x
