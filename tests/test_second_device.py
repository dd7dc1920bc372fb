"""The whole path on a second device: a tensor on the wrong one fails here, not on a cluster."""

import copy
import functools
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from outputs import planted
from second_device import REAL, Away, second_device
from torch import nn

import symgen
from symgen.data.texts import pieces_of, split_texts, train_tokenizer
from symgen.masking.extraction import split_outputs
from symgen.masking.mask_values import mean_embedding, mean_feature, token_embedding
from symgen.masking.spans import TextVariables
from symgen.method import attributions
from symgen.method.conditions import condition_values, shuffled
from symgen.method.extraction import explained
from symgen.method.penalty import Penalty, drawn_states, lost_share
from symgen.method.removal import Removal, permuted_share, random_share
from symgen.method.spectra import mean_order, order_thirds, uncancelled
from symgen.method.study import Study
from symgen.method.surrogates import share_explained, surrogates
from symgen.method.trainings import simple_measures
from symgen.method.witnesses import Witnesses
from symgen.models import registry
from symgen.models.language import LanguageModel, tiny_llama, train_causal_lm
from symgen.models.loop import Loop, make_accelerator
from symgen.models.training import train
from symgen.split.published import published
from symgen.split.sparsify import sparsify


@pytest.fixture
def device():
    with second_device() as where:
        yield where


def gpu(values):
    return values.to("cuda")


# The device itself: what a GPU refuses is refused, and what it allows works.
stand_in = pytest.mark.skipif(REAL, reason="of the stand-in alone; the rest runs on the GPU itself")


@stand_in
@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: here + there,
        lambda here, there: here @ there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.where(there > 0, here, there),
        lambda here, there: there.gather(0, torch.tensor([0])),
        lambda here, there: there.index_select(0, torch.tensor([0])),
        lambda here, there: here[there.long()],
        lambda here, there: there.index_put_((torch.tensor([0, 1]),), here[:2]),
        lambda here, there: here + there.sum(),
        lambda here, there: torch.tensor(0.0).add_(there.sum()),
        lambda here, there: nn.Linear(3, 1)(there),
        lambda here, there: nn.Linear(3, 1).to("cuda")(here),
        lambda here, there: torch.stack([here, here.to("cuda")]),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_devices_do_not_mix(device, mixed, inference):
    with torch.inference_mode(inference), pytest.raises(RuntimeError, match="at least two devices"):
        mixed(torch.ones(3), torch.ones(3, device="cuda"))


@stand_in
@pytest.mark.parametrize("inference", [False, True])
def test_what_a_gpu_allows_works(device, inference):
    with torch.inference_mode(inference):
        there = torch.tensor([1.0, 2.0, 3.0], device="cuda")
        assert there.is_cuda and there.device == device and isinstance(there, Away)
        assert (there + 1).tolist() == [2, 3, 4]
        assert (there * torch.tensor(2.0)).sum().item() == 12
        assert (torch.tensor(2.0) * there.sum()).is_cuda
        assert there[torch.tensor([2, 0])].tolist() == [3, 1]
        there[1:] = 0
        there.view(3, 1).add_(1)
        assert there.tolist() == [2, 1, 1] and float(there.max()) == 2
        here = torch.zeros(3).copy_(there)
        assert not here.is_cuda and here.tolist() == [2, 1, 1]
        assert type(there.cpu()) is torch.Tensor and type(there.to("cpu").double()) is torch.Tensor
        assert gpu(here).is_cuda and here.cuda().is_cuda and here.to(there).is_cuda
        assert here.pin_memory().to("cuda", non_blocking=True).is_cuda
        assert torch.as_tensor(here, device=there.device).is_cuda
        assert torch.arange(2, device="cuda").is_cuda and torch.zeros_like(there).is_cuda


def test_numbers_of_the_device_are_copied_before_numpy_has_them(device):
    there = torch.ones(2, device="cuda")
    for read in (lambda: there.numpy(), lambda: np.asarray(there)):
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            read()
    assert there.cpu().numpy().tolist() == [1, 1]


def test_a_copy_is_no_view(device):
    here = torch.ones(2)
    there = gpu(here)
    there += 1
    back = there.cpu()
    back += 1
    assert here.tolist() == [1, 1] and there.tolist() == [2, 2]


def test_networks_move_and_are_copied(device):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to("cuda")
    other = copy.deepcopy(network)
    for one in (network, other):
        assert all(p.is_cuda and isinstance(p, nn.Parameter) for p in one.parameters())
        assert all(b.is_cuda for b in one.buffers())
    with torch.no_grad():
        other[0].weight.zero_()
    assert network[0].weight.abs().sum() > 0
    assert not any(x.is_cuda for x in network.to("cpu").state_dict().values())


@stand_in
def test_it_is_gone_afterwards():
    asked = torch.cuda.is_available(), torch.cuda.device_count()
    with second_device():
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == asked
    x = torch.ones(2, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 2]


# The path: from networks to interactions, and what is asked of them.


def same_on_the_device(model, run, atol=1e-4):
    """Hold v computed on the device against v computed on the CPU."""
    v = run(model)
    with second_device(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(copy.deepcopy(model).to("cuda"))
    assert type(found) is torch.Tensor and found.device.type == "cpu"
    torch.testing.assert_close(found, v, atol=atol, rtol=0)


@pytest.mark.parametrize("layer", ["first_relu", None])
@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_images_masked_at_a_layer(name, layer):
    model = symgen.build_network(name, classes=4, channels=1, image_size=12)
    x = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    variables = symgen.draw_patches(3, n=4, grid=3)

    def run(model):
        value = mean_feature(model, x, layer)
        return symgen.masked_outputs(model, x, [0, 1, 2], variables, value, progress=False)

    same_on_the_device(model, run)


def test_a_gpu_is_told_to_compute_in_full_and_alike():
    wanted = {"allow_tf32": False, "deterministic": True, "benchmark": False}
    others = {name: not value for name, value in wanted.items()}
    with second_device(), torch.backends.cudnn.flags(enabled=False, **others):
        registry.device()
        assert {name: getattr(torch.backends.cudnn, name) for name in wanted} == wanted


def test_trainings_sum_gradients_in_one_order_where_torch_knows_one():
    with second_device(), warnings.catch_warnings():
        make_accelerator()
        assert torch.are_deterministic_algorithms_enabled()
        # As torch tells what it has no other algorithm for; nothing else is silenced.
        warnings.warn(
            "Memory Efficient attention defaults to a non-deterministic algorithm.", stacklevel=1
        )
        warnings.warn(
            "some_backward_cuda does not have a deterministic implementation, but", stacklevel=1
        )
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)


def test_texts_masked_at_the_embedding():
    pytest.importorskip("transformers")
    model = symgen.build_network("bert-tiny", classes=3, vocabulary=50)
    ids = torch.randint(5, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    variables = TextVariables(tuple(tuple((2 * i + 1,) for i in range(4)) for _ in ids))

    def run(model):
        value = token_embedding(model, 4)
        return symgen.masked_outputs(model, x, [0, 2], variables, value, progress=False)

    same_on_the_device(model, run)


@pytest.mark.parametrize("masking", ["mean", "remove"])
@pytest.mark.parametrize("targets", [[3, 5], [[3, 4], [5]]])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_causal_models(kind, targets, masking):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "llama":
        model = tiny_llama(97, width=32)
    else:
        config = transformers.GPT2Config(
            vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.1,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config).eval()
    prompts = [torch.randint(5, 97, (length,)) for length in (12, 10)]
    variables = TextVariables(tuple(tuple((2 * i + 1,) for i in range(4)) for _ in prompts))

    def run(model):
        value = mean_embedding(model) if masking == "mean" else None
        return symgen.masked_outputs(model, prompts, targets, variables, value, progress=False)

    same_on_the_device(model, run)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("n", [3, 6, 9])
def test_the_split_runs_where_v_is(n, noise):
    v = torch.stack([planted(n, 3, seed)[2] for seed in range(5)])
    here = sparsify(v, noise)
    with second_device():
        there = sparsify(gpu(v), noise)
        assert there.and_.is_cuda and there.gap.is_cuda
        there = there.to("cpu")
    assert (there.gap <= 1e-3).all()
    torch.testing.assert_close(there.effects, here.effects, atol=1e-3, rtol=0)


def test_so_does_the_first_order_method(monkeypatch):
    from symgen.split import sparsify as module

    monkeypatch.setattr(module, "DENSE_FIRST", 3)
    monkeypatch.setattr(module, "DENSE_LAST", 3)
    monkeypatch.setattr(module, "FEW_SAMPLES", 0)
    v = torch.stack([planted(5, 3, seed)[2] for seed in range(3)])
    here = sparsify(v, tol=1e-2)
    with second_device():
        there = sparsify(gpu(v), tol=1e-2).to("cpu")
    assert (there.gap <= 1e-2).all()
    torch.testing.assert_close(there.effects, here.effects, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("n", "samples", "there"), [(6, 4, False), (6, 5, True), (8, 1, False), (9, 1, True)]
)
def test_few_small_samples_are_split_on_the_cpu(device, monkeypatch, n, samples, there):
    from symgen.split import sparsify as module

    places, minimize = [], module.interior_point.minimize
    monkeypatch.setattr(
        module.interior_point,
        "minimize",
        lambda program, *rest: places.append(program.w.is_cuda) or minimize(program, *rest),
    )
    v = torch.stack([planted(n, 3, seed)[2] for seed in range(samples)])
    inter = sparsify(gpu(v), tol=0.1)
    assert set(places) == {there}
    assert inter.and_.is_cuda and inter.gap.is_cuda and (inter.gap <= 0.1).all()


@pytest.mark.parametrize(("n", "there"), [(3, True), (13, False)])
def test_outputs_are_split_on_the_gpu_and_kept_on_the_cpu(device, monkeypatch, n, there):
    places = []

    @functools.wraps(sparsify)
    def seen(v, **options):
        places.append(v.is_cuda)
        return symgen.Interactions.from_moebius(v)

    monkeypatch.setattr("symgen.masking.extraction.sparsify", seen)
    v = torch.rand(2, 2**n, dtype=torch.float64)
    inter = split_outputs(v, progress=False)
    assert places == [there] and not inter.and_.is_cuda
    assert torch.equal(inter.full, v[:, -1])


ASKED = {
    "transfer": lambda a, b: torch.stack(symgen.transfer(a, b)),
    "similarity": lambda a, b: torch.stack(symgen.transfer(a, [b, a], metric="similarity")),
    "predict": lambda a, b: a.predict(),
    "top": lambda a, b: torch.stack(a.salient(top=3)).double(),
    "relabelled": lambda a, b: a.relabelled([3, 1, 0, 2]).effects,
    "spectrum": lambda a, b: symgen.order_spectrum(a, symgen.transfer(a, b)),
    "power": lambda a, b: symgen.generalization_power(a, symgen.transfer(a, b)),
    "chance": lambda a, b: symgen.chance_level(a, b, draws=3),
    "count": lambda a, b: symgen.interaction_count(a),
    "removed": lambda a, b: symgen.remove(a.full, a, symgen.transfer(a, b)),
    "at random": lambda a, b: torch.stack(random_share(a, symgen.transfer(a, b))),
    "permuted": lambda a, b: torch.stack(permuted_share(a, symgen.transfer(a, b))),
    "jaccard": lambda a, b: symgen.jaccard(symgen.order_spectrum(a), symgen.order_spectrum(b)),
    "witnesses": lambda a, b: Witnesses.of(a, [b, a], draws=2).power(1),
    "uncancelled": lambda a, b: uncancelled(symgen.order_spectrum(a)),
    "mean order": lambda a, b: mean_order(symgen.order_spectrum(a)),
    "thirds": lambda a, b: torch.stack(order_thirds(symgen.order_spectrum(a))),
    "conditions": lambda a, b: torch.stack([*condition_values(a.predict()).values()]),
    "shuffled": lambda a, b: shuffled(a.predict()),
    "explained": lambda a, b: explained(b.predict(), a),
    "published": lambda a, b: published(a.predict(), rate=1e-3, steps=20).effects,
    "lost": lambda a, b: torch.cat([x.flatten() for x in lost_share(a, symgen.transfer(a, b))]),
    "drawn": lambda a, b: drawn_states(
        lost_share(a, symgen.transfer(a, b))[1][0], 3, torch.Generator().manual_seed(0)
    )[1],
    "attributions": lambda a, b: torch.stack(
        [
            attributions.shapley(a),
            attributions.banzhaf(a),
            attributions.occlusion(b.predict()),
            attributions.lime(b.predict()),
        ]
    ),
    "pairs": lambda a, b: torch.stack([attributions.shapley_taylor(a), attributions.faith_shap(a)]),
    "surrogates": lambda a, b: torch.stack(
        [share_explained(a.predict(), x) for x in surrogates(a.predict(), a).values()]
    ),
    "share of AND": lambda a, b: symgen.Interactions.from_moebius(a.predict(), 0.5).effects,
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_is_asked_of_interactions(asked):
    a, b = (
        sparsify(torch.stack([planted(4, 3, seed + i)[2] for i in range(3)])) for seed in (0, 1)
    )
    expected = ASKED[asked](a, b)
    with second_device():
        found = ASKED[asked](a.to("cuda"), b.to("cuda"))
        assert found.is_cuda
        found = found.cpu()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_tables_and_files_of_interactions(tmp_path):
    inter = sparsify(torch.stack([planted(3, 2, seed)[2] for seed in range(2)]))
    with second_device():
        there = inter.to("cuda")
        there.save(tmp_path / "x.safetensors")
        frame = there.to_frame()
        assert there == inter
    assert symgen.Interactions.load(tmp_path / "x.safetensors") == inter
    assert frame.equals(inter.to_frame())


# Everything at once. Gradients are zeros here, so that networks stay as they were drawn.


@pytest.mark.parametrize(
    ("network", "dataset"),
    [("cnn", "digits"), ("resnet20", "digits"), ("bert-tiny", "planted-sentiment")],
)
def test_a_study_from_training_to_removal(device, network, dataset):
    settings = {"network": network, "dataset": dataset, "train_size": 40, "epochs": 1}
    study = Study.of(settings, checkpoints=1, samples=3, n=3, baselines=1)
    followed = study.dynamics()
    assert all(p.is_cuda for p in study.runs[0].load().parameters())
    assert len(followed.summary()) == 2
    assert study.nulls().keys() == {"untrained", "other_class"}
    assert simple_measures(study)["agreement"] >= 0
    train = study.follow(followed.steps[-1:], study.names[0])
    assert len(Removal.of(train, followed, followed.steps[-1]).train["nothing"]) == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_training_that_was_stopped_goes_on(device, monkeypatch, optimizer):
    """Weights and the optimizer's state come back to where the network is."""
    data = symgen.load_dataset("digits", train_size=60)
    settings = {"epochs": 1, "batch_size": 10, "checkpoints": 1, "optimizer": optimizer}
    monkeypatch.setattr("symgen.models.loop.RESUME_SECONDS", -1)
    done, step = [], Loop.step

    def stopped(loop, number, x, y):
        if number == 4 and len(done) == 3:
            raise KeyboardInterrupt
        done.append(number)
        return step(loop, number, x, y)

    monkeypatch.setattr("symgen.models.training.measure", lambda *_: mock.MagicMock(minutes=0))
    monkeypatch.setattr(Loop, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        train("cnn", data, progress=False, **settings)
    done.append("again")
    run = train("cnn", data, progress=False, **settings)
    assert done == [1, 2, 3, "again", 4, 5, 6]
    assert all(p.is_cuda for p in run.load().parameters())


def test_a_training_with_a_penalty(device):
    study = Study.of({"train_size": 40, "samples": 4, "n": 3, "baselines": 1})
    inputs, variables = study.drawn("target")
    baseline = sparsify(torch.rand(len(inputs), 8, dtype=torch.float64))
    term = Penalty(inputs, variables, baseline, samples=2, states=3)
    run = train("cnn", study.data, term=term, epochs=1, checkpoints=1, progress=False, cache=False)
    assert all(p.is_cuda for p in run.load().parameters())


def test_a_language_model_from_training_to_interactions(device):
    pytest.importorskip("transformers")
    texts = split_texts("planted-facts")["target"][:30]
    tokenizer = train_tokenizer(texts, 100, pieces=100)
    model = tiny_llama(len(tokenizer), width=16, layers=1)
    pieces = pieces_of(texts, tokenizer, 64, 2)
    run = train_causal_lm(
        model, tokenizer, pieces, pieces[:4], epochs=1, progress=False, cache=False
    )
    trained = LanguageModel.at(run)
    assert all(p.is_cuda for p in trained.model.parameters())
    prompts = symgen.draw_prompts(
        texts, [(trained.model, tokenizer)], samples=2, n=3, probability=0.0
    )
    v, _ = trained.interactions(prompts, progress=False)
    assert v.shape == (2, 8) and not v.is_cuda
    assert trained.reads(prompts[0])["probability"] > 0
