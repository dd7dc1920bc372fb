"""Networks by name: made here, pretrained, or built by a function of the reader."""

import dataclasses
import importlib
import inspect
import json
import operator
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from symgen.data.sources import from_pretrained, import_transformers, local_folder
from symgen.device import device, reproducible_gpu
from symgen.models.architectures import Logits, ResNetCIFAR, SmallCNN, bert, resnet, vgg
from symgen.names import unknown
from symgen.storage import fingerprint


@dataclasses.dataclass(frozen=True)
class Network:
    """One entry of the registry.

    Attributes:
        build: function from (classes, channels, image_size, **options), or for texts (classes,
            vocabulary, pad_token_id, **options), to a module.
        kind: ``"image"`` or ``"text"``.
        learning_rate: default of `train`; for SGD on images, for AdamW on texts.
        origin: "made" here; "pretrained" weights, which identify themselves; or a "function" of
            the reader, whose trainings are not stored because its code can change unseen.
    """

    build: Callable[..., nn.Module]
    kind: str = "image"
    learning_rate: float = 0.05
    origin: str = "made"


#: To add a network, add an entry here.
NETWORKS: dict[str, Network] = {
    "cnn": Network(SmallCNN),
    "resnet20": Network(ResNetCIFAR),
    **{name: Network(partial(resnet, name)) for name in ("resnet18", "resnet50", "resnet101")},
    **{name: Network(partial(vgg, name), "image", 0.01) for name in ("vgg11", "vgg16", "vgg19")},
    # Small enough for a few hundred short sentences: trained within seconds.
    "bert-micro": Network(partial(bert, 2, 64), "text", 3e-3),
    # Sizes and names of Turc et al. 2019.
    "bert-tiny": Network(partial(bert, 2, 128), "text", 1e-3),
    "bert-mini": Network(partial(bert, 4, 256), "text", 5e-4),
    "bert-small": Network(partial(bert, 4, 512), "text", 3e-4),
    "bert-medium": Network(partial(bert, 8, 512), "text", 2e-4),
    "bert-large": Network(partial(bert, 24, 1024), "text", 5e-5),
}
# Learning rates for pretrained networks, and for functions of the reader.
FINE_TUNING = {"image": 0.01, "text": 3e-5}
FUNCTION = {"image": 0.01, "text": 1e-3}
# Options of `build_network` that follow from the data; not every network needs them.
OF_DATA = {"channels", "image_size", "vocabulary", "pad_token_id"}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def registered(kind: str | None = None) -> list[str]:
    """Return the names of the registry's networks, all or of one kind."""
    return [name for name, entry in NETWORKS.items() if kind in (None, entry.kind)]


def lookup(name: str) -> Network:
    """Return the registry entry of a network, or one made for a pretrained network or a function.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: for a path without a folder.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    folder = local_folder(name)
    if ":" in name and folder is None:
        function = _function(name)
        kind = "text" if "vocabulary" in inspect.signature(function).parameters else "image"
        build = partial(_from_function, function, kind)
        return Network(build, kind, FUNCTION[kind], "function")
    if folder is None and not HUB_ID.fullmatch(name) and not name.startswith((".", "~", "/")):
        choices = [*NETWORKS, "<owner>/<name> on the hub", "a folder", "module:function"]
        raise unknown("network", name, choices)
    kind = _pretrained_kind(name)
    build = partial(_pretrained, name, kind)
    return Network(build, kind, FINE_TUNING[kind], "pretrained")


def build_network(
    name: str, classes: int | None = None, channels: int = 3, image_size: int = 32, seed: int = 0,
    **options: Any,
) -> nn.Module:  # fmt: skip
    """Build a network in eval mode, its weights drawn from the seed alone.

    Args:
        name: an entry of `NETWORKS`; the id or folder of a pretrained image or text classifier; or
            "module:function", such as "torchvision.models:mobilenet_v2". That function, your own
            or of a library, builds a network. It gets those of classes (or num_classes),
            channels and image_size that it has parameters for; a function with a parameter
            vocabulary builds a sequence classifier as `transformers` has them.
        classes: number of logits; by default 10. A pretrained network keeps its classes by
            default; with another number it gets a new last layer.
        channels: number of channels of the images; not used by text networks.
        image_size: pixels per side; not used by text networks.
        seed: seed of the weights; the global random state does not change.
        **options: options of the architecture, such as ``width`` of "cnn" and VGG, ``batch_norm``
            of VGG, ``vocabulary`` of BERT. `Data.spec` gives those that follow from the data.
            A pretrained network has ``from_scratch``: its architecture, with random weights.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an unknown option.

    Example:
        >>> build_network("cnn", classes=10, image_size=20)(torch.zeros(1, 3, 20, 20)).shape
        torch.Size([1, 10])
    """
    network = lookup(name)
    if classes is None and network.origin != "pretrained":
        classes = 10
    size = {"channels": channels, "image_size": image_size} if network.kind == "image" else {}
    return untrained(network.build, {"classes": classes, **size, **options}, seed)


def untrained(
    build: Callable[..., nn.Module], arguments: Mapping[str, Any], seed: int
) -> nn.Module:
    """Return the result of a builder in eval mode, its weights drawn from the seed alone."""
    # Weights are drawn on the CPU, where a seed gives the same numbers on every machine.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build(**arguments).eval()


def on_device(model: nn.Module) -> nn.Module:
    """Return a network in eval mode on a device that returns the same numbers every time."""
    reproducible_gpu()
    return model.to(device()).eval()


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], origin: str = "given"
) -> nn.Module:
    """Load stored weights into a network, in place.

    Args:
        model: network of the architecture that the weights belong to.
        weights: name to tensor.
        origin: named in the error.

    Raises:
        ValueError: if names or shapes differ.
    """
    try:
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"the weights {origin} do not fit this {type(model).__name__}; build the architecture "
            f"that they belong to: {' '.join(str(error).split())[:500]}"
        ) from error
    return model


def identity(model: Any) -> dict[str, str]:
    """Return the identity of a network of `transformers`: fingerprints of weights and settings.

    Weights that `device_map` put on a disk are read one layer at a time.
    """
    from accelerate.utils import align_module_device

    found: dict[str, str] = {}
    for name, module in model.named_modules():
        with align_module_device(module):
            for kind in (module.named_parameters, module.named_buffers):
                weights = kind(recurse=False)
                found |= {f"{name}.{key}": f"{fingerprint(x)} {x.dtype}" for key, x in weights}
    settings = model.config.to_dict()
    # Neither the path nor the version that wrote the file changes any number.
    for key in ("_name_or_path", "transformers_version"):
        settings.pop(key, None)
    text = json.dumps(settings, sort_keys=True, default=str)
    return {"weights": fingerprint(found), "settings": fingerprint(text)}


def data_options(name: str) -> dict[str, Any]:
    """Return the options of `load_dataset` that a network needs: its own preprocessing, if any.

    A pretrained text network needs its tokenizer; a pretrained image network needs its image size,
    mean and standard deviation. Others need nothing.

    Args:
        name: see `build_network`.

    Example:
        >>> data_options("cnn")
        {}
    """
    network = lookup(name)
    if network.origin != "pretrained":
        return {}
    if network.kind == "text":
        return {"tokenizer": name}
    settings = getattr(from_pretrained("AutoConfig", name), "pretrained_cfg", None)
    if settings:  # of timm
        mean = settings["mean"]
        std = settings["std"]
        size = settings["input_size"][-1]
    else:
        processor = from_pretrained("AutoImageProcessor", name)
        mean = processor.image_mean
        std = processor.image_std
        sizes = getattr(processor, "crop_size", None) or processor.size
        size = next(iter(dict(sizes).values()))
    return {"size": int(size), "statistics": (tuple(mean), tuple(std))}


def _pretrained_kind(name: str) -> str:
    transformers = import_transformers()
    config = type(from_pretrained("AutoConfig", name))
    if config in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return "image"
    if config in transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return "text"
    raise ValueError(
        f'network "{name}" has a {config.__name__}, which is neither an image classifier nor a '
        "sequence classifier of transformers; give one of these, or a module:function"
    )


def _pretrained(
    name: str, kind: str, classes: int | None, from_scratch: bool = False, **options: Any
) -> nn.Module:
    settings = {k: v for k, v in options.items() if k not in OF_DATA}
    if classes is not None:
        # Another number of classes gets a new last layer.
        settings |= {"num_labels": classes, "ignore_mismatched_sizes": True}
    loader = f"AutoModelFor{'Image' if kind == 'image' else 'Sequence'}Classification"
    model = from_pretrained(loader, name, dtype=torch.float32, **settings)
    return Logits(type(model)(model.config) if from_scratch else model)


def _function(name: str) -> Callable[..., nn.Module]:
    """Return the function of a name such as "my_networks:build".

    Raises:
        ValueError: if there is no such module or function.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        importlib.invalidate_caches()
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # the module's code can raise anything
        raise ValueError(
            f'network "{name}" cannot be imported ({type(error).__name__}: {error}); expected '
            '"module:function", such as "my_networks:build" for the function build in '
            f"my_networks.py in {Path.cwd()}"
        ) from error


def _from_function(
    build: Callable[..., nn.Module], kind: str, classes: int, **options: Any
) -> nn.Module:
    parameters = inspect.signature(build).parameters
    arguments = {k: v for k, v in options.items() if k in parameters or k not in OF_DATA}
    arguments["classes" if "classes" in parameters else "num_classes"] = classes
    model = build(**arguments)
    return Logits(model) if kind == "text" else model
