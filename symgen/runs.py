"""Find the chapters, check their parameters and execute them, each at most once per state."""

import ast
import contextlib
import difflib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml
import zmq
from traitlets.config import Config

from symgen.editions import (
    drop_progress,
    has_tag,
    identity,
    inputs_changed,
    provenance_record,
    read_executed,
    refresh,
    write_notebook,
)
from symgen.provenance import PACKAGE, fingerprint

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# A kernel talks over a local port that others on the machine could listen to.
PRIVATE = {"transport_encryption": "auto"} if zmq.has("curve") else {}


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


def unknown(kind: str, given: str, known: Iterable[str]) -> BookError:
    """Return the error for an unknown name, with the nearest known one and the list of all."""
    known = list(known)
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


def read_yaml(path: Path) -> dict:
    """Read a YAML file that holds one mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise BookError(f"{path.name} is not valid YAML: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BookError(f"{path.name} must hold a mapping, and holds a {type(value).__name__}")
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
    return {chapter: dict(values or {}) for chapter, values in read_yaml(path).items()}


def read_chapter(book: Path, name: str) -> nbformat.NotebookNode:
    """Return the chapter as it lies in chapters/."""
    return nbformat.read(book / "chapters" / f"{name}.ipynb", as_version=4)


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the parameters of a notebook and their defaults, from its cell tagged `parameters`."""
    found = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or not has_tag(cell, "parameters"):
            continue
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
            value = yaml.safe_load(given)
        except yaml.YAMLError:
            value = given
        if isinstance(value, str):
            with contextlib.suppress(ValueError):  # YAML 1.1 takes 1e-3 for a word.
                value = float(value)
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
        BookError: for an unknown preset or parameter, or a value of the wrong type.
    """
    known = defaults(read_chapter(book, chapter))
    values = read_preset(book, preset).get(chapter, {})
    if "preset" in given:
        raise BookError(f"write --preset {given['preset']} instead of -p preset {given['preset']}")
    if preset != "quick":
        values = {"preset": preset, **values}
    values = {**values, **given}
    for name in values:
        if name not in known:
            raise unknown(f"parameter of {chapter}", name, known)
    return {name: _value(chapter, name, value, known[name]) for name, value in values.items()}


def run_folder(book: Path, preset: str, given: Mapping[str, Any]) -> Path:
    """Return where a run is kept: one folder a preset, and one for each changed preset."""
    if given:
        preset = f"{preset}-{fingerprint(dict(given))[:8]}"
    return book / "_build" / "runs" / preset


def execute(
    book: Path, chapter: str, preset: str, given: Mapping[str, Any], out: Path, force: bool = False
) -> Outcome:
    """Execute one chapter, unless its executed copy in `out` is what a run would give again.

    While it runs, and after a failure, the copy has another name: only a chapter that ran to
    its end is ever called ``NAME.ipynb``.
    """
    parameters = resolve(book, chapter, preset, given)
    source = read_chapter(book, chapter)
    about = identity(source, preset, parameters)
    path = out / f"{chapter}.ipynb"
    earlier = read_executed(path)
    same = earlier and earlier.metadata.symgen.fingerprint == about["fingerprint"]
    if same and not force and not inputs_changed(provenance_record(earlier), out, preset):
        return Outcome(chapter, "unchanged", path, info=dict(earlier.metadata.symgen))
    partial, failed = out / f"{chapter}.partial.ipynb", out / f"{chapter}.failed.ipynb"
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    os.environ["SYMGEN_OUT"] = str(out.resolve())
    try:
        executed = papermill.execute_notebook(
            _plain(book / "chapters" / f"{chapter}.ipynb"),
            _plain(partial),
            parameters=parameters or None,
            kernel_name=KERNEL["name"],
            language=KERNEL["language"],
            cwd=str(book / "chapters"),
            config=Config({"KernelManager": PRIVATE}),
        )
    except Exception as error:  # a dead kernel and a failing cell come as many types
        if partial.exists():
            os.replace(partial, failed)
        seconds = time.perf_counter() - started
        return Outcome(chapter, "failed", failed, seconds, error=_reason(error))
    finally:
        del os.environ["SYMGEN_OUT"]
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
    write_notebook(drop_progress(refresh(executed, source)), path)
    for leftover in (partial, failed):
        leftover.unlink(missing_ok=True)
    return Outcome(chapter, "done", path, seconds, info=dict(executed.metadata.symgen))


def _plain(path: Path) -> str:
    # papermill fills braces in file names from the parameters.
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


def _reason(error: Exception) -> str:
    if isinstance(error, papermill.PapermillExecutionError):
        lines = error.source.strip().splitlines()
        shown = "\n".join(f"    {line}" for line in lines[:12])
        return f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}\n{shown}"
    return f"{type(error).__name__}: {error}"
