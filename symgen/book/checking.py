"""Checks of exercises: they print whether an answer is right, or what is wrong, and never raise.

Only `grading` makes them raise: it is for lecturers who grade notebooks with a tool.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

CORRECT = "Correct."
EMPTY = "Not yet: replace the dots in the cell above by your answer."
NOTHING = (
    "Not yet: the answer is None. A function gives None if its body is still dots or has no "
    "`return`; a linear program, if it has no solution."
)

#: 0 in class; else the number of a variant that is graded.
VARIANT = ContextVar("variant", default=0)


@contextmanager
def grading(variant: int = 1) -> Iterator[None]:
    """Let checks raise AssertionError for a wrong answer, and draw other numbers than in class.

    Example:
        >>> with grading():
        ...     check(3, 4)
        Traceback (most recent call last):
        AssertionError: Not yet: the result is 3, which is not the expected one.
    """
    token = VARIANT.set(variant)
    try:
        yield
    finally:
        VARIANT.reset(token)


def normal(*shape: int) -> Tensor:
    """Return random numbers for cases: the same at each call, and others for each variant."""
    generator = torch.Generator().manual_seed(VARIANT.get())
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def check(
    answer: Any,
    expected: Any,
    mistakes: Mapping[str, Any] | None = None,
    tol: float = 1e-6,
    cases: Sequence[tuple] = (),
    compared: Callable[[Any], Any] | None = None,
) -> None:
    """Print "Correct.", or what is wrong with an answer.

    Args:
        answer: anything that becomes numbers: a list, array, tensor, fraction, mapping. With
            `cases`, a function. Several answers are a mapping from the names that the student gave
            them.
        expected: the right answer, of the same kind; for several answers, a list.
        mistakes: maps a hint to the wrong answer it explains.
        tol: largest difference, relative to the largest expected number. Of all answers within it,
            right or wrong, the nearest counts.
        cases: arguments on which functions are compared.
        compared: what is compared, computed from the answer; by default, the answer itself.

    Example:
        >>> check(3, 3)
        Correct.
        >>> check(-3, 3, {"The sign is wrong.": -3})
        Not yet: The sign is wrong.
        >>> check(lambda x: 2 * x, lambda x: x**2, cases=[(2,), (3,)])
        Not yet: for 3 the result is 6, which is not the expected one.
    """
    try:
        verdict = _judged(answer, expected, mistakes or {}, tol, cases, compared)
    except Exception as error:  # of the student's own code
        verdict = f"Not yet: your code stops with {type(error).__name__}: {error}"
        if isinstance(error, NotImplementedError) and str(error).startswith("write `"):
            verdict = f"Not yet: {error}"  # the cell still waits for the student's code
    if VARIANT.get() and verdict != CORRECT:
        raise AssertionError(verdict)
    print(verdict)


def _judged(
    answer: Any,
    expected: Any,
    mistakes: Mapping[str, Any],
    tol: float,
    cases: Sequence[tuple],
    compared: Callable[[Any], Any] | None,
) -> str:
    names: list[str] = []
    if isinstance(answer, Mapping) and isinstance(expected, list):
        names = list(answer)
        answer = list(answer.values())

    def parts(value: Any) -> list:
        if names:
            return list(value)
        return [value(*case) for case in cases] if cases else [value]

    if cases and answer is not ... and not callable(answer):
        return f"Not yet: a function is expected; this is {_short(answer)}."
    if answer is ...:
        return EMPTY
    labels = [f"for {', '.join(map(_short, case))} the result is" for case in cases]
    labels = [f"{name} is" for name in names] or labels or ["the result is"]
    given = parts(compared(answer) if compared else answer)
    right = parts(expected)
    if any(map(_has_dots, given)):
        return EMPTY
    if all(one is None for one in given) and any(one is not None for one in right):
        return NOTHING
    for label, one, other in zip(labels, given, right, strict=True):
        if not _is_numeric(one):
            kind = "numbers are" if numbers(other).ndim else "one number is"
            return f"Not yet: {label} {_short(one)}; {kind} expected."
    flat = _flat(given)
    best = _flat(right)
    tol *= np.nanmax(np.abs(best), initial=1e-300)
    fits = all(numbers(a).shape == numbers(b).shape for a, b in zip(given, right, strict=True))
    references = {CORRECT: best} if fits else {}
    for hint, value in mistakes.items():
        references[f"Not yet: {hint}"] = _flat(parts(value))
    for hint, turn in ANYWHERE.items():
        if _distance(turn(best), best) > tol:
            references[f"Not yet: {hint}"] = turn(best)
    nearest = min(references, key=lambda text: _distance(flat, references[text]))
    if _distance(flat, references[nearest]) <= tol:
        return nearest
    wrong = [
        _difference(label, numbers(one), numbers(other), tol)
        for label, one, other in zip(labels, given, right, strict=True)
        if _distance(numbers(one), numbers(other)) > tol
    ]
    return f"Not yet: {' '.join(wrong if names else wrong[:1])}"


def numbers(value: Any) -> np.ndarray:
    """Return an answer as an array without axes of length 1; None becomes NaN.

    Raises:
        TypeError, ValueError: for an answer that is no number.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        value = [numbers(one) for one in value]
    if isinstance(value, Tensor):
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind == "U":
        raise TypeError("a text")
    return array.astype(float).squeeze()


def _flat(values: Sequence[Any]) -> np.ndarray:
    return np.concatenate([numbers(value).ravel() for value in values])


def _has_dots(answer: Any) -> bool:
    return answer is ... or (isinstance(answer, list | tuple) and any(map(_has_dots, answer)))


def _is_numeric(answer: Any) -> bool:
    try:
        numbers(answer)
    except (TypeError, ValueError):
        return False
    return True


def _distance(answer: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference of two answers; NaN equals NaN only."""
    if answer.shape != reference.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        gaps = np.nan_to_num(abs(answer - reference), nan=np.inf)
    same = (answer == reference) | (np.isnan(answer) & np.isnan(reference))
    return float(np.max(np.where(same, 0, gaps), initial=0))


def _difference(label: str, answer: np.ndarray, expected: np.ndarray, tol: float) -> str:
    if answer.shape != expected.shape:
        if not expected.ndim:
            return f"{label} {_short(answer.tolist())}; one number is expected."
        return f"{label} of shape {answer.shape}; shape {expected.shape} is expected."
    if not answer.ndim:
        return f"{label} {_short(answer)}, which is not the expected one."
    wrong = []
    for place in np.ndindex(answer.shape):
        if _distance(np.asarray(answer[place]), np.asarray(expected[place])) > tol:
            wrong.append(place)
    first = f"the first has index {', '.join(map(str, wrong[0]))}: {_short(answer[wrong[0]])}"
    return f"{label} wrong in {len(wrong)} of {answer.size} values; {first}."


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic | Tensor) and numbers(value).size == 1:
        value = numbers(value).item()
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _of_shares(turned: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return a mistake that only answers between 0 and 1 can hold; else nothing."""
    return turned if np.all((right >= 0) & (right <= 1)) else right[:0]


#: Mistakes that can be made in every exercise.
ANYWHERE = {
    "the sign is turned around.": lambda right: -right,
    "a sign is missing.": lambda right: abs(right),
    "this is the rest: subtract it from 1.": lambda right: _of_shares(1 - right, right),
    "this is a percentage; a share between 0 and 1 is expected.":
        lambda right: _of_shares(100 * right, right),
    "the values are right, but in the wrong order.": lambda right: right[::-1],
    "this is upside down: swap numerator and denominator.":
        lambda right: 1 / right if right.all() else right[:0],
}  # fmt: skip
