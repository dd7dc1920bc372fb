"""When the phases show: one study trained on more or less data, with right or wrong labels."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from symgen.method.statistics import Interval, interval, resampled
from symgen.method.trainings import Trainings

#: What a finding moves, with the side of its first change, and how a page calls both changes.
MOVES = {"power": (1, "H"), "lift": (1, "H above chance"), "count": (-1, "N")}
#: What may tell the loss gap from the trained network, without a test label: name to words.
PREDICTORS = {
    "label_free_power": "H for the predicted class",
    "label_free_lift": "the same above chance",
    "train_loss": "training loss",
    "margin": "mean output v of training samples",
    "weight_norm": "norm of all weights",
    "agreement": "agreement with the baselines",
}

# Cells of a map that intervals of correlations over cells take.
FEWEST = 8


def when_table(cells: Mapping[tuple, Trainings], names: Sequence[str]) -> pd.DataFrame:
    """Return how H, H above chance and N move in every cell of a map, with 95 % intervals.

    Args:
        cells: values of the factors to trainings.
        names: of the factors.

    Returns:
        One row a cell and change: the factors, quantity (a key of `MOVES`), change ("first", up to
        the extreme that the other half of the trainings has, or "then", from there to the end),
        value, low95, high95, gap (mean loss gap at the end, nats).
    """
    rows = []
    for cell, found in cells.items():
        gap = float(found.end("gap").mean())
        for name, (side, _) in MOVES.items():
            for change, values in zip(("first", "then"), found.turn(name, side), strict=False):
                rows.append((*cell, name, change, *interval(values), gap))
    columns = [*names, "quantity", "change", "value", "low95", "high95", "gap"]
    return pd.DataFrame(rows, columns=columns)


def effect_table(moves: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return what each factor of a map does to the changes of H, H above chance and N.

    Cells that differ in one factor alone, its largest and its least value, are compared in pairs.

    Args:
        moves: of `when_table`.
        names: of the factors.

    Returns:
        One row a factor and change: factor, least, most, quantity, change, value (with the most
        less with the least), low95, high95 (over pairs), pairs.
    """
    rows = []
    for name in names:
        rest = [*(other for other in names if other != name), "quantity", "change"]
        wide = moves.pivot(index=rest, columns=name, values="value")
        least, most = min(wide), max(wide)
        if least == most:
            continue
        lead = (wide[most] - wide[least]).dropna()
        for (quantity, change), part in lead.groupby(["quantity", "change"], sort=False):
            found = interval(torch.tensor(part.to_numpy()))
            rows.append((name, least, most, quantity, change, *found, len(part)))
    columns = ["factor", "least", "most", "quantity", "change", "value", "low95", "high95", "pairs"]
    return pd.DataFrame(rows, columns=columns)


def effects_in_words(effects: pd.DataFrame) -> pd.DataFrame:
    """Return `effect_table` as text: one row a quantity and change, one column a factor."""
    words = {"first": "up to its extreme", "then": "from there to the end"}
    found = [
        {
            "change": f"{MOVES[row.quantity][1]}, {words[row.change]}",
            "factor": f"{row.factor}: {row.most:g} less {row.least:g}",
            "value": f"{Interval(row.value, row.low95, row.high95):+.2f}",
        }
        for row in effects.itertuples()
    ]
    table = pd.DataFrame(found, columns=["change", "factor", "value"])
    wide = table.pivot(index="change", columns="factor", values="value")
    order = [f"{symbol}, {told}" for _, symbol in MOVES.values() for told in words.values()]
    return wide.reindex([x for x in order if x in wide.index])[[*table["factor"].unique()]]


def example_cells(cells: Mapping[tuple, Trainings], verdicts: pd.DataFrame) -> tuple[tuple, tuple]:
    """Return the cell of a map where the phases show best, and the one where they show least.

    That is where most rules have the verdict "shown", and where fewest have; of equals, where H
    falls farthest after its peak, and where it falls least.

    Args:
        cells: values of the factors to trainings, two cells or more.
        verdicts: one row a cell, in the same order, and one column a rule.
    """
    shown = verdicts.eq("shown").sum(axis=1).tolist()
    falls = [float(-found.turn("power", 1)[1].nanmean()) for found in cells.values()]
    # Without a peak nothing falls.
    rank = [(k, fall if fall == fall else -np.inf) for k, fall in zip(shown, falls, strict=True)]
    order = sorted(range(len(rank)), key=rank.__getitem__)
    return [*cells][order[-1]], [*cells][order[0]]


def case_table(cases: Mapping[str, Trainings]) -> pd.DataFrame:
    """Return H, its chance level, N and the loss gap through training, with the phases.

    Args:
        cases: label to trainings of one study.

    Returns:
        Columns label, step, epoch, phase (1, 2 or 3; missing where none is seen), quantity
        ("power", "chance", "count", "gap"), value, low95, high95 (over trainings).
    """
    rows = []
    for label, found in cases.items():
        phases = found.phases()
        for row in found.summary().to_dict("records"):
            about = (label, row["step"], row["epoch"], phases.of(row["step"]))
            for name in ("power", "chance", "count", "gap"):
                rows.append((*about, name, *(row[name + end] for end in ("", "_low95", "_high95"))))
    columns = ["label", "step", "epoch", "phase", "quantity", "value", "low95", "high95"]
    return pd.DataFrame(rows, columns=columns).astype({"phase": "Int64"})


def predictions(cells: Mapping[tuple, Trainings]) -> dict[str, Float[Tensor, "cell training"]]:
    """Return what `PREDICTORS` are at the end of every training of a map, and the loss gap."""
    found = {}
    for name in (*PREDICTORS, "gap"):
        # The margin is the mean output, whose loss in log odds has the other sign.
        key, sign = ("train.log odds.nothing", -1) if name == "margin" else (name, 1)
        found[name] = torch.stack([sign * cell.end(key) for cell in cells.values()])
    return found


def rank_correlation(
    values: Float[Tensor, "cell training"], gap: Float[Tensor, "cell training"]
) -> Interval:
    """Return Spearman's rank correlation over all trainings, with its 95 % interval over cells.

    Trainings of one cell are alike, so the jackknife leaves out whole cells; no interval for fewer
    than `FEWEST` of them, from which it would be a guess.
    """
    if len(values) < FEWEST:
        return Interval(_spearman(values, gap), float("nan"), float("nan"))
    return _within(resampled(_spearman, values, gap))


def correlation_lead(
    values: Float[Tensor, "cell training"],
    others: Sequence[Float[Tensor, "cell training"]],
    gap: Float[Tensor, "cell training"],
) -> Interval:
    """Return how much stronger a rank correlation is than the strongest of others, in size.

    Which of them is the strongest is found in one half of each cell's trainings, and the lead
    measured in the other, both ways round: on the same ones the strongest would be too strong.

    Returns:
        NaN where cells have a single training.
    """
    half, nothing = gap.shape[1] // 2, float("nan")
    if not half:
        return Interval(nothing, nothing, nothing)

    def size(one: Tensor, gap: Tensor) -> float:
        # What never changes has no ranks, and tells nothing.
        return float(np.nan_to_num(abs(_spearman(one, gap))))

    fresh = []
    for pick, rest in itertools.permutations([slice(None, half), slice(half, None)]):
        strongest = max(others, key=lambda other, of=pick: size(other[:, of], gap[:, of]))
        fresh += [x[:, rest] for x in (gap, values, strongest)]

    def lead(*parts: Tensor) -> float:
        ways = parts[:3], parts[3:]
        return float(np.mean([size(one, gap) - size(other, gap) for gap, one, other in ways]))

    if len(values) < FEWEST:
        return Interval(lead(*fresh), nothing, nothing)
    return _within(resampled(lead, *fresh))


def _within(found: Interval) -> Interval:
    # The jackknife does not know that correlations, and differences of their sizes, end there.
    return Interval(found.mean, *(float(np.clip(end, -1, 1)) for end in found[1:]))


def _spearman(one: Tensor, other: Tensor) -> float:
    known = ~(one.isnan() | other.isnan())
    pair = one[known].numpy(), other[known].numpy()
    if known.sum() < 3 or any(np.ptp(x) == 0 for x in pair):
        return float("nan")
    return float(stats.spearmanr(*pair).statistic)


def prediction_table(cells: Mapping[tuple, Trainings]) -> pd.DataFrame:
    """Return how well each of `PREDICTORS` ranks trainings by their loss gap.

    Returns:
        Columns measure (in words), correlation, low95, high95, trainings (that have it).
    """
    found = predictions(cells)
    rows = [
        (words, *rank_correlation(found[name], found["gap"]), int((~found[name].isnan()).sum()))
        for name, words in PREDICTORS.items()
    ]
    return pd.DataFrame(rows, columns=["measure", "correlation", "low95", "high95", "trainings"])
