"""The optimal face holds all sparsest models."""

import numpy as np
import pytest
import torch
from oracle import matrix
from outputs import planted
from scipy.optimize import linprog

from symgen.split.face import optimal_face
from symgen.transforms import interaction_order

pytestmark = pytest.mark.filterwarnings("ignore::symgen.split.sparsify.DeadOutputWarning")
MAJORITY = torch.tensor([0.0, 0, 0, 1, 0, 1, 1, 1])


def test_the_face_of_the_majority_is_correct_at_every_scale():
    for factor in (1.0, 1e-9, 1e9):
        face = optimal_face(factor * MAJORITY.double())
        assert len(face) == 3 + 4 + 4 and set(face["salient"]) == {"some"}
        for row in face.itertuples():
            ends = sorted((0, {1: 1, 2: 1, 3: -2}[row.order]))
            assert (row.low / factor, row.high / factor) == pytest.approx(ends, abs=1e-6)
            assert row.low - 1e-9 * factor <= row.vertex <= row.high + 1e-9 * factor
            assert row.low <= row.inner <= row.high and row.inner != 0
    assert optimal_face(torch.ones(8)).empty


def test_planted_logic_is_the_only_point_of_its_face():
    and_, or_, v = planted(4, 2, seed=3)
    face, effects = optimal_face(2 + v), torch.stack([and_, or_]).numpy()
    truth = effects[(face["type"] == "or").astype(int), face["index"]]
    for column in ("low", "high", "inner", "vertex"):
        assert face[column].to_numpy() == pytest.approx(truth, abs=1e-5)
    assert (face["salient"] == "all").sum() == (effects != 0).sum()


@pytest.mark.parametrize("seed", range(3))
def test_sparsest_models_lie_within_the_ranges_and_reach_the_ends(seed):
    generator = np.random.default_rng(seed)
    v = torch.from_numpy(generator.integers(-2, 3, 16).astype(float))  # whole numbers leave ties
    face, order = optimal_face(v), interaction_order(4)
    both, goal = np.hstack([matrix(4), -matrix(4)]), (v - v[0])[1:].numpy()
    least = linprog(np.ones(both.shape[1]), A_eq=both, b_eq=goal).fun
    names = np.flatnonzero(torch.cat([order > 0, order > 1])).tolist()
    listed = ((face["type"] == "or") * 16 + face["index"]).tolist()

    def extreme(aim: np.ndarray) -> np.ndarray:
        """The effects of least aim'x among all sparsest models."""
        limit = {"A_ub": np.ones((1, both.shape[1])), "b_ub": [least + 1e-9]}
        return np.subtract(*np.split(linprog(np.r_[aim, -aim], A_eq=both, b_eq=goal, **limit).x, 2))

    for _ in range(4):
        effects = dict(zip(names, extreme(generator.normal(size=len(names))), strict=True))
        assert all(abs(effects[k]) < 1e-6 for k in names if k not in listed)
        inside = np.array([effects[k] for k in listed])
        assert (inside >= face["low"] - 1e-6).all() and (inside <= face["high"] + 1e-6).all()
    row, aim = face.iloc[0], np.zeros(len(names))
    place = names.index(listed[0])
    aim[place] = 1
    assert extreme(aim)[place] == pytest.approx(row["low"], abs=1e-6)
    assert extreme(-aim)[place] == pytest.approx(row["high"], abs=1e-6)


@pytest.mark.parametrize("v", [torch.zeros(2, 8), torch.zeros(2**9)])
def test_several_samples_and_more_variables_are_refused(v):
    with pytest.raises(ValueError, match=r"expected one sample of up to 8 variables"):
        optimal_face(v)
