"""Other splits of the same output: they match it, and the optimal face holds all sparsest ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from outputs import planted
from scipy.optimize import linprog

import symgen
from symgen.interactions import Interactions
from symgen.split.face import optimal_face
from symgen.transforms import and_or_outputs

pytestmark = pytest.mark.filterwarnings("ignore::symgen.split.sparsify.DeadOutputWarning")
seeds = st.integers(0, 10**6)
MAJORITY = torch.tensor([0.0, 0, 0, 1, 0, 1, 1, 1])


def noise_values(n: int, seed: int, samples: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


@given(seed=seeds, n=st.integers(1, 6), share=st.floats(-1, 2))
def test_every_share_matches_and_follows_the_contract(seed, n, share):
    v = noise_values(n, seed, 2)
    found = Interactions.from_moebius(v, share)
    torch.testing.assert_close(found.predict(), v, rtol=0, atol=1e-10)
    assert (found.effects[..., 0] == 0).all() and (found.or_[..., found.order == 1] == 0).all()
    assert torch.allclose(found.objective, found.effects.abs().sum((-2, -1)))
    assert torch.equal(found.full, v[:, -1]) and found.gap.isnan().all()


@given(seed=seeds, n=st.integers(1, 6))
def test_shares_of_all_and_of_nothing(seed, n):
    v = noise_values(n, seed)
    found = Interactions.from_moebius(v, 1.0)
    assert (found.or_ == 0).all()
    assert torch.equal(found.and_[:, 1:], symgen.moebius(v)[:, 1:])
    # With the masked and the present exchanged, what was AND is OR.
    turned = Interactions.from_moebius(-v.flip(-1), 0.0)
    several = found.order > 1
    assert torch.allclose(turned.or_[:, several], found.and_[:, several])
    assert (turned.and_[:, several] == 0).all()


def test_the_face_of_the_majority_is_known():
    face = optimal_face(MAJORITY).set_index(["type", "members"])
    for row in face.itertuples():
        sign = -1 if row.order == 3 else 1
        ends = sorted((0, {1: 1, 2: 1, 3: -2}[row.order]))
        assert (row.low, row.high) == pytest.approx(ends, abs=1e-9)
        assert row.low - 1e-9 <= row.vertex <= row.high + 1e-9
        assert sign * row.inner > 0
        assert row.salient == "some"
    assert len(face) == 3 + 4 + 4


def test_planted_logic_is_the_only_point_of_its_face():
    and_, or_, v = planted(4, 2, seed=3)
    face = optimal_face(2 + v)
    effects = torch.stack([and_, or_]).numpy()
    planted_here = effects[(face["type"] == "or").astype(int), face["index"]]
    for column in ("low", "high", "inner", "vertex"):
        assert face[column].to_numpy() == pytest.approx(planted_here, abs=1e-5)
    strong = face[face["salient"] == "all"]
    assert len(strong) == (effects != 0).sum() and set(face["salient"]) <= {"all", "none"}
    assert (abs(planted_here[strong.index]) > 0.4).all()


@settings(max_examples=8)
@given(seed=seeds)
def test_sparsest_models_lie_within_the_ranges_and_reach_the_ends(seed):
    generator = np.random.default_rng(seed)
    # Whole numbers leave many ties.
    v = torch.from_numpy(generator.integers(-2, 3, 16).astype(float))
    face = optimal_face(v)
    order = symgen.interaction_order(4)
    unit = torch.eye(32, dtype=v.dtype).reshape(-1, 2, 16)
    unit = unit[torch.cat([order > 0, order > 1])]
    matrix = and_or_outputs(unit[:, 0], unit[:, 1])[:, 1:].T.numpy()
    both, goal = np.hstack([matrix, -matrix]), (v - v[0])[1:].numpy()
    least = linprog(np.ones(both.shape[1]), A_eq=both, b_eq=goal).fun
    names = np.flatnonzero(torch.cat([order > 0, order > 1]))
    known = ((face["type"] == "or") * 16 + face["index"]).to_numpy()
    for _ in range(5):
        # A random direction among all models of least strength: a bound on the strength, no prices.
        aim = generator.normal(size=matrix.shape[1])
        found = linprog(
            np.hstack([aim, -aim]), A_eq=both, b_eq=goal,
            A_ub=np.ones((1, both.shape[1])), b_ub=[least + 1e-9],
        ).x  # fmt: skip
        effects = found[: len(aim)] - found[len(aim) :]
        seen = dict(zip(names, effects, strict=True))
        assert all(abs(seen[k]) < 1e-6 for k in seen if k not in known)
        mine = np.array([seen[k] for k in known])
        assert (mine >= face["low"] - 1e-6).all() and (mine <= face["high"] + 1e-6).all()
    row = face.iloc[generator.integers(len(face))]
    aim = np.zeros(matrix.shape[1])
    aim[names.tolist().index((row["type"] == "or") * 16 + row["index"])] = 1
    for way, end in ((1, row["low"]), (-1, row["high"])):
        reached = linprog(
            way * np.hstack([aim, -aim]), A_eq=both, b_eq=goal,
            A_ub=np.ones((1, both.shape[1])), b_ub=[least + 1e-9],
        ).fun  # fmt: skip
        assert way * reached == pytest.approx(end, abs=1e-6)


def test_the_face_scales_with_the_output_and_a_dead_output_has_none():
    face = optimal_face(MAJORITY)
    for factor in (1e-9, 1e9):
        scaled = optimal_face(factor * MAJORITY.double())
        for column in ("low", "high", "inner"):
            wanted = factor * face[column].to_numpy()
            assert scaled[column].to_numpy() == pytest.approx(wanted, abs=1e-6 * factor)
        assert scaled["salient"].tolist() == face["salient"].tolist()
    assert optimal_face(torch.ones(8)).empty


@pytest.mark.parametrize("v", [torch.zeros(2, 8), torch.zeros(2**9)])
def test_the_face_takes_one_sample_of_few_variables(v):
    with pytest.raises(ValueError, match="up to 8 variables") as error:
        optimal_face(v)
    assert str(tuple(v.shape)) in str(error.value)
