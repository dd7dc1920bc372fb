"""`extract` under a launcher: every process returns what one process would have found."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

CASES = """
import numpy as np
import torch
from torch import nn
from symgen import Inputs, draw_patches, extract, mean_feature
from symgen.masking.mask_values import MaskValue
from symgen.masking.spans import TextVariables

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
table = np.random.default_rng(0).normal(size=(5, 8))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        seen = self.words(input_ids) * attention_mask[..., None]
        return self.last(torch.tanh(seen.sum(1)))


def product(x):
    return 9 * x[:, 0] * x[:, 1] + np.maximum(x[:, 2], x[:, 3]) + x[:, 4:].sum(1)


def patches(progress=False, x=images, value=lambda net: mean_feature(net, images)):
    drawn = draw_patches(5, n=4, grid=2)
    return extract(network, Inputs(x, labels), drawn, value, key={"net": 1}, progress=progress)


def columns(x=table, model=product, **options):
    given = model, Inputs(x, [1] * len(x)), np.arange(8)[None], 0.0
    return extract(*given, names=[*"abcdefgh"], progress=False, **options)


def sampled():
    return columns(states=60, held_out=20)


def one_sample():
    return columns(table[:1])


def words():
    ids, mask = torch.arange(1, 16).reshape(3, 5), torch.ones(3, 5, dtype=torch.long)
    names = ("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i")
    owned = TextVariables((((0,), (1, 2), (4,)),) * 3, names)
    given = Inputs({"input_ids": ids, "attention_mask": mask}, [0, 1, 0]), owned
    return extract(Words(), *given, MaskValue(torch.zeros(4), "words"), progress=False)
"""
PROCESSES = """
import contextlib, io, os, pickle, sys
from datetime import timedelta
from symgen.masking import shares

rank, found, bars = int(os.environ["RANK"]), {}, io.StringIO()
for case in (patches, columns, sampled, one_sample, words):
    torch.manual_seed(1)  # the same weights in each
    found[case.__name__] = case()
with contextlib.redirect_stderr(bars):
    patches(progress=True, x=images.flip(0))
found["bars"] = bars.getvalue()


def wrong(x):
    if (x[:, 7] == table[4, 7]).any():
        raise KeyError("no such row")
    return product(x)


def told(name, run):
    try:
        run()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"


told("fails", lambda: columns(model=wrong))
told("differ", lambda: columns(table + rank))
with torch.no_grad():
    network[0].bias += rank
told("weights", patches)
found["goes on"] = columns()
if rank == 0:
    shares.MEET = timedelta(seconds=2)
    told("alone", columns)
with open(f"found{rank}", "wb") as file:
    pickle.dump(found, file)
"""
KILLED = """
import os, signal, sys
rank = int(sys.argv[1])
store = torch.distributed.FileStore("store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)


def ends(x):
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return product(x)


columns(model=ends)
"""


def started(script, folder, *command):
    """Start a script on the cases, and what starts it."""
    (folder / "script.py").write_text(CASES + script)
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, text=True, stderr=subprocess.PIPE,
        env={
            **os.environ, "SYMGEN_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes has found, or was told."""
    folder = tmp_path_factory.mktemp("two")
    launcher = "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"
    process = started(PROCESSES, folder, *launcher, "script.py")
    _, told = process.communicate(timeout=240)
    assert process.returncode == 0, told
    return [pickle.loads((folder / f"found{rank}").read_bytes()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def one():
    """The same calls in this process."""
    space: dict = {}
    exec(CASES, space)
    return space


@pytest.mark.parametrize("case", ["patches", "columns", "sampled", "one_sample", "words"])
def test_each_process_has_what_one_would_have_found(two, one, case):
    torch.manual_seed(1)
    alone = one[case]()
    # On a GPU numbers are rounded otherwise in a batch of another size.
    atol = 1e-5 if torch.cuda.is_available() else 1e-9
    for found in (two[0][case], two[1][case]):
        assert type(found).__name__ == type(alone).__name__
        assert found.about == alone.about and bool(found.about) == (case == "patches")
        assert np.array_equal(found.names, alone.names)
        for name, value in vars(alone).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(getattr(found, name), value, rtol=0, atol=atol)


def test_only_the_first_shows_bars(two):
    assert "%" in two[0]["bars"]
    assert two[1]["bars"] == ""


def test_an_error_in_one_process_ends_all_and_they_go_on(two):
    assert two[1]["fails"].startswith("KeyError: 'no such row'")
    assert "process 1 counts its samples from sample 3 of all" in two[1]["fails"]
    assert "RuntimeError: process 1 of 2 failed on its samples: KeyError" in two[0]["fails"]
    assert torch.equal(two[0]["goes on"].and_, two[0]["columns"].and_)


@pytest.mark.parametrize("what", ["differ", "weights"])
def test_processes_with_other_samples_or_weights_are_told(two, what):
    for found in two:
        assert found[what].startswith("ValueError: the processes were given different samples")


def test_a_process_that_waits_alone_is_told(two):
    assert "every process that torchrun starts has to call extract" in two[0]["alone"]


def test_a_process_that_is_killed_leaves_none_waiting(tmp_path):
    both = [started(KILLED, tmp_path, "script.py", str(rank)) for rank in (0, 1)]
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [1, -9]
    assert "RuntimeError: a process ended before all had done their shares" in told[0]
