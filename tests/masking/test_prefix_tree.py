"""Causal language models: the prefix tree, the plain way and masking by hand give the same v."""

import warnings

import pytest
import torch
from torch import nn

from symgen.masking.mask_values import MaskValue, mean_embedding, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.prefix_tree import PrefixTree, PrefixTreeWarning, plain_runner
from symgen.masking.spans import TextVariables, phrase_spans, word_spans
from symgen.masking.states import run_all
from symgen.memory import BatchSizeWarning

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
# Rotary, learned and absolute positions; grouped queries; windows shorter than the prompts.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "mistral-window": lambda: transformers.MistralConfig(**GROUPED, sliding_window=6),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3
    ),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=64,
        word_embed_proj_dim=16,
        init_std=0.3,
    ),
}
# Mixtures of experts, with latent attention in the last.
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS |= {
    "mixtral": lambda: transformers.MixtralConfig(
        **GROUPED, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**GROUPED, **EXPERTS, num_experts=4),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(
        **SIZES, **EXPERTS, n_routed_experts=4, n_group=2, topk_group=1, n_shared_experts=1,
        kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1,
    ),
}  # fmt: skip
# Words, phrases, the first and the last token, and groups that lie inside one another.
GROUPS = (((1,), (3, 4, 8), (5,), (13,)), ((7,), (0,), (4, 5), (2,)), ((12,), (2, 5), (4, 7), (6,)))
VARIABLES = TextVariables(GROUPS)
TARGET = torch.tensor([0, 2, 96])


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, 97, (length,), generator=generator) for length in (14, 9, 14)]


def build(name):
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


@pytest.fixture(scope="module")
def llama():
    return build("llama")


@torch.no_grad()
def by_hand(model, prompts, target, variables, mask_value):
    """Mask embeddings one prompt and one state at a time."""
    v = torch.empty(len(prompts), 2**variables.n, dtype=torch.float64)
    for sample, ids in enumerate(prompts):
        for state in range(2**variables.n):
            embedded = model.get_input_embeddings()(ids[None]).clone()
            for i, group in enumerate(variables.groups[sample]):
                if not state >> i & 1:
                    embedded[0, list(group)] = mask_value.value.to(embedded.dtype)
            p = model(inputs_embeds=embedded).logits[0, -1].double().softmax(-1)
            v[sample, state] = (p[target[sample]] / (1 - p[target[sample]])).log()
    return v


@pytest.mark.parametrize("name", CONFIGS)
def test_tree_equals_masking_by_hand(name, prompts):
    model = build(name)
    mask_value = mean_embedding(model)
    expected = by_hand(model, prompts, TARGET, VARIABLES, mask_value)
    assert expected.std(1).min() > 0.01
    for batch_size in (None, 3):
        v = masked_outputs(
            model, prompts, TARGET, VARIABLES, mask_value, batch_size, progress=False
        )
        torch.testing.assert_close(v, expected, atol=1e-4, rtol=0)
    with torch.inference_mode():
        plain = run_all(_plain(model, prompts, mask_value), 5, False)
    torch.testing.assert_close(plain, expected, atol=1e-4, rtol=0)


def _plain(model, prompts, mask_value):
    with torch.inference_mode():
        return plain_runner(model, prompts, TARGET, VARIABLES, mask_value)


def calls_of(module, run):
    """Return the (rows, tokens) of each forward call of a module while something runs."""
    shapes = []
    handle = module.register_forward_pre_hook(
        lambda m, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    with torch.inference_mode():
        run()
    handle.remove()
    return shapes


def test_a_tree_makes_one_call_a_variable(llama, prompts):
    runner = _plain(llama, prompts, mean_embedding(llama))
    tree, other = (PrefixTree(runner, index) for index in (0, 1))
    shapes = calls_of(llama.model, lambda: tree.run(16))
    assert shapes == [(1, 1), (2, 2), (4, 2), (8, 8), (16, 1)]
    assert tree.tokens == sum(rows * length for rows, length in shapes) == 93
    # A prompt that begins with a variable needs no call before the first doubling.
    assert calls_of(llama.model, lambda: other.run(16))[0] == (2, 2)


def test_rows_are_bounded_and_no_token_runs_twice(llama, prompts):
    runner = _plain(llama, prompts, mean_embedding(llama))
    tree = PrefixTree(runner, 0)
    for limit in (1, 3, 8):
        shapes = calls_of(llama.model, lambda limit=limit: tree.run(limit))
        assert max(rows for rows, _ in shapes) <= limit
        assert sum(rows * length for rows, length in shapes) == tree.tokens


def test_logits_are_made_at_the_last_position_only(llama, prompts):
    seen = []
    handle = llama.lm_head.register_forward_hook(lambda m, a, output: seen.append(output.shape))
    runner = _plain(llama, prompts, mean_embedding(llama))
    with torch.inference_mode():
        PrefixTree(runner, 0).run(16)
    handle.remove()
    # At the root, where it is not known yet which layer is the last, and for the outputs.
    assert seen == [(1, 1, 97), (16, 1, 97)]


def test_what_no_level_needs_is_neither_run_nor_kept(llama, prompts):
    runner = _plain(llama, prompts, mean_embedding(llama))
    tree, caches, calls = PrefixTree(runner, 0), [], []
    handles = [
        llama.model.layers[-1].mlp.register_forward_hook(lambda m, a, out: calls.append(len(out))),
        llama.model.register_forward_pre_hook(
            lambda m, a, kwargs: caches.append(kwargs["past_key_values"]), with_kwargs=True
        ),
    ]
    with torch.inference_mode():
        tree.run(16)
    for handle in handles:
        handle.remove()
    # Between the root and the outputs, only the keys and values of the last layer are used.
    assert calls == [1, 16]
    lengths = [[layer.get_seq_length() for layer in cache.layers] for cache in caches]
    assert lengths == [[end] * 3 for end in (*tree.bounds[1:-1], tree.bounds[-2])]


def test_prompts_as_a_padded_batch(llama, prompts):
    mask_value = token_embedding(llama, 3)
    expected = masked_outputs(llama, prompts, TARGET, VARIABLES, mask_value, progress=False)
    ids = nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(p) for p in prompts], batch_first=True)
    x = {"input_ids": ids, "attention_mask": mask}
    v = masked_outputs(llama, x, TARGET, VARIABLES, mask_value, progress=False)
    assert torch.equal(v, expected)
    first = masked_outputs(
        llama, prompts[0][None], TARGET[:1], VARIABLES[0], mask_value, progress=False
    )
    assert torch.equal(first, expected[:1])


def test_v_is_computed_in_float32_from_a_half_precision_model(prompts):
    model = build("llama")
    mask_value = mean_embedding(model)
    exact = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)
    model = model.bfloat16()
    v = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)
    error = (v - exact).abs().mean() / exact.std()
    assert 1e-5 < error < 0.2
    assert len(v.unique()) > 40  # rounded to bfloat16, many would coincide


def test_memory_that_runs_out_halves_the_batch(prompts):
    model = build("llama")
    mask_value = mean_embedding(model)
    expected = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)

    def refuse(module, args, kwargs):
        if len(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.model.layers[1].register_forward_pre_hook(refuse, with_kwargs=True)
    with pytest.warns(BatchSizeWarning) as caught:
        v = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, 16, progress=False)
    assert ["halved to 8" in str(w.message) for w in caught] == [True, False]
    torch.testing.assert_close(v, expected, atol=1e-5, rtol=0)


def test_models_whose_cache_is_of_another_kind_run_the_plain_way(prompts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    mask_value = mean_embedding(model)
    expected = by_hand(model, prompts, TARGET, VARIABLES, mask_value)
    with pytest.warns(PrefixTreeWarning, match=r"MambaForCausalLM runs in full"):
        v = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)
    torch.testing.assert_close(v, expected, atol=1e-4, rtol=0)


def test_a_cache_that_gives_other_numbers_is_noticed(prompts):
    model = build("llama")
    attention = model.model.layers[0].self_attn

    def forget(module, args, kwargs, output):
        if kwargs.get("past_key_values") is not None and output[0].shape[0] > 1:
            return (output[0] * 0.5, *output[1:])

    attention.register_forward_hook(forget, with_kwargs=True)
    mask_value = mean_embedding(model)
    with pytest.warns(PrefixTreeWarning, match=r"a prefix tree changes v by"):
        masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)


class Recurrent(nn.Module):
    """A causal language model that is nobody's: ids in, logits at each position out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 8)
        self.cell = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 97)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[0])


def test_any_causal_network_runs_the_plain_way(prompts):
    torch.manual_seed(0)
    model = Recurrent()
    mask_value = token_embedding(model, 0)
    with pytest.warns(PrefixTreeWarning, match=r"its forward takes no past_key_values"):
        v = masked_outputs(model, prompts, TARGET, VARIABLES, mask_value, progress=False)
    with torch.no_grad():
        ids = prompts[1].clone()
        ids[list(GROUPS[1][3])] = 0  # Masked by token 0's embedding: as if it were token 0.
        p = model(ids[None])[0, -1].double().softmax(-1)[2]
    torch.testing.assert_close(v[1, 0b0111], (p / (1 - p)).log(), atol=1e-5, rtol=0)


def test_bad_prompts(llama, prompts):
    mask_value = mean_embedding(llama)
    target = torch.tensor([0, 97, 0])
    with pytest.raises(ValueError, match=r"label of sample 1 is 97, .* in 0\.\.96"):
        masked_outputs(llama, prompts, target, VARIABLES, mask_value)
    with pytest.raises(ValueError, match="x has 2 samples, target 3 and variables 3"):
        masked_outputs(llama, prompts[:2], TARGET, VARIABLES, mask_value)
    wrong = TextVariables(GROUPS, (), (14, 8, 14))
    with pytest.raises(ValueError, match=r"prompt 1 has 9 tokens, .* were made for 8"):
        masked_outputs(llama, prompts, TARGET, wrong, mask_value)
    with pytest.raises(ValueError, match="covers token 9 but the input has 9"):
        masked_outputs(
            llama, prompts, TARGET, TextVariables((((1,),), ((9,),), ((1,),))), mask_value
        )
    with pytest.raises(ValueError, match=r"value has shape \(31,\)"):
        masked_outputs(
            llama, prompts, TARGET, VARIABLES, MaskValue(torch.zeros(31), mask_value.layer)
        )
    with pytest.raises(ValueError, match="batch_size = 0"):
        masked_outputs(llama, prompts, TARGET, VARIABLES, mask_value, 0)


def test_numbers_that_are_not_finite_are_told_with_their_sample(prompts):
    model = build("llama")
    mask_value = mean_embedding(model)
    # The last token of the third prompt, which no other prompt has, is what is broken.
    ids = [prompt.clamp(max=95) for prompt in prompts]
    ids[2][-1] = 96
    handle = model.model.register_forward_hook(
        lambda module, arguments, options, output: broken(options, output), with_kwargs=True
    )

    def broken(options, output):
        output.last_hidden_state[:, -1][options["input_ids"][:, -1] == 96] = torch.inf

    with pytest.raises(FloatingPointError, match=r"sample 2: v is nan in masked state 0"):
        masked_outputs(model, ids, TARGET, VARIABLES, mask_value, progress=False)
    handle.remove()
    model.lm_head.weight.data[5] = torch.nan
    with pytest.raises(FloatingPointError, match=r"sample 0: v is nan with nothing masked"):
        masked_outputs(model, ids, TARGET, VARIABLES, mask_value, progress=False)


def test_a_real_model(mirror):
    folder = mirror / "karpathy" / "tinyllamas" / "stories260K"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
    words = ["Once", "time", "little girl", "Lily", "loved", "play", "outside"]
    variables = word_spans(text, phrase_spans(text, words), tokenizer)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        target = model(ids).logits[:, -1].argmax(1)
    mask_value = mean_embedding(model)
    v = masked_outputs(model, ids, target, variables, mask_value, progress=False)
    with torch.inference_mode():
        plain = run_all(plain_runner(model, [ids[0]], target, variables, mask_value), None, False)
    assert v.shape == (1, 128) and v.std() > 0.1
    torch.testing.assert_close(v, plain, atol=1e-4, rtol=0)
