"""The files a book consists of, where they are found, and the address of their repository.

Read by the build of the package as well, which has no other library: this module imports none.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

#: What a book consists of, in its folder; a wheel carries all of it.
PARTS = ("_config.yml", "_toc.yml", "references.bib", "_static", "chapters", "data")
#: Where a wheel has it, in the package.
SHIPPED = "shipped"
ADDRESS = re.compile(r"https://[\w.-]+(/[\w.~-]+)+")


def book_files(book: Path) -> Iterator[Path]:
    """Yield the files of a book, relative to its folder, without what editors leave in between."""
    for part in PARTS:
        for path in sorted((book / part).rglob("*")) if (book / part).is_dir() else [book / part]:
            name = path.relative_to(book)
            if path.is_file() and not any(x.startswith(".") for x in name.parts):
                yield name


def book_above(folder: Path) -> Path | None:
    """Return the book that a folder is, or is a part of; None where there is none."""
    for place in (folder, *folder.parents):
        # Books of others have a table of contents and chapters, too.
        if (place / "_toc.yml").is_file() and (place / "chapters" / "presets").is_dir():
            return place
    return None


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; what is in it is in `folder` at the end, and nowhere if that fails.

    A folder that is there, and empty, stays the one it is: it may be where a shell stands.

    Raises:
        FileExistsError: where something is in `folder`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} is not empty, and nothing in it is replaced: name a new folder"
        )
    folder = folder.resolve()
    there = folder.is_dir()
    partial = (folder if there else folder.parent) / f".{folder.name}.{os.getpid()}.partial"
    partial.mkdir(parents=True)
    try:
        yield partial
        for child in [*partial.iterdir()] if there else ():
            os.replace(child, folder / child.name)
        if not there:
            os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def lay_out(book: Path, folder: Path) -> None:
    """Copy a book into a folder that is new or empty; raises as `new_folder` does."""
    with new_folder(folder) as partial:
        for name in book_files(book):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(book / name, partial / name)


def repository(book: Path) -> str:
    """Return the address of the book's repository, as ``_config.yml`` has it under ``repository:``.

    Returns:
        Such as ``https://example.org/owner/name``; "" where none is set, or what is set is no
        address, but a text to be replaced by one.
    """
    text = (book / "_config.yml").read_text(encoding="utf-8")
    block = re.search(r"^repository:[^\n]*\n((?:[ \t#][^\n]*\n|\n)*)", f"{text}\n", re.M)
    line = re.search(r"^ +url: *[\"']?([^\s\"'#]*)", block[1] if block else "", re.M)
    return line[1].rstrip("/") if line and ADDRESS.fullmatch(line[1].rstrip("/")) else ""
