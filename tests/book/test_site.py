"""The site: what pages show, that nothing on them is live or comes from elsewhere."""

import re
import shutil
import subprocess
import sys
from importlib import metadata

import nbformat
import pandas as pd
import pytest

from book.small_book import claims
from symgen.book import editions, inert, notebooks, pages, site
from symgen.book.notebooks import BookError

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


def test_a_caption_is_the_alternative_text_of_its_figure(built):
    page = article(built / "00_first.html")
    assert 'alt="A line from 0 to n."' in page
    assert re.search(r'<p class="caption"><em>A line from 0 to .*?</p>\s*<p>Prose.</p>', page)


def test_outputs_run_nothing(built):
    page = article(built / "00_first.html")
    shown = re.sub(r"<pre>.*?</pre>", "", page, flags=re.S)  # without the code itself
    assert "safe words" in shown
    assert not re.search("<script|onclick|javascript:", shown)


def test_the_landing_page_reports_the_largest_edition(built):
    page = article(built / "index.html")
    assert "H rises by 0.12 [0.10, 0.14] in 8 trainings." in page
    assert '<span class="verdict holds">holds</span>' in page and "Edition cpu, " in page
    assert page.count("H first rises &amp; then falls") == 2
    assert "N first falls (Fig. 3)</b>: not measured yet." in page
    assert '<img class="drawn" alt="A line from 0 to n." src="data:image/svg+xml;base64,' in page
    assert "<td>00_first</td>" in page and "<td>always</td>" in page


def test_text_of_results_is_never_markup(copied):
    tables = copied / "data" / "editions" / "cpu" / "tables"
    bad = claims(0.1).assign(label="<script>x</script>", setting="<b>", unit="<i>")
    bad.to_csv(tables / "00_first.claims.csv", index=False)
    text = pages.fill("<!-- symgen: claims --> <!-- symgen: value power -->", copied)
    assert "<script" not in text and "<b>," not in text and "<i>" not in text


@pytest.mark.parametrize(
    ("mean", "words"), [(0.1, "rises by 0.10 [0.08, 0.12]"), (-0.1, "falls by 0.10 [0.08, 0.12]")]
)
def test_a_change_says_in_words_whether_it_rises_or_falls(copied, mean, words):
    tables = copied / "data" / "editions" / "cpu" / "tables"
    rows = claims(0.1).assign(mean=mean, low=mean - 0.02, high=mean + 0.02, unit="")
    rows.to_csv(tables / "00_first.claims.csv", index=False)
    assert pages.fill("<!-- symgen: change power -->", copied) == words


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("valu power", 'part of a page "valu" is unknown.*Did you mean "value"'),
        (
            "value powr",
            'claim "powr" is unknown; expected one of power, count. Did you mean "power"',
        ),
        ("_of power", "part of a page"),
    ],
)
def test_a_wrong_part_is_an_error_that_names_it(book, mark, message):
    with pytest.raises(BookError, match=message):
        pages.fill(f"<!-- symgen: {mark} -->", book)


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


def test_a_faulty_page_is_named_and_leaves_the_last_site(copied, monkeypatch):
    # Sphinx itself is slow; that it reports what is wrong is its own matter.
    index = copied / "_build" / "html" / "chapters" / "index.html"
    index.parent.mkdir(parents=True)
    index.write_text("old")
    (copied / "chapters" / "index.md").write_text("# A\n\n<!-- symgen: nosuch -->\n")
    with pytest.raises(BookError, match="the site has errors; the previous site was kept"):
        site.build(copied)
    assert index.read_text() == "old" and not (copied / "_build" / "site-work").exists()


def test_jupyter_book_2_is_refused_at_once(book, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "2.1.0")
    with pytest.raises(
        BookError, match=r"jupyter-book 2.1.0 is installed.*pip install 'jupyter-book<2'"
    ):
        site.build(book)


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


def test_widgets_keep_pictures_and_lose_scripts():
    core = {"model_module": "@jupyter-widgets/controls"}
    state = {"version_major": 2, "state": {
        "a": {**core, "model_name": "HTMLModel", "state": {
            "value": '<img src="data:image/svg+xml;base64,QQ=="><script>x</script>'}},
        "b": {**core, "model_name": "LabelModel", "state": {"description_allow_html": True}},
        "c": {"model_module": "evil", "model_name": "EvilModel", "state": {}},
    }}  # fmt: skip
    clean = inert.clean_widgets(state)["state"]
    assert clean["a"]["state"]["value"] == '<img src="data:image/svg+xml;base64,QQ==">'
    assert clean["b"]["state"]["description_allow_html"] is False and "c" not in clean
    assert "<" not in inert.as_script(inert.clean_widgets(state))


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


def test_numbers_have_the_digits_of_their_interval():
    def shown(mean, low, high, unit=""):
        return pages.effect(pd.Series({"mean": mean, "low": low, "high": high, "unit": unit}))

    assert shown(0.0391, 0.0252, 0.0529, "nats") == "0.039 [0.025, 0.053] nats"
    assert shown(0.123, 0.101, 0.142) == "0.12 [0.10, 0.14]"
    assert shown(123.4, 80.1, 166.0) == "123 [80, 166]"
    assert shown(9.78e-11, 9.78e-11, 9.78e-11) == "9.78e-11"
    assert [pages.digits(x) for x in (1234.5, 0.12345, float("nan"), 7)] == [
        "1,234",
        "0.123",
        "",
        "7",
    ]


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
        browser.close()
