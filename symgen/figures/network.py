"""Figures of one network on one sample: variables, masking, logical model, explorer."""

import base64
import html
import io
import json
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle
from matplotlib.path import Path
from PIL import Image
from torch import Tensor

from symgen.figures import style
from symgen.interactions import Interactions

SIGNS = {"and": " ∧ ", "or": " ∨ "}
# A longer list of states would make a page slow: two numbers per masked state.
EXPLORED = 12
# Least distance of two nodes of a graph; its width is 10.
GAP = 1.5
# Photographs are shrunk to this many pixels per side.
PIXELS = 256


def one_sample(inter: Interactions) -> Interactions:
    """Return the interactions of a single sample; a batch of one counts as one.

    Raises:
        ValueError: for several samples.
    """
    if inter.bias.numel() != 1:
        raise ValueError(
            f"there are interactions of {inter.bias.numel()} samples; expected one sample, "
            "such as inter[0]"
        )
    return inter[(0,) * inter.bias.ndim] if inter.bias.ndim else inter


def strongest(
    inter: Interactions, names: Sequence[str] | None, top: int
) -> tuple[pd.DataFrame, list[str]]:
    """Return the strongest effects with a column label, such as "eye ∧ ear"; and all names.

    Names are those given, or else those of the interactions, or else numbers.
    """
    inter = one_sample(inter)
    known = inter.names if names is None else names
    words = [str(name) for name in (range(inter.n) if known is None else known)]
    table = inter.to_frame(words).head(top)
    labels = []
    for kind, index in zip(table["type"], table["index"], strict=True):
        labels.append(SIGNS[kind].join(words[i] for i in inter.members(index)))
    return table.assign(label=labels), words


def plot_variables(
    image: np.ndarray,
    boxes: Int[Tensor, "n 4"],
    members: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw an image with its input variables as numbered boxes (Fig. 8).

    Args:
        image: (height, width, 3) uint8, or (height, width) grey.
        boxes: left, top, right, bottom in pixels; one sample of `ImageVariables.boxes`.
        members: variables to show; the others are covered.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax, 3.4, 3.4)
    ax.imshow(image, interpolation="nearest", cmap="gray", vmin=0, vmax=255)
    look = {
        "ha": "center",
        "va": "center",
        "size": 10,
        "weight": "bold",
        "bbox": {"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.85, "lw": 0},
    }
    for i, (left, top, right, bottom) in enumerate(boxes.tolist()):
        corner = (left - 0.5, top - 0.5)
        size = (right - left, bottom - top)
        if members is not None and i not in members:
            ax.add_patch(Rectangle(corner, *size, fc="#8A8A8A", ec="white", lw=0.8))
            continue
        # Black on white can be seen on every image.
        ax.add_patch(Rectangle(corner, *size, fill=False, lw=2, ec="white"))
        ax.add_patch(Rectangle(corner, *size, fill=False, lw=2, ec="black", ls=":"))
        ax.text((left + right - 1) / 2, (top + bottom - 1) / 2, str(i), **look)
    ax.set_axis_off()
    return ax


def plot_masking(
    image: np.ndarray,
    boxes: Int[Tensor, "n 4"],
    states: Sequence[int],
    v: Float[Tensor, "state"],
) -> Figure:
    """Draw masked copies of an image, and below them the vector v with one value per copy.

    Args:
        image: (height, width, 3) uint8, or (height, width) grey.
        boxes: left, top, right, bottom in pixels, of each variable.
        states: masked states to show, at most five; bit i is set if variable i is present.
        v: outputs on all masked states of this image.
    """
    figure = plt.figure(figsize=(6.4, 4.2), layout="constrained")
    grid = figure.add_gridspec(2, len(states), height_ratios=[1, 1.15])
    copies = [figure.add_subplot(grid[0, column]) for column in range(len(states))]
    ax = figure.add_subplot(grid[1, :])
    color = style.COLORS["positive"]
    values = v.tolist()
    ax.plot(values, color=style.COLORS["other"], lw=1)
    names = {0: "S = ∅", len(values) - 1: "S = N"}
    for copy, state in zip(copies, states, strict=True):
        plot_variables(image, boxes, [k for k in range(len(boxes)) if state >> k & 1], copy)
        plt.setp(copy.texts, visible=False)
        plt.setp(copy.patches, linewidth=1)
        copy.set_title(f"{names.get(state, f'S = {state}')}\nv = {values[state]:.2f}", size=10.5)
        place = (state, values[state])
        ax.plot(*place, "o", color=color, ms=7, zorder=3)
        line = ConnectionPatch(
            xyA=(0.5, -0.03),
            xyB=place,
            coordsA=copy.transAxes,
            coordsB=ax.transData,
            color=color,
            ls=(0, (4, 2)),
        )
        line.set_in_layout(False)
        figure.add_artist(line)
    ax.set(xlabel=f"masked state S, from 0 to {len(values) - 1:,}", ylabel="output v")
    ax.margins(x=0.02)
    return figure


def plot_matching(v: Float[Tensor, "state"], inter: Interactions, ax: Axes | None = None) -> Axes:
    """Draw v of the network on all masked states, sorted, and d of the logical model on top.

    Args:
        v: outputs of one sample.
        inter: its interactions.
        ax: where to draw.

    Example:
        >>> v = torch.randn(8)
        >>> plot_matching(v, Interactions.from_moebius(v)).get_ylabel()
        'output v (log odds)'
    """
    ax = style.axes_or_new(ax)
    order = torch.argsort(v.cpu(), stable=True)
    model = one_sample(inter).predict().cpu()[order]
    ax.plot(v.cpu()[order], color=style.COLORS["network"], lw=2.5, alpha=0.6, label="v")
    ax.plot(model, ".", ms=3, color=style.COLORS["model"], label="d of the logical model")
    ax.set(xlabel="masked states, sorted by v", ylabel="output v (log odds)")
    ax.legend(markerscale=3)
    return ax


def plot_interactions(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 12,
    ax: Axes | None = None,
) -> Axes:
    """Draw the strongest interactions of one sample as bars; ANDs are plain, ORs hatched.

    Args:
        inter: interactions of one sample.
        names: names of the variables; by default those of `inter`, or numbers.
        top: number of bars.
        ax: where to draw.

    Example:
        >>> inter = Interactions.from_moebius(torch.tensor([0.0, 1.0, 2.0, 6.0]))
        >>> ax = plot_interactions(inter, ["eye", "ear"])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['eye ∧ ear', 'ear', 'eye']
    """
    table, _ = strongest(inter, names, top)
    table["place"] = range(len(table))
    ax = style.axes_or_new(ax, 1.1 + 0.3 * max(len(table), 3))
    for kind, rows in style.parts_of(table, "type"):
        ax.barh(
            rows["place"],
            rows["effect"],
            label=kind.upper(),
            color=style.COLORS[kind],
            hatch=style.HATCH if kind == "or" else None,
            edgecolor="white",
        )
    if table.empty:
        style.note(ax, "no interactions")
    ax.set_yticks(table["place"], [style.no_math(label) for label in table["label"]])
    ax.invert_yaxis()
    ax.axvline(0, color="black", lw=0.8)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("effect on v")
    style.legend_above(ax)
    return ax


def plot_graph(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 10,
    target: str = "output",
    ax: Axes | None = None,
) -> Axes:
    """Draw the strongest interactions of one sample as an AND-OR graph (Fig. 1, 7).

    Variables are at the bottom, interactions with their effects in rows by order, the output on
    top. ANDs are rounded boxes, ORs are hexagons. Width is strength. Red lines raise the output;
    blue, dashed lines lower it.

    Args:
        inter: interactions of one sample.
        names: names of the variables; by default those of `inter`, or numbers.
        top: number of interactions.
        target: text of the output's node.
        ax: where to draw.

    Example:
        >>> inter = Interactions.from_moebius(torch.tensor([0.0, 1.0, 2.0, 5.0]))
        >>> ax = plot_graph(inter, ["eye", "ear"], target="cat")
        >>> [text.get_text() for text in ax.texts]
        ['∧ +2.00', '∧ +1.00', '∧ +2.00', 'cat', 'eye', 'ear']
    """
    inter = one_sample(inter)
    table, labels = strongest(inter, names, top)
    # At most five nodes side by side: an order with more gets several rows.
    rows = []
    for order, nodes in table.groupby("order"):
        for start in range(0, len(nodes), 5):
            title = f"order {order}" if start == 0 else ""
            rows.append((title, nodes.iloc[start : start + 5]))
    ax = style.axes_or_new(ax, 2.2 + 0.75 * max(len(rows), 1), 7.2)
    feet = 10 * (np.arange(inter.n) + 0.5) / inter.n
    roof = len(rows) + 1
    below = [[feet[list(inter.members(i))] for i in nodes["index"]] for _, nodes in rows]
    places = _off_lines(below, roof)
    for level, (_, nodes) in enumerate(rows, 1):
        widths = 0.6 + 4 * nodes["effect"].abs() / table["effect"].abs().max()
        each = (nodes["type"], nodes["effect"], widths, places[level - 1], below[level - 1])
        for kind, effect, width, x, members in zip(*each, strict=True):
            _draw_edges(ax, effect, width, (x, level), members, roof)
            _draw_node(ax, kind, effect, (x, level))
    if table.empty:
        style.note(ax, "no interactions")
    look = {
        "bbox": {"boxstyle": "round,pad=0.3", "fc": "#EEEEEE", "ec": "#888888"},
        "ha": "center",
        "va": "center",
        "size": 10.5,
        "rotation_mode": "anchor",
    }
    ax.text(5, roof, style.no_math(target), **look)
    look["va"] = "top"
    # Long names would lie on each other.
    if len("".join(labels)) + 2 * inter.n > 56:
        look["ha"] = "right"
        look["rotation"] = 35
    for x, label in zip(feet, labels, strict=True):
        ax.text(x, 0, style.no_math(label), **look)
    ax.set_yticks(range(1, roof), [title for title, _ in rows])
    ax.set(xlim=(-0.2, 10.2), ylim=(-0.5, roof + 0.3), xticks=[])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return ax


def _apart(wish: np.ndarray, low: float, high: float, gap: float) -> np.ndarray:
    """Return places near the wished ones, in their order, at least a gap apart if they fit."""
    order = np.argsort(wish, kind="stable")
    steps = min(gap, (high - low) / max(1, len(wish) - 1)) * np.arange(len(wish))
    free = np.clip(wish[order] - steps, low, high - steps[-1])
    places = np.empty_like(free)
    places[order] = np.maximum.accumulate(free) + steps
    return places


def _off_lines(below: Sequence[Sequence[np.ndarray]], roof: int) -> list[np.ndarray]:
    """Return the places of the nodes of each row, if possible off the lines of other nodes.

    Args:
        below: places of the variables of each node, by row.
        roof: height of the output.
    """
    # A node is above the middle of its variables, as far as its neighbors leave room.
    middles = [np.array([feet.mean() for feet in row]) for row in below]
    x = np.concatenate([np.zeros(0), *(_apart(row, 0.6, 9.4, GAP) for row in middles)])
    level = np.repeat(np.arange(1, roof), [len(row) for row in below])
    ends = [[*((foot, 0.0) for foot in feet), (5.0, roof)] for row in below for feet in row]
    wish = x.copy()
    for i in [*range(len(x))] * 3:
        spots = np.append(np.linspace(0.6, 9.4, 45), x[i])
        cost = 0.2 * abs(spots - wish[i])
        for j in np.flatnonzero(np.arange(len(x)) != i):
            if level[i] == level[j]:  # the order of a row stays
                cost += 99 * (np.sign(x[i] - x[j]) * (spots - x[j]) < GAP - 1e-9)
            cost += _hits(spots, level[i], ends[i], x[j], level[j])
            cost += _hits(x[j], level[j], ends[j], spots, level[i])
        x[i] = spots[cost.argmin()]
    return [x[level == k] for k in range(1, roof)]


def _hits(x: Any, level: Any, ends: Sequence, node: Any, above: Any) -> Any:
    """Return how many lines from a node at (x, level) meet a node; to the output counts as 3."""
    count = np.zeros(np.broadcast(x, node).shape)
    for end, height in ends:
        if (above - level) * (above - height) < 0:
            slope = (end - x) / (height - level)
            room = 0.5 * GAP + 0.15 * abs(slope)
            count += (3 if height else 1) * (abs(x + slope * (above - level) - node) < room)
    return count


def _draw_edges(
    ax: Axes, effect: float, width: float, node: tuple[float, float], feet: np.ndarray, roof: float
) -> None:
    """Draw the lines from a node to its variables and to the output."""
    look: dict[str, Any] = {"color": style.COLORS["positive"]}
    if effect < 0:
        look = {"color": style.COLORS["negative"], "ls": (0, (4, 2))}
    x, y = node
    for foot in feet:
        ax.plot([foot, x], [0.1, y], lw=max(0.35 * width, 0.8), alpha=0.5, **look)
    ax.plot([x, 5], [y, roof - 0.12], lw=width, alpha=0.75, **look)


def _draw_node(ax: Axes, kind: str, effect: float, node: tuple[float, float]) -> None:
    """Draw a node that holds its effect, so that no line crosses the number."""
    box = {
        "boxstyle": "round,pad=0.4,rounding_size=1" if kind == "and" else _hexagon,
        "fc": "white",
        "ec": style.COLORS[kind],
        "lw": 2.2,
    }
    words = f"{SIGNS[kind].strip()} {effect:+.2f}".replace("-", "−")
    ax.text(*node, words, ha="center", va="center", size=10, bbox=box)


def _hexagon(left: float, bottom: float, width: float, height: float, size: float) -> Path:
    """Return the frame of an OR around a text; all lengths are in points."""
    pad, tip = 0.35 * size, 0.9 * size
    right, middle = left + width, bottom + height / 2
    low, high = bottom - pad, bottom + height + pad
    below = [(left - tip, middle), (left, low), (right, low)]
    above = [(right + tip, middle), (right, high), (left, high)]
    return Path([*below, *above, below[0]], closed=True)


def explorer(
    v: Float[Tensor, "state"],
    inter: Interactions,
    names: Sequence[str] | None = None,
    image: np.ndarray | None = None,
    boxes: Int[Tensor, "n 4"] | None = None,
    text: str | None = None,
    spans: Sequence[tuple[int, int]] | None = None,
    top: int = 30,
) -> style.Shown:
    """Return one sample whose variables can be switched on and off, without a kernel.

    Two bars show v of the network and d of the logical model on the chosen masked state. Below
    them are the AND and OR terms that are active there. Pointing at a term marks its variables.

    Args:
        v: outputs of one sample.
        inter: its interactions; `sparsify(v, few=True)` keeps the list of terms short.
        names: variable names; by default those of `inter`, the words of the text, or numbers.
        image: (height, width, 3) uint8, or (height, width) grey.
        boxes: left, top, right, bottom in pixels, of each variable of the image.
        text: text of the sample, instead of an image.
        spans: start and end of each variable in the text, in characters.
        top: number of terms to list; the others are summed up in one line.

    Raises:
        ValueError: for more than 12 variables, or an image without boxes.

    Example:
        >>> v = torch.tensor([0.0, 1.0, 2.0, 5.0])
        >>> explorer(v, Interactions.from_moebius(v), ["eye", "ear"])
        Network v = 5.00, logical model d = 5.00. This needs JavaScript.
    """
    inter = one_sample(inter)
    if inter.n > EXPLORED:
        raise ValueError(
            f"the sample has {inter.n} variables; the explorer shows at most {EXPLORED}"
        )
    if (image is None) != (boxes is None) or (text is None) != (spans is None):
        raise ValueError("an image needs its boxes, and a text needs its spans")
    data: dict[str, Any] = {}
    if image is not None and boxes is not None:
        height, width = image.shape[:2]
        share = boxes / torch.tensor([width, height, width, height])
        data["image"] = _data_uri(image)
        data["boxes"] = (100 * share).round(decimals=2).tolist()
    if text is not None and spans is not None:
        data["text"] = text
        data["spans"] = [list(span) for span in spans]
        if names is None:
            names = [text[start:end] for start, end in spans]
    table, words = strongest(inter, names, top)
    table = table[table["effect"].abs() >= 0.005]  # the others would read 0.00
    terms = zip(table["type"], table["index"], table["effect"].round(4), strict=True)
    data["names"] = words
    data["terms"] = [list(term) for term in terms]
    data["v"] = [round(x, 3) for x in v.tolist()]
    data["d"] = [round(x, 3) for x in inter.predict().tolist()]
    # A page without the script shows this sentence.
    still = (
        f"Network v = {data['v'][-1]:.2f}, logical model d = {data['d'][-1]:.2f}. "
        "This needs JavaScript."
    )
    held = html.escape(json.dumps(data, separators=(",", ":")))
    element = f'<div class="symgen-explorer" data-explorer="{held}"><p>{still}</p></div>'
    return style.Shown(still, element + style.web_parts())


def _data_uri(image: np.ndarray) -> str:
    picture = Image.fromarray(np.asarray(image, dtype=np.uint8))
    # PNG keeps the pixels of small images; JPEG keeps photographs small.
    kind = "png" if max(picture.size) <= 64 else "jpeg"
    picture.thumbnail((PIXELS, PIXELS))
    file = io.BytesIO()
    picture.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
