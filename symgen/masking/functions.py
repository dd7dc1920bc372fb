"""Masked states of any function: of tables, series, sounds, and networks of other libraries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from symgen.device import device_of, dtype_of
from symgen.masking.hooks import Network, as_tensor, describe, logits_of
from symgen.masking.mask_values import MaskValue
from symgen.masking.states import Prepared
from symgen.masking.variables import ImageVariables, check_axes

# States per call at most: for small functions, the call itself takes longest.
STATES = 1024


class Function(nn.Module):
    """A function as a network.

    Args:
        function: function from inputs (batch, ...) to logits; see `masked_outputs`.
        as_array: whether it takes arrays.

    Raises:
        ValueError: for a method of a classifier that returns other columns than its classes.
    """

    def __init__(self, function: Callable[[Any], Any], as_array: bool):
        super().__init__()
        self.function = function
        self.as_array = as_array
        owner = getattr(function, "__self__", None)
        classes = len(getattr(owner, "classes_", ()))
        if classes > 2 and getattr(owner, "decision_function_shape", "") == "ovo":
            raise ValueError(
                f"{type(owner).__name__}(decision_function_shape='ovo') returns a number per pair "
                f"of its {classes} classes; expected one per class: decision_function_shape='ovr'"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; log odds of class 1 become the logits 0 and themselves."""
        x = x.contiguous()  # as an array of the user's own would be
        output = self.function(x.numpy(force=True) if self.as_array else x)
        if isinstance(output, list | tuple) or (
            hasattr(output, "__array__") and not isinstance(output, Tensor)
        ):
            output = as_tensor(np.asarray(output))
        logits = logits_of(output, len(x))
        if logits.shape[1:] == (1,):
            logits = logits[:, 0]
        if logits.dim() == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], 1)
        return logits.to(x.device)


def prepare_function(
    function: Callable[[Any], Any],
    x: Any,
    target: Int[Tensor, " sample"],
    variables: Any,
    mask_value: Any,
) -> Prepared:
    """Return the samples of a function, or of a module whose inputs are masked.

    Args:
        function: it gets arrays if x is an array, else tensors; modules always get tensors on
            their device. Every call gets fresh copies, so it may write into them.
        x: floating inputs (sample, ...).
        target: outcomes.
        variables: variables of the inputs; see `masked_outputs`.
        mask_value: a number, tensor or array that broadcasts to one sample.
    """
    is_array = isinstance(x, np.ndarray)
    inputs = as_tensor(x) if is_array and x.dtype.kind == "f" else x
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.is_floating_point():
        raise ValueError(
            f"x is {describe(x)}; expected floating inputs (sample, *shape) as a tensor or array. "
            "Of a DataFrame, pass x.to_numpy(float)"
        )
    device = inputs.device
    is_module = isinstance(function, nn.Module)
    if is_module and [*function.parameters()]:
        device = device_of(function)
        inputs = inputs.to(dtype_of(function))
    if isinstance(mask_value, MaskValue):
        if mask_value.layer is not None:
            raise ValueError(
                f"the mask value is for layer {mask_value.layer!r}, but the variables are "
                "positions of the inputs; expected a number, tensor or array"
            )
        mask_value = mask_value.value
    owners, n = _owners(variables, inputs)
    return Prepared(
        Network(Function(function, is_array and not is_module), None),
        inputs,
        owners,
        as_tensor(mask_value).to(inputs.dtype),
        n,
        target,
        device,
        most=None if is_module else STATES,
    )


def _owners(variables: Any, x: Tensor) -> tuple[Int[Tensor, "sample *position"], int]:
    """Return the variable at each position, in the inputs' axes and n for none; and n."""
    if isinstance(variables, ImageVariables):
        check_axes(x.shape)
        owners = variables.owners(*x.shape[-2:])
        n = variables.n
    else:
        owners = as_tensor(variables)
        is_number = not (owners.is_floating_point() or owners.dtype is torch.bool)
        if not is_number or owners.dim() < 2 or owners.max() < 0:
            raise ValueError(
                f"variables are {describe(owners)}; expected whole numbers (sample or 1, "
                "*position): the variable of each input position, -1 for none, such as "
                "torch.arange(features)[None] for a table"
            )
        n = int(owners.max()) + 1
        owners = owners.long().where(owners >= 0, n)
    # Fewer axes than the inputs have are the last ones, as in all of torch.
    owners = owners.reshape(len(owners), *[1] * (x.dim() - owners.dim()), *owners.shape[1:])
    owners.expand(x.shape)  # refuses positions that the inputs do not have
    return owners.expand(len(x), *owners.shape[1:]), n
