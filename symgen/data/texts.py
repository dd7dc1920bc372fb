"""Texts: parts for networks, texts for language models, and tokenizers."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from symgen.data.columns import TEXTS, choose, text_columns
from symgen.data.sources import (
    HELD_OUT,
    SOURCES,
    Source,
    from_pretrained,
    import_transformers,
    open_splits,
)
from symgen.data.splits import Indices, Part, Rows
from symgen.names import unknown

VOCABULARY = 8192
MASKED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CAUSAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
COLUMNS = ("instruction", "input", "output")


class TextPart(Part):
    """Texts, tokenized once; a batch is padded to its longest text.

    Args:
        texts: one string per sample.
        labels: class indices.
        tokenizer: a fast tokenizer of `transformers`, with a pad and a mask token.
        max_length: longer texts are cut to this many tokens.
    """

    # Share of tokens hidden by `augment`.
    HIDDEN = 0.1

    def __init__(
        self, texts: list[str], labels: Int[Tensor, "sample"], tokenizer: Any, max_length: int
    ):
        super().__init__(labels)
        self.texts = texts
        self.tokenizer = tokenizer
        self._ids = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]

    def batch(self, indices: Indices) -> tuple[dict[str, Tensor], Tensor]:
        """Return input_ids and attention_mask, each (sample, token) int64, and labels."""
        index = torch.as_tensor(indices)
        rows = [torch.tensor(self._ids[i]) for i in index.tolist()]
        padding = self.tokenizer.pad_token_id
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask}, self.labels[index]

    def augment(
        self, indices: Indices, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the samples with a tenth of their tokens replaced by the mask token.

        Otherwise a network trained from scratch would never meet the mask token. Its outputs on
        masked inputs would then rest on an embedding that kept its random initial value.
        """
        x, y = self.batch(indices)
        ids = x["input_ids"]
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
        hidden = (torch.rand(ids.shape, generator=generator) < self.HIDDEN) & ~special
        x["input_ids"] = ids.masked_fill(hidden, self.tokenizer.mask_token_id)
        return x, y

    def show(self, i: int) -> str:
        """Return the text of sample i."""
        return self.texts[i]

    def _content(self) -> list:
        special = [self.tokenizer.mask_token_id, self.tokenizer.pad_token_id]
        return [self.texts, self._ids, special]


class TokenPart(Part):
    """Pieces of text for a causal language model, whose labels are their own tokens.

    Args:
        pieces: token ids, and the position from which the loss counts; see `pieces_of`.
        vocabulary: number of tokens that the model knows, and of its logits per token. Fewer pieces
            are evaluated at once if the logits take much memory.
    """

    chunk = 20
    # Memory of the logits of a chunk, in bytes of float32, and the number of copies of them.
    LOGITS = 2**30
    COPIES = 4

    def __init__(self, pieces: Sequence[tuple[Tensor, int]], vocabulary: int = 1):
        super().__init__(torch.zeros(len(pieces), dtype=torch.int64))
        self.pieces = list(pieces)
        longest = max((len(piece) for piece, _ in pieces), default=1)
        fit = self.LOGITS // (4 * self.COPIES * longest * vocabulary)
        self.chunk = min(self.chunk, max(fit, 1))

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return ids, padded on the right, and labels; a label of -100 does not count."""
        chosen = [self.pieces[i] for i in torch.as_tensor(indices).tolist()]
        ids = pad_sequence([p for p, _ in chosen], batch_first=True)
        labels = []
        for piece, first in chosen:
            labels.append(piece.clone())
            labels[-1][:first] = -100
        return ids, pad_sequence(labels, batch_first=True, padding_value=-100)

    def _content(self) -> list:
        return self.pieces


def joined(
    texts: Sequence[str] | Sequence[tuple[str, str]], tokenizer: Any, max_length: int
) -> list[str]:
    """Return pairs of texts as single texts, joined as the tokenizer joins a pair.

    BERT's tokenizer gives the same ids for ``"a man eats[SEP]he is hungry"`` as for the pair. Both
    texts are of segment 0. If the tokenizer joins without a token, it is a space.

    Args:
        texts: pairs of texts; single texts are returned as they are.
        tokenizer: tokenizer of the network.
        max_length: number of tokens that are kept of each.

    Warns:
        UserWarning: if nothing of the second text is kept of some pairs.
    """
    pairs = [text for text in texts if not isinstance(text, str)]
    if not pairs:
        return [text for text in texts if isinstance(text, str)]
    example = tokenizer("a", "a")
    parts = example.sequence_ids()
    between = slice(parts.index(0) + 1, parts.index(1))
    tokens = tokenizer.convert_ids_to_tokens(example["input_ids"][between])
    separator = "".join(tokens) or " "
    begun = tokenizer([f"{first}{separator}" for first, _ in pairs])["input_ids"]
    lost = sum(len(ids) >= max_length for ids in begun)
    if lost:
        warnings.warn(
            f"{lost} of {len(pairs)} pairs keep nothing of their second text; raise "
            f"max_length={max_length}",
            stacklevel=3,
        )
    return [f"{first}{separator}{second}" for first, second in pairs]


def load_texts(name: str, split: str = "train", column: str | None = None) -> list[str]:
    """Return the distinct texts of a data set, in their order, for use with a language model.

    Args:
        name: registered name, id or path, such as ``"rajpurkar/squad"``.
        split: name of the split; the only split of a set is taken whatever its name is.
        column: column of the texts; by default that with a usual name, or the only one with
            strings. Of a pair of texts both are taken.

    Raises:
        ValueError: for an unknown name or split, and for a set without texts.

    Example:
        >>> len(load_texts("planted-sentiment", "test"))
        1000
    """
    splits = open_splits(name)
    if split not in splits and len(splits) > 1:
        raise unknown(f'split of "{name}"', split, splits)
    table = splits.get(split, next(iter(splits.values())))
    if isinstance(table, Rows):
        texts = table.take(np.arange(len(table.labels))) if table.kind == "text" else []
    else:
        columns = [column] if column else SOURCES.get(name, Source()).inputs
        if not columns:
            columns = choose(table, f'"{name}"', "text", text_columns(table), TEXTS)
        texts = [text for key in columns for text in table[key]]
    found = list(dict.fromkeys(text for text in texts if text and text.strip()))
    if not found:
        raise ValueError(f'data set "{name}" holds no texts; expected a column of strings')
    return found


def load_tokenizer(tokenizer: Any, texts: list[str]) -> Any:
    """Return a tokenizer fit for masking.

    Args:
        tokenizer: a tokenizer; or the hub id or path of one; or a vocabulary size (default
            8,192) for one that is trained on the texts: WordPiece in lower case, like BERT's,
            with the special tokens [PAD], [UNK], [CLS], [SEP] and [MASK].
        texts: texts of the training set.

    Raises:
        ValueError: if it has no mask token, no pad token, no words or no character offsets.
    """
    name = tokenizer if isinstance(tokenizer, str) else type(tokenizer).__name__
    if isinstance(tokenizer, str):
        tokenizer = from_pretrained("AutoTokenizer", tokenizer)
    elif tokenizer is None or isinstance(tokenizer, int):
        tokenizer = train_tokenizer(texts, special=MASKED, size=tokenizer or VOCABULARY)
    for kind in ("mask", "pad"):
        if getattr(tokenizer, f"{kind}_token", None) is None:
            raise ValueError(
                f'the tokenizer "{name}" has no {kind} token, which masking needs; set '
                f"tokenizer.{kind}_token to one of its tokens, or use the tokenizer of a masked "
                "language model such as BERT"
            )
    words = set(tokenizer.get_vocab()) - {*tokenizer.all_special_tokens}
    if not words or not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f'the tokenizer "{name}" has no words or gives no character offsets; expected a fast '
            "tokenizer, whose folder holds a tokenizer.json"
        )
    return tokenizer


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
    return sorted(counts, key=lambda item: (-counts[item], item))[: max(0, size)]


def split_texts(name: str) -> dict[str, list[str]]:
    """Return the texts of a data set in three disjoint parts: target, baseline and test.

    The training split is cut in halves. The test split (or validation split) is held out; if a set
    has one split only, every fifth text is.

    Args:
        name: see `load_texts`.
    """
    splits = open_splits(name)
    held = next((s for s in HELD_OUT if s in splits), None)
    if held and len(splits) > 1:
        train = load_texts(name, "train")
        test = load_texts(name, held)
    else:
        whole = load_texts(name)
        train = [text for i, text in enumerate(whole) if i % 5]
        test = whole[::5]
    seen = set(train)
    test = [text for text in test if text not in seen]
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
    found = []
    for text, ids, offsets in zip(
        texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
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
                found.append((piece, first))
    return found


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
    found = []
    for row in rows:
        question = "\n".join(filter(None, (row["instruction"], row.get("input"))))
        if getattr(tokenizer, "chat_template", None):
            # The template also puts the special tokens before the text.
            message = [{"role": "user", "content": question}]
            question = tokenizer.apply_chat_template(
                message, add_generation_prompt=True, tokenize=False
            )
            before = []
        else:
            question += "\n"
            before = beginning(tokenizer)
        both = tokenizer([question, row["output"]], add_special_tokens=False)["input_ids"]
        before = before + both[0]
        ids = before + both[1] + ending(tokenizer)
        if len(before) < length:
            found.append((torch.tensor(ids[:length]), len(before)))
    if not found:
        raise ValueError(f"no answer begins within {length} tokens; raise length")
    return found


def load_instructions(name: str) -> list[dict[str, str]]:
    """Return the rows of a set for instruction tuning.

    Args:
        name: id or path of a data set with the columns instruction, output and perhaps input.

    Raises:
        ValueError: for a missing column or an empty instruction or output.
    """
    splits = open_splits(name)
    table = splits.get("train", next(iter(splits.values())))
    columns = [] if isinstance(table, Rows) else text_columns(table)
    if isinstance(table, Rows) or not {"instruction", "output"} <= set(columns):
        raise ValueError(
            f'"{name}" has the text columns {", ".join(columns) or "of a text set"}; expected '
            "instruction, output, and perhaps input"
        )
    rows = table.select_columns([k for k in COLUMNS if k in columns]).to_list()
    for number, row in enumerate(rows, 1):
        if not row["instruction"] or not row["output"]:
            raise ValueError(f'row {number} of "{name}" has no instruction or no output; add it')
    return [{k: row.get(k) or "" for k in COLUMNS} for row in rows]
