"""Averages over all choices of baselines are those of the choices, one by one."""

import itertools

import numpy as np
import pytest
import torch
from drawn_effects import drawn, interactions, shared
from hypothesis import given, settings, strategies as st

import symgen
from symgen.method import witnesses
from symgen.method.witnesses import Witnesses, share_of_choices

ENOUGH_OF = {"any": lambda hits, k: hits >= 1, "a majority": lambda hits, k: 2 * hits > k,
             "all": lambda hits, k: hits == k}  # fmt: skip


def case(seed, count=3, samples=4, n=4):
    generator = torch.Generator().manual_seed(seed)
    target = drawn(generator, samples, n, rates=(0, 0.6, 0.4, 0.3, 0.3))
    rates = (0, 0.5, 0.3, 0.3, 0.3)
    return target, [shared(generator, target, 0.4, rates) for _ in range(count)]


def hits_of(target, baselines):
    """How many baselines share each interaction, by definition."""
    return sum(torch.stack(symgen.transfer(target, b), -2) for b in baselines)


@pytest.mark.parametrize("rule", list(witnesses.RULES))
@pytest.mark.parametrize("total", [1, 2, 4, 5])
def test_shares_of_choices_are_counted(rule, total):
    for k in range(1, total + 1):
        choices = list(itertools.combinations(range(total), k))
        for c, share in enumerate(share_of_choices(total, k, rule).tolist()):
            enough = [ENOUGH_OF[rule](sum(i < c for i in some), k) for some in choices]
            assert share == pytest.approx(np.mean(enough))


def test_unknown_rules_and_numbers_are_refused():
    with pytest.raises(ValueError, match="any, a majority, all"):
        share_of_choices(3, 2, "most")
    for k in (0, 4):
        with pytest.raises(ValueError, match="k must be 1 to 3"):
            share_of_choices(3, k)


@given(seed=st.integers(0, 999), rule=st.sampled_from(list(witnesses.RULES)))
@settings(max_examples=30)
def test_power_is_the_average_over_all_choices(seed, rule):
    target, baselines = case(seed)
    found = Witnesses.of(target, baselines, draws=1)
    assert torch.allclose(found.total, symgen.order_spectrum(target))
    for k in found.numbers:
        each = []
        for some in itertools.combinations(baselines, k):
            enough = ENOUGH_OF[rule](hits_of(target, some), k).double()
            each.append(symgen.generalization_power(target, tuple(enough.unbind(-2)), [1, 3]))
        assert torch.allclose(
            found.power(k, rule, orders=[1, 3]), sum(each) / len(each), equal_nan=True
        )


def test_what_is_shared_by_exactly_so_many_is_a_share_of_the_salient_strength():
    target, baselines = case(3)
    found, hits = Witnesses.of(target, baselines, draws=1), hits_of(target, baselines)
    size = target.effects.abs() * torch.stack(target.salient(), -2)
    parts = [(size * (hits == c)).sum((-2, -1)) for c in range(4)]
    for c in range(4):
        assert torch.allclose(found.hits(c), parts[c] / sum(parts))
    assert torch.allclose(found.lone(), parts[1] / (parts[0] + parts[1]))


def test_chance_is_the_average_over_relabellings_that_all_baselines_share():
    target, baselines = case(5)
    found = Witnesses.of(target, baselines, draws=3, seed=7)
    generator = torch.Generator().manual_seed(7)
    each = []
    for _ in range(3):
        labels = torch.randperm(4, generator=generator).tolist()
        renamed = [b.relabelled(labels) for b in baselines]
        each.append(symgen.generalization_power(target, symgen.transfer(target, renamed[:1])))
        each[-1] = Witnesses.of(target, renamed, draws=1).power(2)
    assert torch.allclose(found.power(2, chance=True), sum(each) / 3)
    alike = Witnesses.of(target, [baselines[0]] * 3, draws=5)
    # Copies stay copies by chance, too: all of them share an interaction, or none.
    assert all(float(alike.hits(c, chance=True).max()) == 0 for c in (1, 2))
    assert float(alike.hits(3, chance=True).max()) > 0


def test_orders_are_compared_where_enough_samples_have_them():
    effects = torch.zeros(6, 2, 16, dtype=torch.float64)
    effects[:, 0, [0b0001, 0b1111]] = 1.0
    effects[:5, 0, 0b0011] = 1.0
    effects[:4, 1, 0b0111] = 1.0
    target = interactions(effects)
    assert Witnesses.of(target, [target, target], draws=1).orders == [1, 2]
    few = Witnesses.of(target[:2], [target[:2]] * 2, draws=1)
    assert few.orders == [1, 2, 3]


def test_growth_and_what_lies_above_chance():
    target, baselines = case(11, samples=8)
    found = Witnesses.of(target, baselines, draws=10)
    gain, above = found.gain(1, 3, [1])
    parts = [found.power(3, orders=[1], chance=c) - found.power(1, orders=[1], chance=c)
             for c in (False, True)]  # fmt: skip
    assert gain.mean == pytest.approx(float(parts[0].nanmean()))
    assert above.mean == pytest.approx(float((parts[0] - parts[1]).nanmean()))
    assert above.high - above.low == pytest.approx(gain.high - gain.low)
    assert 0 <= gain.low <= gain.mean <= gain.high <= 1


def test_samples_without_interactions_or_total_effect_have_no_power():
    target, baselines = case(2)
    dead = interactions(target.effects * torch.tensor([0.0, 1, 1, 1])[:, None, None])
    assert Witnesses.of(dead, baselines, draws=1).power(2).isnan().tolist() == [True] + [False] * 3
    flat = interactions(target.effects, full=0.0)
    found = Witnesses.of(flat, baselines, draws=1)
    assert found.power(1).isnan().all() and np.isnan(found.gain(1, 2)[1].mean)
    with pytest.raises(ValueError, match="draws"):
        Witnesses.of(target, baselines, draws=0)
    with pytest.raises(ValueError, match="same samples, same variables"):
        Witnesses.of(target, [baselines[0][:2]])


def test_tables_have_a_row_for_every_number_choice_order_and_rule():
    cases = {"a": case(0, count=3, samples=6), "b": case(1, count=2, samples=6)}
    found = {label: Witnesses.of(*pair, draws=2) for label, pair in cases.items()}

    power = witnesses.power_by_number(found)
    assert list(zip(power.label, power.baselines, strict=True)) == [
        ("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]  # fmt: skip
    assert power.lift.tolist() == pytest.approx((power.power - power.chance).tolist())
    assert power.power[1] == pytest.approx(float(found["a"].power(2).mean()))
    assert power.lift[1] == pytest.approx(float(found["a"].lift(2).mean()))
    widths = [power[f"{name}_high95"] - power[f"{name}_low95"] for name in ("power", "lift")]
    assert widths[0].tolist() == pytest.approx(widths[1].tolist())

    choices = witnesses.power_of_choices(cases)
    assert choices.groupby(["label", "baselines"]).size().tolist() == [3, 3, 1, 2, 1]
    means = choices.groupby(["label", "baselines"]).power.mean()
    assert means.tolist() == pytest.approx(power.power.tolist())

    steps = witnesses.gains_by_number(found)
    assert steps.step.tolist() == ["1 to 2", "2 to 3", "1 to 2"]
    assert steps.gain.tolist() == pytest.approx(power.power.diff()[[1, 2, 4]].tolist())
    assert steps.chance.tolist() == pytest.approx(power.chance.diff()[[1, 2, 4]].tolist())

    orders = witnesses.gains_by_order(found)
    assert orders[orders.label == "a"].step.tolist() == found["a"].orders
    assert orders.gain[0] == pytest.approx(found["a"].gain(1, 3, [1])[0].mean)

    hits = witnesses.strength_by_hits(found)
    assert hits.hits.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert hits.groupby("label")[["share", "chance"]].sum().to_numpy() == pytest.approx(1.0)

    rules = witnesses.lift_by_rule(found).set_index(["label", "rule", "baselines"]).lift
    assert rules["a", "any", 1] == rules["a", "all", 1] == rules["a", "a majority", 1]
    assert rules["a", "a majority", 2] == rules["a", "all", 2] != rules["a", "any", 2]
