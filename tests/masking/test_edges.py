"""Errors that would be silent: randomness, batches, precision, compiled networks, sigmoids."""

import warnings

import by_hand
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from symgen.masking.checks import check_probabilities
from symgen.masking.hooks import evaluating
from symgen.masking.mask_values import MaskValue, mean_feature
from symgen.masking.outputs import extract, masked_outputs
from symgen.masking.variables import draw_patches
from symgen.split.sampled import UnexplainedWarning
from symgen.split.sparsify import DeadOutputWarning

AT_RELU = MaskValue(torch.zeros(()), "relu")


class Net(nn.Module):
    """A convolution, a ReLU, and a head whose size is given; the last step is a function."""

    def __init__(self, last=lambda z: z, size=1.0, classes=4):
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, classes)
        self.last = last
        with torch.no_grad():
            self.head.weight.mul_(size)
            self.head.bias.mul_(size)

    def forward(self, x):
        return self.last(self.head(self.relu(self.conv(x)).mean((2, 3))))


def network(*given, **options):
    torch.manual_seed(0)
    return Net(*given, **options).eval()


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 9, 9, generator=generator), [0, 1, 2, 1], draw_patches(4, 3, grid=3)


@pytest.mark.parametrize(
    "last, sizes",
    [
        (lambda z: F.dropout(z, 0.2, training=True), (1e-4, 1.0, 1e3)),
        (lambda z: z - z.mean(0), (1e-4, 1.0, 1e3)),
        (
            lambda z: F.batch_norm(z, None, None, training=True) if len(z) > 1 else z,
            (1e-4, 1.0, 1e3),
        ),
        (lambda z: z * (1 + 0.1 * len(z)), (1e-4, 1.0, 1e3)),
        # Dynamic quantization.
        (lambda z: (z / z.abs().max() * 7).round() / 7 * z.abs().max(), (1e-4, 1.0, 1e3)),
        # Large logits hide nothing.
        (lambda z: 1e3 + z - z.mean(0), (10.0,)),
        (lambda z: z + z.flip(0) - 1e4, (10.0,)),
    ],
)
def test_randomness_and_batch_statistics_are_noticed_at_any_size(given, last, sizes):
    x, y, variables = given
    for size in sizes:
        for batch_size in (None, 5):
            with pytest.raises(RuntimeError, match="deterministic .*no batch statistics"):
                masked_outputs(network(last, size), x, y, variables, AT_RELU, batch_size)


@pytest.mark.parametrize("batch_size", [None, 5, 16])
def test_batch_statistics_below_the_masked_layer_are_noticed(given, batch_size):
    x, y, variables = given
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(392, 4)
    ).eval()
    with pytest.raises(RuntimeError, match="in a batch, but .* alone.*no batch statistics"):
        masked_outputs(model, x, y, variables, mean_feature(model, x), batch_size)


@pytest.mark.filterwarnings("ignore:the network runs in bfloat16")
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_error(given, size, dtype):
    x, y, variables = given
    model = network(size=min(size, 1e3) if dtype is torch.float16 else size).to(dtype)
    v = masked_outputs(model, x, y, variables, mean_feature(model, x, "relu"), 5)
    assert (v.std(1) > 0).all()
    with torch.autocast("cpu", torch.bfloat16):
        model = network()
        masked_outputs(model, x, y, variables, mean_feature(model, x, "relu"))


@pytest.mark.filterwarnings("ignore:the network runs in bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [lambda z: z.softmax(1), nn.Softmax(1)])
def test_probabilities_are_refused_in_any_precision(given, last, dtype):
    x, y, variables = given
    model = network(last, 3.0).to(dtype)
    for batch_size in (None, 1):
        with pytest.raises(ValueError, match="returns probabilities"):
            masked_outputs(model, x, y, variables, AT_RELU, batch_size)


@pytest.mark.parametrize(
    "last",
    [
        torch.sigmoid,
        lambda z: z.softmax(1) + 1e-3,
        lambda z: 1 - z.softmax(1),
        lambda z: 1 / (1 + (-z).exp()),
        lambda z: (1 + (z / 2).tanh()) / 2,
    ],
)
def test_probabilities_of_any_formula_are_noticed(given, last):
    x, y, variables = given
    with pytest.warns(UserWarning, match=r"lie between 0 and 1.*logits\(x\)\[:, 3\]"):
        masked_outputs(network(last, 3.0), x, y, variables, AT_RELU)


def test_small_logits_are_no_probabilities(given):
    x, y, variables = given
    # Nor are those of an untrained network, or sigmoids inside of one.
    for last in (lambda z: 0.01 * z, lambda z: 0.5 + 1e-3 * z, lambda z: z * torch.sigmoid(z)):
        masked_outputs(network(last), x, y, variables, AT_RELU)
    # Many different ones on a single input are no chance.
    check_probabilities(torch.tensor([[0.1, 0.3]]).repeat(8, 1))
    with pytest.warns(UserWarning, match="for 1 inputs lie between 0 and 1"):
        check_probabilities(torch.linspace(0.05, 0.95, 12)[None])


class LeNet(Net):
    """A network whose `view` refuses the layout channels-last."""

    def __init__(self):
        super().__init__(size=1.0, classes=4)
        self.head = nn.Linear(8 * 49, 4)

    def forward(self, x):
        x = self.relu(self.conv(x))
        return self.head(x.view(len(x), -1))


def test_networks_that_view_their_features_as_vectors(given):
    x, y, variables = given
    torch.manual_seed(0)
    model = LeNet().eval()
    value = mean_feature(model, x, "relu")
    other = LeNet().eval()
    other.load_state_dict(model.state_dict())
    other.forward = lambda x: other.head(other.relu(other.conv(x)).flatten(1))
    for at in (value, MaskValue(torch.zeros(()), None)):
        expected = masked_outputs(other, x, y, variables, at)
        assert expected.std(1).min() > 1e-3
        v = masked_outputs(model, x, y, variables, at)
        by_hand.equal(v, expected)
    pixels = np.arange(9 * 9).reshape(1, 9, 9) // 27
    by_number, expected = (masked_outputs(f, x, y, pixels, 0.0) for f in (model, other))
    by_hand.equal(by_number, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_networks_are_the_networks_themselves(given):
    x, y, variables = given
    expected = masked_outputs(network(), x, y, variables, mean_feature(network(), x, "relu"))
    inside = network()
    inside.compile(backend="eager")
    for model in (torch.compile(network(), backend="eager"), inside):
        value = mean_feature(model, x)
        assert value.layer == "relu"
        by_hand.equal(masked_outputs(model, x, y, variables, value), expected)


def test_a_dead_head_is_no_error(given):
    x, y, variables = given
    with torch.inference_mode():
        made_there = network(size=0.0)
    for model in (network(size=0.0), made_there):
        v = masked_outputs(model, x, y, variables, AT_RELU)
        assert torch.equal(v, v[:, :1].expand(-1, 8))


def test_modes_are_restored_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.ReLU()).train()
    model[1].eval()
    with pytest.raises(KeyError), evaluating(model):
        assert not model[0].training
        raise KeyError
    assert model.training and model[0].training and not model[1].training


def test_extract_splits_the_outputs(given):
    x, y, variables = given
    model = network()
    value = MaskValue(torch.zeros(()), "relu")
    v = masked_outputs(model, x, y, variables, value)
    names = [f"patch {i}" for i in range(3)]
    inter = extract(model, x, y, variables, value, noise=0.0, names=names, batch_size=3)
    by_hand.equal(inter.predict(), v)
    assert inter.names.shape == (4, 3)
    few = extract(model, x, y, variables, lambda model: value, few=True)
    assert ((few.predict() - v).abs() <= 0.0201 * (v[:, -1] - v[:, 0]).abs()[:, None] + 1e-6).all()
    with warnings.catch_warnings():
        for expected in (DeadOutputWarning, UnexplainedWarning):
            warnings.simplefilter("ignore", expected)
        sampled = extract(model, x, y, draw_patches(4, 9, grid=3), value, 60, held_out=20)
    assert sampled.v.shape == (4, 20) and sampled.n == 9
    wide = masked_outputs(model, x, y, draw_patches(4, 9, grid=3), value)
    by_hand.equal(sampled.v.double(), wide[:, sampled.held_out])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"names": ["a"]}, r"names have shape \(1,\); expected \(3,\) or \(4, 3\)"),
        ({"states": 8}, "n is 3 and count 108; expected"),
        ({"variables": draw_patches(4, n=40, grid=9)}, r"n = 40 .* extract\(..., states=500\)"),
    ],
)
def test_refusals_of_extract(given, changes, message):
    x, y, variables = given
    usual = {"x": x, "target": y, "variables": variables, "mask_value": 0.0} | changes
    with pytest.raises(ValueError, match=message):
        extract(network(), **usual)


def test_exported_programs_are_refused(given):
    x, y, variables = given
    program = torch.export.export(network(), (torch.zeros(1, 3, 9, 9),))
    for model in (program, program.module()):
        with pytest.raises(ValueError, match="is an exported program, which has no layers to mask"):
            masked_outputs(model, x, y, variables, MaskValue(torch.zeros(()), None))


def test_images_with_the_channel_last_are_refused(given):
    x, y, variables = given
    last = x.permute(0, 2, 3, 1).contiguous()
    function = lambda x: x.mean((1, 2)) * 9  # noqa: E731
    for model in (network(), function):
        for images in (last, last[..., :1]):
            with pytest.raises(ValueError, match=r"looks like .sample, height, width, channel.*"):
                masked_outputs(model, images, y, variables, MaskValue(torch.zeros(()), None))
    numbers = variables.owners(9, 9)[..., None]
    v = masked_outputs(function, last, y, numbers.where(numbers < 3, -1), 0.0)
    expected = masked_outputs(lambda x: x.mean((2, 3)) * 9, x, y, variables, 0.0)
    by_hand.equal(v, expected)
    with pytest.raises(ValueError, match=r"x is a mapping with .'pixel_values'.; .*x\['pixel_val"):
        masked_outputs(network(), {"pixel_values": x}, y, variables, AT_RELU)
