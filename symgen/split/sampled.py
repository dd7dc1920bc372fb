r"""The sparsest AND-OR model of sampled masked states, if there are too many to run them all.

With w = v - v[0] on m sampled states, and one column of A per candidate AND or OR, it solves

.. math:: \min \|x\|_1 + c\,\|s\|_1 \quad\text{subject to}\quad
          |w_S - (Ax)_S - s_S| \le \varepsilon \text{ for every sampled state } S

with HiGHS. s is the part that the candidates cannot explain. The duals mu of the states price every
set T: a candidate with abs(A'mu) > 1 that is not among the columns makes the model sparser. So the
candidates grow: sets with one more variable than a set in use enter if their price exceeds 1, and
the program is solved again.

The gap is proven for the program of the last candidates. It says nothing about other states: how
well the model predicts them is measured, on states held out.
"""

import dataclasses
import os
import warnings
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symgen.interactions import Interactions, tidy
from symgen.split.few import BOOST, SMALL, columns, least_cost
from symgen.split.sparsify import MAX_VARIABLES as EXACT_LAST, check_options, warn_dead
from symgen.storage import read_whole, write_tensors

# Larger states do not fit into 64-bit integers.
MAX_VARIABLES = 62
# The first candidates: orders up to HIGHEST while there are at most COLUMNS of them.
HIGHEST, COLUMNS = 4, 2_000
# Cost of an unexplained state, in units of effects, and the smallest noise, if max(w) - min(w) = 1.
COST, LEAST_NOISE = 100.0, 1e-6
# Rounds of new candidates, how many grow by one variable in each step, and how many enter.
ROUNDS, GROWING, ENTERING = 10, 200, 200
# A candidate enters if its price exceeds 1 + ENTERS, stays in the program above STAYS, and can have
# an effect at the end above 1 - LEAVES.
ENTERS, STAYS, LEAVES = 1e-3, 0.9, 0.05
# Turns of reweighting, for few effects.
TURNS = 3
FORMAT = "symgen.sampled_interactions.3"


class UnexplainedWarning(UserWarning):
    """The model misses held-out outputs by more than the noise allows."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledInteractions:
    """AND and OR effects that explain sampled masked states.

    Attributes:
        n: number of variables per sample.
        index: the candidates T as integers, bit i for variable i, shape (candidate,).
        is_or: whether a candidate is an OR, shape (candidate,).
        effects: effects of the candidates, in units of v (log odds), shape (sample, candidate).
        bias: v on the fully masked input, shape (sample,).
        full: v on the unmasked input, shape (sample,).
        objective: sum of absolute effects, and the cost of the unexplained part, shape (sample,).
        gap: certified relative distance of the objective from the optimum, shape (sample,).
        held_out: states that the model has not seen, shape (held,).
        v: the network's outputs there, shape (sample, held).
        names: variable names, (sample, n) texts, or one list of n for all samples, or None.
    """

    n: int
    index: Int[Tensor, " candidate"]
    is_or: Bool[Tensor, " candidate"]
    effects: Float[Tensor, "sample candidate"]
    bias: Float[Tensor, " sample"]
    full: Float[Tensor, " sample"]
    objective: Float[Tensor, " sample"]
    gap: Float[Tensor, " sample"]
    held_out: Int[Tensor, " held"]
    v: Float[Tensor, "sample held"]
    names: Any = None

    def __post_init__(self) -> None:
        if self.names is not None:
            names = np.broadcast_to(np.array(self.names, str), (len(self), self.n))
            object.__setattr__(self, "names", names)

    def __len__(self) -> int:
        return len(self.effects)

    def __repr__(self) -> str:
        return f"SampledInteractions({len(self)} samples, n = {self.n})"

    def __getitem__(self, kept: Any) -> "SampledInteractions":
        """Return the interactions of some samples: a slice, or an array of indices."""
        rows = torch.arange(len(self))[kept].reshape(-1)
        parts = "effects", "bias", "full", "objective", "gap", "v"
        names = None if self.names is None else self.names[rows.numpy()]
        return dataclasses.replace(self, **{k: getattr(self, k)[rows] for k in parts}, names=names)

    @property
    def errors(self) -> Float[Tensor, "sample held"]:
        """Squared errors of the held-out outputs, as shares of their variance; NaN if constant.

        Their mean over states is the unexplained share of the variance.
        """
        spread = self.v.var(-1, correction=0, keepdim=True)
        return (self.v - self.predict(self.held_out)) ** 2 / spread.where(spread > 0, torch.nan)

    def predict(self, states: Int[Tensor, " state"]) -> Float[Tensor, "sample state"]:
        """Return d, the output of the logical model (Eq. 3), on any masked states."""
        used = (self.effects != 0).any(0)
        matrix = columns(np.asarray(states), self.index[used].numpy(), self.is_or[used].numpy())
        return self.bias[:, None] + self.effects[:, used] @ torch.from_numpy(matrix).T

    def to_frame(self) -> pd.DataFrame:
        """Return the nonzero interactions as a tidy table, strongest first within a sample.

        Returns:
            Columns sample, type ("and" or "or"), members (names or numbers joined by commas),
            order, effect (log odds), index.
        """
        sample, place = self.effects.numpy().nonzero()
        names = range(self.n) if self.names is None else self.names
        labels = np.broadcast_to(names, (len(self), self.n))
        kind, index = self.is_or.numpy().astype(int)[place], self.index.numpy()[place]
        return tidy(sample, kind, index, self.effects.numpy()[sample, place], labels)

    def save(self, path: str | os.PathLike) -> None:
        """Write to a safetensors file; a reader never sees half of it."""
        tensors = {k: x for k, x in vars(self).items() if isinstance(x, Tensor)}
        names = None if self.names is None else self.names.tolist()
        write_tensors(path, tensors, {"format": FORMAT, "n": self.n, "names": names})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SampledInteractions":
        """Return the interactions that `save` wrote.

        Raises:
            ValueError: if the file is damaged, or holds something else.
        """
        tensors, about = read_whole(path)
        if about.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is not a file that SampledInteractions.save wrote")
        return cls(**tensors, **about)

    def dense(self) -> Interactions:
        """Return the same effects as `Interactions` over all 2**n sets, which need memory."""
        effects = self.effects.new_zeros(len(self), 2, 2**self.n)
        effects[:, self.is_or.long(), self.index] = self.effects
        return Interactions(effects, self.bias, self.objective, self.gap, self.full, self.names)


def draw_states(n: int, count: int, seed: int = 0) -> Int[Tensor, " count"]:
    """Draw different masked states at random, all with the same probability.

    The fully masked and the unmasked state are the first two. A larger count only adds states.

    Args:
        n: number of variables, 1 to 62.
        count: number of states, 2 to 2**n.
        seed: seed of the draw.

    Example:
        >>> draw_states(20, 4).tolist()[:2]
        [0, 1048575]
    """
    if not 1 <= n <= MAX_VARIABLES or not 2 <= count <= 2**n:
        raise ValueError(
            f"n is {n} and count {count}; expected 1 <= n <= {MAX_VARIABLES}, and 2 to 2**n states"
        )
    generator, drawn = np.random.default_rng(seed), {0: None, 2**n - 1: None}
    if n <= EXACT_LAST:
        drawn |= dict.fromkeys(generator.permutation(2**n).tolist())
    while len(drawn) < count:
        drawn |= dict.fromkeys(generator.integers(2**n, size=2 * count).tolist())
    return torch.tensor([*drawn][:count])


def sparsify_sampled(
    v: Float[Tensor, "sample state"],
    states: Int[Tensor, " state"],
    n: int,
    *,
    held_out: int = 0,
    noise: float = 0.02,
    tol: float = 1e-3,
    max_order: int | None = None,
    few: bool = False,
) -> SampledInteractions:
    """Return the sparsest AND and OR effects that explain v on some states.

    Args:
        v: outputs on these states.
        states: different masked states, first the fully masked and second the unmasked one, as
            `draw_states` returns them.
        n: number of variables, 1 to 62.
        held_out: number of states at the end that the model does not see, to judge it.
        noise: kappa, the share of abs(v[N] - v[0]) by which d may differ from v.
        tol: relative gap to keep when effects are set to zero.
        max_order: largest order of the first candidates; by default as many as give 2,000
            candidates, up to four. Larger sets enter if they make the model sparser.
        few: return a model with few effects, for reading; see `sparsify`.

    Raises:
        ValueError: for arguments that do not fit together.

    Warns:
        UnexplainedWarning: if the held-out error is larger than the noise allows.
        DeadOutputWarning: if v[N] = v[0] for some samples.

    Example:
        >>> states = draw_states(20, 200)
        >>> v = 3.0 * ((states & 7) == 7) - 1.0 * ((states & 24) != 0)
        >>> sparsify_sampled(v[None], states, 20, noise=0.01).to_frame()[["type", "members"]].values
        array([['and', '0, 1, 2'],
               ['or', '3, 4']], dtype=object)
    """
    check_options(noise, tol, 1)
    v, states = torch.as_tensor(v).detach().cpu().double(), torch.as_tensor(states).cpu()
    fits = v.ndim == 2 and v.shape[1:] == states.shape and states[:2].tolist() == [0, 2**n - 1]
    if not fits or ((states < 0) | (states >= 2**n)).any() or len(states.unique()) < len(states):
        raise ValueError(
            f"v has shape {tuple(v.shape)} and states begin with {states[:2].tolist()}; expected "
            f"(sample, state), and different states from 0 to {2**n - 1}, of which 0 and "
            f"{2**n - 1} come first, as draw_states({n}, ...) returns"
        )
    if not (0 <= held_out <= len(states) - 2 and v.isfinite().all()):
        raise ValueError(
            f"held_out is {held_out} of {len(states)} states, and {int((~v.isfinite()).sum())} "
            "values of v are NaN or infinite; expected two more states than held_out, and numbers"
        )
    warn_dead(v[:, :2])
    seen = len(states) - held_out
    solved = [
        _solve(x[:seen], states[1:seen].numpy(), n, noise, tol, max_order, few) for x in v.numpy()
    ]
    keys = np.unique(np.concatenate([part[0] for part in solved]))
    effects = np.zeros((len(v), len(keys)))
    for row, (own, x, _, _) in zip(effects, solved, strict=True):
        row[np.searchsorted(keys, own)] = x
    objective, gap = (
        torch.tensor([part[k] for part in solved], dtype=torch.float64) for k in (2, 3)
    )
    result = SampledInteractions(
        n, torch.from_numpy(keys >> 1), torch.from_numpy(keys & 1 == 1), torch.from_numpy(effects),
        v[:, 0].clone(), v[:, 1].clone(), objective, gap, states[seen:], v[:, seen:].clone(),
    )  # fmt: skip
    if held_out:
        miss = (result.v - result.predict(result.held_out)).square().mean(1).sqrt()
        allowed = noise * (result.full - result.bias).abs() + 1e-3 * result.v.std(1, correction=0)
        if (miss > allowed).any():
            warnings.warn(
                f"sparsify_sampled: the error on held-out states exceeds the noise for "
                f"{int((miss > allowed).sum())} of {len(v)} samples; {result.errors.mean():.1%} of "
                "the variance is unexplained. More states, or few=True, may explain more.",
                UnexplainedWarning,
                stacklevel=2,
            )
    return result


def _solve(
    v: np.ndarray,
    states: np.ndarray,
    n: int,
    noise: float,
    tol: float,
    max_order: int | None,
    few: bool,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return the nonzero effects of one sample with their keys, the objective and its gap.

    The key of a candidate is twice its set, plus 1 for an OR.
    """
    w = v[1:] - v[0]
    scale = max(w.max(), 0) - min(w.min(), 0)
    eps = max(noise * abs(w[0]) / scale, LEAST_NOISE) if scale else 0.0
    if abs(w).max() <= eps * scale:
        return np.zeros(0, np.int64), np.zeros(0), 0.0, 0.0
    program = _Program(states, w / scale, eps)
    keys = _candidates(n, max_order)
    part = np.arange(len(keys))
    for turn in range(ROUNDS + 1):
        x, mu = program.solved(keys[part], np.ones(len(part)))
        price = np.abs(mu @ program.columns(keys))
        new = program.growth(n, keys, mu, price)
        if turn == ROUNDS or (not len(new) and price.max() <= 1 + ENTERS):
            break
        part = np.r_[np.flatnonzero(price > STAYS), len(keys) + np.arange(len(new))]
        keys = np.r_[keys, new]
    best = np.zeros(len(keys))
    best[part] = x
    low = (mu @ program.w - eps * abs(mu).sum()) / max(price.max(), abs(mu).max() / COST, 1.0)
    objective = program.objective(keys, best)
    most = max(low / (1 - min(tol, 0.5)), objective)
    kept, cost = price > 1 - LEAVES, np.ones(len(keys))
    for _ in range(TURNS if few else 1):
        if few:
            small = 1 / (1 + abs(best) / (SMALL * abs(best).max()))
            cost = 1 + BOOST * tol * objective / (small * abs(best)).sum() * small
        x, _ = program.solved(keys[kept], cost[kept], corner=few)
        other = np.zeros_like(best)
        other[kept] = np.where(abs(x) > 1e-9, x, 0.0)
        if program.objective(keys, other) <= most:
            best, kept = other, other != 0
    objective, used = program.objective(keys, best), best != 0
    gap = max(0.0, (objective - low) / objective)
    return keys[used], best[used] * scale, objective * scale, gap


def _candidates(n: int, max_order: int | None) -> np.ndarray:
    """Return the keys of the first candidates."""
    if max_order is None:
        sizes = np.cumsum([2 * comb(n, k) for k in range(1, HIGHEST + 1)]) - n
        max_order = max(1, int((sizes <= COLUMNS).sum()))
    if max_order < 1:
        raise ValueError(f"max_order is {max_order}; expected a number >= 1, or None")
    orders = range(1, min(max_order, n) + 1)
    sets = np.array(
        [sum(1 << i for i in some) for k in orders for some in combinations(range(n), k)]
    )
    # An OR of one variable is an AND of it. The OR of all variables is a constant.
    every = [] if max_order >= n else [(1 << n) - 1]
    return np.r_[sets << 1, np.r_[sets[n:], every].astype(np.int64) << 1 | 1]


class _Program:
    """The linear program of one sample, for any candidates."""

    def __init__(self, states: np.ndarray, w: np.ndarray, eps: float):
        self.states, self.w, self.eps = states, w, eps

    def columns(self, keys: np.ndarray) -> np.ndarray:
        return columns(self.states, keys >> 1, keys & 1 == 1)

    def solved(
        self, keys: np.ndarray, cost: np.ndarray, corner: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return effects of least cost, and duals."""
        matrix = np.hstack([self.columns(keys), np.eye(len(self.w))])
        costs = np.r_[cost, np.full(len(self.w), COST)]
        x, mu = least_cost(matrix, self.w - self.eps, self.w + self.eps, costs, corner)
        return x[: len(keys)], mu

    def objective(self, keys: np.ndarray, x: np.ndarray) -> float:
        """Return the sum of absolute effects, and the cost of the part that they do not explain."""
        rest = abs(self.w - self.columns(keys[x != 0]) @ x[x != 0])
        return float(abs(x).sum() + COST * (rest - self.eps).clip(min=0).sum())

    def growth(self, n: int, keys: np.ndarray, mu: np.ndarray, price: np.ndarray) -> np.ndarray:
        """Return new candidates whose price exceeds 1, each grown from one in use."""
        seen, new, prices = keys, keys[:0], price[:0]
        # Columns that are equal on the sampled states have equal sums of random numbers.
        random = np.random.default_rng(0).random(len(self.w))
        sums = (random @ self.columns(keys)).round(9)
        for _ in range(n):
            best = keys[_top(price, GROWING)]
            keys = np.unique(best[:, None] | 2 << np.arange(n))
            pairs = keys[np.bitwise_count(keys >> 1) == 2]
            keys = np.setdiff1d(np.r_[keys, pairs | 1], seen)
            seen = np.union1d(seen, keys)
            matrix = self.columns(keys)
            # The states cannot tell equal columns apart: smaller sets go first, and of equally
            # large ones none is chosen, because any choice would depend on the order of variables.
            own, first, counts = np.unique(
                (random @ matrix).round(9), return_index=True, return_counts=True
            )
            kept = first[(counts == 1) & ~np.isin(own, sums)]
            keys, matrix, sums = keys[kept], matrix[:, kept], np.r_[sums, own]
            if not len(keys):
                break
            price = np.abs(mu @ matrix)
            enters = price > 1 + ENTERS
            new, prices = np.r_[new, keys[enters]], np.r_[prices, price[enters]]
            if price.max() <= 1:
                break
        return new[_top(prices, ENTERING)]


def _top(price: np.ndarray, count: int) -> np.ndarray:
    """Return which prices are among the largest, with all ties, so that no order matters."""
    return price >= (np.sort(price)[-count] * (1 - 1e-6) if len(price) > count else 0)
