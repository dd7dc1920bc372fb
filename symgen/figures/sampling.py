"""Figures of models that were found from sampled masked states."""

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new, line_look
from symgen.literal import no_math
from symgen.method.statistics import interval


def plot_sampled(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw how near models of sampled states come to the exact split, by the number of states.

    Exact splits made otherwise, which are not sampled, are lines across.

    Args:
        table: of `sampling.against_exact`.

    Returns:
        Figure, and a table: model, states, what ("unexplained" or "shared"), value, low95, high95.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.6))
    labels = {
        "unexplained": "share of variance unexplained",
        "shared": "share of the ten strongest found",
    }
    rows = [
        (name, states, what, *interval(torch.tensor(some[what].to_numpy())))
        for what in labels
        for (name, states), some in table.groupby(["model", "states"], sort=False)
    ]
    drawn = pd.DataFrame(rows, columns=["model", "states", "what", "value", "low95", "high95"])
    for ax, (what, label) in zip(axes, labels.items(), strict=True):
        part = drawn[drawn["what"] == what]
        sampled = part[part["model"] == "sampled"].sort_values("states")
        x, value = sampled["states"], sampled["value"]
        ax.plot(x, value, color=COLOURS["network"], marker="o", label="sampled states")
        # Shares are in 0..1, and the logarithm of zero has no place.
        low = sampled["low95"].clip(lower=value / 10 if what == "unexplained" else 0)
        error = np.nan_to_num([value - low, sampled["high95"].clip(upper=1) - value]).clip(min=0)
        ax.errorbar(x, value, yerr=error, **WHISKERS)
        for i, other in enumerate(part[part["model"] != "sampled"].itertuples()):
            look = {**line_look(i + 1), "marker": ""}
            ax.axhline(other.value, label=no_math(other.model), **look)
        ax.set_xscale("log", base=2)
        ax.set_xlim(x.min() / 1.3, x.max() * 1.3)
        # Outputs that never change leave nothing to draw.
        if what == "unexplained" and (part["value"] > 0).all():
            ax.set_yscale("log")
        ax.set_xticks(x, [f"{count:,}" for count in x])
        ax.set(xlabel="masked states", ylabel=label)
    axes[1].set_ylim(0, 1.05)
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure, drawn


def plot_peers(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw what models of sampled states leave unexplained: a dot a sample, a bar for their mean.

    Args:
        table: of `sampling.against_peers`.
        ax: where to draw.

    Returns:
        Axes, and a table: model, unexplained (the mean).
    """
    ax = axes_or_new(ax)
    drawn = table.groupby("model", sort=False)["unexplained"].mean().reset_index()
    own = drawn["model"] == "AND-OR"
    place = np.arange(len(drawn))
    colours = np.where(own, COLOURS["and"], COLOURS["all"])
    ax.barh(place, drawn["unexplained"], color=colours, hatch=["///" if x else "" for x in own],
            edgecolor="white")  # fmt: skip
    for at, model in zip(place, drawn["model"], strict=True):
        values = table.loc[table["model"] == model, "unexplained"]
        ax.plot(values, np.full(len(values), at), "o", color=COLOURS["network"], ms=4)
    ax.set_yticks(place, map(no_math, drawn["model"]))
    ax.invert_yaxis()
    ax.set(xlabel="share of variance unexplained, on states held out", ylabel="")
    return ax, drawn
