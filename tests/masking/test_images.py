"""Image networks: v equals masking by hand, at every layer and for every batch size."""

import math

import by_hand
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from symgen import device
from symgen.device import BatchSizeWarning
from symgen.masking import mask_values, states
from symgen.masking.mask_values import MaskValue, mean_feature
from symgen.masking.outputs import masked_outputs, prepare
from symgen.masking.states import log_odds, outputs
from symgen.masking.variables import draw_patches


class Plain(nn.Module):
    """Convolutions, batch normalization, in-place ReLUs."""

    def __init__(self):
        super().__init__()
        first = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        second = nn.Conv2d(6, 5, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
        self.features = nn.Sequential(*first, *second)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.reshape(x.size(0), -1))


class Residual(nn.Module):
    """One ReLU module called three times, in place, with branches that pass the masked layer."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(6, 4)

    def forward(self, x):
        x = self.stem(x)
        x = self.relu(x + self.relu(self.body(x)))
        x = self.relu(self.body(x) + F.avg_pool2d(x, 3, 1, 1))
        return self.head(x.mean((2, 3)))


class Sized(Plain):
    """The number of samples passes the masked layer."""

    def forward(self, x):
        samples = len(x)
        return self.head(self.features(x).reshape(samples, -1))


class Named(Plain):
    """Logits in an entry of the output; the images are normalized in place."""

    def forward(self, x):
        x.sub_(x.mean((1, 2, 3), keepdim=True))
        return {"loss": None, "logits": super().forward(x)}


class Faint(Plain):
    """What passes the masked layer changes the logits by a thousandth."""

    def forward(self, x):
        return super().forward(x) + 1e-3 * x.mean((2, 3)) @ torch.ones(3, 4).cumsum(1)


CASES = [
    (Plain, None),
    (Plain, "features.2"),
    (Plain, "features.0"),
    (Residual, "relu"),
    (Residual, "body"),
    (Named, "features.2"),
    (Named, None),
    (Sized, "features.2"),
    (Faint, "features.2"),
]


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, 9, 11, generator=generator), torch.tensor([1, 0, 3])


def network(kind=Plain):
    torch.manual_seed(1)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.3, 0.3)
    return model.eval()


@pytest.mark.parametrize("kind, layer", CASES)
def test_equals_masking_by_hand_for_every_batch_size(images, kind, layer):
    x, target = images
    model, variables, before = network(kind), draw_patches(3, n=4, grid=3), x.clone()
    mask_value = mean_feature(model, x, layer)
    given = model, x, target, variables, mask_value
    expected, v = by_hand.of_images(*given), masked_outputs(*given)
    assert torch.equal(x, before)
    assert v.dtype == torch.float64 and expected.std(1).min() > 2e-4
    for size in (None, 1, 5, 35):
        v = masked_outputs(*given, size)
        by_hand.equal(v, expected)


@pytest.mark.parametrize("layer", ["first_relu", "layer1.0.conv1"])
def test_networks_of_torchvision(layer):
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model("resnet18", num_classes=5).eval()
    x, target, variables = torch.randn(1, 3, 32, 32), torch.tensor([2]), draw_patches(1, n=2)
    given = model, x, target, variables, mean_feature(model, x, layer)
    by_hand.equal(masked_outputs(*given), by_hand.of_images(*given))


def vision(name):
    """A tiny image network without a ReLU map: attention, GELU, or channels last."""
    torch.manual_seed(3)
    if name == "torchvision-swin":
        from torchvision.models import SwinTransformer

        return SwinTransformer([4, 4], 12, [1, 1], [2, 2], [4, 4], num_classes=3).eval()
    t = pytest.importorskip("transformers")
    staged = {"hidden_sizes": [12, 16], "depths": [1, 1], "num_stages": 2}
    config = {
        "vit": lambda: t.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            image_size=32, patch_size=4, hidden_act="relu",
        ),
        "convnext": lambda: t.ConvNextConfig(**staged, hidden_act="relu"),
    }[name]()  # fmt: skip
    config.num_labels, config.initializer_range = 3, 0.3
    return t.AutoModelForImageClassification.from_config(config).eval()


PATCHES = {
    "vit": ("vit.embeddings.patch_embeddings.projection", "vit.layers.0.mlp.fc1"),
    "convnext": ("convnext.embeddings.patch_embeddings", "convnext.encoder.stages.0.layers.0.act"),
    "torchvision-swin": ("features.0.0", "features.1.0"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_layers_without_a_map_are_refused_with_those_that_have_one(name):
    model, (layer, wrong) = vision(name), PATCHES[name]
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(2, 3, 32, 32, generator=generator), torch.tensor([0, 2])
    variables = draw_patches(2, n=3, grid=2)
    with pytest.raises(ValueError, match=rf"calls no ReLU .*expected as layer.*{layer}"):
        mean_feature(model, x)
    with pytest.raises(ValueError, match=rf"{wrong}. returns .* for one image; .*{layer}"):
        masked_outputs(model, x, target, variables, MaskValue(torch.zeros(()), wrong))
    given = model, x, target, variables, mean_feature(model, x, layer)
    by_hand.equal(masked_outputs(*given), by_hand.of_images(*given))


def test_the_mean_feature_is_the_mean_of_each_channel_and_position(images, monkeypatch):
    (x, _), model = images, network()
    with torch.no_grad():
        expected = model.features[:3](x).mean(0)
    monkeypatch.setattr(mask_values, "AT_ONCE", 2)
    for some in (x, [(x[:1], "labels"), (x[1:], "labels")]):
        mask_value = mean_feature(model, some)
        assert mask_value.layer == "features.2"
        torch.testing.assert_close(mask_value.value, expected)
    torch.testing.assert_close(mean_feature(model, x, None).value, x.mean(0))


def test_the_network_is_left_as_it_was(images):
    (x, target), model = images, network()
    model.train()
    model.features[1].eval()
    modes = [module.training for module in model.modules()]
    weights = {k: w.clone() for k, w in model.state_dict().items()}
    v = masked_outputs(model, x, target, draw_patches(3, n=3), mean_feature(model, x))
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(weights[k], w) for k, w in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    (v.requires_grad_().sum() * 2).backward()  # An ordinary tensor.


def test_outputs_have_gradients_on_chosen_states(images):
    (x, target), model = images, network()
    variables = draw_patches(3, n=3, grid=2)
    value = mean_feature(model, x)
    v = masked_outputs(model, x, target, variables, value)
    chosen = torch.tensor([[0, 5], [7, 2], [3, 3]])
    prepared = prepare(model, x, target, variables, value)
    out = outputs(prepared.network, prepared.masked(0, 3), chosen)
    by_hand.equal(out.double(), v.gather(1, chosen))
    out.sum().backward()
    assert model.features[0].weight.grad.abs().sum() > 0


def test_log_odds_is_stable_and_holds_no_large_vocabulary_twice(monkeypatch):
    logits = torch.tensor([[200.0, 0.0, -1.0], [-200.0, 0.0, 0.0]])
    expected = torch.tensor([200 - math.log(1 + math.exp(-1)), -200 - math.log(2)])
    torch.testing.assert_close(log_odds(logits, torch.tensor([0, 0])), expected)
    assert log_odds(logits.bfloat16(), torch.tensor([0, 0])).dtype == torch.float32
    generator = torch.Generator().manual_seed(0)
    usual, labels = torch.randn(5, 7, generator=generator, dtype=torch.float64), torch.arange(5)
    exact = torch.stack([by_hand.odds(row, i) for row, i in zip(usual, labels, strict=True)])
    copied, scatter = [], torch.Tensor.scatter
    monkeypatch.setattr(
        torch.Tensor, "scatter", lambda x, *given: copied.append(len(x)) or scatter(x, *given)
    )
    for size in (2**25, 14, 1):
        monkeypatch.setattr(states, "AT_ONCE", size)
        torch.testing.assert_close(log_odds(usual, labels), exact)
    assert copied == [5, 2, 2, 1, 1, 1, 1, 1, 1]


def test_memory_that_runs_out_halves_the_batch(images, monkeypatch):
    (x, target), model = images, network()
    given = model, x, target, draw_patches(3, n=4), AT_RELU
    expected = masked_outputs(*given)

    def refuse(module, arguments):
        if len(arguments[0]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.features[3].register_forward_pre_hook(refuse)
    with pytest.warns(BatchSizeWarning) as caught:
        v = masked_outputs(*given, 16)
    assert len(caught) == 3
    by_hand.equal(v, expected)
    monkeypatch.setattr(device, "free_memory", lambda where: 2**20)
    with pytest.raises(MemoryError, match="fewer variables"):
        masked_outputs(model, x, target, draw_patches(3, n=20), given[-1])


@pytest.mark.filterwarnings("ignore:the network runs in bfloat16")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_take_the_type_of_the_network(images, dtype):
    (x, target), model = images, network().to(dtype)
    variables = draw_patches(len(x), n=3)
    v, same = (
        masked_outputs(model, some, target, variables, mean_feature(model, some))
        for some in (x, x.to(dtype))
    )
    assert torch.equal(v, same)


class After(Plain):
    """Something is done to the logits."""

    last = None

    def forward(self, x):
        return self.last(super().forward(x))


class Ratio(Plain):
    def forward(self, x):
        return super().forward(x) * x.abs().sum((1, 2, 3)).sign().reciprocal()[:, None]


AT_INPUT, AT_RELU = MaskValue(torch.zeros(()), None), MaskValue(torch.zeros(()), "features.2")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"target": [0, 4]}, "label of sample 1 is 4, .* 0..3"),
        ({"target": [0.5, 1.0]}, "target is float64 of shape .2,.; expected a whole"),
        ({"target": torch.tensor([[0], [1]])}, "target is int64 of shape .2, 1."),
        ({"target": ["cat", "dog"]}, "target is <U3"),
        ({"target": [0]}, "x has 2 samples, target 1 and variables 2"),
        ({"variables": draw_patches(3, n=2)}, "variables 3"),
        ({"variables": draw_patches(2, n=2, grid=12)}, "grid=9 or smaller"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"x": torch.zeros(2, 3, 9, 9).byte()}, "x is Tensor torch.uint8 of shape .2, 3, 9, 9."),
        ({"mask_value": MaskValue(torch.zeros(()), "features.22")}, 'layer "features.22" is unkn'),
        ({"mask_value": MaskValue(torch.zeros(()), "head")}, r"'head' returns \(1, 4\)"),
        ({"mask_value": MaskValue(torch.zeros(7, 1, 1), "features.2")}, r"\(7, 1, 1\), but feat"),
        ({"mask_value": MaskValue(torch.tensor(math.nan), "features.2")}, "v is nan in masked"),
        ({"mask_value": 0.0}, "mask value is float; expected one with its layer"),
        ({"last": lambda z: [z]}, "returned list for 2 inputs; expected floating logits"),
        ({"last": lambda z: {"logits": (z,)}}, "returned tuple for 2 inputs; .*entry 'logits'"),
        ({"last": lambda z: z.long()}, "returned Tensor torch.int64 of shape"),
        ({"last": lambda z: z.mean(0, keepdim=True)}, r"of shape \(1, 4\) for 2 inputs"),
        ({"last": lambda z: z[:, :1]}, r"shape \(2, 1\); expected .* two or more"),
        (
            {"last": lambda z: z[:, None].expand(-1, 3, -1)},
            r"shape \(2, 3, 4\); expected .sample, outcome.",
        ),
        (
            {"model": Ratio, "mask_value": AT_INPUT, "variables": draw_patches(2, n=4, grid=2)},
            "sample 0: v is -?(inf|nan) in masked state 0,",
        ),
    ],
)
def test_refusals(changes, message):
    generator = torch.Generator().manual_seed(0)
    good = {
        "x": torch.randn(2, 3, 9, 9, generator=generator), "target": [0, 1],
        "variables": draw_patches(2, n=2), "mask_value": AT_RELU,
    }  # fmt: skip
    changes = dict(changes)
    last = changes.pop("last", None)
    model = network(After if last else changes.pop("model", Plain))
    model.last = last
    with pytest.raises((ValueError, FloatingPointError), match=message):
        masked_outputs(model, **{**good, **changes})


def test_refusals_of_other_doors(images):
    (x, _y), model = images, network()
    for run, message in [
        (lambda: mean_feature(model, []), "got no images"),
        (lambda: mean_feature(model, x.numpy()), "expected a floating tensor"),
        (lambda: mean_feature(model, x, "features.9"), 'Did you mean "features'),
    ]:
        with pytest.raises(ValueError, match=message):
            run()
