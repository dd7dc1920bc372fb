"""Figures of tables and spectra: each mark is the number it stands for."""

import itertools
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import ImageColor

from symgen import figures
from symgen.interactions import Interactions
from symgen.method.statistics import interval


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(autouse=True, scope="module")
def style():
    with plt.rc_context():
        figures.set_style()
        yield


def texts(axis):
    return [label.get_text() for label in axis]


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def trainings():
    """A tidy table as `measure` returns it: two networks, three seeds, four steps."""
    names = ["network", "seed", "step", "quantity"]
    values = ["cnn", "vgg11"], [0, 10, 20], [0, 10, 100, 1000], ["H", "chance", "N"]
    table = pd.MultiIndex.from_product(values, names=names).to_frame(index=False)
    return table.assign(order=np.nan, value=np.random.default_rng(0).random(len(table)))


def estimates():
    values = ["low", "high"], ["CNN", "$GPT$"], ["H", "chance level", "untrained"]
    index = pd.MultiIndex.from_product(values, names=["orders", "label", "group"])
    mean = index.to_frame(index=False)["label"].map({"CNN": 0.4, "$GPT$": 0.6})
    return index.to_frame(index=False).assign(mean=mean, low=mean - 0.1, high=mean + 0.1)


@pytest.mark.parametrize(
    "one, other", [("and", "or"), ("generalizable", "other"), ("network", "model")]
)
def test_colors_that_share_a_figure_differ_in_grey(one, other):
    light = [sum(ImageColor.getrgb(figures.COLORS[k])) for k in (one, other)]
    assert abs(light[0] - light[1]) > 60


def test_the_style_gives_svg_with_stable_bytes(tmp_path):
    for name in ("a", "b"):
        figure = figures.plot_estimates(estimates(), "group", "orders")
        figure.savefig(tmp_path / name, format="svg", metadata={"Date": None})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert plt.rcParams["axes.grid"] and plt.rcParams["font.family"] == ["DejaVu Sans"]


def test_panels_are_titled_literally_and_spare_ones_are_empty():
    figure, axes = figures.panels(["$a$", "b", "c"], columns=2)
    assert [ax.get_title() for ax in axes] == [r"\$a\$", "b", "c"]
    assert [ax.axison for ax in figure.axes] == [True, True, True, False]


def test_the_legend_below_names_each_label_once():
    figure, axes = figures.panels(["a", "b"])
    figures.legend_below(figure)
    assert not figure.legends
    for ax in axes:
        ax.plot([0, 1], label="H")
    axes[1].plot([1, 0], label="N")
    figures.legend_below(figure)
    assert legend(figure) == ["H", "N"]


def drawn(**pages):
    figures_of = {}
    for caption, height in pages.items():
        _, [ax] = figures.panels([caption])
        ax.plot([0, height])
        figures_of[caption] = ax
    return figures_of


def test_a_slider_holds_its_pages_as_inert_pictures():
    shown = figures.slider({**drawn(a=1), "<b>": drawn(b=2)["b"]}, "step", start="<b>")
    page = shown.bundle["text/html"].split("<style>")[0]
    assert not plt.get_fignums() and repr(shown) == "2 figures by step: a, <b>"
    assert page.count('src="data:image/svg+xml;base64,') == 2 and "<b>" not in page
    assert 'class="drawn symgen-first" alt="step &lt;b&gt;"' in page
    with pytest.raises(ValueError, match="start is 7; expected one of"):
        figures.slider(drawn(a=1), start=7)
    with pytest.raises(ValueError, match="expected at least one"):
        figures.slider({})


def test_figures_of_a_slider_can_share_their_scale():
    pages = drawn(a=1, b=10)
    shown = figures.slider(pages, same_scale=True).bundle["text/html"].split("<style>")[0]
    assert pages["a"].get_ylim() == pages["b"].get_ylim() == (-0.5, 10.5)
    assert shown.count("symgen-own") == 2 and shown.count("<img") == 4


def test_curves_are_means_over_seeds_with_t_bands():
    table = trainings()
    cnn = table[table["network"] == "cnn"]
    phases = SimpleNamespace(t1=10, t2=None)
    figure = figures.plot_curves(cnn, y=[("H", "chance"), "N"], phases=phases)
    first, second = figure.axes
    assert first.get_title() == "generalization power H, chance level"
    assert second.get_title() == "number of interactions N"
    steps = cnn[cnn["quantity"] == "H"].groupby("step")["value"]
    line, chance, boundary = first.lines
    assert line.get_xdata().tolist() == [0, 10, 100, 1000]
    assert np.allclose(line.get_ydata(), steps.mean())
    # The chance level is a dashed line in the color of its H.
    green = figures.COLORS["generalizable"].lower()
    assert to_hex(line.get_color()) == to_hex(chance.get_color()) == green
    assert (line.get_linestyle(), chance.get_linestyle()) == ("-", "--")
    band = first.collections[0].get_paths()[0].vertices
    expected = [bound for _, values in steps for bound in interval(values)[1:]]
    assert all(np.isclose(band[:, 1], bound).any() for bound in expected)
    # The interval of two trainings is too wide to be drawn.
    two = figures.plot_curves(cnn[cnn["seed"].isin(cnn["seed"].unique()[:2])], y=["H"]).axes[0]
    assert len(two.collections[0].get_paths()) == 0 and len(two.lines) == 1
    assert set(boundary.get_xdata()) == {10} and texts(first.texts) == [" $t_1$"]
    assert legend(figure) == ["generalization power H", "chance level"]
    assert second.get_xlabel() == "optimizer steps" and second.get_xscale() == "symlog"
    assert texts(second.get_xticklabels()) == ["0", "10", "100", "1,000"]


def test_curves_of_groups_keep_their_colors_in_every_panel():
    table = trainings()
    table = table[(table["network"] == "vgg11") | (table["quantity"] != "N")]
    figure = figures.plot_curves(table, y=[("H", "chance"), "N"], group="network")
    above, below = ([x for x in ax.lines if len(x.get_xdata())] for ax in figure.axes)
    assert [line.get_linestyle() for line in above] == ["-", "-", "--", "--"]
    colors = [line.get_color() for line in above]
    assert colors[:2] == colors[2:] and colors[0] != colors[1]
    assert above[0].get_marker() != above[1].get_marker()
    # The first network has no N.
    assert [line.get_color() for line in below] == [colors[1]]
    assert below[0].get_marker() == above[1].get_marker()
    assert legend(figure) == ["cnn", "vgg11", "chance level"]


def test_curves_of_wide_tables_and_of_many_steps():
    wide = pd.DataFrame({"baselines": [1, 2, 3], "H": [0.3, 0.4, 0.5]})
    [ax] = figures.plot_curves(wide, x="baselines", y=["H"]).axes
    assert ax.lines[0].get_ydata().tolist() == [0.3, 0.4, 0.5]
    assert ax.get_xscale() == "linear" and ax.get_xticks().tolist() == [1, 2, 3]
    many = pd.DataFrame({"step": [0, *range(5, 2000, 7)]}).assign(H=0.5)
    [ax] = figures.plot_curves(many, y=["H"]).axes
    assert {"0", "10", "30", "100", "300", "1,000"} <= {*texts(ax.get_xticklabels())}
    with pytest.raises(ValueError, match="no quantity K"):
        figures.plot_curves(wide, x="baselines", y=["K"])


def test_an_empty_panel_says_why():
    table = trainings()
    table.loc[table["quantity"] == "N", "value"] = np.nan
    _, ax = figures.plot_curves(table, y=["H", "N"], group="network").axes
    assert texts(ax.texts) == ["undefined in all 24 rows"]
    rows = estimates()
    rows.loc[rows["orders"] == "high", ["mean", "low", "high"]] = np.nan
    low, high = figures.plot_estimates(rows, "group", "orders").axes
    assert not texts(low.texts) and texts(high.texts) == ["undefined in all 6 rows"]
    for draw in (figures.plot_estimates, figures.plot_repeats):
        [ax] = draw(rows.assign(value=rows["mean"])[:0]).axes
        assert texts(ax.texts) == ["not measured"]
    ax = figures.plot_spectrum(torch.zeros(2, 4))
    assert texts(ax.texts) == ["no salient interaction"]
    dots = pd.DataFrame({"H": [], "gap": []})
    assert texts(figures.plot_scatter(dots, "H", "gap").texts) == ["not measured"]


def test_estimates_are_dots_with_intervals_in_rows():
    figure = figures.plot_estimates(estimates(), "group", "orders", 0.5, "H")
    assert [ax.get_title() for ax in figure.axes] == ["low", "high"]
    ax = figure.axes[0]
    assert texts(ax.get_yticklabels()) == ["CNN", r"\$GPT\$"] and ax.get_xlabel() == "H"
    dots = [container.lines for container in ax.containers]
    assert [d[0].get_xdata().tolist() for d in dots] == [[0.4, 0.6]] * 3
    segments = np.array(dots[0][2][0].get_segments())
    assert np.allclose(segments[:, :, 0], [[0.3, 0.5], [0.5, 0.7]])
    places = np.array([d[0].get_ydata() for d in dots])
    assert np.abs(places - [0, 1]).max() < 0.5 and np.unique(places).size == 6
    look = [(d[0].get_color(), d[0].get_marker()) for d in dots]
    meaning = zip(["generalizable", "chance", "untrained"], "osD", strict=True)
    assert look == [(figures.COLORS[k], marker) for k, marker in meaning]
    assert legend(figure) == ["generalization power H", "chance level", "untrained"]
    assert any({*line.get_xdata()} == {0.5} for line in ax.lines)
    low, high = ax.get_ylim()
    assert low > high  # the first label is on top
    # A long title takes several lines, so that it does not run into its neighbor.
    long = estimates().replace({"orders": {"low": "9 variables, 1 baseline trained on the test"}})
    titles = [ax.get_title() for ax in figures.plot_estimates(long, "group", "orders").axes]
    assert titles == ["9 variables, 1 baseline trained on\nthe test", "high"]
    # A group of its own in each row stands in the middle of the row.
    own = estimates()[:3].assign(label=["a", "b", "c"], group=["data", "labels", "network"])
    (ax,) = figures.plot_estimates(own, "group").axes
    assert [c.lines[0].get_ydata().tolist() for c in ax.containers] == [[0], [1], [2]]
    assert ax.figure.get_figheight() == figures.plot_estimates(own).get_figheight()
    # A panel without some group keeps the look of the others.
    table = estimates().replace({"group": {"chance level": "x", "untrained": "y"}})
    less = table[(table["orders"] != "low") | (table["group"] != "H")]
    low, high = (
        {c.lines[0].get_color(): c.lines[0].get_marker() for c in ax.containers}
        for ax in figures.plot_estimates(less, "group", "orders").axes
    )
    assert len(low) == 2 and len(high) == 3 and low.items() <= high.items()


def test_rows_have_room_for_labels_of_several_lines():
    table = pd.concat([estimates().assign(label=f"network {i}\non\ndata,\nmasked\nat\nthe input")
                       for i in range(3)])  # fmt: skip
    figure = figures.plot_estimates(table, "group", "orders")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
    assert len(boxes) == 3
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(boxes))


def test_panels_can_have_axes_of_their_own():
    table = estimates()
    wide = table["orders"] == "low"
    table.loc[wide, ["mean", "low", "high"]] *= 100
    shared, same = figures.plot_estimates(table, "group", "orders").axes
    assert shared.get_xlim() == same.get_xlim()
    low, high = figures.plot_estimates(table, "group", "orders", reference=0, sharex=False).axes
    # The reader sees that the interval [0.3, 0.5] lies above 0.
    assert high.get_xlim()[0] < 0 and high.get_xlim()[1] < 1 < low.get_xlim()[1]


@pytest.mark.parametrize("by", [{"group": "kind"}, {"panel": "kind", "sharex": False}])
def test_repeats_show_every_training_next_to_the_mean(by):
    table = pd.DataFrame({"label": ["a", "b"] * 6, "kind": ["x"] * 6 + ["y"] * 6})
    table["value"] = np.random.default_rng(1).random(12)
    figure = figures.plot_repeats(table, **by)
    drawn = [line for ax in figure.axes for line in ax.lines if line.get_alpha()]
    assert sorted(x for line in drawn for x in line.get_xdata()) == sorted(table["value"])
    means = [container for ax in figure.axes for container in ax.containers]
    for (_, rows), container in zip(table.groupby("kind"), means, strict=True):
        values = rows.groupby("label")["value"]
        assert np.allclose(container.lines[0].get_xdata(), values.mean())
        bounds = np.array(container.lines[2][0].get_segments())[:, :, 0]
        assert np.allclose(bounds, [interval(one)[1:] for _, one in values])
    # Each mean lies in the row of its dots, and below them on the page.
    assert drawn[0].get_ydata()[0] < means[0].lines[0].get_ydata()[0] < 0.5
    names = legend(figure) if "group" in by else [ax.get_title() for ax in figure.axes]
    assert names == ["x", "y"]


def test_repeats_join_the_values_of_a_unit():
    table = pd.DataFrame({"mask": ["mean value", "zero"] * 3, "sample": [0, 0, 1, 1, 2, 2]})
    table["v"] = [1.0, 2, 3, 4, 5, 9]

    def dots(**options):
        [ax] = figures.plot_repeats(table, "v", "mask", **options).axes
        return [line for line in ax.lines if line.get_alpha()]

    joined = dots(unit="sample")
    assert [line.get_xdata().tolist() for line in joined] == [[1, 2], [3, 4], [5, 9]]
    assert {line.get_linestyle() for line in joined} == {"-"}
    [alone] = dots()
    assert alone.get_linestyle() == "None" and len(alone.get_xdata()) == 6


def test_long_names_of_groups_stand_below_each_other():
    for size, columns in ((5, 3), (30, 2), (60, 1)):
        kinds = [c * size for c in "xxyyzz"]
        figure = figures.plot_repeats(
            pd.DataFrame({"label": ["a", "b"] * 3, "value": range(6), "kind": kinds}), group="kind"
        )
        assert figure.legends[0]._ncols == columns
        figure.draw_without_rendering()  # warns, which fails, if the legend does not fit


def test_scatter_counts_its_groups():
    table = pd.DataFrame({"H": [0, 1, 2], "gap": [2, 1, 0], "kind": ["_a", "_a", "generalizable"]})
    ax = figures.plot_scatter(table, "H", "gap", "kind")
    first, second = ax.lines
    assert first.get_ydata().tolist() == [2, 1] and second.get_xdata().tolist() == [2]
    assert second.get_color() == figures.COLORS["generalizable"]
    # A leading underscore would hide the entry.
    assert texts(ax.get_legend().get_texts()) == [" _a (2)", "generalizable (1)"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("generalization power H", "loss gap (nats)")


def test_a_wide_legend_leaves_the_panel_its_width():
    table = pd.DataFrame({"H": [0.1, 0.2, 0.3], "gap": 1.0})
    table["labels"] = ["0% wrong labels", "20% wrong labels", "50% wrong labels"]
    ax = figures.plot_scatter(table, "H", "gap", "labels")
    ax.figure.draw_without_rendering()
    assert ax.get_window_extent().width > 0.7 * ax.figure.bbox.width


def test_of_many_dots_a_sample_is_drawn():
    table = pd.DataFrame({"x": range(6000), "y": 1.0, "kind": ["a", "b", "b"] * 2000})
    table.index = [0] * 6000  # as after a concat
    ax = figures.plot_scatter(table, "x", "y", "kind")
    a, b = ([*line.get_xdata()] for line in ax.lines)
    assert len(a) + len(b) == 1500 and {x % 3 for x in a} == {0} and {x % 3 for x in b} == {1, 2}
    assert "1,500 of 6,000 dots" in ax.get_xlabel()
    assert texts(ax.get_legend().get_texts()) == ["a (2,000)", "b (4,000)"]


def test_sorted_strengths_fall_from_one():
    v = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inter = Interactions.from_moebius(v, 0.5)
    ax = figures.plot_sorted({"one": inter[0], "all": inter})
    size = inter[0].effects.abs().flatten().sort(descending=True).values
    assert np.allclose(ax.lines[0].get_ydata(), size / size[0])
    nothing = figures.plot_sorted({"none": Interactions.from_moebius(torch.zeros(1, 8))})
    assert not nothing.lines[0].get_ydata().any()
    assert ax.lines[1].get_ydata()[0] == 1 and (np.diff(ax.lines[1].get_ydata()) <= 0).all()
    assert ax.get_xscale() == "log" and texts(ax.get_legend().get_texts())[:2] == ["one", "all"]


def test_spectra_are_bars_by_order_and_sign():
    total = torch.tensor([[[0, 2, 1], [0, -1, -3.0]], [[0, 4, 1], [0, -1, -1.0]]])
    ax = figures.plot_spectrum(total, total / 2)
    up, down, solid_up, solid_down = ax.containers
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert heights == [[3, 1], [-1, -2], [1.5, 0.5], [-0.5, -1]]
    assert [up[0].get_hatch(), solid_up[0].get_hatch()] == ["///", None]
    assert to_hex(solid_down[0].get_facecolor()) == figures.COLORS["generalizable"].lower()
    assert texts(ax.get_legend().get_texts()) == ["non-generalizable", "generalizable"]
    assert ax.get_xticks().tolist() == [1, 2] and down[0].get_width() == 0.8
    alone = figures.plot_spectrum(total[0])
    assert texts(alone.get_legend().get_texts()) == ["salient"]
    figure = figures.plot_spectra({"a": (total, total), "b": (4 * total, None)}, columns=2)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert legend(figure) == ["non-generalizable", "generalizable", "salient"]
