"""Training with checkpoints: stopped at any moment, resumed with the same numbers, done once."""

import contextlib
import errno
import inspect
import json
import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
from torch import Tensor, nn

from symgen import networks
from symgen.checkpoints import Recipe, Store, checkpoint_steps
from symgen.data import Data
from symgen.estimates import Estimate, measure
from symgen.loop import Loop, build, make_accelerator
from symgen.parts import Part
from symgen.provenance import atomic, cache_folder, code_fingerprint, fetch, fingerprint
from symgen.sources import nearest

__all__ = ["Estimate", "TrainingRun", "estimate", "train"]

MIXED = ("no", "bf16", "fp16")


class NearChanceWarning(UserWarning):
    """A trained network classifies its own training samples no better than guessing would."""


SCHEDULES = ("cosine", "linear", "constant")


def train(
    network: str,
    data: Data,
    part: str = "target",
    seed: int = 0,
    epochs: int = 30,
    batch_size: int = 64,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    weight_decay: float | None = None,
    schedule: str = "cosine",
    checkpoints: int | Sequence[int] = 20,
    augment: bool = True,
    mixed_precision: str = "no",
    cache: bool = True,
    progress: bool = True,
    options: Mapping[str, Any] | None = None,
    evaluation_size: int = 800,
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
        seed: of the initial weights, the order of samples, augmentation and dropout.
        epochs: passes over the part.
        batch_size: samples a step, over all processes together.
        learning_rate: peak value; by default that of the registry.
        optimizer: "sgd" (momentum 0.9; default for images) or "adamw" (default for texts).
        weight_decay: default 5e-4 for sgd, 0.01 for adamw.
        schedule: "cosine", "linear" or "constant", each after a warm-up of 5 % of the steps.
        checkpoints: how many, log-spaced over the steps; or the steps themselves. The
            untrained network (step 0) and the last step are always kept.
        augment: whether training samples are augmented.
        mixed_precision: "no", "bf16" or "fp16".
        cache: False trains again, in a folder that vanishes with the returned object.
        progress: show a bar on anything over 3 seconds.
        options: of the network's architecture.
        evaluation_size: number of training and of test samples that records are measured on;
            the same ones at every checkpoint.

    Raises:
        ValueError: for an unknown name or impossible value.
        MemoryError: if the training does not fit in memory, with the numbers.
        OSError: if the checkpoints do not fit on the disk, with the numbers.
        FloatingPointError: if the loss stops being a number.
    """
    run = _prepare(**{k: v for k, v in locals().items() if k not in ("cache", "progress")})
    if not cache:
        run._forget_at_end()
    run._compute(progress)
    run.warn_near_chance()
    return run


def estimate(network: str, data: Data, part: str = "target", **arguments: Any) -> Estimate:
    """Return what `train` with the same arguments will take: minutes, memory and disk.

    Args:
        network: as in `train`.
        data: as in `train`.
        part: as in `train`.
        **arguments: as in `train`.
    """
    known = inspect.signature(train).parameters
    for name in arguments:
        if name not in known:
            raise ValueError(f"train has no argument {name}.{nearest(name, known)}")
    defaults = {k: v.default for k, v in known.items() if v.default is not v.empty}
    given = {**defaults, **arguments, "network": network, "data": data, "part": part}
    run = _prepare(**{k: v for k, v in given.items() if k not in ("cache", "progress")})
    return measure(run.recipe, run.part, run.test, run.folder)


def _prepare(
    network: str, data: Data, part: str, seed: int, epochs: int, batch_size: int,
    learning_rate: float | None, optimizer: str | None, weight_decay: float | None,
    schedule: str, checkpoints: int | Sequence[int], augment: bool, mixed_precision: str,
    options: Mapping[str, Any] | None, evaluation_size: int,
) -> "TrainingRun":  # fmt: skip
    line, chosen = networks.lookup(network), data.part(part)
    if line.kind != data.kind:
        raise ValueError(
            f'network "{network}" takes {line.kind}s, but data set "{data.name}" holds '
            f"{data.kind}s; choose one of "
            + ", ".join(k for k, v in networks.NETWORKS.items() if v.kind == data.kind)
        )
    own = data.identity.get("tokenizer")
    if network not in networks.NETWORKS and line.kind == "text" and own != network:
        raise ValueError(
            f'network "{network}" was trained with its own tokenizer, but data set "{data.name}" '
            f'was loaded with another; load it with tokenizer="{network}"'
        )
    optimizer = optimizer or ("sgd" if line.kind == "image" else "adamw")
    for name, value, known in (
        ("optimizer", optimizer, ("sgd", "adamw")),
        ("schedule", schedule, SCHEDULES),
        ("mixed_precision", mixed_precision, MIXED),
    ):
        if value not in known:
            raise ValueError(
                f'{name}="{value}" is unknown; expected {", ".join(known)}.{nearest(value, known)}'
            )
    if mixed_precision == "fp16" and networks.device().type == "cpu":
        raise ValueError('mixed_precision="fp16" needs a GPU; use "bf16" or "no" on a CPU')
    counts = {"epochs": epochs, "batch_size": batch_size, "evaluation_size": evaluation_size}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")
    if learning_rate is None:
        learning_rate = line.learning_rate
    if weight_decay is None:
        weight_decay = 5e-4 if optimizer == "sgd" else 0.01
    total = epochs * math.ceil(len(chosen) / batch_size)
    if isinstance(checkpoints, int):
        if checkpoints < 1:
            raise ValueError(f"checkpoints={checkpoints}: expected at least 1, the trained network")
        steps = checkpoint_steps(total, checkpoints)
    else:
        steps = sorted({0, total, *(int(step) for step in checkpoints)})
        if steps[0] < 0 or steps[-1] > total:
            raise ValueError(
                f"checkpoints={list(checkpoints)}: this training has the steps 0 to {total} "
                f"({epochs} epochs of {total // epochs})"
            )
    recipe = Recipe(
        network, dict(options or {}), data.spec, seed, epochs, batch_size, learning_rate,
        optimizer, weight_decay, schedule, tuple(steps), total, augment, mixed_precision,
        evaluation_size,
    )  # fmt: skip
    key = {
        "recipe": recipe,
        "data": [data.name, data.identity.get("revision"), chosen.fingerprint],
        "test": data.part("test").fingerprint,
        "code": code_fingerprint("parts", "architectures", "networks", "loop"),
        "builder": _builder(recipe),
    }
    identity = fingerprint(key)
    return TrainingRun(
        recipe, chosen, data.part("test"), identity, cache_folder() / "training" / identity,
        {"data": data.name, "part": part},
    )  # fmt: skip


def _builder(recipe: Recipe) -> str:
    """Identify what the fingerprint of this package's code does not cover."""
    line = networks.NETWORKS.get(recipe.network)
    if line is None:
        # Trained before: its identity is its weights, whatever the hub calls them.
        return fingerprint(dict(build(recipe).state_dict()))
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(line.build)
    return recipe.network


class TrainingRun:
    """A stored training: checkpoints, and what was measured at each.

    Attributes:
        steps: numbers of the checkpoints, 0 being the untrained network.
        network: name in the registry.
        fingerprint: of everything that decides the result.
        folder: of the checkpoints.
        recipe: all settings of the training.
    """

    def __init__(
        self, recipe: Recipe, part: Part | list, test: Part | list, identity: str, folder: Path,
        about: dict,
    ):  # fmt: skip
        self.recipe, self.part, self.test, self._about = recipe, part, test, about
        self.steps, self.network = list(recipe.steps), recipe.network
        self.fingerprint, self.folder = identity, folder

    def __repr__(self) -> str:
        return (
            f"TrainingRun({self.network} on {self._about['part']} of {self._about['data']}, "
            f"{self.recipe.total} steps, {len(self.steps)} checkpoints, {self.fingerprint})"
        )

    @property
    def records(self) -> pd.DataFrame:
        """One row a checkpoint: step, epoch, and loss and accuracy on training and test samples.

        Losses are mean cross-entropies in nats, measured in eval mode on samples that are not
        augmented.
        """
        if self._store.missing():  # damaged since
            self._compute(progress=True)
        return pd.DataFrame([self._store.record(step) for step in self.steps])

    def key(self, step: int = -1) -> dict[str, Any]:
        """Return what identifies the network after so many steps, for what is stored about it.

        Args:
            step: one of `steps`, or -1 for the last.
        """
        return {"run": self.fingerprint, "step": self.steps[-1] if step == -1 else step}

    def load(self, step: int = -1) -> nn.Module:
        """Return the network as it was after so many steps, in eval mode on `networks.device()`.

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
        path = self._store.path(step)
        if (found := fetch(path)) is None:
            self._lock()  # which moves the run to where the damaged file can be replaced
            path = self._store.path(step)
            self._store.discard(step)
            self._compute(progress=True)
            found = fetch(path)
        return self._network(found[0], path).to(networks.device()).eval()

    def _network(self, weights: dict[str, Tensor], path: Path) -> nn.Module:
        """Return the network with the weights of a checkpoint."""
        return networks.load_weights(build(self.recipe), weights, f"in {path}")

    def warn_near_chance(self) -> None:
        """Warn where the last checkpoint knows no more of its training samples than their classes.

        Its accuracy is then within two standard errors of the share of the largest class.
        """
        share = float(self.part.labels.bincount().max()) / len(self.part)
        count = min(len(self.part), self.recipe.evaluation_size)
        found = self._store.record(self.steps[-1])["train_accuracy"]
        if share < 1 and found <= share + 2 * math.sqrt(share * (1 - share) / count):
            warnings.warn(
                f"{self!r} ends near chance: it classifies {found:.0%} of its training samples "
                f"right, and guessing gives {share:.0%}. Nothing that is measured on it tells of "
                "learning; train for more epochs, or with another learning_rate or seed",
                NearChanceWarning,
                stacklevel=3,
            )

    @property
    def _store(self) -> Store:
        return Store(self.folder, self.recipe.steps)

    def _compute(self, progress: bool) -> None:
        """Train up to the last checkpoint that is missing, if any is."""
        accelerator = make_accelerator()
        # What is there is only read, so that it can lie where nobody may write. Processes that
        # train together look later, when none of them can be ahead of the others.
        if accelerator.num_processes == 1 and not self._store.missing():
            return
        # Only one program trains a run; another waits, and then finds it done.
        with self._lock() if accelerator.is_main_process else contextlib.nullcontext():
            accelerator.wait_for_everyone()
            if self._store.missing():
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
                stacklevel=5,
            )
            self._forget_at_end()
            return filelock.FileLock(self.folder / ".lock")

    def _forget_at_end(self) -> None:
        """Keep the run in a folder that vanishes with it."""
        self.folder = Path(tempfile.mkdtemp(prefix="symgen-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def _train(self, main: bool, progress: bool) -> None:
        expected = measure(self.recipe, self.part, self.test, self.folder)
        expected.check()
        if main:
            self._describe()
            if expected.minutes > 1:
                print(f"{self!r}: {expected}")
        title = f"{self.network} on {self._about['part']}" if progress else None
        Loop(self.recipe, self.part, self.test, self._store, title).run()

    def _describe(self) -> None:
        """Leave a readable account of the run beside its checkpoints."""
        with atomic(self.folder / "run.json") as temporary:
            text = json.dumps({**self._about, **vars(self.recipe)}, indent=1, default=str)
            temporary.write_text(text, encoding="utf-8")
