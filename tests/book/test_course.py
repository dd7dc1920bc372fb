"""The course: what students, teachers and nbgrader get, and slides that load nothing from elsewhere."""

import re
import shutil

import nbformat
import pytest
from click.testing import CliRunner

from symgen.book import cli, course
from symgen.book.notebooks import BookError, has_tag

MORE = [
    ("code", ["blank"], 'def twice(x):\n    """Return 2 x."""\n    return 2 * x'),
    (
        "code",
        ["exercise-check"],
        "from symgen.book import exercises\nexercises.check('signs', twice)",
    ),
    ("markdown", ["slide", "slide-only"], "## On slides only"),
    ("markdown", ["notes"], "Ask: what is $n$?"),
    ("code", ["slide-more"], "plt.plot([0, 1]);"),
    ("markdown", [], "*A short line.*"),
    ("code", ["handout"], 'HTML("<p>the box</p>")'),
]


@pytest.fixture(scope="module")
def folder(ran, tmp_path_factory):
    from book.small_book import notebook

    book = tmp_path_factory.mktemp("book") / "book"
    shutil.copytree(ran, book, ignore=shutil.ignore_patterns("html", "site-*"), symlinks=True)
    path = book / "chapters" / "00_first.ipynb"
    first = nbformat.read(path, as_version=4)
    for number, cell in enumerate(notebook(MORE).cells):
        cell.id = f"more-{number}"
        first.cells.append(cell)
    keep = "from symgen.storage import cache_folder\n(cache_folder() / 'kept').mkdir(parents=True)"
    first.cells.append(nbformat.v4.new_code_cell(keep))
    nbformat.write(first, path)
    (book / "chapters" / "teaching_handout.md").write_text("# Handout")
    (book / "chapters" / "own.yml").write_text("lamp: {right: 2, mistakes: {}}")
    folder = tmp_path_factory.mktemp("course") / "made"
    course.write_course(book, folder, given={"n": 7})
    return folder


def sources(path):
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)


def test_students_get_no_solutions_and_teachers_do(folder):
    students = sources(folder / "students" / "00_first.ipynb")
    teachers = sources(folder / "teachers" / "00_first.ipynb")
    assert "1 + 2" in teachers and "1 + 2" not in students and "Solution" not in students
    assert "return 2 * x" in teachers and "return 2 * x" not in students
    assert '"""Return 2 x."""' in students and "**Your turn:** write `twice`." in students
    for text in (students, teachers):
        assert "<summary>Hint</summary>" in text and "total = ..." in text
        assert "[the second](02_second.ipynb#a-section)" in text
        assert "n = 7" in text and "On slides only" not in text and "Ask: what" not in text
    for path in folder.glob("*/*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells)


def test_a_stub_keeps_signature_docstring_and_the_rest():
    text = 'limit = 3\n\n\ndef f(x, y=1):\n    """Sum.\n\n    Of both.\n    """\n    return x + y\n\n\ndef g():\n    return limit'
    stub, names = course.stub(text)
    assert names == ["f"] and "return x + y" not in stub and "Of both." in stub
    assert stub.startswith("limit = 3") and stub.endswith("def g():\n    return limit")
    namespace = {}
    exec(stub, namespace)
    with pytest.raises(NotImplementedError, match="write `f`"):
        namespace["f"](1)


def test_nbgrader_finds_answers_checks_and_points(folder):
    for name in ("students", "grading/source/symgen"):
        cells = nbformat.read(folder / name / "00_first.ipynb", as_version=4).cells
        about = {
            cell.id: cell.metadata["nbgrader"] for cell in cells if "nbgrader" in cell.metadata
        }
        assert [one["solution"] for one in about.values()] == [True, False, True, False]
        assert [one.get("points") for one in about.values()] == [None, 1, None, 1]
        checks = [cell.source for cell in cells if has_tag(cell, "exercise-check")]
        hidden = ["### BEGIN HIDDEN TESTS" in text for text in checks]
        assert hidden == [name != "students"] * 2
    assert (
        "nbgrader" not in nbformat.read(folder / "teachers" / "00_first.ipynb", 4).cells[5].metadata
    )


def test_links_to_chapters_outside_the_course_become_text(ran):
    notebook = nbformat.read(ran / "chapters" / "00_first.ipynb", as_version=4)
    linked = course._linked(notebook, ["00_first"])
    assert "See *the second* (in the book)." in linked.cells[0].source
    notebook.cells[0].source = "![a sketch](images/sketch.svg)"
    shown = course._linked(notebook, ["00_first"]).cells[0].source
    assert shown == "![a sketch](images/sketch.svg)"


def test_a_teachers_own_exercises_come_along(folder):
    for part in ("students", "teachers", "grading/source/symgen"):
        assert (folder / part / "own.yml").read_text().startswith("lamp")


def test_a_start_page_links_to_the_chapters_and_networks_come_along(folder):
    for part in ("students", "teachers"):
        start = sources(folder / part / "START.ipynb")
        links = dict(re.findall(r"\d\. \[(.+)\]\((.+)\)", start))
        assert set(links.values()) == {"00_first.ipynb", "02_second.ipynb"}
        for title, name in links.items():
            text = sources(folder / part / name)
            assert text.startswith(f"# {title}") and '"SYMGEN_CACHE", "../networks"' in text
    assert (folder / "networks" / "kept").is_dir()


def test_slides_show_tagged_cells_of_this_run_and_load_local_files(folder):
    text = (folder / "slides" / "00_first.html").read_text()
    shown = re.search(r'<div class="slides">(.*)</main>', text, re.S)[1]
    assert "On slides only" in shown and 'alt="A line from 0 to n."' in shown
    assert 'alt="A short line."' in shown and '<aside class="notes">' in shown
    assert "plt.plot" not in shown and "Easy, 1 minute" not in shown and "safe words" not in shown
    loaded = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]*)"', text)
    assert loaded
    for address in loaded:
        assert (folder / "slides" / address).is_file(), address
    assert "https://" not in re.sub(r"<style.*?</style>", "", text, flags=re.S).split("<body")[0]


def test_sheets_are_pages_to_print(folder):
    assert "<li>Why?</li>" in (folder / "quiz.html").read_text()
    handout = (folder / "handout.html").read_text()
    assert "<h1>Handout</h1>" in handout and "<p>the box</p>" in handout


def test_without_the_debate_there_is_no_handout(copied, tmp_path):
    (copied / "chapters" / "teaching_handout.md").write_text("# Handout")
    course.write_course(copied, tmp_path / "made", ["02_second"])
    sheets = {path.stem for path in (tmp_path / "made").glob("*.html")}
    assert "quiz" in sheets and "handout" not in sheets


def test_refusals(copied, tmp_path):
    (copied / "there").mkdir()
    (copied / "there" / "x").touch()
    result = CliRunner().invoke(cli.app, ["course", str(copied / "there")])
    assert result.exit_code == 2 and "is not empty; name a new folder" in result.output
    with pytest.raises(BookError, match='"m" is unknown'):
        course.write_course(copied, tmp_path / "new", given={"m": 1})
    with pytest.raises(BookError, match="02_second: failed: cell .* raised RuntimeError"):
        course.write_course(copied, tmp_path / "new", ["02_second"], given={"fail": True})
