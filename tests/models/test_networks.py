"""Networks: every registered one builds and learns; published sizes; pretrained ones; errors."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from symgen.data.datasets import load_dataset
from symgen.data.texts import MASKED, train_tokenizer
from symgen.method.study import Study
from symgen.models.own import PretrainedNetwork
from symgen.models.registry import build_network, data_options, load_weights, lookup
from symgen.models.training import train

SMALL_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
MIRROR = Path(__file__).parents[1] / "data" / "mirror"
QUICK = {"epochs": 1, "batch_size": 20, "checkpoints": 1, "progress": False, "cache": False}


# Appendix E, then Appendix K: data set, its image size, networks.
PAPER = [
    ("zh-plus/tiny-imagenet", 64, ["vgg19", "resnet50", "resnet101"]),
    ("bentrevett/caltech-ucsd-birds-200-2011", 224, ["vgg16"]),
    ("stanfordnlp/sst2", None, ["bert-medium", "bert-large"]),
    ("fancyzhx/ag_news", None, ["bert-medium", "bert-large"]),
    ("uoft-cs/cifar10", 32, ["vgg11", "resnet18"]),
    ("zh-plus/tiny-imagenet", 64, ["vgg16"]),
    ("stanfordnlp/sst2", None, ["bert-tiny"]),
]


@pytest.mark.parametrize("name, size, networks", PAPER)
def test_every_network_of_the_paper_takes_its_data(name, size, networks, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(MIRROR))
    data = load_dataset(name, train_size=12, test_size=12)
    assert data.spec.get("image_size") == size
    assert [len(data.part(part)) for part in ("target", "baseline", "test")] == [12] * 3
    x, y = data.part("target").batch(range(4))
    x = x if size else x["input_ids"]
    for network in networks:
        with torch.device("meta"):
            model = build_network(network, **data.spec)
        logits = model(x.to("meta"))
        assert logits.shape == (len(y), len(data.classes))


@pytest.mark.parametrize("name", ["cnn", "resnet20", "vgg11", "bert-tiny"])
def test_networks_learn(name):
    torch.manual_seed(0)
    if lookup(name).kind == "text":
        x = {"input_ids": torch.randint(5, 50, (2, 7)), "attention_mask": torch.ones(2, 7).long()}
        model = build_network(name, classes=3, vocabulary=50, **SMALL_BERT)
        assert torch.equal(model(x), model(**x)) and model(x["input_ids"]).shape == (2, 3)
        assert model.get_input_embeddings().weight.shape == (50, 32)
    else:
        size = 32 if name == "vgg11" else 16
        x = torch.randn(2, 3, size, size)
        model = build_network(name, classes=3, image_size=size)
        assert not model.training and model(x).shape == (2, 3)
        x = x.double()
    # A short step down the gradient lowers the loss by its length times the gradient's norm.
    model = model.double().train()
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        loss = nn.functional.cross_entropy(model(x), torch.tensor([0, 2]))
        losses.append(loss.item())
        loss.backward()
        weights = [p for p in model.parameters() if p.grad is not None]
        squared = sum(p.grad.square().sum() for p in weights)
        with torch.no_grad():
            for p in weights:
                p -= 1e-3 / squared * p.grad
    assert losses[0] - losses[1] == pytest.approx(1e-3, rel=0.1)


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
        # google/bert_uncased_L-*_H-* and bert-large-uncased, without classifier.
        ("bert-tiny", 4_385_920),
        ("bert-mini", 11_170_560),
        ("bert-small", 28_763_648),
        ("bert-medium", 41_373_184),
        ("bert-large", 335_141_888),
        # He et al. 2016, Table 6: 0.27 million.
        ("resnet20", 269_722),
    ],
)
def test_published_sizes(name, published):
    with torch.device("meta"):
        if name.startswith("bert"):
            model = build_network(name, classes=2)
            published += 2 * (model.model.config.hidden_size + 1)
        elif name == "resnet20":
            model = build_network(name)
            assert len([m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]) == 20
        else:
            model = build_network(name, classes=1000, image_size=224)
    assert sum(parameter.numel() for parameter in model.parameters()) == published


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}, {"image_size": 64}])
def test_a_narrow_vgg_has_a_quarter_of_the_channels(options):
    wide, narrow = (build_network("vgg11", width=w, **options) for w in (64, 16))
    layers = [
        (a.weight.shape[:2], b.weight.shape[:2])
        for a, b in zip(wide.modules(), narrow.modules(), strict=True)
        if isinstance(a, nn.Conv2d | nn.Linear)
    ]
    assert len(layers) == 11
    for a, b in layers:
        assert list(b) == [size if size in (3, 10) else size // 4 for size in a]


@pytest.mark.parametrize("name", ["cnn", "vgg11", "bert-micro"])
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
    model, seen = build_network("resnet18", image_size=size), []
    model.layer1.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape[-1]))
    model(torch.zeros(1, 3, size, size))
    assert seen == [side]


FUNCTIONS = """
import torch
from torch import nn

def linear(num_classes, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, num_classes))

class Reader(nn.Module):
    def __init__(self, classes, vocabulary):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, classes)

    def forward(self, input_ids, attention_mask):
        return type("Output", (), {"logits": self.embedding(input_ids)})()
"""


def test_functions_of_the_reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "my_networks.py").write_text(FUNCTIONS)
    data = load_dataset("digits", train_size=40, test_size=20)
    run = train("my_networks:linear", data, **{**QUICK, "cache": True})
    assert run.load().state_dict()["1.weight"].shape == (10, 1200) and run.key() is None
    # The code can change unseen, so nothing is stored.
    assert not run.folder.is_relative_to(Path(__import__("os").environ["SYMGEN_CACHE"]))
    text = load_dataset("planted-sentiment", train_size=40, test_size=20)
    assert len(train("my_networks:Reader", text, **QUICK).records) == 2
    assert build_network("torchvision.models:squeezenet1_1", classes=3).num_classes == 3
    for name, message in {
        "my_networks:linaer": "cannot be imported .*'linaer'.*expected .module:function",
        "no_networks:linear": "No module named 'no_networks'.*my_networks.py in",
    }.items():
        with pytest.raises(ValueError, match=message):
            build_network(name)


@pytest.fixture
def pretrained(tmp_path, monkeypatch):
    """A text encoder without classifier, a text classifier and an image classifier in folders."""
    texts = ["a superb film", "the dull film of the year"] * 5
    tokenizer = train_tokenizer(texts, special=MASKED)
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=3, **SMALL_BERT)
    for name, kind in {"encoder": "BertModel", "three": "BertForSequenceClassification"}.items():
        getattr(transformers, kind)(config).save_pretrained(tmp_path / "me" / name)
        tokenizer.save_pretrained(tmp_path / "me" / name)
    small = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=5
    )
    transformers.ResNetForImageClassification(small).save_pretrained(tmp_path / "me/images")
    processor = transformers.ViTImageProcessor(
        size={"height": 64, "width": 64}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    processor.save_pretrained(tmp_path / "me/images")
    for owner in MIRROR.iterdir():
        (tmp_path / owner.name).symlink_to(owner)
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    return tmp_path


def test_pretrained_text_networks(pretrained):
    plain = load_dataset("stanfordnlp/sst2", train_size=40, test_size=20)
    for name in ("me/encoder", str(pretrained / "me/three")):
        assert lookup(name).kind == "text" and data_options(name) == {"tokenizer": name}
        with pytest.raises(ValueError, match=r"has its own preprocessing.*data_options\("):
            train(name, plain, **QUICK)
        data = load_dataset("stanfordnlp/sst2", train_size=40, test_size=20, **data_options(name))
        run = train(name, data, **QUICK)
        assert run.config.learning_rate == 3e-5 and run.config.optimizer == "adamw"
        # Training begins at the pretrained weights; the head has one logit per class of the data.
        model = run.load(0).model
        stored = transformers.BertModel.from_pretrained(pretrained / "me" / name.split("/")[-1])
        assert torch.equal(
            model.get_input_embeddings().weight, stored.get_input_embeddings().weight
        )
        assert model.classifier.weight.shape == (2, 32)
        blank = train(name, data, **{**QUICK, "options": {"from_scratch": True}}).load(0).model
        assert model.config.to_dict() == blank.config.to_dict()
        assert not torch.equal(
            model.get_input_embeddings().weight, blank.get_input_embeddings().weight
        )
    assert build_network("me/three").model.classifier.weight.shape == (3, 32)


def test_pretrained_image_networks(pretrained):
    options = data_options("me/images")
    assert options == {"size": 64, "statistics": ((0.5,) * 3, (0.5,) * 3)}
    assert build_network("me/images")(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    name = "bentrevett/caltech-ucsd-birds-200-2011"
    with pytest.raises(ValueError, match=r"has its own preprocessing"):
        train("me/images", load_dataset(name), **QUICK)
    data = load_dataset(name, **options)
    run = train("me/images", data, augment=False, **QUICK)
    x, _ = data.part("test").batch(range(3))
    assert run.load()(x).shape == (3, 3) and x.shape == (3, 3, 64, 64)
    # Other weights are another training.
    before, model = run.key(), build_network("me/images").model
    next(model.parameters()).data += 1
    model.save_pretrained(pretrained / "me/images")
    again = train("me/images", data, augment=False, **QUICK)
    assert again.key() != before


def test_pretrained_image_networks_as_they_are(pretrained):
    data = load_dataset("bentrevett/caltech-ucsd-birds-200-2011", **data_options("me/images"))
    x, _ = data.part("test").batch(range(3))
    run = PretrainedNetwork("me/images")
    with torch.inference_mode():
        torch.testing.assert_close(run.load()(x), build_network("me/images")(x))
        blank = PretrainedNetwork("me/images", data.part("test"))
        logits = blank.load()(x)
    assert run.key() == PretrainedNetwork("me/images").key() != blank.key()
    study = Study(dataset=data.name, network="me/images", baselines=0, train_size=None,
                  samples=4, n=3)  # fmt: skip
    rows = torch.tensor([True, False, True, False])
    inter = study.interactions(run, classes=torch.zeros(4, dtype=torch.long), rows=rows)
    assert inter.and_.shape == (2, 8) and (inter.full != inter.bias).all()
    norms = [x for x in blank.load().modules() if isinstance(x, nn.BatchNorm2d)]
    assert logits.shape == (3, 5) and norms
    assert all(norm.running_mean.abs().max() > 0 for norm in norms)  # 0 before any sample


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"name": "resnet8"}, 'network "resnet8" is unknown.*Did you mean "resnet'),
        ({"name": "cnn", "widht": 4}, "unexpected keyword argument 'widht'"),
        ({"name": "bert-tiny", "hiden_size": 4}, '"hiden_size" is unknown.*mean "hidden_size"'),
    ],
)
def test_wrong_names(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build_network(**arguments)


def test_weights_of_another_architecture_name_the_difference():
    model = build_network("cnn", image_size=20)
    with pytest.raises(ValueError, match=r"do not fit this SmallCNN.*Missing .*conv1\.bias"):
        load_weights(model, build_network("resnet20").state_dict())


def test_missing_library_and_missing_model(monkeypatch, tmp_path):
    def unreachable(*_, **__):
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(FileNotFoundError, match=r"Connect to .*SYMGEN_DATA.*me/none/config.json"):
        build_network("me/none")
    monkeypatch.undo()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not in from_pretrained format.*config.json"):
        build_network(str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'symgen\[llm\]'"):
        build_network("bert-tiny")
