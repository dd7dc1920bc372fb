"""Training with checkpoints: stopped at any moment, resumed with the same numbers, done once."""

import contextlib
import dataclasses
import errno
import inspect
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen import networks
from symgen.data import Data
from symgen.parts import LargeImagePart, Part
from symgen.provenance import (
    cache_folder, code_fingerprint, fetch, fingerprint, store,
)  # fmt: skip
from symgen.sources import nearest

# Seconds between stores of the resume state where checkpoints are further apart.
RESUME_SECONDS = 60
MIXED = ("no", "bf16", "fp16")
SCHEDULES = ("cosine", "linear", "constant")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the numbers of a run, apart from the data."""

    network: str
    options: dict
    spec: dict
    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    schedule: str
    steps: tuple[int, ...]
    total: int
    augment: bool
    mixed_precision: str
    evaluation_size: int


def checkpoint_steps(total: int, count: int) -> list[int]:
    """Return the steps to keep: 0, the last, and others dense early and sparse late.

    Args:
        total: number of steps of the whole training.
        count: number of checkpoints after step 0; fewer where there are fewer steps.

    Example:
        >>> checkpoint_steps(1000, 7)
        [0, 1, 3, 10, 32, 100, 316, 1000]
    """
    count = min(count, total)
    points = count
    while len(steps := np.unique(np.geomspace(1, total, points).round().astype(int))) < count:
        points += 1
    return [0, *steps.tolist()]


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
    evaluation_size: int = 1000,
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
        run._temporary = tempfile.TemporaryDirectory(prefix="symgen-")
        run.folder = Path(run._temporary.name)
    run.progress = progress
    run.folder.mkdir(parents=True, exist_ok=True)
    # Only one process trains a run; others wait, and then find it done.
    with run.lock():
        if run.missing():
            run.compute()
    return run


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
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
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
        "code": code_fingerprint("data", "parts", "networks", "training"),
        # A network registered elsewhere is not covered by the fingerprint of this package.
        "builder": _source(line.build),
    }
    identity = fingerprint(key)
    return TrainingRun(
        recipe, chosen, data.part("test"), identity, cache_folder() / "training" / identity,
        {"data": data.name, "part": part},
    )  # fmt: skip


def _source(build: Any) -> str:
    try:
        return inspect.getsource(build)
    except (OSError, TypeError):
        return repr(build)


class TrainingRun:
    """A stored training: checkpoints, and what was measured at each.

    Attributes:
        steps: numbers of the checkpoints, 0 being the untrained network.
        network: name in the registry.
        fingerprint: of everything that decides the result.
        folder: of the checkpoints.
    """

    def __init__(
        self, recipe: Recipe, part: Part, test: Part, identity: str, folder: Path, about: dict
    ):
        self.recipe, self.part, self.test, self.about = recipe, part, test, about
        self.steps, self.network = list(recipe.steps), recipe.network
        self.fingerprint, self.folder, self.progress = identity, folder, False

    def __repr__(self) -> str:
        return (
            f"TrainingRun({self.network} on {self.about['part']} of {self.about['data']}, "
            f"{self.recipe.total} steps, {len(self.steps)} checkpoints, {self.fingerprint})"
        )

    @property
    def records(self) -> pd.DataFrame:
        """One row a checkpoint: step, epoch, and loss and accuracy on training and test samples.

        Losses are mean cross-entropies in nats, measured in eval mode on samples that are not
        augmented.
        """
        return pd.DataFrame([self._record(step) for step in self.steps])

    def load(self, step: int = -1) -> nn.Module:
        """Return the network as it was after so many steps, in eval mode on `networks.device()`.

        A checkpoint that does not match its checksum is reported and computed again.

        Args:
            step: one of `steps`, or -1 for the last.
        """
        step = self.steps[-1] if step == -1 else step
        if step not in self.steps:
            closest = min(self.steps, key=lambda s: abs(s - step))
            raise ValueError(
                f"there is no checkpoint at step {step}; the nearest is {closest}, and there are "
                f"{', '.join(map(str, self.steps))} (-1 is the last)"
            )
        found = fetch(self._path(step))
        if found is None:
            with self.lock():
                self._path(step).unlink(missing_ok=True)
                self.compute()
            found = fetch(self._path(step))
        model = networks.load_weights(self.build(), found[0], f"at step {step} in {self.folder}")
        return model.to(networks.device()).eval()

    def build(self) -> nn.Module:
        """Return the untrained network."""
        recipe = self.recipe
        return networks.build_network(
            recipe.network, seed=recipe.seed, **{**recipe.spec, **recipe.options}
        )

    def lock(self) -> contextlib.AbstractContextManager:
        """Return the lock that keeps other processes from training the same run."""
        if _accelerator().is_main_process:
            return filelock.FileLock(self.folder / ".lock")
        return contextlib.nullcontext()

    def missing(self) -> list[int]:
        """Return the steps whose checkpoint is not stored."""
        return [step for step in self.steps if not self._stored(step)]

    def _stored(self, step: int) -> bool:
        return self._path(step).exists() and self._record(step) is not None

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def _record(self, step: int) -> dict | None:
        try:
            text = self._path(step).with_suffix(".json").read_text(encoding="utf-8")
            return json.loads(text)["record"]
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def compute(self) -> None:
        """Train up to the last checkpoint that is missing, from the last stored state."""
        _Loop(self).run()


class _Loop:
    """The training loop of one run."""

    def __init__(self, run: TrainingRun):
        self.stored, self.recipe, self.part = run, run.recipe, run.part
        self.accelerator = _accelerator()
        self.device = self.accelerator.device
        self.layout = torch.channels_last if run.build().input_shape else torch.contiguous_format
        self.model = run.build().to(memory_format=self.layout)
        self.wrapped = self.accelerator.prepare(self.model)
        recipe = self.recipe
        # Weights that shape distances decay; biases and normalisation do not.
        groups = [
            {"params": [p for p in self.model.parameters() if p.ndim >= 2]},
            {"params": [p for p in self.model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        shared = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
        if recipe.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True, **shared)
        else:
            self.optimizer = torch.optim.AdamW(groups, **shared)
        half = recipe.mixed_precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)
        self.autocast_type = torch.float16 if half else torch.bfloat16
        self.per_epoch = recipe.total // recipe.epochs

    def run(self) -> None:
        from tqdm.auto import tqdm

        run, recipe, main = self.stored, self.recipe, self.accelerator.is_main_process
        cuda = [torch.cuda.current_device()] if self.device.type == "cuda" else []
        last = max(run.missing())
        with torch.random.fork_rng(devices=cuda), _full_disk(run.folder):
            start = self.restore()
            bar = tqdm(
                total=last, initial=start, delay=3, unit="step", disable=not (run.progress and main),
                desc=f"{recipe.network} on {run.about['part']}",
            )  # fmt: skip
            with bar, contextlib.closing(self.batches(start, last)) as batches:
                if start == 0:
                    self.checkpoint(0)
                saved = time.monotonic()
                for step, (x, y) in enumerate(batches, start + 1):
                    loss = self.step(step, x, y)
                    bar.update()
                    if step in recipe.steps:
                        record = self.checkpoint(step)
                        if record and not bar.disable:
                            bar.set_postfix(
                                loss=f"{record['train_loss']:.3f}",
                                accuracy=f"{record['test_accuracy']:.3f}",
                                refresh=False,
                            )
                    if step in recipe.steps or step % 50 == 0:
                        self.check(step, loss)
                    if step in recipe.steps or time.monotonic() - saved > RESUME_SECONDS:
                        self.save(step)
                        saved = time.monotonic()
            self.accelerator.wait_for_everyone()
            if main:
                for path in run.folder.glob("resume-*"):
                    path.unlink(missing_ok=True)

    def batches(self, start: int, last: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batches of the steps after `start`, each a function of seed and step."""
        recipe, rank = self.recipe, self.accelerator.process_index
        order: dict[int, list[Tensor]] = {}

        def make(step: int) -> tuple[Any, Tensor]:
            epoch, place = divmod(step, self.per_epoch)
            if epoch not in order:
                order.clear()
                generator = _generator(recipe.seed, 1, epoch)
                shuffled = torch.randperm(len(self.part), generator=generator)
                # Batches of equal size: a last one of one sample would break batch norm.
                order[epoch] = shuffled.tensor_split(self.per_epoch)
            index = order[epoch][place][rank :: self.accelerator.num_processes]
            if recipe.augment:
                return self.part.augment(index, _generator(recipe.seed, 2, step, rank))
            return self.part.batch(index)

        if not isinstance(self.part, LargeImagePart):
            yield from map(make, range(start, last))
            return
        # Decoding the next batch overlaps with the step on this one.
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(make, start)
            for step in range(start, last):
                ready = coming.result()
                if step + 1 < last:
                    coming = pool.submit(make, step + 1)
                yield ready

    def step(self, step: int, x: Any, y: Tensor) -> Tensor:
        """Do one update, so that `step` have been done; return the loss of the batch."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _rate(step, recipe.total, recipe.schedule)
        # For dropout: what it draws depends on the step alone.
        torch.manual_seed(_seed(recipe.seed, 3, step, self.accelerator.process_index))
        self.model.train()
        with torch.autocast(
            self.device.type, self.autocast_type, enabled=recipe.mixed_precision != "no"
        ):
            logits = self.wrapped(_move(x, self.device, self.layout))
        loss = F.cross_entropy(logits.float(), y.to(self.device))
        self.scaler.scale(loss).backward()
        if recipe.optimizer == "adamw":
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def check(self, step: int, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {step} of {self.recipe.network} with "
                f"learning_rate={self.recipe.learning_rate}; try a tenth of it"
            )

    def checkpoint(self, step: int) -> dict | None:
        """Measure and store the network after `step` steps, unless that is stored already."""
        run = self.stored
        if not self.accelerator.is_main_process or run._stored(step):
            return None
        record: dict[str, float] = {"step": step, "epoch": step / self.per_epoch}
        for name, part in (("train", run.part), ("test", run.test)):
            loss, accuracy = evaluate(self.model, part, self.recipe.evaluation_size)
            record |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        store(run._path(step), self.model.state_dict(), {"record": record})
        return record

    def save(self, step: int) -> None:
        """Store what it takes to go on after `step`, then drop the state before it."""
        if not self.accelerator.is_main_process or step == self.recipe.total:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in values.items() if v is not None}
        folder = self.stored.folder
        older = list(folder.glob("resume-*"))
        # A new name each time: a state that is being written never replaces the one before it.
        store(
            folder / f"resume-{step:08d}.safetensors", tensors,
            {"step": step, "scaler": self.scaler.state_dict()},
        )  # fmt: skip
        for path in older:
            if path.stem != f"resume-{step:08d}":
                path.unlink(missing_ok=True)

    def restore(self) -> int:
        """Load the last whole state that is stored; return its step, 0 if there is none."""
        run = self.stored
        target = max(run.missing())
        for path in sorted(run.folder.glob("resume-*.safetensors"), reverse=True):
            found = fetch(path)
            # Checkpoints before the state can only be had by starting again.
            if found is None or not min(run.missing()) >= found[1]["step"] <= target:
                continue
            tensors, info = found
            prefix = "model."
            weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            networks.load_weights(self.model, weights, f"in {path}")
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if not key.startswith(prefix):
                    _, i, name = key.split(".")
                    if value.ndim == 4:
                        value = value.contiguous(memory_format=self.layout)
                    state.setdefault(int(i), {})[name] = value
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
            if info["scaler"]:
                self.scaler.load_state_dict(info["scaler"])
            return info["step"]
        return 0


@torch.inference_mode()
def evaluate(model: nn.Module, part: Part, size: int | None = None) -> tuple[float, float]:
    """Return mean cross-entropy (nats) and accuracy on a part, in eval mode, not augmented.

    Args:
        model: a classifier.
        part: of a data set.
        size: measure on so many samples, the same each time; None takes all.
    """
    index = torch.randperm(len(part), generator=_generator(0, 4))[: size or len(part)]
    where, training = next(model.parameters()).device, model.training
    layout = torch.channels_last if part.labels.numel() and _is_image(part) else None
    model.eval()
    loss = correct = 0.0
    for chunk in index.split(64 if isinstance(part, LargeImagePart) else 250):
        x, y = part.batch(chunk)
        logits, y = model(_move(x, where, layout)).float(), y.to(where)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
    model.train(training)
    return loss / len(index), correct / len(index)


def _is_image(part: Part) -> bool:
    return hasattr(part, "image")


def _move(x: Any, where: torch.device, layout: torch.memory_format | None) -> Any:
    if isinstance(x, Mapping):
        return {k: v.to(where) for k, v in x.items()}
    return x.to(where, memory_format=layout or torch.contiguous_format)


def _rate(step: int, total: int, schedule: str) -> float:
    """Return the share of the peak learning rate at a step, 1..total."""
    warm = max(1, round(0.05 * total))
    if step <= warm:
        return step / warm
    rest = (step - warm) / max(1, total - warm)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * rest))
    return 1 - rest if schedule == "linear" else 1.0


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(_seed(*numbers))


def _accelerator() -> Any:
    from accelerate import Accelerator

    # Half precision is done by torch alone: accelerate would leave it on when measuring.
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")


@contextlib.contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """Turn the ways in which a full disk shows itself into one error."""
    try:
        yield
    except Exception as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and "os error 28" not in str(error) and "os error 27" not in str(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: a checkpoint could not be written to {folder} ({error}). Nothing "
            "half-written is left; free some space or point SYMGEN_CACHE to another disk, and "
            "run again: the training goes on from its last checkpoint",
        ) from error
