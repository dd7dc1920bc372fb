"""Where a training keeps its checkpoints, and the state from which it goes on."""

import contextlib
import dataclasses
import errno
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from symgen.files import discard_parts
from symgen.models.registry import load_weights
from symgen.storage import fetch, fetch_info, store, warn_damaged


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

    def keep(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:  # fmt: skip
        """Store what it takes to go on after `step`, then drop the state before it."""
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in values.items() if v is not None}
        # A new name each time: a state that is being written never replaces the one before it.
        path = self.folder / f"resume-{step:08d}.safetensors"
        store(path, tensors, {"step": step, "scaler": scaler.state_dict()})
        self.discard_states(but=path)

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> int:
        """Load the last whole state that is stored; return its step, 0 if there is none."""
        first = min(self.missing())
        for path in self._states():
            found = fetch(path)
            # Checkpoints before the state can only be had by starting again.
            if found is None or found[1]["step"] >= first:
                continue
            weights: dict[str, Tensor] = {}
            state: dict[int, dict[str, Tensor]] = {}
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for key, value in found[0].items():
                kind, _, rest = key.partition(".")
                if kind == "model":
                    weights[rest] = value
                    continue
                i, _, name = rest.partition(".")
                if value.ndim:  # laid out in memory as the parameter is
                    value = torch.empty_like(parameters[int(i)]).copy_(value)
                state.setdefault(int(i), {})[name] = value
            load_weights(model, weights, f"in {path}")
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
            if found[1]["scaler"]:
                scaler.load_state_dict(found[1]["scaler"])
            return found[1]["step"]
        return 0

    def _states(self) -> list[Path]:
        """Return the stored states, latest first."""
        return sorted(self.folder.glob(f"resume-{'[0-9]' * 8}.safetensors"), reverse=True)

    def discard_states(self, but: Path | None = None) -> None:
        """Delete the stored states, but for one, and what was half written by a killed run."""
        for path in self._states():
            if path != but:
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
