"""Causal language models: the prefix tree, plain runs and masking by hand give the same v."""

import by_hand
import pytest
import torch
from torch import nn

from symgen.device import Batch, BatchSizeWarning
from symgen.masking.causal import RepeatedStartWarning, prepare_prompts
from symgen.masking.mask_values import mean_embedding, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.prefix_tree import PrefixTree, PrefixTreeWarning
from symgen.masking.states import run_all
from symgen.masking.variables import TextVariables

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
# Rotary, learned and absolute positions; grouped queries; windows shorter than the prompts;
# mixtures of experts, with latent attention in the last.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3
    ),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=64,
        max_position_embeddings=64, word_embed_proj_dim=16, init_std=0.3,
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
VARIABLES, TARGET = TextVariables(GROUPS), torch.tensor([0, 2, 96])
ONE = {"target": torch.tensor([2]), "variables": TextVariables((((0,),),))}
WITH_TYPES = dict.fromkeys(
    ["input_ids", "attention_mask", "token_type_ids"], torch.ones(1, 6, dtype=torch.long)
)


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, 97, (length,), generator=generator) for length in (14, 9, 14)]


def build(name="llama", **options):
    torch.manual_seed(1)
    config = CONFIGS[name]()
    config.update(options)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def llama():
    return build()


def hand(model, prompts, value, target=TARGET, groups=GROUPS):
    def run(embedded, _):
        return model(inputs_embeds=embedded).logits[0, -1]

    return by_hand.of_texts(run, model.get_input_embeddings(), prompts, target, groups, value)


@pytest.mark.parametrize("name", CONFIGS)
def test_tree_and_plain_runs_equal_masking_by_hand(name, prompts):
    model = build(name)
    mask_value = mean_embedding(model)
    expected = hand(model, prompts, mask_value.value)
    assert expected.std(1).min() > 0.01
    given = model, prompts, TARGET, VARIABLES, mask_value
    for size in (None, 3):
        by_hand.equal(masked_outputs(*given, size), expected)
    with torch.inference_mode():
        plain = run_all(prepare_prompts(*given), torch.arange(16), Batch(5), False)
    by_hand.equal(plain, expected)


def test_a_tree_runs_no_token_twice_and_needs_logits_at_the_last_position_only(llama, prompts):
    shapes, heads = [], []
    handles = [
        llama.model.register_forward_pre_hook(
            lambda m, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
            with_kwargs=True,
        ),
        llama.lm_head.register_forward_hook(lambda m, a, output: heads.append(output.shape)),
    ]
    with torch.inference_mode():
        prepared = prepare_prompts(llama, prompts, TARGET, VARIABLES, mean_embedding(llama))
        masked = prepared.masked(0)
        for limit in (1, 3, 16):
            shapes.clear()
            heads.clear()
            PrefixTree(prepared.network, masked, limit)
            assert max(rows for rows, _ in shapes) <= limit
            assert sum(rows * length for rows, length in shapes) == 93
            assert {length for _, length, _ in heads} == {1}
    for handle in handles:
        handle.remove()
    assert shapes == [(1, 1), (2, 2), (4, 2), (8, 8), (16, 1)]
    # In between, only the keys and values of the last layer are needed.
    assert heads == [(1, 1, 97), (16, 1, 97)]


def test_prompts_as_a_padded_batch(llama, prompts):
    mask_value = token_embedding(llama, 3)
    expected = masked_outputs(llama, prompts, TARGET, VARIABLES, mask_value)
    ids = nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(p) for p in prompts], batch_first=True)
    x = {"input_ids": ids, "attention_mask": mask}
    assert torch.equal(masked_outputs(llama, x, TARGET, VARIABLES, mask_value), expected)


def test_v_is_computed_in_float32_from_a_half_precision_model(prompts):
    model = build()
    exact = masked_outputs(model, prompts, TARGET, VARIABLES, mean_embedding(model))
    model = model.bfloat16()
    with pytest.warns(UserWarning, match=r"runs in bfloat16, .*Load it in float32"):
        v = masked_outputs(model, prompts, TARGET, VARIABLES, mean_embedding(model))
    assert 1e-5 < (v - exact).abs().mean() / exact.std() < 0.3
    assert (v != v.bfloat16().double()).any()


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_removal_is_a_shorter_prompt(name, prompts):
    model = build(name)
    for size in (None, 3):
        v = masked_outputs(model, prompts, TARGET, VARIABLES, None, size)
    for row, ids in enumerate(prompts):
        for state in range(16):
            away = [p for i, g in enumerate(GROUPS[row]) if not state >> i & 1 for p in g]
            rest = torch.tensor([t for p, t in enumerate(ids.tolist()) if p not in away])
            expected = by_hand.odds(model(rest[None]).logits[0, -1], int(TARGET[row]))
            by_hand.equal(v[row, state], expected)


@torch.no_grad()
def test_the_whole_target_is_the_sum_over_its_tokens(prompts):
    llama = build(initializer_range=0.1)
    targets = [[0], [2, 7, 30], [96]]
    given = VARIABLES, mean_embedding(llama)
    v, first = (masked_outputs(llama, prompts, t, *given) for t in (targets, TARGET))
    log_p = 0
    for i in range(3):
        ids = torch.cat([prompts[1], torch.tensor(targets[1][:i], dtype=torch.long)])
        log_p = log_p + llama(ids[None]).logits[0, -1].double().log_softmax(-1)[targets[1][i]]
    by_hand.equal(v[1, -1], torch.logit(log_p.exp()), 1e-4)
    by_hand.equal(v[0], first[0], 1e-6)


def test_memory_that_runs_out_halves_the_batch(prompts):
    model = build()
    given = model, prompts, TARGET, VARIABLES, mean_embedding(model)
    expected = masked_outputs(*given)

    def refuse(module, args, kwargs):
        if len(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.model.layers[1].register_forward_pre_hook(refuse, with_kwargs=True)
    with pytest.warns(BatchSizeWarning, match="halved to"):
        v = masked_outputs(*given, 16)
    by_hand.equal(v, expected)


class Recurrent(nn.Module):
    """A causal language model of your own: ids in, logits at each position out."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(97, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 97)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[0])


def forgetful():
    """Attention that is wrong on caches only."""

    def forget(module, args, kwargs, output):
        cache = kwargs.get("cache") or kwargs.get("past_key_values")
        if cache is not None and len(output[0]) > 1:
            return (output[0] * 0.5, *output[1:])

    model = build()
    model.model.layers[0].self_attn.register_forward_hook(forget, with_kwargs=True)
    return model


def stretched():
    """Rotary positions that depend on the length of the text so far; effects are small."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = build(max_position_embeddings=6, rope_parameters=rope)
    nn.init.normal_(model.lm_head.weight, std=1e-3)
    return model


def hybrid():
    kinds = ["conv", "full_attention"]
    sizes = GROUPED | {"num_hidden_layers": 2}
    config = transformers.Lfm2Config(**sizes, layer_types=kinds)
    return transformers.Lfm2ForCausalLM(config).eval()


@pytest.mark.parametrize(
    "kind, reason",
    [
        (Recurrent, "TypeError: .*past_key_values|input_ids"),
        (forgetful, "v of masked state .* with its cache"),
        (stretched, "v of masked state .* with its cache"),
        (hybrid, "keys and values in every layer .IndexError"),
    ],
)
def test_models_whose_cache_does_not_fit_run_in_full(prompts, kind, reason):
    torch.manual_seed(0)
    model = kind()
    mask_value = token_embedding(model, 0)
    ids = prompts[1].clone()
    with pytest.warns(PrefixTreeWarning, match=f"{type(model).__name__} runs in full .*{reason}"):
        v = masked_outputs(model, [ids], TARGET[1:2], VARIABLES[1], mask_value)
    ids[list(GROUPS[1][3])] = 0  # Masked by the embedding of token 0: as if it were token 0.
    with torch.no_grad():
        output = model(ids[None])
    logits = output if isinstance(output, torch.Tensor) else output.logits
    by_hand.equal(v[0, 0b0111], by_hand.odds(logits[0, -1], 2))


@torch.no_grad()
def test_v_of_a_saturated_target_is_not_clipped(prompts):
    model, prompt = build(vocab_size=9), prompts[0] % 9
    nn.init.normal_(model.lm_head.weight, std=30.0)
    given = VARIABLES[0], mean_embedding(model)
    z = model(prompt[None]).logits[0, -1].double()
    likely = int(z.argmax())
    exact = [z[k] - z[torch.arange(9) != k].logsumexp(0) for k in range(9)]
    for target in (likely, int(z.argmin())):
        v = masked_outputs(model, [prompt], [target], *given)
        assert exact[target].abs() > 16 and v.isfinite().all()
        torch.testing.assert_close(v[0, -1], exact[target], atol=0, rtol=1e-5)
    # All second tokens together are certain, so they leave the odds of the first.
    more = [masked_outputs(model, [prompt], [[likely, k]], *given)[0, -1] for k in range(9)]
    either = nn.functional.logsigmoid(torch.stack(more)).logsumexp(0)
    expected = nn.functional.logsigmoid(exact[likely])
    by_hand.equal(either, expected)


def test_a_repeated_start_is_noticed(prompts):
    model = build(bos_token_id=7)
    twice = [torch.cat([torch.tensor([7, 7]), prompts[1]])]
    with pytest.warns(RepeatedStartWarning, match="token 7 twice.*remove it from the text"):
        masked_outputs(model, twice, [1], VARIABLES[1], mean_embedding(model))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"variables": TextVariables(GROUPS, (), (14, 8, 14))}, "sample 1 has 9 tokens, .* for 8"),
        ({"variables": TextVariables((((1,),), ((9,),), ((1,),)))}, "token 9 but the input has 9"),
        ({"x": [torch.full((14,), 97)] * 3}, "has the token 97, but LlamaForCausalLM has .* 0..96"),
        ({"x": [torch.ones(65).long()] * 3}, "has 65 tokens, but LlamaForCausalLM reads 64"),
        ({"target": [[1] * 60, [2], [3]]}, "has 73 tokens, but LlamaForCausalLM reads 64"),
        ({"target": [[1], [], [3]]}, "a target has no tokens"),
        ({"x": [torch.full((14,), -100)] * 3}, "has the token -100, but LlamaForCausalLM has"),
        ({"x": [torch.ones(1, 14).long()] * 3}, r"tokens of shape \(1, 14\); expected a list"),
        ({"x": WITH_TYPES, **ONE}, r"takes no \['token_type_ids'\] here"),
        ({"x": [torch.ones(1).long()], "mask_value": None, **ONE}, "all tokens of a prompt are"),
    ],
)
def test_refusals(llama, prompts, changes, message):
    given = {
        "x": prompts, "target": TARGET, "variables": VARIABLES, "mask_value": mean_embedding(llama)
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        masked_outputs(llama, **given | changes)


@pytest.mark.parametrize("start", [0, 1])
def test_padding_on_the_left_needs_a_mask(prompts, start):
    model = build(pad_token_id=0, bos_token_id=start)
    given = {"target": TARGET[:1], "mask_value": mean_embedding(model)}
    ids = torch.cat([torch.tensor([start]), prompts[0][prompts[0] > 1][:5]])
    variables = TextVariables((((2,), (3,)),))
    masked_outputs(model, ids[None], variables=variables, **given)
    ids = torch.cat([torch.zeros(2, dtype=torch.long), ids])
    with pytest.raises(ValueError, match="ids are padded, but there is no attention mask"):
        masked_outputs(model, ids[None], variables=variables, **given)
