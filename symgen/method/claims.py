"""How the paper's claims are judged: one rule per claim, fixed before anything is run.

Each rule has the name of its claim in data/paper/claims.csv, which states it in words. It takes
what was measured and returns contrasts: numbers with one value per repetition, with the side and
the margin of the claim. Controls are contrasts without a side; they get no verdict. A repetition is
a training run. If a rule takes outputs or interactions, give a list with one entry per training, or
those of one language model, whose prompts are the repetitions then.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method import conditions
from symgen.method.generalization import (
    HIGH_ORDERS,
    LOW_ORDERS,
    REST_ORDERS,
    OneOrMore,
    as_list,
    excess,
    generalization_power,
    matched_difference,
    order_spectrum,
    shared_difference,
    transfer,
)
from symgen.method.removal import REMOVED, SMALL_GAP, closure
from symgen.method.statistics import Contrast, Contrasts, control
from symgen.method.training_curves import curves, first, last, peak, since_t2
from symgen.transforms import count_variables, moebius

# One entry per training; or those of one language model, one per prompt. As `OneOrMore`.
Outputs = Tensor | Sequence[Tensor]
# Differences up to these count as none: of shares, of N as a share of its mean, of orders, of
# losses (nats), of strengths (log odds), of accuracies.
SHARE, COUNT, ORDER, NATS, ODDS, ACCURACY = 0.02, 0.05, 0.05, 0.02, 0.05, 0.005
# The lead of low orders, the same in every study.
LEAD = "H of orders 1-2 minus H of orders from 3 on"
ABOVE = "H above chance: orders 1-2 minus orders from 3 on"


def _moves(
    table: pd.DataFrame, quantity: str, side: int = 1, by: str | None = None
) -> tuple[pd.Series, pd.Series]:
    """Return the change of a quantity up to an extreme, and from there on; see `peak`."""
    ends = peak(table, quantity, side, by)
    return ends["at"] - ends["before"], ends["after"] - ends["at"]


def _turn(
    table: pd.DataFrame, quantity: str, side: int, margin: float, unit: str = "", scale: Any = 1.0
) -> Contrasts:
    """Return how far a quantity moves to its extreme (1: peak, -1: lowest), and back."""
    to, back = _moves(table, quantity, side)
    most = {1: "peak", -1: "lowest"}[side]
    return [
        Contrast(f"{quantity}, first checkpoint to {most}", to / scale, side, margin, unit),
        Contrast(f"{quantity}, {most} to last checkpoint", back / scale, -side, margin, unit),
    ]


def _change(table: pd.DataFrame, quantity: str) -> pd.Series:
    return last(table, quantity) - first(table, quantity)


def _lead(table: pd.DataFrame) -> pd.DataFrame:
    """Return H_low - H_high by seed and step: of samples that have both, or else of the means.

    Older trainings have the means only.
    """
    ahead = curves(table, "H_low") - curves(table, "H_high")
    if "H_lead" in set(table["quantity"]):
        ahead = curves(table, "H_lead").combine_first(ahead)
    return ahead


def _nulls(table: pd.DataFrame) -> Contrasts:
    """Return controls after training, as far as they were measured."""
    words = {
        "chance": "its chance level",
        "other_sample": "H with another sample's interactions",
        "untrained": "H with untrained baselines",
        "other_class": "H for another class",
    }
    known = set(table["quantity"])
    rows = []
    for name, word in words.items():
        if name in known:
            ahead = last(table, "H") - last(table, name)
            rows.append(control(f"H minus {word}, last checkpoint", ahead))
    if "untrained_chance" in known:
        # Untrained baselines have a chance level of their own.
        null = last(table, "untrained") - last(table, "untrained_chance")
        ahead = last(table, "excess") - null
        rows.append(control("H above chance, minus the same untrained", ahead))
    if "agreement" in known:
        agree = last(table, "agreement") - 0.5
        rows.append(control("signs that agree, of those salient in both, minus 1/2", agree))
    return rows


def _salient_share(inter: Interactions) -> Tensor:
    share = inter.salient().double().sum((-2, -1)) / inter.possible
    return share.where(inter.objective > 0, torch.nan)


def _high_share(v: Tensor) -> Tensor:
    return conditions.strength_above(moebius(v.double()))[..., count_variables(v) // 2]


def _never_falls(v: Tensor) -> Tensor:
    return conditions.never_falls(conditions.average_output(v))


def _exponent(v: Tensor) -> Tensor:
    p = conditions.smallest_exponent(conditions.average_output(v))
    return p.where(v[..., -1] > v[..., 0], 0)


def _hit(v: Tensor, inter: Interactions) -> Tensor:
    """Return on which masked states d equals v, to 1e-9 of the range of v."""
    spread = (v.amax(-1) - v.amin(-1)).clamp(min=1e-300)
    return (inter.predict() - v).abs() <= 1e-9 * spread[..., None]


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the total variation between two spectra after each is scaled to sum 1."""
    one, other = (x.abs() / x.abs().sum() for x in (one, other))
    return float((one - other).abs().sum() / 2)


def _means(function: Any, *cases: Any) -> np.ndarray:
    """Return the mean over samples of a function, per repetition."""
    return np.array([float(function(*x).double().nanmean()) for x in zip(*cases, strict=True)])


def _rise(table: pd.DataFrame, group: str, label: str, side: int, margin: float) -> Contrasts:
    """Return how much the removal raises a loss, and how much random removal does."""
    before = last(table, f"removal_{group}_nothing")
    rise = last(table, f"removal_{group}_{REMOVED}") - before
    other = last(table, f"removal_{group}_random") - before
    return [
        Contrast(f"{label} by removal", rise, side, margin, "nats"),
        control(f"{label} by removal, minus that by random removal", rise - other, "nats"),
        control(f"{label} by random removal", other, "nats"),
    ]


def _arms(table: pd.DataFrame, quantity: str, margin: float) -> Contrasts:
    """Return contrasts between the arms of `measure_penalty`, paired by seed."""
    rows = table[table["quantity"] == quantity]
    arms = rows.pivot(index="seed", columns="arm", values="value")
    label = f"{quantity.replace('_', ' ')} with the penalty, minus"
    return [
        Contrast(f"{label} plain", arms["penalty"] - arms["plain"], 1, margin),
        control(f"{label} random", arms["penalty"] - arms["random"]),
        control(f"{label} decay", arms["penalty"] - arms["decay"]),
    ]


def _leads(
    target: Interactions, baselines: OneOrMore, untrained: OneOrMore | None = None
) -> Contrasts:
    """Return the lead of low orders as controls: above chance, and as it is.

    With untrained copies of the baselines, also H minus H with these.
    """
    g = transfer(target, baselines)
    low = generalization_power(target, g, LOW_ORDERS)
    rest = generalization_power(target, g, REST_ORDERS)
    above = excess(target, baselines, LOW_ORDERS) - excess(target, baselines, REST_ORDERS)
    rows = [control(ABOVE, above), control(LEAD, low - rest)]
    if untrained is not None:
        null = generalization_power(target, transfer(target, untrained))
        ahead = generalization_power(target, g) - null
        rows.append(control("H minus H with untrained copies", ahead))
    return rows


def _shares(k: int, label: str, side: int, margin: float, target: Any, baselines: Any) -> list:
    """Return a difference between shared and unshared interactions, with two controls.

    It is value k of `shared_difference`. The controls are pairs of the same strength, and words
    that are relabelled.
    """
    label = f"{label}, shared minus unshared"
    chance = [one.relabelled(range(target.n)[::-1]) for one in as_list(baselines)]
    main = Contrast(label, shared_difference(target, baselines)[k], side, margin)
    matched = control(f"{label}, matched by strength", matched_difference(target, baselines)[k])
    return [
        main,
        matched,
        control(f"{label}, relabelled words", shared_difference(target, chance)[k]),
    ]


def matching(outputs: Outputs, exact: OneOrMore) -> Contrasts:
    """Theorem 1 (Eq. 4): the share of masked states on which the logical model d equals v."""
    label = "share of masked states with d = v (to 1e-9 of the range of v)"
    return [Contrast(label, _means(_hit, outputs, exact), 1, 0.999)]


def sparsity(inters: OneOrMore, random: OneOrMore) -> Contrasts:
    """Section 2.1: the salient share of possible interactions, minus that of shuffled outputs."""
    ours = _means(_salient_share, inters)
    theirs = _means(_salient_share, random)
    label = "salient share of the possible interactions"
    return [Contrast(f"{label}, minus shuffled", ours - theirs, -1, SHARE), control(label, ours)]


def low_orders(table: pd.DataFrame) -> Contrasts:
    """Fig. 2: after training, H of orders 1 and 2 minus H of orders 6 to 10."""
    label = "H of orders 1-2 minus H of orders 6-10"
    ahead = _lead(table)
    main = Contrast(f"{label}, after training", ahead.iloc[:, -1], 1, SHARE)
    before = control(f"{label}, before training", ahead.iloc[:, 0])
    above = control(ABOVE, last(table, "excess_low") - last(table, "excess_rest"))
    share = control("share of strength at orders from 6 on", _share_from(table, 6))
    known = "H_rest" in set(table["quantity"])  # older trainings lack it
    rest = [control(LEAD, last(table, "H_low") - last(table, "H_rest"))] if known else []
    return [main, before, above, share, *rest, *_nulls(table)]


def _share_from(table: pd.DataFrame, order: int) -> pd.Series:
    """Return the share of salient strength from an order on, at the last checkpoint, by seed."""
    rows = table[(table["quantity"] == "spectrum") & (table["step"] == table["step"].max())]
    strength = rows["value"].abs()
    whole = strength.groupby(rows["seed"]).sum()
    high = strength[rows["order"] >= order].groupby(rows["seed"]).sum()
    return high.reindex(whole.index, fill_value=0.0) / whole


def pair_low_orders(target: Interactions, baselines: OneOrMore) -> Contrasts:
    """The rule `low_orders` per sample, for two networks trained once."""
    g = transfer(target, baselines)
    low = generalization_power(target, g, LOW_ORDERS)
    high = generalization_power(target, g, HIGH_ORDERS)
    main = Contrast("H of orders 1-2 minus H of orders 6-10, after training", low - high, 1, SHARE)
    return [main, *_leads(target, baselines)]


def _turns_above_chance(table: pd.DataFrame) -> Contrasts:
    """Return as controls how H above chance turns, as a difference and as a share."""
    chance = curves(table, "chance")
    share = (curves(table, "H") - chance) / (1 - chance)
    name = "(H - chance) / (1 - chance)"
    rows = share.reset_index().melt("seed", var_name="step").assign(quantity=name)
    turns = _turn(table, "excess", 1, 0) + _turn(rows, name, 1, 0)
    return [control(f"above chance: {one.label}", one.values) for one in turns]


def count(table: pd.DataFrame) -> Contrasts:
    """Finding 1: N falls, then rises (Eq. 9, 10)."""
    return _turn(table, "N", -1, COUNT, "of the mean N", curves(table, "N").mean(axis=1))


def power(table: pd.DataFrame) -> Contrasts:
    """Finding 2: H rises, then falls (Eq. 8)."""
    return _turn(table, "H", 1, SHARE) + _turns_above_chance(table) + _nulls(table)


def gap(table: pd.DataFrame) -> Contrasts:
    """Finding 3: the loss gap widens while H falls after its peak, and mostly then."""
    before, widens = _moves(table, "gap", by="H")
    final, H = last(table, "gap"), table[table["quantity"] == "H"]
    wider = Contrast("loss gap, peak of H to last checkpoint", widens, 1, NATS, "nats")
    opened = widens.where(final > SMALL_GAP) / (before + widens)
    label = "share of the opening of the gap that follows the peak of H, minus"
    rows = [_turn(table, "H", 1, SHARE)[1], wider, Contrast(f"{label} 1/2", opened - 0.5, 1, SHARE)]
    # If most steps follow the peak, a gap that opens evenly opens mostly then, too.
    clock = pd.concat([H, H.assign(quantity="step", value=H["step"])])
    steps = 1 - peak(clock, "step", by="H")["at"] / H["step"].max()
    even = control(f"{label} the share of the training steps that do", opened - steps)
    return [*rows, even, control("loss gap, last checkpoint", final, "nats")]


def untrained_orders(table: pd.DataFrame) -> Contrasts:
    """Section 3.1: before training, strength of middle orders minus low, and minus high orders."""
    middle = first(table, "orders_middle")
    label = "strength of middle orders minus that of"
    return [
        Contrast(f"{label} low orders", middle - first(table, "orders_low"), 1, SHARE),
        Contrast(f"{label} high orders", middle - first(table, "orders_high"), 1, SHARE),
        control("share of strength that is left after cancelling", first(table, "uncancelled")),
    ]


def untrained_transfer(table: pd.DataFrame) -> Contrasts:
    """Section 3.1: before training, H minus 1/2."""
    before = first(table, "H")
    main = Contrast("H before training, minus 1/2", before - 0.5, -1, SHARE)
    return [main, control("H before training, minus chance", before - first(table, "chance"))]


def phase_1(table: pd.DataFrame) -> Contrasts:
    """Section 3.1: the mean order falls until H peaks."""
    falls, _ = _moves(table, "mean_order", by="H")
    return [Contrast("mean order, first checkpoint to peak of H", falls, -1, ORDER)]


def phase_2(table: pd.DataFrame) -> Contrasts:
    """Section 3.1: the mean order rises after the peak of H."""
    _, rises = _moves(table, "mean_order", by="H")
    return [Contrast("mean order, peak of H to last checkpoint", rises, 1, ORDER)]


def phase_3(table: pd.DataFrame) -> Contrasts:
    """Section 3.1, App. I: after t2, non-generalizable strength grows, and more than the other."""
    grown = since_t2(table, "non_generalizable")
    other = since_t2(table, "generalizable")
    label, unit = "non-generalizable strength, t2 to last checkpoint", "log odds"
    more = Contrast("the same, minus generalizable strength", grown - other, 1, ODDS, unit)
    return [Contrast(label, grown, 1, ODDS, unit), more]


def removal_gap(table: pd.DataFrame) -> Contrasts:
    """Fig. 4 (Eq. 12): the share of the loss gap that the removal closes."""
    label = "share of the loss gap that closes"
    words = {"random": "random removal", "permuted": "removal by permuted G", "shrunk": "shrinking"}
    rows = [Contrast(label, closure(table), 1, SHARE)]
    for kind, word in words.items():
        rows.append(control(f"{label}, minus that by {word}", closure(table, minus=kind)))
    return rows


def removal_train(table: pd.DataFrame) -> Contrasts:
    """Fig. 4 (Eq. 12): the removal raises the training loss."""
    return _rise(table, "train", "rise of the training loss", 1, NATS)


def removal_test(table: pd.DataFrame) -> Contrasts:
    """Fig. 4 (Eq. 12): the removal does not raise the test loss."""
    return _rise(table, "test", "rise of the test loss", -1, -NATS)


def llm_low_orders(
    target: Interactions, baselines: OneOrMore, untrained: OneOrMore | None = None
) -> Contrasts:
    """Fig. 11, App. O: the share of orders 1 and 2 in generalizable strength, minus 1/2."""
    by_order = order_spectrum(target, transfer(target, baselines)).abs().sum(-2)
    share = by_order[..., LOW_ORDERS].sum(-1) / by_order.sum(-1) - 0.5
    main = Contrast("share of orders 1-2 in generalizable strength, minus 1/2", share, 1, SHARE)
    return [main, *_leads(target, baselines, untrained)]


def shared_orders(target: Interactions, baselines: OneOrMore) -> Contrasts:
    """arXiv 2606.08129: the mean order of shared minus unshared interactions."""
    return _shares(0, "mean order", -1, ORDER, target, baselines)


def shared_signs(target: Interactions, baselines: OneOrMore) -> Contrasts:
    """arXiv 2606.08129: the share of strength left after cancelling, shared minus unshared."""
    return _shares(1, "share left after cancelling", 1, SHARE, target, baselines)


def sft_orders(table: pd.DataFrame) -> Contrasts:
    """Fig. 12, App. P: in fine-tuning, strength of low orders grows, and of high orders shrinks.

    With fewer than six variables there are no high orders, and nothing is judged.
    """
    label, unit = "change of salient strength,", "log odds"
    rows = [
        Contrast(f"{label} orders 1-2", _change(table, "strength_low"), 1, ODDS, unit),
        Contrast(f"{label} orders from 6 on", _change(table, "strength_high"), -1, ODDS, unit),
        control(f"{label} 3-5", _change(table, "strength_middle"), unit),
    ]
    if curves(table, "strength_high").to_numpy().any():
        return rows
    return [control(one.label, one.values, one.unit) for one in rows]


def sft_share(table: pd.DataFrame) -> Contrasts:
    """App. P: H after fine-tuning minus H before."""
    main = Contrast("change of H by tuning", _change(table, "H"), 1, SHARE)
    return [main, control("change of H above chance", _change(table, "excess"))]


def sft_phase(table: pd.DataFrame) -> Contrasts:
    """App. P: fine-tuning ends in phase 1, so H has not fallen from its peak; it may be level."""
    _, rises = _moves(table, "H")
    label = "H at the last checkpoint, minus its peak between first and last"
    return [Contrast(label, rises, 1, -SHARE)]


def sft_noise(table: pd.DataFrame) -> Contrasts:
    """arXiv 2605.17967: unshared strength falls, and by more than shared strength grows."""
    guide, unit = "non_generalizable", "log odds"
    lost, _ = _moves(table, guide, -1)
    gained, _ = _moves(table, "generalizable", -1, guide)
    order, _ = _moves(table, "mean_order", -1, guide)
    main = Contrast("unshared strength, first checkpoint to lowest", lost, -1, ODDS, unit)
    more = Contrast("the same, plus change of shared strength", lost + gained, -1, ODDS, unit)
    return [main, more, control("mean order, over the same steps", order)]


def sft_short(table: pd.DataFrame) -> Contrasts:
    """arXiv 2605.17967: unshared strength is lowest before half of the steps, then grows."""
    share = curves(table, "non_generalizable").idxmin(axis=1) / table["step"].max() - 0.5
    main = Contrast("share of steps to lowest unshared strength, minus 1/2", share, -1, SHARE)
    _, more = _moves(table, "non_generalizable", -1)
    _, loss = _moves(table, "test_loss", -1, "non_generalizable")
    grows = Contrast("unshared strength, lowest to last checkpoint", more, 1, ODDS, "log odds")
    return [main, grows, control("test loss, over the same steps", loss, "nats")]


def condition_1(outputs: Outputs) -> Contrasts:
    """Condition 1 (App. B): strength share above order n/2, minus that of shuffled outputs."""
    ours = _means(_high_share, outputs)
    theirs = _means(_high_share, map(conditions.shuffled, outputs))
    label = "share of strength above order n/2"
    return [Contrast(f"{label}, minus shuffled", ours - theirs, -1, SHARE), control(label, ours)]


def condition_2(outputs: Outputs) -> Contrasts:
    """Condition 2 (App. B): the share of samples whose mean output never falls, minus 1/2."""
    label = "share of samples whose mean output never falls"
    ours = _means(_never_falls, outputs)
    theirs = _means(_never_falls, map(conditions.shuffled, outputs))
    main = Contrast(f"{label}, minus 1/2", ours - 0.5, 1, SHARE)
    return [main, control(f"{label}: shuffled", theirs)]


def condition_3(outputs: Outputs) -> Contrasts:
    """Condition 3 (App. B): the median of the smallest p lies between 0.9 and 1.2."""
    p = [_exponent(v) for v in outputs]
    middle = np.array([float(x.where(x != 0, torch.nan).nanmedian()) for x in p])
    ends = [Contrast(f"median p, minus {x}", middle - x, s) for x, s in ((0.9, 1), (1.2, -1))]
    return [*ends, control("share of samples that have a p", _means(lambda x: ~x.isnan(), p))]


def baselines_two(power: pd.DataFrame, chance: pd.DataFrame) -> Contrasts:
    """Fig. 5, App. C: the gain of H by the second baseline, alone and minus that by all further."""
    above = power - chance
    most = power.columns[-1]
    second = above[2] - above[1]
    ahead = second - (above[most] - above[2])
    main = Contrast("H above chance gained by the second baseline", second, 1, SHARE)
    more = Contrast("the same, minus the gain of all further ones", ahead, 1, SHARE)
    return [main, more, control(f"H gained by {most} baselines over 1", power[most] - power[1])]


def similarity_strict(table: pd.DataFrame) -> Contrasts:
    """Fig. 10, App. M: H by the continuous metric minus H by the binary one."""
    change = last(table, "H_similarity") - last(table, "H")
    return [Contrast("H by the continuous metric, minus H", change, -1, SHARE)]


def similarity_shape(binary: Outputs, continuous: Outputs, rest: Outputs) -> Contrasts:
    """Fig. 10, App. M: the metrics' spectra are closer to each other than to the rest."""
    near = np.array([_distance(*pair) for pair in zip(binary, continuous, strict=True)])
    far = np.array([_distance(*pair) for pair in zip(binary, rest, strict=True)])
    label = "distance of the two metrics' spectra"
    main = Contrast(f"distance to non-generalizable, minus {label}", far - near, 1, SHARE)
    return [main, control(label, near)]


def cross_validation(table: pd.DataFrame) -> Contrasts:
    """Table 1, App. N: Jaccard similarity of the spectra shared with B and with C, minus chance."""
    agree = table["jaccard"]
    label = "Jaccard similarity of B and C"
    main = Contrast(f"{label}, minus chance", agree - table["chance"], 1, SHARE)
    other = control(f"{label}, minus that with B untrained", agree - table["untrained"])
    return [main, other, control(label, agree)]


def penalty_power(table: pd.DataFrame) -> Contrasts:
    """App. K: H with the penalty, minus H of plain trainings."""
    return _arms(table, "H", SHARE)


def penalty_accuracy(table: pd.DataFrame) -> Contrasts:
    """App. K: test accuracy with the penalty, minus that of plain trainings."""
    return _arms(table, "test_accuracy", ACCURACY)
