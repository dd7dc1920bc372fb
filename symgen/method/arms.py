"""Does penalizing help? Trainings that differ in one thing, compared seed by seed (App. K).

Four arms, alike in data, initial weights, order of samples and number of steps:

- "plain": the loss alone;
- "penalty": with the `Penalty` on what does not transfer to a network trained on a validation part;
- "random": with a penalty on as much strength of interactions drawn at random, which costs the same
  and uses the same network: what is left of the effect is not due to *which* ones are penalized;
- "decay": with more weight decay: what one would try without any of this.

The strength of the penalty and the weight decay are tuned alike: as many values of each are tried
with a seed that is not compared, and the one with the best accuracy on the validation part is
taken. H is measured with two baseline networks that no penalty has seen, on test samples.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from symgen.fingerprints import code_fingerprint
from symgen.masking.hooks import Inputs
from symgen.method.penalty import Penalty
from symgen.method.statistics import Interval, bounded, interval
from symgen.method.study import Study
from symgen.method.trainings import Mapper, never_run
from symgen.method.transfer import generalization_power, interaction_count, transfer
from symgen.models.cost import seconds_per_step
from symgen.models.loop import Loop, evaluate
from symgen.models.training import TrainingRun
from symgen.storage import cached

#: Name to words.
ARMS = {
    "plain": "plain", "penalty": "penalty", "random": "random penalty", "decay": "weight decay"
}  # fmt: skip
#: What is measured of a training: column, in words, unit.
MEASURES = {
    "accuracy": ("test accuracy", "1"),
    "power": ("H", "1"),
    "gap": ("loss gap", "nats"),
    "count": ("N", "1"),
    "seconds": ("time of a step", "s"),
}
# One network on the validation part, and two that only measure.
BASELINES = 3


@dataclasses.dataclass(frozen=True)
class Arm:
    """One training of one arm.

    Attributes:
        study: what is trained on what, and measured how; with its seed. It has three baseline
            networks: the first is trained on the validation part.
        name: one of `ARMS`.
        setting: strength of the penalty, or weight decay.
        m: variables of a sample that is penalized; the study has its own number to measure H.
        pool: training samples to draw those from.
        penalized, every: see `Penalty`: samples a step, and in which steps.

    Raises:
        ValueError: for an unknown name.
    """

    study: Study
    name: str = "plain"
    setting: float = 0.0
    m: int = 6
    pool: int = 64
    penalized: int = 4
    every: int = 4

    def __post_init__(self) -> None:
        if self.name not in ARMS:
            raise ValueError(f'there is no arm "{self.name}"; expected one of {", ".join(ARMS)}')

    @property
    def run(self) -> TrainingRun:
        """The training; see `train`."""
        study, changes = self.study, {}
        if self.name == "decay":
            changes["weight_decay"] = self.setting
        elif self.name != "plain":
            changes["term"] = self.penalty
        return study.trained(0, **changes)

    @property
    def penalty(self) -> Penalty:
        """What is added to the loss."""
        study, part = self.study, self.study.names[0]
        pool = min(self.pool, len(study.data.part(part)))
        # The first baseline, with a part and a seed of its own, says what does not generalize.
        study, known = study.changed(n=self.m, samples=pool), study.trained(1)
        samples, variables = study.drawn(part)
        text = study.data.kind == "text"
        return Penalty(
            Inputs(samples.x, samples.y), variables,
            study.extract(known.load(), known.key(), part),
            study.data.tokenizer.mask_token_id if text else study._layer,
            self.setting, self.penalized, self.every, random=self.name == "random",
            noise=study.noise, tol=study.tol, seed=study.seed,
        )  # fmt: skip


def validated(arm: Arm) -> float:
    """Train an arm and return its accuracy on the validation part, which is stored."""

    def compute() -> dict[str, Tensor]:
        part = arm.study.data.part(arm.study.names[1])
        return {"accuracy": torch.tensor(evaluate(arm.run.load(), part)[1], dtype=torch.float64)}

    key = {
        **arm.study.key,
        "arm": arm,
        "code": code_fingerprint(validated, Arm, without=never_run(arm.study)),
    }
    return float(cached("tuning", key, compute, keep=True)["accuracy"])


def measure(arm: Arm) -> dict[str, Tensor]:
    """Train an arm and return what `MEASURES` names.

    What was measured is stored, so that a sweep goes on where it was stopped, with the time that a
    step took when it was measured.
    """
    key = {
        **arm.study.key,
        "arm": arm,
        "code": code_fingerprint(measure, Arm, without=never_run(arm.study)),
    }
    return cached("arms", key, functools.partial(_measured, arm), keep=True)


def _measured(arm: Arm) -> dict[str, Tensor]:
    study, run = arm.study, arm.run
    last = run.records.iloc[-1]
    inter, *others = (study.extract(x.load(), x.key()) for x in (run, *study.runs[2:]))
    power = generalization_power(inter, transfer(inter, others))
    # Whole rounds of steps with and without the penalty; the first step warms up.
    with torch.random.fork_rng(devices=[]):
        seconds = seconds_per_step(Loop(run.config, run.task, run.store), 2 * arm.every)
    found = {
        "accuracy": last["test_accuracy"], "gap": last["test_loss"] - last["train_loss"],
        "power": power.nanmean(), "count": interaction_count(inter).nanmean(),
        "seconds": seconds,
    }  # fmt: skip
    return {name: torch.as_tensor(float(x), dtype=torch.float64) for name, x in found.items()}


def compare(
    study: Study,
    strengths: Sequence[float],
    decays: Sequence[float],
    seeds: int,
    run: Mapper = map,
    **settings: Any,
) -> pd.DataFrame:
    """Tune and train all arms of a study, and measure each training.

    Args:
        study: with the seed that tunes; the compared ones follow it, 10 apart.
        strengths, decays: of the penalty, and of the weights, that are tried: as many of each.
        seeds: trainings of each arm.
        run: how `measure` is called, such as `Chapter.map`.
        **settings: of `Arm`.

    Returns:
        One row a training: arm, setting, seed, and the `MEASURES`.

    Raises:
        ValueError: for more values of one kind than of the other, or none.
    """
    if len(strengths) != len(decays) or not len(strengths):
        raise ValueError(
            f"{len(strengths)} strengths and {len(decays)} weight decays; expected as many of "
            "each, one or more, so that both are tuned alike"
        )
    study = study.changed(baselines=BASELINES, split=None)
    tried = {"penalty": strengths, "decay": decays}
    cases = [Arm(study, name, float(x), **settings) for name, xs in tried.items() for x in xs]
    scores = list(run(validated, cases))
    best = {
        name: max((score, -i) for i, score in enumerate(scores) if cases[i].name == name)
        for name in tried
    }  # of equals the first
    chosen = {name: cases[-i].setting for name, (_, i) in best.items()}
    chosen |= {"plain": 0.0, "random": chosen["penalty"]}
    cases = [
        Arm(study.changed(seed=study.seed + 10 * k), name, chosen[name], **settings)
        for k in range(1, seeds + 1) for name in ARMS
    ]  # fmt: skip
    rows = [
        {"arm": case.name, "setting": case.setting, "seed": case.study.seed}
        | {name: float(found[name]) for name in MEASURES}
        for case, found in zip(cases, run(measure, cases), strict=True)
    ]
    return pd.DataFrame(rows)


def differences(table: pd.DataFrame, measure: str, against: str = "plain") -> dict[str, Tensor]:
    """Return by how much each arm is ahead of another, seed by seed.

    Args:
        table: of `compare`.
        measure: one of `MEASURES`.
        against: the other arm.
    """
    wide = table.pivot(index="seed", columns="arm", values=measure)
    arms = [name for name in ARMS if name in wide and name != against]
    return {name: torch.tensor((wide[name] - wide[against]).to_numpy(float)) for name in arms}


def difference_table(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean difference of each arm from the plain one, with its 95 % interval.

    Args:
        tables: label to a table of `compare`.

    Returns:
        Columns label, measure, arm, difference, low95, high95, seeds.
    """
    rows = []
    for label, table in tables.items():
        for measure in MEASURES:
            for arm, values in differences(table, measure).items():
                of_shares = measure in ("accuracy", "power")
                found: Interval = bounded(values) if of_shares else interval(values)
                rows.append((label, measure, arm, *found, int((~values.isnan()).sum())))
    names = ["label", "measure", "arm", "difference", "low95", "high95", "seeds"]
    return pd.DataFrame(rows, columns=names)
