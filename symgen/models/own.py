"""Networks that are not trained here: checkpoints of the reader, and pretrained ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from symgen.data.splits import Part
from symgen.device import device
from symgen.models.architectures import Logits
from symgen.models.loop import recalibrated
from symgen.models.registry import build_network, identity, load_weights, on_device, untrained
from symgen.names import unknown

# Columns of the records besides the step; NaN if unknown.
RECORDED = ("epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy")


class Checkpoints:
    """The checkpoints of your own training, with the same members as a `TrainingRun`.

    Args:
        checkpoints: optimizer step to checkpoint, or a list of checkpoints, which get the steps 0,
            1, 2, ... A checkpoint is a file of weights (safetensors, or `torch.save` of a
            state_dict), or a function without arguments that returns the network.
        build: function without arguments that returns a network for the weights of the files.
        records: one row per checkpoint, with any of epoch, train_loss, test_loss (nats),
            train_accuracy and test_accuracy (shares).

    Attributes:
        steps: steps of the checkpoints, ascending.
        records: the table, with a column step; NaN if unknown.

    Raises:
        ValueError: for wrong steps, networks instead of functions, files without `build`, or
            records of other steps or columns.

    Example:
        >>> layers = [torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)]
        >>> run = Checkpoints({0: lambda: layers[0], 100: lambda: layers[1]})
        >>> run.steps, run.load(100) is layers[1]
        ([0, 100], True)
    """

    def __init__(
        self,
        checkpoints: Mapping[int, Any] | Sequence[Any],
        build: Callable[[], nn.Module] | None = None,
        records: pd.DataFrame | Sequence[Mapping[str, float]] | None = None,
    ):
        if not isinstance(checkpoints, Mapping):
            checkpoints = dict(enumerate(checkpoints))
        if not checkpoints or any(int(step) != step or step < 0 for step in checkpoints):
            raise ValueError(
                f"the steps are {[*checkpoints][:10]}; expected one or more whole numbers >= 0"
            )
        self._checkpoints = {int(step): checkpoints[step] for step in sorted(checkpoints)}
        self._build, self.steps = build, [*self._checkpoints]
        for one in self._checkpoints.values():
            if isinstance(one, nn.Module) or (not callable(one) and build is None):
                raise ValueError(
                    f"a checkpoint is {type(one).__name__}; expected a function without arguments "
                    "that returns the network, or a file of weights together with build"
                )
        self.records = self._recorded(pd.DataFrame({} if records is None else records))

    def _recorded(self, table: pd.DataFrame) -> pd.DataFrame:
        for name in table:
            if name not in ("step", *RECORDED):
                raise unknown("column of records", name, ("step", *RECORDED))
        if "step" not in table and len(table) in (0, len(self.steps)):
            table = table.assign(step=self.steps)
        if sorted(table.get("step", [])) != self.steps:
            raise ValueError(
                f"records have {len(table)} rows; expected one for each of the steps {self.steps}"
            )
        return table.reindex(columns=["step", *RECORDED]).sort_values("step", ignore_index=True)

    def load(self, step: int = -1) -> nn.Module:
        """Return the network after so many steps, in eval mode on `symgen.device.device()`.

        Args:
            step: one of `steps`, or -1 for the last.

        Raises:
            ValueError: for another step, or weights that cannot be read or do not fit.
        """
        step = self.steps[-1] if step == -1 else step
        if step not in self._checkpoints:
            raise ValueError(f"there is no checkpoint at step {step}; there are {self.steps}")
        source = self._checkpoints[step]
        # Building draws weights, which must not change other draws.
        with torch.random.fork_rng(devices=[]):
            model = source() if callable(source) else self._build()
        if not callable(source):
            load_weights(model, _weights(Path(source)), f"in {source}")
        return on_device(model, device())

    def key(self, step: int = -1) -> None:
        """Return None: results are not stored, because your code can change unseen."""
        return None


class PretrainedNetwork:
    """A pretrained image classifier as it was published, with the same members as `Checkpoints`.

    Args:
        name: id or folder; see `build_network`.
        untrained_on: samples for a copy with random weights. Its batch norms get the statistics of
            these samples, since without them its outputs would be constant.

    Attributes:
        steps: ``[0]``.
    """

    def __init__(self, name: str, untrained_on: Part | None = None):
        self.steps = [0]
        self._network = build_network(name)
        if untrained_on is not None:
            inner = self._network.model
            blank = untrained(type(inner), {"config": inner.config}, seed=0)
            self._network = recalibrated(Logits(blank), untrained_on, size=128)

    def load(self, step: int = -1) -> nn.Module:
        """Return the network in eval mode on `symgen.device.device()`."""
        # This layout halves the time of depthwise convolutions on a CPU.
        return on_device(self._network.to(memory_format=torch.channels_last), device())

    def key(self, step: int = -1) -> dict[str, str]:
        """Return the fingerprints of weights and settings."""
        return identity(self._network.model)


def _weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises almost anything
        cause = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} cannot be read as weights ({cause}); save them with "
            "torch.save(network.state_dict(), path), or give a function that returns the network"
        ) from error
