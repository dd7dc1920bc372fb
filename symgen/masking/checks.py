"""Checks of a network on a few masked states, before all of them run."""

import dataclasses
import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import Batch, device_of, dtype_of, fitting
from symgen.masking.hooks import Network, largest_output, token_ids, with_ids
from symgen.masking.mask_values import vocabulary_size
from symgen.masking.states import (
    ALIVE,
    Masked,
    Prepared,
    check_finite,
    log_odds,
    masked_logits,
    outputs,
)

# Errors of v are compared with this share of v[N] - v[0]: the noise that a split allows (A.2).
NOISE = 0.02
# Largest rounding error of a network's outputs, relative to their size, with a margin.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Samples and rows that run in one batch, and states of each sample that also run alone.
SAMPLES, ROWS, ALONE = 4, 16, 3
# So many different logits, to two digits, do not all lie between 0 and 1 by chance.
SEVERAL = 10


def checked_batch(
    prepared: Prepared, states: Int[Tensor, " state"], batch_size: int | None
) -> Batch:
    """Return the number of states per forward pass, after a `check` of the network.

    Args:
        prepared: the samples.
        states: masked states that will run.
        batch_size: see `masked_outputs`.
    """
    if batch_size is None:
        largest = largest_output(prepared.network.model, prepared.rows(0))
        batch_size = fitting(ALIVE * largest, prepared.device, prepared.most)
    batch = Batch(batch_size)
    while True:
        with batch.halving():
            check(prepared, states, batch.size)
            return batch


def check(prepared: Prepared, states: Int[Tensor, " state"], rows: int) -> None:
    """Refuse a network whose v would be wrong, before the masked states run.

    Some states of some samples run in one batch. Each must have the same v alone, and the unmasked
    state that of a plain forward pass. Differences up to the noise of a split,
    0.02 * |v[N] - v[0]|, plus rounding are allowed.

    Args:
        prepared: the samples.
        states: masked states that will run.
        rows: masked states per forward pass.

    Raises:
        ValueError: for probabilities, and labels out of range.
        FloatingPointError: see `check_finite`.
        RuntimeError: if the network is random, or its output for a sample depends on the rest of
            the batch or on padding.
    """
    network = prepared.network
    samples = len(prepared.target)
    count = 1 if network.is_causal else max(1, min(SAMPLES, samples, rows // 2))
    lengths = None if network.is_causal else prepared.lengths
    first = 0
    if lengths is not None:
        # The shortest text has most padding.
        first = min(int(lengths.argmin()), samples - count)
    some = few_states(states, prepared.n)[: max(1, min(rows, ROWS) // count)]
    masked = prepared.masked(first, count)
    plain = network.logits(masked.inputs, count)
    check_labels(prepared.target, plain.shape[1])
    logits = masked_logits(network, masked, some)
    check_probabilities(torch.cat([plain, logits]))
    v = log_odds(logits, masked.target.repeat_interleave(len(some))).view(count, -1)
    check_finite(v, first, some)
    for i in range(count):
        one = prepared.masked(first + i)
        alone = [log_odds(network.logits(one.inputs, 1), one.target)]
        for state in some[1:ALONE]:
            alone.append(outputs(network, one, state[None])[0])
        bound = largest_error(network, logits, v[i])
        if lengths is not None:
            whole = dataclasses.replace(prepared, lengths=None).rows(first + i)
            padded = log_odds(network.logits(whole, 1), one.target)
            if not (padded - alone[0]).abs() <= bound:
                raise RuntimeError(
                    f"sample {first + i}: v is {float(padded):.6g} with its padding, but "
                    f"{float(alone[0]):.6g} without. {type(network.model).__name__} ignores the "
                    "attention mask; pass texts of one length, or each by itself"
                )
        for k, value in enumerate(alone):
            if not (v[i, k] - value).abs() <= bound:
                raise RuntimeError(
                    f"sample {first + i}: v of masked state {int(some[k])} is {float(v[i, k]):.6g} "
                    f"in a batch, but {float(value):.6g} alone. The network must be deterministic "
                    "in evaluation mode (is dropout always on?) and treat the samples of a batch "
                    "separately (no batch statistics)"
                )


def warn_rounding(model: Any) -> None:
    """Warn of a network in bfloat16 on a CPU. On a GPU large models often need it."""
    if (
        isinstance(model, nn.Module)
        and dtype_of(model) is torch.bfloat16
        and device_of(model).type == "cpu"
    ):
        warnings.warn(
            "the network runs in bfloat16, whose numbers have three digits. This can move v by "
            "more than the noise of a split, and effects by a tenth or more. Load it in float32: "
            'dtype="float32", or model.float()',
            UserWarning,
            stacklevel=3,
        )


def few_states(states: Int[Tensor, " state"], n: int) -> Int[Tensor, " some"]:
    """Return the unmasked and the fully masked state, and others from the middle on."""
    spread = torch.linspace(len(states) - 1, 0, ROWS).long().roll(ROWS // 2)
    return torch.cat([torch.tensor([2**n - 1, 0]), states[spread]])


def largest_error(
    network: Network, logits: Float[Tensor, "row outcome"], v: Float[Tensor, " state"]
) -> Tensor:
    """Return how much v may differ between two runs.

    Args:
        network: network that ran.
        logits: its logits.
        v: v of one sample on the unmasked, the fully masked and other states.
    """
    kind = logits.device.type
    # A function of any other library may compute in float32.
    dtypes = {p.dtype for p in network.model.parameters()} or {torch.float32}
    dtypes.add(logits.dtype)
    if torch.is_autocast_enabled(kind):
        dtypes.add(torch.get_autocast_dtype(kind))
    if kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
        dtypes.add(torch.float16)  # TF32 rounds to as many bits.
    rounding = max(ROUNDING.get(dtype, 0.0) for dtype in dtypes)
    # v itself is computed in float32 or better, however small the logits are.
    exact = 8 * torch.finfo(v.dtype).eps * (1 + v.abs().amax())
    return rounding * logits.abs().amax() + exact + NOISE * (v[:2].amax() - v[:2].amin())


def check_read_once(network: Network, masked: Masked) -> None:
    """Refuse a text network that reads token ids elsewhere than in the masked embedding.

    With all variables masked, other words in their places must not change v.

    Args:
        network: network whose masked layer is its word embedding.
        masked: one text.

    Raises:
        ValueError: if v changes.
    """
    layer = network.layer or ""
    ids = token_ids(masked.inputs)
    # No special tokens stand in the middle of a vocabulary.
    middle = vocabulary_size(network.model.get_submodule(layer)) // 2
    other = torch.where(ids == middle, middle - 1, middle)
    other = ids.where(masked.owners[..., 0] == masked.n, other)
    changed = dataclasses.replace(masked, inputs=with_ids(masked.inputs, other))
    nothing = torch.zeros(1, dtype=torch.long)
    v = float(outputs(network, masked, nothing))
    again = float(outputs(network, changed, nothing))
    if abs(v - again) > 1e-5 * (1 + abs(v)):
        raise ValueError(
            f"{type(network.model).__name__} reads token ids a second time, not only by the masked "
            f"embedding {layer!r}: v is {v:.6g} with all words masked, but {again:.6g} if other "
            "words are masked. Use a network with one word embedding, or remove words: a list of "
            "prompts, mask value None"
        )


def check_probabilities(logits: Float[Tensor, "sample outcome"]) -> None:
    """Refuse probabilities instead of logits: v would be a different number.

    Raises:
        ValueError: for rows of numbers from 0 to 1 that all sum to 1.

    Warns:
        UserWarning: for other numbers from 0 to 1, if there are too many of them to be logits by
            chance. An untrained network returns nearly the same for all inputs.
    """
    if not ((logits >= 0) & (logits <= 1)).all():
        return
    rounding = max(ROUNDING.get(logits.dtype, 0.0), 1e-4)
    if ((logits.float().sum(1) - 1).abs() < rounding).all():
        raise ValueError(
            "the network returns probabilities: numbers from 0 to 1 that sum to 1 per input; "
            "expected logits, or log probabilities as of model.predict_log_proba"
        )
    if len(logits.float().round(decimals=2).unique()) >= SEVERAL:
        warnings.warn(
            f"the outputs for {len(logits)} inputs lie between 0 and 1. They are taken as logits. "
            "If they are probabilities of separate classes, pass log odds of one class instead: "
            "lambda x: logits(x)[:, 3], or scipy.special.logit(probability(x))",
            UserWarning,
            stacklevel=5,
        )


def check_labels(target: Int[Tensor, " sample"], outcomes: int) -> None:
    """Refuse labels outside 0..outcomes-1.

    Raises:
        ValueError: with the first such sample.
    """
    wrong = ((target < 0) | (target >= outcomes)).nonzero()
    if len(wrong):
        raise ValueError(
            f"the label of sample {int(wrong[0])} is {int(target[wrong[0]])}, but the network has "
            f"{outcomes} outcomes; expected 0..{outcomes - 1}"
        )
