"""Geometric stages that are no homography: a lens, a cloth, a bottle, a shutter that reads row by row, any grid."""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.compose import Geometry, hide
from transforms.draws.ranges import Coordinate, Range, Ranged, pair, spread, symmetric
from transforms.geometry.affine import InFrame

#: Points further out than this many half sides are hidden by a lens: its polynomial would leave float32.
FAR = 100.0
#: Rays that pass the bottle's side closer than this are hidden: there the derivative of the hit point grows without
#: bound. As a share of the squared distance to the outline, so 0.05 % of the bottle's half width.
GRAZING = 1e-3


@dataclass(frozen=True)
class Lens(Ranged, Geometry):
    r"""Radial distortion (Brown 1966, as in OpenCV): an output point at radius r looks at r (1 + k1 r^2 + k2 r^4).

    r = 1 at half the shorter side. Positive coefficients are barrel distortion, negative ones pincushion; beyond the
    fold, where the polynomial turns back, the view shows the border value.

    Formula: r \leftarrow r \, (1 + k_1 r^2 + k_2 r^4)
    Use: a wide-angle lens, whose straight lines bend.
    Not: a lens whose axis is not at the picture's centre.
    Oracle: OpenCV's distortion, tests/transforms/geometry/test_geometry.py.

    Args:
        k1, k2: the coefficients, within [-1, 1]; a number x means (-x, x).

    Examples:
        >>> from transforms.geometry import Lens
        >>> looks_at = Lens(k1=(0.1, 0.1)).pull(torch.tensor([[[[0.5, 0.0], [1.0, 0.0]]]]), torch.zeros(1, 2))
        >>> torch.allclose(looks_at, torch.tensor([[0.5125, 0.0], [1.1, 0.0]]))  # r (1 + 0.1 r^2)
        True
    """

    k1: float | Range = (0.0, 0.0)
    k2: float | Range = (0.0, 0.0)

    coordinates = (Coordinate("k1 (of r^2)", "k1", -1, 1), Coordinate("k2 (of r^4)", "k2", -1, 1))

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        k1, k2 = (v[:, None, None] for v in self.values(u).unbind(-1))
        square = points.square().sum(-1)
        visible = (square * _fold(k1, k2).detach() < 1) & (square < FAR**2)
        points = torch.where(visible[..., None], points, 0.0)
        square = points.square().sum(-1)
        return hide(points * (1 + square * (k1 + k2 * square))[..., None], visible)


def _fold(k1: Tensor, k2: Tensor) -> Tensor:
    """1 / r^2 of the innermost root of d/dr r (1 + k1 r^2 + k2 r^4), at most 0 where there is none."""
    discriminant = 9 * k1.square() - 20 * k2
    return torch.where(discriminant < 0, 0.0, (discriminant.clamp(min=0).sqrt() - 3 * k1) / 2)


@dataclass(frozen=True)
class RollingShutter(Ranged, InFrame, Geometry):
    """Read each row at its own time, top to bottom, while the camera moves sideways. At time t (0 at the frame's top
    edge, 1 at its bottom edge) the row stands to the right by pan (t - 1/2) + wobble sin(2 pi (cycles t + phase)).

    Use: the video of a phone that pans or vibrates.
    Not: a camera that stands still, or one that exposes all rows at once.
    Source: this project's own formula.
    Oracle: each row against its own time, tests/transforms/geometry/test_geometry.py.

    Args:
        pan: how far the picture moves during one frame, as a share of the shorter side, within [-1, 1]; positive
            leans it to the right at the bottom. A number x means (-x, x).
        wobble: amplitude of the vibration, as a share of the shorter side, within [0, 1].
        cycles: periods of the vibration during one frame, within [0, 8]; the phase is uniform.

    Examples:
        >>> from transforms.geometry import RollingShutter
        >>> rows = torch.tensor([[[[0.0, -1.0]], [[0.0, 0.0]], [[0.0, 1.0]]]])  # upper edge, middle, lower edge
        >>> RollingShutter(pan=(0.25, 0.25)).pull(rows, torch.zeros(1, 4))[0, :, 0, 0].tolist()
        [0.25, 0.0, -0.25]
    """

    pan: float | Range = (0.0, 0.0)
    wobble: Range = (0.0, 0.0)
    cycles: Range = (1.0, 1.0)

    coordinates = (
        Coordinate("pan (of shorter side)", "pan", -1, 1),
        Coordinate("wobble (of shorter side)", "wobble", 0, 1),
        Coordinate("vibration (cycles a frame)", "cycles", 0, 8),
        Coordinate("phase (deg)", "", 0, 360),
    )

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        pan, wobble, cycles, phase = (v[:, None, None] for v in self.values(u).unbind(-1))
        x, y = points.unbind(-1)
        late = y / (2 * self.extent[1])  # time from the middle row's
        right = pan * late + wobble * (2 * math.pi * cycles * (late + 0.5) + phase.deg2rad()).sin()
        x = x - 2 * right
        return torch.stack([x, y.expand_as(x)], dim=-1)


@dataclass(frozen=True)
class ThinPlate(Geometry):
    """Crumple the picture like a cloth: the smoothest displacement through given points (Bookstein 1989).

    grid x grid control points lie evenly over the largest centred square of the picture. At each the view shows what
    lies a drawn displacement away in the picture; in between and beyond, the displacement is a thin-plate spline.

    Use: cloth, or paper that is not flat.
    Not: the regular bend of a bottle, for which `Cylinder` has one coordinate.
    Oracle: SciPy's thin-plate spline, tests/transforms/geometry/test_geometry.py.

    Args:
        jitter: most that a control point looks away along each axis, as a share of half the shorter side; 0 changes
            nothing; below half of their spacing, 1 / (grid - 1), so that neighbours keep their order. (From
            0.5 / (grid - 1) on, some extreme cloths fold over themselves.)
        grid: control points along each axis, 2 to 10.

    Examples:
        >>> from transforms.geometry import ThinPlate
        >>> u = torch.tensor([[1.0, 0.5] + 8 * [0.5, 0.5]])  # the first control point looks 0.1 to the right
        >>> moved = ThinPlate(jitter=0.1, grid=3).pull(torch.tensor([[[[-1.0, -1.0]]]]), u)
        >>> torch.allclose(moved, torch.tensor([-0.9, -1.0]), atol=1e-5)
        True
    """

    jitter: float = 0.1
    grid: int = 3

    def __post_init__(self) -> None:
        if type(self.grid) is not int or not 2 <= self.grid <= 10:
            raise ValueError(f"`grid` must be a whole number of points, 2 to 10; got {self.grid!r}")
        limit = 1 / (self.grid - 1)
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter < limit:
            raise ValueError(
                f"`jitter` must lie in [0, {limit:.4g}), half the spacing of {self.grid} points; got {self.jitter!r}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        places = [(row, column) for row in range(1, self.grid + 1) for column in range(1, self.grid + 1)]
        return tuple(f"row {r} column {c} {axis} (of half side)" for r, c in places for axis in ("right", "down"))

    def values(self, u: Tensor) -> Tensor:
        return spread(u, (-self.jitter, self.jitter))

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        dtype = torch.promote_types(points.dtype, u.dtype)
        controls, solve = _spline(self.grid, dtype, points.device)
        displacement = self.values(u).to(dtype).unflatten(-1, (1, -1, 2))
        weights = (solve[..., None] * displacement).sum(-2)[..., None, None]  # (N,K+3,2,1,1)
        x, y = points.unbind(-1)
        basis = chain((_bump(x - cx, y - cy) for cx, cy in controls), (torch.ones_like(x), x, y))
        # Term by term: (N,h,w,K+3) at once is ten times slower, and a matrix product could run in TF32 on a GPU.
        right, down = x, y
        for term, weight in zip(basis, weights.unbind(1), strict=True):
            right, down = right + term * weight[:, 0], down + term * weight[:, 1]
        return torch.stack([right, down], dim=-1)


def _bump(x: Tensor, y: Tensor) -> Tensor:
    """r^2 log r^2, the thin plate's response to a point force."""
    square = x.square() + y.square()
    # The smallest normal number keeps the logarithm finite at r = 0, where r^2 makes the product 0.
    return square * (square + torch.finfo(square.dtype).tiny).log()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _spline(grid: int, dtype: torch.dtype, device: torch.device) -> tuple[list[tuple[float, float]], Tensor]:
    """The K control points, and the matrix (K+3,K) from displacements there to the weights of K bumps, 1, x and y."""
    at = torch.linspace(-1, 1, grid, dtype=torch.float64)
    y, x = (axis.flatten() for axis in torch.meshgrid(at, at, indexing="ij"))
    plane = torch.stack([torch.ones_like(x), x, y], dim=-1)
    bumps = _bump(x[:, None] - x, y[:, None] - y)
    # The side conditions: the bumps' weights are orthogonal to 1, x and y.
    system = torch.cat([torch.cat([bumps, plane], dim=1), torch.nn.functional.pad(plane.mT, (0, 3))])
    solve = torch.linalg.inv(system)[:, : grid**2]
    return list(zip(x.tolist(), y.tolist(), strict=True)), solve.to(device, dtype)


#: Places of a dense grid may lie so many half frames from the centre.
FARTHEST = 100.0


@dataclass(frozen=True, eq=False)
class DenseGrid(Ranged, InFrame, Geometry):
    """Warp by a dense grid, as torch's grid_sample and OpenCV's remap do: where each pixel of the view looks. The
    gradient reaches the grid. Between the grid's places, and beyond the outermost, its displacement is bilinear.

    Use: an optical flow, a deformation field, or a warp that is itself optimised.
    Not: a smooth random cloth: `ThinPlate`.
    Source: torch's grid_sample.
    Oracle: grid_sample, OpenCV's remap and `Affine`, tests/transforms/geometry/test_geometry.py.

    Args:
        grid: (H,W,2) places (x, y), of which -1 and 1 are the picture's edges (align_corners=False), at most 100; a
            tensor or nested lists, of any H and W: the places are spread over the view. The identity by default.
        amount: the share of the displacement, within [0, 10].

    Examples:
        >>> from transforms.geometry import DenseGrid
        >>> y, x = torch.meshgrid(*2 * [(torch.arange(8) + 0.5) / 4 - 1], indexing="ij")
        >>> grid = torch.stack([-x, y], -1).requires_grad_()  # a mirror
        >>> image = torch.rand(1, 3, 8, 8)
        >>> view = DenseGrid(grid)(image, torch.zeros(1, 1))
        >>> torch.allclose(view, image.flip(3), atol=1e-5), torch.autograd.grad(view.sum(), grid)[0].shape
        (True, torch.Size([8, 8, 2]))
    """

    grid: Any = field(default=(((0.0, 0.0),),), repr=False)
    amount: Range = (1.0, 1.0)

    coordinates = (Coordinate("amount (share of the displacement)", "amount", 0, 10),)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            grid = self.grid if isinstance(self.grid, Tensor) else torch.tensor(self.grid, dtype=torch.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            grid = torch.zeros(0)
        if grid.dim() != 3 or grid.shape[2] != 2 or not grid.numel() or not bool((grid.abs() <= FARTHEST).all()):
            raise ValueError(
                f"`grid` must be (H,W,2) places (x, y), of which -1 and 1 are the edges, at most {FARTHEST:g}; got "
                f"{f'shape {tuple(grid.shape)}' if grid.numel() else f'a {type(self.grid).__name__}'}"
            )
        object.__setattr__(self, "grid", grid)

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        grid = self.grid.to(points)
        y, x = ((2 * torch.arange(n, dtype=points.dtype) + 1) / n - 1 for n in grid.shape[:2])
        displacement = grid - torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).to(grid)
        half_frame = points.new_tensor(self.extent)
        at = (displacement * half_frame).movedim(-1, 0)[None].expand(len(points), -1, -1, -1)
        move = F.grid_sample(at, points / half_frame, padding_mode="border", align_corners=False).movedim(1, -1)
        return points + self.values(u).to(points)[:, :, None, None] * move


@dataclass(frozen=True)
class Cylinder(Ranged, InFrame, Geometry):
    """Show the picture as the label of a bottle, seen by a pinhole camera that looks at the label's middle.

    The middle of the front keeps its place and scale. Past the outline of the bottle, and past the label's edges, the
    view shows the border value. Where a ray meets the bottle twice, the nearer point counts.

    Use: a label on a bottle or can, or paper that is rolled.
    Not: folds and uneven paper: `ThinPlate`.
    Source: this project's own: each ray meets a cylinder in closed form.
    Oracle: points that are projected from a bottle come back, tests/transforms/geometry/test_geometry.py.

    Args:
        arc: how many degrees of the bottle the picture's width covers, within [0, 360]; 0 is a flat label, and the
            identity. A number x means (0, x).
        turn: rotation of the bottle about its axis in degrees; positive carries the label to the right. At most half
            of the smallest arc, so that a part of the label stays in front. A number x means (-x, x).
        tilt: lean of the axis in degrees, within [-60, 60]; positive leans the bottle's top away from the camera. A
            number x means (-x, x).
        distance: from the camera to the label's middle in half shorter sides, at least 1; a number x means (x, x).

    Raises:
        ValueError: a range that is no range or too wide, with its name.

    Examples:
        >>> from transforms.geometry import Cylinder
        >>> view = Cylinder(arc=(180, 180))(torch.ones(1, 1, 33, 33), torch.zeros(1, 4))[0, 0, 16]
        >>> float(view[16].round(decimals=4)), view[0].item()  # the label's middle; past the outline of the bottle
        (1.0, 0.5)
    """

    arc: float | Range = (0.0, 0.0)
    turn: float | Range = (0.0, 0.0)
    tilt: float | Range = (0.0, 0.0)
    distance: float | Range = 4.0

    names = ("arc (deg)", "turn (deg)", "tilt (deg)", "distance (half shorter sides)")

    def __post_init__(self) -> None:
        arc, turn, _, _ = self.bounds
        if max(map(abs, turn)) > arc[0] / 2:
            raise ValueError(
                f"`turn` must lie within half of the smallest arc, [{-arc[0] / 2:g}, {arc[0] / 2:g}], or the label "
                f"may turn out of sight; got {turn} with arc {arc} (raise the lower end of `arc`)"
            )

    @cached_property
    def bounds(self) -> tuple[Range, ...]:
        arc = (0.0, self.arc) if isinstance(self.arc, int | float) else self.arc
        distance = (self.distance, self.distance) if isinstance(self.distance, int | float) else self.distance
        return (
            pair(arc, "arc", low=0, high=360),
            symmetric(self.turn, "turn"),
            symmetric(self.tilt, "tilt", low=-60, high=60),
            pair(distance, "distance", low=1, high=1000),
        )

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        half_width = self.extent[0]  # of the label
        arc, turn, tilt, distance = (v[:, None, None] for v in self.values(u).unbind(-1))
        bend = arc.deg2rad() / 2 / half_width  # the curvature, 1 / radius
        x, y, depth, height, visible = _front_plane(points, tilt.deg2rad(), distance)
        # In the bottle's frame, with the axis at z = 1 / bend, the ray meets the plane z = 0 at (x, y) and the bottle
        # at 1 + s times the way there: bend ((1 + s)^2 x^2 + away^2 s^2) = 2 away s. The nearer root, without
        # cancellation, so that bend = 0 needs no special case:
        discriminant = 1 - 2 * bend * x.square() / depth - (bend * x).square()
        visible = visible & (discriminant > GRAZING)
        x, y, discriminant = (torch.where(visible, v, fill) for v, fill in ((x, 0.0), (y, 0.0), (discriminant, 1.0)))
        hump = bend * x.square()
        s = hump / (depth - hump + depth * discriminant.sqrt())
        # The angle from the front, over the curvature: atan(w) / w instead of atan2, which 0 / 0 would spoil.
        offset = x * (1 + s) / (1 - bend * depth * s)
        arc_length = offset * _atan_ratio(bend * offset)
        if any(self.bounds[1]):
            arc_length = arc_length - turn / arc * 2 * half_width
            lap = 4 * math.pi * half_width / arc.deg2rad()  # once round the bottle
            arc_length = arc_length - lap * (arc_length / lap).detach().round()
        return hide(torch.stack([arc_length, y + s * (y - height)], dim=-1), visible)


def _front_plane(points: Tensor, tilt: Tensor, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where each ray meets the plane that touches the bottle's front: x and y there, with the bottle's axis upright;
    the camera's distance from that plane and its place along the axis; and which rays point at the plane at all."""
    right, down = points.unbind(-1)
    depth, height = distance * tilt.cos(), distance * tilt.sin()
    approach = down * tilt.sin() + depth  # how much nearer to the plane the ray comes, up to the output plane
    visible = (approach > 0.01 * distance) & (points.abs().amax(-1) < 1e4)
    scale = depth / torch.where(visible, approach, 1.0)
    right, down = torch.where(visible, right, 0.0), torch.where(visible, down, 0.0)
    return scale * right, height + scale * (down * tilt.cos() - height), depth, height, visible


def _atan_ratio(w: Tensor) -> Tensor:
    """atan(w) / w, smooth at 0."""
    square = w.square()
    small = square < 1e-3
    series = 1 - square * (1 / 3 - square * (1 / 5 - square * (1 / 7 - square / 9)))
    safe = torch.where(small, 1.0, w)
    return torch.where(small, series, safe.atan() / safe)
