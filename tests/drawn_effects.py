"""Random interactions whose truth is known, for tests of measures and of rules."""

import torch

from symgen.interactions import Interactions
from symgen.transforms import interaction_order

#: Share of the interactions of each order that are salient, up to order 6.
RATES = (0.0, 0.5, 0.25, 0.1, 0.06, 0.05, 0.05)


def interactions(effects, full=5.0):
    """Interactions with given effects (sample, 2, 2**n), and with a total effect."""
    zero = torch.zeros(len(effects), dtype=torch.float64)
    size = effects.abs().sum((-2, -1))
    return Interactions(effects, zero, size, zero, zero + full)


def drawn_effects(generator, samples, n=6, rates=RATES):
    """Effects (sample, 2, 2**n) of 0.2 to 1 with random signs; none of an order without rate."""
    order = interaction_order(n)
    shape = (samples, 2, 2**n)
    on, size, sign = (torch.rand(shape, generator=generator).double() for _ in range(3))
    effects = (
        (on < torch.tensor([*rates, *[0.0] * n])[order])
        * (0.2 + 0.8 * size)
        * (2.0 * (sign < 0.5) - 1)
    )
    effects[:, 1, order == 1] = 0
    return effects


def drawn(generator, samples, n=6, rates=RATES):
    """Random interactions; see `drawn_effects`."""
    return interactions(drawn_effects(generator, samples, n, rates))


def shared(generator, target, chance, rates=RATES):
    """Interactions that hold each of a target's with some chance, and random others besides."""
    kept = torch.rand(target.effects.shape, generator=generator) < chance
    own = drawn_effects(generator, len(target), target.n, rates)
    return interactions(torch.where(target.effects != 0, kept * target.effects, own))
