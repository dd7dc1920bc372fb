"""Functions called side by side give what they give one after the other, and end with us."""

import os
from concurrent.futures import BrokenExecutor

import psutil
import pytest
import torch
from tqdm.auto import tqdm

from symgen.book.processes import _pool, cores, spread


def about(item):
    with tqdm(range(3), disable=False) as bar:
        return item, os.getpid(), torch.get_num_threads(), bar.disable


def fails(item):
    if item == 1:
        raise ValueError(f"{item} is refused")
    return item


@pytest.fixture(autouse=True)
def no_processes_left(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _pool.cache_clear()
    yield
    if _pool.cache_info().currsize:
        _pool(2).shutdown(wait=True, cancel_futures=True)
    _pool.cache_clear()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_results_come_in_order_from_processes_of_one_thread_that_stay():
    first, second = spread(about, range(4)), spread(about, range(4, 6))
    assert [x[0] for x in first + second] == [*range(6)]
    owners = {x[1] for x in first + second}
    assert os.getpid() not in owners and len(owners) <= 2
    assert {x[2:] for x in first} == {(1, True)}
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    assert owners <= children


def test_one_item_or_one_core_needs_no_process(monkeypatch):
    [(item, owner, *_, hidden)] = spread(about, [7])
    assert (item, owner, hidden) == (7, os.getpid(), False)
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == 1
    found = spread(about, [7, 8])
    assert {owner for _, owner, *_ in found} == {os.getpid()}
    # Bars of many short parts would flood a notebook; those of what comes afterwards are seen.
    assert {hidden for *_, hidden in found} == {True}
    assert not about(7)[-1]
    with pytest.raises(ValueError):
        spread(fails, [0, 1])
    assert not about(7)[-1]


def test_an_error_of_one_is_the_error_of_all():
    with pytest.raises(ValueError, match="1 is refused"):
        spread(fails, range(3))
    assert spread(fails, [0, 2]) == [0, 2]


def is_killed(item):
    os._exit(item)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_a_killed_process_is_told_and_the_next_call_has_new_ones():
    with pytest.raises(BrokenExecutor):
        spread(is_killed, [9, 9])
    assert spread(fails, [0, 2]) == [0, 2]
