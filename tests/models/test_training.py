"""Training: recorded, stored once, stopped and resumed with the same numbers."""

import errno
import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from symgen.data.datasets import load_dataset
from symgen.data.hub import DATASETS, Source
from symgen.data.rows import Rows
from symgen.models import cost, loop, registry, training
from symgen.models.config import checkpoint_steps
from symgen.models.language import tiny_llama, train_causal_lm
from symgen.models.training import estimate, train
from symgen.storage import DamagedFileWarning, fetch, store

QUICK = {"epochs": 2, "batch_size": 50, "checkpoints": 4, "progress": False}

# Networks this small gain nothing from a second thread.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", train_size=200, test_size=100)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.fixture
def forbidden(monkeypatch):
    """From when it is called, training is an error."""

    def forbid():
        def refuse(*_):
            raise AssertionError("trained again")

        monkeypatch.setattr(training, "measure", refuse)

    return forbid


@pytest.mark.parametrize("total, count", [(1, 20), (5, 20), (30, 20), (1000, 20), (2370, 7)])
def test_checkpoints_are_dense_early_and_sparse_late(total, count):
    steps = checkpoint_steps(total, count)
    assert steps[0] == 0 and steps[-1] == total and len(steps) == min(count, total) + 1
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert all(gap >= 1 for gap in gaps)
    assert max(gaps[: len(gaps) // 2], default=1) <= max(gaps[len(gaps) // 2 :])


def test_run_is_recorded_and_learns(data):
    run = train("cnn", data, epochs=15, progress=False)
    records = run.records
    assert list(records) == [
        "step", "epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy",
    ]  # fmt: skip
    assert records.step.tolist() == run.steps and records.epoch.iloc[-1] == 15
    assert abs(records.train_loss[0] - torch.tensor(10.0).log().item()) < 0.2
    assert records.train_accuracy.iloc[-1] > 0.9 and records.test_accuracy.iloc[-1] > 0.85
    # The record of a checkpoint is what its network gives.
    step = run.steps[-3]
    loss, accuracy = loop.evaluate(run.load(step), data.part("test"), 1000)
    row = records[records.step == step].iloc[0]
    assert abs(loss - row.test_loss) < 1e-5 and accuracy == row.test_accuracy
    x, y = data.part("test").batch(range(100))
    with torch.no_grad():
        logits = run.load(step)(x.to(registry.device())).cpu()
    assert abs(torch.nn.functional.cross_entropy(logits, y) - row.test_loss) < 1e-5
    # Step 0 is the untrained network.
    untrained = registry.build_network("cnn", seed=0, **data.spec).to(registry.device())
    assert same(run.load(0), untrained) and not run.load().training


def test_stored_run_is_taken_up(data, forbidden):
    run = train("cnn", data, **QUICK)
    forbidden()
    again = train("cnn", data, **QUICK)
    assert again.fingerprint == run.fingerprint and same(again.load(), run.load())
    assert again.records.equals(run.records)
    for change in (
        {"seed": 1}, {"part": "baseline"}, {"epochs": 3}, {"augment": False},
        {"learning_rate": 0.01}, {"options": {"width": 8}}, {"schedule": "constant"},
    ):  # fmt: skip
        with pytest.raises(AssertionError, match="trained again"):
            train("cnn", data, **{**QUICK, **change})
    with pytest.raises(AssertionError, match="trained again"):
        noisy = load_dataset("digits", train_size=200, test_size=100, label_noise=0.1)
        train("cnn", noisy, **QUICK)
    with pytest.raises(AssertionError, match="trained again"):
        train("cnn", data, cache=False, **QUICK)


def test_training_without_cache_leaves_nothing(data, cache):
    run = train("cnn", data, cache=False, **QUICK)
    folder = run.folder
    assert not folder.is_relative_to(cache) and len(run.records) == 5
    run.load()
    del run
    assert not folder.exists()


def test_global_random_state_is_left_alone(data):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    train("cnn", data, **QUICK)
    assert torch.equal(state, torch.get_rng_state())


def train_classifier(name, data, **options):
    data = load_dataset(data, train_size=100, test_size=50)
    return lambda **given: train(name, data, options=options, **QUICK | {"batch_size": 10} | given)


def train_language_model(lora):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 30, (100, 8), generator=generator)
    pieces = [(row[: 4 + i % 5], 1) for i, row in enumerate(ids)]
    model = tiny_llama(30, 16, 1)
    return lambda **given: train_causal_lm(
        model, None, pieces, pieces[:20], {"old": pieces[20:40]}, lora=lora,
        **QUICK | {"batch_size": 10} | given,
    )  # fmt: skip


SMALL_BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: train_classifier("cnn", "digits"),
        lambda: train_classifier("bert-tiny", "planted-sentiment", **SMALL_BERT),
        lambda: train_language_model(lora=0),
        lambda: train_language_model(lora=2),
    ],
    ids=["images", "texts", "language model", "adapters"],
)
def test_interrupted_training_ends_with_the_same_weights(make, monkeypatch, cache):
    """Interrupted by an error between checkpoints, at the point where a state was just saved."""
    again = make()
    whole = again(cache=False)
    step, calls = loop.Loop.step, []
    monkeypatch.setattr(loop, "RESUME_SECONDS", 0)

    def interrupted(self, number, x, y):
        # The steps that estimate the cost do not count.
        if self.title == "counted":
            calls.append(number)
            if number in (4, 13) and calls.count(number) == 1:
                raise KeyboardInterrupt
        return step(self, number, x, y)

    make = loop.Loop.__init__

    def counted(self, *arguments):
        make(self, *arguments)
        self.title = "counted" if len(arguments) == 4 else None

    monkeypatch.setattr(loop.Loop, "__init__", counted)
    monkeypatch.setattr(loop.Loop, "step", interrupted)
    monkeypatch.setattr("tqdm.auto.tqdm.display", lambda *_, **__: None)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            again()
    run = again()
    # Nothing was done twice: each interrupted step is the only one that was tried again.
    assert calls == [*range(1, 5), *range(4, 14), *range(13, 21)]
    assert same(run.load(), whole.load()) and run.records.equals(whole.records)
    assert not list(run.folder.glob("resume-*")) and not list(run.folder.glob(".*.part"))


KILLED = textwrap.dedent(
    """
    from symgen.models import loop
    from symgen.data.datasets import load_dataset
    from symgen.models.training import train
    import torch

    torch.set_num_threads(1)
    loop.RESUME_SECONDS = 0
    data = load_dataset("digits", train_size=200, test_size=100)
    options = {"epochs": 5, "batch_size": 10, "checkpoints": 12, "progress": False}
    for cache in (True, False):
        run = train("resnet20", data, cache=cache, **options)
        for value in run.load().state_dict().values():
            print(f"{value.double().sum().item():.17g}", end=" ")
        print(run.records.to_csv(), end="cut", flush=True)
    """
)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_training_resumes_bit_for_bit(cache):
    def start():
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", KILLED],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    reached = []
    for wanted in (2, 6, 9):
        process = start()
        deadline = time.monotonic() + 120
        # Killed at an arbitrary moment after some checkpoint.
        while len(list(cache.glob("training/*/step-*.json"))) < wanted:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.communicate()
        reached.append(len(list(cache.glob("training/*/step-*.json"))))
    output, _ = start().communicate(timeout=300)
    resumed, whole, rest = output.split("cut")
    assert reached[0] < 13 and len(whole) > 500 and not rest
    assert resumed == whole


def test_damaged_checkpoint_is_reported_and_recomputed(data):
    run = train("cnn", data, **QUICK)
    expected = run.load(run.steps[2])
    path = run.folder / f"step-{run.steps[2]:08d}.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.warns(DamagedFileWarning, match=f"{path.name} is damaged .*computed again"):
        repaired = train("cnn", data, **QUICK).load(run.steps[2])
    assert same(repaired, expected) and fetch(path) is not None


def test_damaged_checkpoint_is_recomputed_where_nobody_may_write(data, monkeypatch):
    run = train("cnn", data, **QUICK)
    expected, folder = run.load(), run.folder
    path = run.folder / f"step-{run.steps[-1]:08d}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    make = Path.mkdir

    def refused(self, *args, **options):
        if folder in (self, *self.parents):
            raise PermissionError(errno.EACCES, "Permission denied")
        make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.warns(DamagedFileWarning), pytest.warns(UserWarning, match="cannot be written to"):
        assert same(run.load(), expected)
    assert run.folder != folder


def test_files_of_others_beside_checkpoints_stay(data):
    run = train("cnn", data, **QUICK)
    others = [run.folder / name for name in ("resume-of-anna.pdf", "resume-2024.txt")]
    for path in others:
        path.write_text("mine")
    run.store.discard(run.steps[-1])
    train("cnn", data, **QUICK)
    assert [path.read_text() for path in others] == ["mine", "mine"]
    assert not list(run.folder.glob("resume-0*"))


def test_damaged_record_is_reported_and_recomputed(data):
    run = train("cnn", data, **QUICK)
    records = run.records
    path = run.folder / f"step-{run.steps[1]:08d}.json"
    text = path.read_text()
    path.write_text(text[:20])
    with pytest.warns(DamagedFileWarning, match=r"\.json is damaged"):
        assert run.records.equals(records)
    path.write_text(text[:20])
    with pytest.warns(DamagedFileWarning, match=r"\.json is damaged"):
        assert train("cnn", data, **QUICK).records.equals(records)


def test_checkpoint_of_another_architecture_names_the_keys(data):
    run = train("cnn", data, **QUICK)
    other = train("cnn", data, **QUICK, options={"width": 8})
    weights, info = fetch(other.store.path(run.steps[-1]))
    store(run.store.path(run.steps[-1]), weights, info)
    with pytest.raises(ValueError, match=r"another architecture .*conv1\.weight: .*\[8, 3, 3, 3\]"):
        run.load()


def test_full_disk_leaves_nothing_half_written(data, cache):
    """A limit on the size of files stands in for a full disk."""
    resource = pytest.importorskip("resource")
    code = textwrap.dedent(
        f"""
        import resource, signal
        from symgen.data.datasets import load_dataset
        from symgen.models.training import train
        data = load_dataset("digits", train_size=200, test_size=100)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, {resource.RLIM_INFINITY}))
        try:
            train("cnn", data, epochs=1, progress=False)
        except OSError as error:
            print("caught:", error)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "caught:" in done.stdout and "the disk is full" in done.stdout, done.stderr
    assert "SYMGEN_CACHE" in done.stdout
    assert not list(cache.rglob("*.part")) and not list(cache.rglob("*.safetensors"))


def test_estimate_counts_minutes_memory_and_disk(data):
    found = estimate("cnn", data, epochs=10, checkpoints=5)
    weights = sum(v.numel() * 4 for v in registry.build_network("cnn", **data.spec).parameters())
    assert 0 < found.minutes < 5
    assert weights < found.memory < found.memory_free
    assert 6 * weights <= found.disk < 20 * weights
    longer = estimate("cnn", data, epochs=10, checkpoints=5, batch_size=200)
    assert longer.memory > 1.5 * found.memory
    assert "minutes" in str(found) and "GiB of disk" in str(found)
    with pytest.raises(ValueError, match=r"no setting epoch .*Did you mean \"epochs\""):
        estimate("cnn", data, epoch=1)


def test_batches_are_tried_once_for_trainings_that_differ_in_their_seeds_only(data, monkeypatch):
    tried = []
    whole = cost.seconds_per_step
    monkeypatch.setattr(cost, "seconds_per_step", lambda loop: tried.append(1) or whole(loop))
    monkeypatch.setattr(cost, "_TRIED", {})
    first = estimate("cnn", data, epochs=2, checkpoints=5)
    assert estimate("cnn", data, epochs=2, checkpoints=5, seed=3).minutes == first.minutes
    assert len(tried) == 1
    for change in (
        {"batch_size": 20}, {"epochs": 3}, {"options": {"width": 4}}, {"augment": False},
    ):  # fmt: skip
        estimate("cnn", data, **{"epochs": 2, "checkpoints": 5, **change})
    assert len(tried) == 5


def test_what_cannot_fit_is_refused_with_the_numbers(data, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2**20})())
    if not torch.cuda.is_available():
        with pytest.raises(MemoryError, match=r"needs about .* GiB of memory, and 0\.0 GiB are"):
            train("cnn", data, **QUICK)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": 1000})())
    with pytest.raises(OSError, match=r"stores about .* GiB, and 0\.0 GiB are free.*SYMGEN_CACHE"):
        train("cnn", data, **QUICK)


def test_what_would_take_forever_is_refused(data):
    with pytest.raises(ValueError, match=r"take about [\d,]+ days .* fewer epochs"):
        train("cnn", data, **{**QUICK, "epochs": 10**12})


def test_diverging_training_is_reported(data):
    with pytest.raises(FloatingPointError, match=r"learning_rate=1e\+38; try a tenth"):
        train("cnn", data, learning_rate=1e38, **QUICK)


@pytest.mark.parametrize("seed", [16, 19])
def test_trainings_that_used_to_die_learn(seed):
    """Without clipped gradients their losses went through 13 to 25, and one never came back."""
    data = load_dataset("digits", train_size=300, test_size=300, seed=seed)
    run = train("cnn", data, seed=seed, epochs=60, augment=False, checkpoints=1, progress=False)
    assert run.records.iloc[-1]["train_accuracy"] > 0.95


@pytest.mark.parametrize("network", ["cnn", "bert-tiny"])
def test_no_gradient_is_longer_than_the_recipe_allows(network, monkeypatch):
    lengths = []

    def watched(self, *args, **options):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        lengths.append(float(torch.stack([g.norm() for g in grads if g is not None]).norm()))

    name = "digits" if network == "cnn" else "planted-sentiment"
    data = load_dataset(name, train_size=100, test_size=50)
    optimizer = torch.optim.SGD if network == "cnn" else torch.optim.AdamW
    monkeypatch.setattr(optimizer, "step", watched)
    # Labels that no output can agree with make every gradient long.
    data.part("target").labels[:] = 0
    monkeypatch.setattr(
        "symgen.models.loop.F.cross_entropy", lambda x, y, **_: 1000 * x.square().sum()
    )
    train(network, data, cache=False, **QUICK)
    bound = loop.CLIP["sgd" if network == "cnn" else "adamw"]
    assert lengths and max(lengths) == pytest.approx(bound, rel=1e-3)


def test_a_network_that_learned_nothing_is_told(data):
    with pytest.warns(training.NearChanceWarning, match=r"classifies \d+% .* guessing gives 1\d%"):
        train("cnn", data, learning_rate=1e-9, **QUICK)
    # Whoever takes it up again hears it, too.
    with pytest.warns(training.NearChanceWarning, match="ends near chance"):
        train("cnn", data, learning_rate=1e-9, **QUICK)


def test_trained_networks_are_used_where_nobody_may_write(data, monkeypatch):
    train("cnn", data, **QUICK)

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr("filelock.FileLock", refused)
    assert train("cnn", data, **QUICK).load().training is False
    monkeypatch.undo()


def test_a_training_that_cannot_be_kept_is_done_all_the_same(data, cache, monkeypatch):
    make = Path.mkdir

    def refused(self, *args, **options):
        if cache in self.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.warns(UserWarning, match=r"cannot be written to.*SYMGEN_CACHE"):
        run = train("cnn", data, **QUICK)
    assert len(run.records) == 5 and not cache.exists()
    folder = run.folder
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"network": "bert-tiny"},
            r"takes texts, but .* holds images; choose one of cnn",
        ),
        ({"part": "targets"}, r'no part "targets".*Did you mean "target"'),
        ({"optimizer": "adam"}, r'optimizer="adam" is unknown.*Did you mean "adamw"'),
        ({"schedule": "cosin"}, r'schedule="cosin".*Did you mean "cosine"'),
        ({"mixed_precision": "bf"}, r'mixed_precision="bf".*expected no, bf16, fp16'),
        ({"epochs": 0}, r"epochs=0: expected at least 1"),
        ({"checkpoints": 0}, r"checkpoints=0: expected at least 1"),
        ({"checkpoints": [3, 900]}, r"steps 0 to 8 \(2 epochs of 4\)"),
    ],
)
def test_impossible_requests(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"network": "cnn", "data": data, **QUICK, **arguments})


def test_unknown_step_names_the_nearest(data):
    run = train("cnn", data, **{**QUICK, "checkpoints": [4, 2]})
    assert run.steps == [0, 2, 4, 8]
    with pytest.raises(ValueError, match=r"no checkpoint at step 5; the nearest is 4"):
        run.load(5)


def test_pretrained_network_needs_its_own_tokenizer(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    data = load_dataset("planted-sentiment", train_size=40, test_size=40)
    folder = tmp_path / "data" / "me" / "bert"
    registry.build_network("bert-tiny", **data.spec, **SMALL_BERT).model.save_pretrained(folder)
    data.tokenizer.save_pretrained(folder)
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path / "data"))
    with pytest.raises(ValueError, match=r'load it with tokenizer="me/bert"'):
        train("me/bert", data, **QUICK)
    data = load_dataset("planted-sentiment", train_size=40, test_size=40, tokenizer="me/bert")
    assert train("me/bert", data, **QUICK).records.step.tolist() == [0, 1, 2]


def test_mixed_precision_trains_and_is_another_run(data):
    small = {**QUICK, "epochs": 1, "options": {"width": 2}}
    plain = train("cnn", data, **small)
    mixed = train("cnn", data, mixed_precision="bf16", **small)
    assert mixed.fingerprint != plain.fingerprint and not same(mixed.load(), plain.load())
    assert all(value.dtype == torch.float32 for value in mixed.load().state_dict().values())
    assert abs(mixed.records.test_loss - plain.records.test_loss).max() < 0.2


def test_large_images_are_decoded_while_training(monkeypatch):
    generator = np.random.default_rng(0)
    images = list(generator.integers(0, 255, (24, 100, 80, 3), dtype=np.uint8))

    def rows(split):
        return Rows("image", np.arange(24) % 2, ["a", "b"], lambda i: [images[k] for k in i])

    monkeypatch.setitem(DATASETS, "noise", Source(rows=rows, size=72))
    large = load_dataset("noise")
    run = train("cnn", large, options={"width": 2}, **{**QUICK, "batch_size": 4})
    records = run.records
    assert len(records) == 5 and large.spec["image_size"] == 72
    # The untrained network can be had again, without any step.
    run.store.discard(0)
    assert run.records.equals(records)


IMAGES = """
from symgen.data.datasets import load_dataset
from symgen.models.training import train

def trained():
    data = load_dataset("digits", train_size=200, test_size=100)
    return train("cnn", data, epochs=2, checkpoints=3, augment=False, progress=False)
"""
# Texts of several lengths: the processes' shares of a batch differ in their number of tokens.
TEXTS = """
import torch
from symgen.models.language import tiny_llama, train_causal_lm

def trained():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 12, (20,), generator=generator).tolist()
    pieces = [(torch.randint(1, 30, (k,), generator=generator), 0) for k in lengths]
    return train_causal_lm(tiny_llama(30, 16, 1), None, pieces, pieces[:4], epochs=2,
                           batch_size=4, checkpoints=3, progress=False)
"""


@pytest.mark.parametrize("source", [IMAGES, TEXTS], ids=["images", "texts"])
def test_two_processes_share_each_batch(source, tmp_path):
    """The same loop under a launcher: without augmentation it gives the numbers of one process."""
    script = tmp_path / "script.py"
    script.write_text(
        source
        + textwrap.dedent(
            """
            import torch

            torch.set_num_threads(1)
            run = trained()
            if torch.distributed.get_rank() == 0:
                print(run.records.to_json())
            torch.distributed.destroy_process_group()
            """
        )
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(script)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "SYMGEN_CACHE": str(tmp_path / "two"), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    two = pd.read_json(io.StringIO(done.stdout))
    space: dict = {}
    exec(source, space)
    one = space["trained"]().records
    assert np.abs(one.to_numpy() - two.to_numpy()).max() < 1e-3


def test_run_describes_itself(data):
    run = train("cnn", data, **QUICK)
    about = json.loads((run.folder / "run.json").read_text())
    assert about["network"] == "cnn" and about["part"] == "target" and about["epochs"] == 2
    assert "cnn on target of digits" in repr(run) and run.fingerprint in repr(run)
