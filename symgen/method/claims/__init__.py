"""How the claims of the paper are judged: one rule a claim, written down before it is run.

A rule is a function whose name is that of the claim in ``data/paper/claims.csv`` and whose
docstring is what a page shows as the rule. It takes what was measured in one setting, and returns
its `Judgement`: one or more contrasts, each with its 95 % interval, the side that the claim names,
and a margin within which a difference counts as none. An extreme (a peak, a lowest point) is picked
on one half of the repetitions and measured on the other. No rule trains, extracts or draws.
"""

from symgen.method.claims.agreement import cross_validation
from symgen.method.claims.baselines import baselines_grow, baselines_two
from symgen.method.claims.conditions import condition_1, condition_2, condition_3
from symgen.method.claims.extraction import llm_matching, matching, sparsity
from symgen.method.claims.extractor import (
    extractor_chance,
    extractor_count,
    extractor_orders,
    extractor_power,
    extractor_scale,
)
from symgen.method.claims.judgement import (
    VERDICTS,
    Contrast,
    Judgement,
    Repeated,
    judge,
    verdicts,
)
from symgen.method.claims.language import llm_low_orders, sft_high, sft_low, sft_phase, sft_share
from symgen.method.claims.orders import (
    low_orders,
    low_orders_above_chance,
    low_orders_learned,
    rule_precision,
    rule_recall,
)
from symgen.method.claims.penalty import penalty_accuracy, penalty_control, penalty_power
from symgen.method.claims.phases import (
    count,
    gap,
    other_class,
    phase_1,
    phase_2,
    phase_3,
    power,
    power_above_chance,
    untrained_baseline,
    untrained_cancel,
    untrained_orders,
    untrained_transfer,
)
from symgen.method.claims.removal import (
    removal_control,
    removal_gap,
    removal_permuted,
    removal_shrunk,
    removal_test,
    removal_train,
)
from symgen.method.claims.similarity import similarity_shape, similarity_strict
from symgen.method.claims.speed import extraction_time
from symgen.method.claims.when import power_beats_simpler, power_predicts

__all__ = [
    "VERDICTS",
    "Contrast",
    "Judgement",
    "Repeated",
    "baselines_grow",
    "baselines_two",
    "condition_1",
    "condition_2",
    "condition_3",
    "count",
    "cross_validation",
    "extraction_time",
    "extractor_chance",
    "extractor_count",
    "extractor_orders",
    "extractor_power",
    "extractor_scale",
    "gap",
    "judge",
    "llm_low_orders",
    "llm_matching",
    "low_orders",
    "low_orders_above_chance",
    "low_orders_learned",
    "matching",
    "other_class",
    "penalty_accuracy",
    "penalty_control",
    "penalty_power",
    "phase_1",
    "phase_2",
    "phase_3",
    "power",
    "power_above_chance",
    "power_beats_simpler",
    "power_predicts",
    "removal_control",
    "removal_gap",
    "removal_permuted",
    "removal_shrunk",
    "removal_test",
    "removal_train",
    "rule_precision",
    "rule_recall",
    "sft_high",
    "sft_low",
    "sft_phase",
    "sft_share",
    "similarity_shape",
    "similarity_strict",
    "sparsity",
    "untrained_baseline",
    "untrained_cancel",
    "untrained_orders",
    "untrained_transfer",
    "verdicts",
]
