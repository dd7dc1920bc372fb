"""The split of the field's papers, by gradient descent, to be compared with the exact one.

With w = v - v[0], q the noise and p the split, AND effects are the Moebius transform of
(w + q) / 2 + p and OR effects the OR transform of (w + q) / 2 - p. Stochastic gradient descent
with momentum 0.9 on the sum of absolute effects, the learning rate decaying tenfold, q clamped to
its bound after every step, in single precision. Steps and rate are set by hand in research code;
20,000 steps and the best of three rates are our choice. The rates are in units of v, so that,
unlike the optimum, what it returns depends on the scale of the outputs: a step of the last
ten-thousand moves every effect by some multiple of the rate, whatever its size, which leaves a
floor of small effects.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.transforms import count_variables, interaction_order, moebius, moebius_adjoint

RATES = (1e-6, 1e-5, 1e-4)
STEPS = 20_000


@torch.no_grad()
def published(
    v: Float[Tensor, "*batch state"],
    noise: float = 0.02,
    rate: float | None = None,
    steps: int = STEPS,
) -> Interactions:
    """Return the AND and OR effects that the published procedure finds.

    It keeps abs(d[S] - v[S]) <= noise * abs(v[N] - v[0]) as `sparsify` does, up to rounding, but
    stops after a number of steps, wherever it is.

    Args:
        v: outputs on all masked states, any leading axes. Samples do not touch each other.
        noise: kappa, share of abs(v[N] - v[0]) by which d may miss v.
        rate: learning rate, in units of v; without, every sample has the best of `RATES`.
        steps: of gradient descent.

    Returns:
        Interactions in float64. Their gap is NaN: nothing proves how far they are from the
        sparsest.

    Example:
        >>> v = torch.tensor([[0.0, 1.0, 1.0, 1.0]])  # an OR of two variables
        >>> found = published(v, noise=0.0, rate=1e-4)
        >>> round(found.or_[0, 3].item(), 2), round(found.objective.item(), 2)
        (1.0, 1.0)
    """
    if rate is None:
        return least([published(v, noise, each, steps) for each in RATES])
    w = (v - v[..., :1]).float()
    eps = (noise * (v[..., -1:] - v[..., :1]).abs()).float()
    p, q = torch.zeros_like(w), torch.zeros_like(w)
    speed_p, speed_q = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(steps):
        signs = _effects(w, p, q).sign_()
        # The empty set has no effect, and takes no part.
        signs[..., 0] = 0
        down_and, down_or = moebius_adjoint(signs)
        down_or = down_or.flip(-1)
        speed_p.mul_(0.9).add_(down_and).sub_(down_or)
        speed_q.mul_(0.9).add_(down_and.add_(down_or), alpha=0.5)
        # Nor does the empty state, which is given by the bias.
        speed_p[..., 0] = speed_q[..., 0] = 0
        now = rate * 0.1 ** (step / steps)
        p.sub_(speed_p, alpha=now)
        q = q.sub_(speed_q, alpha=now).clamp_(-eps, eps)
    and_, or_ = _effects(w.double(), p, q)
    order = interaction_order(count_variables(v)).to(v.device)
    # An OR over one variable is an AND over it: together they are never worse.
    and_, or_ = torch.where(order == 1, and_ - or_, and_) * (order > 0), -or_ * (order > 1)
    size = (and_.abs() + or_.abs()).sum(-1)
    v = v.double()
    gap = torch.full_like(size, torch.nan)
    return Interactions(and_, or_, v[..., 0].clone(), size, gap, v[..., -1].clone())


def _effects(w: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return AND effects and, with the other sign, OR effects: (2, ..., state)."""
    half = (w + q) / 2
    return moebius(torch.stack([half + p, (half - p).flip(-1)]))


def least(found: Sequence[Interactions]) -> Interactions:
    """Return, sample by sample, those of several interactions that have the least strength.

    Args:
        found: of the same samples; the first ones where strengths are equal.
    """
    kept = found[0]
    for other in found[1:]:
        less = other.objective < kept.objective
        pairs = zip(other.tensors().values(), kept.tensors().values(), strict=True)
        kept = Interactions(
            *(torch.where(less if x.ndim == less.ndim else less[..., None], x, y) for x, y in pairs)
        )
    return kept
