"""Which interactions transfer to baseline networks, and what follows for a whole network."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from symgen.interactions import Interactions

#: Orders that H_low sums over (Fig. 2).
LOW_ORDERS = (1, 2)
#: Orders that H_high sums over (Fig. 2).
HIGH_ORDERS = (6, 7, 8, 9, 10)

# Of fewer values the bootstrap is too sure: resamples of four of one sign never reach 0.
FEW = 10

Share = tuple[Float[Tensor, "*batch state"], Float[Tensor, "*batch state"]]


class Interval(NamedTuple):
    """An average over samples with its 95 % interval; NaN where it does not exist.

    Example:
        >>> f"{Interval(0.25, 0.1, 0.4)}, {Interval(0.25, 0.003, 0.5):.1f}"
        '0.25 [0.10, 0.40], 0.250 [0.003, 0.500]'
    """

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if np.isnan(self.mean):
            return "not defined"
        if np.isnan(self.low):
            return f"{self.mean:{spec}}"
        # Which side of 0 an interval lies on must be seen: more digits where rounding hides it.
        near = self.low if self.side() > 0 else self.high
        while self.side() and not re.search("[1-9]", f"{near:{spec}}") and abs(near) > 1e-6:
            spec = re.sub(r"\.(\d+)", lambda found: f".{int(found[1]) + 1}", spec)
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def side(self, value: float = 0.0) -> int:
        """Return 1 where the whole interval lies above a value, -1 where below, else 0.

        Example:
            >>> Interval(0.5, 0.2, 0.7).side(), Interval(0.1, -0.2, 0.3).side()
            (1, 0)
        """
        return int(self.low > value) - int(self.high < value)

    def verdict(self, sign: int = 1, value: float = 0.0) -> str:
        """Return what this says of the claim that the average lies above (below) a value.

        "shown" where the whole interval does, "partly" where only the average does, "not shown"
        where it does not, and "not tested" where there is no interval.

        Args:
            sign: 1 for above, -1 for below.
            value: that the claim names.

        Example:
            >>> Interval(0.1, -0.2, 0.3).verdict(), Interval(0.1, -0.2, 0.3).verdict(-1)
            ('partly', 'not shown')
        """
        if np.isnan(self.low):
            return "not tested"
        if self.side(value) == sign:
            return "shown"
        return "partly" if (self.mean - value) * sign > 0 else "not shown"


def transfer(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    tau: float | None = None,
    metric: str = "binary",
    relative_to: str | None = None,
) -> Share:
    """Return how far every interaction of a network is also one of a baseline network.

    Args:
        target: interactions of the network in question.
        baselines: interactions of one or of k baseline networks on the same samples and
            variables; with several, the best of them counts (Eq. 13).
        tau, relative_to: saliency in each baseline; see `Interactions.salient`.
        metric: "binary" (Eq. 5): 1 where the baseline's interaction is salient and has the
            same sign, else 0. "similarity" (Eq. 19, 20): where the signs agree, the smaller
            of the two magnitudes over the larger, each first divided by its network's mean
            of abs(v[N] - v[0]) over the samples.

    Returns:
        G for AND and for OR, each (..., 2**n) in [0, 1].

    Raises:
        ValueError: for an unknown metric, no baseline, or other shapes than the target's.
    """
    baselines = [baselines] if isinstance(baselines, Interactions) else list(baselines)
    shapes = [tuple(b.and_.shape) for b in baselines]
    if not baselines or any(s != tuple(target.and_.shape) for s in shapes):
        raise ValueError(
            "transfer needs at least one baseline with interactions of the target's shape "
            f"{tuple(target.and_.shape)} (same samples, same variables); got {shapes}"
        )
    if metric not in ("binary", "similarity"):
        raise ValueError(f"metric must be 'binary' or 'similarity', got {metric!r}")
    best = torch.zeros_like(target.effects)
    for baseline in baselines:
        baseline = baseline.to(target.and_.device)
        same = target.effects * baseline.effects > 0
        if metric == "binary":
            share = torch.stack(baseline.salient(tau, relative_to=relative_to), -2)
            share = share.to(best.dtype)
        else:
            ours = target.effects.abs() / target.span.mean()
            theirs = baseline.effects.abs() / baseline.span.mean()
            share = torch.minimum(ours, theirs) / torch.maximum(ours, theirs)
        best = torch.maximum(best, torch.where(same, share, 0.0))
    return best[..., 0, :], best[..., 1, :]


def order_spectrum(
    inter: Interactions,
    g: Share | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Float[Tensor, "*batch 2 order"]:
    """Return the summed positive and negative salient effects of every order.

    Equations 6 and 7, with the signs the paper evidently means (it prints max under "-").

    Args:
        inter: interactions.
        g: transfer of AND and OR; with it, the generalizable part (Eq. 7), else all (Eq. 6).
        tau, relative_to: saliency; see `Interactions.salient`.

    Returns:
        Shape (..., 2, n + 1): index 0 the positive sums, 1 the negative ones (<= 0), by order.
    """
    effects = inter.effects * torch.stack(inter.salient(tau, relative_to=relative_to), -2)
    if g is not None:
        effects = effects * torch.stack(g, -2)
    signed = torch.stack([effects.clamp(min=0), effects.clamp(max=0)], -3).sum(-2)
    orders = torch.nn.functional.one_hot(inter.order, inter.n + 1).to(signed.dtype)
    return signed @ orders


def _strength(spectrum: Tensor, orders: Iterable[int] | None) -> Tensor:
    size = spectrum.abs().sum(-2)
    if orders is None:
        return size.sum(-1)
    kept = [m for m in orders if 0 <= m < size.shape[-1]]
    return size[..., kept].sum(-1)


def generalization_power(
    inter: Interactions,
    g: Share,
    orders: Iterable[int] | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Float[Tensor, "*batch"]:
    """Return H, the generalizable share of the salient strength, for every sample (Eq. 8).

    Args:
        inter: interactions.
        g: their transfer.
        orders: those that count, such as `LOW_ORDERS` or `HIGH_ORDERS`; all without.
        tau, relative_to: saliency; see `Interactions.salient`.

    Returns:
        H in [0, 1], NaN for a sample without salient interactions of these orders.
    """
    orders = None if orders is None else tuple(orders)
    kept = _strength(order_spectrum(inter, g, tau, relative_to), orders)
    total = _strength(order_spectrum(inter, None, tau, relative_to), orders)
    return kept / total.where(total > 0, torch.nan)


def pooled_power(
    inter: Interactions,
    g: Share,
    orders: Iterable[int] | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Interval:
    """Return H with the strengths of all samples summed first, and its bootstrap interval."""
    orders = None if orders is None else tuple(orders)
    kept = _strength(order_spectrum(inter, g, tau, relative_to), orders).reshape(-1)
    total = _strength(order_spectrum(inter, None, tau, relative_to), orders).reshape(-1)
    return _bootstrap(
        (kept.cpu().numpy(), total.cpu().numpy()),
        lambda a, b, axis: a.sum(axis) / np.maximum(b.sum(axis), np.finfo(float).tiny),
    )


def interval(values: Float[Tensor, "sample"] | Bool[Tensor, "sample"]) -> Interval:
    """Return the mean of per-sample values, NaN left out, and its 95 % interval.

    The interval is the bootstrap's; of fewer than 10 values Student's, and of truth values
    Wilson's, since the bootstrap of few samples is too narrow, and of samples that all agree
    knows no doubt.

    Example:
        >>> f"{interval(torch.tensor([0.5, 0.5, 0.5]))}"
        '0.50 [0.50, 0.50]'
        >>> f"{interval(torch.tensor([True, True, True]))}"
        '1.00 [0.44, 1.00]'
    """
    if values.dtype == torch.bool and values.numel():
        counted = stats.binomtest(int(values.sum()), values.numel())
        return Interval(counted.statistic, *counted.proportion_ci(method="wilson"))
    kept = values.reshape(-1).cpu().double().numpy()
    kept = kept[~np.isnan(kept)]
    if 1 < len(kept) < FEW:
        mean = float(kept.mean())
        half = float(stats.t.ppf(0.975, len(kept) - 1) * stats.sem(kept))
        return Interval(mean, mean - half, mean + half)
    return _bootstrap((kept,), lambda a, axis: a.mean(axis))


def mean_difference(one: Float[Tensor, "sample"], other: Float[Tensor, "other"]) -> Interval:
    """Return the mean of one group less that of another, with its 95 % interval.

    The bootstrap's, with the groups drawn apart; Welch's where one of them has fewer than 10
    samples, and NaN where one has fewer than two.

    Example:
        >>> f"{mean_difference(torch.tensor([3.0, 3.0]), torch.tensor([1.0, 1.0])):.1f}"
        '2.0 [2.0, 2.0]'
    """
    groups = tuple(x.cpu().double().numpy() for x in (one, other))
    if min(map(len, groups)) < 2:
        return Interval(np.nan, np.nan, np.nan)
    if min(map(len, groups)) < FEW:
        mean = float(groups[0].mean() - groups[1].mean())
        errors = np.array([stats.sem(x) ** 2 for x in groups])
        if not errors.any():
            return Interval(mean, mean, mean)
        freedom = errors.sum() ** 2 / (errors**2 / [len(x) - 1 for x in groups]).sum()
        half = float(stats.t.ppf(0.975, freedom) * errors.sum() ** 0.5)
        return Interval(mean, mean - half, mean + half)
    return _bootstrap(groups, lambda a, b, axis: a.mean(axis) - b.mean(axis), paired=False)


def median_interval(values: Float[Tensor, "sample"]) -> Interval:
    """Return the median of per-sample values, NaN left out, and its 95 % bootstrap interval."""
    kept = values.reshape(-1).cpu().double().numpy()
    return _bootstrap((kept[~np.isnan(kept)],), lambda a, axis: np.median(a, axis))


def _bootstrap(data: tuple[np.ndarray, ...], statistic: Callable, paired: bool = True) -> Interval:
    if not len(data[0]):
        return Interval(np.nan, np.nan, np.nan)
    mean = float(statistic(*data, axis=-1))
    if len(data[0]) == 1:
        return Interval(mean, np.nan, np.nan)
    found = stats.bootstrap(
        data,
        statistic,
        n_resamples=2000,
        paired=paired,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return Interval(mean, *map(float, found.confidence_interval))


def chance_level(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    orders: Iterable[int] | None = None,
    draws: int = 20,
    seed: int = 0,
    **transfer_options,
) -> Float[Tensor, "*batch"]:
    """Return H for baselines whose variables carry random labels, averaged over draws.

    What transfer would be worth if only how many, how strong and how large interactions are
    were shared, and not which variables they join. The paper reports no such level.

    Args:
        target, baselines: as in `transfer`.
        orders: as in `generalization_power`.
        draws: number of random relabellings.
        seed: of the relabellings.
        transfer_options: further arguments of `transfer`.
    """
    baselines = [baselines] if isinstance(baselines, Interactions) else list(baselines)
    orders = None if orders is None else tuple(orders)
    generator = torch.Generator().manual_seed(seed)
    saliency = {k: transfer_options[k] for k in ("tau", "relative_to") if k in transfer_options}
    total = torch.zeros_like(target.bias)
    for _ in range(draws):
        labels = torch.randperm(target.n, generator=generator).tolist()
        g = transfer(target, [b.relabelled(labels) for b in baselines], **transfer_options)
        total = total + generalization_power(target, g, orders, **saliency)
    return total / draws


def interaction_count(inter: Interactions, mass: float = 0.8) -> Float[Tensor, "*batch"]:
    """Return N, how many interactions hold most of the strength (Eq. 9, 10).

    The smallest number of AND interactions that hold `mass` of all AND strength, plus the
    same for OR; all interactions count here, not only salient ones.

    Args:
        inter: interactions.
        mass: share of the strength, in (0, 1].
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass must be in (0, 1], got {mass}")
    largest = inter.effects.abs().sort(-1, descending=True).values
    held = largest.cumsum(-1)
    # The slack keeps rounding in the running sum from asking for one more.
    short = held < mass * held[..., -1:] * (1 - 1e-12)
    count = (short.sum(-1) + (held[..., -1] > 0)).sum(-1)
    return count.to(inter.and_.dtype)


def remove(
    v_full: Float[Tensor, "*batch"], inter: Interactions, g: Share, tau: float | None = None
) -> Float[Tensor, "*batch"]:
    """Return the output without its salient non-generalizable interactions (Eq. 12).

    Every interaction is triggered on the unmasked input, so their effects are subtracted.

    Args:
        v_full: v[N] of every sample.
        inter, g: interactions and their transfer.
        tau: saliency; see `Interactions.salient`.
    """
    salient = torch.stack(inter.salient(tau), -2)
    lost = inter.effects * salient * (1 - torch.stack(g, -2))
    return v_full - lost.sum((-2, -1))


def cross_entropy(v: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return -log sigmoid(v), the classification loss in nats that belongs to v (Eq. 1, 12)."""
    return torch.nn.functional.softplus(-v)


def jaccard(
    spectrum_b: Float[Tensor, "*batch 2 order"], spectrum_c: Float[Tensor, "*batch 2 order"]
) -> Float[Tensor, "*batch"]:
    """Return the overlap of two spectra, sum of minima over sum of maxima (App. N).

    Args:
        spectrum_b, spectrum_c: of `order_spectrum`; magnitudes count.

    Returns:
        In [0, 1]; 1 for two empty spectra.
    """
    b, c = spectrum_b.abs(), spectrum_c.abs()
    shared = torch.minimum(b, c).sum((-2, -1))
    joint = torch.maximum(b, c).sum((-2, -1))
    return torch.where(joint > 0, shared / joint.where(joint > 0, 1.0), 1.0)
