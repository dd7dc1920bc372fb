"""The public names: there, and loaded when they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import symgen

PUBLIC = """
import sys, symgen
assert "torch" not in sys.modules
import symgen.split.sparsify
assert callable(symgen.sparsify) and symgen.sparsify.__module__ == "symgen.split.sparsify"
from symgen import Study, figures, phases
assert set(symgen.__all__) <= set(dir(symgen))
assert all(getattr(symgen, name) is not None for name in symgen.__all__)
assert not hasattr(symgen, "nosuch")
namespace = {}
exec("from symgen import *", namespace)
assert namespace["train"] is symgen.train
"""


def test_public_names_are_loaded_when_they_are_used():
    done = subprocess.run(
        [sys.executable, "-c", PUBLIC], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_public_names():
    """By PEP 484 a module gives on what it imports only as ``X as X``."""
    tree = ast.parse(Path(symgen.__file__).read_text(encoding="utf-8"))
    imports = [x for x in ast.walk(tree) if isinstance(x, ast.ImportFrom)]
    given = {a.asname for x in imports for a in x.names if a.name == a.asname}
    assert given == set(symgen.__all__)
    assert (Path(symgen.__file__).parent / "py.typed").is_file()
