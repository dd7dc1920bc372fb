"""Measures of the three conditions under which interactions are proven to be sparse (App. B)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from symgen.method.generalization import PerSample
from symgen.transforms import count_variables, interaction_order

ByState = Float[Tensor, "*batch state"]
ByOrder = Float[Tensor, "*batch order"]


def _by_order(values: Tensor) -> Tensor:
    order = interaction_order(count_variables(values)).to(values.device)
    return torch.nn.functional.one_hot(order).to(values.dtype)


def strength_above(effects: ByState) -> ByOrder:
    """Return the share of strength at orders above M, for M = 0..n (Condition 1).

    Args:
        effects: AND or OR effects, or the sum of both magnitudes. Entry 0 is not an interaction, so
            it does not count.

    Returns:
        Shape (..., n + 1): 1 at M = 0 and 0 at M = n; NaN for a sample without effects.

    Example:
        >>> strength_above(torch.tensor([0.0, 2.0, 1.0, 1.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """
    strength = effects.abs() @ _by_order(effects)
    strength[..., 0] = 0
    return (1 - strength.cumsum(-1) / strength.sum(-1, keepdim=True)).clamp(min=0)


def average_output(v: ByState) -> ByOrder:
    """Return u(m), the mean of v[S] - v[0] over all states with m variables present (App. B).

    Args:
        v: outputs on all masked states.

    Returns:
        Shape (..., n + 1), in units of v; u(0) = 0 and u(n) = v[N] - v[0]. Steps that are as small
        as rounding become 0.

    Example:
        >>> average_output(torch.tensor([1.0, 2.0, 4.0, 5.0]))
        tensor([0., 2., 4.])
    """
    outputs = v.double()
    states = _by_order(outputs)
    u = (outputs - outputs[..., :1]) @ (states / states.sum(0))
    steps = u.diff(dim=-1)
    rounding = steps.abs() <= 1e3 * torch.finfo(u.dtype).eps * u.abs().amax(-1, keepdim=True)
    return torch.cat([u[..., :1], steps.where(~rounding, 0).cumsum(-1)], -1).to(v.dtype)


def never_falls(u: ByOrder) -> PerSample:
    """Return 1 if u never falls (Condition 2), else 0; NaN if u is constant.

    Example:
        >>> never_falls(torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]))
        tensor([1., 0., nan])
    """
    holds = (u.diff(dim=-1) >= 0).all(-1).to(u.dtype)
    return holds.where((u != 0).any(-1), torch.nan)


def smallest_exponent(u: ByOrder) -> PerSample:
    """Return the smallest p with u(m') >= (m'/m)^p u(m) for all m' <= m (Condition 3).

    A positive u(m) bounds p from below, and no p is enough if u(m') <= 0. Negative u(m) and
    u(m') bound p from above.

    Args:
        u: result of `average_output`.

    Returns:
        p per sample; NaN if there is none; 0 if every small enough p will do.

    Example:
        >>> smallest_exponent(torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 2.0], [0.0, -1.0, -2.0]]))
        tensor([1., nan, 0.])
    """
    n = u.shape[-1] - 1
    low = torch.zeros_like(u[..., 0])
    high = low + torch.inf
    for many in range(2, n + 1):
        for few in range(1, many):
            before = u[..., few]
            after = u[..., many]
            # p at which both sides are equal.
            slope = (after.abs().log() - before.abs().log()) / math.log(many / few)
            bound = torch.where(before > 0, slope, torch.inf)
            low = torch.where(after > 0, torch.maximum(low, bound), low)
            limit = torch.where(after < 0, slope, -torch.inf)
            high = torch.where((before < 0) & (after <= 0), torch.minimum(high, limit), high)
    return torch.where((low <= high) & (high > 0) & low.isfinite(), low, torch.nan)


def shuffled(v: ByState, seed: int = 0) -> ByState:
    """Return the same outputs in random order over the masked states, except v[0] and v[N].

    It is a function without structure, as a control.

    Args:
        v: outputs on all masked states.
        seed: seed of the draw, which differs between samples.
    """
    keys = torch.rand(v.shape, generator=torch.Generator().manual_seed(seed))
    keys[..., 0] = -1.0
    keys[..., -1] = 2.0
    return v.gather(-1, keys.argsort(-1).to(v.device))
