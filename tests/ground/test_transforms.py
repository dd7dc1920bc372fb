"""The transforms are exact inverses, and what their definitions say, state by state."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from outputs import logical_outputs

import symgen
from symgen.transforms import (
    and_or_adjoint,
    and_or_outputs,
    interaction_order,
    moebius,
    superset_sum,
    zeta,
)


def values(n: int, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, 2**n, generator=generator, dtype=torch.float64)


few = settings(max_examples=25)
sizes, seeds = st.integers(0, 12), st.integers(0, 10**6)


@few
@given(n=sizes, seed=seeds)
def test_moebius_and_zeta_are_inverses(n, seed):
    v = values(n, seed, 2)
    torch.testing.assert_close(zeta(moebius(v)), v, rtol=0, atol=1e-10)
    torch.testing.assert_close(moebius(zeta(v)), v, rtol=0, atol=1e-10)


@few
@given(n=st.integers(0, 6), seed=seeds)
def test_transforms_are_what_their_definitions_say(n, seed):
    v, states, order = values(n, seed), torch.arange(2**n), interaction_order(n)
    inside = (states & states[:, None]) == states  # column inside row
    sign = (-1.0) ** (order[:, None] - order)
    torch.testing.assert_close(moebius(v), (inside * sign).double() @ v)
    torch.testing.assert_close(zeta(v), inside.double() @ v)
    torch.testing.assert_close(superset_sum(v), inside.T.double() @ v)


@few
@given(n=st.integers(1, 6), seed=seeds)
def test_outputs_of_and_or_effects_are_equation_3(n, seed):
    and_, or_ = values(n, seed, 2)
    # The empty set is no interaction; an OR over nothing is never triggered.
    and_[0] = or_[0] = 0
    torch.testing.assert_close(and_or_outputs(and_, or_), logical_outputs(and_, or_))


@few
@given(n=st.integers(1, 10), seed=seeds)
def test_the_adjoint_gives_the_same_inner_products(n, seed):
    and_, or_, mu = values(n, seed, 3)
    back = and_or_adjoint(mu)
    torch.testing.assert_close(
        (and_or_outputs(and_, or_) * mu).sum(), (and_ * back[0] + or_ * back[1]).sum()
    )
    i, v = values(n, seed + 1, 2)
    torch.testing.assert_close((zeta(i) * v).sum(), (i * superset_sum(v)).sum())


@few
@given(n=st.integers(0, 10), seed=seeds)
def test_every_leading_axis_is_a_batch(n, seed):
    v = values(n, seed, 2, 3)
    single = torch.stack([torch.stack([moebius(x) for x in row]) for row in v])
    torch.testing.assert_close(moebius(v), single)


def test_order_counts_variables():
    assert interaction_order(4).tolist() == [bin(t).count("1") for t in range(16)]
    assert interaction_order(0).tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    v = torch.ones(8, dtype=dtype)
    assert moebius(v).dtype == zeta(v).dtype == dtype


@pytest.mark.parametrize("size", [0, 3, 12])
def test_an_axis_that_is_no_power_of_two_is_refused(size):
    with pytest.raises(ValueError, match=rf"last axis {size} is no power of two"):
        symgen.moebius(torch.zeros(2, size))
