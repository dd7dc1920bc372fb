"""Checkpoints of a reader: files and functions, records, and errors."""

import copy
import re

import pandas as pd
import pytest
import torch
from helpers import same
from safetensors.torch import save_file
from torch import nn

from symgen.models.own import Checkpoints


def build(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return [build() for _ in range(4)]


def test_files_and_functions(networks, tmp_path):
    states = [network.state_dict() for network in networks]
    torch.save(states[0], tmp_path / "a.pt")
    torch.save(states[1], tmp_path / "b.pt")
    save_file(states[2], tmp_path / "c.safetensors")
    sources = {
        500: lambda: networks[3].train(), 0: tmp_path / "a.pt", 100: str(tmp_path / "b.pt"),
        200: tmp_path / "c.safetensors",
    }  # fmt: skip
    run = Checkpoints(sources, build)
    assert run.steps == [0, 100, 200, 500] and run.key() is None
    torch.manual_seed(1)
    state = torch.get_rng_state()
    for step, network in zip(run.steps, networks, strict=True):
        assert same(run.load(step), network) and not run.load(step).training
    assert torch.equal(state, torch.get_rng_state()) and same(run.load(), networks[3])
    listed = Checkpoints([tmp_path / "a.pt", tmp_path / "b.pt"], build)
    assert listed.steps == [0, 1] and same(listed.load(1), networks[1])


def test_records(networks):
    sources = {10: lambda: networks[1], 0: lambda: networks[0]}
    records = Checkpoints(sources).records
    assert records.step.tolist() == [0, 10] and records.test_loss.isna().all()
    rows = [{"step": 10, "test_loss": 0.5}, {"step": 0, "test_loss": 2.0}]
    # Without a column step, rows are in the order of the checkpoints as given.
    for given in (rows, pd.DataFrame(rows), [{"test_loss": 0.5}, {"test_loss": 2.0}]):
        assert Checkpoints(sources, records=given).records.test_loss.tolist() == [2.0, 0.5]
    with pytest.raises(ValueError, match=r'"loss" is unknown.*Did you mean "train_loss"'):
        Checkpoints(sources, records=[{"loss": 1.0}] * 2)
    with pytest.raises(ValueError, match=r"3 rows; expected one for each of the steps \[0, 10\]"):
        Checkpoints(sources, records=[{"epoch": 1.0}] * 3)


class Tied(nn.Module):
    """Output layer and embedding share their weights, as in most language models."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def prefixed(states, prefix):
    return {f"{prefix}{name}": value for name, value in states.items()}


@pytest.mark.parametrize(
    "wrap, key, message",
    [
        (lambda s: prefixed(s, "_orig_mod."), None, 'without "_orig_mod."'),
        (lambda s: prefixed(s, "module._orig_mod."), None, 'without "_orig_mod.".* "module."'),
        (lambda s: {"model": s, "optimizer": {"state": {}, "param_groups": []}, "epoch": 3}, None,
         'weights of the entry "model"'),
        (lambda s: {"state_dict": prefixed(s, "net."), "pytorch-lightning_version": "2.6"}, None,
         'entry "state_dict", names without "net."'),
        (lambda s: {"model": {k: 0 * v for k, v in s.items()}, "ema": s}, "ema", 'entry "ema"'),
        (lambda s: {"n_averaged": torch.tensor(3), **prefixed(s, "module.")}, None, '"module."'),
        (lambda s: s, None, None),
    ],
)  # fmt: skip
def test_files_of_trainers(networks, tmp_path, capsys, wrap, key, message):
    torch.save(wrap(networks[0].state_dict()), tmp_path / "a.pt")
    run = Checkpoints([tmp_path / "a.pt"] * 2, build, key=key)
    assert same(run.load(0), networks[0]) and same(run.load(1), networks[0])
    printed = capsys.readouterr().out
    assert re.search(f"a.pt: .*{message}", printed) if message else not printed
    assert printed.count("a.pt") == (message is not None)


def test_weights_that_two_layers_share_are_stored_once(tmp_path):
    tied = Tied()
    state = tied.state_dict()
    state.pop("head.weight")
    save_file(state, tmp_path / "a.safetensors")
    loaded = Checkpoints([tmp_path / "a.safetensors"], Tied).load()
    assert same(loaded, tied) and loaded.head.weight is loaded.embed.weight


def test_unclear_files_of_trainers(networks, tmp_path):
    state = networks[0].state_dict()
    torch.save({"model": state, "ema": state}, tmp_path / "two.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    for file, key, message in [
        ("two.pt", None, "entries model, ema, of which model, ema can be weights.*by key="),
        ("two.pt", "emma", "of which model, ema can be"),
        ("none.pt", None, "entries epoch, of which none can be weights"),
    ]:
        with pytest.raises(ValueError, match=message):
            Checkpoints([tmp_path / file], build, key=key).load()


def test_an_adapter_inside_the_base_network_is_refused(networks):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

    base = networks[0]
    adapted = Adapted(base)
    before, after = Checkpoints([lambda: base]), Checkpoints([lambda: adapted])
    assert before.load() is base and Checkpoints([lambda: base]).load() is base
    for run in (after, Checkpoints([lambda: base, lambda: base]), Checkpoints([lambda: adapted])):
        with pytest.raises(ValueError, match=r"share one object.*copy\.deepcopy"):
            [run.load(step) for step in run.steps]
    fresh = Adapted(copy.deepcopy(base))
    assert Checkpoints([lambda: fresh]).load() is fresh


def test_refusals(networks, tmp_path):
    file = tmp_path / "a.pt"
    torch.save(networks[0].state_dict(), file)
    for wrong, message in [
        ([], "the steps are .*whole numbers"),
        ({-1: file}, "the steps are .-1"),
        ({0: networks[0]}, "a checkpoint is Sequential; expected a function"),
    ]:
        with pytest.raises(ValueError, match=message):
            Checkpoints(wrong, build)
    with pytest.raises(ValueError, match="a checkpoint is PosixPath; expected .* with build"):
        Checkpoints({0: file})
    torch.save(networks[0], tmp_path / "whole.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"123")
    run = Checkpoints(
        {0: file, 1: tmp_path / "whole.pt", 2: tmp_path / "cut.safetensors", 3: "nothing"},
        lambda: build(width=5),
    )  # fmt: skip
    for step, message in [
        (0, "do not fit this Sequential"),
        (1, "cannot be read as weights"),
        (2, "cannot be read as weights"),
        (3, "nothing cannot be read as weights .*No such file"),
        (7, r"no checkpoint at step 7; there are \[0, 1, 2, 3\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            run.load(step)
