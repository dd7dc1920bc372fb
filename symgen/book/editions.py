"""Editions: executed copies of chapters with their tables, in ``data/editions/<preset>/``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from symgen.book import notebooks
from symgen.book.notebooks import nbformat
from symgen.storage import atomic


def edition_folder(book: Path, preset: str) -> Path:
    """Return the folder of an edition."""
    return book / "data" / "editions" / preset


def edition_names(book: Path) -> list[str]:
    """Return the editions that hold pages or tables, the smallest first."""
    return [p for p in notebooks.PRESETS if any(edition_folder(book, p).rglob("*.*"))]


def move_tables(source: Path, target: Path, chapter: str) -> None:
    """Replace the tables of one chapter by those of a run."""
    for old in target.glob(f"{chapter}.*.csv"):
        old.unlink()
    for file in source.glob(f"{chapter}.*.csv"):
        with atomic(target / file.name) as path:
            shutil.copyfile(file, path)


def store(book: Path, preset: str, executed: Path) -> Path:
    """Copy an executed chapter and its tables into the edition; return the new path."""
    folder = edition_folder(book, preset)
    with atomic(folder / executed.name) as path:
        shutil.copyfile(executed, path)
    move_tables(executed.parent / "tables", folder / "tables", executed.stem)
    return folder / executed.name


def is_stale(stored: nbformat.NotebookNode, source: nbformat.NotebookNode) -> bool:
    """Return whether the cells of a chapter, or of its stored copy, have changed since it ran."""
    about = stored.metadata.get("symgen", {})
    # Both, because the copy itself may have been edited.
    hashes = {notebooks.cells_hash(page, about.get("parameters", ())) for page in (source, stored)}
    return {about.get("cells")} != hashes


def verify(book: Path) -> pd.DataFrame:
    """Return the stored pages that are stale, and the chapters without a quick page.

    Returns:
        Columns edition, chapter, problem ("stale" or "missing").
    """
    rows = []
    for name in notebooks.contents(book):
        source = notebooks.read_chapter(book, name)
        for edition in ("quick", *notebooks.PRESETS[1:]):
            stored = notebooks.read(edition_folder(book, edition) / f"{name}.ipynb")
            if stored is None and edition == "quick":
                rows.append((edition, name, "missing"))
            elif stored is not None and is_stale(stored, source):
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
    columns = ["edition", "chapter", "claim", "setting", "label", "mean", "low", "high", "side",
               "margin", "unit", "repetitions", "of", "row", "verdict"]  # fmt: skip
    rows = read_tables(book, "claims").reindex(columns=columns)
    text = ["setting", "unit", "row", "verdict"]  # an empty column is read as numbers
    rows = rows[rows["label"].notna()].astype(dict.fromkeys(text, object))
    rows[text] = rows[text].fillna("")
    size = rows["edition"].map(notebooks.PRESETS.index)
    return rows[size == size.groupby(rows["claim"]).transform("max")].reset_index(drop=True)


def largest_copies(book: Path, chapter: str) -> dict[str, nbformat.NotebookNode]:
    """Return the stored copies of a chapter by edition, the largest first."""
    names = reversed(edition_names(book))
    copies = {n: notebooks.read(edition_folder(book, n) / f"{chapter}.ipynb") for n in names}
    return {name: copy for name, copy in copies.items() if copy is not None}
