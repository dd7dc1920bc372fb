"""Agreement of judges, against its definitions by brute force."""

import numpy as np
import pytest
import torch
from drawn_effects import drawn, interactions, shared
from hypothesis import given, settings, strategies as st

import symgen
from symgen.method import agreement
from symgen.method.agreement import OBSERVED, RELABELLED, SHUFFLED, Agreement, marks_of, shuffled

RATES = (0, 0.6, 0.4, 0.3, 0.3)


def case(seed, samples=5, draws=3):
    some = torch.Generator().manual_seed(seed)
    target = drawn(some, samples, 4, RATES)
    b, c = (shared(some, target, 0.5, RATES) for _ in range(2))
    return Agreement.of(target, b, c, drawn(some, samples, 4, RATES), draws=draws), b, c


@given(seed=st.integers(0, 999))
@settings(max_examples=20)
def test_jaccard_of_sets_and_of_spectra(seed):
    found, b, c = case(seed)
    marks = [torch.stack(symgen.transfer(found.target, x), -2) > 0 for x in (b, c)]
    salient = torch.stack(found.target.salient(), -2)
    for i in range(5):
        size = {
            (kind, t): abs(float(found.target.effects[i, kind, t]))
            for kind, t in salient[i].nonzero().tolist()
        }
        one, two = ({x for x in size if bool(m[i][x])} for m in marks)
        either = sum(size[x] for x in one | two)
        expected = sum(size[x] for x in one & two) / either if either else np.nan
        assert float(found.sets()[i]) == pytest.approx(expected, nan_ok=True)
    spectra = [
        symgen.order_spectrum(found.target, symgen.transfer(found.target, x)) for x in (b, c)
    ]
    expected = symgen.jaccard(*spectra)
    assert torch.allclose(found.spectra(), expected, equal_nan=True)
    assert bool((found.sets() <= found.spectra() + 1e-12).logical_or(found.sets().isnan()).all())
    total, to_b, to_c = found.parts
    assert torch.allclose(total, symgen.order_spectrum(found.target))
    assert torch.allclose(to_b, spectra[0]) and torch.allclose(to_c, spectra[1])


def test_jaccard_of_the_exercise_of_the_chapter():
    effects = torch.zeros(3, 1, 2, 16, dtype=torch.float64)
    effects[0, 0, 0, [1, 0b0110, 8, 0b1100]] = torch.tensor([2.0, 1, 1, 2]).double()
    effects[1, 0, 0, [1, 0b0110]] = 1.0
    effects[2, 0, 0, [8, 0b0110, 0b1100]] = 1.0
    target, b, c = (interactions(x) for x in effects)
    found = Agreement.of(target, b, c, b)
    assert float(found.spectra()) == pytest.approx(0.4)
    assert float(found.sets()) == pytest.approx(1 / 6)
    assert found.mean_spectra().mean == pytest.approx(0.4)


@given(seed=st.integers(0, 999))
@settings(max_examples=20)
def test_shuffling_keeps_how_many_of_each_order_and_nothing_else(seed):
    some = torch.Generator().manual_seed(seed)
    target = drawn(some, 4, 5, RATES)
    marks = marks_of(target, shared(some, target, 0.5, RATES))
    new = shuffled(target, marks, some)
    salient = torch.stack(target.salient(), -2)
    assert not bool((new & ~salient).any())
    for order in range(6):
        here = target.order == order
        assert torch.equal((new & here).sum((1, 2)), (marks & here).sum((1, 2)))


def test_shuffled_marks_lie_anywhere_in_their_order():
    some = torch.Generator().manual_seed(0)
    effects = torch.zeros(1, 2, 16, dtype=torch.float64)
    effects[0, 0, [1, 2, 4, 8]] = 1.0
    target = interactions(effects)
    marks = torch.zeros(1, 2, 16, dtype=torch.bool)
    marks[0, 0, 1] = True
    drawn_marks = torch.stack([shuffled(target, marks, some) for _ in range(400)])
    assert drawn_marks.float().mean(0)[0, 0, [1, 2, 4, 8]].tolist() == pytest.approx(
        [0.25] * 4, abs=0.08
    )


def test_controls_are_what_their_names_say():
    found, _, c = case(1)
    [(to_b, to_c)] = found.pairs[OBSERVED]
    assert all(
        torch.equal(one, to_b) for name in (SHUFFLED, RELABELLED) for one, _ in found.pairs[name]
    )
    assert len(found.pairs[SHUFFLED]) == len(found.pairs[RELABELLED]) == 3
    [(_, again)] = found.pairs["B untrained"]
    assert torch.equal(again, to_c)
    labels = torch.randperm(4, generator=torch.Generator().manual_seed(0)).tolist()
    assert torch.equal(found.pairs[RELABELLED][0][1], marks_of(found.target, c.relabelled(labels)))
    power = symgen.generalization_power(found.target, symgen.transfer(found.target, c))
    assert torch.allclose(found.spectra("B accepts all"), power)
    each = [Agreement(found.target, {"one": [p]}).sets("one") for p in found.pairs[RELABELLED]]
    assert torch.allclose(found.sets(RELABELLED), torch.stack(each).nanmean(0), equal_nan=True)
    with pytest.raises(ValueError, match="draws"):
        case(1, draws=0)


def test_mean_spectra_are_averaged_first():
    found, _, _ = case(2, samples=8)
    means = [x.mean(0) for x in found.parts[1:]]
    value = found.mean_spectra()
    assert value.mean == pytest.approx(float(symgen.jaccard(*means)))
    assert value.low < value.mean < value.high


def test_kappa_is_cohens():
    effects = torch.zeros(10, 2, 4, dtype=torch.float64)
    effects[:, 0, 1:] = 1.0
    effects[:, 1, 3] = 1.0
    target = interactions(effects)  # 4 salient interactions a sample
    b, c = effects.clone(), effects.clone()
    b[:5, 0, 1] = 0  # 35 yes, 5 no
    c[:2, 0, 1] = 0
    c[5:8, 0, 2] = 0  # 35 yes, 5 no, 2 of them where b says no
    found = Agreement.of(target, interactions(b), interactions(c), target, draws=2)
    observed, expected = 34 / 40, (35 * 35 + 5 * 5) / 40**2
    value = found.kappa()
    assert value.mean == pytest.approx((observed - expected) / (1 - expected))
    assert value.low < value.mean < value.high
    same = Agreement.of(target, target, target, target, draws=2)
    assert np.isnan(same.kappa().mean) and np.isnan(same.kappa(SHUFFLED).mean)


def test_judges_who_accept_nothing_and_single_samples():
    found, b, c = case(3)
    nothing = interactions(torch.zeros_like(b.effects))
    none = Agreement.of(found.target, nothing, nothing, nothing, draws=2)
    assert none.spectra().isnan().all() and none.sets().isnan().all()
    assert np.isnan(none.mean_spectra().mean) and np.isnan(none.kappa().mean)
    one = Agreement.of(*(x[:1] for x in (found.target, b, c, b)), draws=2)
    assert np.isnan(one.mean_spectra().low) and np.isnan(one.kappa().low)


def test_tables_have_a_row_for_every_comparison():
    found = {"a": case(4)[0], "b": case(5, samples=3)[0]}
    table = agreement.agreement_table(found)
    assert len(table) == 2 * 2 * 5
    first = table.iloc[0]
    assert first.value == pytest.approx(float(found["a"].spectra().nanmean()))
    assert table.value[1] == pytest.approx(found["a"].mean_spectra().mean)

    sets = agreement.set_table(found)
    assert sets.groupby(["label", "comparison"], sort=False).size().tolist() == [5] * 3 + [3] * 3
    assert sets.sets[:5].tolist() == pytest.approx(found["a"].sets().tolist(), nan_ok=True)
    assert sets.spectra[:5].tolist() == pytest.approx(found["a"].spectra().tolist(), nan_ok=True)

    kappa = agreement.kappa_table(found)
    assert kappa.comparison.tolist() == [OBSERVED, SHUFFLED, RELABELLED] * 2
    assert kappa.kappa[0] == pytest.approx(found["a"].kappa().mean)
