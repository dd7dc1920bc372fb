"""Texts: planted ones, their parts and pieces, and tokenizers."""

import copy

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from write_mirror import MIRROR

from symgen.data.datasets import load_dataset
from symgen.data.planted import (
    ANSWERS,
    planted_answer,
    planted_effects,
    planted_facts,
    planted_outputs,
    planted_score,
)
from symgen.data.text_parts import load_tokenizer
from symgen.data.texts import (
    TokenPart,
    instructions_of,
    load_texts,
    pieces_of,
    split_texts,
    train_tokenizer,
)
from symgen.transforms import interaction_order, moebius

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "In winter the doctor of the castle will find black amber near the river .",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 40, 30)


def test_planted_sentences_have_ten_content_words_and_balanced_labels():
    train, test = load_texts("planted-sentiment"), load_texts("planted-sentiment", "test")
    assert (len(train), len(test)) == (4000, 1000) and not set(train) & set(test)
    for text in train[:500]:
        content = [word for word in text.split() if word not in ENGLISH_STOP_WORDS]
        assert len(content) == len(set(content)) == 10
    labels = load_dataset("planted-sentiment").part("target").labels
    assert labels.bincount().tolist() == [1000, 1000]


def test_planted_score_is_an_or_of_synonyms_under_negation():
    words = ["hardly", "superb", "charming", "river"]
    v = torch.zeros(16, dtype=torch.float64)
    for state in range(16):
        v[state] = planted_score(" ".join(w for i, w in enumerate(words) if state >> i & 1))
    either = torch.tensor([bool(s & 0b0110) for s in range(16)]).double()
    negated = torch.tensor([bool(s & 1) for s in range(16)]).double()
    assert torch.equal(v, 2 * either - 4 * either * negated)
    # "hardly superb" is an AND; the river takes part in no effect.
    assert moebius(v)[0b0011] == -4 and moebius(v)[8:].abs().max() == 0


def test_planted_outputs_are_the_score_of_the_remaining_words():
    part = load_dataset("planted-sentiment").part("test")
    texts, labels = [part.show(i) for i in range(6)], part.labels[:6]
    draw = np.random.default_rng(0).choice
    words = [draw(sorted({*text.split()}), 6, replace=False).tolist() for text in texts]
    found = planted_outputs(texts, words, labels)
    assert found.shape == (6, 64) and found.dtype == torch.float64 and (found[:, -1] == 2).all()
    for text, variables, label, row in zip(texts, words, labels, found, strict=True):
        for state in range(64):
            masked = {word for i, word in enumerate(variables) if not state >> i & 1}
            left = " ".join(word for word in text.split() if word not in masked)
            assert row[state] == planted_score(left) * (1 if label else -1)


def test_planted_effects():
    effects, again = planted_effects(5, 4, 2, seed=1), planted_effects(5, 4, 2, seed=1)
    assert torch.equal(effects, again) and ((effects != 0).sum(-1) == 2).all()
    size, order = effects[effects != 0].abs(), interaction_order(4)
    assert size.min() >= 0.5 and size.max() <= 1.5 and not effects[..., order > 3].any()
    assert not effects[:, 1, order < 2].any()


def test_the_planted_world_follows_its_rules():
    assert len(load_texts("planted-facts")) > 11000
    for text in planted_facts("test").take(range(200)):
        verb, answer, dot = text.split()[-3:]
        words = text.split()[:-3]
        assert dot == "." and answer == planted_answer(verb, words)
        decisive = [w for w in words if planted_answer(verb, [x for x in words if x != w]) is None]
        assert len(decisive) == {"take": 2, "find": 3, "get": 0}[verb]
    words = planted_facts("test", domain=1).take([0])[0].split()
    same = [v for v in ANSWERS if planted_answer(v, words) == planted_answer(v, words, 1)]
    assert same == ["get"]


def test_text_parts_pad_to_the_longest_of_the_batch_and_hide_a_tenth_of_the_tokens():
    data = load_dataset("planted-sentiment", train_size=200)
    part, tokenizer = data.part("target"), data.tokenizer
    x, y = part.batch([0, 1, 2, 3])
    lengths = x["attention_mask"].sum(1)
    assert x["input_ids"].shape == (4, int(lengths.max())) and y.shape == (4,)
    assert (x["input_ids"][x["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    alone, _ = part.batch([2])
    assert torch.equal(alone["input_ids"][0], x["input_ids"][2][: lengths[2]])
    assert tokenizer.decode(alone["input_ids"][0], skip_special_tokens=True) == part.show(2)
    x, _ = part.augment(range(200), torch.Generator().manual_seed(0))
    plain, _ = part.batch(range(200))
    changed = x["input_ids"] != plain["input_ids"]
    assert (x["input_ids"][changed] == tokenizer.mask_token_id).all()
    assert 0.07 < changed.sum() / plain["attention_mask"].sum() < 0.11
    assert (x["input_ids"][:, 0] == tokenizer.cls_token_id).all()
    short = load_dataset("planted-sentiment", train_size=60, max_length=7)
    assert short.part("target").batch(range(60))[0]["input_ids"].shape == (60, 7)


def test_tokenizer_trained_on_the_texts():
    texts = load_texts("planted-sentiment")
    tokenizer, again = load_tokenizer(None, texts), load_tokenizer(None, texts)
    assert tokenizer.get_vocab() == again.get_vocab()
    for text in texts[:50]:
        assert tokenizer.tokenize(text) == text.split()
    # Unseen words are put together from pieces; unseen letters are unknown.
    assert "[UNK]" not in tokenizer.tokenize("Unwatchable filmmakers")
    assert tokenizer.tokenize("λ") == ["[UNK]"]
    assert len(load_tokenizer(200, texts[:100] * 2)) <= 200


def test_unusable_tokenizers(tmp_path):
    tokenizer = load_tokenizer(None, ["some words", "more words"])
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(str(tmp_path / "saved"), []).get_vocab() == tokenizer.get_vocab()
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"has no mask token, which masking needs; set"):
        load_tokenizer(tokenizer, [])
    with pytest.raises(ValueError, match=r"tokenizer=7: a vocabulary needs at least 200"):
        load_tokenizer(7, ["some words"])


def test_pieces_and_the_place_of_the_loss(tokenizer):
    (ids, first), *_ = pieces_of(TEXTS, tokenizer, 64, tail=2)
    assert tokenizer.decode(ids[first:]).split()[0].startswith("boat")
    # The end of a long text is kept, because the loss is there.
    for length in (2, 5):
        pieces = pieces_of(TEXTS, tokenizer, length, tail=2)
        for (part, begin), text in zip(pieces, TEXTS, strict=True):
            ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
            assert part.tolist() == [ids[0], *ids[1 - length :]] and 1 <= begin < len(part)
    x, y = TokenPart([(torch.tensor([5, 6, 7]), 2), (torch.tensor([8]), 0)]).batch([1, 0])
    assert x.tolist() == [[8, 0, 0], [5, 6, 7]]
    assert y.tolist() == [[8, -100, -100], [-100, -100, 7]]


@pytest.mark.parametrize("start", ["[BOS]", ""])
def test_every_piece_begins_as_the_tokenizer_begins_a_text(start):
    tokenizer = train_tokenizer(TEXTS, 40, 30)
    if not start:
        tokenizer.backend_tokenizer.post_processor = None
    before = [tokenizer.bos_token_id] if start else []
    pieces = pieces_of(TEXTS, tokenizer, 6)
    assert all(piece[: len(before)].tolist() == before and first == 1 for piece, first in pieces)
    joined = torch.cat([piece[len(before) :] for piece, _ in pieces]).tolist()
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    end = [tokenizer.eos_token_id]
    assert joined == [*ids[0], *end, *ids[1], *end]
    assert {len(piece) for piece, _ in pieces[:2]} == {6}
    with pytest.raises(ValueError, match=rf"length=1: a piece holds {len(before)} special tokens"):
        pieces_of(TEXTS, tokenizer, 1)


def test_instructions(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    rows = [{"instruction": "take", "input": "the rope", "output": "long boat"}]
    (ids, first), *_ = instructions_of(rows, tokenizer)
    assert tokenizer.decode(ids[first:], skip_special_tokens=True) == "long boat"
    assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
    with pytest.raises(ValueError, match="no answer begins within 2 tokens"):
        instructions_of(rows, tokenizer, length=2)
    tokenizer.eos_token = tokenizer.pad_token
    tokenizer.chat_template = "{% for m in messages %}user {{ m.content }} sailor {% endfor %}"
    (ids, first), *_ = instructions_of(rows, tokenizer)
    assert ids[-1] == tokenizer.eos_token_id == 0
    assert tokenizer.decode(ids[:first]).split()[-1] == "sailor"


@pytest.mark.parametrize("name", ["planted-facts", "roneneldan/TinyStories", "rajpurkar/squad"])
def test_texts_in_three_parts(monkeypatch, name):
    monkeypatch.setenv("SYMGEN_DATA", str(MIRROR))
    texts = load_texts(name)
    assert len(texts) == len(set(texts)) >= 110 and all(len(text) > 50 for text in texts)
    parts = split_texts(name)
    sets = {k: set(v) for k, v in parts.items()}
    assert abs(len(parts["target"]) - len(parts["baseline"])) <= 1 and len(parts["test"]) >= 20
    assert not sets["target"] & sets["baseline"] and not sets["test"] & sets["target"]
