"""What a chapter has to do, counted from its parameters: trainings, extractions, and what grows."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from symgen.book.parameters import BASELINES, DATASETS, SPLITS, STUDY

# Samples trained with together (see `TrainingConfig`).
BATCH = 64
# Learning rates of the published procedure.
RATES = 3
# Training samples where all there are are taken and their number is not known.
SOME = 6000
# Texts of each kind that the losses of language models are measured on (see `TUNING`).
MEASURED = 200


def _followed(checkpoints: int, baselines: int) -> int:
    # What `symgen.method.trainings.measure` extracts: the target at each checkpoint, the baselines,
    # and all of them on training samples.
    return checkpoints + 2 + 2 * baselines


# What it measures besides: for the baselines untrained and for another class, and for all networks
# and the class that the target predicts.
ALSO: dict[str, Callable[[int], int]] = {"nulls": lambda b: 2 * b, "simple": lambda b: 1 + b}
# The chapters that ask for it, of their main study or of all cells.
ASKED = {"02_order_generalization": ("nulls",), "when": ("simple",)}


# How many times interactions of all samples are extracted in each training of a chapter.
EXTRACTED: dict[str, Callable[[int, int], int]] = {
    **dict.fromkeys(
        ("02_order_generalization", "03_three_phase_dynamics", "04_loss_gap_removal",
         "where_phases_end", "when"), _followed
    ),
    "01_interaction_extraction": lambda c, b: 2,
    "equally_sparse": lambda c, b: 2,
    "A_sparsity_conditions": lambda c, b: 3,
    "B_baseline_networks": lambda c, b: 1 + b,
    "C_similarity_metric": lambda c, b: 1 + b,
    "D_cross_validation": lambda c, b: 1 + b,
    "choices": lambda c, b: 16,
    "networks": lambda c, b: 0,
    "more_variables": lambda c, b: 2,
    "E_penalty": lambda c, b: 1 + b,
    "extractor": lambda c, b: c + b,
}  # fmt: skip
# Chapters on language models.
SPOKEN = ("05_llm_interactions", "06_fine_tuning")
# By what the time of other chapters grows; n counts as 2**n, and lists by their length.
GROWS = (
    "epochs", "train_size", "tune_epochs", "tune_size", "seeds", "samples", "steps", "functions",
    "looks", "n", "strengths", "maskings", "further", "layers", "length",
)  # fmt: skip
# What leaves it as it is.
FREE = (
    "preset", "seed", "noise", "label_noise", "learning_rate", "tune_rate", "probability",
)  # fmt: skip


class Piece(NamedTuple):
    """Trainings that are alike, and what is extracted from each.

    Attributes:
        study: its parameters.
        trainings: how many, with seeds 10 apart.
        networks: of each training.
        extracted: times that the interactions of all samples are extracted in each.
        whole: whether each training is stored as a whole; see `symgen.method.trainings.measure`.
        also: what is measured besides, likewise.
        longer: how many times as long its steps are as plain ones.
        descended: of each training, steps of the published procedure times samples.
        sampled: likewise, squares of numbers of sampled states times candidates, of all programs.
        peers: likewise, samples that are given to a way of shapiq.
    """

    study: dict[str, Any]
    trainings: int
    networks: int
    extracted: int
    whole: bool
    also: tuple[str, ...] = ()
    longer: float = 1.0
    descended: float = 0.0
    sampled: float = 0.0
    peers: int = 0

    @property
    def size(self) -> int:
        """Training samples of each network."""
        known = DATASETS.get(self.study["dataset"])
        there = sum(known.train) // self.networks if known else 0
        return self.study.get("train_size") or there or SOME


def pieces(chapter: str, parameters: Mapping[str, Any]) -> list[Piece]:
    """Return what a chapter trains and extracts; nothing for a chapter that is not counted.

    Args:
        chapter: its name.
        parameters: all of them, defaults included.
    """
    if chapter not in EXTRACTED:
        return []
    main = {"n": 10, "samples": 20} | {k: v for k, v in parameters.items() if k in STUDY}
    main |= {"baselines": main.get("baselines", BASELINES.get(chapter, 2))}
    main |= {"split": SPLITS[chapter]} if chapter in SPLITS else {}
    seeds = parameters.get("seeds", 1)
    side = parameters.get("side_seeds", seeds)
    found = [(main, seeds)]
    if "amounts" in parameters:
        cells = itertools.product(*(parameters[k] for k in ("amounts", "label_noises", "widths")))
        found = [
            ({**main, "train_size": size, "epochs": epochs, "label_noise": wrong,
              "options": {"width": width}, "seed": main.get("seed", 0) + 10 * seeds * i}, seeds)
            for i, ((size, epochs), wrong, width) in enumerate(cells)
        ]  # fmt: skip
    if "planted" in parameters:
        found.append(({**main, **parameters["planted"]}, side))
    if "small_grid" in parameters:  # its other grid, and its two kinds of baseline networks
        grid = parameters["small_grid"]
        fewer = {"grid": grid, "n": min(grid**2, 9), "checkpoints": 1}
        compared = parameters.get("comparison_seeds", side)
        found.append(({**main, **fewer}, compared))
        for split in ("halves", "test"):
            found.append(({**main, "split": split, "baselines": 1, "checkpoints": 1}, compared))
    found += [({**main, **other}, side) for other in parameters.get("others", [])]
    mine = len(found) if "amounts" in parameters else 1
    plain = [_piece(chapter, *each, i < mine) for i, each in enumerate(found)]
    if "counts" in parameters:
        return [plain[0]._replace(**_sampled(main, parameters))]
    if "levels" in parameters:
        # Of planted functions of two sizes, and of all outputs as they are and scaled.
        looks = EXTRACTED[chapter](parameters["looks"], main["baselines"])
        planted = parameters["functions"] * 2 * len(parameters["levels"]) / seeds
        descended = RATES * parameters["steps"] * (planted + 2 * main["samples"] * looks)
        each = plain[0]._replace(trainings=1, extracted=looks, descended=descended)
        return [each] * seeds  # one after the other
    if "strengths" not in parameters:
        return plain
    # Plain, random, penalized and decayed ones, and those that tune the latter two; beside each
    # seed's own baseline networks. Half of them run masked samples through every step as well.
    tuned = len(parameters["strengths"]) + len(parameters["decays"])
    states = parameters["penalized"] * 2 ** parameters["m"] / parameters["every"]
    added = {"networks": 1, "extracted": 1, "longer": 1 + states / BATCH / 2}
    arms = [each._replace(trainings=4 * each.trainings + tuned, **added) for each in plain]
    return [piece for both in zip(plain, arms, strict=True) for piece in both]


def _sampled(main: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, float]:
    # ANDs and ORs of 1 to max_order variables, which are the same for one variable.
    def candidates(n: int) -> int:
        return 2 * sum(math.comb(n, k + 1) for k in range(parameters["max_order"])) - n

    few = parameters["few"]
    exact = main["samples"] * sum(count**2 for count in parameters["counts"])
    more = 2 * few * parameters["calls"] ** 2  # each is looked at alone, and beside the peers
    return {
        "sampled": exact * candidates(main["n"]) + more * candidates(parameters["many"]),
        "peers": few * len(parameters["against"]),
    }


def makers_first(chapters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return chapters with those at last whose trainings one of the others makes and stores.

    Side by side both would make them, since neither would find them stored.

    Args:
        chapters: name to parameters, defaults included.
    """
    made: list[dict[str, Any]] = []
    first, later = [], []
    for name, parameters in chapters.items():
        whole = [piece.study for piece in pieces(name, parameters) if piece.whole]
        (later if any(study in made for study in whole) else first).append(name)
        made += whole
    return first + later


class Spoken(NamedTuple):
    """What a chapter does with one language model.

    Attributes:
        model: its name.
        trained: texts that it is trained on, times the passes over them.
        masked: prompts of which all masked states run.
        alike: how many like parts it has, which can run side by side.
        beside: how many models are trained side by side in one of these.
        followed: checkpoints that its trainings keep.
        measured: texts that losses are measured on, times the checkpoints.
    """

    model: str
    trained: float
    masked: int
    alike: int = 1
    beside: int = 1
    followed: int = 0
    measured: int = 0


def spoken(
    chapter: str, parameters: Mapping[str, Any], texts: Callable[[str], int]
) -> list[Spoken]:
    """Return what a chapter does with language models, the model and the baseline; else nothing.

    Args:
        chapter: its name.
        parameters: all of them, defaults included.
        texts: how many texts a data set has for one model to learn from.
    """
    if chapter not in SPOKEN:
        return []
    p, tuned = parameters, chapter == "06_fine_tuning"
    named, learned = (p["model"], p["baseline"]), p["old"] if tuned else p["dataset"]
    prompts = 1 if p.get("prompt") else p["samples"]
    seeds = p.get("seeds", 1)
    domains = [p["dataset"], *p["further"]] if tuned else []
    # The baseline learns from both parts where the model has learned from none.
    parts = (1, 1 if named[0] == "tiny-llama" else 2)
    passes = [
        seeds * p["epochs"] * (p["train_size"] or part * texts(learned)) if name == "tiny-llama"
        else 0 for name, part in zip(named, parts, strict=True)
    ]  # fmt: skip
    some = min(MEASURED, texts(learned))
    # Of its own texts and of others, before the first step and after the last.
    once = [2 * 2 * seeds * some * (count > 0) for count in passes]
    if not tuned:
        others = len({*p["maskings"]} - {p["masking"]})
        beside = 2 if all(passes) else 1
        masked = prompts + others * min(prompts, 10)
        return [
            Spoken(named[0], passes[0], masked, beside=beside, measured=once[0]),
            Spoken(named[1], passes[1], prompts, beside=beside, measured=once[1]),
        ]
    # Each tuning has a twin, and its prompts are looked at before, on the way, and by the twin.
    tunings = sum(2 * seeds * p["tune_epochs"] * (p["tune_size"] or texts(d)) for d in domains)
    every = seeds * len(domains) * prompts
    alike, looks = seeds * len(domains), p["checkpoints"] + 2
    followed = 2 * alike * looks
    # Of the texts tuned on, of others of their domain, and of the old one.
    measured = once[0] + 3 * some * followed
    return [
        Spoken(named[0], passes[0] + tunings, every * looks, alike,
               followed=followed, measured=measured),
        Spoken(named[1], passes[1], every, alike, measured=once[1]),
    ]  # fmt: skip


def _piece(chapter: str, study: dict[str, Any], trainings: int, main: bool) -> Piece:
    baselines = study["baselines"]
    also = ASKED.get(chapter, ()) if main else ()
    extracted = EXTRACTED[chapter](study.get("checkpoints", 12), baselines)
    extracted += sum(ALSO[name](baselines) for name in also)
    whole = EXTRACTED[chapter] is _followed
    return Piece(study, trainings, 1 + baselines, extracted, whole, also)


def growth(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float]:
    """Return by what the work of a chapter grows, of each parameter that changes it.

    Args:
        old, new: all parameters, before and after.

    Example:
        >>> growth({"n": 8, "seeds": 2, "noise": 0.1}, {"n": 10, "seeds": 3, "noise": 0.2})
        {'seeds': 1.5, 'n': 4.0}
    """
    found = {}
    for name in GROWS:
        before, after = (_amount(name, values.get(name)) for values in (old, new))
        if before and after and before != after:
            found[name] = after / before
    return found


def is_scaled(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether `growth` has all that changes how much a chapter has to do.

    Args:
        old, new: all parameters, before and after.

    Example:
        >>> is_scaled({"n": 8, "seed": 0}, {"n": 10, "seed": 1})
        True
        >>> is_scaled({"n": 8, "others": []}, {"n": 8, "others": [{"epochs": 90}]})
        False
    """
    changed = {name for name, value in new.items() if name not in old or old[name] != value}
    return changed <= {*growth(old, new), *FREE}


def _amount(name: str, value: Any) -> float:
    if isinstance(value, (list, tuple)):
        return len(value)
    return 2.0**value if name == "n" and value else float(value or 0)
