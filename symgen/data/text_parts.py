"""Texts with labels: the part of a data set for a text classifier, and its tokenizer."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from symgen.data.sources import from_pretrained
from symgen.data.splits import Indices, Part
from symgen.data.texts import MASKED, VOCABULARY, train_tokenizer


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
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
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


def joined(texts: Sequence[Any], tokenizer: Any, max_length: int) -> list[str]:
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
    if isinstance(texts[0], str):
        return list(texts)
    example = tokenizer("a", "a")
    parts = example.sequence_ids()
    between = example.tokens()[parts.index(0) + 1 : parts.index(1)]
    separator = "".join(between) or " "
    begun = tokenizer([first + separator for first, _ in texts])["input_ids"]
    lost = sum(len(ids) >= max_length for ids in begun)
    if lost:
        warnings.warn(
            f"{lost} of {len(texts)} pairs keep nothing of their second text; raise "
            f"max_length={max_length}",
            stacklevel=3,
        )
    return [first + separator + second for first, second in texts]


def load_tokenizer(tokenizer: Any, texts: list[str]) -> Any:
    """Return a tokenizer fit for masking.

    Args:
        tokenizer: a tokenizer; or the hub id or path of one; or a vocabulary size (default
            8,192) for one that is trained on the texts. That one is WordPiece in lower case, like
            BERT's, with the special tokens [PAD], [UNK], [CLS], [SEP] and [MASK].
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
