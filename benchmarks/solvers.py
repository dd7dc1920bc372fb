"""`sparsify` against the published procedure, HiGHS, and itself at more variables."""

import contextlib
import multiprocessing
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import linprog

import symgen
from benchmarks import inputs
from benchmarks.published import dense
from benchmarks.rows import Row, seconds
from symgen.masking.extraction import GPU_LAST
from symgen.split import interior_point
from symgen.split.design import draw_states
from symgen.split.published import RATES, STEPS, published
from symgen.split.sampled import sparsify_sampled
from symgen.split.sparsify import ConvergenceWarning

NOISE = 0.02


def against_published(quick: bool) -> list[Row]:
    """The published procedure: sample by sample, all samples at once, with our transforms."""
    n, samples = 10, 8 if quick else 32
    steps = 500 if quick else STEPS
    v = inputs.outputs(n, samples)
    symgen.sparsify(v[:1], noise=NOISE)
    ours = {tol: seconds(lambda t=tol: symgen.sparsify(v, NOISE, t), 3) for tol in (1e-3, 1e-2)}
    ways = (
        # Its own code has a loop over samples; that it could batch them is our addition.
        ("published procedure", dense(n), [v[:1], v[1:2]], True),
        ("published procedure, all samples in one batch", dense(n), [v], False),
        ("the same, with our transforms", contextlib.nullcontext(), [v], False),
    )
    rows = []
    for against, transforms, batches, judged in ways:
        count = sum(map(len, batches))
        times, objectives = [], []
        with transforms:
            for rate in RATES:
                spent, found = 0.0, []
                for part in batches:
                    wall, _, inter = seconds(lambda r=rate, p=part: published(p, NOISE, r, steps))
                    spent += wall * STEPS / steps
                    found.append(inter.objective)
                times.append(spent / count)
                objectives.append(torch.cat(found))
        best = torch.stack(objectives).amin(0)
        single = int(torch.stack(objectives).mean(1).argmin())
        for tol, must in ((1e-3, 50), (1e-2, 60)):
            wall, processor, inter = ours[tol]
            above = best / inter.objective[:count] - 1
            rows.append(
                Row(
                    f"sparsify, n = {n}, tol {tol:g}",
                    against,
                    wall / samples,
                    sum(times),
                    "s a sample",
                    sum(times) / (wall / samples),
                    must if judged else None,
                    note=_about(times[single], wall / samples, count, above, steps),
                    data={
                        "samples": samples,
                        "samples_of_theirs": count,
                        "processor": processor / samples,
                        "seconds_by_rate": times,
                        "ratio_of_best_rate": times[single] / (wall / samples),
                        "best_rate": RATES[single],
                        "above_ours": [float(a) for a in above],
                        "lower_on_every_sample": bool((above > 0).all()),
                        "worst_gap": float(inter.gap.max()),
                    },
                )
            )
    return rows


def profile(quick: bool) -> list[Row]:
    """Where the time of `sparsify` goes, on one thread."""
    n, parts = 10, {}
    v = inputs.outputs(n, 4 if quick else 12)
    watched = (
        (interior_point, "_cholesky", "factorizations"),
        (interior_point, "_normal_matrix", "their matrices"),
        (interior_point._Dense, "__call__", "triangular solutions"),
        (interior_point._Iterate, "polished", "setting zeros"),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(threads(1))
        symgen.sparsify(v[:1], noise=NOISE)
        for place, name, label in watched:
            stack.enter_context(mock.patch.object(place, name, _timed(place, name, label, parts)))
        _, whole, _ = seconds(lambda: symgen.sparsify(v, noise=NOISE))
    shares = {label: spent / whole for label, spent in parts.items()}
    return [
        Row(
            f"sparsify, n = {n}, tol 0.001, one thread: factorizations",
            "all its processor time",
            parts["factorizations"] / len(v),
            whole / len(v),
            "s a sample",
            shares["factorizations"],
            note=", ".join(f"{label} {share:.0%}" for label, share in shares.items())
            + "; setting zeros includes some of the solutions",
            data={"shares": shares},
        )
    ]


def _timed(place: object, name: str, label: str, parts: dict[str, float]) -> Callable:
    function = getattr(place, name)

    def measured(*arguments):
        began = time.process_time()
        found = function(*arguments)
        parts[label] = parts.get(label, 0.0) + time.process_time() - began
        return found

    return measured


def _about(single: float, ours: float, count: int, above: torch.Tensor, steps: int) -> str:
    text = (
        f"theirs is on {count} samples, with all three learning rates; the best one alone takes "
        f"{single:.2f} s, {single / ours:.0f} times as long as ours; the best objective is "
        f"{100 * above.min():.0f} to {100 * above.max():.0f} % above ours"
    )
    return text + ("" if steps == STEPS else f"; time taken from {steps} steps")


def _matrix(n: int) -> sparse.csc_array:
    unit = torch.eye(2**n, dtype=torch.float64)
    zero = torch.zeros_like(unit)
    many = symgen.interaction_order(n) > 1
    and_ = symgen.and_or_outputs(unit, zero)[1:, 1:].T
    or_ = symgen.and_or_outputs(zero, unit)[many][:, 1:].T
    a = torch.cat([and_, or_], 1).numpy()
    return sparse.csc_array(np.hstack([a, -a]))


def against_highs(quick: bool) -> list[Row]:
    """SciPy's HiGHS, its interior-point method, on a few samples."""
    n, samples = (8, 2) if quick else (10, 3)
    v = inputs.outputs(n, samples)
    a = _matrix(n)
    both, cost = sparse.vstack([a, -a]), np.ones(a.shape[1])
    symgen.sparsify(v[:1], noise=NOISE)
    # One by one, as HiGHS takes them.
    wall, processor, inters = seconds(lambda: [symgen.sparsify(x, NOISE) for x in v], 3)
    total, off = 0.0, []
    for x, inter in zip(v, inters, strict=True):
        w, eps = (x[1:] - x[0]).numpy(), NOISE * float((x[-1] - x[0]).abs())
        right = np.concatenate([w + eps, eps - w])
        spent, _, found = seconds(lambda r=right: linprog(cost, both, r, method="highs-ipm"))
        total += spent
        off.append(float(inter.objective) / found.fun - 1)
    return [
        Row(
            f"sparsify, n = {n}, tol 0.001",
            "HiGHS, interior point",
            wall / samples,
            total / samples,
            "s a sample",
            total / wall,
            None if quick else 30,
            note=f"one sample at a time; our objective is at most {max(off):.1e} above its optimum",
            data={"samples": samples, "processor": processor / samples, "above_optimum": off},
        )
    ]


def _peak() -> float:
    """Return the largest memory this process has had, in GiB.

    Not `ru_maxrss`: on Linux a new process starts with the value of the one that made it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text()).group(1)) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _measure(connection, path: str, tol: float) -> None:
    v = torch.load(path, weights_only=True)
    symgen.sparsify(v[:1, : 2**6], noise=NOISE)
    before = _peak()
    wall, processor, inter = seconds(lambda: symgen.sparsify(v, NOISE, tol))
    connection.send((wall, processor, _peak() - before, float(inter.gap.max())))


def _apart(v: torch.Tensor, tol: float) -> dict:
    """Solve in a process of its own, whose memory nothing else has touched."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    from benchmarks.rows import FOLDER

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "outputs.pt"
    torch.save(v, path)
    process = context.Process(target=_measure, args=(there, str(path), tol))
    process.start()
    there.close()
    wall, processor, memory, gap = here.recv()
    process.join()
    path.unlink()
    count = len(v)
    return {
        "n": v.shape[-1].bit_length() - 1,
        "tol": tol,
        "samples": count,
        "seconds": wall / count,
        "processor": processor / count,
        "gib": memory,
        "gap": gap,
    }


def growth(quick: bool) -> list[Row]:
    """Time and memory against the number of variables."""
    last = 12 if quick else 16
    counts = {13: 4, 14: 2, 15: 2, 16: 2}
    points = []
    for n in range(6, last + 1):
        v = inputs.outputs(n, 2 if quick else counts.get(n, 8))
        points += [_apart(v, tol) for tol in (1e-2, 1e-3)]
    found = {(p["n"], p["tol"]): p for p in points}
    fine = {n: found[n, 1e-3]["seconds"] for n in range(6, last + 1)}
    # Where the gap is not reached within the allowed steps, the time says nothing.
    last = max(n for n in fine if found[n, 1e-3]["gap"] <= 1e-3)
    rows = [
        Row(
            "sparsify, one more variable, n = 11 and up",
            "one variable less",
            fine[last],
            fine[11],
            "s a sample",
            (fine[last] / fine[11]) ** (1 / (last - 11)),
            note=f"mean factor of the time from n = 11 to {last}, tol 0.001; aim at most 3",
            data={"points": points},
        ),
        Row(
            "sparsify, n = 12",
            "n = 10",
            fine[12],
            fine[10],
            "s a sample",
            fine[12] / fine[10],
            limit=60,
            note="tol 0.001",
        ),
    ]
    if (14, 1e-2) in found:
        spent = found[14, 1e-2]["seconds"]
        what = "sparsify, n = 14, tol 0.01"
        rows.append(Row(what, "ten minutes", spent, 600, "s a sample", spent / 600, limit=1))
    return rows


def steps(quick: bool) -> list[Row]:
    """The gap that the most variables reach in 200 steps, twice as many as by default."""
    rows = []
    for n in (13,) if quick else (15, 16):
        v = inputs.outputs(n, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            wall, _, inter = seconds(lambda v=v: symgen.sparsify(v, NOISE, 1e-3, max_iter=200))
        gap = float(inter.gap.max())
        note = f"larger gap of two samples, {wall / 2:.0f} s each; 40 iterations a step"
        what = f"sparsify, n = {n}, gap after 200 steps"
        rows.append(Row(what, "asked for", gap, 1e-3, "gap", gap / 1e-3, note=note))
    return rows


def sampled(quick: bool) -> list[Row]:
    """Interactions among 20 variables from sampled states, against all states of 12."""
    exact = inputs.outputs(12, 2)
    states = draw_states(20, 200 if quick else 500)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, len(states), generator=generator, dtype=torch.float64)
    theirs, _, _ = seconds(lambda: symgen.sparsify(exact, NOISE))
    ours, _, inter = seconds(lambda: sparsify_sampled(v, states, 20, noise=NOISE))
    note = f"{inter.effects.shape[1]:,} candidates, outputs drawn at random, the hardest there are"
    what = f"sparsify_sampled, n = 20, {len(states)} states"
    return [
        Row(what, "sparsify, n = 12, all states", ours / 2, theirs / 2, "s a sample", note=note)
    ]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Have torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device(quick: bool) -> list[Row]:
    """The split on a GPU, where `split_outputs` runs it, against the CPU; nothing without one."""
    if not torch.cuda.is_available():
        print("there is no GPU: the rows of the split on one are left out")
        return []
    rows = []
    for n, samples in ((8, 64), (GPU_LAST - 2, 32), *(() if quick else ((GPU_LAST, 16),))):
        v = inputs.outputs(n, samples)

        def split(place, v=v):
            # Back on the CPU, as it is stored; that also waits for the last of it.
            return symgen.sparsify(v.to(place), NOISE).to("cpu")

        split("cuda")
        ours, _, there = seconds(lambda: split("cuda"), 3)
        # More threads than two hold each other up here: one part after the other asks Python.
        with threads(2):
            theirs, _, here = seconds(lambda: split("cpu"))
        off = float((there.effects - here.effects).abs().max())
        rows.append(
            Row(
                f"sparsify on a GPU, n = {n}, {samples} samples, tol 0.001",
                "on the CPU, two threads",
                ours / samples,
                theirs / samples,
                "s a sample",
                theirs / ours,
                1,
                note=f"largest difference of an effect {off:.0e}; below 1, lower `GPU_LAST`",
            )
        )
    return rows


def memory(quick: bool) -> list[Row]:
    """Memory of one sample against the number of variables, beyond what the process had."""
    rows = []
    for n, limit in ((10, None), (12, None), *(() if quick else ((14, 4), (16, 12)))):
        point = _apart(inputs.outputs(n, 2)[:1], 1e-2)
        rows.append(
            Row(
                f"sparsify, n = {n}, tol 0.01, memory of one sample",
                f"{limit} GiB" if limit else "",
                point["gib"],
                limit,
                "GiB",
                point["gib"] / limit if limit else None,
                limit=1 if limit else None,
                data={"memory": {"n": n, "gib": point["gib"]}},
            )
        )
    return rows
