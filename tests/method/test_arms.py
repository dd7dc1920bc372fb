"""Arms of a training: alike but for one thing, tuned alike, stored, and resumed."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from symgen import Study, generalization_power, transfer
from symgen.fingerprints import fingerprint
from symgen.method import arms
from symgen.method.arms import ARMS, MEASURES, Arm, compare, difference_table, differences, measure

SMALL = {"train_size": 40, "epochs": 2, "checkpoints": 1, "samples": 4, "n": 4}
TINY = {"m": 3, "pool": 6, "penalized": 2, "every": 2}

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # So few steps need not teach a network anything.
    pytest.mark.filterwarnings("ignore:.*near chance"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def study():
    return Study.of(SMALL, baselines=3, options={"width": 4})


def test_arms_begin_alike_and_differ_in_one_thing(study):
    runs = {name: Arm(study, name, 0.3, **TINY).run for name in ARMS}
    weights = {name: run.load(0).state_dict() for name, run in runs.items()}
    for name, run in runs.items():
        assert all(torch.equal(x, weights["plain"][k]) for k, x in weights[name].items())
        plain = runs["plain"].config
        decay = 0.3 if name == "decay" else plain.weight_decay
        assert run.config == dataclasses.replace(plain, weight_decay=decay)
        assert run.task.part.fingerprint == runs["plain"].task.part.fingerprint
        assert (run.task.term is not None) == (name in ("penalty", "random"))
    assert len({run.fingerprint for run in runs.values()}) == 4
    penalty, random = (runs[name].task.term for name in ("penalty", "random"))
    assert random.random and not penalty.random
    alike = (fingerprint({**x.key, "settings": None}) for x in (penalty, random))
    assert len({*alike}) == 1 and fingerprint(penalty.key) != fingerprint(random.key)
    assert runs["plain"].fingerprint == study.runs[0].fingerprint


def test_the_penalty_asks_the_network_of_the_validation_part_about_training_samples(study):
    arm = Arm(study, "penalty", 0.3, **TINY)
    assert study.trained(1).fingerprint == study.runs[1].fingerprint
    penalty, small = arm.penalty, study.changed(n=3, samples=6)
    samples, variables = small.drawn("target")
    assert torch.equal(penalty.inputs.x, samples.x) and penalty.variables.n == 3
    assert torch.equal(penalty.variables.patches, variables.patches)
    known = study.runs[1]
    assert penalty.baselines == [small.extract(known.load(), known.key(), "target")]
    assert (penalty.strength, penalty.samples, penalty.every) == (0.3, 2, 2)


def test_texts_are_penalized_at_the_mask_token():
    study = Study.of(
        {**SMALL, "dataset": "planted-sentiment", "network": "bert-micro"}, baselines=3
    )
    arm = Arm(study, "penalty", 0.3, **TINY)
    assert arm.penalty.masked == study.data.tokenizer.mask_token_id
    assert 0 <= arm.penalty(2, study.runs[1].load()).item() <= 2 * 0.3


def test_what_is_measured_is_what_a_study_gives_with_two_fresh_baselines(study):
    arm = Arm(study, "penalty", 0.3, **TINY)
    found, run = measure(arm), arm.run
    assert {*found} == {*MEASURES}
    fresh = [study.extract(x.load(), x.key()) for x in study.runs[2:]]
    assert len(fresh) == 2
    inter = study.extract(run.load(), run.key())
    power = generalization_power(inter, transfer(inter, fresh)).nanmean()
    assert found["power"].item() == pytest.approx(power.item())
    last = run.records.iloc[-1]
    assert found["accuracy"].item() == last["test_accuracy"]
    assert found["gap"].item() == pytest.approx(last["test_loss"] - last["train_loss"])
    assert found["seconds"].item() > 0


def test_what_was_measured_is_found_again(study, monkeypatch):
    arm = Arm(study, "random", 0.3, **TINY)
    first = measure(arm)

    def refuse(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(arms, "_measured", refuse)
    fresh = Study.of(SMALL, baselines=3, options={"width": 4})
    assert measure(Arm(fresh, "random", 0.3, **TINY)) == first
    for change in ({"setting": 0.4}, {"m": 4}, {"every": 3}, {"name": "penalty"},
                   {"study": fresh.changed(seed=1)}):  # fmt: skip
        with pytest.raises(AssertionError, match="measured again"):
            measure(dataclasses.replace(arm, **change))


def test_both_settings_are_tuned_on_the_validation_part_of_a_seed_apart(monkeypatch):
    asked = []

    def score(arm):
        asked.append((arm.name, arm.setting, arm.study.seed))
        best = {"penalty": 0.5, "decay": 0.01}[arm.name]
        return 1.0 if arm.setting == best else 0.5

    def number(arm):
        return {name: torch.tensor(arm.setting + arm.study.seed) for name in MEASURES}

    monkeypatch.setattr(arms, "validated", score)
    monkeypatch.setattr(arms, "measure", number)
    study = Study.of(SMALL, seed=7)
    table = compare(study, [0.1, 0.5], [0.01, 0.1], seeds=2, **TINY)
    assert asked == [("penalty", 0.1, 7), ("penalty", 0.5, 7), ("decay", 0.01, 7),
                     ("decay", 0.1, 7)]  # fmt: skip
    chosen = {"plain": 0.0, "penalty": 0.5, "random": 0.5, "decay": 0.01}
    assert [*zip(table["arm"], table["setting"], table["seed"], strict=True)] == [
        (name, chosen[name], seed) for seed in (17, 27) for name in ARMS
    ]
    assert table["power"].tolist() == pytest.approx((table["setting"] + table["seed"]).tolist())


def test_of_equally_good_settings_the_first_is_taken(monkeypatch):
    monkeypatch.setattr(arms, "validated", lambda arm: 0.5)
    found = {name: torch.tensor(0.0) for name in MEASURES}
    monkeypatch.setattr(arms, "measure", lambda arm: found)
    table = compare(Study.of(SMALL), [0.3, 0.1], [0.2, 0.4], seeds=1)
    assert table.set_index("arm")["setting"].to_dict() == {
        "plain": 0.0, "penalty": 0.3, "random": 0.3, "decay": 0.2
    }  # fmt: skip


@pytest.mark.parametrize("values", [([0.1], []), ([], []), ([0.1], [0.1, 0.2])])
def test_both_are_tuned_with_the_same_budget(values):
    with pytest.raises(ValueError, match="as many of each"):
        compare(Study.of(SMALL), *values, seeds=1)


def test_an_unknown_arm_is_refused(study):
    with pytest.raises(ValueError, match='no arm "nothing".*plain'):
        Arm(study, "nothing")


def test_a_whole_comparison_with_its_differences():
    study = Study.of(SMALL, options={"width": 4}, epochs=1)
    table = compare(study, [0.3], [0.01], seeds=2, **TINY)
    assert len(table) == 8 and table[[*MEASURES]].notna().all().all()
    ahead = differences(table, "accuracy", "random")
    assert [*ahead] == ["plain", "penalty", "decay"]
    wide = table.pivot(index="seed", columns="arm", values="accuracy")
    wanted = (wide["penalty"] - wide["random"]).tolist()
    assert ahead["penalty"].tolist() == pytest.approx(wanted)
    told = difference_table({"one": table})
    assert len(told) == 3 * len(MEASURES) and (told["seeds"] == 2).all()
    row = told.set_index(["measure", "arm"]).loc[("power", "decay")]
    one = table.pivot(index="seed", columns="arm", values="power")
    assert row["difference"] == pytest.approx((one["decay"] - one["plain"]).mean())


def test_differences_do_not_depend_on_the_order_of_rows():
    generator = np.random.default_rng(0)
    rows = [{"arm": arm, "seed": seed, "power": generator.uniform()}
            for seed in range(5) for arm in ARMS]  # fmt: skip
    table = pd.DataFrame(rows)
    shuffled = table.sample(frac=1, random_state=1)
    for name, values in differences(table, "power").items():
        assert torch.equal(values, differences(shuffled, "power")[name])
