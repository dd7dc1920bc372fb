"""v on all masked states: equal to masking by hand in a loop, for every way and every batch."""

import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch import nn

from symgen import fingerprints, memory
from symgen.masking import states
from symgen.masking.extraction import extract
from symgen.masking.hooks import Cut, Inputs, cut_at, largest_output
from symgen.masking.mask_values import (
    MaskValue,
    mean_embedding,
    mean_feature,
    token_embedding,
    zero_feature,
)
from symgen.masking.outputs import masked_outputs
from symgen.masking.patches import draw_patches
from symgen.masking.spans import TextVariables
from symgen.masking.states import log_odds
from symgen.memory import BatchSizeWarning
from symgen.models.registry import build_network
from symgen.split.sparsify import sparsify


def odds(logits, label):
    """log p / (1 - p) as it is defined, in float64."""
    p = logits.double().softmax(-1)
    return torch.log(p[label]) - torch.log(p.sum() - p[label])


def by_hand(model, x, target, variables, mask_value):
    """Mask one sample and one state at a time; the reference of these tests."""

    def mask(output, sample, state):
        output = output.clone()
        value = mask_value.value.expand(output[0].shape)
        for i, box in enumerate(variables.boxes(*output.shape[2:])[sample].tolist()):
            if not state >> i & 1:
                left, top, right, bottom = box
                patch = slice(None), slice(top, bottom), slice(left, right)
                output[0][patch] = value[patch]
        return output

    rows = []
    for sample in range(len(x)):
        row = []
        for state in range(2**variables.n):
            image, seen = x[sample : sample + 1], []

            def once(module, arguments, output, sample=sample, state=state, seen=seen):
                seen.append(1)
                return mask(output, sample, state) if len(seen) == 1 else output

            with torch.no_grad():
                if mask_value.layer is None:
                    logits = model(mask(image, sample, state))
                else:
                    handle = model.get_submodule(mask_value.layer).register_forward_hook(once)
                    logits = model(image)
                    handle.remove()
            logits = logits["logits"] if isinstance(logits, dict) else logits
            row.append(odds(logits[0], int(target[sample])))
        rows.append(torch.stack(row))
    return torch.stack(rows)


class Plain(nn.Module):
    """Convolutions, batch normalization, in-place ReLUs."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 5, 3),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.reshape(x.size(0), -1))


class Residual(nn.Module):
    """One ReLU module called three times, in place, with branches that pass the masked layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.body = nn.Conv2d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = self.stem(x)
        y = self.relu(self.body(x))
        x = self.relu(x + y)
        x = self.relu(self.body(x) + F.avg_pool2d(x, 3, 1, 1))
        return self.head(x.mean((2, 3)))


class Branching(Plain):
    """Python decides on values, which a trace cannot follow."""

    def forward(self, x):
        return super().forward(x * 2 if float(x.sum()) > 1e9 else x)


class Deciding(Plain):
    """Control flow on values, which the tracer refuses in its own way."""

    def forward(self, x):
        if x.sum() > 1e9:
            x = x * 2
        return super().forward(x)


class Sized(Plain):
    """The number of samples goes past the masked layer."""

    def forward(self, x):
        samples = len(x)
        return self.head(self.features(x).reshape(samples, -1))


class Named(Plain):
    """Logits in an entry of the output."""

    def forward(self, x):
        return {"loss": None, "logits": super().forward(x)}


class RandomLayer(Plain):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, training=True))


# Network, layer, and whether what flows past the layer has a row for each sample.
CASES = [
    (Plain, None, True),
    (Plain, "features.2", False),
    (Plain, "features.0", False),
    (Plain, "features", False),
    (Residual, "relu", True),
    (Residual, "body", True),
    (Branching, "features.2", False),
    (Deciding, "features.2", False),
    (Named, "features.2", False),
    (Sized, "features.2", True),
]


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, 9, 11, generator=generator), torch.tensor([1, 0, 3])


def network(kind):
    torch.manual_seed(1)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.3, 0.3)
    return model.eval()


@pytest.fixture
def plain():
    return network(Plain)


@pytest.mark.parametrize("kind, layer, repeated", CASES)
@pytest.mark.parametrize("n, grid", [(4, 3), (1, 1)])
def test_equals_masking_by_hand(images, kind, layer, repeated, n, grid):
    x, target = images
    model = network(kind)
    if layer == "features" and grid > 2:
        grid, n = 2, 4
    variables = draw_patches(3, n=n, grid=grid)
    mask_value = mean_feature(model, x, layer, batch_size=2)
    assert cut_at(model, layer, x[:1]).repeated is repeated
    expected = by_hand(model, x, target, variables, mask_value)
    v = masked_outputs(model, x, target, variables, mask_value, progress=False)
    assert v.dtype == torch.float64 and v.shape == (3, 2**n)
    assert expected.std(1).min() > 2e-4
    torch.testing.assert_close(v, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind, layer, repeated", CASES)
@pytest.mark.parametrize("batch_size", [5, 35])
def test_batch_size_does_not_matter(images, kind, layer, repeated, batch_size):
    x, target = images
    model, variables = network(kind), draw_patches(3, n=4, grid=2)
    mask_value = zero_feature(model, layer)
    arguments = model, x, target, variables, mask_value
    expected = masked_outputs(*arguments, progress=False)
    v = masked_outputs(*arguments, batch_size=batch_size, progress=False)
    torch.testing.assert_close(v, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind, layer", [case[:2] for case in CASES if not case[2]])
def test_repeating_samples_gives_the_same(images, kind, layer):
    x, _ = images
    model, whole, quick = network(kind), Cut(layer), Cut(layer, repeated=False)
    with torch.inference_mode():
        feature, inputs = whole.below(model, x)
        masked = torch.rand(6, *feature.shape[1:])
        expected = whole.above(model, masked.clone(), inputs, 2)
        torch.testing.assert_close(quick.above(model, masked.clone(), inputs, 2), expected)


@pytest.mark.parametrize(
    "name, layer, repeated",
    [
        ("resnet18", "first_relu", False),
        ("resnet18", "layer1.0.conv1", True),
        ("mobilenet_v2", "first_relu", False),
    ],
)
def test_networks_of_torchvision(name, layer, repeated):
    """Nothing flows past the first ReLU; past what is inside a residual block its input does."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=5).eval()
    x, target, variables = torch.randn(1, 3, 32, 32), torch.tensor([2]), draw_patches(1, n=2)
    mask_value = mean_feature(model, x, layer)
    assert cut_at(model, mask_value.layer, x).repeated is repeated
    v = masked_outputs(model, x, target, variables, mask_value, progress=False)
    expected = by_hand(model, x, target, variables, mask_value)
    torch.testing.assert_close(v, expected, atol=1e-4, rtol=0)


def test_what_is_below_the_layer_does_not_run_on_every_state(images, plain):
    x, target = images
    counts = {"features.0": 0, "features.3": 0}
    for name in counts:
        plain.get_submodule(name).register_forward_hook(
            lambda m, a, output, name=name: counts.update({name: counts[name] + len(output)})
        )
    variables = draw_patches(3, n=6, grid=3)
    mask_value = zero_feature(plain, "features.2")
    masked_outputs(plain, x, target, variables, mask_value, batch_size=16, progress=False)
    # Besides the masked states, 4 batches a sample: the plain forwards of the checks, and a few
    # trials of the cut.
    assert counts["features.0"] < 3 * 4 + 24
    assert 3 * 64 <= counts["features.3"] < 3 * 64 + 20


def test_the_mean_feature_is_the_mean_of_each_channel_and_position(images, plain):
    x, _ = images
    with torch.no_grad():
        expected = plain.features[:3](x).mean(0)
    mask_value = mean_feature(plain, x)
    assert mask_value.layer == "features.2"
    torch.testing.assert_close(mask_value.value, expected)
    batches = [(x[:1], "labels"), (x[1:], "labels")]
    torch.testing.assert_close(mean_feature(plain, batches).value, expected)
    at_input = mean_feature(plain, x, layer=None)
    assert at_input.layer is None
    torch.testing.assert_close(at_input.value, x.mean(0))
    with pytest.raises(ValueError, match="no images"):
        mean_feature(plain, [])


def test_the_network_is_left_as_it_was(images, plain):
    x, target = images
    plain.train()
    plain.features[1].eval()
    modes = [module.training for module in plain.modules()]
    weights = {k: w.clone() for k, w in plain.state_dict().items()}
    mask_value = mean_feature(plain, x)
    v = masked_outputs(plain, x, target, draw_patches(3, n=3), mask_value, progress=False)
    assert modes == [module.training for module in plain.modules()]
    assert all(torch.equal(weights[k], w) for k, w in plain.state_dict().items())
    assert not any(module._forward_hooks for module in plain.modules())
    v += 1  # An ordinary tensor, though it was made in inference mode.
    (v.requires_grad_().sum() * 2).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_odds_is_stable(dtype):
    logits = torch.tensor([[200.0, 0.0, -1.0], [-200.0, 0.0, 0.0]], dtype=dtype)
    v = log_odds(logits, torch.tensor([0, 0]))
    expected = [200 - math.log(1 + math.exp(-1)), -200 - math.log(2)]
    torch.testing.assert_close(v, torch.tensor(expected, dtype=dtype))
    assert log_odds(logits.bfloat16(), torch.tensor([0, 0])).dtype == torch.float32
    generator = torch.Generator().manual_seed(0)
    usual = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    labels = torch.arange(5)
    exact = torch.stack([odds(row, label) for row, label in zip(usual, labels, strict=True)])
    torch.testing.assert_close(log_odds(usual, labels), exact)


def test_memory_that_runs_out_halves_the_batch(images, plain):
    x, target = images

    def refuse(module, arguments):
        if len(arguments[0]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    arguments = plain, x, target, draw_patches(3, n=4), zero_feature(plain)
    expected = masked_outputs(*arguments, progress=False)
    plain.features[3].register_forward_pre_hook(refuse)
    with pytest.warns(BatchSizeWarning) as caught:
        v = masked_outputs(*arguments, batch_size=16, progress=False)
    assert [str(w.message)[:42] for w in caught] == [
        f"memory ran out; the batch is halved to {size} m"[:42] for size in (8, 4, 2)
    ]
    torch.testing.assert_close(v, expected, atol=1e-5, rtol=0)


def test_memory_that_holds_no_state_is_an_error(images, plain, monkeypatch):
    def refuse(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(states.StateRunner, "run", refuse)
    x, target = images
    arguments = plain, x, target, draw_patches(3), zero_feature(plain)
    with pytest.raises(MemoryError, match=r"single masked state.*narrower type"):
        masked_outputs(*arguments, batch_size=1, progress=False)


def test_batch_size_follows_free_memory(images, plain, monkeypatch):
    x, _ = images
    largest = 6 * 9 * 11 * 4
    assert largest_output(plain, x[:1]) == largest
    assert states.automatic_batch(plain, x[:1]) == 64
    monkeypatch.setattr(memory, "free_memory", lambda device: 2 * 40 * states.ALIVE * largest)
    assert states.automatic_batch(plain, x[:1]) == 32


def test_too_many_states_for_memory(images, plain):
    x, target = images
    variables = draw_patches(3, n=49, grid=7)
    with pytest.raises(MemoryError, match=r"2\^49 = 562,949,953,421,312 .* GiB .* fewer variables"):
        masked_outputs(plain, x, target, variables, zero_feature(plain))


def refused(*_):
    raise AssertionError("the network runs")


@pytest.mark.parametrize("samples, n, grid", [(10_000, 16, 4), (1, 25, 5)])
def test_what_cannot_be_held_or_split_is_refused_before_work(plain, monkeypatch, samples, n, grid):
    monkeypatch.setattr(memory, "free_memory", lambda device: 16 * 2**30)
    plain.register_forward_pre_hook(refused)
    x, variables = torch.zeros(1, 3, 9, 9).expand(samples, -1, -1, -1), draw_patches(samples, n)
    message = rf"n = {n} .* {samples:,} samples and the split .* GiB, more than half of the 16.0"
    with pytest.raises(MemoryError, match=message):
        masked_outputs(plain, x, torch.zeros(samples).long(), variables, zero_feature(plain, None))


# Kept, and found again -------------------------------------------------------------------------


@pytest.fixture
def counted(images, plain, tmp_path, monkeypatch):
    """Arguments of `extract` for a network that counts its calls, and these calls."""
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    calls = []
    plain.register_forward_hook(lambda *_: calls.append(1))
    return (plain, Inputs(*images), draw_patches(3, n=3, grid=2), zero_feature(plain)), calls


def test_to_extract_is_to_split_the_outputs(counted):
    (model, inputs, variables, mask_value), _ = counted
    v = masked_outputs(model, *inputs, variables, mask_value, progress=False)
    found = extract(
        model, inputs, variables, mask_value, noise=0.1, tol=1e-4, batch_size=5, progress=False
    )
    torch.testing.assert_close(found.full, v[:, -1], atol=1e-5, rtol=0)
    expected = sparsify(v, noise=0.1, tol=1e-4)
    torch.testing.assert_close(found.effects, expected.effects, atol=1e-4, rtol=0)
    assert (found.objective < sparsify(v).objective).all()


def test_outputs_are_kept_under_their_key(counted):
    (model, inputs, variables, mask_value), calls = counted

    def ran(value, *, of=inputs, drawn=variables, **options):
        calls.clear()
        extract(model, of, drawn, value, progress=False, **options)
        return bool(calls)

    assert ran(mask_value, key={"network": 1})
    assert not ran(mask_value, key={"network": 1})
    # Neither the split nor the batch is a part of v.
    assert not ran(mask_value, key={"network": 1}, noise=0.1, tol=1e-2, batch_size=3)
    assert ran(mask_value, key={"network": 2})
    other = MaskValue(mask_value.value + 1, mask_value.layer)
    assert ran(other, key={"network": 1})
    assert ran(mask_value, key={"network": 1}, of=Inputs(inputs.x, inputs.y.flip(0)))
    assert ran(mask_value, key={"network": 1}, of=Inputs(inputs.x + 1, inputs.y))
    assert ran(mask_value, key={"network": 1}, drawn=draw_patches(3, n=3, grid=2, seed=1))
    # What a function makes counts as well,
    assert not ran(lambda _: mask_value, key={"network": 1})
    assert ran(lambda _: MaskValue(mask_value.value + 2, mask_value.layer), key={"network": 1})
    # but for `masked_outputs` it is told by the key alone, and is not made when v is there.
    key = {"network": 1, "masked by": "zero"}
    masked_outputs(model, *inputs, variables, zero_feature, key=key)
    calls.clear()
    v = masked_outputs(model, *inputs, variables, refused, key=key)
    assert not calls
    assert torch.equal(v, masked_outputs(model, *inputs, variables, mask_value, progress=False))
    assert ran(mask_value) and ran(mask_value)


@pytest.mark.parametrize(
    "module, old, new, counts",
    [
        ("masking/patches", "k * size // self.grid", "k * (size // self.grid)", True),
        ("masking/states", "logits.float() if", "logits if", True),
        ("masking/mask_values", "torch.zeros(())", "torch.ones(())", False),
        ("split/sparsify", "ALONE = range(9", "ALONE = range(8", False),
    ],
)
def test_outputs_are_kept_for_the_code_that_makes_them(
    counted, tmp_path, monkeypatch, module, old, new, counts
):
    (*arguments, mask_value), calls = counted
    extract(*arguments, mask_value, key={"network": 1}, progress=False)
    shutil.copytree(ROOT / "symgen", tmp_path / "symgen")
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path / "symgen")
    for changed in (False, True):
        if changed:
            path = tmp_path / "symgen" / f"{module}.py"
            text = path.read_text(encoding="utf-8")
            assert old in text
            path.write_text(text.replace(old, new), encoding="utf-8")
        calls.clear()
        extract(*arguments, mask_value, key={"network": 1}, progress=False)
        assert bool(calls) is (changed and counts)


def names_reached(*used):
    return {name for name, _ in fingerprints.reached(*used)}


def test_all_code_that_outputs_depend_on_is_reached(images, plain, functions_that_run):
    x, target = images
    variables, mask_value = draw_patches(3, n=3, grid=2), zero_feature(plain)

    def run():
        sparsify(masked_outputs(plain, x, target, variables, mask_value, progress=False))

    ran = functions_that_run(run)
    assert {"StateRunner", "Cut", "ImageVariables", "Batch", "log_odds", "Program"} <= ran
    assert ran <= names_reached(masked_outputs, sparsify, type(variables))


def test_a_random_network_is_noticed(images):
    x, target = images
    model = network(RandomLayer)
    with pytest.raises(RuntimeError, match=r"v with nothing masked is .* dropout always on"):
        masked_outputs(model, x, target, draw_patches(3, n=3), zero_feature(model, None))


class Ratio(Plain):
    """NaN where the whole input is zero, as it is with all of it masked."""

    def forward(self, x):
        return super().forward(x) * x.abs().sum((1, 2, 3)).sign().reciprocal()[:, None]


def test_numbers_that_are_not_finite_are_told_with_their_sample(images, plain):
    x, target = images
    variables, run = draw_patches(3, n=4, grid=2), {"progress": False}
    mask_value = zero_feature(plain)
    at_input = MaskValue(torch.zeros(()), None)
    with pytest.raises(FloatingPointError, match=r"sample 0: v is -?(inf|nan) in masked state 0,"):
        masked_outputs(network(Ratio), x, target, variables, at_input, **run)
    missing = x.clone()
    missing[1, 0, 3, 3] = torch.nan
    with pytest.raises(
        FloatingPointError, match="sample 1: the network.s logits are NaN .* and in this input"
    ):
        masked_outputs(plain, missing, target, variables, mask_value, **run)
    with pytest.raises(ValueError, match="the mask value holds NaN"):
        masked_outputs(plain, x, target, variables, mean_feature(plain, missing), **run)
    plain.head.weight.data[0, 0] = torch.inf
    with pytest.raises(
        FloatingPointError, match="sample 0: the network.s logits are .* nothing masked; .* weights"
    ):
        masked_outputs(plain, x, target, variables, mask_value, **run)


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.uint8, torch.Tensor.int])
def test_labels_of_any_kind(images, plain, kind):
    x, target = images
    arguments = draw_patches(3, n=2), zero_feature(plain)
    expected = masked_outputs(plain, x, target, *arguments, progress=False)
    labels = kind(target if kind is torch.Tensor.int else target.tolist())
    assert torch.equal(masked_outputs(plain, x, labels, *arguments, progress=False), expected)


def bad(**changes):
    """Arguments of masked_outputs with something wrong."""
    model = network(Plain)
    good = {
        "model": model,
        "x": torch.randn(2, 3, 9, 9),
        "target": torch.tensor([0, 1]),
        "variables": draw_patches(2, n=2),
        "baseline": zero_feature(model),
        "progress": False,
    }
    return good | changes


class NoLogits(Plain):
    def forward(self, x):
        return [super().forward(x)]


class OneLogit(Plain):
    def forward(self, x):
        return super().forward(x)[:, :1]


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"target": torch.tensor([0, 4])}, ValueError, "label of sample 1 is 4, .* in 0..3"),
        ({"target": torch.tensor([-1, 0])}, ValueError, "label of sample 0 is -1"),
        ({"target": [0.5, 1.0]}, ValueError, "target is float32 of shape .2,.; expected one whole"),
        ({"target": np.array([0.0, 1.0])}, ValueError, "target is float64 of shape"),
        ({"target": [False, True]}, ValueError, "target is bool of shape"),
        ({"target": torch.tensor([[0], [1]])}, ValueError, "target is int64 of shape .2, 1."),
        ({"target": ["cat", "dog"]}, ValueError, "target is list; expected one whole number"),
        ({"target": [0, None]}, ValueError, "target is list; expected one whole number"),
        ({"target": np.array([0, 4])}, ValueError, "label of sample 1 is 4, .* in 0..3"),
        ({"target": torch.tensor([0])}, ValueError, "x has 2 samples, target 1 and variables 2"),
        ({"variables": draw_patches(3, n=2)}, ValueError, "variables 3"),
        ({"variables": draw_patches(2, n=2, grid=12)}, ValueError, "grid=9 or smaller"),
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"x": torch.zeros(2, 3, 9, 9).byte()}, ValueError, "x is uint8 of shape .2, 3, 9, 9."),
        (
            {"baseline": MaskValue(torch.zeros(()), "features.22")},
            ValueError,
            "no layer 'features.22'; nearest names: features",
        ),
        ({"baseline": MaskValue(torch.zeros(()), "head")}, ValueError, r"'head' returns \(1, 4\)"),
        (
            {"baseline": MaskValue(torch.zeros(7, 1, 1), "features.2")},
            ValueError,
            r"value has shape \(7, 1, 1\), but features.2 has \(6, 9, 9\)",
        ),
        ({"model": network(NoLogits)}, TypeError, "returned list; expected logits"),
        ({"model": network(OneLogit)}, ValueError, "two or more outcomes. Wrap it"),
    ],
)
def test_bad_input(changes, error, message):
    with pytest.raises(error, match=message):
        masked_outputs(**bad(**changes))


def test_a_layer_without_effect_is_an_error(images):
    class Discards(Plain):
        def forward(self, x):
            self.features[2](x)
            return super().forward(x)

    class InPlace(Plain):
        def forward(self, x):
            x = self.features[0](x)
            self.features[4](x)
            return self.head(F.adaptive_avg_pool2d(x[:, :5], 2).flatten(1))

    x, _ = images
    with pytest.raises(ValueError, match=r"does not use what layer 'features.4' returns"):
        cut_at(network(InPlace), "features.4", x[:1])
    with pytest.raises(ValueError, match=r"does not use what layer 'features.2' returns"):
        cut_at(network(Discards), "features.2", x[:1])

    class Both(Discards, Deciding):
        """Python decides on values."""

    with pytest.raises(ValueError, match=r"does not use what layer 'features.2' returns"):
        cut_at(network(Both), "features.2", x[:1])


def test_a_network_whose_output_is_constant_is_no_error(images, plain):
    """A training can collapse; its layers are used all the same."""
    x, target = images
    for model in (plain, network(Deciding)):
        torch.nn.init.zeros_(model.head.weight)
        mask_value = zero_feature(model, "features.2")
        v = masked_outputs(model, x, target, draw_patches(3, n=2), mask_value, progress=False)
        assert torch.equal(v, v[:, :1].expand(-1, 4))


def vision(name):
    """A tiny image network of `transformers` or torchvision, its weights drawn from a seed."""
    torch.manual_seed(3)
    if name == "torchvision-swin":
        from torchvision.models import SwinTransformer

        return SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=3).eval()
    t = pytest.importorskip("transformers")
    vit = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "image_size": 32, "patch_size": 4,
    }  # fmt: skip
    staged = {"hidden_sizes": [8, 16], "depths": [1, 1]}
    config = {
        "vit": lambda: t.ViTConfig(**vit),
        "vit-relu": lambda: t.ViTConfig(**vit, hidden_act="relu"),
        "convnext": lambda: t.ConvNextConfig(**staged, num_stages=2),
        "convnext-relu": lambda: t.ConvNextConfig(**staged, num_stages=2, hidden_act="relu"),
        "swin": lambda: t.SwinConfig(
            image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
        ),
        "resnet": lambda: t.ResNetConfig(**staged, embedding_size=8, layer_type="basic"),
    }[name]()
    config.num_labels, config.initializer_range = 3, 0.3
    return t.AutoModelForImageClassification.from_config(config).eval()


PATCHES = {
    "vit": "vit.embeddings.patch_embeddings.projection",
    "vit-relu": "vit.embeddings.patch_embeddings.projection",
    "convnext": "convnext.embeddings.patch_embeddings",
    "convnext-relu": "convnext.embeddings.patch_embeddings",
    "swin": "swin.embeddings.patch_embeddings.projection",
    "torchvision-swin": "features.0.0",
    "resnet": "resnet.embedder.embedder.convolution",
}


@pytest.mark.parametrize("name", PATCHES)
def test_image_networks_of_others_equal_masking_by_hand(name):
    model, layer = vision(name), PATCHES[name]
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(2, 3, 32, 32, generator=generator), torch.tensor([0, 2])
    # Attention, GELU and channels last give no map after a ReLU; nothing is taken in its place.
    if name == "resnet":
        layer = mean_feature(model, x).layer
        assert layer == "resnet.embedder.embedder.activation"
    else:
        with pytest.raises(ValueError, match=rf"calls no ReLU .*name the layer.* {layer}[,\s]?"):
            mean_feature(model, x)
    mask_value, variables = mean_feature(model, x, layer), draw_patches(2, n=3, grid=2)
    v = masked_outputs(model, x, target, variables, mask_value, progress=False)
    expected = by_hand(model, x, target, variables, mask_value)
    assert expected.std(1).min() > 2e-4
    torch.testing.assert_close(v, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name, layer, message",
    [
        ("vit", "vit.layers.0.mlp.fc1", r"returns \(1, 65, 32\) for one image; patches need"),
        ("convnext-relu", "convnext.encoder.stages.0.layers.0.act", r"\(1, 8, 8, 32\)"),
        ("swin", "swin.embeddings.patch_embeddings", "must return one tensor .* tuple"),
        ("torchvision-swin", "features.1.0", r"returns \(1, 8, 8, 8\)"),
    ],
)
def test_layers_without_a_map_are_refused_with_those_that_have_one(name, layer, message):
    model, x = vision(name), torch.randn(1, 3, 32, 32)
    mask_value = MaskValue(torch.zeros(()), layer)
    with pytest.raises(ValueError, match=f"{message}.* name .*: {PATCHES[name]}"):
        masked_outputs(
            model, x, torch.tensor([0]), draw_patches(1, n=2, grid=2), mask_value, progress=False
        )
    # A token classifier has an embedding; a network of images has none.
    with pytest.raises(ValueError, match="has no word embedding to mask at"):
        token_embedding(model, 0)


class Linear(nn.Module):
    """A ViT that embeds its patches by a linear layer: no layer gives a map."""

    def __init__(self):
        super().__init__()
        self.patches, self.act, self.head = nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x):
        cut = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
        return self.head(self.act(self.patches(cut.reshape(len(x), -1, 48))).mean(1))


def test_images_with_channels_last_are_told_so():
    model, x = build_network("cnn", image_size=32), torch.rand(2, 32, 32, 3)
    with pytest.raises(ValueError, match=r"\(2, 32, 32, 3\), whose channels seem to be last"):
        mean_feature(model, x)
    for wrong, told in (
        (x, "whose channels seem to be last"),
        (torch.rand(2, 1, 32, 32), r"have 1 channel\(s\), and its first .* 3;"),
        (torch.rand(2, 5, 32, 32), r"have 5 channel\(s\), and its first .* 3;"),
    ):
        with pytest.raises(ValueError, match=told):
            mean_feature(model, wrong)
        with pytest.raises(ValueError, match=told):
            masked_outputs(model, wrong, [0, 1], draw_patches(2, n=4, grid=2), 0.0)
    # What is amiss is something else.
    narrow = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        mean_feature(narrow, torch.rand(2, 3, 32, 32))


def test_a_network_may_make_the_channels_of_its_first_convolution_itself():
    class Grey(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = build_network("cnn", image_size=16).eval()

        def forward(self, x):
            return self.body(x.expand(-1, 3, -1, -1))

    x, patches = torch.rand(2, 1, 16, 16), draw_patches(2, n=3, grid=2)
    v = masked_outputs(Grey(), x, [0, 1], patches, mean_feature(Grey(), x), progress=False)
    assert v.shape == (2, 8)


@pytest.mark.parametrize("layer", ["patches", "act", "head", "first_relu"])
def test_a_network_without_any_map_is_masked_in_its_images_and_says_so(layer):
    model, x = Linear().eval(), torch.randn(2, 3, 16, 16)
    variables, target = draw_patches(2, n=3, grid=4), torch.tensor([0, 1])
    told = r"no layer of Linear returns \(sample, .*mean_feature\(model, images, None\)"
    if layer == "first_relu":
        with pytest.raises(ValueError, match=told):
            mean_feature(model, x, layer)
    else:
        with pytest.raises(ValueError, match=told):
            masked_outputs(model, x, target, variables, zero_feature(model, layer), progress=False)
    with pytest.raises(ValueError, match="no layer 'patchez'; nearest names: patches"):
        mean_feature(model, x, "patchez")
    with pytest.raises(ValueError, match=r"an array .*torch.from_numpy\(images\).float"):
        mean_feature(model, x.numpy(), None)
    mask_value = mean_feature(model, x, None)
    v = masked_outputs(model, x, target, variables, mask_value, progress=False)
    torch.testing.assert_close(v, by_hand(model, x, target, variables, mask_value))


def test_checks_do_not_take_progress_for_granted(images, plain, capsys):
    x, target = images
    arguments = plain, x, target, draw_patches(3, n=2), zero_feature(plain)
    masked_outputs(*arguments, progress=False)
    assert capsys.readouterr().err == ""
    masked_outputs(*arguments)
    assert "state" in capsys.readouterr().err


class Sentences(nn.Module):
    """A text network that is nobody's: ids in, logits out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.cell = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[1][0])


GROUPS = (((1,), (3, 4), (5,)), ((1,), (2,), (4, 5)), ((8,), (2,), (5,)))
TEXTS = TextVariables(GROUPS)


@pytest.fixture(scope="module")
def bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=3,
        initializer_range=0.3,
    )
    return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture
def texts():
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 9).long()
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([0, 2, 1])


def texts_by_hand(run, embedding, ids, target, mask_value):
    """Mask embeddings one sample and one state at a time; `run(embedded, sample)` gives logits."""
    v = torch.empty(3, 8, dtype=torch.float64)
    for sample in range(3):
        for state in range(8):
            embedded = embedding(ids[sample : sample + 1]).clone()
            for i, group in enumerate(GROUPS[sample]):
                if not state >> i & 1:
                    embedded[0, list(group)] = mask_value.value
            v[sample, state] = odds(run(embedded, sample)[0], int(target[sample]))
    return v


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [None, 3, 16])
def test_encoders_equal_masking_by_hand(bert, texts, batch_size):
    x, target = texts
    mask_value = token_embedding(bert, 4)
    assert mask_value.layer == "bert.embeddings.word_embeddings"

    def run(embedded, sample):
        mask = x["attention_mask"][sample : sample + 1]
        return bert(inputs_embeds=embedded, attention_mask=mask).logits

    expected = texts_by_hand(run, bert.get_input_embeddings(), x["input_ids"], target, mask_value)
    v = masked_outputs(bert, x, target, TEXTS, mask_value, batch_size, progress=False)
    assert expected.std(1).min() > 1e-3
    torch.testing.assert_close(v, expected, atol=2e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [None, 3, 16])
def test_any_network_of_token_ids(texts, batch_size):
    torch.manual_seed(0)
    model, ids, target = Sentences(), texts[0]["input_ids"], texts[1]
    mask_value = mean_embedding(model)
    torch.testing.assert_close(mask_value.value, model.embed.weight.mean(0))
    expected = texts_by_hand(
        lambda embedded, _: model.head(model.cell(embedded)[1][0]),
        model.embed,
        ids,
        target,
        mask_value,
    )
    v = masked_outputs(model, ids, target, TEXTS, mask_value, batch_size, progress=False)
    torch.testing.assert_close(v, expected, atol=2e-5, rtol=0)


def test_bad_texts(bert, texts, plain):
    x, target = texts
    mask_value = token_embedding(bert, 4)
    wrong = TextVariables(GROUPS, (), (9, 7, 9))
    with pytest.raises(ValueError, match=r"sample 1 has 6 tokens, .* were made for 7"):
        masked_outputs(bert, x, target, wrong, mask_value)
    left = x | {"attention_mask": x["attention_mask"].flip(1)}
    with pytest.raises(ValueError, match="padding_side='right'"):
        masked_outputs(bert, left, target, TEXTS, mask_value)
    with pytest.raises(ValueError, match=r"masked at the word embedding.* with token_embedding"):
        masked_outputs(bert, x, target, TEXTS, MaskValue(torch.zeros(32), None))
    with pytest.raises(ValueError, match="x is float32 of shape"):
        masked_outputs(bert, torch.zeros(3, 9), target, TEXTS, mask_value)
    with pytest.raises(ValueError, match=r"token_id = 50 is outside the vocabulary, 0\.\.49"):
        token_embedding(bert, 50)
    # What a tokenizer without a mask token has for it.
    with pytest.raises(ValueError, match=r"token_id is None; .* no mask token: take mean_embed"):
        token_embedding(bert, None)
    with pytest.raises(ValueError, match="Plain has no word embedding"):
        mean_embedding(plain)
    with pytest.raises(ValueError, match="covers token 9 but the input has 9"):
        masked_outputs(bert, x, target, TextVariables((((9,),),) * 3), mask_value)


def test_modes_are_restored_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.ReLU()).train()
    model[1].eval()
    with pytest.raises(KeyError), states.evaluating(model):
        assert not model[0].training
        raise KeyError
    assert model.training and model[0].training and not model[1].training


def test_a_mean_feature_never_holds_all_images(images, plain, monkeypatch):
    x, largest = torch.cat([images[0]] * 5), []
    expected = mean_feature(plain, x)
    one = plain.features[0](x[:1]).nbytes
    monkeypatch.setattr("symgen.masking.mask_values.FEATURE_BYTES", 2 * one)
    with monkeypatch.context() as patch:
        below = Cut.below

        def counted(way, model, inputs):
            largest.append(len(inputs))
            return below(way, model, inputs)

        patch.setattr(Cut, "below", counted)
        found = mean_feature(plain, x)
    assert max(largest) == 2 and sum(largest) == len(x) + 1
    torch.testing.assert_close(found.value, expected.value, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_images_take_the_type_of_the_network(images, plain, dtype):
    x, target = images
    model, variables = plain.to(dtype), draw_patches(len(x), n=3)
    v, same = (
        masked_outputs(model, some, target, variables, mean_feature(model, some), progress=False)
        for some in (x, x.to(dtype))
    )
    assert torch.equal(v, same)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same(images, plain):
    x, target = images
    arguments = x, target, draw_patches(3, n=4), zero_feature(plain)
    expected = masked_outputs(plain, *arguments, progress=False)
    v = masked_outputs(plain.cuda(), *arguments, progress=False)
    assert v.device.type == "cpu"
    torch.testing.assert_close(v, expected, atol=5e-3, rtol=0)
