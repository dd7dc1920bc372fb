"""Few effects: the same certificate, fewer effects than a vertex, no matter the order."""

import pytest
import torch
from oracle import check, distance, highs, one_thread, renumbered  # noqa: F401
from outputs import network_outputs

import symgen
from symgen.transforms import interaction_order


def count(inter: symgen.Interactions) -> torch.Tensor:
    return (inter.effects != 0).sum((-2, -1))


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("n", [1, 3, 6])
def test_few_effects_keep_the_contract_and_the_gap(n, noise):
    v = network_outputs(max(n, 2), 3)[:, : 2**n]
    few, central = symgen.sparsify(v, noise=noise, few=True), symgen.sparsify(v, noise=noise)
    check(v, few, noise)
    assert few.gap.max() <= 1e-3 and (count(few) <= count(central)).all()
    bound = few.objective * (1 - few.gap)
    assert (bound <= central.objective * (1 + 1e-9)).all()


def test_there_are_fewer_effects_than_in_a_vertex():
    v = network_outputs(7, 4)
    vertices = [int((abs(highs(x, 0.02, "highs-ds").x) > 1e-9).sum()) for x in v]
    few = count(symgen.sparsify(v, few=True))
    assert float((few / torch.tensor(vertices)).mean()) <= 0.8


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_order_of_variables_does_not_matter(noise):
    v = network_outputs(6, 3)
    labels = [3, 0, 5, 1, 4, 2]
    few = symgen.sparsify(v, noise=noise, few=True)
    other = symgen.sparsify(renumbered(v, labels), noise=noise, few=True)
    assert distance(few.relabelled(labels), other) < 1e-5
    majority = (interaction_order(3) >= 2).double()
    tied = symgen.sparsify(majority, noise=noise, few=True)
    assert distance(tied, tied.relabelled([2, 0, 1])) < 1e-5
    # The noise allows several models of the same strength.
    a, b, c, d, e, f = 0.293809, -0.473283, -0.681481, 0.260110, 0.051912, 0.0
    flat = torch.tensor([f, a, f, a, b, c, d, e], dtype=torch.float64)
    several = symgen.sparsify(flat, noise=0.05, few=True)
    other = symgen.sparsify(renumbered(flat[None], [2, 0, 1])[0], noise=0.05, few=True)
    assert distance(several.relabelled([2, 0, 1]), other) < 1e-5


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4])
def test_noise_on_planted_logic_leaves_few_effects(seed, tol):
    """3 AND{0,1,2} - 2 OR{3,4} + 0.5 AND{5,6} and normal noise: a central point has up to 2,036."""
    n, states = 9, torch.arange(2**9)
    generator = torch.Generator().manual_seed(seed)
    v = 3.0 * ((states & 7) == 7) - 2.0 * ((states & 24) != 0) + 0.5 * ((states & 96) == 96)
    v = v.double() + 0.01 * torch.randn(2**n, generator=generator, dtype=torch.float64)
    few = symgen.sparsify(v, tol=tol, few=True)
    check(v, few, 0.02)
    assert int(count(few)) <= 63 and few.gap <= tol
    strong = few.effects.abs() > 0.3
    assert strong.sum() == 3 and strong[0, 7] and strong[1, 24] and strong[0, 96]


def test_the_first_order_method_finds_few_effects(monkeypatch):
    """As for more than 11 variables."""
    monkeypatch.setattr("symgen.split.sparsify.DENSE_FIRST", 7)
    monkeypatch.setattr("symgen.split.sparsify.DENSE_LAST", 7)
    v = network_outputs(8, 1)
    few = symgen.sparsify(v, tol=1e-2, few=True)
    check(v, few, 0.02)
    assert few.gap <= 1e-2 and count(few) < 0.15 * few.possible


def test_tiny_effects_do_not_hide_few_larger_ones(monkeypatch):
    v = network_outputs(8, 6)[5:]  # 244 effects above 1e-5 of the largest, 56 above 1e-3
    monkeypatch.setattr("symgen.split.few.MOST_COLUMNS", 100)
    assert int(count(symgen.sparsify(v, few=True))) < 60
