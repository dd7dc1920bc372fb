"""Rules about language models find what is planted, and little where there is nothing."""

import functools
import math
from collections import Counter

import pandas as pd
import pytest
import torch

import symgen
from symgen.interactions import Interactions
from symgen.method import claims, transfer
from symgen.method.statistics import halves

SETS, PROMPTS, TIMES = 200, 16, 10
LOW, HIGH = ({t for t in range(1, 32) if t.bit_count() in orders} for orders in ((1, 2), (3, 4, 5)))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Chance levels of fewer relabellings are right on average, too, and take less time."""
    few = functools.partial(transfer.chance_level, draws=2)
    monkeypatch.setattr(transfer, "chance_level", few)


def made(rows: list[dict[int, float]], n: int = 5) -> Interactions:
    """AND interactions of some prompts, each given as its members to their effect."""
    effects = torch.zeros(len(rows), 2**n, dtype=torch.float64)
    for row, known in zip(effects, rows, strict=True):
        row[list(known)] = torch.tensor(list(known.values()), dtype=torch.float64)
    zero = torch.zeros(len(rows), dtype=torch.float64)
    size = effects.abs().sum(-1)
    return Interactions(effects, torch.zeros_like(effects), zero, size, zero, effects.sum(-1))


def drawn(generator: torch.Generator, sets: set[int], count: int) -> list[int]:
    order = torch.randperm(len(sets), generator=generator)[:count]
    return [sorted(sets)[i] for i in order]


def uniform(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def pair(seed: int, low: float, high: float, prompts: int = PROMPTS) -> tuple[Interactions, ...]:
    """A model, and another that has each of its low and high orders with some probability."""
    generator, ours, theirs = torch.Generator().manual_seed(seed), [], []
    for _ in range(prompts):
        sets = dict.fromkeys(drawn(generator, LOW, 3), low)
        sets |= dict.fromkeys(drawn(generator, HIGH, 3), high)
        ours.append({t: 0.5 + float(uniform(generator, 1)) for t in sets})
        kept = [t for t, rate in sets.items() if uniform(generator, 1) < rate]
        theirs.append(dict.fromkeys(kept, 1.0) | {31 ^ t: -1.0 for t in sets if t not in kept})
    return made(ours), made(theirs)


def course(seed: int, rates: list[float], prompts: int = PROMPTS) -> symgen.Dynamics:
    """A model whose interactions the baseline has with a probability that changes by step."""
    generator = torch.Generator().manual_seed(seed)
    known = [set(drawn(generator, LOW | HIGH, 12)) for _ in range(prompts)]
    inters = []
    for rate in rates:
        rows = []
        for mine in known:
            count = int((uniform(generator, 6) < rate).sum())
            rest = (LOW | HIGH) - mine
            sets = drawn(generator, mine, count) + drawn(generator, rest, 6 - count)
            rows.append(dict.fromkeys(sets, 1.0))
        inters.append(made(rows))
    baseline = made([dict.fromkeys(mine, 1.0) for mine in known])
    records = pd.DataFrame({"step": range(len(rates)), "train_loss": 1.0, "test_loss": 1.0})
    return symgen.Dynamics(list(range(len(rates))), inters, [baseline], records)


def strengths(seed: int, members: int, change: float, n: int = 5) -> tuple[Interactions, ...]:
    """Models before and after, with one interaction whose strength changes on average."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp(0.5 * torch.randn(2, PROMPTS, generator=generator, dtype=torch.float64))
    size[1] *= change
    return tuple(made([{members: x, 0b111: 0.5} for x in row.tolist()], n) for row in size)


RULES = {
    "llm_low_orders": (claims.llm_low_orders, {
        "shown": lambda seed: pair(seed, 0.9, 0.2),
        "opposite": lambda seed: pair(seed, 0.2, 0.9),
        "nothing": lambda seed: pair(seed, 0.5, 0.5),
    }),
    "sft_low": (claims.sft_low, {
        "shown": lambda seed: strengths(seed, 0b11, 3.0),
        "opposite": lambda seed: strengths(seed, 0b11, 0.3),
        "nothing": lambda seed: strengths(seed, 0b11, 1.0),
    }),
    "sft_high": (claims.sft_high, {
        "shown": lambda seed: strengths(seed, 0b111111, 0.3, 6),
        "opposite": lambda seed: strengths(seed, 0b111111, 3.0, 6),
        "nothing": lambda seed: strengths(seed, 0b111111, 1.0, 6),
    }),
    "sft_share": (claims.sft_share, {
        "shown": lambda seed: (course(seed, [0.3, 0.4, 0.8]),),
        "opposite": lambda seed: (course(seed, [0.8, 0.9, 0.3]),),
        "nothing": lambda seed: (course(seed, [0.5, 0.8, 0.5]),),
    }),
    "sft_phase": (claims.sft_phase, {
        "shown": lambda seed: (course(seed, [0.1, 0.3, 0.5, 0.5, 0.9]),),
        "opposite": lambda seed: (course(seed, [0.2, 0.4, 0.9, 0.8, 0.5]),),
        "nothing": lambda seed: (course(seed, [0.2, 0.7, 0.3, 0.4, 0.7]),),
        "nothing at any step": lambda seed: (course(seed, [0.5, 0.5, 0.5, 0.5, 0.5]),),
    }),
}  # fmt: skip
CASES = [(name, case) for name, (_, cases) in RULES.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_rules_say_what_is_so(name, case):
    rule, cases = RULES[name]
    planted = case in claims.VERDICTS
    found = Counter(rule(*cases[case](seed)).verdict for seed in range(TIMES if planted else SETS))
    if planted:
        assert found[case] >= 0.9 * TIMES, found
    else:
        assert found["shown"] + found["opposite"] <= 0.05 * SETS, found


@pytest.mark.parametrize("name", RULES)
def test_one_prompt_tests_nothing(name):
    rule, cases = RULES[name]
    (case, *_), options = cases["shown"](0), cases["shown"](0)
    if isinstance(case, symgen.Dynamics):
        one = course(0, [0.1, 0.3, 0.9], prompts=1)
        assert rule(one).verdict == "not tested"
    else:
        assert rule(*(inter[:1] for inter in options)).verdict == "not tested"


@pytest.mark.parametrize("name", RULES)
def test_a_dead_model_shows_nothing(name):
    rule, cases = RULES[name]
    dead = made([{}] * PROMPTS)
    if isinstance(cases["shown"](0)[0], symgen.Dynamics):
        steps = symgen.Dynamics([0, 1], [dead, dead], [dead], pd.DataFrame({"step": [0, 1]}))
        found = rule(steps)
        assert math.isnan(found.contrasts[0].value.mean) and found.samples == 0
    else:
        found = rule(dead, dead)
    assert found.verdict == ("undecided" if name == "sft_low" else "not tested")


def test_prompts_on_which_nothing_transfers_say_nothing():
    target, baseline = pair(0, 0.9, 0.2)
    nothing = made([{}] * PROMPTS)
    five = torch.arange(PROMPTS) < 5
    some = made([
        {t: float(x) for t, x in enumerate(row) if x} for row in baseline.and_ * five[:, None]
    ])  # fmt: skip
    assert claims.llm_low_orders(target, nothing).verdict == "not tested"
    found = claims.llm_low_orders(target, some)
    assert found.samples == 5 and len(found.contrasts) == 2
    assert claims.llm_low_orders(target[:5], some[:5]).contrasts[0] == found.contrasts[0]
    few = claims.llm_low_orders(target[1:], some[1:])
    assert not few.contrasts and "4 prompts, of 5 needed" in few.note


def test_a_change_is_judged_of_five_prompts_or_more():
    before, after = strengths(0, 0b11, 3.0)
    assert claims.sft_low(before[:5], after[:5]).samples == 5
    few = claims.sft_low(before[:4], after[:4])
    assert few.verdict == "not tested" and few.note.startswith("4 prompts were looked at")


def test_too_few_high_orders_are_counted_and_not_judged():
    before, after = strengths(0, 0b111111, 0.1, 6)
    low = made([{0b11: 1.0}] * PROMPTS, 6)
    rows = torch.arange(PROMPTS) < 4
    mixed = [Interactions(*(
        torch.where(rows.reshape(-1, *[1] * (getattr(a, k).ndim - 1)), getattr(a, k), getattr(b, k))
        for k in ("and_", "or_", "bias", "objective", "gap", "full")
    )) for a, b in ((before, low), (after, low))]  # fmt: skip
    found = claims.sft_high(*mixed)
    assert found.verdict == "not tested"
    assert found.note.startswith("4 of 16 prompts have salient interactions")
    few = claims.sft_high(*strengths(0, 0b11, 0.1, 3))
    assert few.note.startswith("0 of 16")


def test_the_best_checkpoint_is_picked_on_prompts_that_do_not_measure_it():
    """Two checkpoints, each the best on one half of the prompts alone, are no better than none."""
    mine, foreign = {1: 1.0}, {2: 1.0}
    (first, second), _ = halves(8)
    rows = [[mine if has else foreign for has in part] for part in (first & second, first, second)]
    inters = [made(rows[k]) for k in (0, 1, 2, 0)]
    dynamics = symgen.Dynamics([0, 1, 2, 3], inters, [made([mine] * 8)], pd.DataFrame())
    assert claims.sft_phase(dynamics).contrasts[0].value.mean == 0
    # Where it is the best on both halves, the fall after it counts in full.
    inters[1] = made([mine] * 8)
    assert claims.sft_phase(dynamics).contrasts[0].value.mean == -1


def test_a_training_with_one_checkpoint_has_no_earlier_one():
    one = course(0, [0.5])
    assert claims.sft_phase(one).verdict == "not tested"
    assert claims.sft_share(one).contrasts[0].value.mean == 0
