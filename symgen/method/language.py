"""Two language models with prompts to look at, in one call."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from symgen.data.planted import ANSWERS, planted_answer, planted_reason
from symgen.data.texts import split_texts
from symgen.interactions import Interactions
from symgen.masking.mask_values import mask_ids
from symgen.masking.prompts import Prompt, draw_prompts
from symgen.method.statistics import Interval, cut, interval
from symgen.method.study import refuse_slips
from symgen.method.transfer import generalization_power, interaction_count, transfer
from symgen.models.language import LanguageModel, open_language_model


@dataclasses.dataclass(frozen=True)
class LanguageStudy:
    """What the chapters on language models do at their beginning: texts, two models, prompts.

    A "tiny-llama" is trained on a part of the texts of its own: the model on one half, the baseline
    on the other, or on both where the model comes from elsewhere. Prompts are drawn from the rest.
    Nothing is computed before it is asked for.

    Attributes:
        dataset: of the texts; see `split_texts`.
        model, baseline: see `open_language_model`.
        train_size: texts that a "tiny-llama" learns from; its part without.
        vocabularies: whole words in the tokenizers trained here, of the model and the baseline.
        width, layers, length, tail, epochs, learning_rate, dtype, device_map: see
            `open_language_model`.
        prompt, target, phrases: a prompt of one's own, looked at alone; see `Prompt.of`.
        samples, n, probability: of the prompts that are drawn; see `draw_prompts`.
        masking, whole, noise: see `LanguageModel.interactions`.
        seed: of the model's weights (the baseline has the next one) and of the draws.
    """

    dataset: str = "planted-facts"
    model: str = "tiny-llama"
    baseline: str = "tiny-llama"
    train_size: int | None = None
    vocabularies: Sequence[int] = (200, 60)
    width: int = 64
    layers: int = 2
    length: int = 64
    tail: int = 2
    epochs: int = 4
    learning_rate: float = 0.004
    dtype: str | None = None
    device_map: Any = None
    prompt: str = ""
    target: str = ""
    phrases: Sequence[str] = ()
    samples: int = 12
    n: int = 10
    probability: float = 0.3
    masking: str = "mean"
    whole: bool = False
    noise: float = 0.02
    seed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any], **changes: Any) -> "LanguageStudy":
        """Return the study that a chapter's parameters describe, with some of them changed.

        Raises:
            ValueError: for a parameter that is almost one that it has.
        """
        refuse_slips(parameters, [field.name for field in dataclasses.fields(cls)])
        known = {field.name for field in dataclasses.fields(cls)} & parameters.keys()
        return cls(**{**{name: parameters[name] for name in known}, **changes})

    @property
    def title(self) -> str:
        """The model and what it is asked to continue, in words."""
        texts = "a prompt of one's own" if self.prompt else self.dataset
        return f"{self.models[0].name} on {texts}"

    def __getstate__(self) -> dict[str, Any]:
        """Go to another process as what was asked for, without the models it has loaded."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def texts(self) -> dict[str, list[str]]:
        """The texts in three parts; see `split_texts`."""
        return split_texts(self.dataset)

    @functools.cached_property
    def models(self) -> tuple[LanguageModel, LanguageModel]:
        """The model and the baseline."""
        return self._open(0), self._open(1)

    def train(self, mapped: Callable[..., Iterable] = map) -> None:
        """Train and store both models side by side, where both are trained; `models` finds them.

        Args:
            mapped: calls a function for each of some items; see `symgen.Chapter.map`.
        """
        if self.model == self.baseline == "tiny-llama":
            list(mapped(self._trained, range(2)))

    def _trained(self, which: int) -> None:
        self._open(which)

    def _open(self, which: int) -> LanguageModel:
        """Return the model, 0, or the baseline, 1."""
        texts = self.texts[("target", "baseline")[which]]
        if which and self.model != "tiny-llama":
            texts = texts + self.texts["target"]
        names = ("width", "layers", "length", "tail", "epochs", "learning_rate", "dtype")
        return open_language_model(
            (self.model, self.baseline)[which], texts[: self.train_size], self.texts["test"],
            words=self.vocabularies[which], seed=self.seed + which, device_map=self.device_map,
            **{name: getattr(self, name) for name in names},
        )  # fmt: skip

    @functools.cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts: one's own, or texts cut before a word that the model expects."""
        if self.prompt:
            return [Prompt.of(self.prompt, self.target, self.phrases or None, self.n)]
        return self.draw(self.texts["test"], self.models[:1])

    def draw(self, texts: Sequence[str], judges: Sequence[LanguageModel]) -> list[Prompt]:
        """Return prompts cut before a word that some models expect on average."""
        return draw_prompts(
            texts, [(known.model, known.tokenizer) for known in judges], self.samples, self.n,
            self.probability, tokenizers=[self.models[1].tokenizer], seed=self.seed,
        )  # fmt: skip

    def interactions(
        self, model: LanguageModel, prompts: Sequence[Prompt] | None = None, **changes: Any
    ) -> tuple[Tensor, Interactions]:
        """Return v of a model on all masked prompts, shape (sample, 2**n), and its interactions.

        Args:
            model: such as one of `models`.
            prompts: those of the study without.
            **changes: of the arguments of `LanguageModel.interactions`.
        """
        options = {"masking": self.masking, "whole": self.whole, "noise": self.noise}
        options |= {"texts": self.texts["test"][:1000], **changes}
        return model.interactions(self.prompts if prompts is None else prompts, **options)

    def maskings(
        self, choices: Sequence[str], count: int = 10
    ) -> tuple[dict[str, Interactions], pd.DataFrame]:
        """Return what hangs on what stands in place of a masked word.

        Args:
            choices: see `word_value`; that of the study is added, and texts that are no single
                token of the model are left out.
            count: of prompts to look at, the first ones.

        Returns:
            The interactions by choice, and a table: measure, masking, mean, low95, high95.
            Measures are v with all words masked (log odds), the number of interactions that hold
            80 % of the strength (Eq. 9, 10), and the share of the strength, found with the study's
            choice, that this choice finds too (Eq. 8).
        """
        found = {}
        for choice in dict.fromkeys([*choices, self.masking]):
            try:
                mask_ids(self.models[0].tokenizer, choice, ())
            except ValueError:
                continue
            prompts = self.prompts[:count]
            _, found[choice] = self.interactions(self.models[0], prompts, masking=choice)
        usual = found[self.masking]
        measures = {
            "v(none)": lambda inter: interval(inter.bias),
            "interactions": lambda inter: cut(interval(interaction_count(inter)), 0),
            # Of the choice itself it is no measurement.
            "shared": lambda inter: (
                Interval(1.0, 1.0, 1.0)
                if inter is usual
                else interval(generalization_power(usual, transfer(usual, inter)), share=True)
            ),
        }
        rows = [
            (name, choice, *measure(inter))
            for name, measure in measures.items()
            for choice, inter in found.items()
        ]
        return found, pd.DataFrame(rows, columns=["measure", "masking", "mean", "low95", "high95"])


def strongest_table(inter: Interactions, prompts: Sequence[Prompt]) -> pd.DataFrame:
    """Return the strongest interaction of each prompt, and whether it is the planted one.

    Args:
        inter: of the prompts.
        prompts: as many.

    Returns:
        Columns prompt, target, type ("and", "or" or "none"), members, effect (log odds; NaN where
        there is none), and "as planted": whether its words, all of them, and its type are those of
        `planted_reason`; missing where nothing is planted.
    """
    effects = inter.to_frame([prompt.labels for prompt in prompts]).groupby("sample").first()
    rows = []
    for sample, prompt in enumerate(prompts):
        first = ("none", "", math.nan)
        if sample in effects.index:
            first = tuple(effects.loc[sample, ["type", "members", "effect"]])
        reason = _reason(prompt)
        same = (first[0], set(first[1].split(", "))) == reason if reason else None
        rows.append((prompt.text, prompt.target, *first, same))
    names = ["prompt", "target", "type", "members", "effect", "as planted"]
    return pd.DataFrame(rows, columns=names).astype({"as planted": "boolean"})


def _reason(prompt: Prompt) -> tuple[str, set[str]] | None:
    """Return type and words of the interaction that is planted in a prompt, if any."""
    words = prompt.text.split()
    if words[-1] not in ANSWERS:
        return None
    answers = [planted_answer(words[-1], words, domain) for domain in (0, 1)]
    kind, variables = planted_reason(words[-1], prompt.words)
    known = variables and prompt.target.strip() in answers
    return (kind, set(variables)) if known else None
