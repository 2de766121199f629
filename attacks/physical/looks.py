"""One photograph, before the encoder: where the card lies in it, its colours, and the view that is judged."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.data.images import SUFFIXES
from attacks.perturbations.patch.card import Box, Card
from attacks.physical.align import aligned
from attacks.physical.colour_fit import Measured, gains, measure
from attacks.physical.detect import detect, grey_of
from attacks.physical.photos import Photo
from attacks.physical.rectify import (
    LEAST,
    Fit,
    Pose,
    fit,
    from_corners,
    natural_size,
    pose,
    project,
    rectified,
    visible,
)
from attacks.physical.views import Placement, View, photo_view, scene_view

Floats = NDArray[np.float64]
VIEWS = ("photo", "scene")


@dataclass(frozen=True, eq=False)
class Look:
    """What one photograph shows. `fit` and `swatches` are None where a person said where the patch is; `gain` (3,) is
    that of light against the run's picture, or None where the scene cannot be compared; `pose` is that of the patch,
    in pixels for each mm (without fiducials: for each texel); `scene` that of the scene in the view, in its stage
    frame, or None where a part of it would lie behind the camera."""

    photo: Photo
    fit: Fit | None
    swatches: Measured | None
    gain: Floats | None
    pose: Pose
    scene: Pose | None
    view: View
    patch: NDArray[np.uint8]


def look(
    photo: Photo,
    pixels: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    card: Card | None,
    quad: Floats | None,
    where: Placement,
    kind: str,
) -> Look:
    """Find the patch in a photograph, and take the view.

    Args:
        picture: that of the run which it is a photograph of, without the patch.
        quad: the patch's corners, where a person says so; it goes before fiducials.
        kind: of the view, photo or scene.

    Raises:
        ValueError: in one line, why the photograph cannot be scored.
    """
    laid = swatches = None
    if quad is not None:
        box = Box(0, 0, where.texture[1], where.texture[0])
        homography = from_corners(box.corners, quad)
    elif card is None:
        raise ValueError("the run has no print/sheet.json, and no --quad says where the patch is")
    else:
        box, laid = card.patch, _found(pixels, card)
        homography, swatches = laid.homography, measure(pixels, laid.homography, card)
    if not visible(homography, box.corners):
        raise ValueError("the patch would lie behind the camera")
    scene = _scene(homography, box, where, photo.row, (pixels.shape[0], pixels.shape[1]))
    gain = None if card is None or laid is None else gains(pixels, picture, scene, card, homography)
    size = where.size[0]
    view = photo_view(pixels, size) if kind == "photo" else scene_view(pixels, scene, where.size, size)
    whole = Box(0, 0, where.size[1], where.size[0])
    seen = pose(view.frame() @ scene, whole) if visible(scene, whole.corners) else None
    patch = rectified(pixels, homography, box, natural_size(homography, box))
    return Look(photo, laid, swatches, gain, pose(homography, box), seen, view, patch)


def _found(pixels: NDArray[np.uint8], card: Card) -> Fit:
    """The card in the photograph. Raises ValueError with what was seen instead."""
    seen = detect(pixels, card)
    if len(seen.own) >= LEAST:
        laid = fit(card, seen.own)
        if len(laid.tags) == len(card.tags):
            return laid
        return dataclasses.replace(laid, homography=aligned(grey_of(pixels), card, laid.homography, laid.tags))
    numbers = ", ".join(str(tag.number) for tag in card.tags)
    if seen.twice:
        raise ValueError(
            f"the card is there more than once (fiducial {seen.twice[0]}); photograph one, or give --quad"
        )
    if seen.others and not seen.own:
        others = ", ".join(map(str, seen.others[:4]))
        raise ValueError(f"it shows another card: fiducials {others}, not {numbers}; is it the print of this run?")
    raise ValueError(
        f"{len(seen.own)} of the fiducials {numbers} found, {LEAST} are needed (nearer, sharper, or give --quad)"
    )


def _scene(homography: Floats, box: Box, where: Placement, row: int, size: tuple[int, int]) -> Floats:
    """From the pixels of the run's picture, 0 its edge, to the photograph's. Of several places that the patch has in
    the picture, that which brings the scene nearest to the photograph's middle."""
    height, width = where.size
    found = []
    for quad in where.quads[row]:
        there = np.asarray(quad, np.float64) * [width, height]
        scene = homography @ from_corners(there, box.corners)
        off = project(scene, [width / 2, height / 2]) - [size[1] / 2, size[0] / 2]
        found.append((float(np.hypot(*off)), scene))
    return min(found, key=lambda each: each[0])[1]


def described(look: Look) -> dict[str, Any]:
    """For photos.json."""
    said: dict[str, Any] = {
        "photo": look.photo.name,
        "fiducials": [] if look.fit is None else list(look.fit.tags),
        "residual_px": None if look.fit is None else look.fit.residual,
        "worst_px": None if look.fit is None else look.fit.worst,
        "patch": dataclasses.asdict(look.pose) | {"scale_unit": "px/texel" if look.fit is None else "px/mm"},
        "scene": None,
        "outside": look.view.outside,
    }
    if look.scene is not None:
        said["scene"] = {
            "degrees": look.scene.degrees,
            "scale": magnified(look.scene, look.view),
            "shift": [value / 2 for value in look.scene.centre],  # of the view's side
            "corners": look.scene.corners,
            "jitter": look.scene.jitter,
        }
    return said


def magnified(scene: Pose, view: View) -> float:
    """How much larger the view shows the scene than the run's picture does, on the same number of pixels."""
    return scene.scale * view.pixels.shape[-1] / 2


def file_name(photo: Photo) -> str:
    """Of what is written for a photograph: its own, in its own folder, made that of a PNG. No two photographs share
    one: `a.jpg.png` does not stay, for `a.jpg` becomes that."""
    path = Path(photo.name)
    kept = path.suffix == ".png" and Path(path.stem).suffix.lower() not in SUFFIXES
    return photo.name if kept else f"{photo.name}.png"
