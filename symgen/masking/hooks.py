"""Run a network with the output of a layer replaced, and read what it returns."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from symgen.names import unknown

# Arguments of a network: one tensor, or tensors by name.
Arguments = Tensor | dict[str, Any]
CHANNELS_FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)  # fmt: skip
# Largest rounding error of a network's outputs, relative to their size, with a margin.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Inputs(NamedTuple):
    """Samples as a network takes them, and the outcomes whose output is computed.

    Attributes:
        x: images, token ids or prompts; see `masked_outputs`.
        y: classes or next tokens.

    Example:
        >>> loader = torch.utils.data.DataLoader([(torch.ones(3), 1)] * 9, batch_size=4)
        >>> Inputs(*next(iter(loader))).y.tolist()
        [1, 1, 1, 1]
    """

    x: Any
    y: Any


def unwrapped(model: Any) -> Any:
    """Return the network itself if it was wrapped by ``torch.compile``, which takes no hooks."""
    return getattr(model, "_orig_mod", model)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Context manager: keep a network in evaluation mode, then restore the mode of each part.

    Compiled parts run as plain PyTorch meanwhile. Functions are left alone.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    with ExitStack() as stack:
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in modules[:1]:
            module.eval()
        try:
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode


def as_tensor(x: Any) -> Tensor:
    """Return a tensor; a copy if x is an array or number, with its strides and bytes in order."""
    if isinstance(x, Tensor):
        return x
    x = np.asarray(x)  # PyTorch would round Python's numbers to float32.
    return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))


def describe(x: Any) -> str:
    """Return type, dtype and shape of a value for an error message."""
    shape = f" {x.dtype} of shape {tuple(x.shape)}" if hasattr(x, "dtype") else ""
    return type(x).__name__ + shape


def call(model: Callable[..., Any], inputs: Arguments) -> Any:
    """Call a network with copies of its inputs, so that it may write into them."""
    if not isinstance(inputs, dict):
        return model(inputs.clone())
    return model(**{k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()})


def accepts(model: nn.Module, name: str) -> bool:
    """Return whether the network's forward takes an argument of this name."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def last_logits_only(model: nn.Module) -> dict[str, int]:
    """Return the option that computes logits at the last position only, if the model takes it.

    With a large vocabulary, logits are the largest thing that a language model computes.

    Args:
        model: a causal language model of `transformers`.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = "logits_to_keep" in inspect.signature(inner.forward).parameters
    return {"logits_to_keep": 1} if named else {}


def logits_of(output: Any, rows: int) -> Tensor:
    """Return the logits in the output of a network or function.

    Args:
        output: logits, or a mapping or object with an entry ``logits``.
        rows: number of inputs.

    Raises:
        ValueError: if it holds no floating logits with one row per input.
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", output)
    is_floating = isinstance(logits, Tensor) and logits.is_floating_point()
    if not is_floating or logits.shape[:1] != (rows,):
        raise ValueError(
            f"the network returned {describe(logits)} for {rows} inputs; expected floating logits "
            "with one row per input, as a tensor or in an entry 'logits'. Wrap it in a module that "
            "returns them"
        )
    return logits


def repeat(inputs: Arguments, states: int) -> Arguments:
    """Repeat every sample for each of its states, sample by sample."""
    if isinstance(inputs, dict):
        return {k: repeat(x, states) if isinstance(x, Tensor) else x for k, x in inputs.items()}
    return inputs.repeat_interleave(states, dim=0) if inputs.dim() else inputs


def calls(model: nn.Module, inputs: Arguments) -> list[tuple[str, nn.Module, list[Tensor], Tensor]]:
    """Return the calls of modules in a forward pass: name, module, tensors given, tensor returned.

    The tensors have shapes but no numbers.
    """
    made = []

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            given = [x.to("meta") for x in arguments if isinstance(x, Tensor)]
            made.append((name, module, given, output.to("meta")))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                hooks.enter_context(hooked(module, partial(note, name)))
        call(model, inputs)
    return made


def feature_maps(model: nn.Module, images: Tensor) -> list[str]:
    """Return the layers that return (sample, channel, height, width), in order of execution.

    Four-dimensional outputs may also be channels-last or attention maps. So only shapes that a
    convolution, pooling or batch norm takes or returns count, not those of linear layers.

    Args:
        model: network in evaluation mode.
        images: one or more images.
    """
    shapes: dict[str, torch.Size] = {}
    first, last = set(), set()
    for name, module, given, output in calls(model, images):
        shapes.setdefault(name, output.shape)  # A layer is masked at its first call.
        if isinstance(module, (*CHANNELS_FIRST, nn.Linear)):
            seen = last if isinstance(module, nn.Linear) else first
            seen.update(x.shape for x in (*given, output))
    maps = {shape for shape in first - last if len(shape) == 4}
    return [name for name, shape in shapes.items() if shape in maps]


def layer_output(model: nn.Module, layer: str | None, inputs: Arguments) -> Any:
    """Return the first output of a layer, or the inputs themselves for None.

    Args:
        model: network in evaluation mode.
        layer: name from ``model.named_modules()``.
        inputs: inputs of the network.

    Raises:
        ValueError: for an unknown layer, or one that does not return one tensor.
    """
    if layer is None:
        return inputs
    try:
        module = model.get_submodule(layer)
    except AttributeError:
        names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
        raise unknown("layer", layer, names) from None
    captured: list[Any] = []
    with hooked(module, partial(_stop, captured)), suppress(_Reached):
        call(model, inputs)
    if not captured or not isinstance(captured[0], Tensor):
        given = type(captured[0]).__name__ if captured else "nothing, since it is never called"
        raise ValueError(
            f"layer {layer!r} must return one tensor, but it returns {given}; expected one that "
            "returns (sample, channel, height, width), or the word embedding"
        )
    return captured[0]


def logits_above(
    model: nn.Module, layer: str | None, features: Tensor, inputs: Arguments, states: int
) -> Tensor:
    """Return the logits of a network whose layer returns other features than it computes.

    The whole forward runs with the layer's first output replaced, so that it is correct for every
    module that calls the layer, and for branches that pass it.

    Args:
        model: network in evaluation mode.
        layer: layer with these features; None if they are the inputs.
        features: features of `states` masked states per sample, sample by sample.
        inputs: inputs of the samples.
        states: number of masked states per sample.
    """
    if layer is None:
        return logits_of(call(model, features), len(features))
    with hooked(model.get_submodule(layer), partial(replace_once, [features])):
        return logits_of(call(model, repeat(inputs, states)), len(features))


def replace_once(pending: list[Tensor], module: nn.Module, arguments: Any, output: Any) -> Any:
    """Forward hook: return a pending value in place of the first output; later outputs stay."""
    return pending.pop() if pending else output


def _stop(captured: list[Any], module: nn.Module, arguments: Any, output: Any) -> None:
    captured.append(output)
    raise _Reached


class _Reached(Exception):
    """The layer to mask has been computed; the rest of the forward is not needed."""


@contextmanager
def hooked(module: nn.Module, hook: Any) -> Iterator[None]:
    """Context manager: keep a forward hook on a module."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def largest_output(model: nn.Module, inputs: Arguments) -> int:
    """Return the size of the input or of the largest output of a layer, in bytes."""
    given = [inputs] if isinstance(inputs, Tensor) else []
    made = [output for *_, output in calls(model, inputs)]
    return max((x.nbytes for x in (*given, *made)), default=1)
