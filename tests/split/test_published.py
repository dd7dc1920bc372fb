"""The published procedure: its steps, its feasibility, and the best of its rates."""

import torch
from outputs import network_outputs

import symgen
from symgen.split.published import RATES, published
from symgen.transforms import interaction_order


def test_it_descends_to_a_feasible_split_above_the_optimum():
    v = network_outputs(6, 3)
    start, end = (published(v, rate=1e-3, steps=steps) for steps in (0, 1000))
    exact = symgen.sparsify(v, noise=0.02)
    assert (start.objective > end.objective).all()
    assert (end.objective > exact.objective * (1 - 1e-3)).all()
    eps = 0.02 * (v[:, -1:] - v[:, :1]).abs()
    assert ((end.predict() - v).abs() <= eps * (1 + 1e-5) + 1e-9).all()
    assert torch.equal(end.predict()[:, 0], v[:, 0]) and end.gap.isnan().all()
    assert not end.effects[..., 0].any() and not end.or_[:, interaction_order(6) == 1].any()
    more = published(torch.stack([v.flip(0), v]), rate=1e-3, steps=1000)
    torch.testing.assert_close(more[1].effects, end.effects, rtol=0, atol=1e-3)


def test_its_steps_are_those_of_gradient_descent_with_momentum():
    v, noise, rate, steps = network_outputs(5, 2), 0.02, 1e-4, 20
    w = (v - v[:, :1]).float()
    eps = (noise * (v[:, -1:] - v[:, :1]).abs()).float()
    p, q = (torch.zeros_like(w, requires_grad=True) for _ in range(2))
    sgd = torch.optim.SGD([p, q], lr=rate, momentum=0.9)

    def effects():
        half = (w + q) / 2
        return torch.stack([symgen.moebius(half + p), -symgen.moebius((half - p).flip(-1))], 1)

    for step in range(steps):
        sgd.param_groups[0]["lr"] = rate * 0.1 ** (step / steps)
        sgd.zero_grad()
        effects()[..., 1:].abs().sum().backward()
        for x in (p, q):
            x.grad[:, 0] = 0
        sgd.step()
        with torch.no_grad():
            q.copy_(torch.minimum(torch.maximum(q, -eps), eps))
    several, result = (
        interaction_order(5) > 1,
        published(v, noise, rate, steps=steps).effects.float(),
    )
    torch.testing.assert_close(
        result[..., several], effects().detach()[..., several], rtol=0, atol=2e-5
    )


def test_without_a_rate_every_sample_has_the_best_of_three():
    # Outputs of several sizes, so that the best rate is not the same for all.
    v = network_outputs(4, 3) * torch.tensor([[1e-2], [1.0], [1e2]])
    each, best = [published(v, rate=rate, steps=300) for rate in RATES], published(v, steps=300)
    sizes = torch.stack([x.objective for x in each])
    assert torch.equal(best.objective, sizes.amin(0)) and len(sizes.argmin(0).unique()) > 1
    for k in range(3):
        assert torch.equal(best[k].effects, each[int(sizes[:, k].argmin())][k].effects)
