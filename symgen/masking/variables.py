"""The input variables of a sample: patches of an image, or words and phrases of a text."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

# A letter or digit with its combining marks and joiners: a word is never cut inside of one.
LETTER = r"[\p{L}\p{N}][\p{M}\u200c\u200d]*"
WORD = rf"(?:{LETTER})+(?:['\u2019](?:{LETTER})+)*"
# Special tokens as chat templates write them, with the role after the start of a turn.
SPECIAL = re.compile(
    r"(?:<\|(?:im_start|start_header_id|start)\|>|<start_of_turn>)\w*|<[|\uff5c][^|\uff5c]*[|\uff5c]>"
    r"|<\w+_of_\w+>|</?(?:s|bos|eos|pad|unk|mask)>|<</?SYS>>|\[/?(?:INST|CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]"
)
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
        row, column = (
            torch.repeat_interleave(torch.arange(self.grid), torch.tensor(self.edges(size)).diff())
            for size in (height, width)
        )
        return variable[:, row[:, None] * self.grid + column]

    def boxes(self, height: int, width: int) -> Int[Tensor, "sample n 4"]:
        """Return left, top, right, bottom of each patch, in pixels of an image of this size.

        Right and bottom are exclusive.
        """
        rows, columns = torch.tensor(self.edges(height)), torch.tensor(self.edges(width))
        row, column = self.patches.cpu() // self.grid, self.patches.cpu() % self.grid
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
            "patches are cut from the last two axes. Expected (sample, channel, height, width): "
            "x.transpose(0, 3, 1, 2). If the function needs channels last, give its variables as "
            "numbers: draw_patches(...).owners(height, width)[..., None], with n for none as -1"
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
    drawn = [
        np.sort(np.random.default_rng([seed, i]).permutation(grid**2)[:n]) for i in range(count)
    ]
    patches = torch.from_numpy(np.array(drawn, dtype=np.int64).reshape(count, n))
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
        if len(counts := {len(sample) for sample in self.groups}) > 1:
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
    kept, groups, words, lengths, most = [], [], [], [], 0
    for index, text in enumerate(texts):
        offsets = token_offsets(text, tokenizer, max_length)
        content = []
        for span, is_content in words_of(text):
            group = _tokens_within(text, offsets, *span)
            if is_content and group:
                content.append((group, text[slice(*span)]))
        most = max(most, len(content))
        if len(content) >= n:
            order = sorted(np.random.default_rng([seed, index]).permutation(len(content))[:n])
            kept.append(index)
            groups.append(tuple(content[i][0] for i in order))
            words.append(tuple(content[i][1] for i in order))
            lengths.append(len(offsets))
    if not kept:
        raise ValueError(
            f"none of the {len(texts)} texts has n = {n} content words; the most is {most}. "
            f"Use n <= {most}, or longer texts"
        )
    return TextVariables(tuple(groups), tuple(words), tuple(lengths)), torch.tensor(kept)


def words_of(text: str) -> list[tuple[tuple[int, int], bool]]:
    """Return the span of every word, and whether it is a content word.

    A word is a run of letters, digits and their marks, in any script; where a script has no spaces,
    a whole run. English stop words are no content words, nor are the special tokens of a chat.

    Example:
        >>> words_of("It's the sun.")
        [((0, 4), False), ((5, 8), False), ((9, 12), True)]
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    special = [match.span() for match in SPECIAL.finditer(text)]
    words = []
    for word in _pattern(WORD).finditer(text):
        start, end = word.span()
        whole = word[0].lower()
        stops = whole in ENGLISH_STOP_WORDS or re.split("['\u2019]", whole)[0] in ENGLISH_STOP_WORDS
        inside = any(first < end and start < last for first, last in special)
        words.append(((start, end), not stops and not inside))
    return words


@functools.cache
def _pattern(pattern: str) -> Any:
    """Return a pattern with classes of Unicode, which the standard library lacks."""
    import regex  # comes with transformers

    return regex.compile(pattern)


def word_spans(text: str, spans: Sequence[tuple[int, int]], tokenizer: Any) -> TextVariables:
    """Turn character spans into variables of one tokenizer (App. F, words and phrases).

    The same spans give the same variables in models with different tokenizers. A token may begin
    with the space before the span.

    Args:
        text: a prompt.
        spans: (start, end) characters of each variable, end exclusive; see `phrase_spans`.
        tokenizer: a fast tokenizer, which reports character offsets.

    Returns:
        The variables of one sample; join several with `TextVariables.stack`.

    Raises:
        ValueError: for a span outside the text, without any token, that overlaps another, or
            whose border lies inside a token.
    """
    offsets = token_offsets(text, tokenizer)
    groups = []
    for start, end in spans:
        group = _tokens_within(text, offsets, start, end)
        if not group or start < 0 or end > len(text):
            pieces = [text[a:b] for a, b in offsets if a < end and b > start]
            raise ValueError(
                f"span ({start}, {end}), {text[start:end]!r}, does not consist of whole tokens: "
                f"its pieces are {pieces}; choose a span that begins and ends where pieces do"
            )
        groups.append(group)
    words = tuple(text[start:end] for start, end in spans)
    return TextVariables((tuple(groups),), (words,), (len(offsets),))


def phrase_spans(text: str, phrases: Sequence[str]) -> list[tuple[int, int]]:
    """Return the character span of each phrase in the text, searched from left to right.

    Give phrases in text order: each is searched after the phrase before it.

    Raises:
        ValueError: for a phrase that does not occur there.

    Example:
        >>> phrase_spans("The earth goes around the sun", ["earth", "the sun"])
        [(4, 9), (22, 29)]
    """
    spans, at = [], 0
    for phrase in phrases:
        whole = rf"(?<![\w\p{{M}}]){re.escape(phrase)}(?![\w\p{{M}}])"
        match = _pattern(whole).search(text, at)
        if not phrase or match is None:
            raise ValueError(
                f"phrase {phrase!r} does not occur as a whole in {text[at:]!r}; give phrases in "
                "the order of the text, spelled as in the text"
            )
        spans.append(match.span())
        at = match.end()
    return spans


def check_texts(texts: Sequence) -> None:
    """Refuse anything but a sequence of texts.

    Raises:
        ValueError: for a single text, or an entry that is not a text.
    """
    if isinstance(texts, str):
        raise ValueError(f"expected a list of texts, got one text: {texts[:40]!r}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {index} is {text!r}; expected a string: leave such rows out")


def token_offsets(
    text: str, tokenizer: Any, max_length: int | None = None
) -> list[tuple[int, int]]:
    """Return the characters (start, end) of each token; (0, 0) for special tokens."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} reports no character offsets; load a fast tokenizer, for "
            "instance with AutoTokenizer.from_pretrained(...)"
        )
    encoding = tokenizer(
        text,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=max_length is not None,
        max_length=max_length,
    )
    offsets = []
    at = 0
    for (start, end), special in zip(
        encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True
    ):
        if special:
            start, end = 0, 0
        elif start == end:
            # Some tokenizers cut the first character off such a piece, as if it were a space.
            start = min(at, end)
        offsets.append((start, end))
        at = max(at, end)
    return offsets


def _tokens_within(
    text: str, offsets: Sequence[tuple[int, int]], start: int, end: int
) -> tuple[int, ...]:
    """Return the tokens of a span; none if its border lies inside a token, or it has none."""
    group, covered = [], start
    for index, (first, last) in enumerate(offsets):
        while first < last and text[first].isspace() and first < start:
            first += 1  # A token such as " earth" begins with the space before the word.
        if first < last and first < end and last > start:
            if first < start or last > end:
                return ()
            group.append(index)
            covered = last
    return () if text[covered:end].strip() else tuple(group)
