"""What opens a chapter elsewhere in one click: buttons on its page, a cell that installs symgen.

`python -m symgen.book.launch` puts that cell into the chapters of the book at hand, and replaces it
where it is another; with ``--check`` it only says where it is not as it should be.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import nbformat

from symgen.book.layout import repository
from symgen.book.notebooks import INSTALL, has_tag, write_notebook
from symgen.book.presets import book_folder, chapter_names, read_chapter, read_yaml

# Where symgen is, nothing happens. `%pip` installs into the kernel that asks, whichever that is.
SOURCE = """\
import importlib.util

if importlib.util.find_spec("symgen") is None:  # as on Colab
    %pip install -q "{wanted}"
"""
# Nothing is installed by its mere name, which may be somebody else's.
NOWHERE = """\
import importlib.util

if importlib.util.find_spec("symgen") is None:
    raise ModuleNotFoundError("install symgen first, as the book's README says")
"""


def install_cell(address: str = "", wanted: str = "") -> nbformat.NotebookNode:
    """Return the first code cell of every chapter, which the site hides and JupyterLab folds.

    Args:
        address: of the book's repository; where there is none, the cell says what to do.
        wanted: what to install in its place, as pip names it.
    """
    wanted = wanted or (f"symgen[notebook] @ git+{address}" if address else "")
    source = (SOURCE if wanted else NOWHERE).format(wanted=wanted).rstrip()
    metadata = {"jupyter": {"source_hidden": True}, "tags": [INSTALL, "remove-cell"]}
    return nbformat.v4.new_code_cell(source, id=INSTALL, metadata=metadata)


def with_install_cell(
    notebook: nbformat.NotebookNode, cell: nbformat.NotebookNode
) -> nbformat.NotebookNode:
    """Return a chapter with the cell before all other code, in place of one it had."""
    fresh = copy.deepcopy(notebook)
    fresh.cells = [each for each in fresh.cells if not has_tag(each, INSTALL)]
    code = [number for number, each in enumerate(fresh.cells) if each.cell_type == "code"]
    fresh.cells.insert(min(code, default=len(fresh.cells)), copy.deepcopy(cell))
    return fresh


def theme_options(book: Path) -> dict[str, Any]:
    """Return what the theme needs for launch buttons and the address on every page.

    Nothing, where no address is set: then no page links to it.
    """
    if not (address := repository(book)):
        return {}
    branch = read_yaml(book / "_config.yml")["repository"].get("branch") or "main"
    found: dict[str, Any] = {"extra_footer": f'<p>Source: <a href="{address}">{address}</a></p>'}
    known = [host for host in ("github", "gitlab") if address.startswith(f"https://{host}.com/")]
    if known:  # the theme knows no others
        buttons = {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}
        if known == ["github"]:
            buttons["colab_url"] = "https://colab.research.google.com"
        found |= {"repository_url": address, "repository_branch": branch}
        found |= {"use_repository_button": True, "launch_buttons": buttons}
    return found


def main(arguments: list[str]) -> int:
    """Hold the install cell in every chapter; with ``--check``, return 1 where it is not held."""
    book, wrong = book_folder(), []
    cell = install_cell(repository(book))
    for name in chapter_names(book):
        chapter = read_chapter(book, name)
        if (wanted := with_install_cell(chapter, cell)) != chapter:
            wrong.append(name)
            if "--check" not in arguments:
                write_notebook(wanted, book / "chapters" / f"{name}.ipynb")
    what = "not as it should be in" if "--check" in arguments else "written into"
    print(f"The install cell is {what}: {', '.join(wrong) or 'none'}.")
    return int("--check" in arguments and bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
