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
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.conditions import (
    average_output,
    never_falls,
    shuffled,
    smallest_exponent,
    strength_above,
)
from symgen.method.generalization import (
    HIGH_ORDERS,
    LOW_ORDERS,
    REST_ORDERS,
    as_list,
    excess,
    generalization_power,
    mean_order,
    order_spectrum,
    transfer,
    uncancelled,
)
from symgen.method.removal import REMOVED, SMALL_GAP, closure
from symgen.method.statistics import Contrast, control
from symgen.method.training_curves import curves, last, peak, rescaled, since_t2
from symgen.transforms import count_variables, moebius

# One entry per training; or those of one language model, one per prompt.
Outputs = Tensor | Sequence[Tensor]
Effects = Interactions | Sequence[Interactions]
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
) -> list[Contrast]:
    """Return how far a quantity moves to its extreme (1: peak, -1: lowest), and back."""
    to, back = (x / scale for x in _moves(table, quantity, side))
    most = {1: "peak", -1: "lowest"}[side]
    first = Contrast(f"{quantity}, first checkpoint to {most}", to, side, margin, unit)
    return [first, Contrast(f"{quantity}, {most} to last checkpoint", back, -side, margin, unit)]


def _first(table: pd.DataFrame, quantity: str) -> pd.Series:
    return curves(table, quantity).iloc[:, 0]


def _lead(table: pd.DataFrame) -> pd.DataFrame:
    """Return H_low - H_high by seed and step.

    It is over samples that have both. Older trainings lack that; there the means are subtracted.
    """
    ahead = curves(table, "H_low") - curves(table, "H_high")
    if (table["quantity"] == "H_lead").any():
        ahead = curves(table, "H_lead").combine_first(ahead)
    return ahead


def _nulls(table: pd.DataFrame) -> list[Contrast]:
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
        rows.append(
            control("H above chance, minus the same untrained", last(table, "excess") - null)
        )
    if "agreement" in known:
        agree = last(table, "agreement") - 0.5
        rows.append(control("signs that agree, of those salient in both, minus 1/2", agree))
    return rows


def _salient_share(inter: Interactions) -> Tensor:
    share = inter.salient().double().sum((-2, -1)) / inter.possible
    return share.where(inter.objective > 0, torch.nan)


def _high_share(v: Tensor) -> Tensor:
    return strength_above(moebius(v.double()))[..., count_variables(v) // 2]


def _never_falls(v: Tensor) -> Tensor:
    return never_falls(average_output(v))


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


def _risen(table: pd.DataFrame, group: str, kind: str) -> pd.Series:
    """Return the loss after a removal minus the loss before it, at the last checkpoint, by seed."""
    return last(table, f"removal_{group}_{kind}") - last(table, f"removal_{group}_nothing")


def _arms(table: pd.DataFrame, quantity: str, margin: float) -> list[Contrast]:
    """Return contrasts between the arms of `measure_penalty`, paired by seed."""
    rows = table[table["quantity"] == quantity]
    arms = rows.pivot(index="seed", columns="arm", values="value")
    label = quantity.replace("_", " ")
    ahead = {k: arms["penalty"] - arms[k] for k in ("plain", "random", "decay")}
    rest = [control(f"{label} with the penalty, minus {k}", ahead[k]) for k in ("random", "decay")]
    return [Contrast(f"{label} with the penalty, minus plain", ahead["plain"], 1, margin), *rest]


def _shared(inter: Interactions, baselines: Effects) -> tuple[Tensor, Tensor]:
    """Return mean order and uncancelled share: shared minus unshared effects, per prompt."""
    kept = order_spectrum(inter, transfer(inter, baselines))
    rest = order_spectrum(inter) - kept
    return mean_order(kept) - mean_order(rest), uncancelled(kept) - uncancelled(rest)


def _matched(inter: Interactions, baselines: Effects) -> tuple[Tensor, Tensor]:
    """Return the values of `_shared` for pairs of effects of similar strength, per prompt."""
    g = transfer(inter, baselines)
    rows = []
    for effects, kept, both in zip(inter.effects, g.salient, g > 0, strict=True):
        groups = [(kept & kind).nonzero() for kind in (both, ~both)]
        logs = [effects[tuple(at.T)].abs().log().cpu() for at in groups]
        pairs = linear_sum_assignment((logs[0][:, None] - logs[1]).abs())
        places = [at[i] for at, i in zip(groups, pairs, strict=True)]
        values = [effects[tuple(at.T)] for at in places]
        orders = [inter.order[at[:, 1]].double().mean() for at in places]
        left = [x.sum().abs() / x.abs().sum() for x in values]
        rows.append((orders[0] - orders[1], left[0] - left[1]))
    change = torch.tensor(rows)
    return change[:, 0], change[:, 1]


def _rest_lead(table: pd.DataFrame) -> list[Contrast]:
    """Return as a control how far low orders are ahead of all others; older trainings lack it."""
    known = (table["quantity"] == "H_rest").any()
    return [control(LEAD, last(table, "H_low") - last(table, "H_rest"))] if known else []


def _leads(
    target: Interactions, baselines: Effects, untrained: Effects | None = None
) -> list[Contrast]:
    """Return the lead of low orders as controls: above chance, and as it is.

    With untrained copies of the baselines, also H minus H with these.
    """
    g = transfer(target, baselines)
    lead = generalization_power(target, g, LOW_ORDERS) - generalization_power(
        target, g, REST_ORDERS
    )
    above = excess(target, baselines, LOW_ORDERS) - excess(target, baselines, REST_ORDERS)
    rows = [control(ABOVE, above), control(LEAD, lead)]
    if untrained is not None:
        null = generalization_power(target, transfer(target, untrained))
        power = generalization_power(target, g)
        rows.append(control("H minus H with untrained copies", power - null))
    return rows


def _shares(k: int, label: str, side: int, margin: float, target: Any, baselines: Any) -> list:
    """Return value k of `_shared` as a contrast; of `_matched` and relabelled words as controls."""
    label = f"{label}, shared minus unshared"
    backwards = list(reversed(range(target.n)))
    chance = [one.relabelled(backwards) for one in as_list(baselines)]
    main = Contrast(label, _shared(target, baselines)[k], side, margin)
    matched = control(f"{label}, matched by strength", _matched(target, baselines)[k])
    return [main, matched, control(f"{label}, relabelled words", _shared(target, chance)[k])]


def matching(outputs: Outputs, exact: Effects) -> list[Contrast]:
    """Theorem 1 (Eq. 4): the share of masked states on which the logical model d equals v."""
    label = "share of masked states with d = v (to 1e-9 of the range of v)"
    return [Contrast(label, _means(_hit, outputs, exact), 1, 0.999)]


def sparsity(inters: Effects, random: Effects) -> list[Contrast]:
    """Section 2.1: the salient share of possible interactions, minus that of shuffled outputs."""
    ours = _means(_salient_share, inters)
    theirs = _means(_salient_share, random)
    label = "salient share of the possible interactions"
    return [Contrast(f"{label}, minus shuffled", ours - theirs, -1, SHARE), control(label, ours)]


def low_orders(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 2: after training, H of orders 1 and 2 minus H of orders 6 to 10."""
    label = "H of orders 1-2 minus H of orders 6-10"
    ahead = _lead(table)
    main = Contrast(f"{label}, after training", ahead.iloc[:, -1], 1, SHARE)
    before = control(f"{label}, before training", ahead.iloc[:, 0])
    above = control(ABOVE, last(table, "excess_low") - last(table, "excess_rest"))
    share = control("share of strength at orders from 6 on", _share_from(table, 6))
    return [main, before, above, share, *_rest_lead(table), *_nulls(table)]


def _share_from(table: pd.DataFrame, order: int) -> pd.Series:
    """Return the share of salient strength from an order on, at the last checkpoint, by seed."""
    rows = table[(table["quantity"] == "spectrum") & (table["step"] == table["step"].max())]
    size = rows.assign(value=rows["value"].abs())
    total = size.groupby("seed")["value"].sum()
    high = size[size["order"] >= order].groupby("seed")["value"].sum()
    return high.reindex(total.index, fill_value=0.0) / total


def pair_low_orders(target: Interactions, baselines: Effects) -> list[Contrast]:
    """The rule `low_orders` per sample, for two networks trained once."""
    g = transfer(target, baselines)
    low = generalization_power(target, g, LOW_ORDERS)
    high = generalization_power(target, g, HIGH_ORDERS)
    main = Contrast("H of orders 1-2 minus H of orders 6-10, after training", low - high, 1, SHARE)
    return [main, *_leads(target, baselines)]


def _turns_above_chance(table: pd.DataFrame) -> list[Contrast]:
    """Return as controls how H above chance turns, as a difference and as a share."""
    table = rescaled(table)
    rows = []
    for quantity, word in (("excess", "excess"), ("above", "(H - chance) / (1 - chance)")):
        for one in _turn(table, quantity, 1, 0):
            label = one.label.replace(quantity, word, 1)
            rows.append(control(f"above chance: {label}", one.values))
    return rows


def count(table: pd.DataFrame) -> list[Contrast]:
    """Finding 1: N falls, then rises (Eq. 9, 10)."""
    return _turn(table, "N", -1, COUNT, "of the mean N", curves(table, "N").mean(axis=1))


def power(table: pd.DataFrame) -> list[Contrast]:
    """Finding 2: H rises, then falls (Eq. 8)."""
    return _turn(table, "H", 1, SHARE) + _turns_above_chance(table) + _nulls(table)


def gap(table: pd.DataFrame) -> list[Contrast]:
    """Finding 3: the loss gap widens while H falls after its peak, and mostly then."""
    before, widens = _moves(table, "gap", by="H")
    wider = Contrast("loss gap, peak of H to last checkpoint", widens, 1, NATS, "nats")
    final = last(table, "gap")
    opened = widens.where(final > SMALL_GAP) / (before + widens)
    label = "share of the opening of the gap that follows the peak of H, minus 1/2"
    rows = [_turn(table, "H", 1, SHARE)[1], wider, Contrast(label, opened - 0.5, 1, SHARE)]
    return [*rows, control("loss gap, last checkpoint", final, "nats")]


def untrained_orders(table: pd.DataFrame) -> list[Contrast]:
    """Section 3.1: before training, strength of middle orders minus low, and minus high orders."""
    middle = _first(table, "orders_middle")
    rest = control("share of strength that is left after cancelling", _first(table, "uncancelled"))
    label = "strength of middle orders minus that of"
    ahead = {k: middle - _first(table, f"orders_{k}") for k in ("low", "high")}
    return [*(Contrast(f"{label} {k} orders", x, 1, SHARE) for k, x in ahead.items()), rest]


def untrained_transfer(table: pd.DataFrame) -> list[Contrast]:
    """Section 3.1: before training, H minus 1/2."""
    first = _first(table, "H")
    chance = _first(table, "chance")
    main = Contrast("H before training, minus 1/2", first - 0.5, -1, SHARE)
    return [main, control("H before training, minus chance", first - chance)]


def phase_1(table: pd.DataFrame) -> list[Contrast]:
    """Section 3.1: the mean order falls until H peaks."""
    falls, _ = _moves(table, "mean_order", by="H")
    return [Contrast("mean order, first checkpoint to peak of H", falls, -1, ORDER)]


def phase_2(table: pd.DataFrame) -> list[Contrast]:
    """Section 3.1: the mean order rises after the peak of H."""
    _, rises = _moves(table, "mean_order", by="H")
    return [Contrast("mean order, peak of H to last checkpoint", rises, 1, ORDER)]


def phase_3(table: pd.DataFrame) -> list[Contrast]:
    """Section 3.1, App. I: after t2, non-generalizable strength grows, and more than the other."""
    grown = since_t2(table, "non_generalizable")
    other = since_t2(table, "generalizable")
    label = "non-generalizable strength, t2 to last checkpoint"
    unit = "log odds"
    more = Contrast("the same, minus generalizable strength", grown - other, 1, ODDS, unit)
    return [Contrast(label, grown, 1, ODDS, unit), more]


def removal_gap(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 4 (Eq. 12): the share of the loss gap that the removal closes."""
    label = "share of the loss gap that closes"
    closed = closure(table)
    words = {"random": "random removal", "permuted": "removal by permuted G", "shrunk": "shrinking"}
    others = {words[k]: closure(table, minus=k) for k in words}
    rest = [control(f"{label}, minus that by {k}", x) for k, x in others.items()]
    return [Contrast(label, closed, 1, SHARE), *rest]


def removal_train(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 4 (Eq. 12): the removal raises the training loss."""
    rise = _risen(table, "train", REMOVED)
    other = _risen(table, "train", "random")
    label = "rise of the training loss by removal"
    main = Contrast(label, rise, 1, NATS, "nats")
    ahead = control(f"{label}, minus that by random removal", rise - other, "nats")
    return [main, ahead, control("rise of the training loss by random removal", other, "nats")]


def removal_test(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 4 (Eq. 12): the removal does not raise the test loss."""
    rise = _risen(table, "test", REMOVED)
    other = _risen(table, "test", "random")
    label = "rise of the test loss by removal"
    main = Contrast(label, rise, -1, -NATS, "nats")
    ahead = control(f"{label}, minus that by random removal", rise - other, "nats")
    return [main, ahead, control("rise of the test loss by random removal", other, "nats")]


def llm_low_orders(
    target: Interactions, baselines: Effects, untrained: Effects | None = None
) -> list[Contrast]:
    """Fig. 11, App. O: the share of orders 1 and 2 in generalizable strength, minus 1/2."""
    by_order = order_spectrum(target, transfer(target, baselines)).abs().sum(-2)
    share = by_order[..., LOW_ORDERS].sum(-1) / by_order.sum(-1) - 0.5
    main = Contrast("share of orders 1-2 in generalizable strength, minus 1/2", share, 1, SHARE)
    return [main, *_leads(target, baselines, untrained)]


def shared_orders(target: Interactions, baselines: Effects) -> list[Contrast]:
    """arXiv 2606.08129: the mean order of shared minus unshared interactions."""
    return _shares(0, "mean order", -1, ORDER, target, baselines)


def shared_signs(target: Interactions, baselines: Effects) -> list[Contrast]:
    """arXiv 2606.08129: the share of strength left after cancelling, shared minus unshared."""
    return _shares(1, "share left after cancelling", 1, SHARE, target, baselines)


def sft_orders(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 12, App. P: in fine-tuning, strength of low orders grows, and of high orders shrinks.

    With fewer than six variables there are no high orders, and nothing is judged.
    """
    groups = {"low": ("orders 1-2", 1), "high": ("orders from 6 on", -1), "middle": ("3-5", 0)}
    judged = bool(curves(table, "strength_high").to_numpy().any())
    rows = []
    for name, (word, side) in groups.items():
        change = last(table, f"strength_{name}") - _first(table, f"strength_{name}")
        side = side if judged else 0
        label = f"change of salient strength, {word}"
        rows.append(Contrast(label, change, side, ODDS * abs(side), "log odds"))
    return rows


def sft_share(table: pd.DataFrame) -> list[Contrast]:
    """App. P: H after fine-tuning minus H before."""
    power = last(table, "H") - _first(table, "H")
    above = last(table, "excess") - _first(table, "excess")
    main = Contrast("change of H by tuning", power, 1, SHARE)
    return [main, control("change of H above chance", above)]


def sft_phase(table: pd.DataFrame) -> list[Contrast]:
    """App. P: fine-tuning ends in phase 1, so H has not fallen from its peak; it may be level."""
    _, rises = _moves(table, "H")
    label = "H at the last checkpoint, minus its peak between first and last"
    return [Contrast(label, rises, 1, -SHARE)]


def sft_noise(table: pd.DataFrame) -> list[Contrast]:
    """arXiv 2605.17967: unshared strength falls, and by more than shared strength grows."""
    guide = "non_generalizable"
    lost, _ = _moves(table, guide, -1, guide)
    gained, _ = _moves(table, "generalizable", -1, guide)
    order, _ = _moves(table, "mean_order", -1, guide)
    unit = "log odds"
    main = Contrast("unshared strength, first checkpoint to lowest", lost, -1, ODDS, unit)
    more = Contrast("the same, plus change of shared strength", lost + gained, -1, ODDS, unit)
    return [main, more, control("mean order, over the same steps", order)]


def sft_short(table: pd.DataFrame) -> list[Contrast]:
    """arXiv 2605.17967: unshared strength is lowest before half of the steps, then grows."""
    share = curves(table, "non_generalizable").idxmin(axis=1) / table["step"].max() - 0.5
    main = Contrast("share of steps to lowest unshared strength, minus 1/2", share, -1, SHARE)
    _, more = _moves(table, "non_generalizable", -1)
    _, loss = _moves(table, "test_loss", -1, "non_generalizable")
    grows = Contrast("unshared strength, lowest to last checkpoint", more, 1, ODDS, "log odds")
    return [main, grows, control("test loss, over the same steps", loss, "nats")]


def condition_1(outputs: Outputs) -> list[Contrast]:
    """Condition 1 (App. B): strength share above order n/2, minus that of shuffled outputs."""
    ours = _means(_high_share, outputs)
    theirs = _means(_high_share, map(shuffled, outputs))
    label = "share of strength above order n/2"
    return [Contrast(f"{label}, minus shuffled", ours - theirs, -1, SHARE), control(label, ours)]


def condition_2(outputs: Outputs) -> list[Contrast]:
    """Condition 2 (App. B): the share of samples whose mean output never falls, minus 1/2."""
    label = "share of samples whose mean output never falls"
    ours = _means(_never_falls, outputs)
    theirs = _means(_never_falls, map(shuffled, outputs))
    main = Contrast(f"{label}, minus 1/2", ours - 0.5, 1, SHARE)
    return [main, control(f"{label}: shuffled", theirs)]


def condition_3(outputs: Outputs) -> list[Contrast]:
    """Condition 3 (App. B): the median of the smallest p lies between 0.9 and 1.2."""
    p = [smallest_exponent(average_output(v)).where(v[..., -1] > v[..., 0], 0) for v in outputs]
    middle = np.array([float(x.where(x != 0, torch.nan).nanmedian()) for x in p])
    ends = [Contrast(f"median p, minus {x}", middle - x, s) for x, s in ((0.9, 1), (1.2, -1))]
    return [*ends, control("share of samples that have a p", _means(lambda x: ~x.isnan(), p))]


def baselines_two(power: pd.DataFrame, chance: pd.DataFrame) -> list[Contrast]:
    """Fig. 5, App. C: the gain of H by the second baseline, alone and minus that by all further."""
    above = power - chance
    most = power.columns[-1]
    second = above[2] - above[1]
    further = above[most] - above[2]
    main = Contrast("H above chance gained by the second baseline", second, 1, SHARE)
    more = Contrast("the same, minus the gain of all further ones", second - further, 1, SHARE)
    return [main, more, control(f"H gained by {most} baselines over 1", power[most] - power[1])]


def similarity_strict(table: pd.DataFrame) -> list[Contrast]:
    """Fig. 10, App. M: H by the continuous metric minus H by the binary one."""
    change = last(table, "H_similarity") - last(table, "H")
    return [Contrast("H by the continuous metric, minus H", change, -1, SHARE)]


def similarity_shape(binary: Outputs, continuous: Outputs, rest: Outputs) -> list[Contrast]:
    """Fig. 10, App. M: the metrics' spectra are closer to each other than to the rest."""
    rows = [*zip(binary, continuous, rest, strict=True)]
    near, far = (np.array([_distance(row[0], row[k]) for row in rows]) for k in (1, 2))
    label = "distance of the two metrics' spectra"
    main = Contrast(f"distance to non-generalizable, minus {label}", far - near, 1, SHARE)
    return [main, control(label, near)]


def cross_validation(table: pd.DataFrame) -> list[Contrast]:
    """Table 1, App. N: Jaccard similarity of the spectra shared with B and with C, minus chance."""
    agree = table["jaccard"]
    label = "Jaccard similarity of B and C"
    main = Contrast(f"{label}, minus chance", agree - table["chance"], 1, SHARE)
    other = control(f"{label}, minus that with B untrained", agree - table["untrained"])
    return [main, other, control(label, agree)]


def penalty_power(table: pd.DataFrame) -> list[Contrast]:
    """App. K: H with the penalty, minus H of plain trainings."""
    return _arms(table, "H", SHARE)


def penalty_accuracy(table: pd.DataFrame) -> list[Contrast]:
    """App. K: test accuracy with the penalty, minus that of plain trainings."""
    return _arms(table, "test_accuracy", ACCURACY)
