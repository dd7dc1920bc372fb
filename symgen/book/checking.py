"""Checks of exercises: they print whether an answer is right, or what is wrong, and never raise."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EMPTY = "Not yet: replace the dots in the cell above by your answer."

#: Mistakes that every number can hold.
ANYWHERE = {
    "the sign is turned around.": lambda right: -_numbers(right),
    "this is the rest: subtract it from 1.": lambda right: 1 - _numbers(right),
}


def check(
    answer: Any,
    expected: Any,
    mistakes: Mapping[str, Any] | None = None,
    tol: float = 1e-6,
    cases: Sequence[tuple] = (),
) -> None:
    """Print "Correct.", or what is wrong with an answer.

    Args:
        answer: a number, text, truth value, array or tensor; with `cases`, a function. Several
            numbers are a mapping from the names that the student gave them.
        expected: the right answer, of the same kind; for several numbers, a list.
        mistakes: maps a hint to the wrong answer it explains.
        tol: largest difference, relative to the largest expected number.
        cases: arguments on which functions are compared.

    Example:
        >>> check(3, 3)
        Correct.
        >>> check(-3, 3, {"The sign is wrong.": -3})
        Not yet: The sign is wrong.
        >>> check(lambda x: 2 * x, lambda x: x**2, cases=[(2,), (3,)])
        Not yet: for 3 the result is 6, which is not the expected one.
    """
    try:
        print(_judged(answer, expected, mistakes or {}, tol, cases))
    except Exception as error:  # of the student's own code
        print(f"Not yet: your code stops with {type(error).__name__}: {error}")


def _judged(
    answer: Any, expected: Any, mistakes: Mapping[str, Any], tol: float, cases: Sequence
) -> str:
    def results(value: Any) -> list:
        return [value(*case) for case in cases] if cases else [value]

    names = list(answer) if isinstance(answer, Mapping) else []
    answer = list(answer.values()) if names else answer
    if _missing(answer):
        return EMPTY
    for name, value in zip(names, answer if names else [], strict=True):
        if _numbers(value).size != 1:
            return f"Not yet: {name} is {_short(value)}; one number is expected."
    if cases and not callable(answer):
        return f"Not yet: a function is expected; this is {_short(answer)}."
    given, right = results(answer), results(expected)
    if _missing(given):
        return EMPTY
    if wrong := _misfit(given[0], right[0]):
        return f"Not yet: {wrong}"
    if _equal(given, right, tol):
        return "Correct."
    for sentence, value in mistakes.items():
        if _equal(given, results(value), tol):
            return f"Not yet: {sentence}"
    for sentence, turn in ANYWHERE.items():
        if _numbers(right[0]).dtype.kind in "if" and _equal(given, list(map(turn, right)), tol):
            return f"Not yet: {sentence}"
    first = next(i for i, one in enumerate(given) if not _equal([one], [right[i]], tol))
    place = f"for {', '.join(map(_short, cases[first]))} " if cases else ""
    return f"Not yet: {place}{_difference(given[first], right[first], tol, names)}"


def _missing(answer: Any) -> bool:
    """Return whether an answer, or a part of it, is still empty: None or dots."""
    if isinstance(answer, list | tuple):
        return any(map(_missing, answer))
    return answer is None or answer is ...


def _numbers(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _misfit(answer: Any, expected: Any) -> str:
    """Return how the kind or shape of an answer differs from the expected one; empty if it fits."""
    a, b = _numbers(answer), _numbers(expected)
    if (a.dtype.kind in "US") != (b.dtype.kind in "US") or a.dtype.kind == "O":
        kind = "a text" if b.dtype.kind in "US" else "a number or an array"
        return f"{kind} is expected; this is {_short(answer)}."
    return "" if a.shape == b.shape else f"the shape is {a.shape}; expected {b.shape}."


def _close(answer: Any, expected: Any, tol: float) -> Any:
    """Return which values are equal; NaN equals NaN, as of samples without a total effect."""
    a, b = _numbers(answer), _numbers(expected)
    if b.dtype.kind in "US":
        return np.char.lower(np.char.strip(a)) == np.char.lower(np.char.strip(b))
    return np.isclose(a, b, 0, tol * np.nanmax(np.abs(b), initial=1e-300), equal_nan=True)


def _equal(given: list, right: list, tol: float) -> bool:
    pairs = zip(given, right, strict=True)
    return all(not _misfit(a, b) and _close(a, b, tol).all() for a, b in pairs)


def _difference(answer: Any, expected: Any, tol: float, names: Sequence[str]) -> str:
    a, b = _numbers(answer), _numbers(expected)
    if a.ndim == 0 or b.dtype.kind in "US":
        return f"the result is {_short(answer)}, which is not the expected one."
    if a.ndim == 1 and _equal([np.sort(a)], [np.sort(b)], tol):
        return "the values are right, but in the wrong order."
    places = [tuple(place) for place in np.argwhere(~_close(a, b, tol)).tolist()]
    if names:
        wrong = [f"{names[i]} = {_short(a[i])}" for (i,) in places]
        end = "is not the expected value." if len(wrong) == 1 else "are not the expected values."
        return f"{' and '.join(wrong)} {end}"
    at = places[0][0] if a.ndim == 1 else places[0]
    first = f"the first has index {at}: {_short(a[places[0]])}"
    return f"{len(places)} of {a.size} values differ; {first}."


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
        value = _numbers(value).item() if _numbers(value).size == 1 else value
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
