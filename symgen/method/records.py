"""Measured trainings in `data/trainings`: one CSV file per study, and an index of all trainings."""

import datetime
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch

from symgen.storage import VERSION, atomic, cache_folder, fingerprint

COLUMNS = ["seed", "step", "quantity", "order", "sign", "value"]
INDEX = ["study", "seed", "settings", "version", "commit", "device", "torch", "seconds", "date"]
#: Trainings that this process has read: study and seed to seconds and device. Trainings that it has
#: measured itself have 0 seconds.
READ: dict[tuple[str, int], tuple[float, str]] = {}


def trainings_folder() -> Path:
    """Return the folder of measured trainings: `SYMGEN_TRAININGS`, or the book's data/trainings."""
    book = Path(__file__).resolve().parents[2] / "data" / "trainings"
    return Path(os.environ.get("SYMGEN_TRAININGS") or book).expanduser()


def study_id(settings: Mapping[str, Any], kind: str = "measure") -> str:
    """Return the file name of a study without its ending: readable, and unique by its settings."""
    network = settings["network"].split("/")[-1].split(":")[-1]
    parts = [settings["dataset"].split("/")[-1], network, settings["train_size"] or "all"]
    parts = [kind, *parts] if kind != "measure" else parts
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, parts)).lower()).strip("-")
    return f"{slug}-{fingerprint(settings)[:8]}"


def is_public(settings: Mapping[str, Any]) -> bool:
    """Return whether a training may be stored: False for a reader's own data or network.

    These may change under the same name.
    """
    return not Path(settings["dataset"]).exists() and ":" not in settings["network"]


def _table(name: str, columns: list[str]) -> pd.DataFrame:
    path = trainings_folder() / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=columns)
    return pd.read_csv(path, dtype={"sign": object})


def read_index() -> pd.DataFrame:
    """Return one row per measured training; see `INDEX` for the columns."""
    return _table("index", INDEX)


def read_measured(
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    kind: str = "measure",
    select: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda rows: rows,
) -> list[pd.DataFrame | None]:
    """Return the stored rows of some trainings of a study, None for each that is not stored.

    Args:
        settings: settings of the study, `Study.settings`.
        seeds: seeds of the trainings.
        kind: kind of result; its number in `VERSION` must match.
        select: returns the rows that are asked for, or None if some are missing.
    """
    name, index = study_id(settings, kind), read_index()
    index = index[(index["study"] == name) & (index["version"] == VERSION[kind])].set_index("seed")
    table, found = _table(name, COLUMNS), []
    for seed in seeds:
        known = seed in index.index and is_public(settings)
        rows = select(table[table["seed"] == seed].reset_index(drop=True)) if known else None
        if rows is not None:
            about = index.loc[seed]
            READ.setdefault((name, seed), (float(about["seconds"]), about["device"]))
        found.append(rows)
    return found


def append_measured(
    settings: Mapping[str, Any], table: pd.DataFrame, seconds: float, kind: str = "measure"
) -> None:
    """Store one measured training while `symgen run --store` runs; else do nothing.

    The command puts the commit of symgen into the variable SYMGEN_RECORD. A training with the same
    seed is replaced. Trainings on data or networks of a reader are never stored.

    Args:
        settings: settings of the study, `Study.settings`.
        table: rows of the training, with a column seed.
        seconds: duration of the training; NaN if unknown.
        kind: kind of result.
    """
    commit = os.environ.get("SYMGEN_RECORD")
    if not commit or not is_public(settings):
        return
    name, seed = study_id(settings, kind), int(table["seed"].iloc[0])
    row = {
        "study": name,
        "seed": seed,
        "settings": json.dumps(settings, sort_keys=True, separators=(",", ":")),
        "version": VERSION[kind],
        "commit": commit,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "date": datetime.date.today().isoformat(),
    }
    READ[name, seed] = 0.0, row["device"]
    cache_folder().mkdir(parents=True, exist_ok=True)
    # Chapters and trainings run side by side.
    with filelock.FileLock(cache_folder() / "trainings.lock"):
        index, old = read_index(), _table(name, [*table])
        index = index[(index["study"] != name) | (index["seed"] != seed)]
        files = {"index": [index, pd.DataFrame([row])], name: [old[old["seed"] != seed], table]}
        for stem, frames in files.items():
            whole = pd.concat([frame for frame in frames if len(frame)])
            with atomic(trainings_folder() / f"{stem}.csv") as temporary:
                whole.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
