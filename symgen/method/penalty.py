r"""A term of the loss that penalizes interactions which do not generalize (App. K).

For a few training samples X, with the salient effects I of the network as it is, and G their
transfer to baseline networks that were trained on a validation part,

.. math:: \text{term} = \frac{\lambda}{|X|} \sum_{x \in X}
          \frac{\sum_T (1 - G(I_T))\, |I_T|}{\max(\sum_T |I_T|, 1 \text{ log odds})},

which is :math:`\lambda (1 - \bar H)` (Eq. 8) wherever there are salient effects of one log odds in
all. The paper gives no formula. The denominator is salient strength and not the total effect
\|v(N) - v(none)\|, which can be 0 where effects cancel.

**What gradients see.** The denominator, G, the mask value, and which interactions are salient are
taken anew each time and held fixed; the effects of the salient ones follow v by least squares, as
in the sparsest split, whose optimum does not move either while v changes little (`slopes`). Shares
of v held fixed instead, the Moebius transforms of v / 2 + gamma and v / 2 - gamma, would be cheaper
to write, but :math:`I_T` would then depend on v at subsets of T alone, weighted 1 and -1: v(N)
would never move but for the interaction of all variables, and others would make up for what goes.

**In which mode.** Evaluation mode, as interactions are measured: a batch of masked states has
statistics of its own, so that in training mode v of one state would depend on the others, and the
running averages of batch normalization would follow masked images.

**What it costs.** All 2^m states run forward without gradients; gradients then go through a few of
them, drawn with chances proportional to their slopes, so that on average the gradient is exact.
"""

import copy
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from symgen.fingerprints import code_fingerprint
from symgen.interactions import Interactions
from symgen.masking.mask_values import MaskValue, mean_feature, token_embedding
from symgen.masking.outputs import state_runner
from symgen.masking.patches import ImageVariables
from symgen.masking.spans import TextVariables
from symgen.masking.states import StateRunner, check_finite, evaluating
from symgen.method.removal import random_share
from symgen.method.transfer import Share, transfer
from symgen.models.batches import generator
from symgen.models.loop import Term
from symgen.split.sparsify import ConvergenceWarning, DeadOutputWarning, sparsify
from symgen.transforms import and_or_outputs

#: Least salient strength, in log odds, that a sample's penalty is a share of.
FLOOR = 1.0
# Combinations of effects that outputs tell apart by less than this, squared, are left alone.
RANK = 1e-6


class Penalty(Term):
    """The penalty as a term for any training loop.

    Here: ``train(..., term=penalty)``. In a loop of `accelerate`, with a network of your own::

        loss = criterion(model(x), y)
        if (added := penalty(step, accelerator.unwrap_model(model))) is not None:
            loss = loss + added
        accelerator.backward(loss)

    With the trainer of `transformers`::

        class Penalized(transformers.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, **options):
                found = super().compute_loss(model, inputs, return_outputs=True, **options)
                added = penalty(self.state.global_step + 1, self.accelerator.unwrap_model(model))
                loss = found[0] if added is None else found[0] + added
                return (loss, found[1]) if return_outputs else loss

    Args:
        inputs: samples to penalize on, with x and y; see `masked_outputs`.
        variables: of these samples, m each; 2^m masked states run for every sample.
        baselines: interactions of one or more baseline networks on the same samples.
        masked: of images the layer to mask at, see `find_layer`, where their mean over these
            samples is put in; of texts the number of the token that is.
        strength: lambda, in nats.
        samples: how many are drawn for a step; neighbours among the inputs, in any order.
        every: the term is there in every so many steps, and then so many times as strong.
        states: masked states of a sample that gradients go through; 2^m or more takes all.
        random: whether to penalize as much strength of interactions drawn at random, as a control.
        noise, tol: see `sparsify`.
        seed: of the draws of samples and of masked states. What `random` takes in place of the
            shares is drawn by the step alone, in the same way for all seeds.

    Raises:
        ValueError: for numbers out of range, or baselines on other samples.
    """

    def __init__(
        self,
        inputs: Any,
        variables: ImageVariables | TextVariables,
        baselines: Interactions | Sequence[Interactions],
        masked: str | int | None = "first_relu",
        strength: float = 1.0,
        samples: int = 4,
        every: int = 1,
        states: int = 4,
        random: bool = False,
        noise: float = 0.02,
        tol: float = 1e-3,
        seed: int = 0,
    ):
        baselines = [baselines] if isinstance(baselines, Interactions) else list(baselines)
        sizes = {len(inputs.y), len(variables), *map(len, baselines)}
        if len(sizes) != 1 or not baselines:
            raise ValueError(
                f"{len(inputs.y)} samples, variables of {len(variables)} and {len(baselines)} "
                f"baselines on {[len(b) for b in baselines]}; expected one or more baselines, all "
                "of the same samples"
            )
        for name, value in {"samples": samples, "every": every, "states": states}.items():
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if not 0 <= strength < float("inf"):
            raise ValueError(f"strength={strength}: expected 0 or more nats")
        self.inputs, self.variables, self.masked = inputs, variables, masked
        self.baselines, self.strength, self.samples = baselines, strength, samples
        self.every, self.states, self.random = every, states, random
        self.noise, self.tol, self.seed = noise, tol, seed
        self._structure: StateRunner | None = None

    @functools.cached_property
    def key(self) -> dict[str, Any]:
        """What the term depends on."""
        return {
            "x": self.inputs.x, "y": self.inputs.y, "variables": self.variables,
            "baselines": self.baselines, "masked": self.masked,
            "settings": [self.strength, self.samples, self.every, self.states, self.random],
            "split": [self.noise, self.tol], "seed": self.seed,
            "code": code_fingerprint(Penalty, type(self.variables)),
        }  # fmt: skip

    def __call__(self, step: int, model: nn.Module) -> Tensor | None:
        """Return the term at a step (from 1 on), with gradients; None where it is left out.

        Raises:
            FloatingPointError: where the network's logits are NaN or infinite.
        """
        if step % self.every:
            return None
        chance = generator(self.seed, 5, step)
        # Neighbours, so that gradients go through one batch.
        groups = torch.arange(len(self.variables)).tensor_split(
            -(-len(self.variables) // self.samples)
        )
        drawn = groups[int(torch.randint(len(groups), (), generator=chance))]
        with evaluating(model):
            runner = self._runner(model)
            lost, slope = self._found(runner, drawn, step)
            few = [drawn_states(row, self.states, chance) for row in slope]
            # Filled up with factors of 0.
            states, factors = (
                pad_sequence(list(x), batch_first=True) for x in zip(*few, strict=True)
            )
            # Its gradient is that of v times its slopes, and its value 0.
            moved = torch.zeros((), device=runner.device)
            if states.numel():
                v = runner.run(int(drawn[0]), len(drawn), states)
                moved = ((v - v.detach()) * factors.to(v)).sum()
        return self.strength * self.every * (lost + moved / len(drawn))

    @torch.no_grad()
    def _found(self, runner: StateRunner, drawn: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the mean share that is lost, and its slopes in v of every sample."""
        # A copy, for what lies below the masked layer is computed here without gradients.
        runner, everything = copy.copy(runner), torch.arange(2**self.variables.n)
        v = torch.cat([runner.run(i, 1, everything) for i in drawn.tolist()]).cpu().double()
        check_finite(v, int(drawn[0]))
        with warnings.catch_warnings():
            # A step is no place to say so, and what is left to do is the same.
            warnings.simplefilter("ignore", (ConvergenceWarning, DeadOutputWarning))
            inter = sparsify(v, self.noise, self.tol)
        g = transfer(inter, [baseline[drawn] for baseline in self.baselines])
        if self.random:
            g = random_share(inter, g, seed=step)
        lost, slope = lost_share(inter, g)
        return float(lost.mean()), slope

    def _runner(self, model: nn.Module) -> StateRunner:
        """Return what runs masked states of the network as it is now."""
        with torch.no_grad():
            value = self.mask_value(model)
            if self._structure is None or self._structure.model is not model:
                given = self.inputs.x, self.inputs.y, self.variables
                self._structure = state_runner(model, *given, value)
        # A copy, which keeps nothing of weights that have changed since.
        runner = copy.copy(self._structure)
        runner.value = value.value.to(runner.device)
        return runner

    def mask_value(self, model: nn.Module) -> MaskValue:
        """Return what masked variables of the network as it is are replaced by."""
        if isinstance(self.masked, int):
            return token_embedding(model, self.masked)
        # Looked for once: that takes a forward pass.
        known = self._structure if self._structure and self._structure.model is model else None
        return mean_feature(model, self.inputs.x, layer=known.way.layer if known else self.masked)


def lost_share(
    inter: Interactions, g: Share
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch state"]]:
    """Return the share of salient strength that does not generalize, and its slopes in v.

    Args:
        inter: interactions.
        g: their transfer, which is held fixed, as is the whole strength.

    Returns:
        1 - H (Eq. 8), less where a sample has less than one log odds of salient strength, and 0
        where it has none; and its derivative in v on every masked state.
    """
    size = inter.effects.abs() * torch.stack(inter.salient(), -2)
    whole = size.sum((-2, -1)).clamp(min=FLOOR)
    weights = 1 - torch.stack(g, -2)
    return (size * weights).sum((-2, -1)) / whole, slopes(inter, weights) / whole[..., None]


def slopes(
    inter: Interactions, weights: Float[Tensor, "*batch type state"]
) -> Float[Tensor, "*batch state"]:
    r"""Return the derivative in v of a weighted strength :math:`\sum_T w_T |I_T|`.

    Which interactions are salient, and their signs, are held fixed, and their effects follow v by
    least squares: with the columns B of the logical model (Eq. 3) that belong to them, a change of
    v changes them by :math:`B^+ (v - v_0)`. That is how the sparsest split itself changes, where
    it is unique and exact and all its effects are salient.

    Args:
        inter: interactions.
        weights: of AND and of OR.

    Example:
        >>> v = torch.tensor([[0.0, 0.0, 0.0, 2.0]])  # one AND of two variables
        >>> slopes(Interactions.from_moebius(v), torch.ones(1, 2, 4)).round(decimals=6).tolist()
        [[-1.0, 0.0, 0.0, 1.0]]
    """
    kept = torch.stack(inter.salient(), -2).flatten(-2)
    signs = (inter.effects.sign() * weights).flatten(-2) * kept
    columns = _columns(inter.n).to(inter.and_.device) * kept.unsqueeze(-2)
    inverse = torch.linalg.pinv(columns @ columns.mT, hermitian=True, rtol=RANK)
    slope = (inverse @ (columns @ signs.unsqueeze(-1))).squeeze(-1)
    slope[..., 0] = -slope[..., 1:].sum(-1)
    return slope


@functools.cache
def _columns(n: int) -> Float[Tensor, "state effect"]:
    """Return what every AND and then every OR adds to the output on every masked state."""
    one, none = torch.eye(2**n, dtype=torch.float64), torch.zeros(2**n, 2**n, dtype=torch.float64)
    return torch.cat([and_or_outputs(one, none), and_or_outputs(none, one)]).mT.contiguous()


def drawn_states(
    slope: Float[Tensor, "state"], count: int, chance: torch.Generator
) -> tuple[Int[Tensor, "some"], Float[Tensor, "some"]]:
    """Draw masked states and factors that stand, on average, for the slopes on all of them.

    States are drawn in proportion to the size of their slopes, evenly spread (systematic sampling).

    Args:
        slope: on every masked state.
        count: how many to draw; as many as there are, or more, gives all that have a slope.
        chance: of the draw.

    Returns:
        Numbers of states, each once, and the factors of their outputs.

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
    found = torch.searchsorted(ends, place, right=True).clamp(max=len(slope) - 1)
    states, times = found.unique(return_counts=True)
    return states, slope[states].sign() * times * ends[-1] / count
