"""What of a language model is trained and stored: all its weights, or low-rank adapters alone."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from symgen.models.registry import untrained


class Trainable(nn.Module):
    """A language model whose state is its trained parameters, shared ones once."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (sample, token, vocabulary)."""
        return self.model(input_ids=ids, use_cache=False).logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Tensor]:
        return {k: p.detach() for k, p in self.model.named_parameters() if p.requires_grad}

    def load_state_dict(self, weights: Mapping[str, Tensor], *args: Any, **options: Any) -> None:
        with torch.no_grad():
            for name, value in self.state_dict().items():
                value.copy_(weights[name])


def trainable(model: nn.Module, lora: int) -> Trainable:
    """Return a copy of a model that is ready to be trained.

    Args:
        model: as it is to begin with.
        lora: rank of low-rank adapters; 0 trains all weights.

    Raises:
        ImportError: for adapters without `peft`.
    """
    model = copy.deepcopy(model).requires_grad_(not lora)
    if lora:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ImportError(
                "low-rank adapters need peft: pip install 'symgen[lora]', or train all weights "
                "with lora=0"
            ) from error
        settings = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear",
                              task_type="CAUSAL_LM")  # fmt: skip
        model = untrained(get_peft_model, {"model": model, "peft_config": settings}, seed=0)
    return Trainable(model)


def merged(trained: Trainable) -> nn.Module:
    """Return the model itself, adapters merged into its weights."""
    model = trained.model
    return getattr(model, "merge_and_unload", lambda: model)().requires_grad_(False)
