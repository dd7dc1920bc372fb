"""Two language models with prompts to look at, and a fine-tuning followed by its interactions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.data.texts import instructions_of, load_instructions, pieces_of, split_texts
from symgen.device import progress_bar
from symgen.interactions import Interactions
from symgen.masking.prompts import Prompt, draw_prompts
from symgen.method.generalization import (
    excess,
    generalization_power,
    order_spectrum,
    transfer,
)
from symgen.method.study import Settings, cached_split, plain, seeded
from symgen.method.training_curves import checkpoint_values, tidy
from symgen.method.trainings import Part, Trainings
from symgen.models.language import LanguageModel, open_language_model, train_causal_lm
from symgen.models.training import TrainingRun
from symgen.storage import cached, fingerprint


@dataclasses.dataclass(frozen=True)
class LanguageStudy(Settings):
    """Texts, two language models and prompts: the start of the chapters on language models.

    A "tiny-llama" is trained on its own part of the texts: the model on one half, the baseline on
    the other, or on both if the model comes from elsewhere. Prompts are drawn from the rest.
    Nothing is computed before it is asked for. Outputs are stored prompt by prompt, so that an
    interrupted run continues where it stopped.

    Attributes:
        dataset: data set of the texts; see `split_texts`.
        model, baseline: "tiny-llama" or a hub id such as "google/gemma-3-270m"; see
            `open_language_model`.
        train_size: texts that a "tiny-llama" learns from; None means all of its part.
        vocabularies: whole words in the tokenizers of "tiny-llama", of model and baseline.
        width, layers, length, tail, epochs, learning_rate, dtype, device_map: see
            `open_language_model`.
        samples, n, probability: settings of the prompts that are drawn; see `draw_prompts`.
        masking: replacement of masked words; see `word_value`.
        noise, tol: see `sparsify`.
        seed: seed of the tuning and of the draws.
        model_seed: seed of the weights of a "tiny-llama" (baseline: model_seed + 1). All tunings
            of a study start from the same models.
        tune_dataset: texts of a new domain to tune the model on; or a set of instructions.
        instructions: whether it is such a set; see `load_instructions`.
        tune_size: texts to tune on, drawn anew for each seed. A twin is tuned on as many other
            texts of the same domain.
        tune_epochs, tune_rate, batch_size, lora, mixed_precision, checkpoints, evaluation_size:
            settings of the tuning; see `train_causal_lm`.
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
    samples: int = 12
    n: int = 10
    probability: float = 0.3
    masking: str = "mean"
    noise: float = 0.02
    tol: float = 1e-3
    seed: int = 0
    model_seed: int = 0
    tune_dataset: str = "planted-facts-2"
    instructions: bool = False
    tune_size: int | None = 1500
    tune_epochs: int = 2
    tune_rate: float = 0.002
    batch_size: int = 32
    lora: int = 0
    mixed_precision: str = "no"
    checkpoints: int | Sequence[int] = 4
    evaluation_size: int = 200

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: another process loads texts and models itself."""
        return {name: getattr(self, name) for name in self.setting_names()}

    @property
    def identity(self) -> dict[str, Any]:
        """All settings except the seed; and fingerprints of texts on this machine."""
        local = [name for name in (self.dataset, self.tune_dataset) if Path(name).exists()]
        texts = [fingerprint(split_texts(name)) for name in local]
        return {**plain(self.__getstate__()), "local": texts}

    @property
    def is_stored(self) -> bool:
        """Whether measurements are kept: not those of models in a folder, which may change."""
        return not any(Path(name).exists() for name in (self.model, self.baseline))

    @property
    def title(self) -> str:
        """Model and texts in words."""
        return f"{self.model.split('/')[-1]} on {self.dataset.split('/')[-1]}"

    @functools.cached_property
    def texts(self) -> dict[str, list[str]]:
        """The texts in three parts: "target", "baseline" and "test"."""
        return split_texts(self.dataset)

    @functools.cached_property
    def models(self) -> tuple[LanguageModel, LanguageModel]:
        """The model and the baseline."""
        return self._open(0), self._open(1)

    def _open(self, k: int) -> LanguageModel:
        texts = self.texts[("target", "baseline")[k]]
        if k and self.model != "tiny-llama":
            texts = texts + self.texts["target"]
        names = ("width", "layers", "length", "tail", "epochs", "learning_rate", "dtype")
        return open_language_model(
            (self.model, self.baseline)[k],
            texts[: self.train_size],
            self.texts["test"],
            words=self.vocabularies[k],
            seed=self.model_seed + k,
            device_map=self.device_map,
            **{name: getattr(self, name) for name in names},
        )

    @functools.cached_property
    def prompts(self) -> list[Prompt]:
        """Test texts, cut before a word that the model expects."""
        return self._draw(self.texts["test"], self.models[:1])

    def _draw(self, texts: Sequence[str], judges: Sequence[LanguageModel]) -> list[Prompt]:
        return draw_prompts(
            texts,
            [(x.model, x.tokenizer) for x in judges],
            self.samples,
            self.n,
            self.probability,
            tokenizers=[self.models[1].tokenizer],
            seed=self.seed,
        )

    def outputs(
        self, model: LanguageModel, prompts: Sequence[Prompt] | None = None, masking: str = ""
    ) -> Float[Tensor, "sample state"]:
        """Return v of a model on all masked prompts, each stored in the cache.

        Args:
            model: language model, such as one of `models`.
            prompts: prompts to run; by default those of the study.
            masking: replacement of masked words; by default that of the study.
        """
        return self._outputs(model.key, lambda: model, prompts, masking)

    def _outputs(
        self,
        key: Mapping | None,
        load: Callable[[], LanguageModel],
        prompts: Sequence[Prompt] | None,
        masking: str,
    ) -> Tensor:
        masking = masking or self.masking
        prompts = self.prompts if prompts is None else prompts

        def one(prompt: Prompt) -> Tensor:
            everything = {"model": key, "prompt": prompt, "masking": masking}
            # These keep the key of outputs that are already stored.
            everything |= {"corpus": [], "whole": False}

            def compute() -> dict[str, Tensor]:
                return {"v": load().outputs([prompt], masking=masking)}

            return cached("language", everything, compute, enabled=key is not None)["v"]

        bar = progress_bar(prompts, desc="prompts", delay=3, leave=False)
        return torch.cat([one(prompt) for prompt in bar])

    def interactions(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt] | None = None,
        masking: str = "",
        few: bool = False,
    ) -> Interactions:
        """Return the interactions of a model on the prompts, which know their words.

        Args:
            model, prompts, masking: see `outputs`.
            few: whether to return a model with few effects; see `sparsify`.
        """
        prompts = self.prompts if prompts is None else prompts
        v = self.outputs(model, prompts, masking)
        return cached_split(v, self.noise, self.tol, few, [prompt.labels for prompt in prompts])

    @functools.cached_property
    def _domain(self) -> dict[str, list]:
        """The new domain in three parts."""
        if not self.instructions:
            return split_texts(self.tune_dataset)
        rows = load_instructions(self.tune_dataset)
        fifths = [rows[k::5] for k in range(5)]
        halves = {"target": fifths[1] + fifths[2], "baseline": fifths[3] + fifths[4]}
        return {"test": fifths[0], **halves}

    @functools.cached_property
    def tunings(self) -> tuple[TrainingRun, TrainingRun]:
        """The tuning of the model on the new domain, and that of its twin on other texts of it.

        The twin is stored before and after its tuning only.
        """
        base, tokenizer = self.models[0], self.models[0].tokenizer
        texts = self.texts["test"][: self.evaluation_size]
        old = pieces_of(texts, tokenizer, self.length, self.tail)
        names = ("batch_size", "lora", "mixed_precision", "evaluation_size")

        def pieces(part: str) -> list:
            rows = self._domain[part]
            # Each tuning has texts of its own.
            draw = torch.Generator().manual_seed(self.seed)
            chosen = torch.randperm(len(rows), generator=draw)[: self.tune_size]
            rows = [rows[i] for i in chosen]
            if self.instructions:
                return instructions_of(rows, tokenizer, self.length)
            return pieces_of(rows, tokenizer, self.length, self.tail)

        def tuned(part: str, seed: int, checkpoints: int | Sequence[int]) -> TrainingRun:
            return train_causal_lm(
                base.model,
                tokenizer,
                pieces(part),
                pieces("test"),
                {"old": old},
                base.name,
                self.tune_dataset,
                seed=seed,
                epochs=self.tune_epochs,
                checkpoints=checkpoints,
                learning_rate=self.tune_rate,
                **{name: getattr(self, name) for name in names},
            )

        return tuned("target", self.seed, self.checkpoints), tuned("baseline", self.seed + 1, 1)

    @functools.cached_property
    def tuned_prompts(self) -> list[Prompt]:
        """Held-out texts of the new domain, cut before a word that is expected on average.

        The average is over the model before and after tuning.
        """
        texts = self._domain["test"]
        if self.instructions:
            texts = [" ".join(row.values()) for row in texts]
        return self._draw(texts, [self.models[0], LanguageModel.at(self.tunings[0])])

    def tuned(self, run: TrainingRun, step: int = -1) -> Interactions:
        """Return the interactions of a tuned model on the prompts of the new domain.

        Args:
            run: one of `tunings`.
            step: step of the checkpoint; 0 is the model before tuning, -1 is the last.
        """
        load = functools.cache(lambda: LanguageModel.at(run, step))
        v = self._outputs(run.key(step), load, self.tuned_prompts, "")
        return cached_split(v, self.noise, self.tol, False, [p.labels for p in self.tuned_prompts])


def measure_tuning(
    study: LanguageStudy,
    seeds: int | Iterable[int] | None = None,
    workers: int | None = None,
    store: Trainings | None = None,
) -> pd.DataFrame:
    """Tune a language model with several seeds and measure it at every checkpoint (App. P).

    Args:
        study: study with a domain to tune on.
        seeds: how many tunings, with seeds 10 apart; or the seeds themselves; None
            means `study.seed` alone.
        workers, store: see `measure`.

    Returns:
        Columns seed, step, quantity, order, sign, value. Quantities per checkpoint: epoch,
        train_loss, test_loss (held-out texts), old_loss (old domain; nats per token), and those of
        `checkpoint_values` with the study's baseline. Also H_twin and excess_twin (the twin as
        baseline); strength_low, strength_middle, strength_high (orders 1-2, 3-5, 6 and up). Values
        are means over prompts. Texts differ in length, so tunings differ in their number of steps:
        the k-th checkpoint of each has the step of the longest.

    Raises:
        OutOfTime: see `Trainings`.
    """
    part = Part(_measured, lambda rows: rows["quantity"].notna())
    table = (store or Trainings()).table("tuning", seeded(study, seeds), [part], workers)
    k = table.groupby("seed")["step"].rank("dense")
    return table.assign(step=table.groupby(k)["step"].transform("max"))


def _measured(study: LanguageStudy) -> pd.DataFrame:
    run, twin = study.tunings
    other = study.interactions(study.models[1], study.tuned_prompts)
    last_twin = study.tuned(twin)
    groups = {"low": slice(1, 3), "middle": slice(3, 6), "high": slice(6, None)}
    records = run.records.set_index("step")
    path: Any = records[["epoch", "train_loss", "test_loss", "old_loss"]].to_dict("index")
    for step, values in path.items():
        inter = study.tuned(run, step)
        values |= checkpoint_values(inter, [other])
        shared = transfer(inter, last_twin)
        values["H_twin"] = generalization_power(inter, shared).nanmean()
        values["excess_twin"] = excess(inter, last_twin).nanmean()
        strength = order_spectrum(inter).abs().sum(-2)
        for name, orders in groups.items():
            values[f"strength_{name}"] = strength[:, orders].sum(-1).mean()
    return tidy(study.seed, path)
