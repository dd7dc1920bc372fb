"""Rules about extraction: does the logical model match?"""

from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Judgement, below
from symgen.method.statistics import Interval


def llm_matching(v: Float[Tensor, "prompt state"], exact: Interactions) -> Judgement:
    """On no masked prompt does the logical model miss the output by a billionth of its range.

    The model is the one without noise term. Theorem 1 promises equality, so this is a check and no
    estimate: the worst masked prompt decides, and the value has no interval.
    """
    spread = v.amax(-1) - v.amin(-1)
    missed = ((exact.predict() - v).abs().amax(-1) / spread)[spread > 1e-6 * v.abs().amax(-1)]
    if not len(missed):
        return Judgement([], 0, "the output never changes, so that there is nothing to match")
    worst = float(missed.max())
    measure = "largest |d - v| over all masked inputs / range of v, no noise term"
    return Judgement([below(measure, Interval(worst, worst, worst), 1e-9)], len(missed))
