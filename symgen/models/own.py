"""A training of your own: its checkpoints, wherever and however they are kept."""

import contextlib
import copy
import functools
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from symgen.fingerprints import fingerprint, refusal
from symgen.masking.hooks import _source as code_of
from symgen.models.builders import content
from symgen.models.registry import device, load_weights

# What is known of a run's checkpoints, beside their steps; NaN where it is not.
RECORDED = ("epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy")
# Under which names programs keep the weights in a checkpoint that holds more than these.
INSIDE = ("state_dict", "model_state_dict", "model", "net", "network", "weights")


class Checkpoints:
    """The checkpoints of a training of your own: what `track` takes for a run.

    Args:
        sources: optimizer step to checkpoint, or a list of checkpoints, whose steps are then 0, 1,
            2, ... A checkpoint is a file of weights, by `torch.save` of a state_dict (also one
            under "state_dict", "model_state_dict" or "model" of a mapping, or of
            DistributedDataParallel) or in safetensors, or a function without arguments that returns
            the network.
        build: returns a network that the weights of the files fit into.
        records: one row a checkpoint, with any of epoch, train_loss, test_loss (nats),
            train_accuracy and test_accuracy (shares): a table, or a list of mappings. They are
            drawn beside what is measured; NaN where unknown.

    Attributes:
        steps: of the checkpoints, ascending.
        records: the table.

    Raises:
        ValueError: for steps that are no whole numbers >= 0, fewer than one checkpoint, records of
            other steps or names, a file without `build`, or a text in place of a list.
        FileNotFoundError: where a file is not there.

    Warns:
        UserWarning: where the files of a list are not in the order of the last numbers in their
            names.

    Example:
        >>> layers = [torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)]
        >>> run = Checkpoints({0: lambda: layers[0], 100: lambda: layers[1]})
        >>> run.steps, run.load(100) is layers[1], run.key(0) == run.key(100)
        ([0, 100], True, False)
    """

    def __init__(
        self,
        sources: Mapping | Sequence,
        build: Callable[[], nn.Module] | None = None,
        records: pd.DataFrame | Sequence[Mapping[str, float]] | None = None,
    ):
        if isinstance(sources, str | os.PathLike):
            raise ValueError(
                f"checkpoints are the one path {sources}; expected a list of files, or a mapping "
                "of steps to files"
            )
        if not isinstance(sources, Mapping):
            sources = dict(enumerate(sources))
            _warn_of_order([*sources.values()])
        wrong = [
            step for step in sources
            if isinstance(step, bool | str) or int(step) != step or step < 0
        ]  # fmt: skip
        if wrong or not sources:
            raise ValueError(
                f"the steps of the checkpoints are {[*sources][:10]}; expected one or more whole "
                "numbers, 0 or above"
            )
        if isinstance(build, nn.Module):
            raise ValueError(
                f"build is a {type(build).__name__}; expected a function that builds one, such as "
                "its class, or lambda: network"
            )
        _refuse_late([*sources.values()])
        given = [int(step) for step in sources]
        self._sources = {int(step): sources[step] for step in sorted(sources)}
        self._build, self._keys = build, dict[int, dict[str, str]]()
        self.steps = [*self._sources]
        for source in self._sources.values():
            if isinstance(source, nn.Module):
                raise ValueError(
                    f"a checkpoint is a {type(source).__name__}; expected a function that returns "
                    "it: lambda: network, and in a loop lambda network=network: network"
                )
            if callable(source):
                continue
            if not isinstance(source, str | os.PathLike):
                raise ValueError(
                    f"a checkpoint is {type(source).__name__}; expected the path of a file, or a "
                    "function without arguments that returns the network"
                )
            if Path(source).is_dir():
                raise ValueError(
                    f"the checkpoint {source} is a folder; expected the file of weights in "
                    "it, such as model.safetensors, or a function that returns the network: "
                    "lambda: Model.from_pretrained(folder)"
                )
            if not Path(source).is_file():
                raise FileNotFoundError(f"there is no checkpoint {source}")
            if build is None:
                raise ValueError(
                    f"{source} holds weights alone; pass build, a function without arguments that "
                    "returns a network to load them into"
                )
        files = [str(x) for x in self._sources.values() if not callable(x)]
        if again := [file for file in dict.fromkeys(files) if files.count(file) > 1]:
            raise ValueError(f"{again[0]} is given for several steps; expected a file for each")
        self.records = _recorded(given, records)

    def load(self, step: int = -1) -> nn.Module:
        """Return the network as it was after so many steps, in eval mode on `registry.device()`.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for another step, weights that do not fit, or what is no network or file of
                weights.
        """
        step = self._step(step)
        source = self._sources[step]
        # Building draws weights, which must change no other draw.
        with torch.random.fork_rng(devices=[]):
            # A copy, since the weights go into it, and it may be the reader's own network.
            model = source() if callable(source) else copy.deepcopy(self._build())
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"the function for step {step} returned {type(model).__name__}; expected a "
                "torch.nn.Module"
            )
        if not callable(source):
            weights, own = _weights(Path(source)), model.state_dict()
            # As DistributedDataParallel names them, torch.compile, or a Lightning module with
            # the network inside; one within the other.
            while weights and not weights.keys() & own.keys():
                prefixes = {name.partition(".")[0] for name in weights}
                if len(prefixes) > 1 or not all("." in name for name in weights):
                    break
                weights = {name.partition(".")[2]: x for name, x in weights.items()}
            # What two layers share, such as word embeddings, some programs keep under one name.
            for name in own.keys() - weights.keys():
                for same in weights.keys() & own.keys():
                    if own[same].is_set_to(own[name]):
                        weights[name] = weights[same]
            load_weights(model, weights, f"in {source}")
        model = model.to(device()).eval()
        self._keys[step] = {**content(model), "settings": _settings(model)}
        return model

    def key(self, step: int = -1) -> dict[str, str]:
        """Return what identifies a network: weights, buffers, layers, attributes, classes' code.

        What else its forward calls, functions and variables of a module, is not seen: where you
        change that, point SYMGEN_CACHE to another folder, or results of the network as it was may
        be found again.

        Args:
            step: one of `steps`, or -1 for the last.
        """
        step = self._step(step)
        if step not in self._keys:
            self.load(step)
        return {**self._keys[step]}

    def _step(self, step: int) -> int:
        step = self.steps[-1] if step == -1 else step
        if step not in self._sources:
            raise ValueError(f"there is no checkpoint at step {step}; there are {self.steps}")
        return step


@refusal
def _refuse_late(sources: Sequence) -> None:
    """Refuse functions of a loop that look up its variable when they are called: all are one."""
    seen = list[tuple]()
    for source in {id(source): source for source in sources}.values():
        if (code := getattr(source, "__code__", None)) is None:
            continue
        holds = [getattr(source, "__self__", None), *(source.__closure__ or ())]
        given = source.__defaults__, source.__kwdefaults__
        seen.append((code, *map(id, holds), *map(id, given)))
        if seen.count(seen[-1]) > 1:
            raise ValueError(
                f"two checkpoints are the same function {source.__name__}, as where it is made in "
                "a loop, whose variable it looks up when it is called, at its last value; have it "
                "hold the value: lambda step=step: load(step)"
            )


def _warn_of_order(sources: Sequence) -> None:
    names = [Path(x).stem for x in sources if isinstance(x, str | os.PathLike)]
    numbers = [int(found[-1]) for name in names if (found := re.findall(r"\d+", name))]
    if len(numbers) == len(sources) and numbers != sorted(numbers):
        warnings.warn(
            f"checkpoints are taken in the order of the list, whose names say {numbers[:10]}; sort "
            "it by these numbers, or give a mapping of steps to files",
            stacklevel=3,
        )


def _settings(model: nn.Module) -> str:
    """Return what identifies the attributes of all layers: a number there may decide the output.

    Buffers that no file of weights holds are among them.
    """
    torchs_own, within = {*vars(nn.Module())}, set[int]()

    def plain(value: Any) -> Any:
        with contextlib.suppress(TypeError):
            return fingerprint(value)
        # What it holds, or is, has no fingerprint of its own.
        if isinstance(value, Mapping):
            return {str(k): plain(x) for k, x in value.items()}
        if isinstance(value, list | tuple):
            return [*map(plain, value)]
        if hasattr(value, "to_dict"):  # such as the configuration of a transformer
            return plain(value.to_dict())
        if isinstance(value, functools.partial):
            return [code_of(value.func), plain(value.args), plain(value.keywords)]
        if callable(value) and not isinstance(value, nn.Module):
            return code_of(value)
        if isinstance(value, complex | torch.dtype | torch.device):
            return repr(value)
        told, held = type(value).__qualname__, getattr(value, "__dict__", {})
        # A logger knows of all others, and of what was asked of it.
        known = isinstance(value, nn.Module | logging.Logger) or id(value) in within
        if known or not held:
            return told
        within.add(id(value))  # of two that hold each other, each is looked into once
        found = [told, plain(held)]
        within.discard(id(value))
        return found

    saved = model.state_dict(keep_vars=True).keys()
    return fingerprint([
        {
            name: {k: plain(x) for k, x in vars(module).items() if k not in torchs_own}
            for name, module in model.named_modules()
        },
        {name: plain(x) for name, x in model.named_buffers() if name not in saved},
    ])  # fmt: skip


def _recorded(steps: Sequence[int], records: Any) -> pd.DataFrame:
    """Return what is known of the checkpoints, one row each; without steps, in the order given."""
    table = pd.DataFrame({"step": steps} if records is None else records)
    if other := [str(name) for name in table if name not in ("step", *RECORDED)]:
        raise ValueError(
            f"records have the columns {', '.join(other)}; expected any of {', '.join(RECORDED)}"
        )
    if "step" not in table and len(table) == len(steps):
        table.insert(0, "step", steps)
    if "step" in table:
        table, steps = table.sort_values("step"), sorted(steps)
    if "step" not in table or table["step"].tolist() != [*steps]:
        found = table["step"].tolist() if "step" in table else f"{len(table)} rows"
        raise ValueError(
            f"records are of the steps {found}; expected one row for each of {[*steps]}"
        )
    unknown = {name: float("nan") for name in RECORDED if name not in table}
    return table.assign(**unknown).reset_index(drop=True)


def _weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; nothing in it is executed."""
    advice = "expected what torch.save(network.state_dict(), path) or safetensors writes"
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except (SafetensorError, Exception) as error:  # of damaged files torch raises almost anything
        whole = "Unsupported" in str(error) or "weights_only" in str(error)
        kind = type(error).__name__
        said = "it holds more than tensors" if whole else f"{kind}: {' '.join(str(error).split())}"
        raise ValueError(
            f"{path} cannot be read as weights ({said[:200]}); {advice}. A whole network that was "
            "saved is given as a function that returns it"
        ) from error
    if isinstance(found, Mapping):
        found = next((found[k] for k in INSIDE if isinstance(found.get(k), Mapping)), found)
    if not isinstance(found, Mapping) or not all(isinstance(x, Tensor) for x in found.values()):
        held = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{path} holds {held[:200]}; {advice}")
    return dict(found)
