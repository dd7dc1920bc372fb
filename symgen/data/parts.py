"""Parts of a data set: samples that one network is trained or tested on."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from symgen.fingerprints import fingerprint

Indices = Sequence[int] | np.ndarray | Tensor


class Part:
    """Inputs and their labels.

    Attributes:
        labels: (sample,) int64 class indices, as the networks are trained on them.
    """

    # Samples that are measured at once.
    chunk = 250

    def __init__(self, labels: Int[Tensor, " sample"]):
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return (x, y) of the given samples as the network takes them, not augmented."""
        raise NotImplementedError

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Return (x, y) of the given samples, augmented at random for training."""
        raise NotImplementedError

    def show(self, i: int) -> Any:
        """Return sample i for display."""
        raise NotImplementedError

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the part's content: inputs, labels and preprocessing."""
        return fingerprint([self.labels, self._content()])


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
        self, texts: list[str], labels: Int[Tensor, " sample"], tokenizer: Any, max_length: int
    ):
        super().__init__(labels)
        self.texts, self.tokenizer = texts, tokenizer
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

        Without this, a network trained from scratch would never meet the mask token, and its
        outputs on masked inputs would rest on an embedding that kept its random initial value.
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
        pieces: token ids, and from which of them on the loss counts; see `pieces_of`.
        vocabulary: of the model, which has so many logits for every token; fewer pieces are
            measured at once where these take much memory.
    """

    chunk = 20
    # What the logits of a chunk may take, in bytes of float32, in all their copies.
    LOGITS, COPIES = 2**30, 4

    def __init__(self, pieces: Sequence[tuple[Tensor, int]], vocabulary: int = 1):
        super().__init__(torch.zeros(len(pieces), dtype=torch.int64))
        self.pieces = list(pieces)
        longest = max((len(piece) for piece, _ in pieces), default=1)
        fit = self.LOGITS // (4 * self.COPIES * longest * vocabulary)
        self.chunk = min(self.chunk, max(fit, 1))

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return ids, padded on the right where nothing looks, and labels, -100 for none."""
        chosen = [self.pieces[i] for i in torch.as_tensor(indices).tolist()]
        ids = pad_sequence([p for p, _ in chosen], batch_first=True)
        labels = [torch.where(torch.arange(len(p)) < first, -100, p) for p, first in chosen]
        return ids, pad_sequence(labels, batch_first=True, padding_value=-100)

    def _content(self) -> list:
        return self.pieces
