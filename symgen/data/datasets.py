"""Data sets by name, split for the target network, its baseline networks and testing."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from symgen.data.images import image_part
from symgen.data.sources import SOURCES, Source, read_rows
from symgen.data.splits import Part, deal, part_names, with_noise
from symgen.data.text_parts import TextPart, joined, load_tokenizer
from symgen.names import unknown


@dataclasses.dataclass(frozen=True)
class Samples:
    """Some samples of a part.

    Attributes:
        x: inputs as the network takes them: an image tensor, or a mapping of token tensors.
        y: (sample,) int64 labels.
        index: (sample,) int64 positions in the part.
        part: the part that they were drawn from.
    """

    x: Any
    y: Int[Tensor, "sample"]
    index: Int[Tensor, "sample"]
    part: Part

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, kept: Any) -> "Samples":
        """Return some of the samples: a slice or an array of positions."""
        return samples_of(self.part, self.index[kept])

    def show(self, i: int) -> Any:
        """Return sample i for display: a uint8 array (height, width, 3), or its text."""
        return self.part.show(int(self.index[i]))


def samples_of(part: Part, index: Int[Tensor, "sample"]) -> Samples:
    """Return the samples of a part at some positions."""
    x, y = part.batch(index)
    return Samples(x, y, index, part)


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set, split.

    Attributes:
        name: name as given to `load_dataset`.
        kind: ``"image"`` or ``"text"``.
        classes: names of the classes.
        parts: name to `Part`; always contains "target", "baseline" and "test".
        tokenizer: tokenizer of a text data set, else None.
    """

    name: str
    kind: str
    classes: list[str]
    parts: dict[str, Part]
    tokenizer: Any = None

    def part(self, name: str) -> Part:
        """Return the part with this name."""
        if name not in self.parts:
            raise unknown(f'part of "{self.name}"', name, self.parts)
        return self.parts[name]

    @property
    def spec(self) -> dict[str, Any]:
        """The options of `build_network` that follow from the data.

        Example:
            >>> load_dataset("digits").spec
            {'classes': 10, 'channels': 3, 'image_size': 20}
        """
        if self.kind == "image":
            side = len(self.parts["target"].show(0))
            return {"classes": len(self.classes), "channels": 3, "image_size": side}
        return {
            "classes": len(self.classes),
            "vocabulary": len(self.tokenizer),
            "pad_token_id": self.tokenizer.pad_token_id,
        }

    def sample(self, count: int, part: str = "target", seed: int = 0) -> Samples:
        """Draw samples balanced over classes (App. J.1).

        If a class has too few samples, the others make up for it. A smaller count with the same
        seed gives the beginning of a larger one.

        Args:
            count: number of samples.
            part: name of the part to draw from.
            seed: seed of the draw.

        Raises:
            ValueError: if the part holds fewer samples.

        Example:
            >>> load_dataset("digits").sample(20).y.bincount().tolist()
            [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        chosen = self.part(part)
        labels = chosen.labels.numpy()
        generator = np.random.default_rng([seed, 101])
        order = generator.permutation(len(labels))
        present = generator.permutation(np.unique(labels))
        if not 1 <= count <= len(order):
            raise ValueError(
                f'{count} samples: part "{part}" of "{self.name}" has {len(order)} samples of '
                f"{len(present)} classes; give 1 to {len(order)}"
            )
        # One of each class, then a second of each class, and so on.
        drawn = pd.Series(labels[order])
        rank = drawn.groupby(drawn).cumcount()
        place = pd.Categorical(drawn, present).codes
        order = order[np.lexsort((place, rank))]
        return samples_of(chosen, torch.from_numpy(order[:count]))


def load_dataset(
    name: str,
    train_size: int | None = None,
    label_noise: float = 0.0,
    split: str = "halves",
    test_size: int | None = None,
    max_length: int = 64,
    tokenizer: Any = None,
    size: int | None = None,
    statistics: tuple | None = None,
    seed: int = 0,
    inputs: str | Sequence[str] = (),
    label: str | None = None,
) -> Data:
    """Load a data set and split it for a target network and its baseline networks (App. E.1).

    Parts are disjoint and have the same number of samples per class. With ``split="test"`` the
    baseline is trained on the test samples, as in Section 2.2.

    Args:
        name: "digits", "planted-sentiment"; an id such as "uoft-cs/cifar10", read from the folder
            `SYMGEN_DATA` or from the hub; or the path of a folder. A folder has one subfolder of
            pictures per class, or holds such folders named train and test.
        train_size: training samples per part; None takes all.
        label_noise: share of the training labels of each part, 0 to 1, replaced by another
            class drawn at random.
        split: "halves" of the training set for target and baseline; "test"; "thirds" A, B and C
            (App. N); "parts:K" for a target and K baselines (App. C).
        test_size: number of test samples; None takes all.
        max_length: texts are cut to this many tokens.
        tokenizer: for texts: a tokenizer, a hub id or path, a vocabulary size, or None for
            one trained on the training texts.
        size: images are resized to this many pixels per side; None takes that of the data set.
        statistics: mean and standard deviation per channel, for images in 0..1; None takes those
            of the data set. Pretrained networks need their own: see `data_options`.
        seed: seed of the split and the noise.
        inputs: name of the column of images or texts, or names of two columns of texts, which the
            tokenizer joins as a pair. By default the column with a usual name (image, img, text,
            sentence; premise and hypothesis), or the only one of its type.
        label: name of the column of class indices; by default "label", or the only ClassLabel.

    Raises:
        ValueError: for unknown names, ambiguous columns and impossible numbers.
        FileNotFoundError: if the data are neither on this machine nor on the hub.

    Example:
        >>> data = load_dataset("digits", train_size=100)
        >>> {name: len(part) for name, part in data.parts.items()}
        {'target': 100, 'baseline': 100, 'test': 449}
    """
    names, aliases = part_names(split)
    if not 0 <= label_noise <= 1:
        raise ValueError(f"label_noise={label_noise}: expected a share from 0 to 1")
    if max_length < 3:
        raise ValueError(f"max_length={max_length}: expected at least 3 tokens")
    train, test = read_rows(name, [inputs] if isinstance(inputs, str) else inputs, label)
    # A subset of a data set may name classes of which it holds no sample.
    kept = np.unique(train.labels[train.labels >= 0]).tolist()
    if len(kept) < 2:
        raise ValueError(f'"{name}": a classification needs at least 2 classes, got {len(kept)}')
    count = 1 if split == "test" else len(names)
    indices = deal(train, kept, count, train_size, seed, f'training set of "{name}"')
    if train.kind == "text":
        texts = train.take(np.concatenate(indices))
        texts = [text if isinstance(text, str) else " ".join(text) for text in texts]
        tokenizer = load_tokenizer(tokenizer, texts)
    chosen = [(train, index) for index in indices]
    # With split "test", the baseline is trained on the test samples.
    for part_size in [train_size, test_size] if split == "test" else [test_size]:
        (index,) = deal(test, kept, 1, part_size, seed, f'test set of "{name}"')
        chosen.append((test, index))
    source = SOURCES.get(name, Source())
    source = dataclasses.replace(
        source, size=size or source.size, statistics=statistics or source.statistics
    )
    parts = {}
    for k, (key, (rows, index)) in enumerate(zip([*names, "test"], chosen, strict=True)):
        labels = torch.from_numpy(np.searchsorted(kept, rows.labels[index]))
        if key != "test":
            labels = with_noise(labels, label_noise, len(kept), seed, k)
        if rows.kind == "text":
            texts = joined(rows.take(index), tokenizer, max_length)
            parts[key] = TextPart(texts, labels, tokenizer, max_length)
        else:
            parts[key] = image_part(rows, index, labels, source)
    parts |= {alias: parts[original] for alias, original in aliases.items()}
    return Data(name, train.kind, [train.classes[c] for c in kept], parts, tokenizer)
