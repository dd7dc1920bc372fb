"""Run chapters by papermill, and skip those whose executed copy is what a run would give."""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import nbformat
from joblib import Parallel, cpu_count, delayed

from symgen import __version__
from symgen.book import editions, notebooks
from symgen.storage import fingerprint

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# nbclient gives up on a cell that prints a lot after 4 seconds.
OUTPUT_SECONDS = 600


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


def identity(source: nbformat.NotebookNode, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides if a run would repeat an earlier one."""
    return {
        "cells": notebooks.cells_hash(source, parameters),
        "parameters": notebooks.as_text(parameters),
        "symgen": f"{__version__} {notebooks.package_commit()}".strip(),
    }


def is_unchanged(path: Path, about: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Return whether the executed copy at `path` need not be made again.

    A chapter runs again if the package has uncommitted changes, if it reads tables of other
    chapters, or if a parameter names a file or code of the reader, which may have changed.
    """
    earlier = notebooks.read(path)
    if earlier is None or path.with_suffix(".failed.ipynb").exists():
        return False
    texts = [value for value in parameters.values() if isinstance(value, str)]
    own = any(":" in text or (os.path.sep in text and Path(text).exists()) for text in texts)
    ran = earlier.metadata.get("symgen", {})
    same = all(ran.get(name) == value for name, value in about.items())
    return same and not (own or ran.get("reads") or about["symgen"].endswith("+"))


def execute(
    book: Path,
    chapter: str,
    preset: str,
    given: Mapping[str, Any],
    out: Path,
    until: float | None = None,
    source: nbformat.NotebookNode | None = None,
    cores: int | None = None,
) -> Outcome:
    """Run one chapter into the folder `out`.

    A chapter that ends well becomes ``NAME.ipynb`` with ``tables/NAME.*.csv``. After a failure,
    ``NAME.failed.ipynb`` shows the error, and the last good copy and its tables stay.

    Args:
        book: folder of the book.
        chapter, preset: names.
        given: parameters that differ from the preset's.
        out: folder of the run.
        until: time (seconds since 1970) after which nothing new starts.
        source: the notebook to run instead of the chapter's own.
        cores: number of cores that the chapter's trainings share; by default all.

    Raises:
        BookError: for an unknown preset or parameter.
    """
    parameters = notebooks.resolve(book, chapter, preset, given)
    source = source or notebooks.read_chapter(book, chapter)
    path, failed = out / f"{chapter}.ipynb", out / f"{chapter}.failed.ipynb"
    about = identity(source, parameters)
    if is_unchanged(path, about, parameters):
        return Outcome(chapter, "unchanged", path, "unchanged since its last run")
    if until is not None and time.time() >= until:
        return Outcome(chapter, "stopped", path, "not started; run again")
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{chapter}.") as folder:
        aside = Path(folder).resolve()
        notebooks.write(source, aside / "source.ipynb")
        kernel = {"SYMGEN_OUT": str(aside), "SYMGEN_RUN": str(out.resolve())}
        bars = ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
        kernel |= dict.fromkeys(bars, "1")
        # Its reports on new last layers name paths of this machine.
        kernel |= {"TRANSFORMERS_VERBOSITY": "error"}
        # On Linux, freed memory is kept: images of 224 pixels run 1.6 times as fast, or more.
        kernel |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**30)}
        kernel |= {  # the kernel runs in another folder
            name: str(Path(os.environ[name]).expanduser().absolute())
            for name in ("SYMGEN_CACHE", "SYMGEN_DATA")
            if os.environ.get(name)
        }
        kernel |= {"SYMGEN_UNTIL": str(until)} if until is not None else {}
        kernel |= {"LOKY_MAX_CPU_COUNT": str(cores)} if cores is not None else {}
        try:
            with mock.patch.dict(os.environ, kernel):
                executed = _papermill(book, aside, parameters)
        except Exception as error:  # a failing cell, a dead kernel and a full disk differ in type
            if getattr(error, "ename", "") == "OutOfTime":
                return Outcome(chapter, "stopped", path, str(error.evalue))
            partial = notebooks.read(aside / "executed.ipynb") or source
            _tidy(partial, book)
            notebooks.write(partial, failed)
            message = f"failed: {_reason(error)}\n  executed so far: {failed}"
            return Outcome(chapter, "failed", failed, message)
        seconds = round(time.perf_counter() - started, 1)
        record = {"preset": preset, "seconds": seconds, **_provenance(executed), **about}
        _tidy(executed, book)
        executed.metadata["symgen"] = record
        notebooks.write(executed, path)
        editions.move_tables(aside / "tables", out / "tables", chapter)
        failed.unlink(missing_ok=True)
    return Outcome(chapter, "done", path, f"done in {seconds:.1f} s")


def _papermill(book: Path, aside: Path, parameters: Mapping[str, Any]) -> nbformat.NotebookNode:
    import papermill  # slow to import, as are the others
    import zmq
    from traitlets.config import Config

    # A kernel talks over a local port that others on the machine could listen to.
    private = {"transport_encryption": "auto"} if zmq.has("curve") else {}
    return papermill.execute_notebook(
        aside / "source.ipynb", aside / "executed.ipynb", dict(parameters) or None,
        cwd=str(book / "chapters"),
        kernel_name=KERNEL["name"], language=KERNEL["language"], progress_bar=False,
        iopub_timeout=OUTPUT_SECONDS, config=Config({"KernelManager": private}),
        extra_arguments=["--log-level=CRITICAL"],
    )  # fmt: skip


def _provenance(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Take the record out of the output of `Chapter.provenance`."""
    record: dict[str, Any] = {}
    for cell in notebooks.code_cells(notebook):
        for output in cell.outputs:
            record |= output.get("data", {}).pop(notebooks.PROVENANCE, {})
    return record


def _tidy(notebook: nbformat.NotebookNode, book: Path) -> None:
    """Remove what differs between two equal runs, and paths of this machine."""
    kept = {k: v for k, v in notebook.metadata.items() if k == "widgets"}
    kept |= {"kernelspec": KERNEL, "language_info": {"name": "python", "file_extension": ".py"}}
    notebook.metadata = nbformat.from_dict(kept)
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
    notebooks.scrub(notebook, book)


def _reason(error: Exception) -> str:
    if not hasattr(error, "ename"):
        return f"{type(error).__name__}: {error}"
    lines = error.source.strip().splitlines()[:12]
    cell = "\n".join(f"    {line}" for line in lines)
    return f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}\n{cell}"


def run_all(
    book: Path,
    chapters: Iterable[str],
    preset: str,
    given: Mapping[str, Any],
    out: Path,
    workers: int = 1,
    until: float | None = None,
) -> Iterator[Outcome]:
    """Run chapters side by side, and yield each outcome as it comes. See `execute`."""
    # Chapters that run side by side share the cores, or processes would wait for each other.
    cores = max(1, cpu_count() // workers)
    rest = (preset, given, out, until, None, cores)
    # Neighbours share networks, so the second of them comes later and reads them.
    names = [*chapters]
    names = [*names[::2], *names[1::2]] if workers > 1 else names
    jobs = (delayed(execute)(book, name, *rest) for name in names)
    yield from Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)(jobs)


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
