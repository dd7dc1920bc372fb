"""How many of several baseline networks share an interaction, and what that is worth (App. C).

One measure of all: the order spectra of what exactly c of K baselines share. Transfer to k of them
is linear in it, and so is its average over all choices of k.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import hypergeom
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.statistics import Interval, check_draws, interval
from symgen.method.transfer import generalization_power, order_spectrum, transfer

#: Rule to how many of k baselines have to share an interaction.
RULES = {"any": lambda k: 1, "a majority": lambda k: k // 2 + 1, "all": lambda k: k}
#: Samples that must have salient interactions of an order for it to be compared.
ENOUGH = 5


def share_of_choices(total: int, k: int, rule: str = "any") -> Float[Tensor, "count"]:
    """Return in which share of the choices of k of K baselines enough of them share an interaction.

    An interaction that c of K baselines share is shared by X of k chosen ones, where X has the
    hypergeometric distribution: P(X >= 1) = 1 - binom(K - c, k) / binom(K, k) for the rule "any".

    Args:
        total: K.
        k: 1 to K.
        rule: how many of the k are enough: "any" (Eq. 13), "a majority" (more than half), "all".

    Returns:
        The share for every c = 0..K, shape (K + 1,).

    Raises:
        ValueError: for an unknown rule, or a k outside 1..K.

    Example:
        >>> share_of_choices(3, 2)
        tensor([0.0000, 0.6667, 1.0000, 1.0000], dtype=torch.float64)
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if not 1 <= k <= total:
        raise ValueError(f"k must be 1 to {total}, the number of baseline networks; got {k}")
    return torch.from_numpy(hypergeom.sf(RULES[rule](k) - 1, total, range(total + 1), k))


@dataclasses.dataclass(frozen=True)
class Witnesses:
    """What K baseline networks share of a target's strength, and what they would by chance.

    Attributes:
        observed: order spectra of the salient interactions that exactly c = 0..K baselines share.
        chance: the same with the variables of all baselines relabelled alike, averaged over draws:
            the baselines stay as much like each other, only their likeness to the target goes.
        defined: which samples have a total effect, without which there is no H.
    """

    observed: Float[Tensor, "count sample 2 order"]
    chance: Float[Tensor, "count sample 2 order"]
    defined: Tensor

    @classmethod
    def of(
        cls, target: Interactions, baselines: Sequence[Interactions], draws: int = 40, seed: int = 0
    ) -> "Witnesses":
        """Count the baselines that share each salient interaction of a target.

        Args:
            target, baselines: interactions on the same samples and variables.
            draws: random relabellings that the chance level is averaged over.
            seed: of these.

        Raises:
            ValueError: without a draw, or for other shapes.
        """
        check_draws(draws)
        generator = torch.Generator().manual_seed(seed)
        luck = 0
        for _ in range(draws):
            labels = torch.randperm(target.n, generator=generator).tolist()
            luck = luck + _by_count(target, [b.relabelled(labels) for b in baselines]) / draws
        return cls(_by_count(target, baselines), luck, target.total_effect > 0)

    @property
    def total(self) -> Float[Tensor, "sample 2 order"]:
        """Order spectra of all salient interactions (Eq. 6)."""
        return self.observed.sum(0)

    @property
    def numbers(self) -> range:
        """The numbers 1..K of baselines."""
        return range(1, len(self.observed))

    @property
    def orders(self) -> list[int]:
        """Orders below n of which at least `ENOUGH` samples, or all, have salient interactions.

        Order n has no chance level: relabelled, the set of all variables is the same.
        """
        often = (self.total.abs().sum(-2) > 0)[self.defined].sum(0)[:-1]
        return [
            m
            for m in range(1, len(often))
            if often[m] >= max(1, min(ENOUGH, int(self.defined.sum())))
        ]

    def spectrum(
        self, k: int, rule: str = "any", chance: bool = False
    ) -> Float[Tensor, "sample 2 order"]:
        """Return order spectra of what transfers to k baselines, averaged over all choices of k.

        Args:
            k, rule: see `share_of_choices`.
            chance: for relabelled baselines.
        """
        parts = self.chance if chance else self.observed
        return torch.tensordot(share_of_choices(len(parts) - 1, k, rule).to(parts), parts, 1)

    def power(
        self, k: int, rule: str = "any", orders: Iterable[int] | None = None, chance: bool = False
    ) -> Float[Tensor, "sample"]:
        """Return H of every sample with k baselines, averaged over all choices of k.

        Args:
            k, rule, chance: see `spectrum`.
            orders: those that count; all without.

        Returns:
            NaN for samples without salient interactions of these orders or without a total effect.
        """
        return self._share(self.spectrum(k, rule, chance), self.total, orders)

    def _share(self, part: Tensor, whole: Tensor, orders: Iterable[int] | None = None) -> Tensor:
        kept = slice(None) if orders is None else list(orders)
        part, whole = (x.abs()[..., kept].sum((-2, -1)) for x in (part, whole))
        return part / whole.where((whole > 0) & self.defined, torch.nan)

    def lift(self, k: int) -> Float[Tensor, "sample"]:
        """Return H of every sample with any of k baselines, less its chance level."""
        return self.power(k) - self.power(k, chance=True)

    def level(self, k: int, rule: str = "any") -> tuple[Interval, Interval]:
        """Return the mean of H with k baselines over samples, and the same less its chance level.

        The 95 % interval is in both the one of a share: differences to chance, sample by sample,
        are nearly equal where hits are rare, and theirs would be too narrow.
        """
        return _less_chance(*(self.power(k, rule, chance=c) for c in (False, True)))

    def gain(
        self, first: int, last: int, orders: Iterable[int] | None = None
    ) -> tuple[Interval, Interval]:
        """Return by how much H of some orders grows with further baselines; see `level`.

        Args:
            first, last: numbers of baselines.
            orders: those that count; all without.

        Returns:
            The mean growth over samples, and the same less the mean growth by chance.
        """
        options = ({"orders": orders, "chance": c} for c in (False, True))
        return _less_chance(*(self.power(last, **x) - self.power(first, **x) for x in options))

    def hits(self, count: int, chance: bool = False) -> Float[Tensor, "sample"]:
        """Return which share of the salient strength exactly so many baselines share."""
        return self._share((self.chance if chance else self.observed)[count], self.total)

    def lone(self, chance: bool = False) -> Float[Tensor, "sample"]:
        """Return which share of the strength that at most one baseline shares is shared by one."""
        none, one = (self.chance if chance else self.observed)[:2]
        return self._share(one, none + one)


def _less_chance(observed: Tensor, luck: Tensor) -> tuple[Interval, Interval]:
    found, chance = interval(observed, share=True), interval(luck).mean
    return found, Interval(*(end - chance for end in found))


def _by_count(
    target: Interactions, baselines: Sequence[Interactions]
) -> Float[Tensor, "count sample 2 order"]:
    hits = sum(torch.stack(transfer(target, b), -2) for b in baselines)
    marks = torch.stack([hits == count for count in range(len(baselines) + 1)])
    return order_spectrum(target, marks.to(hits.dtype).unbind(-2))


def _ends(name: str, value: Interval, prefix: str = "") -> dict[str, float]:
    return {name: value.mean, f"{prefix}low95": value.low, f"{prefix}high95": value.high}


def power_by_number(found: Mapping[str, Witnesses]) -> pd.DataFrame:
    """Return H with 1..K baselines, its chance level, and what lies above, averaged over samples.

    Returns:
        Columns label, baselines, and q, q_low95, q_high95 for q = power, chance and lift.
    """
    rows = []
    for label, some in found.items():
        for k in some.numbers:
            power, above = some.level(k)
            luck = interval(some.power(k, chance=True), share=True)
            row = {"label": label, "baselines": k}
            for name, value in (("power", power), ("chance", luck), ("lift", above)):
                row |= _ends(name, value, f"{name}_")
            rows.append(row)
    return pd.DataFrame(rows)


def power_of_choices(
    cases: Mapping[str, tuple[Interactions, Sequence[Interactions]]],
) -> pd.DataFrame:
    """Return H, averaged over samples, with every single choice of baselines.

    Args:
        cases: label to target and baselines.

    Returns:
        Columns label, baselines (how many), power.
    """
    rows = []
    for label, (target, baselines) in cases.items():
        for k in range(1, len(baselines) + 1):
            for chosen in itertools.combinations(baselines, k):
                power = generalization_power(target, transfer(target, chosen))
                rows.append({"label": label, "baselines": k, "power": float(power.nanmean())})
    return pd.DataFrame(rows)


def gains_by_order(found: Mapping[str, Witnesses]) -> pd.DataFrame:
    """Return how much H of each order grows from 1 to K baselines.

    Returns:
        Columns label, step (the order), gain, low95, high95, chance; of `Witnesses.orders`.
    """
    return _gains(
        (label, order, some.gain(1, some.numbers[-1], [order]))
        for label, some in found.items()
        for order in some.orders
    )


def gains_by_number(found: Mapping[str, Witnesses]) -> pd.DataFrame:
    """Return how much H grows with every further baseline.

    Returns:
        Columns label, step (such as "1 to 2"), gain, low95, high95, chance.
    """
    return _gains(
        (label, f"{k} to {k + 1}", some.gain(k, k + 1))
        for label, some in found.items()
        for k in some.numbers[:-1]
    )


def _gains(steps: Iterable[tuple[str, Any, tuple[Interval, Interval]]]) -> pd.DataFrame:
    rows = [(label, step, *gain, gain.mean - above.mean) for label, step, (gain, above) in steps]
    return pd.DataFrame(rows, columns=["label", "step", "gain", "low95", "high95", "chance"])


def strength_by_hits(found: Mapping[str, Witnesses]) -> pd.DataFrame:
    """Return which share of the salient strength exactly c = 0..K baselines share.

    Returns:
        Columns label, hits, share, low95, high95, chance; averages over samples.
    """
    rows = []
    for label, some in found.items():
        for c in range(len(some.observed)):
            row = {"label": label, "hits": c} | _ends("share", interval(some.hits(c), share=True))
            rows.append(row | {"chance": interval(some.hits(c, chance=True)).mean})
    return pd.DataFrame(rows)


def lift_by_rule(found: Mapping[str, Witnesses]) -> pd.DataFrame:
    """Return H above chance where any, a majority or all of k baselines have to share.

    Returns:
        Columns label, rule, baselines, lift, low95, high95; averages over samples.
    """
    rows = [
        {"label": label, "rule": rule, "baselines": k} | _ends("lift", some.level(k, rule)[1])
        for label, some in found.items()
        for rule in RULES
        for k in some.numbers
    ]
    return pd.DataFrame(rows)
