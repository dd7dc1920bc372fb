"""The command line: `symgen new`, `student`, `slides`, `run`, `html`, `verify`, `sweep` ..."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import click

# What takes long to import is imported where it is used: a slip is answered at once.
from symgen import __version__
from symgen.book import bills, editions, notebooks, presets, runs, work
from symgen.book.layout import book_above, lay_out
from symgen.book.presets import BookError
from symgen.book.processes import one_at_a_time
from symgen.book.stopping import Commands, doing, only_new
from symgen.files import DAY, cache_folder
from symgen.fingerprints import BOOK


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="symgen")
def app() -> None:
    """Run the chapters, build the site, check stored outputs."""


@app.command()
@click.argument("folder", type=Path)
def new(folder: Path) -> None:
    """Lay out the book in FOLDER, to change it and to run it there."""
    book = presets.book_folder()
    with doing(f"laying out the book in {folder}"), only_new():
        lay_out(book, folder)
    names = presets.chapter_names(folder)
    there = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    now = [f"{folder} holds the book's {len(names)} chapters; now:", *there]
    click.echo("\n  ".join([*now, f"symgen run {names[0]} --open"]))


@app.command()
@click.argument("folder", type=Path)
@click.option("--preset", default="quick", help="Whose parameters the notebooks have.")
@click.option("--instructor", is_flag=True, help="With the solutions, open below the exercises.")
@click.option("--networks", is_flag=True, help="With trained networks for chapters 0 to 4.")
def student(folder: Path, preset: str, instructor: bool, networks: bool) -> None:
    """Write the notebooks of a course into FOLDER, without outputs and solutions."""
    from symgen.book.course import core_chapters, write_course

    book = presets.book_folder()
    if networks:
        core = core_chapters(book)
        wanted = [(name, presets.resolve(book, name, preset, {}), True) for name in core]
        if not bills.agreed(bills.before_run(book, wanted), dry_run=False, yes=False):
            return
        click.echo(
            f"Running {', '.join(core)} twice, to train what is missing and to see what they load: "
            "minutes, or half an hour on a busy machine."
        )
    with doing(f"writing the course into {folder}"), only_new():
        count = write_course(book, folder, preset, instructor, networks)
    click.echo(f"{folder} holds {count} notebooks and a README.md that says how to start.")


@app.command()
@click.option("--open", "show", is_flag=True, help="Show them in a browser.")
def slides(show: bool) -> None:
    """Write the slides of a course, of stored figures, and print their address."""
    from symgen.book.slides import write_slides

    target = presets.workplace() / "_build" / "slides.html"
    with doing("writing the slides"):
        write_slides(presets.book_folder(), target)
    page = target.resolve().as_uri()
    click.echo(page)
    if show:
        click.launch(page)


@app.command()
@click.argument("chapters", nargs=-1)
@click.option("--preset", default="quick", help="quick, cpu, gpu or paper.")
@click.option(
    "-p", "--parameter", "given", nargs=2, multiple=True, metavar="NAME VALUE",
    help="Change one parameter.",
)  # fmt: skip
@click.option("--out", type=Path, help="Where executed copies go.")
@click.option("--workers", type=click.IntRange(1), default=1, help="Chapters at a time.")
@click.option("--force", is_flag=True, help="Run even what is unchanged.")
@click.option("--store", is_flag=True, help="Keep the outputs in the project, for its authors.")
@click.option("--open", "show", is_flag=True, help="Build the site and open the chapter's page.")
@click.option("--dry-run", is_flag=True, help="Show what it would take, and run nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before a run of more than ten minutes.")
@click.option("--billed", is_flag=True, hidden=True, help="Of a run whose bill was shown before.")
@click.option("--wanted", default="", hidden=True, help="What a sweep was started with.")
def run(
    chapters: tuple,
    preset: str,
    given: tuple,
    out: Path | None,
    workers: int,
    force: bool,
    store: bool,
    show: bool,
    dry_run: bool,
    yes: bool,
    billed: bool,
    wanted: str,
) -> None:
    """Execute CHAPTERS (names, or 'all').

    Those whose code, parameters and libraries are unchanged are skipped. What a run of more than
    ten minutes will take is shown before, and asked about on a terminal.
    """
    book, given = presets.book_folder(), presets.each_once(given)
    names = presets.choose_chapters(book, chapters)
    if store and given:
        raise BookError("--store keeps a preset as it is: leave out -p, or leave out --store")
    if store and not book_above(Path.cwd()):
        raise BookError(
            "--store keeps outputs in a book, and there is none here or above: change into one, "
            "or lay one out with `symgen new FOLDER`"
        )
    # All of it is checked before the first hour is spent.
    resolved = {name: presets.resolve(book, name, preset, given) for name in names}
    if wanted:
        from symgen.book import cluster

        if told := cluster.difference(wanted, book, names[0], resolved[names[0]]):
            click.echo(f"symgen: {told}", err=True)
            raise SystemExit(cluster.EXIT)
    out = out or runs.run_folder(presets.workplace(), preset, given)
    runs.refuse_folder(book, presets.workplace(), out)
    # The chapters run in their own folder, where a relative path would mean another place.
    for variable in ("SYMGEN_DATA", "SYMGEN_CACHE"):
        if value := os.environ.get(variable):
            os.environ[variable] = os.path.abspath(value)
    if not billed:
        asked = [
            (name, values, force or not runs.is_kept(book, name, preset, values, out))
            for name, values in resolved.items()
        ]
        with doing("counting what it will take"):
            rows = bills.before_run(book, asked, dry_run)
        if not bills.agreed(rows, dry_run, yes, workers):
            return
    results = _one_by_one(book, names, preset, given, out, force, store)
    if min(workers, len(names)) > 1:
        whole = {
            k: presets.defaults(presets.read_chapter(book, k)) | v for k, v in resolved.items()
        }
        names = work.makers_first(whole)
        results = _side_by_side(book, names, preset, given, out, force, store, workers)
    with contextlib.closing(results):
        failed = [name for name, well in results if not well]
    if failed:
        click.echo(f"symgen: {len(failed)} of {len(names)} failed: {', '.join(failed)}", err=True)
    elif not show:
        click.echo(f"To see it as a page: symgen html --from {shlex.quote(os.path.relpath(out))}")
        copy = os.path.relpath(out / f"{names[-1]}.ipynb")
        click.echo(f"To go on from it: jupyter-lab {shlex.quote(copy)}")
    if show:
        with doing("building the site"):
            page = _site(book, None, out).with_name(f"{names[0]}.html").resolve().as_uri()
        click.echo(page)
        click.launch(page)
    if failed:
        raise SystemExit(1)


def _one_by_one(
    book: Path, names: list[str], preset: str, given: dict, out: Path, force: bool, store: bool
) -> Iterator[tuple[str, bool]]:
    """Execute chapters one after the other; yield each with whether it went well."""
    for number, name in enumerate(names, 1):
        click.echo(f"[{number}/{len(names)}] {name} (preset {preset})")
        with doing(f"running {name} (preset {preset}) into {out}"):
            # A quick edition measures all it shows, on every machine; what others took hours for
            # is kept beside the package that looks for it there.
            keep = store and preset != "quick" and book == BOOK
            outcome = runs.execute(book, name, preset, given, out, force, keep)
        well = outcome.status != "failed"
        click.echo(f"  {outcome.told}", err=not well)
        if well and store:
            try:
                kept = editions.store(book, preset, outcome.path)
                click.echo(f"  stored: {kept.relative_to(book)}")
            except OSError as error:
                well = False
                click.echo(f"  not stored: {error}", err=True)
        yield name, well


def _side_by_side(
    book: Path,
    names: list[str],
    preset: str,
    given: dict,
    out: Path,
    force: bool,
    store: bool,
    workers: int,
) -> Iterator[tuple[str, bool]]:
    """The same with several at a time; those that read the others' results come at last."""
    from symgen.book import sweeps

    options = ["--preset", preset, "--out", str(out.resolve()), "--billed"]
    options += [word for item in given.items() for word in ("-p", *item)]
    options += ["--force"] * force + ["--store"] * store
    last = [name for name in names if notebooks.reads_results(presets.read_chapter(book, name))]
    number = 0
    for part in ([name for name in names if name not in last], last):
        with (
            doing(f"running {' '.join(part)} (preset {preset}) into {out}"),
            contextlib.closing(
                sweeps.side_by_side({name: ["run", name, *options] for name in part}, workers)
            ) as results,
        ):
            for name, found in results:
                number, well = number + 1, found["status"] != "failed"
                click.echo(f"[{number}/{len(names)}] {name} (preset {preset})")
                told = f"{found['status']} in {found['seconds']} s {found['error']}".strip()
                click.echo("\n  ".join([f"  {told}", *found.get("said", [])]), err=not well)
                yield name, well


def _site(book: Path, edition: str | None, folder: Path | None) -> Path:
    from symgen.book import site

    return site.build(book, edition, folder, presets.workplace())


@app.command()
@click.option(
    "--edition",
    help="Which stored edition to show; else of each chapter the largest of today's cells.",
)
@click.option("--from", "folder", type=Path, help="Take executed chapters from this folder first.")
def html(edition: str | None, folder: Path | None) -> None:
    """Build the site from outputs that are there already, and print its address."""
    book = presets.book_folder()
    with doing("building the site"):
        click.echo(_site(book, edition, folder).resolve().as_uri())


@app.command()
def verify() -> None:
    """Fail where stored outputs of preset quick are not what today's code would give."""
    book = presets.book_folder()
    names = presets.chapter_names(book)
    stale, old = editions.verify(book, names)
    for name, reasons in old.items():
        click.echo(f"older than the code: {name}: {'; '.join(reasons)}")
    for name, reasons in stale.items():
        click.echo(f"stale: {name}: {'; '.join(reasons)}", err=True)
    if stale:
        click.echo(f"symgen: renew with `symgen run {' '.join(stale)} --store`", err=True)
        raise SystemExit(1)
    click.echo(f"{len(names)} chapters show what today's code gives.")


@app.command()
@click.argument("grid", type=Path)
@click.option("--scheduler", help="Address of a dask scheduler, to use many machines.")
@click.option("--out", type=Path, help="Where the runs and index.csv go.")
@click.option("--workers", type=click.IntRange(1), default=1, help="Runs at a time here.")
@click.option("--dry-run", is_flag=True, help="Show what it would take, and run nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before a sweep of more than ten minutes.")
def sweep(
    grid: Path, scheduler: str | None, out: Path | None, workers: int, dry_run: bool, yes: bool
) -> None:
    """Run chapters with each of many sets of parameters; a second call continues.

    GRID is a YAML file with chapter, preset, and grid (lists of values, of which every combination
    is run) or cases (a list of sets of parameters, each of which may name chapters of its own).
    """
    from symgen.book import sweeps

    book = presets.book_folder()
    cells = sweeps.read_cells(book, grid)
    out = out or presets.workplace() / "_build" / "sweeps" / grid.stem
    runs.refuse_folder(book, presets.workplace(), out)
    about = f"{' '.join(dict.fromkeys(cell.chapter for cell in cells))}, {len(cells)} runs"
    with doing(f"looking for what is done of {about}"):
        kept = [sweeps.is_kept(book, cell, out) for cell in cells]
        each = zip(cells, kept, strict=True)
        wanted = [(cell.chapter, cell.resolved, not there) for cell, there in each]
        rows = bills.before_run(book, wanted, dry_run)
        # None where all of it is short.
        rows = [row._replace(chapter=str(cell)) for row, cell in zip(rows, cells, strict=False)]
    if not bills.agreed(rows, dry_run, yes, 1 if scheduler else workers):
        return
    runs.make_folder(out)
    click.echo(f"{about} (preset {cells[0].preset}) into {out}")
    failed = False
    with (
        doing(f"sweeping {about}; call it again to continue"),
        one_at_a_time(out / ".sweep.lock", "another sweep into this folder") as waited,
    ):
        if waited:
            kept = [sweeps.is_kept(book, cell, out) for cell in cells]
        results = sweeps.carry_out(book, cells, kept, out, scheduler, workers)
        with contextlib.closing(results):
            for number, (cell, found) in enumerate(results, 1):
                told = f"{found['status']} {found['error']}".strip()
                said = [f"[{number}/{len(cells)}] {cell}: {told}", *found["said"]]
                click.echo("\n  ".join(said))
                failed |= found["status"] == "failed"
    if failed:
        raise SystemExit(1)


@app.command()
@click.argument("folder", type=Path)
def collect(folder: Path) -> None:
    """Join the tables of all runs of the sweep in FOLDER, one file a table, into FOLDER/tables.

    The parameters of each run are columns of them.
    """
    from symgen.book import sweeps

    with doing(f"joining the tables in {folder}"):
        for path, count in sweeps.collect(folder).items():
            click.echo(f"{path}: {count:,} rows")
        for text in sweeps.apart(folder):
            click.echo(text)


@app.command()
@click.argument("kind", required=False)
@click.option("--clear", is_flag=True, help="Delete what is stored, of all kinds or of KIND.")
@click.option("--yes", is_flag=True, help="With --clear: do not ask first.")
def cache(kind: str | None, clear: bool, yes: bool) -> None:
    """List what is stored (trained networks, masked outputs ...), or delete it."""
    from symgen.book.cache import clear_kind, stored_files, stored_kinds

    try:
        top, kinds = cache_folder(), {folder.name: folder for folder in stored_kinds()}
    except OSError as error:
        raise BookError(str(error)) from None
    if kind is not None and kind not in kinds:
        raise presets.unknown("kind of stored result", kind, kinds)
    chosen = kinds if kind is None else {kind: kinds[kind]}
    for name, folder in chosen.items():
        files = {path: path.lstat() for path in stored_files(folder)}
        count = sum(path.suffix == ".safetensors" for path in files)
        size = sum(s.st_size for s in files.values()) / 2**20
        days = (time.time() - min((s.st_mtime for s in files.values()), default=time.time())) / DAY
        click.echo(
            f"{name:<16} {count:>6} stored {size:>9.1f} MiB, oldest {max(0.0, days):.1f} days"
        )
    if not chosen:
        click.echo(f"nothing is stored in {top}")
    elif clear:
        if not yes:
            click.confirm(f"Delete {', '.join(chosen)} in {top}?", abort=True)
        for name, folder in chosen.items():
            left = clear_kind(folder)
            rest = f"; {left} entries of others are left in it" if left else ""
            click.echo(f"deleted {name}{rest}")
