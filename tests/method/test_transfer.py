"""Transfer, spectra, H, N, removal and phases, against their definitions by brute force."""

import dataclasses
import inspect
import itertools
import json
import math
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from outputs import network_outputs
from scipy import stats

import symgen
from symgen.checks import refuse_other_shapes
from symgen.interactions import Interactions
from symgen.method.removal import cross_entropy
from symgen.method.transfer import (
    _refuse_orders,
    pooled_power,
    refuse_no_interactions,
    refuse_no_share,
)

SIZE = 16
ORDER = symgen.interaction_order(4).tolist()


def random_interactions(seed: int, samples: int = 3) -> Interactions:
    generator = torch.Generator().manual_seed(seed)
    effects = torch.randn(samples, 2, SIZE, generator=generator, dtype=torch.float64) ** 3
    effects[..., 0] = 0
    effects[:, 1, symgen.interaction_order(4) == 1] = 0
    bias = torch.randn(samples, generator=generator, dtype=torch.float64)
    size = effects.abs().sum((1, 2))
    d = symgen.and_or_outputs(effects[:, 0], effects[:, 1])
    return Interactions(
        effects[:, 0], effects[:, 1], bias, size, torch.zeros_like(size), bias + d[:, -1]
    )


def each(inter: Interactions):
    """Yield sample, type, index and effect of every entry."""
    for s in range(len(inter)):
        for kind in (0, 1):
            for t in range(SIZE):
                yield s, kind, t, float(inter.effects[s, kind, t])


seeds = st.integers(0, 999)


@given(a=seeds, b=seeds)
def test_binary_transfer_needs_the_sign_and_the_baselines_saliency(a, b):
    target, baseline = random_interactions(a), random_interactions(b + 1000)
    g = torch.stack(symgen.transfer(target, baseline), -2)
    largest = baseline.effects.abs().amax((1, 2))
    for s, kind, t, effect in each(target):
        other = float(baseline.effects[s, kind, t])
        expected = abs(other) > 0.05 * float(largest[s]) and effect * other > 0
        assert g[s, kind, t] == expected


@given(a=seeds, b=seeds)
def test_similarity_compares_what_the_output_span_leaves(a, b):
    target, baseline = random_interactions(a), random_interactions(b + 1000)
    g = torch.stack(symgen.transfer(target, baseline, metric="similarity"), -2)
    ours, theirs = float(target.total_effect.mean()), float(baseline.total_effect.mean())
    for s, kind, t, effect in each(target):
        other = float(baseline.effects[s, kind, t])
        pair = sorted((abs(effect) / ours, abs(other) / theirs))
        expected = pair[0] / pair[1] if effect * other > 0 else 0.0
        assert math.isclose(float(g[s, kind, t]), expected, abs_tol=1e-12)


@given(seed=seeds)
def test_any_of_several_baselines_is_enough(seed):
    target = random_interactions(seed)
    baselines = [random_interactions(seed + k) for k in (1000, 2000)]
    both = torch.stack(symgen.transfer(target, baselines))
    single = [torch.stack(symgen.transfer(target, b)) for b in baselines]
    assert torch.equal(both, torch.maximum(*single))
    assert (both.sum() >= single[0].sum()) and bool((both <= 1).all())


@given(a=seeds, b=seeds)
def test_spectra_and_power_are_sums_over_salient_interactions(a, b):
    target, baseline = random_interactions(a), random_interactions(b + 1000)
    g = symgen.transfer(target, baseline)
    share, salient = torch.stack(g, -2), torch.stack(target.salient(), -2)
    total, kept = torch.zeros(2, 3, 2, 5, dtype=torch.float64)
    for s, kind, t, effect in each(target):
        if salient[s, kind, t]:
            total[s, int(effect < 0), ORDER[t]] += effect
            kept[s, int(effect < 0), ORDER[t]] += effect * float(share[s, kind, t])
    assert torch.allclose(symgen.order_spectrum(target), total)
    assert torch.allclose(symgen.order_spectrum(target, g), kept)
    power = kept.abs().sum((1, 2)) / total.abs().sum((1, 2))
    assert torch.allclose(symgen.generalization_power(target, g), power)
    low = kept[..., 1:3].abs().sum((1, 2)) / total[..., 1:3].abs().sum((1, 2))
    found = symgen.generalization_power(target, g, symgen.LOW_ORDERS)
    assert torch.allclose(found, low, equal_nan=True)
    assert bool(symgen.generalization_power(target, g, symgen.HIGH_ORDERS).isnan().all())


@given(seed=seeds, mass=st.sampled_from([0.5, 0.8, 1.0]))
def test_the_count_is_the_smallest_set_that_holds_the_mass(seed, mass):
    inter = random_interactions(seed)
    for s, found in enumerate(symgen.interaction_count(inter, mass).tolist()):
        expected = 0
        for kind in (0, 1):
            sizes = sorted(inter.effects[s, kind].abs().tolist(), reverse=True)
            held = 0.0
            for size in sizes:
                if held >= mass * sum(sizes) * (1 - 1e-12):
                    break
                held, expected = held + size, expected + 1
        assert found == expected


@given(a=seeds, b=seeds)
def test_removal_takes_out_what_equation_11_names(a, b):
    target = random_interactions(a)
    g = symgen.transfer(target, random_interactions(b + 1000))
    salient, share = torch.stack(target.salient(), -2), torch.stack(g, -2)
    full = target.full
    generalizable = (target.effects * salient * share).sum((1, 2))
    small = (target.effects * ~salient).sum((1, 2))
    removed = symgen.remove(full, target, g)
    assert torch.allclose(removed, generalizable + small + target.bias)
    loss = cross_entropy(removed)
    assert torch.allclose(loss, -torch.log(torch.sigmoid(removed)))


def test_chance_is_low_for_unrelated_labels_and_exact_for_symmetric_networks():
    target = random_interactions(0)
    own = symgen.generalization_power(target, symgen.transfer(target, target))
    assert bool((own == 1).all())
    chance = symgen.chance_level(target, target, draws=30)
    assert bool((chance < 1).all()) and bool((chance > 0).all())
    symmetric = Interactions(
        *(x[:1] for x in (symgen.interaction_order(4).double().expand(3, -1),) * 2),
        *(torch.ones(1, dtype=torch.float64) * x for x in (0, 1, 1, 1)),
    )
    assert torch.allclose(symgen.chance_level(symmetric, symmetric), torch.ones(1).double())


def test_jaccard_by_hand():
    b = torch.tensor([[0.0, 2.0], [0.0, -1.0]])
    c = torch.tensor([[0.0, 1.0], [-1.0, -3.0]])
    assert float(symgen.jaccard(b, c)) == pytest.approx((1 + 1) / (2 + 1 + 3))
    assert float(symgen.jaccard(b, b)) == 1
    assert math.isnan(symgen.jaccard(b * 0, b * 0))


def test_intervals_hold_the_mean_and_say_when_there_is_none():
    values = torch.tensor([0.1, 0.4, torch.nan, 0.7], dtype=torch.float64)
    found = symgen.interval(values)
    assert found.mean == pytest.approx(0.4) and found.low < 0.4 < found.high
    assert f"{symgen.interval(values[2:3])}" == "not defined"
    assert f"{symgen.interval(values[:1])}" == "0.10"
    # Four values of one sign are little evidence (t = 1.51); forty of the same kind are enough.
    four = torch.tensor([1.0, 1.0, 1.0, 9.0])
    assert symgen.interval(four).side() == 0 and symgen.interval(four.repeat(10)).side() == 1
    even = torch.tensor([1.0, 4.0, 6.0, 9.0])
    low, high = stats.ttest_1samp(even, 0).confidence_interval()
    assert symgen.interval(even)[1:] == pytest.approx((low, high), rel=1e-5)


def test_saliency_in_all_modes():
    inter = random_interactions(3)
    size, largest = inter.effects.abs(), inter.effects.abs().amax((1, 2))
    for arguments, tau in [
        ({}, 0.05 * largest),
        ({"tau": 0.1, "relative_to": "max"}, 0.1 * largest),
        ({"tau": 0.5}, torch.full((3,), 0.5)),
        ({"tau": 0.02, "relative_to": "total effect"}, 0.02 * inter.total_effect.mean().expand(3)),
    ]:
        assert torch.equal(torch.stack(inter.salient(**arguments), 1), size > tau[:, None, None])
    top = torch.stack(inter.salient(top=4), 1)
    assert top.sum((1, 2)).tolist() == [4, 4, 4]
    assert bool((size[top].reshape(3, 4).amin(1) >= (size * ~top).amax((1, 2))).all())
    contradictory = {"relative_to": "max", "top": 3}
    for wrong in ({"tau": -1.0}, {"tau": 0.1, "top": 3}, {"relative_to": "mean"}, contradictory):
        with pytest.raises(ValueError, match="tau|relative_to"):
            inter.salient(**wrong)


def test_saved_interactions_come_back(tmp_path):
    inter = random_interactions(1)
    inter.save(tmp_path / "found.safetensors")
    back = Interactions.load(tmp_path / "found.safetensors")
    assert torch.equal(back.effects, inter.effects) and torch.equal(back.gap, inter.gap)
    assert back == inter and back.names is None and back.about == {}
    assert not list(tmp_path.glob(".*"))
    symgen_file = tmp_path / "other.safetensors"
    from safetensors.torch import save_file

    # What the version before wrote, which knew neither names nor identity.
    before = {"format": "symgen.interactions.2", "n": "4"}
    save_file({k: x.clone() for k, x in inter.tensors().items()}, symgen_file, before)
    assert Interactions.load(symgen_file) == inter
    save_file({"a": torch.zeros(1)}, symgen_file)
    with pytest.raises(
        ValueError, match="not 'symgen.interactions.3'.*find the interactions again"
    ):
        Interactions.load(symgen_file)
    whole = (tmp_path / "found.safetensors").read_bytes()
    for damaged in (whole[:100], b"", whole[:-8], b"\xff" * 8 + whole[8:]):
        symgen_file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"other.safetensors is damaged \("):
            Interactions.load(symgen_file)


def test_the_table_lists_every_interaction_once():
    inter = random_interactions(4, samples=2)
    table = inter.to_frame([["a", "b", "c", "d"]] * 2)
    assert len(table) == int((inter.effects != 0).sum())
    first = table.iloc[0]
    assert first["members"] == ", ".join("abcd"[i] for i in inter.members(int(first["index"])))
    kind = ["and", "or"].index(first["type"])
    assert first["effect"] == inter.effects[0, kind, first["index"]]
    assert table.groupby("sample")["effect"].apply(lambda e: e.abs().is_monotonic_decreasing).all()


def test_every_sample_of_a_table_has_names_of_its_own():
    inter = random_interactions(4, samples=2)
    table = inter.to_frame([list("abcd"), list("efgh")])
    for sample, letters in ((0, "abcd"), (1, "efgh")):
        mine = table[table["sample"] == sample].reset_index(drop=True)
        alone = inter[sample].to_frame(list(letters))
        assert mine.drop(columns="sample").equals(alone.drop(columns="sample"))
    assert inter[:1].to_frame(list("abcd")).equals(inter[0].to_frame([list("abcd")]))
    for names in (list("abcd"), [list("abcd")] * 3, [list("abcd"), list("efg")]):
        with pytest.raises(
            ValueError, match=r"a list of 4 names for each of 2 samples, got [123] "
        ):
            inter.to_frame(names)


def test_interactions_are_equal_where_all_tensors_are():
    inter = random_interactions(1)
    unknown = dataclasses.replace(inter, gap=inter.gap + torch.nan)
    assert (inter == random_interactions(1)) is True and (inter != random_interactions(2)) is True
    assert unknown == dataclasses.replace(unknown) and unknown != inter
    assert inter != inter[:1] and inter != "interactions"


NAMES = [["a", "b", "c", "d"], ["<b>", "f", "g", "h"], ["i", "j", "k", "ü"]]
ABOUT = {"model": {"run": "1f", "step": 3}, "inputs": "<script>"}


def known():
    """Interactions of three samples with names and an identity."""
    return dataclasses.replace(random_interactions(1), names=NAMES, about=ABOUT)


def test_interactions_of_other_samples_do_not_transfer():
    inter = known()
    moved = inter.relabelled([1, 2, 3, 0])
    nameless = dataclasses.replace(inter, names=None)
    for baseline in (nameless, moved):
        symgen.transfer(inter, baseline)
        symgen.transfer(baseline, inter)
    others = dataclasses.replace(inter, names=[NAMES[0], ["<b>", "f", "o", "h"], NAMES[2]])
    with pytest.raises(ValueError, match="sample 1 has <b>, f, o, h there and <b>, f, g, h in"):
        symgen.transfer(inter, [nameless, others])
    with pytest.raises(ValueError, match="g is None; expected what transfer"):
        inspect.unwrap(symgen.generalization_power)(inter, None)  # as without the checks of types


def test_names_and_identity_stay_with_the_interactions(tmp_path):
    inter = known()
    assert inter.names.tolist() == NAMES and inter.about == ABOUT
    inter[1:].save(tmp_path / "found.safetensors")
    back = Interactions.load(tmp_path / "found.safetensors")
    assert back == inter[1:] and back != random_interactions(1)[1:]
    assert back != dataclasses.replace(back, about={"model": 1})
    some = torch.tensor([False, True, True])
    rows = (1, 1), (slice(1, 3), [1, 2]), (torch.tensor([2, 0]), [2, 0]), (some, [1, 2])
    for index, chosen in rows:
        assert inter[index].names.tolist() == np.array(NAMES)[chosen].tolist()
        assert inter[index].about == ABOUT and inter[index].to("cpu") == inter[index]
    inter[2].save(tmp_path / "one.safetensors")
    assert Interactions.load(tmp_path / "one.safetensors").names.tolist() == NAMES[2]
    moved = inter.relabelled([1, 2, 3, 0])
    table, before = moved.to_frame(), inter.to_frame()
    sets = [x.assign(members=[frozenset(m.split(", ")) for m in x["members"]]) for x in
            (table, before)]  # fmt: skip
    first, second = (
        {(r.sample, r.type, r.members): r.effect for r in x.itertuples()} for x in sets
    )
    assert first == second
    shared = dataclasses.replace(inter, names=list("wxyz"))
    assert shared.names.tolist() == [list("wxyz")] * 3


def test_interactions_print_in_a_line_and_not_as_all_their_numbers():
    both = symgen.sparsify(torch.randn(2, 16, dtype=torch.float64))
    assert repr(both) == f"<Interactions: 2 sample(s), n = 4, gap <= {float(both.gap.max()):.1e}>"
    assert repr(both[0]).startswith("<Interactions: 1 sample(s), n = 4")
    assert repr(both[:0]) == "<Interactions: 0 sample(s), n = 4, gap <= 0.0e+00>"


def test_the_table_and_the_page_use_the_names_that_are_known():
    inter = known()
    assert inter.to_frame().equals(random_interactions(1).to_frame(NAMES))
    assert inter[1].to_frame(list("1234"))["members"].iloc[-1] in {*"1234"} | {
        ", ".join(x) for k in (2, 3, 4) for x in itertools.combinations("1234", k)
    }
    page = inter._repr_html_()
    assert "&lt;b&gt;" in dataclasses.replace(inter, names=["<b>"] * 4)._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page
    assert page.count("<tr") == 6 and "3 sample(s), n = 4" in page
    largest = inter.effects.flatten()[inter.effects.abs().argmax()]
    assert page.index(f"{largest:+.3f}") < page.index("</td>\n    </tr>")
    for few in (inter[0], inter[:0], Interactions.from_moebius(torch.zeros(4).double())):
        assert few._repr_html_().startswith("<p>")


@pytest.mark.parametrize(
    "changes",
    [
        {"names": list("abc")}, {"names": [list("abcd")] * 2}, {"names": [list("abcd"), ["a"], []]},
        {"names": 3}, {"about": {"model": torch.zeros(1)}},
    ],
)  # fmt: skip
def test_names_and_identity_have_to_fit(changes):
    with pytest.raises((ValueError, TypeError), match=r"names are|cannot be kept|not iterable"):
        dataclasses.replace(random_interactions(1), **changes)


def test_named_dimensions():
    xarray = pytest.importorskip("xarray")
    inter = known()
    found = inter.to_xarray()
    assert isinstance(found, xarray.Dataset)
    assert dict(found.sizes) == {"sample": 3, "type": 2, "state": 16, "variable": 4}
    assert np.array_equal(found["effects"].sel(type="or"), inter.or_.numpy())
    kept = found["effects"].where(found["order"] == 2, drop=True)
    assert kept.sizes["state"] == 6 and json.loads(found.attrs["about"]) == ABOUT
    assert found["name"].values.tolist() == NAMES and found["full"].dims == ("sample",)
    assert "sample" not in inter[0].to_xarray().sizes
    with pytest.raises(ValueError, match="a name for each of 1 leading axes"):
        inter.to_xarray(["checkpoint", "sample"])


def test_without_xarray_its_door_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'symgen\[xarray\]'"):
        known().to_xarray()


def test_the_possible_interactions_are_counted_once():
    """An OR over one variable is an AND, and the empty set is no interaction."""
    for n, possible in ((1, 1), (2, 4), (4, 26), (10, 2036)):
        assert Interactions.from_moebius(torch.zeros(2**n).double()).possible == possible
    inter = random_interactions(0)
    single = inter.order == 1
    assert inter.possible == 2 * int((inter.order > 0).sum()) - int(single.sum())


def test_samples_without_a_total_effect_have_no_power_and_no_similarity():
    target, baseline = random_interactions(1), random_interactions(2)
    full = target.full.clone()
    full[1] = target.bias[1]
    dead = dataclasses.replace(target, full=full)
    for metric in ("binary", "similarity"):
        g = symgen.transfer(dead, baseline, metric=metric)
        power = symgen.generalization_power(dead, g)
        assert power.isnan().tolist() == [False, True, False]
        assert symgen.chance_level(dead, baseline, draws=2).isnan().tolist() == [False, True, False]
        rest = [0, 2]
        others = tuple(x[rest] for x in g)
        assert pooled_power(dead, g) == pooled_power(dead[rest], others)
    assert torch.stack(g)[:, 1].isnan().all() and not torch.stack(g)[:, rest].isnan().any()
    # A network whose outputs never change gives no similarity, and no division by 0 either.
    still = dataclasses.replace(target, full=target.bias)
    assert torch.stack(symgen.transfer(still, still, metric="similarity")).isnan().all()
    g = torch.stack(symgen.transfer(target, still))
    assert ((g >= 0) & (g <= 1)).all()
    assert torch.stack(symgen.transfer(target, still, metric="similarity")).isnan().all()
    both = symgen.transfer(target, [still, baseline], metric="similarity")
    assert torch.equal(
        torch.stack(both), torch.stack(symgen.transfer(target, baseline, metric="similarity"))
    )


def test_pooled_power_is_the_ratio_of_the_sums_and_nothing_where_there_is_none():
    target, baseline = random_interactions(1), random_interactions(2)
    g = symgen.transfer(target, baseline)
    kept, total = (symgen.order_spectrum(target, x).abs().sum() for x in (g, None))
    found = pooled_power(target, g)
    assert found.mean == pytest.approx(float(kept / total)) and 0 <= found.low < found.high <= 1
    assert math.isnan(pooled_power(target, g, symgen.HIGH_ORDERS).mean)
    assert math.isnan(pooled_power(target, g, ()).mean)
    alone = pooled_power(target[:1], tuple(x[:1] for x in g))
    assert 0 < alone.mean < 1 and math.isnan(alone.low)


def test_an_order_named_twice_counts_once():
    target, baseline = random_interactions(1), random_interactions(2)
    g = symgen.transfer(target, baseline)
    twice = symgen.generalization_power(target, g, (1, 1, 2))
    assert torch.equal(twice, symgen.generalization_power(target, g, (1, 2)))


def test_shapiq_agrees_on_and():
    shapiq = pytest.importorskip("shapiq")
    from shapiq.game_theory import ExactComputer

    v = random_interactions(5, 1).predict()[0].numpy()

    def game(coalitions):
        index = [sum(1 << i for i in range(4) if row[i]) for row in coalitions]
        return v[index]

    computed = ExactComputer(game, n_players=4)("Moebius", 4)
    ours = Interactions.from_moebius(torch.from_numpy(v)).to_shapiq("and")
    assert isinstance(ours, shapiq.InteractionValues)
    for t in range(1, SIZE):
        members = tuple(i for i in range(4) if t >> i & 1)
        assert computed[members] == pytest.approx(ours[members], abs=1e-9)


@pytest.mark.parametrize(
    ("power", "gained", "lost", "expected"),
    [
        ([0.2, 0.6, 0.5, 0.4], [1, 3, 5, 5], [4, 2, 3, 6], (1, 3)),
        ([0.2, 0.6, 0.5, 0.4], [1, 3, 5, 9], [4, 2, 3, 4], (1, None)),
        ([0.6, 0.5, 0.4, 0.3], [1, 3, 5, 5], [4, 2, 3, 6], (None, None)),
        ([0.1, 0.2, 0.3, 0.4], [1, 3, 5, 5], [4, 2, 3, 6], (None, None)),
    ],
)
def test_no_phase_boundary_is_forced(power, gained, lost, expected):
    found = symgen.phases([0, 1, 2, 3], power, gained, lost)
    assert (found.t1, found.t2) == expected
    assert found.reason
    if expected == (1, 3):
        assert [found.of(step) for step in range(4)] == [1, 1, 2, 2]


def test_numbers_of_other_samples_are_no_part_of_interactions():
    """One number for all samples would be taken for each of them, as the scale of a similarity."""
    inter = random_interactions(0)
    for name in ("objective", "gap", "full"):
        given = types.SimpleNamespace(**{**inter.tensors(), name: torch.tensor(3.0)})
        with pytest.raises(ValueError, match=rf"{name} must have the shape of bias, \(3,\)"):
            refuse_other_shapes(given)


def test_what_would_be_passed_over_is_refused():
    target, other = random_interactions(0), random_interactions(1)
    with pytest.raises(ValueError, match="least = 0.9 belongs to metric='similarity'"):
        symgen.transfer(target, other, least=0.9)
    for least in (0.0, 5.0):
        with pytest.raises(ValueError, match="least must be above 0 and at most 1"):
            symgen.transfer(target, other, metric="similarity", least=least)


def test_errors_say_what_was_given():
    target = random_interactions(0)
    with pytest.raises(ValueError, match=r"target's shape \(3, 16\)"):
        symgen.transfer(target, target[:2])
    with pytest.raises(ValueError, match="at least one baseline"):
        symgen.transfer(target, [])
    with pytest.raises(ValueError, match="'binary' or 'similarity', got 'cosine'"):
        symgen.transfer(target, target, metric="cosine")
    with pytest.raises(ValueError, match=r"expected their transfer: transfer\(inter, baselines"):
        refuse_no_share(target)
    for wrong in (target.and_, [target], (target.and_, target.or_)):
        with pytest.raises(ValueError, match=r"in place of Interactions; expected all that"):
            refuse_no_interactions(target, wrong)
    with pytest.raises(ValueError, match=r"orders is 2; expected several, .*: \[2\]"):
        _refuse_orders(2)
    with pytest.raises(ValueError, match=r"mass must be in \(0, 1\], got 2"):
        symgen.interaction_count(target, 2)
    with pytest.raises(ValueError, match="got lengths 2, 1, 2, 2"):
        symgen.phases([0, 1], [0.1], [1, 1], [1, 1])


@pytest.mark.parametrize(("kind", "index"), [("and", "Moebius"), ("or", "Co-Moebius")])
def test_shapiq_agrees_on_the_outputs_of_a_network(kind, index):
    """Without a split, one kind alone: AND is the Moebius transform, OR the one of complements."""
    pytest.importorskip("shapiq")
    from shapiq.game_theory import ExactComputer

    (v,) = network_outputs(6, samples=1)
    only = Interactions.from_moebius(v)
    if kind == "or":
        # An OR over T is triggered unless T lies in the complement of S.
        effects = -symgen.moebius(v.flip(-1))
        effects[0] = 0.0
        only = dataclasses.replace(only, and_=torch.zeros_like(effects), or_=effects)
    assert torch.allclose(only.predict(), v, atol=1e-10)

    def game(coalitions):
        return v.numpy()[(np.asarray(coalitions) * 2 ** np.arange(6)).sum(-1)]

    theirs, ours = ExactComputer(game, n_players=6)(index, 6), only.to_shapiq(kind)
    for members in ours.interaction_lookup:
        if members:
            assert ours[members] == pytest.approx(theirs[members], abs=1e-9), members


def test_variables_in_another_order_are_told_with_the_labels_that_bring_them_together():
    """They were once compared by their positions, which gave an H of 0."""
    columns, order = ["age", "bmi", "dose", "sex"], [2, 0, 3, 1]
    x = np.random.default_rng(0).normal(size=(3, 4))

    def model(x):
        return 3 * x[:, 0] * x[:, 1] + 2 * x[:, 2] - 1

    def found(model, x, names):
        variables = np.arange(4)[None]
        inputs = symgen.Inputs(x, [1, 1, 1])
        return symgen.extract(model, inputs, variables, np.zeros(4), names=names, progress=False)

    one = found(model, x, columns)
    other = found(
        lambda x: model(x[:, np.argsort(order)]), x[:, order], [columns[i] for i in order]
    )
    with pytest.raises(ValueError, match=r"another order, .*relabelled\(\[2, 0, 3, 1\]\)"):
        symgen.transfer(one, other)
    g = symgen.transfer(one, other.relabelled([2, 0, 3, 1]))
    torch.testing.assert_close(symgen.generalization_power(one, g), torch.ones(3).double())


def test_transfer_of_other_samples_than_the_interactions_is_refused():
    inter = known()
    with pytest.raises(ValueError, match="of the same samples"):
        symgen.generalization_power(inter, symgen.transfer(inter[0], inter[0]))


def test_an_index_reaches_samples_only():
    inter = symgen.sparsify(torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0)))
    for index in ((slice(None), 0), (0, ...), ...):
        assert inter[index].n == 4
    with pytest.raises(IndexError, match="write s"):
        inter[..., 0]


def test_one_name_is_no_name_of_all_variables():
    with pytest.raises(ValueError, match="expected a list of 4 names"):
        dataclasses.replace(known(), names=["x"])
