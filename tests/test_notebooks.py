"""The chapters keep to their form, and the presets to the chapters' parameters.

That every cell runs is nbval's to say: it collects chapters/ itself, a test for each cell.
"""

import ast
import getpass
import json
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from conftest import ROOT

import symgen
from symgen.book import editions, notebooks, presets

CHAPTERS = presets.chapter_names(ROOT)
STORED = [ROOT / "chapters" / f"{name}.ipynb" for name in CHAPTERS]
STORED += sorted((ROOT / "data" / "editions").glob("*/*.ipynb"))
MACHINE = re.compile(r"(?<![\w+/=.~-])/(?:root|home|Users|work|tmp|mnt|var)/[\w.-]+")
LONGEST_CELL = 20
LONGEST_LINE = 80  # what a page shows at 1,280 pixels without cutting it


def code_lines(source):
    """The lines of a cell less blank ones, comments and sentences, which are no code."""
    lines = [x.strip() for x in source.splitlines()]
    return [x for x in lines if x and not x.startswith(("#", '"', 'f"', 'rf"', 'r"'))]


@pytest.fixture(params=CHAPTERS)
def chapter(request):
    notebook = presets.read_chapter(ROOT, request.param)
    notebook.name = request.param
    return notebook


def test_every_chapter_is_in_the_contents():
    pages = (ROOT / "_toc.yml").read_text()
    assert CHAPTERS
    for name in CHAPTERS:
        assert f"file: chapters/{name}\n" in pages


def test_the_first_code_cell_holds_the_parameters_each_with_a_comment(chapter):
    tagged = [c for c in chapter.cells if "parameters" in c.metadata.get("tags", [])]
    code = notebooks.own_code(chapter)
    assert tagged == [code[0]]
    lines = code[0].source.splitlines()
    for node in ast.parse(code[0].source).body:
        assert isinstance(node, (ast.Assign, ast.AnnAssign))
        above = lines[node.lineno - 2] if node.lineno > 1 else ""
        assert "#" in lines[node.end_lineno - 1] or above.startswith("#"), lines[node.lineno - 1]
    defaults = presets.defaults(chapter)
    assert next(iter(defaults)) == "preset"
    assert defaults["preset"] == "quick"


def test_setup_is_short_and_the_last_cell_tells_the_provenance(chapter):
    code = notebooks.own_code(chapter)
    setup = ast.parse(code[1].source).body
    imports = [x for x in setup if isinstance(x, (ast.Import, ast.ImportFrom))]
    assert len(imports) <= 4 and len(setup) - len(imports) <= 2
    assert f'symgen.Chapter("{chapter.name}", globals())' in code[1].source
    assert code[-1].source.strip() == "chapter.provenance()"


def test_a_chapter_is_short_and_hides_nothing(chapter):
    code = notebooks.own_code(chapter)
    assert sum(len(code_lines(cell.source)) for cell in code) <= 120
    hidden = [c for c in code if {"hide-input", "remove-input"} & {*c.metadata.get("tags", [])}]
    assert sum(len(code_lines(cell.source)) for cell in hidden) <= 25


def test_no_function_is_defined_but_what_a_chapter_teaches(chapter):
    """That is the rule of an exercise, and in chapter 00 how a set becomes a number."""
    taught = {"00_planted_logic": {"index"}, "C_similarity_metric": {"strength"}}
    for cell in notebooks.own_code(chapter):
        source = "\n".join(x for x in cell.source.splitlines() if not x.startswith(("%", "!")))
        names = [n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
        own = taught.get(chapter.name, set())
        assert all(name.startswith("your_") or name in own for name in names), names


def test_cells_are_short(chapter):
    for cell in notebooks.own_code(chapter)[1:]:
        assert len(code_lines(cell.source)) <= LONGEST_CELL, cell.source


def test_no_line_of_code_is_cut_on_its_page(chapter):
    for cell in chapter.cells:
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        assert all(len(line) <= LONGEST_LINE for line in lines), cell.source


def test_the_page_starts_with_its_title_and_needs_no_other_headline(chapter):
    titles = [
        line
        for cell in chapter.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    ]
    assert len(titles) == 1
    assert chapter.cells[0].source.startswith("# ")


@pytest.mark.parametrize("path", STORED, ids=lambda p: "/".join(p.parts[-2:]))
def test_stored_notebooks_are_valid_and_know_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    user = getpass.getuser()
    for text in texts(json.loads(path.read_text(encoding="utf-8"))):
        assert not MACHINE.search(text), MACHINE.search(text)
        assert user == "root" or f"/{user}/" not in text
    # Warnings of our own are for readers; one of a library, or a careless one, is for us to see.
    outputs = [output for cell in notebooks.own_code(notebook) for output in cell.outputs]
    for output in outputs:
        if output.get("name") == "stderr":
            own = "Saturated|Convergence|NearChance|Dead|Unlikely"
            assert re.match(rf"\./symgen/[\w/]+\.py:\d+: ({own})", output.text)
    assert "papermill" not in notebook.metadata
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def texts(node):
    """Every text in nested JSON but binary data."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(key, str) and key.startswith(notebooks.BASE64):
            continue
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            yield from texts(value)


def test_stored_outputs_are_what_todays_code_gives():
    stale, _ = editions.verify(ROOT, CHAPTERS)
    assert not stale, f"renew with: symgen run {' '.join(stale)} --store"


@pytest.mark.parametrize("preset", presets.preset_names(ROOT))
def test_presets_name_known_chapters_and_known_parameters(preset):
    values = presets.read_preset(ROOT, preset)
    assert set(values) <= set(CHAPTERS)
    for name in CHAPTERS:
        presets.resolve(ROOT, name, preset, {})
    if preset == "quick":
        assert list(values) == CHAPTERS
        assert not any(values.values())


def test_the_phases_by_hand_are_those_of_the_code():
    cells = presets.read_chapter(ROOT, "where_phases_end").cells
    text = next(c.source for c in cells if ":label: boundaries-by-hand" in c.source)
    listed = re.findall(r"\d+(?:, ?\s?\d+){4}", text.replace("\n", " "))
    gained, lost = (np.array(list(map(float, x.split(",")))) for x in listed)
    power = gained / (gained + lost)
    told = [f"{h:.2f}" for h in power]
    assert all(h in text for h in told), told
    for r, t2 in ((1.0, 5), (2.0, 4)):
        found = symgen.phases(range(1, 6), *(x.tolist() for x in (power, gained, lost)), r=r)
        assert (found.t1, found.t2) == (3, t2)
        assert f"$t_2 = {t2}$" in text
    assert "$t_1 = 3$" in text


def test_the_same_presets_are_documented():
    page = (ROOT / "chapters" / "index.md").read_text()
    assert presets.preset_names(ROOT) == ["quick", "cpu", "gpu", "paper"]
    for preset in presets.preset_names(ROOT):
        assert f"| `{preset}` |" in page


def test_constraints_name_no_host_and_no_folder():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(lines) > 100
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+", line), line


def test_conda_users_get_the_same_environment():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    make = Path(ROOT / "Makefile").read_text()
    assert wanted == ["-c constraints.txt", "-e .[book,test,llm]"]
    assert "-c constraints.txt -e '.[book,test,llm]'" in make


@pytest.mark.parametrize("name", CHAPTERS)
def test_minutes_of_the_exercises_are_the_sum_of_theirs(name):
    text = "\n".join(cell.source for cell in presets.read_chapter(ROOT, name).cells)
    each = re.findall(r"\*\* \((?:easy|medium|hard), (\d+) minutes\)", text)
    assert len(each) == text.count("{exercise}") == text.count("{hint}")
    if each:
        total = re.search(r"\*\*Minutes:\*\* \d+ to read, (\d+) for the exercises\.", text)
        assert int(total[1]) == sum(map(int, each))


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_page_has_all_widgets_of_the_stored_notebook(path):
    def widgets(notebook):
        kinds = notebook.metadata.get("widgets", {}).values()
        return sorted(m["model_name"] for kind in kinds for m in kind.get("state", {}).values())

    stored = nbformat.read(path, as_version=4)
    assert widgets(notebooks.scrub(stored, ROOT, path.stem)) == widgets(stored)
