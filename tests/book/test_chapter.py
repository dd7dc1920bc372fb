"""`Chapter`: parameters, tables, claims and provenance inside a notebook."""

import re

import pandas as pd
import pytest

from symgen.book import editions, pages
from symgen.book.chapter import Chapter
from symgen.book.notebooks import PROVENANCE, BookError
from symgen.method import records
from symgen.method.claims import Contrast
from symgen.method.study import Study
from symgen.method.training_curves import measure


@pytest.fixture
def chapter(book, monkeypatch):
    monkeypatch.delenv("SYMGEN_OUT", raising=False)
    return Chapter("00_first", {"n": 3, "settings": {"epochs": 2}, "In": [], "_x": 1, "f": len})


def rising(values, side=1):
    return Contrast("rise of H", values, side, 0.02)


def test_parameters_are_plain_values_with_the_settings(chapter):
    assert chapter.parameters == {"n": 3, "epochs": 2}


def test_tables_have_a_default_place_in_the_book(chapter, book):
    shown = chapter.record("power", pd.DataFrame({"H": [0.123456], "who": ["<b>"]}))
    assert (book / "_build" / "tables" / "00_first.power.csv").exists()
    markup = shown._repr_mimebundle_()["text/html"]
    assert "<td>0.123</td>" in markup and "&lt;b&gt;" in markup
    with pytest.raises(ValueError, match=r"called 'a/b'; expected letters, digits and _"):
        chapter.record("a/b", pd.DataFrame())


def test_a_claim_that_is_measured_in_no_setting_is_a_sentence(chapter):
    unknown = [rising([float("nan")] * 3), rising([0.1, 0.1, 0.2], 0)]
    text = chapter.claim("power", unknown, "cnn")._repr_mimebundle_()["text/html"]
    assert (
        "Not tested with these parameters, since fewer than two trainings give" in text
        and "<table" not in text
    )
    chapter.claim("power", [rising([0.1, 0.12, 0.11])], "vgg")
    text = chapter.claim("power", unknown, "cnn")._repr_mimebundle_()["text/html"]
    assert "vgg, 3 trainings" in text and "cnn" not in text


def test_a_claim_is_judged_recorded_and_shown(chapter, book):
    box = chapter.claim("power", [rising([0.1, 0.12, 0.11]), rising([0.1, 0.1, 0.2], 0)], "cnn")
    markup = box._repr_mimebundle_()["text/html"]
    assert '<span class="verdict holds">holds</span>' in markup and "<td>control</td>" in markup
    assert "cnn, 3 trainings" in markup and "<td>above 0.02</td>" in markup
    assert pages.CAPTION and 'data-claim="power" data-preset="quick"' in markup
    chapter.claim("power", [rising([0.0, 0.01, 0.0])], "vgg", unit="prompts")
    again = chapter.claim("power", [rising([0.1, 0.3, -0.2])], "cnn")
    assert again._repr_mimebundle_()["text/html"].count("<span") == 2
    table = pd.read_csv(chapter.folder / "00_first.claims.csv", keep_default_na=False)
    verdicts = table.set_index("setting")["verdict"].to_dict()
    assert verdicts == {"vgg": "fails", "cnn": "open"} and set(table["of"]) == {
        "prompts",
        "trainings",
    }
    recorded = editions.read_tables(book, "claims", chapter.folder)
    assert set(recorded["edition"]) == {"quick", "cpu", "run"}
    assert set(chapter.results("claims")["edition"]) == {"quick", "cpu", "run"}
    assert chapter.provenance().bundle[PROVENANCE]["reads"] == ["claims"]


def test_a_claim_is_judged_by_its_rule_in_several_settings(chapter, monkeypatch):
    monkeypatch.setattr("symgen.method.claims.power", lambda table: [rising(table)])
    box = chapter.judge("power", {"cnn": [0.1, 0.12, 0.11], "vgg": [0.0, 0.01, 0.0]}, "tunings")
    assert "cnn, 3 tunings" in box._repr_mimebundle_()["text/html"]
    table = pd.read_csv(chapter.folder / "00_first.claims.csv").set_index("setting")
    assert table["verdict"].to_dict() == {"cnn": "holds", "vgg": "fails"}


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


def test_provenance_adds_seconds_and_devices_of_the_trainings_that_were_read(
    chapter, tmp_path, monkeypatch
):
    monkeypatch.setenv("SYMGEN_TRAININGS", str(tmp_path / "trainings"))
    monkeypatch.setenv("SYMGEN_RECORD", "abc1234")
    study = Study.of({"n": 4})
    for seed in (0, 10, 20):
        rows = pd.DataFrame([(seed, 0, "H", None, None, 0.5)], columns=records.COLUMNS)
        records.append_measured(study.settings, rows, 500.0)
    assert "measured earlier" not in repr(chapter.provenance())
    records.READ.clear()  # as in another run
    for _ in range(2):  # a training that is read twice counts once
        measure(study, seeds=[0, 10])
    shown = chapter.provenance(source="an <archive>").bundle
    record = shown[PROVENANCE]
    assert record["reused"] == 1000 and record["seconds"] >= 1000 and record["batch"] > 0
    place = record["measured_on"][0]
    assert f"of which 1,000 s are trainings measured earlier on {place}" in shown["text/plain"]
    assert "an &lt;archive&gt;" in shown["text/html"]
    again = Chapter("00_first", {})
    assert again.provenance().bundle[PROVENANCE]["reused"] == 0


def test_tables_show_three_digits_words_and_no_row_numbers():
    frame = pd.DataFrame({"test_loss": [1.23456, float("nan")], "name": ["<b>", "y"]}, index=[4, 7])
    text = pages.table(frame)
    assert re.findall("<th>(.*?)</th>", text) == ["test loss", "name"]
    assert re.findall("<td>(.*?)</td>", text) == ["1.23", "&lt;b&gt;", "", "y"]
    assert ">name</th>" in pages.table(frame.set_index("name"))
    assert pages.effect({"mean": -0.001, "low": -0.5, "high": 0.5, "unit": ""}) == "0.0 [-0.5, 0.5]"
