"""Rules about a map of trainings: does what is measured of interactions tell the loss gap?"""

from collections.abc import Mapping

from symgen.method.claims.judgement import Judgement, above, below
from symgen.method.trainings import Trainings
from symgen.method.when import correlation_lead, predictions, rank_correlation

# Of rank correlations.
CORRELATION = 0.1
SIMPLER = ("train_loss", "margin", "weight_norm", "agreement")


def power_predicts(cells: Mapping[tuple, Trainings]) -> Judgement:
    """Over trainings that differ in data, labels and width, a lower H goes with a wider loss gap.

    H is that of the trained network for the class it predicts, so that no test label enters it.
    Spearman's rank correlation is below 0; correlations up to 0.1 count as none. The interval is
    over cells of the map, whose trainings are alike. Nothing is tested with fewer than 8 cells.
    """
    found, count = predictions(cells), len(cells)
    value = rank_correlation(found["label_free_power"], found["gap"])
    contrast = below("rank correlation of H and the loss gap", value, margin=CORRELATION)
    return Judgement([contrast], count, unit="cells")


def power_beats_simpler(cells: Mapping[tuple, Trainings]) -> Judgement:
    """H ranks trainings by their loss gap better than the best of four simpler measures does.

    These are the training loss, the mean output of training samples, the norm of the weights, and
    how often target and baselines predict the same. Compared are sizes of Spearman's rank
    correlations; leads up to 0.1 count as none. Which is the best is found in one half of each
    cell's trainings, and H compared with it in the other, both ways round. The interval is over
    cells of the map; nothing is tested with fewer than 8.
    """
    found, count = predictions(cells), len(cells)
    simpler = [found[name] for name in SIMPLER]
    lead = correlation_lead(found["label_free_power"], simpler, found["gap"])
    measure = "rank correlation of H, less that of the best simpler measure (sizes)"
    return Judgement([above(measure, lead, margin=CORRELATION)], count, unit="cells")
