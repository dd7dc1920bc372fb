"""The exercises of the chapters: a table of right and wrong answers, and the functions it uses."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

import symgen
from symgen import Interactions
from symgen.book import checking, notebooks
from symgen.book.checking import grading as grading, normal

TABLE = Path(__file__).with_name("exercises.yml")


def check(exercise: str, *answers: Any, table: Path | str = TABLE, **data: Any) -> None:
    """Print whether the answers to an exercise are right, or what is wrong; see `checking.check`.

    Args:
        exercise: its name in the table.
        *answers: the answer; several, if the table has several names for them.
        table: a YAML file of exercises; its first lines say what it holds.
        **data: values of the chapter that the table's expressions use.

    Raises:
        BookError: for an unknown exercise.

    Example:
        >>> check("signs", lambda k: (-1) ** k + 1)
        Not yet: the exponent is k + 1; put it in parentheses.
    """
    known = notebooks.read_yaml(Path(table))
    if exercise not in known:
        raise notebooks.unknown("exercise", exercise, known)
    names = known[exercise].get("names")
    answer = dict(zip(names, answers, strict=True)) if names else answers[0]
    if answer is ...:  # what the table computes may take seconds
        checking.check(answer, 0)
    else:
        checking.check(answer, **resolved(known[exercise], data))


def resolved(entry: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `checking.check` that an entry of the table stands for."""
    scope = {"math": math, **globals(), **data}
    for name, expression in entry.get("given", {}).items():
        scope[name] = _value(expression, scope)
    arguments = entry.get("arguments", "")

    def answer(expression: Any) -> Any:
        if not arguments:
            return _value(expression, scope)
        return eval(f"lambda {arguments}: {_source(expression)}", scope)

    compared = None
    if "compared" in entry:
        inner = f"lambda {arguments}: " if arguments else ""
        compared = eval(f"lambda student: {inner}{_source(entry['compared'])}", scope)
    cases = [tuple(_value(case, scope)) for case in entry.get("cases", [])]
    return {
        "expected": answer(entry["right"]),
        "mistakes": {hint: answer(wrong) for hint, wrong in entry["mistakes"].items()},
        "compared": compared,
        "tol": entry.get("tol", 1e-6 if cases else 5e-3),
        "cases": cases,
    }


def _source(expression: Any) -> str:
    """Return a value of the table as Python: texts are code, lists hold values."""
    if isinstance(expression, list):
        return f"[{', '.join(map(_source, expression))}]"
    return str(expression)


def _value(expression: Any, scope: dict[str, Any]) -> Any:
    return eval(_source(expression), scope)


def drawn(n: int = 3, scale: float = 1.0) -> Interactions:
    """Return random interactions of two samples; the strongest of each is an OR."""
    effects = normal(2, 2, 2**n) ** 3
    effects[..., 0] = 0
    effects[:, 1, -1] = torch.tensor([1.1, -1.2]) * effects.abs().max()
    effects = scale * effects
    bias = normal(2)
    strength = effects.abs().sum((-2, -1))
    return Interactions(effects, bias, strength, 0 * bias, bias + effects.sum((-2, -1)))


def ands(*sets: int) -> Tensor:
    """Return effects of one sample with four variables: 1 for the ANDs given, else 0."""
    effects = torch.zeros(1, 2, 16, dtype=torch.float64)
    effects[:, 0, list(sets)] = 1.0
    return effects


def model(S: int, b: Any, and_: Tensor, or_: Tensor) -> Tensor:
    """Return the output of a logical model (Eq. 3)."""
    T = torch.arange(len(and_))
    return b + and_[T & S == T].sum() + or_[T & S > 0].sum()


def moebius_sum(
    v: Any,
    T: int,
    sign: Callable[[int, int], int] = lambda T, L: (-1) ** (T & ~L).bit_count(),
    part: Callable[[int, int], bool] = lambda T, L: L & T == L,
    least: int = 0,
) -> Any:
    """Return the AND effect of T (Theorem 1)."""
    return sum(sign(T, L) * v[L] for L in range(least, T + 1) if part(T, L))


def triggers(n: int) -> np.ndarray:
    """Return which ANDs, and which ORs of several variables, each nonempty state triggers."""
    sets = np.arange(1, 2**n)
    S = sets[:, None]
    several = sets[sets & (sets - 1) > 0]
    return np.hstack([S & sets == sets, S & several > 0]).astype(float)


def least(triggers: Any, w: Any, below: float = 0, above: float = 0) -> np.ndarray:
    """Return the x of least strength with w - below <= triggers @ x <= w + above."""
    columns = np.hstack([triggers, -triggers])
    matrix = np.vstack([columns, -columns])
    bound = np.hstack([w + above, below - w])
    known = np.isfinite(bound)
    found = linprog(np.ones(columns.shape[1]), matrix[known], bound[known])
    p, q = np.split(np.asarray(found.x), 2)
    return p - q


def strength_and_miss(triggers: Any, w: Any, x: Any) -> Any:
    """Return the sum of abs(x), and the largest abs(triggers @ x - w); no answer stays none."""
    if x is None or x is ...:
        return x
    x = np.asarray(x)
    if x.shape != triggers.shape[1:]:
        raise ValueError(
            f"the result has the shape {x.shape}; expected one effect per column of triggers, "
            f"{triggers.shape[1:]}"
        )
    return abs(x).sum(), abs(triggers @ x - w).max()


def others(z: Tensor, y: int) -> Tensor:
    """Return which classes are not y."""
    return torch.arange(len(z)) != y


def masked(features: Tensor, owner: Tensor, hidden: list, value: Tensor) -> Tensor:
    """Return features with `value` at every place that belongs to a hidden variable."""
    return torch.where(torch.isin(owner, torch.tensor(hidden)), value, features)


def salient(e: Tensor) -> Tensor:
    """Return which effects exceed 5 % of their sample's strongest."""
    return e.abs() > 0.05 * e.abs().amax((-2, -1), keepdim=True)


def transferred(e: Tensor, bases: Iterable[Tensor]) -> Tensor:
    """Return which effects transfer to any of the baselines (Eq. 5)."""
    return torch.stack([salient(b) & (e * b > 0) for b in bases]).any(0)


def power(
    e: Tensor, bases: Iterable[Tensor], size: Any = torch.abs, among: Any = salient
) -> Tensor:
    """Return the generalization power per sample (Eq. 8)."""
    strength = size(e) * among(e)
    return (strength * transferred(e, bases)).sum((-2, -1)) / strength.sum((-2, -1))


def count(x: Tensor, sorted: Tensor | None = None, whole: Any = None) -> int:
    """Return how many of the strongest effects hold 80 % of the strength (Eq. 9)."""
    sizes = x.abs().sort(descending=True).values if sorted is None else sorted
    below = sizes.cumsum(0) < 0.8 * (x.abs().sum() if whole is None else whole)
    return int(below.sum()) + int(x.any())


def step(one: Interactions, bases: Any, pooled: bool = False) -> list[Tensor]:
    """Return H, N, and the generalizable and other strength, as means over samples."""
    kept, rest = symgen.salient_strength(one, symgen.transfer(one, bases))
    every = kept + rest
    H = kept.sum() / every.sum() if pooled else (kept / every).nanmean()
    N = torch.tensor([sum(map(count, both)) for both in one.effects]).double()
    return [H, N.mean(), kept.mean(), rest.mean()]


def second_boundary(
    kept: Any, rest: Any, t1: int, least: float = 0, less: Any = np.less, which: int = 0
) -> int | None:
    """Return the index of t2 (Appendix I), or None."""
    more = np.diff(kept)
    other = np.diff(rest)
    is_later = np.arange(len(more)) >= t1
    found = np.flatnonzero(less(more, other) & (other > least) & is_later)
    return int(found[which]) + 1 if len(found) else None


def strongest(one: Interactions) -> Tensor:
    """Return the strongest effect of one sample."""
    effects = one.effects.flatten()
    return effects[effects.abs().argmax()]


def gain(one: Interactions, effect: Tensor) -> Tensor:
    """Return how much probability an effect adds to the whole input."""
    return one.full.sigmoid() - (one.full - effect).sigmoid()


def donated(model: Any, samples: Any, variables: Any, images: Tensor) -> Tensor:
    """Return outputs of a network, masked by the mean feature of images."""
    return symgen.masked_outputs(
        model, samples.x, samples.y, variables, symgen.mean_feature(model, images)
    )
