"""What a parameter must be, by its name: the same in every chapter, but for those of `CHAPTERS`.

Nothing heavy is imported here: a mistake is answered at once.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What a parameter must be: in words, and as a test."""

    expected: str
    holds: Callable[[Any], bool]


def whole(low: int, high: int | None = None) -> Rule:
    """Return the rule for whole numbers from `low` to `high`, or from `low` on."""
    words = f"a whole number from {low} to {high}" if high else f"a whole number, {low} or more"
    return Rule(words, lambda x: type(x) is int and low <= x <= (high or x))


def number(words: str, holds: Callable[[float], bool]) -> Rule:
    """Return the rule for finite numbers in a range, given in words and as a test."""
    return Rule(
        f"a number {words}",
        lambda x: type(x) in (int, float) and -math.inf < x < math.inf and holds(x),
    )


def one_of(*values: Any) -> Rule:
    """Return the rule for one of some values."""
    words = f"one of {', '.join(map(repr, values))}"
    return Rule(words, lambda x: any(type(x) is type(v) and x == v for v in values))


def optional(rule: Rule) -> Rule:
    """Return a rule that also lets None pass."""
    return Rule(f"{rule.expected}, or None", lambda x: x is None or rule.holds(x))


def several(rule: Rule, least: int = 0, most: float = math.inf) -> Rule:
    """Return the rule for lists of `least` to `most` values, each by a rule."""
    size = f"{least}" if least == most else f"{least} or more"
    return Rule(
        f"a list of {size} values, each {rule.expected}",
        lambda x: isinstance(x, (list, tuple)) and least <= len(x) <= most
        and all(map(rule.holds, x)),
    )  # fmt: skip


def _is_name(x: Any) -> bool:
    return isinstance(x, str) and 0 < len(x.strip()) <= len(x) <= 300


def _is_id(x: Any) -> bool:
    # A part of an id becomes a folder's name; a path of a folder begins with / or ./.
    return _is_name(x) and x.isprintable() and all(
        part not in ("", ".", "..") and len(part) <= 100
        for part in x.removeprefix("./").removeprefix("/").split("/")
    )  # fmt: skip


FLAG, TEXT = one_of(True, False), Rule("a text", lambda x: isinstance(x, str))
NAME = Rule("a name of up to 300 letters", _is_name)
ID = Rule('a name, an id "<owner>/<name>", or the path of a folder', _is_id)
COUNT, SIZE = whole(1), whole(0)
# More epochs, layers or seeds than this are a slip of the pen, and would run for years.
MANY, SEEDS, FEW = whole(1, 10_000), whole(1, 1000), whole(1, 100)
STRENGTH = number("0 or more", lambda x: x >= 0)
SHARE = number("0 or more, up to 1", lambda x: 0 <= x <= 1)
# With kappa = 1 no interaction is needed at all.
KAPPA = number("0 or more, below 1", lambda x: 0 <= x < 1)
TAU = number("above 0, up to 1", lambda x: 0 < x <= 1)
RATE = number("above 0, up to 1e+06", lambda x: 0 < x <= 1e6)
DTYPES = ("float64", "float32", "bfloat16", "float16")
MAPPING = Rule("a mapping from names to values", lambda x: isinstance(x, Mapping))
SPLIT = Rule(
    'None, "halves", "test", "thirds", or "parts:K" with a whole number K, 1 or more',
    lambda x: (
        x in (None, "halves", "test", "thirds")
        or (isinstance(x, str) and re.fullmatch("parts:0*[1-9][0-9]*", x))
    ),
)
RULES: dict[str, Rule] = {
    "preset": NAME, "dataset": ID, "network": NAME, "layer": NAME,
    "split": SPLIT,
    "n": whole(1, 16), "grid": COUNT, "small_grid": whole(2, 4), "samples": COUNT, "sample": SIZE,
    "sizes": several(COUNT, 1),
    "train_size": optional(COUNT), "epochs": MANY, "checkpoints": MANY, "baselines": whole(0, 100),
    "label_noise": SHARE, "noise": KAPPA, "kappa": KAPPA, "noise_level": STRENGTH,
    "learning_rate": optional(RATE), "augment": FLAG,
    "mixed_precision": one_of("no", "bf16", "fp16"), "seed": whole(0, 2**31 - 1),
    "seeds": SEEDS, "side_seeds": SEEDS, "comparison_seeds": SEEDS,
    "looks": COUNT, "first_epoch": STRENGTH, "tau": TAU,
    "others": several(MAPPING), "planted": MAPPING,
    "amounts": several(several(COUNT, 2, 2), 1), "label_noises": several(SHARE, 1),
    "widths": several(MANY, 1),
    # Of the chapter on extractors.
    "kappas": several(KAPPA), "steps": COUNT, "functions": COUNT, "levels": several(STRENGTH, 1),
    "options": MAPPING, "evaluation_size": COUNT,
    # Of the chapter on more variables than all masks allow.
    "counts": several(whole(4, 2**16), 1), "few": COUNT, "many": whole(8, 62),
    "calls": whole(20, 100_000), "max_order": whole(1, 6),
    "against": several(one_of("SPEX", "ProxySPEX")),
    # Of the chapter on the penalty.
    "strengths": several(STRENGTH, 1), "decays": several(STRENGTH, 1), "m": whole(1, 12),
    "pool": COUNT, "penalized": COUNT, "every": COUNT,
    # Of the chapters on language models.
    "model": NAME, "baseline": NAME, "old": ID, "vocabularies": several(COUNT, 2, 2),
    "width": MANY, "layers": FEW, "length": COUNT, "tail": SIZE, "dtype": one_of(None, *DTYPES),
    "prompt": TEXT, "target": TEXT, "phrases": several(NAME), "probability": SHARE,
    "masking": NAME, "maskings": several(NAME, 1), "whole": FLAG, "instructions": FLAG,
    "further": several(ID), "tune_size": optional(COUNT), "tune_epochs": MANY, "tune_rate": RATE,
    "batch_size": COUNT, "lora": SIZE,
}  # fmt: skip
#: Where a chapter needs more than others do.
LANGUAGE = {
    "learning_rate": RATE, "mixed_precision": one_of("no", "bf16"),
    "length": whole(2), "phrases": several(NAME, 0, 16),
    "width": Rule("a multiple of 16, up to 10,000", lambda x: MANY.holds(x) and x % 16 == 0),
    "dtype": one_of(None, "auto", *DTYPES),
}  # fmt: skip
CHAPTERS: dict[str, dict[str, Rule]] = {
    "00_planted_logic": {"n": whole(8, 12)},
    "05_llm_interactions": LANGUAGE,
    "06_fine_tuning": LANGUAGE,
    # The ten strongest interactions are looked at, and two variables have five.
    "01_interaction_extraction": {"n": whole(3, 16)},
    "equally_sparse": {"n": whole(3, 16)},
    # Of fewer than three variables pairs are all there is.
    "attributions": {"n": whole(3, 16)},
    "more_variables": {"n": whole(6, 16)},
    # Low orders, 1 and 2, are compared with higher ones.
    "02_order_generalization": {"n": whole(4, 16), "baselines": whole(1, 9)},
    "choices": {"n": whole(3, 16), "baselines": whole(1, 9)},
    # Orders are compared by thirds, and trainings have seeds 10 apart.
    "03_three_phase_dynamics": {"n": whole(4, 16), "baselines": whole(1, 9)},
    "04_loss_gap_removal": {"n": whole(4, 16), "baselines": whole(1, 9)},
    "where_phases_end": {"n": whole(4, 16), "baselines": whole(1, 9)},
    "when": {"n": whole(4, 16), "baselines": whole(1, 9)},
    "B_baseline_networks": {"baselines": whole(2)},
    # Planted effects have up to three variables, and an extreme lies between two checkpoints.
    "extractor": {"n": whole(3, 16), "looks": whole(3)},
    # Its sentences have ten content words, its series at least one time before the last third.
    "your_own_network": {"n": whole(2, 10)},
}
