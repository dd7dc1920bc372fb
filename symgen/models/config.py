"""How a network is trained: one configuration for all networks."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgen.names import refuse_unknown, unknown

WEIGHT_DECAY = {"sgd": 5e-4, "adamw": 0.01}
CHOICES = {
    "optimizer": (None, *WEIGHT_DECAY),
    "schedule": ("cosine", "linear", "constant"),
    "mixed_precision": ("no", "bf16"),
}


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a network is trained. None stands for the default of the network.

    Attributes:
        epochs: passes over the training samples.
        batch_size: samples per step, over all processes together.
        learning_rate: peak value; by default that of the registry.
        optimizer: "sgd" (momentum 0.9; default for images) or "adamw" (default for texts).
        weight_decay: default 5e-4 for sgd, 0.01 for adamw.
        schedule: "cosine", "linear" or "constant", each after a warm-up of 5 % of the steps.
        checkpoints: their number, see `checkpoint_steps`; or the steps themselves. The untrained
            network (step 0) and the last step are always kept.
        augment: whether training samples are augmented; those of language models never are.
        mixed_precision: "no" or "bf16".
        recalibrate: whether the batch norms of a checkpoint get statistics that are measured with
            its weights on training samples. Running statistics lag behind the weights, and those
            of an untrained network are arbitrary.
        evaluation_size: number of training samples, and of test samples, that records are
            measured on; the same ones at every checkpoint.
        seed: seed of the initial weights, the order of samples, augmentation and dropout.

    Raises:
        ValueError: for an unknown name or impossible value.
    """

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float | None = None
    optimizer: str | None = None
    weight_decay: float | None = None
    schedule: str = "cosine"
    checkpoints: int | Sequence[int] = 20
    augment: bool = True
    mixed_precision: str = "no"
    recalibrate: bool = True
    evaluation_size: int = 800
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)
        names = ["epochs", "batch_size", "evaluation_size"]
        if isinstance(self.checkpoints, int):
            names.append("checkpoints")
        else:
            object.__setattr__(self, "checkpoints", tuple(map(int, self.checkpoints)))
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number >= 1")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}: expected a number >= 0, or None")

    def changed(self, **settings: Any) -> "TrainingConfig":
        """Return the same configuration with some settings changed.

        Raises:
            ValueError: for an unknown setting.
        """
        names = [field.name for field in dataclasses.fields(self)]
        refuse_unknown("training setting", settings, names)
        return dataclasses.replace(self, **settings)

    def filled(self, optimizer: str, learning_rate: float) -> "TrainingConfig":
        """Return the same configuration with these defaults in place of None."""
        optimizer = self.optimizer or optimizer
        rate = self.learning_rate
        decay = self.weight_decay
        return dataclasses.replace(
            self,
            optimizer=optimizer,
            learning_rate=learning_rate if rate is None else rate,
            weight_decay=WEIGHT_DECAY[optimizer] if decay is None else decay,
        )

    def steps(self, samples: int) -> tuple[int, ...]:
        """Return the steps of the checkpoints of a training on so many samples."""
        total = self.epochs * math.ceil(samples / self.batch_size)
        if isinstance(self.checkpoints, int):
            return tuple(checkpoint_steps(total, self.checkpoints))
        steps = sorted({0, total, *self.checkpoints})
        if steps[0] < 0 or steps[-1] > total:
            raise ValueError(
                f"checkpoints={[*self.checkpoints]}: expected steps from 0 to {total}, which is "
                f"{self.epochs} epochs of {total // self.epochs} steps"
            )
        return tuple(steps)


def checkpoint_steps(total: int, count: int) -> list[int]:
    """Return the steps to keep: 0, the last, and others that are dense early and even later.

    Half of them are log-spaced over the first tenth of the training, in which most is learned. The
    others are evenly spaced after it, when a loss gap opens.

    Args:
        total: number of steps of the whole training.
        count: number of checkpoints after step 0; fewer if there are fewer steps.

    Example:
        >>> checkpoint_steps(1000, 7)
        [0, 1, 10, 100, 325, 550, 775, 1000]
    """
    count = min(count, total)
    early = max(1.0, total / 10)
    points = count
    steps = np.array([])
    while len(steps) < count:
        half = points // 2
        first = np.geomspace(1, early, half)
        rest = np.linspace(early, total, points - half + 1)[half > 0 :]
        steps = np.unique(np.concatenate([first, rest, [total]]).round().astype(int))
        points += 1
    # Rounding can give too many points; the last step must stay.
    kept = np.linspace(0, len(steps) - 1, count).round().astype(int)
    steps = steps[kept]
    steps[-1] = total
    return [0, *steps.tolist()]
