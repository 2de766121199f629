"""The warps of OpenCV and torchvision and torchvision's resize, with gradients to every tensor. Points and centres of
torchvision's are in edge coordinates, as there: 0 is the left edge of the image and its width the right edge."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transforms.devices import wide_dtype
from transforms.doors import OVERSHOOT, checked, unchecked
from transforms.resizing.resize import resize as resize_by_name
from transforms.resizing.resize import target_size
from transforms.sampling.homography import Point, edges_to_centres, facing, homography, invert, shift
from transforms.sampling.homography import rotate as rotation
from transforms.sampling.homography import scale as magnification
from transforms.sampling.homography import shear as slant
from transforms.sampling.read import Border, Kernel, Value, border_value
from transforms.sampling.warp import warp_by_matrix

Fill = Value | Sequence[float] | None
Numbers = Any  # a number, a tensor, a NumPy array, or lists of these to any depth

#: A map that reads farther than this, in pixels, is singular: float32 could not hold its derivatives.
FARTHEST = 1e20
#: Tolerance in pixels of torchvision's size of an expanded rotation.
_TOLERANCE = 1e-4
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")


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
        M: (2,3) or (N,2,3), source -> destination, pixel centres at integers: a tensor of any dtype, an array, or
            nested lists, of tensors too. N broadcasts against the images'.
        size: (height, width) of the result; OpenCV's dsize is (width, height).
        kernel: nearest | bilinear | bicubic (a = -0.75, INTER_CUBIC).
        border: constant | replicate | reflect | reflect101.
        value: border value for `constant`: a number, (C,) or (N,C).
        antialias: read coarser levels where the map shrinks. OpenCV has no such option, hence it is off.

    Returns:
        (N,C,height,width) in the images' dtype. OpenCV >= 5 is matched to float rounding; OpenCV 4 rounds coordinates
        to 1/32 pixel and differs by up to 0.02.

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
    matrix = _tensor_of(M, "M", images)
    if matrix.shape[-2:] != (2, 3):
        got = f"{tuple(matrix.shape)} (a 3x3 matrix goes to warp_perspective)"
        raise ValueError(f"`M` must be (2,3) or (N,2,3); got {got}")
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

    H and c H are one homography, whatever the sign of c: the side of the horizon that shows the image counts as
    before the camera (see `transforms.sampling.homography.facing`). Output pixels beyond the horizon (w <= 0), where
    OpenCV draws a mirrored image, take the border value, and no gradient flows from them to the image or `H`.

    Examples:
        >>> from transforms import warp_perspective
        >>> warp_perspective(torch.tensor([[[[0.0, 1.0]]]]), [[-1, 0, 1], [0, 1, 0], [0, 0, 1]], size=(1, 2)).tolist()
        [[[[1.0, 0.0]]]]
    """
    checked(images, slack=OVERSHOOT)
    matrix = _tensor_of(H, "H", images)
    if matrix.shape[-2:] != (3, 3) or matrix.dim() not in (2, 3):
        raise ValueError(f"`H` must be (3,3) or (N,3,3); got {tuple(matrix.shape)}")
    images, matrix = _align(images, matrix.reshape(-1, 3, 3), "H")
    # The same map, whatever its scale; a division by a power of two rounds nothing, so whole shifts stay.
    exponent = torch.frexp(matrix.detach().abs().amax((-2, -1))).exponent
    matrix = matrix / torch.ldexp(torch.ones_like(matrix[:, 0, 0]), exponent)[:, None, None]
    det = torch.linalg.det(matrix.detach())
    pull = facing(invert(matrix), _edges(size), _edges((images.shape[2], images.shape[3])))
    singular = (det == 0) | ~(pull.detach().abs().amax((-2, -1)) < FARTHEST)
    if bool(singular.any()):
        row = int(singular.nonzero()[0, 0])
        raise ValueError(f"the matrix must be invertible; row {row}, scaled to 1, has determinant {float(det[row])}")
    return warp_by_matrix(images, pull, size, kernel=kernel, border=border, value=value, antialias=antialias)


def _edges(size: tuple[int, int]) -> list[Point]:
    """The corners of a picture of `size` (height, width), in the pixel frame."""
    right, bottom = size[1] - 0.5, size[0] - 0.5
    return [(-0.5, -0.5), (right, -0.5), (right, bottom), (-0.5, bottom)]


def perspective(
    images: Tensor, startpoints: Numbers, endpoints: Numbers, *, kernel: Kernel = "bilinear", fill: Fill = 0.0
) -> Tensor:
    """`torchvision.transforms.functional.perspective`, differentiable in both point lists.

    Args:
        images: (N,C,H,W) in [0,1], any floating dtype.
        startpoints, endpoints: four points (x, y), (4,2) or (N,4,2): tensors of any dtype, arrays, or nested lists,
            of tensors too; `startpoints` of the image go to `endpoints` of the result.
        kernel: nearest | bilinear | bicubic.
        fill: value outside: a number, (C,) or (N,C); 0 stands for torchvision's default None. With any other value
            the edge pixels are weighed twice, as torchvision does.

    Returns:
        (N,C,H,W).

    Raises:
        ValueError: degenerate quads (see `homography`).

    Examples:
        >>> from transforms import perspective
        >>> picture, end = torch.eye(4).view(1, 1, 4, 4), [[4, 0], [0, 0], [0, 4], [4, 4]]  # left and right exchanged
        >>> torch.allclose(perspective(picture, [[0, 0], [4, 0], [4, 4], [0, 4]], end), picture.flip(3), atol=1e-6)
        True
    """
    checked(images, slack=OVERSHOOT)
    push = homography(_tensor_of(startpoints, "startpoints", images), _tensor_of(endpoints, "endpoints", images))
    centres = edges_to_centres(push)
    pull = centres @ invert(push) @ invert(centres)
    return _warp(images, pull, (images.shape[2], images.shape[3]), kernel, fill, "startpoints")


def affine(
    images: Tensor,
    angle: Numbers,
    translate: Numbers,
    scale: Numbers,
    shear: Numbers,
    *,
    kernel: Kernel = "bilinear",
    fill: Fill = 0.0,
    center: Numbers | None = None,
) -> Tensor:
    """`torchvision.transforms.functional.affine`, differentiable in `angle`, `translate`, `scale` and `shear`.

    Args:
        images: (N,C,H,W) in [0,1], any floating dtype.
        angle: degrees, *clockwise* as displayed; a number or (N,).
        translate: (right, down) in pixels, a pair or (N,2); fractions too.
        scale: magnification, positive; a number or (N,).
        shear: degrees, along x, or a pair along (x, y), or (N,2); a positive angle moves the lower rows to the left
            (the right columns up).
        kernel: nearest (torchvision's default, without a gradient in the parameters) | bilinear | bicubic.
        fill: see `perspective`.
        center: the point (x, y) that the map keeps, but for `translate`; None for the image's centre.

    Returns:
        (N,C,H,W); the picture is sheared along x, along y, scaled, rotated, shifted, in this order.

    Raises:
        ValueError: a scale that is not positive, a shear by 90 degrees, wrong shapes.

    Examples:
        >>> from transforms.compat import affine
        >>> picture = torch.eye(5).view(1, 1, 5, 5)
        >>> view = affine(picture, angle=0, translate=(1, 0), scale=1.0, shear=0.0)
        >>> torch.allclose(view[..., 1:], picture[..., :-1])
        True
    """
    checked(images, slack=OVERSHOOT)
    size = (images.shape[2], images.shape[3])
    turn, magnify = _number_of(angle, "angle", images), _number_of(scale, "scale", images)
    if bool((magnify.detach() <= 0).any()):
        raise ValueError(f"`scale` must be positive; got {magnify.detach().tolist()}")
    slants = _shear(shear, images)
    right, down = _pair_of(translate, "translate", images)
    x, y = _center(center, size, images)
    turn, magnify, x_shear, up, right, down, x, y = _broadcast(turn, magnify, *slants, right, down, x, y)
    radians = math.pi / 180
    undo = rotation(-turn * radians) @ magnification(1 / magnify, 1 / magnify) @ shift(-x - right, -y - down)
    pull = shift(x, y) @ slant(x_shear * radians) @ slant(up * radians).mT @ undo
    return _warp(images, pull, size, kernel, fill, "angle")


def rotate(
    images: Tensor,
    angle: Numbers,
    *,
    kernel: Kernel = "bilinear",
    expand: bool = False,
    center: Numbers | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """`torchvision.transforms.functional.rotate`, differentiable in `angle`.

    Args:
        images: (N,C,H,W) in [0,1], any floating dtype.
        angle: degrees, *counter-clockwise* as displayed (unlike `affine`, as in torchvision); a number or (N,).
        kernel: nearest | bilinear | bicubic (torchvision's default is nearest; see `affine`).
        expand: enlarge the view so that it holds the whole turned picture; all rows must need the same size.
        center: the point (x, y) that stays; None for the image's centre. `expand` assumes that.
        fill: see `perspective`.

    Returns:
        (N,C,H,W), or the size that `expand` needs.

    Examples:
        >>> from transforms.compat import rotate
        >>> rotate(torch.rand(1, 3, 8, 8), 45.0, expand=True).shape
        torch.Size([1, 3, 12, 12])
    """
    checked(images, slack=OVERSHOOT)
    size = (images.shape[2], images.shape[3])
    turn, x, y = _broadcast(_number_of(angle, "angle", images), *_center(center, size, images))
    pull = shift(x, y) @ rotation(turn * (math.pi / 180)) @ shift(-x, -y)
    if not expand:
        return _warp(images, pull, size, kernel, fill, "angle")
    out = _expanded_size(pull, size)
    margin = turn.new_tensor([(size[1] - out[1]) / 2, (size[0] - out[0]) / 2]).expand(len(turn), 2)
    return _warp(images, pull @ shift(*margin.unbind(-1)), out, kernel, fill, "angle")


def resize(
    images: Tensor,
    size: int | Sequence[int],
    interpolation: Any = "bilinear",
    max_size: int | None = None,
    antialias: bool | None = True,
) -> Tensor:
    """`torchvision.transforms.functional.resize` of a float tensor, by the kernels of `transforms.resizing.resize`.

    Args:
        images: (N,C,H,W) in [0,1], any floating dtype.
        size: (height, width), or the length of the shorter side, as a number or in a list.
        interpolation: nearest | nearest-exact | bilinear | bicubic, or torchvision's `InterpolationMode`.
        max_size: most that the longer side may be, if `size` is one number; the shorter is reduced with it.
        antialias: widen bilinear and bicubic where the image shrinks; None is False.

    Raises:
        ValueError: an unknown interpolation, a size below 1, a `max_size` that is not above `size`.

    Examples:
        >>> from transforms.compat import resize
        >>> resize(torch.zeros(1, 3, 12, 16), 6).shape
        torch.Size([1, 3, 6, 8])
    """
    checked(images, slack=OVERSHOOT)
    mode = getattr(interpolation, "value", interpolation)
    if mode not in _INTERPOLATIONS:
        raise ValueError(f"`interpolation` must be one of {', '.join(_INTERPOLATIONS)}; got {interpolation!r}")
    kernel = f"torch_{mode.replace('-', '_')}" + ("_aa" if antialias and mode.startswith("bi") else "")
    source = (images.shape[2], images.shape[3])
    sides = (size,) if isinstance(size, int) else tuple(size)
    if len(sides) not in (1, 2):
        raise ValueError(f"`size` must be one number or (height, width); got {size!r}")
    target = target_size(source, sides[0] if len(sides) == 1 else (sides[0], sides[1]))
    if max_size is not None and (len(sides) == 2 or max_size <= sides[0]):
        raise ValueError(f"`max_size` must be above `size`, which must be one number; got {max_size} and {size!r}")
    if max_size is not None and max(target) > max_size:
        short = int(max_size * sides[0] / max(target))
        target = target_size(source, (max_size, short) if source[0] > source[1] else (short, max_size))
    return images if target == source else unchecked(resize_by_name)(images, target, kernel)


def _warp(images: Tensor, pull: Tensor, size: tuple[int, int], kernel: Kernel, fill: Fill, name: str) -> Tensor:
    images, pull = _align(images, pull, name)
    if isinstance(fill, list | tuple):
        fill = _tensor_of(fill[0] if len(fill) == 1 else fill, "fill", images)
    blend = border_value(0.0 if fill is None else fill, images)  # type: ignore[arg-type]
    if blend is None:
        return warp_by_matrix(images, pull, size, kernel=kernel)
    # torchvision fades the picture to zero at its edge, then blends that with `fill` by the same weight once more.
    ink = warp_by_matrix(torch.cat([images, torch.ones_like(images[:, :1])], dim=1), pull, size, kernel=kernel)
    weight = ink[:, -1:]
    return ink[:, :-1] * weight + (1 - weight) * blend.to(images.dtype)


def _broadcast(*numbers: Tensor) -> tuple[Tensor, ...]:
    try:
        return tuple(torch.broadcast_tensors(*numbers))
    except RuntimeError:
        counts = sorted({len(number) for number in numbers})
        raise ValueError(f"the parameters must each have one row, or one per image; got {counts} rows") from None


def _center(center: Numbers | None, size: tuple[int, int], images: Tensor) -> tuple[Tensor, Tensor]:
    """The centre (x, y) in the pixel frame."""
    x, y = _pair_of((size[1] / 2, size[0] / 2) if center is None else center, "center", images)
    return x - 0.5, y - 0.5


def _shear(shear: Numbers, images: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(shear, list | tuple) and len(shear) == 1:
        shear = (shear[0], shear[0])
    is_number = not isinstance(shear, list | tuple) and getattr(shear, "ndim", 0) == 0
    x_shear, up = _pair_of((shear, 0.0) if is_number else shear, "shear", images)
    for degrees in (x_shear.detach(), up.detach()):
        if bool(((degrees * (math.pi / 180)).cos().abs() < 1e-6).any()):
            raise ValueError(f"`shear` must not be 90 degrees; got {degrees.tolist()}")
    return x_shear, up


@torch.no_grad()
def _expanded_size(pull: Tensor, size: tuple[int, int]) -> tuple[int, int]:
    """torchvision's size of the view that holds the turned picture, with its rounding in float32."""
    height, width = size
    centre = torch.tensor([[1, 0, (width - 1) / 2], [0, 1, (height - 1) / 2], [0, 0, 1]]).to(pull)
    about = (invert(centre) @ pull @ centre).float().cpu()[:, :2]
    half = torch.tensor([width * 0.5, height * 0.5])
    signs = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    corners = torch.cat([signs * half, torch.ones(4, 1)], dim=1) @ about.mT
    high, low = (corners.amax(1) + half, corners.amin(1) + half)
    sides = torch.ceil((high / _TOLERANCE).trunc() * _TOLERANCE)
    sides = sides - torch.floor((low / _TOLERANCE).trunc() * _TOLERANCE)
    if bool((sides != sides[0]).any()):
        raise ValueError(f"`expand` needs one size for the batch; the angles need (width, height) {sides.tolist()}")
    return int(sides[0, 1]), int(sides[0, 0])


def _tensor_of(values: Numbers, name: str, images: Tensor) -> Tensor:
    """`values`, lists of tensors too, in float64 (where there is one) on the device of `images`, with their graph.
    Raises ValueError for anything but numbers, and for rows of different lengths."""
    if isinstance(values, list | tuple):
        try:
            return torch.stack([_tensor_of(value, name, images) for value in values])
        except RuntimeError:
            raise ValueError(f"`{name}` must hold numbers in rows of one length; got {values!r}") from None
    try:
        return torch.as_tensor(values, dtype=wide_dtype(images), device=images.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"`{name}` must hold numbers; got {values!r}") from None


def _number_of(value: Numbers, name: str, images: Tensor) -> Tensor:
    """One number for all images or one each, (1,) or (N,); ValueError on anything else, or what is not finite."""
    number = _tensor_of(value, name, images)
    if number.dim() > 1:
        raise ValueError(f"`{name}` must be a number, or one per image (N,); got shape {tuple(number.shape)}")
    return _finite(number, name).reshape(-1)


def _pair_of(values: Numbers, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers (x, y), each (1,) or (N,): of a pair of numbers or of (N,) tensors, of (2,), or of (N,2)."""
    is_pair = isinstance(values, list | tuple) and len(values) == 2
    if is_pair and not any(isinstance(value, Sequence) or getattr(value, "ndim", 0) > 1 for value in values):
        return _number_of(values[0], name, images), _number_of(values[1], name, images)
    pairs = _tensor_of(values, name, images)
    if pairs.shape[-1:] != (2,) or pairs.dim() > 2:
        raise ValueError(f"`{name}` must be (x, y), or one pair per image (N,2); got shape {tuple(pairs.shape)}")
    x, y = _finite(pairs, name).reshape(-1, 2).unbind(-1)
    return x, y


def _finite(values: Tensor, name: str) -> Tensor:
    if not bool(values.detach().isfinite().all()):
        raise ValueError(f"`{name}` must be finite; got {values.detach().tolist()}")
    return values


def _align(images: Tensor, matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Images and matrices (N,3,3), N of each."""
    counts = {len(images), len(matrix)}
    if len(counts - {1}) > 1:
        raise ValueError(f"`{name}` must hold one row, or one per image; got {len(matrix)} for {len(images)} images")
    n = max(counts)
    return images.expand(n, *images.shape[1:]), matrix.expand(n, 3, 3)
