"""`Interactions`: the AND and OR effects of a batch of samples."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symgen.names import unknown
from symgen.storage import read_whole, write_tensors
from symgen.transforms import and_or_outputs, count_variables, interaction_order, moebius

if TYPE_CHECKING:
    import shapiq

FORMAT = "symgen.interactions.6"
TENSORS = ("effects", "bias", "objective", "gap", "full")
SALIENT_SHARE = 0.05


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """AND and OR effects of one or many samples: the logical model of Eq. 3.

    Attributes:
        effects: shape (..., 2, 2**n), in units of v (log odds). Type 0 is AND, 1 is OR. Index T in
            0..2**n - 1 is the set of variables whose bits are set. Entry 0 (the empty set) is
            always 0. OR effects of single variables are 0 too: they equal AND effects, which count
            them.
        bias: v on the fully masked input, shape (...).
        objective: sum of all absolute effects, shape (...).
        gap: certified relative distance of the objective from the optimum, shape (...).
        full: v[N] of the network on the unmasked input, shape (...). The model's own d[N] may
            differ from it by the noise.
        names: names of the variables, an array of texts (..., n), or None. One list of n names,
            shared by all samples, or one list per sample.
        is_relabelled: whether variables were renamed on purpose; see `relabelled`.

    Raises:
        ValueError: for shapes that do not fit together, or a wrong number of names.
    """

    effects: Float[Tensor, "*batch type state"]
    bias: Float[Tensor, "*batch"]
    objective: Float[Tensor, "*batch"]
    gap: Float[Tensor, "*batch"]
    full: Float[Tensor, "*batch"]
    names: Any = None
    is_relabelled: bool = False

    def __post_init__(self) -> None:
        count_variables(self.effects, "effects")
        shapes = {name: tuple(x.shape) for name, x in self.tensors().items()}
        whole = shapes.pop("effects")
        if len(whole) < 2 or whole[-2] != 2 or set(shapes.values()) != {whole[:-2]}:
            raise ValueError(
                f"effects have the shape {whole}, and the others {shapes}; expected (..., 2, 2**n) "
                "for effects, AND before OR, and (...) for the others"
            )
        if self.names is not None:
            object.__setattr__(self, "names", self._checked_names())

    def _checked_names(self) -> np.ndarray:
        shape = (*self.bias.shape, self.n)
        names = np.array(self.names, dtype=object)  # Lists may have different lengths.
        if names.shape not in ((self.n,), shape):
            raise ValueError(
                f"names have shape {names.shape}; expected {self.n} names, or one list per sample: "
                f"{shape}"
            )
        return np.broadcast_to(names.astype(str), shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return {name: getattr(self, name) for name in TENSORS}

    def __repr__(self) -> str:
        return f"Interactions({self.bias.numel()} samples, n = {self.n})"

    @property
    def and_(self) -> Float[Tensor, "*batch state"]:
        """AND effects, a view."""
        return self.effects[..., 0, :]

    @property
    def or_(self) -> Float[Tensor, "*batch state"]:
        """OR effects, a view."""
        return self.effects[..., 1, :]

    @property
    def n(self) -> int:
        """Number of input variables."""
        return count_variables(self.effects)

    @property
    def order(self) -> Int[Tensor, "state"]:
        """Number of variables of every index, shape (2**n,)."""
        return interaction_order(self.n).to(self.effects.device)

    @property
    def total_effect(self) -> Float[Tensor, "*batch"]:
        """Size of the total effect, abs(v[N] - v[0]): the scale of App. M and of the noise."""
        return (self.full - self.bias).abs()

    @property
    def possible(self) -> int:
        """Number of possible interactions: ANDs of any variables, ORs of two or more.

        Example:
            >>> Interactions.from_moebius(torch.tensor([0.0, 1.0, 1.0, 1.0])).possible
            4
        """
        return 2 * (2**self.n - 1) - self.n

    def __getitem__(self, index: Any) -> "Interactions":
        """Return the interactions of some samples: any index of the leading axes."""
        if isinstance(index, tuple) and Ellipsis in [x for x in index if not isinstance(x, Tensor)]:
            raise IndexError(f"index {index} holds '...'; use ':' for each leading axis")
        place = index.cpu().numpy() if isinstance(index, Tensor) else index
        names = None if self.names is None else self.names[place]
        chosen = {k: x[index] for k, x in self.tensors().items()}
        return dataclasses.replace(self, **chosen, names=names)

    def __len__(self) -> int:
        if not self.bias.ndim:
            raise TypeError("the interactions of a single sample have no length")
        return len(self.bias)

    def to(self, device: torch.device | str) -> "Interactions":
        """Return a copy on another device."""
        return dataclasses.replace(self, **{k: x.to(device) for k, x in self.tensors().items()})

    def relabelled(self, labels: Sequence[int] | Int[Tensor, "*batch variable"]) -> "Interactions":
        """Return the same interactions with variable i renamed to labels[i].

        Args:
            labels: a permutation of 0..n - 1 for all samples, or one per sample, (..., n).

        Raises:
            ValueError: if the labels are no permutations.
        """
        labels = torch.as_tensor(labels, device=self.effects.device)
        if labels.shape[-1] != self.n or bool(
            (labels.sort(-1).values != torch.arange(self.n, device=labels.device)).any()
        ):
            raise ValueError(
                f"labels are {labels.tolist()}; expected a permutation of 0..{self.n - 1}"
            )
        labels = labels.expand(*self.bias.shape, self.n)
        states = torch.arange(2**self.n, device=self.effects.device)
        # Entry T of the result is the entry whose renamed index is T.
        source = torch.zeros(*self.bias.shape, 2**self.n, dtype=torch.long, device=states.device)
        for i in range(self.n):
            source += ((states >> labels[..., i, None]) & 1) << i
        effects = self.effects.gather(-1, source[..., None, :].expand(self.effects.shape))
        names = self.names
        if names is not None:
            names = np.take_along_axis(names, labels.argsort(-1).cpu().numpy(), -1)
        return dataclasses.replace(self, effects=effects, names=names, is_relabelled=True)

    def predict(self, states: Int[Tensor, "state"] | None = None) -> Float[Tensor, "*batch state"]:
        """Return d, the output of the logical model on masked states (Eq. 3).

        Args:
            states: masked states; by default all 2**n, in order.
        """
        d = self.bias.unsqueeze(-1) + and_or_outputs(self.effects)
        return d if states is None else d[..., states]

    def salient(
        self,
        tau: float | Tensor | None = None,
        *,
        relative_to: str | None = None,
        top: int | None = None,
    ) -> Bool[Tensor, "*batch type state"]:
        """Return which interactions are salient: abs(I) > tau.

        Args:
            tau: threshold, a number or a tensor (...); None means 0.05 relative to "max".
            relative_to: the scale of tau. "max": the sample's largest absolute effect of both
                types. "total effect": the mean of abs(v[N] - v[0]) over the last leading axis,
                the samples of one network (App. M). "absolute", the default if tau is given: v.
            top: keep this many strongest interactions per sample instead (Algorithm 1).

        Raises:
            ValueError: for contradictory or unknown arguments, or a negative tau.
        """
        size = self.effects.abs()
        if top is None:
            return size > self.threshold(tau, relative_to)[..., None, None]
        if tau is not None or relative_to is not None or not isinstance(top, int) or top < 1:
            raise ValueError(
                f"tau is {tau}, relative_to {relative_to!r} and top {top}; expected either tau "
                "(with relative_to), or top alone as a whole number >= 1"
            )
        flat = size.flatten(-2)
        strongest = flat.topk(min(top, flat.shape[-1]), -1).indices
        kept = torch.zeros_like(flat, dtype=torch.bool).scatter(-1, strongest, True)
        return kept.unflatten(-1, (2, -1)) & (size > 0)

    def threshold(
        self, tau: float | Tensor | None = None, relative_to: str | None = None
    ) -> Float[Tensor, "*batch"]:
        """Return the saliency threshold of every sample in units of v; see `salient`."""
        if tau is None:
            tau, relative_to = SALIENT_SHARE, relative_to or "max"
        relative_to = relative_to or "absolute"
        if relative_to == "max":
            scale = self.effects.abs().amax((-2, -1))
        elif relative_to == "total effect":
            scale = self.total_effect
            scale = scale.mean(-1, keepdim=True) if scale.ndim else scale
        elif relative_to == "absolute":
            scale = torch.ones_like(self.bias)
        else:
            raise unknown("relative_to", relative_to, ["max", "total effect", "absolute"])
        tau = torch.as_tensor(tau, dtype=self.bias.dtype, device=self.bias.device)
        if not bool((tau >= 0).all()):
            raise ValueError(f"tau is {tau.tolist()}; expected a number >= 0")
        return (tau * scale).expand(self.bias.shape)

    def members(self, index: int) -> tuple[int, ...]:
        """Return the variables of index T, ascending."""
        return tuple(i for i in range(self.n) if index >> i & 1)

    def to_frame(self, names: Sequence | None = None) -> pd.DataFrame:
        """Return the nonzero interactions as a tidy table, strongest first within a sample.

        Args:
            names: names of the variables, as in the class; by default the stored names, or numbers.

        Returns:
            Columns sample, type ("and" or "or"), members (names joined by commas), order,
            effect (log odds), index.
        """
        if names is not None:
            return dataclasses.replace(self, names=names).to_frame()
        effects = self.effects.reshape(-1, 2, 2**self.n).cpu().numpy()
        sample, kind, index = np.nonzero(effects)
        labels = np.arange(self.n) if self.names is None else self.names
        labels = np.broadcast_to(labels, (*self.bias.shape, self.n)).reshape(-1, self.n)
        return tidy(sample, kind, index, effects[sample, kind, index], labels)

    def to_shapiq(self, kind: str = "and") -> "shapiq.InteractionValues":
        """Return one sample's AND (Moebius) or OR (Co-Moebius) effects for shapiq.

        An OR effect is shapiq's Co-Moebius value times (-1)**(order + 1).

        Raises:
            ValueError: for several samples, or another kind.
        """
        from shapiq import InteractionValues

        if self.bias.ndim or kind not in ("and", "or"):
            raise ValueError(
                f"kind is {kind!r} and the batch {tuple(self.bias.shape)}; expected 'and' or 'or' "
                "and one sample, such as inter[0]"
            )
        effects, index = (self.and_, "Moebius") if kind == "and" else (self.or_, "Co-Moebius")
        sign = 1.0 if kind == "and" else -((-1.0) ** self.order)
        return InteractionValues(
            values=(effects * sign).cpu().numpy(), index=index, n_players=self.n, min_order=0,
            max_order=self.n, interaction_lookup={self.members(t): t for t in range(2**self.n)},
            estimated=False, baseline_value=float(self.bias),
        )  # fmt: skip

    @classmethod
    def from_moebius(cls, v: Float[Tensor, "*batch state"], share: float = 1.0) -> "Interactions":
        r"""Return the exact model that gives a share of v to AND and the rest to OR (Theorem 1).

        .. math:: I^\text{and}_T = \alpha \sum_{L \subseteq T} (-1)^{|T|-|L|} v(L), \qquad
                  I^\text{or}_T = (\alpha - 1) \sum_{L \subseteq T} (-1)^{|T|-|L|} v(N \setminus L)

        It matches v for every share. Its gap is NaN: its distance from the sparsest is unknown.

        Args:
            v: outputs on all masked states, shape (..., 2**n).
            share: alpha; by default AND gets all.

        Example:
            >>> v = torch.tensor([0.0, 1.0, 1.0, 1.0])  # an OR of two variables
            >>> [Interactions.from_moebius(v, share).objective.item() for share in (1, 0.5, 0)]
            [3.0, 2.0, 1.0]
        """
        v = v.to(torch.float64)
        effects = torch.stack([share * moebius(v), (share - 1) * moebius(v.flip(-1))], -2)
        return cls.uncertified(v, effects)

    @classmethod
    def uncertified(
        cls, v: Float[Tensor, "*batch state"], effects: Float[Tensor, "*batch type state"]
    ) -> "Interactions":
        """Return effects of v without a certificate; an OR of one variable counts as an AND."""
        order = interaction_order(count_variables(v)).to(v.device)
        ands, ors = effects.unbind(-2)
        ands = torch.where(order == 1, ands + ors, ands) * (order > 0)
        effects = torch.stack([ands, ors * (order > 1)], -2)
        size = effects.abs().sum((-2, -1))
        gap = torch.full_like(size, torch.nan)
        return cls(effects, v[..., 0].clone(), size, gap, v[..., -1].clone())

    def save(self, path: str | os.PathLike) -> None:
        """Write to a safetensors file; a reader never sees half of it."""
        names = None if self.names is None or not len(self.names) else self.names.tolist()
        about = {"format": FORMAT, "names": names, "is_relabelled": self.is_relabelled}
        write_tensors(path, self.tensors(), about)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Interactions":
        """Return the interactions that `save` wrote.

        Raises:
            ValueError: if the file is damaged, or holds something else.
        """
        tensors, about = read_whole(path)
        found = about.pop("format", None)
        if found != FORMAT:
            raise ValueError(
                f"{path} has the format {found}; expected {FORMAT}, a file that Interactions.save "
                "wrote"
            )
        return cls(**tensors, **about)


def tidy(
    sample: np.ndarray, kind: np.ndarray, index: np.ndarray, effect: np.ndarray, labels: np.ndarray
) -> pd.DataFrame:
    """Return interactions as a table, strongest first within a sample.

    Args:
        sample, kind, index, effect: one entry per interaction; the kind is 0 for AND, 1 for OR.
        labels: names of the variables, (sample, n).
    """
    present = index[:, None] >> np.arange(labels.shape[1]) & 1 == 1
    frame = pd.DataFrame({
        "sample": sample,
        "type": np.array(["and", "or"])[kind],
        "members": [
            ", ".join(map(str, labels[s][p])) for s, p in zip(sample, present, strict=True)
        ],
        "order": present.sum(1),
        "effect": effect,
        "index": index,
    })  # fmt: skip
    strongest = np.lexsort((-frame["effect"].abs(), frame["sample"]))
    return frame.iloc[strongest].reset_index(drop=True)
