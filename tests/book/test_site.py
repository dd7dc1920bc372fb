"""The site: what pages show, that nothing on them is live or comes from elsewhere."""

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest

from book.small_book import claims
from symgen.book import editions, inert, notebooks, pages, site
from symgen.book.notebooks import BookError
from symgen.book.run import KERNEL

BROWSERS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
CHROMIUM = next(filter(None, BROWSERS), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]  # fmt: skip


@pytest.fixture(scope="module")
def built(ran):
    """The folder of the built pages."""
    return site.build(ran).parent


def article(path):
    text = path.read_text(encoding="utf-8")
    return text[text.index("<article") : text.index("</article>")]


def test_a_page_shows_the_run_and_links_to_the_others(built):
    page = article(built / "00_first.html")
    line = re.search(r'<p class="edition">(.*?)</p>', page)[1]
    assert (
        line.startswith("Preset quick · ") and "of which 5 s are trainings measured earlier" in line
    )
    assert 'href="02_second.html#a-section"' in page
    assert "<td>0.333</td>" in page and "&lt;b&gt;a&lt;/b&gt;" in page
    assert re.search(r"<details><summary>Hint</summary>\s*<p>Use", page)
    assert "Not yet: replace the dots" in page


def test_what_a_page_shows_stands_below_its_title(built):
    page = article(built / "00_first.html")
    title, finding, goals = (page.index(x) for x in ("First chapter", "Three &lt; four.", "Goals."))
    assert title < finding < goals
    assert "H first rises &amp; then falls: not tested here." in page
    assert "chapter.finding" not in page


def test_a_caption_is_the_alternative_text_of_its_figure(built):
    page = article(built / "00_first.html")
    assert 'alt="A line from 0 to n."' in page
    assert re.search(r'<p class="caption"><em>A line from 0 to .*?</p>\s*<p>Prose.</p>', page)


def test_outputs_run_nothing(built):
    page = article(built / "00_first.html")
    shown = re.sub(r"<pre>.*?</pre>", "", page, flags=re.S)  # without the code itself
    assert "safe words" in shown
    assert not re.search("<script|onclick|javascript:", shown)
    # The state of the widget in this page would be a script.
    assert "jupyter.widget" not in (built / "00_first.html").read_text()


def test_pages_without_parameters_are_executed_and_report_the_largest_edition(built):
    page = article(built / "index.html")
    assert re.search(r"H rises by (<[^>]+>)*0.12 \[0.10, 0.14\]", page)
    assert '<span class="verdict holds">holds</span>' in page
    assert page.count("H first rises &amp; then falls") == 1 and "largest_claims" not in page


def test_text_of_results_is_never_markup(copied):
    tables = copied / "data" / "editions" / "cpu" / "tables"
    bad = dict.fromkeys(["label", "setting", "unit", "verdict", "row"], "<script>x</script>")
    claims(0.1).assign(**bad).to_csv(tables / "old.claims.csv", index=False)
    assert "<script" not in pages.recorded(copied, "power", "quick")


HOSTILE = "import pathlib; pathlib.Path('ran').touch()\nprint('ran')"


@pytest.mark.parametrize("metadata", [
    {"mystnb": {"execution_mode": "force"}}, {"mystnb": {"execution_mode": "inline"}},
    {"myst": {"enable_extensions": ["substitution"], "substitutions": {"x": "y"}}},
    {"kernelspec": {"name": "evil", "display_name": "", "language": ""}},
])  # fmt: skip
def test_a_stored_page_runs_nothing_when_the_site_is_built(copied, monkeypatch, metadata):
    """Only the kernel is left of its metadata, and chapters are not executed."""
    folder = editions.edition_folder(copied, "quick")
    stored = nbformat.read(folder / "02_second.ipynb", as_version=4)
    stored.metadata.update(metadata)
    stored.cells[2].source = HOSTILE
    nbformat.write(stored, folder / "02_second.ipynb")
    monkeypatch.setenv("SYMGEN_PAGES", str(folder))
    path = copied / "chapters" / "02_second.ipynb"
    app = SimpleNamespace(srcdir=copied, env=SimpleNamespace(doc2path=lambda page: path))
    text = [path.read_text()]
    site._source(app, "chapters/02_second", text)
    page = nbformat.reads(text[0], as_version=4)
    assert any(HOSTILE in cell.source for cell in page.cells)  # as it was stored
    assert page.metadata == {"kernelspec": KERNEL}
    config = SimpleNamespace(
        html_static_path=[], html_theme_options={}, html_extra_path=[], nb_execution_mode="cache"
    )
    site._configure(app, config)
    assert config.nb_execution_mode == "off"


def test_recorded_results_stand_next_to_claims_of_other_runs(ran):
    assert "Recorded result (edition cpu)" in pages.recorded(ran, "power", "quick")
    assert pages.recorded(ran, "power", "cpu") == pages.recorded(ran, "count", "quick") == ""


def test_cells_that_changed_show_the_page_as_it_ran(copied):
    path = copied / "chapters" / "02_second.ipynb"
    source = nbformat.read(path, as_version=4)
    folder = editions.edition_folder(copied, "quick")
    source.cells[0].source = "# New title"
    nbformat.write(source, path)
    page = site.executed_page(copied, "02_second", [folder])
    assert page.cells[0].source == "# New title" and page.cells[3].outputs
    source.cells[3].source = "print(2)"
    nbformat.write(source, path)
    page = site.executed_page(copied, "02_second", [folder])
    assert page.metadata.symgen.stale and "10_000" in page.cells[3].source
    failed = folder / "02_second.failed.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), failed)
    assert (
        "The last run of this chapter failed"
        in site.executed_page(copied, "02_second", [folder]).cells[1].source
    )


def test_injected_parameters_follow_the_defaults(copied):
    folder = editions.edition_folder(copied, "quick")
    executed = nbformat.read(folder / "02_second.ipynb", as_version=4)
    cell = nbformat.v4.new_code_cell("value = 2", metadata={"tags": ["injected-parameters"]})
    executed.cells.insert(2, cell)
    nbformat.write(executed, folder / "02_second.ipynb")
    page = site.executed_page(copied, "02_second", [folder])
    assert [notebooks.has_tag(c, "injected-parameters") for c in page.cells].index(True) == 2


def test_a_faulty_page_is_named_and_leaves_the_last_site(copied):
    # Sphinx itself is slow; that it reports what is wrong is its own matter.
    index = copied / "_build" / "html" / "chapters" / "index.html"
    index.parent.mkdir(parents=True)
    index.write_text("old")
    (copied / "_config.yml").write_text("sphinx: {config: {extensions: [nosuch]}}\n")
    with pytest.raises(
        BookError, match=r"the site has errors; the previous site was kept:[\s\S]*nosuch"
    ):
        site.build(copied)
    assert index.read_text() == "old" and not (copied / "_build" / "site-work").exists()


def test_a_full_disk_leaves_the_last_site(copied, monkeypatch):
    index = copied / "_build" / "html" / "chapters" / "index.html"
    index.parent.mkdir(parents=True)
    index.write_text("old")

    def full(source, target, **_):
        target.mkdir()
        raise OSError(28, "No space left on device")

    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(site.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(site.shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
        site.build(copied)
    assert index.read_text() == "old" and not (copied / "_build" / "html.new").exists()


def test_jupyter_book_builds_the_sources_by_itself(copied):
    """It executes the chapters, and their outputs are as clean as those of `symgen html`."""
    (copied / "_toc.yml").write_text("format: jb-book\nroot: chapters/00_first\n")
    path = copied / "chapters" / "00_first.ipynb"
    source = nbformat.read(path, as_version=4)
    source.cells[0].source = "# First chapter"
    nbformat.write(source, path)
    command = [
        sys.executable,
        "-c",
        "from jupyter_book.cli.main import main; main()",
        "build",
        "-W",
        ".",
    ]
    done = subprocess.run(command, cwd=copied, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = article(copied / "_build" / "html" / "chapters" / "00_first.html")
    assert "safe words" in page and "<script" not in page and "<td>0.333</td>" in page
    assert (copied / "_build" / "tables" / "00_first.power.csv").exists()


def test_outputs_have_no_control_characters_but_colors():
    outputs = [{"text": "\x1b]0;title\x07a\x1b[31mb\x1b[0m\x00\x1b]8;;x\x1b\\c\x1b"}]
    assert inert.clean_controls(outputs) == [{"text": "a\x1b[31mb\x1b[0mc"}]


@pytest.mark.parametrize("bad", [
    '<img src="http://elsewhere/x.png">', '<img src=x onerror="y()">', '<iframe src="x"></iframe>',
    '<a href="javascript:x()">a</a>', "<style>p{}</style>",
    '<img src="data:text/html;base64,QQ==">',
    '<form action="x"><input name="y"></form>', '<p style="position:fixed">a</p>',
])  # fmt: skip
def test_html_of_outputs_loads_and_runs_nothing(bad):
    clean = inert.clean_html(bad)
    live = ("http", "onerror", "iframe", "javascript", "style", "text/html", "form", "position")
    assert not any(word in clean for word in live)


def test_the_explorer_keeps_its_data():
    text = '<div class="symgen-explorer" data-explorer="{&quot;v&quot;: [1]}"><p>v</p></div>'
    assert inert.clean_html(text) == text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_in_a_browser(built, width):
    """They fit the screen, load nothing from elsewhere, stop on no error, and pass axe."""
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for name, dark in (("index", True), ("00_first", False), ("00_first", True)):
            scheme = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            asked, errors = [], []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.goto((built / f"{name}.html").as_uri())
            page.wait_for_load_state("load")
            assert not errors and not [x for x in asked if x.startswith("http")]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(page, context="article").response["violations"]
            assert not found, [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found]
        assert page.evaluate("document.querySelectorAll('article mjx-container').length") > 0
        page.goto((built.parent / "search.html").as_uri() + "?q=line")
        assert "Excerpts of pages need a server" in page.inner_text(".search-note")
        browser.close()
