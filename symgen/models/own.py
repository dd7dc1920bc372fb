"""Networks that are not trained here: checkpoints of the reader, and pretrained ones."""

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from symgen.data.splits import Part
from symgen.models.architectures import Logits
from symgen.models.files import chosen
from symgen.models.loop import recalibrated
from symgen.models.registry import build_network, identity, load_weights, on_device, untrained
from symgen.names import unknown

# Columns of the records besides the step; NaN if unknown.
RECORDED = ("epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy")
# Networks that functions of the reader returned, with the run and the step.
IN_USE: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref, int]] = weakref.WeakKeyDictionary()


class Checkpoints:
    """The checkpoints of your own training, with the same members as a `TrainingRun`.

    Args:
        checkpoints: optimizer step to checkpoint, or a list of checkpoints, which get the steps 0,
            1, 2, ... A checkpoint is a file of weights (safetensors, or `torch.save` of a
            state_dict), or a function without arguments that returns the network.
        build: function without arguments that returns a network for the weights of the files.
        records: one row per checkpoint, in the order of `checkpoints` or with a column step; with
            any of epoch, train_loss, test_loss (nats), train_accuracy and test_accuracy (shares).
        key: name of the entry of the files that holds the weights, such as "model_ema", if
            several do.

    Attributes:
        steps: steps of the checkpoints, ascending.
        records: the table, with a column step; NaN if unknown.

    Weights are taken out of the files of trainers: of an entry such as "state_dict", and from names
    that all begin with a prefix such as "module." or "_orig_mod.". What was done is printed.

    Raises:
        ValueError: for wrong steps, networks instead of functions, files without `build`, or
            records of other steps or columns.

    Example:
        >>> layers = [torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)]
        >>> run = Checkpoints({0: lambda: layers[0], 100: lambda: layers[1]})
        >>> run.steps, run.load(100) is layers[1]
        ([0, 100], True)
    """

    def __init__(
        self,
        checkpoints: Mapping[int, Any] | Sequence[Any],
        build: Callable[[], nn.Module] | None = None,
        records: pd.DataFrame | Sequence[Mapping[str, float]] | None = None,
        key: str | None = None,
    ):
        if not isinstance(checkpoints, Mapping):
            checkpoints = dict(enumerate(checkpoints))
        if not checkpoints or any(int(step) != step or step < 0 for step in checkpoints):
            raise ValueError(
                f"the steps are {[*checkpoints][:10]}; expected one or more whole numbers >= 0"
            )
        self.steps = sorted(int(step) for step in checkpoints)
        self._entry = key
        self._printed: set[str] = set()
        self._functions: dict[int, Callable[[], nn.Module]] = {}
        for step, source in checkpoints.items():
            if isinstance(source, str | Path) and build is not None:
                self._functions[int(step)] = functools.partial(self._read, Path(source), build)
            elif isinstance(source, Callable) and not isinstance(source, nn.Module):
                self._functions[int(step)] = source
            else:
                raise ValueError(
                    f"a checkpoint is {type(source).__name__}; expected a function without "
                    "arguments that returns the network, or a file of weights together with build"
                )
        table = pd.DataFrame({} if records is None else records)
        if "step" not in table and len(table) in (0, len(self.steps)):
            table = table.assign(step=[int(step) for step in checkpoints])
        self.records = self._recorded(table)

    def _recorded(self, table: pd.DataFrame) -> pd.DataFrame:
        for name in table:
            if name not in ("step", *RECORDED):
                raise unknown("column of records", name, ("step", *RECORDED))
        if "step" not in table or sorted(table["step"]) != self.steps:
            raise ValueError(
                f"records have {len(table)} rows; expected one for each of the steps {self.steps}"
            )
        return table.reindex(columns=["step", *RECORDED]).sort_values("step", ignore_index=True)

    def load(self, step: int = -1) -> nn.Module:
        """Return the network after so many steps, in eval mode on `symgen.device.device()`.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for another step, or weights that cannot be read or do not fit.
        """
        step = chosen(step, self.steps)
        # Building draws weights, which must not change other draws.
        with torch.random.fork_rng(devices=[]):
            model = self._functions[step]()
        self._check_shared(step, model)
        return on_device(model)

    def _read(self, path: Path, build: Callable[[], nn.Module]) -> nn.Module:
        """Return a network with the weights of a file."""
        model = build()
        weights, done = fitted(_content(path), model, self._entry, path)
        load_weights(model, weights, f"in {path}")
        if done and done not in self._printed:
            self._printed.add(done)
            print(f"{path}: {done}")
        return model

    def _check_shared(self, step: int, model: nn.Module) -> None:
        """Refuse a network that is part of another one in use, such as a base with an adapter."""
        for other, (run, its_step) in [*IN_USE.items()]:
            same_run = run() is self
            if (same_run and its_step == step) or (other is model and not same_run):
                continue
            if other in {*model.modules()} or model in {*other.modules()}:
                raise ValueError(
                    f"the networks of step {its_step} and of step {step} share one object, so they "
                    "have the same weights. An adapter such as LoRA changes the network that it "
                    "is put into: load that network again, or give copy.deepcopy of it"
                )
        IN_USE[model] = (weakref.ref(self), step)

    def key(self, step: int = -1) -> None:
        """Return None: results are not stored, because your code can change unseen."""
        return None


class PretrainedNetwork:
    """A pretrained image classifier as it was published, with the same members as `Checkpoints`.

    Args:
        name: id or folder; see `build_network`.
        untrained_on: samples for a copy with random weights. Its batch norms get the statistics of
            these samples, since without them its outputs would be constant.

    Attributes:
        steps: ``[0]``.
    """

    def __init__(self, name: str, untrained_on: Part | None = None):
        self.steps = [0]
        self._network = build_network(name)
        if untrained_on is not None:
            inner: Any = self._network.get_submodule("model")
            blank = untrained(type(inner), {"config": inner.config}, seed=0)
            self._network = recalibrated(Logits(blank), untrained_on, size=128)

    def load(self, step: int = -1) -> nn.Module:
        """Return the network in eval mode on `symgen.device.device()`."""
        # This layout halves the time of depthwise convolutions on a CPU.
        return on_device(self._network.to(memory_format=torch.channels_last))

    def key(self, step: int = -1) -> dict[str, str]:
        """Return the fingerprints of weights and settings."""
        return identity(self._network.get_submodule("model"))


def fitted(
    content: Mapping[str, Any], model: nn.Module, key: str | None, path: Path
) -> tuple[dict[str, Tensor], str]:
    """Return the weights of a file under the names of a network, and what was done to get them.

    Args:
        content: content of the file.
        model: network that the weights belong to.
        key: name of the entry that holds the weights; None finds it if there is only one.
        path: file, for messages.

    Raises:
        ValueError: if no entry or several hold weights.
    """
    done = []
    entries = {k: v for k, v in content.items() if _is_weights(v)}
    if _is_weights(content):
        entries[""] = content
    if key is None and len(entries) == 1:
        (key,) = entries
    if key not in entries:
        raise ValueError(
            f"{path} holds the entries {', '.join(map(str, content))}, of which "
            f"{', '.join(entries) or 'none'} can be weights; expected one: name it by key=..."
        )
    if key:
        done.append(f'weights of the entry "{key}"')
    content = entries[key]
    expected = model.state_dict()
    # torch.compile puts the first into names. AveragedModel counts its updates in the second.
    weights = {k.replace("_orig_mod.", ""): v for k, v in content.items() if k != "n_averaged"}
    added = [part for part in ("_orig_mod.", "n_averaged") if any(part in k for k in content)]
    done += [f'without "{part}"' for part in added]
    names = _without_prefix([*weights], expected)
    if names != [*weights]:
        prefix = next(iter(weights)).removesuffix(names[0])
        done.append(f'names without "{prefix}"')
        weights = dict(zip(names, weights.values(), strict=True))
    # Weights that two layers share are often stored once.
    stored = {expected[k].data_ptr(): v for k, v in weights.items() if k in expected}
    for name, value in expected.items():
        if name not in weights and value.data_ptr() in stored:
            weights[name] = stored[value.data_ptr()]
    return weights, ", ".join(done)


def _without_prefix(names: list[str], expected: Mapping[str, Any]) -> list[str]:
    """Return names without the prefix that all share, if only then some of them are expected."""
    shorter = names
    while not any(name in expected for name in shorter):
        firsts = {name.partition(".")[0] for name in shorter}
        shorter = [name.partition(".")[2] for name in shorter]
        if len(firsts) != 1 or not all(shorter):
            return names
    return shorter


def _is_weights(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(x, Tensor) for x in value.values())
    )


def _content(path: Path) -> Mapping[str, Any]:
    """Return the content of a file of weights; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
        return found if isinstance(found, Mapping) else {type(found).__name__: found}
    except Exception as error:  # torch raises almost anything
        cause = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} cannot be read as weights ({cause}); save them with "
            "torch.save(network.state_dict(), path), or give a function that returns the network"
        ) from error
