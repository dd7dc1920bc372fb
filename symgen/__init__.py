"""AND-OR interactions of neural networks: extraction, generalization power, dynamics.

The rooms, from the top: `book`, `figures`, `method`, `models`, `data`, `masking`, `split`; each
says what comes in, what goes out, and what it must never know. On the ground, for all of them:
transforms of set functions, `Interactions`, files, storage, fingerprints and memory, which know no
room.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

# Read by tools, and by the lines below: each name is taken from its module when it is first used,
# so that importing the package takes no seconds. "as" tells type checkers that it is public.
if TYPE_CHECKING:
    from symgen.book.chapter import Chapter as Chapter
    from symgen.data.datasets import load_dataset as load_dataset
    from symgen.interactions import Interactions as Interactions
    from symgen.masking.extraction import extract as extract
    from symgen.masking.hooks import Inputs as Inputs
    from symgen.masking.mask_values import mean_feature as mean_feature
    from symgen.masking.outputs import masked_outputs as masked_outputs
    from symgen.masking.patches import draw_patches as draw_patches
    from symgen.masking.prompts import Prompt as Prompt, draw_prompts as draw_prompts
    from symgen.masking.spans import draw_words as draw_words
    from symgen.method.dynamics import Dynamics as Dynamics, track as track
    from symgen.method.language import LanguageStudy as LanguageStudy
    from symgen.method.phases import phases as phases
    from symgen.method.removal import remove as remove
    from symgen.method.statistics import Interval as Interval, interval as interval
    from symgen.method.study import Study as Study
    from symgen.method.trainings import Trainings as Trainings
    from symgen.method.transfer import (
        HIGH_ORDERS as HIGH_ORDERS,
        LOW_ORDERS as LOW_ORDERS,
        chance_level as chance_level,
        generalization_power as generalization_power,
        interaction_count as interaction_count,
        jaccard as jaccard,
        order_spectrum as order_spectrum,
        transfer as transfer,
    )
    from symgen.method.tuning import Tuning as Tuning
    from symgen.models.config import TrainingConfig as TrainingConfig
    from symgen.models.language import (
        LanguageModel as LanguageModel,
        open_language_model as open_language_model,
    )
    from symgen.models.own import Checkpoints as Checkpoints
    from symgen.models.registry import build_network as build_network
    from symgen.models.training import train as train
    from symgen.split.sparsify import sparsify as sparsify
    from symgen.transforms import (
        and_or_outputs as and_or_outputs,
        interaction_order as interaction_order,
        moebius as moebius,
        zeta as zeta,
    )

__version__ = "0.1.0"

_HOMES = {
    alias.name: node.module
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symgen.")
    for alias in node.names
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'symgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
