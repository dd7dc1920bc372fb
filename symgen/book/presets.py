"""What is asked for: a book, its chapters, a preset, and the parameters of a run."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import yaml

from symgen.book.layout import book_above
from symgen.book.notebooks import UNREADABLE, called, defaults
from symgen.book.parameters import check_parameters
from symgen.fingerprints import BOOK
from symgen.literal import nearest


class BookError(ValueError):
    """A request that cannot be carried out; the message says what to do instead."""


def unknown(kind: str, given: Any, known: Iterable[str]) -> BookError:
    """Return the error for an unknown name, with the nearest known one and the list of all."""
    known = list(known)
    told = f"unknown {kind} {str(given)!r}.{nearest(given, known)}"
    return BookError(f"{told} Known: {', '.join(known) or 'none'}")


def book_folder() -> Path:
    """Return the book's folder: the working folder or one above it, else that which symgen has."""
    here = Path.cwd()
    if (book := book_above(here)) or (book := book_above(BOOK)) == BOOK:
        return book
    raise BookError(
        f"no book found in {here} or above it: a book has a _toc.yml and chapters/presets/; "
        "change into one, such as a clone of the project, and try again"
    )


def workplace() -> Path:
    """Return the folder under which runs and sites are kept: the book at hand, or where we are."""
    return book_above(Path.cwd()) or Path.cwd()


def chapter_names(book: Path) -> list[str]:
    """Return the names of all chapters in reading order."""
    return sorted(p.stem for p in (book / "chapters").glob("*.ipynb") if p.stem[0] not in "._")


def table_of_contents(book: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what ``_toc.yml`` holds and all chapters: those that it names, then the others.

    The latter, as a reader's own, are added at its end, so that they have a page.
    """
    contents = read_yaml(book / "_toc.yml")
    named = re.findall(r"chapters/([\w.-]+)", json.dumps(contents))
    names = sorted(chapter_names(book), key=lambda name: name not in named)
    if own := [{"file": f"chapters/{name}"} for name in names if name not in named]:
        if "parts" in contents:
            contents["parts"].append({"caption": "Further chapters", "chapters": own})
        else:
            contents["chapters"] = [*contents.get("chapters", []), *own]
    return contents, names


def choose_chapters(book: Path, given: Iterable[str]) -> list[str]:
    """Return the chapters that were asked for; ``all`` means every one."""
    known, given = chapter_names(book), list(given)
    for path in map(Path, given):
        named = len(path.parts) > 1 or path.is_file()
        if named and path.resolve().parent != (book / "chapters").resolve():
            raise BookError(
                f"{path} is none of the book's chapters, which lie in {book / 'chapters'} and are "
                "run by their names; run other notebooks in Jupyter, or with papermill"
            )
    names = [Path(name).name.removesuffix(".ipynb") for name in given]
    if not names:
        raise BookError(
            "no chapter named: name one or more, or 'all' for the whole book. "
            f"Known: {', '.join(known) or 'none'}"
        )
    for name in names:
        if name not in (*known, "all"):
            raise unknown("chapter", name, known)
    return known if "all" in names else list(dict.fromkeys(names))


def each_once(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return parameters by their names, of which none may be given twice."""
    pairs = list(given)
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise BookError(f"-p {name} is given twice; a grid of values is run by symgen sweep")
    return dict(pairs)


def read_chapter(book: Path, name: str) -> nbformat.NotebookNode:
    """Return the chapter as it lies in chapters/."""
    path = book / "chapters" / f"{name}.ipynb"
    try:
        return nbformat.read(path, as_version=4)
    except UNREADABLE as error:
        raise BookError(
            f"{path} cannot be read as a notebook ({error}): restore it from its repository"
        ) from None


class _Yaml(yaml.SafeLoader):
    """The core schema of YAML 1.2: 010 is ten; 1:30, yes, 2020-01-01 and .nan are words."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 - filled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Return a mapping; of a key that is there twice one value would be forgotten."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is given twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


for _tag, _pattern in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
    "merge": r"<<",
}.items():
    _Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), None)
_Yaml.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_Yaml.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(node.value))


def from_yaml(text: str) -> Any:
    """Read a value of YAML that JSON could hold as well.

    Raises:
        ValueError: with what is wrong and where, for anything else.
    """
    try:
        value = yaml.load(text, _Yaml)
        if json.loads(json.dumps(value, allow_nan=False)) != value:
            raise ValueError("every name must be a word, in quotes if it looks like a number")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return value


def read_yaml(path: Path) -> dict:
    """Read a YAML file that holds one mapping from names."""
    try:
        value = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BookError(f"{path} cannot be read as YAML: {error}; mend it") from None
    if not isinstance(value, (dict, type(None))):
        raise BookError(
            f"{path} must hold a mapping from names, like `name: value`, and holds "
            f"{json.dumps(value)[:80]}"
        )
    return value or {}


def preset_names(book: Path) -> list[str]:
    """Return the names of the presets, the smallest first."""
    order = ["quick", "cpu", "gpu", "paper"]
    names = {p.stem for p in (book / "chapters" / "presets").glob("*.yml")}
    return sorted(names, key=lambda name: (order.index(name) if name in order else 9, name))


def read_preset(book: Path, name: str) -> dict[str, dict]:
    """Return a preset: chapter name to the parameters that differ from the notebook's own."""
    if name not in preset_names(book):
        raise unknown("preset", name, preset_names(book))
    path = book / "chapters" / "presets" / f"{name}.yml"
    preset = {chapter: {} if v is None else v for chapter, v in read_yaml(path).items()}
    for chapter, values in preset.items():
        if not isinstance(values, dict):
            raise BookError(
                f"{path} must hold, under {chapter}, parameters like `n: 10`, and holds {values!r}"
            )
    return preset


# The types that do where a default has a type.
FITTING = {float: (float, int), list: (list, tuple), tuple: (list, tuple)}


def _value(chapter: str, name: str, given: Any, default: Any) -> Any:
    """Read a parameter given as text the way YAML does, and see that its type fits the default."""
    value = given
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            value = from_yaml(given)
        if isinstance(default, str) and (value is not None or not given.strip()):
            value = given
    fitting = FITTING.get(type(default), (type(default),))
    if None not in (value, default) and type(value) not in fitting:
        raise BookError(
            f"parameter {name!r} of {chapter} is given as {given!r}; "
            f"expected is a value like its default, {default!r} ({type(default).__name__})"
        )
    return value


def resolve(book: Path, chapter: str, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters to hand to a chapter: the preset's, overridden by those given.

    Raises:
        BookError: for an unknown preset or parameter, a value of the wrong type, or one that the
            chapter cannot run with.
    """
    return resolve_all(book, chapter, preset, [given])[0]


def resolve_all(
    book: Path, chapter: str, preset: str, several: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what `resolve` does for several sets of given parameters, reading files once."""
    known = defaults(source := read_chapter(book, chapter))
    if other := {*called(source)} - {chapter}:
        raise BookError(
            f"{chapter} calls itself {' and '.join(sorted(other))}, whose tables it would replace: "
            f'write symgen.Chapter("{chapter}", ...) in it'
        )
    base = read_preset(book, preset).get(chapter, {})
    if preset != "quick":
        base = {"preset": preset, **base}
    found = []
    for given in several:
        if "preset" in given:
            read_preset(book, name := str(given["preset"]))  # which there may not be
            raise BookError(
                f"preset is no parameter of its own: write --preset {name}, or in the file of a "
                f"sweep, beside grid, preset: {name}"
            )
        for name in (values := {**base, **given}):
            if name not in known:
                raise unknown(f"parameter of {chapter}", name, known)
        values = {k: _value(chapter, k, value, known[k]) for k, value in values.items()}
        try:
            check_parameters(chapter, {**known, **values})
        except ValueError as error:
            raise BookError(str(error)) from None
        found.append(values)
    return found
