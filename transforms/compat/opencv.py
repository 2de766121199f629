"""OpenCV's warps, with gradients to every tensor."""

import torch
from torch import Tensor

from transforms.compat.arguments import Numbers, align, tensor_of
from transforms.doors import OVERSHOOT, checked
from transforms.sampling.homography import Point, facing, invert
from transforms.sampling.read import Border, Kernel, Value
from transforms.sampling.warp import warp_by_matrix

#: A map that reads farther than this, in pixels, is singular: float32 could not hold its derivatives.
FARTHEST = 1e20


def warp_affine(
    images: Tensor,
    M: Numbers,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
) -> Tensor:
    """`cv2.warpAffine` on a batch, differentiable in `images`, `M` and `value`.

    Args:
        images: (N,C,H,W) in [0,1], any floating dtype.
        M: (2,3) or (N,2,3), source -> destination, pixel centres at integers: tensors, arrays or nested lists.
        size: (height, width) of the result; OpenCV's dsize is (width, height).
        kernel: nearest | bilinear | bicubic (a = -0.75, INTER_CUBIC).
        border: constant | replicate | reflect | reflect101.
        value: border value for `constant`: a number, (C,) or (N,C).
        antialias: read coarser levels where the map shrinks, which OpenCV does not.

    Returns:
        (N,C,height,width) in the images' dtype, as OpenCV 5 to float rounding. OpenCV 4 differs by up to 0.02.

    Raises:
        ValueError: wrong shapes, unknown names, a matrix without inverse.

    Examples:
        >>> from transforms import warp_affine
        >>> M = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], requires_grad=True)  # half a pixel to the right
        >>> view = warp_affine(torch.tensor([[[[0.0, 1.0, 0.0, 0.0]]]]), M, size=(1, 4))
        >>> view.flatten().tolist(), torch.autograd.grad(view.sum(), M)[0].shape
        ([0.0, 0.5, 0.5, 0.0], torch.Size([2, 3]))
    """
    checked(images, slack=OVERSHOOT)
    matrix = tensor_of(M, "M", images)
    if matrix.shape[-2:] != (2, 3):
        raise ValueError(
            f"`M` must be (2,3) or (N,2,3); got {tuple(matrix.shape)} (a 3x3 matrix goes to warp_perspective)"
        )
    bottom = matrix.new_tensor([0.0, 0.0, 1.0]).expand(*matrix.shape[:-2], 1, 3)
    full = torch.cat([matrix, bottom], dim=-2)
    return warp_perspective(images, full, size, kernel=kernel, border=border, value=value, antialias=antialias)


def warp_perspective(
    images: Tensor,
    H: Numbers,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
) -> Tensor:
    """`cv2.warpPerspective` on a batch: `H` (3,3) or (N,3,3) maps source to destination. Otherwise as `warp_affine`.

    H and c H are one homography, whatever the sign of c. Beyond the horizon, where OpenCV draws a mirrored image,
    pixels have the border value and no gradient.

    Examples:
        >>> from transforms import warp_perspective
        >>> warp_perspective(torch.tensor([[[[0.0, 1.0]]]]), [[-1, 0, 1], [0, 1, 0], [0, 0, 1]], size=(1, 2)).tolist()
        [[[[1.0, 0.0]]]]
    """
    checked(images, slack=OVERSHOOT)
    matrix = tensor_of(H, "H", images)
    if matrix.shape[-2:] != (3, 3) or matrix.dim() not in (2, 3):
        raise ValueError(f"`H` must be (3,3) or (N,3,3); got {tuple(matrix.shape)}")
    images, matrix = align(images, matrix.reshape(-1, 3, 3), "H")
    matrix = matrix / _power_of_two(matrix.abs().amax((-2, -1)))  # the same map, whatever its scale
    det = torch.linalg.det(matrix.detach())
    pull = facing(invert(matrix), _edges(size), _edges((images.shape[2], images.shape[3])))
    singular = (det == 0) | ~(pull.detach().abs().amax((-2, -1)) < FARTHEST)
    if bool(singular.any()):
        row = int(singular.nonzero()[0, 0])
        raise ValueError(
            f"the matrix must be invertible; row {row} has determinant {float(det[row])} (largest entry scaled to 1)"
        )
    return warp_by_matrix(images, pull, size, kernel=kernel, border=border, value=value, antialias=antialias)


def _edges(size: tuple[int, int]) -> list[Point]:
    """The corners of a picture of `size` (height, width), in the pixel frame."""
    right, bottom = size[1] - 0.5, size[0] - 0.5
    return [(-0.5, -0.5), (right, -0.5), (right, bottom), (-0.5, bottom)]


def _power_of_two(size: Tensor) -> Tensor:
    """(N,) -> the power of two just above each, (N,1,1): a division by it rounds nothing, so whole shifts stay."""
    return torch.ldexp(torch.ones_like(size), torch.frexp(size.detach()).exponent)[:, None, None]
