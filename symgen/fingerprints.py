"""What identifies a value, the code and the libraries. Nothing heavy is imported for it."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = Path(__file__).parent
# What runs the chapters and builds the site does not touch their numbers.
NOT_RESULTS = {"cache", "cli", "editions", "inert", "parameters", "processes", "runs", "site"}


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that identify a nested value.

    Args:
        value: numbers, strings, bytes, None, lists, tuples, mappings, dataclasses, paths,
            NumPy arrays and torch tensors, nested as deep as needed. Mappings are compared
            without regard to the order of their keys.

    Raises:
        TypeError: for a value of any other type, whose identity could not be stated.

    Example:
        >>> fingerprint({"n": 10, "seed": 0}) == fingerprint({"seed": 0, "n": 10})
        True
    """
    digest = hashlib.sha256()
    _digest(digest, value)
    return digest.hexdigest()[:16]


def _digest(digest: Any, value: Any) -> None:
    torch = sys.modules.get("torch")  # a tensor cannot be here before its library
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype is torch.bfloat16:
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype.str} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"map {len(value)};".encode())
        for key in sorted(value, key=str):
            _digest(digest, str(key))
            _digest(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)};".encode())
        for item in value:
            _digest(digest, item)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)};".encode() + value)
    elif value is None or isinstance(value, (bool, int, float, str, Path)):
        kind = "str" if isinstance(value, Path) else type(value).__name__
        text = str(value)
        # With its length, so that no text can imitate two neighbouring ones.
        digest.update(f"{kind} {len(text)} {text};".encode())
    else:
        raise TypeError(
            f"fingerprint: cannot identify a value of type {type(value).__name__}; "
            "pass numbers, strings, arrays, tensors, or lists, mappings and dataclasses of them"
        )


def code_fingerprint(*modules: str) -> str:
    """Return the fingerprint of symgen's code: of the named modules, or of all of them.

    Comments, docstrings and layout do not count, so that only a change of behaviour makes
    stored results stale.

    Args:
        modules: names such as ``"training"``. Without any, every module that results depend on.
    """
    everything = sorted({p.stem for p in PACKAGE.glob("*.py")} - NOT_RESULTS)
    return fingerprint({name: _behaviour(_text(name)) for name in modules or everything})


def modules_of(source: str) -> tuple[str, ...]:
    """Return the modules of symgen that code which imports it depends on, as names.

    A public name stands for the module that defines it, and a module for all that it imports.
    So a chapter stays what it was when something is changed that it has no part in. What
    ``symgen/__init__.py`` and ``symgen/plots.py`` import does not count by itself.

    Args:
        source: Python code, such as a chapter's cells.

    Raises:
        ValueError: for a name that symgen does not have.
    """
    public, drawn = homes("__init__"), homes("plots")
    used: dict[str, set[str]] = {"symgen": set(), "plots": set()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in used:
            used[node.value.id].add(node.attr)
    # `plots` only gathers the figures of other modules, as `__init__` does.
    pending = {name for name in _imports(source) if name != "plots"} | used["symgen"]
    pending |= {drawn[name] for name in used["plots"] if name in drawn}
    found: set[str] = set()
    while pending:
        name = pending.pop()
        name = public.get(name, name)
        if name in found or name.startswith("__"):
            continue
        if not (PACKAGE / f"{name}.py").is_file():
            raise ValueError(f"symgen has no {name!r}")
        found.add(name)
        pending.update(_imports(_text(name)))
    return tuple(sorted(found - NOT_RESULTS))


def homes(module: str) -> dict[str, str]:
    """Return the names that a module takes from others, and from which."""
    if not (PACKAGE / f"{module}.py").is_file():
        return {}
    return {
        alias.asname or alias.name: node.module.split(".")[1]
        for node in ast.walk(ast.parse(_text(module)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symgen.")
        for alias in node.names
    }


def _text(module: str) -> str:
    return (PACKAGE / f"{module}.py").read_text(encoding="utf-8")


# By text, since every extraction asks for the same modules, and a file may change meanwhile.
@functools.cache
def _imports(source: str) -> tuple[str, ...]:
    """Return modules and public names of symgen that are imported anywhere in the code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "symgen":
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symgen."):
            found.append(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found += [p[1] for p in parts if p[0] == "symgen" and len(p) > 1]
    return tuple(found)


@functools.cache
def _behaviour(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            body[0].value.value = ""
    return _dump(tree)


def _dump(node: Any) -> str:
    """Write a syntax tree as text that every version of Python writes alike.

    `ast.dump` and `ast.unparse` do not: versions differ in fields and texts that are empty.
    """
    if isinstance(node, ast.JoinedStr):
        node.values = [v for v in node.values if getattr(v, "value", None) != ""]
    if isinstance(node, ast.AST):
        fields = ((k, v) for k, v in ast.iter_fields(node) if v is not None and v != [])
        return f"{type(node).__name__}({', '.join(f'{k}={_dump(v)}' for k, v in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    names = ("torch", "torchvision", "transformers", "numpy", "scipy", "scikit-learn")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
