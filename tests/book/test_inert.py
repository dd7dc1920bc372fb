"""What outputs are turned into: text stays text, formatting and formulas stay what they are."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from symgen import figures as plots
from symgen.book.inert import NOTHING, SVG, clean_html, clean_svg, inert
from symgen.book.notebooks import WIDGET_STATE, WIDGET_VIEW


def bundle(**data):
    """What is left of one output, its kinds written with underscores."""
    data = {kind.replace("_", "/", 1): value for kind, value in data.items()}
    output = nbformat.v4.new_output("display_data", data, metadata={"image/png": {"width": 9}})
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    notebook = inert(nbformat.v4.new_notebook(cells=[cell]))
    assert not notebook.cells[0].outputs[0].metadata
    return notebook.cells[0].outputs[0].data


@pytest.mark.parametrize(
    ("markdown", "wanted"),
    [
        ("a **b** *c* `d`", "<p>a <strong>b</strong> <em>c</em> <code>d</code></p>\n"),
        ("$x < 1$", '<p><span class="math inline">\\(x &lt; 1\\)</span></p>\n'),
        ("$$\ny\n$$", '<div class="math block">\n\\[y\\]\n</div>\n'),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n"),
        ("<strong>a</strong><sub>0</sub>", "<p><strong>a</strong><sub>0</sub></p>\n"),
        ("[a](networks.html)", '<p><a href="networks.html">a</a></p>\n'),
        ("[a](javascript:b)", "<p>[a](javascript:b)</p>\n"),
        ("![a](b.png)", "<p></p>\n"),
        ("{{ a }} {b}`c`", "<p>{{ a }} {b}<code>c</code></p>\n"),
        ("```{include} a\n```", "<pre><code></code></pre>\n"),
        ("a<script>b</script>c", "<p>ac</p>\n"),
    ],
)
def test_markdown_keeps_its_formatting_and_its_formulas(markdown, wanted):
    assert bundle(text_markdown=markdown) == {"text/plain": NOTHING, "text/html": wanted}


@given(st.text())
def test_plain_text_of_data_is_shown_as_it_is(text):
    found = bundle(text_markdown=f"*{plots.plain(f'x{text}x')}*")["text/html"]
    shown = "".join(ET.fromstring(f"<a>{found.replace('&nbsp;', '&#160;')}</a>").itertext()).strip()
    seen = "".join(filter(str.isprintable, " ".join(f"x{text}x".split())))
    assert shown.split() == seen.split()
    assert found.count("<") == 4  # of the paragraph and the emphasis


def test_tables_keep_their_form():
    table = '<table class="claims x"><tr><th colspan="4">a<br><small>b</small></th></tr>'
    cell = '<tr><td style="background:#A6DBC9;color:black" onclick="c" id="d">e</td></tr>'
    kept = clean_html(f"{table}{cell}</table>")
    assert kept == (
        '<table class="claims"><tbody><tr><th colspan="4">a<br><small>b</small></th></tr>'
        '<tr><td style="background:#A6DBC9;color:black">e</td></tr></tbody></table>'
    )


@pytest.mark.parametrize("style", ["background:url(a)", "position:fixed", "color:\\75rl(a)"])
def test_styles_load_and_move_nothing(style):
    assert clean_html(f'<table><tr><td style="{style}">').find(style.split(":")[1]) < 0


def test_figures_stay_what_they_are():
    figure, (left, right) = plt.subplots(1, 2)
    left.imshow(np.eye(3))
    left.set(title="a < b & c", xlabel="$x^2$")
    right.bar([1, 2], [3, 4], hatch="//", label="d")
    right.fill_between([1, 2], [1, 2], alpha=0.5)
    right.legend()
    text = io.StringIO()
    figure.savefig(text, format="svg")
    plt.close(figure)
    before, after = (ET.fromstring(x) for x in (text.getvalue(), clean_svg(text.getvalue())))
    before.remove(before[0])  # who has drawn it, and when
    assert len(list(before.iter())) > 100
    number = re.compile(r"-?\d+\.\d+")
    for old, new in zip(before.iter(), after.iter(), strict=True):
        assert (old.tag, (old.text or "").strip()) == (new.tag, new.text or "")
        assert old.attrib.keys() == new.attrib.keys()
        for name, value in old.attrib.items():
            if name not in ("d", "points", "x", "y"):
                assert new.attrib[name] == value
            assert number.sub("", new.attrib[name]) == number.sub("", value)
            told, said = (number.findall(v) for v in (value, new.attrib[name]))
            assert [*map(float, said)] == pytest.approx([*map(float, told)], abs=0.01)


def test_marks_as_a_picture_take_a_third_and_look_the_same():
    figure, ax = plt.subplots()
    x, y, c = np.random.default_rng(0).normal(size=(3, 800))
    ax.scatter(x, y, c=c, alpha=0.8, marker="x", rasterized=True)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    plt.close(figure)
    both = text.getvalue(), clean_svg(text.getvalue())
    coded = [re.search(r'base64,([^"]+)', drawing)[1] for drawing in both]
    assert len(coded[1]) < len(coded[0]) / 3
    pictures = [Image.open(io.BytesIO(base64.b64decode(t))).convert("RGBA") for t in coded]
    white = [Image.alpha_composite(Image.new("RGBA", p.size, "white"), p) for p in pictures]
    near = np.subtract(*(np.asarray(p, dtype=float) for p in white))
    assert np.sqrt((near**2).mean()) < 8


def test_a_picture_that_cannot_be_read_is_left_as_it_is():
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    link = "data:image/png;base64,AAAA"
    assert link in clean_svg(f'<svg {names}><image xlink:href="{link}"/></svg>')


@pytest.mark.parametrize(
    "bad",
    [
        "<script>a</script>",
        "<foreignObject><b/></foreignObject>",
        '<a href="https://a"><rect/></a>',
        '<use href="other.svg#a"/>',
        '<image xlink:href="https://a/b.png"/>',
        '<image href="data:image/svg+xml;base64,PHN2Zy8+"/>',
        '<rect onload="a"/>',
        '<rect ONclick="a"/>',
        '<rect style="fill:url( https://a )"/>',
        '<rect fill="u\\72l(a)"/>',
        "<style>@import 'a';</style>",
        '<animate attributeName="href" to="javascript:a"/>',
        '<set attributeName="onload" to="a"/>',
        "<x:script xmlns:x='http://www.w3.org/1999/xhtml'>a</x:script>",
    ],
)
def test_drawings_hold_nothing_live(bad):
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    found = clean_svg(f"<svg {names}>{bad}<g/></svg>")
    assert found.endswith("<g /></svg>")
    values = [v for e in ET.fromstring(found).iter() for v in (*e.attrib.values(), e.text or "")]
    assert not any(values)


@pytest.mark.parametrize("text", ["", "<svg", "<html/>", "<svg/>", "&a;", "a\x00"])
def test_what_is_no_drawing_is_left_out(text):
    assert bundle(**{"image_svg+xml": text, "text_plain": "a figure"}) == {"text/plain": "a figure"}


def test_pictures_are_pictures_and_other_kinds_are_left_out():
    picture = base64.b64encode(b"x").decode()
    assert bundle(image_png=picture) == {"text/plain": NOTHING, "image/png": picture}
    for kind in ("image_png", "text_latex", "application_javascript", "application_json"):
        assert bundle(**{kind: "x"}) == {"text/plain": NOTHING}


def test_widgets_carry_text_as_text():
    def model(name, module="@jupyter-widgets/controls", **state):
        return {"model_name": name, "model_module": module, "state": state}

    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>a</script><g /></svg>'
    state = {
        "a": model("HTMLModel", value="<b>x</b><script>y</script>"),
        "b": model("HTMLModel", value=svg, children=["IPY_MODEL_a"]),
        "c": model("SelectionSliderModel", description_allow_html=True, options=["</SCRIPT>"]),
        "d": model("AnyModel", module="elsewhere"),
        "e f": model("HTMLModel", value=""),
    }
    view = {"version_major": 2, "version_minor": 0, "model_id": "d"}
    outputs = [
        nbformat.v4.new_output("display_data", {WIDGET_VIEW: {**view, "model_id": x, "more": 1}})
        for x in "ad"
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])
    notebook.metadata = {"widgets": {WIDGET_STATE: {"state": state}}, "myst": {"a": "b"}}
    found = inert(nbformat.from_dict(notebook))
    assert set(found.metadata) == {"widgets"}
    kept = found.metadata["widgets"][WIDGET_STATE]["state"]
    assert set(kept) == {"a", "b", "c"}
    assert kept["a"]["state"]["value"] == "<b>x</b>"
    picture = kept["b"]["state"]["value"].split('"')[3].removeprefix("data:image/svg+xml;base64,")
    assert base64.b64decode(picture) == b'<svg xmlns="http://www.w3.org/2000/svg"><g /></svg>'
    assert kept["c"]["state"]["description_allow_html"] is False
    assert kept["c"]["state"]["options"] == ["<\u2060/SCRIPT>"]
    first, second = (output.data for output in found.cells[0].outputs)
    assert first[WIDGET_VIEW] == {**view, "model_id": "a"}
    assert second == {"text/plain": NOTHING}


def page(*cells):
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    return inert(notebook)


def figure(inside="<circle r='3'/>"):
    svg = f'<svg xmlns="{SVG}" xmlns:xlink="http://www.w3.org/1999/xlink">{inside}</svg>'
    shown = nbformat.v4.new_output("display_data", {"image/svg+xml": svg})
    return nbformat.v4.new_code_cell("draw()", outputs=[shown])


PHOTO = "<image xlink:href='data:image/png;base64,AAAA'/>"


def test_a_figure_has_the_words_that_say_how_to_read_it_or_its_heading():
    text = nbformat.v4.new_markdown_cell
    read = text(
        '*How to read it.* Each mark is <b>one</b> "case"; $H$ is\nupwards.\n\n## Next\n\nMore.'
    )
    found = page(text("# Title\n\n## First *idea*"), figure(), figure(), read, figure(PHOTO)).cells
    images = [cell.metadata["mystnb"]["image"] for cell in found if cell.cell_type == "code"]
    assert images[0] == {"alt": "Figure: First idea", "classes": "drawn"}
    assert images[1] == {"alt": 'Each mark is one "case"; H is upwards.', "classes": "drawn"}
    assert images[2] == {"alt": "Figure: Next"}  # a photograph: its colours stay


def test_settings_that_a_cell_brings_for_the_page_are_dropped():
    cell = figure()
    cell.metadata["mystnb"] = {"image": {"alt": "trap"}, "markdown_format": "myst"}
    (found,) = page(cell).cells
    assert found.metadata["mystnb"] == {"image": {"alt": "Figure: Figure", "classes": "drawn"}}


def test_pictures_of_a_slider_have_these_words_too():
    letters = '<g transform="translate(2 3) scale(0.1 -0.1)"/>'
    svg = f'<svg xmlns="{SVG}" viewBox="0 0 500 90"><circle r="3"/>{letters}</svg>'
    core = {"model_module": "@jupyter-widgets/controls", "model_module_version": "2.0.0"}
    models = {
        "box": {**core, "model_name": "VBoxModel", "state": {"children": ["IPY_MODEL_one"]}},
        "one": {**core, "model_name": "HTMLModel", "state": {"value": svg}},
        "two": {**core, "model_name": "HTMLModel", "state": {"value": "text"}},
    }
    view = nbformat.v4.new_output("display_data", {WIDGET_VIEW: {"model_id": "box"}})
    cell = nbformat.v4.new_code_cell("slide()", outputs=[view])
    read = nbformat.v4.new_markdown_cell('*How to read it.* A "slider".')
    notebook = nbformat.v4.new_notebook(cells=[cell, read])
    notebook.metadata["widgets"] = {WIDGET_STATE: {"state": models}}
    state = inert(notebook).metadata["widgets"][WIDGET_STATE]["state"]
    value = state["one"]["state"]["value"]
    assert value.startswith('<img alt="A &quot;slider&quot;." src="data:image/svg')
    # Letters of 10 in 500 units are 9 pixels in 450.
    assert value.endswith('" class="drawn" style="min-width: 450px">')
    assert state["two"]["state"]["value"] == "text"
