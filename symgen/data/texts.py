"""Texts for language models: read, divided, cut into pieces; and tokenizers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symgen.data.hub import (
    DATASETS,
    HELD_OUT,
    Source,
    from_pretrained,
    import_transformers,
    open_splits,
)
from symgen.data.rows import Rows, json_lines, readable, text_columns
from symgen.files import working_folder
from symgen.fingerprints import refusal
from symgen.literal import nearest

VOCABULARY = 8192
MASKED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CAUSAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
COLUMNS = ("instruction", "input", "output")


def load_texts(
    name: str, split: str = "train", revision: str | None = None, column: str | None = None
) -> list[str]:
    """Return the distinct texts of a data set, in their order, for use with a language model.

    Args:
        name: registered name or id, such as ``"rajpurkar/squad"``.
        split: name of the split; a set's only split is taken whatever it is called.
        revision: commit, tag or branch on the hub.
        column: of the texts; by default the registered one, or the one with the longest texts.

    Raises:
        ValueError: for an unknown name, split or column, with those there are.

    Example:
        >>> len(load_texts("planted-sentiment", "test"))
        1000
    """
    splits = open_splits(name, revision)
    if split not in splits and len(splits) > 1:
        raise ValueError(
            f'data set "{name}" has no split "{split}"; it has {", ".join(splits)}.'
            f"{nearest(split, splits)}"
        )
    table = splits.get(split, next(iter(splits.values())))()
    if isinstance(table, Rows):
        if table.kind != "text":
            raise ValueError(f'data set "{name}" holds images; expected a data set of texts')
        return table.take(np.arange(len(table.labels)))
    columns = text_columns(table)
    column = column or DATASETS.get(name, Source()).text or next(iter(columns), None)
    if column not in columns:
        raise ValueError(
            f'data set "{name}" has no column of text named "{column}"; it has '
            f"{', '.join(columns) or 'none'}.{nearest(column, columns)}"
        )
    found = list(dict.fromkeys(text for text in table[column] if text and text.strip()))
    if not found:
        raise ValueError(f'column "{column}" of data set "{name}" holds no text in any row')
    return found


@refusal
def _refuse_without_words(tokenizer: Any, name: str) -> None:
    if set(tokenizer.get_vocab()) <= {*tokenizer.all_special_tokens}:
        raise ValueError(
            f'the tokenizer "{name}" knows no word, only {len(tokenizer)} special tokens: that is '
            "made of a folder without one. Save yours beside the model, by "
            "tokenizer.save_pretrained(folder), so that there is a tokenizer.json"
        )


def load_tokenizer(tokenizer: Any, texts: list[str]) -> Any:
    """Return a tokenizer fit for masking.

    Args:
        tokenizer: one already, or the hub id or path of one, or a vocabulary size (default
            8,192) for one that is trained on the texts: WordPiece in lower case, as BERT's,
            with the special tokens [PAD], [UNK], [CLS], [SEP] and [MASK].
        texts: of the training set.

    Raises:
        ValueError: if it has no mask token, no pad token or no character offsets.
    """
    if isinstance(tokenizer, str):
        name, tokenizer = tokenizer, from_pretrained("AutoTokenizer", tokenizer)
    elif tokenizer is None or isinstance(tokenizer, int):
        name = "trained on the texts"
        tokenizer = train_tokenizer(texts, special=MASKED, size=tokenizer or VOCABULARY)
    else:
        name = type(tokenizer).__name__
    for what in ("mask", "pad"):
        if getattr(tokenizer, f"{what}_token", None) is None:
            raise ValueError(
                f'the tokenizer "{name}" has no {what} token, which masking words needs; set '
                f"tokenizer.{what}_token to one of its tokens, or choose a tokenizer of a "
                "masked language model such as BERT"
            )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f'the tokenizer "{name}" does not tell which characters a token covers; expected a '
            "fast tokenizer (with a tokenizer.json)"
        )
    _refuse_without_words(tokenizer, name)
    advice = "copy it again; expected are a tokenizer.json and a tokenizer_config.json that fit"
    with readable(f'the tokenizer "{name}"', "what it says", advice):
        ids = tokenizer(["a word"], return_offsets_mapping=True)["input_ids"][0]
        if not all(0 <= i < len(tokenizer) for i in [*ids, *tokenizer.all_special_ids]):
            raise ValueError(f"it has {len(tokenizer)} tokens, and gives others")
    return tokenizer


def train_tokenizer(
    texts: Sequence[str],
    words: int = 4096,
    pieces: int = 1024,
    special: Sequence[str] = CAUSAL,
    size: int | None = None,
) -> Any:
    """Return a tokenizer of whole words in lower case, and of pieces for the other words.

    The same texts always give the same tokenizer, which the library's own trainer does not do.

    Args:
        texts: to count words in.
        words: how many of the most frequent are one token.
        pieces: how many beginnings and endings of two to six letters there are for the rest.
        special: `CAUSAL`, which puts [BOS] before a text, or `MASKED`, as BERT's.
        size: of the vocabulary in all, 200 or more; an eighth of it are pieces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        found = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        counts.update(word for word, _ in found)
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        for length in range(2, min(7, len(word))):
            parts[word[:length]] += count
            parts[f"##{word[-length:]}"] += count
    letters = sorted({letter for word in counts for letter in word})[: size and size // 3]
    tokens = [*special, *letters, *(f"##{letter}" for letter in letters)]
    if size is not None:
        if size < 200:
            raise ValueError(
                f"tokenizer={size}: a vocabulary needs at least 200 entries, for the special "
                "tokens, the letters and some words"
            )
        words, pieces = size - len(tokens) - size // 8, size // 8
    tokens = list(dict.fromkeys([*tokens, *_most_frequent(counts, words)]))
    for token in tokens:
        parts.pop(token, None)
    tokens = [*tokens, *_most_frequent(parts, pieces)][:size]
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    made.decoder = decoders.WordPiece()
    around = "[BOS] $A" if "[BOS]" in special else "[CLS] $A [SEP]"
    around_ids = [(t, made.token_to_id(t)) for t in around.split() if t in special]
    made.post_processor = processors.TemplateProcessing(single=around, special_tokens=around_ids)
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{token[1:-1].lower()}_token": token for token in special}
    )


def _most_frequent(counts: Counter[str], size: int) -> list[str]:
    """Return the most frequent entries, ties in the order of the alphabet."""
    return sorted(counts, key=lambda item: (-counts[item], item))[: max(0, size)]


def split_texts(name: str) -> dict[str, list[str]]:
    """Return the texts of a data set in three parts: target, baseline, and test for prompts.

    The training split is cut in halves; the test split (or validation split) is held out, or every
    fifth text where a set has one split only. No text is in two parts.

    Args:
        name: see `load_texts`.
    """
    splits = open_splits(name)
    held = next((s for s in HELD_OUT if s in splits), None)
    if held and len(splits) > 1:
        train, test = load_texts(name, "train"), load_texts(name, held)
    else:
        whole = load_texts(name)
        train, test = [t for i, t in enumerate(whole) if i % 5], whole[::5]
    train = list(dict.fromkeys(train))
    known = set(train)
    test = [text for text in dict.fromkeys(test) if text not in known]
    return {"target": train[::2], "baseline": train[1::2], "test": test}


def pieces_of(
    texts: Sequence[str], tokenizer: Any, length: int = 128, tail: int = 0
) -> list[tuple[Tensor, int]]:
    """Return what a language model is trained on: token ids, and where the loss begins.

    Args:
        texts: any; long ones are cut, and each ends with the tokenizer's end token.
        tokenizer: of the model.
        length: tokens of a piece at most, 2 or more.
        tail: the loss is that of so many last words, where only these can be known, and of a long
            text only the end is kept; 0 for all.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    found = []
    encoded = tokenizer(list(texts), return_offsets_mapping=True, verbose=False)
    for text, ids, offsets in zip(
        texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
        first = 1
        if tail:
            begin = len(text) - len(" ".join(text.split(" ")[-tail:]))
            first = max(1, sum(stop <= begin for _, stop in offsets))
        ids = torch.tensor(ids + end)
        if tail and (cut := len(ids) - length) > 0:
            ids, first = ids[cut:], max(1, first - cut)
        found += [(p, first) for p in ids.split(length) if len(p) > first]
    return found


def instructions_of(
    rows: Sequence[Mapping[str, str]], tokenizer: Any, length: int = 1024
) -> list[tuple[Tensor, int]]:
    """Return instructions and their answers for fine-tuning; the loss is that of the answer alone.

    Args:
        rows: each with "instruction", "output", and perhaps "input".
        tokenizer: of the model; its chat template is used where it has one.
        length: tokens kept of a row.

    Raises:
        ValueError: for a row without instruction or output, or when no answer fits.
    """
    found = []
    for number, row in enumerate(rows):
        if not all(row.get(k) and isinstance(row[k], str) for k in ("instruction", "output")):
            raise ValueError(
                f"row {number} has {sorted(row)}; expected texts named instruction and output, and "
                "perhaps input, as in a JSON-lines file for instruction tuning"
            )
        question = "\n".join(filter(None, (row["instruction"], row.get("input"))))
        if getattr(tokenizer, "chat_template", None):
            message = [{"role": "user", "content": question}]
            asked = tokenizer.apply_chat_template(
                message, add_generation_prompt=True, tokenize=False
            )
            before = tokenizer(asked, add_special_tokens=False)["input_ids"]
        else:
            before = tokenizer(f"{question}\n")["input_ids"]
        answer = tokenizer(row["output"], add_special_tokens=False)["input_ids"]
        ids = [*before, *answer, *([tokenizer.eos_token_id] if tokenizer.eos_token_id else [])]
        if len(before) < length:
            found.append((torch.tensor(ids[:length]), len(before)))
    if not found:
        raise ValueError(f"no answer begins within {length} tokens; raise length")
    return found


def load_instructions(name: str) -> list[dict[str, str]]:
    """Return the rows of a set for instruction tuning.

    Args:
        name: path of a JSON-lines file, each line with instruction, output and perhaps input; or
            the id of a data set with these columns.

    Raises:
        ValueError: for a line or a column that is missing.
    """
    if name.endswith((".jsonl", ".json")):
        rows = json_lines(working_folder() / Path(name).expanduser())
    else:
        splits = open_splits(name)
        table = splits.get("train", next(iter(splits.values())))()
        columns = text_columns(table) if hasattr(table, "column_names") else []
        if not {"instruction", "output"} <= set(columns):
            raise ValueError(
                f'data set "{name}" has the columns of text {", ".join(columns) or "of a text set"}'
                "; expected instruction, output, and perhaps input"
            )
        rows = table.select_columns([k for k in COLUMNS if k in columns]).to_list()
    for number, row in enumerate(rows, 1):
        if not {"instruction", "output"} <= row.keys():
            raise ValueError(
                f"row {number} of {name} has {', '.join(row) or 'nothing'}; expected texts named "
                "instruction and output, and perhaps input"
            )
        for column in COLUMNS:
            if not isinstance(row.get(column) or "", str):
                raise ValueError(
                    f"row {number} of {name} has {str(row[column])[:40]} as {column}; expected a "
                    'text, such as {"instruction": "...", "input": "", "output": "..."}'
                )
    return [{k: row.get(k) or "" for k in COLUMNS} for row in rows]
