"""Changes of interactions from one model to another: they add up to the change of the output."""

import numpy as np
import pytest
import torch

from symgen.method.changes import interaction_changes
from symgen.split.sparsify import sparsify


def test_changes_add_up():
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64).cumsum(-1)
    before, after = (sparsify(part, noise=0.02) for part in v)
    table = interaction_changes(before, after)
    whole = table.groupby("sample")["change"].sum()
    np.testing.assert_allclose(whole, (v[1] - v[0])[:, -1], atol=1e-12)
    was, now = (torch.stack(i.salient(), -2) for i in (before, after))
    new = ((after.effects - before.effects) * (now & ~was)).sum((-2, -1))
    found = table[table.kind == "new"].groupby("sample")["change"].sum()
    np.testing.assert_allclose(found, new, atol=1e-12)
    sizes = (after.effects - before.effects).abs().sum((-2, -1)) + (after.bias - before.bias).abs()
    moved = table[table.kind != "noise"].groupby("sample")["moved"].sum()
    np.testing.assert_allclose(moved, sizes, atol=1e-12)
    by_model = table[table.kind != "noise"].groupby("sample")["change"].sum()
    moved = (after.predict() - before.predict())[:, -1]
    np.testing.assert_allclose(by_model, moved, atol=1e-12)
    same = interaction_changes(before, before)
    assert not same.change.any()
    with pytest.raises(ValueError, match=r"before has shape \(3, 16\) and after \(2, 16\)"):
        interaction_changes(before, after[:2])
