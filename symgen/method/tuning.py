"""A language model that is tuned on a new domain, followed through its tuning."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from symgen.data.texts import instructions_of, load_instructions, pieces_of, split_texts
from symgen.interactions import Interactions
from symgen.masking.prompts import Prompt
from symgen.method.dynamics import Dynamics
from symgen.method.language import LanguageStudy
from symgen.method.study import refuse_slips
from symgen.models.language import LanguageModel, train_causal_lm
from symgen.models.training import TrainingRun


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A language model that is tuned on a new domain, with a twin tuned on other texts of it.

    Attributes:
        study: the model and the baseline before, and how prompts are masked; its texts are those
            of the old domain.
        dataset: of the new domain; or a set for instruction tuning.
        instructions: whether it is such a set, see `load_instructions`.
        tune_size: texts to tune on; the twin takes as many others.
        tune_epochs, tune_rate, batch_size, lora, mixed_precision, checkpoints: of the tuning; see
            `train_causal_lm`.
    """

    study: LanguageStudy
    dataset: str = "planted-facts-2"
    instructions: bool = False
    tune_size: int | None = 1500
    tune_epochs: int = 2
    tune_rate: float = 0.002
    batch_size: int = 32
    lora: int = 0
    mixed_precision: str = "no"
    checkpoints: int = 4

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Tuning":
        """Return the tuning that a chapter's parameters describe; `old` names the old domain.

        Raises:
            ValueError: for a parameter that is almost one that a tuning or its study has.
        """
        refuse_slips(
            parameters, [f.name for x in (cls, LanguageStudy) for f in dataclasses.fields(x)]
        )
        study = LanguageStudy.of(parameters, dataset=parameters["old"])
        known = {field.name for field in dataclasses.fields(cls)} & parameters.keys()
        return cls(study, **{name: parameters[name] for name in known})

    def __getstate__(self) -> dict[str, Any]:
        """Go to another process as what was asked for, without what it has loaded."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def title(self) -> str:
        """The model and the two domains in words."""
        return f"{self.study.models[0].name} tuned from {self.study.dataset} to {self.dataset}"

    @functools.cached_property
    def _rows(self) -> dict[str, list]:
        """What the new domain consists of, in three parts."""
        if not self.instructions:
            return split_texts(self.dataset)
        rows = load_instructions(self.dataset)
        fifths = [rows[k::5] for k in range(5)]
        return {
            "test": fifths[0], "target": fifths[1] + fifths[2], "baseline": fifths[3] + fifths[4]
        }  # fmt: skip

    @property
    def held(self) -> list[str]:
        """Texts of the new domain that nothing is tuned on."""
        rows = self._rows["test"]
        return [" ".join(row.values()) for row in rows] if self.instructions else rows

    def _pieces(self, part: str) -> list[tuple[Tensor, int]]:
        rows, tokenizer = self._rows[part][: self.tune_size], self.study.models[0].tokenizer
        if self.instructions:
            return instructions_of(rows, tokenizer, self.study.length)
        return pieces_of(rows, tokenizer, self.study.length, self.study.tail)

    @functools.cached_property
    def runs(self) -> tuple[TrainingRun, TrainingRun]:
        """The tuning itself, and that of the twin."""
        base, study = self.study.models[0], self.study
        old = pieces_of(study.texts["test"][:200], base.tokenizer, study.length, study.tail)
        names = ("batch_size", "lora", "mixed_precision", "checkpoints")
        found = [
            train_causal_lm(
                base.model, base.tokenizer, self._pieces(part), self._pieces("test"), {"old": old},
                base.name, self.dataset, seed=study.seed + k, epochs=self.tune_epochs,
                learning_rate=self.tune_rate, **{name: getattr(self, name) for name in names},
            )
            for k, part in enumerate(("target", "baseline"))
        ]  # fmt: skip
        return found[0], found[1]

    @property
    def losses(self) -> pd.DataFrame:
        """Mean loss of a token at each checkpoint: step, label, mean (nats)."""
        names = {"train_loss": "new, tuned on", "test_loss": "new, held out", "old_loss": "old"}
        table = self.runs[0].records.melt("step", list(names), "label", "mean")
        return table.assign(label=table["label"].map(names))

    @functools.cached_property
    def prompts(self) -> list[Prompt]:
        """Held-out texts, cut before a word that the models before and after expect on average."""
        return self.study.draw(self.held, [self.study.models[0], LanguageModel.at(self.runs[0])])

    @functools.cached_property
    def courses(self) -> dict[str, Dynamics]:
        """The interactions at every checkpoint, beside those of the other model and the twin."""
        run, twin = self.runs
        options = {"prompts": self.prompts, "texts": self.held[:1000]}

        def of(model: LanguageModel) -> Interactions:
            return self.study.interactions(model, **options)[1]

        course = [of(LanguageModel.at(run, step)) for step in run.steps]
        others = {self.study.models[1].name: self.study.models[1]}
        others["twin"] = LanguageModel.at(twin, name="twin")
        return {
            name: Dynamics(run.steps, course, [of(other)], run.records)
            for name, other in others.items()
        }
