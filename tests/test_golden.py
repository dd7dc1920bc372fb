"""Golden numbers: tiny results of every room have not changed; see `golden/compute.py`.

If a result changes, fix the fault. If the change is intended, raise the version of its kind of
result, write the files again (`make golden`), and state the reason in the commit.
"""

import math
from typing import Any

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


def differences(new: Any, old: Any, bound: float, name: str) -> list[str]:
    """Return which numbers differ by more than a bound, in words."""
    new, old = flat(new), flat(old)
    if len(new) != len(old):
        return [f"{name}: {len(new)} numbers, expected {len(old)}"]
    wrong = []
    for place, (a, b) in enumerate(zip(new, old, strict=True)):
        alike = a == b if None in (a, b) else math.isclose(a, b, rel_tol=0, abs_tol=bound)
        if not alike:
            wrong.append(f"{name}[{place}]: {a}, expected {b} within {bound:.2g}")
    return wrong


def scale(old: Any) -> float:
    return max((abs(x) for x in flat(old) if x is not None), default=0.0)


def test_every_file_belongs_to_a_result():
    files = {path.stem for path in compute.FOLDER.glob("*.json")}
    assert files == set(compute.RESULTS)


@pytest.mark.parametrize("name", [n for n in compute.RESULTS if not n.startswith("split")])
def test_a_result_has_not_changed(name):
    new, old = compute.computed(name), compute.stored(name)
    assert new.keys() == old.keys()
    wrong = []
    for key, expected in old.items():
        rtol = FEWER_DIGITS.get(key, TOLERANCES.get(name, RTOL))
        wrong += differences(new[key], expected, rtol * scale(expected), key)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", [n for n in compute.RESULTS if n.startswith("split")])
def test_a_split_has_not_changed(name):
    """The objective within 1e-3 of itself, effects and outputs within 1e-3 of the total effect."""
    new, old = compute.computed(name), compute.stored(name)
    assert new.keys() == old.keys()
    total, wrong = old["total_effect"], []
    for key, expected in old.items():
        if isinstance(expected, dict):
            # Effects by name; one that is missing is 0.
            for effect in sorted({*new[key], *expected}):
                pair = (values.get(effect, 0.0) for values in (new[key], expected))
                sample = int(effect.split(":")[0].removeprefix("sample "))
                wrong += differences(*pair, SPLIT * total[sample], f"{key} of {effect}")
            continue
        for sample, (a, b) in enumerate(zip(new[key], expected, strict=True)):
            bound = SPLIT * (abs(b) if key.startswith("objective") else total[sample])
            wrong += differences(a, b, bound, f"{key} of sample {sample}")
    assert not wrong, "\n".join(wrong[:20])
