"""Chapters that open in one click: the buttons, and the cell that installs what is missing."""

import shutil
import sys

import nbformat
import pytest
import yaml
from conftest import ROOT, small_chapter

from symgen.book import editions, launch, layout, notebooks, presets, site

CHAPTERS = [presets.read_chapter(ROOT, name) for name in presets.chapter_names(ROOT)]
CELL = launch.install_cell(layout.repository(ROOT))
ADDRESS = "https://github.com/someone/some-book"


def tagged(notebook):
    return [cell for cell in notebook.cells if notebooks.has_tag(cell, notebooks.INSTALL)]


# As soon as one chapter has the cell, all must: `python -m symgen.book.launch` puts it there.
@pytest.mark.skipif(not any(map(tagged, CHAPTERS)), reason="no chapter has the cell yet")
def test_every_chapter_starts_with_the_same_cell():
    for chapter in CHAPTERS:
        assert next(c for c in chapter.cells if c.cell_type == "code") == CELL
        assert tagged(chapter) == [CELL]


def test_the_cell_stands_first_once_and_changes_nothing_that_is_stored():
    assert len(CELL.source.splitlines()) <= 4
    # Folded where a chapter is opened, as the site leaves it out.
    assert CELL.metadata == {
        "jupyter": {"source_hidden": True},
        "tags": ["install", "remove-cell"],
    }
    for chapter in CHAPTERS:
        fresh = launch.with_install_cell(chapter, launch.install_cell(ADDRESS))
        assert launch.with_install_cell(fresh, CELL) == launch.with_install_cell(chapter, CELL)
        code = [c for c in fresh.cells if c.cell_type == "code"]
        assert tagged(fresh) == code[:1]
        assert notebooks.has_tag(code[1], "parameters")
        assert notebooks.own_code(fresh) == notebooks.own_code(chapter)
        assert notebooks.sources_fingerprint(fresh) == notebooks.sources_fingerprint(chapter)
        assert presets.defaults(fresh) == presets.defaults(chapter)
        nbformat.validate(fresh)
    # What is stored is as fresh, or as stale, as before.
    stored = CHAPTERS[0]
    fresh = launch.with_install_cell(stored, launch.install_cell(ADDRESS))
    assert editions.problems(stored, fresh) == editions.problems(stored, stored)
    assert notebooks.refresh(stored, fresh).cells[-1] == stored.cells[-1]


def test_the_cell_is_held_in_a_book_and_a_run_has_it_too(book, capsys):
    nbformat.write(small_chapter("c_third"), book / "chapters" / "c_third.ipynb")
    (book / "_config.yml").write_text(f"repository:\n  url: {ADDRESS}\n")
    assert launch.main(["--check"]) == 1
    assert "not as it should be in: a_first, b_second, c_third" in capsys.readouterr().out
    assert [launch.main([]), launch.main(["--check"]), launch.main([])] == [0, 0, 0]
    chapter = presets.read_chapter(book, "a_first")
    assert f'"symgen[notebook] @ git+{ADDRESS}"' in tagged(chapter)[0].source
    from symgen.book import runs

    found = runs.execute(book, "a_first", "quick", {"n": "5"}, book / "out")
    assert found.status == "done", found.told
    ran = [c for c in nbformat.read(found.path, 4).cells if c.cell_type == "code"]
    tags = [c.metadata.get("tags", [""])[0] for c in ran[:3]]
    assert tags == ["install", "parameters", "injected-parameters"]
    assert "n is 5" in ran[4].outputs[0].text
    (book / "_config.yml").write_text("")
    assert launch.main([]) == 0  # an address that goes takes the link along
    assert "git+" not in (book / "chapters/a_first.ipynb").read_text()
    assert runs.execute(book, "a_first", "quick", {"n": "5"}, book / "out").status == "unchanged"


def test_where_symgen_is_the_cell_does_nothing(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    called = []
    monkeypatch.setattr(shell, "run_line_magic", lambda *line: called.append(line))
    shell.run_cell(CELL.source).raise_error()
    assert not called
    assert sys.modules["symgen"]


@pytest.fixture
def page(tmp_path):
    """A function that builds a book of one chapter with an address, and returns its two pages."""

    def build(address):
        folder = tmp_path / "small"
        (folder / "chapters").mkdir(parents=True)
        shutil.copytree(ROOT / "_static", folder / "_static")
        (folder / "references.bib").touch()
        config = yaml.safe_load((ROOT / "_config.yml").read_text())
        config["repository"] = {"url": address, "branch": "trunk"}
        (folder / "_config.yml").write_text(yaml.safe_dump(config))
        (folder / "_toc.yml").write_text(
            "format: jb-book\nroot: chapters/index\nchapters: [{file: chapters/a_first}]\n"
        )
        (folder / "chapters/index.md").write_text("# A book\n\nIts text.\n")
        chapter = launch.with_install_cell(small_chapter("a_first", whole=False), CELL)
        nbformat.write(chapter, folder / "chapters/a_first.ipynb")
        first = site.build(folder)
        return first.read_text(), (first.parent / "a_first.html").read_text()

    return build


def test_with_an_address_every_page_names_it_and_chapters_have_launch_buttons(page, monkeypatch):
    monkeypatch.setattr(site, "fetch_scripts", lambda *_: None)
    first, chapter = page(ADDRESS)
    for html in (first, chapter):
        assert f'<a href="{ADDRESS}">{ADDRESS}</a>' in html
    assert "colab" not in first
    colab = "https://colab.research.google.com/github/someone/some-book/blob/trunk"
    assert f'{colab}/chapters/a_first.ipynb"' in chapter
    binder = "https://mybinder.org/v2/gh/someone/some-book/trunk?urlpath=lab/tree"
    assert f"{binder}/chapters/a_first.ipynb" in chapter
    assert "find_spec" not in chapter
    assert (ROOT / "environment.yml").is_file()  # what Binder installs from


def test_without_an_address_no_page_links_to_one(tmp_path):
    for text in ("", "repository:\n  url: ''\n", "repository:\n  url: https://github.com/<you>\n"):
        (tmp_path / "_config.yml").write_text(text)
        assert launch.theme_options(tmp_path) == {}
    (tmp_path / "_config.yml").write_text("repository: {branch: main}\n")
    assert launch.theme_options(tmp_path) == {}
    for host, buttons in (("gitlab.com", {"binderhub_url"}), ("git.example.org", set())):
        (tmp_path / "_config.yml").write_text(f"repository:\n  url: https://{host}/a/b\n")
        found = launch.theme_options(tmp_path)
        assert {k for k in found.get("launch_buttons", {}) if k.endswith("url")} == buttons
        assert f"https://{host}/a/b" in found["extra_footer"]


def test_the_address_is_said_in_one_place():
    address = layout.repository(ROOT)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code", "")
    assert cited == address
    assert (ROOT / "_config.yml").read_text().count("\nrepository:") == 1


def test_without_an_address_nothing_is_installed_by_a_name_that_may_be_another_s(monkeypatch):
    cell = launch.install_cell()
    assert "pip" not in cell.source
    exec(cell.source, {})  # where symgen is, it says nothing
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="README"):
        exec(cell.source, {})
