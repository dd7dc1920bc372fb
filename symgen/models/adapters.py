"""The trained parameters of a language model: all of them, or low-rank adapters."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from symgen.models.registry import untrained


class Trainable(nn.Module):
    """A language model whose state is its trained parameters, shared ones once."""

    model: Any

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (sample, token, vocabulary)."""
        return self.model(input_ids=ids, use_cache=False).logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Tensor]:
        """Return the trained parameters."""
        return {k: p.detach() for k, p in self.model.named_parameters() if p.requires_grad}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy trained parameters into the model."""
        with torch.no_grad():
            for name, value in self.state_dict().items():
                value.copy_(state_dict[name])


def trainable(model: nn.Module, lora: int) -> Trainable:
    """Return a copy of a model to train: all its weights, or low-rank adapters of rank `lora`."""
    model = copy.deepcopy(model).requires_grad_(not lora)
    if lora:
        from peft import LoraConfig, get_peft_model  # pip install 'symgen[lora]'

        settings = LoraConfig(
            r=lora, lora_alpha=2 * lora, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        with warnings.catch_warnings():
            # peft asks for a name that transformers gives up.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            model = untrained(get_peft_model, {"model": model, "peft_config": settings}, seed=0)
    return Trainable(model)


def merged(trained: Any) -> nn.Module:
    """Return the model itself, with adapters merged into its weights."""
    model = trained.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    return model.requires_grad_(False)
