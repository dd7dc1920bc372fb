"""Figures of losses and outputs without the interactions that do not generalize (Section 3.2)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, axes_or_new
from symgen.literal import no_math
from symgen.method.statistics import interval

PARTS = {"small": "small interactions", "nothing shown": "nothing shown, v(∅)"}
GROUPS = {"training": "training loss", "test": "test loss", "gap": "gap"}
KINDS = {
    "nothing": (COLOURS["network"], "", "nothing removed"),
    "non-generalizable": (COLOURS["non-generalizable"], "///", "non-generalizable removed"),
    "random": (COLOURS["all"], "...", "as much at random removed (control)"),
    "permuted": (COLOURS["chance"], "xxx", "as many at random removed (control)"),
    "shrunk": (COLOURS["train"], "\\\\\\", "all outputs shrunk alike (control)"),
}


def plot_removal(
    table: pd.DataFrame, ax: Axes | None = None, ends: tuple[float, float] | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw training loss, test loss and their gap before and after removal (Fig. 4).

    Args:
        table: of `removal_table`.
        ends: of the axis, to compare figures.
    """
    ax = axes_or_new(ax)
    kinds = {k: look for k, look in KINDS.items() if k in set(table["removed"])}
    apart = 0.81 / len(kinds)
    for i, (name, (colour, hatch, label)) in enumerate(kinds.items()):
        rows = table[table["removed"] == name].set_index("group").loc[[*GROUPS]]
        place = np.arange(3) + apart * (i - (len(kinds) - 1) / 2)
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "width": 0.9 * apart}
        ax.bar(place, rows["loss"], label=label, **style)
        ax.errorbar(place, rows["loss"], _reach(rows, "loss"), **{**WHISKERS, "color": "#777777"})
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xticks(range(3), GROUPS.values())
    ax.set(ylabel="loss (nats)", ylim=ends)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return ax, table


def _reach(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Return how far the intervals of a column reach, down and up, shape (2, row)."""
    return rows[["low95", "high95"]].sub(rows[name], axis=0).abs().to_numpy().T


def plot_several_removals(
    tables: Mapping[str, pd.DataFrame], closed: pd.DataFrame
) -> tuple[Figure, pd.DataFrame]:
    """Draw the losses of several studies before and after removal, and the share of gap closed.

    Args:
        tables: label to a table of `removal_table`.
        closed: of `closed_table`, with the same labels.

    Returns:
        Figure, and all tables in one, with a column label.
    """
    shape = {"figsize": (9.6, 0.9 + 2.6 * len(tables)), "width_ratios": (3, 1.3)}
    figure, axes = plt.subplots(len(tables), 2, squeeze=False, **shape)
    for (label, table), (left, right) in zip(tables.items(), axes, strict=True):
        plot_removal(table, ax=left)
        left.get_legend().remove()
        left.set_title(no_math(label), size=11)
        _draw_closed(right, closed[closed["label"] == label].set_index("removed"))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    rows = [table.assign(label=label) for label, table in tables.items()]
    return figure, pd.concat(rows, ignore_index=True)


def _draw_closed(ax: Axes, closed: pd.DataFrame) -> None:
    words = {"non-generalizable": "non-\ngeneralizable"}
    for x, (name, marker) in enumerate(zip(closed.index, "so^v", strict=False)):
        row = closed.loc[[name]]
        style = {"color": KINDS[name][0], "marker": marker, "ms": 7, "capsize": 4}
        ax.errorbar([x], row["closed"], _reach(row, "closed"), **style)
    if closed["closed"].isna().all():
        middle = {"transform": ax.transAxes, "ha": "center", "va": "center"}
        ax.text(0.5, 0.75, "no clear gap\nto close", size=10, **middle)
    for level, line in ((0, "-"), (1, "--")):
        ax.axhline(level, color="black", lw=0.9, ls=line)
    names = [words.get(name, name) for name in closed.index]
    # Each ends at its tick, so that one of two lines stays clear of its neighbour.
    turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, size=10, **turned)
    ax.set(xlim=(-0.6, len(names) - 0.4), ylabel="share of gap closed")
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, -0.1), max(high, 1.1))


def plot_gap_parts(
    cases: Mapping[str, Mapping[str, Tensor]],
) -> tuple[Axes, pd.DataFrame]:
    """Draw what the gap between training and test outputs is made of (Eq. 11), group by group.

    Args:
        cases: label to `Trainings.gap_parts`: part to its values, each (training, order).

    Returns:
        Axes, and a table: label, part, value, low95, high95 (log odds).
    """
    rows = []
    for label, parts in cases.items():
        for name, values in parts.items():
            ordered = name in ("generalizable", "non-generalizable")
            groups = (
                {"orders 1, 2": values[:, 1:3], "above": values[:, 3:]} if ordered else {"": values}
            )
            for which, some in groups.items():
                part = f"{name}, {which}" if which else PARTS.get(name, name)
                rows.append((label, part, *interval(some.sum(-1))))
    table = pd.DataFrame(rows, columns=["label", "part", "value", "low95", "high95"])
    names = list(dict.fromkeys(table["part"]))
    _, ax = plt.subplots(figsize=(7.2, 0.55 * len(names) + 1.2))
    colours, thick = sns.color_palette("colorblind"), 0.8 / len(cases)
    for i, label in enumerate(cases):
        mine = table[table["label"] == label].set_index("part").loc[names]
        place = np.arange(len(names)) + thick * (i - (len(cases) - 1) / 2)
        ax.barh(place, mine["value"], 0.9 * thick, color=colours[i], label=no_math(label))
        ax.errorbar(mine["value"], place, xerr=_reach(mine, "value"), **WHISKERS)
    ax.axvline(0, color="black", lw=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("training less test (log odds)")
    ax.legend(loc="best")
    return ax, table


def plot_removed_outputs(
    outputs: Mapping[str, tuple[Tensor, Tensor]], classes: int
) -> tuple[Axes, pd.DataFrame]:
    """Draw the output of every sample before and after removal, with what it says of the class.

    Args:
        outputs: "training" and "test" to v and v_removed, each (sample,).
        classes: how many there are; above 0 the true class has won for sure, and below
            -log(classes - 1) it has lost.

    Returns:
        Axes, and a table: group, before, after (log odds).
    """
    _, ax = plt.subplots(figsize=(6.2, 4.9))
    rows, band = [], (-float(np.log(classes - 1)), 0)
    looks = zip(outputs.items(), ("train", "test"), "ox", strict=True)
    for (name, (before, after)), colour, marker in looks:
        shape = {"color": COLOURS[colour], "marker": marker, "ls": "none", "ms": 6, "mew": 1.8}
        ax.plot(before.cpu(), after.cpu(), label=f"{name} samples", **shape)
        rows.append(pd.DataFrame({"group": name, "before": before.cpu(), "after": after.cpu()}))
    ax.axline((0, 0), slope=1, color="black", lw=0.9, ls=":", label="unchanged")
    for span, line in ((ax.axhspan, ax.axhline), (ax.axvspan, ax.axvline)):
        span(*band, color=COLOURS["all"], alpha=0.35, lw=0)
        line(0, color="black", lw=0.8)
    ax.set(xlabel="output v (log odds of the true class)", ylabel="output after the removal")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, pd.concat(rows, ignore_index=True)
