"""Causal language models: v of what follows a prompt, with words masked or left out."""

import warnings

import pytest
import torch

from symgen import memory
from symgen.data.texts import train_tokenizer
from symgen.fingerprints import reached
from symgen.masking.causal import SaturatedTargetWarning, check_causal
from symgen.masking.extraction import extract
from symgen.masking.mask_values import mean_embedding, word_value
from symgen.masking.outputs import masked_outputs
from symgen.masking.prompts import Prompt, first_probability, prompt_inputs, target_tokens
from symgen.masking.spans import TextVariables, word_spans
from symgen.memory import BatchSizeWarning
from symgen.split.sparsify import sparsify

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "In winter the doctor of the castle will find black amber near the river .",
]
PROMPTS = [
    Prompt.of("The tall sailor of the harbor will take the long", " rope", n=4),
    Prompt.of("In winter the doctor of the castle will find black", " amber", n=4),
]
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
# Rotary, learned and absolute positions: what is left out moves the rest.
CONFIGS = {
    "llama": lambda v: transformers.LlamaConfig(vocab_size=v, num_key_value_heads=2, **SIZES),
    "gpt2": lambda v: transformers.GPT2Config(
        vocab_size=v, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3
    ),
    "opt": lambda v: transformers.OPTConfig(
        vocab_size=v, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
        max_position_embeddings=64, word_embed_proj_dim=16, init_std=0.3, pad_token_id=0,
        bos_token_id=2, eos_token_id=3,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 20, 30)


def build(name, tokenizer):
    torch.manual_seed(1)
    config = CONFIGS[name](len(tokenizer))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def llama(tokenizer):
    return build("llama", tokenizer)


def outputs(model, tokenizer, prompts, masking="mean", *, whole=False, **options):
    inputs, variables = prompt_inputs(prompts, tokenizer, whole)
    value = word_value(model, tokenizer, masking)
    return masked_outputs(model, *inputs, variables, value, progress=False, **options)


@torch.no_grad()
def test_outputs_are_those_of_masking_by_hand(llama, tokenizer):
    v = outputs(llama, tokenizer, PROMPTS)
    value = mean_embedding(llama).value
    for row, prompt in enumerate(PROMPTS):
        groups = word_spans(prompt.text, prompt.spans, tokenizer).groups[0]
        ids, target = target_tokens(prompt, tokenizer)
        for state in (0, 5, 15):
            embedded = llama.get_input_embeddings()(ids[None]).clone()
            for i, group in enumerate(groups):
                if not state >> i & 1:
                    embedded[0, list(group)] = value
            p = llama(inputs_embeds=embedded).logits[0, -1].double().softmax(-1)[target[0]]
            torch.testing.assert_close(v[row, state], torch.logit(p), atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_removal_is_a_shorter_prompt(name, batch_size, tokenizer):
    model = build(name, tokenizer)
    v = outputs(model, tokenizer, PROMPTS, "remove", batch_size=batch_size)
    for row, prompt in enumerate(PROMPTS):
        groups = word_spans(prompt.text, prompt.spans, tokenizer).groups[0]
        ids, target = target_tokens(prompt, tokenizer)
        for state in range(16):
            away = [p for i, group in enumerate(groups) if not state >> i & 1 for p in group]
            rest = torch.tensor([t for p, t in enumerate(ids.tolist()) if p not in away])
            p = model(rest[None]).logits[0, -1].double().softmax(-1)[target[0]]
            torch.testing.assert_close(v[row, state], torch.logit(p), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        v[:, -1], outputs(model, tokenizer, PROMPTS)[:, -1], atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_logits_are_computed_where_they_are_needed(llama, tokenizer, masking):
    """After the prompt, or after each of the lengths that are left of it; not at every token."""
    seen = []
    head = llama.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, given, out: seen.append(out.shape[:2]))
    ids, _ = target_tokens(PROMPTS[0], tokenizer)
    outputs(llama, tokenizer, PROMPTS[:1], masking, batch_size=4)
    first_probability(llama, tokenizer, PROMPTS[0])
    handle.remove()
    checked, *rest = seen  # the first one is of two tokens, to see that the model is causal
    assert checked == (2, 2) and max(length for _, length in rest) <= (
        1 if masking == "mean" else 3
    )
    assert len(ids) > 5 and rest[-1] == (1, 1)


@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_v_is_float32_whatever_the_model_is(llama, tokenizer, masking):
    exact = outputs(llama, tokenizer, PROMPTS, masking)
    v = outputs(llama.bfloat16(), tokenizer, PROMPTS, masking)
    assert 1e-5 < (v - exact).abs().mean() / exact.std() < 0.3
    assert (v != v.bfloat16().double()).any()


@torch.no_grad()
@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_the_whole_target_is_the_sum_over_its_tokens(llama, tokenizer, masking):
    prompt = Prompt(PROMPTS[0].text, " boater", PROMPTS[0].spans)
    ids, target = target_tokens(prompt, tokenizer)
    one = len(target_tokens(PROMPTS[1], tokenizer)[1]) == 1
    assert len(target) > 1 and one
    v = outputs(llama, tokenizer, [PROMPTS[1], prompt], masking, whole=True)
    first = outputs(llama, tokenizer, [PROMPTS[1], prompt], masking)
    log_p = sum(
        llama(torch.cat([ids, torch.tensor(target[:i]).long()])[None])
        .logits[0, -1]
        .double()
        .log_softmax(-1)[target[i]]
        for i in range(len(target))
    )
    torch.testing.assert_close(v[1, -1], torch.logit(log_p.exp()), atol=1e-4, rtol=0)
    torch.testing.assert_close(v[0], first[0], atol=1e-6, rtol=0)
    assert (v[1] < first[1]).all()


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


def test_a_saturated_target_is_clipped_with_a_warning(llama, tokenizer):
    with pytest.warns(SaturatedTargetWarning, match=r"prompt 0: in \d+ of 16 .* to \+-16 there"):
        v = outputs(Sharp(llama, 100.0), tokenizer, PROMPTS[:1])
    assert v.abs().max() == 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs(llama, tokenizer, PROMPTS[:1])


def test_outputs_are_kept_for_the_tokens_that_follow(llama, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    calls, prompt = [], Prompt(PROMPTS[0].text, " boater", PROMPTS[0].spans)
    llama.register_forward_hook(lambda *_: calls.append(1))

    def ran(masking="mean", prompt=prompt, whole=False):
        calls.clear()
        v = outputs(llama, tokenizer, [prompt], masking, whole=whole, key={"network": 1})
        assert torch.equal(
            v, outputs(llama, tokenizer, [prompt], masking, whole=whole, key={"network": 1})
        )
        return len(calls) > 0

    assert ran() and not ran()
    assert ran(whole=True) and not ran(whole=True)
    assert ran("remove") and not ran("remove")
    assert ran("sailor") and not ran("sailor")
    assert ran(prompt=Prompt(prompt.text, " sailor", prompt.spans))
    assert ran(prompt=Prompt(prompt.text, prompt.target, prompt.spans[::-1]))
    assert not ran()


@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_all_code_that_outputs_depend_on_is_reached(llama, tokenizer, masking, functions_that_run):
    inputs, variables = prompt_inputs(PROMPTS, tokenizer, whole=True)
    value = word_value(llama, tokenizer, masking)

    def run():
        sparsify(masked_outputs(llama, *inputs, variables, value, progress=False))

    ran = functions_that_run(run)
    assert {"causal_outputs", "TextVariables", "present_at", "log_odds", "Program"} <= ran
    assert ("PrefixTree" in ran) == (masking == "mean")
    assert ran <= {name for name, _ in reached(masked_outputs, sparsify, TextVariables)}


def test_interactions_of_prompts_match_their_outputs(llama, tokenizer):
    inputs, variables = prompt_inputs(PROMPTS, tokenizer)
    found = extract(llama, inputs, variables, mean_embedding, noise=0.0, progress=False)
    torch.testing.assert_close(
        found.predict(), outputs(llama, tokenizer, PROMPTS), atol=1e-9, rtol=0
    )


def test_numbers_that_are_not_finite_are_told(llama, tokenizer):
    llama.lm_head.weight.data[5] = torch.nan
    for masking in ("mean", "remove"):
        with pytest.raises(FloatingPointError, match="sample 0: v is nan .* weights"):
            outputs(llama, tokenizer, PROMPTS, masking)


def test_more_words_than_can_be_held_are_refused_before_work(llama, tokenizer, monkeypatch):
    llama.register_forward_pre_hook(lambda *_: pytest.fail("the network runs"))
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**14)
    for masking in ("mean", "remove"):
        with pytest.raises(MemoryError, match=r"n = 4 .* 2 samples and the split"):
            outputs(llama, tokenizer, PROMPTS, masking)


def test_models_that_are_not_causal(tokenizer):
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), **(SIZES | {"initializer_range": 1.0})
    )
    both_ways = transformers.BertForMaskedLM(config).eval()
    with pytest.raises(
        ValueError, match=r"BertForMaskedLM is no causal .* the token after it; load"
    ):
        outputs(both_ways, tokenizer, PROMPTS)
    bare = transformers.BertModel(config).eval()
    with pytest.raises(ValueError, match="no logits for every token"):
        check_causal(bare, torch.tensor([2, 5, 6]))


def test_all_words_removed(llama):
    variables = TextVariables((((0,), (1,)),))
    with pytest.raises(ValueError, match="with all variables removed nothing is left to continue"):
        masked_outputs(llama, [torch.tensor([5, 6])], [1], variables, None, progress=False)


@pytest.mark.parametrize("masking", ["mean", "remove"])
def test_memory_that_runs_out_is_told(llama, tokenizer, monkeypatch, masking):
    monkeypatch.setattr("symgen.masking.causal.check_causal", lambda *_: None)

    def refuse(module, args, kwargs):
        if kwargs.get("past_key_values") is not None or masking == "remove":
            raise torch.OutOfMemoryError("CUDA out of memory")

    llama.model.layers[1].register_forward_pre_hook(refuse, with_kwargs=True)
    with (
        pytest.warns(BatchSizeWarning),
        pytest.raises(MemoryError, match=r"ran out on a single masked state; use a smaller"),
    ):
        outputs(llama, tokenizer, PROMPTS[:1], masking, batch_size=4)
