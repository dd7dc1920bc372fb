"""Stored copies of executed chapters: where they lie, and whether they are what today's code gives.

Those of preset quick are the chapters themselves; those of others lie in ``data/editions/``.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from symgen.book import notebooks
from symgen.book.presets import BookError, preset_names, read_chapter, read_preset
from symgen.fingerprints import fingerprint

#: What is amiss with a stored chapter whose cells are today's, and whose results may still be.
OLDER = "symgen's code was changed after it ran"


def edition_folder(book: Path, preset: str) -> Path:
    """Return where a preset's stored copies lie; those of quick are the chapters themselves."""
    return book / "chapters" if preset == "quick" else book / "data" / "editions" / preset


def edition_tables(book: Path, preset: str) -> Path:
    """Return where the result tables of a preset's stored copies lie."""
    return book / "data" / "editions" / preset / "tables"


def store(book: Path, preset: str, executed: Path) -> Path:
    """Put an executed chapter and its tables among the stored ones; return its path there."""
    path = edition_folder(book, preset) / executed.name
    ran = nbformat.read(executed, as_version=4)
    source = read_chapter(book, executed.stem)
    # Prose may have been mended since the run.
    stored = notebooks.scrub(notebooks.refresh(ran, source) or ran, book, executed.stem)
    tables = notebooks.own_tables(ran, executed.parent / "tables", executed.stem)
    folder = edition_tables(book, preset)
    # This folder is the book's own, and an author may have cleared what tells of older tables.
    notebooks.write_notebook(stored, path, tables, folder, folder.glob(f"{path.stem}.*.csv"))
    return path


def edition_names(book: Path) -> list[str]:
    """Return the names of the stored editions other than quick."""
    folder = book / "data" / "editions"
    return sorted(p.name for p in folder.glob("*") if any(p.glob("*.ipynb")))


def problems(stored: nbformat.NotebookNode, source: nbformat.NotebookNode) -> list[str]:
    """Return why a stored chapter does not show what today's code would, or an empty list."""
    about = stored.metadata.get("symgen")
    if not about:
        return ["it holds no outputs of a run"]
    found = []
    parts = {key: value for key, value in about.items() if key in notebooks.IDENTITY}
    if fingerprint(parts) != about.get("fingerprint"):
        found.append("its fingerprint does not match what it says it was made from")
    own = about.get("sources") == notebooks.sources_fingerprint(stored)
    if not (own and notebooks.same_work(stored, source)):
        found.append("its code cells were changed after it ran")
    if about.get("code") != notebooks.chapter_code(source):
        found.append(OLDER)
    outputs = [output for cell in notebooks.own_code(stored) for output in cell.outputs]
    if not outputs:
        found.append("it holds no outputs")
    if any(output.output_type == "error" for output in outputs):
        found.append("it shows an error")
    record = notebooks.provenance_record(stored)
    if notebooks.inputs_changed(record, None, about["preset"]):
        found.append("results of other chapters that it shows were changed after it ran")
    return found


def ran_with(
    book: Path, name: str, executed: nbformat.NotebookNode, source: nbformat.NotebookNode
) -> tuple[str, dict[str, Any]]:
    """Return the preset that a chapter ran with, and the parameters that are not the preset's.

    What the run itself tells counts: a copy that another program made says what it was copied from.

    Args:
        book, name: of the chapter.
        executed: a copy of it.
        source: the chapter as it lies in the book.
    """
    about, own = executed.metadata["symgen"], notebooks.defaults(source)
    told = notebooks.provenance_record(executed).get("parameters", {})
    preset = told.get("preset", about["preset"])
    of_preset = read_preset(book, preset).get(name, {}) if preset in preset_names(book) else {}
    # A tuple is a list where it was written down.
    expected = json.loads(json.dumps({**own, **of_preset, "preset": preset}))
    ran = {**own, **about["parameters"], **told}
    return preset, {k: v for k, v in ran.items() if k in own and v != expected[k]}


def verify(book: Path, chapters: Iterable[str]) -> tuple[dict, dict]:
    """Compare the stored outputs with today's code.

    Returns:
        The chapters whose quick outputs are stale, with the reasons; and the chapters of other
        editions that are, which is no fault: a GPU or a cluster is needed to renew them.

    Raises:
        BookError: where there are no chapters.
    """
    stale, old = {}, {}
    if not (chapters := [*chapters]):
        raise BookError(f"{book / 'chapters'} holds no chapters: restore it from its repository")
    for name in chapters:
        source = read_chapter(book, name)
        found = problems(source, source)
        if notebooks.tables_changed(source, edition_tables(book, "quick"), name):
            found.append("its tables are not those of its run")
        if source.metadata.get("symgen", {}).get("parameters"):
            found.append("it ran with parameters other than the notebook's own")
        if found:
            stale[name] = found
        for edition in edition_names(book):
            path = edition_folder(book, edition) / f"{name}.ipynb"
            stored = notebooks.read_executed(path)
            if path.exists() and (found := problems(stored, source) if stored else ["damaged"]):
                old[f"{edition}/{name}"] = found
    return stale, old
