"""The training loop: every random choice is a function of the seed and the step number."""

import contextlib
import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from symgen.data.images import ImagePart, LargeImagePart
from symgen.data.splits import Part
from symgen.device import device, device_of, progress_bar, reproducible_gpu
from symgen.models.config import TrainingConfig

# Seconds between stored states for resuming, if checkpoints are further apart.
RESUME_SECONDS = 60
# Longer gradients are shortened to this norm. Otherwise single steps of momentum SGD reach norms of
# 100 and more, after which rounding decides whether a network diverges.
CLIP = {"sgd": 2.0, "adamw": 1.0}


class Term:
    """A term that is added to the loss: a function of the step and the network alone.

    Otherwise a resumed training would end in another way than one that was not stopped.

    Attributes:
        key: everything that it depends on, for `fingerprint`.
    """

    key: Any

    def __call__(self, step: int, model: nn.Module) -> Tensor | None:
        """Return the term at a step (from 1 on), in nats; None adds nothing."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Task:
    """A network to train, with its samples.

    Attributes:
        name: name of the network, for messages.
        build: returns the untrained network.
        part: part to train on.
        measured: further samples to evaluate, by their name in the records.
        term: term that is added to the loss.
    """

    name: str
    build: Callable[[], nn.Module]
    part: Part
    measured: Mapping[str, Part]
    term: Term | None = None


def objective(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return summed cross-entropy (nats), number of right answers, and number of answers.

    There is one answer per sample or, if logits are (sample, token, vocabulary), one per token.
    Labels of -100 do not count.
    """
    if logits.ndim == 3:  # A token's logits are an answer on the next token.
        logits = logits[:, :-1].flatten(0, 1)
        y = y[:, 1:].flatten()
    loss = F.cross_entropy(logits, y, reduction="sum")
    return loss, (logits.argmax(-1) == y).sum(), (y >= 0).sum()


class Loop:
    """The training loop of one run.

    Args:
        config: without None; see `TrainingConfig.filled`.
        task: see `Task`.
        files: checkpoints of the training; see `files.Files`.
        title: shown by the progress bar; None shows none.
    """

    def __init__(self, config: TrainingConfig, task: Task, files: Any, title: str | None = None):
        self.config = config
        self.task = task
        self.part = task.part
        self.files = files
        self.title = title
        self.total = files.steps[-1]
        self.per_epoch = self.total // config.epochs
        reproducible_gpu(gradients=True)
        self.device = device()
        self.layout = layout_of(self.part)
        self.model = task.build().to(self.device).to(memory_format=self.layout)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decay: Any = config.weight_decay
        self.rate: Any = config.learning_rate
        # Weights of products decay; biases and normalisation do not.
        products = {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay}
        groups = [products, {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(groups, self.rate, momentum=0.9, nesterov=True)
        else:
            self.optimizer = torch.optim.AdamW(groups, self.rate)

    def run(self) -> None:
        """Train from the last stored state up to the last missing checkpoint."""
        cuda = [torch.cuda.current_device()] if self.device.type == "cuda" else []
        last = max(self.files.missing())
        with torch.random.fork_rng(devices=cuda):
            start = self.files.restore(self.model, self.optimizer)
            bar = progress_bar(
                total=last, initial=start, delay=3, unit="step", desc=self.title,
                disable=not self.title,
            )  # fmt: skip
            coming = batches(self.part, self.config, self.per_epoch, range(start, last))
            with bar, contextlib.closing(coming):
                if start == 0:
                    self.checkpoint(0)
                saved = time.monotonic()
                for step, (x, y) in enumerate(coming, start + 1):
                    loss = self.step(step, x, y)
                    bar.update()
                    kept = step in self.files.steps
                    if kept:
                        self.checkpoint(step)
                    if (kept or step % 50 == 0) and not torch.isfinite(loss):
                        raise FloatingPointError(
                            f"the loss is {loss.item()} at step {step} of {self.task.name} with "
                            f"learning_rate={self.rate}; try a tenth of it"
                        )
                    if kept or time.monotonic() - saved > RESUME_SECONDS:
                        if step < self.total:
                            self.files.save(step, self.model, self.optimizer)
                        saved = time.monotonic()
            self.files.discard_states()

    def step(self, step: int, x: Any, y: Tensor) -> Tensor:
        """Do update number `step`; return the loss of the batch."""
        config = self.config
        mixed = config.mixed_precision == "bf16"
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * _rate(step, self.total, config.schedule)
        # Dropout then depends on the step alone. The 0 keeps the draws of stored trainings.
        # On a CPU, `torch.manual_seed` takes most of its time to prepare seeds of GPUs.
        generator = torch.default_generator if self.device.type == "cpu" else torch
        generator.manual_seed(seed_of(config.seed, 3, step, 0))
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            logits = self.model(to_device(x, self.device, self.layout))
        labels = to_device(y, self.device)
        loss, _, count = objective(logits.float(), labels)
        loss = loss / count
        added = self.task.term(step, self.model) if self.task.term else None
        if added is not None:
            loss = loss + added
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP[str(config.optimizer)])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def checkpoint(self, step: int) -> None:
        """Evaluate and store the network after `step` steps, unless it is stored already."""
        if self.files.record(step) is not None:
            return
        record: dict[str, float] = {"step": step, "epoch": step / self.per_epoch}
        model = recalibrated(self.model, self.part) if self.config.recalibrate else self.model
        for name, part in {"train": self.part, **self.task.measured}.items():
            loss, accuracy = evaluate(model, part, self.config.evaluation_size)
            record |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        self.files.keep(step, model, record)


@torch.no_grad()
def recalibrated(model: nn.Module, part: Part, size: int = 1000) -> nn.Module:
    """Return a copy in eval mode whose batch norms have the statistics of some samples.

    A network without batch norms that have statistics is returned itself.
    """
    if not _batch_norms(model):
        return model
    model = copy.deepcopy(model).eval()
    for norm in _batch_norms(model):
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over batches
        norm.train()
    # All batches have the same weight, so they get the same size.
    count = min(size, len(part))
    if count > part.chunk:
        count -= count % part.chunk
    for _ in _answers(model, part, count):
        pass
    return model.eval()


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a network that have statistics."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.running_mean is not None]


@torch.inference_mode()
def evaluate(model: nn.Module, part: Part, size: int | None = None) -> tuple[float, float]:
    """Return mean cross-entropy (nats) and accuracy on a part, in eval mode, not augmented.

    With a size, always the same samples are taken.
    """
    training = model.training
    total = torch.zeros(3, dtype=torch.float64, device=device_of(model))
    for logits, y in _answers(model.eval(), part, size):
        total += torch.stack([x.double() for x in objective(logits, y)])
    model.train(training)
    loss, correct, count = total.tolist()
    return loss / count, correct / count


def _answers(model: nn.Module, part: Part, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits and labels of some samples, always the same ones."""
    place = device_of(model)
    index = torch.randperm(len(part), generator=generator(0, 4))[:size]
    for chunk in index.split(part.chunk):
        x, y = part.batch(chunk)
        yield model(to_device(x, place, layout_of(part))).float(), to_device(y, place)


def batches(
    part: Part, config: TrainingConfig, per_epoch: int, steps: range
) -> Generator[tuple[Any, Tensor], None, None]:
    """Yield the batches of some steps, numbered from 0.

    Each is a function of the seed and the step number.
    """

    @functools.lru_cache(1)
    def shuffled(epoch: int) -> tuple[Tensor, ...]:
        order = torch.randperm(len(part), generator=generator(config.seed, 1, epoch))
        # Batches of equal size: a last one of one sample would break batch norm.
        return order.tensor_split(per_epoch)

    def make(step: int) -> tuple[Any, Tensor]:
        epoch, place = divmod(step, per_epoch)
        index = shuffled(epoch)[place]
        if config.augment:
            # The 0 keeps the draws of stored trainings.
            return part.augment(index, generator(config.seed, 2, step, 0))
        return part.batch(index)

    if not isinstance(part, LargeImagePart):
        yield from map(make, steps)
        return
    # The next batch is decoded while the network works on this one.
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(make, steps.start)
        for step in steps:
            ready = coming.result()
            if step != steps[-1]:
                coming = pool.submit(make, step + 1)
            yield ready


def layout_of(part: Part) -> torch.memory_format:
    """Return the memory layout of inputs: convolutions are faster with channels last."""
    return torch.channels_last if isinstance(part, ImagePart) else torch.contiguous_format


def to_device(
    x: Any, place: torch.device, layout: torch.memory_format = torch.preserve_format
) -> Any:
    """Return inputs, a tensor or a mapping of tensors, on a device."""
    if isinstance(x, Mapping):
        return {k: to_device(v, place) for k, v in x.items()}
    if place.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()  # so that the copy overlaps with computation
    return x.to(place, memory_format=layout, non_blocking=True)


def seed_of(*numbers: int) -> int:
    """Return a seed for some numbers; other numbers give another seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def generator(*numbers: int) -> torch.Generator:
    """Return a generator that draws the same for the same numbers."""
    return torch.Generator().manual_seed(seed_of(*numbers))


def _rate(step: int, total: int, schedule: str) -> float:
    """Return the share of the peak learning rate at a step, 1..total."""
    warm = max(1, round(0.05 * total))
    if step <= warm:
        return step / warm
    rest = (step - warm) / max(1, total - warm)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * rest))
    return 1 - rest if schedule == "linear" else 1.0
