"""Texts: planted ones, their parts and pieces, and tokenizers."""

import json

import numpy as np
import pytest
import torch

from symgen.data.datasets import load_dataset
from symgen.data.hub import HELD_OUT
from symgen.data.planted import (
    ANSWERS,
    planted_answer,
    planted_outputs,
    planted_reason,
    planted_score,
)
from symgen.data.texts import (
    instructions_of,
    load_instructions,
    load_texts,
    load_tokenizer,
    pieces_of,
    split_texts,
    train_tokenizer,
)
from symgen.masking.prompts import Prompt
from symgen.transforms import moebius

pytest.importorskip("transformers")

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "In winter the doctor of the castle will find black amber near the river .",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 40, 30)


def test_planted_sentences_have_ten_content_words_and_balanced_labels():
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    train, test = load_texts("planted-sentiment"), load_texts("planted-sentiment", "test")
    assert (len(train), len(test)) == (4000, 1000) and not set(train) & set(test)
    for text in train:
        content = [word for word in text.split() if word not in ENGLISH_STOP_WORDS]
        assert len(content) == len(set(content)) == 10
    labels = load_dataset("planted-sentiment").part("target").labels
    assert labels.bincount().tolist() == [1000, 1000]


def test_planted_score_is_an_or_of_synonyms_under_negation():
    words = ["hardly", "superb", "charming", "river"]
    v = torch.zeros(16, dtype=torch.float64)
    for state in range(16):
        v[state] = planted_score(" ".join(w for i, w in enumerate(words) if state >> i & 1))
    both = torch.tensor([bool(s & 0b0110) for s in range(16)]).double()
    negated = torch.tensor([bool(s & 1) for s in range(16)]).double()
    assert torch.equal(v, 2 * both - 4 * both * negated)
    # "hardly superb" as an AND; the river takes part in nothing.
    assert moebius(v)[0b0011] == -4 and moebius(v)[8:].abs().max() == 0


def test_text_parts_pad_to_the_longest_of_the_batch():
    data = load_dataset("planted-sentiment", train_size=60)
    part, tokenizer = data.part("target"), data.tokenizer
    x, y = part.batch([0, 1, 2, 3])
    lengths = x["attention_mask"].sum(1)
    assert x["input_ids"].shape == (4, int(lengths.max())) and y.shape == (4,)
    assert (x["input_ids"][x["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    alone, _ = part.batch([2])
    assert torch.equal(alone["input_ids"][0], x["input_ids"][2][: lengths[2]])
    ids = x["input_ids"][2][: lengths[2]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == part.show(2)
    assert data.sample(4).show(0) in part.texts


def test_text_augmentation_hides_a_tenth_of_the_tokens():
    data = load_dataset("planted-sentiment", train_size=200)
    part, tokenizer = data.part("target"), data.tokenizer
    x, _ = part.augment(range(200), torch.Generator().manual_seed(0))
    plain, _ = part.batch(range(200))
    changed = x["input_ids"] != plain["input_ids"]
    assert (x["input_ids"][changed] == tokenizer.mask_token_id).all()
    assert 0.07 < changed.sum() / plain["attention_mask"].sum() < 0.11
    assert (x["input_ids"][:, 0] == tokenizer.cls_token_id).all()


def test_tokenizer_trained_on_the_texts():
    texts = load_texts("planted-sentiment")
    tokenizer, again = load_tokenizer(None, texts), load_tokenizer(None, texts)
    assert tokenizer.get_vocab() == again.get_vocab()
    for text in texts[:50]:
        assert tokenizer.tokenize(text) == text.split()
    # Words that were never met are put together from pieces; unknown letters are unknown.
    assert "[UNK]" not in tokenizer.tokenize("Unwatchable filmmakers")
    assert tokenizer.tokenize("λ") == ["[UNK]"]
    assert len(load_tokenizer(200, texts[:100] * 2)) <= 200


def test_tokenizer_without_mask_token_is_refused():
    tokenizer = load_tokenizer(None, ["some words", "more words"])
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"has no mask token, which masking words needs; set"):
        load_tokenizer(tokenizer, [])
    with pytest.raises(ValueError, match=r"tokenizer=7: a vocabulary needs at least 200"):
        load_tokenizer(7, ["some words"])


def test_the_planted_world_says_what_it_plants():
    train, test = (load_texts("planted-facts", split) for split in ("train", "test"))
    assert len(train) > 11000 and len(test) > 1900
    for text in test[:300]:
        verb, answer, dot = text.split()[-3:]
        words = text.split()[:-3]
        assert dot == "." and answer == planted_answer(verb, words)
        prompt = Prompt.of(" ".join(text.split()[:-2]), f" {answer}")
        assert len(prompt.words) == 10
        kind, reason = planted_reason(verb, prompt.words)
        assert kind == ("or" if verb == "get" else "and")
        for word in reason:
            rest = [w for w in words if w not in (reason if verb == "get" else (word,))]
            assert planted_answer(verb, rest) is None
    other = load_texts("planted-facts-2", "test")
    kept = {v: planted_answer(v, other[0].split()) for v in ANSWERS}
    moved = {v: planted_answer(v, other[0].split(), 1) for v in ANSWERS}
    assert [v for v in kept if kept[v] == moved[v]] == ["get"]


def test_the_loss_is_that_of_the_last_words_or_of_the_answer(tokenizer, tmp_path):
    (ids, first), *_ = pieces_of(TEXTS, tokenizer, 64, tail=2)
    assert tokenizer.decode(ids[first:]).split()[0] in ("boat.", "boat")
    # Of a text that is too long the end is kept, where the loss is.
    for length in (2, 3, 5):
        for (part, begin), text in zip(
            pieces_of(TEXTS, tokenizer, length, tail=2), TEXTS, strict=True
        ):
            ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
            assert part.tolist() == ids[-length:]
            assert 1 <= begin < len(part)
    rows = [{"instruction": "take", "input": "the rope", "output": "long boat"}]
    (ids, first), *_ = instructions_of(rows, tokenizer)
    assert tokenizer.decode(ids[first:], skip_special_tokens=True) == "long boat"
    tokenizer.chat_template = "{% for m in messages %}user {{ m.content }} sailor {% endfor %}"
    try:
        (told, start), *_ = instructions_of(rows, tokenizer)
    finally:
        tokenizer.chat_template = None
    assert tokenizer.decode(told[:start]).split()[-1] == "sailor"
    with pytest.raises(ValueError, match=r"row 0 has \['question'\]; expected .* instruction"):
        instructions_of([{"question": "x"}], tokenizer)
    with pytest.raises(ValueError, match="no answer begins within 2 tokens"):
        instructions_of(rows, tokenizer, length=2)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(rows[0]) + "\n\n")
    assert load_instructions(str(path)) == rows
    path.write_text("{")
    with pytest.raises(ValueError, match=r"line 1 of .*rows\.jsonl is no JSON"):
        load_instructions(str(path))
    with pytest.raises(ValueError, match="expected instruction, output"):
        load_instructions("planted-facts")


def test_texts_in_three_parts(mirror, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    for name in ("planted-facts", "roneneldan/TinyStories"):
        parts = split_texts(name)
        sets = {k: set(v) for k, v in parts.items()}
        assert abs(len(parts["target"]) - len(parts["baseline"])) <= 1
        assert not sets["target"] & sets["baseline"] and not sets["test"] & sets["target"]


@pytest.mark.parametrize("held", HELD_OUT)
def test_a_split_that_is_held_out_goes_by_several_names(tmp_path, monkeypatch, held):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    (tmp_path / "a/b").mkdir(parents=True)
    for split, count in (("train", 10), (held, 3)):
        lines = [json.dumps({"text": f"{split} {i}"}) for i in range(count)]
        (tmp_path / f"a/b/{split}.jsonl").write_text("\n".join(lines))
    found = {name: len(texts) for name, texts in split_texts("a/b").items()}
    assert found == {"target": 5, "baseline": 5, "test": 3}


def test_planted_outputs_are_the_score_of_what_is_left():
    part = load_dataset("planted-sentiment").part("test")
    texts, labels = [part.show(i) for i in range(12)], part.labels[:12]
    draw = np.random.default_rng(0).choice
    words = [draw(sorted({*text.split()}), 8, replace=False).tolist() for text in texts]
    found = planted_outputs(texts, words, labels)
    assert found.shape == (12, 256) and found.dtype == torch.float64
    # On the whole sentence the score is for its class, and there is a sentence with a negator.
    assert (found[:, -1] == 2).all() and (found == -2).any()
    for text, own, label, row in zip(texts, words, labels, found, strict=True):
        for state in range(256):
            gone = {word for i, word in enumerate(own) if not state >> i & 1}
            left = " ".join(word for word in text.split() if word not in gone)
            assert row[state] == planted_score(left) * (1 if label else -1)
