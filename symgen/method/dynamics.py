"""Follow the interactions of a network through training, sample by sample."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor
from tqdm.auto import tqdm

from symgen.interactions import Interactions
from symgen.method.phases import Phases, phases
from symgen.method.statistics import Interval, check_draws, halves, interval, mean_difference
from symgen.method.transfer import (
    HIGH_ORDERS,
    LOW_ORDERS,
    chance_level,
    generalization_power,
    interaction_count,
    order_spectrum,
    transfer,
)

# Quantities of `Dynamics.curves` that lie in [0, 1].
SHARES = ("power", "power_low", "power_high", "chance")


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """A network's interactions at every checkpoint, beside those of its baselines.

    Attributes:
        steps: optimizer steps of the checkpoints.
        interactions: of the followed network, one entry a checkpoint.
        baselines: of the baseline networks.
        records: one row a checkpoint: step, epoch, train_loss, test_loss and accuracies.
        losses: step to the losses of single training and test samples (nats), where they are
            known; the same samples at every step.
    """

    steps: list[int]
    interactions: list[Interactions]
    baselines: list[Interactions]
    records: pd.DataFrame
    losses: Mapping[int, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.interactions[0])

    def shares(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the transfer of the interactions at a step."""
        return transfer(self.interactions[self.steps.index(step)], self.baselines)

    def spectra(self, step: int) -> tuple[Tensor, Tensor]:
        """Return all and generalizable order spectra at a step, each (sample, 2, n + 1)."""
        inter = self.interactions[self.steps.index(step)]
        return order_spectrum(inter), order_spectrum(inter, self.shares(step))

    @functools.cached_property
    def curves(self) -> dict[str, Float[Tensor, "sample checkpoint"]]:
        """What is measured of every sample at every checkpoint, by name.

        power (H), power_low, power_high, count (N), generalizable and non_generalizable (salient
        strength, log odds), chance (H at chance), mean_order (of salient interactions, weighted by
        strength).
        """
        rows = []
        for step, inter in zip(self.steps, self.interactions, strict=True):
            share = self.shares(step)
            total, kept = (order_spectrum(inter, g).abs().sum((-2, -1)) for g in (None, share))
            rows.append({
                "power": generalization_power(inter, share),
                "power_low": generalization_power(inter, share, LOW_ORDERS),
                "power_high": generalization_power(inter, share, HIGH_ORDERS),
                "count": interaction_count(inter),
                "generalizable": kept,
                "non_generalizable": total - kept,
                "chance": chance_level(inter, self.baselines, draws=10),
                "mean_order": _mean_order(inter),
            })  # fmt: skip
        return {name: torch.stack([row[name] for row in rows], -1).cpu() for name in rows[0]}

    def per_sample(self) -> pd.DataFrame:
        """Return the `curves` as a table: step, sample, and one column each."""
        index = pd.MultiIndex.from_product([self.steps, range(len(self))], names=["step", "sample"])
        columns = {name: values.T.flatten().numpy() for name, values in self.curves.items()}
        return pd.DataFrame(columns, index).reset_index()

    def summary(self) -> pd.DataFrame:
        """Return one row a checkpoint: means over samples with 95 % intervals, and the losses.

        Columns: those of `records`, gap (test_loss - train_loss), and for every quantity q of
        `curves` the columns q, q_low95 and q_high95. Where the losses of single samples are known,
        train_loss, test_loss and the gap are theirs, and the gap has an interval, too.
        """
        rows = []
        for i, step in enumerate(self.steps):
            row: dict[str, float] = {"step": step}
            found = {k: interval(x[:, i], share=k in SHARES) for k, x in self.curves.items()}
            if step in self.losses:
                means = (float(x.double().mean()) for x in self.losses[step])
                row |= dict(zip(("train_loss", "test_loss"), means, strict=True))
                found["gap"] = self.gap(step)
            for name, value in found.items():
                row |= dict(zip((name, f"{name}_low95", f"{name}_high95"), value, strict=True))
            rows.append(row)
        measured = pd.DataFrame(rows)
        kept = self.records.columns.difference(measured.columns.drop("step"), sort=False)
        table = self.records[kept].merge(measured, on="step", validate="one_to_one")
        return table if self.losses else table.assign(gap=table["test_loss"] - table["train_loss"])

    def gap(self, step: int, since: int | None = None) -> Interval:
        """Return the loss gap at a step, or its change since another, with its 95 % interval.

        Mean test loss less mean training loss, of the samples in `losses`.
        """
        train, test = self.losses[step]
        if since is not None:
            train, test = train - self.losses[since][0], test - self.losses[since][1]
        return mean_difference(test, train)

    def turn(
        self, name: str, side: int, by: str | None = None
    ) -> tuple[Float[Tensor, "sample"], Float[Tensor, "sample"], Float[Tensor, "sample"]]:
        """Return how a quantity changes up to its extreme, and after it, sample by sample.

        The extreme lies between the first and the last checkpoint, where *the other half* of the
        samples has it on average, so that picking it flatters no sample.

        Args:
            name: of `curves`.
            side: 1 for the largest value, -1 for the lowest.
            by: quantity whose extreme it is; `name` without.

        Returns:
            The change from the first checkpoint to the extreme; from there to the last; and from
            the first to where, before the extreme, the other half lies farthest on the other
            side. NaN where a value does not exist, or the other half has no extreme.
        """
        values, guide = self.curves[name], side * self.curves[by or name]
        found = torch.full((3, len(values)), torch.nan, dtype=values.dtype)
        for half, other in halves(len(values)):
            seen = guide[other].nanmean(0)
            if seen[1:-1].isnan().all():
                continue
            top = 1 + int(seen[1:-1].nan_to_num(nan=-math.inf).argmax())
            astray = int(seen[:top].nan_to_num(nan=math.inf).argmin())
            first, back, at, last = values[half][:, [0, astray, top, -1]].T
            found[:, half] = torch.stack([at - first, last - at, back - first])
        return found[0], found[1], found[2]

    def since_t2(self, name: str, r: float = 1.0) -> Float[Tensor, "sample"]:
        """Return how a quantity changes from t2 of *the other half* of the samples to the end.

        NaN for samples whose other half has no t2.
        """
        values = self.curves[name]
        found = torch.full_like(values[:, 0], torch.nan)
        for half, other in halves(len(values)):
            t2 = self.phases(r, other).t2
            if t2 is not None:
                found[half] = values[half, -1] - values[half, self.steps.index(t2)]
        return found

    def phases(self, r: float = 1.0, samples: Tensor | None = None) -> Phases:
        """Return the phase boundaries of the averages over samples, all or some (an index)."""
        chosen = slice(None) if samples is None else samples
        names = ("power", "generalizable", "non_generalizable")
        means = [self.curves[name][chosen].nanmean(0).tolist() for name in names]
        return phases(self.steps, *means, r)

    def boundaries(self, r: float = 1.0, draws: int = 500, seed: int = 0) -> pd.DataFrame:
        """Return the phase boundaries of resampled samples: how sure t1 and t2 are.

        Args:
            r: as in `phases`.
            draws: number of resamples.
            seed: of the resamples.

        Returns:
            One row a resample: t1 and t2, missing where there is no such boundary.

        Raises:
            ValueError: without a draw.
        """
        check_draws(draws)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(self), (draws, len(self)), generator=generator)
        found = [self.phases(r, sample) for sample in drawn]
        return pd.DataFrame([(x.t1, x.t2) for x in found], columns=["t1", "t2"], dtype="Int64")

    def certainty(self, r: float = 1.0, seed: int = 0) -> dict[str, Any]:
        """Return r, t1 and t2 ("none" where there is none), and how often they come out again.

        That is the share of resamples of the samples with the same boundary; NaN for one sample.
        """
        found, drawn, row = self.phases(r), self.boundaries(r, seed=seed), {"r": r}
        for name in ("t1", "t2"):
            step = getattr(found, name)
            again = drawn[name].isna() if step is None else drawn[name].eq(step).fillna(False)
            row |= {name: str(step or "none")}
            row |= {f"{name}_again": float(again.mean()) if len(self) > 1 else math.nan}
        return row


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


def seed_spread(
    repeated: Mapping[Any, Dynamics], names: Sequence[str] = ("power", "count")
) -> pd.DataFrame:
    """Return how far repetitions differ at the last checkpoint, and how far by samples alone.

    Args:
        repeated: seed, or another name, to what was followed with it.
        names: quantities of `Dynamics.curves`.

    Returns:
        Columns quantity, seeds (how many), between (standard deviation of the means over samples),
        expected (what it would be about, were samples all that differs), limit (which it would
        exceed in 5 % of cases then, by the chi-squared distribution). NaN for a single seed.
    """
    rows, free = [], len(repeated) - 1
    for name in names:
        ends = [pd.Series(d.curves[name][:, -1].numpy()) for d in repeated.values()]
        between = pd.Series([x.mean() for x in ends]).std()
        expected = float(pd.Series([x.sem() ** 2 for x in ends]).mean(skipna=False) ** 0.5)
        limit = expected * (stats.chi2.ppf(0.95, free) / free) ** 0.5 if free else math.nan
        rows.append((name, len(ends), between, expected if free else math.nan, limit))
    return pd.DataFrame(rows, columns=["quantity", "seeds", "between", "expected", "limit"])
