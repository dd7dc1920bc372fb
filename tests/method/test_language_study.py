"""Two tiny language models and a tuning, resumable by prompt."""

import pandas as pd
import pytest
import torch

import symgen
from symgen.method.language import measure_tuning
from symgen.method.training_curves import curves
from symgen.method.trainings import Trainings
from symgen.models.language import LanguageModel

TINY = {"train_size": 300, "epochs": 1, "samples": 3, "n": 4, "probability": 0.0, "layers": 1,
        "width": 32, "tune_size": 60, "tune_epochs": 1, "checkpoints": 2}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return symgen.LanguageStudy.of(TINY)


def test_both_models_read_the_same_prompts(study):
    prompts = study.prompts
    assert len(prompts) == 3 and all(len(p.spans) == 4 for p in prompts)
    assert len(study.models[0].tokenizer) != len(study.models[1].tokenizer)
    inter = study.interactions(study.models[1])
    assert inter.names.tolist() == [list(p.labels) for p in prompts]
    assert study.title == "tiny-llama on planted-facts"


def test_outputs_are_those_of_the_model_and_are_kept_prompt_by_prompt(study, tmp_path, monkeypatch):
    model, prompts = study.models[0], study.prompts
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    expected = model.outputs(prompts)
    asked, plain = [], LanguageModel.outputs

    def stops(self, prompts, **options):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.extend(prompts)
        return plain(self, prompts, **options)

    monkeypatch.setattr(LanguageModel, "outputs", stops)
    with pytest.raises(KeyboardInterrupt):
        study.outputs(model)
    monkeypatch.setattr(
        LanguageModel, "outputs", lambda self, x, **o: asked.extend(x) or plain(self, x, **o)
    )
    v = study.outputs(model)
    assert asked == prompts
    torch.testing.assert_close(v, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(study.outputs(model, masking="_"), expected)


def test_a_misspelled_parameter_is_named():
    with pytest.raises(ValueError, match='Did you mean "masking"'):
        symgen.LanguageStudy.of({"maskin": "mean"})


def test_each_tuning_has_texts_of_its_own(study, monkeypatch):
    read, known = [], study.tunings[0]

    def train(model, tokenizer, pieces, *more, **options):
        read.append({*map(str, pieces)})
        return known

    monkeypatch.setattr("symgen.method.language.train_causal_lm", train)
    for seed in (20, 30):
        assert study.changed(seed=seed).tunings == (known, known)
    first, twin, second, _ = read
    assert not first & twin and len(first & second) < len(first) / 2


def test_a_tuning_is_measured_at_every_checkpoint(study):
    table = measure_tuning(study)
    run, twin = study.tunings
    assert run.key() != twin.key()
    assert len(run.steps) == 3 and twin.steps == [0, run.steps[-1]]
    other = study.changed(seed=10)
    assert other.models[0].key == study.models[0].key
    assert other.tunings[0].key() != run.key()
    values = {k: curves(table, k).loc[0] for k in ("H", "H_twin", "strength_low", "old_loss")}
    assert all(list(x.index) == run.steps and x.notna().all() for x in values.values())
    before, after = (study.tuned(run, step) for step in (0, -1))
    direct = study.interactions(study.models[0], study.tuned_prompts)
    torch.testing.assert_close(before.objective, direct.objective, rtol=2e-3, atol=1e-3)
    g = symgen.transfer(after, study.interactions(study.models[1], study.tuned_prompts))
    power = symgen.generalization_power(after, g).nanmean()
    assert values["H"].iloc[-1] == pytest.approx(float(power), abs=1e-6)
    strength = symgen.order_spectrum(after).abs().sum(1)[:, 1:3].sum(1).mean()
    assert values["strength_low"].iloc[-1] == pytest.approx(float(strength))


def test_tunings_of_different_length_share_their_checkpoints():
    class Stored(Trainings):
        def table(self, *_):
            steps = {0: [0, 5, 10], 10: [0, 6, 9]}
            rows = [(seed, step, "H", step / 10) for seed in steps for step in steps[seed]]
            return pd.DataFrame(rows, columns=["seed", "step", "quantity", "value"])

    by_step = curves(measure_tuning(symgen.LanguageStudy.of(TINY), 2, store=Stored()), "H")
    assert [*by_step] == [0, 6, 10]
    assert by_step.to_numpy().tolist() == [[0.0, 0.5, 1.0], [0.0, 0.6, 0.9]]
