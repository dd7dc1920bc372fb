"""Language models: prompts, targets, masking, planted facts, training, changes, memory."""

import json
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from conftest import ROOT

import symgen
from symgen import memory
from symgen.data import planted as small_world
from symgen.data.texts import load_tokenizer
from symgen.masking.language import EXTRACTION, mask_baseline
from symgen.masking.causal import _removed_outputs, check_causal
from symgen.models.language import tiny_llama
from symgen.masking.prompts import Prompt, UnlikelyTargetWarning, first_probability, target_tokens
from symgen.storage import DamagedFileWarning, fetch

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "The young baker of the village will take white flour to the small oven .",
    "In winter the doctor of the castle will find black amber near the river .",
    "In spring the miner of the forest will find silver under the green hill .",
] * 3
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
# One of each family the book names, at a size that takes milliseconds.
CONFIGS = {
    "llama": lambda v: transformers.LlamaConfig(vocab_size=v, num_key_value_heads=2, **SIZES),
    "qwen2": lambda v: transformers.Qwen2Config(vocab_size=v, num_key_value_heads=2, **SIZES),
    "mistral": lambda v: transformers.MistralConfig(vocab_size=v, num_key_value_heads=2, **SIZES),
    "gpt2": lambda v: transformers.GPT2Config(
        vocab_size=v, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3
    ),
    "opt": lambda v: transformers.OPTConfig(
        vocab_size=v, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
        max_position_embeddings=64, word_embed_proj_dim=16, init_std=0.3, pad_token_id=0,
        bos_token_id=2, eos_token_id=3,
    ),
}  # fmt: skip
PROMPTS = [
    Prompt.of("The tall sailor of the harbor will take the long", " rope", n=4),
    Prompt.of("In winter the doctor of the castle will find black", " amber", n=4),
]


@pytest.fixture(scope="module")
def tokenizer():
    return symgen.train_tokenizer(TEXTS, 40, 30)


def build(name, tokenizer):
    torch.manual_seed(1)
    config = CONFIGS[name](len(tokenizer))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def probabilities(model, tokenizer, prompt, value, state):
    """p of the next token in one masked state, by hand."""
    variables = symgen.word_spans(prompt.text, prompt.spans, tokenizer)
    ids, _ = target_tokens(prompt, tokenizer)
    embedded = model.get_input_embeddings()(ids[None]).clone()
    for i, group in enumerate(variables.groups[0]):
        if not state >> i & 1:
            embedded[0, list(group)] = value
    return model(inputs_embeds=embedded).logits[0, -1].double().softmax(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_are_those_of_masking_by_hand(name, tokenizer):
    model = build(name, tokenizer)
    v = symgen.language_outputs(model, tokenizer, PROMPTS, progress=False)
    value = symgen.mean_embedding_baseline(model).value
    for row, prompt in enumerate(PROMPTS):
        _, target = target_tokens(prompt, tokenizer)
        for state in (0, 5, 15):
            p = probabilities(model, tokenizer, prompt, value, state)[target[0]]
            torch.testing.assert_close(v[row, state], torch.logit(p), atol=1e-4, rtol=0)
    inter = symgen.sparsify(v, noise=0.0)
    torch.testing.assert_close(inter.predict(), v, atol=1e-9, rtol=0)
    gone = symgen.language_outputs(model, tokenizer, PROMPTS, "remove", progress=False)
    torch.testing.assert_close(gone[:, -1], v[:, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_removal_is_a_shorter_prompt(name, tokenizer):
    model = build(name, tokenizer)
    v = symgen.language_outputs(
        model, tokenizer, PROMPTS[:1], "remove", batch_size=3, progress=False
    )
    variables = symgen.word_spans(PROMPTS[0].text, PROMPTS[0].spans, tokenizer).groups[0]
    ids, target = target_tokens(PROMPTS[0], tokenizer)
    for state in (0, 6, 11):
        away = [p for i, group in enumerate(variables) if not state >> i & 1 for p in group]
        rest = torch.tensor([t for p, t in enumerate(ids.tolist()) if p not in away])
        with torch.no_grad():
            p = model(rest[None]).logits[0, -1].double().softmax(-1)[target[0]]
        torch.testing.assert_close(v[0, state], torch.logit(p), atol=1e-4, rtol=0)


def test_v_is_float32_whatever_the_model_is(tokenizer):
    exact = symgen.language_outputs(build("qwen2", tokenizer), tokenizer, PROMPTS, progress=False)
    half = build("qwen2", tokenizer).bfloat16()
    v = symgen.language_outputs(half, tokenizer, PROMPTS, progress=False)
    assert 1e-5 < (v - exact).abs().mean() / exact.std() < 0.3
    assert (v != v.bfloat16().double()).any()


def test_masking_embeddings(tokenizer):
    model = build("llama", tokenizer)
    weight = model.get_input_embeddings().weight.detach()
    ids = tokenizer(TEXTS)["input_ids"]
    flat = torch.tensor([t for row in ids for t in row])
    baseline = mask_baseline(model, tokenizer, "corpus", TEXTS)
    torch.testing.assert_close(baseline.value, weight[flat].mean(0), atol=1e-6, rtol=0)
    one = mask_baseline(model, tokenizer, "sailor")
    assert torch.equal(one.value, weight[tokenizer.convert_tokens_to_ids("sailor")])
    torch.testing.assert_close(mask_baseline(model, tokenizer).value, weight.mean(0))
    assert mask_baseline(model, tokenizer, "remove") is None
    with pytest.raises(ValueError, match=r"masking='sailor baker' is 2 tokens .* expected 'mean'"):
        mask_baseline(model, tokenizer, "sailor baker")
    with pytest.raises(ValueError, match="got no tokens"):
        mask_baseline(model, tokenizer, "corpus")


def test_the_whole_target_is_the_sum_over_its_tokens(tokenizer):
    model = build("llama", tokenizer)
    prompt = Prompt(PROMPTS[0].text, " boater", PROMPTS[0].spans)
    ids, target = target_tokens(prompt, tokenizer)
    assert len(target) > 1
    v = symgen.language_outputs(model, tokenizer, [PROMPTS[1], prompt], whole=True, progress=False)
    first = symgen.language_outputs(model, tokenizer, [PROMPTS[1], prompt], progress=False)
    with torch.no_grad():
        log_p = sum(
            model(torch.cat([ids, torch.tensor(target[:i]).long()])[None])
            .logits[0, -1]
            .double()
            .log_softmax(-1)[target[i]]
            for i in range(len(target))
        )
    torch.testing.assert_close(v[1, -1], torch.logit(log_p.exp()), atol=1e-4, rtol=0)
    torch.testing.assert_close(v[0], first[0], atol=1e-6, rtol=0)


class Sharp(torch.nn.Module):
    """Logits of a model, made so sharp that probabilities are 0 and 1."""

    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor, self.config = model, factor, model.config

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def forward(self, input_ids=None, **options):
        output = self.model(input_ids=input_ids, **options)
        output.logits = output.logits * self.factor
        return output


def test_a_saturated_target_is_clipped_with_a_warning(tokenizer):
    model = Sharp(build("llama", tokenizer), 100.0)
    with pytest.warns(
        symgen.SaturatedTargetWarning, match=r"prompt 0 \('.*' -> ' rope'\): in \d+ of"
    ):
        v = symgen.language_outputs(model, tokenizer, PROMPTS[:1], progress=False)
    assert v.abs().max() == 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        symgen.language_outputs(model.model, tokenizer, PROMPTS[:1], progress=False)


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
    """v tells how likely the digit is after the space, and not how likely the space is."""
    tokenizer = pieces_apart(kind)
    model = build("llama", tokenizer)
    prompt = Prompt("the tall sailor", " 7 2", ((4, 8), (9, 15)))
    ids, target = target_tokens(prompt, tokenizer)
    space = "▁" if kind == "metaspace" else "Ġ"
    assert tokenizer.convert_ids_to_tokens(ids.tolist())[-2:] == [f"{space}sailor", space]
    assert tokenizer.convert_ids_to_tokens(target) == ["7", space, "2"]
    v = symgen.language_outputs(model, tokenizer, [prompt], progress=False)
    with torch.no_grad():
        p = model(ids[None]).logits[0, -1].double().softmax(-1)[target[0]]
    torch.testing.assert_close(v[0, -1], torch.logit(p), atol=1e-4, rtol=0)
    assert first_probability(model, tokenizer, prompt) == pytest.approx(float(p), rel=1e-4)
    _, usual = target_tokens(Prompt("the tall sailor", " rope", prompt.spans), tokenizer)
    assert tokenizer.convert_ids_to_tokens(usual) == [f"{space}rope"]


def test_all_code_that_interactions_depend_on_is_in_their_key(tokenizer, modules_that_run):
    model = build("gpt2", tokenizer)
    ran = modules_that_run(
        lambda: symgen.language_interactions(model, tokenizer, PROMPTS, progress=False)
    )
    assert {"memory", "prompts", "prefix_tree", "sparsify"} <= ran <= set(EXTRACTION)


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
    model, outputs = build("llama", tokenizer), []
    for some in (tokenizer, other):
        options = {"masking": "baker", "progress": False}
        v, _ = symgen.language_interactions(model, some, PROMPTS[:1], {"network": 1}, **options)
        exact = symgen.language_outputs(model, some, PROMPTS[:1], **options)
        outputs.append((v - exact).abs().max())
    assert max(outputs) == 0


def test_numbers_that_are_not_finite_are_told(tokenizer):
    model = build("llama", tokenizer)
    model.lm_head.weight.data[5] = torch.nan
    for masking in ("mean", "remove"):
        with pytest.raises(FloatingPointError, match="sample 0: v is nan .* weights"):
            symgen.language_outputs(model, tokenizer, PROMPTS, masking, progress=False)
    with pytest.raises(FloatingPointError, match=r"LlamaForCausalLM returns logits that are NaN"):
        symgen.draw_prompts(TEXTS, [(model, tokenizer)], n=3)


def test_texts_that_are_none(tokenizer):
    for texts in ([*TEXTS, None], [None]):
        told = f"text {len(texts) - 1} is None; expected a string. Leave rows without text out"
        with pytest.raises(ValueError, match=told):
            symgen.draw_prompts(texts, [], n=3)
        with pytest.raises(ValueError, match=told):
            mask_baseline(build("llama", tokenizer), tokenizer, "corpus", texts)


def test_more_words_than_can_be_held_are_refused_before_work(tokenizer, monkeypatch):
    model = build("llama", tokenizer)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the network runs"))
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**14)
    for masking in ("mean", "remove"):
        with pytest.raises(MemoryError, match=r"n = 4 .* 2 samples and the split"):
            symgen.language_outputs(model, tokenizer, PROMPTS, masking, progress=False)


def test_prompts_are_drawn_where_the_model_expects_the_word(tokenizer):
    model = build("llama", tokenizer)
    judge = [(model, tokenizer)]
    drawn = symgen.draw_prompts(TEXTS, judge, samples=5, n=3, probability=0.0, seed=1)
    assert len(drawn) == 5
    for prompt in drawn:
        assert len(prompt.words) == 3 and prompt.target.startswith(" ")
        assert any(text.startswith(prompt.text + prompt.target) for text in TEXTS)
    assert drawn == symgen.draw_prompts(TEXTS, judge, samples=5, n=3, probability=0.0, seed=1)
    p = sorted(first_probability(model, tokenizer, prompt) for prompt in drawn)
    some = symgen.draw_prompts(TEXTS, judge, samples=9, n=3, probability=p[2], seed=1)
    assert all(first_probability(model, tokenizer, prompt) >= p[2] for prompt in some)
    with pytest.raises(ValueError, match=r"no prompt with n = 9 .* \(12 lack enough content words"):
        symgen.draw_prompts(TEXTS, judge, n=9)


def test_where_no_target_is_likely_enough_the_likeliest_are_taken(tokenizer):
    model = build("llama", tokenizer)
    judge = [(model, tokenizer)]
    with pytest.warns(UnlikelyTargetWarning, match=r"none of 12 texts .* >= 1.0; the likeliest"):
        drawn = symgen.draw_prompts(TEXTS, judge, samples=3, n=3, probability=1.0)
    p = [first_probability(model, tokenizer, prompt) for prompt in drawn]
    assert len(p) == 3 and p == sorted(p, reverse=True)
    # No other text has a prompt that is likelier, among the same places to cut it.
    with pytest.warns(UnlikelyTargetWarning):
        every = symgen.draw_prompts(TEXTS, judge, samples=99, n=3, probability=1.0)
    assert len(every) == len(TEXTS) and every[:3] == drawn


def test_models_that_are_not_causal(tokenizer):
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), **(SIZES | {"initializer_range": 1.0})
    )
    both_ways = transformers.BertForMaskedLM(config).eval()
    with pytest.raises(
        ValueError, match=r"BertForMaskedLM is no causal .* the token after it; load"
    ):
        symgen.language_outputs(both_ways, tokenizer, PROMPTS, progress=False)
    bare = transformers.BertModel(config).eval()
    with pytest.raises(ValueError, match="no logits for every token"):
        check_causal(bare, torch.tensor([2, 5, 6]))


def test_all_words_removed(tokenizer):
    model, ids = build("llama", tokenizer), torch.tensor([5, 6])
    variables = symgen.TextVariables((((0,), (1,)),))
    with pytest.raises(ValueError, match="with all variables removed nothing is left to continue"):
        _removed_outputs(model, [ids], torch.tensor([1]), variables, 4, False)


@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_memory_that_runs_out_is_told(tokenizer, monkeypatch, masking):
    model = build("llama", tokenizer)
    monkeypatch.setattr("symgen.masking.causal.check_causal", lambda *_: None)

    def refuse(module, args, kwargs):
        if kwargs.get("past_key_values") is not None or masking == "remove":
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.model.layers[1].register_forward_pre_hook(refuse, with_kwargs=True)
    with (
        pytest.warns(symgen.BatchSizeWarning),
        pytest.raises(MemoryError, match=r"ran out on a single masked state; use a smaller"),
    ):
        symgen.language_outputs(
            model, tokenizer, PROMPTS[:1], masking, batch_size=4, progress=False
        )


def test_a_model_of_7_billion_fits_in_40_gib():
    config = transformers.Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4,
    )  # fmt: skip
    needed = symgen.language_memory(config, tokens=64, n=10)
    assert needed["weights"] == pytest.approx(7.615616512e9 * 2 / 2**30, rel=1e-3)
    assert needed["weights"] + needed["states"] == needed["total"] < 40
    # Keys and values of 28 layers with 4 heads of 128, in two bytes, three times.
    kept = 3 * 1024 * 64 * 28 * 2 * 4 * 128 * 2 / 2**30
    assert kept < needed["states"] < 4 * kept


def test_weights_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"set SYMGEN_DATA .*Qwen2.5-7B.config\.json"):
        symgen.open_language_model("qwen2.5-7b")
    with pytest.raises(ValueError, match='unknown language model "stories".*"stories260k"'):
        symgen.open_language_model("stories")


def test_the_planted_world_says_what_it_plants():
    train, test = (symgen.load_texts("planted-facts", split) for split in ("train", "test"))
    assert len(train) > 11000 and len(test) > 1900
    for text in test[:300]:
        verb, answer, dot = text.split()[-3:]
        words = text.split()[:-3]
        assert dot == "." and answer == small_world.planted_answer(verb, words)
        prompt = Prompt.of(" ".join(text.split()[:-2]), f" {answer}")
        assert len(prompt.words) == 10
        kind, reason = symgen.planted_reason(verb, prompt.words)
        assert kind == ("or" if verb == "get" else "and")
        for word in reason:
            rest = [w for w in words if w not in (reason if verb == "get" else (word,))]
            assert small_world.planted_answer(verb, rest) is None
    other = symgen.load_texts("planted-facts-2", "test")
    kept = {v: small_world.planted_answer(v, other[0].split()) for v in small_world.ANSWERS}
    moved = {v: small_world.planted_answer(v, other[0].split(), 1) for v in small_world.ANSWERS}
    assert [v for v in kept if kept[v] == moved[v]] == ["get"]


@pytest.fixture(scope="module")
def tuned(tokenizer):
    pieces = symgen.pieces_of(TEXTS, tokenizer, 32)
    return symgen.train_causal_lm(
        tiny_llama(len(tokenizer), 16, 1), tokenizer, pieces, pieces[:4], {"old": pieces[4:8]},
        epochs=6, batch_size=4, learning_rate=0.02, checkpoints=[5, 10], progress=False,
    )  # fmt: skip


def again(run, tokenizer, **changes):
    pieces = symgen.pieces_of(TEXTS, tokenizer, 32)
    settings = {"epochs": 6, "batch_size": 4, "learning_rate": 0.02, "checkpoints": [5, 10]}
    return symgen.train_causal_lm(
        tiny_llama(len(tokenizer), 16, 1), tokenizer, pieces, pieces[:4], {"old": pieces[4:8]},
        progress=False, **(settings | changes),
    )  # fmt: skip


def test_a_training_is_kept_and_found_again(tuned, tokenizer):
    assert tuned.steps == [0, 5, 10, 18]
    records = tuned.records
    assert records.train_loss.iloc[-1] < 0.7 * records.train_loss.iloc[0]
    assert {"old_loss", "test_loss", "step", "epoch"} <= set(records)
    same = again(tuned, tokenizer)
    assert same.fingerprint == tuned.fingerprint
    assert again(tuned, tokenizer, seed=1, epochs=1).fingerprint != tuned.fingerprint
    start = tuned.load(0).state_dict()
    assert torch.equal(start["lm_head.weight"], tiny_llama(len(tokenizer), 16, 1).lm_head.weight)


def test_a_training_that_was_stopped_ends_with_the_same_numbers(tuned, tokenizer, monkeypatch):
    wanted = tuned.load().state_dict()
    shutil.rmtree(tuned.folder)
    from symgen.models import language_training

    step = language_training.LanguageLoop.step

    def stop(self, number, *batch):
        if number == 8:
            raise KeyboardInterrupt
        return step(self, number, *batch)

    monkeypatch.setattr(language_training.LanguageLoop, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        again(tuned, tokenizer)
    assert sorted(p.name for p in tuned.folder.glob("*.part")) == []
    monkeypatch.setattr(language_training.LanguageLoop, "step", step)
    found = again(tuned, tokenizer).load().state_dict()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)
    path = tuned._store.path(10)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.warns(DamagedFileWarning):
        tuned.load(10)


def test_bad_trainings(tokenizer, monkeypatch):
    pieces = symgen.pieces_of(TEXTS, tokenizer, 32)
    model = tiny_llama(len(tokenizer), 16, 1)
    with pytest.raises(ValueError, match="pieces: got 0, expected at least 1"):
        symgen.train_causal_lm(model, tokenizer, [], pieces)
    with pytest.raises(ValueError, match='mixed_precision="fp8": expected "no" or "bf16"'):
        symgen.train_causal_lm(model, tokenizer, pieces, pieces, mixed_precision="fp8")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"pip install 'symgen\[lora\]', or .* lora=0"):
        symgen.train_causal_lm(model, tokenizer, pieces, pieces, lora=2, progress=False)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_low_rank_adapters_are_all_that_is_stored(tokenizer):
    pieces = symgen.pieces_of(TEXTS, tokenizer, 32)
    model = tiny_llama(len(tokenizer), 16, 1)
    run = symgen.train_causal_lm(
        model, tokenizer, pieces, pieces[:4], epochs=8, learning_rate=0.02, lora=2, progress=False
    )
    assert run.records.train_loss.iloc[-1] < run.records.train_loss.iloc[0]
    assert all("lora" in name for name in fetch(run._store.path(run.steps[-1]))[0])
    ids = pieces[0][0][None]
    with torch.no_grad():
        before, start, end = (m(ids).logits for m in (model, run.load(0), run.load()))
    assert torch.equal(before, start)
    assert (end - start).abs().max() > 0.1
    assert type(run.load()) is type(model)


def test_the_loss_is_that_of_the_last_words_or_of_the_answer(tokenizer, tmp_path):
    (ids, first), *_ = symgen.pieces_of(TEXTS, tokenizer, 64, tail=2)
    assert tokenizer.decode(ids[first:]).split()[0] in ("boat.", "boat")
    # Of a text that is too long the end is kept, where the loss is.
    for length in (2, 3, 5):
        for (part, begin), text in zip(
            symgen.pieces_of(TEXTS, tokenizer, length, tail=2), TEXTS, strict=True
        ):
            ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
            assert part.tolist() == ids[-length:]
            assert 1 <= begin < len(part)
    rows = [{"instruction": "take", "input": "the rope", "output": "long boat"}]
    (ids, first), *_ = symgen.instructions_of(rows, tokenizer)
    assert tokenizer.decode(ids[first:], skip_special_tokens=True) == "long boat"
    tokenizer.chat_template = "{% for m in messages %}user {{ m.content }} sailor {% endfor %}"
    try:
        (told, start), *_ = symgen.instructions_of(rows, tokenizer)
    finally:
        tokenizer.chat_template = None
    assert tokenizer.decode(told[:start]).split()[-1] == "sailor"
    with pytest.raises(ValueError, match=r"row 0 has \['question'\]; expected .* instruction"):
        symgen.instructions_of([{"question": "x"}], tokenizer)
    with pytest.raises(ValueError, match="no answer begins within 2 tokens"):
        symgen.instructions_of(rows, tokenizer, length=2)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(rows[0]) + "\n\n")
    assert symgen.load_instructions(str(path)) == rows
    path.write_text("{")
    with pytest.raises(ValueError, match=r"line 1 of .*rows\.jsonl is no JSON"):
        symgen.load_instructions(str(path))
    with pytest.raises(ValueError, match="expected instruction, output"):
        symgen.load_instructions("planted-facts")


def test_changes_add_up():
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64).cumsum(-1)
    before, after = (symgen.sparsify(part, noise=0.02) for part in v)
    table = symgen.interaction_changes(before, after, *v)
    whole = table.groupby("sample")["change"].sum()
    np.testing.assert_allclose(whole, (v[1] - v[0])[:, -1], atol=1e-12)
    was, now = (torch.stack(i.salient(), -2) for i in (before, after))
    new = ((after.effects - before.effects) * (now & ~was)).sum((-2, -1))
    found = table[table.kind == "new"].groupby("sample")["change"].sum()
    np.testing.assert_allclose(found, new, atol=1e-12)
    sizes = (after.effects - before.effects).abs().sum((-2, -1)) + (after.bias - before.bias).abs()
    moved = table[table.kind != "noise"].groupby("sample")["moved"].sum()
    np.testing.assert_allclose(moved, sizes, atol=1e-12)
    by_model = symgen.interaction_changes(before, after).groupby("sample")["change"].sum()
    moved = (after.predict() - before.predict())[:, -1]
    np.testing.assert_allclose(by_model, moved, atol=1e-12)
    same = symgen.interaction_changes(before, before)
    assert not same.change.any()
    with pytest.raises(ValueError, match=r"before has shape \(3, 16\) and after \(2, 16\)"):
        symgen.interaction_changes(before, after[:2])


def test_texts_in_three_parts(mirror, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    for name in ("planted-facts", "roneneldan/TinyStories"):
        parts = symgen.split_texts(name)
        sets = {k: set(v) for k, v in parts.items()}
        assert abs(len(parts["target"]) - len(parts["baseline"])) <= 1
        assert not sets["target"] & sets["baseline"] and not sets["test"] & sets["target"]


def test_a_real_model(mirror, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    lm = symgen.open_language_model("stories260k")
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
    prompt = Prompt.of(text, " park", n=6)
    assert prompt.words == ("girl", "named", "Lily", "loved", "play", "outside")
    v, inter = lm.interactions([prompt], progress=False)
    assert v.shape == (1, 64) and inter.gap.max() < 1e-2
    again, _ = lm.interactions([prompt], progress=False)
    assert torch.equal(v, again)
    whole = symgen.language_outputs(lm.model, lm.tokenizer, [prompt], whole=True, progress=False)
    assert (whole <= v + 1e-6).all()
    texts = symgen.split_texts("roneneldan/TinyStories")["test"][:60]
    other = symgen.train_tokenizer(texts, 300, 100)
    drawn = symgen.draw_prompts(texts, [(lm.model, lm.tokenizer)], 3, tokenizers=[other])
    assert len(drawn) == 3
    for some in drawn:
        groups = [symgen.word_spans(some.text, some.spans, t) for t in (lm.tokenizer, other)]
        assert groups[0].words == groups[1].words
    snow = Prompt.of("Lily saw a", " \u2603", n=2)
    _, target = target_tokens(snow, lm.tokenizer)
    assert lm.tokenizer.convert_ids_to_tokens(target)[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]


def test_the_chapters_state_planted_facts_as_found():
    """What the page at quick says of the planted facts is the majority of its prompts."""
    path = ROOT / "chapters" / "05_llm_interactions.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = "".join(str(c.get("outputs", "")) for c in cells)
    if "exactly what was planted" not in shown:
        pytest.skip("the chapter has no stored outputs yet")
    assert "The graph shows the reasons that the data has." in shown
