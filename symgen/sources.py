"""Where rows come from: sets embedded here, the folder `SYMGEN_DATA`, or the Hugging Face hub."""

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
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


# What makes the planted texts is imported when they are asked for, since it builds on this module.
def _planted_sentences(split: str) -> Rows:
    from symgen.corpus import planted_sentences

    return planted_sentences(split)


def _planted_facts(split: str, domain: int = 0) -> Rows:
    from symgen.small_world import planted_facts

    return planted_facts(split, domain)


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
    "planted-sentiment": Source(rows=_planted_sentences),
    "planted-facts": Source(rows=_planted_facts),
    "planted-facts-2": Source(rows=functools.partial(_planted_facts, domain=1)),
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
    with readable(listed, "text", "write it again with the command sha256sum"):
        lines = listed.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        # An asterisk marks a file read as binary.
        found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *]?([^\0]+?)\s*", line)
        if not found:
            raise ValueError(
                f"line {number} of {listed} is {line[:80]!r}; expected 64 hexadecimal digits and a "
                "path, as the command sha256sum writes them"
            )
        wanted, path = found[1], root / found[2]
        if not path.is_relative_to(folder) or not path.is_file():
            continue
        status = path.stat()
        found = _known_sum(path, status.st_size, status.st_mtime_ns)
        if found != wanted.lower():
            raise ValueError(
                f"{path} has the checksum {found}, but {listed} says {wanted}; copy the file again"
            )


@contextlib.contextmanager
def readable(path: os.PathLike | str, kind: str, advice: str) -> Iterator[None]:
    """Turn whatever a library says of a file that it cannot read into one sentence.

    Args:
        path: of the file.
        kind: what it was read as.
        advice: what to do.

    Raises:
        ValueError: in place of any exception.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # such as the panic of a library in Rust
        said = " ".join((str(error) or type(error).__name__).split())
        raise ValueError(f"{path} cannot be read as {kind} ({said[:300]}); {advice}") from error


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
        + (f".{nearest(name, DATASETS)}" if what == "data set" and name not in DATASETS else "")
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
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        if path.suffix == ".jsonl":
            # Python's own reader: pyarrow's brings the process down on some files.
            rows = json_lines(path)
            names = dict.fromkeys(name for row in rows for name in row)
            with readable(path, "jsonl", "expected are values of one type under each name"):
                tables.append(pa.table({k: [row.get(k) for row in rows] for k in names}))
            continue
        with readable(
            path,
            "parquet",
            "it may be cut off or damaged: compare its size and checksum with the original, and "
            "copy it again",
        ):
            # Not `read_table`, which makes columns of folders named like "a=b".
            with pq.ParquetFile(path) as file:
                tables.append(file.read())
            tables[-1].validate(full=True)
    whole = f"{paths[0]} and others" if len(paths) > 1 else paths[0]
    with readable(whole, "one table", "expected are the same columns in every file"):
        table = datasets.Dataset(datasets.table.InMemoryTable(pa.concat_tables(tables)))
    if not len(table):
        raise ValueError(f"{whole} holds no rows; expected at least one, so copy or write it again")
    return table


def json_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the rows of a file with one JSON object a line.

    Raises:
        ValueError: for a line that is anything else.
        OSError: if the file cannot be opened.
    """
    rows = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig").strip()
                row = json.loads(text or "{}")
                if not isinstance(row, dict):
                    raise ValueError(f"it holds {text[:40]!r}")
                # An escape can stand for half of a letter, which nothing could write again.
                if "\\u" in text:
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"line {number} of {path} is no JSON object ({error}); expected one object a "
                    'line, such as {"text": "...", "label": 0}'
                ) from error
            rows += [row] if text else []
    return rows


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
            rows = read if isinstance(read, Rows) else _rows(name, candidate, read, revision)
            if (rows.labels >= 0).any():
                return rows
    raise ValueError(
        f'data set "{name}" has no labelled {split} split: expected one named '
        f"{' or '.join(wanted)}, found {', '.join(splits)}"
    )


def _rows(name: str, split: str, table: Any, revision: str | None) -> Rows:
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
    where = f'of the {split} split of "{name}"'
    names = getattr(features[label], "names", None)
    values = _labels(_column(table, label), names, where)
    names = names or range(int(values.max()) + 1)
    words = _class_names(name, revision)
    classes = [words.get(str(c), str(c)) for c in names]
    boxes = _boxes(_column(table, source.box), where) if source.box in features else None

    def take_texts(index: np.ndarray) -> list[str]:
        found = _column(table, texts[0], index)
        for row, text in zip(index, found, strict=True):
            if text is None:
                raise ValueError(
                    f'row {row} {where} has no text in column "{texts[0]}"; give it one, or leave '
                    "the row out"
                )
        return found

    def take_images(index: np.ndarray) -> list[bytes]:
        found = []
        for row, cell in zip(index, _column(table, images[0], index), strict=True):
            cell = cell or {}
            # Whoever wrote the file could name any file of the reader's there.
            if cell.get("bytes") is None and cell.get("path") is not None:
                raise ValueError(
                    f"row {row} {where} names a file ({cell['path'][:80]!r}) in place of an image, "
                    "and no such file is opened; put the images themselves into the column"
                )
            found.append(cell.get("bytes") or b"")
        return found

    if not images:
        return Rows("text", values, classes, take_texts)
    return Rows("image", values, classes, take_images, boxes)


def _labels(values: list, names: list | None, where: str) -> np.ndarray:
    """Return labels as an array; without names of classes their number follows from them."""
    if not any(value is not None for value in values):
        return np.full(len(values), -1)
    count = len(names) if names else max(10_000, len(values))
    for row, value in enumerate(values):
        if value is None or not -1 <= value < count:
            raise ValueError(
                f"row {row} {where} has the label {value}; expected a whole number from 0 to "
                f"{count - 1}, or -1 where it is unknown"
            )
    return np.array(values)


def _boxes(values: list, where: str) -> np.ndarray:
    for row, box in enumerate(values):
        sides = [x for x in box or () if isinstance(x, int | float) and math.isfinite(x)]
        if len(sides) != 4 or len(box) != 4:
            raise ValueError(
                f"row {row} {where} has the bounding box {box}; expected x, y, width and height"
            )
    return np.array(values)


def _class_names(name: str, revision: str | None) -> dict[str, str]:
    """Return readable names of the classes, where ``class_names.json`` gives them.

    Tiny-ImageNet's classes are named by numbers of WordNet; the file maps them to words.
    """
    folder = local_folder(name, revision)
    path = folder and folder / "class_names.json"
    if not path or not path.is_file():
        return {}
    # Of several synonyms the first is enough for a title.
    advice = 'expected a JSON object such as {"n02123045": "tabby, tabby cat"}'
    with readable(path, "names of classes", advice):
        found = json.loads(path.read_text(encoding="utf-8"))
        return {k: v.split(",")[0] for k, v in found.items()}


def _column(table: Any, name: str, index: np.ndarray | None = None) -> list:
    """Return a column, or some of its rows, as it is stored: nothing is decoded or opened."""
    chosen = table.select_columns(name).with_format("arrow")
    return (chosen if index is None else chosen.select(index))[:][name].to_pylist()


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
