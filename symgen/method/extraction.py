"""Measures of extracted interactions: how well they fit, how few they are, what they hang on."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from symgen.data.planted import planted_outputs
from symgen.interactions import Interactions
from symgen.method.study import Study
from symgen.method.transfer import (
    Share,
    chance_level,
    generalization_power,
    interaction_count,
    transfer,
)
from symgen.transforms import and_or_outputs, count_variables, moebius

SIGNS = {"and": " ∧ ", "or": " ∨ "}


def largest_miss(v: Float[Tensor, "*batch state"], inter: Interactions) -> Float[Tensor, "*batch"]:
    """Return the largest abs(d[S] - v[S]) over the masked states, in units of v.

    Args:
        v: outputs.
        inter: the logical model that is to match them (Eq. 4).
    """
    return (inter.predict() - v).abs().amax(-1)


def explained(v: Float[Tensor, "*batch state"], inter: Interactions) -> Float[Tensor, "*batch"]:
    r"""Return the share of the variance of v that the salient interactions alone explain.

    .. math:: 1 - \frac{\sum_S (v_S - d'_S)^2}{\sum_S (v_S - \bar v)^2}

    with the concise model d' of Eq. 15, which keeps the salient interactions.

    Args:
        v: outputs.
        inter: their interactions.

    Returns:
        At most 1; below 0 where the mean output would be closer; NaN where v never changes.
    """
    and_, or_ = torch.where(torch.stack(inter.salient()), torch.stack([inter.and_, inter.or_]), 0.0)
    left = (v - inter.bias[..., None] - and_or_outputs(and_, or_)).square().mean(-1)
    spread = v.var(-1, correction=0)
    # What is left of a constant by rounding is no variance.
    return 1 - left / spread.where(spread > 1e-24 * v.square().amax(-1), torch.nan)


def explained_table(
    cases: Mapping[str, tuple[Float[Tensor, "sample state"], Interactions]],
) -> pd.DataFrame:
    """Return what salient interactions explain (see `explained`), one row a sample.

    Args:
        cases: study to outputs and interactions.

    Returns:
        Columns study, sample, explained.
    """
    parts = [
        pd.DataFrame({"study": x, "sample": range(len(v)), "explained": explained(v, inter).cpu()})
        for x, (v, inter) in cases.items()
    ]
    return pd.concat(parts, ignore_index=True)


def salient_count(inter: Interactions) -> Float[Tensor, "*batch"]:
    """Return how many interactions of each sample are salient."""
    return torch.stack(inter.salient(), -2).sum((-2, -1)).to(inter.bias)


def salient_share(inter: Interactions) -> Float[Tensor, "*batch"]:
    """Return the salient share of the possible interactions; NaN of a sample without any effect."""
    count = salient_count(inter)
    return count.where(count > 0, torch.nan) / inter.possible


def count_table(models: Mapping[str, Mapping[str, Interactions]]) -> pd.DataFrame:
    """Return how many interactions models have, one row a sample.

    Args:
        models: kind of model to study to interactions.

    Returns:
        Columns study, model, sample, salient (their number), share (of the possible), held (how
        many hold 80 % of the strength, Eq. 9 and 10); study by study.
    """
    names = dict.fromkeys(study for studies in models.values() for study in studies)
    parts = [
        pd.DataFrame({
            "study": study, "model": kind, "sample": range(len(inter)),
            "salient": salient_count(inter).cpu(), "share": salient_share(inter).cpu(),
            "held": interaction_count(inter).cpu(),
        })
        for study in names for kind, studies in models.items()
        if (inter := studies.get(study)) is not None
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def set_labels(table: pd.DataFrame) -> list[str]:
    """Return the members of interactions as sets, such as ``{0 ∧ 1}``.

    Args:
        table: columns type and members, as of `Interactions.to_frame`.
    """
    pairs = zip(table["type"], table["members"], strict=True)
    return [f"{{{members.replace(', ', SIGNS[kind])}}}" for kind, members in pairs]


def split_table(
    v: Float[Tensor, "state"], splits: Mapping[str, Interactions], top: int = 3
) -> pd.DataFrame:
    """Return what several splits of the same output say, one row a split.

    Args:
        v: outputs of one sample.
        splits: name to the model that it gives.
        top: number of interactions to name.

    Returns:
        Columns split, strength, salient (number), miss (largest abs(d - v)), strongest.
    """
    rows = []
    for name, inter in splits.items():
        first = inter.to_frame().head(top)
        named = zip(set_labels(first), first["effect"], strict=True)
        told = "; ".join(f"{label} {effect:+.2f}" for label, effect in named)
        strength, miss = float(inter.effects.abs().sum()), float(largest_miss(v, inter))
        rows.append((name, strength, int(salient_count(inter)), miss, told))
    return pd.DataFrame(rows, columns=["split", "strength", "salient", "miss", "strongest"])


def match_table(
    cases: Mapping[str, tuple[Float[Tensor, "sample state"], Interactions]],
) -> pd.DataFrame:
    """Return how well models match the outputs, one row a study.

    Args:
        cases: study to outputs and interactions.

    Returns:
        Columns study, samples, miss: the largest abs(d - v) over states and samples, as a share of
        abs(v[N] - v[0]) of the sample: at most kappa. Samples without a total effect have none.
    """
    rows = []
    for study, (v, inter) in cases.items():
        miss = (largest_miss(v, inter) / inter.total_effect)[inter.total_effect > 0]
        rows.append((study, len(v), float(miss.max()) if len(miss) else torch.nan))
    return pd.DataFrame(rows, columns=["study", "samples", "miss"])


def effects_beside(
    one: Interactions, other: Interactions, names: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the salient interactions of a model with the effects of another one there.

    Args:
        one: of one sample.
        other: of the same variables.
        names: of the variables.

    Returns:
        Columns set (its members), effect, other, salient (whether that of the other is).
    """
    table = one.to_frame(names)
    table = table[table["effect"].abs() > float(one.threshold())]
    places = (table["type"] == "or").astype(int).tolist(), table["index"].tolist()
    effects, salient = (x[places].tolist() for x in (other.effects, torch.stack(other.salient())))
    return pd.DataFrame({
        "set": set_labels(table), "effect": table["effect"].tolist(), "other": effects,
        "salient": salient,
    })  # fmt: skip


def _of_rule(
    rule: Float[Tensor, "sample state"],
) -> tuple[Bool[Tensor, "sample"], Bool[Tensor, "sample state"]]:
    """Return whether a rule depends on any variable, and which sets hold only those it does."""
    states, n = torch.arange(rule.shape[-1]), count_variables(rule)
    effects = moebius(rule).abs()
    named = effects > 1e-9 * effects.amax(-1, keepdim=True)
    # A variable plays a role where an effect names it.
    bits = 2 ** torch.arange(n)
    used = torch.stack([(named & (states & bit > 0)).any(-1) for bit in bits], -1)
    return used.any(-1), (states & ~(used * bits).sum(-1, keepdim=True)) == 0


def rule_transfer(
    target: Interactions,
    baselines: Sequence[Interactions],
    rule: Float[Tensor, "sample state"],
    draws: int = 20,
    seed: int = 0,
) -> dict[str, Float[Tensor, "sample"]]:
    """Return how well transfer tells what is of a known rule, weighted by salient strength.

    An interaction is of the rule where all its variables are such that the rule depends on them.

    Args:
        target: interactions of a network that was trained on what the rule labels.
        baselines: those of its baseline networks.
        rule: what the rule gives on the same masked states.
        draws, seed: of the random relabellings.

    Returns:
        "precision", the share of what transfers that is of the rule, and "base", that share of all;
        "recall", the share of what is of the rule that transfers, and "false", that share of the
        rest. And each but "base" once more as "NAME by chance", its mean when the variables of the
        baselines are relabelled at random, all alike. NaN where there is nothing of the kind.
    """
    found = _rule_shares(target, transfer(target, baselines), rule)
    generator, lucky = torch.Generator().manual_seed(seed), []
    for _ in range(draws):
        labels = torch.randperm(target.n, generator=generator).tolist()
        g = transfer(target, [b.relabelled(labels) for b in baselines])
        lucky.append(_rule_shares(target, g, rule))
    means = {k: torch.stack([x[k] for x in lucky]).nanmean(0) for k in found if k != "base"}
    return found | {f"{k} by chance": x for k, x in means.items()}


def _rule_shares(inter: Interactions, g: Share, rule: Tensor) -> dict[str, Tensor]:
    used, within = _of_rule(rule)
    size = (inter.effects.abs() * torch.stack(inter.salient(), -2)).cpu()
    kept = size * torch.stack(g, -2).cpu()
    of_rule = within[:, None].to(size)

    def share(part: Tensor, whole: Tensor) -> Tensor:
        part, whole = part.sum((-2, -1)), whole.sum((-2, -1))
        return part / whole.where(used & (whole > 0), torch.nan)

    rest = 1 - of_rule
    return {
        "precision": share(kept * of_rule, kept), "base": share(size * of_rule, size),
        "recall": share(kept * of_rule, size * of_rule), "false": share(kept * rest, size * rest),
    }  # fmt: skip


def planted_transfer(study: Study) -> dict[str, Float[Tensor, "sample"]]:
    """Return the `rule_transfer` of a study of "planted-sentiment", whose rule is known."""
    chosen, spans = study.drawn()
    texts = [chosen.show(i) for i in range(len(chosen))]
    rule = planted_outputs(texts, spans.words, chosen.y)
    return rule_transfer(*study.interactions(), rule, seed=study.seed)


def rule_table(
    v: Float[Tensor, "sample state"], inter: Interactions, rule: Float[Tensor, "sample state"]
) -> pd.DataFrame:
    """Return how far a network follows a known rule, one row a sample.

    Args:
        v: the network's outputs.
        inter: its interactions.
        rule: what the rule gives on the same masked states.

    Returns:
        Columns sample; correlation of v with the rule over the masked states; share of the salient
        strength on interactions of nothing but variables that the rule depends on; chance, that
        share for sets of as many variables drawn at random. NaN where there is nothing to compare.
    """
    order = inter.order.cpu()
    used, within = _of_rule(rule)
    by_order = torch.nn.functional.one_hot(order).double()
    luck = (within.double() @ (by_order / by_order.sum(0)))[:, order]
    size = (inter.effects.abs() * torch.stack(inter.salient(), -2)).sum(-2).cpu()
    total = size.sum(-1).where(used, torch.nan)
    total = total.where(total > 0, torch.nan)
    pairs = zip(v.cpu(), rule, strict=True)
    return pd.DataFrame({
        "sample": range(len(v)),
        "correlation": [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs],
        "share": (size * within).sum(-1) / total, "chance": (size * luck).sum(-1) / total,
    })  # fmt: skip


def mask_value_table(cases: Mapping[str, Interactions]) -> pd.DataFrame:
    """Return what changes with the mask value, one row a mask value, sample and measure.

    Args:
        cases: mask value in words to the interactions of the same samples; the others are
            compared with the first.

    Returns:
        Columns mask value, sample, measure, value, chance. The last measure is the share of the
        salient strength of the first that is salient, with the same sign, with the mask value at
        hand, too; its chance is that with variables relabelled at random.
    """
    parts, first = [], next(iter(cases))
    usual = cases[first]
    for name, inter in cases.items():
        stays = generalization_power(usual, transfer(usual, inter))
        luck = torch.nan if name == first else chance_level(usual, inter)
        measures = {
            "output when masked, v(∅)": (inter.bias, torch.nan),
            "salient interactions": (salient_count(inter), torch.nan),
            "salient strength that stays": (stays, luck),
        }
        parts += [
            pd.DataFrame({"mask value": name, "sample": range(len(inter)), "measure": measure,
                          "value": value.cpu(), "chance": chance})
            for measure, (value, chance) in measures.items()
        ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)
