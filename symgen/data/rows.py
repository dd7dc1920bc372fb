"""The rows of one split in one form: columns of files, recognised and checked, never paths."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symgen.files import sha256


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


@functools.cache
def _known_sum(path: Path, size: int, changed: int) -> str:
    """Return the checksum of a file, read once for each size and time of change."""
    return sha256(path)


def read_files(paths: list[Path]) -> Any:
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


def recognised(
    table: Any, name: str, split: str, box: str | None, words: Mapping[str, str]
) -> Rows:
    """Return the rows of a table, its columns recognised from their features.

    Args:
        table: of the library `datasets`.
        name, split: of the data set, for messages.
        box: column of bounding boxes, if any.
        words: readable names of classes.

    Raises:
        ValueError: where the input or the labels are missing, or one of them makes no sense.
    """
    import datasets

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
    classes = [words.get(str(c), str(c)) for c in names]
    boxes = _boxes(_column(table, box), where) if box in features else None

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
