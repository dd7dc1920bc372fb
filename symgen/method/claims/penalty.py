"""Rules about the penalty: does training with it change what is learned, and does that help?"""

import pandas as pd

from symgen.method.arms import differences
from symgen.method.claims.judgement import Judgement, lead

# Differences up to these count as none: of H, and of accuracies.
SHARE, ACCURACY = 0.02, 0.005


def penalty_power(table: pd.DataFrame) -> Judgement:
    """H of the trainings with the penalty, less that of the plain ones, is above 0.

    H is measured with two baseline networks that no penalty has seen, on test samples, and averaged
    over them; trainings are paired by seed. Differences up to 0.02 count as none.
    """
    return _ahead(table, "power", "plain", "H with the penalty less H of the plain training", SHARE)


def penalty_accuracy(table: pd.DataFrame) -> Judgement:
    """The test accuracy with the penalty, less that of the plain trainings, is above 0.

    Trainings are paired by seed. Differences up to 0.005, half a point, count as none.
    """
    told = "test accuracy with the penalty less that of the plain training"
    return _ahead(table, "accuracy", "plain", told, ACCURACY)


def penalty_control(table: pd.DataFrame) -> Judgement:
    """H with the penalty, less H with a penalty on as much strength drawn at random, is above 0.

    H is measured as for the claim that it rises; trainings are paired by seed. Differences up to
    0.02 count as none.
    """
    told = "H with the penalty less H with the random one"
    return _ahead(table, "power", "random", told, SHARE)


def _ahead(
    table: pd.DataFrame, measure: str, against: str, told: str, margin: float
) -> Judgement:  # fmt: skip
    ahead = differences(table, measure, against)["penalty"]
    known = int((~ahead.isnan()).sum())
    return Judgement([lead(told, ahead, margin=margin)], known, unit="trainings")
