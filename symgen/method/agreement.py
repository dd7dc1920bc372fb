"""Do two baseline networks agree on what generalizes? As spectra, and as sets (App. N).

A judge's *marks* are a truth value for every interaction of the target: whether it is salient and
transfers to the judge.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.statistics import Interval, check_draws, cut, interval, resampled
from symgen.method.study import Study
from symgen.method.transfer import jaccard, order_spectrum, transfer

Marks = Bool[Tensor, "sample type state"]
#: Comparisons of sets: the one in question, and the controls that are drawn at random.
OBSERVED, SHUFFLED, RELABELLED = RANDOM = ("B and C", "C shuffled", "C relabelled (chance)")


def marks_of(target: Interactions, judge: Interactions) -> Marks:
    """Return which salient interactions of a target transfer to a judge."""
    salient = torch.stack(target.salient(), -2)
    return salient & (torch.stack(transfer(target, judge), -2) > 0)


def shuffled(target: Interactions, marks: Marks, generator: torch.Generator) -> Marks:
    """Return as many marks of each sample and order, on salient interactions drawn at random."""
    # The salient interactions of one order are a group, and all that is not salient another.
    group = (torch.stack(target.salient(), -2) * target.order).flatten(-2).double()
    drawn = (group + torch.rand(group.shape, generator=generator, dtype=group.dtype)).argsort(-1)
    sorted_marks = marks.flatten(-2).gather(-1, group.argsort(-1))
    return torch.zeros_like(sorted_marks).scatter(-1, drawn, sorted_marks).reshape(marks.shape)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Marks of two judges, B and C, and the controls that their agreement is compared with.

    Attributes:
        target: interactions of the network that is judged.
        pairs: name of a comparison to pairs of marks, one for each random draw.
    """

    target: Interactions
    pairs: dict[str, list[tuple[Tensor, Tensor]]]

    @classmethod
    def of(
        cls, target: Interactions, b: Interactions, c: Interactions, untrained: Interactions,
        draws: int = 40, seed: int = 0,
    ) -> "Agreement":  # fmt: skip
        """Return the marks of B and of C, and those of the controls.

        "C shuffled" marks as many interactions of each order, drawn at random; "C relabelled" has
        its variables renamed at random, which leaves luck alone; "B untrained" is B before its
        first step; "B accepts all" marks everything, so that Jaccard is H to C.

        Args:
            target, b, c, untrained: interactions on the same samples and variables.
            draws: random draws of the first two controls.
            seed: of these.

        Raises:
            ValueError: without a draw, or for other shapes.
        """
        check_draws(draws)
        generator = torch.Generator().manual_seed(seed)
        to_b, to_c = marks_of(target, b), marks_of(target, c)
        labels = [torch.randperm(target.n, generator=generator).tolist() for _ in range(draws)]
        return cls(target, {
            OBSERVED: [(to_b, to_c)],
            SHUFFLED: [(to_b, shuffled(target, to_c, generator)) for _ in range(draws)],
            RELABELLED: [(to_b, marks_of(target, c.relabelled(x))) for x in labels],
            "B untrained": [(marks_of(target, untrained), to_c)],
            "B accepts all": [(torch.stack(target.salient(), -2), to_c)],
        })  # fmt: skip

    @classmethod
    def of_study(cls, study: Study) -> "Agreement":
        """Return the agreement of a study's two baselines, on parts B and C of the data."""
        target, (b, c) = study.interactions()
        first = study.runs[1]
        untrained = study.extract(first.load(0), first.key(0))
        return cls.of(target, b, c, untrained, seed=study.seed)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Order spectra of all salient interactions, and of those that generalize to B and to C."""
        [(to_b, to_c)] = self.pairs[OBSERVED]
        return order_spectrum(self.target), self._spectrum(to_b), self._spectrum(to_c)

    def _spectrum(self, marks: Tensor) -> Tensor:
        return order_spectrum(self.target, marks.to(self.target.and_).unbind(-2))

    def _averaged(self, name: str, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return a measure of each sample, averaged over the draws of a comparison."""
        return torch.stack([measure(*pair) for pair in self.pairs[name]]).nanmean(0)

    def spectra(self, name: str = OBSERVED) -> Float[Tensor, "sample"]:
        """Return Jaccard of the two generalizable spectra; NaN where both are empty."""

        def overlap(one: Tensor, two: Tensor) -> Tensor:
            return jaccard(self._spectrum(one), self._spectrum(two))

        return self._averaged(name, overlap)

    def mean_spectra(self, name: str = OBSERVED) -> Interval:
        """Return Jaccard of the two spectra after averaging over samples, and over draws."""
        drawn = [self._spectrum(marks) for pair in self.pairs[name] for marks in pair]

        def overlap(*spectra: Tensor) -> float:
            means = torch.stack([x.mean(0) for x in spectra])
            return float(jaccard(means[::2], means[1::2]).nanmean())

        return resampled(overlap, *drawn, share=True)

    def sets(self, name: str = OBSERVED) -> Float[Tensor, "sample"]:
        r"""Return Jaccard of the two sets, each interaction weighted by its strength.

        :math:`\sum_{T \in B \cap C} |I[T]| / \sum_{T \in B \cup C} |I[T]|`, never larger than that
        of the spectra; NaN where both are empty.
        """
        size = self.target.effects.abs()

        def overlap(one: Tensor, two: Tensor) -> Tensor:
            both, either = ((size * x).sum((-2, -1)) for x in (one & two, one | two))
            return both / either.where(either > 0, torch.nan)

        return self._averaged(name, overlap)

    def kappa(self, name: str = OBSERVED) -> Interval:
        """Return Cohen's kappa of the marks on the salient interactions of all samples together.

        0: no more agreement than of independent judges who say yes as often. Averaged over draws,
        and not defined where both judges have one and the same answer to everything.
        """
        from sklearn.metrics import cohen_kappa_score

        salient = torch.stack(self.target.salient(), -2)

        def kappa(rows: Tensor) -> float:
            found = []
            for pair in self.pairs[name]:
                one, two = (marks[rows][salient[rows]].numpy() for marks in pair)
                if len({*one, *two}) > 1:
                    found.append(cohen_kappa_score(one, two))
            return float(np.mean(found)) if found else float("nan")

        return cut(resampled(kappa, torch.arange(len(self.target))), -1, 1)


def agreement_table(found: Mapping[str, Agreement]) -> pd.DataFrame:
    """Return Jaccard of spectra in all comparisons, samples averaged after it and before it.

    Returns:
        Columns label, comparison, average, value, low95, high95.
    """
    rows = []
    for label, some in found.items():
        for name in some.pairs:
            each = interval(some.spectra(name), share=True)
            rows.append((label, name, "each sample, then averaged", *each))
            rows.append((label, name, "of the mean spectra", *some.mean_spectra(name)))
    columns = ["label", "comparison", "average", "value", "low95", "high95"]
    return pd.DataFrame(rows, columns=columns)


def set_table(found: Mapping[str, Agreement]) -> pd.DataFrame:
    """Return Jaccard of sets and of spectra on every sample, for B and C and the random controls.

    Returns:
        Columns label, comparison, sample, sets, spectra.
    """
    rows = []
    for label, some in found.items():
        for name in RANDOM:
            values = {"sets": some.sets(name).numpy(), "spectra": some.spectra(name).numpy()}
            about = {"label": label, "comparison": name, "sample": range(len(some.target))}
            rows.append(pd.DataFrame({**about, **values}))
    return pd.concat(rows, ignore_index=True)


def kappa_table(found: Mapping[str, Agreement]) -> pd.DataFrame:
    """Return Cohen's kappa for B and C and the random controls.

    Returns:
        Columns label, comparison, kappa, low95, high95.
    """
    rows = [(label, name, *some.kappa(name)) for label, some in found.items() for name in RANDOM]
    return pd.DataFrame(rows, columns=["label", "comparison", "kappa", "low95", "high95"])
