"""Clean the outputs of notebooks, so that text of data or models stays text on a page."""

import json
import re
from typing import Any

import nh3

#: Types of outputs that a page shows; all others are dropped.
SHOWN = ("text/plain", "text/html", "image/svg+xml", "image/png", "image/jpeg")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
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


def clean_widgets(state: dict[str, Any]) -> dict[str, Any]:
    """Return the saved state of widgets: core ones only, their text and HTML cleaned."""
    models = {}
    for key, model in state.get("state", {}).items():
        if model.get("model_module") in ("@jupyter-widgets/base", "@jupyter-widgets/controls"):
            values = dict(model.get("state", {}))
            values |= {name: False for name in values if name.endswith("allow_html")}
            if str(model["model_name"]).startswith("HTML"):
                values["value"] = clean_html(str(values.get("value", "")))
            models[key] = {**model, "state": values}
    return {**state, "state": models}


def as_script(state: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(state).replace("<", "\\u003c")
