"""Editions: executed copies of chapters with their tables, in ``data/editions/<preset>/``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from symgen.book import notebooks
from symgen.book.notebooks import nbformat
from symgen.storage import atomic, fingerprint

#: Columns of recorded claims, of texts and of numbers.
TEXTS = ["edition", "chapter", "claim", "setting", "label", "unit", "of", "row", "verdict"]
NUMBERS = ["mean", "low", "high", "side", "margin", "repetitions", "accuracy"]


def edition_folder(book: Path, preset: str) -> Path:
    """Return the folder of an edition."""
    return book / "data" / "editions" / preset


def edition_names(book: Path) -> list[str]:
    """Return the editions that hold pages or tables, the smallest first."""
    return [p for p in notebooks.PRESETS if any(edition_folder(book, p).rglob("*.*"))]


def seal(page: nbformat.NotebookNode, folder: Path, chapter: str) -> None:
    """Record the checksums of a page and of its tables in its metadata, in place."""
    page.metadata["symgen"]["tables"] = table_checksums(folder, chapter)
    page.metadata["symgen"]["page"] = checksum(page)


def checksum(page: nbformat.NotebookNode) -> str:
    """Return the fingerprint of a page: its cells, and what its run recorded."""
    record = {k: v for k, v in page.metadata.get("symgen", {}).items() if k != "page"}
    return fingerprint([page.cells, {**page.metadata, "symgen": record}])


def table_checksums(folder: Path, chapter: str) -> dict[str, str]:
    """Return the fingerprints of a chapter's tables by the name of the file."""
    files = sorted(folder.glob(f"{chapter}.*.csv"))
    return {file.name: fingerprint(file.read_text("utf-8", "replace")) for file in files}


def put(page: nbformat.NotebookNode, tables: Path, path: Path) -> None:
    """Write a page to `path` and its tables into ``tables`` next to it; both replace older ones.

    Tables of the older page are deleted if its run made them, and no others.
    """
    folder = path.parent / "tables"
    earlier = notebooks.read(path)
    record = earlier.metadata.get("symgen", {}) if earlier else {}
    for name in record.get("tables", []):
        (folder / Path(name).name).unlink(missing_ok=True)
    for name in page.metadata["symgen"]["tables"]:
        with atomic(folder / name) as temporary:
            shutil.copyfile(tables / name, temporary)
    notebooks.write(page, path)


def store(book: Path, preset: str, executed: Path) -> Path:
    """Copy an executed chapter and its tables into the edition; return the new path."""
    path = edition_folder(book, preset) / executed.name
    put(notebooks.nbformat.read(executed, as_version=4), executed.parent / "tables", path)
    return path


def is_stale(stored: nbformat.NotebookNode, source: nbformat.NotebookNode) -> bool:
    """Return whether the cells of a chapter, or of its stored copy, have changed since it ran."""
    about = stored.metadata.get("symgen", {})
    given = about.get("parameters", ())
    # Both, because the copy itself may have been edited.
    pages = (source, stored)
    return any(notebooks.cells_hash(page, given) != about.get("cells") for page in pages)


def problem(book: Path, edition: str, chapter: str) -> str:
    """Return what is wrong with a stored page; empty if nothing is. See `verify`."""
    folder = edition_folder(book, edition)
    path = folder / f"{chapter}.ipynb"
    tables = table_checksums(folder / "tables", chapter)
    if not path.exists() and not tables:
        return "missing" if edition == "quick" else ""
    page = notebooks.read(path)
    record = page.metadata.get("symgen", {}) if page else {}
    if page is None or record.get("page") != checksum(page) or record.get("tables") != tables:
        return "damaged"
    return "stale" if is_stale(page, notebooks.read_chapter(book, chapter)) else ""


def verify(book: Path) -> pd.DataFrame:
    """Return what is wrong with the stored pages and tables.

    Returns:
        Columns edition, chapter, problem: "missing" for a chapter without a quick page; "damaged"
        if the page or a table is not what the run wrote; "stale" if code cells changed since.
    """
    rows = []
    for chapter in notebooks.contents(book):
        for edition in notebooks.PRESETS:
            rows.append((edition, chapter, problem(book, edition, chapter)))
    found = pd.DataFrame(rows, columns=["edition", "chapter", "problem"])
    return found.loc[found["problem"] != ""]


def read_tables(book: Path, table: str, here: Path | None = None) -> pd.DataFrame:
    """Return a table of all chapters from the editions, and from a folder of the run at hand.

    Returns:
        Columns edition ("run" for the folder), chapter, and those of the table.
    """
    folders = {name: edition_folder(book, name) / "tables" for name in edition_names(book)}
    if here is not None:
        folders["run"] = here
    parts = []
    for name, folder in folders.items():
        for file in sorted(folder.glob(f"*.{table}.csv")):
            frame = pd.read_csv(file)
            frame.insert(0, "edition", name)
            frame.insert(1, "chapter", file.name.split(".")[0])
            if len(frame):
                parts.append(frame)
    empty = pd.DataFrame(columns=["edition", "chapter"])
    return pd.concat(parts, ignore_index=True) if parts else empty


def largest_claims(book: Path) -> pd.DataFrame:
    """Return the recorded rows of each claim from the largest edition that has it.

    Returns:
        The columns of the table ``claims``, and edition and chapter.
    """
    rows = read_tables(book, "claims").reindex(columns=TEXTS + NUMBERS).dropna(subset="label")
    for name in TEXTS:  # an empty column is read as numbers
        rows[name] = rows[name].astype(object).fillna("")
    parts = [rows[:0]]
    for _, part in rows.groupby("claim", sort=False):
        largest = max(part["edition"], key=notebooks.PRESETS.index)
        parts.append(part.loc[part["edition"] == largest])
    return pd.concat(parts[1:] or parts, ignore_index=True)


def largest_copies(book: Path, chapter: str) -> dict[str, nbformat.NotebookNode]:
    """Return the stored copies of a chapter by edition, the largest first."""
    copies = {}
    for name in reversed(edition_names(book)):
        copy = notebooks.read(edition_folder(book, name) / f"{chapter}.ipynb")
        if copy is not None:
            copies[name] = copy
    return copies
