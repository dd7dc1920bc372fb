"""The command `symgen`: run chapters, build the site, verify editions, sweep, write a course."""

import io
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from symgen import __version__
from symgen.book import notebooks
from symgen.book.notebooks import BookError

#: Exit status of a run that stopped because its time was over (EX_TEMPFAIL), and after Ctrl-C.
STOPPED = 75
INTERRUPTED = 130


class Commands(click.Group):
    """Commands that report a failed request in one line, with exit status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a request to terminate ends it as Ctrl-C does, with status 130."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names may not fit its encoding
                stream.reconfigure(errors="backslashreplace")
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (BookError, OSError) as error:
            click.echo(f"symgen: {error}", err=True)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            click.echo("symgen: stopped", err=True)
            raise SystemExit(INTERRUPTED) from None
        finally:
            signal.signal(signal.SIGTERM, before)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="symgen")
def app() -> None:
    """Run the chapters of the book and build its site."""


PRESET = click.option(
    "--preset", default="quick", show_default=True, help="quick, cpu, gpu or paper."
)
PARAMETER = click.option(
    "-p", "parameters", nargs=2, multiple=True, metavar="NAME VALUE",
    help="A parameter. VALUE is YAML: 8, 1e-3, [1, 2], {epochs: 3}, null or None, .nan, text; "
    "quote a text that looks like a number.",
)  # fmt: skip


def _parameters(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the values of -p; the bytes of a command line are read as UTF-8 in any locale."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise BookError(f"-p {name} is given twice; `symgen sweep` runs several values")
        try:
            values[name] = notebooks.from_yaml(os.fsencode(text).decode())
        except ValueError as error:
            raise BookError(f"-p {name}: {error}") from None
    return values


@app.command()
@click.argument("chapters", nargs=-1, required=True, metavar="CHAPTER...|all")
@PRESET
@PARAMETER
@click.option("--out", type=Path, help="Folder of the run. [default: _build/runs/PRESET]")
@click.option("--workers", type=click.IntRange(1), default=1, help="Chapters side by side.")
@click.option("--minutes", type=float, help="Stop cleanly after M minutes, with exit status 75.")
@click.option("--dry-run", is_flag=True, help="Only show how long it is expected to take.")
@click.option("--store", is_flag=True, help="Keep pages and tables in data/editions/PRESET, "
              "and trainings in data/trainings (not those of quick).")  # fmt: skip
def run(
    chapters: tuple[str, ...],
    preset: str,
    parameters: tuple[tuple[str, str], ...],
    out: Path | None,
    workers: int,
    minutes: float | None,
    dry_run: bool,
    store: bool,
) -> None:
    """Run chapters; those whose executed copy is up to date are skipped.

    CHAPTER is the name of a chapter, or the path of another notebook.
    """
    from symgen.book import editions, run as runs

    book = notebooks.book_folder()
    given = _parameters(parameters)
    chosen = notebooks.chosen_chapters(book, chapters)
    for name in chosen:
        notebooks.resolve(book, name, preset, given)
    files = [name for name in chosen if Path(name).is_absolute()]
    if store and (given or files or preset not in notebooks.PRESETS):
        raise BookError(
            "--store needs chapters of the book and an unmodified preset "
            f"({', '.join(notebooks.PRESETS)}); drop -p"
        )
    if minutes is not None and not minutes >= 0:
        raise BookError(f"--minutes is {minutes}; expected a number of at least 0")
    out = out or runs.run_folder(book, preset, {**given, "notebooks": files} if files else given)
    own = [book / name for name in ("chapters", "data", "symgen", "tests", "_static")]
    if out.resolve() == book or any(out.resolve().is_relative_to(path) for path in own):
        raise BookError(f"--out {out} is part of the book; name another folder")
    if dry_run:
        for name, text in runs.expected(book, chosen, preset):
            click.echo(f"{name}: {text}")
        return
    runs.check_writable(out, "--out")
    commit = ""
    if store and preset != "quick":  # which is measured afresh, on every machine
        commit = notebooks.package_commit() or __version__
    until = math.inf if minutes is None else time.time() + 60 * minutes
    statuses = set()
    results = runs.run_all(book, chosen, preset, given, out, workers, until, commit)
    for number, outcome in enumerate(results, 1):
        statuses.add(outcome.status)
        kept = ""
        if store and outcome.status in ("done", "unchanged"):
            kept = f", stored in {editions.store(book, preset, outcome.path).parent}"
        click.echo(f"[{number}/{len(chosen)}] {outcome.chapter}: {outcome.message}{kept}")
    click.echo(f"Executed chapters are in {out}")
    raise SystemExit(1 if "failed" in statuses else STOPPED if "stopped" in statuses else 0)


@app.command()
@click.option("--edition", help="Show the pages of a stored edition.")
@click.option("--from", "folder", type=Path, help="Show those of a run. [_build/runs/quick]")
def html(edition: str | None, folder: Path | None) -> None:
    """Build the site and print its address."""
    from symgen.book.site import build

    if edition and folder:
        raise BookError("give --edition or --from, not both")
    click.echo(build(notebooks.book_folder(), edition, folder).resolve().as_uri())


@app.command()
def verify() -> None:
    """List what is wrong with stored pages.

    A page is stale if its code has changed since it ran, damaged if it or one of its tables is not
    what its run wrote, and missing if a chapter has no quick page.

    To renew a page: symgen run CHAPTER --preset EDITION --store
    """
    from symgen.book import editions

    problems = editions.verify(notebooks.book_folder())
    for edition, chapter, problem in problems.itertuples(index=False):
        click.echo(f"{edition}: {chapter} is {problem}")
    if problems.empty:
        click.echo("All stored pages are up to date.")
    raise SystemExit(0 if problems.empty else 1)


@app.command()
@click.argument("grid", type=Path)
@click.option("--scheduler", metavar="ADDRESS", help="Of dask, to use many machines.")
@click.option("--out", type=Path, help="Folder of the sweep. [default: _build/sweeps/GRID-...]")
@click.option("--workers", type=click.IntRange(1), default=1, help="Runs side by side, here.")
def sweep(grid: Path, scheduler: str | None, out: Path | None, workers: int) -> None:
    """Run chapters with many sets of parameters; a second call runs what is missing.

    GRID is a YAML file with chapter, preset, and grid (lists of values by parameter, or a list of
    such mappings). All tables are joined into sweep.csv, in which a failed run is one row.
    """
    from symgen.book import sweep as sweeps
    from symgen.book.run import check_writable

    book = notebooks.book_folder()
    cells = sweeps.read_cells(book, grid)
    out = out or sweeps.sweep_folder(book, grid)
    check_writable(out, "--out")
    errors = {}
    for cell, error in sweeps.run_cells(book, cells, out, workers, scheduler):
        errors[cell.name] = error
        click.echo(f"{cell.chapter} {cell.parameters}: {error or 'done'}")
    failed = sum(map(bool, errors.values()))
    click.echo(f"{len(errors)} of {len(cells)} run now, {failed} failed; all tables are in "
               f"{sweeps.join_tables(cells, out, errors)}")  # fmt: skip
    raise SystemExit(1 if failed else 0)


@app.command()
@click.argument("folder", type=Path)
@click.argument("chapters", nargs=-1, metavar="[CHAPTER...]")
@PRESET
@PARAMETER
def course(
    folder: Path, chapters: tuple[str, ...], preset: str, parameters: tuple[tuple[str, str], ...]
) -> None:
    """Run chapters and write their course into FOLDER: notebooks, networks, slides.

    The chapters are those from 00 to 05 by default; quick takes about ten minutes.
    """
    from symgen.book.course import write_course
    from symgen.book.run import check_writable

    check_writable(folder, "FOLDER")
    book = notebooks.book_folder()
    names = write_course(book, folder, chapters, preset, _parameters(parameters))
    click.echo(f"{folder} holds {', '.join(names)}: for students, for teachers, and as slides.")
