"""Dots: estimates with 95 % intervals, single trainings, verdicts, pairs of values, strengths."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures import style
from symgen.interactions import SALIENT_SHARE, Interactions

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
    """
    labels, groups = list(table["label"].unique()), [x for x, _ in style.parts_of(table, group)]
    parts = style.parts_of(table, panel)
    lines = 1 + max(str(label).count("\n") for label in labels)
    height = 1.2 + max(0.34, 0.2 * max(len(groups), lines)) * len(labels)
    titles = ["" if title is None else title for title, _ in parts]
    figure, axes = style.panels(titles, len(parts), height, sharey=True, sharex=True)
    for ax, (_, rows) in zip(axes, parts, strict=True):
        for name, dots in style.parts_of(rows, group):
            k = groups.index(name)  # the same look in every panel, whatever is missing there
            place = dots["label"].map(labels.index) + 0.6 * ((k + 0.5) / len(groups) - 0.5)
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
    unit: str | None = None,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw every repetition as a dot, and below the dots their mean with a 95 % t interval.

    Args:
        table: one row per repetition, such as a training.
        value: column of the quantity.
        label: column with one row of the figure per value.
        group: column that gives color and marker.
        unit: column whose values are joined by a line, such as the sample.
        reference: value to mark with a vertical line.
        ax: where to draw.
    """
    labels, parts = list(table[label].unique()), style.parts_of(table, group)
    ax = style.axes_or_new(ax, 1.2 + max(0.45, 0.34 * len(parts)) * len(labels))
    for k, (name, rows) in enumerate(parts):
        shift, step = 0.8 * ((k + 0.5) / len(parts) - 0.5), 0.15 / len(parts)
        look = {"color": style.color_of(name, k), "alpha": 0.45, "ms": 5, "mew": 0, "lw": 0.6}
        for one, dots in style.parts_of(rows, unit):
            place = dots[label].map(labels.index) + shift - step
            line = "" if one is None else "-"
            ax.plot(dots[value], place, style.MARKERS[k % 8] + line, **look)
        means = style.mean_intervals(rows, [label], value)
        _dots(ax, means, means[label].map(labels.index) + shift + step, name, k)
    style.row_axis(ax, labels, reference)
    ax.set_xlabel(style.label_of(value))
    if group is not None:
        style.legend_above(ax)
    return ax


def _dots(ax: Axes, rows: pd.DataFrame, place: Any, name: object, k: int) -> None:
    """Draw means with intervals, in the look of the k-th group."""
    errors = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
    label = None if name is None else style.label_of(name)
    look = {"fmt": style.MARKERS[k % 8], "ms": 6.5, "lw": 1.8, "capsize": 2.5}
    ax.errorbar(
        rows["mean"], place, xerr=errors, label=label, color=style.color_of(name, k), **look
    )


def plot_verdicts(margin: float = 0.02, ax: Axes | None = None) -> Axes:
    """Draw how an interval on a number line becomes a verdict: holds, fails or open.

    Args:
        margin: smallest effect that counts as an effect, on the claimed side (to the right).
        ax: where to draw.
    """
    examples = [(mean * margin, half * margin) for mean, half in EXAMPLES]
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


def plot_scatter(
    table: pd.DataFrame, x: str, y: str, group: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw one dot per row: one quantity against another.

    Args:
        table: one row per dot.
        x, y: columns.
        group: column that gives color and marker.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax, 4.2, 5.6)
    for k, (name, rows) in enumerate(style.parts_of(table, group)):
        label = None if name is None else f"{style.label_of(name)} ({len(rows)})"
        look = {"color": style.color_of(name, k), "label": label, "alpha": 0.65, "mew": 0}
        ax.plot(rows[x], rows[y], style.MARKERS[k % 8], **look)
    ax.set(xlabel=style.label_of(x), ylabel=style.label_of(y))
    if group is not None:
        style.legend_above(ax, markerscale=1.4)
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
