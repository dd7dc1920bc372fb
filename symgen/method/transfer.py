"""Which interactions transfer to baseline networks, and what follows for a whole network."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.fingerprints import refusal
from symgen.interactions import Interactions
from symgen.method.statistics import Interval, check_draws, interval, resampled

#: Orders that H_low sums over (Fig. 2).
LOW_ORDERS = (1, 2)
#: Orders that H_high sums over (Fig. 2).
HIGH_ORDERS = (6, 7, 8, 9, 10)
#: Groups of orders that tables and figures compare; those that n does not have are left out.
ORDER_GROUPS = {
    "all orders": None, "low: 1-2": LOW_ORDERS, "middle: 3-5": (3, 4, 5),
    "high: 6-10": HIGH_ORDERS, "above low: 3 and up": range(3, 17),
}  # fmt: skip

Share = tuple[Float[Tensor, "*batch state"], Float[Tensor, "*batch state"]]


def transfer(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    tau: float | None = None,
    metric: str = "binary",
    relative_to: str | None = None,
    least: float | None = None,
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
        least: similarity from which on an interaction counts, and then wholly.

    Returns:
        G for AND and for OR, each (..., 2**n) in [0, 1]. The similarity is NaN for samples
        without a total effect (v[N] = v[0]), which have no scale, and where no baseline has one in
        any sample.

    Raises:
        ValueError: for an unknown metric, no baseline, or other shapes or names of variables than
            the target's, or these in another order. Samples without names are not told
            apart: that these are the same, in the same order, is for the caller to see to.
    """
    baselines = [baselines] if isinstance(baselines, Interactions) else list(baselines)
    _refuse_other_names(target, baselines)
    _refuse_least(metric, least)
    shapes = [tuple(b.and_.shape) for b in baselines]
    if not baselines or any(s != tuple(target.and_.shape) for s in shapes):
        raise ValueError(
            "transfer needs at least one baseline with interactions of the target's shape "
            f"{tuple(target.and_.shape)} (same samples, same variables); got {shapes}"
        )
    if metric not in ("binary", "similarity"):
        raise ValueError(f"metric must be 'binary' or 'similarity', got {metric!r}")
    best, scaled = torch.zeros_like(target.effects), False
    for baseline in baselines:
        baseline = baseline.to(target.and_.device)
        same = target.effects * baseline.effects > 0
        if metric == "binary":
            share = torch.stack(baseline.salient(tau, relative_to=relative_to), -2)
            share = share.to(best.dtype)
        else:
            # Each over its own total effect; multiplied crosswise, so that none is divided by 0.
            ours = target.effects.abs() * baseline.total_effect.mean()
            theirs = baseline.effects.abs() * target.total_effect.mean()
            larger = torch.maximum(ours, theirs)
            share = torch.minimum(ours, theirs) / larger.where(larger > 0, 1.0)
            scaled = scaled or bool(baseline.total_effect.mean() > 0)
            share = share if least is None else (share >= least).to(best.dtype)
        best = torch.maximum(best, torch.where(same, share, 0.0))
    if metric == "similarity":
        best = best.where((target.total_effect[..., None, None] > 0) & scaled, torch.nan)
    return best[..., 0, :], best[..., 1, :]


@refusal
def refuse_no_interactions(*given: Any) -> None:
    for one in given:
        if isinstance(one, Tensor | np.ndarray | list | tuple):
            raise ValueError(
                f"{type(one).__name__} is given in place of Interactions; expected all that "
                "extract or sparsify returns, and not its and_ or or_ alone"
            )


@refusal
def _refuse_other_names(target: Interactions, baselines: Sequence[Interactions]) -> None:
    refuse_no_interactions(target, *baselines)
    for number, baseline in enumerate(baselines):
        if target.names is None or baseline.names is None:
            continue
        ours, theirs = target.names, baseline.names
        # On purpose, as for the chance level.
        if any(hasattr(x, "relabelled_by") for x in (target, baseline)):
            ours, theirs = np.sort(ours), np.sort(theirs)
        same = np.ravel((ours == theirs).all(-1))
        if same.all():
            continue
        first = int(same.argmin())
        ours, theirs = (
            [*map(str, x.names.reshape(-1, target.n)[first])] for x in (target, baseline)
        )
        if sorted(ours) == sorted(theirs):
            raise ValueError(
                f"baseline {number} has the variables of sample {first} in another order, "
                f"{', '.join(theirs)}, and the target {', '.join(ours)}; where all samples have "
                f"it, give baseline.relabelled({[ours.index(name) for name in theirs]})"
            )
        raise ValueError(
            f"baseline {number} has other samples or variables: sample {first} has "
            f"{', '.join(theirs)} there and {', '.join(ours)} in the target; extract both on the "
            "same samples (dataclasses.replace(baseline, names=None) compares them nevertheless)"
        )


@refusal
def _refuse_least(metric: str, least: Any) -> None:
    if least is None:
        return
    if metric == "binary":
        raise ValueError(f"least = {least} belongs to metric='similarity'; leave it out")
    if not 0 < least <= 1:
        raise ValueError(f"least must be above 0 and at most 1, as similarities are; got {least}")


@refusal
def refuse_no_share(g: Any, inter: Interactions | None = None) -> None:
    """Refuse what is no transfer of AND and OR, or not of these interactions.

    Raises:
        ValueError: with what to give.
    """
    if g is None:
        raise ValueError("g is None; expected what transfer(inter, baselines) returns")
    if isinstance(g, Interactions):
        raise ValueError("g is Interactions; expected their transfer: transfer(inter, baselines)")
    shapes = [tuple(x.shape) for x in g]
    if inter is not None and shapes != [tuple(inter.and_.shape)] * 2:
        raise ValueError(
            f"g is of shapes {shapes}, and the interactions of {tuple(inter.and_.shape)}; expected "
            "what transfer(inter, baselines) returns of the same samples"
        )


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
    refuse_no_interactions(inter)
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
    kept = [m for m in sorted(set(orders)) if 0 <= m < size.shape[-1]]
    return size[..., kept].sum(-1)


@refusal
def _refuse_orders(orders: Any) -> None:
    if orders is not None and not hasattr(orders, "__iter__"):
        raise ValueError(
            f"orders is {orders!r}; expected several, also of a single one: [{orders}]"
        )


def _strengths(
    inter: Interactions, g: Share, orders: Iterable[int] | None, *saliency
) -> tuple[Tensor, Tensor]:
    """Return generalizable and all strength of every sample; NaN without a total effect."""
    _refuse_orders(orders)
    orders = None if orders is None else tuple(orders)
    kept = _strength(order_spectrum(inter, g, *saliency), orders)
    total = _strength(order_spectrum(inter, None, *saliency), orders)
    return kept, total.where(inter.total_effect > 0, torch.nan)


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
        H in [0, 1], NaN for a sample without salient interactions of these orders, or without a
        total effect (v[N] = v[0]).
    """
    refuse_no_share(g, inter)
    kept, total = _strengths(inter, g, orders, tau, relative_to)
    return kept / total.where(total > 0, torch.nan)


def pooled_power(
    inter: Interactions,
    g: Share,
    orders: Iterable[int] | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Interval:
    """Return H with the strengths of all samples summed first, and its 95 % interval.

    NaN where no sample has such strength; samples without a total effect are left out.
    """
    kept, total = (x.reshape(-1) for x in _strengths(inter, g, orders, tau, relative_to))
    known = ~total.isnan()

    def ratio(part: Tensor, whole: Tensor) -> float:
        return float(part.sum() / whole.sum()) if whole.sum() > 0 else float("nan")

    return resampled(ratio, kept[known], total[known], share=True)


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

    Raises:
        ValueError: without a draw.
    """
    check_draws(draws)
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


def lift(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    orders: Iterable[int] | None = None,
    **transfer_options,
) -> Float[Tensor, "*batch"]:
    """Return H above its chance level, sample by sample (arguments as of `chance_level`)."""
    saliency = {k: transfer_options[k] for k in ("tau", "relative_to") if k in transfer_options}
    g = transfer(target, baselines, **transfer_options)
    power = generalization_power(target, g, orders, **saliency)
    return power - chance_level(target, baselines, orders, **transfer_options)


def power_table(
    cases: Mapping[Any, tuple],
    groups: Mapping[str, Iterable[int] | None] = ORDER_GROUPS,
    names: Sequence[str] = ("setting",),
) -> pd.DataFrame:
    """Return H of groups of orders in several settings, each with its chance level.

    Args:
        cases: setting to target, baselines, and perhaps further arguments of `transfer` by name.
        groups: name to orders.
        names: of the parts of a setting, where settings are tuples.

    Returns:
        Columns as in `names`, orders, power, low95, high95, chance, samples (that have such
        interactions), of (how many), salient (how many such interactions a sample has in the
        target); averages over samples.
    """
    rows = []
    for setting, (target, baselines, *options) in cases.items():
        options = options[0] if options else {}
        saliency = {k: v for k, v in options.items() if k in ("tau", "relative_to")}
        g = transfer(target, baselines, **options)
        marked = torch.stack(target.salient(**saliency), -2).sum(-2).double()
        for name, orders in groups.items():
            power = generalization_power(target, g, orders, **saliency)
            chance = interval(chance_level(target, baselines, orders, **options)).mean
            have = int((~power.isnan()).sum())
            own = marked[..., [orders is None or int(m) in tuple(orders) for m in target.order]]
            of = setting if len(names) > 1 else (setting,)
            counts = have, len(power), float(own.sum(-1).mean())
            rows.append((*of, name, *interval(power, share=True), chance, *counts))
    columns = ["orders", "power", "low95", "high95", "chance", "samples", "of", "salient"]
    return pd.DataFrame(rows, columns=[*names, *columns])


def interaction_count(inter: Interactions, mass: float = 0.8) -> Float[Tensor, "*batch"]:
    """Return N, how many interactions hold most of the strength (Eq. 9, 10).

    The smallest number of AND interactions that hold `mass` of all AND strength, plus the
    same for OR; all interactions count here, not only salient ones.

    Args:
        inter: interactions.
        mass: share of the strength, in (0, 1].

    Returns:
        N, NaN for a sample without any strength.
    """
    refuse_no_interactions(inter)
    if not 0 < mass <= 1:
        raise ValueError(f"mass must be in (0, 1], got {mass}")
    largest = inter.effects.abs().sort(-1, descending=True).values
    held = largest.cumsum(-1)
    # The slack keeps rounding in the running sum from asking for one more.
    short = held < mass * held[..., -1:] * (1 - 1e-12)
    count = (short.sum(-1) + (held[..., -1] > 0)).sum(-1)
    return count.to(inter.and_.dtype).where(count > 0, torch.nan)


def jaccard(
    spectrum_b: Float[Tensor, "*batch 2 order"], spectrum_c: Float[Tensor, "*batch 2 order"]
) -> Float[Tensor, "*batch"]:
    """Return the overlap of two spectra, sum of minima over sum of maxima (App. N).

    Args:
        spectrum_b, spectrum_c: of `order_spectrum`; magnitudes count.

    Returns:
        In [0, 1]; NaN for two empty spectra.
    """
    b, c = spectrum_b.abs(), spectrum_c.abs()
    shared = torch.minimum(b, c).sum((-2, -1))
    joint = torch.maximum(b, c).sum((-2, -1))
    return shared / joint.where(joint > 0, torch.nan)
