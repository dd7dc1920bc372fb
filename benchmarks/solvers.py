"""`sparsify` against the published procedure and HiGHS; few effects; sampled states."""

import functools
import os
from unittest import mock

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import OptimizeResult, linprog
from torch import Tensor

import symgen
from benchmarks.rows import in_turn, row, seconds
from symgen.device import device
from symgen.split.few import columns
from symgen.split.published import RATES, STEPS, published
from symgen.split.sampled import draw_states, sparsify_sampled
from symgen.transforms import interaction_order

NOISE = 0.02


@functools.cache
def outputs(n: int, samples: int) -> Tensor:
    """Return v (samples, 2**n) of a small network, n patches of its first feature map masked.

    It is trained on CIFAR-10 if `SYMGEN_DATA` is set, else on scikit-learn's digits.
    """
    if os.environ.get("SYMGEN_DATA"):
        data = symgen.load_dataset("uoft-cs/cifar10", train_size=2000, test_size=200)
    else:
        data = symgen.load_dataset("digits")
    model = symgen.train("cnn", data, epochs=8, checkpoints=1, progress=False).load()
    test = data.parts["test"]
    # More samples than images: other patches of the same images.
    x, y = test.batch(torch.arange(samples) % len(test))
    value = symgen.mean_feature(model, data.parts["target"].batch(torch.arange(200))[0])
    return symgen.masked_outputs(model, x, y, symgen.draw_patches(samples, n=n), value)


def highs(v: Tensor, method: str) -> OptimizeResult:
    """Return SciPy's solution of the same program: x = p - q on the two 0/1 matrices."""
    n = v.shape[-1].bit_length() - 1
    order = interaction_order(n).numpy()
    kind, index = np.nonzero([order > 0, order > 1])
    a = columns(np.arange(1, 2**n), index, kind == 1)
    w, eps = (v[1:] - v[0]).numpy(), NOISE * float((v[-1] - v[0]).abs())
    both = sparse.csc_array(np.vstack([np.hstack([a, -a]), np.hstack([-a, a])]))
    return linprog(np.ones(2 * a.shape[1]), both, np.concatenate([w + eps, eps - w]), method=method)


def exact(quick: bool) -> list[dict]:
    """Time per sample, and how far the others are above our objective."""
    n, steps = (8, 500) if quick else (10, STEPS)
    v = outputs(n, 8)
    symgen.sparsify(v[:1])
    ours, inter = seconds(lambda: symgen.sparsify(v, NOISE), 3)
    ours /= len(v)
    times, results = zip(
        *[seconds(lambda r=r: published(v, NOISE, r, steps)) for r in RATES], strict=True
    )
    best = torch.stack([x.objective for x in results]).amin(0)
    theirs = sum(times) * STEPS / steps / len(v)
    above = float((best / inter.objective).mean() - 1)
    what = f"sparsify, n = {n}, tol 1e-3"
    note = f"all three rates, samples in one batch, {steps} steps; objective {above:.0%} above ours"
    rows = [row(what, "published procedure", ours, theirs, "s per sample", note)]
    wall, result = seconds(lambda: highs(v[0], "highs-ipm"))
    off = float(inter.objective[0]) / result.fun - 1
    note = f"one sample; our objective is {off:.1e} above the optimum"
    return [*rows, row(what, "HiGHS, interior point", ours, wall, "s per sample", note)]


def few(quick: bool) -> list[dict]:
    """Nonzero effects against a vertex of the same program, and time against the default."""
    n, samples = (8, 4) if quick else (10, 30)
    v = outputs(n, samples)
    inter = symgen.sparsify(v, NOISE, few=True)
    counts = (inter.effects != 0).sum((1, 2))
    vertex = torch.tensor([int((abs(highs(x, "highs-ds").x) > 1e-9).sum()) for x in v])
    default, reweighted = in_turn(
        lambda: symgen.sparsify(v, NOISE), lambda: symgen.sparsify(v, NOISE, few=True), 3
    )
    note = f"mean of the ratios of counts {float((counts / vertex).mean()):.2f}"
    means = float(counts.double().mean()), float(vertex.double().mean())
    what, against = f"few=True, n = {n}, {samples} samples", "few=False"
    return [
        row(what, "vertex (HiGHS, simplex)", *means, "effects", note),
        row(what, against, reweighted / samples, default / samples, "s per sample"),
    ]


def growth(quick: bool) -> list[dict]:
    """Time per sample against the number of variables."""
    rows, before = [], None
    for n in (8, 9, 10) if quick else (8, 10, 12, 13, 14):
        v = outputs(n, 2)
        wall, inter = seconds(lambda v=v: symgen.sparsify(v, NOISE))
        what, note = f"sparsify, n = {n}, tol 1e-3", f"largest gap {float(inter.gap.max()):.1e}"
        rows.append(row(what, "the row before", wall / 2, before or wall / 2, "s per sample", note))
        before = wall / 2
    return rows


def _split(v: Tensor, dense: int) -> symgen.Interactions:
    """Split, with the interior-point method first up to `dense` variables."""
    with mock.patch("symgen.split.sparsify.DENSE_FIRST", dense):
        return symgen.sparsify(v, NOISE)


def methods(quick: bool) -> list[dict]:
    """The first-order method against the interior-point method, on a GPU in large batches."""
    place, rows = device(), []
    counts = ((8, 1024), (10, 1024), (12, 64)) if place.type == "cuda" else ((8, 16), (10, 16))
    for n, samples in ((7, 4),) if quick else counts:
        v = outputs(n, samples).to(place)
        ours, first = seconds(functools.partial(_split, v, n - 1), 2)
        theirs, dense = seconds(functools.partial(_split, v, n), 2)
        off = (first.effects - dense.effects).abs().sum((1, 2)) / dense.objective
        what = f"first-order split, n = {n}, {samples} samples"
        note = (
            f"largest gap {float(first.gap.max()):.1e}; effects differ by {float(off.mean()):.1%}"
        )
        both = ours / samples, theirs / samples
        rows.append(row(what, "interior point", *both, "s per sample", note))
    return rows


def _logical(states: Tensor) -> Tensor:
    """An AND of five, an OR of six and an AND of two variables."""
    and5, or6, and2 = 0b111110, 0b111111 << 6, 0b11 << 12
    parts = 2.0 * ((states & and5) == and5) + 1.5 * ((states & or6) != 0)
    return parts.double() + (states & and2 == and2)


def sampled(quick: bool) -> list[dict]:
    """More than 16 variables: planted logic of high orders, judged on states held out."""
    rows = []
    for n in (20,) if quick else (20, 24, 40):
        states = draw_states(n, 500)
        v = _logical(states)[None]
        for chosen in (False, True):
            wall, inter = seconds(
                lambda s=states, n=n, v=v, f=chosen: sparsify_sampled(v, s, n, held_out=100, few=f)
            )
            left, count = float(inter.errors.mean()), len(inter.to_frame())
            note = f"{wall:.1f} s; {left:.1e} of the held-out variance unexplained"
            what = f"sparsify_sampled, n = {n}, 400 states, few={chosen}"
            rows.append(row(what, "planted", count, 3, "effects", note))
    return rows


def peers(quick: bool) -> list[dict]:
    """Error of Shapley values against ProxySPEX of shapiq, at the same number of states."""
    try:
        from shapiq.approximator import ProxySPEX
    except ImportError:
        print("peers: ProxySPEX (shapiq >= 1.3) is not installed; its rows are left out")
        return []
    n, budget = 20, 300 if quick else 1000
    states = draw_states(n, budget)
    wall, inter = seconds(lambda: sparsify_sampled(_logical(states)[None], states, n, few=True))
    # The members of an AND and of an OR share its effect equally.
    values, exact = np.zeros(n), np.zeros(n)
    for index, effect in zip(inter.index.tolist(), inter.effects[0].tolist(), strict=True):
        values += effect / index.bit_count() * (index >> np.arange(n) & 1)
    for index, effect in ((0b111110, 2.0), (0b111111 << 6, 1.5), (0b11 << 12, 1.0)):
        exact += effect / index.bit_count() * (index >> np.arange(n) & 1)

    def game(coalitions: np.ndarray) -> np.ndarray:
        index = (coalitions.astype(np.int64) << np.arange(n)).sum(1)
        return _logical(torch.from_numpy(index)).numpy()

    proxy = ProxySPEX(n=n, index="SV", max_order=1)
    theirs, result = seconds(lambda: proxy.approximate(budget, game))
    errors = (abs(x - exact).max() for x in (values, result.get_n_order_values(1)))
    what = f"sparsify_sampled, n = {n}, {budget} states, few=True"
    return [
        row(what, "ProxySPEX", *map(float, errors), "largest error of Shapley values"),
        row(what, "ProxySPEX", wall, theirs, "s per sample"),
    ]
