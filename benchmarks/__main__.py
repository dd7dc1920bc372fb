"""Run the benchmarks, print one table, write one JSON file."""

import argparse
import sys
import warnings
from pathlib import Path

from benchmarks import networks, solvers, transforms
from benchmarks.rows import FOLDER, kept, machine, machine_name, table, write

GROUPS = {
    "published": solvers.against_published,
    "profile": solvers.profile,
    "highs": solvers.against_highs,
    "growth": solvers.growth,
    "steps": solvers.steps,
    "sampled": solvers.sampled,
    "memory": solvers.memory,
    "device": solvers.device,
    "moebius": transforms.against_shapiq,
    "throughput": networks.throughput,
    "prefix_tree": networks.prefix_tree,
    "end_to_end": networks.end_to_end,
    "penalty": networks.penalty,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, about 3 minutes")
    parser.add_argument("--force", action="store_true", help="measure again what is kept")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--store", action="store_true", help="also write data/benchmarks/")
    options = parser.parse_args()
    preset = "quick" if options.quick else "full"
    rows = []
    for name in options.only:
        rows += kept(name, preset, options.force, lambda n=name: GROUPS[n](options.quick))
    print(table(rows))
    for row in rows:
        if row["note"]:
            print(f"- {row['what']}, against {row['against']}: {row['note']}")
    result = {"preset": preset, "machine": machine(), "rows": rows}
    write(FOLDER / f"{preset}.json", result)
    if options.store:
        write(Path("data/benchmarks") / f"{machine_name()}.json", result)
    return 0 if options.quick else int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    warnings.simplefilter("default")
    sys.exit(main())
