"""The penalty: its value, its gradient, its key, and trainings compared by seed."""

import dataclasses

import pandas as pd
import pytest
import torch
from method.examples import drawn

import symgen
from symgen.method import penalty as module
from symgen.method.penalty import Penalty, drawn_states, lost_share, measure_penalty, penalty_of
from symgen.method.study import Study
from symgen.method.trainings import Trainings, read_index
from symgen.storage import fingerprint

TINY = {"train_size": 40, "epochs": 1, "samples": 4, "n": 4, "checkpoints": 1,
        "evaluation_size": 40, "baselines": 3}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return Study.of(TINY, epochs=8)


@pytest.fixture(scope="module")
def term(study):
    return penalty_of(study, 3.0, m=4, pool=4, penalized=4, every=2)


def changed(term, **changes):
    names = ("x", "target", "variables", "baselines")
    return Penalty(**{**{name: getattr(term, name) for name in names}, **changes})


def test_it_is_the_non_generalizable_share_of_salient_strength(study, term):
    model = study.runs[0].load().train()
    value = term(2, model)
    assert value.requires_grad and model.training and len(term.target) == 4
    assert term(1, model) is None and term(3, model) is None
    model = model.eval()
    mean = symgen.mean_feature(model, term.x)
    inter = symgen.extract(model, term.x, term.target, term.variables, mean)
    g = symgen.transfer(inter, term.baselines)
    strength = symgen.order_spectrum(inter).abs().sum((1, 2))
    expected = (1 - symgen.generalization_power(inter, g)) * strength.clamp(max=1)
    torch.testing.assert_close(lost_share(inter, g)[0], expected, atol=1e-6, rtol=0)
    assert float(value.detach()) == pytest.approx(6 * float(expected.mean()), abs=0.01)


def test_slopes_are_the_derivative_of_the_lost_share():
    # Exactly sparse outputs, whose split follows small changes of v.
    inter = drawn(0, samples=3, n=3, share=0.2)
    g = symgen.transfer(inter, drawn(1, samples=3, n=3, share=0.5))
    _, slope = lost_share(inter, g)
    weights = (1 - g) * inter.salient()
    change = drawn(2, samples=3, n=3).effects * weights * 1e-3
    moved = dataclasses.replace(inter, effects=inter.effects + change)
    whole = (inter.effects.abs() * inter.salient()).sum((-2, -1)).clamp(min=1)
    expected = ((moved.effects.abs() - inter.effects.abs()) * weights).sum((-2, -1)) / whole
    torch.testing.assert_close((slope * (moved.predict() - inter.predict())).sum(-1), expected)


def test_drawn_states_stand_for_all_on_average():
    slope = torch.randn(16, generator=torch.Generator().manual_seed(0))
    total, generator = torch.zeros(16), torch.Generator().manual_seed(1)
    for _ in range(4000):
        states, factors = drawn_states(slope, 4, generator)
        total[states] += factors / 4000
    torch.testing.assert_close(total, slope, atol=0.05, rtol=0.05)
    states, factors = drawn_states(slope, 16, generator)
    assert torch.equal(slope[states], factors) and len(states) == 16


def test_a_step_along_the_gradient_lowers_it(study, term):
    model = study.runs[0].load()
    every = changed(term, every=1, states=16)
    before = every(1, model)
    before.backward()
    size = sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.02 / size * p.grad
    assert float(every(1, model).detach()) < float(before.detach())


def test_each_setting_has_its_own_key(term):
    given = [{}, {"strength": 2.0}, {"random": True}, {"states": 2}, {"seed": 1}, {"noise": 0.1}]
    keys = [fingerprint(changed(term, **x).key) for x in given]
    assert len({*keys}) == len(keys) and fingerprint(changed(term).key) == keys[0]


@pytest.mark.parametrize(
    "change", [{"samples": 0}, {"every": 0}, {"states": 0}, {"strength": -1.0}, {"baselines": []}]
)
def test_impossible_numbers_are_refused(term, change):
    with pytest.raises(ValueError, match="expected one or more baselines"):
        changed(term, **change)


def test_arms_are_tuned_alike_and_compared_by_seed(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    store = Trainings(tmp_path, commit="abc1234")
    options = {"m": 3, "pool": 4, "penalized": 2, "every": 1, "workers": 1, "store": store}
    study = Study.of(TINY)
    table = measure_penalty(study, [0.1], [0.05], 1, **options)
    tuned = table[table["seed"] == 0]
    assert set(tuned["quantity"]) == {"validation_accuracy"}
    arms = table[table["seed"] == 10].pivot(index="arm", columns="quantity", values="value")
    assert set(arms.index) == set(module.ARMS)
    assert set(arms.columns) == {"test_accuracy", "H", "gap", "N"}
    assert arms["gap"].nunique() > 1
    monkeypatch.setattr(Study, "trained", lambda *_, **__: pytest.fail("trained again"))
    assert sorted(read_index(tmp_path)["seed"]) == [0, 10]
    read = measure_penalty(study, [0.1], [0.05], [10], **options)
    pd.testing.assert_frame_equal(read, table, rtol=1e-6)
    with pytest.raises(ValueError, match="tuned alike"):
        measure_penalty(study, [0.1, 1.0], [0.05], 1)
