"""Fingerprints tell values apart, and code by what it does, wherever it lies."""

import contextlib
import dataclasses
import gc
import shutil
import textwrap

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, strategies as st

import symgen
from symgen import fingerprints
from symgen.fingerprints import code_fingerprint, fingerprint, reached

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
    # Of such an array only the places in memory are known, which change from run to run.
    with pytest.raises(TypeError, match="cannot identify a value of type ndarray"):
        fingerprint(np.array(["a", None], dtype=object))


# What code does --------------------------------------------------------------------------------

FILES = {
    "__init__": """\
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from symgen.room.high import direct
        """,
    "room/__init__": '"""A room."""\n',
    "kept/__init__": "",
    "room/high": """\
        from math import ceil as rounded

        from symgen.fingerprints import gpu_only, not_a_result, refusal
        from symgen.room import low
        from symgen.room import shelf
        from symgen.room.low import FACTOR, Scale, f

        def direct(x):
            return 2 * x

        def through_a_function(x):
            return f(x)

        def through_a_class(x):
            return Scale()(x)

        def through_a_constant(x):
            return FACTOR * x

        def through_a_lazy_import(x):
            from symgen.room import late
            return late.h(x)

        def through_a_module(x):
            return through(shelf, "k", x)

        def through(module, name, x):
            return getattr(module, name)(x)

        def through_a_statement(x):
            from symgen.room.table import TABLE
            return TABLE[x]

        def through_another_library(x):
            return rounded(x)

        def by_module(x):
            return low.f(x)

        @not_a_result
        def saved(x):
            return f(x) - 1

        def through_what_is_marked(x):
            return direct(saved(x))

        @refusal
        def refuse(x):
            if not f(x):
                raise ValueError(x)

        def through_what_refuses(x):
            y = x
            return 2 + y

        def hidden(low):
            return direct(low)
        """,
    "room/low": '''\
        """Low."""
        FACTOR = 3

        def f(x: int) -> "int":
            """Add."""
            return x + 1  # one more

        class Scale:
            """Scale."""
            by: float = 4.0

            def __call__(self, x):
                return self.by * x
        ''',
    "room/late": """\
        def h(x):
            return x ** 6

        def nobody(x):
            return x - 7
        """,
    "room/shelf": "def k(x):\n    return x // 9\n",
    "room/table": "TABLE = {}\nTABLE[0] = 5\n",
}


def write(folder, files):
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    # Two writes can fall into one tick of the disk's clock.
    fingerprints._read.cache_clear()
    fingerprints._told.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that makes the package above, with some texts replaced, and fingerprints code."""
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)

    def made(source, *changes, moved=None):
        whole = {name: textwrap.dedent(text) for name, text in FILES.items()}
        for old, new in changes:
            assert any(old in text for text in whole.values()), old
            whole = {name: text.replace(old, new) for name, text in whole.items()}
        shutil.rmtree(tmp_path)
        write(tmp_path, {(moved or {}).get(name, name): text for name, text in whole.items()})
        return code_fingerprint(source)

    return made


def test_a_change_is_noticed_while_code_runs_and_nothing_is_read_twice(package, monkeypatch):
    source = "import symgen\nsymgen.direct(1)"
    before = package(source)
    followed = []
    reach = fingerprints.reached
    monkeypatch.setattr(
        fingerprints, "reached", lambda *a, **k: followed.append(1) or reach(*a, **k)
    )
    assert code_fingerprint(source) == before and not followed
    (high,) = fingerprints.PACKAGE.glob("room/high.py")
    high.write_text(high.read_text() + "\n\ndef direct(x):\n    return x ** 77\n")
    assert code_fingerprint(source) != before and len(followed) == 1


THROUGH_A_FUNCTION = "from symgen.room.high import through_a_function as g\ng(1)"


@pytest.mark.parametrize(
    "source",
    [
        "import symgen\nsymgen.direct(1)",
        "from symgen import direct\nprint(direct)",
        "from symgen import direct as f\nf(1) + f(2)",
        "import symgen.room.high\nsymgen.room.high.direct(1)",
        "import symgen.room.high as high\nhigh.direct(1)",
        "from symgen.room import high\nhigh.direct",
        "def f():\n    from symgen.room.high import direct\n    return direct(1)",
    ],
)
def test_how_a_name_is_imported_does_not_count(package, source):
    wanted = package("from symgen.room.high import direct\ndirect(1)")
    assert package(source) == wanted
    assert package(source, ("2 * x", "3 * x")) != wanted


@pytest.mark.parametrize(
    "changes",
    [
        [("  # one more", "")],
        [('"""Low."""', '"""Lower."""'), ('"""Add."""', '"""Add one."""')],
        [('    """Scale."""\n', "")],
        [("x: int", "x: float"), (' -> "int"', ""), ("by: float = 4.0", "by: int = 4.0")],
        [("return x + 1", "return (\n        x\n        + 1\n    )")],
        [("def f(", "import math\n\n\ndef f(")],
        [("import FACTOR, Scale, f\n", "import FACTOR, Scale, f as k\n"), ("f(x)", "k(x)")],
        [("import FACTOR, Scale, f\n", "import FACTOR, Scale\n"), ("f(x)", "low.f(x)")],
        [("    return f(x)", "    from symgen.room.low import f\n    return f(x)")],
        [("    return f(x)", "    import symgen\n    return symgen.room.low.f(x)")],
        [("return x - 7", "return x - 8")],
        [("2 * x", "3 * x"), ("FACTOR = 3", "FACTOR = 4"), ("4.0", "5.0")],
    ],
)
def test_comments_annotations_layout_and_what_is_not_reached_do_not_count(package, changes):
    assert package(THROUGH_A_FUNCTION, *changes) == package(THROUGH_A_FUNCTION)


@pytest.mark.parametrize("place", ["low", "kept/low", "room/lower"])
def test_a_module_can_be_moved_or_renamed(package, place):
    module, name = place.replace("/", "."), place.split("/")[-1]
    parent = f"symgen.{module}".rpartition(".")[0]
    sources = [f"from symgen.room.high import {f} as f\nf(1)" for f in [*CHANGES, "by_module"]]
    before = [package(source) for source in sources]
    changes = [
        ("from symgen.room.low import", f"from symgen.{module} import"),
        ("from symgen.room import low\n", f"from {parent} import {name} as low\n"),
    ]
    moved = {"room/low": place}
    assert [package(source, *changes, moved=moved) for source in sources] == before


CHANGES = {
    "direct": ("2 * x", "3 * x"),
    "through_a_function": ("x + 1", "x + 2"),
    "through_a_class": ("4.0", "5.0"),
    "through_a_constant": ("FACTOR = 3", "FACTOR = 4"),
    "through_a_lazy_import": ("x ** 6", "x ** 7"),
    "through_a_module": ("x // 9", "x // 8"),
    "through_a_statement": ("TABLE[0] = 5", "TABLE[0] = 6"),
    "through_another_library": ("import ceil", "import floor"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_number_in_what_is_reached_counts(package, name):
    source = f"from symgen.room.high import {name}\n{name}(1)"
    assert package(source, CHANGES[name]) != package(source)
    others = [change for other, change in CHANGES.items() if other != name]
    assert package(source, *others) == package(source)


def test_what_is_marked_does_not_count_nor_what_it_calls(package):
    source = "from symgen.room.high import through_what_is_marked as f\nf(1)"
    assert package(source, ("f(x) - 1", "f(x) - 2"), ("x + 1", "x + 2")) == package(source)
    assert package(source, ("2 * x", "3 * x")) != package(source)


REFUSING = "from symgen.room.high import through_what_refuses as g\ng(1)"


@pytest.mark.parametrize("mark", ["refusal", "gpu_only"])
@pytest.mark.parametrize("call", ["refuse(y)", "high.refuse(y)"])
def test_a_statement_that_only_refuses_or_is_for_a_gpu_does_not_count(package, call, mark):
    def made(more, *changes):
        lazy = "    from symgen.room import high\n    y = x"
        changes = [("@refusal", f"@{mark}"), *[(a.replace("refusal", mark), b) for a, b in changes]]
        return package(REFUSING, ("    y = x", lazy), ("y = x", f"y = x{more}"), *changes)

    plain = made("")
    assert made(f"\n    {call}") == plain
    # What it refuses, and by what, can be changed.
    assert made(f"\n    {call}", ("not f(x)", "f(x)"), ("x + 1", "x + 2")) == plain
    # A value that it gave would be used, and what is marked otherwise may do other things.
    assert made(f"\n    y = {call}") != plain
    assert made(f"\n    {call}", ("@refusal", "@not_a_result")) != plain
    assert made(f"\n    {call}", ("@refusal\n", "")) != plain


def test_a_decorator_that_changes_no_number_does_not_count(package):
    def made(decorator="", mark="same_numbers"):
        given = f"from symgen.fingerprints import {mark}\n\n@{mark}\ndef soon(f):\n    return f\n"
        head = "from symgen.room import low"
        return package(
            "from symgen.room.high import direct as f\nf(1)",
            (head, f"{head}\n{given}"),
            ("def direct", f"{decorator}def direct"),
        )

    plain = made()
    assert made("@soon\n") == plain
    # What is marked otherwise may change what the function returns.
    assert made("@soon\n", "not_a_result") != plain
    assert made("@soon\n", "refusal") != plain
    assert made("@staticmethod\n") != plain
    assert made("@staticmethod\n@soon\n") == made("@staticmethod\n")


def test_a_variable_that_is_named_as_a_module_is_none(package):
    source = "from symgen.room.high import hidden\nhidden(1)"
    assert package(source, ("x + 1", "x + 2")) == package(source)


@pytest.mark.parametrize(
    "source, unknown",
    [
        ("import symgen\nsymgen.nothing()", "symgen has no 'nothing'"),
        ("from symgen import nothing\nnothing()", "symgen has no 'nothing'"),
        ("from symgen.room import high\nhigh.nothing()", "symgen.room.high has no 'nothing'"),
        ("from symgen.nowhere import f\nf()", "symgen has no 'nowhere'"),
    ],
)
def test_an_unknown_name_is_refused(package, source, unknown):
    with pytest.raises(ValueError, match=unknown):
        package(source)


def test_without_names_the_whole_package_counts(package):
    package("")
    before = code_fingerprint()
    for old, new in CHANGES.values():
        package("", (old, new))
        assert code_fingerprint() != before
    package("", ("  # one more", ""))
    assert code_fingerprint() == before


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


def test_the_fingerprint_of_code_is_the_same_in_every_version_of_python(tmp_path, monkeypatch):
    # Pinned: newer versions of Python add fields to the syntax tree, which must not show.
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    write(tmp_path, {"syntax": SYNTAX})
    assert code_fingerprint("from symgen.syntax import A, f\nA, f") == "6cf1971db1d17ed5"


def test_masked_outputs_depend_on_what_they_reach():
    names = {name for name, _ in reached(symgen.masked_outputs)}
    assert {"word_embedding", "log_odds", "cut_at", "Batch", "TOLERANCE"} <= names
    assert not {"figures", "book", "load_dataset", "sparsify", "cached", "Interactions"} & names


def test_moving_a_module_of_the_package_keeps_the_fingerprint(tmp_path, monkeypatch):
    before = code_fingerprint(symgen.masked_outputs)
    shutil.copytree(ROOT / "symgen", tmp_path / "symgen")
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path / "symgen")
    (tmp_path / "symgen/masking/states.py").rename(tmp_path / "symgen/running.py")
    for path in (tmp_path / "symgen").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("symgen.masking.states", "symgen.running"), encoding="utf-8")
    assert code_fingerprint(symgen.masked_outputs) == before
    path = tmp_path / "symgen/running.py"
    path.write_text(path.read_text(encoding="utf-8").replace("-math.inf", "math.nan"))
    assert code_fingerprint(symgen.masked_outputs) != before


@pytest.mark.parametrize("searched", [True, False])
@pytest.mark.parametrize("code", ["import symgen", "from symgen import nosuch"])
def test_garbage_is_searched_for_afterwards_as_before(code, searched):
    fingerprints._told.cache_clear()
    (gc.enable if searched else gc.disable)()
    try:
        with contextlib.suppress(ValueError):
            code_fingerprint(code)
        assert gc.isenabled() == searched
    finally:
        gc.enable()
