"""Outputs of a small trained network on all masked states, and planted ones, for tests."""

import functools
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from symgen.transforms import interaction_order


@functools.cache
def _trained() -> tuple[MLPClassifier, np.ndarray, np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    network = MLPClassifier((32,), max_iter=15, random_state=0, learning_rate_init=0.01)
    with warnings.catch_warnings():
        # Few epochs are enough here.
        warnings.simplefilter("ignore")
        network.fit(pixels[:800], labels[:800])
    return network, pixels, labels


@functools.cache
def network_outputs(n: int, samples: int = 6) -> Tensor:
    """Return log odds of the right digit (samples, 2**n), n groups of pixels masked by means."""
    network, pixels, labels = _trained()
    group = np.arange(64) * n // 64
    states = np.arange(2**n)
    present = (states[:, None] >> group & 1).astype(bool)
    outputs = []
    for x, label in zip(pixels[-samples:], labels[-samples:], strict=True):
        p = network.predict_proba(np.where(present, x, pixels.mean(0)))[:, label].clip(
            1e-9, 1 - 1e-9
        )
        outputs.append(np.log(p) - np.log1p(-p))
    return torch.tensor(np.stack(outputs))


def planted(n: int, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return AND effects, OR effects and the outputs of a few interactions of low orders."""
    generator = torch.Generator().manual_seed(seed)
    order = interaction_order(n)
    effects = torch.zeros(2, 2**n, dtype=torch.float64)
    for kind in (0, 1):
        allowed = ((order >= 1 + kind) & (order <= 3)).nonzero().flatten()
        chosen = allowed[torch.randperm(len(allowed), generator=generator)[:count]]
        size = 0.5 + torch.rand(count, generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
        effects[kind, chosen] = size * sign
    return effects[0], effects[1], logical_outputs(effects[0], effects[1])


def logical_outputs(and_: Tensor, or_: Tensor) -> Tensor:
    """Return what effects add up to on every state, straight from the definition (Eq. 3)."""
    states = torch.arange(len(and_))
    inside = (states[:, None] & states) == states
    meets = (states[:, None] & states) > 0
    return inside.to(and_) @ and_ + meets.to(or_) @ or_
