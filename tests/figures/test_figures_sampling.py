"""Figures of sampled states: what they draw."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from symgen import figures
from symgen.method.statistics import interval


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def table():
    rows = [
        ("sampled", states, i, u / 2**i, h + 0.1 * i)
        for states, u, h in ((64, 0.1, 0.4), (256, 0.02, 0.8))
        for i in range(3)
    ]
    rows += [("exact, again", 1024, i, 0.001, 0.9) for i in range(3)]
    return pd.DataFrame(rows, columns=["model", "states", "sample", "unexplained", "shared"])


def test_means_and_intervals_stand_over_the_number_of_states():
    given = table()
    figure, drawn = figures.plot_sampled(given)
    left, right = figure.axes
    for ax, what in ((left, "unexplained"), (right, "shared")):
        own = drawn[(drawn["what"] == what) & (drawn["model"] == "sampled")]
        x, y = ax.lines[0].get_data()
        assert list(x) == [64, 256] and list(y) == pytest.approx(own["value"].tolist())
        some = given[(given["model"] == "sampled") & (given["states"] == 64)][what]
        assert tuple(own.iloc[0][["value", "low95", "high95"]]) == pytest.approx(
            tuple(interval(torch.tensor(some.to_numpy())))
        )
        (across,) = [line for line in ax.lines if line.get_label() == "exact, again"]
        assert set(across.get_ydata()) == {0.001 if what == "unexplained" else 0.9}
        assert [t.get_text() for t in ax.get_xticklabels()] == ["64", "256"]
    assert left.get_yscale() == "log"
    # No whisker leaves what a share can be.
    ends = np.concatenate([p for c in right.collections for p in c.get_segments()])[:, 1]
    assert ends.min() >= 0 and ends.max() <= 1 + 1e-9


def test_peers_have_a_bar_for_the_mean_and_a_dot_for_each_sample():
    given = pd.DataFrame({
        "model": ["AND-OR", "SPEX"] * 2, "sample": [0, 0, 1, 1],
        "unexplained": [0.1, 0.3, 0.2, 0.5],
    })  # fmt: skip
    ax, drawn = figures.plot_peers(given)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.15, 0.4])
    assert drawn["model"].tolist() == ["AND-OR", "SPEX"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["AND-OR", "SPEX"]
    assert sorted(ax.lines[1].get_xdata()) == [0.3, 0.5]
    assert ax.patches[0].get_hatch() and not ax.patches[1].get_hatch()
