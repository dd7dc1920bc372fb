"""Order spectra: the strength of interactions by their number of variables (Eq. 6, 7)."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures import style

Spectrum = Float[Tensor, "*sample 2 orders"]


def plot_spectrum(
    total: Spectrum, generalizable: Spectrum | None = None, ax: Axes | None = None
) -> Axes:
    """Draw strength by order, positive up and negative down; the generalizable part is solid.

    Args:
        total: (..., 2, n + 1) of `order_spectrum`; averaged over samples.
        generalizable: the same, with the transfer.
        ax: where to draw.
    """
    ax = style.axes_or_new(ax)
    orders = np.arange(1, total.shape[-1])
    kind = "salient" if generalizable is None else "non-generalizable"
    looks = {
        kind: {"color": style.COLORS["other"], "hatch": style.HATCHES["non-generalizable"]},
        "generalizable": {"color": style.COLORS["generalizable"]},
    }
    for (label, look), values in zip(looks.items(), (total, generalizable), strict=True):
        if values is None:
            continue
        mean = values.reshape(-1, *values.shape[-2:]).mean(0).cpu().numpy()
        for sign in (0, 1):
            name = label if sign == 0 else None
            ax.bar(orders, mean[sign, 1:], width=0.8, label=name, edgecolor="white", **look)
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="order (number of variables)", ylabel="strength (log odds)", xticks=orders)
    ax.grid(visible=False, axis="x")
    ax.legend()
    return ax


def plot_spectra(
    spectra: Mapping[str, tuple[Spectrum, Spectrum | None]], columns: int = 2
) -> Figure:
    """Draw several spectra, one panel each, on the same scale.

    Args:
        spectra: title to total and generalizable strength; see `plot_spectrum`.
        columns: panels per row.
    """
    figure, axes = style.panels(spectra, columns, sharey=True)
    for i, (ax, (total, generalizable)) in enumerate(zip(axes, spectra.values(), strict=True)):
        plot_spectrum(total, generalizable, ax)
        ax.get_legend().remove()
        ax.set_ylabel("" if i % columns else "strength (log odds)")
        ax.set_xlabel("order" if i + columns >= len(axes) else "")
    style.legend_below(figure)
    return figure
