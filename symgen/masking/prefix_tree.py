"""v of a causal language model on all masked states of a prompt, as a tree of shared prefixes.

With the variables in text order, the computation up to a token depends only on the variables before
it. So the prompt is cut where each variable begins. Every piece runs once for every choice made so
far, on key-value caches, and the batch doubles at each variable: n + 1 forward passes instead of
2^n passes over the prompt (more only if memory splits a batch)::

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
from contextlib import suppress
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from symgen.device import fitting
from symgen.masking.checks import ALONE, few_states, largest_error
from symgen.masking.hooks import Network, largest_output, logits_of, replaced, token_ids
from symgen.masking.states import ALIVE, Masked, Prepared, log_odds, masked_logits, present_at
from symgen.masking.texts import cache_name, options_of

# Raised by a model whose cache is of another kind.
CACHE_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class PrefixTreeWarning(UserWarning):
    """The model's cache cannot share prefixes; every masked prompt runs in full."""


def tree_outputs(
    network: Network, masked: Masked, states: Int[Tensor, " state"], rows: int
) -> Float[Tensor, "sample state"]:
    """Return v of a prompt on all masked states; like `outputs`, but as a tree.

    Args:
        network, masked: as for `outputs`.
        states: all 2^n states.
        rows: most states per forward pass.

    Raises:
        RuntimeError: if v differs from that of the whole masked prompt; errors of `CACHE_ERRORS`
            if the model does not take the cache.
    """
    tree = PrefixTree(network, masked, rows)
    some = few_states(states, masked.n)[: min(rows, ALONE)]
    logits = masked_logits(network, masked, some)
    expected = log_odds(logits, masked.target.expand(len(some)))
    wrong = ~((tree.v[some] - expected).abs() <= largest_error(network, logits, expected))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise RuntimeError(
            f"v of masked state {int(some[at])} is {float(tree.v[some[at]]):.6g} with its cache, "
            f"but {float(expected[at]):.6g} without"
        )
    return tree.v[states][None]


def tree_rows(prepared: Prepared) -> int:
    """Return how many rows fit into the free memory, from one pass over the longest prompt."""
    model = prepared.network.model
    longest = int(cast(Tensor, prepared.lengths).argmax())
    cache = new_cache()
    inputs = {"input_ids": token_ids(prepared.rows(longest)), cache_name(model): cache}
    largest = largest_output(model, inputs | options_of(model, use_cache=True))
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    # The caches of all levels are held at once, several of them with all rows.
    return fitting(3 * kept + ALIVE * largest, prepared.device)


class PrefixTree:
    """One prompt as a tree; a level is the text from one variable's first token to the next's.

    Args:
        network: causal language model; its layer is the word embedding.
        masked: the prompt.
        rows: most rows in a forward pass.

    Attributes:
        v: (state,) v of all states.
    """

    def __init__(self, network: Network, masked: Masked, rows: int):
        self.network = network
        self.masked = masked
        self.rows = rows
        self.ids = token_ids(masked.inputs)
        self.owners = masked.owners[..., 0]
        self.options = options_of(network.model, use_cache=True)
        # A variable of several tokens branches at its first one, wherever the others are.
        starts = [int((self.owners[0] == i).nonzero()[0]) for i in range(masked.n)]
        self.order = sorted(range(masked.n), key=lambda i: starts[i])
        self.bounds = [0, *sorted(starts), self.ids.shape[1]]
        self.v = torch.empty(2**masked.n, dtype=torch.float64, device=self.ids.device)
        self._descend(new_cache(), torch.zeros_like(self.ids[0, :1]), 0)

    def _descend(self, cache: Any, states: Int[Tensor, " row"], level: int) -> None:
        """Run one level for some rows, then the levels below it, in batches that fit."""
        logits = self._forward(cache, states, level)
        if level == self.masked.n:
            target = self.masked.target.expand(len(states))
            self.v[states] = log_odds(cast(Tensor, logits), target).double()
            return
        bit = 1 << self.order[level]
        choices = [[0, bit]] if self.rows > 1 else [[0], [bit]]
        for part in torch.arange(len(states), device=states.device).split(max(self.rows // 2, 1)):
            for choice in choices:
                below = states[part][:, None] | torch.tensor(choice, device=states.device)
                rows = slice(int(part[0]), int(part[-1]) + 1)
                child = fork(cache, rows, level + 1 < self.masked.n)
                self._descend(child, below.flatten(), level + 1)

    def _forward(self, cache: Any, states: Int[Tensor, " row"], level: int) -> Tensor | None:
        """Return the last logits of a level; None if only its keys and values are needed."""
        span = slice(self.bounds[level], self.bounds[level + 1])
        if span.start == span.stop:  # The prompt begins with a variable.
            return None
        keep = present_at(self.owners[:, span], states, self.masked.n)[0]
        features = torch.where(keep[:, :, None], self.masked.features[:, span], self.masked.value)
        model = self.network.model
        layer = cast(str, self.network.layer)
        ids = self.ids[:, span].expand(len(states), -1)
        inputs = {"input_ids": ids, cache_name(model): cache}
        # Mixtures of experts take views of it, which the layout of one prompt does not allow.
        with replaced(model, layer, features.contiguous()), suppress(Kept):
            return logits_of(model(**inputs, **self.options), len(states))[:, -1]
        return None


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
        layer.keys = layer.keys[rows]
        layer.values = layer.values[rows]
        layer.keeps = goes_on
        layer.stops = goes_on and layer is child.layers[-1]
    return child


@functools.cache
def _tree_layer() -> type:
    """Return the class of cache layers that repeat their rows when they append, and share them."""
    from transformers.cache_utils import DynamicLayer

    class TreeLayer(DynamicLayer):
        keeps = True
        stops = False

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any):
            keys = key_states
            values = value_states
            if self.is_initialized:
                keys = self.longer(self.keys, keys)
                values = self.longer(self.values, values)
            else:
                self.lazy_initialization(keys, values)
            if self.keeps:
                self.keys = keys
                self.values = values
            if self.stops:
                raise Kept
            return keys, values

        @staticmethod
        def longer(past: Any, new: Tensor) -> Tensor:
            repeated = past.repeat_interleave(len(new) // len(past), 0)
            return torch.cat([repeated, new], -2)

    return TreeLayer
