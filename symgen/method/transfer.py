"""Which interactions transfer to baseline networks, and summaries of them per sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.names import unknown

#: Orders that H_low sums over (Fig. 2).
LOW_ORDERS = (1, 2)
#: Orders that H_high sums over (Fig. 2).
HIGH_ORDERS = (6, 7, 8, 9, 10)
#: All orders above the low ones, for every n.
REST_ORDERS = tuple(range(3, 65))

Share = tuple[Float[Tensor, "*batch state"], Float[Tensor, "*batch state"]]


def as_list(baselines: Interactions | Sequence[Interactions]) -> list[Interactions]:
    """Return one or several baselines as a list."""
    return [baselines] if isinstance(baselines, Interactions) else list(baselines)


def _check_baselines(target: Interactions, baselines: list[Interactions]) -> None:
    shapes = [tuple(b.and_.shape) for b in baselines]
    if not baselines or any(s != tuple(target.and_.shape) for s in shapes):
        raise ValueError(
            f"the baselines have interactions of shape {shapes}; expected at least one baseline "
            f"with the target's shape {tuple(target.and_.shape)}: extract all networks on the same "
            "samples and variables"
        )
    for number, one in enumerate(baselines):
        named = target.names is not None and one.names is not None
        moved = one.is_relabelled or target.is_relabelled
        if named and not moved and not np.array_equal(target.names, one.names):
            first = int((target.names == one.names).all(-1).argmin())
            ours, theirs = (x.names.reshape(-1, x.n)[first].tolist() for x in (target, one))
            raise ValueError(
                f"sample {first} has the variables {theirs} in baseline {number} and {ours} in the "
                "target; expected the same samples and variables in the same order"
            )


def transfer(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    tau: float | None = None,
    metric: str = "binary",
    relative_to: str | None = None,
) -> Share:
    """Return G, the extent to which each interaction is also found in a baseline network.

    Args:
        target: interactions of the network in question.
        baselines: interactions of one or of k baseline networks on the same samples and
            variables. With several, the best one counts (Eq. 13).
        tau, relative_to: saliency threshold in each baseline; see `Interactions.salient`.
        metric: "binary" (Eq. 5): 1 if the baseline's interaction is salient and has the same sign,
            else 0. "similarity" (Eq. 19, 20): if the signs agree, the smaller magnitude divided by
            the larger one, after each network's interactions are divided by its mean
            abs(v[N] - v[0]) over the samples.

    Returns:
        G for AND and for OR, each (..., 2**n) in [0, 1]. The similarity is NaN for samples without
        a total effect (v[N] = v[0]).

    Raises:
        ValueError: for an unknown metric, no baseline, or other samples or variables.

    Example:
        >>> one = Interactions.from_moebius(torch.tensor([0.0, 1.0, 0.0, 3.0]))
        >>> other = Interactions.from_moebius(torch.tensor([0.0, -1.0, 0.0, 3.0]))
        >>> transfer(one, other)[0]
        tensor([0., 0., 0., 1.], dtype=torch.float64)
    """
    baselines = as_list(baselines)
    _check_baselines(target, baselines)
    if metric not in ("binary", "similarity"):
        raise unknown("metric", metric, ["binary", "similarity"])
    best, scaled = torch.zeros_like(target.effects), torch.zeros_like(target.bias, dtype=torch.bool)
    for one in baselines:
        one = one.to(target.and_.device)
        if metric == "binary":
            share = torch.stack(one.salient(tau, relative_to=relative_to), -2).to(best)
        else:
            # E_x abs(v[N] - v[0]) of each network, multiplied crosswise: it can be 0.
            scale, other = (x.threshold(1.0, "total effect") for x in (target, one))
            ours = target.effects.abs() * other[..., None, None]
            theirs = one.effects.abs() * scale[..., None, None]
            larger = torch.maximum(ours, theirs)
            share = torch.minimum(ours, theirs) / larger.where(larger > 0, 1.0)
            scaled = scaled | (other > 0)
        best = torch.maximum(best, share.where(target.effects * one.effects > 0, 0.0))
    if metric == "similarity":
        known = (target.total_effect > 0) & scaled
        best = best.where(known[..., None, None], torch.nan)
    return best[..., 0, :], best[..., 1, :]


def order_spectrum(
    inter: Interactions,
    g: Share | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Float[Tensor, "*batch 2 order"]:
    """Return the summed positive and negative salient effects of every order (Eq. 6, 7).

    The paper prints max under "-" and min under "+". We take the signs that it evidently means.

    Args:
        inter: interactions.
        g: their transfer; with it the generalizable part (Eq. 7), without it all (Eq. 6).
        tau, relative_to: saliency; see `Interactions.salient`.

    Returns:
        Shape (..., 2, n + 1): index 0 holds the positive sums, 1 the negative ones (<= 0).
    """
    effects = inter.effects * torch.stack(inter.salient(tau, relative_to=relative_to), -2)
    if g is not None:
        effects = effects * _stacked(inter, g)
    signed = torch.stack([effects.clamp(min=0), effects.clamp(max=0)], -3).sum(-2)
    return signed @ torch.nn.functional.one_hot(inter.order, inter.n + 1).to(signed.dtype)


def _stacked(inter: Interactions, g: Any) -> Tensor:
    """Return G of AND and OR as one tensor.

    Raises:
        ValueError: if it is not the transfer of these interactions.
    """
    shapes = [] if g is None else [tuple(x.shape) for x in g]
    if shapes != [tuple(inter.and_.shape)] * 2:
        raise ValueError(
            f"g has the shapes {shapes}; expected the result of transfer(inter, baselines) for "
            f"these interactions: two tensors {tuple(inter.and_.shape)}"
        )
    return torch.stack(tuple(g), -2)


def generalization_power(
    inter: Interactions,
    g: Share,
    orders: Iterable[int] | None = None,
    tau: float | None = None,
    relative_to: str | None = None,
) -> Float[Tensor, "*batch"]:
    """Return H per sample, the generalizable share of the salient strength (Eq. 8).

    Args:
        inter: interactions.
        g: their transfer.
        orders: orders that count, such as `LOW_ORDERS` or `HIGH_ORDERS`; None means all.
        tau, relative_to: saliency; see `Interactions.salient`.

    Returns:
        H in [0, 1]; NaN for a sample without salient interactions of these orders, or without a
        total effect (v[N] = v[0]).
    """
    _stacked(inter, g)
    orders = range(inter.n + 1) if orders is None else {*orders}
    place = [m for m in range(inter.n + 1) if m in orders]
    kept, total = (
        order_spectrum(inter, x, tau, relative_to).abs().sum(-2)[..., place].sum(-1)
        for x in (g, None)
    )
    return kept / total.where((total > 0) & (inter.total_effect > 0), torch.nan)


def chance_level(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    orders: Iterable[int] | None = None,
    draws: int = 20,
    seed: int = 0,
    tau: float | None = None,
    metric: str = "binary",
    relative_to: str | None = None,
) -> Float[Tensor, "*batch"]:
    """Return H if the baselines' variables are randomly relabelled, averaged over draws.

    It is the value of H if networks share only how many, how strong and how large interactions
    are, but not which variables they join. The paper reports no such level.

    Args:
        target, baselines, tau, metric, relative_to: as in `transfer`.
        orders: see `generalization_power`.
        draws: number of relabellings, at least 1. All baselines are relabelled alike.
        seed: seed of the relabellings.
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}; expected at least 1")
    baselines, orders = as_list(baselines), None if orders is None else tuple(orders)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros_like(target.bias)
    for _ in range(draws):
        labels = torch.randperm(target.n, generator=generator).tolist()
        relabelled = [b.relabelled(labels) for b in baselines]
        g = transfer(target, relabelled, tau, metric, relative_to)
        total = total + generalization_power(target, g, orders, tau, relative_to)
    return total / draws


def excess(
    target: Interactions, baselines: Interactions | Sequence[Interactions],
    orders: Iterable[int] | None = None, draws: int = 20,
) -> Float[Tensor, "*batch"]:  # fmt: skip
    """Return H minus its chance level, per sample; see `chance_level` for the arguments."""
    power = generalization_power(target, transfer(target, baselines), orders)
    return power - chance_level(target, baselines, orders, draws)


def interaction_count(inter: Interactions, mass: float = 0.8) -> Float[Tensor, "*batch"]:
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
    return count.to(inter.and_.dtype).where(count > 0, torch.nan)


def jaccard(
    spectrum_b: Float[Tensor, "*batch 2 order"], spectrum_c: Float[Tensor, "*batch 2 order"]
) -> Float[Tensor, "*batch"]:
    """Return the overlap of two spectra: sum of minima divided by sum of maxima (App. N).

    Args:
        spectrum_b, spectrum_c: results of `order_spectrum`; only magnitudes count.

    Returns:
        A share in [0, 1]; NaN for two empty spectra.
    """
    b, c = spectrum_b.abs(), spectrum_c.abs()
    shared, joint = (f(b, c).sum((-2, -1)) for f in (torch.minimum, torch.maximum))
    return shared / joint.where(joint > 0, torch.nan)


def mean_order(spectrum: Float[Tensor, "*batch 2 order"]) -> Float[Tensor, "*batch"]:
    """Return the mean order, weighted by strength; NaN for an empty spectrum.

    Example:
        >>> mean_order(torch.tensor([[0.0, 2.0, 1.0], [0.0, -1.0, 0.0]]))
        tensor(1.2500)
    """
    strength = spectrum.abs().sum(-2)
    total = strength.sum(-1)
    orders = torch.arange(strength.shape[-1]).to(strength)
    return strength @ orders / total.where(total > 0, torch.nan)


def order_thirds(
    spectrum: Float[Tensor, "*batch 2 order"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return the shares of strength at low, middle and high orders.

    Low is below n/3, high above 2n/3; NaN for an empty spectrum.

    Example:
        >>> order_thirds(torch.tensor([[0.0, 1, 0, 2, 0, 0, 3], [0.0, 0, -4, 0, 0, 0, 0]]))
        (tensor(0.1000), tensor(0.6000), tensor(0.3000))
    """
    strength = spectrum.abs().sum(-2)
    total = strength.sum(-1, keepdim=True)
    share = strength / total.where(total > 0, torch.nan)
    place = 3 * torch.arange(share.shape[-1], device=share.device) / (share.shape[-1] - 1)
    low, high = place < 1, place > 2
    return tuple(share[..., kept].sum(-1) for kept in (low, ~low & ~high, high))


def uncancelled(spectrum: Float[Tensor, "*batch 2 order"]) -> Float[Tensor, "*batch"]:
    """Return the share of strength that remains after positive and negative effects cancel.

    Returns:
        0 if the effects sum to 0, 1 if all have the same sign, NaN for an empty spectrum.

    Example:
        >>> uncancelled(torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, -1.0]]))
        tensor(0.5000)
    """
    strength = spectrum.abs().sum((-2, -1))
    return spectrum.sum((-2, -1)).abs() / strength.where(strength > 0, torch.nan)


def checkpoint_values(
    inter: Interactions, baselines: Sequence[Interactions]
) -> dict[str, Float[Tensor, "..."]]:
    """Return the quantities of `measure` at one checkpoint, averaged over samples.

    Args:
        inter: interactions of the network, shape (sample, 2**n).
        baselines: interactions of one or more baseline networks.
    """
    g, spectrum = transfer(inter, baselines), order_spectrum(inter)
    kept = order_spectrum(inter, g)
    total, shared = (x.abs().sum((-2, -1)) for x in (spectrum, kept))
    groups = (None, LOW_ORDERS, HIGH_ORDERS, REST_ORDERS)
    power, low, high, rest = (generalization_power(inter, g, orders) for orders in groups)
    chance = chance_level(inter, baselines, draws=10)
    alone = [generalization_power(inter, transfer(inter, one)) for one in baselines]
    values = {"H": power, "H_low": low, "H_high": high, "H_rest": rest, "H_lead": low - high}
    values |= {"H_one": torch.stack(alone).mean(0), "chance": chance, "excess": power - chance}
    values |= {"N": interaction_count(inter), "mean_order": mean_order(spectrum)}
    values |= {"generalizable": shared, "non_generalizable": total - shared}
    thirds = zip(("low", "middle", "high"), order_thirds(spectrum), strict=True)
    values |= {f"orders_{name}": share for name, share in thirds}
    values["uncancelled"] = uncancelled(spectrum)
    means = {name: x.nanmean().cpu() for name, x in values.items()}
    spectra = {"spectrum": spectrum.mean(0).cpu(), "spectrum_generalizable": kept.mean(0).cpu()}
    return {**means, **spectra}
