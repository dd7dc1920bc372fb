"""Networks: every registered one builds, trains and is masked; published sizes; error messages."""

import io
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from symgen.data.texts import train_tokenizer
from symgen.masking.mask_values import find_layer, mean_embedding, mean_feature, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.patches import draw_patches
from symgen.masking.prompts import Prompt, prompt_inputs
from symgen.masking.spans import TextVariables
from symgen.models.language import (
    CAUSAL_LMS,
    load_causal_lm,
    open_language_model,
    tiny_llama,
    train_causal_lm,
)
from symgen.models.registry import NETWORKS, Network, build_network, load_weights

IMAGE = [name for name, line in NETWORKS.items() if line.kind == "image"]
TEXT = [name for name, line in NETWORKS.items() if line.kind == "text"]
SMALL_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip

# Networks this small gain nothing from a second thread.
pytestmark = pytest.mark.usefixtures("one_thread")


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def step(model: nn.Module, x, y: torch.Tensor, fall: float = 1e-3) -> tuple[float, float]:
    """One plain step by which the loss on the batch falls by `fall`; the loss before and after.

    In double precision and as short as that, because in a deep network of few samples the loss
    bends so soon that rounding decides whether a step of usual length lowers it.
    """
    model.train()
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        learned = [parameter for parameter in model.parameters() if parameter.grad is not None]
        squared = sum(parameter.grad.square().sum() for parameter in learned)
        with torch.no_grad():
            for parameter in learned:
                parameter -= fall / squared * parameter.grad
        losses.append(loss.item())
    model.eval()
    return losses[0], losses[1]


def test_every_network_of_the_paper_is_registered():
    assert {
        "vgg11", "vgg16", "vgg19", "resnet18", "resnet50", "resnet101", "resnet20",
        "bert-tiny", "bert-medium", "bert-large",
    } <= set(NETWORKS)  # fmt: skip
    assert {"Qwen/Qwen2.5-7B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"} <= set(
        CAUSAL_LMS.values()
    )


@pytest.mark.parametrize("name", IMAGE)
def test_image_networks_train_and_are_masked(name):
    torch.manual_seed(0)
    size = 32 if name.startswith("vgg") else 16
    x, y = torch.randn(2, 3, size, size), torch.tensor([0, 2])
    model = build_network(name, classes=3, image_size=size)
    assert not model.training and model(x).shape == (2, 3)
    before, after = step(model.double(), x.double(), y)
    assert before - after == pytest.approx(1e-3, rel=0.1)
    model.float()
    layer = find_layer(model)
    assert isinstance(dict(model.named_modules())[layer], nn.ReLU)
    variables = draw_patches(1, n=2)
    value = mean_feature(model, x, layer=layer)
    v = masked_outputs(model, x[:1], y[:1], variables, value, progress=False)
    assert v.shape == (1, 4) and v.isfinite().all()


@pytest.mark.parametrize("name", TEXT)
def test_text_networks_train_and_are_masked(name):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    x = {"input_ids": torch.randint(5, 50, (4, 7)), "attention_mask": torch.ones(4, 7).long()}
    y = torch.tensor([0, 1, 2, 0])
    model = build_network(name, classes=3, vocabulary=50, **SMALL_BERT)
    assert torch.equal(model(x), model(**x)) and model(x["input_ids"]).shape == (4, 3)
    before, after = step(model.double(), x, y)
    assert before - after == pytest.approx(1e-3, rel=0.1)
    model.float()
    assert find_layer(model).endswith("word_embeddings")
    variables = TextVariables((((1,), (2, 3)),))
    one = {key: value[:1] for key, value in x.items()}
    v = masked_outputs(model, one, y[:1], variables, token_embedding(model, 4), progress=False)
    assert v.shape == (1, 4) and v.isfinite().all()


@pytest.mark.parametrize(
    "name, published",
    [
        # torchvision's tables, at 1,000 classes and 224 pixels.
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("vgg11", 132_863_336),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
    ],
)
def test_published_sizes_of_image_networks(name, published):
    with torch.device("meta"):
        assert parameters(build_network(name, classes=1000, image_size=224)) == published


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}, {"image_size": 64}])
def test_a_slim_vgg_has_the_layers_of_the_whole_one_a_quarter_as_wide(options):
    with torch.device("meta"):
        whole, slim = (build_network("vgg11", width=w, **options) for w in (64, 16))
    kinds = (nn.Conv2d, nn.Linear)
    pairs = [
        ([*a.weight.shape[:2]], [*b.weight.shape[:2]])
        for a, b in zip(whole.modules(), slim.modules(), strict=True)
        if isinstance(a, kinds)
    ]
    assert len(pairs) == 11
    for wide, narrow in pairs:
        assert narrow == [size if size in (3, 10) else size // 4 for size in wide]


def test_published_size_of_resnet20():
    # He et al. 2016, Table 6: 0.27 million.
    with torch.device("meta"):
        model = build_network("resnet20")
    assert parameters(model) == 269_722
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) == 20


@pytest.mark.parametrize(
    "name, published",
    [
        # google/bert_uncased_L-*_H-* and bert-large-uncased, without classifier.
        ("bert-tiny", 4_385_920),
        ("bert-mini", 11_170_560),
        ("bert-small", 28_763_648),
        ("bert-medium", 41_373_184),
        ("bert-large", 335_141_888),
    ],
)
def test_published_sizes_of_text_networks(name, published):
    pytest.importorskip("transformers")
    with torch.device("meta"):
        model = build_network(name, classes=2)
    hidden = model.model.config.hidden_size
    assert parameters(model) - 2 * (hidden + 1) == published


@pytest.mark.parametrize("name", ["cnn", "resnet18", "vgg11", "bert-micro"])
def test_weights_follow_from_the_seed_alone(name):
    def weights(seed):
        return list(build_network(name, seed=seed).state_dict().values())

    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, weights(2), strict=True))


@pytest.mark.parametrize("size, side", [(20, 20), (32, 32), (64, 32), (96, 24)])
def test_small_images_get_a_stem_that_keeps_their_size(size, side):
    model = build_network("resnet18", image_size=size)
    seen = []
    model.layer1.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape[-1]))
    model(torch.zeros(1, 3, size, size))
    assert seen == [side]


def test_first_relu_is_found_by_running():
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.early = nn.ReLU(), nn.ReLU()

        def forward(self, x):
            return self.late(self.early(x)).flatten(1)

    assert find_layer(Reversed()) == "early"
    assert find_layer(build_network("cnn"), "conv2") == "conv2"
    with pytest.raises(ValueError, match=r"no layer 'conv4'; nearest names: conv"):
        find_layer(build_network("cnn"), "conv4")


def test_functional_relu_is_reported():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3 * 32 * 32, 2)

        def forward(self, x):
            return self.linear(x.flatten(1)).relu()

    with pytest.raises(ValueError, match=r"calls no ReLU module.*name the layer.*linear"):
        find_layer(Functional())


def test_own_network_is_one_registry_entry(monkeypatch):
    def build(classes, channels, image_size):
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))

    monkeypatch.setitem(NETWORKS, "mine", Network(build))
    assert build_network("mine", classes=4)(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"name": "resnet8"}, 'unknown network "resnet8"; known are .*Did you mean "resnet'),
        ({"name": "cnn", "widht": 4}, 'network "cnn" does not take .*widht'),
        ({"name": "bert-tiny", "hiden_size": 4}, 'no hiden_size.*Did you mean "hidden_size"'),
    ],
)
def test_wrong_names(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_network(**arguments)


def test_weights_of_another_architecture_name_the_difference():
    model = build_network("cnn", image_size=20)
    with pytest.raises(ValueError, match=r"of another architecture .*Missing .*conv1\.bias"):
        load_weights(model, build_network("resnet20").state_dict())
    with pytest.raises(ValueError, match=r"linear\.weight: .*\[10, 2048\].*\[10, 800\]"):
        load_weights(model, build_network("cnn", image_size=32).state_dict())


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'symgen\[llm\]'"):
        build_network("bert-tiny")


def test_model_without_network_names_both_ways(monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")

    def unreachable(*_, **__):
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", unreachable)
    with pytest.raises(FileNotFoundError, match=r"connect this machine.*SYMGEN_DATA.*config.json"):
        load_causal_lm("Qwen/Qwen2.5-7B")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"not in from_pretrained format.*config.json"):
        load_causal_lm(str(tmp_path))
    with pytest.raises(ValueError, match=r'dtype="bfloat" is unknown.*Did you mean "bfloat16"'):
        load_causal_lm("Qwen/Qwen2.5-7B", dtype="bfloat")
    with pytest.raises(ValueError, match=r'unknown language model "qwen2-7b".*"qwen2.5-7b"'):
        load_causal_lm("qwen2-7b")


def test_causal_language_model_of_the_mirror(mirror, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    model, tokenizer = load_causal_lm("stories260k", dtype="float32")
    assert parameters(model) == 260_032 and not model.training
    prompt = tokenizer("Once upon a", return_tensors="pt").input_ids
    with torch.no_grad():
        following = model(prompt.to(model.device)).logits[0, -1].argmax()
    assert tokenizer.decode(following).strip() == "time"
    assert find_layer(model) == "model.embed_tokens"


@pytest.fixture
def stored_model(tmp_path):
    """A causal language model in a folder, and what places its first layer on the disk."""
    pytest.importorskip("transformers")
    texts = ["the cat sat on the mat and the dog ran after the ball in the park"] * 5
    tokenizer = train_tokenizer(texts, 100, pieces=100)
    folder = tmp_path / "own" / "model"
    tiny_llama(len(tokenizer), 16, 2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    names = ("model.embed_tokens", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")
    return str(folder), {"model.layers.0": "disk"} | dict.fromkeys(names, "cpu")


def test_an_absolute_folder_needs_no_place_among_the_data(stored_model, tmp_path, monkeypatch):
    folder, _ = stored_model
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    assert parameters(load_causal_lm(folder)[0]) == parameters(load_causal_lm("own/model")[0])
    monkeypatch.chdir(tmp_path)
    assert open_language_model("./own/model").name == "model"
    with pytest.raises(FileNotFoundError, match=r'no folder ".*nowhere"; expected .* config.json'):
        load_causal_lm(str(tmp_path / "nowhere"))


def test_a_model_with_layers_on_the_disk_gives_the_same(stored_model):
    folder, placed = stored_model
    prompt = Prompt.of("the cat sat on the mat and the dog ran after the", " ball", n=4)
    whole = open_language_model(folder)
    spread = open_language_model(folder, device_map=placed)
    assert any(p.is_meta for p in spread.model.parameters())
    assert spread.key == whole.key
    inputs, variables = prompt_inputs([prompt], whole.tokenizer)
    v, w = (
        masked_outputs(m.model, *inputs, variables, mean_embedding(m.model), progress=False)
        for m in (whole, spread)
    )
    assert torch.allclose(v, w, atol=1e-5)
    with pytest.raises(ValueError, match="aside on a disk"):
        train_causal_lm(
            spread.model, spread.tokenizer, [(torch.arange(4), 0)], [(torch.arange(4), 0)]
        )
    everything = {**placed, "model.embed_tokens": "disk"}
    with pytest.raises(MemoryError, match="token embedding"):
        load_causal_lm(folder, device_map=everything)


def test_a_model_with_another_setting_is_another_model(stored_model):
    folder = Path(stored_model[0])
    before = open_language_model(str(folder)).key
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1e-2
    (folder / "config.json").write_text(json.dumps(config))
    assert open_language_model(str(folder)).key != before


def test_a_classifier_of_other_classes_is_refused_in_words(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"classifier of 3 classes, and the data has 2; .*num_labels=2"
    ):
        build_network(str(tmp_path), classes=2)
    assert build_network(str(tmp_path), classes=3)
    # Without a head that was trained, any number will do.
    transformers.BertModel(config).save_pretrained(tmp_path)
    assert build_network(str(tmp_path), classes=2)


def test_code_that_comes_with_a_model_is_never_run(stored_model, monkeypatch):
    folder = Path(stored_model[0])
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {
        "AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with pytest.raises(ValueError, match="not in from_pretrained format"):
        load_causal_lm(str(folder))
    assert not (folder / "ran").exists()


def test_fine_tuning_starts_from_a_stored_classifier(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    stored = build_network("bert-tiny", classes=2, vocabulary=50, **SMALL_BERT).model
    stored.save_pretrained(tmp_path / "me" / "classifier")
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    model = build_network("me/classifier", classes=2)
    assert isinstance(model.model, transformers.BertForSequenceClassification)
    for key, value in stored.state_dict().items():
        assert torch.equal(model.model.state_dict()[key], value)
