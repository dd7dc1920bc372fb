"""The real chapters: their form, their presets, their stored pages, and a run of each.

Preset smoke runs every chapter with tiny parameters, with its exercises solved, and twice in one
kernel, as students do who solve an exercise and run all cells again.
"""

import ast
import copy
import itertools
import re
import shutil

import nbformat
import pandas as pd
import pytest
import yaml
from conftest import ROOT

from symgen.book import course, editions, notebooks, run

CHAPTERS = notebooks.contents(ROOT)
STORED = sorted((ROOT / "data" / "editions").glob("*/*.ipynb"))
MACHINE = re.compile(r"(?<![\w+/=.~-])/(?:root|home|Users|work|tmp|mnt|var)/[\w.-]+")
SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\n\n(.*)\n\n</details>", re.S)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
FENCE = re.compile(r"```python\n(.*?)\n```", re.S)


@pytest.fixture(params=CHAPTERS)
def chapter(request):
    notebook = notebooks.read_chapter(ROOT, request.param)
    notebook.metadata["chapter"] = request.param
    return notebook


def solved(notebook):
    """Put the fence of each solution in place of the exercise cell before it."""
    exercise = None
    for cell in notebook.cells:
        if notebooks.has_tag(cell, "exercise"):
            assert exercise is None, f"no solution follows {exercise.source!r}"
            exercise = cell
        elif cell.cell_type == "markdown" and (match := SOLUTION.search(cell.source)):
            (exercise.source,) = FENCE.findall(match[1])
            exercise = None
    assert exercise is None, f"no solution follows {exercise.source!r}"
    return notebook


def twice(notebook, parameters):
    """Return a notebook whose cells all run twice, and where the second pass begins."""
    cells = copy.deepcopy(notebook.cells)
    for number, cell in enumerate(cells):
        cell.id = f"again-{number}"
        if notebooks.has_tag(cell, "parameters"):
            cell.metadata.pop("tags")
            values = [f"{name} = {value!r}" for name, value in parameters.items()]
            cell.source = "\n".join([cell.source, *values])
    doubled = copy.deepcopy(notebook)
    doubled.cells += cells
    return doubled


def printed(cell):
    """Return the texts of a code cell's outputs, without warnings of its first pass."""
    shown = [output for output in cell.outputs if output.get("name") != "stderr"]
    return "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in shown)


def numbers(text):
    return [float(number) for number in NUMBER.findall(text)]


def test_every_page_of_the_contents_exists_and_every_chapter_is_listed():
    listed = re.findall(r"file: chapters/(\S+)", (ROOT / "_toc.yml").read_text())
    pages = {p.stem for p in (ROOT / "chapters").glob("*.*") if p.suffix in (".ipynb", ".md")}
    extra = {name for name in pages if name.startswith("teaching_")}  # sheets of the course
    assert {*listed, "index"} == pages - extra
    assert len(listed) + 1 == 17


def pair_of_networks(folder):
    """Return a pair for chapter 02: a small image classifier in a folder, as both networks."""
    import transformers

    small = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=5
    )
    transformers.ResNetForImageClassification(small).save_pretrained(folder)
    size = {"height": 64, "width": 64}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)
    birds = "bentrevett/caltech-ucsd-birds-200-2011"
    return {"networks": [str(folder)] * 2, "dataset": birds, "samples": 3, "n": 3}


def test_a_chapter_runs_with_its_exercises_solved(chapter, tmp_path, monkeypatch):
    name = chapter.metadata["chapter"]
    # Chapter 02 draws the rows of this table, if it is there.
    (tmp_path / "tables").mkdir()
    power = "05_llm_interactions.power.csv"
    shutil.copy(ROOT / "data" / "editions" / "quick" / "tables" / power, tmp_path / "tables")
    given = {}
    if name == "02_order_generalization":
        monkeypatch.setenv("SYMGEN_DATA", str(ROOT / "tests" / "data" / "mirror"))
        given = {"pairs": [pair_of_networks(tmp_path / "net")]}
    source = tmp_path / "solved" / f"{name}.ipynb"
    parameters = notebooks.resolve(ROOT, name, "smoke", given)
    notebooks.write(twice(solved(chapter), parameters), source)
    outcome = run.execute(ROOT, str(source), "smoke", given, tmp_path)
    assert outcome.status == "done", outcome.message
    if given:  # A network shares everything with itself.
        power = pd.read_csv(tmp_path / "tables" / f"{name}.power.csv")
        rows = power[power["label"].str.startswith("net on ") & (power["quantity"] == "H")]
        assert len(rows) and rows["mean"].dropna().eq(1).all() and rows["mean"].notna().any()
    code = notebooks.code_cells(nbformat.read(outcome.path, as_version=4))
    for cell, again in zip(code[: len(code) // 2], code[len(code) // 2 :], strict=True):
        if notebooks.has_tag(cell, "exercise-check"):
            assert printed(cell) == "Correct.\n", f"{cell.source}\n{printed(cell)}"
        if "chapter.provenance(" not in cell.source and "parameters" not in str(cell.metadata):
            words = NUMBER.sub("", printed(cell))
            assert NUMBER.sub("", printed(again)) == words, cell.source
            assert numbers(printed(again)) == pytest.approx(
                numbers(printed(cell)), rel=1e-5, abs=2e-6
            )


def test_the_form_of_a_chapter(chapter):
    code = notebooks.code_cells(chapter)
    names = list(notebooks.defaults(chapter))
    assert notebooks.has_tag(code[0], "parameters") and names[0] == "preset" and len(names) <= 10
    for node in ast.parse(code[0].source).body:
        lines = code[0].source.splitlines()[node.lineno - 1 : node.end_lineno]
        assert "#" in "".join(lines), lines
    assert f'symgen.Chapter("{chapter.metadata["chapter"]}", globals())' in code[1].source
    assert code[-1].source.startswith("chapter.provenance(")
    headings = re.findall(r"^# ", "\n".join(c.source for c in chapter.cells[:1]), re.M)
    assert len(headings) == 1
    for cell in chapter.cells:
        assert not cell.get("outputs"), "sources hold no outputs"
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            assert len(lines) <= 26 and max(map(len, lines), default=0) <= 96, cell.source
        else:
            assert not re.search(r"^(```|:::)+\{|\{cite|^\(.*\)=$", cell.source, re.M), cell.source


def test_minutes_of_exercises_add_up(chapter):
    text = "\n".join(cell.source for cell in chapter.cells)
    exercises = re.findall(r"^\*\*(?:Easy|Medium|Hard), (\d+) minutes\.\*\*", text, re.M)
    (total,) = re.findall(r"\*\*Minutes:\*\* \d+ to read, (\d+) for the exercises", text)
    assert int(total) == sum(map(int, exercises))
    assert len(exercises) == text.count("### Exercise: ")


def test_functions_that_students_write(chapter):
    code = notebooks.code_cells(chapter)
    for cell, after in itertools.pairwise(code):
        if notebooks.has_tag(cell, "blank"):
            stub, names = course.stub(cell.source)
            assert names and notebooks.has_tag(after, "exercise-check"), cell.source
            assert all(f"def {name}(" in stub and name in after.source for name in names)


def test_no_cell_needs_one_that_only_slides_have(chapter):
    made: dict[bool, set] = {True: set(), False: set()}
    used = set()
    for cell in notebooks.code_cells(chapter):
        is_hidden = notebooks.has_tag(cell, "slide-only", "notes")
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                made[is_hidden].add(node.id)
            elif isinstance(node, ast.Name) and not is_hidden:
                used.add(node.id)
    assert not (made[True] - made[False]) & used


def test_slides_have_few_words_and_one_figure(chapter):
    words, figures, slides = 0, 0, 0
    for cell in chapter.cells:
        if notebooks.has_tag(cell, "slide"):
            words, figures, slides = 0, 0, slides + 1
        if cell.cell_type == "markdown" and notebooks.has_tag(cell, "slide", "slide-more"):
            words += len(re.sub(r"\$+.*?\$+", "formula", cell.source, flags=re.S).split())
        elif notebooks.has_tag(cell, "slide-more"):
            figures += 1
        assert words <= 60 and figures <= 1, cell.source
    core = chapter.metadata["chapter"][:2] in ("00", "01", "02", "03", "04", "05")
    assert (slides >= 6) == core


def test_captions_have_at_most_40_words(chapter):
    from symgen.book.pages import caption

    for cell in chapter.cells:
        assert len(caption(cell).split()) <= 40, cell.source


@pytest.mark.parametrize("preset", notebooks.preset_names(ROOT))
def test_presets_name_chapters_and_their_parameters(preset):
    values = notebooks.read_yaml(ROOT / "chapters" / "presets" / f"{preset}.yml")
    assert set(values) <= {*CHAPTERS}
    for name in CHAPTERS:
        notebooks.resolve(ROOT, name, preset, {})


def test_stored_quick_pages_are_up_to_date():
    problems = editions.verify(ROOT)
    wrong = problems[problems["edition"] == "quick"]["chapter"]
    assert wrong.empty, f"run: symgen run {' '.join(wrong)} --store"


@pytest.mark.parametrize("path", STORED, ids=lambda path: "/".join(path.parts[-2:]))
def test_stored_pages_are_valid_and_know_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [o for cell in notebooks.code_cells(notebook) for o in cell.outputs]
    assert outputs and not any(o.output_type == "error" for o in outputs)
    texts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs]
    assert not MACHINE.search("\n".join(texts))
    assert not [text for text in texts if "/s]" in text]  # progress bars


def test_conda_users_get_the_same_environment():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert wanted == ["-c constraints.txt", "-e .[book,test]"]
    assert "-c constraints.txt -e '.[book,test]'" in (ROOT / "Makefile").read_text()


def test_constraints_name_no_host_and_no_folder():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+", line), line
