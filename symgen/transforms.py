"""Fast Moebius and zeta transforms over masked states, and the AND-OR pair built on them.

A masked state S is an integer 0..2**n - 1. Bit i is set if variable i is present. All functions
work on the last axis, of length 2**n, with any number of leading axes, in O(n 2**n).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def count_variables(values: Tensor, name: str = "v") -> int:
    """Return n for a tensor whose last axis holds 2**n states.

    Raises:
        ValueError: if the length of the last axis is not a power of two.
    """
    states = values.shape[-1] if values.ndim else 0
    if states < 1 or states & (states - 1):
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}; expected 2**n values on the last axis, "
            "one per masked state"
        )
    return states.bit_length() - 1


def interaction_order(n: int) -> Int[Tensor, "state"]:
    """Return `|T|`, the number of variables, for every index T in 0..2**n - 1.

    Example:
        >>> interaction_order(2).tolist()
        [0, 1, 1, 2]
    """
    order = torch.zeros(1, dtype=torch.int64)
    for _ in range(n):
        order = torch.cat([order, order + 1])
    return order


# Factors of the transforms for one variable, states (absent, present).
_ZETA = ((1.0, 0.0), (1.0, 1.0))
_MOEBIUS = ((1.0, 0.0), (-1.0, 1.0))
_SUPERSET = ((1.0, 1.0), (0.0, 1.0))
_MOEBIUS_ADJOINT = ((1.0, -1.0), (0.0, 1.0))
_FACTORS: dict[tuple, Tensor] = {}
# Products of this many 2 x 2 factors are applied as one small dense matrix. This needs far fewer
# passes over memory than n butterflies, and it is exact: every entry is 0, 1 or -1. Few variables
# take a single matrix, because calls cost more than products there.
_BLOCK, _FEW = 5, 6


def _kronecker_power(factor: tuple, power: int, like: Tensor) -> Tensor:
    key = (factor, power, like.dtype, like.device)
    if key not in _FACTORS:
        # A tensor made under inference mode could not be used by autograd later.
        with torch.inference_mode(False):
            small = torch.tensor(factor, dtype=like.dtype, device=like.device)
            matrix = torch.ones(1, 1, dtype=like.dtype, device=like.device)
            for _ in range(power):
                matrix = torch.kron(matrix, small)
        if type(matrix) is not Tensor:  # a fake one, of torch.export
            return matrix
        _FACTORS[key] = matrix
    return _FACTORS[key]


def _transform(values: Tensor, factor: tuple, name: str) -> Tensor:
    values = torch.as_tensor(values)
    if not values.is_floating_point():
        values = values.to(torch.float64)
    kind = values.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return _transform(values, factor, name)
    n = count_variables(values, name)
    shape = values.shape
    done = 0
    while done < n:
        power = n if n <= _FEW else min(_BLOCK, n - done)
        matrix = _kronecker_power(factor, power, values)
        if done == 0:
            values = values.reshape(-1, 2**power) @ matrix.T
        else:
            values = matrix @ values.reshape(-1, 2**power, 2**done)
        done += power
    return values.reshape(shape)


def moebius(v: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    r"""Return the AND (Harsanyi) effects of a set function: its Moebius transform.

    .. math:: I_T = \sum_{L \subseteq T} (-1)^{|T| - |L|} v_L

    This is the first formula of Theorem 1 with all of v given to AND.

    Args:
        v: values on all masked states, shape (..., 2**n).

    Example:
        >>> moebius(torch.tensor([0.0, 1.0, 2.0, 5.0])).tolist()
        [0.0, 1.0, 2.0, 2.0]
    """
    return _transform(v, _MOEBIUS, "v")


def zeta(i: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    r"""Return sums over subsets, the inverse of `moebius`.

    .. math:: v_S = \sum_{T \subseteq S} I_T

    Args:
        i: effects of all sets, shape (..., 2**n).

    Example:
        >>> zeta(torch.tensor([0.0, 1.0, 2.0, 2.0])).tolist()
        [0.0, 1.0, 2.0, 5.0]
    """
    return _transform(i, _ZETA, "i")


def superset_sum(mu: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """Return sums over supersets, the transpose of `zeta`."""
    return _transform(mu, _SUPERSET, "mu")


def moebius_adjoint(mu: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """Return the transpose of `moebius`: the gradient of a weighted sum of effects in v."""
    return _transform(mu, _MOEBIUS_ADJOINT, "mu")


def and_or_outputs(
    effects: Float[Tensor, "*batch type state"],
) -> Float[Tensor, "*batch state"]:
    """Return the sum of AND and OR effects on every masked state (Eq. 3 without b).

    T meets S unless T lies inside the complement of S. So the OR part is the total minus the
    subset sums at the complement, which is the reversed index.

    Args:
        effects: type 0 is AND, 1 is OR.
    """
    below = zeta(effects)
    ands, ors = below.unbind(-2)
    return ands + ors[..., -1:] - ors.flip(-1)


def and_or_adjoint(
    mu: Float[Tensor, "*batch state"],
) -> Float[Tensor, "*batch type state"]:
    """Return the transpose of `and_or_outputs`: one value per AND and per OR effect."""
    ands = superset_sum(mu)
    ors = mu.sum(-1, keepdim=True) - superset_sum(mu.flip(-1))
    return torch.stack([ands, ors], -2)
