"""Rules about removal: what becomes of the losses without what does not generalize?"""

from jaxtyping import Float
from torch import Tensor

from symgen.method.claims.judgement import Contrast, Judgement, above, below
from symgen.method.removal import SMALL_GAP, Losses, gap_closed, loss_gap
from symgen.method.statistics import Interval, around

REMOVED = "non-generalizable"


def removal_gap(train: Losses, test: Losses) -> Judgement:
    """The share of the loss gap that closes is above 0; shares up to 0.02 count as none.

    It is the gap between mean test and mean training loss without the salient interactions that do
    not generalize, compared with the gap before. Nothing is tested where that is not surely wider
    than 0.02 nats.
    """
    share = gap_closed(train, test)
    return _of_a_gap(train, test, above("share of the loss gap that closes", share, margin=0.02))


def removal_control(train: Losses, test: Losses) -> Judgement:
    """Removing as much strength at random leaves a wider loss gap than removing what does not
    generalize; differences up to 0.02 nats count as none.

    Each sample loses the same salient strength both ways; the random removal is averaged over 20
    draws. Nothing is tested where the gap before the removal is not surely wider than 0.02 nats.
    """
    lead = loss_gap(train["random"] - train[REMOVED], test["random"] - test[REMOVED])
    measure = "gap left by the random removal less gap left by this one"
    return _of_a_gap(train, test, above(measure, lead, margin=0.02, unit="nats"))


def _of_a_gap(train: Losses, test: Losses, contrast: Contrast) -> Judgement:
    samples = len(train["nothing"]) + len(test["nothing"])
    gap = loss_gap(train["nothing"], test["nothing"])
    if gap.low > SMALL_GAP:
        return Judgement([contrast], samples)
    size = f"{gap:.2f} nats" if gap.low == gap.low else "unknown from these samples"
    return Judgement([], samples, f"no clear loss gap to close; before the removal it is {size}")


def removal_train(train: Losses, test: Losses) -> Judgement:
    """The mean training loss is higher after the removal; rises up to 0.02 nats count as none."""
    rise = _mean(train[REMOVED] - train["nothing"])
    contrast = above("rise of the training loss", rise, margin=0.02, unit="nats")
    return Judgement([contrast], len(train["nothing"]))


def removal_test(train: Losses, test: Losses) -> Judgement:
    """The mean test loss rises by less than a tenth of the loss gap that was there before the
    removal; where that gap is not surely wider than 0.02 nats, by less than 0.02 nats.
    """
    gap, rise = loss_gap(train["nothing"], test["nothing"]), test[REMOVED] - test["nothing"]
    if gap.low > SMALL_GAP:
        share = float(rise.mean()) / gap.mean
        # What each sample adds to the share, to first order.
        parts = (rise - share * test["nothing"]) / gap.mean, share * train["nothing"] / gap.mean
        value = around(share, *(x.cpu().double().numpy() for x in parts))
        contrast = below("rise of the test loss, as a share of the loss gap", value, 0.1)
    else:
        contrast = below("rise of the test loss", _mean(rise), SMALL_GAP, unit="nats")
    return Judgement([contrast], len(test["nothing"]))


def _mean(values: Float[Tensor, "sample"]) -> Interval:
    """Return the mean with its 95 % interval; equal values have no width, be they 0 or 1."""
    return around(float(values.mean()), values.cpu().double().numpy())
