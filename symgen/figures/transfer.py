"""Figures of what transfers: order spectra, generalization power, its settings."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new
from symgen.fingerprints import refusal
from symgen.interactions import SALIENT_SHARE, Interactions
from symgen.literal import no_math
from symgen.method.statistics import interval
from symgen.method.transfer import transfer


@refusal
def _refuse_no_spectrum(*given: Any) -> None:
    if any(hasattr(one, "effects") for one in given):
        raise ValueError(
            "the spectrum is Interactions; expected strength by order: order_spectrum(inter) and, "
            "of what generalizes, order_spectrum(inter, transfer(inter, baselines))"
        )


def plot_spectrum(
    total: Tensor,
    generalizable: Tensor | None = None,
    ax: Axes | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw salient strength by order, positive up and negative down, the generalizable part solid.

    Args:
        total: (..., 2, n + 1) of `order_spectrum`; averaged over samples.
        generalizable: the same with the transfer; nothing is shaded without.
        limits: of the vertical axis, to compare figures.

    Returns:
        Axes, and a table: order, sign, total with its 95 % interval low95 to high95 (drawn as
        whiskers), generalizable (log odds, mean over samples).
    """
    _refuse_no_spectrum(total, generalizable)
    ax = axes_or_new(ax)
    mean = total.reshape(-1, *total.shape[-2:]).mean(0).cpu().numpy()
    kept = np.zeros_like(mean)
    if generalizable is not None:
        kept = generalizable.reshape(-1, *total.shape[-2:]).mean(0).cpu().numpy()
    orders = np.arange(1, mean.shape[1])
    rest = {"color": COLOURS["all"], "hatch": "///", "edgecolor": "white", "width": 0.8}
    for sign in (0, 1):
        only = "non-generalizable" if generalizable is not None else "salient"
        label = only if sign == 0 else None
        ax.bar(orders, mean[sign, 1:], label=label, **rest)
        if generalizable is not None:
            label = "generalizable" if sign == 0 else None
            colour = COLOURS["generalizable"]
            ax.bar(orders, kept[sign, 1:], color=colour, width=0.8, label=label)
    samples = total.reshape(-1, 2, total.shape[-1])[..., 1:].cpu()
    bounds = np.array([[interval(samples[:, s, m]) for m in range(len(orders))] for s in (0, 1)])
    if len(samples) > 1:
        for sign in (0, 1):
            some = bounds[sign, :, 0] != 0
            errors = np.abs(bounds[sign, :, 1:].T - bounds[sign, :, 0])[:, some]
            ax.errorbar(orders[some], bounds[sign, some, 0], errors, **WHISKERS)
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="order (number of variables)", ylabel="strength (log odds)", xticks=orders)
    if limits is not None:
        ax.set_ylim(limits)
    ax.legend(loc="best")
    table = pd.DataFrame(
        {
            "order": np.tile(orders, 2),
            "sign": np.repeat(["positive", "negative"], len(orders)),
            "total": mean[:, 1:].ravel(),
            "low95": bounds[..., 1].ravel(),
            "high95": bounds[..., 2].ravel(),
            "generalizable": kept[:, 1:].ravel(),
        }
    )
    return ax, table


def plot_power(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw averages of H with 95 % intervals, each beside its chance level.

    Args:
        table: of `power_table`; one bar a row, named by its orders where there is one setting,
            and by its setting where there are several.

    Returns:
        Axes, and the table.
    """
    ax = axes_or_new(ax)
    names = table["orders" if table["setting"].nunique() == 1 else "setting"]
    place = np.arange(len(table))
    ax.bar(place, table["power"], color=COLOURS["generalizable"], width=0.55, label="H")
    errors = np.abs(table[["low95", "high95"]].to_numpy().T - table["power"].to_numpy())
    ax.errorbar(place, table["power"], errors, **WHISKERS)
    dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance level"}
    ax.hlines(table["chance"], place - 0.38, place + 0.38, **dashes)
    for x, row in zip(place, table.itertuples(), strict=True):
        if np.isnan(row.power):
            ax.text(x, 0.02, "no such\ninteractions", ha="center", size=9)
    words = [no_math(name).replace(" (", "\n(").replace(", ", ",\n") for name in names]
    ax.set_xticks(place, words)
    ax.set(ylabel="generalization power H", ylim=(0, 1))
    ax.legend()
    return ax, table


def plot_transfer(
    target: Interactions, baseline: Interactions, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw each salient interaction of a network against the same one in its baseline (Eq. 5).

    Args:
        target: interactions of several samples.
        baseline: those of the baseline network.

    Returns:
        Axes, and a table: sample, type, order, target and baseline (effects, each divided by
        the network's strongest on that sample), transfers.
    """
    ax = plt.subplots(figsize=(5.6, 5.2))[1] if ax is None else ax
    share = torch.stack(transfer(target, baseline), -2)
    salient = torch.stack(target.salient(), -2)
    sample, kind, index = salient.nonzero(as_tuple=True)
    scaled = [i.effects / i.effects.abs().amax((-2, -1), keepdim=True) for i in (target, baseline)]
    table = pd.DataFrame(
        {
            "sample": sample,
            "type": np.array(["and", "or"])[kind.numpy()],
            "order": target.order[index],
            "target": scaled[0][salient],
            "baseline": scaled[1][salient],
            "transfers": share[salient] > 0,
        }
    )
    ax.axhspan(-SALIENT_SHARE, SALIENT_SHARE, color=COLOURS["all"], alpha=0.3, lw=0)
    for ok, marker in ((True, "o"), (False, "x")):
        rows, name = table[table["transfers"] == ok], "transfers" if ok else "does not transfer"
        colour = COLOURS["generalizable" if ok else "non-generalizable"]
        style = {"ls": "none", "ms": 4, "alpha": 0.6, "color": colour}
        ax.plot(rows["target"], rows["baseline"], marker, label=f"{name} ({len(rows)})", **style)
    ticks = [-1, -0.3, -0.1, 0, 0.1, 0.3, 1]
    for axis in ("x", "y"):
        getattr(ax, f"set_{axis}scale")("symlog", linthresh=SALIENT_SHARE)
        getattr(ax, f"set_{axis}ticks")(ticks, [f"{t:g}" for t in ticks])
        getattr(ax, f"set_{axis}lim")(-1.3, 1.3)
    ax.minorticks_off()
    ax.set(xlabel="effect in the target / strongest", ylabel="effect in the baseline / strongest")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, markerscale=1.5)
    return ax, table


def plot_sensitivity(
    table: pd.DataFrame, xlabel: str, default: float | None = None, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw averages of H, and chance levels, against a setting of the method.

    Args:
        table: of `power_table`, its settings numbers >= 0. A setting of 0 has no place on the
            logarithmic axis; it stands left of the others.
        xlabel: what the setting is.
        default: its usual value, marked.
    """
    ax = axes_or_new(ax)
    settings = np.sort(table["setting"].unique())
    left = settings[settings > 0].min(initial=1.0) / 2
    for i, (label, rows) in enumerate(table.groupby("orders", sort=False)):
        colour, marker = sns.color_palette("colorblind")[i], "os^D"[i % 4]
        x = rows["setting"].where(rows["setting"] > 0, left)
        style = {"color": colour, "marker": marker}
        ax.plot(x, rows["power"], ms=5, label=no_math(label), **style)
        ax.fill_between(x, rows["low95"], rows["high95"], color=colour, alpha=0.15, lw=0)
        ax.plot(x, rows["chance"], ":", ms=3, label=no_math(f"chance, {label}"), **style)
    if default is not None:
        ax.axvline(default or left, color="black", lw=1, ls=(0, (4, 2)))
    ax.set(xscale="log", xlabel=xlabel, ylabel="generalization power H", ylim=(0, 1))
    ax.set_xticks(np.where(settings > 0, settings, left), [f"{x:g}" for x in settings])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, table


def plot_low_high(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H of groups of orders for several studies, each with its chance level (Fig. 2).

    Args:
        table: of `power_table`.

    Returns:
        Figure, and the table.
    """
    groups, settings = (list(dict.fromkeys(table[k])) for k in ("orders", "setting"))
    height = 1.4 + 0.3 * len(groups) * len(settings)
    figure, ax = plt.subplots(figsize=(8.2, height))
    palette = sns.color_palette("colorblind")
    colours = {group: palette[i] for i, group in enumerate(groups)}
    step = 0.8 / len(groups)
    for y, setting in enumerate(settings):
        for i, group in enumerate(groups):
            row = table[(table["setting"] == setting) & (table["orders"] == group)].iloc[0]
            at = y - 0.4 + step * (i + 0.5)
            count = f"{row['samples']:.0f} of {row['of']:.0f}"
            ax.text(1.02, at, count, size=8.5, va="center", transform=ax.get_yaxis_transform())
            if np.isnan(row["power"]):
                ax.text(0.01, at, "no such interactions", size=8.5, va="center")
                continue
            errors = np.abs([[row["low95"] - row["power"]], [row["high95"] - row["power"]]])
            style = {"color": colours[group], "marker": "os^D"[i % 4], "ms": 7, "capsize": 3}
            ax.errorbar(row["power"], at, xerr=errors, lw=1.5, **style)
            mark = {"color": COLOURS["chance"], "marker": "|", "ms": 13, "mew": 2.5}
            ax.plot(row["chance"], at, ls="none", zorder=1, **mark)
    for i, group in enumerate(groups):
        ax.plot([], [], "os^D"[i % 4], color=colours[group], ms=7, label=group)
    ax.plot([], [], "|", color=COLOURS["chance"], ms=11, mew=2.5, label="chance level")
    for y in range(1, len(settings)):
        ax.axhline(y - 0.5, color=COLOURS["all"], lw=0.8)
    ax.set_yticks(range(len(settings)), [no_math(s).replace(" on ", "\non ") for s in settings])
    ax.set(xlabel="generalization power H", xlim=(-0.02, 1.02), ylim=(len(settings) - 0.5, -0.5))
    ax.grid(False, axis="y")
    ax.text(1.02, 1.01, "samples", size=8.5, transform=ax.transAxes)
    figure.legend(loc="outside lower center", ncols=len(groups) + 1)
    return figure, table
