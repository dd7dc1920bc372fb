"""The numbers on the teaching page are those that the chapters show."""

import re

import pandas as pd
from conftest import ROOT

PAGE = " ".join((ROOT / "chapters" / "teaching.md").read_text(encoding="utf-8").split())
TABLES = ROOT / "data" / "editions" / "quick" / "tables"


def table(name):
    return pd.read_csv(TABLES / f"{name}.csv")


def test_the_hand_out_of_the_debate_is_the_chapters_table():
    closed = table("04_loss_gap_removal.closed")
    for row in closed[closed["label"] == closed["label"].iloc[0]].itertuples():
        told = f"{row.closed:.2f} ({row.low95:.2f} to {row.high95:.2f}) |"
        assert re.search(rf"\| {row.removed}[^|]*\| {re.escape(told)}", PAGE), row


def test_the_controls_are_those_of_chapter_2():
    means = table("02_order_generalization.controls").mean()
    reasons = dict(re.findall(r"\| ([^|]*) \| (0\.\d\d) \|", PAGE))
    for control, name in {
        "trained baselines, same class": "power",
        "relabelled variables": "chance",
        "untrained baselines": "untrained",
        "trained baselines, another class": "other_class",
    }.items():
        assert reasons[control] == f"{means[name]:.2f}"


def test_the_middle_column_of_what_to_expect_is_chapter_3():
    course = table("03_three_phase_dynamics.trainings").set_index("step")
    quantities = {"power": 2, "lift": 2, "count": 1, "gap [nats]": 2}
    rows = re.findall(r"\| (?:untrained|step 30[^|]*|end[^|]*) \| \S+ \| (\S+) \|", PAGE)
    wanted = [
        f"{course.loc[step, name] + 0.0:.{digits}f}".replace("-0.00", "0.00")
        for name, digits in quantities.items()
        for step in (0, 30, 300)
    ]
    assert rows == [*wanted, f"{course['test_accuracy'].iloc[-1]:.2f}"]
    assert course["power"].idxmax() == 30


def test_the_strength_of_low_orders_is_what_the_lecturer_is_told():
    spectrum = table("02_order_generalization.spectrum")
    strength = spectrum["total [log odds]"].abs()
    share = strength[spectrum["order"] <= 2].sum() / strength.sum()
    assert f"{share:.0%}".replace("%", " % of the salient strength") in PAGE
