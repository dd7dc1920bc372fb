"""Stored results are whole, or noticed and computed again."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from symgen import storage
from symgen.storage import (
    DamagedFileWarning,
    atomic,
    cached,
    fingerprint,
    read_tensors,
    write_tensors,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))


def stored() -> list:
    return sorted(storage.cache_folder().rglob("*.safetensors"))


def test_atomic_leaves_the_whole_file_or_none(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    with atomic(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole" and [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_result_is_computed_once():
    calls = []

    def compute():
        calls.append(1)
        whole = torch.arange(6.0)
        return {"whole": whole, "part": whole[2:4], "half": torch.ones(2, dtype=torch.bfloat16)}

    first = cached("outputs", {"seed": 0}, compute)
    again = cached("outputs", {"seed": 0}, compute)
    assert len(calls) == 1 and all(torch.equal(first[k], again[k]) for k in first)
    cached("outputs", {"seed": 0}, compute, enabled=False)
    cached("outputs", {"seed": 1}, compute)
    assert len(calls) == 3 and len(stored()) == 2


@pytest.mark.parametrize("change", [
    lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), lambda raw: b"x" * 50,
])  # fmt: skip
def test_a_damaged_file_is_noticed_and_replaced(change):
    def compute():
        return {"x": torch.ones(3)}

    cached("outputs", 0, compute)
    (path,) = stored()
    path.write_bytes(change(path.read_bytes()))
    with pytest.warns(DamagedFileWarning, match=f"{path.name} is damaged .*computed again"):
        assert cached("outputs", 0, compute)["x"].tolist() == [1, 1, 1]
    assert read_tensors(path, path.stem)[0]["x"].tolist() == [1, 1, 1]


def test_the_version_the_precision_and_the_libraries_belong_to_the_key(monkeypatch):
    def put(value):
        return float(cached("outputs", 0, lambda: {"x": torch.tensor(value)})["x"])

    assert (put(1.0), put(2.0)) == (1.0, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert (put(3.0), put(4.0)) == (3.0, 3.0)
    with torch.autocast("cpu", torch.float16):
        assert put(5.0) == 5.0
    assert put(6.0) == 1.0
    monkeypatch.setitem(storage.VERSION, "outputs", 10**6)
    assert put(7.0) == 7.0
    monkeypatch.setattr(storage, "_version", lambda package: "0.0")
    assert put(8.0) == 8.0


WRITER = """
import torch
from symgen.storage import cached
for i in range(60):
    x = cached("outputs", {"i": i}, lambda: {"x": torch.full((1000,), float(i))})["x"]
    assert (x == i).all()
"""


def test_two_processes_can_write_the_same_files():
    """One of them is this process, which goes on until the other one has ended."""
    with subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER]) as other:
        while other.poll() is None:
            for path in stored():
                path.unlink(missing_ok=True)
            exec(WRITER, {})
        assert other.returncode == 0
    exec(WRITER, {})
    assert len(stored()) == 60 and not list(storage.cache_folder().rglob("*.part"))
    for path in stored():
        assert read_tensors(path, path.stem)[0]["x"].std() == 0


def test_a_full_disk_costs_no_result(monkeypatch):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.warns(UserWarning, match="No space left.*SYMGEN_CACHE"):
        assert cached("outputs", 0, lambda: {"x": torch.ones(1)})["x"] == 1


def test_tensors_come_back_with_their_description(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(6).reshape(2, 3).T}, {"step": 3, "name": "ü"})
    tensors, info = read_tensors(path)
    assert tensors["x"].tolist() == [[0, 3], [1, 4], [2, 5]] and info == {"step": 3, "name": "ü"}
    assert read_tensors(tmp_path / "b.safetensors") is None


def test_a_changed_description_and_a_renamed_file_are_noticed(tmp_path):
    """Neither changes a tensor, so a checksum of the tensors alone would not see it."""
    path, copy = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_tensors(path, {"x": torch.ones(2)}, {"step": 31}, key="a")
    assert storage.read_info(path, "a") == {"step": 31}
    copy.write_bytes(path.read_bytes())
    for read in (storage.read_whole, storage.read_info):
        with pytest.raises(ValueError, match="b.safetensors is damaged or was renamed"):
            read(copy, "b")
    copy.write_bytes(path.read_bytes().replace(b"31", b"32"))
    for read in (storage.read_whole, storage.read_info):
        with pytest.raises(ValueError, match="b.safetensors is damaged or was renamed"):
            read(copy, "a")


DIFFERENT = [
    None, True, 1, 1.0, "1", [1], [[1]], [1, 2], ["ab", "c"], ["a", "bc"], {"a": 1}, {"a": 2}, {"a": {"b": 1}},
    torch.ones(2), torch.ones(2).double(), torch.ones(1, 2), torch.ones(2, dtype=torch.bfloat16),
    np.ones(2, np.int32), [],
]  # fmt: skip


def test_fingerprints_tell_values_apart_and_ignore_the_order_of_keys():
    assert len({fingerprint(x) for x in DIFFERENT}) == len(DIFFERENT)
    assert all(fingerprint(x) == fingerprint(x) and len(fingerprint(x)) == 16 for x in DIFFERENT)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(torch.ones(3, 3).T) == fingerprint(np.ones((3, 3), np.float32))
    with pytest.raises(TypeError, match="value of type function; expected numbers, texts"):
        fingerprint({"f": fingerprint})


def test_a_home_folder_in_the_setting_is_expanded(monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", "~/x")
    assert "~" not in str(storage.cache_folder()) and storage.cache_folder().name == "x"
    monkeypatch.delenv("SYMGEN_CACHE")
    assert storage.cache_folder().parts[-2:] == (".cache", "symgen")
