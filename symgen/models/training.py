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
from torch import nn

from symgen.data.datasets import Data
from symgen.data.images import ImagePart
from symgen.data.sources import local_folder
from symgen.models import registry
from symgen.models.config import TrainingConfig
from symgen.models.files import Files, chosen
from symgen.models.loop import Loop, Task, Term
from symgen.storage import VERSION, cache_folder, fingerprint, read_tensors, read_whole


class NearChanceWarning(UserWarning):
    """A trained network classifies its training samples no better than guessing."""


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
        self.compute()  # if files were damaged since
        return pd.DataFrame([self.files.record(step) for step in self.steps])

    def key(self, step: int = -1) -> dict[str, Any] | None:
        """Return the identity of the network after so many steps, for `storage.cached`.

        Args:
            step: one of `steps`, or -1 for the last.

        Returns:
            Settings, fingerprints of the data and the step; None if results must not be stored,
            because the code of a network of your own can change unseen.
        """
        return {**self._settings, "step": chosen(step, self.steps)} if self._stored else None

    def load(self, step: int = -1) -> nn.Module:
        """Return the network after so many steps, in eval mode on `symgen.device.device()`.

        A damaged checkpoint is reported and computed again.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for a step without checkpoint.
        """
        path = self.files.path(chosen(step, self.steps))
        key = self.files.key(path)
        found = read_tensors(path, key)
        if found is None:
            path.unlink(missing_ok=True)
            self.compute()
            found = read_whole(path, key)
        network = registry.load_weights(self.task.build(), found[0], f"in {path}")
        return registry.on_device(self._finish(network))

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
    task = Task(network, build, samples, {"test": data.part("test")}, term)
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
