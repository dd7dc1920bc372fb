"""Checks of exercises: they print if an answer is right, or what is wrong, and never raise."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

EMPTY = "Not yet: replace the dots in the cell above by your answer."


def check(
    answer: Any,
    expected: Any,
    mistakes: Mapping[str, Any] | None = None,
    tol: float = 1e-6,
    cases: Sequence[tuple] | None = None,
) -> None:
    """Print "Correct.", or what is wrong with an answer.

    Args:
        answer: a number, text, truth value, array or tensor; with `cases`, a function.
        expected: the right answer, of the same kind.
        mistakes: sentence to the answer that this mistake leads to.
        tol: largest difference, relative to the largest expected number.
        cases: arguments on which functions are compared.

    Example:
        >>> check(3, 3)
        Correct.
        >>> check(-3, 3, {"The sign is wrong.": -3})
        Not yet: The sign is wrong.
        >>> check(lambda x: 2 * x, lambda x: x**2, cases=[(2,), (3,)])
        Not yet: for 3 the result is 6, and another one is expected.
    """
    try:
        print(_judged(answer, expected, mistakes or {}, tol, cases))
    except Exception as error:  # of the student's own code
        print(f"Not yet: your code stops with {type(error).__name__}: {error}")


def _judged(
    answer: Any, expected: Any, mistakes: Mapping[str, Any], tol: float, cases: Sequence | None
) -> str:
    if answer is None or answer is ...:
        return EMPTY
    if cases is None:
        apply, cases = (lambda value, case: value), [()]
    elif not callable(answer):
        return f"Not yet: a function is expected; this is {_short(answer)}."
    else:
        apply = _call
    given = [apply(answer, case) for case in cases]
    if any(one is None or one is ... for one in given):
        return EMPTY
    right = [apply(expected, case) for case in cases]
    if wrong := _shapes(given[0], right[0]):
        return f"Not yet: {wrong}"
    equal = [_equal(a, b, tol) for a, b in zip(given, right, strict=True)]
    if all(equal):
        return "Correct."
    for sentence, value in mistakes.items():
        mistaken = [apply(value, case) for case in cases]
        if all(_equal(a, b, tol) for a, b in zip(given, mistaken, strict=True)):
            return f"Not yet: {sentence}"
    first = equal.index(False)
    place = f"for {', '.join(map(_short, cases[first]))} " if cases[first] else ""
    return f"Not yet: {place}{_difference(given[first], right[first], tol)}"


def _call(function: Callable, case: Sequence) -> Any:
    return function(*case)


def _numbers(value: Any) -> np.ndarray:
    value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    return np.asarray(value)


def _shapes(answer: Any, expected: Any) -> str:
    a, b = _numbers(answer), _numbers(expected)
    if (a.dtype.kind in "US") != (b.dtype.kind in "US") or a.dtype.kind == "O":
        kind = "a text" if b.dtype.kind in "US" else "a number or an array"
        return f"{kind} is expected; this is {_short(answer)}."
    if a.shape != b.shape:
        return f"the shape is {a.shape}; expected {b.shape}."
    return ""


def _equal(answer: Any, expected: Any, tol: float) -> bool:
    if _shapes(answer, expected):
        return False
    a, b = _numbers(answer), _numbers(expected)
    if b.dtype.kind in "US":
        return [x.strip().lower() for x in a.flat] == [x.strip().lower() for x in b.flat]
    scale = max(np.abs(b, dtype=float).max(initial=0.0), 1e-300)
    return bool((np.abs(np.subtract(a, b, dtype=float)) <= tol * scale).all())


def _difference(answer: Any, expected: Any, tol: float) -> str:
    a, b = _numbers(answer), _numbers(expected)
    if a.ndim == 0 or b.dtype.kind in "US":
        return f"the result is {_short(answer)}, and another one is expected."
    scale = np.abs(b, dtype=float).max(initial=0.0)
    wrong = np.argwhere(~(np.abs(np.subtract(a, b, dtype=float)) <= tol * scale))
    place = tuple(int(i) for i in wrong[0])
    at = place[0] if len(place) == 1 else place
    return f"{len(wrong)} of {a.size} values differ; the first is number {at}, {_short(a[place])}."


def _short(value: Any) -> str:
    value = value.item() if getattr(value, "size", None) == 1 else value
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _all(*answers: Any) -> Any:
    """Return the answers as a list, or dots if one is still missing."""
    return ... if any(one is None or one is ... for one in answers) else [*answers]


def check_two_models(strength_and: Any, strength_or: Any) -> None:
    """Check the strengths of "0 or 1" with AND alone and with one OR (chapter 00)."""
    mistakes = {
        "with AND only, the pair has an effect as well: 1 - 1 - 1 + 0.": [2, 1],
        "the effect of the pair is -1; strengths add up absolute values.": [1, 1],
        "the two answers are in the wrong order.": [1, 3],
    }
    check(_all(strength_and, strength_or), [3, 1], mistakes)


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
    check(_all(before, after), [first, last], mistakes, tol=5e-3)


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
    check(_all(v_09, v_01, v_05), np.log(p / (1 - p)), mistakes, tol=5e-3)


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


def check_never_falls(share: Any, u: Any) -> None:
    """Check the share of samples whose mean gain never falls (chapter A)."""

    def right(x: Any) -> Any:
        return (x.diff() >= 0).all(-1).double().mean()

    mistakes = {
        "this is the share of steps; a sample counts only if all its steps rise.": lambda x: (
            (x.diff() >= 0).double().mean()
        ),
        "this compares only the first and the last value.": lambda x: (
            (x[:, -1] >= x[:, 0]).double().mean()
        ),
        "this is the share of samples that do fall.": lambda x: 1 - right(x),
        "this is a number of samples; a share is expected.": lambda x: right(x) * len(x),
    }
    flat = u[:1] * 0
    check(share, right, mistakes, cases=[(u,), (flat,), (u.sort(-1).values,)])


def check_exponent(exponent: Any) -> None:
    """Check the smallest exponent p of a mean gain of 1, 3, 6 (chapter A)."""
    slope = np.log(2) / np.log(1.5)
    mistakes = {
        "the pair (2, 3) is steeper.": np.log(3) / np.log(2),
        "that is the overall slope; take the steepest pair.": np.log(6) / np.log(3),
        "divide by log m - log m', not by m - m'.": np.log(3),
    }
    check(exponent, slope, mistakes, tol=2e-3)


def check_penalty_by_hand(once: Any, doubled: Any) -> None:
    """Check the penalty of one sample (chapter D)."""
    mistakes = {
        "that is the share that transfers.": [2.5 / 6, 2.5 / 6],
        "divide by the salient strength, so that doubling changes nothing.": [3.5, 7],
        "the first is right; numerator and denominator both double.": [3.5 / 6, 7 / 6],
    }
    check(_all(once, doubled), [3.5 / 6, 3.5 / 6], mistakes, tol=0.01)


def check_penalty_difference(difference: Any, table: Any) -> None:
    """Check the mean difference of H between two arms (chapter D)."""
    rows = table[table["quantity"] == "H"].pivot(index="seed", columns="arm", values="value")
    mistakes = {
        "this is the difference from the plain training.": (rows.penalty - rows.plain).mean(),
        "the sign is turned around.": (rows["random"] - rows.penalty).mean(),
    }
    check(difference, (rows.penalty - rows["random"]).mean(), mistakes, tol=1e-3)


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
    check(_all(H_all, H_low), [3 / 5, 3 / 4], mistakes, tol=5e-3)


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
        return _without_nan(generalization_power(one, transfer(one, by)))

    def answered(*case: Any) -> Any:
        power = turned(*case)
        return power if power is None or power is ... else _without_nan(power)

    mistakes = {
        "this is H of the target; swap the two networks.": judged,
        "`transfer` still asks about the target's interactions.": lambda a, b: _without_nan(
            generalization_power(b, transfer(a, b))
        ),
    }
    check(answered, lambda a, b: judged(b, a), mistakes, cases=[(target, baseline)])


def _without_nan(values: Any) -> Any:
    """Return numbers with 0 for NaN, which stands for samples without a total effect."""
    return np.nan_to_num(_numbers(values))


def check_invented_share(large: Any, small: Any) -> None:
    """Check the invented share of strength for large and small outputs (chapter C)."""
    mistakes = {
        "divide by the whole strength: the true one plus the invented one.": [0.251, 25.1],
        "half a step per effect: 502 times s/2 is 251 s.": [502 / 1502, 502 / 512],
        "this is the true share; the invented one is asked for.": [1000 / 1251, 10 / 261],
        "the two answers are in the wrong order.": [251 / 261, 251 / 1251],
    }
    check(_all(large, small), [251 / 1251, 251 / 261], mistakes, tol=0.01)


def check_donors(v: Any, model: Any, samples: Any, variables: Any, donors: Any) -> None:
    """Check outputs averaged over donor images as mask values (chapter C)."""
    from symgen import masked_outputs, mean_feature

    if v is ...:
        return check(v, 0)

    def masked(images: Any) -> Any:
        value = mean_feature(model, images)
        return masked_outputs(model, samples.x, samples.y, variables, value)

    each = [masked(one[None]) for one in donors]
    mistakes = {
        "this is the mean feature of all donors; average outputs, not features.": masked(donors),
        "this is the first donor alone.": each[0],
        "this is the last donor alone; collect all five.": each[-1],
        "this is the sum over donors; take the mean.": sum(each),
    }
    check(v, sum(each) / len(each), mistakes, tol=1e-4)


def check_typical_row(interactions: Any, model: Any, inputs: Any, rows: Any, labels: Any) -> None:
    """Check interactions that are masked by the mean row of the other class (chapter F)."""
    own = labels == labels[0]
    means = {name: rows[kept].mean(0) for name, kept in (("other", ~own), ("own", own))}
    means["all"] = rows.mean(0)

    def bias(row: Any) -> float:
        logits = np.asarray(model(row[None]))[0]
        return float(logits[int(inputs.y[0])] - logits[1 - int(inputs.y[0])])

    mistakes = {
        "this is still the mean of all rows.": bias(means["all"]),
        "this is the mean of the first row's own class.": bias(means["own"]),
    }
    given = interactions if interactions is ... else getattr(interactions, "bias", [np.nan])[0]
    check(given, bias(means["other"]), mistakes)


def check_pieces(pieces: Any, n: int, length: int = 120, last: int = 40) -> None:
    """Check variables of a series whose last part is one variable (chapter F)."""
    first = length - last
    right = np.append(np.arange(first) * (n - 1) // first, np.full(last, n - 1))
    mistakes = {
        f"the last {last} times are one variable; here all pieces are equal.": [
            np.arange(length) * n // length
        ],
        "the last variable must have the number n - 1: count from 0.": [
            np.append(np.arange(first) * n // first, np.full(last, n))
        ],
        "the times before the last part make n - 1 pieces, not n.": [
            np.append(np.arange(first) * n // first, np.full(last, n - 1))
        ],
    }
    check(pieces, right[None], mistakes)


def check_unexplained(shares: Any, model: Any) -> None:
    """Check the unexplained share of variance on held-out states (chapter F)."""
    miss = model.v - model.predict(model.held_out)
    variance = model.v.var(1, correction=0)
    mistakes = {
        "square the errors, and average over states.": miss.abs().mean(1) / variance,
        "use var(1, correction=0), as the mean of squares divides by the count.": (
            (miss**2).mean(1) / model.v.var(1)
        ),
        "this is the explained share; subtract it from 1.": 1 - (miss**2).mean(1) / variance,
        "divide by the variance of v.": (miss**2).mean(1),
    }
    check(shares, (miss**2).mean(1) / variance, mistakes)


def check_choices(any_of_two: Any, all_of_two: Any) -> None:
    """Check shares of choices of two of three baselines (chapter B)."""
    mistakes = {
        "the two answers are in the wrong order.": [1 / 3, 1],
        "this is for one chosen baseline; two are chosen.": [2 / 3, 2 / 3],
        "two of three is the share of baselines; count the pairs of baselines.": [1, 2 / 3],
        "the two baselines of a choice are different ones: draw without putting back.": [
            8 / 9,
            4 / 9,
        ],
    }
    check(_all(any_of_two, all_of_two), [1, 1 / 3], mistakes, tol=5e-3)


def check_sets(sets: Any, target: Any, one: Any, other: Any) -> None:
    """Check the strength that both baselines accept, as a share of what either does (chapter B)."""
    import torch

    from symgen import transfer

    def per_sample(function: Any) -> Any:
        def answered(*case: Any) -> Any:
            result = function(*case)
            return result if result is None or result is ... else _without_nan(result)

        return answered

    def right(size: Any, b: Any, c: Any) -> Any:
        return (size * (b & c)).sum((-2, -1)) / (size * (b | c)).sum((-2, -1))

    mistakes = {
        "this counts interactions; add up their strengths.": lambda size, b, c: right(
            size * 0 + 1, b, c
        ),
        "divide by the strength that B or C accepts, not by that of B.": lambda size, b, c: (
            (size * (b & c)).sum((-2, -1)) / (size * b).sum((-2, -1))
        ),
        "divide by the strength that B or C accepts, not by all strength.": lambda size, b, c: (
            (size * (b & c)).sum((-2, -1)) / size.sum((-2, -1))
        ),
        "divide by the strength that either accepts; a sum of both counts the shared part "
        "twice.": lambda size, b, c: (
            (size * (b & c)).sum((-2, -1)) / (size * b + size * c).sum((-2, -1))
        ),
    }
    size = target.effects.abs() * torch.stack(target.salient(), -2)
    accepted = [torch.stack(transfer(target, x), -2) > 0 for x in (one, other)]
    mistakes = {sentence: per_sample(function) for sentence, function in mistakes.items()}
    check(per_sample(sets), per_sample(right), mistakes, cases=[(size, *accepted)])


def check_rope(v_both: Any, v_else: Any, effect: Any) -> None:
    """Check log odds and the AND effect of two words (chapter 05)."""
    both, other = float(np.log(0.9 / 0.1)), float(np.log(0.25 / 0.75))
    mistakes = {
        "these are log probabilities; v is the logarithm of p / (1 - p).": [
            *np.log([0.9, 0.25]),
            np.log(0.9 / 0.25),
        ],
        "probabilities do not add up; the effect is a difference of log odds.": [both, other, 0.65],
        "the effect is added to the constant, so subtract the constant: both - else.": [
            both,
            other,
            both + other,
        ],
        "both outputs are right, but the effect has the wrong sign.": [both, other, other - both],
    }
    check(_all(v_both, v_else, effect), [both, other, both - other], mistakes, tol=5e-3)


def check_gain(function: Any, inter: Any) -> None:
    """Check the probability that the strongest effect adds (chapter 05)."""

    def right(one: Any, turn: int = 1, odds: bool = False, size: bool = True) -> Any:
        effects = one.effects.flatten()
        strongest = effects[(effects.abs() if size else effects).argmax()]
        if odds:
            return strongest
        return turn * (one.full.sigmoid() - (one.full - strongest).sigmoid())

    mistakes = {
        "this is the effect in log odds; turn both outputs into probabilities.": lambda one: right(
            one, odds=True
        ),
        "subtract the probability without the effect from that with it.": lambda one: right(
            one, turn=-1
        ),
        "the strongest effect may be negative.": lambda one: right(one, size=False),
    }
    # With all signs turned around the strongest effect is another one, or negative.
    signs = (-inter.and_, -inter.or_, -inter.bias, inter.objective, inter.gap, -inter.full)
    check(function, right, mistakes, tol=1e-4, cases=[(inter,), (type(inter)(*signs),)])


def check_two_tokens(function: Any) -> None:
    """Check v of a continuation of two tokens (chapter 05)."""

    def product(first: float, second: float) -> float:
        return float(1 / (1 + np.exp(-first)) / (1 + np.exp(-second)))

    mistakes = {
        "log odds do not add up; log probabilities do.": lambda a, b: a + b,
        "this is the probability; turn it back into log odds.": product,
        "this is the log probability; v is log p - log(1 - p).": lambda a, b: np.log(product(a, b)),
    }
    cases = [(2.0, 1.0), (0.0, -1.0), (3.0, 3.0)]
    check(
        function,
        lambda a, b: np.log(product(a, b) / (1 - product(a, b))),
        mistakes,
        tol=1e-4,
        cases=cases,
    )


def check_tuning(strengthened: Any, turned: Any, new: Any) -> None:
    """Check by how much three kinds of change move the output (chapter 06)."""
    mistakes = {
        "these are effects after tuning; take away the effects before.": [3, 1, 0.5],
        "an effect that turns from -2 to 1 adds 3.": [2, -1, 0.5],
        "the second answer adds: from -2 to 1 is +3.": [2, -3, 0.5],
    }
    check(_all(strengthened, turned, new), [2, 3, 0.5], mistakes)


def check_lost(function: Any, start: Any, end: Any) -> None:
    """Check the share of the strength before tuning that is lost (chapter 06)."""

    def right(one: Any, two: Any, strength: bool = True, lost: bool = True) -> Any:
        was, now = (np.stack([x.numpy() for x in inter.salient()], -2) for inter in (one, two))
        size = one.effects.abs().numpy() if strength else np.ones(was.shape)
        return (size * was * (~now if lost else now)).sum() / (size * was).sum()

    mistakes = {
        "this is the share of the number of interactions, not of their strength.": lambda *x: right(
            *x, strength=False
        ),
        "this is the share that is kept.": lambda *x: right(*x, lost=False),
        "this is the share of new interactions: start comes first.": lambda a, b: right(b, a),
    }
    check(function, right, mistakes, tol=1e-4, cases=[(start, end), (end, start)])


def check_stage(function: Any) -> None:
    """Check the share of the steps until unshared strength is lowest (chapter 06)."""

    def right(steps: Any, unshared: Any, last: int = -1) -> float:
        return steps[int(np.argmin(unshared))] / steps[last]

    mistakes = {
        "divide steps, not the numbers of checkpoints.": lambda s, u: (
            int(np.argmin(u)) / (len(s) - 1)
        ),
        "this is the step; divide it by the last step.": lambda s, u: s[int(np.argmin(u))],
        "this is where unshared strength is highest.": lambda s, u: s[int(np.argmax(u))] / s[-1],
    }
    cases = [([0, 10, 50, 100], [4.0, 2.0, 3.0, 5.0]), ([0, 5, 20, 40], [3.0, 2.5, 1.0, 2.0])]
    check(function, right, mistakes, cases=cases)
