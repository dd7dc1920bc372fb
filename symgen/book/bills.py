"""What a run will take, before it starts: hours, disk and memory of every chapter.

Chapters that train networks are counted: how many samples are trained on, masked and split, from
their parameters; and a few of each are timed on this machine. The others are taken to need what
their stored execution has taken, scaled by the parameters that say how much there is to do. Nothing
heavy is imported here before networks have to be timed.
"""

import contextlib
import functools
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from symgen.book import processes
from symgen.book.parameters import DATASETS, NETWORKS
from symgen.book.presets import BookError, defaults, read_chapter
from symgen.book.work import BATCH, SOME, SPOKEN, Piece, growth, is_scaled, pieces, spoken
from symgen.files import own_folder

GIB = 2**30
#: Seconds from which on a run is asked for before it starts.
LONG = 600
# Of a run that stored executions show to be far from that: how many times as long it may take here
# as there, and the seconds that a chapter counts at least, whose trainings may have been there.
SLOWER, ALONE = 5, 60
# What a chapter takes besides its networks, for its kernel and its figures: so many times what it
# takes to load the libraries, and bytes. Processes that train beside it load them, too, while it
# works alone.
LOADS, HOST = 4, 0.8 * GIB
OTHERS = 1
# Samples on which records are measured (see `TrainingConfig`).
EVALUATED = 800
# Texts that come with the package; pixels of an unknown image.
GENERATED, SIDE = {"tokens": 16, "vocabulary": 200}, 32
# Tokens of a word, of a masked prompt by its variables, and texts whose words are counted.
OF_WORD, OF_VARIABLE, COUNTED = 1.3, 5, 500
# Texts of a step.
TEXTS = 32
# What a forward pass takes of one with its gradients.
FORWARD = 1 / 3
# Of a bill of which nothing is known.
NOTHING = (None, None, None, None)


class Bill(NamedTuple):
    """What a chapter will take; None for what is not known.

    Attributes:
        chapter: its name.
        seconds: wall time on this machine.
        disk, host, device: bytes of stored results, and of memory at most.
        basis: how the seconds were found.
    """

    chapter: str
    seconds: float | None
    disk: float | None
    host: float | None
    device: float | None
    basis: str


class _Machine:
    """What is timed of this machine, when it is first asked for and once for all chapters."""

    @functools.cached_property
    def speed(self) -> Any:
        from symgen.models.speed import measure_speed

        return measure_speed()

    @functools.cached_property
    def speech(self) -> Any:
        from symgen.models.speed import measure_speech

        return measure_speech()

    def rest(self, spread: bool) -> float:
        """Return the seconds that a chapter takes besides its networks.

        Args:
            spread: whether it starts processes to train in.
        """
        return (LOADS + OTHERS * spread) * self._loading

    @functools.cached_property
    def _loading(self) -> float:
        return _loading()


def is_short(book: Path, wanted: Iterable[tuple[str, Mapping[str, Any], bool]]) -> bool:
    """Return whether stored executions show a run to be far from `LONG`, without timing anything.

    Args:
        book, wanted: as in `bills`, which takes a quarter of a minute to tell it.
    """
    seconds = 0.0
    for chapter, given, runs in wanted:
        if not runs:
            continue
        ran = read_chapter(book, chapter)
        before, after = _parameters(ran), {**defaults(ran), **given}
        took = ran.metadata.get("symgen", {}).get("seconds")
        if took is None or not is_scaled(before, after):
            return False
        seconds += max(took, ALONE) * math.prod(growth(before, after).values())
        if SLOWER * seconds > LONG:
            return False
    return True


def bills(
    book: Path, wanted: Iterable[tuple[str, Mapping[str, Any], bool]], cores: int | None = None
) -> list[Bill]:
    """Return what chapters will take.

    Args:
        book: its folder.
        wanted: of each chapter its name, the parameters that a run is given (see `resolve`), and
            whether it would be run at all.
        cores: that trainings are spread over; those of this machine by default.
    """
    found, counted, machine = [], {}, _Machine()
    for number, (chapter, given, runs) in enumerate(wanted):
        own = read_chapter(book, chapter)
        parameters = {**defaults(own), **given}
        work = pieces(chapter, parameters)
        # A function that builds a network is asked, as is one of the package; ids and folders would
        # have to be loaded.
        unknown = {n for p in work if ":" not in (n := p.study["network"])} - {*NETWORKS}
        if not runs:
            found.append(Bill(chapter, 0.0, 0.0, 0.0, 0.0, "unchanged since its last run"))
        elif unknown:
            told = ", ".join(sorted(unknown))
            found.append(Bill(chapter, *NOTHING, f"not known: network {told}"))
        elif chapter in SPOKEN:
            found.append(_spoken(chapter, parameters, cores or processes.cores(), machine))
        elif work:
            found.append(Bill(chapter, *NOTHING, "timed below"))
            counted[number] = work
        else:
            found.append(_scaled(chapter, own, parameters))
    if counted:
        for number, row in _timed(counted, cores or processes.cores(), machine).items():
            found[number] = Bill(found[number].chapter, *row)
    return found


def _timed(
    counted: Mapping[int, list[Piece]], cores: int, machine: _Machine | None = None
) -> dict[int, tuple]:
    """Return the bills of chapters whose networks are timed, but for their names."""
    import torch

    machine = machine or _Machine()
    speed = machine.speed
    gpu, rows, met = torch.cuda.is_available(), {}, set[str]()
    for number, work in counted.items():
        seconds, disk, memory, free, spread = 0.0, 0.0, 0.0, 0, False
        if told := _uncounted(work):
            rows[number] = (*NOTHING, told)
            continue
        for piece in work:
            _refuse_folder(piece.study)
            stored = _stored(piece)
            there = sum(found or name in met for name, found in stored.items())
            met.update(stored)  # the chapters of a run share trainings
            left, (each, kept, held) = piece.trainings - there, _training(piece, speed)
            side = 1 if gpu else max(1, min(cores, left))
            seconds, disk = seconds + each * math.ceil(left / side), disk + kept * left
            spread = spread or side > 1
            memory, free = max(memory, held * side + (side - 1) * HOST), free + there
        are = "s are" if free > 1 else " is"
        known = f"; {free} training{are} stored, or of a chapter above" if free else ""
        basis = f"timed here{known}"
        host, device = (HOST, memory) if gpu else (HOST + memory, 0.0)
        rows[number] = seconds + machine.rest(spread), disk, host, device, basis
    return rows


def _uncounted(work: Iterable[Piece]) -> str:
    """Return which network of a reader's own cannot be counted, and why; empty where all can.

    Raises:
        BookError: where there is no such network.
    """
    from symgen.models.registry import lookup
    from symgen.models.speed import demand

    for name in {piece.study["network"] for piece in work} - {*NETWORKS}:
        try:
            lookup(name)
        except ValueError as error:
            raise BookError(str(error)) from None
        # Whatever a function does that was written elsewhere: a bill is no reason to stop.
        with contextlib.suppress(Exception):
            demand(name)
            continue
        return f"not known: network {name} cannot be counted without weights"
    return ""


@functools.cache
def _own_rows(name: str) -> Any:
    """Return the training rows of a folder, which the runs of a sweep share."""
    from symgen.data.hub import read_rows

    return read_rows(name, "train")


def _refuse_folder(study: Mapping[str, Any]) -> None:
    """Refuse a folder of the reader's own that holds too little to be trained on.

    Raises:
        BookError: with what loading it would say, hours into a sweep.
    """
    if not own_folder(name := study["dataset"]):
        return
    from symgen.data.splits import choose_classes, deal, part_names
    from symgen.method.study import Study

    asked = Study.of(study)
    try:
        rows, count = _own_rows(name), part_names(asked._split)[1]
        kept, _ = choose_classes(rows, None, name)
        deal(rows, kept, count, asked.train_size, asked.seed, f'training set of "{name}"')
    except (OSError, ValueError) as error:
        raise BookError(str(error)) from None


def _loading() -> float:
    """Return how many seconds a new process takes to load what trainings need."""
    started = time.perf_counter()
    command = processes.ended_with_us("import symgen.method.trainings")
    subprocess.run(command, capture_output=True, check=False)
    return time.perf_counter() - started


def _training(piece: Piece, speed: Any) -> tuple[float, float, float]:
    """Return seconds, bytes on the disk and bytes of memory of one training of a piece."""
    from symgen.models.speed import demand

    study, known, size = piece.study, DATASETS.get(piece.study["dataset"]), _size(piece)
    asked = demand(
        study["network"], side=(known and known.side) or SIDE,
        **(GENERATED if known and known.words else {}),
        width=study.get("options", {}).get("width"),
    )  # fmt: skip
    state, looks = speed.masked(asked.operations), study.get("checkpoints", 12) + 1
    steps = speed.train(asked.operations) * size * study["epochs"] * piece.longer
    evaluated = study.get("evaluation_size") or EVALUATED
    records = state * (min(size, evaluated) + evaluated) * looks
    samples, states = piece.extracted * study["samples"], 2 ** study["n"]
    seconds = piece.networks * (steps + records)
    seconds += samples * (state * states + speed.splits(study["n"]))
    seconds += piece.descended * speed.steps(study["n"])
    seconds += piece.sampled * speed.sampled + piece.peers * speed.peer()
    # Outputs, AND and OR effects, 8 bytes each.
    disk = piece.networks * asked.weights * (looks + 2) + samples * states * 3 * 8
    # Weights, gradients, states of the optimizer, and the copies made to store them.
    return seconds, disk, 6 * asked.weights + 1.3 * BATCH * asked.kept


def _size(piece: Piece) -> int:
    """Return how many samples each network of a piece is trained on; of data that are here, all."""
    from symgen.data.hub import local_folder, open_splits

    name = piece.study["dataset"]
    if piece.study.get("train_size") is None and (Path(name).is_dir() or local_folder(name)):
        # What cannot be read is told by the chapter, better.
        with contextlib.suppress(OSError, ValueError, KeyError):
            return len(open_splits(name)["train"]()) // piece.networks
    return piece.size


def _spoken(chapter: str, parameters: Mapping[str, Any], cores: int, machine: _Machine) -> Bill:
    """Return the bill of a chapter on language models."""
    import torch

    from symgen.models import speed

    texts = functools.cache(_texts)  # which reads them
    work = spoken(chapter, parameters, lambda name: texts(name)[0])
    length, tokens = parameters["length"], texts(parameters.get("old", parameters["dataset"]))[1]
    if parameters["tail"] or math.isinf(tokens):  # else long ones are several pieces
        tokens = min(length, tokens)
    piece = min(length, tokens)
    n, rows = parameters["n"], 2 ** parameters["n"]
    rate, split = machine.speech, machine.speed.splits(n)
    gpu = torch.cuda.is_available()
    side, seconds, disk, held = 1 if gpu else cores, 0.0, 0.0, []
    size = 0.5 if parameters["dtype"] in ("bfloat16", "float16") else 1.0
    for number, each in enumerate(work):
        try:
            words = int(1.5 * parameters["vocabularies"][number])
            shape = (each.model, parameters["width"], parameters["layers"], words)
            asked, last = speed.token_demand(*shape), speed.token_demand(*shape, last=True)
        # Some models cannot run without numbers.
        except (FileNotFoundError, ImportError, RuntimeError, ValueError) as error:
            told = str(error).split(" (")[0].split("; ")[0]
            return Bill(chapter, *NOTHING, f"not known: {told}")
        passes = each.trained + FORWARD * each.measured
        timed = passes and asked.weights <= speed.SMALL
        known = rate.train(asked.operations)
        of_token = speed.token_seconds(*shape, int(piece)) if timed else known
        run = passes * tokens * of_token / min(each.beside, side)
        run += each.masked * speed.tree_tokens(OF_VARIABLE * n, n) * rate.masked(last.operations)
        run += each.masked * split
        seconds += run * math.ceil(each.alike / side) / each.alike
        disk += each.masked * rows * 3 * 8
        # Weights alone, or what trains them too; adapters are few.
        weights = asked.weights * size
        if each.trained and not parameters.get("lora"):
            weights, disk = 6 * asked.weights, disk + each.followed * weights
        batch = parameters.get("batch_size", TEXTS) * piece * asked.kept
        held.append(weights + (1.3 * batch * size if each.trained else 0.0))
    spread = max(min(side, each.alike * each.beside) for each in work)
    # Each process that tunes has both models; of two trained side by side each has one.
    memory = sum(held) * min(side, work[0].alike) + (spread - 1) * HOST
    host, device = (HOST, memory) if gpu else (HOST + memory, 0.0)
    return Bill(chapter, seconds + machine.rest(spread > 1), disk, host, device, "timed here")


def _texts(name: str) -> tuple[int, float]:
    """Return how many texts a data set has for one model, and their tokens; of one that is not
    here, what others have at most."""
    from symgen.data.hub import local_folder
    from symgen.data.texts import split_texts

    known = DATASETS.get(name)
    if not (known and known.words) and not local_folder(name):
        return SOME, math.inf
    # Instructions are no such texts, and what cannot be read is told by the chapter, better.
    with contextlib.suppress(OSError, ValueError, KeyError, ZeroDivisionError):
        part = split_texts(name)["target"]
        some = part[:COUNTED]
        return len(part), 1 + OF_WORD * sum(len(text.split()) for text in some) / len(some)
    return SOME, math.inf


def _stored(piece: Piece) -> dict[str, bool]:
    """Return what identifies each training of a piece, and whether it is stored as a whole."""
    if not piece.whole or piece.study["dataset"] not in DATASETS:
        return {}
    from symgen.fingerprints import code_fingerprint, fingerprint
    from symgen.method import trainings
    from symgen.storage import is_stored

    found = {}
    for study in trainings.seeded(trainings.Study.of(piece.study), piece.trainings):
        without = trainings.never_run(study)
        code = code_fingerprint(trainings.measure, trainings.Study, without=without)
        key = {**study.key, "code": code}
        asked = [key, *({**key, "also": name} for name in piece.also)]
        found[fingerprint(key)] = all(is_stored("trainings", each) for each in asked)
    return found


def _parameters(ran: Any) -> dict[str, Any]:
    """Return all parameters of a stored execution."""
    return defaults(ran) | ran.metadata.get("symgen", {}).get("parameters", {})


def _scaled(chapter: str, ran: Any, parameters: Mapping[str, Any]) -> Bill:
    """Return the bill of a chapter from what a stored execution of it has taken."""
    about, before = ran.metadata.get("symgen"), _parameters(ran)
    if not about or "seconds" not in about:
        return Bill(chapter, *NOTHING, "not known: it has no stored execution")
    named = [k for k in ("network", "model", "dataset") if parameters.get(k) != before.get(k)]
    if named:
        return Bill(chapter, *NOTHING, f"not known: another {' and '.join(named)}")
    factors = growth(before, parameters)
    # Not all of it grows with each of them.
    told = "".join(f" x {v:.3g} ({k})" for k, v in factors.items())
    basis = f"stored {about['seconds']:.0f} s{told}, at most" if told else "its stored execution"
    host = about.get("memory", {}).get("host", 0) * 2**20
    return Bill(chapter, about["seconds"] * math.prod(factors.values()), 0.0, host, 0.0, basis)


def before_run(
    book: Path, wanted: Sequence[tuple[str, Mapping[str, Any], bool]], dry_run: bool = False
) -> list[Bill]:
    """Return the bills that are due before a run: of a short one none, unless they are asked for.

    Args:
        book, wanted: as in `bills`.
        dry_run: whether they are all that is asked for.
    """
    return [] if not dry_run and is_short(book, wanted) else bills(book, wanted)


def total(rows: Iterable[Bill]) -> float:
    """Return the seconds of all chapters of which they are known."""
    return sum(row.seconds or 0.0 for row in rows)


def agreed(rows: Iterable[Bill], dry_run: bool, yes: bool, workers: int = 1) -> bool:
    """Show what a long run will take, and return whether it is to start.

    Args:
        rows: of `before_run`.
        dry_run: show it, however short it is, and do not start.
        yes: do not ask, as where there is no terminal to ask on.
        workers: how many run side by side.
    """
    rows = list(rows)
    if dry_run or total(rows) > LONG:
        click.echo(table(rows, workers))
        if not (dry_run or yes) and on_terminal():
            click.confirm("Start it?", abort=True)
    return not dry_run


def on_terminal() -> bool:
    """Return whether there is someone to ask."""
    return sys.stdin.isatty()


def table(rows: Iterable[Bill], workers: int = 1) -> str:
    """Return bills as lines of a terminal, with the sum of hours and disk and the most memory.

    The latter is that of the largest runs that may meet side by side; these share the cores, so
    that the hours are at most the sum.
    """
    rows = list(rows)
    names = [row.chapter for row in rows]
    disk, *memory = ([row[k] or 0.0 for row in rows] for k in (2, 3, 4))
    met = (sum(sorted(x)[-workers:]) for x in memory)
    missing = sum(row.seconds is None for row in rows)
    told = [f"{missing} not known"] * (missing > 0) + [f"{workers} side by side"] * (workers > 1)
    most = Bill("all", total(rows), sum(disk), *met, ", ".join(told))
    width = max(map(len, [*names, "chapter"]))
    lines = [f"{'chapter':<{width}}     hours  disk GiB  host GiB  device GiB  basis"]
    for row in (*rows, most)[: None if len(rows) > 1 else 1]:
        hours = _number(row.seconds and row.seconds / 3600, ".2f") if row.seconds != 0 else "0"
        sizes = [_number(x and x / GIB, ".1f") for x in row[2:5]]
        numbers = "".join(
            f"{x:>{w}}" for x, w in zip([hours, *sizes], (10, 10, 10, 12), strict=True)
        )
        lines.append(f"{row.chapter:<{width}}{numbers}  {row.basis}".rstrip())
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)
