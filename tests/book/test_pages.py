"""How claims and tables look, and that the pages of results read what is stored."""

import re

import nbformat
import pandas as pd
import pytest
from conftest import ROOT
from nbclient import NotebookClient

from book.small_book import claims
from symgen.book import editions, notebooks, pages

ABOUT = pd.Series({
    "statement": "H rises", "place": "Fig. 3", "paper_value": "always", "chapter": "00_first",
    "control": "chance", "beyond": "above chance",
})  # fmt: skip


def shown(mean, low, high, unit="", **claim):
    return pages.effect(pd.Series({"mean": mean, "low": low, "high": high, "unit": unit, **claim}))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.0391, 0.0252, 0.0529, "nats"), "0.039 [0.025, 0.053] nats"),
        ((0.123, 0.101, 0.142), "0.12 [0.10, 0.14]"),
        ((123.4, 80.1, 166.0), "123 [80, 166]"),
        ((9.78e-11, 9.78e-11, 9.78e-11), "9.78e-11"),
        ((-0.001, -0.5, 0.5), "0.0 [-0.5, 0.5]"),
        ((float("nan"),) * 3, ""),
    ],
)
def test_numbers_have_the_digits_of_their_interval(numbers, text):
    assert shown(*numbers) == text


def test_a_bound_is_never_printed_on_the_wrong_side_of_its_margin():
    claim = {"side": -1, "margin": 0.02}
    # With one digit it would read "-0.3 [-0.5, 0.0]", which does not lie below -0.02.
    assert shown(-0.26, -0.49, -0.023, **claim) == "-0.260 [-0.490, -0.023]"
    assert shown(-0.26, -0.49, -0.019, **claim) == "-0.3 [-0.5, 0.0]"


def test_tables_show_three_digits_words_and_no_row_numbers():
    frame = pd.DataFrame({"a_b": [1234.5, 0.12345, None], "c": ["<b>", "", "x"]}, index=[4, 7, 9])
    text = pages.table(frame)
    assert re.findall("<th>(.*?)</th>", text) == ["a b", "c"]
    assert re.findall("<td>(.*?)</td>", text) == ["1,234", "&lt;b&gt;", "0.123", "", "", "x"]
    assert ">c</th>" in pages.table(frame.set_index("c")) and pages.digits(7) == "7"


@pytest.mark.parametrize(
    ("low", "high", "kind", "words"),
    [
        (0.03, 0.05, "holds", "holds"),
        (0.003, 0.019, "undone", "holds, but not above chance"),
        (0.01, 0.05, "undone", "holds; open whether above chance"),
        (-0.05, -0.03, "undone", "holds, but not above chance"),
    ],
)
def test_a_verdict_that_its_control_undoes_is_not_green(low, high, kind, words):
    rows = claims(0.3)
    rows.loc[1, ["mean", "low", "high"]] = (low + high) / 2, low, high
    assert pages.outcome(rows, ABOUT) == (kind, words)
    box = pages.claim_box(rows, ABOUT, "cpu")
    assert f'<span class="verdict {kind}">{words}</span>' in box
    assert ('"verdict holds"' in box) == (kind == "holds")


def test_a_claim_that_falls_is_compared_with_a_control_that_falls():
    rows = claims(-0.3).assign(side=[-1, 0])
    assert pages.outcome(rows, ABOUT)[0] == "holds"
    rows.loc[1, ["low", "high"]] = 0.1, 0.2
    assert pages.outcome(rows, ABOUT) == ("undone", "holds, but not above chance")


def test_networks_that_learned_nothing_have_no_verdict():
    rows = claims(0.3).assign(side=0, row="", verdict="", accuracy=0.5)
    box = pages.claim_box(rows, ABOUT, "cpu")
    assert '<span class="verdict open">no verdict</span>' in box and "rise of H" in box
    assert "8 trainings, test accuracy 0.50" in box


def test_a_box_shows_the_decisive_contrast_and_control_and_folds_the_rest():
    row = claims(0.3).iloc[0]
    more = [{**row, "label": "fall of H"}, {**row, "label": "another", "side": 0, "row": ""}]
    rows = pd.concat([claims(0.3), pd.DataFrame(more)], ignore_index=True)
    short, folded = pages.claim_box(rows, ABOUT, "cpu").split("<details>")
    assert "decisive contrast: fall of H" in short and "decisive control: chance" in short
    assert "rise of H" not in short and "another" not in short
    assert all(label in folded for label in ("rise of H", "fall of H", "chance", "another"))
    assert "small CNN on digits, 8 trainings" in short
    # Without any control there is no column for it.
    box = pages.claim_box(rows[rows["side"] != 0], ABOUT, "cpu")
    assert "decisive contrast" in box and "decisive control" not in box


def test_a_finding_states_each_verdict_with_its_number():
    cnn = claims(0.12).assign(setting="cnn on cifar10 (1000 training samples; n = 9)")
    bert = claims(0.01).assign(setting="bert-tiny on sst2", row="open", verdict="open")
    sentence = pages.outcome_sentence(pd.concat([cnn, bert]), ABOUT)
    assert sentence == (
        "H rises: holds in 1 of 2 cases (small CNN on CIFAR-10: 0.12 [0.10, 0.14]); "
        "open in 1 of 2 cases (BERT-tiny on film reviews: 0.01 [-0.01, 0.03])."
    )
    assert pages.outcome_sentence(pd.DataFrame(), ABOUT) == "H rises: not tested here."
    # Cases that would share a name are told apart by their samples.
    more = cnn.assign(setting="cnn on cifar10 (16000 training samples; n = 8)")
    sentence = pages.outcome_sentence(pd.concat([cnn, more]), ABOUT)
    assert "small CNN on CIFAR-10, 1,000 training samples: 0.12" in sentence
    assert "small CNN on CIFAR-10, 16,000 training samples: 0.12" in sentence
    # Cases that another number decides say which.
    other = bert.assign(label=bert["label"] + ", then falls")
    sentence = pages.outcome_sentence(pd.concat([cnn, other]), ABOUT)
    assert f"0.01 [-0.01, 0.03], {other['label'].iloc[0]})" in sentence


def test_a_control_on_the_other_side_turns_more_into_less():
    more = ABOUT.copy()
    more["beyond"] = "more than random removal"
    rows = claims(0.3)
    for low, high, words in [(-0.05, -0.03, "less"), (-0.05, -0.01, "not more")]:
        rows.loc[1, ["mean", "low", "high"]] = (low + high) / 2, low, high
        assert pages.outcome(rows, more) == ("undone", f"holds, but {words} than random removal")


def test_only_claims_of_the_paper_name_the_paper():
    assert "Fig. 3 of the paper: always" in pages.claim_box(claims(0.3), ABOUT, "cpu")
    later = ABOUT.copy()
    later["place"] = "arXiv 2606.08129"
    box = pages.claim_box(claims(0.3), later, "cpu")
    assert "arXiv 2606.08129: always" in box and "paper" not in box


def test_text_of_tables_is_never_markup():
    bad = "<script>x</script>"
    columns = dict.fromkeys(["claim", "setting", "label", "unit", "of", "verdict", "row"], bad)
    box = pages.claim_box(claims(0.3).assign(**columns), ABOUT, bad, "")
    assert "<script" not in box and "&lt;script&gt;" in box
    assert "<script" not in pages.provenance_table({bad: bad})


def test_people_read_names_and_not_ids():
    setting = "tf_efficientnet_lite0.in1k on caltech-ucsd-birds-200-2011, masked at the input"
    assert pages.readable(setting) == "EfficientNet-Lite0 on birds, masked at the input"
    setting = "cnn on cifar10 (1000 training samples; n = 9)"
    assert pages.readable(setting) == "small CNN on CIFAR-10 (1,000 training samples; n = 9)"
    assert pages.readable("my-cnn on cifar100") == "my-cnn on cifar100"


def test_captions_are_plain_text():
    cell = {"cell_type": "markdown", "source": "*See [B](B.ipynb), `x` and $n$.*\n\nProse."}
    assert pages.caption(cell) == "See B, x and n."
    assert pages.caption({**cell, "source": "* a list"}) == pages.caption(None) == ""


def test_every_decisive_control_is_stored_and_names_what_it_tests():
    about = pages.claims_of_paper(ROOT)
    results = editions.largest_claims(ROOT)
    assert ((about["control"] == "") == (about["beyond"] == "")).all()
    for claim, control in about["control"].items():
        rows = results[(results["claim"] == claim) & (results["side"] == 0)]
        found = rows["label"].str.contains(control, regex=False)
        assert not control or rows.empty or claim.startswith("removal_t") or found.any(), claim


@pytest.fixture(scope="module")
def executed():
    """The pages of results of the real book, executed as the site does."""
    made = {}
    for name in ("index", "E_paper_and_book"):
        page = notebooks.read_chapter(ROOT, name)
        where = {"metadata": {"path": str(ROOT / "chapters")}}
        made[name] = NotebookClient(page, timeout=200, resources=where).execute()
    return made


def outputs(page, kind):
    cells = notebooks.code_cells(page)
    shown = [output.data.get(kind, "") for cell in cells for output in cell.outputs]
    return "\n".join(shown)


def test_pages_of_results_hide_their_short_cells(executed):
    for page in executed.values():
        assert not notebooks.defaults(page)
        for cell in notebooks.code_cells(page):
            lines = cell.source.splitlines()
            assert notebooks.has_tag(cell, "remove-input")
            assert len(lines) <= 34 and max(map(len, lines)) <= 100, cell.source


def test_the_landing_page_shows_curves_explorers_and_a_card(executed):
    page = executed["index"]
    text = outputs(page, "text/html")
    assert text.count('<img class="drawn"') == 7 and text.count("data-explorer") == 2
    glued = re.findall(r"\{glue:text\}`(.+?)`", nbformat.writes(page))
    known = [key for cell in page.cells for out in cell.get("outputs", [])
             for key in [out.metadata.get("scrapbook", {}).get("name")] if key]  # fmt: skip
    assert glued and {*glued} <= {*known}
    card = text[text.index("symgen-card") :]
    assert not re.search(r"cifar10|sst2|in1k|nan", card)
    # Of planted tasks: the paper's definition, and the one that separates best.
    planted = card[card.index("What transfers is true") :]
    assert planted.count("<small>untrained baselines") == 1 and "2 of 6 baselines agree" in planted
    assert planted.count("1 of 2 baselines agree") == 2
    # Each row of a claim says how often it was repeated.
    claimed = card.split("What transfers is true")[0].split("<tr>")[2:-1]
    assert claimed
    assert all(re.search(r"<small>\d+ (training|tuning|prompt|photograph)", x) for x in claimed)
    low = card[card.index("Simple interactions generalize better") :]
    rows = editions.largest_claims(ROOT)
    rows = rows[(rows["claim"] == "low_orders") & rows["setting"].str.startswith("cnn on")]
    contrast, control = pages.decisive(rows, pages.claims_of_paper(ROOT).loc["low_orders"])
    assert pages.effect(contrast) in low and pages.effect(control) in low


def test_the_page_of_claims_lists_every_claim_twice(executed):
    text = outputs(executed["E_paper_and_book"], "text/html")
    about = pages.claims_of_paper(ROOT)
    assert text.count("<details><summary>") >= len(about)
    for chapter in about["chapter"].unique():
        assert f'href="{chapter}.html"' in text
