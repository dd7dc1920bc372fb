"""A language model with its tokenizer, loaded or trained here, and its interactions."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from symgen import networks
from symgen.interactions import Interactions
from symgen.language import language_interactions
from symgen.language_data import pieces_of, tiny_llama, train_tokenizer
from symgen.language_training import LanguageRun, train_causal_lm


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
    run: LanguageRun | None = None

    @classmethod
    def at(cls, run: LanguageRun, step: int = -1, name: str | None = None) -> "LanguageModel":
        """Return the model of a training as it was at a step."""
        return cls(name or run.network, run.load(step), run.tokenizer, run.key(step), run)

    def interactions(self, prompts: Sequence[Any], **options: Any) -> tuple[Tensor, Interactions]:
        """Return v on all masked prompts, and the interactions; see `language_interactions`."""
        return language_interactions(self.model, self.tokenizer, prompts, self.key, **options)


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
    if name != "tiny-llama":
        model, tokenizer = networks.load_causal_lm(name, dtype, device_map)
        # The same weights compute something else with another setting, such as of positions.
        settings = {k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"}
        key = {
            "weights": networks.weights_fingerprint(model),
            "config": json.dumps(settings, sort_keys=True, default=str),
        }
        return LanguageModel(name.split("/")[-1], model, tokenizer, key)
    tokenizer = train_tokenizer(texts, words, pieces=max(100, words // 4))
    model = tiny_llama(len(tokenizer), width, layers, seed)
    parts = [pieces_of(some, tokenizer, length, tail) for some in (texts, test[:200])]
    run = train_causal_lm(
        model, tokenizer, *parts, name=f"{name} ({words} words)", data=f"{len(texts):,} texts",
        epochs=epochs, learning_rate=learning_rate, seed=seed, progress=progress,
    )  # fmt: skip
    return LanguageModel.at(run)
