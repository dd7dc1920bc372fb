"""Text classifiers: v equals masking embeddings by hand; inputs are read as they were given."""

import by_hand
import pytest
import torch
from torch import nn

from symgen.masking.mask_values import (
    MaskValue,
    mean_embedding,
    token_embedding,
    word_embedding,
)
from symgen.masking.outputs import masked_outputs
from symgen.masking.variables import TextVariables

transformers = pytest.importorskip("transformers")

GROUPS = (((1,), (3, 4), (5,)), ((1,), (2,), (4, 5)), ((8,), (2,), (5,)))
TEXTS = TextVariables(GROUPS)
LENGTHS = (9, 6, 9)
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "initializer_range": 0.3,
}  # fmt: skip


class Sentences(nn.Module):
    """A text network of your own: ids in, logits out."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[1][0])


class Side(nn.Module):
    """A text network with inputs that are not tokens: a history, a number, and a flag."""

    def __init__(self):
        super().__init__()
        self.bert, self.more = bert(), nn.Linear(13, 3)
        self.config = self.bert.config

    def get_input_embeddings(self):
        return self.bert.get_input_embeddings()

    def forward(self, input_ids, attention_mask, history, age, scale):
        logits = self.bert(input_ids, attention_mask).logits
        return scale * (logits + self.more(torch.cat([history, age[:, None]], 1)))


def bert(kind="BertForSequenceClassification", **options):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=3, **options)
    return getattr(transformers, kind)(config).eval()


@pytest.fixture
def texts():
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 9).long()
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([0, 2, 1])


def rows_of(x):
    return [ids[:length] for ids, length in zip(x["input_ids"], LENGTHS, strict=True)]


class Padded(nn.Module):
    """Layers of PyTorch with a padding mask; they would compute with nested tensors."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 3)

    def forward(self, input_ids, attention_mask):
        return self.from_embedded(self.embed(input_ids), attention_mask == 0)

    def from_embedded(self, embedded, is_padding):
        return self.head(self.encoder(embedded, src_key_padding_mask=is_padding)[:, 0])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "build, run",
    [
        (bert, lambda model, embedded: model(inputs_embeds=embedded).logits[0]),
        (Padded, lambda model, embedded: model.from_embedded(embedded, None)[0]),
        # It takes no mask, so all texts have nine tokens.
        (Sentences, lambda model, embedded: model.head(model.cell(embedded)[1][0, 0])),
    ],
)
def test_v_equals_masking_by_hand_for_every_batch_size(texts, build, run):
    x, target = texts
    torch.manual_seed(0)
    model = build().eval()
    rows = rows_of(x)
    if build is Sentences:
        x = x["input_ids"]
        rows = list(x)
    _, embedding = word_embedding(model)
    value = mean_embedding(model)
    torch.testing.assert_close(value.value, embedding.weight.mean(0))
    expected = by_hand.of_texts(
        lambda embedded, _: run(model, embedded), embedding, rows, target, GROUPS, value.value
    )
    assert expected.std(1).min() > 1e-3
    for size in (None, 1, 3, 16):
        by_hand.equal(masked_outputs(model, x, target, TEXTS, value, size), expected)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("width", [12, 9])
def test_side_inputs_are_not_cut_to_the_tokens(texts, width):
    """Only tensors whose second axis counts tokens may be shortened, not all of equal width."""
    (x, target), model = texts, Side().eval()
    generator = torch.Generator().manual_seed(1)
    history = torch.randn(3, 12, generator=generator)
    if width == 9:  # As many entries as there are tokens.
        model.more, history = nn.Linear(10, 3), history[:, :9]
    x = x | {"history": history, "age": torch.randn(3, generator=generator), "scale": 2.0}
    mask_value = token_embedding(model, 4)

    @torch.no_grad()
    def run(embedded, sample):
        more = torch.cat([x["history"][sample], x["age"][sample, None]])
        return 2 * (model.bert(inputs_embeds=embedded).logits[0] + model.more(more))

    expected = by_hand.of_texts(
        run, model.get_input_embeddings(), rows_of(x), target, GROUPS, mask_value.value
    )
    for rows in (slice(None), slice(1, 2)):  # Also a padded text by itself.
        some = {k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in x.items()}
        v = masked_outputs(model, some, target[rows], TEXTS[rows], mask_value)
        by_hand.equal(v, expected[rows])


class Weighted(Sentences):
    """Words are weighted by a number per token id: ids are read twice."""

    def forward(self, ids):
        weight = torch.arange(1.0, 51.0).log()[ids][..., None]
        return self.head((self.embed(ids) * weight).mean(1))


class Hashed(Sentences):
    """Two embeddings of the same ids."""

    def __init__(self):
        super().__init__()
        self.second = nn.Embedding(50, 8)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids) + self.second(ids))[1][0])


def test_language_models_that_read_ids_twice_are_refused(texts):
    torch.manual_seed(0)
    config = transformers.Gemma3nTextConfig(
        vocab_size=50, vocab_size_per_layer_input=50, hidden_size=32, intermediate_size=32,
        hidden_size_per_layer_input=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_kv_shared_layers=0, altup_num_inputs=2,
        laurel_rank=4, activation_sparsity_pattern=[0.0] * 2, initializer_range=0.3,
        layer_types=["full_attention"] * 2,
    )  # fmt: skip
    model = transformers.Gemma3nForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "correct_output_scale" in name:
            weight.data.fill_(1.0)
    prompts = rows_of(texts[0])
    with pytest.raises(ValueError, match="reads token ids a second time"):
        masked_outputs(model, prompts, texts[1], TEXTS, mean_embedding(model))
    assert masked_outputs(model, prompts, texts[1], TEXTS, None).isfinite().all()


def test_networks_that_ignore_padding_are_refused(texts):
    torch.manual_seed(0)
    config = transformers.FNetConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_labels=3,
        tpu_short_seq_length=9, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.FNetForSequenceClassification(config).eval()
    with pytest.raises(RuntimeError, match="FNet.* ignores the attention mask"):
        masked_outputs(model, *texts, TEXTS, mean_embedding(model))
    whole = {"input_ids": texts[0]["input_ids"]}
    assert masked_outputs(model, whole, texts[1], TEXTS, mean_embedding(model)).shape == (3, 8)


def positions_first():
    config = transformers.XLNetConfig(
        vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16, num_labels=3
    )
    return transformers.XLNetForSequenceClassification(config)


def quantized():
    config = transformers.IBertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    return transformers.IBertForSequenceClassification(config)


def with_decoder():
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    return transformers.T5ForConditionalGeneration(config)


def made_for(*lengths):
    return {"variables": TextVariables(GROUPS, (), lengths)}


@pytest.mark.parametrize(
    "build, message",
    [
        (Weighted, "reads token ids a second time"),
        (Hashed, "reads token ids a second time"),
        (lambda: bert(max_position_embeddings=8), "a text has 9 tokens, but .* reads 8"),
        (lambda: bert("BertForTokenClassification"), "changes with the token after it"),
        (lambda: bert("BertForMaskedLM"), "is not a causal language model: .* its output at a"),
        (positions_first, r"returns .9, 3, 16. for 3 samples; .* axis of samples first"),
        (with_decoder, "encoder-decoder network, which is not supported"),
        (quantized, "returns tuple, as in quantized networks such as"),
    ],
)
def test_networks_that_are_refused(texts, build, message):
    torch.manual_seed(0)
    model = build().eval()
    with pytest.raises(ValueError, match=message):
        masked_outputs(model, texts[0]["input_ids"], texts[1], TEXTS, mean_embedding(model))


@pytest.mark.parametrize(
    "changed, message",
    [
        (lambda x: made_for(9, 7, 9), "sample 1 has 6 tokens, .* 7"),
        (lambda x: {"x": x | {"attention_mask": x["attention_mask"].flip(1)}}, "padding_side='r"),
        (lambda x: {"mask_value": MaskValue(torch.zeros(32), None)}, "at the word embedding"),
        (lambda x: {"x": torch.zeros(3, 9)}, "x is Tensor torch.float32 of shape"),
        (lambda x: {"x": ["a", "b", "c"]}, "x holds texts; expected token ids"),
        (lambda x: {"x": x["input_ids"], **made_for(*LENGTHS)}, "no attention mask"),
        (lambda x: {"x": x["input_ids"] * x["attention_mask"]}, "no attention mask"),
        (lambda x: {"x": x | {"position_ids": torch.arange(9)[None]}}, r"shape \(1, 9\), but .* 3"),
    ],
)
def test_refusals(texts, changed, message):
    x, target = texts
    model = bert()
    given = {"x": x, "variables": TEXTS, "mask_value": mean_embedding(model)} | changed(x)
    with pytest.raises(ValueError, match=message):
        masked_outputs(model, target=target, **given)


def test_refused_tokens():
    with pytest.raises(ValueError, match=r"sample 0 has the variables \(\)"):
        TextVariables(((),))
    model = bert()
    for token in (50, -1):
        with pytest.raises(ValueError, match="expected a number from 0 to 49"):
            token_embedding(model, token)
    with pytest.raises(ValueError, match="Linear has no word embedding"):
        mean_embedding(nn.Linear(2, 2))
