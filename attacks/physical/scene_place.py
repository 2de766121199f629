"""The card in its scene: whether the photograph shows the run's scene round it, and the card there as it should."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Box, Card
from attacks.physical.colour_fit import SceneCells, scene_cells
from attacks.physical.detect import Bytes, Floats, grey_picture
from attacks.physical.rectify import pose, project, rectify, visible
from attacks.physical.resemblance import correlation
from attacks.runtime.extras import extra

#: The least correlation with the run's picture of a scene in which the card lies wrongly, and how much better it must
#: be than of the scene as it should lie.
SCENE, BETTER = 0.65, 0.03
#: The least correlation with the picture of a scene whose matches show that the card lies as it should; where it
#: cannot be measured, the fewest matches.
MIN_SCENE, MIN_MATCHES = 0.4, 16
#: The least correlation that needs no matches, as in a smooth scene. Where too few matched in 215 pictures, it was
#: 0.96 and more with the card in its place, and at most 0.86 with the card elsewhere.
SMOOTH = 0.92
#: The fewest cells of the scene.
CELLS = 100
#: Cells along each side of a part of the scene, how much it must vary (standard deviation, of 255), and the fewest
#: parts that prove a scene.
PART, FLAT, PARTS = 8, 2.5, 4
#: The picture is enlarged by the first, up to so many pixels along its longer side; the photograph is read as
#: coarsely.
LARGER_BY, SIDE = 2.0, 512
#: What is shown round the picture, as shares of that side: a card may lie elsewhere. The first that the camera sees
#: all of: of a plane that is seen at a low angle, less lies before the horizon.
ROUND = (0.25, 0.1, 0.0)
#: SIFT (Lowe 2004): most features of each picture, the contrast that they need, and how much nearer than any other a
#: match must be.
FEATURES, CONTRAST, NEARER = 1500, 0.02, 0.85
#: Pixels that a match may be off, and the fewest matches that agree. In photographs of other scenes up to 8 did, and
#: in 9 of some 1,700 as if the card lay rightly: `scene_place.LIKELY` is for these.
OFF, MATCHES = 3.0, 6
#: Blocks along the picture's longer side, how far each is searched as a share of it, how much it must vary (standard
#: deviation, of 255), the share of the place that is not under the card, and the least correlation.
BLOCKS, REACH, VARIES, FREE, ALIKE = 10, 0.1, 4.0, 0.5, 0.6
#: How the card may lie: degrees, times as long one way, times as large, and sides of the patch from its place.
MAX_DEGREES, MAX_STRETCH, MAX_SCALE, MAX_SHIFT = 10.0, 1.2, 1.2, 0.1


@dataclass(frozen=True, eq=False)
class SceneMatch:
    """A scene that so many `matches` show in the photograph: its homography `scene` from the picture's pixels, and
    how the card lies there against how it should: `turned` by degrees clockwise, times as long one way (`stretched`),
    times as large (`larger`), and `away` by so many sides of the patch."""

    matches: int
    scene: Floats
    turned: float
    stretched: float
    larger: float
    away: float

    @property
    def fault(self) -> str | None:
        """How the card lies wrongly in its scene; None: it lies as it should."""
        larger, angle = max(self.larger, 1 / self.larger), abs(self.turned)
        way = "clockwise" if self.turned > 0 else "counterclockwise"
        rules = [
            (angle > MAX_DEGREES, f"turned by {angle:.1f} degrees {way}, at most {MAX_DEGREES:g}"),
            (self.stretched > MAX_STRETCH, f"{self.stretched:.3f} times as long one way, at most {MAX_STRETCH}"),
            (larger > MAX_SCALE, f"{self.larger:.3f} times as large, at most {MAX_SCALE} or its inverse"),
            (self.away > MAX_SHIFT, f"{self.away:.1%} of its side away from its place, at most {MAX_SHIFT:.0%}"),
        ]
        return next((reason for fails, reason in rules if fails), None)


def find(photo: Bytes, picture: Bytes, scene: Floats, card: Card, homography: Floats) -> SceneMatch | None:
    """Find the run's picture round a card; None where fewer than `MATCHES` matches agree. Arguments as of `place`."""
    cv2 = extra("cv2")
    height, width = picture.shape[:2]
    margins = (share * max(height, width) for share in ROUND)
    boxes = (Box(-border, -border, width + 2 * border, height + 2 * border) for border in margins)
    frame = next((box for box in boxes if visible(scene, box.corners)), None)
    if frame is None:
        return None
    margin = -frame.x
    scale = min(LARGER_BY, SIDE / max(height, width))
    size = round(scale * frame.height), round(scale * frame.width)
    flat = rectify(photo, scene, frame, size)
    corners = Box(0, 0, card.width, card.height).corners
    outline = (project(np.linalg.inv(scene) @ homography, corners) + margin) * scale
    free = cv2.fillConvexPoly(np.full(size, 255, np.uint8), np.rint(outline).astype(np.int32), 0)
    kernel = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    large = cv2.resize(picture, (round(scale * width), round(scale * height)), interpolation=kernel)
    pairs = np.concatenate([_match_features(large, flat, free), _blocks(large, flat, free, round(scale * margin))])
    if len(pairs) < MATCHES:
        return None
    picture_points, photo_points = pairs[:, 0] / scale, pairs[:, 1] / scale - margin
    options = {"maxIters": 5000, "confidence": 0.999}
    correction, agree = cv2.findHomography(picture_points, photo_points, cv2.USAC_MAGSAC, OFF / scale, **options)
    if correction is None or agree.sum() < MATCHES:
        return None
    # In mm of the card: from where the card says that the scene is, to where it is.
    shift = np.linalg.inv(homography) @ scene @ correction @ np.linalg.inv(scene) @ homography
    if not visible(shift, card.patch.corners):
        return None
    return SceneMatch(int(agree.sum()), scene @ correction, *_lies(shift, card.patch))


def _match_features(picture: Bytes, photo: Bytes, free: Bytes) -> Floats:
    """The pixels (n,2,2) of features of a picture and of the `free` part of a photograph that match one to one."""
    cv2 = extra("cv2")
    sift = cv2.SIFT_create(nfeatures=FEATURES, contrastThreshold=CONTRAST)
    ours, first = sift.detectAndCompute(grey_picture(picture), None)
    theirs, second = sift.detectAndCompute(grey_picture(photo), free)
    best: dict[int, Any] = {}
    if first is not None and second is not None and len(theirs) > 1:
        for near, next_near in cv2.BFMatcher().knnMatch(first, second, k=2):
            rival = best.get(near.trainIdx)
            if near.distance < NEARER * next_near.distance and (rival is None or near.distance < rival.distance):
                best[near.trainIdx] = near
    shared = [(ours[match.queryIdx].pt, theirs[match.trainIdx].pt) for match in best.values()]
    return np.array(shared, np.float64).reshape(-1, 2, 2)


def _blocks(picture: Bytes, photo: Bytes, free: Bytes, margin: int) -> Floats:
    """The same of blocks, each where it correlates best near its place (`margin` further in): for few features."""
    cv2 = extra("cv2")
    side = max(1, max(picture.shape[:2]) // BLOCKS)
    reach, pairs = round(REACH * max(picture.shape[:2])), []
    for top in range(0, picture.shape[0] - side + 1, side):
        for left in range(0, picture.shape[1] - side + 1, side):
            block = picture[top : top + side, left : left + side]
            y, x = max(0, top + margin - reach), max(0, left + margin - reach)
            window = np.s_[y : top + margin + side + reach, x : left + margin + side + reach]
            if block.std((0, 1)).max() < VARIES or free[window].mean() < FREE * 255:
                continue
            alike = cv2.matchTemplate(photo[window], block, cv2.TM_CCOEFF_NORMED)
            _, best, _, (right, down) = cv2.minMaxLoc(alike)
            middle = np.array([right + x, down + y]) + side / 2
            if best >= ALIKE:
                pairs.append(([left + side / 2, top + side / 2], middle))
    return np.array(pairs, np.float64).reshape(-1, 2, 2)


def _lies(shift: Floats, box: Box) -> tuple[float, float, float, float]:
    """How a card lies whose scene is shifted against it: the last four values of `SceneMatch`."""
    target = np.array(box.corners, np.float64)
    position = project(shift, target)
    right, down = (position[[1, 2]] - position[[0, 3]]).mean(0), (position[[3, 2]] - position[[0, 1]]).mean(0)
    frame = np.stack([right / box.width, down / box.height], 1)
    long, short = np.linalg.svd(frame, compute_uv=False)
    angle = math.degrees(math.atan2(frame[0, 1] - frame[1, 0], frame[0, 0] + frame[1, 1]))
    distance = float(np.hypot(*(position - target).mean(0))) / math.sqrt(box.width * box.height)
    return angle, float(long / max(short, 1e-12)), 1 / math.sqrt(max(long * short, 1e-12)), distance


@dataclass(frozen=True, eq=False)
class ScenePlace:
    """The card in its scene: the `cells` that are compared, their `correlation` with the run's picture (None: they
    cannot be), whether too little of the scene is `too_little`, the angle of the scene and its stretch (see
    `stretch`), and how the card lies in the scene that is `match` (None: too few matches, or by chance)."""

    cells: SceneCells | None
    correlation: float | None
    too_little: bool
    degrees: float
    stretch: float
    match: SceneMatch | None = None

    @property
    def belongs(self) -> bool:
        """Whether the scene is that of the picture, and the card lies in it as it should."""
        if self.match is None:
            return self.correlation is not None and self.correlation >= SMOOTH
        return self.match.fault is None


def place(photo: Bytes, picture: Bytes, scene: Floats, card: Card, homography: Floats) -> ScenePlace:
    """Compare the scene round a card with the run's picture: from the card alone its plane is known less the farther
    it is from the card; its own features show where it is.

    Args:
        scene: from the picture's pixels, 0 its edge, to the photograph's.
        homography: from mm of the flat card, in the plane that it lies on, to the photograph's pixels.
    """
    view = pose(scene, Box(0, 0, picture.shape[1], picture.shape[0]))
    lies = view.degrees, 1 / max(math.cos(math.radians(view.angle)), 1e-12)

    def compare(at: Floats) -> tuple[SceneCells | None, float | None]:
        cells = scene_cells(photo, picture, at, card, homography)
        return cells, None if cells is None else scene_correlation(cells)

    cells, value = compare(scene)
    match = find(photo, picture, scene, card, homography)
    if match is not None:
        looks, match_value = compare(match.scene)
        own_value, other = (-1.0 if number is None else number for number in (value, match_value))
        if match.fault is not None:
            chance = other < max(SCENE, own_value + BETTER)
        elif value is None and match_value is None:
            chance = match.matches < MIN_MATCHES
        else:
            chance = max(own_value, other) < MIN_SCENE
        if chance:  # a few matches of another scene may agree
            match = None
        elif other > own_value:
            cells, value = looks, match_value
    too_little = cells is None
    if cells is not None and value is None:  # does the picture vary where the card is not?
        parts = _parts(cells.picture, cells.picture, cells.outside)
        too_little = sum(part.std(0).max() >= FLAT / 255 for part, _ in parts) >= PARTS
    return ScenePlace(cells, value, too_little and match is None, *lies, match)


def _parts(first: Bytes, second: Bytes, use: NDArray[np.bool_]) -> Iterator[tuple[Floats, Floats]]:
    """The cells (n,3) in [0,1] of two pictures, for each part of the grid of which at least half is used."""
    for row in range(0, use.shape[0], PART):
        for column in range(0, use.shape[1], PART):
            part = np.s_[row : row + PART, column : column + PART]
            if 2 * use[part].sum() >= PART**2:
                yield first[part][use[part]] / 255, second[part][use[part]] / 255


def scene_correlation(cells: SceneCells) -> float | None:
    """How well the scene that is seen round the card correlates with the picture: the median over the parts of the
    grid that vary, so that a stranger in a part of the scene does not count. None where the picture does not vary, or
    too few cells are seen."""
    if cells.visible.sum() < CELLS:
        return None
    varying, flat_parts = list[float](), list[float]()
    for picture, photo in _parts(cells.picture, cells.photo, cells.visible):
        if picture.std(0).max() >= FLAT / 255:
            varying.append(correlation(picture, photo))
        elif photo.std(0).max() >= 3 * FLAT / 255:
            flat_parts.append(correlation(picture, photo))
    parts = varying if len(varying) >= PARTS else varying + flat_parts  # a flat picture, and a scene that is not
    return float(np.median(parts)) if len(parts) >= PARTS else None
