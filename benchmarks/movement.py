"""Which numbers of the book move from one machine to another: `python -m benchmarks.movement A B`.

A and B are folders of `symgen run all --out FOLDER`, from two machines, or from this one with
OMP_NUM_THREADS=1 and 2, each with an empty SYMGEN_CACHE: threads add up in another order, as other
processors do, so that trained networks drift apart. Prints one row a chapter; --store keeps it.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.rows import store_rows

# Times are no results.
TIMES = ("second", "minute", "time", "MiB", "GiB")
#: Relative difference up to which two numbers are one: what a sum in another order can do.
ROUNDING = 1e-6


def compare(one: Path, other: Path) -> pd.DataFrame:
    """Return one row a chapter: how many of its numbers moved, and how far its claims did.

    Of the chapters that both have run to the end.

    Columns: chapter; numbers, of all result tables; moved, the share of them that differ by more
    than rounding; claims; verdicts changed; shift, the largest change of a claim's value in units
    of half the width of its 95 % interval.
    """
    names = [{p.name for p in (run / "tables").glob("*.csv")} for run in (one, other)]
    lacking = {name.split(".")[0] for name in names[0] ^ names[1]}
    chapters = sorted({name.split(".")[0] for name in names[0]} - lacking)
    return pd.DataFrame([_chapter(name, one / "tables", other / "tables") for name in chapters])


def _chapter(name: str, one: Path, other: Path) -> dict:
    numbers = moved = 0
    for path in sorted(one.glob(f"{name}.*.csv")):
        a, b = pd.read_csv(path), pd.read_csv(other / path.name)
        kept = [c for c in a.select_dtypes("number") if not any(t in c for t in TIMES)]
        numbers += a[kept].size
        if a.shape != b.shape:
            # Rows are found by the results themselves, such as the strongest interactions.
            moved += a[kept].size
            continue
        x, y = a[kept].to_numpy(float), b[kept].to_numpy(float)
        moved += int((~np.isclose(x, y, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)).sum())
    row = {"chapter": name, "numbers": numbers, "moved": moved / max(1, numbers)}
    path = one / f"{name}.claims.csv"
    if not path.is_file():
        return {**row, "claims": 0, "verdicts changed": 0, "shift": np.nan}
    # One row a contrast; which orders or boundaries it falls back on may differ.
    keys = ["claim", "setting", "measure", "bound"]
    both = pd.read_csv(path).merge(
        pd.read_csv(other / path.name), on=keys, suffixes=("", "_other"), validate="one_to_one"
    )
    half = (both["high95"] - both["low95"]) / 2
    shift = (both["value"] - both["value_other"]).abs() / half.where(half > 0)
    judged = both.drop_duplicates(["claim", "setting"])
    changed = (judged["verdict"] != judged["verdict_other"]).sum()
    return {**row, "claims": len(judged), "verdicts changed": int(changed), "shift": shift.max()}


def main() -> None:
    """Compare two runs of the book, print the table, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--store", type=Path, help="CSV file, such as data/benchmarks/movement.csv")
    parser.add_argument("--place", default="threads", help="what differed, for the page of costs")
    options = parser.parse_args()
    table = compare(options.one, options.other)
    print(table.round(3).to_string(index=False))
    if options.store:
        store_rows(options.store, table.round(3), options.place)


if __name__ == "__main__":
    main()
