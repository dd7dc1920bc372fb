"""Run a network with the output of a layer replaced, and read what it returns."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.names import unknown

# Arguments of a network: one tensor, or tensors and options by name.
Arguments = Tensor | dict[str, Any]
CHANNELS_FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Network:
    """A network, and its layer that is masked.

    Attributes:
        model: network in evaluation mode.
        layer: name from ``model.named_modules()``; None if the input itself is masked.
        is_causal: whether the logits of the last position count, as in a language model.
    """

    model: nn.Module
    layer: str | None
    is_causal: bool = False

    def features(self, inputs: Arguments) -> Tensor:
        """Return the first output of the masked layer; see `layer_output`."""
        return layer_output(self.model, self.layer, inputs)

    def logits(self, inputs: Arguments, rows: int) -> Float[Tensor, "row outcome"]:
        """Return the logits of some inputs.

        Raises:
            ValueError: if there is not one row per input, or fewer than two outcomes.
        """
        logits = logits_of(call(self.model, inputs), rows)
        if self.is_causal and logits.dim() == 3:
            return logits[:, -1]
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise ValueError(
                f"the network returns logits of shape {tuple(logits.shape)}; expected (sample, "
                "outcome) with two or more outcomes. Wrap it so that it returns them"
            )
        return logits

    def logits_above(self, features: Tensor, inputs: Arguments) -> Float[Tensor, "row outcome"]:
        """Return the logits if the masked layer returns other features than it computes.

        The whole forward runs with the layer's first output replaced, so that it is correct for
        every module that calls the layer, and for branches that pass it.

        Args:
            features: one row per input.
            inputs: the inputs that the features belong to.
        """
        if self.layer is None:
            return self.logits(features, len(features))
        with replaced(self.model, self.layer, features):
            return self.logits(inputs, len(features))


def unwrapped(model: Any) -> Any:
    """Return the network itself if it was wrapped by ``torch.compile``, which takes no hooks.

    Raises:
        ValueError: for an exported program.
    """
    # The module of such a program has an `eval` of its own, which refuses to work.
    own = getattr(model, "__dict__", {})
    if type(model).__name__ == "ExportedProgram" or "eval" in own:
        raise ValueError(
            "the network is an exported program, which has no layers to mask and often takes one "
            "batch size only; pass the module that it was exported from. To mask inputs, pass a "
            "function: lambda x: program.module()(x)"
        )
    return getattr(model, "_orig_mod", model)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Context manager: keep a network in evaluation mode, then restore the mode of each part.

    Meanwhile compiled parts run as plain PyTorch, and transformer layers without their fast path,
    whose nested tensors no hook can read. Functions are left alone.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m, _ in modes):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            model.eval()
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, mode in modes:
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


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a network's forward; of an adapter, those of its base."""
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    return inspect.signature(inner.forward).parameters


def accepts(model: nn.Module, name: str) -> bool:
    """Return whether the network's forward takes an argument of this name."""
    parameters = parameters_of(model)
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def token_ids(inputs: Arguments) -> Int[Tensor, "sample position"]:
    """Return the token ids among the inputs of a text network."""
    return inputs if isinstance(inputs, Tensor) else inputs["input_ids"]


def with_ids(inputs: Arguments, ids: Int[Tensor, "sample position"]) -> Arguments:
    """Return the inputs of a text network with other token ids."""
    return ids if isinstance(inputs, Tensor) else inputs | {"input_ids": ids}


def logits_of(output: Any, rows: int) -> Tensor:
    """Return the logits in the output of a network or function.

    Args:
        output: logits, or a mapping or object with an entry ``logits``.
        rows: number of inputs.

    Raises:
        ValueError: if it holds no floating logits with one row per input.
    """
    logits: Any = getattr(output, "logits", output)
    if isinstance(output, Mapping):
        logits = output.get("logits")
    is_floating = isinstance(logits, Tensor) and logits.is_floating_point()
    if not is_floating or logits.shape[:1] != (rows,):
        raise ValueError(
            f"the network returned {describe(logits)} for {rows} inputs; expected floating logits "
            "with one row per input, as a tensor or in an entry 'logits'. Wrap it in a module that "
            "returns them"
        )
    return logits


def calls(model: nn.Module, inputs: Arguments) -> list[tuple[str, nn.Module, Tensor]]:
    """Return the calls of modules in a forward pass: name, module, and what it returned.

    The returned tensors have shapes but no numbers.
    """
    made = []

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((name, module, output.to("meta")))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                hooks.enter_context(hooked(module, partial(note, name)))
        call(model, inputs)
    return made


def feature_maps(model: nn.Module, images: Tensor) -> list[str]:
    """Return the layers that return (sample, channel, height, width), in order of execution.

    Four-dimensional outputs may also be channels-last or attention maps. So only shapes that a
    convolution, pooling or batch norm returns count, not those of linear layers.

    Args:
        model: network in evaluation mode.
        images: one or more images.
    """
    first: dict[str, torch.Size] = {}
    maps: set[torch.Size] = set()
    linear: set[torch.Size] = set()
    for name, module, output in calls(model, images):
        first.setdefault(name, output.shape)  # A layer is masked at its first call.
        if isinstance(module, CHANNELS_FIRST):
            maps.add(output.shape)
        if isinstance(module, nn.Linear):
            linear.add(output.shape)
    return [k for k, shape in first.items() if len(shape) == 4 and shape in maps - linear]


def layer_output(model: nn.Module, layer: str | None, inputs: Arguments) -> Tensor:
    """Return the first output of a layer, or the inputs themselves for None.

    Args:
        model: network in evaluation mode.
        layer: name from ``model.named_modules()``.
        inputs: inputs of the network.

    Raises:
        ValueError: for an unknown layer, or one that does not return one tensor.
    """
    if layer is None:
        assert isinstance(inputs, Tensor)
        return inputs
    try:
        module = model.get_submodule(layer)
    except AttributeError:
        names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
        raise unknown("layer", layer, names) from None
    output = None
    try:
        with hooked(module, _stop):
            call(model, inputs)
    except _Reached as reached:
        (output,) = reached.args
    if not isinstance(output, Tensor):
        raise ValueError(
            f"layer {layer!r} returns {describe(output)} or is never called; expected one that "
            "returns (sample, channel, height, width), or the word embedding"
        )
    return output


def _stop(module: nn.Module, arguments: Any, output: Any) -> None:
    raise _Reached(output)


class _Reached(Exception):
    """The layer to mask has been computed; the rest of the forward is not needed."""


@contextmanager
def replaced(model: nn.Module, layer: str, features: Tensor) -> Iterator[None]:
    """Context manager: let the first output of a layer be these features; later outputs stay."""
    pending = [features]

    def replace(module: nn.Module, arguments: Any, output: Any) -> Any:
        return pending.pop() if pending else output

    with hooked(model.get_submodule(layer), replace):
        yield


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
    sizes = [output.nbytes for *_, output in calls(model, inputs)]
    if isinstance(inputs, Tensor):
        sizes.append(inputs.nbytes)
    return max(sizes, default=1)
