"""Fits the surface of a card to a photograph.

A photograph is modelled by a homography (8 unknowns), where it pays with radial distortion (Brown 1966: one
coefficient), with a bend (the card is part of a cylinder with any axis: its curvature, the axis and the camera's
focal length), or both. The models are fitted to the edges of the tags and of the dark swatches, and the one with the
least Bayesian information criterion (Schwarz 1978) is used; `FLOOR` and `MARGIN` say how.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from attacks.perturbations.patch.card import Box, Card
from attacks.physical import rectify
from attacks.physical.detect import Bytes, Floats, crop
from attacks.physical.rectify import MIN_TAGS, POINTS, visible
from attacks.physical.surface import SPREAD, Surface, seen_points
from attacks.runtime.extras import extra

#: The largest |k1|, and the largest curvature times half the card's width: rolled to a third of a turn.
MOST_K1, MOST_BEND = 0.4, 1.0
#: Edges of the printed card are located to this many pixels at best, whatever the residuals are.
FLOOR = 0.06
#: How much smaller the criterion of a richer model must be.
MARGIN = 10.0
#: An edge this many pixels off counts little; before the edges are located, a corner of a tag; and in a search.
SOFT, COARSE, WIDE = 0.3, 1.0, 3.0
#: Beyond this residual without it, as a share of that, a bend is tried.
STIFF = 0.4
#: Corners of tags that are further off (root mean square, pixels) are flagged, on a flat card and on a bent one: of
#: 40 cards that were curled and not folded, the second worst had 0.46, flat ones out of focus 0.61.
MAX_RESIDUAL = 0.7, 0.5
#: A surface that moves less than this, in pixels, is final.
MAX_MOVE = 0.02
ROUNDS = 6
#: Photographs that share a lens, at least; how many standard errors it must differ from none; the error of each at
#: least; and the scatter of one lens, in errors, at most.
FEWEST, SURE, LEAST_ERROR, DIFFERENT = 3, 4.0, 0.002, 3.0
#: The axes and curvatures that a fit of a bend starts from.
STARTS = tuple((sign * 0.25, math.radians(angle)) for angle in (0, 45, 90, 135) for sign in (-1, 1))
#: The unknowns of each model, as columns of `Surface.values`: of the lens and of the bend.
LENS, BEND = (8,), (9, 10, 11)
#: The ranges of those unknowns.
LIMITS = np.array([[np.inf] * 8 + [MOST_K1, MOST_BEND, np.inf, 1.0]])


@dataclass(frozen=True, eq=False)
class CardFit:
    """A card in a photograph: its `surface`, the tags that it was fitted to and the error of their corners in pixels
    (root mean square and largest), the error of the worst corner of the patch (a standard error, or half the distance
    to where another model puts it that fits nearly as well, whichever is larger), and the coefficient of the lens
    with its standard error, None where it is known or too little is seen."""

    surface: Surface
    tags: tuple[int, ...]
    residual: float
    worst: float
    uncertain: float
    lens: tuple[float, float] | None

    @property
    def flags(self) -> tuple[str, ...]:
        """Why the corners of the patch may be more than a pixel off, in words."""
        limit = MAX_RESIDUAL[self.surface.is_bent]
        rules = [
            (self.residual > limit, f"its fiducials are {self.residual:.2f} px off: the card may be folded"),
            (2 * self.uncertain > 1, f"a corner of the patch is uncertain by {2 * self.uncertain:.2f} px"),
        ]
        return tuple(text for has_fold, text in rules if has_fold)


def shared_lens(lenses: Sequence[tuple[float, float]]) -> float | None:
    """The coefficient of the lens of several photographs of one camera, from that of each and its standard error:
    their weighted mean, 0 where it is within `SURE` standard errors of it. None of fewer than `FEWEST`, or if they
    differ by far more than their errors: then they are of several cameras, or of several lenses of one."""
    if len(lenses) < FEWEST:
        return None
    values, errors = np.array(lenses).T
    weights = 1 / (errors**2 + LEAST_ERROR**2)
    middle = float((weights * values).sum() / weights.sum())
    scatter = float(np.median(np.abs(values - np.median(values)) * np.sqrt(weights)))
    if scatter > DIFFERENT:
        return None
    error = max(1.0, scatter / 0.6745) / math.sqrt(weights.sum())
    return middle if abs(middle) > SURE * error else 0.0


@dataclass(frozen=True, eq=False)
class Solution:
    """A fitted model: its surface, the columns of its unknowns, the Bayesian information criterion, the error in
    pixels (root mean square, robust), the covariance of the unknowns, and the surface of the richer model whose
    criterion is less, but not by `MARGIN`; None without one."""

    surface: Surface
    unknowns: tuple[int, ...]
    criterion: float
    error: float
    covariance: Floats
    rival: Surface | None = None


def locate(grey: Bytes, card: Card, tags: Mapping[int, Floats], k1: float | None = None) -> CardFit:
    """Fit the card's surface to a photograph.

    Args:
        grey: (H,W).
        tags: the corners (4,2) of those that were detected, by number.
        k1: of the lens, if it is known from other photographs of the same camera.

    Raises ValueError for fewer than two tags, and for tags that do not lie on one card however it is bent.
    """
    places = {tag.number: np.array(tag.box.corners) for tag in card.tags if tag.number in tags}
    refusal = None
    try:
        plane = rectify.fit_homography(card, tags)
    except ValueError as error:
        if len(places) < MIN_TAGS:
            raise
        refusal = error
    source, corners = (np.concatenate([points[number] for number in places]) for points in (places, tags))
    matrix = extra("cv2").findHomography(source, corners, 0)[0] if refusal else plane.homography
    start = _of_plane(np.eye(3) if matrix is None else matrix, grey.shape, card, k1 or 0.0)
    lines = np.concatenate([np.c_[0 * corners + axis, -corners @ axis] for axis in np.eye(2)])
    rough = _choose(start, np.concatenate([source, source]), lines, k1, COARSE)
    if not visible(rough.surface.homography, Box(0, 0, card.width, card.height).corners):
        raise refusal or ValueError("the card would lie behind the camera")
    solution, lens = _refine(grey, card, list(places), rough, k1)
    if solution.surface.is_plane and refusal is not None:
        raise refusal
    surface, used = solution.surface, list(places)
    if surface.is_plane:
        used = list(plane.tags)
        if len(used) == len(card.tags):
            surface = _of_plane(plane.homography, grey.shape, card, 0.0)
    errors = {n: np.linalg.norm(surface.project(places[n]) - tags[n], axis=1) for n in used}
    sides = {n: np.linalg.norm(tags[n] - np.roll(tags[n], -1, 0), axis=1).mean() for n in used}
    used = [n for n in used if errors[n].max() <= rectify.OFF * sides[n]]
    if len(used) < MIN_TAGS:
        raise refusal or ValueError("`tags` do not lie as on the card")
    left = np.concatenate([errors[n] for n in used])
    residual, worst = float(np.sqrt((left**2).mean())), float(left.max())
    return CardFit(surface, tuple(sorted(used)), residual, worst, _uncertainty(solution, card), lens)


def _of_plane(homography: Floats, size: Sequence[int], card: Card, k1: float) -> Surface:
    blank = Surface((size[0], size[1]), (card.width, card.height), np.zeros(12))
    half = card.width / 2
    back = np.array([[half, 0, card.width / 2], [0, half, card.height / 2], [0, 0, 1]])
    (x, y), unit = blank.centre, blank.unit
    plane = np.array([[1, 0, -x], [0, 1, -y], [0, 0, unit]]) @ homography @ back
    return replace(blank, values=np.array([*(plane / plane[2, 2]).ravel()[:8], k1, 0.0, 0.0, 0.0]))


def _refine(
    grey: Bytes, card: Card, tags: Sequence[int], rough: Solution, k1: float | None
) -> tuple[Solution, tuple[float, float] | None]:
    """The best model of the edges of tags and swatches, and the lens that they give."""
    edges = rectify.card_edges(card, tags)
    ends = Box(0, 0, card.width, card.height).corners
    light, corner = crop(grey, rough.surface.project(ends))
    best, lens = rough, None

    def to_pixels(points: Any) -> Floats:
        return best.surface.project(points) - corner

    for _ in range(ROUNDS):
        current = best.surface
        places, lines = rectify.edge_lines(light, card, edges, to_pixels)
        if len(places) < rectify.LEAST_EDGES * len(POINTS):
            return best, None
        lines[:, 2] -= lines[:, :2] @ corner
        best = _choose(current, places, lines, k1, SOFT)
        if np.abs(best.surface.project(ends) - current.project(ends)).max() < MAX_MOVE:
            break
    if k1 is None:
        free = _solve(best.surface, LENS + BEND * best.surface.is_bent, places, lines)
        lens = free.surface.k1, math.sqrt(free.covariance[8, 8])
    return best, lens


def _choose(start: Surface, places: Floats, lines: Floats, k1: float | None, soft: float) -> Solution:
    """The model of least criterion, a richer one if by `MARGIN`; a bend is tried where `STIFF` of `soft` is left."""
    flat = start.values * (np.arange(12) < 8) + (k1 or 0.0) * (np.arange(12) == 8)
    models = [_solve(replace(start, values=flat), (), places, lines, soft)]
    if k1 is None:
        models.append(_solve(models[0].surface, LENS, places, lines, soft))
    best = reduce(_better, models)
    if best.error > STIFF * soft or start.is_bent:
        start_values = np.where(np.arange(12) == 8, k1 or 0.0, start.values)
        models.append(_fit_bend(replace(start, values=start_values), models[0].surface, BEND, places, lines, soft))
        if k1 is None:
            current = start if start.is_bent else models[-1].surface
            models.append(_fit_bend(current, models[1].surface, LENS + BEND, places, lines, soft))
    best, minimum = reduce(_better, models), min(models, key=lambda model: model.criterion)
    return best if minimum is best else replace(best, rival=minimum.surface)


def _better(old: Solution, new: Solution) -> Solution:
    return new if new.criterion < old.criterion - MARGIN else old


def _fit_bend(
    start: Surface, flat: Surface, extra: tuple[int, ...], places: Floats, lines: Floats, soft: float
) -> Solution:
    """The best bend with the unknowns `extra`: from the present one, or else from several axes, to both sides."""
    current = _solve(start, extra, places, lines, soft) if start.is_bent else None
    if current is not None and current.error <= STIFF * soft:
        return current
    starts = [replace(flat, values=np.array([*flat.values[:9], *initial, 0.0])) for initial in STARTS]
    candidates = [_solve(initial, extra, places, lines, WIDE, 8) for initial in starts]
    first = _solve(min(candidates, key=lambda initial: initial.criterion).surface, extra, places, lines, soft)
    return first if current is None or first.criterion < current.criterion else current


def _solve(
    start: Surface, extra: tuple[int, ...], places: Floats, lines: Floats, soft: float = SOFT, limit: int = 40
) -> Solution:
    """Robust least squares of homography and `extra`, in pixels across lines, errors beyond `soft` count little."""
    unknowns = (*range(8), *extra)
    flat = (places - np.array(start.card) / 2) / (start.card[0] / 2)
    level = lines[:, 2] + lines[:, :2] @ start.centre

    def off(values: Floats) -> Floats:
        with np.errstate(all="ignore"):
            errors = start.unit * (seen_points(_limited(values), flat) * lines[:, :2]).sum(-1) + level
        errors = np.clip(np.nan_to_num(errors, nan=1e3), -1e3, 1e3)
        return np.concatenate([errors, FLOOR / SPREAD * values[..., 11:]], -1)

    def all_values(free: Floats) -> Floats:
        values = start.values.copy()
        values[list(unknowns)] = free
        return values

    def slopes(free: Floats) -> Floats:
        values = all_values(free)
        steps = 1e-7 * np.maximum(1, np.abs(free))
        shifted_values = np.repeat(values[None], len(free), 0)
        shifted_values[np.arange(len(free)), unknowns] += steps
        return np.asarray(((off(shifted_values) - off(values)) / steps[:, None]).T)

    options: dict[str, Any] = {"loss": "cauchy", "f_scale": soft, "x_scale": "jac", "max_nfev": limit}
    initial = start.values[list(unknowns)]
    result = least_squares(lambda free: off(all_values(free)), initial, slopes, ftol=1e-6, xtol=1e-7, **options)
    count = len(places)
    power = 2 * result.cost / count
    freedom = 2 * count / len(POINTS)  # an edge has a place and a direction
    criterion = freedom * math.log(power + FLOOR**2) + len(unknowns) * math.log(freedom)
    covariance = (power + FLOOR**2) * np.linalg.pinv(result.jac.T @ result.jac * freedom / count)
    surface = replace(start, values=_limited(all_values(result.x)))
    return Solution(surface, unknowns, criterion, math.sqrt(power), covariance)


def _limited(values: Floats) -> Floats:
    return np.clip(values, -LIMITS[0], LIMITS[0])


def _uncertainty(solution: Solution, card: Card) -> float:
    """The standard error of the patch's worst corner in pixels, at least half the way to where the rival has it."""
    surface, step = solution.surface, 1e-6
    flat = (np.array(card.patch.corners) - np.array(surface.card) / 2) / (surface.card[0] / 2)
    shifted_values = _limited(surface.values + step * np.eye(12)[list(solution.unknowns)])
    slope = surface.unit * (seen_points(shifted_values, flat) - seen_points(surface.values, flat)) / step
    spread = np.einsum("ick,ij,jck->c", slope, solution.covariance, slope)
    rival = solution.rival or surface
    distance = np.linalg.norm(rival.project(card.patch.corners) - surface.project(card.patch.corners), axis=1)
    return float(max(np.sqrt(max(0.0, spread.max())), distance.max() / 2))
