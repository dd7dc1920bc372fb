"""Rules about transfer: do simple interactions generalize better, and those of a known rule?"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Judgement, lead
from symgen.method.statistics import bounded
from symgen.method.trainings import Trainings
from symgen.method.transfer import (
    HIGH_ORDERS,
    LOW_ORDERS,
    generalization_power,
    lift,
    transfer,
)


def low_orders(
    target: Interactions | Trainings,
    baselines: Interactions | Sequence[Interactions] = (),
    options: dict | None = None,
) -> Judgement:
    """H of orders 1 and 2, less that of orders 6 to 10, is above 0: Fig. 2 as it stands.

    At the end of each of several trainings, both averaged over the samples that have salient
    interactions of these orders; where fewer than half of the trainings have such of orders 6 to
    10, nothing is tested. Of a single training it is sample by sample, and less orders from 3 on,
    where fewer than 5 samples or a quarter of them have such of orders 6 to 10. Differences up to
    0.02 count as none.
    """
    if isinstance(target, Trainings):
        ahead = target.curves["power_low"] - target.curves["power_high"]
        judged = _of_most("H, orders 1 and 2 less orders 6 to 10", ahead[:, -1], 1.0)
        before, known = bounded(ahead[:, 0], -1, 1), int((~ahead[:, 0].isnan()).sum())
        note = (
            f"Before training the same difference is {before:+.2f} (of {known} with high orders)."
        )
        return dataclasses.replace(judged, note=note) if judged.contrasts else judged
    options = options or {}
    saliency = {k: options[k] for k in ("tau", "relative_to") if k in options}
    g = transfer(target, baselines, **options)
    return _over_samples("H", functools.partial(generalization_power, target, g, **saliency), 1.0)


def low_orders_learned(trainings: Trainings) -> Judgement:
    """H of orders 1 and 2, less that of orders 6 to 10, is larger after training than before.

    Both averaged over the samples that have salient interactions of these orders; where fewer than
    half of the trainings have such of orders 6 to 10 at both ends, nothing is tested. Differences
    up to 0.02 count as none.
    """
    ahead = trainings.curves["power_low"] - trainings.curves["power_high"]
    told = "H, orders 1 and 2 less orders 6 to 10: at the end less before training"
    return _of_most(told, ahead[:, -1] - ahead[:, 0], 2.0)


def low_orders_above_chance(
    target: Interactions | Trainings,
    baselines: Interactions | Sequence[Interactions] = (),
    options: dict | None = None,
) -> Judgement:
    """H above chance of orders 1 and 2, less that of orders from 3 on, is above 0.

    At the end of each of several trainings, averaged over its samples. Of a single training it is
    sample by sample, and less orders 6 to 10, where 5 samples or more and a quarter of them have
    such salient interactions. Differences up to 0.02 count as none.
    """
    if isinstance(target, Trainings):
        ahead = target.end("lift_low") - target.end("lift_above_low")
        told = "H above chance, orders 1 and 2 less orders from 3 on"
        return _over_trainings(told, ahead, most=2.0)
    of = functools.partial(lift, target, baselines, **(options or {}))
    return _over_samples("H above chance", of, 2.0)


def _over_trainings(measure: str, ahead: Float[Tensor, "training"], most: float) -> Judgement:
    known = int((~ahead.isnan()).sum())
    return Judgement([lead(measure, ahead, most=most)], known, unit="trainings")


def _of_most(measure: str, ahead: Float[Tensor, "training"], most: float) -> Judgement:
    judged = _over_trainings(measure, ahead, most)
    if 2 * judged.samples >= len(ahead):
        return judged
    note = f"{judged.samples} of {len(ahead)} trainings have salient high orders to compare"
    return Judgement([], judged.samples, note, "trainings")


def _over_samples(measure: str, of: Callable[..., Tensor], most: float) -> Judgement:
    low = of(orders=LOW_ORDERS)
    ahead, orders = low - of(orders=HIGH_ORDERS), "6 to 10"
    if int((~ahead.isnan()).sum()) < max(5, len(low) // 4):
        ahead, orders = low - of(orders=range(3, 17)), "from 3 on"
    told = f"{measure}, orders 1 and 2 less orders {orders}"
    return Judgement([lead(told, ahead, most=most)], int((~ahead.isnan()).sum()))


def rule_precision(against: Mapping[str, Float[Tensor, "sample"]]) -> Judgement:
    """Of what transfers, a larger share is of the planted rule than of all that is salient.

    And a larger one than of what transfers by chance, when the variables of the baselines are
    relabelled at random. Shares of the strength, sample by sample; an interaction is of the rule
    where the rule depends on all its variables. Leads up to 0.02 count as none.
    """
    told, share = "share of the rule: of what transfers less of", against["precision"]
    contrasts = [
        lead(f"{told} all", share - against["base"]),
        lead(f"{told} what transfers by chance", share - against["precision by chance"]),
    ]
    return Judgement(contrasts, int((~share.isnan()).sum()))


def rule_recall(against: Mapping[str, Float[Tensor, "sample"]]) -> Judgement:
    """Of what is of the planted rule, a larger share transfers than of the rest.

    And the lead is larger than by chance, when the variables of the baselines are relabelled at
    random. Shares of the strength, sample by sample; an interaction is of the rule where the rule
    depends on all its variables. Leads up to 0.02 count as none.
    """
    ahead = against["recall"] - against["false"]
    lucky = against["recall by chance"] - against["false by chance"]
    contrasts = [
        lead("share that transfers: of the rule less of the rest", ahead),
        lead("the same less that by chance", ahead - lucky, most=2.0),
    ]
    return Judgement(contrasts, int((~ahead.isnan()).sum()))
