r"""What other explanations say of the same game, from its AND and OR effects.

The game is v on all masked states, and its logical model is

.. math:: v(S) = b + \sum_{T \subseteq S} I^\text{and}_T + \sum_{T \cap S \ne \emptyset}
          I^\text{or}_T .

All of these explanations are linear in v, so that it is enough to know what each gives to a single
AND and to a single OR. By symmetry that depends on the order m = abs(T) alone: an AND effect is
the Harsanyi dividend of T, and an OR is its dual, 1 - AND of the complement of S.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.transforms import count_variables

# LIME's own choices (its width for images), for a distance of 1 - the cosine to nothing masked.
WIDTH, RIDGE = 0.25, 1.0


def shapley(inter: Interactions) -> Float[Tensor, "*batch variable"]:
    r"""Return the Shapley values of the logical model: every effect in equal parts (Shapley 1953).

    .. math:: \phi_i = \sum_{T \ni i} \frac{I^\text{and}_T + I^\text{or}_T}{|T|}

    Args:
        inter: of any samples.

    Returns:
        In log odds; the sum over variables is d[N] - b.

    Example:
        >>> and_ = Interactions.from_moebius(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        >>> or_ = Interactions.from_moebius(torch.tensor([0.0, 1.0, 1.0, 1.0]), share=0)
        >>> shapley(and_).tolist(), shapley(or_).tolist()
        ([0.5, 0.5], [0.5, 0.5])
    """
    return _single(inter, lambda m: (1 / m, 1 / m))


def banzhaf(inter: Interactions) -> Float[Tensor, "*batch variable"]:
    r"""Return the Banzhaf values: what a variable adds, averaged over all states of the others.

    .. math:: \beta_i = \sum_{T \ni i} 2^{1 - |T|} (I^\text{and}_T + I^\text{or}_T)

    They are the slopes of the linear model nearest to v in the mean over all masked states
    (Hammer and Holzman 1992).

    Args:
        inter: of any samples.

    Returns:
        In log odds; their sum is not d[N] - b.
    """
    return _single(inter, lambda m: (2 ** (1 - m), 2 ** (1 - m)))


def shapley_taylor(inter: Interactions) -> Float[Tensor, "*batch variable variable"]:
    r"""Return the Shapley-Taylor interaction indices up to order 2 (Sundararajan et al. 2020).

    A variable has v({i}) - v(none). A pair has its share of all that is of order 2 or more:

    .. math:: \sum_{T \supseteq \{i, j\}} \frac{2}{|T| (|T| - 1)} I^\text{and}_T
              - \frac{2}{|T|} I^\text{or}_T .

    Args:
        inter: of any samples.

    Returns:
        Variables on the diagonal, pairs off it, each pair twice; the sum of the diagonal and of
        one triangle is d[N] - b.
    """
    return _pairs(
        inter,
        lambda m: (1.0 * (m == 1), torch.ones_like(m)),
        lambda m: (2 / (m * (m - 1)), -2 / m),
    )


def faith_shap(inter: Interactions) -> Float[Tensor, "*batch variable variable"]:
    r"""Return the Faith-SHAP interaction indices up to order 2 (Tsai et al. 2023).

    They are the model of order 2 that is nearest to v where states are weighted as for Shapley
    values, and right on nothing and everything masked. Of an AND of m variables

    .. math:: -\frac{2 (m - 2)}{m (m + 1)} \text{ and, a pair, } \frac{6}{m (m + 1)}, \qquad
              \text{of an OR } \frac{4 m - 2}{m (m + 1)} \text{ and } -\frac{6}{m (m + 1)} .

    Args:
        inter: of any samples.

    Returns:
        As `shapley_taylor`.
    """
    return _pairs(
        inter,
        lambda m: (-2 * (m - 2) / (m * (m + 1)), (4 * m - 2) / (m * (m + 1))),
        lambda m: (6 / (m * (m + 1)), -6 / (m * (m + 1))),
    )


def occlusion(v: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch variable"]:
    """Return what the output loses where one variable alone is masked: v[N] - v[N without i].

    Args:
        v: outputs on all masked states. Only n + 1 of them are used.

    Example:
        >>> occlusion(torch.tensor([0.0, 1.0, 1.0, 1.0])).tolist()  # an OR: either is enough
        [0.0, 0.0]
    """
    n = count_variables(v)
    without = (2**n - 1) ^ 2 ** torch.arange(n, device=v.device)
    return v[..., -1:] - v[..., without]


def lime(
    v: Float[Tensor, "*batch state"],
    samples: int | None = None,
    width: float = WIDTH,
    ridge: float = RIDGE,
    seed: int = 0,
) -> Float[Tensor, "*batch variable"]:
    """Return LIME's values: the slopes of a linear model of v near the unmasked sample.

    States weigh exp(-distance² / width²), the distance being 1 - cos between the state and
    everything present; slopes, not the constant, are drawn to 0 (Ribeiro et al. 2016).

    Args:
        v: outputs on all masked states.
        samples: how many states to draw, with repetition, as one does who cannot run all; all of
            them, each once, without.
        width: of the kernel, above 0.
        ridge: of the penalty on squared slopes, 0 or more.
        seed: of the draw.

    Raises:
        ValueError: for a width or a penalty out of range, or no sample.
    """
    from sklearn.linear_model import Ridge

    if not (width > 0 and ridge >= 0) or (samples is not None and samples < 1):
        raise ValueError(
            f"width = {width}, ridge = {ridge}, samples = {samples}: expected a width above 0, a "
            "ridge of 0 or more, and one sample or more (or None for all states)"
        )
    n = count_variables(v)
    states = np.arange(2**n)
    if samples is not None:
        states = np.random.default_rng(seed).integers(2**n, size=samples)
    present = states[:, None] >> np.arange(n) & 1
    weight = np.exp(-(((1 - np.sqrt(present.mean(1))) / width) ** 2))
    rows = v.reshape(-1, 2**n).cpu().numpy()[:, states]
    fits = Ridge(alpha=ridge).fit(present, rows.T, sample_weight=weight)
    slopes = torch.from_numpy(np.ascontiguousarray(fits.coef_))
    return slopes.reshape(*v.shape[:-1], n).to(v)


def attribution_table(
    methods: Mapping[str, Float[Tensor, " variable"]], names: list | None = None
) -> pd.DataFrame:
    """Return the values of one sample by several methods, one row a variable and method.

    Args:
        methods: name to values (n,).
        names: of the variables; their numbers without.

    Returns:
        Columns method, variable, value (log odds).
    """
    parts = []
    for method, values in methods.items():
        labels = [str(i) for i in range(len(values))] if names is None else [*names]
        parts.append(pd.DataFrame({"method": method, "variable": labels, "value": values.cpu()}))
    return pd.concat(parts, ignore_index=True)


def _weighted(inter: Interactions, least: int, weights) -> Float[Tensor, "*batch state"]:
    """Return AND and OR effects of `least` variables or more, times their weights by order."""
    order = inter.order.clamp(min=least).to(inter.and_)
    and_, or_ = weights(order)
    return (and_ * inter.and_ + or_ * inter.or_) * (inter.order >= least)


def _members(inter: Interactions) -> Float[Tensor, "state variable"]:
    states = torch.arange(2**inter.n, device=inter.and_.device)
    bits = states[:, None] >> torch.arange(inter.n, device=states.device) & 1
    return bits.to(inter.and_)


def _single(inter: Interactions, weights) -> Float[Tensor, "*batch variable"]:
    return _weighted(inter, 1, weights) @ _members(inter)


def _pairs(inter: Interactions, singles, pairs) -> Float[Tensor, "*batch variable variable"]:
    members = _members(inter)
    shared = members.mT @ (_weighted(inter, 2, pairs)[..., None] * members)
    alone = _single(inter, singles)
    off = 1 - torch.eye(inter.n, device=alone.device, dtype=alone.dtype)
    return shared * off + torch.diag_embed(alone)
