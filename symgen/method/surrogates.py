"""The models that other explanations amount to, and how much of the output each of them tells."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.attributions import banzhaf, faith_shap, lime, occlusion, shapley, shapley_taylor


def surrogate(
    values: Float[Tensor, "..."],
    bias: Float[Tensor, "..."],
) -> Interactions:
    """Return the model that an explanation amounts to: its values added up over what is present.

    Args:
        values: (..., n) of variables; or (..., n, n), pairs off the diagonal, as of `faith_shap`.
        bias: (...) the output with everything masked.

    Returns:
        ANDs of one variable, and of two where there are pairs. With values of an explanation that
        keeps the sum, these are interactions with the same Shapley values as the network's.

    Example:
        >>> surrogate(torch.tensor([1.0, 2.0]), torch.tensor(0.5)).predict().tolist()
        [0.5, 1.5, 2.5, 3.5]
    """
    n, pairs = values.shape[-1], values.ndim > bias.ndim + 1
    and_ = values.new_zeros(*bias.shape, 2**n)
    for i in range(n):
        and_[..., 1 << i] = values[..., i, i] if pairs else values[..., i]
        for j in range(i if pairs else 0):
            and_[..., 1 << i | 1 << j] = values[..., i, j]
    size, full = and_.abs().sum(-1), bias + and_.sum(-1)
    gap = torch.full_like(size, torch.nan)
    return Interactions(and_, torch.zeros_like(and_), bias, size, gap, full)


def share_explained(
    v: Float[Tensor, "*batch state"], model: Interactions
) -> Float[Tensor, "*batch"]:
    """Return the share of the variance of v that a model explains, its constant chosen best.

    Args:
        v: outputs.
        model: such as a `surrogate`.

    Returns:
        At most 1; NaN where v never changes.
    """
    spread = v.var(-1, correction=0)
    left = (v - model.predict()).var(-1, correction=0)
    # What is left of a constant by rounding is no variance.
    return 1 - left / spread.where(spread > 1e-24 * v.square().amax(-1), torch.nan)


def strongest(inter: Interactions, count: int) -> Interactions:
    """Return the model with the strongest interactions of each sample alone.

    Args:
        inter: of any samples.
        count: how many to keep, 1 or more.
    """
    and_, or_ = (
        effect * kept
        for effect, kept in zip((inter.and_, inter.or_), inter.salient(top=count), strict=True)
    )
    size, full = (and_.abs() + or_.abs()).sum(-1), inter.bias + (and_ + or_).sum(-1)
    gap = torch.full_like(size, torch.nan)
    return Interactions(and_, or_, inter.bias, size, gap, full, inter.names)


def surrogates(v: Float[Tensor, "*batch state"], inter: Interactions) -> dict[str, Interactions]:
    """Return the models that explanations of the same outputs amount to, by name.

    Beside each kind, those of n and of n (n + 1) / 2 numbers, is the AND-OR model of the strongest
    interactions that has as many.

    Args:
        v: outputs on all masked states.
        inter: their interactions.
    """
    n = inter.n
    values = {
        "occlusion": occlusion(v), "LIME": lime(v), "Shapley": shapley(inter),
        "Banzhaf": banzhaf(inter), "Shapley-Taylor": shapley_taylor(inter),
        "Faith-SHAP": faith_shap(inter),
    }  # fmt: skip
    found = {name: surrogate(value, inter.bias) for name, value in values.items()}
    for count in dict.fromkeys((n, n * (n + 1) // 2)):
        found[f"AND-OR, {count} strongest"] = strongest(inter, count)
    return found


def surrogate_table(v: Float[Tensor, "sample state"], inter: Interactions) -> pd.DataFrame:
    """Return what the `surrogates` explain, one row a sample and model.

    Args:
        v: outputs on all masked states.
        inter: their interactions.

    Returns:
        Columns model, numbers (that it tells), sample, explained.
    """
    n, parts = inter.n, []
    for name, model in surrogates(v, inter).items():
        pairs = name in ("Shapley-Taylor", "Faith-SHAP")
        told = [int(x) for x in name.split() if x.isdigit()]
        numbers = told[0] if told else n * (n + 1) // 2 if pairs else n
        parts.append(pd.DataFrame({
            "model": name, "numbers": numbers, "sample": range(len(v)),
            "explained": share_explained(v, model).cpu(),
        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)
