r"""The sparsest AND-OR split of a set function, with a certificate of how sparse it is.

With w = v - v[0], and A the map from effects to outputs (`and_or_outputs`), the split solves

.. math:: \min \|x\|_1 \quad\text{subject to}\quad |w_S - (Ax)_S| \le \varepsilon
          \text{ for every nonempty } S,

the linear program behind Theorem 1 and App. A.1, A.2. Its dual is

.. math:: \max \mu^\top w - \varepsilon\|\mu\|_1 \quad\text{subject to}\quad
          |A^\top\mu| \le 1,

so any such mu proves a lower bound on the objective. Both methods here follow the central path
of this pair to the gap asked for: `interior_point` with dense systems of 2**n rows, up to
n = 11; `first_order`, whose memory is a few vectors of 2**n, above. What the latter leaves
unfinished is taken up by the former while its matrix fits, up to n = 12.
"""

import functools
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from symgen.fingerprints import not_a_result, same_numbers
from symgen.interactions import Interactions
from symgen.memory import batch_budget, free_memory
from symgen.split import first_order, interior_point
from symgen.split.linear_program import Program
from symgen.transforms import count_variables

MAX_VARIABLES = 16
# Outputs up to this size have effects, sums of 3**16 differences, that are numbers too.
LARGEST = 1e290
# Up to here the interior-point method goes first, and up to here its matrix is formed at all.
# With 11 variables it takes a second a sample, whatever the outputs; the first-order method a
# third of one to four, and then it can end without the gap. With 12 it takes 5 to 12 s against
# 0.3 to 3.4 s (one thread, tol 1e-2 and 1e-3, noise 0 to 0.05).
DENSE_FIRST = 11
DENSE_LAST = 12
# What all parts of the batch that are worked on at the same time may hold, in bytes.
MEMORY = 2**29
# Samples that share the calls of one worker. Large factorizations gain nothing from company,
# and alone, with as many threads, a sample's result cannot depend on others even by rounding.
TOGETHER = 8
ALONE = range(9, DENSE_FIRST + 1)
# Workers that the systems up to here keep busy: between their short operations all of them ask
# the one Python. On 16 threads of a server, 16 samples of 9 variables took 1.4, 1.6 and 4.2 s
# with 1, 2 and 16, and of 10 variables 3.0, 2.5 and 5.0 s.
FEW_WORKERS, THREADS_LAST = 2, 10
# So few samples of so few variables are done sooner by a CPU: a GPU is started for every operation.
# There it took 0.28 against 0.21 s for four samples of 8 variables, and as long for eight.
FEW_SAMPLES, GPU_FIRST = 4, 9


class ConvergenceWarning(UserWarning):
    """The certified gap is larger than the one asked for."""


class DeadOutputWarning(UserWarning):
    """Samples have no total effect: v[N] = v[0], so that nothing can be a share of it."""


def sparsify(
    v: Float[Tensor | np.ndarray, "*batch state"],
    noise: float = 0.02,
    tol: float = 1e-3,
    max_iter: int = 100,
    progress: bool = False,
) -> Interactions:
    """Return the sparsest AND and OR effects that explain v on every masked state.

    Minimizes the sum of absolute effects subject to abs(d[S] - v[S]) <= noise * abs(v[N] - v[0])
    and d[0] = v[0], down to a certified relative gap. Where optima are many, the result is an
    inner point of the optimal face, which need not be its analytic centre: the same for every
    batch and every numbering of the variables. Effects that the dual
    certificate keeps away from the optimum's support are then set to zero, and feasibility and
    certificate computed again. AND and OR are treated alike: without noise, the complement dual
    w[S] = -v[N - S] has the same effects with AND and OR swapped, but for single variables. So
    sparse logic comes back as it was planted where it is the only optimum; where it is one of
    many, it has the effects of all of them, be it planted as ANDs or as ORs.

    Args:
        v: outputs on all 2**n masked states, 1 <= n <= 16, bit i of the index set when variable
            i is present. Any leading axes; tensor or array; at most 1e290 in size; solved in
            float64 on v's device (few samples of few variables on the CPU, and brought back).
        noise: finite kappa >= 0, share of abs(v[N] - v[0]) by which d may miss v. App. A.2
            allows noise but does not say how much; this bound is ours.
        tol: relative gap (objective - bound) / objective to reach, > 0 and finite.
        max_iter: steps of a method after which to stop and warn, >= 1.
        progress: whether to show a bar.

    Returns:
        Interactions in float64, in the shape of v.

    Raises:
        ValueError: for a wrong shape, NaN, infinite or too large values (naming the state), or
            arguments out of range.
        MemoryError: where the memory for so many samples is not free, before any of it is taken.

    Warns:
        ConvergenceWarning: with the worst gap, where `max_iter` steps did not reach `tol`.
        DeadOutputWarning: with the samples for which v[N] = v[0].

    Example:
        >>> v = torch.tensor([0.0, 1.0, 1.0, 1.0])  # an OR of two variables
        >>> inter = sparsify(v, noise=0.0)
        >>> inter.or_.tolist(), inter.and_.abs().max().item()
        ([0.0, 0.0, 0.0, 1.0], 0.0)
    """
    v = _checked(v, noise, tol, max_iter)
    n, shape = count_variables(v), v.shape[:-1]
    flat = v.reshape(-1, 2**n)
    warn_dead(flat)
    with tqdm(total=len(flat), desc="sparsify", unit="sample", disable=not progress) as bar:
        effects, gap = _solve(flat, noise, tol, max_iter, bar)
    late = int((~(gap <= tol)).sum())
    if late:
        warnings.warn(
            f"sparsify: {late} of {len(gap)} samples did not reach the relative gap {tol:g} in "
            f"{max_iter} steps; the worst is {float(gap.max()):.2g}. Raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Interactions(
        and_=effects[:, 0].reshape(*shape, 2**n),
        or_=effects[:, 1].reshape(*shape, 2**n),
        bias=flat[:, 0].reshape(shape),
        objective=effects.abs().sum((-2, -1)).reshape(shape),
        gap=gap.reshape(shape),
        full=flat[:, -1].reshape(shape),
    )


@not_a_result
def warn_dead(v: Float[Tensor, "sample state"], stacklevel: int = 3) -> None:
    """Warn of samples without a total effect, as the caller of what calls this.

    Args:
        v: of which the first state is the fully masked one and the last the unmasked one.
        stacklevel: of the warning.
    """
    dead = (v[:, -1] == v[:, 0]).nonzero().squeeze(-1).tolist()
    if dead:
        warnings.warn(
            f"sparsify: the output is the same with all variables and with none (v[N] = v[0]) for "
            f"{len(dead)} of {len(v)} samples: {', '.join(map(str, dead[:10]))}"
            f"{', ...' if len(dead) > 10 else ''}. Their H and similarities are not defined; "
            "leave them out, or look whether the masks reach the model.",
            DeadOutputWarning,
            stacklevel=stacklevel,
        )


def _checked(v: Tensor | np.ndarray, noise: float, tol: float, max_iter: int) -> Tensor:
    v = torch.as_tensor(v).detach()
    n, samples = count_variables(v), v.shape[:-1].numel()
    if not 1 <= n <= MAX_VARIABLES:
        advice = "Group variables into fewer, larger ones" if n else "One state has no interactions"
        raise ValueError(
            f"sparsify takes 1 to {MAX_VARIABLES} variables; v has {n} (the last axis is 2**n, "
            f"about {work_bytes(n) / 2**30:.1f} GiB of work a sample). {advice}."
        )
    # v in float64, a temporary as large, both types of effects, and the work on one sample.
    needed, free = samples * 4 * 8 * 2**n + work_bytes(n), free_memory(v.device)
    if samples and needed > free:
        raise MemoryError(
            f"sparsify needs about {needed / 2**30:,.1f} GiB for {samples:,} samples of n = {n} "
            f"variables; {free / 2**30:,.1f} GiB are free. Give it fewer samples at a time."
        )
    if not (0 <= noise < torch.inf and 0 < tol < torch.inf and max_iter >= 1):
        raise ValueError(
            "noise must be >= 0, tol > 0, both finite, and max_iter >= 1; "
            f"got noise={noise}, tol={tol}, max_iter={max_iter}"
        )
    v = v.to(torch.float64)
    wrong = ~(v.abs() <= LARGEST)
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"v must be finite, and at most {LARGEST:g} in size; it is {float(v[tuple(where)])} at "
            f"sample {where[:-1]}, masked state {where[-1]} (binary {where[-1]:0{n}b}, the last "
            "digit is variable 0)"
        )
    return v


@same_numbers
def where_it_is_fast(solve: Callable) -> Callable:
    """Have few samples of few variables solved on the CPU, and small ones by few threads."""

    @functools.wraps(solve)
    def placed(v: Tensor, *settings: object) -> tuple[Tensor, Tensor]:
        n, threads = count_variables(v), torch.get_num_threads()
        if v.is_cuda and n < GPU_FIRST and len(v) <= FEW_SAMPLES:
            effects, gap = placed(v.cpu(), *settings)
            return effects.to(v.device), gap.to(v.device)
        if v.is_cuda or n > THREADS_LAST or threads <= FEW_WORKERS:
            return solve(v, *settings)
        torch.set_num_threads(FEW_WORKERS)
        try:
            return solve(v, *settings)
        finally:
            torch.set_num_threads(threads)

    return placed


@where_it_is_fast
def _solve(v: Tensor, noise: float, tol: float, max_iter: int, bar: tqdm) -> tuple[Tensor, Tensor]:
    """Return effects (sample, 2, state) and relative gaps (sample,), part by part.

    On a GPU a part is as many samples as half of its free memory holds.

    On a CPU the parts that run beside each other share the threads, one each where there are as
    many parts: these are long chains of small operations, and threads that wait for each other
    within them cost more than they give, on a busy machine ten times more.
    """
    effects = v.new_zeros(len(v), 2, v.shape[-1])
    gap = v.new_zeros(len(v))
    threads = torch.get_num_threads()
    workers = 1 if v.is_cuda else max(1, min(threads, len(v)))
    n = count_variables(v)
    memory = batch_budget(v.device) if v.is_cuda else MEMORY
    size = max(1, memory // workers // work_bytes(n))
    if not v.is_cuda:
        size = 1 if n in ALONE else min(size, TOGETHER)
    stop = threading.Event()

    @torch.no_grad()
    def run(part: slice) -> int:
        if not v.is_cuda:
            torch.set_num_threads(max(1, threads // workers))
        w = v[part] - v[part, :1]
        # The range, unlike max abs(w), is the same for the complement dual -v[N - S].
        scale = w.amax(-1) - w.amin(-1)
        scale = scale.where(scale > 0, 1.0)
        # Scaled before it is multiplied, so that the smallest numbers lose nothing.
        eps = noise * (w[:, -1].abs() / scale)
        x, low = _minimize(Program(w / scale[:, None], eps, stop), tol, max_iter)
        effects[part] = x * scale[:, None, None]
        objective = x.abs().sum((1, 2))
        gap[part] = ((objective - low) / objective).where(objective != 0, 0.0).clamp(min=0.0)
        return len(w)

    parts = [slice(start, start + size) for start in range(0, len(v), size)]
    pool = ThreadPoolExecutor(workers)
    try:
        for done in pool.map(run, parts):
            bar.update(done)
    finally:
        # After an error or Ctrl-C: what waits is not begun, and what runs ends with its iteration.
        stop.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    return effects, gap


def work_bytes(n: int) -> int:
    """Return about how many bytes `sparsify` works with for every sample that it takes at once."""
    return 8 * (3 * 4**n if n <= DENSE_FIRST else 100 * 2**n)


def _minimize(program: Program, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Return feasible effects (sample, 2, state) and proven lower bounds (sample,)."""
    found = program.w.new_zeros(len(program), 2, 2**program.n)
    bound = program.w.new_zeros(len(program))
    methods = [interior_point.minimize] if program.n <= DENSE_LAST else []
    if program.n > DENSE_FIRST:
        methods.insert(0, first_order.minimize)
    # Zero effects explain all there is where nothing leaves the noise bound.
    live = (program.excess(found).abs().amax(-1) > 0).nonzero().squeeze(-1)
    for method in methods:
        if not len(live):
            break
        # Dense systems that take over one by one: the memory was counted without them.
        size = 1 if method is not methods[0] else len(live)
        for part in live.split(size):
            found[part], bound[part] = method(program[part], tol, max_iter)
        objective, low = found[live].abs().sum((1, 2)), bound[live]
        live = live[~(objective - low <= tol * objective)]
    return found, bound
