"""Figures of one network on some samples: outputs, variables, interactions, splits."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from symgen.figures.style import COLOURS, axes_or_new, legend_below, panels, spread_apart
from symgen.fingerprints import refusal
from symgen.interactions import SALIENT_SHARE, Interactions
from symgen.literal import no_math
from symgen.method.extraction import SIGNS, set_labels
from symgen.method.statistics import cut, interval


@refusal
def _refuse_several(inter: Any) -> None:
    if (count := inter.bias.numel()) > 1:
        raise ValueError(
            f"interactions of {count} samples are given, and the figure is of one: inter[0]"
        )


def plot_matching(
    v: Tensor, inter: Interactions, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw the network's output on all masked states, sorted, with the logical model's on it.

    Args:
        v: (2**n,) outputs of one sample.
        inter: its interactions.
        ax: where to draw.

    Returns:
        Axes, and a table: state, v, d.
    """
    ax = axes_or_new(ax)
    table = pd.DataFrame({"state": range(len(v)), "v": v.cpu(), "d": inter.predict().cpu()})
    table = table.sort_values("v", kind="stable", ignore_index=True)
    ax.plot(table["v"], color=COLOURS["network"], lw=2.5, alpha=0.6, label="v, output")
    ax.plot(table["d"], ".", ms=2.5, color=COLOURS["or"], label="d, logical model")
    ax.set(xlabel="masked states, sorted by v", ylabel="output v")
    ax.legend()
    return ax, table


def plot_sparsity(
    models: Mapping[str, Mapping[str, Interactions]],
) -> tuple[Figure, pd.DataFrame]:
    """Draw the strength of interactions, largest first: a panel a kind of model, a line a study.

    Args:
        models: kind of model to study to interactions. The strengths of each sample are divided
            by its largest; lines are medians over samples, bands the middle 80 % of samples.

    Returns:
        Figure, and a table: model, study, rank, strength, low, high.
    """
    figure, axes = panels(1, len(models), 4.2, sharey=True)
    palette, rows = sns.color_palette("colorblind"), []
    for ax, (kind, studies) in zip(axes[0], models.items(), strict=True):
        for i, (study, inter) in enumerate(studies.items()):
            size = inter.effects.abs().reshape(-1, 2 * 2**inter.n).cpu()
            # Of a sample without interactions the curve is 0 throughout.
            size = size / size.amax(-1, keepdim=True).clamp(min=1e-300)
            shares = torch.tensor([0.1, 0.5, 0.9], dtype=size.dtype)
            low, middle, high = size.sort(-1, descending=True).values.quantile(shares, dim=0)
            rank, look = np.arange(1, len(middle) + 1), {"color": palette[i % len(palette)]}
            ax.plot(rank, middle, ("-", "--", "-.", ":")[i % 4], label=no_math(study), **look)
            ax.fill_between(rank, low, high, alpha=0.2, lw=0, **look)
            curve = {"rank": rank, "strength": middle, "low": low, "high": high}
            rows.append(pd.DataFrame({"model": kind, "study": study, **curve}))
        ax.axhline(SALIENT_SHARE, color=COLOURS["chance"], lw=1, ls=(0, (1, 2)))
        ax.text(1.05, SALIENT_SHARE + 0.01, "saliency threshold", size=9)
        ax.set(xscale="log", xlabel="rank of the interaction", ylim=(0, 1), title=no_math(kind))
    axes[0, 0].set_ylabel("strength / largest")
    legend_below(figure, axes[0, :1], 1)
    return figure, pd.concat(rows, ignore_index=True)


def plot_variables(
    image: np.ndarray,
    boxes: Tensor,
    ax: Axes | None = None,
    members: Sequence[int] | None = None,
) -> tuple[Axes, Tensor]:
    """Draw an image with its input variables as numbered boxes (Fig. 8).

    Args:
        image: (height, width, 3) uint8.
        boxes: (n, 4) left, top, right, bottom in pixels, of `ImageVariables.boxes`.
        members: with these, the other variables are dimmed.
    """
    ax = plt.subplots(figsize=(3.4, 3.4))[1] if ax is None else ax
    ax.imshow(image, interpolation="nearest")
    for i, (left, top, right, bottom) in enumerate(boxes.tolist()):
        patch = (left - 0.5, top - 0.5), right - left, bottom - top
        for colour, line in (("white", "-"), ("black", ":")):
            ax.add_patch(Rectangle(*patch, fill=False, lw=2.5, ec=colour, ls=line))
        if members is not None and i not in members:
            ax.add_patch(Rectangle(*patch, fc="black", alpha=0.7, lw=0))
            continue
        tag = {"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.85, "lw": 0}
        style = {"ha": "center", "va": "center", "size": 10, "weight": "bold", "bbox": tag}
        ax.text((left + right - 1) / 2, (top + bottom - 1) / 2, str(i), **style)
    ax.set_axis_off()
    return ax, boxes


def plot_interactions(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 12,
    ax: Axes | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strongest interactions of one sample as bars, AND plain and OR hatched.

    Args:
        inter: of one sample.
        names: of the variables.
        top: number of bars.

    Returns:
        Axes, and the drawn rows of `Interactions.to_frame`.
    """
    _refuse_several(inter)
    table = inter.to_frame(names).head(top)
    ax = plt.subplots(figsize=(7.2, 0.6 + 0.3 * max(len(table), 4)))[1] if ax is None else ax
    place = np.arange(len(table))
    for kind, hatch in (("and", ""), ("or", "///")):
        rows = (table["type"] == kind).to_numpy()
        look = {"color": COLOURS[kind], "hatch": hatch, "edgecolor": "white"}
        ax.barh(place[rows], table["effect"][rows], label=kind.upper(), **look)
    ax.set_yticks(place, map(no_math, set_labels(table)))
    ax.invert_yaxis()
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="effect on v", ylabel="")
    # Above the bars, of which the longest would lie under it.
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return ax, table


def plot_graph(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 12,
    target: str = "output",
    ax: Axes | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strongest interactions of one sample as an AND-OR graph (Fig. 1, 7).

    Variables stand at the bottom, above them the interactions in layers by order, and the output
    on top. Width is strength; red raises the output and blue, dashed, lowers it; an AND is a
    circle with a wedge, an OR a hexagon with a vee.

    Args:
        inter: of one sample.
        names: of the variables; their numbers without.
        top: number of interactions.
        target: text of the output's node.

    Returns:
        Axes, and the drawn rows of `Interactions.to_frame`.
    """
    _refuse_several(inter)
    labels = [str(i) for i in range(inter.n)] if names is None else list(names)
    table = inter.to_frame(labels).head(top).rename(columns={"index": "state"})
    layers = sorted(table["order"].unique())
    ax = plt.subplots(figsize=(9, 2.4 + 0.85 * max(1, len(layers))))[1] if ax is None else ax
    feet, roof = 10.0 * (np.arange(inter.n) + 0.5) / inter.n, len(layers) + 1.0
    for level, order in enumerate(layers, 1):
        rows = table[table["order"] == order]
        # Above the middle of its variables, as far as the neighbours leave room; layers are set
        # off, so that nodes of several layers do not stand in one line.
        wanted = np.array([feet[[*inter.members(t)]].mean() for t in rows["state"]])
        places = spread_apart(wanted + 0.3 * (-1) ** level, 0.4, 9.6, 1.1)
        for row, x in zip(rows.itertuples(), places, strict=True):
            share = abs(row.effect) / table["effect"].abs().max()
            _draw_node(ax, row, (x, level), feet[[*inter.members(row.state)]], roof, share)
    box = {"boxstyle": "round,pad=0.3", "fc": "#EEEEEE", "ec": "#888888"}
    long = max(map(len, labels)) * inter.n >= 90
    turned = {"ha": "right", "rotation": 30} if long else {"ha": "center"}
    turned |= {"va": "top", "rotation_mode": "anchor", "size": 10}
    for x, label in zip(feet, labels, strict=True):
        ax.text(x, 0, no_math(label), bbox=box, zorder=4, **turned)
    style = {"ha": "center", "va": "center", "size": 11, "weight": "bold"}
    ax.text(5.0, roof, no_math(target), bbox=box, zorder=4, **style)
    ax.set_yticks([*range(1, len(layers) + 1)], [f"order {m}" for m in layers])
    ax.set(xlim=(-0.2, 10.2), ylim=(-0.9, roof + 0.4), xticks=[])
    ax.grid(False)
    sns.despine(ax=ax, left=True, bottom=True)
    return ax, table


def _draw_node(
    ax: Axes, row: Any, place: tuple[float, float], feet: np.ndarray, roof: float, share: float
) -> None:
    """Draw an interaction of `plot_graph` between its variables and the output."""
    positive, thick = row.effect > 0, 0.6 + 4.4 * share
    style = {"color": COLOURS["positive" if positive else "negative"], "zorder": 1}
    style |= {"ls": "-" if positive else (0, (4, 2)), "solid_capstyle": "round"}
    x, y = place
    for foot in feet:
        ax.plot([foot, x], [0.12, y], lw=max(0.35 * thick, 0.8), alpha=0.55, **style)
    ax.plot([x, 5.0], [y, roof - 0.12], lw=thick, alpha=0.8, **style)
    ring = {"mfc": "white", "mec": COLOURS[row.type], "mew": 2.5, "zorder": 3}
    ax.plot(x, y, "o" if row.type == "and" else "h", ms=21, **ring)
    ax.text(x, y + 0.02, SIGNS[row.type].strip(), ha="center", va="center", size=10, zorder=4)
    plain = {"boxstyle": "square,pad=0.1", "fc": "white", "alpha": 0.9, "lw": 0}
    ax.text(x + 0.25, y + 0.13, f"{row.effect:+.2f}", size=8.5, zorder=3.5, bbox=plain)


def plot_mask_values(
    table: pd.DataFrame, neutral: float | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw what changes when masked patches are replaced by something else, sample by sample.

    Args:
        table: of `mask_value_table`.
        neutral: value of the first measure to mark.

    Returns:
        Figure, and a table: measure, mask value, mean, low95, high95, chance.
    """
    names, measures = (list(dict.fromkeys(table[k])) for k in ("mask value", "measure"))
    (figure, axes), rows = panels(1, len(measures), 3.4), []
    for ax, measure in zip(axes[0], measures, strict=True):
        of_it = table[table["measure"] == measure]
        wide = of_it.pivot(index="sample", columns="mask value", values="value")[names]
        ax.plot(range(len(names)), wide.T, "o-", color=COLOURS["all"], ms=5, lw=1)
        luck = of_it.groupby("mask value")["chance"].mean()[names].to_numpy()
        known, columns = ~np.isnan(luck), (torch.tensor(wide[name].to_numpy()) for name in names)
        # What has a chance level is a share; all but the first, an output, is at least 0.
        least = -math.inf if measure == measures[0] else 0
        values = np.array([cut(interval(x, share=bool(known.any())), least) for x in columns])
        place, (mean, low, high) = np.arange(len(names)), values.T
        diamonds = {"fmt": "D", "ms": 7, "color": COLOURS["network"], "capsize": 5, "lw": 1.5}
        ax.errorbar(place + 0.12, mean, [mean - low, high - mean], zorder=3, **diamonds)
        if known.any():
            dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance"}
            ax.hlines(luck[known], place[known] - 0.3, place[known] + 0.3, **dashes)
            ax.legend(loc="best", fontsize=9)
        if measure == measures[0] and neutral is not None:
            ax.axhline(neutral, color="black", lw=1, ls=":")
            ax.text(0.01, neutral, "knows nothing", va="top", transform=ax.get_yaxis_transform())
        ax.set_xticks(place, [no_math(name).replace(" ", "\n") for name in names])
        ax.set(xlim=(-0.5, len(names) - 0.5), title=no_math(measure))
        rows += [(measure, *row) for row in zip(names, *values.T, luck, strict=True)]
    columns = ["measure", "mask value", "mean", "low95", "high95", "chance"]
    return figure, pd.DataFrame(rows, columns=columns)


def plot_face(
    face: pd.DataFrame, tau: float, top: int = 16, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw how far effects can move while the model stays as sparse as any.

    Args:
        face: of `optimal_face`.
        tau: saliency threshold to mark.
        top: rows, those with the largest possible effects.

    Returns:
        Axes, and the rows drawn.
    """
    size = face[["low", "high"]].abs().max(axis=1)
    shown = face.loc[size.sort_values(ascending=False, kind="stable").index].head(top)
    ax = plt.subplots(figsize=(7.2, 1.1 + 0.3 * len(shown)))[1] if ax is None else ax
    place = np.arange(len(shown))
    ax.axvspan(-tau, tau, color=COLOURS["all"], alpha=0.3, lw=0, label="not salient")
    bars = {"colors": COLOURS["train"], "lw": 6, "label": "all sparsest models"}
    ax.hlines(place, shown["low"], shown["high"], **bars)
    ax.plot(shown["inner"], place, "o", ms=6, label="inner point", color=COLOURS["network"])
    cross = {"color": COLOURS["non-generalizable"], "mew": 2, "label": "a vertex"}
    ax.plot(shown["vertex"], place, "x", ms=8, **cross)
    ax.axvline(0, color="black", lw=0.8)
    ax.set_yticks(place, map(no_math, set_labels(shown)))
    ax.invert_yaxis()
    ax.set(xlabel="effect on the output (log odds)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=9, handlelength=1.5)
    return ax, shown.reset_index(drop=True)


def plot_price(points: pd.DataFrame, memory: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw time and memory of one sample against the number of variables.

    Args:
        points: columns n, tol, seconds (a sample), gap; points that missed the gap asked for are
            drawn open.
        memory: columns n, gib, of one sample.
    """
    figure, [axes] = panels(1, 2, 3.6)
    styles = (("o-", COLOURS["and"]), ("s--", COLOURS["or"]))
    for (tol, rows), (line, colour) in zip(points.groupby("tol"), styles, strict=False):
        axes[0].plot(rows["n"], rows["seconds"], line, ms=5, color=colour, label=f"gap {tol:g}")
        missed = rows[rows["gap"] > tol]
        axes[0].plot(missed["n"], missed["seconds"], line[0], ms=5, mfc="white", color=colour)
    axes[0].legend()
    axes[0].set(yscale="log", ylabel="seconds a sample")
    axes[1].plot(memory["n"], memory["gib"], "D:", ms=5, color=COLOURS["network"])
    axes[1].set(yscale="log", ylabel="memory of one sample (GiB)")
    for ax in axes:
        ticks = range(int(points["n"].min()), int(points["n"].max()) + 1)
        ax.set(xlabel="input variables n", xticks=ticks)
    return figure, points
