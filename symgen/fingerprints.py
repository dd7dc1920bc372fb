"""What identifies a value, what code does, and the libraries. Nothing heavy is imported for it.

A result depends on what the code that made it *does*: on the definitions (functions, classes and
constants) of symgen that are reached from the calls it makes, with their names, and without their
comments, docstrings, annotations and layout. Where a definition lies and how it is imported do not
count, so that a module can be moved or renamed and leave all that is stored valid.
"""

import ast
import contextlib
import dataclasses
import functools
import gc
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

PACKAGE = Path(__file__).parent
#: The book that comes with the package: inside it where it was installed, around it in a clone.
BOOK = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else PACKAGE.parent
#: The MIME type of what a chapter says of its run; of its own, since JupyterLab would show plain
#: JSON instead of the table beside it.
RECORD = "application/vnd.symgen.provenance+json"
Anything = TypeVar("Anything")


def not_a_result(definition: Anything) -> Anything:
    """Mark a function or class that no number depends on: it stores, checks, refuses or shows.

    What it does, and what it calls, is no part of any `code_fingerprint`.
    """
    return definition


def refusal(definition: Anything) -> Anything:
    """Mark a function that raises an error or warns, and does nothing else.

    It is `not_a_result`, and neither is a statement that does nothing but call it, so that one can
    be added to code without its stored results becoming old.
    """
    return definition


def gpu_only(definition: Anything) -> Anything:
    """Mark a function that does nothing where there is no GPU.

    It is `not_a_result`, and neither is a statement that does nothing but call it: what was
    computed on CPUs stays valid. Results of GPUs do not tell its versions apart.
    """
    return definition


def same_numbers(decorator: Anything) -> Anything:
    """Mark a decorator that changes how or where its function works, and no number that it gave.

    It is `not_a_result`, and a function does the same with it as without: on one or two threads to
    the last bit, and on more, or on a GPU, but for rounding. It may work where it failed without.
    """
    return decorator


@not_a_result
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
    # An array of objects holds their places in memory.
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
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
            "pass numbers, strings, arrays and tensors of these, or lists, mappings and dataclasses"
        )


@not_a_result
def code_fingerprint(*used: Callable | str, without: Sequence[Callable] = ()) -> str:
    """Return the fingerprint of what code of symgen does, and all that it reaches.

    Args:
        used: functions and classes of symgen, or Python source that imports it, such as a
            chapter's cells. Without any, the whole package.
        without: functions and classes that the code names for other cases than this one.

    Raises:
        ValueError: for a name that symgen does not have.
    """
    found = _told(used, tuple(without), _versions())
    if not used:  # as at the end of a chapter, which would be a second later with all these trees
        _read.cache_clear()
    return found


# Every extraction asks for the same few.
@functools.lru_cache(maxsize=128)
def _told(used: tuple, without: tuple, versions: tuple[tuple[str, int, int], ...]) -> str:
    """Return the fingerprint of code, once as long as no file of the package is changed."""
    # Trees of syntax are a million objects: to search them for garbage takes a third of the time.
    searched = gc.isenabled()
    gc.disable()
    try:
        return fingerprint(sorted(reached(*used, without=without)))
    finally:
        if searched:
            gc.enable()


def _versions() -> tuple[tuple[str, int, int], ...]:
    """Return place, time and size of every file of code."""
    files = (os.path.join(f, name) for f, _, names in os.walk(PACKAGE) for name in names)
    known = [(file, os.stat(file)) for file in files if file.endswith(".py")]
    return tuple((file, about.st_mtime_ns, about.st_size) for file, about in known)


def reached(*used: Callable | str, without: Sequence[Callable] = ()) -> set[tuple[str, str]]:
    """Return the definitions that code depends on, each with its name and what it does.

    Args:
        used, without: as in `code_fingerprint`.
    """

    def place(one: Callable) -> tuple[str, str]:
        module = one.__module__.removeprefix("symgen").removeprefix(".")
        return module, one.__qualname__.split(".")[0]

    pending: list[tuple[str, str]] = []
    for one in used:
        if isinstance(one, str):
            pending += _Code(None, ast.parse(one)).whole().reaches
        else:
            pending.append(place(one))
    if not used:
        files = (p.relative_to(PACKAGE).with_suffix("") for p in PACKAGE.rglob("*.py"))
        names = (".".join(p.parts).removesuffix("__init__").rstrip(".") for p in files)
        pending += [(name, "*") for name in names]
    seen, found = {*pending, *map(place, without)}, set()
    while pending:
        module, asked = pending.pop()
        code = _code(module)
        for name in code.definitions if asked == "*" else [asked, *code.statements]:
            part = code.definition(name)
            if part is None:
                continue
            found.add((name.split(" ")[0], part.does))
            pending += [each for each in part.reaches if each not in seen]
            seen.update(part.reaches)
    return found


class _Part(NamedTuple):
    """What a piece of code does, as text, and the definitions it names, by module and name."""

    does: str
    reaches: tuple[tuple[str, str], ...]


class _Code:
    """A module, or a text without name: which names it binds, and what each of them stands for."""

    def __init__(self, name: str | None, tree: ast.Module):
        self.name, self.tree = name, tree
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str | None] | str] = {}
        self.statements: list[str] = []
        self._parts: dict[str, _Part | None] = {}
        for node in tree.body:
            self._bind(node)

    def _bind(self, node: ast.stmt) -> None:
        if _is_import(node):
            self.imports.update(_bound(node))
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for inner in node.body:
                self._bind(inner)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.definitions[node.name] = [node]
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            inside = list(ast.walk(node))
            # What a comprehension calls its items is no name of the module.
            own = {x for each in inside if isinstance(each, ast.comprehension)
                   for x in ast.walk(each.target)}  # fmt: skip
            names = [
                inner.id
                for inner in inside
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                and inner not in own
            ]  # fmt: skip
            if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Try, ast.If)) or not names:
                # It does something to other names, so it counts with every one of them.
                names = [f"{len(self.statements)} statement"]
                self.statements += names
            for name in names:
                self.definitions.setdefault(name, []).append(node)
            for inner in inside:
                if _is_import(inner):
                    self.imports.update(_bound(inner))

    def target(self, name: str) -> tuple[str, str] | None:
        """Return module and name of the definition that a name stands for, following imports."""
        if name in self.definitions and self.name is not None:
            return self.name, name
        found = None if name in self.definitions else self.imports.get(name)
        return _find(*found) if isinstance(found, tuple) else None

    def definition(self, name: str) -> _Part | None:
        if name not in self._parts:
            self._parts[name] = self._part(self.definitions.get(name, []))
        return self._parts[name]

    def whole(self) -> _Part:
        return self._part(self.tree.body) or _Part("", ())

    def _part(self, nodes: list[ast.stmt]) -> _Part | None:
        if any(_marked(each, not_a_result, refusal, gpu_only, same_numbers) for each in nodes):
            return None
        inner = [each for node in nodes for each in ast.walk(node)]
        local = {k: v for x in inner if _is_import(x) for k, v in _bound(x).items()}
        elsewhere = {**self.imports, **local}
        # A variable of the same name hides a module.
        hidden = {x.arg for x in inner if isinstance(x, ast.arg)}
        hidden |= {x.id for x in inner if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        reaches: dict[tuple[str, str], None] = {}

        def resolve(node: ast.AST) -> tuple[str, str] | None:
            """Return what a name or a chain of attributes stands for, if that is of symgen."""
            if isinstance(node, ast.Name):
                bound = local.get(node.id)
                found = _find(*bound) if isinstance(bound, tuple) else self.target(node.id)
                return None if found and found[1] == "*" and node.id in hidden else found
            if isinstance(node, ast.Attribute) and (base := resolve(node.value)):
                return _find(base[0], node.attr) if base[1] == "*" else None
            return None

        def stands_for(node: ast.AST, *marks: Callable) -> bool:
            found = resolve(node)
            if found is None or found[1] == "*":
                return False
            meant = _code(found[0]).definitions.get(found[1], [])
            return any(_marked(each, *marks) for each in meant)

        def inert(node: Any) -> bool:
            call = node.value if isinstance(node, ast.Expr) else None
            return isinstance(call, ast.Call) and stands_for(call.func, refusal, gpu_only)

        decorators = [each for node in inner for each in getattr(node, "decorator_list", [])]
        quiet = {id(each) for each in decorators if stands_for(each, same_numbers)}

        def write(node: Any) -> str:
            if isinstance(node, list):
                node = [each for each in node if not inert(each) and id(each) not in quiet]
            elif isinstance(node, (ast.Name, ast.Attribute)):
                if found := resolve(node):
                    reaches[found] = None
                    return f"Name({found[1] if found[1] != '*' else 'module'})"
                if isinstance(node, ast.Name) and isinstance(elsewhere.get(node.id), str):
                    return f"Name({elsewhere[node.id]})"
            return _dump(node, write)

        return _Part(write(nodes), tuple(reaches)) if nodes else None


def _marked(node: ast.stmt, *marks: Callable) -> bool:
    names = {mark.__name__ for mark in marks}
    return any(getattr(x, "id", "") in names for x in getattr(node, "decorator_list", []))


def _is_import(node: Any) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _bound(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None] | str]:
    """Return what names an import binds: to module and name in symgen, or to a name elsewhere."""
    if isinstance(node, ast.ImportFrom):
        head, _, module = (node.module or "").partition(".")
        return {
            a.asname or a.name: (module, a.name) if head == "symgen" else f"{node.module}.{a.name}"
            for a in node.names
        }
    found: dict[str, tuple[str, str | None] | str] = {}
    for alias in node.names:
        head, _, rest = alias.name.partition(".")
        whole = alias.name if alias.asname else head
        own = (rest if alias.asname else "", None)
        found[alias.asname or head] = own if head == "symgen" else whole
    return found


def _find(module: str, name: str | None) -> tuple[str, str]:
    """Return where a name that is imported from a module is defined; "*" for a module itself."""
    if name is None:
        return module, "*"
    inner = f"{module}.{name}".lstrip(".")
    if _file(inner) is not None and name not in _code(module).imports:
        return inner, "*"
    found = _code(module).target(name)
    if found is None:
        raise ValueError(f"symgen{'.' * bool(module)}{module} has no {name!r}")
    return found


def _file(module: str) -> Path | None:
    path = PACKAGE.joinpath(*filter(None, module.split(".")))
    files = (path / "__init__.py", *([path.with_suffix(".py")] if module else []))
    return next((file for file in files if file.is_file()), None)


def _code(module: str) -> _Code:
    file = _file(module)
    if file is None:
        raise ValueError(f"symgen has no {module!r}")
    about = file.stat()
    return _read(module, file, about.st_mtime_ns, about.st_size)


# By time and size, since every extraction asks for the same modules.
@functools.lru_cache(maxsize=512)
def _read(module: str, file: Path, changed: int, size: int) -> _Code:
    return _Code(module, ast.parse(file.read_text(encoding="utf-8")))


# What says how a value is to be written or read, and not what is done with it.
_ANNOTATIONS = {"annotation", "returns", "type_comment", "type_params"}


def _dump(node: Any, write: Callable[[Any], str]) -> str:
    """Write a syntax tree as text that every version of Python writes alike.

    `ast.dump` and `ast.unparse` do not: versions differ in fields and texts that are empty.
    """
    if isinstance(node, ast.AST):
        if not node._fields:  # as most nodes: whether a name is read or written
            return f"{type(node).__name__}()"
        fields = {k: write(v) for k, v in _fields(node)}
        if fields.get("decorator_list") == "[]":  # of none that counts
            del fields["decorator_list"]
        return f"{type(node).__name__}({', '.join(f'{k}={v}' for k, v in fields.items())})"
    if isinstance(node, list):
        return f"[{', '.join(write(each) for each in node if not _is_import(each))}]"
    return repr(node)


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list) and _is_text(value[0]):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):
            value = [v for v in value if getattr(v, "value", None) != ""]
        if value is not None and value != [] and name not in _ANNOTATIONS:
            yield name, value


def _is_text(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)


@not_a_result
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    names = ("torch", "torchvision", "transformers", "numpy", "scipy", "scikit-learn")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
