"""The training loop: every random choice a function of the seed and the step number."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen.data.parts import ImagePart, LargeImagePart, Part
from symgen.literal import nearest
from symgen.models.checkpoints import Store, checkpoint_steps, full_disk
from symgen.models.registry import load_weights
from symgen.storage import fetch, store

# Seconds between stores of the resume state where checkpoints are further apart.
RESUME_SECONDS = 60
# Gradients longer than this are shortened to it. Without, single steps of momentum SGD reach
# norms of 100 and more, after which rounding decides whether a network diverges or dies.
CLIP = {"sgd": 2.0, "adamw": 1.0}
WEIGHT_DECAY = {"sgd": 5e-4, "adamw": 0.01}
SCHEDULES = ("cosine", "linear", "constant")
MIXED = ("no", "bf16", "fp16")
# Logits and labels to the summed cross-entropy (nats), the number of right answers, and of all.
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a network is trained, whatever it is. None stands for what suits the network.

    Attributes:
        epochs: passes over the training samples.
        batch_size: samples a step, over all processes together.
        learning_rate: peak value; by default that of the registry.
        optimizer: "sgd" (momentum 0.9; default for images) or "adamw" (default for texts).
        weight_decay: default 5e-4 for sgd, 0.01 for adamw.
        schedule: "cosine", "linear" or "constant", each after a warm-up of 5 % of the steps.
        checkpoints: how many, log-spaced over the steps; or the steps themselves. The
            untrained network (step 0) and the last step are always kept.
        augment: whether training samples are augmented.
        mixed_precision: "no", "bf16" or "fp16".
        evaluation_size: number of samples of each kind that records are measured on; the same
            ones at every checkpoint.
        lora: rank of low-rank adapters, for language models; 0 trains all weights.
        seed: of the initial weights, the order of samples, augmentation and dropout.

    Raises:
        ValueError: for an unknown name or impossible value.
    """

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float | None = None
    optimizer: str | None = None
    weight_decay: float | None = None
    schedule: str = "cosine"
    checkpoints: int | tuple[int, ...] = 20
    augment: bool = True
    mixed_precision: str = "no"
    evaluation_size: int = 800
    lora: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ("optimizer", ("sgd", "adamw", None)),
            ("schedule", SCHEDULES),
            ("mixed_precision", MIXED),
        ):
            if (value := getattr(self, name)) not in known:
                listed = ", ".join(filter(None, known))
                raise ValueError(
                    f'{name}="{value}" is unknown; expected {listed}.{nearest(value, known)}'
                )
        if self.mixed_precision == "fp16" and not torch.cuda.is_available():
            raise ValueError('mixed_precision="fp16" needs a GPU; use "bf16" or "no" on a CPU')
        for name in ("epochs", "batch_size", "evaluation_size"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if isinstance(self.checkpoints, int) and self.checkpoints < 1:
            raise ValueError(
                f"checkpoints={self.checkpoints}: expected at least 1, the trained network"
            )

    def filled(self, optimizer: str, learning_rate: float) -> "TrainingConfig":
        """Return the same with what suits a network in place of None."""
        optimizer = self.optimizer or optimizer
        rate, decay = self.learning_rate, self.weight_decay
        return dataclasses.replace(
            self,
            optimizer=optimizer,
            learning_rate=learning_rate if rate is None else rate,
            weight_decay=WEIGHT_DECAY[optimizer] if decay is None else decay,
        )

    def steps(self, samples: int) -> tuple[int, ...]:
        """Return the steps that are kept of a training on so many samples, the last included."""
        total = self.epochs * math.ceil(samples / self.batch_size)
        if isinstance(self.checkpoints, int):
            return tuple(checkpoint_steps(total, self.checkpoints))
        steps = sorted({0, total, *map(int, self.checkpoints)})
        if steps[0] < 0 or steps[-1] > total:
            raise ValueError(
                f"checkpoints={[*self.checkpoints]}: this training has the steps 0 to {total} "
                f"({self.epochs} epochs of {total // self.epochs})"
            )
        return tuple(steps)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, on what, and measured on what.

    Attributes:
        name: of the network, for messages.
        build: returns the network as it is to begin with.
        part: to train on.
        measured: further samples to measure on, by the name they have in the records.
        objective: that is minimized.
    """

    name: str
    build: Callable[[], nn.Module]
    part: Part
    measured: Mapping[str, Part]
    objective: Objective


def classification(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return summed cross-entropy, right answers and their number: one answer a sample."""
    loss = F.cross_entropy(logits, y, reduction="sum")
    return loss, (logits.argmax(-1) == y).sum(), torch.tensor(len(y), device=y.device)


def next_token(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same of every token after the first; labels below 0 do not count."""
    logits, wanted = logits[:, :-1], y[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    return loss, (logits.argmax(-1) == wanted).sum(), (wanted >= 0).sum()


class Loop:
    """The training loop of one run.

    Args:
        config: without None; see `TrainingConfig.filled`.
        task: what is trained.
        checkpoints: where they are kept.
        title: shown by the progress bar; None shows none.
    """

    def __init__(
        self, config: TrainingConfig, task: Task, checkpoints: Store, title: str | None = None
    ):
        self.config, self.task, self.part = config, task, task.part
        self.stored, self.title = checkpoints, title
        self.total = checkpoints.steps[-1]
        self.per_epoch = self.total // config.epochs
        self.accelerator = make_accelerator()
        self.device = self.accelerator.device
        self.layout = _layout(self.part)
        self.model = task.build().to(self.device, memory_format=self.layout)
        self.wrapped = self.accelerator.prepare(self.model)
        own = [p for p in self.model.parameters() if p.requires_grad]
        # Weights that shape distances decay; biases and normalisation do not.
        groups = [
            {"params": [p for p in own if p.ndim >= 2]},
            {"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        shared = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True, **shared)
        else:
            self.optimizer = torch.optim.AdamW(groups, **shared)
        half = config.mixed_precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)
        self.autocast_type = torch.float16 if half else torch.bfloat16

    def run(self) -> None:
        """Train from the last stored state up to the last checkpoint that is missing."""
        from tqdm.auto import tqdm

        config, main = self.config, self.accelerator.is_main_process
        processes = self.accelerator.num_processes
        if len(self.part) // self.per_epoch < processes:
            raise ValueError(
                f"batch_size={config.batch_size} and {len(self.part)} samples make batches of "
                f"{len(self.part) // self.per_epoch}, too few for {processes} processes; give a "
                "larger batch_size, or start fewer processes"
            )
        cuda = [torch.cuda.current_device()] if self.device.type == "cuda" else []
        last = max(self.stored.missing())
        with torch.random.fork_rng(devices=cuda), full_disk(self.stored.folder):
            start = self.restore()
            bar = tqdm(
                total=last, initial=start, delay=3, unit="step", desc=self.title,
                disable=not (self.title and main),
            )  # fmt: skip
            with bar, contextlib.closing(self.batches(start, last)) as batches:
                if start == 0:
                    self.checkpoint(0)
                saved = time.monotonic()
                for step, (x, y) in enumerate(batches, start + 1):
                    loss = self.step(step, x, y)
                    bar.update()
                    if step in self.stored.steps:
                        record = self.checkpoint(step)
                        if record and not bar.disable:
                            bar.set_postfix(
                                loss=f"{record['train_loss']:.3f}",
                                accuracy=f"{record.get('test_accuracy', math.nan):.3f}",
                                refresh=False,
                            )
                    if step in self.stored.steps or step % 50 == 0:
                        self.check(step, loss)
                    if step in self.stored.steps or time.monotonic() - saved > RESUME_SECONDS:
                        self.save(step)
                        saved = time.monotonic()
            self.accelerator.wait_for_everyone()
            if main:
                self.stored.discard_resume()

    def batches(self, start: int, last: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batches of the steps after `start`, each a function of seed and step."""
        config, rank = self.config, self.accelerator.process_index
        order: dict[int, list[Tensor]] = {}

        def make(step: int) -> tuple[Any, Tensor]:
            epoch, place = divmod(step, self.per_epoch)
            if epoch not in order:
                order.clear()
                generator = _generator(config.seed, 1, epoch)
                shuffled = torch.randperm(len(self.part), generator=generator)
                # Batches of equal size: a last one of one sample would break batch norm.
                order[epoch] = shuffled.tensor_split(self.per_epoch)
            index = order[epoch][place][rank :: self.accelerator.num_processes]
            if config.augment:
                return self.part.augment(index, _generator(config.seed, 2, step, rank))
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
        config, mixed = self.config, self.config.mixed_precision != "no"
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * _rate(step, self.total, config.schedule)
        # For dropout: what it draws depends on the step alone.
        torch.manual_seed(_seed(config.seed, 3, step, self.accelerator.process_index))
        self.model.train()
        with torch.autocast(self.device.type, self.autocast_type, enabled=mixed):
            logits = self.wrapped(to_device(x, self.device, self.layout))
        loss, _, count = self.task.objective(logits.float(), y.to(self.device))
        # The mean over what all processes have, whose gradients are averaged afterwards.
        share = count * self.accelerator.num_processes
        if self.wrapped is not self.model:
            share = self.accelerator.reduce(count, "sum")
        loss = loss * self.accelerator.num_processes / share
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP[config.optimizer])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def check(self, step: int, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {step} of {self.task.name} with "
                f"learning_rate={self.config.learning_rate}; try a tenth of it"
            )

    def checkpoint(self, step: int) -> dict | None:
        """Measure and store the network after `step` steps, unless that is stored already."""
        if not self.accelerator.is_main_process or self.stored.has(step):
            return None
        record: dict[str, float] = {"step": step, "epoch": step / self.per_epoch}
        for name, part in {"train": self.part, **self.task.measured}.items():
            found = evaluate(self.model, part, self.config.evaluation_size, self.task.objective)
            record |= dict(zip((f"{name}_loss", f"{name}_accuracy"), found, strict=True))
        store(self.stored.path(step), self.model.state_dict(), {"record": record})
        return record

    def save(self, step: int) -> None:
        """Store what it takes to go on after `step`, then drop the state before it."""
        if not self.accelerator.is_main_process or step == self.total:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in values.items() if v is not None}
        # A new name each time: a state that is being written never replaces the one before it.
        path = self.stored.resume_path(step)
        store(path, tensors, {"step": step, "scaler": self.scaler.state_dict()})
        self.stored.discard_resume(keep=path)

    def restore(self) -> int:
        """Load the last whole state that is stored; return its step, 0 if there is none."""
        first = min(self.stored.missing())
        for path in self.stored.resume_paths():
            found = fetch(path)
            # Checkpoints before the state can only be had by starting again.
            if found is None or found[1]["step"] >= first:
                continue
            tensors, info = found
            prefix = "model."
            own = [key for key in tensors if key.startswith(prefix)]
            weights = {key.removeprefix(prefix): tensors.pop(key) for key in own}
            load_weights(self.model, weights, f"in {path}")
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
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
def evaluate(
    model: nn.Module,
    part: Part,
    size: int | None = None,
    objective: Objective = classification,
) -> tuple[float, float]:
    """Return mean cross-entropy (nats) and accuracy on a part, in eval mode, not augmented.

    Args:
        model: of the samples in the part.
        part: of a data set.
        size: measure on so many samples, the same each time; None takes all.
        objective: of its training.
    """
    index = torch.randperm(len(part), generator=_generator(0, 4))[: size or len(part)]
    where, training = next(model.parameters()).device, model.training
    model.eval()
    loss = correct = count = 0.0
    for chunk in index.split(part.chunk):
        x, y = part.batch(chunk)
        logits = model(to_device(x, where, _layout(part))).float()
        found = objective(logits, y.to(where))
        loss, correct, count = (
            a + b.item() for a, b in zip((loss, correct, count), found, strict=True)
        )
    model.train(training)
    return loss / count, correct / count


@torch.inference_mode()
def sample_losses(model: nn.Module, part: Part, size: int = 500) -> Tensor:
    """Return the cross-entropy (nats) of single samples of a part, in the mode the model is in.

    Args:
        model: of the samples in the part; one answer a sample.
        part: of a data set.
        size: how many samples at most; the same each time.
    """
    index = torch.randperm(len(part), generator=_generator(0, 4))[:size]
    where, found = next(model.parameters()).device, []
    for chunk in index.split(part.chunk):
        x, y = part.batch(chunk)
        logits = model(to_device(x, where, _layout(part))).float()
        found.append(F.cross_entropy(logits, y.to(where), reduction="none").cpu())
    return torch.cat(found)


def _layout(part: Part) -> torch.memory_format:
    # Convolutions run faster with channels last.
    return torch.channels_last if isinstance(part, ImagePart) else torch.contiguous_format


def to_device(x: Any, where: torch.device, layout: torch.memory_format) -> Any:
    """Return inputs, a tensor or a mapping of tensors, on a device."""
    if isinstance(x, Mapping):
        return {k: v.to(where) for k, v in x.items()}
    return x.to(where, memory_format=layout)


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


def make_accelerator() -> Any:
    """Return the object that knows the device and the processes taking part."""
    from accelerate import Accelerator

    # Half precision is done by torch alone: accelerate would leave it on when measuring.
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")
