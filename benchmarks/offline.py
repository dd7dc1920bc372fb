"""Pack everything that a machine without internet needs for a preset: ``make offline``.

The folder holds the committed tree, wheels for Python 3.12 on Linux, the first rows of the data
sets, and `run.sh`. The other machine needs the packages of `PRESENT` and their dependencies.
"""

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import datasets
from packaging.requirements import Requirement

from symgen.data.sources import local_folder, open_splits, unavailable

# Rows from the start of each split, enough for preset gpu; None takes all.
ROWS = {
    "uoft-cs/cifar10": {"train": 10_000, "test": 1_000},
    "stanfordnlp/sst2": {"train": None},
    "roneneldan/TinyStories": {"train": None},
    "karpathy/tiny_shakespeare": {"train": None},
}
MODELS = ("karpathy/tinyllamas/stories260K",)
# What a machine for deep learning usually has.
PRESENT = ("torch", "torchvision", "transformers", "accelerate", "peft", "scikit-learn", "seaborn",
           "pyarrow")  # fmt: skip
ADDED = ("papermill", "ipykernel", "ipywidgets", "matplotlib-inline")
PLATFORMS = [f"manylinux_2_{k}_x86_64" for k in (17, 24, 26, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]
# 03 first: 02 and 04 read its trainings.
ORDER = "03_three_phase_dynamics 02_order_generalization 04_loss_gap_removal "
ORDER += "01_interaction_extraction 05_llm_interactions 06_fine_tuning C_extractor D_penalty "
ORDER += "A_sparsity B_measure 00_planted_logic"

SCRIPT = """#!/bin/sh
# usage: sh run.sh MINUTES [FOLDER]   Results are packed every half minute, into FOLDER or here.
here=$(cd "$(dirname "$0")" && pwd)
out=${2:-$here}
pip="python3 -m pip install -q --no-index --no-deps --no-compile --upgrade"
$pip --target "$here/site" "$here"/wheels/*.whl || exit
export PYTHONPATH="$here/site:$here/tree" JUPYTER_PATH="$here/site/share/jupyter"
export SYMGEN_DATA="$here/data" SYMGEN_CACHE="$here/cache" HF_HUB_OFFLINE=1
cd "$here/tree" && mkdir -p data/editions _build/runs && touch "$here/started"
pack() {
    find data/editions data/trainings _build/runs -type f -newer "$here/started" > "$here/new"
    tar czf "$out/part.tar.gz" -T "$here/new" && mv "$out/part.tar.gz" "$out/results.tar.gz"
}
(while sleep 30; do pack; done) &
packing=$!
python3 -m symgen run CHAPTERS --preset PRESET --store --minutes "$1" > "$out/log.txt" 2>&1
status=$?
kill $packing
pack
tail -n 40 "$out/log.txt"
exit $status
"""


def closure(names: Iterable[str]) -> set[str]:
    """Return these installed packages and all that they need, by normalized name."""
    found: set[str] = set()
    rest = [*names]
    while rest:
        name = re.sub("[-_.]+", "-", rest.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                rest.append(needed.name)
    return found


def write_rows(name: str, counts: Mapping[str, int | None], folder: Path) -> None:
    """Write the first rows of each split as parquet; without a count, the whole split."""
    folder.mkdir(parents=True)
    for split, table in open_splits(name).items():
        count = min(counts.get(split) or len(table), len(table))
        table.select(range(count)).to_parquet(folder / f"{split}.parquet")


def pack(folder: Path, preset: str) -> None:
    """Fill the folder; what it held before is deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tree").mkdir(parents=True)
    archive = ["git", "archive", "HEAD", "--", ".", ":!data/editions", ":!tests"]
    tree = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", folder / "tree"], input=tree, check=True)
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    own = [Requirement(text).name for text in project["dependencies"]]
    wheels = closure([*own, *ADDED]) - closure(PRESENT)
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in sorted(wheels)]
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
    options += [f"--platform={name}" for name in PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "-qq", "-d", folder / "wheels"]
    subprocess.run([*command, *options, *pinned], check=True)
    datasets.disable_progress_bars()
    for name, counts in ROWS.items():
        write_rows(name, counts, folder / "data" / name)
    for name in MODELS:
        source = local_folder(name)
        if source is None:
            raise unavailable(name, "config.json", "it is not in the format of save_pretrained")
        shutil.copytree(source, folder / "data" / name)
    script = SCRIPT.replace("CHAPTERS", ORDER).replace("PRESET", preset)
    (folder / "run.sh").write_text(script)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB. Copy it to the other machine; there: sh run.sh 8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", default="gpu")
    given = parser.parse_args()
    pack(given.folder, given.preset)
