"""A course: notebooks for students, teachers and a grading tool, networks, slides, and sheets."""

import ast
import base64
import copy
import html
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from markdown_it import MarkdownIt

from symgen.book import notebooks, pages, run
from symgen.book.notebooks import BookError, has_tag
from symgen.book.site import fetch_scripts
from symgen.storage import atomic

CORE = re.compile(r"0[0-5]_")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([\w./-]+)(#[^)]*)?\)")
#: What a cell with a tag is on slides; the words on slides and for the speaker are in no notebook.
SLIDES = {"notes": "notes", "slide-more": "-", "slide": "slide"}
SPOKEN = ("notes", "slide-only")
# nbconvert's own template loads scripts from the network; these lie next to the slides.
TEMPLATE = """{% extends "index.html.j2" %}
{% block html_head_js %}{% endblock %}{% block jupyter_widgets %}{% endblock %}
{% block html_head_js_mathjax %}
<script>MathJax = {tex: {inlineMath: [["$", "$"], ["\\\\(", "\\\\)"]]}};</script>
<script src="vendor/mathjax/tex-mml-chtml.js"></script>{% endblock %}
{% block html_head_css %}<style>
.reveal .slides section section { box-sizing: border-box; padding: 10px 30px; text-align: left; }
.reveal h1, .reveal h2 { font-size: 44px !important; margin: 0 0 12px !important;
  text-align: left; text-transform: none; }
.reveal p { margin: 8px 0 !important; }
.reveal .jp-Cell, .reveal .jp-OutputArea-child, .reveal .jp-Cell-outputWrapper,
.reveal .jp-OutputArea { display: block; margin: 0 !important; padding: 0 !important; width: 100%; }
.reveal .jp-OutputPrompt, .reveal .jp-InputPrompt, .reveal .jp-Collapser { display: none; }
.reveal .jp-RenderedHTMLCommon, .reveal .jp-RenderedText pre {
  font: 33px/1.4 sans-serif !important; max-width: none; padding: 0; word-break: normal; }
.reveal .jp-RenderedText pre { white-space: pre-wrap; }
.reveal .jp-RenderedMarkdown img, .reveal img.figure, .reveal .symgen-slider img {
  display: block; margin: 0 auto; max-width: none; object-fit: contain; width: 1220px; }
.reveal .claim, .reveal .claim table { font: 19px/1.4 sans-serif; }
</style><link rel="stylesheet" href="_static/book.css">{% endblock %}
{% block footer_js %}<script src="vendor/reveal/reveal.js"></script><script>
function fit() {  // a figure takes what its slide has left
  const slide = Reveal.getCurrentSlide();
  for (const image of slide.querySelectorAll("img")) {
    const down = image.getBoundingClientRect().top - slide.getBoundingClientRect().top;
    image.style.height = `${690 - down / Reveal.getScale()}px`;
  }
}
Reveal.initialize({hash: true, slideNumber: true, width: 1280, height: 720, margin: 0,
  center: false}).then(() => MathJax.startup.promise).then(fit);
Reveal.on("slidechanged", fit);
</script>{% endblock %}"""
PRINTED = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 11pt serif; margin: 2cm auto; max-width: 17cm }}
pre {{ white-space: pre-wrap }}
td, th {{ border-bottom: 1px solid; padding: .2em .5em; text-align: left }}</style>
<script>MathJax = {{tex: {{inlineMath: [["$", "$"]]}}}};</script>
<script src="slides/vendor/mathjax/tex-mml-chtml.js"></script>{body}</html>"""

# The first code cell of every notebook of the course.
SETUP = """import os
import sys

if "google.colab" in sys.modules:  # put the address of the repository here
    %pip install -q "symgen[book] @ git+https://ADDRESS"
os.environ.setdefault("SYMGEN_CACHE", "../networks")  # what the chapters train"""
START = """# Start here

To install, follow `install.html`, one folder up. Then open the chapters in this order. Run a cell
with Shift+Enter, and all cells with *Run > Run All Cells*. Where you read **Your turn**, write a
function; the chapter goes on with it, so all cells below it wait for you. If you are stuck, the
book shows the function.

{}"""
YOUR_TURN = "**Your turn:** write {}. The next cell checks it, and the chapter goes on with it."
GRADING = """import os
from pathlib import Path

c = get_config()
c.CourseDirectory.course_id = "symgen"
c.ClearSolutions.enabled = False  # the notebooks have no solutions
c.ExecutePreprocessor.timeout = 600
os.environ["SYMGEN_CACHE"] = str(Path(__file__).resolve().parents[1] / "networks")
"""
HIDDEN = """
### BEGIN HIDDEN TESTS
with exercises.grading():  # other numbers than above; a wrong answer raises
    {}
### END HIDDEN TESTS"""


def write_course(
    book: Path,
    folder: Path,
    chapters: Iterable[str] = (),
    preset: str = "quick",
    given: Mapping[str, Any] | None = None,
) -> list[str]:
    """Run chapters, write their course into a new or empty folder, and return their names.

    ``students/`` holds the notebooks without outputs and solutions, and ``START.ipynb`` with links
    to them. ``teachers/`` holds the same with solutions. ``networks/`` holds what they train.
    ``slides/`` holds one HTML file per chapter, ``grading/`` what nbgrader needs. Sheets to print
    lie next to them.

    Args:
        book: folder of the book.
        folder: the new folder.
        chapters: names; by default those that start with 00 to 05.
        preset: parameters of the run, and of the notebooks.
        given: parameters that differ from the preset's, for each chapter that has them.

    Raises:
        BookError: if the folder is not empty, a parameter is unknown, or a chapter fails.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BookError(f"{folder} is not empty; name a new folder")
    core = [name for name in notebooks.contents(book) if CORE.match(name)]
    names = notebooks.chosen_chapters(book, chapters) or core
    with tempfile.TemporaryDirectory() as out:
        executed = _run(book, names, preset, given or {}, Path(out), folder / "networks")
    links = []
    for name in names:
        notebook = _linked(executed[name], names)
        teachers = _cleared(notebook)
        students = _for_students(notebook)
        title = teachers.cells[0].source.splitlines()[0].strip("# ")
        links.append(f"{len(links) + 1}. [{title}]({name}.ipynb)")
        notebooks.write(teachers, folder / "teachers" / f"{name}.ipynb")
        notebooks.write(students, folder / "students" / f"{name}.ipynb")
        notebooks.write(
            _hidden(students), folder / "grading" / "source" / "symgen" / f"{name}.ipynb"
        )
        if text := slides(notebook, name):
            _write(folder / "slides" / f"{name}.html", text)
    start = nbformat.v4.new_markdown_cell(START.format("\n".join(links)), id="start")
    for part in ("students", "teachers"):
        only = nbformat.v4.new_notebook(cells=[start], metadata=executed[names[0]].metadata)
        notebooks.write(only, folder / part / "START.ipynb")
    # The teacher's own exercises and networks; a chapter names them without a folder.
    own = [*(book / "chapters").glob("*.yml"), *(book / "chapters").glob("*.py")]
    for part in ("students", "teachers", "grading/source/symgen"):
        for path in own:
            shutil.copy(path, folder / part)
    for part in ("students", "teachers", "slides"):
        if (book / "chapters" / "images").is_dir():
            shutil.copytree(book / "chapters" / "images", folder / part / "images")
    _write(folder / "grading" / "nbgrader_config.py", GRADING)
    shutil.copytree(book / "_static", folder / "slides" / "_static")
    if site := fetch_scripts(book):
        shutil.copytree(site / "vendor", folder / "slides" / "vendor")
    boxes = [data["text/html"] for notebook in executed.values() for data in _handed_out(notebook)]
    for path in sorted((book / "chapters").glob("teaching_*.md")):
        title = path.stem.removeprefix("teaching_")
        body = MarkdownIt("commonmark").enable("table").render(path.read_text(encoding="utf-8"))
        if title == "handout":
            if not boxes:
                continue
            body += "".join(boxes)
        _write(folder / f"{title}.html", PRINTED.format(title=title, body=body))
    return names


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _run(
    book: Path, names: list[str], preset: str, given: Mapping[str, Any], out: Path, networks: Path
) -> dict[str, nbformat.NotebookNode]:
    """Run chapters, with `networks` as the store of their trainings, and return executed copies."""
    known = {name: notebooks.defaults(notebooks.read_chapter(book, name)) for name in names}
    for parameter in given:
        if not any(parameter in defaults for defaults in known.values()):
            choices = {name for defaults in known.values() for name in defaults}
            raise notebooks.unknown("parameter", parameter, sorted(choices))
    executed = {}
    with mock.patch.dict(os.environ, SYMGEN_CACHE=str(networks)):
        for name in names:
            own = {key: value for key, value in given.items() if key in known[name]}
            outcome = run.execute(book, name, preset, own, out)
            if outcome.status != "done":
                raise BookError(f"{name}: {outcome.message}")
            executed[name] = nbformat.read(outcome.path, as_version=4)
    return executed


def _linked(notebook: nbformat.NotebookNode, names: list[str]) -> nbformat.NotebookNode:
    """Return a copy with the setup cell, in which links to absent pages are text."""

    def link(match: re.Match) -> str:
        there = match[2].removesuffix(".ipynb") in names
        return match[0] if there else f"*{match[1]}* (in the book)"

    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(link, cell.source)
    notebook.cells.insert(1, nbformat.v4.new_code_cell(SETUP, id="setup"))
    notebook.metadata.pop("symgen", None)
    return notebook


def _cleared(notebook: nbformat.NotebookNode, *tags: str) -> nbformat.NotebookNode:
    """Return a copy without outputs, and without cells that have one of the tags."""
    from nbconvert.preprocessors import ClearOutputPreprocessor, TagRemovePreprocessor

    result = copy.deepcopy(notebook)
    for step in (
        ClearOutputPreprocessor(),
        TagRemovePreprocessor(remove_cell_tags={*tags, *SPOKEN}),
    ):
        result, _ = step.preprocess(result, {})
    return result


def _for_students(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy without solutions, with stubs, and with what nbgrader needs to know."""
    result = _cleared(notebook, "solution")
    cells = []
    for cell in result.cells:
        if has_tag(cell, "blank"):
            cell.source, names = stub(cell.source)
            words = YOUR_TURN.format(" and ".join(f"`{name}`" for name in names))
            cells.append(nbformat.v4.new_markdown_cell(words, id=f"turn-{cell.id}"))
        is_check = has_tag(cell, "exercise-check")
        if is_check or has_tag(cell, "exercise", "blank"):
            about = {"schema_version": 3, "grade_id": cell.id, "task": False}
            about |= {"grade": is_check, "locked": is_check, "solution": not is_check}
            about |= {"points": 1} if is_check else {}
            cell.metadata["nbgrader"] = about
        cells.append(cell)
    result.cells = cells
    return result


def stub(source: str) -> tuple[str, list[str]]:
    """Return code in which each function with a docstring waits for its body, and their names.

    Example:
        >>> print(stub('def twice(x):\\n    "Return 2 x."\\n    return 2 * x')[0])
        def twice(x):
            "Return 2 x."
            # your code here, in place of the next line
            raise NotImplementedError("write `twice`")
    """
    lines = source.splitlines()
    names = []
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            names.insert(0, node.name)
            lines[node.body[0].end_lineno : node.end_lineno] = [
                "    # your code here, in place of the next line",
                f'    raise NotImplementedError("write `{node.name}`")',
            ]
    return "\n".join(lines), names


def _hidden(students: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy whose checks are followed by hidden ones, as nbgrader reads them."""
    result = copy.deepcopy(students)
    for cell in result.cells:
        if has_tag(cell, "exercise-check"):
            cell.source += HIDDEN.format(cell.source.replace("\n", "\n    "))
    return result


def _handed_out(notebook: nbformat.NotebookNode) -> list[dict]:
    cells = [cell for cell in notebook.cells if has_tag(cell, "handout")]
    return [output.data for cell in cells for output in cell.outputs if "data" in output]


def slides(notebook: nbformat.NotebookNode, name: str) -> str:
    """Return the slides of an executed chapter as HTML; empty without cells for them."""
    from nbconvert.exporters import SlidesExporter

    chosen = []
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        kinds = [kind for tag, kind in SLIDES.items() if has_tag(cell, tag)]
        if kinds:
            shown = copy.deepcopy(cell)
            shown.metadata["slideshow"] = {"slide_type": kinds[0]}
            if cell.cell_type == "code":
                shown.outputs = _pictures(cell.outputs, pages.caption(after)) or cell.outputs
            chosen.append(shown)
    if not chosen:
        return ""
    deck = nbformat.v4.new_notebook(cells=chosen, metadata={"title": name})
    exporter = SlidesExporter(
        raw_template=TEMPLATE, reveal_url_prefix="vendor/reveal", font_awesome_url="",
        exclude_input=True, exclude_markdown=False, exclude_output_prompt=True,
    )  # fmt: skip
    text, _ = exporter.from_notebook_node(deck, {"metadata": {"name": name}})
    return text.replace("vendor/reveal/dist/", "vendor/reveal/")


def _pictures(outputs: list, caption: str) -> list:
    """Return the pictures and boxes among outputs; pictures get an alternative text."""
    alt = html.escape(caption, quote=True)
    result = []
    for output in outputs:
        data = output.get("data", {})
        source = ""
        if "image/svg+xml" in data:
            content = base64.b64encode(data["image/svg+xml"].encode()).decode()
            source = f"data:image/svg+xml;base64,{content}"
        elif "image/png" in data:
            source = f"data:image/png;base64,{data['image/png'].strip()}"
        shown = (
            f'<img class="figure" src="{source}" alt="{alt}">' if source else data.get("text/html")
        )
        if shown:
            result.append(nbformat.v4.new_output("display_data", {"text/html": shown}))
    return result
