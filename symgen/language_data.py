"""What causal language models are trained on and begin with: tokenizer, pieces, a small Llama."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from symgen.corpus import count_words, load_texts, most_frequent, word_pieces
from symgen.networks import import_transformers
from symgen.sources import json_lines, open_splits, text_columns

SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
COLUMNS = ("instruction", "input", "output")


def train_tokenizer(texts: Sequence[str], words: int = 4096, pieces: int = 1024) -> Any:
    """Return a tokenizer of whole words in lower case, and of pieces for the other words.

    It puts [BOS] before a text. The same texts always give the same tokenizer.

    Args:
        texts: to count words in.
        words: how many of the most frequent are one token.
        pieces: how many beginnings and endings of two to six letters there are for the rest.
    """
    counts, parts = count_words(texts)
    letters = sorted({letter for word in counts for letter in word})
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    tokens += [*most_frequent(counts, words), *most_frequent(parts, pieces)]
    made = word_pieces(list(dict.fromkeys(tokens)), "[BOS] $A", ("[BOS]",))
    transformers = import_transformers()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL},
    )


def tiny_llama(vocabulary: int, width: int = 64, layers: int = 2, seed: int = 0) -> nn.Module:
    """Return an untrained Llama, its weights drawn from the seed alone.

    Args:
        vocabulary: number of tokens.
        width: of the residual stream, a multiple of 16; heads are 16 wide.
        layers: number of blocks.
        seed: of the weights.
    """
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=width // 16,
        max_position_embeddings=1024, tie_word_embeddings=True,
        # The usual 0.02 is made for wide models; narrow ones hardly begin to learn from it.
        initializer_range=width**-0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return transformers.LlamaForCausalLM(config).eval()


def split_texts(name: str) -> dict[str, list[str]]:
    """Return the texts of a data set in three parts: target, baseline, and test for prompts.

    The training split is cut in halves; the test split (or validation split) is held out, or every
    fifth text where a set has one split only. No text is in two parts.

    Args:
        name: see `load_texts`.
    """
    splits = open_splits(name)
    held = next((s for s in ("test", "validation", "valid", "dev") if s in splits), None)
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
        rows = json_lines(name)
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
        for column in COLUMNS:
            if not isinstance(row.get(column) or "", str):
                raise ValueError(
                    f"row {number} of {name} has {str(row[column])[:40]} as {column}; expected a "
                    'text, such as {"instruction": "...", "input": "", "output": "..."}'
                )
    return [{k: row.get(k) or "" for k in COLUMNS} for row in rows]
