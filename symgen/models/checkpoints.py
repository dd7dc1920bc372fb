"""Where a training keeps its checkpoints, and how it finds which are there."""

import contextlib
import dataclasses
import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from symgen.storage import discard_parts, fetch_info, warn_damaged


def checkpoint_steps(total: int, count: int) -> list[int]:
    """Return the steps to keep: 0, the last, and others dense early and sparse late.

    Args:
        total: number of steps of the whole training.
        count: number of checkpoints after step 0; fewer where there are fewer steps.

    Example:
        >>> checkpoint_steps(1000, 7)
        [0, 1, 3, 10, 32, 100, 316, 1000]
    """
    count = min(count, total)
    points = count
    while len(steps := np.unique(np.geomspace(1, total, points).round().astype(int))) < count:
        points += 1
    # More points than asked for can turn up by rounding; the last step must stay.
    steps = steps[np.linspace(0, len(steps) - 1, count).round().astype(int)]
    steps[-1] = total
    return [0, *steps.tolist()]


@dataclasses.dataclass(frozen=True)
class Store:
    """The files of one run: a safetensors file and its JSON for every checkpoint."""

    folder: Path
    steps: tuple[int, ...]

    def path(self, step: int) -> Path:
        """Return the file of the checkpoint at a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def record(self, step: int) -> dict | None:
        """Return what was measured at a step, or None where that is not stored whole."""
        path = self.path(step)
        try:
            return fetch_info(path)["record"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError) as error:
            warn_damaged(path.with_suffix(".json"), error)
            with contextlib.suppress(OSError):  # so that it is told once
                path.with_suffix(".json").unlink()
            return None

    def has(self, step: int) -> bool:
        """Return whether a checkpoint is there; whether it is whole shows when it is loaded."""
        return self.path(step).is_file() and self.record(step) is not None

    def missing(self) -> list[int]:
        """Return the steps whose checkpoint is not there."""
        return [step for step in self.steps if not self.has(step)]

    def discard(self, step: int) -> None:
        """Delete a checkpoint."""
        _unlink(self.path(step), self.path(step).with_suffix(".json"))

    def resume_path(self, step: int) -> Path:
        """Return the file of the state from which training goes on after a step."""
        return self.folder / f"resume-{step:08d}.safetensors"

    def resume_paths(self) -> list[Path]:
        """Return the stored states, latest first."""
        return sorted(self.folder.glob(f"resume-{'[0-9]' * 8}.safetensors"), reverse=True)

    def discard_resume(self, keep: Path | None = None) -> None:
        """Delete the stored states, but for one, and what was half written by a killed run."""
        for path in self.resume_paths():
            if path != keep:
                _unlink(path, path.with_suffix(".json"))
        # Only one program trains a run, and it is not writing now.
        discard_parts(self.folder)


def _unlink(*paths: Path) -> None:
    """Delete files; a folder in the place of one is not ours."""
    for path in paths:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Turn the ways in which a full disk shows itself into one error."""
    try:
        yield
    except Exception as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and "os error 28" not in str(error) and "os error 27" not in str(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: a checkpoint could not be written to {folder} ({error}). Nothing "
            "half-written is left; free some space or point SYMGEN_CACHE to another disk, and "
            "run again: the training goes on from its last checkpoint",
        ) from error
