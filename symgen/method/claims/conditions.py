"""Rules about the conditions under which interactions are proven to be few: are they common?"""

from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method import conditions
from symgen.method.claims.judgement import Judgement, above, below, share
from symgen.method.statistics import median_interval


def condition_1(inter: Interactions, v: Float[Tensor, "sample state"]) -> Judgement:
    """Less than 5 % of the strength of all interactions lies above order n/2, both in the sparsest
    split and without a split (the Moebius transform). The limit is ours.

    Averaged over the samples on which anything has an effect. Nothing is tested with one variable.
    """
    half = inter.n // 2
    if not half:
        return Judgement([], 0, "one variable has interactions of order 1 only")
    plain = Interactions.from_moebius(v).and_
    ways = {"in the sparsest split": inter.effects.abs().sum(-2), "without a split": plain}
    shares = {k: conditions.strength_above(x)[:, half] for k, x in ways.items()}
    contrasts = [
        share(f"share of strength above order {half}, {way}", x, -1, 0.05)
        for way, x in shares.items()
    ]
    return Judgement(contrasts, int((~shares["without a split"].isnan()).sum()))


def condition_2(v: Float[Tensor, "sample state"]) -> Judgement:
    """More than 90 % of the samples have a mean output that never falls, from no variable to all
    of them. The limit is ours.

    Samples whose mean output never moves are left out.
    """
    holds = conditions.never_falls(conditions.average_output(v))
    samples = int((~holds.isnan()).sum())
    told = "share of samples whose mean output never falls"
    return Judgement([share(told, holds, 1, 0.9)], samples)


def condition_3(v: Float[Tensor, "sample state"]) -> Judgement:
    """Of the samples whose output rises from the masked to the full input, more than 90 % have an
    exponent p, and the median of the smallest one lies between 0.9 and 1.2, the paper's range for
    the exponent of the number of interactions, which we read as this p.

    Samples where every small enough p will do say nothing of its size and are not in the median,
    which six samples are needed for. Nothing is tested with one variable, where every p will do.
    """
    u = conditions.average_output(v)
    p = conditions.smallest_exponent(u)[u[:, -1] > 0]
    if not len(p):
        return Judgement([], 0, "no sample's output rises")
    if u.shape[1] <= 2:
        return Judgement([], len(p), "with one variable every p will do")
    middle = median_interval(p[p > 0])
    contrasts = [
        share("share of samples that have a p", ~p.isnan(), 1, 0.9),
        above("median of the smallest p", middle, 0.9),
        below("median of the smallest p", middle, 1.2),
    ]
    return Judgement(contrasts, len(p))
