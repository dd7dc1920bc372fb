"""What all figures share: colors, fonts, panels, intervals, and the slider."""

import base64
import html
import io
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.method.statistics import mean_intervals as mean_intervals

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
    "low": "#44AA99",
    "high": "#882255",
    "train": "#56B4E9",
    "test": "#CC79A7",
    "network": "#222222",
    "model": "#CC79A7",
    "positive": "#B2182B",
    "negative": "#2166AC",
    "other": "#B0B0B0",
}
# A marker keeps its meaning, too.
SHAPES = {
    "network": "o",
    "generalizable": "o",
    "non-generalizable": "X",
    "chance": "s",
    "untrained": "D",
    "low": "^",
    "high": "v",
    "train": "<",
    "test": ">",
}
# Colors and markers of groups that have no fixed ones, such as networks (Tol, muted).
GROUPS = ["#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499"]
MARKERS = "osD^v<>P"
LINES = ("-", "--", "-.", ":")
# Of ORs and of non-generalizable strength.
HATCH = "///"
# Words and meaning of the quantities that `measure` knows by a short name.
QUANTITIES: dict[Any, tuple[str, str]] = {
    "H": ("generalization power H", "generalizable"),
    "H_low": ("H, orders 1 and 2", "low"),
    "H_high": ("H, orders 6 to 10", "high"),
    "H_rest": ("H, orders from 3 on", "high"),
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
    if visible.startswith("_"):
        visible = f" {visible}"
    return visible.replace("$", r"\$")


def label_of(name: object) -> str:
    """Return the words for a quantity, or else the name itself, drawn literally."""
    return QUANTITIES[name][0] if name in QUANTITIES else no_math(name)


def _meaning_of(name: object) -> str:
    if name in QUANTITIES:
        return QUANTITIES[name][1]
    return "network" if name is None else str(name).removesuffix(" level")


def color_of(name: object, i: int = 0) -> str:
    """Return the color with the meaning of this name, or else the i-th of `GROUPS`.

    Without a name (None) it is the color of a network.

    Example:
        >>> color_of("chance level") == COLORS["chance"], color_of("ResNet-20", 1) == GROUPS[1]
        (True, True)
    """
    return COLORS.get(_meaning_of(name), GROUPS[i % 8])


def marker_of(name: object, i: int = 0) -> str:
    """Return the marker with the meaning of this name, or else the i-th of `MARKERS`."""
    return SHAPES.get(_meaning_of(name), MARKERS[i % 8])


def axes_or_new(ax: Axes | None, height: float = 3.6, width: float = 6.4) -> Axes:
    """Return the given Axes, or those of a new figure."""
    if ax is not None:
        return ax
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def panels(
    titles: Iterable[object], columns: int = 1, height: float = 2.6, **shape: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with one titled panel per title, filled row by row.

    Args:
        titles: titles of the panels; the text is drawn literally.
        columns: panels per row. With more than two, letters become hard to read on a phone.
        height: height of each panel, in inches.
        shape: further arguments of `plt.subplots`, such as sharey=True.

    Example:
        >>> figure, axes = panels(["CNN", "ResNet"], columns=2, sharey=True)
        >>> len(axes)
        2
    """
    titles = list(titles)
    columns = max(1, min(columns, len(titles)))
    rows = -(-len(titles) // columns)
    size = (max(6.4, 2.6 * columns), height * rows)
    figure, grid = plt.subplots(
        rows, columns, squeeze=False, figsize=size, layout="constrained", **shape
    )
    axes = list(grid.flat)
    for ax in axes[len(titles) :]:
        ax.set_axis_off()
    width = 72 // columns  # of a line of a title, in letters
    for ax, title in zip(axes, titles, strict=False):
        lines = [textwrap.fill(line, width) for line in no_math(title).splitlines()]
        ax.set_title("\n".join(lines))
    return figure, axes[: len(titles)]


def _columns(labels: Collection[str], figure: Any) -> int:
    """Return how many columns of a legend fit; a wider legend would narrow the panel."""
    letters = 13.5 * figure.get_figwidth()  # with 13.5 letters per inch
    longest = 6 + max(map(len, labels))  # 6 for the marker and the space between
    return max(1, min(len(labels), 3, int(letters / longest)))


def legend_below(figure: Figure) -> None:
    """Draw one legend below all panels, each label once; nothing if no panel has labels."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=_columns(entries, figure),
        )


def legend_above(ax: Axes) -> None:
    """Draw the legend of a panel above it; nothing if the panel has no labels."""
    _, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=_columns(labels, ax.figure))


def draw_band(ax: Axes, rows: pd.DataFrame, x: str, value: str, color: Any) -> pd.DataFrame:
    """Draw 95 % intervals over repetitions as a band; return x, mean, low and high, by x.

    Means of fewer than three values have no band: theirs would be as high as the panel.
    """
    means = mean_intervals(rows, [x], value).sort_values(x)
    enough = rows.groupby(x)[value].count()[means[x]] >= 3
    band = means["low"], means["high"]
    ax.fill_between(means[x], *band, where=enough, color=color, alpha=0.16, lw=0)
    return means


def note(ax: Axes, text: str) -> None:
    """Write a sentence into an empty panel: why it is empty."""
    box = {"fc": "white", "lw": 0}
    where = {"transform": ax.transAxes, "ha": "center", "va": "center"}
    ax.text(0.5, 0.5, text, color="#555555", bbox=box, **where)


def note_if_empty(ax: Axes, values: np.ndarray) -> None:
    """Say why a panel is empty, if the values to draw are all missing."""
    if len(values) == 0:
        note(ax, "not measured")
    elif np.isnan(values).all():
        note(ax, f"undefined in all {len(values)} rows")


def parts_of(table: pd.DataFrame, by: str | list[str] | None) -> list[tuple[Any, pd.DataFrame]]:
    """Return (value, rows) per value of a column, in order; (None, table) without a column."""
    if by is None:
        return [(None, table)]
    return list(table.groupby(by, sort=False))


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

    Example:
        >>> slider({step: panels([step])[0] for step in (0, 10)}, "step", start=10)
        2 figures by step: 0, 10
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
        low = min(ax.get_ylim()[0] for ax in alike)
        high = max(ax.get_ylim()[1] for ax in alike)
        for ax in alike:
            ax.set_ylim(low, high)


def _image(figure: Figure, words: str, caption: object, look: str) -> str:
    """Return a figure as an <img>; as such, it shares no ids with other figures of the page."""
    page = io.BytesIO()
    figure.savefig(page, format="svg", bbox_inches="tight", metadata={"Date": None})
    source = f"data:image/svg+xml;base64,{base64.b64encode(page.getvalue()).decode()}"
    alt = html.escape(words.strip())
    name = html.escape(str(caption))
    return f'<img class="drawn {look}" alt="{alt}" data-caption="{name}" src="{source}">'
