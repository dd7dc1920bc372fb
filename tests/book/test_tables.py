"""Boxes and tables of claims: what they say, and that nothing in them is markup."""

import math
import re

import pandas as pd
import pytest

from symgen import Chapter, Interval
from symgen.book.tables import (
    apart,
    benchmark_table,
    claim_box,
    claim_rows,
    claims_table,
    reported,
    verdict_matrix,
)  # fmt: skip
from symgen.method.claims.judgement import Judgement, above, below

SHOWN = Judgement([above("H at its peak", Interval(0.5, 0.4, 0.6), margin=0.02)], 30)
OPEN = Judgement([above("a", Interval(0.5, 0.4, 0.6)), below("b", Interval(0.1, -0.2, 0.3))], 12)
EMPTY = Judgement([], 7, "there is no peak")


def cells(text):
    return [re.sub("<.*?>", "", x).strip() for x in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", text)]


def test_rows_hold_value_interval_bound_and_both_verdicts():
    rows = claim_rows("power", {"cnn on digits": SHOWN, "other": OPEN, "third": EMPTY})
    assert rows["verdict"].tolist() == ["shown", "undecided", "undecided", "not tested"]
    assert rows["contrast"].tolist() == ["shown", "shown", "undecided", "not tested"]
    first = rows.iloc[0]
    assert (first["value"], first["low95"], first["high95"], first["margin"]) == (
        0.5,
        0.4,
        0.6,
        0.02,
    )
    assert (first["repetitions"], first["of"]) == (30, "samples") and first[
        "measure"
    ] == "H at its peak"
    assert math.isnan(rows.iloc[3]["value"]) and rows.iloc[3]["measure"] == "there is no peak"


def test_the_box_says_claim_value_samples_verdict_and_rule():
    box = claim_box("power", "H rises.", {"cnn on digits": SHOWN, "other": OPEN, "third": EMPTY})
    text = box._repr_html_()
    about = reported("claims").set_index("claim").loc["power"]
    assert about.statement in text and about.place in text
    assert "<summary>The rule</summary><p>H rises.</p>" in text
    found = cells(text)
    assert "cnn on digits30 samples" in found
    assert "0.50 [0.40, 0.60]" in found and "above 0 by more than 0.02" in found
    assert found.count("+ shown") == 1 and found.count("? undecided") == 1
    assert "there is no peak" in found
    assert re.search("about [0-9,]+ samples would decide", text)
    assert "cnn on digits: shown (30 samples)" in repr(box)
    assert "H at its peak: 0.50 [0.40, 0.60], shown" in repr(box)


def test_the_box_says_of_how_many_a_contrast_is_and_what_trainings_count_as():
    whole = above("whole", Interval(0.5, 0.4, 0.6), count=8)
    part = above("part", Interval(0.1, -0.2, 0.4), count=5)
    trainings = Judgement([whole, part], 8, unit="trainings")
    found = cells(claim_box("power", "H rises.", {"a": trainings})._repr_html_())
    assert "whole" in found and "part (5 trainings)" in found
    assert claim_rows("power", {"a": trainings})["repetitions"].tolist() == [8, 5]
    text = claim_box("power", "H rises.", {"a": trainings})._repr_html_()
    assert "Of several trainings each counts as one number" in text and "would decide" in text
    # Cells of a map are no draws: more of them would decide about something else.
    text = claim_box("power", "H rises.", {"a": Judgement([part], 8, unit="cells")})._repr_html_()
    assert "would decide" not in text and "Of several trainings" not in text


def test_what_comes_from_data_is_no_markup():
    bad = "<script>x</script> on {{ y }}"
    judged = {bad: Judgement([above(bad, Interval(0.5, 0.4, 0.6), unit=bad)], 3, bad)}
    for page in (claim_box("power", bad, judged), verdict_matrix(joined(judged))[0]):
        assert "<script" not in page._repr_html_()
    assert "<script" not in claims_table(joined(judged))._repr_html_()


def joined(judged):
    rows = claim_rows("power", judged).assign(preset="quick")
    return (
        reported("claims")
        .merge(rows, on="claim", how="left")
        .assign(verdict=lambda t: t.verdict.fillna("not tested"))
    )


def test_the_matrix_has_one_row_a_claim_and_one_numbered_column_a_setting():
    page, matrix = verdict_matrix(joined({"cnn on digits": SHOWN, "other": OPEN}))
    assert matrix.index.tolist() == reported("claims")["claim"].tolist()
    assert matrix.columns.tolist() == ["quick: cnn on digits", "quick: other"]
    assert matrix.loc["power"].tolist() == ["shown", "undecided"]
    assert matrix.drop("power").isna().all(axis=None)
    text = page._repr_html_()
    assert text.count('<span class="verdict shown">+</span>') == 1
    assert "<li>quick: cnn on digits</li><li>quick: other</li>" in text


def test_the_claims_table_names_what_nothing_was_measured_for():
    text = claims_table(joined({"cnn on digits": SHOWN}))._repr_html_()
    assert text.count("no run has measured it") == len(reported("claims")) - 1
    assert "0.5 [0.4, 0.6]" in text and "30 samples" in text
    assert 'href="03_three_phase_dynamics.html"' in text


def test_a_chapter_records_each_setting_once_and_shows_the_box():
    chapter = Chapter("03_three_phase_dynamics", {"preset": "quick"})

    def power(found):
        """H rises, then falls."""
        return found

    box = chapter.claim(power, {"a": SHOWN, "b": (OPEN,)})
    assert "H rises, then falls." in box._repr_html_()
    chapter.claim(power, {"b": EMPTY})
    rows = chapter.tables["claims"]
    assert rows["setting"].tolist() == ["a", "b"]
    assert rows["verdict"].tolist() == ["shown", "not tested"]


def test_a_claim_that_the_paper_does_not_make_is_refused():
    chapter = Chapter("03_three_phase_dynamics", {"preset": "quick"})

    def nosuch():
        return SHOWN

    with pytest.raises(KeyError, match="nosuch"):
        chapter.claim(nosuch, {"a": ()})


def test_benchmarks_say_what_ratio_should_be():
    row = {"what": "a <b>", "against": "c", "ours": 1.0, "theirs": 2.0, "unit": "s", "ratio": 2.0,
           "must": 1.5, "limit": None, "met": True}  # fmt: skip
    text = benchmark_table(pd.DataFrame([row]))._repr_html_()
    assert "a &lt;b&gt;" in text and "at least 1.5" in text and ">yes<" in text


@pytest.mark.parametrize(
    ("value", "margin", "told"),
    [
        ((0.0322, 0.0221, 0.0412), 0.02, "0.032 [0.022, 0.041]"),  # low reads as the margin
        ((0.019, 0.0079, 0.0304), 0.02, "0.02 [0.01, 0.03]"),
        ((0.0301, -0.0004, 0.061), 0.0, "0.0301 [-0.0004, 0.0610]"),  # low reads as the bound
        ((-0.0441, -0.0702, -0.0196), 0.02, "-0.0441 [-0.0702, -0.0196]"),  # high, as -margin
        ((0.2, 0.02, 0.4), 0.02, "0.20 [0.02, 0.40]"),  # low is the margin
        ((210.0, 180.4, 231.2), 0.0, "210 [180, 231]"),
        ((0.00031, -0.0002, 0.0008), 0.0, "3.1e-04 [-2.0e-04, 8.0e-04]"),
    ],
)
def test_no_end_of_an_interval_looks_like_a_limit_that_it_is_not_at(value, margin, told):
    assert apart(Interval(*value), 0.0, margin) == told
    judged = {"a": Judgement([above("x", Interval(*value), margin=margin)], 30)}
    assert told in cells(claim_box("power", "", judged)._repr_html_())
