r"""A term of the loss that penalizes non-generalizable interactions (App. K).

For a few training samples X, with the salient effects I of the network as it is, and G their
transfer to baseline networks that were trained on a validation part,

.. math:: \text{term} = \frac{\lambda}{|X|} \sum_{x \in X}
          \frac{\sum_T (1 - G(I_T))\, |I_T|}{\max(\sum_T |I_T|, 1 \text{ log odds})}.

That is :math:`\lambda (1 - \bar H)` (Eq. 8) if samples have at least one log odds of salient
strength. The paper gives no formula. The denominator is the salient strength and not the total
effect \|v(N) - v(0)\|, which can be 0 if effects cancel.

**Gradients.** The denominator, G, the mask value and the set of salient interactions are computed
anew at each step and held fixed. The salient effects follow v by least squares, as in the sparsest
split while v changes little (`slopes`).

**Mode.** The network is in evaluation mode, as when interactions are measured. In training mode,
batch normalization would mix the masked states of a batch.

**Cost.** All 2^m states run forward without gradients. Gradients go through a few of them, drawn in
proportion to their slopes, so that the gradient is right on average.
"""

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from symgen.interactions import Interactions
from symgen.masking.hooks import evaluating
from symgen.masking.mask_values import mean_feature, token_embedding
from symgen.masking.outputs import prepare
from symgen.masking.states import Prepared, check_finite, outputs
from symgen.masking.variables import ImageVariables, TextVariables
from symgen.method.generalization import (
    Transfer,
    as_list,
    generalization_power,
    interaction_count,
    transfer,
)
from symgen.method.removal import random_share
from symgen.method.study import Study, seeded
from symgen.method.trainings import Part, Trainings
from symgen.models.loop import Term, evaluate, generator
from symgen.split.sparsify import ConvergenceWarning, DeadOutputWarning, sparsify
from symgen.transforms import and_or_outputs

#: The penalty of a sample is divided by at least this much salient strength, in log odds.
FLOOR = 1.0
# Combinations of effects whose squared weight in the outputs is below this are left alone.
RANK = 1e-6
#: Trainings that are compared: without a penalty; with it; with a penalty on as much strength of
#: random interactions; with more weight decay.
ARMS = ("plain", "penalty", "random", "decay")
#: Options of `penalty_of`.
DEFAULTS = {"m": 6, "pool": 64, "penalized": 4, "every": 4}
#: The quantity by which strengths and decays are chosen.
VALIDATION = "validation_accuracy"


@dataclasses.dataclass(eq=False)
class Penalty(Term):
    """The penalty as a term for any training loop.

    Here: ``train(..., term=penalty)``. In your own loop, before ``backward``::

        if (added := penalty(step, model)) is not None:
            loss = loss + added

    Args:
        x, target: training samples to penalize on, and their classes; see `masked_outputs`.
        variables: variables of these samples, m each; 2^m masked states run per sample.
        baselines: interactions of one or more baseline networks on the same samples.
        masked: for images, the layer that is masked by its mean feature; see `mean_feature`. For
            texts, the id of the mask token.
        strength: lambda, in nats.
        samples: number of samples drawn per step; they are neighbours in x.
        every: the term is added every `every` steps, scaled by `every`.
        states: masked states per sample that gradients go through; 2^m or more takes all.
        random: whether to penalize as much strength of random interactions, as a control.
        noise, tol: see `sparsify`.
        seed: seed of the draws.

    Raises:
        ValueError: for numbers out of range, or baselines on other samples.
    """

    x: Any
    target: Tensor
    variables: ImageVariables | TextVariables
    baselines: Interactions | Sequence[Interactions]
    masked: str | int | None = "first_relu"
    strength: float = 1.0
    samples: int = 4
    every: int = 1
    states: int = 4
    random: bool = False
    noise: float = 0.02
    tol: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        self.baselines = as_list(self.baselines)
        sizes = [len(x) for x in (self.target, self.variables, *self.baselines)]
        numbers = self.samples, self.every, self.states
        if len({*sizes}) != 1 or len(sizes) < 3 or min(numbers) < 1 or not self.strength >= 0:
            raise ValueError(
                f"target, variables and baselines have {sizes} samples; samples, every and states "
                f"are {numbers}, strength is {self.strength}; expected one or more baselines, all "
                "on the same samples, numbers of at least 1, and a strength of at least 0"
            )

    @functools.cached_property
    def key(self) -> dict[str, Any]:
        """Everything that the term depends on."""
        return {
            "samples": [self.x, self.target, self.variables, self.masked],
            "baselines": [b.tensors() for b in self.baselines],
            "settings": [self.strength, self.samples, self.every, self.states, self.random],
            "split": [self.noise, self.tol, self.seed],
        }

    def __call__(self, step: int, model: nn.Module) -> Tensor | None:
        """Return the term at a step (from 1 on), with gradients; None if it is left out.

        Raises:
            FloatingPointError: if the network's logits are NaN or infinite.
        """
        if step % self.every:
            return None
        chance = generator(self.seed, 5, step)
        # Neighbours, so that gradients go through one batch.
        count = -(-len(self.variables) // self.samples)
        groups = torch.arange(len(self.variables)).tensor_split(count)
        drawn = groups[int(torch.randint(len(groups), (), generator=chance))]
        with evaluating(model):
            prepared = self._prepared(model)
            lost, slope = self._lost(prepared, drawn, step)
            few = [drawn_states(row, self.states, chance) for row in slope]
            # Rows are filled up with factors of 0.
            states, factors = (
                pad_sequence(list(x), batch_first=True) for x in zip(*few, strict=True)
            )
            # Its value is 0, and its gradient is that of v times the slopes.
            moved = torch.zeros((), device=prepared.device)
            if states.numel():
                some = prepared.masked(int(drawn[0]), len(drawn))
                v = outputs(prepared.network, some, states)
                moved = ((v - v.detach()) * factors.to(v)).sum()
        return self.strength * self.every * (lost + moved / len(drawn))

    @torch.no_grad()
    def _lost(self, prepared: Prepared, drawn: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the mean non-generalizable share, and its slopes in v per sample."""
        every = torch.arange(2**self.variables.n)
        rows = [outputs(prepared.network, prepared.masked(i), every) for i in drawn.tolist()]
        v = torch.cat(rows).cpu().double()
        check_finite(v, int(drawn[0]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (ConvergenceWarning, DeadOutputWarning))
            inter = sparsify(v, self.noise, self.tol)
        g = transfer(inter, [baseline[drawn] for baseline in self.baselines])
        if self.random:
            g = random_share(inter, g, seed=step)
        lost, slope = lost_share(inter, g)
        return float(lost.mean()), slope

    @torch.no_grad()
    def _prepared(self, model: nn.Module) -> Prepared:
        """Return the samples for the network as it is now."""
        if isinstance(self.masked, int):
            value = token_embedding(model, self.masked)
        else:
            value = mean_feature(model, self.x, layer=self.masked)
        return prepare(model, self.x, self.target, self.variables, value)


def lost_share(
    inter: Interactions, g: Transfer
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch state"]]:
    """Return the non-generalizable share of salient strength, and its slopes in v.

    Args:
        inter: interactions.
        g: their transfer, which is held fixed, like the total strength.

    Returns:
        1 - H (Eq. 8), with a denominator of at least one log odds; and its derivative in v on every
        masked state.
    """
    size = inter.effects.abs() * g.salient
    whole = size.sum((-2, -1)).clamp(min=FLOOR)
    lost = (size * (1 - g)).sum((-2, -1)) / whole
    return lost, slopes(inter, 1 - g, g.salient) / whole[..., None]


def slopes(
    inter: Interactions,
    weights: Float[Tensor, "*batch type state"],
    salient: Bool[Tensor, "*batch type state"],
) -> Float[Tensor, "*batch state"]:
    r"""Return the derivative in v of a weighted strength :math:`\sum_T w_T |I_T|`.

    The set of salient interactions and their signs are held fixed. With the columns B of the
    logical model (Eq. 3) that belong to them, a change of v changes the effects by
    :math:`B^+ (v - v_0)`: least squares. Steps along it lower the penalty, but it is not how the
    sparsest split itself moves: another set of effects may become the sparsest.

    Args:
        inter: interactions.
        weights: weights of AND and of OR effects.
        salient: which effects may move.

    Example:
        >>> inter = Interactions.from_moebius(torch.tensor([[0.0, 0.0, 0.0, 2.0]]))  # one AND
        >>> slopes(inter, torch.ones(1, 2, 4), inter.salient()).round(decimals=6).tolist()
        [[-1.0, 0.0, 0.0, 1.0]]
    """
    kept = salient.flatten(-2)
    signs = (inter.effects.sign() * weights).flatten(-2) * kept
    columns = _columns(inter.n).to(kept.device) * kept.unsqueeze(-2)
    inverse = torch.linalg.pinv(columns @ columns.mT, hermitian=True, rtol=RANK)
    slope = (inverse @ (columns @ signs.unsqueeze(-1))).squeeze(-1)
    slope[..., 0] = -slope[..., 1:].sum(-1)
    return slope


@functools.cache
def _columns(n: int) -> Float[Tensor, "state effect"]:
    """Return the outputs of every single AND and OR effect of size 1, on every masked state."""
    single = torch.eye(2 * 2**n, dtype=torch.float64).unflatten(-1, (2, -1))
    return and_or_outputs(single).mT.contiguous()


def drawn_states(
    slope: Float[Tensor, " state"], count: int, chance: torch.Generator
) -> tuple[Int[Tensor, " some"], Float[Tensor, " some"]]:
    """Draw masked states and factors that equal, on average, the slopes on all of them.

    States are drawn in proportion to the size of their slopes (systematic sampling).

    Args:
        slope: slope on every masked state.
        count: how many to draw; at least as many as there are states takes all with a slope.
        chance: generator of the draw.

    Returns:
        States, each once, and the factors of their outputs.

    Example:
        >>> drawn_states(torch.tensor([-1.0, 0.0, 0.0, 1.0]), 4, torch.Generator())
        (tensor([0, 3]), tensor([-1.,  1.]))
    """
    size = slope.abs()
    if count >= len(slope) or not bool(size.sum() > 0):
        states = size.nonzero().squeeze(-1)
        return states, slope[states]
    ends = size.cumsum(-1)
    start = torch.rand(1, generator=chance, dtype=size.dtype)
    place = (start + torch.arange(count)).to(ends.device) / count * ends[-1]
    hit = torch.searchsorted(ends, place, right=True).clamp(max=len(slope) - 1)
    states, times = hit.unique(return_counts=True)
    return states, slope[states].sign() * times * ends[-1] / count


def penalty_of(
    study: Study,
    strength: float,
    m: int = 6,
    pool: int = 64,
    penalized: int = 4,
    every: int = 4,
    random: bool = False,
) -> Penalty:
    """Return the penalty of a study, whose first baseline decides what generalizes.

    Args:
        study: study with at least one baseline network.
        strength: lambda, in nats.
        m: variables of the samples that are penalized.
        pool: number of training samples to draw them from.
        penalized, every, random: see `Penalty` (samples, every, random).
    """
    part = study.names[0]
    small = study.changed(n=m, samples=min(pool, len(study.data.part(part))))
    samples, variables = small.drawn(part)
    baseline = small.interactions(small.trained(1), -1, part)
    return Penalty(
        samples.x,
        samples.y,
        variables,
        baseline,
        study.masked,
        strength,
        penalized,
        every,
        random=random,
        noise=study.noise,
        tol=study.tol,
        seed=study.seed,
    )


def measure_penalty(
    study: Study,
    strengths: Sequence[float],
    decays: Sequence[float],
    seeds: int | Iterable[int],
    workers: int | None = None,
    store: Trainings | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Tune a penalty and the weight decay, then compare trainings of all `ARMS` (App. K).

    Both are tuned with the study's own seed, by the accuracy on the first baseline's part of the
    data. H is measured with two other baselines, which no penalty has seen. Each training is kept.

    Args:
        study: what is trained, and how H is measured.
        strengths, decays: values that are tried; the same number of each, so that both are tuned
            alike.
        seeds: how many trainings of each arm, with seeds 10 apart after the tuning seed; or
            the seeds themselves.
        workers, store: see `measure`.
        **options: m, pool, penalized and every of `penalty_of`.

    Returns:
        Columns seed, arm, setting (lambda or weight decay), quantity, value. Quantities:
        validation_accuracy (tuning seed only), test_accuracy, H, gap (nats), N.

    Raises:
        ValueError: for different numbers of strengths and decays, or none.
    """
    if not len(strengths) == len(decays) > 0:
        raise ValueError(
            f"{len(strengths)} strengths and {len(decays)} decays; expected the same number of "
            "each, at least one, so that both are tuned alike"
        )
    study = study.changed(baselines=3, split=None).check()
    store = store or Trainings()
    options = {**DEFAULTS, **options}

    def table(studies: list[Study], arms: list[tuple[str, float]], tune: bool) -> pd.DataFrame:
        parts = [_part(arm, setting, options, tune) for arm, setting in arms]
        return store.table("penalty", studies, parts, workers, options)

    tried = [("penalty", float(x)) for x in strengths] + [("decay", float(x)) for x in decays]
    tuned = table([study], tried, True)
    best = tuned.loc[tuned.groupby("arm")["value"].idxmax()].set_index("arm")["setting"]
    chosen = {"plain": 0.0, "random": best["penalty"], **best}
    if isinstance(seeds, int):
        seeds = [study.seed + 10 * k for k in range(1, seeds + 1)]
    arms = [(arm, chosen[arm]) for arm in ARMS]
    return pd.concat([tuned, table(seeded(study, seeds), arms, False)], ignore_index=True)


def _part(arm: str, setting: float, options: dict[str, Any], tune: bool) -> Part:
    """Return the rows of one arm as a part of the table."""

    def select(rows: pd.DataFrame) -> pd.Series:
        chosen = (rows["arm"] == arm) & np.isclose(rows["setting"].astype(float), setting)
        return chosen & ((rows["quantity"] == VALIDATION) == tune)

    compute = functools.partial(_measured, arm=arm, setting=setting, options=options, tune=tune)
    return Part(compute, select)


def _measured(
    study: Study, arm: str, setting: float, options: dict[str, Any], tune: bool
) -> pd.DataFrame:
    """Train one arm; return its accuracy on the validation part, or the compared quantities."""
    changes: dict[str, Any] = {}
    if arm == "decay":
        changes["weight_decay"] = setting
    if arm in ("penalty", "random"):
        changes["term"] = penalty_of(study, setting, random=arm == "random", **options)
    run = study.trained(0, **changes)
    if tune:
        values = {VALIDATION: evaluate(run.load(), study.data.part(study.names[1]))[1]}
    else:
        last = run.records.iloc[-1]
        inter = study.interactions(run)
        others = [study.interactions(study.trained(k)) for k in (2, 3)]
        values = {
            "H": generalization_power(inter, transfer(inter, others)).nanmean(),
            "N": interaction_count(inter).nanmean(),
            "gap": last["test_loss"] - last["train_loss"],
            "test_accuracy": last["test_accuracy"],
        }
    rows = [(study.seed, arm, setting, name, float(value)) for name, value in values.items()]
    return pd.DataFrame(rows, columns=["seed", "arm", "setting", "quantity", "value"])
