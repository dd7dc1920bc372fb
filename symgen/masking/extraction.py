"""From a network and samples to their interactions: outputs on masked states, then the split."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from symgen.checks import refuse_other_names
from symgen.fingerprints import code_fingerprint, fingerprint, not_a_result, refusal
from symgen.interactions import Interactions
from symgen.literal import nearest
from symgen.masking.functions import refuse_key
from symgen.masking.hooks import Cut, call
from symgen.masking.mask_values import MaskValue
from symgen.masking.outputs import Value, Variables, masked_outputs
from symgen.masking.patches import ImageVariables
from symgen.masking.sampled import sampled_outputs
from symgen.masking.shares import share
from symgen.masking.spans import TextVariables
from symgen.masking.states import evaluating
from symgen.memory import device_of, dtype_of
from symgen.split.design import draw_states
from symgen.split.sampled import SampledInteractions, sparsify_sampled
from symgen.split.sparsify import MAX_VARIABLES, DeadOutputWarning, sparsify, warn_dead
from symgen.storage import cached
from symgen.transforms import count_variables

# Up to so many variables the split runs on a GPU where there is one, all samples at once; with more
# it is a long chain of small steps. `python -m benchmarks --only device` measures the choice.
GPU_LAST = 12
# Pixels from 0 to 255 are 255 times those from 0 to 1; samples of one data set are far closer.
SCALES = 10


@overload
def extract(
    model: nn.Module | Callable[[Any], Any], inputs: Any, variables: Variables,
    mask_value: Value | Callable[[nn.Module], MaskValue | None], *, states: None = None,
    noise: float = 0.02, tol: float = 1e-3, names: Sequence | None = None, **options: Any,
) -> Interactions: ...  # fmt: skip
@overload
def extract(
    model: nn.Module | Callable[[Any], Any], inputs: Any, variables: Variables,
    mask_value: Value | Callable[[nn.Module], MaskValue | None], *, states: int,
    noise: float = 0.02, tol: float = 1e-3, names: Sequence | None = None, held_out: int = 100,
    max_order: int | None = None, seed: int = 0, **options: Any,
) -> SampledInteractions: ...  # fmt: skip


def extract(
    model: nn.Module | Callable[[Any], Any],
    inputs: Any,
    variables: Variables,
    mask_value: Value | Callable[[nn.Module], MaskValue | None],
    *,
    states: int | None = None,
    noise: float = 0.02,
    tol: float = 1e-3,
    names: Sequence | None = None,
    held_out: int = 100,
    max_order: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Interactions | SampledInteractions:
    """Return the interactions of a network on some samples: outputs on masks, then their split.

    Under torchrun the processes share the samples and each returns the interactions of all: every
    one of them calls this, with the same samples and weights, its network on a device of its own.

    Args:
        model: any module, or any function from masked inputs to logits; see `masked_outputs`.
        inputs: with x and y, such as the samples of a data set, or `Inputs`.
        variables: of the same samples.
        mask_value: what masked variables are replaced with. Where it is a function, what it makes
            of the network identifies stored outputs, along with the `key`.
        states: on how many masked states to run the network, drawn at random, where all 2^n are
            too many; the model is then the sparsest that explains these (see `sparsify_sampled`).
        noise, tol: see `sparsify`.
        names: of the variables, of all samples alike or one list for each; by default the words of
            a text's variables.
        held_out: with `states`, on how many more to run it, which the model is only judged by.
        max_order: with `states`, the most variables of an interaction; by default up to four.
        seed: of the draw of the states.
        **options: of `masked_outputs`: batch_size, key, progress.

    Returns:
        Interactions that know the names and, with a key, the fingerprints of the key ("model") and
        of samples and variables ("inputs"); with `states`, `SampledInteractions`.

    Raises:
        ValueError: for inputs without x and y, for options that nothing takes, and see
            `masked_outputs`; under torchrun also where processes were given different things.
        RuntimeError: under torchrun, where another process failed or did not call this.

    Warns:
        UserWarning: where x lies on another scale than the images that the mask value is the mean
            of.
    """
    _refuse_unused(states, held_out, max_order, seed, options)
    _check(model, inputs, variables, mask_value, states, held_out, names)
    if callable(mask_value):
        with evaluating(model), torch.inference_mode():
            mask_value = mask_value(model)
    _warn_of_scale(model, inputs.x, mask_value)
    n = count_of(variables)
    drawn = None if states is None else draw_states(n, states + held_out, seed)
    shown = options.pop("progress", True)

    def run(x: Any, y: Any, of: Variables, first: bool) -> Interactions | SampledInteractions:
        given, progress = (model, x, y, of, mask_value), shown and first
        try:
            if drawn is None:
                v = masked_outputs(*given, progress=progress, **options)
            else:
                v = sampled_outputs(*given, drawn, progress=progress, **options)
        except FloatingPointError as error:
            if not isinstance(model, nn.Module):
                error.add_note(
                    "Of a probability that is exactly 0 there is no logarithm: smooth it first, as "
                    "in lambda x: np.log(model.predict_proba(x) + 1e-3)"
                )
            raise
        if drawn is None:
            return split_outputs(v, noise, tol, progress)
        return sparsify_sampled(
            v, drawn, n, held_out=held_out, noise=noise, tol=tol, max_order=max_order,
            progress=progress,
        )  # fmt: skip

    settings = (noise, tol, states, held_out, max_order, seed)
    found = share(run, model, inputs.x, inputs.y, variables, settings)
    if names is None:
        names = getattr(variables, "words", ()) or None
    about = identity(options.get("key"), inputs, variables)
    return dataclasses.replace(found, names=names, about=about)


@refusal
def _refuse_unused(states: Any, held_out: int, max_order: Any, seed: int, options: Mapping) -> None:
    """Refuse options that nothing would take, or that only samples of the states take."""
    refuse_key(options.get("key"))
    for name in options.keys() - {*(known := ("batch_size", "key", "progress"))}:
        raise ValueError(f"extract takes no {name}.{nearest(name, known)}")
    usual = inspect.signature(extract).parameters
    given = {"held_out": held_out, "max_order": max_order, "seed": seed}
    for name, value in given.items() if states is None else ():
        if value != usual[name].default:
            raise ValueError(
                f"{name} = {value} is of a sample of the masked states, and all of them are "
                "run: give states, or leave it out"
            )


@not_a_result
def _check(
    model: Any, inputs: Any, variables: Any, mask_value: Any, states: Any, held_out: int, names: Any
) -> None:
    """Refuse what people give at first, before anything runs.

    Raises:
        ValueError: with what was given, and what to give.
    """
    if not hasattr(inputs, "x") or not hasattr(inputs, "y"):
        raise ValueError(
            f"inputs are {type(inputs).__name__}; expected samples with x and y: "
            "symgen.Inputs(x, y), or symgen.Inputs.of(loader, count) of a DataLoader"
        )
    if not hasattr(inputs.y, "__len__") or getattr(inputs.y, "shape", None) == ():
        raise ValueError(
            f"the target is {inputs.y!r:.50}; samples have a leading axis, also a single one: "
            "symgen.Inputs(x[None], [y])"
        )
    if not len(inputs.y):
        raise ValueError("inputs has no samples; pass one or more")
    if type(inputs.y).__name__ == "Series":
        raise ValueError("y is a Series; pass its numbers: y.to_numpy()")
    if isinstance(inputs.y[0], str):
        raise ValueError(
            f"y holds texts, such as {inputs.y[0]!r}; expected the column of each label's class in "
            "the outputs: np.searchsorted(model.classes_, y)"
        )
    if isinstance(names, str):
        raise ValueError(f"names is the text {names!r:.50}; expected a list with one a variable")
    if isinstance(model, type):
        raise ValueError(f"the network is the class {model.__name__}; make one of it first")
    if not callable(model):
        raise ValueError(
            f"{type(model).__name__} cannot be called; pass its method that gives log odds or log "
            "probabilities, such as model.decision_function or model.predict_log_proba"
        )
    if type(inputs.x).__name__ == "DataFrame":
        raise ValueError(
            "x is a DataFrame; pass x.to_numpy(float), and for a model that asks for names "
            "lambda x: model.predict_log_proba(pd.DataFrame(x, columns=names))"
        )
    if (
        variables is None
        or isinstance(variables, list | tuple)
        or getattr(variables, "ndim", 0) == 1
    ):
        raise ValueError(
            "variables are one row for all samples or a row for each: (sample or 1, *position), "
            "such as np.arange(8)[None] for the columns of a table"
        )
    masked = callable(mask_value) or isinstance(mask_value, MaskValue)
    if type(mask_value).__name__ in ("Series", "DataFrame"):
        raise ValueError(
            f"the mask value is a {type(mask_value).__name__}; pass its numbers: .to_numpy(float)"
        )
    if isinstance(variables, TextVariables):
        _check_texts(inputs.x, masked)
    if isinstance(variables, ImageVariables):
        images = inputs.x
        _check_patches(variables)
        if not isinstance(model, nn.Module):
            raise ValueError(
                "patches are masked inside a network, and this is a function; give it the number "
                "of the variable at each position of x, as for a table: see masked_outputs"
            )
        if isinstance(images, np.ndarray) or (isinstance(images, Tensor) and images.dim() == 3):
            told = "torch.from_numpy(x).float()" if isinstance(images, np.ndarray) else "x[:, None]"
            raise ValueError(
                f"x is {type(images).__name__} of shape {tuple(images.shape)}; expected images as "
                f"a floating tensor (sample, channel, height, width), such as {told}"
            )
        if not masked:
            raise ValueError(
                f"the mask value is {type(mask_value).__name__}; patches need one that knows its "
                "layer: symgen.mean_feature(model, images), with layer=None to mask the pictures "
                "themselves"
            )
    elif isinstance(variables, Tensor | np.ndarray) and len(variables) and variables.min() < -1:
        raise ValueError(
            f"a variable has the number {variables.min()}; expected 0, 1, 2, ..., and -1 for "
            "positions that are never masked"
        )
    n = count_of(variables)
    if states is None:
        if n > MAX_VARIABLES:
            raise ValueError(
                f"n = {n} variables have 2^{n} = {2**n:,} masked states, more than can be run and "
                f"split (n <= {MAX_VARIABLES}); run a sample of them: extract(..., states=500)"
            )
    elif not isinstance(states, Integral) or isinstance(states, bool) or states < 2:
        raise ValueError(f"states is {states!r}; expected a whole number, 2 or more")
    elif states + held_out > 2**n:
        raise ValueError(
            f"states = {states} and held_out = {held_out} are more than all 2^{n} = {2**n:,} "
            "masked states; leave states out to run them all"
        )
    refuse_other_names(names, (len(inputs.y), n))
    if isinstance(model, nn.Module) and isinstance(inputs.x, Tensor | Mapping | np.ndarray):
        _check_network(model, inputs.x, isinstance(variables, ImageVariables))


@not_a_result
def _check_patches(variables: ImageVariables) -> None:
    """Refuse patches that are no numbers of cells of the grid, or the same one twice."""
    patches, cells = variables.patches, variables.grid**2
    whole = isinstance(patches, Tensor) and not (
        patches.is_floating_point() or patches.is_complex() or patches.dtype is torch.bool
    )
    if not whole or patches.dim() != 2 or not ((patches >= 0) & (patches < cells)).all():
        kind = getattr(patches, "dtype", type(patches).__name__)
        raise ValueError(
            f"patches are {kind} of shape {tuple(np.shape(patches))}; expected a tensor of whole "
            f"numbers (sample, n) from 0 to {cells - 1}, cells of a grid of {variables.grid} x "
            f"{variables.grid}: see symgen.draw_patches"
        )
    ordered = patches.sort(-1).values
    if len(twice := (ordered[:, 1:] == ordered[:, :-1]).any(-1).nonzero()):
        sample = int(twice[0])
        raise ValueError(
            f"sample {sample} has the patches {patches[sample].tolist()}; expected each of its "
            "variables to be a patch of its own"
        )


@not_a_result
def _check_texts(x: Any, masked: bool) -> None:
    """Refuse texts that are not encoded, and a text classifier's words without what masks them."""
    if isinstance(x, str) or (isinstance(x, list | tuple) and any(isinstance(t, str) for t in x)):
        raise ValueError(
            "x holds texts; encode them as the network reads them: "
            'tokenizer(texts, padding=True, return_tensors="pt")'
        )
    if isinstance(x, Tensor | Mapping) and not masked:
        raise ValueError(
            "words of a text classifier are masked by an embedding: "
            "token_embedding(model, tokenizer.mask_token_id) or, where there is no mask token, "
            "mean_embedding(model), both of symgen.masking.mask_values"
        )


@not_a_result
def _check_network(model: nn.Module, x: Tensor | Mapping | np.ndarray, converted: bool) -> None:
    """Refuse a network whose layers mix samples, and samples of a kind that it does not take.

    Args:
        model: any.
        x: its inputs.
        converted: whether they are brought to the network's precision.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise ValueError(
                f"layer {name!r} is a {type(layer).__name__} without running statistics, so that "
                "the output for a sample depends on the others of its batch, here on its other "
                "masked states; make it with track_running_stats=True, or give it the mean and "
                "variance of the training samples"
            )
    own = dtype_of(model)
    if isinstance(x, np.ndarray):
        try:
            with evaluating(model), torch.inference_mode():
                model(x[:1].copy())
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"x is an array, and the network takes tensors ({error}); pass "
                f"torch.from_numpy(x).to({own})"
            ) from error
    if converted or not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == own:
        return
    try:
        with evaluating(model), torch.inference_mode():
            call(model, x[:1].clone().to(device_of(model)))
    except RuntimeError as error:
        if "type" in str(error):
            raise ValueError(
                f"x is {x.dtype} and the network's weights are {own}: {error}; pass x.to({own})"
            ) from error


@refusal
def _warn_of_scale(model: Any, x: Any, mask_value: Any) -> None:
    """Warn where samples lie on another scale than the images that a mask value is the mean of.

    Their size is compared where they are masked, and only where nothing is negative, as in pixels
    and behind a ReLU: of numbers that are, the mean may be close to 0 on any scale.
    """
    floating = isinstance(x, Tensor) and x.is_floating_point() and len(x)
    if not (floating and isinstance(model, nn.Module) and isinstance(mask_value, MaskValue)):
        return
    seen = torch.zeros(())
    # Whatever is amiss is told by what runs next.
    with suppress(Exception), evaluating(model), torch.inference_mode():
        seen, _ = Cut(mask_value.layer).below(
            model, x[:8].clone().to(device_of(model), dtype_of(model))
        )
    sizes = [float(t.detach().float().mean()) for t in (seen, mask_value.value) if (t >= 0).all()]
    if len(sizes) == 2 and 0 < SCALES * min(sizes) < max(sizes) < torch.inf:
        what, layer = ("larger", "smaller")[sizes[0] < sizes[1]], mask_value.layer or "the input"
        warnings.warn(
            f"at {layer} the samples are {max(sizes) / min(sizes):.0f} times {what} than the mask "
            "value: were the images that it is the mean of scaled in the same way as x, such as "
            "to pixels from 0 to 1?",
            UserWarning,
            stacklevel=3,
        )


def count_of(variables: Variables) -> int:
    """Return n, the number of variables of a sample."""
    numbered = isinstance(variables, Tensor | np.ndarray)
    return int(variables.max()) + 1 if numbered else variables.n


def identity(key: Mapping | None, inputs: Any, variables: Variables) -> dict[str, str]:
    """Return what identifies interactions: fingerprints of a network's key, and of the samples.

    Args:
        key: of the network; without it nothing is known.
        inputs: with x and y.
        variables: of the same samples.
    """
    if key is None:
        return {}
    samples = fingerprint([inputs.x, inputs.y, variables])
    return {"model": fingerprint(dict(key)), "inputs": samples}


def split_outputs(
    v: Float[Tensor, "*batch state"], noise: float = 0.02, tol: float = 1e-3, progress: bool = True
) -> Interactions:
    """Return what `sparsify` does, found again where the same outputs were split before.

    Up to `GPU_LAST` variables it runs on a GPU where there is one; what it returns lies where v is.
    """

    def compute() -> dict[str, Tensor]:
        few = count_variables(v) <= GPU_LAST
        place = torch.device("cuda") if few and torch.cuda.is_available() else v.device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadOutputWarning)
            found = sparsify(v.to(place), noise=noise, tol=tol, progress=progress)
        return found.to(v.device).tensors()

    key = {"v": v, "noise": noise, "tol": tol, "code": code_fingerprint(sparsify)}
    found = Interactions(**cached("splits", key, compute))
    # Of what is found again, too.
    warn_dead(v.reshape(-1, v.shape[-1]))
    return found
