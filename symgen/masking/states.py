"""Run a network on masked states in batches, and see that what comes out is right."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.fingerprints import refusal
from symgen.masking.hooks import Arguments, Cut, call, largest_output, logits_of
from symgen.memory import Batch, device_of, dtype_of, fitting, reproducible_gpu

# Difference of v[N] from the plain forward that counts as another result, relative to 1 + |z|.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
# Activations alive at once, in units of the largest output of a layer.
ALIVE = 6


def log_odds(
    logits: Float[Tensor, "sample outcome"], target: Int[Tensor, " sample"]
) -> Float[Tensor, " sample"]:
    """Return v = log p / (1 - p) of the target outcome (Eq. 1), stable where p is near 0 or 1.

    It is the target's logit minus the logsumexp of all others, in float32 or better.

    Args:
        logits: of two or more outcomes, in any floating type.
        target: 0..outcomes-1.

    Example:
        >>> log_odds(torch.tensor([[3.0, 1.0], [0.0, 100.0]]), torch.tensor([0, 1])).tolist()
        [2.0, 100.0]
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    target = target.to(logits.device).long()[:, None]
    others = logits.scatter(1, target, -math.inf)
    return logits.gather(1, target)[:, 0] - others.logsumexp(dim=1)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a network in evaluation mode; afterwards every part is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@refusal
def refuse_changed_inputs(model: Any, x: Any, count: int = 1) -> Any:
    """Refuse a network or function that writes into what it is given: the samples themselves.

    Args:
        model: any.
        x: samples, of which it is given a copy of the first; of others than floating ones it is
            not looked whether the copy stays as it was.
        count: of the samples it is given.

    Returns:
        What it gives for them; None where it raises, as what runs next will tell.

    Raises:
        ValueError: where the copy is another one afterwards.
    """
    network = isinstance(model, nn.Module)
    array = isinstance(x, np.ndarray)
    floating = x.dtype.kind == "f" if array else isinstance(x, Tensor) and x.is_floating_point()
    if not (floating or (network and isinstance(x, Tensor | Mapping))) or not len(x):
        return None

    def copied(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x[:count].copy() if array else x
        first = x[:count].detach().clone()
        return first.to(*placed[: 1 + first.is_floating_point()]) if network else first

    placed = (device_of(model), dtype_of(model)) if network else ()
    given = {k: copied(v) for k, v in x.items()} if isinstance(x, Mapping) else copied(x)
    before = torch.as_tensor(given).clone() if floating else None
    found, held = None, evaluating(model) if network else contextlib.nullcontext()
    with contextlib.suppress(Exception), held, torch.inference_mode():
        found = model(**given) if isinstance(given, dict) else model(given)
    if floating and not torch.equal(torch.as_tensor(given).nan_to_num(), before.nan_to_num()):
        raise ValueError(
            f"the {'network' if network else 'function'} writes into the samples that it is given, "
            "such as by x -= mean or x.sub_(mean), so that they are others each time; write "
            "x = x - mean, or give lambda x: model(x.clone())"
        )
    return found


class Runner:
    """What `run_all` asks for: v of samples on states, and their logits with nothing masked.

    Attributes:
        n: variables of a sample.
        target: (sample,) outcome.
        device: where v is computed.
        grouped: whether inputs of several samples fit into one batch.
    """

    n: int
    target: Int[Tensor, " sample"]
    device: torch.device
    grouped: bool = True

    @property
    def batch_size(self) -> int:
        """How many states to run at once, where nobody says."""
        raise NotImplementedError

    def plain(self, first: int, count: int = 1) -> Float[Tensor, "sample outcome"]:
        """Return the logits of some samples, nothing masked, by a plain forward."""
        raise NotImplementedError

    def run(
        self, first: int, count: int, states: Int[Tensor, " state"]
    ) -> Float[Tensor, "sample state"]:
        """Return v of some samples on the same states."""
        raise NotImplementedError


class StateRunner(Runner):
    """Masks features by state and runs what lies above them.

    Args:
        model: in evaluation mode.
        way: how the network is cut at the masked layer.
        inputs_of: gives the inputs of samples ``first`` to ``first + count - 1``.
        owners: (sample, position...) variable of each position of the feature, n for none.
        n: variables of a sample.
        value: of masked positions, broadcast to one sample's feature.
        target: (sample,) outcome.
        channel: dimension of one sample's feature along which all values are masked alike.
        grouped: whether inputs of several samples fit into one batch.
    """

    def __init__(
        self,
        model: nn.Module,
        way: Cut,
        inputs_of: Callable[[int, int], Arguments],
        owners: Int[Tensor, "sample *position"],
        n: int,
        value: Float[Tensor, "..."],
        target: Int[Tensor, " sample"],
        channel: int,
        grouped: bool = True,
    ):
        self.model, self.way, self.inputs_of, self.n = model, way, inputs_of, n
        self.device = device_of(model)
        self.owners, self.target = owners.to(self.device), target.to(self.device)
        self.value, self.channel = value.to(self.device), channel
        self.grouped = grouped
        self._below: tuple[Any, Any] | None = None
        self._buffer: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """How many states to run at once, where nobody says."""
        return automatic_batch(self.model, self.inputs_of(0, 1))

    def plain(self, first: int, count: int = 1) -> Float[Tensor, "sample outcome"]:
        """Return the logits of some samples, nothing masked, by a plain forward."""
        return last(logits_of(call(self.model, self.inputs_of(first, count))))

    def run(
        self, first: int, count: int, states: Int[Tensor, " state"] | Int[Tensor, "sample state"]
    ) -> Float[Tensor, "sample state"]:
        """Return v of some samples on the same states, or each on its own."""
        table, shape, rest = self._prepared(first, count)
        size = states.shape[-1]
        owners = self.owners[first : first + count].flatten(1)[:, : len(table) // (2 * count)]
        keep = present_at(owners, states.to(self.device), self.n)
        own = torch.arange(owners.numel(), device=self.device, dtype=torch.int32)
        row = own.view(count, 1, -1) + keep * own.numel()
        features = self._masked((count * size, *shape), table, row.flatten())
        logits = last(self.way.above(self.model, features, rest, size))
        target = self.target[first : first + count].repeat_interleave(size)
        return log_odds(logits, target).reshape(count, size)

    def _prepared(self, first: int, count: int) -> tuple[Tensor, torch.Size, Arguments]:
        """Return a table of masked and then of kept values, a row for every position.

        Masking is then one gather of rows: exact, and three times faster than `torch.where`.
        """
        if self._below is None or self._below[0] != (first, count):
            feature, rest = self.way.below(self.model, self.inputs_of(first, count))
            masked = self.value.to(feature.dtype).expand(feature.shape)
            both = torch.stack([masked, feature]).movedim(2 + self.channel, -1)
            table = both.reshape(-1, both.shape[-1]).contiguous()
            self._below = (first, count), (table, feature.shape[1:], rest)
        return self._below[1]

    def _masked(self, shape: tuple[int, ...], table: Tensor, row: Tensor) -> Tensor:
        """Return features made of rows of the table, channels last for images.

        They lie in memory that is kept between batches, but where gradients are to flow: what is
        written into memory has none.
        """
        if torch.is_grad_enabled():
            positions = [size for i, size in enumerate(shape) if i != 1 + self.channel]
            return table.index_select(0, row).view(*positions, -1).movedim(-1, 1 + self.channel)
        if self._buffer is None or self._buffer.shape != shape:
            self._buffer = None
            layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
            self._buffer = torch.empty(
                shape, dtype=table.dtype, device=table.device, memory_format=layout
            )
        by_position = self._buffer.movedim(1 + self.channel, -1).view(-1, table.shape[1])
        torch.index_select(table, 0, row, out=by_position)
        return self._buffer


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


def last(logits: Tensor) -> Tensor:
    """Return the logits at the last position of a sequence, or logits that have no positions."""
    return logits[:, -1] if logits.dim() == 3 else logits


def run_all(runner: Runner, batch_size: int | None, progress: bool) -> Tensor:
    """Return v of all samples on all states, with the checks that `masked_outputs` promises."""
    reproducible_gpu()
    samples, states = len(runner.target), 2**runner.n
    check_outcomes(runner.plain(0), runner.target)
    batch = Batch(runner.batch_size if batch_size is None else batch_size)
    order = torch.arange(states)
    v = torch.empty(samples, states, device=runner.device, dtype=widest(runner.device))
    done = 0
    with tqdm(total=samples * states, unit="state", disable=not progress, leave=False) as bar:
        while done < samples * states:
            first, state = divmod(done, states)
            count, size = 1, min(batch.size, states - state)
            if state == 0 and batch.size >= states and runner.grouped:
                count = min(batch.size // states, samples - first)
            with batch.halving():
                part = runner.run(first, count, order[state : state + size])
                v[first : first + count, state : state + size] = part
                if state + size == states:
                    check_all(runner, first, v[first : first + count])
                done += count * size
                bar.update(count * size)
    return v


def check_finite(v: Float[Tensor, "sample state"], first: int) -> None:
    """Refuse outputs that are NaN or infinite, which no split explains.

    Raises:
        FloatingPointError: with the first sample and state.
    """
    wrong = ~v.isfinite()
    if wrong.any():
        row, state = wrong.nonzero()[0].tolist()
        where = "with nothing masked" if state == v.shape[1] - 1 else f"in masked state {state}"
        raise FloatingPointError(
            f"sample {first + row}: v is {float(v[row, state])} {where}, since the "
            "network's logits are NaN or infinite. Look for such numbers in its weights and in "
            "this input and, where it runs in a lower precision, for some too large for that"
        )


def check_all(runner: Runner, first: int, v: Float[Tensor, "sample state"]) -> None:
    """Hold v[N] of some samples against a plain forward, and look for what is not finite.

    Raises:
        FloatingPointError: see `check_finite`.
        RuntimeError: when they differ by more than rounding: the network is random, or it does
            not compute the same from its own masked layer.
    """
    check_finite(v, first)
    v_full = v[:, -1]
    logits = runner.plain(first, len(v_full))
    expected = log_odds(logits, runner.target[first : first + len(v_full)])
    bound = TOLERANCE.get(logits.dtype, 1e-3) * (1 + logits.abs().amax(dim=1).to(v_full))
    wrong = ~((v_full - expected).abs() <= bound)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise RuntimeError(
            f"sample {first + row}: v with nothing masked is {float(v_full[row]):.6g}, but a plain "
            f"forward gives {float(expected[row]):.6g}. The network must be deterministic in "
            "evaluation mode (is dropout always on?) and treat samples of a batch apart"
        )


def check_outcomes(logits: Tensor, target: Tensor) -> None:
    """Refuse logits of the first sample, or labels, that v cannot be computed from."""
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"the network returns logits of shape {tuple(logits.shape)} for one sample; expected "
            "(1, outcomes) with two or more outcomes. Wrap it, as the module's text shows"
        )
    if target.min() < 0 or target.max() >= logits.shape[1]:
        wrong = int(((target < 0) | (target >= logits.shape[1])).nonzero()[0])
        raise ValueError(
            f"the label of sample {wrong} is {int(target[wrong])}, but the network has "
            f"{logits.shape[1]} outcomes; labels must be in 0..{logits.shape[1] - 1}"
        )
    check_finite(log_odds(logits, target[:1])[:, None], 0)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def automatic_batch(model: nn.Module, inputs: Arguments) -> int:
    """Return how many states to run at once, a power of two.

    Args:
        model: in evaluation mode.
        inputs: of one sample.
    """
    device = device_of(model)
    return fitting(ALIVE * largest_output(model, inputs), device)
