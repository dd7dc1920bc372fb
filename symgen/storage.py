"""The cache of results: tensors and what is said of them, in files that are written whole."""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from symgen.files import PART, RESULT, TAG, TAGGED, atomic, cache_folder, sha256
from symgen.fingerprints import BOOK, fingerprint, not_a_result

#: Results that come with the book, by kind.
KEPT = BOOK / "data" / "kept"


class DamagedFileWarning(UserWarning):
    """A stored file is not what was written there; it is recomputed."""


@not_a_result
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


@not_a_result
def fetch(path: str | os.PathLike) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Read what `store` wrote, or return None where there is nothing (or nothing whole) to read.

    A file that cannot be read, or that is not what was written in its place, is reported by a
    `DamagedFileWarning`.
    """
    path = Path(path)
    try:
        info, checksum = fetch_info(path), sha256(path)
        if checksum != info["sha256"]:
            # Another writer may have replaced both since, the tensors first.
            info = fetch_info(path)
        if checksum != info.pop("sha256"):
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


@not_a_result
def cached(
    kind: str,
    key: Mapping,
    compute: Callable[[], Mapping[str, torch.Tensor]],
    keep: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the tensors stored under `key`, computing and storing them the first time.

    What takes hours comes with the book, in `KEPT`, and is found there, too. What cannot be stored
    is returned all the same, with a warning.

    Args:
        kind: subfolder of the cache, such as ``"extraction"``.
        key: everything that matters to the result; see `fingerprint` for what it may hold.
        compute: called without arguments when nothing whole is stored.
        keep: whether the result is to come with the book, where `SYMGEN_KEEP` asks for that. The
            key's entry ``code`` tells then when it is out of date. Where `SYMGEN_CARRY` asks for
            that, a result of older code is taken over once another one, alike but for its seed,
            was computed anew and is the same to the last bit.
    """
    path, place = _places(kind, key)
    keeping = keep and bool(os.environ.get("SYMGEN_KEEP"))
    found = fetch(path)
    older = fetch(place) if keeping or (keep and found is None) else None
    current = older is not None and older[1].get("code") == key.get("code")
    if found is None and current:
        found = older
    if found is None and keeping and older and os.environ.get("SYMGEN_CARRY"):
        found = _carried(kind, key, older)
    if found is not None:
        if keeping and not current:
            _attempt(_keep, place, key, *found, older)
        return dict(sorted(found[0].items()))
    started = time.perf_counter()
    # In the order in which they are read again.
    tensors = dict(sorted(compute().items()))
    info = {"kind": kind, "seconds": round(time.perf_counter() - started, 3)}
    info |= {"code": key["code"]} if "code" in key else {}
    _attempt(store, path, tensors, info)
    if keeping:
        _attempt(_keep, place, key, tensors, info, older)
    return tensors


def _attempt(put: Callable[..., None], path: Path, *what: Any) -> None:
    """Store something in its place; warn where that cannot be done."""
    try:
        put(path, *what)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"a result could not be stored in {path.parent} ({error}), so it will be computed "
            "again next time, if it is nowhere else; free some space there, or point SYMGEN_CACHE "
            "to another folder",
            UserWarning,
            stacklevel=3,
        )


def is_stored(kind: str, key: Mapping) -> bool:
    """Return whether `cached` would find a result under a key; no tensors are read."""
    path, place = _places(kind, key)
    with contextlib.suppress(OSError, ValueError):
        here = path.exists() and path.with_suffix(".json").exists()
        return here or fetch_info(place).get("code") == key.get("code")
    return False


def _places(kind: str, key: Mapping) -> tuple[Path, Path]:
    """Return where a result lies in the cache, and where it would come with the book."""
    # There its place stays when the code is changed, so that old and new can be compared.
    lasting = fingerprint({k: v for k, v in key.items() if k != "code"})
    here, there = cache_folder() / kind, KEPT / kind
    return here / f"{fingerprint(key)}.safetensors", there / f"{lasting}.safetensors"


def _family(key: Mapping) -> str:
    """Return what results share that differ by their seeds, at any depth, and by the code."""

    def without(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if not isinstance(value, Mapping):
            return value
        return {k: without(x) for k, x in value.items() if k != "seed"}

    return fingerprint(without({k: x for k, x in key.items() if k != "code"}))


def _keep(
    place: Path,
    key: Mapping,
    tensors: Mapping[str, torch.Tensor],
    info: Mapping,
    older: tuple[dict, dict] | None,
) -> None:
    """Store a result where it comes with the book; say which older code gave the same."""
    said = {**info, "family": _family(key)}
    if older and not said.get("carried") and _same(tensors, older[0]):
        known = {*older[1].get("same_as", ()), older[1].get("code")} - {info.get("code")}
        said["same_as"] = sorted(filter(None, known))
    store(place, tensors, said)


def _same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return whether results agree to the last bit; what is no number agrees with its like.

    How long something took never is the same, and no code says it.
    """
    return one.keys() == other.keys() and all(
        x.dtype == other[k].dtype and x.shape == other[k].shape and _bytes(x) == _bytes(other[k])
        for k, x in one.items()
        if k != "seconds"
    )


def _bytes(x: torch.Tensor) -> bytes:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _carried(kind: str, key: Mapping, older: tuple[dict, dict]) -> tuple[dict, dict] | None:
    """Return a result of older code as one of today's, where its like was found the same."""
    family = _family(key)
    for path in sorted((KEPT / kind).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            said = fetch_info(path)
            alike = (said.get("family"), said.get("code")) == (family, key["code"])
            if alike and older[1].get("code") in said.get("same_as", ()):
                return older[0], {**older[1], "code": key["code"], "carried": True}
    return None
