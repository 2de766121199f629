"""A card in pixels, for the attack, card.png and simulated photographs: core installs have no PDF renderer.

The texture is sampled as a layer of a scene is, with the kernel "torch_bilinear_aa" of `resize`; an edge inside a
pixel covers its share of it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attacks.perturbations.patch.card import MODULES, Box, Card, Fill, card_fills
from transforms.sampling.homography import half_pixels, invert

Picture = NDArray[np.uint8]  # (H, W, 3)
Texture = NDArray[np.float32]  # (h, w, 3) of values 0..255, already over white paper

INCH = 25.4  # mm
WHITE = 255
#: Rows at a time: bounds the memory of a large card in floating point.
STRIP = 256
#: The most pixels that Pillow opens without a warning.
MAX_PIXELS = 89_000_000


@dataclass(frozen=True)
class RasterGrid:
    """A map of millimetres to pixels: pixels a millimetre across and down, and the pixel position of (0, 0) mm."""

    horizontal: float
    down: float
    left: float = 0.0
    top: float = 0.0

    def columns(self, box: Box) -> tuple[float, float]:
        return self.left + box.x * self.horizontal, self.left + (box.x + box.width) * self.horizontal

    def rows(self, box: Box) -> tuple[float, float]:
        return self.top + box.y * self.down, self.top + (box.y + box.height) * self.down


def card_picture(card: Card, texture: Texture, dpi: int) -> Picture:
    """The card at exactly `dpi` pixels an inch from its upper left corner. Raises ValueError above `MAX_PIXELS`
    pixels."""
    grid = RasterGrid(dpi / INCH, dpi / INCH)
    size = round(card.height * grid.down), round(card.width * grid.horizontal)
    if math.prod(size) > MAX_PIXELS:
        raise ValueError(
            f"`dpi` is too high for a card of {card.width:.0f} x {card.height:.0f} mm: {dpi} makes "
            f"{math.prod(size) / 1e6:.0f} megapixels, more than {MAX_PIXELS / 1e6:.0f}; lower it, or `width_mm` to "
            f"about {0.99 * card.patch.width * math.sqrt(MAX_PIXELS / math.prod(size)):.0f}"
        )
    picture = np.full((*size, 3), WHITE, np.uint8)
    lay(picture, grid, texture, card.patch)
    fill_boxes(picture, grid, card_fills(card))
    return picture


def patch_picture(texture: Texture, size: tuple[int, int]) -> Picture:
    """The texture alone as (height, width) pixels, edge to edge."""
    picture = np.full((*size, 3), WHITE, np.uint8)
    lay(picture, RasterGrid(size[1], size[0]), texture, Box(0, 0, 1, 1))
    return picture


def surround(card: Card, texture: tuple[int, int]) -> tuple[Picture, int, int, int]:
    """The card with a blank patch, where a texel is a whole number of pixels, and a tag's module four or more.

    Args:
        texture: (height, width) of the patch in texels.

    Returns:
        The picture, the first row and column of the patch in it, and the pixels k along a texel: the patch lies in
            rows top..top + k*h, columns left..left + k*w. The white edge of the card is rounded up to whole pixels.
    """
    rows, columns = texture
    patch = card.patch
    module = card.tags[0].box.width / MODULES
    k = max(1, math.ceil(4.0 / module * max(patch.width / columns, patch.height / rows)))
    dense_x, down = k * columns / patch.width, k * rows / patch.height
    left, top = math.ceil(patch.x * dense_x), math.ceil(patch.y * down)
    right = math.ceil((card.width - patch.x - patch.width) * dense_x)
    low = math.ceil((card.height - patch.y - patch.height) * down)
    picture = np.full((top + k * rows + low, left + k * columns + right, 3), WHITE, np.uint8)
    fill_boxes(picture, RasterGrid(dense_x, down, left - patch.x * dense_x, top - patch.y * down), card_fills(card))
    return picture, top, left, k


def fill_boxes(picture: Picture, grid: RasterGrid, fills: Iterable[Fill]) -> None:
    """Draw shapes; a pixel mixes by the share that is covered."""
    for shape in fills:
        columns = [grid.columns(box) for box in shape.boxes]
        rows = [grid.rows(box) for box in shape.boxes]
        x0, x1 = _range(min(a for a, _ in columns), max(b for _, b in columns), picture.shape[1])
        y0, y1 = _range(min(a for a, _ in rows), max(b for _, b in rows), picture.shape[0])
        cover = np.zeros((y1 - y0, x1 - x0), np.float32)
        for column, row in zip(columns, rows, strict=True):
            a, b = _range(*column, picture.shape[1])
            c, d = _range(*row, picture.shape[0])
            cover[c - y0 : d - y0, a - x0 : b - x0] += np.outer(_cover(*row, c, d), _cover(*column, a, b))
        _blend(picture[y0:y1, x0:x1], np.asarray(shape.colour, np.float32), np.minimum(cover, 1))


def lay(picture: Picture, grid: RasterGrid, texture: Texture, box: Box) -> None:
    (x0, x1), (y0, y1) = grid.columns(box), grid.rows(box)
    a, b = _range(x0, x1, picture.shape[1])
    c, d = _range(y0, y1, picture.shape[0])
    height, width = texture.shape[:2]
    columns = _weights(width, a, b, x0, width / (x1 - x0))
    horizontal = _cover(x0, x1, a, b)
    for start in range(c, d, STRIP):
        stop = min(start + STRIP, d)
        rows = _weights(height, start, stop, y0, height / (y1 - y0))
        lines = (rows @ texture.reshape(height, -1)).reshape(stop - start, width, -1)
        values = np.stack([lines[..., channel] @ columns.T for channel in range(3)], axis=-1)
        _blend(picture[start:stop, a:b], values, np.outer(_cover(y0, y1, start, stop), horizontal))


def _blend(picture: Picture, values: NDArray[Any], cover: NDArray[Any]) -> None:
    share = cover[..., None].astype(np.float32)
    picture[...] = np.clip(np.rint(picture * (1 - share) + values * share), 0, 255)


def _range(start: float, stop: float, size: int) -> tuple[int, int]:
    """The pixels 0..size that an interval touches."""
    return max(0, math.floor(start)), min(size, math.ceil(stop))


def _cover(start: float, stop: float, first: int, last: int) -> NDArray[np.float32]:
    """The share of each pixel first..last that lies within an interval."""
    pixels = np.arange(first, last)
    overlap = np.minimum(pixels + 1, stop) - np.maximum(pixels, start)
    return np.asarray(np.clip(overlap, 0, 1), np.float32)


def _weights(texels: int, first: int, last: int, start: float, step: float) -> NDArray[np.float32]:
    """Bilinear weights (pixels first..last, texels) of a texture from pixel `start` on, `step` texels a pixel."""
    centres = (np.arange(first, last) + 0.5 - start) * step - 0.5
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(texels)) / max(1.0, step), 0, None)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


@dataclass(frozen=True, eq=False)
class Surround:
    """A picture with room for the texture.

    Args:
        picture: (1,C,H,W) in [0,1], the paper and all that is printed on it.
        top, left: of the texture, in pixels of `picture`.
        times: pixels of `picture` along each side of a texel.
    """

    picture: Tensor
    top: int
    left: int
    times: int

    def embed(self, texture: Tensor, alpha: Tensor | None) -> Tensor:
        """The texture (N,C,h,w), where `alpha` (1,1,h,w) is not paper, in its place -> (N,C,H,W)."""
        fine = _enlarge(texture, self.times)
        if alpha is not None:
            share = _enlarge(alpha.to(texture), self.times)
            fine = fine * share + (1 - share)  # of white paper
        height, width = fine.shape[2:]
        whole, high, wide = self.picture.to(texture), self.picture.shape[2], self.picture.shape[3]
        edges = (self.left, wide - self.left - width, self.top, high - self.top - height)
        hole = F.pad(torch.ones_like(fine[:1, :1]), edges)
        return F.pad(fine, edges) + (1 - hole) * whole

    def pull(self, texture: tuple[int, int]) -> Tensor:
        """(3,3) in float64 from the stage frame of a texture of that size (height, width) to that of the picture."""
        like = torch.empty(0, dtype=torch.float64)
        inner, outer = (half_pixels(size, like) for size in (texture, (self.picture.shape[2], self.picture.shape[3])))
        k, x, y = float(self.times), 2.0 * self.left, 2.0 * self.top
        return invert(outer) @ torch.tensor([[k, 0, x], [0, k, y], [0, 0, 1]], dtype=torch.float64) @ inner


def _enlarge(texture: Tensor, times: int) -> Tensor:
    """The texture enlarged as by the sampler: linear between the centres of texels."""
    return texture if times == 1 else F.interpolate(texture, scale_factor=times, mode="bilinear", align_corners=False)
