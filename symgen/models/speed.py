"""How fast this machine is now, and how much a network asks of it: no weights, no data.

Of language models nothing is loaded but their configurations; what is counted of them is counted
by token.
"""

import contextlib
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from symgen.data.hub import from_pretrained, import_transformers
from symgen.data.images import ImagePart
from symgen.fingerprints import not_a_result
from symgen.masking.mask_values import mean_embedding, mean_feature
from symgen.masking.outputs import masked_outputs
from symgen.masking.patches import draw_patches
from symgen.masking.spans import TextVariables
from symgen.models.batches import generator
from symgen.models.checkpoints import Store
from symgen.models.config import TrainingConfig
from symgen.models.language import CAUSAL_LMS, tiny_llama
from symgen.models.loop import Loop, Task, classification
from symgen.models.registry import build_network, device, lookup
from symgen.split.design import candidates, draw_states
from symgen.split.published import RATES, published
from symgen.split.sampled import sparsify_sampled
from symgen.split.sparsify import DeadOutputWarning, sparsify

# Networks that are timed: name, pixels a side, samples of a step, and variables of the two samples
# that are masked. A step of the first is mostly overhead, one of the second arithmetic. A GPU takes
# as long for a few samples as for those of a whole step, so there it gets these.
TIMED = {
    "cpu": (("cnn", 20, 64, 9), ("resnet18", 32, 8, 3)),
    "cuda": (("cnn", 20, 64, 10), ("resnet18", 32, 64, 10)),
}
# Configurations of the presets' models, so that nobody is asked for them: tokens, widths of the
# residual stream and inside of a block, blocks, heads, heads of keys and values, and whether the
# logits are made with the embeddings of the tokens.
QWEN = ("Qwen2Config", (152064, 3584, 18944, 28, 28, 4, False))
PUBLISHED = {
    "Qwen/Qwen2.5-7B": QWEN, "Qwen/Qwen2.5-7B-Instruct": QWEN,
    "Qwen/Qwen2.5-0.5B": ("Qwen2Config", (151936, 896, 4864, 24, 14, 2, True)),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B":
        ("LlamaConfig", (128256, 4096, 14336, 32, 32, 8, False)),
    "HuggingFaceTB/SmolLM2-360M": ("LlamaConfig", (49152, 960, 2560, 32, 15, 5, True)),
}  # fmt: skip
# Language models that are timed: width, layers, and tokens of the vocabulary, which a step of the
# second is mostly spent on, as with small models; tokens and variables of the two prompts.
SPOKEN = {"cpu": ((64, 2, 512), (128, 3, 4096)), "cuda": ((64, 2, 512), (1024, 8, 16384))}
TOKENS, WORDS = 24, {"cpu": 6, "cuda": 12}
# Bytes of the weights of language models that are small enough to be timed themselves.
SMALL = 2**26
# Samples that are split and their variables; of how many variables the time is told, and how much
# longer one variable more takes.
SPLIT, VARIABLES, GROWTH = {"cpu": (8, 7), "cuda": (64, 10)}, 7, 2.4
# A way of shapiq takes about as long for a sample as a split with so many variables would.
PEER = 14
# States of the program on sampled states, and its variables.
SAMPLED, MORE = 300, 10
# Samples that are descended on at once, and steps.
MANY, STEPS = 256, 20


@not_a_result
class Demand(NamedTuple):
    """What one sample asks of a network.

    Attributes:
        operations: floating-point operations of one forward pass.
        weights: bytes of the weights.
        kept: bytes that a backward pass needs to find kept.
    """

    operations: float
    weights: float
    kept: float


@not_a_result
class Rate(NamedTuple):
    """Seconds of one sample: those that every sample takes, and those of an operation."""

    base: float
    each: float

    def __call__(self, operations: float) -> float:
        """Return the seconds of a sample with so many operations."""
        return self.base + self.each * operations

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> "Rate":
        """Return the rate on which two pairs of operations and seconds lie; neither part is < 0.

        Example:
            >>> Rate.through((1.0, 3.0), (3.0, 7.0))
            Rate(base=1.0, each=2.0)
        """
        each = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        base = small[1] - each * small[0]
        return cls(base, each) if base >= 0 else cls(0.0, large[1] / large[0])


@not_a_result
@functools.cache
def demand(
    network: str, side: int = 32, classes: int = 10, tokens: int = 64, vocabulary: int = 30522,
    width: int | None = None,
) -> Demand:  # fmt: skip
    """Return what one sample asks of a network, counted without any weights.

    Args:
        network: name for `build_network`.
        side: pixels of an image.
        classes: number of logits.
        tokens: of a text.
        vocabulary: of its tokenizer.
        width: option of the architecture, if it has one.

    Example:
        >>> round(demand("cnn", side=20).operations / 1e6, 1)
        1.7
    """
    line = lookup(network)
    options: dict[str, Any] = {} if width is None else {"width": width}
    kept: dict[int, Any] = {}
    with torch.device("meta"):
        if line.kind == "image":
            model = line.build(classes, channels=3, image_size=side, **options)
            x: Tensor = torch.zeros(2, 3, side, side)
        else:
            model = line.build(classes, vocabulary=vocabulary, **options)
            x = torch.zeros(2, tokens, dtype=torch.long)
    own = {p.untyped_storage()._cdata for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # held, so that no two have one address
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FlopCounterMode(display=False) as counter, hooks:
        model.train()(x)
    weights = sum(p.nbytes for p in model.parameters())
    return Demand(
        counter.get_total_flops() / 2, weights, sum(s.nbytes() for s in kept.values()) / 2
    )


@not_a_result
@functools.cache
def token_demand(
    name: str, width: int = 64, layers: int = 2, vocabulary: int = 512, last: bool = False
) -> Demand:
    """Return what one token asks of a causal language model.

    Args:
        name: "tiny-llama", or as in `load_causal_lm`; of others than the first the configuration is
            read, which may ask the hub.
        width, layers, vocabulary: of a "tiny-llama".
        last: whether only the last token has logits, as of masked prompts.

    Raises:
        FileNotFoundError: where there is no such model here, nor a way to the hub.

    Example:
        >>> token_demand("tiny-llama", width=64, layers=2).weights
        558336
    """
    with torch.device("meta"):
        model = _language_model(name, width, layers, vocabulary)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, TOKENS, dtype=torch.long), logits_to_keep=int(last))
    weights = sum(p.nbytes for p in model.parameters())
    # About so many numbers a token are kept: what enters and leaves the parts of each layer, and
    # the logits and what the loss makes of them.
    config = model.config.get_text_config()
    # Families call the width of what lies between differently; by default four times the model's.
    inner = next(
        (x for k in ("intermediate_size", "n_inner", "ffn_dim") if (x := getattr(config, k, None))),
        4 * config.hidden_size,
    )
    layer = 8 * config.hidden_size + 4 * inner
    kept = 4 * (config.num_hidden_layers * layer + 2 * config.vocab_size)
    return Demand(counter.get_total_flops() / TOKENS, weights, kept)


def _language_model(name: str, width: int, layers: int, vocabulary: int) -> nn.Module:
    if name == "tiny-llama":
        return tiny_llama(vocabulary, width, layers)
    config = _configuration(CAUSAL_LMS.get(name, name))
    config.pad_token_id = None  # which some would look for in tokens that are not there
    return import_transformers().AutoModelForCausalLM.from_config(config)


def _configuration(name: str) -> Any:
    if name not in PUBLISHED:
        return from_pretrained("AutoConfig", name)
    kind, shape = PUBLISHED[name]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
             "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")  # fmt: skip
    return getattr(import_transformers(), kind)(**dict(zip(names, shape, strict=True)))


@not_a_result
class Speech(NamedTuple):
    """What language models need on this machine, with one thread where it has no GPU.

    Attributes:
        train: seconds of a token, forward and backward, by operations.
        masked: seconds of a token of the tree of masked prompts, by operations.
    """

    train: Rate
    masked: Rate


@not_a_result
def measure_speech() -> Speech:
    """Time a few steps and masked prompts of two small language models, in some seconds."""
    steps, masked = [], []
    tokens = torch.arange(16 * 256).reshape(16, 256) % 500
    words = WORDS[device().type]
    places = tuple((p,) for p in range(1, TOKENS, TOKENS // words))
    prompts, variables = list(tokens[:2, :TOKENS]), TextVariables((places,) * 2)
    targets = torch.zeros(2, dtype=torch.long)
    with _one_thread():
        for shape in SPOKEN[device().type]:
            model = tiny_llama(shape[2], *shape[:2]).to(device())
            step = functools.partial(_spoken_step, model, tokens.to(device()))
            asked = token_demand("tiny-llama", *shape).operations
            steps.append((asked, _seconds(step) / tokens.numel()))
            given = (model, prompts, targets, variables, mean_embedding(model.eval()))
            run = functools.partial(masked_outputs, *given, progress=False)
            asked = token_demand("tiny-llama", *shape, last=True).operations
            masked.append((asked, _seconds(run) / (2 * tree_tokens(TOKENS, words))))
    return Speech(Rate.through(*steps), Rate.through(*masked))


@not_a_result
@functools.cache
def token_seconds(name: str, width: int, layers: int, vocabulary: int, length: int) -> float:
    """Return the seconds of a training token of a small language model, in texts of a length.

    A model with untrained weights is timed, for how long attention takes hangs on the numbers of
    heads and of tokens, and in small models it is most of a step.

    Args:
        name, width, layers, vocabulary: see `token_demand`.
        length: tokens of a text.
    """
    with _one_thread():
        model = _language_model(name, width, layers, vocabulary).to(device())
        tokens = torch.zeros(max(1, 2048 // length), length, dtype=torch.long, device=device())
        return _seconds(functools.partial(_spoken_step, model, tokens)) / tokens.numel()


def _spoken_step(model: nn.Module, tokens: Tensor) -> float:
    loss = model.train()(tokens, labels=tokens).loss
    model.zero_grad()
    loss.backward()
    return loss.item()


def tree_tokens(tokens: float, n: int) -> float:
    """Return how many tokens run for all masked prompts, with variables evenly along the prompt.

    Example:
        >>> tree_tokens(40, 10)  # of 40,960
        8188.0
    """
    return tokens / n * 2 * (2**n - 1) + tokens / n


@not_a_result
class Speed(NamedTuple):
    """What this machine needs, with one thread where it has no GPU.

    Attributes:
        train: seconds of a training sample, forward and backward, by operations.
        masked: seconds of v on one masked state, by operations.
        split: seconds of the split of one sample with `VARIABLES` variables.
        step: seconds of one step of the published procedure, for one of many samples likewise.
        sampled: seconds of the program on sampled states, by their number squared and by candidate.
    """

    train: Rate
    masked: Rate
    split: float
    step: float = 0.0
    sampled: float = 0.0

    def splits(self, n: int) -> float:
        """Return about how many seconds the split of one sample with n variables takes."""
        return self.split * GROWTH ** (n - VARIABLES)

    def peer(self) -> float:
        """Return about how many seconds a way of shapiq takes for one sample."""
        return self.splits(PEER)

    def steps(self, n: int) -> float:
        """Return about how many seconds a step of the published procedure takes for one sample."""
        return self.step * GROWTH ** (n - VARIABLES)


@not_a_result
def measure_speed() -> Speed:
    """Time a few steps, masked outputs and splits on this machine, in some seconds."""
    samples, n = SPLIT[device().type]
    with _one_thread(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Of noise, which tells nothing of what the bill is for.
        warnings.simplefilter("ignore", DeadOutputWarning)
        torch.manual_seed(0)
        steps, masked, split = [], [], 0.0
        for network, side, batch, few in TIMED[device().type]:
            asked = demand(network, side).operations
            step = functools.partial(_step, _loop(network, side, batch))
            steps.append((asked, _seconds(step) / batch))
            model = build_network(network, image_size=side).to(device())
            images = torch.rand(max(batch, samples), 3, side, side)
            run = functools.partial(_outputs, model.eval(), images[:2], few)
            masked.append((asked, _seconds(run) / 2 ** (few + 1)))
            if not split:
                v = _outputs(model, images[:samples], n).to(device())
                split = _seconds(functools.partial(sparsify, v, progress=False)) / samples
                split *= GROWTH ** (VARIABLES - n)
                v = _outputs(model, images[:1], VARIABLES).repeat(MANY, 1)
                descend = functools.partial(published, v, rate=RATES[1], steps=STEPS)
                states = draw_states(MORE, 2**MORE)
                v = _outputs(model, images[:1], MORE)[:, states]
                solve = functools.partial(
                    sparsify_sampled, v, states, MORE, held_out=2**MORE - SAMPLED
                )
        each = _seconds(descend) / (MANY * STEPS)
        sampled = _seconds(solve) / (SAMPLED**2 * len(candidates(MORE)[0]))
    return Speed(Rate.through(*steps), Rate.through(*masked), split, each, sampled)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread where there is no GPU, as trainings do that run side by side."""
    threads = torch.get_num_threads()
    if device().type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _seconds(do: Callable[[], Any]) -> float:
    """Return the middle one of up to three times, after a first that warms up."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < 4 and sum(times) < 1):
        started = time.perf_counter()
        do()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _loop(network: str, side: int, batch: int) -> Loop:
    """Return the training of a network on so many images, of noise, in batches of all of them."""
    pixels = torch.randint(256, (batch, 3, side, side), dtype=torch.uint8)
    part = ImagePart(pixels, torch.zeros(batch, dtype=torch.long))
    config = TrainingConfig(epochs=1, batch_size=batch).filled("sgd", 0.01)
    build = functools.partial(build_network, network, image_size=side)
    return Loop(config, Task(network, build, part, {}, classification), Store(Path(), (1,)))


def _step(loop: Loop) -> float:
    # All that a step is in a chapter: a GPU waits for what is done around the network's own part.
    x, y = loop.part.augment(range(len(loop.part)), generator(0))
    return loop.step(1, x, y).item()


def _outputs(model: nn.Module, images: Tensor, n: int) -> Tensor:
    value = mean_feature(model, [images.to(device())])
    places = draw_patches(len(images), n=n)
    labels = torch.zeros(len(images), dtype=torch.long)
    return masked_outputs(model, images, labels, places, value, progress=False)
