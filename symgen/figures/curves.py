"""Quantities over training, or over any setting: lines with 95 % bands, and phases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures import style

# A sketch of the three phases as the paper describes them: words and color, places, and values.
PHASES = {
    "phase 1\nH rises,\nN falls": "generalizable",
    "phase 2\nH falls,\nN rises": "or",
    "phase 3\nH falls,\ngap grows": "non-generalizable",
}
EDGES = (0, 0.3, 0.65, 1)
SKETCH = {"H": (0.4, 1, 0.7, 0.5), "N": (0.9, 0.4, 0.7, 1)}


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
    """
    sets = [(names,) if isinstance(names, str) else tuple(names) for names in y]
    wanted = [name for names in sets for name in names]
    if "quantity" not in table:
        table = table.melt([c for c in (x, group, unit) if c in table], wanted, "quantity", "value")
    elif missing := set(wanted) - set(table["quantity"]):
        raise ValueError(f"the table has no quantity {', '.join(sorted(missing))}")
    table = table[table["quantity"].isin(wanted)]
    titles = [", ".join(map(style.label_of, names)) for names in sets]
    figure, axes = style.panels(titles, sharex=True)
    for ax, names in zip(axes, sets, strict=True):
        for i, name in enumerate(names):
            for k, (one, rows) in enumerate(
                style.parts_of(table[table["quantity"] == name], group)
            ):
                look = {"marker": style.MARKERS[(i + k) % 8], "ls": style.LINES[(i + k) % 4]}
                if one is None:
                    look |= {"color": style.color_of(name, i)}
                    look |= {"label": style.label_of(name)} if len(names) > 1 else {}
                else:
                    # A further quantity of the same group is a thin dotted line of its color.
                    look |= {"ls": ":", "marker": "", "lw": 1.2} if i else {}
                    label = style.no_math(one) + (f", {style.label_of(name)}" if i else "")
                    look |= {"color": style.color_of(one, k), "label": label}
                line = style.mean_intervals(rows, [x], "value").sort_values(x)
                ax.plot(line[x], line["mean"], **look)
                band = {"color": look["color"], "alpha": 0.18, "lw": 0}
                ax.fill_between(line[x], line["low"], line["high"], **band)
        # Room for the names of the phases above the lines.
        ax.margins(y=0.15)
        for name in ("t1", "t2"):
            if (place := getattr(phases, name, None)) is not None:
                ax.axvline(place, color="black", lw=1.2, ls=(0, (4, 2)))
                above = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
                ax.annotate(f"$t_{name[1]}$", (place, 1), (4, -4), va="top", **above)
    _scale(axes, table[x], log if log is not None else x in ("step", "epoch"))
    axes[-1].set_xlabel(style.label_of(x))
    style.legend_below(figure)
    return figure


def plot_phases(ax: Axes | None = None) -> Axes:
    """Draw a sketch of H and N over training in the three phases, as the paper describes them."""
    ax = style.axes_or_new(ax)
    ax.plot(EDGES, SKETCH["H"], color=style.COLORS["generalizable"], lw=2.2, label="H")
    ax.plot(EDGES, SKETCH["N"], color=style.COLORS["network"], lw=2.2, ls="--", label="N")
    for (text, meaning), start, end in zip(PHASES.items(), EDGES, EDGES[1:], strict=False):
        ax.axvspan(start, end, color=style.COLORS[meaning], alpha=0.15, lw=0)
        ax.text((start + end) / 2, 1.38, text, ha="center", va="top", size=10)
    ax.set(xlabel="training", xticks=[], xlim=(0, 1))
    ax.set(ylabel="share of the largest", ylim=(0, 1.4), yticks=[0, 0.5, 1])
    ax.legend(loc="lower right", ncols=2)
    return ax


def _scale(axes: Sequence[Axes], x: pd.Series, log: bool) -> None:
    """Make the horizontal axis logarithmic, with a place for 0 left of the other values."""
    least, most = x[x > 0].min() if log else None, x.max()
    if not log or not least < most:
        # A few settings get a tick each.
        if pd.api.types.is_numeric_dtype(x) and x.nunique() <= 8:
            axes[0].set_xticks(sorted(x.unique()))
        return
    ticks = 10.0 ** np.arange(np.ceil(np.log10(least)), np.floor(np.log10(most)) + 1)
    ticks = ticks if len(ticks) > 1 else np.unique([least, most])
    zero = bool((x == 0).any())
    ticks = np.append([0.0] * zero, ticks)
    for ax in axes:
        ax.set_xscale("symlog", linthresh=least, linscale=0.5)
        ax.set_xticks(ticks, [f"{t:,g}" for t in ticks])
        ax.set_xlim((-0.3 if zero else 0.8) * least, 1.2 * most)
        ax.minorticks_off()
