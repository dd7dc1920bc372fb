"""What sampling loses: against the exact split, and against sparse Fourier models."""

import random

import numpy as np
import pytest
import torch

import symgen
from symgen.masking.hooks import Inputs
from symgen.method import sampling
from symgen.split.design import draw_states
from symgen.split.sampled import sparsify_sampled
from symgen.split.sparsify import DeadOutputWarning


def logic(states):
    """An AND of three and an OR of two of the variables."""
    return 3.0 * ((states & 7) == 7).double() - 2.0 * ((states & 24) != 0).double()


def test_of_planted_logic_nothing_is_lost():
    states = torch.arange(256)
    v = torch.stack([logic(states), 2 * logic(states)])
    exact = symgen.sparsify(v, noise=0.01)
    table = sampling.against_exact(
        v, exact, [60, 120], {"again": exact}, noise=0.01, max_order=3, seed=2
    )
    assert table["model"].tolist() == ["sampled"] * 4 + ["again"] * 2
    assert table["states"].tolist() == [60, 60, 120, 120, 256, 256]
    assert (table["unexplained"] < 1e-3).all() and (table["gap"] <= 1e-3).all()
    assert (table.loc[table["model"] == "again", "shared"] == 1).all()


def test_the_share_of_the_strongest_counts_what_both_have():
    inter = symgen.Interactions.from_moebius(torch.tensor([0.0, 1.0, 2.0, 5.0])[None])
    assert sampling.strongest(inter, 2) == [{("and", 3), ("and", 2)}]
    assert np.isnan(sampling.shared([set()], [set()]))[0]
    assert sampling.shared([{("and", 1), ("or", 3)}], [{("or", 3)}]) == [0.5]


def test_errors_of_each_sample_have_intervals_within_what_shares_can_be():
    states = draw_states(10, 300)
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 300)))
    found = sparsify_sampled(logic(states) + 0.3 * noise, states, 10, held_out=100, max_order=2)
    table = sampling.error_table(found)
    assert table["unexplained"].tolist() == pytest.approx(found.errors.mean(1).tolist())
    assert (table["low95"] <= table["unexplained"]).all() and (table["low95"] >= 0).all()
    assert (table["unexplained"] <= table["high95"]).all()
    assert table["nonzero"].tolist() == (found.effects != 0).sum(1).tolist()


def test_games_are_the_outputs_of_each_sample():
    def logits(x):
        v = (x * torch.arange(1.0, 7.0)).sum(1)
        return torch.stack([torch.zeros_like(v), v], 1)

    variables = torch.arange(6).expand(2, 6)
    x = torch.tensor([[1.0] * 6, [2.0] * 6])
    one, two = sampling.games(logits, Inputs(x, torch.tensor([1, 1])), variables, 0.0)
    assert one(torch.tensor([1, 32, 63])).tolist() == [1.0, 6.0, 21.0]
    assert two(torch.tensor([5])).tolist() == [2 * (1.0 + 3.0)]


@pytest.mark.filterwarnings("ignore")  # of shapiq and what it uses
def test_all_ways_find_planted_logic_and_are_judged_on_the_same_states():
    table = sampling.against_peers([logic], 10, 400, 100, noise=0.01, max_order=3)
    assert table["model"].tolist() == ["AND-OR", "single variables", *sampling.PEERS]
    left = table.set_index("model")["unexplained"]
    # Whether SPEX finds it hangs on its draw, and on the rounding of what it solves.
    assert (left[["AND-OR", "ProxySPEX"]] < 0.01).all() and left["single variables"] > 0.05
    assert (table["calls"] <= 400).all() and table["interactions"].iloc[0] == 2


def test_a_seed_decides_what_peers_draw_and_leaves_no_trace(monkeypatch):
    approximator = pytest.importorskip("shapiq").approximator
    numba = pytest.importorskip("numba")

    class Drawing:
        """A peer that draws as SPEX does, not from its own generator, and takes threads."""

        def __init__(self, **given):
            torch.set_num_threads(threads + 1)

        def approximate(self, calls, outputs):
            assert numba.get_num_threads() == 1
            return np.random.random(), random.random()

    monkeypatch.setattr(approximator, "SPEX", Drawing)
    torch.set_num_threads(2)
    threads, numbas = torch.get_num_threads(), numba.get_num_threads()
    state = random.getstate(), np.random.get_state()[1].tolist()
    first = sampling.peer("SPEX", logic, 10, 400, 0)
    assert first == sampling.peer("SPEX", logic, 10, 400, 0)
    assert first != sampling.peer("SPEX", logic, 10, 400, 1)
    assert state == (random.getstate(), np.random.get_state()[1].tolist())
    assert (torch.get_num_threads(), numba.get_num_threads()) == (threads, numbas)


def test_peers_are_left_out_where_they_cannot_be(monkeypatch):
    # Too few calls for SPEX; and outputs that never change.
    few = sampling.against_peers([logic], 10, 20, 20, ["SPEX"], max_order=1)
    with pytest.warns(DeadOutputWarning):
        still = sampling.against_peers([lambda s: 0.0 * s.double()], 10, 20, 20, max_order=1)
    for table in (few, still):
        assert table["model"].tolist() == ["AND-OR", "single variables"]
    assert still["unexplained"].isna().all()
    with pytest.raises(ValueError, match="expected one of"):
        sampling.peer("LIME", logic, 10, 100)
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(ImportError, match=r"symgen\[shapiq\]"):
        sampling.peer("SPEX", logic, 10, 100)


def test_predictions_of_shapiq_are_sums_over_the_subsets_of_a_state():
    shapiq = pytest.importorskip("shapiq")
    values = shapiq.InteractionValues(
        values=np.array([1.0, 2.0, 4.0]), index="Moebius", n_players=3, min_order=0, max_order=2,
        interaction_lookup={(): 0, (1,): 1, (0, 1): 2}, baseline_value=1.0,
    )  # fmt: skip
    states = torch.tensor([0, 1, 2, 3, 7])
    assert sampling.predicted(values, states).tolist() == [1.0, 1.0, 3.0, 7.0, 7.0]
