"""Figures of one network on some samples: outputs, variables, interactions, splits."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from symgen.figures.style import COLOURS, axes_or_new, spread_apart
from symgen.interactions import Interactions
from symgen.literal import no_math
from symgen.method.statistics import interval


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
    ax.plot(table["d"], ".", ms=4, color=COLOURS["or"], label="d, logical model")
    ax.plot(table["v"], color=COLOURS["network"], lw=1.5, label="v, network")
    ax.set(xlabel="masked states, sorted by v", ylabel="output (log odds)")
    ax.legend()
    return ax, table


def plot_sparsity(
    inters: Mapping[str, Interactions], ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strength of interactions, largest first, averaged over samples.

    Args:
        inters: label to the interactions of several samples (or one). Each sample's strengths
            are divided by its largest; the band is the middle 80 % of samples.

    Returns:
        Axes, and a table: label, rank, strength, low, high.
    """
    ax = axes_or_new(ax)
    styles, rows = ["-", "--", ":", "-."], []
    for i, (label, inter) in enumerate(inters.items()):
        size = inter.effects.abs().flatten(-2).reshape(-1, 2 * 2**inter.n)
        # Of a sample without interactions the curve is 0 throughout.
        size = (
            (size / size.amax(-1, keepdim=True).clamp(min=1e-300))
            .sort(-1, descending=True)
            .values.cpu()
        )
        low, middle, high = torch.quantile(
            size, torch.tensor([0.1, 0.5, 0.9], dtype=size.dtype), dim=0
        )
        rank = np.arange(1, size.shape[1] + 1)
        colour = sns.color_palette("colorblind")[i]
        ax.plot(rank, middle, styles[i % 4], color=colour, label=no_math(label))
        ax.fill_between(rank, low, high, color=colour, alpha=0.2, lw=0)
        rows.append(
            pd.DataFrame(
                {"label": label, "rank": rank, "strength": middle, "low": low, "high": high}
            )
        )
    ax.axhline(0.05, color=COLOURS["chance"], lw=1, ls=(0, (1, 2)))
    ax.annotate("saliency threshold", (1, 0.05), xytext=(2, 3), textcoords="offset points", size=9)
    ax.set(xscale="log", xlabel="rank of the interaction", ylabel="strength / largest", ylim=(0, 1))
    ax.legend()
    return ax, pd.concat(rows, ignore_index=True)


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
        size = (right - left, bottom - top)
        style = {"fill": False, "lw": 2.5}
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, ec="white", **style))
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, ec="black", ls=":", **style))
        place = (left + size[0] / 2 - 0.5, top + size[1] / 2 - 0.5)
        if members is not None and i not in members:
            ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, fc="black", alpha=0.7, lw=0))
            continue
        tag = {"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.85, "lw": 0}
        ax.text(*place, str(i), ha="center", va="center", size=10, weight="bold", bbox=tag)
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
    table = inter.to_frame(names).head(top)
    ax = plt.subplots(figsize=(7.2, 0.6 + 0.3 * max(len(table), 4)))[1] if ax is None else ax
    place = np.arange(len(table))
    for kind, hatch in (("and", ""), ("or", "///")):
        rows = (table["type"] == kind).to_numpy()
        ax.barh(
            place[rows],
            table["effect"][rows],
            color=COLOURS[kind],
            hatch=hatch,
            edgecolor="white",
            label=kind.upper(),
        )
    signs = table["type"].map({"and": " ∧ ", "or": " ∨ "})
    labels = [m.replace(", ", s) for m, s in zip(table["members"], signs, strict=True)]
    ax.set_yticks(place, [f"{{{no_math(label)}}}" for label in labels])
    ax.invert_yaxis()
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="effect on the output (log odds)", ylabel="")
    ax.legend()
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
        ax: where to draw.

    Returns:
        Axes, and the drawn rows of `Interactions.to_frame`.
    """
    labels = [str(i) for i in range(inter.n)] if names is None else list(names)
    table = inter.to_frame(labels).head(top).rename(columns={"index": "state"})
    layers = sorted(table["order"].unique())
    if ax is None:
        ax = plt.subplots(figsize=(9, 2.4 + 0.85 * max(1, len(layers))))[1]
    width, size = 10.0, table["effect"].abs().max() or 1.0
    bottom = {i: (width * (i + 0.5) / inter.n, 0.0) for i in range(inter.n)}
    roof = (width / 2, len(layers) + 1.0)
    for level, order in enumerate(layers, 1):
        rows = table[table["order"] == order]
        # Above the middle of its variables, as far as the neighbours leave room; layers are set
        # off, so that nodes of several layers do not stand in one line.
        middle = [np.mean([bottom[i][0] for i in inter.members(t)]) for t in rows["state"]]
        places = spread_apart(np.array(middle) + 0.3 * (-1) ** level, 0.4, width - 0.4, 1.1)
        for row, x in zip(rows.itertuples(), places, strict=True):
            positive = row.effect > 0
            style = {"color": COLOURS["positive" if positive else "negative"], "zorder": 1}
            style |= {"ls": "-" if positive else (0, (4, 2)), "solid_capstyle": "round"}
            thick = 0.6 + 4.4 * abs(row.effect) / size
            for i in inter.members(row.state):
                ax.plot([bottom[i][0], x], [0.12, level], lw=0.35 * thick, alpha=0.55, **style)
            ax.plot([x, roof[0]], [level, roof[1] - 0.12], lw=thick, alpha=0.8, **style)
            marker, sign = ("o", "∧") if row.type == "and" else ("h", "∨")
            face = COLOURS[row.type]
            ax.plot(x, level, marker, ms=21, mfc="white", mec=face, mew=2.5, zorder=3)
            ax.text(x, level + 0.02, sign, ha="center", va="center", size=10, zorder=4)
            plain = {"boxstyle": "square,pad=0.1", "fc": "white", "alpha": 0.75, "lw": 0}
            number = f"{row.effect:+.2f}"
            ax.text(x + 0.025 * width, level + 0.13, number, size=8.5, zorder=3.5, bbox=plain)
    box = {"boxstyle": "round,pad=0.3", "fc": "#EEEEEE", "ec": "#888888"}
    for i, label in enumerate(labels):
        turned = 0 if max(map(len, labels)) * inter.n < 90 else 30
        place = {"ha": "center" if not turned else "right", "va": "top", "rotation": turned}
        place |= {"rotation_mode": "anchor", "bbox": box}
        ax.text(*bottom[i], no_math(label), size=10, zorder=4, **place)
    style = {"ha": "center", "va": "center", "size": 11, "weight": "bold", "bbox": box}
    ax.text(*roof, no_math(target), zorder=4, **style)
    ax.set_yticks([*range(1, len(layers) + 1)], [f"order {m}" for m in layers])
    ax.set(xlim=(-0.2, width + 0.2), ylim=(-0.9, roof[1] + 0.4), xticks=[])
    ax.grid(False)
    sns.despine(ax=ax, left=True, bottom=True)
    return ax, table


def plot_baseline_values(
    table: pd.DataFrame, neutral: float | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw what changes when masked patches are replaced by something else, sample by sample.

    Args:
        table: columns baseline, sample, measure, value, chance (missing where there is none).
        neutral: value of the first measure to mark.

    Returns:
        Figure, and a table: measure, baseline, mean, low95, high95, chance.
    """
    names, measures = (list(dict.fromkeys(table[k])) for k in ("baseline", "measure"))
    figure, axes = plt.subplots(1, len(measures), figsize=(3.1 * len(measures), 3.2))
    rows = []
    for ax, measure in zip(axes, measures, strict=True):
        wide = table[table["measure"] == measure].pivot(
            index="sample", columns="baseline", values="value"
        )[names]
        look = {"color": COLOURS["all"], "marker": "o", "ms": 5, "lw": 1}
        for values in wide.to_numpy():
            ax.plot(range(len(names)), values, **look)
        luck = table[table["measure"] == measure].groupby("baseline")["chance"].mean()[names]
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2}
        for x, name in enumerate(names):
            mean, low, high = interval(torch.tensor(wide[name].to_numpy()))
            errors = [[mean - low], [high - mean]]
            style = {"marker": "D", "ms": 7, "color": COLOURS["network"], "capsize": 5, "lw": 1.5}
            ax.errorbar([x + 0.12], [mean], errors, zorder=3, **style)
            if not np.isnan(luck[name]):
                label = "chance" if x == 1 else None
                ax.hlines(luck[name], x - 0.3, x + 0.3, label=label, **dashes)
            rows.append((measure, name, mean, low, high, luck[name]))
        if measure == measures[0] and neutral is not None:
            ax.axhline(neutral, color="black", lw=1, ls=":")
            note = {"xytext": (3, -2), "textcoords": "offset points", "va": "top", "size": 8.5}
            ax.annotate("undecided", (0, neutral), xycoords=ax.get_yaxis_transform(), **note)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(loc="best", fontsize=9)
        ax.set_xticks(range(len(names)), [no_math(name).replace(" ", "\n") for name in names])
        ax.set(xlim=(-0.5, len(names) - 0.5))
        ax.set_title(no_math(measure), size=11)
    return figure, pd.DataFrame(
        rows, columns=["measure", "baseline", "mean", "low95", "high95", "chance"]
    )


def plot_face(
    table: pd.DataFrame, tau: float, top: int = 16, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw how far effects can move while the model stays as sparse as any.

    Args:
        table: columns label, low, high, centre, vertex (log odds).
        tau: saliency threshold to mark.
        top: rows, those with the largest possible effects.

    Returns:
        Axes, and the rows drawn.
    """
    size = table[["low", "high"]].abs().max(axis=1)
    shown = table.loc[size.sort_values(ascending=False, kind="stable").index].head(top)
    ax = plt.subplots(figsize=(7.2, 1.1 + 0.3 * len(shown)))[1] if ax is None else ax
    place = np.arange(len(shown))
    ax.axvspan(-tau, tau, color=COLOURS["all"], alpha=0.3, lw=0, label="not salient")
    look = {"colors": COLOURS["train"], "lw": 6, "label": "all sparsest models"}
    ax.hlines(place, shown["low"], shown["high"], **look)
    dots = {"ls": "none", "color": COLOURS["network"]}
    ax.plot(shown["centre"], place, "o", ms=6, label="centre, as sparsify", **dots)
    cross = {"ls": "none", "color": COLOURS["non-generalizable"], "mew": 2}
    ax.plot(shown["vertex"], place, "x", ms=8, label="a vertex", **cross)
    ax.axvline(0, color="black", lw=0.8)
    ax.set_yticks(place, map(no_math, shown["label"]))
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
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    styles = (("o-", "#0072B2"), ("s--", "#E69F00"))
    for (tol, rows), (line, colour) in zip(points.groupby("tol"), styles, strict=False):
        axes[0].plot(rows["n"], rows["seconds"], line, ms=5, color=colour, label=f"gap {tol:g}")
        missed = rows[rows["gap"] > tol]
        axes[0].plot(missed["n"], missed["seconds"], line[0], ms=5, mfc="white", color=colour)
    axes[0].legend()
    axes[0].set(yscale="log", ylabel="seconds a sample")
    axes[1].plot(memory["n"], memory["gib"], "D:", ms=5, color="#222222")
    axes[1].set(yscale="log", ylabel="memory of one sample (GiB)")
    for ax in axes:
        ax.set_xlabel("input variables n")
        ax.set_xticks(range(int(points["n"].min()), int(points["n"].max()) + 1))
    return figure, points
