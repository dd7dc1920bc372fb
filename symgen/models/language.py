"""Causal language models: loaded, or trained and fine-tuned by the loop of all networks."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from symgen.data.sources import from_pretrained, import_transformers, local_folder
from symgen.data.texts import TokenPart, pieces_of, train_tokenizer
from symgen.device import as_dtype, dtype_of
from symgen.masking.mask_values import word_value
from symgen.masking.outputs import masked_outputs
from symgen.masking.prompts import Prompt, first_probability, prompt_inputs, target_tokens
from symgen.models.adapters import merged, trainable
from symgen.models.config import TrainingConfig
from symgen.models.loop import Task
from symgen.models.registry import HUB_ID, identity, on_device, untrained
from symgen.models.training import TrainingRun
from symgen.names import unknown

#: Short names of causal language models; any other id or folder works, too.
CAUSAL_LMS = {
    "gemma-3-270m": "google/gemma-3-270m",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "stories260k": "karpathy/tinyllamas/stories260K",
}
# Defaults of the training of a language model.
TUNING = TrainingConfig(epochs=3, batch_size=32, checkpoints=1, evaluation_size=200)
TUNING_RATE = 3e-3


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model with its tokenizer: loaded, trained here, or your own.

    Attributes:
        name: shown to people.
        model, tokenizer: the model in eval mode, such as a `PeftModel`, and its own tokenizer.
        key: its identity, for `storage.cached`; the dtype of the weights is part of it. Without
            one, results are not stored.
        run: its training, if it was trained here.

    Example:
        >>> from symgen.data.texts import train_tokenizer
        >>> from symgen.masking.prompts import Prompt
        >>> tokenizer = train_tokenizer(["the old sailor will take the rope"])
        >>> mine = LanguageModel("mine", tiny_llama(len(tokenizer)), tokenizer)
        >>> mine.outputs([Prompt.of("the old sailor will take the", " rope", n=2)]).shape
        torch.Size([1, 4])
    """

    name: str
    model: nn.Module
    tokenizer: Any
    key: dict[str, Any] | None = None
    run: TrainingRun | None = None

    @classmethod
    def at(cls, run: TrainingRun, step: int = -1, name: str | None = None) -> "LanguageModel":
        """Return the model of a training at one of its steps."""
        return cls(name or run.network, run.load(step), run.tokenizer, run.key(step), run)

    def reads(self, prompt: Prompt) -> dict[str, Any]:
        """Return how the model reads a prompt: tokens, pieces of the target, probability.

        The probability is that of the first piece, to which v belongs.
        """
        ids, target = target_tokens(prompt, self.tokenizer)
        return {
            "model": self.name,
            "tokens of the prompt": len(ids),
            "target": " ".join(self.tokenizer.convert_ids_to_tokens(target)),
            "begins": self.tokenizer.decode(target[:1]).strip(),
            "probability": first_probability(self.model, self.tokenizer, prompt),
        }

    def outputs(
        self,
        prompts: Sequence[Prompt],
        masking: str = "mean",
        whole: bool = False,
    ) -> Float[Tensor, "sample state"]:
        """Return v (log odds, Eq. 1) on all masked states of some prompts.

        Args:
            prompts: prompts with the same number of variables each.
            masking: see `word_value`.
            whole: whether v is that of the whole target, the sum of the log probabilities of its
                tokens, instead of that of its first token.
        """
        value = word_value(self.model, self.tokenizer, masking)
        ids, targets, variables = prompt_inputs(prompts, self.tokenizer, whole)
        return masked_outputs(self.model, ids, targets, variables, value)


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
) -> LanguageModel:
    """Load a language model, or train a small one with its own tokenizer on some texts.

    Args:
        name: "tiny-llama" to train one here, or a name for `load_causal_lm`.
        texts, test: texts to train and to evaluate on, for "tiny-llama".
        words: number of words of the tokenizer; see `train_tokenizer`.
        width, layers, seed: see `tiny_llama`.
        length, tail: see `pieces_of`.
        epochs, learning_rate: see `train_causal_lm`.
        dtype, device_map: see `load_causal_lm`.

    Raises:
        ValueError: for an unknown name, or "tiny-llama" without texts.
    """
    if name != "tiny-llama":
        model, tokenizer = load_causal_lm(name, dtype, device_map)
        key = {**identity(model), "dtype": str(dtype_of(model))}
        return LanguageModel(name.rstrip("/").split("/")[-1], model, tokenizer, key)
    if isinstance(texts, str) or not len(texts):
        raise ValueError(
            "tiny-llama is trained here and needs a list of texts; give one, or the name of a "
            f"model to load: {', '.join(CAUSAL_LMS)}"
        )
    tokenizer = train_tokenizer(texts, words, pieces=max(100, words // 4))
    model = tiny_llama(len(tokenizer), width, layers, seed)
    pieces = pieces_of(texts, tokenizer, length, tail)
    held_out = pieces_of(test[:200], tokenizer, length, tail)
    run = train_causal_lm(
        model, tokenizer, pieces, held_out, name=f"{name} ({words} words)",
        data=f"{len(texts):,} texts", epochs=epochs, learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    return LanguageModel.at(run)


def load_causal_lm(
    name_or_path: str | Path, dtype: str | None = None, device_map: Any = None
) -> tuple[nn.Module, Any]:
    """Load a causal language model in eval mode, and its tokenizer.

    Args:
        name_or_path: name in `CAUSAL_LMS`, hub id, id under `SYMGEN_DATA`, or path of a folder in
            from_pretrained format. Of a folder with an adapter, the base model is loaded, too, and
            the adapter is merged into it.
        dtype: such as "bfloat16"; None keeps that of the stored weights.
        device_map: "auto" spreads a model over several GPUs, host memory and disk; None uses one
            device.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: if the model is neither on this machine nor on the hub.
        ImportError: if transformers is not installed.
    """
    name = CAUSAL_LMS.get(str(name_or_path), str(name_or_path))
    if not HUB_ID.fullmatch(name) and "/" not in name and local_folder(name) is None:
        choices = ["tiny-llama", *CAUSAL_LMS, "<owner>/<name> on the hub", "a folder"]
        raise unknown("language model", name, choices)
    folder = local_folder(name)
    base = None if folder is None else base_of(folder)
    model = from_pretrained(
        "AutoModelForCausalLM", base or name, dtype="auto" if dtype is None else as_dtype(dtype),
        device_map=device_map,
    )  # fmt: skip
    if folder is not None and base is not None:
        from peft import PeftModel  # pip install 'symgen[lora]'

        model = PeftModel.from_pretrained(model, folder).merge_and_unload()
        if not (folder / "tokenizer_config.json").is_file():
            name = base
    tokenizer = from_pretrained("AutoTokenizer", name)
    return on_device(model) if device_map is None else model.eval(), tokenizer


def base_of(folder: Path) -> str | None:
    """Return the name of the base model of a folder with an adapter; None for other folders."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return None
    base = json.loads(file.read_text()).get("base_model_name_or_path")
    if not base:
        raise ValueError(
            f"{file} names no base model; set base_model_name_or_path in it to the id or folder of "
            "the model that was tuned"
        )
    return base


def tiny_llama(vocabulary: int, width: int = 64, layers: int = 2, seed: int = 0) -> nn.Module:
    """Return an untrained Llama, its weights drawn from the seed alone.

    Args:
        vocabulary: number of tokens.
        width: width of the residual stream, a multiple of 16; heads are 16 wide.
        layers: number of blocks.
        seed: seed of the weights.
    """
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=width // 16,
        max_position_embeddings=1024, tie_word_embeddings=True,
        # The usual 0.02 is for wide models. Narrow ones hardly begin to learn from it.
        initializer_range=width**-0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return untrained(transformers.LlamaForCausalLM, {"config": config}, seed)


def train_causal_lm(
    model: Any,
    tokenizer: Any,
    pieces: Sequence[tuple[Tensor, int]],
    test: Sequence[tuple[Tensor, int]],
    others: Mapping[str, Sequence[tuple[Tensor, int]]] | None = None,
    name: str = "language model",
    data: str = "texts",
    *,
    lora: int = 0,
    cache: bool = True,
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train or fine-tune a causal language model, or reuse the stored run with these arguments.

    The loop is that of `train`, without augmentation. Weights keep their dtype, so load a model in
    float32 to train all of them. Losses are in nats per token.

    Args:
        model: the model before training; it is not changed.
        tokenizer: tokenizer of the model.
        pieces: pieces to train on, from `pieces_of` or `instructions_of`.
        test: pieces to evaluate on.
        others: name to further pieces to evaluate on, such as those of an old domain.
        name, data: shown to people.
        lora: rank of low-rank adapters, which alone are trained; 0 trains all weights.
        cache, progress: see `train`. A model of one's own class, or with hooks, is trained anew.
        **settings: settings of `TrainingConfig`; the default learning rate is 3e-3.

    Raises:
        ValueError: for no pieces, or unknown settings.
        ModuleNotFoundError: for adapters without `peft`, which comes with ``symgen[lora]``.
        FloatingPointError: if the loss becomes NaN or infinite.
    """
    if not len(pieces) or not len(test):
        raise ValueError(
            f"{len(pieces)} pieces to train on and {len(test)} to test on; expected at least 1 each"
        )
    config = TUNING.changed(**settings | {"augment": False}).filled("adamw", TUNING_RATE)
    vocabulary = model.config.get_text_config().vocab_size
    measured = {"test": test, **(others or {})}
    task = Task(
        name,
        lambda: trainable(model, lora),
        TokenPart(pieces, vocabulary),
        {k: TokenPart(some, vocabulary) for k, some in measured.items()},
    )
    key = {**identity(model), "dtype": str(dtype_of(model)), "lora": lora}
    run = TrainingRun(config, task, key, f"{name} on {data}", merged, tokenizer)
    # The weights do not tell what the code of one's own class, or a hook, does with them.
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    if not cache or hooked or not type(model).__module__.startswith("transformers."):
        run.forget()
    run.compute(progress)
    return run
