"""The figure of planted interactions: which line stands where, how high, with which band."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import PolyCollection

import symgen
from symgen import figures

MEASURES = ("found", "invented", "count", "mean_order")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def table():
    """As of `planted_table`: two extractors, two scales, three levels of noise, four samples."""
    rng, rows = np.random.default_rng(0), []
    for name in ("exact", r"$\foo_$ a_b"):
        for scale in (1.0, 0.01):
            for noise in (0.0, 0.1, 0.3):
                for sample in range(4):
                    values = {"found": rng.uniform(0.2, 0.9), "invented": rng.uniform(0.2, 0.9)}
                    values |= {"count": rng.uniform(5, 50), "mean_order": rng.uniform(1, 4)}
                    key = {"extractor": name, "scale": scale, "noise": noise, "sample": sample}
                    rows.append({**key, **values})
    return pd.DataFrame(rows)


def test_planted_is_one_row_a_scale_one_panel_a_measure_and_one_line_an_extractor():
    given = table()
    figure, drawn = figures.plot_planted(given)
    axes = np.array(figure.axes).reshape(2, 4)
    for row, scale in zip(axes, (1.0, 0.01), strict=True):
        assert row[0].get_ylabel() == f"outputs times {scale:g}"
        for ax, measure in zip(row, MEASURES, strict=True):
            assert len(ax.lines) == 2
            bands = [x for x in ax.collections if isinstance(x, PolyCollection)]
            assert len(bands) == 2
            pairs = zip(ax.lines, bands, ("exact", r"$\foo_$ a_b"), strict=True)
            for line, band, name in pairs:
                part = given[(given["extractor"] == name) & (given["scale"] == scale)]
                means = part.groupby("noise")[measure].mean()
                assert line.get_xdata().tolist() == [0, 1, 2]
                assert line.get_ydata().tolist() == pytest.approx(means.tolist())
                own = torch.tensor(part[part["noise"] == 0.1][measure].to_numpy())
                expected = symgen.interval(own, share=measure in ("found", "invented"))
                x, y = band.get_paths()[0].vertices.T
                ends = y[x == 1].min(), y[x == 1].max()
                assert ends == pytest.approx((expected.low, expected.high))
                mine = drawn[(drawn["extractor"] == name) & (drawn["scale"] == scale)]
                mine = mine[mine["measure"] == measure]
                assert mine["value"].tolist() == pytest.approx(means.tolist())
                assert mine["low95"].iloc[1] == pytest.approx(expected.low)
            looks = {(x.get_color(), x.get_marker(), x.get_linestyle()) for x in ax.lines}
            assert len({c for c, _, _ in looks}) == len({s for _, _, s in looks}) == 2
    assert [t.get_text() for t in axes[1, 0].get_xticklabels()] == ["0", "0.1", "0.3"]
    named = [t.get_text() for t in figure.legends[0].get_texts()]
    assert named[0] == "exact" and len(named) == 2
    # A name is no formula.
    figure.canvas.draw()
