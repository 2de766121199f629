"""3x3 algebra of the plane. A matrix (N,3,3) maps column vectors (x, y, 1) of its source frame to its target frame.

*Stage frame*: origin at the image centre, unit = half the shorter side, x right, y down. *Pixel frame*: integer =
pixel centre, as in OpenCV. *Half-pixel frame*: 0 = the image's left and upper edge, unit = half a pixel, so that
pixel centres are odd whole numbers and shifts by whole pixels stay exact.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from transforms.devices import HOST, uploaded, wide_dtype

#: From the output's half-pixel coordinates x (w,), y (h,), on the host, to the source's, (N,h,w,2), on a device,
#: which the caller may overwrite, and their w (N,h,w) or None (all are before the camera, and none is far away).
#: Where each view has coordinates of its own, they are (N,w) and (N,h).
Pull = Callable[[Tensor, Tensor, torch.device], tuple[Tensor, Tensor | None]]

Point = tuple[float, float]  # (x, y)
#: The largest centred square of a picture, in the stage frame.
SQUARE = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0))

#: A quad is refused when its smallest corner triangle is below this share of its largest one.
DEGENERATE = 1e-3


def matrix_of(rows: list[list[Tensor | int]], like: Tensor) -> Tensor:
    """Stack whole numbers and (N,) tensors into (N,3,3)."""
    constants: dict[int, Tensor] = {}
    flat = []
    for entry in itertools.chain(*rows):
        if isinstance(entry, int) and entry not in constants:
            constants[entry] = torch.full_like(like, entry)
        flat.append(constants[entry] if isinstance(entry, int) else entry)
    return torch.stack(flat, dim=-1).reshape(-1, 3, 3)  # one kernel: these are many and small


def shift(x: Tensor, y: Tensor) -> Tensor:
    """Translation by (x, y), each (N,) -> (N,3,3)."""
    return matrix_of([[1, 0, x], [0, 1, y], [0, 0, 1]], x)


def scale(x: Tensor, y: Tensor) -> Tensor:
    """Magnification by (x, y) about the origin, each (N,) -> (N,3,3)."""
    return matrix_of([[x, 0, 0], [0, y, 0], [0, 0, 1]], x)


def rotate(angle: Tensor) -> Tensor:
    """Rotation by `angle` radians (N,), clockwise as displayed because y points down -> (N,3,3)."""
    c, s = angle.cos(), angle.sin()
    return matrix_of([[c, -s, 0], [s, c, 0], [0, 0, 1]], angle)


def shear(angle: Tensor) -> Tensor:
    """Horizontal shear by `angle` radians (N,): x += tan(angle) * y -> (N,3,3)."""
    return matrix_of([[1, angle.tan(), 0], [0, 1, 0], [0, 0, 1]], angle)


def invert(matrix: Tensor) -> Tensor:
    """Inverse of (..., 3, 3) by three cross products: exact derivatives, and no synchronisation on a GPU."""
    a, b, c = matrix.unbind(-2)
    adjugate = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], dim=-1)
    det = (a * adjugate[..., :, 0]).sum(-1)
    return adjugate / det[..., None, None]


def half_pixels(size: tuple[int, int], like: Tensor) -> Tensor:
    """The (3,3) matrix from the stage frame to the half-pixel frame of an image of `size` (height, width)."""
    (height, width), side = size, min(size)
    return torch.tensor([[side, 0, width], [0, side, height], [0, 0, 1]], dtype=like.dtype, device=like.device)


def pixels_to_halves(like: Tensor) -> Tensor:
    """The (3,3) matrix from the pixel frame to the half-pixel frame."""
    return torch.tensor([[2, 0, 1], [0, 2, 1], [0, 0, 1]], dtype=like.dtype, device=like.device)


def edges_to_centres(like: Tensor) -> Tensor:
    """The (3,3) matrix from edge coordinates (0 = the image's left edge) to the pixel frame."""
    return torch.tensor([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]], dtype=like.dtype, device=like.device)


def transform(matrix: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Map points (N,...,2) by (N,3,3). Returns the points, and `w` (N,...): a point with w <= 0 lies
    behind the camera, and its coordinates are those of w = 1 so that no NaN is born (mask it by `w`)."""
    x, y = points.unbind(-1)
    m = matrix.flatten(1).reshape(len(matrix), 9, *[1] * (points.dim() - 2)).unbind(1)
    # Written out: a matrix product could run in TF32 on a GPU, which is pixels off.
    right, down, w = (m[i] * x + (m[i + 1] * y + m[i + 2]) for i in (0, 3, 6))
    safe = torch.where(w > HORIZON, w, 1.0)  # before the division: NaN has no zero gradient
    return torch.stack([right / safe, down / safe], dim=-1), w


def lattice(matrix: Tensor, x: Tensor, y: Tensor, device: torch.device = HOST) -> tuple[Tensor, Tensor | None]:
    """`transform` of the points (x_j, y_i) of a lattice, x (w,) and y (h,), or (N,w) and (N,h) where each row has its
    own: (N,h,w,2), and w (N,h,w), or None if every point is well before the camera. The fast way to a grid: a matrix
    is separable but for its division.

    `matrix`, x and y are on the host, the result is on `device`.
    """
    x_part = matrix[:, :, 0, None] * x[..., None, :]
    y_part = matrix[:, :, 1, None] * y[..., None, :] + matrix[:, :, 2, None]
    # The extremes of a sum of two vectors are the sums of theirs.
    lowest = x_part[:, 2].detach().amin(-1) + y_part[:, 2].detach().amin(-1)
    largest = (x_part[:, :2].detach().abs().amax(-1) + y_part[:, :2].detach().abs().amax(-1)).amax(-1)
    is_ahead = bool(((lowest > HORIZON) & (largest < NEAR * lowest)).all())
    if device != HOST:
        x_part, y_part = uploaded(x_part, device), uploaded(y_part, device)
    points = x_part[:, :2, None, :] + y_part[:, :2, :, None]
    w = x_part[:, 2, None, :] + y_part[:, 2, :, None]
    if is_ahead:
        return points.div_(w[:, None]).permute(0, 2, 3, 1), None
    safe = torch.where(w > HORIZON, w, 1.0)
    return (points / safe[:, None]).permute(0, 2, 3, 1), w


#: Points with w below this are beyond the horizon.
HORIZON = 1e-6
#: Points within this many units need no clamp.
NEAR = 1e6


def facing(matrix: Tensor, view: Sequence[Point] = SQUARE, source: Sequence[Point] = SQUARE) -> Tensor:
    """Homographies (N,3,3) from places of a view to places of a source, with the sign and the scale that show the
    source: M and c M are one homography, but here w > 0 means "before the camera".

    The sign is the one with all of the source before the camera, or else all of the view, or else more of the view,
    or else the view's middle. The scale is a power of two that makes the largest |w| of the view about 1. No gradient
    flows through this choice. `view` and `source` are the corners (x, y) of rectangles, clockwise from the upper
    left.
    """
    values = matrix.detach()
    ends, target = _corners(tuple(view), values.dtype), _corners(tuple(source), values.dtype)
    x, y, z = values.unbind(-1)
    back = torch.linalg.cross(x, y)  # the third row of the inverse, times the determinant
    depth = (back[:, None] * target).sum(-1) * (back * z).sum(-1, keepdim=True)
    size = (values[:, 2].abs() * ends.abs().amax(0)).sum(-1)
    if bool(((depth.amin(-1) > 0) & (size >= 1) & (size < 2)).all()):  # as of nearly every stage
        return matrix
    signs = []
    for row, depths in zip(values.tolist(), depth.tolist(), strict=True):
        depths_of_view = [row[2][0] * px + row[2][1] * py + row[2][2] for px, py in view]
        side = next((group[0] for group in (depths, depths_of_view) if min(group) > 0 or max(group) < 0), None)
        if side is None:
            areas = [_seen_area([[sign * c for c in line] for line in row], view, source) for sign in (1, -1)]
            side = areas[0] - areas[1] or sum(depths_of_view) or depths_of_view[0] or depths_of_view[1]
        signs.append(1.0 if side > 0 else -1.0)
    factor = torch.ldexp(values.new_tensor(signs), 1 - torch.frexp(size).exponent)
    return matrix * factor[:, None, None]


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _corners(box: tuple[Point, ...], dtype: torch.dtype) -> Tensor:
    """(x, y, 1) of the corners of a rectangle, on the host."""
    return torch.tensor([(*point, 1.0) for point in box], dtype=dtype)


def _seen_area(row: list[list[float]], view: Sequence[Point], source: Sequence[Point]) -> float:
    """The area of the part of a view before the camera that shows the source."""
    bounds = [(row[i], sign, at[i]) for sign, at in ((1, source[0]), (-1, source[2])) for i in (0, 1)]
    edges = [[sign * (a - end * b) for a, b in zip(line, row[2], strict=True)] for line, sign, end in bounds]
    return clipped_area(view, [row[2], *edges])


def clipped_area(polygon: Sequence[Point], edges: Sequence[Sequence[float]]) -> float:
    """The area of the part of a convex polygon where a x + b y + c >= 0 for each of the `edges` (a, b, c) (Sutherland
    & Hodgman 1974)."""
    points = list(polygon)
    for a, b, c in edges:
        depths, clipped = [a * x + b * y + c for x, y in points], list[Point]()
        for i, (p, depth) in enumerate(zip(points, depths, strict=True)):
            is_ahead, other = points[i - 1], depths[i - 1]
            if (depth < 0) != (other < 0):
                share = depth / (depth - other)
                clipped.append((p[0] + share * (is_ahead[0] - p[0]), p[1] + share * (is_ahead[1] - p[1])))
            if depth >= 0:
                clipped.append(p)
        points = clipped
    return abs(sum(points[i - 1][0] * y - points[i - 1][1] * x for i, (x, y) in enumerate(points))) / 2


def square_to_quad(quad: Tensor) -> Tensor:
    """The homography of the unit square's corners (0,0) (1,0) (1,1) (0,1) to `quad` (N,4,2) -> (N,3,3), unchecked
    (closed form, Heckbert 1989)."""
    p0, p1, p2, p3 = quad.unbind(-2)
    upper, right, total = p1 - p2, p3 - p2, p0 - p1 + p2 - p3
    area = _cross(upper, right)
    g, h = _cross(total, right) / area, _cross(upper, total) / area
    columns = [p1 - p0 + g[..., None] * p1, p3 - p0 + h[..., None] * p3, p0]
    top = torch.stack(columns, dim=-1)
    return torch.cat([top, torch.stack([g, h, torch.ones_like(g)], -1)[..., None, :]], dim=-2)


def homography(src: Tensor, dst: Tensor) -> Tensor:
    """The homography that maps four points to four points, differentiable in both lists.

    Same meaning as `cv2.getPerspectiveTransform`: any frame, any consistent order of the corners.

    Args:
        src, dst: (N,4,2) or (4,2) points (x, y); N broadcasts. Nested lists are taken too.

    Returns:
        (N,3,3), scaled to H[2,2] = 1 (or -1 where the origin lies beyond the horizon; to the norm 1 where it lies on
        it), with w > 0 on `src`. Solved in float64 where the device has it, returned in the points' dtype.

    Raises:
        ValueError: three points (nearly) in a line, a repeated point, or a pair of quads that no camera can see (one
            convex and the other folded), with the row's number.

    Examples:
        >>> from transforms import homography
        >>> H = homography([[0.0, 0], [1, 0], [1, 1], [0, 1]], [[0.0, 0], [4, 0], [3, 2], [1, 2]])
        >>> x, y, w = (H[0] @ torch.ones(3)).tolist()
        >>> round(x / w, 4), round(y / w, 4)
        (3.0, 2.0)
    """
    src, dst = _points(src, "src"), _points(dst, "dst")
    dtype = torch.promote_types(src.dtype, dst.dtype)
    wide = wide_dtype(src)
    src, dst = torch.broadcast_tensors(src.to(wide), dst.to(wide))
    _check(src, dst)
    matrix = square_to_quad(dst) @ invert(square_to_quad(src))
    corner = matrix[..., 2, 2].abs()
    size = matrix.norm(dim=(-2, -1))
    divisor = torch.where(corner > 1e-9 * size, corner, size)  # positive: w is 1 at the first corner, and stays > 0
    return (matrix / divisor[..., None, None]).to(dtype)


def _stack(points: Any) -> Tensor:
    """A tensor of nested lists; `torch.as_tensor` would read numbers out of a list of tensors and cut their graph."""
    return torch.stack([_stack(p) for p in points]) if isinstance(points, list | tuple) else torch.as_tensor(points)


def _points(points: Tensor, name: str) -> Tensor:
    points = _stack(points)
    if not points.is_floating_point():
        points = points.to(torch.get_default_dtype())
    if points.shape[-2:] != (4, 2) or points.dim() not in (2, 3):
        raise ValueError(f"`{name}` must hold four (x, y) points, (N,4,2) or (4,2); got {tuple(points.shape)}")
    return points.reshape(-1, 4, 2)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _triangles(quad: Tensor) -> Tensor:
    """Twice the signed area of the four triangles that leave one corner out, (N,4,2) -> (N,4)."""
    a, b, c = quad, quad.roll(-1, -2), quad.roll(-2, -2)
    return _cross(b - a, c - a)


def _check(src: Tensor, dst: Tensor) -> None:
    # w at a corner is, up to one common factor, the ratio of the opposite triangle's area in `src` and `dst`:
    # equal orientations throughout (or opposite ones throughout) are exactly "every corner before the camera".
    areas = [_triangles(quad.detach()) for quad in (src, dst)]
    for name, quad, area in zip(("src", "dst"), (src, dst), areas, strict=True):
        small = area.abs().amin(-1) <= DEGENERATE * area.abs().amax(-1)
        _refuse(small | ~quad.isfinite().all(-1).all(-1), name, quad, "has three corners in a line")
    agree = (areas[0].sign() * areas[1].sign()).sum(-1).abs() == 4
    _refuse(~agree, "dst", dst, "folds over where `src` does not (are both lists in the same order?)")


def _refuse(bad: Tensor, name: str, quad: Tensor, reason: str) -> None:
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        corners = [tuple(round(v, 4) for v in point) for point in quad[row].detach().tolist()]
        raise ValueError(f"`{name}` is a degenerate quad: row {row} {reason}: {corners}")
