"""Run chapters with many sets of parameters, on this machine or on a dask cluster."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from joblib import Parallel, cpu_count, delayed, parallel_config
from sklearn.model_selection import ParameterGrid

from symgen.book import notebooks
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
        texts = notebooks.as_text(self.parameters)
        return f"{self.chapter}-{fingerprint([self.preset, texts])[:12]}"


def read_cells(book: Path, grid: Path) -> list[Cell]:
    """Return the runs that a file asks for.

    Args:
        book: folder of the book.
        grid: YAML with ``chapter`` (a name or a list), ``preset`` (quick by default), and ``grid``:
            lists of values by parameter, of which every combination is run, or a list of such
            mappings.

    Raises:
        BookError: for anything else, and for unknown chapters, presets and parameters.
    """
    asked = notebooks.read_yaml(grid)
    if extra := asked.keys() - {*KEYS}:
        raise notebooks.unknown(f"key of {grid}", min(extra), KEYS)
    try:
        names, sets = asked["chapter"], ParameterGrid(asked["grid"])
    except (KeyError, TypeError, ValueError) as error:
        raise BookError(
            f"{grid} must hold chapter, and grid: lists of values by parameter, or a list of such "
            f"mappings ({error})"
        ) from None
    preset = asked.get("preset", "quick")
    cells = []
    for chapter in notebooks.chosen_chapters(book, [names] if isinstance(names, str) else names):
        for parameters in sets:
            notebooks.resolve(book, chapter, preset, parameters)
            cells.append(Cell(chapter, preset, parameters))
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
    """Run what is missing, and yield each cell with its error message as it ends.

    Args:
        book: folder of the book.
        cells: sets of parameters to run; see `read_cells`.
        out: folder of the sweep; with a scheduler, one that all its machines share.
        workers: how many cells run side by side on this machine.
        scheduler: address of a dask scheduler, such as ``tcp://10.0.0.1:8786``.
    """
    out.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not (out / "cells" / cell.name / "done").exists()]
    jobs = (delayed(run_cell)(str(book), str(out.resolve()), cell) for cell in missing)
    with contextlib.ExitStack() as stack:
        # joblib's dask backend gives no generators.
        options: dict[str, Any] = {"backend": "threading", "n_jobs": workers}
        how = "generator_unordered"
        if scheduler:
            from distributed import Client

            client = stack.enter_context(Client(scheduler))
            options, how = {"backend": "dask", "n_jobs": -1, "client": client}, "list"
        else:  # cells side by side share the cores of this machine
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // workers)))
        stack.enter_context(parallel_config(**options))
        for cell, error in Parallel(return_as=how)(jobs):
            if not error:
                (out / "cells" / cell.name / "done").touch()
            yield cell, error


def join_tables(cells: list[Cell], out: Path, errors: Mapping[str, str]) -> Path:
    """Write the tables of all cells into one file, ``sweep.csv``, and return its path.

    Columns: chapter, the parameters, status, error, table, and the columns of all tables. A
    failed cell is one row.
    """
    parts = []
    for cell in cells:
        folder = out / "cells" / cell.name
        done = (folder / "done").exists()
        about = {"chapter": cell.chapter, **notebooks.as_text(cell.parameters)}
        about |= {"status": "done" if done else "failed", "error": errors.get(cell.name, "")}
        files = sorted((folder / "tables").glob("*.csv")) if done else []
        tables = {file.name.split(".")[1]: pd.read_csv(file) for file in files}
        for table, frame in (tables or {"": pd.DataFrame(index=[0])}).items():
            row = pd.DataFrame({**about, "table": table}, index=frame.index)
            clash = {name: f"{name} ({table})" for name in frame if name in row}
            parts.append(row.join(frame.rename(columns=clash)))
    with atomic(out / "sweep.csv") as path:
        pd.concat(parts, ignore_index=True).to_csv(path, index=False)
    return out / "sweep.csv"
