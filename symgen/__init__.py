"""AND-OR interactions of neural networks: extraction, generalization power, dynamics.

The rooms, from the top: `book`, `figures`, `method`, `models`, `data`, `masking`, `split`; each
says what comes in, what goes out, and what it must never know. On the ground, for all of them:
transforms of set functions, `Interactions`, storage, fingerprints and memory, which know no room.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

# Read by tools, and by the lines below: each name is taken from its module when it is first used,
# so that importing the package takes no seconds.
if TYPE_CHECKING:
    from symgen.book.chapter import Chapter
    from symgen.data.datasets import load_dataset
    from symgen.interactions import Interactions
    from symgen.masking.extraction import extract
    from symgen.masking.hooks import Inputs
    from symgen.masking.mask_values import mean_feature
    from symgen.masking.outputs import masked_outputs
    from symgen.masking.patches import draw_patches
    from symgen.masking.prompts import Prompt, draw_prompts
    from symgen.masking.spans import draw_words
    from symgen.method.dynamics import Dynamics, track
    from symgen.method.language import LanguageStudy
    from symgen.method.phases import phases
    from symgen.method.removal import remove
    from symgen.method.statistics import Interval, interval
    from symgen.method.study import Study
    from symgen.method.trainings import Trainings
    from symgen.method.transfer import (
        HIGH_ORDERS,
        LOW_ORDERS,
        chance_level,
        generalization_power,
        interaction_count,
        jaccard,
        order_spectrum,
        transfer,
    )
    from symgen.method.tuning import Tuning
    from symgen.models.config import TrainingConfig
    from symgen.models.language import LanguageModel, open_language_model
    from symgen.models.own import Checkpoints
    from symgen.models.registry import build_network
    from symgen.models.training import train
    from symgen.split.sparsify import sparsify
    from symgen.transforms import and_or_outputs, interaction_order, moebius, zeta

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
