"""Measured trainings: one CSV file per study, and an index of all trainings.

`Trainings.table` is the one way from a study to its numbers: it reads the rows that are stored,
measures the missing trainings, and appends them.
"""

import dataclasses
import datetime
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import filelock
import joblib
import pandas as pd
import torch

from symgen.device import end_with, progress_bar
from symgen.storage import VERSION, DamagedFileWarning, atomic, cache_folder, fingerprint

INDEX = [
    "study",
    "seed",
    "settings",
    "version",
    "commit",
    "device",
    "torch",
    "seconds",
    "date",
    "rows",
    "checksum",
]
#: Measured trainings of the book, if it is there.
BOOK = Path(__file__).resolve().parents[2] / "data" / "trainings"


class OutOfTime(RuntimeError):
    """The time for measurements is over; finished trainings are kept."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a training that are measured together.

    Attributes:
        compute: returns the rows of a study; a function at the top level of a module.
        select: returns which rows of a table belong to the part.
    """

    compute: Callable[[Any], pd.DataFrame]
    select: Callable[[pd.DataFrame], pd.Series]


class Trainings:
    """The measured trainings of a folder, which are read, and the place where new ones are kept.

    Args:
        folder: folder with ``index.csv`` and one CSV file per study; by default that of the book.
        commit: commit of the code. If it is given, new trainings are kept in `folder`; else in the
            cache, where they are found again.
        until: seconds since 1970, after which no further training is measured.

    Attributes:
        used: seconds and device of the stored trainings that were read, by study and seed.
    """

    def __init__(
        self, folder: str | os.PathLike | None = None, commit: str = "", until: float = math.inf
    ):
        self.folder = Path(folder or BOOK)
        self.commit = commit
        self.until = until
        self.used: dict[tuple[str, int], tuple[float, str]] = {}

    @property
    def target(self) -> Path:
        """The folder in which new trainings are kept."""
        return self.folder if self.commit else cache_folder() / "trainings"

    def table(
        self,
        kind: str,
        studies: Sequence,
        parts: Sequence[Part],
        workers: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Return the rows of some trainings: those that are stored are read, others measured.

        Args:
            kind: kind of result, an entry of `storage.VERSION`.
            studies: one study with several seeds.
            parts: what is measured of each.
            workers: see `side_by_side`.
            options: further settings that decide the results.

        Raises:
            OutOfTime: between two trainings, after `until`.
        """
        settings = {**studies[0].identity, **(options or {})}
        name = study_id(settings, kind)
        stored = self._read(name, kind)
        tables = []
        cases = []
        for study in studies:
            rows = stored[stored["seed"] == study.seed]
            missing = []
            for part in parts:
                known = rows[part.select(rows)]
                if len(known):
                    tables.append(known)
                else:
                    missing.append(part.compute)
            if missing:
                cases.append((study, missing))
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        results = side_by_side(cases, workers, self.until)
        for (study, _), (rows, seconds) in zip(cases, results, strict=True):
            if study.is_stored:
                about = {"study": name, "seed": study.seed, "settings": text}
                self._append({**about, "version": VERSION[kind]}, rows, seconds)
            tables.append(rows)
        return pd.concat(tables, ignore_index=True)

    def _read(self, name: str, kind: str) -> pd.DataFrame:
        """Return the trainings of a study from the book and from the cache."""
        tables = []
        for folder in dict.fromkeys([self.folder, cache_folder() / "trainings"]):
            for about, rows in _whole(folder, name, VERSION[kind]):
                tables.append(rows)
                self.used.setdefault((name, about.seed), (float(about.seconds), about.device))
        if not tables:
            return pd.DataFrame(columns=["seed", "arm", "setting", "quantity"])
        return _unique(pd.concat(tables))

    def _append(self, about: dict[str, Any], rows: pd.DataFrame, seconds: float) -> None:
        """Keep a measured training, next to other parts of it that are stored."""
        name, seed = about["study"], about["seed"]
        folder = self.target
        cache_folder().mkdir(parents=True, exist_ok=True)
        # Chapters and trainings run side by side.
        lock = filelock.FileLock(cache_folder() / "trainings.lock")
        with lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedFileWarning)
            others = []
            for old, known in _whole(folder, name, about["version"]):
                if old.seed == seed:
                    rows = _unique(pd.concat([rows, known]))
                    seconds += old.seconds
                else:
                    others.append(known)
            about = {
                **about,
                "commit": self.commit,
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                "torch": torch.__version__,
                "seconds": round(seconds, 1),
                "date": datetime.date.today().isoformat(),
                "rows": len(rows),
                "checksum": checksum(rows),
            }
            index = read_index(folder)
            same = (index["study"] == name) & (index["seed"] == seed)
            _write_csv(folder / f"{name}.csv", [*others, rows])
            _write_csv(folder / "index.csv", [index[~same], pd.DataFrame([about])])
        self.used[name, seed] = (0.0, about["device"])


def _whole(folder: Path, name: str, version: int) -> list[tuple[Any, pd.DataFrame]]:
    """Return index row and rows of each training of a study that is as it was written."""
    index = read_index(folder)
    table = _read_csv(folder / f"{name}.csv")
    found = []
    for about in index[(index["study"] == name) & (index["version"] == version)].itertuples():
        rows = table[table["seed"] == about.seed] if "seed" in table else table
        if len(rows) == about.rows and checksum(rows) == about.checksum:
            found.append((about, rows))
            continue
        warnings.warn(
            f"{name}.csv differs from its index in the training with seed {about.seed} "
            f"({len(rows)} of {about.rows} rows); it is measured again",
            DamagedFileWarning,
            stacklevel=5,
        )
    return found


def _unique(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, the first one of each quantity."""
    return rows.drop_duplicates([name for name in rows if name != "value"])


def study_id(settings: Mapping[str, Any], kind: str = "measure") -> str:
    """Return the file name of a study without its ending: readable, and unique by its settings."""
    network = settings.get("network", settings.get("model", "")).split("/")[-1].split(":")[-1]
    parts = [settings["dataset"].split("/")[-1], network, settings["train_size"] or "all"]
    parts = [kind, *parts] if kind != "measure" else parts
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, parts)).lower()).strip("-")
    return f"{slug}-{fingerprint(settings)[:8]}"


def read_index(folder: Path = BOOK) -> pd.DataFrame:
    """Return one row per measured training; see `INDEX` for the columns."""
    index = _read_csv(folder / "index.csv")
    return index if len(index) else pd.DataFrame(columns=INDEX)


def checksum(rows: pd.DataFrame) -> str:
    """Return 8 hexadecimal digits that identify the rows of a training."""
    return fingerprint(_as_text(rows))[:8]


def _as_text(rows: pd.DataFrame) -> str:
    return rows.to_csv(index=False, float_format="%.7g", lineterminator="\n")


def _read_csv(path: Path) -> pd.DataFrame:
    """Return a table; an empty one if there is no file, or it is damaged."""
    if not path.exists():
        return pd.DataFrame()
    try:
        return pd.read_csv(path, dtype={"sign": object, "checksum": str})
    except (ValueError, OSError) as error:
        message = f"{path.name} is damaged ({error}); its trainings are measured again"
        warnings.warn(message, DamagedFileWarning, stacklevel=5)
        return pd.DataFrame()


def _write_csv(path: Path, tables: Sequence[pd.DataFrame]) -> None:
    with atomic(path) as temporary:
        temporary.write_text(_as_text(pd.concat([one for one in tables if len(one)])))


def side_by_side(
    cases: Sequence[tuple], workers: int | None, until: float
) -> Iterator[tuple[pd.DataFrame, float]]:
    """Yield the rows of several trainings, measured in several processes, and their seconds.

    Args:
        cases: each a study and the functions that return its rows.
        workers: processes of joblib, or jobs on the cluster of a surrounding
            `joblib.parallel_config`; by default as many as there are cores for torch's number of
            threads, and 1 on a GPU.
        until: seconds since 1970.

    Raises:
        OutOfTime: between two results, after `until`.
    """
    threads = torch.get_num_threads()
    if workers is None:
        workers = 1 if torch.cuda.is_available() else max(1, joblib.cpu_count() // threads)
    run = joblib.Parallel(n_jobs=max(1, min(workers, len(cases))), return_as="generator")
    # The bar below counts cases; those of other processes would end up in red between the lines.
    with mock.patch.dict(os.environ, TQDM_DISABLE="1"):
        results = run(joblib.delayed(_measured)(os.getpid(), threads, *case) for case in cases)
    count = len(cases)
    bar = progress_bar(results, desc="trainings", total=count, disable=count < 2, leave=False)
    for done, result in enumerate(bar, 1):
        yield result
        if done < count and time.time() > until:
            raise OutOfTime(f"{done} of {count} trainings measured; run again")


def _measured(
    parent: int, threads: int, study: Any, functions: Sequence[Callable]
) -> tuple[pd.DataFrame, float]:
    end_with(parent)
    torch.set_num_threads(threads)
    started = time.perf_counter()
    rows = pd.concat([function(study) for function in functions], ignore_index=True)
    return rows, time.perf_counter() - started
