"""Build the site from executed chapters: strict, and working offline."""

import html
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import nbformat

from symgen.book import editions, notebooks
from symgen.book.notebooks import BookError


def build(book: Path, edition: str | None = None, folder: Path | None = None) -> Path:
    """Build the site into ``_build/html`` and return its first page.

    A chapter is taken from the folder or the edition, or else from the edition quick, or else
    from its source without outputs. A failed build leaves the last site as it is.

    Args:
        book: its folder.
        edition: name of a stored edition.
        folder: of a run; by default ``_build/runs/quick`` if it exists.

    Raises:
        BookError: for an unknown edition, an empty folder, jupyter-book 2, or faults in a page.
    """
    version = metadata.version("jupyter-book")
    if int(version.split(".")[0]) >= 2:
        raise BookError(
            f"jupyter-book {version} is installed, which reads neither _config.yml nor _toc.yml; "
            "run: pip install 'jupyter-book<2'"
        )
    names = editions.edition_names(book)
    if edition is not None and edition not in names:
        raise notebooks.unknown("edition", edition, names)
    if folder is not None and not any(folder.glob("*.ipynb")):
        raise BookError(f"no executed chapter in {folder}; run `symgen run all` first")
    if edition is None and folder is None:
        folder = book / "_build" / "runs" / "quick"
    first = editions.edition_folder(book, edition) if edition else folder
    built = book / "_build"
    work, site = built / "site-work", built / "html"
    _sphinx(book, work, [first, editions.edition_folder(book, "quick")])
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(work / "_build" / "html", site)
    return site / f"{notebooks.read_yaml(book / '_toc.yml')['root']}.html"


def executed_page(book: Path, name: str, sources: list[Path]) -> nbformat.NotebookNode:
    """Return the page of a chapter: today's text with the outputs of the first executed copy.

    If its cells have changed since, the page is the executed copy as it ran, and says so.
    """
    page = source = notebooks.read_chapter(book, name)
    copies = (notebooks.read(folder / f"{name}.ipynb") for folder in sources)
    executed = next(filter(None, copies), None)
    if executed and editions.is_stale(executed, source):
        page = executed
        page.metadata["symgen"] = {**page.metadata.get("symgen", {}), "stale": True}
    elif executed:
        code = iter(notebooks.code_cells(executed))
        cells = []
        for cell in source.cells:
            cells.append(cell)
            if cell.cell_type == "code":
                ran = next(code)
                cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
            if notebooks.has_tag(cell, "parameters"):
                cells += [c for c in executed.cells if notebooks.has_tag(c, "injected-parameters")]
        page.cells, page.metadata = cells, executed.metadata
    failed = notebooks.read(sources[0] / f"{name}.failed.ipynb")
    if failed is not None:
        page.cells.insert(1, nbformat.v4.new_markdown_cell(_failure(failed)))
    return page


def _failure(failed: nbformat.NotebookNode) -> str:
    """Return the line that states where the last run of a chapter failed."""
    outputs = [output for cell in notebooks.code_cells(failed) for output in cell.outputs]
    errors = [output for output in outputs if output.output_type == "error"]
    text = f"{errors[0].ename}: {errors[0].evalue}" if errors else "its kernel ended"
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())[:300]
    return (
        '<p class="failed"><b>The last run of this chapter failed</b>: '
        f"<code>{html.escape(text)}</code>. Outputs on this page are those of an earlier run.</p>"
    )


def _sphinx(book: Path, work: Path, sources: list[Path]) -> None:
    """Run jupyter-book with warnings as errors."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", "-W", "-n", "--keep-going", "--path-output", str(work), str(book)]
    print("Building the site ...", flush=True)
    pages = os.pathsep.join(str(folder.resolve()) for folder in sources)
    names = {**os.environ, "PYTHONUTF8": "1", "SYMGEN_PAGES": pages}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=names)
    if done.returncode:
        # Sphinx would pass over the faulty pages next time.
        shutil.rmtree(work, ignore_errors=True)
        report = "\n".join(line for line in done.stderr.splitlines() if line.strip())
        raise BookError(f"the site has faults and was not replaced:\n{report}")
