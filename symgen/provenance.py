"""What produced a result: parameters, seeds, fingerprints, and the cache keyed by them."""

import contextlib
import dataclasses
import hashlib
import html
import json
import os
import platform
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from symgen.fingerprints import code_fingerprint, fingerprint, versions
from symgen.parameters import check_parameters
from symgen.results import read_results

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

PARAMETER_TYPES = (bool, int, float, str, list, tuple, dict, type(None))
#: What can become of a claim of the paper.
VERDICTS = ("shown", "partly", "not shown", "not tested")


class DamagedFileWarning(UserWarning):
    """A stored file is not what was written there; it is recomputed."""


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it on success and deleted on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    discard_parts(path.parent, DAY)
    # No two writers share a name: neither threads, nor processes, nor machines with one disk.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# The names that stored results have in the folder of their kind, and temporary files anywhere.
RESULT = re.compile(r"[0-9a-f]{16}(\.safetensors|\.json)?")
PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.part")
#: What marks a folder of stored results: backups pass it over, and it may be emptied.
TAG = "CACHEDIR.TAG"
TAGGED = "Signature: 8a477f597d28d172789f06886806bc55\n# Results that symgen can compute again.\n"
DAY = 86400


def discard_parts(folder: Path, age: float = 0) -> None:
    """Delete the temporary files in a folder that writers left when they were killed.

    Args:
        folder: where `atomic` wrote.
        age: seconds for which none of them was touched; a living writer's never is so old.
    """
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.part"):
            if PART.fullmatch(path.name) and path.lstat().st_mtime <= time.time() - age:
                path.unlink()


def cache_folder() -> Path:
    """Return the folder of all stored runs: `SYMGEN_CACHE`, or `~/.cache/symgen`."""
    if given := os.environ.get("SYMGEN_CACHE"):
        return Path(given)
    try:
        return Path.home() / ".cache" / "symgen"
    except RuntimeError as error:
        raise FileNotFoundError(
            "there is no home folder to keep results in; set SYMGEN_CACHE to a folder for them"
        ) from error


def store(path: str | os.PathLike, tensors: Mapping[str, torch.Tensor], info: Mapping) -> None:
    """Write tensors and their description so that no reader ever sees half of it.

    Args:
        path: of the safetensors file; the description goes beside it as ``.json``. It holds the
            checksum of the tensors, and a seal over all it says and over the place of the file.
        tensors: name to tensor.
        info: anything JSON can hold.
    """
    path = Path(path)
    # Cloned, because safetensors refuses tensors that share memory.
    contiguous = {
        k: t.detach().cpu().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()
    }
    _mark_kind(path)
    for place in (path, path.with_suffix(".json")):
        if place.is_dir() and not place.is_symlink():  # not ours, so it is kept
            place.rename(place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}.aside"))
    # What was there stays until both are written; then the description is renamed last.
    with atomic(path.with_suffix(".json")) as description, atomic(path) as temporary:
        save_file(contiguous, temporary)
        said = {**info, "sha256": sha256(temporary)}
        said = json.loads(json.dumps(said, default=str))
        text = json.dumps({**said, "seal": _seal(path, said)}, indent=1)
        description.write_text(text, encoding="utf-8")


def _seal(path: Path, said: Mapping) -> str:
    """Return the checksum of a description at its place: its kind or run, and its name."""
    place = path.absolute().with_suffix("").parts[-2:]
    return hashlib.sha256(json.dumps([place, said], sort_keys=True).encode()).hexdigest()


def _mark_kind(path: Path) -> None:
    """Mark the folder of the cache that a result goes to, unless others use it as well."""
    with contextlib.suppress(OSError):
        top, path = cache_folder().absolute(), path.absolute()
        if top not in path.parents[1:]:
            return
        kind = top / path.relative_to(top).parts[0]
        kind.mkdir(parents=True, exist_ok=True)
        if (kind / TAG).exists():
            return
        if all(RESULT.fullmatch(name) or PART.fullmatch(name) for name in os.listdir(kind)):
            with atomic(kind / TAG) as temporary:
                temporary.write_text(TAGGED, encoding="utf-8")


def fetch_info(path: str | os.PathLike) -> dict[str, Any]:
    """Return the description that `store` wrote beside a file, without reading its tensors.

    Raises:
        ValueError: if it is anything else, or was written for another place.
        OSError: if it cannot be read.
    """
    path = Path(path)
    try:
        said = json.loads(path.with_suffix(".json").read_bytes())
    except RecursionError as error:
        raise ValueError("its description is nested too deeply") from error
    if not isinstance(said, dict) or said.pop("seal", None) != _seal(path, said):
        raise ValueError("its description is not the one written for it")
    return said


def fetch(path: str | os.PathLike) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Read what `store` wrote, or return None where there is nothing (or nothing whole) to read.

    A file that cannot be read, or that is not what was written in its place, is reported by a
    `DamagedFileWarning`.
    """
    path = Path(path)
    try:
        info = fetch_info(path)
        if sha256(path) != info.pop("sha256"):
            raise ValueError("its checksum differs")
        return load_file(path), info
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, SafetensorError) as error:
        warn_damaged(path, error)
        return None


def warn_damaged(path: Path, error: Exception) -> None:
    """Say that a stored file is computed again, and why."""
    what = "cannot be read" if isinstance(error, OSError) else "is damaged"
    warnings.warn(
        f"{path.name} {what} ({error}); it is computed again", DamagedFileWarning, stacklevel=3
    )


def cached(
    kind: str, key: Mapping, compute: Callable[[], Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the tensors stored under `key`, computing and storing them the first time.

    What cannot be stored is returned all the same, with a warning.

    Args:
        kind: subfolder of the cache, such as ``"extraction"``.
        key: everything that matters to the result; see `fingerprint` for what it may hold.
        compute: called without arguments when nothing whole is stored.
    """
    path = cache_folder() / kind / f"{fingerprint(key)}.safetensors"
    if (found := fetch(path)) is not None:
        return found[0]
    started = time.perf_counter()
    tensors = dict(compute())
    try:
        store(path, tensors, {"kind": kind, "seconds": round(time.perf_counter() - started, 3)})
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"a result could not be stored in {path.parent} ({error}), so it will be computed "
            "again next time; free some space there, or point SYMGEN_CACHE to another folder",
            UserWarning,
            stacklevel=2,
        )
    return tensors


def sha256(path: Path) -> str:
    """Return the checksum of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def peak_memory() -> dict[str, int]:
    """Return the most memory this process has held so far, in MiB, on the host and on the GPU."""
    process = psutil.Process().memory_info()
    if resource is None:
        peak = process.peak_wset
    else:
        unit = 1 if platform.system() == "Darwin" else 1024
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

    def claim(
        self,
        name: str,
        verdict: str,
        measure: str,
        value: Any = None,
        unit: str = "1",
        samples: int | None = None,
        setting: str | None = None,
    ) -> None:
        """Record what became of a claim of the paper here, for the table ``claims``.

        Args:
            name: of the claim, as in ``data/paper/claims.csv``.
            verdict: one of `VERDICTS`; computed, never typed.
            measure: what was measured, in words.
            value: a number, or mean, low and high of an `Interval`; None where there is none.
            unit: of the value.
            samples: how many it rests on.
            setting: network and data; by default from the chapter's parameters.
        """
        if verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {verdict!r}")
        numbers = (value, None, None) if value is None or np.isscalar(value) else tuple(value)
        if setting is None:
            known = self.parameters
            setting = f"{known.get('network', '')} on {known.get('dataset', 'generated data')}"
        row = {
            "claim": name, "setting": setting, "measure": measure, "value": numbers[0],
            "low95": numbers[1], "high95": numbers[2], "unit": unit, "samples": samples,
            "verdict": verdict,
        }  # fmt: skip
        earlier = self.tables.get("claims", pd.DataFrame(columns=list(row)))
        again = (earlier["claim"] == name) & (earlier["setting"] == setting)
        rows = [*earlier[~again].to_dict("records"), row]
        self.record("claims", pd.DataFrame(rows, columns=list(row)))

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


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What produced a chapter's outputs; `record` is plain JSON, read back by `symgen verify`."""

    record: dict

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        record = self.record
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
            "application/json": record,
        }
