"""The notebooks of a course: nothing solved for students, everything there to solve."""

import copy
import re

import nbclient
import nbformat
import pytest
import yaml
from click.testing import CliRunner
from conftest import ROOT, small_chapter

import symgen
from symgen.book import cli, course, notebooks, presets
from symgen.book.presets import BookError

SOLUTION = re.compile(r"^(`{3,})\{solution\}.*\n(?::.*\n)*((?:.*\n)*?)\1$", re.M)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The course of the book, for students and for instructors."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("student", "instructor"):
        course.write_course(ROOT, folder / name, instructor=name == "instructor")
    return folder


def prose(notebook):
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


@pytest.mark.parametrize("name", presets.chapter_names(ROOT))
def test_students_get_every_cell_and_stub_and_no_solution(written, name):
    source = presets.read_chapter(ROOT, name)
    given, full = (
        nbformat.read(written / who / f"{name}.ipynb", as_version=4)
        for who in ("student", "instructor")
    )
    solutions = [body for _, body in SOLUTION.findall(prose(source))]
    assert solutions and prose(full).count("\n#### Solution\n") == len(solutions)
    code = "\n".join(c.source for c in source.cells if c.cell_type == "code")
    told = re.sub(r"\s", "", "".join(c.source for c in given.cells))
    whole = re.sub(r"\s", "", prose(full))
    for line in "\n".join(solutions).splitlines():
        plain = re.sub(r"\s", "", re.sub(r"\[(.*?)\]\(.*?\)|\{cite.*?`.*?`", "", line))
        if len(plain) > 30 and line.strip() not in code:
            assert plain not in told, line
            assert plain in whole or "](" in line or "{cite" in line or "-p " in line, line
    assert "olution" not in prose(given) or not re.search(r"#+ Solution", prose(given))
    assert prose(given).count("### Exercise ") == prose(source).count("{exercise}")
    for one in (given, full):
        nbformat.validate(one)
        assert [c.source for c in notebooks.own_code(one)] == [
            c.source for c in notebooks.own_code(source)
        ]
        assert not re.search(r"\{[\w:-]+\}`|^[`:]{3,}\{", prose(one), re.M)
        assert {*one.metadata} == {"kernelspec", "language_info"}
        for cell in one.cells:
            assert not cell.get("outputs") and cell.get("execution_count") is None
        pages = re.findall(r"\]\((\w+)\.ipynb\)", prose(one))
        assert {*pages} <= {*presets.chapter_names(ROOT)}


def test_a_course_starts_with_a_paragraph_that_says_how(written):
    for who in ("student", "instructor"):
        text = (written / who / "README.md").read_text()
        # Title; how to install, in three parts; how to begin; contents; preset.
        assert len(text.strip().split("\n\n")) == 7
        wheel = f"symgen-{symgen.__version__}-py3-none-any.whl"
        assert f"\n    course-env/bin/pip install './{wheel}[book]'\n" in text
        assert f"with {wheel} in it, which your teacher has" in text.replace("\n", " ")
        assert "course-env/bin/jupyter-lab" in text and "`00_planted_logic.ipynb`" in text
        assert ("instructor" in text) == (who == "instructor")
        names = {p.stem for p in (written / who).glob("*.ipynb")}
        assert names == {*presets.chapter_names(ROOT)}


def test_a_notebook_of_the_course_runs(written, tmp_path):
    notebook = nbformat.read(written / "student" / "00_planted_logic.ipynb", as_version=4)
    done = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    printed = [o.text for c in done.cells for o in c.get("outputs", []) if "text" in o]
    assert printed == ["not yet\n"]
    assert not any(tmp_path.iterdir())


TEXT = """\
## Exercises

[The paper](references), [the other](b_second), [a page](index), {cite:t}`one2020, two2021`; v[0](x)
{cite:p}`one2020`.

:::{exercise} Its title
:label: first
Do it.
:::

````{solution} first
:class: dropdown
It is done so:
```python
secret = 1
```
````

```{hint}
:class: dropdown
Think.
```

```{dropdown} Answers to all
the secret
```

```{note}
A note.
```
"""
REFERENCES = """
@article{one2020, author={Ada Able and Bo Best}, title={The {B}}, year={2020}}
@article{two2021, author={{A Group}}, title={T}, year={2021}}
@article{he2025three, author={{C}}, title={P}, year={2025}}
"""


@pytest.fixture
def taught(book):
    chapter = small_chapter("a_first", whole=False)
    chapter.cells.insert(3, nbformat.v4.new_markdown_cell(TEXT))
    chapter.cells[2].metadata["tags"] = ["hide-input"]
    chapter.cells[-1].outputs = [nbformat.v4.new_output("stream", text="the secret")]
    nbformat.write(chapter, book / "chapters" / "a_first.ipynb")
    (book / "_config.yml").write_text("title: A book\n")
    (book / "references.bib").write_text(REFERENCES)
    return chapter


def test_directives_links_and_roles_become_plain_markdown(book, taught):
    given = course.course_notebook(book, "a_first", "quick", instructor=False)
    assert given.cells[4].source == (
        "## Exercises\n\nThe paper, [the other](b_second.ipynb), [a page](index), "
        "Able et al. (2020), A Group (2021); v[0](x)\n(Able et al., 2020).\n\n"
        "### Exercise 1\n\nDo it.\n\n"
        "<details><summary>Hint</summary>\n\nThink.\n\n</details>\n\n**Note.** A note."
    ).replace("[a page](index)", "a page")
    assert given.cells[-1].source == (
        "## References\n\n- A Group (2021): *T*.\n- Able et al. (2020): *The B*.\n- C (2025): *P*."
    )
    assert "secret" not in nbformat.writes(given)
    full = course.course_notebook(book, "a_first", "quick", instructor=True)
    assert "#### Solution\n\nIt is done so:\n```python\nsecret = 1\n```" in full.cells[4].source
    hidden = [
        c.cell_type for c in given.cells if c.metadata.get("jupyter") == {"source_hidden": True}
    ]
    assert hidden == ["code"] * 2  # the cell that installs symgen, and the one hidden on the site
    assert given.cells[3].metadata.jupyter.source_hidden


def test_the_parameters_are_those_of_the_preset(book, taught):
    given = course.course_notebook(book, "a_first", "cpu", instructor=False)
    cell = next(c for c in given.cells if notebooks.has_tag(c, "parameters"))
    lines = [x for x in cell.source.splitlines() if x.startswith(("preset", "n "))]
    assert lines == [
        "preset = 'cpu'  # quick, cpu, gpu or paper",
        "n = 5  # number of input variables",
    ]
    assert presets.defaults(given) == {**presets.defaults(taught), "preset": "cpu", "n": 5}
    assert course.with_values('a = "ä"; b = (1,\n  2)  # ß', {"b": 3}) == 'a = "ä"; b = 3  # ß'


SLIPS = ["```{solution-start} first\n```\n", "### My solution\n\nsecret", "```{solution} a\nsecret"]


@pytest.mark.parametrize("text", SLIPS)
def test_a_solution_that_cannot_be_left_out_is_handed_to_nobody(book, taught, text, tmp_path):
    chapter = copy.deepcopy(taught)
    chapter.cells.append(nbformat.v4.new_markdown_cell(text, id="last"))
    nbformat.write(chapter, book / "chapters" / "a_first.ipynb")
    with pytest.raises(BookError, match=r"a_first, cell last: a solution .*\{solution\} LABEL"):
        course.write_course(book, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_writes_into_a_new_folder_alone(book, taught, tmp_path):
    def student(*arguments):
        return CliRunner().invoke(cli.app, ["student", *map(str, arguments)])

    done = student(tmp_path / "new", "--instructor")
    assert (done.exit_code, done.stdout.split(" holds ")[1][:11]) == (0, "1 notebooks")
    assert "secret" in (tmp_path / "new" / "a_first.ipynb").read_text()
    again = student(tmp_path / "new")
    assert again.exit_code == 2 and "is not empty" in again.stderr
    wrong = student(tmp_path / "other", "--preset", "cpuu")
    assert wrong.exit_code == 2 and "unknown preset 'cpuu'" in wrong.stderr
    assert (
        yaml.safe_load((book / "_config.yml").read_text())["title"]
        in (tmp_path / "new" / "README.md").read_text()
    )


def test_every_link_leads_somewhere_and_no_label_is_left(written):
    pages = {path.stem for path in (written / "student").glob("*.ipynb")}
    for path in (written / "student").glob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        headings = {
            found.strip().replace(" ", "-")
            for text in texts for found in re.findall(r"^#+ (.*)$", text, re.M)
        }  # fmt: skip
        for text in texts:
            assert not re.search(r"^\(.*\)=$", text, re.M), path.name
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                known = target.startswith("http") or target.removesuffix(".ipynb") in pages
                assert known or target.removeprefix("#") in headings, (path.name, target)


def test_students_are_told_to_change_the_cell_and_not_to_run_the_book(written):
    """A command of the book would run its own chapter, with all solutions."""
    for path in (written / "student").glob("[0-9A-E]*_*.ipynb"):
        text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
        assert "`symgen run " not in text and "-p " not in text, path.name
        assert text.count("Restart Kernel and Run All") == 1, path.name
    first = (written / "student" / "00_planted_logic.ipynb").read_text()
    assert "`n = 12`, `noise_level = 0.2` disturbs" in first


def test_the_readme_lists_the_notebooks_with_their_minutes(written):
    text = (written / "student" / "README.md").read_text()
    listed = re.findall(r"^\| \[.+\]\((.+)\.ipynb\) \| (\d+) to read, (\d+) for", text, re.M)
    assert {name for name, *_ in listed} == {
        path.stem for path in (written / "student").glob("*.ipynb")
    }
    assert listed[0] == ("00_planted_logic", "20", "45")


STUDIED = """\
import symgen
study = symgen.Study.of(chapter.parameters, baselines=1, train_size=64, epochs=2, samples=2)
trained = symgen.Trainings.of(study.changed(checkpoints=2), 1, chapter.map)
study.runs[0].load()
study.outputs(study.runs[0].load(), study.runs[0].key())
"""


def of_trainings(folder):
    """What lies in a cache of networks and measured trainings: when it was written, 0 if empty."""
    files = [*folder.glob("training/*/*"), *folder.glob("trainings/*")]
    kept = [path for path in files if path.suffix in (".safetensors", ".json")]
    stats = {path.relative_to(folder): path.stat() for path in kept}
    return {path: stat.st_size and stat.st_mtime_ns for path, stat in stats.items()}


def test_with_its_networks_a_course_trains_nothing(book, taught, tmp_path, monkeypatch):
    chapter = small_chapter("01_tiny", STUDIED)
    chapter.cells.append(nbformat.v4.new_markdown_cell(TEXT, id="text"))
    nbformat.write(chapter, book / "chapters" / "01_tiny.ipynb")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "own"))
    done = CliRunner().invoke(cli.app, ["student", str(tmp_path / "new"), "--networks"])
    assert done.exit_code == 0, done.output
    assert "Running 01_tiny twice, " in done.output
    networks = tmp_path / "new" / "networks"
    assert {path.name for path in networks.iterdir()} == {"training", "trainings"}
    before = of_trainings(networks)
    assert before and not (tmp_path / "own").exists()
    empty = [path for path, written in before.items() if not written]
    assert empty and len(empty) < len(before) / 2  # the baseline's, needed until it was measured
    text = (tmp_path / "new" / "README.md").read_text()
    assert "networks that `01` load, " in text and "trains its" not in text
    # As a student has it: nothing is set, and the home folder is empty.
    monkeypatch.delenv("SYMGEN_CACHE")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    notebook = nbformat.read(tmp_path / "new" / "01_tiny.ipynb", as_version=4)
    about = {"metadata": {"path": tmp_path / "new"}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=about).execute()
    assert of_trainings(networks) == before
    assert not (tmp_path / "home" / ".cache" / "symgen").exists()
    # What is there already is taken along, not trained again.
    monkeypatch.setenv("SYMGEN_CACHE", str(networks))
    course.bundle(book, tmp_path / "again", "quick", ["01_tiny"])
    assert of_trainings(tmp_path / "again") == of_trainings(networks) == before
