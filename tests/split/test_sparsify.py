"""The sparsest split is optimal, certified, and independent of batch, order, scale and device."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from oracle import check, distance, highs, matrix, noise_values, one_thread, programs, renumbered  # noqa: F401
from outputs import logical_outputs, network_outputs, planted

import symgen
from symgen.split import first_order, interior_point
from symgen.split.first_order import FirstOrder
from symgen.split.interior_point import InteriorPoint
from symgen.split.program import Program
from symgen.split.sparsify import ConvergenceWarning, DeadOutputWarning
from symgen.split.symmetric import SymmetricBasis
from symgen.transforms import and_or_adjoint, and_or_outputs, interaction_order

pytestmark = pytest.mark.filterwarnings("ignore::symgen.split.sparsify.DeadOutputWarning")
few = settings(max_examples=8)
seeds = st.integers(0, 10**6)

# Optimal


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_bound_optimum_and_objective_are_in_order(n, noise):
    v = torch.cat([noise_values(n, n, 2), network_outputs(max(n, 2), 2)[:, : 2**n]])
    inter = symgen.sparsify(v, noise=noise)
    check(v, inter, noise)
    bound = inter.objective * (1 - inter.gap)
    for i in range(len(v)):
        optimum = highs(v[i], noise).fun
        assert bound[i] <= optimum * (1 + 1e-9) + 1e-12
        assert optimum <= inter.objective[i] * (1 + 1e-7) + 1e-12
        assert inter.objective[i] <= optimum / (1 - 1e-3) + 1e-12


def test_the_optimum_of_a_network_at_eight_variables():
    v = network_outputs(8, 1)
    inter = symgen.sparsify(v, noise=0.02, tol=1e-5)
    assert highs(v[0], 0.02, "highs-ipm").fun == pytest.approx(float(inter.objective), rel=1e-5)


@few
@given(seed=seeds, noise=st.sampled_from([0.0, 0.001, 0.02, 0.5]))
def test_any_dual_point_proves_a_bound(seed, noise):
    v = noise_values(4, seed)
    program, best = programs(v, noise), symgen.sparsify(v, noise=noise, tol=1e-6).objective
    scale = v.max() - v.min()
    for size in (0.01, 1.0, 100.0):
        assert (program.bound(size * noise_values(4, seed + 1)) * scale <= best * (1 + 1e-7)).all()


@pytest.mark.parametrize(
    ("noise", "weighted"), [(0.0, False), (0.02, False), (0.5, False), (0.0, True), (0.02, True)]
)
def test_both_methods_agree_with_and_without_costs(noise, weighted):
    program = programs(network_outputs(7, 3), noise)
    if weighted:
        seed = torch.Generator().manual_seed(0)
        random = torch.rand(program.cost.shape, generator=seed, dtype=torch.float64)
        program = Program(program.w, program.eps, 1 + random)
    exact, low = InteriorPoint(program).follow(1e-6, 60)
    optimum = program.objective(exact)
    for tol in (1e-2,) if weighted else (1e-2, 1e-3):
        x, bound = FirstOrder(program).follow(tol, 200)
        objective = program.objective(x)
        assert ((objective - bound) / objective <= tol).all()
        assert (bound <= optimum).all() and (low <= objective).all()
        assert (program.excess(x).abs() <= 1e-9).all()
        # Both choose the same point of the optimal face, as near as a first-order method comes.
        assert ((x - exact).abs().sum((1, 2)) / optimum).mean() < 0.12


def test_the_first_order_method_adapts_to_every_sample():
    """With the same scale of the metric for all, 2 of these samples are left after 100 steps."""
    v = network_outputs(7, 40)
    program = programs((v / v.std()) ** 5, 0.02)
    x, bound = FirstOrder(program).follow(1e-3, 100)
    objective = program.objective(x)
    assert ((objective - bound) / objective).max() <= 1e-3


@pytest.mark.parametrize("tol", [1e-1, 1e-4, 1e-6])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
def test_the_requested_gap_is_reached(noise, tol):
    v = network_outputs(6, 3)
    inter = symgen.sparsify(v, noise=noise, tol=tol)
    check(v, inter, noise)
    assert inter.gap.max() <= tol


def test_more_variables_than_the_dense_method_takes():
    v = network_outputs(12, 1)
    inter = symgen.sparsify(v, noise=0.02, tol=1e-2)
    check(v, inter, 0.02)
    assert inter.gap.max() <= 1e-2


def test_ill_conditioned_outputs_reach_their_gap():
    """Effects over many magnitudes that cancel on the full input, as in some real sentences."""
    generator = torch.Generator().manual_seed(5)
    v = and_or_outputs(torch.randn(2, 2**9, generator=generator, dtype=torch.float64) ** 5)
    v = v - v[0]
    noise = 0.003 * float((v.max() - v.min()) / v[-1].abs())
    assert float(symgen.sparsify(v, noise=noise, max_iter=40).gap) <= 1e-3


# Planted logic


@pytest.mark.parametrize("seed", range(3))
def test_planted_logic_comes_back_from_noise(seed):
    and_, or_, v = planted(6, 2, seed)
    span = (v[-1] - v[0]).abs()
    # Below the noise bound, and not on v[0] and v[N], which set the bound.
    added = 0.01 * span * (2 * torch.rand(64, generator=torch.Generator().manual_seed(seed)) - 1)
    added[0] = added[-1] = 0
    inter, truth = symgen.sparsify(v + added, noise=0.02, tol=1e-4), torch.stack([and_, or_])
    # The planted model is feasible, so the result is no less sparse.
    assert inter.objective <= truth.abs().sum() * (1 + 1e-3)
    exact = symgen.sparsify(v, noise=0.0, tol=1e-6)
    if int((exact.effects.abs() > 1e-3).sum()) == 4:  # the only sparsest model
        assert torch.equal(inter.effects.abs() > 0.2, truth != 0)
        torch.testing.assert_close(inter.effects, truth, rtol=0, atol=float(0.12 * span + 0.05))


def test_without_noise_planted_logic_comes_back_exactly():
    and_, or_ = torch.zeros(2, 64, dtype=torch.float64)
    and_[0b000111], and_[0b110000], or_[0b011100] = 1.5, -0.7, 0.9
    inter = symgen.sparsify(logical_outputs(and_, or_), noise=0.0)
    torch.testing.assert_close(inter.effects, torch.stack([and_, or_]), rtol=0, atol=1e-8)
    assert int((inter.effects != 0).sum()) == 3


# Independent of everything that must not matter


def dual(inter: symgen.Interactions) -> torch.Tensor:
    """The effects of -v[N - S]: AND and OR swapped, except for single variables."""
    single = inter.order == 1
    and_ = torch.where(single, inter.and_, inter.or_)
    return torch.stack([and_, torch.where(single, 0.0, inter.and_)], -2)


@few
@given(
    n=st.integers(2, 6), seed=seeds, logical=st.booleans(), tol=st.sampled_from([1e-1, 1e-3, 1e-6])
)
def test_complement_duality_without_noise(n, seed, logical, tol):
    v = planted(max(n, 4), 3, seed)[2] if logical else noise_values(n, seed)[0]
    inter = symgen.sparsify(v, noise=0.0, tol=tol)
    other = symgen.sparsify(-v.flip(-1), noise=0.0, tol=tol)
    torch.testing.assert_close(other.objective, inter.objective, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        other.effects, dual(inter), rtol=0, atol=1e-5 * float(inter.objective)
    )


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("n", [3, 8])
def test_renumbering_variables_renumbers_interactions(n, noise):
    v = network_outputs(n, 2)
    labels = torch.randperm(n, generator=torch.Generator().manual_seed(n)).tolist()
    other = symgen.sparsify(renumbered(v, labels), noise=noise)
    assert distance(symgen.sparsify(v, noise=noise).relabelled(labels), other) < 1e-5


def test_ties_are_broken_without_regard_to_the_order():
    """The majority of three has many equally sparse models; a simplex method picks variables."""
    v = (interaction_order(3) >= 2).double()
    inter = symgen.sparsify(v, noise=0.0, tol=1e-6)
    for labels in itertools.permutations(range(3)):
        assert distance(inter, inter.relabelled(labels)) < 1e-6
    assert float(inter.objective) == pytest.approx(highs(v, 0.0, "highs-ds").fun, rel=1e-5)


@pytest.mark.parametrize("few_effects", [False, True])
@pytest.mark.parametrize("n", [4, 7])
def test_the_batch_does_not_matter(n, few_effects):
    v = network_outputs(n, 2)
    constant = torch.ones(1, 2**n).double()
    dead = v[:1] - (v[:1] - v[:1, :1]) * (torch.arange(2**n) == 2**n - 1)  # v[N] = v[0]
    v = torch.cat([v, constant, dead])
    together = symgen.sparsify(v, few=few_effects)
    for i, x in enumerate(v):
        assert distance(symgen.sparsify(x, few=few_effects), together[i]) < 1e-6
    shaped = symgen.sparsify(v.reshape(2, 2, -1), few=few_effects)
    assert torch.equal(shaped.and_.reshape(4, -1), together.and_) and shaped.gap.shape == (2, 2)


@pytest.mark.parametrize("factor", [1e-310, 1e-8, 1e288, -1.0])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_scale_does_not_matter(factor, noise):
    v = network_outputs(6, 2)
    inter, other = symgen.sparsify(v + 100, noise=noise), symgen.sparsify(factor * v, noise=noise)
    torch.testing.assert_close(other.objective / abs(factor), inter.objective, rtol=1e-6, atol=0)
    size = inter.objective[:, None, None]
    torch.testing.assert_close(
        other.effects / factor / size, inter.effects / size, rtol=0, atol=1e-6
    )


def test_the_number_of_threads_and_the_dtype_do_not_matter():
    v = network_outputs(9, 2).float()
    inter = symgen.sparsify(v)
    torch.set_num_threads(2)
    assert inter.and_.dtype == torch.float64
    assert distance(inter, symgen.sparsify(v.numpy())) < 1e-6 and torch.get_num_threads() == 2
    assert not symgen.sparsify(v.requires_grad_()).and_.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [6, 10])
def test_the_device_does_not_matter(n):
    v = network_outputs(n, 5)
    other = symgen.sparsify(v.cuda())
    assert other.and_.is_cuda and distance(symgen.sparsify(v), other.to("cpu")) < 1e-5


@pytest.mark.parametrize("noise", [0.0, 0.02, 5.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_and_degenerate_inputs(n, noise):
    v = noise_values(n, n, 4)
    v[0], v[2] = 2.5, 0
    v[1, -1] = v[1, 0]
    inter = symgen.sparsify(v, noise=noise)
    check(v, inter, noise)
    assert not inter.objective[[0, 2]].any() and not inter.gap[[0, 2]].any()


def test_the_smallest_and_the_largest_numbers():
    v = torch.tensor([[0, 1, 2, 1.0], [0, 5e-324, 0, -1e-323]], dtype=torch.float64)
    v[0] *= 1e290 / 2
    inter = symgen.sparsify(v, noise=0.0)
    assert (inter.predict() - v).abs().amax(-1).tolist() <= [1e280, 2e-323]
    assert inter.effects.isfinite().all() and (inter.gap <= 1e-3).all()


@pytest.mark.parametrize("total", [1e-160, 1e-300])
@pytest.mark.parametrize("n", [4, 7])
def test_a_total_effect_that_is_nearly_0_leaves_no_noise(n, total):
    v = network_outputs(n, 1)
    v[:, -1] = v[:, 0] = 0
    exact = symgen.sparsify(v, noise=0.0)
    v[:, -1] = total
    inter = symgen.sparsify(v)
    assert inter.gap.max() <= 1e-3
    torch.testing.assert_close(inter.effects, exact.effects, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_an_empty_batch_gives_an_empty_result(shape):
    assert symgen.sparsify(torch.zeros(shape)).gap.shape == shape[:-1]


# Messages


@pytest.mark.parametrize(("v", "options", "message"), [
    (torch.zeros(3, 6), {}, r"expected 2\*\*n values on the last axis"),
    (torch.zeros(1), {}, r"v has 0 variables .*expected 1 to 16"),
    (torch.zeros(1).expand(2**17), {}, r"v has 17 variables .*Group variables into fewer"),
    (torch.tensor([[0.0, 1], [0, torch.nan]]), {}, r"v is nan at sample \[1\], masked state 1"),
    (torch.tensor([0, 1, 2, torch.inf]), {}, r"v is inf at sample \[\], masked state 3 \(binary 11"),
    (torch.tensor([0, -1.7e308], dtype=torch.float64), {}, r"expected finite numbers up to 1e\+290"),
    *[(torch.zeros(4), option, f"{next(iter(option)).split('_')[0]}.*expected a finite noise >= 0")
      for option in ({"noise": -0.1}, {"noise": float("nan")}, {"tol": 0.0}, {"tol": float("inf")}, {"max_iter": 0})],
])  # fmt: skip
def test_wrong_arguments_are_refused(v, options, message):
    with pytest.raises(ValueError, match=message):
        symgen.sparsify(v, **options)


def test_a_batch_that_does_not_fit_is_refused_before_it_is_computed():
    with pytest.raises(MemoryError, match=r"1,000,000,000 samples take .*fewer"):
        symgen.sparsify(torch.zeros(1).expand(10**9, 2**12))


@pytest.mark.parametrize("dense_last", [11, 5])
def test_too_few_steps_warn_and_still_certify(monkeypatch, dense_last):
    monkeypatch.setattr("symgen.split.sparsify.DENSE_FIRST", dense_last)
    monkeypatch.setattr("symgen.split.sparsify.DENSE_LAST", dense_last)
    v = network_outputs(6, 2)
    with pytest.warns(ConvergenceWarning, match=r"2 of 2 samples did not reach.*0\.001 in 1 step"):
        inter = symgen.sparsify(v, max_iter=1)
    check(v, inter, 0.02)
    assert (inter.gap > 1e-3).all() and (inter.gap <= 1).all()


@pytest.mark.filterwarnings("default::symgen.split.sparsify.DeadOutputWarning")
def test_samples_without_a_total_effect_are_named_once():
    v = noise_values(3, 0, samples=4)
    v[1, -1], v[3, -1] = v[1, 0], v[3, 0]
    with pytest.warns(DeadOutputWarning, match=r"2 of 4 samples: 1, 3\. .*not defined") as seen:
        symgen.sparsify(v)
    assert len(seen) == 1


def test_an_error_in_a_worker_reaches_the_caller_and_threads_are_restored(monkeypatch):
    monkeypatch.setattr(InteriorPoint, "follow", lambda *_: torch.linalg.cholesky(-torch.eye(2)))
    torch.set_num_threads(2)
    with pytest.raises(torch.linalg.LinAlgError):
        symgen.sparsify(network_outputs(5, 3))
    assert torch.get_num_threads() == 2


# Parts


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_symmetric_systems_are_solved_exactly(n):
    generator = torch.Generator().manual_seed(n)
    and_, or_, slack = 0.1 + torch.rand(3, 2, n + 1, generator=generator, dtype=torch.float64)
    and_[:, 0] = or_[:, :2] = slack[:, 0] = 0
    order, basis, rest = interaction_order(n), SymmetricBasis(n), noise_values(n, n, 2)
    rest[:, 0] = 0
    u = basis.inverse(and_, or_, slack)(rest)
    back = and_or_adjoint(u)
    weight = torch.stack([and_[:, order], or_[:, order]], 1)
    image = and_or_outputs(weight * back) + slack[:, order] * u
    image[:, 0] = 0
    torch.testing.assert_close(image, rest, rtol=0, atol=1e-9)


@few
@given(n=st.integers(1, 6), seed=seeds)
def test_the_normal_matrix_equals_its_definition(n, seed):
    order = interaction_order(n)
    weight = noise_values(n, seed, 2).abs() * torch.stack([order > 0, order > 1])
    slack = noise_values(n, seed + 1).abs()
    result = interior_point._normal_matrix(weight[None], slack)[0, 1:, 1:]
    columns = torch.tensor(matrix(n))
    diagonal = torch.cat([weight[0][order > 0], weight[1][order > 1]])
    torch.testing.assert_close(result, columns * diagonal @ columns.T + torch.diag(slack[0, 1:]))


def test_the_root_of_the_barrier_solves_its_cubic():
    z, a, b = (
        torch.tensor(x).double()
        for x in np.meshgrid([-5, -1e-6, 0, 1e-3, 5], [1e-3, 10], [1e-7, 1])
    )
    y = first_order._root(z, a, b)
    assert (y.abs() <= 1).all()
    torch.testing.assert_close(a * y * (1 - y**2) + b * y, z * (1 - y**2), rtol=1e-6, atol=1e-9)


def test_inference_mode_changes_nothing():
    v = torch.randn(3, 2**5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = symgen.sparsify(v)
    with torch.inference_mode():
        torch.testing.assert_close(symgen.sparsify(v.clone()).effects, expected.effects)
