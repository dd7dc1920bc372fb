"""Runs on the workers of a dask scheduler: each of them may be lost, and have other code."""

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import symgen
from symgen.book import notebooks, presets
from symgen.book.presets import BookError
from symgen.fingerprints import PACKAGE, code_fingerprint, fingerprint

if TYPE_CHECKING:
    from dask.distributed import Client

# Seconds that a scheduler may be away, and how often it may be lost with no run ended in between.
PATIENCE, LOSSES = 600.0, 3
#: What a run ends with, and becomes, where the code at its worker is not that of the sweep.
EXIT, REFUSED = 3, "refused"


def on_workers(
    run: Callable[..., dict], commands: Mapping[Any, list[str]], place: tuple, scheduler: str
) -> Iterator[tuple[Any, dict]]:
    """Yield the name of each command as it ends, and what became of it.

    What runs on a worker that is lost dask gives to another; what a scheduler that is lost had to
    do is given to the one that is started in its place.

    Args:
        run: called on a worker with a command and `place`.
        commands: by name.
        place: where and how; see `sweeps`.
        scheduler: its address.

    Raises:
        BookError: where there is no scheduler, and where a worker has other code, or none.
    """
    left, losses, patience = dict(commands), 0, 0.0
    while left:
        with _client(scheduler, patience) as client, client.get_executor(pure=False) as pool:
            if not client.scheduler_info()["workers"]:
                print(f"symgen: {scheduler} has no worker yet; runs wait for one", file=sys.stderr)
            names = {pool.submit(run, command, *place): k for k, command in left.items()}
            try:
                for done in as_completed(names):
                    if done.cancelled():  # and so are all the others
                        break
                    found = _result(done)
                    losses = 0
                    del left[names[done]]
                    yield names[done], found
            finally:  # reached early where a signal stops them
                for future in names:
                    future.cancel()
        if left:
            losses, patience = losses + 1, PATIENCE
            if losses > LOSSES:
                raise BookError(
                    f"the scheduler at {scheduler} was lost {losses} times with no run ended in "
                    "between: look into what it wrote last, and call again to continue"
                )
            told = f"the scheduler at {scheduler} was lost: {len(left)} runs wait for a new one"
            print(f"symgen: {told}, for up to {PATIENCE / 60:.0f} minutes", file=sys.stderr)


@contextlib.contextmanager
def _client(scheduler: str, patience: float) -> Iterator["Client"]:
    try:
        from dask.distributed import Client
    except ImportError:
        raise BookError(
            "a scheduler needs dask, which is not installed: pip install 'symgen[cluster]'"
        ) from None
    until = time.monotonic() + patience
    while True:
        try:
            client = Client(address=scheduler)
            break
        except (OSError, ValueError) as error:
            if time.monotonic() > until:
                raise BookError(
                    f"no dask scheduler answers at {scheduler} ({error}): start one with `dask "
                    "scheduler`, and give the address that it prints"
                ) from None
            time.sleep(1)
    with client:
        yield client


def _result(done: Future) -> dict:
    try:
        found = done.result()
    except (ImportError, AttributeError, TypeError) as error:
        # Of a worker that has not the function it was sent; what a run raises ends in its process.
        raise BookError(
            f"a worker cannot take a run ({error}): it has no symgen, or that of another version; "
            "install there what is installed here, and start it anew"
        ) from None
    except Exception as error:  # of dask, which has tried it on other workers
        return failed(error)
    if found["status"] == REFUSED:
        raise BookError(found["error"])
    return found


def run_process(
    command: list[str], folder: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess:
    """Run a process to its end, or to that of the dask worker it runs for, where it does for one.

    A worker that lost its scheduler waits for what it runs, for hours; the scheduler's successor
    would meanwhile have another one run the same into the same folder.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ended = _ended()
    with subprocess.Popen(command, text=True, cwd=folder, env=variables, **pipes) as process:
        while True:
            try:
                told = process.communicate(timeout=1)
                return subprocess.CompletedProcess(command, process.returncode, *told)
            except subprocess.TimeoutExpired:
                if ended():
                    process.terminate()
            except BaseException:
                process.kill()
                raise


def _ended() -> Callable[[], bool]:
    """Return what tells whether the worker that runs this thread is no more."""
    if "distributed" not in sys.modules:
        return lambda: False
    from dask.distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # not on a worker
        return lambda: False
    return lambda: worker.status.name in ("closing", "closed", "failed")


def failed(error: Exception) -> dict:
    """Return what became of a run that a machine could not start, or end."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return {"status": "failed", "seconds": 0.0, "error": reason}


def stated(sources: str, parameters: Mapping[str, Any]) -> str:
    """Return what a run uses, as a worker has to have it: the package, its code, the chapter.

    Args:
        sources: of `notebooks.sources_fingerprint`.
        parameters: of `presets.resolve`, which the presets of the book are in.

    Returns:
        The version of symgen, and fingerprints of what its code does, of its files, and of what
        the book gives; parted by blanks.
    """
    of_book = fingerprint([sources, dict(parameters)])
    return f"{symgen.__version__} {_code()} {_files()} {of_book}"


@functools.cache
def _code() -> str:
    """Return the fingerprint of what the whole package does, as it was first asked for."""
    return code_fingerprint()


@functools.cache
def _files() -> str:
    """Return the fingerprint of its files, which takes no seconds; if the same, code is."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return fingerprint([[str(x.relative_to(PACKAGE)), x.read_bytes()] for x in paths])


def difference(wanted: str, book: Path, chapter: str, parameters: Mapping[str, Any]) -> str:
    """Return in a sentence what a worker has that is not what the sweep has; "" where all is.

    Args:
        wanted: what `stated` gave where the sweep was started.
        book: the folder of the worker's book.
        chapter, parameters: of the run.
    """
    version, code, files, of_book = wanted.split()
    if version != symgen.__version__ or (files != _files() and code != _code()):
        return (
            f"symgen in {PACKAGE} is version {symgen.__version__} with code {_code()}, and the "
            f"sweep was started with version {version} and code {code}: install the same at both, "
            "and start the worker anew"
        )
    sources = notebooks.sources_fingerprint(presets.read_chapter(book, chapter))
    if of_book != fingerprint([sources, dict(parameters)]):
        return (
            f"the cells or presets of {chapter} in {book} are not those that the sweep was started "
            "with: give the worker the same book, or call the sweep again"
        )
    return ""
