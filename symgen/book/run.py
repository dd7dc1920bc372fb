"""Run chapters by papermill, and skip those whose executed copy is what a run would give."""

import itertools
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import nbformat
from joblib import Parallel, cpu_count, delayed

from symgen.book import editions, notebooks
from symgen.book.notebooks import BookError
from symgen.device import end_with
from symgen.storage import fingerprint

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# nbclient gives up on a cell that prints a lot after 4 seconds.
OUTPUT_SECONDS = 600
#: The variables of kernels.
ENVIRONMENT = {
    # Progress bars have no place on a page.
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    # Its reports on new last layers name paths of this machine.
    "TRANSFORMERS_VERBOSITY": "error",
    # On Linux, freed memory is kept: images of 224 pixels run 1.6 times as fast, or more.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}


class Outcome(NamedTuple):
    """The outcome of a chapter; status is "done", "unchanged", "failed" or "stopped"."""

    chapter: str
    status: str
    path: Path
    message: str


def run_folder(place: Path, preset: str, given: Mapping[str, Any]) -> Path:
    """Return the folder of a run: one per preset, and one per set of other parameters."""
    changed = f"-{fingerprint(notebooks.as_text(given))[:8]}" if given else ""
    return place / "_build" / "runs" / f"{preset}{changed}"


def check_writable(folder: Path, what: str) -> None:
    """Make a folder if need be, and check that files can be written to it.

    Raises:
        BookError: if not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BookError(
            f"{what} {folder} cannot be written to ({error.strerror}); "
            "change its permissions, or name another folder"
        ) from None


def identity(source: nbformat.NotebookNode, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides if a run would repeat an earlier one."""
    return {
        "cells": notebooks.cells_hash(source, parameters),
        "parameters": notebooks.as_text(parameters),
        "package": notebooks.package_hash(),
    }


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


def is_unchanged(path: Path, about: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Return whether the executed copy at `path` need not be made again.

    A chapter runs again if it reads tables of other chapters, or if a parameter names a file or
    code of the reader (module:function), which may have changed.
    """
    earlier = notebooks.read(path)
    if earlier is None or path.with_suffix(".failed.ipynb").exists():
        return False
    for text in texts_in(dict(parameters)):
        is_code = re.fullmatch(r"[\w./~-]+:\w+", text)
        if is_code or (os.path.sep in text and Path(text).expanduser().exists()):
            return False
    ran = earlier.metadata.get("symgen", {})
    return not ran.get("reads") and all(ran.get(name) == value for name, value in about.items())


def check_own(path: Path) -> None:
    """Check that a file may be replaced: it is a notebook that a run made, or there is none.

    Raises:
        BookError: if not.
    """
    earlier = notebooks.read(path)
    if path.exists() and (earlier is None or "symgen" not in earlier.metadata):
        raise BookError(f"{path} was not made by `symgen run`; name another --out, or move it away")


def keep_edited(path: Path) -> str:
    """Move an executed copy that a reader has edited to ``NAME.edited-1.ipynb``, and say so."""
    earlier = notebooks.read(path)
    if earlier is None or editions.checksum(earlier) == earlier.metadata["symgen"].get("page"):
        return ""
    names = (path.with_suffix(f".edited-{number}.ipynb") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    return f"; the edited copy is now {aside.name}"


def execute(
    book: Path,
    chapter: str,
    preset: str,
    given: Mapping[str, Any],
    out: Path,
    until: float = math.inf,
    commit: str = "",
    cores: int | None = None,
) -> Outcome:
    """Run one chapter into the folder `out`.

    A chapter that ends well becomes ``NAME.ipynb`` with ``tables/NAME.*.csv``; an earlier copy
    that was edited keeps its cells under another name. After a failure,
    ``NAME.failed.ipynb`` shows the error, and the last good copy and its tables stay.

    Args:
        book: folder of the book.
        chapter: name of a chapter, or path of another notebook.
        preset: name of the preset.
        given: parameters that differ from the preset's.
        out: folder of the run.
        until: time (seconds since 1970) after which nothing new starts.
        commit: commit of symgen, to store new trainings in `data/trainings`; empty stores none.
        cores: number of cores that the chapter's trainings share; by default all.

    Raises:
        BookError: for an unknown preset or parameter.
    """
    parameters = notebooks.resolve(book, chapter, preset, given)
    source_path = notebooks.source_path(book, chapter)
    source = notebooks.read_chapter(book, chapter)
    about = identity(source, parameters)
    name = source_path.stem
    path = out / f"{name}.ipynb"
    failed = path.with_suffix(".failed.ipynb")
    if is_unchanged(path, about, parameters):
        return Outcome(name, "unchanged", path, "unchanged since its last run")
    if time.time() >= until:
        return Outcome(name, "stopped", path, "not started; run again")
    started = time.perf_counter()
    try:
        check_own(path)
        check_own(failed)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}.") as folder:
            aside = Path(folder).resolve()
            kernel = _variables(aside, out, until, commit, cores)
            executed, error = _papermill(source, aside, parameters, source_path.parent, kernel)
            if getattr(error, "ename", "") == "OutOfTime":
                return Outcome(name, "stopped", path, str(getattr(error, "evalue", "")))
            record = _tidy(executed, book)
            seconds = round(time.perf_counter() - started, 1)
            executed.metadata["symgen"] = {"preset": preset, "seconds": seconds, **record, **about}
            if error is not None:
                notebooks.write(executed, failed)
                message = f"failed: {_reason(error)} (executed so far: {failed})"
                return Outcome(name, "failed", failed, message)
            editions.seal(executed, aside / "tables", name)
            note = keep_edited(path)
            editions.put(executed, aside / "tables", path)
            failed.unlink(missing_ok=True)
    except (BookError, OSError) as error:
        return Outcome(name, "failed", path, f"failed: {error}")
    return Outcome(name, "done", path, f"done in {seconds:.1f} s{note}")


def _variables(
    aside: Path, out: Path, until: float, commit: str, cores: int | None
) -> dict[str, str]:
    """Return the environment variables of a kernel; `Chapter` reads those of symgen."""
    orders = {"out": str(out.resolve()), "until": until, "commit": commit}
    kernel = {**ENVIRONMENT, "SYMGEN_OUT": str(aside), "SYMGEN_RUN": json.dumps(orders)}
    for name in ("SYMGEN_CACHE", "SYMGEN_DATA"):
        if os.environ.get(name):  # the kernel runs in another folder
            kernel[name] = str(Path(os.environ[name]).expanduser().absolute())
    if cores is not None:
        kernel["LOKY_MAX_CPU_COUNT"] = str(cores)
    return kernel


def _papermill(
    source: nbformat.NotebookNode,
    aside: Path,
    parameters: Mapping[str, Any],
    place: Path,
    kernel: Mapping[str, str],
) -> tuple[nbformat.NotebookNode, Exception | None]:
    """Return the notebook as far as it ran, and the error that stopped it."""
    import papermill  # slow to import, as are the others
    import zmq
    from traitlets.config import Config

    # A kernel talks over a local port that others on the machine could listen to.
    private = {"transport_encryption": "auto"} if zmq.has("curve") else {}
    target = aside / "executed.ipynb"
    try:
        with mock.patch.dict(os.environ, kernel):
            executed = papermill.execute_notebook(
                source, target, dict(parameters) or None, cwd=str(place),
                kernel_name=KERNEL["name"], language=KERNEL["language"], progress_bar=False,
                iopub_timeout=OUTPUT_SECONDS, config=Config({"KernelManager": private}),
                extra_arguments=["--log-level=CRITICAL"],
            )  # fmt: skip
    except Exception as error:  # a failing cell, a dead kernel and a full disk differ in type
        return notebooks.read(target) or source, error
    return executed, None


def _tidy(notebook: nbformat.NotebookNode, book: Path) -> dict[str, Any]:
    """Remove what differs between two equal runs, and paths of this machine.

    Returns:
        The record in the output of `Chapter.provenance`, which is removed, too.
    """
    language = {"name": "python", "file_extension": ".py"}
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": language})
    record: dict[str, Any] = {}
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        for output in cell.get("outputs", []):
            record |= output.get("data", {}).pop(notebooks.PROVENANCE, {})
    notebooks.scrub(notebook, book)
    return record


def _reason(error: Any) -> str:
    """Return in one line why a chapter stopped."""
    text = f"{type(error).__name__}: {error}"
    if hasattr(error, "ename"):
        text = f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}"
    return " ".join(text.split())


def run_all(
    book: Path,
    chapters: Iterable[str],
    preset: str,
    given: Mapping[str, Any],
    out: Path,
    workers: int = 1,
    until: float = math.inf,
    commit: str = "",
) -> Iterator[Outcome]:
    """Run chapters side by side, and yield each outcome as it comes. See `execute`."""
    # Chapters that run side by side share the cores, or processes would wait for each other.
    cores = max(1, cpu_count() // workers)
    rest = (preset, given, out, until, commit, cores)
    # Neighbours share networks, so the second of them comes later and reads them.
    names = [*chapters]
    names = [*names[::2], *names[1::2]] if workers > 1 else names
    jobs = (delayed(_execute_under)(os.getpid(), book, name, *rest) for name in names)
    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1}
    outcomes: Any = Parallel(n_jobs=workers, **options)(jobs)
    yield from outcomes


def _execute_under(parent: int, *arguments: Any) -> Outcome:
    end_with(parent)
    return execute(*arguments)


def expected(book: Path, chapters: Iterable[str], preset: str) -> Iterator[tuple[str, str]]:
    """Yield per chapter what a run with this preset is expected to take, in words.

    The seconds are those of the stored page, scaled by one batch that is timed on both machines.
    """
    from symgen.book.chapter import timed_batch

    here = timed_batch()
    for chapter in chapters:
        stored = notebooks.read(editions.edition_folder(book, preset) / f"{chapter}.ipynb")
        about = stored.metadata.get("symgen", {}) if stored else {}
        if not about.get("batch"):
            yield chapter, "no stored run"
            continue
        seconds, reused = about["seconds"], about["reused"]
        text = f"{seconds:,.0f} s on {about['device']}"
        text += f", {reused:,.0f} s of it reused" if reused else ""
        yield chapter, f"about {(seconds - reused) * here / about['batch']:,.0f} s ({text})"
