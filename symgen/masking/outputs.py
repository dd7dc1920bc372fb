"""The network's output on masked states, and its interactions.

**A network of your own.** The network is called as ``model(x)``, or ``model(**x)`` if x is a
mapping. It returns logits, or an object with an entry ``logits``: (sample, class), or
(sample, position, token) for a causal language model. Other networks need an adapter::

    class Adapter(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            score = self.network.predict(x)[0]        # one logit of a two-class network
            return torch.cat([torch.zeros_like(score), score], dim=1)

**A function of your own.** If the inputs themselves are masked, any function from a batch of
inputs to logits will do, with inputs of any shape: a table, a series, a sound, an image. Variables
are then whole numbers, one per input position. For a classifier of scikit-learn and eight columns::

    symgen.extract(
        forest.predict_log_proba, symgen.Inputs(table, labels), np.arange(8)[None], table.mean(0)
    )

Probabilities of exactly 0 have no logarithm; smooth them:
``lambda x: np.log(forest.predict_proba(x) + 1e-3)``.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import check_states, device, device_of, dtype_of
from symgen.interactions import Interactions
from symgen.masking.causal import causal_outputs, check_causal
from symgen.masking.functions import function_runner
from symgen.masking.hooks import (
    accepts,
    as_tensor,
    call,
    describe,
    evaluating,
    feature_maps,
    layer_output,
    logits_of,
    unwrapped,
)
from symgen.masking.mask_values import MaskValue, check_tokens, word_embedding
from symgen.masking.states import Runner, run_all
from symgen.masking.variables import ImageVariables, TextVariables
from symgen.split.sampled import SampledInteractions, draw_states, sparsify_sampled
from symgen.split.sparsify import MAX_VARIABLES, sparsify

Variables = ImageVariables | TextVariables | Tensor | np.ndarray
Value = MaskValue | Tensor | np.ndarray | np.generic | float | Callable[[Any], MaskValue] | None
# Up to this many variables, the split is faster on a GPU.
GPU_LAST = 12
# Inputs of language models, and all inputs of text networks that have one entry per token.
OF_PROMPTS = {"input_ids", "attention_mask"}
PER_TOKEN = OF_PROMPTS | {"token_type_ids", "position_ids"}


def masked_outputs(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value,
    batch_size: int | None = None,
    *,
    progress: bool = False,
) -> Float[Tensor, "sample state"]:
    """Return v on all 2^n masked states of each sample (Section 2.1; App. A.1, F).

    A causal language model runs as a prefix tree (see `causal`), any other network on every state.
    The result depends on the batch size by rounding only. The network's inputs are copies.

    Args:
        model: any module, or any function from inputs (batch, ...) to logits (batch, class), or to
            log odds (batch,) of class 1 of two; see the text of this module. Modules run in
            evaluation mode. Inputs move to their device and floating type.
        x: images (sample, channel, height, width); token ids (sample, position), or a mapping
            with ``input_ids`` and ``attention_mask``, padded on the right; for a causal language
            model also a list of token ids, one tensor per prompt; for a function, floating inputs
            (sample, ...), a tensor or an array.
        target: (sample,) whole numbers: the class of each sample (a column of the logits), or the
            id of the next token. For a list of prompts also a list of lists: v is then of all
            these tokens, one after the other.
        variables: variables of the same samples. Bit i of a state says whether variable i is
            present. For functions, and modules whose inputs are masked, whole numbers (sample or 1,
            ...): the variable of each input position, -1 for none.
        mask_value: the value of masked variables, and its layer; or a function that makes it for
            the network. None removes words from a list of prompts. For variables that are numbers:
            a number (also NaN), tensor or array that broadcasts to one sample.
        batch_size: masked states per forward pass; by default as many as suit memory and device.
            It is halved, with a `BatchSizeWarning`, if memory runs out.
        progress: whether to show a progress bar.

    Returns:
        (sample, 2^n) in float64 on the CPU.

    Raises:
        ValueError: for arguments that do not fit together, and networks that return probabilities.
        MemoryError: if 2^n states do not fit into memory.
        FloatingPointError: for logits that are NaN or infinite.
        RuntimeError: for a random network, or one whose output depends on the rest of the batch.
    """
    n = _count(x, target, variables)
    check_states(len(target), n)
    return _outputs(model, x, target, variables, mask_value, None, batch_size, progress)


def extract(
    model: nn.Module | Callable[[Any], Any],
    inputs: Any,
    variables: Variables,
    mask_value: Value,
    states: int | None = None,
    *,
    noise: float = 0.02,
    tol: float = 1e-3,
    few: bool = False,
    names: Sequence | None = None,
    held_out: int = 100,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = False,
) -> Interactions | SampledInteractions:
    """Return the interactions of a network on some samples: masked outputs, then their split.

    Args:
        model, variables, mask_value, batch_size, progress: see `masked_outputs`.
        inputs: samples with x and y, such as `Inputs`.
        states: number of masked states to draw and run, for more variables than all 2^n states
            allow (see `sparsify_sampled`).
        noise, tol, few: see `sparsify`.
        names: names of the variables, one list for all samples or one per sample; by default the
            words of a text's variables.
        held_out: number of further states that measure the error, only with `states`.
        seed: seed of the draw of states, only with `states`.

    Returns:
        `Interactions`; with `states`, `SampledInteractions`.

    Raises:
        ValueError: for too many variables, or a wrong number of names; see also `masked_outputs`.
    """
    n, count = _count(inputs.x, inputs.y, variables), len(inputs.y)
    if names is not None and np.shape(names) not in ((n,), (count, n)):
        raise ValueError(f"names have shape {np.shape(names)}; expected {(n,)} or {(count, n)}")
    given = (model, inputs.x, inputs.y, variables, mask_value)
    if states is None:
        if n > MAX_VARIABLES:
            raise ValueError(
                f"n = {n} variables have 2^{n} masked states; a split of all takes n <= "
                f"{MAX_VARIABLES}. Run a sample of them: extract(..., states=500)"
            )
        v = masked_outputs(*given, batch_size, progress=progress)
        v = v.to(device()) if n <= GPU_LAST else v
        result = sparsify(v, noise=noise, tol=tol, few=few, progress=progress).to("cpu")
    else:
        drawn = draw_states(n, states + held_out, seed)
        v = _outputs(*given, drawn, batch_size, progress)
        result = sparsify_sampled(v, drawn, n, held_out=held_out, noise=noise, tol=tol, few=few)
    if names is None:
        names = getattr(variables, "words", ()) or None
    return dataclasses.replace(result, names=names)


def state_runner(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value,
) -> Runner:
    """Return a runner of a classifier on any masked states of its samples, also with gradients.

    Args:
        model: network in evaluation mode.
        x, target, variables, mask_value: see `masked_outputs`.
    """
    given = unwrapped(model), x, _labels(target), variables, mask_value
    if isinstance(variables, Tensor | np.ndarray) or not isinstance(model, nn.Module):
        return function_runner(*given)
    if not isinstance(mask_value, MaskValue):
        raise ValueError(
            f"the mask value is {type(mask_value).__name__}; expected one with its layer: "
            "symgen.mean_feature(model, images), symgen.token_embedding(model, id) or "
            "symgen.mean_embedding(model)"
        )
    return (_text_runner if isinstance(variables, TextVariables) else _image_runner)(*given)


def _outputs(
    model: Any, x: Any, target: Any, variables: Variables, mask_value: Value,
    states: Int[Tensor, " state"] | None, batch_size: int | None, progress: bool,
) -> Float[Tensor, "sample state"]:  # fmt: skip
    """Return v on some states, by default all."""
    model, n = unwrapped(model), _count(x, target, variables)
    # A function may compute gradients itself.
    without = torch.inference_mode if isinstance(model, nn.Module) else torch.no_grad
    with evaluating(model), without():
        value = mask_value(model) if callable(mask_value) else mask_value
        prompts = None
        if isinstance(variables, TextVariables):
            prompts = _prompts(model, x, variables, value)
        if prompts is None:
            runner = state_runner(model, x, target, variables, value)
            every = torch.arange(2**n) if states is None else states
            v = run_all(runner, every, batch_size, progress)
        else:
            several = not isinstance(target, Tensor) and isinstance(target[0], list | tuple)
            targets = target if several else _labels(target)[:, None].tolist()
            given = (model, prompts, targets, variables, value, states)
            v = causal_outputs(*given, batch_size, progress)
    return v.clone()


def _count(x: Any, target: Any, variables: Variables) -> int:
    """Return n; refuse unequal numbers of samples, targets and variables."""
    numbered = isinstance(variables, Tensor | np.ndarray)
    if not numbered and not isinstance(variables, ImageVariables | TextVariables):
        raise ValueError(
            f"variables are {type(variables).__name__}; expected draw_patches(...), "
            "draw_words(...), or an array (sample or 1, *position), such as np.arange(8)[None]"
        )
    samples = len(x["input_ids"] if isinstance(x, Mapping) and "input_ids" in x else x)
    shared = numbered and len(variables) == 1
    if not samples or {len(target), samples if shared else len(variables)} != {samples}:
        raise ValueError(
            f"x has {samples} samples, target {len(target)} and variables {len(variables)}; "
            "expected the same number, one or more"
        )
    return int(variables.max()) + 1 if numbered else variables.n


def _labels(target: Any) -> Int[Tensor, " sample"]:
    array = np.asarray(target.cpu() if isinstance(target, Tensor) else target)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"target is {array.dtype} of shape {array.shape}; expected a whole number per sample: "
            "the column of its class in the logits, or the next token, as in torch.tensor([0, 2])"
        )
    return as_tensor(array.astype(np.int64))


def _image_runner(
    model: nn.Module, x: Any, target: Tensor, variables: ImageVariables, mask_value: MaskValue
) -> Runner:
    if not (isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point()):
        raise ValueError(
            f"x is {describe(x)}; expected floating images (sample, channel, height, width) as a "
            "tensor"
        )

    def inputs_of(first, count):
        part = x[first : first + count].to(device_of(model), dtype_of(model))
        return part.contiguous(memory_format=layout)

    layout = torch.channels_last
    try:
        maps = feature_maps(model, inputs_of(0, 1))
    except RuntimeError:  # Networks with x.view(len(x), -1) refuse the faster layout.
        layout = torch.contiguous_format
        maps = feature_maps(model, inputs_of(0, 1))
    layer = mask_value.layer
    feature = layer_output(model, layer, inputs_of(0, 1))
    if layer is not None and layer not in maps:
        raise ValueError(
            f"layer {layer!r} returns {tuple(feature.shape)} for one image; expected None, to mask "
            f"the image, or a layer that returns (sample, channel, height, width): {maps[:8]}"
        )
    owners = variables.owners(*feature.shape[2:])[:, None]
    masking = owners, variables.n, mask_value.value
    return Runner(model, layer, inputs_of, *masking, target, layout=layout)


def _prompts(
    model: nn.Module, x: Any, variables: TextVariables, value: Any
) -> list[Int[Tensor, " _"]] | None:
    """Return token ids per prompt for a causal language model; None for any other model."""
    name, layer = word_embedding(model)[0], getattr(value, "layer", None)
    removed = value is None and isinstance(x, list | tuple)
    if layer != name and not removed:
        raise ValueError(
            f"words are masked at the word embedding, layer {name!r}, but the mask value is for "
            f"{layer!r}; make it with token_embedding or mean_embedding"
        )
    if isinstance(x, list | tuple):
        if any(isinstance(prompt, str) for prompt in x):
            raise ValueError(
                "x holds texts; expected token ids: tokenizer(x, padding=True, return_tensors='pt')"
            )
        prompts = [torch.as_tensor(prompt).long() for prompt in x]
        check_tokens(model, prompts)
        _check_lengths([len(prompt) for prompt in prompts], variables)
    else:
        ids, mask = _ids_and_mask(model, x, variables)
        prompts = [row[keep] for row, keep in zip(ids, mask, strict=True)]
        check_tokens(model, prompts)
        runner = _text_runner(model, x, ids[:, 0], variables, value)
        if logits_of(call(model, runner.inputs_of(0, 1)), 1).dim() == 2:
            return None
        if isinstance(x, Mapping) and (other := set(x) - OF_PROMPTS):
            raise ValueError(
                f"a causal language model takes no {sorted(other)} here; leave them out"
            )
    check_causal(model, prompts[0])
    return prompts


def _text_runner(
    model: nn.Module, x: Any, target: Tensor, variables: TextVariables, mask_value: MaskValue
) -> Runner:
    ids, mask = _ids_and_mask(model, x, variables)
    named, where = x if isinstance(x, Mapping) else {"": x}, device_of(model)
    # Networks of `transformers` take any length; others may rely on the one that they get.
    trims = hasattr(model, "config") and set(named) <= PER_TOKEN

    def whole_of(first, count):
        rows = slice(first, first + count)
        inputs = {
            key: value[rows].to(where) if isinstance(value, Tensor) and value.dim() else value
            for key, value in named.items()
        }
        return inputs.get("", inputs)

    def inputs_of(first, count):
        inputs, length = whole_of(first, count), int(mask[first : first + count].sum(1).max())
        return {k: v[:, :length] for k, v in inputs.items()} if trims else inputs

    owners, layer = variables.owners(ids.shape[1])[..., None], mask_value.layer
    masking = owners, variables.n, mask_value.value
    return Runner(model, layer, inputs_of, *masking, target, whole_of=whole_of)


def _ids_and_mask(model: nn.Module, x: Any, variables: TextVariables) -> tuple[Tensor, Tensor]:
    """Return token ids, and which of them are not padding."""
    named = x if isinstance(x, Mapping) else {"input_ids": x}
    ids, mask = named.get("input_ids"), named.get("attention_mask")
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
    for row, (found, made) in enumerate(zip(lengths, variables.lengths, strict=False)):
        if found != made:
            raise ValueError(
                f"sample {row} has {found} tokens, but its variables were made for {made}; encode "
                "texts with the same tokenizer and max_length"
            )
