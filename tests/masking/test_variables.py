"""Variables: patches of any map size, words of any tokenizer, spans of a text; prompts."""

import unicodedata

import by_hand
import pytest
import torch
from hypothesis import given, strategies as st

from symgen.masking.mask_values import word_value
from symgen.masking.outputs import masked_outputs
from symgen.masking.prompts import (
    Prompt,
    draw_prompts,
    first_probability,
    prompt_inputs,
    target_tokens,
)
from symgen.masking.variables import (
    ImageVariables,
    TextVariables,
    draw_patches,
    draw_words,
    word_spans,
)
from symgen.masking.words import phrase_spans, words_of

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SENTENCE = "The unforgettable film, and it's not the dull one; we loved its brave heroes!"
SIDE = st.integers(5, 40)
TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "In winter the doctor of the castle will find black amber near the river .",
]


def fast(tokenizer, **special):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.fixture(scope="module")
def wordpiece():
    """BERT's kind: long words in pieces, [CLS] and [SEP] around."""
    text = "[PAD] [UNK] [CLS] [SEP] [MASK] , ; ! ' the film and it s not dull one we loved its"
    words = f"{text} brave heroes un ##forget ##table".split()
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return fast(tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def bytelevel(words, trim=True, start=False, space=False):
    """GPT-2's kind: pieces begin with a space. With `start`, texts begin with <s>."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges, vocabulary = [], {letter: i for i, letter in enumerate(["<s>", *letters])}
    for piece in words:
        for end in range(2, len(piece) + 1):
            if piece[:end] not in vocabulary:
                vocabulary[piece[:end]] = len(vocabulary)
                merges.append((piece[: end - 1], piece[end - 1]))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trim)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if start:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", 0)]
        )
    return fast(tokenizer, bos_token="<s>")


def pieces_of(tokenizer, text, group):
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    return [tokens[position] for position in group]


@given(height=SIDE, width=SIDE, n=st.integers(1, 25), seed=st.integers(0, 99))
def test_every_pixel_of_a_box_belongs_to_its_variable(height, width, n, seed):
    variables = draw_patches(2, n=n, grid=5, seed=seed)
    owners, boxes = variables.owners(height, width), variables.boxes(height, width)
    for sample in range(2):
        counted = torch.full((height, width), n)
        for i, (left, top, right, bottom) in enumerate(boxes[sample].tolist()):
            assert right > left and bottom > top
            counted[top:bottom, left:right] = i
        assert torch.equal(owners[sample], counted)
    assert torch.equal(draw_patches(5, n=n, seed=seed)[1:2].patches, variables.patches[1:2])


def test_content_words_are_drawn_whole(wordpiece):
    variables, kept = draw_words(["The film", SENTENCE], wordpiece, n=6)
    assert kept.tolist() == [1] and variables.n == 6
    words = ["unforgettable", "film", "dull", "loved", "brave", "heroes"]
    assert list(variables.words[0]) == words
    pieces = [pieces_of(wordpiece, SENTENCE, group) for group in variables.groups[0]]
    assert pieces[0] == ["un", "##forget", "##table"] and pieces[1:] == [[w] for w in words[1:]]
    assert variables.lengths == (len(wordpiece(SENTENCE)["input_ids"]),)
    cut, _ = draw_words([SENTENCE], wordpiece, n=2, max_length=8)
    assert set(cut.words[0]) == {"unforgettable", "film"}
    joined = TextVariables.stack([variables[0], variables])
    assert len(joined) == 2 and joined[[1]] == variables


@pytest.mark.parametrize("trim", [True, False])
def test_spans_are_the_same_words_in_every_tokenizer(trim):
    tokenizer = bytelevel(["The", "Ġearth", "Ġrev", "olves", "Ġaround", "Ġthe", "Ġsun"], trim)
    text = "The earth revolves around the sun."
    spans = phrase_spans(text, ["earth", "revolves", "the sun"])
    variables = word_spans(text, spans, tokenizer)
    pieces = [pieces_of(tokenizer, text, group) for group in variables.groups[0]]
    assert pieces == [["Ġearth"], ["Ġrev", "olves"], ["Ġthe", "Ġsun"]]
    for wrong, message in [
        ([(4, 8)], r"'eart', does not consist of whole tokens"),
        ([(3, 4)], "whole tokens"),
        ([(4, 40)], "whole tokens"),
        ([(4, 9), (4, 9)], "no position in two groups"),
    ]:
        with pytest.raises(ValueError, match=message):
            word_spans(text, wrong, tokenizer)


def test_pieces_after_an_added_token_belong_to_their_word():
    tokenizer = bytelevel(["ĠB", "MS", "Ġworks"], space=True)
    tokenizer.add_tokens(["<E1>"])
    text = "<E1>BMS works"
    variables = word_spans(text, [(4, 7), (8, 13)], tokenizer)
    pieces = [pieces_of(tokenizer, text, group) for group in variables.groups[0]]
    assert pieces == [["ĠB", "MS"], ["Ġworks"]]


@pytest.mark.parametrize(
    "text",
    [
        "मुझे हिन्दी फिल्में बहुत पसंद हैं",
        "আমি বাংলায় গান গাই",
        "ฉันชอบดูหนัง",
        "שָׁלוֹם עוֹלָם",
        "السَّلَامُ عَلَيْكُمْ می\u200cخواهم",
        unicodedata.normalize("NFD", "naïve café résumé"),
    ],
)
def test_words_are_not_cut_at_their_marks(text):
    words = text.split()
    assert [text[start:end] for (start, end), _ in words_of(text)] == words
    assert Prompt.of(text, " x", n=len(words)).words == tuple(words)
    assert phrase_spans(text, words[-1:]) == [(len(text) - len(words[-1]), len(text))]


@pytest.mark.parametrize(
    "chat",
    [
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        "<s>[INST] {} [/INST]",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
        "<s>[INST] <<SYS>> {} <</SYS>> [/INST]",
        "<\uff5cUser\uff5c>{}<\uff5cAssistant\uff5c>",
    ],
)
def test_special_tokens_of_a_chat_are_no_words(chat):
    prompt = Prompt.of(chat.format("Where did the sailor tie the rope?"), "Near")
    assert prompt.words == ("did", "sailor", "tie", "rope")
    with pytest.raises(ValueError, match="has 4 content words"):
        Prompt.of(prompt.text, "Near", n=5)


@pytest.mark.parametrize(
    "run, message",
    [
        (lambda t: draw_patches(1, n=26), "a 5x5 grid has 25 patches"),
        (lambda t: ImageVariables(torch.tensor([[1, 25]]), 5), "different numbers from 0 to 24"),
        (lambda t: ImageVariables(torch.tensor([[3, 3]]), 5), "different numbers from 0 to 24"),
        (lambda t: TextVariables((((1,),), ((1,), (2,)))), r"samples have \[1, 2\] variables"),
        (lambda t: TextVariables((((1, 2), (2,)),)), "no position in two groups"),
        (lambda t: draw_words([SENTENCE], t, n=9), "has n = 9 content words; the most is 6"),
        (lambda t: draw_words(SENTENCE, t), "expected a list of texts, got one text"),
        (lambda t: draw_words([SENTENCE, None], t), "text 1 is None; expected a string"),
        (lambda t: draw_words([SENTENCE], object()), "reports no character offsets; load a fast"),
        (lambda t: phrase_spans(SENTENCE, ["film", "The"]), "phrase 'The' does not occur"),
        (lambda t: Prompt.of(" ", " x"), "need text"),
        (lambda t: Prompt.of("The old earth", " x", n=3), "has 2 content words .old, earth., but"),
        (lambda t: prompt_inputs([], t), "prompts must be a list"),
        (
            lambda t: target_tokens(Prompt.of("The film", " dull"), t),
            r"ends texts with a .*\[SEP\]",
        ),
    ],
)
def test_refusals(wordpiece, run, message):
    wordpiece.sep_token = "[SEP]"
    with pytest.raises(ValueError, match=message):
        run(wordpiece)


@pytest.fixture(scope="module")
def reader():
    """A small language model with its tokenizer."""
    words = {f"Ġ{word}" for text in TEXTS for word in text.split()} - {"Ġlong"}
    tokenizer = bytelevel(sorted(words | {"The", "In"}), start=True)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def test_prompts_show_their_variables_and_the_target_as_the_tokenizer_joins_it(reader):
    model, tokenizer = reader
    text = "The sailor took the rope and the <b> rope"
    prompt = Prompt.of(text, " rope", phrases=["sailor", "rope", "rope"])
    assert prompt.words == ("sailor", "rope", "rope")
    assert prompt.labels == ("sailor", "rope", "rope (2)")
    shown = prompt._repr_html_()
    assert "<strong>sailor</strong>" in shown and "&lt;b&gt;" in shown and "<em>rope</em>" in shown
    ids, target = target_tokens(prompt, tokenizer)
    assert tokenizer.decode(target) == " rope"
    with torch.no_grad():
        p = model(ids[None]).logits[0, -1].softmax(-1)[target[0]]
    assert first_probability(model, tokenizer, prompt) == pytest.approx(float(p))
    ids, targets, variables = prompt_inputs([prompt, prompt], tokenizer, whole=True)
    assert targets == [target] * 2 and variables.words == (prompt.words,) * 2
    for masking in ("mean", " rope"):
        value = word_value(model, tokenizer, masking)
        v = masked_outputs(model, ids, targets, variables, value)
        assert v.shape == (2, 8)
        by_hand.equal(v[0, -1], torch.logit(p).double(), 1e-4)
    with pytest.raises(ValueError, match="expected 'mean', 'remove', or the text of one token"):
        word_value(model, tokenizer, "two words")
    with pytest.raises(ValueError, match="joins the prompt's end"):
        target_tokens(Prompt.of("The tall sai", "lor"), bytelevel(["The", "Ġtall", "Ġsailor"]))


def test_prompts_are_drawn_before_words_that_the_models_expect(reader):
    texts = TEXTS * 3
    prompts = draw_prompts(texts, [reader], samples=4, n=2, probability=0.0)
    assert len(prompts) == 4 and prompts == draw_prompts(texts, [reader], 4, 2, 0.0)
    for prompt in prompts:
        assert len(prompt.spans) == 2 and any(prompt.text + prompt.target in t for t in TEXTS)
    with pytest.warns(UserWarning, match="none of 6 texts has a target of probability"):
        likeliest = draw_prompts(texts, [reader], samples=1, n=2, probability=1.0)
    chances = [first_probability(*reader, prompt) for prompt in (*likeliest, *prompts)]
    assert chances[0] == max(chances)
    with pytest.raises(ValueError, match="none of 6 texts gives a prompt with n = 20"):
        draw_prompts(texts, [reader], n=20)
