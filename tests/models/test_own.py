"""A training of one's own: its checkpoints are followed as those that are trained here."""

import functools
import math
import types
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

import symgen
from symgen import figures
from symgen.method import claims
from symgen.models.own import Checkpoints


def test_a_readers_own_training_is_followed_in_five_lines(tmp_path):
    """The whole story, as a reader would write it."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels)

    def build():
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )

    def fit(seed, mine):
        torch.manual_seed(seed)
        network, files, records = build(), {}, []
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        for step in range(61):
            if step in (0, 2, 8, 20, 60):
                files[step] = tmp_path / f"{seed}-{step}.pt"
                torch.save(network.state_dict(), files[step])
                seen, new = (nn.functional.cross_entropy(network(x[i]), y[i]).item()
                             for i in (mine, slice(1200, None)))  # fmt: skip
                records.append({"train_loss": seen, "test_loss": new})
            batch = mine[torch.randint(len(mine), (32,))]
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
        return symgen.Checkpoints(files, build, records)

    run, other = fit(0, torch.arange(600)), fit(1, torch.arange(600, 1200))
    extract = functools.partial(
        symgen.extract, inputs=symgen.Inputs(x[1200:1212], y[1200:1212]), progress=False,
        variables=symgen.draw_patches(12, n=6, grid=4),
        mask_value=functools.partial(symgen.mean_feature, images=x[:600], layer="1"),
    )  # fmt: skip
    dynamics = symgen.track(run, [other], extract, progress=False)
    found, table = dynamics.phases(), dynamics.summary()
    figure, _ = figures.plot_dynamics(table, found)
    judged = claims.count(dynamics)
    # What it came to is what the network did: it learned, and its interactions were told apart.
    assert dynamics.steps == [0, 2, 8, 20, 60] and len(figure.axes) == 3
    assert table["train_loss"].is_monotonic_decreasing and table["train_loss"].iloc[-1] < 0.5
    assert table["power"].iloc[-1] > table["chance"].iloc[-1] and found.reason
    assert judged.verdict and math.isfinite(table["gap"].iloc[-1])
    assert dynamics.interactions[-1].about["model"] != dynamics.interactions[0].about["model"]


def net():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_weights_come_from_either_kind_of_file_and_nothing_is_executed(tmp_path):
    torch.manual_seed(0)
    network, x = net(), torch.randn(5, 3)
    network(x)
    weights = network.eval().state_dict()
    torch.save(weights, tmp_path / "a.pt")
    torch.save({"epoch": 3, "model_state_dict": weights, "optimizer": {}}, tmp_path / "b.ckpt")
    save_file(weights, tmp_path / "c.safetensors")
    files = [tmp_path / name for name in ("a.pt", "b.ckpt", "c.safetensors")]
    before = torch.random.get_rng_state()
    run = Checkpoints([*files, lambda: network.train()], net)
    for step in run.steps:
        found, here = run.load(step).cpu(), network.eval()
        assert torch.equal(found(x), here(x)) and not found.training
    assert run.key(0) == run.key(1) == run.key(2) == run.key() and run.steps == [0, 1, 2, 3]
    assert torch.equal(before, torch.random.get_rng_state())
    assert run.records.columns[0] == "step" and run.records["test_loss"].isna().all()
    torch.save(network, tmp_path / "whole.pt")
    with pytest.raises(ValueError, match="whole.pt cannot be read as weights"):
        Checkpoints([tmp_path / "whole.pt"], net).load()


def test_a_key_is_of_the_content():
    class Plain(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(2 * x)

    plain, doubled, other = Plain(3, 2), Doubled(3, 2), Plain(3, 2)
    doubled.load_state_dict(plain.state_dict())
    doubled.__class__.__name__ = "Plain"
    run = Checkpoints([lambda: plain, lambda: doubled, lambda: other, lambda: plain])
    assert run.key(0) == run.key(3)
    assert run.key(0)["weights"] == run.key(1)["weights"] and run.key(0) != run.key(1)
    assert run.key(0) != run.key(2)
    plain.weight.data += 1
    assert Checkpoints([lambda: plain]).key() != run.key(0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 4.0), ("a", "b"), ((1, 2), (1, 3)), (torch.zeros(2), torch.ones(2)),
        (nn.functional.gelu, nn.functional.silu), ({"k": 1}, {"k": 2}),
        (np.zeros(2), np.ones(2)), ([nn.functional.gelu, 1], [nn.functional.gelu, 2]),
        (functools.partial(torch.add, alpha=1), functools.partial(torch.add, alpha=2)),
        (types.SimpleNamespace(scale=1), types.SimpleNamespace(scale=2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["value", "_value", "buffer"])
def test_a_key_is_of_the_attributes_of_layers(one, other, name):
    class Layer(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2))
            if name == "buffer" and isinstance(value, torch.Tensor):
                self.inner[0].register_buffer("value", value, persistent=False)
            else:
                setattr(self.inner[0], name, value)

        def forward(self, x):
            return self.inner(x)

    layers = [Layer(one), Layer(other), Layer(one)]
    for layer in layers:
        layer.load_state_dict(layers[0].state_dict())
    first, second, third = (Checkpoints([lambda x=layer: x]).key() for layer in layers)
    assert first == third and first != second


def test_a_key_is_found_of_what_holds_itself():
    layer, held = nn.Linear(2, 2), types.SimpleNamespace(scale=1)
    layer.config, held.itself, held.layer = held, held, layer
    assert Checkpoints([lambda: layer]).key() == Checkpoints([lambda: layer]).key()


def test_files_out_of_order_are_warned_of(tmp_path):
    paths = [tmp_path / f"seed1-step{step}.pt" for step in (0, 100, 15)]
    for path in paths:
        torch.save(nn.Linear(2, 2).state_dict(), path)
    build = functools.partial(nn.Linear, 2, 2)
    with pytest.warns(UserWarning, match=r"names say \[0, 100, 15\]"):
        Checkpoints(paths, build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Checkpoints([paths[0], paths[2], paths[1]], build)
        Checkpoints({0: paths[0], 100: paths[1], 15: paths[2]}, build)


def test_a_mapping_has_its_own_steps_and_records():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    sources = {np.int64(40): lambda: layers[1], 0: lambda: layers[0]}
    records = pd.DataFrame({"step": [0, 40], "epoch": [0.0, 1.0], "test_loss": [2.0, 1.0]})
    run = Checkpoints(sources, records=records)
    assert run.steps == [0, 40] and run.load() is layers[1] and run.load(0) is layers[0]
    assert run.records["epoch"].tolist() == [0, 1] and run.records["train_loss"].isna().all()
    # Rows without a step belong to the checkpoints as they are given.
    told = Checkpoints(sources, records=[{"test_loss": 1.0}, {"test_loss": 2.0}]).records
    assert told["step"].tolist() == [0, 40] and told["test_loss"].tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"no checkpoint at step 3; there are \[0, 40\]"):
        run.load(3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([],), "one or more whole numbers"),
        (({-1: net},), r"\[-1\]; expected one or more whole"),
        (({0.5: net},), r"\[0.5\]; expected one or more whole"),
        (({"epoch 0": net},), r"\['epoch 0'\]; expected one or more whole"),
        (("run",), "the one path run; expected a list"),
        (([net], None, [{"loss": 1.0, "epoch": 1}]), "the columns loss; expected any of epoch"),
        (([3],), "a checkpoint is int; expected the path of a file, or a function"),
        (([__file__],), "holds weights alone; pass build"),
        (([net, net], None, [{"epoch": 1}]), r"records are of the steps 1 rows"),
        (([nn.Linear(2, 2)],), "a checkpoint is a Linear; expected a function that returns it"),
        (([Path(__file__).parent], net), "is a folder; expected the file of weights in it"),
        (([net], None, pd.DataFrame({"step": [7]})), r"of the steps \[7\].*each of \[0\]"),
    ],
)
def test_what_is_no_checkpoint_is_told(arguments, told):
    with pytest.raises(ValueError, match=told):
        Checkpoints(*arguments)


def test_functions_of_a_loop_that_all_see_its_end_are_refused():
    """Each step once had the last network, and a training without change."""
    networks = [nn.Linear(2, 2) for _ in range(3)]
    late = []
    for network in networks:
        late.append(lambda: network)  # noqa: B023 - the mistake that is refused
    with pytest.raises(ValueError, match="two checkpoints are the same function <lambda>"):
        Checkpoints(late)
    with pytest.raises(ValueError, match=r"have it hold the value: lambda step=step"):
        Checkpoints({step: lambda: networks[step] for step in range(3)})  # noqa: B023
    held = Checkpoints([lambda network=network: network for network in networks])
    assert [held.load(step) for step in held.steps] == networks

    def of(network):
        return lambda: network

    made = Checkpoints([of(network) for network in networks])
    assert [made.load(step) for step in made.steps] == networks
    steps = [types.MethodType(lambda network: network, network) for network in networks]
    assert [Checkpoints(steps).load(step) for step in range(3)] == networks
    parts = Checkpoints([functools.partial(networks.__getitem__, k) for k in range(3)])
    assert [parts.load(step) for step in parts.steps] == networks


def test_weights_go_into_a_copy_of_a_network_that_is_there(tmp_path):
    """The reader's own network once got them, and all loads were one network."""
    mine, files = nn.Linear(2, 2), []
    for step in range(2):
        files.append(tmp_path / f"{step}.pt")
        torch.save(nn.Linear(2, 2).state_dict(), files[-1])
    before = mine.weight.clone()
    run = Checkpoints(files, lambda: mine)
    first, last = run.load(0), run.load(1)
    assert torch.equal(mine.weight, before) and not torch.equal(first.weight, last.weight)
    assert run.key(0) != run.key(1)


def test_weights_that_two_layers_share_are_kept_under_one_name(tmp_path):
    """As `save_pretrained` keeps the word embeddings of most language models."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    tied = Tied()
    for name in ("embedding.weight", "head.weight"):
        save_file({name: tied.state_dict()[name]}, tmp_path / "tied.safetensors")
        found = Checkpoints([tmp_path / "tied.safetensors"], Tied).load()
        assert torch.equal(found.head.weight.cpu(), tied.head.weight)
        assert found.head.weight is found.embedding.weight
    apart = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    save_file({"0.weight": tied.embedding.weight.detach()}, tmp_path / "apart.safetensors")
    with pytest.raises(ValueError, match=r"Missing key.*1.weight"):
        Checkpoints([tmp_path / "apart.safetensors"], lambda: apart).load()


def test_files_that_are_missing_or_do_not_fit_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*none.pt"):
        Checkpoints([tmp_path / "none.pt"], net)
    torch.save({"a": 1}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a.pt holds a; expected what torch.save"):
        Checkpoints([tmp_path / "a.pt"], net).load()
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"weights in .*b.pt are of another architecture"):
        Checkpoints([tmp_path / "b.pt"], net).load()
    (tmp_path / "c.safetensors").write_bytes(b"\x00" * 4)
    with pytest.raises(ValueError, match=r"c.safetensors cannot be read as weights"):
        Checkpoints([tmp_path / "c.safetensors"], net).load()
    (tmp_path / "d.pt").write_text("hello")
    with pytest.raises(ValueError, match=r"d.pt cannot be read as weights \(\w+Error: "):
        Checkpoints([tmp_path / "d.pt"], net).load()
    with pytest.raises(ValueError, match="step 0 returned NoneType; expected a torch.nn.Module"):
        Checkpoints([lambda: None]).load()


def test_weights_of_distributed_training_and_networks_for_functions(tmp_path):
    network = torch.nn.Linear(3, 2)
    wrapped = {f"module.{k}": v for k, v in network.state_dict().items()}
    torch.save(wrapped, tmp_path / "ddp.pt")
    torch.save({"model": network.state_dict(), "opt": {}}, tmp_path / "inside.pt")
    compiled = {f"_orig_mod.{k}": v for k, v in network.state_dict().items()}
    torch.save(compiled, tmp_path / "compiled.pt")
    lightning = {f"module.net.{k}": v for k, v in network.state_dict().items()}
    torch.save({"state_dict": lightning}, tmp_path / "lightning.pt")
    torch.save({"net": network.state_dict()}, tmp_path / "net.pt")
    names = ("ddp", "inside", "compiled", "lightning", "net")
    files = [tmp_path / f"{name}.pt" for name in names]
    run = symgen.Checkpoints(files, lambda: torch.nn.Linear(3, 2))
    for step in run.steps:
        assert torch.equal(run.load(step).weight.cpu(), network.weight)
    with pytest.raises(ValueError, match=r"build is a Linear; expected a function"):
        symgen.Checkpoints(files, network)
    with pytest.raises(ValueError, match=r"ddp.pt is given for several steps; expected a file"):
        symgen.Checkpoints([files[0], files[1], files[0]], lambda: network)
    # Of two networks in one file none is meant more than the other.
    two = {f"{k}.{name}": x for k in "ab" for name, x in network.state_dict().items()}
    torch.save(two, tmp_path / "two.pt")
    with pytest.raises(ValueError, match="two.pt are of another architecture than this Linear"):
        symgen.Checkpoints([tmp_path / "two.pt"], lambda: torch.nn.Linear(3, 2)).load()
    with pytest.raises(ValueError, match="the run is one of its own baselines"):
        symgen.track(run, [run], symgen.extract)
    torch.save(network, tmp_path / "whole.pt")
    whole = symgen.Checkpoints([tmp_path / "whole.pt"], lambda: torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match="is given as a function that returns it"):
        whole.load()
