"""One study's outputs split by several extractors: what is the network's, and what theirs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.fingerprints import code_fingerprint
from symgen.interactions import Interactions
from symgen.masking.extraction import split_outputs
from symgen.method.dynamics import Curves, Dynamics
from symgen.method.spectra import mean_order
from symgen.method.study import Study
from symgen.method.transfer import interaction_count, order_spectrum
from symgen.split.published import RATES, STEPS, least, published
from symgen.storage import cached
from symgen.transforms import and_or_outputs

Extractor = Callable[[Tensor], Interactions]
#: The two that the rules compare, of `extractors`.
EXACT, PUBLISHED = "exact", "published"
SCALED = "published, outputs scaled to range 1"


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a study's networks put out, before anything is split.

    Attributes:
        steps: optimizer steps of the checkpoints.
        target: v of the followed network.
        baselines: v of the fully trained baseline networks on the same samples.
        records: see `Dynamics`.
    """

    steps: list[int]
    target: Float[Tensor, "checkpoint sample state"]
    baselines: Float[Tensor, "baseline sample state"]
    records: pd.DataFrame

    @classmethod
    def of(cls, study: Study, first_epoch: float = 0.0, looks: int | None = None) -> "Outputs":
        """Return the outputs of a study at the checkpoints that `Study.dynamics` looks at."""
        study.drawn()
        target, *others = study.runs
        steps = study.looked_at(first_epoch, looks)
        found = [study.outputs(target.load(step), target.key(step)) for step in steps]
        last = [study.outputs(b.load(b.steps[-1]), b.key(b.steps[-1])) for b in others]
        return cls(steps, torch.stack(found), torch.stack(last), target.records)

    def dynamics(self, extract: Extractor) -> Dynamics:
        """Return the target's interactions, and those of the baselines, by one extractor.

        Args:
            extract: from outputs (..., 2**n) to their interactions. It gets all in one batch.
        """
        found = extract(torch.cat([self.target, self.baselines]))
        looks = len(self.steps)
        each = [found[i] for i in range(len(found))]
        return Dynamics(self.steps, each[:looks], each[looks:], self.records)


def extractors(
    noise: float = 0.02, kappas: Sequence[float] = (0.0, 0.05), steps: int = STEPS
) -> dict[str, Extractor]:
    """Return ways from outputs to interactions, by name; what they find is stored.

    The exact split (`EXACT`) and the published procedure with the best of its rates (`PUBLISHED`)
    come first. Then the same procedure on outputs that are divided by their range (`SCALED`), its
    effects multiplied by it, so that its rates mean the same for all outputs; the exact split with
    other noise; and the published procedure at each rate.

    Args:
        noise: kappa.
        kappas: other values, for the exact split.
        steps: of the published procedure.
    """
    descend = functools.partial(descended, noise=noise, steps=steps)

    def best(v: Tensor) -> Interactions:
        return least([descend(v, rate=rate) for rate in RATES])

    return {
        EXACT: functools.partial(split_outputs, noise=noise, progress=False),
        PUBLISHED: best,
        SCALED: functools.partial(_scaled, extract=best),
        **{
            f"exact, κ = {k:g}": functools.partial(split_outputs, noise=k, progress=False)
            for k in kappas
        },
        **{f"published, rate {r:g}": functools.partial(descend, rate=r) for r in RATES},
    }


def _scaled(v: Float[Tensor, "*batch state"], extract: Extractor) -> Interactions:
    size = v.amax(-1) - v.amin(-1)
    size = size.where(size > 0, 1.0)
    found, wide = extract(v / size[..., None]), size[..., None]
    return dataclasses.replace(
        found, and_=found.and_ * wide, or_=found.or_ * wide, objective=found.objective * size,
        bias=v[..., 0].clone(), full=v[..., -1].clone(),
    )  # fmt: skip


def descended(
    v: Float[Tensor, "*batch state"], noise: float, rate: float, steps: int = STEPS
) -> Interactions:
    """Return what `published` does, found again where the same outputs were split before."""

    def compute() -> dict[str, Tensor]:
        return published(v, noise, rate, steps).tensors()

    key = {"v": v, "noise": noise, "rate": rate, "steps": steps}
    return Interactions(**cached("splits", {**key, "code": code_fingerprint(published)}, compute))


@dataclasses.dataclass(frozen=True)
class Averages(Curves):
    """Trainings that were followed alike; a row of `curves` is one, averaged over its samples.

    Attributes:
        trainings: with the same checkpoints.

    Raises:
        ValueError: for trainings with different ones.
    """

    trainings: Sequence[Dynamics]
    unit = "trainings"

    def __post_init__(self) -> None:
        if any(each.steps != self.steps for each in self.trainings):
            raise ValueError(
                f"trainings have different checkpoints, {[d.steps for d in self.trainings]}; "
                "compare trainings of one data set size, batch size and number of epochs"
            )

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.trainings[0].n

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, the same in all trainings."""
        return self.trainings[0].steps

    @property
    def records(self) -> pd.DataFrame:
        """Step and epoch of the checkpoints."""
        return self.trainings[0].records[["step", "epoch"]]

    @functools.cached_property
    def curves(self) -> dict[str, Float[Tensor, "training checkpoint"]]:
        """The curves of the trainings, their losses and their loss gap (nats)."""
        curves = {
            name: torch.stack([each.curves[name].nanmean(0) for each in self.trainings])
            for name in self.trainings[0].curves
        }
        tables = [each.records.set_index("step").loc[self.steps] for each in self.trainings]
        for name in ("train_loss", "test_loss"):
            curves[name] = torch.stack([torch.tensor(t[name].to_numpy(float)) for t in tables])
        return {**curves, "gap": curves["test_loss"] - curves["train_loss"]}


def over_trainings(trainings: Sequence[Dynamics]) -> Curves:
    """Return the curves of several trainings, or of a single one those of its samples."""
    return trainings[0] if len(trainings) == 1 else Averages(trainings)


def excess(found: Sequence[Dynamics], exact: Sequence[Dynamics], look: int) -> float:
    """Return how many times as much strength extractors need as the exact split, on average.

    Args:
        found: what was followed in several trainings.
        exact: the same trainings, split exactly.
        look: which checkpoint, counted as in a list.
    """
    pairs = [
        (a.interactions[look].objective, b.interactions[look].objective)
        for a, b in zip(found, exact, strict=True)
    ]
    shares = [(a / b.where(b > 0, torch.nan)).nanmean() for a, b in pairs]
    return float(torch.stack(shares).nanmean())


def planted_table(
    ways: Mapping[str, Extractor],
    effects: Float[Tensor, "sample type state"],
    scales: Sequence[float],
    noises: Sequence[float],
    seed: int = 0,
) -> pd.DataFrame:
    """Return what extractors find of planted effects, and what they invent, one row a sample.

    Args:
        ways: name to extractor.
        effects: planted, in log odds.
        scales: numbers by which all outputs are multiplied, which changes no logic.
        noises: standard deviations of what is added to every output, as shares of the range of
            the sample's outputs.
        seed: of what is added.

    Returns:
        Columns extractor, scale, noise, sample; found, the share of the planted interactions that
        are salient, with their sign; invented, the share of the salient strength on anything
        else; count (N, Eq. 9 and 10); mean_order.
    """
    v = and_or_outputs(*effects.unbind(-2))
    drawn = torch.randn(v.shape, generator=torch.Generator().manual_seed(seed), dtype=v.dtype)
    added = (v.amax(-1) - v.amin(-1))[:, None] * drawn
    grid = [(scale, noise) for scale in scales for noise in noises]
    outputs = torch.stack([scale * (v + noise * added) for scale, noise in grid])
    parts = []
    for name, extract in ways.items():
        for (scale, noise), inter in zip(grid, extract(outputs), strict=True):
            size = inter.effects.abs() * torch.stack(inter.salient(), -2)
            right = (size > 0) & (inter.effects * effects > 0)
            total = size.sum((-2, -1))
            parts.append(pd.DataFrame({
                "extractor": name, "scale": scale, "noise": noise, "sample": range(len(inter)),
                "found": right.sum((-2, -1)) / (effects != 0).sum((-2, -1)),
                "invented": 1 - (size * right).sum((-2, -1)) / total.where(total > 0, torch.nan),
                "count": interaction_count(inter), "mean_order": mean_order(order_spectrum(inter)),
            }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)
