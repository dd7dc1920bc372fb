"""Find the book, and read its notebooks, presets and parameters."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lazy_loader
import yaml

from symgen import names
from symgen.storage import atomic, fingerprint

# Its import takes seconds, and a kernel needs it only for pages of other chapters.
nbformat = lazy_loader.load("nbformat")
PACKAGE = Path(__file__).resolve().parents[1]
#: From the smallest to the largest.
PRESETS = ("quick", "cpu", "gpu", "paper")
#: The type of the output that carries a run's provenance; `symgen run` moves it to the metadata.
PROVENANCE = "application/vnd.symgen.provenance+json"


class BookError(ValueError):
    """A request that cannot be carried out. The message says what to do instead."""


def unknown(what: str, given: object, choices: Iterable[object]) -> BookError:
    """Return the error for an unknown name, with the nearest correct one."""
    return BookError(str(names.unknown(what, given, choices)))


class _Loader(yaml.SafeLoader):
    """YAML that also reads Python's None, and 1e-3 as a number."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^None$"), ["N"])
NUMBER = re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))


def from_yaml(text: str) -> Any:
    """Return the value of a YAML text; both None and null are None.

    Raises:
        BookError: for a text that is not YAML.

    Example:
        >>> from_yaml("None"), from_yaml("1e-3"), from_yaml("{n: 8}")
        (None, 0.001, {'n': 8})
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise BookError(f"{text!r} is not YAML: {' '.join(str(error).split())}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty if the file is empty.

    Raises:
        BookError: for a missing file, or one that holds something else.
    """
    try:
        value = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, BookError) as error:
        raise BookError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict | None):
        raise BookError(f"{path} must hold `name: value` lines; it holds {str(value)[:60]!r}")
    return value or {}


def book_above(folder: Path) -> Path | None:
    """Return the book that `folder` is in: the nearest folder with _toc.yml and chapters/."""
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / "_toc.yml").is_file() and (place / "chapters").is_dir():
            return place
    return None


def book_folder() -> Path:
    """Return the book of the working folder, or else the clone that symgen is installed from.

    Raises:
        BookError: if there is neither.
    """
    book = book_above(Path.cwd()) or book_above(PACKAGE)
    if book is None:
        raise BookError(
            f"no book in {Path.cwd()} or above (a folder with _toc.yml and chapters/); "
            "change into a clone of the project"
        )
    return book


def contents(book: Path) -> list[str]:
    """Return the names of the chapters (notebooks) in the order of the table of contents."""
    listed = re.findall(r"chapters/([\w.-]+)", json.dumps(read_yaml(book / "_toc.yml")))
    return [name for name in listed if (book / "chapters" / f"{name}.ipynb").is_file()]


def chosen_chapters(book: Path, given: Iterable[str]) -> list[str]:
    """Return the chapters that were asked for; `all` is every chapter in the contents.

    Raises:
        BookError: for an unknown chapter.
    """
    choices = sorted(path.stem for path in (book / "chapters").glob("[!.]*.ipynb"))
    chosen: dict[str, None] = {}
    for name in given:
        name = Path(name).name.removesuffix(".ipynb")
        if name not in (*choices, "all"):
            raise unknown("chapter", name, choices)
        chosen |= dict.fromkeys(contents(book) if name == "all" else [name])
    return list(chosen)


def read(path: Path) -> nbformat.NotebookNode | None:
    """Return a notebook, or None if there is none or it is not readable."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError):
        return None


def read_chapter(book: Path, name: str) -> nbformat.NotebookNode:
    """Return the source of a chapter.

    Raises:
        BookError: if it cannot be read.
    """
    notebook = read(path := book / "chapters" / f"{name}.ipynb")
    if notebook is None:
        raise BookError(f"{path} is not a notebook; restore it from the repository")
    return notebook


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook; readers never see half of it."""
    with atomic(path) as temporary:
        temporary.write_text(nbformat.writes(notebook), encoding="utf-8")


def has_tag(cell: Mapping, *tags: str) -> bool:
    """Return whether a cell has one of the tags."""
    return bool({*tags} & {*cell["metadata"].get("tags", [])})


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the chapter's code cells, without the one that papermill adds."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if not has_tag(cell, "injected-parameters")]


def cells_hash(notebook: nbformat.NotebookNode, given: Iterable[str] = ()) -> str:
    """Return the fingerprint of the code cells, which decides if a stored page is stale.

    Of the cell tagged `parameters`, only the defaults count that a run used: those of parameters
    that are not in `given`.
    """
    cells = [cell.source for cell in code_cells(notebook) if not has_tag(cell, "parameters")]
    used = {name: repr(v) for name, v in defaults(notebook).items() if name not in {*given}}
    return fingerprint([cells, used])


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return what the cell tagged `parameters` assigns; empty without such a cell."""
    result = {}
    for cell in (cell for cell in notebook.cells if has_tag(cell, "parameters")):
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    result[node.targets[0].id] = ast.literal_eval(node.value)
                except ValueError:  # computed, such as 2**10
                    result[node.targets[0].id] = ...
    return result


def preset_names(book: Path) -> list[str]:
    """Return the names of the presets, the smallest first."""
    stems = {path.stem for path in (book / "chapters" / "presets").glob("*.yml")}
    return sorted(stems, key=lambda name: (PRESETS.index(name) if name in PRESETS else 9, name))


def resolve(book: Path, chapter: str, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters to inject: the preset's, replaced by those given.

    A mapping, such as ``settings``, replaces single entries of the default one.

    Raises:
        BookError: for an unknown preset or parameter.
    """
    if preset not in preset_names(book):
        raise unknown("preset", preset, preset_names(book))
    known = defaults(read_chapter(book, chapter))
    own = read_yaml(book / "chapters" / "presets" / f"{preset}.yml").get(chapter) or {}
    result = {"preset": preset} if "preset" in known and preset != "quick" else {}
    for name, value in [*own.items(), *given.items()]:
        if name not in known or name == "preset":
            choices = [name for name in known if name != "preset"]
            raise unknown(f"parameter of {chapter}", name, choices)
        earlier = result.get(name, known[name])
        both = isinstance(value, dict) and isinstance(earlier, dict)
        result[name] = {**earlier, **value} if both else value
    return result


def as_text(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as `-p` takes it. JSON has no NaN, so provenance holds these texts."""
    dumped = {k: yaml.safe_dump(v, default_flow_style=True, width=1e9, allow_unicode=True)
              for k, v in parameters.items()}  # fmt: skip
    return {k: v.removesuffix("\n").removesuffix("\n...") for k, v in dumped.items()}


def package_commit() -> str:
    """Return the last commit that changed the package, with "+" if files have changed since.

    In an archive made by git, it is the commit of the archive. Else, without git, it is empty.
    """
    # git fills this file in when it makes an archive.
    archived = (PACKAGE / "book" / "commit.txt").read_text().strip()
    if not archived.startswith("$"):
        return archived

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("log", "-1", "--format=%h", "--", ".") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return ""


def scrub(notebook: nbformat.NotebookNode, book: Path) -> None:
    """Replace paths of this machine in the outputs, in place."""
    places = [
        (str(book.resolve()), "."), (sys.prefix, "python"), (str(Path.home()), "~"),
        (tempfile.gettempdir(), "tmp"),
    ]  # fmt: skip
    # Before a path comes no letter of base64, so pictures stay as they are.
    paths = [(rf"(?<![\w+/.]){re.escape(place)}(?![\w-])", new) for place, new in places]
    rules = [(r"/\S*/ipykernel_\d+/\d+\.py", "cell"), *paths]

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if isinstance(value, dict):
            return {name: replaced(item) for name, item in value.items()}
        for pattern, new in rules if isinstance(value, str) else []:
            value = re.sub(pattern, new, value)
        return value

    for cell in code_cells(notebook):
        cell.outputs = nbformat.from_dict(replaced(cell.outputs))
