"""Functions called side by side give what they give one after the other, and end with us."""

import contextlib
import os
import threading
import time
from concurrent.futures import BrokenExecutor
from pickle import PicklingError

import psutil
import pytest
import torch
from tqdm.auto import tqdm

from symgen.book.processes import _pool, cores, spread

two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")


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
        _pool(1).shutdown(wait=True, cancel_futures=True)
    _pool.cache_clear()


def wait_for(path):
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def owned(asked):
    """Another process tells that it has begun; this one waits for that, but for its first item."""
    item, here, begun = asked
    if os.getpid() != here:
        begun.write_text(str(os.getpid()))
    elif item:
        wait_for(begun)
    return about(item)


def is_here(item):
    return os.getpid() == item


@two_cores
def test_results_come_in_order_from_here_and_from_a_process_of_one_thread_that_stays(tmp_path):
    before, here = torch.get_num_threads(), os.getpid()
    torch.set_num_threads(2)
    try:
        first = spread(owned, [(k, here, tmp_path / "first") for k in range(4)])
        second = spread(owned, [(k, here, tmp_path / "second") for k in range(4)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [x[0] for x in first + second] == [0, 1, 2, 3] * 2
    # No bar of theirs is shown.
    assert {x[2:] for x in first + second} == {(1, True)} and not about(7)[-1]
    # This process begins with the first, and has all it needs; a loaded one takes the last.
    other = first[-1][1]
    assert [x[1] for x in first[:2]] == [here, here] and other != here
    assert second[0][1] == here and second[-1][1] == other
    assert other in {p.pid for p in psutil.Process().children(recursive=True)}


@two_cores
def test_nothing_is_waited_for_that_is_done_here_before_another_process_has_loaded():
    assert spread(is_here, [os.getpid()] * 50) == [True] * 50


class Bound:
    """What no other process could send back."""

    def __init__(self, item):
        self.item, self.lock = item, threading.Lock()


@two_cores
def test_what_is_found_here_is_the_very_result():
    assert [x.item for x in spread(Bound, range(3))] == [0, 1, 2]


def ends_here(asked):
    here, begun = asked
    if os.getpid() != here:
        begun.write_text(str(os.getpid()))
        time.sleep(600)
    wait_for(begun)
    raise KeyboardInterrupt


@two_cores
def test_who_stops_what_runs_here_stops_the_others(tmp_path):
    begun = tmp_path / "begun"
    with pytest.raises(KeyboardInterrupt):
        spread(ends_here, [(os.getpid(), begun)] * 3)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(begun.read_text())).wait(30)
    assert spread(fails, [0, 2]) == [0, 2]


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


def is_killed(asked):
    here, begun = asked
    if os.getpid() != here:
        begun.touch()
        os._exit(9)
    wait_for(begun)


@two_cores
def test_a_killed_process_is_told_and_the_next_call_has_new_ones(tmp_path):
    with pytest.raises(BrokenExecutor):
        spread(is_killed, [(os.getpid(), tmp_path / "begun")] * 3)
    assert spread(fails, [0, 2]) == [0, 2]


@two_cores
def test_what_other_processes_cannot_find_is_told():
    def of_no_module(item):
        time.sleep(0.05)

    with pytest.raises((AttributeError, PicklingError), match="of_no_module"):
        spread(of_no_module, range(100))


def fails_elsewhere(asked):
    here, begun, log = asked
    if os.getpid() != here:
        time.sleep(0.5 * begun.exists())
        begun.touch()
        raise ValueError("refused elsewhere")
    wait_for(begun)
    with open(log, "a") as file:
        file.write("x")
    time.sleep(0.02)


@two_cores
def test_an_error_elsewhere_ends_the_work_here(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(ValueError, match="refused elsewhere"):
        spread(fails_elsewhere, [(os.getpid(), tmp_path / "begun", log)] * 400)
    assert len(log.read_text()) < 200
