"""What lies in the cache, and how it is emptied of what symgen wrote and marked, and no more."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from symgen.files import PART, RESULT, TAG, TAGGED, cache_folder

# What a training leaves in the folder of its run.
OF_A_RUN = re.compile(r"(step|resume)-\d{8,}\.(safetensors|json)|run\.json|\.lock")


def stored_kinds() -> list[Path]:
    """Return the folders of the cache that symgen marked as its own, by name.

    A link is never one, wherever it leads.
    """
    found = []
    for folder in _entries(cache_folder(), folders=True):
        with contextlib.suppress(OSError, ValueError):
            tag = folder / TAG
            if not tag.is_symlink() and tag.read_text(encoding="utf-8") == TAGGED:
                found.append(folder)
    return found


def _entries(
    folder: Path, folders: bool = False, named: re.Pattern | None = None
) -> Iterator[Path]:
    """Yield the folders or the files in a folder, by name, links being neither.

    With a pattern, only those of such a name, and temporary files of one.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for entry in sorted(found, key=lambda e: e.name):
            kind = entry.is_dir if folders else entry.is_file
            part = PART.fullmatch(entry.name)
            name = part["name"] if part else entry.name
            if kind(follow_symlinks=False) and (named is None or named.fullmatch(name)):
                yield Path(entry.path)


def stored_files(kind: Path) -> list[Path]:
    """Return the files of results in a folder of `stored_kinds`; what others put there is none."""
    runs = _entries(kind, folders=True, named=RESULT)
    of_runs = [file for run in runs for file in _entries(run, named=OF_A_RUN)]
    return [*_entries(kind, named=RESULT), *of_runs]


def clear_kind(kind: Path) -> int:
    """Delete the results in a folder of `stored_kinds`, and the folder where nothing else is in it.

    Returns:
        The number of entries that others left in the folder, which stay.
    """
    for path in stored_files(kind):
        path.unlink(missing_ok=True)
    for run in list(_entries(kind, folders=True, named=RESULT)):
        with contextlib.suppress(OSError):  # not empty
            run.rmdir()
    left = [name for name in os.listdir(kind) if name != TAG]
    if not left:
        (kind / TAG).unlink()
        kind.rmdir()
    return len(left)
