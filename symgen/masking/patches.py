"""Choose the input variables of an image: patches of a grid."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class ImageVariables:
    """Patches of a square grid, the same number n for every sample (App. A.1).

    Attributes:
        patches: (sample, n) numbers of the drawn grid cells, 0..grid*grid-1 row by row.
            Variable i of a sample is its column i, bit i of a masked state.
        grid: cells along each side.
    """

    patches: Int[Tensor, "sample n"]
    grid: int

    @property
    def n(self) -> int:
        """Number of variables of a sample."""
        return self.patches.shape[1]

    def __len__(self) -> int:
        return self.patches.shape[0]

    def __getitem__(self, indices: Any) -> "ImageVariables":
        """Return the variables of some samples: an index, a slice, or an array of indices."""
        if isinstance(indices, int):
            indices = [range(len(self))[indices]]
        return ImageVariables(self.patches[indices], self.grid)

    def edges(self, size: int) -> list[int]:
        """Return where the cells begin and end along a side of `size` pixels, grid + 1 numbers.

        Sizes that are no multiple of the grid give cells that differ by at most one pixel.

        Example:
            >>> draw_patches(1, n=2, grid=5).edges(32)
            [0, 6, 12, 19, 25, 32]
        """
        if size < self.grid:
            raise ValueError(
                f"a side of {size} pixels cannot be cut into {self.grid} patches, one pixel each "
                f"at least; use grid={size} or smaller, or an earlier layer with a larger map"
            )
        return [k * size // self.grid for k in range(self.grid + 1)]

    def cells(self, height: int, width: int) -> Int[Tensor, "height width"]:
        """Return the number of the grid cell that each pixel belongs to."""
        row, column = (
            torch.repeat_interleave(torch.arange(self.grid), torch.tensor(self.edges(size)).diff())
            for size in (height, width)
        )
        return row[:, None] * self.grid + column

    def owners(self, height: int, width: int) -> Int[Tensor, "sample height width"]:
        """Return the variable that each pixel of a map belongs to; n where it belongs to none.

        Example:
            >>> draw_patches(1, n=4, grid=2).owners(2, 4).tolist()
            [[[0, 0, 1, 1], [2, 2, 3, 3]]]
        """
        variable = torch.full((len(self), self.grid**2), self.n)
        variable.scatter_(1, self.patches.cpu().long(), torch.arange(self.n).expand(len(self), -1))
        return variable[:, self.cells(height, width)]

    def boxes(self, height: int, width: int) -> Int[Tensor, "sample n 4"]:
        """Return left, top, right, bottom of each patch, in pixels of an image of this size.

        Right and bottom are exclusive, so that a rectangle drawn from (left, top) with width
        right - left and height bottom - top covers the patch.
        """
        rows, columns = torch.tensor(self.edges(height)), torch.tensor(self.edges(width))
        row, column = self.patches.cpu() // self.grid, self.patches.cpu() % self.grid
        sides = columns[column], rows[row], columns[column + 1], rows[row + 1]
        return torch.stack(sides, dim=-1)


def draw_patches(count: int, n: int = 10, grid: int = 5, seed: int = 0) -> ImageVariables:
    """Draw n of the grid*grid patches at random for each of `count` samples (App. A.1).

    Args:
        count: samples. Sample i always gets the same patches, whatever the count.
        n: variables of a sample, 1..grid*grid.
        grid: patches along each side of the image or feature map.
        seed: of the draw.

    Raises:
        ValueError: when the grid has fewer than n patches.

    Example:
        >>> draw_patches(2, n=3, seed=1).patches.tolist()
        [[1, 7, 20], [4, 15, 21]]
    """
    if not 1 <= n <= grid**2:
        raise ValueError(
            f"n = {n} variables were asked of a {grid}x{grid} grid, which has {grid**2} patches; "
            f"use n in 1..{grid**2} or a finer grid"
        )
    drawn = [
        np.sort(np.random.default_rng([seed, i]).permutation(grid**2)[:n]) for i in range(count)
    ]
    patches = torch.from_numpy(np.array(drawn, dtype=np.int64).reshape(count, n))
    return ImageVariables(patches, grid)
