"""Where data come from: sets made here, the folder `SYMGEN_DATA`, own folders, or the hub."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from symgen.data import planted
from symgen.data.splits import Rows
from symgen.names import nearest, unknown
from symgen.storage import cache_folder

# Names of the split for testing; the first one with labels is taken.
HELD_OUT = ("test", "validation", "valid", "val", "dev")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# In a folder that is not divided, every fifth picture of a class is for testing.
EVERY = 5


@dataclasses.dataclass(frozen=True)
class Source:
    """Facts about a data set that its columns do not show.

    Attributes:
        rows: for a set made here, the function from the name of a split to its `Rows`.
        size: images are resized to this many pixels per side; None keeps their size.
        box: column of bounding boxes (x, y, width, height) that images are cropped to.
        statistics: mean and standard deviation of each channel, for values in 0..1.
        flip: whether a mirrored image is still an example of its class.
        text: column that `load_texts` reads if there are several.
        revision: commit, tag or branch on the hub.
        home: where the authors publish a set that is not on the hub.
    """

    rows: Callable[[str], Rows] | None = None
    size: int | None = None
    box: str | None = None
    statistics: tuple = IMAGENET
    flip: bool = True
    text: str | None = None
    revision: str | None = None
    home: str | None = None


#: To add a data set, add an entry here. Sets that need no facts work without an entry.
SOURCES: dict[str, Source] = {
    "digits": Source(rows=planted.digits, statistics=((0.305,) * 3, (0.324,) * 3), flip=False),
    "planted-sentiment": Source(rows=planted.planted_sentences),
    "planted-facts": Source(rows=planted.planted_facts),
    "planted-facts-2": Source(rows=functools.partial(planted.planted_facts, domain=1)),
    "uoft-cs/cifar10": Source(statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "zh-plus/tiny-imagenet": Source(),
    "bentrevett/caltech-ucsd-birds-200-2011": Source(box="bbox", size=224),
    "stanfordnlp/sst2": Source(),
    "fancyzhx/ag_news": Source(),
    "rajpurkar/squad": Source(text="context"),
    "roneneldan/TinyStories": Source(),
    # On the hub this set is a script, which is never run; its converted copy is read.
    "karpathy/tiny_shakespeare": Source(revision="refs/convert/parquet"),
    "Unilaw-R1-Data": Source(home="https://github.com/Hanscal/Unilaw-R1"),
}


def local_folder(name: str) -> Path | None:
    """Return the folder of a data set or model, or None if there is none.

    Args:
        name: path of a folder, or id such as ``"uoft-cs/cifar10"``, which is looked for under
            `SYMGEN_DATA` first.

    Raises:
        FileNotFoundError: if `SYMGEN_DATA` or a given path is not a folder.
        ValueError: if the id leads out of `SYMGEN_DATA`.
    """
    own, root = Path(name).expanduser(), os.environ.get("SYMGEN_DATA")
    is_path = name.startswith((".", "~", "/"))
    if root and not is_path:
        if not Path(root).is_dir():
            raise FileNotFoundError(
                f'SYMGEN_DATA is "{root}", which is not a folder; set it to the folder that holds '
                "<owner>/<name>/<split>.parquet, or unset it to use the hub"
            )
        if ".." in PurePosixPath(name).parts:
            raise ValueError(f'"{name}" is not the id of a data set or model: "<owner>/<name>"')
        if (Path(root) / name).is_dir():
            return Path(root) / name
    if is_path and not own.is_dir():
        raise FileNotFoundError(f'there is no folder "{name}"; give that of a data set or model')
    return own if own.is_dir() and name not in SOURCES else None


def unavailable(name: str, example: str, cause: object) -> FileNotFoundError:
    """Return the error for a data set or model that is neither here nor on the hub."""
    root = Path(os.environ.get("SYMGEN_DATA") or "$SYMGEN_DATA")
    home = SOURCES.get(name, Source()).home
    return FileNotFoundError(
        f'"{name}" is not on this machine, and the hub does not give it ({cause}). Connect to '
        f"huggingface.co, or put it into SYMGEN_DATA as {root / name / example}."
        + (f" Its authors publish it at {home}." if home else "")
        + (nearest(name, SOURCES) if name not in SOURCES else "")
    )


def _divided(table: Any) -> dict[str, Any]:
    """Return two splits of a folder of pictures: every fifth of a class is for testing."""
    labels = np.array(table["label"])
    test = pd.Series(labels).groupby(labels).cumcount().to_numpy() % EVERY == EVERY - 1
    splits = {"train": ~test, "test": test}
    return {name: table.select(np.flatnonzero(rows)) for name, rows in splits.items()}


def open_splits(name: str) -> Mapping[str, Any]:
    """Return the splits of a data set: `Rows` of sets made here, else tables of `datasets`.

    Args:
        name: registered name; id on the hub or under `SYMGEN_DATA`; or path of a folder that holds
            ``<split>.parquet``, ``<split>.jsonl``, or a subfolder of pictures per class, or else
            what the library `datasets` reads.

    Raises:
        ValueError: for an unknown name, and for files that cannot be read.
        FileNotFoundError: if the data are neither on this machine nor on the hub.
    """
    source = SOURCES.get(name, Source())
    if source.rows is not None:
        return {split: source.rows(split) for split in ("train", "test")}
    import datasets

    folder = local_folder(name)
    if folder is not None:
        cache = str(cache_folder() / "datasets")
        try:
            found = datasets.load_dataset(str(folder.resolve()), cache_dir=cache)
        except Exception as error:  # readers raise almost anything for damaged files
            cause = " ".join(str(error.__cause__ or error).split())[:300]
            raise ValueError(
                f"the files in {folder} cannot be read ({cause}); expected <split>.parquet or "
                "<split>.jsonl with the same columns, or one subfolder of pictures per class"
            ) from error
        if [*found] == ["train"] and found["train"].builder_name == "imagefolder":
            found = _divided(found["train"])
        return found
    if source.home is not None:
        raise unavailable(name, "train.jsonl", "it was never there")
    if "/" not in name:
        choices = [*SOURCES, "<owner>/<name> on the hub", "the path of a folder"]
        raise unknown("data set", name, choices)
    try:
        return datasets.load_dataset(name, revision=source.revision)
    except Exception as error:  # of the hub's library or of its way to the network
        raise unavailable(name, "train.parquet", f"{type(error).__name__}: {error}") from error


def read_rows(name: str, split: str) -> Rows:
    """Return the labelled rows of one split; its columns are recognised by their types.

    Args:
        name: see `open_splits`.
        split: ``"train"`` or ``"test"``. If no test split has labels, the validation split is
            taken.

    Raises:
        ValueError: if a split, an input column or a label column is missing.
    """
    splits = open_splits(name)
    names = ("train",) if split == "train" else HELD_OUT
    for candidate in [x for x in names if x in splits]:
        rows = splits[candidate]
        if not isinstance(rows, Rows):
            rows = _recognised(rows, f'the {candidate} split of "{name}"', name)
        if (rows.labels >= 0).any():
            return rows
    raise ValueError(
        f'data set "{name}" has no labelled {split} split; expected one named '
        f"{' or '.join(names)}, found {', '.join(splits)}"
    )


def _recognised(table: Any, origin: str, name: str) -> Rows:
    import datasets

    features, source = table.features, SOURCES.get(name, Source())
    described = ", ".join(f"{k}: {getattr(v, 'dtype', v)}" for k, v in features.items())
    labels = [k for k, v in features.items() if isinstance(v, datasets.ClassLabel)]
    integers = [k for k, v in features.items() if str(getattr(v, "dtype", "")).startswith("int")]
    labels += [k for k in integers if k in ("label", "labels", "target", "class")]
    images = [k for k, v in features.items() if isinstance(v, datasets.Image)]
    inputs = images or text_columns(table)
    if not labels or not inputs:
        raise ValueError(
            f"{origin} needs a label column (a ClassLabel, or whole numbers in a column named "
            f"label) and an input column (images or strings); found {described}"
        )
    values = np.array([-1 if y is None else y for y in _column(table, labels[0])])
    names = getattr(features[labels[0]], "names", None)
    if values.max() >= (len(names) if names else max(10_000, len(values))) or values.min() < -1:
        raise ValueError(
            f'column "{labels[0]}" of {origin} holds {values.min()} to {values.max()}; expected '
            "class indices from 0, or -1 if unknown"
        )
    classes = [str(c) for c in names or range(int(values.max()) + 1)]
    take = functools.partial(_taken, table, inputs[0], origin)
    boxes = np.array(_column(table, source.box)) if source.box in features else None
    return Rows("image" if images else "text", values, classes, take, boxes)


def _taken(table: Any, column: str, origin: str, index: Any) -> list:
    """Return raw inputs: texts, or the bytes of image files."""
    cells, builder = _column(table, column, index), table.builder_name
    for i, cell in enumerate(cells):
        if isinstance(cell, Mapping):
            cells[i] = cell.get("bytes")
            # A parquet file could name any file of this machine; a folder lists its own pictures.
            if cells[i] is None and builder == "imagefolder":
                cells[i] = Path(cell["path"]).read_bytes()
        if cells[i] is None:
            raise ValueError(
                f'row {index[i]} of {origin} holds no content in column "{column}"; put the text '
                "or the image file itself there, or remove the row"
            )
    return cells


def _column(table: Any, name: str, index: Any = None) -> list:
    """Return a column, or some of its rows, as stored: no image is decoded or opened."""
    chosen = table.select_columns(name).with_format("arrow")
    return (chosen if index is None else chosen.select(index))[:][name].to_pylist()


def text_columns(table: Any) -> list[str]:
    """Return the string columns of a table, longest texts first."""
    names = [k for k, v in table.features.items() if "string" in str(getattr(v, "dtype", ""))]
    few = table.select(range(min(100, len(table))))
    return sorted(names, key=lambda k: -sum(len(t or "") for t in few[k]))


def from_pretrained(kind: str, name: str, **options: Any) -> Any:
    """Return an object of the library `transformers`, loaded from a folder or by its id.

    Args:
        kind: name of the class, such as "AutoTokenizer".
        name: path, id under `SYMGEN_DATA`, or id on the hub.
        **options: options of the class's `from_pretrained`.

    Raises:
        ValueError: for a folder in another format.
        FileNotFoundError: if the model is neither on this machine nor on the hub.
        ImportError: if a library is missing.
    """
    loader, folder = getattr(import_transformers(), kind), local_folder(name)
    try:
        # Code that comes with a model is never run.
        return loader.from_pretrained(str(folder or name), trust_remote_code=False, **options)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # of damaged files libraries raise almost anything
        cause = str(error).split("\n")[0]
        if folder is None:
            raise unavailable(name, "config.json", cause) from error
        raise ValueError(
            f"{folder} is not in from_pretrained format ({cause}); expected config.json, "
            "model.safetensors and, for texts, tokenizer.json"
        ) from error


def import_transformers() -> Any:
    """Return the module `transformers`, or raise an error that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "text networks need transformers; install it by: pip install 'symgen[llm]'"
        ) from error
    return transformers
