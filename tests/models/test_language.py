"""Language models: loaded, trained, stopped and resumed; their prompts, targets and mask values."""

import json
import sys
import warnings

import pytest
import torch

from symgen.data.parts import TokenPart
from symgen.data.texts import load_tokenizer, pieces_of, split_texts, train_tokenizer
from symgen.masking.mask_values import word_value
from symgen.masking.outputs import masked_outputs
from symgen.masking.prompts import (
    Prompt,
    UnlikelyTargetWarning,
    draw_prompts,
    first_probability,
    prompt_inputs,
    target_tokens,
)
from symgen.masking.spans import word_spans
from symgen.method.transfer import transfer
from symgen.models import language
from symgen.models.config import TrainingConfig
from symgen.models.cost import language_memory
from symgen.models.language import (
    LanguageModel,
    open_language_model,
    tiny_llama,
    train_causal_lm,
)
from symgen.models.loop import evaluate, next_token
from symgen.models.registry import device
from symgen.models.trainable import trainable
from symgen.models.training import NearChanceWarning
from symgen.storage import DamagedFileWarning, fetch

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "The young baker of the village will take white flour to the small oven .",
    "In winter the doctor of the castle will find black amber near the river .",
    "In spring the miner of the forest will find silver under the green hill .",
] * 3
PROMPTS = [
    Prompt.of("The tall sailor of the harbor will take the long", " rope", n=4),
    Prompt.of("In winter the doctor of the castle will find black", " amber", n=4),
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 40, 30)


def build(tokenizer):
    return tiny_llama(len(tokenizer), 32, 2, seed=1)


def test_masking_embeddings(tokenizer):
    model = build(tokenizer)
    weight = model.get_input_embeddings().weight.detach()
    ids = tokenizer(TEXTS)["input_ids"]
    flat = torch.tensor([t for row in ids for t in row])
    value = word_value(model, tokenizer, "corpus", TEXTS)
    torch.testing.assert_close(value.value, weight[flat].mean(0), atol=1e-6, rtol=0)
    one = word_value(model, tokenizer, "sailor")
    assert torch.equal(one.value, weight[tokenizer.convert_tokens_to_ids("sailor")])
    torch.testing.assert_close(word_value(model, tokenizer).value, weight.mean(0))
    assert word_value(model, tokenizer, "remove") is None
    with pytest.raises(ValueError, match=r"masking='sailor baker' is 2 tokens .* expected 'mean'"):
        word_value(model, tokenizer, "sailor baker")
    with pytest.raises(ValueError, match="got no tokens"):
        word_value(model, tokenizer, "corpus")


def test_prompts_of_ones_own():
    some = Prompt.of("The tall sailor of the old harbor will take the", " rope", n=3)
    assert some.words == ("tall", "sailor", "old", "harbor")[1:]
    assert Prompt.of("One sun, one earth", " x", ["sun", "one earth"]).words == ("sun", "one earth")
    with pytest.raises(
        ValueError, match=r"has 2 content words \(tall, sailor\), fewer than n = 10"
    ):
        Prompt.of("The tall sailor of the", " rope", n=10)
    with pytest.raises(ValueError, match="'moon' does not occur as a whole"):
        Prompt.of("The tall sailor", " rope", ["moon"])
    with pytest.raises(ValueError, match="need text; got 'The sailor' and ' '"):
        Prompt.of("The sailor", " ")


def test_targets(tokenizer):
    ids, target = target_tokens(PROMPTS[0], tokenizer)
    assert tokenizer.convert_ids_to_tokens(int(ids[0])) == "[BOS]"
    assert tokenizer.convert_ids_to_tokens(target)[0] in ("rope", "r", "ro", "rop")
    with pytest.raises(ValueError, match=r"joins the prompt's end .*'ong' .*begin"):
        target_tokens(Prompt("The sailor takes l", "ong", ((4, 10),)), tokenizer)
    bert = load_tokenizer(200, TEXTS)
    with pytest.raises(ValueError, match=r"ends a text with '\[SEP\]'"):
        target_tokens(PROMPTS[0], bert)


def pieces_apart(kind):
    """A tokenizer that knows no piece of a space and a digit, as many in use: a lone space is left.

    "metaspace" writes it as "▁", as sentencepiece does; "bytes" as "Ġ", as GPT-2 does, with
    its place in the text or ("trimmed") without.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    metaspace = kind == "metaspace"
    letters = (
        "▁abcdefghijklmnopqrstuvwxyz0123456789"
        if metaspace
        else (pre_tokenizers.ByteLevel.alphabet())
    )
    vocabulary = {letter: i for i, letter in enumerate(["[UNK]", *sorted(letters)])}
    merges = []
    for word in ("the", "tall", "sailor", "rope"):
        piece = ("▁" if metaspace else "Ġ") + word
        for end in range(2, len(piece) + 1):
            if piece[:end] not in vocabulary:
                vocabulary[piece[:end]] = len(vocabulary)
                merges.append((piece[: end - 1], piece[end - 1]))
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]"))
    if metaspace:
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        words = pre_tokenizers.Split(Regex(r"\p{N}| ?[^\s\p{N}]+|\s"), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.pre_tokenizer = pre_tokenizers.Sequence([words, level])
        raw.post_processor = processors.ByteLevel(trim_offsets=kind == "trimmed")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]")


@pytest.mark.parametrize("kind", ["metaspace", "bytes", "trimmed"])
def test_a_space_that_is_a_piece_of_its_own_is_no_target(kind):
    """What counts is how likely the digit is after the space, and not how likely the space is."""
    tokenizer = pieces_apart(kind)
    model = build(tokenizer)
    prompt = Prompt("the tall sailor", " 7 2", ((4, 8), (9, 15)))
    ids, target = target_tokens(prompt, tokenizer)
    space = "▁" if kind == "metaspace" else "Ġ"
    assert tokenizer.convert_ids_to_tokens(ids.tolist())[-2:] == [f"{space}sailor", space]
    assert tokenizer.convert_ids_to_tokens(target) == ["7", space, "2"]
    with torch.no_grad():
        p = model(ids[None]).logits[0, -1].double().softmax(-1)[target[0]]
    assert first_probability(model, tokenizer, prompt) == pytest.approx(float(p), rel=1e-4)
    _, usual = target_tokens(Prompt("the tall sailor", " rope", prompt.spans), tokenizer)
    assert tokenizer.convert_ids_to_tokens(usual) == [f"{space}rope"]


def test_interactions_are_stored_for_the_token_that_masks(tokenizer, tmp_path, monkeypatch):
    """The same network and prompts, and another tokenizer's number for the masking token."""
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    raw = json.loads(tokenizer.backend_tokenizer.to_str())
    known = raw["model"]["vocab"]
    known["baker"], known["miner"] = known["miner"], known["baker"]
    other = transformers.PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(raw)),
        unk_token=tokenizer.unk_token, bos_token=tokenizer.bos_token,
    )  # fmt: skip
    assert target_tokens(PROMPTS[0], tokenizer)[1] == target_tokens(PROMPTS[0], other)[1]
    model, found = build(tokenizer), []
    for some in (tokenizer, other):
        lm = LanguageModel("llama", model, some, {"network": 1})
        v, _ = lm.interactions(PROMPTS[:1], masking="baker", progress=False)
        inputs, variables = prompt_inputs(PROMPTS[:1], some)
        value = word_value(model, some, "baker")
        assert torch.equal(v, masked_outputs(model, *inputs, variables, value, progress=False))
        found.append(v)
    assert not torch.equal(*found)


def test_interactions_of_another_kind_are_stored_apart(tokenizer, tmp_path, monkeypatch):
    """Asked for under one key: the mask value, the part of the target, and the texts count."""
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    prompt = Prompt(PROMPTS[0].text, " boater", PROMPTS[0].spans)
    assert len(target_tokens(prompt, tokenizer)[1]) > 1
    lm = LanguageModel("llama", build(tokenizer), tokenizer, {"network": 1})
    kinds = (
        {}, {"whole": True}, {"masking": "remove"}, {"masking": "corpus", "texts": TEXTS[:1]},
        {"masking": "corpus", "texts": TEXTS[1:2]},
    )  # fmt: skip
    found = [lm.interactions([prompt], progress=False, **kind)[0] for kind in kinds]
    assert len({tuple(v.flatten().tolist()) for v in found}) == len(kinds)
    again, inter = lm.interactions([prompt], progress=False)
    assert torch.equal(again, found[0]) and inter.n == 4
    torch.testing.assert_close(inter.bias, again[:, 0])


def test_interactions_know_their_words_and_what_they_are_of(tokenizer):
    """A table names them with no word given, and other prompts are told from these."""
    lm = LanguageModel("llama", build(tokenizer), tokenizer, {"network": 1})
    other = LanguageModel("llama", lm.model, tokenizer, {"network": 2})
    both = PROMPTS[:2]
    assert both[0].labels != both[1].labels
    one, two = (model.interactions(both, progress=False)[1] for model in (lm, other))
    assert one.names.tolist() == [list(prompt.labels) for prompt in both]
    members = one[1].to_frame()["members"].str.split(", ").explode()
    assert set(members) <= set(both[1].labels)
    assert one.about["inputs"] == two.about["inputs"]
    assert one.about["model"] != two.about["model"]
    turned = lm.interactions(both[::-1], progress=False)[1]
    assert turned.about["inputs"] != one.about["inputs"]
    with pytest.raises(ValueError, match="baseline 0 has other samples or variables: sample 0"):
        transfer(one, turned)


def test_a_model_without_a_name_or_texts_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected its name or path as text: str\(path\)"):
        language._refuse_name(tmp_path, ())
    for texts in ((), [], "Once upon a time"):
        with pytest.raises(ValueError, match="tiny-llama is trained here, on texts"):
            language.open_language_model("tiny-llama", texts)


def test_prompts_that_cannot_be_masked_are_refused(tokenizer):
    lm = LanguageModel("llama", build(tokenizer), tokenizer, {"network": 1})
    for wrong in ("a text", PROMPTS[0], ["a text"]):
        with pytest.raises(ValueError, match=r"prompts are not a list of symgen.Prompt"):
            language._refuse_prompts(wrong)
    many = Prompt.of(" ".join(f"word{i}" for i in range(17)), " end", n=17)
    with pytest.raises(ValueError, match=r"17 variables, which is 2\^17 masked .* at most 16"):
        lm.interactions([many])
    lm.model.config.max_position_embeddings = 3
    with pytest.raises(ValueError, match=r"tokens, and LlamaForCausalLM reads 3; shorten it"):
        lm.interactions(PROMPTS[:1])


@pytest.mark.parametrize("place", ["prompt", "target"])
def test_the_tokenizer_of_a_larger_model_is_told(tokenizer, place):
    """The last token is unknown to the model, and either masked or asked for."""
    model, prompt = build(tokenizer), PROMPTS[0]
    if place == "target":
        # The first piece of one of these words has a number above all of the prompt's.
        words = {word for text in TEXTS for word in text.split() if word.isalpha()}
        cases = [Prompt(prompt.text, f" {word}", prompt.spans) for word in words]
        prompt = max(cases, key=lambda case: target_tokens(case, tokenizer)[1][0])
    ids, target = target_tokens(prompt, tokenizer)
    last = max(*ids.tolist(), target[0])
    assert (last in ids) == (place == "prompt")
    model.set_input_embeddings(torch.nn.Embedding(last, 32))
    lm, told = LanguageModel("llama", model, tokenizer, {"network": 1}), f"from 0 to {last - 1};"
    for fails in (
        lambda: lm.reads(prompt), lambda: lm.interactions([prompt], progress=False),
        lambda: first_probability(model, tokenizer, prompt),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            fails()


def test_numbers_that_are_not_finite_are_told(tokenizer):
    model = build(tokenizer)
    model.lm_head.weight.data[5] = torch.nan
    with pytest.raises(FloatingPointError, match=r"LlamaForCausalLM returns logits that are NaN"):
        draw_prompts(TEXTS, [(model, tokenizer)], n=3)


def test_texts_that_are_none(tokenizer):
    for texts in ([*TEXTS, None], [None]):
        told = f"text {len(texts) - 1} is None; expected a string. Leave rows without text out"
        with pytest.raises(ValueError, match=told):
            draw_prompts(texts, [], n=3)
        with pytest.raises(ValueError, match=told):
            word_value(build(tokenizer), tokenizer, "corpus", texts)


def test_prompts_are_drawn_where_the_model_expects_the_word(tokenizer):
    model = build(tokenizer)
    judge = [(model, tokenizer)]
    drawn = draw_prompts(TEXTS, judge, samples=5, n=3, probability=0.0, seed=1)
    assert len(drawn) == 5
    for prompt in drawn:
        assert len(prompt.words) == 3 and prompt.target.startswith(" ")
        assert any(text.startswith(prompt.text + prompt.target) for text in TEXTS)
    assert drawn == draw_prompts(TEXTS, judge, samples=5, n=3, probability=0.0, seed=1)
    p = sorted(first_probability(model, tokenizer, prompt) for prompt in drawn)
    some = draw_prompts(TEXTS, judge, samples=9, n=3, probability=p[2], seed=1)
    assert all(first_probability(model, tokenizer, prompt) >= p[2] for prompt in some)
    with pytest.raises(ValueError, match=r"no prompt with n = 9 .* \(12 lack enough content words"):
        draw_prompts(TEXTS, judge, n=9)


def test_where_no_target_is_likely_enough_the_likeliest_are_taken(tokenizer):
    model = build(tokenizer)
    judge = [(model, tokenizer)]
    with pytest.warns(UnlikelyTargetWarning, match=r"none of 12 texts .* >= 1.0; the likeliest"):
        drawn = draw_prompts(TEXTS, judge, samples=3, n=3, probability=1.0)
    p = [first_probability(model, tokenizer, prompt) for prompt in drawn]
    assert len(p) == 3 and p == sorted(p, reverse=True)
    # No other text has a prompt that is likelier, among the same places to cut it.
    with pytest.warns(UnlikelyTargetWarning):
        every = draw_prompts(TEXTS, judge, samples=99, n=3, probability=1.0)
    assert len(every) == len(TEXTS) and every[:3] == drawn


def test_a_model_of_7_billion_fits_in_40_gib():
    config = transformers.Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4,
    )  # fmt: skip
    table = language_memory(config, tokens=64, rows=[1024, 1])
    assert table["masked prompts at once"].tolist() == [1024, 1]
    needed, one = table.drop(columns="masked prompts at once").to_dict("records")
    assert needed["weights"] == pytest.approx(7.615616512e9 * 2 / 2**30, rel=1e-3)
    assert needed["total"] == pytest.approx(sum(needed.values()) / 2)
    assert needed["total"] < 40
    # Keys and values of 28 layers with 4 heads of 128, in two bytes, three times.
    assert needed["keys and values"] == 3 * 1024 * 64 * 28 * 2 * 4 * 128 * 2 / 2**30
    assert 0 < needed["activations"] < 3 * needed["keys and values"]
    assert one["weights"] == needed["weights"]
    assert one["activations"] == needed["activations"] / 1024


def test_weights_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"set SYMGEN_DATA .*Qwen2.5-7B.config\.json"):
        open_language_model("qwen2.5-7b")
    with pytest.raises(ValueError, match='unknown language model "stories".*"stories260k"'):
        open_language_model("stories")


@pytest.fixture(scope="module")
def tuned(tokenizer):
    pieces = pieces_of(TEXTS, tokenizer, 32)
    return train_causal_lm(
        tiny_llama(len(tokenizer), 16, 1), tokenizer, pieces, pieces[:4], {"old": pieces[4:8]},
        epochs=6, batch_size=4, learning_rate=0.02, checkpoints=[5, 10], progress=False,
    )  # fmt: skip


def again(run, tokenizer, **changes):
    pieces = pieces_of(TEXTS, tokenizer, 32)
    settings = {"epochs": 6, "batch_size": 4, "learning_rate": 0.02, "checkpoints": [5, 10]}
    return train_causal_lm(
        tiny_llama(len(tokenizer), 16, 1), tokenizer, pieces, pieces[:4], {"old": pieces[4:8]},
        progress=False, **(settings | changes),
    )  # fmt: skip


def test_a_training_is_kept_and_found_again(tuned, tokenizer):
    assert tuned.steps == [0, 5, 10, 18]
    records = tuned.records
    assert records.train_loss.iloc[-1] < 0.7 * records.train_loss.iloc[0]
    measured = [f"{part}_{what}" for part in ("train", "test", "old")
                for what in ("loss", "accuracy")]  # fmt: skip
    assert list(records) == ["step", "epoch", *measured]
    same = again(tuned, tokenizer)
    assert same.fingerprint == tuned.fingerprint
    assert again(tuned, tokenizer, seed=1).fingerprint != tuned.fingerprint
    start = tuned.load(0).state_dict()
    drawn = tiny_llama(len(tokenizer), 16, 1).lm_head.weight
    assert torch.equal(start["lm_head.weight"].cpu(), drawn)


def test_large_vocabularies_are_measured_in_smaller_chunks(tokenizer):
    """Their logits take a GiB at most in all copies, or those of one piece; losses are the same."""
    pieces = [(torch.arange(128) % 90, 0)] * 30
    sizes = {count: TokenPart(pieces, count).chunk for count in (100, 50_000, 150_000, 10**8)}
    assert sizes == {100: 20, 50_000: 10, 150_000: 3, 10**8: 1}
    model, part = trainable(tiny_llama(len(tokenizer), 16, 1), 0), TokenPart(pieces)
    whole = evaluate(model, part, objective=next_token)
    part.chunk = 3
    assert evaluate(model, part, objective=next_token) == pytest.approx(whole, rel=1e-6)


def test_a_damaged_checkpoint_is_computed_again(tuned):
    wanted, path = tuned.load(10).state_dict(), tuned.store.path(10)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.warns(DamagedFileWarning):
        found = tuned.load(10).state_dict()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_same_weights_with_another_setting_are_another_training(tokenizer):
    pieces = pieces_of(TEXTS[:4], tokenizer, 32)
    model = tiny_llama(len(tokenizer), 16, 1)
    options = {"epochs": 1, "progress": False}
    run = train_causal_lm(model, tokenizer, pieces, pieces, **options)
    model.config.rms_norm_eps = 1e-2
    assert train_causal_lm(model, tokenizer, pieces, pieces, **options).fingerprint != (
        run.fingerprint
    )
    changed = [
        {"lora": 1}, {"learning_rate": 0.1}, {"schedule": "constant"}, {"others": {"a": pieces}},
    ]  # fmt: skip
    found = {run.fingerprint} | {
        train_causal_lm(model, tokenizer, pieces, pieces, **options, **change).fingerprint
        for change in changed
    }
    assert len(found) == 1 + len(changed)


def test_nobody_is_told_that_a_language_model_guesses_classes(tokenizer):
    """All pieces have the same label, of which no share can be guessed right."""
    pieces = pieces_of(TEXTS[:4], tokenizer, 32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train_causal_lm(
            tiny_llama(len(tokenizer), 16, 1), tokenizer, pieces, pieces,
            config=TrainingConfig(epochs=1, learning_rate=1e-9, checkpoints=1), progress=False,
        )  # fmt: skip
    assert not [w for w in caught if issubclass(w.category, NearChanceWarning)]
    assert run.records.train_accuracy.iloc[-1] < 0.2


def test_bad_trainings(tokenizer, monkeypatch):
    pieces = pieces_of(TEXTS, tokenizer, 32)
    model = tiny_llama(len(tokenizer), 16, 1)
    with pytest.raises(ValueError, match="pieces: got 0, expected at least 1"):
        train_causal_lm(model, tokenizer, [], pieces)
    with pytest.raises(ValueError, match='mixed_precision="fp8" is unknown; expected no, bf16'):
        train_causal_lm(model, tokenizer, pieces, pieces, mixed_precision="fp8")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"pip install 'symgen\[lora\]', or .* lora=0"):
        train_causal_lm(model, tokenizer, pieces, pieces, lora=2, progress=False)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_low_rank_adapters_are_all_that_is_stored(tokenizer):
    pieces = pieces_of(TEXTS, tokenizer, 32)
    model = tiny_llama(len(tokenizer), 16, 1)
    run = train_causal_lm(
        model, tokenizer, pieces, pieces[:4], epochs=8, learning_rate=0.02, lora=2, progress=False
    )
    assert run.records.train_loss.iloc[-1] < run.records.train_loss.iloc[0]
    assert all("lora" in name for name in fetch(run.store.path(run.steps[-1]))[0])
    ids = pieces[0][0][None]
    with torch.no_grad():
        before, start, end = (
            m(ids.to(m.device)).logits.cpu() for m in (model.to(device()), run.load(0), run.load())
        )
    assert torch.equal(before, start)
    assert (end - start).abs().max() > 0.1
    assert type(run.load()) is type(model)


def test_a_real_model(mirror, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    lm = open_language_model("stories260k")
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
    prompt = Prompt.of(text, " park", n=6)
    assert prompt.words == ("girl", "named", "Lily", "loved", "play", "outside")
    v, inter = lm.interactions([prompt], progress=False)
    assert v.shape == (1, 64) and inter.gap.max() < 1e-2
    again, _ = lm.interactions([prompt], progress=False)
    assert torch.equal(v, again)
    whole, _ = lm.interactions([prompt], whole=True, progress=False)
    assert (whole <= v + 1e-6).all()
    texts = split_texts("roneneldan/TinyStories")["test"][:60]
    other = train_tokenizer(texts, 300, 100)
    drawn = draw_prompts(texts, [(lm.model, lm.tokenizer)], 3, tokenizers=[other])
    assert len(drawn) == 3
    for some in drawn:
        groups = [word_spans(some.text, some.spans, t) for t in (lm.tokenizer, other)]
        assert groups[0].words == groups[1].words
    snow = Prompt.of("Lily saw a", " \u2603", n=2)
    _, target = target_tokens(snow, lm.tokenizer)
    assert lm.tokenizer.convert_ids_to_tokens(target)[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]
