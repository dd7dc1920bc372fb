"""The network's output on all 2^n masked states: of networks, and of any function.

**A network of your own.** `masked_outputs` calls ``model(x)``, or ``model(**x)`` when x is a
mapping, and takes the result, or its entry ``logits``, as logits: (sample, class), or
(sample, position, token) for a causal language model. A network that is called differently or
returns something else needs an adapter of a few lines::

    class Adapter(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            score = self.network.predict(x)[0]        # one logit of a two-class network
            return torch.cat([torch.zeros_like(score), score], dim=1)

Any layer of ``Adapter(network).named_modules()`` can then be masked. A text network without
``get_input_embeddings`` is masked at its first ``torch.nn.Embedding``.

**A function of your own.** Where the inputs themselves are masked, any function from a batch of
inputs to logits will do, and any shape of inputs: the features of a table, the times of a series or
a sound, the pixels of a picture. Its variables are whole numbers, one for each position of the
inputs. A classifier of scikit-learn and a table of eight columns, each of them a variable::

    symgen.extract(
        forest.predict_log_proba, symgen.Inputs(table, labels), np.arange(8)[None], table.mean(0)
    )

`predict_proba` gives probabilities, of which these are the logarithms; one of exactly 0 has none:
smooth it first, as ``lambda x: np.log(forest.predict_proba(x) + 1e-3)``. A sound of 16,000 samples
in ten equal pieces has the variables ``torch.arange(16000)[None] // 1600``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from symgen.fingerprints import code_fingerprint
from symgen.masking.causal import causal_outputs
from symgen.masking.functions import FunctionRunner, refuse_first_outputs, refuse_key
from symgen.masking.hooks import (
    Cut,
    call,
    check_value,
    cut_at,
    feature_maps,
    layers_to_mask,
    logits_of,
)  # fmt: skip
from symgen.masking.mask_values import (
    MaskValue,
    refuse_other_channels,
    refuse_without_maps,
    word_embedding,
)
from symgen.masking.patches import ImageVariables
from symgen.masking.spans import TextVariables
from symgen.masking.states import StateRunner, evaluating, run_all
from symgen.memory import check_states, device_of, dtype_of
from symgen.storage import cached

#: What is masked; a tensor or array has the number of the variable at each position of the inputs.
Variables = ImageVariables | TextVariables | Tensor | np.ndarray
#: What stands in its place; a number, tensor or array where the inputs themselves are masked.
Value = MaskValue | Tensor | np.ndarray | np.generic | float | None


def masked_outputs(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    baseline: Value | Callable[[nn.Module], MaskValue | None],
    batch_size: int | None = None,
    *,
    key: Mapping | None = None,
    progress: bool = True,
) -> Float[Tensor, "sample state"]:
    """Return v on all 2^n masked states of each sample (Section 2.1; App. A.1, F).

    The part of the network below the masked layer runs on samples, the rest on every state.
    The result does not depend on the batch size, but for rounding. A causal language model runs
    as a prefix tree (see `prefix_tree`).

    Args:
        model: any module; see the module's text for adapters. It is used in evaluation mode, and
            its mode is restored. Inputs are moved to its device. Or any function from inputs
            (batch, ...) to logits (batch, class), or to the log odds (batch,) of class 1 of two, as
            a tensor or array.
        x: images (sample, channel, height, width); token ids (sample, position), or a mapping
            with ``input_ids`` and ``attention_mask``, padded on the right; for a causal language
            model also a list of token ids, one tensor per prompt; for a function floating inputs
            (sample, ...), a tensor or an array: it is called with what it is given here.
        target: (sample,) whole numbers: the class of each sample, which is a column of the logits
            and not an entry of scikit-learn's ``classes_``, or the next token's id for a causal
            language model. A tensor, array or list. For a list of prompts also a list of
            lists: v is then of all these tokens, one after the other.
        variables: of the same samples. Bit i of a state tells whether variable i is present. For a
            function, or a module whose inputs are masked, whole numbers (sample or 1, ...): the
            variable of each input position, -1 for one that is never masked. Fewer axes than the
            inputs have are the last ones.
        baseline: the mask value: what masked variables are replaced with, and at which layer; or
            a function that makes it for a network. None leaves the words of a prompt out. For
            variables that are numbers, a number, tensor or array that broadcasts to one sample;
            NaN for a function that takes it for a missing value.
        batch_size: masked states per forward call; by default what free memory allows, up to a
            size that suits the device. It is halved, with a `BatchSizeWarning`, if memory runs out.
        key: what identifies the model and, under "masking", the mask value where that is a
            function. With it the outputs are stored, and found again by whoever asks for the same.
        progress: show a progress bar.

    Returns:
        (sample, 2^n) in float64 on the CPU.

    Raises:
        ValueError: for samples, labels, variables or a mask value that do not fit together, for
            a model that returns probabilities, and for a key that tells too little.
        MemoryError: when 2^n states cannot be held, or not be split afterwards.
        FloatingPointError: when the network's logits of a sample are NaN or infinite.
        RuntimeError: when the network gives another output the second time (a random layer).
    """

    refuse_key(key, baseline)
    refuse_other_channels(model, x)
    numbered = isinstance(variables, Tensor | np.ndarray)

    def compute() -> dict[str, Tensor]:
        refuse_first_outputs(model, x)
        module = isinstance(model, nn.Module)
        with evaluating(model) if module else nullcontext(), torch.inference_mode():
            value = baseline(model) if callable(baseline) else baseline
            if numbered or not module:
                runner = FunctionRunner(model, x, _labels(target), variables, value)
                v = run_all(runner, batch_size, progress)
            else:
                text = isinstance(variables, TextVariables)
                outputs = _text_outputs if text else _image_outputs
                v = outputs(model, x, target, variables, value, batch_size, progress)
        return {"v": v.cpu().double().clone()}

    tokens = hasattr(x, "keys") and isinstance(variables, TextVariables)
    count = len(x["input_ids"]) if tokens else len(x)
    common = numbered and len(variables) == 1
    if not count == len(target) == (count if common else len(variables)) or not count:
        raise ValueError(
            f"x has {count} samples, target {len(target)} and variables {len(variables)}; "
            "they must be the same, one or more"
        )
    check_states(count, int(variables.max()) + 1 if numbered else variables.n)
    if key is None:
        return compute()["v"]
    everything = {
        "model": dict(key), "x": x, "target": target, "variables": variables,
        "mask value": None if callable(baseline) else baseline,
        "code": code_fingerprint(masked_outputs, *[type(variables)] * (not numbered)),
    }  # fmt: skip
    return cached("outputs", everything, compute)["v"]


def state_runner(
    model: nn.Module,
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: ImageVariables | TextVariables,
    mask_value: MaskValue,
) -> StateRunner:
    """Return what runs a classifier on any masked states of its samples, also with gradients.

    Args:
        model: a classifier of images or texts, in evaluation mode.
        x, target, variables: see `masked_outputs`.
        mask_value: what masked variables are replaced with; the runner's `value` can be changed.
    """
    if isinstance(variables, TextVariables):
        return _encoder_runner(model, x, _labels(target), variables, mask_value)
    return _image_runner(model, x, _labels(target), variables, mask_value)


def _image_outputs(model, x, target, variables, mask_value, batch_size, progress) -> Tensor:
    runner = state_runner(model, x, target, variables, mask_value)
    return run_all(runner, batch_size, progress)


def _image_runner(model, x, target, variables, mask_value) -> StateRunner:
    device = device_of(model)

    def inputs_of(first, count):
        part = x[first : first + count].to(device, dtype_of(model))
        return part.contiguous(memory_format=torch.channels_last)

    if not (isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point()):
        raise ValueError(
            f"x is {_describe(x)}; expected floating images (sample, channel, height, width)"
        )
    one = inputs_of(0, 1)
    way = cut_at(model, mask_value.layer, one)
    feature, _ = way.below(model, one)
    maps = {None: True} if mask_value.layer is None else feature_maps(model, one)
    if maps.get(mask_value.layer, False) is False:
        refuse_without_maps(model, one)
        raise ValueError(
            f"layer {mask_value.layer!r} returns {tuple(feature.shape)} for one image; patches "
            f"need (1, channel, height, width): name {layers_to_mask(model, one)}"
        )
    check_value(mask_value.value, feature, mask_value.layer)
    owners = variables.owners(*feature.shape[2:])
    return StateRunner(model, way, inputs_of, owners, variables.n, mask_value.value, target, 0)


def _labels(target: Any) -> Tensor:
    """Return the labels as int64."""
    try:
        labels = torch.as_tensor(target)
        whole = not (
            labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool
        )
    except (TypeError, ValueError, RuntimeError):
        labels, whole = target, False
    if not whole or labels.dim() != 1:
        raise ValueError(
            f"target is {_describe(labels)}; expected one whole number for each sample, the number "
            "of its class or next token, such as torch.tensor([0, 2])"
        )
    return labels.long()


def _text_outputs(model, x, target, variables, mask_value, batch_size, progress) -> Tensor:
    name, _ = word_embedding(model)
    if mask_value is not None and mask_value.layer != name:
        raise ValueError(
            f"texts are masked at the word embedding, layer {name!r}, but the mask value is for "
            f"{mask_value.layer!r}; make it with token_embedding or mean_embedding"
        )
    if isinstance(x, list | tuple):
        prompts = [torch.as_tensor(prompt).long() for prompt in x]
    else:
        if mask_value is not None:
            runner = state_runner(model, x, target, variables, mask_value)
            if logits_of(call(model, runner.inputs_of(0, 1))).dim() != 3:
                return run_all(runner, batch_size, progress)
        ids, mask = _ids_and_mask(x)
        prompts = [row[keep] for row, keep in zip(ids, mask, strict=True)]
    if not isinstance(target, Tensor) and isinstance(target[0], list | tuple):
        targets = target
    else:
        targets = _labels(target)[:, None].tolist()
    return causal_outputs(model, prompts, targets, variables, mask_value, batch_size, progress)


def _encoder_runner(model, x, target, variables, mask_value) -> StateRunner:
    device, (ids, mask) = device_of(model), _ids_and_mask(x)
    if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError("x is padded on the left or inside; encode with padding_side='right'")
    lengths = mask.sum(1)
    if variables.lengths and hasattr(x, "keys") and lengths.tolist() != list(variables.lengths):
        row = int((lengths != torch.tensor(variables.lengths)).nonzero()[0])
        raise ValueError(
            f"sample {row} has {lengths[row]} tokens, but its variables were made for "
            f"{variables.lengths[row]}; encode the texts with the same tokenizer and max_length"
        )
    # Networks of `transformers` take any length; others may count on the one they were given.
    trims = hasattr(model, "config")

    def inputs_of(first, count):
        rows = slice(first, first + count)
        length = int(lengths[rows].max()) if trims else ids.shape[1]
        if isinstance(x, Tensor):
            return x[rows, :length].to(device)
        return {
            key: value[rows, :length].to(device) if isinstance(value, Tensor) else value
            for key, value in x.items()
        }

    way, owners = Cut(mask_value.layer), variables.owners(ids.shape[1])
    check_value(mask_value.value, way.below(model, inputs_of(0, 1))[0], mask_value.layer)
    return StateRunner(model, way, inputs_of, owners, variables.n, mask_value.value, target, 1)


def _ids_and_mask(x: Any) -> tuple[Tensor, Tensor]:
    ids = x["input_ids"] if hasattr(x, "keys") else x
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise ValueError(
            f"x is {_describe(ids)}; expected token ids (sample, position), a mapping with them "
            "as input_ids, or for a causal language model a list of prompts"
        )
    mask = x.get("attention_mask") if hasattr(x, "keys") else None
    return ids.cpu(), torch.ones_like(ids).bool().cpu() if mask is None else mask.bool().cpu()


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
    return type(x).__name__
