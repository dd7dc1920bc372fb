"""What lies in the cache, and how it is emptied of what symgen wrote and marked, and no more."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from symgen.storage import PART, RESULT, TAG, TAGGED, cache_folder

# What a training leaves in the folder of its run.
OF_A_RUN = re.compile(r"(step|resume)-\d{8,}\.(safetensors|json)|run\.json|\.lock")


def stored_kinds() -> list[Path]:
    """Return the folders of the cache that symgen marked as its own, by name.

    A link is never one, wherever it leads.
    """
    top = cache_folder()
    return [Path(e.path) for e in _entries(top, folders=True) if _marked(Path(e.path))]


def _marked(folder: Path) -> bool:
    tag = folder / TAG
    with contextlib.suppress(OSError, ValueError):
        return not tag.is_symlink() and tag.read_text(encoding="utf-8") == TAGGED
    return False


def _entries(folder: Path, folders: bool) -> Iterator[os.DirEntry]:
    """Yield the folders or the files in a folder, by name, links being neither."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for entry in sorted(found, key=lambda e: e.name):
            kind = entry.is_dir if folders else entry.is_file
            if kind(follow_symlinks=False):
                yield entry


def _own(folder: Path, names: re.Pattern) -> list[Path]:
    """Return the files in a folder that have such a name, or are temporary files of one."""

    def known(name: str) -> bool:
        part = PART.fullmatch(name)
        return bool(names.fullmatch(part["name"] if part else name))

    return [Path(e.path) for e in _entries(folder, folders=False) if known(e.name)]


def _runs(kind: Path) -> list[Path]:
    return [Path(e.path) for e in _entries(kind, folders=True) if RESULT.fullmatch(e.name)]


def stored_files(kind: Path) -> list[Path]:
    """Return the files of results in a folder of `stored_kinds`; what others put there is none."""
    return [*_own(kind, RESULT), *(file for run in _runs(kind) for file in _own(run, OF_A_RUN))]


def clear_kind(kind: Path) -> int:
    """Delete the results in a folder of `stored_kinds`, and the folder where nothing else is in it.

    Returns:
        The number of entries that others left in the folder, which stay.
    """
    for path in stored_files(kind):
        path.unlink(missing_ok=True)
    for run in _runs(kind):
        with contextlib.suppress(OSError):  # not empty
            run.rmdir()
    left = [name for name in os.listdir(kind) if name != TAG]
    if not left:
        (kind / TAG).unlink()
        kind.rmdir()
    return len(left)
