"""Losses without the non-generalizable interactions (Section 3.2, App. H, J)."""

import math

import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.generalization import PerSample, Transfer, checked, order_spectrum

REMOVED = "non_generalizable"
#: A loss gap up to this, in nats, counts as none.
SMALL_GAP = 0.02


def remove_interactions(v_full: PerSample, inter: Interactions, g: Transfer) -> PerSample:
    """Return the output without its salient non-generalizable interactions (Eq. 12).

    All interactions are present in the unmasked input, so their effects are subtracted.

    Args:
        v_full: v[N] per sample (log odds), such as ``inter.full``.
        inter, g: interactions and their transfer, which knows the threshold.

    Raises:
        ValueError: if g is not the transfer of these interactions.
    """
    g = checked(inter, g)
    return v_full - (inter.effects * g.salient * (1 - g)).sum((-2, -1))


def cross_entropy(v: PerSample) -> PerSample:
    """Return -log sigmoid(v), the classification loss in nats that belongs to v (Eq. 1, 12)."""
    return torch.nn.functional.softplus(-v)


def random_share(inter: Interactions, g: Transfer, seed: int = 0) -> Transfer:
    """Return a transfer that keeps as much salient strength as `g`, but in random interactions.

    It is the main control for removal: each sample loses the same strength. The last interaction
    that is drawn is removed in part, so that the strengths are equal.

    Args:
        inter, g: interactions and their transfer.
        seed: seed of the draw.
    """
    size = (inter.effects.abs() * g.salient).flatten(-2).cpu()
    lost = (size * (1 - g).flatten(-2).cpu()).sum(-1, keepdim=True)
    order = torch.rand(size.shape, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    drawn = size.gather(-1, order)
    before = drawn.cumsum(-1) - drawn
    taken = ((lost - before) / drawn.where(drawn > 0, 1.0)).clamp(0, 1)
    share = 1 - torch.zeros_like(size).scatter(-1, order, taken)
    return Transfer.of(share.unflatten(-1, (2, -1)).to(g.device), g.salient)


def permuted_share(g: Transfer, seed: int = 0) -> Transfer:
    """Return the transfer with its values permuted among the salient interactions of a sample.

    It is the control that keeps the number of removed interactions, but not their strength.

    Args:
        g: transfer of some interactions.
        seed: seed of the draw.
    """
    salient = g.salient.flatten(-2).cpu()
    share = g.flatten(-2).cpu()
    generator = torch.Generator().manual_seed(seed)
    # Salient ones first, in random order: the k-th of them gives its value to the k-th place.
    drawn = torch.rand(share.shape, generator=generator).where(salient, 2.0).argsort(-1)
    place = salient.logical_not().sort(dim=-1, stable=True).indices
    share = share.scatter(-1, place, share.gather(-1, drawn))
    return Transfer.of(share.unflatten(-1, (2, -1)).to(g.device), g.salient)


def shrinkage(before: Float[Tensor, " sample"], after: Float[Tensor, " sample"]) -> float:
    """Return the factor in [0, 1] that shrinks outputs until their mean loss is that of others.

    Args:
        before: v per sample (log odds).
        after: v whose mean cross-entropy is to be met.

    Returns:
        1 if the loss did not rise. If no factor meets it, whichever of 0 and 1 comes closer. NaN
        if an output is NaN.

    Example:
        >>> round(shrinkage(torch.tensor([4.0, 4.0]), torch.tensor([2.0, 2.0])), 6)
        0.5
    """
    goal = float(cross_entropy(after).mean())
    if math.isnan(goal) or before.isnan().any():
        return math.nan

    def excess(factor: float) -> float:
        return float(cross_entropy(factor * before).mean()) - goal

    if excess(1.0) >= 0:
        return 1.0
    # The loss is convex in the factor, so it is largest at an end.
    if excess(0.0) > 0:
        return float(brentq(excess, 0.0, 1.0))
    return float(excess(0.0) < excess(1.0))


def removal_losses(
    train: tuple[Interactions, Transfer],
    test: tuple[Interactions, Transfer],
    seed: int = 0,
    draws: int = 20,
) -> dict[str, Tensor]:
    """Return mean losses of training and test samples before and after each removal.

    Args:
        train, test: interactions and their transfer, of training samples and of test samples.
        seed: seed of the first draw of a control.
        draws: number of draws of each control; seeds are seed, seed + 1, ...

    Returns:
        "removal_<train|test>_<kind>": mean cross-entropy (nats), and
        "removal_v_<train|test>_<kind>": mean of -v (log odds). Kinds: "nothing" is removed;
        "non_generalizable" interactions; "random": the same salient strength, from random
        interactions; "permuted": the same number of salient interactions, at random. "shrunk"
        removes nothing, but multiplies all outputs by one factor in [0, 1]. It gives the training
        loss after the removal or, if that exceeds log 2 (the loss of an output of 0), comes
        closest.
    """
    losses = {}
    seeds = range(seed, seed + draws)
    factor = shrinkage(train[0].full, remove_interactions(train[0].full, *train))
    for group, (inter, g) in {"train": train, "test": test}.items():
        shares = {
            REMOVED: [g],
            "random": [random_share(inter, g, k) for k in seeds],
            "permuted": [permuted_share(g, k) for k in seeds],
        }
        outputs = {"nothing": inter.full, "shrunk": factor * inter.full}
        for kind, several in shares.items():
            removed = [remove_interactions(inter.full, inter, share) for share in several]
            outputs[kind] = torch.stack(removed)
        for kind, v in outputs.items():
            losses[f"removal_{group}_{kind}"] = cross_entropy(v).mean()
            losses[f"removal_v_{group}_{kind}"] = -v.mean()
    return losses


def output_parts(inter: Interactions, g: Transfer) -> dict[str, Float[Tensor, "sample order"]]:
    """Return the parts that v[N] is the sum of (Eq. 11), by order 0..n (log odds).

    Args:
        inter, g: interactions and their transfer.

    Returns:
        "generalizable" and "non_generalizable" salient effects; "small" effects, whose order 0 is
        the part of v[N] that the logical model misses; and "bias", v[0] at order 0.
    """
    kept = order_spectrum(inter, g).sum(-2)
    salient = order_spectrum(inter, g.salient).sum(-2)
    whole = order_spectrum(inter, torch.ones_like(g.salient)).sum(-2)
    bias = torch.zeros_like(whole)
    bias[..., 0] = inter.bias
    small = whole - salient
    small[..., 0] = inter.full - inter.bias - whole.sum(-1)
    return {"generalizable": kept, REMOVED: salient - kept, "small": small, "bias": bias}


def closure(table: pd.DataFrame, removed: str = REMOVED, minus: str = "nothing") -> pd.Series:
    """Return the share of the loss gap that a removal closes, one value per training.

    The share is a ratio of two means over trainings: how much the gap shrinks, divided by the gap.
    Each training's value is its contribution to that ratio, to first order, so that the mean of
    the values is the ratio and their t interval is that of the ratio.

    Args:
        table: table of `measure`.
        removed: kind of removal; see `removal_losses`.
        minus: another kind, whose share is subtracted.

    Returns:
        Values by seed: 1 closes the gap, 0 leaves it. NaN if the mean gap is at most `SMALL_GAP`.
    """
    rows = table[table["quantity"].str.startswith("removal_")]
    losses = rows.pivot(index="seed", columns="quantity", values="value")

    def gap(kind: str) -> pd.Series:
        return losses[f"removal_test_{kind}"] - losses[f"removal_train_{kind}"]

    whole = gap("nothing")
    size = whole.mean()
    if not size > SMALL_GAP:
        return whole * math.nan
    closed = gap(minus) - gap(removed)
    share = closed.mean() / size
    return (share + (closed - share * whole) / size).rename("closed")
