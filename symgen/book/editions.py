"""Editions: executed copies of chapters with their tables, in ``data/editions/<preset>/``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from symgen.book import notebooks
from symgen.book.notebooks import nbformat
from symgen.storage import atomic, fingerprint

#: Columns of recorded claims.
CLAIMS = [
    "edition", "chapter", "claim", "setting", "label", "mean", "low", "high", "side", "margin",
    "unit", "repetitions", "of", "row", "verdict",
]  # fmt: skip


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
    """Return the fingerprint of a page: its cells, its widgets, and what its run recorded."""
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
    earlier = notebooks.read(path)
    folder = path.parent / "tables"
    for name in earlier.metadata.get("symgen", {}).get("tables", {}) if earlier else {}:
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
    # Both, because the copy itself may have been edited.
    hashes = {notebooks.cells_hash(page, about.get("parameters", ())) for page in (source, stored)}
    return {about.get("cells")} != hashes


def verify(book: Path) -> pd.DataFrame:
    """Return what is wrong with the stored pages and tables.

    Returns:
        Columns edition, chapter, problem: "missing" for a chapter without a quick page; "damaged"
        if the page or a table is not what the run wrote; "stale" if code cells changed since.
    """
    rows = []
    for name in notebooks.contents(book):
        source = notebooks.read_chapter(book, name)
        for edition in notebooks.PRESETS:
            folder = edition_folder(book, edition)
            page = notebooks.read(folder / f"{name}.ipynb")
            record = page.metadata.get("symgen", {}) if page else {}
            tables = table_checksums(folder / "tables", name)
            if page is None and not tables and not (folder / f"{name}.ipynb").exists():
                if edition == "quick":
                    rows.append((edition, name, "missing"))
            elif page is None or record.get("page") != checksum(page) or record["tables"] != tables:
                rows.append((edition, name, "damaged"))
            elif is_stale(page, source):
                rows.append((edition, name, "stale"))
    return pd.DataFrame(rows, columns=["edition", "chapter", "problem"])


def read_tables(book: Path, table: str, here: Path | None = None) -> pd.DataFrame:
    """Return a table of all chapters from the editions, and from a folder of the run at hand.

    Returns:
        Columns edition ("run" for the folder), chapter, and those of the table.
    """
    folders = {name: edition_folder(book, name) / "tables" for name in edition_names(book)}
    folders |= {"run": here} if here else {}
    parts = [pd.DataFrame(columns=["edition", "chapter"])]
    for name, folder in folders.items():
        for file in sorted(folder.glob(f"*.{table}.csv")):
            frame = pd.read_csv(file)
            frame.insert(0, "edition", name)
            frame.insert(1, "chapter", file.name.split(".")[0])
            parts.append(frame)
    parts = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(parts, ignore_index=True)


def largest_claims(book: Path) -> pd.DataFrame:
    """Return the recorded rows of each claim from the largest edition that has it.

    Returns:
        The columns of the table ``claims``, and edition and chapter.
    """
    rows = read_tables(book, "claims").reindex(columns=CLAIMS)
    text = ["setting", "unit", "row", "verdict"]  # an empty column is read as numbers
    rows = rows.dropna(subset="label").astype(dict.fromkeys(text, object))
    rows = rows.fillna(dict.fromkeys(text, ""))
    size = pd.Series([notebooks.PRESETS.index(name) for name in rows["edition"]], rows.index)
    is_largest = size == size.groupby(rows["claim"]).transform("max")
    return rows.loc[is_largest].reset_index(drop=True)


def largest_copies(book: Path, chapter: str) -> dict[str, nbformat.NotebookNode]:
    """Return the stored copies of a chapter by edition, the largest first."""
    names = reversed(edition_names(book))
    copies = {n: notebooks.read(edition_folder(book, n) / f"{chapter}.ipynb") for n in names}
    return {name: copy for name, copy in copies.items() if copy is not None}
