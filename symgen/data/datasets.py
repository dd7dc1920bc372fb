"""Data sets: loading by name, and splits for target network, baseline networks and testing."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from symgen.data.hub import DATASETS, Source, read_rows
from symgen.data.images import image_part
from symgen.data.parts import Part, TextPart
from symgen.data.splits import add_noise, aliases, choose_classes, deal, part_names
from symgen.data.texts import load_tokenizer
from symgen.literal import nearest


@dataclasses.dataclass(frozen=True)
class Samples:
    """Some samples of a part.

    Attributes:
        x: inputs as the network takes them: an image tensor, or a mapping of token tensors.
        y: (sample,) int64 labels.
        index: (sample,) int64 positions in the part.
        part: the part they were drawn from.
    """

    x: Any
    y: Int[Tensor, " sample"]
    index: Int[Tensor, " sample"]
    part: Part

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, kept: Any) -> "Samples":
        """Return some of the samples: a slice or an array of positions."""
        index = torch.arange(len(self))[kept]
        return Samples(*self.part.batch(self.index[index]), self.index[index], self.part)

    def show(self, i: int) -> Any:
        """Return sample i for display: a uint8 array (height, width, 3), or its text."""
        return self.part.show(int(self.index[i]))


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set, split.

    Attributes:
        name: as it was asked for.
        kind: ``"image"`` or ``"text"``.
        classes: names of the classes.
        parts: name to `Part`; always "target", "baseline" and "test".
        tokenizer: of a text data set, else None.
    """

    name: str
    kind: str
    classes: list[str]
    parts: dict[str, Part]
    tokenizer: Any = None

    def part(self, name: str) -> Part:
        """Return the part with this name."""
        if name not in self.parts:
            raise ValueError(
                f'data set "{self.name}" has no part "{name}"; it has '
                f"{', '.join(self.parts)}.{nearest(name, self.parts)}"
            )
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

    def sample(
        self, count: int, part: str = "target", n_classes: int | None = None, seed: int = 0
    ) -> Samples:
        """Draw samples balanced over classes (App. J.1).

        Where a class has too few samples, the others make up for it. A smaller count with the
        same seed gives the beginning of a larger one.

        Args:
            count: number of samples.
            part: name of the part to draw from.
            n_classes: draw this many classes first, then samples from these only.
            seed: of the draw.

        Raises:
            ValueError: if the part holds fewer samples or classes than asked for.

        Example:
            >>> load_dataset("digits").sample(20).y.bincount().tolist()
            [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        chosen = self.part(part)
        labels = chosen.labels.numpy()
        generator = np.random.default_rng([seed, 101])
        order = generator.permutation(len(labels))
        present = generator.permutation(np.unique(labels))
        if n_classes is not None:
            if not 1 <= n_classes <= len(present):
                raise ValueError(
                    f'n_classes={n_classes}: part "{part}" of "{self.name}" has '
                    f"{len(present)} classes; ask for 1 to {len(present)}"
                )
            present = present[:n_classes]
        order = order[np.isin(labels[order], present)]
        if not 1 <= count <= len(order):
            raise ValueError(
                f'count={count}: part "{part}" of "{self.name}" has {len(order)} samples of '
                f"the {len(present)} classes to draw from; ask for 1 to {len(order)}"
            )
        # One of each class, then a second of each class, and so on.
        place = {c: k for k, c in enumerate(present)}
        rank = np.empty(len(order), dtype=np.int64)
        for c in present:
            mine = labels[order] == c
            rank[mine] = np.arange(mine.sum()) * len(place) + place[c]
        index = torch.from_numpy(order[np.argsort(rank)][:count])
        x, y = chosen.batch(index)
        return Samples(x, y, index, chosen)


def load_dataset(
    name: str,
    revision: str | None = None,
    train_size: int | None = None,
    label_noise: float = 0.0,
    split: str = "halves",
    classes: int | list | None = None,
    test_size: int | None = None,
    max_length: int = 64,
    tokenizer: Any = None,
    seed: int = 0,
) -> Data:
    """Load a data set and split it for a target network and its baseline networks (App. E.1).

    It is read from the folder `SYMGEN_DATA` where that holds it, else from the hub. Parts are
    disjoint, and have the same number of samples of every class; only where the baseline is
    trained on test samples (``split="test"``) are these in "test" too, as in Section 2.2.

    Args:
        name: "digits", "planted-sentiment", a hub id such as "uoft-cs/cifar10", or the path of a
            folder with one subfolder of pictures for each class (of which every fifth is for
            testing), or with such folders named train and test.
        revision: commit, tag or branch on the hub.
        train_size: number of training samples of each part; None takes all there are.
        label_noise: share of the training labels of each part, 0 to 1, replaced by another
            class drawn at random.
        split: "halves" of the training set for target and baseline; "test", with a baseline
            trained on the test samples (Section 2.2); "thirds" A, B and C (App. N);
            "parts:K" for a target and K baselines (App. C).
        classes: keep the first so many classes, or those named.
        test_size: number of test samples; None takes all there are.
        max_length: texts are cut to this many tokens.
        tokenizer: for texts: a tokenizer, a hub id or path, a vocabulary size, or None for
            one trained on the training texts.
        seed: of the split and the noise.

    Raises:
        ValueError: for anything unknown, missing or too large, with what there is.
        FileNotFoundError: where there is neither a local copy nor a way to the hub.

    Example:
        >>> data = load_dataset("digits", train_size=100)
        >>> {name: len(part) for name, part in data.parts.items()}
        {'target': 100, 'baseline': 100, 'test': 449}
    """
    names, count = part_names(split)
    if not 0 <= label_noise <= 1:
        raise ValueError(f"label_noise={label_noise}: expected a share from 0 to 1")
    if max_length < 3:
        raise ValueError(f"max_length={max_length}: expected at least 3 tokens")
    train, test = read_rows(name, "train", revision), read_rows(name, "test", revision)
    kept, class_names = choose_classes(train, classes, name)
    if train.kind != test.kind or any(
        a != b for a, b in zip(train.classes, test.classes, strict=False)
    ):
        raise ValueError(
            f'the splits of "{name}" do not belong together: for training {train.kind}s of '
            f"{', '.join(train.classes[:5])} ..., for testing {test.kind}s of "
            f"{', '.join(test.classes[:5])} ...; expected the same classes in the same order"
        )
    # Where classes have no names, the test split may lack the last of them.
    test = dataclasses.replace(test, classes=max(train.classes, test.classes, key=len))
    indices = deal(train, kept, count, train_size, seed, f'training set of "{name}"')
    test_index = deal(test, kept, 1, test_size, seed, f'test set of "{name}"')[0]
    everything = [(train, "train", index) for index in indices]
    if split == "test":
        baseline = deal(test, kept, 1, train_size, seed, f'test set of "{name}"')[0]
        everything.append((test, "test", baseline))
    everything.append((test, "test", test_index))
    source = DATASETS.get(name, Source())
    if train.kind == "text":
        texts = train.take(np.concatenate(indices))
        tokenizer = load_tokenizer(tokenizer, texts)
    remap = np.full(max(kept) + 2, -1)
    remap[kept] = np.arange(len(kept))
    parts, skipped = {}, {}
    for k, (rows, origin, index) in enumerate(everything):
        key = names[k] if k < len(everything) - 1 else "test"
        if rows.kind == "text":
            labels = torch.from_numpy(remap[rows.labels[index]])
            parts[key] = TextPart(rows.take(index), labels, tokenizer, max_length)
        else:
            parts[key], lost = image_part(rows, index, remap, source)
            skipped |= {f"{origin} {i}": error for i, error in lost.items()}
        if key != "test":
            add_noise(parts[key], label_noise, len(kept), seed, k)
    _report(skipped, sum(len(i) for _, _, i in everything), name)
    for alias, original in aliases(names).items():
        parts[alias] = parts[original]
    return Data(name, train.kind, class_names, parts, tokenizer)


def _report(skipped: dict[str, str], total: int, name: str) -> None:
    if not skipped:
        return
    places = list(skipped)
    text = (
        f'{len(skipped)} of {total} images of "{name}" are corrupt or of a kind that is not read '
        f"(split and row: {', '.join(places[:5])}{', ...' if len(places) > 5 else ''}; of the "
        f"first: {skipped[places[0]]})"
    )
    if len(skipped) > 0.01 * total:
        raise ValueError(f"{text}; more than 1 % is too many: get or convert the data set again")
    warnings.warn(f"{text}; they are left out", UserWarning, stacklevel=3)
