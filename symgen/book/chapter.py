"""One execution of a chapter: its parameters, its clock, its result tables, and its provenance."""

import dataclasses
import html
import inspect
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch

from symgen.book.parameters import check_parameters
from symgen.book.processes import spread
from symgen.book.tables import Page, claim_box, claim_rows, read_results
from symgen.files import atomic, own_files
from symgen.fingerprints import RECORD, code_fingerprint, fingerprint, not_a_result, versions
from symgen.method.claims.judgement import Judgement, judge

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

PARAMETER_TYPES = (bool, int, float, str, list, tuple, dict, type(None))


@not_a_result
def peak_memory() -> dict[str, int]:
    """Return the most memory this process has held so far, in MiB, on the host and on the GPU."""
    status = Path("/proc/self/status")
    told = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if told:
        # Of Linux, where `ru_maxrss` begins at what the process held that started this one.
        peak = int(told[1]) * 2**10
    elif resource is None:
        peak = psutil.Process().memory_info().peak_wset
    else:
        unit = 1 if platform.system() == "Darwin" else 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = {"host": peak // 2**20}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.max_memory_allocated() // 2**20
    return found


class Chapter:
    """One execution of one chapter: its parameters, its clock and its result tables.

    Args:
        name: of the notebook, without suffix.
        parameters: the notebook's variables (``globals()``) right after its parameters cell;
            names that start with an underscore, modules and functions are passed over.

    Raises:
        ValueError: for parameters that the chapter cannot run with; see `check_parameters`.

    Example:
        >>> chapter = Chapter("00_planted_logic", {"preset": "quick", "n": 10, "seed": 0})
        >>> chapter.parameters["n"]
        10
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]):
        self.name = name
        # IPython keeps its own history lists (In, Out) among a notebook's variables.
        self.parameters = {
            key: value
            for key, value in parameters.items()
            if not key.startswith("_")
            and key not in ("In", "Out")
            and isinstance(value, PARAMETER_TYPES)
        }
        check_parameters(name, self.parameters)
        self.tables: dict[str, pd.DataFrame] = {}
        self.inputs: dict[str, str] = {}
        self._started = time.perf_counter()
        out = os.environ.get("SYMGEN_OUT")
        self.folder = Path(out) if out else None
        # A run writes its tables aside until it has ended well, and reads those of the others.
        run = os.environ.get("SYMGEN_RUN", out)
        self._run = Path(run) if run else None

    def record(
        self, table: str, frame: pd.DataFrame, units: Mapping[str, str] | None = None
    ) -> pd.DataFrame:
        """Keep a tidy result table; with `SYMGEN_OUT` set, write it there as CSV. Returns it.

        Args:
            table: its name.
            frame: one row an observation.
            units: of columns that have one, such as ``{"loss": "nats"}``; they are written in
                the header, as ``loss [nats]``.
        """
        for column in units or {}:
            if column not in frame:
                raise ValueError(f"{column!r} is no column of {table}: {', '.join(frame)}")
        named = frame.rename(columns={k: f"{k} [{u}]" for k, u in (units or {}).items()})
        self.tables[table] = named
        if self.folder is not None:
            with atomic(self.folder / "tables" / f"{self.name}.{table}.csv") as path:
                named.to_csv(path, index=False)
        return frame

    def claim(self, rule: Callable[..., Judgement], cases: Mapping[str, Any]) -> Page:
        """Judge a claim of the paper in some settings, record it, and return the box that says so.

        The rule, which is tested, decides; nothing is judged in a notebook. What became of the
        claim goes into the table ``claims``.

        Args:
            rule: of `symgen.method.claims`, named as the claim in ``data/paper/claims.csv``.
            cases: setting (network and data in words) to what was measured there, as `judge`
                takes it: one value, a tuple of several, or those of each training.
        """
        name = rule.__name__
        judged = {setting: judge(rule, case) for setting, case in cases.items()}
        rows = claim_rows(name, judged)
        if (earlier := self.tables.get("claims")) is not None:
            again = (earlier["claim"] == name) & earlier["setting"].isin([*judged])
            rows = pd.concat([earlier[~again], rows], ignore_index=True)
        self.record("claims", rows)
        return claim_box(name, inspect.cleandoc(rule.__doc__ or ""), judged)

    #: Calls a function for every one of some items, on all cores or machines; see `spread`.
    map = staticmethod(spread)

    def results(self, table: str) -> pd.DataFrame:
        """Return a result table of all chapters, in this run and in the stored editions.

        Columns: preset, chapter, and those of the table. The run at hand stands for its preset;
        what was read is part of the chapter's provenance. Earlier results of a chapter that has
        failed since are left out, and a line says so.
        """
        found = read_results(table, self._run, self.parameters.get("preset", "quick"))
        if failed := found.attrs["failed"]:
            print(f"Left out, since they failed in this run: {', '.join(failed)}.")
        self.inputs[table] = fingerprint(found.to_csv(index=False))
        return found

    def provenance(self) -> "Provenance":
        """Return the record of this run, shown as a table where a notebook ends with it."""
        cuda = torch.cuda.is_available()
        return Provenance(
            {
                "chapter": self.name,
                "preset": self.parameters.get("preset", "quick"),
                "parameters": self.parameters,
                "device": torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores",
                "threads": torch.get_num_threads(),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
                "seconds": round(time.perf_counter() - self._started, 1),
                "memory": peak_memory(),
                "versions": versions(),
                "code": code_fingerprint(),
                "tables": {k: fingerprint(v.to_csv(index=False)) for k, v in self.tables.items()},
                "inputs": self.inputs,
            }
        )


@not_a_result
@dataclasses.dataclass(frozen=True)
class Provenance:
    """What produced a chapter's outputs; `record` is plain JSON, read back by `symgen verify`."""

    record: dict

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        record = self.record
        own = own_files(record["parameters"])
        told = record["OMP_NUM_THREADS"] or "unset"
        rows = {
            "preset": record["preset"],
            "data": record["parameters"].get("dataset", "generated"),
            "device": record["device"],
            "threads": f"{record['threads']} (OMP_NUM_THREADS {told})",
            "wall time": f"{record['seconds']:.1f} s",
            "peak memory": ", ".join(f"{v:,} MiB ({k})" for k, v in record["memory"].items()),
            "versions": ", ".join(f"{k} {v}" for k, v in record["versions"].items()),
            "code fingerprint": record["code"],
        }
        cells = "".join(
            f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items()
        )
        return {
            "text/plain": "\n".join(f"{k}: {v}" for k, v in rows.items()),
            "text/html": f'<table class="provenance">{cells}</table>',
            RECORD: {**record, **({"own": own} if own else {})},
        }
