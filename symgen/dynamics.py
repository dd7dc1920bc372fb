"""Follow the interactions of a network through training, and find the three phases."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from symgen.baselines import Baseline, mean_baseline, token_baseline
from symgen.data import Data, Samples
from symgen.generalization import (
    Interval,
    chance_level,
    generalization_power,
    interaction_count,
    interval,
    order_spectrum,
    transfer,
)
from symgen.interactions import Interactions
from symgen.masking import masked_outputs
from symgen.provenance import cached, code_fingerprint
from symgen.sparsify import sparsify
from symgen.text_variables import draw_words
from symgen.variables import draw_patches

# What outputs on masked states depend on, and what interactions depend on besides.
OUTPUTS_CODE = ("variables", "text_variables", "baselines", "masking", "states", "cut")
EXTRACTION_CODE = (
    *OUTPUTS_CODE,
    "transforms",
    "sparsify",
    "program",
    "polish",
    "interior_point",
    "first_order",
    "symmetric",
    "interactions",
)


class Extractor:
    """Extract the interactions of any network on the same samples and the same variables.

    Images: patches of a grid, masked at the output of the first ReLU by its mean over the
    images of the part the samples come from. Texts: content words, masked by the embedding of
    [MASK]; samples with fewer than n of them are left out (App. A.1).

    Args:
        data: a data set.
        samples: drawn from it.
        n: number of variables.
        grid: cells along each side of an image.
        layer: of the network at which images are masked; "input" for the images themselves.
        noise, tol: see `sparsify`.
        seed: of the variables.
        progress: whether to show bars.

    Attributes:
        samples: those that could be used.
        variables: theirs.
    """

    # Enough images for a mean that one more would not change visibly.
    MEAN_OVER = 1000

    def __init__(
        self,
        data: Data,
        samples: Samples,
        n: int = 10,
        grid: int = 5,
        layer: str = "first_relu",
        noise: float = 0.02,
        tol: float = 1e-3,
        seed: int = 0,
        progress: bool = True,
    ):
        self.data, self.samples = data, samples
        self.layer = None if layer == "input" else layer
        self.noise, self.tol, self.progress = noise, tol, progress
        if data.kind == "image":
            self.variables = draw_patches(len(samples), n=n, grid=grid, seed=seed)
        else:
            texts = [samples.show(i) for i in range(len(samples))]
            length = samples.x["input_ids"].shape[1]
            self.variables, kept = draw_words(
                texts, data.tokenizer, n=n, seed=seed, max_length=length
            )
            self.samples = samples[kept]

    def baseline(self, model: nn.Module) -> Baseline:
        """Return what masked variables of this network are replaced by."""
        if self.data.kind == "text":
            return token_baseline(model, self.data.tokenizer.mask_token_id)
        part = self.samples.part
        generator = torch.Generator().manual_seed(0)
        index = torch.randperm(len(part), generator=generator)[: self.MEAN_OVER]
        return mean_baseline(model, part.batch(index)[0], layer=self.layer)

    def outputs(
        self, model: nn.Module, batch_size: int | None = None, key: Mapping | None = None
    ) -> Tensor:
        """Return v on all masked states, shape (sample, 2**n).

        Args:
            model: a network for this data set.
            batch_size: masked states at a time; chosen by the memory without.
            key: as in `__call__`. Other noise bounds or tolerances then find the same outputs.
        """

        def compute() -> dict[str, Tensor]:
            x, y, variables = self.samples.x, self.samples.y, self.variables
            baseline = self.baseline(model)
            v = masked_outputs(
                model, x, y, variables, baseline, batch_size=batch_size, progress=self.progress
            )
            return {"v": v}

        if key is None:
            return compute()["v"]
        return cached("outputs", self._key(key, OUTPUTS_CODE), compute)["v"]

    def _key(self, model: Mapping, code: Sequence[str]) -> dict[str, Any]:
        """Return what decides the outputs of a model on the masked samples."""
        return {
            "model": dict(model),
            "samples": self.samples.x,
            "labels": self.samples.y,
            "variables": self.variables,
            "layer": self.layer,
            "code": code_fingerprint(*code),
        }

    def __call__(self, model: nn.Module, key: Mapping | None = None) -> Interactions:
        """Return the network's interactions.

        Args:
            model: a network for this data set.
            key: what identifies it (see `TrainingRun.key`); with it the result is stored, and
                found again by whoever asks for the same.
        """

        def compute() -> dict[str, Tensor]:
            v = self.outputs(model, key=key).cpu()
            found = sparsify(v, noise=self.noise, tol=self.tol, progress=self.progress)
            return {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}

        if key is None:
            return Interactions(**compute())
        full = {**self._key(key, EXTRACTION_CODE), "noise": self.noise, "tol": self.tol}
        return Interactions(**cached("extraction", full, compute))


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """A network's interactions at every checkpoint, beside those of its baselines.

    Attributes:
        steps: optimizer steps of the checkpoints.
        interactions: of the followed network, one entry a checkpoint.
        baselines: of the baseline networks.
        losses: one row a checkpoint: step, epoch, train_loss, test_loss and accuracies.
    """

    steps: list[int]
    interactions: list[Interactions]
    baselines: list[Interactions]
    losses: pd.DataFrame

    def shares(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the transfer of the interactions at a step."""
        return transfer(self.interactions[self.steps.index(step)], self.baselines)

    def spectra(self, step: int) -> tuple[Tensor, Tensor]:
        """Return all and generalizable order spectra at a step, each (sample, 2, n + 1)."""
        inter = self.interactions[self.steps.index(step)]
        return order_spectrum(inter), order_spectrum(inter, self.shares(step))

    def per_sample(self) -> pd.DataFrame:
        """Return one row a checkpoint and sample.

        Columns: step, sample, power (H), power_low, power_high, count (N), generalizable and
        non_generalizable (salient strength, log odds), chance (H at chance), mean_order (of
        salient interactions, weighted by strength).
        """
        return self._per_sample.copy()

    @functools.cached_property
    def _per_sample(self) -> pd.DataFrame:
        rows = []
        for step, inter in zip(self.steps, self.interactions, strict=True):
            share = self.shares(step)
            total = order_spectrum(inter).abs().sum((-2, -1))
            kept = order_spectrum(inter, share).abs().sum((-2, -1))
            rows.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "sample": range(len(inter)),
                        "power": generalization_power(inter, share).numpy(),
                        "power_low": generalization_power(inter, share, (1, 2)).numpy(),
                        "power_high": generalization_power(
                            inter, share, range(6, inter.n + 1)
                        ).numpy(),
                        "count": interaction_count(inter).numpy(),
                        "generalizable": kept.numpy(),
                        "non_generalizable": (total - kept).numpy(),
                        "chance": chance_level(inter, self.baselines, draws=10).numpy(),
                        "mean_order": _mean_order(inter).numpy(),
                    }
                )
            )
        return pd.concat(rows, ignore_index=True)

    def summary(self) -> pd.DataFrame:
        """Return one row a checkpoint: means over samples with 95 % intervals, and the losses.

        Columns: those of `losses`, gap (test_loss - train_loss), and for every quantity q of
        `per_sample` the columns q, q_low and q_high.
        """
        rows = []
        for step, group in self.per_sample().groupby("step", sort=True):
            row: dict[str, float] = {"step": step}
            for name in group.columns.drop(["step", "sample"]):
                mean, low, high = interval(torch.tensor(group[name].to_numpy()))
                row |= {name: mean, f"{name}_low95": low, f"{name}_high95": high}
            rows.append(row)
        losses = self.losses[self.losses["step"].isin(self.steps)]
        table = losses.merge(pd.DataFrame(rows), on="step", validate="one_to_one")
        return table.assign(gap=table["test_loss"] - table["train_loss"])

    def change(self, name: str, start: int, stop: int) -> Interval:
        """Return how a quantity of `per_sample` changes between two checkpoints.

        The mean over samples of its value at step `stop` minus its value at step `start`, with a
        95 % bootstrap interval over samples.
        """
        wide = self._per_sample.pivot(index="step", columns="sample", values=name)
        return interval(torch.tensor((wide.loc[stop] - wide.loc[start]).to_numpy()))

    def phases(self, r: float = 1.0) -> "Phases":
        """Return the phase boundaries of the averages over samples."""
        table = self.summary()
        return phases(
            table["step"].tolist(),
            table["power"].tolist(),
            table["generalizable"].tolist(),
            table["non_generalizable"].tolist(),
            r,
        )


def _mean_order(inter: Interactions) -> Tensor:
    strength = order_spectrum(inter).abs().sum(-2)
    total = strength.sum(-1)
    weighted = strength @ torch.arange(inter.n + 1, dtype=strength.dtype)
    return weighted / total.where(total > 0, torch.nan)


def track(
    run: Any,
    baselines: Sequence[Any],
    extractor: Extractor,
    steps: Sequence[int] | None = None,
    progress: bool = True,
) -> Dynamics:
    """Follow the interactions of a training run over its checkpoints.

    Args:
        run: the followed `TrainingRun`.
        baselines: finished `TrainingRun`s that decide what generalizes.
        extractor: holds the samples and their variables.
        steps: checkpoints to look at; all without.
        progress: whether to show a bar.
    """
    steps = list(run.steps if steps is None else steps)

    def at(source: Any, step: int) -> Interactions:
        return extractor(source.load(step), source.key(step))

    others = [at(b, b.steps[-1]) for b in baselines]
    bar = tqdm(steps, desc="checkpoints", disable=not progress, leave=False)
    return Dynamics(steps, [at(run, step) for step in bar], others, run.records)


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phase boundaries of a training run (App. I); None where there is none.

    Attributes:
        t1: step at which H peaks, the end of the first phase.
        t2: first step after t1 at which non-generalizable strength grows, and faster.
        reason: in words, what was found and why a boundary may be missing.
    """

    t1: int | None
    t2: int | None
    reason: str

    def of(self, step: int) -> int | None:
        """Return the phase (1, 2 or 3) that a step lies in; None without t1."""
        if self.t1 is None:
            return None
        if step <= self.t1:
            return 1
        return 2 if self.t2 is None or step <= self.t2 else 3


def phases(
    steps: Sequence[int],
    power: Sequence[float],
    strength_gen: Sequence[float],
    strength_non: Sequence[float],
    r: float = 1.0,
) -> Phases:
    """Return the phase boundaries t1 and t2 (App. I).

    t1 is the step at which H is largest. t2 is the first step after it at which, since the
    checkpoint before, non-generalizable strength grew, and generalizable strength by less than
    r times as much. No boundary is forced: without a rise of H there is no t1, and while H still
    rises at the end, the first phase is not over.

    Args:
        steps: of the checkpoints, ascending.
        power: H at each.
        strength_gen, strength_non: summed strength of salient generalizable and
            non-generalizable interactions at each.
        r: ratio of the two gains that ends the second phase, > 0 (the paper gives no value).

    Example:
        >>> phases([0, 1, 2, 3], [0.2, 0.6, 0.5, 0.4], [1, 3, 5, 5], [4, 2, 3, 6])
        Phases(t1=1, t2=3, reason=...)
    """
    lengths = {len(steps), len(power), len(strength_gen), len(strength_non)}
    if len(lengths) != 1 or len(steps) < 2:
        raise ValueError(
            "phases needs one value of each quantity a checkpoint, for at least 2 checkpoints; "
            f"got lengths {len(steps)}, {len(power)}, {len(strength_gen)}, {len(strength_non)}"
        )
    if not r > 0:
        raise ValueError(f"r must be positive, got {r}")
    known = [i for i in range(len(steps)) if not np.isnan(power[i])]
    if not known:
        return Phases(None, None, "H is not defined at any checkpoint: nothing is salient")
    peak = max(known, key=lambda i: power[i])
    t1 = steps[peak]
    if peak == 0:
        return Phases(None, None, "H is largest before training: no first phase is seen")
    if peak == len(steps) - 1:
        reason = "H still rises at the last checkpoint: the first phase is not over"
        return Phases(None, None, reason)
    for i in range(peak + 1, len(steps)):
        gain = strength_gen[i] - strength_gen[i - 1]
        loss = strength_non[i] - strength_non[i - 1]
        if loss > 0 and gain < r * loss:
            return Phases(
                t1,
                steps[i],
                f"H peaks at step {t1}; at step {steps[i]}, first after that, non-generalizable "
                f"strength grows faster than generalizable strength (ratio r = {r:g})",
            )
    return Phases(
        t1,
        None,
        f"H peaks at step {t1}; at no checkpoint after that does non-generalizable strength grow, "
        f"and faster than generalizable strength (ratio r = {r:g}), so no third phase is seen",
    )


def bootstrap_phases(
    per_sample: pd.DataFrame, r: float = 1.0, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Return the phase boundaries of resampled samples: how sure t1 and t2 are.

    Args:
        per_sample: of `Dynamics.per_sample`.
        r: as in `phases`.
        draws: number of resamples.
        seed: of the resamples.

    Returns:
        One row a resample: t1 and t2, missing where there is no such boundary.
    """
    names = ("power", "generalizable", "non_generalizable")
    tables = {
        k: per_sample.pivot(index="step", columns="sample", values=k).sort_index() for k in names
    }
    steps = tables["power"].index.tolist()
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(draws):
        drawn = generator.integers(tables["power"].shape[1], size=tables["power"].shape[1])
        means = [np.nanmean(tables[k].to_numpy()[:, drawn], axis=1).tolist() for k in names]
        found = phases(steps, *means, r)
        rows.append((found.t1, found.t2))
    return pd.DataFrame(rows, columns=["t1", "t2"], dtype="Int64")
