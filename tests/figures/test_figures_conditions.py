"""Figures of the sparsity conditions draw the numbers that they are given."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from symgen import figures
from symgen.method import conditions
from symgen.method.statistics import interval

FORMULA = r"$\foo_$ a_b"
INERT = r"\$\foo_\$ a_b"


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def saved(figure):
    """Draw for good, which is when matplotlib reads formulas, and return all that is written."""
    text = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg")
    return text.getvalue()


def colour(artist):
    return to_hex(artist.get_color())


def known(name):
    return figures.COLOURS[name].lower()


def bars_of(ax):
    return [bar for bar in ax.patches if bar.get_width() == pytest.approx(0.8)]


def errors_of(ax):
    """Lower and upper ends of all error bars, in the order drawn."""
    drawn = [c for c in ax.containers if hasattr(c, "has_yerr")]
    return np.array([s[:, 1] for c in drawn for s in c.lines[2][0].get_segments()])


def curves(samples=8, n=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(samples, n + 1, generator=generator, dtype=torch.float64).cumsum(-1)
    u[:, 0] = 0.0
    u[0], u[1] = torch.arange(n + 1), -torch.arange(n + 1)
    return u


def test_the_tail_of_each_kind_in_its_colour_up_to_the_last_order():
    generator = torch.Generator().manual_seed(0)
    effects = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    effects[:, 0] = 0.0
    share = conditions.strength_above(effects)
    kinds = ("AND", "OR", "no split", "shuffled")
    tails = {title: dict.fromkeys(kinds, share) for title in ("one", FORMULA, "three")}
    figure, table = figures.plot_order_tail(tails, limit=0.02)
    assert [ax.get_title() for ax in figure.axes[:3]] == ["one", INERT, "three"]
    assert not figure.axes[3].axison
    for ax in figure.axes[:3]:
        lines = dict(zip(kinds, ax.lines, strict=False))
        for line in lines.values():
            assert line.get_xdata().tolist() == [0, 1, 2, 3]
            assert line.get_ydata() == pytest.approx(share.mean(0)[:4].numpy())
        found = [colour(line) for line in lines.values()]
        assert found == [known(k) for k in ("and", "or", "network", "chance")]
        assert ax.lines[4].get_ydata()[0] == 0.02 and ax.texts[0].get_text() == "2%"
    row = table[(table.panel == "three") & (table.label == "OR") & (table.above == 2)].iloc[0]
    expected = interval(share[:, 2], share=True)
    assert (row["share"], row["low95"], row["high95"]) == pytest.approx(tuple(expected))
    assert r"$\foo_$" in saved(figure)


def test_a_share_below_the_frame_is_drawn_below_it():
    figures.plot_order_tail({"a": {"AND": torch.tensor([[1.0, 0.5, 0.0, 0.0]] * 5)}})
    ax = plt.gcf().axes[0]
    assert ax.lines[0].get_ydata()[-1] < ax.get_ylim()[0]


def test_average_outputs_are_scaled_and_told_apart():
    u, reference = curves(), curves(seed=1)
    figure, table = figures.plot_average_output({FORMULA: u}, {FORMULA: reference})
    left, right = figure.axes
    assert [ax.get_title() for ax in figure.axes] == [INERT, INERT]
    lines = [line for line in left.lines if len(line.get_xdata()) == 6]
    never = int((conditions.never_falls(u) == 1).sum())
    assert len(lines) == len(u)
    assert sum(colour(line) == known("positive") for line in lines) == never
    assert sum(colour(line) == known("negative") for line in lines) == len(u) - never
    assert all(np.abs(line.get_ydata()).max() == pytest.approx(1) for line in lines)
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == [f"never falls ({never})", f"falls somewhere ({len(u) - never})"]
    falls = (u.diff(dim=-1) < 0).double().mean(0).tolist()
    assert [bar.get_height() for bar in bars_of(right)] == pytest.approx(falls)
    assert [bar.get_x() for bar in bars_of(right)] == pytest.approx([k + 0.1 for k in range(5)])
    assert table["falls"].tolist() == pytest.approx(falls)
    assert table["panel"].unique().tolist() == [FORMULA] and table["m"].tolist() == [*range(5)]
    assert np.allclose(errors_of(right), table[["low95", "high95"]])
    luck = (reference.diff(dim=-1) < 0).double().mean(0).tolist()
    strokes = right.collections[-1].get_segments()
    assert [s[0][1] for s in strokes] == pytest.approx(luck) == table["chance"].tolist()
    assert [t.get_text() for t in right.get_xticklabels()] == list("01234")
    assert r"$\foo_$" in saved(figure)


def test_a_sample_that_never_moves_is_in_neither_group():
    u = torch.stack([torch.zeros(4), torch.arange(4.0)]).double()
    figure, _ = figures.plot_average_output({"a": u}, {"a": u})
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["never falls (1)"]


def test_exponents_are_sorted_and_counted_by_where_the_output_goes():
    m = torch.arange(5, dtype=torch.float64)
    no_p = torch.tensor([0, -1.0, 1, 2, 3]).double()
    u = torch.stack([m**1.5, m, no_p, -m, torch.tensor([0, 2.0, 1, 0.5, -0.1]).double()])
    p = conditions.smallest_exponent(u)
    figure, table = figures.plot_exponents({FORMULA: u}, {FORMULA: p}, expected=(0.8, 1.1))
    left, right = figure.axes
    assert table["p"].to_numpy() == pytest.approx(p.numpy(), nan_ok=True)
    assert table["rises"].tolist() == [True, True, True, False, False]
    rising, falling = right.lines
    assert rising.get_ydata().tolist() == pytest.approx([1, 1.5])
    assert (rising.get_xdata() < 0.5).all() and (falling.get_xdata() > 0.5).all()
    assert colour(rising) == known("positive") and colour(falling) == known("negative")
    found = p[3:]
    words = [label.get_text() for label in right.get_xticklabels()]
    assert words[0] == "output rises (3)\nno p: 1\nany small p: 0"
    none, free = int(found.isnan().sum()), int((found == 0).sum())
    assert words[1] == f"output falls (2)\nno p: {none}\nany small p: {free}"
    assert len(falling.get_ydata()) == 2 - none - free and none + free > 0
    band = right.patches[0].get_bbox()
    assert sorted((band.y0, band.y1)) == pytest.approx([0.8, 1.1])
    assert len(left.lines) == 3
    assert left.lines[0].get_ydata() == pytest.approx((m[1:] / 4).numpy() ** 1.5)
    assert np.isnan(left.lines[2].get_ydata()[0])
    assert [ax.get_title() for ax in figure.axes] == [INERT, INERT]
    assert r"$\foo_$" in saved(figure)


def test_one_average_with_its_dots_and_its_steepest_piece():
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([float(s.bit_count()) for s in range(16)], dtype=torch.float64)
    v = 2 + size**1.3 + 0.01 * torch.randn(16, generator=generator, dtype=torch.float64)
    figure, table = figures.plot_one_average(v, FORMULA)
    left, right = figure.axes
    u = conditions.average_output(v)
    assert table["u"].to_numpy() == pytest.approx(u.numpy())
    dots, line = left.lines[:2]
    assert dots.get_ydata() == pytest.approx((v - v[0]).numpy())
    assert np.abs(dots.get_xdata() - size.numpy()).max() < 0.25
    assert line.get_ydata() == pytest.approx(u.numpy())
    assert table.loc[1, "lowest"] == pytest.approx(float((v - v[0])[[1, 2, 4, 8]].min()))
    assert table.loc[1, "highest"] == pytest.approx(float((v - v[0])[[1, 2, 4, 8]].max()))
    p = float(conditions.smallest_exponent(u))
    assert right.get_legend().get_texts()[0].get_text() == f"steepest: p = {p:.2f}"
    (x0, x1), (y0, y1) = (np.log(f()) for f in (right.lines[1].get_xdata,
                                                right.lines[1].get_ydata))  # fmt: skip
    assert (y1 - y0) / (x1 - x0) == pytest.approx(p)
    assert figure.get_suptitle() == INERT and r"$\foo_$" in saved(figure)


def by_size(u):
    return torch.tensor(u, dtype=torch.float64)[[s.bit_count() for s in range(2 ** (len(u) - 1))]]


def test_where_an_average_falls_or_has_no_exponent_is_said():
    falling, none = by_size([0.0, 2.0, 1.0, 3.0]), by_size([0.0, -1.0, 1.0, 2.0])
    figure, _ = figures.plot_one_average(falling)
    piece = figure.axes[0].lines[2]
    assert piece.get_ydata().tolist() == [2, 1] and colour(piece) == known("negative")
    assert "falls" in [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    figure, _ = figures.plot_one_average(none)
    assert "no p" in figure.axes[1].texts[0].get_text()
    figure, _ = figures.plot_one_average(-by_size([0.0, 1.0, 2.0]))
    assert "not positive" in figure.axes[1].texts[0].get_text()
    assert not figure.axes[1].axison
    figure, table = figures.plot_one_average(torch.tensor([0.0, 1.0]))
    assert table["u"].tolist() == [0, 1] and saved(figure)


def test_growth_beside_the_number_of_possible_interactions():
    rows = [("a", 4, 3.0, 2.0, 5.0), ("a", 8, 9.0, 7.0, 9.5), (FORMULA, 4, 1.0, 1.0, 2.0)]
    table = pd.DataFrame(rows, columns=["setting", "n", "count", "low95", "high95"])
    figure, drawn = figures.plot_growth(table)
    [ax] = figure.axes
    assert drawn is table
    points = [c.lines[0] for c in ax.containers]
    assert [line.get_ydata().tolist() for line in points] == [[3, 9], [1]]
    assert points[0].get_xdata().tolist() == [4, 8]
    assert points[1].get_xdata()[0] == pytest.approx(4, rel=0.02)
    assert np.allclose(errors_of(ax), table[["low95", "high95"]])
    assert len({(line.get_marker(), colour(line)) for line in points}) == 2
    assert ax.lines[-1].get_ydata().tolist() == [2**5, 2**9]
    assert r"$\foo_$" in saved(figure)


@pytest.mark.parametrize("measures", [["x"], ["x", "y", "$z$"]])
def test_conditions_along_the_training_a_panel_a_measure(measures):
    rows = [
        (setting, stage, name, 0.1 * k + i, 0.1 * k + i - 0.05, 0.1 * k + i + 0.2)
        for i, setting in enumerate(("a", FORMULA))
        for k, stage in enumerate(("untrained", "trained"))
        for name in measures
    ]
    columns = ["setting", "checkpoint", "measure", "value", "low95", "high95"]
    table = pd.DataFrame(rows, columns=columns)
    figure, drawn = figures.plot_conditions(table)
    assert drawn is table
    seen = [ax for ax in figure.axes if ax.axison]
    titles = [ax.get_title() for ax in seen]
    assert titles == [name.replace("$", r"\$") for name in measures]
    for ax, name in zip(seen, measures, strict=True):
        mine = table[table["measure"] == name]
        points = [c.lines[0] for c in ax.containers]
        values = np.concatenate([line.get_ydata() for line in points])
        assert np.allclose(values, mine["value"])
        assert points[0].get_xdata().tolist() == [0, 1]
        assert np.allclose(errors_of(ax), mine[["low95", "high95"]])
        assert [t.get_text() for t in ax.get_xticklabels()] == ["untrained", "trained"]
    assert r"$\foo_$" in saved(figure)
