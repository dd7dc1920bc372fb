"""The Sphinx extension of the site: computed parts, captions, recorded results, clean outputs.

It works the same under `symgen html` and under `jupyter-book build .`.
"""

import html
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes

from symgen.book import inert, notebooks, pages
from symgen.book.scripts import fetch_scripts
from symgen.book.site import executed_page
from symgen.storage import fingerprint

CLAIM = re.compile(r'data-claim="(\w+)" data-preset="(\w+)"')


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    # A change of the stored results changes this value, and so every page is read again.
    app.add_config_value("symgen_results", "", "env")
    app.connect("config-inited", _configure)
    app.connect("source-read", _source)
    # Before others take over what was read.
    app.connect("doctree-read", _clean, priority=100)
    # Sphinx does not see formulas in outputs, and would leave their script out.
    app.set_html_assets_policy("always")
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def _executed() -> list[Path]:
    """Return the folders of executed chapters; under `jupyter-book build .` there are none."""
    return [Path(name) for name in os.environ.get("SYMGEN_PAGES", "").split(os.pathsep) if name]


def _configure(app: Any, config: Any) -> None:
    book = Path(app.srcdir)
    folders = [book / "data" / "editions", *_executed()]
    files = sorted(path for folder in folders for path in folder.rglob("*.*"))
    config.symgen_results = fingerprint([(str(p), p.stat().st_mtime_ns) for p in files])
    if _executed():
        config.nb_execution_mode = "off"
    config.html_theme_options.update(show_navbar_depth=1, show_toc_level=2)
    # They lie outside of _static, whose scripts the theme loads on every page.
    if site := fetch_scripts(book):
        config.html_extra_path = [*config.html_extra_path, str(site)]
        config.mathjax_path = "../vendor/mathjax/tex-mml-chtml.js"
        config.nb_ipywidgets_js = {"../vendor/widgets/embed.js": {}}


def _source(app: Any, page: str, text: list[str]) -> None:
    book = Path(app.srcdir)
    if not str(app.env.doc2path(page)).endswith(".ipynb"):
        text[0] = pages.fill(text[0], book)
        return
    notebook = nbformat.reads(text[0], as_version=4)
    if sources := _executed():
        notebook = executed_page(book, Path(page).name, sources)
    record = notebook.metadata.pop("symgen", {})
    injected = any(notebooks.has_tag(cell, "injected-parameters") for cell in notebook.cells)
    heading = "Figure"
    if record:
        title, _, rest = notebook.cells[0].source.partition("\n")
        notebook.cells[0].source = f"{title}\n\n{_made_by(record)}\n\n{rest}"
    for cell, after in itertools.pairwise([*notebook.cells, None]):
        if cell.cell_type == "code":
            words = pages.caption(after) or heading
            cell.metadata["mystnb"] = {"image": {"alt": words, "classes": "drawn"}}
            if injected and notebooks.has_tag(cell, "parameters"):
                cell.metadata["tags"] = [*cell.metadata["tags"], "hide-cell"]
                words = "Default parameters, and their meaning"
                cell.metadata["mystnb"] |= {"code_prompt_show": words, "code_prompt_hide": words}
        elif cell.cell_type == "markdown":
            heading = next(iter(re.findall(r"^#+ +(.+)$", cell.source, re.M)[-1:]), heading)
            cell.source = pages.fill(cell.source, book)
            if pages.caption(cell):
                cell.source = "{.caption}\n" + cell.source
    text[0] = nbformat.writes(notebook)


def _made_by(record: dict) -> str:
    """Return the line under the title: preset, device, time, version, date, and if it is stale."""
    rows = pages.provenance_rows({"versions": {}, **record})
    parts = [f"Preset {rows['preset']}", rows.get("device"), rows["time"], rows.get("date")]
    if record.get("stale"):
        parts.append("the code of this page has changed since it ran")
    return f'<p class="edition">{html.escape(" · ".join(filter(None, parts)))}</p>'


def _clean(app: Any, document: nodes.document) -> None:
    """Remove everything live from the outputs of notebooks, and add recorded results to claims."""
    if not str(app.env.doc2path(app.env.docname)).endswith(".ipynb"):
        return
    book = Path(app.srcdir)
    outputs = [n for n in document.findall(nodes.container) if "mime_type" in n]
    for output in outputs:
        if output["mime_type"] not in (*inert.SHOWN, inert.WIDGET_VIEW):
            output.parent.remove(output)
        elif output["mime_type"] == "text/html":
            for raw in list(output.findall(nodes.raw)):
                text = inert.clean_html(raw.astext())
                for claim, preset in CLAIM.findall(text):
                    text += pages.recorded(book, claim, preset)
                raw.children = [nodes.Text(text)]
                raw.rawsource = text
    scripts = getattr(app.env, "nb_metadata", {}).get(app.env.docname, {}).get("js_files", {})
    if "ipywidgets_state" in scripts:
        address, options = scripts["ipywidgets_state"]
        state = inert.clean_widgets(json.loads(options["body"]))
        scripts["ipywidgets_state"] = (address, {**options, "body": inert.as_script(state)})
