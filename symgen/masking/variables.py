"""The input variables of a sample: patches of an image, or words and phrases of a text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from symgen.masking.words import check_texts, token_offsets, tokens_within, words_of

# The second axis of images is the channel.
CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class ImageVariables:
    """Patches of a square grid, the same number n for every sample (App. A.1).

    Attributes:
        patches: (sample, n) numbers of the drawn grid cells, 0..grid*grid-1 row by row.
            Column i is variable i, which is bit i of a masked state.
        grid: cells along each side.

    Raises:
        ValueError: for patches outside the grid, or a patch that a sample has twice.
    """

    patches: Int[Tensor, "sample n"]
    grid: int

    def __post_init__(self):
        ordered = self.patches.sort(-1).values
        outside = (ordered < 0) | (ordered >= self.grid**2)
        if outside.any() or (ordered[:, 1:] == ordered[:, :-1]).any():
            raise ValueError(
                f"patches must be different numbers from 0 to {self.grid**2 - 1} in each sample, "
                f"the cells of a {self.grid}x{self.grid} grid; use draw_patches"
            )

    @property
    def n(self) -> int:
        """Number of variables per sample."""
        return self.patches.shape[1]

    def __len__(self) -> int:
        return self.patches.shape[0]

    def __getitem__(self, indices: Any) -> "ImageVariables":
        """Return the variables of some samples: an index, a slice, or an array of indices."""
        return ImageVariables(self.patches[indices].view(-1, self.n), self.grid)

    def edges(self, size: int) -> list[int]:
        """Return the borders of the cells along a side of `size` pixels: grid + 1 numbers.

        If the size is not a multiple of the grid, cells differ by at most one pixel.

        Raises:
            ValueError: for fewer pixels than cells.

        Example:
            >>> draw_patches(1, n=2, grid=5).edges(32)
            [0, 6, 12, 19, 25, 32]
        """
        if size < self.grid:
            raise ValueError(
                f"a side of {size} pixels cannot be cut into {self.grid} patches; use "
                f"grid={size} or smaller, or an earlier layer with a larger feature map"
            )
        return [k * size // self.grid for k in range(self.grid + 1)]

    def owners(self, height: int, width: int) -> Int[Tensor, "sample height width"]:
        """Return the variable that each pixel of a map belongs to; n if it belongs to none.

        Example:
            >>> draw_patches(1, n=4, grid=2).owners(2, 4).tolist()
            [[[0, 0, 1, 1], [2, 2, 3, 3]]]
        """
        variable = torch.full((len(self), self.grid**2), self.n)
        variable.scatter_(1, self.patches.cpu().long(), torch.arange(self.n).expand(len(self), -1))
        cell = torch.arange(self.grid)
        row = cell.repeat_interleave(torch.tensor(self.edges(height)).diff())
        column = cell.repeat_interleave(torch.tensor(self.edges(width)).diff())
        return variable[:, row[:, None] * self.grid + column]

    def boxes(self, height: int, width: int) -> Int[Tensor, "sample n 4"]:
        """Return left, top, right, bottom of each patch, in pixels of an image of this size.

        Right and bottom are exclusive.
        """
        rows = torch.tensor(self.edges(height))
        columns = torch.tensor(self.edges(width))
        row = self.patches.cpu() // self.grid
        column = self.patches.cpu() % self.grid
        sides = columns[column], rows[row], columns[column + 1], rows[row + 1]
        return torch.stack(sides, dim=-1)


def check_axes(shape: Sequence[int]) -> None:
    """Refuse images whose last axis seems to be the channel: patches would cut it.

    Raises:
        ValueError: for a last axis of size 1, 3 or 4 next to two larger ones.
    """
    if len(shape) == 4 and shape[3] in CHANNELS and min(shape[1:3]) > max(CHANNELS):
        raise ValueError(
            f"x has shape {tuple(shape)}, which looks like (sample, height, width, channel); "
            "expected (sample, channel, height, width). For a function that needs channels last, "
            "pass numbers: draw_patches(...).owners(height, width)[..., None], with n as -1"
        )


def draw_patches(count: int, n: int = 10, grid: int = 5, seed: int = 0) -> ImageVariables:
    """Draw n of the grid*grid patches at random for each of `count` samples (App. A.1).

    Args:
        count: number of samples. Sample i always gets the same patches, for every count.
        n: variables per sample, 1..grid*grid.
        grid: patches along each side of the image or feature map.
        seed: seed of the draw.

    Raises:
        ValueError: if the grid has fewer than n patches.

    Example:
        >>> draw_patches(2, n=3, seed=1).patches.tolist()
        [[1, 7, 20], [4, 15, 21]]
    """
    if not 1 <= n <= grid**2:
        raise ValueError(
            f"n = {n}, but a {grid}x{grid} grid has {grid**2} patches; use n in 1..{grid**2} or a "
            "finer grid"
        )
    patches = torch.empty(count, n, dtype=torch.int64)
    for i in range(count):
        drawn = np.random.default_rng([seed, i]).permutation(grid**2)[:n]
        patches[i] = torch.from_numpy(np.sort(drawn))
    return ImageVariables(patches, grid)


@dataclass(frozen=True)
class TextVariables:
    """Groups of token positions, n per sample; a group is masked as a whole.

    Attributes:
        groups: sample -> variable -> token positions. Positions count from the first token of
            the sample, including special tokens. Padding, if any, comes after the text.
            Variable i of a sample is bit i of a masked state.
        words: sample -> variable -> its text; may be empty.
        lengths: sample -> number of its tokens, to check inputs against; may be empty.

    Raises:
        ValueError: for different numbers of variables, or groups that are empty or overlap.
    """

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    words: tuple[tuple[str, ...], ...] = ()
    lengths: tuple[int, ...] = ()

    def __post_init__(self):
        counts = {len(sample) for sample in self.groups}
        if len(counts) > 1:
            raise ValueError(
                f"samples have {sorted(counts)} variables; expected the same number for each"
            )
        for index, sample in enumerate(self.groups):
            positions = [position for group in sample for position in group]
            unique = len(set(positions)) == len(positions)
            if not sample or not all(sample) or not unique or min(positions) < 0:
                raise ValueError(
                    f"sample {index} has the variables {sample}; expected groups of one or more "
                    "token positions >= 0, with no position in two groups"
                )

    @property
    def n(self) -> int:
        """Number of variables per sample."""
        return len(self.groups[0]) if self.groups else 0

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, indices: Any) -> "TextVariables":
        """Return the variables of some samples: an index, a slice, or an array of indices."""
        chosen = np.atleast_1d(np.arange(len(self))[indices]).tolist()
        parts = (self.groups, self.words, self.lengths)
        return TextVariables(*(tuple(p[i] for i in chosen) if p else () for p in parts))

    def owners(self, length: int) -> Int[Tensor, "sample length"]:
        """Return the variable that each token belongs to; n if it belongs to none.

        Raises:
            ValueError: if a variable lies beyond the input.
        """
        longest = max((p for sample in self.groups for group in sample for p in group), default=-1)
        if longest >= length:
            raise ValueError(
                f"a variable covers token {longest} but the input has {length} tokens; encode the "
                "texts with the same tokenizer and max_length as the variables"
            )
        owner = np.full((len(self), length), self.n)
        for row, sample in zip(owner, self.groups, strict=True):
            for variable, group in enumerate(sample):
                row[list(group)] = variable
        return torch.from_numpy(owner)

    @staticmethod
    def stack(parts: Iterable["TextVariables"]) -> "TextVariables":
        """Join the variables of several samples, in this order."""
        joined = zip(*((p.groups, p.words, p.lengths) for p in parts), strict=True)
        return TextVariables(*(tuple(x for part in field for x in part) for field in joined))


def draw_words(
    texts: Sequence,
    tokenizer: Any,
    n: int = 10,
    seed: int = 0,
    max_length: int | None = None,
) -> tuple[TextVariables, Int[Tensor, " kept"]]:
    """Draw n content words at random from each text (App. A.1, text classification).

    Stop words, punctuation and symbols are not content words. All pieces of a word belong to one
    variable.

    Args:
        texts: sentences. The draw in text i does not depend on the other texts.
        tokenizer: a fast tokenizer, which reports character offsets.
        n: words drawn per text, in text order.
        seed: seed of the draw.
        max_length: tokens kept per text. Encode the texts with the same ``max_length``, with
            ``truncation=True`` and padding on the right.

    Returns:
        The variables of the texts that have n content words, and the indices of these texts.

    Raises:
        ValueError: if no text has n content words, or an entry is not a text.
    """
    check_texts(texts)
    kept = []
    parts = []
    most = 0
    for index, text in enumerate(texts):
        offsets = token_offsets(text, tokenizer, max_length)
        spans = [
            span
            for span, is_content in words_of(text)
            if is_content and tokens_within(text, offsets, *span)
        ]
        most = max(most, len(spans))
        if len(spans) >= n:
            order = sorted(np.random.default_rng([seed, index]).permutation(len(spans))[:n])
            kept.append(index)
            parts.append(_of_spans(text, [spans[i] for i in order], offsets))
    if not kept:
        raise ValueError(
            f"none of the {len(texts)} texts has n = {n} content words; the most is {most}. "
            f"Use n <= {most}, or longer texts"
        )
    return TextVariables.stack(parts), torch.tensor(kept)


def word_spans(text: str, spans: Sequence[tuple[int, int]], tokenizer: Any) -> TextVariables:
    """Turn character spans into variables of one tokenizer (App. F, words and phrases).

    The same spans give the same variables in models with different tokenizers. A token may begin
    with the space before the span.

    Args:
        text: a prompt.
        spans: (start, end) characters of each variable, end exclusive; see `phrase_spans`.
        tokenizer: a fast tokenizer, which reports character offsets.

    Raises:
        ValueError: for a span outside the text, without any token, that overlaps another, or
            whose border lies inside a token.
    """
    return _of_spans(text, spans, token_offsets(text, tokenizer))


def _of_spans(
    text: str, spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]
) -> TextVariables:
    groups = []
    for start, end in spans:
        group = tokens_within(text, offsets, start, end)
        if not group or start < 0 or end > len(text):
            pieces = [text[a:b] for a, b in offsets if a < end and b > start]
            raise ValueError(
                f"span ({start}, {end}), {text[start:end]!r}, does not consist of whole tokens: "
                f"its pieces are {pieces}; choose a span that begins and ends where pieces do"
            )
        groups.append(group)
    words = tuple(text[start:end] for start, end in spans)
    return TextVariables((tuple(groups),), (words,), (len(offsets),))
