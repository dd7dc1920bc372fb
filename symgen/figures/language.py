"""Figures of language models and of fine-tuning."""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new
from symgen.literal import no_math
from symgen.method.statistics import interval


def plot_course(
    table: pd.DataFrame, ylabel: str, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw quantities over the checkpoints of a training, with 95 % bands where there are any.

    Args:
        table: columns step, label, mean, and perhaps low95 and high95; a label that begins with
            "chance" is dotted and grey.
        ylabel: what is measured, with its unit.
        ax: where to draw.
    """
    ax = axes_or_new(ax)
    steps = sorted(table["step"].unique())
    looks = ("generalizable", "non-generalizable", "train", "test", "and", "or")
    lines = [label for label in table["label"].unique() if not label.startswith("chance")]
    for label, rows in table.groupby("label", sort=False):
        x = [steps.index(step) for step in rows["step"]]
        luck = label not in lines
        colour = COLOURS["chance" if luck else looks[lines.index(label) % 6]]
        style = ":" if luck else ("-", "--", "-.")[lines.index(label) % 3]
        marker = None if luck else "os^Dvp"[lines.index(label) % 6]
        ax.plot(x, rows["mean"], style, color=colour, marker=marker, ms=5, label=no_math(label))
        if "low95" in rows and not luck:
            ax.fill_between(x, rows["low95"], rows["high95"], color=colour, alpha=0.18, lw=0)
    ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
    ax.set(xlabel="optimizer steps (checkpoints, evenly spaced)", ylabel=ylabel)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, table


def plot_changes(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw which interactions carry the change of v between two models, by kind and order.

    Args:
        table: of `interaction_changes`.
        ax: where to draw.

    Returns:
        Axes, and a table: kind, orders, change, low95, high95 (log odds, mean over samples); kind
        "all" is the whole change.
    """
    ax = plt.subplots(figsize=(7.6, 4))[1] if ax is None else ax
    high = f"6-{max(6, table['order'].max())}"
    bins, labels = [-1, 0, 2, 5, 99], ["none", "1-2", "3-5", high]
    table = table.assign(orders=pd.cut(table["order"], bins, labels=labels))
    kinds = [*table["kind"].unique(), "all"]
    looks = {"1-2": ("and", ""), "3-5": ("or", "///"), high: ("test", "..."), "none": ("all", "")}
    rows = []
    for place, kind in enumerate(kinds):
        of_kind = table if kind == "all" else table[table["kind"] == kind]
        groups = [g for g in looks if (of_kind["orders"] == g).any()]
        for k, group in enumerate(groups if kind != "all" else ["whole"]):
            some = of_kind if group == "whole" else of_kind[of_kind["orders"] == group]
            mean, low, high = interval(torch.tensor(some.groupby("sample")["change"].sum().values))
            rows.append((kind, group, mean, low, high))
            colour, hatch = looks.get(group, ("network", ""))
            x = place if group in ("whole", "none") else place + 0.27 * (k - 1)
            width = 0.55 if group in ("whole", "none") else 0.26
            label = f"orders {group}" if place == 0 else None
            style = {"color": COLOURS[colour], "hatch": hatch, "edgecolor": "white"}
            ax.bar(x, mean, width, label=label, **style)
            error = [[mean - low], [high - mean]]
            ax.errorbar(x, mean, error, **{**WHISKERS, "color": "#777777"})
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xticks(range(len(kinds)), kinds)
    ax.set_ylabel("change of v on the whole prompt (log odds)")
    ax.legend()
    return ax, pd.DataFrame(rows, columns=["kind", "orders", "change", "low95", "high95"])
