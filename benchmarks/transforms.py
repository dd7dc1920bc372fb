"""The Moebius transform against shapiq's."""

import torch

import symgen
from benchmarks import inputs
from benchmarks.rows import Row, seconds


def against_shapiq(quick: bool) -> list[Row]:
    """One sample, n = 10 and 14; shapiq is an optional dependency."""
    try:
        from shapiq import ExactComputer
    except ImportError:
        print("shapiq is not installed: its rows are left out")
        return []
    rows = []
    for n in (10,) if quick else (10, 14):
        v = inputs.outputs(n, 1)[0]
        bits = 1 << torch.arange(n)

        def game(coalitions, v=v, bits=bits):
            return v[(torch.as_tensor(coalitions) * bits).sum(-1)].numpy()

        def theirs(n=n, game=game):
            computer = ExactComputer(game, n, evaluate_game=True)
            return seconds(lambda: computer.moebius_transform)

        symgen.moebius(v)
        mine, _, _ = seconds(lambda v=v: symgen.moebius(v), 100)
        time, _, found = theirs()
        effects = symgen.moebius(v)
        off = max(
            abs(float(effects[sum(1 << i for i in members)]) - found.values[at])
            for members, at in found.interaction_lookup.items()
        )
        rows.append(
            Row(
                f"Moebius transform, n = {n}",
                "shapiq's ExactComputer",
                mine,
                time,
                "s a sample",
                time / mine,
                500,
                note=f"largest difference {off:.0e}",
            )
        )
    return rows
