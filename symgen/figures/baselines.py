"""Figures of several baseline networks (App. C) and of cross-validation (App. N)."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from torch import Tensor

from symgen.figures.style import COLOURS, WHISKERS, legend_below, panel_rows
from symgen.literal import no_math


def plot_baseline_spectra(
    spectra: Mapping[str, tuple[Tensor, Sequence[Tensor]]],
) -> tuple[Figure, pd.DataFrame]:
    """Draw order spectra whose generalizable part grows with the number of baselines (Fig. 5).

    Args:
        spectra: label to the spectrum of all salient interactions, (sample, 2, n + 1) of
            `order_spectrum`, and the generalizable ones with 1, 2, ... baselines.

    Returns:
        Figure, and a table: label, order, sign, baselines (0: all salient), strength (log odds,
        mean over samples).
    """
    figure, axes = plt.subplots(1, len(spectra), figsize=(9.6, 4.2), squeeze=False)
    most = max(len(parts) for _, parts in spectra.values())
    shades = sns.light_palette(COLOURS["generalizable"], most + 1, reverse=True)
    hatches, rows = ["", "\\\\", "..", "xx", "--"], []
    for ax, (label, (total, parts)) in zip(axes[0], spectra.items(), strict=True):
        orders = np.arange(1, total.shape[-1])
        means = [x.mean(0).cpu().numpy()[:, 1:] for x in (total, *parts)]
        style = {"width": 0.85, "edgecolor": "white", "lw": 0.6}
        # From the widest to the narrowest, so that each lies on the one before.
        for k in (0, *range(len(parts), 0, -1)):
            look = {"color": COLOURS["all"], "hatch": "///", "label": "not generalizable"}
            if k:
                name = "to 1 baseline" if k == 1 else f"to any of {k}"
                look = {"color": shades[k - 1], "hatch": hatches[(k - 1) % 5], "label": name}
            ax.bar(orders, means[k][0], **look, **style)
            ax.bar(orders, means[k][1], **{**look, "label": None}, **style)
            for s, sign in enumerate(("positive", "negative")):
                about = {"label": label, "order": orders, "sign": sign, "baselines": k}
                rows.append(pd.DataFrame({**about, "strength": means[k][s]}))
        ax.axhline(0, color="black", lw=0.8)
        ax.set(title=no_math(label), xlabel="order (number of variables)", xticks=orders)
    axes[0, 0].set_ylabel("strength (log odds)")
    richest = max(axes[0], key=lambda ax: len(ax.get_legend_handles_labels()[1]))
    handles, labels = richest.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3)
    return figure, pd.concat(rows, ignore_index=True)


def plot_baseline_power(table: pd.DataFrame, subsets: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H against the number of baselines, its chance level, and what lies above chance.

    Args:
        table: columns label, baselines, and for each quantity q of power, chance and lift the
            columns q, q_low95, q_high95.
        subsets: columns label, baselines, power: of every choice of baselines.

    Returns:
        Figure, and the table.
    """
    labels = list(dict.fromkeys(table["label"]))
    figure, axes = panel_rows(len(labels), 2, 9.6, 3.1, sharex=True)
    for (left, right), label in zip(axes, labels, strict=True):
        rows, dots = (t[t["label"] == label] for t in (table, subsets))
        for ax, name, colour, line, text in (
            (left, "power", "generalizable", "o-", "H, any of k baselines"),
            (left, "chance", "chance", "s:", "chance level: relabelled baselines"),
            (right, "lift", "network", "D--", "H minus chance"),
        ):
            ax.plot(rows["baselines"], rows[name], line, color=COLOURS[colour], ms=5, label=text)
            band = rows[f"{name}_low95"], rows[f"{name}_high95"]
            ax.fill_between(rows["baselines"], *band, color=COLOURS[colour], alpha=0.15, lw=0)
        style = {"color": "black", "ms": 4, "mew": 0.9, "alpha": 0.55, "label": "one choice of k"}
        left.plot(dots["baselines"], dots["power"], "_", **style)
        left.set(title=no_math(label), ylabel="H", ylim=(0, 1))
        right.set(
            title=no_math(label), ylabel="H minus chance", ylim=(min(0, right.get_ylim()[0]), None)
        )
        right.axhline(0, color="black", lw=0.8)
    for ax in axes[-1]:
        ax.set(xlabel="number k of baselines", xticks=sorted(table["baselines"].unique()))
    legend_below(figure, axes[0], 2)
    return figure, table


def plot_baseline_gains(table: pd.DataFrame, xlabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw what further baselines add, beside what they add by chance, one panel a study.

    Args:
        table: columns label, step (its name on the axis), gain, chance (the same for relabelled
            baselines), above, low95, high95 (gain minus chance with its interval).
        xlabel: what the steps are.

    Returns:
        Figure, and the table.
    """
    labels = list(dict.fromkeys(table["label"]))
    figure, axes = plt.subplots(1, max(1, len(labels)), figsize=(9.6, 3.9), squeeze=False)
    for ax, label in zip(axes[0], labels, strict=False):
        rows = table[table["label"] == label]
        x = np.arange(len(rows))
        style = {"width": 0.36, "edgecolor": "white"}
        ax.bar(x - 0.2, rows["gain"], color=COLOURS["generalizable"], label="gain", **style)
        look = {"color": COLOURS["all"], "hatch": "///", "label": "gain by chance"}
        ax.bar(x + 0.2, rows["chance"], **look, **style)
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["above"].to_numpy())
        look = {"color": COLOURS["network"], "fmt": "D", "ms": 5, "capsize": 3}
        ax.errorbar(x, rows["above"], errors, label="gain above chance, 95 %", **look)
        ax.axhline(0, color="black", lw=0.8)
        ax.set_xticks(x, rows["step"])
        ax.set(title=no_math(label), xlabel=xlabel)
    axes[0, 0].set_ylabel("gain, share of salient strength")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, table


def plot_baseline_hits(table: pd.DataFrame, rules: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw how many baselines share an interaction, and H for three rules of counting them.

    Args:
        table: columns label, hits (how many baselines), share (of salient strength), low95,
            high95, chance.
        rules: columns label, rule, baselines, lift (H minus chance), low95, high95.

    Returns:
        Figure, and the table of hits.
    """
    labels = list(dict.fromkeys(table["label"]))
    figure, axes = panel_rows(len(labels), 2, 9.6, 3.1)
    for (left, right), label in zip(axes, labels, strict=True):
        rows = table[table["label"] == label]
        left.bar(rows["hits"], rows["share"], color=COLOURS["generalizable"], label="observed")
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["share"].to_numpy())
        left.errorbar(rows["hits"], rows["share"], errors, **WHISKERS)
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance level"}
        left.hlines(rows["chance"], rows["hits"] - 0.42, rows["hits"] + 0.42, **dashes)
        left.set(title=no_math(label), ylabel="share of salient strength", xticks=rows["hits"])
        for i, (rule, part) in enumerate(
            rules[rules["label"] == label].groupby("rule", sort=False)
        ):
            x = part["baselines"] + 0.07 * (i - 1)
            errors = np.abs(part[["low95", "high95"]].to_numpy().T - part["lift"].to_numpy())
            look = {"color": sns.color_palette("colorblind")[i], "capsize": 3, "ms": 6}
            look |= {"marker": "os^"[i], "ls": ["-", "--", "-."][i]}
            right.errorbar(x, part["lift"], errors, label=f"transfer to {rule}", **look)
        right.axhline(0, color="black", lw=0.8)
        right.set(
            title=no_math(label), ylabel="H minus chance", xticks=sorted(set(part["baselines"]))
        )
    axes[-1, 0].set_xlabel("how many baselines share the interaction")
    axes[-1, 1].set_xlabel("number k of baselines")
    legend_below(figure, axes[0], 3)
    return figure, table


def plot_two_spectra(
    spectra: Mapping[str, tuple[Tensor, Tensor, Tensor]], limits: tuple[float, float] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw which part of a spectrum generalizes to one network, and which to another (App. N).

    Args:
        spectra: title to the spectra of all salient interactions and of those that generalize
            to B and to C, each (..., 2, n + 1) of `order_spectrum`; averaged over samples.
        limits: of the vertical axis, to compare figures.

    Returns:
        Figure, and a table: title, order, sign, total, to_b, to_c (log odds, mean over samples).
    """
    figure, axes = plt.subplots(1, len(spectra), figsize=(9.6, 3.9), squeeze=False)
    rows = []
    for ax, (title, three) in zip(axes[0], spectra.items(), strict=True):
        orders = np.arange(1, three[0].shape[-1])
        means = [x.reshape(-1, *x.shape[-2:]).mean(0).cpu().numpy()[:, 1:] for x in three]
        for s, sign in enumerate(("positive", "negative")):
            total, to_b, to_c = (x[s] for x in means)
            style = {"color": COLOURS["all"], "alpha": 0.45, "lw": 0, "width": 0.9}
            ax.bar(orders, total, label=None if s else "all of A", **style)
            style = {"width": 0.4, "edgecolor": "white", "lw": 0.6}
            look = {"color": COLOURS["generalizable"], "label": None if s else "generalizes to B"}
            ax.bar(orders - 0.21, to_b, **look, **style)
            look = {"color": COLOURS["and"], "label": None if s else "generalizes to C"}
            ax.bar(orders + 0.21, to_c, hatch="///", **look, **style)
            about = {"title": title, "order": orders, "sign": sign}
            rows.append(pd.DataFrame({**about, "total": total, "to_b": to_b, "to_c": to_c}))
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="order (number of variables)", xticks=orders)
        ax.set_title(no_math(title), size=11)
        if limits is not None:
            ax.set_ylim(limits)
    axes[0, 0].set_ylabel("strength (log odds)")
    legend_below(figure, axes[0, :1], 3)
    return figure, pd.concat(rows, ignore_index=True)


def plot_agreement(
    table: pd.DataFrame, reference: Mapping[str, float] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw measures of agreement with their intervals, one panel a study, one line a comparison.

    Args:
        table: columns label, comparison, average (how samples are averaged; one marker each),
            value, low95, high95.
        reference: name to value in [0, 1], drawn as vertical lines.

    Returns:
        Figure, and the table.
    """
    labels, names = (list(dict.fromkeys(table[k])) for k in ("label", "comparison"))
    averages = list(dict.fromkeys(table["average"]))
    shape = {"figsize": (9.6, 1.5 + 0.5 * len(names)), "squeeze": False, "sharey": True}
    figure, axes = plt.subplots(1, len(labels), **shape)
    for ax, label in zip(axes[0], labels, strict=True):
        for i, (name, value) in enumerate((reference or {}).items()):
            ax.axvline(value, color=COLOURS["or"], lw=2, ls=("--", ":")[i % 2], label=name)
        for i, average in enumerate(averages):
            rows = table[(table["label"] == label) & (table["average"] == average)]
            y = [names.index(x) + 0.24 * (i - (len(averages) - 1) / 2) for x in rows["comparison"]]
            errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["value"].to_numpy())
            look = {"fmt": "os^D"[i % 4], "ms": 6, "capsize": 3, "lw": 1.6}
            look |= {"color": COLOURS[("network", "generalizable")[i % 2]], "label": average}
            ax.errorbar(rows["value"], y, xerr=errors, **look)
        ax.set(title=no_math(label), xlabel="Jaccard similarity", xlim=(-0.03, 1.03))
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    legend_below(figure, axes[0, :1], 2)
    return figure, table


def plot_spectra_and_sets(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw the agreement of spectra against that of the sets behind them, a mark a sample.

    Args:
        table: columns label, kind, sets, spectra; kinds are told apart by marker.

    Returns:
        Figure, and the table.
    """
    labels, kinds = (list(dict.fromkeys(table[k])) for k in ("label", "kind"))
    figure, axes = plt.subplots(1, len(labels), figsize=(9.6, 4.4), squeeze=False)
    colours = ("generalizable", "or", "chance")
    for ax, label in zip(axes[0], labels, strict=True):
        ax.axline((0, 0), slope=1, color="black", lw=0.9, ls=":", label="spectra agree like sets")
        for i, kind in enumerate(kinds):
            rows = table[(table["label"] == label) & (table["kind"] == kind)]
            look = {"color": COLOURS[colours[i % 3]], "ls": "none", "marker": "o^s"[i % 3], "ms": 6}
            ax.plot(rows["sets"], rows["spectra"], alpha=0.75, mec="white", label=kind, **look)
            mean = rows[["sets", "spectra"]].mean()
            look |= {"ms": 13, "mec": "black", "mew": 1.6}
            ax.plot(mean["sets"], mean["spectra"], **look)
        limits = {"xlim": (-0.03, 1.03), "ylim": (-0.03, 1.03), "aspect": "equal"}
        ax.set(title=no_math(label), xlabel="Jaccard similarity of the sets", **limits)
    axes[0, 0].set_ylabel("Jaccard similarity of the spectra")
    legend_below(figure, axes[0, :1], 3)
    return figure, table
