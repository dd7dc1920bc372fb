"""What all figures of the book share: colours, style, panels, and the slider."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.literal import no_math
from symgen.method.phases import Phases

COLOURS = {
    "and": "#0072B2",
    "or": "#E69F00",
    "generalizable": "#009E73",
    "non-generalizable": "#D55E00",
    "all": "#B0B0B0",
    "chance": "#666666",
    "train": "#56B4E9",
    "test": "#CC79A7",
    "network": "#222222",
    "positive": "#B2182B",
    "negative": "#2166AC",
}
# A slider shows no more letters of a caption beside it.
READOUT = 16
WHISKERS = {"fmt": "none", "color": "black", "capsize": 3, "lw": 1.2}


def set_style() -> None:
    """Set the style of all figures of the book: seaborn's white grid, SVG, stable bytes.

    Tables show their texts in full.
    """
    pd.set_option("display.max_colwidth", None)
    sns.set_theme(context="notebook", style="whitegrid", rc={"axes.titleweight": "bold"})
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 3.8),
            "figure.constrained_layout.use": True,
            "axes.titlesize": 12,
            "axes.labelsize": 11,
            "legend.frameon": False,
            "svg.hashsalt": "symgen",
            "svg.fonttype": "path",
        }
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    # Without a date the bytes of a figure depend on what it shows alone.
    set_matplotlib_formats("svg", metadata={"Date": None})


def axes_or_new(ax: Axes | None) -> Axes:
    return plt.subplots()[1] if ax is None else ax


def spread_apart(places: np.ndarray, low: float, high: float, gap: float) -> np.ndarray:
    """Move points in low..high apart to a gap, or what there is room for, in their order."""
    order = np.argsort(places, kind="stable")
    found = np.clip(places[order], low, high)
    gap = min(gap, (high - low) / max(1, len(found) - 1))
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + gap)
    found[-1] = min(found[-1], high)
    for i in range(len(found) - 2, -1, -1):
        found[i] = min(found[i], found[i + 1] - gap)
    moved = np.empty_like(found)
    moved[order] = found
    return moved


def line_look(i: int) -> dict[str, Any]:
    """Return colour, marker and style of the i-th of several lines."""
    colour = sns.color_palette("colorblind")[i % 10]
    return {"color": colour, "marker": "os^Dv<>P"[i % 8], "ls": ["-", "--", "-.", ":"][i % 4]}


def mark_phases(ax: Axes, phases: Phases, steps: Sequence[int]) -> None:
    for name in ("t1", "t2"):
        step = getattr(phases, name)
        if step is None:
            continue
        ax.axvline(steps.index(step), color="black", lw=1.2, ls=(0, (4, 2)))
        place = (steps.index(step), 1)
        text = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
        ax.annotate(f"$t_{name[1]}$", place, (4, -3), **text)


def slider(figures: Mapping[Any, Figure | Axes], label: str = "") -> Any:
    """Return figures under a slider that also works on a page without a kernel.

    Args:
        figures: caption to figure or Axes, in the slider's order; they are closed.
        label: of the slider.
    """
    import ipywidgets as widgets

    long = any(len(str(caption)) > READOUT for caption in figures)
    pages = []
    for caption, item in figures.items():
        figure = item.figure if isinstance(item, Axes) else item
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        svg = text.getvalue()
        drawn = widgets.HTML(svg[svg.index("<svg") :])
        pages.append(widgets.VBox([widgets.Label(str(caption)), drawn]) if long else drawn)
    stack = widgets.Stack(pages, selected_index=0)
    captions = [(str(caption), i) for i, caption in enumerate(figures)]
    chooser = widgets.SelectionSlider(
        options=captions,
        description=label,
        style={"description_width": "initial"},
        layout=widgets.Layout(width="90%"),
    )
    # A link in the browser, not in Python, is what survives on a static page.
    widgets.jslink((chooser, "index"), (stack, "selected_index"))
    return widgets.VBox([chooser, stack])


def panels(count: int, columns: int, height: float, **shape: Any) -> tuple[Figure, np.ndarray]:
    size = (4.3 * columns, height * count)
    return plt.subplots(count, columns, figsize=size, squeeze=False, **shape)


def panel_grid(titles: Iterable[str], height: float) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with one panel a title, two in a row."""
    titles = list(titles)
    figure, axes = panels(-(-len(titles) // 2), min(2, len(titles)), height)
    for ax in axes.flat[len(titles) :]:
        ax.set_axis_off()
    named = dict(zip(titles, axes.flat, strict=False))
    for title, ax in named.items():
        ax.set_title(no_math(title))
    return figure, named


def panel_rows(count: int, columns: int, width: float, height: float, **shape: Any) -> tuple:
    """Return a figure with one row of panels a study."""
    shape = {"figsize": (width, 0.7 + height * count), "layout": "constrained", **shape}
    figure, axes = plt.subplots(count, columns, squeeze=False, **shape)
    figure.get_layout_engine().set(h_pad=0.08)
    return figure, axes


def legend_below(figure: Figure, axes: Iterable[Axes], columns: int | None = None) -> None:
    """Draw one legend for the entries of several panels."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    columns = columns or len(pairs)
    figure.legend(*zip(*pairs, strict=True), loc="outside lower center", ncols=columns)
