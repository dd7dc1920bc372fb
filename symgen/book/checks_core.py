"""Checks of the exercises in chapters 00 to 04."""

import math
from typing import Any

import numpy as np

from symgen.book.checking import all_answers, check, without_nan


def check_two_models(strength_and: Any, strength_or: Any) -> None:
    """Check the strengths of "0 or 1" with AND alone and with one OR (chapter 00)."""
    mistakes = {
        "with AND only, the pair has an effect as well: 1 - 1 - 1 + 0.": [2, 1],
        "the effect of the pair is -1; strengths add up absolute values.": [1, 1],
        "the two answers are in the wrong order.": [1, 3],
    }
    check(all_answers(strength_and, strength_or), [3, 1], mistakes)


def check_or_signs(sign: Any) -> None:
    """Check the sign of AND effects of order k that express an OR (chapter 00)."""
    mistakes = {
        "an AND of one variable has the sign +1: all signs are turned around.": lambda k: (-1) ** k,
        "the sign depends on the order: pairs take away what the single variables "
        "count twice.": lambda k: 1,
        "in Python -1 ** 2 is -1; put the base in parentheses: (-1).": lambda k: -1,
    }
    check(sign, lambda k: (-1) ** (k + 1), mistakes, cases=[(k,) for k in range(1, 7)])


def check_noise_program(strength: Any, v: Any, noise: float) -> None:
    """Check the strength of the sparsest model within a noise bound (chapter 00)."""
    from symgen import sparsify

    if strength is ...:
        return check(strength, 0)
    mistakes = {
        "this model still matches exactly; use eps in both inequalities.": sparsify(v, noise=0.0),
        "eps is a share of |v(N) - v(none)|: multiply kappa by it.": sparsify(
            v, noise=noise / float(abs(v[-1] - v[0]))
        ),
    }
    mistakes = {sentence: model.objective for sentence, model in mistakes.items()}
    check(strength, sparsify(v, noise=noise).objective, mistakes, tol=5e-3)


def check_H_curve(power: Any, t1: Any) -> None:
    """Check H at five checkpoints and the end of phase 1 (chapter 03)."""
    kept, rest = np.array([1, 2, 6, 9, 10]), np.array([4, 2, 4, 7, 15])
    right = [*kept / (kept + rest)]
    mistakes = {
        "divide by the sum of both strengths, not by the other one.": [*kept / rest, 3],
        "this is the non-generalizable share.": [*1 - np.array(right), 3],
        "H is right, but phase 1 ends where H is largest; count from 1.": [*right, 2],
        "H is right, but the strength is largest there, not H.": [*right, 5],
    }
    parts = ... if power is ... or t1 is ... else [*power, t1]
    check(parts, [*right, 3], mistakes, tol=1e-3)


def check_count(count: Any, effects: Any) -> None:
    """Check a function that counts the effects that hold 80 % of the strength (chapter 03)."""

    def right(x: Any, sums: int = 0) -> int:
        strength = x.abs().sort(descending=True).values
        return int((strength.cumsum(0) < 0.8 * strength.sum()).sum()) + int(strength.sum() > 0)

    mistakes = {
        "this is one too few: count the interaction that reaches 80 % too.": lambda x: (
            right(x) - int(x.abs().sum() > 0)
        ),
        "a vector of zeros counts 0.": lambda x: max(right(x), 1),
        "this counts all effects that are not zero.": lambda x: int((x != 0).sum()),
        "effects have signs; add up their absolute values.": lambda x: int(
            (x.sort(descending=True).values.cumsum(0) < 0.8 * x.sum()).sum()
        ) + 1,
    }  # fmt: skip
    check(count, right, mistakes, cases=[(effects,), (effects * 0,), (-effects,)])


def check_second_boundary(second: Any) -> None:
    """Check a function that finds the index of t2 (chapter 03)."""

    def right(kept: Any, rest: Any, t1: int, after: int = 1, growing: bool = True) -> int | None:
        for i in range(t1 + after, len(kept)):
            more, other = kept[i] - kept[i - 1], rest[i] - rest[i - 1]
            if more < other and (other > 0 or not growing):
                return i
        return -1

    def answered(*case: Any) -> Any:
        index = second(*case)
        # None is a valid answer here; dots mean that nothing was entered.
        return -1 if index is None else index

    cases = [
        ([1, 3, 5, 5], [4, 2, 3, 6], 1),
        ([1, 4, 3, 2, 5], [4, 2, 1, 0, 9], 1),
        ([0, 1, 5, 9], [9, 8, 7, 6], 1),
    ]
    mistakes = {
        "start after t1, not at it.": lambda *case: right(*case, after=0),
        "non-generalizable strength must have grown, too.": lambda *case: right(
            *case, growing=False
        ),
        "no boundary is found in any of the examples.": lambda *case: -1,
    }  # fmt: skip
    check(answered, right, mistakes, cases=cases)


def check_removal_by_hand(before: Any, after: Any) -> None:
    """Check the loss of one sample before and after removal (chapter 04)."""
    first, last, wrong = (float(np.log1p(np.exp(-v))) for v in (4, 2, 3))
    mistakes = {
        "the two answers are in the wrong order.": [last, first],
        "after the removal v is 2: only the non-generalizable part goes.": [first, wrong],
        "the loss is -log of the probability; these are the probabilities.": [
            float(np.exp(-first)),
            float(np.exp(-last)),
        ],
    }
    check(all_answers(before, after), [first, last], mistakes, tol=5e-3)


def check_high_orders(function: Any, inter: Any) -> None:
    """Check outputs without the salient interactions of order 3 and up (chapter 04)."""

    def right(one: Any, least: int = 3, salient: bool = True) -> Any:
        keep = one.salient() if salient else (1, 1)
        lost = (one.and_ * keep[0] + one.or_ * keep[1]) * (one.order >= least)
        return one.full - lost.sum(-1)

    mistakes = {
        "order 3 must go, too.": lambda one: right(one, least=4),
        "order 2 must stay.": lambda one: right(one, least=2),
        "only salient interactions must go.": lambda one: right(one, salient=False),
        "these are the outputs before the removal.": lambda one: one.full,
    }
    check(function, right, mistakes, cases=[(inter,)])


def check_baseline_study(other: Any, study: Any) -> None:
    """Check a study whose baseline is trained on the test samples (chapter 04)."""
    parts = ... if other is ... else [other.split, str(other.baselines)]
    mistakes = {
        "this baseline is trained on the other half of the training set.": ["halves", "1"],
        "take one baseline: the test samples are one part.": ["test", str(study.baselines)],
    }
    check(parts, ["test", "1"], mistakes)


def check_log_odds(v_09: Any, v_01: Any, v_05: Any) -> None:
    """Check v for the probabilities 0.9, 0.1 and 0.5 (chapter 01)."""
    p = np.array([0.9, 0.1, 0.5])
    mistakes = {
        "use the natural logarithm, not the one to base 10.": np.log10(p / (1 - p)),
        "this is log p; v is the logarithm of the odds p / (1 - p).": np.log(p),
        "these are the odds; v is their logarithm.": p / (1 - p),
        "the signs are turned around: v is positive if p exceeds 1/2.": np.log((1 - p) / p),
    }
    check(all_answers(v_09, v_01, v_05), np.log(p / (1 - p)), mistakes, tol=5e-3)


def check_full_output(d_full: Any, inter: Any) -> None:
    """Check d(N), computed from the constant and all effects (chapter 01)."""
    ands, ors = inter.and_.sum(), inter.or_.sum()
    mistakes = {
        "you left out the constant.": ands + ors,
        "the full image triggers every OR as well.": inter.bias + ands,
        "the full image triggers every AND as well.": inter.bias + ors,
        "this is d of the fully masked image; add the effects.": inter.bias,
        "effects have signs; do not take absolute values.": inter.bias + inter.objective,
        "this is v(N) of the network; d(N) may differ from it by the noise.": inter.full,
    }
    check(d_full, inter.predict()[-1], mistakes)


def check_banzhaf(values: Any, inter: Any) -> None:
    """Check the Banzhaf values of all variables (chapter 01)."""
    states = np.arange(2**inter.n)
    members = (states[:, None] >> np.arange(inter.n) & 1).astype(float)
    order = members.sum(1)
    half = 0.5 ** np.maximum(order - 1, 0)
    ands, ors = inter.and_.cpu().numpy(), inter.or_.cpu().numpy()
    mistakes = {
        "these are Shapley values: they weight orders of arrival, not states.": (
            (ands + ors) / np.maximum(order, 1) @ members
        ),
        "ORs count as well.": ands * half @ members,
        "the other members are m - 1 variables, not m.": (ands + ors) * half / 2 @ members,
        "an OR is triggered first if the other members are absent: its sign stays the same.": (
            ands - ors
        )
        * half
        @ members,
    }
    check(values, (ands + ors) * half @ members, mistakes)


def check_power_by_hand(H_all: Any, H_low: Any) -> None:
    """Check H and H_low of one sample with three salient interactions (chapter 02)."""
    mistakes = {
        "an interaction with the other sign does not transfer.": [4 / 5, 1],
        "the OR is not salient in the baseline: 0.01 is below tau.": [4 / 5, 3 / 4],
        "this counts interactions; H divides their strengths.": [1 / 3, 1 / 2],
        "add up strengths, without signs.": [3 / 3, 3 / 2],
        "the strengths are those of the target, not of the baseline.": [2 / 3.01, 2 / 3],
        "H_low divides by the strength of orders 1 and 2 only.": [3 / 5, 3 / 5],
        "the two answers are in the wrong order.": [3 / 4, 3 / 5],
    }
    check(all_answers(H_all, H_low), [3 / 5, 3 / 4], mistakes, tol=5e-3)


def check_probability(probability: Any) -> None:
    """Check the probability that an unrelated interaction transfers by chance (chapter 02)."""
    mistakes = {
        "the order matters: count the sets of m variables, not the variables.": (
            lambda n, m, count: count / n
        ),
        "only sets of m variables count, not all 2^n sets.": lambda n, m, count: count / 2**n,
        "this counts sequences; the order of the variables in a set does not matter.": (
            lambda n, m, count: count / math.perm(n, m)
        ),
        "any of the baseline's interactions may match, not only one.": (
            lambda n, m, count: 1 / math.comb(n, m)
        ),
        "this is the number of sets; divide.": lambda n, m, count: math.comb(n, m),
    }
    cases = [(10, 1, 10), (10, 4, 10), (7, 3, 5)]
    check(probability, lambda n, m, count: count / math.comb(n, m), mistakes, cases=cases)


def check_turned(turned: Any, target: Any, baseline: Any) -> None:
    """Check H of the baseline, judged by the target (chapter 02)."""
    from symgen import generalization_power, transfer

    def judged(one: Any, by: Any) -> Any:
        return without_nan(generalization_power(one, transfer(one, by)))

    def answered(*case: Any) -> Any:
        power = turned(*case)
        return power if power is None or power is ... else without_nan(power)

    mistakes = {
        "this is H of the target; swap the two networks.": judged,
        "`transfer` still asks about the target's interactions.": lambda a, b: without_nan(
            generalization_power(b, transfer(a, b))
        ),
    }
    check(answered, lambda a, b: judged(b, a), mistakes, cases=[(target, baseline)])
