"""Prompts as they are shown."""

import html
import re

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
