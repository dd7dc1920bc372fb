"""The sparsest model of sampled masked states: planted logic, certificates, and what is refused."""

import copy
import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog

from symgen.interactions import Interactions
from symgen.split.design import candidates, design, draw_states
from symgen.split.sampled import COST, SampledInteractions, sparsify_sampled
from symgen.split.sparsify import DeadOutputWarning, sparsify


def planted(n, count, seed):
    """v of three planted interactions on drawn states, and the interactions."""
    rng, states = np.random.default_rng(seed), draw_states(n, count, seed)
    v, terms = torch.zeros(len(states), dtype=torch.float64), set()
    for kind, size in (("and", 2), ("or", 3), ("and", 1)):
        members = int(sum(1 << int(i) for i in rng.choice(n, size, replace=False)))
        present = states & members
        v += (1 + rng.random()) * (present == members if kind == "and" else present != 0)
        terms.add((kind, members))
    return v, states, terms


@pytest.mark.parametrize("n", [12, 20, 40])
@pytest.mark.parametrize("seed", range(3))
def test_planted_interactions_are_found_from_few_states(n, seed):
    v, states, terms = planted(n, 400, seed)
    max_order = 3 if n < 40 else 2 + (n < 40)
    if n == 40:  # its triples are too many for a test
        keep = {t for t in terms if bin(t[1]).count("1") < 3}
        v = sum(
            2.0 * ((states & t) == t if k == "and" else (states & t) != 0) for k, t in keep
        ).double()
        terms = keep
    found = sparsify_sampled(v[None], states, n, held_out=150, noise=0.001, max_order=max_order)
    assert found.strongest(len(terms)) == [terms]
    assert found.gap.item() <= 1e-3
    # Of the noise that is allowed a little shows on states that were not seen.
    assert found.errors.mean().item() < 1e-3


def reference(v, states, n, noise, max_order):
    """The same program by another solver: x = p - q, s = t - u, and the two-sided constraint."""
    index, is_or = candidates(n, max_order)
    columns = design(states[1:], index, is_or).numpy()
    w = (v[1:] - v[0]).numpy()
    eps = noise * abs(w[0])
    rows = len(w)
    whole = np.hstack([columns, -columns, np.eye(rows), -np.eye(rows)])
    cost = np.r_[np.ones(2 * columns.shape[1]), COST * np.ones(2 * rows)]
    done = linprog(cost, np.vstack([whole, -whole]), np.r_[w + eps, eps - w])
    assert done.status == 0
    return done.fun


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]), st.sampled_from([0.01, 0.1]))
def test_the_objective_is_that_of_another_solver_and_the_gap_is_proved(seed, max_order, noise):
    """Also where the orders allowed cannot explain the states, so that some is left over."""
    n = 6
    states = draw_states(n, 40, seed)
    v = torch.from_numpy(np.random.default_rng(seed).normal(size=len(states)))
    found = sparsify_sampled(v[None], states, n, noise=noise, max_order=max_order, tol=1e-4)
    best = reference(v, states, n, noise, max_order)
    assert found.gap.item() <= 1e-4
    assert best * (1 - 1e-6) <= found.objective.item() <= best * (1 + 1.1e-4)


def test_all_states_and_all_orders_are_the_exact_program():
    n, states = 6, draw_states(6, 64, 1)
    v = torch.from_numpy(np.random.default_rng(1).normal(size=64))
    exact = sparsify(v, noise=0.02)
    found = sparsify_sampled(v[states][None], states, n, noise=0.02, max_order=6)
    assert found.objective.item() == pytest.approx(exact.objective.item(), rel=2e-3)


def test_held_out_states_are_not_seen_and_their_errors_are_shares_of_variance():
    v, states, _ = planted(12, 300, 4)
    one = sparsify_sampled(v[None], states, 12, held_out=100, max_order=3)
    changed = v.clone()
    changed[200:] += torch.arange(100)
    other = sparsify_sampled(changed[None], states, 12, held_out=100, max_order=3)
    assert torch.equal(one.effects, other.effects)
    assert torch.equal(other.v[0], changed[200:]) and torch.equal(other.held_out, states[200:])
    misses = changed[200:] - one.predict(states[200:])[0]
    assert torch.allclose(other.errors[0], misses**2 / changed[200:].var(correction=0))
    with pytest.warns(DeadOutputWarning):
        still = sparsify_sampled(torch.zeros(1, 300), states, 12, held_out=100, max_order=2)
    assert not still.effects.any() and still.errors.isnan().all() and still.gap.item() == 0


def test_where_the_noise_allows_all_there_is_nothing_is_to_explain_and_the_gap_is_zero():
    v, states, _ = planted(8, 100, 0)
    v[1] = v[0] + 2 * (v - v[0]).abs().max()
    found = sparsify_sampled(v[None], states, 8, noise=1.0, max_order=2)
    assert not found.effects.any() and found.objective.item() == found.gap.item() == 0


def test_states_are_drawn_alike_whatever_their_number():
    for n in (3, 16, 17, 62):
        few, more = draw_states(n, 5, 3), draw_states(n, 8, 3)
        assert torch.equal(few, more[:5]) and few[:2].tolist() == [0, 2**n - 1]
        assert len(set(more.tolist())) == 8 and 0 <= int(more.min()) <= int(more.max()) < 2**n
    assert sorted(draw_states(4, 16).tolist()) == list(range(16))
    assert not torch.equal(draw_states(20, 9, 0), draw_states(20, 9, 1))
    for n, count in ((0, 2), (63, 5), (3, 9), (3, 1)):
        with pytest.raises(ValueError, match="expected 2 to 2"):
            draw_states(n, count)


def test_candidates_are_all_sets_of_few_variables_once():
    index, is_or = candidates(5, 3)
    sizes = [bin(t).count("1") for t in index.tolist()]
    assert max(sizes) == 3 and min(x for x, o in zip(sizes, is_or, strict=True) if o) == 2
    assert len(index) == 2 * (5 + 10 + 10) - 5
    assert len({*zip(index.tolist(), is_or.tolist(), strict=True)}) == len(index)
    # Fewer variables each where they are many, so that the program can be solved.
    most = [max(t.bit_count() for t in candidates(n)[0].tolist()) for n in (3, 12, 20, 30, 60)]
    assert most == [3, 4, 4, 3, 2]
    with pytest.raises(ValueError, match="max_order = 0"):
        candidates(5, 0)


def test_the_table_the_dense_form_and_samples_agree():
    n, states = 8, draw_states(8, 200, 0)
    v = torch.stack([planted(n, 200, 0)[0], 2 * planted(n, 200, 0)[0]])
    names = [[f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)]]
    found = sparsify_sampled(v, states, n, max_order=3)
    found = SampledInteractions(**{**vars(found), "names": names})
    table, dense = found.to_frame(), found.dense()
    assert torch.allclose(dense.predict()[:, states], found.predict(states))
    mine = dense.to_frame(names)
    assert table["effect"].tolist() == pytest.approx(mine["effect"].tolist())
    assert table["members"].tolist() == mine["members"].tolist()
    second = found[1:]
    assert len(second) == 1 and second.names.tolist() == names[1:]
    assert torch.allclose(second.predict(states)[0], found.predict(states)[1])
    with pytest.raises(ValueError, match=r"names are of shape"):
        SampledInteractions(**{**vars(found), "names": ["x"]})
    wide = sparsify_sampled(torch.arange(9.0)[None], draw_states(20, 9), 20, max_order=1)
    with pytest.raises(ValueError, match=r"n = 20: 2\^20 effects"):
        wide.dense()


@pytest.mark.parametrize("name", ["and_", "salient", "to_xarray", "possible"])
def test_what_takes_all_sets_says_what_there_is(name):
    v, states, _ = planted(20, 60, 1)
    found = sparsify_sampled(v[None], states, 20, max_order=1)
    with pytest.raises(AttributeError, match=f"no '{name}'.*to_frame.. and strongest..$"):
        getattr(found, name)
    few = sparsify_sampled(v[None, :20], draw_states(8, 20), 8, max_order=1)
    with pytest.raises(AttributeError, match="dense.. gives such"):
        getattr(few, name)
    with pytest.raises(AttributeError, match="object has no attribute 'nothing'"):
        found.nothing  # noqa: B018
    assert copy.deepcopy(found).n == pickle.loads(pickle.dumps(found)).n == 20


@pytest.mark.parametrize("names", [None, [f"a{i}" for i in range(20)]])
def test_they_are_read_again_as_they_were_saved(tmp_path, names):
    v, states, _ = planted(20, 200, 1)
    found = sparsify_sampled(torch.stack([v, 2 * v]), states, 20, held_out=50, max_order=2)
    about = {"model": "a", "inputs": "b"}
    found = SampledInteractions(**{**vars(found), "names": names, "about": about})
    path = tmp_path / "found.safetensors"
    found.save(path)
    again = SampledInteractions.load(path)
    assert repr(again).startswith("<SampledInteractions: ")
    assert (again.n, again.about) == (20, about)
    with pytest.raises(ValueError, match=r"masked states; .* SampledInteractions\.load"):
        Interactions.load(path)
    for name, x in vars(found).items():
        if isinstance(x, torch.Tensor):
            y = getattr(again, name)
            assert x.dtype == y.dtype and torch.equal(x, y), name
    assert f", {found.errors.mean():.1%} of the variance on held-out states unexplained>" in repr(
        found
    )
    assert again == found and found[:1] != found and again != 3
    other = dataclasses.replace(found, effects=found.effects + 1e-9)
    unknown = dataclasses.replace(found, objective=found.objective * torch.nan)
    assert unknown == copy.deepcopy(unknown) != found
    assert other != found and dataclasses.replace(found, about={}) != found
    pd.testing.assert_frame_equal(again.to_frame(), found.to_frame())
    torch.testing.assert_close(again.errors, found.errors, rtol=0, atol=0, equal_nan=True)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="is damaged"):
        SampledInteractions.load(path)
    sparsify(torch.arange(4.0)[None]).save(path)
    with pytest.raises(ValueError, match="no interactions of sampled states"):
        SampledInteractions.load(path)


@pytest.mark.parametrize(("change", "message"), [
    ({"states": draw_states(11, 40)}, "expected"),
    ({"states": torch.arange(40)}, "the states 0 and"),
    ({"v": torch.eye(2, 40) / torch.eye(2, 40)}, r"sample 0 on state 1023 is nan; look for such"),
    ({"states": draw_states(10, 40).index_fill(0, torch.tensor([7]), 2**40)}, "1099511627776 is n"),
    ({"states": draw_states(10, 40).index_fill(0, torch.tensor([7]), 0)}, "state 0 is there twice"),
    ({"held_out": 39}, "held_out = 39"),
    ({"noise": -1.0}, "noise=-1.0"),
    ({"tol": 0.0}, "tol=0.0"),
    ({"max_iter": 0}, "max_iter=0"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(change, message):
    given = {"v": torch.zeros(2, 40), "states": draw_states(10, 40), "n": 10, **change}
    with pytest.raises(ValueError, match=message):
        sparsify_sampled(**given)


def test_outputs_that_do_not_change_are_warned_of():
    """As where all variables are present or none; their total effect is 0, and H not defined."""
    states = draw_states(10, 40)
    v = torch.stack([((states & 7) == 7).double(), ((states & 3) == 1).double()])
    with pytest.warns(DeadOutputWarning, match="1 of 2 samples: 1"):
        found = sparsify_sampled(v, states, 10, max_order=2)
    assert (found.full - found.bias).tolist() == [1, 0]


def test_too_many_candidates_are_refused_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr("symgen.split.sampled.free_memory", lambda device: 10**6)
    with pytest.raises(MemoryError, match="lower max_order"):
        sparsify_sampled(torch.zeros(1, 100), draw_states(20, 100), 20)
