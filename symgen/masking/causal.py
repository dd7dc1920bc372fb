"""Causal language models: v of the next token, or of a whole continuation, on masked prompts."""

import inspect
import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.masking.hooks import call, only_logits_at
from symgen.masking.mask_values import MaskValue
from symgen.masking.prefix_tree import tree_outputs
from symgen.masking.spans import TextVariables
from symgen.masking.states import check_finite, log_odds, present_at
from symgen.memory import Batch, device_of

#: Log odds beyond which a probability is 0 or 1 to seven digits; v is clipped there.
LARGEST_OUTPUT = 16.0


class SaturatedTargetWarning(UserWarning):
    """A model gives a target a probability of 0 or 1 in some masked states; v is clipped."""


def causal_outputs(
    model: nn.Module,
    prompts: Sequence[Tensor],
    targets: Sequence[Sequence[int]],
    variables: TextVariables,
    mask_value: MaskValue | None,
    batch_size: int | None,
    progress: bool,
) -> Float[Tensor, "sample state"]:
    """Return v of what follows each prompt on all its masked states (Eq. 1, App. F).

    v is computed in float32 from the logits, whatever type the model has, and clipped to
    -16..16, where a float32 probability is 0 or 1.

    Args:
        model: in evaluation mode.
        prompts: token ids, not padded.
        targets: tokens that follow; of several, v is of the sum of their log probabilities.
        variables: of the prompts.
        mask_value: None leaves the tokens of masked variables out, so that the rest moves up.
        batch_size, progress: see `masked_outputs`.
    """
    check_causal(model, prompts[0])

    def run(rows: list[int], at: int) -> Tensor:
        """Return v of the target's token number `at`, the tokens before it given."""
        given = [torch.tensor(targets[i][:at], dtype=torch.long) for i in rows]
        ids = [torch.cat([prompts[i], more]) for i, more in zip(rows, given, strict=True)]
        target = torch.tensor([targets[i][at] for i in rows])
        own = variables[rows]
        if at:  # longer than they were when their variables were made
            own = TextVariables(own.groups, own.words)
        if mask_value is None:
            return _removed_outputs(model, ids, target, own, batch_size or 64, progress)
        return tree_outputs(model, ids, target, own, mask_value, batch_size, progress)

    v = run(list(range(len(prompts))), 0).cpu().double()
    if (longest := max(map(len, targets))) > 1:
        log_p = nn.functional.logsigmoid(v)
        for at in range(1, longest):
            rows = [i for i, target in enumerate(targets) if len(target) > at]
            log_p[rows] += nn.functional.logsigmoid(run(rows, at).cpu().double())
        # log(1 - p) from log p, without loss where p is near 1.
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


def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Refuse a model whose output at a token depends on the tokens after it.

    Raises:
        ValueError: for such a model, or one without logits for every token.
    """
    pair = torch.stack([ids[:2], ids[:2]]).to(device_of(model))
    pair[1, -1] = ids[0] if len(ids) > 1 and ids[0] != ids[1] else ids[-1]
    named = "input_ids" in inspect.signature(model.forward).parameters
    output = call(model, {"input_ids": pair} if named else pair)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", torch.empty(0))
    told = f"{type(model).__name__} is no causal language model: "
    advice = "; load one that continues texts (AutoModelForCausalLM), such as stories260k or a GPT"
    if logits.dim() != 3:
        raise ValueError(f"{told}it gives no logits for every token{advice}")
    first = logits[:, 0].float()
    if len(ids) > 1 and (first[0] - first[1]).abs().max() > 1e-2 * (1 + first.abs().max()):
        raise ValueError(f"{told}its output at a token changes with the token after it{advice}")


def _removed_outputs(
    model: nn.Module, prompts: Sequence[Tensor], target: Tensor, variables: TextVariables,
    batch_size: int, progress: bool,
) -> Tensor:  # fmt: skip
    """Return v where the tokens of masked variables are left out and the rest moves up."""
    device, batch = device_of(model), Batch(batch_size)
    states = torch.arange(2**variables.n)
    v = torch.empty(len(prompts), len(states), dtype=torch.float64)
    with tqdm(total=v.numel(), disable=not progress, leave=False) as bar:
        for row, ids in enumerate(prompts):
            owners = variables[row].owners(len(ids))
            if (owners < variables.n).all():
                raise ValueError(
                    f"prompt {row}: with all variables removed nothing is left to continue; leave "
                    "a word out of the variables, or mask by an embedding"
                )
            # Of equal lengths, side by side, the same few positions are asked for.
            order = present_at(owners, states, variables.n)[0].sum(1).argsort(stable=True)
            done = 0
            while done < len(states):
                with batch.halving():
                    some = order[done : done + batch.size]
                    keep = present_at(owners, some, variables.n)[0]
                    length = keep.sum(1)
                    # What is kept moves to the left; what is right of it is never looked at.
                    front = (~keep).int().argsort(dim=1, stable=True)[:, : int(length.max())]
                    ends, end = (length - 1).unique(return_inverse=True)
                    kept = only_logits_at(model, ends)
                    logits = model(input_ids=ids[front].to(device), **kept).logits
                    end = end if kept else length - 1
                    last = logits[torch.arange(len(some)), end.to(logits.device)]
                    v[row, some] = log_odds(last, target[row].expand(len(some))).cpu().double()
                    done += len(some)
                    bar.update(len(some))
            check_finite(v[row : row + 1], row)
    return v
