"""What the landing page says is what the results say, and its figure is that of the map."""

import nbformat
import pandas as pd

from symgen.book.landing import ANSWERS, QUESTIONS, answer, drawn_by, held

HELD = {k: words for asked in QUESTIONS.values() for k, words in asked.claims.items()}
COLUMNS = [
    "chapter",
    "claim",
    "setting",
    "value",
    "low95",
    "high95",
    "repetitions",
    "of",
    "verdict",
]
CELLS = pd.DataFrame(
    {"finding 2": ["shown", "absent", "shown"], "finding 3": ["shown", "shown", "opposite"]}
)


def no_figure(chapter, call, seen):
    return ""


def results(*rows):
    return pd.DataFrame(rows, columns=COLUMNS).assign(
        bound=0.0, margin=0.02, unit="1", open=float("nan")
    )


def test_each_claim_is_one_line_with_its_verdict_and_page_and_its_numbers_are_folded():
    effects = pd.DataFrame(
        [("width", 4, 16, "power", "first", 0.05, 0.03, 0.07, 12),
         ("width", 4, 16, "lift", "first", 0.02, -0.01, 0.05, 12),
         ("width", 4, 16, "power", "then", 0.9, 0.8, 1.0, 12),
         ("width", 4, 16, "lift", "then", -0.03, -0.06, -0.002, 12),
         ("wrong labels", 0, 1, "lift", "then", 0.7, -0.1, 1.5, 12)],
        columns=["factor", "least", "most", "quantity", "change", "value", "low95", "high95",
                 "pairs"],
    )  # fmt: skip
    told = held(
        results(
            ("03", "power", "main", 0.3, 0.2, 0.4, 8, "trainings", "shown"),
            ("03", "power", "main", -0.1, -0.2, -0.05, 8, "trainings", "shown"),
            ("03", "power", "texts", 0.0, -0.2, 0.3, 4, "trainings", "undecided"),
            ("02", "low_orders", "a", float("nan"), float("nan"), float("nan"), 2, "samples",
             "not tested"),
            ("02", "count", "a <b>", 0.5, 0.4, 0.6, 2, "samples", "shown"),
        ),
        effects,
        CELLS,
        no_figure,
    )  # fmt: skip
    assert "nan" not in told
    asked, first, also, second, _, together, when, summary, numbers, escaped, end = filter(
        None, told.splitlines()
    )
    assert [asked, also] == [f"### {question}" for question in [*QUESTIONS][:2]]
    assert "(a &lt;b&gt;, 2 samples)" in escaped
    assert HELD["low_orders"] in first and "not tested" in first and "nan" not in first
    assert "<small>2 samples; [more](02)" in first
    assert "<small>8 trainings; shown in 1 of 2 settings;" in second and "0.30" not in second
    assert "<details>" in summary and end == "</details>"
    assert "+0.30 [+0.20, +0.40] and -0.10 [-0.20, -0.05], margin 0.02" in numbers
    assert HELD["power"] in numbers and "(main, 8 trainings)" in numbers
    assert HELD["low_orders"] not in told.split("<details>")[1] and "texts" not in told
    assert "changes by +0.05 [+0.03, +0.07] (above chance +0.02 [-0.01, +0.05]) with" in when
    assert "width of 16 in place of 4: see" in when
    assert "0.9" not in when and "falls, 1 of these 1 factors makes" in when
    fall = "-0.030 [-0.060, -0.002] with width of 16 in place of 4"
    assert when.endswith(f"leaves out no change (above chance: {fall})")
    # Of the cells below, the first alone has both.
    assert together.endswith(
        ": all shown in 1 of 3 cells, each by itself, one or more absent or opposite in 2, in the "
        "others not decided"
    )


def test_the_map_counts_before_a_single_setting():
    told = held(
        results(
            ("03", "power", "main", 0.3, 0.2, 0.4, 8, "trainings", "shown"),
            ("03", "power", "main", -0.1, -0.2, -0.05, 8, "trainings", "shown"),
            ("03", "power", "texts", 0.7, 0.2, 0.9, 4, "trainings", "undecided"),
            ("when", "power", "map", 0.1, -0.2, 0.4, 2, "cells", "undecided"),
        ),
        pd.DataFrame(),
        CELLS,
        no_figure,
    )
    assert "undecided</span>" in told and "shown</span>" not in told
    line, numbers = told.split("<details>")
    assert "on average over 2 of 3 cells of our map; alone, shown in 2, absent" in line
    assert "; [without the map](03) shown in 1 of 2 settings; [more](when)" in line
    assert "+0.70" not in told
    of_map, beside = numbers.split("; ")
    assert "+0.10" in of_map and "(map, 2 cells)" in of_map and "+0.30" not in of_map
    assert beside.startswith("+0.30 [+0.20, +0.40] and -0.10 [-0.20, -0.05], margin 0.02 (main,")


def test_a_setting_in_which_nothing_could_be_tested_comes_last():
    nothing = (float("nan"),) * 3
    rows = ("04", "power", "x", *nothing, 3, "trainings", "not tested"), (
        "04", "power", "y", 0.1, 0.0, 0.2, 3, "trainings", "undecided",
    )  # fmt: skip
    told = held(results(*rows), pd.DataFrame(), CELLS, no_figure)
    assert "(y, 3 trainings)" in told and "not tested" not in told


def test_of_several_settings_the_one_with_most_trainings_is_told():
    few = ("04", "removal_gap", "few", 0.5, 0.4, 0.6, 4, "trainings", "shown")
    many = ("04", "removal_gap", "many", 0.1, 0.0, 0.2, 8, "trainings", "undecided")
    told = held(results(few, many), pd.DataFrame(), CELLS, no_figure)
    assert "8 trainings; shown in 1 of 2 settings" in told and "+0.50" not in told
    assert "(many, 8 trainings)" in told


def test_what_is_opposite_in_a_setting_is_counted_and_values_have_their_units():
    main = ("E", "penalty_accuracy", "map of 24 cells", 0.1, 0.0, 0.2, 24, "cells", "undecided")
    worse = ("E", "penalty_accuracy", "b", -0.5, -0.6, -0.4, 8, "trainings", "opposite")
    told = held(results(main, worse).assign(unit="nats"), pd.DataFrame(), CELLS, no_figure)
    assert "24 cells; shown in 0 of 2 settings, opposite in 1; [more](E)" in told
    assert "+0.20] nats, margin 0.02 (map of 24 cells)</small>" in told


def test_what_an_undecided_claim_may_still_be_is_said():
    row = ("02", "low_orders", "x", -0.2, -0.4, -0.1, 8, "trainings", "undecided")
    told = held(results(row).assign(open="absent or opposite"), pd.DataFrame(), CELLS, no_figure)
    assert "undecided</span> <small>(absent or opposite)</small>" in told


def test_without_results_nothing_is_said():
    nothing = pd.DataFrame(columns=["preset", "chapter"])
    assert held(nothing, nothing, nothing, no_figure) == "*No run has been stored yet.*"


def test_the_figure_is_that_of_the_first_cell_with_the_call():
    cells = [
        nbformat.v4.new_code_cell(s) for s in ("plot_moves(x)", "plot_cases(a)", "plot_cases(b)")
    ]
    page = nbformat.v4.new_notebook(cells=cells)
    assert drawn_by(page, "plot_cases(") is None
    for cell, svg in zip(
        page.cells, ("<svg>map</svg>", "<svg>a</svg>", "<svg>b</svg>"), strict=True
    ):
        data = {"image/svg+xml": svg, "text/plain": "a figure"}
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
    assert drawn_by(page, "plot_cases(") == "<svg>a</svg>"
    assert drawn_by(page, "plot_cases(b)") == "<svg>b</svg>"


def test_a_question_that_nothing_answers_is_not_asked_and_one_with_a_figure_says_what_it_shows():
    row = ("extractor", "extractor_count", "a", 0.6, 0.5, 0.7, 5, "trainings", "shown")

    def figure(chapter, call, seen):
        return f"[{chapter}: {call}]"

    told = held(results(row), pd.DataFrame(), CELLS, figure).splitlines()
    (asked,) = (line for line in told if line.startswith("### "))
    drawn = told.index("[extractor: plot_planted(]")
    assert (
        told[drawn + 2]
        == f"<small>{QUESTIONS[asked[4:]].seen}: from [its page](extractor).</small>"
    )


def test_the_answer_sorts_each_claim_once_by_its_largest_preset():
    texts = {"a": "A <b>", "b": "B", "c": "C", "d": "D", "e": "E", "f": "F", "g": "G"}
    found = [
        ("a", "quick", "x", "absent"), ("a", "cpu", "x", "shown"), ("a", "cpu", "y", "shown"),
        ("b", "quick", "x", "shown"), ("b", "quick", "y", "undecided"),
        ("c", "quick", "x", "opposite"), ("c", "quick", "y", "undecided"),
        ("d", "cpu", "x", "undecided"), ("d", "cpu", "y", "not tested"),
        ("e", None, None, "not tested"), ("f", "cpu", "x", "undecided"),
        ("g", "cpu", "x", "opposite"),
        ("g", "cpu", "y", "undecided"), ("g", "cpu", "z", "undecided"),
    ]  # fmt: skip
    table = pd.DataFrame(found, columns=["claim", "preset", "setting", "verdict"])
    table["place"] = table["claim"].map(lambda c: "control of ours" if c == "b" else "Fig. 2")
    table = table.assign(statement=table["claim"].map(texts), chapter="02")
    table = table.assign(value=1.0, low95=range(len(table)), high95=9.0, page="03")
    table["open"] = table["claim"].map({"f": "absent or opposite"}).fillna("")
    table["paper_value"] = table["claim"].map({"d": "not tested in the paper"}).fillna("for all")
    page, rows = answer(table)
    everywhere, some, no, partly, unknown = ANSWERS
    assert rows["answer"].tolist() == [everywhere, some, no, unknown, unknown, no, partly]
    assert rows["control"].tolist() == [False, True, False, True, False, False, False]
    assert rows["shown"].tolist() == [2, 1, 0, 0, 0, 0, 0]
    assert rows["settings"].tolist() == [2, 2, 2, 1, 0, 1, 3]
    assert rows["preset"].tolist()[:4] == ["cpu", "quick", "quick", "cpu"]
    text = page._repr_html_()
    assert '03.html">A &lt;b&gt;</a> <small>(2 of 2, cpu)' in text and text.count("not tested") == 1
    lines = text.split("<tr>")
    assert "B</a> <small>(1 of 2, quick)" in lines[3].split("<td>")[2]  # the column of controls
    # One contrast more of a setting is no setting more.
    again = pd.concat([table, table[table["claim"] == "a"]])
    assert answer(again)[1].equals(rows)


def test_what_two_pages_measured_alike_counts_once():
    found = [("power", "cpu", "x", "shown", 0.3), ("power", "cpu", "the same", "shown", 0.3),
             ("power", "cpu", "y", "absent", 0.2)]  # fmt: skip
    table = pd.DataFrame(found, columns=["claim", "preset", "setting", "verdict", "value"])
    table = table.assign(low95=0.1, high95=0.4, place="Fig. 2", statement="A", chapter="03")
    table = table.assign(page="03", open="", paper_value="for all")
    _, rows = answer(table)
    assert rows[["shown", "settings"]].to_numpy().tolist() == [[1, 2]]
    assert rows["answer"].item() == [*ANSWERS][1]
