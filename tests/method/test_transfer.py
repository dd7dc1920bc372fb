"""Transfer and its summaries against their definitions, written as loops."""

import dataclasses

import pytest
import torch
from method.examples import drawn, with_effects

import symgen
from symgen.interactions import Interactions
from symgen.method import transfer as measures
from symgen.transforms import interaction_order

N, SAMPLES = 4, 5
ORDER = interaction_order(N).tolist()


@pytest.fixture
def networks():
    return drawn(0), [drawn(1), drawn(2)]


def salient(inter, s, k, t):
    size = inter.effects.abs()[s]
    return size[k, t] > 0.05 * size.max()


def loop_transfer(target, baselines, s, k, t):
    own = target.effects[s, k, t]
    return any(salient(b, s, k, t) and own * b.effects[s, k, t] > 0 for b in baselines)


def test_transfer_and_power_are_those_of_the_definitions(networks):
    target, baselines = networks
    g = torch.stack(symgen.transfer(target, baselines), 1)
    for s in range(SAMPLES):
        kept = total = kept_low = total_low = 0.0
        positive = [0.0] * (N + 1)
        for k in (0, 1):
            for t in range(2**N):
                expected = loop_transfer(target, baselines, s, k, t)
                assert bool(g[s, k, t]) == expected
                size = float(target.effects[s, k, t].abs()) * bool(salient(target, s, k, t))
                kept, total = kept + size * expected, total + size
                low = ORDER[t] <= 2
                kept_low, total_low = kept_low + low * size * expected, total_low + low * size
                positive[ORDER[t]] += size * expected * bool(target.effects[s, k, t] > 0)
        pair = g[:, 0], g[:, 1]
        power = symgen.generalization_power(target, pair)[s]
        low = symgen.generalization_power(target, pair, measures.LOW_ORDERS)[s]
        assert power == pytest.approx(kept / total) and low == pytest.approx(kept_low / total_low)
        spectrum = symgen.order_spectrum(target, pair)[s, 0]
        assert spectrum.tolist() == pytest.approx(positive)


def test_more_baselines_never_lower_g_and_the_network_transfers_to_itself(networks):
    target, (one, other) = networks
    single, both = (torch.stack(symgen.transfer(target, x)) for x in (one, [one, other]))
    assert (both >= single).all() and (both > single).any()
    g = symgen.transfer(target, target)
    assert torch.equal(symgen.generalization_power(target, g), torch.ones(SAMPLES).double())


def test_similarity_is_that_of_the_definition_and_invariant_to_scale(networks):
    target, (one, _) = networks
    double = dataclasses.replace(one, and_=2 * one.and_, or_=2 * one.or_, full=2 * one.full)
    g = torch.stack(symgen.transfer(target, one, metric="similarity"), 1)
    scaled = torch.stack(symgen.transfer(target, double, metric="similarity"), 1)
    a, b = target.effects / 5, one.effects / 5
    expected = torch.minimum(a.abs(), b.abs()) / torch.maximum(a.abs(), b.abs())
    expected = torch.where(a * b > 0, expected, 0.0)
    torch.testing.assert_close(g, expected)
    torch.testing.assert_close(scaled, expected)


def test_similarity_scales_each_network_by_its_own_samples():
    both = [drawn(k) for k in (3, 4)]
    both[1] = with_effects(both[1].effects, full=50.0)
    fields = [f.name for f in dataclasses.fields(Interactions)[:6]]
    stacked = Interactions(**{k: torch.stack([getattr(x, k) for x in both]) for k in fields})
    other = dataclasses.replace(stacked, **{k: getattr(stacked, k).flip(0) for k in fields})
    g = symgen.transfer(stacked, other, metric="similarity")[0]
    alone = symgen.transfer(both[0], both[1], metric="similarity")[0]
    torch.testing.assert_close(g[0], alone)


def test_chance_level_averages_relabelled_baselines(networks):
    target, baselines = networks
    generator = torch.Generator().manual_seed(7)
    expected = torch.zeros(SAMPLES).double()
    for _ in range(3):
        labels = torch.randperm(N, generator=generator).tolist()
        g = symgen.transfer(target, [b.relabelled(labels) for b in baselines])
        expected += symgen.generalization_power(target, g) / 3
    level = symgen.chance_level(target, baselines, draws=3, seed=7)
    torch.testing.assert_close(level, expected)


def test_chance_level_ignores_names_that_were_relabelled(networks):
    names = [[f"w{i}" for i in range(N)]] * SAMPLES
    target, one = (dataclasses.replace(x, names=names) for x in (networks[0], networks[1][0]))
    assert symgen.chance_level(target, one, draws=2).isfinite().all()


def test_count_is_the_smallest_number_that_holds_the_mass(networks):
    target, _ = networks
    count = symgen.interaction_count(target, 0.8)
    for s in range(SAMPLES):
        expected = 0
        for k in (0, 1):
            sizes = sorted(target.effects[s, k].abs().tolist(), reverse=True)
            held = next(i for i in range(len(sizes)) if sum(sizes[: i + 1]) >= 0.8 * sum(sizes))
            expected += held + 1
        assert count[s] == expected


def test_samples_without_effects_are_left_out():
    effects = drawn(0).effects.clone()
    effects[0] = 0
    target = with_effects(effects)
    target.full[0] = 0.0
    g = symgen.transfer(target, target)
    similar = symgen.transfer(target, target, metric="similarity")
    power = symgen.generalization_power(target, g)
    spectrum = symgen.order_spectrum(target)
    for values in (power, symgen.interaction_count(target), measures.mean_order(spectrum)):
        assert values[0].isnan() and values[1:].isfinite().all()
    assert similar[0][0].isnan().all() and similar[0][1:].isfinite().all()


def test_a_spectrum_adds_up_to_the_salient_effects(networks):
    target, _ = networks
    whole = (target.effects * torch.stack(target.salient(), -2)).sum((1, 2))
    spectrum = symgen.order_spectrum(target)
    torch.testing.assert_close(spectrum.sum((1, 2)), whole)
    assert (spectrum[:, 0] >= 0).all() and (spectrum[:, 1] <= 0).all()
    low, middle, high = measures.order_thirds(spectrum)
    torch.testing.assert_close(low + middle + high, torch.ones(SAMPLES).double())


def test_jaccard_of_equal_half_and_empty_spectra():
    one = torch.tensor([[0.0, 2.0], [0.0, -1.0]])
    values = [symgen.jaccard(one, x) for x in (one, one / 2, 0 * one)]
    assert [float(x) for x in values] == [1.0, 0.5, 0.0]
    assert symgen.jaccard(0 * one, 0 * one).isnan()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda a, b: symgen.transfer(a, []), "at least one baseline"),
        (lambda a, b: symgen.transfer(a, b[:2]), r"\(5, 16\)"),
        (lambda a, b: symgen.transfer(a, b, metric="binari"), 'Did you mean "binary"'),
        (lambda a, b: symgen.generalization_power(a, (a.and_[:1],) * 2), "result of transfer"),
        (lambda a, b: symgen.chance_level(a, b, draws=0), "at least 1"),
        (lambda a, b: symgen.interaction_count(a, 80), r"share in \(0, 1\]"),
        (
            lambda a, b: symgen.transfer(
                dataclasses.replace(a, names=["a", "b", "c", "d"]),
                dataclasses.replace(b, names=["a", "c", "b", "d"]),
            ),
            r"sample 0 has the variables \['a', 'c', 'b', 'd'\] in baseline 0",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(networks, call, message):
    with pytest.raises(Exception, match=message):
        call(networks[0], networks[1][0])
