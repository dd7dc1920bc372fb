"""The files of a training: checkpoints, and a state to resume from."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from symgen.models.registry import load_weights
from symgen.storage import DamagedFileWarning, read_info, read_tensors, write_tensors


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of one training: one safetensors file per checkpoint, and a state to resume from.

    Attributes:
        folder: folder that holds them.
        steps: steps of all checkpoints.
    """

    folder: Path
    steps: tuple[int, ...]

    def path(self, step: int) -> Path:
        """Return the file of a checkpoint."""
        return self.folder / f"step-{step:08d}.safetensors"

    def key(self, path: Path) -> str:
        """Return the identity of a file, which `write_tensors` stores in it."""
        return f"{self.folder.name}/{path.name}"

    def record(self, step: int) -> dict[str, float] | None:
        """Return the evaluation of a checkpoint, or None if its file is missing or damaged."""
        path = self.path(step)
        if not path.is_file():
            return None
        try:
            return read_info(path, self.key(path))["record"]
        except (OSError, KeyError, ValueError) as error:
            message = f"{error}; it is computed again"
            warnings.warn(message, DamagedFileWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def missing(self) -> list[int]:
        """Return the steps without a checkpoint."""
        return [step for step in self.steps if self.record(step) is None]

    def keep(self, step: int, model: nn.Module, record: dict[str, float]) -> None:
        """Store a checkpoint."""
        path = self.path(step)
        write_tensors(path, model.state_dict(), {"record": record}, self.key(path))

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Store the state after `step`, then delete earlier states."""
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in values.items() if v is not None}
        path = self.folder / f"resume-{step:08d}.safetensors"
        write_tensors(path, tensors, {"step": step}, self.key(path))
        self.discard_states(but=path)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the last stored state; return its step, or 0 if there is none."""
        first = min(self.missing())
        for path in sorted(self.folder.glob("resume-*.safetensors"), reverse=True):
            found = read_tensors(path, self.key(path))
            # Checkpoints before the state can only be computed from the start.
            if found is None or found[1]["step"] >= first:
                continue
            load_weights(model, _under("model.", found[0]), f"in {path}")
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for i, parameter in enumerate(parameters):
                for name, value in _under(f"optimizer.{i}.", found[0]).items():
                    if value.ndim:  # with the memory layout of the parameter
                        value = torch.empty_like(parameter).copy_(value)
                    optimizer.state[parameter][name] = value
            return found[1]["step"]
        return 0

    def discard_states(self, but: Path | None = None) -> None:
        """Delete stored states except one, and temporary files of a killed process."""
        for pattern in ("resume-*.safetensors", ".*.part"):
            for path in self.folder.glob(pattern):
                if path != but:
                    path.unlink(missing_ok=True)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


def chosen(step: int, steps: Sequence[int]) -> int:
    """Return a step with a checkpoint; the last one for -1.

    Raises:
        ValueError: for a step without checkpoint.
    """
    step = steps[-1] if step == -1 else step
    if step not in steps:
        raise ValueError(f"there is no checkpoint at step {step}; there are {[*steps]}")
    return step
