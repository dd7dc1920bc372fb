"""Trainings measured at every checkpoint, as one tidy table; their means; phases (App. I)."""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import joblib
import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from symgen.device import progress_bar
from symgen.method.records import COLUMNS, append_measured, is_public, read_measured
from symgen.method.removal import output_parts, removal_losses
from symgen.method.study import Study, seeded
from symgen.method.transfer import (
    LOW_ORDERS,
    REST_ORDERS,
    checkpoint_values,
    excess,
    generalization_power,
    transfer,
)
from symgen.models.training import TrainingRun
from symgen.names import unknown
from symgen.storage import cached

RECORDS = ("epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy")
NULLS = ("untrained", "other_class", "untrained_low", "untrained_rest")


class OutOfTime(RuntimeError):
    """The time of `symgen run --minutes` is over; finished trainings are kept."""


def measure(
    study: Study,
    seeds: int | Iterable[int] | None = None,
    nulls: bool = False,
    workers: int | None = None,
) -> pd.DataFrame:
    """Train a study with several seeds and measure its target at every checkpoint.

    Each training is kept when it is done, so an interrupted call continues where it stopped.
    Trainings that the book has measured (`data/trainings`) are read. Several trainings run side by
    side in processes of joblib, or on the cluster of a surrounding `joblib.parallel_config`.

    Args:
        study: study with at least one baseline network.
        seeds: how many trainings, with seeds 10 apart from `study.seed` on; or the seeds
            themselves; None means `study.seed` alone.
        nulls: whether to add H with untrained baselines ("untrained") and with baselines whose
            output is that of another class ("other_class"); at the last checkpoint also
            untrained_low and untrained_rest, for orders 1-2 and from 3 on.
        workers: processes, or jobs on that cluster; by default as many as there are cores for
            torch's number of threads, and 1 on a GPU.

    Returns:
        Columns seed, step, quantity, order, sign, value; order and sign are empty unless the
        quantity has them. Each value is a mean over samples. Per checkpoint: epoch, train_loss,
        test_loss, gap (nats), train_accuracy, test_accuracy, H, H_low, H_high, H_rest (orders from
        3 on), H_lead (H_low - H_high of the samples that have both), H_one (one baseline), chance,
        excess (H - chance), N, generalizable, non_generalizable (salient strength, log odds),
        mean_order, orders_low, orders_middle, orders_high, uncancelled, spectrum and
        spectrum_generalizable (by order and sign). At the last checkpoint: excess_low,
        excess_rest, H_similarity, the losses of `removal_losses`, and gap_<part> (by order, log
        odds): the difference between training and test samples in each of `output_parts`.

    Raises:
        ValueError: for a study without baselines.
    """
    if study.baselines < 1:
        raise ValueError("the study has baselines=0; expected at least 1, to compare with")

    def select(table: pd.DataFrame) -> pd.DataFrame | None:
        added = table["quantity"].isin(NULLS)
        if nulls:
            return table if added.any() else None
        return table[~added]

    cases = [(one, nulls) for one in seeded(study, seeds)]
    return measured("measure", study.settings, _measured, cases, select, workers)


def measured(
    kind: str, settings: Mapping[str, Any], function: Callable, cases: Sequence[tuple],
    select: Callable[[pd.DataFrame], pd.DataFrame | None], workers: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return the table of some trainings: read those that the book has, measure the others.

    Args:
        kind, settings, select: see `read_measured`.
        function: returns the table of one training, and the seconds that it took.
        cases: its arguments, one tuple per training; the first is the study with its seed.
        workers: see `measure`.
    """
    tables = read_measured(settings, [study.seed for study, *_ in cases], kind, select)
    missing = [i for i, table in enumerate(tables) if table is None]
    new = side_by_side(function, [cases[i] for i in missing], workers)
    for i, (table, seconds) in zip(missing, new, strict=True):
        append_measured(settings, table, seconds, kind)
        tables[i] = table
    return pd.concat(tables, ignore_index=True)


def side_by_side(
    function: Callable,
    cases: Sequence[tuple],
    workers: int | None = None,
    title: str = "trainings",
) -> Iterator:
    """Yield the results of a function for several cases, run in several processes.

    Args:
        function: function at the top level of a module.
        cases: its arguments, one tuple per call.
        workers: see `measure`.
        title: title of the progress bar.

    Raises:
        OutOfTime: between two results, after the time in the variable SYMGEN_UNTIL (seconds since
            1970), which `symgen run --minutes` sets.
    """
    threads = torch.get_num_threads()
    if workers is None:
        workers = 1 if torch.cuda.is_available() else max(1, joblib.cpu_count() // threads)
    run = joblib.Parallel(n_jobs=max(1, min(workers, len(cases))), return_as="generator")
    # The bar below counts cases; those of other processes would end up in red between the lines.
    with mock.patch.dict(os.environ, TQDM_DISABLE="1"):
        results = run(joblib.delayed(_with_threads)(threads, function, *case) for case in cases)
    until = float(os.environ.get("SYMGEN_UNTIL", "inf"))
    bar = progress_bar(results, desc=title, total=len(cases), disable=len(cases) < 2, leave=False)
    for done, result in enumerate(bar, 1):
        yield result
        if done < len(cases) and time.time() > until:
            raise OutOfTime(f"{done} of {len(cases)} {title} measured; run again")


def _with_threads(threads: int, function: Callable, *arguments: Any) -> Any:
    torch.set_num_threads(threads)
    return function(*arguments)


def kept(
    kind: str, key: Any, study: Study, function: Callable, *arguments: Any
) -> tuple[dict[str, Tensor], float]:
    """Return the tensors of a function of a study, from the cache if they are stored there.

    Args:
        kind, key: see `cached`.
        study, arguments: arguments of the function.
        function: returns tensors by name.

    Returns:
        The tensors, and the seconds that the function took; NaN if unknown.
    """

    def compute() -> dict[str, Tensor]:
        started = time.perf_counter()
        values = function(study, *arguments)
        return {**values, "seconds": torch.tensor(time.perf_counter() - started)}

    values = cached(kind, key, compute, enabled=":" not in study.network)
    return values, float(values.pop("seconds", math.nan))


def _measured(study: Study, nulls: bool) -> tuple[pd.DataFrame, float]:
    settings, tables, seconds = study.settings, [], 0.0
    local = None if is_public(settings) else study.data.part("target").fingerprint
    for also, function in [("", _main), ("nulls", _nulls)][: 1 + nulls]:
        key = {"settings": settings, "seed": study.seed, "also": also, "local": local}
        values, spent = kept("measure", key, study, function)
        tables.append(tidy(study.seed, values))
        seconds += spent
    return pd.concat(tables, ignore_index=True), seconds


def tidy(seed: int, values: dict[str, Tensor]) -> pd.DataFrame:
    """Return tensors as rows of the table of `measure`.

    Args:
        seed: seed of the training.
        values: "steps", and by quantity a tensor: (checkpoint), (checkpoint, sign, order) for names
            that begin with "spectrum", (order) for "gap_...", or () for the last checkpoint alone.
    """
    steps, rows = values["steps"].tolist(), []
    for name, value in values.items():
        x = value.double().cpu().numpy()
        if name.startswith("spectrum"):
            entries = np.ndenumerate(x.swapaxes(1, 2))
            rows += [(seed, steps[i], name, m, "+-"[k], y) for (i, m, k), y in entries if m]
        elif name.startswith("gap_"):
            orders = {"gap_bias": [0], "gap_small": range(len(x))}.get(name, range(1, len(x)))
            rows += [(seed, steps[-1], name, m, None, x[m]) for m in orders]
        else:
            points = zip(steps if x.ndim else steps[-1:], x.ravel(), strict=True)
            rows += [(seed, step, name, None, None, y) for step, y in points]
    rows = sorted((row for row in rows if row[2] != "steps"), key=lambda row: row[1:3])
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"order": float, "sign": object})


def along(run: TrainingRun, names: Sequence[str], rows: Sequence[dict]) -> dict[str, Tensor]:
    """Return what is known of each checkpoint of a training, by name; also "steps".

    Args:
        run: the training.
        names: columns of its records.
        rows: more quantities, by checkpoint.
    """
    records = run.records.set_index("step").loc[list(run.steps)]
    values = {name: torch.tensor(records[name].to_numpy(dtype=float)) for name in names}
    values |= {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {"steps": torch.tensor(run.steps), **values}


def _main(study: Study) -> dict[str, Tensor]:
    """Return the quantities of `measure` by name, without those of `nulls`."""
    run, *others = study.check().runs
    baselines = [study.interactions(one) for one in others]
    path = [study.interactions(run, step) for step in run.steps]
    values = along(run, RECORDS, [checkpoint_values(inter, baselines) for inter in path])
    values["gap"] = values["test_loss"] - values["train_loss"]
    inter, g = path[-1], transfer(path[-1], baselines)
    values["excess_low"] = excess(inter, baselines, LOW_ORDERS).nanmean()
    values["excess_rest"] = excess(inter, baselines, REST_ORDERS).nanmean()
    alike = transfer(inter, baselines, metric="similarity")
    values["H_similarity"] = generalization_power(inter, alike).nanmean()
    # As many training samples, or all if there are fewer.
    part = study.names[0]
    fewer = study.changed(samples=min(study.samples, len(study.data.part(part))))
    seen, *known = (fewer.interactions(x, -1, part) for x in study.runs)
    groups = (seen, transfer(seen, known)), (inter, g)
    values |= removal_losses(*groups, seed=study.seed)
    train, test = (output_parts(*group) for group in groups)
    return values | {f"gap_{k}": train[k].mean(0) - test[k].mean(0) for k in train}


def _nulls(study: Study) -> dict[str, Tensor]:
    """Return H with untrained baselines, and with baselines for another class, by name."""
    run, *others = study.check().runs
    wrong = (study.drawn()[0].y + 1) % len(study.data.classes)
    nulls = {
        "untrained": [study.interactions(x, 0) for x in others],
        "other_class": [study.interactions(x, classes=wrong) for x in others],
    }
    path = [study.interactions(run, step) for step in run.steps]
    curves = {
        name: torch.stack([generalization_power(x, transfer(x, null)).nanmean() for x in path])
        for name, null in nulls.items()
    }
    g = transfer(path[-1], nulls["untrained"])
    for name, orders in (("untrained_low", LOW_ORDERS), ("untrained_rest", REST_ORDERS)):
        curves[name] = generalization_power(path[-1], g, orders).nanmean()
    return {"steps": torch.tensor(run.steps), **curves}


class Interval(NamedTuple):
    """A mean with its 95 % interval; NaN if it does not exist.

    Example:
        >>> f"{Interval(0.25, 0.1, 0.4)}", f"{Interval(2.0, 1.5, 2.5):.1f}"
        ('0.25 [0.10, 0.40]', '2.0 [1.5, 2.5]')
    """

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if np.isnan(self.mean):
            return "not defined"
        if np.isnan(self.low):
            return f"{self.mean:{spec}}"
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def array(values: Any) -> np.ndarray:
    """Return numbers (tensor, table column, list) as a flat float64 array without NaN."""
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[~np.isnan(flat)]


def interval(values: Any) -> Interval:
    """Return the mean of independent values and its 95 % t interval; NaN values are left out.

    Args:
        values: one number per repetition: a tensor, a table column or a list. Give differences
            for a paired comparison.

    Returns:
        Equal values have an interval without width. A single value has no interval (NaN).

    Example:
        >>> f"{interval([0.1, 0.2, 0.3])}"
        '0.20 [-0.05, 0.45]'
    """
    known = array(values)
    mean = float(known.mean()) if len(known) else np.nan
    if len(known) < 2:
        return Interval(mean, np.nan, np.nan)
    error = stats.sem(known)
    if error <= 1e-12 * np.abs(known).max():  # equal except for rounding
        return Interval(mean, mean, mean)
    low, high = stats.t.interval(0.95, len(known) - 1, mean, error)
    return Interval(mean, float(low), float(high))


def curves(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return a quantity by seed (index) and step (columns).

    Raises:
        ValueError: for a quantity that the table does not have.
    """
    rows = table[table["quantity"] == quantity]
    if rows.empty:
        raise unknown("quantity", quantity, table["quantity"].unique())
    return rows.pivot(index="seed", columns="step", values="value")


def last(table: pd.DataFrame, quantity: str) -> pd.Series:
    """Return a quantity at the last checkpoint, by seed."""
    return curves(table, quantity).iloc[:, -1].rename(quantity)


def summary(table: pd.DataFrame, quantities: Sequence[str]) -> pd.DataFrame:
    """Return means over trainings with 95 % t intervals.

    Args:
        table: table of `measure`.
        quantities: quantities to keep.

    Returns:
        Columns step, quantity, mean, low, high; also order and sign if a quantity has them.
    """
    rows = table[table["quantity"].isin(quantities)]
    by = ["step", "quantity"] + ["order", "sign"] * bool(rows["order"].notna().any())
    groups = rows.groupby(by, sort=False, dropna=False)["value"]
    means = [(*key, *interval(values)) for key, values in groups]
    return pd.DataFrame(means, columns=[*by, "mean", "low", "high"])


def peak(table: pd.DataFrame, quantity: str, side: int = 1, by: str | None = None) -> pd.DataFrame:
    """Return a quantity before, at and after its extreme, which the other trainings pick.

    The extreme lies between the first and the last checkpoint, at the step where the mean of all
    *other* trainings is most extreme. So no training is flattered by picking its own extreme.

    Args:
        table: table of `measure`.
        quantity: quantity to return.
        side: 1 for the largest value, -1 for the lowest.
        by: quantity whose extreme is picked; by default the same.

    Returns:
        One row per seed: before (first checkpoint), at (the extreme), after (last checkpoint).
        NaN for a single training, or without a checkpoint in between.
    """
    values, guide = curves(table, quantity), side * curves(table, by or quantity)
    rows = {}
    for seed in values.index:
        inner = guide.drop(index=seed).mean().iloc[1:-1].dropna()
        at = values.loc[seed, inner.idxmax()] if len(inner) else math.nan
        rows[seed] = (values.loc[seed].iloc[0], at, values.loc[seed].iloc[-1])
    return pd.DataFrame.from_dict(rows, "index", columns=["before", "at", "after"])


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phase boundaries of a training (App. I); None if one does not exist.

    Attributes:
        t1: step at which H peaks, the end of the first phase.
        t2: first step after t1 at which non-generalizable strength grows, and faster.
        reason: how they were found, or why one is missing.
    """

    t1: int | None
    t2: int | None
    reason: str


def phases(
    steps: Sequence[int],
    power: Sequence[float],
    strength_gen: Sequence[float],
    strength_non: Sequence[float],
    r: float = 1.0,
) -> Phases:
    """Return the phase boundaries t1 and t2 (App. I).

    t1 is the step at which H is largest. t2 is the first later step at which non-generalizable
    strength has grown since the checkpoint before, and generalizable strength by less than r times
    as much. No boundary is forced: there is no t1 if H is largest at the first or last checkpoint.

    Args:
        steps: steps of the checkpoints, ascending.
        power: H at each step; NaN is skipped.
        strength_gen, strength_non: salient strength of generalizable and of non-generalizable
            interactions at each.
        r: ratio of the two gains that ends the second phase, > 0. The paper gives no value.

    Raises:
        ValueError: for lengths that differ, fewer than two steps, or steps that do not ascend.

    Example:
        >>> phases([0, 1, 2, 3], [0.2, 0.6, 0.5, 0.4], [1, 3, 5, 5], [4, 2, 3, 6])
        Phases(t1=1, t2=3, reason=...)
    """
    lengths = [len(steps), len(power), len(strength_gen), len(strength_non)]
    ascending = all(a < b for a, b in itertools.pairwise(steps))
    if len({*lengths}) != 1 or len(steps) < 2 or not ascending or not r > 0:
        raise ValueError(
            f"steps {list(steps)[:10]}, lengths {lengths} and r = {r}; expected ascending steps, "
            "at least 2, one value of each quantity per step, and r > 0"
        )
    known = [i for i, h in enumerate(power) if not math.isnan(h)]
    if not known:
        return Phases(None, None, "H is not defined at any checkpoint")
    top = max(known, key=lambda i: power[i])
    if top == known[0]:
        return Phases(None, None, "H is largest at the first checkpoint: there is no first phase")
    if top == known[-1]:
        return Phases(None, None, "H still rises at the last checkpoint: the first phase goes on")
    t1, start = int(steps[top]), f"H peaks at step {steps[top]}"
    for i in range(top + 1, len(steps)):
        gain, loss = (x[i] - x[i - 1] for x in (strength_gen, strength_non))
        if loss > 0 and gain < r * loss:
            reason = f"non-generalizable strength grows faster at step {steps[i]} (r = {r:g})"
            return Phases(t1, int(steps[i]), f"{start}; {reason}")
    return Phases(t1, None, f"{start}; non-generalizable strength never grows faster (r = {r:g})")


def phases_of(table: pd.DataFrame) -> Phases:
    """Return the phase boundaries of the means over trainings; see `phases`."""
    names = ("H", "generalizable", "non_generalizable")
    means = [curves(table, name).mean() for name in names]
    return phases(means[0].index.tolist(), *(x.tolist() for x in means))


def since_t2(table: pd.DataFrame, quantity: str) -> pd.Series:
    """Return the change of a quantity from t2 to the end, by seed; the other trainings pick t2.

    NaN if the other trainings have no t2 before the last checkpoint.
    """
    values, changes = curves(table, quantity), {}
    for seed in values.index:
        others = table[table["seed"] != seed]
        t2 = phases_of(others).t2 if len(others) else None
        t2 = None if t2 == values.columns[-1] else t2
        changes[seed] = math.nan if t2 is None else values.loc[seed].iloc[-1] - values.loc[seed, t2]
    return pd.Series(changes, name=quantity)
