"""The graph of a sample's interactions."""

import pytest
import torch

import symgen
from symgen import figures
from symgen.transforms import and_or_outputs


@pytest.fixture(scope="module")
def graph():
    effects = torch.zeros(2, 2**4, dtype=torch.float64)
    effects[0, 0b0011], effects[0, 0b1000], effects[1, 0b1110] = 2.0, -1.0, 0.5
    inter = symgen.sparsify(and_or_outputs(effects[0], effects[1]), noise=0.0)
    return figures.plot_graph(inter, ["a", "b", "c", "d"], target="word")


def test_the_graph_shows_every_interaction_with_its_sign_and_effect(graph):
    ax, table = graph
    texts = [text.get_text() for text in ax.texts]
    assert {"a", "b", "c", "d", "word", "∧", "∨"} <= set(texts)
    for effect in table["effect"]:
        assert f"{effect:+.2f}" in texts
    assert [label.get_text() for label in ax.get_yticklabels()] == ["order 1", "order 2", "order 3"]
