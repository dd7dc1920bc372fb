"""One function for each figure of the book; each returns the Axes and the numbers it drew.

Colours mean the same everywhere, stay apart for colour-blind readers, and are backed by
hatching or line style, so that a grey print can be read too.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from symgen.dynamics import Phases
from symgen.generalization import interval, transfer
from symgen.interactions import SALIENT_SHARE, Interactions
from symgen.verdicts import benchmark_table, claims_table, plot_price, plot_verdicts  # noqa: F401

COLOURS = {
    "and": "#0072B2",
    "or": "#E69F00",
    "generalizable": "#009E73",
    "non-generalizable": "#D55E00",
    "all": "#B0B0B0",
    "chance": "#666666",
    "train": "#56B4E9",
    "test": "#CC79A7",
    "network": "#222222",
    "positive": "#B2182B",
    "negative": "#2166AC",
}
WHISKERS = {"fmt": "none", "color": "black", "capsize": 3, "lw": 1.2}


def set_style() -> None:
    """Set the style of all figures of the book: seaborn's white grid, SVG, stable bytes."""
    sns.set_theme(context="notebook", style="whitegrid", rc={"axes.titleweight": "bold"})
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 3.8),
            "figure.constrained_layout.use": True,
            "axes.titlesize": 12,
            "axes.labelsize": 11,
            "legend.frameon": False,
            "svg.hashsalt": "symgen",
            "svg.fonttype": "path",
        }
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    # Without a date the bytes of a figure depend on what it shows alone.
    set_matplotlib_formats("svg", metadata={"Date": None})


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots()[1] if ax is None else ax


def plot_matching(
    v: Tensor, inter: Interactions, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw the network's output on all masked states, sorted, with the logical model's on it.

    Args:
        v: (2**n,) outputs of one sample.
        inter: its interactions.
        ax: where to draw.

    Returns:
        Axes, and a table: state, v, d.
    """
    ax = _axes(ax)
    table = pd.DataFrame({"state": range(len(v)), "v": v.cpu(), "d": inter.predict().cpu()})
    table = table.sort_values("v", kind="stable", ignore_index=True)
    ax.plot(table["d"], ".", ms=4, color=COLOURS["or"], label="d, logical model")
    ax.plot(table["v"], color=COLOURS["network"], lw=1.5, label="v, network")
    ax.set(xlabel="masked states, sorted by v", ylabel="output (log odds)")
    ax.legend()
    return ax, table


def plot_sparsity(
    inters: Mapping[str, Interactions], ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strength of interactions, largest first, averaged over samples.

    Args:
        inters: label to the interactions of several samples (or one). Each sample's strengths
            are divided by its largest; the band is the middle 80 % of samples.

    Returns:
        Axes, and a table: label, rank, strength, low, high.
    """
    ax = _axes(ax)
    styles, rows = ["-", "--", ":", "-."], []
    for i, (label, inter) in enumerate(inters.items()):
        size = inter.effects.abs().flatten(-2).reshape(-1, 2 * 2**inter.n)
        size = (size / size.amax(-1, keepdim=True)).sort(-1, descending=True).values.cpu()
        low, middle, high = torch.quantile(
            size, torch.tensor([0.1, 0.5, 0.9], dtype=size.dtype), dim=0
        )
        rank = np.arange(1, size.shape[1] + 1)
        colour = sns.color_palette("colorblind")[i]
        ax.plot(rank, middle, styles[i % 4], color=colour, label=label)
        ax.fill_between(rank, low, high, color=colour, alpha=0.2, lw=0)
        rows.append(
            pd.DataFrame(
                {"label": label, "rank": rank, "strength": middle, "low": low, "high": high}
            )
        )
    ax.axhline(0.05, color=COLOURS["chance"], lw=1, ls=(0, (1, 2)))
    ax.annotate("saliency threshold", (1, 0.05), xytext=(2, 3), textcoords="offset points", size=9)
    ax.set(xscale="log", xlabel="rank of the interaction", ylabel="strength / largest", ylim=(0, 1))
    ax.legend()
    return ax, pd.concat(rows, ignore_index=True)


def plot_variables(
    image: np.ndarray,
    boxes: Tensor,
    ax: Axes | None = None,
    members: Sequence[int] | None = None,
) -> tuple[Axes, Tensor]:
    """Draw an image with its input variables as numbered boxes (Fig. 8).

    Args:
        image: (height, width, 3) uint8.
        boxes: (n, 4) top, left, bottom, right in pixels, of `ImageVariables.boxes`.
        members: with these, the other variables are dimmed.
    """
    ax = plt.subplots(figsize=(3.4, 3.4))[1] if ax is None else ax
    ax.imshow(image, interpolation="nearest")
    for i, (top, left, bottom, right) in enumerate(boxes.tolist()):
        size = (right - left, bottom - top)
        style = {"fill": False, "lw": 2.5}
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, ec="white", **style))
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, ec="black", ls=":", **style))
        place = (left + size[0] / 2 - 0.5, top + size[1] / 2 - 0.5)
        if members is not None and i not in members:
            ax.add_patch(Rectangle((left - 0.5, top - 0.5), *size, fc="black", alpha=0.7, lw=0))
            continue
        tag = {"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.85, "lw": 0}
        ax.text(*place, str(i), ha="center", va="center", size=10, weight="bold", bbox=tag)
    ax.set_axis_off()
    return ax, boxes


def plot_interactions(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 12,
    ax: Axes | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strongest interactions of one sample as bars, AND plain and OR hatched.

    Args:
        inter: of one sample.
        names: of the variables.
        top: number of bars.

    Returns:
        Axes, and the drawn rows of `Interactions.to_frame`.
    """
    table = inter.to_frame(names).head(top)
    ax = plt.subplots(figsize=(7.2, 0.6 + 0.3 * max(len(table), 4)))[1] if ax is None else ax
    place = np.arange(len(table))
    for kind, hatch in (("and", ""), ("or", "///")):
        rows = (table["type"] == kind).to_numpy()
        ax.barh(
            place[rows],
            table["effect"][rows],
            color=COLOURS[kind],
            hatch=hatch,
            edgecolor="white",
            label=kind.upper(),
        )
    signs = table["type"].map({"and": " ∧ ", "or": " ∨ "})
    labels = [m.replace(", ", s) for m, s in zip(table["members"], signs, strict=True)]
    ax.set_yticks(place, [f"{{{label}}}" for label in labels])
    ax.invert_yaxis()
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="effect on the output (log odds)", ylabel="")
    ax.legend()
    return ax, table


def plot_graph(
    inter: Interactions,
    names: Sequence[str] | None = None,
    top: int = 12,
    target: str = "output",
    ax: Axes | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw the strongest interactions of one sample as an AND-OR graph (Fig. 1, 7).

    Variables stand at the bottom, above them the interactions in layers by order, and the output
    on top. Width is strength; red raises the output and blue, dashed, lowers it; an AND is a
    circle with a wedge, an OR a hexagon with a vee.

    Args:
        inter: of one sample.
        names: of the variables; their numbers without.
        top: number of interactions.
        target: text of the output's node.
        ax: where to draw.

    Returns:
        Axes, and the drawn rows of `Interactions.to_frame`.
    """
    labels = [str(i) for i in range(inter.n)] if names is None else list(names)
    table = inter.to_frame(labels).head(top).rename(columns={"index": "state"})
    layers = sorted(table["order"].unique())
    if ax is None:
        ax = plt.subplots(figsize=(9, 2.4 + 0.85 * max(1, len(layers))))[1]
    width, size = 10.0, table["effect"].abs().max() or 1.0
    bottom = {i: (width * (i + 0.5) / inter.n, 0.0) for i in range(inter.n)}
    roof = (width / 2, len(layers) + 1.0)
    for level, order in enumerate(layers, 1):
        rows = table[table["order"] == order]
        # Above the middle of its variables, as far as the neighbours leave room; layers are set
        # off, so that nodes of several layers do not stand in one line.
        middle = [np.mean([bottom[i][0] for i in inter.members(t)]) for t in rows["state"]]
        places = _apart(np.array(middle) + 0.3 * (-1) ** level, 0.4, width - 0.4, 1.1)
        for row, x in zip(rows.itertuples(), places, strict=True):
            positive = row.effect > 0
            style = {"color": COLOURS["positive" if positive else "negative"], "zorder": 1}
            style |= {"ls": "-" if positive else (0, (4, 2)), "solid_capstyle": "round"}
            thick = 0.6 + 4.4 * abs(row.effect) / size
            for i in inter.members(row.state):
                ax.plot([bottom[i][0], x], [0.12, level], lw=0.35 * thick, alpha=0.55, **style)
            ax.plot([x, roof[0]], [level, roof[1] - 0.12], lw=thick, alpha=0.8, **style)
            marker, sign = ("o", "∧") if row.type == "and" else ("h", "∨")
            face = COLOURS[row.type]
            ax.plot(x, level, marker, ms=21, mfc="white", mec=face, mew=2.5, zorder=3)
            ax.text(x, level + 0.02, sign, ha="center", va="center", size=10, zorder=4)
            plain = {"boxstyle": "square,pad=0.1", "fc": "white", "alpha": 0.75, "lw": 0}
            number = f"{row.effect:+.2f}"
            ax.text(x + 0.025 * width, level + 0.13, number, size=8.5, zorder=3.5, bbox=plain)
    box = {"boxstyle": "round,pad=0.3", "fc": "#EEEEEE", "ec": "#888888"}
    for i, label in enumerate(labels):
        turned = 0 if max(map(len, labels)) * inter.n < 90 else 30
        place = {"ha": "center" if not turned else "right", "va": "top", "rotation": turned}
        ax.text(*bottom[i], label, size=10, bbox=box, zorder=4, rotation_mode="anchor", **place)
    ax.text(*roof, target, ha="center", va="center", size=11, weight="bold", bbox=box, zorder=4)
    ax.set_yticks([*range(1, len(layers) + 1)], [f"order {m}" for m in layers])
    ax.set(xlim=(-0.2, width + 0.2), ylim=(-0.9, roof[1] + 0.4), xticks=[])
    ax.grid(False)
    sns.despine(ax=ax, left=True, bottom=True)
    return ax, table


def _apart(places: np.ndarray, low: float, high: float, gap: float) -> np.ndarray:
    """Move points in low..high apart to a gap, or what there is room for, in their order."""
    order = np.argsort(places, kind="stable")
    found = np.clip(places[order], low, high)
    gap = min(gap, (high - low) / max(1, len(found) - 1))
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + gap)
    found[-1] = min(found[-1], high)
    for i in range(len(found) - 2, -1, -1):
        found[i] = min(found[i], found[i + 1] - gap)
    moved = np.empty_like(found)
    moved[order] = found
    return moved


def plot_spectrum(
    total: Tensor,
    generalizable: Tensor | None = None,
    ax: Axes | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[Axes, pd.DataFrame]:
    """Draw salient strength by order, positive up and negative down, the generalizable part solid.

    Args:
        total: (..., 2, n + 1) of `order_spectrum`; averaged over samples.
        generalizable: the same with the transfer; nothing is shaded without.
        limits: of the vertical axis, to compare figures.

    Returns:
        Axes, and a table: order, sign, total with its 95 % interval low95 to high95 (drawn as
        whiskers), generalizable (log odds, mean over samples).
    """
    ax = _axes(ax)
    mean = total.reshape(-1, *total.shape[-2:]).mean(0).cpu().numpy()
    kept = np.zeros_like(mean)
    if generalizable is not None:
        kept = generalizable.reshape(-1, *total.shape[-2:]).mean(0).cpu().numpy()
    orders = np.arange(1, mean.shape[1])
    rest = {"color": COLOURS["all"], "hatch": "///", "edgecolor": "white", "width": 0.8}
    for sign in (0, 1):
        only = "non-generalizable" if generalizable is not None else "salient"
        label = only if sign == 0 else None
        ax.bar(orders, mean[sign, 1:], label=label, **rest)
        if generalizable is not None:
            label = "generalizable" if sign == 0 else None
            colour = COLOURS["generalizable"]
            ax.bar(orders, kept[sign, 1:], color=colour, width=0.8, label=label)
    samples = total.reshape(-1, 2, total.shape[-1])[..., 1:].cpu()
    bounds = np.array([[interval(samples[:, s, m]) for m in range(len(orders))] for s in (0, 1)])
    if len(samples) > 1:
        for sign in (0, 1):
            some = bounds[sign, :, 0] != 0
            errors = np.abs(bounds[sign, :, 1:].T - bounds[sign, :, 0])[:, some]
            ax.errorbar(orders[some], bounds[sign, some, 0], errors, **WHISKERS)
    ax.axhline(0, color="black", lw=0.8)
    ax.set(xlabel="order (number of variables)", ylabel="strength (log odds)", xticks=orders)
    if limits is not None:
        ax.set_ylim(limits)
    ax.legend(loc="best")
    table = pd.DataFrame(
        {
            "order": np.tile(orders, 2),
            "sign": np.repeat(["positive", "negative"], len(orders)),
            "total": mean[:, 1:].ravel(),
            "low95": bounds[..., 1].ravel(),
            "high95": bounds[..., 2].ravel(),
            "generalizable": kept[:, 1:].ravel(),
        }
    )
    return ax, table


def plot_power(
    values: Mapping[str, Tensor], chance: Mapping[str, Tensor], ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw averages of H with 95 % intervals, each beside its chance level.

    Args:
        values: label to per-sample H.
        chance: the same labels to per-sample H of randomly relabelled baselines.

    Returns:
        Axes, and a table: label, power, low95, high95, chance, samples (with such interactions).
    """
    ax = _axes(ax)
    rows = []
    for label, power in values.items():
        mean, low, high = interval(power)
        level = interval(chance[label]).mean
        rows.append((label, mean, low, high, level, int((~power.isnan()).sum())))
    table = pd.DataFrame(rows, columns=["label", "power", "low95", "high95", "chance", "samples"])
    place = np.arange(len(table))
    ax.bar(place, table["power"], color=COLOURS["generalizable"], width=0.55, label="H")
    errors = np.abs(table[["low95", "high95"]].to_numpy().T - table["power"].to_numpy())
    ax.errorbar(place, table["power"], errors, **WHISKERS)
    dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance level"}
    ax.hlines(table["chance"], place - 0.38, place + 0.38, **dashes)
    for x, row in zip(place, table.itertuples(), strict=True):
        if np.isnan(row.power):
            ax.text(x, 0.02, "no such\ninteractions", ha="center", size=9)
    ax.set_xticks(place, table["label"])
    ax.set(ylabel="generalization power H", ylim=(0, 1))
    ax.legend()
    return ax, table


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
    axes[2].set(ylabel="loss (nats)", title="Losses")
    axes[2].set_xlabel("optimizer steps (checkpoints, evenly spaced)")
    steps = table["step"].tolist()
    axes[2].set_xticks(x, [str(s) for s in steps], rotation=45)
    for ax in axes:
        _mark_phases(ax, phases, steps)
        ax.legend(loc="best")
    return figure, table


def _mark_phases(ax: Axes, phases: Phases, steps: Sequence[int]) -> None:
    for name in ("t1", "t2"):
        step = getattr(phases, name)
        if step is None:
            continue
        ax.axvline(steps.index(step), color="black", lw=1.2, ls=(0, (4, 2)))
        place = (steps.index(step), 1)
        text = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
        ax.annotate(f"$t_{name[1]}$", place, (4, -3), **text)


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
    _mark_phases(ax, phases, steps)
    ax.legend(loc="best")
    return ax, gains[["step", "generalizable", "non_generalizable"]].reset_index(drop=True)


def plot_transfer(
    target: Interactions, baseline: Interactions, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw each salient interaction of a network against the same one in its baseline (Eq. 5).

    Args:
        target: interactions of several samples.
        baseline: those of the baseline network.

    Returns:
        Axes, and a table: sample, type, order, target and baseline (effects, each divided by
        the network's strongest on that sample), transfers.
    """
    ax = plt.subplots(figsize=(5.6, 5.2))[1] if ax is None else ax
    share = torch.stack(transfer(target, baseline), -2)
    salient = torch.stack(target.salient(), -2)
    sample, kind, index = salient.nonzero(as_tuple=True)
    scaled = [i.effects / i.effects.abs().amax((-2, -1), keepdim=True) for i in (target, baseline)]
    table = pd.DataFrame(
        {
            "sample": sample,
            "type": np.array(["and", "or"])[kind.numpy()],
            "order": target.order[index],
            "target": scaled[0][salient],
            "baseline": scaled[1][salient],
            "transfers": share[salient] > 0,
        }
    )
    ax.axhspan(-SALIENT_SHARE, SALIENT_SHARE, color=COLOURS["all"], alpha=0.3, lw=0)
    for ok, marker in ((True, "o"), (False, "x")):
        rows, name = table[table["transfers"] == ok], "transfers" if ok else "does not transfer"
        colour = COLOURS["generalizable" if ok else "non-generalizable"]
        style = {"ls": "none", "ms": 4, "alpha": 0.6, "color": colour}
        ax.plot(rows["target"], rows["baseline"], marker, label=f"{name} ({len(rows)})", **style)
    ticks = [-1, -0.3, -0.1, 0, 0.1, 0.3, 1]
    for axis in ("x", "y"):
        getattr(ax, f"set_{axis}scale")("symlog", linthresh=SALIENT_SHARE)
        getattr(ax, f"set_{axis}ticks")(ticks, [f"{t:g}" for t in ticks])
        getattr(ax, f"set_{axis}lim")(-1.3, 1.3)
    ax.minorticks_off()
    ax.set(xlabel="effect in the target / strongest", ylabel="effect in the baseline / strongest")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, markerscale=1.5)
    return ax, table


def plot_sensitivity(
    table: pd.DataFrame, xlabel: str, default: float | None = None, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw averages of H, and chance levels, against a setting of the method.

    Args:
        table: columns setting (>= 0), label, power, low95, high95, chance. A setting of 0 has no
            place on the logarithmic axis; it stands left of the others.
        xlabel: what the setting is.
        default: its usual value, marked.
    """
    ax = _axes(ax)
    settings = np.sort(table["setting"].unique())
    left = settings[settings > 0].min(initial=1.0) / 2
    for i, (label, rows) in enumerate(table.groupby("label", sort=False)):
        colour, marker = sns.color_palette("colorblind")[i], "os^D"[i % 4]
        x = rows["setting"].where(rows["setting"] > 0, left)
        style = {"color": colour, "marker": marker}
        ax.plot(x, rows["power"], ms=5, label=label, **style)
        ax.fill_between(x, rows["low95"], rows["high95"], color=colour, alpha=0.15, lw=0)
        ax.plot(x, rows["chance"], ":", ms=3, label=f"chance, {label}", **style)
    if default is not None:
        ax.axvline(default or left, color="black", lw=1, ls=(0, (4, 2)))
    ax.set(xscale="log", xlabel=xlabel, ylabel="generalization power H", ylim=(0, 1))
    ax.set_xticks(np.where(settings > 0, settings, left), [f"{x:g}" for x in settings])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, table


def plot_removal(
    table: pd.DataFrame, ax: Axes | None = None, top: float | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw training loss, test loss and their gap before and after removal (Fig. 4).

    Args:
        table: of `removal_table`.
        top: upper end of the axis, to compare figures.
    """
    ax = _axes(ax)
    groups = ["training", "test", "gap"]
    kinds = (
        ("nothing", COLOURS["network"], "", "nothing removed"),
        ("non-generalizable", COLOURS["non-generalizable"], "///", "non-generalizable removed"),
        ("random", COLOURS["all"], "...", "as much at random removed (control)"),
    )
    for i, (name, colour, hatch, label) in enumerate(kinds):
        rows = table[table["removed"] == name].set_index("group").loc[groups]
        place = np.arange(3) + 0.27 * (i - 1)
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "width": 0.25}
        ax.bar(place, rows["loss"], label=label, **style)
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["loss"].to_numpy())
        ax.errorbar(place, rows["loss"], errors, **{**WHISKERS, "color": "#777777"})
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xticks(range(3), ["training loss", "test loss", "gap"])
    ax.set_ylabel("loss (nats)")
    if top is not None:
        ax.set_ylim(min(0, table["low95"].min()) * 1.05, top)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return ax, table


def slider(figures: Mapping[str, Figure | Axes], label: str = "") -> Any:
    """Return figures under a slider that also works on a page without a kernel.

    Args:
        figures: caption to figure or Axes, in the slider's order; they are closed.
        label: of the slider.
    """
    import ipywidgets as widgets

    pages = []
    for item in figures.values():
        figure = item.figure if isinstance(item, Axes) else item
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        svg = text.getvalue()
        pages.append(widgets.HTML(svg[svg.index("<svg") :]))
    stack = widgets.Stack(pages, selected_index=0)
    captions = [(str(caption), i) for i, caption in enumerate(figures)]
    chooser = widgets.SelectionSlider(
        options=captions,
        description=label,
        style={"description_width": "initial"},
        layout=widgets.Layout(width="90%"),
    )
    # A link in the browser, not in Python, is what survives on a static page.
    widgets.jslink((chooser, "index"), (stack, "selected_index"))
    return widgets.VBox([chooser, stack])


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
            ax.plot(x, table[name], line, ms=5, label=label, **style)
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
    axes[0].set_yticks(range(len(draws)), list(draws))
    return figure, found


def plot_several_removals(
    tables: Mapping[str, pd.DataFrame], closed: pd.DataFrame
) -> tuple[Figure, pd.DataFrame]:
    """Draw the losses of several studies before and after removal, and the share of gap closed.

    Args:
        tables: label to a table of `removal_table`.
        closed: columns label, removed ("non-generalizable" or "random"), closed, low95, high95;
            missing where there is no gap to close.

    Returns:
        Figure, and all tables in one, with a column label.
    """
    shape = {"figsize": (9.6, 0.9 + 2.6 * len(tables)), "width_ratios": (3, 1.3)}
    figure, axes = plt.subplots(len(tables), 2, squeeze=False, **shape)
    kinds = {"non-generalizable": ("non-generalizable", "s"), "random": ("chance", "o")}
    for (label, table), (left, right) in zip(tables.items(), axes, strict=True):
        plot_removal(table, ax=left)
        left.get_legend().remove()
        left.set_title(label, size=11)
        mine = closed[closed["label"] == label].set_index("removed")
        for x, (name, (colour, marker)) in enumerate(kinds.items()):
            row = mine.loc[name]
            if np.isnan(row["closed"]):
                continue
            errors = np.abs([[row["low95"] - row["closed"]], [row["high95"] - row["closed"]]])
            style = {"color": COLOURS[colour], "marker": marker, "ms": 7, "capsize": 4}
            right.errorbar([x], [row["closed"]], errors, **style)
        if mine["closed"].isna().all():
            middle = {"transform": right.transAxes, "ha": "center", "va": "center"}
            right.text(0.5, 0.75, "no clear gap\nto close", size=10, **middle)
        for level, line in ((0, "-"), (1, "--")):
            right.axhline(level, color="black", lw=0.9, ls=line)
        right.set_xticks([0, 1], ["non-\ngeneralizable", "random\n(control)"], size=10)
        right.set(xlim=(-0.6, 1.6), ylabel="share of gap closed")
        low, high = right.get_ylim()
        right.set_ylim(min(low, -0.1), max(high, 1.1))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    rows = [table.assign(label=label) for label, table in tables.items()]
    return figure, pd.concat(rows, ignore_index=True)


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
    rows, bound = [], -float(np.log(classes - 1))
    for (name, (before, after)), colour, marker in zip(
        outputs.items(), ("train", "test"), "ox", strict=True
    ):
        shape = {"color": COLOURS[colour], "marker": marker, "ls": "none", "ms": 6, "mew": 1.8}
        ax.plot(before.cpu(), after.cpu(), label=f"{name} samples", **shape)
        rows.append(pd.DataFrame({"group": name, "before": before.cpu(), "after": after.cpu()}))
    ax.axline((0, 0), slope=1, color="black", lw=0.9, ls=":", label="unchanged")
    ax.axhspan(bound, 0, color=COLOURS["all"], alpha=0.35, lw=0)
    ax.axvspan(bound, 0, color=COLOURS["all"], alpha=0.35, lw=0)
    ax.axhline(0, color="black", lw=0.8)
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="output v (log odds of the true class)", ylabel="output after the removal")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, pd.concat(rows, ignore_index=True)


def _panels(count: int, columns: int, height: float) -> tuple[Figure, np.ndarray]:
    size = (4.3 * columns, height * count)
    return plt.subplots(count, columns, figsize=size, squeeze=False)


def plot_order_tail(
    tails: Mapping[str, Mapping[str, Tensor]], limit: float = 0.01
) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of strength at orders above M, for every M (App. B, Condition 1).

    Args:
        tails: title of a panel to label to per-sample shares of `conditions.strength_above`.
        limit: a share to mark.

    Returns:
        Figure, and a table: panel, label, above, share, low95, high95 (means over samples).
    """
    figure, axes = _panels(-(-len(tails) // 2), min(2, len(tails)), 3.5)
    known = {"AND": ("and", "-", "o"), "OR": ("or", "-", "s"), "no split": ("network", "--", "^")}
    floor, rows = 1e-4, []
    for ax, (title, lines) in zip(axes.flat, tails.items(), strict=False):
        for label, share in lines.items():
            colour, style, marker = known.get(label, ("chance", ":", "D"))
            found = np.array([interval(share[:, m]) for m in range(share.shape[1])])
            above = np.arange(len(found))
            look = {"color": COLOURS[colour], "marker": marker, "ms": 4, "label": label}
            ax.plot(above, np.maximum(found[:, 0], floor / 9), style, **look)
            low, high = np.maximum(found[:, 1:].T, floor / 9)
            ax.fill_between(above, low, high, color=COLOURS[colour], alpha=0.2, lw=0)
            columns = {"share": found[:, 0], "low95": found[:, 1], "high95": found[:, 2]}
            rows.append(pd.DataFrame({"panel": title, "label": label, "above": above, **columns}))
        ax.axhline(limit, color="black", lw=1, ls=(0, (4, 2)))
        ax.annotate(f"{limit:.0%}", (0, limit), xytext=(-2, 3), textcoords="offset points", size=9)
        ax.set(title=title, yscale="log", ylim=(floor, 1.5), xticks=above)
        ax.set(xlabel="M", ylabel="share above order M")
    for ax in axes.flat[len(tails) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(handles[0]))
    return figure, pd.concat(rows, ignore_index=True)


def plot_average_output(
    averages: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> tuple[Figure, pd.DataFrame]:
    """Draw u(m) of every sample, and how many samples fall at each step (App. B, Condition 2).

    Args:
        averages: title to u of several samples, of `conditions.average_output`.
        reference: the same titles to u of the outputs in random order.

    Returns:
        Figure, and a table: panel, m (the step from m to m + 1), falls with low95 and high95 (the
        share of samples), chance (that of the reference).
    """
    figure, axes = _panels(len(averages), 2, 3.3)
    rows = []
    for (left, right), (title, u) in zip(axes, averages.items(), strict=True):
        u = u.cpu().double()
        m = np.arange(u.shape[1])
        scaled = u / u.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        rising = (u.diff(dim=-1) >= 0).all(-1)
        kinds = ((rising, "generalizable", "-", "never falls"),
                 (~rising, "non-generalizable", "--", "falls somewhere"))  # fmt: skip
        for kind, colour, line, label in kinds:
            look = {"color": COLOURS[colour], "lw": 1, "alpha": 0.75}
            for i, curve in enumerate(scaled[kind]):
                name = f"{label} ({int(kind.sum())})" if i == 0 else None
                left.plot(m, curve, line, label=name, **look)
        low, high = torch.quantile(scaled, torch.tensor([0.1, 0.9], dtype=u.dtype), dim=0)
        left.fill_between(m, low, high, color=COLOURS["all"], alpha=0.35, lw=0, zorder=0)
        left.axhline(0, color="black", lw=0.8)
        left.set(xlabel="m, variables present", ylabel="u(m) / largest |u|", xticks=m[::2])
        left.set(title=title, ylim=(-1.08, 1.08))
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
        left.legend(fontsize=9, columnspacing=1, **below)
        falls = u.diff(dim=-1) < 0
        found = np.array([interval(falls[:, k].double()) for k in m[:-1]])
        luck = (reference[title].diff(dim=-1) < 0).double().mean(0).numpy()
        style = {"color": COLOURS["non-generalizable"], "hatch": "///", "edgecolor": "white"}
        right.bar(m[:-1] + 0.5, found[:, 0], width=0.8, label="share that falls", **style)
        errors = np.abs(found[:, 1:].T - found[:, 0])
        right.errorbar(m[:-1] + 0.5, found[:, 0], errors, **WHISKERS)
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2}
        right.hlines(luck, m[:-1] + 0.1, m[:-1] + 0.9, label="outputs shuffled", **dashes)
        right.set(xlabel="step from m to m + 1", ylabel="samples", ylim=(0, 1), title=title)
        right.set_xticks(m[:-1] + 0.5, m[:-1])
        right.legend(loc="upper right", fontsize=9)
        columns = {"falls": found[:, 0], "low95": found[:, 1], "high95": found[:, 2]}
        rows.append(pd.DataFrame({"panel": title, "m": m[:-1], **columns, "chance": luck}))
    return figure, pd.concat(rows, ignore_index=True)


def plot_exponents(
    averages: Mapping[str, Tensor],
    exponents: Mapping[str, Tensor],
    expected: tuple[float, float] = (0.9, 1.2),
) -> tuple[Figure, pd.DataFrame]:
    """Draw u(m) in logarithmic scales, and the smallest p of each sample (App. B, Condition 3).

    Args:
        averages: title to u of several samples, of `conditions.average_output`.
        exponents: the same titles to p, of `conditions.smallest_exponent`.
        expected: range of p to mark.

    Returns:
        Figure, and a table: panel, sample, p (missing where there is none), rises (whether
        u(n) > 0).
    """
    figure, axes = _panels(len(averages), 2, 3.3)
    rows = []
    top = 1.15 * max([2.0, *(float(p.nan_to_num(0).max()) for p in exponents.values())])
    for (left, right), (title, u) in zip(axes, averages.items(), strict=True):
        u, p = u.cpu().double(), exponents[title].cpu().double()
        n, m = u.shape[1] - 1, np.arange(1, u.shape[1])
        up = u[:, -1] > 0
        for curve in (u[up] / u[up, -1:])[:, 1:].numpy():
            look = {"color": COLOURS["network"], "lw": 0.9, "alpha": 0.5}
            left.plot(m / n, np.where(curve > 0, curve, np.nan), **look)
        bounds = [(m / n) ** e for e in expected]
        left.fill_between(m / n, *bounds, color=COLOURS["and"], alpha=0.45, lw=0, zorder=3)
        left.set(xscale="log", yscale="log", ylim=(0.02, 3), title=title)
        left.set_xticks(m / n, [f"{k}/{n}" if k in (1, 2, 3, 5, n) else "" for k in m])
        left.minorticks_off()
        left.set(xlabel="m / n", ylabel="u(m) / u(n)")
        right.axhspan(*expected, color=COLOURS["and"], alpha=0.45, lw=0, label="paper's range")
        has = p > 0
        groups = ((0, up & has, "o", "generalizable"), (1, ~up & has, "s", "all"))
        for x, group, marker, colour in groups:
            place = x + np.linspace(-0.25, 0.25, max(int(group.sum()), 2))[: int(group.sum())]
            look = {"color": COLOURS[colour], "mec": "black", "mew": 0.5, "ms": 6, "ls": "none"}
            right.plot(place, p[group].sort().values, marker, **look)
        labels = []
        for name, side in (("output rises", up), ("output falls", ~up)):
            none, any_ = int((side & p.isnan()).sum()), int((side & (p == 0)).sum())
            labels.append(f"{name} ({int(side.sum())})\nno p: {none}\nany small p: {any_}")
        right.set_xticks([0, 1], labels)
        right.set(xlim=(-0.5, 1.5), ylim=(0, top), ylabel="smallest p", title=title)
        right.legend(loc="upper right", fontsize=9)
        frame = {"panel": title, "sample": range(len(p)), "p": p.numpy(), "rises": up.numpy()}
        rows.append(pd.DataFrame(frame))
    return figure, pd.concat(rows, ignore_index=True)


def plot_one_average(v: Tensor, title: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draw what u(m) of one sample is a mean of, and its steepest rise in logarithmic scales.

    Args:
        v: (2**n,) outputs on all masked states.
        title: of the figure.

    Returns:
        Figure, and a table: m, u, lowest, highest (of v[S] - v[0] over the states of that size).
    """
    figure, ((left, right),) = _panels(1, 2, 3.3)
    v = v.cpu().double()
    n = (len(v) - 1).bit_length()
    size = np.array([s.bit_count() for s in range(len(v))])
    gain = (v - v[0]).numpy()
    by_size = [gain[size == m] for m in range(n + 1)]
    u, m = np.array([g.mean() for g in by_size]), np.arange(n + 1)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(v))
    dots = {"color": COLOURS["all"], "ms": 2, "rasterized": True}
    left.plot(size + jitter, gain, ".", **dots)
    left.plot(m, u, "-o", color=COLOURS["network"], ms=4, label="u(m), their mean")
    down = np.diff(u) < 0
    for k in np.flatnonzero(down):
        label = "falls" if k == np.flatnonzero(down)[0] else None
        look = {"color": COLOURS["non-generalizable"], "lw": 3, "ls": (0, (2, 1))}
        left.plot(m[k : k + 2], u[k : k + 2], label=label, **look)
    left.axhline(0, color="black", lw=0.8)
    left.set(xlabel="m, variables present", ylabel="v[S] - v[0] (log odds)", xticks=m)
    left.legend(loc="best", fontsize=9)
    above = u[1:] > 0
    if u[-1] > 0:
        right.set(xscale="log", yscale="log", xlim=(0.9 / n, 1.1), ylim=(0.02, 2))
        right.set_xticks(m[1:] / n, [f"{k}/{n}" if k in (1, 2, 3, 5, n) else "" for k in m[1:]])
        ticks = [0.03, 0.1, 0.3, 1]
        right.set_yticks(ticks, [f"{t:g}" for t in ticks])
        right.minorticks_off()
        right.set(xlabel="m / n", ylabel="u(m) / u(n)")
        share = np.where(above, u[1:] / u[-1], np.nan)
        right.plot(m[1:] / n, share, "-o", ms=4, color=COLOURS["network"])
        if above.all():
            slope = np.diff(np.log(share)) / np.diff(np.log(m[1:]))
            k = int(slope.argmax())
            look = {"color": COLOURS["and"], "lw": 4, "alpha": 0.6}
            label = f"steepest: p = {max(slope[k], 0):.2f}"
            right.plot(m[1 + k : 3 + k] / n, share[k : k + 2], label=label, **look)
            right.legend(loc="lower right", fontsize=9)
        else:
            text = "u(m) is not positive for every m:\nno p"
            right.text(0.03, 0.95, text, transform=right.transAxes, va="top", size=10)
    else:
        text = "u(n) is not positive:\nnothing to bound from below"
        right.text(0.5, 0.5, text, transform=right.transAxes, ha="center", va="center", size=10)
        right.set_axis_off()
    figure.suptitle(title, fontsize=12, weight="bold")
    lowest, highest = [g.min() for g in by_size], [g.max() for g in by_size]
    return figure, pd.DataFrame({"m": m, "u": u, "lowest": lowest, "highest": highest})


def plot_growth(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw how many interactions are salient against the number of variables (Section 2.1).

    Args:
        table: columns setting, n, count, low95, high95.

    Returns:
        Figure, and the table.
    """
    figure, ax = plt.subplots()
    sizes = np.array(sorted(table["n"].unique()))
    for i, (label, rows) in enumerate(table.groupby("setting", sort=False)):
        colour = sns.color_palette("colorblind")[i]
        x = rows["n"] * (1 + 0.006 * i)
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["count"].to_numpy())
        look = {"color": colour, "marker": "os^D"[i % 4], "ls": ["-", "--", "-.", ":"][i % 4]}
        ax.errorbar(x, rows["count"], errors, label=label, ms=6, capsize=3, lw=1.5, **look)
    ax.plot(sizes, 2.0 ** (sizes + 1), ":", marker="x", color=COLOURS["chance"], label="$2^{n+1}$")
    ax.set(xscale="log", yscale="log", xlabel="n, number of variables", ylabel="interactions")
    ax.set_xticks(sizes, [str(k) for k in sizes])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return figure, table


def plot_conditions(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw measures of the three conditions along the training (App. B).

    Args:
        table: columns setting, checkpoint, measure, value, low95, high95.

    Returns:
        Figure, and the table.
    """
    measures = list(dict.fromkeys(table["measure"]))
    figure, axes = plt.subplots(1, len(measures), figsize=(3.4 * len(measures), 3.4))
    for ax, measure in zip(axes, measures, strict=True):
        part = table[table["measure"] == measure]
        for i, (label, rows) in enumerate(part.groupby("setting", sort=False)):
            x = np.arange(len(rows)) + 0.06 * i
            errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["value"].to_numpy())
            look = {"marker": "os^D"[i % 4], "ls": ["-", "--", "-.", ":"][i % 4], "ms": 6}
            look |= {"color": sns.color_palette("colorblind")[i], "capsize": 3, "lw": 1.5}
            ax.errorbar(x, rows["value"], errors, label=label, **look)
        ax.set_xticks(range(len(rows)), rows["checkpoint"])
        ax.set(title=measure, ylim=(0, None), xlim=(-0.3, len(rows) - 0.6))
        ax.title.set_fontsize(10)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure, table


def _rows(count: int, columns: int, width: float, height: float, **shape: Any) -> tuple:
    """Return a figure with one row of panels a study."""
    size = (width, 0.7 + height * count)
    figure, axes = plt.subplots(count, columns, figsize=size, squeeze=False, **shape)
    figure.get_layout_engine().set(h_pad=0.08)
    return figure, axes


def _legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """Draw one legend for the entries of several panels."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*pairs, strict=True), loc="outside lower center", ncols=columns)


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
        ax.set(title=label, xlabel="order (number of variables)", xticks=orders)
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
    figure, axes = _rows(len(labels), 2, 9.6, 3.1, sharex=True)
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
        left.set(title=label, ylabel="H", ylim=(0, 1))
        right.set(title=label, ylabel="H minus chance", ylim=(min(0, right.get_ylim()[0]), None))
        right.axhline(0, color="black", lw=0.8)
    for ax in axes[-1]:
        ax.set(xlabel="number k of baselines", xticks=sorted(table["baselines"].unique()))
    _legend_below(figure, axes[0], 2)
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
        ax.set(title=label, xlabel=xlabel)
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
    figure, axes = _rows(len(labels), 2, 9.6, 3.1)
    for (left, right), label in zip(axes, labels, strict=True):
        rows = table[table["label"] == label]
        left.bar(rows["hits"], rows["share"], color=COLOURS["generalizable"], label="observed")
        errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["share"].to_numpy())
        left.errorbar(rows["hits"], rows["share"], errors, **WHISKERS)
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2, "label": "chance level"}
        left.hlines(rows["chance"], rows["hits"] - 0.42, rows["hits"] + 0.42, **dashes)
        left.set(title=label, ylabel="share of salient strength", xticks=rows["hits"])
        for i, (rule, part) in enumerate(
            rules[rules["label"] == label].groupby("rule", sort=False)
        ):
            x = part["baselines"] + 0.07 * (i - 1)
            errors = np.abs(part[["low95", "high95"]].to_numpy().T - part["lift"].to_numpy())
            look = {"color": sns.color_palette("colorblind")[i], "capsize": 3, "ms": 6}
            look |= {"marker": "os^"[i], "ls": ["-", "--", "-."][i]}
            right.errorbar(x, part["lift"], errors, label=f"transfer to {rule}", **look)
        right.axhline(0, color="black", lw=0.8)
        right.set(title=label, ylabel="H minus chance", xticks=sorted(set(part["baselines"])))
    axes[-1, 0].set_xlabel("how many baselines share the interaction")
    axes[-1, 1].set_xlabel("number k of baselines")
    _legend_below(figure, axes[0], 3)
    return figure, table


def plot_similarity(
    pairs: Mapping[str, tuple[Interactions, Interactions]],
    tau: float = SALIENT_SHARE,
    relative_to: str = "max",
    lines: Sequence[float] = (0.5, 0.25),
) -> tuple[Figure, pd.DataFrame]:
    """Draw effects in a network and in its baseline with lines of equal similarity (Eq. 19, 20).

    Args:
        pairs: title of a panel to the interactions of target and baseline on several samples.
        tau, relative_to: saliency; see `Interactions.salient`.
        lines: similarities to draw lines for, besides 1.

    Returns:
        Figure, and a table: panel, sample, type, order, target and baseline (effects over the
        mean span of each network), similarity, transfers (the binary metric).
    """
    figure, axes = _panels(-(-len(pairs) // 2), min(2, len(pairs)), 4.3)
    rows, edge, drawn = [], 0.02, None
    for ax, (title, (target, baseline)) in zip(axes.flat, pairs.items(), strict=False):
        level = {"tau": tau, "relative_to": relative_to}
        salient = torch.stack(target.salient(**level), -2)
        alike = torch.stack(transfer(target, baseline, metric="similarity"), -2)[salient]
        binary = torch.stack(transfer(target, baseline, **level), -2)[salient] > 0
        sample, kind, index = salient.nonzero(as_tuple=True)
        x, y = (i.effects[salient] / i.span.mean() for i in (target, baseline))
        table = pd.DataFrame(
            {
                "panel": title,
                "sample": sample,
                "type": np.array(["and", "or"])[kind.numpy()],
                "order": target.order[index],
                "target": x,
                "baseline": y,
                "similarity": alike,
                "transfers": binary,
            }
        )
        for ok, marker in ((False, "X"), (True, "o")):
            some = table[table["transfers"] == ok]
            label = "transfers (binary)" if ok else "does not transfer"
            style = {"cmap": "viridis_r", "vmin": 0, "vmax": 1, "s": 22, "alpha": 0.8, "lw": 0}
            place = some["target"], some["baseline"]
            drawn = ax.scatter(*place, c=some["similarity"], marker=marker, label=label, **style)
        top = 1.3 * float(max(table["target"].abs().max(), table["baseline"].abs().max(), 0.1))
        ray = np.concatenate([[0], np.geomspace(edge / 20, 10 * top, 200)])
        for s, look in zip((1, *lines), ("-", "--", ":", "-."), strict=False):
            for sign in (-1, 1):
                for a, b in ((ray, s * ray), (s * ray, ray)):
                    ax.plot(sign * a, sign * b, look, color="black", lw=0.9, zorder=0)
            ax.plot([], [], look, color="black", lw=0.9, label=f"similarity {s:g}")
        ticks = [t for t in (-1, -0.1, 0, 0.1, 1) if abs(t) <= top]
        for axis in ("x", "y"):
            getattr(ax, f"set_{axis}scale")("symlog", linthresh=edge, linscale=0.6)
            getattr(ax, f"set_{axis}ticks")(ticks, [f"{t:g}" for t in ticks])
            getattr(ax, f"set_{axis}lim")(-top, top)
        ax.minorticks_off()
        ax.set(title=title, xlabel="effect in the target / mean span")
        ax.set_ylabel("effect in the baseline / mean span")
        rows.append(table)
    for ax in axes.flat[len(pairs) :]:
        ax.set_axis_off()
    figure.colorbar(drawn, ax=axes, label="similarity", shrink=0.7)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure, pd.concat(rows, ignore_index=True)


def plot_metric_spectra(
    totals: Mapping[str, Tensor], kept: Mapping[str, Mapping[str, Tensor]]
) -> tuple[Figure, pd.DataFrame]:
    """Draw order spectra side by side, generalizable by one metric and by others (Fig. 10).

    Args:
        totals: title to the spectrum of all salient interactions, of `order_spectrum`.
        kept: the same titles to label of a metric to the generalizable spectrum.

    Returns:
        Figure, and a table: panel, metric, and the columns of `plot_spectrum`.
    """
    metrics = list(next(iter(kept.values())))
    figure, axes = _panels(len(totals), len(metrics), 3.2)
    tables = []
    for line, (title, total) in zip(axes, totals.items(), strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            _, table = plot_spectrum(total, kept[title][metric], ax)
            ax.set_title(f"{title}: {metric}", size=11)
            ax.get_legend().remove()
            tables.append(table.assign(panel=title, metric=metric))
        bounds = np.array([ax.get_ylim() for ax in line])
        for ax in line:
            ax.set_ylim(bounds[:, 0].min(), bounds[:, 1].max())
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure, pd.concat(tables, ignore_index=True)


def plot_shapes(
    spectra: Mapping[str, Mapping[str, Tensor]], draws: int = 500
) -> tuple[Figure, pd.DataFrame]:
    """Draw how strength is shared out over orders, positive up and negative down, each adding to 1.

    Args:
        spectra: title of a panel to label to a spectrum (sample, 2, n + 1) of `order_spectrum`.
        draws: resamples of the samples for the 95 % bands.

    Returns:
        Figure, and a table: panel, label, sign, order, share, low95, high95.
    """
    figure, axes = _panels(-(-len(spectra) // 2), min(2, len(spectra)), 3.5)
    looks = (("generalizable", "-", "o"), ("and", "--", "s"), ("non-generalizable", ":", "X"))
    rows = []
    for ax, (title, lines) in zip(axes.flat, spectra.items(), strict=False):
        for (label, part), (colour, style, marker) in zip(lines.items(), looks, strict=True):
            part = part.abs().cpu().double()
            generator = torch.Generator().manual_seed(0)
            index = torch.randint(len(part), (draws, len(part)), generator=generator)
            sums = torch.cat([part.sum(0, keepdim=True), part[index].sum(1)])
            shares = sums / sums.sum((-2, -1), keepdim=True)
            spread = torch.tensor([0.025, 0.975], dtype=part.dtype)
            low, high = shares[1:].nanquantile(spread, 0)
            order = np.arange(1, part.shape[-1])
            for k, sign in enumerate((1, -1)):
                look = {"color": COLOURS[colour], "marker": marker, "ms": 4}
                look["label"] = label if sign == 1 else None
                ax.plot(order, sign * shares[0, k, 1:], style, **look)
                bounds = sign * low[k, 1:], sign * high[k, 1:]
                ax.fill_between(order, *bounds, color=COLOURS[colour], alpha=0.15, lw=0)
                columns = {"share": shares[0, k, 1:], "low95": low[k, 1:], "high95": high[k, 1:]}
                about = {"panel": title, "label": label, "sign": ("positive", "negative")[k]}
                rows.append(pd.DataFrame({**about, "order": order, **columns}))
        ax.axhline(0, color="black", lw=0.8)
        ax.set(title=title, xlabel="order (number of variables)", xticks=order)
        ax.set_ylabel("share of its strength")
    for ax in axes.flat[len(spectra) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]))
    return figure, pd.concat(rows, ignore_index=True)


def plot_metric_power(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H of groups of orders by several metrics, each with its interval and chance level.

    Args:
        table: columns panel, orders, metric, power, low95, high95, chance.
    """
    panels = list(dict.fromkeys(table["panel"]))
    metrics = list(dict.fromkeys(table["metric"]))
    figure, axes = _panels(-(-len(panels) // 2), min(2, len(panels)), 3.5)
    looks = (("generalizable", ""), ("and", "///"), ("or", "..."))
    width = 0.8 / len(metrics)
    for ax, panel in zip(axes.flat, panels, strict=False):
        for k, metric in enumerate(metrics):
            rows = table[(table["panel"] == panel) & (table["metric"] == metric)]
            place = np.arange(len(rows)) + width * (k - (len(metrics) - 1) / 2)
            style = {"color": COLOURS[looks[k][0]], "hatch": looks[k][1], "edgecolor": "white"}
            ax.bar(place, rows["power"], width=0.95 * width, label=metric, **style)
            errors = np.abs(rows[["low95", "high95"]].to_numpy().T - rows["power"].to_numpy())
            ax.errorbar(place, rows["power"], errors, **WHISKERS)
            dashes = {"colors": "black", "ls": (0, (2, 1)), "lw": 2}
            label = "chance level" if k == len(metrics) - 1 else None
            ends = place - 0.46 * width, place + 0.46 * width
            ax.hlines(rows["chance"], *ends, label=label, **dashes)
            if k == 0:
                for x in np.flatnonzero(rows["power"].isna()):
                    ax.text(x, 0.02, "none", ha="center", size=9)
        ax.set_xticks(range(len(rows)), rows["orders"], fontsize=9)
        ax.set(title=panel, ylabel="generalization power H", ylim=(0, 1))
        ax.set(xlabel="orders", xlim=(-0.6, len(rows) - 0.4))
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]))
    return figure, table


def plot_similarity_cuts(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H against the smallest similarity that counts, one panel a study.

    Args:
        table: column panel, and those of `plot_sensitivity`.
    """
    panels = list(dict.fromkeys(table["panel"]))
    figure, axes = _panels(-(-len(panels) // 2), min(2, len(panels)), 3.5)
    for ax, panel in zip(axes.flat, panels, strict=False):
        xlabel = "smallest similarity s that counts"
        plot_sensitivity(table[table["panel"] == panel], xlabel, ax=ax)
        ax.set_title(panel)
        ax.get_legend().remove()
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    handles = axes.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure, table


def plot_baseline_values(
    table: pd.DataFrame, neutral: float | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw what changes when masked patches are replaced by something else, sample by sample.

    Args:
        table: columns baseline, sample, measure, value, chance (missing where there is none).
        neutral: value of the first measure to mark.

    Returns:
        Figure, and a table: measure, baseline, mean, low95, high95, chance.
    """
    names, measures = (list(dict.fromkeys(table[k])) for k in ("baseline", "measure"))
    figure, axes = plt.subplots(1, len(measures), figsize=(3.1 * len(measures), 3.2))
    rows = []
    for ax, measure in zip(axes, measures, strict=True):
        wide = table[table["measure"] == measure].pivot(
            index="sample", columns="baseline", values="value"
        )[names]
        look = {"color": COLOURS["all"], "marker": "o", "ms": 5, "lw": 1}
        for values in wide.to_numpy():
            ax.plot(range(len(names)), values, **look)
        luck = table[table["measure"] == measure].groupby("baseline")["chance"].mean()[names]
        dashes = {"colors": COLOURS["chance"], "ls": (0, (2, 1)), "lw": 2}
        for x, name in enumerate(names):
            mean, low, high = interval(torch.tensor(wide[name].to_numpy()))
            errors = [[mean - low], [high - mean]]
            style = {"marker": "D", "ms": 7, "color": COLOURS["network"], "capsize": 5, "lw": 1.5}
            ax.errorbar([x + 0.12], [mean], errors, zorder=3, **style)
            if not np.isnan(luck[name]):
                label = "chance" if x == 1 else None
                ax.hlines(luck[name], x - 0.3, x + 0.3, label=label, **dashes)
            rows.append((measure, name, mean, low, high, luck[name]))
        if measure == measures[0] and neutral is not None:
            ax.axhline(neutral, color="black", lw=1, ls=":", label="undecided")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(loc="best", fontsize=9)
        ax.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
        ax.set(xlim=(-0.5, len(names) - 0.5))
        ax.set_title(measure, size=11)
    return figure, pd.DataFrame(
        rows, columns=["measure", "baseline", "mean", "low95", "high95", "chance"]
    )


def plot_face(
    table: pd.DataFrame, tau: float, top: int = 16, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw how far effects can move while the model stays as sparse as any.

    Args:
        table: columns label, low, high, centre, vertex (log odds).
        tau: saliency threshold to mark.
        top: rows, those with the largest possible effects.

    Returns:
        Axes, and the rows drawn.
    """
    size = table[["low", "high"]].abs().max(axis=1)
    shown = table.loc[size.sort_values(ascending=False, kind="stable").index].head(top)
    ax = plt.subplots(figsize=(7.2, 1.1 + 0.3 * len(shown)))[1] if ax is None else ax
    place = np.arange(len(shown))
    ax.axvspan(-tau, tau, color=COLOURS["all"], alpha=0.3, lw=0, label="not salient")
    look = {"colors": COLOURS["train"], "lw": 6, "label": "all sparsest models"}
    ax.hlines(place, shown["low"], shown["high"], **look)
    dots = {"ls": "none", "color": COLOURS["network"]}
    ax.plot(shown["centre"], place, "o", ms=6, label="centre, as sparsify", **dots)
    cross = {"ls": "none", "color": COLOURS["non-generalizable"], "mew": 2}
    ax.plot(shown["vertex"], place, "x", ms=8, label="a vertex", **cross)
    ax.axvline(0, color="black", lw=0.8)
    ax.set_yticks(place, shown["label"])
    ax.invert_yaxis()
    ax.set(xlabel="effect on the output (log odds)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=9, handlelength=1.5)
    return ax, shown.reset_index(drop=True)


def plot_low_high(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw H of groups of orders for several studies, each with its chance level (Fig. 2).

    Args:
        table: columns setting, orders, power, low95, high95, chance, samples (with such
            interactions), of (of how many).

    Returns:
        Figure, and the table.
    """
    groups, settings = (list(dict.fromkeys(table[k])) for k in ("orders", "setting"))
    height = 1.4 + 0.3 * len(groups) * len(settings)
    figure, ax = plt.subplots(figsize=(8.2, height))
    palette = sns.color_palette("colorblind")
    colours = {group: palette[i] for i, group in enumerate(groups)}
    step = 0.8 / len(groups)
    for y, setting in enumerate(settings):
        for i, group in enumerate(groups):
            row = table[(table["setting"] == setting) & (table["orders"] == group)].iloc[0]
            at = y - 0.4 + step * (i + 0.5)
            count = f"{row['samples']:.0f} of {row['of']:.0f}"
            ax.text(1.02, at, count, size=8.5, va="center", transform=ax.get_yaxis_transform())
            if np.isnan(row["power"]):
                ax.text(0.01, at, "no such interactions", size=8.5, va="center")
                continue
            errors = np.abs([[row["low95"] - row["power"]], [row["high95"] - row["power"]]])
            style = {"color": colours[group], "marker": "os^D"[i % 4], "ms": 7, "capsize": 3}
            ax.errorbar(row["power"], at, xerr=errors, lw=1.5, **style)
            mark = {"color": COLOURS["chance"], "marker": "|", "ms": 13, "mew": 2.5}
            ax.plot(row["chance"], at, ls="none", zorder=1, **mark)
    for i, group in enumerate(groups):
        ax.plot([], [], "os^D"[i % 4], color=colours[group], ms=7, label=group)
    ax.plot([], [], "|", color=COLOURS["chance"], ms=11, mew=2.5, label="chance level")
    for y in range(1, len(settings)):
        ax.axhline(y - 0.5, color=COLOURS["all"], lw=0.8)
    ax.set_yticks(range(len(settings)), [s.replace(" on ", "\non ") for s in settings])
    ax.set(xlabel="generalization power H", xlim=(-0.02, 1.02), ylim=(len(settings) - 0.5, -0.5))
    ax.grid(False, axis="y")
    ax.text(1.02, 1.01, "samples", size=8.5, transform=ax.transAxes)
    figure.legend(loc="outside lower center", ncols=len(groups) + 1)
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
        ax.set_title(title, size=11)
        if limits is not None:
            ax.set_ylim(limits)
    axes[0, 0].set_ylabel("strength (log odds)")
    _legend_below(figure, axes[0, :1], 3)
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
        ax.set(title=label, xlabel="Jaccard similarity", xlim=(-0.03, 1.03))
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    _legend_below(figure, axes[0, :1], 2)
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
        ax.set(title=label, xlabel="Jaccard similarity of the sets", **limits)
    axes[0, 0].set_ylabel("Jaccard similarity of the spectra")
    _legend_below(figure, axes[0, :1], 3)
    return figure, table


def plot_course(
    table: pd.DataFrame, ylabel: str, ax: Axes | None = None
) -> tuple[Axes, pd.DataFrame]:
    """Draw quantities over the checkpoints of a training, with 95 % bands where there are any.

    Args:
        table: columns step, label, mean, and perhaps low95 and high95; a label that begins with
            "chance" is dotted and grey.
        ylabel: what is measured, with its unit.
        ax: where to draw.
    """
    ax = _axes(ax)
    steps = sorted(table["step"].unique())
    looks = ("generalizable", "non-generalizable", "train", "test", "and", "or")
    lines = [label for label in table["label"].unique() if not label.startswith("chance")]
    for label, rows in table.groupby("label", sort=False):
        x = [steps.index(step) for step in rows["step"]]
        luck = label not in lines
        colour = COLOURS["chance" if luck else looks[lines.index(label) % 6]]
        style = ":" if luck else ("-", "--", "-.")[lines.index(label) % 3]
        marker = None if luck else "os^Dvp"[lines.index(label) % 6]
        ax.plot(x, rows["mean"], style, color=colour, marker=marker, ms=5, label=label)
        if "low95" in rows and not luck:
            ax.fill_between(x, rows["low95"], rows["high95"], color=colour, alpha=0.18, lw=0)
    ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
    ax.set(xlabel="optimizer steps (checkpoints, evenly spaced)", ylabel=ylabel)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax, table


def plot_changes(table: pd.DataFrame, ax: Axes | None = None) -> tuple[Axes, pd.DataFrame]:
    """Draw which interactions carry the change of v between two models, by kind and order.

    Args:
        table: of `interaction_changes`.
        ax: where to draw.

    Returns:
        Axes, and a table: kind, orders, change, low95, high95 (log odds, mean over samples); kind
        "all" is the whole change.
    """
    ax = plt.subplots(figsize=(7.6, 4))[1] if ax is None else ax
    table = table.assign(
        orders=pd.cut(table["order"], [-1, 0, 2, 5, 99], labels=["none", "1-2", "3-5", "6-10"])
    )
    kinds = [*table["kind"].unique(), "all"]
    looks = {"1-2": ("and", ""), "3-5": ("or", "///"), "6-10": ("test", "..."), "none": ("all", "")}
    rows = []
    for place, kind in enumerate(kinds):
        of_kind = table if kind == "all" else table[table["kind"] == kind]
        groups = [g for g in looks if (of_kind["orders"] == g).any()]
        for k, group in enumerate(groups if kind != "all" else ["whole"]):
            some = of_kind if group == "whole" else of_kind[of_kind["orders"] == group]
            mean, low, high = interval(torch.tensor(some.groupby("sample")["change"].sum().values))
            rows.append((kind, group, mean, low, high))
            colour, hatch = looks.get(group, ("network", ""))
            x = place if group in ("whole", "none") else place + 0.27 * (k - 1)
            width = 0.55 if group in ("whole", "none") else 0.26
            label = f"orders {group}" if place == 0 else None
            style = {"color": COLOURS[colour], "hatch": hatch, "edgecolor": "white"}
            ax.bar(x, mean, width, label=label, **style)
            error = [[mean - low], [high - mean]]
            ax.errorbar(x, mean, error, **{**WHISKERS, "color": "#777777"})
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xticks(range(len(kinds)), kinds)
    ax.set_ylabel("change of v on the whole prompt (log odds)")
    ax.legend()
    return ax, pd.DataFrame(rows, columns=["kind", "orders", "change", "low95", "high95"])
