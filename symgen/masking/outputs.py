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
        forest.predict_log_proba, table, labels, np.arange(8)[None], table.mean(0)
    )

Probabilities of exactly 0 have no logarithm; smooth them:
``lambda x: np.log(forest.predict_proba(x) + 1e-3)``. One column belongs to one class: of a
support vector machine with three or more classes, take ``decision_function_shape="ovr"``, since
"ovo" returns a number per pair of classes.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import Batch, check_states, device, is_out_of_memory
from symgen.interactions import Interactions
from symgen.masking.causal import causal_outputs, removed_outputs
from symgen.masking.checks import check_read_once, checked_batch, warn_rounding
from symgen.masking.functions import prepare_function
from symgen.masking.hooks import as_tensor, evaluating, unwrapped
from symgen.masking.images import prepare_images
from symgen.masking.mask_values import MaskValue
from symgen.masking.prefix_tree import CACHE_ERRORS, PrefixTreeWarning, tree_outputs, tree_rows
from symgen.masking.states import Prepared, run_all
from symgen.masking.texts import prepare_texts, prompts_of
from symgen.masking.variables import ImageVariables, TextVariables
from symgen.split.sampled import SampledInteractions, draw_states, sparsify_sampled
from symgen.split.sparsify import MAX_VARIABLES, sparsify

Variables = ImageVariables | TextVariables | Tensor | np.ndarray
Value = MaskValue | Tensor | np.ndarray | np.generic | float | Callable[[Any], MaskValue] | None
# Up to this many variables, the split is faster on a GPU.
GPU_LAST = 12


def masked_outputs(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value,
    batch_size: int | None = None,
    *,
    states: Int[Tensor, " state"] | None = None,
    progress: bool = False,
) -> Float[Tensor, "sample state"]:
    """Return v on all 2^n masked states of each sample (Section 2.1; App. A.1, F).

    A causal language model runs as a prefix tree (see `prefix_tree`), any other network on every
    state. The result depends on the batch size by rounding only. The network's inputs are copies.

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
        states: masked states to run instead of all.
        progress: whether to show a progress bar.

    Returns:
        (sample, 2^n) in float64 on the CPU, or one column per given state.

    Raises:
        ValueError: for arguments that do not fit together, and networks that return probabilities.
        MemoryError: if 2^n states do not fit into memory.
        FloatingPointError: for logits that are NaN or infinite.
        RuntimeError: for a random network, or one whose output depends on the rest of the batch.

    Warns:
        UserWarning: for a network in bfloat16 on a CPU.
    """
    n = _count(x, target, variables)
    if states is None:
        check_states(len(target), n)
    network: Any = unwrapped(model)
    warn_rounding(network)
    # A function may compute gradients itself.
    without = torch.inference_mode if isinstance(network, nn.Module) else torch.no_grad
    with evaluating(network), without():
        value: Any = mask_value(network) if callable(mask_value) else mask_value
        run = partial(_run, states=states, batch_size=batch_size, progress=progress)
        is_text = isinstance(variables, TextVariables)
        if is_text and (prompts := prompts_of(network, x, variables, value)):
            tokens: Any = target
            if isinstance(target, Tensor) or not isinstance(target[0], list | tuple):
                tokens = _labels(target)[:, None].tolist()
            v = causal_outputs(network, prompts, tokens, variables, value, run)
        else:
            v = run(prepare(network, x, target, variables, value))
    return v.clone()


def _run(
    prepared: Prepared, states: Tensor | None, batch_size: int | None, progress: bool
) -> Float[Tensor, "sample state"]:
    every = torch.arange(2**prepared.n) if states is None else states
    batch = checked_batch(prepared, every, batch_size)
    if prepared.removes:
        return run_all(prepared, every, batch, progress, removed_outputs)
    if prepared.is_text:
        check_read_once(prepared.network, prepared.masked(0))
    if prepared.network.is_causal and states is None:
        try:
            rows = tree_rows(prepared) if batch_size is None else batch_size
            return run_all(prepared, every, Batch(rows), progress, tree_outputs)
        except CACHE_ERRORS as error:
            if is_out_of_memory(error):
                raise
            warnings.warn(
                f"{type(prepared.network.model).__name__} runs in full on every masked prompt, not "
                "as a prefix tree, which needs a cache of keys and values in every layer "
                f"({type(error).__name__}: {error})",
                PrefixTreeWarning,
                stacklevel=4,
            )
    return run_all(prepared, every, batch, progress)


def extract(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value,
    states: int | None = None,
    *,
    noise: float | None = None,
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
        model, x, target, variables, mask_value, batch_size, progress: see `masked_outputs`.
        states: number of masked states to draw and run, for more variables than all 2^n states
            allow (see `sparsify_sampled`).
        noise: see `sparsify`, 0.02 by default; with `states` see `sparsify_sampled`, 0.002.
        tol, few: see `sparsify`; not used with `states`.
        names: names of the variables, one list for all samples or one per sample; by default the
            words of a text's variables.
        held_out: number of further states that measure the error, only with `states`.
        seed: seed of the draw of states, only with `states`.

    Returns:
        `Interactions`; with `states`, `SampledInteractions`.

    Raises:
        ValueError: for too many variables, or a wrong number of names; see also `masked_outputs`.
    """
    n = _count(x, target, variables)
    count = len(target)
    if names is not None and np.shape(names) not in ((n,), (count, n)):
        raise ValueError(f"names have shape {np.shape(names)}; expected {(n,)} or {(count, n)}")
    given = model, x, target, variables, mask_value, batch_size
    if states is None:
        if n > MAX_VARIABLES:
            raise ValueError(
                f"n = {n} variables have 2^{n} masked states; a split of all takes n <= "
                f"{MAX_VARIABLES}. Run a sample of them: extract(..., states=500)"
            )
        v = masked_outputs(*given, progress=progress)
        v = v.to(device()) if n <= GPU_LAST else v
        noise = 0.02 if noise is None else noise
        result = sparsify(v, noise=noise, tol=tol, few=few, progress=progress).to("cpu")
    else:
        drawn = draw_states(n, states + held_out, seed)
        v = masked_outputs(*given, states=drawn, progress=progress)
        noise = 0.002 if noise is None else noise
        result = sparsify_sampled(v, drawn, n, held_out=held_out, noise=noise)
    if names is None:
        names = getattr(variables, "words", ()) or None
    return dataclasses.replace(result, names=names)


def prepare(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value,
) -> Prepared:
    """Return what `outputs` needs to compute v of a classifier on any samples and states.

    The network is in evaluation mode; it is not checked. Gradients flow if they are enabled::

        prepared = prepare(model, x, target, variables, mask_value)
        v = outputs(prepared.network, prepared.masked(first, count), states)

    Raises:
        ValueError: for arguments that do not fit together.
    """
    model = unwrapped(model)
    labels = _labels(target)
    if isinstance(variables, Tensor | np.ndarray) or not isinstance(model, nn.Module):
        return prepare_function(model, x, labels, variables, mask_value)
    if not isinstance(mask_value, MaskValue):
        raise ValueError(
            f"the mask value is {type(mask_value).__name__}; expected one with its layer: "
            "symgen.mean_feature(model, images), symgen.token_embedding(model, id) or "
            "symgen.mean_embedding(model)"
        )
    if isinstance(variables, TextVariables):
        return prepare_texts(model, x, labels, variables, mask_value)
    return prepare_images(model, x, labels, variables, mask_value)


def _count(x: Any, target: Any, variables: Variables) -> int:
    """Return n; refuse unequal numbers of samples, targets and variables."""
    numbered = isinstance(variables, Tensor | np.ndarray)
    if not numbered and not isinstance(variables, ImageVariables | TextVariables):
        raise ValueError(
            f"variables are {type(variables).__name__}; expected draw_patches(...), "
            "draw_words(...), or an array (sample or 1, *position), such as np.arange(8)[None]"
        )
    if isinstance(x, Mapping) and "input_ids" not in x:
        raise ValueError(
            f"x is a mapping with {sorted(x)}; expected input_ids for texts. Images are the tensor "
            "itself, such as x['pixel_values']"
        )
    samples = len(x["input_ids"] if isinstance(x, Mapping) else x)
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
            "the column of its class in the logits, or the next token"
        )
    return as_tensor(array.astype(np.int64))
