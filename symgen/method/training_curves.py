"""Trainings measured at every checkpoint, as one tidy table; their means; phases (App. I)."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.generalization import (
    HIGH_ORDERS,
    LOW_ORDERS,
    REST_ORDERS,
    chance_level,
    excess,
    generalization_power,
    interaction_count,
    mean_order,
    order_spectrum,
    order_thirds,
    other_sample_level,
    salient_strength,
    sign_agreement,
    transfer,
    uncancelled,
)
from symgen.method.removal import output_parts, removal_losses
from symgen.method.statistics import mean_intervals
from symgen.method.study import Study, seeded
from symgen.method.trainings import Part, Trainings
from symgen.models.training import chance_bound
from symgen.names import unknown

COLUMNS = ["seed", "step", "quantity", "order", "sign", "value"]
RECORDS = ["epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy"]
NULLS = (
    "untrained",
    "other_class",
    "untrained_low",
    "untrained_rest",
    "untrained_chance",
    "untrained_agreement",
)


def measure(
    study: Study,
    seeds: int | Iterable[int] | None = None,
    nulls: bool = False,
    workers: int | None = None,
    store: Trainings | None = None,
) -> pd.DataFrame:
    """Train a study with several seeds and measure its target at every checkpoint.

    Trainings that the book has measured (`data/trainings`) are read. Each new training is kept when
    it is done, so an interrupted call continues where it stopped. Several trainings run side by
    side in processes of joblib, or on the cluster of a surrounding `joblib.parallel_config`.

    Args:
        study: study with at least one baseline network.
        seeds: how many trainings, with seeds 10 apart from `study.seed` on; or the seeds
            themselves; None means `study.seed` alone.
        nulls: whether to add H with untrained baselines ("untrained") and with baselines whose
            output is that of another class ("other_class"). At the last checkpoint these are also
            untrained_low and untrained_rest, for orders 1-2 and from 3 on, and the chance level
            and the sign agreement of untrained baselines.
        workers: see `side_by_side`.
        store: where trainings are read and kept; by default the book's folder and the cache.

    Returns:
        Columns seed, step, quantity, order, sign, value; order and sign are empty unless the
        quantity has them. Each value is a mean over samples. Per checkpoint: epoch, train_loss,
        test_loss, gap (nats), train_accuracy, test_accuracy, H, H_low, H_high, H_rest (orders from
        3 on), H_lead (H_low - H_high of the samples that have both), H_one (one baseline), chance,
        excess (H - chance), other_sample (see `other_sample_level`), agreement (see
        `sign_agreement`), N, generalizable, non_generalizable (salient strength, log odds),
        mean_order, orders_low, orders_middle, orders_high, uncancelled, spectrum and
        spectrum_generalizable (by order and sign). At the last checkpoint: excess_low,
        excess_rest, other_sample_low, other_sample_rest, H_similarity, the losses of
        `removal_losses`, and guessing, the test accuracy up to which a network is near chance.
        Also gap_<part> (by order, log odds), the difference between training and test samples in
        each of `output_parts`.

    Raises:
        ValueError: for a study without baselines.
        OutOfTime: see `Trainings`.
    """
    if study.baselines < 1:
        raise ValueError("the study has baselines=0; expected at least 1, to compare with")
    parts = [Part(_main, lambda rows: ~rows["quantity"].isin(NULLS))]
    if nulls:
        parts.append(Part(_nulls, lambda rows: rows["quantity"].isin(NULLS)))
    table = (store or Trainings()).table("measure", seeded(study, seeds), parts, workers)
    return pd.concat([table, _guessing(study, table)], ignore_index=True)


def _guessing(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the test accuracy that guessing reaches; see `is_near_chance`."""
    labels = study.data.part("test").labels
    share = float(labels.bincount().max()) / len(labels)
    bound = chance_bound(share, min(len(labels), study.training.evaluation_size))
    ends = table.groupby("seed")["step"].max()
    return _frame([(seed, step, "guessing", None, None, bound) for seed, step in ends.items()])


def _frame(rows: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).astype({"order": float, "sign": object})


def learned(table: pd.DataFrame) -> bool:
    """Return whether the networks of `measure` are clearly better than guessing, on average."""
    return bool(last(table, "test_accuracy").mean() > last(table, "guessing").mean())


def checkpoint_values(inter: Interactions, baselines: Sequence[Interactions]) -> dict[str, Tensor]:
    """Return the quantities of `measure` at one checkpoint, averaged over samples.

    Args:
        inter: interactions of the network, shape (sample, 2, 2**n).
        baselines: interactions of one or more baseline networks.
    """
    g = transfer(inter, baselines)
    spectrum = order_spectrum(inter)
    kept = order_spectrum(inter, g)
    generalizable, rest = salient_strength(inter, g)
    power = generalization_power(inter, g)
    low = generalization_power(inter, g, LOW_ORDERS)
    high = generalization_power(inter, g, HIGH_ORDERS)
    chance = chance_level(inter, baselines)
    alone = [generalization_power(inter, transfer(inter, one)) for one in baselines]
    thirds = order_thirds(spectrum)
    values = {
        "H": power,
        "H_low": low,
        "H_high": high,
        "H_rest": generalization_power(inter, g, REST_ORDERS),
        "H_lead": low - high,
        "H_one": torch.stack(alone).mean(0),
        "chance": chance,
        "excess": power - chance,
        "other_sample": other_sample_level(inter, baselines),
        "agreement": sign_agreement(inter, baselines),
        "N": interaction_count(inter),
        "mean_order": mean_order(spectrum),
        "generalizable": generalizable,
        "non_generalizable": rest,
        "orders_low": thirds[:, 0],
        "orders_middle": thirds[:, 1],
        "orders_high": thirds[:, 2],
        "uncancelled": uncancelled(spectrum),
    }
    means = {name: value.nanmean() for name, value in values.items()}
    return {**means, "spectrum": spectrum.mean(0), "spectrum_generalizable": kept.mean(0)}


def tidy(seed: int, path: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """Return measured quantities as rows of the table of `measure`.

    Args:
        seed: seed of the training.
        path: quantities by step. Each is a number, except those that are called "spectrum..."
            (sign, order) and "gap_..." (order).
    """
    rows = []
    for step, values in path.items():
        for name, value in values.items():
            if name.startswith("spectrum"):
                for sign, numbers in zip("+-", value.tolist(), strict=True):
                    for order, number in enumerate(numbers[1:], 1):
                        rows.append((seed, step, name, order, sign, number))
            elif name.startswith("gap_"):
                numbers = value.tolist()
                orders = {"gap_bias": [0], "gap_small": range(len(numbers))}
                for order in orders.get(name, range(1, len(numbers))):
                    rows.append((seed, step, name, order, None, numbers[order]))
            else:
                rows.append((seed, step, name, None, None, float(value)))
    return _frame(sorted(rows, key=lambda row: row[1:3]))


def _main(study: Study) -> pd.DataFrame:
    """Return the rows of `measure` for one training, without those of `nulls`."""
    run, *others = study.check().runs
    baselines = [study.interactions(one) for one in others]
    path: Any = run.records.set_index("step")[RECORDS].to_dict("index")
    for step, values in path.items():
        inter = study.interactions(run, step)
        values |= checkpoint_values(inter, baselines)
        values["gap"] = values["test_loss"] - values["train_loss"]
    last = path[run.steps[-1]]
    for name, orders in (("low", LOW_ORDERS), ("rest", REST_ORDERS)):
        last[f"excess_{name}"] = excess(inter, baselines, orders).nanmean()
        last[f"other_sample_{name}"] = other_sample_level(inter, baselines, orders).nanmean()
    alike = transfer(inter, baselines, metric="similarity")
    last["H_similarity"] = generalization_power(inter, alike).nanmean()
    # As many training samples, or all if there are fewer.
    part = study.names[0]
    fewer = study.changed(samples=min(study.samples, len(study.data.part(part))))
    seen, *known = [fewer.interactions(one, -1, part) for one in study.runs]
    train = seen, transfer(seen, known)
    test = inter, transfer(inter, baselines)
    last |= removal_losses(train, test, seed=study.seed)
    parts = output_parts(*test)
    for name, value in output_parts(*train).items():
        last[f"gap_{name}"] = value.mean(0) - parts[name].mean(0)
    return tidy(study.seed, path)


def _nulls(study: Study) -> pd.DataFrame:
    """Return H with untrained baselines, and with baselines for another class."""
    run, *others = study.check().runs
    wrong = (study.drawn()[0].y + 1) % len(study.data.classes)
    untrained = [study.interactions(one, 0) for one in others]
    other_class = [study.interactions(one, classes=wrong) for one in others]
    path = {}
    for step in run.steps:
        inter = study.interactions(run, step)
        g = transfer(inter, untrained)
        path[step] = {
            "untrained": generalization_power(inter, g).nanmean(),
            "other_class": generalization_power(inter, transfer(inter, other_class)).nanmean(),
        }
    path[step] |= {
        "untrained_low": generalization_power(inter, g, LOW_ORDERS).nanmean(),
        "untrained_rest": generalization_power(inter, g, REST_ORDERS).nanmean(),
        "untrained_chance": chance_level(inter, untrained).nanmean(),
        "untrained_agreement": sign_agreement(inter, untrained).nanmean(),
    }
    return tidy(study.seed, path)


def curves(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return a quantity by seed (index) and step (columns).

    Raises:
        ValueError: for a quantity that the table does not have.
    """
    rows = table[table["quantity"] == quantity]
    if rows.empty:
        raise unknown("quantity", quantity, table["quantity"].unique())
    return rows.pivot(index="seed", columns="step", values="value")


def first(table: pd.DataFrame, quantity: str) -> pd.Series:
    """Return a quantity at the first checkpoint, by seed."""
    return curves(table, quantity).iloc[:, 0]


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
    by = ["step", "quantity"]
    if rows["order"].notna().any():
        by += ["order", "sign"]
    return mean_intervals(rows, by, "value")


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
    values = curves(table, quantity)
    guide = side * curves(table, by or quantity)
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
            interactions at each; see `salient_strength`.
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
    t1 = int(steps[top])
    start = f"H peaks at step {t1}"
    for i in range(top + 1, len(steps)):
        kept = strength_gen[i] - strength_gen[i - 1]
        lost = strength_non[i] - strength_non[i - 1]
        if lost > 0 and kept < r * lost:
            reason = f"non-generalizable strength grows faster at step {steps[i]} (r = {r:g})"
            return Phases(t1, int(steps[i]), f"{start}; {reason}")
    return Phases(t1, None, f"{start}; non-generalizable strength never grows faster (r = {r:g})")


def phases_of(table: pd.DataFrame) -> Phases:
    """Return the phase boundaries of the means over trainings; see `phases`."""
    power = curves(table, "H").mean()
    kept = curves(table, "generalizable").mean()
    lost = curves(table, "non_generalizable").mean()
    return phases(power.index.tolist(), power.tolist(), kept.tolist(), lost.tolist())


def since_t2(table: pd.DataFrame, quantity: str) -> pd.Series:
    """Return the change of a quantity from t2 to the end, by seed; the other trainings pick t2.

    NaN if the other trainings have no t2 before the last checkpoint.
    """
    values = curves(table, quantity)
    changes = {}
    for seed in values.index:
        others = table[table["seed"] != seed]
        t2 = phases_of(others).t2 if len(others) else None
        if t2 is None or t2 == values.columns[-1]:
            changes[seed] = math.nan
        else:
            changes[seed] = values.loc[seed].iloc[-1] - values.loc[seed, t2]
    return pd.Series(changes, name=quantity)
