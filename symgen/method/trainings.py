"""A study trained again and again: each training is one repetition, and says one number.

Samples of one training tell how sure its own curves are; only other trainings tell whether another
one would show the same. So claims are judged over trainings, each with weights, a split of the
data, samples and variables of its own, drawn from its seed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from symgen.fingerprints import code_fingerprint, refusal
from symgen.masking.causal import causal_outputs
from symgen.masking.functions import FunctionRunner
from symgen.method.dynamics import Curves
from symgen.method.removal import MEASURES, Removal, gap_parts
from symgen.method.study import Study
from symgen.method.transfer import (
    LOW_ORDERS,
    chance_level,
    generalization_power,
    lift,
    transfer,
)
from symgen.split import first_order
from symgen.split.sparsify import DENSE_FIRST
from symgen.storage import cached

#: From a function and what it is called with to its results, in order: `map`, or one that has
#: several processes or machines do it.
Mapper = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]


def never_run(study: Study) -> tuple[Callable[..., Any], ...]:
    """Return what the code names and such a study never runs through; see `code_fingerprint`.

    Language models and functions are masked elsewhere; few variables are split by one method.
    """
    many = (first_order.minimize,) if study.n <= DENSE_FIRST else ()
    return (causal_outputs, FunctionRunner, *many)


def measure(study: Study, also: Sequence[str] = ()) -> dict[str, Tensor]:
    """Train the networks of a study, follow the target, and return averages over its samples.

    What was measured is stored, so that a sweep over many trainings goes on where it was stopped.

    Args:
        study: with one baseline network or more; its seed is that of the training.
        also: what else is measured, of `ALSO`. Each masks and splits all samples several times
            more, so a chapter asks for what it shows.

    Returns:
        steps, epochs and, one value a checkpoint, train_loss, test_loss (nats), train_accuracy,
        test_accuracy, and of every quantity of `Dynamics.curves` the mean over test samples, and
        its standard error as ``error.NAME``; spectrum and spectrum_generalizable, mean order
        spectra (checkpoint, 2, n + 1). Of the last checkpoint lift_low and lift_above_low (H above
        chance of orders 1 and 2, and of the others), similarity_power (H by the continuous
        metric), ``train.MEASURE.REMOVAL`` and ``test.MEASURE.REMOVAL`` (mean losses; see
        `Removal`) and ``gap.PART`` by order (see `gap_parts`). With "nulls" what `null_curves`
        gives, with "simple" what `simple_measures` does.

    Raises:
        ValueError: if something else is asked for.
    """
    _refuse_unknown(also)
    key = {**study.key, "code": code_fingerprint(measure, Study, without=never_run(study))}
    found = cached("trainings", key, functools.partial(_measured, study), keep=True)
    for name in also:
        further = functools.partial(ALSO[name], study)
        found = found | cached("trainings", {**key, "also": name}, further, keep=True)
    return found


@refusal
def _refuse_unknown(also: Sequence[str]) -> None:
    if isinstance(also, str) or not {*also} <= {*ALSO}:
        raise ValueError(f"also is {also!r}; expected a list of any of {', '.join(ALSO)}")


@refusal
def _refuse_unmeasured(name: str, found: Mapping[str, Tensor]) -> None:
    if name not in found:
        raise ValueError(
            f"{name} was not measured, but {', '.join(found)}; ask for more by also, a list of any "
            f"of {', '.join(ALSO)}"
        )


def _measured(study: Study) -> dict[str, Tensor]:
    run, test = study.runs[0], study.follow()
    # As many training samples as there are, where the study asks for more.
    fewer = study.changed(samples=min(study.samples, len(study.data.part(study.names[0]))))
    train = fewer.follow(test.steps[-1:], study.names[0])
    found = {"steps": torch.tensor(test.steps)}
    records = run.records.set_index("step").loc[test.steps]
    for name in ("epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy"):
        found[name] = torch.tensor(records[name].to_numpy(dtype=float))
    found |= _averaged(test.curves)
    spectra = [torch.stack(test.spectra(step)).mean(1) for step in test.steps]
    found["spectrum"], found["spectrum_generalizable"] = torch.stack(spectra, 1).unbind(0)
    inter, last = test.interactions[-1], test.steps[-1]
    for name, orders in (("lift_low", LOW_ORDERS), ("lift_above_low", range(3, test.n + 1))):
        found[name] = lift(inter, test.baselines, orders).nanmean()
    alike = transfer(inter, test.baselines, metric="similarity")
    found["similarity_power"] = generalization_power(inter, alike).nanmean()
    for unit in MEASURES:
        removal = Removal.of(train, test, last, study.seed, unit)
        for group, losses in (("train", removal.train), ("test", removal.test)):
            found |= {f"{group}.{unit}.{k}": x.mean() for k, x in losses.items()}
    return found | {f"gap.{k}": x for k, x in gap_parts(train, test, last).items()}


def _averaged(curves: Mapping[str, Float[Tensor, "sample checkpoint"]]) -> dict[str, Tensor]:
    """Return means over the samples that have a value, and their standard errors."""
    found = {}
    for name, values in curves.items():
        known = (~values.isnan()).sum(0)
        found[name] = values.nanmean(0)
        spread = (values - found[name]).square().nansum(0) / (known - 1).clamp(min=1)
        found[f"error.{name}"] = (spread / known).sqrt().where(known > 1, torch.nan)
    return found


def null_curves(study: Study) -> dict[str, Tensor]:
    """Return H with baselines that know nothing of the task, or not of the sample's class.

    Args:
        study: whose target is followed.

    Returns:
        untrained and other_class (see `Study.nulls`), one value a checkpoint: the mean over test
        samples, and its standard error as ``error.NAME``.
    """
    test = dataclasses.replace(study.follow(), nulls=study.nulls())
    return _averaged({name: test.curves[name] for name in test.nulls})


def simple_measures(study: Study) -> dict[str, Tensor]:
    """Return what else may tell how well the trained target generalizes, without test labels.

    Args:
        study: whose target is looked at on its test samples, at the end of the training.

    Returns:
        label_free_power and label_free_lift (H, and H above chance, where v is the output of the
        class that the target predicts), weight_norm (of all weights), agreement (share of test
        samples on which target and baselines predict the same class).
    """
    run, others = study.runs[0], study.runs[1:]
    samples, _ = study.drawn()
    models = [x.load() for x in (run, *others)]
    classes = _predicted(models[0], samples.x)
    mine, *theirs = (
        study.extract(model, x.key(), classes=classes)
        for model, x in zip(models, (run, *others), strict=True)
    )
    power = generalization_power(mine, transfer(mine, theirs))
    above = power - chance_level(mine, theirs, draws=10)
    weights = torch.cat([p.detach().flatten().double().cpu() for p in models[0].parameters()])
    same = [(_predicted(model, samples.x) == classes).double().mean() for model in models[1:]]
    return {
        "label_free_power": power.nanmean(),
        "label_free_lift": above.nanmean(),
        "weight_norm": weights.norm(),
        "agreement": torch.stack(same).mean(),
    }


#: What `measure` gives where it is asked for.
ALSO = {"nulls": null_curves, "simple": simple_measures}


@torch.inference_mode()
def _predicted(model: torch.nn.Module, x: Any) -> Tensor:
    where = next(model.parameters()).device
    x = {k: t.to(where) for k, t in x.items()} if isinstance(x, Mapping) else x.to(where)
    return model(x).argmax(-1).cpu()


def seeded(study: Study, seeds: int) -> list[Study]:
    """Return a study with several seeds, 10 apart, so that no two share a network's.

    Args:
        study: with the first seed.
        seeds: how many.
    """
    return [study.changed(seed=study.seed + 10 * k) for k in range(seeds)]


@dataclasses.dataclass(frozen=True)
class Trainings(Curves):
    """Several trainings of one study; a row of `curves` is a training, averaged over its samples.

    Attributes:
        study: with the seed of the first training.
        found: of `measure`, one a training.

    Example:
        >>> small = {"train_size": 100, "epochs": 2, "samples": 4, "n": 4, "checkpoints": 2}
        >>> found = Trainings.of(Study.of(small), seeds=2)
        >>> len(found), found.steps, found.curves["power"].shape
        (2, [0, 1, 4], torch.Size([2, 3]))
    """

    study: Study
    found: Sequence[Mapping[str, Tensor]]
    unit = "trainings"

    @classmethod
    def of(
        cls, study: Study, seeds: int, run: Mapper = map, also: Sequence[str] = ()
    ) -> "Trainings":
        """Measure a study with several seeds.

        Args:
            study, seeds: see `seeded`.
            run: how `measure` is called, such as `Chapter.map`.
            also: see `measure`.
        """
        return cls.of_each({"": study}, seeds, run, also=also)[""]

    @classmethod
    def of_each(
        cls, studies: Mapping[Any, Study], seeds: int, run: Mapper = map, apart: bool = False,
        also: Sequence[str] = (),
    ) -> "dict[Any, Trainings]":  # fmt: skip
        """Measure several studies, all their trainings side by side; see `of`.

        Args:
            studies, seeds, run, also: see `of`; seeds is the number for each study.
            apart: whether the seeds of a study follow those of the one before, so that means over
                studies are means over independent trainings; else all have the same seeds.
        """
        if apart:
            each = enumerate(studies.items())
            studies = {k: x.changed(seed=x.seed + 10 * seeds * i) for i, (k, x) in each}
        every = [one for x in studies.values() for one in seeded(x, seeds)]
        found = list(run(functools.partial(measure, also=also), every))
        parts = (found[i : i + seeds] for i in range(0, len(found), seeds))
        return {k: cls(x, part) for (k, x), part in zip(studies.items(), parts, strict=True)}

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.study.n

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, the same in all trainings."""
        return self.found[0]["steps"].tolist()

    @functools.cached_property
    def curves(self) -> dict[str, Float[Tensor, "training checkpoint"]]:
        """What `measure` gives for every checkpoint, and the loss gap (nats)."""
        size = len(self.steps)
        aside = ("steps", "epoch", "gap.", "error.")
        names = [k for k, x in self.found[0].items() if x.shape == (size,)]
        names = [k for k in names if not k.startswith(aside)]
        curves = {k: torch.stack([x[k].double() for x in self.found]) for k in names}
        return {**curves, "gap": curves["test_loss"] - curves["train_loss"]}

    @property
    def records(self) -> pd.DataFrame:
        """Step and epoch of the checkpoints."""
        epochs = self.found[0]["epoch"].tolist()
        return pd.DataFrame({"step": self.steps, "epoch": epochs})

    def end(self, name: str) -> Float[Tensor, "training"]:
        """Return what `measure` gives once a training, or what a curve ends at.

        Raises:
            ValueError: if it was not measured.
        """
        if name in self.curves:
            return self.curves[name][:, -1]
        _refuse_unmeasured(name, self.found[0])
        return torch.stack([x[name].double() for x in self.found])

    def removal(self, measure: str = "nats") -> Removal:
        """Return the mean losses of the trainings before and after removal, last checkpoint."""
        groups = []
        for group in ("train", "test"):
            start = f"{group}.{measure}."
            kinds = [k.removeprefix(start) for k in self.found[0] if k.startswith(start)]
            groups.append({kind: self.end(start + kind) for kind in kinds})
        return Removal(*groups, unit="trainings", measure=measure)

    def spectra(self, step: int) -> tuple[Tensor, Tensor]:
        """Return all and generalizable order spectra at a step, each (training, 2, n + 1)."""
        names, i = ("spectrum", "spectrum_generalizable"), self.steps.index(step)
        return tuple(torch.stack([x[name][i].double() for x in self.found]) for name in names)

    def gap_parts(self) -> dict[str, Float[Tensor, "training order"]]:
        """Return what the gap in log odds is made of, by part and order; see `gap_parts`."""
        names = [k for k in self.found[0] if k.startswith("gap.")]
        return {k[4:]: torch.stack([x[k].double() for x in self.found]) for k in names}


def seed_spread(trainings: Trainings, names: Sequence[str] = ("power", "count")) -> pd.DataFrame:
    """Return how far trainings differ at the last checkpoint, and how far by their samples alone.

    Args:
        trainings: of one study.
        names: quantities of `Dynamics.curves`.

    Returns:
        Columns quantity, trainings (how many), between (standard deviation of the means over
        samples), expected (what it would be about, were samples all that differs), limit (which it
        would exceed in 5 % of cases then, by the chi-squared distribution). NaN for a single one.
    """
    rows, free = [], len(trainings) - 1
    for name in names:
        errors = torch.stack([x[f"error.{name}"][-1].double() for x in trainings.found])
        expected = float(errors.square().mean().sqrt()) if free else math.nan
        limit = expected * (stats.chi2.ppf(0.95, free) / free) ** 0.5 if free else math.nan
        between = float(trainings.end(name).std()) if free else math.nan
        rows.append((name, len(trainings), between, expected, limit))
    columns = ["quantity", "trainings", "between", "expected", "limit"]
    return pd.DataFrame(rows, columns=columns)
