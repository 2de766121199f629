"""The corners of a patch in each picture, and what stands before it there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.perturbations.base import Corners
from attacks.perturbations.patch.card_raster import Surround
from transforms.sampling.homography import edges_to_centres, homography, transform
from transforms.sampling.warp import warp_by_matrix

#: (x, y) of the upper left, upper right, lower right and lower left corner.
Quad = Sequence[Sequence[float]]
#: The corners of a texture in shares of it, in the order of a quad.
UNIT = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
#: The most samples along each side of a texel; beyond this, antialiasing averages the pixels.
SAMPLES = 16


@dataclass(frozen=True, eq=False)
class Placements:
    """One or several placements of a texture in each picture.

    Args:
        quads: (N,K,4,2) corners of K placements in each of N pictures (N = 1: the same in all), as shares of the
            picture's width and height: (x, y) from (0, 0), its upper left corner, to (1, 1), its lower right one. In
            the order upper left, upper right, lower right, lower left of the texture; a mirrored quad mirrors it.
        cover: (N,K,h,w) how much of each texel shows, or of each pixel of the card round it, in [0,1]; or (N,K,1,1):
            0 where a picture has fewer than K placements. None: all of it.
        mask: (N,K,H,W) the same of each pixel of the picture, from which `with_cover` makes `cover`.

    Raises:
        ValueError: a degenerate quad, one outside the picture, pixels instead of shares, or shapes that do not match.
    """

    quads: Tensor
    cover: Tensor | None = None
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        corners = self.quads
        if corners.dim() != 4 or corners.shape[-2:] != (4, 2) or not corners.shape[0] or not corners.shape[1]:
            raise ValueError(f"`quad` must hold four corners (x, y); got shape {tuple(corners.shape)}")
        if not bool(((corners > -1) & (corners < 2)).all()):
            raise ValueError(
                f"`quad` is in shares of the picture's sides, not pixels; got {corners.flatten(0, 1).tolist()}"
            )
        cover = self.cover
        if cover is not None and (cover.dim() != 4 or cover.shape[:2] != corners.shape[:2]):
            raise ValueError(
                f"`cover` must be (N,K,h,w), as many rows as `quads`; got {(*cover.shape,)} for {(*corners.shape,)}"
            )
        for quad in corners.flatten(0, 1).to("cpu", torch.float64).unbind():
            if bool((quad.amax(0) <= 0).any() or (quad.amin(0) >= 1).any()):
                raise ValueError(f"`quad` must overlap the picture, 0 to 1; got {quad.tolist()}")
            try:
                homography(quad, UNIT)
            except ValueError:
                raise ValueError(
                    "`quad` folds over, or has three corners in a line; give upper left, upper right, lower right, "
                    f"lower left of the texture; got {quad.tolist()}"
                ) from None

    def pulls(self, size: tuple[int, int], texture: tuple[int, int]) -> list[Tensor]:
        """For each placement (N,3,3) in float64 from the stage frame of pictures of `size` (height, width) to that of
        a texture of `texture` (height, width)."""
        corners = self.quads.to("cpu", torch.float64)
        return [homography(_to_frame(quad, size), _to_frame(UNIT, texture)) for quad in corners.unbind(1)]

    def corners(self) -> list[list[Corners]]:
        """For each picture the corners of the placements that show there."""
        quads, cover = self.quads.tolist(), self.cover
        visibility = torch.ones(self.quads.shape[:2]) if cover is None else cover.flatten(2).amax(2)
        return [
            [quad for quad, share in zip(row, shares, strict=True) if share]
            for row, shares in zip(quads, visibility, strict=True)
        ]

    def take(self, rows: Tensor) -> "Placements":
        if len(self.quads) == 1:
            return self
        cover, mask = (None if part is None else part[rows.to(part.device)] for part in (self.cover, self.mask))
        return Placements(self.quads[rows.to(self.quads.device)], cover, mask)

    def with_cover(self, texture: tuple[int, int], surround: Surround | None) -> "Placements":
        """The same with the `cover` that follows from the mask, of a texture (height, width) or of its surround."""
        if self.mask is None:
            return self
        pairs = zip(self.mask.flatten(0, 1), self.quads.flatten(0, 1), strict=True)
        cover = torch.stack([cover_of(mask, quad, texture, surround) for mask, quad in pairs])
        return replace(self, cover=cover.unflatten(0, self.quads.shape[:2]))


def cover_of(mask: Tensor, quad: Tensor, texture: tuple[int, int], surround: Surround | None = None) -> Tensor:
    """The share of each texel of a `texture` (height, width) that shows, or of each pixel of its surround, (h,w) in
    [0,1]: the mean over it of a mask of the picture (H,W), in which the texture lies at `quad` (4,2), in shares."""
    corners = quad.to("cpu", torch.float64) * UNIT.new_tensor([mask.shape[1], mask.shape[0]])
    (height, width), corner, times = texture, (0, 0), 1
    if surround is not None:
        (height, width), corner, times = surround.picture.shape[2:], (surround.left, surround.top), surround.times
    sides = (corners.roll(-1, 0) - corners).norm(dim=1)
    pixels = max(float(sides[[0, 2]].max()) / texture[1], float(sides[[1, 3]].max()) / texture[0]) / times
    samples = min(max(math.ceil(pixels), 1), SAMPLES)
    inner = samples * (UNIT * UNIT.new_tensor([texture[1], texture[0]]) * times + UNIT.new_tensor(corner))
    ends = [transform(edges_to_centres(UNIT)[None], points[None])[0] for points in (inner, corners)]
    fine = (height * samples, width * samples)
    dense = warp_by_matrix(mask[None, None], homography(*ends), fine, border="replicate", antialias=True)
    return F.avg_pool2d(dense, samples)[0, 0].clamp(0, 1)


def _to_frame(shares: Tensor, size: tuple[int, int]) -> Tensor:
    """Shares of width and height in the stage frame: the centre is 0, half the shorter side 1."""
    height, width = size
    return (shares - 0.5) * shares.new_tensor([width, height]) * (2 / min(size))
