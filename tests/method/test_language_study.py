"""Studies of language models: who learns from what, what is looked at, and what is planted."""

import csv
import dataclasses
import json
import math
import pickle

import pytest
import torch
from conftest import ROOT

import symgen
from symgen.book import presets
from symgen.data.planted import planted_reason
from symgen.data.texts import split_texts
from symgen.interactions import Interactions
from symgen.masking.prompts import Prompt
from symgen.method import language
from symgen.method.language import LanguageStudy, strongest_table
from symgen.method.tuning import Tuning

pytest.importorskip("transformers")

SMALL = {
    "dataset": "planted-facts", "train_size": 60, "vocabularies": [60, 30], "width": 16,
    "layers": 1, "epochs": 1, "samples": 3, "n": 3, "probability": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return LanguageStudy.of({**SMALL, "no_setting": 1})


@pytest.fixture
def learned(monkeypatch):
    """What each model was opened with, instead of any training."""
    calls = []

    def opened(name, texts, test, **settings):
        calls.append((name, texts, test, settings))
        return symgen.LanguageModel(f"opened {name}", torch.nn.Identity(), None, {})

    monkeypatch.setattr(language, "open_language_model", opened)
    return calls


@pytest.mark.parametrize(
    ("given", "meant"),
    [("vocabulareis", "vocabularies"), ("phrase", "phrases"), ("tune_epoch", "tune_epochs")],
)
def test_a_slip_in_a_chapters_parameters_is_refused(given, meant):
    parameters = {**SMALL, "old": "planted-facts", given: 1}
    with pytest.raises(ValueError, match=f'no "{given}". Did you mean "{meant}"'):
        (Tuning if "tune" in given else LanguageStudy).of(parameters)


@pytest.mark.parametrize("chapter", ["05_llm_interactions", "06_fine_tuning"])
def test_no_parameter_of_a_chapter_is_taken_for_a_slip(chapter):
    given = presets.defaults(presets.read_chapter(ROOT, chapter))
    kind = Tuning if "old" in given else LanguageStudy
    assert kind.of(given)


def test_a_prompt_of_ones_own_is_told_as_that(learned):
    assert LanguageStudy.of(SMALL).title == "opened tiny-llama on planted-facts"
    own = LanguageStudy.of(SMALL, prompt="The earth", target=" turns")
    assert own.title == "opened tiny-llama on a prompt of one's own"


def test_two_tiny_models_learn_from_a_half_each(learned):
    study = LanguageStudy.of(SMALL, train_size=None, seed=5)
    assert [lm.name for lm in study.models] == ["opened tiny-llama"] * 2
    assert study.title == "opened tiny-llama on planted-facts"
    (_, ours, test, first), (_, theirs, _, second) = learned
    parts = split_texts("planted-facts")
    assert (ours, theirs, test) == (parts["target"], parts["baseline"], parts["test"])
    assert (first["words"], second["words"]) == (60, 30)
    assert (first["seed"], second["seed"]) == (5, 6)
    assert first["width"] == second["width"] == 16


def test_models_are_trained_side_by_side_where_both_are(learned):
    """Each in another process, which gives nothing back: they are found stored."""
    asked = []

    def mapped(function, items):
        asked.append(list(items))
        assert [function(k) for k in asked[-1]] == [None, None]
        return pickle.loads(pickle.dumps(function.__self__)), None

    LanguageStudy.of(SMALL).train(mapped)
    assert asked == [[0, 1]] and [call[3]["seed"] for call in learned] == [0, 1]
    LanguageStudy.of(SMALL).train()
    assert learned[2:] == learned[:2]
    for loaded in ("model", "baseline"):
        LanguageStudy.of(SMALL, **{loaded: "some/where"}).train(mapped)
    assert len(asked) == 1 and len(learned) == 4


def test_a_baseline_alone_learns_from_both_halves(learned):
    assert LanguageStudy.of(SMALL, train_size=None, model="stories260k").models
    parts = split_texts("planted-facts")
    assert learned[1][1] == parts["baseline"] + parts["target"]
    learned.clear()
    assert LanguageStudy.of(SMALL, train_size=7, model="stories260k").models
    assert len(learned[1][1]) == 7


def test_a_change_that_a_study_does_not_have_is_refused():
    with pytest.raises(TypeError, match="no_setting"):
        LanguageStudy.of(SMALL, no_setting=1)


def test_prompts_are_drawn_for_both_tokenizers_or_ones_own(study):
    assert len(study.prompts) == 3 and {len(p.spans) for p in study.prompts} == {3}
    held = set(study.texts["test"])
    assert all(any(text.startswith(p.text) for text in held) for p in study.prompts)
    again = LanguageStudy.of(SMALL)
    again.__dict__.update(texts=study.texts, models=study.models)
    assert again.prompts == study.prompts
    own = LanguageStudy.of(SMALL, prompt="The sailor of the harbor will take", target=" rope", n=2)
    assert own.prompts == [Prompt.of("The sailor of the harbor will take", " rope", n=2)]


def test_interactions_are_those_of_the_model_as_the_study_masks(study):
    lm = study.models[0]
    v, inter = study.interactions(lm)
    assert v.shape == (3, 8) and len(inter) == 3
    wanted, _ = lm.interactions(study.prompts, masking="mean", progress=False)
    assert torch.equal(v, wanted)
    removed, _ = study.interactions(lm, study.prompts[:1], masking="remove")
    assert removed.shape == (1, 8)
    # Nothing is masked in the last state, whatever masks.
    assert removed[0, -1] == pytest.approx(float(v[0, -1]), abs=1e-5)
    assert not torch.allclose(removed, v[:1])


def test_choices_of_masking_are_compared_with_that_of_the_study(study):
    found, table = study.maskings(["remove", "_", "no such token", "remove"], count=2)
    assert list(found) == ["remove", "_", "mean"]
    assert table["masking"].tolist() == [*found] * 3
    rows = table.set_index(["measure", "masking"])
    for choice, inter in found.items():
        assert len(inter) == 2
        shared = symgen.transfer(found["mean"], inter)
        power = symgen.generalization_power(found["mean"], shared)
        expected = symgen.interval(power, share=True)
        # Its own share is no measurement, and has no interval.
        wanted = [1, 1, 1] if choice == "mean" else [*map(pytest.approx, expected)]
        assert [*rows.loc[("shared", choice)]] == wanted
        assert rows.loc[("v(none)", choice), "mean"] == pytest.approx(float(inter.bias.mean()))
        count = symgen.interaction_count(inter).mean()
        assert rows.loc[("interactions", choice), "mean"] == pytest.approx(float(count))


TAKE = "foggy monday in winter , the tall sailor of the harbor , hungry , will take"
GET = "foggy monday in winter , the sailor of the castle , hungry and starving , will get"


def with_effects(prompt, *effects):
    """Interactions of a prompt: type, words and effect of each."""
    tensors = torch.zeros(2, 2 ** len(prompt.words), dtype=torch.float64)
    for kind, words, effect in effects:
        members = sum(1 << prompt.words.index(word) for word in words)
        tensors[("and", "or").index(kind), members] = effect
    zero = torch.zeros((), dtype=torch.float64)
    return Interactions(*tensors, zero, tensors.abs().sum(), zero, tensors.sum())


def stacked(*parts):
    names = ("and_", "or_", "bias", "objective", "gap", "full")
    return Interactions(*(torch.stack([getattr(p, k) for p in parts]) for k in names))


def test_the_strongest_interaction_is_as_planted_where_type_and_words_are():
    take, get = Prompt.of(TAKE, " rope", n=6), Prompt.of(GET, " bread", n=6)
    assert planted_reason("take", take.words) == ("and", ("sailor", "harbor"))
    cases = [
        (take, [("and", ["sailor", "harbor"], -2.0), ("and", ["sailor"], 1.0)], True),
        (take, [("or", ["sailor", "harbor"], 2.0), ("and", ["sailor", "harbor"], 1.0)], False),
        (take, [("and", ["sailor", "harbor", "hungry"], 2.0)], False),
        (take, [], False),
        (get, [("or", ["hungry", "starving"], 3.0)], True),
        (get, [("or", ["hungry", "castle"], 3.0)], False),
    ]
    inter = stacked(*(with_effects(prompt, *effects) for prompt, effects, _ in cases))
    table = strongest_table(inter, [prompt for prompt, *_ in cases])
    assert table["as planted"].tolist() == [told for *_, told in cases]
    assert table["effect"].tolist() == pytest.approx([-2, 2, 2, math.nan, 3, 3], nan_ok=True)
    assert table["type"].tolist() == ["and", "or", "and", "none", "or", "or"]
    assert table.loc[0, "members"] == "sailor, harbor" and table.loc[3, "members"] == ""


@pytest.mark.parametrize(("text", "target"), [
    (TAKE, " iron"),  # not what is planted there
    ("The doctor of the village wanted to take", " soap"),  # no such place of a doctor
    ("The sailor left the harbor with a", " rope"),  # no verb of the small world
    ("The girl was happy and wanted to get", " bread"),  # no need
])  # fmt: skip
def test_where_nothing_is_planted_nothing_can_be_found(text, target):
    prompt = Prompt.of(text, target, n=2)
    inter = stacked(with_effects(prompt, ("and", prompt.words, 1.0)))
    assert strongest_table(inter, [prompt])["as planted"].isna().all()


def test_the_stored_page_has_found_the_planted_reasons():
    path = ROOT / "data/editions/quick/tables/05_llm_interactions.strongest.csv"
    if not path.is_file():
        pytest.skip("the chapter has no stored tables yet")
    with path.open(newline="") as file:
        found = [row["as planted"] == "True" for row in csv.DictReader(file)]
    assert sum(found) > len(found) / 2


PARAMETERS = {
    **SMALL, "old": "planted-facts", "dataset": "planted-facts-2", "tune_size": 40,
    "tune_epochs": 1, "checkpoints": 2, "batch_size": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def tuning():
    return Tuning.of(PARAMETERS)


def test_a_tuning_begins_with_the_model_of_the_old_domain(tuning):
    assert tuning.study.dataset == "planted-facts" and tuning.dataset == "planted-facts-2"
    assert tuning.title.endswith(" tuned from planted-facts to planted-facts-2")
    run, twin = tuning.runs
    base = dict(tuning.study.models[0].model.state_dict())
    for other in (run, twin):
        start = other.load(0).state_dict()
        assert all(torch.equal(base[name], start[name]) for name in start)
    ends = [other.load().state_dict() for other in (run, twin)]
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_losses_are_those_of_the_records(tuning):
    records = tuning.runs[0].records
    table = tuning.losses.pivot(index="step", columns="label", values="mean")
    assert list(table.columns) == ["new, held out", "new, tuned on", "old"]
    assert table["old"].tolist() == records["old_loss"].tolist()
    assert table["new, held out"].tolist() == records["test_loss"].tolist()


def test_courses_follow_one_tuning_beside_each_baseline(tuning):
    study, (run, twin) = tuning.study, tuning.runs
    other = study.models[1]
    assert list(tuning.courses) == [other.name, "twin"]
    assert set(tuning.held) == set(split_texts("planted-facts-2")["test"])
    assert all(any(t.startswith(p.text) for t in tuning.held) for p in tuning.prompts)
    course = tuning.courses["twin"]
    assert course.steps == run.steps and course.steps[0] == 0
    first = study.interactions(study.models[0], tuning.prompts)[1]
    assert torch.allclose(course.interactions[0].effects, first.effects, atol=1e-5)
    last = symgen.LanguageModel.at(twin)
    assert course.baselines == [study.interactions(last, tuning.prompts)[1]]
    beside = tuning.courses[other.name]
    assert beside.interactions == course.interactions
    assert beside.baselines == [study.interactions(other, tuning.prompts)[1]]


def test_another_process_gets_what_was_asked_for_and_not_what_was_loaded(tuning):
    assert tuning.title and tuning.runs and "models" in vars(tuning.study)
    sent = pickle.loads(pickle.dumps(tuning))
    assert sent == tuning and vars(sent).keys() == {f.name for f in dataclasses.fields(tuning)}
    assert "models" not in vars(sent.study)


def test_instructions_are_shared_out_and_learned_for_their_answers(tmp_path):
    letters = "abcdefghijklmnopqrst"
    rows = [{"instruction": f"say {x}", "input": "", "output": f"it is {x}"} for x in letters]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tuning = Tuning.of({**PARAMETERS, "dataset": str(path), "instructions": True, "tune_size": 5})
    assert tuning.held == [f"say {x}  it is {x}" for x in "afkp"]
    parts = {name: {row["output"] for row in some} for name, some in tuning._rows.items()}
    assert [len(some) for some in parts.values()] == [4, 8, 8]
    assert not parts["target"] & parts["baseline"] and not parts["test"] & parts["target"]
    base = tuning.study.models[0]
    pieces = tuning._pieces("baseline")
    assert len(pieces) == 5
    ids, first = pieces[0]
    assert base.tokenizer.decode(ids[first:], skip_special_tokens=True) == "it is d"
