"""Mask values: the value that masked variables take, and the layer where they take it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symgen.device import device_of, dtype_of
from symgen.masking.hooks import (
    describe,
    evaluating,
    feature_maps,
    layer_output,
    unwrapped,
)

# Images whose features are summed at once, in float64.
AT_ONCE = 32


@dataclass(frozen=True)
class MaskValue:
    """The value that masked variables take, and the layer where they take it.

    Attributes:
        value: broadcast to the layer's output for one sample: (channel, height, width),
            (channel, 1, 1) or () for images, (embedding,) for text.
        layer: name of the layer whose output is masked; None for the input itself.
    """

    value: Float[Tensor, "..."]
    layer: str | None


def mean_feature(
    model: nn.Module, images: Tensor | Iterable[Any], layer: str | None = "first_relu"
) -> MaskValue:
    """Return the mean of a layer's output over a data set (App. A.1, images).

    The mean is taken over samples only: every channel at every position has its own value.

    Args:
        model: an image network.
        images: (sample, channel, height, width), or batches of it, as a loader returns them. Of a
            batch that is a tuple, the first entry is used.
        layer: a layer's name, or "first_relu" (see `first_relu`), or None for the mean input.

    Raises:
        ValueError: without images, or for an unknown layer.
    """
    model = unwrapped(model)
    count = 0
    total = torch.zeros(())
    with evaluating(model), torch.inference_mode():
        for batch in [images] if isinstance(images, Tensor) else images:
            batch = batch[0] if isinstance(batch, tuple | list) else batch
            if not isinstance(batch, Tensor) or batch.dim() < 2 or not batch.is_floating_point():
                raise ValueError(
                    f"images are {describe(batch)}; expected a floating tensor (sample, channel, "
                    "height, width), or batches of it"
                )
            for part in batch.split(AT_ONCE):
                part = part.to(device_of(model), dtype_of(model))
                if not count:
                    layer = first_relu(model, part[:1]) if layer == "first_relu" else layer
                # Sums in float64 do not depend on how the data set is split.
                total = total + layer_output(model, layer, part).double().sum(0).cpu()
                count += len(part)
    if not count:
        raise ValueError("mean_feature got no images; pass one or more")
    return MaskValue(_ordinary(total / count), layer)


def first_relu(model: nn.Module, images: Tensor) -> str:
    """Return the name of the first ReLU that returns a feature map.

    Args:
        model: network in evaluation mode.
        images: one or more images.

    Raises:
        ValueError: if there is none, with the layers that can be masked.
    """
    maps = feature_maps(model, images)
    for name in maps:
        if isinstance(model.get_submodule(name), nn.ReLU | nn.ReLU6 | nn.LeakyReLU):
            return name
    raise ValueError(
        f"{type(model).__name__} calls no ReLU module that returns (sample, channel, height, "
        "width), and a ReLU called as a function cannot be masked; expected as layer None, to mask "
        f"the image, or one of {maps[:8]}"
    )


def token_embedding(model: nn.Module, token_id: int) -> MaskValue:
    """Return the embedding of a token, such as [MASK] of BERT, number 103 (App. A.1, language).

    Raises:
        ValueError: if there is no such token, or the network has no embedding.
    """
    layer, embedding = word_embedding(model)
    count = vocabulary_size(embedding)
    if not isinstance(token_id, int) or not 0 <= token_id < count:
        raise ValueError(
            f"token_id is {token_id!r}; expected a number from 0 to {count - 1}. If the tokenizer "
            "has no mask token, use mean_embedding(model)"
        )
    return MaskValue(_ordinary(_embedded(embedding, torch.tensor([token_id]))[0]), layer)


def mean_embedding(model: nn.Module) -> MaskValue:
    """Return the mean word embedding over the vocabulary (footnote 3, language models).

    It belongs to no token, so masking a word does not put another word in its place.
    """
    layer, embedding = word_embedding(model)
    ids = torch.arange(vocabulary_size(embedding))
    parts = [_embedded(embedding, part).cpu().double().sum(0) for part in ids.split(8192)]
    return MaskValue(_ordinary(torch.stack(parts).sum(0) / len(ids)), layer)


@torch.inference_mode()
def _embedded(embedding: nn.Module, ids: Tensor) -> Tensor:
    """Return the embeddings of some tokens."""
    value = embedding(ids.to(device_of(embedding)))
    if not isinstance(value, Tensor):
        raise ValueError(
            f"the word embedding, {type(embedding).__name__}, returns {type(value).__name__}, as "
            "in quantized networks such as I-BERT; expected one tensor. Use the network that it "
            "was quantized from"
        )
    return value


def word_embedding(model: nn.Module) -> tuple[str, nn.Module]:
    """Return name and module of a network's word embedding.

    It is the module from ``get_input_embeddings``, or else the first `torch.nn.Embedding`.

    Raises:
        ValueError: if the network has none.
    """
    model = unwrapped(model)
    try:
        module = cast(Any, model).get_input_embeddings()
    except (AttributeError, NotImplementedError):
        module = None
    for name, candidate in model.named_modules():
        matches = candidate is module or (module is None and isinstance(candidate, nn.Embedding))
        # An embedding of image patches has no weight with one row per word.
        if matches and getattr(getattr(candidate, "weight", None), "ndim", 0) == 2:
            return name, candidate
    raise ValueError(
        f"{type(model).__name__} has no word embedding to mask; give it a method "
        "get_input_embeddings that returns the module which embeds token ids"
    )


def vocabulary_size(embedding: nn.Module) -> int:
    """Return how many tokens a word embedding has."""
    return len(cast(Tensor, embedding.weight))


def _ordinary(value: Tensor) -> Tensor:
    """Return a float32 copy on the CPU that is not an inference tensor."""
    with torch.inference_mode(False):
        return torch.empty(value.shape).copy_(value.detach().clone())


def word_value(model: nn.Module, tokenizer: Any, masking: str = "mean") -> MaskValue | None:
    """Return the mask value of words by name; None if masked words are removed.

    Args:
        model, tokenizer: language network and its tokenizer.
        masking: "mean", the mean embedding over the vocabulary; "remove"; or the text of one token,
            such as "_", for the embedding of this token.

    Raises:
        ValueError: for a text that is not one token.
    """
    if masking == "mean":
        return mean_embedding(model)
    if masking == "remove":
        return None
    ids = tokenizer(masking, add_special_tokens=False)["input_ids"]
    token = tokenizer.convert_tokens_to_ids(masking)
    if len(ids) != 1 and token not in (None, tokenizer.unk_token_id):
        ids = [token]
    if len(ids) != 1:
        raise ValueError(
            f"masking={masking!r} is {len(ids)} tokens of this tokenizer; expected 'mean', "
            "'remove', or the text of one token, such as '_' or ' the'"
        )
    return token_embedding(model, ids[0])
