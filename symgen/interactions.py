"""`Interactions`: the AND and OR effects of a batch of samples, and what can be asked of them."""

import dataclasses
import html
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from symgen.checks import (
    in_one_line,
    known_as_relabelled,
    refuse_inner_ellipsis,
    refuse_other_shapes,
    refuse_sampled,
)
from symgen.files import atomic
from symgen.transforms import and_or_outputs, count_variables, interaction_order, moebius

if TYPE_CHECKING:
    import shapiq
    import xarray

# Files of the format before have neither names nor an identity.
FORMAT, BEFORE = "symgen.interactions.3", "symgen.interactions.2"
SALIENT_SHARE = 0.05
# Interactions that a notebook shows of what it is given.
SHOWN = 5


@in_one_line
@dataclasses.dataclass(frozen=True, eq=False)
class Interactions:
    """AND and OR effects of one or many samples: the logical model of Eq. 3.

    Index T in 0..2**n - 1 stands for the set of variables whose bits are set. Entry 0 (the
    empty set) is always 0, and so are the OR effects of single variables, which equal AND
    effects and are counted there.

    Attributes:
        and_: AND effects, shape (..., 2**n), in units of v (log odds).
        or_: OR effects, same shape.
        bias: v on the fully masked input, shape (...).
        objective: sum of all absolute effects, shape (...).
        gap: certified relative distance of the objective to the optimum, shape (...).
        full: v on the unmasked input, v[N] of the network, shape (...). The model's own d[N] may
            miss it by the noise.
        names: of the variables, an array of texts (..., n), or None. Given as a list of n names
            that all samples share, or as one such list for each sample.
        about: what identifies the network and the inputs; anything JSON can hold.

    Raises:
        ValueError: for shapes that do not belong together, names of another number of variables
            or samples, or an identity that JSON cannot hold.
    """

    and_: Float[Tensor, "*batch state"]
    or_: Float[Tensor, "*batch state"]
    bias: Float[Tensor, "*batch"]
    objective: Float[Tensor, "*batch"]
    gap: Float[Tensor, "*batch"]
    full: Float[Tensor, "*batch"]
    names: Any = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        count_variables(self.and_, "and_")
        if self.and_.shape != self.or_.shape or self.and_.shape[:-1] != self.bias.shape:
            raise ValueError(
                "and_ and or_ must have one shape (..., 2**n) and bias the shape (...); got "
                f"{tuple(self.and_.shape)}, {tuple(self.or_.shape)}, {tuple(self.bias.shape)}"
            )
        refuse_other_shapes(self)
        if self.names is not None:
            object.__setattr__(self, "names", self._named(self.names))
        if self.about:
            try:
                # As it will come back from a file.
                object.__setattr__(self, "about", json.loads(json.dumps(dict(self.about))))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"about = {self.about!r:.200} cannot be kept ({error}); expected a mapping of "
                    "texts, numbers and lists, such as a fingerprint of what is meant"
                ) from None

    def _named(self, names: Any) -> np.ndarray:
        """Return names as an array of texts (..., n)."""
        shape = (*self.bias.shape, self.n)
        try:
            found = np.array(names if isinstance(names, np.ndarray) else list(names))
            if found.ndim == 1 or found.shape == shape:
                return np.broadcast_to(found.astype(str), shape)
        except (TypeError, ValueError):  # lists of several lengths
            found = np.array([len(x) for x in names])
        raise ValueError(
            f"names are of shape {found.shape}; expected a list of {self.n} names, or one for each "
            f"sample: {shape}"
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all tensors are the same, NaN included, and names and identity."""
        if not isinstance(other, Interactions):
            return NotImplemented
        mine, others = self.tensors(), other.tensors()
        pairs = ((mine[k].cpu().numpy(), others[k].cpu().numpy()) for k in mine)
        return (
            all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
            and np.array_equal(self.names, other.names)
            and self.about == other.about
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what was measured, by name: all but the names and the identity."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[:6]}

    @property
    def n(self) -> int:
        """Number of input variables."""
        return count_variables(self.and_)

    @property
    def order(self) -> Int[Tensor, "state"]:
        """Number of variables of every index, shape (2**n,)."""
        return interaction_order(self.n).to(self.and_.device)

    @property
    def total_effect(self) -> Float[Tensor, "*batch"]:
        """Size of the total effect, abs(v[N] - v[0]): the scale of App. M and of the noise."""
        return (self.full - self.bias).abs()

    @property
    def possible(self) -> int:
        """Number of interactions there could be: ANDs of any variables, ORs of two or more.

        Example:
            >>> Interactions.from_moebius(torch.tensor([0.0, 1.0, 1.0, 1.0])).possible
            4
        """
        return 2 * (2**self.n - 1) - self.n

    @property
    def effects(self) -> Float[Tensor, "*batch type state"]:
        """Both types stacked, shape (..., 2, 2**n): AND first, then OR."""
        return torch.stack([self.and_, self.or_], -2)

    def __getitem__(self, index) -> "Interactions":
        """Return the interactions of some samples: any index of the leading axes."""
        refuse_inner_ellipsis(index)
        place = np.asarray(index.cpu()) if isinstance(index, Tensor) else index
        names = None if self.names is None else self.names[place]
        chosen = {k: x[index] for k, x in self.tensors().items()}
        return dataclasses.replace(self, **chosen, names=names)

    def __len__(self) -> int:
        if self.and_.ndim == 1:
            raise TypeError("these are the interactions of one sample; they have no length")
        return len(self.and_)

    def to(self, device: torch.device | str) -> "Interactions":
        """Return a copy on another device."""
        return dataclasses.replace(self, **{k: x.to(device) for k, x in self.tensors().items()})

    @known_as_relabelled
    def relabelled(self, labels: Sequence[int]) -> "Interactions":
        """Return the same interactions with variable i renamed to labels[i]."""
        if sorted(labels) != list(range(self.n)):
            raise ValueError(f"labels must be a permutation of 0..{self.n - 1}, got {labels}")
        states = torch.arange(2**self.n, device=self.and_.device)
        # Entry T of the result is the entry whose renamed index is T.
        source = sum(((states >> label) & 1) << i for i, label in enumerate(labels))
        names = None if self.names is None else self.names[..., np.argsort(labels)]
        return dataclasses.replace(
            self, and_=self.and_[..., source], or_=self.or_[..., source], names=names
        )

    def predict(self) -> Float[Tensor, "*batch state"]:
        """Return d, the output of the logical model on all masked states (Eq. 3)."""
        return self.bias.unsqueeze(-1) + and_or_outputs(self.and_, self.or_)

    def salient(
        self,
        tau: float | Tensor | None = None,
        *,
        relative_to: str | None = None,
        top: int | None = None,
    ) -> tuple[Bool[Tensor, "*batch state"], Bool[Tensor, "*batch state"]]:
        """Return which AND and which OR interactions are salient: abs(I) > tau.

        Args:
            tau: threshold, a number or a tensor (...); None means 0.05 relative to "max".
            relative_to: what tau is a share of: "max", each sample's largest absolute effect
                of both types; "total effect", the mean of abs(v[N] - v[0]) over samples (App. M);
                or "absolute" (the default where tau is given): tau is in units of v.
            top: keep the `top` largest of each sample instead (Algorithm 1); no tau then.

        Raises:
            ValueError: for contradictory or unknown arguments, or a negative tau.
        """
        size = self.effects.abs()
        if top is None:
            kept = size > self.threshold(tau, relative_to)[..., None, None]
        elif tau is not None or relative_to is not None or top < 1:
            raise ValueError(
                "give either tau (with relative_to) or a positive top alone, "
                f"got tau={tau}, relative_to={relative_to!r}, top={top}"
            )
        else:
            flat = size.flatten(-2)
            best = flat.topk(min(top, flat.shape[-1]), -1).indices
            kept = torch.zeros_like(flat, dtype=torch.bool).scatter(-1, best, True)
            kept = kept.reshape(size.shape) & (size > 0)
        return kept[..., 0, :], kept[..., 1, :]

    def threshold(
        self, tau: float | Tensor | None = None, relative_to: str | None = None
    ) -> Float[Tensor, "*batch"]:
        """Return the saliency threshold of every sample in units of v; see `salient`."""
        if tau is None:
            tau, relative_to = SALIENT_SHARE, relative_to or "max"
        scales = {
            "max": lambda: self.effects.abs().amax((-2, -1)),
            "total effect": lambda: self.total_effect.mean(),
            "absolute": lambda: torch.ones_like(self.bias),
        }
        relative_to = relative_to or "absolute"
        if relative_to not in scales:
            raise ValueError(f"relative_to must be one of {list(scales)}, got {relative_to!r}")
        tau = torch.as_tensor(tau, dtype=self.and_.dtype, device=self.and_.device)
        if not bool((tau >= 0).all()):
            raise ValueError(f"tau must be a number >= 0, got {tau.tolist()}")
        return (tau * scales[relative_to]()).expand(self.bias.shape)

    def members(self, index: int) -> tuple[int, ...]:
        """Return the variables of index T, ascending."""
        return tuple(i for i in range(self.n) if index >> i & 1)

    def to_frame(
        self, names: Sequence[str] | Sequence[Sequence[str]] | None = None
    ) -> pd.DataFrame:
        """Return the nonzero interactions as a tidy table, largest first within a sample.

        Args:
            names: of the n variables of one sample; of several, one such list for each, since
                samples have variables of their own. Without, the names that are known, or else
                the variables' numbers.

        Returns:
            Columns sample, type ("and" or "or"), members (names joined by commas), order,
            effect (log odds), index.
        """
        effects = self.effects.reshape(-1, 2, 2**self.n).cpu().numpy()
        sample, kind, index = np.nonzero(effects)
        if names is None:
            labels = self._labels()
        else:
            labels = [names] if any(isinstance(x, str) for x in names) else list(names)
        if len(labels) != len(effects) or any(len(x) != self.n for x in labels):
            raise ValueError(
                f"names must be a list of {self.n} names for each of {len(effects)} samples, got "
                f"{len(labels)} with {sorted({len(x) for x in labels})} names; pass "
                "[names] * len(inter) where the variables of all samples have the same names"
            )
        frame = pd.DataFrame(
            {
                "sample": sample,
                "type": np.array(["and", "or"])[kind],
                "members": [
                    ", ".join(str(labels[s][i]) for i in self.members(int(t)))
                    for s, t in zip(sample, index, strict=True)
                ],
                "order": self.order.cpu().numpy()[index],
                "effect": effects[sample, kind, index],
                "index": index,
            }
        )
        ranked = frame.assign(size=frame["effect"].abs())
        ranked = ranked.sort_values(["sample", "size"], ascending=[True, False], kind="stable")
        return ranked.drop(columns="size").reset_index(drop=True)

    def _labels(self) -> np.ndarray:
        """Return the names of every sample's variables, or their numbers."""
        known = range(self.n) if self.names is None else self.names
        return np.broadcast_to(known, (*self.bias.shape, self.n)).reshape(-1, self.n)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what these are, and the largest effects."""
        size = self.effects.abs().flatten()
        best = size.topk(min(SHOWN, len(size))).indices[: int((size > 0).sum())].cpu().numpy()
        sample, kind, index = np.unravel_index(best, (self.bias.numel(), 2, 2**self.n))
        labels = self._labels()
        rows = pd.DataFrame({
            "sample": sample,
            "type": np.array(["and", "or"])[kind],
            "members": [
                ", ".join(str(labels[s][i]) for i in self.members(int(t)))
                for s, t in zip(sample, index, strict=True)
            ],
            "effect": self.effects.flatten().cpu().numpy()[best],
        })  # fmt: skip
        about = "".join(f"; {k}: {v}" for k, v in self.about.items())
        told = f"{self.bias.numel()} sample(s), n = {self.n} variables{about}. Largest effects:"
        table = rows.to_html(index=False, border=0, float_format="{:+.3f}".format)
        return f"<p>{html.escape(told)}</p>{table}"

    def to_xarray(self, dims: Sequence[str] = ("sample",)) -> "xarray.Dataset":
        """Return all tensors with named dimensions, for the library xarray.

        Args:
            dims: names of the leading axes; of one sample there are none.

        Returns:
            effects (..., type, state), and bias, objective, gap, full and total_effect (...), all
            in units of v but for the gap; coordinates type ("and" or "or"), state (T), order (of
            each state) and, where names are known, name (..., variable). The identity is the
            attribute about, as JSON.

        Raises:
            ImportError: where xarray is not installed.
            ValueError: for another number of names than there are leading axes.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError(
                "to_xarray needs the library xarray, which is not installed; install it by: "
                "pip install 'symgen[xarray]'"
            ) from error
        dims = tuple(dims) if self.bias.ndim else ()
        if len(dims) != self.bias.ndim:
            raise ValueError(
                f"dims = {dims}: expected a name for each of {self.bias.ndim} leading axes, such "
                'as ("checkpoint", "sample")'
            )
        names = "bias", "objective", "gap", "full", "total_effect"
        values = {k: (dims, getattr(self, k).cpu().numpy()) for k in names}
        values["effects"] = (*dims, "type", "state"), self.effects.cpu().numpy()
        about = {
            "type": ["and", "or"], "state": np.arange(2**self.n),
            "order": ("state", self.order.cpu().numpy()),
        }  # fmt: skip
        if self.names is not None:
            about["name"] = (*dims, "variable"), self.names
        return xarray.Dataset(values, about, {"about": json.dumps(dict(self.about))})

    def to_shapiq(self, kind: str = "and") -> "shapiq.InteractionValues":
        """Return one sample's AND (Moebius) or OR (Co-Moebius) effects for shapiq.

        An OR effect I is shapiq's Co-Moebius value times (-1)**(order + 1).
        """
        from shapiq import InteractionValues

        if self.and_.ndim != 1 or kind not in ("and", "or"):
            raise ValueError("to_shapiq takes one sample, such as inter[0], and 'and' or 'or'")
        values = (self.and_ if kind == "and" else self.or_).cpu().numpy().copy()
        order = self.order.cpu().numpy()
        if kind == "or":
            values = values * (-1.0) ** (order + 1)
        lookup = {self.members(t): t for t in range(2**self.n)}
        return InteractionValues(
            values=values,
            index="Moebius" if kind == "and" else "Co-Moebius",
            n_players=self.n,
            min_order=0,
            max_order=self.n,
            interaction_lookup=lookup,
            estimated=False,
            baseline_value=float(self.bias),
        )

    def save(self, path: str | os.PathLike) -> None:
        """Write to a safetensors file; nothing half-written is ever left behind."""
        tensors = {k: x.cpu().contiguous() for k, x in self.tensors().items()}
        names = None if self.names is None else self.names.tolist()
        said = {"n": self.n, "names": names, "about": dict(self.about)}
        metadata = {"format": FORMAT, **{k: json.dumps(v) for k, v in said.items()}}
        with atomic(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def from_moebius(cls, v: Float[Tensor, "*batch state"], share: float = 1.0) -> "Interactions":
        r"""Return the exact model that gives a share of v to AND and the rest to OR (Theorem 1).

        .. math:: I^\text{and}_T = \alpha \sum_{L \subseteq T} (-1)^{|T|-|L|} v(L), \qquad
                  I^\text{or}_T = (\alpha - 1) \sum_{L \subseteq T} (-1)^{|T|-|L|} v(N \setminus L)

        It matches v whatever the share. Its gap is NaN: nothing is known of how far it is from the
        sparsest.

        Args:
            v: outputs on all masked states.
            share: alpha; by default AND gets all.

        Example:
            >>> v = torch.tensor([0.0, 1.0, 1.0, 1.0])  # an OR of two variables
            >>> [Interactions.from_moebius(v, share).objective.item() for share in (1, 0.5, 0)]
            [3.0, 2.0, 1.0]
        """
        v = v.to(torch.float64)
        and_, or_ = share * moebius(v), (share - 1) * moebius(v.flip(-1))
        order = interaction_order(count_variables(v)).to(v.device)
        # An OR of one variable is an AND of it.
        and_, or_ = torch.where(order == 1, and_ + or_, and_) * (order > 0), or_ * (order > 1)
        size = (and_.abs() + or_.abs()).sum(-1)
        gap = torch.full_like(size, torch.nan)
        return cls(and_, or_, v[..., 0].clone(), size, gap, v[..., -1].clone())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Interactions":
        """Read what `save` wrote, also that of the version before, which knew no names.

        Raises:
            ValueError: if the file holds something else, or what still older versions wrote.
        """
        try:
            with safe_open(path, framework="pt") as file:
                said = file.metadata() or {}
                found = said.get("format")
                if found in (FORMAT, BEFORE):
                    tensors = (file.get_tensor(f.name) for f in dataclasses.fields(cls)[:6])
                    names = np.array(json.loads(said.get("names", "null")))
                    names = names.astype(str) if names.ndim else None
                    return cls(*tensors, names, json.loads(said.get("about", "{}")))
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); save the interactions again") from None
        refuse_sampled(path, found)
        raise ValueError(
            f"{path} holds {found!r}, not {FORMAT!r} as Interactions.save writes; find the "
            "interactions again with this version and save them"
        )
