"""The cache of results: tensors in files that are written whole and checked when read."""

import contextlib
import dataclasses
import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

#: Raise the number of a kind if code changes its results. Older files are then ignored.
VERSION = {
    "training": 1,
    "outputs": 1,
    "interactions": 2,
    "mask_values": 1,
    "measure": 1,
    "language": 2,
    "tuning": 2,
    "penalty": 1,
}


class DamagedFileWarning(UserWarning):
    """A stored file is damaged or cannot be read, so its content is computed again."""


def cache_folder() -> Path:
    """Return the folder of stored results: `SYMGEN_CACHE`, or ``~/.cache/symgen``."""
    return Path(os.environ.get("SYMGEN_CACHE") or "~/.cache/symgen").expanduser()


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it on success, delete it on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name, so that no two threads, processes or machines write to one file.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that identify a nested value.

    Args:
        value: numbers, texts, None, lists, tuples, mappings, dataclasses, paths, arrays and
            tensors, nested to any depth. The order of keys in a mapping does not matter.

    Raises:
        TypeError: for a value of any other type.

    Example:
        >>> fingerprint({"n": 10, "seed": 0}) == fingerprint({"seed": 0, "n": 10})
        True
    """
    digest = hashlib.sha256()
    _update(digest, value)
    return digest.hexdigest()[:16]


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        value = value.numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"array {value.dtype.str} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"map {len(value)};".encode())
        for key in sorted(value, key=str):
            _update(digest, str(key))
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)};".encode())
        for item in value:
            _update(digest, item)
    elif value is None or isinstance(value, bool | int | float | str | Path):
        text = str(value)
        # The length comes first, so that two neighbouring texts cannot be mistaken for another two.
        digest.update(f"{type(value).__name__} {len(text)} {text};".encode())
    else:
        raise TypeError(
            f"cannot identify a value of type {type(value).__name__}; expected numbers, texts, "
            "arrays or tensors, or lists, mappings and dataclasses of these"
        )


def write_tensors(
    path: str | os.PathLike,
    tensors: Mapping[str, torch.Tensor],
    info: Mapping | None = None,
    key: str = "",
) -> None:
    """Write tensors and a description to a safetensors file with checksums.

    Args:
        path: path of the file; a reader never sees half of it.
        tensors: tensors by name.
        info: description of any type that JSON can hold.
        key: identity of the content. A reader must give the same one, so a file that was copied
            under the name of another is noticed.

    Raises:
        OSError: if the file cannot be written, also if the disk is full.
    """
    # Clones, because safetensors refuses tensors that share memory.
    tensors = {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()}
    text = json.dumps(dict(info or {}))
    about = {"info": text, "header": fingerprint([key, text])}
    about["checksum"] = fingerprint([key, text, tensors])
    try:
        with atomic(path) as temporary:
            save_file(tensors, temporary, metadata=about)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _opened(path: Path, key: str, names: bool) -> tuple[dict[str, torch.Tensor], dict]:
    """Return the tensors (none unless `names`) and the description of a file, both checked."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {k: file.get_tensor(k) for k in file.keys()} if names else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error
    text = about.get("info", "")
    whole = not names or about.get("checksum") == fingerprint([key, text, tensors])
    if not whole or about.get("header") != fingerprint([key, text]):
        raise ValueError(f"{path.name} is damaged or was renamed (its checksum differs)")
    return tensors, json.loads(text)


def read_whole(path: str | os.PathLike, key: str = "") -> tuple[dict[str, torch.Tensor], dict]:
    """Return the tensors and the description of a file from `write_tensors`.

    Raises:
        ValueError: if the file is damaged, has another key, or was written by something else.
    """
    return _opened(Path(path), key, names=True)


def read_info(path: str | os.PathLike, key: str = "") -> dict:
    """Return the description of a file from `write_tensors`; its tensors are not read.

    Raises:
        ValueError: see `read_whole`.
    """
    return _opened(Path(path), key, names=False)[1]


def read_tensors(
    path: str | os.PathLike, key: str = ""
) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Return the tensors and the description of a file from `write_tensors`.

    Returns:
        None if there is no file, or if it is damaged. The latter gives a `DamagedFileWarning`.
    """
    try:
        return read_whole(path, key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"{error}; its content is computed again"
        warnings.warn(message, DamagedFileWarning, stacklevel=3)
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cached(
    kind: str,
    key: Any,
    compute: Callable[[], Mapping[str, torch.Tensor]],
    enabled: bool = True,
) -> dict[str, torch.Tensor]:
    """Return the tensors stored under `key`; compute and store them the first time.

    Args:
        kind: kind of result, an entry of `VERSION` and a subfolder of the cache.
        key: everything that the result depends on, of the types that `fingerprint` takes; include
            the dtype of the weights. The autocast precision in force, the versions of torch and
            transformers, and `VERSION` are added here.
        compute: called without arguments if nothing is stored.
        enabled: False computes without reading or writing a file.
    """
    if not enabled:
        return dict(compute())
    kinds = [k for k in ("cpu", "cuda") if torch.is_autocast_enabled(k)]
    precision = [f"{k} {torch.get_autocast_dtype(k)}" for k in kinds]
    context = [_version("torch"), _version("transformers"), precision, kind, VERSION[kind]]
    path = cache_folder() / kind / f"{fingerprint([key, context])}.safetensors"
    stored = read_tensors(path, path.stem)
    if stored is not None:
        return stored[0]
    tensors = dict(compute())
    try:
        write_tensors(path, tensors, key=path.stem)
    except OSError as error:
        warnings.warn(
            f"a result could not be stored in {path.parent} ({error}); free some space, or set "
            "SYMGEN_CACHE to another folder",
            stacklevel=2,
        )
    return tensors
