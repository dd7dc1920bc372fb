"""Tables of the library `datasets`: which columns hold the inputs and the labels."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symgen.data.splits import Rows
from symgen.names import unknown

# Usual names, the preferred ones first. Two names are a pair of sentences.
LABELS = (("label",), ("labels",), ("target",), ("class",))
IMAGES = (("image",), ("img",))
TEXTS = (
    ("text",),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
)
REMEDY = (
    "name the columns: load_dataset(..., inputs='title', label='topic'), inputs=['title', 'body'] "
    "for pairs of texts, or an entry Source(inputs=...) in symgen.data.sources.SOURCES"
)


def rows_of(
    table: Any,
    origin: str,
    inputs: Sequence[str] = (),
    label: str | None = None,
    box: str | None = None,
    announce: bool = False,
) -> Rows:
    """Return the rows of a table in the form of all sources.

    Args:
        table: table of the library `datasets`.
        origin: source of the table, for messages.
        inputs: an image column, a text column, or two text columns; by default those with a usual
            name, or the only ones of their type.
        label: column of labels; by default that with a usual name, or the only ClassLabel.
        box: column of bounding boxes, if there is one.
        announce: whether columns are printed that have no usual name.

    Raises:
        ValueError: if the columns are ambiguous, missing, or of another type.
    """
    import datasets

    features = table.features
    images = [k for k, v in features.items() if isinstance(v, datasets.Image)]
    texts = text_columns(table)
    if inputs:
        _check(table, origin, inputs, images + texts, "images or texts")
        most = 1 if inputs[0] in images else 2
        if len(inputs) > most or len({*inputs}) < len(inputs):
            raise ValueError(
                f"inputs={[*inputs]}: expected one image column, one text column, or two different "
                "text columns for pairs"
            )
    elif images:
        inputs = choose(table, origin, "image", images, IMAGES)
    else:
        inputs = choose(table, origin, "text", texts, TEXTS)
    if label is None:
        named = [k for (k,) in LABELS if k in features]
        classes = [k for k, v in features.items() if isinstance(v, datasets.ClassLabel)]
        (label,) = choose(table, origin, "label", named or classes, LABELS)
    whole = [k for k in features if _dtype(table, k).startswith(("int", "uint", "bool"))]
    _check(table, origin, [label], whole, "whole numbers or a ClassLabel")
    if announce and (tuple(inputs) not in IMAGES + TEXTS or (label,) not in LABELS):
        print(f"{origin}: inputs from column {', '.join(inputs)}, labels from {label}")
    values = np.array([-1 if y is None else int(y) for y in column_of(table, label)])
    names = getattr(features[label], "names", None)
    most = len(names) if names else max(10_000, len(values))
    if values.max(initial=-1) >= most or values.min(initial=0) < -1:
        raise ValueError(
            f'column "{label}" of {origin} holds {values.min()} to {values.max()}; expected '
            "class indices from 0, or -1 if unknown"
        )
    names = names or [str(c) for c in range(values.max(initial=-1) + 1)]
    take = functools.partial(_taken, table, inputs, origin)
    boxes = np.array(column_of(table, box)) if box and box in features else None
    kind = "image" if inputs[0] in images else "text"
    return Rows(kind, values, names, take, boxes)


def choose(
    table: Any,
    origin: str,
    kind: str,
    columns: Sequence[str],
    usual: Sequence[tuple[str, ...]],
) -> list[str]:
    """Return the columns with a usual name, or the only one of its type.

    Args:
        table, origin: see `rows_of`.
        kind: what they hold, for messages.
        columns: columns of that type.
        usual: names or pairs of names, the preferred ones first.

    Raises:
        ValueError: if none has a usual name, and there are several or none.
    """
    for names in usual:
        if {*names} <= {*columns}:
            return list(names)
    if len(columns) == 1:
        return list(columns)
    expected = ", ".join(" and ".join(names) for names in usual)
    found = f"the {kind} columns {', '.join(columns)}" if columns else f"no {kind} column"
    raise ValueError(
        f"{origin} has {found}; expected a usual name ({expected}) or only one. Please {REMEDY}. "
        f"It holds {described(table)}"
    )


def described(table: Any) -> str:
    """Return the columns of a table with their types."""
    return ", ".join(f"{k}: {_dtype(table, k)}" for k in table.features)


def text_columns(table: Any) -> list[str]:
    """Return the string columns of a table."""
    return [k for k in table.features if "string" in _dtype(table, k)]


def column_of(table: Any, name: str, index: Any = None) -> list:
    """Return a column, or some of its rows, as stored: no image is decoded or opened."""
    chosen = table.select_columns(name).with_format("arrow")
    return (chosen if index is None else chosen.select(index))[:][name].to_pylist()


def _dtype(table: Any, name: str) -> str:
    feature = table.features[name]
    return str(getattr(feature, "dtype", feature))


def _check(
    table: Any, origin: str, names: Sequence[str], fitting: Sequence[str], expected: str
) -> None:
    for name in names:
        if name not in table.features:
            raise unknown(f"column of {origin}", name, table.features)
        if name not in fitting:
            raise ValueError(
                f'column "{name}" of {origin} holds {_dtype(table, name)}; expected {expected}. '
                f"Convert it, or {REMEDY}. The set holds {described(table)}"
            )


def _taken(table: Any, columns: Sequence[str], origin: str, index: Any) -> list:
    """Return raw inputs: texts, pairs of texts, or the bytes of image files."""
    inputs = [_cells(table, name, origin, index) for name in columns]
    return inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))


def _cells(table: Any, column: str, origin: str, index: Any) -> list:
    cells = column_of(table, column, index)
    for i, cell in enumerate(cells):
        if isinstance(cell, Mapping):
            cells[i] = cell.get("bytes")
            # A parquet file could name any file of this machine; a folder lists its own pictures.
            if cells[i] is None and table.builder_name == "imagefolder":
                cells[i] = Path(cell["path"]).read_bytes()
        if cells[i] is None:
            raise ValueError(
                f'row {index[i]} of {origin} holds no content in column "{column}"; put the text '
                "or the image file itself there, or remove the row"
            )
    return cells
