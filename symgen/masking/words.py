"""Words, phrases and tokens of a text, as character spans."""

import functools
import re
from collections.abc import Sequence
from typing import Any

# A letter or digit with its combining marks and joiners: a word is never cut inside of one.
LETTER = r"[\p{L}\p{N}][\p{M}\u200c\u200d]*"
WORD = rf"(?:{LETTER})+(?:['\u2019](?:{LETTER})+)*"
# Special tokens as chat templates write them, with the role after the start of a turn.
SPECIAL = re.compile(
    r"(?:<\|(?:im_start|start_header_id|start)\|>|<start_of_turn>)\w*|<[|\uff5c][^|\uff5c]*[|\uff5c]>"
    r"|<\w+_of_\w+>|</?(?:s|bos|eos|pad|unk|mask)>|<</?SYS>>|\[/?(?:INST|CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]"
)


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
        # Of "it's", the first half is a stop word.
        stops = {whole, re.split("['\u2019]", whole)[0]} & ENGLISH_STOP_WORDS
        inside = any(first < end and start < last for first, last in special)
        words.append(((start, end), not stops and not inside))
    return words


@functools.cache
def _pattern(pattern: str) -> Any:
    """Return a pattern with classes of Unicode, which the standard library lacks."""
    import regex  # comes with transformers

    return regex.compile(pattern)


def phrase_spans(text: str, phrases: Sequence[str]) -> list[tuple[int, int]]:
    """Return the character span of each phrase in the text, searched from left to right.

    Give phrases in text order: each is searched after the phrase before it.

    Raises:
        ValueError: for a phrase that does not occur there.

    Example:
        >>> phrase_spans("The earth goes around the sun", ["earth", "the sun"])
        [(4, 9), (22, 29)]
    """
    spans = []
    at = 0
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
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    truncation = {"truncation": max_length is not None, "max_length": max_length}
    encoding = tokenizer(text, **options, **truncation)
    columns = encoding["offset_mapping"], encoding["special_tokens_mask"]
    offsets = []
    at = 0
    for (start, end), special in zip(*columns, strict=True):
        if special:
            start, end = 0, 0
        elif start == end:
            # Some tokenizers cut the first character off such a piece, as if it were a space.
            start = min(at, end)
        offsets.append((start, end))
        at = max(at, end)
    return offsets


def tokens_within(
    text: str, offsets: Sequence[tuple[int, int]], start: int, end: int
) -> tuple[int, ...]:
    """Return the tokens of a span; none if its border lies inside a token, or it has none."""
    group = []
    covered = start
    for index, (first, last) in enumerate(offsets):
        while first < last and text[first].isspace() and first < start:
            first += 1  # A token such as " earth" begins with the space before the word.
        if first < last and first < end and last > start:
            if first < start or last > end:
                return ()
            group.append(index)
            covered = last
    return () if text[covered:end].strip() else tuple(group)
