"""Checks of exercises: they print if an answer is right, or what is wrong, and never raise."""

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


def all_answers(*answers: Any) -> Any:
    """Return the answers as a list, or dots if one is still missing."""
    return ... if any(one is None or one is ... for one in answers) else [*answers]


def without_nan(values: Any) -> Any:
    """Return numbers with 0 for NaN, which stands for samples without a total effect."""
    return np.nan_to_num(_numbers(values))
