"""A study trained several times: one number a training, stored, found again, and judged."""

import collections
import math

import pandas as pd
import pytest
import torch

import symgen
from symgen import fingerprints, storage
from symgen.method import claims
from symgen.method.study import Study
from symgen.method.trainings import ALSO, measure, never_run, seed_spread
from symgen.method.when import (
    case_table,
    correlation_lead,
    effect_table,
    effects_in_words,
    example_cells,
    prediction_table,
    predictions,
    rank_correlation,
    when_table,
)
from symgen.models import architectures, cost

SMALL = {"train_size": 60, "epochs": 3, "samples": 6, "n": 4, "checkpoints": 3}


@pytest.fixture(scope="module")
def study():
    return symgen.Study.of(SMALL)


@pytest.fixture(scope="module")
def trainings(study):
    return symgen.Trainings.of(study, seeds=3, also=[*ALSO])


def test_a_training_is_the_mean_over_its_samples(study, trainings):
    dynamics = study.follow()
    assert trainings.steps == dynamics.steps and len(trainings) == 3 and trainings.n == 4
    for name in ("power", "power_one", "chance", "lift", "count", "mean_order", "uncancelled"):
        expected = dynamics.curves[name].nanmean(0)
        torch.testing.assert_close(trainings.curves[name][0], expected.double())
    total, kept = trainings.spectra(dynamics.steps[-1])
    expected = [x.mean(0) for x in dynamics.spectra(dynamics.steps[-1])]
    torch.testing.assert_close([total[0], kept[0]], expected)
    records = study.runs[0].records
    gap = trainings.curves["gap"][0]
    assert gap.tolist() == pytest.approx((records.test_loss - records.train_loss).tolist())


def test_nulls_are_measured_on_the_same_samples(study, trainings):
    target = study.follow().interactions[-1]
    for name, others in study.nulls().items():
        power = symgen.generalization_power(target, symgen.transfer(target, others))
        torch.testing.assert_close(trainings.end(name)[0], power.nanmean().double())
    run = study.runs[1]
    assert torch.equal(
        study.nulls()["untrained"][0].and_, study.extract(run.load(0), run.key(0)).and_
    )
    # The next class's output is another one.
    assert not torch.equal(study.nulls()["other_class"][0].full, study.extract(run.load()).full)


def test_removal_and_parts_of_the_gap_belong_together(trainings):
    nats, odds = trainings.removal(), trainings.removal("log odds")
    assert nats.unit == "trainings" and len(nats) == 3
    assert set(nats.train) == set(symgen.method.removal.REMOVALS)
    # The gap in log odds is the sum of its parts.
    parts = sum(x.sum(-1) for x in trainings.gap_parts().values())
    torch.testing.assert_close(parts, odds.test["nothing"] - odds.train["nothing"])


def test_what_was_measured_is_stored_and_found_again(study, trainings, monkeypatch):
    monkeypatch.setattr("symgen.method.trainings._measured", lambda _: pytest.fail("again"))
    fails = dict.fromkeys(ALSO, lambda _: pytest.fail("again"))
    monkeypatch.setattr("symgen.method.trainings.ALSO", fails)
    again = measure(study.changed(), [*ALSO])
    assert again.keys() == trainings.found[0].keys()
    with pytest.raises(pytest.fail.Exception):
        measure(study.changed(seed=1))


def test_what_a_chapter_does_not_show_is_not_measured(study, splits):
    other = study.changed(seed=500)
    plain = measure(other)
    plainly = len(splits)
    assert not {"untrained", "other_class", "agreement"} & plain.keys()
    nulls = measure(other, ["nulls"])
    assert len(splits) - plainly == 2 * other.baselines  # the rest is stored
    added = {"untrained", "other_class", "error.untrained", "error.other_class"}
    assert nulls.keys() - plain.keys() == added
    assert all(torch.equal(nulls[k].nan_to_num(), x.nan_to_num()) for k, x in plain.items())
    before = len(splits)
    simple = measure(other, ["simple"])
    assert len(splits) - before == 1 + other.baselines
    assert "agreement" in simple and "untrained" not in simple
    with pytest.raises(ValueError, match="untrained was not measured, but .* any of nulls, simple"):
        symgen.Trainings(other, [plain]).end("untrained")
    for wrong in ("nulls", ["null"]):
        with pytest.raises(ValueError, match="expected a list of any of nulls, simple"):
            measure(other, wrong)


def test_results_that_come_with_the_book_are_found_without_a_cache(study, tmp_path, monkeypatch):
    monkeypatch.setattr("symgen.storage.KEPT", tmp_path)
    monkeypatch.setenv("SYMGEN_KEEP", "1")
    measured = measure(study)
    monkeypatch.delenv("SYMGEN_KEEP")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("symgen.method.trainings._measured", lambda _: pytest.fail("again"))
    assert measure(study).keys() == measured.keys()


def test_a_stored_edition_keeps_what_was_measured_in_place_of_what_other_code_did(
    study, tmp_path, monkeypatch
):
    monkeypatch.setattr("symgen.storage.KEPT", tmp_path)
    measure(study)
    assert not [*tmp_path.rglob("*")]  # nobody asked for it
    monkeypatch.setenv("SYMGEN_KEEP", "1")
    measured = measure(study)
    (kept,) = tmp_path.rglob("*.safetensors")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "empty"))
    again = measure(study)
    assert all(torch.equal(again[k].nan_to_num(), x.nan_to_num()) for k, x in measured.items())
    monkeypatch.setattr("symgen.method.trainings.code_fingerprint", lambda *_, **__: "other")
    measure(study)
    (other,) = tmp_path.glob("trainings/*.safetensors")
    assert other == kept and symgen.storage.fetch_info(kept)["code"] == "other"


@pytest.mark.parametrize("text", [False, True])
def test_all_code_that_a_training_depends_on_is_reached(
    text, study, tmp_path, monkeypatch, functions_that_run
):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    if text:
        settings = {"train_size": 60, "epochs": 1, "checkpoints": 2, "samples": 3, "n": 4}
        study = Study.of(settings, dataset="planted-sentiment", network="bert-micro")
    ran = functions_that_run(lambda: measure(study, [*ALSO]))
    # What stores results, refuses trainings of months and identifies code changes no number; the
    # key has the network's own code.
    modules = (storage, cost, fingerprints, architectures)
    aside = {name for module in modules for name in vars(module)}
    reached = {name for name, _ in fingerprints.reached(measure, Study, without=never_run(study))}
    assert {"Study", "StateRunner", "Program", "Removal", "simple_measures"} <= ran
    assert ran - aside <= reached
    everything = {name for name, _ in fingerprints.reached(measure, Study)}
    assert reached < everything and {"PrefixTree", "_Path"} <= everything - reached


def test_each_seed_is_another_training_and_shares_no_network(study, trainings):
    every = [study.changed(seed=10 * k) for k in range(3)]
    keys = [run.fingerprint for one in every for run in one.runs]
    assert len(set(keys)) == len(keys) == 9
    assert len({float(x) for x in trainings.end("weight_norm")}) == 3


def test_several_studies_are_measured_side_by_side(study):
    asked = []

    def run(function, items):
        asked.extend(items)
        return map(function, items)

    found = symgen.Trainings.of_each({"a": study, "b": study.changed(label_noise=0.5)}, 2, run)
    assert [(x.label_noise, x.seed) for x in asked] == [(0.0, 0), (0.0, 10), (0.5, 0), (0.5, 10)]
    assert found["b"].study.label_noise == 0.5 and len(found["a"]) == 2


def test_studies_of_a_map_share_no_seed(study):
    asked = []

    def run(function, items):
        asked.extend(items)
        return [{"seed": torch.tensor(x.seed)} for x in asked]

    studies = {"a": study, "b": study.changed(label_noise=0.5), "c": study.changed(n=5)}
    found = symgen.Trainings.of_each(studies, 2, run, apart=True)
    assert [x.seed for x in asked] == [0, 10, 20, 30, 40, 50]
    assert {k: [int(x["seed"]) for x in t.found] for k, t in found.items()} == {
        "a": [0, 10], "b": [20, 30], "c": [40, 50],
    }  # fmt: skip
    assert [t.study.seed for t in found.values()] == [0, 20, 40]
    assert found["b"].study.label_noise == 0.5 and found["c"].study.n == 5


def test_summary_has_one_row_a_checkpoint_with_intervals_over_trainings(trainings):
    table = trainings.summary()
    assert table["step"].tolist() == trainings.steps
    for name in ("power", "count", "gap", "train_loss"):
        value = symgen.interval(trainings.curves[name][:, -1], share=name == "power")
        row = table.iloc[-1]
        assert (row[name], row[f"{name}_low95"], row[f"{name}_high95"]) == pytest.approx(value)
    assert not [c for c in table if c.startswith(("error.", "train.", "gap."))]


def test_architectures_of_other_networks_leave_a_training_valid(study, monkeypatch):
    from symgen.models.registry import NETWORKS, Network

    before = study.runs[0].fingerprint
    monkeypatch.setitem(NETWORKS, "another", Network(lambda **_: None))
    monkeypatch.setattr("symgen.method.trainings._measured", lambda _: pytest.fail("again"))
    measure(study)
    assert symgen.Study.of(SMALL).runs[0].fingerprint == before


# Trainings with known truth --------------------------------------------------------------------


class Simulated(symgen.Trainings):
    """Trainings whose numbers are drawn around given means."""

    def __init__(self, repetitions=8, seed=0, ends=None, spread=0.04, **means):
        self.drawn = torch.Generator().manual_seed(seed)
        level = {"power": 0.5, "chance": 0.2, "count": 20.0, "mean_order": 2.0, "gap": 1.0,
                 "generalizable": 4.0, "non_generalizable": 4.0,
                 "untrained": 0.3, "other_class": 0.3}  # fmt: skip
        level = {k: [v] * 6 for k, v in level.items()} | means
        size = {"count": 40 * spread, "mean_order": 4 * spread, "gap": 4 * spread}
        curves = {k: self.around(torch.tensor(v), size.get(k, spread), repetitions)
                  for k, v in level.items()}  # fmt: skip
        curves["lift"] = curves["power"] - curves["chance"]
        self.__dict__.update(curves=curves, ends={
            k: self.around(torch.tensor(v), spread, repetitions) for k, v in (ends or {}).items()
        })  # fmt: skip

    def around(self, mean, spread, count):
        own = spread * torch.randn((count, *[1] * mean.ndim), generator=self.drawn)
        noise = spread / 2 * torch.randn((count, *mean.shape), generator=self.drawn)
        return (mean + own + noise).double()

    steps = (0, 1, 2, 4, 8, 16)
    records = pd.DataFrame({"step": steps, "epoch": [k / 4 for k in steps]})
    n = 8

    def end(self, name):
        return self.ends[name] if name in self.ends else self.curves[name][:, -1]


PHASES = {"power": [0.3, 0.4, 0.6, 0.55, 0.5, 0.45], "count": [40.0, 30.0, 15.0, 18.0, 22.0, 26.0]}


@pytest.mark.parametrize(
    ("rule", "truth"),
    [
        (claims.count, PHASES),
        (claims.power, PHASES),
        (claims.power_above_chance, PHASES),
        (claims.gap, {**PHASES, "gap": [0.0, 0.1, 0.2, 0.6, 1.0, 1.5]}),
        (claims.untrained_baseline, {}),
        (claims.other_class, {}),
        (claims.low_orders, {"power_low": [0.5] * 6, "power_high": [0.45] * 5 + [0.35]}),
        (claims.low_orders_above_chance, {"ends": {"lift_low": 0.4, "lift_above_low": 0.25}}),
        (claims.low_orders_learned, {"power_low": [0.5] * 6, "power_high": [0.45] * 5 + [0.25]}),
    ],
)
def test_eight_trainings_show_what_is_planted(rule, truth):
    """The power: changes of 0.15 in H, of which trainings differ by 0.04, and one of three in N."""
    found = collections.Counter(rule(Simulated(seed=seed, **truth)).verdict for seed in range(50))
    assert found["shown"] >= 45, found
    judged = rule(Simulated(**truth))
    assert (judged.samples, judged.unit) == (8, "trainings")


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("rule", [claims.count, claims.power, claims.power_above_chance])
def test_false_alarms_over_trainings_are_rare(rule, count):
    found = collections.Counter(rule(Simulated(count, seed)).verdict for seed in range(300))
    assert found["shown"] <= 7 and found["shown"] + found["opposite"] <= 15, found


@pytest.mark.parametrize("rule", [claims.untrained_baseline, claims.other_class])
def test_false_alarms_of_nulls_are_rare(rule):
    even = {"untrained": [0.5] * 6, "other_class": [0.5] * 6}
    found = collections.Counter(
        rule(Simulated(seed=seed, **even)).verdict for seed in range(300)
    )  # fmt: skip
    assert found["shown"] + found["opposite"] <= 15, found
    assert rule(Simulated(untrained=[0.8] * 6, other_class=[0.8] * 6)).verdict == "opposite"
    without = Simulated()
    without.curves.pop("untrained"), without.curves.pop("other_class")
    assert rule(without).verdict == "not tested"


@pytest.mark.parametrize(
    ("rule", "even"),
    [
        (claims.low_orders, {"power_low": [0.3] * 6, "power_high": [0.3] * 6}),
        (claims.low_orders_above_chance, {"ends": {"lift_low": 0.3, "lift_above_low": 0.3}}),
        # A lead, and the same before.
        (claims.low_orders_learned, {"power_low": [0.6] * 6, "power_high": [0.2] * 6}),
    ],
)
def test_false_alarms_of_low_orders_over_trainings_are_rare(rule, even):
    found = collections.Counter(rule(Simulated(seed=seed, **even)).verdict for seed in range(300))
    assert found["shown"] + found["opposite"] <= 15, found


def test_a_lead_of_low_orders_that_was_there_before_training_is_told():
    """The claim is about the end; a page says how much of it the untrained network has."""
    judged = claims.low_orders(
        Simulated(spread=0.001, power_low=[0.5] * 6, power_high=[0.2] * 5 + [0.1])
    )
    assert judged.verdict == "shown" and "+0.30 [" in judged.note
    assert judged.note.endswith("(of 8 with high orders).")
    assert judged.contrasts[0].value.mean == pytest.approx(0.4, abs=0.01)
    reverse = Simulated(power_low=[0.1] * 6, power_high=[0.4] * 6)
    assert claims.low_orders(reverse).verdict == "opposite"
    # Few trainings with high orders are a selection, and no test.
    reverse.curves["power_high"][:5] = torch.nan
    few = claims.low_orders(reverse)
    assert few.verdict == "not tested" and "3 of 8 trainings" in few.note
    assert claims.low_orders_learned(reverse).verdict == "not tested"
    reverse.curves["power_high"][3:5] = 0.4
    assert claims.low_orders(reverse).samples == 5


def test_a_falling_chance_level_is_no_fall_above_chance():
    falling = {"power": [0.3, 0.5, 0.7, 0.6, 0.5, 0.4], "chance": [0.1, 0.3, 0.5, 0.4, 0.3, 0.2]}
    alike = Simulated(spread=0.01, **falling)
    assert claims.power(alike).verdict == "shown"
    assert claims.power_above_chance(alike).verdict != "shown"


def test_trainings_that_differ_by_their_samples_alone_seldom_exceed_the_limit():
    generator = torch.Generator().manual_seed(0)

    def drawn(between, count=40):
        found = []
        for _ in range(count):
            values = torch.randn(50, generator=generator).double()
            values = values + between * torch.randn(1, generator=generator)
            error = values.std() / 50**0.5
            found.append({"power": values.mean()[None], "error.power": error[None]})
        some = Simulated()
        some.__dict__.update(
            found=found, curves={"power": torch.stack([x["power"] for x in found])}
        )
        return seed_spread(some, ["power"]).iloc[0]

    alike, apart = drawn(0.0), drawn(1.0)
    assert alike["between"] < alike["limit"] and apart["between"] > apart["limit"]
    assert alike["expected"] == pytest.approx(50**-0.5, rel=0.05) and alike["trainings"] == 40
    few = [drawn(0.0, 4) for _ in range(200)]
    assert 2 <= sum(row["between"] > row["limit"] for row in few) <= 20


def test_a_single_training_has_no_spread(study):
    row = seed_spread(symgen.Trainings.of(study, 1)).iloc[0]
    assert math.isnan(row["between"]) and math.isnan(row["limit"])


# A map of them ---------------------------------------------------------------------------------


def mapped(slope, noise=0.1, simpler=0.5, seed=0):
    """Cells whose loss gap goes with H by so much, and with the training loss by so much."""
    generator, cells = torch.Generator().manual_seed(seed), {}
    for k in range(12):
        gap = torch.randn(1, generator=generator)
        ends = {"label_free_power": -slope * gap, "train_loss": simpler * gap}
        ends |= {"label_free_lift": -slope * gap, "agreement": 0 * gap, "weight_norm": 0 * gap}
        ends = {k: float(x + noise * torch.randn(1, generator=generator)) for k, x in ends.items()}
        ends |= {"train.log odds.nothing": 0.0, "gap": float(gap)}
        cells[k, 0.0] = Simulated(4, 100 * seed + k, ends=ends, spread=noise)
    return cells


def test_a_map_has_a_row_for_every_cell_and_change():
    cells = {(100, 0.0): Simulated(**PHASES), (300, 0.2): Simulated()}
    table = when_table(cells, ["size", "noise"])
    assert len(table) == 2 * 3 * 2
    first = table[(table["size"] == 100) & (table["quantity"] == "power")].set_index("change")
    assert first.loc["first", "value"] == pytest.approx(0.3, abs=0.05)
    assert first.loc["then", "value"] == pytest.approx(-0.15, abs=0.05)
    assert (table["low95"] <= table["value"]).all() and (table["value"] <= table["high95"]).all()


def test_examples_are_where_most_and_where_fewest_findings_are_shown():
    falls = Simulated(**PHASES)
    flat = Simulated(1)
    cells = {("a",): flat, ("b",): falls, ("c",): falls}
    told = pd.DataFrame({"one": ["shown", "shown", "absent"], "two": ["absent", "shown", "absent"]})
    assert example_cells(cells, told) == (("b",), ("c",))
    # Of equals, where H falls farthest.
    two = {k: cells[k] for k in (("a",), ("b",))}
    assert example_cells(two, told[["one"]].head(2)) == (("b",), ("a",))


def test_a_case_has_its_quantities_and_phases_at_every_checkpoint():
    found = Simulated(**PHASES)
    table = case_table({"one": found})
    summary, phases = found.summary(), found.phases()
    assert len(table) == 4 * len(found.steps) and {*table["quantity"]} >= {"power", "gap"}
    for row in table.itertuples():
        same = summary[summary["step"] == row.step].iloc[0]
        assert row.value == same[row.quantity] and row.high95 == same[f"{row.quantity}_high95"]
        assert row.phase == phases.of(row.step)
    assert phases.t1 is not None


def test_what_tells_the_gap_is_found():
    strong = mapped(1.0)
    assert claims.power_predicts(strong).verdict == "shown"
    assert claims.power_predicts(mapped(-1.0)).verdict == "opposite"
    assert claims.power_beats_simpler(mapped(1.0, simpler=0.0)).verdict == "shown"
    assert claims.power_beats_simpler(mapped(0.0, simpler=1.0)).verdict == "opposite"
    assert claims.power_predicts(strong).unit == "cells"
    table = prediction_table(strong).set_index("measure")
    assert table.loc["H for the predicted class", "correlation"] < -0.8
    assert table["trainings"].eq(48).all()


def test_false_alarms_of_correlations_are_rare():
    for rule, truth in (
        (claims.power_predicts, {"slope": 0.0}),
        (claims.power_beats_simpler, {"slope": 0.5, "simpler": 0.5, "noise": 0.3}),
    ):
        found = collections.Counter(rule(mapped(seed=seed, **truth)).verdict for seed in range(200))
        assert found["shown"] + found["opposite"] <= 10, (rule.__name__, found)


def test_rank_correlations_are_spearmans_over_cells():
    values = torch.arange(18.0).view(9, 2)
    whole = rank_correlation(values, values.square())
    assert whole.mean == pytest.approx(1)
    ranks = torch.tensor([1.0, 2, 3, 5, 4, 6, 7, 8, 9])[:, None]
    steep = rank_correlation(ranks, values[:, :1])
    # Two neighbours have changed places: 1 - 6 (1 + 1) / (9 (81 - 1)).
    assert steep.mean == pytest.approx(1 - 12 / 720) and steep.high <= 1
    few = rank_correlation(values[:7], values[:7])
    assert few.mean == pytest.approx(1) and math.isnan(few.low)
    lead = correlation_lead(values, [torch.zeros(9, 2), -values], values)
    assert lead.mean == pytest.approx(0)
    # The better of the others is the one that is better in the half that is not measured.
    early, late = (
        torch.stack(pair, 1) for pair in ((values[:, 0], ranks[:, 0]), (ranks[:, 0], values[:, 0]))
    )
    lead = correlation_lead(values, [late, early], values)
    assert lead.mean == pytest.approx(12 / 720)
    # Both halves are measured: this one is as good as the values in one, and falls behind in one.
    for other in (early, late):
        assert correlation_lead(values, [other], values).mean == pytest.approx(6 / 720)
    alone = [x[:, :1] for x in (values, ranks)]
    assert math.isnan(correlation_lead(alone[0], alone[1:], alone[0]).mean)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        few, gap, other = torch.randn(3, 8, 2, generator=generator)
        for found in (rank_correlation(few, gap), correlation_lead(few, [other], gap)):
            assert -1 <= found.low <= found.high <= 1
    found = predictions({(0,): Simulated(ends={**dict.fromkeys(
        ("label_free_power", "label_free_lift", "train_loss", "weight_norm", "agreement"), 1.0),
        "train.log odds.nothing": -2.0})})  # fmt: skip
    assert float(found["margin"].mean()) == pytest.approx(2.0, abs=0.1)
    assert isinstance(when_table({}, ["size"]), pd.DataFrame)


def test_effects_of_factors_compare_cells_that_differ_in_one():
    rows = [
        (size, wrong, "power", change, size / 100 * (wrong + 1) * k)
        for size in (100, 300, 200)
        for wrong in (0.0, 0.5)
        for change, k in (("first", 1), ("then", -1))
    ]
    names = ["samples", "wrong", "quantity", "change", "value"]
    moves = pd.DataFrame(rows, columns=names).assign(width=8)
    found = effect_table(moves, ["samples", "wrong", "width"])
    assert found["factor"].tolist() == ["samples"] * 2 + ["wrong"] * 2  # one width is no factor
    assert found["pairs"].tolist() == [2, 2, 3, 3]
    assert found["value"].tolist() == pytest.approx([2.5, -2.5, 1.0, -1.0])
    text = effects_in_words(found)
    assert text.columns.tolist() == ["samples: 300 less 100", "wrong: 0.5 less 0"]
    assert text.index.tolist() == ["H, up to its extreme", "H, from there to the end"]
    assert text.iloc[0, 1].startswith("+1.00 [")
    assert effects_in_words(found[:0]).empty
