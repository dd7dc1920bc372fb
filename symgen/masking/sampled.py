"""The network's output on some of the masked states, where there are too many to run them all."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import inf
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.fingerprints import code_fingerprint
from symgen.masking.causal import LARGEST_OUTPUT, check_causal
from symgen.masking.functions import FunctionRunner, refuse_first_outputs, refuse_key
from symgen.masking.hooks import call, logits_of
from symgen.masking.mask_values import MaskValue
from symgen.masking.outputs import Value, Variables, _ids_and_mask, _labels, state_runner
from symgen.masking.spans import TextVariables
from symgen.masking.states import (
    Runner,
    check_all,
    check_outcomes,
    evaluating,
)
from symgen.memory import Batch
from symgen.storage import cached


def sampled_outputs(
    model: nn.Module | Callable[[Any], Any],
    x: Any,
    target: Tensor | np.ndarray | Sequence,
    variables: Variables,
    mask_value: Value | Callable[[nn.Module], MaskValue | None],
    states: Int[Tensor, " state"],
    batch_size: int | None = None,
    *,
    key: Mapping | None = None,
    progress: bool = True,
) -> Float[Tensor, "sample state"]:
    """Return v of every sample on some masked states (Section 2.1), the same of each.

    Args:
        model, x, target, variables, mask_value, batch_size, key, progress: see `masked_outputs`. A
            causal language model needs a mask value, and one target token a prompt; no prefix is
            shared between states.
        states: whole numbers, bit i set where variable i is present; the second is the unmasked
            one, as `symgen.split.design.draw_states` gives them.

    Returns:
        (sample, state) in float64 on the CPU.

    Raises:
        ValueError: see `masked_outputs`; and for a causal language model without a mask value.
        FloatingPointError: when the network's logits of a sample are NaN or infinite.
        RuntimeError: when the network gives another output the second time (a random layer).
    """

    def compute() -> dict[str, Tensor]:
        refuse_first_outputs(model, x)
        module = isinstance(model, nn.Module)
        with evaluating(model) if module else nullcontext(), torch.inference_mode():
            value = mask_value(model) if callable(mask_value) else mask_value
            runners, largest = _runners(model, x, target, variables, value)
            total = len(target) * len(states)
            with tqdm(total=total, unit="state", disable=not progress, leave=False) as bar:
                v = torch.cat([_run(runner, states, batch_size, bar) for runner in runners])
        return {"v": v.clamp(-largest, largest)}

    refuse_key(key, mask_value)
    numbered = isinstance(variables, Tensor | np.ndarray)
    tokens = hasattr(x, "keys") and isinstance(variables, TextVariables)
    counts = len(x["input_ids"] if tokens else x), len(target), len(variables)
    if len({*counts[: 2 if numbered and counts[2] == 1 else 3]}) > 1 or not counts[0]:
        raise ValueError(
            f"x has {counts[0]} samples, target {counts[1]} and variables {counts[2]}; they must "
            "be the same, one or more"
        )
    if key is None:
        return compute()["v"]
    everything = {
        "model": dict(key), "x": x, "target": target, "variables": variables, "states": states,
        "mask value": None if callable(mask_value) else mask_value,
        "code": code_fingerprint(sampled_outputs, *[type(variables)] * (not numbered)),
    }  # fmt: skip
    return cached("outputs", everything, compute)["v"]


def _runners(
    model: Any, x: Any, target: Any, variables: Variables, value: Value
) -> tuple[list[Runner], float]:
    """Return what runs the samples, of a language model one for each prompt; and the largest v."""
    if isinstance(variables, Tensor | np.ndarray) or not isinstance(model, nn.Module):
        return [FunctionRunner(model, x, _labels(target), variables, value)], inf
    if not isinstance(variables, TextVariables):
        return [state_runner(model, x, target, variables, value)], inf
    if value is None:
        raise ValueError(
            "where states are sampled the words of a prompt cannot be left out; give a mask value, "
            "such as symgen.masking.mask_values.mean_embedding(model)"
        )
    if not isinstance(target, Tensor) and isinstance(target[0], list | tuple):
        if any(len(tokens) != 1 for tokens in target):
            raise ValueError("where states are sampled, v is of one target token; give the first")
        target = [tokens[0] for tokens in target]
    if isinstance(x, list | tuple):
        prompts = [torch.as_tensor(ids).long() for ids in x]
    else:
        runner = state_runner(model, x, target, variables, value)
        if logits_of(call(model, runner.inputs_of(0, 1))).dim() != 3:
            return [runner], inf
        ids, mask = _ids_and_mask(x)
        prompts = [row[kept] for row, kept in zip(ids, mask, strict=True)]
    labels = _labels(target)
    check_causal(model, prompts[0])
    return [
        state_runner(model, ids[None], labels[i : i + 1], variables[i], value)
        for i, ids in enumerate(prompts)
    ], LARGEST_OUTPUT


def _run(
    runner: Runner, states: Int[Tensor, " state"], batch_size: int | None, bar: tqdm
) -> Float[Tensor, "sample state"]:
    """Return v of a runner's samples on all the states, sample by sample in batches of states."""
    check_outcomes(runner.plain(0), runner.target)
    batch = Batch(runner.batch_size if batch_size is None else batch_size)
    v = torch.empty(len(runner.target), len(states), dtype=torch.float64)
    for row in range(len(v)):
        done = 0
        while done < len(states):
            with batch.halving():
                part = runner.run(row, 1, states[done : done + batch.size])[0]
                v[row, done : done + len(part)] = part.cpu().double()
                done += len(part)
                bar.update(len(part))
        wrong = (~v[row].isfinite()).nonzero().flatten()
        if len(wrong):
            raise FloatingPointError(
                f"sample {row}: v is {float(v[row, wrong[0]])} in masked state "
                f"{int(states[wrong[0]])}, since the network's logits are NaN or infinite"
            )
        check_all(runner, row, v[row : row + 1, :2].to(runner.device))
    return v
