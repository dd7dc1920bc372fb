"""Training with checkpoints: stored once, stopped at any moment, resumed with the same numbers."""

import dataclasses
import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch
from torch import Tensor, nn

from symgen.data.datasets import Data
from symgen.data.images import ImagePart
from symgen.data.sources import local_folder
from symgen.device import device
from symgen.models import registry
from symgen.models.config import TrainingConfig
from symgen.models.loop import Loop, Task, Term, classification
from symgen.storage import (
    VERSION,
    DamagedFileWarning,
    cache_folder,
    fingerprint,
    read_info,
    read_tensors,
    read_whole,
    write_tensors,
)


class NearChanceWarning(UserWarning):
    """A trained network classifies its training samples no better than guessing."""


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of one training: one safetensors file per checkpoint, and a state to resume from.

    Attributes:
        folder: folder that holds them.
        steps: steps of all checkpoints.
    """

    folder: Path
    steps: tuple[int, ...]

    def path(self, step: int) -> Path:
        """Return the file of a checkpoint."""
        return self.folder / f"step-{step:08d}.safetensors"

    def key(self, path: Path) -> str:
        """Return the identity of a file, which `write_tensors` stores in it."""
        return f"{self.folder.name}/{path.name}"

    def record(self, step: int) -> dict[str, float] | None:
        """Return the evaluation of a checkpoint, or None if its file is missing or damaged."""
        path = self.path(step)
        if not path.is_file():
            return None
        try:
            return read_info(path, self.key(path))["record"]
        except (OSError, KeyError, ValueError) as error:
            message = f"{error}; it is computed again"
            warnings.warn(message, DamagedFileWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def missing(self) -> list[int]:
        """Return the steps without a checkpoint."""
        return [step for step in self.steps if self.record(step) is None]

    def keep(self, step: int, model: nn.Module, record: dict[str, float]) -> None:
        """Store a checkpoint."""
        path = self.path(step)
        write_tensors(path, model.state_dict(), {"record": record}, self.key(path))

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Store the state after `step`, then delete earlier states."""
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in values.items() if v is not None}
        path = self.folder / f"resume-{step:08d}.safetensors"
        write_tensors(path, tensors, {"step": step}, self.key(path))
        self.discard_states(but=path)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the last stored state; return its step, or 0 if there is none."""
        first = min(self.missing())
        for path in sorted(self.folder.glob("resume-*.safetensors"), reverse=True):
            found = read_tensors(path, self.key(path))
            # Checkpoints before the state can only be computed from the start.
            if found is None or found[1]["step"] >= first:
                continue
            registry.load_weights(model, _under("model.", found[0]), f"in {path}")
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for i, parameter in enumerate(parameters):
                for name, value in _under(f"optimizer.{i}.", found[0]).items():
                    if value.ndim:  # with the memory layout of the parameter
                        value = torch.empty_like(parameter).copy_(value)
                    optimizer.state[parameter][name] = value
            return found[1]["step"]
        return 0

    def discard_states(self, but: Path | None = None) -> None:
        """Delete stored states except one, and temporary files of a killed process."""
        for pattern in ("resume-*.safetensors", ".*.part"):
            for path in self.folder.glob(pattern):
                if path != but:
                    path.unlink(missing_ok=True)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


class TrainingRun:
    """A training: its checkpoints, and their evaluation.

    Attributes:
        config: how it was trained.
        task: see `Task`.
        steps: steps of the checkpoints; 0 is the untrained network.
        network: name of the network.
        folder: folder of the checkpoints.
        tokenizer: tokenizer of a language model, else None.
    """

    def __init__(
        self,
        config: TrainingConfig,
        task: Task,
        settings: dict[str, Any],
        title: str,
        finish: Callable[[nn.Module], nn.Module] = lambda model: model,
        tokenizer: Any = None,
        stored: bool = True,
    ):
        self.config = config
        self.task = task
        self.network = task.name
        self.title = title
        self.tokenizer = tokenizer
        self._finish = finish
        self._stored = stored
        self.steps = list(config.steps(len(task.part)))
        self._settings = {
            **settings,
            "config": dataclasses.asdict(config),
            "steps": self.steps,
            "part": task.part.fingerprint,
            "measured": {name: part.fingerprint for name, part in task.measured.items()},
            "term": None if task.term is None else fingerprint(task.term.key),
            "version": VERSION["training"],
            "torch": torch.__version__,
        }
        self.folder = cache_folder() / "training" / fingerprint(self._settings)

    def __repr__(self) -> str:
        return f"TrainingRun({self.title}, {self.steps[-1]} steps, {len(self.steps)} checkpoints)"

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self.folder, tuple(self.steps))

    @property
    def records(self) -> pd.DataFrame:
        """One row per checkpoint: step, epoch, and loss and accuracy on training and test samples.

        Losses are mean cross-entropies in nats, in eval mode, on samples that are not augmented.
        """
        if self.files.missing():  # damaged since
            self.compute()
        return pd.DataFrame([self.files.record(step) for step in self.steps])

    def key(self, step: int = -1) -> dict[str, Any] | None:
        """Return the identity of the network after so many steps, for `storage.cached`.

        Args:
            step: one of `steps`, or -1 for the last.

        Returns:
            Settings, fingerprints of the data and the step; None if results must not be stored,
            because the code of a network of your own can change unseen.
        """
        return {**self._settings, "step": self._step(step)} if self._stored else None

    def load(self, step: int = -1) -> nn.Module:
        """Return the network after so many steps, in eval mode on `symgen.device.device()`.

        A damaged checkpoint is reported and computed again.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for a step without checkpoint.
        """
        path = self.files.path(self._step(step))
        key = self.files.key(path)
        found = read_tensors(path, key)
        if found is None:
            path.unlink(missing_ok=True)
            self.compute()
            found = read_whole(path, key)
        network = registry.load_weights(self.task.build(), found[0], f"in {path}")
        return registry.on_device(self._finish(network), device())

    def _step(self, step: int) -> int:
        step = self.steps[-1] if step == -1 else step
        if step not in self.steps:
            raise ValueError(f"there is no checkpoint at step {step}; there are {self.steps}")
        return step

    def compute(self, progress: bool = True) -> None:
        """Train up to the last missing checkpoint, if any is missing."""
        # Stored runs are only read, so that they can lie in a folder that nobody may write to.
        if not self.files.missing():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # One program trains a run; another one waits, and then finds it done.
        with filelock.FileLock(self.folder / ".lock"):
            if self.files.missing():
                Loop(self.config, self.task, self.files, self.title if progress else None).run()

    def forget(self) -> None:
        """Keep the run in a folder that vanishes with it."""
        self.folder = Path(tempfile.mkdtemp(prefix="symgen-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def warn_near_chance(self) -> None:
        """Warn if the training accuracy is within two standard errors of the largest class."""
        labels = self.task.part.labels
        share = float(labels.bincount().max()) / len(labels)
        count = min(len(labels), self.config.evaluation_size)
        accuracy = self.records["train_accuracy"].iloc[-1]
        if is_near_chance(accuracy, share, count):
            warnings.warn(
                f"{self!r} ends near chance: it classifies {accuracy:.0%} of its training samples "
                f"correctly, and guessing gives {share:.0%}. Train for more epochs, or with "
                "another learning_rate or seed",
                NearChanceWarning,
                stacklevel=3,
            )


def chance_bound(share: float, count: int) -> float:
    """Return the accuracy of guessing plus two standard errors; see `is_near_chance`."""
    return share + 2 * math.sqrt(share * (1 - share) / count)


def is_near_chance(accuracy: float, share: float, count: int) -> bool:
    """Return whether an accuracy is at most two standard errors above guessing.

    Args:
        accuracy: share of right answers, such as test_accuracy of the records.
        share: share of the largest class, which guessing reaches.
        count: number of samples that the accuracy was measured on.

    Example:
        >>> is_near_chance(0.53, share=0.5, count=800), is_near_chance(0.6, share=0.5, count=800)
        (True, False)
    """
    return share < 1 and float(accuracy) <= chance_bound(share, count)


def train(
    network: str,
    data: Data,
    part: str = "target",
    config: TrainingConfig | None = None,
    *,
    options: dict[str, Any] | None = None,
    term: Term | None = None,
    cache: bool = True,
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train a network on one part of a data set, or reuse the stored run with these arguments.

    Every random choice follows from the seed and the step number. So a run that was killed at any
    moment ends with the same weights as one that was not: bit for bit on a CPU with the same number
    of threads.

    Args:
        network: name for `build_network`. Trainings of "module:function" are never stored.
        data: result of `load_dataset`.
        part: name of the part to train on.
        config: how it is trained.
        options: options of the architecture.
        term: added to the loss, such as a `Penalty`.
        cache: False trains again, in a folder that vanishes with the returned object.
        progress: whether to show a bar with the time left, after 3 seconds.
        **settings: settings of `TrainingConfig`, in place of those of `config`.

    Raises:
        ValueError: for an unknown name, an impossible value, or data that do not fit the network.
        FloatingPointError: if the loss becomes NaN or infinite.
    """
    entry = registry.lookup(network)
    samples = data.part(part)
    if entry.kind != data.kind:
        raise ValueError(
            f'network "{network}" takes {entry.kind}s, but data set "{data.name}" holds '
            f"{data.kind}s; choose one of " + ", ".join(registry.registered(data.kind))
        )
    if entry.origin == "pretrained":
        _check_preprocessing(network, data)
    optimizer = "sgd" if entry.kind == "image" else "adamw"
    config = (config or TrainingConfig()).changed(**settings)
    config = config.filled(optimizer, entry.learning_rate)
    spec = {**data.spec, **(options or {})}

    def build() -> nn.Module:
        return registry.build_network(network, seed=config.seed, **spec)

    key = {"network": network, "options": spec, "dtype": str(torch.get_default_dtype())}
    if entry.origin == "pretrained":
        key["weights"] = registry.identity(build().get_submodule("model"))
    stored = entry.origin != "function"
    task = Task(network, build, samples, {"test": data.part("test")}, classification, term)
    title = f"{network} on {part} of {data.name}"
    run = TrainingRun(config, task, key, title, stored=stored)
    if not cache or not stored:
        run.forget()
    run.compute(progress)
    run.warn_near_chance()
    return run


def _check_preprocessing(network: str, data: Data) -> None:
    """Refuse data that were prepared for another network than a pretrained one."""
    expected = registry.data_options(network)
    if data.kind == "text":
        fits = data.tokenizer.name_or_path == str(local_folder(network) or network)
    else:
        part = data.part("target")
        statistics = torch.tensor(expected["statistics"])
        fits = isinstance(part, ImagePart) and torch.equal(part.statistics, statistics)
    if not fits:
        raise ValueError(
            f'network "{network}" has its own preprocessing, and data set "{data.name}" was loaded '
            f'with another; use load_dataset("{data.name}", ..., **data_options("{network}"))'
        )
