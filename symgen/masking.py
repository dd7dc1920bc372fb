"""Baseline values, masked inputs, and the network's output on all 2^n masked states.

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
"""

import logging
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from .cut import HookCut, InputCut, cut_at
from .states import (
    Batch,
    StateRunner,
    automatic_batch,
    check_states,
    device_of,
    evaluating,
)
from .text_variables import TextVariables
from .variables import ImageVariables

# Difference of v[N] from the plain forward that counts as another result, relative to 1 + |z|.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.02}

logger = logging.getLogger(__name__)


class PrecisionWarning(UserWarning):
    """The lower precision changes v by more than the noise bound of the extraction."""


@dataclass(frozen=True)
class Baseline:
    """The value that masked variables take, and the layer where they take it.

    Attributes:
        value: broadcast to the layer's output for one sample: (channel, height, width),
            (channel, 1, 1) or () for images, (embedding,) for text.
        layer: name of the layer whose output is masked; None for the input itself.
    """

    value: Float[Tensor, "..."]
    layer: str | None


@torch.inference_mode()
def mean_baseline(
    model: nn.Module,
    images: Tensor | Iterable[Any],
    layer: str | None = "first_relu",
    batch_size: int = 256,
) -> Baseline:
    """Return the mean of a layer's output over a data set, per channel and position (App. A.1).

    Args:
        model: an image network.
        images: (sample, channel, height, width), or batches of it, as a loader gives them;
            of a batch that is a tuple the first entry is used.
        layer: a layer's name, or a rule of `find_layer`, or None for the mean input.
        batch_size: used when `images` is one tensor.
    """
    layer = _layer_name(model, layer)
    batches = images.split(batch_size) if isinstance(images, Tensor) else images
    count, total = 0, None
    with evaluating(model):
        for batch in batches:
            batch = batch[0] if isinstance(batch, (tuple, list)) else batch
            way = HookCut(layer) if layer else InputCut()
            feature, _ = way.below(model, batch.to(device_of(model)))
            part = feature.double().sum(0)
            count, total = count + len(feature), part if total is None else total + part
    if not count:
        raise ValueError("mean_baseline: no images were given; pass at least one")
    return Baseline(torch.tensor((total / count).float().cpu().numpy()), layer)


def zero_baseline(model: nn.Module, layer: str | None = "first_relu") -> Baseline:
    """Return the value 0 at a layer (named as for `mean_baseline`), or at the input (None)."""
    return Baseline(torch.zeros(()), _layer_name(model, layer))


def token_baseline(model: nn.Module, token_id: int) -> Baseline:
    """Return the embedding of a token, for instance [MASK] (App. A.1, BERT)."""
    layer, embedding = _word_embedding(model)
    count = embedding.weight.shape[0]
    if not 0 <= token_id < count:
        raise ValueError(f"token_id = {token_id} is outside the vocabulary, 0..{count - 1}")
    with torch.inference_mode():
        value = embedding(torch.tensor([token_id], device=embedding.weight.device))[0]
    return Baseline(torch.tensor(value.float().cpu().numpy()), layer)


def mean_embedding_baseline(model: nn.Module) -> Baseline:
    """Return the mean embedding over the vocabulary, the default for causal language models."""
    layer, embedding = _word_embedding(model)
    total = 0.0
    with torch.inference_mode():
        ids = torch.arange(embedding.weight.shape[0], device=embedding.weight.device)
        for chunk in ids.split(8192):
            total = total + embedding(chunk).double().sum(0)
    return Baseline(torch.tensor((total / len(ids)).float().cpu().numpy()), layer)


def masked_outputs(
    model: nn.Module,
    x: Any,
    target: Int[Tensor, " sample"],
    variables: ImageVariables | TextVariables,
    baseline: Baseline,
    batch_size: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    progress: bool = True,
) -> Float[Tensor, "sample state"]:
    """Return v on all 2^n masked states of each sample (Section 2.1; App. A.1, F).

    The part of the network below the masked layer runs once per sample, the rest on every state.
    The result does not depend on the batch size, but for rounding. A causal language model runs
    as a prefix tree (see `prefix_tree`).

    Args:
        model: any module; see the module's text for adapters. It is used in evaluation mode, and
            its mode is restored. Inputs are moved to its device.
        x: images (sample, channel, height, width); token ids (sample, position), or a mapping
            with ``input_ids`` and ``attention_mask``, padded on the right; for a causal language
            model also a list of token ids, one tensor per prompt.
        target: class of each sample, or the next token's id for a causal language model.
        variables: of the same samples. Bit i of a state tells whether variable i is present.
        baseline: what masked variables are replaced with, and at which layer.
        batch_size: masked states per forward call; by default what free memory allows, up to a
            size that suits the device. It is halved, with a `BatchSizeWarning`, if memory runs out.
        dtype: of mixed precision (``torch.bfloat16``); its error in v is measured on 32 states
            and logged; a `PrecisionWarning` tells when it exceeds 0.02 |v[N] - v[0]|, the noise
            bound of the extraction (App. A.2).
        progress: show a progress bar.

    Returns:
        (sample, 2^n) in float64 on the CPU.

    Raises:
        ValueError: for samples, labels, variables or a baseline that do not fit together.
        MemoryError: when 2^n states cannot be held.
        RuntimeError: when the network gives another output the second time (a random layer).
    """
    _check(x, target, variables)
    check_states(len(variables), variables.n)
    with evaluating(model), torch.inference_mode():
        if isinstance(variables, TextVariables):
            from .text_masking import text_outputs

            v = text_outputs(model, x, target, variables, baseline, batch_size, dtype, progress)
        else:
            runner = _image_runner(model, x, target, variables, baseline, dtype)
            v = run_all(runner, batch_size, progress)
    return v.cpu().double().clone()


def run_all(runner: StateRunner, batch_size: int | None, progress: bool) -> Tensor:
    """Return v of all samples on all states, with the checks that `masked_outputs` promises."""
    samples, states = len(runner.target), 2**runner.n
    _check_outcomes(runner.plain(0)[0], runner.target)
    batch = Batch(batch_size or automatic_batch(runner.model, runner.inputs_of(0, 1)))
    order = torch.arange(states)
    v = torch.empty(samples, states, device=runner.device, dtype=_widest(runner.device))
    done = 0
    with tqdm(total=samples * states, unit="state", disable=not progress, leave=False) as bar:
        while done < samples * states:
            first, state = divmod(done, states)
            count, size = 1, min(batch.size, states - state)
            if state == 0 and batch.size >= states:
                count = min(batch.size // states, samples - first)
            with batch.halving():
                part = runner.run(first, count, order[state : state + size])
                v[first : first + count, state : state + size] = part
                if state + size == states:
                    check_full(runner, first, v[first : first + count, -1])
                done += count * size
                bar.update(count * size)
        if runner.dtype is not None:
            bar.set_postfix_str(report_precision(runner, v[0]))
    return v


def check_full(runner: StateRunner, first: int, v_full: Tensor) -> None:
    """Compare v[N] with a plain forward of the same samples.

    Raises:
        RuntimeError: when they differ by more than rounding: the network is random, or it does
            not compute the same from its own masked layer.
    """
    logits, expected = runner.plain(first, len(v_full))
    kind = runner.dtype or logits.dtype
    bound = TOLERANCE.get(kind, 1e-3) * (1 + logits.abs().amax(dim=1).to(v_full))
    wrong = ((v_full - expected).abs() > bound) | ~torch.isfinite(v_full)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise RuntimeError(
            f"sample {first + row}: v with nothing masked is {float(v_full[row]):.6g}, but a plain "
            f"forward gives {float(expected[row]):.6g}. The network must be deterministic in "
            "evaluation mode (is dropout always on?), finite, and treat samples of a batch apart"
        )


def report_precision(runner: StateRunner, v: Float[Tensor, " state"]) -> str:
    """Measure the error of mixed precision on states of the first sample; warn if it is large."""
    states = torch.linspace(0, len(v) - 1, min(len(v), 32)).long()
    wanted, runner.dtype, runner._below, runner._buffer = runner.dtype, None, None, None
    exact = torch.cat([runner.run(0, 1, part)[0] for part in states.split(8)]).to(v)
    runner.dtype, runner._below, runner._buffer = wanted, None, None
    error = float((v[states.to(v.device)] - exact).abs().max())
    bound = 0.02 * float((exact[-1] - exact[0]).abs())
    text = f"error of {wanted} in v: {error:.2g}, bound 0.02 |v[N] - v[0]| = {bound:.2g}"
    logger.info(text)
    if error > bound:
        warnings.warn(f"{text}; use dtype=None for exact interactions", PrecisionWarning, 3)
    return text


def _image_runner(model, x, target, variables, baseline, dtype) -> StateRunner:
    device = device_of(model)

    def inputs_of(first, count):
        part = x[first : first + count].to(device)
        return part.contiguous(memory_format=torch.channels_last)

    if not (isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point()):
        raise ValueError(
            f"x is {_describe(x)}; expected floating images (sample, channel, height, width)"
        )
    way = cut_at(model, baseline.layer, inputs_of(0, 1))
    feature, _ = way.below(model, inputs_of(0, 1))
    if feature.dim() != 4:
        raise ValueError(
            f"layer {baseline.layer!r} returns {tuple(feature.shape)} for one image; patches need "
            "(1, channel, height, width): choose a convolution, ReLU or pooling layer"
        )
    _check_value(baseline, feature)
    owners = variables.owners(*feature.shape[2:])
    return StateRunner(model, way, inputs_of, owners, variables.n, baseline.value, target, 0, dtype)


def _check(x: Any, target: Tensor, variables: ImageVariables | TextVariables) -> None:
    count = len(x["input_ids"]) if isinstance(x, dict) or hasattr(x, "keys") else len(x)
    if not count == len(target) == len(variables) or not count:
        raise ValueError(
            f"x has {count} samples, target {len(target)} and variables {len(variables)}; "
            "they must be the same, one or more"
        )


def _check_outcomes(logits: Tensor, target: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"the network returns logits of shape {tuple(logits.shape)} for one sample; expected "
            "(1, outcomes) with two or more outcomes. Wrap it, as the module's text shows"
        )
    if target.min() < 0 or target.max() >= logits.shape[1]:
        wrong = int(((target < 0) | (target >= logits.shape[1])).nonzero()[0])
        raise ValueError(
            f"the label of sample {wrong} is {int(target[wrong])}, but the network has "
            f"{logits.shape[1]} outcomes; labels must be in 0..{logits.shape[1] - 1}"
        )


def _check_value(baseline: Baseline, feature: Tensor) -> None:
    try:
        torch.broadcast_to(baseline.value, feature.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"the baseline value has shape {tuple(baseline.value.shape)}, but "
            f"{baseline.layer or 'the input'} has {tuple(feature.shape[1:])} for one sample; make "
            "the baseline with this network, at this layer and image size"
        ) from None


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
    return type(x).__name__


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _layer_name(model: nn.Module, layer: str | None) -> str | None:
    if layer is None or layer in dict(model.named_modules()):
        return layer
    from .networks import find_layer

    return find_layer(model, layer)
