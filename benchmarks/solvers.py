"""`sparsify` against the published procedure and HiGHS; few effects; sampled states."""

import functools
import os
from collections.abc import Iterable
from unittest import mock

import highspy
import numpy as np
import torch
from shapiq import approximator
from threadpoolctl import threadpool_limits
from torch import Tensor

import symgen
from benchmarks.rows import in_turn, row, seconds
from symgen.device import device
from symgen.split.few import columns, least_cost
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


def highs(v: Tensor, solver: str) -> np.ndarray:
    """Return the effects that HiGHS finds for the same program, on one thread."""
    n = v.shape[-1].bit_length() - 1
    order = interaction_order(n).numpy()
    kind, index = np.nonzero([order > 0, order > 1])
    a = columns(np.arange(1, 2**n), index, kind == 1)
    w, eps = (v[1:] - v[0]).numpy(), NOISE * float((v[-1] - v[0]).abs())
    return least_cost(a, w - eps, w + eps, np.ones(a.shape[1]), solver)[0]


def has_hipo() -> bool:
    """Return whether HiGHS has its newest interior-point method (package highspy-extras)."""
    return highspy._core._Highs().setOptionValue("solver", "hipo") == highspy.HighsStatus.kOk


def exact(quick: bool) -> list[dict]:
    """Time per sample, and how far the others are above our objective."""
    n, steps = (8, 500) if quick else (10, STEPS)
    v = outputs(n, 8)
    symgen.sparsify(v[:1])
    ours, inter = seconds(lambda: symgen.sparsify(v, NOISE), 3)
    ours /= len(v)
    what = f"sparsify, n = {n}, tol 1e-3"
    rows = []
    for rate in (1e-7, *RATES):
        wall, result = seconds(lambda rate=rate: published(v, NOISE, rate, steps))
        theirs = wall * STEPS / steps / len(v)
        above = float((result.objective / inter.objective).mean() - 1)
        note = f"samples in one batch, {steps} steps; objective {above:.0%} above ours"
        against = f"published procedure, rate {rate:g}"
        rows.append(row(what, against, ours, theirs, "s per sample", note))
    for n in (8,) if quick else (8, 10):
        v = outputs(n, 8)[:1]
        ours, inter = seconds(lambda v=v: symgen.sparsify(v, NOISE), 3)
        for solver in ("ipx", "hipo") if has_hipo() else ("ipx",):
            wall, x = seconds(lambda v=v, solver=solver: highs(v[0], solver), 3 if n < 10 else 1)
            off = float(inter.objective) / abs(x).sum() - 1
            note = f"one sample, one thread; our objective is {off:.1e} above theirs"
            what, against = f"sparsify, n = {n}, tol 1e-3", f"HiGHS, solver {solver}"
            rows.append(row(what, against, ours, wall, "s per sample", note))
    return rows


def few(quick: bool) -> list[dict]:
    """Nonzero effects against a vertex of the same program, and time against the default."""
    n, samples = (8, 4) if quick else (10, 30)
    v = outputs(n, samples)
    inter = symgen.sparsify(v, NOISE, few=True)
    counts = (inter.effects != 0).sum((1, 2))
    vertex = torch.tensor([int((abs(highs(x, "simplex")) > 1e-9).sum()) for x in v])
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


Term = tuple[str, int, float]


def _planted(name: str, n: int) -> list[Term]:
    """Return terms: type, set and effect; all but those of "base" are random."""
    if name == "base":
        return [("and", 0b111110, 2.0), ("or", 0b111111 << 6, 1.5), ("and", 0b11 << 12, 1.0)]
    generator = np.random.default_rng(100 * n)
    sizes = {
        "wide": [("or", 10), ("or", 12), ("and", 3), ("and", 4)],
        "many": [("and", k) for k in (1, 2, 2, 2, 3, 3, 4, 5)] + [("or", k) for k in (2, 3, 4, 6)],
    }
    terms = []
    for kind, size in sizes[name]:
        members = generator.choice(n, size, replace=False)
        effect = generator.choice([-1, 1]) * generator.uniform(0.5, 2)
        terms.append((kind, sum(1 << int(i) for i in members), float(effect)))
    return terms


def _output(terms: list[Term], states: np.ndarray, noise: float) -> np.ndarray:
    """Return the sum of the terms, plus random noise: its deviation is a share of v[N] - v[0]."""
    total = sum(effect for _, _, effect in terms)
    v = noise * total * np.random.default_rng(0).standard_normal(len(states))
    v[states == 0] = 0.0
    for kind, index, effect in terms:
        met = states & index
        v += effect * (met == index if kind == "and" else met != 0)
    return v


def _shapley(terms: Iterable[Term], n: int) -> np.ndarray:
    """Return Shapley values: the members of an AND or an OR share its effect equally."""
    values = np.zeros(n)
    for _, index, effect in terms:
        values += effect / index.bit_count() * (index >> np.arange(n) & 1)
    return values


def _proxy(terms: list[Term], n: int, budget: int, noise: float) -> np.ndarray:
    """Return the Shapley values that ProxySHAP estimates."""

    def game(coalitions: np.ndarray) -> np.ndarray:
        return _output(terms, (coalitions.astype(np.int64) << np.arange(n)).sum(1), noise)

    proxy = approximator.ProxySHAP(n=n, index="SV", max_order=1, random_state=0)
    return proxy.approximate(budget, game).get_n_order_values(1)


@threadpool_limits.wrap(limits=1)
def sampled(quick: bool) -> list[dict]:
    """More than 16 variables: planted terms, against ProxySHAP at the same number of states.

    Both sides run on one thread.
    """
    cases = [("base", 20, 400, 0.0), ("base", 20, 1000, 0.0), ("base", 40, 1000, 0.0),
             ("wide", 20, 1000, 0.0), ("many", 20, 600, 0.0), ("many", 20, 1000, 0.0),
             ("many", 40, 1000, 0.0), ("wide", 20, 1000, 0.02),
             ("many", 40, 1000, 0.02)]  # fmt: skip
    peer = hasattr(approximator, "ProxySHAP")
    against = "ProxySHAP" if peer else "ProxySHAP (shapiq >= 1.8): not installed"
    rows = []
    for name, n, budget, noise in cases[:1] if quick else cases:
        terms = _planted(name, n)
        states = draw_states(n, budget)
        v = torch.from_numpy(_output(terms, states.numpy(), noise))[None]
        ours, inter = seconds(lambda v=v, states=states, n=n: sparsify_sampled(v, states, n), 3)
        frame = inter.to_frame()
        result = list(zip(frame["type"], frame["index"], frame["effect"], strict=True))
        right = {(kind, index) for kind, index, _ in terms} & {term[:2] for term in result}
        exact = _shapley(terms, n)
        size = np.linalg.norm(exact)
        miss = np.linalg.norm(_shapley(result, n) - exact) / size
        theirs, their_miss = float("nan"), float("nan")
        if peer:
            theirs, values = seconds(functools.partial(_proxy, terms, n, budget, noise), 3)
            their_miss = np.linalg.norm(values - exact) / size
        what = f"sparsify_sampled, {name}, n = {n}, {budget} states, noise {noise:.0%}"
        note = f"{len(right)} of {len(terms)} terms found, {len(result)} effects"
        rows += [
            row(what, against, ours, theirs, "s per sample", note),
            row(what, against, miss, their_miss, "relative error of Shapley values"),
        ]
    return rows
