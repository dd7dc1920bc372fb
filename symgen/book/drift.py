"""Compare tables of a fresh run with the stored ones: ``python -m symgen.book.drift DIR``."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from symgen.book import editions, notebooks

#: Relative difference between processors that is usual after a short training.
TOLERANCE = 0.1


def moved(stored: pd.DataFrame, fresh: pd.DataFrame) -> str:
    """Return how two tables differ, or an empty text."""
    if list(stored) != list(fresh) or len(stored) != len(fresh):
        return "has other rows or columns"
    columns = []
    for name in stored.select_dtypes("number"):
        scale = max(stored[name].abs().max(), 1e-9)
        equal = np.isclose(stored[name] / scale, fresh[name] / scale, 0, TOLERANCE, equal_nan=True)
        columns += [name] if not equal.all() else []
    return f"has moved: {', '.join(columns)}" if columns else ""


def main(folder: Path) -> int:
    """Print every table that differs, and return how many there are."""
    tables = editions.edition_folder(notebooks.book_folder(), "quick") / "tables"
    count = 0
    for path in sorted(tables.glob("*.csv")):
        fresh = folder / "tables" / path.name
        text = moved(pd.read_csv(path), pd.read_csv(fresh)) if fresh.exists() else "is missing"
        count += bool(text)
        print(*[f"{path.stem} {text}"] * bool(text), sep="\n", end="\n" * bool(text))
    return count


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
