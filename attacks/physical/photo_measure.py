"""What is measured in one photograph: the pose of the card, its colours, and the view for the encoder."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.data.images import SUFFIXES
from attacks.perturbations.patch.card import Box, Card
from attacks.physical import rectify
from attacks.physical.align import aligned
from attacks.physical.colour_fit import Swatches, gains, measure_swatches
from attacks.physical.detect import detect, grey_of
from attacks.physical.photos import Photo
from attacks.physical.recognition import Evidence, Expected
from attacks.physical.rectify import LEAST, Fit, Pose, from_corners, pose, project, visible
from attacks.physical.resemblance import cells_inside, printed_as, purity, resemblance
from attacks.physical.scene_place import place
from attacks.physical.views import PlacementRecord, View, photo_view, scene_view

Floats = NDArray[np.float64]
VIEWS = ("photo", "scene")


@dataclass(frozen=True, eq=False)
class PhotoMeasurement:
    """The measurements of one photograph.

    `fit` and `swatches` are None if the user gave the corners of the patch; `gain` (3,) is that of light against the
    run's picture, or None if the scenes cannot be compared; `pose` is that of the patch, in pixels a mm (a texel,
    without tags); `scene` that of the scene in the view's stage frame, or None if it is partly behind the camera;
    `evidence` says whether the photograph is scored.
    """

    photo: Photo
    fit: Fit | None
    swatches: Swatches | None
    gain: Floats | None
    pose: Pose
    scene: Pose | None
    view: View
    patch: NDArray[np.uint8]
    evidence: Evidence


def measure_photo(
    photo: Photo,
    pixels: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    expected: Expected,
    quad: Floats | None,
    placement: PlacementRecord,
    kind: str,
) -> PhotoMeasurement:
    """Locate the patch in a photograph, and cut out the view.

    Args:
        picture: the run's picture that it shows, without the patch.
        quad: the corners of the patch as the user gave them; it replaces the tags.
        kind: of the view, photo or scene.

    Raises:
        ValueError: in one line, why the photograph cannot be scored.
    """
    card, card_fit, swatches = expected.card, None, None
    if quad is not None:
        box = Box(0, 0, placement.texture[1], placement.texture[0])
        homography = from_corners(box.corners, quad)
    elif card is None:
        raise ValueError("the run has no print/sheet.json, and no --quad says where the patch is")
    else:
        box, card_fit = card.patch, _fit(pixels, card, expected)
        homography, swatches = card_fit.homography, measure_swatches(pixels, card_fit.homography, card)
    if not visible(homography, box.corners):
        raise ValueError("the patch would lie behind the camera")
    scenes = _scenes(homography, box, placement, photo.row, (pixels.shape[0], pixels.shape[1]))
    scene = scenes[0]
    found = None if card_fit is None else card  # with corners given by hand there is none to compare
    laid = place(pixels, picture, scene, found, homography)
    for other in scenes[1:]:  # of several placements, the nearest that shows its scene
        if not laid.belongs and (now := place(pixels, picture, other, found, homography)).belongs:
            scene, laid = other, now
    size = placement.size[0]
    view = photo_view(pixels, size) if kind == "photo" else scene_view(pixels, scene, placement.size, size)
    whole = Box(0, 0, placement.size[1], placement.size[0])
    scene_pose = pose(view.frame() @ scene, whole) if visible(scene, whole.corners) else None
    patch = rectify.rectified(pixels, homography, box, rectify.natural_size(homography, box))
    looks = {arm: printed_as(texture, swatches, card) for arm, texture in expected.textures.items()}
    inside = cells_inside(homography, box, (pixels.shape[0], pixels.shape[1]))
    evidence = Evidence(
        resemblance(patch, inside, looks, expected.arm, swatches is not None),
        None if swatches is None or card is None else purity(swatches, card),
        laid if placement.fixed else None,
    )
    gain = None if laid is None or laid.cells is None else gains(laid.cells)
    return PhotoMeasurement(photo, card_fit, swatches, gain, pose(homography, box), scene_pose, view, patch, evidence)


def _fit(pixels: NDArray[np.uint8], card: Card, expected: Expected) -> Fit:
    """The card in the photograph. Raises ValueError with the tags that were detected."""
    detection = detect(pixels, card)
    if len(detection.own) >= LEAST:
        card_fit = rectify.fit(card, detection.own)
        if len(card_fit.tags) == len(card.tags):
            return card_fit
        homography = aligned(grey_of(pixels), card, card_fit.homography, card_fit.tags)
        return dataclasses.replace(card_fit, homography=homography)
    numbers = ", ".join(str(tag.number) for tag in card.tags)
    if detection.twice:
        raise ValueError(
            f"the card is there more than once (fiducial {detection.twice[0]}); photograph one, or give --quad"
        )
    if detection.others and (arm := expected.arm_of(detection.others)) is not None:
        raise ValueError(f"it shows the card of the arm {arm}, not of {expected.arm} (--arm {arm} scores it)")
    if detection.others and not detection.own:
        others = ", ".join(map(str, detection.others[:4]))
        raise ValueError(f"it shows another card: fiducials {others}, not {numbers}; is it the print of this run?")
    if len(detect(np.ascontiguousarray(pixels[:, ::-1]), card).own) >= LEAST:
        raise ValueError("it is mirrored: the card is there, seen in a mirror or printed as one")
    raise ValueError(
        f"{len(detection.own)} of the fiducials {numbers} found, {LEAST} are needed (nearer, sharper, or give --quad)"
    )


def _scenes(
    homography: Floats, box: Box, placement: PlacementRecord, row: int, size: tuple[int, int]
) -> list[Floats]:
    """From the pixels of the run's picture, 0 its edge, to the photograph's: of each placement, that first which
    brings the scene nearest to the photograph's middle."""
    height, width = placement.size
    candidates = []
    for quad in placement.quads[row]:
        corners = np.asarray(quad, np.float64) * [width, height]
        scene = homography @ from_corners(corners, box.corners)
        off = project(scene, [width / 2, height / 2]) - [size[1] / 2, size[0] / 2]
        candidates.append((float(np.hypot(*off)), scene))
    return [scene for _, scene in sorted(candidates, key=lambda each: each[0])]


def record(measured: PhotoMeasurement) -> dict[str, Any]:
    """The geometry of a photograph for photos.json."""
    card_fit, scene = measured.fit, measured.scene
    return {
        "photo": measured.photo.name,
        "fiducials": [] if card_fit is None else list(card_fit.tags),
        "residual_px": None if card_fit is None else card_fit.residual,
        "worst_px": None if card_fit is None else card_fit.worst,
        "patch": dataclasses.asdict(measured.pose) | {"scale_unit": "px/texel" if card_fit is None else "px/mm"},
        "scene": None
        if scene is None
        else {
            "degrees": scene.degrees,
            "scale": magnified(scene, measured.view),
            "shift": [value / 2 for value in scene.centre],  # of the view's side
            "corners": scene.corners,
            "jitter": scene.jitter,
        },
        "outside": measured.view.outside,
        **measured.evidence.to_dict(),
    }


def magnified(scene: Pose, view: View) -> float:
    """The magnification of the scene in the view against the run's picture, both of the same number of pixels."""
    return scene.scale * view.pixels.shape[-1] / 2


def file_name(photo: Photo) -> str:
    """The name of the PNG written for a photograph, in its own folder. It is unique: `a.jpg` becomes `a.jpg.png`, so
    a photograph `a.jpg.png` gets another suffix."""
    path = Path(photo.name)
    keep = path.suffix == ".png" and Path(path.stem).suffix.lower() not in SUFFIXES
    return photo.name if keep else f"{photo.name}.png"
