"""The procedure of the field's papers, as its research code does it, for comparison.

With w = v - v[0], q the noise and p the split, AND effects are the Moebius transform of
(w + q) / 2 + p and OR effects the OR transform of (w + q) / 2 - p. Stochastic gradient descent
with momentum 0.9 on the sum of absolute effects, 20,000 steps, the learning rate decaying
tenfold, q clamped to its bound after every step, in single precision; the best of three
learning rates. The transforms are 2**n x 2**n matrices, as published; `Fast` puts our
transforms in their place, which changes nothing but the time.
"""

import torch
from torch import Tensor

from symgen import interaction_order, moebius
from symgen.transforms import superset_sum

RATES = (1e-6, 1e-5, 1e-4)
STEPS = 20_000


class Dense:
    """The AND and OR transforms as one matrix each."""

    def __init__(self, n: int):
        unit = torch.eye(2**n)
        self.and_ = moebius(unit).T.contiguous()
        self.or_ = -self.and_.flip(1).contiguous()

    def effects(self, u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return u @ self.and_.T, w @ self.or_.T

    def back(self, a: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        return a @ self.and_, o @ self.or_


class Fast:
    """The same by fast transforms."""

    def __init__(self, n: int):
        # The transpose of the Moebius transform is, but for signs, a sum over supersets.
        self.sign = (-1.0) ** interaction_order(n)

    def effects(self, u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return moebius(u), -moebius(w.flip(-1))

    def back(self, a: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        return self._back(a), -self._back(o).flip(-1)

    def _back(self, a: Tensor) -> Tensor:
        return self.sign * superset_sum(self.sign * a)


def solve(
    v: Tensor, noise: float, rate: float, transforms: Dense | Fast, steps: int = STEPS
) -> Tensor:
    """Return effects (sample, 2, state) after so many steps at a learning rate."""
    w = (v - v[:, :1]).float()
    eps = (noise * (v[:, -1:] - v[:, :1]).abs()).float()
    p, q = torch.zeros_like(w), torch.zeros_like(w)
    speed_p, speed_q = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(steps):
        half = (w + q) / 2
        a, o = transforms.effects(half + p, half - p)
        a[:, 0] = o[:, 0] = 0
        down_a, down_o = transforms.back(a.sign(), o.sign())
        now = rate * 0.1 ** (step / steps)
        speed_p.mul_(0.9).add_(down_a - down_o)
        speed_q.mul_(0.9).add_(down_a + down_o, alpha=0.5)
        # The empty state is given by the bias, and takes no part.
        speed_p[:, 0] = speed_q[:, 0] = 0
        p.sub_(speed_p, alpha=now)
        q.sub_(speed_q, alpha=now)
        q = torch.minimum(torch.maximum(q, -eps), eps)
    half = (w.double() + q) / 2
    and_, or_ = Fast(v.shape[-1].bit_length() - 1).effects(half + p, half - p)
    and_[:, 0] = or_[:, 0] = 0
    # An OR over one variable is an AND over it: together they are never worse.
    single = interaction_order(v.shape[-1].bit_length() - 1) == 1
    and_[:, single] += or_[:, single]
    or_[:, single] = 0
    return torch.stack([and_, or_], 1)
