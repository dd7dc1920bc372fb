"""Images: decoded safely, held in memory if small, augmented."""

import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from symgen.data.sources import Source
from symgen.data.splits import Indices, Part, Rows

# Kinds of image files that are read. Other kinds could start a program.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
# Images up to this many pixels per side are held in memory; networks give them a small stem.
SMALL = 64


def decode(
    raw: bytes | np.ndarray, box: np.ndarray | None = None, draft: tuple[int, int] | None = None
) -> Any:
    """Return an RGB image (PIL) from its encoded bytes or pixels, cropped to its bounding box.

    It is turned as its EXIF orientation says, as by the library `datasets`.

    Args:
        raw: encoded image, or uint8 array (height, width, channel).
        box: x, y, width, height in pixels. Parts outside the image are cut off.
        draft: a JPEG file is decoded at the nearest size that is at least this large, to save time.

    Raises:
        ValueError: for pixels of more than 8 bits, and for a box outside of the image.
    """
    from PIL import Image, ImageOps

    if isinstance(raw, np.ndarray):
        image = Image.fromarray(raw)
    else:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
    if image.mode[0] in "IF":
        raise ValueError(f"its pixels (mode {image.mode}) have more than 8 bits; convert it to 8")
    if draft:
        image.draft("RGB", draft)
    ImageOps.exif_transpose(image, in_place=True)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if box is None:
        return image
    x, y, width, height = box.tolist()
    left = max(0, int(x))
    top = max(0, int(y))
    if left >= image.width or top >= image.height:
        raise ValueError(f"its bounding box begins at {left}, {top}, outside of it")
    right = max(left + 1, min(image.width, round(x + width)))
    bottom = max(top + 1, min(image.height, round(y + height)))
    return image.crop((left, top, right, bottom))


class ImagePart(Part):
    """Small images, held in memory and augmented batchwise.

    Args:
        images: pixels 0..255.
        labels: class indices.
        source: statistics for normalisation, and whether mirroring is allowed.

    Attributes:
        statistics: (2, channel) mean and standard deviation.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "sample 3 height width"],
        labels: Int[Tensor, "sample"],
        source: Source,
    ):
        super().__init__(labels)
        self.images = images
        self.flip = source.flip
        self.statistics = torch.tensor(source.statistics)

    def _normalise(self, pixels: Tensor) -> Float[Tensor, "sample 3 height width"]:
        mean, std = self.statistics[..., None, None]
        return pixels.float().div_(255).sub_(mean).div_(std)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised images (sample, 3, height, width) float32, and labels."""
        index = torch.as_tensor(indices)
        return self._normalise(self.images[index]), self.labels[index]

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images shifted by up to an eighth of their size, and mirrored if allowed."""
        index = torch.as_tensor(indices)
        pixels = self.images[index]
        count, _, height, width = pixels.shape
        pad = max(1, height // 8)
        shift = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
        rows = shift[0] + torch.arange(height)
        columns = shift[1] + torch.arange(width)
        if self.flip:
            mirrored = torch.rand(count, generator=generator) < 0.5
            columns[mirrored] = columns[mirrored].flip(1)
        padded = F.pad(pixels, (pad,) * 4).permute(0, 2, 3, 1)
        sample = torch.arange(count)[:, None, None]
        cut = padded[sample, rows[:, :, None], columns[:, None, :]]
        return self._normalise(cut.permute(0, 3, 1, 2)), self.labels[index]

    def show(self, i: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return the pixels of sample i."""
        return self.images[i].permute(1, 2, 0).numpy()

    def _content(self) -> list:
        return [self.images, *self.statistics[..., None, None], self.flip]


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
        labels: Int[Tensor, "sample"],
        source: Source,
        boxes: np.ndarray | None = None,
    ):
        # No pixels are held in memory.
        super().__init__(torch.empty(len(labels), 3, 0, 0, dtype=torch.uint8), labels, source)
        self.encoded = encoded
        self.boxes = boxes
        self.size = source.size

    def _decode(self, i: int) -> Any:
        return decode(self.encoded[i], None if self.boxes is None else self.boxes[i])

    def show(self, i: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return the centre of sample i, as the networks see it."""
        picture = self._decode(int(i))
        # The usual 224 of 256 pixels, at any size.
        side = min(picture.size) * 224 / 256
        left = (picture.width - side) / 2
        top = (picture.height - side) / 2
        return self._cut(picture, (left, top, left + side, top + side))

    def _cut(self, picture: Any, box: tuple) -> np.ndarray:
        from PIL import Image

        return np.array(picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))

    def _stack(self, cut: Any, *arguments: Any) -> Tensor:
        with ThreadPoolExecutor() as pool:
            images = list(pool.map(cut, *arguments))
        return self._normalise(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return normalised centres of the images, (sample, 3, size, size), and labels."""
        index = torch.as_tensor(indices)
        return self._stack(self.show, index.tolist()), self.labels[index]

    def augment(self, indices: Indices, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random resized crops, mirrored half of the time (App. E.1)."""
        index = torch.as_tensor(indices)
        draws = torch.rand(len(index), 5, generator=generator).tolist()
        return self._stack(self._random_crop, index.tolist(), draws), self.labels[index]

    def _random_crop(self, i: int, draw: list[float]) -> np.ndarray:
        picture = self._decode(i)
        # Area 8 to 100 % and aspect ratio 3/4 to 4/3, as usual for ImageNet.
        size, shape, across, down, mirror = draw
        area = (0.08 + 0.92 * size) * picture.width * picture.height
        ratio = (3 / 4) ** (1 - 2 * shape)
        width = min(picture.width, (area * ratio) ** 0.5)
        height = min(picture.height, (area / ratio) ** 0.5)
        left = across * (picture.width - width)
        top = down * (picture.height - height)
        cut = self._cut(picture, (left, top, left + width, top + height))
        if self.flip and mirror < 0.5:
            return cut[:, ::-1]
        return cut

    def _content(self) -> list:
        images = [np.frombuffer(x, np.uint8) if isinstance(x, bytes) else x for x in self.encoded]
        return [images, self.boxes, self.size, *self.statistics[..., None, None], self.flip]


def image_part(rows: Rows, index: np.ndarray, labels: Tensor, source: Source) -> ImagePart:
    """Return the images of some rows as a part.

    Args:
        rows: rows of one split.
        index: row numbers.
        labels: labels of these rows.
        source: `Source` of the data set.

    Raises:
        ValueError: for an image that cannot be read, with its row.
    """
    raw = rows.take(index)
    boxes = None if rows.boxes is None else rows.boxes[index]

    def read(i: int, **options: Any) -> Any:
        try:
            return decode(raw[i], **options)
        except Exception as error:  # Pillow raises almost anything for damaged files
            raise ValueError(
                f"row {index[i]} of the data set is not a usable image ({error}); replace it"
            ) from error

    width, height = read(0).size
    # By default, small square images keep their size.
    size = source.size or (width if width == height <= SMALL else 224)

    def small(i: int) -> np.ndarray:
        image = read(i, box=None if boxes is None else boxes[i])
        return np.asarray(image.resize((size, size)))

    def check(i: int) -> None:
        # Decoding at an eighth of the size is enough to find a file that was cut off.
        read(i, draft=(size // 8, size // 8))

    with ThreadPoolExecutor() as pool:
        if size > SMALL:
            list(pool.map(check, range(len(raw))))
            return LargeImagePart(raw, labels, dataclasses.replace(source, size=size), boxes)
        decoded = list(pool.map(small, range(len(raw))))
    images = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous()
    return ImagePart(images, labels, source)
