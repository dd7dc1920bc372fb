"""Networks of your own, by the name of the function that builds them, and what identifies them."""

import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from symgen.files import own_folder, working_folder
from symgen.fingerprints import fingerprint, not_a_result
from symgen.literal import nearest
from symgen.masking.hooks import _source

# What follows from the data, of which a builder is given what its parameters name.
OFFERED = ("classes", "num_classes", "channels", "image_size", "vocabulary", "pad_token_id")


def is_builder(name: str) -> bool:
    """Return whether a network's name is that of a function, "module:function"."""
    return ":" in name and own_folder(name) is None


@not_a_result
def builder(name: str) -> Callable[..., nn.Module]:
    """Return the function of a name such as "my_networks:build" or "torchvision.models:resnet34".

    Its module lies in the folder where the program was started, or is installed.

    Raises:
        ValueError: for no such module or function, or a module that cannot be imported.
    """
    where, _, what = name.partition(":")
    folder = str(working_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    said = (
        'expected "module:function", such as "my_networks:build" for the function build in '
        f"my_networks.py in {folder}"
    )
    try:
        importlib.invalidate_caches()
        found: Any = importlib.import_module(where)
    except Exception as error:  # the module's own code raises whatever it likes
        if isinstance(error, ModuleNotFoundError) and where.startswith(f"{error.name}"):
            raise ValueError(f'network "{name}": there is no module {where}; {said}') from error
        told = f"{type(error).__name__}: {error}"
        raise ValueError(f'network "{name}": {where} cannot be imported ({told})') from error
    for part in what.split("."):
        if not hasattr(found, part):
            close = nearest(part, [k for k, v in vars(found).items() if callable(v)])
            raise ValueError(f'network "{name}": {where} has no {what!r}; {said}.{close}')
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f'network "{name}": {what} is {type(found).__name__}; {said}')
    return found


def kind_of(build: Callable[..., nn.Module]) -> str:
    """Return "text" for a builder with a parameter `vocabulary`, else "image"."""
    return "text" if "vocabulary" in _parameters(build) else "image"


def built(name: str, classes: int, **options: Any) -> nn.Module:
    """Return the network that a function of the reader builds.

    Args:
        name: see `builder`.
        classes: number of logits, for the function's parameter classes or num_classes.
        **options: channels and image_size of images, or vocabulary and pad_token_id of texts, for
            parameters of these names; others are handed on.

    Raises:
        ValueError: for a function that returns something else than a module.
    """
    build = builder(name)
    taken = _parameters(build)
    known = {"classes": classes, "num_classes": classes, **options}
    given = {k: v for k, v in known.items() if k in taken or k not in OFFERED}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    if open_ended and not given.keys() & {"classes", "num_classes"}:
        given["num_classes"] = classes
    model = build(**given)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f'network "{name}": the function returned {type(model).__name__}; expected a '
            "torch.nn.Module that gives logits (sample, class)"
        )
    return model


def _parameters(build: Callable[..., nn.Module]) -> dict[str, inspect.Parameter]:
    with contextlib.suppress(ValueError, TypeError):  # some have no signature
        return dict(inspect.signature(build).parameters)
    return {}


def content(model: nn.Module) -> dict[str, str]:
    """Return what identifies any network: its weights, its layers and the code of their classes."""
    classes = {type(module) for module in model.modules()}
    own = sorted(
        (c for c in classes if not c.__module__.startswith("torch.")), key=lambda c: c.__qualname__
    )
    code = json.dumps([str(model), *map(_source, own)])
    return {"weights": fingerprint(dict(model.state_dict())), "network": fingerprint(code)}


def identity(name: str, model: nn.Module) -> dict[str, str]:
    """Return what identifies a network and its builder: its `content`, and the builder's file."""
    module = sys.modules.get(builder(name).__module__)
    return {**content(model), "builder": fingerprint(_source(module))}
