"""Parts of a data set: samples that one network is trained or tested on."""

import functools
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from symgen.data.hub import Source
from symgen.fingerprints import fingerprint

# Kinds of image files that are read; others could start a program to be drawn.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
# Pixels; larger images take gigabytes once they are decoded.
LARGEST = 2**26

Indices = Sequence[int] | np.ndarray | Tensor


def decode(
    raw: bytes | np.ndarray, box: np.ndarray | None = None, draft: tuple[int, int] | None = None
) -> Any:
    """Return an RGB image (PIL) from its encoded bytes or pixels, cropped to its bounding box.

    Args:
        raw: encoded image, or uint8 array (height, width, channel).
        box: x, y, width, height in pixels; parts outside the image are cut off.
        draft: a JPEG file is decoded at the nearest size at least so large, which is faster.

    Raises:
        ValueError: for a file that is damaged, animated, too large, or of more than 8 bits.
    """
    try:
        return _decode(raw, box, draft)
    except Exception as error:  # of damaged files Pillow's decoders raise almost anything
        said = " ".join((str(error) or type(error).__name__).split())
        if type(error).__name__ == "UnidentifiedImageError":  # it names a place in memory
            said = f"it is no file of {', '.join(FORMATS)}"
        raise ValueError(f"no usable image: {said[:200]}") from error


def _decode(raw: bytes | np.ndarray, box: np.ndarray | None, draft: tuple[int, int] | None) -> Any:
    from PIL import Image

    if isinstance(raw, np.ndarray):
        image = Image.fromarray(raw)
    else:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
    if image.width * image.height > LARGEST:
        raise ValueError(f"{image.width} x {image.height} pixels are more than {LARGEST:,}")
    # Cameras put a preview into the file as a second picture (MPO).
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise ValueError("it is animated, or holds several pictures")
    if image.mode[0] in "IF":
        raise ValueError(f"its pixels (mode {image.mode}) have more than 8 bits; convert it to 8")
    if draft:
        image.draft("RGB", draft)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if box is None:
        return image
    x, y, width, height = (float(value) for value in box)
    left, top = max(0, int(x)), max(0, int(y))
    if left >= image.width or top >= image.height:
        raise ValueError(f"its bounding box begins at {left}, {top}, outside of it")
    right = max(left + 1, min(image.width, round(x + width)))
    return image.crop((left, top, right, max(top + 1, min(image.height, round(y + height)))))


class Part(torch.utils.data.Dataset):
    """A map-style set of (input, label) pairs.

    Attributes:
        labels: (sample,) int64 class indices, as the networks are trained on them.
        clean_labels: (sample,) the labels before any were replaced at random.
    """

    # Samples that are measured at once.
    chunk = 250

    def __init__(self, labels: Int[Tensor, " sample"]):
        self.labels = self.clean_labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, Tensor]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a part with {len(self)} samples")
        x, y = self.batch([i % len(self)])
        return ({k: v[0] for k, v in x.items()} if isinstance(x, dict) else x[0]), y[0]

    def batch(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return (x, y) of the given samples as the network takes them, not augmented."""
        raise NotImplementedError

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Return (x, y) of the given samples, augmented at random for training."""
        raise NotImplementedError

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the part's content: inputs, labels and preprocessing."""
        return fingerprint([self.labels, self._content()])


class ImagePart(Part):
    """Small images, held in memory and augmented batchwise.

    Args:
        images: pixels 0..255.
        labels: class indices.
        source: gives the statistics for normalisation, and whether mirroring is allowed.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "sample 3 height width"],
        labels: Int[Tensor, " sample"],
        source: Source = Source(),  # noqa: B008
    ):
        super().__init__(labels)
        self.images, self.flip = images, source.flip
        self.mean, self.std = (torch.tensor(s)[:, None, None] for s in source.statistics)

    def _normalise(self, pixels: Tensor) -> Float[Tensor, "sample 3 height width"]:
        return pixels.float().div_(255).sub_(self.mean).div_(self.std)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised images (sample, 3, height, width) float32, and labels."""
        index = torch.as_tensor(indices)
        return self._normalise(self.images[index]), self.labels[index]

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images shifted by up to an eighth of their size, and mirrored where allowed."""
        index = torch.as_tensor(indices)
        pixels = self.images[index]
        count, _, height, width = pixels.shape
        pad = max(1, height // 8)
        shift = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
        rows, columns = shift[0] + torch.arange(height), shift[1] + torch.arange(width)
        if self.flip:
            mirrored = torch.rand(count, generator=generator) < 0.5
            columns[mirrored] = columns[mirrored].flip(1)
        padded = F.pad(pixels, (pad,) * 4).permute(0, 2, 3, 1)
        cut = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self._normalise(cut.permute(0, 3, 1, 2)), self.labels[index]

    def image(self, i: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return sample i for display."""
        return self.images[i].permute(1, 2, 0).numpy()

    def _content(self) -> list:
        return [self.images, self.mean, self.std, self.flip]


class LargeImagePart(ImagePart):
    """Large images, kept encoded and decoded batch by batch.

    Args:
        encoded: image files as bytes, or uint8 arrays (height, width, channel).
        labels: class indices.
        source: statistics, whether mirroring is allowed, and the size in pixels.
        boxes: (sample, 4) bounding boxes to crop to.
    """

    chunk = 64

    def __init__(
        self,
        encoded: list,
        labels: Int[Tensor, " sample"],
        source: Source,
        boxes: np.ndarray | None = None,
    ):
        # No pixels are held.
        super().__init__(torch.empty(len(labels), 3, 0, 0, dtype=torch.uint8), labels, source)
        self.encoded, self.boxes, self.size = encoded, boxes, source.size or 224

    def _decode(self, i: int) -> Any:
        return decode(self.encoded[i], None if self.boxes is None else self.boxes[i])

    def image(self, i: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return sample i for display: its centre, as the networks see it."""
        picture = self._decode(int(i))
        # The usual 224 of 256 pixels, at any size.
        side = min(picture.size) * 224 / 256
        left, top = (picture.width - side) / 2, (picture.height - side) / 2
        return self._cut(picture, (left, top, left + side, top + side))

    def _cut(self, picture: Any, box: tuple) -> np.ndarray:
        from PIL import Image

        return np.array(picture.resize((self.size, self.size), Image.BILINEAR, box=box))

    def _stack(self, cut: Any, *arguments: Any) -> Tensor:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            images = list(pool.map(cut, *arguments))
        return self._normalise(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised centres of the images, (sample, 3, size, size), and labels."""
        index = torch.as_tensor(indices)
        return self._stack(self.image, index.tolist()), self.labels[index]

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random resized crops, mirrored half of the time (App. E.1)."""
        index = torch.as_tensor(indices)
        draws = torch.rand(len(index), 5, generator=generator).tolist()
        return self._stack(self._random_crop, index.tolist(), draws), self.labels[index]

    def _random_crop(self, i: int, draw: list[float]) -> np.ndarray:
        picture = self._decode(i)
        # Area 8 to 100 % and aspect ratio 3/4 to 4/3, as usual for ImageNet.
        area = (0.08 + 0.92 * draw[0]) * picture.width * picture.height
        ratio = (3 / 4) ** (1 - 2 * draw[1])
        width = min(picture.width, (area * ratio) ** 0.5)
        height = min(picture.height, (area / ratio) ** 0.5)
        left, top = draw[2] * (picture.width - width), draw[3] * (picture.height - height)
        cut = self._cut(picture, (left, top, left + width, top + height))
        return cut[:, ::-1] if self.flip and draw[4] < 0.5 else cut

    def _content(self) -> list:
        return [self.encoded, self.boxes, self.size, self.mean, self.std, self.flip]


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
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length
        self._ids = self._encode(texts)["input_ids"]

    def _encode(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer(
            texts,
            truncation=True,
            max_length=self.max_length,
            return_token_type_ids=False,
            **options,
        )

    def batch(self, indices: Indices) -> tuple[dict[str, Tensor], Tensor]:
        """Return input_ids and attention_mask, each (sample, token) int64, and labels."""
        index = torch.as_tensor(indices)
        rows = [torch.tensor(self._ids[i]) for i in index.tolist()]
        padding = self.tokenizer.pad_token_id
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
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

    def text(self, i: int) -> str:
        """Return the text of sample i."""
        return self.texts[i]

    def offsets(self, i: int) -> list[tuple[int, int]]:
        """Return where each token of sample i starts and ends in its text, in characters.

        Special tokens have the empty span (0, 0).
        """
        return self._encode([self.texts[i]], return_offsets_mapping=True)["offset_mapping"][0]

    def _content(self) -> list:
        special = [self.tokenizer.mask_token_id, self.tokenizer.pad_token_id]
        return [self.texts, self._ids, special]


class TokenPart(Part):
    """Pieces of text for a causal language model, whose labels are their own tokens.

    Args:
        pieces: token ids, and from which of them on the loss counts; see `pieces_of`.
    """

    chunk = 20

    def __init__(self, pieces: Sequence[tuple[Tensor, int]]):
        super().__init__(torch.zeros(len(pieces), dtype=torch.int64))
        self.pieces = list(pieces)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return ids, padded on the right where nothing looks at them, and labels, -100 for none."""
        chosen = [self.pieces[i] for i in torch.as_tensor(indices).tolist()]
        ids = torch.nn.utils.rnn.pad_sequence([p for p, _ in chosen], batch_first=True)
        labels = [torch.where(torch.arange(len(p)) < first, -100, p) for p, first in chosen]
        pad = torch.nn.utils.rnn.pad_sequence
        return ids, pad(labels, batch_first=True, padding_value=-100)

    def _content(self) -> list:
        return self.pieces
