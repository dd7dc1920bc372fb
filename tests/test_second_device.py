"""Masking, split and transfer on a second device: a tensor on the wrong one fails here."""

import copy
import warnings

import jaxtyping
import pytest
import torch
from second_device import REAL, Away, second_device
from torch import nn

import symgen
from symgen.masking.mask_values import mean_embedding, mean_feature, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.variables import TextVariables, draw_patches
from symgen.method import generalization, removal
from symgen.split.sparsify import sparsify

stand_in = pytest.mark.skipif(REAL, reason="of the stand-in only; the rest runs on the GPU")


@stand_in
@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: here + there,
        lambda here, there: here @ there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.where(there > 0, here, there),
        lambda here, there: there.index_select(0, torch.tensor([0])),
        lambda here, there: here[there.long()],
        lambda here, there: there.index_put_((torch.tensor([0, 1]),), here[:2]),
        lambda here, there: torch.tensor(0.0).add_(there.sum()),
        lambda here, there: nn.Linear(3, 1).to("cuda")(here),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_devices_do_not_mix(mixed, inference):
    refused = pytest.raises(RuntimeError, match="at least two devices")
    with second_device(), torch.inference_mode(inference), refused:
        mixed(torch.ones(3), torch.ones(3, device="cuda"))


@stand_in
@pytest.mark.parametrize("inference", [False, True])
def test_allowed_operations_work(inference):
    with second_device() as device, torch.inference_mode(inference):
        there = torch.tensor([1.0, 2.0, 3.0], device="cuda")
        assert there.is_cuda and there.device == device and isinstance(there, Away)
        assert (there * torch.tensor(2.0)).sum().item() == 12
        assert there[torch.tensor([2, 0])].tolist() == [3, 1]
        there[1:] = 0
        there.view(3, 1).add_(1)
        here = torch.zeros(3).copy_(there)
        assert not here.is_cuda and here.tolist() == [2, 1, 1]
        assert type(there.cpu()) is torch.Tensor and here.to(there).is_cuda
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            there.numpy()


def outputs(n, samples, seed=0):
    """Outputs of a few ANDs per sample."""
    generator = torch.Generator().manual_seed(seed)
    size = 1 + torch.rand(samples, 2**n, generator=generator, dtype=torch.float64)
    effects = size * (torch.rand(samples, 2**n, generator=generator) < 0.1)
    effects[:, 1] = 1.0
    return symgen.transforms.zeta(effects)


def same_on_the_device(model, run):
    """Compare v computed on the device with v computed on the CPU."""
    v = run(model)
    with second_device(), warnings.catch_warnings():
        warnings.simplefilter("error")
        there = run(copy.deepcopy(model).to("cuda"))
    assert type(there) is torch.Tensor and there.device.type == "cpu"
    torch.testing.assert_close(there, v, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layer", ["first_relu", None])
def test_images(layer):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(256, 4)
    ).eval()
    x, variables = torch.rand(3, 1, 12, 12), draw_patches(3, n=4, grid=3)
    same_on_the_device(
        model,
        lambda m: masked_outputs(m, x, [0, 1, 2], variables, mean_feature(m, x, layer)),
    )


def test_texts():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.randint(5, 50, (2, 12))
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    variables = TextVariables(tuple(tuple((2 * i + 1,) for i in range(4)) for _ in ids))
    same_on_the_device(
        model, lambda m: masked_outputs(m, x, [0, 2], variables, token_embedding(m, 4))
    )


@pytest.mark.parametrize("targets", [[3, 5], [[3, 4], [5]]])
def test_causal_models(targets):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    prompts = [torch.randint(5, 97, (length,)) for length in (12, 10)]
    variables = TextVariables(tuple(tuple((2 * i + 1,) for i in range(4)) for _ in prompts))

    def run(model):
        return masked_outputs(model, prompts, targets, variables, mean_embedding(model))

    same_on_the_device(model, run)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("n", [3, 9])
def test_the_split_runs_on_the_device_of_v(n, noise):
    v = outputs(n, 5)
    here = sparsify(v, noise)
    with second_device():
        there = sparsify(v.to("cuda"), noise)
        assert there.and_.is_cuda and there.gap.is_cuda
        there = there.to("cpu")
    torch.testing.assert_close(there.effects, here.effects, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "measure",
    [
        lambda a, b: 0 + symgen.transfer(a, [b, a], metric="similarity"),
        lambda a, b: symgen.order_spectrum(a, symgen.transfer(a, b)),
        lambda a, b: symgen.generalization_power(a, symgen.transfer(a, b)),
        lambda a, b: symgen.interaction_count(a),
        lambda a, b: symgen.remove_interactions(a.full, a, symgen.transfer(a, b)),
        lambda a, b: a.predict(),
    ],
)
def test_measures(measure, monkeypatch):
    # A tensor of the stand-in is of a class of its own, so it cannot become a Transfer.
    def marked(share, salient):
        share.salient = salient
        return share

    monkeypatch.setattr(generalization.Transfer, "of", marked)
    for module in (generalization, removal):
        monkeypatch.setattr(module, "checked", lambda inter, g: g)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    a, b = sparsify(outputs(4, 3)), sparsify(outputs(4, 3, seed=1))
    expected = measure(a, b)
    with second_device():
        there = measure(a.to("cuda"), b.to("cuda"))
        assert there.is_cuda
        there = there.cpu()
    torch.testing.assert_close(there, expected, equal_nan=True)
