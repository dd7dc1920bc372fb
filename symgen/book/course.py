"""The chapters as a course hands them out: cells to run, exercises to solve, nothing solved yet.

Notebooks outside the book have no Sphinx: its directives, roles and links become plain Markdown.
"""

import ast
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import yaml

from symgen import __version__
from symgen.book.launch import install_cell, with_install_cell
from symgen.book.layout import new_folder, repository
from symgen.book.notebooks import has_tag, write_notebook
from symgen.book.presets import BookError, chapter_names, read_chapter, read_yaml, resolve
from symgen.book.runs import KERNEL

# A fence of backquotes or colons, a directive, its title, and all up to the same fence.
DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:-]+)\}[ \t]*(?P<title>.*)\n"
    r"(?P<options>(?::[\w-]+:.*\n)*)(?P<body>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.M,
)
CITED = re.compile(r"\{cite:([tp])\}`([^`]+)`")
# A label and the heading below it, and parameters that are set on the command line.
LABEL = re.compile(r"^\(([\w-]+)\)=\n#+ +(.+)$", re.M)
VALUE = r"""(?:"[^"`]*"|'[^'`]*'|[^\s`]+)"""
COMMAND = re.compile(rf"`(?:symgen run \w+\s+)?((?:-p\s+\w+\s+{VALUE}\s*)+)`")
CHANGE = (
    "Change the cell of parameters near the top, then choose *Run > Restart Kernel and Run All "
    "Cells*."
)
HIDDEN = ("hide-input", "hide-cell", "remove-input", "remove-cell")
README = """\
# {title}: notebooks of a course

With Python 3.11 or newer on Linux or macOS, in this folder{where}:

    python3 -m venv course-env
    course-env/bin/pip install '{wanted}'
    course-env/bin/jupyter-lab

The installation takes minutes and up to 7 GB, 2 GB with PyTorch's build for processors, which goes
in before the second line: `course-env/bin/pip install torch torchvision --index-url
https://download.pytorch.org/whl/cpu`.

Open `{first}` and run its cells from the top, in order. The first run of a notebook trains its
networks, for up to some minutes; the next one finds them stored.
{exercises}

{contents}

The notebooks stand at preset `{preset}`: their cell of parameters may be changed.
"""
# Where the book has no address. What is installed by its mere name may be somebody else's.
WHEEL = f"symgen-{__version__}-py3-none-any.whl"
EXERCISES = {
    False: "Exercises stand at the end of each notebook; a cell that says *not yet* says *correct*"
    "\nonce your own code is in it.",
    True: "These are the instructor's copies: a solution follows each exercise.",
}


def write_course(book: Path, folder: Path, preset: str = "quick", instructor: bool = False) -> int:
    """Write the chapters that have exercises into a new folder, and return how many there are.

    Args:
        book: the book's folder.
        folder: new or empty.
        preset: whose parameters the notebooks have.
        instructor: whether solutions stand open below their exercises, or are left out.

    Raises:
        BookError: for an unknown preset, or a chapter whose solutions could not be told from the
            rest, so that they would be handed out.
        FileExistsError: where something is in the folder.
    """
    notebooks = {}
    for name in chapter_names(book):
        if any("{exercise}" in cell.source for cell in read_chapter(book, name).cells):
            notebooks[name] = course_notebook(book, name, preset, instructor)
    if not notebooks:
        raise BookError(f"no chapter in {book / 'chapters'} has an {{exercise}}")
    found = repository(book)
    about = {
        "title": read_yaml(book / "_config.yml").get("title", "The book"),
        "wanted": f"symgen[book] @ git+{found}" if found else f"./{WHEEL}[book]",
        "where": "" if found else f" with {WHEEL} in it, which your teacher has",
        "first": f"{next(iter(notebooks))}.ipynb",
        "exercises": EXERCISES[instructor],
        "preset": preset,
        "contents": _contents(notebooks),
    }
    with new_folder(folder) as partial:
        for name, notebook in notebooks.items():
            write_notebook(notebook, partial / f"{name}.ipynb")
        (partial / "README.md").write_text(README.format(**about), encoding="utf-8")
    return len(notebooks)


def _contents(notebooks: Mapping[str, nbformat.NotebookNode]) -> str:
    """Return a table of the notebooks, in the book's order, with the minutes they take."""
    rows = ["| notebook | minutes |", "| --- | --- |"]
    for name, notebook in notebooks.items():
        first = notebook.cells[0].source
        minutes = re.search(r"\*\*Minutes:\*\* ([^.]*)\.", first)
        title = first.splitlines()[0].lstrip("# ")
        rows.append(f"| [{title}]({name}.ipynb) | {minutes[1] if minutes else ''} |")
    return "\n".join(rows)


def course_notebook(book: Path, name: str, preset: str, instructor: bool) -> nbformat.NotebookNode:
    """Return one chapter for a course; see `write_course`."""
    values = resolve(book, name, preset, {})
    source = with_install_cell(read_chapter(book, name), install_cell(repository(book)))
    numbers, pages = itertools.count(1), [*chapter_names(book)]
    whole = "\n".join(cell.source for cell in source.cells)
    anchors = dict(LABEL.findall(whole))
    for cell in source.cells:
        if cell.cell_type == "markdown":
            plain = _plain(cell.source, instructor, numbers, book, pages, anchors)
            cell.source = _by_hand(plain)
            if not instructor and re.search(r"\{solution|^#+ .*solution", cell.source, re.M | re.I):
                raise BookError(
                    f"{name}, cell {cell.id}: a solution is written in a way that cannot be left "
                    "out; write it as a fence ```{solution} LABEL that is closed by the same fence"
                )
        elif cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if any(has_tag(cell, tag) for tag in HIDDEN):
                cell.metadata["jupyter"] = {"source_hidden": True}
            if has_tag(cell, "parameters"):
                cell.source = with_values(cell.source, values)
    source.cells = [cell for cell in source.cells if cell.source.strip()]
    if references := _references(book, whole):
        source.cells.append(nbformat.v4.new_markdown_cell(references, id="references"))
    source.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python", "file_extension": ".py"}}
    )
    return source


def with_values(source: str, values: Mapping[str, Any]) -> str:
    """Return a cell of assignments with other values; its comments stay.

    Example:
        >>> with_values("n = 8  # variables", {"n": 10})
        'n = 10  # variables'
    """
    text = source.encode()  # columns of a syntax tree count bytes
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in values:
            start = starts[node.value.lineno - 1] + node.value.col_offset
            end = starts[node.value.end_lineno - 1] + node.value.end_col_offset
            text = text[:start] + repr(values[name]).encode() + text[end:]
    return text.decode()


def _plain(
    source: str,
    instructor: bool,
    numbers: Iterator[int],
    book: Path,
    pages: list[str],
    anchors: Mapping[str, str],
) -> str:
    """Return a cell's text in plain Markdown, without solutions unless they are wanted."""

    def directive(found: re.Match) -> str:
        name, title, body = found["name"], found["title"].strip(), found["body"].strip()
        if name == "exercise":
            return f"### Exercise {next(numbers)}\n\n{body}"
        if name == "solution" or re.match("solution|answer", title, re.I):
            return f"#### Solution\n\n{body}" if instructor else ""
        if name.startswith("solution"):  # of which this is but a part
            return found[0]
        title = title if name in ("admonition", "dropdown") else name.capitalize()
        if name == "dropdown" or "dropdown" in found["options"]:
            return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
        return f"**{title}.** {body}"

    def link(found: re.Match) -> str:
        text, target = found.groups()
        if target in anchors:  # as JupyterLab names its headings
            return f"[{text}](#{anchors[target].replace(' ', '-')})"
        return f"[{text}]({target}.ipynb)" if target in pages else text

    text = re.sub(r"^\([\w-]+\)=\n", "", DIRECTIVE.sub(directive, source), flags=re.M)
    text = re.sub(
        r"(?<![\w$\\])\[([^\]\n]*(?:\n[^\]\n]+)?)\]\(([A-Za-z][\w-]+|\d\d_\w+)\)", link, text
    )
    text = CITED.sub(lambda found: _cited(book, *found.groups()), text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _by_hand(text: str) -> str:
    """Return a text that changes parameters in their cell, where it does so on the command line.

    A command would run the book's own chapter, not the notebook that is open.
    """

    def assignments(found: re.Match) -> str:
        words = shlex.split(found[1])
        pairs = zip(words[1::3], words[2::3], strict=True)
        # Three dots stand for a text of the reader's own.
        read = ((name, value if value == "..." else yaml.safe_load(value)) for name, value in pairs)
        return ", ".join(f"`{name} = {value!r}`" for name, value in read)

    text = COMMAND.sub(assignments, text)
    return re.sub(r"^(## What to change next)$", rf"\1\n\n{CHANGE}", text, flags=re.M)


def _cited(book: Path, kind: str, keys: str) -> str:
    told = []
    for entry in _entries(book, keys):
        authors, year = _authors(entry), entry.fields["year"]
        told.append(f"{authors} ({year})" if kind == "t" else f"{authors}, {year}")
    return ", ".join(told) if kind == "t" else f"({'; '.join(told)})"


def _references(book: Path, source: str) -> str:
    """Return what a chapter cites, as a list with titles; empty where it cites nothing."""
    keys = ",".join(found[2] for found in CITED.finditer(source))
    lines = {
        f"- {_authors(entry)} ({entry.fields['year']}): "
        f"*{re.sub('[{}]', '', entry.fields['title'])}*."
        for entry in _entries(book, keys)
    }
    return "\n".join(["## References", "", *sorted(lines)]) if lines else ""


def _entries(book: Path, keys: str) -> list:
    """Return the entries of references.bib with these keys, which commas separate."""
    if not keys:
        return []
    from pybtex.database import parse_file  # only where something is cited

    known = parse_file(str(book / "references.bib")).entries
    return [known[key.strip()] for key in keys.split(",")]


def _authors(entry: Any) -> str:
    authors = entry.persons["author"]
    return " ".join(authors[0].last_names).strip("{}") + " et al." * (len(authors) > 1)
