"""Figures of trainings with a penalty and without (App. K)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from symgen.figures.style import COLOURS, WHISKERS, legend_below, panel_rows
from symgen.literal import no_math
from symgen.method.arms import ARMS, MEASURES, difference_table, differences

LOOKS = {
    "plain": (COLOURS["network"], "o"),
    "penalty": (COLOURS["generalizable"], "s"),
    "random": (COLOURS["all"], "^"),
    "decay": (COLOURS["train"], "D"),
}
SHOWN = ("accuracy", "power", "gap")


def plot_arms(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, pd.DataFrame]:
    """Draw by how much each arm differs from the plain trainings, seed by seed.

    Args:
        tables: label to a table of `compare`.

    Returns:
        Figure, and the numbers drawn, of `difference_table`, of all measures.
    """
    found = difference_table(tables)
    figure, axes = panel_rows(len(tables), len(SHOWN), 9.6, 2.7)
    for row, (label, table) in zip(axes, tables.items(), strict=True):
        for ax, measure in zip(row, SHOWN, strict=True):
            seeds = differences(table, measure)
            _draw(ax, seeds, found[(found["label"] == label) & (found["measure"] == measure)])
            name, unit = MEASURES[measure]
            ax.set_ylabel(f"change of {name}{'' if unit == '1' else f' ({unit})'}", size=10)
        # In two lines, since a panel grows with its title.
        row[0].set_title(no_math(label).replace(" (", "\n(", 1), size=10, loc="left")
    return figure, found


def _draw(ax: plt.Axes, seeds: Mapping, rows: pd.DataFrame) -> None:
    for x, (arm, values) in enumerate(seeds.items()):
        colour, marker = LOOKS[arm]
        spread = x + 0.18 + 0.03 * np.arange(len(values)) / max(1, len(values) / 4)
        ax.plot(spread, values, marker, color=colour, ms=4, alpha=0.7, ls="none")
        [mean, low, high] = rows.set_index("arm").loc[arm, ["difference", "low95", "high95"]]
        ax.errorbar([x], [mean], [[mean - low], [high - mean]], **WHISKERS)
        ax.plot([x], [mean], marker, color=colour, ms=9, mec="black")
    ax.axhline(0, color="black", lw=0.9)
    ax.set_xticks(range(len(seeds)), [ARMS[arm].replace(" ", "\n") for arm in seeds], size=9)
    ax.set_xlim(-0.5, len(seeds) - 0.3)


def plot_against_paper(
    tables: Mapping[str, pd.DataFrame], reported: pd.DataFrame
) -> tuple[Figure, pd.DataFrame]:
    """Draw H and test accuracy without and with the penalty, the paper's beside ours.

    Args:
        tables: label to a table of `compare`; means over seeds are drawn.
        reported: what the paper gives: place, quantity, setting and value, in percent.

    Returns:
        Figure, and a table: measure, source, label, without, penalty (shares).
    """
    rows = [
        (measure, "here", label, *table.groupby("arm")[measure].mean()[["plain", "penalty"]])
        for measure in ("power", "accuracy")
        for label, table in tables.items()
    ]
    words = {"power": "generalizable share", "accuracy": "test accuracy"}
    for measure, quantity in words.items():
        told = [
            reported[reported["quantity"] == f"{quantity} {way} penalty"].set_index("setting")
            for way in ("without", "with")
        ]
        for setting in told[0].index:
            pair = (float(each.loc[setting, "value"]) / 100 for each in told)
            rows.append((measure, "paper", setting, *pair))
    drawn = pd.DataFrame(rows, columns=["measure", "source", "label", "plain", "penalty"])
    figure, axes = panel_rows(2, 1, 9.6, 1.2 + 0.4 * len(tables))
    for ax, measure in zip(axes[:, 0], words, strict=True):
        mine = drawn[drawn["measure"] == measure].reset_index(drop=True)
        for y, row in mine.iterrows():
            line = "-" if row["source"] == "here" else "--"
            ax.plot([row["plain"], row["penalty"]], [y, y], color="black", lw=1, ls=line)
        for arm in ("plain", "penalty"):
            colour, marker = LOOKS[arm]
            ax.plot(mine[arm], mine.index, marker, color=colour, ms=8, ls="none", label=arm)
        names = [f"{no_math(x.label)} ({x.source})" for x in mine.itertuples()]
        ax.set_yticks(mine.index, names, size=9)
        ax.set(title=MEASURES[measure][0], ylim=(len(mine) - 0.5, -0.5))
    legend_below(figure, axes[:1, 0])
    return figure, drawn
