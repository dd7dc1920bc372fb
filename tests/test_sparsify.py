"""The sparsest split: certified, exact, unique, and the planted logic comes back."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import symgen
from symgen.transforms import interaction_order


def planted(n: int, terms: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return effects (2, 2**n) with a few terms in -1..1 away from 0, and their outputs."""
    generator = torch.Generator().manual_seed(seed)
    effects = torch.zeros(2, 2**n, dtype=torch.float64)
    order = interaction_order(n)
    for kind in (0, 1):
        choices = (order > kind).nonzero().squeeze(1)
        chosen = choices[torch.randperm(len(choices), generator=generator)[:terms]]
        size = 0.4 + 0.6 * torch.rand(len(chosen), generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, (len(chosen),), generator=generator) * 2 - 1
        effects[kind, chosen] = size * sign
    return effects, symgen.and_or_outputs(effects[0], effects[1])


def outputs(n: int, seed: int, samples: int = 1) -> torch.Tensor:
    """Return outputs like those of networks: mostly low orders, a little of everything."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, 2, 2**n)
    effects = torch.randn(shape, generator=generator, dtype=torch.float64)
    effects = effects * 0.3 ** interaction_order(n)
    return symgen.and_or_outputs(effects[:, 0], effects[:, 1])


def optimum(v: torch.Tensor, noise: float, method: str = "highs") -> tuple[float, np.ndarray]:
    """Return the linear program's optimum by HiGHS, and one vertex that attains it."""
    n = len(v).bit_length() - 1
    unit = torch.eye(2**n, dtype=torch.float64)
    zero = torch.zeros_like(unit)
    and_ = symgen.and_or_outputs(unit, zero).T[1:, 1:]
    or_ = symgen.and_or_outputs(zero, unit).T[1:, interaction_order(n) > 1]
    a = torch.cat([and_, or_], 1).numpy()
    a = np.hstack([a, -a])
    w = (v[1:] - v[0]).numpy()
    eps = noise * abs(w[-1])
    cost = np.ones(a.shape[1])
    found = linprog(cost, np.vstack([a, -a]), np.concatenate([w + eps, eps - w]), method=method)
    half = len(found.x) // 2
    return found.fun, found.x[:half] - found.x[half:]


@settings(max_examples=8)
@given(n=st.integers(1, 8), noise=st.sampled_from([0.0, 0.02, 0.05]), seed=st.integers(0, 99))
def test_bound_optimum_and_objective_are_in_order(n, noise, seed):
    v = outputs(n, seed)[0]
    found = symgen.sparsify(v, noise=noise, tol=1e-3)
    best, _ = optimum(v, noise)
    bound = found.objective * (1 - found.gap)
    assert found.gap <= 1e-3
    assert bound <= best * (1 + 1e-7) + 1e-9
    assert best <= found.objective * (1 + 1e-7) + 1e-9
    assert torch.isclose(found.objective, found.effects.abs().sum(), rtol=1e-12)


@settings(max_examples=10)
@given(n=st.integers(1, 9), noise=st.sampled_from([0.0, 0.02, 0.5]), seed=st.integers(0, 99))
def test_the_model_matches_every_state(n, noise, seed):
    v = outputs(n, seed, 2)
    found = symgen.sparsify(v, noise=noise, tol=1e-2)
    error = (found.predict() - v).abs().amax(-1)
    eps = noise * (v[:, -1] - v[:, 0]).abs()
    assert bool((error <= eps * (1 + 1e-6) + 1e-9 * v.abs().amax()).all())
    assert torch.equal(found.predict()[:, 0], found.bias)
    assert bool((found.effects[..., 0] == 0).all())
    assert bool((found.or_[:, interaction_order(n) == 1] == 0).all())


@settings(max_examples=8)
@given(n=st.integers(5, 8), seed=st.integers(0, 99))
def test_planted_logic_comes_back(n, seed):
    effects, v = planted(n, 2, seed)
    found = symgen.sparsify(v, noise=0.0, tol=1e-6)
    if torch.isclose(found.objective, effects.abs().sum(), rtol=1e-5):
        # Where the planted terms are the sparsest there is, and alone in that.
        best, vertex = optimum(v, 0.0)
        assert abs(best - float(effects.abs().sum())) < 1e-6
    assert found.objective <= effects.abs().sum() * (1 + 1e-5)


def five_rules(n: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    effects = torch.zeros(2, 2**n, dtype=torch.float64)
    effects[0, 0b11], effects[0, 0b11100], effects[0, 0b10000000] = 2.0, -1.5, 0.5
    effects[1, 0b1100000], effects[1, 0b101010] = 1.0, -0.8
    return effects, symgen.and_or_outputs(effects[0], effects[1]) - 0.5


def test_five_rules_come_back_exactly():
    effects, v = five_rules()
    found = symgen.sparsify(v, noise=0.0, tol=1e-6)
    assert torch.equal(found.effects.abs() > 1e-9, effects != 0)
    assert torch.allclose(found.effects, effects, atol=1e-9)


def test_noise_below_its_bound_leaves_sets_and_signs():
    effects, v = five_rules()
    generator = torch.Generator().manual_seed(0)
    eps = 0.05 * (v[-1] - v[0]).abs()
    disturbance = (2 * torch.rand(v.shape, generator=generator, dtype=v.dtype) - 1) * eps * 0.5
    found = symgen.sparsify(v + disturbance, noise=0.05)
    salient = torch.stack(found.salient())
    assert torch.equal(salient, effects != 0)
    assert torch.equal(found.effects[salient].sign(), effects[salient].sign())
    assert (found.effects - effects).abs().max() < 6 * eps


@settings(max_examples=6)
@given(noise=st.sampled_from([0.0, 0.02]), seed=st.integers(0, 99))
def test_renumbering_variables_renumbers_interactions(noise, seed):
    n = 6
    v = outputs(n, seed)[0]
    labels = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    states = torch.arange(2**n)
    source = sum(((states >> label) & 1) << i for i, label in enumerate(labels))
    ours = symgen.sparsify(v, noise=noise).relabelled(labels)
    theirs = symgen.sparsify(v[source], noise=noise)
    assert torch.allclose(ours.effects, theirs.effects, atol=1e-6 * float(v.abs().max()))


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_sample_does_not_depend_on_its_batch(noise):
    v = outputs(7, 3, 5)
    v[2] = 1.5  # nothing to explain
    v[3, -1] = v[3, 0]  # no noise allowed
    together = symgen.sparsify(v, noise=noise)
    for i in range(5):
        alone = symgen.sparsify(v[i], noise=noise)
        assert torch.allclose(together.effects[i], alone.effects, atol=1e-9)
    assert together.objective[2] == 0 and together.gap[2] == 0
    assert (together.predict()[3] - v[3]).abs().max() <= 1e-9 * v.abs().max()


@pytest.mark.parametrize("factor", [1e-8, -1.0, 1e8])
def test_scaling_the_output_scales_the_effects(factor):
    v = outputs(6, 1)[0]
    ours = symgen.sparsify(factor * v).effects / factor
    assert torch.allclose(ours, symgen.sparsify(v).effects, atol=1e-6)


def test_complements_swap_and_and_or():
    v = outputs(6, 5)[0]
    many = interaction_order(6) > 1
    ours = symgen.sparsify(v, noise=0.0, tol=1e-6)
    theirs = symgen.sparsify(-v.flip(-1), noise=0.0, tol=1e-6)
    assert torch.isclose(ours.objective, theirs.objective, rtol=1e-5)
    assert torch.allclose(ours.and_[many], theirs.or_[many], atol=1e-3)


def test_a_tie_is_broken_without_favour():
    # "At least two of three": renaming variables changes nothing.
    v = torch.tensor([0.0, 0, 0, 1, 0, 1, 1, 1])
    found = symgen.sparsify(v, noise=0.0, tol=1e-6)
    best, vertex = optimum(v.double(), 0.0, "highs-ds")
    pairs = found.and_[[3, 5, 6]]
    assert torch.allclose(pairs, pairs[0].expand(3), atol=1e-7)
    assert abs(best - float(found.objective)) < 1e-5


@pytest.mark.parametrize("n", [1, 2, 13])
def test_small_and_large_numbers_of_variables(n):
    v = outputs(n, 2)[0]
    found = symgen.sparsify(v, tol=1e-2)
    assert found.gap <= 1e-2 and found.n == n
    assert (found.predict() - v).abs().max() <= 0.02 * found.span * (1 + 1e-6) + 1e-12


def test_other_inputs():
    v = outputs(5, 0, 2)
    expected = symgen.sparsify(v).effects
    assert torch.allclose(symgen.sparsify(v.numpy()).effects, expected)
    assert torch.allclose(symgen.sparsify(v.float()).effects, expected, atol=1e-4)
    assert symgen.sparsify(v.reshape(1, 2, -1)).and_.shape == (1, 2, 32)
    assert len(symgen.sparsify(v[:0])) == 0
    assert symgen.sparsify(v, noise=1e3).objective.sum() == 0


def test_a_missed_gap_is_a_warning_with_the_gap():
    with pytest.warns(symgen.ConvergenceWarning, match=r"did not reach the relative gap 1e-09"):
        found = symgen.sparsify(outputs(6, 0), tol=1e-9, max_iter=1)
    assert found.gap > 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        symgen.sparsify(outputs(6, 0), tol=1e-2)


def test_errors_say_what_was_given():
    v = outputs(3, 0)
    broken = v.clone()
    broken[0, 5] = torch.nan
    for bad, message in [
        ((v[:, :6],), "no power of two"),
        ((broken,), r"masked state 5 \(binary 101"),
        ((torch.zeros(2**17),), "1 to 16 variables; v has 17"),
        ((v, -0.1), "noise must be >= 0"),
        ((v, 0.02, 0.0), "tol > 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            symgen.sparsify(*bad)
