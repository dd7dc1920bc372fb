"""Checks of exercises: the sentence for right, wrong, missing and broken answers."""

import numpy as np
import pytest
import torch

from symgen.book.exercises import EMPTY, check

SIGN = {"The sign is wrong.": -3.0}


@pytest.mark.parametrize(
    ("answer", "expected", "options", "printed"),
    [
        (3, 3.0, {}, "Correct."),
        (3.0 + 1e-9, 3.0, {}, "Correct."),
        (..., 3.0, {}, EMPTY),
        (None, 3.0, {}, EMPTY),
        (-3, 3.0, {"mistakes": SIGN}, "Not yet: The sign is wrong."),
        ([-2.0, 1], [2.0, -1], {}, "Not yet: the sign is turned around."),
        (0.2, 0.8, {}, "Not yet: this is the rest: subtract it from 1."),
        (lambda x: -x, lambda x: x, {"cases": [(1,), (4,)]}, "Not yet: the sign is turned around."),
        (4, 3.0, {"mistakes": SIGN}, "Not yet: the result is 4, which is not the expected one."),
        (float("nan"), 3.0, {}, "Not yet: the result is nan, which is not the expected one."),
        ("and", " AND", {}, "Correct."),
        ("or", "and", {}, "Not yet: the result is 'or', which is not the expected one."),
        ("or", 1, {}, "Not yet: a number or an array is expected; this is 'or'."),
        (1, "or", {}, "Not yet: a text is expected; this is 1."),
        (True, True, {}, "Correct."),
        (torch.tensor([1.0, 2.0]), np.array([1.0, 2.0]), {}, "Correct."),
        ([1.0, 3.0], torch.tensor([1.0, 2.0]), {},
         "Not yet: 1 of 2 values differ; the first has index 1: 3."),
        ({"a": 1, "b": 3}, [1, 2], {}, "Not yet: b = 3 is not the expected value."),
        ({"a": 1, "b": [1, 2]}, [1, 2], {}, "Not yet: b is [1, 2]; one number is expected."),
        ({"a": 1, "b": ...}, [1, 2], {}, EMPTY),
        ({"a": 0.5, "b": 0.5}, [1, 2], {},
         "Not yet: a = 0.5 and b = 0.5 are not the expected values."),
        ([[1, 2, 3]], [1, 2, 3], {}, "Not yet: the shape is (1, 3); expected (3,)."),
        (lambda x: 2 * x, lambda x: x + x, {"cases": [(1,), (4,)]}, "Correct."),
        (lambda x: x, lambda x: x**2, {"cases": [(1,), (4,)]},
         "Not yet: for 4 the result is 4, which is not the expected one."),
        (lambda x: x, lambda x: x**2, {"cases": [(4,)], "mistakes": {"Not squared.": lambda x: x}},
         "Not yet: Not squared."),
        (lambda x: ..., lambda x: x, {"cases": [(1,)]}, EMPTY),
        (5, lambda x: x, {"cases": [(1,)]}, "Not yet: a function is expected; this is 5."),
        (lambda x: 1 / 0, lambda x: x, {"cases": [(1,)]},
         "Not yet: your code stops with ZeroDivisionError: division by zero"),
        (object(), 3.0, {}, "Not yet: a number or an array is expected; this is <object"),
    ],
)  # fmt: skip
def test_a_check_says_what_is_wrong_and_never_raises(capsys, answer, expected, options, printed):
    check(answer, expected, **options)
    assert capsys.readouterr().out.startswith(printed)
