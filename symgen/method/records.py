"""Measured trainings in `data/trainings`: one CSV file per study, and an index of all trainings."""

import datetime
import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from symgen.storage import VERSION, atomic, fingerprint

COLUMNS = ["seed", "step", "quantity", "order", "sign", "value"]
INDEX = ["study", "seed", "settings", "version", "commit", "device", "torch", "seconds", "date"]


def trainings_folder() -> Path:
    """Return the folder of measured trainings: `SYMGEN_TRAININGS`, or the book's data/trainings."""
    book = Path(__file__).resolve().parents[2] / "data" / "trainings"
    return Path(os.environ.get("SYMGEN_TRAININGS") or book).expanduser()


def study_id(settings: Mapping[str, Any], prefix: str = "") -> str:
    """Return the file name of a study without its ending: readable, and unique by its settings."""
    network = settings["network"].split("/")[-1].split(":")[-1]
    parts = [settings["dataset"].split("/")[-1], network, settings["train_size"] or "all"]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, parts)).lower()).strip("-")
    return f"{prefix}{slug}-{fingerprint(settings)[:8]}"


def is_public(settings: Mapping[str, Any]) -> bool:
    """Return False for a reader's data or network, which may change under the same name."""
    return not Path(settings["dataset"]).exists() and ":" not in settings["network"]


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> pd.DataFrame:
    # Read again only if the file has changed: a study has many seeds, and each of them asks.
    return pd.read_csv(path, dtype={"sign": object})


def _table(name: str, columns: list[str]) -> pd.DataFrame:
    path = trainings_folder() / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=columns)
    return _read(path, path.stat().st_mtime_ns)


def read_index() -> pd.DataFrame:
    """Return one row per measured training; see `INDEX` for the columns."""
    return _table("index", INDEX)


def read_measured(
    settings: Mapping[str, Any], seed: int, kind: str = "measure", prefix: str = ""
) -> pd.DataFrame | None:
    """Return the stored rows of one training, or None.

    Args:
        settings: of the study, `Study.settings`.
        seed: of the training.
        kind: of the result; its number in `VERSION` must match.
        prefix: of the file name.
    """
    name, index = study_id(settings, prefix), read_index()
    same = (index["study"] == name) & (index["seed"] == seed) & (index["version"] == VERSION[kind])
    if not same.any() or not is_public(settings):
        return None
    table = _table(name, COLUMNS)
    return table[table["seed"] == seed].reset_index(drop=True)


def append_measured(
    settings: Mapping[str, Any],
    table: pd.DataFrame,
    seconds: float,
    commit: str = "",
    kind: str = "measure",
    prefix: str = "",
) -> None:
    """Store measured trainings of one study; trainings with the same seeds are replaced.

    Args:
        settings: of the study, `Study.settings`.
        table: of one or several trainings, with a column seed.
        seconds: that all of them took together.
        commit: of symgen, if known.
        kind, prefix: see `read_measured`.
    """
    if not is_public(settings):
        raise ValueError(
            f"the data {settings['dataset']} or the network {settings['network']} are local; "
            "expected public names: only trainings that others can repeat are stored"
        )
    name, seeds = study_id(settings, prefix), sorted(table["seed"].unique())
    on_gpu = torch.cuda.is_available()
    row = {
        "study": name,
        "settings": json.dumps(settings, sort_keys=True, separators=(",", ":")),
        "version": VERSION[kind],
        "commit": commit,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "seconds": round(seconds / len(seeds), 1),
        "date": datetime.date.today().isoformat(),
    }
    new = pd.DataFrame([{**row, "seed": seed} for seed in seeds])[INDEX]
    index = read_index()
    kept = index[(index["study"] != name) | ~index["seed"].isin(seeds)]
    old = _table(name, [])
    table = pd.concat([old[~old["seed"].isin(seeds)], table]) if len(old) else table
    table = table.sort_values("seed", kind="stable")
    if "order" in table:
        table = table.assign(order=table["order"].astype("Int64"))
    index = pd.concat([kept, new]) if len(kept) else new
    for stem, frame in ((name, table), ("index", index)):
        with atomic(trainings_folder() / f"{stem}.csv") as temporary:
            frame.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
