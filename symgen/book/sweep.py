"""Run chapters with many sets of parameters, on this machine or on a dask cluster."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from joblib import cpu_count
from sklearn.model_selection import ParameterGrid

from symgen.book import notebooks, run
from symgen.book.notebooks import BookError
from symgen.storage import atomic, fingerprint

KEYS = ("chapter", "preset", "grid")


class Cell(NamedTuple):
    """One run of a sweep: a chapter with its parameters."""

    chapter: str
    preset: str
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of its folder."""
        key = [self.chapter, self.preset, notebooks.as_text(self.parameters)]
        return f"{Path(self.chapter).stem}-{fingerprint(key)[:12]}"

    def is_done(self, book: Path, out: Path) -> bool:
        """Return whether the folder of the sweep holds what a run would give."""
        parameters = notebooks.resolve(book, self.chapter, self.preset, self.parameters)
        about = run.identity(notebooks.read_chapter(book, self.chapter), parameters)
        page = notebooks.source_path(book, self.chapter).name
        return run.is_unchanged(out / "cells" / self.name / page, about, parameters)


def sweep_folder(book: Path, grid: Path) -> Path:
    """Return the folder of a sweep, one per grid file."""
    return book / "_build" / "sweeps" / f"{grid.stem}-{fingerprint(grid.resolve())[:6]}"


def read_cells(book: Path, grid: Path) -> list[Cell]:
    """Return the runs that a file asks for.

    Args:
        book: folder of the book.
        grid: YAML with ``chapter`` (a name or a list), ``preset`` (quick by default), and ``grid``.
            This holds lists of values by parameter, of which every combination is run. It may
            also be a list of such mappings.

    Raises:
        BookError: for anything else, and for unknown chapters, presets and parameters.
    """
    asked = notebooks.read_yaml(grid)
    for key in asked.keys() - {*KEYS}:
        raise notebooks.unknown(f"key of {grid}", key, KEYS)
    chapter = asked.get("chapter")
    chapters = chapter if isinstance(chapter, list) else [chapter]
    try:
        sets = list(ParameterGrid(asked.get("grid")))
    except (TypeError, ValueError) as error:
        raise BookError(
            f"{grid} must hold grid: lists of values by parameter, or a list of such mappings "
            f"({error})"
        ) from None
    preset = asked.get("preset", "quick")
    cells = []
    for chapter in notebooks.chosen_chapters(book, map(str, chapters)):
        for parameters in sets:
            notebooks.resolve(book, chapter, preset, parameters)
            cells.append(Cell(chapter, preset, parameters))
    if not cells:
        raise BookError(f"{grid} asks for no run; grid and chapter must not be empty")
    return cells


def run_cell(book: str, out: str, cell: Cell) -> tuple[Cell, str]:
    """Run one cell in a new process; return it with its error message, empty if there is none.

    A kernel cannot be driven from a thread of a dask worker, hence the process.
    """
    command = [sys.executable, "-m", "symgen", "run", cell.chapter, "--preset", cell.preset]
    for name, text in notebooks.as_text(cell.parameters).items():
        command += ["-p", name, text]
    command += ["--out", str(Path(out, "cells", cell.name))]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, cwd=book, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return cell, ""
    return cell, (done.stdout + done.stderr).strip() or f"ended with status {done.returncode}"


def run_cells(
    book: Path, cells: list[Cell], out: Path, workers: int = 1, scheduler: str | None = None
) -> Iterator[tuple[Cell, str]]:
    """Run what is missing or out of date, and yield each cell with its error message as it ends.

    Args:
        book: folder of the book.
        cells: sets of parameters to run; see `read_cells`.
        out: folder of the sweep; with a scheduler, one that all its machines share.
        workers: how many cells run side by side on this machine.
        scheduler: address of a dask scheduler, such as ``tcp://10.0.0.1:8786``.
    """
    with contextlib.ExitStack() as stack:
        if scheduler:
            from distributed import Client

            pool = stack.enter_context(Client(scheduler)).get_executor()
        else:  # cells side by side share the cores of this machine
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // workers)))
            pool = ThreadPoolExecutor(workers)
        stack.enter_context(pool)
        missing = [cell for cell in cells if not cell.is_done(book, out)]
        place = str(out.resolve())
        futures = [pool.submit(run_cell, str(book), place, cell) for cell in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def join_tables(cells: list[Cell], out: Path, errors: Mapping[str, str]) -> Path:
    """Write the tables of all cells into one file, ``sweep.csv``, and return its path.

    Columns: chapter, the parameters, status, error, table, and the columns of all tables. A
    failed cell is one row.
    """
    parts = []
    for cell in cells:
        error = errors.get(cell.name, "")
        about = {"chapter": cell.chapter, **notebooks.as_text(cell.parameters)}
        about |= {"status": "failed" if error else "done", "error": error}
        tables = {"": pd.DataFrame(index=[0])}
        files = sorted((out / "cells" / cell.name / "tables").glob("*.csv"))
        if files and not error:
            tables = {file.name.split(".")[-2]: pd.read_csv(file) for file in files}
        for table, frame in tables.items():
            row = pd.DataFrame({**about, "table": table}, index=frame.index)
            clash = {name: f"{name} ({table})" for name in frame if name in row}
            parts.append(row.join(frame.rename(columns=clash)))
    with atomic(out / "sweep.csv") as path:
        pd.concat(parts, ignore_index=True).to_csv(path, index=False)
    return out / "sweep.csv"
