"""Causal language models on masked prompts: v of the next token, or of a whole continuation."""

import warnings
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from symgen.device import device_of
from symgen.masking.checks import ROUNDING
from symgen.masking.hooks import Network, accepts, call, token_ids, with_ids
from symgen.masking.mask_values import MaskValue, word_embedding
from symgen.masking.states import Masked, Prepared, log_odds, present_at
from symgen.masking.texts import check_tokens, options_of
from symgen.masking.variables import TextVariables


class RepeatedStartWarning(UserWarning):
    """A prompt begins with two beginning-of-text tokens."""


def causal_outputs(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    targets: Sequence[Sequence[int]],
    variables: TextVariables,
    mask_value: MaskValue | None,
    run: Callable[[Prepared], Float[Tensor, "sample state"]],
) -> Float[Tensor, "sample state"]:
    """Return v of the tokens after each prompt on its masked states (Eq. 1, App. F).

    Args:
        model: network in evaluation mode.
        prompts: token ids, not padded.
        targets: tokens that follow each prompt. For several tokens, v is the log odds of all,
            one after the other.
        variables: variables of the prompts.
        mask_value: value of masked variables; None removes their tokens, and the rest moves up.
        run: returns v of one next token.
    """
    start = getattr(getattr(model, "config", None), "bos_token_id", None)
    if not all(targets):
        raise ValueError("a target has no tokens; expected one or more")
    for ids in prompts:
        if len(ids) > 1 and ids[0] == ids[1] == start:
            warnings.warn(
                f"a prompt begins with the beginning-of-text token {start} twice. A chat template "
                "writes it into the text, and the tokenizer adds another one: remove it from the "
                "text",
                RepeatedStartWarning,
                stacklevel=4,
            )
    tokens = [torch.tensor(target) for target in targets]
    joined = [torch.cat([ids, t[:-1]]) for ids, t in zip(prompts, tokens, strict=True)]
    check_tokens(model, joined)
    check_causal(model, prompts[0])

    def following(at: int) -> tuple[list[int], Tensor]:
        rows = [i for i, target in enumerate(targets) if len(target) > at]
        given = [joined[i][: len(prompts[i]) + at] for i in rows]
        target = torch.stack([tokens[i][at] for i in rows])
        return rows, run(prepare_prompts(model, given, target, variables[rows], mask_value))

    _, v = following(0)
    log_p = nn.functional.logsigmoid(v)
    log_rest = nn.functional.logsigmoid(-v)
    for at in range(1, max(map(len, targets))):
        rows, v = following(at)
        # All tokens so far are right and this one is not, so 1 - p is a sum and never rounds to 0.
        missed = log_p[rows] + nn.functional.logsigmoid(-v)
        log_rest[rows] = log_rest[rows].logaddexp(missed)
        log_p[rows] += nn.functional.logsigmoid(v)
    return log_p - log_rest


def prepare_prompts(
    model: nn.Module,
    prompts: Sequence[Int[Tensor, " _"]],
    target: Int[Tensor, " sample"],
    variables: TextVariables,
    mask_value: MaskValue | None,
) -> Prepared:
    """Return prompts as samples of a causal language model (arguments as for `masked_outputs`).

    Args:
        prompts: token ids, not padded.
    """
    owners = [variables[i].owners(len(prompt))[0] for i, prompt in enumerate(prompts)]
    owners = pad_sequence(owners, batch_first=True, padding_value=variables.n)
    ids = pad_sequence(list(prompts), batch_first=True)
    inputs = ids
    if accepts(model, "input_ids"):
        inputs = {"input_ids": ids} | options_of(model, use_cache=False)
    removes = mask_value is None
    if mask_value is None:
        mask_value = MaskValue(torch.zeros(()), word_embedding(model)[0])
    return Prepared(
        Network(model, mask_value.layer, is_causal=True),
        inputs,
        owners[..., None],
        mask_value.value,
        variables.n,
        target,
        device_of(model),
        lengths=torch.tensor([len(prompt) for prompt in prompts]),
        removes=removes,
    )


def removed_outputs(
    network: Network, masked: Masked, states: Int[Tensor, " state"], rows: int
) -> Float[Tensor, "sample state"]:
    """Return v of a prompt if the tokens of masked variables are removed; the rest moves up.

    Args:
        network, masked, states: as for `outputs`.
        rows: most states per forward pass.
    """
    ids = token_ids(masked.inputs)
    keep = present_at(masked.owners[..., 0], states.to(ids.device), masked.n)[0]
    lengths = keep.sum(1)
    if not lengths.all():
        raise ValueError(
            "all tokens of a prompt are variables, so nothing is left without them; expected a "
            "token that stays, such as a start token"
        )
    v = torch.empty(1, len(states), dtype=torch.float64)
    # Prompts of the same length need no padding.
    for length in lengths.unique():
        for part in (lengths == length).nonzero().flatten().split(rows):
            rest = ids.expand(len(part), -1)[keep[part]].view(len(part), -1)
            logits = network.logits(with_ids(masked.inputs, rest), len(part))
            v[0, part.cpu()] = log_odds(logits, masked.target.expand(len(part))).cpu().double()
    return v


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
        first = logits[:, 0].float()
        bound = max(ROUNDING.get(logits.dtype, 0.0) / 10, 1e-5)
        is_causal = not (first[0] - first[1]).abs().max() > bound * first.abs().max()
    if not is_causal:
        raise ValueError(
            f"{type(model).__name__} is not a causal language model: it returns no logits for "
            "every token, or its output at a token changes with the token after it. Texts need a "
            "classifier with logits (sample, class), or a model that continues texts "
            "(AutoModelForCausalLM)"
        )
