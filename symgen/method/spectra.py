"""Compare order spectra by their shape: distributions over orders, and how far they lie apart."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.method.statistics import check_draws


def order_distribution(
    spectrum: Float[Tensor, "*batch 2 order"],
) -> Float[Tensor, "2 order"]:
    """Return how the strength of several samples is shared out over signs and orders.

    Args:
        spectrum: of `order_spectrum`; magnitudes are added up over samples.

    Returns:
        Shares that sum to 1, by sign and order; NaN where there is no strength at all.

    Example:
        >>> order_distribution(torch.tensor([[[0.0, 2.0, 1.0], [0.0, -1.0, 0.0]]]))
        tensor([[0.0000, 0.5000, 0.2500],
                [0.0000, 0.2500, 0.0000]])
    """
    strength = spectrum.abs().reshape(-1, *spectrum.shape[-2:]).sum(0)
    total = strength.sum()
    return strength / total.where(total > 0, torch.nan)


def mean_order(spectrum: Float[Tensor, "*batch 2 order"]) -> Float[Tensor, "*batch"]:
    """Return the mean order of the strength in a spectrum; NaN without any.

    Example:
        >>> mean_order(torch.tensor([[0.0, 2.0, 1.0], [0.0, -1.0, 0.0]]))
        tensor(1.2500)
    """
    strength = spectrum.abs().sum(-2)
    total = strength.sum(-1)
    orders = torch.arange(strength.shape[-1], dtype=strength.dtype, device=strength.device)
    return strength @ orders / total.where(total > 0, torch.nan)


def order_thirds(
    spectrum: Float[Tensor, "sample 2 order"],
) -> tuple[Float[Tensor, "sample"], Float[Tensor, "sample"], Float[Tensor, "sample"]]:
    """Return the shares of strength at low, middle and high orders, sample by sample.

    Orders below n/3, from n/3 to 2n/3, and above; NaN for a sample without strength.

    Args:
        spectrum: of `order_spectrum`.

    Example:
        >>> order_thirds(torch.tensor([[[0.0, 1, 0, 2, 0, 0, 3], [0.0, 0, -4, 0, 0, 0, 0]]]))
        (tensor([0.1000]), tensor([0.6000]), tensor([0.3000]))
    """
    strength = spectrum.abs().sum(-2)
    total = strength.sum(-1, keepdim=True)
    share = strength / total.where(total > 0, torch.nan)
    place = 3 * torch.arange(share.shape[-1], device=share.device) / (share.shape[-1] - 1)
    low, high = place < 1, place > 2
    return tuple(share[:, kept].sum(-1) for kept in (low, ~low & ~high, high))


def uncancelled(spectrum: Float[Tensor, "sample 2 order"]) -> Float[Tensor, "sample"]:
    """Return the share of strength that is left when positive and negative effects cancel.

    0 for a sample whose effects add up to nothing, 1 where all have one sign, NaN without any.

    Args:
        spectrum: of `order_spectrum`.

    Example:
        >>> uncancelled(torch.tensor([[[0.0, 3.0, 0.0], [0.0, 0.0, -1.0]]]))
        tensor([0.5000])
    """
    strength = spectrum.abs().sum((-2, -1))
    return spectrum.sum((-2, -1)).abs() / strength.where(strength > 0, torch.nan)


def shape_distance(
    first: Float[Tensor, "*batch 2 order"], second: Float[Tensor, "*other 2 order"]
) -> float:
    """Return the total variation between two distributions over signs and orders.

    The share of strength that would have to move to turn one into the other: 0 for equal
    shapes, 1 for spectra that have no order and sign in common. Sizes do not matter.

    Example:
        >>> shape_distance(torch.tensor([[0.0, 1.0], [0, 0]]), torch.tensor([[0.0, 4.0], [0, -4]]))
        0.5
    """
    apart = order_distribution(first) - order_distribution(second)
    return float(apart.abs().sum() / 2)


def halves_distance(
    spectrum: Float[Tensor, "sample 2 order"], draws: int = 200, seed: int = 0
) -> float:
    """Return the mean `shape_distance` of random halves of the samples: what chance alone makes.

    Args:
        spectrum: of two or more samples; NaN for fewer.
        draws: number of ways to halve them.
        seed: of these.

    Raises:
        ValueError: without a draw.
    """
    check_draws(draws)
    generator = torch.Generator().manual_seed(seed)
    half, found = len(spectrum) // 2, []
    for _ in range(draws):
        mixed = spectrum[torch.randperm(len(spectrum), generator=generator)]
        found.append(shape_distance(mixed[:half], mixed[half:]))
    return float(np.nanmean(found)) if np.isfinite(found).any() else np.nan
