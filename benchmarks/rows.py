"""A row of the table, how it is timed, and where it is kept between runs."""

import dataclasses
import json
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from symgen import extract, moebius
from symgen.files import atomic
from symgen.fingerprints import code_fingerprint, fingerprint
from symgen.method.penalty import Penalty

FOLDER = Path("_build/bench")


@dataclasses.dataclass
class Row:
    """One comparison.

    Attributes:
        what: what is measured.
        against: what it is compared with, on the same inputs, in the same run.
        ours, theirs: the two numbers, in `unit`.
        unit: of both, such as "s a sample".
        ratio: what must be at least `must`, or at most `limit`.
        must: lower limit of the ratio.
        limit: upper limit of the ratio.
        note: what a reader has to know to understand the number.
        data: further numbers, for figures.
    """

    what: str
    against: str
    ours: float
    theirs: float | None
    unit: str
    ratio: float | None = None
    must: float | None = None
    limit: float | None = None
    note: str = ""
    data: dict = dataclasses.field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the ratio keeps its limit; None where there is none."""
        if self.must is None and self.limit is None:
            return None
        low = self.must is None or self.ratio >= self.must
        return low and (self.limit is None or self.ratio <= self.limit)

    def record(self) -> dict:
        return dataclasses.asdict(self) | {"met": self.met}


def store_rows(path: Path, table: pd.DataFrame, place: str) -> None:
    """Write rows of a place to a CSV file; what was stored of other places stays."""
    table = table.assign(place=place)
    if path.exists():
        stored = pd.read_csv(path)
        table = pd.concat([stored[stored["place"] != place], table])
    table.to_csv(path, index=False)


def seconds(function: Callable, repeats: int = 1) -> tuple[float, float, object]:
    """Return the least wall time, its processor time, and what the function returned."""
    found = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        result = function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what was asked of a GPU is done, too
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return *min(found), result


def ratio_of(first: Callable, second: Callable, repeats: int) -> tuple[float, float]:
    """Return the medians of two wall times, taken in turn so that both see the same machine."""
    times = [[], []]
    for _ in range(repeats):
        for kept, function in zip(times, (first, second), strict=True):
            kept.append(seconds(function)[0])
    return tuple(float(torch.tensor(kept).median()) for kept in times)


def kept(name: str, preset: str, force: bool, measure: Callable[[], list[Row]]) -> list[dict]:
    """Return the rows of a group, measured now or taken from an earlier run on this machine."""
    path = FOLDER / preset / f"{name}.json"
    about = {"machine": machine(), "code": code()}
    if path.exists() and not force:
        found = json.loads(path.read_text())
        if all(found.get(key) == value for key, value in about.items()):
            return found["rows"]
    began = time.perf_counter()
    rows = [row.record() for row in measure()]
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    write(path, {**about, "rows": rows})
    return rows


def code() -> str:
    """Return the fingerprint of what is measured and of what measures it."""
    sources = {p.name: p.read_text() for p in sorted(Path(__file__).parent.glob("*.py"))}
    return fingerprint([code_fingerprint(extract, moebius, Penalty), sources])


def write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        Path(temporary).write_text(json.dumps(content, indent=1) + "\n")


def machine() -> dict:
    """Return what the numbers depend on."""
    name = platform.processor()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        found = re.search(r"model name\s*: (.*)", listing.read_text())
        name = found.group(1) if found else name
    return {
        "processor": name or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def machine_name() -> str:
    """Return a file name for this machine's results."""
    about = machine()
    text = f"{about['gpu'] or about['processor']} {about['threads']} threads"
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def table(rows: list[dict]) -> str:
    """Return the rows as text with aligned columns."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    def limit(row: dict) -> str:
        if row["must"] is not None:
            return f">= {row['must']:g}"
        return "" if row["limit"] is None else f"<= {row['limit']:g}"

    head = ["what", "against", "ours", "theirs", "unit", "ratio", "must", "met"]
    lines = [head]
    for row in rows:
        met = {None: "", True: "yes", False: "NO"}[row["met"]]
        numbers = [number(row["ours"]), number(row["theirs"]), row["unit"], number(row["ratio"])]
        lines.append([row["what"], row["against"], *numbers, limit(row), met])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * len(text[0]))
    return "\n".join(text)
