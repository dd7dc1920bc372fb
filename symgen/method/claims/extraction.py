"""Rules about extraction: does the logical model match, and is it sparse?"""

from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Contrast, Judgement, below
from symgen.method.extraction import largest_miss, salient_share
from symgen.method.statistics import Interval, bounded


def matching(v: Float[Tensor, "sample state"], exact: Interactions) -> Judgement:
    """On no masked input does the logical model miss the output by a billionth of its range.

    The model is the one without noise term. Theorem 1 promises equality, so this is a check and no
    estimate: the worst masked input of the worst sample decides, and the value has no interval.
    Samples whose output moves by less than a millionth of its size have nothing to match.
    """
    spread = v.amax(-1) - v.amin(-1)
    dead = spread <= 1e-6 * v.abs().amax(-1)
    missed = (largest_miss(v, exact) / spread)[~dead]
    if not len(missed):
        return Judgement([], 0, "the output never changes, so that there is nothing to match")
    worst = float(missed.max())
    measure = "largest |d - v| over all masked inputs / range of v, no noise term"
    return Judgement([below(measure, Interval(worst, worst, worst), 1e-9)], len(missed))


def llm_matching(v: Float[Tensor, "prompt state"], exact: Interactions) -> Judgement:
    """On no masked prompt does the logical model miss the output by a billionth of its range.

    The model is the one without noise term. Theorem 1 promises equality, so this is a check and no
    estimate: the worst masked prompt decides, and the value has no interval. Prompts whose output
    moves by less than a millionth of its size have nothing to match.
    """
    return matching(v, exact)


def sparsity(inter: Interactions, shuffled: Interactions) -> Judgement:
    """Less than 5 % of the possible interactions are salient, and less than of shuffled outputs.

    Salient is what has more than 5 % of the strongest effect of its sample. Shuffled outputs are
    those of the same samples, dealt out at random over the masked inputs: a function without
    structure. The difference to these, sample by sample, counts as none up to 2 %. Samples
    without any effect are left out. With fewer than 6 variables nothing is tested, since 5 % would
    be fewer interactions than there are variables.
    """
    share = salient_share(inter)
    count = int((~share.isnan()).sum())
    if inter.n < 6:
        return Judgement([], count, f"{inter.n} variables are too few; 6 are the least")
    if not count:
        return Judgement([], count, "no sample has an effect")
    ahead = share - salient_share(shuffled)
    few = _percent("salient share of the possible interactions", share, 0.0, bound=5.0)
    fewer = _percent("the same less that of shuffled outputs", ahead, -100.0, margin=2.0)
    return Judgement([few, fewer], count)


def _percent(measure: str, values: Tensor, least: float, **more: float) -> Contrast:
    ends = (least, 100.0)
    return below(measure, bounded(100 * values, *ends), unit="%", within=ends, **more)
