"""The boundaries of the phases are where App. I has them, and nowhere else."""

import pytest

import symgen

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
