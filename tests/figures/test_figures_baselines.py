"""Figures of several baselines and of cross-validation draw the numbers that they are given."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import same_color, to_rgb

from symgen import figures
from symgen.figures import COLOURS

FORMULA = r"$\foo_$ a_b"
GREEN = COLOURS["generalizable"]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def spectrum(*heights):
    """Spectra of two samples whose means are heights (positive) and -heights / 2 by order."""
    up = torch.tensor([0.0, *heights]).double()
    both = torch.stack([up, -up / 2])
    return torch.stack([0.5 * both, 1.5 * both])


def bars(ax, label):
    """Left edges and heights of the bars with a label, and their colour."""
    [group] = [c for c in ax.containers if c.get_label() == label and hasattr(c, "patches")]
    return (
        [p.get_x() + p.get_width() / 2 for p in group],
        [p.get_height() for p in group],
        group[0].get_facecolor(),
    )


def whiskers(ax, number=0):
    """Lower and upper ends of the vertical error bars of a call."""
    calls = [c for c in ax.containers if hasattr(c, "has_yerr")]
    [lines] = calls[number].lines[2]
    return [tuple(x[:, 1 if calls[number].has_yerr else 0]) for x in lines.get_segments()]


def lightness(colour):
    return sum(to_rgb(colour))


def test_spectra_lie_on_each_other_from_the_widest_to_the_narrowest():
    many = spectrum(4.0, 2.0), [spectrum(1.0, 0.5), spectrum(2.0, 0.5), spectrum(3.0, 1.0)]
    few = spectrum(2.0, 2.0), [spectrum(1.0, 1.0)]
    figure, table = figures.plot_baseline_spectra({"few": few, "many": many})
    left, right = figure.axes
    names = ["all salient", "to any of 3", "to any of 2", "to 1 baseline"]
    drawn = [c.get_label() for c in right.containers if not c.get_label().startswith("_")]
    assert drawn == names
    assert bars(right, "to any of 2")[:2] == ([1, 2], [2.0, 0.5])
    assert bars(right, "all salient")[:2] == ([1, 2], [4.0, 2.0])
    lowest = [min(p.get_height() for p in c) for c in right.containers]
    assert lowest == [2.0, -2.0, 1.0, -1.5, 0.5, -1.0, 0.5, -0.5]
    colours = [bars(right, name)[2] for name in names]
    assert same_color(colours[0], COLOURS["all"]) and same_color(colours[3], GREEN)
    assert lightness(colours[1]) > lightness(colours[2]) > lightness(colours[3])
    # One baseline has one colour in all studies.
    assert same_color(bars(left, "to 1 baseline")[2], GREEN)
    assert {t.get_text() for t in figure.legends[0].get_texts()} == set(names)
    assert len(table) == 2 * 2 * (4 + 2)
    row = table[(table.part == "to any of 3") & (table.sign == "negative") & (table.order == 1)]
    assert row.strength.tolist() == [-1.5] and row.label.tolist() == ["many"]


def power_table():
    rows = []
    for label in ("a", "b"):
        for k in (1, 2):
            row = {"label": label, "baselines": k}
            for name, mean in (("power", 0.2 * k), ("chance", 0.1 * k), ("lift", 0.1 * k)):
                row |= {name: mean, f"{name}_low95": mean - 0.05, f"{name}_high95": mean + 0.1}
            rows.append(row)
    choices = [(x, k, h) for x in "ab" for k, h in ((1, 0.1), (1, 0.3), (2, 0.4))]
    return pd.DataFrame(rows), pd.DataFrame(choices, columns=["label", "baselines", "power"])


def test_power_stands_beside_its_chance_level_and_every_choice():
    figure, _ = figures.plot_baseline_power(*power_table())
    assert [ax.get_title() for ax in figure.axes] == ["a", "a", "b", "b"]
    left, right = figure.axes[2:]
    power, chance, dots = left.lines
    assert power.get_xydata().tolist() == [[1, 0.2], [2, 0.4]]
    assert chance.get_ydata().tolist() == [0.1, 0.2]
    assert dots.get_xydata().tolist() == [[1, 0.1], [1, 0.3], [2, 0.4]]
    assert same_color(power.get_color(), GREEN)
    assert same_color(chance.get_color(), COLOURS["chance"])
    band = left.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == pytest.approx((0.15, 0.5))
    assert right.lines[0].get_ydata().tolist() == [0.1, 0.2]
    assert left.get_ylim() == (0, 1) and right.get_ylim()[0] == 0
    assert left.get_xticks().tolist() == [1, 2]


def gains():
    columns = ["label", "step", "gain", "low95", "high95", "chance"]
    rows = [
        ("a", 1, 0.4, 0.3, 0.6, 0.2),
        ("a", 3, 0.1, 0.0, 0.3, 0.3),
        ("b", 2, 0.5, 0.5, 0.5, 0.1),
    ]
    return pd.DataFrame(rows, columns=columns)


def test_gains_stand_beside_those_by_chance():
    figure, _ = figures.plot_baseline_gains(gains(), "order")
    left, right = figure.axes
    assert bars(left, "gain, 95 %")[:2] == (pytest.approx([-0.2, 0.8]), [0.4, 0.1])
    assert bars(left, "by chance")[:2] == (pytest.approx([0.2, 1.2]), [0.2, 0.3])
    assert same_color(bars(left, "gain, 95 %")[2], GREEN)
    assert same_color(bars(left, "by chance")[2], COLOURS["chance"])
    assert np.ravel(whiskers(left)) == pytest.approx([0.3, 0.6, 0.0, 0.3])
    assert [t.get_text() for t in left.get_xticklabels()] == ["1", "3"]
    assert bars(right, "gain, 95 %")[1] == [0.5]
    assert left.get_xlabel() == right.get_xlabel() == "order"


def test_without_anything_to_compare_a_figure_says_so():
    figure, table = figures.plot_baseline_gains(gains()[:0], "order")
    assert [t.get_text() for t in figure.axes[0].texts] == ["nothing to compare"]
    assert table.empty


def hits():
    rows = [("a", c, 0.5, 0.4, 0.7, 0.3) for c in (0, 1)]
    rules = [
        ("a", rule, k, 0.1 * k, 0.05, 0.1 * k + 0.2)
        for rule in ("any", "a majority", "all")
        for k in (1, 2)
    ]
    return (
        pd.DataFrame(rows, columns=["label", "hits", "share", "low95", "high95", "chance"]),
        pd.DataFrame(rules, columns=["label", "rule", "baselines", "lift", "low95", "high95"]),
    )


def test_hits_have_dashes_at_chance_and_rules_their_own_lines():
    figure, _ = figures.plot_baseline_hits(*hits())
    left, right = figure.axes
    assert bars(left, "observed")[:2] == ([0, 1], [0.5, 0.5])
    assert np.ravel(whiskers(left)) == pytest.approx([0.4, 0.7] * 2)
    [dashes] = [c for c in left.collections if c.get_label() == "chance level"]
    assert [segment[0, 1] for segment in dashes.get_segments()] == [0.3, 0.3]
    drawn = {c.get_label(): c.lines[0] for c in right.containers}
    assert list(drawn) == [f"transfer to {x}" for x in ("any", "a majority", "all")]
    assert drawn["transfer to any"].get_xdata().tolist() == pytest.approx([0.93, 1.93])
    assert drawn["transfer to all"].get_ydata().tolist() == pytest.approx([0.1, 0.2])
    assert np.ravel(whiskers(right, 2)) == pytest.approx([0.05, 0.3, 0.05, 0.4])
    assert len({line.get_marker() for line in drawn.values()}) == 3
    assert same_color(drawn["transfer to any"].get_color(), GREEN)


def test_two_spectra_stand_side_by_side_within_the_whole():
    three = spectrum(4.0, 2.0), spectrum(2.0, 1.0), spectrum(1.0, 1.5)
    figure, table = figures.plot_two_spectra({"a": three, "one sample": [x[0] for x in three]})
    left, right = figure.axes
    assert bars(left, "all of A")[:2] == ([1, 2], [4.0, 2.0])
    assert bars(left, "generalizes to B")[:2] == (pytest.approx([0.79, 1.79]), [2.0, 1.0])
    assert bars(left, "generalizes to C")[:2] == (pytest.approx([1.21, 2.21]), [1.0, 1.5])
    assert bars(right, "generalizes to C")[1] == [0.5, 0.75]
    assert same_color(bars(left, "generalizes to B")[2], GREEN)
    hatched = [c.patches[0].get_hatch() for c in left.containers]
    assert hatched == [None] * 4 + ["///"] * 2
    down = table[(table.label == "a") & (table.sign == "negative")]
    assert down.strength.tolist() == [-2.0, -1.0, -1.0, -0.5, -0.5, -0.75]


def agreement():
    names = ["B and C", "chance"]
    rows = [
        ("a", name, average, value, value - 0.1, value + 0.2)
        for average, shift in (("each", 0.0), ("means", 0.3))
        for name, value in zip(names, (0.5 + shift, 0.2 + shift), strict=True)
    ]
    columns = ["label", "comparison", "average", "value", "low95", "high95"]
    return pd.DataFrame(rows, columns=columns)


def test_agreement_has_a_line_a_comparison_and_a_marker_an_average():
    figure, _ = figures.plot_agreement(agreement(), {"paper": 0.7})
    [ax] = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["B and C", "chance"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    each, means = ax.containers
    assert each.lines[0].get_xydata().ravel().tolist() == pytest.approx([0.5, -0.12, 0.2, 0.88])
    assert means.lines[0].get_xydata().ravel().tolist() == pytest.approx([0.8, 0.12, 0.5, 1.12])
    assert np.ravel(whiskers(ax)) == pytest.approx([0.4, 0.7, 0.1, 0.4])
    assert same_color(each.lines[0].get_color(), COLOURS["network"])
    [line] = [x for x in ax.lines if x.get_label() == "paper"]
    assert list(line.get_xdata()) == [0.7, 0.7]


def sets():
    rows = [
        ("a", name, i, 0.2 * i + shift, 0.3 * i + shift)
        for name, shift in (("B and C", 0.2), ("C shuffled", 0.1), ("C relabelled (chance)", 0.0))
        for i in range(3)
    ]
    return pd.DataFrame(rows, columns=["label", "comparison", "sample", "sets", "spectra"])


def test_sets_and_spectra_have_a_mark_a_sample_and_a_large_one_for_their_mean():
    figure, _ = figures.plot_spectra_and_sets(sets())
    [ax] = figure.axes
    _, small, large, *_, last = ax.lines
    assert small.get_xydata().ravel().tolist() == pytest.approx([0.2, 0.2, 0.4, 0.5, 0.6, 0.8])
    assert np.ravel(large.get_xydata()).tolist() == pytest.approx([0.4, 0.5])
    assert large.get_markersize() > small.get_markersize()
    assert same_color(small.get_color(), GREEN) and same_color(last.get_color(), COLOURS["chance"])
    assert [x.get_marker() for x in ax.lines[1::2]] == ["o", "^", "s"]


def test_unknown_values_are_left_out():
    figure, _ = figures.plot_spectra_and_sets(sets().assign(sets=np.nan))
    figure.canvas.draw()
    table = agreement().assign(low95=np.nan, high95=np.nan)
    figure, _ = figures.plot_agreement(table)
    figure.canvas.draw()
    assert figure.axes[0].containers[0].lines[0].get_xdata().tolist() == [0.5, 0.2]


def written(figure):
    """All that is written on a figure, drawn for good, which is when formulas are read."""
    text = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg")
    return text.getvalue()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.plot_baseline_spectra({FORMULA: (spectrum(1.0), [spectrum(0.5)])}),
        lambda: figures.plot_two_spectra({FORMULA: [spectrum(1.0)] * 3}),
        lambda: figures.plot_baseline_power(*(x.assign(label=FORMULA) for x in power_table())),
        lambda: figures.plot_baseline_gains(gains().assign(label=FORMULA), "order"),
        lambda: figures.plot_baseline_hits(*(x.assign(label=FORMULA) for x in hits())),
        lambda: figures.plot_agreement(agreement().assign(label=FORMULA), {FORMULA: 0.5}),
        lambda: figures.plot_spectra_and_sets(sets().assign(label=FORMULA)),
    ],
)
def test_formulas_in_names_are_drawn_as_they_are(draw):
    figure, _ = draw()
    assert r"$\foo_$ a_b" in written(figure)
