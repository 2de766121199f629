"""Detects the tags of a card in a photograph.

Blur acts on linear light, but a file holds gamma-encoded values: there, a blurred edge is displaced. So detection and
edge fitting use linear light. In 36 rendered photographs (patch 300 px wide, blur 0.5 to 1.5 px) this detects all
four tags in 36 instead of 21. RMS error of a corner: 1.0 px with OpenCV's `cornerSubPix` on encoded values, 0.69 with
its AprilTag refinement in linear light, 0.29 with `cornerSubPix` in linear light and a window of one module, and 0.08
with the method used here: a line is fitted to each edge, twice, and corners are intersections of lines. Blur rounds
corners, but edges stay straight.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import MODULES, Card
from attacks.runtime.extras import extra

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

LEVELS = np.arange(256) / 255
#: sRGB level -> linear light.
LIGHT = np.where(LEVELS > 0.04045, ((LEVELS + 0.055) / 1.055) ** 2.4, LEVELS / 12.92).astype(np.float32)
#: Pixels that a module of a tag needs to be decoded.
LEAST_MODULE = 2
#: Search range on both sides of an edge, in modules. A larger one would include the tag's code.
REACH = 0.9
#: Linear light that is added to the divisor of a contrast, so that noise in the dark is no edge.
DARK = 0.05


@dataclass(frozen=True)
class Detection:
    """The tags in a photograph. `corners`: the card's, number -> (4,2) corners in pixels (centres are whole numbers),
    from the upper left one, clockwise. `foreign`: numbers of other cards' tags. `duplicates`: the card's tags that
    were detected in more than one place, and are therefore not used."""

    corners: dict[int, Floats]
    foreign: tuple[int, ...]
    duplicates: tuple[int, ...]


@dataclass(frozen=True)
class DetectionSettings:
    """Settings of one detection: the longer side is resized to `side` pixels, enlarged at most `zoom` times; `linear`
    light or encoded values; `sharpen`: amount of unsharp mask; `mend`: OpenCV's `errorCorrectionRate`."""

    side: int
    zoom: float = 1.0
    linear: bool = True
    sharpen: float = 0.0
    mend: float = 0.6


#: Tried in order until all four tags are detected. Error correction cannot confuse two tags: codes differ in 11 bits,
#: and at most 5 are corrected.
ATTEMPTS = (
    DetectionSettings(1600),
    DetectionSettings(1600, sharpen=1.5, mend=1.0),
    DetectionSettings(3200, 2.0, sharpen=1.5, mend=1.0),
    DetectionSettings(3200, 2.0, linear=False, sharpen=1.5, mend=1.0),
    DetectionSettings(6400, sharpen=1.5, mend=1.0),
)


def detect(photo: Bytes, card: Card) -> Detection:
    """Detect the card's tags in a photograph (H,W,3), 8-bit RGB."""
    cv2, grey = extra("cv2"), grey_picture(photo)
    numbers_of_card = {tag.number for tag in card.tags}
    corners_of_card: dict[int, Floats] = {}
    foreign: set[int] = set()
    duplicates: set[int] = set()
    for attempt in ATTEMPTS:
        if attempt is ATTEMPTS[-1] and max(grey.shape) <= ATTEMPTS[-2].side:
            break  # the largest size adds no detail
        scale = min(attempt.zoom, attempt.side / max(grey.shape))
        markers = _markers(cv2, grey, attempt, scale)
        for number, corners in markers:
            place = corners_of_card.setdefault(number, corners) if number in numbers_of_card else corners
            side = np.linalg.norm(place - np.roll(place, -1, 0), axis=1).max()
            if np.linalg.norm(corners.mean(0) - place.mean(0)) > side:
                duplicates.add(number)
        foreign |= {number for number, _ in markers} - numbers_of_card
        if numbers_of_card <= set(corners_of_card):
            break
    single = sorted(corners_of_card.keys() - duplicates)
    refined_corners = {number: refine_corners(grey, corners_of_card[number]) for number in single}
    return Detection(refined_corners, tuple(sorted(foreign)), tuple(sorted(duplicates)))


def grey_picture(photo: Bytes) -> Bytes:
    """(H,W,3) -> (H,W)."""
    cv2 = extra("cv2")
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(photo), cv2.COLOR_RGB2GRAY))


def _markers(cv2: Any, grey: Bytes, attempt: DetectionSettings, scale: float) -> list[tuple[int, Floats]]:
    size = (max(1, round(grey.shape[1] * scale)), max(1, round(grey.shape[0] * scale)))
    kernel = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    resized = grey if scale == 1 else cv2.resize(grey, size, interpolation=kernel)
    if attempt.linear:
        # The percentile ignores lamps and highlights, which may be brighter than the paper.
        white = max(1e-3, float(LIGHT[int(np.percentile(resized[::4, ::4], 99.5))]))
        resized = cv2.LUT(resized, np.clip(np.rint(LIGHT / white * 255), 0, 255).astype(np.uint8))
    if attempt.sharpen:
        wide = cv2.GaussianBlur(resized, (0, 0), 1.5 * max(1.0, scale))
        resized = cv2.addWeighted(resized, 1 + attempt.sharpen, wide, -attempt.sharpen, 0)
    parameters = cv2.aruco.DetectorParameters()
    parameters.errorCorrectionRate = attempt.mend
    # Relative to the longer side of the photograph.
    parameters.minMarkerPerimeterRate = max(0.005, 4 * LEAST_MODULE * MODULES / max(resized.shape))
    family = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_APRILTAG_36h11)
    corners, numbers, _ = cv2.aruco.ArucoDetector(family, parameters).detectMarkers(resized)
    ratio = np.array([grey.shape[1] / size[0], grey.shape[0] / size[1]])
    return [
        (int(number), (np.asarray(quad[0], np.float64) + 0.5) * ratio - 0.5)
        for number, quad in zip([] if numbers is None else np.ravel(numbers), corners, strict=True)
    ]


def crop(grey: Bytes, points: Floats) -> tuple[NDArray[np.float32], Floats]:
    """The linear light of the part of a photograph round points (n,2), and its upper left pixel (x, y)."""
    limit = np.array(grey.shape[::-1])
    (left, top), (right, low) = (np.clip(v, 0, limit).astype(int) for v in (points.min(0), points.max(0) + 1))
    return LIGHT[grey[top:low, left:right]], np.array([left, top], np.float64)


def refine_corners(grey: Bytes, corners: Floats) -> Floats:
    """Corners (4,2) of a dark square on white, refined as intersections of lines through its edges. If these lie far
    from the input, as for a partly hidden tag, returns the input."""
    module = float(np.linalg.norm(corners - np.roll(corners, -1, 0), axis=1).mean()) / MODULES
    margin = int(2 * module) + 4
    light, origin = crop(grey, np.array([np.floor(corners.min(0)) - margin, np.ceil(corners.max(0)) + margin]))
    if min(light.shape) < 2:
        return corners
    current = corners - origin
    reach = max(2.0, REACH * module)
    for _ in range(2):
        lines = [edge_line(light, current[i], current[(i + 1) % 4], reach)[0] for i in range(4)]
        with np.errstate(divide="ignore", invalid="ignore"):
            meets = np.array([np.cross(lines[i - 1], lines[i]) for i in range(4)])
            current = meets[:, :2] / meets[:, 2:]
        distances = np.linalg.norm(current + origin - corners, axis=1)
        if not np.isfinite(current).all() or distances.max() > 2 * module + 2:
            return corners
    return np.asarray(current + origin)


def edge_line(light: NDArray[np.float32], start: Floats, end: Floats, reach: float) -> tuple[Floats, float]:
    """The line (a, b, c), a x + b y + c = 0, of the edge from `start` to `end`, dark on its right-hand side, and its
    contrast: the rise of light across it over the brightest light within reach, less where it lies off the middle."""
    length = float(np.linalg.norm(end - start)) + 1e-9
    direction = (end - start) / length
    outward = np.array([direction[1], -direction[0]])
    places = start + np.outer(np.linspace(0.12, 0.88, max(8, int(0.76 * length))), end - start)  # not at the corners
    steps = np.arange(-reach, reach + 1e-9, 0.25)
    points = (places[:, None] + steps[None, :, None] * outward).astype(np.float32)
    cv2 = extra("cv2")
    samples = cv2.remap(light, points, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE).astype(np.float64)
    rise = np.clip(np.gradient(samples, axis=1), 0, None) * np.hanning(len(steps) + 2)[1:-1]
    weight = rise.sum(1) + 1e-12
    middle = places + ((rise * steps).sum(1) / weight)[:, None] * outward
    trust = weight.copy()
    for _ in range(4):  # robust least squares: outliers such as a finger over the edge get little weight
        centre = (middle * trust[:, None]).sum(0) / trust.sum()
        off = middle - centre
        normal = np.linalg.eigh((off * trust[:, None]).T @ off)[1][:, 0]
        distance = off @ normal
        trust = weight / (1 + (distance / (1.5 * np.median(np.abs(distance)) + 0.02)) ** 2)
    return np.append(normal, -normal @ centre), float(np.median(weight / (samples.max(1) + DARK)))
