"""What the landing page says is what the results say, and its figure is that of the map."""

import nbformat
import pandas as pd

from symgen.book.landing import ANSWERS, HELD, answer, held, hero

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


def results(*rows):
    return pd.DataFrame(rows, columns=COLUMNS)


def test_each_claim_is_one_line_with_its_verdict_value_and_page():
    effects = pd.DataFrame(
        [("width", 4, 16, "power", "first", 0.05, 0.03, 0.07, 12),
         ("width", 4, 16, "power", "then", 0.9, 0.8, 1.0, 12)],
        columns=["factor", "least", "most", "quantity", "change", "value", "low95", "high95",
                 "pairs"],
    )  # fmt: skip
    told = held(
        results(
            ("03", "power", "main", 0.3, 0.2, 0.4, 8, "trainings", "shown"),
            ("03", "power", "main", -0.1, -0.2, -0.05, 8, "trainings", "shown"),
            ("03", "power", "texts", 0.0, -0.2, 0.3, 4, "trainings", "undecided"),
            ("02", "low_orders", "a <b>", float("nan"), float("nan"), float("nan"), 2, "samples",
             "not tested"),
        ),
        effects,
    )  # fmt: skip
    first, second, when = told.splitlines()
    assert HELD["low_orders"] in first and "not tested" in first and "nan" not in first
    assert "a &lt;b&gt;" in first and "[more](02)" in first
    assert "+0.30 [+0.20, +0.40], then -0.10 [-0.20, -0.05]" in second
    assert "8 trainings" in second and "texts" not in second
    assert "changes by +0.05 [+0.03, +0.07] with width of 16 in place of 4: see" in when
    assert "0.9" not in when


def test_the_map_counts_before_a_single_setting():
    told = held(
        results(
            ("03", "power", "main", 0.3, 0.2, 0.4, 8, "trainings", "shown"),
            ("when", "power", "map", 0.1, -0.2, 0.4, 24, "cells", "undecided"),
        ),
        pd.DataFrame(),
    )
    assert "+0.10" in told and "24 cells" in told and "+0.30" not in told


def test_without_results_nothing_is_said():
    nothing = pd.DataFrame(columns=["preset", "chapter"])
    assert held(nothing, nothing) == "*No run has been stored yet.*"


def test_the_figure_is_the_one_of_the_cases():
    cells = [nbformat.v4.new_code_cell(s) for s in ("figures.plot_moves(x)", "plot_cases(cases)")]
    page = nbformat.v4.new_notebook(cells=cells)
    assert hero(page) is None
    for cell, svg in zip(page.cells, ("<svg>map</svg>", "<svg>cases</svg>"), strict=True):
        data = {"image/svg+xml": svg, "text/plain": "a figure"}
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
    assert hero(page) == "<svg>cases</svg>"


def test_the_answer_sorts_each_claim_once_by_its_largest_preset():
    texts = {"a": "A <b>", "b": "B", "c": "C", "d": "D", "e": "E"}
    found = [
        ("a", "quick", "x", "absent"), ("a", "cpu", "x", "shown"), ("a", "cpu", "y", "shown"),
        ("b", "quick", "x", "shown"), ("b", "quick", "y", "undecided"),
        ("c", "quick", "x", "opposite"), ("c", "quick", "y", "undecided"),
        ("d", "cpu", "x", "undecided"), ("d", "cpu", "y", "not tested"),
        ("e", None, None, "not tested"),
    ]  # fmt: skip
    table = pd.DataFrame(found, columns=["claim", "preset", "setting", "verdict"])
    table["place"] = table["claim"].map(lambda c: "control of ours" if c == "b" else "Fig. 2")
    table = table.assign(statement=table["claim"].map(texts), chapter="02")
    table = table.assign(value=1.0, low95=range(len(table)), high95=9.0)
    page, rows = answer(table)
    everywhere, some, no, unknown = ANSWERS
    assert rows["answer"].tolist() == [everywhere, some, no, unknown, unknown]
    assert rows["control"].tolist() == [False, True, False, False, False]
    assert rows["shown"].tolist() == [2, 1, 0, 0, 0]
    assert rows["settings"].tolist() == [2, 2, 2, 1, 0]
    assert rows["preset"].tolist()[:4] == ["cpu", "quick", "quick", "cpu"]
    text = page._repr_html_()
    assert "A &lt;b&gt;</a> <small>(2 of 2, cpu)" in text and text.count("not tested") == 1
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
    _, rows = answer(table)
    assert rows[["shown", "settings"]].to_numpy().tolist() == [[1, 2]]
    assert rows["answer"].item() == [*ANSWERS][1]
