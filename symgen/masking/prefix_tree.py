"""Causal language models on all masked states of a prompt, as a tree of shared prefixes.

With the variables in text order, what a model computes up to a token depends only on which of the
variables before it are present. So the prompt is cut where each variable begins; every piece runs
once for every choice made so far, on key-value caches, and the batch doubles at each variable:
n + 1 forward calls (more only where memory splits a batch) instead of 2^n passes over the prompt::

    The earth            (1 row)
        |- revolves ...  (present)  |- sun ...
        |                           `- [masked] ...
        `- [masked] ...             |- sun ...
                                    `- [masked] ...

A model is handled this way when its attention works with `transformers.DynamicCache`; others run
the plain way, with a `PrefixTreeWarning`.
"""

import functools
import inspect
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.masking.hooks import (
    Cut,
    check_value,
    hooked,
    largest_output,
    logits_of,
    only_logits_at,
    replace_once,
)
from symgen.masking.mask_values import MaskValue, word_embedding
from symgen.masking.spans import TextVariables
from symgen.masking.states import (
    ALIVE,
    TOLERANCE,
    StateRunner,
    check_all,
    check_outcomes,
    last,
    log_odds,
    present_at,
    run_all,
    widest,
)
from symgen.masking.tree_cache import Kept, fork, new_cache
from symgen.memory import Batch, fitting, is_out_of_memory

# What the code of a model raises when its cache is of another kind.
CACHE_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class PrefixTreeWarning(UserWarning):
    """The model's cache cannot share prefixes; every masked prompt runs in full."""


def tree_outputs(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    target: Int[Tensor, " sample"],
    variables: TextVariables,
    mask_value: MaskValue,
    batch_size: int | None,
    progress: bool,
) -> Float[Tensor, "sample state"]:
    """Return v of the next token on all masked states of each prompt.

    Args:
        model: in evaluation mode; other arguments as for `masked_outputs`.
        prompts: token ids, not padded.
    """
    runner = plain_runner(model, prompts, target, variables, mask_value)
    plain = runner.plain(0)
    check_outcomes(plain, target)
    if not _accepts(model, "past_key_values"):
        return _plain(runner, batch_size, progress, "its forward takes no past_key_values")
    v = torch.empty(len(prompts), 2**runner.n, device=runner.device, dtype=widest(runner.device))
    if batch_size is not None:
        batch = Batch(batch_size)
    try:
        if batch_size is None:
            longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
            batch = Batch(PrefixTree(runner, longest).automatic_rows())
        done = 0
        with tqdm(total=v.numel(), unit="state", disable=not progress, leave=False) as bar:
            while done < len(prompts):
                with batch.halving():
                    v[done] = PrefixTree(runner, done).run(batch.size)
                    if done == 0:
                        _compare(runner, v[0], plain, batch.size)
                    check_all(runner, done, v[done : done + 1])
                    done += 1
                    bar.update(v.shape[1])
    except CACHE_ERRORS as error:
        if is_out_of_memory(error):
            raise
        return _plain(runner, batch_size, progress, f"{type(error).__name__}: {error}")
    return v


def plain_runner(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    target: Int[Tensor, " sample"],
    variables: TextVariables,
    mask_value: MaskValue,
) -> StateRunner:
    """Return the plain way: every masked prompt runs in full (arguments as above)."""
    owners = torch.full((len(prompts), max(map(len, prompts))), variables.n)
    for index, prompt in enumerate(prompts):
        if variables.lengths and variables.lengths[index] != len(prompt):
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, but its variables were made for "
                f"{variables.lengths[index]}; encode it as the variables' tokenizer does"
            )
        owners[index, : len(prompt)] = variables[index].owners(len(prompt))[0]

    def inputs_of(first, count):
        ids = prompts[first][None].to(runner.device)
        if "input_ids" not in inspect.signature(model.forward).parameters:
            return ids
        return {"input_ids": ids} | _options(model, use_cache=False)

    way = Cut(mask_value.layer)
    runner = StateRunner(
        model, way, inputs_of, owners, variables.n, mask_value.value, target, 1, grouped=False
    )
    check_value(mask_value.value, way.below(model, inputs_of(0, 1))[0], mask_value.layer)
    return runner


class PrefixTree:
    """One prompt as a tree; a level is the text from one variable's first token to the next's.

    Args:
        runner: the plain way of the same prompts.
        index: of the prompt.
    """

    def __init__(self, runner: StateRunner, index: int):
        self.runner, self.model, self.n = runner, runner.model, runner.n
        self.ids = _ids(runner.inputs_of(index, 1))
        self.owners = runner.owners[index : index + 1, : self.ids.shape[1]]
        self.target = runner.target[index : index + 1]
        feature, _ = runner.way.below(self.model, runner.inputs_of(index, 1))
        self.embedded, self.value = feature, runner.value.to(feature.dtype)
        self.embedding = word_embedding(self.model)[1]
        self.options = _options(self.model, use_cache=True)
        # A variable of several tokens branches at its first one, wherever the others are.
        starts = [int((self.owners[0] == i).nonzero()[0]) for i in range(self.n)]
        self.order = sorted(range(self.n), key=lambda i: starts[i])
        self.bounds = [0, *sorted(starts), self.ids.shape[1]]

    @property
    def tokens(self) -> int:
        """Number of tokens that the model is evaluated on; 2^n times the prompt the plain way."""
        lengths = torch.tensor(self.bounds).diff().tolist()
        return sum(length * 2**level for level, length in enumerate(lengths))

    def automatic_rows(self) -> int:
        """Return how many rows the free memory holds, from one pass over the whole prompt."""
        cache = new_cache()
        inputs = {"input_ids": self.ids, "past_key_values": cache}
        largest = largest_output(self.model, inputs | self.options)
        kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        # The caches of the levels above the last are held at once, several of them of all rows.
        return fitting(3 * kept + ALIVE * largest, self.ids.device)

    def run(self, rows: int) -> Float[Tensor, " state"]:
        """Return v on all states, with at most `rows` rows in a forward call."""
        v = torch.empty(2**self.n, device=self.ids.device, dtype=widest(self.ids.device))
        root = torch.zeros(1, dtype=torch.long, device=self.ids.device)
        self._descend(new_cache(), root, 0, rows, v)
        return v

    def _descend(self, cache: Any, states: Tensor, level: int, rows: int, v: Tensor) -> None:
        """Run one level for some rows, then the levels below it, in batches that fit."""
        logits = self._forward(cache, states, level)
        if level == self.n:
            v[states] = log_odds(last(logits), self.target.expand(len(states))).to(v)
            return
        bit = 1 << self.order[level]
        choices = [[0, bit]] if rows > 1 else [[0], [bit]]
        for part in torch.arange(len(states), device=states.device).split(max(rows // 2, 1)):
            for choice in choices:
                rest = states[part][:, None] | torch.tensor(choice, device=states.device)
                child = fork(cache, slice(int(part[0]), int(part[-1]) + 1), level + 1 < self.n)
                self._descend(child, rest.flatten(), level + 1, rows, v)

    def _forward(self, cache: Any, states: Tensor, level: int) -> Tensor | None:
        span = slice(self.bounds[level], self.bounds[level + 1])
        if span.start == span.stop:  # The prompt begins with a variable.
            return None
        keep = present_at(self.owners[:, span], states, self.n)[0]
        masked = torch.where(keep[:, :, None], self.embedded[:, span], self.value)
        # Mixtures of experts take views of it, which the layout of one prompt does not allow.
        masked = masked.contiguous()
        ids = self.ids[:, span].expand(len(states), -1)
        held = {layer.get_seq_length() for layer in cache.layers} or {0}
        if held != {span.start}:
            raise RuntimeError(f"the cache holds {held} of {span.start} tokens")
        replaced = hooked(self.embedding, functools.partial(replace_once, [masked]))
        with replaced, suppress(Kept):
            output = self.model(input_ids=ids, past_key_values=cache, **self.options)
            return logits_of(output)
        return None


def _plain(runner: StateRunner, batch_size: int | None, progress: bool, reason: str) -> Tensor:
    warnings.warn(
        f"{type(runner.model).__name__} runs in full on every masked prompt, not as a prefix tree: "
        f"{reason}",
        PrefixTreeWarning,
        stacklevel=4,
    )
    return run_all(runner, batch_size, progress)


def _compare(runner: StateRunner, v: Tensor, logits: Tensor, rows: int) -> None:
    """Hold some states of the first prompt against the plain way, which gave its logits."""
    states = torch.tensor([0, sum(1 << i for i in range(0, runner.n, 2)), len(v) // 2])
    bound = TOLERANCE.get(logits.dtype, 1e-3) * (1 + float(logits.abs().max()))
    full = torch.cat([runner.run(0, 1, some)[0] for some in states.split(rows)])
    error = float((v[states.to(v.device)] - full).abs().max())
    if not error <= bound:
        raise RuntimeError(f"a prefix tree changes v by {error:.2g}, more than {bound:.2g}")


def _ids(inputs: Any) -> Tensor:
    return inputs["input_ids"] if isinstance(inputs, dict) else inputs


def _accepts(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _options(model: nn.Module, **wanted: Any) -> dict[str, Any]:
    """Return the wanted options that the model takes, and logits of the last position only."""
    options = {name: value for name, value in wanted.items() if _accepts(model, name)}
    return options | only_logits_at(model, 1)
