"""Fingerprints tell different things apart; stored files are whole, or noticed and made again."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from symgen import fingerprints, provenance
from symgen.fingerprints import modules_of
from symgen.provenance import (
    Chapter,
    DamagedFileWarning,
    atomic,
    cached,
    code_fingerprint,
    fetch,
    fingerprint,
    store,
)

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


def test_a_chapter_keeps_its_parameters_and_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_OUT", str(tmp_path))
    variables = {"preset": "quick", "n": 3, "_hidden": 1, "In": [], "Out": {}, "json": json}
    chapter = Chapter("name", variables)
    frame = chapter.record("small", pd.DataFrame({"n": [3]}))
    assert frame.shape == (1, 1)
    assert (tmp_path / "tables" / "name.small.csv").read_text() == "n\n3\n"
    bundle = chapter.provenance()._repr_mimebundle_()
    record = bundle["application/json"]
    assert json.loads(json.dumps(record)) == record
    assert record["parameters"] == {"preset": "quick", "n": 3}
    assert record["code"] == code_fingerprint()
    assert record["memory"]["host"] > 10
    assert set(record["tables"]) == {"small"}
    assert "code fingerprint" in bundle["text/plain"]
    assert "<table" in bundle["text/html"]
    shutil.rmtree(tmp_path / "tables")
    monkeypatch.delenv("SYMGEN_OUT")
    Chapter("name", variables).record("small", frame)
    assert not (tmp_path / "tables").exists()
