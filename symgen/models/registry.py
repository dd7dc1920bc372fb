"""Networks by name: image classifiers, BERT classifiers and causal language models."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from symgen.data.hub import from_pretrained, local_folder
from symgen.literal import nearest
from symgen.models.architectures import ResNetCIFAR, SmallCNN, TextClassifier, bert, resnet, vgg


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


def device() -> torch.device:
    """Return the device that networks run on: the GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


NETWORKS: dict[str, Network] = {
    "cnn": Network(SmallCNN),
    "resnet20": Network(ResNetCIFAR),
    **{name: Network(resnet(name)) for name in ("resnet18", "resnet50", "resnet101")},
    **{name: Network(vgg(name), learning_rate=0.01) for name in ("vgg11", "vgg16", "vgg19")},
    # Sizes and names of Turc et al. 2019.
    "bert-tiny": Network(bert(2, 128), "text", 1e-3),
    "bert-mini": Network(bert(4, 256), "text", 5e-4),
    "bert-small": Network(bert(4, 512), "text", 3e-4),
    "bert-medium": Network(bert(8, 512), "text", 2e-4),
    "bert-large": Network(bert(24, 1024), "text", 5e-5),
}
# Rate for weights that were trained before.
FINE_TUNING_RATE = 3e-5


def lookup(name: str) -> Network:
    """Return the registry line of a network, or one that loads a fine-tuned model by its id.

    Raises:
        ValueError: for an unknown name.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    if "/" in name or local_folder(name):
        return Network(functools.partial(_pretrained, name), "text", FINE_TUNING_RATE)
    raise ValueError(
        f'unknown network "{name}"; known are {", ".join(NETWORKS)}, and any id "<owner>/<name>" '
        f"of a sequence classifier on the hub or under SYMGEN_DATA.{nearest(name, NETWORKS)}"
    )


def build_network(
    name: str, classes: int = 10, channels: int = 3, image_size: int = 32, seed: int = 0,
    **options: Any,
) -> nn.Module:  # fmt: skip
    """Build a network in eval mode, its weights drawn from the seed alone.

    Args:
        name: from the registry `NETWORKS`, or the id of a sequence classifier to fine-tune.
        classes: number of logits.
        channels: of the images; not used by text networks.
        image_size: pixels a side; not used by text networks.
        seed: of the weights; the global random state is left as it was.
        **options: of the architecture, such as ``width`` of "cnn", ``batch_norm`` of VGG,
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
    own = model.state_dict()
    problems = [f"{k} is missing" for k in own if k not in weights]
    problems += [f"{k} is not expected" for k in weights if k not in own]
    problems += [
        f"{k} is {tuple(weights[k].shape)}, not {tuple(v.shape)}"
        for k, v in own.items()
        if k in weights and weights[k].shape != v.shape
    ]
    if problems:
        raise ValueError(
            f"the weights {origin} are of another architecture than this "
            f"{type(model).__name__}: {'; '.join(problems[:6])}"
            + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        )
    model.load_state_dict(weights)
    return model


def _pretrained(name: str, classes: int, vocabulary: Any = None, **options: Any) -> nn.Module:
    options.pop("pad_token_id", None)
    return TextClassifier(
        from_pretrained("AutoModelForSequenceClassification", name, num_labels=classes, **options)
    )
