"""Training: evaluated, stored once, stopped and resumed with the same numbers."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from helpers import interrupt, same

from symgen.data.datasets import load_dataset
from symgen.device import device
from symgen.models import registry
from symgen.models.config import TrainingConfig, checkpoint_steps
from symgen.models.loop import Loop, Term, evaluate, recalibrated
from symgen.models.training import NearChanceWarning, train
from symgen.storage import DamagedFileWarning, cached, read_tensors, write_tensors

QUICK = {"epochs": 2, "batch_size": 25, "checkpoints": 4, "progress": False}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", train_size=100, test_size=50)


@pytest.fixture
def count(monkeypatch):
    """The steps that are computed."""
    steps, original = [], Loop.step
    monkeypatch.setattr(
        Loop, "step", lambda self, i, x, y: steps.append(i) or original(self, i, x, y)
    )
    return steps


@pytest.mark.parametrize("total, count", [(1, 20), (5, 20), (30, 20), (1000, 20), (2370, 7)])
def test_checkpoints_are_dense_early_and_sparse_late(total, count):
    steps = checkpoint_steps(total, count)
    assert steps[0] == 0 and steps[-1] == total and len(steps) == min(count, total) + 1
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert all(gap >= 1 for gap in gaps)
    assert max(gaps[: len(gaps) // 2], default=1) <= max(gaps[len(gaps) // 2 :])


def test_a_run_is_evaluated_and_learns():
    data = load_dataset("digits", train_size=200, test_size=100)
    run = train("cnn", data, epochs=15, checkpoints=5, progress=False)
    records = run.records
    columns = "step epoch train_loss train_accuracy test_loss test_accuracy"
    assert list(records) == columns.split()
    assert records.step.tolist() == run.steps and records.epoch.iloc[-1] == 15
    assert abs(records.train_loss[0] - torch.tensor(10.0).log().item()) < 0.2
    assert records.train_accuracy.iloc[-1] > 0.9 and records.test_accuracy.iloc[-1] > 0.85
    # Independently, from the stored network.
    step = run.steps[-3]
    row = records[records.step == step].iloc[0]
    x, y = data.part("test").batch(range(100))
    with torch.no_grad():
        logits = run.load(step)(x.to(device())).cpu()
    assert abs(torch.nn.functional.cross_entropy(logits, y) - row.test_loss) < 1e-5
    assert (logits.argmax(-1) == y).float().mean().item() == pytest.approx(row.test_accuracy)
    assert evaluate(run.load(step), data.part("test"))[0] == pytest.approx(row.test_loss)
    untrained = registry.build_network("cnn", seed=0, **data.spec).to(device())
    assert same(run.load(0), untrained) and not run.load().training


def test_numbers_of_measured_trainings_do_not_change():
    # Measured trainings are reused, so a training must give these numbers for ever.
    noisy = load_dataset("digits", train_size=100, test_size=50, label_noise=0.2)
    run = train(
        "cnn", noisy, "baseline", seed=3, options={"width": 4}, **QUICK | {"batch_size": 50}
    )
    expected = [2.3030186, 2.3023459, 2.300835, 2.3004668, 2.3004668]
    assert run.records.train_loss.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_stored_run_is_reused(data, count):
    run = train("cnn", data, **QUICK)
    assert count == list(range(1, 9))
    again = train("cnn", data, **QUICK)
    assert len(count) == 8 and again.key() == run.key() and same(again.load(), run.load())
    assert again.records.equals(run.records) and "cnn on target of digits" in repr(run)
    keys = [run.key(step) for step in run.steps]
    for change in (
        {"seed": 1}, {"part": "baseline"}, {"epochs": 3}, {"augment": False},
        {"options": {"width": 8}},
    ):  # fmt: skip
        other = train("cnn", data, **{**QUICK, **change})
        keys.append(other.key())
        assert other.folder != run.folder
    noisy = load_dataset("digits", train_size=100, test_size=50, label_noise=0.1)
    keys.append(train("cnn", noisy, **QUICK).key())
    assert all(a != b for a, b in itertools.combinations(keys, 2))
    # The keys are of the kind that the cache takes.
    stored = [cached("outputs", k, lambda i=i: {"v": torch.tensor(i)}) for i, k in enumerate(keys)]
    assert [int(x["v"]) for x in stored] == list(range(len(keys)))
    before = len(count)
    train("cnn", data, cache=False, **QUICK)
    assert len(count) == before + 8


def test_training_without_cache_leaves_nothing(data, cache):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    run = train("cnn", data, cache=False, **QUICK)
    assert torch.equal(state, torch.get_rng_state())
    folder = run.folder
    assert not folder.is_relative_to(cache) and len(run.records) == 5
    del run
    assert not folder.exists()


def test_batch_norm_statistics_are_those_of_the_samples():
    data = load_dataset("digits", train_size=30, test_size=20)
    model = registry.build_network("resnet20", seed=1, **data.spec)
    x, _ = data.part("target").batch(range(30))
    fresh = recalibrated(model, data.part("target"))
    with torch.no_grad():
        first = model.conv1(x)
    assert torch.allclose(fresh.bn1.running_mean, first.mean((0, 2, 3)), atol=1e-5)
    assert not model.bn1.running_mean.any() and not fresh.training
    run = train("resnet20", data, **{**QUICK, "epochs": 1, "checkpoints": 1})
    assert torch.allclose(
        recalibrated(run.load(), data.part("target")).bn1.running_var, run.load().bn1.running_var
    )
    plain = registry.build_network("cnn", **data.spec)
    assert recalibrated(plain, data.part("target")) is plain


class Shrink(Term):
    key = "shrink"

    def __call__(self, step, model):
        return 0.5 * sum(p.square().sum() for p in model.parameters()) if step % 2 else None


def test_a_term_is_added_to_the_loss(data):
    plain, shrunk = (train("cnn", data, term=term, **QUICK) for term in (None, Shrink()))
    models = [run.load() for run in (plain, shrunk)]
    size = [sum(p.detach().square().sum() for p in model.parameters()) for model in models]
    assert size[1] < size[0] and plain.key() != shrunk.key()


SMALL_BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    "network, name, options",
    [("cnn", "digits", {"width": 4}), ("bert-tiny", "planted-sentiment", SMALL_BERT)],
)
def test_an_interrupted_training_ends_with_the_same_weights(network, name, options, monkeypatch):
    part = load_dataset(name, train_size=40, test_size=20)
    settings = {**QUICK, "batch_size": 4, "options": options}
    whole = train(network, part, cache=False, **settings)
    steps = interrupt(monkeypatch, 4, 13)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(network, part, **settings)
    run = train(network, part, **settings)
    # No step but the interrupted ones is computed twice.
    assert steps == [*range(1, 5), *range(4, 14), *range(13, 21)]
    assert same(run.load(), whole.load()) and run.records.equals(whole.records)
    assert not list(run.folder.glob("resume-*")) and not list(run.folder.glob(".*.part"))


KILLED = textwrap.dedent(
    """
    import torch
    from symgen.data.datasets import load_dataset
    from symgen.models import loop
    from symgen.models.training import train

    torch.set_num_threads(1)
    loop.RESUME_SECONDS = 0
    data = load_dataset("digits", train_size=40, test_size=20)
    train("resnet20", data, epochs=5, batch_size=10, checkpoints=8, progress=False)
    """
)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_training_resumes_bit_for_bit(cache):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", KILLED], env=environment)
    deadline = time.monotonic() + 300
    # Killed at an arbitrary moment after some checkpoint.
    while len(list(cache.glob("training/*/step-*"))) < 4:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert len(list(cache.glob("training/*/step-*"))) < 9
    small = load_dataset("digits", train_size=40, test_size=20)
    options = {"epochs": 5, "batch_size": 10, "checkpoints": 8, "progress": False}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumed, whole = (train("resnet20", small, cache=c, **options) for c in (True, False))
    finally:
        torch.set_num_threads(threads)
    assert len(list(cache.glob("training/*"))) == 1, "it was not trained anew"
    assert same(resumed.load(), whole.load()) and resumed.records.equals(whole.records)


def test_a_damaged_checkpoint_is_reported_and_computed_again(data):
    run = train("cnn", data, **QUICK)
    expected, records = run.load(run.steps[2]), run.records
    path = run.folder / f"step-{run.steps[2]:08d}.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.warns(DamagedFileWarning, match=f"{path.name} is damaged .*computed again"):
        repaired = train("cnn", data, **QUICK).load(run.steps[2])
    assert same(repaired, expected) and read_tensors(path, run.files.key(path)) is not None
    path.write_bytes(b"12345678")
    with pytest.warns(DamagedFileWarning, match=f"{path.name} is damaged"):
        assert run.records.equals(records)
    mine = run.folder / "resume-of-anna.pdf"
    mine.write_text("mine")
    path.unlink()
    train("cnn", data, **QUICK)
    assert mine.read_text() == "mine"
    other = train("cnn", data, **QUICK, options={"width": 8})
    moved = other.files.path(run.steps[2])
    weights, info = read_tensors(moved, other.files.key(moved))
    write_tensors(path, weights, info, run.files.key(path))
    with pytest.raises(ValueError, match=r"do not fit this SmallCNN.*conv1\.weight"):
        run.load(run.steps[2])


def test_trained_networks_are_read_from_a_folder_that_cannot_be_written(data, monkeypatch):
    train("cnn", data, **QUICK)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    monkeypatch.setattr("filelock.FileLock", refused)
    assert train("cnn", data, **QUICK).load().training is False


def test_a_diverging_training_is_reported(data):
    with pytest.raises(FloatingPointError, match=r"learning_rate=1e\+38; try a tenth"):
        train("cnn", data, learning_rate=1e38, **QUICK)


def test_a_network_that_learned_nothing_is_reported(data):
    for _ in range(2):  # also if it is read from the cache
        with pytest.warns(NearChanceWarning, match=r"classifies \d+% .* guessing gives 1\d%"):
            train("cnn", data, learning_rate=1e-9, **QUICK)


def test_mixed_precision(data):
    small = {**QUICK, "epochs": 1, "options": {"width": 4}}
    plain, mixed = train("cnn", data, **small), train("cnn", data, mixed_precision="bf16", **small)
    assert not same(mixed.load(), plain.load())
    assert all(value.dtype == torch.float32 for value in mixed.load().state_dict().values())
    assert abs(mixed.records.test_loss - plain.records.test_loss).max() < 0.2


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"optimizer": "adam"}, r'optimizer "adam" is unknown.*Did you mean "adamw"'),
        ({"schedule": "cosin"}, r'schedule "cosin" is unknown.*Did you mean "cosine"'),
        ({"mixed_precision": "bf"}, r'mixed_precision "bf".*expected one of no, bf16'),
        ({"epochs": 0}, r"epochs=0: expected a whole number >= 1"),
        ({"batch_size": -2}, r"batch_size=-2: expected a whole number >= 1"),
        ({"checkpoints": 0}, r"checkpoints=0: expected a whole number"),
        ({"learning_rate": -1.0}, r"learning_rate=-1.0: expected a number >= 0, or None"),
        ({"epoch": 3}, r'training setting "epoch" is unknown.*Did you mean "epochs"'),
        ({"checkpoints": [3, 900]}, r"steps from 0 to 8, which is 2 epochs of 4"),
        ({"network": "bert-tiny"}, r"takes texts, but .* holds images; choose one of cnn"),
        ({"part": "targets"}, r'"targets" is unknown.*Did you mean "target"'),
    ],
)
def test_refusals(data, settings, message):
    with pytest.raises(ValueError, match=message):
        train(**{"network": "cnn", "data": data, **QUICK, **settings})


def test_an_unknown_step_is_refused(data):
    run = train("cnn", data, **{**QUICK, "checkpoints": [4, 2]})
    assert run.steps == [0, 2, 4, 8] and TrainingConfig().changed(seed=2).seed == 2
    with pytest.raises(ValueError, match=r"no checkpoint at step 5; there are \[0, 2, 4, 8\]"):
        run.load(5)
