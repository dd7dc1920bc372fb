"""A small book for the tests: two tiny notebooks, a claim, a stored edition."""

import shutil
from pathlib import Path

import nbformat
import pandas as pd
from conftest import ROOT

PARAMETERS = (
    'preset = "quick"\nn = 3  # variables\nrate = 0.1  # of learning\nsettings = {"epochs": 1}'
)
FIRST = [
    ("markdown", ["slide"], "# First chapter\n\nGoals. See [the second](02_second.ipynb#a-section)."),
    ("code", ["parameters"], PARAMETERS),
    ("code", [], 'import pandas as pd\nimport symgen\nchapter = symgen.Chapter("00_first", globals())'),
    ("code", ["hero", "slide"], "import matplotlib.pyplot as plt\n"
     'plt.rcParams["svg.hashsalt"] = "x"\n%config InlineBackend.figure_formats = ["svg"]\n'
     "plt.plot([0, n]);"),
    ("markdown", [], "*A line from 0 to $n$.*\n\nProse."),
    ("code", [], 'chapter.record("power", pd.DataFrame({"H": [1 / 3, n], "who": ["<b>a</b>", "b"]}))'),
    ("code", [], "from IPython.display import HTML, Markdown\n"
     'HTML("<script>hack()</script><p onclick=\'hack()\'>safe words</p>")'),
    ("code", [], 'Markdown("# [evil](javascript:hack())")'),
    ("code", [], 'print("\\x1b]0;title of the terminal")\nprint("\\x1b[31mred\\x1b[0m\\x00")\n'
     "import ipywidgets\nipywidgets.HTML('<b>a widget</b>')"),
    ("markdown", [], "## Adding\n\n### Exercise: add\n\n**Easy, 1 minute.** Add 1 and 2.\n\n"
     "<details><summary>Hint</summary>\n\nUse $+$.\n\n</details>"),
    ("code", ["exercise"], "total = ..."),
    ("code", ["exercise-check"], "from symgen.book.checking import check\ncheck(total, 3)"),
    ("markdown", ["solution"], "<details><summary>Solution</summary>\n\nAdd.\n\n```python\ntotal = 1 + 2\n```\n\n</details>"),
    ("code", ["finding"], 'chapter.finding(chapter.outcome("power"), "Three < four.")'),
    ("code", [], "chapter.trainings.used['study', 0] = (5.0, 'cpu')\nchapter.provenance()"),
]  # fmt: skip
SECOND = [
    ("markdown", [], "# Second chapter\n\n## A section\n\nText."),
    ("code", ["parameters"], 'preset = "quick"\nvalue = 1.0  # anything\nfail = False  # whether to stop'),
    ("code", [], "import os\nclass OutOfTime(Exception):\n    pass\n"
     "if fail:\n    raise (OutOfTime if fail == 'time' else RuntimeError)(f'in {os.getcwd()}')"),
    ("code", [], "for _ in range(10_000 if value == 'much' else 1):\n    print(value, os.getcwd())"),
]  # fmt: skip

INDEX = [
    ("markdown", [], "# A book"),
    ("code", ["remove-input"], "from IPython.display import HTML\nfrom myst_nb import glue\n"
     "from symgen.book import editions, notebooks, pages\nbook = notebooks.book_folder()\n"
     "rows = editions.largest_claims(book)\nclaims = pages.claims_of_paper(book)\n"
     "glue('rise', pages.effect(rows.iloc[0]), display=False)"),
    ("markdown", [], "H rises by {glue:text}`rise`. [start](00_first.ipynb)"),
    ("code", ["remove-input"], "HTML(pages.claim_box(rows, claims.loc['power'], 'cpu'))"),
]  # fmt: skip


def notebook(cells: list) -> nbformat.NotebookNode:
    """A notebook of (type, tags, source)."""
    made = []
    for number, (kind, tags, source) in enumerate(cells):
        new = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        made.append(new(source, id=f"cell-{number}", metadata={"tags": tags} if tags else {}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def claims(edition_mean: float) -> pd.DataFrame:
    """The table `claims` of a chapter."""
    row = {
        "claim": "power", "setting": "cnn on digits", "label": "rise of H", "mean": edition_mean,
        "low": edition_mean - 0.02, "high": edition_mean + 0.02, "side": 1, "margin": 0.02,
        "unit": "", "repetitions": 8, "of": "trainings", "row": "holds", "verdict": "holds",
    }  # fmt: skip
    return pd.DataFrame([row, {**row, "label": "chance", "side": 0, "row": ""}])


def make_book(folder: Path) -> Path:
    """Lay out a small book with the settings and style of the real one."""
    (folder / "chapters" / "presets").mkdir(parents=True)
    for name in ("_config.yml", "references.bib"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "_static", folder / "_static")
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: chapters/index\nchapters:\n- file: chapters/00_first\n"
        "- file: chapters/02_second\n- file: chapters/reference\n"
    )
    for name, cells in {"00_first": FIRST, "02_second": SECOND, "index": INDEX}.items():
        nbformat.write(notebook(cells), folder / "chapters" / f"{name}.ipynb")
    (folder / "chapters" / "reference.md").write_text(
        "# Reference\n\n```{bibliography}\n:all:\n```\n"
    )
    (folder / "chapters" / "teaching_quiz.md").write_text("# Quiz\n\n1. Why?\n")
    for preset in ("quick", "cpu", "smoke"):
        (folder / "chapters" / "presets" / f"{preset}.yml").write_text(
            "00_first: {}\n" if preset == "quick" else "00_first: {n: 5, settings: {width: 2}}\n"
        )
    (folder / "data" / "paper").mkdir(parents=True)
    shutil.copy(ROOT / "data" / "paper" / "names.csv", folder / "data" / "paper")
    (folder / "data" / "paper" / "claims.csv").write_text(
        "claim,place,statement,paper_value,chapter,rule,margin,control,beyond\n"
        "power,Fig. 3,H first rises & then falls,always,00_first,H rises.,0.02,chance,above chance\n"
        "count,Fig. 3,N first falls,always,02_second,N falls.,0,,\n"
    )
    for edition, mean in (("quick", 0.5), ("cpu", 0.12)):
        tables = folder / "data" / "editions" / edition / "tables"
        tables.mkdir(parents=True)
        # Measured for a chapter that is not in the contents, so that runs of others leave it.
        claims(mean).to_csv(tables / "old.claims.csv", index=False)
    # The scripts of pages are fetched once for all tests.
    vendor = ROOT / "_build" / "vendor"
    vendor.mkdir(parents=True, exist_ok=True)
    (folder / "_build").mkdir()
    (folder / "_build" / "vendor").symlink_to(vendor)
    return folder
