"""Causal language models: loaded, or trained and fine-tuned on the loop of all networks."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symgen.data.hub import from_pretrained, import_transformers
from symgen.data.parts import TokenPart
from symgen.data.texts import pieces_of, train_tokenizer
from symgen.fingerprints import code_fingerprint, refusal
from symgen.interactions import Interactions
from symgen.literal import nearest
from symgen.masking.extraction import identity as identity_of, split_outputs
from symgen.masking.mask_values import MaskValue, mask_ids, refuse_unknown_tokens, word_value
from symgen.masking.outputs import masked_outputs
from symgen.masking.prompts import Prompt, first_probability, prompt_inputs, target_tokens
from symgen.memory import as_dtype
from symgen.models.config import TrainingConfig, configured
from symgen.models.loop import Task, next_token
from symgen.models.registry import device, identity, untrained
from symgen.models.trainable import merged, trainable
from symgen.models.training import TrainingRun
from symgen.split.sparsify import MAX_VARIABLES

# Causal language models of the paper (App. F, O, P), and a small one for trying things out.
CAUSAL_LMS = {
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "stories260k": "karpathy/tinyllamas/stories260K",
}
# How a language model is trained where nothing else is said.
TUNING = TrainingConfig(epochs=3, batch_size=32, checkpoints=1, evaluation_size=200)
TUNING_RATE = 3e-3


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model with its tokenizer, and what identifies it in the cache.

    Attributes:
        name: for people.
        model, tokenizer: the model in eval mode, and its own tokenizer.
        key: what its results are stored under.
        run: its training, where it was trained here.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    key: dict
    run: TrainingRun | None = None

    @classmethod
    def at(cls, run: TrainingRun, step: int = -1, name: str | None = None) -> "LanguageModel":
        """Return the model of a training as it was at a step."""
        return cls(name or run.network, run.load(step), run.tokenizer, run.key(step), run)

    def reads(self, prompt: Prompt) -> dict[str, Any]:
        """Return how the model reads a prompt: tokens, pieces of the target, probability.

        The probability is that of the first piece, which v is about.
        """
        ids, target = target_tokens(prompt, self.tokenizer)
        pieces = self.tokenizer.convert_ids_to_tokens(target)
        probability = first_probability(self.model, self.tokenizer, prompt)
        return {
            "model": self.name, "tokens of the prompt": len(ids), "target": " ".join(pieces),
            "begins": self.tokenizer.decode(target[:1]).strip(), "probability": probability,
        }  # fmt: skip

    def interactions(
        self,
        prompts: Sequence[Prompt],
        masking: str = "mean",
        whole: bool = False,
        texts: Sequence[str] = (),
        noise: float = 0.02,
        tol: float = 1e-3,
        progress: bool = True,
    ) -> tuple[Float[Tensor, "sample state"], Interactions]:
        """Return v on all masked prompts, and the interactions.

        Args:
            prompts: each with as many variables.
            masking, texts: see `word_value`.
            whole: v of the whole target, the sum of the log probabilities of its tokens, instead
                of v of its first token.
            noise, tol: see `sparsify`.
            progress: whether to show bars.

        Returns:
            v, and interactions that know the names of their variables, the words of each prompt,
            and the fingerprints of model and prompts.
        """
        _refuse_prompts(prompts)
        inputs, variables = prompt_inputs(prompts, self.tokenizer, whole)
        _refuse_long(self.model, inputs.x)
        refuse_unknown_tokens(self.model, torch.cat([*inputs.x, *map(torch.tensor, inputs.y)]))
        ids = mask_ids(self.tokenizer, masking, texts)

        def value(model: nn.Module) -> MaskValue | None:
            return word_value(model, self.tokenizer, masking, texts)

        key = {**self.key, "masking": masking, "ids": ids, "code": code_fingerprint(word_value)}
        v = masked_outputs(
            self.model, inputs.x, inputs.y, variables, value, key=key, progress=progress
        )
        return v, dataclasses.replace(
            split_outputs(v, noise, tol, progress),
            names=[prompt.labels for prompt in prompts],
            about=identity_of(self.key, inputs, variables),
        )


@refusal
def _refuse_name(name: Any, texts: Any) -> None:
    if not isinstance(name, str):
        raise ValueError(f"the model is {name!r}; expected its name or path as text: str(path)")
    if name == "tiny-llama" and (isinstance(texts, str) or not len(texts)):
        raise ValueError(
            "tiny-llama is trained here, on texts, and there are none: give a list of them, "
            f'or the name of a model to load, such as "{next(iter(CAUSAL_LMS))}"'
        )


@refusal
def _refuse_prompts(prompts: Any) -> None:
    if isinstance(prompts, Prompt | str) or not all(isinstance(p, Prompt) for p in prompts):
        raise ValueError(
            "prompts are not a list of symgen.Prompt; expected one, also of a single prompt, such "
            'as [symgen.Prompt.of("Once upon a time there was a", " girl", n=5)]'
        )
    if (most := max((len(p.spans) for p in prompts), default=0)) > MAX_VARIABLES:
        raise ValueError(
            f"a prompt has {most} variables, which is 2^{most} masked prompts; expected at most "
            f"{MAX_VARIABLES}: take fewer words, or phrases of several words each"
        )


@refusal
def _refuse_long(model: nn.Module, ids: Sequence[Tensor]) -> None:
    read = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    longest = max(map(len, ids))
    if read is not None and longest > read:
        raise ValueError(
            f"a prompt has {longest} tokens, and {type(model).__name__} reads {read}; shorten it"
        )


def open_language_model(
    name: str,
    texts: Sequence[str] = (),
    test: Sequence[str] = (),
    words: int = 2000,
    width: int = 64,
    layers: int = 2,
    length: int = 128,
    tail: int = 0,
    epochs: int = 3,
    learning_rate: float = 6e-3,
    seed: int = 0,
    dtype: str | None = None,
    device_map: Any = None,
    progress: bool = True,
) -> LanguageModel:
    """Load a language model, or train a small one with its own tokenizer on some texts.

    Args:
        name: "tiny-llama" to train one here, or as in `load_causal_lm`.
        texts, test: to train and to measure on.
        words: of the tokenizer; see `train_tokenizer`.
        width, layers, seed: see `tiny_llama`.
        length, tail: see `pieces_of`.
        epochs, learning_rate: see `train_causal_lm`.
        dtype, device_map: see `load_causal_lm`.
        progress: whether to show a bar.
    """
    _refuse_name(name, texts)
    if name != "tiny-llama":
        model, tokenizer = load_causal_lm(name, dtype, device_map)
        return LanguageModel(name.split("/")[-1], model, tokenizer, identity(model))
    tokenizer = train_tokenizer(texts, words, pieces=max(100, words // 4))
    model = tiny_llama(len(tokenizer), width, layers, seed)
    parts = [pieces_of(some, tokenizer, length, tail) for some in (texts, test[:200])]
    run = train_causal_lm(
        model, tokenizer, *parts, name=f"{name} ({words} words)", data=f"{len(texts):,} texts",
        epochs=epochs, learning_rate=learning_rate, seed=seed, progress=progress,
    )  # fmt: skip
    return LanguageModel.at(run)


def load_causal_lm(
    name_or_path: str, dtype: str | torch.dtype | None = None, device_map: Any = None
) -> tuple[nn.Module, Any]:
    """Load a causal language model in eval mode, and its tokenizer.

    Args:
        name_or_path: name in `CAUSAL_LMS`, hub id, id under `SYMGEN_DATA`, or path in
            from_pretrained format.
        dtype: such as "bfloat16"; None keeps that of the stored weights.
        device_map: "auto" spreads a model over several GPUs, and layers that do not fit over host
            memory and disk; None uses one device.

    Raises:
        MemoryError: where not even the embedding, which is masked, fits in memory.
        FileNotFoundError: where there is neither a local copy nor a way to the hub.
        ImportError: if the extra ``llm`` is not installed.
    """
    if isinstance(dtype, str) and dtype != "auto":
        dtype = as_dtype(dtype)
    name = CAUSAL_LMS.get(os.fspath(name_or_path), os.fspath(name_or_path))
    if "/" not in name and not Path(name).is_dir():
        raise ValueError(
            f'unknown language model "{name}"; known are {", ".join(CAUSAL_LMS)}, any id '
            '"<owner>/<name>" on the hub or under SYMGEN_DATA, and any folder.'
            f"{nearest(name, CAUSAL_LMS)}"
        )
    options = {"dtype": dtype if dtype is not None else "auto", "device_map": device_map}
    try:
        model = from_pretrained("AutoModelForCausalLM", name, **options)
        aside = model.get_input_embeddings().weight.is_meta
    except ValueError as error:
        # How accelerate says it of an embedding that is the output layer's weight as well.
        if not (aside := "meta device" in str(error)):
            raise
    if aside:
        raise MemoryError(
            f"device_map put the token embedding of {name} on the disk, and masked inputs are made "
            "from it; keep it in memory (a device_map that names it), or give a smaller dtype"
        )
    tokenizer = from_pretrained("AutoTokenizer", name)
    return (model if device_map is not None else model.to(device())).eval(), tokenizer


def tiny_llama(vocabulary: int, width: int = 64, layers: int = 2, seed: int = 0) -> nn.Module:
    """Return an untrained Llama, its weights drawn from the seed alone.

    Args:
        vocabulary: number of tokens.
        width: of the residual stream, a multiple of 16; heads are 16 wide.
        layers: number of blocks.
        seed: of the weights.
    """
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=width // 16,
        max_position_embeddings=1024, tie_word_embeddings=True,
        # The usual 0.02 is made for wide models; narrow ones hardly begin to learn from it.
        initializer_range=width**-0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return untrained(transformers.LlamaForCausalLM, {"config": config}, seed)


def train_causal_lm(
    model: nn.Module,
    tokenizer: Any,
    pieces: Sequence[tuple[Tensor, int]],
    test: Sequence[tuple[Tensor, int]],
    others: Mapping[str, Sequence[tuple[Tensor, int]]] | None = None,
    name: str = "language model",
    data: str = "texts",
    config: TrainingConfig = TUNING,
    *,
    lora: int = 0,
    cache: bool = True,
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train or fine-tune a causal language model, or take up the stored run with these arguments.

    The loop is that of `train`, without augmentation. Weights are trained in the type they come in
    (load in float32 to tune all of them). Losses are in nats a token.

    Args:
        model: as it is to begin with; it is not changed.
        tokenizer: of the model.
        pieces: to train on, of `pieces_of` or `instructions_of`.
        test: to measure on as well.
        others: name to further pieces to measure on, such as those of an old domain.
        name, data: for people.
        config: how it is trained; the learning rate is 3e-3 where none is given.
        lora: rank of low-rank adapters, which alone are trained then; 0 trains all weights.
        cache, progress: see `train`.
        **settings: that differ from `config`.

    Raises:
        ValueError: for no pieces, or settings that do not exist.
        ImportError: for adapters without `peft`.
        FloatingPointError: if the loss stops being a number.
    """
    for what, some in (("pieces", pieces), ("test", test)):
        if not len(some):
            raise ValueError(f"{what}: got {len(some)}, expected at least 1")
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(
            "some weights of the model lie aside on a disk (device_map), where they cannot be "
            "trained; load it without device_map, on a larger device or in a smaller dtype"
        )
    config = configured(config, settings | {"augment": False}).filled("adamw", TUNING_RATE)
    measured = {"test": test, **(others or {})}
    vocabulary = model.config.get_text_config().vocab_size
    task = Task(
        name,
        lambda: trainable(model, lora),
        TokenPart(pieces, vocabulary),
        {k: TokenPart(some, vocabulary) for k, some in measured.items()},
        next_token,
    )
    key = {**identity(model), "lora": lora, "trainable": code_fingerprint(trainable)}
    about = {"data": data, "part": "train", "lora": lora}
    run = TrainingRun(config, task, key, about, merged, tokenizer)
    run.compute(cache, progress)
    return run
