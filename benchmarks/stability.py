"""Many short trainings, to see that none diverges or collapses: `python -m benchmarks.stability`.

Networks x seeds x threads x wrong labels, each with the registry's learning rate. Prints one line a
setting, and writes one row a training to a CSV file where one is named.
"""

import argparse
import itertools
import math
import os
import time
import warnings

import pandas as pd
import torch

from symgen.data.datasets import load_dataset
from symgen.models import loop
from symgen.models.training import NearChanceWarning, train

# Network, data set, training samples, epochs, seeds, augmented: the most trainings of the network
# that the chapters train most. VGG and large residual networks need photographs.
SETTINGS = [
    ("cnn", "digits", 300, 60, 20, (False, True)),
    ("resnet20", "digits", 300, 8, 4, (False,)),
    ("bert-tiny", "planted-sentiment", 600, 8, 5, (False,)),
]
PHOTOGRAPHS = [
    ("cnn", "uoft-cs/cifar10", 500, 20, 5, (False,)),
    ("resnet20", "uoft-cs/cifar10", 500, 6, 3, (False,)),
    ("resnet18", "uoft-cs/cifar10", 300, 4, 2, (False,)),
    ("vgg11", "uoft-cs/cifar10", 500, 8, 3, (False,)),
    ("bert-mini", "stanfordnlp/sst2", 600, 4, 3, (False,)),
]
WRONG_LABELS = (0.0, 0.2)


def trainings(settings: list[tuple], threads: list[int], clip: bool = True) -> pd.DataFrame:
    """Return one row a training: its setting, how it ended, and its largest loss on the way."""
    if not clip:
        loop.CLIP.update(sgd=math.inf, adamw=math.inf)
    rows = []
    for network, name, size, epochs, seeds, augmented in settings:
        grid = itertools.product(augmented, WRONG_LABELS, threads, range(seeds))
        for augment, noise, count, seed in grid:
            torch.set_num_threads(count)
            data = load_dataset(name, train_size=size, label_noise=noise, test_size=300, seed=seed)
            rows.append(
                {"network": network, "data": name, "wrong labels": noise, "augment": augment,
                 "threads": count, "seed": seed}
                | _train(network, data, epochs=epochs, seed=seed, augment=augment)
            )  # fmt: skip
            print(" ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    return pd.DataFrame(rows)


def _train(network: str, data, **options) -> dict:
    losses: list[float] = []
    step = loop.Loop.step

    def watched(self, *arguments):
        losses.append(step(self, *arguments))
        return losses[-1]

    loop.Loop.step = watched
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NearChanceWarning)
            run = train(network, data, cache=False, progress=False, checkpoints=1, **options)
        last = run.records.iloc[-1]
        collapsed = any(issubclass(w.category, NearChanceWarning) for w in caught)
        end = {"end": "collapsed" if collapsed else "learned"} | {
            k: round(float(last[k]), 4) for k in ("train_accuracy", "test_accuracy", "train_loss")
        }
    except FloatingPointError:
        end = {"end": "diverged"}
    finally:
        loop.Loop.step = step
    # The estimate that precedes a training takes a few steps as well; they do no harm here.
    largest = round(float(torch.stack(losses).nan_to_num(math.inf).max()), 2)
    return end | {"largest_loss": largest, "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    """Train, print, and end with an error where a training diverged or collapsed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-clip", action="store_true", help="for comparison: gradients as is")
    parser.add_argument("--out", help="CSV file, one row a training")
    parser.add_argument("--networks", nargs="+", help="only these")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    settings = SETTINGS + (PHOTOGRAPHS if os.environ.get("SYMGEN_DATA") else [])
    settings = [s for s in settings if s[0] in (options.networks or [s[0]])]
    table = trainings(settings, options.threads, clip=not options.no_clip)
    if options.out:
        table.to_csv(options.out, index=False)
    keys = ["network", "data", "wrong labels", "augment", "threads"]
    print(
        table.groupby(keys)
        .agg(
            trainings=("end", "size"),
            diverged=("end", lambda e: (e == "diverged").sum()),
            collapsed=("end", lambda e: (e == "collapsed").sum()),
            train_accuracy=("train_accuracy", "mean"),
            test_accuracy=("test_accuracy", "mean"),
            largest_loss=("largest_loss", "max"),
        )
        .to_string()
    )
    bad = (table["end"] != "learned").sum()
    raise SystemExit(f"{bad} of {len(table)} diverged or collapsed" if bad else 0)


if __name__ == "__main__":
    main()
