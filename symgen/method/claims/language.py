"""Rules about language models: what transfers between two, and what fine-tuning changes."""

from collections.abc import Sequence

import torch

from symgen.interactions import Interactions
from symgen.method.changes import strength_of
from symgen.method.claims.judgement import Judgement, above, below, lead, share
from symgen.method.dynamics import Dynamics
from symgen.method.statistics import halves, interval
from symgen.method.transfer import (
    LOW_ORDERS,
    generalization_power,
    lift,
    transfer,
)

# Prompts that a rule needs where it looks at interactions that not every prompt has.
FEWEST = 5


def llm_low_orders(
    target: Interactions, baselines: Interactions | Sequence[Interactions]
) -> Judgement:
    """Orders 1 and 2 hold more than half of the strength that transfers, and transfer better.

    Better means that their H above chance, less that of orders from 3 on, is above 0, prompt by
    prompt. Differences up to 0.02 count as none. Where interactions transfer on fewer than 5
    prompts, nothing is tested.
    """
    g, high = transfer(target, baselines), range(LOW_ORDERS[-1] + 1, target.n + 1)
    low = strength_of(target, LOW_ORDERS, g)
    part = low / (low + strength_of(target, high, g))
    samples = int((~part.isnan()).sum())
    if samples < FEWEST:
        return Judgement([], samples, f"interactions transfer on {samples} prompts, of 5 needed")
    ahead = lift(target, baselines, LOW_ORDERS) - lift(target, baselines, high)
    told = "share of the transferring strength in orders 1 and 2"
    contrasts = [
        share(told, part, 1, bound=0.5, margin=0.02),
        lead("H above chance, orders 1 and 2 less orders from 3 on", ahead, most=2.0),
    ]
    return Judgement(contrasts, samples)


def sft_low(before: Interactions, after: Interactions) -> Judgement:
    """The salient strength of orders 1 and 2 after tuning, less that before, is above 0.

    In log odds, prompt by prompt. Differences up to 0.05 count as none. Of fewer than 5 prompts
    nothing is tested.
    """
    if len(before) < FEWEST:
        return Judgement([], len(before), f"{len(before)} prompts were looked at; 5 are needed")
    change = strength_of(after, LOW_ORDERS) - strength_of(before, LOW_ORDERS)
    told = "change of the salient strength, orders 1 and 2"
    return Judgement([above(told, interval(change), margin=0.05, unit="log odds")], len(change))


def sft_high(before: Interactions, after: Interactions) -> Judgement:
    """The salient strength of orders from 6 on after tuning, less that before, is below 0.

    In log odds, prompt by prompt. Differences up to 0.05 count as none. Where fewer than 5 prompts
    have such interactions, before tuning or after, nothing is tested.
    """
    high = range(6, before.n + 1)
    strengths = torch.stack([strength_of(inter, high) for inter in (before, after)])
    often = int((strengths > 0).any(0).sum())
    note = f"{often} of {len(before)} prompts have salient interactions of orders from 6 on"
    if often < FEWEST:
        return Judgement([], len(before), f"{note}; 5 are needed")
    told = "change of the salient strength, orders from 6 on"
    change = interval(strengths[1] - strengths[0])
    return Judgement([below(told, change, margin=0.05, unit="log odds")], len(before), note)


def sft_share(dynamics: Dynamics) -> Judgement:
    """H above chance at the last checkpoint, less that before tuning, is above 0.

    Prompt by prompt, over those that have salient interactions at both. Differences up to 0.02
    count as none.
    """
    first, last = (lift(dynamics.interactions[k], dynamics.baselines) for k in (0, -1))
    rise = last - first
    samples = int((~rise.isnan()).sum())
    return Judgement([lead("change of H above chance", rise, most=2.0)], samples)


def sft_phase(dynamics: Dynamics) -> Judgement:
    """H at the last checkpoint, less H at the best earlier one, is above 0: H still rises.

    The best one, the untuned model among them, is picked on one half of the prompts and measured on
    the other, both ways round. Differences up to 0.02 count as none.
    """
    power = torch.stack([
        generalization_power(inter, transfer(inter, dynamics.baselines))
        for inter in dynamics.interactions
    ])  # fmt: skip
    ahead = torch.full_like(power[0], torch.nan)
    for half, other in halves(len(ahead)):
        means = power[:-1, other].nanmean(1).nan_to_num(-1)
        if len(means) and means.max() >= 0:
            ahead[half] = (power[-1] - power[means.argmax()])[half]
    told = "H at the last checkpoint less H at the best earlier one"
    return Judgement([lead(told, ahead)], int((~ahead.isnan()).sum()))
