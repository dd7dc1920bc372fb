"""Chapter B on planted tasks: which strength belongs to the rule, and which of it is confirmed."""

import ast
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT

from symgen import sparsify
from symgen.book import notebooks
from symgen.data.planted import SIGNS, planted_outputs, planted_signs, sign_outputs

SENTENCES = ["superb and charming film here", "hardly awful film here", "clumsy film red here"]
WORDS = [["superb", "charming", "film"], ["hardly", "awful", "film"], ["clumsy", "film", "red"]]


@pytest.fixture(scope="module")
def chapter():
    """Return the imports and functions of chapter B by name."""
    cells = notebooks.code_cells(notebooks.read_chapter(ROOT, "B_measure"))
    nodes = [node for cell in cells for node in ast.parse(cell.source).body]
    kept = [x for x in nodes if isinstance(x, ast.FunctionDef | ast.Import | ast.ImportFrom)]
    names = {"main": SimpleNamespace(noise=0.02, tol=1e-3)}
    exec(compile(ast.Module(kept, []), "B_measure", "exec"), names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def rule():
    return planted_outputs(SENTENCES, WORDS, [1, 1, 0])


def alone(*members, n=3):
    """Return outputs to which an AND of these variables adds 1."""
    index = sum(1 << i for i in members)
    return (torch.arange(2**n) & index == index).double()


def sizes(parts):
    return {name: x.sum((1, 2)).tolist() for name, x in parts.items()}


def test_a_network_that_equals_the_rule_is_true_and_confirmed_by_the_rule_alone(chapter, rule):
    network = sparsify(rule)
    parts = chapter.parts_of(network, rule)
    assert sizes(parts)["true"] == pytest.approx(network.objective.tolist(), rel=0.02)
    assert sizes(parts)["other"] == sizes(parts)["unclear"] == [0, 0, 0]
    elsewhere = sparsify(alone(2).expand(3, 8))
    same = chapter.confirmed(network, [network, elsewhere], parts, tau=0.05)
    assert same["true"].tolist() == [1, 0]  # one of the two baselines has it, not both
    assert chapter.confirmed(network, [elsewhere], parts, tau=0.05)["true"].tolist() == [0]


def test_what_a_network_adds_is_other_or_unclear(chapter, rule):
    read = [(0, 1), (0, 1), (0,)]
    unread = [2, 2, 1]
    foreign = torch.zeros(3, 2, 8, dtype=torch.float64)
    foreign[range(3), 0, [1 << i for i in unread]] = 0.5
    network = sparsify(rule)
    parts = chapter.parts_of(replace(network, effects=network.effects + foreign), rule)
    assert sizes(parts)["other"] == pytest.approx([0.5] * 3)
    against = torch.stack([alone(*members) for members in read])
    parts = chapter.parts_of(sparsify(-against, noise=0), rule)
    assert sizes(parts)["other"] == [0, 0, 0]
    # The negated sentence has this AND with the other sign; the first has an OR instead.
    assert sizes(parts)["unclear"] == pytest.approx([1] * 3, abs=1e-3)


def test_the_continuous_measure_confirms_by_size(chapter, rule):
    network = sparsify(rule)
    half = replace(network, full=2 * network.full - network.bias)
    parts = chapter.parts_of(network, rule)
    how = {"tau": 0.05, "metric": "similarity"}
    share = chapter.confirmed(network, [half], parts, **how)["true"].item()
    assert share == pytest.approx(0.5, abs=0.01)  # its total effect is twice as large


def test_the_rule_of_signs_needs_both_neighbors():
    pictures = planted_signs("test").take(range(20))
    patches = torch.arange(9).expand(20, 9)
    v = sign_outputs(pictures, patches)
    for picture, outputs in zip(pictures, v, strict=True):
        cells = [picture[6 * (k // 3) :, 6 * (k % 3) :][:5, :5, 0] > 130 for k in range(9)]
        pair = [
            k for k, cell in enumerate(cells) if any(np.array_equal(cell, s) for s in SIGNS[:2])
        ]
        assert len(pair) == 2 and pair[1] == pair[0] + 1 and pair[0] % 3 < 2
        assert torch.equal(outputs, 2 * alone(*pair, n=9).float())
    assert planted_signs("test").labels.mean() == pytest.approx(0.5, abs=0.05)
