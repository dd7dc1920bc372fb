"""Choose the input variables of a text: words, phrases (character spans)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


@dataclass(frozen=True)
class TextVariables:
    """Groups of token positions, n for every sample; a group is masked as a whole.

    Attributes:
        groups: sample -> variable -> token positions. Positions count from the first token of
            the sample, special tokens included; padding, if any, comes after the text.
            Variable i of a sample is bit i of a masked state.
        words: sample -> variable -> its text; may be empty.
        lengths: sample -> number of its tokens, against which inputs are checked; may be empty.
    """

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    words: tuple[tuple[str, ...], ...] = ()
    lengths: tuple[int, ...] = ()

    def __post_init__(self):
        if len({len(sample) for sample in self.groups}) > 1:
            counts = sorted({len(sample) for sample in self.groups})
            raise ValueError(f"every sample needs the same number of variables, not {counts}")
        for index, sample in enumerate(self.groups):
            positions = [position for group in sample for position in group]
            if not all(sample) or len(set(positions)) != len(positions) or min(positions) < 0:
                raise ValueError(
                    f"the variables of sample {index}, {sample}, must be groups of one or more "
                    "token positions >= 0, and no position may be in two groups"
                )

    @property
    def n(self) -> int:
        """Number of variables of a sample."""
        return len(self.groups[0]) if self.groups else 0

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, indices: Any) -> "TextVariables":
        """Return the variables of some samples: an index, a slice, or an array of indices."""
        chosen = np.atleast_1d(np.arange(len(self))[indices]).tolist()
        parts = (self.groups, self.words, self.lengths)
        return TextVariables(*(tuple(p[i] for i in chosen) if p else () for p in parts))

    def owners(self, length: int) -> Int[Tensor, "sample length"]:
        """Return the variable that each token belongs to; n where it belongs to none."""
        longest = max((p for sample in self.groups for group in sample for p in group), default=-1)
        if longest >= length:
            raise ValueError(
                f"a variable covers token {longest} but the input has {length} tokens; encode the "
                "texts with the tokenizer and max_length that the variables were made with"
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

    Stop words, punctuation and non-alphanumeric symbols are no content words. All pieces of a
    word belong to one variable.

    Args:
        texts: sentences. The draw in text i does not depend on the other texts.
        tokenizer: a fast tokenizer (one that gives character offsets).
        n: words drawn from each text, in text order.
        seed: of the draw.
        max_length: tokens kept of each text; encode the texts with the same ``max_length``,
            ``truncation=True`` and padding on the right.

    Returns:
        The variables of the texts that have n content words, and the indices of these texts;
        ``len(texts) - len(indices)`` were skipped.

    Raises:
        ValueError: when no text has n content words, or one is no text at all.
    """
    check_texts(texts)
    kept, drawn, words, lengths, richest = [], [], [], [], 0
    for index, text in enumerate(texts):
        offsets = token_offsets(text, tokenizer, max_length)
        content = []
        for span, counts in words_of(text):
            group, cut = _tokens_within(text, offsets, *span)
            if counts and group and not cut:
                content.append((group, text[slice(*span)]))
        richest = max(richest, len(content))
        if len(content) >= n:
            order = np.random.default_rng([seed, index]).permutation(len(content))[:n]
            kept.append(index)
            drawn.append(tuple(content[i][0] for i in sorted(order)))
            words.append(tuple(content[i][1] for i in sorted(order)))
            lengths.append(len(offsets))
    if not kept:
        raise ValueError(
            f"none of the {len(texts)} texts has n = {n} content words; the richest has {richest}. "
            f"Use n <= {richest}, or longer texts"
        )
    return TextVariables(tuple(drawn), tuple(words), tuple(lengths)), torch.tensor(kept)


def words_of(text: str) -> list[tuple[tuple[int, int], bool]]:
    """Return the span of every word, and whether it is a content word: no English stop word.

    Example:
        >>> words_of("It's the sun.")
        [((0, 4), False), ((5, 8), False), ((9, 12), True)]
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    found = []
    for word in WORD.finditer(text):
        whole = word[0].lower()
        parts = (whole, re.split("['\u2019]", whole)[0])
        found.append((word.span(), not any(part in ENGLISH_STOP_WORDS for part in parts)))
    return found


def word_spans(text: str, spans: Sequence[tuple[int, int]], tokenizer: Any) -> TextVariables:
    """Turn character spans into variables of one tokenizer (App. F, words and phrases).

    The same spans give the same variables in models with different tokenizers. A piece that
    begins with the space before a span counts as inside it.

    Args:
        text: a prompt.
        spans: (start, end) characters of each variable, end exclusive; see `phrase_spans`.
        tokenizer: a fast tokenizer (one that gives character offsets).

    Returns:
        The variables of one sample; join several with `TextVariables.stack`.

    Raises:
        ValueError: for a span outside the text, without any token, that overlaps another, or
            that the tokenizer splits across its border (with the pieces).
    """
    offsets = token_offsets(text, tokenizer)
    groups = []
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise ValueError(
                f"span ({start}, {end}) is outside the text of {len(text)} characters; "
                "give 0 <= start < end <= length"
            )
        group, cut = _tokens_within(text, offsets, start, end)
        if cut:
            raise ValueError(
                f"the tokenizer splits {text[start:end]!r}, span ({start}, {end}), across its "
                f"border: its pieces are {[text[slice(*offsets[i])] for i in cut]}; "
                "choose a span that begins and ends where these pieces do"
            )
        if not group:
            raise ValueError(f"span ({start}, {end}), {text[start:end]!r}, contains no token")
        groups.append(group)
    for (a, b), (c, d) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if c < b:
            raise ValueError(
                f"spans ({a}, {b}) {text[a:b]!r} and ({c}, {d}) {text[c:d]!r} overlap; "
                "each character can belong to one variable only"
            )
    words = tuple(text[start:end] for start, end in spans)
    return TextVariables((tuple(groups),), (words,), (len(offsets),))


def phrase_spans(text: str, phrases: Sequence[str]) -> list[tuple[int, int]]:
    """Return the character span of each phrase in the text, searched from left to right.

    A phrase that occurs several times is taken where it first occurs after the phrase before
    it, so phrases are given in text order.

    Example:
        >>> phrase_spans("The earth goes around the sun", ["earth", "the sun"])
        [(4, 9), (22, 29)]
    """
    spans, at = [], 0
    for phrase in phrases:
        found = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)").search(text, at)
        if not phrase or found is None:
            raise ValueError(
                f"phrase {phrase!r} does not occur as a whole in {text[at:]!r}; give phrases in "
                "the order of the text and spelled as in the text"
            )
        spans.append(found.span())
        at = found.end()
    return spans


def check_texts(texts: Sequence) -> None:
    """Refuse what is no list of texts.

    Raises:
        ValueError: for one text alone, or a row without text, with its number.
    """
    if isinstance(texts, str):
        raise ValueError(f"expected several texts, got one: {texts[:40]!r}; put it into a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"text {index} is {text!r}; expected a string. Leave rows without text out"
            )


def token_offsets(
    text: str, tokenizer: Any, max_length: int | None = None
) -> list[tuple[int, int]]:
    """Return the characters (start, end) of each token; (0, 0) for special tokens."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets; load a fast tokenizer, for "
            "instance with AutoTokenizer.from_pretrained(...)"
        )
    encoding = tokenizer(
        text,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=max_length is not None,
        max_length=max_length,
    )
    pairs = zip(encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True)
    return [(0, 0) if special else tuple(offset) for offset, special in pairs]


def _tokens_within(
    text: str, offsets: Sequence[tuple[int, int]], start: int, end: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens inside a span, and all that overlap it if the border cuts one."""
    inside, overlapping = [], []
    for index, (first, last) in enumerate(offsets):
        while first < last and text[first].isspace() and first < start:
            first += 1  # The space that a piece such as " earth" begins with.
        if first < last and first < end and last > start:
            overlapping.append(index)
            if start <= first and last <= end:
                inside.append(index)
    covered = max((offsets[i][1] for i in inside), default=start)
    cut = len(inside) != len(overlapping) or bool(text[covered:end].strip())
    return tuple(inside), tuple(overlapping) if cut and overlapping else ()
