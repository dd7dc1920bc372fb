"""Rules about removal: what becomes of the losses without what does not generalize?

Each takes the losses of samples of one training, or the mean losses of several trainings, which
are the repetitions then.
"""

from jaxtyping import Float
from torch import Tensor

from symgen.method.claims.judgement import Contrast, Judgement, above, below
from symgen.method.removal import REMOVED, SMALL_GAP, Removal
from symgen.method.statistics import Interval, around, cut

# A factor meets a loss that it misses by no more than this share of 1 + the loss (nats).
MATCHED = 1e-3


def removal_gap(removal: Removal) -> Judgement:
    """The share of the loss gap that closes is above 0; shares up to 0.02 count as none.

    It is the gap between mean test and mean training loss without the salient interactions that do
    not generalize, compared with the gap before. Nothing is tested where that is not surely wider
    than 0.02 nats.
    """
    return _of_a_gap(
        removal, above("share of the loss gap that closes", removal.closed(), margin=0.02)
    )


def removal_control(removal: Removal) -> Judgement:
    """The removal closes a larger share of the loss gap than removing as much strength at random
    does; differences up to 0.02 count as none.

    Each sample loses the same salient strength both ways; the random removal is averaged over 20
    draws. Nothing is tested where the gap before the removal is not surely wider than 0.02 nats.
    """
    return _lead(removal, "random", "the random removal")


def removal_permuted(removal: Removal) -> Judgement:
    """The removal closes a larger share of the loss gap than removing as many salient interactions
    at random does; differences up to 0.02 count as none.

    Which of a sample's salient interactions generalize is drawn anew, averaged over 20 draws.
    Nothing is tested where the gap before the removal is not surely wider than 0.02 nats.
    """
    return _lead(removal, "permuted", "the removal with G permuted")


def removal_shrunk(removal: Removal) -> Judgement:
    """The removal closes a larger share of the loss gap than shrinking all outputs by one factor
    does, which knows of no interactions; differences up to 0.02 count as none.

    The factor is the one at which the mean training loss is that after the removal. Nothing is
    tested where there is none for a training, since shrinking makes no loss larger than that of
    outputs of 0, nor where the gap before is not surely wider than 0.02 nats.
    """
    lead = _lead(removal, "shrunk", "shrinking the outputs")
    if not lead.contrasts:
        return lead
    wanted, had = (removal.train[name] for name in (REMOVED, "shrunk"))
    if removal.unit == "samples":
        wanted, had = wanted.mean()[None], had.mean()[None]
    missed = (had - wanted).abs() > MATCHED * (1 + wanted)
    if missed.any():
        told = "no factor gives the training loss after the removal"
        several = f"in {int(missed.sum())} of {len(missed)} trainings " if len(missed) > 1 else ""
        return Judgement([], len(removal), several + told, removal.unit)
    return lead


def _lead(removal: Removal, control: str, words: str) -> Judgement:
    lead = removal.closed(less=control)
    measure = f"share of the gap that closes, less that by {words}"
    return _of_a_gap(removal, above(measure, lead, margin=0.02))


def _of_a_gap(removal: Removal, contrast: Contrast) -> Judgement:
    if removal.clear:
        return Judgement([contrast], len(removal), unit=removal.unit)
    gap = removal.gap()
    size = f"{gap:.2f} {removal.measure}" if gap.low == gap.low else "unknown from these samples"
    note = f"no clear loss gap to close; before the removal it is {size}"
    return Judgement([], len(removal), note, removal.unit)


def removal_train(removal: Removal) -> Judgement:
    """The mean training loss is higher after the removal; rises up to 0.02 nats count as none."""
    rise = _mean(removal.train[REMOVED] - removal.train["nothing"])
    if removal.measure == "nats":  # no loss is below 0
        rise = cut(rise, -float(removal.train["nothing"].mean()))
    contrast = above("rise of the training loss", rise, margin=0.02, unit=removal.measure)
    return Judgement([contrast], len(removal.train["nothing"]), unit=removal.unit)


def removal_test(removal: Removal) -> Judgement:
    """The mean test loss rises by less than a tenth of the loss gap that was there before the
    removal; where that gap is not surely wider than 0.02 nats, by less than 0.02 nats.
    """
    train, test = removal.train, removal.test
    rise = test[REMOVED] - test["nothing"]
    if removal.clear:
        gap = removal.gap().mean
        share = float(rise.mean()) / gap
        # What each unit adds to the share, to first order.
        parts = (rise - share * test["nothing"]) / gap, share * train["nothing"] / gap
        groups = [sum(parts)] if removal.unit == "trainings" else parts
        value = around(share, *(x.cpu().double().numpy() for x in groups))
        contrast = below("rise of the test loss, as a share of the loss gap", value, 0.1)
    else:
        contrast = below("rise of the test loss", _mean(rise), SMALL_GAP, unit=removal.measure)
    return Judgement([contrast], len(test["nothing"]), unit=removal.unit)


def _mean(values: Float[Tensor, "_"]) -> Interval:
    """Return the mean with its 95 % interval; equal values have no width, be they 0 or 1."""
    return around(float(values.mean()), values.cpu().double().numpy())
