"""Phase boundaries are where App. I has them; what was extracted once is found again."""

import copy
import dataclasses
import math
import shutil

import pandas as pd
import pytest
import torch
from conftest import ROOT

import symgen
from symgen import fingerprints, memory
from symgen.method.dynamics import bootstrap_phases

POWER = [0.2, 0.6, 0.5, 0.4]


@pytest.mark.parametrize(
    ("gained", "lost", "expected"),
    [
        # Both shrink at step 2, the generalizable strength more: no gain of the other.
        ([1, 5, 3, 1], [4, 4, 3, 4], 3),
        ([1, 5, 3, 1], [4, 4, 3, 2], None),
        ([1, 5, 3, 1], [4, 4, 4, 4], None),
        ([1, 5, 3, 2], [4, 4, 5, 5], 2),
    ],
)
def test_the_third_phase_needs_non_generalizable_strength_to_grow(gained, lost, expected):
    found = symgen.phases([0, 1, 2, 3], POWER, gained, lost)
    assert (found.t1, found.t2) == (1, expected)
    assert ("no third phase" in found.reason) == (expected is None)


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.49), (0.45, 0.45), (0.3, 0.2)])
def test_with_r_1_a_share_below_one_half_puts_t2_right_after_t1(before, after):
    """What the chapter on the three phases says: growing strength, and a share that does not."""
    share, total = [0.1, before, after, after], [1, 2, 3, 4]
    gained = [s * t for s, t in zip(share, total, strict=True)]
    lost = [t - g for g, t in zip(gained, total, strict=True)]
    found = symgen.phases([0, 1, 2, 3], POWER, gained, lost)
    assert (found.t1, found.t2) == (1, 2)


# What a study keeps ----------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    settings = {"train_size": 60, "epochs": 1, "checkpoints": 1}
    return symgen.Study.of(settings, samples=2, n=4)


# So few steps need not teach a network anything.
@pytest.mark.filterwarnings("ignore:.*near chance")
def test_masked_outputs_are_stored_apart_from_the_split_found_for_them(study):
    """Other noise bounds and tolerances need no forward pass, and another network does."""
    run = study.runs[0]
    model, calls = run.load(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    first = study.extract(model, run.key())
    assert calls and torch.equal(first.bias, study.outputs(model)[:, 0])
    calls.clear()
    again = study.changed(noise=0.1, tol=1e-2).extract(model, run.key())
    assert not calls
    assert float((first.objective - again.objective).min()) > 0
    assert torch.equal(study.extract(model, run.key()).effects, first.effects) and not calls
    other = study.extract(run.load(0), run.key(0))
    assert not torch.equal(other.bias, first.bias)
    study.extract(model, {"another": "network"})
    assert calls
    assert torch.equal(study.interactions()[0].effects, first.effects)


def network(study):
    """An untrained network for a study's data, and its calls."""
    model, calls = symgen.build_network("cnn", **study.data.spec), []
    model.register_forward_hook(lambda *_: calls.append(1))
    return model, calls


def test_outputs_are_stored_for_the_images_behind_the_mean(study, monkeypatch):
    """The same samples of a part whose other images differ are masked by another mean."""
    model, calls = network(study)
    part, (samples, _) = study.data.part("test"), study.drawn()
    images = part.images.clone()
    others = torch.ones(len(images), dtype=torch.bool).index_fill(0, samples.index, False)
    images[others] = 255 - images[others]
    different, changed = copy.copy(part), study.changed()
    different.images = images
    changed.__dict__["data"] = dataclasses.replace(
        study.data, parts={**study.data.parts, "test": different}
    )
    assert torch.equal(changed.data.sample(2, part="test", seed=0).x, samples.x)

    def stored(some):
        v = some.outputs(model, {"network": 1})
        assert torch.equal(v, some.outputs(model))
        calls.clear()
        assert torch.equal(v, some.outputs(model, {"network": 1})) and not calls
        return v

    first = stored(study)
    assert not torch.equal(first, stored(changed))
    monkeypatch.setattr("symgen.method.study.MEAN_OVER", 3)
    assert not torch.equal(first, stored(study))


def test_outputs_are_stored_for_the_code_that_chooses_the_layer(study, tmp_path, monkeypatch):
    model, calls = network(study)
    study.outputs(model, {"network": 1})
    shutil.copytree(ROOT / "symgen", tmp_path / "symgen")
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path / "symgen")
    calls.clear()
    study.outputs(model, {"network": 1})
    assert not calls
    path = tmp_path / "symgen/masking/mask_values.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("nn.ReLU6, ", ""), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    study.outputs(model, {"network": 1})
    assert calls


def test_a_study_that_is_too_large_is_refused_before_it_trains(study, monkeypatch):
    monkeypatch.setattr("symgen.method.study.train", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(ValueError, match=r"n = 17: .* 131,072 masked states, .* for n <= 16"):
        study.changed(n=17).follow()
    monkeypatch.setattr(memory, "free_memory", lambda device: 64 * 2**20)
    with pytest.raises(MemoryError, match=r"n = 16 .* 2 samples and the split of them"):
        study.changed(n=16).interactions()


def test_a_run_is_tracked_on_the_same_samples_as_its_baselines():
    """`track` asks for the interactions of each checkpoint under its key, in order."""

    class Run:
        steps = (0, 5, 9)
        records = pd.DataFrame({"step": [0, 5, 9]})

        def __init__(self, name):
            self.name = name

        def load(self, step):
            return torch.nn.Linear(1, 1).requires_grad_(False).train(step == 9)

        def key(self, step):
            return {"run": self.name, "step": step}

    asked = []

    def extract(model, key):
        asked.append((key["run"], key["step"], model.training))
        return symgen.Interactions.from_moebius(torch.full((2, 4), float(key["step"])))

    found = symgen.track(Run("target"), [Run("a"), Run("b")], extract, [0, 9], progress=False)
    assert asked == [("a", 9, True), ("b", 9, True), ("target", 0, False), ("target", 9, True)]
    assert found.steps == [0, 9] and found.losses is Run.records
    assert [float(i.bias[0]) for i in found.interactions] == [0, 9]
    assert [float(i.bias[0]) for i in found.baselines] == [9, 9]


def test_checkpoints_without_a_power_do_not_decide_the_phases():
    """A network that is not trained yet may have no salient interaction at all."""
    gained, lost = [1, 3, 5, 5], [4, 2, 3, 6]
    found = symgen.phases([0, 1, 2, 3], [math.nan, 0.2, 0.6, 0.5], gained, lost)
    assert found.t1 == 2
    assert symgen.phases([0, 1, 2, 3], [0.2, 0.6, math.nan, math.nan], gained, lost).t1 is None
    nothing = symgen.phases([0, 1, 2, 3], [math.nan] * 4, gained, lost)
    assert nothing.t1 is None and "not defined at any checkpoint" in nothing.reason
    assert symgen.phases([0, 1, 2, 3], [0.2, math.nan, 0.6, 0.5], gained, lost).t1 == 2


def test_resampled_phases_pass_over_samples_without_a_power():
    rows = [
        {"step": t, "sample": s, "power": p, "generalizable": g, "non_generalizable": n}
        for s in range(3)
        for t, p, g, n in zip(range(4), POWER, [1, 3, 5, 5], [4, 2, 3, 6], strict=True)
    ]
    table = pd.DataFrame(rows)
    table.loc[table["step"] == 2, "power"] = math.nan
    drawn = bootstrap_phases(table, draws=20)
    assert drawn.drop_duplicates().to_dict("records") == [{"t1": 1, "t2": 3}]


def test_a_summary_keeps_the_intervals_of_shares_within_0_and_1():
    v = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inter, other = (symgen.Interactions.from_moebius(x) for x in (v[0], v[0] + 2 * v[1]))
    losses = pd.DataFrame({"step": [0], "train_loss": [1.0], "test_loss": [2.0]})
    (row,) = symgen.Dynamics([0], [inter], [other], losses).summary().to_dict("records")
    for name in ("power", "power_low", "power_high", "chance"):
        assert 0 <= row[f"{name}_low95"] <= row[name] <= row[f"{name}_high95"] <= 1
