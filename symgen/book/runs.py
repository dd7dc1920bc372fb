"""Find the chapters, check their parameters and execute them, each at most once per state."""

import ast
import contextlib
import difflib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import yaml

from symgen.book.notebooks import (
    UNREADABLE,
    drop_progress,
    has_tag,
    identity,
    inputs_changed,
    own_code,
    own_tables,
    provenance_record,
    read_executed,
    refresh,
    tables_changed,
    write_notebook,
)
from symgen.book.parameters import check_parameters
from symgen.fingerprints import PACKAGE, fingerprint

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


class BookError(ValueError):
    """A request that cannot be carried out; the message says what to do instead."""


@dataclass
class Outcome:
    """What became of one chapter: status is "done", "unchanged" or "failed"."""

    chapter: str
    status: str
    path: Path
    seconds: float = 0.0
    error: str = ""
    info: dict = field(default_factory=dict)


def book_folder() -> Path:
    """Return the book's folder: the working folder or one above it, else the one symgen lies in."""
    here = Path.cwd()
    for folder in (here, *here.parents, PACKAGE.parent):
        if (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir():
            return folder
    raise BookError(
        f"no book found in {here} or above it: a book has a _toc.yml and a folder chapters/; "
        "change into a clone of the project and try again"
    )


def unknown(kind: str, given: Any, known: Iterable[str]) -> BookError:
    """Return the error for an unknown name, with the nearest known one and the list of all."""
    given, known = str(given), list(map(str, known))
    near = [k for k in known if given and given.lower() in k.lower()]
    near = near or difflib.get_close_matches(given, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return BookError(f"unknown {kind} {given!r}{hint} Known: {', '.join(known) or 'none'}")


def chapter_names(book: Path) -> list[str]:
    """Return the names of all chapters in reading order."""
    return sorted(p.stem for p in (book / "chapters").glob("*.ipynb") if p.stem[0] not in "._")


def choose_chapters(book: Path, given: Iterable[str]) -> list[str]:
    """Return the chapters that were asked for; ``all`` means every one."""
    known = chapter_names(book)
    names = [Path(name).name.removesuffix(".ipynb") for name in given]
    if not names:
        raise BookError(
            "no chapter named: name one or more, or 'all' for the whole book. "
            f"Known: {', '.join(known) or 'none'}"
        )
    if "all" in names:
        return known
    for name in names:
        if name not in known:
            raise unknown("chapter", name, known)
    return list(dict.fromkeys(names))


class _Yaml(yaml.SafeLoader):
    """The core schema of YAML 1.2: 010 is ten; 1:30, yes, 2020-01-01 and .nan are words."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 - filled below


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
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BookError(
            f"{path} must hold a mapping from names, like `name: value`, and holds "
            f"{json.dumps(value)[:80]}"
        )
    return value


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


def read_chapter(book: Path, name: str) -> nbformat.NotebookNode:
    """Return the chapter as it lies in chapters/."""
    path = book / "chapters" / f"{name}.ipynb"
    try:
        return nbformat.read(path, as_version=4)
    except UNREADABLE as error:
        raise BookError(
            f"{path} cannot be read as a notebook ({error}): restore it from its repository"
        ) from None


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the parameters of a notebook and their defaults, from its cell tagged `parameters`.

    What is no plain assignment of a value is passed over: running the cell tells what is wrong.
    """
    found = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or not has_tag(cell, "parameters"):
            continue
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found[node.targets[0].id] = ast.literal_eval(node.value)
                elif isinstance(node, ast.AnnAssign) and node.value is not None:
                    found[node.target.id] = ast.literal_eval(node.value)
    return found


def _value(chapter: str, name: str, given: Any, default: Any) -> Any:
    """Read a parameter given as text the way YAML does, and see that its type fits the default."""
    value = given
    if isinstance(given, str):
        try:
            value = from_yaml(given)
        except ValueError:
            value = given
        if isinstance(default, str) and value is not None:
            value = given
    fits = (
        default is None
        or value is None
        or isinstance(value, type(default))
        or (isinstance(default, float) and isinstance(value, int))
        or (isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)))
    )
    if not fits or (isinstance(value, bool) and not isinstance(default, (bool, type(None)))):
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
    known = defaults(read_chapter(book, chapter))
    base = read_preset(book, preset).get(chapter, {})
    if preset != "quick":
        base = {"preset": preset, **base}
    found = []
    for given in several:
        if "preset" in given:
            raise BookError(
                f"write --preset {given['preset']} instead of -p preset {given['preset']}"
            )
        for name in (values := {**base, **given}):
            if name not in known:
                raise unknown(f"parameter of {chapter}", name, known)
        values = {k: _value(chapter, k, value, known[k]) for k, value in values.items()}
        _check(chapter, {**known, **values})
        found.append(values)
    return found


def _check(chapter: str, parameters: Mapping[str, Any]) -> None:
    try:
        check_parameters(chapter, parameters)
    except ValueError as error:
        raise BookError(str(error)) from None


def run_folder(book: Path, preset: str, given: Mapping[str, Any]) -> Path:
    """Return where a run is kept: one folder a preset, and one for each changed preset."""
    if given:
        preset = f"{preset}-{fingerprint(dict(given))[:8]}"
    return book / "_build" / "runs" / preset


def make_folder(folder: Path) -> None:
    """Make a folder, unless it is there, and see that it can be written into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BookError(
            f"cannot write into {folder} ({error.strerror}): make it writable, or name another "
            "folder with --out"
        ) from None


def execute(
    book: Path, chapter: str, preset: str, given: Mapping[str, Any], out: Path, force: bool = False
) -> Outcome:
    """Execute one chapter, unless its executed copy in `out` is what a run would give again.

    While it runs, and after a failure, the copy has another name, and its tables lie elsewhere:
    only a chapter that ran to its end is ever called ``NAME.ipynb``, and stands for itself in
    ``tables/``. After a failure ``NAME.failed.ipynb`` shows the error in the cell that failed.

    Raises:
        BookError: for what `resolve` refuses, and where `out` cannot be written into.
    """
    parameters = resolve(book, chapter, preset, given)
    source = read_chapter(book, chapter)
    about = identity(source, preset, parameters)
    path, tables = out / f"{chapter}.ipynb", out / "tables"
    failed, partial = out / f"{chapter}.failed.ipynb", out / f"{chapter}.partial.ipynb"
    earlier = None if failed.exists() else read_executed(path)
    if not force and earlier and earlier.metadata.symgen.fingerprint == about["fingerprint"]:
        read = inputs_changed(provenance_record(earlier), out, preset)
        if not read and not tables_changed(earlier, tables, chapter):
            return Outcome(chapter, "unchanged", path, info=dict(earlier.metadata.symgen))
    make_folder(out)
    aside = out / f".{chapter}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    started = time.perf_counter()
    os.environ.update(SYMGEN_OUT=str(aside.resolve()), SYMGEN_RUN=str(out.resolve()))
    try:
        executed = _papermill(book, chapter, parameters, partial)
        seconds = round(time.perf_counter() - started, 1)
        memory = provenance_record(executed).get("memory", {})
        executed.metadata = nbformat.from_dict(
            {
                "kernelspec": KERNEL,
                "language_info": {"name": "python", "file_extension": ".py"},
                "symgen": {**about, "seconds": seconds, "memory": memory},
                **{k: v for k, v in executed.metadata.items() if k == "widgets"},
            }
        )
        done = drop_progress(refresh(executed, source))
        # Only what an earlier run wrote is replaced: others may keep files beside it.
        replaced = own_tables(read_executed(path), tables, chapter)
        write_notebook(done, path, (aside / "tables").glob("*.csv"), tables, replaced)
        failed.unlink(missing_ok=True)
    except Exception as error:  # a dead kernel, a failing cell, a full disk come as many types
        seconds = time.perf_counter() - started
        with contextlib.suppress(OSError):  # of a full disk: the reason is told all the same
            write_notebook(_with_error(partial, source, error), failed)
        return Outcome(chapter, "failed", failed, seconds, error=_reason(error))
    finally:
        del os.environ["SYMGEN_OUT"], os.environ["SYMGEN_RUN"]
        shutil.rmtree(aside, ignore_errors=True)
    partial.unlink(missing_ok=True)
    return Outcome(chapter, "done", path, seconds, info=dict(executed.metadata.symgen))


def _papermill(
    book: Path, chapter: str, parameters: Mapping[str, Any], copy: Path
) -> nbformat.NotebookNode:
    # All this is loaded only where a chapter runs.
    import papermill
    import zmq
    from traitlets.config import Config

    # A kernel talks over a local port that others on the machine could listen to.
    private = {"transport_encryption": "auto"} if zmq.has("curve") else {}
    return papermill.execute_notebook(
        _plain(book / "chapters" / f"{chapter}.ipynb"),
        _plain(copy),
        parameters=dict(parameters) or None,
        kernel_name=KERNEL["name"],
        language=KERNEL["language"],
        cwd=str(book / "chapters"),
        config=Config({"KernelManager": private}),
    )


def _plain(path: Path) -> str:
    # papermill fills braces in file names from the parameters.
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


def _with_error(
    partial: Path, source: nbformat.NotebookNode, error: Exception
) -> nbformat.NotebookNode:
    """Return what a chapter has shown before it failed, with the error where it happened."""
    try:
        notebook = nbformat.read(partial, as_version=4)
        partial.unlink()
    except UNREADABLE:
        notebook = source
        for cell in own_code(notebook):
            cell.outputs = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(output.output_type == "error" for cell in code for output in cell.outputs):
        begun = [c for c in code if c.metadata.get("papermill", {}).get("start_time")]
        text = f"{type(error).__name__}: {error}"
        shown = nbformat.v4.new_output(
            "error", ename=type(error).__name__, evalue=str(error), traceback=[text]
        )
        (begun or code)[-1 if begun else 0].outputs.append(shown)
    return notebook


def _reason(error: Exception) -> str:
    if type(error).__name__ == "PapermillExecutionError":
        lines = error.source.strip().splitlines()
        shown = "\n".join(f"    {line}" for line in lines[:12])
        return f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}\n{shown}"
    return f"{type(error).__name__}: {error}"
