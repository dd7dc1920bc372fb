"""Follow the interactions of a network through training, sample by sample."""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from symgen.fingerprints import refusal, same_numbers
from symgen.interactions import Interactions
from symgen.masking.mask_values import MaskValue
from symgen.method.phases import Phases, phases
from symgen.method.spectra import mean_order, order_thirds, uncancelled
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

# Quantities of `Curves` that lie in [0, 1].
SHARES = (
    "power", "power_low", "power_high", "power_one", "chance", "untrained", "other_class",
    "orders_low", "orders_middle", "orders_high", "uncancelled",
)  # fmt: skip
THIRDS = ("orders_low", "orders_middle", "orders_high")


class Curves:
    """What was measured at every checkpoint, of samples of a training or of several trainings.

    Attributes:
        steps: optimizer steps of the checkpoints.
        curves: quantity to values, one row a unit and one column a checkpoint.
        records: one row a checkpoint: step, epoch, and what else is known of it.
        unit: what a row is: "samples" or "trainings".
        n: number of variables.
    """

    n: int
    steps: list[int]
    curves: Mapping[str, Float[Tensor, "unit checkpoint"]]
    records: pd.DataFrame
    unit: str

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.curves["power"])

    def turn(
        self, name: str, side: int, by: str | None = None
    ) -> tuple[Float[Tensor, "unit"], Float[Tensor, "unit"], Float[Tensor, "unit"]]:
        """Return how a quantity changes up to its extreme, and after it, unit by unit.

        The extreme lies between the first and the last checkpoint, where *the other half* of the
        units has it on average, so that picking it flatters no unit.

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

    def since_t2(self, name: str, r: float = 1.0) -> Float[Tensor, "unit"]:
        """Return how a quantity changes from t2 of *the other half* of the units to the end.

        NaN for units whose other half has no t2.
        """
        values = self.curves[name]
        found = torch.full_like(values[:, 0], torch.nan)
        for half, other in halves(len(values)):
            t2 = self.phases(r, other).t2
            if t2 is not None:
                found[half] = values[half, -1] - values[half, self.steps.index(t2)]
        return found

    def gap(self, step: int, since: int | None = None) -> Interval:
        """Return the loss gap at a step, or its change since another, with its 95 % interval.

        Mean test loss less mean training loss (nats); NaN where it is not known.
        """
        if "gap" not in self.curves:
            return Interval(math.nan, math.nan, math.nan)
        at, before = (None if x is None else self.steps.index(x) for x in (step, since))
        values = self.curves["gap"][:, at]
        return interval(values if before is None else values - self.curves["gap"][:, before])

    def summary(self) -> pd.DataFrame:
        """Return one row a checkpoint: means over units with 95 % intervals, and the losses.

        Columns: those of `records`, gap (test_loss - train_loss), and for every quantity q of
        `curves` the columns q, q_low95 and q_high95. Where the losses of single samples are known,
        train_loss, test_loss and the gap are theirs, and the gap has an interval, too.
        """
        rows = []
        for step in self.steps:
            row: dict[str, float] = {"step": step}
            for name, value in self._at(step).items():
                ends = () if isinstance(value, float) else (f"{name}_low95", f"{name}_high95")
                value = [value] if isinstance(value, float) else value
                row |= dict(zip((name, *ends), value, strict=True))
            rows.append(row)
        measured = pd.DataFrame(rows)
        kept = self.records.columns.difference(measured.columns.drop("step"), sort=False)
        table = self.records[kept].merge(measured, on="step", validate="one_to_one")
        return (
            table if "gap" in table else table.assign(gap=table["test_loss"] - table["train_loss"])
        )

    def _at(self, step: int) -> dict[str, Interval | float]:
        """Return the mean of every quantity at a step."""
        i = self.steps.index(step)
        return {k: interval(x[:, i], share=k in SHARES) for k, x in self.curves.items()}

    def phases(self, r: float = 1.0, units: Tensor | None = None) -> Phases:
        """Return the phase boundaries of the averages over units, all or some (an index)."""
        chosen = slice(None) if units is None else units
        names = ("power", "generalizable", "non_generalizable")
        means = [self.curves[name][chosen].nanmean(0).tolist() for name in names]
        return phases(self.steps, *means, r)

    def boundaries(self, r: float = 1.0, draws: int = 500, seed: int = 0) -> pd.DataFrame:
        """Return the phase boundaries of resampled units: how sure t1 and t2 are.

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
        found = [self.phases(r, unit) for unit in drawn]
        return pd.DataFrame([(x.t1, x.t2) for x in found], columns=["t1", "t2"], dtype="Int64")

    def certainty(self, r: float = 1.0, seed: int = 0) -> dict[str, Any]:
        """Return r, t1 and t2 ("none" where there is none), and how often they come out again.

        That is the share of resamples of the units with the same boundary; NaN for one unit.
        """
        found, drawn, row = self.phases(r), self.boundaries(r, seed=seed), {"r": r}
        for name in ("t1", "t2"):
            step = getattr(found, name)
            again = drawn[name].isna() if step is None else drawn[name].eq(step).fillna(False)
            row |= {name: str(step or "none")}
            row |= {f"{name}_again": float(again.mean()) if len(self) > 1 else math.nan}
        return row


@dataclasses.dataclass(frozen=True)
class Dynamics(Curves):
    """A network's interactions at every checkpoint, beside those of its baselines.

    Attributes:
        steps: optimizer steps of the checkpoints.
        interactions: of the followed network, one entry a checkpoint.
        baselines: of the baseline networks.
        records: one row a checkpoint: step, epoch, train_loss, test_loss and accuracies.
        losses: step to the losses of single training and test samples (nats), where they are
            known; the same samples at every step.
        nulls: interactions of networks that know nothing of the task or of the sample, by name,
            in place of the baselines; see `Study.nulls`.
    """

    steps: list[int]
    interactions: list[Interactions]
    baselines: list[Interactions]
    records: pd.DataFrame
    losses: Mapping[int, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)
    nulls: Mapping[str, list[Interactions]] = dataclasses.field(default_factory=dict)
    unit = "samples"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.interactions[0])

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.interactions[0].n

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

        power (H), power_low, power_high, power_one (H with one baseline, averaged over them),
        chance (H at chance), lift (H above chance), those of `nulls` (H with these for baselines),
        count (N), generalizable and non_generalizable (salient strength, log odds), mean_order (of
        salient interactions, weighted by strength), orders_low, orders_middle, orders_high (shares
        of the salient strength, of `order_thirds`) and uncancelled (of `uncancelled`).
        """
        rows = []
        for step, inter in zip(self.steps, self.interactions, strict=True):
            share = self.shares(step)
            spectrum = order_spectrum(inter)
            total, kept = (x.abs().sum((-2, -1)) for x in (spectrum, order_spectrum(inter, share)))
            alone = [generalization_power(inter, transfer(inter, one)) for one in self.baselines]
            nulls = {k: transfer(inter, others) for k, others in self.nulls.items()}
            power = generalization_power(inter, share)
            chance = chance_level(inter, self.baselines, draws=10)
            rows.append({
                "power": power,
                "power_low": generalization_power(inter, share, LOW_ORDERS),
                "power_high": generalization_power(inter, share, HIGH_ORDERS),
                "power_one": torch.stack(alone).mean(0),
                "chance": chance,
                "lift": power - chance,
                **{k: generalization_power(inter, g) for k, g in nulls.items()},
                "count": interaction_count(inter),
                "generalizable": kept,
                "non_generalizable": total - kept,
                "mean_order": mean_order(spectrum),
                **dict(zip(THIRDS, order_thirds(spectrum), strict=True)),
                "uncancelled": uncancelled(spectrum),
            })  # fmt: skip
        return {name: torch.stack([row[name] for row in rows], -1).cpu() for name in rows[0]}

    def gap(self, step: int, since: int | None = None) -> Interval:
        """Return the loss gap at a step, or its change since another, with its 95 % interval.

        Mean test loss less mean training loss, of the samples in `losses`; NaN without them.
        """
        if not self.losses:
            return super().gap(step, since)
        train, test = self.losses[step]
        if since is not None:
            train, test = train - self.losses[since][0], test - self.losses[since][1]
        return mean_difference(test, train)

    def _at(self, step: int) -> dict[str, Interval | float]:
        if step not in self.losses:
            return super()._at(step)
        means = (float(x.double().mean()) for x in self.losses[step])
        losses = dict(zip(("train_loss", "test_loss"), means, strict=True))
        return {**super()._at(step), **losses, "gap": self.gap(step)}


@refusal
def _refuse_no_runs(run: Any, baselines: Any) -> None:
    if not isinstance(baselines, Sequence):
        raise ValueError(
            f"baselines are {type(baselines).__name__}; expected a list, also of a single one"
        )
    if not len(baselines):
        raise ValueError(
            "there are no baselines; expected one or more, which decide what transfers"
        )
    for what, one in [("run", run), *(("baseline", b) for b in baselines)]:
        if not hasattr(one, "steps") or not hasattr(one, "load"):
            raise ValueError(
                f"a {what} is {type(one).__name__}; expected a training with checkpoints. Of your "
                "own make symgen.Checkpoints(files, build); of a finished network alone "
                "symgen.Checkpoints([lambda: network])"
            )
    if any(b is run for b in baselines):
        raise ValueError(
            "the run is one of its own baselines, to which all that it has transfers; give "
            "trainings of other networks, on other data"
        )


@refusal
def _refuse_itself(run: Any, baselines: Sequence[Any]) -> None:
    """Refuse a baseline that is the followed network at its end, from wherever it was loaded."""
    last = run.key(run.steps[-1])
    for number, one in enumerate(baselines):
        if one.key(one.steps[-1]) == last:
            raise ValueError(
                f"baseline {number} is the network of the run itself at its last step, to which "
                "all that it has transfers; give another network, trained on other data"
            )


@refusal
def _refuse_other_steps(run: Any, steps: Sequence[int]) -> None:
    ascending = all(a < b for a, b in itertools.pairwise(steps))
    last = [*steps] == [-1]  # alone, as where no training is followed
    if not steps or not ascending or not ({*steps} <= {*run.steps} or last):
        raise ValueError(
            f"steps are {steps[:10]}; expected some of the checkpoints' {[*run.steps][:20]}, "
            "ascending"
        )


@refusal
def _refuse_sampled(found: Sequence[Any]) -> None:
    for one in found:
        if not isinstance(one, Interactions):
            told = f"what extract returns is {type(one).__name__}"
            if one is None or isinstance(one, Tensor):
                raise ValueError(f"{told}; expected Interactions: return what symgen.extract gives")
            raise ValueError(
                f"{told}, of a sample of the masked states; a training is followed by the "
                "interactions of all of them: draw fewer variables, and leave out states"
            )


@refusal
def _refuse_without_key(extract: Any) -> None:
    if inspect.isfunction(extract):
        taken = inspect.signature(extract).parameters.values()
        if not any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in taken):
            raise ValueError(
                "extract is called with the network and key=..., what identifies it, and takes "
                f"({', '.join(p.name for p in taken)}); name its second argument key, such as "
                "lambda network, key: symgen.extract(network, inputs, variables, value, key=key)"
            )


@refusal
def _refuse_one_value(extract: Any) -> None:
    kept = getattr(extract, "keywords", {})
    if inspect.isfunction(extract):
        seen = inspect.getclosurevars(extract)
        kept = {**seen.globals, **seen.nonlocals}
    for name, value in kept.items():
        # At the input it is of the samples, and zero is zero of any network.
        if isinstance(value, MaskValue) and value.layer is not None and value.value.any():
            raise ValueError(
                f"{name} is the mask value of one network at its layer {value.layer}, and extract "
                "would use it for all; give the function that makes it, such as "
                "lambda network: symgen.mean_feature(network, images)"
            )


@refusal
def _refuse_other_samples(found: Sequence[Interactions]) -> None:
    known = [one.about["inputs"] for one in found if "inputs" in one.about]
    if len({*known}) > 1:
        raise ValueError(
            "extract took other samples or variables for one network than for another, so that "
            "their interactions are not comparable; draw both once, before it is called"
        )


@same_numbers
def of_the_same_samples(follow: Callable[..., Dynamics]) -> Callable[..., Dynamics]:
    """Have what was found refused where it is not of the same samples throughout."""

    @functools.wraps(follow)
    def compared(*given: Any, **named: Any) -> Dynamics:
        found = follow(*given, **named)
        _refuse_other_samples([*found.baselines, *found.interactions])
        return found

    return compared


@of_the_same_samples
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
        steps: checkpoints to look at, ascending; all without.
        progress: whether to show a bar.

    Raises:
        ValueError: for what has no checkpoints, or other steps; where `extract` holds a mask value
            that belongs to one network; where it takes a sample of masked states, of the baselines
            already, which come first; where it takes other samples or variables for one network
            than for another.
    """
    _refuse_no_runs(run, baselines)
    _refuse_without_key(extract)
    _refuse_one_value(extract)
    steps = list(run.steps if steps is None else steps)
    _refuse_other_steps(run, steps)

    def at(source: Any, step: int) -> Any:
        return extract(source.load(step), key=source.key(step))

    others = [at(b, b.steps[-1]) for b in baselines]
    _refuse_sampled(others)
    _refuse_other_samples(others)
    _refuse_itself(run, baselines)
    bar = tqdm(steps, desc="checkpoints", disable=not progress, leave=False)
    return Dynamics(steps, [at(run, step) for step in bar], others, run.records)
