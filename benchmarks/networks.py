"""Masked outputs against ready-made inputs, and prompts of language models against other ways."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import symgen
from benchmarks.rows import in_turn, row
from symgen.device import Batch, device
from symgen.masking.causal import prepare_prompts
from symgen.masking.hooks import evaluating
from symgen.masking.mask_values import mean_embedding
from symgen.masking.states import log_odds, present_at, run_all
from symgen.masking.variables import TextVariables

STATES = 1024


def _bare(model: nn.Module, x: torch.Tensor | dict, batch: int) -> None:
    """Run the network on as many inputs as there are states."""
    with evaluating(model), torch.inference_mode():
        for start in range(0, STATES, batch):
            part = slice(start, start + batch)
            model(**{k: t[part] for k, t in x.items()}) if isinstance(x, dict) else model(x[part])


def throughput(quick: bool) -> list[dict]:
    """Masked states against ready-made inputs of the same network."""
    place, rows = device(), []
    batch, samples = (STATES, 32) if place.type == "cuda" else (128, 1)
    generator = torch.Generator().manual_seed(0)
    for name in ("resnet20",) if quick else ("resnet18", "vgg11", "bert-tiny"):
        if name.startswith("bert"):
            model = symgen.build_network(name, classes=2, vocabulary=5000).to(place)
            ids = torch.randint(5, 5000, (STATES, 32), generator=generator).to(place)
            x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            variables = TextVariables((tuple((3 * i + 1,) for i in range(10)),) * samples)
            value, given = symgen.token_embedding(model, 4), {k: t[:samples] for k, t in x.items()}
        else:
            model = symgen.build_network(name, classes=10, channels=3, image_size=32).to(place)
            x = torch.randn(STATES, 3, 32, 32, generator=generator)
            x = x.to(place, memory_format=torch.channels_last)  # as masked states have it
            variables, value = (
                symgen.draw_patches(samples, n=10),
                symgen.mean_feature(model, x[:64]),
            )
            given = x[:samples]
        target = torch.zeros(samples, dtype=torch.long, device=place)

        def ours(a=(model, given, target, variables, value)):
            return symgen.masked_outputs(*a, batch_size=batch)

        def bare(model=model, x=x):
            for _ in range(samples):
                _bare(model, x, batch)

        ours(), bare()
        times = (t / samples for t in in_turn(ours, bare, 3))
        what = f"masked_outputs, {name}, 1,024 states"
        rows.append(row(what, "bare forward passes", *times, "s per sample", f"batches of {batch}"))
    return rows


def prompt(quick: bool) -> list[dict]:
    """A prompt of 40 tokens and 10 variables, as a tree of shared prefixes.

    It is compared with full passes, and with the cache of transformers used once: each choice of
    the first seven variables runs once, and its cache serves the eight states that share it. Of all
    places to cut, this one needs the fewest tokens.
    """
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    place = device()
    width, inner, layers, heads = (128, 344, 2, 4) if quick else (384, 1024, 8, 6)
    if place.type == "cuda":
        width, inner, layers, heads = 2048, 5632, 16, 16
    config = LlamaConfig(
        vocab_size=16000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    with place:
        model = LlamaForCausalLM(config).eval()
    ids = torch.randint(5, 16000, (40,), generator=torch.Generator().manual_seed(0))
    variables, target = TextVariables((tuple((4 * i,) for i in range(10)),)), torch.tensor([7])
    value = mean_embedding(model)

    def tree():
        return symgen.masked_outputs(model, [ids], target, variables, value)

    def full():
        with torch.inference_mode():
            prepared = prepare_prompts(model, [ids], target, variables, value)
            return run_all(prepared, torch.arange(STATES), Batch(128), False)

    @torch.inference_mode()
    def cached():
        cut, first, later = 28, 2**7, 2**3
        owners = torch.where(torch.arange(40) % 4 == 0, torch.arange(40) // 4, 10)[None]
        embedded = model.get_input_embeddings()(ids.to(place))
        v = torch.empty(1, STATES)
        for low in torch.arange(first).split(128 // later):
            states = (low[:, None] + first * torch.arange(later)).flatten()
            keep = present_at(owners, states, 10)[0, ..., None].to(place)
            rows = torch.where(keep, embedded, value.value.to(place))
            cache = DynamicCache()
            model.model(inputs_embeds=rows[::later, :cut], past_key_values=cache)
            cache.batch_repeat_interleave(later)
            some = {"inputs_embeds": rows[:, cut:], "past_key_values": cache, "logits_to_keep": 1}
            logits = model(**some).logits[:, -1]
            v[0, states] = log_odds(logits, target.expand(len(states))).cpu()
        return v

    def error(other: Callable[[], Tensor]) -> str:
        return f"largest difference {float((tree().cpu() - other().cpu()).abs().max()):.0e}"

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    what = f"masked_outputs of a prompt, {millions:.0f}M-parameter Llama"
    ways = (("full passes", full), ("transformers' cache, used once", cached))
    return [
        row(what, against, *in_turn(tree, other, 1 if quick else 3), "s per sample",
            f"40 tokens, 10 variables; {error(other)}")
        for against, other in ways
    ]  # fmt: skip
