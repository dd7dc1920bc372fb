"""Figures of several baseline networks (App. C) and of cross-validation (App. N)."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, legend_below, panel_rows
from symgen.literal import no_math

WIDTH = 9.6
HATCHES = ("", "\\\\", "..", "xx", "--")
STRIPES = {"edgecolor": "white", "lw": 0.6}


def _shades(count: int) -> list:
    """Return shades of what generalizes, the darkest first."""
    return sns.light_palette(COLOURS["generalizable"], count + 1, reverse=True)[:count]


def _row_of_panels(labels: Sequence[str], height: float, **shape: Any) -> tuple[Figure, Any]:
    shape = {"figsize": (WIDTH, height), "squeeze": False, **shape}
    figure, axes = plt.subplots(1, max(1, len(labels)), **shape)
    for ax, label in zip(axes[0], labels, strict=False):
        ax.set_title(no_math(label), size=11)
    return figure, axes[0]


def _of(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    return table[np.all([table[column] == value for column, value in wanted.items()], axis=0)]


def _errors(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Return how far the 95 % interval reaches below and above a column, shape (2, row)."""
    return np.abs(rows[["low95", "high95"]].to_numpy(float).T - rows[name].to_numpy(float))


def _draw_spectra(layers: Mapping[str, Sequence[tuple]]) -> tuple[Figure, pd.DataFrame]:
    """Draw the parts of spectra on each other, from the first to the last, one panel a study.

    Args:
        layers: label to parts: name, spectrum (..., 2, n + 1), shift of its bars, their look.

    Returns:
        Figure, and a table: label, part, order, sign, strength (log odds, mean over samples).
    """
    figure, axes = _row_of_panels([*layers], 4.2)
    rows = []
    for ax, (label, parts) in zip(axes, layers.items(), strict=True):
        for name, spectrum, shift, look in parts:
            means = spectrum.reshape(-1, *spectrum.shape[-2:]).mean(0).cpu().numpy()[:, 1:]
            orders = np.arange(1, means.shape[1] + 1)
            for sign, heights, text in zip(
                ("positive", "negative"), means, (name, None), strict=True
            ):
                ax.bar(orders + shift, heights, label=text, **look)
                about = {"label": label, "part": name, "order": orders, "sign": sign}
                rows.append(pd.DataFrame({**about, "strength": heights}))
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="order (number of variables)", xticks=orders)
    axes[0].set_ylabel("strength (log odds)")
    legend_below(figure, [max(axes, key=lambda ax: len(ax.containers))], 3)
    return figure, pd.concat(rows, ignore_index=True)


def plot_baseline_spectra(
    spectra: Mapping[str, tuple[Tensor, Sequence[Tensor]]],
) -> tuple[Figure, pd.DataFrame]:
    """Draw order spectra whose generalizable part grows with the number of baselines (Fig. 5).

    Args:
        spectra: label to the spectrum of all salient interactions, (sample, 2, n + 1) of
            `order_spectrum`, and the generalizable ones with 1, 2, ... baselines.

    Returns:
        Figure, and a table: label, part, order, sign, strength (log odds, mean over samples).
    """
    shades = _shades(max(len(parts) for _, parts in spectra.values()))
    layers = {}
    for label, (total, parts) in spectra.items():
        look = {"width": 0.85, **STRIPES}
        grey = {"color": COLOURS["all"], "hatch": "///", **look}
        layers[label] = [("all salient", total, 0, grey)]
        # From the widest to the narrowest, so that each lies on the one before.
        for k, part in reversed([*enumerate(parts)]):
            name = f"to any of {k + 1}" if k else "to 1 baseline"
            shade = {"color": shades[k], "hatch": HATCHES[k % len(HATCHES)]}
            layers[label].append((name, part, 0, {**shade, **look}))
    return _draw_spectra(layers)


def plot_two_spectra(
    spectra: Mapping[str, Sequence[Tensor]],
) -> tuple[Figure, pd.DataFrame]:
    """Draw which part of a spectrum generalizes to one network, and which to another (App. N).

    Args:
        spectra: title to the spectra of all salient interactions and of those that generalize
            to B and to C, each (..., 2, n + 1) of `order_spectrum`; averaged over samples.

    Returns:
        Figure, and a table: label, part, order, sign, strength (log odds, mean over samples).
    """
    dark, light = _shades(2)
    looks = [
        ("all of A", 0, {"color": COLOURS["all"], "alpha": 0.45, "lw": 0, "width": 0.9}),
        ("generalizes to B", -0.21, {"color": dark, "width": 0.4, **STRIPES}),
        ("generalizes to C", 0.21, {"color": light, "hatch": "///", "width": 0.4, **STRIPES}),
    ]
    return _draw_spectra({
        title: [(name, part, *look) for part, (name, *look) in zip(parts, looks, strict=True)]
        for title, parts in spectra.items()
    })  # fmt: skip


def plot_baseline_power(table: pd.DataFrame, choices: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H against the number of baselines, its chance level, and what lies above chance.

    Args:
        table: of `symgen.method.witnesses.power_by_number`.
        choices: of `power_of_choices`.

    Returns:
        Figure, and the table.
    """
    labels = list(dict.fromkeys(table["label"]))
    figure, axes = panel_rows(len(labels), 2, WIDTH, 3.1, sharex=True)
    for (left, right), label in zip(axes, labels, strict=True):
        rows, dots = _of(table, label=label), _of(choices, label=label)
        for ax, name, colour, line, text in (
            (left, "power", "generalizable", "o-", "H, any of k baselines"),
            (left, "chance", "chance", "s:", "chance level: relabelled baselines"),
            (right, "lift", "network", "D--", "H minus chance"),
        ):
            ax.plot(rows["baselines"], rows[name], line, color=COLOURS[colour], ms=5, label=text)
            band = rows[f"{name}_low95"], rows[f"{name}_high95"]
            ax.fill_between(rows["baselines"], *band, color=COLOURS[colour], alpha=0.15, lw=0)
            ax.set_title(no_math(label))
        style = {"color": "black", "ms": 4, "mew": 0.9, "alpha": 0.55, "label": "one choice of k"}
        left.plot(dots["baselines"], dots["power"], "_", **style)
        left.set(ylabel="H", ylim=(0, 1))
        right.set(ylabel="H minus chance", ylim=(min(0, right.get_ylim()[0]), None))
        right.axhline(0, color="black", lw=0.8)
    for ax in axes[-1]:
        ax.set(xlabel="number k of baselines", xticks=sorted(table["baselines"].unique()))
    legend_below(figure, axes[0], 2)
    return figure, table


def plot_baseline_gains(table: pd.DataFrame, xlabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw what further baselines add to H, beside what they add by chance, one panel a study.

    Args:
        table: of `symgen.method.witnesses.gains_by_order` or `gains_by_number`.
        xlabel: what the steps are.

    Returns:
        Figure, and the table.
    """
    labels = list(dict.fromkeys(table["label"]))
    figure, axes = _row_of_panels(labels, 3.9)
    for ax, label in zip(axes, labels, strict=False):
        rows = _of(table, label=label)
        x = np.arange(len(rows))
        for name, at, look in (
            ("gain", x - 0.2, {"color": COLOURS["generalizable"], "label": "gain, 95 %"}),
            ("chance", x + 0.2, {"color": COLOURS["chance"], "hatch": "///", "label": "by chance"}),
        ):
            ax.bar(at, rows[name], width=0.38, edgecolor="white", **look)
        ax.errorbar(x - 0.2, rows["gain"], _errors(rows, "gain"), **WHISKERS)
        ax.set_xticks(x, rows["step"])
        ax.set_xlabel(xlabel)
    if labels:
        axes[0].set_ylabel("gain in H")
        legend_below(figure, axes[:1], 2)
    else:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "nothing to compare", ha="center", transform=axes[0].transAxes)
    return figure, table


def plot_baseline_hits(table: pd.DataFrame, rules: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw how many baselines share an interaction, and H for three rules of counting them.

    Args:
        table: of `symgen.method.witnesses.strength_by_hits`.
        rules: of `lift_by_rule`.

    Returns:
        Figure, and the table of hits.
    """
    labels, names = (list(dict.fromkeys(x)) for x in (table["label"], rules["rule"]))
    figure, axes = panel_rows(len(labels), 2, WIDTH, 3.1)
    for (left, right), label in zip(axes, labels, strict=True):
        rows = _of(table, label=label)
        left.bar(rows["hits"], rows["share"], color=COLOURS["generalizable"], label="observed")
        left.errorbar(rows["hits"], rows["share"], _errors(rows, "share"), **WHISKERS)
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance level"}
        left.hlines(rows["chance"], rows["hits"] - 0.42, rows["hits"] + 0.42, **dashes)
        left.set(ylabel="share of salient strength", xticks=rows["hits"])
        for i, (rule, colour) in enumerate(zip(names, _shades(len(names)), strict=True)):
            part = _of(rules, label=label, rule=rule)
            look = {"color": colour, "capsize": 3, "ms": 6, "label": f"transfer to {rule}"}
            look |= {"marker": "os^"[i % 3], "ls": ("-", "--", "-.")[i % 3]}
            x = part["baselines"] + 0.07 * (i - 1)
            right.errorbar(x, part["lift"], _errors(part, "lift"), **look)
        right.axhline(0, color="black", lw=0.8)
        right.set(ylabel="H minus chance", xticks=sorted(set(part["baselines"])))
        for ax in (left, right):
            ax.set_title(no_math(label))
    axes[-1, 0].set_xlabel("how many baselines share the interaction")
    axes[-1, 1].set_xlabel("number k of baselines")
    legend_below(figure, axes[0], 3)
    return figure, table


def plot_agreement(
    table: pd.DataFrame, reference: Mapping[str, float] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw measures of agreement with their intervals, one panel a study, one line a comparison.

    Args:
        table: of `symgen.method.agreement.agreement_table`; one marker a way of averaging.
        reference: name to value in [0, 1], drawn as vertical lines.

    Returns:
        Figure, and the table.
    """
    labels, names, averages = (
        list(dict.fromkeys(table[k])) for k in ("label", "comparison", "average")
    )
    figure, axes = _row_of_panels(labels, 1.5 + 0.5 * len(names), sharey=True)
    for ax, label in zip(axes, labels, strict=True):
        for i, (name, value) in enumerate((reference or {}).items()):
            ax.axvline(value, color="black", lw=1.2, ls=("--", ":")[i % 2], label=no_math(name))
        for i, average in enumerate(averages):
            rows = _of(table, label=label, average=average)
            y = [names.index(x) + 0.24 * (i - (len(averages) - 1) / 2) for x in rows["comparison"]]
            look = {"fmt": "os"[i % 2], "ms": 6, "capsize": 3, "lw": 1.6, "label": average}
            look["color"] = COLOURS[("network", "generalizable")[i % 2]]
            ax.errorbar(rows["value"], y, xerr=_errors(rows, "value"), **look)
        ax.set(xlabel="Jaccard similarity", xlim=(-0.03, 1.03))
        # More of them would meet those of the panel beside it.
        ax.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    legend_below(figure, axes[:1], 2)
    return figure, table


def plot_spectra_and_sets(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw the agreement of spectra against that of the sets behind them, a mark a sample.

    Args:
        table: of `symgen.method.agreement.set_table`; comparisons are told apart by marker.

    Returns:
        Figure, and the table.
    """
    labels, names = (list(dict.fromkeys(table[k])) for k in ("label", "comparison"))
    figure, axes = _row_of_panels(labels, 4.4)
    for ax, label in zip(axes, labels, strict=True):
        ax.axline((0, 0), slope=1, color="black", lw=0.9, ls=":", label="spectra agree like sets")
        for i, name in enumerate(names):
            rows = _of(table, label=label, comparison=name)
            colour = COLOURS[("generalizable", "all", "chance")[i % 3]]
            look = {"color": colour, "ls": "none", "marker": "o^s"[i % 3]}
            ax.plot(
                rows["sets"], rows["spectra"], ms=6, alpha=0.75, mec="white", label=name, **look
            )
            mean = rows[["sets", "spectra"]].mean()
            ax.plot(mean["sets"], mean["spectra"], ms=13, mec="black", mew=1.6, **look)
        limits = {"xlim": (-0.03, 1.03), "ylim": (-0.03, 1.03), "aspect": "equal"}
        ax.set(xlabel="Jaccard similarity of the sets", **limits)
        ax.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes[0].set_ylabel("Jaccard similarity of the spectra")
    legend_below(figure, axes[:1], 3)
    return figure, table
