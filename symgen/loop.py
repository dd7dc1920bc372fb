"""The training loop: every random choice a function of the seed and the step number."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen import networks
from symgen.checkpoints import Recipe, Store, full_disk
from symgen.parts import ImagePart, LargeImagePart, Part
from symgen.provenance import fetch, store

# Seconds between stores of the resume state where checkpoints are further apart.
RESUME_SECONDS = 60
# Gradients longer than this are shortened to it. Without, single steps of momentum SGD reach
# norms of 100 and more, after which rounding decides whether a network diverges or dies.
CLIP = {"sgd": 2.0, "adamw": 1.0}


class Loop:
    """The training loop of one run.

    Args:
        recipe: of the run.
        part: to train on.
        test: to measure on, together with `part`.
        checkpoints: where they are kept.
        title: shown by the progress bar; None shows none.
    """

    def __init__(
        self, recipe: Recipe, part: Part, test: Part, checkpoints: Store, title: str | None = None
    ):
        self.recipe, self.part, self.test = recipe, part, test
        self.stored, self.title = checkpoints, title
        self.accelerator = make_accelerator()
        self.device = self.accelerator.device
        self.model = build(recipe)
        self.layout = _layout(part)
        self.model.to(self.device, memory_format=self.layout)
        self.wrapped = self.accelerator.prepare(self.model)
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
        """Train from the last stored state up to the last checkpoint that is missing."""
        from tqdm.auto import tqdm

        recipe, main = self.recipe, self.accelerator.is_main_process
        processes = self.accelerator.num_processes
        if len(self.part) // self.per_epoch < processes:
            raise ValueError(
                f"batch_size={recipe.batch_size} and {len(self.part)} samples make batches of "
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
                self.stored.discard_resume()

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
            logits = self.wrapped(to_device(x, self.device, self.layout))
        loss = F.cross_entropy(logits.float(), y.to(self.device))
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP[recipe.optimizer])
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
        if not self.accelerator.is_main_process or self.stored.has(step):
            return None
        record: dict[str, float] = {"step": step, "epoch": step / self.per_epoch}
        for name, part in (("train", self.part), ("test", self.test)):
            loss, accuracy = evaluate(self.model, part, self.recipe.evaluation_size)
            record |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        store(self.stored.path(step), self.model.state_dict(), {"record": record})
        return record

    def save(self, step: int) -> None:
        """Store what it takes to go on after `step`, then drop the state before it."""
        if not self.accelerator.is_main_process or step == self.recipe.total:
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
            networks.load_weights(self.model, weights, f"in {path}")
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
def evaluate(model: nn.Module, part: Part, size: int | None = None) -> tuple[float, float]:
    """Return mean cross-entropy (nats) and accuracy on a part, in eval mode, not augmented.

    Args:
        model: a classifier.
        part: of a data set.
        size: measure on so many samples, the same each time; None takes all.
    """
    index = torch.randperm(len(part), generator=_generator(0, 4))[: size or len(part)]
    where, training = next(model.parameters()).device, model.training
    model.eval()
    loss = correct = 0.0
    for chunk in index.split(64 if isinstance(part, LargeImagePart) else 250):
        x, y = part.batch(chunk)
        logits, y = model(to_device(x, where, _layout(part))).float(), y.to(where)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
    model.train(training)
    return loss / len(index), correct / len(index)


def build(recipe: Recipe) -> nn.Module:
    """Return the untrained network of a run."""
    return networks.build_network(
        recipe.network, seed=recipe.seed, **{**recipe.spec, **recipe.options}
    )


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
