"""How the claims of the paper are judged: one rule a claim, written down before it is run.

A rule is a function whose name is that of the claim in ``data/paper/claims.csv`` and whose
docstring is what a page shows as the rule. It takes what was measured in one setting, and returns
its `Judgement`: one or more contrasts, each with its 95 % interval, the side that the claim names,
and a margin within which a difference counts as none. An extreme (a peak, a lowest point) is picked
on one half of the samples and measured on the other.
"""

from symgen.method.claims.agreement import cross_validation
from symgen.method.claims.baselines import baselines_grow, baselines_two
from symgen.method.claims.conditions import condition_1, condition_2, condition_3
from symgen.method.claims.extraction import llm_matching, matching, sparsity
from symgen.method.claims.judgement import VERDICTS, Contrast, Judgement, verdicts
from symgen.method.claims.language import llm_low_orders, sft_high, sft_low, sft_phase, sft_share
from symgen.method.claims.orders import low_orders
from symgen.method.claims.phases import (
    count,
    gap,
    phase_1,
    phase_2,
    phase_3,
    power,
    untrained_cancel,
    untrained_orders,
    untrained_transfer,
)
from symgen.method.claims.removal import removal_control, removal_gap, removal_test, removal_train
from symgen.method.claims.similarity import similarity_shape, similarity_strict
from symgen.method.claims.speed import extraction_time

__all__ = [
    "VERDICTS",
    "Contrast",
    "Judgement",
    "baselines_grow",
    "baselines_two",
    "condition_1",
    "condition_2",
    "condition_3",
    "count",
    "cross_validation",
    "extraction_time",
    "gap",
    "llm_low_orders",
    "llm_matching",
    "low_orders",
    "matching",
    "phase_1",
    "phase_2",
    "phase_3",
    "power",
    "removal_control",
    "removal_gap",
    "removal_test",
    "removal_train",
    "sft_high",
    "sft_low",
    "sft_phase",
    "sft_share",
    "similarity_shape",
    "similarity_strict",
    "sparsity",
    "untrained_cancel",
    "untrained_orders",
    "untrained_transfer",
    "verdicts",
]
