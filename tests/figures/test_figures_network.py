"""Figures of one sample, and the explorer in a real browser."""

import html
import itertools
import json
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from symgen import figures
from symgen.interactions import Interactions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += [f"--disable-{x}" for x in ("background-networking", "component-update", "sync")]
BOXES = torch.tensor([[0, 0, 4, 4], [4, 0, 8, 4], [0, 4, 4, 8]])
IMAGE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
NAMES = ["$ear$", "<i>eye</i>", "_nose"]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def game():
    """v = -1 + 2 AND(0, 1) - 0.5 AND(2) + 1.5 OR(1, 2), and a network that differs a little."""
    effects = torch.zeros(2, 8, dtype=torch.float64)
    effects[0, 0b011] = 2
    effects[0, 0b100] = -0.5
    effects[1, 0b110] = 1.5
    one = torch.tensor(4.0, dtype=torch.float64)
    inter = Interactions(effects, -one / 4, one, 0 * one, one / 2)
    noise = 0.1 * torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    return inter.predict() + noise, inter


def markup(*args, **options):
    return figures.explorer(*args, **options).bundle["text/html"]


def data_of(page):
    return json.loads(html.unescape(re.search('data-explorer="([^"]*)"', page)[1]))


def texts(items):
    return [item.get_text() for item in items]


def test_variables_are_numbered_boxes_and_others_are_covered():
    ax = figures.plot_variables(IMAGE, BOXES, members=[0, 2])
    assert np.array_equal(ax.images[0].get_array(), IMAGE)
    assert texts(ax.texts) == ["0", "2"]
    covers = [patch for patch in ax.patches if patch.get_fill()]
    assert [patch.get_bbox().extents.tolist() for patch in covers] == [[3.5, -0.5, 7.5, 3.5]]
    assert texts(figures.plot_variables(IMAGE, BOXES).texts) == ["0", "1", "2"]


def test_masked_copies_stand_above_their_values(game):
    v, _ = game
    figure = figures.plot_masking(IMAGE, BOXES, [0, 0b101, 7], v)
    *copies, ax = figure.axes
    figure.draw_without_rendering()
    covered = [sum(patch.get_fill() for patch in copy.patches) for copy in copies]
    assert covered == [3, 1, 0]
    assert [copy.get_title() for copy in copies] == [
        f"S = ∅\nv = {v[0]:.2f}",
        f"S = 5\nv = {v[5]:.2f}",
        f"S = N\nv = {v[7]:.2f}",
    ]
    assert np.array_equal(ax.lines[0].get_ydata(), v)
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines[1:]]
    assert dots == [(0, v[0]), (5, v[5]), (7, v[7])]


def test_matching_sorts_both_by_v(game):
    v, inter = game
    network, model = figures.plot_matching(v, inter).lines
    order = v.argsort()
    assert np.array_equal(network.get_ydata(), v[order])
    assert np.array_equal(model.get_ydata(), inter.predict()[order])
    assert model.get_color() == figures.COLORS["model"]


def test_bars_are_the_strongest_effects(game):
    v, inter = game
    ax = figures.plot_interactions(inter, NAMES, top=2)
    bars = sorted((bar.get_y(), bar.get_width(), bar.get_hatch()) for bar in ax.patches)
    assert [bar[1:] for bar in bars] == [(2, None), (1.5, "///")]
    assert texts(ax.get_yticklabels()) == [r"\$ear\$ ∧ <i>eye</i>", "<i>eye</i> ∨ _nose"]
    ax = figures.plot_interactions(inter)
    assert texts(ax.get_yticklabels()) == ["0 ∧ 1", "1 ∨ 2", "2"]
    assert texts(ax.get_legend().get_texts()) == ["AND", "OR"]
    alone = figures.plot_interactions(Interactions.from_moebius(v))
    assert texts(alone.get_legend().get_texts()) == ["AND"]


def nodes_of(ax):
    return [text for text in ax.texts if text.get_text()[0] in "∧∨"]


def test_the_graph_joins_variables_terms_and_output(game):
    _, inter = game
    ax = figures.plot_graph(inter, NAMES, target="$x$")
    shapes = {text.get_text(): type(text.get_bbox_patch().get_boxstyle()) for text in nodes_of(ax)}
    assert shapes.keys() == {"∧ +2.00", "∨ +1.50", "∧ −0.50"}
    assert shapes["∧ +2.00"] == shapes["∧ −0.50"] != shapes["∨ +1.50"]
    # One line per member, and one to the output.
    assert len(ax.lines) == 2 + 2 + 1 + 3
    colors = {figures.COLORS["positive"]: 6, figures.COLORS["negative"]: 2}
    assert all(sum(e.get_color() == c for e in ax.lines) == k for c, k in colors.items())
    assert {r"\$x\$", r"\$ear\$"} <= set(texts(ax.texts))
    assert texts(ax.get_yticklabels()) == ["order 1", "order 2"]


def test_no_line_and_no_node_lies_on_an_effect():
    v = torch.randn(64, generator=torch.Generator().manual_seed(0)).double()
    ax = figures.plot_graph(Interactions.from_moebius(v), top=40)
    ax.figure.draw_without_rendering()
    nodes = nodes_of(ax)
    boxes = [text.get_bbox_patch().get_window_extent() for text in nodes]
    assert len(nodes) == 40
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for text in nodes:
        frame = text.get_bbox_patch()
        assert frame.get_facecolor() == (1, 1, 1, 1)
        assert text.get_zorder() > max(line.get_zorder() for line in ax.lines)


def test_a_sample_without_interactions_is_named(game):
    _, inter = game
    none = Interactions(0 * inter.effects, inter.bias, inter.objective, inter.gap, inter.full)
    for draw in (figures.plot_graph, figures.plot_interactions):
        assert "no interactions" in texts(draw(none).texts)


def test_several_samples_and_incomplete_explorers_are_refused(game):
    v, inter = game
    several = Interactions.from_moebius(torch.randn(2, 8).double())
    for draw in (figures.plot_interactions, figures.plot_graph):
        with pytest.raises(ValueError, match="interactions of 2 samples; expected one"):
            draw(several)
    with pytest.raises(ValueError, match="an image needs its boxes"):
        figures.explorer(v, inter, image=IMAGE)
    big = torch.zeros(2**13, dtype=torch.float64)
    with pytest.raises(ValueError, match="13 variables; the explorer shows at most 12"):
        figures.explorer(big, Interactions.from_moebius(big))


def test_the_explorer_holds_outputs_and_effects_as_inert_data(game):
    v, inter = game
    shown = markup(v, inter, NAMES, IMAGE, BOXES)
    page = shown.split("<style>")[0]
    data = data_of(page)
    assert np.allclose(data["v"], v, atol=1e-3) and np.allclose(data["d"], inter.predict())
    assert data["terms"] == [["and", 3, 2.0], ["or", 6, 1.5], ["and", 4, -0.5]]
    assert data["boxes"][1] == [50, 0, 100, 50]
    assert "<i>" not in page and "<script" not in page and len(page) < 3000
    photograph = np.zeros((500, 400, 3), dtype=np.uint8)
    uri = data_of(markup(v, inter, image=photograph, boxes=BOXES))["image"]
    assert uri.startswith("data:image/jpeg;base64,") and len(uri) < 4000
    # In JupyterLab the script comes along.
    assert "<script>" in shown and "onclick" not in shown


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens HTML; afterwards, errors of the page fail the test."""
    errors, pages = [], []

    def open_one(content, **options):
        page = browser.new_page(**options)
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(error))
        page.set_content(f"<meta charset='utf-8'><body>{content}</body>")
        return page

    yield open_one
    for page in pages:
        page.close()
    assert not errors


def values(page):
    return [x.replace("−", "-") for x in page.locator(".symgen-value").all_inner_texts()]


def expected(game, state):
    v, inter = game
    return [f"{float(x[state]):.2f}" for x in (v, inter.predict())]


def test_patches_switch_v_and_d(game, open_page):
    page = open_page(markup(*game, NAMES, IMAGE, BOXES))
    patches, terms = page.locator(".symgen-patch"), page.locator(".symgen-term >> visible=true")
    assert values(page) == expected(game, 7)
    assert terms.all_inner_texts()[1].split("\n") == ["$ear$ ∧ <i>eye</i>", "+2.00"]
    for i, state in ((1, 0b101), (0, 0b100), (2, 0), (1, 0b010)):
        patches.nth(i).click()
        assert values(page) == expected(game, state)
        pressed = [patches.nth(k).get_attribute("aria-pressed") for k in range(3)]
        assert pressed == [str(bool(state >> k & 1)).lower() for k in range(3)]
    # Active at S = {1}: the constant and OR(1, 2).
    assert [x.split("\n")[-1] for x in terms.all_inner_texts()] == ["−1.00", "+1.50"]
    width = page.locator(".symgen-model .symgen-fill").evaluate("e => e.style.width")
    every = torch.cat([torch.zeros(1), game[0], game[1].predict()])
    share = 0.5 / float(every.max() - every.min())
    assert float(width.rstrip("%")) == pytest.approx(100 * share, abs=0.1)
    terms.nth(1).hover()
    marked = page.locator(".symgen-marked")
    assert marked.all_text_contents() == ["1", "2"]
    page.mouse.move(0, 0)
    assert marked.count() == page.locator("i").count() == 0


def test_the_explorer_works_by_keyboard_and_prints_its_first_state(game, open_page):
    text = "the <i>ear</i>, an eye 👁 and a nose"
    spans = [(text.index(w), text.index(w) + len(w)) for w in ("ear", "eye", "nose")]
    # Two scripts on one page set up each explorer once.
    page = open_page(
        markup(*game, text=text, spans=spans) * 2, viewport={"width": 390, "height": 800}
    )
    assert page.locator(".symgen-word").count() == 6
    assert page.locator(".symgen-stage").first.inner_text().replace("\n", "") == text
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert values(page) == expected(game, 6) + expected(game, 7)
    for event, state in (("beforeprint", 7), ("afterprint", 6)):
        page.evaluate(f"window.dispatchEvent(new Event('{event}'))")
        assert values(page)[:2] == expected(game, state)
    page.get_by_role("button", name="all off").first.click()
    assert values(page)[:2] == expected(game, 0)
    assert page.locator(".symgen-count").first.inner_text() == "0 of 3 present"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".symgen-terms").nth(1).locator("button >> visible=true").first.focus()
    assert page.locator(".symgen-marked").count() == 2


def test_terms_beyond_the_list_are_summed(game, open_page):
    page = open_page(markup(*game, top=1))
    rows = page.locator(".symgen-term >> visible=true").all_inner_texts()
    assert rows[-1].split("\n") == ["other terms", "+1.00"]


def visible(page):
    images = page.locator(".symgen-slider img >> visible=true")
    return [image.get_attribute("alt") for image in images.all()]


def pages_of(*captions):
    return {caption: figures.panels([caption])[0] for caption in captions}


def test_a_slider_is_moved_by_keys_and_read_out(open_page):
    page = open_page(figures.slider(pages_of("10", "20", "30"), "step", "20").bundle["text/html"])
    control = page.get_by_role("slider", name="step")
    assert visible(page) == ["step 20"]
    control.focus()
    page.keyboard.press("ArrowRight")
    assert visible(page) == ["step 30"] and control.get_attribute("aria-valuetext") == "30"
    assert page.locator(".symgen-shown").inner_text() == "30"
    page.keyboard.press("Home")
    assert visible(page) == ["step 10"]


def test_figures_have_a_switch_to_their_own_scale_or_a_menu(open_page):
    shown = figures.slider(pages_of("a", "b"), "text", same_scale=True, menu=True)
    page = open_page(shown.bundle["text/html"])
    menu = page.get_by_role("combobox", name="text")
    menu.select_option(label="b")
    # Screen readers know the value of a menu.
    assert visible(page) == ["text b"] and menu.get_attribute("aria-valuetext") is None
    page.get_by_role("button", name="own scale").click()
    assert visible(page) == ["text b, own scale"]


def test_without_its_script_a_slider_shows_the_first_figure(open_page):
    markup = figures.slider(pages_of("a", "b"), "text", "b").bundle["text/html"]
    page = open_page(markup.split("<script>")[0])
    assert visible(page) == ["text b"]
