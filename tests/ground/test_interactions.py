"""Interactions: definitions, indexing, files, and errors."""

import pytest
import torch
from outputs import logical_outputs, planted

from symgen.interactions import Interactions


def example(*batch: int, n: int = 3, seed: int = 0, **more) -> Interactions:
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(*batch, 2**n, generator=generator, dtype=torch.float64)
    return Interactions.from_moebius(v, 0.5) if not more else Interactions(
        *Interactions.from_moebius(v, 0.5).tensors().values(), **more
    )  # fmt: skip


@pytest.mark.parametrize("share", [-0.5, 0.0, 0.3, 1.0])
def test_every_share_of_moebius_matches_v_exactly(share):
    v = torch.randn(2, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inter = Interactions.from_moebius(v, share)
    torch.testing.assert_close(inter.predict(), v, rtol=0, atol=1e-10)
    assert not inter.effects[..., 0].any() and not inter.or_[..., inter.order == 1].any()
    torch.testing.assert_close(inter.objective, inter.effects.abs().sum((-2, -1)))
    assert inter.gap.isnan().all() and torch.equal(inter.full, v[:, -1])
    assert inter.possible == 2 * 31 - 5 and inter.n == 5


def test_predict_follows_equation_3():
    and_, or_, v = planted(5, 3, seed=2)
    zero = torch.tensor(0.0, dtype=torch.float64)
    inter = Interactions(torch.stack([and_, or_]), zero + 1, zero, zero, v[-1] + 1)
    torch.testing.assert_close(inter.predict(), 1 + logical_outputs(and_, or_))
    torch.testing.assert_close(inter.predict(torch.tensor([3, 31])), inter.predict()[[3, 31]])
    assert torch.equal(inter.and_, and_) and torch.equal(inter.or_, or_)
    assert inter.and_.data_ptr() == inter.effects.data_ptr(), "a view"


def test_saliency_thresholds():
    and_ = torch.tensor([[0, 1.0, 0.04, -0.2], [0, 10.0, 0.6, 2.0]], dtype=torch.float64)
    scalar = torch.tensor([0.0, 0.0], dtype=torch.float64)
    full = torch.tensor([1.0, 3.0], dtype=torch.float64)
    effects = torch.stack([and_, torch.zeros_like(and_)], 1)
    inter = Interactions(effects, scalar, scalar, scalar, full)
    assert inter.threshold().tolist() == [0.05, 0.5]
    assert inter.salient()[:, 0].tolist() == [[False, True, False, True], [False, True, True, True]]
    assert inter.salient(0.5)[:, 0].sum().item() == 4
    assert inter.threshold(0.1, "total effect").tolist() == pytest.approx([0.2, 0.2])
    assert inter.salient(top=2)[:, 0].sum(-1).tolist() == [2, 2]
    assert not inter.salient(top=8)[:, 1].any()
    # A batch (network, sample): the scale of a network is its own, as in a slice of it.
    two = Interactions(*(torch.stack([x, 100 * x]) for x in inter.tensors().values()))
    scales = two.threshold(0.1, "total effect")
    assert scales[0].tolist() == pytest.approx([0.2, 0.2])
    torch.testing.assert_close(scales[1], two[1].threshold(0.1, "total effect"))


def test_relabelling_moves_effects_and_names_and_keeps_its_mark():
    inter = example(2, names=["a", "b", "c"])
    moved = inter.relabelled([2, 0, 1])  # variable 0 is now variable 2
    assert (
        moved.and_[0, 0b100] == inter.and_[0, 0b001]
        and moved.and_[1, 0b101] == inter.and_[1, 0b011]
    )
    assert moved.names[0].tolist() == ["b", "c", "a"]
    for copy in (moved, moved[0], moved[:1], moved.to("cpu"), moved[torch.tensor([1])]):
        assert copy.is_relabelled
    assert not inter[0].is_relabelled
    back = moved.relabelled([1, 2, 0])
    assert torch.equal(back.effects, inter.effects) and back.names[0].tolist() == ["a", "b", "c"]


def test_the_table_lists_nonzero_effects_strongest_first():
    effects = torch.zeros(2, 2, 8, dtype=torch.float64)
    effects[0, 0, 0b011], effects[0, 1, 0b110], effects[1, 0, 0b001] = 1.0, -2.0, 0.5
    scalar = torch.zeros(2, dtype=torch.float64)
    frame = Interactions(effects, scalar, scalar, scalar, scalar).to_frame(["x", "y", "z"])
    rows = frame[["sample", "type", "members", "order", "effect", "index"]].values.tolist()
    assert rows == [
        [0, "or", "y, z", 2, -2.0, 6],
        [0, "and", "x, y", 2, 1.0, 3],
        [1, "and", "x", 1, 0.5, 1],
    ]


def test_a_file_gives_back_everything_and_other_files_are_refused(tmp_path):
    inter = example(2, 2, names=["a", "b", "c"]).relabelled([1, 0, 2])
    path = tmp_path / "x" / "inter.safetensors"
    inter.save(path)
    again = Interactions.load(path)
    assert all(torch.equal(x, y) or x.isnan().all() for x, y in
               zip(inter.tensors().values(), again.tensors().values(), strict=True))  # fmt: skip
    assert again.names.tolist() == inter.names.tolist() and again.is_relabelled
    inter[:0].save(path)
    assert Interactions.load(path).bias.shape == inter[:0].bias.shape
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="inter.safetensors is damaged"):
        Interactions.load(path)
    from symgen.storage import write_tensors

    write_tensors(path, {"a": torch.ones(1)})
    with pytest.raises(ValueError, match="expected symgen.interactions"):
        Interactions.load(path)


ONE = torch.zeros(2, 2, 8)
S = torch.zeros(2)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: Interactions(ONE, S, S, S, S, names=["a", "b"]), ValueError, r"names have shape \(2,\); expected 3"),
    (lambda: Interactions(ONE, S, S, S, S, names=[["a"] * 3, ["b"]]), ValueError, "expected 3 names"),
    (lambda: example(2).salient(-1.0), ValueError, "expected a number >= 0"),
    (lambda: example(2).salient(0.1, top=3), ValueError, "either tau .*or top alone"),
    (lambda: example(2).salient(relative_to="maxi"), ValueError, 'Did you mean "max"'),
    (lambda: example(2).relabelled([0, 0, 1]), ValueError, "expected a permutation of 0..2"),
    (lambda: example(2)[..., 0], IndexError, "use ':' for each leading axis"),
    (lambda: len(example()), TypeError, "single sample"),
])  # fmt: skip
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_shapes_that_do_not_fit_are_refused():
    inter = example(2)
    # Two names in one annotation, so that only the class itself compares these shapes.
    with pytest.raises(ValueError, match=r"the shape .*expected \(\.\.\., 2, 2\*\*n\)"):
        unchecked = Interactions.__new__(Interactions)
        unchecked.__dict__.update(inter.tensors() | {"gap": torch.zeros(3), "names": None})
        unchecked.__post_init__()


def test_conversion_to_shapiq():
    pytest.importorskip("shapiq")
    inter = example(1)[0]
    for kind, effects in (("and", inter.and_), ("or", inter.or_)):
        values = inter.to_shapiq(kind)
        sign = -1.0 if kind == "or" else 1.0
        assert values[(0, 2)] == pytest.approx(sign * float(effects[0b101]))
    with pytest.raises(ValueError, match="one sample"):
        example(2).to_shapiq()
