"""Figures of extractors: what they find, and what they make up."""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from symgen.figures.style import legend_below, line_look, panel_rows
from symgen.literal import no_math
from symgen.method.statistics import interval

MEASURES = {
    "found": "planted ones found",
    "invented": "strength invented",
    "count": "N",
    "mean_order": "mean order",
}


def plot_planted(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw what extractors find of planted interactions, and invent, against the noise.

    Args:
        table: of `planted_table`.

    Returns:
        Figure, and a table: extractor, scale, noise, measure, value, low95, high95 (over samples).
    """
    scales = table["scale"].unique()
    figure, axes = panel_rows(len(scales), len(MEASURES), width=10.5, height=2.4, sharex=True)
    names, rows = [*table["extractor"].unique()], []
    groups = table.groupby(["scale", "extractor"], sort=False)
    for (scale, name), part in groups:
        look, levels = line_look(names.index(name)), part.groupby("noise")
        for ax, measure in zip(axes[[*scales].index(scale)], MEASURES, strict=True):
            share = measure in ("found", "invented")
            values = [interval(torch.tensor(x.to_numpy()), share) for _, x in levels[measure]]
            mean, low, high = np.array(values).T
            x = np.arange(len(mean))
            ax.plot(x, mean, label=no_math(name), ms=4, **look)
            ax.fill_between(x, low, high, color=look["color"], alpha=0.18, lw=0)
            ax.set_xticks(x, [f"{level:g}" for level in levels.groups])
            columns = {"extractor": name, "scale": scale, "noise": [*levels.groups]}
            columns |= {"measure": measure, "value": mean, "low95": low, "high95": high}
            rows.append(pd.DataFrame(columns))
    for i, scale in enumerate(scales):
        for ax, (measure, title) in zip(axes[i], MEASURES.items(), strict=True):
            ax.set_title(title if i == 0 else "", size=11)
            ax.set_ylim(0, 1.05 if measure in ("found", "invented") else None)
        axes[i, 0].set_ylabel(f"outputs times {scale:g}")
    for ax in axes[-1]:
        ax.set_xlabel("noise / range of v")
    legend_below(figure, [axes[0, 0]], columns=min(3, len(names)))
    return figure, pd.concat(rows, ignore_index=True)
