"""Training with checkpoints: stopped at any moment, resumed with the same numbers, done once."""

import contextlib
import dataclasses
import errno
import inspect
import json
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
from torch import nn

from symgen.data.datasets import Data
from symgen.data.hub import resolve
from symgen.files import atomic, cache_folder
from symgen.fingerprints import code_fingerprint, fingerprint
from symgen.models import builders, registry
from symgen.models.builders import is_builder
from symgen.models.checkpoints import Store
from symgen.models.config import TrainingConfig, configured
from symgen.models.cost import Estimate, measure
from symgen.models.loop import Loop, Task, Term, classification, make_accelerator
from symgen.storage import fetch


class NearChanceWarning(UserWarning):
    """A trained network classifies its own training samples no better than guessing would."""


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
) -> "TrainingRun":
    """Train a network on one part of a data set, or take up the stored run with these arguments.

    The same loop runs on a CPU, on one GPU, and on several by ``accelerate launch``. Every
    random choice follows from the seed and the step number, so that a run killed at any moment
    ends with the same weights as one that was not: bit for bit on a CPU with the same number
    of threads.

    Args:
        network: name for `build_network`.
        data: from `load_dataset`.
        part: name of the part to train on.
        config: how it is trained.
        options: of the network's architecture.
        term: added to the loss, such as a `Penalty`.
        cache: False trains again, in a folder that vanishes with the returned object.
        progress: show a bar on anything over 3 seconds.
        **settings: that differ from `config`, or from the defaults of `TrainingConfig`.

    Raises:
        ValueError: for an unknown name or impossible value.
        MemoryError: if the training does not fit in memory, with the numbers.
        OSError: if the checkpoints do not fit on the disk, with the numbers.
        FloatingPointError: if the loss stops being a number.
    """
    run = _prepared(network, data, part, config, options or {}, settings, term)
    run.compute(cache, progress)
    run.warn_near_chance()
    return run


def estimate(network: str, data: Data, part: str = "target", **settings: Any) -> Estimate:
    """Return what `train` with the same arguments will take: minutes, memory and disk."""
    run = _prepared(network, data, part, None, settings.pop("options", {}), settings)
    return measure(run.config, run.task, run.store)


def _prepared(
    network: str, data: Data, part: str, config: TrainingConfig | None, options: dict,
    settings: dict[str, Any], term: Term | None = None,
) -> "TrainingRun":  # fmt: skip
    line, chosen = registry.lookup(network), data.part(part)
    if line.kind != data.kind:
        raise ValueError(
            f'network "{network}" takes {line.kind}s, but data set "{data.name}" holds '
            f"{data.kind}s; choose one of " + ", ".join(registry.registered(data.kind))
        )
    own = getattr(data.tokenizer, "name_or_path", None)
    known = network in registry.registered() or is_builder(network)
    if not known and own != resolve(network):
        raise ValueError(
            f'network "{network}" was trained with its own tokenizer, but data set "{data.name}" '
            f'was loaded with another; load it with tokenizer="{network}"'
        )
    optimizer = "sgd" if line.kind == "image" else "adamw"
    config = configured(config, settings).filled(optimizer, line.learning_rate)
    spec = {**data.spec, **options}

    def build() -> nn.Module:
        return registry.build_network(network, seed=config.seed, **spec)

    task = Task(network, build, chosen, {"test": data.part("test")}, classification, term)
    key = {"network": [network, spec, builder_identity(network, build)]}
    key |= {"term": term.key} if term else {}
    return TrainingRun(config, task, key, {"data": data.name, "part": part})


def builder_identity(network: str, build: Callable[[], nn.Module]) -> Any:
    """Identify the code of an architecture, or what was trained before.

    Args:
        network: its name.
        build: builds it; called for weights that come from elsewhere.
    """
    if is_builder(network) and network not in registry.registered():
        return builders.identity(network, build())
    if network not in registry.registered():
        return registry.identity(build().model)
    builder = registry.lookup(network).build
    if (getattr(builder, "__module__", None) or "").startswith("symgen."):
        return code_fingerprint(registry.untrained, builder)
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(builder)
    return network


class TrainingRun:
    """A stored training: checkpoints, and what was measured at each.

    Attributes:
        config: how it was trained.
        task: what was trained.
        steps: numbers of the checkpoints, 0 being the untrained network.
        network: its name.
        fingerprint: of everything that decides the result.
        folder: of the checkpoints.
        tokenizer: of a language model, else None.
    """

    def __init__(
        self,
        config: TrainingConfig,
        task: Task,
        key: dict,
        about: dict,
        finish: Callable[[nn.Module], nn.Module] = lambda model: model,
        tokenizer: Any = None,
    ):
        self.config, self.task, self._about = config, task, about
        self.network, self.tokenizer, self._finish = task.name, tokenizer, finish
        self.steps = list(config.steps(len(task.part)))
        self.fingerprint = fingerprint({
            **key, "config": config, "steps": self.steps, "part": task.part.fingerprint,
            "measured": {name: part.fingerprint for name, part in task.measured.items()},
            "code": code_fingerprint(Loop, task.objective, type(task.part)),
        })  # fmt: skip
        self.folder = cache_folder() / "training" / self.fingerprint

    def __repr__(self) -> str:
        return (
            f"TrainingRun({self.network} on {self._about['part']} of {self._about['data']}, "
            f"{self.steps[-1]} steps, {len(self.steps)} checkpoints, {self.fingerprint})"
        )

    @property
    def records(self) -> pd.DataFrame:
        """One row a checkpoint: step, epoch, and loss and accuracy on training and test samples.

        Losses are mean cross-entropies in nats, measured in eval mode on samples that are not
        augmented.
        """
        if self.store.missing():  # damaged since
            self.compute()
        return pd.DataFrame([self.store.record(step) for step in self.steps])

    def key(self, step: int = -1) -> dict[str, Any]:
        """Return what identifies the network after so many steps, for what is stored about it.

        Args:
            step: one of `steps`, or -1 for the last.
        """
        return {"run": self.fingerprint, "step": self.steps[-1] if step == -1 else step}

    def load(self, step: int = -1) -> nn.Module:
        """Return the network as it was after so many steps, in eval mode on `registry.device()`.

        A checkpoint that does not match its checksum is reported and computed again.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for a step without checkpoint, with the nearest that has one.
        """
        step = self.steps[-1] if step == -1 else step
        if step not in self.steps:
            closest = min(self.steps, key=lambda s: abs(s - step))
            raise ValueError(
                f"there is no checkpoint at step {step}; the nearest is {closest}, and there are "
                f"{', '.join(map(str, self.steps))} (-1 is the last)"
            )
        path = self.store.path(step)
        if (found := fetch(path)) is None:
            self._lock()  # which moves the run to where the damaged file can be replaced
            path = self.store.path(step)
            self.store.discard(step)
            self.compute()
            found = fetch(path)
        network = registry.load_weights(self.task.build(), found[0], f"in {path}")
        return self._finish(network).to(registry.device()).eval()

    def warn_near_chance(self) -> None:
        """Warn where the last checkpoint knows no more of its training samples than their classes.

        Its accuracy is then within two standard errors of the share of the largest class.
        """
        labels = self.task.part.labels
        share = float(labels.bincount().max()) / len(labels)
        count = min(len(labels), self.config.evaluation_size)
        found = self.store.record(self.steps[-1])["train_accuracy"]
        if share < 1 and found <= share + 2 * math.sqrt(share * (1 - share) / count):
            warnings.warn(
                f"{self!r} ends near chance: it classifies {found:.0%} of its training samples "
                f"right, and guessing gives {share:.0%}. Nothing that is measured on it tells of "
                "learning; train for more epochs, or with another learning_rate or seed",
                NearChanceWarning,
                stacklevel=3,
            )

    @property
    def store(self) -> Store:
        """Where its checkpoints lie."""
        return Store(self.folder, tuple(self.steps))

    def compute(self, cache: bool = True, progress: bool = True) -> None:
        """Train up to the last checkpoint that is missing, if any is.

        Args:
            cache: False trains in a folder that vanishes with the run.
            progress: see `train`.
        """
        if not cache:
            self._forget_at_end()
        accelerator = make_accelerator()
        # What is there is only read, so that it can lie where nobody may write. Processes that
        # train together look later, when none of them can be ahead of the others.
        if accelerator.num_processes == 1 and not self.store.missing():
            return
        # Only one program trains a run; another waits, and then finds it done.
        with self._lock() if accelerator.is_main_process else contextlib.nullcontext():
            accelerator.wait_for_everyone()
            if self.store.missing():
                self._train(accelerator.is_main_process, progress)
            accelerator.wait_for_everyone()

    def _lock(self) -> filelock.BaseFileLock:
        """Return the lock of the run's folder, which moves where it cannot be written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / ".lock")
            with lock:
                return lock
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            warnings.warn(
                f"{self.folder} cannot be written to ({error.strerror}): this training is kept "
                "until the program ends. Point SYMGEN_CACHE to a folder of yours to keep it",
                stacklevel=4,
            )
            self._forget_at_end()
            return filelock.FileLock(self.folder / ".lock")

    def _forget_at_end(self) -> None:
        """Keep the run in a folder that vanishes with it."""
        self.folder = Path(tempfile.mkdtemp(prefix="symgen-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def _train(self, main: bool, progress: bool) -> None:
        expected = measure(self.config, self.task, self.store)
        expected.check()
        if main:
            self._describe()
            if expected.minutes > 1:
                print(f"{self!r}: {expected}")
        title = f"{self.network} on {self._about['part']}" if progress else None
        Loop(self.config, self.task, self.store, title).run()

    def _describe(self) -> None:
        """Leave a readable account of the run beside its checkpoints."""
        said = {**self._about, "network": self.network, **dataclasses.asdict(self.config)}
        with atomic(self.folder / "run.json") as temporary:
            temporary.write_text(json.dumps(said, indent=1, default=str), encoding="utf-8")
