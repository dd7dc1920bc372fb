"""Run the benchmarks, print a table, and write data/benchmarks/MACHINE.json."""

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

import symgen
from benchmarks import networks, solvers
from symgen.storage import atomic

GROUPS: dict[str, Callable[[bool], list[dict]]] = {
    "exact": solvers.exact,
    "few": solvers.few,
    "growth": solvers.growth,
    "methods": solvers.methods,
    "sampled": solvers.sampled,
    "throughput": networks.throughput,
    "prompt": networks.prompt,
}
FOLDER = Path("data/benchmarks")


def machine() -> dict:
    """Return what the numbers depend on."""
    listing, processor = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
    if listing.exists():
        match = re.search(r"model name\s*: (.*)", listing.read_text())
        processor = match.group(1) if match else processor
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "symgen": symgen.__version__,
        "images": "CIFAR-10" if os.environ.get("SYMGEN_DATA") else "digits",
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, about 3 minutes")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--no-store", action="store_true", help="write no file")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        began = time.perf_counter()
        rows += [{"group": name, **row} for row in GROUPS[name](options.quick)]
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    with pd.option_context("display.max_colwidth", 60, "display.width", 200):
        print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))
    if not options.no_store:
        about = machine()
        name = f"{about['gpu'] or about['processor']} {about['threads']} threads".lower()
        path = FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}.json"
        # Groups that did not run keep their rows, and the machine that these come from.
        result = json.loads(path.read_text()) if path.exists() else {}
        for group in options.only:
            own = [row for row in rows if row["group"] == group]
            result[group] = {"machine": about, "quick": options.quick, "rows": own}
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
