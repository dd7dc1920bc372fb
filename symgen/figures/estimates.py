"""Estimates with 95 % intervals: dots on a line, single trainings, verdicts."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures import style

# Mean and half width of intervals that show every case, in units of the margin.
EXAMPLES = ((3.2, 1.4), (1.1, 1.6), (0.0, 0.6), (-2.6, 1.3), (0.3, 3.4))


def plot_estimates(
    table: pd.DataFrame,
    group: str | None = None,
    panel: str | None = None,
    reference: float | None = None,
    xlabel: str = "",
) -> Figure:
    """Draw estimates as dots with 95 % intervals, one row per label.

    Args:
        table: columns label, mean, low, high. Rows are drawn in the order of the table; a missing
            interval is left out.
        group: column that gives color and marker, such as H, chance level and untrained.
        panel: column that gives the panel, such as the orders; panels stand side by side.
        reference: value to mark with a vertical line.
        xlabel: name of the quantity, with its unit.

    Raises:
        ValueError: for columns that the table lacks.
    """
    style.need_columns(table, ["label", "mean", "low", "high", group, panel])
    labels, groups = list(table["label"].unique()), len(style.parts_of(table, group))
    parts = style.parts_of(table, panel)
    height = 1.2 + max(0.34, 0.2 * groups) * len(labels)
    titles = ["" if title is None else title for title, _ in parts]
    figure, axes = style.panels(titles, len(parts), height, sharey=True, sharex=True)
    for ax, (_, rows) in zip(axes, parts, strict=True):
        for k, (name, dots) in enumerate(style.parts_of(rows, group)):
            place = dots["label"].map(labels.index) + 0.6 * ((k + 0.5) / groups - 0.5)
            _dots(ax, dots, place, name, k)
        style.row_axis(ax, labels, reference)
        ax.set_xlabel(xlabel)
    style.legend_below(figure)
    return figure


def plot_repeats(
    table: pd.DataFrame,
    value: str = "value",
    label: str = "label",
    group: str | None = None,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw every repetition as a dot, and below the dots their mean with a 95 % t interval.

    Args:
        table: one row per repetition, such as a training.
        value: column of the quantity.
        label: column with one row of the figure per value.
        group: column that gives color and marker.
        reference: value to mark with a vertical line.
        ax: where to draw.

    Raises:
        ValueError: for columns that the table lacks.
    """
    style.need_columns(table, [value, label, group])
    labels, parts = list(table[label].unique()), style.parts_of(table, group)
    ax = style.axes_or_new(ax, 1.2 + max(0.45, 0.34 * len(parts)) * len(labels))
    for k, (name, rows) in enumerate(parts):
        shift, step = 0.8 * ((k + 0.5) / len(parts) - 0.5), 0.15 / len(parts)
        dots = {"color": _color(name, k), "marker": style.MARKERS[k % 8], "ls": "none"}
        place = rows[label].map(labels.index) + shift - step
        ax.plot(rows[value], place, alpha=0.45, ms=5, mew=0, **dots)
        means = style.mean_intervals(rows, [label], value)
        _dots(ax, means, means[label].map(labels.index) + shift + step, name, k)
    style.row_axis(ax, labels, reference)
    ax.set_xlabel(style.label_of(value))
    if group is not None:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(3, len(parts)))
    return ax


def _color(name: object, k: int) -> str:
    return style.COLORS["network"] if name is None else style.color_of(name, k)


def _dots(ax: Axes, rows: pd.DataFrame, place: Any, name: object, k: int) -> None:
    """Draw means with intervals, in the look of the k-th group."""
    errors = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
    label = None if name is None else style.label_of(name)
    look = {
        "fmt": style.MARKERS[k % 8],
        "ms": 6.5,
        "lw": 1.8,
        "capsize": 2.5,
        "color": _color(name, k),
    }
    ax.errorbar(rows["mean"], place, xerr=errors, label=label, **look)


def plot_verdicts(
    margin: float = 0.02,
    examples: Sequence[tuple[float, float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how an interval on a number line becomes a verdict: holds, fails or open.

    Args:
        margin: smallest effect that counts as an effect, on the claimed side (to the right).
        examples: mean and half width of the intervals to draw; by default every kind.
        ax: where to draw.
    """
    examples = examples or [(a * margin, b * margin) for a, b in EXAMPLES]
    ax = style.axes_or_new(ax, 1.1 + 0.38 * len(examples))
    reach = 1.25 * max(abs(mean) + half for mean, half in examples)
    ax.axvspan(margin, 2 * reach, color=style.COLORS["generalizable"], alpha=0.1, lw=0)
    ax.axvline(0, color="black", lw=0.8)
    ax.axvline(margin, color="black", lw=1.2, ls=(0, (4, 2)))
    for place, (mean, half) in enumerate(examples):
        holds, fails = mean - half > margin, mean + half < margin
        verdict = "holds" if holds else "fails" if fails else "open"
        meaning = {"holds": "generalizable", "fails": "non-generalizable", "open": "chance"}
        look = {"color": style.COLORS[meaning[verdict]], "ms": 7, "lw": 2, "capsize": 4}
        ax.errorbar(mean, place, xerr=half, fmt="o", **look)
        right = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
        ax.text(0.97, place, verdict, color=look["color"], weight="bold", **right)
    above = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "size": 10}
    ax.annotate("no effect", (0, 1), (4, 4), ha="right", **above)
    ax.annotate("margin, then the claimed side →", (margin, 1), (-4, 4), **above)
    ax.set(xlim=(-reach, 1.4 * reach), ylim=(len(examples) - 0.5, -0.5), yticks=[])
    ax.set_xlabel("effect in the claimed direction")
    ax.grid(visible=False)
    return ax
