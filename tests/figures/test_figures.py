"""Figures of the chapters on extraction and on order draw the numbers that they are given."""

import html
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from symgen import figures as plots


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_low_and_high_orders_with_a_group_that_no_sample_has():
    nothing = [np.nan] * 4
    rows = [
        ("cnn on digits", "low: 1-2", 0.4, 0.3, 0.5, 0.1, 20, 20),
        ("cnn on digits", "high: 6-10", *nothing, 0, 20),
        ("bert on texts", "low: 1-2", 0.6, 0.4, 0.8, 0.1, 19, 20),
        ("bert on texts", "high: 6-10", 0.2, np.nan, np.nan, 0.0, 1, 20),
    ]
    columns = ["setting", "orders", "power", "low95", "high95", "chance", "samples", "of"]
    figure, _ = plots.plot_low_high(pd.DataFrame(rows, columns=columns))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("no such interactions") == 1
    assert {"20 of 20", "0 of 20", "19 of 20", "1 of 20"} <= set(texts)


def test_a_setting_of_zero_stands_left_of_the_others():
    rows = [(x, "all orders", 0.5, 0.4, 0.6, 0.1) for x in (0.0, 0.01, 0.05)]
    columns = ["setting", "label", "power", "low95", "high95", "chance"]
    ax, _ = plots.plot_sensitivity(pd.DataFrame(rows, columns=columns), "noise", default=0.0)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "0.01", "0.05"]
    assert ax.get_xticks().tolist() == pytest.approx([0.005, 0.01, 0.05])


FORMULA = r"$\foo_$ a_b"


def shown_by(figure):
    """Draw for good, which is when matplotlib reads formulas, and return all that is written."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plt.rcParams, "svg.fonttype", "none")
        figure.savefig(text, format="svg")
    return text.getvalue()


def test_tables_show_text_of_data_as_text():
    bad = "<script>x</script>"
    row = {
        "claim": bad, "place": bad, "statement": bad, "paper_value": bad, "chapter": bad,
        "preset": bad, "setting": bad, "measure": bad, "value": 1.0, "low95": np.nan,
        "high95": np.nan, "unit": bad, "samples": 2, "verdict": "shown",
    }  # fmt: skip
    text = plots.claims_table(pd.DataFrame([row, {**row, "preset": np.nan}])).text
    row = {
        "what": bad, "against": bad, "ours": 1.0, "theirs": 2.0, "unit": bad, "ratio": 0.5,
        "must": np.nan, "limit": np.nan, "met": True,
    }  # fmt: skip
    text += plots.benchmark_table(pd.DataFrame([row])).text
    assert "<script" not in text
    assert text.count("&lt;script") >= 8


@given(st.text())
def test_plain_text_is_markdown_and_html_of_itself(text):
    wanted = "".join(filter(str.isprintable, re.sub(r"\s+", " ", text)))
    found = plots.plain(f"x{text}x")
    assert "\n" not in found
    assert html.unescape(found) == f"x{wanted}x"
    assert not re.search(r"[^\w &#;]|_", found)
