"""Run a network on masked states in batches, and check the outputs."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from symgen.device import Batch, fitting, progress_bar, reproducible_gpu
from symgen.masking.hooks import (
    ROUNDING,
    Arguments,
    call,
    largest_output,
    layer_output,
    logits_above,
    logits_of,
)

# Errors of v are compared with this share of v[N] - v[0]: the noise that a split allows (A.2).
NOISE = 0.02
# How far the sum of rounded probabilities may be from 1.
SUMS = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
# Rows that are looked at before the masked states run, if so many fit into a batch.
ROWS = 8
# So many logits do not all lie between 0 and 1 by chance. Those of several inputs count as several
# if they differ by so much.
SEVERAL, SPREAD = 10, 0.01
# Activations alive at once, in units of the largest output of a layer.
ALIVE = 6
# Logits that are converted at once, so that a large vocabulary is never held twice.
AT_ONCE = 2**25


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
    v = []
    for rows, label in zip(logits.split(size), target.split(size), strict=True):
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        others = rows.scatter(1, label, -math.inf)
        v.append(rows.gather(1, label)[:, 0] - others.logsumexp(dim=1))
    return torch.cat(v)


class Runner:
    """Masks features by state, runs the part of a network above them, and computes v.

    Args:
        model: network in evaluation mode.
        layer: layer that is masked; None for the input itself.
        inputs_of: returns the inputs of samples ``first`` to ``first + count - 1``.
        owners: (sample, ...) variable of each position of the feature, n for none. It has all axes
            of the feature; along those of length 1 all values are masked alike.
        n: variables per sample.
        value: value of masked positions, broadcast to the feature of one sample.
        target: (sample,) outcomes.
        is_causal: whether logits of the last position count, and prompts run one at a time.
        whole_of: returns the same inputs, as they were given; they are not cut to any length.
        most: upper limit on states per pass; None for the limit that suits the device.
        is_bounded: whether it may return probabilities or sigmoids; triggers a warning.
        layout: memory format of masked features.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | None,
        inputs_of: Callable[[int, int], Arguments],
        owners: Int[Tensor, "sample *position"],
        n: int,
        value: Float[Tensor, "..."],
        target: Int[Tensor, " sample"],
        *,
        is_causal: bool = False,
        whole_of: Callable[[int, int], Arguments] | None = None,
        most: int | None = None,
        is_bounded: bool = False,
        layout: torch.memory_format = torch.preserve_format,
    ):
        self.model, self.layer, self.inputs_of, self.n = model, layer, inputs_of, n
        self.is_causal, self.whole_of, self.most = is_causal, whole_of or inputs_of, most
        self.is_bounded, self.layout = is_bounded, layout
        feature = layer_output(model, layer, inputs_of(0, 1))
        try:
            torch.broadcast_to(value, feature.shape[1:])
        except RuntimeError:
            raise ValueError(
                f"the mask value has shape {tuple(value.shape)}, but {layer or 'the input'} has "
                f"{tuple(feature.shape[1:])} for one sample; make it with this network, at this "
                "layer and input size"
            ) from None
        self.device = feature.device
        self.owners, self.target = owners.to(self.device), target.to(self.device)
        self.value = value.to(self.device)
        # Axes of positions come before those along which all values are masked alike.
        self._axes = sorted(range(1, feature.dim()), key=lambda axis: owners.shape[axis] == 1)
        self._below: tuple[Any, ...] | None = None

    @property
    def batch_size(self) -> int:
        """Default number of states per forward pass: a power of two."""
        largest = largest_output(self.model, self.inputs_of(0, 1))
        return fitting(ALIVE * largest, self.device, self.most)

    def plain(self, first: int, count: int = 1) -> Float[Tensor, "sample outcome"]:
        """Return the logits of some samples with nothing masked, by a plain forward pass."""
        with _Functions() as functions:
            output = call(self.model, self.whole_of(first, count))
        self.is_bounded |= bool(functions.names & {"sigmoid", "special_expit", "hardsigmoid"})
        return self._outcomes(logits_of(output, count))

    def run(
        self, first: int, count: int, states: Int[Tensor, " state"] | Int[Tensor, "sample state"]
    ) -> Float[Tensor, "sample state"]:
        """Return v of some samples on states, the same for all or one row per sample."""
        size = states.shape[-1]
        features, inputs = self._masked(first, count, states.to(self.device))
        output = logits_above(self.model, self.layer, features, inputs, size)
        target = self.target[first : first + count].repeat_interleave(size)
        return log_odds(self._outcomes(output), target).reshape(count, size)

    def _masked(self, first: int, count: int, states: Tensor) -> tuple[Tensor, Arguments]:
        """Return features masked by state, sample by sample, and the inputs.

        Masking is one gather from a table of masked and then of kept values, a row for every
        position: exact, and three times faster than `torch.where`.
        """
        if self._below is None or self._below[0] != (first, count):
            inputs = self.inputs_of(first, count)
            feature = layer_output(self.model, self.layer, inputs)
            # Texts are cut to the longest of these samples.
            owners = self.owners[first : first + count, : feature.shape[1]]
            both = torch.stack([self.value.to(feature.dtype).expand(feature.shape), feature])
            table = both.permute(0, 1, *(axis + 1 for axis in self._axes))
            table = table.reshape(2 * owners.numel(), -1)
            self._below = (first, count), feature.shape, owners.flatten(1), table, inputs
        _, shape, owners, table, inputs = self._below
        keep = present_at(owners, states, self.n)
        position = torch.arange(owners.numel(), device=self.device, dtype=torch.int32)
        row = position.view(count, 1, -1) + keep * position.numel()
        features = table.index_select(0, row.flatten())
        features = features.view(-1, *(shape[axis] for axis in self._axes))
        features = features.movedim(list(range(1, len(shape))), self._axes)
        return features.to(memory_format=self.layout), inputs

    def _outcomes(self, logits: Tensor) -> Tensor:
        """Return logits (row, outcome)."""
        if self.is_causal and logits.dim() == 3:
            return logits[:, -1]
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise ValueError(
                f"the network returns logits of shape {tuple(logits.shape)}; expected (sample, "
                "outcome) with two or more outcomes. Wrap it so that it returns them"
            )
        return logits


class _Functions(TorchFunctionMode):
    """Notes the names of the functions of torch that run."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(getattr(func, "__name__", "").strip("_"))
        return func(*args, **(kwargs or {}))


def present_at(
    owners: Int[Tensor, "sample position"],
    states: Int[Tensor, " state"] | Int[Tensor, "sample state"],
    n: int,
) -> Bool[Tensor, "sample state position"]:
    """Return which positions are not masked in each state, of all samples or of each."""
    bits = states[..., None] >> torch.arange(n, device=states.device) & 1
    present = nn.functional.pad(bits.bool(), (0, 1), value=True)
    if states.dim() == 1:
        return present.T[owners].movedim(-1, 1)
    return present.gather(-1, owners.long()[:, None].expand(-1, states.shape[1], -1))


def run_all(
    runner: Runner,
    states: Int[Tensor, " state"],
    batch_size: int | None,
    progress: bool,
    tree: Callable[[int, int], Tensor] | None = None,
) -> Float[Tensor, "sample state"]:
    """Return v of all samples on some states, in float64 on the CPU, checked.

    Args:
        runner: runner of the samples.
        states: masked states, including the fully masked state 0 and the unmasked one.
        batch_size, progress: see `masked_outputs`.
        tree: tree(sample, rows): v on all states, at most `rows` states per pass.
    """
    reproducible_gpu()
    samples, total = len(runner.target), len(states)
    batch = Batch(runner.batch_size if batch_size is None else batch_size)
    logits = runner.plain(0, 1 if runner.is_causal else min(samples, batch.size, ROWS))
    check_outcomes(logits, runner.target)
    if not runner.is_causal:  # `check_causal` has looked at those of language models.
        check_probabilities(logits, runner.is_bounded)
    v = torch.empty(samples, total, dtype=torch.float64)
    done = 0
    with progress_bar(total=v.numel(), unit="state", disable=not progress, leave=False) as bar:
        while done < v.numel():
            first, at = divmod(done, total)
            count, size = 1, total if tree else min(batch.size, total - at)
            if at == 0 and batch.size >= total and not runner.is_causal:
                count = min(batch.size // total, samples - first)
            with batch.halving():
                if tree:
                    part = tree(first, batch.size)
                else:
                    part = runner.run(first, count, states[at : at + size])
                v[first : first + count, at : at + size] = part.cpu()
                if at + size == total:
                    check_all(runner, first, v[first : first + count], states, batch.size)
                done += count * size
                bar.update(count * size)
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


def check_all(
    runner: Runner,
    first: int,
    v: Float[Tensor, "sample state"],
    states: Int[Tensor, " state"],
    batch_size: int,
) -> None:
    """Compare v with a plain forward pass, and with masked states in another batch.

    Differences up to the noise of a split, 0.02 * |v[N] - v[0]|, plus rounding are allowed.

    Raises:
        FloatingPointError: see `check_finite`.
        RuntimeError: if the difference is larger: the network is random, or its output for a
            sample depends on the rest of the batch.
    """
    check_finite(v, first, states)
    count = len(v)
    full, empty = (int((states == state).nonzero()[0]) for state in (2**runner.n - 1, 0))
    logits = runner.plain(first, count)
    target = runner.target[first : first + count]
    expected = log_odds(logits, target).cpu().double()
    size = logits.gather(1, target.long()[:, None]).abs().amax(1).maximum(logits.amax(1).abs())
    # v itself is computed in float32 or better, however small the logits are.
    exact = torch.finfo(torch.promote_types(logits.dtype, torch.float32)).eps
    bound = rounding(runner, logits) * size.cpu().double() + 8 * exact * (1 + v[:, full].abs())
    bound += NOISE * (v[:, full] - v[:, empty]).abs()
    # Repeated and out of order, so that no batch of different states is equal to this one.
    middle = (len(states) - 1) // 2
    at = torch.tensor([middle, empty, middle])[: max(1, batch_size // count)]
    again = runner.run(first, count, states[at]).cpu().double()
    others = [(2**runner.n - 1, v[:, full], expected, "a plain forward pass")]
    others += [(int(states[i]), v[:, i], again[:, k], "another batch") for k, i in enumerate(at)]
    for state, value, other, where in others:
        wrong = ~((value - other).abs() <= bound)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise RuntimeError(
                f"sample {first + row}: v of masked state {state} is {float(value[row]):.6g}, but "
                f"{where} gives {float(other[row]):.6g}. The network must be deterministic in "
                "evaluation mode (is dropout always on?) and treat the samples of a batch "
                "separately (no batch statistics)"
            )


def rounding(runner: Runner, logits: Tensor) -> float:
    """Return the largest rounding error of the precision in force, relative to the logits."""
    dtypes, kind = {p.dtype for p in runner.model.parameters()}, runner.device.type
    # A function of any other library may compute in float32.
    dtypes = (dtypes or {torch.float32}) | {logits.dtype}
    if torch.is_autocast_enabled(kind):
        dtypes.add(torch.get_autocast_dtype(kind))
    if kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
        dtypes.add(torch.float16)  # TF32 rounds to as many bits.
    return max(ROUNDING.get(dtype, 0.0) for dtype in dtypes)


def check_probabilities(logits: Float[Tensor, "sample outcome"], is_bounded: bool) -> None:
    """Refuse probabilities instead of logits: v would be a different number.

    Args:
        logits: logits of some samples.
        is_bounded: whether the network may compute sigmoids.

    Raises:
        ValueError: for rows of numbers from 0 to 1 that all sum to 1.

    Warns:
        UserWarning: for other numbers from 0 to 1, if the network may compute sigmoids, or if there
            are too many of them to be logits by chance.
    """
    if not ((logits >= 0) & (logits <= 1)).all():
        return
    if ((logits.float().sum(1) - 1).abs() < SUMS.get(logits.dtype, 1e-4)).all():
        raise ValueError(
            "the network returns probabilities: numbers from 0 to 1 that sum to 1 per input; "
            "expected the logits before its softmax, or log probabilities, such as "
            "model.predict_log_proba returns"
        )
    # An untrained network returns nearly the same for all inputs.
    spread = (logits.amax(0) - logits.amin(0)).amax()
    count = logits.numel() if spread > SPREAD else logits.shape[1]
    if is_bounded or (count >= SEVERAL and logits.any()):
        warnings.warn(
            f"the outputs for {len(logits)} inputs lie between 0 and 1. They are taken as logits. "
            "If they are probabilities of separate classes, pass log odds of one class instead: "
            "lambda x: logits(x)[:, 3], or scipy.special.logit(probability(x))",
            UserWarning,
            stacklevel=5,
        )


def check_outcomes(logits: Tensor, target: Tensor) -> None:
    """Refuse labels out of range, and logits of the first sample that are not finite.

    Raises:
        ValueError: for a label outside 0..outcomes-1.
        FloatingPointError: see `check_finite`.
    """
    wrong = ((target < 0) | (target >= logits.shape[1])).nonzero()
    if len(wrong):
        raise ValueError(
            f"the label of sample {int(wrong[0])} is {int(target[wrong[0]])}, but the network has "
            f"{logits.shape[1]} outcomes; expected 0..{logits.shape[1] - 1}"
        )
    check_finite(log_odds(logits[:1], target[:1])[:, None], 0)
