"""Clean the outputs of notebooks, so that text of data or models stays text on a page."""

import re
from typing import Any

import nh3

#: Types of outputs that a page shows; all others are dropped.
SHOWN = ("text/plain", "text/html", "image/svg+xml", "image/png", "image/jpeg")
TAGS = nh3.ALLOWED_TAGS - {"map", "area"} | {"button", "figure", "figcaption", "input", "label"}
ATTRIBUTES = {
    "*": {"class", "role", "tabindex", "title"},
    "a": {"href"},
    "button": {"type", "disabled"},
    "img": {"alt", "height", "src", "width"},
    "input": {"type", "min", "max", "step", "value", "checked"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan", "scope"},
}
# Control characters, and sequences such as those that set the title of a terminal. A page itself
# shows \x1b[...m as colors, and drops others of that form.
CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b(?!\[[\d;]*[A-Za-z])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
# A browser runs nothing in a picture, not even in an SVG.
PICTURE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[\w+/=\s]+")


def _attribute(tag: str, name: str, value: str) -> str | None:
    return None if name == "src" and not PICTURE.fullmatch(value) else value


def clean_html(text: str) -> str:
    """Return HTML without scripts, styles, forms and anything loaded from elsewhere.

    Tables, links, pictures inside the text, and ``data-`` attributes stay.
    """
    return nh3.clean(
        text, tags=TAGS, attributes=ATTRIBUTES, attribute_filter=_attribute,
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"http", "https", "mailto", "data"}, link_rel=None,
    )  # fmt: skip


def clean_controls(value: Any) -> Any:
    """Return outputs without control characters; escape sequences for colors stay."""
    if isinstance(value, list):
        return [clean_controls(item) for item in value]
    if isinstance(value, dict):
        return {name: clean_controls(item) for name, item in value.items()}
    return CONTROL.sub("", value) if isinstance(value, str) else value
