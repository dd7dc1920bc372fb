"""Execute chapters, each at most once per state of its code, parameters and libraries."""

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from symgen.book import notebooks
from symgen.book.presets import BookError, read_chapter, resolve
from symgen.book.processes import one_at_a_time
from symgen.files import own_files_changed
from symgen.fingerprints import fingerprint

#: Folders in ``_build`` that a build of the site replaces: itself, and what it is made of and in.
SITE = ("html", "site-src", "site-work", "vendor")
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


class Outcome(NamedTuple):
    """What became of one chapter: status is "done", "unchanged" or "failed", and told in words."""

    status: str
    path: Path
    told: str


def run_folder(workplace: Path, preset: str, given: Mapping[str, Any]) -> Path:
    """Return where a run is kept: one folder a preset, and one for each changed preset."""
    if given:
        preset = f"{preset}-{fingerprint(dict(given))[:8]}"
    return workplace / "_build" / "runs" / preset


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


def refuse_folder(book: Path, workplace: Path, out: Path) -> None:
    """Refuse a folder for runs whose files are the book's own, or a site's."""
    built, place = workplace.resolve() / "_build", out.resolve()
    own = [book.resolve() / name for name in ("chapters", "data", "symgen", "tests", "_static")]
    if place == book.resolve() or any(place.is_relative_to(x) for x in own):
        raise BookError(
            f"--out {out} is a part of the book itself, whose files a run would replace; name a "
            "folder of its own, or keep the outputs of a preset with --store"
        )
    if any(place.is_relative_to(built / name) for name in SITE):
        raise BookError(
            f"--out {out} is where a site is built, in place of what is there: name another folder"
        )


def is_unchanged(about: Mapping[str, Any], chapter: str, out: Path) -> bool:
    """Return whether the executed copy in a folder, with its tables, is what a run would give.

    Args:
        about: what the run would depend on; see `notebooks.identity`.
        chapter: its name.
        out: folder of the run.
    """
    if (out / f"{chapter}.failed.ipynb").exists():
        return False
    earlier = notebooks.read_executed(out / f"{chapter}.ipynb")
    if not earlier or earlier.metadata.symgen.fingerprint != about["fingerprint"]:
        return False
    record = notebooks.provenance_record(earlier)
    if own_files_changed(record.get("own", {}), about["parameters"]):
        return False
    read = notebooks.inputs_changed(record, out, about["preset"])
    return not read and not notebooks.tables_changed(earlier, out / "tables", chapter)


def is_kept(book: Path, chapter: str, preset: str, parameters: Mapping, out: Path) -> bool:
    """Return whether a run would only find a chapter unchanged.

    Args:
        book: its folder.
        chapter, preset: names.
        parameters: of `resolve`.
        out: folder of the run.
    """
    if not (out / f"{chapter}.ipynb").is_file():
        return False
    about = notebooks.identity(read_chapter(book, chapter), preset, parameters)
    return is_unchanged(about, chapter, out)


def execute(
    book: Path,
    chapter: str,
    preset: str,
    given: Mapping[str, Any],
    out: Path,
    force: bool = False,
    keep: bool = False,
) -> Outcome:
    """Execute one chapter, unless its executed copy in `out` is what a run would give again.

    While it runs, the copy and its tables lie elsewhere: only a chapter that ran to its end is ever
    called ``NAME.ipynb``, and stands for itself in ``tables/``. After a failure
    ``NAME.failed.ipynb`` shows the error in the cell that failed. Where another program runs the
    chapter into the same folder, this one waits for it to end.

    Args:
        book: its folder.
        chapter, preset: names.
        given: parameters that differ from the preset's.
        out: folder of the run.
        force: whether to execute it all the same.
        keep: whether what takes hours to measure is to come with the book.

    Raises:
        BookError: for what `resolve` refuses, and where `out` cannot be written into.
    """
    parameters = resolve(book, chapter, preset, given)
    source = read_chapter(book, chapter)
    about = notebooks.identity(source, preset, parameters)
    path = out / f"{chapter}.ipynb"
    kept = Outcome("unchanged", path, f"unchanged since its last run, kept: {path}")
    if not force and is_unchanged(about, chapter, out):
        return kept
    make_folder(out)
    other = f"another run of {chapter} into {out}"
    with one_at_a_time(out / f".{chapter}.lock", other) as waited:
        if waited and not force and is_unchanged(about, chapter, out):
            return kept
        return _execute(book, chapter, source, about, parameters, out, keep)


def _set_aside(path: Path) -> str:
    """Move a notebook away that a reader has written or changed; return what is to be said."""
    if not (there := notebooks.read_notebook(path)):
        return ""
    about, cells = there.metadata.get("symgen") or {}, [cell.source for cell in there.cells]
    if "cells" in about:
        whole = about["cells"] == fingerprint(cells)
    else:  # of an earlier version
        whole = about.get("sources") == notebooks.sources_fingerprint(there)
    if whole:
        return ""
    numbers = itertools.chain([""], itertools.count(2))
    places = (path.with_name(f"{path.stem}.edited{number}.ipynb") for number in numbers)
    place = next(place for place in places if not place.exists())
    os.replace(path, place)
    return f"what was changed in {path.name} by hand is kept: {place}"


def _execute(
    book: Path,
    chapter: str,
    source: nbformat.NotebookNode,
    about: dict[str, Any],
    parameters: Mapping[str, Any],
    out: Path,
    keep: bool,
) -> Outcome:
    path, failed, tables = out / f"{chapter}.ipynb", out / f"{chapter}.failed.ipynb", out / "tables"
    aside = out / f".{chapter}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    started = time.perf_counter()
    # A kernel runs in the folder of the chapters; names of the reader's own are seen from here.
    variables = {"SYMGEN_FROM": os.environ.get("SYMGEN_FROM") or os.getcwd()}
    variables |= {"SYMGEN_KEEP": "1"} if keep else {}
    variables |= {"SYMGEN_OUT": str(aside.resolve()), "SYMGEN_RUN": str(out.resolve())}
    try:
        aside.mkdir()
        with environment(variables):
            executed = _papermill(book, chapter, parameters, aside / path.name)
        about["seconds"] = round(time.perf_counter() - started, 1)
        about["memory"] = notebooks.provenance_record(executed).get("memory", {})
        widgets = {k: v for k, v in executed.metadata.items() if k == "widgets"}
        language = {"name": "python", "file_extension": ".py"}
        known = {"kernelspec": KERNEL, "language_info": language, "symgen": about}
        executed.metadata = nbformat.from_dict({**known, **widgets})
        done = notebooks.drop_progress(notebooks.refresh(executed, source))
        done.metadata["symgen"]["cells"] = fingerprint([cell.source for cell in done.cells])
        # Only what an earlier run wrote is replaced: others may keep files beside it.
        replaced = notebooks.own_tables(notebooks.read_executed(path), tables, chapter)
        edited = _set_aside(path)
        notebooks.write_notebook(done, path, (aside / "tables").glob("*.csv"), tables, replaced)
        failed.unlink(missing_ok=True)
    except Exception as error:  # a dead kernel, a failing cell, a full disk come as many types
        told = f"failed: {_reason(error)}"
        with contextlib.suppress(OSError):  # of a full disk: the reason is told all the same
            notebooks.write_notebook(_with_error(aside / path.name, source, error), failed)
            told += f"\n  executed so far: {failed}"
        return Outcome("failed", failed, told)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    peak = about["memory"].get("host")
    memory = f", {peak:,} MiB at most" if peak else ""
    told = f"done in {about['seconds']:.1f} s{memory}: {path}"
    warned = dict.fromkeys(each for cell in done.cells for each in notebooks.warned_of(cell))
    said = filter(None, [told, edited, *map(": ".join, warned)])
    return Outcome("done", path, "\n  ".join(said))


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a kernel to be started, and leave none of them behind."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _papermill(
    book: Path, chapter: str, parameters: Mapping[str, Any], copy: Path
) -> nbformat.NotebookNode:
    # All this is loaded only where a chapter runs.
    try:
        import papermill
        import zmq
        from traitlets.config import Config
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing, without which no chapter runs: pip install 'symgen[book]'"
        ) from None

    # A kernel talks over a local port that others on the machine could listen to.
    private = {"transport_encryption": "auto"} if zmq.has("curve") else {}
    # papermill fills braces in file names from the parameters.
    paths = [
        str(path.resolve()).replace("{", "{{").replace("}", "}}")
        for path in (book / "chapters" / f"{chapter}.ipynb", copy)
    ]
    return papermill.execute_notebook(
        *paths, dict(parameters) or None, kernel_name=KERNEL["name"], language=KERNEL["language"],
        cwd=str(book / "chapters"), config=Config({"KernelManager": private}),
        # What a kernel says whose run is stopped: a trace of the connection that is gone.
        extra_arguments=["--log-level=CRITICAL"],
    )  # fmt: skip


def _with_error(
    partial: Path, source: nbformat.NotebookNode, error: Exception
) -> nbformat.NotebookNode:
    """Return what a chapter has shown before it failed, with the error where it happened."""
    if (notebook := notebooks.read_notebook(partial)) is None:
        notebook = source
        for cell in notebooks.own_code(notebook):
            cell.outputs = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(output.output_type == "error" for cell in code for output in cell.outputs):
        begun = [c for c in code if c.metadata.get("papermill", {}).get("start_time")]
        about = {"ename": type(error).__name__, "evalue": str(error)}
        shown = nbformat.v4.new_output("error", **about, traceback=[": ".join(about.values())])
        (begun[-1:] or code)[0].outputs.append(shown)
    return notebook


def _reason(error: Exception) -> str:
    if type(error).__name__ == "PapermillExecutionError":
        lines = error.source.strip().splitlines()
        shown = "\n".join(f"    {line}" for line in lines[:12])
        return f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}\n{shown}"
    return f"{type(error).__name__}: {error}"
