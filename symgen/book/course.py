"""A course: notebooks for students and teachers, their networks, and slides that work offline."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
from markdown_it import MarkdownIt

from symgen.book import editions, inert, notebooks, run
from symgen.book.notebooks import BookError
from symgen.book.site import fetch_scripts
from symgen.figures.style import WEB
from symgen.storage import atomic

CORE = re.compile(r"(00|01|02|03|05)_")
SOLUTION = re.compile(r"\s*<details>\s*<summary>\s*Solution.*?</details>\s*", re.S | re.I)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([\w./-]+)(#[^)]*)?\)")
# nbconvert's own template loads scripts from the network; these lie next to the slides.
TEMPLATE = """{% extends "index.html.j2" %}
{% block html_head_js %}{% endblock %}{% block jupyter_widgets %}{% endblock %}
{% block html_head_js_mathjax %}
<script>MathJax = {tex: {inlineMath: [["$", "$"], ["\\\\(", "\\\\)"]]}};</script>
<script src="vendor/mathjax/tex-mml-chtml.js"></script>{% endblock %}
{% block footer_js %}<script src="vendor/reveal/reveal.js"></script>
<script>Reveal.initialize({hash: true, slideNumber: true, width: 1280, height: 720});</script>
<link rel="stylesheet" href="_static/figures.css"><script src="_static/figures.js"></script>
{% endblock %}"""
PRINTED = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 11pt serif; margin: 2cm auto; max-width: 17cm }}
td, th {{ border-bottom: 1px solid; padding: .2em .5em }}</style>{body}</html>"""


# The first cell of every notebook of the course.
NETWORKS = "%env SYMGEN_CACHE=../networks"
START = """# Start here

Open the chapters in this order. Run a cell with Shift+Enter, and all cells with *Run > Run All
Cells*. Their networks are trained: they lie in the folder `networks`, next to this one.

Sliders and bars work while the notebook's kernel runs. In a notebook that was closed and opened
again, run the cells again to see them.

{}"""


def write_course(book: Path, folder: Path, networks: bool = True) -> list[str]:
    """Write the course into a new or empty folder, and return the names of its chapters.

    ``students/`` holds the notebooks without outputs and solutions, and ``START.ipynb`` with links
    to them. ``teachers/`` holds the same with solutions. ``networks/`` holds what they train.
    ``slides/`` holds one HTML file per chapter, with the outputs of the edition quick. The quiz and
    the rubric become pages to print, if the book has them.

    Args:
        book: folder of the book.
        folder: the new folder.
        networks: whether to run the chapters, to train their networks.

    Raises:
        BookError: if the folder is not empty, or a chapter fails.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BookError(f"{folder} is not empty; name a new folder")
    core = [name for name in notebooks.contents(book) if CORE.match(name)]
    for part, with_solutions in (("students", False), ("teachers", True)):
        links = []
        for name in core:
            notebook = course_notebook(book, name, core, with_solutions)
            title = notebook.cells[0].source.splitlines()[0].strip("# ")
            links.append(f"{len(links) + 1}. [{title}]({name}.ipynb)")
            notebook.cells.insert(1, nbformat.v4.new_code_cell(NETWORKS, id="networks"))
            notebooks.write(notebook, folder / part / f"{name}.ipynb")
        start = nbformat.v4.new_markdown_cell(START.format("\n".join(links)), id="start")
        only = nbformat.v4.new_notebook(cells=[start], metadata=notebook.metadata)
        notebooks.write(only, folder / part / "START.ipynb")
    for name in core:
        if text := slides(book, name):
            with atomic(folder / "slides" / f"{name}.html") as path:
                path.write_text(text, encoding="utf-8")
    shutil.copytree(WEB, folder / "slides" / "_static")
    images = book / "chapters" / "images"
    if images.exists():
        for part in ("students", "teachers", "slides"):
            shutil.copytree(images, folder / part / "images")
    if site := fetch_scripts(book):
        shutil.copytree(site / "vendor", folder / "slides" / "vendor")
    for path in sorted((book / "chapters").glob("teaching_*.md")):
        body = MarkdownIt("commonmark").enable("table").render(path.read_text(encoding="utf-8"))
        title = path.stem.removeprefix("teaching_")
        text = PRINTED.format(title=title, body=body)
        (folder / f"{title}.html").write_text(text, encoding="utf-8")
    if networks:
        train_networks(book, folder / "networks", core)
    return core


def train_networks(book: Path, folder: Path, chapters: list[str]) -> None:
    """Run chapters at preset quick, with `folder` as the store of what they train."""
    with (
        tempfile.TemporaryDirectory() as out,
        mock.patch.dict(os.environ, SYMGEN_CACHE=str(folder)),
    ):
        for outcome in run.run_all(book, chapters, "quick", {}, Path(out)):
            if outcome.status == "failed":
                raise BookError(outcome.message)


def course_notebook(
    book: Path, name: str, core: list[str], with_solutions: bool
) -> nbformat.NotebookNode:
    """Return a chapter without outputs, links to absent pages and, for students, solutions."""
    notebook = notebooks.read_chapter(book, name)

    def link(match: re.Match) -> str:
        there = match[2].removesuffix(".ipynb") in core
        return match[0] if there else f"*{match[1]}* (in the book)"

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            text = cell.source if with_solutions else SOLUTION.sub("\n\n", cell.source)
            cell.source = LINK.sub(link, text).strip()
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return notebook


def slides(book: Path, name: str) -> str:
    """Return the slides of a chapter as HTML; empty without cells tagged `slide`."""
    from nbconvert.exporters import SlidesExporter

    stored = notebooks.read(editions.edition_folder(book, "quick") / f"{name}.ipynb")
    notebook = stored or notebooks.read_chapter(book, name)
    if not any(notebooks.has_tag(cell, "slide") for cell in notebook.cells):
        return ""
    state = notebook.metadata.get("widgets", {}).get(inert.WIDGET_STATE, {}).get("state", {})
    for cell in notebook.cells:
        kind = "slide" if notebooks.has_tag(cell, "slide") else "skip"
        kind = "-" if notebooks.has_tag(cell, "slide-more") else kind
        cell.metadata["slideshow"] = {"slide_type": kind}
        if cell.cell_type == "code":
            if not notebooks.has_tag(cell, "slide-code"):
                cell.metadata["transient"] = {"remove_source": True}
            for data in (output.data for output in cell.outputs if "data" in output):
                _still(data, state)
    notebook.metadata = nbformat.from_dict({"kernelspec": notebook.metadata.get("kernelspec", {})})
    exporter = SlidesExporter(
        raw_template=TEMPLATE, reveal_url_prefix="vendor/reveal", font_awesome_url="",
        exclude_input_prompt=True, exclude_output_prompt=True,
    )  # fmt: skip
    text, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name}})
    return text.replace("vendor/reveal/dist/", "vendor/reveal/")


def _still(data: dict, state: dict) -> None:
    """Replace a slider by the picture it shows first, and clean HTML, in place."""
    view = data.pop(inert.WIDGET_VIEW, None)
    shown = [view["model_id"]] if view else []
    while shown:
        values = state.get(shown.pop(0), {}).get("state", {})
        children = [child.removeprefix("IPY_MODEL_") for child in values.get("children", [])]
        index = values.get("selected_index")
        shown += children if index is None else [children[index]]
        if "<img" in str(values.get("value", "")):
            data["text/html"] = values["value"]
            break
    if "text/html" in data:
        data["text/html"] = inert.clean_html(data["text/html"])
