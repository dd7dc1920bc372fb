"""The three conditions under which interactions are proven to be few (App. B), as measures."""

import torch
from jaxtyping import Float
from torch import Tensor

from symgen.transforms import count_variables, interaction_order


def strength_above(effects: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch order"]:
    """Return the share of strength at orders above M, for M = 0..n (Condition 1).

    Args:
        effects: AND or OR effects, or both added up in magnitude.

    Returns:
        Shape (..., n + 1): 1 at M = 0, and 0 at M = n; NaN for a sample without any effect.

    Example:
        >>> strength_above(torch.tensor([0.0, 2.0, 1.0, 1.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """
    strength = effects.abs() @ _by_order(effects)
    total = strength.sum(-1, keepdim=True)
    held = strength.cumsum(-1) / total.where(total > 0, torch.nan)
    return (1 - held).clamp(min=0)


def average_output(v: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch order"]:
    """Return u(m), the mean of v[S] - v[0] over all states with m variables present (App. B).

    Args:
        v: outputs on all masked states.

    Returns:
        Shape (..., n + 1), in units of v; u(0) = 0 and u(n) = v[N] - v[0].

    Example:
        >>> average_output(torch.tensor([1.0, 2.0, 4.0, 5.0]))
        tensor([0., 2., 4.])
    """
    states = _by_order(v)
    return (v - v[..., :1]) @ (states / states.sum(0))


def _by_order(values: Tensor) -> Tensor:
    order = interaction_order(count_variables(values)).to(values.device)
    return torch.nn.functional.one_hot(order).to(values.dtype)


def downward(u: Float[Tensor, "*batch order"]) -> Float[Tensor, "*batch"]:
    """Return the part of all movement of u that goes down: 0 where Condition 2 holds, 1 at worst.

    Example:
        >>> downward(torch.tensor([0.0, 3.0, 2.0, 3.0]))
        tensor(0.2000)
    """
    steps = u.diff(dim=-1)
    total = steps.abs().sum(-1)
    return steps.clamp(max=0).sum(-1).abs() / total.where(total > 0, 1.0)


def smallest_exponent(u: Float[Tensor, "*batch order"]) -> Float[Tensor, "*batch"]:
    """Return the smallest p with u(m') >= (m'/m)^p u(m) for all m' <= m (Condition 3).

    Where u(m) > 0 the bound asks for a large enough p, and no p will do when u(m') <= 0. Where
    u(m) and u(m') are negative it asks for a small enough p.

    Args:
        u: of `average_output`.

    Returns:
        p for every sample; NaN where no p > 0 does it, and 0 where every p does that is small
        enough (as for a u that only falls).

    Example:
        >>> smallest_exponent(torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 2.0], [0.0, -1.0, -2.0]]))
        tensor([1., nan, 0.])
    """
    n = u.shape[-1] - 1
    if n < 2:  # nothing to compare: every p does it
        return torch.zeros_like(u[..., 0])
    few, many = torch.combinations(torch.arange(1, n + 1), 2).T.to(u.device)
    ratio = (many.to(u.dtype) / few.to(u.dtype)).log()
    before, after = u[..., few], u[..., many]
    slope = (after.abs().log() - before.abs().log()) / ratio
    nothing = torch.full_like(slope, torch.inf)
    # One variable alone makes no pair: every p will do.
    always = torch.zeros_like(u[..., :1])
    at_least = torch.where(after <= 0, -nothing, torch.where(before > 0, slope, nothing))
    at_most = torch.where((after > 0) | (before >= 0), nothing, slope)
    at_most = torch.where((after == 0) & (before < 0), -nothing, at_most)
    low = torch.cat([always, at_least], -1).amax(-1)
    high = torch.cat([always + torch.inf, at_most], -1).amin(-1)
    return torch.where((low <= high) & (high > 0) & low.isfinite(), low, torch.nan)


def shuffled(v: Float[Tensor, "*batch state"], seed: int = 0) -> Float[Tensor, "*batch state"]:
    """Return the same outputs dealt out at random over the masked states.

    A function without structure, to compare with; v[0] and v[N] stay.

    Args:
        v: outputs on all masked states.
        seed: of the draw, which is another one for every sample.
    """
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(v.shape, generator=generator)
    keys[..., 0], keys[..., -1] = -1.0, 2.0
    return v.gather(-1, keys.argsort(-1).to(v.device))
