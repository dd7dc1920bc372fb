"""Checks of exercises: right answers in many forms, a hint for each mistake, and never an error."""

from fractions import Fraction
from math import comb
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from symgen.book import checking, exercises, notebooks
from symgen.book.checking import EMPTY, NOTHING, check

TABLE = notebooks.read_yaml(exercises.TABLE)
SIGN = {"The sign is wrong.": -3.0}
INTER = exercises.drawn(4)
RANDOM = np.random.default_rng(0)
MASKED = torch.from_numpy(RANDOM.normal(size=(2, 8)))
#: Data in place of what the chapters hand over.
DATA = {
    "inter": INTER[0], "v": INTER[0].predict(), "known": [INTER[[1, 0]]], "target": INTER,
    "baseline": INTER[[1, 0]], "one": INTER[[1, 0]], "other": INTER, "start": INTER[0],
    "end": INTER[1], "given_u": torch.tensor([[0.0, 1, 2], [0, 2, 1]]), "n": 6,
}  # fmt: skip
#: Of single exercises, whose names mean something else.
OWN = {
    "one step": {"inter": INTER},
    "program with noise": {
        "clean": INTER[0].predict(), "noise": 0.05,
        "v": INTER[0].predict() + torch.from_numpy(RANDOM.normal(size=16)),
    },
    "baseline study": {"study": SimpleNamespace(baselines=2)},
    "donors": {
        "model": None, "samples": None, "variables": None, "donors": MASKED,
        "donated": lambda model, samples, variables, images: images.mean(0) ** 2,
    },
    "penalty difference": {"data": pd.DataFrame(
        [("H", 0, arm, value) for arm, value in (("penalty", 0.5), ("random", 0.4), ("plain", 0.2))],
        columns=["quantity", "seed", "arm", "value"],
    )},
    "typical row": {
        "labels": np.array([0, 0, 1, 1]), "rows": RANDOM.normal(size=(4, 2)), "y": 0,
        "model": lambda rows: rows,
    },
    "unexplained": {"model": SimpleNamespace(
        v=MASKED, held_out=None, predict=lambda states: MASKED.roll(1, 1) / 2
    )},
}  # fmt: skip


def printed(capsys, *arguments, **options):
    check(*arguments, **options)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", sorted(TABLE))
@pytest.mark.parametrize("variant", [0, 1])
def test_every_mistake_differs_from_the_right_answer_and_has_its_hint(name, variant, capsys):
    entry = TABLE[name]
    with checking.grading(variant):
        table = exercises.resolved(entry, DATA | OWN.get(name, {}))
    del table["compared"]

    def as_typed(answer):
        return dict(zip(entry["names"], answer, strict=True)) if "names" in entry else answer

    assert printed(capsys, as_typed(table["expected"]), **table) == checking.CORRECT
    for hint, wrong in table["mistakes"].items():
        assert printed(capsys, as_typed(wrong), **table) == f"Not yet: {hint}"


@pytest.mark.parametrize(
    ("answer", "expected", "options", "begins"),
    [
        (3, 3.0, {}, "Correct."),
        (3.0 + 1e-9, 3.0, {}, "Correct."),
        (Fraction(3, 4), 0.75, {}, "Correct."),
        (np.array([[0.75]]), 0.75, {}, "Correct."),
        (torch.tensor([3.0], requires_grad=True), 3, {}, "Correct."),
        ([1, Fraction(1, 2)], [1, 0.5], {}, "Correct."),
        (torch.ones(10, 1), np.ones(10), {}, "Correct."),
        (pd.Series([1.0, 2.0]), [1, 2], {}, "Correct."),
        ([torch.tensor(1.0), 2], torch.tensor([1.0, 2.0]), {}, "Correct."),
        ({0: 1.0, 1: 2.0}, torch.tensor([1.0, 2.0]), {}, "Correct."),
        ({"H": torch.tensor([0.5, 0.6]), "t": 3}, [[0.5, 0.6], 3], {}, "Correct."),
        (True, True, {}, "Correct."),
        (lambda k: {1: 1, 2: -1}[k], lambda k: (-1) ** (k + 1), {"cases": [(1,), (2,)]}, "Correct."),
        (lambda x: None, lambda x: None, {"cases": [(1,)]}, "Correct."),
        (..., 3.0, {}, EMPTY),
        ({"a": 1, "b": ...}, [1, 2], {}, EMPTY),
        ([1, ...], [1, 2], {}, EMPTY),
        (lambda x: ..., lambda x: x, {"cases": [(1,)]}, EMPTY),
        (lambda x: None, lambda x: x, {"cases": [(1,)]}, NOTHING),
        (None, 3.0, {}, NOTHING),
        (-1, 3.0, {}, "Not yet: the result is -1, which is not the expected one."),
        (lambda x: x & x, lambda x: x, {"cases": [(torch.ones(2),)]},
         "Not yet: your code stops with NotImplementedError: "),
        (lambda x: -1, lambda x: None, {"cases": [(1,)]}, "Not yet: for 1 the result is -1, which"),
        (-3, 3.0, {"mistakes": SIGN}, "Not yet: The sign is wrong."),
        ([-2.0, 1], [2.0, -1], {}, "Not yet: the sign is turned around."),
        (2, -2, {"mistakes": {"Twice.": -4}}, "Not yet: the sign is turned around."),
        ([2.0, 1], [2.0, -1], {}, "Not yet: a sign is missing."),
        (0.2, 0.8, {}, "Not yet: this is the rest: subtract it from 1."),
        (0, 1, {"mistakes": {"Empty.": 0}}, "Not yet: Empty."),
        (lambda k: (-1) ** k + 1, lambda k: (-1) ** (k + 1), {"cases": [(1,), (2,)]},
         "Not yet: for 1 the result is 0"),
        (60, 0.6, {}, "Not yet: this is a percentage; a share between 0 and 1 is expected."),
        ([1, 2, 3], [3, 2, 1], {}, "Not yet: the values are right, but in the wrong order."),
        (4, 0.25, {}, "Not yet: this is upside down: swap numerator and denominator."),
        # A mistake close to the right answer: the nearer one counts.
        (2.01, 2.0, {"mistakes": {"Near.": 2.03}, "tol": 0.02}, "Correct."),
        (2.025, 2.0, {"mistakes": {"Near.": 2.03}, "tol": 0.02}, "Not yet: Near."),
        (4, 3.0, {"mistakes": SIGN}, "Not yet: the result is 4, which is not the expected one."),
        (float("nan"), 3.0, {}, "Not yet: the result is nan, which is not the expected one."),
        ("3", 3, {}, "Not yet: the result is '3'; one number is expected."),
        (object(), [3.0, 1], {}, "Not yet: the result is <object object at"),
        ([1.0, 3.0], torch.tensor([1.0, 2.0]), {},
         "Not yet: the result is wrong in 1 of 2 values; the first has index 1: 3."),
        ({"a": 1, "b": 3}, [1, 2], {}, "Not yet: b is 3, which is not the expected one."),
        ({"a": 1, "b": [1, 2]}, [1, 2], {}, "Not yet: b is [1.0, 2.0]; one number is expected."),
        ({"a": 5, "b": 7}, [1, 2], {}, "Not yet: a is 5, which is not the expected one. b is 7, w"),
        ([[1, 2], [1, 2]], [1, 2], {}, "Not yet: the result is of shape (2, 2); shape (2,) is exp"),
        # As many numbers, in another shape.
        ([[1, 2, 3], [4, 5, 6]], [[1, 2], [3, 4], [5, 6]], {}, "Not yet: the result is of shape"),
        (lambda x: 2 * x, lambda x: x + x, {"cases": [(1,), (4,)]}, "Correct."),
        (lambda x: x, lambda x: x**2, {"cases": [(1,), (4,)]},
         "Not yet: for 4 the result is 4, which is not the expected one."),
        (5, lambda x: x, {"cases": [(1,)]}, "Not yet: a function is expected; this is 5."),
        (lambda x: 1 / 0, lambda x: x, {"cases": [(1,)]},
         "Not yet: your code stops with ZeroDivisionError: division by zero"),
        (lambda x: x.size, lambda x: 1, {"cases": [(torch.ones(2),)]}, "Not yet: for tensor([1., 1"),
    ],
)  # fmt: skip
def test_a_check_says_what_is_wrong_and_never_raises(capsys, answer, expected, options, begins):
    assert printed(capsys, answer, expected, **options).startswith(begins)


def test_a_cell_that_waits_for_code_says_which(capsys):
    def twice(x):
        raise NotImplementedError("write `twice`")

    assert printed(capsys, twice, lambda x: x, cases=[(1,)]) == "Not yet: write `twice`"


@pytest.mark.parametrize(
    ("name", "answers", "hint"),
    [
        ("two models", (Fraction(3), torch.tensor(1.0)), "Correct."),
        ("two models", ([1, 1, -1], 1), "strength_and is [1.0, 1.0, -1.0]; one number is expected."),
        ("two models", (-3, -1), "the sign is turned around."),
        ("log odds", (2.19, -2.19, 0), "Correct."),
        ("log odds", tuple(torch.logit(torch.tensor([0.9, 0.1, 0.5]))), "Correct."),
        ("H by hand", (0.4, 0.25), "this is the rest: subtract it from 1."),
        ("H by hand", (0.75, 0.6), "the values are right, but in the wrong order."),
        ("H along training", (torch.tensor([0.2, 0.5, 0.6, 0.5625, 0.4]), 3), "Correct."),
        ("H along training", ([0.2, 0.5, 0.6], 3), "H is of shape (3,); shape (5,) is expected."),
        ("signs", (lambda k: [1, -1, 1, -1][k - 1],), "Correct."),
        ("signs", (lambda k: -np.cos(np.pi * k),), "Correct."),
        ("signs", (lambda k: print(k),), "A function gives None if"),
        ("signs", (1,), "a function is expected; this is 1."),
        ("probability", (lambda n, m, count: Fraction(count, comb(n, m)),), "Correct."),
        ("probability", (lambda n, m, count: min(1, count / comb(n, m)),), "Correct."),
        ("probability", (lambda n, m, count: comb(n, m) / count,), "this is upside down"),
        ("probability", (lambda n, m, count: 100 * count / comb(n, m),), "this is a percentage"),
        ("probability", (lambda n, m: 10 / comb(n, m),), "your code stops with TypeError"),
        ("count", (lambda x: int(np.searchsorted(np.cumsum(np.sort(np.abs(x))[::-1]),
                                                 0.8 * abs(np.sum(x.numpy())))) + 1,), "Not yet"),
        ("two tokens", (lambda a, b: (a.sigmoid() * b.sigmoid()).logit(),), "Correct."),
        ("linear program", (lambda triggers, w: np.zeros(3),), "expected one effect per column"),
        ("linear program", (lambda triggers, w: np.linalg.lstsq(triggers, w)[0],), "less strength"),
        ("linear program", (lambda triggers, w: np.linalg.pinv(triggers) @ w,), "less strength"),
        ("linear program", (lambda triggers, w: None,), "a linear program, if it has no solution"),
        ("linear program", (lambda triggers, w: ...,), "replace the dots"),
    ],
)  # fmt: skip
def test_answers_that_students_type(capsys, name, answers, hint):
    exercises.check(name, *answers)
    assert hint in capsys.readouterr().out


def second_boundary(kept, rest, t1, first=1, last=False, none=None):
    found = none
    for i in range(t1 + first, len(kept)):
        if 0 < rest[i] - rest[i - 1] > kept[i] - kept[i - 1] and (last or found is none):
            found = i
    return found


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({}, "Correct."),
        ({"first": 0}, "Not yet: start after t1, not at it."),
        ({"last": True}, "Not yet: take the first such checkpoint, not the last."),
        ({"none": -1}, "Not yet: without such a checkpoint return None, not -1."),
    ],
)
def test_loops_for_the_second_boundary(capsys, options, begins):
    exercises.check("t2", lambda *case: second_boundary(*case, **options))
    assert capsys.readouterr().out.startswith(begins)


def test_graded_checks_raise_and_use_other_numbers(capsys):
    seen = []

    def program(triggers, w):
        seen.append(w)
        return exercises.least(triggers, w)

    exercises.check("linear program", program)
    with checking.grading():
        exercises.check("linear program", program)
        with pytest.raises(AssertionError, match="this is the rest"):
            exercises.check("H by hand", 0.4, 0.25)
    assert not np.allclose(*seen)
    exercises.check("H by hand", 0.4, 0.25)  # prints again


def test_a_table_of_ones_own_and_an_unknown_exercise(tmp_path, capsys):
    table = tmp_path / "own.yml"
    table.write_text("weights:\n  given: {b: 2 * a}\n  right: a + b\n  mistakes: {Add b.: a}\n")
    exercises.check("weights", 3, table=table, a=1)
    exercises.check("weights", 1, table=table, a=1)
    assert capsys.readouterr().out == "Correct.\nNot yet: Add b.\n"
    with pytest.raises(notebooks.BookError, match='exercise "weight" is unknown'):
        exercises.check("weight", 3, table=table)
