"""Texts as networks read them: token ids, their padding, and the variables of both."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from symgen.device import device_of
from symgen.masking.hooks import Network, accepts, call, describe, logits_of, parameters_of
from symgen.masking.mask_values import MaskValue, vocabulary_size, word_embedding
from symgen.masking.states import Prepared
from symgen.masking.variables import TextVariables

# Inputs of language models, and all inputs of text networks that have one entry per token.
OF_PROMPTS = {"input_ids", "attention_mask"}
PER_TOKEN = OF_PROMPTS | {"token_type_ids", "position_ids"}


def prepare_texts(
    model: nn.Module,
    x: Any,
    target: Int[Tensor, " sample"],
    variables: TextVariables,
    mask_value: MaskValue,
) -> Prepared:
    """Return the samples of a text classifier; see `masked_outputs`."""
    ids, present = ids_and_mask(model, x, variables)
    lengths = None
    # Networks of `transformers` take any length; others may rely on the one that they get.
    if hasattr(model, "config") and (isinstance(x, Tensor) or set(x) <= PER_TOKEN):
        lengths = present.sum(1)
    return Prepared(
        Network(model, mask_value.layer),
        dict(x) if isinstance(x, Mapping) else x,
        variables.owners(ids.shape[1])[..., None],
        mask_value.value,
        variables.n,
        target,
        device_of(model),
        lengths,
    )


def prompts_of(
    model: nn.Module, x: Any, variables: TextVariables, mask_value: Any
) -> list[Int[Tensor, " _"]] | None:
    """Return token ids per prompt for a causal language model; None for a classifier.

    Raises:
        ValueError: for texts that the network cannot read, or a mask value of another layer.
    """
    name, _ = word_embedding(model)
    layer = getattr(mask_value, "layer", None)
    is_list = isinstance(x, list | tuple)
    if layer != name and not (mask_value is None and is_list):
        raise ValueError(
            f"words are masked at the word embedding, layer {name!r}, but the mask value is for "
            f"{layer!r}; make it with token_embedding or mean_embedding"
        )
    if is_list:
        if any(isinstance(prompt, str) for prompt in x):
            raise ValueError(
                "x holds texts; expected token ids: tokenizer(x, padding=True, return_tensors='pt')"
            )
        prompts = [torch.as_tensor(prompt).long() for prompt in x]
        check_tokens(model, prompts)
        _check_lengths([len(prompt) for prompt in prompts], variables)
        return prompts
    ids, present = ids_and_mask(model, x, variables)
    prompts = [row[keep] for row, keep in zip(ids, present, strict=True)]
    check_tokens(model, prompts)
    # Neither target nor mask value matter here.
    nothing = MaskValue(torch.zeros(()), name)
    first = prepare_texts(model, x, ids[:, 0], variables, nothing).rows(0)
    if logits_of(call(model, first), 1).dim() == 2:
        return None
    other = set(x) - OF_PROMPTS if isinstance(x, Mapping) else ()
    if other:
        raise ValueError(f"a causal language model takes no {sorted(other)} here; leave them out")
    return prompts


def ids_and_mask(
    model: nn.Module, x: Any, variables: TextVariables
) -> tuple[Int[Tensor, "sample position"], Bool[Tensor, "sample position"]]:
    """Return token ids, and which of them are not padding.

    Raises:
        ValueError: for ids that are no ids, or padded in an unknown way.
    """
    named = x if isinstance(x, Mapping) else {"input_ids": x}
    ids = named.get("input_ids")
    mask = named.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise ValueError(
            f"x is {describe(ids)}; expected token ids (sample, position), a mapping with them "
            "as input_ids, or for a causal language model a list of prompts"
        )
    for key, value in named.items():
        if isinstance(value, Tensor) and value.dim() and len(value) != len(ids):
            raise ValueError(
                f"{key} has shape {tuple(value.shape)}, but there are {len(ids)} samples; expected "
                "a number, or one row per sample, such as value.expand(samples, -1)"
            )
    ids = ids.cpu()
    if mask is None:
        config = getattr(model, "config", None)
        pad, start = (getattr(config, name, None) for name in ("pad_token_id", "bos_token_id"))
        padded = any(length < ids.shape[1] for length in variables.lengths)
        if pad is not None:
            # On the left, one start token may be the same as padding.
            left = ids[:, : 2 if pad == start else 1] == pad
            padded |= bool((ids[:, -1] == pad).any() or left.all(1).any())
        if padded and accepts(model, "attention_mask"):
            raise ValueError(
                "token ids are padded, but there is no attention mask; expected "
                '{"input_ids": ids, "attention_mask": mask}, as the tokenizer returns them'
            )
        return ids, torch.ones_like(ids).bool()
    mask = mask.cpu().bool()
    if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError("x is padded on the left or inside; encode with padding_side='right'")
    _check_lengths(mask.sum(1).tolist(), variables)
    return ids, mask


def _check_lengths(lengths: Sequence[int], variables: TextVariables) -> None:
    """Refuse texts with other numbers of tokens than their variables were made for."""
    for row, (given, expected) in enumerate(zip(lengths, variables.lengths, strict=False)):
        if given != expected:
            raise ValueError(
                f"sample {row} has {given} tokens, but its variables were made for {expected}; "
                "encode texts with the same tokenizer and max_length"
            )


def check_tokens(model: nn.Module, prompts: Sequence[Tensor]) -> None:
    """Refuse token ids that a network cannot read.

    Raises:
        ValueError: for unknown tokens, texts that are too long, and encoder-decoder networks.
    """
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} is an encoder-decoder network, which is not supported; use an encoder with a "
            "classifier, or a causal language model (AutoModelForCausalLM)"
        )
    count = vocabulary_size(word_embedding(model)[1])
    for ids in prompts:
        if ids.dim() != 1 or not len(ids):
            raise ValueError(
                f"a text has tokens of shape {tuple(ids.shape)}; expected a list of one or more"
            )
        wrong = ids[(ids < 0) | (ids >= count)]
        if len(wrong):
            raise ValueError(
                f"a text has the token {int(wrong[0])}, but {name} has tokens 0..{count - 1}; use "
                "the tokenizer of this model"
            )
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or torch.inf
    longest = max(map(len, prompts))
    # Rotary positions of some kinds are stretched for longer texts.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if longest > limit > 0 and "dynamic" not in str(rope):
        raise ValueError(f"a text has {longest} tokens, but {name} reads {limit}; shorten it")


def cache_name(model: nn.Module) -> str:
    """Return the argument that takes the cache: past_key_values before transformers 5.24."""
    return "cache" if "cache" in parameters_of(model) else "past_key_values"


def options_of(model: nn.Module, **options: Any) -> dict[str, Any]:
    """Return the options that a causal language model takes, and one for its last logits only.

    With a large vocabulary, logits are the largest thing that a language model computes.
    """
    taken = {name: value for name, value in options.items() if accepts(model, name)}
    if "logits_to_keep" in parameters_of(model):
        taken["logits_to_keep"] = 1
    return taken
