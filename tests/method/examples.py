"""Random interactions and trainings with known properties."""

import numpy as np
import pandas as pd
import torch

from symgen.interactions import Interactions
from symgen.transforms import interaction_order


def with_effects(effects, full=5.0):
    """Interactions with given effects (sample, 2, 2**n), and a total effect of `full`."""
    zero = torch.zeros(len(effects), dtype=torch.float64)
    size = effects.abs().sum((-2, -1))
    return Interactions(effects, zero, size, zero, zero + full)


def drawn(seed, samples=5, n=4, share=0.4):
    """Random interactions: each effect is 0, or 0.01 to 1 in size, with a random sign."""
    generator = torch.Generator().manual_seed(seed)
    on, size, sign = torch.rand((3, samples, 2, 2**n), generator=generator, dtype=torch.float64)
    effects = (on < share) * (0.01 + 0.99 * size) * (2.0 * (sign < 0.5) - 1)
    effects[..., 0] = 0
    effects[:, 1, interaction_order(n) < 2] = 0
    return with_effects(effects)


def trainings(seed=0, spread=0.01, seeds=6, **quantities):
    """A table like that of `measure`: each quantity is a curve plus noise for every training."""
    generator, rows = np.random.default_rng(seed), []
    for one in range(seeds):
        for name, curve in quantities.items():
            for step, value in enumerate(curve):
                value = value + spread * generator.normal()
                rows.append((10 * one, step, name, np.nan, None, value))
    return pd.DataFrame(rows, columns=["seed", "step", "quantity", "order", "sign", "value"])
