"""Samples shared between the processes that a launcher such as torchrun has started."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from symgen.fingerprints import fingerprint, not_a_result

# All processes have come to where they share by then, but one share may take much longer than
# another, as where half of the outputs are stored: torch's own limit is no limit for that.
MEET, WORK = timedelta(minutes=30), timedelta(days=30)
# Of sampled interactions, what all samples have in common.
COMMON = ("index", "is_or", "held_out")


@not_a_result
def share(
    run: Callable[..., Any], model: Any, x: Any, y: Any, variables: Any, settings: Sequence
) -> Any:
    """Return the interactions of all samples, of which this process runs its share.

    Args:
        run: from x, y and variables of some samples, and whether to show progress, to theirs.
        model, x, y, variables: of all samples, the same in every process.
        settings: what else has to be the same.

    Raises:
        ValueError: in every process, where they were given different things.
        RuntimeError: where another process failed, which raises its own error, or did not come.
    """
    rank, processes = _process(model)
    if processes == 1:
        return run(x, y, variables, True)
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    # A few numbers of each tensor tell networks apart that were drawn without a seed.
    few = [w.detach().flatten()[:8].float() for w in weights if not w.is_meta]
    told = fingerprint([x, y, variables, list(settings), few])
    try:
        group = dist.new_group(backend="gloo", timeout=MEET)
        if len(set(_gather(told, group))) > 1:
            raise ValueError(
                "the processes were given different samples, variables, settings or weights; draw "
                "them with the same seed in each, as extract shares the samples between them"
            )
        group = dist.new_group(backend="gloo", timeout=WORK)
    except RuntimeError as error:
        raise RuntimeError(
            f"process {rank} of {processes} could not meet the others; every process that torchrun "
            "starts has to call extract, not the first alone"
        ) from error
    found, failure = None, None
    # The first is never without work, and the last has all that is left over.
    start, stop = (-(-len(y) * k // processes) for k in (rank, rank + 1))
    if start < len(y) or not rank:
        rows = slice(start, stop if stop < len(y) else None)
        numbered = isinstance(variables, Tensor | np.ndarray)
        own = variables if numbered and len(variables) == 1 else variables[rows]
        try:
            found = run(_cut(x, rows), y[rows], own, not rank)
        except Exception as error:
            error.add_note(f"process {rank} counts its samples from sample {start} of all")
            failure = error
    told = f"{type(failure).__name__}: {failure}" if failure else ""
    try:
        results = _gather((found, told), group)
    except RuntimeError as error:
        raise failure or RuntimeError(
            "a process ended before all had done their shares; look for what it said last, or "
            "whether memory ran out"
        ) from error
    if failure:
        raise failure
    for k, (_, told) in enumerate(results):
        if told:
            raise RuntimeError(f"process {k} of {processes} failed on its samples: {told}")
    return _joined([part for part, _ in results if part is not None])


def _process(model: Any) -> tuple[int, int]:
    """Return which process this is, and of how many that can run the network on their own."""
    if not dist.is_available():
        return 0, 1
    launched = {"RANK", "LOCAL_RANK", "MASTER_ADDR"} <= {*os.environ}
    if launched and int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available())  # as for a training
    ways = ("FSDP", "FullySharded", "DistributedData", "DeepSpeed", "DTensor")
    parts = (*model.modules(), *model.parameters()) if isinstance(model, nn.Module) else ()
    # Such a network runs in all processes at once, so that each runs it on all samples.
    together = any(type(part).__name__.startswith(ways) for part in parts)
    alone = together or not dist.is_initialized()
    return (0, 1) if alone else (dist.get_rank(), dist.get_world_size())


def _gather(mine: Any, group: Any) -> list[Any]:
    found = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(found, mine, group)
    finally:
        dist.destroy_process_group(group)
    return found


def _cut(x: Any, rows: slice) -> Any:
    if hasattr(x, "keys"):
        return {k: v[rows] if isinstance(v, Tensor) else v for k, v in x.items()}
    return x[rows]


def _joined(parts: list[Any]) -> Any:
    values = [{f.name: getattr(p, f.name) for f in dataclasses.fields(p)} for p in parts]
    each = [k for k, v in values[0].items() if isinstance(v, Tensor) and k not in COMMON]
    return dataclasses.replace(parts[0], **{k: torch.cat([v[k] for v in values]) for k in each})
