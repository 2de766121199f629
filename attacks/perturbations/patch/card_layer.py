"""The printed card round a patch, as a part of its layer: every photograph of the patch shows it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.sampling.homography import half_pixels, invert


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
        fine = _enlarged(texture, self.times)
        if alpha is not None:
            share = _enlarged(alpha.to(texture), self.times)
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


def _enlarged(texture: Tensor, times: int) -> Tensor:
    """As the sampler enlarges it: linear between the middles of texels."""
    return texture if times == 1 else F.interpolate(texture, scale_factor=times, mode="bilinear", align_corners=False)
