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
from torch import Tensor

from symgen.figures import style
from symgen.interactions import Interactions

SIGNS = {"and": " ∧ ", "or": " ∨ "}
# A longer list of states would make a page slow: two numbers per masked state.
EXPLORED = 12
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


def names_of(inter: Interactions, names: Sequence[str] | None) -> list[str]:
    """Return the given names, or else those of the interactions, or else numbers."""
    names = one_sample(inter).names if names is None else names
    return list(map(str, range(inter.n) if names is None else names))


def strongest(inter: Interactions, names: Sequence[str] | None, top: int) -> pd.DataFrame:
    """Return the strongest effects with a column label, such as "eye ∧ ear"."""
    table, names = one_sample(inter).to_frame(names).head(top), names_of(inter, names)
    labels = [
        SIGNS[kind].join(names[i] for i in inter.members(index))
        for kind, index in zip(table["type"], table["index"], strict=True)
    ]
    return table.assign(label=labels)


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
    for i, (left, top, right, bottom) in enumerate(boxes.tolist()):
        box = (left - 0.5, top - 0.5), right - left, bottom - top
        if members is not None and i not in members:
            ax.add_patch(Rectangle(*box, fc="#8A8A8A", ec="white", lw=0.8))
            continue
        for color, line in (("white", "-"), ("black", ":")):
            ax.add_patch(Rectangle(*box, fill=False, lw=2, ec=color, ls=line))
        tag = {"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.85, "lw": 0}
        look = {"ha": "center", "va": "center", "size": 10, "weight": "bold", "bbox": tag}
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
    figure.get_layout_engine().set(hspace=0.12)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    copies, ax = top.subplots(1, len(states), squeeze=False)[0], bottom.subplots()
    values = v.cpu().numpy()
    ax.plot(values, color=style.COLORS["other"], lw=1)
    for copy, state in zip(copies, states, strict=True):
        present = [k for k in range(len(boxes)) if state >> k & 1]
        plot_variables(image, boxes, present, copy)
        plt.setp(copy.texts, visible=False)
        plt.setp(copy.patches, linewidth=1)
        name = {0: "S = ∅", len(values) - 1: "S = N"}.get(state, f"S = {state}")
        copy.set_title(f"{name}\nv = {values[state]:.2f}", size=10.5)
        ax.plot(state, values[state], "o", color=style.COLORS["positive"], ms=7, zorder=3)
        ends = {"coordsA": copy.transAxes, "coordsB": ax.transData}
        ends |= {"color": style.COLORS["positive"], "ls": (0, (4, 2)), "in_layout": False}
        figure.add_artist(ConnectionPatch((0.5, -0.03), (state, values[state]), **ends))
    ax.set(xlabel=f"masked state S, from 0 to {len(values) - 1:,}", ylabel="output v")
    ax.margins(x=0.02)
    return figure


def plot_matching(v: Float[Tensor, "state"], inter: Interactions, ax: Axes | None = None) -> Axes:
    """Draw v of the network on all masked states, sorted, and d of the logical model on top.

    Args:
        v: outputs of one sample.
        inter: its interactions.
        ax: where to draw.
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
    """
    table = strongest(inter, names, top)
    ax = style.axes_or_new(ax, 1.1 + 0.3 * max(len(table), 3))
    place = np.arange(len(table))
    for kind in ("and", "or"):
        rows = (table["type"] == kind).to_numpy()
        if not rows.any():  # its color in the legend would be wrong
            continue
        look = {"color": style.COLORS[kind], "hatch": style.HATCHES.get(kind), "edgecolor": "white"}
        ax.barh(place[rows], table["effect"][rows], label=kind.upper(), **look)
    ax.set_yticks(place, map(style.no_math, table["label"]))
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

    Variables are at the bottom, interactions in rows by order, the output on top. Width is
    strength. Red lines raise the output; blue, dashed lines lower it. ANDs are circles with ∧, ORs
    are hexagons with ∨.

    Args:
        inter: interactions of one sample.
        names: names of the variables; by default those of `inter`, or numbers.
        top: number of interactions.
        target: text of the output's node.
        ax: where to draw.
    """
    inter = one_sample(inter)
    table = strongest(inter, names, top).rename(columns={"index": "state"})
    labels = names_of(inter, names)
    # At most five nodes side by side: an order with more gets several rows.
    rows = [
        ("" if i else f"order {order}", members.iloc[i : i + 5])
        for order, members in table.groupby("order")
        for i in range(0, len(members), 5)
    ]
    ax = style.axes_or_new(ax, 2.2 + 0.75 * len(rows), 7.2)
    feet, roof = 10 * (np.arange(inter.n) + 0.5) / inter.n, len(rows) + 1
    largest = table["effect"].abs().max()
    for level, (_, members) in enumerate(rows, 1):
        # A node is above the middle of its variables, as far as its neighbors leave room.
        wish = [feet[list(inter.members(t))].mean() for t in members["state"]]
        wish = np.array(wish) + 0.35 * (-1) ** level
        for node, x in zip(members.itertuples(), _apart(wish, 0.5, 9.3, 1.5), strict=True):
            width = 0.6 + 4 * abs(node.effect) / largest
            _draw_node(ax, node, (x, level), feet[list(inter.members(node.state))], roof, width)
    box = {"boxstyle": "round,pad=0.3", "fc": "#EEEEEE", "ec": "#888888"}
    tilted = len("".join(labels)) + 2 * inter.n > 56
    turn = {"ha": "right", "rotation": 35} if tilted else {"ha": "center"}
    turn |= {"va": "top", "rotation_mode": "anchor", "size": 10.5}
    for x, label in zip(feet, labels, strict=True):
        ax.text(x, 0, style.no_math(label), bbox=box, zorder=4, **turn)
    ax.text(5, roof, style.no_math(target), bbox=box, zorder=4, ha="center", va="center", size=11)
    ax.set_yticks(range(1, len(rows) + 1), [label for label, _ in rows])
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


def _draw_node(
    ax: Axes, node: Any, place: tuple[float, float], feet: np.ndarray, roof: float, width: float
) -> None:
    look = {"color": style.COLORS["positive" if node.effect > 0 else "negative"], "zorder": 1}
    look["ls"] = "-" if node.effect > 0 else (0, (4, 2))
    x, y = place
    for foot in feet:
        ax.plot([foot, x], [0.1, y], lw=max(0.35 * width, 0.8), alpha=0.5, **look)
    ax.plot([x, 5], [y, roof - 0.12], lw=width, alpha=0.75, **look)
    ring = {"mfc": "white", "mec": style.COLORS[node.type], "mew": 2.5, "ms": 20, "zorder": 3}
    ax.plot(x, y, "o" if node.type == "and" else "h", **ring)
    ax.text(x, y, SIGNS[node.type].strip(), ha="center", va="center", size=10, zorder=4)
    box = {"boxstyle": "square,pad=0.1", "fc": "white", "alpha": 0.9, "lw": 0}
    effect = f"{node.effect:+.2f}".replace("-", "−")
    ax.text(x + 0.33, y, effect, va="center", size=9.5, zorder=3.5, bbox=box)


def plot_baselines(baselines: int = 2, ax: Axes | None = None) -> Axes:
    """Draw how H is measured: disjoint training samples, several networks, shared interactions.

    Args:
        baselines: number of baseline networks.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax, 3.6)
    plural = "s" if baselines > 1 else ""
    look = {"ha": "center", "va": "center", "size": 10.5}
    rows = [
        (0.78, 0.6, "A", "target\nnetwork", "#D9ECF7"),
        (0.28, 0.46, "B", f"{baselines} baseline\nnetwork{plural}", "#FBE8C8"),
    ]
    boxes = [(0.9, 0.53, "in both,\nsame sign:\nH", "#CDE9E0")]
    for y, end, half, network, fill in rows:
        boxes += [(0.1, y, f"training\nsamples {half}", "#EEEEEE"), (0.37, y, network, fill)]
        boxes += [(0.63, y, "salient\ninteractions", fill)]
        ax.text(0.23, y + 0.03, "train", size=9.5, ha="center")
        for start, stop in (
            ((0.19, y), (0.28, y)),
            ((0.46, y), (0.53, y)),
            ((0.74, y), (0.82, end)),
        ):
            ax.annotate("", stop, start, arrowprops={"arrowstyle": "-|>", "color": "#444444"})
    for x, y, text, fill in boxes:
        box = {"boxstyle": "round,pad=0.5", "fc": fill, "ec": "#666666"}
        ax.text(x, y, text, bbox=box, **look)
    ax.text(0.5, 0.53, "the same\nmasked test samples", style="italic", **look)
    ax.set(xlim=(0, 1), ylim=(0.1, 0.95))
    ax.set_axis_off()
    return ax


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
    """
    inter = one_sample(inter)
    if inter.n > EXPLORED:
        raise ValueError(
            f"the sample has {inter.n} variables; the explorer shows at most {EXPLORED}"
        )
    if (image is None) != (boxes is None) or (text is None) != (spans is None):
        raise ValueError("an image needs its boxes, and a text needs its spans")
    if names is None and text is not None:
        names = [text[start:end] for start, end in spans]
    table = strongest(inter, names, top)
    table = table[table["effect"].abs() >= 0.005]  # the others would read 0.00
    terms = zip(table["type"], table["index"], table["effect"].round(4), strict=True)
    v, d = v.tolist(), inter.predict().tolist()
    data = {
        "names": names_of(inter, names),
        "v": [round(x, 3) for x in v],
        "d": [round(x, 3) for x in d],
        "terms": [list(term) for term in terms],
    }
    if image is not None:
        height, width = image.shape[:2]
        share = boxes / torch.tensor([width, height, width, height])
        data |= {"image": _data_uri(image), "boxes": (100 * share).round(decimals=2).tolist()}
    if text is not None:
        data |= {"text": text, "spans": [list(span) for span in spans]}
    # A page without the script shows this sentence.
    still = f"Network v = {v[-1]:.2f}, logical model d = {d[-1]:.2f}. This needs JavaScript."
    held = html.escape(json.dumps(data, separators=(",", ":")))
    element = f'<div class="symgen-explorer" data-explorer="{held}"><p>{still}</p></div>'
    return style.Shown(still, element + style.web_parts())


def _data_uri(image: np.ndarray) -> str:
    from PIL import Image

    picture = Image.fromarray(np.asarray(image, dtype=np.uint8))
    small = max(picture.size) <= 64
    picture.thumbnail((PIXELS, PIXELS))
    # PNG keeps the pixels of small images; JPEG keeps photographs small.
    file, kind = io.BytesIO(), "png" if small else "jpeg"
    picture.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
