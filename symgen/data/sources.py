"""Where data come from: sets made here, the folder `SYMGEN_DATA`, own folders, or the hub."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from symgen.data import planted
from symgen.data.columns import rows_of
from symgen.data.splits import Rows
from symgen.names import nearest, unknown
from symgen.storage import cache_folder

# Names of the split for testing; the first one with labels is taken.
HELD_OUT = ("test", "validation", "valid", "val", "dev")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# In a folder that is not divided, every fifth picture of a class is for testing.
EVERY = 5
PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Files that the library `datasets` reads instead.
TABLES = {".arrow", ".csv", ".jsonl", ".parquet", ".tar", ".zip"}


@dataclasses.dataclass(frozen=True)
class Source:
    """Facts about a data set that its columns do not show.

    Attributes:
        rows: for a set made here, the function from the name of a split to its `Rows`.
        size: images are resized to this many pixels per side; None keeps their size.
        box: column of bounding boxes (x, y, width, height) that images are cropped to.
        statistics: mean and standard deviation of each channel, for values in 0..1.
        flip: whether a mirrored image is still an example of its class.
        inputs: columns of the inputs, if they have no usual name; see `columns.rows_of`.
        label: column of the labels, likewise.
        revision: commit, tag or branch on the hub.
        home: where the authors publish a set that is not on the hub.
    """

    rows: Callable[[str], Rows] | None = None
    size: int | None = None
    box: str | None = None
    statistics: tuple = IMAGENET
    flip: bool = True
    inputs: tuple[str, ...] = ()
    label: str | None = None
    revision: str | None = None
    home: str | None = None


#: To add a data set, add an entry here. Sets that need no facts work without an entry.
SOURCES: dict[str, Source] = {
    "digits": Source(rows=planted.digits, statistics=((0.305,) * 3, (0.324,) * 3), flip=False),
    "planted-signs": Source(
        rows=planted.planted_signs, statistics=((0.3,) * 3, (0.3,) * 3), flip=False
    ),
    "planted-sentiment": Source(rows=planted.planted_sentences),
    "planted-facts": Source(rows=planted.planted_facts),
    "planted-facts-2": Source(rows=functools.partial(planted.planted_facts, domain=1)),
    "uoft-cs/cifar10": Source(statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "zh-plus/tiny-imagenet": Source(),
    "bentrevett/caltech-ucsd-birds-200-2011": Source(box="bbox", size=224),
    "stanfordnlp/sst2": Source(),
    "fancyzhx/ag_news": Source(),
    "rajpurkar/squad": Source(inputs=("context",)),
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
    own = Path(name).expanduser()
    root = os.environ.get("SYMGEN_DATA")
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


def picture_splits(folder: Path) -> dict[str, Rows] | None:
    """Return the splits of a folder of pictures, or None if it is no such folder.

    A subfolder with all that lies below it is a class. If all subfolders are named like splits,
    such as train and test, the classes are their subfolders. Without a test split, every fifth
    picture of a class is for testing.

    Raises:
        ValueError: for a picture outside of the classes, and for a class with too few pictures.
    """
    files = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    files = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    pictures = [path for path in files if path.suffix.lower() in PICTURES]
    if not pictures or any(path.suffix in TABLES for path in files):
        return None
    divided = {path.parts[0] for path in pictures} <= {"train", *HELD_OUT}
    depth = 1 if divided else 0
    for path in pictures:
        if len(path.parts) < depth + 2:
            raise ValueError(
                f"{folder / path} belongs to no class; expected one subfolder per class, such as "
                f"{folder}/cat/1.png, or train and test with such subfolders"
            )
    classes, labels = np.unique([path.parts[depth] for path in pictures], return_inverse=True)
    splits = np.array([path.parts[0] if divided else "train" for path in pictures])
    if {*splits} == {"train"}:
        counts = np.bincount(labels)
        if counts.min() < EVERY:
            raise ValueError(
                f'class "{classes[counts.argmin()]}" of {folder} has {counts.min()} pictures; '
                f"expected at least {EVERY}, since every fifth is for testing, or subfolders train "
                "and test"
            )
        number = pd.Series(labels).groupby(labels).cumcount()
        splits[number % EVERY == EVERY - 1] = "test"
    paths = np.array([folder / path for path in pictures])
    found = {}
    for split in np.unique(splits).tolist():
        take = functools.partial(_read_files, paths[splits == split])
        found[split] = Rows("image", labels[splits == split], classes.tolist(), take)
    return found


def _read_files(paths: np.ndarray, index: Any) -> list[bytes]:
    return [path.read_bytes() for path in paths[index]]


def open_splits(name: str) -> Mapping[Any, Any]:
    """Return the splits of a data set: `Rows` of sets made here, else tables of `datasets`.

    Args:
        name: registered name; id on the hub or under `SYMGEN_DATA`; or path of a folder. It holds
            ``<split>.parquet``, ``<split>.jsonl``, a subfolder of pictures per class, or other
            files that the library `datasets` reads.

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
        pictures = picture_splits(folder)
        if pictures is not None:
            return pictures
        cache = str(cache_folder() / "datasets")
        try:
            return datasets.load_dataset(str(folder.resolve()), cache_dir=cache)
        except Exception as error:  # readers raise almost anything for damaged files
            cause = " ".join(str(error.__cause__ or error).split())[:300]
            raise ValueError(
                f"the files in {folder} cannot be read ({cause}); expected <split>.parquet or "
                "<split>.jsonl with the same columns, or one subfolder of pictures per class"
            ) from error
    if source.home is not None:
        raise unavailable(name, "train.jsonl", "it was never there")
    if "/" not in name:
        choices = [*SOURCES, "<owner>/<name> on the hub", "the path of a folder"]
        raise unknown("data set", name, choices)
    try:
        return datasets.load_dataset(name, revision=source.revision)
    except Exception as error:  # of the hub's library or of its way to the network
        raise unavailable(name, "train.parquet", f"{type(error).__name__}: {error}") from error


def read_rows(name: str, inputs: Sequence[str] = (), label: str | None = None) -> tuple[Rows, Rows]:
    """Return the labelled rows for training and for testing.

    Columns that were chosen by their type, not by a usual name, are printed.

    Args:
        name: see `open_splits`.
        inputs, label: names of columns; see `rows_of`.

    Raises:
        ValueError: if a split, an input column or a label column is missing or ambiguous.
    """
    splits = open_splits(name)
    source = SOURCES.get(name, Source())
    inputs = inputs or source.inputs

    def labelled(kind: str, names: Sequence[str]) -> Rows:
        for candidate in [x for x in names if x in splits]:
            rows = splits[candidate]
            if not isinstance(rows, Rows):
                origin = f'the {candidate} split of "{name}"'
                announce = kind == "train" and not inputs
                rows = rows_of(rows, origin, inputs, label or source.label, source.box, announce)
            if (rows.labels >= 0).any():
                return rows
        raise ValueError(
            f'data set "{name}" has no labelled {kind} split; expected one named '
            f"{' or '.join(names)}, found {', '.join(splits)}"
        )

    return labelled("train", ["train"]), labelled("test", HELD_OUT)


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
    loader = getattr(import_transformers(), kind)
    folder = local_folder(name)
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
