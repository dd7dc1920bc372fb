"""The parameters of every preset fit its chapters: studies can begin, language chapters run.

Data sets are small generated ones with the same ids. Networks are built without weights, and
language models are replaced by one that a folder holds.
"""

import json

import matplotlib.pyplot as plt
import pytest
import torch
from conftest import ROOT
from IPython.display import display

import symgen
from symgen.book import notebooks
from symgen.data.texts import train_tokenizer
from symgen.models.language import tiny_llama

MIRROR = ROOT / "tests" / "data" / "mirror"
PRESETS = ["cpu", "gpu", "paper"]
STUDIES = [name for name in notebooks.contents(ROOT)
           if "network" in notebooks.defaults(notebooks.read_chapter(ROOT, name))]  # fmt: skip
# These sets have 3 classes of few images.
TRAIN_SIZE = {"zh-plus/tiny-imagenet": 6, "bentrevett/caltech-ucsd-birds-200-2011": 6}


def parameters(name, preset):
    defaults = notebooks.defaults(notebooks.read_chapter(ROOT, name))
    return defaults | notebooks.resolve(ROOT, name, preset, {})


def studies(values):
    """Yield every study that a chapter makes of its parameters."""
    values = values | values["settings"]
    known = symgen.Study.setting_names()
    main = symgen.Study.of({k: value for k, value in values.items() if k in known})
    further = [
        changes
        for name in ("others", "cuts", "ladder", "separate")
        for changes in values.get(name, [])
    ]
    if "text" in values:
        further.append(values["text"])
    yield main
    for changes in further:
        changes = {k: x for k, x in changes.items() if k not in ("seeds", "name", "nulls")}
        if "/" in changes.get("network", ""):  # weights of the hub, which tests do not have
            changes |= {"network": "bert-tiny", "options": {}}
        yield main.changed(**changes)
    planted = values.get("planted", {})
    for task in planted.get("tasks", []):
        if task["dataset"] != "planted-facts":  # of language models
            yield symgen.Study.of({"n": planted["n"], **task})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", STUDIES)
def test_the_studies_of_a_preset_can_begin(name, preset, monkeypatch):
    def without_weights(name, **options):
        with torch.device("meta"):
            return symgen.build_network(name, **options)

    monkeypatch.setenv("SYMGEN_DATA", str(MIRROR))
    monkeypatch.setattr("symgen.method.study.build_network", without_weights)
    for study in studies(parameters(name, preset)):
        words = min(study.n, 5)  # The generated texts are short.
        n = words if study.network.startswith("bert") else study.n
        size = TRAIN_SIZE.get(study.dataset, 10)
        study.changed(train_size=size, samples=3, n=n).check()


# Parameters of the chapters on language models, made tiny.
SMALL = {
    "train_size": 20, "epochs": 1, "seeds": 2, "samples": 2, "n": 3, "checkpoints": 1,
    "evaluation_size": 4, "tune_size": 8, "tune_epochs": 1, "probability": 0.0, "length": 32,
    "layers": 1, "batch_size": 4, "vocabularies": [60, 60], "lora": 2,
}  # fmt: skip


def tiny(value, name=""):
    """Return parameters with small numbers and models. None and 0 stay."""
    if value and name in SMALL:
        return SMALL[name]
    if name in ("model", "baseline") and value != "tiny-llama":
        return "mine/llama"
    if name == "gallery":
        return value[:2]
    if isinstance(value, dict):
        return {key: tiny(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [tiny(part) for part in value]
    return value


@pytest.fixture(scope="module")
def language_data(tmp_path_factory):
    """The generated texts, a set of instructions, and a model for which `_` is two tokens."""
    folder = tmp_path_factory.mktemp("data")
    for path in MIRROR.iterdir():
        (folder / path.name).symlink_to(path)
    question = "Which long rope will the old sailor of the northern harbor take to the boat"
    tokenizer = train_tokenizer([question, "The old sailor will take the boat ."] * 4, 40, 30)
    for part in (tokenizer, tiny_llama(len(tokenizer), 16, 1, seed=1)):
        part.save_pretrained(folder / "mine" / "llama")
    row = {"input": "", "output": "The old sailor will take the long rope to the boat ."}
    rows = [json.dumps({"instruction": f"{question} {k} ?", **row}) for k in range(60)]
    (folder / "Unilaw-R1-Data").mkdir()
    (folder / "Unilaw-R1-Data" / "train.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture
def ran(language_data, tmp_path, monkeypatch):
    """Run a chapter in this process, and return its variables."""
    for variable, value in {"SYMGEN_DATA": language_data, "SYMGEN_OUT": tmp_path}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    monkeypatch.chdir(ROOT / "chapters")

    def run(name, values, until=""):
        variables = {"display": display}
        for cell in notebooks.code_cells(notebooks.read_chapter(ROOT, name)):
            exec(compile(cell.source, name, "exec"), variables)
            if notebooks.has_tag(cell, "parameters"):
                variables |= values
            plt.close("all")
            if until and until in variables:
                break
        return variables

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("preset", ["gpu", "paper"])
@pytest.mark.parametrize("name", ["05_llm_interactions", "06_fine_tuning"])
def test_chapters_on_language_models_run_with_a_tiny_preset(name, preset, ran):
    ran(name, tiny(parameters(name, preset)))


@pytest.mark.filterwarnings("ignore")
def test_words_can_be_removed_and_a_gallery_can_hold_one_short_prompt(ran):
    values = tiny(parameters("05_llm_interactions", "paper"))
    prompt = {"prompt": "The old sailor", "target": " will", "phrases": ["old", "sailor"]}
    values |= {"gallery": [prompt], "settings": values["settings"] | {"masking": "remove"}}
    made = ran("05_llm_interactions", values, until="S")
    assert made["choices"] == [[], [0], [0, 1]]
    for masked in made["choices"]:
        state = 3 - sum(2**i for i in masked)
        expected = made["v_by_hand"](made["prompt"], masked)
        assert made["v"][state].item() == pytest.approx(expected, abs=1e-4)


def test_too_few_baselines_are_refused(ran):
    with pytest.raises(ValueError, match="baselines is 1; this chapter compares them: 2 or more"):
        ran("B_measure", {"baselines": 1})
