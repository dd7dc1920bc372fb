"""A target network and its baselines on a data set, with the samples to look at, in one call."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from symgen.data import Data, load_dataset
from symgen.dynamics import Dynamics, Extractor, track
from symgen.interactions import Interactions
from symgen.sources import nearest
from symgen.training import TrainingRun, train


@dataclasses.dataclass(frozen=True)
class Study:
    """What the chapters do at their beginning: data, trained networks, samples and variables.

    Networks come from the cache where they were trained before, and so do interactions. Nothing
    is computed before it is asked for.

    Attributes:
        dataset, network: names; see `load_dataset` and `build_network`.
        train_size, label_noise: see `load_dataset`.
        epochs, learning_rate, augment, checkpoints, mixed_precision: see `train`.
        baselines: number of baseline networks, each trained on a part of its own; 0 leaves the
            target alone, with a half of the data all the same.
        split: see `load_dataset`; by default halves, or as many parts as there are networks.
        samples: how many to look at.
        n, grid, noise, layer: see `Extractor`.
        seed: of the split, of the target's weights (a baseline k = 1, 2, ... has seed + k), of
            the samples and the variables.

    Example:
        >>> study = Study("digits", "cnn", train_size=100, epochs=2, samples=4, n=6)
        >>> study.data.spec["classes"], len(study.names)
        (10, 2)
    """

    dataset: str = "digits"
    network: str = "cnn"
    train_size: int | None = 300
    label_noise: float = 0.0
    epochs: int = 60
    learning_rate: float | None = None
    augment: bool = False
    checkpoints: int = 12
    mixed_precision: str = "no"
    baselines: int = 1
    split: str | None = None
    samples: int = 20
    n: int = 10
    grid: int = 5
    noise: float = 0.02
    layer: str = "first_relu"
    seed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any], **changes: Any) -> "Study":
        """Return the study that a chapter's parameters describe, with some of them changed.

        Args:
            parameters: of a chapter; those that a study does not have are passed over.
            **changes: to make; each must be an attribute.

        Raises:
            ValueError: for a change of something that a study does not have.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in changes:
            if name not in known:
                raise ValueError(f'a study has no "{name}"; it has {", ".join(known)}.'
                                 f"{nearest(name, known)}")  # fmt: skip
        own = {k: v for k, v in parameters.items() if k in known}
        return cls(**{**own, **changes})

    @property
    def title(self) -> str:
        """Network and data set in words."""
        return f"{self.network} on {self.dataset}"

    @functools.cached_property
    def data(self) -> Data:
        """The data set, split."""
        return load_dataset(
            self.dataset, train_size=self.train_size, label_noise=self.label_noise,
            split=self._split, seed=self.seed,
        )  # fmt: skip

    @property
    def _split(self) -> str:
        return self.split or ("halves" if self.baselines <= 1 else f"parts:{self.baselines}")

    @property
    def names(self) -> list[str]:
        """The parts of the data that the target and each baseline are trained on."""
        if self._split == "thirds":
            return ["A", "B", "C"]
        numbered = [f"baseline{k}" for k in range(1, self.baselines + 1)]
        if not self._split.startswith("parts"):
            numbered = ["baseline"][: self.baselines]
        return ["target", *numbered]

    @functools.cached_property
    def runs(self) -> list[TrainingRun]:
        """The trained networks: target first, then the baselines."""
        return [
            train(
                self.network, self.data, part, seed=self.seed + k, epochs=self.epochs,
                learning_rate=self.learning_rate, augment=self.augment,
                checkpoints=self.checkpoints, mixed_precision=self.mixed_precision,
            )
            for k, part in enumerate(self.names)
        ]  # fmt: skip

    @property
    def accuracies(self) -> pd.DataFrame:
        """One row a network: what it was trained on, for how long, and what it reaches."""
        rows = []
        for part, run in zip(self.names, self.runs, strict=True):
            last = run.records.iloc[-1]
            rows.append(
                {
                    "network": self.network,
                    "data": self.dataset,
                    "classes": self.data.spec["classes"],
                    "part": part,
                    "training samples": len(self.data.part(part)),
                    "wrong labels": self.label_noise,
                    "epochs": self.epochs,
                    "training accuracy": float(last["train_accuracy"]),
                    "test accuracy": float(last["test_accuracy"]),
                }
            )
        return pd.DataFrame(rows)

    def extractor(self, part: str = "test", **changes: Any) -> Extractor:
        """Return an `Extractor` for samples of a part.

        Args:
            part: of the data.
            **changes: to the arguments of `Extractor`, or ``samples``.
        """
        count = changes.pop("samples", self.samples)
        options = {"n": self.n, "grid": self.grid, "noise": self.noise, "layer": self.layer}
        chosen = self.data.sample(count, part=part, seed=self.seed)
        return Extractor(self.data, chosen, **{**options, "seed": self.seed, **changes})

    def follow(
        self, steps: Sequence[int] | None = None, part: str = "test", **changes: Any
    ) -> Dynamics:
        """Return the target's interactions at some checkpoints, with those of the baselines.

        Args:
            steps: checkpoints; all without.
            part, **changes: see `extractor`.
        """
        # First, since samples that cannot be had are to be found out before anything is trained.
        extractor = self.extractor(part, **changes)
        target, *others = self.runs
        return track(target, others, extractor, steps)

    def interactions(
        self, part: str = "test", **changes: Any
    ) -> tuple[Interactions, list[Interactions]]:
        """Return the interactions of the trained target, and of each baseline, on the samples.

        Args:
            part, **changes: see `extractor`.
        """
        found = self.follow(self.runs[0].steps[-1:], part, **changes)
        return found.interactions[0], found.baselines
