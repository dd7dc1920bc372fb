"""The optimal face: all models that are as sparse as the result of `sparsify`."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import OptimizeResult, linprog
from torch import Tensor

from symgen.split.few import columns
from symgen.split.sparsify import sparsify
from symgen.transforms import count_variables, interaction_order

# This takes half a minute.
MAX_VARIABLES = 8


def optimal_face(v: Float[Tensor, "*batch state"]) -> pd.DataFrame:
    r"""Return how far every effect moves among all sparsest models of an output, without noise.

    With optimal duals mu, an effect can be nonzero in a sparsest model only if
    :math:`(A^\top\mu)_T = \pm 1`, and only with that sign. All models that keep to this and match v
    are equally sparse: they are the optimal face of the linear program. Two more linear programs
    give the ends of each effect on it.

    Args:
        v: outputs of one sample, of up to 8 variables.

    Returns:
        One row per effect that is nonzero somewhere on the face: type, members, order, index; low
        and high, the ends of its range; inner, the result of `sparsify`; vertex, the result of a
        simplex method (all in log odds); salient, whether it exceeds the threshold in "all",
        "some" or "none" of the sparsest models.

    Raises:
        ValueError: for several samples, or more variables.
        ArithmeticError: if the solver (SciPy's HiGHS) fails.

    Example:
        >>> v = torch.tensor([0.0, 0, 0, 1, 0, 1, 1, 1])  # at least two of three variables
        >>> optimal_face(v)[["low", "high"]].round().astype(int).tail(1).values.tolist()
        [[-2, 0]]
    """
    n = count_variables(v)
    if v.ndim != 1 or n > MAX_VARIABLES:
        raise ValueError(
            f"v has shape {tuple(v.shape)}; expected one sample of up to {MAX_VARIABLES} "
            f"variables, (2**n,). To analyse the first {MAX_VARIABLES} variables with all others "
            f"present, pass v[-(2**{MAX_VARIABLES}):]"
        )
    v = v.to(torch.float64).cpu()
    order = interaction_order(n).numpy()
    kind, index = np.nonzero([order > 0, order > 1])
    matrix = columns(np.arange(1, 2**n), index, kind == 1)
    scale = float(v.max() - v.min()) or 1.0
    goal = ((v - v[0])[1:] / scale).numpy()
    # An effect is a positive part minus a negative part.
    best = _solved(np.ones(2 * matrix.shape[1]), np.hstack([matrix, -matrix]), goal)
    vertex = np.subtract(*np.split(best.x, 2))
    worth = matrix.T @ best.eqlin.marginals
    free = np.flatnonzero(abs(worth) > 1 - 1e-7)
    signs = np.sign(worth[free])
    facing = matrix[:, free] * signs
    ends = [
        [way * _solved(way * one, facing, goal).fun for way in (1, -1)] for one in np.eye(len(free))
    ]
    sizes = np.array(ends).reshape(-1, 2)
    low, high = np.sort(sizes * signs[:, None]).T * scale
    central = sparsify(v, noise=0.0, tol=1e-6)
    kind, index = kind[free], index[free]
    always, ever = (sizes[:, k] * scale > float(central.threshold()) for k in (0, 1))
    return pd.DataFrame({
        "type": np.array(["and", "or"])[kind],
        "members": [", ".join(map(str, central.members(int(t)))) for t in index],
        "order": order[index], "index": index, "low": low, "high": high,
        "inner": central.effects.numpy()[kind, index], "vertex": vertex[free] * scale,
        "salient": np.select([always, ever], ["all", "some"], "none"),
    })  # fmt: skip


def _solved(cost: np.ndarray, matrix: np.ndarray, goal: np.ndarray) -> OptimizeResult:
    """Return the solution of: minimize cost'x subject to matrix x = goal and x >= 0."""
    result = linprog(cost, A_eq=matrix, b_eq=goal, method="highs-ds")
    if result.status != 0:
        raise ArithmeticError(f"optimal_face: HiGHS did not solve a program: {result.message}")
    return result
