"""One run of chapters for every combination of some parameters, here or on many machines."""

import contextlib
import itertools
import json
import math
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import NamedTuple

import psutil

from symgen.book import presets
from symgen.book.presets import BookError
from symgen.book.processes import ended_with_us
from symgen.fingerprints import fingerprint

MOST_RUNS = 10_000  # of one sweep


class Plan(NamedTuple):
    """What a sweep runs: chapters, each time all, with each of some sets of parameters."""

    chapters: list[str]
    preset: str
    combinations: list[dict]


def read_plan(book: Path, grid: Path) -> Plan:
    """Read a YAML file with chapter, preset and grid, and check every combination in it.

    Raises:
        BookError: for a file that holds anything else, or asks for what a chapter refuses.
    """
    if not grid.is_file():
        raise BookError(f"no file {grid}: expected is a YAML file with chapter, preset and grid")
    read = presets.read_yaml(grid)
    for key in set(read) - set(known := ["chapter", "preset", "grid"]):
        raise presets.unknown(f"key in {grid.name}", key, known)
    axes = read.get("grid")
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
    wanted = read.get("chapter") or []
    wanted = wanted if isinstance(wanted, list) else [wanted]
    chapters = presets.choose_chapters(book, map(str, wanted))
    combinations = [dict(zip(axes, v, strict=True)) for v in itertools.product(*axes.values())]
    plan = Plan(chapters, str(read.get("preset", "quick")), combinations)
    for chapter in chapters:
        presets.resolve_all(book, chapter, plan.preset, combinations)
    return plan


def carry_out(
    plan: Plan, out: Path, scheduler: str | None, workers: int
) -> Iterator[tuple[dict, dict]]:
    """Yield the parameters of each run as it ends and what became of it; keep an index of all.

    Args:
        plan: of `read_plan`.
        out: folder that gets one folder a run, and the index.
        scheduler: address of a dask scheduler; None runs on this machine.
        workers: runs at a time on this machine.
    """
    import pandas as pd

    from symgen.storage import atomic

    about = [" ".join(plan.chapters), plan.preset]
    folders = [fingerprint([*about, values])[:8] for values in plan.combinations]
    commands = []
    for folder, values in zip(folders, plan.combinations, strict=True):
        command = ["run", *plan.chapters, "--preset", plan.preset]
        for name, value in values.items():
            command += ["-p", name, value if isinstance(value, str) else json.dumps(value)]
        commands.append([*command, "--out", str(out.resolve() / folder)])
    rows: dict[int, dict] = {}
    with _pool(scheduler, workers) as pool:
        # Every command is a process of its own: notebooks do not share one event loop.
        numbers = {pool.submit(_run_one, command): k for k, command in enumerate(commands)}
        try:
            for done in as_completed(numbers):
                k = numbers[done]
                rows[k] = {**plan.combinations[k], **done.result(), "folder": folders[k]}
                with atomic(out / "index.csv") as temporary:
                    pd.DataFrame([rows[k] for k in sorted(rows)]).to_csv(temporary, index=False)
                yield plan.combinations[k], rows[k]
        finally:  # reached early where a signal stops the sweep
            for future in numbers:
                future.cancel()
            ended: set[psutil.Process] = set()
            while scheduler is None and wait(numbers, 0.1).not_done:
                for child in {*psutil.Process().children()} - ended:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.terminate()
                    ended.add(child)


def _pool(scheduler: str | None, workers: int) -> Executor:
    if scheduler is None:
        return ThreadPoolExecutor(workers)
    try:
        from dask.distributed import Client
    except ImportError:
        raise BookError(
            "a scheduler needs dask, which is not installed: pip install 'symgen[cluster]'"
        ) from None
    return Client(address=scheduler).get_executor(pure=False)


def _run_one(arguments: list[str]) -> dict:
    """Run one command; return its status, its seconds and the reason of a failure."""
    started = time.perf_counter()
    command = ended_with_us("from symgen.book.cli import app; app()", *arguments)
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines() or [""]
    reason = next((x.strip() for x in lines if "failed:" in x or "symgen:" in x), lines[-1])
    return {
        "status": "failed"
        if ran.returncode
        else "done"
        if "  done in" in ran.stdout
        else "unchanged",
        "seconds": round(time.perf_counter() - started, 1),
        "error": reason.removeprefix("failed: ") if ran.returncode else "",
    }
