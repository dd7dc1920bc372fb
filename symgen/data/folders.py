"""A folder of pictures, one subfolder a class, as the rows of a data set."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from symgen.data.rows import Rows
from symgen.fingerprints import refusal

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
# Of every class, in the order of names: each of so many is held out where nobody has divided them.
HELD = 5


def picture_splits(folder: Path, held_out: tuple[str, ...]) -> dict[str, Callable[[], Rows]]:
    """Return, for each split of a folder of pictures, the function that lists it.

    The folder has a subfolder for each class, or such folders under train, test and the like. Of
    an undivided folder, every fifth picture of a class, in the order of names, is for testing.

    Args:
        folder: to look in.
        held_out: names of the splits besides "train".

    Returns:
        Nothing where the folder holds no pictures in subfolders.

    Raises:
        ValueError: for an undivided folder with a class of fewer than five.

    Warns:
        UserWarning: of a subfolder without pictures, which is no class.
    """
    parts = {x: folder / x for x in ("train", *held_out) if classes_of(folder / x)}
    _warn_of_empty(*(parts.values() if "train" in parts else [folder]))
    if "train" in parts:
        return {x: functools.partial(_rows, path, None) for x, path in parts.items()}
    classes = classes_of(folder)
    if not classes:
        return {}
    if few := [name for name, files in classes.items() if len(files) < HELD]:
        raise ValueError(
            f"{folder} has fewer than {HELD} pictures of class {', '.join(few[:5])}; of an "
            f"undivided folder every {HELD}th is for testing. Add some, or divide it into train "
            "and test"
        )
    return {x: functools.partial(_rows, folder, x == "test") for x in ("train", "test")}


@refusal
def _warn_of_empty(*folders: Path) -> None:
    for folder in folders:
        classes = classes_of(folder)
        subfolders = [x for x in folder.iterdir() if x.is_dir() and not x.name.startswith(".")]
        if empty := sorted(x.name for x in subfolders if classes and x.name not in classes):
            warnings.warn(
                f"{', '.join(empty[:5])} in {folder} has no pictures ({' '.join(PICTURES)}) and is "
                "left out of the classes",
                stacklevel=5,
            )


def classes_of(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures in each subfolder that has any, both in the order of names."""
    found = {}
    for sub in sorted(folder.iterdir()) if folder.is_dir() else ():
        if sub.is_dir() and not sub.name.startswith("."):
            files = (x for x in sub.iterdir() if x.suffix.lower() in PICTURES and x.is_file())
            found[sub.name] = sorted(files)
    return {name: files for name, files in found.items() if files}


def _rows(folder: Path, held: bool | None) -> Rows:
    """Return the pictures of a folder: all, or those that are held out, or the others."""
    files: list[Path] = []
    labels: list[int] = []
    classes = classes_of(folder)
    for label, found in enumerate(classes.values()):
        mine = [x for i, x in enumerate(found) if held is None or (i % HELD == HELD - 1) == held]
        files, labels = [*files, *mine], [*labels, *[label] * len(mine)]

    def take(index: np.ndarray) -> list[bytes]:
        return [files[i].read_bytes() for i in index]

    return Rows("image", np.array(labels), [*classes], take)
