"""Outputs on masked states against the bare network, and everything from image to interactions.

On a GPU where there is one.
"""

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import symgen
from benchmarks.rows import Row, ratio_of, seconds
from symgen.masking.hooks import Inputs
from symgen.masking.mask_values import mean_embedding, mean_feature, token_embedding
from symgen.masking.prefix_tree import PrefixTree, plain_runner
from symgen.masking.spans import TextVariables
from symgen.masking.states import evaluating, run_all
from symgen.method.penalty import Penalty
from symgen.models.registry import device

STATES = 1024
PLACE = device()
ON_GPU = PLACE.type == "cuda"
BATCH = STATES if ON_GPU else 128
# What is done once a call would weigh more than the passes of one sample on a GPU.
SAMPLES = 32 if ON_GPU else 1


def _bare(model: nn.Module, x) -> None:
    """Run the network on as many inputs as there are states, ready-made."""
    with evaluating(model), torch.inference_mode():
        for start in range(0, STATES, BATCH):
            if isinstance(x, dict):
                model(**{key: value[start : start + BATCH] for key, value in x.items()})
            else:
                model(x[start : start + BATCH])


def _images(name: str):
    model = symgen.build_network(name, classes=10, channels=3, image_size=32)
    model = model.to(PLACE, memory_format=torch.channels_last)
    x = torch.randn(STATES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x = x.to(PLACE, memory_format=torch.channels_last)
    return model, x, symgen.draw_patches(SAMPLES, n=10), symgen.mean_feature(model, x[:64])


def _texts():
    model = symgen.build_network("bert-tiny", classes=2, vocabulary=5000).to(PLACE)
    ids = torch.randint(5, 5000, (STATES, 32), generator=torch.Generator().manual_seed(0)).to(PLACE)
    mask = torch.ones_like(ids)
    variables = TextVariables((tuple((3 * i + 1,) for i in range(10)),) * SAMPLES)
    return model, {"input_ids": ids, "attention_mask": mask}, variables, token_embedding(model, 4)


def throughput(quick: bool) -> list[Row]:
    """Masked states a second against ready-made inputs a second."""
    rows = []
    repeats = 3 if quick else 5
    for name in ("resnet18", "vgg11", "bert-tiny"):
        model, x, variables, value = _texts() if name.startswith("bert") else _images(name)
        given = {k: t[:SAMPLES] for k, t in x.items()} if isinstance(x, dict) else x[:SAMPLES]
        target = torch.zeros(SAMPLES, dtype=torch.long, device=PLACE)

        def ours(a=(model, given, target, variables, value)):
            return symgen.masked_outputs(*a, batch_size=BATCH, progress=False)

        def bare(model=model, x=x):
            for _ in range(SAMPLES):
                _bare(model, x)

        ours(), bare()
        mine, theirs = ratio_of(ours, bare, repeats)
        rows.append(
            Row(
                f"masked_outputs, {name}, 1,024 states",
                "bare forward",
                mine / SAMPLES,
                theirs / SAMPLES,
                "s a sample",
                theirs / mine,
                0.9,
                note=f"batches of {BATCH} in both, taken in turn; samples a call: {SAMPLES}",
            )
        )
    return rows


def prefix_tree(quick: bool) -> list[Row]:
    """A 40-token prompt and 10 variables: a tree of prefixes against full passes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    # Width, inner width, layers and heads: on a GPU of a model that keeps it busy.
    sizes = (128, 344, 2, 4) if quick else (384, 1024, 8, 6)
    sizes = (2048, 5632, 16, 16) if ON_GPU else sizes
    config = LlamaConfig(
        vocab_size=16000,
        hidden_size=sizes[0],
        intermediate_size=sizes[1],
        num_hidden_layers=sizes[2],
        num_attention_heads=sizes[3],
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    with PLACE:
        model = LlamaForCausalLM(config).eval()
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    prompt = torch.randint(5, 16000, (40,), generator=torch.Generator().manual_seed(0))
    variables = TextVariables((tuple((4 * i,) for i in range(10)),))
    target, value = torch.tensor([7]), mean_embedding(model)
    runner = plain_runner(model, [prompt], target, variables, value)
    with torch.inference_mode():
        tree = PrefixTree(runner, 0)
        tree.run(8)
        wall, _, v = seconds(
            lambda: symgen.masked_outputs(model, [prompt], target, variables, value, progress=False)
        )
        plain, _, full = seconds(lambda: run_all(runner, BATCH, False))
        note = ""
        if not ON_GPU:  # where times of the processor are times of the work
            shares = _shares(lambda: tree.run(tree.automatic_rows()))
            whole = _shares(lambda: run_all(runner, BATCH, False))
            note = (
                "; a share of the tokens is a share of the matrix products alone: these take "
                f"{whole['matrix products']:.0%} of full passes, and of the tree "
                + ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
            )
    off = float((v.cpu() - full.cpu()).abs().max())
    what = f"prefix tree, {millions:.0f}M-parameter Llama, 40 tokens, 10 variables"
    tokens = STATES * len(prompt)
    # A tiny model spends its time between the layers, which says nothing of real ones.
    must = None if quick and not ON_GPU else 3
    return [
        Row(
            what,
            "full passes",
            wall,
            plain,
            "s a sample",
            plain / wall,
            must,
            note=f"largest difference {off:.0e}{note}",
        ),
        Row(what, "full passes", tree.tokens, tokens, "tokens", tokens / tree.tokens, 4),
    ]


# By the names of torch's operations.
PARTS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product",),
    "copies, of caches above all": ("aten::copy_", "aten::cat"),
}


def _shares(run: Callable[[], object]) -> dict[str, float]:
    """Return which shares of its processor time a computation spends in some operations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        run()
    events = found.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    return {
        label: sum(e.self_cpu_time_total for e in events if e.key.startswith(names)) / whole
        for label, names in PARTS.items()
    }


def end_to_end(quick: bool) -> list[Row]:
    """Image in, certified interactions out."""
    model, x, _, value = _images("resnet18")

    def extract(samples):
        given = Inputs(x[:samples], torch.zeros(samples, dtype=torch.long, device=PLACE))
        places = symgen.draw_patches(samples, n=10)
        return symgen.extract(model, given, places, value, batch_size=BATCH, progress=False)

    def bare(samples):
        for _ in range(samples):
            _bare(model, x)

    rows = []
    for samples in sorted({1, SAMPLES}):
        extract(samples), bare(1)
        ours, theirs = partial(extract, samples), partial(bare, samples)
        mine, plain = ratio_of(ours, theirs, 3 if quick else 5)
        rows.append(
            Row(
                f"{'image' if samples == 1 else f'{samples} images'} to interactions, resnet18, "
                "n = 10",
                "the bare 1,024 forward passes",
                mine / samples,
                plain / samples,
                "s a sample",
                mine / plain,
                # A GPU is so much faster at passes that the split, a chain of steps, weighs more.
                limit=None if ON_GPU else 1.3,
                note=f"samples a call: {samples}; gap 1e-3",
            )
        )
    return rows


def penalty(quick: bool) -> list[Row]:
    """A step of training with the penalty against a plain one."""
    model, x, _, _ = _images("resnet20")
    x, y = x[:64], torch.randint(10, (64,), generator=torch.Generator().manual_seed(0)).to(PLACE)
    variables, optimizer = symgen.draw_patches(64, n=6), torch.optim.SGD(model.parameters(), 1e-3)
    known = mean_feature(model, x)
    v = symgen.masked_outputs(model, x, y.roll(1), variables, known, progress=False)
    term = Penalty(Inputs(x, y), variables, symgen.sparsify(v))
    numbers = itertools.count(1)

    def steps(penalized: int, plain: int) -> None:
        for k in range(penalized + plain):
            loss = nn.functional.cross_entropy(model.train()(x), y)
            if k < penalized:
                loss = loss + term(next(numbers), model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(1, 1)
    rows, repeats = [], 3 if quick else 7
    for name, plain, limit in (("every step", 0, 3.0), ("every 4th step", 3, 1.5)):
        mine, bare = ratio_of(
            lambda p=plain: steps(1, p), lambda p=plain: steps(0, p + 1), repeats
        )  # fmt: skip
        rows.append(
            Row(
                f"a step with the penalty in {name}, resnet20, batches of 64",
                "a plain step",
                mine / (plain + 1),
                bare / (plain + 1),
                "s a step",
                mine / bare,
                limit=limit,
                note="4 samples of 6 variables, gradients through at most 4 states of each",
            )
        )
    return rows
