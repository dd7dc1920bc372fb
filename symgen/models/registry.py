"""Networks by name: image classifiers, BERT classifiers and causal language models."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from symgen.data.hub import from_pretrained, resolve
from symgen.fingerprints import fingerprint, not_a_result, refusal
from symgen.literal import nearest
from symgen.memory import reproducible_gpu
from symgen.models.architectures import ResNetCIFAR, SmallCNN, TextClassifier, bert, resnet, vgg
from symgen.models.builders import builder, built, is_builder, kind_of


@dataclasses.dataclass(frozen=True)
class Network:
    """One line of the registry.

    Attributes:
        build: from (classes, channels, image_size, **options), or for texts (classes,
            vocabulary, pad_token_id, **options), to a module.
        kind: ``"image"`` or ``"text"``.
        learning_rate: default of `train`; SGD for images, AdamW for texts.
    """

    build: Callable[..., nn.Module]
    kind: str = "image"
    learning_rate: float = 0.05


NETWORKS: dict[str, Network] = {
    "cnn": Network(SmallCNN, learning_rate=0.05),
    "resnet20": Network(ResNetCIFAR),
    **{name: Network(resnet(name)) for name in ("resnet18", "resnet50", "resnet101")},
    **{name: Network(vgg(name), learning_rate=0.01) for name in ("vgg11", "vgg16", "vgg19")},
    # Small enough to be trained within seconds on a few hundred short sentences.
    "bert-micro": Network(bert(2, 64), "text", 3e-3),
    # Sizes and names of Turc et al. 2019.
    "bert-tiny": Network(bert(2, 128), "text", 1e-3),
    "bert-mini": Network(bert(4, 256), "text", 5e-4),
    "bert-small": Network(bert(4, 512), "text", 3e-4),
    "bert-medium": Network(bert(8, 512), "text", 2e-4),
    "bert-large": Network(bert(24, 1024), "text", 5e-5),
}
# Rate for weights that were trained before.
FINE_TUNING_RATE = 3e-5
# For networks that the registry does not know; low enough for those without batch norm.
OWN_RATES = {"image": 0.01, "text": 1e-3}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def device() -> torch.device:
    """Return the device that networks run on: the GPU where there is one, else the CPU."""
    reproducible_gpu()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# What a name stands for is identified by itself (see `training.builder_identity`), so that a line
# more in the registry changes no result of another network.
@not_a_result
def lookup(name: str) -> Network:
    """Return the registry line of a network, or one that builds or loads what a name stands for.

    Raises:
        ValueError: for an unknown name, or one of a folder or function that is no network.
        FileNotFoundError: for a path where there is no folder.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    if is_builder(name):
        kind = kind_of(builder(name))
        return Network(functools.partial(_own, name, kind), kind, OWN_RATES[kind])
    path = resolve(name)
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise ValueError(
                f'network "{name}": {path} holds no config.json; expected what save_pretrained '
                "writes of a sequence classifier, with its tokenizer"
            )
    elif not HUB_ID.fullmatch(name):
        raise ValueError(
            f'unknown network "{name}"; known are {", ".join(NETWORKS)}, any id "<owner>/<name>" '
            "of a sequence classifier on the hub or under SYMGEN_DATA, the path of a folder of "
            'save_pretrained, and "module:function" for a function that builds a classifier.'
            f"{nearest(name, NETWORKS)}"
        )
    return Network(functools.partial(_pretrained, name), "text", FINE_TUNING_RATE)


@not_a_result
def registered(kind: str | None = None) -> list[str]:
    """Return the names of the registry's networks, all or of one kind."""
    return [name for name, line in NETWORKS.items() if kind in (None, line.kind)]


def build_network(
    name: str, classes: int = 10, channels: int = 3, image_size: int = 32, seed: int = 0,
    **options: Any,
) -> nn.Module:  # fmt: skip
    """Build a network in eval mode, its weights drawn from the seed alone.

    Args:
        name: from the registry `NETWORKS`; the id or folder of a sequence classifier to fine-tune;
            or "module:function", a function of your own (in the folder where you started) or of a
            library, such as "torchvision.models:mobilenet_v2". It is given what its parameters
            name: classes or num_classes, channels, image_size; for texts vocabulary and
            pad_token_id, and then it returns a sequence classifier as `transformers` has them.
        classes: number of logits.
        channels: of the images; not used by text networks.
        image_size: pixels a side; not used by text networks.
        seed: of the weights; the global random state is left as it was.
        **options: of the architecture, such as ``width`` of "cnn" and VGG, ``batch_norm`` of VGG,
            ``vocabulary`` of BERT. `Data.spec` gives those that follow from the data.

    Raises:
        ValueError: for an unknown name or option.

    Example:
        >>> build_network("cnn", classes=10, image_size=20)(torch.zeros(1, 3, 20, 20)).shape
        torch.Size([1, 10])
    """
    network = lookup(name)
    size = {"channels": channels, "image_size": image_size} if network.kind == "image" else {}
    try:
        return untrained(network.build, {"classes": classes, **size, **options}, seed)
    except TypeError as error:
        raise ValueError(f'network "{name}" does not take {options}: {error}') from error


def untrained(
    build: Callable[..., nn.Module], arguments: Mapping[str, Any], seed: int
) -> nn.Module:
    """Return what a builder gives in eval mode, its weights drawn from the seed alone."""
    # Weights are drawn on the CPU, where a seed gives the same numbers on every machine.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = build(**arguments)
    side = arguments.get("image_size")
    model.input_shape = (arguments["channels"], side, side) if side else None
    return model.eval()


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], origin: str = "given"
) -> nn.Module:
    """Load stored weights into a network, in place.

    Args:
        model: of the architecture that the weights belong to.
        weights: name to tensor.
        origin: named in the error.

    Raises:
        ValueError: if names or shapes differ, with the first that do.
    """
    try:
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"the weights {origin} are of another architecture than this "
            f"{type(model).__name__}: {' '.join(str(error).split())[:500]}"
        ) from error
    return model


def identity(model: nn.Module) -> dict[str, str]:
    """Return what identifies a network of `transformers`: its weights, and its settings.

    The same weights compute something else with another setting, such as of positions. Weights
    that `device_map` put aside on a disk are fetched, one layer at a time.
    """
    from accelerate.utils import align_module_device

    found: dict[str, str] = {}
    for name, module in model.named_modules():
        with align_module_device(module):
            own = module.named_parameters(recurse=False)
            found |= {f"{name}.{key}": fingerprint(value) for key, value in own}
    settings = model.config.to_dict()
    for told in ("_name_or_path", "transformers_version"):
        settings.pop(told, None)
    said = json.dumps(settings, sort_keys=True, default=str)
    return {"weights": fingerprint(found), "settings": said}


def _own(name: str, kind: str, classes: int, **options: Any) -> nn.Module:
    model = built(name, classes, **options)
    return TextClassifier(model) if kind == "text" else model


@refusal
def _refuse_other_classes(name: str, classes: int) -> None:
    """Refuse a classifier in a folder that was trained for another number of classes."""
    try:
        config = json.loads((Path(resolve(name)) / "config.json").read_text(encoding="utf-8"))
        mine = len(config.get("id2label", "01"))  # two where a configuration says nothing
        trained = "ForSequenceClassification" in str(config.get("architectures"))
    except (OSError, ValueError, AttributeError, TypeError):
        return  # of the hub, or told by what loads it
    if trained and mine != classes:
        raise ValueError(
            f'network "{name}" is a classifier of {mine} classes, and the data has {classes}; '
            "choose data with its classes, or save the model with a head for these, by "
            f"from_pretrained(..., num_labels={classes}, ignore_mismatched_sizes=True)"
        )


def _pretrained(name: str, classes: int, vocabulary: Any = None, **options: Any) -> nn.Module:
    options.pop("pad_token_id", None)
    _refuse_other_classes(name, classes)
    return TextClassifier(
        from_pretrained("AutoModelForSequenceClassification", name, num_labels=classes, **options)
    )
