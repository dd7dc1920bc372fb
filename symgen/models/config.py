"""How a network is trained: one configuration, whatever the network is."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from symgen.literal import nearest

WEIGHT_DECAY = {"sgd": 5e-4, "adamw": 0.01}
SCHEDULES = ("cosine", "linear", "constant")
MIXED = ("no", "bf16", "fp16")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a network is trained, whatever it is. None stands for what suits the network.

    Attributes:
        epochs: passes over the training samples.
        batch_size: samples a step, over all processes together.
        learning_rate: peak value; by default that of the registry.
        optimizer: "sgd" (momentum 0.9; default for images) or "adamw" (default for texts).
        weight_decay: default 5e-4 for sgd, 0.01 for adamw.
        schedule: "cosine", "linear" or "constant", each after a warm-up of 5 % of the steps.
        checkpoints: how many, see `checkpoint_steps`; or the steps themselves. The untrained
            network (step 0) and the last step are always kept.
        augment: whether training samples are augmented; those of language models never are.
        mixed_precision: "no", "bf16" or "fp16".
        recalibrate: whether the batch norms of a checkpoint have statistics of the training
            samples measured with its weights, and not the running ones, which of an untrained
            network are made up. Networks without batch norm have none.
        evaluation_size: number of samples of each kind that records are measured on; the same
            ones at every checkpoint.
        seed: of the initial weights, the order of samples, augmentation and dropout.

    Raises:
        ValueError: for an unknown name or impossible value.
    """

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float | None = None
    optimizer: str | None = None
    weight_decay: float | None = None
    schedule: str = "cosine"
    checkpoints: int | tuple[int, ...] = 20
    augment: bool = True
    mixed_precision: str = "no"
    recalibrate: bool = True
    evaluation_size: int = 800
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ("optimizer", tuple(WEIGHT_DECAY)),
            ("schedule", SCHEDULES),
            ("mixed_precision", MIXED),
        ):
            if (value := getattr(self, name)) not in known and (name, value) != ("optimizer", None):
                raise ValueError(
                    f'{name}="{value}" is unknown; expected {", ".join(known)}.'
                    f"{nearest(value, known)}"
                )
        if self.mixed_precision == "fp16" and not torch.cuda.is_available():
            raise ValueError('mixed_precision="fp16" needs a GPU; use "bf16" or "no" on a CPU')
        for name in ("epochs", "batch_size", "evaluation_size"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if isinstance(self.checkpoints, int) and self.checkpoints < 1:
            raise ValueError(
                f"checkpoints={self.checkpoints}: expected at least 1, the trained network"
            )

    def filled(self, optimizer: str, learning_rate: float) -> "TrainingConfig":
        """Return the same with what suits a network in place of None."""
        optimizer = self.optimizer or optimizer
        rate, decay = self.learning_rate, self.weight_decay
        return dataclasses.replace(
            self,
            optimizer=optimizer,
            learning_rate=learning_rate if rate is None else rate,
            weight_decay=WEIGHT_DECAY[optimizer] if decay is None else decay,
        )

    def steps(self, samples: int) -> tuple[int, ...]:
        """Return the steps that are kept of a training on so many samples, the last included."""
        total = self.epochs * math.ceil(samples / self.batch_size)
        if isinstance(self.checkpoints, int):
            return tuple(checkpoint_steps(total, self.checkpoints))
        steps = sorted({0, total, *map(int, self.checkpoints)})
        if steps[0] < 0 or steps[-1] > total:
            raise ValueError(
                f"checkpoints={[*self.checkpoints]}: this training has the steps 0 to {total} "
                f"({self.epochs} epochs of {total // self.epochs})"
            )
        return tuple(steps)


def configured(config: TrainingConfig | None, settings: dict[str, Any]) -> TrainingConfig:
    """Return a configuration with some settings changed.

    Raises:
        ValueError: for one that there is not.
    """
    known = [field.name for field in dataclasses.fields(TrainingConfig)]
    for name in settings:
        if name not in known:
            raise ValueError(f"there is no setting {name} of a training.{nearest(name, known)}")
    if not isinstance(steps := settings.get("checkpoints", 1), int):
        settings = {**settings, "checkpoints": tuple(map(int, steps))}
    return dataclasses.replace(config or TrainingConfig(), **settings)


def checkpoint_steps(total: int, count: int) -> list[int]:
    """Return the steps to keep: 0, the last, and others dense early and even later.

    Half of them are log-spaced over the first tenth of the training, in which most is learned; the
    others are evenly spaced after it, where a loss gap opens.

    Args:
        total: number of steps of the whole training.
        count: number of checkpoints after step 0; fewer where there are fewer steps.

    Example:
        >>> checkpoint_steps(1000, 7)
        [0, 1, 10, 100, 325, 550, 775, 1000]
    """
    count, early = min(count, total), max(1.0, total / 10)
    points, steps = count, np.array([])
    while len(steps) < count:
        half = points // 2
        first, rest = np.geomspace(1, early, half), np.linspace(early, total, points - half + 1)
        steps = np.unique(np.concatenate([first, rest[half > 0 :], [total]]).round().astype(int))
        points += 1
    # More points than asked for can turn up by rounding; the last step must stay.
    steps = steps[np.linspace(0, len(steps) - 1, count).round().astype(int)]
    steps[-1] = total
    return [0, *steps.tolist()]
