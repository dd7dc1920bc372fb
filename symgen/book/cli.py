"""The command line: `symgen run`, `html`, `verify`, `sweep` and `cache`."""

import contextlib
import csv
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

# What takes long to import is imported where it is used: a slip is answered at once.
from symgen.book import notebooks, runs
from symgen.book.processes import ended_with_us
from symgen.book.runs import BookError
from symgen.fingerprints import fingerprint

MOST_RUNS = 10_000  # of one sweep
CTRL_C = signal.default_int_handler
# Those that came: what they raise in the middle of a library may be taken for an error of its own.
SIGNALS: list[int] = []

app = typer.Typer(
    help="Run the chapters, build the site, check stored outputs.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Turn a request that cannot be carried out into one line and exit code 2.

    The signal to terminate unwinds like Ctrl-C, so that nothing is left running or half written.
    """

    def stop(number: int, _: Any) -> None:
        SIGNALS.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    # Who is started to ignore Ctrl-C goes on ignoring it.
    ours = [signal.SIGTERM, *[signal.SIGINT] * (signal.getsignal(signal.SIGINT) is CTRL_C)]
    before = {number: signal.signal(number, stop) for number in ours}
    SIGNALS.clear()
    try:
        yield
    except BookError as error:
        typer.echo(f"symgen: {error}", err=True)
        raise typer.Exit(2) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        typer.echo(f"symgen: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _doing(what: str) -> Iterator[None]:
    """Say what was running when a signal stops it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        typer.echo(f"symgen: stopped while {what}", err=True)
        raise


class _RunCommand(TyperCommand):
    """Takes ``-p name value`` as papermill does, which typer by itself cannot repeat."""

    def parse_args(self, ctx, args):
        joined, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if word in ("-p", "--parameter") and rest and "=" not in rest[0]:
                name = rest.pop(0)
                given = rest and not rest[0].startswith("--")
                joined.append(f"{name}={rest.pop(0)}" if given else name)
        return super().parse_args(ctx, joined)


def _parameters(given: list[str]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise BookError(f"-p {text} has no value: write -p NAME VALUE")
    return dict(text.split("=", 1) for text in given)


@app.command(cls=_RunCommand)
@_said()
def run(
    chapters: Annotated[list[str] | None, typer.Argument(help="Names, or 'all'.")] = None,
    preset: Annotated[str, typer.Option(help="quick, cpu, gpu or paper.")] = "quick",
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME VALUE", help="Change one parameter."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where executed copies go.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run even what is unchanged.")] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Keep the outputs in the project, for its authors.")
    ] = False,
) -> None:
    """Execute chapters; those whose code, parameters and libraries are unchanged are skipped."""
    book = runs.book_folder()
    names = runs.choose_chapters(book, chapters or [])
    given = _parameters(parameter or [])
    if store and given:
        raise BookError("--store keeps a preset as it is: leave out -p, or leave out --store")
    for name in names:  # all of it is checked before the first hour is spent
        runs.resolve(book, name, preset, given)
    out = out or runs.run_folder(book, preset, given)
    own = [book / name for name in ("chapters", "data", "symgen", "tests", "_static")]
    if out.resolve() == book.resolve() or any(out.resolve().is_relative_to(x) for x in own):
        raise BookError(
            f"--out {out} is a part of the book itself, whose files a run would replace; name a "
            "folder of its own, or keep the outputs of a preset with --store"
        )
    # The chapters run in their own folder, where a relative path would mean another place.
    for variable in ("SYMGEN_DATA", "SYMGEN_CACHE"):
        if value := os.environ.get(variable):
            os.environ[variable] = os.path.abspath(value)
    failed = []
    for number, name in enumerate(names, 1):
        typer.echo(f"[{number}/{len(names)}] {name} (preset {preset})")
        with _doing(f"running {name} (preset {preset}) into {out}"):
            outcome = runs.execute(book, name, preset, given, out, force)
            if SIGNALS:
                raise SystemExit(128 + SIGNALS[0])
        if outcome.status == "failed":
            failed.append(name)
            typer.echo(f"  failed: {outcome.error}", err=True)
            if outcome.path.exists():
                typer.echo(f"  executed so far: {outcome.path}", err=True)
            continue
        if outcome.status == "unchanged":
            typer.echo(f"  unchanged since its last run, kept: {outcome.path}")
        else:
            peak = outcome.info["memory"].get("host")
            memory = f", {peak:,} MiB at most" if peak else ""
            typer.echo(f"  done in {outcome.seconds:.1f} s{memory}: {outcome.path}")
        if store:
            try:
                kept = notebooks.store(book, preset, outcome.path)
                typer.echo(f"  stored: {kept.relative_to(book)}")
            except OSError as error:
                failed.append(name)
                typer.echo(f"  not stored: {error}", err=True)
    if failed:
        typer.echo(f"symgen: {len(failed)} of {len(names)} failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


@app.command()
@_said()
def html(
    edition: Annotated[str | None, typer.Option(help="Which stored edition to show.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--from", help="Take executed chapters from this folder first.")
    ] = None,
) -> None:
    """Build the site from outputs that are there already, and print its address."""
    book = runs.book_folder()
    with _doing("building the site"):
        from symgen.book import site

        typer.echo(site.build(book, edition, folder).resolve().as_uri())


@app.command()
@_said()
def verify() -> None:
    """Fail where stored outputs of preset quick are not what today's code would give."""
    book = runs.book_folder()
    names = runs.chapter_names(book)
    stale, old = notebooks.verify(book, names)
    for name, reasons in old.items():
        typer.echo(f"older than the code: {name}: {'; '.join(reasons)}")
    for name, reasons in stale.items():
        typer.echo(f"stale: {name}: {'; '.join(reasons)}", err=True)
    if stale:
        typer.echo(f"symgen: renew with `symgen run {' '.join(stale)} --store`", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(names)} chapters show what today's code gives.")


@app.command()
@_said()
def cache(
    kind: Annotated[str | None, typer.Argument(help="With --clear: only this kind.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete what is stored.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --clear: do not ask first.")] = False,
) -> None:
    """List what is stored (trained networks, masked outputs ...), or delete it."""
    from symgen.book.cache import clear_kind, stored_files, stored_kinds
    from symgen.storage import DAY, cache_folder

    try:
        top, kinds = cache_folder(), {folder.name: folder for folder in stored_kinds()}
    except OSError as error:
        raise BookError(str(error)) from None
    if kind is not None and kind not in kinds:
        raise runs.unknown("kind of stored result", kind, kinds)
    if not kinds:
        typer.echo(f"nothing is stored in {top}")
        return
    chosen = list(kinds) if kind is None else [kind]
    for name in chosen:
        files = {path: path.lstat() for path in stored_files(kinds[name])}
        count = sum(path.suffix == ".safetensors" for path in files)
        size = sum(s.st_size for s in files.values()) / 2**20
        days = (time.time() - min((s.st_mtime for s in files.values()), default=time.time())) / DAY
        typer.echo(
            f"{name:<16} {count:>6} stored {size:>9.1f} MiB, oldest {max(0.0, days):.1f} days"
        )
    if not clear:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise BookError("nothing is deleted: there is no terminal to ask at; add --yes")
        typer.confirm(f"Delete {', '.join(chosen)} in {top}?", abort=True)
    for name in chosen:
        left = clear_kind(kinds[name])
        rest = f"; {left} entries of others are left in it" if left else ""
        typer.echo(f"deleted {name}{rest}")


def _sweep_one(arguments: list[str], known: Callable[[subprocess.Popen], None] | None = None):
    """Run one command of a sweep; `known` is handed its process."""
    started = time.perf_counter()
    command = ended_with_us("from symgen.book.cli import app; app()", *arguments)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        if known:
            known(process)
        output, errors = process.communicate()
    bad = bool(process.returncode)
    lines = (errors if bad else output).strip().splitlines() or [""]
    reason = next((x.strip() for x in lines if "failed:" in x or "symgen:" in x), lines[-1])
    return {
        "status": "failed" if bad else "done" if "  done in" in output else "unchanged",
        "seconds": round(time.perf_counter() - started, 1),
        "error": reason.removeprefix("failed: ") if bad else "",
    }


@app.command()
@_said()
def sweep(
    grid: Annotated[Path, typer.Argument(help="YAML with chapter, preset and grid.")],
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a dask scheduler, to use many machines.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs and index.csv go.")] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time on this machine.")] = 1,
) -> None:
    """Run one chapter for every combination of some parameters; a second call continues."""
    book = runs.book_folder()
    if not grid.is_file():
        raise BookError(f"no file {grid}: expected is a YAML file with chapter, preset and grid")
    plan = runs.read_yaml(grid)
    for key in set(plan) - {"chapter", "preset", "grid"}:
        raise runs.unknown(f"key in {grid.name}", key, ["chapter", "preset", "grid"])
    axes = plan.get("grid")
    if not isinstance(axes, dict) or not all(isinstance(v, list) and v for v in axes.values()):
        raise BookError(
            f"{grid.name} must hold, under grid, a list of values for each parameter: "
            "grid: {seed: [0, 1, 2]}"
        )
    if (count := math.prod(map(len, axes.values()))) > MOST_RUNS:
        raise BookError(
            f"{grid.name} asks for {count:,} runs, one for each combination of its values; at "
            f"most {MOST_RUNS:,} are one sweep: give fewer values, or split it"
        )
    wanted = plan.get("chapter") or []
    wanted = map(str, wanted if isinstance(wanted, list) else [wanted])
    chapters = runs.choose_chapters(book, wanted)
    preset = str(plan.get("preset", "quick"))
    out = out or book / "_build" / "sweeps" / grid.stem
    combinations = [dict(zip(axes, v, strict=True)) for v in itertools.product(*axes.values())]
    for chapter in chapters:
        runs.resolve_all(book, chapter, preset, combinations)
    runs.make_folder(out)
    commands, folders, chapter = [], [], " ".join(chapters)
    for values in combinations:
        folders.append(out.resolve() / fingerprint([chapter, preset, values])[:8])
        command = ["run", *chapters, "--preset", preset]
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            command += ["-p", f"{name}={text}"]
        commands.append([*command, "--out", str(folders[-1])])
    typer.echo(f"{len(commands)} runs of {chapter} (preset {preset}) into {out}")
    rows: dict[int, dict] = {}
    with (
        _doing(f"sweeping {chapter}, {len(commands)} runs; call it again to continue"),
        contextlib.closing(_each(commands, scheduler, workers)) as results,
    ):
        for number, result in results:
            values = combinations[number]
            rows[number] = {**values, **result, "folder": folders[number].name}
            told = f"{result['status']} {result['error']}".strip()
            typer.echo(f"[{len(rows)}/{len(commands)}] {values}: {told}")
            _write_index(out / "index.csv", [row for _, row in sorted(rows.items())])
    if any(row["status"] == "failed" for row in rows.values()):
        raise typer.Exit(1)


def _write_index(path: Path, rows: list[dict]) -> None:
    from symgen.storage import atomic

    with atomic(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _each(
    commands: list[list[str]], scheduler: str | None, workers: int
) -> Iterator[tuple[int, dict]]:
    """Yield the number and the result of each command as it ends."""
    if scheduler is None:
        yield from _each_here(commands, workers)
        return
    try:
        from dask import distributed
    except ImportError:
        raise BookError(
            "a scheduler needs dask, which is not installed: pip install 'symgen[cluster]'"
        ) from None
    # Every command is a process of its own: notebooks do not share one event loop.
    with distributed.Client(address=scheduler) as client:
        numbers = {client.submit(_sweep_one, c, pure=False): i for i, c in enumerate(commands)}
        for done in distributed.as_completed(numbers):
            yield numbers[done], done.result()


def _each_here(commands: list[list[str]], workers: int) -> Iterator[tuple[int, dict]]:
    running: list[subprocess.Popen] = []
    stopped = threading.Event()

    def known(process: subprocess.Popen) -> None:
        running.append(process)
        if stopped.is_set():
            process.terminate()

    pool = ThreadPoolExecutor(workers)
    try:
        numbers = {pool.submit(_sweep_one, c, known): i for i, c in enumerate(commands)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
    finally:  # reached early where a signal stops the sweep
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()


if __name__ == "__main__":
    app()
