"""Find the book, and read its notebooks, presets and parameters."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lazy_loader
import yaml

from symgen import names
from symgen.storage import atomic, fingerprint

if TYPE_CHECKING:
    import nbformat
else:  # its import takes seconds, and few kernels need it
    nbformat = lazy_loader.load("nbformat")
PACKAGE = Path(__file__).resolve().parents[1]
#: From the smallest to the largest.
PRESETS = ("quick", "cpu", "gpu", "paper")
#: The type of the output that carries a run's provenance; `symgen run` moves it to the metadata.
PROVENANCE = "application/vnd.symgen.provenance+json"
#: Types of parameters.
PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


class BookError(ValueError):
    """A request that cannot be carried out. The message says what to do instead."""


def unknown(what: str, given: object, choices: Iterable[object]) -> BookError:
    """Return the error for an unknown name, with the nearest correct one."""
    return BookError(str(names.unknown(what, given, choices)))


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are decimal, whose dates are texts, and which also reads Python's None."""


_Loader.yaml_implicit_resolvers = {}


def _leading_zero(loader: _Loader, node: yaml.ScalarNode) -> None:
    # YAML reads it as octal: 010 would be 8.
    raise ValueError(f"{node.value} starts with 0; drop the 0, or quote a text")


_Loader.add_constructor("!leading-zero", _leading_zero)
YAML = "tag:yaml.org,2002:"
SCALARS = {
    "!leading-zero": r"[-+]?0[\d_]+",
    f"{YAML}null": "|~|null|Null|NULL|None",
    f"{YAML}bool": "true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF",
    f"{YAML}int": r"[-+]?(0|[1-9][\d_]*)",
    f"{YAML}float": r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    f"{YAML}merge": "<<",
}
for tag, pattern in SCALARS.items():
    _Loader.add_implicit_resolver(tag, re.compile(f"^({pattern})$"), None)


def is_plain(value: Any) -> bool:
    """Return whether a value is made of numbers, texts, lists and mappings with texts as keys."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(value[key]) for key in value)
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, PLAIN)


def from_yaml(text: str) -> Any:
    """Return the value of a YAML text; both None and null are None.

    Raises:
        BookError: for a text that is not YAML, or holds other things than numbers and texts.

    Example:
        >>> from_yaml("None"), from_yaml("1e-3"), from_yaml("{n: 8}"), from_yaml("2026-01-01")
        (None, 0.001, {'n': 8}, '2026-01-01')
    """
    try:
        value = yaml.load(text, _Loader)  # a SafeLoader
        if not is_plain(value):
            raise TypeError("it holds more than numbers, texts, lists, and mappings from texts")
    except Exception as error:  # PyYAML also raises KeyError, IndexError and others
        reason = " ".join(str(error).split())[:200]
        raise BookError(f"{text[:60]!r} is not a value in YAML: {reason}") from None
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty if the file is empty.

    Raises:
        BookError: for a missing file, or one that holds something else.
    """
    try:
        value = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
    """Return the names of the chapters in the order of the table of contents.

    A chapter is a notebook with a cell tagged `parameters`. Other notebooks only read stored
    results: they run when the site is built.
    """
    listed = re.findall(r"chapters/([\w.-]+)", json.dumps(read_yaml(book / "_toc.yml")))
    present = [name for name in listed if source_path(book, name).is_file()]
    return [name for name in present if has_parameters(read_chapter(book, name))]


def source_path(book: Path, chapter: str) -> Path:
    """Return the path of a chapter's source; `chapter` is its name, or the path of a notebook."""
    return book / "chapters" / (chapter.removesuffix(".ipynb") + ".ipynb")


def chosen_chapters(book: Path, given: Iterable[str]) -> list[str]:
    """Return what was asked for: names of chapters, and absolute paths of other notebooks.

    Args:
        book: folder of the book.
        given: names; `all` is every chapter in the contents; or paths of notebooks.

    Raises:
        BookError: for an unknown chapter.
    """
    choices = contents(book)
    chosen: list[str] = []
    for text in given:
        path = Path(text).resolve()
        is_file = path.suffix == ".ipynb" and path.is_file()
        if is_file and path.parent == book / "chapters":
            text = path.stem
        if is_file and text not in choices:
            chosen.append(str(path))
        elif text == "all":
            chosen += choices
        elif text.removesuffix(".ipynb") in choices:
            chosen.append(text.removesuffix(".ipynb"))
        else:
            raise unknown("chapter", text, choices)
    return list(dict.fromkeys(chosen))


def read(path: Path) -> nbformat.NotebookNode | None:
    """Return a notebook, or None if there is none or it is not readable."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, KeyError, AttributeError, nbformat.reader.NotJSONError):
        return None


def read_chapter(book: Path, chapter: str) -> nbformat.NotebookNode:
    """Return the source of a chapter; see `source_path`.

    Raises:
        BookError: if it cannot be read.
    """
    path = source_path(book, chapter)
    notebook = read(path)
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


def has_parameters(notebook: nbformat.NotebookNode) -> bool:
    """Return whether a notebook has a cell tagged `parameters`."""
    return any(has_tag(cell, "parameters") for cell in notebook.cells)


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


def assigned(source: str) -> dict[str, ast.expr]:
    """Return the names that code assigns at its top level, and the values.

    Example:
        >>> list(assigned("n = 8; rate: float = 0.1"))
        ['n', 'rate']
    """
    found: dict[str, ast.expr] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = node.value
    return found


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return what the cell tagged `parameters` assigns; empty without such a cell."""
    result = {}
    for cell in (cell for cell in notebook.cells if has_tag(cell, "parameters")):
        for name, value in assigned(cell.source).items():
            try:
                result[name] = ast.literal_eval(value)
            except ValueError:  # computed, such as 2**10
                result[name] = ...
    return result


def preset_names(book: Path) -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in (book / "chapters" / "presets").glob("*.yml"))


def resolve(book: Path, chapter: str, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters to inject: the preset's, replaced by those given.

    A mapping, such as ``settings``, replaces single entries of the default one.

    Raises:
        BookError: for an unknown preset or parameter.
    """
    if preset not in preset_names(book):
        raise unknown("preset", preset, preset_names(book))
    known = defaults(read_chapter(book, chapter))
    presets = read_yaml(book / "chapters" / "presets" / f"{preset}.yml")
    own = presets.get(source_path(book, chapter).stem) or {}
    result: dict[str, Any] = {"preset": preset} if "preset" in known and preset != "quick" else {}
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
    result = {}
    for name, value in parameters.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=1e9, allow_unicode=True)
        result[name] = text.removesuffix("\n").removesuffix("\n...")
    return result


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


@functools.cache
def package_hash() -> str:
    """Return the fingerprint of the package's source files, which needs no git."""
    files = sorted(PACKAGE.rglob("*.py"))
    return fingerprint({str(f.relative_to(PACKAGE)): f.read_text("utf-8") for f in files})


def scrub(notebook: nbformat.NotebookNode, book: Path) -> None:
    """Replace paths of this machine in the outputs, in place."""
    places = {str(book.resolve()): ".", sys.prefix: "python", str(Path.home()): "~"}
    places[tempfile.gettempdir()] = "tmp"
    rules = {r"/\S*/ipykernel_\d+/\d+\.py": "cell"}
    for place, new in places.items():
        # Before a path comes no letter of base64, so pictures stay as they are.
        rules[rf"(?<![\w+/.]){re.escape(place)}(?![\w-])"] = new

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if isinstance(value, dict):
            return {name: replaced(item) for name, item in value.items()}
        if isinstance(value, str):
            for pattern, new in rules.items():
                value = re.sub(pattern, new, value)
        return value

    for cell in code_cells(notebook):
        cell.outputs = nbformat.from_dict(replaced(cell.outputs))
