"""Prompts as they are shown."""

import html
import re
import warnings

import pytest
from hypothesis import given, strategies as st

from symgen.book.inert import clean_html
from symgen.masking.prompts import Prompt


def test_the_variables_of_a_prompt_are_bold():
    prompt = Prompt.of("The earth revolves around the sun", " yearly", ["revolves", "sun"])
    assert prompt._repr_html_() == (
        "<p>The earth <strong>revolves</strong> around the <strong>sun</strong> → "
        "<em>yearly</em></p>"
    )


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_a_prompt_is_shown_as_it_is_and_nothing_of_it_is_markup(text, data):
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    found = Prompt(text, f" {text}", (tuple(ends),))._repr_html_()
    assert re.findall("<[^>]*>", found) == [
        "<p>", "<strong>", "</strong>", "<em>", "</em>", "</p>"
    ]  # fmt: skip
    bold = html.unescape(re.search("<strong>(.*)</strong>", found)[1])
    part = text[slice(*ends)]
    assert bold == "".join(filter(str.isprintable, re.sub(r"\s+", " ", part)))
    assert clean_html(found).count("<") == 6


def test_a_target_that_goes_on_with_the_last_word_is_told():
    told = "'year' has no space before it.*'oneyear'.*give ' year'"
    with pytest.warns(UserWarning, match=told):
        Prompt.of("The earth revolves for one", "year")


@pytest.mark.parametrize(
    ("text", "target"),
    [("The earth revolves for one", " year"), ("The moon (or sun", ")"), ("years 1968, 196", "9"),
     ("three moons: ", "one"), ("\u5730\u7403\u7ed5\u7740\u592a\u9633 moons \u8f6c", "\u5e74")],
)  # fmt: skip
def test_a_target_that_needs_no_space_is_not_told_of(text, target):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Prompt.of(text, target, [re.search(r"[a-z]{3,}", text)[0]])
