"""What was measured and what the paper reports: the tables under ``data/``, and those of a run."""

import json
from pathlib import Path

import pandas as pd

from symgen.fingerprints import PACKAGE

DATA = PACKAGE.parent / "data"


def read_results(table: str, folder: Path | None = None, preset: str = "quick") -> pd.DataFrame:
    """Return a result table of all chapters: of a run, and of the stored editions.

    Args:
        table: name of the table, such as ``"claims"``.
        folder: of a run, which stands for its preset; None reads stored editions alone.
        preset: of that run.

    Returns:
        Columns preset, chapter, and those of the table. Chapters whose last run in the folder
        failed are left out of it, since what lies there is of an earlier one; ``attrs["failed"]``
        names them.
    """
    failed = sorted(p.name.split(".")[0] for p in folder.glob("*.failed.ipynb")) if folder else []
    folders = {path.parent.name: path for path in (DATA / "editions").glob("*/tables")}
    if folder is not None:
        folders[preset] = folder / "tables"
    parts = []
    for name, path in sorted(folders.items(), key=lambda item: (item[0] != "quick", item[0])):
        for file in sorted(path.glob(f"*.{table}.csv")):
            about = {"preset": name, "chapter": file.name.split(".")[0]}
            if folder is not None and name == preset and about["chapter"] in failed:
                continue
            parts.append(pd.read_csv(file).assign(**about))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    own = whole.columns.difference(["preset", "chapter"], sort=False)
    whole = whole.reindex(columns=["preset", "chapter", *own])
    whole.attrs["failed"] = failed
    return whole


def reported(table: str = "claims") -> pd.DataFrame:
    """Return what the paper says, one row a statement or a number, each with its place.

    Args:
        table: "claims", what it finds in words; or "reported", the numbers it gives.

    Raises:
        FileNotFoundError: for another name, or outside a clone of the project.
    """
    return pd.read_csv(_file("paper", f"{table}.csv"))


def benchmarks() -> dict[str, dict]:
    """Return the stored results of `make bench`, by machine: processor or GPU, and rows."""
    return {p.stem: json.loads(p.read_text()) for p in sorted((DATA / "benchmarks").glob("*.json"))}


def _file(folder: str, name: str) -> Path:
    path = DATA / folder / name
    if not path.is_file():
        known = ", ".join(p.name for p in sorted((DATA / folder).glob("*"))) or "nothing"
        raise FileNotFoundError(
            f"no {name} in data/{folder}, which holds {known}; the tables come with a clone of "
            "the project, not with the package alone"
        )
    return path
