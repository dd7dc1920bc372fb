"""Notebooks of chapters as files: identified, read, written, brought up to date, scrubbed."""

import ast
import contextlib
import copy
import itertools
import json
import os
import pprint
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat

from symgen.files import atomic, cache_folder
from symgen.fingerprints import PACKAGE, RECORD, code_fingerprint, fingerprint, versions
from symgen.literal import plain

SCHEMA = 1  # of the `symgen` entry in a notebook's metadata
IDENTITY = ("schema", "preset", "parameters", "sources", "code", "versions")
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# What reading a notebook raises where there is none, or none whole.
UNREADABLE = (OSError, ValueError, AttributeError, nbformat.ValidationError)
REFERENCE = re.compile(r"IPY_MODEL_(\w+)")  # of one widget to another
# What a training prints before it begins, of `symgen.models.cost`.
EXPECTED = re.compile(r"^\w+Run\(.*\): about .* GiB of disk\n", re.MULTILINE)
INSTALL = "install"  # the tag of the cell that installs symgen where it is missing
BASE64 = ("image/", "application/pdf", "buffers")


def has_tag(cell: Mapping, tag: str) -> bool:
    """Return whether a notebook's cell carries the tag."""
    return tag in cell.metadata.get("tags", [])


def sources_fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Return the fingerprint of a notebook's own code cells; its prose does not count."""
    return fingerprint([c.source for c in own_code(notebook)])


def same_work(executed: nbformat.NotebookNode, source: nbformat.NotebookNode) -> bool:
    """Return whether a chapter that ran has today's code cells, and had today's parameters.

    The text of the parameters' cell does not count: a default that the run had replaced by a value
    of its preset may be another by now.
    """
    given = executed.metadata.get("symgen", {}).get("parameters", {})
    ran, today = (
        ([c.source for c in own_code(x) if not has_tag(c, "parameters")], defaults(x) | given)
        for x in (executed, source)
    )
    return ran == today


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the parameters of a notebook and their defaults, from its cell tagged `parameters`.

    What is no plain assignment of a value is passed over: running the cell tells what is wrong.
    """
    found = {}
    tagged = [c.source for c in notebook.cells if has_tag(c, "parameters")]
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.parse("\n".join(tagged)).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def called(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the names under which a notebook's own cells make a `symgen.Chapter`."""
    made = re.compile(r"\bChapter\(\s*[\"']([^\"']+)[\"']")
    return [name for cell in own_code(notebook) for name in made.findall(cell.source)]


def chapter_code(notebook: nbformat.NotebookNode) -> str:
    """Return the fingerprint of those modules of symgen that a chapter depends on."""
    cells = [c.source for c in own_code(notebook)]
    lines = "\n".join(cells).splitlines()
    source = "\n".join("pass" if x.startswith(("%", "!")) else x for x in lines)
    try:
        return code_fingerprint(source)
    except (SyntaxError, ValueError):  # the run will tell; until then it may depend on anything
        return code_fingerprint()


def own_code(notebook: nbformat.NotebookNode) -> list:
    """Return the code cells that the author wrote.

    Without the parameters injected by a run, and without what every chapter starts with, which
    installs symgen where it is missing.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [c for c in code if not (has_tag(c, "injected-parameters") or has_tag(c, INSTALL))]


def reads_results(notebook: nbformat.NotebookNode) -> bool:
    """Return whether a chapter reads what others of its edition have found."""
    return any(".results(" in cell.source for cell in own_code(notebook))


def identity(notebook: nbformat.NotebookNode, preset: str, parameters: Mapping) -> dict:
    """Return all that an executed chapter depends on, and the fingerprint of it."""
    parts = {
        "schema": SCHEMA,
        "preset": preset,
        "parameters": dict(parameters),
        "sources": sources_fingerprint(notebook),
        "code": chapter_code(notebook),
        "versions": versions(),
    }
    return {**parts, "fingerprint": fingerprint(parts)}


def read_notebook(path: Path) -> nbformat.NotebookNode | None:
    """Return a notebook, or None where there is none, or none whole."""
    try:
        return nbformat.read(path, as_version=4)
    except UNREADABLE:
        return None


def read_executed(path: Path) -> nbformat.NotebookNode | None:
    """Return an executed chapter, or None where there is none, or none whole."""
    notebook = read_notebook(path)
    return notebook if notebook and "fingerprint" in notebook.metadata.get("symgen", {}) else None


def write_notebook(
    notebook: nbformat.NotebookNode,
    path: Path,
    tables: Iterable[Path] = (),
    folder: Path | None = None,
    earlier: Iterable[Path] = (),
) -> None:
    """Write a notebook so that no reader ever sees half of it.

    With a folder, its tables go there in place of earlier ones: all of it is written, or none.
    """

    tables, earlier = list(tables), list(earlier)
    with contextlib.ExitStack() as stack:
        for table in tables:
            shutil.copyfile(table, stack.enter_context(atomic(folder / table.name)))
        temporary = stack.enter_context(atomic(path))
        temporary.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    for old in {*earlier} - {folder / t.name for t in tables}:
        old.unlink(missing_ok=True)


def own_tables(
    executed: nbformat.NotebookNode | None, folder: Path, chapter: str
) -> dict[Path, str]:
    """Return the paths in a folder of the tables that a run of a chapter wrote, and what they hold.

    The latter as a fingerprint.
    """
    written = provenance_record(executed).get("tables", {}) if executed else {}
    return {folder / f"{chapter}.{name}.csv": digest for name, digest in written.items()}


def refresh(executed: nbformat.NotebookNode, source: nbformat.NotebookNode):
    """Return today's prose with the outputs of an earlier run, or None if the code differs.

    Text may change without a run, so that a slip of the pen costs no hour on a GPU. The
    outputs, the injected parameters and the metadata are the run's.
    """
    if not same_work(executed, source):
        return None
    fresh = copy.deepcopy(source)
    for cell, ran in zip(own_code(fresh), own_code(executed), strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
        cell.source = ran.source
    injected = [c for c in executed.cells if has_tag(c, "injected-parameters")]
    cells = []
    for cell in fresh.cells:
        cells.append(cell)
        if injected and has_tag(cell, "parameters"):
            cells += map(_wrapped, injected)
    fresh.cells = cells
    fresh.metadata = copy.deepcopy(executed.metadata)
    return fresh


def _wrapped(cell: nbformat.NotebookNode, width: int = 80) -> nbformat.NotebookNode:
    """Return a cell of assignments with long values on several lines, as a page has room for."""
    lines = cell.source.splitlines()
    for node in reversed(ast.parse(cell.source).body):
        span = slice(node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.Assign) and max(map(len, lines[span])) > width:
            start = f"{ast.unparse(node.targets[0])} = "
            value = ast.literal_eval(node.value)
            told = pprint.pformat(value, width=width - len(start), sort_dicts=False)
            lines[span] = (start + told.replace("\n", "\n" + " " * len(start))).splitlines()
    return nbformat.from_dict({**cell, "source": "\n".join(lines)})


def tables_changed(executed: nbformat.NotebookNode, folder: Path, chapter: str) -> bool:
    """Return whether a chapter's tables in a folder are other ones than its run wrote."""
    return any(
        not path.is_file() or fingerprint(path.read_bytes().decode(errors="replace")) != digest
        for path, digest in own_tables(executed, folder, chapter).items()
    )


def inputs_changed(record: Mapping, folder: Path | None, preset: str) -> bool:
    """Return whether the results of other chapters that a chapter read are different now."""
    if not record.get("inputs"):
        return False
    from symgen.book.tables import read_results  # loads pandas, which few chapters need here

    return any(
        fingerprint(read_results(table, folder, preset).to_csv(index=False)) != read
        for table, read in record["inputs"].items()
    )


def provenance_record(notebook: nbformat.NotebookNode) -> dict:
    """Return the record shown by the chapter's provenance cell, or an empty one."""
    for cell in reversed(own_code(notebook)):
        for output in cell.outputs:
            record = output.get("data", {}).get(RECORD)
            if isinstance(record, str):
                record = json.loads(record)
            if isinstance(record, dict) and "code" in record:
                return dict(record)
    return {}


# As Python writes a warning, after the place that it comes from.
WARNING = re.compile(r"^(?P<place>.*?): (?P<kind>\w+Warning): (?P<text>.+)$", re.MULTILINE)

# Of a cell, or of this package: not of another one that lies in a clone called symgen.
OWN = re.compile(r"ipykernel_|(^|[/\\])symgen[/\\](?!.*site-packages)")


def warned_of(cell: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each warning of symgen, or of the cell itself, in its outputs."""
    for output in cell.get("outputs", []):
        for found in WARNING.finditer(output.text if output.get("name") == "stderr" else ""):
            if OWN.search(found["place"]):
                yield found["kind"], found["text"]


def with_warnings(cells: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yield cells, and after each what it warned of first: readers see nothing else of stderr."""
    seen = set()
    for cell in cells:
        yield cell
        for kind, text in warned_of(cell):
            if (kind, text) not in seen:
                seen.add((kind, text))
                about = f'<p class="warned"><b>{kind}.</b> {plain(text)}</p>'
                # By a number: a page that is laid out again is the same.
                yield nbformat.v4.new_markdown_cell(about, id=f"warned-{len(seen)}")


def with_data(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return cells without the sections for data that this run has not: their code shows nothing.

    Such a section begins with a cell tagged "where-data-are", and ends before the next cell with a
    heading.
    """
    texts = ((i, cell.source) for i, cell in enumerate(cells) if cell.cell_type == "markdown")
    heads = [i for i, source in texts if re.search("^#+ ", source, re.M)]
    left_out: set[int] = set()
    for start, end in itertools.pairwise([*heads, len(cells)]):
        nothing = not any(cell.get("outputs") for cell in cells[start:end])
        if nothing and has_tag(cells[start], "where-data-are"):
            left_out |= {*range(start, end)}
    return [cell for i, cell in enumerate(cells) if i not in left_out]


# What Markdown gives a name: a heading, an exercise, a figure.
LABEL = re.compile(r"^\(([\w-]+)\)=[ \t]*$|^:(?:label|name):[ \t]*([\w-]+)[ \t]*$", re.M)


def label_apart(pages: Mapping[str, nbformat.NotebookNode]) -> None:
    """Rename the labels of a page, in place, that one before it has: of a copy of a chapter.

    Args:
        pages: by their names; of two with a label the first keeps it.
    """
    taken = set[str]()
    for name, page in pages.items():
        texts = [cell for cell in page.cells if cell.cell_type == "markdown"]
        found = [a or b for cell in texts for a, b in LABEL.findall(cell.source)]
        for label in {*found} & taken:
            word = re.compile(rf"(?<![\w-]){label}(?![\w-])")
            for cell in texts:
                cell.source = word.sub(f"{label}-in-{name.replace('_', '-').lower()}", cell.source)
        taken |= {*found}


def scrub(notebook: nbformat.NotebookNode, book: Path, name: str) -> nbformat.NotebookNode:
    """Return an executed chapter without anything that only this machine or this minute knows.

    Folders of this machine are cut out of all text, times and ids of cells and kernels go, what a
    training was expected to take, too, and widgets, whose ids differ from run to run, are numbered.
    """

    clean = copy.deepcopy(notebook)
    for cell in clean.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        for output in cell.get("outputs", []):
            output.get("metadata", {}).pop("papermill", None)
            if output.output_type == "stream":
                output.text = EXPECTED.sub("", output.text)
        if cell.cell_type == "code":
            cell.outputs = [x for x in cell.outputs if x.get("text") != ""]
    folders = {str(f): "." for f in (book, book.resolve(), PACKAGE.parent)}
    folders |= {str(cache_folder()): "cache"}
    folders |= {os.path.expanduser("~"): "~", tempfile.gettempdir(): "tmp"}
    if data := os.environ.get("SYMGEN_DATA"):
        folders |= {data: "data", os.path.abspath(data): "data"}
    # Longest first: the home folder may hold all the others.
    ordered = sorted((f for f in folders if len(f) > 1), key=len, reverse=True)
    # A letter or digit before it means a longer path, or base64.
    pattern = re.compile(rf"(?<![\w+/=.])({'|'.join(map(re.escape, ordered))})(?![\w])")
    _replace(clean, lambda text: pattern.sub(lambda match: folders[match[1]], text))
    if ids := _widgets(clean):
        new = {old: fingerprint([name, number]) * 2 for number, old in enumerate(ids)}
        # All at once: what is scrubbed again has these names already, perhaps in another order.
        pattern = re.compile("|".join(map(re.escape, ids)))
        text = pattern.sub(lambda match: new[match[0]], nbformat.writes(clean))
        clean = nbformat.reads(text, as_version=4)
    return clean


def _widgets(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the ids of all widgets in an order that does not depend on them.

    As they are shown, each followed by what it refers to; then the others, by what they are.
    """
    kinds = notebook.metadata.get("widgets", {}).values()
    state = {i: model for kind in kinds for i, model in kind.get("state", {}).items()}
    told = {i: json.dumps(model, sort_keys=True) for i, model in state.items()}
    ids: dict[str, int] = {}

    def visit(i: str) -> None:
        if i in state and i not in ids:
            ids[i] = len(ids)
            for other in REFERENCE.findall(told[i]):
                visit(other)

    def known(i: str) -> str:
        return REFERENCE.sub(lambda match: str(ids.get(match[1])), told[i])

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            visit(_view(output) or "")
    for i in sorted(set(state) - set(ids), key=known):
        visit(i)
    return list(ids)


def drop_progress(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return an executed chapter without its progress bars, which say nothing once it has run."""
    clean = copy.deepcopy(notebook)
    state = clean.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    refers = {i: set(REFERENCE.findall(json.dumps(state[i]))) for i in state}
    names = {i: state[i].get("model_name", "") for i in state}
    bars = {i for i in state if names[i] == "FloatProgressModel"}
    bars |= {i for i in state if refers[i] & bars}
    shown: set = set()
    for cell in clean.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _view(output) not in bars]
            shown.update(filter(None, map(_view, cell.outputs)))
    # What a shown widget refers to stays, and so do the links between shown widgets.
    while grown := {i for s in shown for i in refers.get(s, ())} - shown:
        shown |= grown
    shown |= {i for i in state if "Link" in names[i] and refers[i] & shown}
    for i in set(state) - shown:
        del state[i]
    return clean


def _view(output: Mapping) -> str | None:
    return output.get("data", {}).get(WIDGET_VIEW, {}).get("model_id")


def _replace(node: Any, change) -> None:
    """Apply `change` to every text in nested JSON, but for binary data and the code cells."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        if isinstance(key, str) and (key.startswith(BASE64) or key == "source"):
            continue
        if isinstance(value, str):
            node[key] = change(value)
        elif isinstance(value, (dict, list)):
            _replace(value, change)
