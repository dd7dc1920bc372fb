"""The chapters as a course hands them out: cells to run, exercises to solve, nothing solved yet.

Notebooks outside the book have no Sphinx: its directives, roles and links become plain Markdown.
"""

import ast
import itertools
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import yaml

from symgen import __version__
from symgen.book.launch import install_cell, with_install_cell
from symgen.book.layout import new_folder, repository
from symgen.book.notebooks import has_tag, write_notebook
from symgen.book.presets import BookError, chapter_names, read_chapter, read_yaml, resolve
from symgen.book.runs import KERNEL, environment, execute
from symgen.files import cache_folder

# A fence of backquotes or colons, a directive, its title, and all up to the same fence.
DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:-]+)\}[ \t]*(?P<title>.*)\n"
    r"(?P<options>(?::[\w-]+:.*\n)*)(?P<body>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.M,
)
#: The paper of the book, which chapters call just that.
PAPER = "he2025three"
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

Open `{first}` and run its cells from the top, in order. {trains}
{exercises}

{contents}

The notebooks stand at preset `{preset}`: their cell of parameters may be changed.
"""
# Where the book has no address. What is installed by its mere name may be somebody else's.
WHEEL = f"symgen-{__version__}-py3-none-any.whl"
TRAINS = """\
The first run of a notebook trains its
networks, for up to some minutes; the next one finds them stored."""
TRAINED = """\
The folder `networks` holds the
networks that {names} load, {size:.0f} MB: with their parameters as they are, these
train nothing. The first run of another notebook, or with other parameters, trains for up to some
minutes; what was left out of `networks` is then said to be damaged, and trained."""
# The core of the course, and of a cache what a notebook takes long for and that is not large.
CORE, NETWORKS = re.compile("0[0-4]_"), ("training", "trainings")
WITH_NETWORKS = """
import os

if os.path.isdir("networks"):  # trained ones, which came with this notebook
    os.environ.setdefault("SYMGEN_CACHE", os.path.abspath("networks"))"""
EXERCISES = {
    False: "Exercises stand at the end of each notebook; a cell that says *not yet* says *correct*"
    "\nonce your own code is in it. Hints are folded below the exercises. Solutions stand, folded,"
    "\non the pages of the site: your lecturer says where.",
    True: "These are the instructor's copies: a solution follows each exercise.",
}


def write_course(
    book: Path,
    folder: Path,
    preset: str = "quick",
    instructor: bool = False,
    networks: bool = False,
) -> int:
    """Write the chapters that have exercises into a new folder, and return how many there are.

    Args:
        book: the book's folder.
        folder: new or empty.
        preset: whose parameters the notebooks have.
        instructor: whether solutions stand open below their exercises, or are left out.
        networks: whether a folder ``networks`` has what the first chapters train; see `bundle`.

    Raises:
        BookError: for an unknown preset, a chapter whose solutions could not be told from the
            rest, so that they would be handed out, or one that fails as its networks are trained.
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
        "trains": TRAINS,
    }
    with new_folder(folder) as partial:
        if networks:
            core = [*filter(CORE.match, notebooks)]
            size = bundle(book, partial / "networks", preset, core) / 1e6
            about["trains"] = TRAINED.format(names=_listed(core), size=size)
        for name, notebook in notebooks.items():
            write_notebook(notebook, partial / f"{name}.ipynb")
        (partial / "README.md").write_text(README.format(**about), encoding="utf-8")
    return len(notebooks)


def core_chapters(book: Path) -> list[str]:
    """Return the chapters whose networks `write_course` can hand out."""
    return [*filter(CORE.match, chapter_names(book))]


def bundle(book: Path, folder: Path, preset: str, chapters: Iterable[str]) -> int:
    """Fill a cache with the networks that chapters load and the trainings that were measured.

    The chapters run twice: first to train what the reader's own cache lacks, then as a student
    runs them. Checkpoints that are looked for, but not loaded, are left there as empty files: most
    of what a training stores was needed only until the training was measured. Where the disk does
    not tell what was read, all are kept.

    Args:
        book: its folder.
        folder: to be the cache, new.
        preset: whose parameters the chapters run with.
        chapters: their names.

    Returns:
        The size in bytes.

    Raises:
        BookError: for a chapter that fails.
    """

    for kind in NETWORKS:
        if (own := cache_folder() / kind).is_dir():
            left = shutil.ignore_patterns(".*")  # locks, and what is being written
            shutil.copytree(own, folder / kind, ignore=left, copy_function=_linked)
    folder.mkdir(exist_ok=True)
    for again in (False, True):
        for path in folder.rglob("*") if again else ():
            os.utime(path, ns=(0, path.stat().st_mtime_ns))  # so that a read shows
        with environment({"SYMGEN_CACHE": str(folder)}), tempfile.TemporaryDirectory() as out:
            for name in chapters:
                print(f"{'Checking' if again else 'Training'} the networks of {name}", flush=True)
                done = execute(book, name, preset, {}, Path(out))
                if done.status == "failed":
                    raise BookError(f"{name} {done.told}")
        for kind in folder.iterdir():
            if kind.name not in NETWORKS:
                shutil.rmtree(kind)
    files = {path: path.stat().st_atime_ns for path in folder.rglob("*.safetensors")}
    for path in [path for path, read in files.items() if any(files.values()) and not read]:
        wanted = path.with_suffix(".json").stat().st_atime_ns
        path.unlink()  # first, since it may be a link to the reader's own
        path.touch() if wanted else path.with_suffix(".json").unlink()
    for run in (folder / "training").glob("*"):
        if run.is_dir() and not any(run.glob("step-*")):
            shutil.rmtree(run)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _linked(source: str, target: str) -> None:
    """Have a file in a second place, without a copy where the disk can do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name[:2]}`" for name in names)


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
    first = install_cell(repository(book))
    first.source += f"\n{WITH_NETWORKS}"
    source = with_install_cell(read_chapter(book, name), first)
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
    if "[the paper](references)" in source.lower():
        keys = f"{PAPER},{keys}".strip(",")
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
