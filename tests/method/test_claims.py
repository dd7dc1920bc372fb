"""Verdicts, and every rule on numbers for which its claim is true, and false."""

import ast
import inspect
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from method.examples import drawn, trainings, with_effects
from scipy import stats

import symgen
from symgen.method import claims
from symgen.method.statistics import Contrast, judge, verdict, without_verdict
from symgen.method.training_curves import learned
from symgen.transforms import interaction_order

LISTED = pd.read_csv(Path(__file__).parents[2] / "data" / "paper" / "claims.csv", index_col="claim")


@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.1, 0.5])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_verdict_is_that_of_two_t_tests(mean, side):
    values = np.random.default_rng(0).normal(mean, 0.2, size=12)
    greater, less = (
        stats.ttest_1samp(side * values, 0.1, alternative=x).pvalue for x in ("greater", "less")
    )
    expected = "holds" if greater < 0.025 else "fails" if less < 0.025 else "open"
    assert judge(values, side, 0.1) == expected


def test_verdicts_without_enough_values_are_open():
    for values in ([], [0.5], [math.nan] * 5, [math.nan, 0.5]):
        assert judge(values, 1, 0.0) == "open"


@pytest.mark.parametrize(
    "verdicts, together",
    [
        ("holds holds", "holds"),
        ("holds fails", "fails"),
        ("open fails", "fails"),
        ("open holds", "open"),
        ("control holds", "holds"),
        ("control", ""),
    ],
)
def test_a_conjunction_holds_if_all_hold_and_fails_if_any_fails(verdicts, together):
    values = {"holds": [1.0, 1.1, 0.9], "fails": [-1.0, -1.1, -0.9], "open": [1.0, -1.0, 0.0]}
    contrasts = [Contrast("x", values.get(v, [1, 1]), v != "control") for v in verdicts.split()]
    assert verdict(contrasts) == together


def test_a_contrast_leaves_out_nan_and_a_control_has_no_verdict():
    one = Contrast("x", torch.tensor([1.0, math.nan, 1.5]), 0)
    assert one.values.tolist() == [1.0, 1.5] and one.interval.mean == 1.25 and one.verdict == ""


# Curves over five checkpoints with which most claims about training are true.
TRUE = {
    "H": [0.3, 0.5, 0.6, 0.55, 0.4],
    "chance": [0.2] * 5,
    "excess": [0.1, 0.3, 0.4, 0.35, 0.2],
    "H_low": [0.5] * 4 + [0.7],
    "H_high": [0.5] * 4 + [0.2],
    "excess_low": [0.3],
    "excess_rest": [0.1],
    "N": [90.0, 60.0, 50.0, 80.0, 120.0],
    "gap": [0.0, 0.0, 0.1, 0.4, 0.9],
    "mean_order": [3.0, 2.5, 2.0, 2.4, 2.8],
    "generalizable": [1.0, 1.5, 2.0, 2.1, 2.2],
    "non_generalizable": [2.0, 1.0, 1.0, 2.0, 4.0],
    "orders_low": [0.2] * 5,
    "orders_middle": [0.6] * 5,
    "orders_high": [0.2] * 5,
    "uncancelled": [0.1] * 5,
    "test_loss": [1.0] * 5,
    "H_similarity": [0.2],
    "strength_low": [1.0, 1.5, 2.0, 2.5, 3.0],
    "strength_middle": [1.0] * 5,
    "strength_high": [1.0, 0.8, 0.7, 0.6, 0.5],
    "removal_train_nothing": [0.1],
    "removal_train_non_generalizable": [0.5],
    "removal_train_random": [0.5],
    "removal_train_permuted": [0.5],
    "removal_train_shrunk": [0.5],
    "removal_test_nothing": [1.0],
    "removal_test_non_generalizable": [1.0],
    "removal_test_random": [1.2],
    "removal_test_permuted": [1.2],
    "removal_test_shrunk": [1.4],
}
RISING = {"H": [0.3, 0.4, 0.5, 0.6, 0.7]}
FALLING = {"H": [0.7, 0.6, 0.5, 0.4, 0.3]}
# Unshared strength is lowest early, and shared strength does not make up for it.
SHORT = {"non_generalizable": [3.0, 1.0, 2.0, 3.0, 4.0]}
# Changes with which a claim is true, changes with which it is not, and the verdict then.
CASES = [
    ("low_orders", {}, {"H_low": [0.2] * 5}, "fails"),
    # Low and high orders are compared over the same samples, if these are known.
    ("low_orders", {}, {"H_lead": [0.0] * 5}, "fails"),
    ("count", {}, {"N": [50.0, 60.0, 70.0, 80.0, 120.0]}, "fails"),
    ("power", {}, RISING, "fails"),
    ("gap", {}, {"gap": [0.0, 0.5, 0.9, 0.4, 0.2]}, "fails"),
    # It opens before H falls.
    ("gap", {}, {"gap": [0.0, 0.2, 0.8, 0.9, 0.95]}, "fails"),
    ("untrained_orders", {}, {"orders_low": [0.9] * 5}, "fails"),
    ("untrained_transfer", {}, {"H": [0.7, 0.8, 0.9, 0.8, 0.7]}, "fails"),
    ("phase_1", {}, {"mean_order": [2.0, 2.5, 3.0, 2.0, 2.0]}, "fails"),
    ("phase_2", {}, {"mean_order": [2.0, 2.5, 3.0, 2.0, 2.0]}, "fails"),
    ("phase_3", {}, {"non_generalizable": [2.0, 1.0, 1.0, 1.0, 1.0]}, "open"),  # there is no t2
    ("removal_gap", {}, {"removal_test_non_generalizable": [1.4]}, "fails"),
    ("removal_train", {}, {"removal_train_non_generalizable": [0.1]}, "fails"),
    ("removal_test", {}, {"removal_test_non_generalizable": [1.1]}, "fails"),
    ("similarity_strict", {}, {"H_similarity": [0.6]}, "fails"),
    ("sft_orders", {}, {"strength_high": [1.0, 1.0, 1.0, 1.0, 1.5]}, "fails"),
    # With five variables there are no orders from 6 on.
    ("sft_orders", {}, {"strength_high": [0.0] * 5}, ""),
    ("sft_share", RISING, FALLING, "fails"),
    ("sft_phase", RISING, {}, "fails"),
    # A saturated H has not left the first phase.
    ("sft_phase", {"H": [0.1, 0.5, 0.6, 0.6, 0.6]}, {}, "fails"),
    ("sft_noise", SHORT, {**SHORT, "generalizable": [1.0, 4.0, 4.0, 4.0, 4.0]}, "fails"),
    ("sft_short", SHORT, {"non_generalizable": [4.0, 3.0, 2.0, 1.0, 0.5]}, "fails"),
]


def table(**changes):
    curves = {**TRUE, **changes}
    parts = []
    for name, curve in curves.items():
        # Zeros stand for what does not exist.
        part = trainings(len(parts), 0.005 if any(curve) else 0.0, **{name: curve})
        parts.append(part if len(curve) > 1 else part.assign(step=4))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("name, true, false, otherwise", CASES)
def test_a_rule_holds_on_true_numbers_and_not_on_false_ones(name, true, false, otherwise):
    rule = getattr(claims, name)
    assert verdict(rule(table(**true))) == "holds"
    assert verdict(rule(table(**false))) == otherwise


def test_every_listed_claim_has_a_short_rule_with_the_listed_margin():
    assert LISTED.index.is_unique
    assert LISTED[["place", "statement", "paper_value", "chapter", "rule"]].notna().to_numpy().all()
    for name in LISTED.index:
        tree = ast.parse(inspect.getsource(getattr(claims, name)))
        docstring, *body = tree.body[0].body
        assert isinstance(docstring.value, ast.Constant), name
        assert sum(x.end_lineno - x.lineno + 1 for x in body) <= 10, name
    for name in {case[0] for case in CASES} - {"sft_short"}:  # it has two margins
        margins = {abs(c.margin) for c in getattr(claims, name)(table()) if c.side}
        assert margins == {abs(LISTED["margin"][name])}, name


def test_controls_of_power_are_shown_as_far_as_they_are_measured():
    assert sum(not c.side for c in claims.power(table())) == 5
    measured = table(untrained=[0.3] * 5, untrained_chance=[0.25], other_sample=[0.35] * 5,
                     agreement=[0.8] * 5)  # fmt: skip
    means = {c.label: c.interval.mean for c in claims.power(measured) if not c.side}
    assert len(means) == 9
    assert means["H above chance, minus the same untrained"] == pytest.approx(0.15, abs=0.01)
    agree = "signs that agree, of those salient in both, minus 1/2"
    assert means[agree] == pytest.approx(0.3, abs=0.01)


def test_h_above_chance_is_shown_as_a_difference_and_as_a_share():
    measured = table(H=[0.4, 0.6, 0.8, 0.6, 0.5], chance=[0.2, 0.2, 0.6, 0.5, 0.4])
    share = [c for c in claims.power(measured) if "/ (1 - chance)" in c.label]
    # (0.8 - 0.6) / 0.4 = 0.5 and (0.6 - 0.2) / 0.8 = 0.5: level, although H - chance halves.
    assert share[0].interval.mean == pytest.approx(0.5 - 0.25, abs=0.03)
    assert share[1].interval.mean == pytest.approx(0.1 / 0.6 - 0.5, abs=0.03)


def test_a_gap_that_opens_evenly_opens_after_an_early_peak_too():
    early = {"H": [0.3, 0.6, 0.5, 0.4, 0.3], "gap": [0.0, 0.2, 0.4, 0.6, 0.8]}
    main, even = (c for c in claims.gap(table(**early)) if "follows the peak" in c.label)
    assert main.verdict == "holds" and main.interval.mean == pytest.approx(0.25, abs=0.01)
    assert "training steps" in even.label and even.interval.mean == pytest.approx(0, abs=0.01)
    # By default H peaks after half of the steps, and 0.8 of 0.9 nats follow.
    even = claims.gap(table())[3]
    assert even.interval.mean == pytest.approx(0.8 / 0.9 - 0.5, abs=0.01)


def test_networks_that_learned_nothing_get_no_verdict():
    measured = table(test_accuracy=[0.1] * 4 + [0.5], guessing=[0.55] * 5)
    assert not learned(measured)
    rows = claims.low_orders(measured)
    plain = without_verdict(rows)
    assert verdict(plain) == "" and plain[0].interval == rows[0].interval


def test_one_dead_training_does_not_decide_finding_1():
    measured = table()
    dead = (measured["quantity"] == "N") & (measured["seed"] == 10)
    measured.loc[dead, "value"] = math.nan
    assert verdict(claims.count(measured)) == "holds"


def test_rules_on_outputs_and_interactions():
    v = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = symgen.Interactions.from_moebius(v)
    assert verdict(claims.matching(v, exact)) == "holds"
    assert verdict(claims.matching(v + 1e-6 * v.abs(), exact)) == "fails"
    few, many = (drawn(3, n=6, share=share) for share in (0.02, 0.8))
    assert verdict(claims.sparsity(few, many)) == "holds"
    assert verdict(claims.sparsity([many, many], [few, few])) == "fails"
    smooth = [(k * interaction_order(6).double() ** 1.05).expand(4, 64) for k in (1.0, 2.0, 3.0)]
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(20, 64, generator=generator, dtype=torch.float64) for _ in range(3)]
    for rule in (claims.condition_1, claims.condition_2, claims.condition_3):
        assert verdict(rule(smooth)) == "holds", rule
        assert verdict(rule(noise)) != "holds", rule


def test_rules_on_the_measure():
    power = pd.DataFrame({1: [0.3, 0.31, 0.3], 2: [0.5, 0.51, 0.52], 4: [0.6, 0.61, 0.6]})
    assert verdict(claims.baselines_two(power, 0 * power)) == "holds"
    assert verdict(claims.baselines_two(power, power)) == "fails"
    one = torch.tensor([[0.0, 3.0, 1.0], [0.0, -1.0, 0.0]])
    other = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -3.0]])
    assert verdict(claims.similarity_shape([one] * 3, [2 * one] * 3, [other] * 3)) == "holds"
    assert verdict(claims.similarity_shape([one] * 3, [other] * 3, [one] * 3)) == "fails"
    agree = pd.DataFrame({"jaccard": [0.7, 0.72], "chance": [0.3, 0.3], "untrained": [0.4, 0.4]})
    assert verdict(claims.cross_validation(agree)) == "holds"
    assert verdict(claims.cross_validation(agree.assign(chance=[0.7, 0.72]))) == "fails"


def test_penalties_are_compared_by_seed():
    arms = {"plain": 0.4, "penalty": 0.5, "random": 0.5, "decay": 0.4}
    rows = [{"seed": seed, "arm": arm, "value": seed + x} for seed in (10, 20, 30)
            for arm, x in arms.items()]  # fmt: skip
    measured = pd.DataFrame(rows).assign(quantity="H")
    main, random, _ = claims.penalty_power(measured)
    assert main.verdict == "holds" and main.interval.mean == pytest.approx(0.1)
    assert random.verdict == "" and random.interval.mean == pytest.approx(0)
    assert verdict(claims.penalty_accuracy(measured.assign(quantity="test_accuracy"))) == "holds"


def test_language_models_share_low_orders():
    effects = drawn(0, samples=8).effects
    order = interaction_order(4)
    low, high = with_effects(effects * (order <= 2)), with_effects(effects * (order > 2))
    # Exactly the effects of orders 1 and 2 are shared, and an untrained copy shares the others.
    target = with_effects(effects)
    main, above, lead, ahead = claims.llm_low_orders(target, low, high)
    assert main.verdict == "holds" and main.interval.mean == 0.5
    assert not (above.verdict or lead.verdict or ahead.verdict)
    assert lead.interval.mean == 1 and 0 < above.interval.mean < 1
    powers = [symgen.generalization_power(target, symgen.transfer(target, x)) for x in (low, high)]
    assert ahead.interval.mean == pytest.approx(float((powers[0] - powers[1]).mean()))
    assert verdict(claims.llm_low_orders(high, high)) == "fails"


def test_shared_interactions_are_compared_with_others_of_their_strength():
    order = interaction_order(4)
    size = 1 + torch.rand(8, 2, 16, generator=torch.Generator().manual_seed(0)).double()
    low, high = size * (order == 1), size * (order == 2) * torch.tensor([1.0, -1.0])[:, None]
    both, rules = with_effects(low + high), (claims.shared_orders, claims.shared_signs)
    for rule in rules:
        main, matched, _ = rule(both, with_effects(low))
        assert main.verdict == "holds" and len(matched.values) == 8
        assert verdict(rule(both, with_effects(high))) == "fails"
    # Singles and pairs of the same strength: the pair that is left has order 2, not 1.
    assert rules[0](both, with_effects(low))[1].values == pytest.approx([-1.0] * 8)
    # Effects of one sign never cancel, whatever they are paired with.
    one_sign = with_effects(low + high.abs())
    assert rules[1](one_sign, with_effects(low))[1].values == pytest.approx([0.0] * 8)
