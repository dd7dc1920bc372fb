"""One check per exercise of the chapters. Each names the mistake that a wrong answer comes from."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from symgen import generalization_power, masked_outputs, mean_feature, sparsify, transfer
from symgen.book.checking import EMPTY as EMPTY, check as check
from symgen.split.few import columns, least_cost


def check_two_models(strength_and: Any, strength_or: Any) -> None:
    """Check the strengths of "0 or 1" with AND alone and with one OR (chapter 00)."""
    check({"strength_and": strength_and, "strength_or": strength_or}, [3, 1], {
        "with AND only, the pair has an effect as well: 1 - 1 - 1 + 0.": [2, 1],
        "the effect of the pair is -1; strengths add up absolute values.": [1, 1],
    })  # fmt: skip


def check_or_signs(sign: Any) -> None:
    """Check the sign of AND effects of order k that express an OR (chapter 00)."""
    check(sign, lambda k: (-1) ** (k + 1), {
        "pairs subtract the part that single variables count twice.": lambda k: 1,
        "in Python -1 ** 2 is -1; put the base in parentheses: (-1).": lambda k: -1,
    }, cases=[(k,) for k in range(1, 7)])  # fmt: skip


def check_noise_program(strength: Any, v: Any, noise: float, clean: Any) -> None:
    """Check the strength of the sparsest model within a noise bound (chapter 00)."""
    if strength is ...:  # the programs below take seconds
        return check(strength, 0)
    span, n = float(abs(v[-1] - v[0])), v.shape[-1].bit_length() - 1
    exact, absolute = sparsify(v, noise=0.0), sparsify(v, noise=noise / span)
    kind, sets = np.divmod(np.arange(2 ** (n + 1)), 2**n)
    matrix, w = columns(np.arange(1, 2**n), sets, kind == 1), (v[1:] - v[0]).numpy()

    def program(w: Any, below: float, above: float) -> float:
        cost = np.where(sets > 0, 1.0, 1e3)
        return float(abs(least_cost(matrix, w - below, w + above, cost)[0]).sum())

    eps, free, before = noise * span, np.inf, (clean[1:] - clean[0]).numpy()
    check(strength, sparsify(v, noise=noise).objective, {
        "this model still matches exactly; use eps in both inequalities.": exact.objective,
        "eps is a share of |v(N) - v(none)|: multiply kappa by it.": absolute.objective,
        "this is the lower inequality alone; d may not be above v + eps, either.":
            program(w, eps, free),
        "this is the upper inequality alone; d may not be below v - eps, either.":
            program(w, free, eps),
        "subtract v(none): w = v(S) - v(none).": program(v[1:].numpy(), eps, eps),
        "w is still that of `v`; compute it from `disturbed`.": program(before, eps, eps),
        "w and eps are still those of `v`; compute both from `disturbed`.":
            program(before, *[noise * float(abs(clean[-1] - clean[0]))] * 2),
    }, tol=5e-3)  # fmt: skip


def check_log_odds(v_09: Any, v_01: Any, v_05: Any) -> None:
    """Check v for the probabilities 0.9, 0.1 and 0.5 (chapter 01)."""
    p = np.array([0.9, 0.1, 0.5])
    check({"v_09": v_09, "v_01": v_01, "v_05": v_05}, np.log(p / (1 - p)), {
        "use the natural logarithm, not the one to base 10.": np.log10(p / (1 - p)),
        "this is log p; v is the logarithm of the odds p / (1 - p).": np.log(p),
        "these are the odds; v is their logarithm.": p / (1 - p),
    }, tol=5e-3)  # fmt: skip


def check_full_output(d_full: Any, inter: Any) -> None:
    """Check d(N), computed from the constant and all effects (chapter 01)."""
    ands, ors = inter.and_.sum(), inter.or_.sum()
    check(d_full, inter.predict()[-1], {
        "you left out the constant.": ands + ors,
        "the full image triggers every OR as well.": inter.bias + ands,
        "the full image triggers every AND as well.": inter.bias + ors,
        "effects have signs; do not take absolute values.": inter.bias + inter.objective,
        "this is v(N) of the network; d(N) may differ from it by the noise.": inter.full,
        "the full image triggers all sets, not only the set of all variables.":
            inter.bias + inter.and_[-1] + inter.or_[-1],
    })  # fmt: skip


def check_banzhaf(values: Any, inter: Any) -> None:
    """Check the Banzhaf values of all variables (chapter 01)."""
    ands, ors, order = (x.cpu().numpy() for x in (inter.and_, inter.or_, inter.order))
    members = np.arange(2**inter.n)[:, None] >> np.arange(inter.n) & 1
    half, both = 0.5 ** (order - 1.0), ands + ors
    check(values, both * half @ members, {
        "these are Shapley values: they weight orders of arrival, not states.":
            both / np.maximum(order, 1) @ members,
        "ORs count as well, with the same sign.": ands * half @ members,
        "ORs are added, not subtracted.": (ands - ors) * half @ members,
        "a power of whole numbers is rounded to 0 here; write 2.0 ** (1 - order).":
            both * np.trunc(half) @ members,
        "the other members are m - 1 variables, not m.": both * half / 2 @ members,
    })  # fmt: skip


def check_power_by_hand(H_all: Any, H_low: Any) -> None:
    """Check H and H_low of one sample with three salient interactions (chapter 02)."""
    check({"H_all": H_all, "H_low": H_low}, [3 / 5, 3 / 4], {
        "an interaction with the other sign does not transfer.": [4 / 5, 1],
        "the OR is not salient in the baseline: 0.01 is below tau.": [4 / 5, 3 / 4],
        "this counts interactions; H divides their strengths.": [1 / 3, 1 / 2],
        "H_low divides by the strength of orders 1 and 2 only.": [3 / 5, 3 / 5],
    }, tol=5e-3)  # fmt: skip


def check_probability(probability: Any) -> None:
    """Check the probability that an unrelated interaction transfers by chance (chapter 02)."""
    check(probability, lambda n, m, count: count / math.comb(n, m), {
        "count the sets of m variables, not the variables.": lambda n, m, count: count / n,
        "only sets of m variables count, not all 2^n sets.": lambda n, m, count: count / 2**n,
        "the order of the variables in a set does not matter.":
            lambda n, m, count: count / math.perm(n, m),
        "any of the baseline's interactions may match, not only one.":
            lambda n, m, count: 1 / math.comb(n, m),
        "the interactions of a network are different sets: their chances add up.":
            lambda n, m, count: 1 - (1 - 1 / math.comb(n, m)) ** count,
    }, cases=[(10, 1, 10), (10, 4, 10), (7, 3, 5)])  # fmt: skip


def check_turned(turned: Any, target: Any, baseline: Any) -> None:
    """Check a function: H of the baseline, with the target as its baseline (chapter 02)."""

    def right(a: Any, b: Any) -> Any:
        return generalization_power(b, transfer(b, a))

    check(turned, right, {
        "this is H of the target; swap the two networks.": lambda a, b: right(b, a),
        "`transfer` still asks about the target's interactions.":
            lambda a, b: generalization_power(b, transfer(a, b)),
    }, cases=[(target, baseline)])  # fmt: skip


def check_H_curve(power: Any, t1: Any) -> None:
    """Check H at five checkpoints and the end of phase 1 (chapter 03)."""
    kept, rest = np.array([1, 2, 6, 9, 10]), np.array([4, 2, 4, 7, 15])
    right = kept / (kept + rest)
    if power is not ... and np.size(power) != 5:
        return print(f"Not yet: H has {np.size(power)} values; expected one for each checkpoint.")
    values = {"H": ...} if power is ... else {f"H[{i}]": x for i, x in enumerate(power)}
    check(values | {"t1": t1}, [*right, 3], {
        "this is the non-generalizable share.": [*(1 - right), 3],
        "divide by the sum of both strengths, not by the other one.": [*kept / rest, 3],
        "H is right, but phase 1 ends where H is largest; count from 1.": [*right, 2],
        "H is right, but the strength is largest there, not H.": [*right, 5],
    }, tol=1e-3)  # fmt: skip


def check_count(count: Any, effects: Any) -> None:
    """Check a function that counts the effects that hold 80 % of the strength (chapter 03)."""

    def right(x: Any, size: Any = torch.abs, more: int = 1) -> int:
        strength = size(x).sort(descending=True).values
        below = strength.cumsum(0) < 0.8 * strength.sum()
        return int(below.sum()) + more * int(strength.sum() > 0)

    check(count, right, {
        "this is one too few: count the interaction that reaches 80 % too.": partial(right, more=0),
        "this counts all effects that are not zero.": lambda x: int((x != 0).sum()),
        "this compares with the strongest effect; compare sums with the sum of all.":
            lambda x: int((x.abs() > 0.8 * x.abs().max()).sum()),
        "effects have signs; add up their absolute values.": partial(right, size=torch.clone),
        "without any strength, the number is 0.": lambda x: right(x) or 1,
        "effects have signs, and without any strength the number is 0.":
            lambda x: right(x, size=torch.clone) or 1,
    }, cases=[(effects,), (effects * 0,), (-effects,)])  # fmt: skip


def check_second_boundary(second: Any) -> None:
    """Check a function that finds the index of t2 (chapter 03)."""

    def right(
        kept: Any, rest: Any, t1: int, after: int = 1, least: float = 0, less: Any = np.less
    ) -> int:
        more, other = np.diff(kept), np.diff(rest)
        found = less(more, other) & (other > least) & (np.arange(len(more)) + 1 >= t1 + after)
        return int(found.argmax()) + 1 if found.any() else -1

    def answered(*case: Any) -> Any:
        # None is a valid answer here; dots mean that nothing was entered.
        return -1 if (index := second(*case)) is None else index

    examples = [
        [[1, 3, 5, 5], [4, 2, 3, 6]], [[1, 4, 3, 2, 5], [4, 2, 1, 0, 9]],
        [[1, 4, 2, 2], [4, 2, 1, 3]], [[1, 3, 5, 6], [4, 2, 4, 7]], [[0, 1, 5, 9], [9, 8, 7, 6]],
    ]  # fmt: skip
    check(answered, right, {
        "start after t1, not at it.": partial(right, after=0),
        "non-generalizable strength must have grown, too.": partial(right, least=-np.inf),
        "generalizable strength must have grown by less, not by as much.":
            partial(right, less=np.less_equal),
        "the result is None for every example, as of an empty function; only one of them has no "
        "boundary.": lambda *case: -1,
    }, cases=[(*lists, 1) for lists in examples])  # fmt: skip


def check_removal_by_hand(before: Any, after: Any) -> None:
    """Check the loss of one sample before and after removal (chapter 04)."""
    first, last, wrong = np.log1p(np.exp([-4, -2, -3])).tolist()
    check({"before": before, "after": after}, [first, last], {
        "after the removal v is 2: only the non-generalizable part goes.": [first, wrong],
        "the loss is -log of the probability; these are the probabilities.":
            np.exp([-first, -last]),
    }, tol=5e-3)  # fmt: skip


def check_high_orders(function: Any, inter: Any) -> None:
    """Check outputs without the salient interactions of order 3 and up (chapter 04)."""

    def right(one: Any, least: int = 3, salient: bool = True) -> Any:
        keep = one.salient() if salient else (1, 1)
        lost = (one.and_ * keep[0] + one.or_ * keep[1]) * (one.order >= least)
        return one.full - lost.sum(-1)

    check(function, right, {
        "order 3 must go, too.": partial(right, least=4),
        "order 2 must stay.": partial(right, least=2),
        "only salient interactions must go.": partial(right, salient=False),
    }, cases=[(inter,)])  # fmt: skip


def check_baseline_study(other: Any, study: Any) -> None:
    """Check a study whose baseline is trained on the test samples (chapter 04)."""
    answer = ... if other is ... else [other.split, str(other.baselines)]
    check(answer, ["test", "1"], {
        "this baseline is trained on the other half of the training set.": ["halves", "1"],
        "take one baseline: the test samples are one part.": ["test", str(study.baselines)],
    })  # fmt: skip


def check_rope(v_both: Any, v_else: Any, effect: Any) -> None:
    """Check log odds and the AND effect of two words (chapter 05)."""
    both, other = np.log([0.9 / 0.1, 0.25 / 0.75])
    given = {"v_both": v_both, "v_else": v_else, "effect": effect}
    check(given, [both, other, both - other], {
        "these are probabilities; v is log(p / (1 - p)).": [0.9, 0.25, 0.65],
        "the effect is the difference of the two outputs.": [both, other, both + other],
        "subtract the output without the two words from that with both.": [both, other, both],
        "these are log probabilities; v is the logarithm of p / (1 - p).":
            np.log([0.9, 0.25, 0.9 / 0.25]),
        "probabilities do not add up; the effect is a difference of log odds.": [both, other, 0.65],
        "both outputs are right, but the effect has the wrong sign.": [both, other, other - both],
    }, tol=5e-3)  # fmt: skip


def check_gain(function: Any, inter: Any) -> None:
    """Check the probability that the strongest effect adds (chapter 05)."""

    def strongest(one: Any, size: Any = torch.abs) -> Any:
        effects = one.effects.flatten()
        return effects[size(effects).argmax()]

    def right(one: Any, size: Any = torch.abs) -> Any:
        return one.full.sigmoid() - (one.full - strongest(one, size)).sigmoid()

    # With all signs turned around the strongest effect is another one, or negative.
    signs = (-inter.and_, -inter.or_, -inter.bias, inter.objective, inter.gap, -inter.full)
    check(function, right, {
        "this is the effect in log odds; turn both outputs into probabilities.": strongest,
        "the strongest effect may be negative.": partial(right, size=torch.clone),
        "keep the sign of the strongest effect.":
            lambda one: one.full.sigmoid() - (one.full - strongest(one).abs()).sigmoid(),
    }, tol=1e-4, cases=[(inter,), (type(inter)(*signs),)])  # fmt: skip


def check_two_tokens(function: Any) -> None:
    """Check v of a continuation of two tokens (chapter 05)."""

    def product(first: float, second: float) -> float:
        return 1 / ((1 + math.exp(-first)) * (1 + math.exp(-second)))

    def right(first: float, second: float) -> float:
        return math.log(product(first, second) / (1 - product(first, second)))

    check(function, right, {
        "log odds do not add up; log probabilities do.": lambda a, b: a + b,
        "multiply the probabilities; this is a mean.": lambda a, b: (a + b) / 2,
        "this is the probability; turn it back into log odds.": product,
        "this is log p; v is log p - log(1 - p).": lambda a, b: math.log(product(a, b)),
    }, tol=1e-4, cases=[(2.0, 1.0), (0.0, -1.0), (3.0, 3.0)])  # fmt: skip


def check_tuning(strengthened: Any, turned: Any, new: Any) -> None:
    """Check by how much three kinds of change move the output (chapter 06)."""
    check({"strengthened": strengthened, "turned_around": turned, "new": new}, [2, 3, 0.5], {
        "these are effects after tuning; subtract the effects before.": [3, 1, 0.5],
        "an effect that turns from -2 to 1 adds 3.": [2, -1, 0.5],
        "the second answer adds: from -2 to 1 is +3.": [2, -3, 0.5],
    })  # fmt: skip


def check_lost(function: Any, start: Any, end: Any) -> None:
    """Check the share of the strength before tuning that is lost (chapter 06)."""

    def right(one: Any, two: Any, size: Any = torch.abs) -> Any:
        was, now = (torch.stack(x.salient(), -2) for x in (one, two))
        strength = size(one.effects) * was
        return (strength * ~now).sum() / strength.sum()

    check(function, right, {
        "this is the share of the number of interactions, not of their strength.":
            partial(right, size=torch.ones_like),
        "this is the share of new interactions: start comes first.": lambda a, b: right(b, a),
    }, tol=1e-4, cases=[(start, end), (end, start)])  # fmt: skip


def check_stage(function: Any) -> None:
    """Check a function: the share of steps until unshared strength is lowest (chapter 06)."""
    cases = [([0, 10, 50, 100], [4.0, 2.0, 3.0, 5.0]), ([0, 5, 20, 40], [3.0, 2.5, 1.0, 2.0])]
    check(function, lambda s, u: s[np.argmin(u)] / s[-1], {
        "divide steps, not the numbers of checkpoints.": lambda s, u: np.argmin(u) / (len(s) - 1),
        "this is the step; divide it by the last step.": lambda s, u: s[np.argmin(u)],
    }, cases=cases)  # fmt: skip


def check_never_falls(share: Any, u: Any) -> None:
    """Check the share of samples whose mean gain never falls (chapter A)."""

    def right(x: Any) -> Any:
        return (x.diff() >= 0).all(-1).double().mean()

    check(share, right, {
        "this is the share of steps; a sample counts only if all its steps rise.":
            lambda x: (x.diff() >= 0).double().mean(),
        "this compares only the first and the last value.":
            lambda x: (x[:, -1] >= x[:, 0]).double().mean(),
        "this is a number of samples; a share is expected.": lambda x: right(x) * len(x),
    }, cases=[(u,), (u[:1] * 0,), (u.sort(-1).values,)])  # fmt: skip


def check_exponent(exponent: Any) -> None:
    """Check the smallest exponent p of a mean gain of 1, 3, 6 (chapter A)."""
    check(exponent, np.log(2) / np.log(1.5), {
        "the pair (2, 3) is steeper.": np.log(3) / np.log(2),
        "that is the overall slope; take the steepest pair.": np.log(6) / np.log(3),
        "divide by log m - log m', not by m - m'.": np.log(3),
    }, tol=2e-3)  # fmt: skip


def check_choices(any_of_two: Any, all_of_two: Any) -> None:
    """Check in how many pairs of baselines any, or all, share an interaction (chapter B)."""
    check({"any_of_two": any_of_two, "all_of_two": all_of_two}, [1, 1 / 3], {
        "this is for one chosen baseline; two are chosen.": [2 / 3, 2 / 3],
        "two of three is the share of baselines; count the pairs of baselines.": [1, 2 / 3],
        "the two baselines of a choice differ: draw without replacement.": [8 / 9, 4 / 9],
    }, tol=5e-3)  # fmt: skip


def check_sets(sets: Any, target: Any, one: Any, other: Any) -> None:
    """Check a function: the strength that B and C accept, divided by that of either (chapter B)."""

    def share(both: Any, whole: Any) -> Any:
        return both.sum((-2, -1)) / whole.sum((-2, -1))

    size = target.effects.abs() * torch.stack(target.salient(), -2)
    accepted = [torch.stack(transfer(target, x), -2) > 0 for x in (one, other)]
    check(sets, lambda size, b, c: share(size * (b & c), size * (b | c)), {
        "this counts interactions; add up their strengths.": lambda size, b, c: share(b & c, b | c),
        "divide by the strength that B or C accepts, not by that of B.":
            lambda size, b, c: share(size * (b & c), size * b),
        "a sum of both counts the shared part twice; divide by what either accepts.":
            lambda size, b, c: share(size * (b & c), size * b + size * c),
    }, cases=[(size, *accepted)])  # fmt: skip


def check_invented_share(large: Any, small: Any) -> None:
    """Check the share of strength that gradient descent invents, for two outputs (chapter C)."""
    check({"share_large": large, "share_small": small}, [251 / 1251, 251 / 261], {
        "divide by the whole strength: the true one plus the invented one.": [0.251, 25.1],
        "half a step per effect: 502 times s/2 is 251 s.": [502 / 1502, 502 / 512],
    }, tol=0.01)  # fmt: skip


def check_donors(v: Any, model: Any, samples: Any, variables: Any, donors: Any) -> None:
    """Check outputs averaged over donor images as mask values (chapter C)."""
    if v is ...:  # the outputs below take seconds
        return check(v, 0)

    def masked(images: Any) -> Any:
        value = mean_feature(model, images)
        return masked_outputs(model, samples.x, samples.y, variables, value)

    each = [masked(one[None]) for one in donors]
    check(v, sum(each) / len(each), {
        "this is the mean feature of all donors; average outputs, not features.": masked(donors),
        "this is the last donor alone; collect all five.": each[-1],
    }, tol=1e-4)  # fmt: skip


def check_penalty_by_hand(once: Any, doubled: Any) -> None:
    """Check the penalty of one sample (chapter D)."""
    check({"once": once, "doubled": doubled}, [3.5 / 6, 3.5 / 6], {
        "divide by the salient strength, so that doubling changes nothing.": [3.5, 7],
        "the first is right; numerator and denominator both double.": [3.5 / 6, 7 / 6],
    }, tol=0.01)  # fmt: skip


def check_penalty_difference(difference: Any, table: Any) -> None:
    """Check the mean difference of H between two arms (chapter D)."""
    rows = table[table["quantity"] == "H"].pivot(index="seed", columns="arm", values="value")
    check(difference, (rows["penalty"] - rows["random"]).mean(), {
        "this is the difference from the plain training.": (rows["penalty"] - rows["plain"]).mean(),
    }, tol=1e-3)  # fmt: skip


def check_typical_row(interactions: Any, model: Any, inputs: Any, rows: Any, labels: Any) -> None:
    """Check interactions that are masked by the mean row of the other class (chapter F)."""

    def bias(kept: Any) -> float:
        logits, y = np.asarray(model(rows[kept].mean(0)[None]))[0], int(inputs.y[0])
        return float(logits[y] - logits[1 - y])

    own = labels == labels[0]
    check(getattr(interactions, "bias", [interactions])[0], bias(~own), {
        "this is still the mean of all rows.": bias(slice(None)),
        "this is the mean of the first row's own class.": bias(own),
    })  # fmt: skip


def check_pieces(pieces: Any, n: int) -> None:
    """Check variables of a series whose last part is one variable (chapter F)."""

    def parts(count: int, last: int) -> Any:
        return np.append(np.arange(80) * count // 80, np.full(40, last))[None]

    check(pieces, parts(n - 1, n - 1), {
        "the last 40 times are one variable; here all pieces are equal.":
            np.arange(120)[None] * n // 120,
        "the times before the last part make n - 1 pieces, not n.": parts(n, n - 1),
    })  # fmt: skip


def check_unexplained(shares: Any, model: Any) -> None:
    """Check the unexplained share of variance on held-out states (chapter F)."""
    errors, variance = model.v - model.predict(model.held_out), model.v.var(1, correction=0)
    missed = (errors**2).mean(1)
    check(shares, missed / variance, {
        "square the errors, and average over states.": errors.abs().mean(1) / variance,
        "use var(1, correction=0), as the mean of squares divides by the count.":
            missed / model.v.var(1),
        "divide by the variance of v.": missed,
    })  # fmt: skip
