r"""The sparsest AND-OR model of sampled masked states, where there are too many to run them all.

With w = v - v[0] on m sampled states, and one column of A for every AND and OR of few enough
variables, it solves

.. math:: \min \|x\|_1 + c\,\|s\|_1 \quad\text{subject to}\quad
          |w_S - (Ax)_S - s_S| \le \varepsilon \text{ for every sampled state } S.

Where interactions of the orders allowed explain all sampled states, s is zero and this is the
program of `sparsify` with fewer rows and columns; where they do not, s is what they leave. Its dual

.. math:: \max \mu^\top w - \varepsilon\|\mu\|_1 \quad\text{subject to}\quad
          |A^\top\mu| \le 1,\; |\mu| \le c

proves a lower bound on the objective of *this* program. Of the states that were not sampled it
proves nothing: how well the model does there is measured, on states held out.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from symgen.checks import equal_by_content, in_one_line
from symgen.files import atomic
from symgen.fingerprints import refusal
from symgen.interactions import Interactions
from symgen.memory import free_memory
from symgen.split.design import candidates, design
from symgen.split.sparsify import MAX_VARIABLES as EXACT_LAST, warn_dead

# What a sampled state that is left unexplained costs, in units of effects.
COST = 100.0
# First value of every complementarity product, and the least noise, where max(w) - min(w) = 1.
START, LEAST_NOISE = 0.01, 1e-6
TO_BOUNDARY = 0.995
# What a file of them says it holds, and its tensors.
FORMAT = "symgen.sampled_interactions.1"
PARTS = ("index", "is_or", "effects", "bias", "full", "objective", "gap", "held_out", "v")
# A column whose dual product stays this far from 1 gets no effect, where the gap allows it.
MARGINS = (0.3, 0.05)


@equal_by_content
@in_one_line
@dataclasses.dataclass(frozen=True, eq=False)
class SampledInteractions:
    """AND and OR effects of few variables each, found from sampled masked states.

    Attributes:
        n: variables of a sample.
        index: (candidate,) the sets T as whole numbers, bit i for variable i.
        is_or: (candidate,) whether the effect is one of an OR.
        effects: (sample, candidate) in units of v (log odds).
        bias: (sample,) v on the fully masked input.
        full: (sample,) v on the unmasked input.
        objective: (sample,) of the sampled program, the cost of what is unexplained included.
        gap: (sample,) certified relative distance of the objective to the program's optimum.
        held_out: (held,) states that the model has not seen.
        v: (sample, held) the network's outputs there.
        names: of the variables: (sample, n) texts, or None.
        about: what identifies the network and the inputs.
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
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.names is not None:
            names = np.array(list(self.names))
            shape = (len(self), self.n)
            if names.shape not in (shape, shape[1:]):
                raise ValueError(
                    f"names are of shape {names.shape}; expected a list of {self.n} names, or one "
                    f"for each sample: {shape}"
                )
            object.__setattr__(self, "names", np.broadcast_to(names.astype(str), shape))

    def __len__(self) -> int:
        return len(self.effects)

    def __getitem__(self, kept: Any) -> "SampledInteractions":
        """Return the interactions of some samples: a slice, or an array of indices."""
        rows = torch.arange(len(self))[kept].reshape(-1)
        parts = "effects", "bias", "full", "objective", "gap", "v"
        chosen = {k: getattr(self, k)[rows.to(self.effects.device)] for k in parts}
        names = None if self.names is None else self.names[rows.numpy()]
        return dataclasses.replace(self, **chosen, names=names)

    @property
    def order(self) -> Int[Tensor, " candidate"]:
        """Number of variables of every candidate."""
        bits = self.index[:, None] >> torch.arange(self.n, device=self.index.device)
        return (bits & 1).sum(1)

    @property
    def errors(self) -> Float[Tensor, "sample held"]:
        """Squared misses of the held-out outputs, as shares of their variance; NaN where constant.

        Their mean over states is the share of the variance that the model does not explain.
        """
        spread = self.v.var(-1, correction=0, keepdim=True)
        return (self.v - self.predict(self.held_out)) ** 2 / spread.where(spread > 0, torch.nan)

    def predict(self, states: Int[Tensor, " state"]) -> Float[Tensor, "sample state"]:
        """Return d, the output of the logical model (Eq. 3), on any masked states."""
        states = torch.as_tensor(states, device=self.index.device)
        used = (self.effects != 0).any(0)
        columns = design(states, self.index[used], self.is_or[used])
        return self.bias[:, None] + self.effects[:, used] @ columns.T

    def strongest(self, count: int) -> list[set[tuple[str, int]]]:
        """Return of each sample its interactions of largest absolute effect, as (type, T).

        Args:
            count: how many; fewer where fewer are not zero.
        """
        best = self.effects.abs().topk(min(count, self.effects.shape[1]), -1).indices
        return [
            {(("and", "or")[int(self.is_or[c])], int(self.index[c])) for c in row if x[c] != 0}
            for row, x in zip(best, self.effects, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        """Say of what only `Interactions` have what there is instead."""
        if name not in {*dir(Interactions), "and_", "or_"} or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        n = vars(self).get("n", 0)
        few = f"; up to {EXACT_LAST} variables dense() gives such" if n <= EXACT_LAST else ""
        raise AttributeError(
            f"interactions of sampled states have no {name!r}, for which effects of all 2^n sets "
            f"are needed; those they have are in to_frame() and strongest(){few}"
        )

    def to_frame(self, names: Any = None) -> pd.DataFrame:
        """Return the nonzero interactions as a tidy table, largest first within a sample.

        Args:
            names: of the variables, in place of those that are known; as for the class.

        Returns:
            Columns sample, type ("and" or "or"), members (names or numbers joined by commas),
            order, effect (log odds), index.
        """
        if names is not None:
            return dataclasses.replace(self, names=names).to_frame()
        effects = self.effects.cpu().numpy()
        sample, at = np.nonzero(effects)
        index, kind = self.index.cpu().numpy()[at], self.is_or.cpu().numpy()[at]
        names = np.broadcast_to(range(self.n) if self.names is None else self.names,
                                (len(self), self.n))  # fmt: skip
        frame = pd.DataFrame({
            "sample": sample,
            "type": np.where(kind, "or", "and"),
            "members": [
                ", ".join(str(names[s][i]) for i in range(self.n) if t >> i & 1)
                for s, t in zip(sample, index.tolist(), strict=True)
            ],
            "order": self.order.cpu().numpy()[at],
            "effect": effects[sample, at],
            "index": index,
        })  # fmt: skip
        ranked = frame.assign(size=frame["effect"].abs())
        ranked = ranked.sort_values(["sample", "size"], ascending=[True, False], kind="stable")
        return ranked.drop(columns="size").reset_index(drop=True)

    def save(self, path: str | os.PathLike) -> None:
        """Write to a safetensors file; nothing half-written is ever left behind."""
        tensors = {k: getattr(self, k).cpu().contiguous() for k in PARTS}
        names = None if self.names is None else self.names.tolist()
        said = {"n": self.n, "names": names, "about": dict(self.about)}
        with atomic(path) as temporary:
            save_file(tensors, temporary, {"format": FORMAT, "said": json.dumps(said)})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SampledInteractions":
        """Read what `save` wrote.

        Raises:
            ValueError: if the file is damaged, or holds something else.
        """
        try:
            with safe_open(path, framework="pt") as file:
                said = file.metadata() or {}
                if said.get("format") == FORMAT:
                    tensors = {k: file.get_tensor(k) for k in PARTS}
                    return cls(**tensors, **json.loads(said["said"]))
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); save the interactions again") from None
        raise ValueError(f"{path} holds no interactions of sampled states, as save writes them")

    def dense(self) -> Interactions:
        """Return the same effects as `Interactions` of all 2**n sets, for whatever takes those.

        Raises:
            ValueError: for more variables than these hold.
        """
        if self.n > EXACT_LAST:
            raise ValueError(f"n = {self.n}: 2^{self.n} effects are not held; use to_frame()")
        parts = self.effects.new_zeros(2, len(self), 2**self.n)
        for kind in (0, 1):
            of = self.is_or == bool(kind)
            parts[kind, :, self.index[of]] = self.effects[:, of]
        return Interactions(*parts, self.bias, self.objective, self.gap, self.full, self.names,
                            self.about)  # fmt: skip


@refusal
def _refuse_states(v: Tensor, states: Tensor, n: int) -> None:
    if len(wrong := states[(states < 0) | (states >= 2**n)]):
        raise ValueError(f"state {int(wrong[0])} is none of {n} variables: 0 to {2**n - 1}")
    kinds, counts = states.unique(return_counts=True)
    if len(twice := kinds[counts > 1]):
        raise ValueError(f"state {int(twice[0])} is there twice; give each state once")
    if len(wrong := (~v.isfinite()).nonzero()):
        sample, place = wrong[0].tolist()
        raise ValueError(
            f"v of sample {sample} on state {int(states[place])} is {float(v[sample, place])}; "
            "look for such numbers in the network's outputs"
        )


@refusal
def _warn_of_dead(v: Tensor) -> None:
    warn_dead(v[:, :2], stacklevel=4)


def sparsify_sampled(
    v: Float[Tensor, "sample state"],
    states: Int[Tensor, " state"],
    n: int,
    *,
    held_out: int = 0,
    noise: float = 0.02,
    tol: float = 1e-3,
    max_order: int | None = None,
    max_iter: int = 100,
    progress: bool = False,
) -> SampledInteractions:
    """Return the sparsest AND and OR effects of few variables that explain v on some states.

    Args:
        v: outputs on these states.
        states: different masked states, the first the fully masked and the second the unmasked
            one, as `draw_states` gives them.
        n: variables, 1 to 62.
        held_out: how many of the last states the model does not see; it is judged by them.
        noise: kappa, share of abs(v[N] - v[0]) by which the model may miss v.
        tol: relative gap to reach.
        max_order: most variables of an interaction; see `candidates`.
        max_iter: steps after which to stop. The gap says how far it came.
        progress: show a bar.

    Raises:
        ValueError: for arguments that do not fit together.
        MemoryError: where the columns of all candidates do not fit.

    Example:
        >>> from symgen.split.design import draw_states
        >>> states = draw_states(20, 200)
        >>> v = 3.0 * ((states & 7) == 7) - 1.0 * ((states & 24) != 0)
        >>> found = sparsify_sampled(v[None], states, 20, noise=0.01, max_order=3).strongest(2)
        >>> sorted(found[0])
        [('and', 7), ('or', 24)]
    """
    v, states = torch.as_tensor(v).detach().double(), torch.as_tensor(states)
    if v.dim() != 2 or v.shape[1:] != states.shape or states[:2].tolist() != [0, 2**n - 1]:
        raise ValueError(
            f"v is of shape {tuple(v.shape)} and states begin with {states[:2].tolist()}; expected "
            f"(sample, state) and the states 0 and {2**n - 1} first, as draw_states({n}, ...) gives"
        )
    _refuse_states(v, states, n)
    if not (0 <= held_out <= len(states) - 2 and v.isfinite().all()):
        raise ValueError(f"held_out = {held_out} of {len(states)} states, or v is not finite")
    if not (0 <= noise < torch.inf and 0 < tol < torch.inf and max_iter >= 1):
        raise ValueError(f"noise={noise}, tol={tol}, max_iter={max_iter}: expected >= 0, > 0, >= 1")
    index, is_or = (x.to(v.device) for x in candidates(n, max_order))
    states, seen = states.to(v.device), len(states) - held_out
    # The columns, weighted once more, and their squares' sum over rows and columns.
    needed, free = 8 * seen * (3 * len(index) + 2 * seen), free_memory(v.device)
    if needed > free:
        raise MemoryError(
            f"{len(index):,} candidates on {seen:,} states take {needed / 2**30:,.1f} GiB, "
            f"{free / 2**30:,.1f} GiB are free; use a lower max_order or fewer states"
        )
    _warn_of_dead(v)
    columns = design(states[1:seen], index, is_or)
    found = v.new_zeros(len(v), len(index))
    objective, gap = v.new_zeros(len(v)), v.new_zeros(len(v))
    for i in tqdm(range(len(v)), desc="sparsify_sampled", disable=not progress, leave=False):
        w = v[i, 1:seen] - v[i, 0]
        # The fully masked state, where w is 0, is one of the range.
        scale = w.max().clamp(min=0) - w.min().clamp(max=0)
        eps = max(noise * float(w[0].abs() / scale), LEAST_NOISE) if scale > 0 else 0.0
        # Zero effects explain all there is where nothing leaves the noise bound.
        if w.abs().max() > eps * scale:
            x, cost, gap[i] = _sparsest(columns, w / scale, eps, tol, max_iter)
            found[i], objective[i] = x * scale, cost * scale
    return SampledInteractions(
        n, index, is_or, found, v[:, 0].clone(), v[:, 1].clone(), objective, gap,
        states[seen:], v[:, seen:].clone(),
    )  # fmt: skip


def _sparsest(
    columns: Tensor, w: Tensor, eps: float, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return effects, their objective and their gap; what the dual keeps off the support is 0."""
    # Half of the gap is left for what setting effects to zero costs.
    whole = _Point(columns, w, eps).followed(tol / 2, max_iter)
    x, objective, product = whole.best, whole.objective, whole.product[: columns.shape[1]].abs()
    for margin in MARGINS:
        support = product > 1 - margin
        if support.all():
            continue
        part = _Point(columns[:, support], w, eps).followed(tol / 2, max_iter)
        if part.objective - whole.low > tol * part.objective:
            break
        x, objective = torch.zeros_like(x), part.objective
        x[support] = part.best
    return x, objective, ((objective - whole.low) / objective).clamp(min=0)


class _Point:
    """Where Mehrotra's predictor-corrector stands, and the best it has proved so far.

    Complementary pairs are the positive and negative parts of effects (and of what is left
    unexplained) with 1 -+ A'mu, and the distances of the residual to its two bounds with the two
    parts of mu. Each step solves one system (A D A' + E) u = r with diagonal D and E.
    """

    def __init__(self, columns: Tensor, w: Tensor, eps: float):
        rows, self.count = columns.shape
        self.columns, self.w, self.eps = columns, w, eps
        ones = w.new_ones(2, self.count + rows)
        self.parts, self.slope = START * ones, ones
        # Centred from the start: every product is the same.
        self.room, self.force = eps * ones[:, :rows], START / eps * ones[:, :rows]
        self.mu, self.product = torch.zeros_like(w), torch.zeros_like(ones[0])
        self.best, self.objective = w.new_zeros(self.count), w.new_full((), torch.inf)
        self.low = w.new_zeros(())

    def followed(self, tol: float, max_iter: int) -> "_Point":
        """Take steps until the gap is reached."""
        for _ in range(max_iter):
            self._advance()
            if self.objective - self.low <= tol * self.objective:
                break
        return self

    def _advance(self) -> None:
        weight = (self.parts / self.slope).sum(0)
        slack = 1 / (self.force / self.room).sum(0)
        matrix = (self.columns * weight[: self.count]) @ self.columns.T
        matrix.diagonal().add_(slack + weight[self.count :] / COST**2)
        factor = _factor(matrix)
        move = self._toward(
            torch.zeros_like(self.parts), torch.zeros_like(self.room), slack, factor
        )
        now = (self.parts * self.slope).sum() + (self.room * self.force).sum()
        share = (self._ahead(move) / now) ** 3
        centre = share * now / (self.parts.numel() + self.room.numel())
        target = centre - move[0] * move[1], centre - move[2] * move[3]
        move = self._toward(*target, slack, factor)
        far, near = (TO_BOUNDARY * length for length in self._reach(move))
        self.parts, self.room = self.parts + far * move[0], self.room + far * move[2]
        self.force, self.mu = self.force + near * move[3], self.mu + near * move[4]
        # Computed from mu again, so that rounding does not add up.
        self.product = self._adjoint(self.mu)
        self.slope = torch.stack([1 - self.product, 1 + self.product]).clamp(min=1e-14)
        self._certify()

    def _certify(self) -> None:
        """Keep the effects where they are the best so far, and the lower bound that mu proves."""
        reach = self.product.abs().max().clamp(min=1)
        self.low = self.low.maximum((self.mu @ self.w - self.eps * self.mu.abs().sum()) / reach)
        x = (self.parts[0] - self.parts[1])[: self.count]
        # What they leave beyond the noise is paid for, so that the objective is exact.
        excess = ((self.w - self.columns @ x).abs() - self.eps).clamp(min=0)
        objective = x.abs().sum() + COST * excess.sum()
        if objective <= self.objective:
            self.best, self.objective = x, objective

    def _outputs(self, x: Tensor) -> Tensor:
        return self.columns @ x[: self.count] + x[self.count :] / COST

    def _adjoint(self, mu: Tensor) -> Tensor:
        return torch.cat([mu @ self.columns, mu / COST])

    def _toward(
        self, target: Tensor, bounds: Tensor, slack: Tensor, factor: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the step that makes every product equal to its target, to first order."""
        level = target / self.slope
        shift = slack * (self.mu - (bounds[0] / self.room[0] - bounds[1] / self.room[1]))
        residual = (self.room[1] - self.room[0]) / 2
        rest = self.w - residual - self._outputs(level[0] - level[1]) - shift
        step = torch.cholesky_solve(rest[:, None], factor)[:, 0]
        product, bend = self._adjoint(step), slack * step + shift
        sides, bends = torch.stack([-product, product]), torch.stack([-bend, bend])
        parts = level - self.parts - self.parts / self.slope * sides
        force = bounds / self.room - self.force - self.force / self.room * bends
        return parts, sides, bends, force, step

    def _reach(self, move: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return how far primal and dual values can go until one turns zero, at most 1."""
        primal = torch.minimum(_length(self.parts, move[0]), _length(self.room, move[2]))
        return primal, torch.minimum(_length(self.slope, move[1]), _length(self.force, move[3]))

    def _ahead(self, move: tuple[Tensor, ...]) -> Tensor:
        """Return the sum of all products after as long a step as there can be."""
        far, near = self._reach(move)
        pairs = (self.parts + far * move[0]) * (self.slope + near * move[1])
        return pairs.sum() + ((self.room + far * move[2]) * (self.force + near * move[3])).sum()


def _factor(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor, of a matrix that rounding may have made indefinite."""
    strength, diagonal = 1e-15, matrix.diagonal().clone()
    factor, failed = torch.linalg.cholesky_ex(matrix)
    while failed and strength < 1:
        matrix.diagonal().copy_(diagonal + strength * diagonal.max())
        factor, failed = torch.linalg.cholesky_ex(matrix)
        strength *= 100
    return factor


def _length(value: Tensor, step: Tensor) -> Tensor:
    """Return how much of a step can be taken until a value turns zero, at most 1."""
    return torch.where(step < 0, -value / step, torch.inf).amin().clamp(max=1)
