"""Geometric stages of the plane: lengths are in the stage frame; arguments shares of the shorter side, 2 units."""

import copy
import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from transforms.compose import Homography
from transforms.draws.ranges import Coordinate, Range, Ranged, pair, spread, to_decide
from transforms.sampling.homography import invert, matrix_of, scale, shift, square_to_quad, transform


class InFrame:
    """A stage in a frame that reaches `extent` (right, down) from its centre, in the stage frame's unit; without a
    call of `framed`, the frame is square."""

    extent: tuple[float, float] = (1.0, 1.0)

    def framed(self, size: tuple[int, int]) -> Self:
        stage = copy.copy(self)
        object.__setattr__(stage, "extent", (size[1] / min(size), size[0] / min(size)))
        return stage


@dataclass(frozen=True)
class Affine(Ranged, Homography):
    """Rotate, magnify, shear and shift the picture about its centre, as torchvision's RandomAffine does, in this
    order: shear, scale, rotate, shift.

    Use: a camera that turns, comes nearer or points beside the picture.
    Not: a picture that is seen from the side, so that parallels converge: `Viewpoint`.
    Source: torchvision's RandomAffine.
    Oracle: rotation, scale, shift and their order, tests/transforms/geometry/test_geometry.py; the warp against
    scikit-image and OpenCV, tests/transforms/sampling/test_warp.py.

    Args:
        degrees: rotation, clockwise as displayed; a number x means (-x, x).
        scale: magnification; 2 shows the picture twice as large.
        shear: horizontal shear in degrees.
        translate: shift in each axis as a share of the shorter side, right and down.

    Examples:
        >>> from transforms import Affine
        >>> picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> view = Affine(degrees=(90, 90))(picture, torch.zeros(1, 5))
        >>> torch.allclose(view, picture.rot90(-1, (2, 3)), atol=1e-5)  # clockwise
        True
    """

    degrees: float | Range = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: float | Range = (0.0, 0.0)
    translate: float | Range = (0.0, 0.0)

    coordinates = (
        Coordinate("angle (deg)", "degrees"),
        Coordinate("scale (x)", "scale", 0.01, 100),
        Coordinate("shear (deg)", "shear", -89, 89),
        Coordinate("shift right (of shorter side)", "translate"),
        Coordinate("shift down (of shorter side)", "translate"),
    )

    def matrix(self, u: Tensor) -> Tensor:
        angle, magnify, slant, right, down = self.values(u).unbind(-1)
        # The inverse of shift @ rotate @ scale @ shear, multiplied out: seven matrices are many small kernels.
        angle, lean = torch.deg2rad(angle), torch.deg2rad(slant).tan()
        c, s = angle.cos() / magnify, angle.sin() / magnify
        a, b, x, y = c + lean * s, s - lean * c, -2 * right, -2 * down
        return matrix_of([[a, b, a * x + b * y], [-s, c, c * y - s * x], [0, 0, 1]], angle)


@dataclass(frozen=True)
class Perspective(Homography):
    """Move each of the four corners of the square [-1,1]^2 (the largest centred square of the picture) on its own.

    Use: a mild change of the viewpoint, of which only the size is known.
    Not: angles in degrees, as of a print that somebody photographs: `Viewpoint`.
    Source: this project's own ranges; the map of four points is that of OpenCV's getPerspectiveTransform.
    Oracle: corners land where they should, tests/transforms/geometry/test_geometry.py; OpenCV,
    tests/transforms/sampling/test_homography.py.

    Args:
        jitter: most that a corner moves along each axis, as a share of half the side; 0 changes nothing; below 0.5,
            which keeps every quad convex, so that no point of the picture's square falls behind the camera. (The
            view's own corners may look beyond the horizon from about 0.4 on; they show the border value.)

    Examples:
        >>> from transforms import Perspective
        >>> u = torch.tensor([[0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]])  # the upper left corner alone moves, by -0.2
        >>> corners = Perspective(jitter=0.2).pull(torch.tensor([[[[-1.2, -1.2], [1.0, 1.0]]]]), u)
        >>> torch.allclose(corners, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        True
    """

    jitter: float = 0.2

    names: ClassVar[tuple[str, ...]] = tuple(
        f"{corner} corner {axis} (of half side)"
        for corner in ("top-left", "top-right", "bottom-right", "bottom-left")
        for axis in ("right", "down")
    )

    def __post_init__(self) -> None:
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter < 0.5:
            raise ValueError(f"`jitter` must lie in [0, 0.5), which keeps the quad convex; got {self.jitter}")

    def values(self, u: Tensor) -> Tensor:
        return spread(u, (-self.jitter, self.jitter))

    def matrix(self, u: Tensor) -> Tensor:
        square = u.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        corners = square + self.values(u).unflatten(-1, (4, 2))
        return u.new_tensor([[2, 0, -1], [0, 2, -1], [0, 0, 1]]) @ invert(square_to_quad(corners))


@dataclass(frozen=True)
class Crop(InFrame, Homography):
    """Show a window of the picture, stretched to the whole frame: torchvision's RandomResizedCrop, continuous. The
    window always lies inside the picture, whatever the frame's shape.

    Use: somebody cuts a part out, and it is enlarged again.
    Not: rows and columns that are cut off without a resample: `PixelCrop`.
    Source: torchvision's RandomResizedCrop.
    Oracle: torchvision at whole pixels, tests/transforms/geometry/test_geometry.py.

    Args:
        scale: the window's area as a share of the frame's, within [0.01, 1]; (1, 1) changes nothing.
        ratio: width over height of the window, divided by that of the frame, so that 1 keeps shapes (on a square
            frame this is torchvision's ratio). The logarithm is uniform, over that part of the range at which a
            window of the drawn area still fits: from max(low, area) to min(high, 1 / area).

    Raises:
        ValueError: a `ratio` that does not contain 1, with an area at which none of its windows fits.

    Examples:
        >>> from transforms.geometry import Crop
        >>> u = torch.tensor([[0.0, 0.5, 0.0, 0.0]])  # the window in the upper left corner
        >>> [[round(entry, 4) for entry in row] for row in Crop(scale=(0.25, 0.25)).matrix(u)[0, :2].tolist()]
        [[0.5, 0.0, -0.5], [0.0, 0.5, -0.5]]
    """

    scale: Range = (0.5, 1.0)
    ratio: Range = (3 / 4, 4 / 3)

    names: ClassVar[tuple[str, ...]] = (
        "area (of the frame)",
        "aspect (x of the frame's)",
        "position right (of the slack)",
        "position down (of the slack)",
    )

    def __post_init__(self) -> None:
        scale, ratio = pair(self.scale, "scale", low=0.01, high=1), pair(self.ratio, "ratio", low=0.01, high=100)
        limit = min(ratio[1], 1 / ratio[0], 1.0)  # the largest area that fits at the mildest ratio
        if scale[1] > limit * (1 + 1e-9):
            raise ValueError(
                f"`scale` must be at most {limit:.4g} where `ratio` is {ratio}, or the window leaves the picture; "
                f"got {scale} (reduce `scale`, or let `ratio` contain 1)"
            )

    def values(self, u: Tensor) -> Tensor:
        area = spread(u[:, 0], pair(self.scale, "scale"))
        low, high = (math.log(limit) for limit in self.ratio)
        # Narrowing the range, and not clamping the ratio, leaves no part of the cube without a gradient.
        narrow, wide = area.log().clamp(min=low), (-area.log()).clamp(max=high)
        return torch.cat([area[:, None], (narrow + (wide - narrow) * u[:, 1]).exp()[:, None], u[:, 2:]], dim=-1)

    def matrix(self, u: Tensor) -> Tensor:
        area, aspect, right, down = self.values(u).unbind(-1)
        width, height = (area * aspect).sqrt(), (area / aspect).sqrt()
        sides = zip((right, down), (width, height), self.extent, strict=True)
        x, y = ((2 * at - 1) * (1 - side) * half for at, side, half in sides)
        return shift(x, y) @ scale(width, height)


@dataclass(frozen=True)
class Flip(Homography):
    """Mirror the picture left to right (`vertical`: top to bottom) with probability `p`, as torch.flip does.

    Use: pictures that may be mirrored, as by a front camera.
    Not: systems that never see a mirrored picture, such as readers of text.
    Source: torch.flip.
    Oracle: torch.flip, tests/transforms/geometry/test_geometry.py.

    Args:
        p: the probability, within [0, 1]; 0 changes nothing.
        vertical: top to bottom in place of left to right.

    Examples:
        >>> from transforms.geometry import Flip
        >>> views = Flip(p=0.5)(torch.tensor([[[[0.0, 1.0]]]]).repeat(2, 1, 1, 1), torch.tensor([[0.4], [0.6]]))
        >>> views.flatten().tolist()
        [1.0, 0.0, 0.0, 1.0]
    """

    p: float = 0.5
    vertical: bool = False

    names: ClassVar[tuple[str, ...]] = ("mirrored (0 or 1)",)
    discrete: ClassVar[tuple[int, ...]] = (0,)

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise ValueError(f"`p` must be a probability, in [0, 1]; got {self.p!r}")
        if not isinstance(self.vertical, bool):
            raise ValueError(f"`vertical` must be true or false; got {self.vertical!r}")

    def values(self, u: Tensor) -> Tensor:
        return (to_decide(u) < self.p).to(u.dtype)

    def matrix(self, u: Tensor) -> Tensor:
        mirror, unit = 1 - 2 * self.values(u)[:, 0], torch.ones_like(u[:, 0])
        return scale(unit, mirror) if self.vertical else scale(mirror, unit)


@dataclass(frozen=True)
class Placement(Ranged, InFrame, Homography):
    """Move a layer of the scene anywhere, from the middle of all ranges, whose corners `quad` gives.

    Args:
        scale: the layer's shorter side as a share of the scene's shorter side.
        degrees: rotation, clockwise as displayed; a number x means (-x, x).
        x, y: where its middle lies, as shares of the free room: at 0 the turned layer touches the left
            (upper) edge of the scene, at 1 the right (lower) one. Without room, in the middle.
        aspect: width of the layer over its height.

    Examples:
        >>> from transforms.geometry import Placement
        >>> Placement(scale=(0.5, 0.5)).quad((100, 200)).round(decimals=4).tolist()  # in the middle
        [[0.375, 0.25], [0.625, 0.25], [0.625, 0.75], [0.375, 0.75]]
    """

    scale: Range = (0.3, 0.6)
    degrees: float | Range = (0.0, 0.0)
    x: Range = (0.0, 1.0)
    y: Range = (0.0, 1.0)
    aspect: float = 1.0

    label: ClassVar[str] = "place"
    coordinates = (
        Coordinate("scale (of shorter side)", "scale", 1e-3, 10),
        Coordinate("angle (deg)", "degrees"),
        Coordinate("right (of room)", "x", 0, 1),
        Coordinate("down (of room)", "y", 0, 1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.aspect <= 100:
            raise ValueError(f"`aspect` must lie within [0.01, 100]; got {self.aspect!r}")

    def quad(self, size: tuple[int, int]) -> Tensor:
        """The corners of the layer at the middle of all ranges, in a scene of `size` (height, width): (4,2) in shares
        of its width and height, clockwise from the upper left."""
        place = self.framed(size)
        middle = torch.full((1, 4), 0.5, dtype=torch.float64)
        wide, high = max(self.aspect, 1.0), max(1 / self.aspect, 1.0)
        corners = middle.new_tensor([[[-wide, -high], [wide, -high], [wide, high], [-wide, high]]])
        return transform(invert(place.pull_of(middle)), corners)[0][0] / middle.new_tensor(place.extent) / 2 + 0.5

    def matrix(self, u: Tensor) -> Tensor:
        """(N,4) -> (N,3,3) from points of the scene to the points that were there before the move."""
        middle = self.pull_of(torch.full_like(u[:1], 0.5))
        return invert(middle) @ self.pull_of(u)

    def pull_of(self, u: Tensor) -> Tensor:
        """(N,4) -> (N,3,3) from the scene's stage frame to the layer's."""
        size, angle, right, down = self.values(u).unbind(-1)
        angle = torch.deg2rad(angle)
        c, s = angle.cos(), angle.sin()
        wide, high = max(self.aspect, 1.0), max(1 / self.aspect, 1.0)
        room_x = (self.extent[0] - size * (wide * c.abs() + high * s.abs())).clamp(min=0)
        room_y = (self.extent[1] - size * (wide * s.abs() + high * c.abs())).clamp(min=0)
        x, y = (2 * right - 1) * room_x, (2 * down - 1) * room_y
        c, s = c / size, s / size
        return matrix_of([[c, s, -c * x - s * y], [-s, c, s * x - c * y], [0, 0, 1]], angle)
