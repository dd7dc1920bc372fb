"""The slides of the course: few words, one picture or table each, and nothing from elsewhere."""

import base64
import json
import re

import nbformat
import pytest
from click.testing import CliRunner
from conftest import ROOT

from symgen.book import cli, slides
from symgen.book.presets import BookError, read_yaml

LISTED = read_yaml(ROOT / "chapters" / "slides.yml")["slides"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    target = tmp_path_factory.mktemp("slides") / "slides.html"
    assert slides.write_slides(ROOT, target) == len(LISTED)
    return target.read_text(encoding="utf-8")


def test_there_are_about_twenty_with_few_words():
    assert 18 <= len(LISTED) <= 22
    assert f"writes {len(LISTED)} slides" in (ROOT / "chapters" / "teaching.md").read_text()
    for slide in LISTED:
        assert {*slide} - {"part"} == {"title", "text", "chapter", "cell"}
        assert len(slide["title"].split()) <= 8 and len(slide["text"].split()) <= 30, slide


def test_every_slide_has_one_picture_or_table(page):
    sections = re.findall(r'<section id="(\d+)">(.*?)</section>', page, re.S)
    assert [int(number) for number, _ in sections] == [*range(1, len(LISTED) + 1)]
    for _, section in sections:
        assert section.count("<img ") + section.count("<table") == 1
        assert '<img alt=""' not in section


def test_they_load_nothing(page):
    assert not re.search(r"https?:|@import|url\(|src=\"(?!data:image/svg)|href=\"(?!#)", page)
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert len(pictures) > len(LISTED) / 2
    for picture in pictures:
        drawn = base64.b64decode(picture).decode()
        assert not re.search(r"<script|href=\"(?!#|data:image/)|url\((?!#)", drawn)


@pytest.mark.parametrize(
    ("slide", "said"),
    [
        ({"chapter": "a_frist", "cell": "x"}, "unknown chapter 'a_frist'.*a_first"),
        ({"chapter": "a_first", "cell": "x"}, "unknown cell of a_first 'x'"),
        ({"chapter": "a_first", "cell": "empty"}, "cell empty: no figure or table is stored"),
    ],
)
def test_what_cannot_be_shown_is_named(book, tmp_path, slide, said):
    path = book / "chapters" / "a_first.ipynb"
    chapter = nbformat.read(path, as_version=4)
    chapter.cells.append(nbformat.v4.new_code_cell("1", id="empty"))
    nbformat.write(chapter, path)
    text = f"slides: [{{title: T, text: t, chapter: {slide['chapter']}, cell: {slide['cell']}}}]"
    (book / "chapters" / "slides.yml").write_text(text)
    with pytest.raises(BookError, match=said):
        slides.write_slides(book, tmp_path / "slides.html")
    assert not (tmp_path / "slides.html").exists()


@pytest.mark.parametrize(
    "text", ["", "slides: []", "slides: 3", "slides: [{title: T, text: t, chapter: a_first}]"]
)
def test_a_list_of_anything_but_slides_is_refused(book, tmp_path, text):
    (book / "chapters" / "slides.yml").write_text(text)
    with pytest.raises(BookError, match="each with title, text, chapter, cell"):
        slides.write_slides(book, tmp_path / "slides.html")


def shown(book, data, **more):
    """The page of one slide that shows an output."""
    path = book / "chapters" / "a_first.ipynb"
    chapter = nbformat.read(path, as_version=4)
    output = nbformat.v4.new_output("display_data", data)
    chapter.cells.append(nbformat.v4.new_code_cell("1", id="shown", outputs=[output]))
    nbformat.write(chapter, path)
    slide = {"title": "<b>T", "text": "a & b", "chapter": "a_first", "cell": "shown", **more}
    (book / "chapters" / "slides.yml").write_text(json.dumps({"slides": [slide]}))
    (book / "_config.yml").write_text("title: A book\n")
    slides.write_slides(book, book / "slides.html")
    return (book / "slides.html").read_text()


def test_words_and_text_of_data_are_no_markup(book):
    table = "<table><tr><td><script>x</script>1.23456789</td></tr></table>"
    page = shown(book, {"text/html": table})
    assert "&lt;b&gt;T" in page and "a &amp; b" in page and ">1.23<" in page
    assert page.count("<script") == 1


def test_a_part_of_a_figure_is_what_it_says(book):
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="8pt" viewBox="0 0 100 200"/>'
    page = shown(book, {"image/svg+xml": svg}, part=[0.5, 0.75])
    drawn = base64.b64decode(re.search(r"base64,([^\"]+)", page)[1]).decode()
    assert 'viewBox="0 100.0 100.0 50.0"' in drawn and "width" not in drawn


def test_the_command_prints_their_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, ["slides"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{(tmp_path / '_build' / 'slides.html').resolve().as_uri()}\n"
    assert (tmp_path / "_build" / "slides.html").is_file()
