"""Golden numbers: tiny results of every room have not changed; see `golden/compute.py`.

If a result changes, fix the fault. If the change is intended, raise the version of its kind of
result, write the files again (`make golden`), and state the reason in the commit.
"""

from typing import Any

import numpy as np
import pytest
from golden import compute

# Largest difference, as a share of the largest number of its list.
RTOL = 1e-6
# The training loop measures losses in float32, whose sums differ in the seventh digit.
FLOAT32 = 1e-5
# A split ends at a gap of 1e-6, so that what follows from it is known to fewer digits.
AFTER_SPLIT = 1e-4
# Two solvers may stop at different models within their tolerance.
SPLIT = 1e-3
TOLERANCES = {"penalty_term": AFTER_SPLIT, "training_run": AFTER_SPLIT, "study": AFTER_SPLIT}
FEWER_DIGITS = {"train_loss": FLOAT32, "test_loss": FLOAT32, "weight_norm": RTOL, "steps": 0.0}


def flat(value: Any) -> list:
    """Return the numbers of nested lists."""
    return [x for part in value for x in flat(part)] if isinstance(value, list) else [value]


def compare(new: Any, old: Any, share: float, scale: float | None = None, name: str = "") -> None:
    """Fail if a number differs by more than a share of a scale, by default of the largest one."""
    new, old = (np.array(flat(x), dtype=float) for x in (new, old))
    scale = np.nanmax(abs(old), initial=0) if scale is None else scale
    np.testing.assert_allclose(new, old, rtol=0, atol=share * scale, err_msg=name)


def test_every_file_belongs_to_a_result():
    assert {path.stem for path in compute.FOLDER.glob("*.json")} == {*compute.RESULTS}


@pytest.mark.parametrize("name", [n for n in compute.RESULTS if not n.startswith("split")])
def test_a_result_has_not_changed(name):
    new, old = compute.computed(name), compute.stored(name)
    assert new.keys() == old.keys()
    for key, expected in old.items():
        share = FEWER_DIGITS.get(key, TOLERANCES.get(name, RTOL))
        compare(new[key], expected, share, name=key)


@pytest.mark.parametrize("name", [n for n in compute.RESULTS if n.startswith("split")])
def test_a_split_has_not_changed(name):
    """The objective within 1e-3 of itself, effects and outputs within 1e-3 of the total effect."""
    new, old = compute.computed(name), compute.stored(name)
    assert new.keys() == old.keys()
    total = old["total_effect"]
    for key, expected in old.items():
        if isinstance(expected, dict):
            # Effects by name; one that is missing is 0.
            for effect in {*new[key], *expected}:
                sample = int(effect.split(":")[0].removeprefix("sample "))
                pair = new[key].get(effect, 0.0), expected.get(effect, 0.0)
                compare(*pair, SPLIT, total[sample], effect)
            continue
        for sample, (a, b) in enumerate(zip(new[key], expected, strict=True)):
            scale = None if key.startswith("objective") else total[sample]
            compare(a, b, SPLIT, scale, f"{key} of sample {sample}")
