"""What produced a result: parameters, seeds, fingerprints, and the cache keyed by them."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import html
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from symgen.parameters import check_parameters
from symgen.results import read_results

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

PACKAGE = Path(__file__).parent
PARAMETER_TYPES = (bool, int, float, str, list, tuple, dict, type(None))
#: What can become of a claim of the paper.
VERDICTS = ("shown", "partly", "not shown", "not tested")
# What runs the chapters and builds the site does not touch their numbers.
NOT_RESULTS = {"cli", "editions", "parameters", "runs", "site"}


class DamagedFileWarning(UserWarning):
    """A stored file does not match its checksum; it is recomputed."""


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that identify a nested value.

    Args:
        value: numbers, strings, bytes, None, lists, tuples, mappings, dataclasses, paths,
            NumPy arrays and torch tensors, nested as deep as needed. Mappings are compared
            without regard to the order of their keys.

    Raises:
        TypeError: for a value of any other type, whose identity could not be stated.

    Example:
        >>> fingerprint({"n": 10, "seed": 0}) == fingerprint({"seed": 0, "n": 10})
        True
    """
    digest = hashlib.sha256()
    _digest(digest, value)
    return digest.hexdigest()[:16]


def _digest(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype is torch.bfloat16:
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype.str} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"map {len(value)};".encode())
        for key in sorted(value, key=str):
            _digest(digest, str(key))
            _digest(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)};".encode())
        for item in value:
            _digest(digest, item)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)};".encode() + value)
    elif value is None or isinstance(value, (bool, int, float, str, Path)):
        kind = "str" if isinstance(value, Path) else type(value).__name__
        text = str(value)
        # With its length, so that no text can imitate two neighbouring ones.
        digest.update(f"{kind} {len(text)} {text};".encode())
    else:
        raise TypeError(
            f"fingerprint: cannot identify a value of type {type(value).__name__}; "
            "pass numbers, strings, arrays, tensors, or lists, mappings and dataclasses of them"
        )


def code_fingerprint(*modules: str) -> str:
    """Return the fingerprint of symgen's code: of the named modules, or of all of them.

    Comments, docstrings and layout do not count, so that only a change of behaviour makes
    stored results stale.

    Args:
        modules: names such as ``"training"``. Without any, every module that results depend on.
    """
    everything = sorted({p.stem for p in PACKAGE.glob("*.py")} - NOT_RESULTS)
    return fingerprint({name: _behaviour(_text(name)) for name in modules or everything})


def modules_of(source: str) -> tuple[str, ...]:
    """Return the modules of symgen that code which imports it depends on, as names.

    A public name stands for the module that defines it, and a module for all that it imports.
    So a chapter stays what it was when something is changed that it has no part in. What
    ``symgen/__init__.py`` and ``symgen/plots.py`` import does not count by itself.

    Args:
        source: Python code, such as a chapter's cells.

    Raises:
        ValueError: for a name that symgen does not have.
    """
    homes, drawn = _homes("__init__"), _homes("plots")
    used: dict[str, set[str]] = {"symgen": set(), "plots": set()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in used:
            used[node.value.id].add(node.attr)
    # `plots` only gathers the figures of other modules, as `__init__` does.
    pending = {name for name in _imports(source) if name != "plots"} | used["symgen"]
    pending |= {drawn[name] for name in used["plots"] if name in drawn}
    found: set[str] = set()
    while pending:
        name = pending.pop()
        name = homes.get(name, name)
        if name in found or name.startswith("__"):
            continue
        if not (PACKAGE / f"{name}.py").is_file():
            raise ValueError(f"symgen has no {name!r}")
        found.add(name)
        pending.update(_imports(_text(name)))
    return tuple(sorted(found - NOT_RESULTS))


def _homes(module: str) -> dict[str, str]:
    """Return the names that a module takes from others, and from which."""
    if not (PACKAGE / f"{module}.py").is_file():
        return {}
    return {
        alias.asname or alias.name: node.module.split(".")[1]
        for node in ast.walk(ast.parse(_text(module)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symgen.")
        for alias in node.names
    }


def _text(module: str) -> str:
    return (PACKAGE / f"{module}.py").read_text(encoding="utf-8")


# By text, since every extraction asks for the same modules, and a file may change meanwhile.
@functools.cache
def _imports(source: str) -> tuple[str, ...]:
    """Return modules and public names of symgen that are imported anywhere in the code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "symgen":
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symgen."):
            found.append(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found += [p[1] for p in parts if p[0] == "symgen" and len(p) > 1]
    return tuple(found)


@functools.cache
def _behaviour(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            body[0].value.value = ""
    return _dump(tree)


def _dump(node: Any) -> str:
    """Write a syntax tree as text that every version of Python writes alike.

    `ast.dump` and `ast.unparse` do not: versions differ in fields and texts that are empty.
    """
    if isinstance(node, ast.JoinedStr):
        node.values = [v for v in node.values if getattr(v, "value", None) != ""]
    if isinstance(node, ast.AST):
        fields = ((k, v) for k, v in ast.iter_fields(node) if v is not None and v != [])
        return f"{type(node).__name__}({', '.join(f'{k}={_dump(v)}' for k, v in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it on success and deleted on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of all stored runs: `SYMGEN_CACHE`, or `~/.cache/symgen`."""
    return Path(os.environ.get("SYMGEN_CACHE") or Path.home() / ".cache" / "symgen")


def store(path: str | os.PathLike, tensors: Mapping[str, torch.Tensor], info: Mapping) -> None:
    """Write tensors and their description so that no reader ever sees half of it.

    Args:
        path: of the safetensors file; the description goes beside it as ``.json``, with the
            checksum of the tensors, and is written last.
        tensors: name to tensor.
        info: anything JSON can hold.
    """
    path = Path(path)
    # Cloned, because safetensors refuses tensors that share memory.
    contiguous = {
        k: t.detach().cpu().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()
    }
    with atomic(path) as temporary:
        save_file(contiguous, temporary)
        checksum = sha256(temporary)
    with atomic(path.with_suffix(".json")) as temporary:
        text = json.dumps({**info, "sha256": checksum}, indent=1, default=str)
        temporary.write_text(text, encoding="utf-8")


def fetch(path: str | os.PathLike) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Read what `store` wrote, or return None where there is nothing (or nothing whole) to read.

    A file that does not match its checksum is reported by a `DamagedFileWarning`.
    """
    path = Path(path)
    try:
        info = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if sha256(path) != info.pop("sha256"):
            raise ValueError("checksum differs")
        return load_file(path), info
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        warnings.warn(
            f"{path.name} is damaged ({error}); it is computed again",
            DamagedFileWarning,
            stacklevel=2,
        )
        return None


def cached(
    kind: str, key: Mapping, compute: Callable[[], Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the tensors stored under `key`, computing and storing them the first time.

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
    store(path, tensors, {"kind": kind, "seconds": round(time.perf_counter() - started, 3)})
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


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    names = ("torch", "torchvision", "transformers", "numpy", "scipy", "scikit-learn")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
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
        what was read is part of the chapter's provenance.
        """
        found = read_results(table, self.folder, self.parameters.get("preset", "quick"))
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
        rows = {
            "preset": record["preset"],
            "data": record["parameters"].get("dataset", "generated"),
            "device": record["device"],
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
