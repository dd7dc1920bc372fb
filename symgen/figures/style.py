"""What all figures share: colors, fonts, panels, intervals, and the slider."""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

# A color has one meaning in the whole book. Colors come from the palettes of Okabe and Ito and of
# ColorBrewer, which are safe for color-blind readers. For grey print, hatches, line styles and
# markers repeat the difference.
COLORS = {
    "and": "#0072B2",
    "or": "#E69F00",
    "generalizable": "#009E73",
    "non-generalizable": "#D55E00",
    "chance": "#666666",
    "untrained": "#7F5AA8",
    "train": "#56B4E9",
    "test": "#CC79A7",
    "network": "#222222",
    "model": "#CC79A7",
    "positive": "#B2182B",
    "negative": "#2166AC",
    "other": "#B0B0B0",
}
# Colors of groups that have no fixed color, such as networks (Tol, muted).
GROUPS = ["#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499"]
# Words and color of the quantities that `measure` knows by a short name.
QUANTITIES = {
    "H": ("generalization power H", "generalizable"),
    "H_low": ("H, orders 1 and 2", "and"),
    "H_high": ("H, orders 6 to 10", "or"),
    "H_rest": ("H, orders from 3 on", "or"),
    "excess": ("H above chance", "generalizable"),
    "chance": ("chance level", "chance"),
    "N": ("number of interactions N", "network"),
    "v": ("output v (log odds)", "network"),
    "gap": ("loss gap (nats)", "non-generalizable"),
    "train_loss": ("training loss (nats)", "train"),
    "test_loss": ("test loss (nats)", "test"),
    "train_accuracy": ("training accuracy", "train"),
    "test_accuracy": ("test accuracy", "test"),
    "non_generalizable": ("non-generalizable", "non-generalizable"),
    "step": ("optimizer steps", ""),
    "epoch": ("epochs", ""),
}
# Style and script of what readers can play with; the site loads them once per page.
WEB = Path(__file__).parent / "web"
MARKERS, LINES = "osD^v<>P", ("-", "--", "-.", ":")
HATCHES = {"or": "///", "non-generalizable": "///"}


def set_style() -> None:
    """Set the style of all figures: seaborn's white grid, SVG with stable bytes, large letters.

    A figure is 6.4 inches wide, so its letters can still be read on a phone.
    """
    rc = {
        "figure.figsize": (6.4, 3.6),
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
        "lines.markersize": 5,
        "svg.hashsalt": "symgen",
        "svg.fonttype": "path",
    }
    # Matplotlib brings this font, so a figure looks the same on every machine.
    sns.set_theme(style="whitegrid", palette=GROUPS, font="DejaVu Sans", font_scale=0.93, rc=rc)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    # With a date, the bytes of a figure would change from run to run.
    set_matplotlib_formats("svg", metadata={"Date": None})


def no_math(text: object) -> str:
    r"""Return text of data so that matplotlib draws it literally, without formulas.

    Example:
        >>> print(no_math("$x$"))
        \$x\$
    """
    visible = "".join(c for c in str(text) if c.isprintable() or c == "\n")
    # A legend leaves out labels that begin with an underscore.
    return (f" {visible}" if visible.startswith("_") else visible).replace("$", r"\$")


def label_of(name: object) -> str:
    """Return the words for a quantity, or else the name itself, drawn literally."""
    return QUANTITIES[name][0] if name in QUANTITIES else no_math(name)


def color_of(name: object, i: int = 0) -> str:
    """Return the color with the meaning of this name, or else the i-th of `GROUPS`.

    Without a name (None) it is the color of a network.
    """
    if name is None:
        return COLORS["network"]
    meaning = QUANTITIES[name][1] if name in QUANTITIES else str(name).removesuffix(" level")
    return COLORS.get(meaning, GROUPS[i % 8])


def axes_or_new(ax: Axes | None, height: float = 3.6, width: float = 6.4) -> Axes:
    """Return the given Axes, or those of a new figure."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def panels(
    titles: Iterable[object], columns: int = 1, height: float = 2.6, **shape: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with one titled panel per title, filled row by row.

    Args:
        titles: titles of the panels; the text is drawn literally.
        columns: panels per row. With more than two, letters become hard to read on a phone.
        height: height of each panel, in inches.
        shape: further arguments of `plt.subplots`, such as sharey=True.
    """
    titles = list(titles)
    columns = max(1, min(columns, len(titles)))
    rows = -(-len(titles) // columns)
    shape |= {"figsize": (max(6.4, 2.6 * columns), height * rows), "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, squeeze=False, **shape)
    for ax in axes.flat[len(titles) :]:
        ax.set_axis_off()
    for ax, title in zip(axes.flat, titles, strict=False):
        ax.set_title(no_math(title))
    return figure, list(axes.flat[: len(titles)])


def legend_below(figure: Figure) -> None:
    """Draw one legend below all panels, each label once; nothing if no panel has labels."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        wide = max(map(len, entries)) > 22
        where = {"loc": "outside lower center", "ncols": min(len(entries), 2 if wide else 3)}
        figure.legend(entries.values(), entries.keys(), **where)


def legend_above(ax: Axes, **look: Any) -> None:
    """Draw the legend of a panel above it, in one column if a label is long."""
    labels = ax.get_legend_handles_labels()[1]
    columns = 1 if max(map(len, labels)) > 22 else min(3, len(labels))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, **look)


def row_axis(ax: Axes, labels: Sequence[object], reference: float | None) -> None:
    """Name the rows of a horizontal figure, first on top, and mark a reference value."""
    ax.set_yticks(range(len(labels)), map(no_math, labels))
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    for place in range(1, len(labels)):
        ax.axhline(place - 0.5, color="#DDDDDD", lw=0.8)
    if reference is not None:
        ax.axvline(reference, color="black", lw=1, ls=(0, (4, 2)))


def parts_of(table: pd.DataFrame, column: str | None) -> list[tuple[Any, pd.DataFrame]]:
    """Return (value, rows) per value of a column, in order; (None, table) without a column."""
    if column is None:
        return [(None, table)]
    return list(table.groupby(column, sort=False))


def mean_intervals(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Return mean, low and high of a 95 % t interval per group, in the order of the table.

    A group with one value has no interval: low and high are NaN.
    """
    groups = table.groupby(list(by), sort=False)[value]
    result = groups.agg(["mean", "sem", "count"]).reset_index()
    reach = result["sem"] * stats.t.ppf(0.975, np.maximum(result["count"] - 1, 1))
    return result.assign(low=result["mean"] - reach, high=result["mean"] + reach)


class Shown:
    """Text and HTML that a notebook displays.

    Args:
        text: plain text for places that show no HTML.
        markup: HTML.
        more: further types of the output, with their data.
    """

    def __init__(self, text: str, markup: str, more: Mapping[str, Any] | None = None):
        self.bundle = {"text/plain": text, "text/html": markup, **(more or {})}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.bundle

    def __repr__(self) -> str:
        return self.bundle["text/plain"]


def web_parts() -> str:
    """Return style and script as HTML: in JupyterLab, they come with each output."""
    rules = (WEB / "figures.css").read_text(encoding="utf-8")
    script = (WEB / "figures.js").read_text(encoding="utf-8")
    return f"<style>{rules}</style><script>{script}</script>"


def slider(
    figures: Mapping[Any, Figure | Axes],
    label: str = "",
    start: Any = None,
    same_scale: bool = False,
    menu: bool = False,
) -> Shown:
    """Return figures of which a reader sees one at a time, without a kernel.

    Args:
        figures: caption to figure or Axes, in the order of the slider. They are closed.
        label: name of what the captions are, such as "checkpoint".
        start: caption of the figure to show first; by default the first one.
        same_scale: whether all figures share their vertical scale. A button then shows each
            figure with a scale of its own.
        menu: whether to choose from a list instead of a slider.

    Raises:
        ValueError: for no figures, or a start that is not a caption.
    """
    captions = list(figures)
    if not captions:
        raise ValueError("figures is empty; expected at least one caption and its figure")
    first = captions[0] if start is None else start
    if first not in captions:
        raise ValueError(f"start is {start!r}; expected one of {captions}")
    drawn = [cast(Figure, x.figure) if isinstance(x, Axes) else x for x in figures.values()]
    images = ""
    if same_scale:
        for caption, figure in zip(captions, drawn, strict=True):
            images += _image(figure, f"{label} {caption}, own scale", caption, "symgen-own")
        _share_scale(drawn)
    for caption, figure in zip(captions, drawn, strict=True):
        look = "symgen-first" if caption == first else ""
        images += _image(figure, f"{label} {caption}", caption, look)
        plt.close(figure)
    kind = "data-menu" if menu else ""
    element = f'<div class="symgen-slider" data-label="{html.escape(label)}" {kind}>{images}</div>'
    words = f"{len(captions)} figures by {label or 'caption'}: {', '.join(map(str, captions))}"
    return Shown(words, element + web_parts())


def _share_scale(figures: Sequence[Figure]) -> None:
    """Give the panels at the same place of all figures the same vertical limits."""
    for alike in zip(*[figure.axes for figure in figures], strict=False):
        limits = np.array([ax.get_ylim() for ax in alike])
        for ax in alike:
            ax.set_ylim(limits.min(), limits.max())


def _image(figure: Figure, words: str, caption: object, look: str) -> str:
    """Return a figure as an <img>; as such, it shares no ids with other figures of the page."""
    page = io.BytesIO()
    figure.savefig(page, format="svg", bbox_inches="tight", metadata={"Date": None})
    source = f"data:image/svg+xml;base64,{base64.b64encode(page.getvalue()).decode()}"
    alt = html.escape(words.strip())
    name = html.escape(str(caption))
    return f'<img class="drawn {look}" alt="{alt}" data-caption="{name}" src="{source}">'
