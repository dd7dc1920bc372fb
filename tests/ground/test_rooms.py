"""The rooms of the package: what they import lies below them, and modules fit on a few screens."""

import ast
from pathlib import Path

import pytest

import symgen

PACKAGE = Path(symgen.__file__).parent
# From the top; what lies beside them is the ground, which knows none of them.
ROOMS = ("book", "figures", "method", "models", "data", "masking", "split")
FILES = [path for path in PACKAGE.rglob("*.py") if "shipped" not in path.parts]
# The entrance to the command line, and the package's own list of public names.
DOORS = ("__main__.py", "__init__.py")


def room_of(module: str) -> str | None:
    """Return the room of a module of symgen; None for the ground."""
    first = module.removeprefix("symgen").strip(".").split(".")[0]
    return first if first in ROOMS else None


def imported(path: Path) -> set[str]:
    """Return the modules of symgen that a file imports, wherever in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "symgen"}


@pytest.mark.parametrize("room", [*ROOMS, None])
def test_imports_run_downwards_only(room):
    below = {*ROOMS[ROOMS.index(room) :], None} if room else {None}
    files = [p for p in FILES if room_of(".".join(p.relative_to(PACKAGE).parts)) == room]
    assert files
    for path in files:
        if room is None and path.name in DOORS:
            continue
        wrong = {name for name in imported(path) if room_of(name) not in below}
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}, which lies above it"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_comes_in_what_goes_out_and_what_it_must_not_know(room):
    said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
    assert len(said.split()) > 20 and "never" in said, said


def test_no_module_has_more_than_300_lines_of_code():
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        # With the f-strings whole: where their parts lie differs between versions of Python.
        texts = {
            line
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)
            if node.end_lineno > node.lineno
            for line in range(node.lineno, node.end_lineno + 1)
        }
        lines = [
            line
            for number, line in enumerate(source.splitlines(), 1)
            if number not in texts and line.strip() and not line.strip().startswith("#")
        ]
        assert len(lines) <= 300, f"{path.relative_to(PACKAGE)} has {len(lines)}"
