"""Studies: networks and interactions found again, parts named, unknown settings refused."""

import copy
import dataclasses
import functools
import shutil

import pandas as pd
import pytest
import torch
from conftest import ROOT

import symgen
from symgen import Study, fingerprints, mean_feature, memory
from symgen.book import presets
from symgen.models.foreign import write_classifier


def test_a_study_finds_the_same_networks_and_interactions_again():
    study = Study.of({"train_size": 60, "epochs": 1, "other": 3}, samples=3, n=4, checkpoints=2)
    assert study.title == "cnn on digits"
    target, others = study.interactions()
    assert target.and_.shape == (3, 16)
    assert len(others) == 2
    again, _ = Study.of(
        {"train_size": 60, "epochs": 1}, samples=3, n=4, checkpoints=2
    ).interactions()
    assert torch.equal(target.and_, again.and_)
    table = study.accuracies
    assert table["part"].tolist() == ["target", "baseline1", "baseline2"]
    assert table["samples"].tolist() == [60, 60, 60]
    assert table["test accuracy"].between(0, 1).all()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["target", "baseline1", "baseline2"]),
        ({"baselines": 1}, ["target", "baseline"]),
        ({"baselines": 3}, ["target", "baseline1", "baseline2", "baseline3"]),
        ({"split": "thirds"}, ["A", "B", "C"]),
        ({"split": "test"}, ["target", "baseline"]),
        ({"baselines": 0}, ["target"]),
        ({"baselines": 0, "split": "test"}, ["target"]),
    ],
)
def test_a_study_names_the_parts_of_its_networks(options, names):
    study = Study(train_size=20, **options)
    assert study.names == names
    assert set(names) <= set(study.data.parts)


def test_a_study_refuses_what_it_does_not_have():
    with pytest.raises(ValueError, match='a study has no "netwrk".*network'):
        Study.of({}, netwrk="cnn")


@pytest.mark.parametrize(
    ("given", "meant"), [("sampels", "samples"), ("epoch", "epochs"), ("labelnoise", "label_noise")]
)
def test_a_study_refuses_a_slip_in_a_chapters_parameters(given, meant):
    with pytest.raises(ValueError, match=f'no "{given}". Did you mean "{meant}"'):
        Study.of({given: 3, "train_size": 20})


@pytest.mark.parametrize("chapter", sorted(p.stem for p in (ROOT / "chapters").glob("*.ipynb")))
def test_no_parameter_of_a_chapter_is_taken_for_a_slip(chapter):
    Study.of(presets.defaults(presets.read_chapter(ROOT, chapter)), seed=1)


def test_a_study_takes_a_classifier_of_ones_own_with_its_tokenizer(tmp_path):
    folder = write_classifier(tmp_path / "own", epochs=1)
    study = Study.of(
        {"dataset": "planted-sentiment", "network": str(folder), "train_size": 20, "epochs": 1},
        baselines=1, samples=3, n=4, checkpoints=1,
    )  # fmt: skip
    assert study.data.tokenizer.name_or_path == str(folder)
    target, (baseline,) = study.interactions()
    assert target.and_.shape == baseline.and_.shape == (3, 16)
    # Others have one that is trained on the texts.
    assert study.changed(network="bert-micro").data.tokenizer.name_or_path == ""


# What a study keeps ----------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    settings = {"train_size": 60, "epochs": 1, "checkpoints": 1}
    return Study.of(settings, samples=2, n=4)


# So few steps need not teach a network anything.
@pytest.mark.filterwarnings("ignore:.*near chance")
def test_masked_outputs_are_stored_apart_from_the_split_found_for_them(study):
    """Other noise bounds and tolerances need no forward pass, and another network does."""
    run = study.runs[0]
    model, calls = run.load(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    first = study.extract(model, run.key())
    assert calls and torch.equal(first.bias, study.outputs(model)[:, 0])
    calls.clear()
    again = study.changed(noise=0.1, tol=1e-2).extract(model, run.key())
    assert not calls
    assert float((first.objective - again.objective).min()) > 0
    assert torch.equal(study.extract(model, run.key()).effects, first.effects) and not calls
    other = study.extract(run.load(0), run.key(0))
    assert not torch.equal(other.bias, first.bias)
    study.extract(model, {"another": "network"})
    assert calls
    assert torch.equal(study.interactions()[0].effects, first.effects)


def network(study):
    """An untrained network for a study's data, and its calls."""
    model, calls = symgen.build_network("cnn", **study.data.spec), []
    model.register_forward_hook(lambda *_: calls.append(1))
    return model, calls


def test_outputs_are_stored_for_the_images_behind_the_mean(study, monkeypatch):
    """The same samples of a part whose other images differ are masked by another mean."""
    model, calls = network(study)
    part, (samples, _) = study.data.part("test"), study.drawn()
    images = part.images.clone()
    others = torch.ones(len(images), dtype=torch.bool).index_fill(0, samples.index, False)
    images[others] = 255 - images[others]
    different, changed = copy.copy(part), study.changed()
    different.images = images
    changed.__dict__["data"] = dataclasses.replace(
        study.data, parts={**study.data.parts, "test": different}
    )
    assert torch.equal(changed.data.sample(2, part="test", seed=0).x, samples.x)

    def stored(some):
        v = some.outputs(model, {"network": 1})
        assert torch.equal(v, some.outputs(model))
        calls.clear()
        assert torch.equal(v, some.outputs(model, {"network": 1})) and not calls
        return v

    first = stored(study)
    assert not torch.equal(first, stored(changed))
    monkeypatch.setattr("symgen.method.study.MEAN_OVER", 3)
    assert not torch.equal(first, stored(study))


def test_the_mask_value_of_a_network_is_computed_once(study, monkeypatch):
    """For the same checkpoint and part, whatever class is asked for and however many samples."""
    made = []

    @functools.wraps(mean_feature)
    def counted(*arguments, **options):
        made.append(1)
        return mean_feature(*arguments, **options)

    monkeypatch.setattr("symgen.method.study.mean_feature", counted)
    model, _ = network(study)
    key = {"network": "that is masked once"}
    wrong = (study.drawn()[0].y + 1) % 10
    expected = study.outputs(model), study.outputs(model, classes=wrong)
    made.clear()
    assert torch.equal(study.outputs(model, key), expected[0])
    assert torch.equal(study.outputs(model, key, classes=wrong), expected[1])
    study.changed(samples=1, n=3).outputs(model, key)
    assert len(made) == 1
    first, again = study.mask_value(model), study.mask_value(model, key=key)
    assert len(made) == 2 and torch.equal(first.value, again.value) and first.layer == again.layer
    for other in (
        lambda: study.outputs(model, {"network": "another"}),
        lambda: study.outputs(model, key, "target"),
        lambda: study.changed(layer="input").outputs(model, key),
        lambda: study.changed(dtype="bfloat16").outputs(model, key),
    ):
        made.clear()
        other()
        assert len(made) == 1


def test_networks_run_in_a_narrower_type(study):
    model, _ = network(study)
    v = study.outputs(model)
    narrow = study.changed(dtype="bfloat16").outputs(model)
    assert not torch.equal(narrow, v)
    torch.testing.assert_close(narrow, v, atol=0.1, rtol=0)
    assert all(p.dtype is torch.float32 for p in model.parameters())
    with pytest.raises(ValueError, match=r'dtype="bfloat" is unknown.*Did you mean "bfloat16"'):
        study.changed(dtype="bfloat").outputs(model)


def test_outputs_are_stored_for_the_code_that_chooses_the_layer(study, tmp_path, monkeypatch):
    model, calls = network(study)
    study.outputs(model, {"network": 1})
    shutil.copytree(ROOT / "symgen", tmp_path / "symgen")
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path / "symgen")
    calls.clear()
    study.outputs(model, {"network": 1})
    assert not calls
    path = tmp_path / "symgen/masking/mask_values.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("nn.ReLU6, ", ""), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    study.outputs(model, {"network": 1})
    assert calls


def test_a_study_that_is_too_large_is_refused_before_it_trains(study, monkeypatch):
    monkeypatch.setattr("symgen.method.study.train", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(ValueError, match=r"n = 17: .* 131,072 masked states, .* for n <= 16"):
        study.changed(n=17).follow()
    monkeypatch.setattr(memory, "free_memory", lambda device: 64 * 2**20)
    with pytest.raises(MemoryError, match=r"n = 16 .* 2 samples and the split of them"):
        study.changed(n=16).interactions()


def test_a_run_is_tracked_on_the_same_samples_as_its_baselines():
    """`track` asks for the interactions of each checkpoint under its key, in order."""

    class Run:
        steps = (0, 5, 9)
        records = pd.DataFrame({"step": [0, 5, 9]})

        def __init__(self, name):
            self.name = name

        def load(self, step):
            return torch.nn.Linear(1, 1).requires_grad_(False).train(step == 9)

        def key(self, step):
            return {"run": self.name, "step": step}

    asked = []

    def extract(model, key):
        asked.append((key["run"], key["step"], model.training))
        return symgen.Interactions.from_moebius(torch.full((2, 4), float(key["step"])))

    found = symgen.track(Run("target"), [Run("a"), Run("b")], extract, [0, 9], progress=False)
    assert asked == [("a", 9, True), ("b", 9, True), ("target", 0, False), ("target", 9, True)]
    assert found.steps == [0, 9] and found.records is Run.records
    assert [float(i.bias[0]) for i in found.interactions] == [0, 9]
    assert [float(i.bias[0]) for i in found.baselines] == [9, 9]
    for steps in ([9, 0], [0, -1], [0, 0, 9], [3], []):
        with pytest.raises(ValueError, match=r"expected some of the checkpoints' \[0, 5, 9\]"):
            symgen.track(Run("target"), [Run("a")], extract, steps, progress=False)


def test_a_label_tells_studies_of_one_network_and_data_apart():
    study = Study(label_noise=0.2, n=8)
    assert study.label == "cnn on digits (300 training samples, 20% wrong labels; n = 8)"
    plain = study.changed(label_noise=0.0, train_size=None)
    assert plain.label == "cnn on digits (all training samples; n = 8)"


@pytest.fixture(scope="module")
def small():
    settings = {"train_size": 64, "epochs": 4, "checkpoints": 4, "batch_size": 16}
    return Study.of(settings, samples=4, n=4)


def test_losses_of_single_samples_average_to_those_of_the_records(small):
    losses = small.losses([0, 16], size=800)
    records = small.runs[0].records.set_index("step")
    for step, (train, test) in losses.items():
        assert (len(train), len(test)) == (64, min(800, len(small.data.part("test"))))
        assert float(train.mean()) == pytest.approx(records["train_loss"][step], rel=1e-5)
        assert float(test.mean()) == pytest.approx(records["test_loss"][step], rel=1e-5)
    # The same samples at every step, and the first of them where fewer are asked for.
    assert torch.allclose(small.losses([16], size=10)[16][1], losses[16][1][:10], atol=1e-6)


@pytest.mark.parametrize(
    ("first_epoch", "looks", "expected"),
    [
        (0.0, None, [0, 1, 2, 9, 16]),
        (0.5, None, [0, 2, 9, 16]),
        (99, None, [0, 16]),
        (0.0, 3, [0, 2, 16]),
        (0.5, 2, [0, 16]),
        (0.5, 9, [0, 2, 9, 16]),
    ],
)
def test_a_network_is_followed_from_an_epoch_on_at_some_checkpoints(
    small, first_epoch, looks, expected
):
    assert small.runs[0].steps == [0, 1, 2, 9, 16]
    found = small.dynamics(first_epoch, looks)
    assert found.steps == list(found.losses) == expected
    assert len(found) == 4
    again = small.follow(expected)
    pairs = zip(again.interactions, found.interactions, strict=True)
    assert all(one == other for one, other in pairs)
    assert "gap_low95" in found.summary()


def test_a_single_look_is_refused(small):
    with pytest.raises(ValueError, match="looks=1: expected at least 2"):
        small.dynamics(looks=1)
