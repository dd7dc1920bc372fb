"""Figures of a network in training: dynamics, phases, losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures.style import COLOURS, legend_below, line_look, mark_phases, panel_rows
from symgen.fingerprints import refusal
from symgen.literal import no_math
from symgen.method.phases import Phases

QUANTITIES = {
    "power": "Generalization power H (thin: chance level)",
    "count": "Number of interactions N",
    "gap": "Gap, test loss minus training loss (nats)",
    "mean_order": "Mean order of interactions",
    "uncancelled": "Share of the strength that is left when signs cancel",
}


# Colours of the phases: what generalizes is learned; less of it; hardly any.
PHASES = (COLOURS["generalizable"], COLOURS["or"], COLOURS["non-generalizable"])
MOVED = {"power": "H", "lift": "H above chance", "count": "N"}


@refusal
def _refuse_no_table(table: Any) -> None:
    if not isinstance(table, pd.DataFrame):
        raise ValueError(
            f"the table is {type(table).__name__}; expected what its summary() returns: "
            "plot_dynamics(dynamics.summary(), dynamics.phases())"
        )


def plot_dynamics(table: pd.DataFrame, phases: Phases) -> tuple[Figure, pd.DataFrame]:
    """Draw H, N and the losses over training, with the phase boundaries that exist.

    Args:
        table: of `Dynamics.summary`; without losses, none are drawn.
        phases: of `Dynamics.phases`.

    Raises:
        ValueError: for something else.
    """
    _refuse_no_table(table)
    lines = [
        (0, "power", "H", "-", "o", "generalizable"),
        (0, "chance", "chance level", "--", "o", "chance"),
        (1, "count", "N", "-", "o", "network"),
    ]
    losses = [
        (2, "train_loss", "training loss", "-", "o", "train"),
        (2, "test_loss", "test loss", "--", "s", "test"),
        (2, "gap", "gap", ":", "^", "non-generalizable"),
    ]
    known = bool(table[[name for _, name, *_ in losses]].notna().any(axis=None))
    count = 3 if known else 2
    figure, axes = plt.subplots(count, 1, figsize=(7.2, 2.5 * count), sharex=True)
    for panel, name, label, line, marker, colour in lines + losses * known:
        look = {"ls": line, "marker": marker, "color": COLOURS[colour], "ms": 4}
        _band(axes[panel], np.arange(len(table)), table, name, label=label, **look)
    axes[0].set(ylabel="H", ylim=(0, None), title="Generalization power")
    axes[1].set(ylabel="N", ylim=(0, None), title="Number of interactions")
    if known:
        axes[2].set(ylabel="loss (nats)", title="Losses")
    for ax in axes:
        mark_phases(ax, phases, table["step"].tolist())
        ax.legend(loc="best")
    _name_steps(axes[-1], table["step"])
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
        look = line_look(i)
        marker = look.pop("marker")
        for ax, name in zip(axes[:, 0], names, strict=True):
            _band(ax, x, table, name, label=no_math(label), ms=5, marker=marker, **look)
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


def plot_cases(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H, N and the loss gap of some cases side by side, with their phases shaded.

    Args:
        table: of `case_table`.

    Returns:
        Figure, and the table.
    """
    labels = [*dict.fromkeys(table["label"])]
    rows = {"power": "H", "count": "N", "gap": "loss gap (nats)"}
    shape = {"figsize": (7.2, 5.6), "sharex": "col", "sharey": "row", "squeeze": False}
    figure, axes = plt.subplots(len(rows), len(labels), **shape)
    colours = dict(zip(rows, ("generalizable", "network", "non-generalizable"), strict=True))
    for column, label in zip(axes.T, labels, strict=True):
        case = table[table["label"] == label]
        left = _trained(case).min() / 2
        for ax, (name, words) in zip(column, rows.items(), strict=True):
            part = case[case["quantity"] == name]
            x = _beside(part, left).to_numpy()
            look = {"color": COLOURS[colours[name]], "marker": "o", "ms": 4}
            named = {"low95": "value_low95", "high95": "value_high95"}
            _band(ax, x, part.rename(columns=named), "value", **look)
            if name == "power":
                chance = case[case["quantity"] == "chance"]["value"]
                ax.plot(x, chance, ls="--", lw=1, color=COLOURS["chance"], label="chance level")
            _shade(ax, x, part["phase"], numbers=name == "power")
            ax.set_ylabel(words if ax is axes[[*rows].index(name), 0] else "")
        column[0].set_title(no_math(label), size=10.5)
        column[-1].set(xscale="log", xlabel="epochs (left: untrained)")
    for ax in axes[:2].flat:
        ax.set_ylim(0, None)
    axes[0, 0].legend(loc="lower right", fontsize=9)
    return figure, table


def _shade(ax: Axes, x: np.ndarray, phase: pd.Series, numbers: bool) -> None:
    """Shade each phase from where the one before it ends, and write its number on top."""
    numbered = [*phase.fillna(0).astype(int)]
    start = x[0]
    for i, number in enumerate(numbered):
        if number in numbered[i + 1 : i + 2]:
            continue
        if number:
            ax.axvspan(start, x[i], color=PHASES[number - 1], alpha=0.13, lw=0)
            if numbers:
                place = ((start * x[i]) ** 0.5, 1.0)
                text = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
                ax.annotate(str(number), place, (0, -12), ha="center", size=9.5, **text)
        start = x[i]


def plot_moves(table: pd.DataFrame, rows: str, columns: str) -> tuple[Figure, pd.DataFrame]:
    """Draw how H, H above chance and N move on a map of trainings: one panel a quantity and change.

    Args:
        table: of `when_table`; where it has further factors, their cells are averaged.
        rows, columns: factors.

    Returns:
        Figure, and a table: quantity, change, the factors, value.
    """
    words = {"first": "up to its extreme", "then": "from there to the end"}
    mean = table.groupby(["quantity", "change", rows, columns])["value"].mean().sort_index()
    quantities = list(dict.fromkeys(table["quantity"]))
    figure, axes = panel_rows(len(quantities), 2, 7.2, 2.3)
    for pair, quantity in zip(axes, quantities, strict=True):
        for ax, (change, told) in zip(pair, words.items(), strict=True):
            grid = mean[quantity, change].unstack(columns)
            reach = max(float(mean[quantity].abs().max()), 1e-9)
            ax.imshow(grid, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
            digits = "+.0f" if reach >= 10 else "+.1f" if reach >= 1 else "+.2f"
            for (y, x), value in np.ndenumerate(grid.to_numpy()):
                dark = {"color": "white" if abs(value) > 0.6 * reach else "black"}
                number = "" if np.isnan(value) else f"{value:{digits}}"
                ax.text(x, y, number, ha="center", va="center", **dark)
            ax.set_xticks(range(grid.shape[1]), grid.columns)
            ax.set_yticks(range(grid.shape[0]), grid.index)
            ax.set(xlabel=columns, ylabel=rows)
            ax.grid(visible=False)
            ax.set_title(f"{MOVED[quantity]}, {told}", size=11)
    for ax in axes[:, 1]:
        ax.set_ylabel("")
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    return figure, mean.reset_index()


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
            look = line_look(y)
            ax.scatter(x, y, s=size, alpha=0.75, color=look["color"], marker=look["marker"])
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


def _trained(table: pd.DataFrame) -> pd.Series:
    return table.loc[table["epoch"] > 0, "epoch"]


def _beside(table: pd.DataFrame, left: float) -> pd.Series:
    """Return the epochs, with the untrained network, which no logarithm has, left of the others."""
    return table["epoch"].where(table["epoch"] > 0, left)


def _name_steps(ax: Axes, steps: pd.Series) -> None:
    ax.set_xticks(range(len(steps)), [*map(str, steps)], rotation=45)
    ax.set_xlabel("optimizer steps of the checkpoints (not to scale)")
