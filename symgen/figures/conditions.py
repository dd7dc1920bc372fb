"""Figures of the conditions for sparse interactions (App. B)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, panels
from symgen.literal import no_math
from symgen.method.statistics import interval


def plot_order_tail(
    tails: Mapping[str, Mapping[str, Tensor]], limit: float = 0.01
) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of strength at orders above M, for every M (App. B, Condition 1).

    Args:
        tails: title of a panel to label to per-sample shares of `conditions.strength_above`.
        limit: a share to mark.

    Returns:
        Figure, and a table: panel, label, above, share, low95, high95 (means over samples).
    """
    figure, axes = panels(-(-len(tails) // 2), min(2, len(tails)), 3.5)
    known = {"AND": ("and", "-", "o"), "OR": ("or", "-", "s"), "no split": ("network", "--", "^")}
    floor, rows = 1e-4, []
    for ax, (title, lines) in zip(axes.flat, tails.items(), strict=False):
        for label, share in lines.items():
            colour, style, marker = known.get(label, ("chance", ":", "D"))
            found = np.array([interval(share[:, m], share=True) for m in range(share.shape[1])])
            above = np.arange(len(found))
            look = {"color": COLOURS[colour], "marker": marker, "ms": 4, "label": label}
            ax.plot(above, np.maximum(found[:, 0], floor / 9), style, **look)
            low, high = np.maximum(found[:, 1:].T, floor / 9)
            ax.fill_between(above, low, high, color=COLOURS[colour], alpha=0.2, lw=0)
            columns = {"share": found[:, 0], "low95": found[:, 1], "high95": found[:, 2]}
            rows.append(pd.DataFrame({"panel": title, "label": label, "above": above, **columns}))
        ax.axhline(limit, color="black", lw=1, ls=(0, (4, 2)))
        ax.annotate(f"{limit:.0%}", (0, limit), xytext=(-2, 3), textcoords="offset points", size=9)
        ax.set(title=no_math(title), yscale="log", ylim=(floor, 1.5), xticks=above)
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
        u = u.cpu().double()
        m = np.arange(u.shape[1])
        scaled = u / u.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        rising = (u.diff(dim=-1) >= 0).all(-1)
        kinds = ((rising, "generalizable", "-", "never falls"),
                 (~rising, "non-generalizable", "--", "falls somewhere"))  # fmt: skip
        for kind, colour, line, label in kinds:
            look = {"color": COLOURS[colour], "lw": 1, "alpha": 0.75}
            for i, curve in enumerate(scaled[kind]):
                name = f"{label} ({int(kind.sum())})" if i == 0 else None
                left.plot(m, curve, line, label=name, **look)
        low, high = torch.quantile(scaled, torch.tensor([0.1, 0.9], dtype=u.dtype), dim=0)
        left.fill_between(m, low, high, color=COLOURS["all"], alpha=0.35, lw=0, zorder=0)
        left.axhline(0, color="black", lw=0.8)
        left.set(xlabel="m, variables present", ylabel="u(m) / largest |u|", xticks=m[::2])
        left.set(title=no_math(title), ylim=(-1.08, 1.08))
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
        left.legend(fontsize=9, columnspacing=1, **below)
        falls = u.diff(dim=-1) < 0
        found = np.array([interval(falls[:, k]) for k in m[:-1]])
        luck = (reference[title].diff(dim=-1) < 0).double().mean(0).numpy()
        style = {"color": COLOURS["non-generalizable"], "hatch": "///", "edgecolor": "white"}
        right.bar(m[:-1] + 0.5, found[:, 0], width=0.8, label="share that falls", **style)
        errors = np.abs(found[:, 1:].T - found[:, 0])
        right.errorbar(m[:-1] + 0.5, found[:, 0], errors, **WHISKERS)
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2}
        right.hlines(luck, m[:-1] + 0.1, m[:-1] + 0.9, label="outputs shuffled", **dashes)
        right.set(
            xlabel="step from m to m + 1", ylabel="samples", ylim=(0, 1), title=no_math(title)
        )
        right.set_xticks(m[:-1] + 0.5, m[:-1])
        right.legend(loc="upper right", fontsize=9)
        columns = {"falls": found[:, 0], "low95": found[:, 1], "high95": found[:, 2]}
        rows.append(pd.DataFrame({"panel": title, "m": m[:-1], **columns, "chance": luck}))
    return figure, pd.concat(rows, ignore_index=True)


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
        n, m = u.shape[1] - 1, np.arange(1, u.shape[1])
        up = u[:, -1] > 0
        for curve in (u[up] / u[up, -1:])[:, 1:].numpy():
            look = {"color": COLOURS["network"], "lw": 0.9, "alpha": 0.5}
            left.plot(m / n, np.where(curve > 0, curve, np.nan), **look)
        bounds = [(m / n) ** e for e in expected]
        left.fill_between(m / n, *bounds, color=COLOURS["and"], alpha=0.45, lw=0, zorder=3)
        left.set(xscale="log", yscale="log", ylim=(0.02, 3), title=no_math(title))
        left.set_xticks(m / n, [f"{k}/{n}" if k in (1, 2, 3, 5, n) else "" for k in m])
        left.minorticks_off()
        left.set(xlabel="m / n", ylabel="u(m) / u(n)")
        right.axhspan(*expected, color=COLOURS["and"], alpha=0.45, lw=0, label="paper's range")
        has = p > 0
        groups = ((0, up & has, "o", "generalizable"), (1, ~up & has, "s", "all"))
        for x, group, marker, colour in groups:
            place = x + np.linspace(-0.25, 0.25, max(int(group.sum()), 2))[: int(group.sum())]
            look = {"color": COLOURS[colour], "mec": "black", "mew": 0.5, "ms": 6, "ls": "none"}
            right.plot(place, p[group].sort().values, marker, **look)
        labels = []
        for name, side in (("output rises", up), ("output falls", ~up)):
            none, any_ = int((side & p.isnan()).sum()), int((side & (p == 0)).sum())
            labels.append(f"{name} ({int(side.sum())})\nno p: {none}\nany small p: {any_}")
        right.set_xticks([0, 1], labels)
        right.set(xlim=(-0.5, 1.5), ylim=(0, top), ylabel="smallest p", title=no_math(title))
        right.legend(loc="upper right", fontsize=9)
        frame = {"panel": title, "sample": range(len(p)), "p": p.numpy(), "rises": up.numpy()}
        rows.append(pd.DataFrame(frame))
    return figure, pd.concat(rows, ignore_index=True)


def plot_one_average(v: Tensor, title: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draw what u(m) of one sample is a mean of, and its steepest rise in logarithmic scales.

    Args:
        v: (2**n,) outputs on all masked states.
        title: of the figure.

    Returns:
        Figure, and a table: m, u, lowest, highest (of v[S] - v[0] over the states of that size).
    """
    figure, ((left, right),) = panels(1, 2, 3.3)
    v = v.cpu().double()
    n = (len(v) - 1).bit_length()
    size = np.array([s.bit_count() for s in range(len(v))])
    gain = (v - v[0]).numpy()
    by_size = [gain[size == m] for m in range(n + 1)]
    u, m = np.array([g.mean() for g in by_size]), np.arange(n + 1)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(v))
    dots = {"color": COLOURS["all"], "ms": 2, "rasterized": True}
    left.plot(size + jitter, gain, ".", **dots)
    left.plot(m, u, "-o", color=COLOURS["network"], ms=4, label="u(m), their mean")
    down = np.diff(u) < 0
    for k in np.flatnonzero(down):
        label = "falls" if k == np.flatnonzero(down)[0] else None
        look = {"color": COLOURS["non-generalizable"], "lw": 3, "ls": (0, (2, 1))}
        left.plot(m[k : k + 2], u[k : k + 2], label=label, **look)
    left.axhline(0, color="black", lw=0.8)
    left.set(xlabel="m, variables present", ylabel="v[S] - v[0] (log odds)", xticks=m)
    left.legend(loc="best", fontsize=9)
    above = u[1:] > 0
    if u[-1] > 0:
        right.set(xscale="log", yscale="log", xlim=(0.9 / n, 1.1), ylim=(0.02, 2))
        right.set_xticks(m[1:] / n, [f"{k}/{n}" if k in (1, 2, 3, 5, n) else "" for k in m[1:]])
        ticks = [0.03, 0.1, 0.3, 1]
        right.set_yticks(ticks, [f"{t:g}" for t in ticks])
        right.minorticks_off()
        right.set(xlabel="m / n", ylabel="u(m) / u(n)")
        share = np.where(above, u[1:] / u[-1], np.nan)
        right.plot(m[1:] / n, share, "-o", ms=4, color=COLOURS["network"])
        if above.all() and n > 1:
            slope = np.diff(np.log(share)) / np.diff(np.log(m[1:]))
            k = int(slope.argmax())
            look = {"color": COLOURS["and"], "lw": 4, "alpha": 0.6}
            label = f"steepest: p = {max(slope[k], 0):.2f}"
            right.plot(m[1 + k : 3 + k] / n, share[k : k + 2], label=label, **look)
            right.legend(loc="lower right", fontsize=9)
        elif n > 1:
            text = "u(m) is not positive for every m:\nno p"
            right.text(0.03, 0.95, text, transform=right.transAxes, va="top", size=10)
    else:
        text = "u(n) is not positive:\nnothing to bound from below"
        right.text(0.5, 0.5, text, transform=right.transAxes, ha="center", va="center", size=10)
        right.set_axis_off()
    figure.suptitle(no_math(title), fontsize=12, weight="bold")
    lowest, highest = [g.min() for g in by_size], [g.max() for g in by_size]
    return figure, pd.DataFrame({"m": m, "u": u, "lowest": lowest, "highest": highest})


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
        colour = sns.color_palette("colorblind")[i]
        x = rows["n"] * (1 + 0.006 * i)
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["count"].to_numpy())
        look = {"color": colour, "marker": "os^D"[i % 4], "ls": ["-", "--", "-.", ":"][i % 4]}
        ax.errorbar(x, rows["count"], errors, label=no_math(label), ms=6, capsize=3, lw=1.5, **look)
    ax.plot(sizes, 2.0 ** (sizes + 1), ":", marker="x", color=COLOURS["chance"], label="$2^{n+1}$")
    ax.set(xscale="log", yscale="log", xlabel="n, number of variables", ylabel="interactions")
    ax.set_xticks(sizes, [str(k) for k in sizes])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return figure, table


def plot_conditions(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw measures of the three conditions along the training (App. B).

    Args:
        table: columns setting, checkpoint, measure, value, low95, high95.

    Returns:
        Figure, and the table.
    """
    measures = list(dict.fromkeys(table["measure"]))
    figure, axes = plt.subplots(1, len(measures), figsize=(3.4 * len(measures), 3.4))
    for ax, measure in zip(axes, measures, strict=True):
        part = table[table["measure"] == measure]
        for i, (label, rows) in enumerate(part.groupby("setting", sort=False)):
            x = np.arange(len(rows)) + 0.06 * i
            errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["value"].to_numpy())
            look = {"marker": "os^D"[i % 4], "ls": ["-", "--", "-.", ":"][i % 4], "ms": 6}
            look |= {"color": sns.color_palette("colorblind")[i], "capsize": 3, "lw": 1.5}
            ax.errorbar(x, rows["value"], errors, label=no_math(label), **look)
        ax.set_xticks(range(len(rows)), rows["checkpoint"])
        ax.set(title=measure, ylim=(0, None), xlim=(-0.3, len(rows) - 0.6))
        ax.title.set_fontsize(10)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure, table
