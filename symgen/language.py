"""Language models on all masked prompts: outputs, interactions, memory.

**What masks a word.** By default the mean embedding over the vocabulary (footnote 3 of the paper):
it belongs to no token, so that masking does not put another word in its place, and it is known for
every model. "corpus" weighs tokens by how often a text has them, a token's own text ("_") takes
the embedding of that token, and "remove" leaves the word out, so that what follows moves up.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.architectures import import_transformers
from symgen.baselines import (
    Baseline,
    corpus_embedding_baseline,
    mean_embedding_baseline,
    token_baseline,
)
from symgen.fingerprints import code_fingerprint, modules_of
from symgen.interactions import Interactions
from symgen.masking import masked_outputs
from symgen.memory import ALIVE, Batch, check_states, device_of, largest_output
from symgen.prefix_tree import _new_cache
from symgen.prompts import Prompt, target_tokens
from symgen.provenance import cached
from symgen.sparsify import sparsify
from symgen.states import check_finite, evaluating, log_odds, present_at
from symgen.text_variables import TextVariables, check_texts, word_spans

#: Log odds beyond which a probability is 0 or 1 to seven digits; v is clipped there.
LARGEST_OUTPUT = 16.0
# What interactions of a language model depend on: all that this module reaches.
EXTRACTION = modules_of("from symgen import language")


class SaturatedTargetWarning(UserWarning):
    """A model gives a target a probability of 0 or 1 in some masked states; v is clipped."""


def language_outputs(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    masking: str = "mean",
    whole: bool = False,
    texts: Sequence[str] = (),
    batch_size: int | None = None,
    progress: bool = True,
) -> Float[Tensor, "sample state"]:
    """Return v of the target on all masked versions of each prompt (Eq. 1, App. F).

    v is computed in float32 from the logits, whatever type the model has, and clipped to
    -16..16, where a float32 probability is 0 or 1.

    Args:
        model: a causal language model, run as a prefix tree.
        tokenizer: its own, a fast one.
        prompts: each with as many variables.
        masking: "mean", "corpus", "remove", or the text of a token; see above.
        whole: v of the whole target, the sum of the log probabilities of its tokens, instead of
            v of its first token.
        texts: for "corpus".
        batch_size, progress: see `masked_outputs`.

    Raises:
        ValueError: for a model that is not causal, or prompts, masking or tokenizer that do not
            fit.
        MemoryError: when not even one masked prompt fits.
    """
    if not prompts:
        raise ValueError("prompts is empty; give one or more, such as those of draw_prompts")
    pairs = [target_tokens(prompt, tokenizer) for prompt in prompts]
    variables = [word_spans(prompt.text, prompt.spans, tokenizer) for prompt in prompts]
    check_states(len(prompts), variables[0].n)
    check_causal(model, pairs[0][0])
    baseline = mask_baseline(model, tokenizer, masking, texts)

    def run(rows: list[int], at: int) -> Tensor:
        """Return v of the target's token number `at`, the tokens before it given."""
        ids = [torch.cat([pairs[i][0], torch.tensor(pairs[i][1][:at]).long()]) for i in rows]
        target = torch.tensor([pairs[i][1][at] for i in rows])
        own = TextVariables.stack(variables[i] for i in rows)
        own = TextVariables(own.groups, own.words)
        if baseline is None:
            return _removed_outputs(model, ids, target, own, batch_size or 64, progress)
        return masked_outputs(model, ids, target, own, baseline, batch_size, progress=progress)

    v = run(list(range(len(prompts))), 0)
    if whole and (longest := max(len(target) for _, target in pairs)) > 1:
        log_p = nn.functional.logsigmoid(v)
        for at in range(1, longest):
            rows = [i for i, (_, target) in enumerate(pairs) if len(target) > at]
            log_p[rows] += nn.functional.logsigmoid(run(rows, at))
        # log(1 - p) from log p, without loss where p is near 1.
        v = log_p - torch.log(-torch.expm1(log_p.clamp(max=-1e-12)))
    beyond = (v.abs() > LARGEST_OUTPUT).sum(1)
    for i in beyond.nonzero().flatten().tolist():
        warnings.warn(
            f"prompt {i} ({prompts[i].text[-30:]!r} -> {prompts[i].target!r}): in {beyond[i]} of "
            f"{v.shape[1]} masked states the target has a probability of 0 or 1 to seven digits; v "
            f"is clipped to +-{LARGEST_OUTPUT:g} there. Choose a target that is less (un)likely",
            SaturatedTargetWarning,
            stacklevel=2,
        )
    return v.clamp(-LARGEST_OUTPUT, LARGEST_OUTPUT)


def mask_baseline(
    model: nn.Module, tokenizer: Any, masking: str = "mean", texts: Sequence = ()
) -> Baseline | None:
    """Return what stands in place of masked words; None where they are removed.

    Args:
        model, tokenizer: of the language model.
        masking: "mean", "corpus", "remove", or the text of a token.
        texts: for "corpus".
    """
    if masking == "remove":
        return None
    if masking == "mean":
        return mean_embedding_baseline(model)
    if masking == "corpus":
        ids = _mask_ids(tokenizer, masking, texts)
        return corpus_embedding_baseline(model, map(torch.tensor, ids))
    return token_baseline(model, _mask_ids(tokenizer, masking, texts)[0])


def _mask_ids(tokenizer: Any, masking: str, texts: Sequence) -> list:
    """Return the token ids that the embedding of masked words is made of, besides the weights."""
    if masking in ("mean", "remove"):
        return []
    if masking == "corpus":
        check_texts(texts)
        return tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
    ids = tokenizer(masking, add_special_tokens=False)["input_ids"]
    known = tokenizer.convert_tokens_to_ids(masking)
    if len(ids) != 1 and known not in (None, tokenizer.unk_token_id):
        ids = [known]
    if len(ids) != 1:
        raise ValueError(
            f"masking={masking!r} is {len(ids)} tokens of this tokenizer; expected 'mean', "
            "'corpus', 'remove', or the text of one token, such as '_'"
        )
    return ids


@torch.inference_mode()
def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Refuse a model whose output at a token depends on the tokens after it.

    Raises:
        ValueError: for such a model, or one without logits for every token.
    """
    pair = torch.stack([ids[:2], ids[:2]]).to(device_of(model))
    pair[1, -1] = ids[0] if len(ids) > 1 and ids[0] != ids[1] else ids[-1]
    with evaluating(model):
        logits = getattr(model(input_ids=pair), "logits", torch.empty(0))
    told = f"{type(model).__name__} is no causal language model: "
    advice = "; load one that continues texts (AutoModelForCausalLM), such as stories260k or a GPT"
    if logits.dim() != 3:
        raise ValueError(f"{told}it gives no logits for every token{advice}")
    first = logits[:, 0].float()
    if len(ids) > 1 and (first[0] - first[1]).abs().max() > 1e-2 * (1 + first.abs().max()):
        raise ValueError(f"{told}its output at a token changes with the token after it{advice}")


@torch.inference_mode()
def _removed_outputs(
    model: nn.Module, prompts: Sequence[Tensor], target: Tensor, variables: TextVariables,
    batch_size: int, progress: bool,
) -> Tensor:  # fmt: skip
    """Return v where the tokens of masked variables are left out and the rest moves up."""
    device, batch = device_of(model), Batch(batch_size)
    states = torch.arange(2**variables.n)
    v = torch.empty(len(prompts), len(states), dtype=torch.float64)
    with evaluating(model), tqdm(total=v.numel(), disable=not progress, leave=False) as bar:
        for row, ids in enumerate(prompts):
            owners = variables[row].owners(len(ids))
            if (owners < variables.n).all():
                raise ValueError(
                    f"prompt {row}: with all variables removed nothing is left to continue; leave "
                    "a word out of the variables, or mask by an embedding"
                )
            done = 0
            while done < len(states):
                with batch.halving():
                    some = states[done : done + batch.size]
                    keep = present_at(owners, some, variables.n)[0]
                    length = keep.sum(1)
                    # What is kept moves to the left; what is right of it is never looked at.
                    front = (~keep).int().argsort(dim=1, stable=True)[:, : int(length.max())]
                    logits = model(input_ids=ids[front].to(device)).logits
                    last = logits[torch.arange(len(some)), (length - 1).to(logits.device)]
                    v[row, some] = log_odds(last, target[row].expand(len(some))).cpu().double()
                    done += len(some)
                    bar.update(len(some))
            check_finite(v[row : row + 1], row)
    return v


def language_interactions(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    key: Mapping | None = None,
    noise: float = 0.02,
    tol: float = 1e-3,
    masking: str = "mean",
    whole: bool = False,
    texts: Sequence[str] = (),
    progress: bool = True,
) -> tuple[Float[Tensor, "sample state"], Interactions]:
    """Return v on all masked prompts and the interactions, from the cache where a key is given.

    Args:
        model, tokenizer, prompts, masking, whole, texts: see `language_outputs`.
        key: what identifies the model, such as a run's fingerprint and step.
        noise, tol: see `sparsify`.
        progress: whether to show bars.
    """

    def compute() -> dict[str, Tensor]:
        v = language_outputs(model, tokenizer, prompts, masking, whole, texts, progress=progress)
        found = sparsify(v, noise=noise, tol=tol, progress=progress)
        return {"v": v} | {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}

    if key is None:
        parts = compute()
    else:
        full = {
            "model": dict(key), "prompts": list(prompts), "masking": masking, "whole": whole,
            "mask": _mask_ids(tokenizer, masking, texts), "noise": noise, "tol": tol,
            "tokens": [target_tokens(prompt, tokenizer) for prompt in prompts],
            "variables": [word_spans(p.text, p.spans, tokenizer) for p in prompts],
            "code": code_fingerprint(*EXTRACTION),
        }  # fmt: skip
        parts = cached("language", full, compute)
    return parts["v"], Interactions(**{k: t for k, t in parts.items() if k != "v"})


def language_memory(
    config: Any, tokens: int = 64, n: int = 10, dtype: torch.dtype = torch.bfloat16,
    rows: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the GiB that the outputs on all masked prompts take, without loading any weights.

    Counted on the meta device with the numbers by which the prefix tree chooses its batches: three
    times the keys and values of the rows, and the largest output of a layer six times.

    Args:
        config: of a model, of `transformers`.
        tokens: of the prompt.
        n: number of variables.
        dtype: of the weights.
        rows: masked prompts at once; all 2**n without. Fewer take more time.

    Returns:
        weights, states, total.
    """
    with torch.device("meta"):
        model = import_transformers().AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        ids, cache = torch.zeros(1, tokens, dtype=torch.long), _new_cache()
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        with torch.inference_mode():
            largest = largest_output(model, {"input_ids": ids} | options)
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    weights = sum(p.nbytes for p in model.parameters()) / 2**30
    states = (rows or 2**n) * (3 * kept + ALIVE * largest) / 2**30
    return {"weights": weights, "states": states, "total": weights + states}
