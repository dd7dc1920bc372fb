"""The benchmarks run, compare two sides in one run, and write nothing unless asked to."""

import subprocess
import sys

from conftest import ROOT


def test_a_group_of_the_benchmarks_prints_both_sides():
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-store", "--only", "growth"]
    before = sorted((ROOT / "data" / "benchmarks").iterdir())
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    header = next(line for line in done.stdout.splitlines() if "against" in line)
    assert {"what", "against", "ours", "theirs", "unit"} <= set(header.split())
    assert sorted((ROOT / "data" / "benchmarks").iterdir()) == before
