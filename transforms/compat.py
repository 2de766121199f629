"""The functional layer: the arguments and the meaning of OpenCV and torchvision, with gradients to every tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transforms.homography import edges_to_centres, homography, invert
from transforms.sampling import Border, Kernel, Value, border_value, warp_by_matrix


def warp_affine(
    images: Tensor,
    M: Tensor,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
) -> Tensor:
    """`cv2.warpAffine` on a batch, differentiable in `images`, `M` and `value`.

    Args:
        images: (N,C,H,W), any floating dtype.
        M: (2,3) or (N,2,3), source -> destination, pixel centres at integers. N broadcasts against the images'.
        size: (height, width) of the result. (OpenCV's dsize is (width, height).)
        kernel: nearest | bilinear | bicubic (a = -0.75, INTER_CUBIC).
        border: constant | replicate | reflect | reflect101.
        value: border value for `constant`: a number, (C,) or (N,C).
        antialias: supersample where the map shrinks. OpenCV has no such thing, hence off.

    Returns:
        (N,C,height,width) in the images' dtype. OpenCV >= 5 is matched to float rounding; OpenCV 4 rounds
        coordinates to 1/32 pixel and differs by up to 0.02.

    Raises:
        ValueError: wrong shapes, unknown names, a matrix without inverse.
    """
    if M.shape[-2:] != (2, 3):
        raise ValueError(
            f"`M` must be (2,3) or (N,2,3); got {tuple(M.shape)} (a 3x3 matrix goes to warp_perspective)"
        )
    bottom = M.new_tensor([0.0, 0.0, 1.0]).expand(*M.shape[:-2], 1, 3)
    full = torch.cat([M, bottom], dim=-2)
    return warp_perspective(images, full, size, kernel=kernel, border=border, value=value, antialias=antialias)


def warp_perspective(
    images: Tensor,
    H: Tensor,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
) -> Tensor:
    """`cv2.warpPerspective` on a batch: `H` (3,3) or (N,3,3) maps source to destination. Otherwise as `warp_affine`.

    The sign of `H` matters: w > 0 is before the camera (`homography` returns it so). Unlike OpenCV, output pixels
    beyond the horizon (w <= 0) take the border value and carry a zero gradient: OpenCV paints a ghost of the image
    there.
    """
    if H.shape[-2:] != (3, 3) or H.dim() not in (2, 3):
        raise ValueError(f"`H` must be (3,3) or (N,3,3); got {tuple(H.shape)}")
    images, matrix = _align(images, H.reshape(-1, 3, 3), "H")
    det = torch.linalg.det(matrix.detach())
    singular = (det == 0) | ~det.isfinite()
    if bool(singular.any()):
        row = int(singular.nonzero()[0, 0])
        raise ValueError(f"the matrix must be invertible; row {row} has determinant {float(det[row])}")
    pull = _narrow(invert(matrix), images)
    return warp_by_matrix(images, pull, size, kernel=kernel, border=border, value=value, antialias=antialias)


def perspective(
    images: Tensor,
    startpoints: Tensor | Sequence[Sequence[float]],
    endpoints: Tensor | Sequence[Sequence[float]],
    *,
    kernel: Kernel = "bilinear",
    fill: Value = 0.0,
) -> Tensor:
    """`torchvision.transforms.functional.perspective`, differentiable in both point lists.

    Args:
        images: (N,C,H,W), any floating dtype.
        startpoints, endpoints: four points (x, y), (4,2) or (N,4,2), tensors or nested lists; what stood at
            `startpoints` is found at `endpoints`. Edge coordinates as in torchvision: 0 is the left edge of the image
            and its width the right edge.
        kernel: nearest | bilinear | bicubic.
        fill: value outside: a number, (C,) or (N,C); 0 stands for torchvision's default None. With any other value
            the edge pixels are weighed twice, as torchvision does.

    Returns:
        (N,C,H,W). torchvision itself drops the gradient to its points (it rounds the solve into Python floats).

    Raises:
        ValueError: degenerate quads (see `homography`).
    """
    start, end = (torch.as_tensor(points, device=images.device) for points in (startpoints, endpoints))
    images, push = _align(images, homography(start, end).double(), "startpoints")
    centres = edges_to_centres(push)
    pull = _narrow(centres @ invert(push) @ invert(centres), images)
    size = (images.shape[2], images.shape[3])
    blend = border_value(fill, images)
    if blend is None:
        return warp_by_matrix(images, pull, size, kernel=kernel)
    # torchvision fades the picture to zero at its edge, then blends that with `fill` by the same weight once more.
    both = warp_by_matrix(torch.cat([images, torch.ones_like(images[:, :1])], dim=1), pull, size, kernel=kernel)
    weight = both[:, -1:]
    return both[:, :-1] * weight + (1 - weight) * blend


def _align(images: Tensor, matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Broadcast N over images and matrices; check the shapes. The matrix becomes float64 where there is one."""
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(
            f"`images` must be floating (N,C,H,W); got {images.dtype} of shape {tuple(images.shape)} "
            "(an OpenCV image goes in as torch.from_numpy(image).permute(2, 0, 1)[None] / 255)"
        )
    counts = {len(images), len(matrix)}
    if len(counts - {1}) > 1:
        raise ValueError(f"`{name}` must hold one row, or one per image; got {len(matrix)} for {len(images)} images")
    n = max(counts)
    wide = torch.float32 if matrix.device.type == "mps" else torch.float64
    matrix = matrix.to(images.device, wide)
    return images.expand(n, *images.shape[1:]), matrix.expand(n, 3, 3)


def _narrow(matrix: Tensor, images: Tensor) -> Tensor:
    """Points are computed in the images' dtype, but never in half precision: its grid is pixels off at 4000 px."""
    return matrix.to(torch.promote_types(images.dtype, torch.float32))
