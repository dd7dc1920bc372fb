"""Where rows come from: sets embedded here, the folder `SYMGEN_DATA`, or the Hugging Face hub."""

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from symgen.data import planted
from symgen.data.folders import picture_splits
from symgen.data.rows import Rows, check_sums, read_files, readable, recognised
from symgen.files import own_folder
from symgen.literal import nearest

# Names of the split that nothing is trained on, the better one first.
HELD_OUT = ("test", "validation", "valid", "val", "dev")
# Images up to this many pixels a side are held in memory, and get networks with a small stem.
SMALL = 64
OWN_DATA = "the path of a folder with one subfolder of pictures for each class"
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


DATASETS: dict[str, Source] = {
    "digits": Source(rows=planted.digits, statistics=((0.305,) * 3, (0.324,) * 3), flip=False),
    "uoft-cs/cifar10": Source(statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "zh-plus/tiny-imagenet": Source(),
    "bentrevett/caltech-ucsd-birds-200-2011": Source(box="bbox", size=224),
    "stanfordnlp/sst2": Source(),
    "fancyzhx/ag_news": Source(),
    "rajpurkar/squad": Source(text="context"),
    "roneneldan/TinyStories": Source(),
    # On the hub this set is a loading script, which is refused; its converted copy is read.
    "karpathy/tiny_shakespeare": Source(revision="refs/convert/parquet"),
    "planted-sentiment": Source(rows=planted.planted_sentences),
    "planted-facts": Source(rows=planted.planted_facts),
    "planted-facts-2": Source(rows=functools.partial(planted.planted_facts, domain=1)),
    "Unilaw-R1-Data": Source(home="https://github.com/Hanscal/Unilaw-R1"),
}


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


def is_path(name: str) -> bool:
    """Return whether a name can only be the path of a folder: no id begins like that."""
    return name.startswith((".", "~")) or Path(name).is_absolute()


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
        name: registered name, id on the hub or under `SYMGEN_DATA`, or path of a folder of such
            files, or of pictures (see `picture_splits`).
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
    folder = None if is_path(name) else local_folder(name, revision)
    if folder is None and source == Source():
        folder = own_folder(name)
    if folder is None and is_path(name):
        raise FileNotFoundError(f'there is no folder "{name}"; {OWN_DATA}')
    if folder is not None:
        if pictures := picture_splits(folder, HELD_OUT):
            return pictures
        files: dict[str, list[Path]] = {}
        for pattern in ("*.parquet", "data/*.parquet", "*.jsonl"):
            for path in sorted(folder.glob(pattern)):
                # As on the hub: "train.parquet", or shards "train-00000-of-00002.parquet".
                files.setdefault(path.stem.split("-")[0], []).append(path)
        if not files:
            raise FileNotFoundError(
                f"{folder} holds no parquet or jsonl file; expected for instance "
                f"{folder}/train.parquet, or {OWN_DATA}"
            )
        return {split: functools.partial(read_files, paths) for split, paths in files.items()}
    if source.home is not None:
        root = os.environ.get("SYMGEN_DATA") or "$SYMGEN_DATA"
        raise FileNotFoundError(
            f'"{name}" is not on the hub; its authors\' page is {source.home}. Put its rows, one '
            f"JSON object a line, into {Path(root) / name / 'train.jsonl'}"
        )
    if "/" not in name:
        raise ValueError(
            f'unknown data set "{name}"; known are {", ".join(DATASETS)}, any id "<owner>/<name>" '
            f"on the hub or under SYMGEN_DATA, and {OWN_DATA}.{nearest(name, DATASETS)}"
        )
    return _from_hub(name, revision or source.revision)


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
    wanted = ("train",) if split == "train" else HELD_OUT
    for candidate in wanted:
        if candidate in splits:
            read = splits[candidate]()
            rows = read
            if not isinstance(read, Rows):
                box, words = DATASETS.get(name, Source()).box, _class_names(name, revision)
                rows = recognised(read, name, candidate, box, words)
            if (rows.labels >= 0).any():
                return rows
    raise ValueError(
        f'data set "{name}" has no labelled {split} split: expected one named '
        f"{' or '.join(wanted)}, found {', '.join(splits)}"
    )


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


def import_transformers() -> Any:
    """Return the module `transformers`, or raise an error that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "text networks need the library transformers, which is not installed; "
            "install it by: pip install 'symgen[llm]'"
        ) from error
    return transformers


def resolve(name: str) -> str:
    """Return the local path of a model: as given, or under `SYMGEN_DATA`; else the id itself.

    Raises:
        FileNotFoundError: for a path, not an id, where there is no folder.
    """
    own = own_folder(name)
    if is_path(name):
        if own is None:
            raise FileNotFoundError(
                f'there is no folder "{name}"; expected one with config.json, model.safetensors '
                'and tokenizer.json, or an id "<owner>/<name>"'
            )
        return str(own)
    found = local_folder(name)
    if found is None and own is not None and (own / "config.json").is_file():
        found = own
    return str(found or name)


def from_pretrained(kind: str, name: str, **options: Any) -> Any:
    """Return what a class of `transformers` loads from a folder, or by its id.

    Args:
        kind: name of the class, such as "AutoTokenizer".
        name: see `resolve`.
        **options: of the class's `from_pretrained`.

    Raises:
        ValueError: for a folder in another format.
        FileNotFoundError: where there is neither a local copy nor a way to the hub.
    """
    loader, path = getattr(import_transformers(), kind), resolve(name)
    try:
        # Code that comes with a model is never run: not asked for, and not by a typed "y" either.
        return loader.from_pretrained(path, trust_remote_code=False, **options)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # of damaged files libraries raise almost anything
        if Path(path).is_dir():
            raise ValueError(
                f"{path} is not in from_pretrained format ({error}); expected "
                "config.json, model.safetensors and tokenizer.json"
            ) from error
        if not isinstance(error, OSError):
            raise
        raise unavailable(name, "model", "config.json", str(error).split("\n")[0]) from error
