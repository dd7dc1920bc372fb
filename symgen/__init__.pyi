from .book.chapter import Chapter as Chapter
from .data.datasets import load_dataset as load_dataset
from .interactions import Interactions as Interactions
from .masking.mask_values import (
    mean_embedding as mean_embedding,
    mean_feature as mean_feature,
    token_embedding as token_embedding,
)
from .masking.outputs import extract as extract, masked_outputs as masked_outputs
from .masking.prompts import Prompt as Prompt, draw_prompts as draw_prompts
from .masking.variables import draw_patches as draw_patches, draw_words as draw_words
from .method.generalization import (
    chance_level as chance_level,
    generalization_power as generalization_power,
    interaction_count as interaction_count,
    order_spectrum as order_spectrum,
    salient_strength as salient_strength,
    transfer as transfer,
)
from .method.language import LanguageStudy as LanguageStudy, measure_tuning as measure_tuning
from .method.removal import remove_interactions as remove_interactions
from .method.statistics import interval as interval
from .method.study import Study as Study, several as several
from .method.training_curves import last as last, measure as measure, phases as phases
from .models.config import TrainingConfig as TrainingConfig
from .models.language import open_language_model as open_language_model
from .models.own import Checkpoints as Checkpoints, PretrainedNetwork as PretrainedNetwork
from .models.registry import build_network as build_network
from .models.training import train as train
from .split.sparsify import sparsify as sparsify
from .transforms import moebius as moebius

__version__: str
