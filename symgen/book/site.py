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
import yaml

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
    sources = [first, editions.edition_folder(book, "quick")]
    built = book / "_build"
    stage, work, site = built / "site-source", built / "site-work", built / "html"
    _stage(book, stage, sources)
    _sphinx(stage, work)
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(work / "_build" / "html", site)
    return site / f"{notebooks.read_yaml(book / '_toc.yml')['root']}.html"


def _stage(book: Path, stage: Path, sources: list[Path]) -> None:
    """Lay out the sources of the site; files that are the same stay untouched for Sphinx."""
    wanted: dict[Path, bytes] = {}
    for pattern in ("_toc.yml", "references.bib", "_static/**/*", "chapters/*.md"):
        for path in book.glob(pattern):
            if path.is_file():
                wanted[path.relative_to(book)] = path.read_bytes()
    for name in notebooks.contents(book):
        page = nbformat.writes(executed_page(book, name, sources))
        wanted[Path("chapters", f"{name}.ipynb")] = page.encode()
    config = notebooks.read_yaml(book / "_config.yml")
    config.setdefault("execute", {})["execute_notebooks"] = "off"
    options = config.setdefault("sphinx", {}).setdefault("config", {})
    options["symgen_book"] = str(book.resolve())
    wanted[Path("_config.yml")] = yaml.safe_dump(config).encode()
    for path in [p for p in stage.rglob("*") if p.is_file()]:
        if path.relative_to(stage) not in wanted:
            path.unlink()
    for name, content in wanted.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def executed_page(book: Path, name: str, sources: list[Path]) -> nbformat.NotebookNode:
    """Return the page of a chapter: today's text with the outputs of the first executed copy.

    If its cells have changed since, the page is the executed copy as it ran, and says so.
    """
    source = notebooks.read_chapter(book, name)
    page = source
    for folder in sources:
        executed = notebooks.read(folder / f"{name}.ipynb")
        if executed is None:
            continue
        about = executed.metadata.get("symgen", {})
        if editions.is_stale(executed, source):
            executed.metadata["symgen"] = {**about, "stale": True}
            page = executed
            break
        code = {id(cell): ran for cell, ran in zip(
            notebooks.code_cells(source), notebooks.code_cells(executed), strict=True)}  # fmt: skip
        cells = []
        for cell in source.cells:
            cells.append(cell)
            if id(cell) in code:
                cell.outputs = code[id(cell)].outputs
                cell.execution_count = code[id(cell)].execution_count
            if notebooks.has_tag(cell, "parameters"):
                cells += [c for c in executed.cells if notebooks.has_tag(c, "injected-parameters")]
        source.cells, source.metadata = cells, executed.metadata
        page = source
        break
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


def _sphinx(stage: Path, work: Path) -> None:
    """Run jupyter-book with warnings as errors."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", "-W", "-n", "--keep-going", "--path-output", str(work), str(stage)]
    print("Building the site ...", flush=True)
    encoding = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=encoding)
    if done.returncode:
        # Sphinx would pass over the faulty pages next time.
        shutil.rmtree(work, ignore_errors=True)
        report = "\n".join(line for line in done.stderr.splitlines() if line.strip())
        raise BookError(f"the site has faults and was not replaced:\n{report}")
