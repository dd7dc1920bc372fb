"""Errors for misspelled names, with the nearest correct one."""

import difflib
from collections.abc import Iterable


def nearest(given: object, choices: Iterable[object]) -> str:
    """Return `` Did you mean "x"?`` for the choice most like `given`, or an empty text.

    Example:
        >>> nearest("cifar", ["uoft-cs/cifar10", "digits"])
        ' Did you mean "uoft-cs/cifar10"?'
    """
    text = str(given)
    choices = [str(c) for c in choices]
    matches = [c for c in choices if text and text.lower() in c.lower()]
    matches = matches or difflib.get_close_matches(text, choices, n=1, cutoff=0.5)
    return f' Did you mean "{matches[0]}"?' if matches else ""


def unknown(what: str, given: object, choices: Iterable[object]) -> ValueError:
    """Return the error for an unknown name, with all choices and the nearest one.

    Example:
        >>> print(unknown("metric", "binari", ["binary", "similarity"]))
        metric "binari" is unknown; expected one of binary, similarity. Did you mean "binary"?
    """
    choices = [str(c) for c in choices]
    listed = ", ".join(choices)
    return ValueError(
        f'{what} "{given}" is unknown; expected one of {listed}.{nearest(given, choices)}'
    )


def refuse_unknown(what: str, given: Iterable[str], choices: Iterable[str]) -> None:
    """Refuse the first of some names that is not among the choices.

    Raises:
        ValueError: see `unknown`.
    """
    choices = list(choices)
    for name in given:
        if name not in choices:
            raise unknown(what, name, choices)
