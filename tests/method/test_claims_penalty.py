"""Rules about the penalty, on simulated trainings of which the truth is known."""

import collections

import numpy as np
import pandas as pd
import pytest

from symgen.method import claims

RULES = (claims.penalty_power, claims.penalty_accuracy, claims.penalty_control)
MEASURE = {"penalty_power": "power", "penalty_accuracy": "accuracy", "penalty_control": "power"}


def trainings(seed, seeds=8, spread=0.08, noise=0.02, skew=False, **ahead):
    """Trainings whose seeds differ by so much, and whose arms are ahead by so much on average."""
    generator, arms = np.random.default_rng(seed), ("plain", "penalty", "random", "decay")
    shape = seeds, len(arms), 2
    draw = generator.exponential(1, shape) - 1 if skew else generator.normal(size=shape)
    found = 0.5 + spread * generator.normal(size=(seeds, 1, 2)) + noise * draw
    found += np.array([ahead.get(arm, 0.0) for arm in arms])[:, None]
    places = pd.MultiIndex.from_product([range(seeds), arms], names=["seed", "arm"])
    table = pd.DataFrame(found.reshape(-1, 2), places, ["power", "accuracy"]).reset_index()
    return table.iloc[generator.permutation(len(table))]


def verdicts(rule, count, **truth):
    return collections.Counter(rule(trainings(seed, **truth)).verdict for seed in range(count))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("seeds", "skew"), [(8, False), (8, True), (4, False)])
def test_false_alarms_are_rare_where_nothing_differs(rule, seeds, skew):
    found = verdicts(rule, 200, seeds=seeds, skew=skew)
    assert found["shown"] + found["opposite"] <= 10, found


@pytest.mark.parametrize("rule", RULES)
def test_with_eight_seeds_a_lead_of_eight_points_is_mostly_shown(rule):
    """Each training 2 points off at random: found 17 times in 20; six points 7 times in 10."""
    assert verdicts(rule, 100, penalty=0.08)["shown"] >= 85
    assert verdicts(rule, 100, penalty=-0.08)["opposite"] >= 85
    assert verdicts(rule, 100, penalty=0.06)["shown"] >= 70


@pytest.mark.parametrize("rule", RULES)
def test_a_lead_at_the_margin_is_seldom_shown(rule):
    margin = rule(trainings(0)).contrasts[0].margin
    assert margin == (0.005 if rule is claims.penalty_accuracy else 0.02)
    found = verdicts(rule, 200, penalty=margin)
    assert found["shown"] <= 10, found
    assert verdicts(rule, 50, penalty=margin / 4, noise=margin / 20)["absent"] >= 48


def test_only_the_control_asks_for_more_than_the_random_penalty_gives():
    both = {"penalty": 0.1, "random": 0.1, "noise": 0.01}
    assert verdicts(claims.penalty_power, 50, **both)["shown"] >= 48
    assert verdicts(claims.penalty_accuracy, 50, **both)["shown"] >= 48
    assert verdicts(claims.penalty_control, 50, **both)["shown"] == 0
    assert verdicts(claims.penalty_control, 50, random=-0.1, noise=0.01)["shown"] >= 48


@pytest.mark.parametrize("rule", RULES)
def test_trainings_are_paired_by_seed_and_are_what_is_counted(rule):
    table = trainings(0, spread=5.0, noise=0.001, penalty=0.06)
    judged = rule(table)
    assert judged.verdict == "shown" and judged.samples == 8 and judged.unit == "trainings"
    wide = table.pivot(index="seed", columns="arm", values=MEASURE[rule.__name__])
    other = "random" if rule is claims.penalty_control else "plain"
    mean = (wide["penalty"] - wide[other]).mean()
    assert judged.contrasts[0].value.mean == pytest.approx(mean)


@pytest.mark.parametrize("rule", RULES)
def test_one_seed_and_unknown_values_are_not_tested(rule):
    assert rule(trainings(0, seeds=1)).verdict == "not tested"
    unknown = trainings(0).assign(power=np.nan, accuracy=np.nan)
    judged = rule(unknown)
    assert judged.verdict == "not tested" and judged.samples == 0
