"""Input variables: patches of any map size, words of any tokenizer, spans that a tokenizer cuts."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from symgen.masking.patches import ImageVariables, draw_patches
from symgen.masking.spans import TextVariables, draw_words, phrase_spans, word_spans

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SENTENCE = "The unforgettable film, and it's not the dull one; we loved its brave heroes!"
SIDE = st.integers(5, 40)


def fast(tokenizer, **special):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.fixture(scope="module")
def wordpiece():
    """BERT's kind: punctuation apart, long words in pieces, [CLS] and [SEP] around."""
    text = (
        "[PAD] [UNK] [CLS] [SEP] [MASK] , ; ! ' the film and it s not dull one we loved its brave"
    )
    vocabulary = f"{text} heroes un ##forget ##table".split()
    model = tokenizers.models.WordPiece(
        {word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return fast(
        tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(scope="module", params=[True, False])
def bytelevel(request):
    """GPT-2's kind, with and without the leading space in a piece's offsets."""
    pieces = ["The", "Ġearth", "Ġrev", "olves", "Ġaround", "Ġthe", "Ġsun", ".Ġ", "Ġ", "."]
    letters = sorted(set("".join(pieces)) | set(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    merges, vocabulary = [], {letter: i for i, letter in enumerate(letters)}
    for piece in pieces:
        for end in range(2, len(piece) + 1):
            if piece[:end] not in vocabulary:
                vocabulary[piece[:end]] = len(vocabulary)
                merges.append((piece[: end - 1], piece[end - 1]))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=request.param)
    return fast(tokenizer)


def pieces_of(tokenizer, text, group):
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    return [tokens[position] for position in group]


@given(
    height=SIDE,
    width=SIDE,
    grid=st.integers(1, 5),
    missing=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_patches_tile_maps_of_any_size(height, width, grid, missing, seed):
    n = max(1, grid**2 - missing)
    variables = draw_patches(3, n=n, grid=grid, seed=seed)
    owners, painted = variables.owners(height, width), torch.full((3, height, width), n)
    left, top, right, bottom = variables.boxes(height, width).unbind(2)
    for sides in (right - left, bottom - top):
        assert sides.min() >= 1 and sides.max() - sides.min() <= 1  # as equal as possible
    for sample in range(3):
        for i in range(n):
            box = slice(top[sample, i], bottom[sample, i]), slice(left[sample, i], right[sample, i])
            assert (painted[sample][box] == n).all()
            painted[sample][box] = i
    assert torch.equal(owners, painted)
    assert (owners < n).all() or n < grid**2  # with all grid cells drawn, each pixel is in one


def test_draw_of_a_sample_depends_on_seed_and_index_only():
    few, many = draw_patches(3, seed=5), draw_patches(50, seed=5)
    assert torch.equal(few.patches, many.patches[:3])
    assert not torch.equal(few.patches, draw_patches(3, seed=6).patches)
    assert len({tuple(row) for row in many.patches.tolist()}) == 50
    assert all(len(set(row)) == 10 and max(row) < 25 for row in many.patches.tolist())
    counts = np.bincount(draw_patches(2000, n=10).patches.flatten(), minlength=25)
    assert (abs(counts / 2000 - 0.4) < 0.05).all()


def test_samples_can_be_selected():
    variables = draw_patches(6, n=4)
    assert torch.equal(variables[2].patches, variables.patches[2:3])
    assert torch.equal(variables[-1].patches, variables.patches[5:])
    assert torch.equal(variables[1:3].patches, variables.patches[1:3])
    assert torch.equal(variables[[4, 0]].patches, variables.patches[[4, 0]])
    assert len(variables[torch.tensor([1, 2])]) == 2
    with pytest.raises(IndexError):
        variables[6]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"n": 26}, r"26 variables .* 5x5 grid, which has 25 patches"),
        ({"n": 0}, r"use n in 1\.\.25"),
    ],
)
def test_too_few_patches(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_patches(2, **arguments)


def test_too_few_pixels():
    for name in ("owners", "boxes"):
        with pytest.raises(ValueError, match=r"4 pixels cannot be cut into 5 patches.*grid=4"):
            getattr(draw_patches(2), name)(9, 4)


def test_hand_made_patches():
    owners = ImageVariables(torch.tensor([[3, 0]]), grid=2).owners(2, 2)
    assert owners.tolist() == [[[1, 2], [2, 0]]]


def test_content_words_of_a_sentence(wordpiece):
    variables, kept = draw_words([SENTENCE], wordpiece, n=6)
    assert kept.tolist() == [0]
    assert variables.words == (("unforgettable", "film", "dull", "loved", "brave", "heroes"),)
    assert pieces_of(wordpiece, SENTENCE, variables.groups[0][0]) == ["un", "##forget", "##table"]
    assert pieces_of(wordpiece, SENTENCE, variables.groups[0][2]) == ["dull"]
    assert variables.lengths == (len(wordpiece(SENTENCE)["input_ids"]),)
    owners = variables.owners(variables.lengths[0] + 3)
    assert owners.shape == (1, variables.lengths[0] + 3)
    assert owners[0].bincount()[:6].tolist() == [3, 1, 1, 1, 1, 1]


def test_drawn_words_do_not_depend_on_other_texts(wordpiece):
    texts = ["!!", SENTENCE, SENTENCE, "dull film"]
    variables, kept = draw_words(texts, wordpiece, n=3, seed=4)
    alone, _ = draw_words(texts[:2], wordpiece, n=3, seed=4)
    assert kept.tolist() == [1, 2]
    assert variables.groups[0] == alone.groups[0]
    draws = [draw_words([SENTENCE], wordpiece, n=3, seed=seed)[0].words for seed in range(20)]
    assert len(set(draws)) > 5
    selected = variables[[1]]
    assert selected.groups == variables.groups[1:] and selected.lengths == variables.lengths[1:]
    assert variables[0].words == variables.words[:1]


def test_words_beyond_max_length_are_not_drawn(wordpiece):
    variables, _ = draw_words([SENTENCE], wordpiece, n=1, max_length=6)
    assert variables.words == (("unforgettable",),) and variables.lengths == (6,)
    with pytest.raises(ValueError, match="n = 1 content words; the richest has 0"):
        draw_words([SENTENCE], wordpiece, n=1, max_length=5)  # [CLS] the un ##forget [SEP]


def test_too_few_words(wordpiece):
    with pytest.raises(
        ValueError, match=r"none of the 1 texts has n = 10 .* richest has 6.*n <= 6"
    ):
        draw_words([SENTENCE], wordpiece)
    with pytest.raises(ValueError, match="text 1 is None; expected a string. Leave rows"):
        draw_words([SENTENCE, None], wordpiece, n=3)
    with pytest.raises(ValueError, match="expected several texts, got one: .The unforgettable"):
        draw_words(SENTENCE, wordpiece, n=3)


def test_spans_count_the_leading_space_as_inside(bytelevel, wordpiece):
    text = "The earth revolves around the sun."
    spans = phrase_spans(text, ["earth", "revolves", "the sun"])
    variables = word_spans(text, spans, bytelevel)
    groups = [pieces_of(bytelevel, text, group) for group in variables.groups[0]]
    assert groups == [["Ġearth"], ["Ġrev", "olves"], ["Ġthe", "Ġsun"]]
    assert variables.words == (("earth", "revolves", "the sun"),)
    assert word_spans(text, spans, wordpiece).n == 3  # the same spans, another tokenizer
    both = TextVariables.stack([variables, variables])
    assert len(both) == 2 and both.lengths == variables.lengths * 2


def test_characters_of_several_byte_pieces(bytelevel):
    text = "The sun\u2019s"
    (group,) = word_spans(text, [(7, 8)], bytelevel).groups[0]
    assert len(group) == 3


def test_a_span_that_a_tokenizer_cuts_shows_the_pieces(bytelevel):
    text = "The earth revolves"
    with pytest.raises(ValueError, match=r"splits 'revol', span \(10, 15\).*'olves'"):
        word_spans(text, [(10, 15)], bytelevel)


@pytest.mark.parametrize(
    "spans, message",
    [
        ([(4, 99)], r"span \(4, 99\) is outside the text of 18 characters"),
        ([(5, 5)], "0 <= start < end"),
        ([(3, 4)], "contains no token|splits ' '"),
        ([(4, 9), (4, 18)], "overlap"),
    ],
)
def test_bad_spans(bytelevel, spans, message):
    with pytest.raises(ValueError, match=message):
        word_spans("The earth revolves", spans, bytelevel)


def test_phrases_are_found_in_text_order():
    assert phrase_spans("sun and sun", ["sun", "sun"]) == [(0, 3), (8, 11)]
    with pytest.raises(ValueError, match="phrase 'su' does not occur as a whole"):
        phrase_spans("sun and sun", ["su"])
    with pytest.raises(ValueError, match="in the order of the text"):
        phrase_spans("the earth", ["earth", "the"])


def test_hand_made_groups_are_checked():
    with pytest.raises(ValueError, match=r"the same number of variables, not \[1, 2\]"):
        TextVariables((((0,), (1,)), ((0,),)))
    with pytest.raises(ValueError, match=r"sample 0.*no position may be in two groups"):
        TextVariables((((0, 1), (1,)),))
    with pytest.raises(ValueError, match="covers token 7 but the input has 5"):
        TextVariables((((7,), (1,)),)).owners(5)


def test_slow_tokenizers_are_refused():
    with pytest.raises(ValueError, match="no character offsets; load a fast tokenizer"):
        word_spans("a", [(0, 1)], object())
