"""Figures of other explanations of the same output: their values, and what they leave out."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new, line_look, panel_grid
from symgen.interactions import Interactions
from symgen.literal import no_math
from symgen.method.statistics import interval
from symgen.method.surrogates import share_explained


def plot_attributions(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw the values of the variables of one sample by several methods, a mark a method.

    Args:
        table: of `attribution_table`.
        ax: where to draw.
    """
    ax, methods = axes_or_new(ax), table["method"].unique()
    for i, method in enumerate(methods):
        values = table.loc[table["method"] == method, "value"].to_numpy()
        shift = 0.6 * ((i + 0.5) / len(methods) - 0.5)
        look = {**line_look(i), "ls": "none", "ms": 5}
        ax.plot(np.arange(len(values)) + shift, values, label=no_math(method), **look)
    names = table["variable"].unique()
    ax.set_xticks(np.arange(len(names)), map(no_math, names))
    for edge in np.arange(len(names) - 1) + 0.5:
        ax.axvline(edge, color=COLOURS["all"], lw=0.5)
    ax.axhline(0, color="black", lw=0.8)
    ax.grid(False, axis="x")
    ax.set(xlabel="variable", ylabel="value (log odds)")
    ax.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return ax, table


def plot_surrogates(v: Tensor, models: Mapping[str, Interactions]) -> tuple[Figure, pd.DataFrame]:
    """Draw what the models that explanations amount to give, against the network, state by state.

    Args:
        v: (2**n,) outputs of one sample on all masked states.
        models: name to model, of the same sample; a panel each.

    Returns:
        Figure, and a table: model, state, v, d.
    """
    figure, axes = panel_grid(models, 2.8)
    parts = []
    for (name, model), ax in zip(models.items(), axes.values(), strict=True):
        part = pd.DataFrame({"state": range(len(v)), "v": v.cpu(), "d": model.predict().cpu()})
        ends = [part["v"].min(), part["v"].max()]
        ax.plot(ends, ends, color=COLOURS["network"], lw=1)
        ax.plot(part["v"], part["d"], ".", ms=3, color=COLOURS["or"], alpha=0.5)
        share = float(share_explained(v, model))
        told = "the output never changes" if math.isnan(share) else f"{share:.0%} explained"
        ax.text(0.03, 0.95, told, transform=ax.transAxes, va="top")
        ax.set(xlabel="network (log odds)", ylabel="model (log odds)")
        parts.append(part.assign(model=name))
    return figure, pd.concat(parts, ignore_index=True)


def plot_explained(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw which share of the output's variance models explain, with 95 % intervals.

    Args:
        table: of `surrogates.surrogate_table`.
        ax: where to draw.

    Returns:
        Axes, and a table: model, numbers, explained, low95, high95.
    """
    ax, rows = axes_or_new(ax), []
    for model, part in table.groupby("model", sort=False):
        found = interval(torch.tensor(part["explained"].to_numpy()))
        rows.append((model, part["numbers"].iloc[0], *found))
    drawn = pd.DataFrame(rows, columns=["model", "numbers", "explained", "low95", "high95"])
    place, value = np.arange(len(drawn)), drawn["explained"].to_numpy()
    own = drawn["model"].str.startswith("AND-OR")
    colours = np.where(own, COLOURS["and"], COLOURS["all"])
    ax.barh(place, value, color=colours, hatch=["///" if x else "" for x in own], edgecolor="white")
    error = [value - drawn["low95"], drawn["high95"] - value]
    ax.errorbar(value, place, xerr=np.nan_to_num(error).clip(min=0), **WHISKERS)
    labels = [f"{no_math(r.model)} ({r.numbers})" for r in drawn.itertuples()]
    ax.set_yticks(place, labels)
    ax.invert_yaxis()
    ax.set(xlabel="share of the variance explained", ylabel="")
    return ax, drawn
