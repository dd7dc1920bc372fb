r"""The sparsest AND-OR split of a set function, with a certificate of how sparse it is.

With w = v - v[0], and A the map from effects to outputs (`and_or_outputs`), the split solves

.. math:: \min \|x\|_1 \quad\text{subject to}\quad |w_S - (Ax)_S| \le \varepsilon
          \text{ for every nonempty } S,

the linear program behind Theorem 1 and App. A.1, A.2. Its dual is

.. math:: \max \mu^\top w - \varepsilon\|\mu\|_1 \quad\text{subject to}\quad
          |A^\top\mu| \le 1,

so any such mu proves a lower bound on the objective. Both methods follow the central path of this
pair: `interior_point` with dense systems of 2**n rows, and for more variables `first_order`, whose
memory is a few vectors of length 2**n.
"""

import warnings

import numpy as np
import torch
from jaxtyping import Float
from joblib import Parallel, delayed
from torch import Tensor
from tqdm.auto import tqdm

from symgen.device import batch_budget, check_states, progress_bar
from symgen.interactions import Interactions
from symgen.split.few import reweighted
from symgen.split.first_order import FirstOrder
from symgen.split.interior_point import InteriorPoint
from symgen.split.program import Program
from symgen.transforms import count_variables

MAX_VARIABLES = 16
# Sums of 3**16 such outputs are still numbers.
LARGEST = 1e290
# A smaller noise bound counts as 0 if max(w) - min(w) = 1.
LEAST_NOISE = 1e-12
# Up to DENSE_FIRST variables, the interior-point method goes first. Up to DENSE_LAST, it finishes
# the samples that the first-order method leaves. With 12 variables a sample takes it 5 to 12 s,
# and the first-order method about 1 s.
DENSE_FIRST, DENSE_LAST = 11, 12
# Bytes of the samples that a CPU solves together. Larger batches leave its cache.
TOGETHER = 24 * 2**20
# Up to THREADS_LAST variables, more workers than this wait for each other.
FEW_WORKERS, THREADS_LAST = 2, 10


class ConvergenceWarning(UserWarning):
    """The certified gap is larger than requested."""


class DeadOutputWarning(UserWarning):
    """Samples have no total effect: v[N] = v[0], so no effect can be compared with it."""


def sparsify(
    v: Float[Tensor | np.ndarray, "*batch state"],
    noise: float = 0.02,
    tol: float = 1e-3,
    few: bool = False,
    max_iter: int = 300,
    progress: bool = False,
) -> Interactions:
    """Return the sparsest AND and OR effects that explain v on every masked state.

    Minimizes the sum of absolute effects subject to abs(d[S] - v[S]) <= noise * abs(v[N] - v[0])
    and d[0] = v[0], to a certified relative gap. If there are many optima, the result is an inner
    point of the optimal face. It does not depend on the batch or on the order of the variables.
    Without noise, complement duality holds: w[S] = -v[N - S] has the same effects with AND and OR
    swapped, except for single variables.

    Args:
        v: outputs on all 2**n masked states, 1 <= n <= 16. Bit i of the index is set if variable i
            is present. Any leading axes; at most 1e290 in size; solved in float64 on v's device.
        noise: kappa >= 0, the share of abs(v[N] - v[0]) by which d may differ from v (App. A.2).
        tol: relative gap (objective - bound) / objective to reach, > 0.
        few: return a model with few nonzero effects, for reading: within the same gap, but near a
            corner of the optimal face. It takes three to five times as long.
        max_iter: largest number of steps of a method, >= 1.
        progress: whether to show a progress bar.

    Returns:
        Interactions in float64, in the shape of v.

    Raises:
        ValueError: for a wrong shape, NaN, infinite or too large values, or arguments out of range.
        MemoryError: if the samples do not fit into memory.

    Warns:
        ConvergenceWarning: if `max_iter` steps did not reach `tol`.
        DeadOutputWarning: if v[N] = v[0] for some samples.

    Example:
        >>> v = torch.tensor([0.0, 1.0, 1.0, 1.0])  # an OR of two variables
        >>> inter = sparsify(v, noise=0.0)
        >>> inter.or_.tolist(), inter.and_.abs().max().item()
        ([0.0, 0.0, 0.0, 1.0], 0.0)
    """
    _check_options(noise, tol, max_iter)
    v = _checked(torch.as_tensor(v).detach())
    n, shape = count_variables(v), v.shape[:-1]
    flat = v.reshape(-1, 2**n)
    warn_dead(flat)
    with progress_bar(total=len(flat), desc="sparsify", unit="sample", disable=not progress) as bar:
        effects, gap = _solve(flat, noise, tol, few, max_iter, bar)
    late = int((~(gap <= tol)).sum())
    if late:
        warnings.warn(
            f"sparsify: {late} of {len(gap)} samples did not reach the relative gap {tol:g} in "
            f"{max_iter} steps; the worst is {float(gap.max()):.2g}. Raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Interactions(
        effects=effects.reshape(*shape, 2, 2**n),
        bias=flat[:, 0].reshape(shape),
        objective=effects.abs().sum((-2, -1)).reshape(shape),
        gap=gap.reshape(shape),
        full=flat[:, -1].reshape(shape),
    )


def _check_options(noise: float, tol: float, max_iter: int) -> None:
    """Refuse options out of range."""
    if not (0 <= noise < torch.inf and 0 < tol < torch.inf and max_iter >= 1):
        raise ValueError(
            f"noise is {noise}, tol {tol} and max_iter {max_iter}; expected a finite noise >= 0, a "
            "finite tol > 0 and max_iter >= 1"
        )


def warn_dead(v: Float[Tensor, "sample state"], stacklevel: int = 3) -> None:
    """Warn of samples without a total effect.

    Args:
        v: outputs; the first state is the fully masked one, the last the unmasked one.
        stacklevel: stack level of the warning.
    """
    dead = (v[:, -1] == v[:, 0]).nonzero().squeeze(-1).tolist()
    if dead:
        warnings.warn(
            f"sparsify: v[N] = v[0], the output is the same with all variables and with none, for "
            f"{len(dead)} of {len(v)} samples: {', '.join(map(str, dead[:10]))}"
            f"{', ...' if len(dead) > 10 else ''}. Their H and similarities are not defined. Leave "
            "them out, or check that the masks reach the model.",
            DeadOutputWarning,
            stacklevel=stacklevel,
        )


def _checked(v: Tensor) -> Tensor:
    n = count_variables(v)
    if not 1 <= n <= MAX_VARIABLES:
        raise ValueError(
            f"v has {n} variables (2**{n} values on the last axis); expected 1 to {MAX_VARIABLES}. "
            "Group variables into fewer, larger ones, or use sparsify_sampled"
        )
    check_states(v.shape[:-1].numel(), n)
    v = v.to(torch.float64)
    wrong = (~(v.abs() <= LARGEST)).nonzero()
    if len(wrong):
        *sample, state = wrong[0].tolist()
        raise ValueError(
            f"v is {float(v[(*sample, state)])} at sample {sample}, masked state {state} (binary "
            f"{state:0{n}b}, the last digit is variable 0); expected finite numbers up to "
            f"{LARGEST:g}. Check the network's outputs"
        )
    return v


def _solve(
    v: Tensor, noise: float, tol: float, few: bool, max_iter: int, bar: tqdm
) -> tuple[Tensor, Tensor]:
    """Return effects (sample, 2, state) and relative gaps (sample,), in parts side by side.

    On a CPU each part runs on its share of the threads, because threads that wait for each other
    within a long chain of small operations cost more than they give.
    """
    n, threads = count_variables(v), torch.get_num_threads()
    workers, memory = min(threads, threads if n > THREADS_LAST else FEW_WORKERS), TOGETHER
    if v.is_cuda:
        workers, memory = 1, batch_budget(v.device)
    numbers = 3 * 4**n if n <= DENSE_FIRST else 100 * 2**n
    size = max(1, min(memory // (8 * numbers), -(-len(v) // workers)))

    def run(part: Tensor) -> tuple[Tensor, Tensor]:
        if not v.is_cuda:
            torch.set_num_threads(max(1, threads // workers))
        result = _split(part, noise, tol, few, max_iter)
        bar.update(len(part))
        return result

    try:
        solved = Parallel(workers, require="sharedmem")(delayed(run)(x) for x in v.split(size))
    finally:
        torch.set_num_threads(threads)
    effects, gap = zip(*solved, strict=True)
    return torch.cat(effects), torch.cat(gap)


@torch.no_grad()
@torch.inference_mode(False)
def _split(v: Tensor, noise: float, tol: float, few: bool, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and their relative gaps (sample,)."""
    w = v - v[:, :1]
    # Unlike max abs(w), the range is the same for the complement dual -v[N - S].
    scale = w.amax(-1, keepdim=True) - w.amin(-1, keepdim=True)
    scale = scale.where(scale > 0, 1.0)
    # Divided first, so that the smallest numbers lose nothing.
    eps = noise * (w[:, -1:].abs() / scale)
    every = Program(w / scale, eps.where(eps > LEAST_NOISE, 0.0))
    effects = torch.zeros_like(every.cost)
    gap = torch.zeros_like(w[:, 0])
    # Zero effects are optimal if no output leaves the noise bound.
    live = (every.excess(effects) != 0).any(1)
    if live.any():
        program = every[live]
        method = FirstOrder if program.n > DENSE_FIRST else InteriorPoint
        # The reweighted model needs some room within tol.
        aim = tol / 5 if few else tol
        x, low = method(program).follow(aim, max_iter)
        if DENSE_FIRST < program.n <= DENSE_LAST:
            objective = program.objective(x)
            for late in (objective - low > tol * objective).nonzero():
                x[late], low[late] = InteriorPoint(program[late]).follow(aim, max_iter)
        if few:
            # Its first solution may be rough.
            x = reweighted(
                program, x, low, tol, lambda other: method(other).follow(2 * tol, max_iter)[0]
            )
        effects[live] = x
        objective = program.objective(x)
        gap[live] = ((objective - low) / objective).clamp(min=0.0)
    return effects * scale[..., None], gap
