"""Networks by name: image classifiers, BERT classifiers and causal language models."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from symgen.architectures import (
    ResNetCIFAR,
    SmallCNN,
    TextClassifier,
    bert,
    import_transformers,
    resnet,
    vgg,
)  # fmt: skip
from symgen.baselines import find_layer  # noqa: F401
from symgen.provenance import fingerprint
from symgen.sources import local_folder, nearest, unavailable


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
# Causal language models of the paper (App. F, O, P), and a small one for trying things out.
CAUSAL_LMS = {
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "stories260k": "karpathy/tinyllamas/stories260K",
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
    arguments: dict[str, Any] = {"classes": classes}
    if network.kind == "image":
        arguments |= {"channels": channels, "image_size": image_size}
    # Weights are drawn on the CPU, where a seed gives the same numbers on every machine.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        try:
            model = network.build(**arguments, **options)
        except TypeError as error:
            raise ValueError(f'network "{name}" does not take {options}: {error}') from error
    model.input_shape = (channels, image_size, image_size) if network.kind == "image" else None
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


def resolve(name: str) -> str:
    """Return the local path of a model: as given, or under `SYMGEN_DATA`; else the id itself.

    Raises:
        FileNotFoundError: for a path, not an id, where there is no folder.
    """
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith("."):
        if not path.is_dir():
            raise FileNotFoundError(
                f'there is no folder "{name}"; expected one with config.json, model.safetensors '
                'and tokenizer.json, or an id "<owner>/<name>"'
            )
        return str(path)
    return str(local_folder(name) or name)


def _pretrained(name: str, classes: int, vocabulary: Any = None, **options: Any) -> nn.Module:
    options.pop("pad_token_id", None)
    return TextClassifier(
        from_pretrained("AutoModelForSequenceClassification", name, num_labels=classes, **options)
    )


def from_pretrained(kind: str, name: str, **options: Any) -> Any:
    loader, path = getattr(import_transformers(), kind), resolve(name)
    try:
        # Code that comes with a model is never run: not asked for, and not by a typed "y" either.
        return loader.from_pretrained(path, trust_remote_code=False, **options)
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of damaged files libraries raise almost anything
        if Path(path).is_dir():
            raise ValueError(
                f"{path} is not in from_pretrained format ({error}); expected "
                "config.json, model.safetensors and tokenizer.json"
            ) from error
        if not isinstance(error, OSError):
            raise
        raise unavailable(name, "model", "config.json", str(error).split("\n")[0]) from error


def weights_fingerprint(model: nn.Module) -> str:
    """Return the fingerprint of a model's weights, also of those that lie aside on a disk."""
    from accelerate.utils import align_module_device

    found: dict[str, str] = {}
    for name, module in model.named_modules():
        # Fetches weights that `device_map` put aside, one layer at a time.
        with align_module_device(module):
            own = module.named_parameters(recurse=False)
            found |= {f"{name}.{key}": fingerprint(value) for key, value in own}
    return fingerprint(found)


def load_causal_lm(
    name_or_path: str, dtype: str | torch.dtype | None = None, device_map: Any = None
) -> tuple[nn.Module, Any]:
    """Load a causal language model in eval mode, and its tokenizer.

    Args:
        name_or_path: name in `CAUSAL_LMS`, hub id, id under `SYMGEN_DATA`, or path in
            from_pretrained format.
        dtype: such as "bfloat16"; None keeps that of the stored weights.
        device_map: "auto" spreads a model over several GPUs, and layers that do not fit over host
            memory and disk; None uses one device.

    Raises:
        MemoryError: where not even the embedding, which is masked, fits in memory.
        FileNotFoundError: where there is neither a local copy nor a way to the hub.
        ImportError: if the extra ``llm`` is not installed.
    """
    if isinstance(dtype, str) and dtype != "auto":
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            known = ("float32", "float16", "bfloat16", "float64")
            raise ValueError(
                f'dtype="{dtype}" is unknown; expected one of {", ".join(known)}.'
                f"{nearest(dtype, known)}"
            )
        dtype = getattr(torch, dtype)
    name = CAUSAL_LMS.get(os.fspath(name_or_path), os.fspath(name_or_path))
    if "/" not in name and not Path(name).is_dir():
        raise ValueError(
            f'unknown language model "{name}"; known are {", ".join(CAUSAL_LMS)}, any id '
            '"<owner>/<name>" on the hub or under SYMGEN_DATA, and any folder.'
            f"{nearest(name, CAUSAL_LMS)}"
        )
    options = {"dtype": dtype if dtype is not None else "auto", "device_map": device_map}
    try:
        model = from_pretrained("AutoModelForCausalLM", name, **options)
        aside = model.get_input_embeddings().weight.is_meta
    except ValueError as error:
        # How accelerate says it of an embedding that is the output layer's weight as well.
        if not (aside := "meta device" in str(error)):
            raise
    if aside:
        raise MemoryError(
            f"device_map put the token embedding of {name} on the disk, and masked inputs are made "
            "from it; keep it in memory (a device_map that names it), or give a smaller dtype"
        )
    tokenizer = from_pretrained("AutoTokenizer", name)
    return (model if device_map is not None else model.to(device())).eval(), tokenizer
