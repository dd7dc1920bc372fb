"""Rules about the extractor: what of a training's course comes of how outputs are split."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from symgen.method.claims.judgement import Contrast, Judgement, above, lead
from symgen.method.claims.phases import COUNT, ORDER, SHARE
from symgen.method.dynamics import Dynamics
from symgen.method.statistics import interval

# One pair a training: followed by one extractor, and by the one that should have more.
Pairs = Sequence[tuple[Dynamics, Dynamics]]
OF_START = "of the untrained N"


def extractor_orders(trainings: Pairs) -> Judgement:
    """Before training, the published procedure has a higher mean order than the exact split.

    Both split the same outputs. Orders are those of salient interactions, weighted by strength.
    A training counts as one number, the mean difference over its samples; of a single training,
    samples are what is repeated. Differences up to 0.05 count as none.
    """
    measure = "mean order, untrained: published less exact"
    return _lead(trainings, lambda d: d.curves["mean_order"][:, 0], partial(_plain, measure, ORDER))


def extractor_count(trainings: Pairs) -> Judgement:
    """From before training to its lowest point, N falls by more with the published procedure.

    More than with the exact split of the same outputs. Falls are shares of the mean N before
    training by the same extractor. The lowest point lies between the first and the last checkpoint;
    it is picked on one half of the samples and measured on the other, both ways round; where N is
    higher there than before training, its fall is 0. A training counts as one number, the mean
    difference over its samples; of a single training, samples are what is repeated. Differences up
    to 0.05 count as none.
    """

    measure = "fall of N: published less exact"
    return _lead(trainings, _fall, partial(_plain, measure, COUNT, unit=OF_START))


def extractor_scale(trainings: Pairs) -> Judgement:
    """The published procedure's N falls by more on outputs as they are than on scaled ones.

    Scaled are outputs that were divided by their range, sample by sample, before they were split,
    which changes no logic. Falls, units and margin are those of the rule for N by the published
    procedure and the exact split.
    """
    measure = "fall of N: as they are less scaled"
    return _lead(trainings, _fall, partial(_plain, measure, COUNT, unit=OF_START))


def extractor_power(trainings: Pairs) -> Judgement:
    """From before training to its peak, H rises by more with the published procedure.

    More than with the exact split of the same outputs. The peak lies between the first and the
    last checkpoint; it is picked on one half of the samples and measured on the other, both ways
    round. A training counts as one number, the mean difference over its samples; of a single
    training, samples are what is repeated. Differences up to 0.02 count as none.
    """
    measure = "rise of H to its peak: published less exact"
    return _lead(trainings, lambda d: d.turn("power", 1)[0], partial(_power, measure))


def extractor_chance(trainings: Pairs) -> Judgement:
    """Up to the peak of H, its chance level rises by more with the published procedure.

    More than with the exact split of the same outputs: a rise of H that relabelled variables share
    may be of orders and signs that both have learned, and not of which variables interact. The peak
    is that of H, as in the rule for its rise. A training counts as one number, the mean difference
    over its samples; of a single training, samples are what is repeated. Differences up to 0.02
    count as none.
    """

    def rise(dynamics: Dynamics) -> Tensor:
        return dynamics.turn("chance", 1, by="power")[0]

    measure = "rise of chance to the peak of H: published less exact"
    return _lead(trainings, rise, partial(_power, measure))


def _fall(dynamics: Dynamics) -> Tensor:
    fall = -dynamics.turn("count", -1)[0] / dynamics.curves["count"][:, 0].mean()
    # An N that only rises has not fallen by less than nothing.
    return fall if fall.nanmean() > 0 else 0 * fall


def _plain(measure: str, margin: float, values: Tensor, unit: str = "1") -> Contrast:
    return above(measure, interval(values), margin=margin, unit=unit)


def _power(measure: str, values: Tensor) -> Contrast:
    return lead(measure, values, margin=SHARE, most=2.0)


def _lead(
    trainings: Pairs, measure: Callable[[Dynamics], Tensor], told: Callable[[Tensor], Contrast]
) -> Judgement:
    """Judge that something is larger by the second of two extractors than by the first.

    Args:
        trainings: what was followed, by both.
        measure: from that to one number a sample.
        told: from leads, one a training or a sample, to the contrast.
    """
    leads = [measure(second) - measure(first) for first, second in trainings]
    many = len(leads) > 1
    values = torch.stack([each.nanmean() for each in leads]) if many else leads[0]
    count, repeated = int((~values.isnan()).sum()), "trainings" if many else "samples"
    return Judgement([told(values)], count, unit=repeated)
