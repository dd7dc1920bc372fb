"""Batches that fit into memory, and names that are misspelled."""

import io
import sys
import time

import pytest
import torch
from torch import nn

from symgen import device, names


@pytest.mark.filterwarnings("ignore::symgen.device.BatchSizeWarning")
def test_a_batch_is_halved_when_memory_runs_out():
    batch, done = device.Batch(8), []
    while len(done) < 3:
        with batch.halving():
            if batch.size > 2:
                raise torch.OutOfMemoryError("no memory")
            done.append(batch.size)
    assert done == [2, 2, 2]


def test_each_halving_warns_and_a_single_state_is_an_error():
    batch = device.Batch(2)
    with pytest.warns(device.BatchSizeWarning, match="halved to 1"), batch.halving():
        raise RuntimeError("[enforce fail] can't allocate memory: you tried 1 TB")
    with pytest.raises(torch.OutOfMemoryError), batch.halving():
        raise torch.OutOfMemoryError
    for error in (MemoryError(), RuntimeError("CUDA error: out of memory")):
        with pytest.warns(device.BatchSizeWarning), device.Batch(2).halving():
            raise error
    with pytest.raises(RuntimeError, match="another fault"), batch.halving():
        raise RuntimeError("another fault")


@pytest.mark.parametrize("size", [0, -1])
def test_wrong_batch_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"batch_size is {size}; expected a whole number >= 1"):
        device.Batch(size)


def test_states_that_do_not_fit_are_refused_before_they_are_computed():
    device.check_states(100, 10)
    with pytest.raises(MemoryError, match=r"n = 30 gives 2\^30 = 1,073,741,824 masked states"):
        device.check_states(1000, 30)


def test_a_fitting_batch_is_a_power_of_two_within_the_budget():
    cpu = torch.device("cpu")
    size = device.fitting(2**20, cpu)
    assert size & (size - 1) == 0 and size * 2**20 <= device.batch_budget(cpu)
    assert device.fitting(2**60, cpu) == 1 and device.fitting(1, cpu) == device.LARGEST_BATCH["cpu"]


def test_in_a_file_a_progress_bar_is_one_line_per_minute(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    for _ in device.progress_bar(range(1000), file=file, desc="trainings"):
        time.sleep(0.0005)  # 0.1 seconds pass between two updates on a terminal
    assert 1 <= file.getvalue().count("trainings") <= 2


def test_a_variable_hides_progress_bars(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert device.progress_bar(disable=True).disable and not device.progress_bar(total=1).disable
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert device.progress_bar([1, 2]).disable and [*device.progress_bar([1, 2])] == [1, 2]


def test_device_and_dtype_of_networks():
    half, empty = nn.Linear(2, 2).half(), nn.ReLU()
    assert (device.dtype_of(half), device.dtype_of(empty)) == (torch.float16, torch.float32)
    assert device.device_of(half) == device.device_of(empty) == torch.device("cpu")
    assert device.as_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ValueError, match='dtype "floot32" is unknown.*Did you mean "float32"'):
        device.as_dtype("floot32")


@pytest.mark.parametrize(("given", "expected"), [
    ("binari", ' Did you mean "binary"?'), ("IMIL", ' Did you mean "similarity"?'), ("xyz", ""), ("", ""),
])  # fmt: skip
def test_the_nearest_name_is_suggested(given, expected):
    assert names.nearest(given, ["binary", "similarity"]) == expected
    message = str(names.unknown("metric", given, ["binary", "similarity"]))
    assert message == f'metric "{given}" is unknown; expected one of binary, similarity.{expected}'
