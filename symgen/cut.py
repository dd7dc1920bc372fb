"""Cut a network at a layer: what is below runs once a sample, what is above runs on every state."""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

Inputs = Tensor | dict[str, Any]
CHANNELS_FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Call a network with a tensor or with named inputs."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


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


def repeat(inputs: Inputs, states: int) -> Inputs:
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


class InputCut:
    """Nothing below: the input itself is masked."""

    def below(self, model: nn.Module, inputs: Tensor) -> tuple[Tensor, Inputs]:
        """Return the values to mask, and what `above` needs besides them."""
        return inputs, {}

    def above(self, model: nn.Module, features: Tensor, rest: Inputs, states: int) -> Tensor:
        """Return the logits for features masked in `states` ways each."""
        return logits_of(model(features))


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


def layers_to_mask(model: nn.Module, images: Inputs) -> str:
    """Return, for an error, what to name instead of a layer whose output cannot be masked."""
    is_image = isinstance(images, Tensor) and images.is_floating_point()
    maps = [k for k, first in (feature_maps(model, images) if is_image else {}).items() if first]
    if maps:
        return f"one that returns (sample, channel, height, width): {', '.join(maps[:8])}"
    return f"one of {', '.join([k for k, _ in model.named_modules() if k][:12])}"


def pair(images: Tensor) -> Tensor:
    """Return two different samples made of the first, to see what is a sample's own."""
    return torch.cat([images[:1], images[:1].flip(-1) + 1])


class HookCut:
    """Any network: the whole forward runs again, with the layer's first output replaced.

    Correct for every module that calls the layer, at the price of what lies below it.
    """

    def __init__(self, layer: str):
        self.layer = layer

    def below(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Inputs]:
        """Return the layer's first output, and the inputs."""
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

    def above(self, model: nn.Module, features: Tensor, rest: Inputs, states: int) -> Tensor:
        """Return the logits for features masked in `states` ways each."""
        with hooked(model.get_submodule(self.layer), partial(replace_once, [features])):
            return logits_of(call(model, repeat(rest, states)))


class GraphCut:
    """A traceable network: its graph is split, and nothing below the layer runs again.

    Values that flow past the layer (a residual branch) are computed below and repeated.
    """

    def __init__(self, model: nn.Module, layer: str):
        target = model.get_submodule(layer)
        graph = _Tracer(target).trace(model)
        root = fx.GraphModule(model, graph)
        nodes = list(graph.nodes)
        cut = next(
            node
            for node in nodes
            if node.op == "call_module" and root.get_submodule(node.target) is target
        )
        after = {cut}
        for node in nodes:
            if after.intersection(node.all_input_nodes):
                after.add(node)
        after.discard(cut)
        passed = {i for node in after for i in node.all_input_nodes} - after - {cut}
        self._sides = [n for n in nodes if n in passed and n.op != "get_attr"]
        self._below = _subgraph(root, nodes, set(nodes) - after, [], [cut, *self._sides])
        self._above = _subgraph(root, nodes, after, [cut, *self._sides], None)

    def below(self, model: nn.Module, inputs: Tensor) -> tuple[Tensor, Inputs]:
        """Return the layer's first output, and what flows past it."""
        feature, *sides = self._below(inputs)
        if not all(isinstance(s, Tensor) and len(s) == len(inputs) for s in [feature, *sides]):
            raise NotImplementedError("what flows past the layer is not one value per sample")
        return feature, dict(zip(map(str, self._sides), sides, strict=True))

    def above(self, model: nn.Module, features: Tensor, rest: Inputs, states: int) -> Tensor:
        """Return the logits for features masked in `states` ways each."""
        sides = (rest[str(side)].repeat_interleave(states, dim=0) for side in self._sides)
        return logits_of(self._above(features, *sides))


Cut = InputCut | HookCut | GraphCut


@torch.inference_mode()
def cut_at(model: nn.Module, layer: str | None, inputs: Inputs) -> Cut:
    """Return the cheapest correct way to run a network on masked outputs of a layer.

    Args:
        model: in evaluation mode.
        layer: name from ``model.named_modules()``; None for the input itself.
        inputs: of one or more samples, on which the ways are tried and compared.

    Raises:
        ValueError: for a layer that the network does not have, or whose output it does not use.
    """
    if layer is None:
        return InputCut()
    hook = HookCut(check_layer(model, layer))
    if not isinstance(inputs, Tensor):
        return hook
    inputs = pair(inputs)
    feature, rest = hook.below(model, inputs)
    probe = feature.roll(1, -1) + 1
    expected = hook.above(model, probe.clone(), rest, 1)
    close = {"rtol": 1e-3, "atol": 1e-3 * float(expected.abs().max())}
    plain = logits_of(call(model, inputs))
    if torch.allclose(expected, plain, **close) and not _reaches(hook, model, inputs):
        raise ValueError(
            f"the network's output does not use what layer {layer!r} returns, so masking it would "
            "change nothing; choose another layer"
        )
    try:
        graph = GraphCut(model, layer)
        same, rest = graph.below(model, inputs)
        agree = torch.equal(feature, same) and torch.allclose(
            graph.above(model, probe, rest, 1), expected, **close
        )
    except Exception:  # Tracing runs the network's code: whatever it raises, the hook works.
        agree = False
    return graph if agree else hook


def _reaches(way: HookCut, model: nn.Module, inputs: Tensor) -> bool:
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


class _Tracer(fx.Tracer):
    """Traces through all modules but the library's own and the layer to cut at."""

    def __init__(self, target: nn.Module):
        super().__init__()
        self.target = target

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return module is self.target or super().is_leaf_module(module, name)


def _subgraph(root, nodes, chosen, inputs, outputs) -> fx.GraphModule:
    """Return a module that computes the chosen nodes from the given ones."""
    graph, copies = fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in nodes:
        kept = node in chosen or node.op == "get_attr"
        if kept if node.op != "output" else not outputs:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    if outputs:
        graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(root, graph)


@contextmanager
def hooked(module: nn.Module, hook: Any) -> Iterator[None]:
    """Hold a forward hook on a module."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def check_value(value: Tensor, feature: Tensor, layer: str | None) -> None:
    """Refuse a baseline value that does not fit a layer's output for one sample.

    Raises:
        ValueError: with both shapes, or for a value that is NaN or infinite.
    """
    if not value.isfinite().all():
        raise ValueError(
            "the baseline value holds NaN or infinite numbers; look for them in the network's "
            "weights and in what the value was computed from"
        )
    try:
        torch.broadcast_to(value, feature.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"the baseline value has shape {tuple(value.shape)}, but {layer or 'the input'} has "
            f"{tuple(feature.shape[1:])} for one sample; make the baseline with this network, at "
            "this layer and input size"
        ) from None
