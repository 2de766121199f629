"""The homography from the card (mm) to a photograph (pixels), and rectified pictures.

Largest error of the patch's corners in pixels (patch 300 px wide; median and 95th percentile over 36 rendered
photographs): four tags 0.04 and 0.2, three 0.35 and 1, two 0.5 to 1 and 2 to 6, one 28 and 470. With the edges of the
swatches, as `surface_fit` adds them, the median falls with three tags from 1 px to 0.08, with two from 1.8 to 0.1.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import transforms
from attacks.perturbations.patch.card import MODULES, Box, Card
from attacks.physical.detect import LIGHT, REACH, Bytes, Floats, edge_line
from attacks.runtime.extras import extra

#: Tags that a photograph must show.
MIN_TAGS = 2
#: A tag with a larger error, as a share of its side, does not belong to the card, or is not flat.
OFF = 0.2
#: The longer side of a rectified picture in pixels, at most.
LARGEST = 1024
#: Most samples of a photograph along each axis of a rectified picture: a corner may lie near the horizon.
FINEST = 8 * LARGEST


@dataclass(frozen=True, eq=False)
class Fit:
    """`homography` (3,3) from mm of the card to pixels of the photograph (centres are whole numbers), the tags that
    it was fitted to, and the largest error of their corners: in pixels, and as a share of the smallest tag's side."""

    homography: Floats
    tags: tuple[int, ...]
    worst: float
    share: float


@dataclass(frozen=True, eq=False)
class Pose:
    """The camera before a rectangle: its angles in degrees, as in `transforms.Viewpoint` (`degrees` is the roll), and
    the `angle` from the front; the `distance`, 1 where the rectangle's shorter side, seen from the front, fills a
    view: a telephone's main camera (26 mm) is then as far from it as it is long. `matrix` (3,3) maps the rectangle to
    the view, both in the stage frame; `recession` (2,) is how much farther from the camera a unit to the right and a
    unit down on it are, over the distance."""

    yaw: float
    pitch: float
    degrees: float
    angle: float
    distance: float
    matrix: Floats
    recession: Floats

    def to_dict(self) -> dict[str, Any]:
        """For photos.json, with the `shift` (right, down) of the middle, in shares of the view's side."""
        names, shift = ("yaw", "pitch", "degrees", "angle", "distance"), (self.matrix[:2, 2] / 2).tolist()
        return {name: getattr(self, name) for name in names} | {"shift": shift}


def fit_homography(card: Card, tags: Mapping[int, Floats]) -> Fit:
    """Fit the homography to the corners of the tags, least squares in pixels, without one tag that does not fit the
    others. Raises ValueError for fewer than two tags, or tags that do not fit each other."""
    places = {tag.number: np.array(tag.box.corners) for tag in card.tags}
    card_tags = {number: corners for number, corners in tags.items() if number in places}
    numbers = ", ".join(map(str, card_tags)) or "none"
    if len(card_tags) < MIN_TAGS:
        raise ValueError(f"`tags` must be at least {MIN_TAGS} of the card's; found {numbers}")
    best = _least_squares(places, card_tags)
    if best.share > OFF and len(card_tags) > MIN_TAGS:
        fits = [_least_squares(places, {n: c for n, c in card_tags.items() if n != number}) for number in card_tags]
        best = min(fits, key=lambda candidate: candidate.worst)
    if not best.share <= OFF:
        words = f"{best.worst:.1f} px off (is it bent, or are there two cards?)"
        raise ValueError(f"`tags` {numbers} do not lie as on the card: {words}")
    return best


def _least_squares(places: Mapping[int, Floats], tags: Mapping[int, Floats]) -> Fit:
    numbers = tuple(sorted(tags))
    source, target = (np.concatenate([corners[number] for number in numbers]) for corners in (places, tags))
    homography, _ = extra("cv2").findHomography(source, target, 0)
    if homography is None or not (np.isfinite(homography).all() and visible(homography, source)):
        return Fit(np.eye(3), numbers, math.inf, math.inf)
    worst = float(np.linalg.norm(project(homography, source) - target, axis=1).max())
    sides = [np.linalg.norm(tags[number] - np.roll(tags[number], -1, 0), axis=1).mean() for number in numbers]
    return Fit(homography, numbers, worst, worst / float(min(sides)))


def project(homography: Floats, points: Any) -> Floats:
    """Points (...,2) through a homography."""
    points = np.asarray(points, np.float64)
    images = points @ homography[:, :2].T + homography[:, 2]
    return np.asarray(images[..., :2] / images[..., 2:])


def visible(homography: Floats, points: Any) -> bool:
    """Whether all points lie on one side of the horizon."""
    depth = np.asarray(points, np.float64) @ homography[2, :2] + homography[2, 2]
    return bool((depth > 1e-9).all() or (depth < -1e-9).all())


def from_corners(corners: Any, to: Any) -> Floats:
    """The homography of four points to four points, (4,2) each. Raises ValueError where there is none."""
    source, target = (torch.from_numpy(np.array(points, np.float64)) for points in (corners, to))
    return np.asarray(transforms.homography(source, target)[0])


def pose(homography: Floats, box: Box) -> Pose:
    """The pose before a rectangle that the homography maps into the stage frame of a view.

    The axes r1, r2 of a plane are orthonormal, so the matrix at its middle, D (r1, r2) without their third
    coordinates n, has the squares D^2 (I - n n'): its larger singular value is D = 1 / distance, and n follows from
    the smaller one, but for its sign, which the converging lines give.
    """
    half = min(box.width, box.height) / 2
    matrix = homography @ [[half, 0, box.x + box.width / 2], [0, half, box.y + box.height / 2], [0, 0, 1]]
    matrix = matrix / matrix[2, 2]
    axes = matrix[:2, :2] - np.outer(matrix[:2, 2], matrix[2, :2])
    _, (largest, smallest), directions = np.linalg.svd(axes)
    recession = directions[1] * math.sqrt(max(0.0, 1 - (smallest / largest) ** 2))
    recession = recession if recession @ matrix[2, :2] >= 0 else -recession
    pitch = -math.asin(recession[1])
    yaw = math.asin(np.clip(recession[0] / math.cos(pitch), -1, 1))
    turn = axes @ np.linalg.inv([[math.cos(yaw), 0], [math.sin(pitch) * math.sin(yaw), math.cos(pitch)]])
    roll, angle = math.atan2(turn[1, 0], turn[0, 0]), math.acos(min(1.0, smallest / largest))
    yaw, pitch, roll, angle = map(math.degrees, (yaw, pitch, roll, angle))
    return Pose(yaw, pitch, roll, angle, float(1 / largest), matrix, recession * largest)


def rectify(photo: Bytes, homography: Floats, box: Box, size: tuple[int, int]) -> Bytes:
    """A rectangle of the card, seen from its front: (height, width, 3) of `size`, antialiased where it shrinks."""
    cv2 = extra("cv2")
    height, width = size
    ratio = math.ceil(2 / pose(homography, box).distance / min(size))
    fine = max(1, min(ratio, FINEST // max(size)))
    step = np.diag([box.width / (width * fine), box.height / (height * fine), 1.0])
    # A pixel's centre is a whole number in both pictures; the box begins at the edge of its first pixel.
    step[:2, 2] = [box.x + step[0, 0] / 2, box.y + step[1, 1] / 2]
    inverse, fine_size = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, (width * fine, height * fine)
    pixels = cv2.warpPerspective(photo, homography @ step, fine_size, flags=inverse)
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA) if fine > 1 else pixels)


def natural_size(homography: Floats, box: Box) -> tuple[int, int]:
    """The (height, width) at which a rectangle has about the photograph's own resolution, at most `LARGEST`."""
    scale = min(2 / pose(homography, box).distance / min(box.width, box.height), LARGEST / max(box.width, box.height))
    return max(8, round(box.height * scale)), max(8, round(box.width * scale))


#: Swatches brighter than this (linear) have too little contrast to white paper.
BRIGHTEST = 0.5
#: Points of an edge that are fitted to its line, as shares of its length.
POINTS = (0.2, 0.5, 0.8)
#: Edges that must be inside the photograph.
LEAST_EDGES = 8
#: An edge of less contrast than this share of the upper quartile is not there, or out of reach. It is searched once
#: more, this many times as far off.
FAINTEST, FURTHER = 0.3, 3.0


def edge_lines(
    light: NDArray[np.float32], card: Card, edges: Floats, to_pixels: Callable[[Any], Floats]
) -> tuple[Floats, Floats]:
    """The points of the card in mm (n,2), `POINTS` on each of the `edges` (see `card_edges`) that is inside and has
    contrast; and for each point the line (a, b, c) through its edge, in pixels of `light` (n,3), to which `to_pixels`
    maps mm of the card about."""
    module = card.tags[0].box.width / MODULES
    inside, results = [], []
    for start, end in edges:
        outward = np.array([end[1] - start[1], start[0] - end[0]]) / np.hypot(*(end - start))
        a, b, far, near = to_pixels([start, end, (start + end) / 2 + module * outward, (start + end) / 2])
        reach = max(2.0, REACH * float(np.linalg.norm(far - near)))
        if min(*a, *b) < reach or (np.maximum(a, b) > np.array(light.shape[::-1]) - 1 - reach).any():
            continue
        inside.append((start, end, a, b, reach))
        results.append(edge_line(light, a, b, reach))
    faintest = FAINTEST * float(np.quantile([contrast for _, contrast in results] or [0.0], 0.75))
    places, lines = [], []
    for (start, end, a, b, reach), (line, contrast) in zip(inside, results, strict=True):
        if contrast < faintest:
            far, wide = edge_line(light, a, b, FURTHER * reach)  # several edges may lie in so wide a range
            a, b = (point - (far[:2] @ point + far[2]) * far[:2] for point in (a, b))
            line, near = edge_line(light, a, b, reach)
            contrast = min(wide, near)
        if contrast >= faintest:
            places += [start + share * (end - start) for share in POINTS]
            lines += [line] * len(POINTS)
    return np.reshape(places, (-1, 2)), np.reshape(lines, (-1, 3))


def card_edges(card: Card, tags: Sequence[int]) -> Floats:
    """The ends of each edge that is used, (E,2,2) in mm, clockwise around the dark area."""
    edges = [side for tag in card.tags if tag.number in tags for side in _sides(tag.box)]
    for swatch in card.chart:
        if LIGHT[list(swatch.colour)] @ np.array([0.2126, 0.7152, 0.0722]) < BRIGHTEST:
            vertical = card.patch.y <= swatch.box.y <= card.patch.y + card.patch.height
            edges += _sides(swatch.box)[int(vertical) :: 2]  # the sides that face the patch and the paper's edge
    return np.array(edges)


def _sides(box: Box) -> list[tuple[Sequence[float], Sequence[float]]]:
    return list(itertools.pairwise((*box.corners, box.corners[0])))
