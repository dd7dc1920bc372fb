"""Shapes of order spectra."""

import numpy as np
import pytest
import torch

from symgen.method import spectra


def random_spectra(samples=12, n=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(samples, 2, n + 1, generator=generator, dtype=torch.float64)
    size[..., 0] = 0
    return size * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)


def test_the_distribution_sums_to_one_and_knows_no_scale():
    some = random_spectra()
    shares = spectra.order_distribution(some)
    assert shares.sum() == pytest.approx(1)
    assert torch.allclose(shares, spectra.order_distribution(7 * some))
    assert spectra.order_distribution(0 * some).isnan().all()


def test_the_distance_is_total_variation():
    one, two = random_spectra(seed=1), random_spectra(seed=2)
    p, q = (spectra.order_distribution(x) for x in (one, two))
    right = (p - q).clamp(min=0).sum()
    assert spectra.shape_distance(one, two) == pytest.approx(float(right))
    assert spectra.shape_distance(one, 3 * one) == pytest.approx(0, abs=1e-12)
    up = one * torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert spectra.shape_distance(up, one - up) == pytest.approx(1)


def test_halves_of_equal_samples_do_not_differ_and_of_others_do():
    some = random_spectra()
    assert spectra.halves_distance(some[:1].expand(6, -1, -1), 5) == pytest.approx(0, abs=1e-12)
    assert 0 < spectra.halves_distance(some, 20) < 1
    assert np.isnan(spectra.halves_distance(0 * some, 5))
