"""Figures of the conditions for sparse interactions (App. B)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, panels
from symgen.literal import no_math
from symgen.method.conditions import never_falls
from symgen.method.statistics import interval

# Shares below this lie under the frame of `plot_order_tail`.
FLOOR = 1e-4


def plot_order_tail(
    tails: Mapping[str, Mapping[str, Tensor]], limit: float = 0.01
) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of strength at orders above M, for every M < n (App. B, Condition 1).

    Args:
        tails: title of a panel to label ("AND", "OR", "no split" or another) to per-sample shares
            of `conditions.strength_above`.
        limit: a share to mark.

    Returns:
        Figure, and a table: panel, label, above, share, low95, high95 (means over samples).
    """
    figure, axes = panels(-(-len(tails) // 2), min(2, len(tails)), 3.5)
    known = {"AND": ("and", "-", "o"), "OR": ("or", "-", "s"), "no split": ("network", "--", "^")}
    rows = []
    for ax, (title, lines) in zip(axes.flat, tails.items(), strict=False):
        for label, share in lines.items():
            colour, style, marker = known.get(label, ("chance", ":", "D"))
            above = np.arange(share.shape[1] - 1)  # Above order n there is nothing.
            found = np.array([interval(share[:, m], share=True) for m in above])
            seen = np.maximum(found, FLOOR / 9)
            look = {"color": COLOURS[colour], "marker": marker, "ms": 4, "label": no_math(label)}
            ax.plot(above, seen[:, 0], style, **look)
            ax.fill_between(above, *seen[:, 1:].T, color=COLOURS[colour], alpha=0.2, lw=0)
            columns = dict(zip(("share", "low95", "high95"), found.T, strict=True))
            rows.append(pd.DataFrame({"panel": title, "label": label, "above": above, **columns}))
        ax.axhline(limit, color="black", lw=1, ls=(0, (4, 2)))
        ax.annotate(f"{limit:.0%}", (0, limit), xytext=(-2, 3), textcoords="offset points", size=9)
        ax.set(title=no_math(title), yscale="log", ylim=(FLOOR, 1.5), xticks=above)
        ax.set(xlabel="M", ylabel="share above order M")
    for ax in axes.flat[len(tails) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(handles[0]))
    return figure, pd.concat(rows, ignore_index=True)


def plot_average_output(
    averages: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> tuple[Figure, pd.DataFrame]:
    """Draw u(m) of every sample, and how many samples fall at each step (App. B, Condition 2).

    Args:
        averages: title to u of several samples, of `conditions.average_output`.
        reference: the same titles to u of the outputs in random order.

    Returns:
        Figure, and a table: panel, m (the step from m to m + 1), falls with low95 and high95 (the
        share of samples), chance (that of the reference).
    """
    figure, axes = panels(len(averages), 2, 3.3)
    rows = []
    for (left, right), (title, u) in zip(axes, averages.items(), strict=True):
        _draw_averages(left, u.cpu().double())
        table = _draw_falls(right, u.cpu(), reference[title].cpu())
        for ax in (left, right):
            ax.set_title(no_math(title))
        rows.append(table.assign(panel=title)[["panel", *table]])
    return figure, pd.concat(rows, ignore_index=True)


def _draw_averages(ax: Axes, u: Tensor) -> None:
    m = np.arange(u.shape[1])
    scaled = u / u.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    kinds = ((1, "positive", "-", "never falls"), (0, "negative", "--", "falls somewhere"))
    for kind, colour, line, label in kinds:
        some = scaled[never_falls(u) == kind]
        for i, curve in enumerate(some):
            name = f"{label} ({len(some)})" if i == 0 else None
            ax.plot(m, curve, line, color=COLOURS[colour], lw=1, alpha=0.75, label=name)
    middle = torch.quantile(scaled, torch.tensor([0.1, 0.9], dtype=u.dtype), dim=0)
    ax.fill_between(m, *middle, color=COLOURS["all"], alpha=0.35, lw=0, zorder=0)
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="m, variables present", ylabel="u(m) / largest |u|", xticks=m[::2])
    ax.set_ylim(-1.08, 1.08)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
    ax.legend(fontsize=9, columnspacing=1, **place)


def _draw_falls(ax: Axes, u: Tensor, reference: Tensor) -> pd.DataFrame:
    falls, luck = (x.diff(dim=-1) < 0 for x in (u, reference))
    m, luck = np.arange(falls.shape[1]), luck.double().mean(0).numpy()
    found = np.array([interval(falls[:, k]) for k in m])
    style = {"color": COLOURS["negative"], "hatch": "///", "edgecolor": "white", "width": 0.8}
    ax.bar(m + 0.5, found[:, 0], label="share that falls", **style)
    ax.errorbar(m + 0.5, found[:, 0], np.abs(found[:, 1:].T - found[:, 0]), **WHISKERS)
    dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2}
    ax.hlines(luck, m + 0.1, m + 0.9, label="outputs shuffled", **dashes)
    ax.set(xlabel="step from m to m + 1", ylabel="samples", ylim=(0, 1))
    ax.set_xticks(m + 0.5, m)
    ax.legend(loc="upper right", fontsize=9)
    columns = dict(zip(("falls", "low95", "high95"), found.T, strict=True))
    return pd.DataFrame({"m": m, **columns, "chance": luck})


def plot_exponents(
    averages: Mapping[str, Tensor],
    exponents: Mapping[str, Tensor],
    expected: tuple[float, float] = (0.9, 1.2),
) -> tuple[Figure, pd.DataFrame]:
    """Draw u(m) in logarithmic scales, and the smallest p of each sample (App. B, Condition 3).

    Args:
        averages: title to u of several samples, of `conditions.average_output`.
        exponents: the same titles to p, of `conditions.smallest_exponent`.
        expected: range of p to mark.

    Returns:
        Figure, and a table: panel, sample, p (missing where there is none), rises (whether
        u(n) > 0).
    """
    figure, axes = panels(len(averages), 2, 3.3)
    rows = []
    top = 1.15 * max([2.0, *(float(p.nan_to_num(0).max()) for p in exponents.values())])
    for (left, right), (title, u) in zip(axes, averages.items(), strict=True):
        u, p = u.cpu().double(), exponents[title].cpu().double()
        up = u[:, -1] > 0
        x = _logarithmic(left, u.shape[1] - 1)
        for curve in (u[up] / u[up, -1:])[:, 1:].numpy():
            look = {"color": COLOURS["network"], "lw": 0.9, "alpha": 0.5}
            left.plot(x, np.where(curve > 0, curve, np.nan), **look)
        grey = {"color": COLOURS["all"], "alpha": 0.6, "lw": 0}
        left.fill_between(x, *(x**e for e in expected), zorder=3, **grey)
        left.set_ylim(0.02, 3)
        right.axhspan(*expected, label="paper's range", **grey)
        _draw_exponents(right, p, up)
        right.set_ylim(0, top)
        for ax in (left, right):
            ax.set_title(no_math(title))
        frame = {"panel": title, "sample": range(len(p)), "p": p.numpy(), "rises": up.numpy()}
        rows.append(pd.DataFrame(frame))
    return figure, pd.concat(rows, ignore_index=True)


def _logarithmic(ax: Axes, n: int) -> np.ndarray:
    """Prepare axes for u(m) / u(n), and return m / n for m = 1..n."""
    m = np.arange(1, n + 1)
    ax.set(xscale="log", yscale="log", xlabel="m / n", ylabel="u(m) / u(n)")
    ax.set_xticks(m / n, [f"{k}/{n}" if k in (1, 2, 3, 5, n) else "" for k in m])
    ax.minorticks_off()
    return m / n


def _draw_exponents(ax: Axes, p: Tensor, up: Tensor) -> None:
    labels = []
    looks = (("output rises", up, "o", "positive"), ("output falls", ~up, "s", "negative"))
    for x, (name, side, marker, colour) in enumerate(looks):
        some = p[side & (p > 0)].sort().values
        place = x + np.linspace(-0.25, 0.25, max(len(some), 2))[: len(some)]
        look = {"color": COLOURS[colour], "mec": "black", "mew": 0.5, "ms": 6, "ls": "none"}
        ax.plot(place, some, marker, **look)
        none, any_ = int((side & p.isnan()).sum()), int((side & (p == 0)).sum())
        labels.append(f"{name} ({int(side.sum())})\nno p: {none}\nany small p: {any_}")
    ax.set_xticks([0, 1], labels)
    ax.set(xlim=(-0.5, 1.5), ylabel="smallest p")
    ax.legend(loc="upper right", fontsize=9)


def plot_one_average(v: Tensor, title: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draw what u(m) of one sample is a mean of, and its steepest rise in logarithmic scales.

    Args:
        v: (2**n,) outputs on all masked states.
        title: of the figure.

    Returns:
        Figure, and a table: m, u, lowest, highest (of v[S] - v[0] over the states of that size).
    """
    figure, ((left, right),) = panels(1, 2, 3.3)
    gain = (v - v[0]).cpu().double().numpy()
    size = np.array([s.bit_count() for s in range(len(gain))])
    by_size = [gain[size == m] for m in range(size.max() + 1)]
    u, m = np.array([g.mean() for g in by_size]), np.arange(len(by_size))
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(gain))
    left.plot(size + jitter, gain, ".", color=COLOURS["all"], ms=2, rasterized=True)
    left.plot(m, u, "-o", color=COLOURS["network"], ms=4, label="u(m), their mean")
    for i, k in enumerate(np.flatnonzero(np.diff(u) < 0)):
        look = {"color": COLOURS["negative"], "lw": 3, "ls": (0, (2, 1))}
        left.plot(m[k : k + 2], u[k : k + 2], label=None if i else "falls", **look)
    left.axhline(0, color="black", lw=0.8)
    left.set(xlabel="m, variables present", ylabel="v[S] - v[0] (log odds)", xticks=m)
    left.legend(loc="best", fontsize=9)
    if u[-1] > 0:
        _draw_steepest(right, u)
    else:
        text = "u(n) is not positive:\nnothing to bound from below"
        right.text(0.5, 0.5, text, transform=right.transAxes, ha="center", va="center", size=10)
        right.set_axis_off()
    figure.suptitle(no_math(title), fontsize=12, weight="bold")
    lowest, highest = [g.min() for g in by_size], [g.max() for g in by_size]
    return figure, pd.DataFrame({"m": m, "u": u, "lowest": lowest, "highest": highest})


def _draw_steepest(ax: Axes, u: np.ndarray) -> None:
    x = _logarithmic(ax, len(u) - 1)
    ticks = [0.03, 0.1, 0.3, 1]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set(xlim=(0.9 * x[0], 1.1), ylim=(0.02, 2))
    share = np.where(u[1:] > 0, u[1:] / u[-1], np.nan)
    ax.plot(x, share, "-o", ms=4, color=COLOURS["network"])
    if len(x) == 1:
        return
    if np.isnan(share).any():
        text = "u(m) is not positive for every m:\nno p"
        ax.text(0.03, 0.95, text, transform=ax.transAxes, va="top", size=10)
        return
    slope = np.diff(np.log(share)) / np.diff(np.log(x))
    k = int(slope.argmax())
    look = {"color": COLOURS["positive"], "lw": 4, "alpha": 0.6}
    label = f"steepest: p = {max(slope[k], 0):.2f}"
    ax.plot(x[k : k + 2], share[k : k + 2], label=label, **look)
    ax.legend(loc="lower right", fontsize=9)


def plot_growth(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw how many interactions are salient against the number of variables (Section 2.1).

    Args:
        table: columns setting, n, count, low95, high95.

    Returns:
        Figure, and the table.
    """
    figure, ax = plt.subplots()
    sizes = np.array(sorted(table["n"].unique()))
    for i, (label, rows) in enumerate(table.groupby("setting", sort=False)):
        _draw_setting(ax, i, label, rows["n"].to_numpy() * (1 + 0.006 * i), rows, "count")
    ax.plot(sizes, 2.0 ** (sizes + 1), ":", marker="x", color=COLOURS["chance"], label="$2^{n+1}$")
    ax.set(xscale="log", yscale="log", xlabel="n, number of variables", ylabel="interactions")
    ax.set_xticks(sizes, [str(k) for k in sizes])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return figure, table


def plot_conditions(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw measures of the three conditions along the training (App. B).

    Args:
        table: of `condition_table`.

    Returns:
        Figure, and the table.
    """
    measures = list(dict.fromkeys(table["measure"]))
    figure, axes = panels(-(-len(measures) // 2), 2, 3.1)
    for ax, measure in zip(axes.flat, measures, strict=False):
        part = table[table["measure"] == measure]
        for i, (label, rows) in enumerate(part.groupby("setting", sort=False)):
            _draw_setting(ax, i, label, np.arange(len(rows)) + 0.06 * i, rows, "value")
        ax.set_xticks(range(len(rows)), rows["checkpoint"])
        ax.set(title=no_math(measure), ylim=(0, None), xlim=(-0.3, len(rows) - 0.6))
    for ax in axes.flat[len(measures) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure, table


def _draw_setting(
    ax: Axes, i: int, label: str, x: np.ndarray, rows: pd.DataFrame, name: str
) -> None:
    """Draw a column with its 95 % intervals as the line of setting i."""
    errors = rows[["low95", "high95"]].sub(rows[name], axis=0).abs().to_numpy().T
    look = {"color": sns.color_palette("colorblind")[i % 10], "marker": "os^D"[i % 4], "ms": 6}
    look |= {"ls": ["-", "--", "-.", ":"][i % 4], "capsize": 3, "lw": 1.5}
    ax.errorbar(x, rows[name], errors, label=no_math(label), **look)
