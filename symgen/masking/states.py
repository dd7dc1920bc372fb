"""Masked states: samples at the masked layer, and v of the network on any of their states."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symgen.device import Batch, progress_bar, reproducible_gpu
from symgen.masking.hooks import Arguments, Network

# Activations alive at once, in units of the largest output of a layer.
ALIVE = 6
# Logits that are converted at once, so that a large vocabulary is never held twice.
AT_ONCE = 2**25


@dataclasses.dataclass(frozen=True)
class Masked:
    """Some samples at the layer that is masked.

    Attributes:
        features: (sample, ...) output of the layer, nothing masked.
        owners: (sample, ...) variable of each position, n for none. It has all axes of the
            features; along those of length 1 all values are masked alike.
        value: value of masked positions, broadcast to the features of one sample.
        n: variables per sample.
        inputs: the network's inputs, for everything that passes the layer.
        target: (sample,) outcomes.
    """

    features: Float[Tensor, "sample ..."]
    owners: Int[Tensor, "sample ..."]
    value: Float[Tensor, "..."]
    n: int
    inputs: Arguments
    target: Int[Tensor, " sample"]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All samples of a network, before anything has run.

    Attributes:
        network, owners, value, n, target: as in `Masked`.
        inputs: all inputs: a tensor, or tensors by name.
        device: device of the network.
        lengths: (sample,) positions that are read, if padding is cut off.
        layout: memory format of the inputs.
        most: upper limit on states per pass; None for the limit that suits the device.
        removes: whether tokens of masked variables are removed, not replaced.
    """

    network: Network
    inputs: Arguments
    owners: Int[Tensor, "sample ..."]
    value: Float[Tensor, "..."]
    n: int
    target: Int[Tensor, " sample"]
    device: torch.device
    lengths: Int[Tensor, " sample"] | None = None
    layout: torch.memory_format = torch.preserve_format
    most: int | None = None
    removes: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the inputs are token ids."""
        return isinstance(self.inputs, dict) or not self.inputs.is_floating_point()

    def rows(self, first: int, count: int = 1) -> Arguments:
        """Return the inputs of samples ``first`` to ``first + count - 1`` on the device."""
        rows = slice(first, first + count)
        length = None if self.lengths is None else int(self.lengths[rows].max())

        def chosen(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.dim():
                return x
            x = x[rows] if length is None else x[rows, :length]
            return x.to(self.device, memory_format=self.layout)

        if isinstance(self.inputs, Tensor):
            return chosen(self.inputs)
        return {name: chosen(x) for name, x in self.inputs.items()}

    def masked(self, first: int, count: int = 1) -> Masked:
        """Return samples ``first`` to ``first + count - 1`` at the masked layer.

        Raises:
            ValueError: if the mask value does not fit the layer.
        """
        inputs = self.rows(first, count)
        features = self.network.features(inputs)
        layer = self.network.layer or "the input"
        shape = tuple(features.shape)
        if len(features) != count:
            raise ValueError(
                f"{layer} returns {shape} for {count} samples; expected the axis of samples first, "
                "as of networks with batch_first=True"
            )
        try:
            self.value.expand(shape[1:])
        except RuntimeError:
            raise ValueError(
                f"the mask value has shape {tuple(self.value.shape)}, but {layer} has {shape[1:]} "
                "for one sample; make it with this network, at this layer and input size"
            ) from None
        # Texts are cut to the longest of these samples.
        owners = self.owners[first : first + count, : features.shape[1]].to(features.device)
        target = self.target[first : first + count].to(features.device)
        return Masked(features, owners, self.value.to(features), self.n, inputs, target)


def outputs(
    network: Network,
    masked: Masked,
    states: Int[Tensor, " state"] | Int[Tensor, "sample state"],
) -> Float[Tensor, "sample state"]:
    """Return v of some samples on some masked states, in one forward pass; also with gradients.

    Args:
        network: network in evaluation mode, as `prepare` returns it.
        masked: the samples.
        states: masked states, the same for all samples or one row per sample.
    """
    logits = masked_logits(network, masked, states)
    target = masked.target.repeat_interleave(states.shape[-1])
    return log_odds(logits, target).view(len(masked.target), -1)


def masked_logits(network: Network, masked: Masked, states: Tensor) -> Float[Tensor, "row outcome"]:
    """Return the logits of some samples on masked states, sample by sample."""
    features = masked.features
    keep = present_at(masked.owners, states.to(features.device), masked.n)
    rows = torch.where(keep, features[:, None], masked.value).flatten(0, 1)
    layout = torch.contiguous_format
    if features.dim() == 4 and features.is_contiguous(memory_format=torch.channels_last):
        layout = torch.channels_last
    rows = rows.contiguous(memory_format=layout)
    return network.logits_above(rows, repeat(masked.inputs, states.shape[-1]))


def present_at(
    owners: Int[Tensor, "sample *position"],
    states: Int[Tensor, " state"] | Int[Tensor, "sample state"],
    n: int,
) -> Bool[Tensor, "sample state *position"]:
    """Return which positions are not masked in each state, of all samples or of each."""
    # Positions of no variable have the owner n, so bit n is always set.
    bits = (states | 1 << n).view(*states.shape, *[1] * (owners.dim() - 1))
    return (bits >> owners[:, None] & 1).bool()


def repeat(inputs: Arguments, states: int) -> Arguments:
    """Repeat every sample for each of its states, sample by sample."""
    if isinstance(inputs, dict):
        return {k: repeat(x, states) if isinstance(x, Tensor) else x for k, x in inputs.items()}
    return inputs.repeat_interleave(states, dim=0) if inputs.dim() else inputs


def log_odds(
    logits: Float[Tensor, "sample outcome"], target: Int[Tensor, " sample"]
) -> Float[Tensor, " sample"]:
    """Return v = log p / (1 - p) of the target outcome (Eq. 1), stable if p is near 0 or 1.

    It is the target's logit minus the logsumexp of all others, in float32 or better.

    Args:
        logits: logits of two or more outcomes, in any floating type.
        target: 0..outcomes-1.

    Example:
        >>> log_odds(torch.tensor([[3.0, 1.0], [0.0, 100.0]]), torch.tensor([0, 1])).tolist()
        [2.0, 100.0]
    """
    target = target.to(logits.device).long()[:, None]
    size = max(1, AT_ONCE // logits.shape[1])
    exact = torch.promote_types(logits.dtype, torch.float32)
    v = []
    for rows, label in zip(logits.split(size), target.split(size), strict=True):
        rows = rows.to(exact)
        others = rows.scatter(1, label, -math.inf)
        v.append(rows.gather(1, label)[:, 0] - others.logsumexp(dim=1))
    return torch.cat(v)


def run_all(
    prepared: Prepared,
    states: Int[Tensor, " state"],
    batch: Batch,
    progress: bool,
    compute: Callable[[Network, Masked, Tensor, int], Tensor] | None = None,
) -> Float[Tensor, "sample state"]:
    """Return v of all samples on some states, in float64 on the CPU.

    Args:
        prepared: the samples.
        states: masked states.
        batch: masked states per forward pass; halved if memory runs out.
        progress: see `masked_outputs`.
        compute: replaces `outputs`: takes all states at once, and the most rows per pass.

    Raises:
        FloatingPointError: see `check_finite`.
    """
    reproducible_gpu()
    network = prepared.network
    samples = len(prepared.target)
    v = torch.empty(samples, len(states), dtype=torch.float64)
    first = 0
    with progress_bar(total=samples, unit="sample", disable=not progress, leave=False) as bar:
        while first < samples:
            with batch.halving():
                count = 1
                if not network.is_causal:  # Prompts run one at a time.
                    count = max(1, min(batch.size // len(states), samples - first))
                masked = prepared.masked(first, count)
                if compute is not None:
                    part = compute(network, masked, states, batch.size)
                else:
                    some = states.split(max(1, batch.size // count))
                    part = torch.cat([outputs(network, masked, x) for x in some], 1)
                check_finite(part, first, states)
                v[first : first + count] = part.cpu()
                first += count
                bar.update(count)
    return v


def check_finite(
    v: Float[Tensor, "sample state"], first: int, states: Int[Tensor, " state"] | None = None
) -> None:
    """Refuse outputs that are NaN or infinite, which no split explains.

    Raises:
        FloatingPointError: with the first sample and state.
    """
    wrong = ~v.isfinite()
    if wrong.any():
        row, at = wrong.nonzero()[0].tolist()
        state = at if states is None else int(states[at])
        raise FloatingPointError(
            f"sample {first + row}: v is {float(v[row, at])} in masked state {state}, since the "
            "logits are NaN or infinite. Look for such numbers in the weights and in this input. "
            "In low precision, numbers may be too large. Probabilities of exactly 0 have no "
            "logarithm: smooth them, as in np.log(model.predict_proba(x) + 1e-3)"
        )
