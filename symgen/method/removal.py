"""What the losses would be without the interactions that do not generalize (Section 3.2)."""

import math
from collections.abc import Mapping

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.dynamics import Dynamics
from symgen.method.statistics import Interval, around, check_draws, interval, mean_difference
from symgen.method.transfer import Share, cross_entropy, remove

REMOVALS = ("nothing", "non-generalizable", "random")
#: A loss gap up to this, in nats, counts as none.
SMALL_GAP = 0.02

#: By what was removed; training and test samples need not be as many.
Losses = Mapping[str, Float[Tensor, "_"]]


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


def losses_at(dynamics: Dynamics, step: int, seed: int = 0) -> dict[str, Float[Tensor, "sample"]]:
    """Return the `removal_losses` of the followed samples at a checkpoint.

    Args:
        dynamics: of training or of test samples.
        step: of the checkpoint.
        seed: of the control's draws.
    """
    inter = dynamics.interactions[dynamics.steps.index(step)]
    return removal_losses(inter, dynamics.shares(step), seed=seed)


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
        NaN where there is no clear gap to close: where its interval reaches down to `SMALL_GAP`.

    Raises:
        ValueError: for losses that the tables do not have.
    """
    if removed not in train or removed not in test:
        raise ValueError(f"removed must be one of {[*train]}, got {removed!r}")
    before = loss_gap(train["nothing"], test["nothing"])
    if not before.low > SMALL_GAP:
        return Interval(*[float("nan")] * 3)
    left = loss_gap(train[removed], test[removed]).mean / before.mean
    first, second = (
        ((x[removed] - left * x["nothing"]) / before.mean).cpu().double().numpy()
        for x in (train, test)
    )
    return around(1 - left, first, -second)


def closed_table(cases: Mapping[str, tuple[Losses, Losses]]) -> pd.DataFrame:
    """Return which share of its loss gap each study closes, by the removal and by the control.

    Args:
        cases: label to losses of training and of test samples.

    Returns:
        Columns label, removed ("non-generalizable" or "random"), closed, low95, high95; see
        `gap_closed`.
    """
    rows = [
        (k, name, *gap_closed(*case, name)) for k, case in cases.items() for name in REMOVALS[1:]
    ]
    return pd.DataFrame(rows, columns=["label", "removed", "closed", "low95", "high95"])


def sure_answers(
    v: Float[Tensor, "sample"], classes: int
) -> tuple[Bool[Tensor, "sample"], Bool[Tensor, "sample"]]:
    """Return where the true class surely wins, and where it may: all that v alone can tell.

    v weighs the true class against all others together (Eq. 1). Above 0 it has more than half of
    the probability; below -log(classes - 1) it has less than one of the others. The means of both
    are bounds on the accuracy.

    Example:
        >>> sure_answers(torch.tensor([1.0, -1.0, -3.0]), classes=10)
        (tensor([ True, False, False]), tensor([ True,  True, False]))
    """
    return v > 0, v >= -math.log(classes - 1)


def answer_table(
    outputs: Mapping[str, tuple[Float[Tensor, "_"], Float[Tensor, "_"]]], classes: int
) -> pd.DataFrame:
    """Return what is known of the accuracy before and after a removal, and of its change.

    Args:
        outputs: group of samples to v and v_removed (Eq. 12).
        classes: how many there are, 2 or more.

    Returns:
        Columns group, outputs ("before", "after" or "change"), bound ("surely right" or
        "possibly right"), share, low95, high95; see `sure_answers`.
    """
    rows = []
    for group, pair in outputs.items():
        before, after = (sure_answers(v, classes) for v in pair)
        for bound, one, two in zip(("surely right", "possibly right"), before, after, strict=True):
            change = interval(two.double() - one.double())
            found = {"before": interval(one), "after": interval(two), "change": change}
            rows += [(group, name, bound, *values) for name, values in found.items()]
    return pd.DataFrame(rows, columns=["group", "outputs", "bound", "share", "low95", "high95"])
