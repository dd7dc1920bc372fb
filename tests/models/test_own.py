"""Checkpoints of a reader: files and functions, records, and errors."""

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from symgen.models.own import Checkpoints


def build(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return [build() for _ in range(4)]


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


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
    for given in (rows, pd.DataFrame(rows), [{"test_loss": 2.0}, {"test_loss": 0.5}]):
        assert Checkpoints(sources, records=given).records.test_loss.tolist() == [2.0, 0.5]
    with pytest.raises(ValueError, match=r'"loss" is unknown.*Did you mean "train_loss"'):
        Checkpoints(sources, records=[{"loss": 1.0}] * 2)
    with pytest.raises(ValueError, match=r"3 rows; expected one for each of the steps \[0, 10\]"):
        Checkpoints(sources, records=[{"epoch": 1.0}] * 3)


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
