"""What the losses would be without the interactions that do not generalize (Section 3.2)."""

import dataclasses
import math
from collections.abc import Mapping

import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.dynamics import Dynamics
from symgen.method.statistics import (
    Interval,
    around,
    check_draws,
    cut,
    interval,
    mean_difference,
)
from symgen.method.transfer import Share, order_spectrum, refuse_no_share

REMOVED = "non-generalizable"
#: What is removed: nothing; what does not generalize; and the controls. As much salient strength at
#: random; as many salient interactions at random (G permuted among them); and no interaction, but
#: all outputs shrunk alike until the training loss is that after the removal.
REMOVALS = ("nothing", REMOVED, "random", "permuted", "shrunk")
#: A loss gap up to this, in nats, counts as none.
SMALL_GAP = 0.02


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
    refuse_no_share(g)
    salient = torch.stack(inter.salient(tau), -2)
    lost = inter.effects * salient * (1 - torch.stack(g, -2))
    return v_full - lost.sum((-2, -1))


def cross_entropy(v: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return -log sigmoid(v), the classification loss in nats that belongs to v (Eq. 1, 12)."""
    return torch.nn.functional.softplus(-v)


#: What a loss is measured by: the cross-entropy, or -v, of which effects are summands.
MEASURES = {"nats": cross_entropy, "log odds": torch.neg}


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


def permuted_share(inter: Interactions, g: Share, seed: int = 0) -> Share:
    """Return the transfer with its values drawn anew among the salient interactions of a sample.

    The control for removal that keeps how many interactions go, and not their strength.

    Args:
        inter: interactions.
        g: their transfer.
        seed: of the draw.
    """
    salient = torch.stack(inter.salient(), -2).flatten(-2).cpu()
    share = torch.stack(g, -2).flatten(-2).cpu()
    generator = torch.Generator().manual_seed(seed)
    # Salient ones first, in random order: what the k-th of them had, the k-th in place gets.
    drawn = torch.rand(share.shape, generator=generator).where(salient, 2.0).argsort(-1)
    place = salient.logical_not().sort(dim=-1, stable=True).indices
    share = share.scatter(-1, place, share.gather(-1, drawn)).unflatten(-1, (2, -1))
    share = share.to(inter.and_.device)
    return share[..., 0, :], share[..., 1, :]


def removed_outputs(
    inter: Interactions, g: Share, draws: int = 20, seed: int = 0
) -> dict[str, Float[Tensor, "draw sample"]]:
    """Return v of every sample before and after removal (Eq. 12), and for the drawn controls.

    Args:
        inter: interactions of the samples, whose effects are taken from the network's own v[N].
        g: their transfer.
        draws: random removals of each kind.
        seed: of the draws.

    Returns:
        Outputs (log odds) by what was removed: "nothing", "non-generalizable", "random" and
        "permuted"; the first two have one draw.

    Raises:
        ValueError: without a draw.
    """
    check_draws(draws)
    v, seeds = inter.full, range(seed, seed + draws)
    shares = {"random": random_share, "permuted": permuted_share}
    return {
        "nothing": v[None],
        REMOVED: remove(v, inter, g)[None],
        **{k: torch.stack([remove(v, inter, f(inter, g, i)) for i in seeds])
           for k, f in shares.items()},
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Removal:
    """Losses by what was removed: of single samples of a training, or means of several trainings.

    Attributes:
        train: kind of removal (see `REMOVALS`) to losses of training samples, or to the mean
            training loss of each training.
        test: the same of test samples; samples need not be as many, trainings are the same ones.
        unit: "samples" or "trainings".
        measure: of the losses; see `MEASURES`.
    """

    train: Mapping[str, Float[Tensor, "_"]]
    test: Mapping[str, Float[Tensor, "_"]]
    unit: str = "samples"
    measure: str = "nats"

    @classmethod
    def of(
        cls, train: Dynamics, test: Dynamics, step: int, seed: int = 0, measure: str = "nats"
    ) -> "Removal":
        """Return the losses of the followed samples at a checkpoint, before and after removal.

        Args:
            train, test: followed on training and on test samples.
            step: of the checkpoint.
            seed: of the controls' draws.
            measure: "nats" or "log odds".
        """
        outputs = []
        for one in (train, test):
            inter = one.interactions[one.steps.index(step)]
            outputs.append(removed_outputs(inter, one.shares(step), seed=seed))
        factor = shrinkage(outputs[0]["nothing"][0], outputs[0][REMOVED][0])
        for some in outputs:
            some["shrunk"] = factor * some["nothing"]
        loss = MEASURES[measure]
        found = ({k: loss(v).mean(0).cpu().double() for k, v in some.items()} for some in outputs)
        return cls(*found, measure=measure)

    def __len__(self) -> int:
        """Return how many of the unit there are."""
        count = len(self.train["nothing"])
        return count if self.unit == "trainings" else count + len(self.test["nothing"])

    def difference(self, train: Tensor, test: Tensor) -> Interval:
        """Return the mean of test values less that of training values, with its 95 % interval."""
        return interval(test - train) if self.unit == "trainings" else loss_gap(train, test)

    def gap(self, removed: str = "nothing", less: str | None = None) -> Interval:
        """Return the loss gap that a removal leaves, or how much wider it is than another does."""
        train, test = (
            x[removed] - (0 if less is None else x[less]) for x in (self.train, self.test)
        )
        return self.difference(train, test)

    @property
    def clear(self) -> bool:
        """Whether there is a gap to close: one surely wider than `SMALL_GAP`."""
        return self.gap().low > SMALL_GAP

    def closed(self, removed: str = REMOVED, less: str | None = None) -> Interval:
        """Return the share of the loss gap that a removal closes, with its 95 % interval.

        1 closes the gap, 0 leaves it; more than 1 turns it around. The interval is that of the
        share's first-order error, which takes each unit with its losses before and after.

        Args:
            removed: one of `REMOVALS`.
            less: another, whose share is taken off.

        Returns:
            NaN where there is no clear gap to close.

        Raises:
            ValueError: for a removal that was not measured.
        """
        for name in filter(None, (removed, less)):
            if name not in self.train or name not in self.test:
                raise ValueError(f"removed must be one of {[*self.train]}, got {name!r}")
        if not self.clear:
            return Interval(*[float("nan")] * 3)
        before, other = self.gap(), less or "nothing"
        share = (self.gap(other).mean - self.gap(removed).mean) / before.mean
        # What each unit adds to the share, to first order.
        train, test = (
            ((x[other] - x[removed] - share * x["nothing"]) / before.mean).cpu().double().numpy()
            for x in (self.train, self.test)
        )
        groups = (test - train,) if self.unit == "trainings" else (test, -train)
        return around(share, *groups)


def shrinkage(before: Float[Tensor, "sample"], after: Float[Tensor, "sample"]) -> float:
    """Return the factor in [0, 1] by which outputs must shrink to have a mean loss as others have.

    Args:
        before: v of the samples.
        after: v whose mean cross-entropy is to be met.

    Returns:
        1 where the loss did not rise; where no factor meets it, the end that comes closer; NaN
        where an output is.

    Example:
        >>> round(shrinkage(torch.tensor([4.0, 4.0]), torch.tensor([2.0, 2.0])), 6)
        0.5
    """
    wanted = float(cross_entropy(after).mean())
    if math.isnan(wanted):
        return math.nan

    def excess(factor: float) -> float:
        return float(cross_entropy(factor * before).mean()) - wanted

    if excess(1.0) >= 0:
        return 1.0
    # The loss is convex in the factor, so it is largest at an end.
    if excess(0.0) > 0:
        return float(brentq(excess, 0.0, 1.0))
    return float(excess(0.0) < excess(1.0))


def removal_table(removal: Removal) -> pd.DataFrame:
    """Return mean losses and their gap, with 95 % intervals.

    Returns:
        Columns removed, group ("training", "test" or "gap"), loss, low95, high95, in the unit of
        the removal's measure.
    """
    rows, least = [], -math.inf if removal.measure == "log odds" else 0.0  # no loss is below 0
    for name in removal.train:
        for group, losses in (("training", removal.train), ("test", removal.test)):
            rows.append((name, group, *cut(interval(losses[name]), least)))
        rows.append((name, "gap", *removal.gap(name)))
    return pd.DataFrame(rows, columns=["removed", "group", "loss", "low95", "high95"])


def loss_gap(train: Float[Tensor, "sample"], test: Float[Tensor, "other"]) -> Interval:
    """Return mean test loss minus mean training loss, with the interval of `mean_difference`.

    Example:
        >>> f"{loss_gap(torch.zeros(4), torch.ones(4)):.1f}"
        '1.0 [1.0, 1.0]'
    """
    return mean_difference(test, train)


def closed_table(cases: Mapping[str, Removal]) -> pd.DataFrame:
    """Return which share of its loss gap each study closes, by the removal and by the controls.

    Returns:
        Columns label, removed (all of `REMOVALS` but "nothing"), closed, low95, high95; see
        `Removal.closed`.
    """
    rows = [
        (label, name, *case.closed(name))
        for label, case in cases.items()
        for name in case.train
        if name != "nothing"
    ]
    return pd.DataFrame(rows, columns=["label", "removed", "closed", "low95", "high95"])


def output_parts(inter: Interactions, g: Share) -> dict[str, Float[Tensor, "sample order"]]:
    """Return what v[N] is made of (Eq. 11), by order (log odds).

    Args:
        inter: interactions.
        g: their transfer.

    Returns:
        "generalizable" and "non-generalizable" salient effects and "small" ones, by order 0..n;
        "small" holds at order 0 what the logical model misses of v[N]; and "nothing shown", v[0],
        at order 0. They sum to v[N].
    """
    kept, all_ = (order_spectrum(inter, x).sum(-2) for x in (g, None))
    whole = order_spectrum(inter, tau=0.0, relative_to="absolute").sum(-2)
    small, shown = whole - all_, torch.zeros_like(whole)
    shown[..., 0] = inter.bias
    small[..., 0] = inter.full - inter.bias - whole.sum(-1)
    return {"generalizable": kept, REMOVED: all_ - kept, "small": small, "nothing shown": shown}


def gap_parts(train: Dynamics, test: Dynamics, step: int) -> dict[str, Float[Tensor, "order"]]:
    """Return by how much the mean of each part of v[N] is larger on training samples (log odds).

    The parts of `output_parts`; they sum to the gap in log odds, mean v[N] of training samples
    less that of test samples.
    """
    first, second = (
        output_parts(x.interactions[x.steps.index(step)], x.shares(step)) for x in (train, test)
    )
    return {k: (first[k].mean(0) - second[k].mean(0)).cpu() for k in first}


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
        known = ~(pair[0].isnan() | pair[1].isnan())
        before, after = (sure_answers(v[known], classes) for v in pair)
        for bound, one, two in zip(("surely right", "possibly right"), before, after, strict=True):
            change = interval(two.double() - one.double())
            if torch.equal(one, two):  # none has changed: some may be lost, as well as won
                change = change._replace(low=-change.high)
            found = {"before": interval(one), "after": interval(two), "change": change}
            rows += [(group, name, bound, *values) for name, values in found.items()]
    return pd.DataFrame(rows, columns=["group", "outputs", "bound", "share", "low95", "high95"])
