"""Figures of one network on some samples draw the numbers that they are given."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex, to_rgba

import symgen
from symgen import figures
from symgen.figures import COLOURS
from symgen.interactions import Interactions
from symgen.masking.patches import ImageVariables
from symgen.method.extraction import mask_value_table
from symgen.method.statistics import interval
from symgen.transforms import and_or_outputs

FORMULA = r"$\foo_$ a_b"


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def inter():
    """Four interactions of one sample with four variables, of orders 1 to 3."""
    effects = torch.zeros(2, 16, dtype=torch.float64)
    effects[0, 0b0011], effects[0, 0b1000], effects[1, 0b1110] = 2.0, -1.0, 0.5
    effects[1, 0b0101] = -0.25
    outputs = and_or_outputs(effects[0], effects[1])
    return Interactions(
        *effects, torch.tensor(0.0), torch.tensor(3.75), torch.tensor(0.0), outputs[-1]
    )


def texts(ax):
    return [text.get_text() for text in ax.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def shown_by(figure):
    """Draw for good, which is when matplotlib reads formulas, and return all that is written."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plt.rcParams, "svg.fonttype", "none")
        figure.savefig(text, format="svg")
    return text.getvalue()


def test_matching_shows_both_sorted_by_the_network(inter):
    v = inter.predict() + torch.linspace(-0.1, 0.1, 16)
    ax, table = figures.plot_matching(v, inter)
    line, dots = ax.lines
    order = v.argsort()
    assert table["state"].tolist() == order.tolist()
    assert line.get_ydata() == pytest.approx(v[order].numpy())
    assert dots.get_ydata() == pytest.approx(inter.predict()[order].numpy())
    assert dots.get_linestyle() == "None"
    assert to_hex(line.get_color()).upper() == COLOURS["network"]


def test_sparsity_is_drawn_by_rank_with_the_middle_of_the_samples():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(11, 8, generator=generator, dtype=torch.float64)
    v[-1] = 0  # a sample without interactions
    some = Interactions.from_moebius(v)
    models = {"first": {"a": some, FORMULA: some[:1]}, "second": {"a": some}}
    figure, table = figures.plot_sparsity(models)
    assert [ax.get_title() for ax in figure.axes] == ["first", "second"]
    size = some.effects.abs().flatten(1).sort(-1, descending=True).values
    size[:-1] /= size[:-1, :1]
    line, other, threshold = figure.axes[0].lines
    assert line.get_xdata().tolist() == list(range(1, 17))
    assert line.get_ydata() == pytest.approx(np.median(size, axis=0))
    assert other.get_ydata() == pytest.approx(size[0].numpy())
    assert line.get_color() != other.get_color() and line.get_linestyle() != other.get_linestyle()
    assert set(threshold.get_ydata()) == {0.05}
    rows = table[(table["model"] == "second") & (table["study"] == "a")]
    assert rows["high"].to_numpy() == pytest.approx(np.quantile(size, 0.9, axis=0))
    assert rows["low"].to_numpy() == pytest.approx(np.quantile(size, 0.1, axis=0))
    band = figure.axes[1].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(1) and band[:, 1].min() == 0


@pytest.mark.parametrize("number", [1, 5, 9, 13])
def test_a_patch_is_drawn_where_it_is_masked(number):
    variables = ImageVariables(torch.tensor([[number]]), grid=4)
    height, width = 12, 20
    ax, _ = figures.plot_variables(
        np.zeros((height, width, 3), np.uint8), variables.boxes(height, width)[0]
    )
    row, column = (variables.owners(height, width)[0] == 0).nonzero(as_tuple=True)
    assert len(ax.patches) == 2
    for patch in ax.patches:
        (left, top), (right, bottom) = patch.get_bbox().min, patch.get_bbox().max
        # A pixel's middle is its number, so that its edges are half a pixel off.
        assert (left, right) == (column.min() - 0.5, column.max() + 0.5)
        assert (top, bottom) == (row.min() - 0.5, row.max() + 0.5)
    [text] = ax.texts
    assert text.get_position() == (column.double().mean(), row.double().mean())


def test_variables_that_are_no_members_are_dimmed():
    variables = ImageVariables(torch.tensor([[0, 1, 3]]), grid=2)
    boxes = variables.boxes(4, 4)[0]
    ax, _ = figures.plot_variables(np.zeros((4, 4, 3), np.uint8), boxes, members=[0, 2])
    assert texts(ax) == ["0", "2"]
    [veil] = [patch for patch in ax.patches if patch.get_fill()]
    assert (veil.get_x(), veil.get_y()) == (1.5, -0.5)
    assert len([patch for patch in ax.patches if not patch.get_fill()]) == 6


def test_bars_have_effects_types_and_labels(inter):
    ax, table = figures.plot_interactions(inter, ["a", "b", "c", FORMULA], top=3)
    assert table["effect"].tolist() == [2.0, -1.0, 0.5]
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in ax.patches}
    assert {place: bar.get_width() for place, bar in bars.items()} == {0: 2.0, 1: -1.0, 2: 0.5}
    for place, kind, hatch in ((0, "and", ""), (1, "and", ""), (2, "or", "///")):
        assert bars[place].get_facecolor() == to_rgba(COLOURS[kind])
        assert (bars[place].get_hatch() or "") == hatch
    assert ticks(ax.yaxis) == ["{a ∧ b}", r"{\$\foo_\$ a_b}", r"{b ∨ c ∨ \$\foo_\$ a_b}"]
    assert ax.yaxis_inverted()
    ax.figure.canvas.draw()
    # No bar lies under the legend.
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1 - 1


def test_nothing_to_draw_is_drawn():
    nothing = Interactions.from_moebius(torch.zeros(8, dtype=torch.float64))
    assert figures.plot_interactions(nothing)[1].empty
    assert figures.plot_graph(nothing)[1].empty
    empty = pd.DataFrame(columns=["type", "members", "low", "high", "inner", "vertex"])
    assert figures.plot_face(empty.astype({"low": float, "high": float}), tau=0.0)[1].empty


def test_the_graph_joins_variables_interactions_and_output(inter):
    ax, table = figures.plot_graph(inter, ["a", "b", "c", "d"], top=3, target=FORMULA)
    assert len(table) == 3
    assert texts(ax)[-5:] == ["a", "b", "c", "d", r"\$\foo_\$ a_b"]
    assert texts(ax)[:-5] == ["∧", "-1.00", "∧", "+2.00", "∨", "+0.50"]
    assert ticks(ax.yaxis) == ["order 1", "order 2", "order 3"]
    feet = [text.get_position()[0] for text in ax.texts[-5:-1]]
    assert feet == sorted(feet)
    nodes = {round(line.get_ydata()[0]): line for line in ax.lines if len(line.get_xdata()) == 1}
    widths = {}
    for level, effect, members in ((1, -1.0, [3]), (2, 2.0, [0, 1]), (3, 0.5, [1, 2, 3])):
        x = nodes[level].get_xdata()[0]
        from_feet = [
            line for line in ax.lines
            if len(line.get_xdata()) == 2 and tuple(line.get_ydata()) == (0.12, level)
        ]  # fmt: skip
        assert [line.get_xdata()[0] for line in from_feet] == [feet[i] for i in members]
        assert {line.get_xdata()[1] for line in from_feet} == {x}
        [up] = [
            line for line in ax.lines
            if len(line.get_xdata()) == 2 and line.get_ydata()[0] == level
        ]  # fmt: skip
        assert up.get_xdata()[0] == x
        for line in (*from_feet, up):
            assert line.get_color() == COLOURS["positive" if effect > 0 else "negative"]
            assert (line.get_linestyle() == "-") == (effect > 0)
        widths[abs(effect)] = up.get_linewidth()
    assert widths[0.5] < widths[1.0] < widths[2.0]
    assert [nodes[k].get_marker() for k in (1, 2, 3)] == ["o", "o", "h"]
    assert nodes[3].get_markeredgecolor() == COLOURS["or"]


def test_long_names_are_turned_in_the_graph(inter):
    for names, angle in ((["a"] * 4, 0), (["a" * 30] * 4, 30)):
        ax, _ = figures.plot_graph(inter, names)
        assert {text.get_rotation() for text in ax.texts if text.get_text() == names[0]} == {angle}


def test_mask_values_are_means_over_samples():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(3, 5, 16, generator=generator, dtype=torch.float64)
    names = ("mean value", FORMULA, "c")
    cases = {name: symgen.sparsify(x) for name, x in zip(names, v, strict=True)}
    given = mask_value_table(cases)
    figure, means = figures.plot_mask_values(given, neutral=-2.2)
    assert [ax.get_title() for ax in figure.axes] == list(given["measure"].unique())
    of_shares = given["measure"].iloc[-1]
    for ax, (measure, rows) in zip(figure.axes, means.groupby("measure", sort=False), strict=True):
        assert ticks(ax.xaxis) == ["mean\nvalue", "\\$\\foo_\\$\na_b", "c"]
        mine = given[given["measure"] == measure]
        [errors] = ax.containers
        for x, row in enumerate(rows.itertuples(index=False)):
            values = mine[mine["mask value"] == row[1]]["value"].to_numpy()
            expected = interval(torch.tensor(values), share=measure == of_shares)
            assert (row.mean, row.low95, row.high95) == pytest.approx(tuple(expected))
            assert errors[0].get_ydata()[x] == pytest.approx(row.mean)
            ends = errors[2][0].get_segments()[x][:, 1]
            assert ends == pytest.approx([row.low95, row.high95])
        samples = [x for x in ax.lines if to_hex(x.get_color()).upper() == COLOURS["all"]]
        wide = mine.pivot(index="sample", columns="mask value", values="value")[[*cases]]
        drawn = np.stack([line.get_ydata() for line in samples])
        assert drawn == pytest.approx(wide.to_numpy())
    last = means[means["measure"] == figure.axes[-1].get_title()]
    assert last["chance"].isna().tolist() == [True, False, False]
    dashes = figure.axes[-1].collections[-1].get_segments()
    assert [dash[0, 1] for dash in dashes] == pytest.approx(last["chance"].dropna().tolist())
    assert means["chance"].notna().sum() == 2
    first = figure.axes[0]
    assert "knows nothing" in texts(first) and texts(figure.axes[1]) == []
    assert [-2.2, -2.2] in [list(line.get_ydata()) for line in first.lines]


def test_the_face_shows_the_effects_with_the_largest_range():
    face = pd.DataFrame(
        {
            "type": ["and", "or", "and"],
            "members": ["0", "0, 1", "1, 2"],
            "low": [0.0, -3.0, 0.5],
            "high": [1.0, -1.0, 2.0],
            "inner": [0.5, -2.0, 1.0],
            "vertex": [0.0, -3.0, 2.0],
        }
    )
    ax, shown = figures.plot_face(face, tau=0.1, top=2)
    assert ticks(ax.yaxis) == ["{0 ∨ 1}", "{1 ∧ 2}"]
    assert shown["inner"].tolist() == [-2.0, 1.0]
    [bars] = ax.collections
    assert [bar[:, 0].tolist() for bar in bars.get_segments()] == [[-3.0, -1.0], [0.5, 2.0]]
    assert [bar[0, 1] for bar in bars.get_segments()] == [0, 1]
    inner, vertex, _ = ax.lines
    assert inner.get_xdata().tolist() == [-2.0, 1.0] and inner.get_marker() == "o"
    assert vertex.get_xdata().tolist() == [-3.0, 2.0] and vertex.get_marker() == "x"
    [band] = ax.patches
    assert (band.get_x(), band.get_width()) == pytest.approx((-0.1, 0.2))


def test_price_marks_what_missed_the_gap():
    points = pd.DataFrame(
        {"n": [8, 9, 8, 9], "tol": [0.01, 0.01, 0.001, 0.001], "seconds": [1.0, 2.0, 3.0, 4.0],
         "gap": [0.01, 0.01, 0.001, 0.002]}
    )  # fmt: skip
    figure, _ = figures.plot_price(points, pd.DataFrame({"n": [8, 9], "gib": [0.1, 0.2]}))
    time, memory = figure.axes
    assert [t.get_text() for t in time.get_legend().get_texts()] == ["gap 0.001", "gap 0.01"]
    fine, missed, coarse, none = time.lines
    assert fine.get_ydata().tolist() == [3.0, 4.0] and coarse.get_ydata().tolist() == [1.0, 2.0]
    assert missed.get_xdata().tolist() == [9] and missed.get_markerfacecolor() == "white"
    assert none.get_xdata().tolist() == []
    assert memory.lines[0].get_ydata().tolist() == [0.1, 0.2]


def test_names_from_data_are_drawn_as_they_are(inter):
    names = [FORMULA, "$$", r"\frac{$x$", "$"]
    rows = {"type": "and", "low": 0.1, "high": 1.0, "inner": 0.5, "vertex": 1.0}
    drawn = [
        figures.plot_interactions(inter, names)[0].figure,
        figures.plot_graph(inter, names, target=FORMULA)[0].figure,
        figures.plot_sparsity({FORMULA: {FORMULA: inter[None]}})[0],
        figures.plot_face(pd.DataFrame([{"members": FORMULA, **rows}]), tau=0.1)[0].figure,
        figures.plot_mask_values(mask_value_table({FORMULA: inter[None]}))[0],
    ]
    for figure in drawn:
        assert r"$\foo_$" in shown_by(figure).replace("\n", " ")


def test_a_figure_of_one_sample_is_not_drawn_of_several():
    """It once showed the first of them, and did not say so."""
    several = symgen.sparsify(torch.tensor([[0.0, 1.0, 1.0, 3.0], [0.0, 2.0, 0.0, 1.0]]))
    for draw in (figures.plot_interactions, figures.plot_graph):
        with pytest.raises(ValueError, match=r"of 2 samples are given, .* of one: inter\[0\]"):
            draw(several)
        draw(several[1])
        draw(several[1:])
        plt.close("all")
