"""Figures of fine-tuning."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new
from symgen.literal import no_math
from symgen.method.changes import change_table

LINES = ("generalizable", "non-generalizable", "train", "test", "and", "or")


def plot_course(
    table: pd.DataFrame, ylabel: str, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw quantities over the checkpoints of a training, with 95 % bands where there are any.

    Args:
        table: columns step, label, mean, and perhaps low95 and high95; a label that begins with
            "chance" is dotted, without band, in the colour of the one before it.
        ylabel: what is measured, with its unit.
        ax: where to draw.
    """
    ax = axes_or_new(ax)
    steps, drawn, colour = sorted(table["step"].unique()), 0, COLOURS["chance"]
    for label, rows in table.groupby("label", sort=False):
        x = [steps.index(step) for step in rows["step"]]
        if label.startswith("chance"):
            ax.plot(x, rows["mean"], ":", color=colour, label=no_math(label))
            continue
        colour, style = COLOURS[LINES[drawn % 6]], ("-", "--", "-.")[drawn % 3]
        look = {"color": colour, "marker": "os^Dvp"[drawn % 6], "ms": 5}
        ax.plot(x, rows["mean"], style, label=no_math(label), **look)
        if "low95" in rows:
            ax.fill_between(x, rows["low95"], rows["high95"], color=colour, alpha=0.18, lw=0)
        drawn += 1
    ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
    ax.set(xlabel="optimizer steps of the checkpoints (not to scale)", ylabel=ylabel)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, table


def plot_changes(changes: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw which interactions carry the change of v between two models, by kind and order.

    Args:
        changes: of `interaction_changes`.
        ax: where to draw.

    Returns:
        Axes, and the table of `change_table`.
    """
    ax = plt.subplots(figsize=(7.6, 4))[1] if ax is None else ax
    table = change_table(changes)
    kinds, groups = list(table["kind"].unique()), list(table["orders"].unique())
    alone = {"none": COLOURS["all"], "all": COLOURS["network"]}
    looks = (("and", ""), ("or", "///"), ("test", "..."))
    for k, group in enumerate(groups):
        rows = table[table["orders"] == group]
        place = rows["kind"].map(kinds.index)
        if group in alone:
            ax.bar(place, rows["change"], 0.55, color=alone[group], edgecolor="white")
        else:
            colour, hatch = looks[k]
            place = place + 0.27 * (k - 1)
            style = {"color": COLOURS[colour], "hatch": hatch, "edgecolor": "white"}
            ax.bar(place, rows["change"], 0.26, label=f"orders {group}", **style)
        errors = [rows["change"] - rows["low95"], rows["high95"] - rows["change"]]
        ax.errorbar(place, rows["change"], errors, **{**WHISKERS, "color": "#777777"})
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xticks(range(len(kinds)), kinds)
    ax.set_ylabel("change of v on the whole prompt (log odds)")
    ax.legend()
    return ax, table
