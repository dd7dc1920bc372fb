"""The course: what students and teachers get, and slides that load nothing from elsewhere."""

import re

import nbformat
import pytest
from click.testing import CliRunner

from symgen.book import cli, course, inert
from symgen.book.notebooks import BookError


@pytest.fixture(scope="module")
def folder(ran, tmp_path_factory):
    folder = tmp_path_factory.mktemp("course") / "made"
    course.write_course(ran, folder, networks=False)
    return folder


def sources(path):
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)


def test_students_get_no_solutions_and_teachers_do(folder):
    students = sources(folder / "students" / "00_first.ipynb")
    teachers = sources(folder / "teachers" / "00_first.ipynb")
    assert "1 + 2" in teachers and "1 + 2" not in students and "Solution" not in students
    for text in (students, teachers):
        assert "<summary>Hint</summary>" in text and "total = ..." in text
        assert "[the second](02_second.ipynb#a-section)" in text
    for path in folder.glob("*/*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells)


def test_links_to_chapters_outside_the_course_become_text(ran):
    notebook = course.course_notebook(ran, "00_first", ["00_first"], False)
    assert "See *the second* (in the book)." in notebook.cells[0].source


def test_a_start_page_links_to_the_chapters_and_networks_come_along(folder):
    for part in ("students", "teachers"):
        start = sources(folder / part / "START.ipynb")
        links = dict(re.findall(r"\d\. \[(.+)\]\((.+)\)", start))
        assert set(links.values()) == {"00_first.ipynb", "02_second.ipynb"}
        for title, name in links.items():
            text = sources(folder / part / name)
            assert text.startswith(f"# {title}") and "%env SYMGEN_CACHE=../networks\n" in text


def test_networks_come_along_and_a_failing_chapter_stops(copied, tmp_path):
    path = copied / "chapters" / "02_second.ipynb"
    notebook = nbformat.read(path, as_version=4)
    keep = "from symgen.storage import cache_folder\n(cache_folder() / 'kept').mkdir(parents=True)"
    notebook.cells.append(nbformat.v4.new_code_cell(keep))
    nbformat.write(notebook, path)
    course.train_networks(copied, tmp_path / "networks", ["02_second"])
    assert (tmp_path / "networks" / "kept").is_dir()
    with pytest.raises(BookError, match="cell .* raised FileExistsError"):
        course.train_networks(copied, tmp_path / "networks", ["02_second"])


def test_slides_show_tagged_cells_and_load_local_files(folder):
    text = (folder / "slides" / "00_first.html").read_text()
    slides = re.search(r'<div class="slides">(.*)</main>', text, re.S)[1]
    assert "First chapter" in slides and "data:image/svg+xml" in slides
    assert (
        "plt.plot" not in slides and "Easy, 1 minute" not in slides and "safe words" not in slides
    )
    loaded = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]*)"', text)
    assert loaded
    for address in loaded:
        assert (folder / "slides" / address).is_file(), address
    assert "https://" not in re.sub(r"<style.*?</style>", "", text, flags=re.S).split("<body")[0]


def test_a_slider_becomes_its_first_picture():
    picture = '<img src="data:image/svg+xml;base64,{}">'
    state = {
        "box": {"state": {"children": ["IPY_MODEL_slider", "IPY_MODEL_stack"]}},
        "slider": {"state": {"index": 1}},
        "stack": {"state": {"children": ["IPY_MODEL_a", "IPY_MODEL_b"], "selected_index": 1}},
        "a": {"state": {"value": picture.format("AAAA")}},
        "b": {"state": {"value": picture.format("BBBB")}},
    }
    data = {inert.WIDGET_VIEW: {"model_id": "box"}, "text/plain": "VBox"}
    course._still(data, state)
    assert data == {"text/plain": "VBox", "text/html": picture.format("BBBB")}


def test_the_quiz_is_a_page_to_print(folder):
    assert "<li>Why?</li>" in (folder / "quiz.html").read_text()


def test_refusals(copied):
    (copied / "there").mkdir()
    (copied / "there" / "x").touch()
    result = CliRunner().invoke(cli.app, ["course", str(copied / "there")])
    assert result.exit_code == 2 and "is not empty; name a new folder" in result.output
