"""What changes while a model is tuned, told by its interactions."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from symgen.interactions import Interactions
from symgen.method.dynamics import Dynamics
from symgen.method.statistics import cut, interval
from symgen.method.transfer import Share, order_spectrum


def order_groups(n: int) -> dict[str, range]:
    """Return low, middle and high orders by name, as far as n variables have them.

    Example:
        >>> order_groups(6)
        {'1-2': range(1, 3), '3-5': range(3, 6), '6': range(6, 7)}
    """
    bounds = [(first, min(last, n)) for first, last in ((1, 2), (3, 5), (6, n)) if first <= n]
    return {f"{a}-{b}" if a < b else f"{a}": range(a, b + 1) for a, b in bounds}


def strength_of(inter: Interactions, orders: Sequence[int], g: Share | None = None) -> Tensor:
    """Return the salient strength of some orders, sum of abs(I), of every sample (log odds).

    Args:
        inter: interactions.
        orders: those that count; any above n have none.
        g: transfer of AND and OR; with it, the strength that transfers.
    """
    strength = order_spectrum(inter, g).abs().sum(-2)
    return strength[..., [m for m in orders if m <= inter.n]].sum(-1)


def strength_table(steps: Sequence[int], interactions: Sequence[Interactions]) -> pd.DataFrame:
    """Return the salient strength of groups of orders at each checkpoint, averaged over samples.

    Args:
        steps: of the checkpoints.
        interactions: at each.

    Returns:
        One row a checkpoint and group: step, label, mean, low95, high95 (log odds), and share (of
        the strength of all orders).
    """
    rows = []
    for step, inter in zip(steps, interactions, strict=True):
        whole = strength_of(inter, range(1, inter.n + 1))
        for name, orders in order_groups(inter.n).items():
            part = strength_of(inter, orders)
            share = interval(part / whole.where(whole > 0, torch.nan), share=True).mean
            rows.append((step, f"orders {name}", *cut(interval(part), 0), share))
    return pd.DataFrame(rows, columns=["step", "label", "mean", "low95", "high95", "share"])


def share_table(courses: Mapping[str, Dynamics]) -> pd.DataFrame:
    """Return H by several baselines at each checkpoint, and the chance levels.

    Args:
        courses: name of the baseline to the same interactions beside it.

    Returns:
        Columns step, label ("H, name" or "chance, name"), mean, low95, high95.
    """
    names = ["step", "label", "mean", "low95", "high95"]
    parts = []
    for name, dynamics in courses.items():
        table = dynamics.summary()
        for label, column in (("H", "power"), ("chance", "chance")):
            values = table[["step", column, f"{column}_low95", f"{column}_high95"]]
            values.insert(1, "label", f"{label}, {name}")
            parts.append(values.set_axis(names, axis=1))
    return pd.concat(parts, ignore_index=True)


def interaction_changes(before: Interactions, after: Interactions) -> pd.DataFrame:
    """Return which interactions carry the change of v between two models, adding up exactly.

    Every interaction is triggered on the whole prompt, so that v(N) is their sum and the constant.
    A change of it is the sum of: interactions that are salient after only ("new"), before only
    ("lost"), in both with opposite signs ("flipped") or with the same sign ("strength"), in
    neither ("small"), of the constant, and of what the models' noise terms leave out ("noise").

    Args:
        before, after: interactions of two models on the same prompts and variables.

    Returns:
        One row a sample, kind and order: sample, kind, order, change (log odds), and moved, the
        sum of the changes without their signs. The changes of a sample add up to that of its v(N).
    """
    if before.and_.shape != after.and_.shape:
        raise ValueError(
            f"before has shape {tuple(before.and_.shape)} and after {tuple(after.and_.shape)}; "
            "expected interactions of the same prompts and variables"
        )
    was, now = (torch.stack(i.salient(), -2) for i in (before, after))
    same = before.effects * after.effects > 0
    kinds = {
        "new": now & ~was, "lost": was & ~now, "flipped": was & now & ~same,
        "strength": was & now & same, "small": ~was & ~now,
    }  # fmt: skip
    change = after.effects - before.effects
    orders = nn.functional.one_hot(before.order, before.n + 1).to(change)
    rows = []
    for kind, mask in kinds.items():
        by_order, moved = ((x * mask).sum(-2) @ orders for x in (change, change.abs()))
        rows += [
            (sample, kind, order, float(by_order[sample, order]), float(moved[sample, order]))
            for sample in range(len(by_order))
            for order in range(1, before.n + 1)
        ]
    constant = after.bias - before.bias
    noise = after.full - before.full - constant - change.sum((-2, -1))
    for kind, values in (("constant", constant), ("noise", noise)):
        rows += [(sample, kind, 0, x, abs(x)) for sample, x in enumerate(values.tolist())]
    return pd.DataFrame(rows, columns=["sample", "kind", "order", "change", "moved"])


def change_table(changes: pd.DataFrame) -> pd.DataFrame:
    """Return each kind of change by groups of orders, averaged over samples.

    Args:
        changes: of `interaction_changes`.

    Returns:
        Columns kind, orders, change, low95, high95 (log odds); orders are "none" for the constant
        and the noise, and kind and orders "all" for the whole change.
    """
    groups = order_groups(int(changes["order"].max()))
    names = {m: name for name, orders in groups.items() for m in orders}
    orders = changes["order"].map({0: "none", **names})
    whole = changes.assign(kind="all", orders="all")
    rows = [
        (*about, *interval(torch.tensor(some.groupby("sample")["change"].sum().to_numpy())))
        for table in (changes.assign(orders=orders), whole)
        for about, some in table.groupby(["kind", "orders"], sort=False)
    ]
    return pd.DataFrame(rows, columns=["kind", "orders", "change", "low95", "high95"])


def moved_table(changes: pd.DataFrame) -> pd.DataFrame:
    """Return how much each kind of change moves, up and down taken together, most first.

    Args:
        changes: of `interaction_changes`.

    Returns:
        Columns kind, moved, low95, high95 (log odds a sample), without the noise.
    """
    known = changes[changes["kind"] != "noise"].groupby(["kind", "sample"])["moved"].sum()
    rows = [
        (kind, *cut(interval(torch.tensor(values.to_numpy())), 0))
        for kind, values in known.groupby("kind", sort=False)
    ]
    table = pd.DataFrame(rows, columns=["kind", "moved", "low95", "high95"])
    return table.sort_values("moved", ascending=False, ignore_index=True)
