r"""The sparsest AND-OR model of sampled masked states, if there are too many to run them all.

With w = v - v[0] on m sampled states, `search.grown` finds ANDs and ORs of any size that explain w,
with effects x by least squares. Then a linear program looks for a sparser model that is as close to
every state. With one column of A per candidate set,

.. math:: \min \|y\|_1 \quad\text{subject to}\quad
          |w_S - (Ay)_S| \le \max(\varepsilon, \sigma, |w_S - (Ax)_S|)
          \text{ for every sampled state } S,

where sigma is the standard deviation of w - Ax.
Its duals mu price every set T: one with abs(A'mu) > 1 that is no candidate makes the model sparser.
Climbs look for such sets, they become candidates, and the program is solved again. The sets that
are left are fitted by least squares once more, so effects do not shrink. The new model is kept if
Schwarz's criterion, which weighs the number of effects against the residual, prefers it.

What is proven: no model of the candidates is sparser by more than the gap. What is not: other sets
might, although a search found none. How well the model predicts other states is measured, on states
held out.
"""

import dataclasses
import os
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symgen.interactions import Interactions, tidy
from symgen.split.few import columns, least_cost
from symgen.split.search import Model, grown
from symgen.split.sparsify import MAX_VARIABLES as EXACT_LAST, warn_dead
from symgen.storage import read_whole, write_tensors

# Larger states do not fit into 64-bit integers.
MAX_VARIABLES = 62
# States drawn at a time.
BLOCK = 1024
# New candidates have a price above ENTERS. Rounds end that lower the bound by less than PROGRESS.
ENTERS, PROGRESS = 1.001, 0.01
# Equally sparse models to compare, and by how much cheaper some effects are for that.
CORNERS, CHEAPER = 4, 1e-3
# Effects up to this are rounding errors.
ZERO = 1e-9
# Smallest noise bound if max(abs(w)) = 1.
LEAST_NOISE = 1e-6
# A smaller share of the variance on held-out states is reported.
EXPLAINED = 0.95
FORMAT = "symgen.sampled_interactions.3"


class UnexplainedWarning(UserWarning):
    """The model explains too little of the outputs on held-out states."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledInteractions:
    """AND and OR effects that explain sampled masked states.

    Attributes:
        n: number of variables per sample.
        index: the sets T as integers, bit i for variable i, shape (set,).
        is_or: whether a set is an OR, shape (set,).
        effects: effects in units of v (log odds), 0 if a sample does not use a set, (sample, set).
        bias: v on the fully masked input, shape (sample,).
        full: v on the unmasked input, shape (sample,).
        objective: sum of absolute effects, shape (sample,).
        gap: share by which a model of the candidates could be sparser at most if it is as close to
            the sampled states, shape (sample,). Nothing is proven of sets that are no candidates.
        held_out: states that the model has not seen, shape (held,).
        v: the network's outputs there, shape (sample, held).
        names: variable names, (sample, n) texts, or one list of n for all samples, or None.
    """

    n: int
    index: Int[Tensor, " set"]
    is_or: Bool[Tensor, " set"]
    effects: Float[Tensor, "sample set"]
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
        shares = ", ".join(f"{share:.2f}" for share in self.explained[:5].tolist())
        more = ", ..." if len(self) > 5 else ""
        return (
            f"SampledInteractions({len(self)} samples, n = {self.n}, explained on held-out states: "
            f"{shares}{more})"
        )

    def __getitem__(self, kept: Any) -> "SampledInteractions":
        """Return the interactions of some samples: a slice, or an array of indices."""
        rows = torch.arange(len(self))[kept].reshape(-1)
        parts = "effects", "bias", "full", "objective", "gap", "v"
        names = None if self.names is None else self.names[rows.numpy()]
        return dataclasses.replace(self, **{k: getattr(self, k)[rows] for k in parts}, names=names)

    @property
    def explained(self) -> Float[Tensor, " sample"]:
        """Share of the variance of v on held-out states that is explained; NaN if it is 0."""
        spread = (self.v - self.v.mean(-1, keepdim=True)).square().mean(-1)
        missed = (self.v - self.predict(self.held_out)).square().mean(-1)
        return 1 - missed / spread.where(spread > 0, torch.nan)

    def predict(self, states: Int[Tensor, " state"] | None = None) -> Float[Tensor, "sample state"]:
        """Return d, the output of the logical model on masked states (Eq. 3).

        Args:
            states: masked states; by default all 2**n, in order, for up to 16 variables.

        Raises:
            ValueError: for all states of more variables.
        """
        if states is None:
            if self.n > EXACT_LAST:
                raise ValueError(
                    f"n = {self.n} variables have 2^{self.n} masked states; all of them are "
                    f"predicted for n <= {EXACT_LAST}. Pass some, such as predict(inter.held_out)"
                )
            states = torch.arange(2**self.n)
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
        kind = self.is_or.long().numpy()[place]
        index = self.index.numpy()[place]
        names = np.arange(self.n) if self.names is None else self.names
        labels = np.broadcast_to(names, (len(self), self.n))
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
    """Draw different masked states at random, many with few or nearly all variables present.

    A number of present variables s is drawn with probability proportional to 1 / s + 1 / (n - s),
    as by KernelSHAP (Lundberg and Lee 2017, arXiv 1705.07874). So a set of k variables is wholly
    present in about one of k + 1 states, and wholly absent in another, for any n, as long as such
    states are not used up. If all states had the same probability, one in 2**k would do so. The
    fully masked and the unmasked state are the first two. A larger count only adds states.

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
    generator = np.random.default_rng(seed)
    sizes = np.arange(1, n)
    chance = 1 / sizes + 1 / (n - sizes)
    drawn = {0: None, 2**n - 1: None}
    while len(drawn) < count:
        size = generator.choice(sizes, (BLOCK, 1), p=chance / chance.sum())
        rank = generator.random((BLOCK, n)).argsort(1)
        drawn |= dict.fromkeys(((rank < size) @ (1 << np.arange(n))).tolist())
    return torch.tensor([*drawn][:count])


def sparsify_sampled(
    v: Float[Tensor, "sample state"],
    states: Int[Tensor, " state"],
    n: int,
    *,
    held_out: int = 0,
    noise: float = 0.002,
) -> SampledInteractions:
    """Return sparse AND and OR effects that explain v on some states.

    The effects are fitted by least squares, those that are smaller than 3.5 standard errors are
    left out.

    Args:
        v: outputs on these states.
        states: different masked states, first the fully masked and second the unmasked one, as
            `draw_states` returns them.
        n: number of variables, 1 to 62.
        held_out: number of states at the end that the model does not see, to judge it.
        noise: kappa, the share of abs(v[N] - v[0]) by which d may differ from v.

    Raises:
        ValueError: for arguments that do not fit together.

    Warns:
        UnexplainedWarning: if the model explains less than 95 % of the variance on held-out states.
        DeadOutputWarning: if v[N] = v[0] for some samples.

    Example:
        >>> states = draw_states(20, 300)
        >>> v = 3.0 * ((states & 7) == 7) - 1.0 * ((states & 24) != 0)
        >>> inter = sparsify_sampled(v[None], states, 20, held_out=100)
        >>> inter
        SampledInteractions(1 samples, n = 20, explained on held-out states: 1.00)
        >>> inter.to_frame()[["type", "members"]].values
        array([['and', '0, 1, 2'],
               ['or', '3, 4']], dtype=object)
    """
    v = torch.as_tensor(v).detach().cpu().double()
    states = torch.as_tensor(states).cpu()
    fits = v.ndim == 2 and v.shape[1:] == states.shape and states[:2].tolist() == [0, 2**n - 1]
    if not fits or ((states < 0) | (states >= 2**n)).any() or len(states.unique()) < len(states):
        raise ValueError(
            f"v has shape {tuple(v.shape)} and states begin with {states[:2].tolist()}; expected "
            f"(sample, state), and different states from 0 to {2**n - 1}, of which 0 and "
            f"{2**n - 1} come first, as draw_states({n}, ...) returns"
        )
    if not (0 <= held_out <= len(states) - 2 and 0 <= noise < np.inf and v.isfinite().all()):
        raise ValueError(
            f"held_out is {held_out} of {len(states)} states, noise {noise}, and "
            f"{int((~v.isfinite()).sum())} values of v are NaN or infinite; expected two more "
            "states than held_out, a finite noise >= 0, and numbers"
        )
    warn_dead(v[:, :2])
    seen = len(states) - held_out
    present = (states[1:seen, None].numpy() >> np.arange(n)) & 1 == 1
    # The numbering of the variables must not matter, so they are sorted by their states.
    order = np.lexsort(present)
    solved = []
    for w in (v - v[:, :1])[:, 1:seen].numpy():
        model, x, gap = _sparsest(present[:, order], w, noise * abs(w[0]))
        solved.append(((model.members @ (1 << order)) << 1 | model.is_or, x, gap))
    keys = np.unique(np.concatenate([part[0] for part in solved]))
    effects = np.zeros((len(v), len(keys)))
    for row, (own, x, _) in zip(effects, solved, strict=True):
        row[np.searchsorted(keys, own)] = x
    result = SampledInteractions(
        n=n,
        index=torch.from_numpy(keys >> 1),
        is_or=torch.from_numpy(keys & 1 == 1),
        effects=torch.from_numpy(effects),
        bias=v[:, 0].clone(),
        full=v[:, 1].clone(),
        objective=torch.from_numpy(abs(effects).sum(1)),
        gap=torch.tensor([part[2] for part in solved], dtype=torch.float64),
        held_out=states[seen:],
        v=v[:, seen:].clone(),
    )
    poor = result.explained < EXPLAINED
    if poor.any():
        warnings.warn(
            f"sparsify_sampled: for {int(poor.sum())} of {len(v)} samples, the model explains less "
            f"than {EXPLAINED:.0%} of the variance of v on held-out states; the smallest share is "
            f"{float(result.explained[poor].min()):.2f}. Run more states, or group variables into "
            "fewer, larger ones.",
            UnexplainedWarning,
            stacklevel=2,
        )
    return result


def _sparsest(present: np.ndarray, w: np.ndarray, eps: float) -> tuple[Model, np.ndarray, float]:
    """Return a sparse model of one sample, its effects, and their certified gap.

    Args:
        present: whether a variable is present in a state, (state, variable).
        w: outputs minus v[0], shape (state,).
        eps: the noise bound.
    """
    scale = float(abs(w).max()) or 1.0
    w = w / scale
    eps = max(eps / scale, LEAST_NOISE)
    floor = (eps / 3) ** 2
    model, x, variance = grown(present, w, eps, floor)
    if not len(model):
        return model, x, 0.0
    bound = np.maximum(abs(w - model.matrix @ x), max(eps, variance**0.5))
    candidates = model.joined(model.members, True).joined(model.members, False)
    low, before = -np.inf, np.inf
    while True:
        # Central duals do not depend on one of many corners, so few rounds suffice.
        cost = np.ones(len(candidates))
        y, mu = least_cost(candidates.matrix, w - bound, w + bound, cost, "ipx")
        price = abs(mu @ candidates.matrix).max()
        low = float((mu @ w - bound @ abs(mu)) / max(price, 1.0))
        if low > (1 - PROGRESS) * before:
            break
        before = low
        larger = candidates.neighbors(0 * y, mu, 0.0)
        entering = abs(mu @ larger.matrix) > ENTERS
        entering[: len(candidates)] = True
        candidates = larger[entering]
    # Several models are equally sparse, and one with few effects is best to read. So the effects
    # that a model leaves out cost less the next time.
    cost = 1 - CHEAPER * abs(y) / abs(y).max()
    for _ in range(CORNERS):
        y, _ = least_cost(candidates.matrix, w - bound, w + bound, cost)
        used = abs(y) > ZERO
        other, y, spread = candidates[used].fitted(w, floor)
        # Schwarz's criterion: an effect is worth log(m) / m of the variance.
        if np.log(spread / variance) <= (len(model) - len(other)) * np.log(len(w)) / len(w):
            model, x, variance = other, y, spread
        cost = cost - CHEAPER * ~used
    objective = float(abs(x).sum())
    return model, x * scale, max(0.0, 1 - low / objective)
