"""Figures of training: what stands where, how high, with which band, and in which colour."""

import io
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from symgen import figures
from symgen.figures.style import COLOURS
from symgen.figures.training import _refuse_no_table
from symgen.method.phases import Phases

STEPS, EPOCHS = [0, 3, 10, 30], [0.0, 0.3, 1.0, 3.0]
NAMES = ("power", "chance", "count", "mean_order", "generalizable", "non_generalizable", "gap")
FORMULA = r"$\foo_$ a_b"


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def summary(seed=0, banded=NAMES):
    """A table as of `Dynamics.summary`, with bands of other widths below and above."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"step": STEPS, "epoch": EPOCHS})
    for name in (*NAMES, "train_loss", "test_loss"):
        values = rng.uniform(0.2, 0.8, len(STEPS))
        table[name] = values
        if name in banded:
            table[f"{name}_low95"] = values - rng.uniform(0.01, 0.1, len(STEPS))
            table[f"{name}_high95"] = values + rng.uniform(0.01, 0.1, len(STEPS))
    return table


def lines(ax):
    """Return label to line of the lines that a legend would name."""
    return dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))


def bands(ax):
    """Return the edges of each filled band: place to (low, high), in the order drawn."""
    found = []
    for band in ax.collections:
        if isinstance(band, PolyCollection):
            x, y = band.get_paths()[0].vertices.T
            found.append({place: (y[x == place].min(), y[x == place].max()) for place in x})
    return found


def written(figure):
    """Draw for good, which is when matplotlib reads formulas, and return all that is written."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plt.rcParams, "svg.fonttype", "none")
        figure.savefig(text, format="svg")
    return text.getvalue()


def same_band(found, table, name, x):
    low, high = table[f"{name}_low95"], table[f"{name}_high95"]
    assert sorted(found) == pytest.approx(sorted(x))
    for place, ends in zip(x, zip(low, high, strict=True), strict=True):
        nearest = min(found, key=lambda p: abs(p - place))
        assert found[nearest] == pytest.approx(ends)


def test_dynamics_are_lines_with_bands_in_three_panels():
    table = summary()
    figure, drawn = figures.plot_dynamics(table, Phases(3, 10, ""))
    power, count, loss = figure.axes
    for ax, kinds in (
        (power, {"H": ("power", "generalizable"), "chance level": ("chance", "chance")}),
        (count, {"N": ("count", "network")}),
        (
            loss,
            {
                "training loss": ("train_loss", "train"),
                "test loss": ("test_loss", "test"),
                "gap": ("gap", "non-generalizable"),
            },
        ),
    ):
        assert list(lines(ax)) == list(kinds)
        for label, (name, colour) in kinds.items():
            line = lines(ax)[label]
            assert line.get_xdata().tolist() == [0, 1, 2, 3]
            assert line.get_ydata().tolist() == table[name].tolist()
            assert to_hex(line.get_color()).upper() == COLOURS[colour]
        banded = [name for name, _ in kinds.values() if name in NAMES]
        assert len(bands(ax)) == len(banded)
        for band, name in zip(bands(ax), banded, strict=True):
            same_band(band, table, name, [0, 1, 2, 3])
        # The phases, as vertical lines at the places of their checkpoints.
        ends = [x for x in ax.lines if x.get_xdata()[0] == x.get_xdata()[-1]]
        assert [x.get_xdata()[0] for x in ends] == [1, 2]
        assert [t.get_text() for t in ax.texts] == ["$t_1$", "$t_2$"]
    assert len({x.get_linestyle() for x in lines(loss).values()}) == 3
    assert [t.get_text() for t in loss.get_xticklabels()] == ["0", "3", "10", "30"]
    assert drawn is table


def test_losses_that_nobody_measured_have_no_panel():
    names = ["train_loss", "test_loss", "gap"]
    table = summary().assign(**dict.fromkeys(names, math.nan))
    figure, _ = figures.plot_dynamics(table, Phases(3, 10, ""))
    assert [ax.get_ylabel() for ax in figure.axes] == ["H", "N"]
    assert [t.get_text() for t in figure.axes[-1].get_xticklabels()] == ["0", "3", "10", "30"]
    # One that was is drawn alone.
    figure, _ = figures.plot_dynamics(table.assign(gap=1.0), Phases(3, 10, ""))
    assert figure.axes[2].get_ylabel() == "loss (nats)"


def test_boundaries_that_do_not_exist_are_not_drawn():
    figure, _ = figures.plot_dynamics(summary(), Phases(3, None, ""))
    assert [t.get_text() for t in figure.axes[0].texts] == ["$t_1$"]
    ax, _ = figures.plot_gains(summary(), Phases(None, None, ""))
    assert not ax.texts


def test_gains_are_bars_side_by_side_at_every_checkpoint_but_the_first():
    table = summary()
    table["non_generalizable"] = [1.0, 0.5, 2.0, 2.0]
    ax, drawn = figures.plot_gains(table, Phases(3, 10, ""))
    for name, shift in (("generalizable", -0.2), ("non_generalizable", 0.2)):
        colour = COLOURS[name.replace("_", "-")]
        bars = [p for p in ax.patches if to_hex(p.get_facecolor()).upper() == colour]
        middle = [p.get_x() + p.get_width() / 2 for p in bars]
        assert middle == pytest.approx([1 + shift, 2 + shift, 3 + shift])
        expected = np.diff(table[name])
        assert [p.get_height() for p in bars] == pytest.approx(expected.tolist())
        assert drawn[name].tolist() == pytest.approx(expected.tolist())
    assert drawn["step"].tolist() == STEPS[1:]
    hatched = {p.get_hatch() for p in ax.patches}
    assert len(hatched) == 2
    low, high = ax.get_ylim()
    assert low < -0.5 and high > 1.5
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "3", "10", "30"]
    names = [t.get_text() for t in ax.get_legend().get_texts()]
    assert names == ["generalizable", "non-generalizable"]


def test_several_studies_are_lines_over_epochs_with_the_untrained_network_at_the_left():
    tables = {"one": summary(1), FORMULA: summary(2, banded=("power",))}
    tables[FORMULA]["epoch"] *= 10
    figure, drawn = figures.plot_several_dynamics(tables, ("power", "count", "gap"))
    power, count, gap = figure.axes
    left = 0.3 / (30 / 0.3) ** 0.12
    places = {"one": [left, 0.3, 1.0, 3.0], FORMULA: [left, 3.0, 10.0, 30.0]}
    for ax, name in ((power, "power"), (count, "count"), (gap, "gap")):
        labelled = [x for x in ax.lines if not x.get_label().startswith("_")]
        assert len(labelled) == 2
        for line, (label, table) in zip(labelled, tables.items(), strict=True):
            assert line.get_xdata().tolist() == pytest.approx(places[label])
            assert line.get_ydata().tolist() == table[name].tolist()
        looks = {(x.get_color(), x.get_marker(), x.get_linestyle()) for x in labelled}
        assert len({c for c, _, _ in looks}) == len({m for _, m, _ in looks}) == 2
        same_band(bands(ax)[0], tables["one"], name, places["one"])
        assert len(bands(ax)) == (2 if name == "power" else 1)
    thin = [x for x in power.lines if x.get_linewidth() < 1]
    assert [x.get_ydata().tolist() for x in thin] == [t["chance"].tolist() for t in tables.values()]
    assert [x.get_color() for x in thin] == [x.get_color() for x in power.lines if x not in thin]
    ticks = dict(zip(gap.get_xticks(), gap.get_xticklabels(), strict=True))
    told = {f"{place:.3g}": label.get_text() for place, label in ticks.items()}
    named = {x: x for x in ("0.5", "1", "2", "5", "10", "20")}
    assert told == {f"{left:.3g}": "untrained", **named}
    assert r"$\foo_$" in written(figure)
    mine = drawn[(drawn["label"] == FORMULA) & (drawn["quantity"] == "count")]
    assert mine["value"].tolist() == mine["low95"].tolist() == tables[FORMULA]["count"].tolist()
    assert len(drawn) == 2 * 3 * 4


def test_training_is_drawn_with_the_untrained_network_left_of_the_first_step():
    records = pd.DataFrame({
        "step": [0, 3, 30], "epoch": [0.0, 0.3, 3.0], "train_accuracy": [0.1, 0.5, 1.0],
        "test_accuracy": [0.1, 0.4, 0.7], "test_loss": [2.0, 1.0, 1.5],
    })  # fmt: skip
    titles = ["cnn on digits", "resnet20 on photographs", "bert on texts"]
    figure, drawn = figures.plot_training(dict.fromkeys(titles, records))
    assert [ax.get_title() for ax in figure.axes if ax.get_visible()] == titles
    training, test = figure.axes[1].lines
    assert training.get_xdata().tolist() == pytest.approx([0.1, 0.3, 3.0])
    assert training.get_ydata().tolist() == [0.1, 0.5, 1.0]
    assert test.get_ydata().tolist() == [0.1, 0.4, 0.7]
    assert to_hex(training.get_color()).upper() == COLOURS["train"]
    assert to_hex(test.get_color()).upper() == COLOURS["test"]
    assert training.get_linestyle() != test.get_linestyle()
    assert drawn.groupby("network").size().tolist() == [3, 3, 3]
    assert "test_loss" not in drawn
    assert r"$\foo_$" in written(figures.plot_training({FORMULA: records})[0])


def test_boundaries_are_marks_as_large_as_their_share():
    draws = pd.DataFrame({"t1": [3] * 3 + [10], "t2": [30, None, None, None]}, dtype="Int64")
    figure, found = figures.plot_boundaries({"first": draws, FORMULA: draws.iloc[:3]})
    first, second = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["$t_1$", "$t_2$"]
    assert [t.get_text() for t in first.get_xticklabels()] == ["3", "10", "30", "none"]

    def marks(ax):
        return {
            tuple(mark.get_offsets()[0].tolist()): (mark.get_sizes()[0] - 25) / 330
            for mark in ax.collections
        }

    assert marks(first) == pytest.approx({(0, 0): 0.75, (1, 0): 0.25, (0, 1): 1.0})
    expected = {(3, 0): 0.75, (2, 0): 0.25, (3, 1): 2 / 3, (2, 1): 1 / 3}
    assert marks(second) == pytest.approx(expected)
    assert sorted(t.get_text() for t in first.texts) == ["100%", "25%", "75%"]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first label is at the top
    assert r"$\foo_$" in written(figure)
    none = found[(found["label"] == "first") & (found["boundary"] == "t2") & found["step"].isna()]
    assert none["share"].tolist() == [0.75]


def test_small_shares_are_marked_and_not_written():
    draws = pd.DataFrame({"t1": [3] * 97 + [10] * 3, "t2": [30] * 100}, dtype="Int64")
    figure, _ = figures.plot_boundaries({"first": draws})
    assert len(figure.axes[0].collections) == 2
    assert [t.get_text() for t in figure.axes[0].texts] == ["97%"]


def test_a_map_is_a_field_a_cell_with_its_mean_and_one_scale_a_quantity():
    grid = [(s, w, c) for s in (100, 300) for w in (0.0, 0.2) for c in (4, 16)]
    rows = [
        (*cell, name, change, k / 10 * (-1) ** i + j)
        for k, cell in enumerate(grid)
        for j, name in enumerate(("power", "count"))
        for i, change in enumerate(("first", "then"))
    ]
    columns = ["training samples", "wrong labels", "width", "quantity", "change", "value"]
    table = pd.DataFrame(rows, columns=columns)
    figure, drawn = figures.plot_moves(table, "training samples", "wrong labels")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [
        f"{name}, {change}"
        for name in ("H", "N")
        for change in ("up to its extreme", "from there to the end")
    ]
    factors = ["quantity", "change", "training samples", "wrong labels"]
    mean = table.groupby(factors)["value"].mean().sort_index()
    for ax, (name, change) in zip(
        figure.axes, [(q, c) for q in ("power", "count") for c in ("first", "then")], strict=True
    ):
        values = ax.images[0].get_array().flatten()
        assert values.tolist() == pytest.approx(mean[name, change].tolist())
        assert len(ax.texts) == 4 and ax.texts[0].get_text()[0] in "+-"
        low, high = ax.images[0].get_clim()
        assert low == -high == pytest.approx(-mean[name].abs().max())
    assert len(drawn) == 2 * 2 * 4


def test_cases_stand_side_by_side_with_their_phases_shaded():
    phases = {"rises and falls": [1, 1, 2, 3], "neither": [None] * 4}
    rows = [
        (label, 10 * i, i / 2, phase, name, i + k, i + k - 0.5, i + k + 0.5)
        for label, numbers in phases.items()
        for i, phase in enumerate(numbers)
        for k, name in enumerate(("power", "chance", "count", "gap"))
    ]
    columns = ["label", "step", "epoch", "phase", "quantity", "value", "low95", "high95"]
    table = pd.DataFrame(rows, columns=columns).astype({"phase": "Int64"})
    figure, drawn = figures.plot_cases(table)
    assert drawn is table and len(figure.axes) == 6
    assert [ax.get_title() for ax in figure.axes[:2]] == [*phases]
    for row, k in enumerate((0, 2, 3)):
        line = figure.axes[2 * row].lines[0]
        assert line.get_ydata().tolist() == [k, k + 1, k + 2, k + 3]
        assert line.get_xdata().tolist() == [0.25, 0.5, 1.0, 1.5]  # the untrained one at the left
    assert figure.axes[0].lines[1].get_ydata().tolist() == [1, 2, 3, 4]
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in figure.axes[4].patches]
    assert spans == [(0.25, 0.5), (0.5, 1.0), (1.0, 1.5)]
    assert [t.get_text() for t in figure.axes[0].texts] == ["1", "2", "3"]
    assert not figure.axes[1].patches and not figure.axes[1].texts


def test_dynamics_are_drawn_from_their_summary():
    with pytest.raises(ValueError, match=r"table is Phases; .*plot_dynamics\(dynamics.summary"):
        _refuse_no_table(Phases(3, 10, ""))
