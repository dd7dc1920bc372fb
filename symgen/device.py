"""The device that networks run on, its memory, masked states per batch, and progress bars."""

import contextlib
import math
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import nn
from tqdm.auto import tqdm

from symgen.names import unknown

# Larger batches are slower on CPUs: their activations leave the processor's cache.
LARGEST_BATCH = {"cpu": 64, "cuda": 8192}
# Share of the free memory that one batch may take; on CPUs also at most this many bytes.
MEMORY_SHARE, CPU_BYTES = 0.5, 2**30
# Vectors of 2^n float64 numbers: kept per sample (v, effects, copies), and used by each thread of
# `sparsify`.
KEPT, WORKSPACE = 5, 600


class BatchSizeWarning(UserWarning):
    """Memory ran out: the batch was halved and the work went on."""


def device() -> torch.device:
    """Return the device that networks run on: the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def progress_bar(iterable: Iterable | None = None, disable: bool = False, **options: Any) -> tqdm:
    """Return a progress bar; the variable TQDM_DISABLE hides it, which tqdm ignores in notebooks.

    In a file it is one line per minute.

    Args:
        iterable: what to go through, if anything.
        disable: whether to show nothing.
        **options: further arguments of tqdm.
    """
    hidden = disable or bool(os.environ.get("TQDM_DISABLE"))
    if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        line = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}]\n"
        options = {"mininterval": 60, "maxinterval": 60, "bar_format": line, **options}
    return tqdm(iterable, disable=hidden, **options)


def end_with(parent: int) -> None:
    """End this process within a second after its parent has ended, even if that was killed.

    Args:
        parent: identity of the process that started this one; for any other nothing happens.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    if os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a network's first parameter; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of a network's first floating parameter; float32 if it has none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def as_dtype(name: str) -> torch.dtype:
    """Return the floating dtype with this name.

    Raises:
        ValueError: for an unknown name.
    """
    names = ("float32", "float16", "bfloat16", "float64")
    if name not in names:
        raise unknown("dtype", name, names)
    return getattr(torch, name)


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device, in bytes."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    return psutil.virtual_memory().available


def reproducible_gpu(gradients: bool = False) -> None:
    """Make a GPU return the same numbers every time, in full float32, from here on.

    By default convolutions round to 10 bits (TF32) there, so an output would depend on its batch
    by a thousandth. Some gradients are summed in any order, so a resumed training would differ.

    Args:
        gradients: also sum all other gradients in one order, wherever torch can.
    """
    if not torch.cuda.is_available():
        return
    if gradients:
        # Read by the first matrix product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Its stub lacks this setting.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore
        # torch warns at each operation that has no deterministic version.
        message = ".*(does not have a deterministic implementation|non-deterministic algorithm)"
        warnings.filterwarnings("ignore", message)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def batch_budget(device: torch.device) -> int:
    """Return the memory that one batch may take on a device, in bytes."""
    budget = int(MEMORY_SHARE * free_memory(device))
    return min(budget, CPU_BYTES) if device.type == "cpu" else budget


def check_states(samples: int, n: int) -> None:
    """Refuse masked states that do not fit into memory.

    Raises:
        MemoryError: if outputs and split take more than half of the free memory.
    """
    vectors = KEPT * samples + WORKSPACE * min(samples, torch.get_num_threads())
    needed, free = vectors * 8 * 2**n, free_memory(torch.device("cpu"))
    if needed > MEMORY_SHARE * free:
        raise MemoryError(
            f"n = {n} gives 2^{n} = {2**n:,} masked states per sample; {samples:,} samples take "
            f"{needed / 2**30:,.1f} GiB, more than half of the {free / 2**30:,.1f} GiB of free "
            "memory. Use fewer variables or fewer samples"
        )


def fitting(bytes_each: int, device: torch.device, most: int | None = None) -> int:
    """Return the largest suitable batch size, a power of two.

    Args:
        bytes_each: size of a masked state.
        device: where the batch runs.
        most: the largest size allowed; None for what suits the device.
    """
    size = min(batch_budget(device) / bytes_each, most or LARGEST_BATCH.get(device.type, 1024))
    return 2 ** int(math.log2(max(size, 1)))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on CPU or GPU."""
    words = "out of memory|can't allocate memory|not enough memory|alloc_failed"
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and bool(re.search(words, str(error).lower()))
    )


class Batch:
    """The number of masked states per forward pass, halved whenever memory runs out.

    Args:
        size: masked states per forward pass, at least 1.
    """

    def __init__(self, size: int):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"batch_size is {size}; expected a whole number >= 1, or None")
        self.size = size

    @contextlib.contextmanager
    def halving(self) -> Iterator[None]:
        """Catch an out-of-memory error of the enclosed code and halve the size, down to 1."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self.size == 1:
                raise
            self.size //= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            message = f"memory ran out; the batch is halved to {self.size} masked states"
            warnings.warn(message, BatchSizeWarning, stacklevel=4)
