"""Text of data is shown as it stands, whatever it holds."""

import html
import io
import re

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, strategies as st

from symgen.literal import nearest, no_math, plain


@given(st.text())
def test_plain_text_is_markdown_and_html_of_itself(text):
    wanted = "".join(filter(str.isprintable, re.sub(r"\s+", " ", text)))
    found = plain(f"x{text}x")
    assert "\n" not in found
    assert html.unescape(found) == f"x{wanted}x"
    assert not re.search(r"[^\w &#;]|_", found)


@pytest.mark.parametrize("name", [r"$\foo_$ a_b", "$$", r"\frac{$x$", "_hidden"])
def test_matplotlib_draws_names_as_they_are_and_in_legends_too(name, monkeypatch):
    monkeypatch.setitem(plt.rcParams, "svg.fonttype", "none")
    figure, ax = plt.subplots()
    ax.plot([0, 1], label=no_math(name))
    assert [text.get_text() for text in ax.legend().get_texts()] == [no_math(name)]
    text = io.StringIO()
    figure.savefig(text, format="svg")
    plt.close(figure)
    assert html.escape(name, quote=False) in text.getvalue()


def test_the_nearest_known_name_is_told():
    assert nearest("resnet2", ["cnn", "resnet20"]) == ' Did you mean "resnet20"?'
    assert nearest("something", ["cnn"]) == ""
