"""The site: built strictly, and looked at in a real browser that is cut off from the network."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import symgen
from symgen import site

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [CONTENTS["root"], *(c["file"] for part in CONTENTS["parts"] for c in part["chapters"])]


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> Path:
    """A copy of the book's sources, which shares the fetched scripts."""
    folder = tmp_path_factory.mktemp("site") / "book"
    skip = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=skip)
    (folder / "_build").mkdir()
    if site.fetch_scripts(ROOT / "_build" / "vendor"):
        (folder / "_build" / "vendor").symlink_to(ROOT / "_build" / "vendor")
    return folder


@pytest.fixture(scope="session")
def built(book) -> Path:
    return site.build(book).parent.parent


def test_the_strict_build_has_every_page_and_says_what_produced_it(built):
    for page in PAGES:
        html = (built / f"{page}.html").read_text()
        if page[9:11].isdigit():
            assert '<p class="edition">Preset <b>quick</b>' in html
            assert "code fingerprint" in html
    assert "chapters/index.html" in (built / "index.html").read_text()


def test_every_public_name_is_on_the_page_of_functions(built):
    html = (built / "chapters" / "api.html").read_text()
    for name in symgen.__all__:
        thing = getattr(symgen, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert f'id="symgen.{name}"' in html, name


def test_the_example_of_the_readme_runs():
    text = (ROOT / "README.md").read_text()
    names = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert names["inter"].gap.max() <= 1e-2


def test_docstrings_are_plain_text():
    lines = [
        "Return |T|, `and_`, and_, and all `Run`s of ``x|y``.",
        ".. math:: |T|",
        "",
        "    |x|",
        "2**n",
        ">>> a | b",
        "a_ | b",
        "",
        "|T|",
    ]
    site._docstring(None, "function", "f", None, None, lines)
    assert lines == [
        r"Return \|T\|, ``and_``, and\_, and all ``Run``\ s of ``x|y``.",
        ".. math:: |T|",
        "",
        "    |x|",
        r"2\*\*n",
        ">>> a | b",
        "a_ | b",
        "",
        r"\|T\|",
    ]


def test_nothing_is_built_again_until_something_changes(book, built, capsys):
    before = (built / "chapters" / "index.html").stat().st_mtime_ns
    site.build(book)
    assert "up to date" in capsys.readouterr().out
    assert (built / "chapters" / "index.html").stat().st_mtime_ns == before


def test_a_fault_in_a_page_is_told_and_the_old_site_stays(book, built):
    page = book / "chapters" / "notation.md"
    text = page.read_text()
    page.write_text(f"{text}\n\n{{cite:p}}`nobody1900`\n")
    before = (built / "chapters" / "notation.html").read_text()
    with pytest.raises(site.BookError, match=r"(?s)not replaced.*notation\.md.*nobody1900"):
        site.build(book)
    page.write_text(text)
    assert (built / "chapters" / "notation.html").read_text() == before


def test_without_npm_the_site_falls_back_to_the_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(site, "_npm", lambda: ["no-such-program"])
    assert site.fetch_scripts(tmp_path / "vendor") is None
    told = capsys.readouterr().err
    assert "mathjax@3.2.2" in told
    assert "network connection" in told


def test_the_settings_work_without_symgen(book, tmp_path):
    start = "from jupyter_book.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, "build", "-W", "--path-output", str(tmp_path), str(book)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "_build/html/chapters/index.html").exists()


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium on this machine: install it to test the site in a browser")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, built):
    """Open a page of the site; whatever it complains about is a failure of the test."""
    if not (built / "vendor").is_dir():
        pytest.skip("npm could not fetch the scripts that let the pages work offline")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    faults = []
    tab.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    local = ("file:", "data:", "blob:", "about:")
    tab.on(
        "request",
        lambda r: None if r.url.startswith(local) else faults.append(f"asked for {r.url}"),
    )

    def go(page):
        tab.goto((built / f"{page}.html").as_uri())
        tab.wait_for_load_state("load")
        if tab.locator("script[type='application/vnd.jupyter.widget-view+json']").count():
            tab.locator(".jupyter-widgets").first.wait_for(timeout=30_000)
        if tab.locator(".math").count():
            tab.locator("mjx-container").first.wait_for(state="attached", timeout=30_000)
        tab.wait_for_timeout(500)
        return tab

    yield go
    context.close()
    assert not faults


SIZES = """elements => elements.map(e => [e.getBoundingClientRect().width,
    e.getBoundingClientRect().height, e.complete === false || e.naturalWidth === 0, e.outerHTML])"""


@pytest.mark.parametrize("page", ["index", *PAGES])
def test_pages_load_quietly_and_show_what_they_hold(visit, page):
    tab = visit(page)
    for width, height, broken, html in tab.locator("article img").evaluate_all(SIZES):
        hidden = width == 0 and height == 0 and tab.locator(".widget-stack, details").count()
        assert hidden or (width > 20 and height > 20), html[:200]
        assert not broken, html[:200]
    if tab.locator(".math").count():
        assert tab.locator("mjx-container").count() >= tab.locator(".math").count()
    assert tab.locator("mjx-merror").count() == 0
    for text in tab.locator("article .cell_output").all_inner_texts():
        assert "$\\" not in text  # a formula that was left as it is written
    # Nothing but what scrolls inside its own box is wider than the page.
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_some_chapter_has_figures_formulas_and_a_widget(visit):
    seen = {"article .cell_output img": 0, "mjx-container": 0, ".jupyter-widgets": 0}
    for page in PAGES:
        tab = visit(page)
        for what in seen:
            seen[what] += tab.locator(what).count()
    assert all(seen.values()), seen


SHOWN = """() => [...document.querySelectorAll(
    '.jupyter-widgets img, .jupyter-widgets svg, .widget-html')]
    .filter(e => e.getBoundingClientRect().width > 0).map(e => e.src || e.outerHTML)"""


@pytest.mark.parametrize("page", [p for p in PAGES if p[9:11].isdigit()])
def test_moving_a_control_changes_what_is_shown(visit, page):
    tab = visit(page)
    handles, lists = tab.locator(".noUi-handle"), tab.locator(".widget-dropdown select")
    if not handles.count() + lists.count():
        pytest.skip("this chapter has no control to move")
    for number in range(handles.count()):
        before = tab.evaluate(SHOWN)
        handles.nth(number).focus()
        tab.keyboard.press("ArrowRight")
        tab.wait_for_timeout(300)
        if tab.evaluate(SHOWN) == before:  # it stood at its end
            tab.keyboard.press("ArrowLeft")
            tab.wait_for_timeout(300)
        assert tab.evaluate(SHOWN) != before
    for number in range(lists.count()):
        before = tab.evaluate(SHOWN)
        chosen = lists.nth(number).evaluate("e => e.selectedIndex")
        lists.nth(number).select_option(index=0 if chosen else 1)
        tab.wait_for_timeout(300)
        assert tab.evaluate(SHOWN) != before
