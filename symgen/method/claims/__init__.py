"""How the claims of the paper are judged: one rule a claim, written down before it is run.

A rule is a function whose name is that of the claim in ``data/paper/claims.csv`` and whose
docstring is what a page shows as the rule. It takes what was measured in one setting, and returns
its `Judgement`: one or more contrasts, each with its 95 % interval, the side that the claim names,
and a margin within which a difference counts as none. An extreme (a peak, a lowest point) is picked
on one half of the samples and measured on the other.
"""

from symgen.method.claims.agreement import cross_validation
from symgen.method.claims.baselines import baselines_grow, baselines_two
from symgen.method.claims.judgement import VERDICTS, Contrast, Judgement
from symgen.method.claims.orders import low_orders

__all__ = [
    "VERDICTS",
    "Contrast",
    "Judgement",
    "baselines_grow",
    "baselines_two",
    "cross_validation",
    "low_orders",
]
