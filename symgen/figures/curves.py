"""Quantities over training, or over any setting: lines with 95 % bands, and phases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from symgen.figures import style


def plot_curves(
    table: pd.DataFrame,
    x: str = "step",
    y: Sequence[str | tuple[str, ...]] = (("H", "chance"), "N"),
    group: str | None = None,
    unit: str = "seed",
    phases: Any = None,
    log: bool | None = None,
) -> Figure:
    """Draw quantities as lines, one panel each: the mean over units with a 95 % t interval.

    Means of fewer than three units have no band; see `style.draw_band`.

    With groups, a color is a group and a line style is a quantity. The chance level is a dashed
    line in the color of its H.

    Args:
        table: either one column per quantity, or the tidy table of `measure`, with the columns
            quantity and value.
        x: column of the horizontal axis.
        y: quantities. A tuple of several goes into one panel, such as H and its chance level.
        group: column with one line per value, such as the network.
        unit: column to average over. Without this column, lines have no bands.
        phases: object with t1 and t2 in units of x, each a number or None: drawn if it exists.
        log: whether the axis is logarithmic (0 keeps a place at its left); by default for
            "step" and "epoch".

    Raises:
        ValueError: for quantities that the table lacks.

    Example:
        >>> table = pd.DataFrame({"step": [0, 10, 100], "H": [0.2, 0.6, 0.5]})
        >>> plot_curves(table, y=["H"]).axes[0].get_title()
        'generalization power H'
    """
    sets = [(names,) if isinstance(names, str) else names for names in y]
    wanted = [name for names in sets for name in names]
    wide = "quantity" not in table
    missing = set(wanted) - set(table.columns if wide else table["quantity"])
    if missing:
        raise ValueError(f"the table has no quantity {', '.join(sorted(missing))}")
    if wide:
        kept = [column for column in (x, group, unit) if column in table]
        table = table.melt(kept, wanted, "quantity", "value")
    quantities = dict(style.parts_of(table, "quantity"))
    drawn = pd.concat([quantities[name] for name in wanted])
    groups = [name for name, _ in style.parts_of(drawn, group)]
    titles = [", ".join(map(style.label_of, names)) for names in sets]
    height = 2.6 if len(sets) > 1 else 3.6
    figure, axes = style.panels(titles, height=height, sharex=True)
    for ax, names in zip(axes, sets, strict=True):
        parts = [quantities[name] for name in names]
        _draw_panel(ax, names, parts, x, group, groups)
        style.note_if_empty(ax, pd.concat(parts)["value"].to_numpy())
        _mark_phases(ax, phases)
    if log is None:
        log = x in ("step", "epoch")
    _scale(axes[0], drawn[x].to_numpy(), log)
    axes[-1].set_xlabel(style.label_of(x))
    style.legend_below(figure)
    return figure


def _draw_panel(
    ax: Axes,
    names: Sequence[str],
    parts: Sequence[pd.DataFrame],
    x: str,
    group: str | None,
    groups: list[Any],
) -> None:
    """Draw the quantities of one panel; parts are their rows."""
    for i, (name, rows) in enumerate(zip(names, parts, strict=True)):
        line = style.LINES[i % 4]
        label = style.label_of(name) if len(names) > 1 else None
        if group is None:
            # The chance level has the color of its H.
            k = i - 1 if name == "chance" and i > 0 else i
            _draw_line(ax, rows, x, names[k], k, line, label)
            continue
        for one, part in style.parts_of(rows, group):
            words = style.label_of(one) if i == 0 else None
            _draw_line(ax, part, x, one, groups.index(one), line, words)
        if i > 0:
            ax.plot([], [], color="#555555", ls=line, label=label)


def _draw_line(
    ax: Axes,
    rows: pd.DataFrame,
    x: str,
    name: object,
    k: int,
    line: str,
    label: str | None,
) -> None:
    """Draw means with a band, in the color of a quantity or group; solid lines have markers."""
    color = style.color_of(name, k)
    marker = style.marker_of(name, k) if line == "-" else ""
    means = style.draw_band(ax, rows, x, "value", color)
    ax.plot(means[x], means["mean"], color=color, ls=line, marker=marker, label=label)


def _mark_phases(ax: Axes, phases: Any) -> None:
    # Room for the names of the phases above the lines.
    ax.margins(y=0.15)
    for name in ("t1", "t2"):
        place = getattr(phases, name, None)
        if place is not None:
            ax.axvline(place, color="black", lw=1.2, ls=(0, (4, 2)))
            words = f" $t_{name[1]}$"
            ax.text(place, 1, words, va="top", transform=ax.get_xaxis_transform())


def _scale(ax: Axes, x: np.ndarray, log: bool) -> None:
    """Make the horizontal axis logarithmic, with a place for 0 left of the other values."""
    if not np.issubdtype(x.dtype, np.number):
        return
    places = np.unique(x)
    positive = places[places > 0]
    if log and len(positive) > 1:
        least = positive[0]
        ax.set_xscale("symlog", linthresh=least, linscale=0.5)
        ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=[1, 3]))
        ax.set_xlim(-0.3 * least if places[0] == 0 else 0.8 * least, 1.2 * places[-1])
        ax.minorticks_off()
    if len(places) <= 8:  # a few settings get a tick each
        ax.set_xticks(places)
    ax.xaxis.set_major_formatter("{x:,g}")
