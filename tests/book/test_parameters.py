"""Every parameter a chapter admits it runs with; every other is refused before any work."""

import ast
import functools
import random
import re
import tempfile
import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import ROOT
from IPython.display import Markdown

import symgen
from symgen import Chapter, figures, load_dataset
from symgen.book import presets
from symgen.book.parameters import DATASETS, MODELS, NETWORKS, check_parameters
from symgen.book.rules import CHAPTERS, RULES
from symgen.data import datasets, hub as sources
from symgen.data.texts import split_texts
from symgen.method import (
    dynamics,
    extraction,
    language as language_studies,
    trainings,
    transfer,
    tuning,
)
from symgen.models import cost, language, loop, registry as networks

matplotlib.use("agg")


class Dead(torch.nn.Module):
    """A collapsed network, whatever it is trained on: its output does not depend on the image."""

    def __init__(self, classes, channels, image_size):
        super().__init__()
        self.relu, self.linear = torch.nn.ReLU(), torch.nn.Linear(channels, classes)

    def forward(self, x):
        return self.linear(0.0 * self.relu(x).mean((2, 3)))


networks.NETWORKS["dead"] = networks.Network(Dead)
NAMES = presets.chapter_names(ROOT)
TEXT = {"dataset": "planted-sentiment", "network": "bert-micro"}
# Less than what makes sense, so that a chapter takes seconds; what is not named here is as it is.
TINY = {"epochs": 1, "train_size": 60, "samples": 2, "n": 3, "checkpoints": 2, "seeds": 1,
        "others": [TEXT], "looks": 3, "width": 16, "layers": 1,
        "probability": 0.0, "tune_size": 40, "tune_epochs": 1, "baselines": 2, "m": 2, "pool": 4,
        "penalized": 2, "every": 2, "strengths": [0.1], "decays": [0.01],
        "side_seeds": 1, "comparison_seeds": 1, "planted": TEXT, "amounts": [[60, 1]],
        "label_noises": [0.0],
        "widths": [2], "small_grid": 2, "steps": 5, "functions": 2,
        "few": 1, "many": 9, "counts": [8], "calls": 40, "against": []}  # fmt: skip
#: The values that are tried of every parameter; a chapter's own follow by its name.
VALUES = {
    "n": (1, 2, 3, 6), "samples": (1, 2, 3), "sample": (0, 1, 2), "seed": (0, 3),
    "train_size": (1, 30, 60, None), "epochs": (1, 2), "checkpoints": (1, 2, 3), "seeds": (1, 2),
    "looks": (1, 2, 3), "first_epoch": (0, 0.5, 100), "grid": (1, 2, 5),
    "label_noise": (0, 0.2, 1.0), "noise": (0, 0.02, 0.9, 1), "baselines": (0, 1, 2),
    "split": (None, "halves", "test", "thirds", "parts:2"), "augment": (False, True),
    "learning_rate": (None, 1e-9, 0.05), "mixed_precision": ("no", "bf16"),
    "others": ([], [TEXT], [{**TEXT, "n": 3}]), "dataset": ("digits", "planted-sentiment"),
    "network": ("cnn", "bert-micro", "dead"), "noise_level": (0, 0.05, 1),
    "m": (1, 3), "pool": (1, 4), "penalized": (1, 3), "every": (1, 3), "evaluation_size": (1, 50),
    "strengths": ([0.1], [0, 5.0]), "decays": ([0], [0.01, 0.1]),
    "side_seeds": (1, 2), "comparison_seeds": (1, 2), "planted": (TEXT, {**TEXT, "n": 4}),
    "small_grid": (2, 3),
    "amounts": ([[60, 1]], [[30, 2], [60, 1]]), "label_noises": ([0.0], [0.2, 1.0]),
    "widths": ([1], [2, 3]), "steps": (1, 20), "kappas": ([], [0.0]), "levels": ([0.0], [0.5]),
    "sizes": ([1], [1, 2, 3], [2, 3]), "tau": (0.001, 0.05, 1.0), "kappa": (0, 0.9),
    "dtype": (None, "float16"), "few": (1, 2), "many": (8, 9, 25), "calls": (20, 60),
    "counts": ([4], [8, 16, 40]), "max_order": (1, 2, 4),
    "layer": ("first_relu", "input"), "against": ([], ["ProxySPEX"], ["SPEX", "ProxySPEX"]),
}  # fmt: skip
LANGUAGE = {
    "n": (1, 2, 3, 5, 6, 10), "train_size": (1, 60), "vocabularies": ([200, 60], [1, 1]),
    "layers": (1, 2), "length": (2, 64), "tail": (0, 1, 2, 100), "learning_rate": (1e-9, 0.004, 10),
    "dtype": (None, "float32"),
    # Whether a prompt is likely enough takes long to see where none is.
    "probability": (0.0, 1e-9, 1e-6, 1e-4, 1.0), "dataset": ("planted-facts", "planted-facts-2"),
}  # fmt: skip
# These take long, bfloat16 because a processor emulates it, and are tried once, by themselves.
SLOW = {
    "n": 11,
    "train_size": None,
    "mixed_precision": "bf16",
    "dtype": "float16",
    "against": ["SPEX", "ProxySPEX"],
}
QUICK = {"dataset": "digits", "network": "cnn", "others": [], "epochs": 1, "samples": 1, "n": 3,
         "train_size": 60}  # fmt: skip
# Their trainings are many, so that texts, which take longest, are tried once.
FOUR = {"n": (4, 5), "others": ([], [{**TEXT, "n": 4}])}
ONCE = {"others": ([], [{**TEXT, "n": 3}])}
OWN: dict[str, dict] = {
    "02_order_generalization": FOUR, "03_three_phase_dynamics": FOUR, "04_loss_gap_removal": FOUR,
    "where_phases_end": FOUR, "choices": FOUR, "A_sparsity_conditions": ONCE,
    "B_baseline_networks": ONCE, "C_similarity_metric": ONCE, "D_cross_validation": ONCE,
    "E_penalty": ONCE,
    # A map of all that can be mixed has eight cells, each with three networks.
    "when": {
        **FOUR, "dataset": ("digits",), "network": ("cnn",), "amounts": ([[60, 1]], [[30, 2]]),
        "label_noises": ([0.2], [0.0, 1.0]), "widths": ([1], [2, 3]),
    },
    # Eleven variables, for which another solver comes first, a deep network and patches of one
    # pixel take long, and are tried once, in 01.
    "00_planted_logic": {"n": (8, 9)},
    "01_interaction_extraction": {
        "n": (1, 3, 4, 11), "network": ("cnn", "resnet20", "bert-tiny", "dead"),
        "grid": (1, 2, 5, 20),
    },
    "more_variables": {"n": (6, 7)},
    "your_own_network": {"n": (2, 7), "epochs": (1,), "seed": (3,), "noise": (0,)},
    "05_llm_interactions": {
        **LANGUAGE, "masking": ("mean", "corpus", "remove", "_"), "whole": (False, True),
        "maskings": (["corpus"], ["two words"], ["mean", "_", "remove"]),
        # Nothing that these say is drawn, where a prompt is given.
        "prompt": ("", "windy monday in winter , the tall sailor of the harbor will find"),
        "target": ("", " gold"), "phrases": ([], ["windy monday", "sailor"]),
    },
    "06_fine_tuning": {
        **LANGUAGE, "tune_size": (1, 40), "tune_epochs": (1, 2), "tune_rate": (1e-9, 0.002, 10.0),
        "batch_size": (1, 1000), "lora": (0, 1), "old": ("planted-facts", "planted-facts-2"),
        "instructions": (False,), "further": ([], ["planted-facts"]),
    },
}  # fmt: skip
# A sentence about nothing: a share of no cases, or a number that does not exist.
NOTHING = re.compile(r"\b0 of 0\b|(?<![a-z])nan(?![a-z])|not defined ?%|\binf\b", re.IGNORECASE)


def base(name):
    """The parameters of a chapter, as small as in the sweep."""
    known = presets.defaults(presets.read_chapter(ROOT, name))
    small = {**TINY, "others": []} if OWN.get(name, {}).get("others") else TINY
    return {**known, **{k: v for k, v in small.items() if k in known}}


@pytest.fixture(autouse=True)
def still_figures(monkeypatch):
    """Figures of a slider stay open to be read, and none is rendered."""

    def slider(figures, label=""):
        assert figures, "a slider needs a figure"

    monkeypatch.setattr(figures, "slider", slider)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Other processes do not know the networks that are registered here."""
    monkeypatch.setattr(
        Chapter, "map", staticmethod(lambda function, items: [*map(function, items)])
    )


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """A chance level is an average over draws; two of them go the same way as twenty."""
    whole = transfer.chance_level

    def level(*given, draws=2, **options):
        return whole(*given, draws=min(draws, 2), **options)

    for place in (symgen, transfer, dynamics, extraction, trainings):
        monkeypatch.setattr(place, "chance_level", level)


@pytest.fixture(autouse=True)
def few_evaluated(monkeypatch):
    """Losses and accuracies are means over samples; those of forty are found the same way."""
    whole = loop.evaluate

    def evaluate(model, part, size=None, *objective):
        return whole(model, part, min(size or 40, 40), *objective)

    monkeypatch.setattr(loop, "evaluate", evaluate)


@pytest.fixture(autouse=True)
def no_trial(monkeypatch):
    """What a training will take is timed by a few of its steps, which are most of one as small."""
    monkeypatch.setattr(cost, "seconds_per_step", lambda loop: 0.01)


@pytest.fixture(autouse=True, scope="module")
def read_once():
    """Rows do not change from one set of parameters to the next."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(datasets, "read_rows", functools.cache(sources.read_rows))
        yield


@functools.cache
def few_texts(name):
    """The first texts of every part: where none will do as a prompt, all of them are tried."""
    return {part: texts[:80] for part, texts in split_texts(name).items()}


@pytest.fixture(autouse=True)
def short_searches(monkeypatch):
    for place in (language_studies, tuning):
        monkeypatch.setattr(place, "split_texts", few_texts)


def admitted(name, values):
    try:
        check_parameters(name, values)
    except ValueError:
        return False
    return True


def exercised(name):
    """A set of parameters that leaves the exercises something to be wrong about."""
    start, own = base(name), OWN.get(name, {})
    n = next(n for n in own.get("n", VALUES["n"]) if n >= 4)
    return start | {k: v for k, v in {"n": n, "epochs": 2, "samples": 3}.items() if k in start}


def combinations(name):
    """Few sets of admissible parameters in which every admissible value occurs at least once.

    The first is that of the exercises.
    """
    draw, start = random.Random(0), base(name)
    values = {k: v for k, v in {**VALUES, **OWN.get(name, {})}.items() if k in start}
    start |= {
        k: v[0] for k, v in OWN.get(name, {}).items() if k in start and not admitted(name, start)
    }
    found = [exercised(name)]
    missing = [(k, v) for k, options in values.items() for v in options if found[0][k] != v]
    while missing:
        key, value = missing[0]
        for attempt in range(200):
            left = {k: [*values[k], *[v for kk, v in missing if kk == k] * 4] for k in values}
            # What takes long is tried by itself.
            left = {
                k: [v for v in options if k not in SLOW or v != SLOW[k]]
                for k, options in left.items()
            }
            # Ever fewer changes to what surely runs, until the value fits.
            kept = [k for k in values if draw.random() * 200 > attempt]
            chosen = {**start, **{k: draw.choice(left[k]) for k in kept}, key: value}
            if key in SLOW and value == SLOW[key]:
                chosen |= {k: v for k, v in QUICK.items() if k in start and k != key}
            if admitted(name, chosen):
                found.append(chosen)
                break
        else:
            chosen = {key: value}
        missing = [(k, v) for k, v in missing if k not in chosen or chosen[k] != v]
    return found


def run_cell(source, space):
    """Run code as a notebook does; return all that it says: sentences, prints, figures."""
    said, body = [], ast.parse(source).body
    space["print"] = lambda *words: said.append(" ".join(map(str, words)))
    last = body.pop().value if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last), "cell", "eval"), space)
        said.append(getattr(value, "data" if isinstance(value, Markdown) else "text", ""))
    drawn = map(plt.figure, plt.get_fignums())
    said += [text.get_text() for f in drawn for text in f.findobj(matplotlib.text.Text)]
    return "\n".join(said)


def run_chapter(name, parameters):
    """Run a chapter's code cells here; yield each cell's number, names and what it said."""
    space = {"__name__": "__main__", **parameters}
    try:
        for k, cell in enumerate(presets.read_chapter(ROOT, name).cells):
            if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
                try:
                    yield k, space, run_cell(cell.source, space)
                except Exception as error:
                    error.add_note(f"in cell {k}: {cell.source}")
                    raise
                finally:
                    plt.close("all")
    finally:  # also of a chapter that is left before its end
        for value in space.values():
            if isinstance(value, tempfile.TemporaryDirectory):
                value.cleanup()


def solved(exercise, page):
    """The code of an exercise with what stands for the reader's own replaced by the solution."""
    own = re.search(r"\{solution\}.*?```python\n(.*?)```", page, re.DOTALL)
    assert own, "the solution after an exercise in code shows code that passes"
    lines, body = exercise.splitlines(), ast.parse(exercise).body
    mine = next(node for node in body if re.search(r"\byour_\w+", ast.unparse(node)))
    return "\n".join([*lines[: mine.lineno - 1], own[1], *lines[mine.end_lineno :]])


def run_and_solve(name, parameters):
    """Run a chapter whose exercises say "not yet", and "correct" once they are solved."""
    cells = presets.read_chapter(ROOT, name).cells
    exercises = {k for k, cell in enumerate(cells) if 'print("correct"' in cell.source}
    for k, space, said in run_chapter(name, parameters):
        yield k, space, said
        if k in exercises:
            exercises.remove(k)
            assert "not yet" in said and "correct" not in said, said
            again = run_cell(solved(cells[k].source, cells[k + 1].source), space)
            assert again.strip() == "correct"
    assert not exercises


@pytest.mark.parametrize("name", NAMES)
def test_a_chapter_runs_with_every_value_that_it_admits_and_its_exercises_can_be_solved(name):
    start = base(name)
    for number, chosen in enumerate(combinations(name)):
        changed = {k: v for k, v in chosen.items() if v != start[k]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as: this training ends near chance
            try:
                run = run_chapter if number else run_and_solve
                said = "\n".join(said for *_, said in run(name, chosen))
            except Exception as error:
                # Rounding decides whether the largest rates go to the end, and a GPU's is another.
                if torch.cuda.is_available() and "try a tenth of it" in str(error):
                    continue
                error.add_note(f"{name} with {changed}")
                raise
        found = NOTHING.search(said)
        about = found and said[max(0, found.start() - 150) : found.end() + 50]
        assert not found, f"{name} with {changed} says: {about}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", presets.preset_names(ROOT))
def test_presets_are_admitted(name, preset):
    known = presets.defaults(presets.read_chapter(ROOT, name))
    check_parameters(name, {**known, **presets.resolve(ROOT, name, preset, {})})
    assert set(known) <= {*RULES, "device_map"}


def test_the_names_known_here_are_those_of_the_registries():
    kinds = {k: network.kind for k, network in networks.NETWORKS.items() if k != "dead"}
    assert kinds == NETWORKS
    assert set(DATASETS) == set(sources.DATASETS)
    assert set(MODELS) == {"tiny-llama", *language.CAUSAL_LMS}
    assert {c for chapter in CHAPTERS.values() for c in chapter} <= set(RULES)


@pytest.mark.parametrize("name", [name for name, known in DATASETS.items() if known.train])
def test_sizes_known_of_embedded_data_are_theirs(name):
    known = DATASETS[name]
    for split, counts in (("train", known.train), ("test", known.test)):
        rows = sources.read_rows(name, split)
        assert tuple(map(int, np.bincount(rows.labels))) == counts
        assert rows.kind == known.kind
    # What is admitted can be dealt, and one more or less cannot.
    for split, count in (("halves", 2), ("thirds", 3), ("parts:4", 5)):
        most = sum(c // count for c in known.train)
        for size in (len(known.train), len(known.train) + 3, most):
            load_dataset(name, train_size=size, split=split)
        for size in (len(known.train) - 1, most + 1):
            with pytest.raises(ValueError):
                load_dataset(name, train_size=size, split=split)


REFUSED = {
    "n": (0, 17, 2.5, True, None, "ten"), "samples": (0, -1, 450), "sample": (-1, 12),
    "seed": (-1, 2**40), "seeds": (0, 10**6), "epochs": (0, 10**9), "checkpoints": (0,),
    "grid": (0, 2, 21),
    "label_noise": (-0.1, 1.1, float("nan")), "noise": (-0.1, float("inf")), "looks": (0,),
    "train_size": (0, 9, 10**6), "mixed_precision": ("fp8", True),
    "learning_rate": (0, -1, 1e308),
    "dataset": ("digit", "", "planted-sentiment", "a//b", "../b", "a/b\n", "x" * 301),
    "network": ("cn", "bert-micro", "vgg11"),
    "others": ({}, [1], [{"layers": 3}], [{"n": 99}], [{"dataset": "planted-sentiment"}],
               [{**TEXT, "n": 11}], [TEXT, TEXT], [{"epochs": 3}]),
    "planted": ([], {"sample": 1}, {"samples": 0}), "split": ("half", "parts:0"),
    "baselines": (-1, 99), "sizes": ([], [0]), "tau": (0, 1.5),
    "layer": ("",), "few": (0, 100), "many": (7, 26, 63),
    "counts": ([], [3], [2**12]), "calls": (3,),
    "max_order": (0,), "against": (["LIME"],),
}  # fmt: skip
REFUSED_LANGUAGE = {
    "n": (0, 11, 17, 2.5), "model": ("tiny-lama", ""), "baseline": ("nope",), "old": ("digits",),
    "further": (["nowhere"], ["planted-facts-2"]),
    "dataset": ("planted-fact", "digits", "uoft-cs/cifar10"), "width": (0, 8, 20), "layers": (0,),
    "vocabularies": ([200], [200, 0], 200), "length": (1,), "tail": (-1,), "epochs": (0,),
    "learning_rate": (None, 0), "dtype": ("float31",), "probability": (-0.1, 1.1),
    "target": (" gold",), "phrases": (["sailor"],), "prompt": ("The sailor",), "masking": ("",),
    "maskings": ([], [""]), "whole": (1,), "instructions": (True,), "tune_size": (0,),
    "tune_rate": (0,), "tune_epochs": (0,), "batch_size": (0,), "lora": (-1,),
    "mixed_precision": ("fp16",),
}  # fmt: skip


@pytest.mark.parametrize(("change", "name"), [
    ({"n": 3}, "prompt"), ({"n": 2, "target": " "}, "target"),
    ({"phrases": ["the ship"]}, "phrases"), ({"phrases": ["harbor", "sailor"]}, "phrases"),
])  # fmt: skip
def test_a_prompt_that_lacks_its_variables_or_its_target_is_refused(change, name):
    known = presets.defaults(presets.read_chapter(ROOT, "05_llm_interactions"))
    own = {"prompt": "The sailor of the harbor will take", "target": " rope", "n": 2}
    check_parameters("05_llm_interactions", {**known, **own})
    told = rf"cannot run with {name} = .*: expected a prompt that has"
    with pytest.raises(ValueError, match=told):
        check_parameters("05_llm_interactions", {**known, **own, **change})


def test_a_file_of_instructions_is_seen_from_where_the_program_started(monkeypatch, tmp_path):
    known = presets.defaults(presets.read_chapter(ROOT, "06_fine_tuning"))
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    given = {**known, "dataset": "./rows.jsonl", "instructions": True}
    with pytest.raises(ValueError, match="expected the path of a file, and there is none; paths"):
        check_parameters("06_fine_tuning", given)
    (tmp_path / "rows.jsonl").touch()
    check_parameters("06_fine_tuning", given)
    with pytest.raises(ValueError, match="for a file of instructions also instructions = True"):
        check_parameters("06_fine_tuning", {**given, "instructions": False})
    # A chapter without instructions takes no file, and is not told to ask for them.
    without = presets.defaults(presets.read_chapter(ROOT, "05_llm_interactions"))
    with pytest.raises(ValueError, match="dataset = './rows.jsonl': expected the path of a folder"):
        check_parameters("05_llm_interactions", {**without, "dataset": "./rows.jsonl"})


@pytest.mark.parametrize("name", NAMES)
def test_values_out_of_range_are_refused_with_given_expected_and_what_to_do(name):
    known = presets.defaults(presets.read_chapter(ROOT, name))
    if "network" in known:
        refused = REFUSED
    else:  # its data have no labels, or are made here
        refused = {"n": (0, 17, 2.5), "samples": (0,), "seed": REFUSED["seed"], "noise": (-1,)}
        refused |= REFUSED_LANGUAGE if "model" in known else {}
    for key, values in refused.items():
        for value in values if key in known else ():
            with pytest.raises(ValueError, match="cannot run with .*: expected"):
                check_parameters(name, {**known, key: value})


def test_a_chapter_checks_before_it_starts():
    with pytest.raises(ValueError, match=r"n = 99: expected a whole number from 4 to 16"):
        Chapter("02_order_generalization", {"n": 99})


def test_names_registered_later_are_known(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "mine", networks.NETWORKS["cnn"])
    monkeypatch.setitem(sources.DATASETS, "ours", sources.DATASETS["digits"])
    check_parameters("x", {"network": "mine", "dataset": "ours", "n": 4})
    with pytest.raises(ValueError, match=r"patches of a 2x2 grid"):
        check_parameters("x", {"network": "mine", "dataset": "ours", "n": 5, "grid": 2})


@pytest.mark.parametrize("key", ["dataset", "network"])
@pytest.mark.parametrize("name", ["./nowhere", "~/nowhere", "/nowhere/at/all"])
def test_a_path_without_a_folder_is_said_to_be_one(tmp_path, monkeypatch, key, name):
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    assert sources.is_path(name)  # where data and models are looked for, too
    given = {"network": "cnn", "dataset": "digits", "n": 4, key: name}
    with pytest.raises(ValueError, match=f"a folder, and there is none; .* from {tmp_path}"):
        check_parameters("x", given)
    (tmp_path / "nowhere").mkdir()
    if (key, name) == ("dataset", "./nowhere"):
        check_parameters("x", given)
