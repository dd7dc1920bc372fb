"""Key-value caches of a prefix tree, whose rows are shared with the levels above."""

import functools
from typing import Any

from jaxtyping import Shaped
from torch import Tensor


class Kept(Exception):
    """All keys and values of a level are in the cache; nothing else of it is used."""


def new_cache() -> Any:
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.layer_class_to_replicate = _tree_layer()
    return cache


def fork(cache: Any, rows: slice, goes_on: bool) -> Any:
    """Return a cache of some rows that shares the memory of the one it comes from.

    Where the tree goes on below it, it stops the model once its last layer has keys and values;
    where it does not, it keeps none.
    """
    child = new_cache()
    for layer in cache.layers:
        copy = type(layer)()
        copy.lazy_initialization(layer.keys, layer.values)
        copy.keys, copy.values = layer.keys[rows], layer.values[rows]
        copy.keeps, copy.stops = goes_on, goes_on and layer is cache.layers[-1]
        child.layers.append(copy)
    return child


@functools.cache
def _tree_layer() -> type:
    """Return a cache layer that repeats its rows while it appends to them, and shares them."""
    from transformers.cache_utils import DynamicLayer

    class TreeLayer(DynamicLayer):
        keeps, stops = True, False

        def update(self, key_states, value_states, *args, **kwargs):
            keys, values = key_states, value_states
            if self.is_initialized:
                keys, values = _append(self.keys, keys), _append(self.values, values)
            else:
                self.lazy_initialization(keys, values)
            if self.keeps:
                self.keys, self.values = keys, values
            if self.stops:
                raise Kept
            return keys, values

    return TreeLayer


def _append(
    past: Shaped[Tensor, "row head position size"], new: Shaped[Tensor, "more head added size"]
) -> Shaped[Tensor, "more head total size"]:
    """Repeat rows and append to each, in one copy and without touching what is shared."""
    rows, length = past.shape[0], past.shape[2]
    joined = new.new_empty((*new.shape[:2], length + new.shape[2], new.shape[3]))
    joined[:, :, :length].unflatten(0, (rows, -1)).copy_(past[:, None])
    joined[:, :, length:] = new
    return joined
