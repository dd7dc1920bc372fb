"""Networks by the name of a function that builds them, and names that are no network's."""

import sys

import pytest
import torch

import symgen
from symgen.models import registry
from symgen.models.batches import to_device
from symgen.models.training import builder_identity

MINE = """\
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, width, 3), nn.ReLU()
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.relu(self.conv(x)).mean((2, 3)))

def build(classes, image_size, width=4):
    assert image_size == 20
    return Mine(classes, width)

def whole():
    return Mine(10, 2)

def few():
    return Mine(4, 2)

def grey():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(648, 10))

def maps():
    return nn.Conv2d(3, 10, 3)

def nothing(classes):
    return classes

def text(classes, vocabulary, pad_token_id):
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(
        vocab_size=vocabulary, pad_token_id=pad_token_id, num_labels=classes, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    ))

number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the reader's in the folder where the program was started."""
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    yield name
    sys.modules.pop(name, None)


def test_a_study_of_a_network_of_ones_own(mine):
    small = {"train_size": 100, "epochs": 2, "samples": 4, "n": 4, "checkpoints": 1}
    study = symgen.Study.of({**small, "network": f"{mine}:build", "options": {"width": 6}})
    inter, others = study.interactions()
    assert len(inter) == 4 and len(others) == 2
    model = study.runs[0].load()
    assert type(model).__name__ == "Mine" and model.conv.out_channels == 6
    assert study.runs[0].config.learning_rate == registry.OWN_RATES["image"]
    assert (
        symgen.Study.of({**small, "network": f"{mine}:whole"}).runs[0].load().out.in_features == 2
    )


def test_its_weights_follow_from_the_seed_and_its_identity_from_its_code(mine, tmp_path):
    spec = {"classes": 10, "image_size": 20}
    one, two, other = (registry.build_network(f"{mine}:build", **spec, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.out.weight, two.out.weight)
    assert not torch.equal(one.out.weight, other.out.weight)
    before = builder_identity(f"{mine}:build", lambda: one)
    assert before == builder_identity(f"{mine}:build", lambda: two)
    assert before != builder_identity(f"{mine}:build", lambda: other)
    (tmp_path / f"{mine}.py").write_text(MINE.replace("mean((2, 3))", "sum((2, 3))"))
    sys.modules.pop(mine)
    changed = registry.build_network(f"{mine}:build", **spec)
    assert before["weights"] == builder_identity(f"{mine}:build", lambda: changed)["weights"]
    assert before != builder_identity(f"{mine}:build", lambda: changed)


def test_a_text_network_of_ones_own(mine):
    data = symgen.load_dataset("planted-sentiment", train_size=60, test_size=40)
    run = symgen.train(f"{mine}:text", data, epochs=1, checkpoints=1, progress=False)
    x, _ = data.part("test").batch([0, 1])
    assert run.load()(to_device(x, registry.device())).shape == (2, 2)
    with pytest.raises(ValueError, match="takes texts, but data set .digits. holds images"):
        symgen.train(f"{mine}:text", symgen.load_dataset("digits", train_size=20))


def test_a_network_of_a_library():
    found = symgen.build_network("torchvision.models:squeezenet1_1", classes=7, image_size=64)
    assert found(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("buidl", "has no 'buidl'; expected .module:function.*Did you mean .build."),
        ("number", "number is int; expected"),
        ("nothing", "returned int; expected a torch.nn.Module"),
        ("", "has no ''"),
    ],
)
def test_what_is_no_builder_is_told(mine, function, told):
    with pytest.raises(ValueError, match=f"(?s){told}"):
        symgen.build_network(f"{mine}:{function}")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("few", r"returns shape \(4, 4\); expected logits .* of 10 classes or more. A builder"),
        ("grey", r"cannot run on inputs of shape \(4, 3, 20, 20\): .*channels"),
        ("maps", r"returns shape \(4, 10, 18, 18\); expected logits \(sample, class\)"),
    ],
)
def test_what_cannot_learn_the_data_is_told_before_it_is_trained(mine, function, told):
    data = symgen.load_dataset("digits", train_size=100)
    with pytest.raises(ValueError, match=f'(?s)network "{mine}:{function}" {told}'):
        symgen.train(f"{mine}:{function}", data, epochs=1, checkpoints=1, progress=False)


def test_a_module_that_is_missing_or_broken_is_told(mine, tmp_path):
    with pytest.raises(ValueError, match=r"there is no module nosuch; .*my_networks.py in /"):
        symgen.build_network("nosuch:build")
    (tmp_path / "broken_one.py").write_text("import nosuch_library\n")
    with pytest.raises(
        ValueError, match="broken_one cannot be imported .ModuleNotFoundError: .*no"
    ):
        symgen.build_network("broken_one:build")
    with pytest.raises(ValueError, match=r"does not take .*width.*unexpected keyword"):
        symgen.build_network(f"{mine}:whole", width=3)


@pytest.mark.parametrize(
    "name", ["a/b/c", "nets/", "my nets/one", "models\\one", "-x/y", "resnet8", ""]
)
def test_no_name_is_silently_a_text_classifier(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    with pytest.raises(ValueError, match="unknown network .*module:function.*builds a classifier"):
        registry.lookup(name)


def test_folders_that_are_no_classifier_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "some" / "set").mkdir(parents=True)
    (tmp_path / "nets").mkdir()
    for name in ("./nets", str(tmp_path / "nets"), "some/set"):
        with pytest.raises(
            ValueError, match=r"holds no config.json; expected what save_pretrained"
        ):
            registry.lookup(name)
    for name in ("./nosuch", str(tmp_path / "nosuch"), "~/nosuch-folder"):
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            registry.lookup(name)


@pytest.mark.parametrize("form", ["{folder}", "./mine/classifier", "mine/classifier"])
def test_a_local_classifier_is_loaded_by_any_path(tmp_path, monkeypatch, form):
    folder = tmp_path / "mine" / "classifier"
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = registry.build_network(
        "bert-tiny", classes=2, vocabulary=50, pad_token_id=0, **small, intermediate_size=16
    )
    bert.model.save_pretrained(folder)
    found = registry.build_network(form.format(folder=folder), classes=2)
    assert torch.equal(found.model.classifier.weight, bert.model.classifier.weight)
