"""Rules about transfer: do simple interactions generalize better, and those of a known rule?"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Judgement, lead
from symgen.method.trainings import Trainings
from symgen.method.transfer import HIGH_ORDERS, LOW_ORDERS, lift


def low_orders(
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
        measure = "H above chance, orders 1 and 2 less orders from 3 on"
        known = int((~ahead.isnan()).sum())
        return Judgement([lead(measure, ahead, most=2.0)], known, unit="trainings")
    options = options or {}
    low = lift(target, baselines, LOW_ORDERS, **options)
    ahead, orders = low - lift(target, baselines, HIGH_ORDERS, **options), "6 to 10"
    if int((~ahead.isnan()).sum()) < max(5, len(low) // 4):
        ahead, orders = low - lift(target, baselines, range(3, 17), **options), "from 3 on"
    measure = f"H above chance, orders 1 and 2 less orders {orders}"
    return Judgement([lead(measure, ahead, most=2.0)], int((~ahead.isnan()).sum()))


def rule_precision(against: Mapping[str, Float[Tensor, "sample"]]) -> Judgement:
    """Of what transfers, a larger share is of the planted rule than of all that is salient.

    Shares of the strength, sample by sample; an interaction is of the rule where the rule depends
    on all its variables. Leads up to 0.02 count as none.
    """
    return _against(
        against, "precision", "base", "share of the rule: of what transfers less of all"
    )


def rule_recall(against: Mapping[str, Float[Tensor, "sample"]]) -> Judgement:
    """Of what is of the planted rule, a larger share transfers than of the rest.

    Shares of the strength, sample by sample; an interaction is of the rule where the rule depends
    on all its variables. Leads up to 0.02 count as none.
    """
    measure = "share that transfers: of the rule less of the rest"
    return _against(against, "recall", "false", measure)


def _against(
    found: Mapping[str, Float[Tensor, "sample"]], one: str, other: str, measure: str
) -> Judgement:
    ahead = found[one] - found[other]
    return Judgement([lead(measure, ahead)], int((~ahead.isnan()).sum()))
