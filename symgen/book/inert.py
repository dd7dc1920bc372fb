"""Make what chapters have put out inert: a page shows text of data, and never runs or reads it."""

import base64
import binascii
import html
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import nbformat
import nh3
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from PIL import Image

from symgen.book.notebooks import WIDGET_STATE, WIDGET_VIEW
from symgen.method.claims.judgement import VERDICTS

NOTHING = "(an output that no page can show)"
# What pictures load and what maps link to does not come from here.
TAGS = nh3.ALLOWED_TAGS - {"img", "map", "area"}
ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "style"},
    "th": {"colspan", "rowspan", "style"},
}
CLASSES = {
    "div": {"math", "block", "failed", "claim"},
    "p": {"edition"},
    "span": {"math", "inline", "verdict", *(v.replace(" ", "-") for v in VERDICTS)},
    "table": {"answer", "benchmarks", "claims", "dataframe", "matrix", "provenance"},
    "td": {"claimed"},
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
DRAWN = {
    f"{{{SVG}}}{name}"
    for name in (
        "circle", "clipPath", "defs", "ellipse", "g", "image", "line", "linearGradient", "marker",
        "mask", "path", "pattern", "polygon", "polyline", "radialGradient", "rect", "stop", "style",
        "svg", "text", "tspan", "use",
    )
}  # fmt: skip
# Values of attributes, and styles, that could load something or be read in two ways.
LOADS = re.compile(r"[\\@]|//|:\s*\w*script|url\(\s*(?!#)|image-set|src\(", re.I)
LOCAL = re.compile(r"#|data:image/(png|jpeg);base64,")
# Places, in points, are told finer than any screen shows; letters and scales need all digits.
PLACES = {"d", "points", "x", "y"}
FINER = re.compile(r"(\.\d\d)\d+")
PICTURE = "data:image/png;base64,"
# Letters are outlines, which this makes as large as they are; hundredths of the drawing's unit.
LETTERS = re.compile(r"scale\((0?\.\d+) -")
READABLE = 9  # pixels
ET.register_namespace("", SVG)
ET.register_namespace("xlink", XLINK)


def inert(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Rid a notebook's outputs of all that a page would execute, load or take for its own markup.

    Markdown becomes HTML here, since a page's own Markdown has roles, directives and templates.
    Formulas stay formulas.

    Args:
        notebook: changed in place.

    Returns:
        The notebook.
    """
    widgets = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {})
    models = _widgets(widgets.get("state", {}))
    # Nothing else in the metadata is for the page, which would read it as its own settings.
    kept = {k: v for k, v in notebook.metadata.items() if k in ("kernelspec", "language_info")}
    for cell, words in zip(notebook.cells, _alternatives(notebook.cells), strict=True):
        cell.metadata = {k: v for k, v in cell.metadata.items() if k != "mystnb"}
        drawings = []
        for output in cell.get("outputs", []):
            if "data" in output:
                output.metadata = {}
                output.data = nbformat.from_dict(_bundle(output.data, models))
                _name(output.data.get(WIDGET_VIEW, {}).get("model_id"), words, models)
                drawings += filter(None, [output.data.get("image/svg+xml")])
        if cell.get("outputs"):
            kind = [DRAWN_CLASS] * (bool(drawings) and all(map(_drawn, drawings)))
            kind += [f"wide-{width}"] if (width := max(map(_width, drawings), default=0)) else []
            classes = {"classes": " ".join(kind)} if kind else {}
            cell.metadata["mystnb"] = {"image": {"alt": words, **classes}}
    if models:
        kept["widgets"] = {WIDGET_STATE: {**VERSION, "state": models}}
    notebook.metadata = nbformat.from_dict(kept)
    return notebook


# Of a figure of lines and letters alone, whose colours a dark page may turn around.
DRAWN_CLASS = "drawn"


def _drawn(svg: str) -> bool:
    return "<image" not in svg


def _width(svg: str) -> int:
    """Return from how many pixels of width on the letters of a drawing can be read; 0 for none."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', svg)
    sizes = [100 * float(size) for size in LETTERS.findall(svg)]
    return math.ceil(READABLE * float(found[1]) / min(sizes)) if found and sizes else 0


def _alternatives(cells: list[nbformat.NotebookNode]) -> list[str]:
    """Return for each cell what stands for its figures where they cannot be seen.

    That is the text below that says how to read them, or else the heading above.
    """
    found, heading, read = [], "Figure", ""
    for cell in reversed(cells):
        if cell.cell_type == "code":
            found.append(read)
            read = ""
        else:
            own = READ.search(cell.source)
            read = _plain(own[1]) if own else read
            found.append("")
    found.reverse()
    for k, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            heading = next(iter(HEADING.findall(cell.source)[-1:]), heading)
        found[k] = found[k] or f"Figure: {_plain(heading)}"
    return found


READ = re.compile(r"\*How to read (?:it|them)\.\*\s+(.+?)(?:\n\n|\Z)", re.S)
HEADING = re.compile(r"^#+ +(.+)$", re.M)


def _plain(text: str) -> str:
    """Return Markdown as words, without markup and with formulas as they are written."""
    words = html.unescape(nh3.clean(MARKDOWN.render(text), tags=set()))
    words = re.sub(r"\\[()]|[\\{}`]", "", words)
    return " ".join(re.sub(r"\bcite:\w+", "", words).split())


def _name(widget: str | None, words: str, models: Mapping) -> None:
    """Give every picture of a widget, and of what is in it, these words."""
    values = models.get(widget, {}).get("state", {})
    if str(values.get("value", "")).startswith(UNNAMED):
        named = f'<img alt="{html.escape(words)}"'
        values["value"] = values["value"].replace(UNNAMED, named, 1)
    for child in values.get("children", []):
        _name(str(child).removeprefix("IPY_MODEL_"), words, models)


UNNAMED = '<img alt=""'


VERSION = {"version_major": 2, "version_minor": 0}


def _bundle(data: Mapping, models: Mapping) -> dict[str, Any]:
    """Return what a page may show of one output, the richest form first."""
    texts = {k: "".join(v) for k, v in data.items() if isinstance(v, (str, list))}
    found: dict[str, Any] = {"text/plain": texts.get("text/plain") or NOTHING}
    if data.get(WIDGET_VIEW, {}).get("model_id") in models:
        return {**found, WIDGET_VIEW: {**VERSION, "model_id": data[WIDGET_VIEW]["model_id"]}}
    if "text/html" in texts:
        return {**found, "text/html": clean_html(texts["text/html"])}
    if svg := clean_svg(texts.get("image/svg+xml", "")):
        return {**found, "image/svg+xml": svg}
    for kind in ("image/png", "image/jpeg"):
        with_data = texts.get(kind, "")
        try:
            if base64.b64decode(with_data):
                return {**found, kind: with_data}
        except binascii.Error:
            continue
    if "text/markdown" in texts:
        return {**found, "text/html": clean_html(MARKDOWN.render(texts["text/markdown"]))}
    return found


def _formula(tex: str, options: Mapping) -> str:
    opened, closed = (r"\[", r"\]") if options["display_mode"] else (r"\(", r"\)")
    return html.escape(f"{opened}{tex}{closed}")


MARKDOWN = MarkdownIt("commonmark").enable("table")
dollarmath_plugin(MARKDOWN, allow_labels=False, renderer=_formula)


def clean_html(text: str) -> str:
    """Return HTML with formatting, tables and links to the web or the book, and nothing live."""
    return nh3.clean(
        text,
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_attribute,
        allowed_classes=CLASSES,
        filter_style_properties={"background", "color", "text-align"},
        url_schemes={"http", "https", "mailto"},
        link_rel=None,
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    return None if name == "style" and LOADS.search(value) else value


def clean_svg(text: str) -> str:
    """Return a drawing without scripts, links and anything from elsewhere; "" if it is none.

    It takes as few bytes as look the same.
    """
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError):
        return ""
    if root.tag != f"{{{SVG}}}svg":
        return ""
    for element in list(root.iter()):
        for child in list(element):
            if child.tag not in DRAWN:
                element.remove(child)
        for name, value in list(element.attrib.items()):
            link = name in ("href", f"{{{XLINK}}}href")
            good = LOCAL.match(value) if link else not LOADS.search(value)
            if not good or name.lower().startswith("on") or (name[0] == "{" and not link):
                del element.attrib[name]
            elif link and value.startswith(PICTURE):
                element.attrib[name] = PICTURE + _with_palette(value.removeprefix(PICTURE))
            elif name in PLACES:
                element.attrib[name] = FINER.sub(r"\1", value)
        for place in ("text", "tail"):
            if not (getattr(element, place) or "").strip():
                setattr(element, place, None)
        if element.tag.endswith("}style") and LOADS.search(element.text or ""):
            element.text = ""
    return ET.tostring(root, encoding="unicode")


def _with_palette(coded: str) -> str:
    """Return a picture of marks on nothing in 256 colours, where that is smaller; others as given.

    Photographs have no transparent parts, and would show the steps between their colours.
    """
    try:
        with Image.open(io.BytesIO(base64.b64decode(coded))) as picture:
            if picture.mode != "RGBA" or picture.getextrema()[3][0] == 255:
                return coded
            file = io.BytesIO()
            picture.quantize(256, Image.Quantize.FASTOCTREE).save(file, "png", optimize=True)
    except (OSError, ValueError):
        return coded
    return min(base64.b64encode(file.getvalue()).decode(), coded, key=len)


def _widgets(models: Mapping) -> dict[str, Any]:
    """Return the widgets' state with text that is shown as text, and drawings as pictures."""
    # A page carries the state in a script, which such text would end.
    safe = json.loads(re.sub("<(?=[/!])", "<\u2060", json.dumps(models)))
    for key, model in list(safe.items()):
        core = model.get("model_module") in ("@jupyter-widgets/base", "@jupyter-widgets/controls")
        if not (core and re.fullmatch(r"\w+", key)):
            del safe[key]
            continue
        values = model.get("state", {})
        values.update({name: False for name in values if name.endswith("allow_html")})
        if model["model_name"].startswith("HTML") and "value" in values:
            text = str(models[key]["state"]["value"])
            # The browser runs nothing in a picture.
            svg = text.startswith("<svg") and base64.b64encode(clean_svg(text).encode()).decode()
            kind = f' class="{DRAWN_CLASS}"' * _drawn(text)
            kind += f' style="min-width: {width}px"' if (width := _width(text)) else ""
            picture = f'{UNNAMED} src="data:image/svg+xml;base64,{svg}"{kind}>'
            values["value"] = picture if svg else clean_html(text)
    return safe
