"""Measures of extracted interactions, by their definitions."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st
from outputs import planted

import symgen
from symgen.interactions import Interactions
from symgen.method import extraction
from symgen.method.transfer import interaction_count
from symgen.transforms import and_or_outputs

seeds = st.integers(0, 10**6)


def noise_values(n: int, seed: int, samples: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


def planted_case(n: int, samples: int, count: int = 2) -> tuple[torch.Tensor, Interactions]:
    """Outputs of planted logic, and exactly that logic."""
    ands, ors, v = map(
        torch.stack, zip(*(planted(n, count, s) for s in range(samples)), strict=True)
    )
    size = ands.abs().sum(-1) + ors.abs().sum(-1)
    return v, Interactions(ands, ors, v[:, 0], size, 0 * size, v[:, -1])


def test_the_largest_miss_is_that_of_the_worst_state():
    v = noise_values(3, 0)
    exact = Interactions.from_moebius(v)
    assert extraction.largest_miss(v, exact).abs().max() < 1e-12
    w = v.clone()
    w[1, 4] += 0.5
    w[1, 2] -= 0.7
    assert extraction.largest_miss(w, exact).tolist() == pytest.approx([0, 0.7, 0], abs=1e-12)
    assert extraction.largest_miss(w[1], exact[1]) == pytest.approx(0.7)


@given(seed=seeds)
def test_what_is_explained_is_one_less_the_error_over_the_variance(seed):
    v = noise_values(4, seed)
    inter = Interactions.from_moebius(v)
    found = extraction.explained(v, inter)
    for i in range(3):
        kept = inter.and_[i] * (inter.and_[i].abs() > 0.05 * inter.and_[i].abs().max())
        d = inter.bias[i] + symgen.zeta(kept)
        wanted = 1 - float(((v[i] - d) ** 2).mean() / v[i].var(correction=0))
        assert float(found[i]) == pytest.approx(wanted, abs=1e-9)


def test_all_is_explained_where_all_is_salient_and_nothing_where_nothing_changes():
    v, inter = planted_case(5, 3)
    assert extraction.explained(v, inter).tolist() == pytest.approx([1, 1, 1])
    constant = torch.full((2, 8), 0.1, dtype=torch.float64)
    assert extraction.explained(constant, Interactions.from_moebius(constant)).isnan().all()
    # A model of the wrong logic is worse than the mean.
    assert (extraction.explained(v, dataclasses.replace(inter, and_=-inter.and_)) < 0).any()
    table = extraction.explained_table({"a": (v, inter), "b": (v[:1] + 1, inter[:1])})
    assert table["study"].tolist() == ["a", "a", "a", "b"] and table["sample"].tolist() == [
        0,
        1,
        2,
        0,
    ]
    wanted = [1, 1, 1, float(extraction.explained(v[0] + 1, inter[0]))]
    assert table["explained"].tolist() == pytest.approx(wanted)
    assert wanted[-1] < 1


def test_salient_interactions_are_counted_with_both_types():
    _, inter = planted_case(5, 4, count=3)
    assert extraction.salient_count(inter).tolist() == [6] * 4
    assert extraction.salient_share(inter).tolist() == pytest.approx([6 / (2 * 31 - 5)] * 4)
    nothing = Interactions.from_moebius(torch.zeros(2, 8))
    assert extraction.salient_count(nothing).tolist() == [0, 0]
    assert extraction.salient_share(nothing).isnan().all()
    table = extraction.count_table({"a": {"x": inter, "y": nothing}, "b": {"x": inter[:2]}})
    assert table["study"].tolist() == ["x"] * 6 + ["y"] * 2
    assert table.groupby(["model", "study"]).size().to_dict() == {
        ("a", "x"): 4, ("a", "y"): 2, ("b", "x"): 2,
    }  # fmt: skip
    mine = table[(table["model"] == "a") & (table["study"] == "x")]
    assert mine["salient"].tolist() == [6] * 4 and mine["sample"].tolist() == [0, 1, 2, 3]
    assert mine["held"].tolist() == interaction_count(inter).tolist()


def test_labels_of_sets_say_the_type():
    table = pd.DataFrame({"type": ["and", "or", "and"], "members": ["0, 2", "a, b, c", "x"]})
    assert extraction.set_labels(table) == ["{0 ∧ 2}", "{a ∨ b ∨ c}", "{x}"]


def test_splits_of_one_output():
    v = noise_values(4, 1)[0]
    splits = {"AND": Interactions.from_moebius(v, 1), "OR": Interactions.from_moebius(v, 0)}
    splits["wrong"] = dataclasses.replace(splits["AND"], bias=v[0] + 0.25)
    table = extraction.split_table(v, splits, top=2).set_index("split")
    assert table["strength"].tolist() == pytest.approx(
        [float(s.objective) for s in splits.values()]
    )
    assert table["miss"].tolist() == pytest.approx([0, 0, 0.25], abs=1e-12)
    for name, inter in splits.items():
        assert table.salient[name] == sum(int(x.sum()) for x in inter.salient())
        best = inter.effects.abs().flatten().argsort(descending=True)[:2]
        effects = inter.effects.flatten()[best].tolist()
        told = [text.split("} ") for text in table.strongest[name].split("; ")]
        assert [float(t[1]) for t in told] == pytest.approx(effects, abs=0.005)
        assert [t[0].count("∧") + t[0].count("∨") + 1 for t in told] == [
            (int(b) % 16).bit_count() for b in best
        ]


def test_a_network_that_is_the_rule_follows_it():
    v, inter = planted_case(6, 4)
    table = extraction.rule_table(v, inter, 3 * v)
    assert table["correlation"].tolist() == pytest.approx([1] * 4)
    assert table["share"].tolist() == pytest.approx([1] * 4)
    turned = extraction.rule_table(-v, inter, v)
    assert turned["correlation"].tolist() == pytest.approx([-1] * 4)


def test_the_share_on_the_variables_of_a_rule_and_its_chance():
    n = 4
    rule = torch.zeros(1, 2**n, dtype=torch.float64)
    rule[0, [s for s in range(2**n) if s & 0b0011 == 0b0011]] = 2.0  # 0 AND 1
    effects = torch.zeros(2, 1, 2**n, dtype=torch.float64)
    effects[0, 0, 0b0001], effects[0, 0, 0b0101], effects[1, 0, 0b0011] = 1.0, -2.0, 3.0
    effects[1, 0, 0b1111] = 1e-3  # not salient
    one = torch.ones(1, dtype=torch.float64)
    inter = Interactions(effects[0], effects[1], 0 * one, 6 * one, 0 * one, one)
    [row] = extraction.rule_table(inter.predict(), inter, rule).itertuples()
    assert row.share == pytest.approx(4 / 6)
    # Half of the 4 single variables are its own, and one of the 6 pairs.
    assert row.chance == pytest.approx((1 * 2 / 4 + 5 * 1 / 6) / 6)
    wanted = np.corrcoef(inter.predict()[0], rule[0])[0, 1]
    assert row.correlation == pytest.approx(wanted)


def test_the_match_of_a_study_is_that_of_its_worst_sample():
    v, inter = planted_case(4, 3)
    w = v.clone()
    w[1, 5] += 0.1 * inter.total_effect[1]
    table = extraction.match_table({"a": (v, inter), "b": (w, inter), "c": (w[:1], inter[:1])})
    assert table["samples"].tolist() == [3, 3, 1]
    assert table["miss"].tolist() == pytest.approx([0, 0.1, 0], abs=1e-12)
    dead = torch.zeros(2, 8, dtype=torch.float64)
    assert (
        extraction.match_table({"d": (dead, Interactions.from_moebius(dead))})["miss"].isna().all()
    )


def test_effects_stand_beside_those_of_another_model():
    effects = torch.zeros(2, 2, 8, dtype=torch.float64)
    effects[0, 0, 0b011], effects[0, 1, 0b110], effects[0, 0, 0b100] = 2.0, -1.0, 0.01
    effects[1, 0, 0b011], effects[1, 1, 0b110], effects[1, 1, 0b011] = -0.5, 0.01, 4.0
    zero = torch.zeros(2, dtype=torch.float64)
    inter = Interactions(effects[:, 0], effects[:, 1], zero, zero, zero, zero)
    table = extraction.effects_beside(inter[0], inter[1], ["a", "b", "c"])
    assert table.values.tolist() == [["{a ∧ b}", 2.0, -0.5, True], ["{b ∨ c}", -1.0, 0.01, False]]
    nothing = Interactions.from_moebius(torch.zeros(8))
    assert extraction.effects_beside(nothing, inter[1]).empty


@pytest.mark.filterwarnings("error")
def test_without_a_rule_or_an_output_there_is_nothing_to_compare():
    v, inter = planted_case(4, 2)
    table = extraction.rule_table(v, inter, torch.zeros_like(v))
    assert table[["correlation", "share", "chance"]].isna().all(axis=None)
    dead = torch.zeros_like(v)
    table = extraction.rule_table(dead, Interactions.from_moebius(dead), v)
    assert table[["correlation", "share", "chance"]].isna().all(axis=None)


def test_transfer_is_held_against_the_variables_of_a_rule():
    """Two effects of the rule, of which one transfers; two others, of which one does."""
    rule = and_or_outputs(torch.zeros(1, 16).double().index_fill(1, torch.tensor([1, 3]), 1.0),
                          torch.zeros(1, 16).double())  # fmt: skip
    effects = torch.zeros(1, 16).double()
    effects[0, [1, 3, 4, 6]] = torch.tensor([3.0, 1.0, 2.0, 4.0]).double()
    inter = Interactions.from_moebius(and_or_outputs(effects, torch.zeros_like(effects)))
    kept = torch.zeros(1, 16).double()
    kept[0, [1, 4]] = 1.0
    baseline = Interactions.from_moebius(and_or_outputs(kept, torch.zeros_like(kept)))
    found = extraction.rule_transfer(inter, [baseline], rule)
    expected = {"precision": 3 / 5, "base": 4 / 10, "recall": 3 / 4, "false": 2 / 6}
    assert {k: float(found[k]) for k in expected} == pytest.approx(expected)
    nothing = extraction.rule_transfer(inter, [baseline], torch.zeros_like(rule))
    assert all(x.isnan().all() for x in nothing.values())


def test_a_planted_rule_is_held_against_relabelled_baselines():
    """Target and baseline are the same: all transfers, and of relabelled ones what can be counted.

    A single variable keeps its label in one of four cases; a pair of four variables is met by
    itself or by the other pair in two of six.
    """
    effects, zero = torch.zeros(1, 16).double(), torch.zeros(1, 16).double()
    effects[0, [0b0001, 0b0011, 0b1100]] = torch.tensor([3.0, 1.0, 2.0]).double()
    inter = Interactions.from_moebius(and_or_outputs(effects, zero))
    rule = and_or_outputs(effects.index_fill(1, torch.tensor([0b1100]), 0.0), zero)
    found = extraction.rule_transfer(inter, [inter], rule, draws=600)
    found = {k: float(x) for k, x in found.items()}
    assert (found["recall"], found["false"]) == (1, 1)
    assert found["precision"] == pytest.approx(found["base"])
    assert found["recall by chance"] == pytest.approx((3 / 4 + 1 / 3) / 4, abs=0.04)
    assert found["false by chance"] == pytest.approx(1 / 3, abs=0.06)


def test_mask_values_are_compared_with_the_first():
    v, inter = planted_case(6, 3)
    other = dataclasses.replace(inter, and_=-inter.and_)
    cases = {"usual": inter, "same": dataclasses.replace(inter, bias=v[:, 0] + 1), "signs": other}
    table = extraction.mask_value_table(cases)
    assert table.groupby("mask value", sort=False).size().to_dict() == dict.fromkeys(cases, 9)
    first, second, last = table["measure"].unique()
    value = table.set_index(["mask value", "measure"]).sort_index()["value"]
    assert value["same", first].tolist() == pytest.approx((v[:, 0] + 1).tolist())
    assert value["signs", second].tolist() == extraction.salient_count(other).tolist()
    assert value["usual", last].tolist() == value["same", last].tolist() == [1, 1, 1]
    stays = inter.or_.abs().sum(-1) / inter.objective
    assert value["signs", last].tolist() == pytest.approx(stays.tolist())
    chance = table.set_index(["mask value", "measure"]).sort_index()["chance"]
    assert (chance["same", last] < 0.5).all() and (chance["same", last] >= 0).all()
    assert chance["usual", last].isna().all() and chance["same", first].isna().all()
