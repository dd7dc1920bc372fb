"""Other explanations from AND and OR effects: by definition, by shapiq, and what each hides."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from symgen.interactions import Interactions
from symgen.method import attributions, surrogates
from symgen.split.sparsify import sparsify
from symgen.transforms import moebius

N = 4


def drawn(seed, n=N, batch=(2,)):
    """AND and OR effects of all orders, as no split would give them; and the game they make."""
    generator = torch.Generator().manual_seed(seed)
    and_, or_ = torch.randn(2, *batch, 2**n, generator=generator, dtype=torch.float64)
    and_[..., 0] = or_[..., 0] = 0
    bias = torch.randn(batch, generator=generator, dtype=torch.float64)
    zero = torch.zeros_like(bias)
    inter = Interactions(and_, or_, bias, zero, zero, zero)
    return inter, inter.predict()


def subsets(members):
    members = [*members]
    chosen = (itertools.combinations(members, k) for k in range(len(members) + 1))
    return [sum(1 << i for i in c) for cs in chosen for c in cs]


def by_marginals(v, weight):
    """The mean of what a variable adds, over the states of the others, straight from a weight."""
    found = []
    for i in range(N):
        others = subsets(set(range(N)) - {i})
        found.append(sum(weight(s.bit_count()) * (v[..., s | 1 << i] - v[..., s]) for s in others))
    return torch.stack(found, -1)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_single_values_are_those_of_their_definitions(seed):
    inter, v = drawn(seed)

    def share(s):
        return math.factorial(s) * math.factorial(N - 1 - s) / math.factorial(N)

    assert torch.allclose(attributions.shapley(inter), by_marginals(v, share))
    assert torch.allclose(attributions.banzhaf(inter), by_marginals(v, lambda s: 0.5 ** (N - 1)))
    assert torch.allclose(attributions.occlusion(v), by_marginals(v, lambda s: 1.0 * (s == N - 1)))
    assert torch.allclose(attributions.shapley(inter).sum(-1), v[..., -1] - v[..., 0])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_shapley_taylor_is_its_definition(seed):
    inter, v = drawn(seed)
    found = attributions.shapley_taylor(inter)
    assert torch.equal(found, found.mT)
    for i in range(N):
        assert torch.allclose(found[..., i, i], v[..., 1 << i] - v[..., 0])
        for j in range(i):
            a, b, total = 1 << i, 1 << j, 0.0
            for s in subsets(set(range(N)) - {i, j}):
                change = v[..., s | a | b] - v[..., s | a] - v[..., s | b] + v[..., s]
                total = total + change / math.comb(N - 1, s.bit_count())
            assert torch.allclose(found[..., i, j], 2 / N * total)
    assert torch.allclose(found.tril().sum((-2, -1)), v[..., -1] - v[..., 0])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_faith_shap_is_the_best_fit_of_order_two(seed):
    """Weighted least squares as in its definition, the two ends held by a large weight."""
    inter, v = drawn(seed)
    bits = torch.arange(2**N)[:, None] >> torch.arange(N) & 1
    pairs = [(i, j) for i in range(N) for j in range(i)]
    columns = [torch.ones(2**N), *bits.T, *(bits[:, i] * bits[:, j] for i, j in pairs)]
    design = torch.stack([c.double() for c in columns], 1)
    size = bits.sum(1).tolist()
    weight = torch.tensor([
        1e7 if s in (0, N) else (N - 1) / (math.comb(N, s) * s * (N - s)) for s in size
    ]).double().sqrt()  # fmt: skip
    fit = torch.linalg.lstsq(weight[:, None] * design, (weight * v).mT).solution.mT
    found = attributions.faith_shap(inter)
    assert torch.allclose(found.diagonal(dim1=-2, dim2=-1), fit[..., 1 : N + 1], atol=1e-5)
    for k, (i, j) in enumerate(pairs):
        assert torch.allclose(found[..., i, j], fit[..., N + 1 + k], atol=1e-5)
        assert torch.allclose(found[..., j, i], fit[..., N + 1 + k], atol=1e-5)
    assert torch.allclose(found.tril().sum((-2, -1)), v[..., -1] - v[..., 0])


@pytest.mark.parametrize(
    ("index", "order", "function"),
    [
        ("SV", 1, attributions.shapley), ("BV", 1, attributions.banzhaf),
        ("STII", 2, attributions.shapley_taylor), ("FSII", 2, attributions.faith_shap),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [3, 6])
def test_shapiq_says_the_same(index, order, function, n):
    shapiq = pytest.importorskip("shapiq")
    inter, v = drawn(7, n=n, batch=())

    def game(coalitions):
        return v.numpy()[np.asarray(coalitions) @ (1 << np.arange(n))]

    theirs = shapiq.ExactComputer(n_players=n, game=game)(index=index, order=order)
    ours = function(inter)
    for i in range(n):
        own = ours[i] if order == 1 else ours[i, i]
        assert float(own) == pytest.approx(theirs[(i,)], abs=1e-6)
        for j in range(i if order == 2 else 0):
            assert float(ours[i, j]) == pytest.approx(theirs[(j, i)], abs=1e-6)


def test_they_do_not_depend_on_the_split():
    """AND alone, OR alone and the sparsest split of one game have the same values."""
    _, v = drawn(3)
    splits = [Interactions.from_moebius(v, share) for share in (1.0, 0.5, 0.0)]
    splits.append(sparsify(v, noise=0.0, tol=1e-9))
    for function in (
        attributions.shapley, attributions.banzhaf,
        attributions.shapley_taylor, attributions.faith_shap,
    ):  # fmt: skip
        first, *others = (function(inter) for inter in splits)
        assert all(torch.allclose(first, other, atol=1e-6) for other in others)


def test_banzhaf_is_the_linear_model_that_lime_comes_to_with_a_wide_kernel():
    inter, v = drawn(5)
    wide = attributions.lime(v, width=1e6, ridge=0.0)
    assert torch.allclose(wide, attributions.banzhaf(inter), atol=1e-6)


def test_lime_draws_with_a_seed_and_shrinks_with_a_penalty():
    _, v = drawn(5)
    one, same, other = (attributions.lime(v, samples=50, seed=s) for s in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == (2, N)
    assert torch.allclose(one[0], attributions.lime(v[0], samples=50, seed=0))
    assert attributions.lime(v, ridge=1e9).abs().max() < 1e-6
    with pytest.raises(ValueError, match="width = 0, ridge = 1.0, samples = None: expected"):
        attributions.lime(v, width=0)
    with pytest.raises(ValueError, match="samples = 0"):
        attributions.lime(v, samples=0)


@pytest.mark.parametrize("kind", ["shapley", "shapley_taylor"])
def test_a_surrogate_has_the_values_it_was_made_of(kind):
    inter, v = drawn(9)
    function = getattr(attributions, kind)
    twin = surrogates.surrogate(function(inter), inter.bias)
    assert torch.allclose(function(twin), function(inter))
    assert torch.allclose(attributions.shapley(twin), attributions.shapley(inter))
    assert torch.allclose(twin.predict()[..., [0, -1]], v[..., [0, -1]])
    assert torch.allclose(twin.full, v[..., -1]) and not torch.allclose(twin.predict(), v)
    assert torch.allclose(moebius(twin.predict())[..., -1], torch.zeros(2).double())


def test_what_a_model_explains_is_one_less_what_it_misses():
    inter, v = drawn(11)
    found = surrogates.surrogates(v, inter)
    assert [*found][-2:] == [f"AND-OR, {k} strongest" for k in (N, 10)]
    for model in found.values():
        miss = v - model.predict()
        expected = 1 - (miss - miss.mean(-1, keepdim=True)).square().sum(-1) / (
            v - v.mean(-1, keepdim=True)
        ).square().sum(-1)
        assert torch.allclose(surrogates.share_explained(v, model), expected)
    # No linear model is nearer to all states than that of the Banzhaf values.
    nearest = surrogates.share_explained(v, found["Banzhaf"])
    for linear in ("occlusion", "LIME", "Shapley"):
        assert bool((nearest >= surrogates.share_explained(v, found[linear])).all())
    assert torch.allclose(surrogates.share_explained(v, inter), torch.ones(2).double())
    table = surrogates.surrogate_table(v, inter)
    assert table.groupby("model")["numbers"].first()[["LIME", "Faith-SHAP"]].tolist() == [N, 10]
    flat = surrogates.share_explained(torch.ones(2, 2**N).double(), found["LIME"])
    assert flat.isnan().all()


def test_the_strongest_interactions_alone():
    inter, _ = drawn(13)
    few = surrogates.strongest(inter, 3)
    size = inter.effects.abs().flatten(-2)
    assert (few.effects != 0).sum((-2, -1)).tolist() == [3, 3]
    assert torch.allclose(few.objective, size.topk(3).values.sum(-1))
    assert torch.allclose(few.full, few.predict()[..., -1])


def test_a_table_of_values_names_the_variables():
    values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    table = attributions.attribution_table(values, ["x", "y"])
    assert table["variable"].tolist() == ["x", "y"] * 2 and table["value"].tolist() == [1, 2, 3, 4]
    assert attributions.attribution_table(values)["variable"].tolist() == ["0", "1"] * 2
