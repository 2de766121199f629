"""The random parameters of simulated photographs, and their geometry.

Independent of `transforms`: the simulation is the oracle of that layer. Lengths are in the stage frame: origin at the
picture's centre, unit = half its shorter side, y down. The photograph's frame is that of a view: its central square
shows what a view of a square scene shows, and the rest continues the scene's plane.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Range = tuple[float, float]
Matrix = NDArray[np.float64]  # (3,3), on columns (x, y, 1)
Points = NDArray[np.float64]  # (n,2)
Pixels = NDArray[Any]  # (h,w,channels) of light in float32; 1 saturates

#: The field of view across the frame's shorter side in degrees.
FIELD_OF_VIEW = 40.0
SQUARE = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0))


def scope(low: float, high: float, default: Any, meaning: str) -> Any:
    """A field of `Ranges` whose values lie in [low, high]."""
    return field(default=default, metadata={"limits": (low, high), "meaning": meaning})


@dataclass(frozen=True)
class Ranges:
    """Bounds of the uniformly drawn parameters. Defaults: geometry, brightness and contrast as in
    `configs/transforms/camera.yaml`; lens, sensor and file of a smartphone."""

    degrees: Range = scope(-360, 360, (-20.0, 20.0), "rotation, clockwise as displayed")
    scale: Range = scope(0.05, 20, (0.75, 1.3), "magnification; 2 shows the scene twice as large")
    shift: Range = scope(-2, 2, (-0.1, 0.1), "right and down, shares of the shorter side")
    jitter: float = scope(0, 0.45, 0.15, "most that a corner of the view moves along each axis, of half the side")
    yaw: Range = scope(-75, 75, (0.0, 0.0), "degrees that the scene's right edge turns away from a pinhole")
    pitch: Range = scope(-75, 75, (0.0, 0.0), "degrees that the scene's upper edge leans back")
    distance: Range = scope(0.1, 20, (1.0, 1.0), "of the pinhole; 2 shows the scene half as large")
    stops: Range = scope(-8, 8, (-0.687, 0.573), "exposure: mid-grey moves by 0.1 of full scale at most")
    contrast: Range = scope(0.1, 5, (0.8, 1.2), "the tone curve's slope at mid-grey")
    red: Range = scope(-4, 4, (-0.15, 0.15), "gain against green in stops")
    blue: Range = scope(-4, 4, (-0.15, 0.15), "gain against green in stops")
    gradient: Range = scope(0, 4, (0.0, 0.3), "of the light over half the shorter side, in stops, in any direction")
    blur: Range = scope(0, 50, (0.4, 1.0), "sigma of lens and focus in pixels")
    motion: Range = scope(0, 100, (0.0, 2.0), "length of the motion blur in pixels, in any direction")
    shot: Range = scope(0, 0.1, (1e-4, 1e-3), "noise has the variance shot x light + read^2, 1 saturates")
    read: Range = scope(0, 0.5, (5e-4, 3e-3), "see shot")
    quality: Range = scope(1, 100, (80.0, 95.0), "of the JPEG file, whole numbers")
    k1: Range = scope(-0.3, 0.3, (0.0, 0.0), "radial distortion of the lens, one for all photographs")
    sag: Range = scope(-0.2, 0.2, (0.0, 0.0), "height of a curled card, share of its width; below 0 its edges rise")
    clutter: Range = scope(0, 50, (0.0, 0.0), "objects in the scene round the card, whole numbers")
    covered: Range = scope(0, 0.5, (0.0, 0.0), "share of the card under an object across its edge")
    glare: Range = scope(0, 10, (0.0, 0.0), "of a lamp on the card, against white paper")
    sharpen: Range = scope(0, 3, (0.0, 0.0), "amount of the unsharp mask on encoded values")
    local: Range = scope(0, 1, (0.0, 0.0), "how far local brightness is evened out, 1 is wholly")
    detail: Range = scope(0, 1, (0.0, 0.0), "finer than the run's picture in the scene, deviation, share of light")
    grid: Range = scope(0, 20, (0.0, 0.0), "pitch of a screen's pixels in mm; 0: none are seen")
    glow: Range = scope(-4, 4, (0.0, 0.0), "of a screen against white paper, in stops")
    refresh: Range = scope(0, 1, (0.0, 0.0), "of a screen: bands across the rows, a share of light")
    reflection: Range = scope(0, 10, (0.0, 0.0), "in glass before the card: a window's light, against white paper")
    fold: Range = scope(0, 0.05, (0.0, 0.0), "of cloth: how far its folds move it, as a share of its width")
    stretch: Range = scope(-0.2, 0.2, (0.0, 0.0), "of cloth one way, a share")

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            low, high = (value, value) if entry.name == "jitter" else value
            minimum, maximum = LIMITS[entry.name]
            if not minimum <= low <= high <= maximum:
                raise ValueError(f"`{entry.name}` must be LOW <= HIGH within [{minimum:g}, {maximum:g}]; got {value}")


LIMITS: dict[str, Range] = {item.name: item.metadata["limits"] for item in dataclasses.fields(Ranges)}
#: The ranges of `hard` that differ from the default; the camera is a pinhole before the scene, as a lens and a curled
#: sheet need one.
HARD: dict[str, Any] = {"jitter": 0.0, "yaw": (-25.0, 25.0), "pitch": (-20.0, 20.0), "distance": (1.0, 1.2)}
HARD |= {"k1": (-0.2, 0.2), "sag": (-0.1, 0.1), "clutter": (4, 12), "detail": (0.1, 0.3), "covered": (0.005, 0.02)}
HARD |= {"glare": (0.2, 1.0), "sharpen": (0.3, 1.5), "local": (0.0, 0.3), "quality": (60.0, 90.0)}
#: What shows the card (see `attacks.study.printer.MEDIA`): the ranges that differ from those of paper.
MEDIA: dict[str, dict[str, Any]] = {
    "paper": {},
    "screen": {"grid": (0.2, 0.5), "glow": (-0.3, 0.5), "refresh": (0.0, 0.2), "reflection": (0.0, 0.08)},
    "cloth": {"fold": (0.0, 0.02), "stretch": (-0.05, 0.05)},
    "glass": {"reflection": (0.0, 0.25)},
}
#: Ranges by name: those that the attack is optimised for, and harder ones.
PRESETS: dict[str, Ranges] = {"kind": Ranges(), "hard": Ranges(**HARD)}


def in_unit(unit: str, default: Any) -> Any:
    return field(default=default, metadata={"unit": unit})


@dataclass(frozen=True)
class Shot:
    """The parameters of one photograph. Directions are in degrees, clockwise from the right; `corners` are the
    shifts (right, down) of the upper left, upper right, lower right and lower left corner, in half sides."""

    degrees: float = in_unit("deg", 0.0)
    scale: float = in_unit("x", 1.0)
    right: float = in_unit("of shorter side", 0.0)
    down: float = in_unit("of shorter side", 0.0)
    corners: tuple[tuple[float, float], ...] = in_unit("of half side", ((0.0, 0.0),) * 4)
    yaw: float = in_unit("deg", 0.0)
    pitch: float = in_unit("deg", 0.0)
    distance: float = in_unit("x", 1.0)
    stops: float = in_unit("stops", 0.0)
    contrast: float = in_unit("x", 1.0)
    red: float = in_unit("stops", 0.0)
    blue: float = in_unit("stops", 0.0)
    gradient: float = in_unit("stops per half side", 0.0)
    brighter: float = in_unit("deg", 0.0)
    blur: float = in_unit("px", 0.0)
    motion: float = in_unit("px", 0.0)
    along: float = in_unit("deg", 0.0)
    shot: float = in_unit("variance per light", 0.0)
    read: float = in_unit("of full light", 0.0)
    quality: int = in_unit("of 100", 95)
    k1: float = in_unit("of r^2", 0.0)
    sag: float = in_unit("of the card's width", 0.0)
    curl: float = in_unit("deg", 0.0)
    clutter: int = in_unit("objects", 0)
    covered: float = in_unit("of the card", 0.0)
    glare: float = in_unit("of white", 0.0)
    sharpen: float = in_unit("x", 0.0)
    local: float = in_unit("x", 0.0)
    detail: float = in_unit("of light", 0.0)
    seed: int = in_unit("of objects and lamp", 0)
    grid: float = in_unit("mm", 0.0)
    glow: float = in_unit("stops", 0.0)
    refresh: float = in_unit("of light", 0.0)
    reflection: float = in_unit("of white", 0.0)
    fold: float = in_unit("of the card's width", 0.0)
    stretch: float = in_unit("x - 1", 0.0)

    def to_dict(self) -> dict[str, object]:
        """All values, keyed by name and unit."""
        values = dataclasses.asdict(self)
        return {f"{entry.name} ({entry.metadata['unit']})": values[entry.name] for entry in dataclasses.fields(self)}


#: Fields of `Shot` that are whole numbers.
INTEGERS = ("quality", "clutter", "seed")


def draw_shot(ranges: Ranges, rng: np.random.Generator) -> Shot:
    """Draw the parameters of a photograph. Always takes the same number of values from `rng`; those from `k1` on come
    from a child of it, so that the others do not depend on them."""
    bounds = vars(ranges) | {"right": ranges.shift, "down": ranges.shift, "brighter": (0, 360), "along": (0, 180)}
    bounds |= {"curl": (0, 180), "seed": (0, 2**31)}
    corners = rng.uniform(-1, 1, (4, 2)) * ranges.jitter
    values: dict[str, Any] = {"corners": tuple((float(x), float(y)) for x, y in corners)}
    for entry in dataclasses.fields(Shot):
        if entry.name == "k1":
            rng = rng.spawn(1)[0]
        if entry.name != "corners":
            values[entry.name] = float(rng.uniform(*bounds[entry.name]))
    return Shot(**values | {name: round(values[name]) for name in INTEGERS})


def view_homography(shot: Shot) -> Matrix:
    """(3,4) from the scene's plane and the height over it, (x, y, height, 1), to the photograph, both in the stage
    frame: turn and magnify about the centre, shift, tilt, move the corners."""
    angle, size = math.radians(shot.degrees), shot.scale
    c, s = size * math.cos(angle), size * math.sin(angle)
    flat = np.array([[c, -s, 0, 2 * shot.right], [s, c, 0, 2 * shot.down], [0, 0, size, 0], [0, 0, 0, 1]])
    corners = np.asarray(SQUARE) + np.asarray(shot.corners)
    return np.asarray(four_point_homography(SQUARE, corners) @ _tilt(shot) @ flat)


def _tilt(shot: Shot) -> Matrix:
    """(3,4): a pinhole before a plane turned by yaw, then by pitch, as far away as makes it 1 / distance as large."""
    yaw, pitch = math.radians(shot.yaw), math.radians(shot.pitch)
    c, s = math.cos(yaw), math.sin(yaw)
    turn = np.array([[c, 0, s], [0, 1, 0], [s, 0, -c]])  # of the points (x, y, height)
    nod = np.array([[1, 0, 0], [0, math.cos(pitch), math.sin(pitch)], [0, -math.sin(pitch), math.cos(pitch)]])
    right, down, depth = nod @ turn
    focal = 1 / math.tan(math.radians(FIELD_OF_VIEW) / 2)
    return np.array([[*focal * right, 0], [*focal * down, 0], [*depth, focal * shot.distance]])


def frame(size: tuple[int, int]) -> Matrix:
    """From the stage frame of a picture of `size` (height, width) to its pixels, whose centres are whole numbers."""
    (height, width), half = size, min(size) / 2
    return np.array([[half, 0, (width - 1) / 2], [0, half, (height - 1) / 2], [0, 0, 1]])


def from_shares(size: tuple[int, int]) -> Matrix:
    """From shares of the width and height of a picture of `size` (height, width) to its stage frame."""
    height, width = size[0] / min(size), size[1] / min(size)
    return np.array([[2 * width, 0, -width], [0, 2 * height, -height], [0, 0, 1]])


def four_point_homography(src: Sequence[Sequence[float]] | Points, dst: Sequence[Sequence[float]] | Points) -> Matrix:
    """The homography of four points to four points: eight equations, solved. Raises ValueError where `dst` is not
    convex, or three of its points lie in a line."""
    corners = np.asarray(dst, float)
    side = np.c_[np.roll(corners, -1, 0) - corners, np.zeros(4)]
    turns = np.sign(np.cross(side, np.roll(side, -1, 0))[:, 2].round(9))
    if abs(turns.sum()) != 4:
        raise ValueError(f"a quad must be convex, with no three corners in a line; got {corners.tolist()}")
    rows, right = [], []
    for (x, y), (u, v) in zip(np.asarray(src, float), np.asarray(dst, float), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    return np.append(np.linalg.solve(np.array(rows), np.array(right)), 1.0).reshape(3, 3)


def map_points(matrix: Matrix, points: Sequence[Sequence[float]] | Points) -> Points:
    """Points through a homography. Raises ValueError where one of them lies behind the camera."""
    x, y, w = matrix @ np.c_[np.asarray(points, float), np.ones(len(points))].T
    if not (w > 1e-6).all():
        raise ValueError("a corner lies behind the camera: reduce `jitter`, `yaw` or `pitch`, or go further away")
    return np.stack([x / w, y / w], axis=1)
