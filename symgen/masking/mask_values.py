"""Mask values: what masked variables are replaced with, and at which layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.fingerprints import refusal
from symgen.masking.hooks import Cut, check_layer, feature_maps, layers_to_mask
from symgen.masking.spans import check_texts
from symgen.masking.states import evaluating, refuse_changed_inputs
from symgen.memory import device_of, dtype_of

# What a layer's output for one batch may take, in bytes, before it is summed in float64.
FEATURE_BYTES = 2**28
# Channels of a picture at most: red, green, blue and opacity.
COLOURS = 4


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
    model: nn.Module,
    images: Tensor | Iterable[Any],
    layer: str | None = "first_relu",
    batch_size: int = 256,
) -> MaskValue:
    """Return the mean of a layer's output over a data set (App. A.1, images).

    The mean is taken over samples only, so every channel at every position has its own value:
    the empirical mean of that input variable across the data set.

    Args:
        model: an image network.
        images: (sample, channel, height, width), or batches of it, as a loader gives them;
            of a batch that is a tuple the first entry is used.
        layer: a layer's name, or "first_relu" (see `find_layer`), or None for the mean input.
        batch_size: images run at once, when `images` is one tensor; fewer where the layer's output
            is large.

    Raises:
        ValueError: when there is no image, or no such layer.
    """
    _refuse_array(images)
    batches = images.split(batch_size) if isinstance(images, Tensor) else images
    count, total = 0, torch.zeros(())
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            batch = batch[0] if isinstance(batch, tuple | list) else batch
            _refuse_one_image(model, batch)
            batch = batch.to(device_of(model), dtype_of(model))
            if not count:
                refuse_changed_inputs(model, batch)
                _refuse_no_relu(model, batch, layer)
                layer = None if layer is None else find_layer(model, layer, batch[:1])
                way = Cut(layer)
                at_once = max(1, FEATURE_BYTES // way.below(model, batch[:1])[0].nbytes)
            for some in batch.split(at_once):
                feature, _ = way.below(model, some)
                # Summed where it lies, so that only the sum is copied, if there is float64.
                feature = feature.cpu() if feature.device.type == "mps" else feature
                # Sums in float64 do not depend on how the data set is split.
                total = total + feature.double().sum(0).cpu()
            count += len(batch)
    if not count:
        raise ValueError("mean_feature got no images; pass one or more")
    return MaskValue(_ordinary(total / count), layer)


def zero_feature(model: nn.Module, layer: str | None = "first_relu") -> MaskValue:
    """Return the value 0 at a layer, or at the input.

    Args:
        model: an image network.
        layer: as for `mean_feature`; its name, for networks not made by `build_network`.
    """
    return MaskValue(torch.zeros(()), None if layer is None else find_layer(model, layer))


def token_embedding(model: nn.Module, token_id: int | None) -> MaskValue:
    """Return the embedding of a token, such as [MASK] of BERT, number 103 (App. A.1, language).

    Raises:
        ValueError: when there is no such token, or the network has no embedding.
    """
    _refuse_no_token(token_id)
    layer, embedding = word_embedding(model)
    count = embedding.weight.shape[0]
    if not 0 <= token_id < count:
        raise ValueError(f"token_id = {token_id} is outside the vocabulary, 0..{count - 1}")
    with torch.inference_mode():
        value = embedding(torch.tensor([token_id], device=embedding.weight.device))[0]
    return MaskValue(_ordinary(value), layer)


def mean_embedding(model: nn.Module) -> MaskValue:
    """Return the mean word embedding over the vocabulary (footnote 3, language models).

    It belongs to no token, so that masking a word does not put another one in its place.
    """
    layer, embedding = word_embedding(model)
    with torch.inference_mode():
        ids = torch.arange(embedding.weight.shape[0], device=embedding.weight.device)
        parts = [embedding(chunk).cpu().double().sum(0) for chunk in ids.split(8192)]
    return MaskValue(_ordinary(torch.stack(parts).sum(0) / len(ids)), layer)


def corpus_embedding(model: nn.Module, ids: Iterable[Tensor]) -> MaskValue:
    """Return the mean word embedding over the tokens of a corpus, frequent ones counting more.

    Args:
        model: a language network.
        ids: token ids of the texts.

    Raises:
        ValueError: when there is no token.
    """
    layer, embedding = word_embedding(model)
    counts = torch.zeros(embedding.weight.shape[0], dtype=torch.long)
    for text in ids:
        counts += torch.as_tensor(text).flatten().bincount(minlength=len(counts))
    used = counts.nonzero()[:, 0]
    if not len(used):
        raise ValueError("corpus_embedding got no tokens; pass token ids of some texts")
    with torch.inference_mode():
        vectors = embedding(used.to(embedding.weight.device)).cpu().double()
    weights = counts[used, None].double()
    return MaskValue(_ordinary((vectors * weights).sum(0) / weights.sum()), layer)


def find_layer(model: nn.Module, name: str = "first_relu", x: Any = None) -> str:
    """Return the dotted name of a layer: by default of the first ReLU that gives a feature map.

    Args:
        model: any network; it is run once to see which ReLU comes first.
        name: "first_relu", or the dotted name of a layer, which is checked. Language networks
            have no ReLU to mask at: for them "first_relu" gives the embedding layer.
        x: an input to run; needed for networks not made by `build_network`.

    Raises:
        ValueError: if there is no such layer, with what to name instead. No other layer is taken
            in its place: not in networks of attention and GELU, nor with channels last.

    Example:
        >>> from symgen import build_network
        >>> find_layer(build_network("resnet20"))
        'relu'
    """
    if name != "first_relu":
        return check_layer(model, name)
    modules = dict(model.named_modules())
    image = isinstance(x, Tensor) and x.is_floating_point()
    if isinstance(_given_embedding(model), nn.Embedding) and not image:
        return word_embedding(model)[0]
    if x is None:
        shape = getattr(model, "input_shape", None) or (3, 32, 32)
        like = next(model.parameters(), torch.empty(0))
        x = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
    with evaluating(model), torch.inference_mode():
        maps = feature_maps(model, x)
        kinds = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
        first = next((k for k in maps if isinstance(modules[k], kinds)), None)
        if first and maps[first]:
            return first
        order = f" ({first} gives four dimensions of another or an unknown order)" if first else ""
        raise ValueError(
            f"{type(model).__name__} calls no ReLU module that gives (sample, channel, height, "
            f"width){order}, and a ReLU called as a function cannot be found; name the layer after "
            f"which to mask, {layers_to_mask(model, x)}"
        )


@refusal
def refuse_without_maps(model: nn.Module, images: Any) -> None:
    """Refuse to mask patches at any layer of a network that has no feature map of an image.

    Raises:
        ValueError: with what to do instead, since no other layer would do.
    """
    if not isinstance(images, Tensor) or images.dim() != 4:
        return
    refuse_other_channels(model, images)
    with evaluating(model), torch.inference_mode():
        maps = feature_maps(model, images[:1])
    if all(first is False for first in maps.values()):
        raise ValueError(
            f"no layer of {type(model).__name__} returns (sample, channel, height, width), so its "
            "patches can be masked in the images alone: symgen.mean_feature(model, images, None)"
        )


@refusal
def refuse_other_channels(model: Any, images: Any) -> None:
    """Refuse images that a network cannot run since they have channels that it does not take.

    Raises:
        ValueError: with the channels of both.
    """
    if not isinstance(model, nn.Module) or not isinstance(images, Tensor) or images.dim() != 4:
        return
    layers = (m for m in model.modules() if isinstance(m, nn.Conv2d))
    taken = getattr(next(layers, None), "in_channels", images.shape[1])
    last = images.shape[-1] <= COLOURS < images.shape[1]
    if images.shape[1] == taken and not last:
        return
    try:
        with evaluating(model), torch.inference_mode():
            model(images[:1].to(device_of(model), dtype_of(model)))
    except RuntimeError as error:
        said = f"{type(model).__name__} cannot run images of shape {tuple(images.shape)}"
        expected = "expected (sample, channel, height, width)"
        if last or images.shape[-1] == taken:
            raise ValueError(
                f"{said}, whose channels seem to be last; {expected}: images.permute(0, 3, 1, 2)"
            ) from error
        raise ValueError(
            f"{said}: they have {images.shape[1]} channel(s), and its first convolution takes "
            f"{taken}; {expected} with as many"
        ) from error


@refusal
def _refuse_no_relu(model: nn.Module, images: Any, layer: str | None) -> None:
    # A layer that is named is taken at its word here, at every step of a penalty, say.
    if layer == "first_relu":
        refuse_without_maps(model, images)


@refusal
def _refuse_array(images: Any) -> None:
    if isinstance(images, np.ndarray):
        raise ValueError(
            f"images are an array of shape {images.shape}; expected a tensor: "
            "torch.from_numpy(images).float()"
        )
    if isinstance(images, Tensor) and not len(images):
        raise ValueError("mean_feature got no images; pass one or more")


@refusal
def _refuse_one_image(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        raise ValueError(
            f"a batch has the entries {', '.join(map(str, batch))}; give the images alone: "
            '(batch["image"] for batch in loader)'
        )
    takes_images = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    if isinstance(batch, Tensor) and batch.dim() < 4 and takes_images:
        raise ValueError(
            f"a batch is of shape {tuple(batch.shape)}; expected (sample, channel, height, width): "
            "images[None] of a single image, and DataLoader(dataset, 64) of a dataset"
        )


@refusal
def _refuse_no_token(token_id: Any) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int):
        raise ValueError(
            f"token_id is {token_id!r}; expected the number of a token. A tokenizer whose "
            "mask_token_id is None has no mask token: take mean_embedding(model) in its place"
        )


def word_embedding(model: nn.Module) -> tuple[str, nn.Module]:
    """Return name and module of a network's word embedding.

    It is what `get_input_embeddings` gives, or else the first `torch.nn.Embedding`.
    """
    module = _given_embedding(model)
    for name, candidate in model.named_modules():
        found = candidate is module or (module is None and isinstance(candidate, nn.Embedding))
        # What embeds the patches of an image has no weight with a row for each word.
        if found and getattr(getattr(candidate, "weight", None), "ndim", 0) == 2:
            return name, candidate
    raise ValueError(
        f"{type(model).__name__} has no word embedding to mask at; give it a method "
        "get_input_embeddings that returns the module which embeds token ids"
    )


def _given_embedding(model: nn.Module) -> Any:
    """Return what the network itself calls its input embedding, if anything."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


@refusal
def refuse_unknown_tokens(model: nn.Module, ids: Int[Tensor, " position"]) -> None:
    """Refuse token ids that a model has no embedding for.

    Raises:
        ValueError: with the id, and how many the model knows.
    """
    count = getattr(_given_embedding(model), "num_embeddings", None)
    if count is not None and len(ids) and int(ids.max()) >= count:
        raise ValueError(
            f"the tokenizer gives the token {int(ids.max())}, and {type(model).__name__} knows "
            f"those from 0 to {count - 1}; is the tokenizer that of another model?"
        )


def _ordinary(value: Tensor) -> Tensor:
    """Return a float32 copy on the CPU that is no inference tensor."""
    with torch.inference_mode(False):
        return torch.empty(value.shape).copy_(value.detach().clone())


def word_value(
    model: nn.Module, tokenizer: Any, masking: str = "mean", texts: Sequence = ()
) -> MaskValue | None:
    """Return what stands in place of masked words; None where they are left out.

    By default the mean embedding over the vocabulary (footnote 3 of the paper): it belongs to no
    token, so that masking does not put another word in its place, and it is known for every model.

    Args:
        model, tokenizer: of the language model.
        masking: "mean"; "corpus", which weighs tokens by how often some texts have them; the text
            of a token, such as "_"; or "remove".
        texts: for "corpus".

    Raises:
        ValueError: for a text that is no single token.
    """
    if masking == "remove":
        return None
    if masking == "mean":
        return mean_embedding(model)
    ids = mask_ids(tokenizer, masking, texts)
    if masking == "corpus":
        return corpus_embedding(model, map(torch.tensor, ids))
    return token_embedding(model, ids[0])


def mask_ids(tokenizer: Any, masking: str, texts: Sequence) -> list:
    """Return the token ids that the embedding of masked words is made of, besides the weights."""
    if masking in ("mean", "remove"):
        return []
    if masking == "corpus":
        check_texts(texts)
        return tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
    ids = tokenizer(masking, add_special_tokens=False)["input_ids"]
    known = tokenizer.convert_tokens_to_ids(masking)
    if len(ids) != 1 and known not in (None, tokenizer.unk_token_id):
        ids = [known]
    if len(ids) != 1:
        raise ValueError(
            f"masking={masking!r} is {len(ids)} tokens of this tokenizer; expected 'mean', "
            "'corpus', 'remove', or the text of one token, such as '_'"
        )
    return ids
