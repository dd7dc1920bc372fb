"""A study: its settings, its checks, its networks and its outputs."""

import json
import pickle

import pytest
import torch

import symgen
from symgen.method.study import Study, seeded, several


def test_settings_round_trip_through_json_and_tell_studies_apart():
    study = Study.of({"epochs": 3, "checkpoints": [1, 2], "options": {"width": 4}, "seed": 5})
    settings = json.loads(json.dumps(study.settings))
    assert settings == study.settings and "seed" not in settings
    training = settings.pop("training")
    assert Study.of({**settings, **training, "seed": 5}) == study
    assert Study.of({"label_noise": 0}).settings == Study().settings
    assert study.changed(seed=6).settings == study.settings


def test_the_label_names_the_settings_in_which_studies_differ():
    study = Study.of({"network": "vgg11", "train_size": 50, "augment": True, "n": 8})
    assert study.label == "vgg11 on digits (50 training samples, augmented; n = 8)"
    plain = Study.of({"train_size": 50, "label_noise": 0.2, "options": {"width": 4}, "n": 8})
    assert plain.label == "cnn on digits (50 training samples, 20% wrong labels, width 4; n = 8)"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Study.of({"train_sise": 3}), 'Did you mean "train_size"'),
        (lambda: Study.of({}, epoch=3), 'Did you mean "epochs"'),
        (lambda: symgen.LanguageStudy.of({"metric": 1}), '"metric" is unknown'),
        (lambda: Study(train_size=10**6).check(), "1000000"),
        (lambda: Study(network="cnnn").check(), 'Did you mean "cnn"'),
        (lambda: Study(network="vgg11").check(), "20 pixels per side, but vgg11 .* 32 or more"),
        (lambda: Study(options={"depth": 3}).check(), "depth"),
        (lambda: Study(samples=10**4, n=4, train_size=50).check(), "10000 samples"),
        (lambda: Study(n=17, train_size=50).check(), "expected 1 to 16"),
        (lambda: Study(n=10, grid=3, train_size=50).check(), "10"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(call, message, monkeypatch):
    monkeypatch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
    with pytest.raises((ValueError, TypeError, MemoryError), match=message):
        call()


def test_parts_and_seeds():
    assert Study(baselines=0).names == ["target"] and Study(baselines=1).names[1:] == ["baseline"]
    assert Study(split="thirds").names == ["A", "B", "C"]
    assert [s.seed for s in seeded(Study(seed=5), 3)] == [5, 15, 25]
    assert [s.seed for s in seeded(Study(), [4, 2])] == [4, 2]
    assert seeded(Study(seed=7)) == [Study(seed=7)]


def test_further_studies_differ_in_what_they_name():
    others = [{"network": "vgg11", "epochs": 3, "seeds": 2}]
    first, further = several(Study(n=5), 4, others)
    assert first == (Study(n=5), 4)
    assert further == (Study(n=5, network="vgg11").changed(epochs=3), 2)
    [_, (language, count)] = several(symgen.LanguageStudy(n=5), 1, [{"samples": 3, "seeds": 2}])
    assert language == symgen.LanguageStudy(n=5, samples=3) and count == 2


def test_a_study_goes_to_another_process_without_its_data(small_study):
    small_study.drawn()
    copy = pickle.loads(pickle.dumps(small_study))
    assert copy == small_study and not copy.shared


def test_other_samples_leave_data_and_networks_as_they_are(small_study):
    runs, data = small_study.runs, small_study.data
    assert small_study.changed(samples=3).runs is runs
    assert small_study.changed(epochs=7).data is data
    assert small_study.changed(seed=7).data is not data
    assert not seeded(small_study, 2)[0].shared, "each training loads its own data"


def test_outputs_are_those_of_the_target_on_its_own_masked_samples(small_study):
    run = small_study.runs[0]
    samples, patches = small_study.drawn()
    part = small_study.data.part("test")
    model = run.load()
    value = symgen.mean_feature(model, part.batch(range(len(part)))[0])
    expected = symgen.masked_outputs(model, samples.x, samples.y, patches, value)
    torch.testing.assert_close(small_study.outputs(run), expected, rtol=1e-4, atol=1e-4)
    inter = small_study.interactions(run)
    reference = symgen.sparsify(expected)
    torch.testing.assert_close(inter.objective, reference.objective, rtol=2e-3, atol=1e-4)
    keep = torch.arange(len(samples)) % 2 == 0
    some = small_study.interactions(run, rows=keep)
    torch.testing.assert_close(some.effects, inter.effects[keep])


@pytest.mark.filterwarnings("ignore:the network runs in bfloat16")
def test_stored_outputs_depend_on_class_part_step_masking_and_precision(small_study):
    run = small_study.runs[0]
    wrong = (small_study.drawn()[0].y + 1) % 10
    several = [
        small_study.outputs(run),
        small_study.outputs(run, classes=wrong),
        small_study.outputs(run, 0),
        small_study.outputs(run, part="target"),
        small_study.outputs(small_study.runs[1]),
        small_study.changed(layer="input").outputs(run),
        small_study.changed(dtype="bfloat16").outputs(run),
    ]
    for i, one in enumerate(several):
        assert all(not torch.allclose(one, other) for other in several[:i])
    torch.testing.assert_close(several[-1], several[0], rtol=0.2, atol=0.2)
    assert torch.equal(small_study.outputs(run), several[0])
    keep = torch.tensor([True, False] * 3)
    some = small_study.outputs(run, classes=wrong, rows=keep)
    torch.testing.assert_close(some, several[1][keep])


def test_an_untrained_baseline_is_the_first_checkpoint(small_study):
    before = small_study.outputs(small_study.untrained(1))
    torch.testing.assert_close(before, small_study.outputs(small_study.runs[1], 0))


def test_texts_have_words_as_variables():
    study = Study.of({
        "dataset": "planted-sentiment", "network": "bert-micro", "train_size": 40, "epochs": 1,
        "samples": 4, "n": 3, "baselines": 1, "checkpoints": 1, "evaluation_size": 20,
    })  # fmt: skip
    inter = study.check().interactions(study.runs[0])
    samples, _ = study.drawn()
    assert inter.names.shape == (len(samples), 3)
    for i, words in enumerate(inter.names):
        assert all(word in samples.show(i) for word in words)
