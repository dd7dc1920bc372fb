"""The linear program of the split by definition, for SciPy's HiGHS, and comparisons."""

import numpy as np
import pytest
import torch
from outputs import logical_outputs
from scipy.optimize import OptimizeResult, linprog

from symgen.interactions import Interactions
from symgen.split.program import Program
from symgen.transforms import interaction_order


def noise_values(n: int, seed: int, samples: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


def matrix(n: int) -> np.ndarray:
    """A: the outputs of every AND and OR effect on every nonempty state."""
    one, order = torch.eye(2**n, dtype=torch.float64), interaction_order(n)
    none = torch.zeros(2**n, dtype=torch.float64)
    and_ = [logical_outputs(e, none) for e in one[order > 0]]
    or_ = [logical_outputs(none, e) for e in one[order > 1]]
    return torch.stack(and_ + or_, 1)[1:].numpy()


def highs(v: torch.Tensor, noise: float, method: str = "highs") -> OptimizeResult:
    """SciPy's solution of the linear program with x = p - q."""
    a, w = matrix(v.shape[-1].bit_length() - 1), (v[1:] - v[0]).numpy()
    eps, both = noise * abs(float(v[-1] - v[0])), np.hstack([a, -a])
    cost = np.ones(both.shape[1])
    if eps == 0:
        return linprog(cost, A_eq=both, b_eq=w, method=method)
    rows, right = np.vstack([both, -both]), np.concatenate([w + eps, eps - w])
    return linprog(cost, A_ub=rows, b_ub=right, method=method)


def check(v: torch.Tensor, inter: Interactions, noise: float) -> None:
    """The contract that every result keeps."""
    eps = noise * (v[..., -1:] - v[..., :1]).abs()
    miss, scale = (inter.predict() - v).abs(), (v - v[..., :1]).abs().amax(-1, keepdim=True)
    assert (miss <= eps * (1 + 1e-6) + 1e-9 * scale).all()
    assert torch.equal(inter.predict()[..., 0], v[..., 0])
    assert not inter.effects[..., 0].any() and not inter.or_[..., inter.order == 1].any()
    torch.testing.assert_close(inter.objective, inter.effects.abs().sum((-2, -1)))


def distance(a: Interactions, b: Interactions) -> float:
    """Largest sum of differences, as a share of the sum of effects of a sample."""
    size = a.objective.clamp(min=torch.finfo(a.objective.dtype).tiny)
    return float(((a.effects - b.effects).abs().sum((-2, -1)) / size).max())


def programs(v: torch.Tensor, noise: float) -> Program:
    """The scaled programs of v (sample, state)."""
    w = v - v[:, :1]
    scale = w.amax(-1) - w.amin(-1)
    return Program(w / scale[:, None], (noise * w[:, -1].abs() / scale)[:, None])


def renumbered(v: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Return v after variable i was renamed to labels[i]."""
    states = torch.arange(v.shape[-1])
    return v[..., sum((states >> label & 1) << i for i, label in enumerate(labels))]


@pytest.fixture(autouse=True)
def one_thread():
    """Direct calls of the methods use one thread, as `sparsify` does for each part."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
