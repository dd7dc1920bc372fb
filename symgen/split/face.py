"""The optimal face: all models that are as sparse as the one that `sparsify` gives."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import OptimizeResult, linprog
from torch import Tensor

from symgen.split.sparsify import sparsify
from symgen.transforms import and_or_outputs, count_variables, interaction_order

# Half a minute; above, the many dense programs take many.
MAX_VARIABLES = 8


def optimal_face(v: Float[Tensor, "*batch state"]) -> pd.DataFrame:
    r"""Return how far every effect moves among all sparsest models of an output, without noise.

    With best prices mu, an effect is nonzero in some sparsest model only if a unit of it is worth
    :math:`(A^\top\mu)_T = \pm 1`, and only with that sign. The models that keep to this and match
    v are all equally sparse: they are the optimal face of the linear program. The ends of each
    effect on it are two more linear programs.

    Args:
        v: outputs of one sample, of up to 8 variables.

    Returns:
        One row an effect that the face leaves room for: type, members, order, index; low and high,
        the ends of its range; inner, as `sparsify` has it; vertex, a corner where a simplex method
        stops (log odds); salient, by its threshold: in "all", "some" or "none" of the
        sparsest models.

    Raises:
        ValueError: for several samples, or more variables.
        ArithmeticError: where the solver (SciPy's HiGHS) gives up.

    Example:
        >>> v = torch.tensor([0.0, 0, 0, 1, 0, 1, 1, 1])  # at least two of three variables
        >>> optimal_face(v)[["low", "high"]].round().astype(int).tail(1).values.tolist()
        [[-2, 0]]
    """
    n = count_variables(v)
    if v.ndim != 1 or n > MAX_VARIABLES:
        raise ValueError(
            f"optimal_face takes one sample of up to {MAX_VARIABLES} variables, shape (2**n,); "
            f"got {tuple(v.shape)}. Keep some variables present: v[-(2**{MAX_VARIABLES}) :]"
        )
    v = v.to(torch.float64).cpu()
    order = interaction_order(n)
    counted = torch.cat([order > 0, order > 1])
    unit = torch.eye(len(counted), dtype=v.dtype).unflatten(1, (2, -1))[counted]
    matrix = and_or_outputs(unit[:, 0], unit[:, 1])[:, 1:].T.numpy()
    scale = float(v.max() - v.min()) or 1.0
    goal = ((v - v[0])[1:] / scale).numpy()
    # An effect is a positive part less a negative part.
    best = _solved(np.ones(2 * matrix.shape[1]), np.hstack([matrix, -matrix]), goal)
    vertex = np.subtract(*np.split(best.x, 2))
    worth = matrix.T @ best.eqlin.marginals
    free = np.flatnonzero(abs(worth) > 1 - 1e-7)
    signs = np.sign(worth[free])
    facing = matrix[:, free] * signs
    aims = np.eye(len(free))
    ends = [[way * _solved(way * aim, facing, goal).fun for way in (1, -1)] for aim in aims]
    sizes = np.array(ends).reshape(-1, 2)
    low, high = np.sort(sizes * signs[:, None]).T * scale
    central = sparsify(v, noise=0.0, tol=1e-6)
    kind, index = np.divmod(np.flatnonzero(counted)[free], 2**n)
    always, ever = (sizes[:, k] * scale > float(central.threshold()) for k in (0, 1))
    return pd.DataFrame({
        "type": np.array(["and", "or"])[kind],
        "members": [", ".join(map(str, central.members(int(t)))) for t in index],
        "order": order.numpy()[index], "index": index, "low": low, "high": high,
        "inner": central.effects.numpy()[kind, index], "vertex": vertex[free] * scale,
        "salient": np.select([always, ever], ["all", "some"], "none"),
    })  # fmt: skip


def _solved(cost: np.ndarray, matrix: np.ndarray, goal: np.ndarray) -> OptimizeResult:
    """Return the solution of: minimize cost'x subject to matrix x = goal and x >= 0."""
    found = linprog(cost, A_eq=matrix, b_eq=goal, method="highs-ds")
    if found.status != 0:
        raise ArithmeticError(f"optimal_face: HiGHS did not solve a program: {found.message}")
    return found
