"""The strength of interactions: by their number of variables (Eq. 6, 7), or sorted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures import style
from symgen.interactions import SALIENT_SHARE, Interactions

Spectrum = Float[Tensor, "*sample 2 orders"]


def plot_spectrum(
    total: Spectrum, generalizable: Spectrum | None = None, ax: Axes | None = None
) -> Axes:
    """Draw strength by order, positive up and negative down; the generalizable part is solid.

    Args:
        total: (..., 2, n + 1) of `order_spectrum`; averaged over samples.
        generalizable: the same, with the transfer.
        ax: where to draw.

    Example:
        >>> from symgen import order_spectrum
        >>> inter = Interactions.from_moebius(torch.randn(4, 8))
        >>> plot_spectrum(order_spectrum(inter)).get_ylabel()
        'strength (log odds)'
    """
    ax = style.axes_or_new(ax)
    label = "salient" if generalizable is None else "non-generalizable"
    _draw_bars(ax, total, label=label, color=style.COLORS["other"], hatch=style.HATCH)
    if generalizable is not None:
        color = style.COLORS["generalizable"]
        _draw_bars(ax, generalizable, label="generalizable", color=color)
    if not total.any():
        style.note(ax, "no salient interaction")
    orders = range(1, total.shape[-1])
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="order (number of variables)", ylabel="strength (log odds)", xticks=orders)
    ax.grid(visible=False, axis="x")
    ax.legend()
    return ax


def _draw_bars(ax: Axes, spectrum: Spectrum, label: str, **look: Any) -> None:
    positive, negative = spectrum.reshape(-1, *spectrum.shape[-2:]).mean(0).tolist()
    orders = range(1, len(positive))
    ax.bar(orders, positive[1:], label=label, edgecolor="white", **look)
    ax.bar(orders, negative[1:], edgecolor="white", **look)


def plot_spectra(
    spectra: Mapping[str, tuple[Spectrum, Spectrum | None]], columns: int = 2
) -> Figure:
    """Draw several spectra, one panel each, on the same scale.

    Args:
        spectra: title to total and generalizable strength; see `plot_spectrum`.
        columns: panels per row.
    """
    figure, axes = style.panels(spectra, columns, sharey=True)
    for i, (ax, parts) in enumerate(zip(axes, spectra.values(), strict=True)):
        plot_spectrum(*parts, ax)
        ax.legend().remove()
        if i % columns:
            ax.set_ylabel("")
        if i + columns < len(axes):
            ax.set_xlabel("")
    style.legend_below(figure)
    return figure


def plot_sorted(models: Mapping[str, Interactions], ax: Axes | None = None) -> Axes:
    """Draw the strengths of interactions, largest first, as shares of the largest.

    Args:
        models: label to the interactions of one or several samples. Lines are medians over the
            samples; bands hold the middle 80 %.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax)
    for i, (label, inter) in enumerate(models.items()):
        size = inter.effects.abs().flatten(-2).sort(-1, descending=True).values
        # A sample without interactions stays at 0.
        share = torch.nan_to_num(size / size[..., :1]).reshape(-1, size.shape[-1]).cpu()
        low, middle, high = np.percentile(share, [10, 50, 90], axis=0)
        rank = range(1, len(middle) + 1)
        color = style.color_of(label, i)
        line = style.LINES[i % 4]
        words = style.no_math(label)
        ax.plot(rank, middle, line, color=color, label=words, lw=2)
        ax.fill_between(rank, low, high, color=color, alpha=0.18, lw=0)
    ax.axhline(
        SALIENT_SHARE,
        label="saliency threshold",
        color=style.COLORS["chance"],
        lw=1,
        ls=(0, (1, 2)),
    )
    ax.set(xlabel="rank of the interaction", ylabel="strength / largest", ylim=(0, 1))
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.legend()
    return ax
