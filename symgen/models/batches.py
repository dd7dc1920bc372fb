"""The batches of a training, each a function of the seed and the step number alone."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symgen.data.images import ImagePart, LargeImagePart
from symgen.data.parts import Part
from symgen.models.config import TrainingConfig


def batches(
    part: Part, config: TrainingConfig, per_epoch: int, steps: range, share: slice
) -> Iterator[tuple[Any, Tensor]]:
    """Yield the batches of some steps, numbered from 0.

    Args:
        part: whose samples they are.
        config: of the training.
        per_epoch: number of batches of an epoch.
        steps: one after the other.
        share: of each batch that this process has.
    """
    order: dict[int, tuple[Tensor, ...]] = {}

    def make(step: int) -> tuple[Any, Tensor]:
        epoch, place = divmod(step, per_epoch)
        if epoch not in order:
            order.clear()
            shuffled = torch.randperm(len(part), generator=generator(config.seed, 1, epoch))
            # Batches of equal size: a last one of one sample would break batch norm.
            order[epoch] = shuffled.tensor_split(per_epoch)
        index = order[epoch][place][share]
        if config.augment:
            return part.augment(index, generator(config.seed, 2, step, share.start))
        return part.batch(index)

    if not isinstance(part, LargeImagePart):
        yield from map(make, steps)
        return
    # Decoding the next batch overlaps with the step on this one.
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(make, steps.start)
        for step in steps:
            ready = coming.result()
            if step != steps[-1]:
                coming = pool.submit(make, step + 1)
            yield ready


def layout_of(part: Part) -> torch.memory_format:
    """Return how the inputs lie in memory: convolutions run faster with channels last."""
    return torch.channels_last if isinstance(part, ImagePart) else torch.contiguous_format


def to_device(
    x: Any, where: torch.device, layout: torch.memory_format = torch.preserve_format
) -> Any:
    """Return inputs, a tensor or a mapping of tensors, on a device.

    To a GPU they go from pinned memory, so that the copy overlaps with what it computes.
    """
    if isinstance(x, Mapping):
        return {k: to_device(v, where) for k, v in x.items()}
    if where.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(where, memory_format=layout, non_blocking=True)


def seed_of(*numbers: int) -> int:
    """Return a seed that other numbers hardly ever have."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def generator(*numbers: int) -> torch.Generator:
    """Return a generator that draws the same for the same numbers."""
    return torch.Generator().manual_seed(seed_of(*numbers))
