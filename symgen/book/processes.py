"""Processes that end with the one that started them, however that one ends."""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from symgen.fingerprints import not_a_result

Item, Result = TypeVar("Item"), TypeVar("Result")


def ended_with_us(code: str, *arguments: str) -> list[str]:
    """Return the command that runs Python code in a process that ends when this one does.

    A process that is killed outright tells its children nothing: they have to look.
    """
    start = f"from symgen.book.processes import watch; watch({os.getpid()}); {code}"
    return [sys.executable, "-c", start, *arguments]


def watch(parent: int) -> None:
    """Have this process ended within a second after its parent has."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()


@contextlib.contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[bool]:
    """Let one program at a time do what lies inside; yield whether another had to end first.

    Args:
        lock: file that both programs name.
        what: the other one does, told while this one waits.
    """
    import filelock

    taken = filelock.FileLock(lock)
    try:
        held, waited = taken.acquire(blocking=False), False
    except filelock.Timeout:
        print(f"Waiting for {what} ...", flush=True)
        held, waited = taken.acquire(), True
    with held:
        yield waited


def cores() -> int:
    """Return how many cores this process may use: those of the machine, or fewer.

    Fewer where its affinity or a container says so, or the variable `LOKY_MAX_CPU_COUNT`.
    """
    from joblib import cpu_count

    return cpu_count()


@not_a_result
def spread(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what a function gives for every item, computed side by side.

    Where `SYMGEN_SCHEDULER` holds the address of a dask scheduler, by its workers; else by this
    process and others, one a core, each with one thread, or one after the other where there is a
    GPU to share. The function is to store what it finds, so that a run that was stopped goes on
    where it was.

    Args:
        function: of a module, since other processes have to find it.
        items: that can be pickled.
    """
    import torch
    from tqdm.auto import tqdm

    items, far = list(items), bool(os.environ.get("SYMGEN_SCHEDULER"))
    workers = 1 if torch.cuda.is_available() or len(items) < 2 else cores()
    bar = {"total": len(items), "delay": 3, "leave": False}
    if workers < 2 and not far:
        long = torch.cuda.is_available() or len(items) < 2
        with tqdm(map(function, items), **bar) as results, _bars_within(long):
            return list(results)
    try:
        if far:
            return _elsewhere(function, items, _pool(workers), bar)
        with tqdm(**bar) as shown, _bars_within(False), _one_thread():
            return _shared(function, items, workers - 1, shown.update)
    except (KeyboardInterrupt, BrokenExecutor):
        # Stopped, or one of them was killed, as where memory runs out: the next call starts anew.
        for child in multiprocessing.active_children():
            child.terminate()
        _pool.cache_clear()
        raise


def _elsewhere(
    function: Callable[[Item], Result], items: list[Item], pool: Executor, bar: dict[str, Any]
) -> list[Result]:
    """Return what a function gives for every item, all of them given to a pool."""
    from tqdm.auto import tqdm

    waiting = [pool.submit(function, item) for item in items]
    try:
        return [each.result() for each in tqdm(waiting, **bar)]
    finally:
        for each in waiting:
            each.cancel()


def _shared(
    function: Callable[[Item], Result], items: list[Item], others: int, told: Callable[[], Any]
) -> list[Result]:
    """Return what a function gives for every item: here from the first on, elsewhere from the last.

    This process has the libraries loaded, and goes on with what it finds. Others need seconds to
    load them and are given an item when they have, so that this one never waits for what it could
    have done itself.

    Args:
        function, items: see `spread`.
        others: how many processes beside this one.
        told: is called whenever an item is done.
    """
    pool, lock = _pool(others), threading.Lock()
    left, found, given = deque(range(len(items))), {}, {}

    def give(done: Future) -> None:
        # Called by a thread of the pool's when one of its processes has nothing to do.
        with lock:
            if done.cancelled() or done.exception():
                left.clear()
            if not left:
                return
            given[left[-1]] = future = pool.submit(function, items[left[-1]])
            left.pop()
        future.add_done_callback(give)

    def take() -> int | None:
        with lock:
            return left.popleft() if left else None

    ready = [pool.submit(_is_loaded, function) for _ in range(others)]
    try:
        for each in ready:
            each.add_done_callback(give)
        while (number := take()) is not None:
            found[number] = function(items[number])
            told()
        for each in ready:
            if each.done():
                each.result()
        for number, each in sorted(given.items()):
            found[number] = each.result()
            told()
        return [found[number] for number in range(len(items))]
    finally:
        with lock:
            left.clear()
        for each in given.values():
            each.cancel()


def _is_loaded(function: Callable) -> bool:
    """Return true in another process, once it has loaded what a function needs."""
    return True


@functools.cache
def _pool(count: int) -> Executor:
    """Return what runs functions side by side; it is started once, since that takes seconds."""
    if address := os.environ.get("SYMGEN_SCHEDULER"):
        from dask.distributed import Client

        return Client(address=address).get_executor(pure=False)
    # A process that is forked may hang in a library that has threads already.
    fresh = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, fresh, _alone, (os.getpid(),))


def _alone(parent: int) -> None:
    """Prepare a process: one thread, no bars and no reports that would run into one another."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    # Who stops the chapter ends this process; Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(parent)
    import torch

    _hide_bars()
    torch.set_num_threads(1)


def _hide_bars() -> Callable[..., None]:
    """Have bars that begin from now on show nothing; return how they began before."""
    from tqdm.std import tqdm

    begin = tqdm.__init__
    tqdm.__init__ = lambda bar, *given, **told: begin(bar, *given, **{**told, "disable": True})
    return begin


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the processes beside this one do."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _bars_within(shown: bool) -> Iterator[None]:
    """Show the bars of what is done here, or none.

    On a CPU parts are many and short, and a notebook gets a dozen messages for each bar: more than
    two thousand in one cell, and what runs it without reading them meanwhile loses some.
    """
    from tqdm.std import tqdm

    begin = tqdm.__init__ if shown else _hide_bars()
    try:
        yield
    finally:
        tqdm.__init__ = begin
