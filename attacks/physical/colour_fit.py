"""Fits the colour map of printer, paper and light: a polynomial in linear light.

Fitted to the swatches of the card, it is the `printer.colour` of the next run, which then optimises the texture for
this printer and this light. There the map applies to the patch but not to the scene, so it must not contain the
camera's exposure and white balance: these are measured on the scene and removed. Monomials are in the order of
`transforms.colour.lut.powers`: 1, r, g, b, r^2, rg, rb, g^2, gb, b^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.perturbations.patch.card import Box, Card
from attacks.perturbations.patch.colour_profiles import linear_polynomial
from attacks.physical.detect import LIGHT, Bytes, Floats
from attacks.physical.rectify import project, rectify, visible
from attacks.runtime.extras import extra
from transforms.colour.lut import terms
from transforms.colour.spaces import to_srgb

#: The central part of a swatch that is measured, along each axis: edges mix with their surroundings.
MIDDLE = 0.6
#: Pixels along each axis of a rectified swatch.
PIXELS = 24
#: A channel is saturated if more than SHARE of a swatch's pixels are at least FULL: noise is clipped there, and the
#: median is biased.
FULL, SHARE = 253, 0.1
#: Cells along the longer side of the run's picture for its comparison with a photograph, and the fewest usable cells.
CELLS, MIN_CELLS = 64, 150
#: Below this level a ratio of light is noise.
DARK = 40
#: Margin around the card, as a share of its shorter side, that is excluded too: blur, shadow, uncut paper.
CARD_MARGIN = 0.1
#: A photograph shows the picture's scene if the middle half of the ratios spans at most ALIKE stops and the
#: logarithms of both correlate by at least SAME. Of 42 simulated photographs (light that falls off by up to 0.3
#: stops, tone curves of 0.8 to 1.2) the worst had 0.73 and 0.75; of 252 pairs with another scene's picture none had
#: more than 0.22, though some flat ones spanned 0.55 stops.
MAX_SPAN, MIN_CORRELATION = 1.0, 0.5
#: Fewest swatches for a fit of each degree, which has 4, 10 or 20 unknowns per channel.
MIN_SWATCHES = {1: 8, 2: 16, 3: 60}
#: Weight of the regularisation towards the identity, for directions that the swatches do not determine.
RIDGE = 1e-5
#: A swatch is covered if it is off by more than the first (cube root of light) and by so many times the median.
MAX_COVER, COVERED_TIMES, TRIMS = 0.15, 4.0, 4


@dataclass(frozen=True, eq=False)
class Swatches:
    """Measured swatches: `light` (S,3), linear, in the order of the card's chart, and `valid` (S,3): False for a
    swatch that is partly outside the photograph, and for a saturated channel."""

    light: Floats
    valid: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ColourFit:
    """A map of colours in linear light: `coefficients` (3,K). `nominal_error` and `held_out_error` are the mean
    CIEDE2000 differences of the measured swatches from their nominal colours, and from leave-one-out predictions."""

    degree: int
    coefficients: Floats
    swatches: int
    nominal_error: float
    held_out_error: float

    def to_dict(self) -> dict[str, Any]:
        """The content of a colour file."""
        rows = self.coefficients.tolist()
        return {"schema": 1, "kind": "polynomial", "degree": self.degree, "coefficients": rows, "light": "linear"}

    def table(self) -> Tensor:
        """The map as a table (see `transforms.colour.lut`)."""
        return linear_polynomial(torch.from_numpy(self.coefficients), self.degree)


def nominal(card: Card) -> Floats:
    """The swatches' colours as they were sent to the printer, (S,3) linear."""
    return np.asarray(LIGHT[np.array([swatch.colour for swatch in card.chart])], np.float64)


def measure_swatches(photo: Bytes, homography: Floats, card: Card) -> Swatches:
    """The median of the middle of each swatch, in linear light."""
    height, width = photo.shape[:2]
    light, valid = np.zeros((len(card.chart), 3)), np.zeros((len(card.chart), 3), bool)
    for row, swatch in enumerate(card.chart):
        x, y = project(homography, swatch.box.corners).T
        if x.min() < 0 or y.min() < 0 or x.max() > width - 1 or y.max() > height - 1:
            continue
        # Crop first: warping the whole photograph for each swatch would be slow.
        left, top = int(x.min()), int(y.min())
        part = photo[top : int(y.max()) + 2, left : int(x.max()) + 2]
        shift = np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]])
        box, cut = swatch.box, (1 - MIDDLE) / 2
        inner = Box(box.x + cut * box.width, box.y + cut * box.height, MIDDLE * box.width, MIDDLE * box.height)
        middle = rectify(part, shift @ homography, inner, (PIXELS, PIXELS)).reshape(-1, 3)
        light[row] = LIGHT[np.rint(np.median(middle, axis=0)).astype(int)]
        valid[row] = (middle >= FULL).mean(0) <= SHARE
    return Swatches(light, valid)


@dataclass(frozen=True, eq=False)
class SceneCells:
    """The scene on a coarse grid of the run's picture, (R,C,3) in 8 bits: the `picture`'s own cells, those of the
    `photo`; which are `outside` (R,C), not under or beside the card, and which of those the photograph has `visible`.
    Cells average encoded values: these follow a power of light, so a gain of light is a gain of the mean."""

    picture: Bytes
    photo: Bytes
    outside: NDArray[np.bool_]
    visible: NDArray[np.bool_]


def scene_cells(photo: Bytes, picture: Bytes, scene: Floats, card: Card, homography: Floats) -> SceneCells | None:
    """Compare the scene round the card with the run's picture; None where a part of it lies behind the camera.

    Args:
        picture: the run's picture, without the card.
        scene: homography from the picture's pixels (0 is its edge) to the photograph's (centres are whole numbers).
        homography: from mm of the card to the photograph's pixels.
    """
    height, width = picture.shape[:2]
    frame = Box(0, 0, width, height)
    if not visible(scene, frame.corners):
        return None
    scale = min(1.0, CELLS / max(height, width))
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    edge = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    picture_cells = rectify(picture, edge, frame, (rows, columns))
    photo_cells = rectify(photo, scene, frame, (rows, columns))
    x, y = np.meshgrid(np.linspace(0, width, columns + 1), np.linspace(0, height, rows + 1))
    points = project(scene, np.stack([x, y], -1))  # the cells' corners
    visible_cells = _cells(((points >= 0) & (points <= [photo.shape[1] - 1, photo.shape[0] - 1])).all(-1))
    back = np.asarray(np.linalg.inv(homography), np.float64)
    at, margin = project(back, points), CARD_MARGIN * min(card.width, card.height)
    outside = _cells(((at < -margin) | (at > np.array([card.width, card.height]) + margin)).any(-1))
    return SceneCells(picture_cells, photo_cells, outside, visible_cells & outside)


def gains(cells: SceneCells) -> Floats | None:
    """The gain of each channel (3,) of a photograph relative to the run's picture, measured on the scene around the
    card: exposure and white balance. None if too few cells can be compared, or the scene is not that of the picture.
    It is the median of ratios in linear light."""
    result = np.ones(3)
    for channel in range(3):
        levels = np.stack([cells.picture[..., channel], cells.photo[..., channel]])
        use = cells.visible & ((levels >= DARK) & (levels < FULL)).all(0)
        if use.sum() < MIN_CELLS:
            return None
        picture_light, photo_light = np.log2(LIGHT[levels[:, use]].astype(np.float64))
        low, middle, high = np.quantile(photo_light - picture_light, [0.25, 0.5, 0.75])
        common = np.mean((picture_light - picture_light.mean()) * (photo_light - photo_light.mean()))
        alike = common / (picture_light.std() * photo_light.std() + 1e-4)  # a uniform scene proves nothing
        if not (high - low <= MAX_SPAN and alike >= MIN_CORRELATION):
            return None
        result[channel] = 2**middle
    return result


def _cells(corners: Any) -> NDArray[np.bool_]:
    """(R+1,C+1) -> (R,C): the cells for which all four corners are true."""
    true = np.asarray(corners, bool)
    return np.asarray(true[:-1, :-1] & true[1:, :-1] & true[:-1, 1:] & true[1:, 1:])


def pool(charts_light: Sequence[Swatches], scene_gains: Sequence[Floats | None]) -> tuple[Swatches, Floats]:
    """The median of each swatch over several photographs of one card, each divided by its gain; and the gains (P,3).
    A gain that `gains` could not measure (None in `scene_gains`) is estimated from the chart, relative to the other
    photographs; if all are None, relative to the median one, so that a common exposure remains in the colours."""
    light, valid = (np.stack([getattr(swatches, name) for swatches in charts_light]) for name in ("light", "valid"))
    masked = np.where(valid & (light > LIGHT[DARK]), light, np.nan)
    charts = np.ones(len(light))
    for _ in range(3):
        common = _median(masked / charts[:, None, None], 0)
        off = (masked / charts[:, None, None] / common).reshape(len(light), -1)
        charts *= np.nan_to_num(_median(off, 1), nan=1.0)
    gain = np.repeat(charts[:, None] / np.median(charts), 3, 1)
    sure = [i for i, gain in enumerate(scene_gains) if gain is not None]
    if sure:
        scene = np.array([scene_gains[i] for i in sure], np.float64)
        gain *= np.median(scene / gain[sure], 0)
        gain[sure] = scene
    common = _median(np.where(valid, light, np.nan) / gain[:, None], 0)
    return Swatches(np.nan_to_num(common), np.asarray(valid.any(0))), gain


def _median(values: Floats, axis: int) -> Floats:
    """The median without NaN; NaN where all are NaN."""
    return np.asarray(np.ma.filled(np.ma.median(np.ma.masked_invalid(values), axis), np.nan))


def fit_colours(source: Floats, swatches: Swatches) -> ColourFit:
    """Fit the map from `source` (S,3), linear, to the measured colours. The degree, 1 to 3, is that with the least
    leave-one-out difference of colour, which is `held_out_error`. Raises ValueError for too few swatches."""
    degrees = fit_degrees(swatches)
    if not degrees:
        raise ValueError(
            f"`swatches` must be at least {MIN_SWATCHES[1]} that the photograph shows whole and not saturated, in "
            f"every channel; found {swatches.valid.sum(0).min()} (less light, or the whole card in the picture)"
        )
    # A colour difference needs all three channels.
    is_valid = swatches.valid.all(1)
    rows = np.flatnonzero(is_valid) if is_valid.any() else np.arange(len(source))
    held_out = {degree: _held_out(source, swatches, degree, rows) for degree in degrees}
    error = {d: float(colour_difference(light, swatches.light[rows]).mean()) for d, light in held_out.items()}
    best = min(degrees, key=error.__getitem__)
    return ColourFit(
        degree=best,
        coefficients=least_squares_map(source, swatches, best),
        swatches=len(rows),
        nominal_error=float(colour_difference(source[rows], swatches.light[rows]).mean()),
        held_out_error=error[best],
    )


def fit_degrees(swatches: Swatches) -> list[int]:
    """The degrees of a map that the valid swatches of every channel are enough for."""
    return [degree for degree, minimum in MIN_SWATCHES.items() if swatches.valid.sum(0).min() >= minimum]


def _held_out(source: Floats, swatches: Swatches, degree: int, rows: NDArray[np.intp]) -> Floats:
    """Leave-one-out predictions of the swatches `rows`."""
    predictions = []
    for row in rows:
        training = swatches.valid & (np.arange(len(source)) != row)[:, None]
        coefficients = least_squares_map(source, Swatches(swatches.light, training), degree)
        predictions.append(colour_terms(source[row : row + 1], degree) @ coefficients.T)
    return np.concatenate(predictions)


def least_squares_map(source: Floats, swatches: Swatches, degree: int) -> Floats:
    """The coefficients (3,K): weighted least squares over the swatches trusted in each channel. Errors in dark
    colours weigh more, as in perception: lightness follows the cube root of light."""
    rows = colour_terms(source, degree)
    identity = np.eye(3, rows.shape[1], 1)
    coefficients = identity.copy()
    for channel in range(3):
        use = swatches.valid[:, channel]
        weight = (np.clip(swatches.light[use, channel], 0, None) + 0.02) ** (-2 / 3)
        a = rows[use] * weight[:, None]
        b = swatches.light[use, channel] * weight - a @ identity[channel]
        size = np.trace(a.T @ a) / a.shape[1]
        coefficients[channel] += np.linalg.solve(a.T @ a + RIDGE * size * np.eye(a.shape[1]), a.T @ b)
    return coefficients


def without_covered(source: Floats, swatches: Swatches) -> Swatches:
    """The swatches (S,3), those invalid that differ from a map that fits most of the chart: they are under an object
    or a highlight. `source` as of `fit_colours`. Least trimmed squares, begun without one quarter of
    the chart, which is one of the card's sides, after the other."""
    rows, count = swatches.valid.all(1), len(source)
    minimum, result = rows.sum() - count // 4, (math.inf, np.zeros(count))
    if minimum < MIN_SWATCHES[2]:
        return swatches
    for side in range(4):
        selection = rows & (np.arange(count) * 4 // count != side)
        for _ in range(TRIMS):
            coefficients = least_squares_map(source, Swatches(swatches.light, swatches.valid & selection[:, None]), 2)
            prediction = np.clip(colour_terms(source, 2) @ coefficients.T, 0, None)
            errors = np.abs(np.cbrt(prediction) - np.cbrt(swatches.light)).max(1)
            limit = np.sort(errors[rows])[minimum - 1]
            selection = rows & (errors <= limit)
        result = min(result, (float((errors[selection] ** 2).sum()), errors), key=lambda candidate: candidate[0])
    limit = max(MAX_COVER, COVERED_TIMES * float(np.median(result[1][rows])))
    return Swatches(swatches.light, swatches.valid & (~rows | (result[1] <= limit))[:, None])


def colour_terms(light: Floats, degree: int) -> Floats:
    """`transforms.colour.lut.terms` of (S,3)."""
    return np.asarray(terms(torch.from_numpy(light), degree))


def colour_difference(light: Floats, other: Floats) -> Floats:
    """CIEDE2000 between linear colours (S,3), clipped to [0,1] -> (S,). 1 is about the smallest visible
    difference."""
    colour = extra("skimage.color")
    encoded = (np.asarray(to_srgb(torch.from_numpy(values).clamp(0, 1))) for values in (light, other))
    return np.asarray(colour.deltaE_ciede2000(*map(colour.rgb2lab, encoded)), np.float64)
