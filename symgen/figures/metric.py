"""Figures of transfer by degrees (App. M)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, legend_below, panel_grid, panels
from symgen.figures.transfer import plot_sensitivity, plot_spectrum
from symgen.interactions import SALIENT_SHARE, Interactions
from symgen.literal import no_math
from symgen.method.transfer import transfer

# Marks of a panel from which on they are a picture.
MANY = 300
# From green, since yellow is hardly seen on white.
SIMILAR = ListedColormap(colormaps["viridis_r"](np.linspace(0.25, 1, 192)), "similar")


def plot_similarity(
    pairs: Mapping[str, tuple[Interactions, Interactions]],
    tau: float = SALIENT_SHARE,
    relative_to: str = "max",
    lines: Sequence[float] = (0.5, 0.25),
) -> tuple[Figure, pd.DataFrame]:
    """Draw effects in a network and in its baseline with lines of equal similarity (Eq. 19, 20).

    Args:
        pairs: title of a panel to the interactions of target and baseline on several samples.
        tau, relative_to: saliency; see `Interactions.salient`.
        lines: similarities to draw lines for, besides 1.

    Returns:
        Figure, and a table: panel, sample, type, order, target and baseline (effects over the
        mean total effect of each network), similarity, transfers (the binary metric).
    """
    figure, axes = panel_grid(pairs, 4.3)
    rows, edge, drawn = [], 0.02, None
    for title, (target, baseline) in pairs.items():
        ax = axes[title]
        level = {"tau": tau, "relative_to": relative_to}
        salient = torch.stack(target.salient(**level), -2)
        alike = torch.stack(transfer(target, baseline, metric="similarity"), -2)[salient]
        binary = torch.stack(transfer(target, baseline, **level), -2)[salient] > 0
        sample, kind, index = salient.nonzero(as_tuple=True)
        x, y = (i.effects[salient] / i.total_effect.mean() for i in (target, baseline))
        table = pd.DataFrame(
            {
                "panel": title,
                "sample": sample,
                "type": np.array(["and", "or"])[kind.numpy()],
                "order": target.order[index],
                "target": x,
                "baseline": y,
                "similarity": alike,
                "transfers": binary,
            }
        )
        for ok, marker, size, width in ((False, "x", 22, 1.2), (True, "o", 36, 0.8)):
            some = table[table["transfers"] == ok]
            label = "transfers (binary)" if ok else "does not transfer"
            style = {"cmap": SIMILAR, "vmin": 0, "vmax": 1, "s": size, "lw": width}
            style |= {"edgecolors": "black", "zorder": 3} if ok else {"alpha": 0.8}
            # Each mark of a drawing takes some 200 bytes of the page; a picture of them does not.
            style |= {"rasterized": len(some) > MANY}
            place = some["target"], some["baseline"]
            drawn = ax.scatter(*place, c=some["similarity"], marker=marker, label=label, **style)
        # First the least: without any salient interaction the others are NaN.
        top = 1.3 * float(max(0.1, table["target"].abs().max(), table["baseline"].abs().max()))
        ray = np.concatenate([[0], np.geomspace(edge / 20, 10 * top, 200)])
        for s, look in zip((1, *lines), ("-", "--", ":", "-."), strict=False):
            for sign in (-1, 1):
                for a, b in ((ray, s * ray), (s * ray, ray)):
                    ax.plot(sign * a, sign * b, look, color="black", lw=0.9, zorder=0)
            ax.plot([], [], look, color="black", lw=0.9, label=f"similarity {s:g}")
        ticks = [t for t in (-1, -0.1, 0, 0.1, 1) if abs(t) <= top]
        for axis in ("x", "y"):
            getattr(ax, f"set_{axis}scale")("symlog", linthresh=edge, linscale=0.6)
            getattr(ax, f"set_{axis}ticks")(ticks, [f"{t:g}" for t in ticks])
            getattr(ax, f"set_{axis}lim")(-top, top)
        ax.minorticks_off()
        ax.set_xlabel("effect in the target / mean total effect")
        ax.set_ylabel("effect in the baseline / mean total effect")
        rows.append(table)
    figure.colorbar(drawn, ax=list(axes.values()), label="similarity", shrink=0.7)
    legend_below(figure, [ax], 3)
    return figure, pd.concat(rows, ignore_index=True)


def plot_metric_spectra(
    totals: Mapping[str, Tensor], kept: Mapping[str, Mapping[str, Tensor]]
) -> tuple[Figure, pd.DataFrame]:
    """Draw order spectra side by side, generalizable by one metric and by others (Fig. 10).

    Args:
        totals: title to the spectrum of all salient interactions, of `order_spectrum`.
        kept: the same titles to label of a metric to the generalizable spectrum.

    Returns:
        Figure, and a table: panel, metric, and the columns of `plot_spectrum`.
    """
    metrics = list(next(iter(kept.values())))
    figure, axes = panels(len(totals), len(metrics), 3.2)
    tables = []
    for line, (title, total) in zip(axes, totals.items(), strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            _, table = plot_spectrum(total, kept[title][metric], ax)
            ax.set_title(no_math(f"{title}: {metric}"), size=11)
            ax.get_legend().remove()
            tables.append(table.assign(panel=title, metric=metric))
        bounds = np.array([ax.get_ylim() for ax in line])
        for ax in line:
            ax.set_ylim(bounds[:, 0].min(), bounds[:, 1].max())
    legend_below(figure, axes[:1, 0])
    return figure, pd.concat(tables, ignore_index=True)


def plot_shapes(
    spectra: Mapping[str, Mapping[str, Tensor]], draws: int = 500
) -> tuple[Figure, pd.DataFrame]:
    """Draw how strength is shared out over orders, positive up and negative down, each adding to 1.

    Args:
        spectra: title of a panel to label to a spectrum (sample, 2, n + 1) of `order_spectrum`.
        draws: resamples of the samples for the 95 % bands.

    Returns:
        Figure, and a table: panel, label, sign, order, share, low95, high95.
    """
    figure, axes = panel_grid(spectra, 3.5)
    looks = (("generalizable", "-", "o"), ("and", "--", "s"), ("non-generalizable", ":", "X"))
    rows = []
    for title, lines in spectra.items():
        ax = axes[title]
        for (label, part), (colour, style, marker) in zip(lines.items(), looks, strict=True):
            part = part.abs().cpu().double()
            generator = torch.Generator().manual_seed(0)
            index = torch.randint(len(part), (draws, len(part)), generator=generator)
            sums = torch.cat([part.sum(0, keepdim=True), part[index].sum(1)])
            shares = sums / sums.sum((-2, -1), keepdim=True)
            spread = torch.tensor([0.025, 0.975], dtype=part.dtype)
            low, high = shares[1:].nanquantile(spread, 0)
            order = np.arange(1, part.shape[-1])
            for k, sign in enumerate((1, -1)):
                look = {"color": COLOURS[colour], "marker": marker, "ms": 4}
                look["label"] = label if sign == 1 else None
                ax.plot(order, sign * shares[0, k, 1:], style, **look)
                bounds = sign * low[k, 1:], sign * high[k, 1:]
                ax.fill_between(order, *bounds, color=COLOURS[colour], alpha=0.15, lw=0)
                columns = {"share": shares[0, k, 1:], "low95": low[k, 1:], "high95": high[k, 1:]}
                about = {"panel": title, "label": label, "sign": ("positive", "negative")[k]}
                rows.append(pd.DataFrame({**about, "order": order, **columns}))
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="order (number of variables)", xticks=order, ylabel="share of its strength")
    legend_below(figure, [ax])
    return figure, pd.concat(rows, ignore_index=True)


def plot_metric_power(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H of groups of orders by several metrics, each with its interval and chance level.

    Args:
        table: columns panel, orders, metric, power, low95, high95, chance.
    """
    metrics = list(dict.fromkeys(table["metric"]))
    figure, axes = panel_grid(table["panel"].unique(), 3.5)
    looks = (("generalizable", ""), ("and", "///"), ("or", "..."))
    width = 0.8 / len(metrics)
    for title, ax in axes.items():
        for k, metric in enumerate(metrics):
            rows = table[(table["panel"] == title) & (table["metric"] == metric)]
            place = np.arange(len(rows)) + width * (k - (len(metrics) - 1) / 2)
            style = {"color": COLOURS[looks[k][0]], "hatch": looks[k][1], "edgecolor": "white"}
            ax.bar(place, rows["power"], width=0.95 * width, label=metric, **style)
            errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["power"].to_numpy())
            ax.errorbar(place, rows["power"], errors, **WHISKERS)
            dashes = {"colors": "black", "ls": (0, (2, 1)), "lw": 2}
            label = "chance level" if k == len(metrics) - 1 else None
            ends = place - 0.46 * width, place + 0.46 * width
            ax.hlines(rows["chance"], *ends, label=label, **dashes)
            if k == 0:
                for x in np.flatnonzero(rows["power"].isna()):
                    ax.text(x, 0.02, "none", ha="center", size=9)
        ax.set_xticks(range(len(rows)), rows["orders"], fontsize=9)
        ax.set(ylabel="generalization power H", ylim=(0, 1), xlabel="orders")
        ax.set_xlim(-0.6, len(rows) - 0.4)
    legend_below(figure, [ax])
    return figure, table


def plot_similarity_cuts(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H against the smallest similarity that counts, one panel a study.

    Args:
        table: column panel, and those of `plot_sensitivity`.
    """
    figure, axes = panel_grid(table["panel"].unique(), 3.5)
    for title, ax in axes.items():
        xlabel = "smallest similarity s that counts"
        plot_sensitivity(table[table["panel"] == title], xlabel, ax=ax)
        ax.get_legend().remove()
    legend_below(figure, [ax], 2)
    return figure, table
