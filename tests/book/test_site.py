"""The site: built strictly, and looked at in a real browser that is cut off from the network."""

import base64
import copy
import inspect
import io
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import filelock
import nbformat
import pandas as pd
import pytest
import yaml
from conftest import ROOT, small_chapter

import symgen
from symgen.book import editions, layout, notebooks, presets, processes, site
from symgen.book.chapter import Provenance
from symgen.book.notebooks import WIDGET_STATE, WIDGET_VIEW
from symgen.book.scripts import fetch_scripts

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
    """The book laid out in a new folder, which shares the fetched scripts."""
    folder = tmp_path_factory.mktemp("site") / "book"
    layout.lay_out(ROOT, folder)
    (folder / "_build").mkdir()
    if fetch_scripts(ROOT / "_build" / "vendor"):
        (folder / "_build" / "vendor").symlink_to(ROOT / "_build" / "vendor")
    return folder


@pytest.fixture(scope="session")
def built(book) -> Path:
    return site.build(book).parent.parent


def test_without_a_wish_the_largest_preset_is_shown_that_has_todays_cells(tmp_path, monkeypatch):
    chapters = tmp_path / "chapters"
    chapters.mkdir()
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A")])
    nbformat.write(page, chapters / "a.ipynb")
    for name in ("cpu", "gpu", "mine"):
        folder = tmp_path / "data" / "editions" / name
        folder.mkdir(parents=True)
        page.metadata["symgen"] = {"preset": name, "fingerprint": name}
        nbformat.write(page, folder / "a.ipynb")

    def found(stale, why="its code cells were changed after it ran"):
        monkeypatch.setattr(
            site, "problems", lambda stored, own: [why] * (stored.metadata.symgen.preset in stale)
        )
        return [folder.name for folder in site._largest(tmp_path, "a")]

    assert found(set()) == ["gpu", "cpu"]
    assert found({"gpu"}) == ["cpu"]
    assert found({"gpu", "cpu"}) == []
    assert found({"gpu"}, editions.OLDER) == ["gpu", "cpu"]


def test_the_strict_build_has_every_page_and_says_what_produced_it(built):
    for page in PAGES:
        html = (built / f"{page}.html").read_text()
        if page[9:11].isdigit():
            largest = [folder.name for folder in site._largest(ROOT, page.split("/")[-1])]
            shown = re.search(r'<p class="edition">Preset <b>(\w+)</b>', html)
            assert shown[1] == [*largest, "quick"][0]
            assert "code fingerprint" in html
            # What a preset has for parameters stands in a cell of its own.
            assert " = " not in re.search(r'<p class="edition">(.*?)</p>', html)[1]
    assert "chapters/index.html" in (built / "index.html").read_text()
    # Who looks for chapter 3 or appendix B finds them, in the title and beside every page.
    for page, number in {"03_three_phase_dynamics": "3. ", "B_baseline_networks": "B. "}.items():
        title = (
            ROOT.joinpath("chapters", f"{page}.ipynb").read_text().split('"# ')[1].split("\\n")[0]
        )
        assert f"<h1>{number}{title}" in (built / "chapters" / f"{page}.html").read_text()
        assert f"{number}{title}" in (built / "chapters" / "notation.html").read_text()


@pytest.mark.parametrize("page", ["chapters/index", "chapters/00_planted_logic"])
def test_who_links_to_a_page_gets_a_card_with_title_text_and_picture(built, page):
    head = (built / f"{page}.html").read_text().split("</head>")[0]
    for name in ('name="description"', 'property="og:title"', 'property="og:description"'):
        assert name in head
    icon = re.search(r'rel="icon" href="([^"]+)"', head) or re.search(
        r'href="([^"]+)"[^>]*rel="icon"', head
    )
    assert (built / page).parent.joinpath(icon[1]).resolve().is_file()


@pytest.mark.parametrize("name", presets.chapter_names(ROOT))
def test_parameters_are_folded_on_every_page(built, name):
    page = (built / "chapters" / f"{name}.html").read_text()
    cells = re.findall(
        r'<div class="cell [^"]*tag_(injected-parameters|parameters)\b.*?<pre>', page, re.S
    )
    assert "parameters" in cells
    for cell in re.finditer(
        r'<div class="(cell [^"]*tag_(?:injected-)?parameters\b.*?)<pre>', page, re.S
    ):
        assert "<details" in cell[1]
    assert page.count(">The parameters of this page</p>") == 2  # folded, and open
    assert page.count(">Defaults, and their meaning</p>") == 2 * ("injected-parameters" in cells)
    tall = name == "paper_vs_here"  # two tables of a row a claim, or more
    assert page.count(">The whole table</p>") == 4 * tall


@pytest.mark.parametrize("shown", [[], [nbformat.v4.new_output("stream", text="1")]])
def test_a_section_for_data_that_a_run_has_not_is_left_out(shown):
    of_data = nbformat.v4.new_markdown_cell("## B", metadata={"tags": ["where-data-are"]})
    code = nbformat.v4.new_code_cell("1", outputs=shown)
    after = "(c)=\n### C"
    told = [nbformat.v4.new_markdown_cell(text) for text in ("# A", "How to read it.", after)]
    quiet = nbformat.v4.new_code_cell("2")
    kept = notebooks.with_data([told[0], quiet, of_data, code, told[1], told[2], quiet])
    whole = ["# A", "2", "## B", "1", "How to read it.", after, "2"]
    assert [c.source for c in kept] == (whole if shown else whole[:2] + whole[5:])


def test_a_page_that_leaves_out_a_section_is_not_called_old(tmp_path):
    name = "01_interaction_extraction"
    ran = nbformat.read(ROOT / "chapters" / f"{name}.ipynb", as_version=4)
    (start,) = (i for i, cell in enumerate(ran.cells) if notebooks.has_tag(cell, "where-data-are"))
    heads = (i for i, cell in enumerate(ran.cells) if cell.source.startswith("#"))
    end = next(i for i in heads if i > start and ran.cells[i].cell_type == "markdown")
    for cell in ran.cells[start:end]:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(ran, tmp_path / f"{name}.ipynb")
    page = site._page(ROOT, name, [tmp_path])
    assert len(page.cells) == len(ran.cells) - (end - start)
    shown = [cell.source for cell in page.cells if 'class="edition"' in cell.source]
    assert len(shown) == 1 and "made before" not in shown[0]


def test_who_teaches_is_told_of_pages_that_are_not_those_of_the_course():
    pages = {
        name: nbformat.v4.new_notebook(metadata={"symgen": {"preset": preset}} if preset else {})
        for name, preset in (("00_a", "quick"), ("01_b", "cpu"), ("02_c", None))
    }
    told = site._of_course(pages)
    assert "{warning}" in told and "[01_b](01_b)" in told and "00_a" not in told
    del pages["01_b"]
    assert "{warning}" not in site._of_course(pages)


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


def test_markers_in_pages_become_tables(tmp_path):
    text = site._table(ROOT, "paper/reported.csv Appendix K", {})
    assert "VGG-11 on CIFAR-10 | 28 | percent" in text
    wide = pd.DataFrame({"hours": [37153.9, 999.94, 0.01234, float("nan")]})
    _, _, *rows = site._table(ROOT, "wide", {"wide": lambda: wide}).splitlines()
    assert rows == ["| 37,154 |", "| 999.9 |", "| 0.01234 |", "|  |"]
    # Where something is known of no row there is no column of it.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bills.csv").write_text("hours,memory,place\n1,,gpu\n2,3,paper\n")
    assert site._table(tmp_path, "bills.csv gpu", {}).startswith("| hours |\n")
    assert site._table(tmp_path, "bills.csv paper", {}).startswith("| hours | memory |\n")
    for place in ("gpu", "paper"):
        made = site._table(ROOT, f"benchmarks/bills.csv {place}", {})
        assert "| memory (GiB) | machine |" in made
    costs = site._table(ROOT, "costs", {"costs": lambda: site._costs(ROOT, [])})
    for name in presets.chapter_names(ROOT):
        assert f"| [{name}]({name}) | quick |" in costs


def test_no_marker_is_left_in_a_page_and_each_gave_something(built):
    markers = set()
    for page in (ROOT / "chapters").glob("*.md"):
        markers |= (found := set(re.findall(r"<!-- table: (.+?) -->", page.read_text())))
        made = (built / "_sources" / "chapters" / page.name).read_text()
        assert "<!-- table:" not in made
        assert made.count("\n| --- |") >= len(found - {"hero", "first"}), page.name
    assert {"hero", "first", "held", "costs"} <= markers
    for cell in ("when.plot_cases", "when.plot_moves", "02_order_generalization.plot_power",
                 "04_loss_gap_removal.plot_removal", "extractor.plot_planted",
                 "E_penalty.plot_arms", "00_planted_logic.plot_interactions"):  # fmt: skip
        assert (built / "_images" / f"{cell}.hero.svg").stat().st_size > 10_000


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
def test_pages_load_quietly_and_what_they_hold_can_be_read(visit, page):
    tab = visit(page)
    check_contents(tab)
    if page not in ("index", "chapters/api"):  # one leads on to a page, one has no figures
        check_figures(tab)


def check_contents(tab):
    """All that a page holds is shown, without a fault, and is told to who cannot see it."""
    for width, height, broken, html in tab.locator("article img").evaluate_all(SIZES):
        hidden = width == 0 and height == 0 and tab.locator(".widget-stack, details").count()
        assert hidden or (width > 20 and height > 20), html[:200]
        assert not broken, html[:200]
    if tab.locator(".math").count():
        assert tab.locator("mjx-container").count() >= tab.locator(".math").count()
    assert tab.locator("mjx-merror").count() == 0
    # Who cannot see a figure or a slider is told what it is.
    assert tab.locator("article img:not([alt]), article img[alt='']").count() == 0
    assert tab.locator("[role=slider]:not([aria-label])").count() == 0
    for text in tab.locator("article .cell_output").all_inner_texts():
        assert "$\\" not in text  # a formula that was left as it is written
    # What the list of references says of itself, docutils says.
    checked = {
        "resultTypes": ["violations"],
        "preload": False,
        "rules": {"aria-required-children": {"enabled": False}},
    }
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(tab, options=checked).response["violations"]
    grave = {x["id"]: x["nodes"] for x in found if x["impact"] in ("serious", "critical")}
    assert not grave, {k: [n["html"] for n in nodes] for k, nodes in grave.items()}
    # Nothing but what scrolls inside its own box is wider than the page.
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")


@pytest.mark.parametrize("page", ["chapters/00_planted_logic", "chapters/more_variables"])
def test_on_a_phone_figures_stay_readable_in_boxes_that_the_keyboard_moves(visit, page):
    tab = visit(page)
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.wait_for_timeout(500)
    widths = """elements => elements.map(e => [e.getBoundingClientRect().width, e.naturalWidth])"""
    figures = tab.locator("article .cell_output img:visible").evaluate_all(widths)
    assert figures
    for width, natural in figures:
        assert width >= min(480, natural) - 1
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    wide = """elements => elements.filter(e => e.scrollWidth > e.clientWidth
        && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
        && !e.hasAttribute('tabindex')).map(e => e.outerHTML.slice(0, 200))"""
    assert tab.locator("article .cell_output, article .widget-box").evaluate_all(wide) == []
    # What is wide says so, and is moved in one box, the one that the keyboard reaches.
    said = "elements => elements.map(e => getComputedStyle(e, '::after').content)"
    notes = tab.locator("article .cell_output[tabindex]").evaluate_all(said)
    assert notes and all("sideways" in note for note in notes)
    within = """elements => elements.filter(e => e.scrollWidth > e.clientWidth + 1
        && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.outerHTML)"""
    assert tab.locator("article .cell_output .text_html").evaluate_all(within) == []


def test_on_a_phone_a_formula_longer_than_its_line_is_moved_in_its_box(visit):
    tab = visit("chapters/00_planted_logic")
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    tab.wait_for_timeout(1000)
    cut = """elements => elements.map(e => [e, e.querySelector('mjx-container')])
        .filter(([e, m]) => m && m.getBoundingClientRect().width > e.closest('p, li').clientWidth)
        .map(([e]) => getComputedStyle(e).overflowX)"""
    found = tab.locator("article p span.math, article li span.math").evaluate_all(cut)
    assert found and set(found) == {"auto"}


FOLDED = """() => [...document.querySelectorAll(
    'article .toggle-hidden, article details:not([open])')]
    .flatMap(e => [...e.children])
    .filter(e => !e.matches('summary, .admonition-title'))
    .map(e => [e.textContent.slice(0, 200), e.checkVisibility()
        && e.getBoundingClientRect().height > 0])"""


@pytest.mark.parametrize("page", ["02_order_generalization", "03_three_phase_dynamics"])
def test_what_is_folded_stays_folded_on_paper(visit, page):
    tab = visit(f"chapters/{page}")
    # What a reader has opened is printed, too.
    tab.locator(".solution .toggle-button").first.click()
    tab.locator("article details summary").first.click()
    tab.emulate_media(media="print")
    folded = tab.evaluate(FOLDED)
    assert len(folded) >= 5 and not [text for text, shown in folded if shown]
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_timeout(300)
    assert tab.evaluate(FOLDED) == folded
    assert tab.locator(".solution .toggle-button:visible").count() == 0
    for opened in (".solution:not(.toggle-hidden) > section", "details[open] > summary + *"):
        assert tab.locator(f"article {opened}").first.is_visible()
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(FOLDED) == folded


def own_bytes(built, page):
    """What a page has to itself, as it lies on the disk: its HTML and its figures."""
    html = (built / f"{page}.html").read_text()
    figures = {built / "_images" / name for name in re.findall(r"_images/([\w.-]+)", html)}
    sizes = [path.stat().st_size for path in (built / f"{page}.html", *figures)]
    return sum(sizes) / 1e6, "jupyter.widget-view" in html


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_heavy(built, page):
    size, sliders = own_bytes(built, page)
    assert size <= (2.5 if sliders else 1.5)


LETTERS = re.compile(r'<g [^>]*transform="[^"]*scale\((\d*\.?\d+) -')


def smallest_letters(source, width):
    """The size in pixels of the smallest letters of a drawing, its exponents and indices aside."""
    if source.startswith("data:image/svg"):
        svg = base64.b64decode(source.split(",", 1)[1]).decode()
    elif source.endswith(".svg"):
        svg = Path(url2pathname(urlparse(source).path)).read_text()
    else:
        return None
    letters = [100 * float(size) for size in LETTERS.findall(svg)]
    units = float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])
    return min(letters) * width / units if letters else None


FIGURES = """elements => elements.map(e => [e.src, e.getBoundingClientRect().width])
    .filter(([, width]) => width > 0)"""


LARGE = "article img, article table, article svg, article .cell_output > div, article .claim"
BOXES = """elements => elements.filter(e => e.checkVisibility()).map(e => {
    const {x, y, width, height} = e.getBoundingClientRect();
    return [[x + scrollX, y + scrollY, width, height], e.outerHTML.slice(0, 200)];
}).filter(([[x, y, width, height]]) => Math.min(width, height) > 100)"""


SCALE = 0.25  # of the picture that corners are looked for in; a whole one takes six times as long


def whole_page(tab):
    """A small picture of the page in shades of grey; in strips, as none is drawn too high."""
    image = pytest.importorskip("PIL.Image")
    high, strip, wide = tab.evaluate("document.documentElement.scrollHeight"), 16_000, 1280
    assert tab.viewport_size["width"] == wide
    whole = image.new("L", (int(SCALE * wide), int(SCALE * high)))
    session = tab.context.new_cdp_session(tab)
    for top in range(0, high, strip):
        height = min(strip, high - top)
        clip = {"x": 0, "y": top, "width": wide, "height": height, "scale": SCALE}
        shot = session.send("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        part = image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("L")
        whole.paste(part, (0, int(SCALE * top)))
    session.detach()
    return whole


def check_figures(tab):
    """Figures can be read, also on a phone, and none is white on a dark page."""
    tab.evaluate("document.querySelectorAll('article details').forEach(e => e.open = true)")
    for width in (390, 1280):
        tab.set_viewport_size({"width": width, "height": 844})
        tab.wait_for_timeout(500)
        for source, shown in tab.locator("article img").evaluate_all(FIGURES):
            size = smallest_letters(source, shown)
            assert size is None or size >= 9, (width, source[-80:], shown)
        texts = """() => [...document.querySelectorAll('article svg text')]
            .filter(e => e.getBoundingClientRect().width > 0)
            .map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""
        assert all(size >= 9 for size in tab.evaluate(texts))
        # What is wider than the page for it is moved in its box.
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    # On a busy machine formulas and figures find their places late, and what is seen must be where
    # it was looked for.
    for _ in range(20):
        boxes = tab.locator(LARGE).evaluate_all(BOXES)
        tab.wait_for_timeout(500)
        whole = whole_page(tab)
        if tab.locator(LARGE).evaluate_all(BOXES) == boxes:
            break
    else:
        pytest.fail("the page does not come to rest")
    for (x, y, width, height), html in boxes:
        across, down = (x + 8, x + width - 8), (y + 8, y + height - 8)
        places = [(int(SCALE * i), int(SCALE * j)) for i in across for j in down]
        # What reaches beyond the page is moved in its box.
        corners = [whole.getpixel(at) for at in places if at[0] < whole.width]
        # One corner may be a picture's own.
        assert sorted(corners)[1] < 200, html


def test_some_chapter_has_figures_formulas_and_a_widget(visit):
    seen = {"article .cell_output img": 0, "mjx-container": 0, ".jupyter-widgets": 0}
    for page in PAGES:
        tab = visit(page)
        for what in seen:
            seen[what] += tab.locator(what).count()
        if all(seen.values()):
            return
    pytest.fail(f"on all pages: {seen}")


SHOWN = """() => [...document.querySelectorAll(
    '.jupyter-widgets img, .jupyter-widgets svg, .widget-html')]
    .filter(e => e.getBoundingClientRect().width > 0).map(e => e.src || e.outerHTML)"""


VALUES = """() => [...document.querySelectorAll('.widget-readout')].map(e => {
    const drawn = e.closest('.widget-vbox').lastElementChild;
    const captions = [...drawn.querySelectorAll('div.widget-label')]
        .filter(x => x.getBoundingClientRect().width > 0);
    const read = e.getBoundingClientRect().width > 0;
    return [read + captions.length, !read || e.scrollWidth <= e.clientWidth + 1]})"""


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p[9:11].isdigit()] + ["chapters/D_cross_validation"]
)
def test_the_value_of_a_slider_is_shown_once_and_whole(built, visit, page):
    if not own_bytes(built, page)[1] or not (tab := visit(page)).locator(".widget-readout").count():
        pytest.skip("this chapter has no slider")
    for width in (390, 1280):
        tab.set_viewport_size({"width": width, "height": 844})
        tab.wait_for_timeout(300)
        assert all(value == [1, True] for value in tab.evaluate(VALUES)), width


@pytest.mark.parametrize("page", [p for p in PAGES if p[9:11].isdigit()])
def test_moving_a_control_changes_what_is_shown(built, visit, page):
    if not own_bytes(built, page)[1]:
        pytest.skip("this chapter has no control to move")
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


def executed(name, outputs=(), parameters=None, work="1 + 1"):
    """A small chapter as a run leaves it, with these outputs in its third code cell."""
    notebook = small_chapter(name, work=work)
    notebook.cells[3].outputs = list(outputs)
    about = {"preset": "quick", "parameters": parameters or {}, "seconds": 1.0, "memory": {}}
    notebook.metadata["symgen"] = {**about, "fingerprint": "0" * 16, "schema": 1}
    return notebook


def shown(kind="text/plain", value="", **more):
    return nbformat.v4.new_output("display_data", {kind: value, **more})


@pytest.fixture
def small(tmp_path, book) -> Path:
    """A book of one page of text, to which a test adds chapters with `add`."""
    folder = tmp_path / "small"
    (folder / "chapters").mkdir(parents=True)
    for name in ("_config.yml", "references.bib"):
        shutil.copyfile(book / name, folder / name)
    shutil.copytree(book / "_static", folder / "_static")
    if (book / "_build" / "vendor").exists():
        (folder / "_build").mkdir()
        (folder / "_build" / "vendor").symlink_to(book / "_build" / "vendor")
    (folder / "chapters" / "index.md").write_text("# A book\n\nIts text.\n")
    return folder


def add(folder, *chapters):
    names = []
    for notebook in chapters:
        names.append(notebook.cells[0].source.split()[3])
        nbformat.write(notebook, folder / "chapters" / f"{names[-1]}.ipynb")
    files = [{"file": f"chapters/{name}"} for name in names]
    contents = {"format": "jb-book", "root": "chapters/index", "chapters": files}
    (folder / "_toc.yml").write_text(yaml.safe_dump(contents))


RUN = "window.ran = true"
LIVE = [
    f"<script>{RUN}</script>",
    f"</SCRIPT><script>{RUN}</script>",
    f"<svg onload='{RUN}'></svg>",
    f"<img src='nothing.png' onerror='{RUN}'>",
    f"<a href='javascript:{RUN}'>click</a>",
    f"<a href='  jAva&#09;script:{RUN}'>click</a>",
    f"<details open ontoggle='{RUN}'><summary>s</summary></details>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<form action='javascript:{RUN}'><button>click</button></form>",
    f"<b onmouseover='{RUN}'>b</b>",
    f"<math><mtext href='javascript:{RUN}'>click</mtext></math>",
    f"<p style='background:url(javascript:{RUN})'>p</p>",
    f"$\\href{{javascript:{RUN}}}{{click}}$",
    "$\\class{trap}{x} \\style{position:fixed}{y} \\cssId{trap}{z}$",
    f"$$\\href{{javascript:{RUN}}}{{click}}$$",
    f"[click](javascript:{RUN})",
    f"`{RUN}`{{=html}}",
    "{{ cycler.__init__.__globals__.os.system('touch RAN') }}",
    "{{ env.app.outdir }} {% include 'SECRET' %}",
    "{download}`SECRET`",
    "{include}`SECRET`",
    f"{{raw}}`<script>{RUN}</script>` {{eval-rst}}`x` {{nobody}}`x` {{doc}}`no-page`",
    "![picture](SECRET)",
    "```{include} SECRET\n```",
    f"```{{raw}} html\n<script>{RUN}</script>\n```",
    "```{literalinclude} SECRET\n```",
    ":::{nobody}\nx\n:::",
    # Harmless, and a fault to a strict builder all the same.
    "# a_b* [c](d) [e][f] <b>g | h & i ~ `j\n## k\n$l\n% m\n(n)=\n[^o] {p}`q`",
]
LIVE_SVG = """<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"
xmlns:xlink="http://www.w3.org/1999/xlink" width="90" height="90" onload="RUN"><script>RUN</script>
<a xlink:href="javascript:RUN"><rect width="90" height="90" onclick="RUN"/></a>
<foreignObject width="9" height="9"><body xmlns="http://www.w3.org/1999/xhtml" onload="RUN"/>
</foreignObject><circle cx="40" cy="40" r="20" style="fill:url(https://example.com/x)"/></svg>"""
LIVE_SVG = LIVE_SVG.replace("RUN", RUN)


def hostile(name, secret):
    """A chapter whose data hold all that must not come to life on a page."""
    text = [x.replace("SECRET", secret) for x in LIVE]
    outputs = [shown("text/markdown", x) for x in text]
    outputs += [shown("text/html", f"<table><tr><td>{x}</td></tr></table>") for x in text]
    outputs += [shown("text/latex", text[12]), shown("application/javascript", RUN)]
    outputs += [shown("image/svg+xml", LIVE_SVG), shown("image/png", "bm90IGEgcGljdHVyZQ==")]
    outputs += [shown("text/plain", "\n".join(text)), shown("image/svg+xml", "<svg")]
    outputs.append(nbformat.v4.new_output("stream", name="stdout", text="\n".join(text)))
    controls, base = "@jupyter-widgets/controls", "@jupyter-widgets/base"
    layout = {"model_module": base, "model_module_version": "2.0.0", "model_name": "LayoutModel"}
    state = {"a" * 32: {**layout, "state": {}}}
    for number, x in enumerate([*text, LIVE_SVG[LIVE_SVG.index("<svg") :]]):
        about = {"model_module": controls, "model_module_version": "2.0.0"}
        for kind in ("HTML", "Label"):
            key = f"{number:031d}{kind[0].replace('H', '1').replace('L', '2')}"
            values = {
                "value": x, "description": x, "description_allow_html": True, "tooltip": x,
                "layout": f"IPY_MODEL_{'a' * 32}", "_view_name": f"{kind}View",
                "_view_module": controls, "_model_name": f"{kind}Model", "_model_module": controls,
            }  # fmt: skip
            state[key] = {**about, "model_name": f"{kind}Model", "state": values}
            view = {"version_major": 2, "version_minor": 0, "model_id": key}
            outputs.append(shown(WIDGET_VIEW, view, **{"text/plain": x}))
    notebook = executed(name, outputs, {f"p{i}": x for i, x in enumerate(text)})
    about = {"version_major": 2, "version_minor": 0, "state": state}
    notebook.metadata["widgets"] = {WIDGET_STATE: about}
    source = "\n".join(f"p{i} = {x!r}" for i, x in enumerate(text))
    injected = nbformat.v4.new_code_cell(source, metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(2, injected)
    return notebook


CLICK = """() => {
    const all = [...document.querySelectorAll('article *')];
    for (const e of all) {
        const link = e.getAttribute('href') || e.getAttribute('xlink:href') || '';
        if (!/script:/i.test(link)) e.addEventListener('click', x => x.preventDefault());
        for (const kind of ['mouseover', 'click'])
            e.dispatchEvent(new MouseEvent(kind, {bubbles: true, cancelable: true}));
        if (e.tagName === 'FORM') e.submit();
    }
    return all.length;
}"""


def test_text_of_data_is_inert_on_every_page(small, browser, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret of this machine")
    secret = "../../../../secret.txt"
    folder = tmp_path / "runs"
    folder.mkdir()
    add(small, hostile("a_hostile", secret), executed("b_failed", [shown(value="fine")]))
    failed = hostile("b_failed", secret)
    error = {"ename": "".join(LIVE), "evalue": "\n".join(LIVE), "traceback": LIVE}
    failed.cells[-2].outputs = [nbformat.v4.new_output("error", **error)]
    nbformat.write(failed, folder / "b_failed.failed.ipynb")
    built = site.build(small, folder=folder).parent.parent
    assert not [p for p in (*small.rglob("RAN"), Path("RAN")) if p.exists()]
    assert not (built / "_downloads").exists()
    for file in built.rglob("*"):
        if file.is_file() and file.suffix != ".ipynb":
            assert b"the secret of" not in file.read_bytes(), file
    pages = [*(built / "chapters").glob("*.html"), *(built / "_images").glob("*.svg")]
    assert len(pages) >= 4
    context = browser.new_context()
    context.add_init_script("window.open = () => null")
    context.route("http*://**", lambda route: route.abort())
    asked = []
    context.on("request", lambda r: asked.append(r.url) if r.url.startswith("http") else None)
    for page in pages:
        tab = context.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_load_state("load")
        if page.stem == "a_hostile":
            tab.locator(".widget-label").first.wait_for(state="attached", timeout=30_000)
            tab.locator("article .math mjx-container").first.wait_for(state="attached")
            tab.wait_for_timeout(1000)
            # The data are there, as text.
            assert tab.locator("article table").count() >= len(LIVE)
            assert "{download}" in tab.locator("article").inner_text()
            assert tab.locator("mjx-container .trap, #trap").count() == 0
        tab.evaluate(CLICK) if page.suffix == ".html" else tab.locator("svg").click()
        tab.wait_for_timeout(300)
        assert tab.evaluate("window.ran === undefined"), page.name
        assert tab.url == page.as_uri()
        assert tab.locator("article [href^='javascript' i], article iframe").count() == 0
        tab.close()
    context.close()
    assert not [url for url in asked if "example.com" in url]


@pytest.fixture
def quickly(small, monkeypatch):
    """The small book with one chapter, and a builder that only copies; its calls are counted."""
    calls = []

    def copy(stage, output):
        calls.append(output)
        for page in (stage / "chapters").iterdir():
            target = output / "_build" / "html" / "chapters" / f"{page.stem}.html"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page.read_text())

    monkeypatch.setattr(site, "_sphinx", copy)
    add(small, executed("a_whole", [shown(value="stored")]))
    return calls


@pytest.mark.parametrize("change", [Path.unlink, lambda page: page.write_text("")])
def test_a_page_that_is_gone_is_built_again(small, quickly, change):
    first = site.build(small)
    site.build(small)
    assert len(quickly) == 1
    change(first.parent / "a_whole.html")
    site.build(small)
    assert len(quickly) == 2
    assert "stored" in (first.parent / "a_whole.html").read_text()


def test_what_a_killed_build_has_left_is_swept(small, quickly):
    left, others = (small / "_build" / name / "_build" for name in ("site-work", "site-mine"))
    left.mkdir(parents=True)
    others.mkdir(parents=True)
    site.build(small)
    assert not left.parent.exists()
    assert {p.name for p in (small / "_build").glob("site-*")} == {"site-src", "site-mine"}


def test_a_second_build_waits_for_the_first(small, quickly, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(
        processes, "print", lambda text, **_: "Waiting" in text and waits.set(), raising=False
    )
    (small / "_build").mkdir(exist_ok=True)
    second = threading.Thread(target=site.build, args=(small,))
    with filelock.FileLock(small / "_build" / ".site.lock"):
        second.start()
        assert waits.wait(60)
        second.join(1)
        assert not quickly
    second.join(60)
    assert len(quickly) == 1


def test_the_header_and_the_footer_of_a_page_say_the_same(small, quickly):
    record = {
        "preset": "quick", "parameters": {"dataset": "digits"}, "device": "a CPU", "seconds": 12.34,
        "memory": {}, "versions": {}, "code": "c0de" * 4, "inputs": {}, "threads": 1,
        "OMP_NUM_THREADS": None,
    }  # fmt: skip
    output = nbformat.v4.new_output("display_data", Provenance(record)._repr_mimebundle_())
    add(small, executed("a_whole", [output]))
    page = (site.build(small).parent / "a_whole.html").read_text()
    footer = re.search(r"wall time</th><td>(.+?)<.*code fingerprint</th><td>(.+?)<", page)
    assert footer.groups() == ("12.3 s", "c0de" * 4)
    header = re.search(r'<p class=\\"edition\\">.*?</p>', page)[0]
    assert " · 12.3 s · code fingerprint c0dec0dec0dec0de" in header


def failed_run(folder, name):
    notebook = executed(name, work="the_line = that_fails()")
    about = {"ename": "ValueError", "evalue": "no <b>such</b> thing", "traceback": []}
    notebook.cells[3].outputs = [nbformat.v4.new_output("error", **about)]
    notebook.cells[3].execution_count = 3
    del notebook.metadata["symgen"]
    folder.mkdir(exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.failed.ipynb")


def test_a_failed_chapter_shows_what_is_stored_and_says_what_failed(small, browser, tmp_path):
    folder = tmp_path / "runs"
    add(small, *(executed(x, [shown(value="stored")]) for x in ("a_whole", "b_failed")))
    failed_run(folder, "b_failed")
    nbformat.write(executed("a_whole", [shown(value="new")]), folder / "a_whole.ipynb")
    built = site.build(small, folder=folder).parent
    tab = browser.new_page()
    tab.goto((built / "b_failed.html").as_uri())
    said = tab.locator("article p.failed").inner_text()
    for part in (
        "The last run of this chapter failed in cell [3]",
        "the_line = that_fails()",
        "ValueError: no <b>such</b> thing",
        "stored ones, of an earlier run",
    ):
        assert part in said
    assert "stored" in tab.locator("article .cell_output").first.inner_text()
    tab.goto((built / "a_whole.html").as_uri())
    assert tab.locator("p.failed").count() == 0
    assert "new" in tab.locator("article .cell_output").first.inner_text()
    tab.close()


def test_a_page_shows_each_warning_of_its_run_once(small, quickly, tmp_path):
    told = "./symgen/study.py:7: NearChanceWarning: ends near <b>chance</b>\n  return train(\n"
    other = "/x/symgen/.venv/site-packages/y.py:1: FutureWarning: of another package\n"
    stderr = nbformat.v4.new_output("stream", name="stderr", text=told * 2 + other)
    add(small, executed("a_whole", [stderr, shown(value="stored")]))
    page = nbformat.reads((site.build(small).parent / "a_whole.html").read_text(), as_version=4)
    warned = [c.source for c in page.cells if 'class="warned"' in c.source]
    assert len(warned) == 1 and "NearChanceWarning" in warned[0] and "&#60;b&#62;" in warned[0]
    assert "return train" not in warned[0]
    site.build(small)
    assert len(quickly) == 1  # nothing has changed


def test_beside_a_failed_run_an_earlier_one_counts_if_it_is_current(small, quickly, tmp_path):
    folder = tmp_path / "runs"
    failed_run(folder, "a_whole")
    earlier = executed("a_whole", [shown(value="of an earlier day")])
    about = notebooks.identity(earlier, "quick", {})
    earlier.metadata["symgen"] = {**about, "seconds": 1.0, "memory": {}}
    nbformat.write(earlier, folder / "a_whole.ipynb")
    page = (site.build(small, folder=folder).parent / "a_whole.html").read_text()
    assert "of an earlier day" in page
    assert "last run of this chapter failed" in page
    add(small, executed("a_whole", [shown(value="in store")], work="2 + 2"))
    page = (site.build(small, folder=folder).parent / "a_whole.html").read_text()
    assert "of an earlier day" not in page
    assert "in store" in page
    assert "last run of this chapter failed" in page


@pytest.mark.parametrize("left", ["", "{}", '{"cells": [{"cell_type": "code"'])
def test_half_a_failed_run_costs_no_site(small, quickly, tmp_path, left):
    (tmp_path / "a_whole.failed.ipynb").write_text(left)
    page = (site.build(small, folder=tmp_path).parent / "a_whole.html").read_text()
    assert "failed</b> without an error in a cell" in page
    assert "stored" in page


def test_a_site_of_others_is_not_replaced(small, quickly):
    own = small / "_build" / "html" / "index.html"
    own.parent.mkdir(parents=True)
    own.write_text("own")
    with pytest.raises(site.BookError, match="is no site of symgen, and is not replaced"):
        site.build(small)
    assert own.read_text() == "own" and not quickly


def test_a_folder_without_executed_chapters_is_told(small, quickly, tmp_path):
    (tmp_path / "sweep" / "0a1b").mkdir(parents=True)
    with pytest.raises(site.BookError, match="no folder .* with executed chapters"):
        site.build(small, folder=tmp_path / "sweep")


def test_a_copied_chapter_gets_a_page_and_labels_of_its_own(small):
    """The site was refused for its labels, or built without it."""
    first = executed("a_whole", [shown(value="stored")])
    told = "(here)=\n## A part\n\n[the part](here), [there](here-too)"
    exercise = "```{exercise}\n:label: by-hand\nDo it.\n```\n\n```{solution} by-hand\nSo.\n```"
    first.cells += [nbformat.v4.new_markdown_cell(text) for text in (told, exercise)]
    add(small, first)
    copied = copy.deepcopy(first)
    copied.cells[0].source = copied.cells[0].source.replace("a_whole", "A_copy")
    copied.cells[1].source = copied.cells[1].source.replace("a_whole", "A_copy")
    nbformat.write(copied, small / "chapters" / "A_copy.ipynb")
    contents, names = presets.table_of_contents(small)
    assert names == ["a_whole", "A_copy"]
    assert [x["file"] for x in contents["chapters"]] == ["chapters/a_whole", "chapters/A_copy"]
    pages = {name: presets.read_chapter(small, name) for name in names}
    notebooks.label_apart(pages)
    texts = {name: [x.source for x in page.cells[-2:]] for name, page in pages.items()}
    assert texts["a_whole"] == [told, exercise]
    assert texts["A_copy"] == [
        told.replace("(here)", "(here-in-a-copy)"),
        exercise.replace("by-hand", "by-hand-in-a-copy"),
    ]


def test_a_chapter_that_the_table_of_contents_lacks_is_in_its_last_part(tmp_path):
    book = tmp_path / "book"
    layout.lay_out(ROOT, book)
    shutil.copyfile(book / "chapters/00_planted_logic.ipynb", book / "chapters/my_logic.ipynb")
    contents, names = presets.table_of_contents(book)
    assert names[-1] == "my_logic" and sorted(names) == presets.chapter_names(book)
    assert contents["parts"][-1]["chapters"] == [{"file": "chapters/my_logic"}]
    assert contents["parts"][:-1] == presets.read_yaml(book / "_toc.yml")["parts"]
    assert presets.table_of_contents(ROOT)[0] == presets.read_yaml(ROOT / "_toc.yml")
