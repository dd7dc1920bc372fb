"""Checks of the exercises in all other chapters."""

from typing import Any

import numpy as np

from symgen.book.checking import all_answers, check, without_nan


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
    check(all_answers(once, doubled), [3.5 / 6, 3.5 / 6], mistakes, tol=0.01)


def check_penalty_difference(difference: Any, table: Any) -> None:
    """Check the mean difference of H between two arms (chapter D)."""
    rows = table[table["quantity"] == "H"].pivot(index="seed", columns="arm", values="value")
    mistakes = {
        "this is the difference from the plain training.": (rows.penalty - rows.plain).mean(),
        "the sign is turned around.": (rows["random"] - rows.penalty).mean(),
    }
    check(difference, (rows.penalty - rows["random"]).mean(), mistakes, tol=1e-3)


def check_invented_share(large: Any, small: Any) -> None:
    """Check the invented share of strength for large and small outputs (chapter C)."""
    mistakes = {
        "divide by the whole strength: the true one plus the invented one.": [0.251, 25.1],
        "half a step per effect: 502 times s/2 is 251 s.": [502 / 1502, 502 / 512],
        "this is the true share; the invented one is asked for.": [1000 / 1251, 10 / 261],
        "the two answers are in the wrong order.": [251 / 261, 251 / 1251],
    }
    check(all_answers(large, small), [251 / 1251, 251 / 261], mistakes, tol=0.01)


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
    given = getattr(interactions, "bias", [interactions])[0]
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
    check(all_answers(any_of_two, all_of_two), [1, 1 / 3], mistakes, tol=5e-3)


def check_sets(sets: Any, target: Any, one: Any, other: Any) -> None:
    """Check the strength that both baselines accept, as a share of what either does (chapter B)."""
    import torch

    from symgen import transfer

    def per_sample(function: Any) -> Any:
        def answered(*case: Any) -> Any:
            result = function(*case)
            return result if result is None or result is ... else without_nan(result)

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
    check(all_answers(v_both, v_else, effect), [both, other, both - other], mistakes, tol=5e-3)


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
    check(all_answers(strengthened, turned, new), [2, 3, 0.5], mistakes)


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
