"""Figures of the penalty draw the differences they are given, seed by seed."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from symgen import figures
from symgen.book.tables import reported
from symgen.method.arms import ARMS, MEASURES, difference_table, differences


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def table(seed, seeds=4):
    generator = np.random.default_rng(seed)
    return pd.DataFrame([
        {"arm": arm, "setting": 0.5, "seed": 10 * k}
        | {name: float(generator.uniform(0, 1)) for name in MEASURES}
        for k in range(seeds) for arm in ARMS
    ])  # fmt: skip


FORMULA = r"$\foo_$ a_b"


def test_every_seed_is_a_mark_and_every_arm_a_mean_with_its_interval():
    tables = {"one": table(0), FORMULA: table(1)}
    figure, drawn = figures.plot_arms(tables)
    pd.testing.assert_frame_equal(drawn, difference_table(tables))
    axes = np.reshape(figure.axes, (2, 3))
    for row, (label, given) in zip(axes, tables.items(), strict=True):
        for ax, measure in zip(row, ("accuracy", "power", "gap"), strict=True):
            wanted = differences(given, measure)
            told = [t.get_text().replace("\n", " ") for t in ax.get_xticklabels()]
            assert told == [ARMS[name] for name in wanted]
            marks = [line for line in ax.lines if line.get_marker() in "s^D"]
            small, large = marks[::2], marks[1::2]
            assert [line.get_ydata().tolist() for line in small] == [
                pytest.approx(values.tolist()) for values in wanted.values()
            ]
            mine = drawn[(drawn["label"] == label) & (drawn["measure"] == measure)]
            assert [float(line.get_ydata()[0]) for line in large] == pytest.approx(
                mine["difference"].tolist()
            )
            assert [float(line.get_xdata()[0]) for line in large] == [0, 1, 2]
            ends = [c.lines[2][0].get_segments()[0][:, 1] for c in ax.containers]
            assert np.allclose(ends, mine[["low95", "high95"]])
            assert len({to_hex(line.get_color()) for line in large}) == 3
            assert len({line.get_marker() for line in large}) == 3
    names = ("test accuracy", "H", "loss gap (nats)")
    assert [ax.get_ylabel() for ax in axes[0]] == [f"change of {name}" for name in names]
    assert [ax.get_title("left") for ax in axes[:, 0]] == ["one", r"\$\foo_\$ a_b"]
    figure.canvas.draw()


def test_one_seed_has_no_interval_and_is_drawn():
    figure, drawn = figures.plot_arms({"one": table(0, seeds=1)})
    figure.canvas.draw()
    assert drawn["low95"].isna().all() and drawn["difference"].notna().all()


def test_the_papers_numbers_stand_beside_ours():
    given = table(0)
    figure, drawn = figures.plot_against_paper({"one": given}, reported("reported"))
    ours = drawn[drawn["source"] == "here"].set_index("measure")
    for measure in ("power", "accuracy"):
        for arm in ("plain", "penalty"):
            mean = given[given["arm"] == arm][measure].mean()
            assert ours.loc[measure, arm] == pytest.approx(mean)
    told = drawn[drawn["source"] == "paper"]
    assert told[told["measure"] == "power"][["plain", "penalty"]].to_numpy().tolist() == [
        pytest.approx([0.28, 0.39])
    ]
    assert len(told[told["measure"] == "accuracy"]) == 3
    for ax, (_, mine) in zip(
        figure.axes, drawn.groupby("measure", sort=False), strict=True
    ):  # fmt: skip
        marks = {line.get_label(): line for line in ax.lines if line.get_marker() in "os"}
        for arm in ("plain", "penalty"):
            assert marks[arm].get_xdata().tolist() == pytest.approx(mine[arm].tolist())
        assert [t.get_text() for t in ax.get_yticklabels()] == [
            f"{row.label} ({row.source})" for row in mine.itertuples()
        ]
    figure.canvas.draw()
