"""Single values: one against another, side by side, or sorted by size."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from symgen.figures import style
from symgen.interactions import SALIENT_SHARE, Interactions


def plot_scatter(
    table: pd.DataFrame,
    x: str,
    y: str,
    group: str | None = None,
    identity: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw one dot per row: one quantity against another.

    Args:
        table: one row per dot.
        x, y: columns.
        group: column that gives color and marker.
        identity: whether to draw the line x = y.
        ax: where to draw.

    Raises:
        ValueError: for columns that the table lacks.
    """
    style.need_columns(table, [x, y, group])
    ax = style.axes_or_new(ax, 4.2, 5.6)
    if identity:
        ends = [table[[x, y]].min().min(), table[[x, y]].max().max()]
        ax.plot(ends, ends, color="black", lw=1, ls=(0, (4, 2)))
    for k, (name, rows) in enumerate(style.parts_of(table, group)):
        color = style.COLORS["network"] if name is None else style.color_of(name, k)
        label = None if name is None else f"{style.label_of(name)} ({len(rows)})"
        look = {
            "ls": "none",
            "marker": style.MARKERS[k % 8],
            "color": color,
            "alpha": 0.65,
            "mew": 0,
        }
        ax.plot(rows[x], rows[y], label=label, **look)
    ax.set(xlabel=style.label_of(x), ylabel=style.label_of(y))
    if group is not None:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, markerscale=1.4)
    return ax


def plot_strips(
    table: pd.DataFrame, x: str, y: str, unit: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the values of each category as a strip of dots, with the mean and its 95 % t interval.

    Args:
        table: one row per dot.
        x: column of the categories, drawn in the order of the table.
        y: column of the values.
        unit: column whose values are joined by a line, such as the sample.
        ax: where to draw.

    Raises:
        ValueError: for columns that the table lacks.
    """
    style.need_columns(table, [x, y, unit])
    ax = style.axes_or_new(ax)
    names = list(table[x].unique())
    look = {"color": style.COLORS["other"], "marker": "o", "ms": 4, "lw": 0.8}
    for _, rows in style.parts_of(table, unit):
        line = "none" if unit is None else "-"
        ax.plot(rows[x].map(names.index), rows[y], ls=line, **look)
    means = style.mean_intervals(table, [x], y)
    errors = [means["mean"] - means["low"], means["high"] - means["mean"]]
    look = {
        "fmt": "D",
        "color": style.COLORS["network"],
        "ms": 7,
        "lw": 2,
        "capsize": 4,
        "zorder": 3,
    }
    ax.errorbar(np.arange(len(names)) + 0.12, means["mean"], errors, **look)
    ax.set_xticks(range(len(names)), [style.no_math(name).replace(" ", "\n") for name in names])
    ax.set(ylabel=style.label_of(y), xlim=(-0.5, len(names) - 0.5))
    ax.grid(visible=False, axis="x")
    return ax


def plot_sorted(models: Mapping[str, Interactions], ax: Axes | None = None) -> Axes:
    """Draw the strengths of interactions, largest first, as shares of the largest.

    Args:
        models: label to the interactions of one or several samples. Lines are medians over the
            samples; bands hold the middle 80 %.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax)
    for i, (label, inter) in enumerate(models.items()):
        size = inter.effects.abs().flatten(-2).reshape(-1, 2 * 2**inter.n).cpu()
        # A sample without interactions stays at 0.
        size = size / size.amax(-1, keepdim=True).clamp(min=1e-300)
        ranked = size.sort(-1, descending=True).values
        quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=ranked.dtype)
        low, middle, high = ranked.quantile(quantiles, dim=0)
        rank, color = np.arange(1, len(middle) + 1), style.color_of(label, i)
        ax.plot(rank, middle, style.LINES[i % 4], color=color, label=style.no_math(label), lw=2)
        ax.fill_between(rank, low, high, color=color, alpha=0.18, lw=0)
    ax.axhline(SALIENT_SHARE, color=style.COLORS["chance"], lw=1, ls=(0, (1, 2)))
    text = {"va": "bottom", "size": 9.5, "transform": ax.get_yaxis_transform()}
    ax.text(0.02, SALIENT_SHARE, "saliency threshold", **text)
    ax.set(xscale="log", xlabel="rank of the interaction", ylabel="strength / largest", ylim=(0, 1))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.legend()
    return ax
