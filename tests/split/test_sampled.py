"""A sparse model of sampled masked states: planted logic, certificates, files, refusals."""

import pandas as pd
import pytest
import torch

from symgen.split.sampled import (
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
HIGH = (
    ("and", bits(1, 2, 3, 4, 5), 2.0),
    ("or", bits(6, 7, 8, 9, 10, 11), 1.5),
    ("and", bits(12, 13), 1.0),
)
WIDE = (
    ("or", bits(*range(10)), 0.7),
    ("or", bits(*range(5, 17)), -1.5),
    ("and", bits(2, 3, 18), 1.2),
    ("and", bits(0, 8, 11, 19), -1.1),
)
MANY = (*LOW, *HIGH, ("or", bits(3, 8, 12, 15), -0.9), ("and", bits(6, 10), -0.7))


@pytest.mark.parametrize(("n", "count", "planted"), [
    (12, 150, LOW), (18, 300, HIGH), (40, 400, HIGH), (20, 500, WIDE), (40, 800, WIDE), (24, 500, MANY),
])  # fmt: skip
@pytest.mark.parametrize("noise", [0.0, 0.002, 0.02])
def test_planted_interactions_of_any_order_come_back_without_shrinkage(n, count, planted, noise):
    states = draw_states(n, count, seed=1)
    inter = sparsify_sampled(outputs(states, *planted), states, n, held_out=50, noise=noise)
    assert terms(inter, 0.0) == {(k, t) for k, t, _ in planted}
    effects = inter.to_frame().set_index(["type", "index"])["effect"]
    for kind, index, effect in planted:
        assert effects[kind, index] == pytest.approx(effect, abs=1e-6)
    assert inter.explained.item() == pytest.approx(1)
    # The bound allows effects that are smaller by the noise.
    assert inter.gap.item() <= 3 * noise + 1e-4


def test_functions_of_62_variables_take_little_memory_and_time():
    """Both exhausted the memory when all tied prices were kept."""
    n, states = 62, draw_states(62, 400)
    one = sparsify_sampled(outputs(states, ("and", bits(3, 9, 20, 33, 47, 60), 2.0)), states, n)
    assert terms(one, 0.0) == {("and", bits(3, 9, 20, 33, 47, 60))}
    count = (states[:, None] >> torch.arange(n) & 1).sum(1)[None].double()
    every = sparsify_sampled(count, states, n)
    assert terms(every, 0.0) == {("and", 1 << i) for i in range(n)}
    torch.testing.assert_close(every.effects, torch.ones(1, n).double())


@pytest.mark.parametrize(("n", "planted"), [(20, WIDE), (40, WIDE), (40, MANY)])
def test_random_noise_of_two_percent_leaves_the_planted_interactions(n, planted):
    """A few small effects of the noise come with them; effects move by little."""
    states = draw_states(n, 1000)
    v = outputs(states, *planted)
    noise = 0.02 * v.std()
    v = v + noise * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).double()
    inter = sparsify_sampled(v, states, n, held_out=100)
    frame = inter.to_frame().set_index(["type", "index"])["effect"]
    effects = {(k, t): effect for k, t, effect in planted}
    assert terms(inter, 0.2) == set(effects) and len(frame) <= len(planted) + 10
    assert all(frame[term] == pytest.approx(effect, abs=0.05) for term, effect in effects.items())
    assert inter.explained.item() > 0.99


def test_the_order_of_variables_does_not_matter():
    n, labels = 12, torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    states = draw_states(n, 150)
    moved = sum((states >> i & 1) << label for i, label in enumerate(labels))
    v = outputs(states, *LOW, ("or", bits(1, 3), -0.4))
    v = v + 0.02 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=v.dtype)
    one = sparsify_sampled(v, states, n).to_frame()
    other = sparsify_sampled(v, moved, n).to_frame()
    index = one["index"].to_numpy()
    one["index"] = sum((index >> i & 1) << label for i, label in enumerate(labels))
    keys = ["type", "index"]
    pd.testing.assert_series_equal(
        one.set_index(keys)["effect"].sort_index(), other.set_index(keys)["effect"].sort_index()
    )


def test_the_gap_is_that_of_another_solver():
    """Noise 0.02, and all sets of five variables as candidates: the bound is below their optimum."""
    n, states = 5, draw_states(5, 32)
    v = outputs(states, ("and", bits(0, 1), 1.3), ("or", bits(2, 3, 4), 1.5))
    inter = sparsify_sampled(v, states, n, noise=0.02)
    assert inter.objective.item() == pytest.approx(inter.effects.abs().sum().item())
    assert inter.objective.item() == pytest.approx(2.8)
    low = inter.objective.item() * (1 - inter.gap.item())
    assert low == pytest.approx(
        sparsify(v[0, states.argsort()], tol=1e-6).objective.item(), rel=1e-4
    )


def test_held_out_states_are_not_seen_and_a_poor_model_is_reported():
    states = draw_states(12, 150)
    v = outputs(states, *LOW)
    one = sparsify_sampled(v, states, 12, held_out=50)
    assert repr(one).endswith("explained on held-out states: 1.00)")
    changed = v.clone()
    changed[0, 100:] += torch.arange(50)
    with pytest.warns(UnexplainedWarning, match=r"1 of 1 samples, .*less than 95%.*share is -"):
        other = sparsify_sampled(changed, states, 12, held_out=50)
    assert torch.equal(one.effects, other.effects) and torch.equal(other.held_out, states[100:])
    misses = changed[0, 100:] - one.predict(states[100:])[0]
    share = 1 - (misses**2).mean() / changed[0, 100:].var(correction=0)
    torch.testing.assert_close(other.explained[0], share)
    assert sparsify_sampled(v, states, 12).explained.isnan().all()


def test_outputs_without_logic_are_explained_in_part_and_reported():
    states = draw_states(20, 300)
    v = torch.randn(1, 300, generator=torch.Generator().manual_seed(0)).double()
    with pytest.warns(UnexplainedWarning):
        inter = sparsify_sampled(v, states, 20, held_out=100)
    assert len(inter.to_frame()) <= 40


def test_dead_samples_are_named_and_outputs_within_the_noise_have_no_effects():
    states = draw_states(8, 60)
    v = torch.cat([torch.zeros(1, 60), outputs(states, ("and", 3, 1.0))])
    v[1, 1] = 100.0
    with pytest.warns(DeadOutputWarning, match="1 of 2 samples: 0"):
        inter = sparsify_sampled(v.double(), states, 8, noise=1.0)
    assert not inter.effects.any() and not inter.objective.any() and not inter.gap.any()


def test_few_and_nearly_all_variables_are_present_in_many_states():
    """A wide OR is 1 in nearly all uniform states, so they say nothing of it."""
    for n in (20, 40, 62):
        states = draw_states(n, 200)
        present = states[:, None] >> torch.arange(n) & 1
        for k in (6, 12):
            members = torch.randperm(n, generator=torch.Generator().manual_seed(k))[:k]
            count = present[:, members].sum(1)
            assert (count == 0).sum() > 100 / (k + 1) < (count == k).sum()


def test_all_states_are_predicted_for_few_variables():
    states = draw_states(5, 20)
    inter = sparsify_sampled(outputs(states, ("and", 3, 1.0)), states, 5)
    torch.testing.assert_close(inter.predict(), inter.predict(torch.arange(32)))
    states = draw_states(17, 60)
    inter = sparsify_sampled(outputs(states, ("and", 3, 1.0)), states, 17)
    with pytest.raises(ValueError, match=r"n = 17 variables have 2\^17 masked states; .*Pass some"):
        inter.predict()


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
    inter = sparsify_sampled(v, states, n, held_out=20)
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
    ({"noise": -1.0}, "noise -1.0"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(change, message):
    given = {"v": torch.eye(2, 40), "states": draw_states(10, 40), "n": 10, **change}
    with pytest.raises(ValueError, match=message):
        sparsify_sampled(**given)
