"""Cut a network at a layer: what is below runs on samples, what is above runs on every state."""

import contextlib
import difflib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from symgen.fingerprints import refusal

# So many samples of one class are hardly an accident.
MANY = 6
# What a network is called with.
Arguments = Tensor | dict[str, Any]


@refusal
def _warn_of_one_class(labels: Tensor) -> None:
    if len(labels) >= MANY and bool((labels == labels[0]).all()):
        warnings.warn(
            f"all {len(labels)} samples are of class {labels[0].item()}: a loader that does not "
            "shuffle gives the first of data that may be sorted. Give it shuffle=True and "
            "generator=torch.Generator().manual_seed(0), or make Inputs(x, y) of those you mean",
            UserWarning,
            stacklevel=3,
        )


@refusal
def _refuse_samples(batches: Any) -> None:
    """Refuse a data set, which gives single samples where a loader of it gives batches."""
    if hasattr(batches, "__getitem__") and not isinstance(batches, list | tuple):
        raise ValueError(
            f"{type(batches).__name__} gives single samples; expected batches of it: "
            "Inputs.of(torch.utils.data.DataLoader(data, batch_size=64), count)"
        )


class Inputs(NamedTuple):
    """Samples as a network takes them, and the outcome whose output is asked for.

    Attributes:
        x: images, token ids or prompts; see `masked_outputs`.
        y: classes or next tokens.

    Example:
        >>> Inputs.of([(torch.zeros(4, 3), torch.arange(4))] * 2, count=6).y.tolist()
        [0, 1, 2, 3, 0, 1]
    """

    x: Any
    y: Any

    @classmethod
    def of(cls, batches: Iterable[Any], count: int) -> "Inputs":
        """Return the first samples of a `DataLoader`, the same ones for all that is asked of them.

        Args:
            batches: pairs of an input tensor (sample, ...) and labels (sample,).
            count: number of samples.

        Raises:
            ValueError: for batches of anything else, or fewer samples.

        Warns:
            UserWarning: where many samples are all of one class, as the first of sorted data are.
        """
        _refuse_samples(batches)
        xs, ys, have = [], [], 0
        for batch in batches:
            if len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
                raise ValueError(
                    f"a batch is {type(batch).__name__} of {len(batch)}; expected a pair of "
                    "tensors, inputs and labels. Make Inputs(x, y) of what the network takes"
                )
            xs, ys, have = [*xs, batch[0]], [*ys, batch[1]], have + len(batch[0])
            if have >= count:
                break
        if not 1 <= count <= have:
            raise ValueError(f"count = {count}: the batches hold {have} samples")
        _warn_of_one_class(torch.cat(ys)[:count])
        return cls(torch.cat(xs)[:count], torch.cat(ys)[:count])


CHANNELS_FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip


def call(model: nn.Module, inputs: Arguments) -> Any:
    """Call a network with a tensor or with named inputs."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def only_logits_at(model: nn.Module, positions: int | Tensor) -> dict[str, int | Tensor]:
    """Return the option that leaves out the logits of other positions, where a model takes it.

    With a large vocabulary they are the largest thing that a language model computes.

    Args:
        model: a causal language model of `transformers`.
        positions: the last so many; or which, as indices.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    taken = "logits_to_keep" in inspect.signature(inner.forward).parameters
    return {"logits_to_keep": positions} if taken else {}


def logits_of(output: Any) -> Tensor:
    """Return the logits of what a network's forward returned.

    Raises:
        TypeError: when the output is neither a tensor nor has an entry ``logits``.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    raise TypeError(
        f"the network returned {type(output).__name__}; expected logits as a tensor or in an entry "
        "'logits'. Wrap it in a module whose forward returns its logits"
    )


def repeat(inputs: Arguments, states: int) -> Arguments:
    """Repeat every sample for each of its states, sample by sample."""
    if isinstance(inputs, dict):
        return {
            key: repeat(value, states) if isinstance(value, Tensor) else value
            for key, value in inputs.items()
        }
    return inputs.repeat_interleave(states, dim=0)


def check_layer(model: nn.Module, layer: str) -> str:
    """Return the name of a layer if the network has it.

    Raises:
        ValueError: where it has not, with the nearest names.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    if layer not in names:
        close = difflib.get_close_matches(layer, names, n=3) or names[:8]
        raise ValueError(f"the network has no layer {layer!r}; nearest names: {', '.join(close)}")
    return layer


def feature_maps(model: nn.Module, images: Tensor) -> dict[str, bool | None]:
    """Return the layers with an output of four dimensions, and whether its channels come first.

    True: (sample, channel, height, width), of the size of something that a convolution, pooling or
    batch normalization takes or gives. False: channels last, as a linear layer has them. None:
    unknown, such as an attention map. Layers are in the order in which they finish.

    Args:
        model: in evaluation mode.
        images: one or more.
    """
    images, found = pair(images), {}
    sizes, first = {images.shape[2:]}, {}

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(module, (*CHANNELS_FIRST, nn.Linear)):
            for value in (*arguments, output):
                if isinstance(value, Tensor) and value.dim() == 4:
                    # The latest counts where channels are as many as pixels a side.
                    first[value.shape[1:]] = isinstance(module, CHANNELS_FIRST)
                    sizes.update([value.shape[2:]] if first[value.shape[1:]] else [])
        if name not in found:  # Its first call is the one that is masked.
            like = output.shape if isinstance(output, Tensor) else torch.Size()
            found[name] = like, first.get(like[1:])

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(hooked(module, partial(note, name)))
        call(model, images)
    return {
        name: True if told is None and shape[2:] in sizes else told
        for name, (shape, told) in found.items()
        if len(shape) == 4 and shape[0] == len(images)
    }


def layers_to_mask(model: nn.Module, images: Arguments) -> str:
    """Return, for an error, what to name instead of a layer whose output cannot be masked."""
    is_image = isinstance(images, Tensor) and images.is_floating_point()
    maps = [k for k, first in (feature_maps(model, images) if is_image else {}).items() if first]
    if maps:
        return f"one that returns (sample, channel, height, width): {', '.join(maps[:8])}"
    return f"one of {', '.join([k for k, _ in model.named_modules() if k][:12])}"


def pair(images: Tensor) -> Tensor:
    """Return two different samples made of the first, to see what is a sample's own."""
    return torch.cat([images[:1], images[:1].flip(-1) + 1])


class Cut:
    """A network cut at a layer: what is below runs on samples, what is above on every state.

    The whole forward runs with the layer's first output replaced, so that it is correct for every
    module that calls the layer. Where nothing flows past the layer (or broadcasts), the part below
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
        captured: list[Any] = []
        hook = partial(_stop, captured)
        with hooked(model.get_submodule(self.layer), hook), suppress(_Reached):
            call(model, inputs)
        if not captured or not isinstance(captured[0], Tensor):
            found = type(captured[0]).__name__ if captured else "never called"
            raise ValueError(
                f"layer {self.layer!r} must return one tensor when the network runs, but: {found}; "
                f"name {layers_to_mask(model, inputs)}"
            )
        return captured[0], inputs

    def above(self, model: nn.Module, features: Tensor, inputs: Arguments, states: int) -> Tensor:
        """Return the logits for features masked in `states` ways each."""
        if self.layer is None:
            return logits_of(call(model, features))
        with hooked(model.get_submodule(self.layer), partial(replace_once, [features])):
            return logits_of(call(model, repeat(inputs, states) if self.repeated else inputs))


@torch.inference_mode()
def cut_at(model: nn.Module, layer: str | None, inputs: Tensor) -> Cut:
    """Return the cheapest correct way to run a network on masked outputs of a layer.

    Args:
        model: in evaluation mode.
        layer: name from ``model.named_modules()``; None for the input itself.
        inputs: images, on which the ways are tried and compared.

    Raises:
        ValueError: for a layer that the network does not have, or whose output it does not use.
    """
    if layer is None:
        return Cut(None)
    way, quick = Cut(check_layer(model, layer)), Cut(layer, repeated=False)
    inputs = pair(inputs)
    feature, _ = way.below(model, inputs)
    plain = logits_of(call(model, inputs))
    probe = feature.roll(1, -1) + 1
    # Two ways to mask each of two samples: what does not fit together would show.
    probes = [probe, probe.flip(-1)]
    found = [way.above(model, each.clone(), inputs, 1) for each in probes]
    expected = torch.stack(found, 1).flatten(0, 1)
    close = {"rtol": 1e-3, "atol": 1e-3 * float(expected.abs().max())}
    unmoved = torch.allclose(expected, plain.repeat_interleave(2, 0), **close)
    if unmoved and not _reaches(way, model, inputs):
        raise ValueError(
            f"the network's output does not use what layer {layer!r} returns, so masking it would "
            "change nothing; choose another layer"
        )
    try:
        masked = torch.stack(probes, 1).flatten(0, 1)
        agree = torch.allclose(quick.above(model, masked, inputs, 2), expected, **close)
    except Exception:  # It runs the network's code: whatever that raises, repeating works.
        agree = False
    return quick if agree else way


def _reaches(way: Cut, model: nn.Module, inputs: Tensor) -> bool:
    """Return whether the logits are computed from the layer's output, whatever its values."""
    feature, _ = way.below(model, inputs)
    with torch.inference_mode(False), torch.enable_grad():
        leaf = feature.clone().requires_grad_()
        logits = way.above(model, leaf.clone(), inputs.clone(), 1)
        return logits.requires_grad and (
            torch.autograd.grad(logits.sum(), leaf, allow_unused=True)[0] is not None
        )


def replace_once(pending: list[Tensor], module: nn.Module, arguments: Any, output: Any) -> Any:
    """As a forward hook: put a pending value in the place of an output, later outputs stay."""
    return pending.pop() if pending else output


def _stop(captured: list[Any], module: nn.Module, arguments: Any, output: Any) -> None:
    captured.append(output)
    raise _Reached


class _Reached(Exception):
    """The layer to mask has been computed; the rest of the forward is not needed."""


def _source(definition: Any) -> str:
    """Return the source of a module or class, or its name where it has none."""
    # Classes of a notebook have no source of their own, but their functions do.
    for part in (definition, getattr(definition, "forward", None)):
        with contextlib.suppress(OSError, TypeError):
            return inspect.getsource(part)
    return str(getattr(definition, "__qualname__", definition))


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
        ValueError: with both shapes, or for a value that is NaN or infinite.
    """
    if not value.isfinite().all():
        raise ValueError(
            "the mask value holds NaN or infinite numbers; look for them in the network's "
            "weights and in what the value was computed from"
        )
    try:
        torch.broadcast_to(value, feature.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"the mask value has shape {tuple(value.shape)}, but {layer or 'the input'} has "
            f"{tuple(feature.shape[1:])} for one sample; make it with this network, at "
            "this layer and input size"
        ) from None


def largest_output(model: nn.Module, inputs: Arguments) -> int:
    """Return the bytes of the largest output of a layer, from one forward pass."""
    largest = 1

    def measure(module, arguments, output):
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.nbytes)

    with ExitStack() as hooks:
        for module in model.modules():
            if not any(module.children()):
                hooks.callback(module.register_forward_hook(measure).remove)
        call(model, inputs)
    return largest
