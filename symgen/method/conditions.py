"""The three conditions under which interactions are proven to be few (App. B), as measures."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from symgen.interactions import Interactions
from symgen.method.statistics import Interval, interval, median_interval
from symgen.method.study import Study
from symgen.split.sparsify import sparsify
from symgen.transforms import count_variables, interaction_order

#: The measure of `condition_values` whose samples have a long tail.
MEDIAN = "3: median p"


def stages(study: Study) -> dict[str, int]:
    """Return the steps of a study's untrained, early and trained target."""
    steps = study.runs[0].steps
    return {"untrained": steps[0], "early": steps[len(steps) // 2], "trained": steps[-1]}


def outputs_of(study: Study) -> tuple[dict[str, Tensor], Interactions]:
    """Return v of a study's target in its `stages`, and the interactions of the trained one."""
    run = study.runs[0]
    outputs = {name: study.outputs(run.load(t), run.key(t)) for name, t in stages(study).items()}
    return outputs, study.extract(run.load(), run.key())


def strength_above(effects: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch order"]:
    """Return the share of strength at orders above M, for M = 0..n (Condition 1).

    Args:
        effects: AND or OR effects, or both added up in magnitude.

    Returns:
        Shape (..., n + 1): 1 at M = 0, and 0 at M = n; NaN for a sample without any effect.

    Example:
        >>> strength_above(torch.tensor([0.0, 2.0, 1.0, 1.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """
    strength = effects.abs() @ _by_order(effects)
    total = strength.sum(-1, keepdim=True)
    held = strength.cumsum(-1) / total.where(total > 0, torch.nan)
    return (1 - held).clamp(min=0)


def average_output(v: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch order"]:
    """Return u(m), the mean of v[S] - v[0] over all states with m variables present (App. B).

    Args:
        v: outputs on all masked states.

    Returns:
        Shape (..., n + 1), in units of v; u(0) = 0 and u(n) = v[N] - v[0]. Steps as small as
        the rounding of sums are none, so that u of a plain OR is level.

    Example:
        >>> average_output(torch.tensor([1.0, 2.0, 4.0, 5.0]))
        tensor([0., 2., 4.])
    """
    outputs = v.double()
    states = _by_order(outputs)
    u = (outputs - outputs[..., :1]) @ (states / states.sum(0))
    steps, largest = u.diff(dim=-1), u.abs().amax(-1, keepdim=True)
    rounding = steps.abs() <= 1e3 * torch.finfo(u.dtype).eps * largest
    return torch.cat([u[..., :1], steps.where(~rounding, 0).cumsum(-1)], -1).to(v.dtype)


def _by_order(values: Tensor) -> Tensor:
    order = interaction_order(count_variables(values)).to(values.device)
    return torch.nn.functional.one_hot(order).to(values.dtype)


def never_falls(u: Float[Tensor, "*batch order"]) -> Float[Tensor, "*batch"]:
    """Return 1 where u never falls (Condition 2), 0 where it does, NaN where it never moves.

    Example:
        >>> never_falls(torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]))
        tensor([1., 0., nan])
    """
    holds = (u.diff(dim=-1) >= 0).all(-1).to(u.dtype)
    return holds.where((u != 0).any(-1), torch.nan)


def downward(u: Float[Tensor, "*batch order"]) -> Float[Tensor, "*batch"]:
    """Return the part of all movement of u that goes down: 0 where Condition 2 holds, 1 at worst.

    NaN where u never moves.

    Example:
        >>> downward(torch.tensor([0.0, 3.0, 2.0, 3.0]))
        tensor(0.2000)
    """
    steps = u.diff(dim=-1)
    total = steps.abs().sum(-1)
    return steps.clamp(max=0).sum(-1).abs() / total.where(total > 0, torch.nan)


def smallest_exponent(u: Float[Tensor, "*batch order"]) -> Float[Tensor, "*batch"]:
    """Return the smallest p with u(m') >= (m'/m)^p u(m) for all m' <= m (Condition 3).

    Where u(m) > 0 the bound asks for a large enough p, and no p will do when u(m') <= 0. Where
    u(m) and u(m') are negative it asks for a small enough p.

    Args:
        u: of `average_output`.

    Returns:
        p for every sample; NaN where no p > 0 does it, and 0 where every p does that is small
        enough (as for a u that only falls).

    Example:
        >>> smallest_exponent(torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 2.0], [0.0, -1.0, -2.0]]))
        tensor([1., nan, 0.])
    """
    n = u.shape[-1] - 1
    if n < 2:  # nothing to compare: every p does it
        return torch.zeros_like(u[..., 0])
    few, many = torch.combinations(torch.arange(1, n + 1), 2).T.to(u.device)
    ratio = (many.to(u.dtype) / few.to(u.dtype)).log()
    before, after = u[..., few], u[..., many]
    slope = (after.abs().log() - before.abs().log()) / ratio
    nothing = torch.full_like(slope, torch.inf)
    # One variable alone makes no pair: every p will do.
    always = torch.zeros_like(u[..., :1])
    at_least = torch.where(after <= 0, -nothing, torch.where(before > 0, slope, nothing))
    at_most = torch.where((after > 0) | (before >= 0), nothing, slope)
    at_most = torch.where((after == 0) & (before < 0), -nothing, at_most)
    low = torch.cat([always, at_least], -1).amax(-1)
    high = torch.cat([always + torch.inf, at_most], -1).amin(-1)
    return torch.where((low <= high) & (high > 0) & low.isfinite(), low, torch.nan)


def shuffled(v: Float[Tensor, "*batch state"], seed: int = 0) -> Float[Tensor, "*batch state"]:
    """Return the same outputs dealt out at random over the masked states.

    A function without structure, to compare with; v[0] and v[N] stay.

    Args:
        v: outputs on all masked states.
        seed: of the draw, which is another one for every sample.
    """
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(v.shape, generator=generator)
    keys[..., 0], keys[..., -1] = -1.0, 2.0
    return v.gather(-1, keys.argsort(-1).to(v.device))


def condition_values(v: Float[Tensor, "*batch state"]) -> dict[str, Float[Tensor, "*batch"]]:
    """Return what every sample says about the three conditions, by measure.

    The share of strength above order n/2 without a split; whether u never falls; whether it rises
    from the masked to the full input; and the smallest p where it does and has one.
    """
    u = average_output(v)
    above = strength_above(Interactions.from_moebius(v).and_)[..., count_variables(v) // 2]
    rises, p = u[..., -1] > 0, smallest_exponent(u)
    return {
        "1: strength above order n/2": above,
        "2: samples that never fall": never_falls(u),
        MEDIAN: p.where(rises & (p > 0), torch.nan),
        "samples whose output rises": rises.to(u.dtype),
    }


def condition_table(
    outputs: Mapping[str, Mapping[str, Float[Tensor, "_ _"]]],
) -> pd.DataFrame:
    """Return the measures of `condition_values` over samples, at several checkpoints.

    Args:
        outputs: setting to checkpoint to v on all masked states.

    Returns:
        Columns setting, checkpoint, measure, value, low95, high95: a median for p, else a mean.
    """
    rows = []
    for setting, checkpoints in outputs.items():
        for checkpoint, v in checkpoints.items():
            for name, values in condition_values(v).items():
                found = median_interval(values) if name == MEDIAN else interval(values, True)
                rows.append((setting, checkpoint, name, *found))
    names = ["setting", "checkpoint", "measure", "value", "low95", "high95"]
    return pd.DataFrame(rows, columns=names)


def condition_changes(
    outputs: Mapping[str, Mapping[str, Float[Tensor, "_ _"]]],
) -> pd.DataFrame:
    """Return how the last checkpoint differs from each earlier one, sample by sample.

    Args:
        outputs: as of `condition_table`.

    Returns:
        Columns setting, since, measure, change, low95, high95: means over samples, of all measures
        but p, which few samples have at both checkpoints.
    """
    rows = []
    for setting, checkpoints in outputs.items():
        *earlier, last = ((k, condition_values(v)) for k, v in checkpoints.items())
        for since, values in earlier:
            moved = {k: last[1][k] - x for k, x in values.items() if k != MEDIAN}
            rows += [(setting, since, k, *interval(x)) for k, x in moved.items()]
    return pd.DataFrame(rows, columns=["setting", "since", "measure", "change", "low95", "high95"])


def examples(p: Float[Tensor, "sample"], count: int) -> list[int]:
    """Return samples to look at: with small to large p, the largest, and one without any.

    Args:
        p: of `smallest_exponent`.
        count: about how many.

    Example:
        >>> examples(torch.tensor([1.0, torch.nan, 3.0, 0.5, 2.0]), 2)
        [3, 4, 2, 1]
    """
    ranked = p.argsort().tolist()  # NaN comes last.
    known = len(p) - int(p.isnan().sum())
    step = max(1, -(-known // max(1, count)))
    chosen = [*ranked[:known:step], *ranked[:known][-1:], *ranked[known:][:1]]
    return [*dict.fromkeys(chosen)]


def salient_counts(
    v: Float[Tensor, "sample state"],
    inter: Interactions,
    sizes: Iterable[int],
    noise: float = 0.02,
) -> dict[int, Float[Tensor, "sample"]]:
    """Return how many interactions are salient when only the first k variables may be masked.

    The others stay present, so that these states are among those of all n. For each sample the
    threshold tau and what the model may miss stay what they are for n: the bound O(n^p / tau) of
    Section 2.1 is about a fixed tau.

    Args:
        v: outputs on all masked states.
        inter: their split, found with the same noise.
        sizes: the k; those from n on are left out.
        noise: see `sparsify`.

    Returns:
        Counts of every sample by k, ascending; the last are those of n.
    """
    allowed, taus = noise * inter.total_effect, inter.threshold()
    counts = {}
    for k in sorted({k for k in sizes if k < inter.n}):
        # The states in which all variables from k on are present.
        samples = zip(v[:, -(2**k) :], allowed, taus, strict=True)
        counts[k] = torch.tensor([_count(*sample) for sample in samples]).double()
    return {**counts, inter.n: sum(x.sum(-1) for x in inter.salient()).double().cpu()}


def _count(v: Tensor, allowed: Tensor, tau: Tensor) -> int:
    span = (v[-1] - v[0]).abs().clamp(min=1e-9)
    salient = sparsify(v, noise=float(allowed / span)).salient(float(tau))
    return sum(int(x.sum()) for x in salient)


class Growth(NamedTuple):
    """How numbers of interactions grow with n.

    Attributes:
        exponent: a of the power n**a that fits best, averaged over samples.
        misfit: how much worse the power fits than an exponential in n: its mean squared error of
            the logarithm of the count, less the exponential's. Below 0 the power fits better.
    """

    exponent: Interval
    misfit: Interval


def growth(counts: Mapping[int, Float[Tensor, "sample"]]) -> Growth:
    """Return how the counts of each sample grow, fitted in logarithms by least squares.

    Args:
        counts: of `salient_counts`; 0 is taken as 1/2.

    Returns:
        NaN for fewer than three sizes, or where the mean count does not rise at every step.
    """
    means = torch.stack([count.mean() for count in counts.values()])
    if len(means) < 3 or not (means.diff() > 0).all():
        nothing = Interval(*[float("nan")] * 3)
        return Growth(nothing, nothing)
    sizes = torch.tensor([*counts]).double()
    many = torch.stack([count.clamp(min=0.5) for count in counts.values()], -1).log()
    many = many - many.mean(-1, keepdim=True)
    slopes, errors = [], []
    for x in (sizes.log(), sizes):
        x = x - x.mean()
        slopes.append(many @ x / (x @ x))
        errors.append((many - slopes[-1][:, None] * x).square().mean(-1))
    return Growth(interval(slopes[0]), interval(errors[0] - errors[1]))
