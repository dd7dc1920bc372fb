"""Where rows come from: sets embedded here, the folder `SYMGEN_DATA`, or the Hugging Face hub."""

import dataclasses
import difflib
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from symgen.provenance import sha256

# Images up to this many pixels a side are held in memory, and get networks with a small stem.
SMALL = 64
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclasses.dataclass(frozen=True)
class Source:
    """What the columns of a data set cannot tell about it.

    Attributes:
        rows: for an embedded set, the function from the name of a split to its `Rows`.
        size: images are brought to this many pixels a side; None keeps their own size.
        box: column of bounding boxes (x, y, width, height) that images are cropped to.
        statistics: mean and standard deviation of each channel, of values in 0..1.
        flip: whether a mirrored image is still an example of its class.
        text: column read by `load_texts` where a set has several columns of text.
        revision: asked of the hub when the caller names none.
        home: where its authors publish a set that is not on the hub.
    """

    rows: Callable[[str], "Rows"] | None = None
    size: int | None = None
    box: str | None = None
    statistics: tuple = IMAGENET
    flip: bool = True
    text: str | None = None
    revision: str | None = None
    home: str | None = None


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one split, in one form for every source.

    Attributes:
        kind: ``"image"`` or ``"text"``.
        labels: (rows,) class indices, -1 where unknown.
        classes: names of the classes.
        take: from row numbers to raw inputs: encoded bytes, uint8 HWC arrays or strings.
        boxes: (rows, 4) bounding boxes in pixels, or None.
    """

    kind: str
    labels: np.ndarray
    classes: list[str]
    take: Callable[[np.ndarray], list]
    boxes: np.ndarray | None = None


def _digits(split: str) -> Rows:
    from PIL import Image
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Each class in the order of the set: three of four rows train, so all writers are in both.
    chosen = np.arange(len(bunch.target)) % 4 == 3
    chosen = np.flatnonzero(chosen if split == "test" else ~chosen)
    pixels = (bunch.images[chosen] * (255 / 16)).round().astype(np.uint8)
    # 8 pixels a side cannot hold a 5 x 5 grid of patches; 20 give patches of 4 x 4.
    enlarged = [np.asarray(Image.fromarray(p).resize((20, 20), Image.BILINEAR)) for p in pixels]
    images = np.repeat(np.stack(enlarged)[..., None], 3, axis=-1)
    return Rows(
        "image", bunch.target[chosen], [str(d) for d in range(10)], lambda i: list(images[i])
    )


DATASETS: dict[str, Source] = {
    "digits": Source(rows=_digits, statistics=((0.305,) * 3, (0.324,) * 3), flip=False),
    "uoft-cs/cifar10": Source(statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "zh-plus/tiny-imagenet": Source(),
    "bentrevett/caltech-ucsd-birds-200-2011": Source(box="bbox", size=224),
    "stanfordnlp/sst2": Source(),
    "fancyzhx/ag_news": Source(),
    "rajpurkar/squad": Source(text="context"),
    "roneneldan/TinyStories": Source(),
    # On the hub this set is a loading script, which is refused; its converted copy is read.
    "karpathy/tiny_shakespeare": Source(revision="refs/convert/parquet"),
    "Unilaw-R1-Data": Source(home="https://github.com/Hanscal/Unilaw-R1"),
}


def nearest(given: str, known: Iterable[str]) -> str:
    """Return `` did you mean "x"?`` for the known name most like `given`, or an empty string."""
    found = difflib.get_close_matches(str(given), [str(k) for k in known], n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""


def local_folder(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a data set or model under `SYMGEN_DATA`, or None where there is none.

    Args:
        name: hub id such as ``"uoft-cs/cifar10"``.
        revision: looked for as ``<owner>/<name>@<revision>``. A folder without it holds nobody
            knows which revision: it is taken with a warning.

    Raises:
        ValueError: if the id would lead out of the folder, or a file differs from its checksum.
        FileNotFoundError: if `SYMGEN_DATA` is set to something that is no folder.
    """
    root = os.environ.get("SYMGEN_DATA")
    if not root:
        return None
    if not Path(root).is_dir():
        raise FileNotFoundError(
            f'SYMGEN_DATA is set to "{root}", which is no folder; set it to the folder that '
            "holds <owner>/<name>/<split>.parquet, or unset it to use the hub"
        )
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f'"{name}" is no data set or model id; expected "<owner>/<name>"')
    plain = folder = Path(root) / path
    if revision is not None:
        folder = plain.with_name(f"{plain.name}@{revision.replace('/', '--')}")
        if not folder.is_dir() and plain.is_dir():
            warnings.warn(
                f'{plain} does not tell its revision, and "{revision}" was asked for; a copy in '
                f"{folder} would be taken as that revision",
                UserWarning,
                stacklevel=3,
            )
            folder = plain
    if not folder.is_dir():
        return None
    check_sums(folder, Path(root))
    return folder


def check_sums(folder: Path, root: Path) -> None:
    """Compare the files of a folder with those listed in ``SHA256SUMS`` of `SYMGEN_DATA`, if any.

    The list has lines as the command ``sha256sum`` writes them, with paths from `root` on.

    Raises:
        ValueError: with both sums, where they differ.
    """
    listed = root / "SHA256SUMS"
    if not listed.is_file():
        return
    for line in filter(str.strip, listed.read_text().splitlines()):
        wanted, name = line.split(maxsplit=1)
        path = root / name.strip().lstrip("*")  # the asterisk marks a file read as binary
        if not path.is_relative_to(folder) or not path.is_file():
            continue
        status = path.stat()
        found = _known_sum(path, status.st_size, status.st_mtime_ns)
        if found != wanted.lower():
            raise ValueError(
                f"{path} has the checksum {found}, but {listed} says {wanted}; copy the file again"
            )


@functools.cache
def _known_sum(path: Path, size: int, changed: int) -> str:
    """Return the checksum of a file, read once for each size and time of change."""
    return sha256(path)


def unavailable(name: str, what: str, example: str, cause: object) -> FileNotFoundError:
    """Return the error that names both ways to get a data set or model that is not here."""
    root = os.environ.get("SYMGEN_DATA") or "$SYMGEN_DATA"
    return FileNotFoundError(
        f'{what} "{name}" could not be had from the hub ({cause}), and there is no local copy. '
        f"Either connect this machine to the hub (huggingface.co), or set SYMGEN_DATA to a "
        f"folder that holds it: expected {Path(root) / name / example}"
    )


def open_splits(name: str, revision: str | None = None) -> dict[str, Callable[[], Any]]:
    """Return, for each split of a data set, the function that reads it.

    Args:
        name: registered name, or id on the hub or under `SYMGEN_DATA`.
        revision: commit, tag or branch on the hub.

    Raises:
        ValueError: for an unknown name, or a file that is no whole parquet file.
        FileNotFoundError: where there is neither a local copy nor a way to the hub.
    """
    source = DATASETS.get(name, Source())
    if source.rows is not None:
        if revision is not None:
            raise ValueError(f'"{name}" is embedded and has no revision; got "{revision}"')
        return {split: functools.partial(source.rows, split) for split in ("train", "test")}
    folder = local_folder(name, revision)
    if folder is not None:
        files: dict[str, list[Path]] = {}
        for pattern in ("*.parquet", "data/*.parquet", "*.jsonl"):
            for path in sorted(folder.glob(pattern)):
                # As on the hub: "train.parquet", or shards "train-00000-of-00002.parquet".
                files.setdefault(path.stem.split("-")[0], []).append(path)
        if not files:
            raise FileNotFoundError(
                f"{folder} holds no parquet or jsonl file; expected for instance "
                f"{folder}/train.parquet"
            )
        return {split: functools.partial(_read_files, paths) for split, paths in files.items()}
    if source.home is not None:
        root = os.environ.get("SYMGEN_DATA") or "$SYMGEN_DATA"
        raise FileNotFoundError(
            f'"{name}" is not on the hub; its authors\' page is {source.home}. Put its rows, one '
            f"JSON object a line, into {Path(root) / name / 'train.jsonl'}"
        )
    if "/" not in name:
        raise ValueError(
            f'unknown data set "{name}"; known are {", ".join(DATASETS)}, and any id '
            f'"<owner>/<name>" on the hub or under SYMGEN_DATA.{nearest(name, DATASETS)}'
        )
    return _from_hub(name, revision or source.revision)


def _read_files(paths: list[Path]) -> Any:
    import datasets
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        kind = path.suffix[1:]
        try:
            tables.append(pa.json.read_json(path) if kind == "jsonl" else pq.read_table(path))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{path} cannot be read as {kind} ({error}); it may be cut off or damaged: "
                "compare its size and checksum with the original, and copy it again"
            ) from error
    return datasets.Dataset(datasets.table.InMemoryTable(pa.concat_tables(tables)))


def _from_hub(name: str, revision: str | None) -> dict[str, Callable[[], Any]]:
    import datasets

    try:
        found = datasets.load_dataset(name, revision=revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise FileNotFoundError(
            f'the hub has no data set "{name}"'
            + (f' at revision "{revision}"' if revision else "")
            + f", or it needs a login; check the spelling.{nearest(name, DATASETS)}"
        ) from error
    except Exception as error:
        raise unavailable(name, "data set", "train.parquet", error) from error
    return {split: functools.partial(found.__getitem__, split) for split in found}


def read_rows(name: str, split: str, revision: str | None = None) -> Rows:
    """Return the labelled rows of one split, its columns recognised from their features.

    Args:
        name: registered name or id.
        split: ``"train"`` or ``"test"``; where a set has no labelled test split, its
            validation split stands in.
        revision: commit, tag or branch on the hub.

    Raises:
        ValueError: where a split, an input column or a label column is missing.
    """
    splits = open_splits(name, revision)
    wanted = ["train"] if split == "train" else ["test", "validation", "valid", "val", "dev"]
    for candidate in wanted:
        if candidate in splits:
            read = splits[candidate]()
            rows = read if isinstance(read, Rows) else _rows(name, read, revision)
            if (rows.labels >= 0).any():
                return rows
    raise ValueError(
        f'data set "{name}" has no labelled {split} split: expected one named '
        f"{' or '.join(wanted)}, found {', '.join(splits)}"
    )


def _rows(name: str, table: Any, revision: str | None) -> Rows:
    import datasets

    source = DATASETS.get(name, Source())
    features = table.features
    described = ", ".join(f"{k}: {_describe(v)}" for k, v in features.items())
    labels = [k for k, v in features.items() if isinstance(v, datasets.ClassLabel)]
    integers = [k for k, v in features.items() if str(getattr(v, "dtype", "")).startswith("int")]
    labels += [k for k in integers if k in ("label", "labels", "target", "class")]
    images = [k for k, v in features.items() if isinstance(v, datasets.Image)]
    texts = text_columns(table)
    if not labels:
        raise ValueError(
            f'data set "{name}" has no label column: expected a ClassLabel feature or an integer '
            f"column named label; found {described}"
        )
    if not images and not texts:
        raise ValueError(
            f'data set "{name}" has neither images nor text: expected an Image feature or a '
            f"string column; found {described}"
        )
    label = labels[0]
    values = np.asarray(_column(table, label))
    names = getattr(features[label], "names", None)
    readable = _class_names(name, revision)
    classes = names or [str(c) for c in range(int(values.max()) + 1)]
    classes = [readable.get(c, c) for c in classes]
    boxes = np.asarray(_column(table, source.box)) if source.box in features else None
    if not images:
        return Rows("text", values, classes, lambda i: _column(table, texts[0], i))
    column = images[0]
    encoded = table.cast_column(column, datasets.Image(decode=False))

    def take(index: np.ndarray) -> list[bytes]:
        cells = _column(encoded, column, index)
        return [cell["bytes"] or Path(cell["path"]).read_bytes() for cell in cells]

    return Rows("image", values, classes, take, boxes)


def _class_names(name: str, revision: str | None) -> dict[str, str]:
    """Return readable names of the classes, where ``class_names.json`` gives them.

    Tiny-ImageNet's classes are named by numbers of WordNet; the file maps them to words.
    """
    folder = local_folder(name, revision)
    path = folder and folder / "class_names.json"
    if not path or not path.is_file():
        return {}
    # Of several synonyms the first is enough for a title.
    return {k: v.split(",")[0] for k, v in json.loads(path.read_text()).items()}


def _column(table: Any, name: str, index: np.ndarray | None = None) -> list:
    """Return a column, or some of its rows, read at once rather than row by row."""
    chosen = table.select_columns(name)
    return (chosen if index is None else chosen.select(index))[:][name]


def _describe(feature: Any) -> str:
    return str(getattr(feature, "dtype", None) or type(feature).__name__)


def text_columns(table: Any) -> list[str]:
    """Return the string columns, longest texts first."""
    import datasets

    def is_text(feature: Any) -> bool:
        return isinstance(feature, datasets.Value) and "string" in feature.dtype

    names = [k for k, v in table.features.items() if is_text(v)]
    few = table.select(range(min(100, len(table))))
    return sorted(names, key=lambda k: -sum(len(t or "") for t in few[k]))
