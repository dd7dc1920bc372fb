"""The split of the field's papers by gradient descent, for comparison with the exact one.

Let w = v - v[0], q the noise and p the split. AND effects are the Moebius transform of
(w + q) / 2 + p, and OR effects the OR transform of (w + q) / 2 - p. Stochastic gradient descent
with momentum 0.9 lowers the sum of absolute effects in single precision. The learning rate decays
tenfold, and q is clamped to its bound after every step. Research code sets steps and rate by hand;
20,000 steps and the best of three rates are our choice. A rate has the unit of v, so the result
depends on the scale of the outputs. Each of the last steps moves every effect by a multiple of the
rate, which leaves small effects everywhere.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.transforms import moebius, moebius_adjoint

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

    It keeps abs(d[S] - v[S]) <= noise * abs(v[N] - v[0]) up to rounding, as `sparsify` does, but
    stops after a fixed number of steps.

    Args:
        v: outputs on all masked states, any leading axes.
        noise: kappa, the share of abs(v[N] - v[0]) by which d may differ from v.
        rate: learning rate, in units of v; None takes the best of `RATES` for every sample.
        steps: number of steps of gradient descent.

    Returns:
        Interactions in float64. Their gap is NaN: nothing proves how far they are from the
        sparsest.

    Example:
        >>> v = torch.tensor([[0.0, 1.0, 1.0, 1.0]])  # an OR of two variables
        >>> inter = published(v, noise=0.0, rate=1e-4)
        >>> round(inter.or_[0, 3].item(), 2), round(inter.objective.item(), 2)
        (1.0, 1.0)
    """
    results = [
        Interactions.uncertified(v.double(), _descended(v, noise, one, steps))
        for one in (RATES if rate is None else (rate,))
    ]
    best = torch.stack([one.objective for one in results]).argmin(0)
    effects = torch.stack([one.effects for one in results])
    effects = effects.take_along_dim(best[None, ..., None, None], 0)[0]
    return Interactions.uncertified(v.double(), effects)


def _descended(v: Tensor, noise: float, rate: float, steps: int) -> Tensor:
    """Return AND and OR effects (..., 2, state) after gradient descent at one rate."""
    w = (v - v[..., :1]).float()
    eps = (noise * w[..., -1:]).abs()
    p, q = torch.zeros_like(w), torch.zeros_like(w)
    speed_p, speed_q = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(steps):
        signs = _effects(w, p, q).sign_()
        signs[..., 0] = 0  # the empty set has no effect
        down_and, down_or = moebius_adjoint(signs)
        down_or = down_or.flip(-1)
        speed_p.mul_(0.9).add_(down_and).sub_(down_or)
        speed_q.mul_(0.9).add_(down_and.add_(down_or), alpha=0.5)
        speed_p[..., 0] = speed_q[..., 0] = 0  # the empty state is given by the bias
        now = rate * 0.1 ** (step / steps)
        p.sub_(speed_p, alpha=now)
        q = q.sub_(speed_q, alpha=now).clamp_(-eps, eps)
    and_, or_ = _effects(w.double(), p, q)
    return torch.stack([and_, -or_], -2)


def _effects(w: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return AND effects and, with the other sign, OR effects: (2, ..., state)."""
    half = (w + q) / 2
    return moebius(torch.stack([half + p, (half - p).flip(-1)]))
