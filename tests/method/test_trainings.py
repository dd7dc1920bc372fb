"""Measured trainings are read, measured and kept in one way, and damaged files are noticed."""

import json

import pandas as pd
import pytest
import torch

import symgen
from symgen.method import trainings
from symgen.method.study import Study
from symgen.method.trainings import OutOfTime, Part, Trainings
from symgen.storage import DamagedFileWarning

STUDY = Study.of({"train_size": 60})
CALLS: list[int] = []


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    CALLS.clear()


def row(study, quantity, value):
    columns = ["seed", "step", "quantity", "order", "sign", "value"]
    return pd.DataFrame([(study.seed, 5, quantity, None, None, value)], columns=columns)


def power(study):
    CALLS.append(study.seed)
    return row(study, "H", study.seed / 3)


def null(study):
    CALLS.append(-study.seed)
    return row(study, "untrained", 0.1)


def threads(study):
    return row(study, "H", torch.get_num_threads())


MAIN = Part(power, lambda rows: rows["quantity"] == "H")
NULL = Part(null, lambda rows: rows["quantity"] == "untrained")


def table(store, seeds, parts=(MAIN,), study=STUDY, workers=1):
    studies = [study.changed(seed=seed) for seed in seeds]
    return store.table("measure", studies, parts, workers)


def test_missing_trainings_are_measured_and_found_again(tmp_path):
    first = table(Trainings(), [1, 2])
    assert CALLS == [1, 2] and first["value"].tolist() == [1 / 3, 2 / 3]
    store = Trainings()
    again = table(store, [2, 3, 1])
    assert CALLS == [1, 2, 3] and sorted(again["seed"]) == [1, 2, 3]
    assert set(store.used) == {(name, k) for name, _ in store.used for k in (1, 2, 3)}
    # A part that is asked for later is added to what is known.
    both = table(Trainings(), [1], (MAIN, NULL))
    assert CALLS == [1, 2, 3, -1] and both["quantity"].tolist() == ["H", "untrained"]
    table(Trainings(), [1], (MAIN, NULL))
    assert CALLS == [1, 2, 3, -1]
    assert not list(tmp_path.glob("*.csv")), "only the cache is written"


def test_with_a_commit_the_folder_is_written(tmp_path, monkeypatch):
    table(Trainings(tmp_path, commit="abc1234"), [0, 10])
    index = trainings.read_index(tmp_path)
    assert list(index.columns) == trainings.INDEX and index["seed"].tolist() == [0, 10]
    assert json.loads(index["settings"][0]) == STUDY.settings and set(index["commit"]) == {
        "abc1234"
    }
    assert index["rows"].tolist() == [1, 1]
    lines = (tmp_path / f"{index['study'][0]}.csv").read_bytes().decode().split("\n")
    assert lines[0] == "seed,step,quantity,order,sign,value" and "\r" not in lines[1]
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "empty"))
    CALLS.clear()
    store = Trainings(tmp_path)
    read = table(store, [10])
    assert CALLS == [] and read["value"].tolist() == [pytest.approx(10 / 3)]
    assert [device for _, device in store.used.values()] == ["cpu", "cpu"]
    # Other settings, and results of another version, are measured.
    table(store, [10], study=STUDY.changed(n=3))
    monkeypatch.setitem(trainings.VERSION, "measure", 99)
    table(store, [10])
    assert CALLS == [10, 10]


DAMAGES = {
    "rows lost": lambda text: text.rsplit("\n", 2)[0] + "\n",
    "a digit changed": lambda text: text.replace("3.333333", "3.333334"),
    "conflict markers": lambda text: "<<<<<<< HEAD\n" + text,
    "cut off": lambda text: text[: len(text) // 2],
    "a row twice": lambda text: text + text.splitlines()[-1] + "\n",
    "empty": lambda text: "",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_noticed_and_measured_again(tmp_path, damage):
    """Before, such a file silently gave fewer trainings, or none."""
    whole = table(Trainings(tmp_path, commit="abc1234"), [0, 10])
    (path,) = [p for p in tmp_path.glob("*.csv") if p.name != "index.csv"]
    path.write_text(DAMAGES[damage](path.read_text()))
    with pytest.warns(DamagedFileWarning, match="measured again"):
        again = table(Trainings(tmp_path), [0, 10])
    assert again.sort_values("seed")["value"].tolist() == pytest.approx(whole["value"].tolist())


def test_measuring_stops_between_two_trainings(tmp_path):
    with pytest.raises(OutOfTime, match="1 of 3 trainings measured; run again"):
        table(Trainings(until=0.0), [1, 2, 3])
    table(Trainings(), [1])
    assert CALLS.count(1) == 1


def test_a_readers_data_are_known_by_their_content_and_a_function_is_not_kept(tmp_path):
    from PIL import Image

    for k in range(40):
        place = tmp_path / "photos" / "ab"[k % 2] / f"{k}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (6 * k, 0, 0)).save(place)
    mine = {"dataset": str(tmp_path / "photos"), "train_size": 8}
    table(Trainings(), [1], study=Study.of(mine))
    table(Trainings(), [1], study=Study.of(mine))
    assert CALLS == [1]
    for place in (tmp_path / "photos").rglob("*.png"):
        Image.new("RGB", (20, 20), (0, 200, 0)).save(place)
    table(Trainings(), [1], study=Study.of(mine))
    assert CALLS == [1, 1]
    function = STUDY.changed(network="mine:build")
    table(Trainings(), [1], study=function)
    table(Trainings(), [1], study=function)
    assert CALLS == [1] * 4


def test_processes_run_side_by_side_with_as_many_threads_as_this_one():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = table(Trainings(), [1, 2, 3], (Part(threads, MAIN.select),), workers=2)
    finally:
        torch.set_num_threads(before)
    assert found["seed"].tolist() == [1, 2, 3] and found["value"].tolist() == [3, 3, 3]


def test_a_measured_training_is_not_trained_again(monkeypatch):
    tiny = Study.of({"train_size": 60, "epochs": 1, "samples": 4, "n": 4, "checkpoints": 1,
                     "evaluation_size": 50})  # fmt: skip
    one = symgen.measure(tiny)
    with monkeypatch.context() as patch:
        patch.setattr(Study, "runs", property(lambda self: pytest.fail("trained")))
        pd.testing.assert_frame_equal(symgen.measure(tiny), one, rtol=1e-6)
    added = symgen.measure(tiny, nulls=True)
    names = {"untrained", "untrained_low", "untrained_rest", "untrained_agreement"}
    assert names <= {*added["quantity"]} and not names & {*symgen.measure(tiny)["quantity"]}
