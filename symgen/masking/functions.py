"""Masked states of any function: of tables, series, sounds, and networks of other libraries."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.fingerprints import refusal, same_numbers
from symgen.masking.hooks import logits_of
from symgen.masking.mask_values import MaskValue
from symgen.masking.patches import ImageVariables
from symgen.masking.states import ALIVE, Runner, log_odds, present_at, refuse_changed_inputs
from symgen.memory import batch_budget, device_of

# States at once, as far as memory goes: what a call of a small function costs is the call.
STATES = 1024
# Samples whose outputs tell logits from probabilities.
FIRST = 8


class FunctionRunner(Runner):
    """Masks inputs by state and calls a function on them; see `masked_outputs` for what it takes.

    v is computed on the device of the function where that is a module, else on that of its inputs.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        x: Any,
        target: Int[Tensor, " sample"],
        variables: Any,
        mask_value: Any,
    ):
        self.function, self.as_array = function, isinstance(x, np.ndarray)
        self.x = _inputs(x)
        self.owners, self.n = _owners(variables, self.x)
        module = isinstance(function, nn.Module)
        self.device = device_of(function) if module else self.x.device
        self.target, self.value = target.to(self.device), _value(mask_value, self.x)
        # Masked and unmasked, since a few log odds may well lie between 0 and 1.
        ends = self.x, torch.where(self.owners == self.n, self.x, self.value)
        check_no_probabilities(torch.cat([self._outputs(x) for x in ends]))

    @property
    def batch_size(self) -> int:
        """How many states to run at once, where nobody says."""
        each = ALIVE * self.x[0].nbytes
        return max(1, min(STATES, batch_budget(self.device) // each))

    def plain(self, first: int, count: int = 1) -> Float[Tensor, "sample outcome"]:
        """Return the logits of some samples, nothing masked."""
        return self._logits(self.x[first : first + count])

    def run(
        self, first: int, count: int, states: Int[Tensor, " state"]
    ) -> Float[Tensor, "sample state"]:
        """Return v of some samples on the same states."""
        rows = slice(first, first + count)
        x, owners = self.x[rows], self.owners[rows]
        keep = present_at(owners.flatten(1), states.to(owners.device), self.n)
        keep = keep.unflatten(-1, owners.shape[1:])
        masked = torch.where(keep, x[:, None], self.value).flatten(0, 1)
        target = self.target[rows].repeat_interleave(len(states))
        return log_odds(self._logits(masked), target).reshape(count, len(states))

    def _logits(self, x: Tensor) -> Float[Tensor, "sample outcome"]:
        """Return logits; log odds of class 1 stand for the logits 0 and themselves."""
        found = self._outputs(x)
        return found if found.dim() == 2 else torch.stack([torch.zeros_like(found), found], 1)

    def _outputs(self, x: Tensor) -> Tensor:
        """Return what the function gives for some inputs, on the device of v.

        Raises:
            ValueError: when it does not return one row, or one number, for each input.
        """
        given = x.cpu().numpy() if self.as_array else x.to(self.device)
        found = self.function(given)
        _refuse_words(found)
        logits = (
            torch.as_tensor(found)
            if isinstance(found, np.ndarray | np.generic)
            else logits_of(found)
        )
        if logits.dim() == 2 and logits.shape[1] == 1:
            logits = logits[:, 0]
        if logits.dim() not in (1, 2) or len(logits) != len(x) or not logits.is_floating_point():
            raise ValueError(
                f"the function returns {logits.dtype} of shape {tuple(logits.shape)} for "
                f"{len(x)} inputs; expected floating logits ({len(x)}, class), or the log odds "
                f"({len(x)},) or ({len(x)}, 1) of class 1 of two"
            )
        return logits.to(self.device)


@same_numbers
def _only_read(take: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Have arrays that may not be written to, as pandas gives them, taken without a warning."""

    @functools.wraps(take)
    def taken(x: Any) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return take(x)

    return taken


@_only_read
def _inputs(x: Any) -> Tensor:
    inputs = torch.as_tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.is_floating_point():
        shape = f" of {x.dtype}, shape {tuple(x.shape)}" if hasattr(x, "dtype") else ""
        raise ValueError(
            f"x is {type(x).__name__}{shape}; a function takes floating inputs (sample, *shape), "
            "a tensor or an array: what it is given comes in the same form"
        )
    return inputs


def _owners(variables: Any, x: Tensor) -> tuple[Int[Tensor, "sample *position"], int]:
    """Return the variable at each position of the inputs, n for none, with their axes; and n."""
    if isinstance(variables, ImageVariables):
        found, n = variables.owners(*x.shape[-2:]), variables.n
    else:
        found = torch.as_tensor(variables)
        if found.is_floating_point() or found.dtype is torch.bool or found.dim() < 2:
            raise ValueError(
                f"variables are {found.dtype} of shape {tuple(found.shape)}; expected whole "
                "numbers (sample or 1, *position): the variable of each input position, -1 for "
                "none, such as torch.arange(features)[None] for a table"
            )
        n = int(found.max()) + 1
        found = found.long().where(found >= 0, n)
    shape = tuple(x.shape[1:])
    # Fewer axes than the inputs have are the last ones, as in all of torch.
    lined = found.reshape(len(found), *[1] * (len(shape) + 1 - found.dim()), *found.shape[1:])
    axes = zip(lined.shape[1:], shape, strict=False)
    if (
        lined.dim() != x.dim() or any(size not in (1, wanted) for size, wanted in axes)
        or len(found) not in (1, len(x))
    ):  # fmt: skip
        raise ValueError(
            f"variables have shape {tuple(found.shape)}, but inputs {tuple(x.shape)}; expected "
            f"({len(x)} or 1, *position) with positions that broadcast to {shape}"
        )
    for i, row in enumerate(lined.flatten(1)):
        missing = sorted({*range(n)} - set(row.tolist()))
        if missing or not n:
            raise ValueError(
                f"sample {i} has no position of variable {missing[0] if missing else 0}; expected "
                f"each of the variables 0 to {max(n, 1) - 1} in every sample"
            )
    return lined.expand(len(x), *lined.shape[1:]).to(x.device), n


def _value(mask_value: Any, x: Tensor) -> Tensor:
    if isinstance(mask_value, MaskValue) and mask_value.layer is None:
        mask_value = mask_value.value
    if not isinstance(mask_value, Tensor | np.ndarray | np.generic | float | int):
        raise ValueError(
            f"the mask value is {mask_value!r:.200}; where inputs are masked, expected a number, "
            "tensor or array that broadcasts to one of them, such as x.mean(0)"
        )
    value = torch.as_tensor(mask_value).to(x)
    try:
        torch.broadcast_to(value, x.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"the mask value has shape {tuple(value.shape)}, but inputs {tuple(x.shape[1:])} a "
            "sample; expected a number or what broadcasts to that, such as x.mean(0)"
        ) from None
    return value


@refusal
def _warn_of_sigmoids(rows: Tensor) -> None:
    """Warn of several numbers between 0 and 1 for each input that do not sum to 1."""
    # The logits of one input may well lie there.
    several = rows.dim() == 2 and len(rows) > 1 and bool(((rows > 0) & (rows < 1)).all())
    if several and bool(((rows.sum(1) - 1).abs() >= 1e-4).any()):
        warnings.warn(
            f"the function returns {rows.shape[1]} numbers between 0 and 1 for each input, which "
            "are taken as logits of classes that exclude each other; of a sigmoid for each class, "
            "pass what goes into it, and one class alone: lambda x: logits(x)[:, 3]",
            stacklevel=3,
        )


@refusal
def refuse_key(key: Any, mask_value: Any = None) -> None:
    """Refuse a key under which outputs of something else could be found.

    Args:
        key: of outputs, if they are to be stored.
        mask_value: a function is not looked into: what it makes may hang on anything.
    """
    if key is not None and not isinstance(key, Mapping):
        raise ValueError(
            f"key is {key!r:.50}; expected a mapping that identifies the network, such as "
            '{"network": "mine", "step": 100}'
        )
    if key is not None and callable(mask_value) and not {"masking", "masked by"} & key.keys():
        raise ValueError(
            "the mask value is a function, and outputs of any other would be found under this key: "
            'make it first, mask_value(model), or tell them apart by key={..., "masking": "mean"}'
        )


@refusal
def refuse_first_outputs(model: Any, x: Any) -> None:
    """Refuse what writes into its samples, and networks of probabilities or no numbers.

    Args:
        model: any; what a function returns is looked at by its runner.
        x: samples, of which the first are tried; see `refuse_changed_inputs`.

    Raises:
        ValueError: also for rows of numbers from 0 to 1 that all sum to 1.
        FloatingPointError: for what is NaN or infinite.

    Warns:
        UserWarning: where it has sigmoids, and all is between 0 and 1.
    """
    network, found = isinstance(model, nn.Module), torch.zeros(0)
    gave = refuse_changed_inputs(model, x, FIRST if network else 1)
    # Whatever else is amiss is told by what runs next.
    with contextlib.suppress(Exception):
        # Of an array the runner sees masked ones, too.
        if network and not isinstance(x, np.ndarray):
            found = logits_of(gave)
    if found.dim() != 2 or found.shape[1] < 2:
        return
    if len(wrong := (~found.isfinite().all(1)).nonzero()):
        raise FloatingPointError(
            f"sample {int(wrong[0])}: the network's logits are NaN or infinite with nothing "
            "masked; look for such numbers in its weights and in this input and, where it runs in "
            "a lower precision, for some too large for that"
        )
    rows = found.double()
    inside = bool(((rows >= 0) & (rows <= 1)).all())
    if inside and bool(((rows.sum(1) - 1).abs() < 1e-4).all()):
        raise ValueError(
            "the network returns probabilities: numbers from 0 to 1 that sum to 1 for every "
            "sample; expected logits, which go into its softmax, or log probabilities"
        )
    # Small logits of an untrained network may all lie there, too.
    if any(isinstance(layer, nn.Sigmoid) for layer in model.modules()):
        _warn_of_sigmoids(rows)


@refusal
def _refuse_words(found: Any) -> None:
    if isinstance(found, np.ndarray | list) and np.asarray(found).dtype.kind in "OUS":
        some = ", ".join(map(repr, np.asarray(found).ravel()[:3].tolist()))
        raise ValueError(
            f"the function returns {some}; expected numbers, log odds or log probabilities, such "
            "as model.predict_log_proba gives"
        )


def check_no_probabilities(found: Tensor) -> None:
    """Refuse probabilities where logits are asked for: v of them would be another number.

    One number for each input may be meant as log odds; where none lies outside [0, 1], it is asked.

    Args:
        found: what the function gives, for every sample unmasked and wholly masked.

    Raises:
        ValueError: for rows of numbers from 0 to 1 that all sum to 1.
    """
    rows = found.double()
    if bool(((rows < 0) | (rows > 1)).any()):
        return
    _warn_of_sigmoids(rows)
    if rows.dim() == 1:
        warnings.warn(
            f"the function returns one number from 0 to 1 for each of {len(rows)} inputs, which is "
            "taken as log odds of class 1; of probabilities, pass log odds: "
            "lambda x: scipy.special.logit(function(x))",
            stacklevel=2,
        )
    elif bool(((rows.sum(1) - 1).abs() < 1e-4).all()):
        raise ValueError(
            "the function returns probabilities: numbers from 0 to 1 that sum to 1 for every "
            "input; expected logits or log probabilities, such as model.predict_log_proba"
        )
