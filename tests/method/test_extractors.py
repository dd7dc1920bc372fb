"""One study's outputs by several extractors: the same curves, the same outputs, stored splits."""

import functools
import math

import pandas as pd
import pytest
import torch

import symgen
from symgen import storage
from symgen.data.planted import planted_effects
from symgen.interactions import Interactions
from symgen.method import extractors
from symgen.method.extractors import EXACT, PUBLISHED, SCALED, Outputs
from symgen.method.spectra import order_thirds, uncancelled
from symgen.split.published import RATES, least, published
from symgen.transforms import and_or_outputs

STEPS, EPOCHS = [0, 3, 9], [0.0, 0.3, 0.9]


def outputs(seed=0, samples=4, n=5):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(3, samples, 2**n, generator=generator, dtype=torch.float64)
    losses = {"train_loss": [2.0, 1.0, 0.5], "test_loss": [2.0, 1.5, 1.5 + seed]}
    records = pd.DataFrame({"step": STEPS, "epoch": EPOCHS, **losses})
    return Outputs(STEPS, target, target[-1:] + 0.1 * target[:1], records)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    return tmp_path


def test_the_exact_extractor_gives_the_dynamics_of_a_study(store):
    settings = {"train_size": 100, "epochs": 2, "checkpoints": 3, "samples": 3, "n": 4}
    study = symgen.Study.of(settings)
    expected = study.dynamics(looks=3)
    found = Outputs.of(study, looks=3)
    assert found.steps == expected.steps == study.looked_at(looks=3)
    dynamics = found.dynamics(extractors.extractors()[EXACT])
    # In another batch, so that rounding may differ.
    pairs = zip(dynamics.interactions, expected.interactions, strict=True)
    for one, other in [*pairs, (dynamics.baselines[0], expected.baselines[0])]:
        torch.testing.assert_close(one.effects, other.effects, rtol=0, atol=1e-6)
    for name, values in expected.curves.items():
        torch.testing.assert_close(dynamics.curves[name], values, rtol=0, atol=1e-3, equal_nan=True)


def test_baselines_and_target_are_split_by_the_same_extractor():
    seen = []

    def extract(v):
        seen.append(v)
        return Interactions.from_moebius(v)

    given = outputs()
    dynamics = given.dynamics(extract)
    assert len(seen) == 1 and torch.equal(seen[0], torch.cat([given.target, given.baselines]))
    assert dynamics.steps == STEPS and dynamics.records is given.records
    assert dynamics.baselines == [Interactions.from_moebius(given.baselines[0])]
    assert dynamics.interactions[1] == Interactions.from_moebius(given.target[1])


def test_each_extractor_is_what_its_name_says(store):
    v = outputs().target[0]
    ways = extractors.extractors(noise=0.03, kappas=(0.0, 0.1), steps=60)
    assert [*ways][:3] == [EXACT, PUBLISHED, SCALED] and len(ways) == 8
    theirs = [published(v, 0.03, rate, 60) for rate in RATES]
    expected = {
        EXACT: symgen.sparsify(v, 0.03), PUBLISHED: least(theirs),
        "exact, κ = 0": symgen.sparsify(v, 0.0), "exact, κ = 0.1": symgen.sparsify(v, 0.1),
        **{f"published, rate {r:g}": x for r, x in zip(RATES, theirs, strict=True)},
    }  # fmt: skip
    assert {*ways} == {*expected, SCALED}
    if torch.cuda.is_available():  # where one side is split, and the other here
        for name, wanted in expected.items():
            torch.testing.assert_close(ways[name](v).effects, wanted.effects, rtol=0, atol=1e-6)
        return
    assert all(ways[name](v) == expected[name] for name in expected)


def test_scaled_outputs_are_split_alike_whatever_their_units(store):
    v = outputs().target[0]
    scaled = extractors.extractors(steps=60)[SCALED]
    one, small = scaled(v), scaled(v / 1024)
    torch.testing.assert_close(1024 * small.effects, one.effects)
    size = v.amax(-1) - v.amin(-1)
    expected = least([published(v / size[:, None], 0.02, rate, 60) for rate in RATES])
    torch.testing.assert_close(one.effects, expected.effects * size[:, None, None])
    torch.testing.assert_close(one.objective, one.effects.abs().sum((-2, -1)))
    assert torch.equal(one.bias, v[:, 0]) and torch.equal(one.full, v[:, -1])
    # Outputs that never change have no range to be divided by.
    assert not scaled(torch.ones(1, 8, dtype=torch.float64)).effects.any()


def test_excess_is_strength_over_that_of_the_exact_split():
    dynamics = [outputs(seed).dynamics(Interactions.from_moebius) for seed in (0, 1)]
    larger = [
        Outputs(d.steps, k * outputs(seed).target, outputs(seed).baselines, d.records).dynamics(
            Interactions.from_moebius
        )
        for seed, (k, d) in enumerate(zip((2, 4), dynamics, strict=True))
    ]
    assert extractors.excess(larger, dynamics, 0) == pytest.approx(3)
    assert extractors.excess(dynamics, dynamics, -1) == pytest.approx(1)


def test_a_split_is_found_again_where_outputs_and_settings_are_the_same(store, monkeypatch):
    calls, v = [], outputs().target[0]

    def counted(v, noise, rate, steps):
        calls.append((noise, rate, steps))
        return published(v, noise, rate, steps)

    monkeypatch.setattr(extractors, "published", functools.wraps(published)(counted))
    first = extractors.descended(v, 0.02, 1e-4, 10)
    assert extractors.descended(v, 0.02, 1e-4, 10) == first and len(calls) == 1
    for other in ((0.03, 1e-4, 10), (0.02, 1e-5, 10), (0.02, 1e-4, 11)):
        extractors.descended(v, *other)
    extractors.descended(v + 1, 0.02, 1e-4, 10)
    assert len(calls) == 5
    assert len([*(storage.cache_folder() / "splits").glob("*.safetensors")]) == 5


def test_curves_hold_what_spectra_say():
    dynamics = outputs().dynamics(Interactions.from_moebius)
    found = dynamics.curves
    for i, step in enumerate(STEPS):
        spectrum = dynamics.spectra(step)[0]
        low, middle, high = order_thirds(spectrum)
        torch.testing.assert_close(found["orders_low"][:, i], low)
        torch.testing.assert_close(found["orders_middle"][:, i], middle)
        torch.testing.assert_close(found["orders_high"][:, i], high)
        torch.testing.assert_close(found["uncancelled"][:, i], uncancelled(spectrum))


def test_a_training_is_one_number_and_a_single_one_is_its_samples():
    trainings = [outputs(seed).dynamics(Interactions.from_moebius) for seed in range(4)]
    table = extractors.over_trainings(trainings).summary()
    assert table["step"].tolist() == STEPS and table["epoch"].tolist() == EPOCHS
    assert table["gap"].tolist() == pytest.approx([0, 0.5, 2.5])  # 1.0, 2.0, 3.0 and 4.0 at the end
    for name in ("count", "mean_order", "uncancelled"):
        means = torch.stack([d.curves[name].mean(0) for d in trainings])
        share = name == "uncancelled"
        for i in range(3):
            expected = symgen.interval(means[:, i], share=share)
            got = table[[name, f"{name}_low95", f"{name}_high95"]].iloc[i].tolist()
            assert got == pytest.approx([*expected])
    single = extractors.over_trainings(trainings[:1]).summary()
    value = symgen.interval(trainings[0].curves["count"][:, 1])
    assert single[["count", "count_low95", "count_high95"]].iloc[1].tolist() == pytest.approx(
        [*value]
    )


def test_trainings_with_other_checkpoints_are_refused():
    one, other = outputs(0).dynamics(Interactions.from_moebius), outputs(1)
    later = Outputs([0, 4, 9], other.target, other.baselines, other.records)
    with pytest.raises(ValueError, match="different checkpoints"):
        extractors.Averages([one, later.dynamics(Interactions.from_moebius)])


def test_planted_effects_are_few_and_of_low_order():
    effects = planted_effects(30, 6, count=3, seed=1)
    order = symgen.interaction_order(6).expand_as(effects)
    on = effects != 0
    assert (on.sum(-1) == 3).all()
    assert order[on].unique().tolist() == [1, 2, 3]
    assert order[:, 1][on[:, 1]].unique().tolist() == [2, 3]
    assert effects[on].abs().min() >= 0.5 and effects[on].abs().max() <= 1.5
    assert 0.3 < float((effects[on] > 0).double().mean()) < 0.7
    assert torch.equal(effects, planted_effects(30, 6, 3, seed=1))
    assert not torch.equal(effects, planted_effects(30, 6, 3, seed=2))


def test_what_is_found_and_what_is_invented():
    effects = torch.zeros(2, 2, 8, dtype=torch.float64)
    effects[0, 0, 3], effects[0, 1, 7] = 2.0, -1.0
    effects[1, 0, 5] = 1.0
    answers = torch.zeros(1, 2, 2, 8, dtype=torch.float64)
    answers[0, 0, 0, 3], answers[0, 0, 1, 7] = 3.0, 1.0  # the second has the wrong sign
    answers[0, 1, 0, 5], answers[0, 1, 0, 7] = 0.6, 0.2

    def extract(v):
        assert v.shape == (1, 2, 8)
        torch.testing.assert_close(v[0], and_or_outputs(effects[:, 0], effects[:, 1]))
        zero, size = torch.zeros(1, 2).double(), answers.abs().sum((-2, -1))
        return Interactions(answers[:, :, 0], answers[:, :, 1], zero, size, zero, zero + 1)

    table = extractors.planted_table({"a": extract}, effects, [1.0], [0.0])
    assert table["extractor"].tolist() == ["a"] * 2
    assert table["found"].tolist() == [0.5, 1.0]
    assert table["invented"].tolist() == pytest.approx([0.25, 0.25])
    assert table["mean_order"].tolist() == pytest.approx([2.25, 2.25])
    assert table["count"].tolist() == [2.0, 2.0]


def test_outputs_are_scaled_and_noise_is_a_share_of_their_range():
    effects, seen = planted_effects(50, 5), []

    def extract(v):
        seen.append(v)
        return Interactions.from_moebius(v)

    extractors.planted_table({"a": extract}, effects, [1.0, 0.1], [0.0, 0.5], seed=3)
    v = and_or_outputs(effects[:, 0], effects[:, 1])
    clean, noisy, small, small_noisy = seen[0]
    torch.testing.assert_close(clean, v)
    torch.testing.assert_close(small, 0.1 * v)
    torch.testing.assert_close(small_noisy, 0.1 * noisy)
    spread = ((noisy - v) / (v.amax(-1) - v.amin(-1))[:, None]).std()
    assert math.isclose(spread, 0.5, rel_tol=0.1)
