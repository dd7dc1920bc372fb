"""Texts of language models: loaded, cut into pieces; and tokenizers that are trained here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from symgen.data.columns import TEXTS, choose, text_columns
from symgen.data.sources import HELD_OUT, SOURCES, Source, import_transformers, open_splits
from symgen.data.splits import Indices, Part, Rows
from symgen.names import unknown

VOCABULARY = 8192
MASKED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CAUSAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
COLUMNS = ("instruction", "input", "output")


class TokenPart(Part):
    """Pieces of text for a causal language model, whose labels are their own tokens.

    Args:
        pieces: token ids, and the position from which the loss counts; see `pieces_of`.
        vocabulary: number of tokens that the model knows, and of its logits per token. Fewer pieces
            are evaluated at once if the logits take much memory.
    """

    chunk = 20
    # Memory of the logits of a chunk, in bytes; several copies of them are held at once.
    LOGITS, COPIES = 2**30, 4

    def __init__(self, pieces: Sequence[tuple[Tensor, int]], vocabulary: int = 1):
        super().__init__(torch.zeros(len(pieces), dtype=torch.int64))
        self.pieces = list(pieces)
        longest = max((len(piece) for piece, _ in pieces), default=1)
        fit = self.LOGITS // (4 * self.COPIES * longest * vocabulary)
        self.chunk = min(self.chunk, max(fit, 1))

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return ids, padded on the right, and labels; a label of -100 does not count."""
        ids = []
        labels = []
        for i in torch.as_tensor(indices).tolist():
            piece, first = self.pieces[i]
            ids.append(piece)
            labels.append(piece.masked_fill(torch.arange(len(piece)) < first, -100))
        ids = pad_sequence(ids, batch_first=True)
        return ids, pad_sequence(labels, batch_first=True, padding_value=-100)

    def _content(self) -> list:
        return self.pieces


def load_texts(name: str, split: str = "train") -> list[str]:
    """Return the distinct texts of a data set, in their order, for use with a language model.

    Texts are in the column with a usual name, or the only one with strings. Of a pair of texts both
    are taken.

    Args:
        name: registered name, id or path, such as ``"rajpurkar/squad"``.
        split: name of the split; the only split of a set is taken whatever its name is.

    Raises:
        ValueError: for an unknown name or split, and for a set without texts.

    Example:
        >>> len(load_texts("planted-sentiment", "test"))
        1000
    """
    table = _split_of(name, split)
    if isinstance(table, Rows):
        texts = table.take(np.arange(len(table.labels))) if table.kind == "text" else []
    else:
        columns = SOURCES.get(name, Source()).inputs
        columns = columns or choose(table, f'"{name}"', "text", text_columns(table), TEXTS)
        texts = [text for key in columns for text in table[key]]
    texts = list(dict.fromkeys(text for text in texts if text and text.strip()))
    if not texts:
        raise ValueError(f'data set "{name}" holds no texts; expected a column of strings')
    return texts


def _split_of(name: str, split: str) -> Any:
    splits = open_splits(name)
    if len(splits) == 1:
        (split,) = splits
    if split not in splits:
        raise unknown(f'split of "{name}"', split, splits)
    return splits[split]


def train_tokenizer(
    texts: Sequence[str],
    words: int = 4096,
    pieces: int = 1024,
    special: Sequence[str] = CAUSAL,
    size: int | None = None,
) -> Any:
    """Return a tokenizer of whole words in lower case, and of pieces for the other words.

    The same texts always give the same tokenizer. The trainer of the library does not ensure that.

    Args:
        texts: texts to count words in.
        words: number of the most frequent words that are one token each.
        pieces: number of beginnings and endings of two to six letters, for all other words.
        special: `CAUSAL`, which puts [BOS] before a text, or `MASKED`, as BERT has them.
        size: size of the whole vocabulary, 200 or more; an eighth of it are pieces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    if size is not None and size < 200:
        raise ValueError(
            f"tokenizer={size}: a vocabulary needs at least 200 entries, for special tokens, "
            "letters and some words"
        )
    normalizer = normalizers.BertNormalizer()
    splitter = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        found = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        counts.update(word for word, _ in found)
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        for length in range(2, min(7, len(word))):
            parts[word[:length]] += count
            parts[f"##{word[-length:]}"] += count
    letters = sorted(set("".join(counts)))
    if size is not None:
        letters = letters[: size // 3]
        pieces = size // 8
        words = size - len(special) - 2 * len(letters) - pieces
    tokens = [*special, *letters, *(f"##{letter}" for letter in letters)]
    tokens = list(dict.fromkeys([*tokens, *_most_frequent(counts, words)]))
    for token in tokens:
        parts.pop(token, None)
    tokens = [*tokens, *_most_frequent(parts, pieces)][:size]
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizer
    made.pre_tokenizer = splitter
    made.decoder = decoders.WordPiece()
    single = "[BOS] $A"
    pair = "[BOS] $A $B"
    if "[CLS]" in special:
        single = "[CLS] $A [SEP]"
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    around = [(t, made.token_to_id(t)) for t in special if t in single]
    made.post_processor = processors.TemplateProcessing(single, pair, around)
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    return import_transformers().PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _most_frequent(counts: Counter[str], size: int) -> list[str]:
    """Return the most frequent entries; ties are in alphabetical order."""
    return sorted(counts, key=lambda item: (-counts[item], item))[:size]


def split_texts(name: str) -> dict[str, list[str]]:
    """Return the texts of a data set in three disjoint parts: target, baseline and test.

    The training split is cut in halves. The test split (or validation split) is held out; if a set
    has one split only, every fifth text is.

    Args:
        name: see `load_texts`.
    """
    splits = open_splits(name)
    held = [split for split in HELD_OUT if split in splits]
    train = load_texts(name)
    if held and len(splits) > 1:
        seen = set(train)
        test = [text for text in load_texts(name, held[0]) if text not in seen]
    else:
        test = train[::5]
        train = [text for i, text in enumerate(train) if i % 5]
    return {"target": train[::2], "baseline": train[1::2], "test": test}


def beginning(tokenizer: Any) -> list[int]:
    """Return the special tokens that a tokenizer puts before every text, such as <bos>."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    before = encoded["special_tokens_mask"].index(0)
    return encoded["input_ids"][:before]


def ending(tokenizer: Any) -> list[int]:
    """Return the token that ends a text, or none if the tokenizer has no such token."""
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def pieces_of(
    texts: Sequence[str], tokenizer: Any, length: int = 128, tail: int = 0
) -> list[tuple[Tensor, int]]:
    """Return training pieces for a language model: token ids, and where the loss begins.

    Every piece begins as the tokenizer begins a text. Without <bos>, Gemma's loss doubles.

    Args:
        texts: long ones are cut, and each ends with the end token of the tokenizer.
        tokenizer: tokenizer of the model.
        length: largest number of tokens per piece, with those of `beginning`.
        tail: if above 0, the loss is that of the last `tail` words alone, and only the end of a
            long text is kept.

    Raises:
        ValueError: if a piece is too short for a token that can be predicted.
    """
    start = beginning(tokenizer)
    room = length - len(start)
    if room < 1 or length < 2:
        raise ValueError(
            f"length={length}: a piece holds {len(start)} special tokens before the text; expected "
            f"at least {max(2, len(start) + 1)}"
        )
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    encoded = tokenizer(list(texts), **options)
    columns = encoded["input_ids"], encoded["offset_mapping"]
    pieces = []
    for text, ids, offsets in zip(texts, *columns, strict=True):
        ids = ids + ending(tokenizer)
        first = 0
        if tail:
            begin = len(text) - len(" ".join(text.split(" ")[-tail:]))
            first = sum(stop <= begin for _, stop in offsets)
            cut = max(0, len(ids) - room)
            ids = ids[cut:]
            first = max(0, first - cut)
        # The first token of a piece follows nothing, so it cannot be predicted.
        first = max(1, first + len(start))
        for k in range(0, len(ids), room):
            piece = torch.tensor(start + ids[k : k + room])
            if len(piece) > first:
                pieces.append((piece, first))
    return pieces


def instructions_of(
    rows: Sequence[Mapping[str, str]], tokenizer: Any, length: int = 1024
) -> list[tuple[Tensor, int]]:
    """Return instructions with answers as training pieces; the loss is that of the answer alone.

    Args:
        rows: result of `load_instructions`.
        tokenizer: tokenizer of the model; its chat template is used if it has one.
        length: number of tokens that are kept per row.

    Raises:
        ValueError: if no answer fits.
    """
    pieces = []
    for row in rows:
        question = "\n".join(filter(None, (row["instruction"], row.get("input"))))
        if getattr(tokenizer, "chat_template", None):
            # The template also puts the special tokens before the text.
            message = [{"role": "user", "content": question}]
            options = {"add_generation_prompt": True, "tokenize": False}
            question = tokenizer.apply_chat_template(message, **options)
            before = []
        else:
            question += "\n"
            before = beginning(tokenizer)
        both = tokenizer([question, row["output"]], add_special_tokens=False)["input_ids"]
        before = before + both[0]
        ids = before + both[1] + ending(tokenizer)
        if len(before) < length:
            pieces.append((torch.tensor(ids[:length]), len(before)))
    if not pieces:
        raise ValueError(f"no answer begins within {length} tokens; raise length")
    return pieces


def load_instructions(name: str) -> list[dict[str, str]]:
    """Return the rows of a set for instruction tuning.

    Args:
        name: id or path of a data set with the columns instruction, output and perhaps input.

    Raises:
        ValueError: for a missing column or an empty instruction or output.
    """
    table = _split_of(name, "train")
    columns = [] if isinstance(table, Rows) else text_columns(table)
    if isinstance(table, Rows) or not {"instruction", "output"} <= {*columns}:
        raise ValueError(
            f'"{name}" has the text columns {", ".join(columns) or "of a text set"}; expected '
            "instruction, output, and perhaps input"
        )
    rows = [{k: row.get(k) or "" for k in COLUMNS} for row in table]
    for number, row in enumerate(rows, 1):
        if not row["instruction"] or not row["output"]:
            raise ValueError(f'row {number} of "{name}" has no instruction or no output; add it')
    return rows
