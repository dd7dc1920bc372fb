"""How many masked states run at once: what memory is free, what one state takes, and halving.

And how a GPU is to compute them.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator

import psutil
import torch
from torch import nn

from symgen.fingerprints import gpu_only
from symgen.literal import nearest

# Larger batches are slower on CPU: their activations leave the caches.
LARGEST_BATCH = {"cpu": 64, "cuda": 8192}
# What one batch may take of the free memory; on CPU also no more than this many bytes.
MEMORY_SHARE, CPU_BYTES = 0.5, 2**30
# Vectors of 2^n numbers that are kept for a sample (v, AND and OR effects, and v or the effects
# once more while they are stored), and that `sparsify` works with on top of them.
KEPT, WORKED_WITH = 5, 100


class BatchSizeWarning(UserWarning):
    """Memory ran out: the batch was halved and the work went on."""


def device_of(model: nn.Module) -> torch.device:
    """Return where a network's first parameter lies; the CPU when it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of a network's first floating parameter; float32 when it has none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def as_dtype(name: str) -> torch.dtype:
    """Return the floating type of a name.

    Raises:
        ValueError: for an unknown name, with the nearest.
    """
    known = ("float32", "float16", "bfloat16", "float64")
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(
            f'dtype="{name}" is unknown; expected one of {", ".join(known)}.{nearest(name, known)}'
        )
    return getattr(torch, name)


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    return psutil.virtual_memory().available


@gpu_only
def reproducible_gpu(gradients: bool = False) -> None:
    """Have a GPU give the same numbers every time, of full float32, from here on.

    By default convolutions there round to 10 bits (TF32), so that an output would depend on its
    batch by a thousandth, and sum some gradients in any order, so that a training that is taken up
    would end otherwise.

    Args:
        gradients: whether those of all other operations are to be summed in one order, too, where
            torch knows how; without a word where it does not.
    """
    if torch.cuda.is_available():
        if gradients:
            # Read when the first matrices are multiplied.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False
            untold = ".*(does not have a deterministic implementation|non-deterministic algorithm)"
            warnings.filterwarnings("ignore", untold)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def batch_budget(device: torch.device) -> int:
    """Return the bytes that one batch may take on a device."""
    budget = int(MEMORY_SHARE * free_memory(device))
    return min(budget, CPU_BYTES) if device.type == "cpu" else budget


def check_states(samples: int, n: int) -> None:
    """Refuse a number of variables whose masked states, or their split, no memory can hold.

    Raises:
        MemoryError: with the estimate, when it exceeds half of the free memory.
    """
    needed, free = (KEPT * samples + WORKED_WITH) * 8 * 2**n, free_memory(torch.device("cpu"))
    if needed > MEMORY_SHARE * free:
        raise MemoryError(
            f"n = {n} variables have 2^{n} = {2**n:,} masked states a sample; their outputs for "
            f"{samples:,} samples and the split of them take {needed / 2**30:,.1f} GiB, more than "
            f"half of the {free / 2**30:,.1f} GiB that are free. Use fewer variables (n = 10 takes "
            f"{KEPT * 8} KiB a sample) or fewer samples"
        )


class Batch:
    """The number of masked states in one forward call, halved whenever memory runs out."""

    def __init__(self, size: int):
        if size < 1:
            raise ValueError(f"batch_size = {size}; give a number of masked states >= 1, or None")
        self.size = size

    @contextlib.contextmanager
    def halving(self) -> Iterator[None]:
        """Catch an out-of-memory error of what runs inside, and halve the size.

        Raises:
            MemoryError: when not even one state fits.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self.size == 1:
                raise MemoryError(
                    "memory ran out on a single masked state; use a smaller network or input, a "
                    "model in a narrower type, or a device with more memory"
                ) from error
            self.size //= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            warnings.warn(
                f"memory ran out; the batch is halved to {self.size} masked states",
                BatchSizeWarning,
                stacklevel=4,
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on CPU or GPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error).lower()
    )


def fitting(bytes_each: int, device: torch.device) -> int:
    """Return the largest suitable power of two of states that take so many bytes each."""
    size = min(batch_budget(device) / bytes_each, LARGEST_BATCH.get(device.type, 1024))
    return 2 ** int(math.log2(max(size, 1)))
