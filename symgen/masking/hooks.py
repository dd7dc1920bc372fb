"""Cut a network at a layer: the part below runs on samples, the part above on every state."""

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
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


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
    """Hold a network in evaluation mode; afterwards every part is in its former mode again.

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
    """Return a tensor; a copy if x is an array, whatever its strides and byte order."""
    if not isinstance(x, np.ndarray | np.generic):
        return torch.as_tensor(x)
    return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C", ndmin=0))


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
        logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        kind = type(output).__name__
        kind += "" if logits is None else f" with logits of type {type(logits).__name__}"
        raise ValueError(
            f"the network returned {kind}; expected logits as a tensor, or in an entry 'logits'. "
            "Wrap it in a module whose forward returns its logits"
        )
    if not logits.is_floating_point() or not logits.dim() or len(logits) != rows:
        raise ValueError(
            f"the network returned {logits.dtype} of shape {tuple(logits.shape)} for {rows} "
            "inputs; expected floating logits with one row per input"
        )
    return logits


def repeat(inputs: Arguments, states: int) -> Arguments:
    """Repeat every sample for each of its states, sample by sample."""
    if isinstance(inputs, dict):
        return {k: repeat(x, states) if isinstance(x, Tensor) else x for k, x in inputs.items()}
    return inputs.repeat_interleave(states, dim=0) if inputs.dim() else inputs


def feature_maps(model: nn.Module, images: Tensor) -> list[str]:
    """Return the layers that return (sample, channel, height, width), in order of execution.

    Others are those of four dimensions with channels last, or attention maps. So the sizes count
    that a convolution, pooling or batch normalization takes or returns, and no linear layer.

    Args:
        model: in evaluation mode.
        images: one or more.
    """
    shapes: dict[str, torch.Size] = {}
    first, last = set(), set()

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, Tensor):  # A layer is masked at its first call.
            shapes.setdefault(name, output.shape)
        if isinstance(module, (*CHANNELS_FIRST, nn.Linear)):
            seen = last if isinstance(module, nn.Linear) else first
            seen.update(x.shape for x in (*arguments, output) if isinstance(x, Tensor))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(hooked(module, partial(note, name)))
        call(model, images)
    maps = {shape for shape in first - last if len(shape) == 4}
    return [name for name, shape in shapes.items() if shape in maps]


class Cut:
    """A network cut at a layer: the part below runs on samples, the part above on every state.

    The whole forward runs with the layer's first output replaced, so that it is correct for every
    module that calls the layer. If nothing flows past the layer (or it broadcasts), the part below
    gets each sample once; else every sample is repeated for its states.

    Args:
        layer: name from ``model.named_modules()``; None for the input itself.
        repeated: whether samples have to be repeated; see `cut_at`.
    """

    def __init__(self, layer: str | None, repeated: bool = True):
        self.layer, self.repeated = layer, repeated

    def below(self, model: nn.Module, inputs: Arguments) -> tuple[Tensor, Arguments]:
        """Return the layer's first output, and the inputs."""
        if self.layer is None:
            return inputs, inputs
        try:
            module = model.get_submodule(self.layer)
        except AttributeError:
            names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
            raise unknown("layer", self.layer, names) from None
        captured: list[Any] = []
        with hooked(module, partial(_stop, captured)), suppress(_Reached):
            call(model, inputs)
        if not captured or not isinstance(captured[0], Tensor):
            given = type(captured[0]).__name__ if captured else "nothing, since it is never called"
            raise ValueError(
                f"layer {self.layer!r} must return one tensor, but it returns {given}; expected "
                "one that returns (sample, channel, height, width), or the word embedding"
            )
        return captured[0], inputs

    def above(self, model: nn.Module, features: Tensor, inputs: Arguments, states: int) -> Tensor:
        """Return the logits for features masked in `states` ways each."""
        if self.layer is None:
            return logits_of(call(model, features), len(features))
        if self.repeated:
            inputs = repeat(inputs, states)
        with hooked(model.get_submodule(self.layer), partial(replace_once, [features])):
            return logits_of(call(model, inputs), len(features))


@torch.inference_mode()
def cut_at(model: nn.Module, layer: str | None, inputs: Tensor) -> Cut:
    """Return the cheapest correct way to run a network on masked outputs of a layer.

    Args:
        model: in evaluation mode.
        layer: name from ``model.named_modules()``; None for the input itself.
        inputs: images, on which the ways are compared.

    Raises:
        ValueError: for an unknown layer, or one that does not return one tensor.
    """
    if layer is None:
        return Cut(None)
    way, quick = Cut(layer), Cut(layer, repeated=False)
    # Two different samples, each masked in two ways, so that any mismatch shows.
    inputs = torch.cat([inputs[:1], inputs[:1].flip(-1) + 1])
    feature, _ = way.below(model, inputs)
    probes = [feature.roll(1, -1) + 1, feature.roll(1, -1).flip(-1) + 1]
    expected = torch.stack([way.above(model, each.clone(), inputs, 1) for each in probes], 1)
    tolerance = ROUNDING.get(expected.dtype, 1e-4)
    close = {"rtol": tolerance, "atol": tolerance * float(expected.abs().max())}
    try:
        masked = torch.stack(probes, 1).flatten(0, 1)
        found = quick.above(model, masked, inputs, 2)
        agree = torch.allclose(found, expected.flatten(0, 1), **close)
    except Exception:  # The network's code may raise anything here; repeating works.
        agree = False
    return quick if agree else way


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
    """Hold a forward hook on a module."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def check_value(value: Tensor, feature: Tensor, layer: str | None) -> None:
    """Refuse a mask value that does not fit a layer's output for one sample.

    Raises:
        ValueError: for another shape; or if a layer's value is NaN or infinite.
    """
    if layer is not None and not value.isfinite().all():
        raise ValueError(
            "the mask value holds NaN or infinite numbers; look for them in the network's "
            "weights and in the data that the value was computed from"
        )
    try:
        torch.broadcast_to(value, feature.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"the mask value has shape {tuple(value.shape)}, but {layer or 'the input'} has "
            f"{tuple(feature.shape[1:])} for one sample; make it with this network, at this layer "
            "and input size"
        ) from None


def largest_output(model: nn.Module, inputs: Arguments) -> int:
    """Return the size of the input or of the largest output of a layer, in bytes."""
    largest = inputs.nbytes if isinstance(inputs, Tensor) else 1

    def note(module, arguments, output):
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.nbytes)

    with ExitStack() as hooks:
        for module in model.modules():
            if not any(module.children()):
                hooks.enter_context(hooked(module, note))
        call(model, inputs)
    return largest
