"""Build the book's site from executed chapters, strictly, and so that it works offline."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import yaml

from symgen.book import notebooks, presets
from symgen.book.editions import OLDER, edition_folder, edition_names, problems, ran_with
from symgen.book.landing import PRESETS, drawn_by, held
from symgen.book.launch import theme_options
from symgen.book.presets import BookError, chapter_names, read_chapter, read_yaml, unknown
from symgen.book.processes import ended_with_us, one_at_a_time
from symgen.book.runs import SITE
from symgen.book.scripts import fetch_scripts
from symgen.book.tables import read_results
from symgen.files import atomic, sha256
from symgen.fingerprints import PACKAGE, fingerprint
from symgen.literal import plain


def build(
    book: Path,
    edition: str | None = None,
    folder: Path | None = None,
    workplace: Path | None = None,
) -> Path:
    """Build the site into ``_build/html`` and return its first page.

    Each chapter is taken from `folder` if it is there, else from the edition, else from
    chapters/. Without either, the largest preset is shown whose stored copy is what today's code
    gives. A chapter whose last run failed says so, and shows what is stored. Where neither what
    goes into the site nor the site itself has changed, nothing is built.

    Args:
        book: the book's folder.
        edition: "quick", or one under data/editions/.
        folder: with executed chapters, as `symgen run` leaves them.
        workplace: where ``_build`` is to be, the book's folder by default.

    Raises:
        BookError: for an unknown edition, or when the builder finds any fault in a page.
    """
    known = ["quick", *edition_names(book)]
    if edition is not None and edition not in known:
        raise unknown("edition", edition, known)
    if folder is not None and not any(folder.glob("*.ipynb")):
        told = "run the chapters first, with `symgen run all`"
        raise BookError(f"no folder {folder} with executed chapters: {told}")
    sources = [f for f in (folder, edition and edition_folder(book, edition)) if f]
    built = (workplace or book) / "_build"
    built.mkdir(exist_ok=True)
    with one_at_a_time(built / ".site.lock", "another build of this site"):
        return _build(book, sources, built)


def _build(book: Path, sources: list[Path], built: Path) -> Path:
    site, stage, work, vendor = (built / name for name in SITE)
    for leftover in (stage, work):  # of this build, or of one that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    _stage(book, stage, sources, vendor)
    first = site / f"{read_yaml(book / '_toc.yml')['root']}.html"
    stamp = site / STAMP
    with contextlib.suppress(FileNotFoundError):
        if stamp.read_text(encoding="utf-8") == _state(stage, site) and first.is_file():
            print("The site is up to date.")
            return first
    if site.exists() and not (site / STAMP).is_file():
        raise BookError(
            f"{site} is no site of symgen, and is not replaced: move it away, or call this in "
            "another folder"
        )
    work.mkdir()
    try:
        _sphinx(stage, work)
        (work / "_build" / "html" / STAMP).touch()
        shutil.rmtree(site, ignore_errors=True)
        os.replace(work / "_build" / "html", site)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    state = _state(stage, site)  # before a temporary file lies there
    with atomic(stamp) as temporary:
        temporary.write_text(state, encoding="utf-8")
    return first


def _stage(book: Path, stage: Path, sources: list[Path], scripts: Path) -> None:
    """Lay out everything the site is made of in one folder."""
    (stage / "chapters").mkdir(parents=True)
    shutil.copytree(book / "_static", stage / "_static")
    shutil.copyfile(book / "references.bib", stage / "references.bib")
    contents, names = presets.table_of_contents(book)
    (stage / "_toc.yml").write_text(yaml.safe_dump(contents, sort_keys=False), encoding="utf-8")
    pages = {name: _page(book, name, sources or _largest(book, name)) for name in names}
    notebooks.label_apart(pages)
    for name, page in pages.items():
        notebooks.write_notebook(page, stage / "chapters" / f"{name}.ipynb")
    figure = partial(_figure, pages, stage)
    made = {
        "held": partial(_held, pages, sources, figure),
        "hero": partial(figure, "when", "plot_cases(", HERO),
        "first": partial(figure, "00_planted_logic", "plot_interactions(repaired", FIRST),
        "costs": partial(_costs, book, sources),
        "course preset": partial(_of_course, pages),
    }
    for page in (book / "chapters").glob("*.md"):
        text = TABLE.sub(lambda m: _table(book, m[1], made), page.read_text(encoding="utf-8"))
        (stage / "chapters" / page.name).write_text(text, encoding="utf-8")
    config = read_yaml(book / "_config.yml")
    options = config.setdefault("sphinx", {}).setdefault("config", {})
    options.setdefault("html_theme_options", {}).update(theme_options(book))
    if vendor := fetch_scripts(scripts):
        options["html_extra_path"] = [str(vendor)]
        # Both are relative to _static, whose own scripts the theme would load on every page.
        options["mathjax_path"] = "../vendor/mathjax/tex-mml-chtml.js"
        options["nb_ipywidgets_js"] = {"../vendor/widgets/embed.js": {}}
    (stage / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")


HERO = (
    "Generalization power H with its chance level, number of interactions N, and loss gap through "
    "training, in the case of the map where most findings are shown and in that where fewest are; "
    "phases shaded"
)
FIRST = (
    "The strongest AND and OR interactions that were found in an output disturbed by noise: the "
    "planted ones stand out"
)
# In a Markdown page, `<!-- table: NAME -->` stands for a table that is made when the site is.
TABLE = re.compile(r"<!-- table: (.+?) -->")


def _table(book: Path, name: str, made: Mapping[str, Callable[[], Any]]) -> str:
    """Return a table in Markdown: what is made for this site, or a file with rows of one place."""
    if name in made:
        found = made[name]()
        if isinstance(found, str):
            return found
    else:
        file, _, place = name.partition(" ")
        found = pd.read_csv(book / "data" / file)
        found = found[found["place"] == place].drop(columns="place").dropna(axis=1, how="all")
    if not len(found):
        return "*No run has been stored yet.*"
    lines = [list(found.columns), ["---"] * found.shape[1], *found.astype(object).values.tolist()]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        form = ",.0f" if abs(value) >= 1000 else ".4g"
        return "" if pd.isna(value) else f"{value:{form}}"
    return str(value).replace("|", "\\|")


def _held(
    pages: Mapping[str, nbformat.NotebookNode],
    sources: list[Path],
    figure: Callable[[str, str, str], str],
) -> str:
    """Return what became of the main claims, by the results that the pages show."""
    shown = _presets(pages)
    folder = next((f for f in sources if (f / "tables").is_dir()), None)
    of_folder = {shown[name] for name in shown if folder and (folder / f"{name}.ipynb").is_file()}
    tables = []
    for table in ("claims", "effects", "verdicts"):
        found = read_results(table, folder, next(iter(of_folder), "quick"))
        same = [shown.get(row.chapter) == row.preset for row in found.itertuples()]
        tables.append(found[same])
    claims, effects, verdicts = tables
    of_map = (table[table["chapter"] == "when"] for table in (effects, verdicts))
    return held(claims, *of_map, figure)


def _presets(pages: Mapping[str, nbformat.NotebookNode]) -> dict[str, str | None]:
    """Return the preset of each page; None for one that was never executed."""
    return {k: page.metadata.get("symgen", {}).get("preset") for k, page in pages.items()}


def _figure(
    pages: Mapping[str, nbformat.NotebookNode], stage: Path, chapter: str, call: str, alt: str
) -> str:
    """Put a figure of a chapter beside the pages, and return what shows it; "" without one."""
    figure = drawn_by(pages[chapter], call) if chapter in pages else None
    if figure is None:
        return ""
    # The end of the name is how the style of pages knows it.
    name = f"{chapter}.{call.partition('(')[0]}.hero.svg"
    (stage / "chapters" / name).write_text(figure, encoding="utf-8")
    return f"```{{figure}} {name}\n:alt: {alt}\n```"


def _of_course(pages: Mapping[str, nbformat.NotebookNode]) -> str:
    """Return a warning for who teaches from a site whose pages are not those of the course."""
    if not (others := [k for k, run in _presets(pages).items() if run not in ("quick", None)]):
        return "Every page of this site is of preset `quick`, as this course has it."
    links = ", ".join(f"[{name}]({name})" for name in others)
    return (
        ":::{warning}\nThis site shows larger runs, with other numbers than this page has, of "
        f"{links}. For the course, build it with `symgen html --edition quick`.\n:::"
    )


def _costs(book: Path, sources: list[Path]) -> pd.DataFrame:
    """Return what each chapter took at each preset, from its executed copies that are not stale."""
    folders = [*sources, *(edition_folder(book, e) for e in ("quick", *edition_names(book)))]
    rows: dict[tuple[str, str], dict] = {}
    sources_of = {name: read_chapter(book, name) for name in chapter_names(book)}
    for (name, own), folder in itertools.product(sources_of.items(), folders):
        executed = notebooks.read_executed(folder / f"{name}.ipynb")
        if executed and not problems(executed, own):
            about, record = executed.metadata.symgen, notebooks.provenance_record(executed)
            preset, changed = ran_with(book, name, executed, own)
            if changed:
                continue
            found = {
                "chapter": f"[{name}]({name})",
                "preset": plain(preset),
                "seconds": round(record.get("seconds", about["seconds"])),
                "memory (MiB)": about["memory"].get("host", ""),
                "machine": plain(record.get("device", "")),
            }
            rows.setdefault((name, preset), found)
    return pd.DataFrame(rows.values())


def _largest(book: Path, name: str) -> list[Path]:
    """Return the stored editions with a copy of a chapter of today's cells, the largest first.

    Where only the package has changed since, its page says so: toys of today tell a reader less.
    """
    known = {e: notebooks.read_executed(edition_folder(book, e) / f"{name}.ipynb")
             for e in edition_names(book) if e in PRESETS}  # fmt: skip
    own = read_chapter(book, name)
    found = [e for e in reversed(PRESETS) if known.get(e) and {*problems(known[e], own)} <= {OLDER}]
    return [edition_folder(book, e) for e in found]


def _page(book: Path, name: str, sources: list[Path]) -> nbformat.NotebookNode:
    """Return the best executed copy of a chapter, with a line that says what produced it."""
    own = read_chapter(book, name)
    page, failed = own, None
    for folder in sources:
        left = folder / f"{name}.failed.ipynb"
        failed = failed or (left if left.is_file() else None)
        executed = notebooks.read_executed(folder / f"{name}.ipynb")
        # Beside a failed run lies what an earlier one has left, perhaps of other code.
        if executed and not (left == failed and problems(executed, own)):
            page = notebooks.scrub(notebooks.refresh(executed, own) or executed, book, name)
            break
    older = bool(problems(page, own))
    ran = ran_with(book, name, page, own) if "symgen" in page.metadata else ("", {})
    if page is not own:
        page.cells = notebooks.with_data(page.cells)
    for cell in page.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            title, _, rest = cell.source.partition("\n")
            title = f"# {_number(name)}{title.removeprefix('# ')}"
            about = _failure(failed, page) + _summary(page, older, *ran)
            cell.source = f"{title}\n\n{about}\n\n{rest}"
            break
    page.cells = list(notebooks.with_warnings(page.cells))
    return page


def _number(name: str) -> str:
    """Return the number of a chapter, as its title and the table of contents have it."""
    found = re.match(r"(?:0?(\d+)|([A-Z]))_", name)
    return f"{found[1] or found[2]}. " if found else ""


def _failure(failed: Path | None, page: nbformat.NotebookNode) -> str:
    """Return the line that says that the last run failed, and where; "" if it did not."""
    if failed is None:
        return ""
    where = "without an error in a cell: its process was ended"
    # A run that was killed may leave half a file.
    for cell in getattr(notebooks.read_notebook(failed), "cells", []):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                line = next(iter(cell.source.strip().splitlines()), "")
                said = re.sub(r"\x1b\[[\d;]*m", "", f"{output.ename}: {output.evalue}")
                where = (
                    f"in cell [{plain(cell.execution_count)}] (<code>{plain(line)}</code>) with "
                    f"<code>{plain(said if len(said) < 500 else said[:500] + ' ...')}</code>"
                )
    stored = "are stored ones, of an earlier run" if page.metadata.get("symgen") else "are missing"
    return (
        f'<p class="failed"><b>The last run of this chapter failed</b> {where}. '
        f"The outputs on this page {stored}.</p>\n\n"
    )


def _summary(page: nbformat.NotebookNode, older: bool, preset: str, changed: dict[str, Any]) -> str:
    """Return the line that says what produced a page; parameters of its preset stand in a cell.

    Args:
        page: what is shown of a chapter.
        older: whether today's code would give another one.
        preset, changed: of `ran_with`.
    """
    about, record = page.metadata.get("symgen"), notebooks.provenance_record(page)
    if not about:
        return '<p class="edition">This chapter has not been executed yet.</p>'
    parts = [f"Preset <b>{plain(preset)}</b>"]
    if "dataset" in record.get("parameters", {}):
        parts.append(f"data {plain(record['parameters']['dataset'])}")
        changed.pop("dataset", None)
    if changed:
        parts.append(", ".join(f"{plain(k)} = {plain(v)}" for k, v in changed.items()))
    if record:  # the same numbers as in the table at the end of the page
        parts += [plain(record["device"]), f"{record['seconds']:.1f} s"]
        parts.append(f"code fingerprint {plain(record['code'])}")
    if older:
        parts.append("<em>made before a later change of the code</em>")
    return f'<p class="edition">{" · ".join(parts)}</p>'


STAMP = ".sources"


def _state(stage: Path, site: Path) -> str:
    """Return the fingerprint of the site and of all it depends on, docstrings included."""
    folders = [(stage, "**/*"), (PACKAGE, "**/*.py"), (site, "**/*")]
    return fingerprint(
        [
            {
                str(file.relative_to(folder)): sha256(file)
                for file in folder.glob(pattern)
                if file.is_file() and file != site / STAMP
            }
            for folder, pattern in folders
        ]
    )


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


def _folded(page: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Fold a page's parameters, and outputs so tagged, under lines that say what is there.

    Who reads begins with the text; a table of hundreds of rows is looked up.
    """
    replaced = any(notebooks.has_tag(cell, "injected-parameters") for cell in page.cells)
    for cell in page.cells:
        default = notebooks.has_tag(cell, "parameters")
        if default or notebooks.has_tag(cell, "injected-parameters"):
            cell.metadata.tags = sorted({*cell.metadata.tags, "hide-cell"})
            says = "The parameters of this page"
            if default and replaced:
                says = "Defaults, and their meaning"
            cell.metadata.mystnb = {"code_prompt_show": says, "code_prompt_hide": says}
        elif notebooks.has_tag(cell, "hide-output"):
            about = cell.metadata.setdefault("mystnb", {})
            about |= dict.fromkeys(("code_prompt_show", "code_prompt_hide"), "The whole table")
    return page


def setup(app: Any) -> dict[str, bool]:
    """Serve as a Sphinx extension that makes outputs inert."""
    app.connect("source-read", _outputs)
    # Sphinx knows nothing of formulas in outputs, and would leave out the script for them.
    app.set_html_assets_policy("always")
    return {"parallel_read_safe": True}


def _outputs(app: Any, page: str, text: list[str]) -> None:
    if str(app.env.doc2path(page)).endswith(".ipynb"):
        # Here, since a command that only reads a book's settings needs none of this.
        from symgen.book.inert import inert

        text[0] = nbformat.writes(_folded(inert(nbformat.reads(text[0], as_version=4))))
