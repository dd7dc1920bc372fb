"""What the chapters of a preset would take on this machine: `python -m benchmarks.bill paper`.

Prints the bill; --store keeps it for the page of costs.
"""

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.rows import machine, store_rows
from symgen.book import presets
from symgen.book.bills import GIB, bills


def bill(preset: str) -> pd.DataFrame:
    """Return one row a chapter of which the preset says something, and one of all of them.

    Columns: chapter; hours; disk and memory in GiB, of the GPU where there is one. Empty where not
    known. Trainings that chapters share are counted once, for the first of them.
    """
    book = presets.book_folder()
    names = [name for name, given in presets.read_preset(book, preset).items() if given]
    wanted = [(name, presets.resolve(book, name, preset, {}), True) for name in names]
    table = pd.DataFrame(bills(book, wanted)).fillna(float("nan"))
    table["seconds"] /= 3600
    table["host"] = table["device"].where(table["device"] > 0, table["host"])
    table[["disk", "host"]] /= GIB
    columns = {"seconds": "hours", "disk": "disk (GiB)", "host": "memory (GiB)"}
    table = table.rename(columns=columns)[["chapter", *columns.values()]]
    hours, disk, memory = columns.values()
    whole = {"chapter": "all", memory: table[memory].max(), **table[[hours, disk]].sum()}
    return pd.concat([table, pd.DataFrame([whole])], ignore_index=True)


def main() -> None:
    """Count what a preset would take, print it, and keep it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--store", type=Path, help="CSV file, such as data/benchmarks/bills.csv")
    options = parser.parse_args()
    table, about = bill(options.preset), machine()
    table = table.round({name: 2 if name == "hours" else 1 for name in table})
    where = about["gpu"] or f"{about['processor']}, {about['threads']} threads"
    print(where, table.to_string(index=False), sep="\n")
    if options.store:
        store_rows(options.store, table.assign(machine=where), options.preset)


if __name__ == "__main__":
    main()
