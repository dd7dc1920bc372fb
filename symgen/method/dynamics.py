"""Follow the interactions of a network through training, and find the three phases."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from symgen.interactions import Interactions
from symgen.method.statistics import Interval, check_draws, interval
from symgen.method.transfer import (
    chance_level,
    generalization_power,
    interaction_count,
    order_spectrum,
    transfer,
)

# Quantities of `Dynamics.per_sample` that lie in [0, 1].
SHARES = ("power", "power_low", "power_high", "chance")


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """A network's interactions at every checkpoint, beside those of its baselines.

    Attributes:
        steps: optimizer steps of the checkpoints.
        interactions: of the followed network, one entry a checkpoint.
        baselines: of the baseline networks.
        losses: one row a checkpoint: step, epoch, train_loss, test_loss and accuracies.
    """

    steps: list[int]
    interactions: list[Interactions]
    baselines: list[Interactions]
    losses: pd.DataFrame

    def shares(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the transfer of the interactions at a step."""
        return transfer(self.interactions[self.steps.index(step)], self.baselines)

    def spectra(self, step: int) -> tuple[Tensor, Tensor]:
        """Return all and generalizable order spectra at a step, each (sample, 2, n + 1)."""
        inter = self.interactions[self.steps.index(step)]
        return order_spectrum(inter), order_spectrum(inter, self.shares(step))

    def per_sample(self) -> pd.DataFrame:
        """Return one row a checkpoint and sample.

        Columns: step, sample, power (H), power_low, power_high, count (N), generalizable and
        non_generalizable (salient strength, log odds), chance (H at chance), mean_order (of
        salient interactions, weighted by strength).
        """
        return self._per_sample.copy()

    @functools.cached_property
    def _per_sample(self) -> pd.DataFrame:
        rows = []
        for step, inter in zip(self.steps, self.interactions, strict=True):
            share = self.shares(step)
            total = order_spectrum(inter).abs().sum((-2, -1))
            kept = order_spectrum(inter, share).abs().sum((-2, -1))
            rows.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "sample": range(len(inter)),
                        "power": generalization_power(inter, share).numpy(),
                        "power_low": generalization_power(inter, share, (1, 2)).numpy(),
                        "power_high": generalization_power(
                            inter, share, range(6, inter.n + 1)
                        ).numpy(),
                        "count": interaction_count(inter).numpy(),
                        "generalizable": kept.numpy(),
                        "non_generalizable": (total - kept).numpy(),
                        "chance": chance_level(inter, self.baselines, draws=10).numpy(),
                        "mean_order": _mean_order(inter).numpy(),
                    }
                )
            )
        return pd.concat(rows, ignore_index=True)

    def summary(self) -> pd.DataFrame:
        """Return one row a checkpoint: means over samples with 95 % intervals, and the losses.

        Columns: those of `losses`, gap (test_loss - train_loss), and for every quantity q of
        `per_sample` the columns q, q_low and q_high.
        """
        rows = []
        for step, group in self.per_sample().groupby("step", sort=True):
            row: dict[str, float] = {"step": step}
            for name in group.columns.drop(["step", "sample"]):
                values = torch.tensor(group[name].to_numpy())
                mean, low, high = interval(values, share=name in SHARES)
                row |= {name: mean, f"{name}_low95": low, f"{name}_high95": high}
            rows.append(row)
        losses = self.losses[self.losses["step"].isin(self.steps)]
        table = losses.merge(pd.DataFrame(rows), on="step", validate="one_to_one")
        return table.assign(gap=table["test_loss"] - table["train_loss"])

    def change(self, name: str, start: int, stop: int) -> Interval:
        """Return how a quantity of `per_sample` changes between two checkpoints.

        The mean over samples of its value at step `stop` minus its value at step `start`, with a
        95 % interval over samples.
        """
        wide = self._per_sample.pivot(index="step", columns="sample", values=name)
        return interval(torch.tensor((wide.loc[stop] - wide.loc[start]).to_numpy()))

    def phases(self, r: float = 1.0) -> "Phases":
        """Return the phase boundaries of the averages over samples."""
        table = self.summary()
        return phases(
            table["step"].tolist(),
            table["power"].tolist(),
            table["generalizable"].tolist(),
            table["non_generalizable"].tolist(),
            r,
        )


def _mean_order(inter: Interactions) -> Tensor:
    strength = order_spectrum(inter).abs().sum(-2)
    total = strength.sum(-1)
    weighted = strength @ torch.arange(inter.n + 1, dtype=strength.dtype)
    return weighted / total.where(total > 0, torch.nan)


def track(
    run: Any,
    baselines: Sequence[Any],
    extract: Callable[..., Interactions],
    steps: Sequence[int] | None = None,
    progress: bool = True,
) -> Dynamics:
    """Follow the interactions of a training run over its checkpoints.

    Args:
        run: the followed `TrainingRun`, or anything with ``steps``, ``load(step)``, ``key(step)``
            and ``records``.
        baselines: finished runs of the networks that decide what generalizes.
        extract: from a network and what identifies it (``key``) to its interactions, on the same
            samples each time; such as `extract` with its other arguments given.
        steps: checkpoints to look at; all without.
        progress: whether to show a bar.
    """
    steps = list(run.steps if steps is None else steps)

    def at(source: Any, step: int) -> Interactions:
        return extract(source.load(step), key=source.key(step))

    others = [at(b, b.steps[-1]) for b in baselines]
    bar = tqdm(steps, desc="checkpoints", disable=not progress, leave=False)
    return Dynamics(steps, [at(run, step) for step in bar], others, run.records)


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phase boundaries of a training run (App. I); None where there is none.

    Attributes:
        t1: step at which H peaks, the end of the first phase.
        t2: first step after t1 at which non-generalizable strength grows, and faster.
        reason: in words, what was found and why a boundary may be missing.
    """

    t1: int | None
    t2: int | None
    reason: str

    def of(self, step: int) -> int | None:
        """Return the phase (1, 2 or 3) that a step lies in; None without t1."""
        if self.t1 is None:
            return None
        if step <= self.t1:
            return 1
        return 2 if self.t2 is None or step <= self.t2 else 3


def phases(
    steps: Sequence[int],
    power: Sequence[float],
    strength_gen: Sequence[float],
    strength_non: Sequence[float],
    r: float = 1.0,
) -> Phases:
    """Return the phase boundaries t1 and t2 (App. I).

    t1 is the step at which H is largest. t2 is the first step after it at which, since the
    checkpoint before, non-generalizable strength grew, and generalizable strength by less than
    r times as much. No boundary is forced: without a rise of H there is no t1, and while H still
    rises at the end, the first phase is not over.

    Args:
        steps: of the checkpoints, ascending.
        power: H at each; NaN where there is none, which is passed over.
        strength_gen, strength_non: summed strength of salient generalizable and
            non-generalizable interactions at each.
        r: ratio of the two gains that ends the second phase, > 0 (the paper gives no value).

    Example:
        >>> phases([0, 1, 2, 3], [0.2, 0.6, 0.5, 0.4], [1, 3, 5, 5], [4, 2, 3, 6])
        Phases(t1=1, t2=3, reason=...)
    """
    lengths = {len(steps), len(power), len(strength_gen), len(strength_non)}
    if len(lengths) != 1 or len(steps) < 2:
        raise ValueError(
            "phases needs one value of each quantity a checkpoint, for at least 2 checkpoints; "
            f"got lengths {len(steps)}, {len(power)}, {len(strength_gen)}, {len(strength_non)}"
        )
    if not r > 0:
        raise ValueError(f"r must be positive, got {r}")
    known = [i for i in range(len(steps)) if not math.isnan(power[i])]
    if not known:
        return Phases(None, None, "H is not defined at any checkpoint: no phase is seen")
    peak = max(known, key=lambda i: power[i])
    t1 = steps[peak]
    if peak == known[0]:
        return Phases(None, None, "H is largest before training: no first phase is seen")
    if peak == known[-1]:
        reason = "H still rises at the last checkpoint: the first phase is not over"
        return Phases(None, None, reason)
    for i in range(peak + 1, len(steps)):
        gain = strength_gen[i] - strength_gen[i - 1]
        loss = strength_non[i] - strength_non[i - 1]
        if loss > 0 and gain < r * loss:
            return Phases(
                t1,
                steps[i],
                f"H peaks at step {t1}; at step {steps[i]}, first after that, non-generalizable "
                f"strength grows faster than generalizable strength (ratio r = {r:g})",
            )
    return Phases(
        t1,
        None,
        f"H peaks at step {t1}; at no checkpoint after that does non-generalizable strength grow, "
        f"and faster than generalizable strength (ratio r = {r:g}), so no third phase is seen",
    )


def bootstrap_phases(
    per_sample: pd.DataFrame, r: float = 1.0, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Return the phase boundaries of resampled samples: how sure t1 and t2 are.

    Args:
        per_sample: of `Dynamics.per_sample`.
        r: as in `phases`.
        draws: number of resamples.
        seed: of the resamples.

    Returns:
        One row a resample: t1 and t2, missing where there is no such boundary.

    Raises:
        ValueError: without a draw.
    """
    check_draws(draws)
    names = ("power", "generalizable", "non_generalizable")
    tables = {
        k: per_sample.pivot(index="step", columns="sample", values=k).sort_index() for k in names
    }
    steps = tables["power"].index.tolist()
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(draws):
        drawn = generator.integers(tables["power"].shape[1], size=tables["power"].shape[1])
        means = [tables[k].iloc[:, drawn].mean(axis=1).tolist() for k in names]
        found = phases(steps, *means, r)
        rows.append((found.t1, found.t2))
    return pd.DataFrame(rows, columns=["t1", "t2"], dtype="Int64")
