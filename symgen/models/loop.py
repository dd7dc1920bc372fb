"""The training loop: every random choice a function of the seed and the step number."""

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen.data.parts import Part
from symgen.memory import reproducible_gpu
from symgen.models.batches import batches, generator, layout_of, seed_of, to_device
from symgen.models.checkpoints import Store, full_disk
from symgen.models.config import TrainingConfig
from symgen.storage import store

# Seconds between stores of the resume state where checkpoints are further apart.
RESUME_SECONDS = 60
# Gradients longer than this are shortened to it. Without, single steps of momentum SGD reach
# norms of 100 and more, after which rounding decides whether a network diverges or dies.
CLIP = {"sgd": 2.0, "adamw": 1.0}
# Logits and labels to the summed cross-entropy (nats), the number of right answers, and of all.
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Term:
    """What a training adds to its loss.

    It is a function of the step and the network alone, so that a resumed training ends as one that
    was not stopped.

    Attributes:
        key: what it depends on, its code included; for `fingerprint`.
    """

    key: Any

    def __call__(self, step: int, model: nn.Module) -> Tensor | None:
        """Return what is added to the loss of a step (from 1 on), in nats; None adds nothing."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, on what, and measured on what.

    Attributes:
        name: of the network, for messages.
        build: returns the network as it is to begin with.
        part: to train on.
        measured: further samples to measure on, by the name they have in the records.
        objective: that is minimized.
        term: that is minimized along with it.
    """

    name: str
    build: Callable[[], nn.Module]
    part: Part
    measured: Mapping[str, Part]
    objective: Objective
    term: Term | None = None


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
        self.layout = layout_of(self.part)
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
            start = self.stored.restore(self.model, self.optimizer, self.scaler)
            bar = tqdm(
                total=last, initial=start, delay=3, unit="step", desc=self.title,
                disable=not (self.title and main),
            )  # fmt: skip
            with bar, contextlib.closing(self.batches(start, last)) as coming:
                if start == 0:
                    self.checkpoint(0)
                saved = time.monotonic()
                for step, (x, y) in enumerate(coming, start + 1):
                    loss = self.step(step, x, y)
                    bar.update()
                    if step in self.stored.steps:
                        record = self.checkpoint(step)
                        if record and not bar.disable:
                            bar.set_postfix(
                                loss=f"{record['train_loss']:.3f}",
                                accuracy=f"{record['test_accuracy']:.3f}",
                                refresh=False,
                            )
                    if step in self.stored.steps or step % 50 == 0:
                        self.check(step, loss)
                    if step in self.stored.steps or time.monotonic() - saved > RESUME_SECONDS:
                        self.save(step)
                        saved = time.monotonic()
            self.accelerator.wait_for_everyone()
            if main:
                self.stored.discard_states()

    def batches(self, start: int, last: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield what this process has of the batches of some steps."""
        who, config = self.accelerator, self.config
        share = slice(who.process_index, None, who.num_processes)
        return batches(self.part, config, self.per_epoch, range(start, last), share)

    def step(self, step: int, x: Any, y: Tensor) -> Tensor:
        """Do one update, so that `step` have been done; return the loss of the batch."""
        config, mixed = self.config, self.config.mixed_precision != "no"
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * _rate(step, self.total, config.schedule)
        # For dropout: what it draws depends on the step alone.
        torch.manual_seed(seed_of(config.seed, 3, step, self.accelerator.process_index))
        self.model.train()
        with torch.autocast(self.device.type, self.autocast_type, enabled=mixed):
            logits = self.wrapped(to_device(x, self.device, self.layout))
        labels = to_device(y, self.device)
        loss, _, count = self.task.objective(logits.float(), labels)
        # The mean over what all processes have, whose gradients are averaged afterwards.
        share = count * self.accelerator.num_processes
        if self.wrapped is not self.model:
            share = self.accelerator.reduce(count, "sum")
        loss = loss * self.accelerator.num_processes / share
        if self.task.term and (added := self.task.term(step, self.model)) is not None:
            loss = loss + added
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
        model = recalibrated(self.model, self.part) if self.config.recalibrate else self.model
        for name, part in {"train": self.part, **self.task.measured}.items():
            found = evaluate(model, part, self.config.evaluation_size, self.task.objective)
            record |= dict(zip((f"{name}_loss", f"{name}_accuracy"), found, strict=True))
        store(self.stored.path(step), model.state_dict(), {"record": record})
        return record

    def save(self, step: int) -> None:
        """Store what it takes to go on after `step`."""
        if self.accelerator.is_main_process and step < self.total:
            self.stored.keep(step, self.model, self.optimizer, self.scaler)


@torch.no_grad()
def recalibrated(model: nn.Module, part: Part, size: int = 1000) -> nn.Module:
    """Return a network in eval mode whose batch norms have the statistics of some samples.

    Running statistics lag behind the weights, and before training they are 0 and 1 whatever the
    network computes, so that it is not the one that is trained.

    Args:
        model: left as it is, and returned where it has no batch norm with statistics.
        part: of the data it is trained on; not augmented.
        size: how many samples at most; the same ones each time.
    """
    if not any(map(_has_statistics, model.modules())):
        return model
    model = copy.deepcopy(model).eval()
    for norm in filter(_has_statistics, model.modules()):
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over batches
        norm.train()
    # Batches count alike, so they are of one size.
    count = min(size, len(part))
    for _ in _answers(model, part, max(count - count % part.chunk, min(count, part.chunk))):
        pass
    return model.eval()


def _has_statistics(module: nn.Module) -> bool:
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and module.running_mean is not None


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
    training = model.training
    model.eval()
    loss = correct = count = 0.0
    for found in starmap(objective, _answers(model, part, size)):
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
    found = [
        F.cross_entropy(logits, y, reduction="none").cpu()
        for logits, y in _answers(model, part, size)
    ]
    return torch.cat(found)


def _answers(model: nn.Module, part: Part, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits and labels of some samples, the same ones each time."""
    where = next(model.parameters()).device
    index = torch.randperm(len(part), generator=generator(0, 4))[:size]
    for chunk in index.split(part.chunk):
        x, y = part.batch(chunk)
        yield model(to_device(x, where, layout_of(part))).float(), to_device(y, where)


def _rate(step: int, total: int, schedule: str) -> float:
    """Return the share of the peak learning rate at a step, 1..total."""
    warm = max(1, round(0.05 * total))
    if step <= warm:
        return step / warm
    rest = (step - warm) / max(1, total - warm)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * rest))
    return 1 - rest if schedule == "linear" else 1.0


def make_accelerator() -> Any:
    """Return the object that knows the device and the processes taking part."""
    from accelerate import Accelerator

    reproducible_gpu(gradients=True)
    # Half precision is done by torch alone: accelerate would leave it on when measuring.
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")
