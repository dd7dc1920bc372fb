"""Rules about several baseline networks: what more of them add."""

from symgen.method.claims.judgement import Judgement, above
from symgen.method.statistics import interval
from symgen.method.witnesses import Witnesses


def baselines_grow(found: Witnesses) -> Judgement:
    """H of every order grows by more from 1 to K baseline networks than it grows by chance.

    Growth itself is no finding: with Equation 13 nothing can shrink. By chance means that the
    variables of all baselines are relabelled alike. Each order is a contrast of its own, and the
    claim needs all of them; differences up to 0.02 count as none. Orders at which fewer than 5
    samples (or, of fewer samples, not all) have salient interactions are left out, and so is the
    order of all variables, which relabelling does not change.
    """
    most = found.numbers[-1]
    contrasts = [
        above(
            f"H gained above chance, order {m}", found.gain(1, most, [m])[1], margin=0.02,
            within=(-1.0, 1.0),
        )
        for m in found.orders
    ]  # fmt: skip
    note = "" if contrasts else "too few samples have interactions of any one order"
    return Judgement(contrasts, len(found.defined), note)


def baselines_two(found: Witnesses) -> Judgement:
    """Above chance, the second baseline adds to H, and it adds more than all further ones together.

    Differences up to 0.02 count as none. Averaged over all choices of baselines, each adds no more
    than the one before, so that of three the second is always ahead: with fewer than 4 nothing is
    tested.
    """
    most, samples = found.numbers[-1], int(found.power(1).isfinite().sum())
    if most < 4:
        return Judgement([], samples, f"{most} baseline networks; the rule compares 4 or more")
    ahead = 2 * found.lift(2) - found.lift(1) - found.lift(most)
    contrasts = [
        above(
            "H gained above chance by the second baseline", found.gain(1, 2)[1], margin=0.02,
            within=(-1.0, 1.0),
        ),
        above(
            "the same, less what all further ones gain", interval(ahead), margin=0.02,
            within=(-2.0, 2.0),
        ),
    ]  # fmt: skip
    return Judgement(contrasts, samples)
