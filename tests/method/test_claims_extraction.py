"""The rules on matching and sparsity, where the truth is known."""

import dataclasses

import pytest
import torch
from outputs import planted

import symgen
from symgen.interactions import Interactions
from symgen.method import claims
from symgen.method.conditions import shuffled

N = 6
ALLOWED = torch.stack([symgen.interaction_order(N) > 0, symgen.interaction_order(N) > 1]).flatten()


def planted_outputs(samples: int, n: int = N, count: int = 2) -> torch.Tensor:
    return torch.stack([planted(n, count, seed)[2] for seed in range(samples)])


def noise_values(samples: int, n: int = N) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 2**n, generator=generator, dtype=torch.float64)


def with_counts(counts: torch.Tensor, generator: torch.Generator) -> Interactions:
    """As many interactions of size 1 as asked for, at random places of every sample."""
    keys = torch.rand(len(counts), 2 * 2**N, generator=generator).where(ALLOWED, -1.0)
    rank = keys.argsort(-1, descending=True).argsort(-1)
    effects = (rank < counts[:, None]).double().reshape(-1, 2, 2**N)
    zero = torch.zeros(len(counts), dtype=torch.float64)
    return Interactions(effects[:, 0], effects[:, 1], zero, effects.sum((1, 2)), zero, zero + 1)


@pytest.mark.parametrize("rule", [claims.matching, claims.llm_matching])
@pytest.mark.parametrize("samples", [1, 3])
def test_every_exact_model_matches_and_no_other_does(rule, samples):
    v = noise_values(samples, 4)
    for exact in (symgen.sparsify(v, noise=0.0), Interactions.from_moebius(v)):
        found = rule(v, exact)
        assert (found.verdict, found.samples) == ("shown", samples)
        # One effect of one sample that is off by a millionth.
        wrong = exact.or_.clone()
        wrong[-1, 3] += 1e-6 * (v[-1].max() - v[-1].min())
        found = rule(v, dataclasses.replace(exact, or_=wrong))
        assert found.verdict == "opposite"
        assert found.contrasts[0].value.mean == pytest.approx(1e-6, rel=1e-3)
    assert rule(v, symgen.sparsify(v, noise=0.02)).verdict == "opposite"
    assert rule(1000 + v, symgen.sparsify(1000 + v, noise=0.0)).verdict == "shown"


@pytest.mark.filterwarnings("ignore::symgen.split.sparsify.DeadOutputWarning")
def test_an_output_that_never_changes_has_nothing_to_match():
    v = torch.full((2, 8), 3.0, dtype=torch.float64)
    found = claims.matching(v, symgen.sparsify(v, noise=0.0))
    assert (found.verdict, found.samples) == ("not tested", 0)
    assert "never changes" in found.note
    v = torch.cat([v, noise_values(1, 3)])
    assert claims.matching(v, symgen.sparsify(v, noise=0.0)).samples == 1


def test_an_output_that_is_no_number_is_not_tested():
    v = noise_values(2, 3)
    exact = symgen.sparsify(v, noise=0.0)
    v[0, 5] = torch.nan
    assert claims.matching(v, exact).verdict == "not tested"


def test_planted_logic_is_sparse_and_noise_is_the_opposite():
    for v, verdict in ((planted_outputs(6), "shown"), (noise_values(6), "opposite")):
        models = [symgen.sparsify(x, noise=0.02) for x in (v, shuffled(v))]
        assert claims.sparsity(*models).verdict == verdict


def test_sparsity_is_in_per_cent_of_the_possible():
    generator = torch.Generator().manual_seed(0)
    few, many = (with_counts(torch.tensor(c), generator) for c in ([1, 2, 3] * 4, [60, 61, 62] * 4))
    found = claims.sparsity(few, many)
    assert [c.value.mean for c in found.contrasts] == pytest.approx([200 / 120, -100 * 59 / 120])
    assert (found.verdict, found.samples) == ("shown", 12)
    assert [c.verdict for c in claims.sparsity(many, few).contrasts] == ["opposite"] * 2


# Shares of 1 % in both: few, but not fewer than without structure. Of 5 %: at the bound.
@pytest.mark.parametrize(("share", "other"), [(0.01, 0.01), (0.05, 0.05), (0.05, 0.4)])
def test_sparsity_that_is_not_there_is_seldom_shown(share, other):
    generator = torch.Generator().manual_seed(1)
    alarms = 0
    for _ in range(300):
        # At least one each, since a sample without any effect is left out.
        means = torch.tensor([share, other]) * 120 - 1
        shape = torch.rand(2, 12, generator=generator) * 2 * means[:, None]
        counts = torch.poisson(shape, generator=generator) + 1
        ours, theirs = (with_counts(c, generator) for c in counts)
        alarms += claims.sparsity(ours, theirs).verdict in ("shown", "opposite")
    assert alarms <= 0.05 * 300


def test_sparsity_is_not_tested_without_repetition_effects_or_variables():
    generator = torch.Generator().manual_seed(0)
    one, none = (with_counts(torch.tensor(c), generator) for c in ([3], [0, 0]))
    assert claims.sparsity(one, one).verdict == "not tested"
    assert claims.sparsity(none, none).contrasts == []
    v = noise_values(3, 5)
    found = symgen.sparsify(v)
    assert (claims.sparsity(found, found).verdict, claims.sparsity(found, found).samples) == (
        "not tested", 3,
    )  # fmt: skip
    # A sample without any effect says nothing, and does not count.
    some = with_counts(torch.tensor([2, 0, 3]), generator)
    many = with_counts(torch.tensor([60, 0, 60]), generator)
    assert claims.sparsity(some, many).samples == 2
    assert claims.sparsity(some, many).contrasts[0].value.mean == pytest.approx(250 / 120)
