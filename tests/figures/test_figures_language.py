"""Figures of fine-tuning: what stands where, how tall it is, and in which colour."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from symgen import figures
from symgen.figures.style import COLOURS
from symgen.method.changes import change_table


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def course(*labels, steps=(0, 3, 40)):
    rows = [(s, x, k + s / 10, k + s / 20, k + s / 5) for k, x in enumerate(labels) for s in steps]
    return pd.DataFrame(rows, columns=["step", "label", "mean", "low95", "high95"])


def test_a_course_has_a_line_a_label_with_its_band_at_evenly_spaced_checkpoints():
    table = course("H, other", "chance, other", "H, twin")
    ax, drawn = figures.plot_course(table, "H ($x$)")
    assert drawn is table
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "3", "40"]
    rows = dict(list(table.groupby("label")))
    for line in ax.lines:
        assert line.get_xdata().tolist() == [0, 1, 2]
        assert line.get_ydata().tolist() == rows[line.get_label()]["mean"].tolist()
    colours = {line.get_label(): to_hex(line.get_color()).upper() for line in ax.lines}
    assert colours == {
        "H, other": COLOURS["generalizable"],
        "chance, other": COLOURS["generalizable"],  # as the line that it belongs to
        "H, twin": COLOURS["non-generalizable"],
    }
    assert [line.get_linestyle() for line in ax.lines] == ["-", ":", "--"]
    # Chance levels have no band.
    assert len(ax.collections) == 2
    for band, label in zip(ax.collections, ("H, other", "H, twin"), strict=True):
        x, y = band.get_paths()[0].vertices.T
        last = y[x == 2]
        assert {last.min(), last.max()} == set(rows[label].iloc[-1][["low95", "high95"]])


def test_a_course_without_intervals_has_no_bands():
    ax, _ = figures.plot_course(course("new", "old")[["step", "label", "mean"]], "loss")
    assert len(ax.lines) == 2 and not ax.collections


def test_labels_of_a_course_are_text():
    ax, _ = figures.plot_course(course("_private", "$x$"), "loss")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [" _private", r"\$x\$"]


def changes(n, samples=3):
    kinds = ("new", "lost", "flipped", "strength", "small")
    rows = [
        (s, kind, m, sign * m * (1 + s / 10), m)
        for s in range(samples)
        for kind, sign in zip(kinds, (1, -1, 1, 1, -1), strict=True)
        for m in range(1, n + 1)
    ]
    rows += [(s, kind, 0, 0.5, 0.5) for s in range(samples) for kind in ("constant", "noise")]
    return pd.DataFrame(rows, columns=["sample", "kind", "order", "change", "moved"])


@pytest.mark.parametrize("n", [1, 4, 7, 12])
def test_changes_stand_by_kind_and_order_with_the_whole_in_black(n):
    some = changes(n)
    ax, table = figures.plot_changes(some)
    pd.testing.assert_frame_equal(table, change_table(some))
    kinds = [tick.get_text() for tick in ax.get_xticklabels()]
    assert kinds == [*some["kind"].unique(), "all"]
    tall = {
        (kinds[round(p.get_x() + p.get_width() / 2)], to_hex(p.get_facecolor()).upper()): p
        for p in ax.patches
    }
    assert len(tall) == len(ax.patches) == len(table)
    groups = [name for name in table["orders"].unique() if name not in ("none", "all")]
    colours = dict(zip(groups, (COLOURS[k] for k in ("and", "or", "test")), strict=False))
    colours |= {"none": COLOURS["all"], "all": COLOURS["network"]}
    for row in table.itertuples():
        assert tall[row.kind, colours[row.orders]].get_height() == pytest.approx(row.change)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [f"orders {g}" for g in groups]
    ends = np.concatenate([s for c in ax.collections for s in c.get_segments()])[:, 1]
    assert sorted(ends) == pytest.approx(sorted([*table["low95"], *table["high95"]]))


def test_changes_of_one_sample_have_no_error_bars():
    ax, table = figures.plot_changes(changes(6, samples=1))
    assert len(ax.patches) == len(table) and table["low95"].isna().all()
