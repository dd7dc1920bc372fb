"""Files that nobody ever sees half written, and the folder of those that can be made again.

Also for commands that compute nothing, which do without torch.
"""

import contextlib
import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from symgen.fingerprints import not_a_result

# The names that stored results have in the folder of their kind, and temporary files anywhere.
RESULT = re.compile(r"[0-9a-f]{16}(\.safetensors|\.json)?")
PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.part")
#: What marks a folder of stored results: backups pass it over, and it may be emptied.
TAG = "CACHEDIR.TAG"
TAGGED = "Signature: 8a477f597d28d172789f06886806bc55\n# Results that symgen can compute again.\n"
DAY = 86400


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
