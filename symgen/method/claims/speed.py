"""What extraction takes, beside what the paper reports (App. L)."""

from symgen.method.claims.judgement import Judgement, below
from symgen.method.statistics import Interval


def extraction_time(seconds: float, paper: float) -> Judgement:
    """Seconds from one image to its interactions, beside the paper's. Nothing is judged: machine,
    network and what was timed are others.
    """
    value = Interval(seconds, float("nan"), float("nan"))
    note = "not the same measurement: another machine, another network"
    contrast = below("seconds from an image to its interactions", value, paper, unit="s")
    return Judgement([contrast], 1, note)
