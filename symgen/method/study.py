"""A target network and its baselines on a data set, with the samples to look at, in one value."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.data.datasets import Data, Samples, load_dataset
from symgen.data.splits import part_names
from symgen.device import as_dtype, check_states, device
from symgen.interactions import TENSORS, Interactions
from symgen.masking.mask_values import MaskValue, mean_feature, token_embedding
from symgen.masking.outputs import GPU_LAST, masked_outputs
from symgen.masking.variables import ImageVariables, TextVariables, draw_patches, draw_words
from symgen.models.config import TrainingConfig
from symgen.models.loop import recalibrated
from symgen.models.own import Checkpoints, PretrainedNetwork
from symgen.models.registry import build_network, data_options
from symgen.models.training import TrainingRun, train
from symgen.names import refuse_unknown
from symgen.split.sparsify import MAX_VARIABLES, sparsify
from symgen.storage import cached

# What `outputs` and `interactions` take.
Network = TrainingRun | Checkpoints | PretrainedNetwork
# The mean feature is taken over so many images, drawn with this seed, in batches of this size.
MEAN_OVER, MEAN_SEED, MEAN_BATCH = 1000, 0, 256
TRAINING = TrainingConfig(epochs=60, checkpoints=12, augment=False)
#: Settings of the training; the study has its own seed.
OF_TRAINING = tuple(f.name for f in dataclasses.fields(TrainingConfig) if f.name != "seed")
FLOATS = ("label_noise", "noise", "tol", "learning_rate", "weight_decay")
# Settings that decide the data.
OF_DATA = ("dataset", "network", "train_size", "label_noise", "baselines", "split", "seed")


S = TypeVar("S", bound="Settings")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a `Study` and a `LanguageStudy` have in common: settings that have names."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of all settings."""
        return [f.name for f in dataclasses.fields(cls) if f.name != "shared"]

    @classmethod
    def of(cls: type[S], parameters: Mapping[str, Any], **changes: Any) -> S:
        """Return the study with these settings.

        Args:
            parameters: settings by name, such as `Chapter.settings`.
            **changes: more settings, in place of those.

        Raises:
            ValueError: for an unknown setting, with the nearest known one.
        """
        return cls().changed(**{**parameters, **changes})

    def changed(self: S, **changes: Any) -> S:
        """Return the study with some settings changed.

        Raises:
            ValueError: for an unknown setting.
        """
        refuse_unknown("setting of a study", changes, self.setting_names())
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Study(Settings):
    """Data, trained networks, samples and variables: the start of most chapters.

    Nothing is computed before it is asked for. Trained networks and their outputs are stored in the
    cache and reused.

    Images: the variables are patches of a grid, masked at a layer by its mean over images of the
    same part. Texts: the variables are content words, masked by the embedding of [MASK]; samples
    with fewer than n of them are left out (App. A.1).

    Attributes:
        dataset, network: names; see `load_dataset` and `build_network`.
        train_size, label_noise: see `load_dataset`.
        options: options of the architecture, such as ``{"width": 32}``; see `build_network`.
        baselines: number of baseline networks, each trained on its own part of the data (App. C
            takes 2); 0 trains the target alone.
        split: see `load_dataset`; by default halves, or as many parts as there are networks.
        samples: number of samples to look at.
        n: number of variables per sample.
        grid: cells along each side of an image.
        layer: layer at which images are masked; "input" for the images themselves.
        noise, tol: see `sparsify`.
        seed: seed of the split, of the target's weights (baseline k = 1, 2, ... has seed + k), of
            the samples and of the variables.
        training: how the networks are trained.
        dtype: dtype of the networks while masked samples run through them, such as "bfloat16"; None
            keeps that of their weights.

    Example:
        >>> study = Study.of({"train_size": 100, "epochs": 2, "samples": 4, "n": 6})
        >>> study.title, study.training.epochs, study.names
        ('cnn on digits', 2, ['target', 'baseline1', 'baseline2'])
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
    # What was loaded or trained, by what decides it. Changed studies share it.
    shared: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of all settings, those of the training included."""
        return [*super().setting_names(), *OF_TRAINING]

    def changed(self, **changes: Any) -> "Study":
        """Return the study with some settings changed, its own or those of its training.

        Raises:
            ValueError: for an unknown setting.
        """
        training = {name: changes.pop(name) for name in OF_TRAINING if name in changes}
        if training:
            changes["training"] = changes.get("training", self.training).changed(**training)
        return super().changed(**changes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: another process loads data and networks itself."""
        return {**vars(self), "shared": {}}

    def _once(self, what: str, settings: Iterable[str], compute: Callable[[], Any]) -> Any:
        """Return what these settings decide, computed the first time."""
        key = (what, *(str(getattr(self, name)) for name in settings))
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings except the seed, of types that JSON can hold."""
        settings = {**vars(self), "options": dict(self.options)}
        settings["training"] = plain(vars(self.training))
        del settings["shared"]
        return plain(settings)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, and the fingerprint of data on this machine, which may change."""
        if not Path(self.dataset).exists():
            return self.settings
        return {**self.settings, "local": self.data.part("target").fingerprint}

    @property
    def is_stored(self) -> bool:
        """Whether measurements are kept: not those of a function, whose code may change."""
        return ":" not in self.network

    @property
    def title(self) -> str:
        """Network and data set in words."""
        return f"{self.network.split('/')[-1]} on {self.dataset.split('/')[-1]}"

    @property
    def label(self) -> str:
        """The title with the settings in which studies often differ."""
        noise = f", {self.label_noise:.0%} wrong labels" if self.label_noise else ""
        options = "".join(f", {k} {v}" for k, v in self.options.items())
        size = self.train_size or "all"
        augmented = ", augmented" if self.training.augment else ""
        return f"{self.title} ({size} training samples{augmented}{noise}{options}; n = {self.n})"

    @property
    def data(self) -> Data:
        """The data set, split, with the preprocessing that the network needs."""

        def load() -> Data:
            return load_dataset(
                self.dataset,
                self.train_size,
                self.label_noise,
                self._split,
                seed=self.seed,
                **data_options(self.network),
            )

        return self._once("data", OF_DATA, load)

    @property
    def _split(self) -> str:
        return self.split or ("halves" if self.baselines <= 1 else f"parts:{self.baselines}")

    @property
    def names(self) -> list[str]:
        """The parts of the data on which the target and each baseline are trained."""
        return part_names(self._split)[0][: 1 + self.baselines]

    def check(self) -> "Study":
        """Open the data, split it into parts, build the network, draw samples; train nothing.

        Returns:
            The same study.

        Raises:
            ValueError: for the first mistake, such as too few samples or an unknown network.
        """
        for name in (*self.names, "test"):
            self.data.part(name)
        build_network(self.network, **{**self.data.spec, **self.options})
        self.drawn()
        return self

    @property
    def runs(self) -> list[TrainingRun]:
        """The trained networks: the target first, then the baselines."""

        settings = (*OF_DATA, "options", "training")
        count = len(self.names)
        return self._once("runs", settings, lambda: [self.trained(k) for k in range(count)])

    def trained(self, k: int, **changes: Any) -> TrainingRun:
        """Train network k (0 is the target) or read it from the cache.

        Args:
            k: number of the network.
            **changes: changed arguments of `train`, such as ``term`` or a setting of the training.
        """
        return train(
            self.network,
            self.data,
            self.names[k],
            self.training,
            seed=self.seed + k,
            options=dict(self.options),
            **changes,
        )

    def untrained(self, k: int = 1) -> Checkpoints:
        """Return network k before training, with batch-norm statistics of its training samples."""

        def build() -> nn.Module:
            spec = {**self.data.spec, **self.options}
            model = build_network(self.network, seed=self.seed + k, **spec)
            return recalibrated(model, self.data.part(self.names[k])).to(device()).eval()

        return Checkpoints({0: build})

    def drawn(self, part: str = "test") -> tuple[Samples, ImageVariables | TextVariables]:
        """Return the samples of a part of the data, balanced over classes, and their variables.

        Raises:
            ValueError: for more variables than `sparsify` takes.
            MemoryError: if the outputs of all masked states do not fit in memory.
        """
        settings = (*OF_DATA, "samples", "n", "grid")
        return self._once(f"samples of {part}", settings, lambda: self._draw(part))

    def _draw(self, part: str) -> tuple[Samples, ImageVariables | TextVariables]:
        if not 1 <= self.n <= MAX_VARIABLES:
            raise ValueError(
                f"n is {self.n}; expected 1 to {MAX_VARIABLES}, since each sample has 2^n masked "
                "states: group variables into fewer, larger ones"
            )
        check_states(self.samples, self.n)
        samples = self.data.sample(self.samples, part=part, seed=self.seed)
        if self.data.kind == "image":
            return samples, draw_patches(len(samples), n=self.n, grid=self.grid, seed=self.seed)
        texts = [samples.show(i) for i in range(len(samples))]
        length = samples.x["input_ids"].shape[1]
        words, kept = draw_words(texts, self.data.tokenizer, self.n, self.seed, max_length=length)
        return samples[kept], words

    @property
    def masked(self) -> str | int | None:
        """The mask token of texts; or the layer at which images are masked, None for the input."""
        if self.data.kind == "text":
            return self.data.tokenizer.mask_token_id
        return None if self.layer == "input" else self.layer

    def mask_value(self, model: nn.Module, part: str = "test") -> MaskValue:
        """Return the value that replaces masked variables of a network.

        Args:
            model: network for this data set.
            part: part of the data; its images give the mean feature.
        """
        masked = self.masked
        if isinstance(masked, int):
            return token_embedding(model, masked)
        images = self.data.part(part)
        generator = torch.Generator().manual_seed(MEAN_SEED)
        index = torch.randperm(len(images), generator=generator)[:MEAN_OVER]
        batches = (images.batch(some)[0] for some in index.split(MEAN_BATCH))
        return mean_feature(model, batches, masked)

    def outputs(
        self,
        run: Network,
        step: int = -1,
        part: str = "test",
        classes: Int[Tensor, " sample"] | None = None,
        rows: Any = None,
    ) -> Float[Tensor, "row state"]:
        """Return v of a network on all masked states of the samples; stored in the cache.

        Args:
            run: a training, such as one of `runs`, your own `Checkpoints`, or a
                `PretrainedNetwork`.
            step: step of the checkpoint; -1 is the last.
            part: part of the data.
            classes: classes whose output v is, one per drawn sample; by default the true classes.
            rows: which of the drawn samples, such as a boolean tensor; by default all.
        """
        samples, variables = self.drawn(part)
        target = samples.y if classes is None else classes
        if rows is not None:
            samples, target, variables = samples[rows], target[rows], variables[rows]
        network = run.key(step)
        mean = None
        if self.data.kind == "image":
            mean = [self.data.part(part).fingerprint, MEAN_OVER, MEAN_SEED]
        key = {
            "network": network,
            "samples": [samples.x, target, variables],
            "masked": [self.masked, mean],
            "dtype": self.dtype,
        }

        def compute() -> dict[str, Tensor]:
            model = run.load(step)
            if self.dtype is not None:
                model = copy.deepcopy(model).to(as_dtype(self.dtype))
            value = self.mask_value(model, part)
            return {"v": masked_outputs(model, samples.x, target, variables, value)}

        return cached("outputs", key, compute, enabled=network is not None)["v"]

    def interactions(
        self,
        run: Network,
        step: int = -1,
        part: str = "test",
        classes: Int[Tensor, " sample"] | None = None,
        rows: Any = None,
    ) -> Interactions:
        """Return the interactions of a network on the samples; stored in the cache.

        Args:
            run, step, part, classes, rows: see `outputs`.
        """
        v = self.outputs(run, step, part, classes, rows)
        variables = self.drawn(part)[1]
        names = getattr(variables if rows is None else variables[rows], "words", ()) or None
        return cached_split(v, self.noise, self.tol, names=names)


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the seed, of types that JSON can hold."""
    result = {}
    for name, value in settings.items():
        if name in FLOATS and value is not None:
            value = float(value)
        if name != "seed":
            result[name] = list(value) if isinstance(value, tuple) else value
    return result


def cached_split(
    v: Float[Tensor, "*batch state"], noise: float, tol: float, few: bool = False, names: Any = None
) -> Interactions:
    """Return `sparsify` of outputs, stored in the cache; it runs on a GPU if there is one.

    Args:
        v: outputs on all masked states.
        noise, tol, few: see `sparsify`.
        names: names of the variables; see `Interactions`.
    """
    where = device() if v.shape[-1] <= 2**GPU_LAST else v.device

    def compute() -> dict[str, Tensor]:
        return sparsify(v.to(where), noise=noise, tol=tol, few=few).to("cpu").tensors()

    key = {"v": v, "noise": float(noise), "tol": float(tol), "few": few}
    tensors = cached("interactions", key, compute)
    return Interactions(*(tensors[name] for name in TENSORS), names=names)


def seeded(study: Any, seeds: int | Iterable[int] | None = None) -> list:
    """Return a study with several seeds.

    Args:
        study: a `Study` or a `LanguageStudy`.
        seeds: how many, 10 apart from `study.seed` on, so that no two networks have the same seed;
            or the seeds themselves; None means `study.seed` alone.
    """
    if seeds is None:
        return [study]
    if isinstance(seeds, int):
        seeds = [study.seed + 10 * k for k in range(seeds)]
    fresh = dataclasses.replace(study, shared={}) if isinstance(study, Study) else study
    return [dataclasses.replace(fresh, seed=int(seed)) for seed in seeds]


def several(study: Any, seeds: int, others: Iterable[Mapping[str, Any]]) -> Iterator[tuple]:
    """Yield a study and its number of seeds, then the same for each further study.

    Args:
        study: a `Study` or a `LanguageStudy`.
        seeds: of this study.
        others: for each further study the settings that differ, and its "seeds".
    """
    yield study, seeds
    for other in others:
        changes = {name: value for name, value in other.items() if name != "seeds"}
        yield study.changed(**changes), other["seeds"]
