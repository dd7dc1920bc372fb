"""The transforms against their definitions, state by state."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from outputs import logical_outputs
from torch._subclasses.fake_tensor import FakeTensorMode

from symgen.transforms import (
    and_or_adjoint,
    and_or_outputs,
    interaction_order,
    moebius,
    moebius_adjoint,
    superset_sum,
    zeta,
)

few = settings(max_examples=20)
seeds = st.integers(0, 10**6)


def values(n: int, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, 2**n, generator=generator, dtype=torch.float64)


@few
@given(n=st.integers(0, 12), seed=seeds)
def test_moebius_and_zeta_are_inverses_on_every_leading_axis(n, seed):
    v = values(n, seed, 2, 3)
    torch.testing.assert_close(zeta(moebius(v)), v, rtol=0, atol=1e-10)
    torch.testing.assert_close(moebius(zeta(v)), v, rtol=0, atol=1e-10)
    torch.testing.assert_close(moebius(v)[1, 2], moebius(v[1, 2]))


@few
@given(n=st.integers(0, 7), seed=seeds)
def test_transforms_equal_the_matrices_of_their_definitions(n, seed):
    v, states, order = values(n, seed), torch.arange(2**n), interaction_order(n)
    assert order.tolist() == [int(s).bit_count() for s in states]
    inside = ((states & states[:, None]) == states).double()  # column inside row
    sign = (-1.0) ** (order[:, None] - order)
    torch.testing.assert_close(moebius(v), (inside * sign) @ v)
    torch.testing.assert_close(zeta(v), inside @ v)
    torch.testing.assert_close(superset_sum(v), inside.T @ v)
    torch.testing.assert_close(moebius_adjoint(v), (inside * sign).T @ v)


@few
@given(n=st.integers(1, 6), seed=seeds)
def test_outputs_follow_equation_3_and_their_adjoint_the_transpose(n, seed):
    *effects, mu = values(n, seed, 3)
    effects = torch.stack(effects)
    effects[:, 0] = 0
    outputs = and_or_outputs(effects)
    torch.testing.assert_close(outputs, logical_outputs(*effects))
    torch.testing.assert_close((outputs * mu).sum(), (effects * and_or_adjoint(mu)).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    assert (
        moebius(torch.ones(8, dtype=dtype)).dtype == zeta(torch.ones(8, dtype=dtype)).dtype == dtype
    )


@pytest.mark.parametrize("transform", [moebius, zeta])
def test_autocast_and_export_change_nothing(transform):
    v = torch.randn(2**9, generator=torch.Generator().manual_seed(0))
    expected = transform(v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(transform(v), expected)
    half = v.to(torch.float16)  # a type that no other test uses
    with FakeTensorMode() as mode:
        transform(mode.from_tensor(half))
    assert type(transform(half)) is torch.Tensor


@pytest.mark.parametrize("transform", [moebius, zeta])
def test_a_first_call_under_inference_mode_does_not_break_gradients(transform):
    # A size and dtype that no other test uses, so that the factors are made here.
    with torch.inference_mode():
        transform(torch.ones(2**11, dtype=torch.bfloat16))
    v = torch.ones(2**11, dtype=torch.bfloat16, requires_grad=True)
    transform(v).sum().backward()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("size", [0, 3, 12])
def test_a_length_that_is_not_a_power_of_two_is_refused(size):
    with pytest.raises(ValueError, match=rf"v has shape \({size},\); expected 2\*\*n values"):
        moebius(torch.zeros(size))
