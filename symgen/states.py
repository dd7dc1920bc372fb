"""Run a network on masked states in batches: which states, how many at once, what comes out."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .cut import Cut, Inputs, call, logits_of

# Larger batches are no faster on CPU: their activations leave the caches.
LARGEST_BATCH = {"cpu": 256, "cuda": 8192}
# What one batch may take of the free memory; on CPU also no more than this many bytes.
MEMORY_SHARE, CPU_BYTES = 0.5, 2**30
# Activations alive at once, in units of the largest output of a layer.
ALIVE = 6


class BatchSizeWarning(UserWarning):
    """Memory ran out: the batch was halved and the work went on."""


def log_odds(
    logits: Float[Tensor, "sample outcome"], target: Int[Tensor, " sample"]
) -> Float[Tensor, " sample"]:
    """Return v = log p / (1 - p) of the target outcome (Eq. 1), stable where p is near 0 or 1.

    It is the target's logit minus the logsumexp of all others, in float32 or better.

    Args:
        logits: of two or more outcomes, in any floating type.
        target: 0..outcomes-1.

    Example:
        >>> log_odds(torch.tensor([[3.0, 1.0], [0.0, 100.0]]), torch.tensor([0, 1])).tolist()
        [2.0, 100.0]
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    target = target.to(logits.device).long()[:, None]
    others = logits.scatter(1, target, -math.inf)
    return logits.gather(1, target)[:, 0] - others.logsumexp(dim=1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a network in evaluation mode; afterwards every part is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Return where a network's first parameter lies; the CPU when it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    return psutil.virtual_memory().available


def check_states(samples: int, n: int) -> None:
    """Refuse a number of variables whose masked states no memory can hold.

    Raises:
        MemoryError: with the estimate, when the outputs alone exceed the free memory.
    """
    needed, free = samples * 8 * 2**n, free_memory(torch.device("cpu"))
    if needed > MEMORY_SHARE * free:
        raise MemoryError(
            f"n = {n} variables have 2^{n} = {2**n:,} masked states a sample; their outputs for "
            f"{samples} samples take {needed / 2**30:,.1f} GiB of the {free / 2**30:,.1f} GiB "
            "that are free. Use fewer variables (n = 10 takes 8 KiB a sample) or fewer samples"
        )


class Batch:
    """The number of masked states in one forward call, halved whenever memory runs out."""

    def __init__(self, size: int):
        if size < 1:
            raise ValueError(f"batch_size = {size}; give a number of masked states >= 1, or None")
        self.size = size

    @contextmanager
    def halving(self) -> Iterator[None]:
        """Catch an out-of-memory error of what runs inside, and halve the size.

        Raises:
            MemoryError: when not even one state fits.
        """
        try:
            yield
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            if self.size == 1:
                raise MemoryError(
                    "memory ran out on a single masked state; use a smaller network or input, "
                    "mixed precision (dtype=torch.bfloat16), or a device with more memory"
                ) from error
            self.size //= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            warnings.warn(
                f"memory ran out; the batch is halved to {self.size} masked states",
                BatchSizeWarning,
                stacklevel=3,
            )


def automatic_batch(model: nn.Module, inputs: Inputs) -> int:
    """Return how many states to run at once, a power of two, from one forward pass.

    Args:
        model: in evaluation mode.
        inputs: of one sample.
    """
    largest = 1

    def measure(module, arguments, output):
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.nbytes)

    handles = [
        module.register_forward_hook(measure)
        for module in model.modules()
        if not any(module.children())
    ]
    try:
        call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    device = device_of(model)
    budget = MEMORY_SHARE * free_memory(device)
    if device.type == "cpu":
        budget = min(budget, CPU_BYTES)
    size = min(budget / (ALIVE * largest), LARGEST_BATCH.get(device.type, 1024))
    return 2 ** int(math.log2(max(size, 1)))


class StateRunner:
    """Masks features by state and runs what lies above them.

    Args:
        model: in evaluation mode.
        way: how the network is cut at the masked layer.
        inputs_of: gives the inputs of samples ``first`` to ``first + count - 1``.
        owners: (sample, position...) variable of each position of the feature, n for none.
        n: variables of a sample.
        value: of masked positions, broadcast to one sample's feature.
        target: (sample,) outcome.
        channel: dimension of the feature (of one sample) along which all values are masked alike.
        dtype: of autocast, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        way: Cut,
        inputs_of: Callable[[int, int], Inputs],
        owners: Int[Tensor, "sample *position"],
        n: int,
        value: Float[Tensor, "..."],
        target: Int[Tensor, " sample"],
        channel: int,
        dtype: torch.dtype | None,
    ):
        self.model, self.way, self.inputs_of, self.n = model, way, inputs_of, n
        self.device = device_of(model)
        self.owners, self.target = owners.to(self.device), target.to(self.device)
        self.value, self.channel, self.dtype = value.to(self.device), channel, dtype
        self._below: tuple[Any, Tensor, Inputs] | None = None
        self._buffer: Tensor | None = None

    def autocast(self) -> Any:
        """Return the context of the wanted precision."""
        kind = self.device.type
        return torch.autocast(kind, dtype=self.dtype, enabled=self.dtype is not None)

    def plain(self, first: int, count: int = 1) -> tuple[Tensor, Tensor]:
        """Return logits and v of some samples, nothing masked, by a plain forward."""
        with self.autocast():
            logits = last(logits_of(call(self.model, self.inputs_of(first, count))))
        return logits, log_odds(logits, self.target[first : first + count])

    def run(
        self, first: int, count: int, states: Int[Tensor, " state"]
    ) -> Float[Tensor, "sample state"]:
        """Return v of some samples on the same states."""
        with self.autocast():
            feature, rest = self._features(first, count)
            owners = self.owners[first : first + count]
            bits = states.to(self.device)[:, None] >> torch.arange(self.n, device=self.device) & 1
            present = nn.functional.pad(bits.bool(), (0, 1), value=True)
            keep = present.T[owners].movedim(-1, 1).unsqueeze(2 + self.channel)
            shape = (count * len(states), *feature.shape[1:])
            buffer = self._masked(shape, feature)
            torch.where(
                keep,
                feature[:, None],
                self.value.to(feature.dtype),
                out=buffer.unflatten(0, (count, len(states))),
            )
            logits = last(self.way.above(self.model, buffer, rest, len(states)))
        target = self.target[first : first + count].repeat_interleave(len(states))
        return log_odds(logits, target).reshape(count, len(states))

    def _features(self, first: int, count: int) -> tuple[Tensor, Inputs]:
        if self._below is None or self._below[0] != (first, count):
            feature, rest = self.way.below(self.model, self.inputs_of(first, count))
            self._below = (first, count), feature, rest
        return self._below[1:]

    def _masked(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return memory for masked features: kept between batches, channels last for images."""
        if self._buffer is None or self._buffer.shape != shape:
            self._buffer = None
            layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
            self._buffer = torch.empty(
                shape, dtype=like.dtype, device=like.device, memory_format=layout
            )
        return self._buffer


def last(logits: Tensor) -> Tensor:
    """Return the logits at the last position of a sequence, or logits that have no positions."""
    return logits[:, -1] if logits.dim() == 3 else logits


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text
