"""What the run's patch does digitally in the printer and the poses that photographs have shown.

Photographs that succeed less often than the run's own views may have other colours, other poses, or anything else.
The texture is rendered again: in the run's held-out views with the fitted colour map in place of the printer that the
attack assumed, then with the pose of each photograph in place of the camera's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.evaluation.intervals import Interval
from attacks.evaluation.judge import Judge
from attacks.physical.colour_fit import ColourFit
from attacks.physical.photo_measure import PhotoMeasurement
from attacks.physical.rectify import Pose
from attacks.physical.score import PhotoScores, figures, joined, scored
from attacks.physical.views import Rerun
from attacks.study.printer import reprinted
from transforms import Compose
from transforms.compose import Homography
from transforms.sampling.homography import quad_to_quad
from transforms.scene import Shown, base_of, taken


@dataclass(frozen=True, eq=False)
class Poses(Homography):
    """One of several poses of the camera, chosen by its only coordinate.

    Args:
        corners: (P,4,2) of the scene's square in each view, in the stage frame.
        square: (4,2) the corners of the scene, in its own.
    """

    corners: Tensor = field(repr=False)
    square: Tensor = field(repr=False)

    dims: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("photograph",)
    discrete: ClassVar[tuple[int, ...]] = (0,)

    def values(self, u: Tensor) -> Tensor:
        """The number of the photograph."""
        return (u * len(self.corners)).floor()

    def matrix(self, u: Tensor) -> Tensor:
        corners = self.corners.to(u)[self.values(u)[:, 0].long()]
        return quad_to_quad(corners, self.square.to(u).expand_as(corners))


@dataclass(frozen=True)
class Prediction:
    """Digital figures of the arm that was photographed, by measure: with the measured `printer`, and in the `poses`
    of the photographs too (None: the run's patch has no place of its own in the scene, or of a picture no pose is
    known)."""

    printer: dict[str, Interval]
    poses: dict[str, Interval] | None

    def to_dict(self, content: dict[str, Any]) -> dict[str, Any]:
        """The entry of photos.json; `gap` splits the difference of success between photographs and digital views.

        Args:
            content: of photos.json, with `photographs`, `digital` and `arm`.
        """
        digital, seen = (
            each["success"]["mean"] for each in (content["digital"][content["arm"]], content["photographs"])
        )
        printer = self.printer["success"].mean
        poses = None if self.poses is None else self.poses["success"].mean
        return {
            "printer": {name: each._asdict() for name, each in self.printer.items()},
            "poses": None if self.poses is None else {name: each._asdict() for name, each in self.poses.items()},
            "gap": {
                "colour": printer - digital,
                "geometry": None if poses is None else poses - printer,
                "rest": seen - (printer if poses is None else poses),
            },
        }


def predicted(
    origin: Rerun, judge: Judge, shown: Shown, measured: Sequence[PhotoMeasurement], fit: ColourFit
) -> Prediction:
    """Judge the run's pictures that were photographed with the patch, `shown`, again.

    Args:
        measured: the photographs that are scored.
        fit: the colour map that was fitted to them.
    """
    run, camera = origin.run, reprinted(origin.parts.transforms, fit.table())
    clusters, pictures = origin.parts.queries.clusters, sorted({each.photo.row for each in measured})

    def judged(views: Compose, some: Tensor, u: Tensor) -> PhotoScores:
        return scored(judge, taken(shown, some), some, Bank(views, u.to(base_of(shown).dtype)))

    u = bank(camera, run.evaluate.views, seed=run.seed, purpose="evaluate").u
    printer = figures(judged(camera, torch.tensor(pictures), u), clusters)
    located = [each for each in measured if each.scene is not None]
    if not origin.placement.fixed or {each.photo.row for each in located} != {*pictures}:
        return Prediction(printer, None)
    times, parts = math.ceil(run.evaluate.views / len(located)), list[PhotoScores]()
    for row in pictures:
        own = [each for each in located if each.photo.row == row]
        views = posed(camera, own, origin.placement.size)
        u = bank(views, len(own) * times, seed=run.seed, purpose="evaluate").u.clone()
        u[:, views.stages[0].dims] = (torch.arange(len(u)) % len(own) + 0.5) / len(own)
        parts.append(judged(views, torch.tensor([row]), u))
    if len(pictures) > 1:
        return Prediction(printer, figures(joined(parts), clusters))
    # Of one picture the photographs are the units, as they are of the photographed figures.
    numbers = tuple(i % len(located) for i in range(len(located) * times))
    return Prediction(printer, figures(replace(parts[0], rows=numbers), list(map(str, range(len(located))))))


def posed(camera: Compose, measured: Sequence[PhotoMeasurement], size: tuple[int, int]) -> Compose:
    """A pipeline of a patch with the poses of photographs of pictures of `size` (height, width) in place of its
    homographies."""
    half = torch.tensor([size[1], size[0]], dtype=torch.float64) / min(size)
    square = half * torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=torch.float64)
    corners = [_corners(each.scene, square, min(size)) for each in measured if each.scene is not None]
    sheet, *others = camera.stages
    kept = [stage for stage in others if not isinstance(stage, Homography)]
    return replace(camera, stages=(sheet, Poses(torch.stack(corners), square), *kept))


def _corners(pose: Pose, square: Tensor, side: int) -> Tensor:
    """The corners (4,2) of the scene in the view's stage frame (see `rectify.pose`, which this inverts)."""
    angle = math.radians(pose.degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=square.dtype)
    moved = square + torch.tensor(pose.corners, dtype=square.dtype)
    return moved @ (turn * pose.scale * side / 2).T + torch.tensor(pose.centre, dtype=square.dtype)
