"""Rules about orders: do simple interactions generalize better?"""

from collections.abc import Sequence

from symgen.interactions import Interactions
from symgen.method.claims.judgement import Judgement, above
from symgen.method.statistics import interval
from symgen.method.transfer import HIGH_ORDERS, LOW_ORDERS, lift


def low_orders(
    target: Interactions,
    baselines: Interactions | Sequence[Interactions],
    options: dict | None = None,
) -> Judgement:
    """H above chance of orders 1 and 2, less that of orders 6 to 10, sample by sample, is above 0.

    Differences up to 0.02 count as none. Where fewer than 5 samples, or a quarter of them, have
    salient interactions of orders 6 to 10, orders from 3 on take their place.
    """
    options = options or {}
    low = lift(target, baselines, LOW_ORDERS, **options)
    lead, orders = low - lift(target, baselines, HIGH_ORDERS, **options), "6 to 10"
    if int((~lead.isnan()).sum()) < max(5, len(low) // 4):
        lead, orders = low - lift(target, baselines, range(3, 17), **options), "from 3 on"
    measure = f"H above chance, orders 1 and 2 less orders {orders}"
    samples = int((~lead.isnan()).sum())
    return Judgement([above(measure, interval(lead), margin=0.02)], samples)
