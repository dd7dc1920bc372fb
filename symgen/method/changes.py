"""What changes between two models, told by their interactions."""

import pandas as pd
import torch
from torch import Tensor, nn

from symgen.interactions import Interactions


def interaction_changes(
    before: Interactions, after: Interactions, v_before: Tensor | None = None,
    v_after: Tensor | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return which interactions carry the change of v between two models, adding up exactly.

    Every interaction is triggered on the whole prompt, so that v(N) is their sum and the constant.
    A change of it is the sum of: interactions that are salient after only ("new"), before only
    ("lost"), in both with opposite signs ("flipped") or with the same sign ("strength"), in
    neither ("small"), of the constant, and of what the models' noise terms leave out ("noise").

    Args:
        before, after: interactions of two models on the same prompts and variables.
        v_before, v_after: outputs on all states; without them the change is that of the logical
            models, and there is no noise term.

    Returns:
        One row a sample, kind and order: sample, kind, order, change (log odds), and moved, the
        sum of the changes without their signs. The changes of a sample add up to that of its v(N).
    """
    if before.and_.shape != after.and_.shape:
        raise ValueError(
            f"before has shape {tuple(before.and_.shape)} and after {tuple(after.and_.shape)}; "
            "expected interactions of the same prompts and variables"
        )
    was, now = (torch.stack(i.salient(), -2) for i in (before, after))
    same = before.effects * after.effects > 0
    kinds = {
        "new": now & ~was, "lost": was & ~now, "flipped": was & now & ~same,
        "strength": was & now & same, "small": ~was & ~now,
    }  # fmt: skip
    change = after.effects - before.effects
    orders = nn.functional.one_hot(before.order, before.n + 1).to(change)
    rows = []
    for kind, mask in kinds.items():
        by_order, moved = ((x * mask).sum(-2) @ orders for x in (change, change.abs()))
        rows += [
            (sample, kind, order, float(by_order[sample, order]), float(moved[sample, order]))
            for sample in range(len(by_order))
            for order in range(1, before.n + 1)
        ]
    rest = {"constant": after.bias - before.bias}
    if v_before is not None and v_after is not None:
        predicted = after.predict()[:, -1] - before.predict()[:, -1]
        rest["noise"] = (v_after - v_before)[:, -1] - predicted
    for kind, values in rest.items():
        rows += [(sample, kind, 0, x, abs(x)) for sample, x in enumerate(values.tolist())]
    return pd.DataFrame(rows, columns=["sample", "kind", "order", "change", "moved"])
