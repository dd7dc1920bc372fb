"""Runs of chapters with each of many sets of parameters, here or on many machines."""

import contextlib
import itertools
import json
import math
import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from symgen.book import notebooks, presets, runs
from symgen.book.cluster import EXIT, REFUSED, failed, on_workers, run_process, stated
from symgen.book.presets import BookError
from symgen.book.processes import cores, ended_with_us
from symgen.files import atomic
from symgen.fingerprints import fingerprint

MOST_RUNS = 10_000  # of one sweep
# What the index tells of a run besides its parameters.
BEFORE, AFTER = ("pass", "chapter"), ("status", "seconds", "error", "folder")
# How often a run is started again whose process was killed, as where memory runs out.
RETRIES = 1


class Cell(NamedTuple):
    """One run of a sweep.

    Attributes:
        chapter, preset: names.
        values: the parameters that the sweep gives.
        resolved: what a run is given; see `presets.resolve`.
        folder: of the run, within that of the sweep; cells of the same values share one.
    """

    chapter: str
    preset: str
    values: dict[str, Any]
    resolved: dict[str, Any]
    folder: str

    def __str__(self) -> str:
        """Return what tells a run from the others of its sweep."""
        return " ".join([self.chapter, *(f"{k}={v}" for k, v in _as_text(self.values).items())])


def read_cells(book: Path, grid: Path) -> list[Cell]:
    """Read a YAML file with chapter, preset, grid and cases, and check every run it asks for.

    Raises:
        BookError: for a file that holds anything else, or asks for what a chapter refuses.
    """
    if not grid.is_file():
        raise BookError(f"no file {grid}: expected is a YAML file with chapter, preset and grid")
    read = presets.read_yaml(grid)
    for key in set(read) - set(known := ["chapter", "preset", "grid", "cases"]):
        raise presets.unknown(f"key in {grid.name}", key, known)
    axes, cases = read.get("grid", {} if "cases" in read else None), read.get("cases", [{}])
    if not isinstance(axes, dict) or not all(isinstance(v, list) and v for v in axes.values()):
        raise BookError(
            f"{grid.name} must hold, under grid, a list of values for each parameter: "
            "grid: {seed: [0, 1, 2]}"
        )
    if not isinstance(cases, list) or not cases or not all(isinstance(x, dict) for x in cases):
        raise BookError(
            f"{grid.name} must hold, under cases, a list of sets of parameters: "
            "cases: [{network: cnn, epochs: 60}, {network: resnet20, epochs: 30}]"
        )
    for name in sorted({name for case in cases for name in case} & set(axes)):
        raise BookError(
            f"{grid.name} names {name} under cases and under grid, and a run has one value of it: "
            "name it in one of them"
        )
    preset, every = str(read.get("preset", "quick")), list[tuple[str, dict]]()
    several = [_chapters(book, case.get("chapter", read.get("chapter"))) for case in cases]
    count = math.prod(map(len, axes.values())) * sum(map(len, several))
    if count > MOST_RUNS:
        raise BookError(
            f"{grid.name} asks for {count:,} runs, one for each combination of its values; at "
            f"most {MOST_RUNS:,} are one sweep: give fewer values, or split it"
        )
    products = [dict(zip(axes, v, strict=True)) for v in itertools.product(*axes.values())]
    for case, chapters in zip(cases, several, strict=True):
        own = {k: v for k, v in case.items() if k != "chapter"}
        every += [(chapter, {**own, **values}) for values in products for chapter in chapters]
    cells = {}
    for chapter in dict.fromkeys(chapter for chapter, _ in every):
        values = [v for name, v in every if name == chapter]
        found = presets.resolve_all(book, chapter, preset, values)
        for given, resolved in zip(values, found, strict=True):
            folder = fingerprint([preset, given])[:8]
            cell = Cell(chapter, preset, given, resolved, folder)
            if cells.setdefault((chapter, folder), cell).values != given:
                raise BookError(
                    f"{grid.name}: {given} and {cells[chapter, folder].values} would be kept in "
                    f"one folder, {folder}, which happens by chance: run them in two sweeps"
                )
    # In the order of the file, each once.
    wanted = dict.fromkeys((chapter, fingerprint([preset, v])[:8]) for chapter, v in every)
    return [cells[key] for key in wanted]


def _chapters(book: Path, wanted: Any) -> list[str]:
    wanted = wanted if isinstance(wanted, list) else [wanted] if wanted is not None else []
    return presets.choose_chapters(book, map(str, wanted))


def is_kept(book: Path, cell: Cell, out: Path) -> bool:
    """Return whether an earlier pass of a sweep has done a cell, and nothing has changed."""
    return runs.is_kept(book, cell.chapter, cell.preset, cell.resolved, out / cell.folder)


def carry_out(
    book: Path,
    cells: Sequence[Cell],
    kept: Sequence[bool],
    out: Path,
    scheduler: str | None,
    workers: int,
) -> Iterator[tuple[Cell, dict]]:
    """Yield each cell as it ends and what became of it; keep an index of this pass and all others.

    That is its row of the index, and "said"; see `side_by_side`.

    Args:
        book: its folder.
        cells: of `read_cells`.
        kept: whether each is done already, of `is_kept`; no process is started for those.
        out: folder that gets one folder a set of parameters, and the index.
        scheduler: address of a dask scheduler; None runs on this machine.
        workers: runs at a time on this machine.
    """
    earlier = _read_index(out)
    number = 1 + max((int(row["pass"]) for row in earlier), default=0)
    rows: dict[int, dict] = {}

    def ended(k: int, found: dict) -> tuple[Cell, dict]:
        about = {"pass": number, "chapter": cells[k].chapter, **_as_text(cells[k].values)}
        rows[k] = {**about, **{name: found[name] for name in AFTER[:-1]}, "folder": cells[k].folder}
        _write_index(out, [*earlier, *(rows[k] for k in sorted(rows))])
        return cells[k], {**rows[k], "said": found.get("said", [])}

    for k in (k for k, there in enumerate(kept) if there):
        yield ended(k, {"status": "unchanged", "seconds": 0.0, "error": ""})
    if all(kept):
        return
    commands = {k: _command(cell, out) for k, cell in enumerate(cells) if not kept[k]}
    if scheduler is None:
        results = side_by_side(commands, workers)
    else:
        sources = {
            name: notebooks.sources_fingerprint(presets.read_chapter(book, name))
            for name in {cell.chapter for cell in cells}
        }
        for k, command in commands.items():
            command += ["--wanted", stated(sources[cells[k].chapter], cells[k].resolved)]
        results = on_workers(_run_one, commands, _place(), scheduler)
    with contextlib.closing(results):
        for k, found in results:
            yield ended(k, found)


def side_by_side(
    commands: Mapping[Any, list[str]], workers: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the name of each command as it ends, and what became of it.

    That is its status, seconds, and error; "said" is what it told beside these, as warnings.

    Args:
        commands: arguments of `symgen`, by a name of their own.
        workers: commands at a time on this machine.
    """
    limits, workers = dict[str, str](), max(1, min(workers, len(commands)))
    if workers > 1:
        # Together they are to have as many threads as there are cores, and as many processes.
        share = str(max(1, cores() // workers))
        limits["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or share
        limits["LOKY_MAX_CPU_COUNT"] = share
    with ThreadPoolExecutor(workers) as pool:
        # Every command is a process of its own: notebooks do not share one event loop.
        place = _place(**limits)
        names = {pool.submit(_run_one, command, *place): k for k, command in commands.items()}
        try:
            for done in as_completed(names):
                error = done.exception()
                yield names[done], failed(error) if error else done.result()
        finally:  # reached early where a signal stops them
            for future in names:
                future.cancel()
            stopped: set[psutil.Process] = set()
            while wait(names, 0.1).not_done:
                for child in {*psutil.Process().children()} - stopped:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.terminate()
                    stopped.add(child)


def _place(**variables: str) -> tuple[str, dict[str, str]]:
    """Return folder and variables of runs; workers start in another, and have their own."""
    paths = {k: os.environ.get(k) for k in ("SYMGEN_DATA", "SYMGEN_CACHE")}
    return str(Path.cwd()), variables | {k: os.path.abspath(v) for k, v in paths.items() if v}


def _as_text(values: dict) -> dict:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}


def _command(cell: Cell, out: Path) -> list[str]:
    given = [word for item in _as_text(cell.values).items() for word in ("-p", *item)]
    folder = str(out.resolve() / cell.folder)
    return ["run", cell.chapter, "--preset", cell.preset, *given, "--out", folder, "--billed"]


def _run_one(arguments: list[str], folder: str, variables: dict[str, str]) -> dict:
    """Run one command; return what became of it, see `side_by_side`."""
    started = time.perf_counter()
    if not Path(folder).is_dir():
        told = f"there is no folder {folder}, where the sweep was started: it has to be on a disk "
        told += "that the workers share, at the same place"
        return {"status": REFUSED, "seconds": 0.0, "error": f"{platform.node()}: {told}"}
    command = ended_with_us("from symgen.__main__ import app; app()", *arguments)
    for _ in range(1 + RETRIES):
        ran = run_process(command, folder, {**os.environ, **variables})
        if ran.returncode not in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS):
            break
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines() or [""]
    reason = next((x.strip() for x in lines if "failed:" in x or "symgen:" in x), lines[-1])
    killed = f"its process was ended by signal {-ran.returncode}" if ran.returncode < 0 else ""
    if ran.returncode == EXIT:
        told = reason.removeprefix("symgen: ")
        return {"status": REFUSED, "seconds": 0.0, "error": f"{platform.node()}: {told}"}
    status = "failed" if ran.returncode else "done" if "  done in" in ran.stdout else "unchanged"
    told = ran.stdout.partition("\n  done in")[2].splitlines()[1:]
    return {
        "status": status,
        "seconds": round(time.perf_counter() - started, 1),
        "error": killed or reason.removeprefix("failed: ") if ran.returncode else "",
        "said": [line.strip() for line in told if line.startswith("  ")],
    }


def _read_index(out: Path) -> list[dict]:
    """Return the rows of earlier passes."""
    import pandas as pd

    path = out / "index.csv"
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:  # those of pandas among them
        raise BookError(f"{path} cannot be read ({error}): move it away, and call again") from None
    if missing := {*BEFORE, *AFTER} - {*table.columns}:
        raise BookError(
            f"{path} has no column {sorted(missing)[0]}, so it is no index of this version: "
            "move it away, or name another folder with --out"
        )
    if not table["pass"].str.fullmatch(r"\d+").all():
        raise BookError(
            f"{path} has a pass that is no whole number, as where another program has saved it: "
            "move it away, or name another folder with --out"
        )
    return table.to_dict("records")


def _write_index(out: Path, rows: list[dict]) -> None:
    import pandas as pd

    table = pd.DataFrame(rows)
    given = [name for name in table if name not in (*BEFORE, *AFTER)]
    with atomic(out / "index.csv") as temporary:
        table[[*BEFORE, *given, *AFTER]].to_csv(temporary, index=False)


def _last_rows(out: Path) -> dict[tuple[str, str], dict]:
    """Return what became of each run of a sweep in the last pass that had it."""
    return {(row["chapter"], row["folder"]): row for row in _read_index(out)}


def apart(out: Path) -> list[str]:
    """Return what is to be known of the tables that `collect` joins: who is missing, or is older.

    Args:
        out: folder of the sweep.
    """
    rows = [*_last_rows(out).values()]
    failed = sum(row["status"] == "failed" for row in rows)
    newest = max((int(row["pass"]) for row in rows), default=0)
    older = [row for row in rows if int(row["pass"]) < newest and row["status"] != "failed"]
    told = []
    if failed:
        told.append(
            f"{failed} of {len(rows)} runs failed and have no rows: see {out / 'index.csv'}"
        )
    if older:
        folders = ", ".join(str(out / row["folder"]) for row in older)
        told.append(
            f"{len(older)} of {len(rows)} runs are not of the last pass, as where the grid had "
            f"other values before; to leave them out, delete {folders}"
        )
    return told


def collect(out: Path) -> dict[Path, int]:
    """Join each result table of all runs of a sweep that ended well, and return the number of rows.

    Args:
        out: folder of the sweep; the joined tables go into its folder ``tables``.

    Returns:
        File to its number of rows: those of every run, after columns with its parameters.

    Raises:
        BookError: where there is no sweep, or none of its runs has a table.
    """
    import pandas as pd

    last = _last_rows(out)
    joined: dict[str, list] = {}
    for (chapter, folder), row in last.items():
        given = {k: v for k, v in row.items() if k not in (*BEFORE, *AFTER)}
        tables = (out / folder / "tables").glob(f"{chapter}.*.csv")
        for path in sorted(tables) if row["status"] != "failed" else ():
            try:  # with NaN as it is written, since a text may be "None"
                table = pd.read_csv(path, keep_default_na=False, na_values=[""])
            except pd.errors.EmptyDataError:  # nothing to tell
                continue
            # A table may have a column of that name, with what was measured.
            names = {k: f"parameter {k}" if k in table else k for k in given}
            first = pd.DataFrame({names[k]: v for k, v in given.items()}, index=table.index)
            joined.setdefault(path.name, []).append(pd.concat([first, table], axis=1))
    if not joined:
        raise BookError(
            f"no tables of a sweep in {out}: expected is the folder of `symgen sweep`, with its "
            "index.csv, after at least one run that was done"
        )
    counts = {}
    for name, parts in sorted(joined.items()):
        with atomic(out / "tables" / name) as temporary:
            (table := pd.concat(parts, ignore_index=True)).to_csv(temporary, index=False)
        counts[out / "tables" / name] = len(table)
    return counts
