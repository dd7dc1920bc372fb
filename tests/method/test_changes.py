"""What changes while a model is tuned: parts add up, groups and shares are those by definition."""

import numpy as np
import pandas as pd
import pytest
import torch

from symgen import Dynamics, chance_level, generalization_power, interval, order_spectrum, transfer
from symgen.method.changes import (
    change_table,
    interaction_changes,
    moved_table,
    order_groups,
    share_table,
    strength_of,
    strength_table,
)
from symgen.method.statistics import cut
from symgen.split.sparsify import sparsify


@pytest.fixture(scope="module")
def models():
    """Outputs of two models on three prompts, and their interactions."""
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64).cumsum(-1)
    return v, [sparsify(part, noise=0.02) for part in v]


def test_changes_add_up(models):
    v, (before, after) = models
    table = interaction_changes(before, after)
    whole = table.groupby("sample")["change"].sum()
    np.testing.assert_allclose(whole, (v[1] - v[0])[:, -1], atol=1e-12)
    was, now = (torch.stack(i.salient(), -2) for i in (before, after))
    new = ((after.effects - before.effects) * (now & ~was)).sum((-2, -1))
    found = table[table.kind == "new"].groupby("sample")["change"].sum()
    np.testing.assert_allclose(found, new, atol=1e-12)
    sizes = (after.effects - before.effects).abs().sum((-2, -1)) + (after.bias - before.bias).abs()
    moved = table[table.kind != "noise"].groupby("sample")["moved"].sum()
    np.testing.assert_allclose(moved, sizes, atol=1e-12)
    # Noise is what the logical models leave out of the change of v(N).
    missed = (v[1] - v[0] - after.predict() + before.predict())[:, -1]
    np.testing.assert_allclose(table[table.kind == "noise"].change, missed, atol=1e-12)
    assert not interaction_changes(before, before).change.any()
    with pytest.raises(ValueError, match=r"before has shape \(3, 16\) and after \(2, 16\)"):
        interaction_changes(before, after[:2])


def test_changes_by_orders_are_averages_over_samples(models):
    v, (before, after) = models
    changes = interaction_changes(before, after)
    table = change_table(changes).set_index(["kind", "orders"])
    assert set(table.index.get_level_values("orders")) == {"1-2", "3-4", "none", "all"}
    whole = interval((v[1] - v[0])[:, -1])
    assert tuple(table.loc[("all", "all")]) == pytest.approx(tuple(whole))
    lost = changes[(changes.kind == "lost") & changes.order.isin([3, 4])]
    expected = interval(torch.tensor(lost.groupby("sample").change.sum().to_numpy()))
    assert tuple(table.loc[("lost", "3-4")]) == pytest.approx(tuple(expected))
    parts = table.drop(index=("all", "all"))["change"]
    assert parts.sum() == pytest.approx(whole.mean)


def test_what_moves_most_comes_first_and_noise_is_no_change(models):
    changes = interaction_changes(*models[1])
    table = moved_table(changes)
    assert set(table["kind"]) == {"new", "lost", "flipped", "strength", "small", "constant"}
    assert table["moved"].is_monotonic_decreasing
    row = table[table["kind"] == "flipped"].iloc[0]
    moved = changes[changes.kind == "flipped"].groupby("sample").moved.sum()
    expected = cut(interval(torch.tensor(moved.to_numpy())), 0)
    assert tuple(row[["moved", "low95", "high95"]]) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
    ("n", "names"),
    [(1, ["1"]), (2, ["1-2"]), (3, ["1-2", "3"]), (6, ["1-2", "3-5", "6"]),
     (10, ["1-2", "3-5", "6-10"]), (12, ["1-2", "3-5", "6-12"])],
)  # fmt: skip
def test_groups_of_orders_are_those_that_there_are(n, names):
    groups = order_groups(n)
    assert list(groups) == names
    assert [m for orders in groups.values() for m in orders] == list(range(1, n + 1))


def test_strength_by_orders(models):
    inters = models[1]
    table = strength_table([0, 7], inters).set_index(["step", "label"])
    for step, inter in zip((0, 7), inters, strict=True):
        by_order = order_spectrum(inter).abs().sum(-2)
        for label, orders in (("orders 1-2", [1, 2]), ("orders 3-4", [3, 4])):
            part = by_order[:, orders].sum(-1)
            row = table.loc[(step, label)]
            expected = tuple(cut(interval(part), 0))
            assert tuple(row[["mean", "low95", "high95"]]) == pytest.approx(expected)
            assert row["share"] == pytest.approx(float((part / by_order.sum(-1)).mean()))
        assert torch.equal(strength_of(inter, (1, 2, 9)), strength_of(inter, (1, 2)))
    g = transfer(*inters)
    kept = order_spectrum(inters[0], g).abs().sum(-2)[:, 3]
    assert torch.equal(strength_of(inters[0], [3], g), kept)


def test_shares_of_several_baselines(models):
    inters = models[1]
    records = pd.DataFrame({"step": [0, 7], "train_loss": 1.0, "test_loss": 1.0})
    other = Dynamics([0, 7], inters, [inters[0]], records)
    twin = Dynamics([0, 7], inters, [inters[1]], records)
    table = share_table({"other": other, "twin": twin}).set_index(["label", "step"])
    assert table.index.get_level_values("label").unique().tolist() == [
        "H, other", "chance, other", "H, twin", "chance, twin"
    ]  # fmt: skip
    assert table.loc[("H, other", 0), "mean"] == table.loc[("H, twin", 7), "mean"] == 1
    power = generalization_power(inters[1], transfer(inters[1], inters[0]))
    expected = interval(power, share=True)
    assert tuple(table.loc[("H, other", 7)]) == pytest.approx(tuple(expected))
    chance = chance_level(inters[1], inters[0], draws=10).mean()
    assert table.loc[("chance, other", 7), "mean"] == pytest.approx(float(chance))
