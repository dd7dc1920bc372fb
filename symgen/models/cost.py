"""What a training will take, from a few timed batches: minutes, memory and disk."""

import dataclasses
import errno
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from torch import Tensor

from symgen.data.hub import import_transformers
from symgen.fingerprints import not_a_result
from symgen.masking.hooks import largest_output
from symgen.masking.states import ALIVE
from symgen.masking.tree_cache import new_cache
from symgen.memory import is_out_of_memory
from symgen.models.batches import to_device
from symgen.models.checkpoints import Store
from symgen.models.config import TrainingConfig
from symgen.models.loop import Loop, Task, classification, evaluate

GIB = 2**30
# Samples of the trial whose activations are counted, and batches that are timed.
PROBE, TIMED = 4, 3
# Minutes beyond which a number was mistyped: a hundred days.
LONGEST = 100 * 1440
# No more batches are tried after so many seconds.
PATIENCE = 10


@not_a_result
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


@not_a_result
def measure(config: TrainingConfig, task: Task, store: Store) -> Estimate:
    """Try a few batches and return what the whole training will take.

    Memory is found from a handful of samples before a whole batch is tried, and minutes are
    measured only where memory suffices.

    Args:
        config: of the training, without None.
        task: what is trained.
        store: of its checkpoints.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        loop = Loop(config, task, store)
        loop.wrapped = loop.model
        weights = sum(t.numel() * t.element_size() for t in loop.model.state_dict().values())
        states = 1 if config.optimizer == "sgd" else 2
        alike = _alike(loop)
        if alike not in _TRIED:
            _TRIED[alike] = _Trial(_activations(loop))
        trial = _TRIED[alike]
        # Weights, gradients, the optimizer's state, and the copies made to store them.
        memory = weights * (2 + states) + weights * (1 + states) + trial.activations
        on_gpu = loop.device.type == "cuda"
        free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
        existing = next(p for p in (store.folder, *store.folder.parents) if p.exists())
        # One resume state is written while the one before is still there.
        disk = weights * (len(store.steps) + 2 * (1 + states))
        disk_free = shutil.disk_usage(existing).free
        numbers = (float("nan"), memory, free, disk, disk_free)
        found = Estimate(*map(float, numbers), store.folder)
        if memory > free:
            return found
        if trial.step is None:
            trial.step = seconds_per_step(loop)
            test = next(iter(task.measured.values()))
            count = min(len(test), 100)
            started = time.perf_counter()
            evaluate(loop.model, test, count, task.objective)
            trial.sample = (time.perf_counter() - started) / count
    sizes = [len(part) for part in (task.part, *task.measured.values())]
    measured = sum(min(s, config.evaluation_size) for s in sizes) * len(store.steps)
    seconds = trial.step * loop.total + trial.sample * measured
    return dataclasses.replace(found, minutes=seconds / 60)


@not_a_result
@dataclasses.dataclass
class _Trial:
    """What trying a few batches gave: bytes kept for backward, seconds a step and a test sample."""

    activations: float
    step: float | None = None
    sample: float = 0.0


# Trainings that differ in their seeds only take equally long, and a study has many of them.
_TRIED: dict[str, _Trial] = {}


def _alike(loop: Loop) -> str:
    """Return what trainings share whose steps take equally long in this process."""
    x, _ = loop.part.batch(range(1))
    shapes = {k: t.shape for k, t in x.items()} if isinstance(x, Mapping) else x.shape
    parts = {k: len(part) for k, part in {"": loop.part, **loop.task.measured}.items()}
    term = loop.task.term and loop.task.term.key
    config = dataclasses.replace(loop.config, seed=0)
    weights = [tuple(t.shape) for t in loop.model.state_dict().values()]
    about = (config, repr(loop.model), weights, shapes, parts, term, loop.device)
    return repr((*about, torch.get_num_threads()))


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
        logits = _logits(loop, x)
    del logits
    share = loop.config.batch_size / loop.accelerator.num_processes / count
    # A layer's output and its gradient exist beside what is kept.
    return 1.3 * sum(kept.values()) * share


def _logits(loop: Loop, x: Any) -> Tensor:
    """Return what a network gives for some inputs.

    Raises:
        ValueError: where it cannot run on them, or gives fewer numbers than there are classes.
    """
    shapes = {k: tuple(v.shape) for k, v in x.items()} if isinstance(x, Mapping) else tuple(x.shape)
    told = f'network "{loop.task.name}"'
    try:
        logits = loop.model(to_device(x, loop.device, loop.layout))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{told} cannot run on inputs of shape {shapes}: {error}") from error
    if loop.task.objective is classification:
        classes, shape = int(loop.part.labels.max()) + 1, getattr(logits, "shape", None)
        if shape is None or len(shape) != 2 or shape[1] < classes:
            given = type(logits).__name__ if shape is None else f"shape {tuple(shape)}"
            raise ValueError(
                f"{told} returns {given}; expected logits (sample, class) of {classes} classes or "
                "more. A builder that names a parameter classes is told how many there are"
            )
    return logits


def seconds_per_step(loop: Loop, timed: int = TIMED) -> float:
    """Return the time of one step, the first one (which warms up) left out."""
    times = []
    batches = loop.batches(0, min(timed + 1, loop.total))
    started = time.perf_counter()
    for step, (x, y) in enumerate(batches, 1):
        loop.step(step, x, y).item()
        times.append(time.perf_counter() - started)
        if sum(times) > PATIENCE:
            break
        started = time.perf_counter()
    return sum(times[1:]) / len(times[1:]) if len(times) > 1 else times[0]


def language_memory(
    config: Any, tokens: int = 64, rows: Sequence[int] = (1024, 64, 1),
    dtype: torch.dtype = torch.bfloat16,
) -> pd.DataFrame:  # fmt: skip
    """Return the GiB that the outputs on masked prompts take, without loading any weights.

    Counted on the meta device with the numbers by which the prefix tree chooses its batches: three
    times the keys and values of the rows, and the largest output of a layer six times.

    Args:
        config: of a model, of `transformers`.
        tokens: of the prompt.
        rows: numbers of masked prompts at once, up to 2**n. Fewer take more time.
        dtype: of the weights.

    Returns:
        Columns masked prompts at once, weights, keys and values, activations, total.
    """
    with torch.device("meta"):
        model = import_transformers().AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        ids, cache = torch.zeros(1, tokens, dtype=torch.long), new_cache()
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        with torch.inference_mode():
            largest = largest_output(model, {"input_ids": ids} | options)
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    table = pd.DataFrame({"masked prompts at once": rows})
    table["weights"] = sum(p.nbytes for p in model.parameters()) / GIB
    table["keys and values"] = table["masked prompts at once"] * 3 * kept / GIB
    table["activations"] = table["masked prompts at once"] * ALIVE * largest / GIB
    return table.assign(total=table.iloc[:, 1:].sum(axis=1))
