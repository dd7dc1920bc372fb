"""Figures of what transfers: what stands where, how tall it is, and in which colour."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex, to_rgba

from symgen import Interactions, figures, order_spectrum, sparsify, transfer
from symgen.figures import metric
from symgen.figures.style import COLOURS
from symgen.figures.transfer import _refuse_no_spectrum
from symgen.method.statistics import interval
from symgen.method.transfer import power_table

N, SAMPLES = 4, 6


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def networks():
    generator = torch.Generator().manual_seed(3)

    def made(and_, or_):
        and_[:, 0] = or_[:, 0] = 0.0
        zero = torch.zeros(SAMPLES, dtype=torch.float64)
        total = torch.full_like(zero, 2.0)
        return Interactions(and_, or_, zero, (and_.abs() + or_.abs()).sum(-1), zero, total)

    shape = (2, SAMPLES, 2**N)
    sparse = torch.rand(shape, generator=generator) < 0.3
    effects = torch.randn(shape, generator=generator, dtype=torch.float64) * sparse
    other = effects.where(torch.rand(shape, generator=generator) < 0.6, -0.5 * effects)
    return made(*effects), made(*other)


def bars(ax, colour):
    """Return (middle, bottom, height) of the bars of a colour that are drawn, from the left."""
    found = [p for p in ax.patches if to_hex(p.get_facecolor()).upper() == COLOURS[colour].upper()]
    return sorted((p.get_x() + p.get_width() / 2, p.get_y(), p.get_height()) for p in found)


def test_the_spectrum_has_a_bar_up_and_a_bar_down_at_every_order(networks):
    target, baseline = networks
    total, kept = order_spectrum(target), order_spectrum(target, transfer(target, baseline))
    ax, table = figures.plot_spectrum(total, kept)
    for colour, spectrum in (("all", total), ("generalizable", kept)):
        mean = spectrum.mean(0)[:, 1:]
        expected = sorted((m + 1, 0.0, float(mean[s, m])) for s in (0, 1) for m in range(N))
        assert np.allclose(bars(ax, colour), expected)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "3", "4"]
    assert table["total"].tolist() == pytest.approx(total.mean(0)[:, 1:].flatten().tolist())
    # Whiskers end where the intervals over samples end.
    low, high = interval(total[:, 0, 1])[1:]
    assert table.iloc[0][["low95", "high95"]].tolist() == pytest.approx([low, high])
    ends = {
        round(float(y), 9) for c in ax.collections for p in c.get_paths() for y in p.vertices[:, 1]
    }
    assert {round(low, 9), round(high, 9)} <= ends
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "non-generalizable",
        "generalizable",
    ]


def test_limits_of_a_spectrum_can_be_kept(networks):
    assert figures.plot_spectrum(order_spectrum(networks[0]), limits=(-7, 9))[0].get_ylim() == (
        -7,
        9,
    )


def test_power_bars_stand_beside_their_chance_levels(networks):
    table = power_table({"a": networks})
    ax, drawn = figures.plot_power(table)
    known = table["power"].notna()
    heights = [h for *_, h in bars(ax, "generalizable")]
    assert np.allclose(np.array(heights)[known], table["power"][known])
    levels = next(c for c in ax.collections if c.get_label() == "chance level")
    assert to_hex(levels.get_color()[0]) == COLOURS["chance"].lower()
    drawn_at = [segment[0][1] for segment in levels.get_segments() if len(segment)]
    assert np.allclose(drawn_at, table["chance"].dropna())
    assert [t.get_text() for t in ax.get_xticklabels()] == table["orders"].tolist()
    assert [t.get_text() for t in ax.texts] == ["no such\ninteractions"] * int((~known).sum())
    assert not known.all() and drawn is table
    # Of several settings, the names are those of the settings, and nothing in them is a formula.
    several = power_table({"one (x)": networks, "$two$": networks}, {"all": None})
    ax, _ = figures.plot_power(several)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["one\n(x)", r"\$two\$"]


def test_marks_of_transfer_are_shares_of_the_strongest_and_say_what_transfers(networks):
    target, baseline = networks
    ax, table = figures.plot_transfer(target, baseline)
    for line, ok in zip(ax.lines[:2], (True, False), strict=True):
        rows = table[table["transfers"] == ok]
        assert np.allclose(line.get_xdata(), rows["target"])
        assert np.allclose(line.get_ydata(), rows["baseline"])
        colour = COLOURS["generalizable" if ok else "non-generalizable"]
        assert to_rgba(line.get_color()) == to_rgba(colour)
        assert line.get_label().endswith(f"({len(rows)})")
    assert table["target"].abs().groupby(table["sample"]).max().tolist() == [1.0] * SAMPLES
    g = torch.stack(transfer(target, baseline), -2)
    assert table["transfers"].sum() == int((g * torch.stack(target.salient(), -2)).sum())


def test_a_setting_of_zero_stands_left_of_the_others(networks):
    cases = {tau: (*networks, {"tau": tau, "relative_to": "max"}) for tau in (0.0, 0.1, 0.4)}
    table = power_table(cases, {"all orders": None})
    ax, _ = figures.plot_sensitivity(table, "tau", default=0.0)
    line = ax.lines[0]
    assert line.get_xdata().tolist() == [0.05, 0.1, 0.4]
    assert np.allclose(line.get_ydata(), table["power"])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "0.1", "0.4"]
    assert ax.lines[-1].get_xdata() == [0.05, 0.05]  # the usual value, marked where 0 stands


def test_low_and_high_orders_with_a_group_that_no_sample_has(networks):
    table = power_table({"cnn on digits": networks, "$x$": networks})
    figure, drawn = figures.plot_low_high(table)
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["cnn\non digits", r"\$x\$"]
    texts = [t.get_text() for t in ax.texts]
    assert texts.count("no such interactions") == 2
    assert f"{SAMPLES} of {SAMPLES}" in texts and drawn is table
    means = [
        line.get_xdata()[0]
        for line in ax.lines
        if line.get_marker() == "o" and len(line.get_xdata())
    ]
    assert table["power"].iloc[0] == pytest.approx(means[0])


def test_similarity_puts_equal_effects_on_the_diagonal(networks):
    target, _ = networks
    figure, table = figures.plot_similarity({"same": (target, target)})
    assert np.allclose(table["target"], table["baseline"]) and (table["similarity"] == 1).all()
    assert table["transfers"].all()
    ax = figure.axes[0]
    assert np.allclose(ax.collections[-1].get_offsets(), table[["target", "baseline"]])
    assert ax.get_title() == "same"
    dead = target.relabelled(range(N))
    zero = Interactions(*(0 * getattr(dead, f) for f in (
        "and_", "or_", "bias", "objective", "gap", "full")))  # fmt: skip
    assert figures.plot_similarity({"none": (zero, target)})[1].empty


def test_marks_of_similarity_are_seen_on_white_and_many_are_a_picture(networks, monkeypatch):
    target, _ = networks
    panels = {"same": (target, target)}
    marks = figures.plot_similarity(panels)[0].axes[0].collections
    parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
             for x in marks[-1].get_cmap()(0.0)[:3]]  # fmt: skip
    contrast = 1.05 / (0.05 + np.dot(parts, [0.2126, 0.7152, 0.0722]))
    assert contrast > 2
    assert not any(some.get_rasterized() for some in marks)
    monkeypatch.setattr(metric, "MANY", 1)
    marks = figures.plot_similarity(panels)[0].axes[0].collections
    assert marks[-1].get_rasterized() and len(marks[-1].get_offsets()) > 1


def test_spectra_by_two_metrics_share_their_axis(networks):
    total = order_spectrum(networks[0])
    kept = {m: order_spectrum(networks[0], transfer(*networks, metric=m)) for m in (
        "binary", "similarity")}  # fmt: skip
    figure, table = figures.plot_metric_spectra({"$a$": total}, {"$a$": kept})
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert [ax.get_title() for ax in figure.axes] == [r"\$a\$: binary", r"\$a\$: similarity"]
    for ax, spectrum in zip((left, right), kept.values(), strict=True):
        heights = sorted(h for *_, h in bars(ax, "generalizable"))
        assert np.allclose(heights, sorted(spectrum.mean(0)[:, 1:].flatten()))
    assert table["metric"].value_counts().to_dict() == {"binary": 2 * N, "similarity": 2 * N}


def test_shapes_add_up_to_one(networks):
    total = order_spectrum(networks[0])
    kept = order_spectrum(networks[0], transfer(*networks))
    figure, table = figures.plot_shapes({"a": {"x": kept, "y": total, "z": total - kept}})
    sums = table.groupby("label")["share"].sum()
    assert np.allclose(sums, 1)
    up = table[(table["label"] == "x") & (table["sign"] == "positive")]
    line = figure.axes[0].lines[0]
    assert np.allclose(line.get_ydata(), up["share"])
    assert to_rgba(line.get_color()) == to_rgba(COLOURS["generalizable"])
    down = table[(table["label"] == "x") & (table["sign"] == "negative")]
    assert np.allclose(figure.axes[0].lines[1].get_ydata(), -down["share"])


def test_bars_of_two_metrics_stand_side_by_side(networks):
    cases = {("a", m): (*networks, {"metric": m}) for m in ("binary", "similarity")}
    table = power_table(cases, {"all": None, "1-2": (1, 2)})
    table[["panel", "metric"]] = table.pop("setting").tolist()
    figure, _ = figures.plot_metric_power(table)
    ax = figure.axes[0]
    middles = [m for colour in ("generalizable", "and") for m, *_ in bars(ax, colour)]
    assert np.allclose(middles, [-0.2, 0.8, 0.2, 1.2])
    heights = [h for colour in ("generalizable", "and") for *_, h in bars(ax, colour)]
    assert np.allclose(heights, table["power"])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["all", "1-2"]


def test_every_study_has_its_panel_of_cuts(networks):
    cases = {s: (*networks, {"metric": "similarity", "least": s}) for s in (0.1, 0.8)}
    table = power_table(cases, {"1-2": (1, 2)})
    rows = [table.assign(panel=name) for name in ("a", "b", "$c$")]
    figure, _ = figures.plot_similarity_cuts(pd.concat(rows))
    assert [ax.get_title() for ax in figure.axes if ax.axison] == ["a", "b", r"\$c\$"]
    assert [ax.axison for ax in figure.axes] == [True, True, True, False]


def test_interactions_in_place_of_their_spectrum_are_told():
    inter = sparsify(torch.tensor([0.0, 1.0, 1.0, 3.0]))
    with pytest.raises(ValueError, match=r"expected strength by order: order_spectrum\(inter\)"):
        _refuse_no_spectrum(inter, None)
