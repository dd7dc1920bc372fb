"""Fingerprints tell different things apart; stored files are whole, or noticed and made again."""

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from symgen import fingerprints
from symgen import storage as provenance
from symgen.models.checkpoints import Store
from symgen.data.datasets import load_dataset
from symgen.fingerprints import modules_of
from symgen.models.loop import Loop
from symgen.storage import DamagedFileWarning, atomic, cached, fetch, store
from symgen.fingerprints import code_fingerprint, fingerprint
from symgen.models.training import train

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def canonical(value):
    """What a fingerprint is meant to tell apart: types count, the order of keys does not."""
    if isinstance(value, dict):
        return ("map", tuple(sorted((k, canonical(v)) for k, v in value.items())))
    if isinstance(value, list):
        return ("list", tuple(canonical(v) for v in value))
    return (type(value).__name__, repr(value))


@given(VALUES, VALUES)
def test_equal_fingerprints_mean_equal_values(first, second):
    assert (fingerprint(first) == fingerprint(second)) == (canonical(first) == canonical(second))


@given(st.dictionaries(st.text(), SCALARS))
def test_the_order_of_keys_does_not_count(mapping):
    assert fingerprint(mapping) == fingerprint(dict(reversed(mapping.items())))


def test_neighbouring_texts_are_kept_apart():
    assert fingerprint(["a;str 1 b", "c"]) != fingerprint(["a", "b;str 1 c"])


def test_arrays_count_with_values_type_and_shape():
    array = np.arange(6.0).reshape(2, 3)
    same = fingerprint(array)
    assert fingerprint(torch.from_numpy(array)) == same
    assert fingerprint(np.asfortranarray(array)) == same
    assert fingerprint(array.astype(np.float32)) != same
    assert fingerprint(array.reshape(3, 2)) != same
    assert fingerprint(array + 1) != same
    half = torch.ones(3, dtype=torch.bfloat16)
    assert fingerprint(half) != fingerprint(half * 2)
    assert fingerprint(np.float64(0.5)) == fingerprint(0.5)


def test_dataclasses_are_read_and_other_objects_refused():
    @dataclasses.dataclass
    class Options:
        n: int = 3

    assert fingerprint(Options()) == fingerprint({"n": 3})
    with pytest.raises(TypeError, match="cannot identify a value of type object; pass numbers"):
        fingerprint([object()])


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    (tmp_path / "solver.py").write_text(
        '"""Solve."""\n\ndef f(x):\n    """Add."""\n    return x + 1\n'
    )
    (tmp_path / "cli.py").write_text("x = 1\n")
    return tmp_path


def test_only_behaviour_counts_in_the_fingerprint_of_the_code(package):
    before = code_fingerprint()
    (package / "solver.py").write_text("def f(x):\n    '''Sum.'''\n    # why\n    return x+1\n")
    assert code_fingerprint("solver") != before  # here the module's docstring is gone altogether
    (package / "solver.py").write_text(
        '"""A."""\ndef f(x):\n    "Sum."\n    # why\n    return x+1\n'
    )
    assert code_fingerprint() == before
    (package / "cli.py").write_text("x = 2\n")
    assert code_fingerprint() == before
    (package / "solver.py").write_text('"""A."""\ndef f(x):\n    "Sum."\n    return x + 2\n')
    assert code_fingerprint() != before


SYNTAX = """\
@wraps(f)
def f(x: "int" = 1, /, *more, y: int | None = None, **rest) -> str:
    match x:
        case {"a": [1, *_]}:
            return f"{x!r:>{y}} {x['a']} \\n" "b"
    return [i async for i in more if (z := i)]

class A(B, metaclass=C):
    name: str
"""


def test_the_fingerprint_of_code_is_the_same_in_every_version_of_python(package):
    # Pinned: newer versions of Python add fields to the syntax tree, which must not show.
    (package / "syntax.py").write_text(SYNTAX)
    assert code_fingerprint("syntax") == "a4a5d4021f50bac9"


def test_code_depends_on_the_modules_that_it_names_and_on_theirs(tmp_path, monkeypatch):
    files = {
        "__init__": "from symgen.low import f\nfrom symgen.high import g\n",
        "low": "x = 1\n",
        "high": "def g():\n    from symgen import other\n",
        "other": "import symgen.low\n",
        "apart": "import symgen.high\n",
        "plots": "from symgen.low import draw\nfrom symgen.apart import paint\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    assert modules_of("import symgen\nsymgen.f()") == ("low",)
    assert modules_of("import symgen\nsymgen.g()") == ("high", "low", "other")
    assert modules_of("from symgen import f, apart") == ("apart", "high", "low", "other")
    assert modules_of("from symgen.low import x") == ("low",)
    assert modules_of("import numpy") == ()
    assert modules_of("from symgen import plots\nplots.draw()") == ("low",)
    assert modules_of("from symgen import plots\nplots.paint()") == (
        "apart",
        "high",
        "low",
        "other",
    )
    with pytest.raises(ValueError, match="symgen has no 'h'"):
        modules_of("import symgen\nsymgen.h()")


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
    assert provenance.cache_folder() == tmp_path
    monkeypatch.delenv("SYMGEN_CACHE")
    assert provenance.cache_folder().parts[-2:] == (".cache", "symgen")


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

    monkeypatch.setattr(provenance, "sha256", refused)
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
    kept.discard_resume()
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

    monkeypatch.setattr(provenance, "save_file", fails)
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
    monkeypatch.setattr(provenance.Path, "home", homeless)
    with pytest.raises(OSError, match=r"no home folder.*set SYMGEN_CACHE"):
        cached("kind", {"seed": 0}, lambda: pytest.fail("computed in vain"))


def test_what_was_stored_stays_whole_until_the_new_is_written(tmp_path, monkeypatch):
    (path,) = put(tmp_path, "a")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(provenance.Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        store(path, {"x": torch.zeros(1)}, {})
    assert fetch(path)[1]["step"] == 0


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
