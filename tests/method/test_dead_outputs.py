"""Where an output never moves there is nothing to measure, and no measure gives a number."""

import math
import warnings

import pandas as pd
import pytest
import torch

import symgen
from symgen.interactions import Interactions
from symgen.masking.extraction import split_outputs
from symgen.method import conditions, extraction, removal, spectra
from symgen.method.agreement import Agreement
from symgen.method.dynamics import Dynamics
from symgen.method.extractors import excess
from symgen.method.transfer import lift, pooled_power
from symgen.method.witnesses import Witnesses
from symgen.split.sparsify import DeadOutputWarning


def outputs(seed):
    """Of three samples: one that never moves, one with v[N] = v[0], and one as usual."""
    v = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v[0] = 0.7
    v[1, -1] = v[1, 0]
    return v


@pytest.fixture
def inter():
    with pytest.warns(DeadOutputWarning, match="2 of 3 samples: 0, 1"):
        return split_outputs(outputs(0), progress=False)


@pytest.fixture
def other():
    alive = outputs(1)
    alive[:, -1] = alive[:, 0] + 2.0
    return split_outputs(alive, progress=False)


def test_a_dead_output_is_warned_about_once_each_time_also_where_it_is_found_again():
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            split_outputs(outputs(2), progress=False)
        assert [x.category for x in caught] == [DeadOutputWarning]


def test_what_is_a_share_of_the_total_effect_is_not_defined_for_dead_outputs(inter, other):
    similar = symgen.transfer(inter, other, metric="similarity")
    for g in (symgen.transfer(inter, other), similar):
        assert symgen.generalization_power(inter, g).isnan().tolist() == [True, True, False]
        assert math.isnan(pooled_power(inter[:2], tuple(x[:2] for x in g)).mean)
    assert torch.stack(similar)[:, :2].isnan().all()
    assert symgen.chance_level(inter, other, draws=2).isnan().tolist() == [True, True, False]
    assert lift(inter, other).isnan().tolist() == [True, True, False]
    assert Witnesses.of(inter, [other], draws=2).power(1).isnan().tolist() == [True, True, False]
    alone = Witnesses.of(inter[:2], [other[:2]], draws=2)
    assert not alone.orders and alone.hits(1).isnan().all() and alone.lone().isnan().all()
    v = outputs(0)
    assert extraction.match_table({"dead": (v[:2], inter[:2])})["miss"].isna().all()


def test_what_needs_strength_is_not_defined_without_any(inter, other):
    spectrum = symgen.order_spectrum(inter)
    shares = [
        symgen.interaction_count(inter), spectra.mean_order(spectrum),
        spectra.uncancelled(spectrum),
        *spectra.order_thirds(spectrum), extraction.salient_share(inter),
        symgen.jaccard(spectrum, spectrum), extraction.explained(outputs(0), inter),
        conditions.strength_above(inter.and_)[:, 1],
        conditions.downward(conditions.average_output(outputs(0))),
        conditions.never_falls(conditions.average_output(outputs(0))),
    ]  # fmt: skip
    for values in shares:
        assert values.isnan().tolist() == [True, False, False]
    assert spectra.order_distribution(spectrum[:1]).isnan().all()
    agreed = Agreement.of(inter, other, other, other, draws=2)
    assert agreed.sets()[0].isnan() and agreed.spectra()[0].isnan()
    nothing = Interactions.from_moebius(torch.zeros(3, 16))
    assert excess([dynamics(inter)], [dynamics(inter)], 0) == 1
    assert math.isnan(excess([dynamics(inter)], [dynamics(nothing)], 0))


def dynamics(*of):
    records = pd.DataFrame({"step": range(len(of)), "epoch": 0.0})
    return Dynamics([*range(len(of))], [*of], [of[0]], records)


def test_curves_have_no_share_where_there_is_none(inter, other):
    records = pd.DataFrame({"step": [0, 1], "epoch": [0, 1]})
    followed = Dynamics([0, 1], [inter, other], [other], records, nulls={"untrained": [other]})
    power = ("power", "power_one", "chance", "lift", "untrained")
    strength = ("count", "mean_order", "orders_low", "orders_middle", "orders_high", "uncancelled")
    for name in power:
        assert followed.curves[name][:, 0].isnan().tolist() == [True, True, False], name
    for name in strength:
        assert followed.curves[name][:, 0].isnan().tolist() == [True, False, False], name
    # Nothing adds up to 0 log odds, which is a number.
    assert followed.curves["generalizable"][0, 0] == followed.curves["non_generalizable"][0, 0] == 0
    assert not any(followed.curves[name][:, 1].isnan().any() for name in power + strength)


def test_removal_without_a_transfer_leaves_no_output_and_no_answer(inter, other):
    g = symgen.transfer(inter, other, metric="similarity")
    found = removal.removed_outputs(inter, g, draws=2)
    for name in (removal.REMOVED, "random", "permuted"):
        assert found[name][:, :2].isnan().all() and not found[name][:, 2].isnan().any(), name
    before, after = found["nothing"][0], found[removal.REMOVED][0]
    assert math.isnan(removal.shrinkage(before, after))
    table = removal.answer_table({"test": (before, after)}, 10)
    assert table.equals(removal.answer_table({"test": (before[2:], after[2:])}, 10))
