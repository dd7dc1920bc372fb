"""AND-OR interactions of neural networks: extraction, generalization power, dynamics."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from symgen import fingerprints as _fingerprints

# Read by tools, and by the lines below: each name is taken from its module when it is first used,
# so that importing the package takes no seconds.
if TYPE_CHECKING:
    from symgen.baselines import (
        Baseline,
        corpus_embedding_baseline,
        mean_baseline,
        mean_embedding_baseline,
        token_baseline,
        zero_baseline,
    )
    from symgen.changes import interaction_changes
    from symgen.data import load_dataset, load_texts
    from symgen.dynamics import Dynamics, Extractor, Phases, bootstrap_phases, phases, track
    from symgen.generalization import (
        HIGH_ORDERS,
        LOW_ORDERS,
        chance_level,
        cross_entropy,
        generalization_power,
        interaction_count,
        jaccard,
        order_spectrum,
        pooled_power,
        remove,
        transfer,
    )
    from symgen.interactions import Interactions
    from symgen.intervals import Interval, interval, mean_difference, median_interval
    from symgen.language import (
        SaturatedTargetWarning,
        language_interactions,
        language_memory,
        language_outputs,
    )
    from symgen.language_data import (
        instructions_of,
        load_instructions,
        pieces_of,
        split_texts,
        train_tokenizer,
    )
    from symgen.language_models import LanguageModel, open_language_model
    from symgen.language_training import train_causal_lm
    from symgen.masking import masked_outputs
    from symgen.memory import BatchSizeWarning
    from symgen.networks import build_network, load_causal_lm
    from symgen.prefix_tree import PrefixTreeWarning
    from symgen.prompts import Prompt, UnlikelyTargetWarning, draw_prompts
    from symgen.provenance import Chapter
    from symgen.removal import gap_closed, loss_gap, random_share, removal_losses, removal_table
    from symgen.results import benchmarks, reported
    from symgen.small_world import planted_reason
    from symgen.sparsify import ConvergenceWarning, DeadOutputWarning, sparsify
    from symgen.states import PrecisionWarning, log_odds
    from symgen.study import Study
    from symgen.text_variables import TextVariables, draw_words, phrase_spans, word_spans
    from symgen.training import TrainingRun, train
    from symgen.transforms import and_or_outputs, interaction_order, moebius, zeta
    from symgen.variables import ImageVariables, draw_patches

__version__ = "0.1.0"

_HOMES = _fingerprints.homes("__init__")
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'symgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"symgen.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _Package(ModuleType):
    def __setattr__(self, name, value):
        # Python binds a module it has imported to its name here, which is also a function's.
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
