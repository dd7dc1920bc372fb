"""The sparsest model of sampled masked states: planted logic, certificates, files, refusals."""

import numpy as np
import pytest
import torch
from oracle import matrix
from scipy.optimize import linprog

from symgen.split.sampled import (
    COST,
    SampledInteractions,
    UnexplainedWarning,
    draw_states,
    sparsify_sampled,
)
from symgen.split.sparsify import DeadOutputWarning, sparsify


def bits(*members: int) -> int:
    return sum(1 << i for i in members)


def outputs(states: torch.Tensor, *terms: tuple[str, int, float]) -> torch.Tensor:
    parts = [a * (((states & t) == t) if k == "and" else (states & t) != 0) for k, t, a in terms]
    return sum(part.double() for part in parts)[None]


def terms(inter: SampledInteractions, least: float = 0.05) -> set:
    frame = inter.to_frame()
    frame = frame[frame["effect"].abs() > least]
    return {(k, t) for k, t in zip(frame["type"], frame["index"], strict=True)}


LOW = ("and", bits(0, 1), 1.3), ("or", bits(2, 5, 7), 1.5), ("and", bits(9), 0.8)
# Above the order of the first candidates.
HIGH = (
    ("and", bits(1, 2, 3, 4, 5), 2.0),
    ("or", bits(6, 7, 8, 9, 10, 11), 1.5),
    ("and", bits(12, 13), 1.0),
)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("n", "planted", "order"), [(12, LOW, 2), (18, HIGH, 2), (40, LOW, 1)])
def test_planted_interactions_of_any_order_are_recovered(n, planted, order, noise):
    states = draw_states(n, 300)
    v = outputs(states, *planted)
    inter = sparsify_sampled(v, states, n, held_out=60, noise=noise, max_order=order, few=True)
    assert terms(inter) == {(k, t) for k, t, _ in planted} and len(inter.to_frame()) <= 6
    assert inter.gap.item() <= 1e-3
    assert inter.errors.mean() <= max(1e-8, noise)
    central = sparsify_sampled(v, states, n, held_out=60, noise=noise, max_order=order)
    assert {(k, t) for k, t, _ in planted} <= terms(central)
    assert inter.objective.item() <= central.objective.item() * (1 + 2e-3)


@pytest.mark.parametrize("few", [False, True])
def test_the_order_of_variables_does_not_matter(few):
    n, labels = 12, torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    states = draw_states(n, 150)
    moved = sum((states >> i & 1) << label for i, label in enumerate(labels))
    v = outputs(states, *LOW, ("or", bits(1, 3), -0.4))
    v = v + 0.02 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=v.dtype)
    one = sparsify_sampled(v, states, n, max_order=2, few=few)
    other = sparsify_sampled(v, moved, n, max_order=2, few=few)
    new = sum((one.index >> i & 1) << label for i, label in enumerate(labels))
    effects = [dict(zip(zip(x.is_or.tolist(), t.tolist(), strict=True), x.effects[0].tolist(), strict=True))
               for x, t in ((one, new), (other, other.index))]  # fmt: skip
    assert one.objective.item() == pytest.approx(other.objective.item(), rel=1e-5)
    for key in effects[0].keys() | effects[1].keys():
        assert effects[0].get(key, 0.0) == pytest.approx(
            effects[1].get(key, 0.0), abs=1e-6 if few else 1e-2
        )


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_with_all_candidates_the_objective_is_that_of_another_solver(noise):
    n = 5
    states = draw_states(n, 24, 3)
    v = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 24)))
    a, w = matrix(n)[states[1:] - 1], (v[0, 1:] - v[0, 0]).numpy()
    eps, rest = noise * abs(w[0]), np.eye(len(w))
    whole = np.hstack([a, -a, rest, -rest])
    cost = np.r_[np.ones(2 * a.shape[1]), COST * np.ones(2 * len(w))]
    best = linprog(cost, np.vstack([whole, -whole]), np.r_[w + eps, eps - w]).fun
    inter = sparsify_sampled(v, states, n, noise=noise, max_order=n)
    assert best * (1 - 1e-6) <= inter.objective.item() <= best * (1 + 1.1e-3)
    assert inter.objective.item() * (1 - inter.gap.item()) <= best * (1 + 1e-6)
    # Candidates that grow from single variables reach the same optimum, or stay above it.
    grown = sparsify_sampled(v, states, n, noise=noise, max_order=1)
    assert best * (1 - 1e-6) <= grown.objective.item() <= 1.1 * best


def test_all_states_and_all_orders_are_the_exact_program():
    states = draw_states(5, 32, 1)
    v = torch.from_numpy(np.random.default_rng(1).normal(size=32))
    inter = sparsify_sampled(v[states][None], states, 5, max_order=5)
    assert inter.objective.item() == pytest.approx(sparsify(v).objective.item(), rel=2e-3)


def test_held_out_states_are_not_seen_and_a_poor_model_is_reported():
    states = draw_states(12, 150)
    v = outputs(states, *LOW)
    one = sparsify_sampled(v, states, 12, held_out=50, max_order=2)
    changed = v.clone()
    changed[0, 100:] += torch.arange(50)
    with pytest.warns(
        UnexplainedWarning, match=r"exceeds the noise for 1 of 1 samples; .*variance"
    ):
        other = sparsify_sampled(changed, states, 12, held_out=50, max_order=2)
    assert torch.equal(one.effects, other.effects) and torch.equal(other.held_out, states[100:])
    misses = changed[0, 100:] - one.predict(states[100:])[0]
    torch.testing.assert_close(other.errors[0], misses**2 / changed[0, 100:].var(correction=0))


def test_dead_samples_are_named_and_outputs_within_the_noise_have_no_effects():
    states = draw_states(8, 60)
    v = torch.cat([torch.zeros(1, 60), outputs(states, ("and", 3, 1.0))])
    v[1, 1] = 100.0
    with pytest.warns(DeadOutputWarning, match="1 of 2 samples: 0"):
        inter = sparsify_sampled(v.double(), states, 8, noise=1.0, max_order=2)
    assert not inter.effects.any() and not inter.objective.any() and not inter.gap.any()


def test_states_are_drawn_alike_for_any_count():
    for n in (3, 16, 17, 62):
        fewer, more = draw_states(n, 5, 3), draw_states(n, 8, 3)
        assert torch.equal(fewer, more[:5]) and fewer[:2].tolist() == [0, 2**n - 1]
        assert len(more.unique()) == 8 and 0 <= int(more.min()) <= int(more.max()) < 2**n
    assert sorted(draw_states(4, 16).tolist()) == list(range(16))
    assert not torch.equal(draw_states(20, 9, 0), draw_states(20, 9, 1))
    for n, count in ((0, 2), (63, 5), (3, 9), (3, 1)):
        with pytest.raises(ValueError, match=f"n is {n} and count {count}; expected"):
            draw_states(n, count)


def test_tables_samples_files_and_the_dense_form_agree(tmp_path):
    n, states = 8, draw_states(8, 100)
    v = torch.cat(
        [outputs(states, ("and", 5, 1.0)), outputs(states, ("or", 3, 2.0), ("and", 16, -1.0))]
    )
    inter = sparsify_sampled(v, states, n, held_out=20, max_order=2)
    names = [[f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)]]
    inter = SampledInteractions(**{**vars(inter), "names": names})
    dense = inter.dense()
    torch.testing.assert_close(dense.predict()[:, states], inter.predict(states))
    table, other = inter.to_frame(), dense.to_frame()
    assert table["effect"].tolist() == pytest.approx(other["effect"].tolist())
    assert (
        table["members"].tolist() == other["members"].tolist() and table["members"][0] == "a0, a2"
    )
    second = inter[1:]
    assert len(second) == 1 and second.names.tolist() == names[1:]
    torch.testing.assert_close(second.predict(states)[0], inter.predict(states)[1])
    path = tmp_path / "inter.safetensors"
    inter.save(path)
    again = SampledInteractions.load(path)
    assert (
        again.n == n and again.names.tolist() == names and torch.equal(again.effects, inter.effects)
    )
    assert torch.equal(again.index, inter.index) and torch.equal(again.is_or, inter.is_or)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="is damaged"):
        SampledInteractions.load(path)
    dense.save(path)
    with pytest.raises(ValueError, match=r"not a file that SampledInteractions\.save wrote"):
        SampledInteractions.load(path)
    with pytest.raises(ValueError, match=r"remapped to original shapes|could not be broadcast"):
        SampledInteractions(**{**vars(inter), "names": ["x", "y"]})


@pytest.mark.parametrize(("change", "message"), [
    ({"states": torch.arange(40)}, r"states begin with \[0, 1\]; expected .*draw_states\(10"),
    ({"v": torch.eye(2, 40) / torch.eye(2, 40)}, r"78 values of v are NaN"),
    ({"states": draw_states(10, 40).index_fill(0, torch.tensor([7]), 2**40)}, "different states from 0 to 1023"),
    ({"states": draw_states(10, 40).index_fill(0, torch.tensor([7]), 0)}, "different states from 0 to 1023"),
    ({"held_out": 39}, "held_out is 39 of 40 states"),
    ({"noise": -1.0}, "noise is -1.0"),
    ({"max_order": 0}, "max_order is 0"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(change, message):
    given = {"v": torch.eye(2, 40), "states": draw_states(10, 40), "n": 10, **change}
    with pytest.raises(ValueError, match=message):
        sparsify_sampled(**given)
