"""A picture as several views of one size: the whole of it, and the tiles of a larger version."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.doors import unchecked

#: How the larger version is made. "anyres" (LLaVA-NeXT): fitted into the best of some sizes, with a black border;
#: the whole picture comes first. "split" (Idefics3): its longer side is brought to a length, both sides to whole
#: tiles; the whole picture comes last, and alone where one tile is enough.
Cut = Literal["anyres", "split"]
Resize = Callable[[Tensor, tuple[int, int]], Tensor]


class Tiles(NamedTuple):
    """The input of a network that looks at a picture in tiles."""

    pixels: Tensor  # (N,V,3,side,side), normalised
    size: tuple[int, int]  # (height, width) of the picture before


def anyres(images: Tensor, side: int, sizes: Sequence[Sequence[int]], resize: Resize) -> Tensor:
    """(N,3,H,W) -> (N,V,3,side,side), the picture first."""
    height, width = images.shape[2:]
    best = _best(height, width, sizes)
    vertical, horizontal = best[0] / height, best[1] / width
    if horizontal < vertical:
        inner = min(math.ceil(height * horizontal), best[0]), best[1]
    else:
        inner = best[0], min(math.ceil(width * vertical), best[1])
    top, left = ((outer - length) // 2 for outer, length in zip(best, inner, strict=True))
    border = (left, best[1] - inner[1] - left, top, best[0] - inner[0] - top)
    tiles = _cut(F.pad(unchecked(resize)(images, inner), border), side)
    return torch.cat([unchecked(resize)(images, (side, side))[:, None], tiles], 1)


def split(images: Tensor, side: int, sizes: Sequence[Sequence[int]], resize: Resize) -> Tensor:
    """(N,3,H,W) -> (N,V,3,side,side), the picture last. The one size has the longest side twice."""
    (height, width), longest = images.shape[2:], sizes[0][0]
    other = int(longest / (width / height) if width >= height else longest * (width / height))
    other = max(1, other + other % 2)  # an even number beside the longest side
    height, width = (other, longest) if width >= height else (longest, other)
    images, ratio = unchecked(resize)(images, (height, width)), width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    images = unchecked(resize)(images, (height, width))
    if max(height, width) <= side:
        return images[:, None]
    return torch.cat([_cut(images, side), unchecked(resize)(images, (side, side))[:, None]], 1)


def _best(height: int, width: int, sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The size that keeps most pixels of the picture, and of several such ones the smallest."""

    def score(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        pixels = min(int(width * scale) * int(height * scale), height * width)
        return pixels, pixels - size[0] * size[1]

    best = max(sizes, key=score)
    return best[0], best[1]


def _cut(images: Tensor, side: int) -> Tensor:
    """(N,3,a*side,b*side) -> (N,a*b,3,side,side), row by row."""
    count, channels, height, width = images.shape
    cut = images.reshape(count, channels, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(count, -1, channels, side, side)
