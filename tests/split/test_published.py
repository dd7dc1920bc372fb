"""The published procedure: what it descends to, how it compares, and what a rate leaves behind."""

import pytest
import torch
from outputs import network_outputs, planted

import symgen
from symgen.split.published import RATES, least, published
from symgen.transforms import interaction_order


@pytest.fixture(scope="module")
def v():
    return network_outputs(6, 3)


def test_it_descends_to_a_feasible_split_above_the_optimum(v):
    start, end = (published(v, rate=1e-3, steps=steps) for steps in (0, 2000))
    exact = symgen.sparsify(v, noise=0.02)
    assert (start.objective > end.objective).all()
    assert (end.objective > exact.objective * (1 - 1e-3)).all()
    eps = 0.02 * (v[:, -1:] - v[:, :1]).abs()
    assert ((end.predict() - v).abs() <= eps * (1 + 1e-5) + 1e-9).all()
    assert (end.predict()[:, 0] == v[:, 0]).all()


def test_it_returns_what_sparsify_returns(v):
    found, exact = published(v, rate=1e-3, steps=50), symgen.sparsify(v)
    assert found.n == exact.n and found.and_.dtype == exact.and_.dtype
    assert torch.equal(found.bias, exact.bias) and torch.equal(found.full, exact.full)
    torch.testing.assert_close(found.objective, found.effects.abs().sum((-2, -1)))
    assert found.gap.isnan().all()
    order = interaction_order(6)
    assert not found.effects[..., order == 0].any() and not found.or_[:, order == 1].any()


def descended(v, noise, rate, steps):
    """Gradient descent by the library's own optimizer and derivatives, from the definition."""
    w = (v - v[:, :1]).float()
    eps = (noise * (v[:, -1:] - v[:, :1]).abs()).float()
    p, q = (torch.zeros_like(w, requires_grad=True) for _ in range(2))
    sgd = torch.optim.SGD([p, q], lr=rate, momentum=0.9)
    for step in range(steps):
        sgd.param_groups[0]["lr"] = rate * 0.1 ** (step / steps)
        sgd.zero_grad()
        half = (w + q) / 2
        and_, or_ = symgen.moebius(half + p), -symgen.moebius((half - p).flip(-1))
        (and_[:, 1:].abs().sum() + or_[:, 1:].abs().sum()).backward()
        for x in (p, q):
            x.grad[:, 0] = 0
        sgd.step()
        with torch.no_grad():
            q.copy_(torch.minimum(torch.maximum(q, -eps), eps))
    half = (w + q) / 2
    return torch.stack([symgen.moebius(half + p), -symgen.moebius((half - p).flip(-1))], 1).detach()


def test_its_steps_are_those_of_gradient_descent_with_momentum(v):
    found = published(v, 0.02, 1e-4, steps=20).effects.float()
    expected = descended(v, 0.02, 1e-4, steps=20)
    order = interaction_order(6)
    torch.testing.assert_close(found[..., order > 1], expected[..., order > 1], rtol=0, atol=2e-5)


def test_a_batch_of_any_shape_changes_nothing(v):
    one = published(v, rate=1e-3, steps=100)
    more = published(torch.stack([v.flip(0), v]), rate=1e-3, steps=100)
    torch.testing.assert_close(more[1].effects, one.effects, rtol=0, atol=1e-4)
    assert more.objective.shape == (2, 3)


def test_without_a_rate_every_sample_has_the_best_of_three(v):
    # Outputs of several sizes, so that the best rate is not the same for all.
    v = v[:, :16] * torch.tensor([[1e-2], [1.0], [1e2]])
    each = [published(v, rate=rate, steps=400) for rate in RATES]
    best = published(v, steps=400)
    sizes = torch.stack([x.objective for x in each])
    assert torch.equal(best.objective, sizes.amin(0))
    assert len(sizes.argmin(0).unique()) > 1
    for k in range(3):
        assert torch.equal(best[k].effects, each[int(sizes[:, k].argmin())][k].effects)
    assert least(each[:1]) == each[0]


def test_a_rate_is_a_floor_of_effects_that_small_outputs_do_not_rise_above():
    """The exact split of 0.001 v is 0.001 times that of v; the published one is another."""
    and_, or_, v = planted(6, 2, seed=0)
    truth, scales = torch.stack([and_, or_]), torch.tensor([1e-2, 1e-3], dtype=v.dtype)
    small = scales[:, None] * v

    def invented(inter):
        off = inter.effects / scales[:, None, None] - truth
        return off.abs().sum((1, 2)) / truth.abs().sum()

    assert (invented(symgen.sparsify(small, noise=0.0)) < 1e-3).all()
    larger, smaller = invented(published(small, noise=0.0, rate=1e-5, steps=5000))
    assert larger < 1 and smaller > 4


def test_a_rate_is_in_units_of_the_outputs(v):
    small = published(v / 1024, rate=1e-3 / 1024, steps=200)
    torch.testing.assert_close(
        1024 * small.effects, published(v, rate=1e-3, steps=200).effects, rtol=0, atol=1e-4
    )
