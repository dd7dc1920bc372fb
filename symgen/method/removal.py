"""What the losses would be without the interactions that do not generalize (Section 3.2)."""

from collections.abc import Mapping

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.statistics import Interval, around, check_draws, interval, mean_difference
from symgen.method.transfer import Share, cross_entropy, remove

REMOVALS = ("nothing", "non-generalizable", "random")

Losses = Mapping[str, Float[Tensor, "sample"]]


def random_share(inter: Interactions, g: Share, seed: int = 0) -> Share:
    """Return a transfer that keeps as much salient strength as `g`, but in random interactions.

    The control for removal: each sample loses the same strength, drawn from all its salient
    interactions without regard to what generalizes. The last one drawn is removed in part, so
    that the strengths agree exactly.

    Args:
        inter: interactions.
        g: their transfer.
        seed: of the draw.

    Returns:
        A share in [0, 1] for AND and for OR, each (..., 2**n).
    """
    size = (inter.effects.abs() * torch.stack(inter.salient(), -2)).flatten(-2).cpu()
    lost = (size * (1 - torch.stack(g, -2).flatten(-2).cpu())).sum(-1, keepdim=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(size.shape, generator=generator).argsort(-1)
    drawn = size.gather(-1, order)
    before = drawn.cumsum(-1) - drawn
    taken = ((lost - before) / drawn.where(drawn > 0, 1.0)).clamp(0, 1)
    share = 1 - torch.zeros_like(size).scatter(-1, order, taken)
    share = share.unflatten(-1, (2, -1)).to(inter.and_.device)
    return share[..., 0, :], share[..., 1, :]


def removal_losses(
    inter: Interactions, g: Share, draws: int = 20, seed: int = 0
) -> dict[str, Float[Tensor, "sample"]]:
    """Return the loss of every sample before and after removal (Eq. 12), and for the control.

    Args:
        inter: interactions of the samples, whose effects are taken from the network's own v[N].
        g: their transfer.
        draws: random removals that the control averages.
        seed: of the draws.

    Returns:
        Losses in nats by what was removed: "nothing", "non-generalizable", and "random"
        interactions of the same strength.

    Raises:
        ValueError: without a draw.
    """
    check_draws(draws)
    v = inter.full
    control = sum(
        cross_entropy(remove(v, inter, random_share(inter, g, seed + i))) for i in range(draws)
    )
    found = (cross_entropy(v), cross_entropy(remove(v, inter, g)), control / draws)
    return dict(zip(REMOVALS, found, strict=True))


def removal_table(train: Losses, test: Losses) -> pd.DataFrame:
    """Return mean losses and their gap, with 95 % intervals.

    Args:
        train, test: of `removal_losses`, on training and on test samples.

    Returns:
        Columns removed, group ("training", "test" or "gap"), loss, low95, high95 (nats).
    """
    rows = []
    for name in REMOVALS:
        for group, losses in (("training", train), ("test", test)):
            rows.append((name, group, *interval(losses[name])))
        rows.append((name, "gap", *loss_gap(train[name], test[name])))
    return pd.DataFrame(rows, columns=["removed", "group", "loss", "low95", "high95"])


def loss_gap(train: Float[Tensor, "sample"], test: Float[Tensor, "other"]) -> Interval:
    """Return mean test loss minus mean training loss, with the interval of `mean_difference`.

    Example:
        >>> f"{loss_gap(torch.zeros(4), torch.ones(4)):.1f}"
        '1.0 [1.0, 1.0]'
    """
    return mean_difference(test, train)


def gap_closed(train: Losses, test: Losses, removed: str = "non-generalizable") -> Interval:
    """Return the share of the loss gap that a removal closes, with its 95 % interval.

    1 closes the gap, 0 leaves it; more than 1 turns it around. The interval is Welch's for the
    share's first-order error, which takes each sample with its losses before and after.

    Args:
        train, test: of `removal_losses`.
        removed: "non-generalizable" or "random".

    Returns:
        NaN where there is no gap to close: where the interval of the gap reaches down to 0.

    Raises:
        ValueError: for losses that the tables do not have.
    """
    if removed not in train or removed not in test:
        raise ValueError(f"removed must be one of {[*train]}, got {removed!r}")
    before = loss_gap(train["nothing"], test["nothing"])
    if not before.low > 0:
        return Interval(*[float("nan")] * 3)
    left = loss_gap(train[removed], test[removed]).mean / before.mean
    first, second = (
        ((x[removed] - left * x["nothing"]) / before.mean).cpu().double().numpy()
        for x in (train, test)
    )
    return around(1 - left, first, -second)
