"""The stage that moves the camera: a pinhole at any place before the picture's plane, looking at its centre."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from transforms.compose import Homography
from transforms.draws.ranges import Coordinate, Range, Ranged
from transforms.sampling.homography import invert, matrix_of


@dataclass(frozen=True)
class Viewpoint(Ranged, Homography):
    """See the picture as a flat print through a pinhole camera that looks at its centre from elsewhere.

    The print turns by yaw, then pitch, then roll, about its centre, `distance` before the camera. All three zero, at
    distance 1, is the identity, whatever the field of view.

    Use: a flat print or a screen that a camera sees at angles in degrees.
    Not: a picture that is bent: put `Cylinder` or `ThinPlate` before it.
    Source: the pinhole camera, as in OpenCV's projectPoints.
    Oracle: OpenCV's projectPoints, tests/transforms/geometry/test_geometry.py.

    Args:
        yaw: degrees; positive turns the picture's right edge away from the camera. A number x means (-x, x).
        pitch: degrees; positive turns the top edge away, as a sheet that leans back. A number x means (-x, x).
        roll: degrees, clockwise as displayed, of the view as a whole. A number x means (-x, x).
        distance: of the camera from the picture's centre, 1 where the shorter side of the unturned picture exactly
            fills the frame; 2 shows it half as large.
        fov: the camera's field of view in degrees over the frame's shorter side: how strong perspective is. Near 0 is
            a telephoto lens, which shows parallels as parallels. It matters only with yaw or pitch.

    Raises:
        ValueError: at some allowed value a point of the picture's largest centred square would lie behind the camera;
            the message names the least distance. What a longer picture has beyond the square may lie behind it, and
            the view shows the border value there.

    Examples:
        >>> from transforms import Viewpoint
        >>> looks_at = Viewpoint(distance=(2, 2)).pull(torch.tensor([[[[0.5, 0.25]]]]), torch.zeros(1, 5))
        >>> torch.allclose(looks_at, torch.tensor([1.0, 0.5]))  # the picture is half as large
        True
    """

    yaw: float | Range = (0.0, 0.0)
    pitch: float | Range = (0.0, 0.0)
    roll: float | Range = (0.0, 0.0)
    distance: Range = (1.0, 1.0)
    fov: Range = (40.0, 40.0)

    coordinates = (
        Coordinate("yaw (deg)", "yaw", -89, 89),
        Coordinate("pitch (deg)", "pitch", -89, 89),
        Coordinate("roll (deg)", "roll"),
        Coordinate("distance (x)", "distance", 0.01, 100),
        Coordinate("field of view (deg)", "fov", 0.1, 179),
    )

    def __post_init__(self) -> None:
        yaw, pitch, _, distance, fov = self.bounds
        minimum = _reach(yaw, pitch) * math.tan(math.radians(fov[1]) / 2)
        if distance[0] <= minimum * (1 + 1e-6):
            raise ValueError(
                f"`distance` must be above {minimum:.4g}, or a corner falls behind the camera at some yaw in {yaw}, "
                f"pitch in {pitch} and fov in {fov}; got {distance} (go further away, or narrow one of these)"
            )

    def matrix(self, u: Tensor) -> Tensor:
        yaw, pitch, roll, distance, fov = self.values(u).unbind(-1)
        yaw, pitch, roll, half = yaw.deg2rad(), pitch.deg2rad(), roll.deg2rad(), fov.deg2rad() / 2
        # Coefficients of a point (X, Y) of the print: right, down, and away from the camera (y points down).
        right = [yaw.cos(), torch.zeros_like(yaw)]
        down = [pitch.sin() * yaw.sin(), pitch.cos()]
        depth = [pitch.cos() * yaw.sin(), -pitch.sin()]
        image_x = [roll.cos() * a - roll.sin() * b for a, b in zip(right, down, strict=True)]
        image_y = [roll.sin() * a + roll.cos() * b for a, b in zip(right, down, strict=True)]
        # The focal length is 1 / tan(half), the depth of the centre distance / tan(half); both divided out.
        rows: list[list[Tensor | int]] = [
            [*(entry / distance for entry in image_x), 0],
            [*(entry / distance for entry in image_y), 0],
            [*(entry * half.tan() / distance for entry in depth), 1],
        ]
        return invert(matrix_of(rows, yaw))


def _reach(yaw: Range, pitch: Range) -> float:
    """How near the camera a corner may come, in half sides: max of |sin yaw| cos pitch + |sin pitch|."""
    side = math.sin(math.radians(max(map(abs, yaw))))
    lowest = 0.0 if pitch[0] <= 0 <= pitch[1] else min(map(abs, pitch))
    steepest = math.degrees(math.atan2(1.0, side))  # where the sum is largest
    at = math.radians(min(max(steepest, lowest), max(map(abs, pitch))))
    return side * math.cos(at) + math.sin(at)
