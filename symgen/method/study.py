"""A target network and its baselines on a data set, with the samples to look at, in one call."""

import copy
import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.data.datasets import Data, Samples, load_dataset
from symgen.data.hub import resolve
from symgen.files import own_folder
from symgen.fingerprints import code_fingerprint, refusal, same_numbers
from symgen.interactions import Interactions
from symgen.literal import nearest
from symgen.masking.extraction import identity, split_outputs
from symgen.masking.hooks import Inputs
from symgen.masking.mask_values import MaskValue, find_layer, mean_feature, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.patches import ImageVariables, draw_patches
from symgen.masking.spans import TextVariables, draw_words
from symgen.memory import as_dtype, check_states, device_of, dtype_of
from symgen.method.dynamics import Dynamics, track
from symgen.models.builders import is_builder
from symgen.models.config import TrainingConfig, configured
from symgen.models.loop import sample_losses
from symgen.models.registry import build_network, registered
from symgen.models.training import TrainingRun, builder_identity, train
from symgen.split.sparsify import MAX_VARIABLES
from symgen.storage import cached

# Enough images for a mean that one more would not change visibly, drawn with this seed.
MEAN_OVER, MEAN_SEED = 1000, 0
# Images that are read at once for it.
MEAN_BATCH = 256
TRAINING = TrainingConfig(epochs=60, checkpoints=12, augment=False)
SETTINGS = tuple(f.name for f in dataclasses.fields(TrainingConfig) if f.name != "seed")
# Parameters of chapters that are no slips of the pen for one that a study has.
CHAPTERS_OWN = {"seeds", "sample", "layers", "baseline", "label_noises", "maskings"}


@same_numbers
def by_its_own_tokenizer(load: Callable[["Study"], Data]) -> Callable[["Study"], Data]:
    """Have texts cut as a network was taught that comes with a tokenizer: it takes no other."""

    @functools.wraps(load)
    def data(study: "Study") -> Data:
        name = study.network
        if name in registered() or is_builder(name):
            return load(study)
        return load_dataset(
            study.dataset, train_size=study.train_size, label_noise=study.label_noise,
            split=study._split, tokenizer=resolve(name), seed=study.seed,
        )  # fmt: skip

    return data


@refusal
def refuse_slips(parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a parameter that would be passed over, and is almost one that a study has.

    Raises:
        ValueError: with the one that may be meant.
    """
    for name in parameters.keys() - {*known, *CHAPTERS_OWN}:
        if found := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            raise ValueError(
                f'a study has no "{name}". Did you mean "{found[0]}"? A parameter that is another '
                "one's may have any name less like it."
            )


@dataclasses.dataclass(frozen=True)
class Study:
    """What the chapters do at their beginning: data, trained networks, samples and variables.

    Networks come from the cache where they were trained before, and so do outputs. Nothing is
    computed before it is asked for.

    Images: patches of a grid, masked at the output of a layer by its mean over the images of the
    part the samples come from. Texts: content words, masked by the embedding of [MASK]; samples
    with fewer than n of them are left out (App. A.1).

    Attributes:
        dataset, network: names; see `load_dataset` and `build_network`.
        train_size, label_noise: see `load_dataset`.
        options: of the architecture, such as ``{"width": 32}``; see `build_network`.
        baselines: number of baseline networks, each trained on a part of its own (2 is what App. C
            takes); 0 leaves the target alone, with a half of the data all the same.
        split: see `load_dataset`; by default halves, or as many parts as there are networks.
        samples: how many to look at.
        n: number of variables.
        grid: cells along each side of an image.
        layer: of the network at which images are masked; "input" for the images themselves.
        noise, tol: see `sparsify`.
        seed: of the split, of the target's weights (a baseline k = 1, 2, ... has seed + k), of
            the samples and the variables.
        training: how the networks are trained.
        dtype: of the networks while masked samples run through them, such as "bfloat16", which
            takes half the memory of a GPU; None keeps that of their weights.

    Example:
        >>> study = Study.of({"train_size": 100, "epochs": 2, "samples": 4, "n": 6})
        >>> study.data.spec["classes"], len(study.names)
        (10, 3)
    """

    dataset: str = "digits"
    network: str = "cnn"
    train_size: int | None = 300
    label_noise: float = 0.0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    baselines: int = 2
    split: str | None = None
    samples: int = 20
    n: int = 10
    grid: int = 5
    layer: str = "first_relu"
    noise: float = 0.02
    tol: float = 1e-3
    seed: int = 0
    training: TrainingConfig = TRAINING
    dtype: str | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any], **changes: Any) -> "Study":
        """Return the study that a chapter's parameters describe, with some of them changed.

        Args:
            parameters: of a chapter; those that neither a study nor a `TrainingConfig` has are
                passed over, unless they are almost one of theirs.
            **changes: to make; each must be one that a study or its training has.

        Raises:
            ValueError: for a change of something else, or what looks like a slip of the pen.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        refuse_slips(parameters, [*known, *SETTINGS])
        return cls().changed(**{
            **{k: v for k, v in parameters.items() if k in {*known, *SETTINGS}}, **changes
        })  # fmt: skip

    def changed(self, **changes: Any) -> "Study":
        """Return the same study with some attributes, or settings of its training, changed."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in {*known, *SETTINGS}:
                listed = ", ".join([*known, *SETTINGS])
                raise ValueError(
                    f'a study has no "{name}"; it has {listed}.{nearest(name, [*known, *SETTINGS])}'
                )
        training = {k: changes.pop(k) for k in SETTINGS if k in changes}
        if training:
            changes["training"] = configured(self.training, training)
        new = dataclasses.replace(self, **changes)
        # What other samples or variables do not touch is kept.
        if changes.keys() <= {"samples", "n", "grid", "layer", "noise", "tol", "dtype"}:
            kept = {k: v for k, v in self.__dict__.items() if k in ("data", "runs")}
            new.__dict__.update(kept)
        return new

    @property
    def title(self) -> str:
        """Network and data set in words."""
        return f"{self.network} on {self.dataset}"

    @property
    def label(self) -> str:
        """The title with what sets studies of one network and data set apart."""
        wrong = f", {self.label_noise:.0%} wrong labels" if self.label_noise else ""
        size, own = self.train_size or "all", "".join(f", {k} {v}" for k, v in self.options.items())
        return f"{self.title} ({size} training samples{wrong}{own}; n = {self.n})"

    @functools.cached_property
    @by_its_own_tokenizer
    def data(self) -> Data:
        """The data set, split."""
        return load_dataset(
            self.dataset, train_size=self.train_size, label_noise=self.label_noise,
            split=self._split, seed=self.seed,
        )  # fmt: skip

    @property
    def _split(self) -> str:
        return self.split or ("halves" if self.baselines <= 1 else f"parts:{self.baselines}")

    @property
    def names(self) -> list[str]:
        """The parts of the data that the target and each baseline are trained on."""
        if self._split == "thirds":
            return ["A", "B", "C"]
        numbered = [f"baseline{k}" for k in range(1, self.baselines + 1)]
        if not self._split.startswith("parts"):
            numbered = ["baseline"][: self.baselines]
        return ["target", *numbered]

    @functools.cached_property
    def runs(self) -> list[TrainingRun]:
        """The trained networks: target first, then the baselines."""
        return [self.trained(k) for k in range(len(self.names))]

    def trained(self, k: int, **changes: Any) -> TrainingRun:
        """Return one of the `runs`: the target is number 0, the baselines follow.

        Args:
            k: its number.
            **changes: of `train`, such as ``term`` or a setting of the training.
        """
        return train(
            self.network, self.data, self.names[k], self.training, seed=self.seed + k,
            options=dict(self.options), **changes,
        )  # fmt: skip

    @property
    def key(self) -> dict[str, Any]:
        """What identifies the study: its settings, and the reader's own data and network, if any.

        Those have a name in the settings, and may be others tomorrow.
        """
        local = self.data.part("test").fingerprint if own_folder(self.dataset) else None
        network = builder_identity(
            self.network, lambda: build_network(self.network, **self.data.spec)
        )
        return {"study": self, "data": local, "network": network}

    @property
    def accuracies(self) -> pd.DataFrame:
        """One row a network: what it was trained on, for how long, and what it reaches.

        The skill is the share of the way from guessing to faultless that its test accuracy went.
        """
        chance, rows = 1 / self.data.spec["classes"], []
        for part, run in zip(self.names, self.runs, strict=True):
            last = run.records.iloc[-1]
            rows.append({
                "network": self.network, "data": self.dataset.split("/")[-1], "part": part,
                "classes": self.data.spec["classes"], "samples": len(self.data.part(part)),
                "wrong labels": self.label_noise, "epochs": self.training.epochs,
                "training accuracy": float(last["train_accuracy"]),
                "test accuracy": float(last["test_accuracy"]), "chance": chance,
                "skill": (float(last["test_accuracy"]) - chance) / (1 - chance),
            })  # fmt: skip
        return pd.DataFrame(rows)

    def drawn(self, part: str = "test") -> tuple[Samples, ImageVariables | TextVariables]:
        """Return samples of a part of the data, and their variables.

        Raises:
            ValueError: for more variables than `sparsify` takes.
            MemoryError: where the states of all samples, or their split, cannot be held.
        """
        if part not in self._drawn:
            self._drawn[part] = self._draw(part)
        return self._drawn[part]

    @functools.cached_property
    def _drawn(self) -> dict[str, tuple[Samples, ImageVariables | TextVariables]]:
        return {}

    def _draw(self, part: str) -> tuple[Samples, ImageVariables | TextVariables]:
        if self.n > MAX_VARIABLES:
            raise ValueError(
                f"n = {self.n}: a sample would have 2^{self.n} = {2**self.n:,} masked states, and "
                f"interactions are extracted for n <= {MAX_VARIABLES}; group variables into fewer, "
                "larger ones"
            )
        check_states(self.samples, self.n)
        chosen = self.data.sample(self.samples, part=part, seed=self.seed)
        if self.data.kind == "image":
            return chosen, draw_patches(len(chosen), n=self.n, grid=self.grid, seed=self.seed)
        texts = [chosen.show(i) for i in range(len(chosen))]
        length = chosen.x["input_ids"].shape[1]
        variables, kept = draw_words(
            texts, self.data.tokenizer, n=self.n, seed=self.seed, max_length=length
        )
        return chosen[kept], variables

    def mask_value(
        self, model: nn.Module, part: str = "test", key: Mapping | None = None
    ) -> MaskValue:
        """Return what masked variables of a network are replaced by.

        Args:
            model: for this data set.
            part: of the data, whose images a mean is over.
            key: what identifies the network; with it a mean over images is stored, since every
                class and all samples have it alike.
        """
        if self.data.kind == "text":
            return token_embedding(model, self.data.tokenizer.mask_token_id)
        images = self.data.part(part)
        generator = torch.Generator().manual_seed(MEAN_SEED)
        index = torch.randperm(len(images), generator=generator)[:MEAN_OVER]

        def mean() -> MaskValue:
            batches = (images.batch(some)[0] for some in index.split(MEAN_BATCH))
            return mean_feature(model, batches, layer=self._layer)

        if key is None:
            return mean()
        everything = {"network": dict(key), "masked by": self._masked_by(part)}
        value = cached("mask_values", everything, lambda: {"value": mean().value})["value"]
        one = images.batch(index[:1])[0].to(device_of(model), dtype_of(model))
        return MaskValue(value, self._layer and find_layer(model, self._layer, one))

    @property
    def _layer(self) -> str | None:
        return None if self.layer == "input" else self.layer

    def _masked_by(self, part: str) -> dict[str, Any]:
        """Return what decides the `mask_value` of a network, besides the network."""
        if self.data.kind == "text":
            code, token = code_fingerprint(token_embedding), self.data.tokenizer.mask_token_id
            return {"token": token, "dtype": self.dtype, "code": code}
        images = {"images": self.data.part(part).fingerprint, "count": MEAN_OVER}
        code = code_fingerprint(mean_feature)
        masked = {"layer": self._layer, "dtype": self.dtype, "seed": MEAN_SEED}
        return {**masked, **images, "code": code}

    def outputs(
        self, model: nn.Module, key: Mapping | None = None, part: str = "test",
        classes: Int[Tensor, " sample"] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return v of a network on all masked states of the samples, shape (sample, 2**n).

        Args:
            model: for this data set.
            key: what identifies it, such as `TrainingRun.key`; with it v is stored.
            part: of the data.
            classes: whose output v is; those of the samples without.
        """
        chosen, variables = self.drawn(part)
        value = functools.partial(self.mask_value, part=part, key=key)
        key = None if key is None else {"network": dict(key), "masked by": self._masked_by(part)}
        wanted = chosen.y if classes is None else classes
        if self.dtype is not None:
            model = copy.deepcopy(model).to(as_dtype(self.dtype))
        return masked_outputs(model, chosen.x, wanted, variables, value, key=key)

    def extract(
        self, model: nn.Module, key: Mapping | None = None, part: str = "test",
        classes: Int[Tensor, " sample"] | None = None,
    ) -> Interactions:  # fmt: skip
        """Return the interactions of a network on the samples (arguments as of `outputs`).

        They know the words of texts and, with a key, what identifies network and samples.
        """
        found = split_outputs(self.outputs(model, key, part, classes), self.noise, self.tol)
        chosen, variables = self.drawn(part)
        about = identity(key, Inputs(chosen.x, chosen.y if classes is None else classes), variables)
        names = getattr(variables, "words", ()) or None
        return dataclasses.replace(found, names=names, about=about)

    def nulls(self, part: str = "test") -> dict[str, list[Interactions]]:
        """Return interactions that share with the baselines' all but what these have learned.

        Those of the baselines before training ("untrained"), and those of the baselines for
        another class than the true one, the one after it ("other_class").
        """
        others = self.runs[1:]
        wrong = (self.drawn(part)[0].y + 1) % self.data.spec["classes"]
        return {
            "untrained": [self.extract(x.load(0), x.key(0), part) for x in others],
            "other_class": [self.extract(x.load(), x.key(), part, wrong) for x in others],
        }

    def follow(self, steps: Sequence[int] | None = None, part: str = "test") -> Dynamics:
        """Return the target's interactions at some checkpoints, with those of the baselines.

        Args:
            steps: checkpoints; all without.
            part: of the data.
        """
        # First, since samples that cannot be had are to be found out before anything is trained.
        self.drawn(part)
        target, *others = self.runs
        return track(target, others, functools.partial(self.extract, part=part), steps)

    def losses(
        self, steps: Sequence[int], size: int = 500
    ) -> dict[int, tuple[Float[Tensor, "train"], Float[Tensor, "test"]]]:
        """Return the target's losses (nats) on single training and test samples at some steps.

        Args:
            steps: checkpoints.
            size: how many samples of each kind at most, the same at every step.
        """
        parts, found = [self.data.part(name) for name in (self.names[0], "test")], {}
        for step in steps:
            model = self.runs[0].load(step)
            found[step] = tuple(sample_losses(model, part, size) for part in parts)
        return found

    def looked_at(self, first_epoch: float = 0.0, looks: int | None = None) -> list[int]:
        """Return the steps of the checkpoints that `dynamics` looks at (arguments as there)."""
        if looks is not None and looks < 2:
            raise ValueError(f"looks={looks}: expected at least 2, before and after training")
        records = self.runs[0].records
        ends = records["step"].isin(self.runs[0].steps[:: len(records) - 1])
        steps = records["step"][ends | (records["epoch"] >= first_epoch)].tolist()
        if looks is not None and looks < len(steps):
            steps = [steps[round(i * (len(steps) - 1) / (looks - 1))] for i in range(looks)]
        return steps

    def dynamics(self, first_epoch: float = 0.0, looks: int | None = None) -> Dynamics:
        """Return the target followed through training, with the losses of single samples.

        Args:
            first_epoch: checkpoints before it are passed over, all but the untrained network and
                the last.
            looks: at how many of the others to look, 2 or more, evenly chosen; at all without.

        Raises:
            ValueError: for fewer than two.
        """
        self.drawn()  # as in `follow`
        steps = self.looked_at(first_epoch, looks)
        return dataclasses.replace(self.follow(steps), losses=self.losses(steps))

    def interactions(self, part: str = "test") -> tuple[Interactions, list[Interactions]]:
        """Return the interactions of the trained target, and of each baseline, on the samples."""
        found = self.follow([-1], part)
        return found.interactions[0], found.baselines
