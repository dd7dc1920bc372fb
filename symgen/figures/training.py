"""Figures of a network in training: dynamics, phases, losses."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures.style import COLOURS, legend_below, mark_phases, panel_rows
from symgen.literal import no_math
from symgen.method.phases import Phases

QUANTITIES = {
    "power": "Generalization power H (thin: chance level)",
    "count": "Number of interactions N",
    "gap": "Gap, test loss minus training loss (nats)",
    "mean_order": "Mean order of interactions",
}


def plot_dynamics(table: pd.DataFrame, phases: Phases) -> tuple[Figure, pd.DataFrame]:
    """Draw H, N and the losses over training, with the phase boundaries that exist.

    Args:
        table: of `Dynamics.summary`.
        phases: of `Dynamics.phases`.
    """
    figure, axes = plt.subplots(3, 1, figsize=(7.2, 7.5), sharex=True)
    lines = (
        (0, "power", "H", "-", "o", "generalizable"),
        (0, "chance", "chance level", "--", "o", "chance"),
        (1, "count", "N", "-", "o", "network"),
        (2, "train_loss", "training loss", "-", "o", "train"),
        (2, "test_loss", "test loss", "--", "s", "test"),
        (2, "gap", "gap", ":", "^", "non-generalizable"),
    )
    for panel, name, label, line, marker, colour in lines:
        look = {"ls": line, "marker": marker, "color": COLOURS[colour], "ms": 4}
        _band(axes[panel], np.arange(len(table)), table, name, label=label, **look)
    axes[0].set(ylabel="H", ylim=(0, None), title="Generalization power")
    axes[1].set(ylabel="N", ylim=(0, None), title="Number of interactions")
    axes[2].set(ylabel="loss (nats)", title="Losses")
    for ax in axes:
        mark_phases(ax, phases, table["step"].tolist())
        ax.legend(loc="best")
    _name_steps(axes[2], table["step"])
    return figure, table


def plot_gains(table: pd.DataFrame, phases: Phases) -> tuple[Axes, pd.DataFrame]:
    """Draw the strength gained since the checkpoint before, generalizable and not (App. I).

    Args:
        table: of `Dynamics.summary`.
        phases: of `Dynamics.phases`.

    Returns:
        Axes, and a table: step, generalizable, non_generalizable (log odds gained).
    """
    _, ax = plt.subplots(figsize=(7.2, 3.4))
    names = ["generalizable", "non_generalizable"]
    gains = table[names].diff().assign(step=table["step"])[1:]
    for name, shift, hatch in zip(names, (-0.2, 0.2), ("", "///"), strict=True):
        label = name.replace("_", "-")
        look = {"color": COLOURS[label], "hatch": hatch, "edgecolor": "white", "width": 0.4}
        ax.bar(np.arange(1, len(table)) + shift, gains[name], label=label, **look)
    ax.axhline(0, color="black", lw=0.8)
    ax.margins(y=0.15)
    ax.set_ylabel("strength gained (log odds)")
    _name_steps(ax, table["step"])
    mark_phases(ax, phases, table["step"].tolist())
    ax.legend(loc="best")
    return ax, gains[["step", *names]].reset_index(drop=True)


def plot_several_dynamics(
    tables: Mapping[str, pd.DataFrame], names: Sequence[str] = ("power", "count", "gap")
) -> tuple[Figure, pd.DataFrame]:
    """Draw quantities over training for several studies on one axis of epochs, with 95 % bands.

    Args:
        tables: label to a table of `Dynamics.summary`.
        names: of the quantities, one panel each; "power" is drawn with its chance level.

    Returns:
        Figure, and a table: label, step, epoch, quantity, value, low95, high95.
    """
    height = 0.8 + 2.1 * len(names) + 0.25 * len(tables)
    figure, axes = plt.subplots(len(names), 1, figsize=(7.2, height), sharex=True, squeeze=False)
    start, stop = (f(f(_trained(t)) for t in tables.values()) for f in (min, max))
    left, rows = start / (stop / start) ** 0.12, []
    for i, (label, table) in enumerate(tables.items()):
        x = _beside(table, left)
        look = {"ls": ["-", "--", "-.", ":"][i % 4], "color": _look(i)["color"]}
        for ax, name in zip(axes[:, 0], names, strict=True):
            _band(ax, x, table, name, label=no_math(label), ms=5, **{**look, **_look(i)})
            if name == "power":
                ax.plot(x, table["chance"], lw=0.9, alpha=0.8, **look)
            bounds = [table.get(f"{name}_{side}95", table[name]) for side in ("low", "high")]
            columns = {"label": label, "step": table["step"], "epoch": table["epoch"]}
            values = dict(zip(("value", "low95", "high95"), (table[name], *bounds), strict=True))
            rows.append(pd.DataFrame({**columns, "quantity": name, **values}))
    for ax, name in zip(axes[:, 0], names, strict=True):
        ax.set_title(QUANTITIES.get(name, name), size=11)
        if name in ("power", "count"):
            ax.set_ylim(0, None)
        else:
            ax.axhline(0, color="black", lw=0.8)
    sizes = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    ticks = [e for e in sizes if start <= e <= stop]
    last = axes[-1, 0]
    last.set(xscale="log", xlabel="epochs of training (logarithmic)")
    last.set_xticks([left, *ticks], ["untrained", *(f"{e:g}" for e in ticks)])
    last.minorticks_off()
    handles, labels = last.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", handlelength=4)
    return figure, pd.concat(rows, ignore_index=True)


def plot_training(records: Mapping[str, pd.DataFrame]) -> tuple[Figure, pd.DataFrame]:
    """Draw training and test accuracy over the epochs, one panel a network.

    Args:
        records: title to `TrainingRun.records`.

    Returns:
        Figure, and a table: network, step, epoch, train_accuracy, test_accuracy (shares).
    """
    figure, axes = panel_rows(-(-len(records) // 2), 2, width=7.6, height=2.5, sharey=True)
    for ax in axes.flat[len(records) :]:
        ax.set_visible(False)
    lines = (("train", "training samples", "-", "o"), ("test", "test samples", "--", "s"))
    for ax, (title, table) in zip(axes.flat, records.items(), strict=False):
        x = _beside(table, min(_trained(table)) / 3)
        for part, label, line, marker in lines:
            look = {"ls": line, "marker": marker, "color": COLOURS[part], "ms": 4}
            _band(ax, x, table, f"{part}_accuracy", label=label, **look)
        ax.set(xscale="log", ylim=(0, 1.03), xlabel="epochs")
        ax.set_title(no_math(title), size=10)
    for ax in axes[:, 0]:
        ax.set_ylabel("accuracy")
    legend_below(figure, [axes[0, 0]], columns=2)
    columns = ["network", "step", "epoch", "train_accuracy", "test_accuracy"]
    drawn = pd.concat([t.assign(network=title) for title, t in records.items()], ignore_index=True)
    return figure, drawn[columns]


def plot_boundaries(draws: Mapping[str, pd.DataFrame]) -> tuple[Figure, pd.DataFrame]:
    """Draw where the ends of phase 1 and 2 come to lie when samples are drawn again.

    Args:
        draws: label to a table of `Dynamics.boundaries`.

    Returns:
        Figure, and a table: label, boundary ("t1", "t2"), step (missing: none), share of draws.
    """
    rows = []
    for label, table in draws.items():
        for name in ("t1", "t2"):
            shares = table[name].value_counts(normalize=True, dropna=False)
            columns = {"label": label, "boundary": name, "step": shares.index}
            rows.append(pd.DataFrame({**columns, "share": shares.to_numpy(dtype=float)}))
    found = pd.concat(rows, ignore_index=True)
    steps = sorted({int(s) for s in found["step"].dropna()})
    place, row = {s: k for k, s in enumerate(steps)}, {label: k for k, label in enumerate(draws)}
    shape = {"figsize": (8.6, 1.9 + 0.42 * len(draws)), "sharex": True, "sharey": True}
    figure, axes = plt.subplots(1, 2, **shape)
    for ax, name in zip(axes, ("t1", "t2"), strict=True):
        for mark in found[found["boundary"] == name].itertuples():
            x = len(steps) if pd.isna(mark.step) else place[int(mark.step)]
            size, y = 25 + 330 * mark.share, row[mark.label]
            ax.scatter(x, y, s=size, alpha=0.75, **_look(y))
            if mark.share >= 0.05:
                note = {"textcoords": "offset points", "size": 8.5, "ha": "center"}
                ax.annotate(f"{mark.share:.0%}", (x, y), (0, 4 + 0.5 * size**0.5), **note)
        ax.set(title=f"$t_{name[1]}$", xlabel="optimizer steps", ylim=(len(draws) - 0.4, -0.75))
        ax.set_xlim(-0.6, len(steps) + 0.6)
        ax.set_xticks(range(len(steps) + 1), [*map(str, steps), "none"])
    axes[0].set_yticks(range(len(draws)), list(map(no_math, draws)))
    return figure, found


def _band(ax: Axes, x: np.ndarray | pd.Series, table: pd.DataFrame, name: str, **look) -> None:
    """Draw a quantity, and its 95 % band where the table has one."""
    ax.plot(x, table[name], **look)
    if f"{name}_low95" in table:
        bounds = table[f"{name}_low95"], table[f"{name}_high95"]
        ax.fill_between(x, *bounds, color=look["color"], alpha=0.18, lw=0)


def _look(i: int) -> dict:
    """Return colour and marker of the i-th of several lines."""
    return {"color": sns.color_palette("colorblind")[i % 10], "marker": "os^Dv<>P"[i % 8]}


def _trained(table: pd.DataFrame) -> pd.Series:
    return table.loc[table["epoch"] > 0, "epoch"]


def _beside(table: pd.DataFrame, left: float) -> pd.Series:
    """Return the epochs, with the untrained network, which no logarithm has, left of the others."""
    return table["epoch"].where(table["epoch"] > 0, left)


def _name_steps(ax: Axes, steps: pd.Series) -> None:
    ax.set_xticks(range(len(steps)), [*map(str, steps)], rotation=45)
    ax.set_xlabel("optimizer steps (checkpoints, evenly spaced)")
