"""Causal language models on masked prompts: v of the next token, or of a whole continuation.

The masked states of a prompt run as a tree of shared prefixes. With the variables in text order,
the computation up to a token depends only on the variables before it. So the prompt is cut where
each variable begins. Every piece runs once for every choice made so far, on key-value caches, and
the batch doubles at each variable: n + 1 forward passes instead of 2^n passes over the prompt (more
only if memory splits a batch)::

    The earth            (1 row)
        |- revolves ...  (present)  |- sun ...
        |                           `- [masked] ...
        `- [masked] ...             |- sun ...
                                    `- [masked] ...

This needs attention that works with `transformers.DynamicCache`. Other models run in full on every
masked prompt, with a `PrefixTreeWarning`.
"""

import copy
import functools
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import device_of, fitting, is_out_of_memory
from symgen.masking.hooks import (
    ROUNDING,
    accepts,
    call,
    hooked,
    largest_output,
    last_logits_only,
    layer_output,
    logits_of,
    replace_once,
)
from symgen.masking.mask_values import MaskValue, check_tokens
from symgen.masking.states import (
    ALIVE,
    Runner,
    check_finite,
    check_outcomes,
    check_probabilities,
    log_odds,
    present_at,
    run_all,
)
from symgen.masking.variables import TextVariables

#: v is clipped to this size, beyond which a float32 probability is 0 or 1.
LARGEST_OUTPUT = 16.0
# Raised by a model whose cache is of another kind.
CACHE_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class SaturatedTargetWarning(UserWarning):
    """A target has a probability of 0 or 1 in some masked states; v is clipped there."""


class RepeatedStartWarning(UserWarning):
    """A prompt begins with two beginning-of-text tokens."""


class PrefixTreeWarning(UserWarning):
    """The model's cache cannot share prefixes; every masked prompt runs in full."""


def causal_outputs(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    targets: Sequence[Sequence[int]],
    variables: TextVariables,
    mask_value: MaskValue | None,
    states: Int[Tensor, " state"] | None,
    batch_size: int | None,
    progress: bool,
) -> Float[Tensor, "sample state"]:
    """Return v of the tokens after each prompt on its masked states (Eq. 1, App. F).

    v is computed in float32 from the logits of one position, and clipped to -16..16.

    Args:
        model: network in evaluation mode.
        prompts: token ids, not padded.
        targets: tokens that follow each prompt. For several tokens, v is the log odds of all,
            one after the other.
        variables: variables of the prompts.
        mask_value: value of masked variables; None removes their tokens, and the rest moves up.
        states: None for all, as a prefix tree.
        batch_size, progress: see `masked_outputs`.
    """
    start = getattr(getattr(model, "config", None), "bos_token_id", None)
    for ids in prompts:
        warn_of_repeated_start(ids, start)
    if not all(targets):
        raise ValueError("a target has no tokens; expected one or more")
    read = (torch.tensor(target[:-1], dtype=torch.long) for target in targets)
    check_tokens(model, [torch.cat(pair) for pair in zip(prompts, read, strict=True)])

    def run(rows: list[int], at: int) -> Tensor:
        """Return v of target token number `at`, after the target tokens before it."""
        before = [torch.tensor(targets[i][:at], dtype=torch.long) for i in rows]
        ids = [torch.cat([prompts[i], more]) for i, more in zip(rows, before, strict=True)]
        target = torch.tensor([targets[i][at] for i in rows])
        given = (model, ids, target, variables[rows])
        if mask_value is None:
            return _removed_outputs(*given, states, batch_size or 64)
        if states is None:
            return tree_outputs(*given, mask_value, batch_size, progress)
        return run_all(plain_runner(*given, mask_value), states, batch_size, progress)

    v = run(list(range(len(prompts))), 0)
    if (longest := max(map(len, targets))) > 1:
        log_p = nn.functional.logsigmoid(v)
        for at in range(1, longest):
            rows = [i for i, target in enumerate(targets) if len(target) > at]
            log_p[rows] += nn.functional.logsigmoid(run(rows, at))
        # log(1 - p) from log p, without loss if p is near 1.
        v = log_p - torch.log(-torch.expm1(log_p.clamp(max=-1e-12)))
    beyond = (v.abs() > LARGEST_OUTPUT).sum(1)
    for i in beyond.nonzero().flatten().tolist():
        warnings.warn(
            f"prompt {i}: in {beyond[i]} of {v.shape[1]} masked states the target has a "
            f"probability of 0 or 1 to seven digits; v is clipped to +-{LARGEST_OUTPUT:g} there. "
            "Choose a target that is less (un)likely",
            SaturatedTargetWarning,
            stacklevel=5,
        )
    return v.clamp(-LARGEST_OUTPUT, LARGEST_OUTPUT)


def _removed_outputs(
    model: nn.Module, prompts: Sequence[Tensor], target: Tensor, variables: TextVariables,
    states: Tensor | None, batch_size: int,
) -> Tensor:  # fmt: skip
    """Return v if the tokens of masked variables are removed and the rest moves up."""
    states = torch.arange(2**variables.n) if states is None else states
    v = torch.empty(len(prompts), len(states), dtype=torch.float64)
    option = last_logits_only(model)
    for row, ids in enumerate(prompts):
        owners = variables[row].owners(len(ids))
        keep = present_at(owners, states, variables.n)[0]
        lengths = keep.sum(1)
        if not lengths.all():
            raise ValueError(
                f"all tokens of prompt {row} are variables, so nothing is left without them; "
                "expected a token that stays, such as a start token"
            )
        # Prompts of the same length need no padding.
        for length in lengths.unique():
            for part in (lengths == length).nonzero().flatten().split(batch_size):
                rest = ids.expand(len(part), -1)[keep[part]].view(len(part), -1)
                output = model(rest.to(device_of(model)), **option)
                z = logits_of(output, len(part))[:, -1]
                check_outcomes(z, target[row : row + 1])
                v[row, part] = log_odds(z, target[row].expand(len(part))).cpu().double()
        check_finite(v[row : row + 1], row, states)
    return v


def warn_of_repeated_start(ids: Int[Tensor, " position"], start: int | list[int] | None) -> None:
    """Warn if a prompt begins with two beginning-of-text tokens.

    Args:
        ids: token ids of the prompt.
        start: the beginning-of-text token; None if the model has none.

    Warns:
        RepeatedStartWarning: if so.
    """
    if len(ids) > 1 and ids[0] == ids[1] == start:
        warnings.warn(
            f"a prompt begins with the beginning-of-text token {start} twice. A chat template "
            "writes it into the text, and the tokenizer adds another one: remove it from the text",
            RepeatedStartWarning,
            stacklevel=3,
        )


def check_causal(model: nn.Module, ids: Int[Tensor, " position"]) -> None:
    """Refuse a model whose output at a token depends on the tokens after it.

    Args:
        model: network in evaluation mode.
        ids: token ids of a prompt.

    Raises:
        ValueError: for such a model, or one without logits for every token.
    """
    pair = torch.stack([ids[:2], ids[:2]]).to(device_of(model))
    pair[1, -1] = 0 if ids[:2][-1] else 1
    output = call(model, {"input_ids": pair} if accepts(model, "input_ids") else pair)
    logits = getattr(output, "logits", output)
    is_causal = isinstance(logits, Tensor) and logits.dim() == 3
    if is_causal and len(ids) > 1:
        first, bound = logits[:, 0].float(), max(ROUNDING.get(logits.dtype, 0.0) / 10, 1e-5)
        is_causal = not (first[0] - first[1]).abs().max() > bound * first.abs().max()
    if not is_causal:
        raise ValueError(
            f"{type(model).__name__} is not a causal language model: it returns no logits for "
            "every token, or its output at a token changes with the token after it. Texts need a "
            "classifier with logits (sample, class), or a model that continues texts "
            "(AutoModelForCausalLM)"
        )
    check_probabilities(logits[:, -1], False)


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

    Every prompt is compared with plain forward passes; see `check_all`.

    Args:
        model: network in evaluation mode; other arguments as for `masked_outputs`.
        prompts: token ids, not padded.
    """
    runner = plain_runner(model, prompts, target, variables, mask_value)
    states, rows = torch.arange(2**runner.n), batch_size
    check_outcomes(runner.plain(0), runner.target)
    try:
        if rows is None:
            longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
            rows = PrefixTree(runner, longest).automatic_rows()
        tree = lambda index, rows: PrefixTree(runner, index).run(rows)  # noqa: E731
        return run_all(runner, states, rows, progress, tree)
    except CACHE_ERRORS as error:
        if is_out_of_memory(error):
            raise
        warnings.warn(
            f"{type(model).__name__} runs in full on every masked prompt, not as a prefix tree: "
            f"{type(error).__name__}: {error}",
            PrefixTreeWarning,
            stacklevel=5,
        )
    return run_all(runner, states, batch_size, progress)


def plain_runner(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    target: Int[Tensor, " sample"],
    variables: TextVariables,
    mask_value: MaskValue,
) -> Runner:
    """Return a runner that runs every masked prompt in full (arguments as above)."""
    owners = torch.full((len(prompts), max(map(len, prompts))), variables.n)
    for index, prompt in enumerate(prompts):
        owners[index, : len(prompt)] = variables[index].owners(len(prompt))[0]

    def inputs_of(first, count):
        ids = prompts[first][None].to(where)
        if not accepts(model, "input_ids"):
            return ids
        return {"input_ids": ids} | _options(model, use_cache=False)

    where, layer = device_of(model), mask_value.layer
    masking = owners[..., None], variables.n, mask_value.value
    return Runner(model, layer, inputs_of, *masking, target, is_causal=True)


class PrefixTree:
    """One prompt as a tree; a level is the text from one variable's first token to the next's.

    Args:
        runner: runs the same prompts in full.
        index: index of the prompt.
    """

    def __init__(self, runner: Runner, index: int):
        self.runner, self.model, self.n = runner, runner.model, runner.n
        inputs = runner.inputs_of(index, 1)
        self.ids = inputs["input_ids"] if isinstance(inputs, dict) else inputs
        self.owners = runner.owners[index : index + 1, : self.ids.shape[1], 0]
        self.target = runner.target[index : index + 1]
        self.embedded = layer_output(self.model, runner.layer, inputs)
        self.value = runner.value.to(self.embedded.dtype)
        self.embedding = self.model.get_submodule(runner.layer)
        self.options = _options(self.model, use_cache=True)
        # A variable of several tokens branches at its first one, wherever the others are.
        starts = [int((self.owners[0] == i).nonzero()[0]) for i in range(self.n)]
        self.order = sorted(range(self.n), key=lambda i: starts[i])
        self.bounds = [0, *sorted(starts), self.ids.shape[1]]

    def automatic_rows(self) -> int:
        """Return how many rows fit into the free memory, from one pass over the whole prompt."""
        cache = new_cache()
        inputs = {"input_ids": self.ids, "past_key_values": cache}
        largest = largest_output(self.model, inputs | self.options)
        kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        # The caches of all levels are held at once, several of them with all rows.
        return fitting(3 * kept + ALIVE * largest, self.ids.device)

    def run(self, rows: int) -> Float[Tensor, " state"]:
        """Return v on all states, with at most `rows` rows in a forward pass."""
        v = torch.empty(2**self.n, device=self.ids.device)
        root = torch.zeros(1, dtype=torch.long, device=self.ids.device)
        self._descend(new_cache(), root, 0, rows, v)
        return v.cpu()

    def _descend(self, cache: Any, states: Tensor, level: int, rows: int, v: Tensor) -> None:
        """Run one level for some rows, then the levels below it, in batches that fit."""
        logits = self._forward(cache, states, level)
        if level == self.n:
            v[states] = log_odds(logits, self.target.expand(len(states))).to(v)
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
        replaced = hooked(self.embedding, functools.partial(replace_once, [masked]))
        with replaced, suppress(Kept):
            output = self.model(input_ids=ids, past_key_values=cache, **self.options)
            return logits_of(output, len(states))[:, -1]
        return None


def _options(model: nn.Module, **options: Any) -> dict[str, Any]:
    """Return the options that the model takes, plus the option for last-position logits."""
    taken = {name: value for name, value in options.items() if accepts(model, name)}
    return taken | last_logits_only(model)


class Kept(Exception):
    """All keys and values of a level are in the cache; the rest of the forward is not needed."""


def new_cache() -> Any:
    """Return an empty cache of the tree's root."""
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.layer_class_to_replicate = _tree_layer()
    return cache


def fork(cache: Any, rows: slice, goes_on: bool) -> Any:
    """Return a cache of some rows that shares the memory of its parent.

    If deeper levels follow, the cache stops the forward pass once the last layer has its keys and
    values; at the last level nothing is kept.
    """
    child = copy.copy(cache)
    child.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in child.layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]
        layer.keeps, layer.stops = goes_on, goes_on and layer is child.layers[-1]
    return child


@functools.cache
def _tree_layer() -> type:
    """Return the class of cache layers that repeat their rows when they append, and share them."""
    from transformers.cache_utils import DynamicLayer

    class TreeLayer(DynamicLayer):
        keeps, stops = True, False

        def update(self, key_states, value_states, *args, **kwargs):
            both = key_states, value_states
            if self.is_initialized:
                repeats = len(key_states) // len(self.keys)
                past = (x.repeat_interleave(repeats, 0) for x in (self.keys, self.values))
                both = [torch.cat(pair, -2) for pair in zip(past, both, strict=True)]
            else:
                self.lazy_initialization(*both)
            if self.keeps:
                self.keys, self.values = both
            if self.stops:
                raise Kept
            return tuple(both)

    return TreeLayer
