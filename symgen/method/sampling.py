"""What is lost where masked states are sampled: against the exact split, and other ways."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from symgen.interactions import SALIENT_SHARE, Interactions
from symgen.masking.extraction import count_of
from symgen.masking.outputs import Value, Variables
from symgen.masking.sampled import sampled_outputs
from symgen.method.statistics import interval
from symgen.split.design import draw_states
from symgen.split.sampled import SampledInteractions, sparsify_sampled

if TYPE_CHECKING:
    import shapiq

#: A network's outputs (state,) for one sample on masked states (state,).
Game = Callable[[Int[Tensor, " state"]], Float[Tensor, " state"]]
# How many of the strongest interactions are compared.
TOP = 10
PEERS = ("SPEX", "ProxySPEX")


def strongest(inter: Interactions, count: int = TOP) -> list[set[tuple[str, int]]]:
    """Return of each sample its interactions of largest absolute effect, as (type, T)."""
    and_, or_ = inter.salient(top=count)
    return [
        {(kind, int(t)) for kind, row in (("and", a), ("or", o)) for t in row.nonzero().flatten()}
        for a, o in zip(and_, or_, strict=True)
    ]


def shared(
    one: Sequence[set[tuple[str, int]]], other: Sequence[set[tuple[str, int]]]
) -> list[float]:
    """Return of each sample the share of the first set that is in the second; NaN of an empty one.

    Example:
        >>> shared([{("and", 3), ("or", 3)}], [{("or", 3), ("or", 5)}])
        [0.5]
    """
    return [len(a & b) / len(a) if a else float("nan") for a, b in zip(one, other, strict=True)]


def against_exact(
    v: Float[Tensor, "sample state"],
    exact: Interactions,
    counts: Sequence[int],
    others: Mapping[str, Interactions],
    *,
    noise: float = 0.02,
    max_order: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how near models of sampled states come to the exact split, one row a sample each.

    Args:
        v: outputs on all masked states.
        exact: the interactions of all states.
        counts: numbers of states to sample; the rest of all are held out.
        others: exact splits made otherwise, by name: how much the strongest interactions change
            where nothing is sampled.
        noise, max_order: see `sparsify_sampled`.
        seed: of the draws.

    Returns:
        Columns model, states, sample, unexplained (share of the variance of v on the states held
        out; of all states for exact splits), shared (share of the exact split's ten strongest
        interactions that are among the model's ten strongest), gap.
    """
    n, best, parts = exact.n, strongest(exact), []
    order = draw_states(n, 2**n, seed)
    for count in counts:
        found = sparsify_sampled(
            v[:, order], order, n, held_out=2**n - count, noise=noise, max_order=max_order
        )
        parts.append(pd.DataFrame({
            "model": "sampled", "states": count, "sample": range(len(v)),
            "unexplained": found.errors.mean(-1).cpu(),
            "shared": shared(best, found.strongest(TOP)), "gap": found.gap.cpu(),
        }))  # fmt: skip
    for name, other in others.items():
        left = (v - other.predict()).square().mean(-1) / v.var(-1, correction=0)
        parts.append(pd.DataFrame({
            "model": name, "states": 2**n, "sample": range(len(v)), "unexplained": left.cpu(),
            "shared": shared(best, strongest(other)), "gap": other.gap.cpu(),
        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def error_table(found: SampledInteractions) -> pd.DataFrame:
    """Return what each sampled model was made of and how it does on the states held out.

    Returns:
        One row a sample: sample, candidates, nonzero, gap, and unexplained (share of the variance
        of v) with its 95 % interval over the states held out, low95 and high95.
    """
    rows = []
    for i, errors in enumerate(found.errors):
        mean, low, high = interval(errors)
        rows.append({
            "sample": i, "candidates": found.effects.shape[1],
            "nonzero": int((found.effects[i] != 0).sum()), "gap": float(found.gap[i]),
            # A share has no negative part.
            "unexplained": mean, "low95": max(low, 0.0), "high95": high,
        })  # fmt: skip
    return pd.DataFrame(rows)


def games(model: Callable, inputs: Any, variables: Variables, mask_value: Value) -> list[Game]:
    """Return, of each sample, what gives its v on any masked states: a game of its variables.

    Args:
        model, variables, mask_value: see `masked_outputs`.
        inputs: with x and y.
    """

    def one(i: int) -> Game:
        x, y = inputs.x[i : i + 1], inputs.y[i : i + 1]
        own = variables if len(variables) == 1 else variables[[i]]

        def v(states: Tensor) -> Tensor:
            ends = torch.tensor([0, 2 ** count_of(own) - 1])
            asked = torch.cat([ends, states])
            return sampled_outputs(model, x, y, own, mask_value, asked, progress=False)[0, 2:]

        return v

    return [one(i) for i in range(len(inputs.y))]


@contextmanager
def _as_before(seed: int) -> Iterator[None]:
    """Seed the generators that all code shares; put them, and the numbers of threads, back."""
    import numba  # of shapiq's

    before, threads = (random.getstate(), np.random.get_state()), torch.get_num_threads()
    numbas = numba.get_num_threads()
    random.seed(seed)
    np.random.seed(seed)
    # By itself numba takes a thread for every core, for loops of microseconds: where something else
    # runs, their threads wait for each other most of the time.
    numba.set_num_threads(1)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        numba.set_num_threads(numbas)
        # What shapiq loads sets it for the whole process.
        torch.set_num_threads(threads)


def peer(name: str, game: Game, n: int, calls: int, seed: int = 0) -> "shapiq.InteractionValues":
    """Return what shapiq finds by sparse Fourier transforms from so many outputs of a network.

    Args:
        name: "SPEX", which chooses the states as it needs them and may use fewer, or "ProxySPEX",
            which fits boosted trees to states drawn at random.
        game: v of one sample.
        n: its variables.
        calls: states that may be run.
        seed: of the draw. SPEX misses what is there for some of them.

    Returns:
        Faithful Banzhaf values of all orders, whose sum over the subsets of a state is the model.

    Raises:
        ImportError: where shapiq or what it needs is not installed.
        ValueError: for another name, or too few calls.
    """
    if name not in PEERS:
        raise ValueError(f"{name!r}: expected one of {PEERS}")
    try:
        import lightgbm  # noqa: F401
        from shapiq import approximator
    except ImportError as error:
        raise ImportError(
            f"{name} is shapiq's; install it by: pip install 'symgen[shapiq]'"
        ) from error
    bits = 1 << np.arange(n)

    def outputs(coalitions: np.ndarray) -> np.ndarray:
        return game(torch.from_numpy(coalitions.astype(np.int64) @ bits)).cpu().numpy()

    # SPEX draws its states from the global generators, whatever `random_state` says.
    with _as_before(seed):
        made = getattr(approximator, name)(n=n, index="FBII", max_order=n, random_state=seed)
        return made.approximate(calls, outputs)


def predicted(
    values: "shapiq.InteractionValues", states: Int[Tensor, " state"]
) -> Float[Tensor, " state"]:
    """Return what shapiq's effects of sets add up to on masked states."""
    found = torch.zeros(len(states), dtype=torch.float64)
    for members, at in values.interaction_lookup.items():
        index = sum(1 << int(i) for i in members)
        found[(states & index) == index] += float(values.values[at])
    return found


def against_peers(
    games: Sequence[Game],
    n: int,
    calls: int,
    held_out: int = 200,
    names: Sequence[str] = PEERS,
    *,
    noise: float = 0.02,
    max_order: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return how well models of equally many network calls tell outputs that they have not seen.

    Args:
        games: v of each sample.
        n: variables of a sample.
        calls: states that each way may run.
        held_out: states that all are judged by, the same for all.
        names: of the `peer` ways beside ours and the model of single variables.
        noise, max_order: see `sparsify_sampled`.
        seed: of the draws.

    Returns:
        Columns model, sample, calls, interactions (effects above 5 % of the largest), unexplained
        (share of the variance of v on the states held out). A peer that needs more calls than
        these has no row, nor has one for outputs that never change.
    """
    states, rows = draw_states(n, calls + held_out, seed), []
    check = states[calls:]
    for i, game in enumerate(games):
        v = game(states)
        truth, spread = v[calls:], v[calls:].var(correction=0)

        def row(model, d, effects, used, i=i, truth=truth, spread=spread):
            size = torch.as_tensor(effects).abs()
            return {
                "model": model, "sample": i, "calls": used,
                "interactions": int((size > SALIENT_SHARE * size.max()).sum()),
                "unexplained": float((truth - d).square().mean() / spread),
            }  # fmt: skip

        for name, order in (("AND-OR", max_order), ("single variables", 1)):
            found = sparsify_sampled(
                v[None], states, n, held_out=held_out, noise=noise, max_order=order
            )
            rows.append(row(name, found.predict(check)[0].cpu(), found.effects[0].cpu(), calls))
        for name in names if spread > 0 else ():
            try:
                values = peer(name, game, n, calls, seed)
            except (IndexError, ValueError) as error:
                # Too few calls: SPEX says so, and trees of ProxySPEX that split nothing do not.
                if isinstance(error, ValueError) and "budget" not in str(error).lower():
                    raise
                continue
            effects = [values.values[at] for T, at in values.interaction_lookup.items() if T]
            rows.append(row(name, predicted(values, check), effects, values.estimation_budget))
    return pd.DataFrame(rows)
