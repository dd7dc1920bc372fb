"""Causal language models: v of the next token, or of a whole continuation, on masked prompts."""

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.device import device_of
from symgen.masking.hooks import ROUNDING, accepts, call
from symgen.masking.mask_values import MaskValue
from symgen.masking.prefix_tree import plain_runner, tree_outputs
from symgen.masking.states import run_all
from symgen.masking.variables import TextVariables

#: v is clipped to this size, beyond which a float32 probability is 0 or 1.
LARGEST_OUTPUT = 16.0


class SaturatedTargetWarning(UserWarning):
    """A target has a probability of 0 or 1 in some masked states; v is clipped there."""


class RepeatedStartWarning(UserWarning):
    """A prompt begins with two beginning-of-text tokens."""


def causal_outputs(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    targets: Sequence[Sequence[int]],
    variables: TextVariables,
    mask_value: MaskValue,
    states: Int[Tensor, " state"] | None,
    batch_size: int | None,
    progress: bool,
) -> Float[Tensor, "sample state"]:
    """Return v of the tokens after each prompt on its masked states (Eq. 1, App. F).

    v is computed in float32 from the logits of one position, and clipped to -16..16.

    Args:
        model: in evaluation mode.
        prompts: token ids, not padded.
        targets: tokens that follow each prompt. For several tokens, v is the log odds of all,
            one after the other.
        variables: of the prompts.
        mask_value: of masked variables.
        states: None for all, as a prefix tree.
        batch_size, progress: see `masked_outputs`.
    """
    start = getattr(getattr(model, "config", None), "bos_token_id", None)
    for ids in prompts:
        warn_of_repeated_start(ids, start)

    def run(rows: list[int], at: int) -> Tensor:
        """Return v of target token number `at`, after the target tokens before it."""
        before = [torch.tensor(targets[i][:at], dtype=torch.long) for i in rows]
        ids = [torch.cat([prompts[i], more]) for i, more in zip(rows, before, strict=True)]
        target = torch.tensor([targets[i][at] for i in rows])
        chosen = variables[rows]
        if at:  # The prompts are longer than when their variables were made.
            chosen = TextVariables(chosen.groups, chosen.words)
        given = (model, ids, target, chosen)
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


def warn_of_repeated_start(ids: Int[Tensor, " position"], start: int | list[int] | None) -> None:
    """Warn if a prompt begins with two beginning-of-text tokens.

    Args:
        ids: of the prompt.
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
        model: in evaluation mode.
        ids: of a prompt.

    Raises:
        ValueError: for such a model, or one without logits for every token.
    """
    pair = torch.stack([ids[:2], ids[:2]]).to(device_of(model))
    pair[1, -1] = 0 if ids[:2][-1] else 1
    output = call(model, {"input_ids": pair} if accepts(model, "input_ids") else pair)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", torch.empty(0))
    problem = ""
    if logits.dim() != 3:
        problem = "it returns no logits for every token"
    elif len(ids) > 1:
        first, bound = logits[:, 0].float(), ROUNDING.get(logits.dtype, 1e-4) / 10
        if (first[0] - first[1]).abs().max() > bound * first.abs().max():
            problem = "its output at a token changes with the token after it"
    if problem:
        raise ValueError(
            f"{type(model).__name__} is no causal language model: {problem}. Texts need a "
            "classifier with logits (sample, class), or a model that continues texts "
            "(AutoModelForCausalLM)"
        )
