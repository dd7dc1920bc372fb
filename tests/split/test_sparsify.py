"""The sparsest split: optimal, certified, and the same however it is asked for."""

import concurrent.futures
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from outputs import logical_outputs, network_outputs, planted
from scipy.optimize import linprog

import symgen
from symgen.split import first_order, interior_point
from symgen.split.linear_program import Program
from symgen.split.sparsify import ConvergenceWarning
from symgen.split.symmetric import SymmetricBasis
from symgen.transforms import and_or_adjoint, and_or_outputs, interaction_order

# What `sparsify` does for its parts, for direct calls of what is below it.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::symgen.split.sparsify.DeadOutputWarning"),
]

few = settings(max_examples=15)
seeds = st.integers(0, 10**6)


def noise_values(n: int, seed: int, samples: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


def matrix(n: int) -> np.ndarray:
    """A: what every AND and OR effect gives to every nonempty state, by definition."""
    one = torch.eye(2**n, dtype=torch.float64)
    none = torch.zeros(2**n, dtype=torch.float64)
    order = interaction_order(n)
    and_ = [logical_outputs(e, none) for e in one[order > 0]]
    or_ = [logical_outputs(none, e) for e in one[order > 1]]
    return torch.stack(and_ + or_, 1)[1:].numpy()


def highs(v: torch.Tensor, kappa: float, method: str = "highs"):
    """SciPy's solution of the linear program with x = p - q."""
    n = v.shape[-1].bit_length() - 1
    a, w = matrix(n), (v[1:] - v[0]).numpy()
    eps = kappa * abs(float(v[-1] - v[0]))
    both = np.hstack([a, -a])
    cost = np.ones(both.shape[1])
    if eps == 0:
        return linprog(cost, A_eq=both, b_eq=w, method=method)
    return linprog(
        cost, A_ub=np.vstack([both, -both]), b_ub=np.concatenate([w + eps, eps - w]), method=method
    )


def check(v: torch.Tensor, inter: symgen.Interactions, kappa: float) -> None:
    """What every result owes: the contract of the design."""
    eps = kappa * (v[..., -1:] - v[..., :1]).abs()
    miss = (inter.predict() - v).abs()
    scale = (v - v[..., :1]).abs().amax(-1, keepdim=True)
    assert (miss <= eps * (1 + 1e-6) + 1e-9 * scale).all()
    assert torch.equal(inter.predict()[..., 0], v[..., 0])
    assert (inter.effects[..., 0] == 0).all()
    assert (inter.or_[..., inter.order == 1] == 0).all()
    torch.testing.assert_close(inter.objective, inter.effects.abs().sum((-2, -1)))


def distance(a: symgen.Interactions, b: symgen.Interactions) -> float:
    """Largest sum of differences over the sum of effects of a sample."""
    size = a.objective.clamp(min=torch.finfo(a.objective.dtype).tiny)
    return float(((a.effects - b.effects).abs().sum((-2, -1)) / size).max())


def programs(v: torch.Tensor, kappa: float) -> Program:
    """What `sparsify` makes of v (sample, state) for its methods."""
    w = v - v[:, :1]
    scale = w.amax(-1) - w.amin(-1)
    return Program(w / scale[:, None], kappa * w[:, -1].abs() / scale)


# Optimal


@pytest.mark.parametrize("kappa", [0.0, 0.02])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_bound_optimum_objective(n, kappa):
    v = torch.cat([noise_values(n, n, 2), network_outputs(max(n, 2), 2)[:, : 2**n]])
    inter = symgen.sparsify(v, noise=kappa)
    check(v, inter, kappa)
    bound = inter.objective * (1 - inter.gap)
    for i in range(len(v)):
        optimum = highs(v[i], kappa).fun
        assert bound[i] <= optimum * (1 + 1e-9) + 1e-12
        assert optimum <= inter.objective[i] * (1 + 1e-7) + 1e-12
        assert inter.objective[i] <= optimum / (1 - 1e-3) + 1e-12


@pytest.mark.parametrize("kappa", [0.0, 0.02])
def test_bound_optimum_objective_of_a_network_at_eight_variables(kappa):
    v = network_outputs(8, 1)
    optimum = highs(v[0], kappa, "highs-ipm").fun
    inter = symgen.sparsify(v, noise=kappa, tol=1e-5)
    assert optimum == pytest.approx(float(inter.objective), rel=1e-5)
    assert float(inter.objective * (1 - inter.gap)) <= optimum * (1 + 1e-8)


@few
@given(seed=seeds, kappa=st.sampled_from([0.0, 0.001, 0.02, 0.5]))
def test_any_dual_point_proves_a_bound(seed, kappa):
    v = noise_values(4, seed)
    w = v - v[:, :1]
    program = Program(w, kappa * w[:, -1].abs())
    objective = symgen.sparsify(v, noise=kappa, tol=1e-6).objective
    for size in (0.01, 1.0, 100.0):
        mu = size * noise_values(4, seed + 1)
        assert (program.bound(mu) <= objective * (1 + 1e-7)).all()


@pytest.mark.parametrize("kappa", [0.0, 0.02, 0.05, 0.5])
def test_both_methods_agree(kappa):
    program = programs(network_outputs(8, 4), kappa)
    exact, low = interior_point.minimize(program, 1e-6, 60)
    for tol in (1e-2, 1e-3, 1e-4):
        x, bound = first_order.minimize(program, tol, 200)
        objective, optimum = x.abs().sum((1, 2)), exact.abs().sum((1, 2))
        assert ((objective - bound) / objective <= tol).all()
        assert (bound <= optimum).all()
        assert (low <= objective).all()
        assert (program.excess(x).abs() <= 1e-9).all()
        # The same point of the optimal face too, as near as a first-order method comes.
        assert ((x - exact).abs().sum((1, 2)) / optimum).mean() < 0.12


@pytest.mark.parametrize("kappa", [0.0, 0.02])
def test_more_variables_than_the_dense_method_takes(kappa):
    v = network_outputs(12, 1)
    inter = symgen.sparsify(v, noise=kappa, tol=1e-2)
    check(v, inter, kappa)
    assert inter.gap.max() <= 1e-2


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("kappa", [0.0, 0.02, 0.05, 0.5])
def test_the_gap_asked_for_is_met(kappa, tol):
    v = network_outputs(7, 3)
    inter = symgen.sparsify(v, noise=kappa, tol=tol)
    check(v, inter, kappa)
    assert inter.gap.max() <= tol


# Planted logic


@pytest.mark.parametrize("n", [4, 6, 8])
@pytest.mark.parametrize("seed", range(3))
def test_planted_logic_comes_back_from_noise(n, seed):
    and_, or_, v = planted(n, 2, seed)
    span = (v[-1] - v[0]).abs()
    # Noise below the bound, away from v[0] and v[N], which set the bound itself.
    dirt = 0.01 * span * (2 * torch.rand(2**n, generator=torch.Generator().manual_seed(seed)) - 1)
    dirt[0] = dirt[-1] = 0
    inter = symgen.sparsify(v + dirt, noise=0.02, tol=1e-4)
    truth = torch.stack([and_, or_])
    # No sparser model explains this v: the planted one is feasible.
    assert inter.objective <= truth.abs().sum() * (1 + 1e-3)
    if recoverable(v, n):
        strong = truth != 0
        found = inter.effects.abs() > 0.2
        assert torch.equal(found, strong)
        assert torch.equal(inter.effects.sign()[strong], truth.sign()[strong])
        torch.testing.assert_close(
            inter.effects[strong], truth[strong], rtol=0, atol=float(4 * 0.03 * span + 0.05)
        )


def recoverable(v: torch.Tensor, n: int) -> bool:
    """Whether the planted effects are the sparsest exact model, and the only one."""
    inter = symgen.sparsify(v, noise=0.0, tol=1e-6)
    return bool(((inter.effects.abs() > 1e-3).sum() == 4).item())


def test_most_planted_logic_is_recoverable():
    assert sum(recoverable(planted(6, 2, seed)[2], 6) for seed in range(3)) >= 2


def test_without_noise_planted_logic_comes_back_exactly_and_alone():
    and_, or_ = torch.zeros(2, 64, dtype=torch.float64)
    and_[0b000111], and_[0b110000], or_[0b011100] = 1.5, -0.7, 0.9
    inter = symgen.sparsify(logical_outputs(and_, or_), noise=0.0)
    torch.testing.assert_close(inter.and_, and_, rtol=0, atol=1e-8)
    torch.testing.assert_close(inter.or_, or_, rtol=0, atol=1e-8)
    assert int((inter.effects != 0).sum()) == 3


def test_an_interaction_below_the_noise_is_left_out():
    and_, or_ = torch.zeros(2, 16, dtype=torch.float64)
    and_[0b0011], or_[0b1100], and_[0b0101] = 2.0, 1.0, 0.02
    inter = symgen.sparsify(logical_outputs(and_, or_), noise=0.02)
    assert inter.and_[0b0101].abs() < 0.01
    assert inter.and_[0b0011] > 1.8


# The same, however it is asked for


@few
@given(n=st.integers(1, 7), seed=seeds, kappa=st.sampled_from([0.0, 0.02, 0.3]))
def test_universal_matching(n, seed, kappa):
    v = noise_values(n, seed, 2)
    check(v, symgen.sparsify(v, noise=kappa), kappa)


def dual(inter: symgen.Interactions) -> torch.Tensor:
    """The effects of -v[N - S]: AND and OR swapped, but for single variables."""
    single = inter.order == 1
    and_ = torch.where(single, inter.and_, inter.or_)
    return torch.stack([and_, torch.where(single, 0.0, inter.and_)], -2)


def swapped(n: int, seed: int, kind: str) -> torch.Tensor:
    """Outputs in which only AND or only OR is planted, both, or nothing."""
    if kind == "nothing":
        return noise_values(n, seed)[0]
    and_, or_, both = planted(n, 2 if kind == "both" else 4, seed)
    none = torch.zeros_like(and_)
    return {"and": logical_outputs(or_, none), "or": logical_outputs(none, or_), "both": both}[kind]


@few
@given(
    n=st.integers(3, 7),
    seed=seeds,
    kind=st.sampled_from(["and", "or", "both", "nothing"]),
    tol=st.sampled_from([1e-1, 1e-3, 1e-6]),
)
# Four ANDs that are one of many optima.
@example(n=4, seed=15, kind="and", tol=1e-3)
@example(n=1, seed=0, kind="nothing", tol=1e-3)
@example(n=2, seed=0, kind="nothing", tol=1e-3)
def test_complement_duality_without_noise(n, seed, kind, tol):
    v = swapped(n, seed, kind)
    inter = symgen.sparsify(v, noise=0.0, tol=tol)
    other = symgen.sparsify(-v.flip(-1), noise=0.0, tol=tol)
    torch.testing.assert_close(other.objective, inter.objective, rtol=1e-6, atol=0)
    size = float(inter.objective)
    torch.testing.assert_close(other.effects, dual(inter), rtol=0, atol=1e-5 * size)
    if kind != "nothing":
        assert (inter.effects != 0).sum() == (other.effects != 0).sum()


@pytest.mark.parametrize("method", [interior_point, first_order])
@pytest.mark.parametrize("kind", ["and", "or"])
def test_both_methods_treat_and_and_or_alike(method, kind):
    # Four planted effects that are one of many optima (3, 4), and the only one (6).
    v = [swapped(n, seed, kind)[None] for n, seed in ((3, 0), (4, 15), (6, 0))]
    counts = []
    for outputs in v:
        x, y = (
            method.minimize(programs(w, 0.0), 1e-3, 100)[0] for w in (outputs, -outputs.flip(-1))
        )
        counts.append(int((x.abs() > 1e-6).sum()))
        assert int((y.abs() > 1e-6).sum()) == counts[-1]
        torch.testing.assert_close(x.abs().sum((0, 1)), y.abs().sum((0, 1)), rtol=0, atol=1e-5)
    assert counts[0] > 4 and counts[1] > 4 and counts[2] == 4


@pytest.mark.parametrize("kappa", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("kind", ["and", "or", "both", "network"])
def test_complement_duality_with_noise(kind, kappa):
    """Nearly: v[0] is matched exactly, which is v[N] in the dual; twice the noise allows for it."""
    n = 5
    v = (
        network_outputs(n, 4)
        if kind == "network"
        else torch.stack([swapped(n, seed, kind) for seed in range(4)])
    )
    inter, other = (symgen.sparsify(w, noise=kappa) for w in (v, -v.flip(-1)))
    more = [symgen.sparsify(w, noise=2 * kappa) for w in (v, -v.flip(-1))]
    for one, twice in ((inter, more[1]), (other, more[0])):
        assert (twice.objective * (1 - twice.gap) <= one.objective * (1 + 1e-7)).all()
    torch.testing.assert_close(inter.objective, other.objective, rtol=2 * kappa, atol=0)


def renumbered(v: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """v after variable i was renamed to labels[i]."""
    states = torch.arange(v.shape[-1])
    return v[..., sum((states >> label & 1) << i for i, label in enumerate(labels))]


@pytest.mark.parametrize("kappa", [0.0, 0.02])
@pytest.mark.parametrize("n", [3, 8])
def test_renumbering_variables_renumbers_interactions(n, kappa):
    v = network_outputs(n, 3)
    inter = symgen.sparsify(v, noise=kappa)
    generator = torch.Generator().manual_seed(n)
    labels = torch.randperm(n, generator=generator).tolist()
    other = symgen.sparsify(renumbered(v, labels), noise=kappa)
    assert distance(inter.relabelled(labels), other) < 1e-5


@pytest.mark.parametrize("kappa", [0.0, 0.02])
@pytest.mark.parametrize("n", [4, 8, 10])
def test_company_does_not_matter(n, kappa):
    v = network_outputs(n, 4)
    # Constant, and without noise since v[N] = v[0].
    v = torch.cat(
        [
            v,
            torch.ones(1, 2**n).double(),
            v[:1] - (v[:1] - v[:1, :1]) * (torch.arange(2**n) == 2**n - 1),
        ]
    )
    together = symgen.sparsify(v, noise=kappa)
    alone = [symgen.sparsify(x, noise=kappa) for x in v]
    for i, inter in enumerate(alone):
        assert distance(inter, together[i]) < 1e-6
    shaped = symgen.sparsify(v.reshape(2, 3, -1), noise=kappa)
    assert torch.equal(shaped.and_.reshape(6, -1), together.and_)
    assert shaped.gap.shape == (2, 3)


@pytest.mark.parametrize("factor", [1e-310, 1e-8, 1e8, 1e288, -1.0, 3.7])
@pytest.mark.parametrize("kappa", [0.0, 0.02])
def test_scale_does_not_matter(factor, kappa):
    v = network_outputs(7, 3)
    inter = symgen.sparsify(v, noise=kappa)
    other = symgen.sparsify(factor * v, noise=kappa)
    torch.testing.assert_close(other.objective / abs(factor), inter.objective, rtol=1e-6, atol=0)
    torch.testing.assert_close(other.gap, inter.gap, rtol=0.1, atol=1e-9)
    size = inter.objective[:, None]
    torch.testing.assert_close(other.and_ / factor / size, inter.and_ / size, rtol=0, atol=1e-6)
    torch.testing.assert_close(other.or_ / factor / size, inter.or_ / size, rtol=0, atol=1e-6)


def test_a_constant_added_goes_to_the_bias():
    v = network_outputs(6, 2)
    inter, other = symgen.sparsify(v), symgen.sparsify(v + 100)
    assert distance(inter, other) < 1e-6
    torch.testing.assert_close(other.bias, inter.bias + 100)


def test_the_number_of_threads_does_not_matter():
    v = network_outputs(9, 3)
    inter = symgen.sparsify(v)
    torch.set_num_threads(2)
    assert distance(inter, symgen.sparsify(v)) < 1e-6
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("n, last, workers", [(4, 10, 2), (9, 10, 2), (5, 4, 3)])
def test_small_systems_take_few_threads_and_give_the_same(monkeypatch, n, last, workers):
    from symgen.split import sparsify as module

    monkeypatch.setattr(module, "THREADS_LAST", last)
    v = network_outputs(n, 3)
    torch.set_num_threads(2)
    inter = symgen.sparsify(v)
    pools = []
    monkeypatch.setattr(
        module,
        "ThreadPoolExecutor",
        lambda most: pools.append(most) or concurrent.futures.ThreadPoolExecutor(most),
    )
    torch.set_num_threads(16)
    other = symgen.sparsify(v)
    assert pools == [workers] and torch.get_num_threads() == 16
    if workers == 2:
        assert torch.equal(other.effects, inter.effects) and torch.equal(other.gap, inter.gap)
    else:
        assert distance(inter, other) < 1e-6
    monkeypatch.setattr(module, "_minimize", lambda *_: torch.linalg.cholesky(-torch.eye(2)))
    with pytest.raises(torch.linalg.LinAlgError):
        symgen.sparsify(v)
    assert torch.get_num_threads() == 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [6, 10, 11])
def test_the_device_does_not_matter(n):
    v = network_outputs(n, 5)
    inter, other = symgen.sparsify(v), symgen.sparsify(v.cuda())
    assert other.and_.is_cuda
    assert distance(inter, other.to("cpu")) < 1e-5


def test_ties_are_broken_without_regard_to_numbers():
    """A majority of three can be written in many equally sparse ways; a vertex picks variables."""
    states = torch.arange(8)
    v = (interaction_order(3)[states] >= 2).double()
    inter = symgen.sparsify(v, noise=0.0, tol=1e-6)
    vertex = highs(v, 0.0, "highs-ds")
    assert float(inter.objective) == pytest.approx(vertex.fun, rel=1e-5)
    effects = vertex.x[: len(vertex.x) // 2] - vertex.x[len(vertex.x) // 2 :]
    and_, or_ = torch.zeros(2, 8, dtype=torch.float64)
    order = interaction_order(3)
    and_[order > 0] = torch.tensor(effects[:7])
    or_[order > 1] = torch.tensor(effects[7:])
    torch.testing.assert_close(logical_outputs(and_, or_), v)

    def lopsided(values: torch.Tensor) -> float:
        return max(
            float((values - renumbered(values, list(p))).abs().max())
            for p in itertools.permutations(range(3))
        )

    assert max(lopsided(inter.and_), lopsided(inter.or_)) < 1e-6
    assert max(lopsided(and_), lopsided(or_)) > 0.1


# Every kind of input


@pytest.mark.parametrize("kappa", [0.0, 0.02, 5.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_and_degenerate_inputs(n, kappa):
    generator = torch.Generator().manual_seed(n)
    v = torch.randn(4, 2**n, generator=generator, dtype=torch.float64)
    v[0] = 2.5
    v[1, -1] = v[1, 0]
    v[2] = 0
    inter = symgen.sparsify(v, noise=kappa)
    check(v, inter, kappa)
    assert inter.effects.isfinite().all()
    assert (inter.objective[[0, 2]] == 0).all()
    assert (inter.gap[[0, 2]] == 0).all()


def test_the_smallest_and_the_largest_numbers_are_matched_or_refused():
    v = torch.tensor([[0, 1, 2, 1.0], [0, 5e-324, 0, -1e-323]], dtype=torch.float64)
    v[0] *= 1e290 / 2
    inter = symgen.sparsify(v, noise=0.0)
    assert (inter.predict()[1] - v[1]).abs().max() <= 2e-323
    assert (inter.predict()[0] - v[0]).abs().max() <= 1e280
    assert inter.effects.isfinite().all() and (inter.gap <= 1e-3).all()
    single = symgen.sparsify(torch.tensor([0, 3.4e38, -3.4e38, 3.4e38]), noise=0.0)
    assert 1e39 < single.objective < 2e39 and single.gap <= 1e-3


def test_no_number_is_no_certificate(monkeypatch):
    def broken(program, tol, max_iter):
        return torch.full((1, 2, 4), torch.nan).double(), torch.zeros(1).double()

    monkeypatch.setattr(interior_point, "minimize", broken)
    with pytest.warns(ConvergenceWarning, match="1 of 1 samples"):
        inter = symgen.sparsify(torch.tensor([0, 1, 2, 1.0]))
    assert inter.gap.isnan()


def test_huge_noise_needs_no_interaction():
    inter = symgen.sparsify(network_outputs(4, 2).clamp(-5, 5), noise=1e3)
    assert (inter.effects == 0).all()


def test_float32_arrays_and_lists_of_samples():
    v = network_outputs(5, 3)
    inter = symgen.sparsify(v.float())
    assert inter.and_.dtype == torch.float64
    assert distance(inter, symgen.sparsify(v.float().numpy())) == 0
    assert distance(inter, symgen.sparsify(v)) < 1e-3
    array = symgen.sparsify(np.array([0, 0, 0, 3.0]), noise=0.0)
    torch.testing.assert_close(array.and_, torch.tensor([0, 0, 0, 3.0]).double())


def test_gradients_do_not_matter():
    v = network_outputs(4, 1)
    assert not symgen.sparsify(v.requires_grad_()).and_.requires_grad


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_an_empty_batch_gives_an_empty_result(shape):
    inter = symgen.sparsify(torch.zeros(shape))
    assert inter.and_.shape == shape and inter.gap.shape == shape[:-1]


def test_the_bar_counts_samples(capsys):
    symgen.sparsify(network_outputs(3, 5), progress=True)
    assert "5/5" in capsys.readouterr().err


# Messages


@pytest.mark.parametrize(
    ("v", "message"),
    [
        (torch.zeros(3, 6), r"one value for each of the 2\*\*n masked states.*last axis 6"),
        (torch.zeros(1), r"takes 1 to 16 variables; v has 0.*One state has no interactions"),
        (torch.zeros(2**17), r"v has 17.*GiB.*Group variables into fewer"),
        (
            torch.tensor([[0.0, 1], [0, torch.nan]]),
            r"finite.*it is nan at sample \[1\], masked state 1",
        ),
        (
            torch.tensor([0, 1, 2, torch.inf]),
            r"it is inf at sample \[\], masked state 3 \(binary 11",
        ),
        (
            torch.tensor([[0, 1, 0, 1], [0, -1.7e308, 1.7e308, 0]], dtype=torch.float64),
            r"at most 1e\+290 in size; it is -1\.7e\+308 at sample \[1\], masked state 1",
        ),
        # No memory holds these; their numbers are one.
        (torch.zeros(1).expand(2**40), r"v has 40.*GiB.*Group variables into fewer"),
    ],
)
def test_wrong_outputs_are_refused(v, message):
    with pytest.raises(ValueError, match=message):
        symgen.sparsify(v)


def test_a_batch_that_no_memory_holds_is_refused_before_any_is_taken():
    with pytest.raises(
        MemoryError, match=r"GiB for 1,000,000,000 samples of n = 12.*are free.*fewer"
    ):
        symgen.sparsify(torch.zeros(1).expand(10**9, 2**12))


INTERRUPTED = """
import os, signal, threading, time
import torch, symgen

# Whoever starts a job in the background has it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
sparsify = symgen.sparsify  # is imported here, which may take longer than the first wait
for n, samples in ((4, 100_000), (10, 200), (12, 64), (15, 4)):
    v = torch.randn(samples, 2**n, generator=torch.Generator().manual_seed(0))
    sent, ended = [], threading.Event()
    def send():
        # Python itself loses one that comes within a callback of its garbage collector.
        for wait in (1.0, 10.0, 10.0):
            if not ended.wait(wait):
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
    try:
        sparsify(v, tol=1e-6, max_iter=1000)
    except KeyboardInterrupt:
        ended.set()
        waited = time.monotonic() - sent[-1]
        working = [t for t in threading.enumerate() if "Pool" in t.name]
        print(n, waited < 30, working)  # all of it would take longer
"""


def test_ctrl_c_ends_the_work():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.splitlines() == [f"{n} True []" for n in (4, 10, 12, 15)], ended.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -0.1},
        {"noise": float("nan")},
        {"noise": float("inf")},
        {"tol": 0.0},
        {"tol": float("inf")},
        {"tol": float("nan")},
        {"max_iter": 0},
    ],
)
def test_wrong_options_are_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=rf"noise must be >= 0, tol > 0.*got.*{name}={value}"):
        symgen.sparsify(torch.zeros(4), **wrong)


@pytest.mark.parametrize("n", [6, 11])
def test_too_few_steps_warn_and_still_certify(n):
    v = network_outputs(n, 2)
    with pytest.warns(ConvergenceWarning, match=r"2 of 2 samples did not reach.*0\.001 in 1 step"):
        inter = symgen.sparsify(v, max_iter=1)
    check(v, inter, 0.02)
    assert (inter.gap > 1e-3).all() and (inter.gap <= 1).all()


# Parts


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_symmetric_systems_are_solved_exactly(n):
    generator = torch.Generator().manual_seed(n)
    weights = 0.1 + torch.rand(3, 2, n + 1, generator=generator, dtype=torch.float64)
    and_, or_, slack = weights
    and_[:, 0] = or_[:, :2] = slack[:, 0] = 0
    order, basis = interaction_order(n), SymmetricBasis(n)
    rest = torch.randn(2, 2**n, generator=generator, dtype=torch.float64)
    rest[:, 0] = 0
    u = basis.apply(basis.inverse(and_, or_, slack), rest)
    back = and_or_adjoint(u)
    image = and_or_outputs(and_[:, order] * back[0], or_[:, order] * back[1]) + slack[:, order] * u
    image[:, 0] = 0
    torch.testing.assert_close(image, rest, rtol=0, atol=1e-9)


def test_the_root_of_the_barrier_solves_its_cubic():
    z, a, b = torch.meshgrid(
        torch.tensor([-5, -1, -1e-6, 0, 1e-3, 1, 5.0]).double(),
        torch.tensor([1e-3, 1, 10.0]).double(),
        torch.tensor([1e-7, 1e-2, 1.0]).double(),
        indexing="ij",
    )
    y = first_order._root(z, a, b)
    assert (y.abs() <= 1).all()
    torch.testing.assert_close(a * y * (1 - y**2) + b * y, z * (1 - y**2), rtol=1e-6, atol=1e-9)


@few
@given(n=st.integers(1, 6), seed=seeds)
def test_the_normal_matrix_is_what_its_formula_says(n, seed):
    weight = noise_values(n, seed, 2).abs()
    order = interaction_order(n)
    weight *= torch.stack([order > 0, order > 1])
    slack = noise_values(n, seed + 1).abs()
    found = interior_point._normal_matrix(weight[None], slack)[0, 1:, 1:]
    columns = torch.tensor(matrix(n))
    diagonal = torch.cat([weight[0][order > 0], weight[1][order > 1]])
    expected = columns * diagonal @ columns.T + torch.diag(slack[0, 1:])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("seed", [0, 5, 17])
def test_ill_conditioned_outputs_reach_their_gap(seed):
    """Effects over many magnitudes that cancel on the full input, as some real sentences have."""
    generator = torch.Generator().manual_seed(seed)
    effects = torch.randn(2, 2**10, generator=generator, dtype=torch.float64) ** 5
    v = and_or_outputs(*effects)
    v = v - v[0]
    noise = 0.003 * float((v.max() - v.min()) / v[-1].abs())
    assert float(symgen.sparsify(v, noise=noise, max_iter=40).gap) <= 1e-3


@pytest.mark.filterwarnings("default::symgen.split.sparsify.DeadOutputWarning")
def test_samples_without_a_total_effect_are_named_once():
    v = noise_values(3, 0, samples=4)
    v[1, -1], v[3, -1] = v[1, 0], v[3, 0]
    with pytest.warns(
        symgen.split.sparsify.DeadOutputWarning, match=r"2 of 4 samples: 1, 3\. .*not defined"
    ) as seen:
        inter = symgen.sparsify(v)
    assert len(seen) == 1 and inter.total_effect[[1, 3]].tolist() == [0, 0]
    torch.testing.assert_close(inter.full, v[:, -1])
