"""Figures of other explanations: each mark is the number it stands for."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import symgen
from symgen import figures
from symgen.method.attributions import attribution_table
from symgen.method.surrogates import share_explained, surrogate_table, surrogates


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def game():
    v = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return v, symgen.Interactions.from_moebius(v, 0.5)


def test_values_are_one_mark_a_method_and_variable():
    values = {"one": torch.tensor([1.0, -2.0, 0.5]), "$two$": torch.tensor([0.0, 1.0, 3.0])}
    ax, drawn = figures.plot_attributions(attribution_table(values, ["a", "b", "c"]))
    lines = [x for x in ax.lines if len(x.get_xdata()) == 3]
    for line, expected in zip(lines, values.values(), strict=True):
        assert line.get_ydata().tolist() == expected.tolist()
        assert np.abs(np.asarray(line.get_xdata()) - [0, 1, 2]).max() < 0.5
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b", "c"] and len(drawn) == 6
    assert len({x.get_marker() for x in lines}) == 2


def test_surrogates_are_drawn_state_by_state(game):
    v, inter = game
    models = {k: x for k, x in surrogates(v[0], inter[0]).items() if k in ("LIME", "Faith-SHAP")}
    figure, drawn = figures.plot_surrogates(v[0], models)
    for ax, (name, model) in zip(figure.axes, models.items(), strict=True):
        dots = ax.lines[1]
        assert np.allclose(dots.get_xdata(), v[0]) and ax.get_title() == name
        assert np.allclose(dots.get_ydata(), model.predict())
        assert ax.texts[0].get_text() == f"{float(share_explained(v[0], model)):.0%} explained"
    assert len(drawn) == 16
    figure, _ = figures.plot_surrogates(torch.ones(8).double(), models)
    assert figure.axes[0].texts[0].get_text() == "the output never changes"


def test_what_models_explain_are_bars_with_intervals(game):
    table = surrogate_table(*game)
    ax, drawn = figures.plot_explained(table)
    means = table.groupby("model", sort=False)["explained"].mean()
    assert np.allclose([bar.get_width() for bar in ax.patches], means)
    assert [t.get_text() for t in ax.get_yticklabels()][:2] == ["occlusion (3)", "LIME (3)"]
    assert [bar.get_hatch() for bar in ax.patches][-2:] == ["///", "///"]
    assert (drawn["low95"] <= drawn["explained"]).all()
