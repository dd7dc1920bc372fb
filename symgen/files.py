"""Files that nobody ever sees half written, and the folder of those that can be made again.

Also for commands that compute nothing, which do without torch.
"""

import contextlib
import hashlib
import os
import re
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from symgen.fingerprints import PACKAGE, fingerprint, not_a_result

# The names that stored results have in the folder of their kind, and temporary files anywhere.
RESULT = re.compile(r"[0-9a-f]{16}(\.safetensors|\.json)?")
PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.part")
#: What marks a folder of stored results: backups pass it over, and it may be emptied.
TAG = "CACHEDIR.TAG"
TAGGED = "Signature: 8a477f597d28d172789f06886806bc55\n# Results that symgen can compute again.\n"
DAY = 86400
# Parameters of chapters that name data or networks.
NAMING = ("dataset", "old", "network", "model", "baseline")


@not_a_result
@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it on success and deleted on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    discard_parts(path.parent, DAY)
    # No two writers share a name: neither threads, nor processes, nor machines with one disk.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        # Some writers give access to nobody else, and others may share the folder.
        with contextlib.suppress(OSError):
            temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def sha256(path: Path) -> str:
    """Return the checksum of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def working_folder() -> Path:
    """Return the folder where the program was started: `SYMGEN_FROM`, or where it runs."""
    return Path(os.environ.get("SYMGEN_FROM") or Path.cwd()).absolute()


def own_folder(name: str) -> Path | None:
    """Return the folder that a name is the path of, seen from the `working_folder`, or None."""
    try:
        path = working_folder() / Path(name).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # of a name that can be no path
        return None


@not_a_result
def own_files(parameters: Any) -> dict[str, str]:
    """Return what identifies the reader's own files that parameters name, by name or path.

    Of a folder that is named, these are the names, sizes and times of all its files; where a
    function is, "module:function", the modules that this process has loaded from elsewhere than
    where Python's packages lie.

    Args:
        parameters: of a chapter that has run in this process.
    """
    names = [*_named(parameters)]
    found = {name: _listed(folder) for name in names if (folder := own_folder(name))}
    if any(":" in name and name not in found for name in names):
        found |= {os.path.relpath(file, working_folder()): sha256(file) for file in _own_modules()}
    return found


@not_a_result
def own_files_changed(earlier: Mapping[str, str], parameters: Any) -> bool:
    """Return whether the reader's own files are others than `own_files` saw.

    Args:
        earlier: what it returned.
        parameters: of the chapter.
    """
    named = {name for name in _named(parameters) if own_folder(name)}
    for name in {*earlier, *named}:
        path = working_folder() / Path(name).expanduser()
        if not path.exists():
            return True
        if (_listed(path) if path.is_dir() else sha256(path)) != earlier.get(name):
            return True
    return False


def _named(parameters: Any) -> Iterator[str]:
    """Yield the names of data and networks among nested parameters."""
    if isinstance(parameters, Mapping):
        for key, value in parameters.items():
            if key in NAMING and value and isinstance(value, str):
                yield value
            yield from _named(value)
    elif isinstance(parameters, list | tuple):
        for each in parameters:
            yield from _named(each)


def _listed(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    about = [(str(path.relative_to(folder)), path.stat()) for path in files]
    return fingerprint([(name, seen.st_size, seen.st_mtime_ns) for name, seen in about])


def _own_modules() -> list[Path]:
    """Return the files of loaded modules that are neither Python's, nor installed, nor symgen's."""
    files = {Path(x) for m in [*sys.modules.values()] if (x := getattr(m, "__file__", None))}
    apart = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return sorted(
        file for file in files
        if file.suffix == ".py" and file.is_file()
        and not any(file.is_relative_to(place) for place in (*apart, PACKAGE))
        and not {"site-packages", "dist-packages"} & {*file.parts}
    )  # fmt: skip
