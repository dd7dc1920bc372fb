"""Which interactions transfer to baseline networks, and summaries of them per sample."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from symgen.interactions import Interactions
from symgen.names import unknown

#: Orders that H_low sums over (Fig. 2).
LOW_ORDERS = (1, 2)
#: Orders that H_high sums over (Fig. 2).
HIGH_ORDERS = (6, 7, 8, 9, 10)
#: All orders above the low ones, for every n.
REST_ORDERS = tuple(range(3, 65))

OneOrMore = Interactions | Sequence[Interactions]
# One number per sample.
PerSample = Float[Tensor, "*batch"]
# Index 0 of the second-last axis holds the positive sums, 1 the negative ones.
Spectrum = Float[Tensor, "*batch 2 order"]


class Transfer(Tensor):
    """G of every interaction: how far it is also found in baseline networks, in [0, 1].

    It has the shape of the target's effects, (..., 2, 2**n). Arithmetic gives plain tensors;
    indexing the leading axes keeps `salient`.

    Attributes:
        salient: which interactions of the target are salient, of the same shape. So a threshold is
            given once, to `transfer`.
    """

    salient: Bool[Tensor, "*batch type state"]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def of(
        cls, share: Float[Tensor, "*batch type state"], salient: Bool[Tensor, "*batch type state"]
    ) -> "Transfer":
        """Return shares with the salience that belongs to them."""
        g = share.as_subclass(cls)
        g.salient = salient
        return g

    def __getitem__(self, index: Any) -> "Transfer":
        g = super().__getitem__(index).as_subclass(Transfer)
        g.salient = self.salient[index]
        return g


def checked(inter: Interactions, g: Any) -> Transfer:
    """Return g if it is the transfer of these interactions.

    Raises:
        ValueError: if not.
    """
    if not isinstance(g, Transfer) or g.shape != inter.effects.shape:
        shape = tuple(getattr(g, "shape", ()))
        raise ValueError(
            f"g is {type(g).__name__} of shape {shape}; expected the result of transfer(inter, "
            f"baselines) for these interactions, of shape {tuple(inter.effects.shape)}"
        )
    return g


def as_list(baselines: OneOrMore) -> list[Interactions]:
    """Return one or several baselines as a list."""
    return [baselines] if isinstance(baselines, Interactions) else list(baselines)


def _check_baselines(target: Interactions, baselines: list[Interactions]) -> None:
    whole = tuple(target.effects.shape)
    shapes = [tuple(one.effects.shape) for one in baselines]
    if not baselines or any(shape != whole for shape in shapes):
        raise ValueError(
            f"the baselines have effects of shape {shapes}; expected at least one baseline with "
            f"the target's shape {whole}: extract all networks on the same samples and variables"
        )
    for number, one in enumerate(baselines):
        if target.names is None or one.names is None or one.is_relabelled or target.is_relabelled:
            continue
        ours = target.names.reshape(-1, target.n)
        theirs = one.names.reshape(-1, target.n)
        wrong = np.flatnonzero((ours != theirs).any(-1))
        if len(wrong):
            raise ValueError(
                f"sample {wrong[0]} has the variables {theirs[wrong[0]].tolist()} in baseline "
                f"{number} and {ours[wrong[0]].tolist()} in the target; expected the same samples "
                "and variables in the same order"
            )


def transfer(
    target: Interactions,
    baselines: OneOrMore,
    tau: float | None = None,
    *,
    relative_to: str | None = None,
    metric: str = "binary",
    agree: int = 1,
) -> Transfer:
    """Return G, the extent to which each interaction is also found in baseline networks.

    Args:
        target: interactions of the network in question.
        baselines: interactions of one or of k baseline networks on the same samples and variables.
        tau, relative_to: saliency threshold in the target and in each baseline; see
            `Interactions.salient`.
        metric: "binary" (Eq. 5): 1 if the baseline's interaction is salient and has the same sign,
            else 0. "similarity" (Eq. 19, 20): if the signs agree, the smaller magnitude divided by
            the larger one, after each network's interactions are divided by its mean
            abs(v[N] - v[0]) over the samples.
        agree: how many baselines must have the interaction, 1 to k. With 1, any of them counts
            (Eq. 13): G is the largest of the k values, else the value of rank `agree`.

    Returns:
        Shape (..., 2, 2**n), with the target's salience. The similarity is NaN for samples without
        a total effect (v[N] = v[0]).

    Raises:
        ValueError: for an unknown metric, no baseline, other samples or variables, or more
            baselines that must agree than there are.

    Example:
        >>> one = Interactions.from_moebius(torch.tensor([0.0, 1.0, 0.0, 3.0]))
        >>> other = Interactions.from_moebius(torch.tensor([0.0, -1.0, 0.0, 3.0]))
        >>> transfer(one, other)[0].tolist()
        [0.0, 0.0, 0.0, 1.0]
    """
    baselines = [one.to(target.effects.device) for one in as_list(baselines)]
    _check_baselines(target, baselines)
    if metric not in ("binary", "similarity"):
        raise unknown("metric", metric, ["binary", "similarity"])
    if not 1 <= agree <= len(baselines):
        raise ValueError(
            f"agree is {agree}, with {len(baselines)} baselines; expected 1 to {len(baselines)}"
        )
    shares = []
    for one in baselines:
        if metric == "binary":
            share = one.salient(tau, relative_to=relative_to).to(target.effects.dtype)
        else:
            share = _similarity(target, one)
        shares.append(share.where(target.effects * one.effects > 0, 0.0))
    g = torch.stack(shares).sort(0, descending=True).values[agree - 1]
    if metric == "similarity":
        # Without a total effect there is no scale.
        scales = torch.stack([one.threshold(1.0, "total effect") for one in baselines])
        known = (target.total_effect > 0) & (scales > 0).any(0)
        g = g.where(known[..., None, None], torch.nan)
    return Transfer.of(g, target.salient(tau, relative_to=relative_to))


def _similarity(target: Interactions, one: Interactions) -> Tensor:
    """Return the smaller magnitude divided by the larger one, whatever the signs (Eq. 20)."""
    # E_x abs(v[N] - v[0]) of each network, multiplied crosswise: it can be 0.
    ours = target.effects.abs() * one.threshold(1.0, "total effect")[..., None, None]
    theirs = one.effects.abs() * target.threshold(1.0, "total effect")[..., None, None]
    return torch.minimum(ours, theirs) / torch.maximum(ours, theirs)


def order_spectrum(
    inter: Interactions, g: Transfer | Bool[Tensor, "*batch type state"] | None = None
) -> Spectrum:
    """Return the summed positive and negative salient effects of every order (Eq. 6, 7).

    The paper prints max under "-" and min under "+". We take the signs that it evidently means.

    Args:
        inter: interactions.
        g: their transfer, for the generalizable part (Eq. 7); or which interactions count, such as
            ``inter.salient(0.5)`` (Eq. 6); by default ``inter.salient()``.

    Returns:
        Shape (..., 2, n + 1): index 0 holds the positive sums, 1 the negative ones (<= 0).
    """
    if g is None:
        weights = inter.salient()
    elif isinstance(g, Tensor) and g.dtype is torch.bool:
        weights = g.expand(inter.effects.shape)
    else:
        g = checked(inter, g)
        weights = g * g.salient
    effects = inter.effects * weights
    signed = torch.stack([effects.clamp(min=0), effects.clamp(max=0)], -3).sum(-2)
    return signed @ torch.nn.functional.one_hot(inter.order, inter.n + 1).to(signed.dtype)


def salient_strength(
    inter: Interactions, g: Transfer, orders: Collection[int] | None = None
) -> tuple[PerSample, PerSample]:
    """Return the salient strength per sample: its generalizable part, and the other part.

    Their means at each checkpoint are what `phases` takes.

    Args:
        inter, g, orders: see `generalization_power`.

    Returns:
        Generalizable and non-generalizable strength, log odds; their sum is the salient strength.

    Example:
        >>> one = Interactions.from_moebius(torch.tensor([0.0, 1.0, 0.0, 3.0]))
        >>> other = Interactions.from_moebius(torch.tensor([0.0, -1.0, 0.0, 3.0]))
        >>> [x.item() for x in salient_strength(one, transfer(one, other))]
        [2.0, 1.0]
    """
    g = checked(inter, g)
    place = [m for m in range(inter.n + 1) if orders is None or m in orders]
    kept = order_spectrum(inter, g).abs().sum(-2)[..., place].sum(-1)
    whole = order_spectrum(inter, g.salient).abs().sum(-2)[..., place].sum(-1)
    return kept, whole - kept


def generalization_power(
    inter: Interactions, g: Transfer, orders: Collection[int] | None = None
) -> PerSample:
    """Return H per sample, the generalizable share of the salient strength (Eq. 8).

    Args:
        inter: interactions.
        g: their transfer, which knows the threshold.
        orders: orders that count, such as `LOW_ORDERS` or `HIGH_ORDERS`; None means all.

    Returns:
        H in [0, 1]; NaN for a sample without salient interactions of these orders, or without a
        total effect (v[N] = v[0]).
    """
    kept, rest = salient_strength(inter, g, orders)
    # Without salient interactions this is 0 / 0, which is NaN.
    return (kept / (kept + rest)).where(inter.total_effect > 0, torch.nan)


def chance_level(
    target: Interactions,
    baselines: OneOrMore,
    orders: Collection[int] | None = None,
    *,
    draws: int = 200,
    seed: int = 0,
    **options: Any,
) -> PerSample:
    """Return H if the baselines' variables are randomly relabelled, averaged over draws.

    It is the value of H if networks share only how many, how strong and how large interactions
    are, but not which variables they join. The paper reports no such level.

    Args:
        target, baselines: see `transfer`.
        orders: see `generalization_power`.
        draws: number of relabellings, at least 1. Each sample has its own; all baselines of a
            sample are relabelled alike.
        seed: seed of the relabellings.
        **options: tau, relative_to, metric and agree of `transfer`.
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}; expected at least 1")
    baselines = as_list(baselines)
    generator = torch.Generator().manual_seed(seed)
    shape = (*target.bias.shape, target.n)
    total = torch.zeros_like(target.bias)
    for _ in range(draws):
        labels = torch.rand(shape, generator=generator).argsort(-1)
        g = transfer(target, [one.relabelled(labels) for one in baselines], **options)
        total += generalization_power(target, g, orders)
    return total / draws


def other_sample_level(
    target: Interactions,
    baselines: OneOrMore,
    orders: Collection[int] | None = None,
    shifts: int = 5,
) -> PerSample:
    """Return H if the baselines' interactions are those of another sample, at the same places.

    Unlike `chance_level`, it keeps what depends on the place of a variable alone, such as the
    strong effect of the last word of a text.

    Args:
        target, baselines: see `transfer`; with two or more samples on one leading axis.
        orders: see `generalization_power`.
        shifts: number of other samples, the next ones; H is averaged over them.
    """
    powers = []
    for shift in range(1, min(shifts, len(target) - 1) + 1):
        other = torch.arange(len(target)).roll(shift)
        moved = [dataclasses.replace(one[other], names=None) for one in as_list(baselines)]
        powers.append(generalization_power(target, transfer(target, moved), orders))
    return torch.stack(powers).nanmean(0)


def sign_agreement(target: Interactions, baselines: OneOrMore) -> PerSample:
    """Return how often signs agree among interactions that are salient in both networks.

    Unrelated networks agree in about half of them, however many interactions are salient.

    Args:
        target, baselines: see `transfer`; averaged over baselines.

    Returns:
        A share per sample; NaN without interactions that are salient in both.

    Example:
        >>> one = Interactions.from_moebius(torch.tensor([0.0, 1.0, 2.0, 6.0]))
        >>> other = Interactions.from_moebius(torch.tensor([0.0, -1.0, 2.0, 4.0]))
        >>> round(sign_agreement(one, other).item(), 2)
        0.67
    """
    shares = []
    for one in as_list(baselines):
        both = target.salient() & one.salient()
        same = both & (target.effects * one.effects > 0)
        count = both.sum((-2, -1)).to(target.bias.dtype)
        shares.append(same.sum((-2, -1)) / count)
    return torch.stack(shares).nanmean(0)


def excess(
    target: Interactions,
    baselines: OneOrMore,
    orders: Collection[int] | None = None,
    draws: int = 200,
    **options: Any,
) -> PerSample:
    """Return H minus its chance level, per sample; see `chance_level` for the arguments."""
    power = generalization_power(target, transfer(target, baselines, **options), orders)
    return power - chance_level(target, baselines, orders, draws=draws, **options)


def interaction_count(inter: Interactions, mass: float = 0.8) -> PerSample:
    """Return N per sample, the number of interactions that hold most of the strength (Eq. 9, 10).

    It is the smallest number of AND interactions that hold `mass` of all AND strength, plus the
    same for OR. All interactions count here, not only salient ones.

    Args:
        inter: interactions.
        mass: share of the strength, in (0, 1].

    Returns:
        N; NaN for a sample without any strength.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass is {mass}; expected a share in (0, 1]")
    held = inter.effects.abs().sort(-1, descending=True).values.cumsum(-1)
    # The slack prevents that rounding in the running sum adds one more.
    short = held < mass * held[..., -1:] * (1 - 1e-12)
    count = (short.sum(-1) + (held[..., -1] > 0)).sum(-1)
    return count.to(inter.effects.dtype).where(count > 0, torch.nan)


def jaccard(spectrum_b: Spectrum, spectrum_c: Spectrum) -> PerSample:
    """Return the overlap of two spectra: sum of minima divided by sum of maxima (App. N).

    Args:
        spectrum_b, spectrum_c: results of `order_spectrum`; only magnitudes count.

    Returns:
        A share in [0, 1]; NaN for two empty spectra.
    """
    shared = torch.minimum(spectrum_b.abs(), spectrum_c.abs()).sum((-2, -1))
    joint = torch.maximum(spectrum_b.abs(), spectrum_c.abs()).sum((-2, -1))
    return shared / joint


def mean_order(spectrum: Spectrum) -> PerSample:
    """Return the mean order, weighted by strength; NaN for an empty spectrum.

    Example:
        >>> mean_order(torch.tensor([[0.0, 2.0, 1.0], [0.0, -1.0, 0.0]]))
        tensor(1.2500)
    """
    strength = spectrum.abs().sum(-2)
    orders = torch.arange(strength.shape[-1]).to(strength)
    return strength @ orders / strength.sum(-1)


def order_thirds(spectrum: Spectrum) -> Float[Tensor, "*batch third"]:
    """Return the shares of strength at low, middle and high orders, (..., 3).

    Low is below n/3, high above 2n/3; NaN for an empty spectrum.

    Example:
        >>> order_thirds(torch.tensor([[0.0, 1, 0, 2, 0, 0, 3], [0.0, 0, -4, 0, 0, 0, 0]])).tolist()
        [0.10000000149011612, 0.6000000238418579, 0.30000001192092896]
    """
    strength = spectrum.abs().sum(-2)
    share = strength / strength.sum(-1, keepdim=True)
    place = 3 * torch.arange(share.shape[-1], device=share.device) / (share.shape[-1] - 1)
    thirds = place < 1, (place >= 1) & (place <= 2), place > 2
    return torch.stack([share[..., third].sum(-1) for third in thirds], -1)


def uncancelled(spectrum: Spectrum) -> PerSample:
    """Return the share of strength that remains after positive and negative effects cancel.

    Returns:
        0 if the effects sum to 0, 1 if all have the same sign, NaN for an empty spectrum.

    Example:
        >>> uncancelled(torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, -1.0]]))
        tensor(0.5000)
    """
    return spectrum.sum((-2, -1)).abs() / spectrum.abs().sum((-2, -1))


def shared_difference(
    inter: Interactions, baselines: OneOrMore
) -> tuple[Float[Tensor, " sample"], Float[Tensor, " sample"]]:
    """Return mean order and uncancelled share of shared minus those of unshared interactions."""
    kept = order_spectrum(inter, transfer(inter, baselines))
    rest = order_spectrum(inter) - kept
    return mean_order(kept) - mean_order(rest), uncancelled(kept) - uncancelled(rest)


def matched_difference(
    inter: Interactions, baselines: OneOrMore
) -> tuple[Float[Tensor, " sample"], Float[Tensor, " sample"]]:
    """Return the same as `shared_difference` for pairs of effects of similar strength.

    Each pair is a shared and an unshared interaction. The mean order is not weighted.
    """
    inter = inter.to("cpu")
    g = transfer(inter, baselines)
    order = torch.cat([inter.order, inter.order]).double()
    rows = []
    for effects, salient, shared in zip(inter.effects, g.salient, g > 0, strict=True):
        effects = effects.flatten()
        ours = (salient & shared).flatten().nonzero()[:, 0]
        theirs = (salient & ~shared).flatten().nonzero()[:, 0]
        logs = effects.abs().log()
        pairs = linear_sum_assignment((logs[ours][:, None] - logs[theirs]).abs())
        ours, theirs = ours[pairs[0]], theirs[pairs[1]]
        left = [effects[x].sum().abs() / effects[x].abs().sum() for x in (ours, theirs)]
        rows.append((order[ours].mean() - order[theirs].mean(), left[0] - left[1]))
    change = torch.tensor(rows)
    return change[:, 0], change[:, 1]
