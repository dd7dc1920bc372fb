"""Figures of a network in training: dynamics, phases, losses."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.figures.style import (
    COLOURS,
    legend_below,
    mark_phases,
    panel_rows,
)
from symgen.literal import no_math
from symgen.method.dynamics import Phases


def plot_dynamics(table: pd.DataFrame, phases: Phases) -> tuple[Figure, pd.DataFrame]:
    """Draw H, N and the losses over training, with the phase boundaries that exist.

    Args:
        table: of `Dynamics.summary`.
        phases: of `Dynamics.phases`.
    """
    figure, axes = plt.subplots(3, 1, figsize=(7.2, 7.5), sharex=True)
    x = np.arange(len(table))

    def band(ax: Axes, name: str, colour: str, label: str, line: str = "-") -> None:
        ax.plot(x, table[name], line, marker="o", ms=4, color=colour, label=label)
        low, high = table[f"{name}_low95"], table[f"{name}_high95"]
        ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)

    band(axes[0], "power", COLOURS["generalizable"], "H")
    band(axes[0], "chance", COLOURS["chance"], "chance level", "--")
    axes[0].set(ylabel="H", ylim=(0, None), title="Generalization power")
    band(axes[1], "count", COLOURS["network"], "N")
    axes[1].set(ylabel="N", ylim=(0, None), title="Number of interactions")
    lines = (
        ("train_loss", "training loss", "-", "o", COLOURS["train"]),
        ("test_loss", "test loss", "--", "s", COLOURS["test"]),
        ("gap", "gap", ":", "^", COLOURS["non-generalizable"]),
    )
    for name, label, line, marker, colour in lines:
        axes[2].plot(x, table[name], line, color=colour, marker=marker, ms=4, label=label)
        if f"{name}_low95" in table:
            low, high = table[f"{name}_low95"], table[f"{name}_high95"]
            axes[2].fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    axes[2].set(ylabel="loss (nats)", title="Losses")
    axes[2].set_xlabel("optimizer steps (checkpoints, evenly spaced)")
    steps = table["step"].tolist()
    axes[2].set_xticks(x, [str(s) for s in steps], rotation=45)
    for ax in axes:
        mark_phases(ax, phases, steps)
        ax.legend(loc="best")
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
    steps = table["step"].tolist()
    gains = table[["generalizable", "non_generalizable"]].diff().assign(step=steps)[1:]
    x = np.arange(1, len(steps))
    kinds = (
        ("generalizable", -0.2, COLOURS["generalizable"], ""),
        ("non_generalizable", 0.2, COLOURS["non-generalizable"], "///"),
    )
    for name, shift, colour, hatch in kinds:
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "width": 0.4}
        ax.bar(x + shift, gains[name], label=name.replace("_", "-"), **style)
    ax.axhline(0, color="black", lw=0.8)
    ax.margins(y=0.15)
    ax.set_xticks(range(len(steps)), [str(s) for s in steps], rotation=45)
    ax.set_xlabel("optimizer steps (checkpoints, evenly spaced)")
    ax.set_ylabel("strength gained (log odds)")
    mark_phases(ax, phases, steps)
    ax.legend(loc="best")
    return ax, gains[["step", "generalizable", "non_generalizable"]].reset_index(drop=True)


def plot_several_dynamics(
    tables: Mapping[str, pd.DataFrame], names: Sequence[str] = ("power", "count", "gap")
) -> tuple[Figure, pd.DataFrame]:
    """Draw quantities over training for several studies on one axis of epochs, with 95 % bands.

    Args:
        tables: label to a table of `Dynamics.summary`; a quantity q is drawn with a band where
            there are columns q_low95 and q_high95.
        names: of the quantities, one panel each; "power" is drawn with its chance level.

    Returns:
        Figure, and a table: label, step, epoch, quantity, value, low95, high95.
    """
    titles = {
        "power": "Generalization power H (thin: chance level)",
        "count": "Number of interactions N",
        "gap": "Gap, test loss minus training loss (nats)",
        "mean_order": "Mean order of interactions",
    }
    height = 0.8 + 2.1 * len(names) + 0.25 * len(tables)
    figure, axes = plt.subplots(len(names), 1, figsize=(7.2, height), sharex=True, squeeze=False)
    positive = [t.loc[t["epoch"] > 0, "epoch"] for t in tables.values()]
    start, stop = min(e.min() for e in positive), max(e.max() for e in positive)
    # The untrained network has no place on a logarithmic axis; it stands left of all others.
    left, rows = start / (stop / start) ** 0.12, []
    for i, (label, table) in enumerate(tables.items()):
        style = {"color": sns.color_palette("colorblind")[i % 10], "marker": "os^Dv<>P"[i % 8]}
        x = table["epoch"].where(table["epoch"] > 0, left)
        for ax, name in zip(axes[:, 0], names, strict=True):
            line = ["-", "--", "-.", ":"][i % 4]
            ax.plot(x, table[name], line, ms=5, label=no_math(label), **style)
            bounds = [table.get(f"{name}_{side}95", table[name]) for side in ("low", "high")]
            ax.fill_between(x, *bounds, color=style["color"], alpha=0.15, lw=0)
            if name == "power":
                ax.plot(x, table["chance"], line, lw=0.9, color=style["color"], alpha=0.8)
            columns = {"label": label, "step": table["step"], "epoch": table["epoch"]}
            values = {"value": table[name], "low95": bounds[0], "high95": bounds[1]}
            rows.append(pd.DataFrame({**columns, "quantity": name, **values}))
    for ax, name in zip(axes[:, 0], names, strict=True):
        ax.set_title(titles.get(name, name), size=11)
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
    rows = -(-len(records) // 2)
    figure, axes = panel_rows(rows, 2, width=7.6, height=2.5, sharey=True)
    for ax in axes.flat[len(records) :]:
        ax.set_visible(False)
    for ax, (title, table) in zip(axes.flat, records.items(), strict=False):
        positive = table["epoch"][table["epoch"] > 0]
        # The untrained network has no place on a logarithmic axis; it stands left of all others.
        x = table["epoch"].where(table["epoch"] > 0, positive.min() / 3)
        for part, label, line, marker in (
            ("train", "training samples", "-", "o"),
            ("test", "test samples", "--", "s"),
        ):
            style = {"color": COLOURS[part], "marker": marker, "ms": 4, "label": label}
            ax.plot(x, table[f"{part}_accuracy"], line, **style)
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
        draws: label to a table of `bootstrap_phases`.

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
    place = {**{s: k for k, s in enumerate(steps)}, None: len(steps)}
    height = 1.9 + 0.42 * len(draws)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, height), sharey=True, sharex=True)
    for ax, name in zip(axes, ("t1", "t2"), strict=True):
        for k, label in enumerate(draws):
            some = found[(found["label"] == label) & (found["boundary"] == name)]
            x = [place[None if pd.isna(s) else int(s)] for s in some["step"]]
            shape = {"marker": "os^Dv<>P"[k % 8], "color": sns.color_palette("colorblind")[k % 10]}
            ax.scatter(x, [k] * len(x), s=25 + 330 * some["share"], alpha=0.75, **shape)
            for at, share in zip(x, some["share"], strict=True):
                if share >= 0.05:
                    note = {"textcoords": "offset points", "size": 8.5, "ha": "center"}
                    above = 4 + 0.5 * (25 + 330 * share) ** 0.5
                    ax.annotate(f"{share:.0%}", (at, k), (0, above), **note)
        ax.set(title=f"$t_{name[1]}$", xlabel="optimizer steps", ylim=(len(draws) - 0.4, -0.75))
        ax.set_xlim(-0.6, len(steps) + 0.6)
        ax.set_xticks(range(len(steps) + 1), [*map(str, steps), "none"])
    axes[0].set_yticks(range(len(draws)), list(map(no_math, draws)))
    return figure, found
