"""Stored files are whole, or noticed and made again."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import ROOT
from safetensors import SafetensorError

from symgen import load_dataset, storage, train
from symgen.files import atomic
from symgen.models.checkpoints import Store
from symgen.models.loop import Loop
from symgen.storage import DamagedFileWarning, cached, fetch, store


def test_atomic_leaves_all_or_nothing(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with pytest.raises(RuntimeError, match="half way"), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("half way")
    assert list(path.parent.iterdir()) == []
    with atomic(path) as temporary:
        temporary.write_text("whole")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_store_and_fetch_are_inverse(tmp_path):
    path = tmp_path / "a.safetensors"
    shared = torch.arange(6.0)
    tensors = {"whole": shared, "part": shared[2:4], "turned": shared.reshape(2, 3).T}
    store(path, tensors, {"seed": 3})
    found, info = fetch(path)
    assert info == {"seed": 3}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], tensors[k]) for k in tensors)
    assert fetch(tmp_path / "b.safetensors") is None


def test_damage_is_reported_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    calls = []

    def compute():
        calls.append(1)
        return {"x": torch.ones(2)}

    def get():
        return cached("kind", {"seed": 0}, compute)["x"].tolist()

    assert (get(), get(), len(calls)) == ([1, 1], [1, 1], 1)
    (tensors,) = (tmp_path / "kind").glob("*.safetensors")
    whole = tensors.read_bytes()
    for damaged in (whole[:-1], b"", whole[:-1] + b"\x01"):
        tensors.write_bytes(damaged)
        with pytest.warns(DamagedFileWarning, match=r"damaged .* computed again"):
            assert get() == [1, 1]
        assert tensors.read_bytes() == whole
    info = tensors.with_suffix(".json")
    for text in ("{", "{}", "[]"):
        info.write_text(text)
        with pytest.warns(DamagedFileWarning):
            assert get() == [1, 1]
    info.unlink()  # as after a run that was killed between the two files
    assert get() == [1, 1]
    assert len(calls) == 8


def test_the_cache_is_where_it_was_told_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    assert storage.cache_folder() == tmp_path
    monkeypatch.delenv("SYMGEN_CACHE")
    assert storage.cache_folder().parts[-2:] == (".cache", "symgen")


# Bound to their place --------------------------------------------------------------------------


def put(folder, *names):
    """Store something different under each name, and return the paths."""
    paths = [folder / f"{name}.safetensors" for name in names]
    for number, path in enumerate(paths):
        store(path, {"x": torch.full((3,), float(number))}, {"step": number, "loss": 0.5})
    return paths


ODD = ("", "null", "[]", "3", "{}", '{"sha256": null}', "\xff", "[" * 100_000, "9" * 5000)


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:9] or "nothing")
def test_a_description_that_was_never_written_is_damage(tmp_path, text):
    (path,) = put(tmp_path, "a")
    path.with_suffix(".json").write_bytes(text.encode("latin-1"))
    with pytest.warns(DamagedFileWarning, match=r"a\.safetensors is damaged"):
        assert fetch(path) is None


def test_one_digit_of_a_description_changed_is_damage(tmp_path):
    (path,) = put(tmp_path, "a")
    described = path.with_suffix(".json")
    whole = described.read_text()
    for place in [i for i, letter in enumerate(whole) if letter.isdigit()]:
        other = str((int(whole[place]) + 1) % 10)
        described.write_text(whole[:place] + other + whole[place + 1 :])
        with pytest.warns(DamagedFileWarning):
            assert fetch(path) is None
    described.write_text(whole)
    assert fetch(path)[1] == {"step": 0, "loss": 0.5}


@pytest.mark.parametrize("suffixes", [[".json"], [".safetensors"], [".json", ".safetensors"]])
@pytest.mark.parametrize("names", [("run/a", "run/b"), ("run/a", "other/a")])
def test_files_that_changed_places_are_damage(tmp_path, names, suffixes):
    first, second = put(tmp_path, *names)
    for suffix in suffixes:
        one, two = first.with_suffix(suffix), second.with_suffix(suffix)
        content = one.read_bytes(), two.read_bytes()
        one.write_bytes(content[1])
        two.write_bytes(content[0])
    for path in (first, second):
        with pytest.warns(DamagedFileWarning, match=r"is damaged"):
            assert fetch(path) is None


def test_the_whole_cache_can_be_moved(tmp_path, monkeypatch):
    (path,) = put(tmp_path / "one" / "run", "a")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    monkeypatch.chdir(tmp_path / "two" / "run")
    assert fetch(tmp_path / "two" / "run" / path.name)[0].keys() == {"x"}
    assert fetch(path.name)[1]["step"] == 0


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_folder_in_place_of_a_file_is_named_and_kept(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    cached("kind", {"seed": 0}, lambda: {"x": torch.ones(1)})
    (path,) = (tmp_path / "kind").glob(f"*{suffix}")
    path.unlink()
    path.mkdir()
    (path / "mine.txt").write_text("a letter")
    with pytest.warns(DamagedFileWarning, match=r"cannot be read"):
        cached("kind", {"seed": 0}, lambda: {"x": torch.ones(1)})
    assert cached("kind", {"seed": 0}, lambda: pytest.fail("again"))["x"] == 1
    assert [p.read_text() for p in tmp_path.rglob("mine.txt")] == ["a letter"]


def test_a_file_that_may_not_be_read_counts_as_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    cached("kind", {"seed": 0}, lambda: {"x": torch.ones(1)})

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(storage, "sha256", refused)
    (path,) = (tmp_path / "kind").glob("*.safetensors")
    with pytest.warns(DamagedFileWarning, match=r"cannot be read .*Permission denied.*again"):
        assert fetch(path) is None


def digit(path):
    """Change one digit of what was measured."""
    text = path.read_text()
    place = next(i for i, letter in enumerate(text) if letter in "123456789")
    path.write_text(text[:place] + str(int(text[place]) - 1) + text[place + 1 :])


def null(path):
    path.write_text("null")


def folder(path):
    path.unlink()
    path.mkdir()


def swap(path):
    """Let a checkpoint and the one before it change places."""
    pairs = [sorted(path.parent.glob(f"step-*{suffix}"))[1:3] for suffix in (".json", ".s*")]
    for one, two in pairs:
        one.rename(path.with_name("aside"))
        two.rename(one)
        path.with_name("aside").rename(two)


# So few steps need not teach a network anything.
@pytest.mark.filterwarnings("ignore:.*near chance")
@pytest.mark.parametrize("change", [digit, null, folder, swap])
def test_a_training_computes_again_what_was_changed(tmp_path, monkeypatch, change):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    data = load_dataset("digits", train_size=60, test_size=20)
    options = {"epochs": 1, "batch_size": 10, "checkpoints": 4, "progress": False}
    run = train("cnn", data, **options)
    records, weights = run.records, [run.load(step).state_dict() for step in run.steps]
    change(sorted(run.folder.glob("step-*.json"))[2])
    with pytest.warns(DamagedFileWarning, match=r"step-\d+\.json (is damaged|cannot be read)"):
        again = train("cnn", data, **options)
    assert again.records.equals(records)
    for step, expected in zip(run.steps, weights, strict=True):
        found = again.load(step).state_dict()
        assert all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.filterwarnings("ignore:.*near chance")
@pytest.mark.parametrize(
    "change, suffix", [(digit, "json"), (folder, "json"), (null, "safetensors")]
)
def test_a_changed_state_is_not_gone_on_from(tmp_path, monkeypatch, change, suffix):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    data = load_dataset("digits", train_size=60, test_size=20)
    options = {"epochs": 1, "batch_size": 10, "checkpoints": [2, 4], "progress": False}
    expected = train("cnn", data, **options, cache=False).load().state_dict()

    def stop(self, step, loss):
        if step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "check", stop)
        train("cnn", data, **options)
    (state,) = tmp_path.glob(f"training/*/resume-*.{suffix}")
    change(state)
    with pytest.warns(DamagedFileWarning, match=r"resume-00000002"):
        found = train("cnn", data, **options).load().state_dict()
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert not [p for p in tmp_path.glob("training/*/resume-*") if p.is_file()]


def test_what_a_killed_training_left_half_written_goes_with_its_states(tmp_path):
    kept = Store(tmp_path, (0,))
    left = [tmp_path / f".step-00000001.{s}.{'0' * 32}.part" for s in ("json", "safetensors")]
    for path in left:
        path.write_text("half")
    kept.discard_states()
    assert not list(tmp_path.iterdir())


# Where nothing can be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        PermissionError(13, "Permission denied"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
    ],
)
def test_what_cannot_be_stored_is_returned_all_the_same(tmp_path, monkeypatch, error):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))

    def fails(*_):
        raise error

    monkeypatch.setattr(storage, "save_file", fails)
    with pytest.warns(UserWarning, match=r"could not be stored in .*SYMGEN_CACHE") as told:
        assert cached("kind", {"seed": 0}, lambda: {"x": torch.ones(1)})["x"] == 1
    assert len(told) == 1
    assert not list(tmp_path.rglob("*.part"))


def test_a_cache_that_is_no_folder_costs_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be stored"):
        assert cached("kind", {"seed": 0}, lambda: {"x": torch.ones(1)})["x"] == 1


def test_without_a_home_the_way_out_is_told(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SYMGEN_CACHE")
    monkeypatch.setattr(storage.Path, "home", homeless)
    with pytest.raises(OSError, match=r"no home folder.*set SYMGEN_CACHE"):
        cached("kind", {"seed": 0}, lambda: pytest.fail("computed in vain"))


def test_what_was_stored_stays_whole_until_the_new_is_written(tmp_path, monkeypatch):
    (path,) = put(tmp_path, "a")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        store(path, {"x": torch.zeros(1)}, {})
    assert fetch(path)[1]["step"] == 0


def test_all_files_of_a_result_may_be_read_by_those_who_may_read_one(tmp_path):
    """In a cache that several people share, tensors no less than their description."""
    before = os.umask(0o027)
    try:
        (path,) = put(tmp_path, "a")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("a.*")} == {0o640}
    assert path.suffix == ".safetensors"


def test_a_description_that_another_writer_is_about_to_replace_is_read_again(tmp_path, monkeypatch):
    """Tensors are put in their place first: a reader between the two sees no damage."""
    (path,) = put(tmp_path, "a")
    early = path.with_suffix(".json").read_text()
    store(path, {"x": torch.ones(3)}, {"step": 1})
    late = path.with_suffix(".json").read_text()
    path.with_suffix(".json").write_text(early)
    whole = storage.sha256

    def meanwhile(place):
        path.with_suffix(".json").write_text(late)
        return whole(place)

    monkeypatch.setattr(storage, "sha256", meanwhile)
    tensors, info = fetch(path)
    assert info == {"step": 1} and len(tensors["x"]) == 3


# Names of temporary files ----------------------------------------------------------------------


def test_two_writers_of_one_path_do_not_share_a_temporary_name(tmp_path):
    path = tmp_path / "file"
    with atomic(path) as first, atomic(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"


def test_threads_write_one_path_at_once(tmp_path):
    path = tmp_path / "a.safetensors"

    def write(number):
        store(path, {"x": torch.full((1000,), float(number))}, {"number": number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert not list(tmp_path.glob("*.part"))
    store(path, {"x": torch.ones(1)}, {})
    assert fetch(path)[0]["x"] == 1


def test_what_killed_writers_left_is_deleted_after_a_day(tmp_path):
    def left(name, days):
        path = tmp_path / name
        path.write_text("half")
        then = time.time() - days * 86400
        os.utime(path, (then, then))
        return path

    code = f"import symgen.storage as p, os\nwith p.atomic({str(tmp_path / 'a')!r}) as t:\n"
    code += "    t.write_text('half')\n    os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    (killed,) = tmp_path.iterdir()
    fresh = left(killed.name.replace(".a.", ".b."), 0)
    foreign = [left("film.part", 9), left(".film.mkv.7.part", 9)]
    left(killed.name, 2)
    with atomic(tmp_path / "c") as temporary:
        temporary.write_text("whole")
    assert sorted(tmp_path.iterdir()) == sorted([fresh, *foreign, tmp_path / "c"])


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Results that come with a book, as one of its authors makes them, with no cache to help."""
    monkeypatch.setattr(storage, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("SYMGEN_KEEP", "1")
    made = []

    def get(seed, code, value=None, other="a"):
        monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / f"cache{len(os.listdir(tmp_path))}"))
        key = {"study": {"seed": seed, "other": other}, "code": code}

        def compute():
            made.append((seed, code))
            found = torch.tensor([seed if value is None else value, float("nan")])
            return {"x": found, **get.also()}

        return float(cached("kind", key, compute, keep=True)["x"][0])

    get.made, get.also = made, dict
    get.carry = lambda: monkeypatch.setenv("SYMGEN_CARRY", "1")
    return get


def test_what_cannot_be_kept_is_stored_all_the_same(kept, tmp_path):
    """A result of hours, where the book's own folder cannot be written into."""
    (tmp_path / "kept").write_text("no folder")
    with pytest.warns(UserWarning, match="could not be stored in .*kept/kind") as told:
        assert kept(1.0, "old") == 1
    assert len(told) == 1
    assert len([*tmp_path.glob("cache*/kind/*.safetensors")]) == 1


def test_tensors_without_their_description_are_not_counted_as_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    key = {"seed": 1}
    assert not storage.is_stored("kind", key)
    cached("kind", key, lambda: {"x": torch.zeros(1)})
    assert storage.is_stored("kind", key)
    next(tmp_path.glob("kind/*.json")).unlink()
    assert not storage.is_stored("kind", key)


def test_what_comes_with_the_book_is_made_anew_for_other_code(kept):
    assert (kept(1.0, "old"), kept(1.0, "old")) == (1, 1)
    assert kept.made == [(1.0, "old")]
    kept(1.0, "new"), kept(1.0, "new")
    assert kept.made == [(1.0, "old"), (1.0, "new")]


def test_where_one_seed_is_the_same_to_the_last_bit_the_others_are_taken_over(kept):
    for seed in (1.0, 2.0, 3.0):
        kept(seed, "old")
    kept(4.0, "old", other="b")
    kept.carry()
    kept.made.clear()
    assert [kept(seed, "new") for seed in (1.0, 2.0, 3.0)] == [1, 2, 3]
    assert kept.made == [(1.0, "new")]
    kept(4.0, "new", other="b")  # of another family, whose first is not known to be the same
    assert kept.made == [(1.0, "new"), (4.0, "new")]
    # What was taken over says so, and serves code that is newer still.
    said = [storage.fetch_info(path) for path in (storage.KEPT / "kind").glob("*.json")]
    assert sorted(x.get("carried", False) for x in said) == [False, False, True, True]
    kept.made.clear()
    assert [kept(seed, "newest") for seed in (2.0, 1.0, 3.0)] == [2, 1, 3]
    assert kept.made == [(2.0, "newest")]


def test_what_took_another_time_is_taken_over_all_the_same(kept, monkeypatch):
    clock = iter(range(99))
    monkeypatch.setattr(kept, "also", lambda: {"seconds": torch.tensor(float(next(clock)))})
    kept(1.0, "old"), kept(2.0, "old")
    kept.carry()
    kept(1.0, "new"), kept(2.0, "new")
    assert kept.made == [(1.0, "old"), (2.0, "old"), (1.0, "new")]


def test_nothing_is_taken_over_where_a_bit_differs_or_nobody_asks(kept):
    for seed in (1.0, 2.0):
        kept(seed, "old")
    kept.made.clear()
    kept(1.0, "asked by nobody"), kept(2.0, "asked by nobody")
    assert len(kept.made) == 2
    kept.carry()
    kept.made.clear()
    kept(1.0, "new", value=1.0 + 2**-23), kept(2.0, "new")
    assert kept.made == [(1.0, "new"), (2.0, "new")]
