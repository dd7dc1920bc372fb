"""Pairs of values as dots."""

import pandas as pd
from matplotlib.axes import Axes

from symgen.figures import style

# More dots hide each other, and make a page slow.
MOST_DOTS = 1500


def plot_scatter(
    table: pd.DataFrame, x: str, y: str, group: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw one dot per row: one quantity against another.

    Of more than 1,500 rows, a random sample is drawn, and the axis says so.

    Args:
        table: one row per dot.
        x, y: columns.
        group: column that gives color and marker; the legend counts all rows.
        ax: where to draw.

    Example:
        >>> table = pd.DataFrame({"H": [0.4, 0.5], "gap": [0.2, 0.1]})
        >>> plot_scatter(table, "H", "gap").get_ylabel()
        'loss gap (nats)'
    """
    ax = style.axes_or_new(ax, 4.2, 5.6)
    xlabel = style.label_of(x)
    known = table.dropna(subset=[x, y]).reset_index(drop=True)
    drawn = known
    if len(known) > MOST_DOTS:
        drawn = known.sample(MOST_DOTS, random_state=0).sort_index()
        xlabel += f"\n({MOST_DOTS:,} of {len(known):,} dots, drawn at random)"
    style.note_if_empty(ax, (table[x] + table[y]).to_numpy())
    for k, (name, rows) in enumerate(style.parts_of(known, group)):
        dots = drawn[drawn.index.isin(rows.index)]
        ax.plot(
            dots[x],
            dots[y],
            style.marker_of(name, k),
            color=style.color_of(name, k),
            label=None if name is None else f"{style.label_of(name)} ({len(rows):,})",
            alpha=0.5,
            mew=0,
        )
    ax.set(xlabel=xlabel, ylabel=style.label_of(y))
    style.legend_above(ax)
    return ax
