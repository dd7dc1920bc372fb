"""Transfer and its summaries against their definitions, written as loops."""

import dataclasses

import pytest
import torch
from method.examples import drawn, with_effects

import symgen
from symgen.interactions import Interactions
from symgen.method import generalization as measures
from symgen.transforms import interaction_order

N, SAMPLES = 4, 5
ORDER = interaction_order(N).tolist()


@pytest.fixture
def networks():
    return drawn(0), [drawn(1), drawn(2)]


def salient(inter, s, k, t):
    size = inter.effects.abs()[s]
    return bool(size[k, t] > 0.05 * size.max())


def power(target, baselines, s):
    """H of one sample."""
    g = symgen.transfer(target[s], baselines)
    return symgen.generalization_power(target[s], g)


def test_transfer_and_power_are_those_of_the_definitions(networks):
    target, baselines = networks
    g = symgen.transfer(target, baselines)
    for s in range(SAMPLES):
        sums = dict.fromkeys(["kept", "total", "kept_low", "total_low"], 0.0)
        positive = [0.0] * (N + 1)
        for k in (0, 1):
            for t in range(2**N):
                own = target.effects[s, k, t]
                expected = any(
                    salient(b, s, k, t) and own * b.effects[s, k, t] > 0 for b in baselines
                )
                assert bool(g[s, k, t]) == expected
                size = float(own.abs()) * salient(target, s, k, t)
                low = ORDER[t] <= 2
                for name, share in {"": 1, "_low": low}.items():
                    sums[f"kept{name}"] += size * expected * share
                    sums[f"total{name}"] += size * share
                positive[ORDER[t]] += size * expected * bool(own > 0)
        whole = symgen.generalization_power(target, g)[s]
        low = symgen.generalization_power(target, g, measures.LOW_ORDERS)[s]
        assert whole == pytest.approx(sums["kept"] / sums["total"])
        assert low == pytest.approx(sums["kept_low"] / sums["total_low"])
        spectrum = symgen.order_spectrum(target, g)[s, 0]
        assert spectrum.tolist() == pytest.approx(positive)


def test_a_threshold_is_given_once(networks):
    """H with a threshold of 0.5 uses it in the target, too."""
    target, baselines = networks
    g = symgen.transfer(target, baselines, tau=0.5)
    strong = target.effects.abs() > 0.5
    found = torch.stack([(b.effects.abs() > 0.5) & (b.effects * target.effects > 0)
                         for b in baselines]).any(0)  # fmt: skip
    size = target.effects.abs() * strong
    expected = (size * found).sum((1, 2)) / size.sum((1, 2))
    assert torch.equal(g.salient, strong)
    torch.testing.assert_close(symgen.generalization_power(target, g), expected)
    spectrum = symgen.order_spectrum(target, target.salient(0.5)).abs().sum((1, 2))
    torch.testing.assert_close(spectrum, size.sum((1, 2)))
    # Salience follows samples, and arithmetic gives plain tensors.
    assert torch.equal(g[1:3].salient, strong[1:3])
    assert type(1 - g) is type(g * target.effects) is type(g.sum()) is torch.Tensor
    one = symgen.generalization_power(target[2], g[2])
    torch.testing.assert_close(one, expected[2])


def test_the_transfer_of_other_interactions_is_refused(networks):
    """One row of the result was taken for the AND part before, and gave other numbers."""
    target, baselines = networks
    g = symgen.transfer(target, baselines)
    with pytest.raises(ValueError, match=r"g is Tensor of shape .*expected the result of transfer"):
        measures.checked(target, 0 + g)
    for wrong in (g[0], g[:, 0]):
        for call in (
            lambda g: symgen.remove_interactions(target.full, target, g),
            lambda g: symgen.generalization_power(target, g),
            lambda g: symgen.order_spectrum(target, g),
        ):
            with pytest.raises(ValueError, match=r"expected the result of transfer.*\(5, 2, 16\)"):
                call(wrong)


def test_several_baselines_can_be_asked_to_agree(networks):
    target, baselines = networks
    every = torch.stack([symgen.transfer(target, one) for one in baselines])
    assert torch.equal(symgen.transfer(target, baselines, agree=2) + 0, every.amin(0))
    assert torch.equal(symgen.transfer(target, baselines, agree=1) + 0, every.amax(0))


def test_similarity_is_that_of_the_definition_and_invariant_to_scale(networks):
    target, (one, _) = networks
    double = dataclasses.replace(one, effects=2 * one.effects, full=2 * one.full)
    g = symgen.transfer(target, one, metric="similarity")
    scaled = symgen.transfer(target, double, metric="similarity")
    a, b = target.effects / 5, one.effects / 5
    expected = torch.minimum(a.abs(), b.abs()) / torch.maximum(a.abs(), b.abs())
    expected = torch.where(a * b > 0, expected, 0.0)
    torch.testing.assert_close(g + 0, expected)
    torch.testing.assert_close(scaled + 0, expected)


def test_similarity_scales_each_network_by_its_own_samples():
    both = [drawn(k) for k in (3, 4)]
    both[1] = with_effects(both[1].effects, full=50.0)
    pairs = zip(both[0].tensors().items(), both[1].tensors().values(), strict=True)
    stacked = Interactions(**{k: torch.stack([x, y]) for (k, x), y in pairs})
    other = Interactions(**{k: x.flip(0) for k, x in stacked.tensors().items()})
    g = symgen.transfer(stacked, other, metric="similarity")
    alone = symgen.transfer(both[0], both[1], metric="similarity")
    assert torch.equal(g[0] + 0, alone + 0)


def test_chance_level_averages_relabelled_baselines(networks):
    target, baselines = networks
    generator = torch.Generator().manual_seed(7)
    expected = torch.zeros(SAMPLES).double()
    for _ in range(3):
        labels = torch.rand(SAMPLES, N, generator=generator).argsort(-1)
        for s in range(SAMPLES):  # each sample has its own names
            moved = [b[s].relabelled(labels[s]) for b in baselines]
            expected[s] += power(target, moved, s) / 3
    level = symgen.chance_level(target, baselines, draws=3, seed=7)
    torch.testing.assert_close(level, expected)
    # H and its chance level follow the same definition.
    g = symgen.transfer(target, baselines, agree=2)
    both = symgen.chance_level(target, baselines, draws=3, agree=2)
    above = measures.excess(target, baselines, draws=3, agree=2)
    assert not torch.allclose(both, symgen.chance_level(target, baselines, draws=3))
    torch.testing.assert_close(above, symgen.generalization_power(target, g) - both)
    # Names of variables that were relabelled are not compared.
    named = [dataclasses.replace(x, names=list("abcd")) for x in (target, baselines[0])]
    assert symgen.chance_level(*named, draws=2).isfinite().all()


def test_the_level_of_another_sample_is_h_with_its_interactions(networks):
    target, baselines = networks
    level = measures.other_sample_level(target, baselines, shifts=2)
    expected = torch.zeros(SAMPLES).double()
    for s in range(SAMPLES):
        for shift in (1, 2):
            others = [b[(s - shift) % SAMPLES] for b in baselines]
            expected[s] += power(target, others, s) / 2
    torch.testing.assert_close(level, expected)


def test_signs_are_compared_where_both_are_salient(networks):
    target, (one, _) = networks
    both = target.salient() & one.salient()
    alike = target.effects.sign() == one.effects.sign()
    expected = (alike & both).sum((1, 2)) / both.sum((1, 2)).double()
    torch.testing.assert_close(measures.sign_agreement(target, one), expected)


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
    spectrum = symgen.order_spectrum(target)
    H = symgen.generalization_power(target, symgen.transfer(target, target))
    for values in (H, symgen.interaction_count(target), measures.mean_order(spectrum)):
        assert values[0].isnan() and values[1:].isfinite().all()
    assert (H[1:] == 1).all(), "a network transfers to itself"
    similar = symgen.transfer(target, target, metric="similarity")
    assert similar[0].isnan().all() and similar[1:].isfinite().all()


def test_a_spectrum_adds_up_to_the_salient_effects(networks):
    target, _ = networks
    whole = (target.effects * target.salient()).sum((1, 2))
    spectrum = symgen.order_spectrum(target)
    torch.testing.assert_close(spectrum.sum((1, 2)), whole)
    assert (spectrum[:, 0] >= 0).all() and (spectrum[:, 1] <= 0).all()
    shares = measures.order_thirds(spectrum)
    torch.testing.assert_close(shares.sum(-1), torch.ones(SAMPLES).double())


def test_jaccard_of_equal_half_and_empty_spectra():
    one = torch.tensor([[0.0, 2.0], [0.0, -1.0]])
    values = [measures.jaccard(one, x) for x in (one, one / 2, 0 * one)]
    assert [float(x) for x in values] == [1.0, 0.5, 0.0]
    assert measures.jaccard(0 * one, 0 * one).isnan()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda a, b: symgen.transfer(a, []), "at least one baseline"),
        (lambda a, b: symgen.transfer(a, b[:2]), r"\(5, 2, 16\)"),
        (lambda a, b: symgen.transfer(a, [b, b], agree=3), "agree is 3, with 2 .* 1 to 2"),
        (lambda a, b: symgen.transfer(a, b, metric="binari"), 'Did you mean "binary"'),
        (lambda a, b: symgen.chance_level(a, b, draws=0), "at least 1"),
        (lambda a, b: symgen.interaction_count(a, 80), r"share in \(0, 1\]"),
        (
            lambda a, b: symgen.transfer(
                dataclasses.replace(a, names=list("abcd")),
                dataclasses.replace(b, names=list("acbd")),
            ),
            r"sample 0 has the variables \['a', 'c', 'b', 'd'\] in baseline 0",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(networks, call, message):
    with pytest.raises(Exception, match=message):
        call(networks[0], networks[1][0])
