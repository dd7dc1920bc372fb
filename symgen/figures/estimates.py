"""Rows of dots: estimates with 95 % intervals, and single trainings next to their mean."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures import style


def plot_estimates(
    table: pd.DataFrame,
    group: str | None = None,
    panel: str | None = None,
    reference: float | None = None,
    xlabel: str = "",
    sharex: bool = True,
) -> Figure:
    """Draw estimates as dots with 95 % intervals, one row per label.

    Args:
        table: columns label, mean, low, high. Rows are drawn in the order of the table; a missing
            interval is left out.
        group: column that gives color and marker, such as H, chance level and untrained. Groups
            stand below each other if they share a row.
        panel: column that gives the panel, such as the orders; panels stand side by side.
        reference: value to mark with a vertical line.
        xlabel: name of the quantity, with its unit.
        sharex: whether panels share their horizontal axis. Panels of quantities with different
            units need their own axes.

    Example:
        >>> table = pd.DataFrame({"label": ["CNN"], "mean": [0.4], "low": [0.3], "high": [0.5]})
        >>> len(plot_estimates(table, reference=0).axes)
        1
    """
    labels = list(table["label"].unique())
    groups = [name for name, _ in style.parts_of(table, group)]
    shares_rows = group is not None and (table.groupby("label")[group].nunique() > 1).any()
    slots = len(groups) if shares_rows else 1
    parts = style.parts_of(table, panel)
    titles = ["" if title is None else title for title, _ in parts]
    lines = 1 + max([str(label).count("\n") for label in labels], default=0)
    row = max(0.4, 0.2 * max(slots, lines))
    height = 1.2 + row * max(len(labels), 1)
    figure, axes = style.panels(titles, len(parts), height, sharey=True, sharex=sharex)
    for ax, (_, rows) in zip(axes, parts, strict=True):
        style.note_if_empty(ax, rows["mean"].to_numpy())
        for name, dots in style.parts_of(rows, group):
            # The same look in every panel, even if a group is missing there.
            k = groups.index(name)
            shift = _shift(k, len(groups)) if shares_rows else 0.0
            ax.errorbar(
                dots["mean"],
                [labels.index(label) + shift for label in dots["label"]],
                xerr=[dots["mean"] - dots["low"], dots["high"] - dots["mean"]],
                label=None if name is None else style.label_of(name),
                color=style.color_of(name, k),
                fmt=style.marker_of(name, k),
                ms=6.5,
                lw=1.8,
                capsize=2.5,
            )
        _name_rows(ax, labels)
        ax.set_xlabel(xlabel)
        if reference is not None:
            ax.axvline(reference, color="black", lw=1, ls=(0, (4, 2)))
        if len(axes) > 2:
            ax.locator_params(axis="x", nbins=4)
    style.legend_below(figure)
    return figure


def plot_repeats(
    table: pd.DataFrame,
    value: str = "value",
    label: str = "label",
    group: str | None = None,
    unit: str | None = None,
    reference: float | None = None,
    panel: str | None = None,
    sharex: bool = True,
) -> Figure:
    """Draw every repetition as a dot, and below the dots their mean with a 95 % t interval.

    Args:
        table: one row per repetition, such as a training.
        value: column of the quantity.
        label: column with one row of the figure per value.
        group: column that gives color and marker.
        unit: column whose values are joined by a line, such as the sample.
        reference: value to mark with a vertical line.
        panel: column that gives the panel; panels stand side by side.
        sharex: whether panels share their horizontal axis.

    Example:
        >>> table = pd.DataFrame({"label": ["CNN"] * 3, "H": [0.4, 0.5, 0.6]})
        >>> plot_repeats(table, "H").axes[0].get_xlabel()
        'generalization power H'
    """
    by = [column for column in (label, group, panel) if column is not None]
    means = style.mean_intervals(table, by, value).rename(columns={label: "label"})
    labels = list(means["label"].unique())
    groups = [name for name, _ in style.parts_of(means, group)]
    xlabel = style.label_of(value)
    figure = plot_estimates(means, group, panel, reference, xlabel, sharex)
    for ax, (_, rows) in zip(figure.axes, style.parts_of(table, panel), strict=False):
        for name, part in style.parts_of(rows, group):
            k = groups.index(name)
            above = _shift(k, len(groups)) - 0.5 / (1 + len(groups))
            for one, dots in style.parts_of(part, unit):
                ax.plot(
                    dots[value],
                    [labels.index(row) + above for row in dots[label]],
                    marker=style.marker_of(name, k),
                    color=style.color_of(name, k),
                    ls="none" if one is None else "-",
                    alpha=0.45,
                    ms=5,
                    mew=0,
                    lw=0.6,
                )
    return figure


def _shift(k: int, count: int) -> float:
    """Return the place of the k-th group within a row, from -0.4 to 0.4."""
    return 0.8 * ((k + 0.5) / count - 0.5)


def _name_rows(ax: Axes, labels: list[object]) -> None:
    """Name the rows, first on top, and draw lines between them."""
    ax.set_yticks(range(len(labels)), [style.no_math(label) for label in labels])
    ax.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    for place in range(1, len(labels)):
        ax.axhline(place - 0.5, color="#DDDDDD", lw=0.8)
