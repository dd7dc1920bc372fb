"""Masked states of any function: of tables, series, sounds, and networks of other libraries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import batch_budget, device_of, dtype_of
from symgen.masking.hooks import as_tensor, logits_of
from symgen.masking.mask_values import MaskValue
from symgen.masking.states import ALIVE, Runner, present_at
from symgen.masking.variables import ImageVariables

# States per call at most: for small functions, the call itself takes longest.
STATES = 1024


class FunctionRunner(Runner):
    """Masks inputs by state and calls a function on them.

    Args:
        function: from inputs (batch, ...) to logits; see `masked_outputs`. It gets arrays if x is
            an array, else tensors; modules always get tensors on their device. Every call gets
            fresh copies, so it may write into them.
        x: floating inputs (sample, ...).
        target: outcomes.
        variables: of the inputs; see `masked_outputs`.
        mask_value: a number, tensor or array that broadcasts to one sample.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        x: Any,
        target: Int[Tensor, " sample"],
        variables: Any,
        mask_value: Any,
    ):
        is_module = isinstance(function, nn.Module)
        self.function, self.as_array = function, isinstance(x, np.ndarray) and not is_module
        self.x = as_tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        if not isinstance(self.x, Tensor) or self.x.dim() < 2 or not self.x.is_floating_point():
            given = f"{getattr(x, 'dtype', '')} {tuple(getattr(x, 'shape', ()))}"
            raise ValueError(
                f"x is {type(x).__name__} {given}; expected floating inputs (sample, *shape) as a "
                "tensor or array. Of a DataFrame, pass x.to_numpy(float)"
            )
        if is_module and any(True for _ in function.parameters()):
            self.x = self.x.to(device_of(function), dtype_of(function))
        self.owners, self.n = _owners(variables, self.x)
        self.device, self.dtypes = self.x.device, (torch.float32,)
        self.target, self.value = target.to(self.device), _value(mask_value, self.x)
        self.is_bounded = True

    @property
    def batch_size(self) -> int:
        """Default number of states per call."""
        each = ALIVE * self.x[0].nbytes
        return max(1, min(STATES, batch_budget(self.device) // each))

    def plain(self, first: int, count: int = 1) -> Float[Tensor, "sample outcome"]:
        """Return the logits of some samples with nothing masked."""
        return self._call(self.x[first : first + count].clone())

    def logits(
        self, first: int, count: int, states: Int[Tensor, " state"]
    ) -> Float[Tensor, "row outcome"]:
        """Return the logits of some samples on masked states, sample by sample."""
        x, owners = (part[first : first + count] for part in (self.x, self.owners))
        keep = present_at(owners.flatten(1), states.to(owners.device), self.n)
        keep = keep.unflatten(-1, owners.shape[1:])
        return self._call(torch.where(keep, x[:, None], self.value).flatten(0, 1))

    def _call(self, x: Tensor) -> Float[Tensor, "sample outcome"]:
        """Return the function's logits; log odds of class 1 become the logits 0 and themselves."""
        output = self.function(x.numpy(force=True) if self.as_array else x)
        if isinstance(output, list | tuple) or hasattr(output, "__array__"):
            output = output if isinstance(output, Tensor) else as_tensor(_numbers(output))
        logits = logits_of(output, len(x))
        if logits.dim() == 2 and logits.shape[1] == 1:
            logits = logits[:, 0]
        if logits.dim() == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], 1)
        if logits.dim() != 2:
            raise ValueError(
                f"the function returns shape {tuple(logits.shape)} for {len(x)} inputs; expected "
                "logits (input, class), or log odds (input,) of class 1 of two"
            )
        return logits.to(self.device)


def _numbers(output: Any) -> np.ndarray:
    """Return a list, Series or array as an array of numbers."""
    array = np.asarray(output)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"the function returns {array.ravel()[:3].tolist()} ({array.dtype}); expected numbers: "
            "log odds or log probabilities, such as model.predict_log_proba returns"
        )
    return array


def _owners(variables: Any, x: Tensor) -> tuple[Int[Tensor, "sample *position"], int]:
    """Return the variable at each position, in the inputs' axes and n for none; and n."""
    if isinstance(variables, ImageVariables):
        owners, n = variables.owners(*x.shape[-2:]), variables.n
    else:
        owners = as_tensor(variables)
        if owners.is_floating_point() or owners.dtype is torch.bool or owners.dim() < 2:
            raise ValueError(
                f"variables are {owners.dtype} of shape {tuple(owners.shape)}; expected whole "
                "numbers (sample or 1, *position): the variable of each input position, -1 for "
                "none, such as torch.arange(features)[None] for a table"
            )
        n = int(owners.max()) + 1
        owners = owners.long().where(owners >= 0, n)
    shape = tuple(x.shape[1:])
    # Fewer axes than the inputs have are the last ones, as in all of torch.
    aligned = owners.reshape(len(owners), *[1] * (x.dim() - owners.dim()), *owners.shape[1:])
    axes = zip(aligned.shape[1:], shape, strict=False)
    if aligned.dim() != x.dim() or any(size not in (1, whole) for size, whole in axes):
        raise ValueError(
            f"variables have shape {tuple(owners.shape)}, but inputs {tuple(x.shape)}; expected "
            f"({len(x)} or 1, *position) with positions that broadcast to {shape}"
        )
    for i, row in enumerate(aligned.flatten(1)):
        missing = sorted({*range(n)} - set(row.tolist())) if n else [0]
        if missing:
            raise ValueError(
                f"sample {i} has no position of variable {missing[0]}; expected each of the "
                f"variables 0 to {max(n, 1) - 1} in every sample"
            )
    return aligned.expand(len(x), *aligned.shape[1:]).to(x.device), n


def _value(mask_value: Any, x: Tensor) -> Tensor:
    if isinstance(mask_value, MaskValue) and mask_value.layer is None:
        mask_value = mask_value.value
    try:
        value = as_tensor(mask_value).to(x)
        torch.broadcast_to(value, x.shape[1:])
    except (TypeError, RuntimeError, ValueError):
        raise ValueError(
            f"the mask value is {type(mask_value).__name__} of shape {np.shape(mask_value)}; "
            f"expected a number, tensor or array that broadcasts to one input, {tuple(x.shape[1:])}"
            ", such as x.mean(0)"
        ) from None
    return value
