"""Rules about the continuous measure of transfer (App. M)."""

from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Contrast, Judgement, lead
from symgen.method.spectra import shape_distance
from symgen.method.statistics import resampled
from symgen.method.transfer import generalization_power, order_spectrum, transfer


def similarity_strict(
    target: Interactions, baseline: Interactions, level: dict | None = None
) -> Judgement:
    """The generalizable share of the salient strength by the continuous metric, less that by the
    binary one, sample by sample, is below 0.

    Differences up to 0.02 count as none.
    """
    level = level or {}
    power = [
        generalization_power(target, transfer(target, baseline, metric=metric, **level), **level)
        for metric in ("similarity", "binary")
    ]
    change = power[0] - power[1]
    measure = "H by the continuous metric less H by the binary one"
    known = int((~change.isnan()).sum())
    return Judgement([lead(measure, change, -1)], known)


def similarity_shape(
    target: Interactions, baseline: Interactions, level: dict | None = None
) -> Judgement:
    """The two generalizable spectra have similar shapes: the total variation D between them is
    below 0.2, and what does not generalize (by the binary metric) is farther away from the binary
    metric's shape than the continuous metric's shape is.

    Differences of distances up to 0.02 count as none.
    """
    level = level or {}
    shares = [transfer(target, baseline, metric=m, **level) for m in ("binary", "similarity")]
    binary, continuous = (order_spectrum(target, g, **level) for g in shares)
    rest = order_spectrum(target, **level) - binary

    def farther(one: Tensor, two: Tensor, other: Tensor) -> float:
        return shape_distance(one, other) - shape_distance(one, two)

    apart = resampled(shape_distance, binary, continuous, share=True)
    ahead = resampled(farther, binary, continuous, rest)
    measure = "distance to what does not generalize, less D"
    contrasts = [
        Contrast("D between the two metrics", apart, -1, 0.2, within=(0.0, 1.0)),
        Contrast(measure, ahead, 1, margin=0.02, within=(-1.0, 1.0)),
    ]
    return Judgement(contrasts, len(binary))
