"""Contrasts, judgements and verdicts; and that every claim has its rule."""

import collections
import inspect
import math

import pandas as pd
import pytest
import torch
from conftest import ROOT

from symgen.method import claims
from symgen.method.claims import phases
from symgen.method.claims.judgement import VERDICTS, Judgement, above, below, lead, verdicts
from symgen.method.statistics import Interval, interval

NONE = Interval(math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    ("low", "high", "claimed_above", "claimed_below"),
    [
        (0.03, 0.05, "shown", "opposite"),
        (-0.05, -0.03, "opposite", "shown"),
        (-0.01, 0.02, "absent", "absent"),
        (-0.05, 0.01, "undecided", "undecided"),
        (0.01, 0.05, "undecided", "undecided"),
        (-0.5, 0.5, "undecided", "undecided"),
        (math.nan, math.nan, "not tested", "not tested"),
    ],
)
def test_a_verdict_follows_from_interval_margin_and_side(low, high, claimed_above, claimed_below):
    value = Interval((low + high) / 2, low, high)
    for bound in (0.0, 7.0):
        moved = Interval(*(x + bound for x in value))
        assert above("a", moved, bound, 0.02 + 1e-12).verdict == claimed_above
        assert below("a", moved, bound, 0.02 + 1e-12).verdict == claimed_below


def test_all_contrasts_are_needed_and_the_worst_decides():
    kinds = {
        "shown": above("a", Interval(1, 0.9, 1.1)),
        "opposite": above("a", Interval(-1, -1.1, -0.9)),
        "absent": above("a", Interval(0, -0.1, 0.1), margin=0.2),
        "undecided": above("a", Interval(0.1, -1, 1.2)),
        "not tested": above("a", NONE),
    }
    assert {k: Judgement([c], 9).verdict for k, c in kinds.items()} == {k: k for k in kinds}
    order = ["shown", "undecided", "absent", "opposite", "not tested"]
    for i, worse in enumerate(order):
        for better in order[: i + 1]:
            assert Judgement([kinds[better], kinds[worse]], 9).verdict == worse
    assert Judgement([], 9).verdict == "not tested"
    assert {*kinds} == {*VERDICTS}


@pytest.mark.parametrize(
    ("looks", "least", "most"),
    [((8,), 0.015, 0.03), ((4, 8), 0.03, 0.055), ((5, 45), 0.035, 0.055),
     ((8, 32), 0.035, 0.055), ((8, 64), 0.035, 0.055), ((8, 20, 172), 0.05, 0.08)],
)  # fmt: skip
def test_looking_again_where_a_claim_is_undecided_adds_few_false_alarms(looks, least, most):
    """On the margin itself no verdict is right: 5 in 100 with two looks, 7 with three, a side."""
    found, stream = collections.Counter(), torch.Generator().manual_seed(0)
    for _ in range(3000):
        values = 0.02 + 0.02 * torch.randn(looks[-1], generator=stream, dtype=torch.float64)
        told = (lead("a", values[:count]).verdict for count in looks)
        found[next((verdict for verdict in told if verdict != "undecided"), "undecided")] += 1
    for verdict in ("shown", "absent"):
        assert least < found[verdict] / 3000 <= most, found


def test_the_number_of_samples_that_would_decide_does_decide():
    few = above("a", Interval(0.2, -0.25, 0.65), margin=0.02)
    assert few.verdict == "undecided"
    needed = few.decided_by(20)
    # The same mean, with an interval that has shrunk as the root of the number of samples.
    for samples, decided in ((needed + 1, True), (0.95 * needed, False)):
        half = 0.45 * (20 / samples) ** 0.5
        more = above("a", Interval(0.2, 0.2 - half, 0.2 + half), margin=0.02)
        assert (more.verdict == "shown") == decided
    assert Judgement([few, above("b", Interval(1, 0.9, 1.1))], 20).decided_by == needed
    assert Judgement([], 20).decided_by is None
    # Near nothing, what would be decided is that there is nothing.
    assert above("a", Interval(0.0, -0.1, 0.1), margin=0.05).decided_by(20) == 80


def test_a_rule_in_several_settings():
    found = verdicts(lambda x: Judgement([above("a", x)], 3), {"p": (Interval(1, 0.5, 2),)})
    assert found.to_dict() == {"p": "shown"}


def test_every_claim_of_the_paper_has_a_rule_of_its_name_and_every_rule_is_such_a_claim():
    table = pd.read_csv(ROOT / "data" / "paper" / "claims.csv")
    rules = {name for name in claims.__all__ if inspect.isfunction(getattr(claims, name))}
    rules -= {"judge", "verdicts"}
    assert rules == {*table["claim"]}
    for name in rules:
        rule = getattr(claims, name)
        assert rule.__name__ == name
        # A page shows it, on one line.
        assert len(inspect.getdoc(rule)) > 40


def test_every_rule_is_used_by_the_chapter_that_the_table_names():
    table = pd.read_csv(ROOT / "data" / "paper" / "claims.csv").set_index("claim")
    for name, chapter in table["chapter"].items():
        source = (ROOT / "chapters" / f"{chapter}.ipynb").read_text(encoding="utf-8")
        assert f"claims.{name}" in source or f", {name}" in source, name


def test_a_rule_about_samples_counts_each_of_several_trainings_once():
    def rule(values, note=""):
        """Above one."""
        unit = {"unit": "%", "within": (0.0, 100.0)} if note == "share" else {}
        contrasts = [above("x", interval(values), 1, **unit)]
        return Judgement(contrasts * (len(values) > 1), len(values), "too few")

    one, two, three = (torch.tensor([1.0, 2.0, x]) for x in (3, 6, 9))
    alone = claims.judge(rule, claims.Repeated([(one,)]))
    assert alone == claims.judge(rule, one) == rule(one) and alone.unit == "samples"
    several = claims.judge(rule, claims.Repeated([one, (two,), three]))
    assert (several.samples, several.unit) == (3, "trainings")
    assert several.contrasts[0].value == interval(torch.tensor([2.0, 3, 4]).double())
    # One that could not be tested counts as none, and shares stay where shares lie.
    with_none = claims.judge(rule, claims.Repeated([one, two, torch.ones(1)]))
    assert with_none.samples == 2
    near = [torch.tensor([98.0, 99.0]), torch.tensor([96.0, 90.0])]
    share = claims.judge(rule, claims.Repeated([(x, "share") for x in near])).contrasts[0].value
    assert share.mean == pytest.approx(95.75) and share.high <= 100
    assert claims.judge(rule, claims.Repeated([torch.ones(1)] * 2)).note == "too few"
    found = claims.verdicts(rule, {"a": claims.Repeated([one, three]), "b": one})
    assert found.to_dict() == {"a": "undecided", "b": "undecided"}


def test_a_contrast_counts_the_trainings_that_have_it_and_needs_two():
    def rule(*values):
        return Judgement([above(name, Interval(x, x - 1, x + 1)) for name, x in values], 9)

    every, half, few = [("all", 0.1)], [("all", 0.2), ("half", 0.3)], [("all", 0.3), ("few", 0.4)]
    found = claims.judge(rule, claims.Repeated([*([tuple(every)] * 2), tuple(half), tuple(few)]))
    assert [(one.measure, one.count) for one in found.contrasts] == [("all", 4)]
    found = claims.judge(rule, claims.Repeated([tuple(half), tuple(half), tuple(every)]))
    assert [(one.measure, one.count) for one in found.contrasts] == [("all", 3), ("half", 2)]
    assert found.samples == 3
    # Half of two is one, of which there is no interval.
    lone = claims.judge(rule, claims.Repeated([(("a", 0.1),), (("b", 0.2),)]))
    assert lone.verdict == "not tested" and "too few" in lone.note


def test_a_claim_is_decided_by_the_first_contrast_that_is_against_it():
    near = above("near 0", Interval(0.0, -0.25, 0.25), margin=0.125)
    ahead = above("ahead", Interval(0.25, -0.25, 0.75), margin=0.125)
    rare = above("rare", Interval(0.0, -0.25, 0.25), margin=0.125, count=4)
    assert Judgement([near, ahead], 10).decided_by == 40
    assert Judgement([near, ahead, rare], 10).decided_by == 16
    assert Judgement([ahead], 10).decided_by == 160


def test_one_margin_of_shares():
    default = inspect.signature(lead).parameters["margin"].default
    assert default == phases.SHARE
