"""What a training will take, from a few timed batches: minutes, memory and disk."""

import dataclasses
import errno
import shutil
import time
from pathlib import Path

import psutil
import torch
from torch import Tensor

from symgen.checkpoints import Recipe, Store
from symgen.loop import Loop, evaluate, to_device
from symgen.parts import Part

GIB = 2**30
# Samples of the trial whose activations are counted, and batches that are timed.
PROBE, TIMED = 4, 3
# Minutes beyond which a number was mistyped: a hundred days.
LONGEST = 100 * 1440
# No more batches are tried after so many seconds.
PATIENCE = 10


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Expected cost of a training.

    Attributes:
        minutes: wall time on this machine.
        memory: peak in bytes: weights, gradients, optimizer, activations of a batch.
        memory_free: bytes of memory there are, on the GPU where there is one.
        disk: bytes of checkpoints and resume state.
        disk_free: bytes there are on the disk of the checkpoints.
        folder: of the checkpoints.
    """

    minutes: float
    memory: float
    memory_free: float
    disk: float
    disk_free: float
    folder: Path

    def __str__(self) -> str:
        return (
            f"about {self.minutes:.0f} minutes, {self.memory / GIB:.1f} of "
            f"{self.memory_free / GIB:.1f} GiB of memory, {self.disk / GIB:.2f} of "
            f"{self.disk_free / GIB:.1f} GiB of disk"
        )

    def check(self) -> None:
        """Refuse what cannot fit.

        Raises:
            MemoryError: if memory does not suffice.
            OSError: if the disk does not suffice.
            ValueError: if it would take longer than `LONGEST`.
        """
        if self.minutes > LONGEST:
            raise ValueError(
                f"this training would take about {self.minutes / 1440:,.0f} days on this machine; "
                "give fewer epochs or training samples, or a smaller network"
            )
        if self.memory > self.memory_free:
            raise MemoryError(
                f"this training needs about {self.memory / GIB:.1f} GiB of memory, and "
                f"{self.memory_free / GIB:.1f} GiB are free; use a smaller batch_size or network"
            )
        if self.disk > self.disk_free:
            raise OSError(
                errno.ENOSPC,
                f"this training stores about {self.disk / GIB:.1f} GiB, and "
                f"{self.disk_free / GIB:.1f} GiB are free on the disk of {self.folder}; use fewer "
                "checkpoints, or point SYMGEN_CACHE to another disk",
            )


def measure(recipe: Recipe, part: Part, test: Part, folder: Path) -> Estimate:
    """Try a few batches and return what the whole training will take.

    Memory is found from a handful of samples before a whole batch is tried, and minutes are
    measured only where memory suffices.

    Args:
        recipe: of the training.
        part: to train on.
        test: to measure on.
        folder: of the checkpoints.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        loop = Loop(recipe, part, test, Store(folder, recipe.steps))
        loop.wrapped = loop.model
        weights = sum(t.numel() * t.element_size() for t in loop.model.state_dict().values())
        states = 1 if recipe.optimizer == "sgd" else 2
        # Weights, gradients, the optimizer's state, and the copies made to store them.
        memory = weights * (2 + states) + weights * (1 + states) + _activations(loop)
        on_gpu = loop.device.type == "cuda"
        free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        # One resume state is written while the one before is still there.
        disk = weights * (len(recipe.steps) + 2 * (1 + states))
        disk_free = shutil.disk_usage(existing).free
        numbers = (float("nan"), memory, free, disk, disk_free)
        found = Estimate(*map(float, numbers), folder)
        if memory > free:
            return found
        seconds = _seconds_per_step(loop) * recipe.total
        size = min(len(part), recipe.evaluation_size) + min(len(test), recipe.evaluation_size)
        trial = min(len(test), 100)
        started = time.perf_counter()
        evaluate(loop.model, test, trial)
        seconds += (time.perf_counter() - started) / trial * size * len(recipe.steps)
    return dataclasses.replace(found, minutes=seconds / 60)


def _activations(loop: Loop) -> float:
    """Return the bytes that the backward pass of one batch needs to find kept."""
    weights = {p.untyped_storage().data_ptr() for p in loop.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    count = min(PROBE, len(loop.part))
    x, _ = loop.part.batch(range(count))
    loop.model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = loop.model(to_device(x, loop.device, loop.layout))
    del logits
    share = loop.recipe.batch_size / loop.accelerator.num_processes / count
    # A layer's output and its gradient exist beside what is kept.
    return 1.3 * sum(kept.values()) * share


def _seconds_per_step(loop: Loop) -> float:
    """Return the time of one step, the first one (which warms up) left out."""
    times = []
    batches = loop.batches(0, min(TIMED + 1, loop.recipe.total))
    started = time.perf_counter()
    for step, (x, y) in enumerate(batches, 1):
        loop.step(step, x, y).item()
        times.append(time.perf_counter() - started)
        if sum(times) > PATIENCE:
            break
        started = time.perf_counter()
    return sum(times[1:]) / len(times[1:]) if len(times) > 1 else times[0]
