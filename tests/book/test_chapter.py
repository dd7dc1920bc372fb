"""`Chapter`: parameters, tables, claims and provenance inside a notebook."""

import json

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from book.small_book import PARAMETERS
from symgen.book import editions, pages
from symgen.book.chapter import Chapter
from symgen.book.notebooks import PROVENANCE, BookError
from symgen.method.statistics import Contrast


@pytest.fixture
def chapter(book, monkeypatch):
    monkeypatch.delenv("SYMGEN_OUT", raising=False)
    return Chapter("00_first", {"n": 3, "settings": {"epochs": 2}, "In": [], "_x": 1, "f": len})


def rising(values, side=1):
    return Contrast("rise of H", values, side, 0.02)


def test_outside_of_notebooks_parameters_are_those_of_the_chapter_or_all_plain_values(chapter):
    assert chapter.parameters == {"n": 3, "epochs": 2}
    given = {"n": 3, "preset": "cpu", "other": 2}
    assert Chapter("00_first", given).parameters == {"n": 3, "preset": "cpu"}
    given |= {"_x": 1, "f": len, "In": [], "Out": {}, "settings": {"epochs": 2}}
    mine = Chapter("mine", given).parameters
    assert mine == {"n": 3, "preset": "cpu", "other": 2, "epochs": 2}


def test_variables_of_a_first_pass_are_no_parameters_of_the_second(book):
    """A reader runs all cells twice in one kernel; the second time, results are there already."""
    shell = InteractiveShell()
    cells = [
        "%matplotlib --list\n(",  # a cell with a mistake
        PARAMETERS + "\nextra: int = 4",
        "from symgen.book.chapter import Chapter\nchapter = Chapter('renamed_copy', globals())",
        "baselines = 7\nnoise = [1]\nmasking = {'a': 1}",
    ]
    seen = []
    injected = "# Parameters\npreset = 'cpu'\nn = 5\n"  # as papermill does
    for passes in ([*cells], [*cells[:2], injected, *cells[2:]]):
        for cell in passes:
            shell.run_cell(cell, store_history=True, silent=False)
        seen.append(dict(shell.user_ns["chapter"].parameters))
    first = {"preset": "quick", "n": 3, "rate": 0.1, "extra": 4, "epochs": 1}
    assert seen == [first, {**first, "preset": "cpu", "n": 5}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 3}, "settings holds 'n', which is a parameter of its own"),
        (3, "settings is 3; expected a mapping"),
        ({"tau": 0.5}, '"tau" is unknown'),
        ({"sample": 3}, 'Did you mean "samples"'),
    ],
)
def test_settings_that_would_be_ignored_are_refused(book, settings, message):
    with pytest.raises(ValueError, match=message):
        Chapter("00_first", {"n": 3, "settings": settings})


def test_tables_have_a_default_place_in_the_book(chapter, book):
    shown = chapter.record("power", pd.DataFrame({"H": [0.123456], "who": ["<b>"]}))
    assert (book / "_build" / "tables" / "00_first.power.csv").exists()
    markup = shown._repr_mimebundle_()["text/html"]
    assert "<td>0.123</td>" in markup and "&lt;b&gt;" in markup
    with pytest.raises(ValueError, match=r"called 'a/b'; expected letters, digits and _"):
        chapter.record("a/b", pd.DataFrame())


def test_a_claim_that_is_measured_in_no_setting_is_a_sentence(chapter):
    unknown = [rising([float("nan")] * 3), rising([0.1, 0.1, 0.2], 0)]
    text = chapter.claim("power", unknown, "our net")._repr_mimebundle_()["text/html"]
    assert (
        "Not tested with these parameters, since fewer than two trainings give" in text
        and "<table" not in text
    )
    chapter.claim("power", [rising([0.1, 0.12, 0.11])], "other net")
    text = chapter.claim("power", unknown, "our net")._repr_mimebundle_()["text/html"]
    assert "other net, 3 trainings" in text and "our net" not in text


def test_a_claim_is_judged_recorded_and_shown(chapter, book):
    box = chapter.claim("power", [rising([0.1, 0.12, 0.11]), rising([0.1, 0.1, 0.2], 0)], "our net")
    markup = box._repr_mimebundle_()["text/html"]
    assert '<span class="verdict holds">holds</span>' in markup and "<td>control</td>" in markup
    assert "our net, 3 trainings" in markup and "<td>above 0.02</td>" in markup
    assert pages.CAPTION and 'data-claim="power" data-preset="quick"' in markup
    chapter.claim("power", [rising([0.0, 0.01, 0.0])], "other net", unit="prompts")
    again = chapter.claim("power", [rising([0.1, 0.3, -0.2])], "our net")
    assert again._repr_mimebundle_()["text/html"].count("<span") == 2
    table = pd.read_csv(chapter.folder / "00_first.claims.csv", keep_default_na=False)
    verdicts = table.set_index("setting")["verdict"].to_dict()
    assert verdicts == {"other net": "fails", "our net": "open"} and set(table["of"]) == {
        "prompts",
        "trainings",
    }
    recorded = editions.read_tables(book, "claims", chapter.folder)
    assert set(recorded["edition"]) == {"quick", "cpu", "run"}
    assert set(chapter.results("claims")["edition"]) == {"quick", "cpu", "run"}
    assert chapter.provenance().bundle[PROVENANCE]["reads"] == ["claims"]


def test_a_claim_is_judged_by_its_rule_in_several_settings(chapter, monkeypatch):
    monkeypatch.setattr("symgen.method.claims.power", lambda table: [rising(table)])
    box = chapter.judge(
        "power", {"our net": [0.1, 0.12, 0.11], "other net": [0.0, 0.01, 0.0]}, "tunings"
    )
    assert "our net, 3 tunings" in box._repr_mimebundle_()["text/html"]
    table = pd.read_csv(chapter.folder / "00_first.claims.csv").set_index("setting")
    assert table["verdict"].to_dict() == {"our net": "holds", "other net": "fails"}


def test_a_claim_that_cannot_be_tested_is_one_sentence(chapter):
    for contrasts in ([], [rising([0.1])]):
        shown = chapter.claim("power", contrasts)
        assert repr(shown) == (
            "Not tested with these parameters, since fewer than two trainings give a number: "
            "H first rises & then falls."
        )
        assert "<table" not in shown._repr_mimebundle_()["text/html"]
    assert not (chapter.folder / "00_first.claims.csv").exists()


def test_an_unknown_claim_is_an_error(chapter):
    with pytest.raises(BookError, match=r'claim "pover" is unknown.*Did you mean "power"'):
        chapter.claim("pover", [rising([1.0, 2.0])])


def test_provenance_adds_seconds_and_devices_of_the_trainings_that_were_read(chapter):
    assert "measured earlier" not in repr(chapter.provenance())
    used = {("s", 0): (500.0, "<gpu>"), ("s", 1): (500.0, "<gpu>"), ("s", 2): (0.0, "cpu")}
    chapter.trainings.used.update(used)
    shown = chapter.provenance().bundle
    record = shown[PROVENANCE]
    assert record["reused"] == 1000 and record["seconds"] >= 1000 and record["batch"] > 0
    assert record["measured_on"] == ["<gpu>"]
    assert "of which 1,000 s are trainings measured earlier on <gpu>" in shown["text/plain"]
    assert "&lt;gpu&gt;" in shown["text/html"]
    again = Chapter("00_first", {})
    assert again.provenance().bundle[PROVENANCE]["reused"] == 0


def test_a_run_says_when_trainings_stop_and_if_they_are_kept(chapter, book, monkeypatch):
    assert (chapter.trainings.commit, chapter.trainings.until) == ("", float("inf"))
    orders = {"out": str(book / "out"), "until": 5.0, "commit": "abc1234"}
    monkeypatch.setenv("SYMGEN_RUN", json.dumps(orders))
    trainings = Chapter("00_first", {}).trainings
    assert (trainings.commit, trainings.until) == ("abc1234", 5.0)


def test_a_finding_is_a_list_of_sentences_with_names_that_people_use(chapter):
    shown = chapter.finding("cnn on cifar10: H is 0.4.", "The rest.")
    assert repr(shown) == "Small CNN on CIFAR-10: H is 0.4.\nThe rest."
    page = shown._repr_mimebundle_()["text/html"]
    assert "<li>Small CNN on CIFAR-10: H is 0.4.</li><li>The rest.</li>" in page
