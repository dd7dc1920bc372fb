"""Figures of removal draw the losses, shares and outputs that they are given."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from symgen import figures
from symgen.method.removal import Removal, closed_table, removal_table

FORMULA = r"$\foo_$ a_b"


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def pair():
    """Losses of which removal closes half of the gap, and the control none."""
    train, test = torch.linspace(0, 0.2, 12).double(), torch.linspace(1, 2, 12).double()
    one = {"nothing": train, "non-generalizable": train + 0.2, "random": train + 0.1}
    two = {"nothing": test, "non-generalizable": test - 0.5, "random": test + 0.1}
    return Removal(one, two)


def whiskers(ax):
    """Lower and upper ends of all error bars, in the order drawn."""
    return np.array([s[:, 1] for c in ax.containers if hasattr(c, "has_yerr")
                     for s in c.lines[2][0].get_segments()])  # fmt: skip


def test_bars_are_the_losses_in_their_places_and_colours(pair):
    table = removal_table(pair)
    ax, drawn = figures.plot_removal(table)
    assert drawn is table
    groups = [c for c in ax.containers if not hasattr(c, "has_yerr")]
    assert len(groups) == 3
    for i, (name, bars) in enumerate(zip(pair.train, groups, strict=True)):
        rows = table[table["removed"] == name]
        assert [bar.get_height() for bar in bars] == pytest.approx(rows["loss"].tolist())
        middle = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        assert middle == pytest.approx([k + 0.27 * (i - 1) for k in range(3)])
    keys = ("network", "non-generalizable", "all")
    found = [to_hex(bars[0].get_facecolor()) for bars in groups]
    assert found == [figures.COLOURS[key].lower() for key in keys]
    assert len({bars[0].get_hatch() for bars in groups}) == 3
    wanted = table.set_index("removed").loc[[*pair.train], ["low95", "high95"]]
    assert np.allclose(whiskers(ax), wanted)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["training loss", "test loss", "gap"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ["control" in label for label in labels] == [False, False, True]


def test_the_axis_ends_where_it_is_told_to(pair):
    table = removal_table(pair)
    assert figures.plot_removal(table, ends=(-1.0, 7.0))[0].get_ylim() == (-1, 7)
    low, high = figures.plot_removal(table)[0].get_ylim()
    assert low <= 0 and high > table["loss"].max()


def test_a_study_a_row_with_the_share_that_closes(pair):
    cases = {"one": pair, FORMULA: pair, "even": Removal(pair.train, pair.train)}
    tables = {label: removal_table(case) for label, case in cases.items()}
    closed = closed_table(cases)
    figure, drawn = figures.plot_several_removals(tables, closed)
    assert drawn["label"].unique().tolist() == [*cases]
    rows = np.reshape(figure.axes, (3, 2))
    assert [ax.get_title() for ax in rows[:, 0]] == ["one", r"\$\foo_\$ a_b", "even"]
    for (_, right), label in zip(rows, ("one", FORMULA), strict=False):
        mine = closed[closed["label"] == label]
        points = [c for c in right.containers if hasattr(c, "has_yerr")]
        found = [float(c.lines[0].get_ydata()[0]) for c in points]
        assert found == pytest.approx(mine["closed"].tolist())
        assert found[0] == pytest.approx(0.7 / 1.4) and found[1] == pytest.approx(0)
        assert [float(c.lines[0].get_xdata()[0]) for c in points] == [0, 1]
        assert np.allclose(whiskers(right), mine[["low95", "high95"]])
        colours = [to_hex(c.lines[0].get_color()) for c in points]
        keys = ("non-generalizable", "all")
        assert colours == [figures.COLOURS[key].lower() for key in keys]
        low, high = right.get_ylim()
        assert low < 0 and high > 1 and not right.texts
    assert "no clear gap" in rows[2, 1].texts[0].get_text()
    with plt.rc_context({"svg.fonttype": "none"}):
        text = io.StringIO()
        figure.savefig(text, format="svg")
    assert r"$\foo_$" in text.getvalue()


def test_names_below_the_shares_stand_clear_of_each_other(pair):
    """Turned names run side by side; the distance of two holds all lines of the one before."""
    kinds = ("permuted", "shrunk")
    whole = Removal(*({**g, **dict.fromkeys(kinds, g["random"])} for g in (pair.train, pair.test)))
    figures.set_style()
    figure, _ = figures.plot_several_removals(
        {"one": removal_table(whole)}, closed_table({"one": whole})
    )  # fmt: skip
    figure.draw_without_rendering()
    ax = figure.axes[1]
    places = ax.transData.transform([(tick, 0) for tick in ax.get_xticks()])[:, 0]
    names = ax.get_xticklabels()
    assert len(names) == 4
    for name, apart in zip(names, np.diff(places), strict=False):
        lines = 1 + name.get_text().count("\n")
        high = lines * 1.2 * name.get_size() * figure.dpi / 72
        assert name.get_ha() == "right" and name.get_rotation_mode() == "anchor"
        assert apart * np.sin(np.radians(name.get_rotation())) >= high


def test_one_sample_has_no_whiskers_and_is_drawn(pair):
    one = Removal(*({k: x[:1] for k, x in g.items()} for g in (pair.train, pair.test)))
    figure, _ = figures.plot_several_removals(
        {"a": removal_table(one)}, closed_table({"a": one})
    )  # fmt: skip
    figure.savefig(io.BytesIO(), format="png")
    assert "no clear gap" in figure.axes[1].texts[0].get_text()


@pytest.mark.parametrize("classes, bound", [(2, 0), (10, -2.1972246)])
def test_outputs_before_and_after_with_the_band_that_decides_nothing(classes, bound):
    before, after = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([0.5, -1.0, -3.0])
    outputs = {"training": (before, after), "test": (after, before)}
    ax, drawn = figures.plot_removed_outputs(outputs, classes)
    assert drawn.groupby("group", sort=False).size().to_dict() == {"training": 3, "test": 3}
    for line, (x, y), key in zip(ax.lines, outputs.values(), ("train", "test"), strict=False):
        assert line.get_xdata().tolist() == x.tolist()
        assert line.get_ydata().tolist() == y.tolist()
        assert to_hex(line.get_color()) == figures.COLOURS[key].lower()
    across, upright = (patch.get_bbox() for patch in ax.patches)
    assert sorted((across.y0, across.y1)) == pytest.approx([bound, 0])
    assert sorted((upright.x0, upright.x1)) == pytest.approx([bound, 0])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["training samples", "test samples", "unchanged"]
    assert list(drawn.columns) == ["group", "before", "after"]
    assert isinstance(drawn, pd.DataFrame)


def test_parts_of_the_gap_are_drawn_by_group_with_their_intervals():
    generator = torch.Generator().manual_seed(0)
    names = ("generalizable", "non-generalizable", "small", "nothing shown")
    cases = {
        label: {k: torch.randn(5, 6, generator=generator).double() for k in names}
        for label in ("one", FORMULA)
    }
    ax, table = figures.plot_gap_parts(cases)
    assert table["part"].nunique() == 6 and len(table) == 12
    for label, parts in cases.items():
        mine = table[table["label"] == label].set_index("part")["value"]
        low = parts["generalizable"][:, 1:3].sum(-1).mean()
        assert mine["generalizable, orders 1, 2"] == pytest.approx(float(low))
        # All that is drawn of a study is the whole gap, but for order 0 of the ordered parts.
        whole = sum(x.sum(-1) for x in parts.values())
        whole = whole - parts["generalizable"][:, 0] - parts["non-generalizable"][:, 0]
        assert mine.sum() == pytest.approx(float(whole.mean()))
    bars = [c for c in ax.containers if not hasattr(c, "has_xerr")]
    drawn = [bar.get_width() for group in bars for bar in group]
    assert drawn == pytest.approx(table["value"].tolist())
    middle = [bar.get_y() + bar.get_height() / 2 for bar in bars[0]]
    assert middle == pytest.approx([k - 0.2 for k in range(6)])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["one", r"\$\foo_\$ a_b"]
