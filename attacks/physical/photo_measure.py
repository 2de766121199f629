"""What is measured in one photograph: the pose of the card, its colours, and the view for the encoder."""

import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.data.images import SUFFIXES
from attacks.perturbations.patch.card import Box, Card, card_words, tag_numbers
from attacks.perturbations.patch.physical_patch import PhysicalPatch
from attacks.physical import rectify, resemblance
from attacks.physical.colour_fit import Swatches, gains, measure_swatches, nominal, without_covered
from attacks.physical.detect import LIGHT, Bytes, Detection, Floats, detect, grey_picture
from attacks.physical.photos import PhotoFile
from attacks.physical.rectify import MIN_TAGS, Pose, from_corners, pose, project, visible
from attacks.physical.resemblance import CORRELATION, MAX_HIDDEN_SHARE, HiddenPart, Resemblance, cell_centres
from attacks.physical.scene_place import CELLS, MATCHES, ScenePlace, place
from attacks.physical.surface import flattened, ideal_photo
from attacks.physical.surface_fit import CardFit, locate
from attacks.physical.views import View, photo_view

#: The largest share of the patch that lies beyond the photograph's edge.
CUT = 0.5
#: The largest share of what the run declares as hidden that shows the patch.
MAX_MISSING = 0.5
#: Beyond this light of pure red, green and blue relative to white, colours look like a screen's: vivid ink has up to
#: 1.06, a screen whose primaries mix as little as 0.84, so it is no rule.
PUREST = 0.95
#: The most that the scene is turned where it cannot be compared, in degrees, and stretched along one direction.
MOST_DEGREES, MOST_STRETCH = 45.0, 1.8


@dataclass(frozen=True, eq=False)
class Expected:
    """What photographs of a print should show: the patch of the run, the arm, its card, and the textures of all arms
    of the run (h,w,3), 0..255 over white, by name."""

    patch: PhysicalPatch
    arm: str
    card: Card
    textures: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What speaks for a photograph: the `patch`, the `purity` of the chart's colours (None: too few seen, or a
    screen's), and the `place` of the card in its scene (None where it has none of its own)."""

    patch: Resemblance
    purity: float | None
    place: ScenePlace | None

    @property
    def refusal(self) -> str | None:
        """Why the photograph is left out; None: it is scored. The first rule that it breaks."""
        patch, hidden_share, limit = self.patch, self.patch.hidden_share, f"at most {MAX_HIDDEN_SHARE:.0%}"
        bare = f"what should stand before the patch is not there: {patch.missing_share:.1%} of its place shows it"
        difference = f"the patch is not the run's: correlation {patch.correlation:.3f}, at least {CORRELATION}"
        rules = [
            (patch.cut > CUT, f"{patch.cut:.1%} of the patch lies beyond the edge, at most {CUT:.0%}"),
            (patch.better != "", f"it shows {patch.better}, not the patch of this arm as it is"),
            (patch.glare > MAX_HIDDEN_SHARE, f"glare or bare paper on {patch.glare:.1%} of the patch, {limit}"),
            (patch.correlation < CORRELATION, difference),
            (hidden_share > MAX_HIDDEN_SHARE, f"{hidden_share:.1%} of the patch is covered or changed, {limit}"),
            (patch.missing_share > MAX_MISSING, f"{bare}, at most {MAX_MISSING:.0%}"),
        ]
        rules += [] if self.place is None else _of_place(self.place)
        return next((reason for fails, reason in rules if fails), None)

    def to_dict(self) -> dict[str, float | None]:
        """The figures that the rules compare, for photos.json."""
        match, lies = getattr(self.place, "match", None), ("matches", "turned", "stretched", "larger", "away")
        return {
            **{name: getattr(self.patch, name) for name in ("correlation", "glare", "missing_share", "cut")},
            "hidden": self.patch.hidden_share,
            "purity": self.purity,
            "scene_correlation": getattr(self.place, "correlation", None),
            "stretch": getattr(self.place, "stretch", None),
            **{f"scene_{name}": getattr(match, name, None) for name in lies},
        }


def _of_place(place: ScenePlace) -> list[tuple[bool, str]]:
    value, fault = place.correlation, None if place.match is None else place.match.fault
    other_scene = (
        "another scene, or the card lies wrongly in it: too few matches with the run's picture "
        f"(at least {MATCHES}), or too little correlation ({value or 0:.2f})"
    )
    turn = f"the card is turned by {place.degrees:.1f} degrees, at most {MOST_DEGREES:g}"
    stretch = f"the scene is {place.stretch:.3f} times as long one way, at most {MOST_STRETCH}"
    return [
        (fault is not None, f"in its scene the card is {fault}"),
        (place.too_little, f"it shows too little of the scene round the card, fewer than {CELLS} cells: step back"),
        (value is not None and place.match is None and not place.belongs, other_scene),
        (value is None and abs(place.degrees) > MOST_DEGREES, turn),
        (place.stretch > MOST_STRETCH, stretch),
    ]


@dataclass(frozen=True)
class CardDetection:
    """What is known of a photograph before it is measured: its tags; the card, if it could be located; and the
    coefficient of its lens, if it follows from others of the same camera: then the card is located again."""

    detection: Detection | None = None
    fit: CardFit | None = None
    k1: float | None = None


@dataclass(frozen=True, eq=False)
class PhotoMeasurement:
    """The measurements of one photograph.

    `gain` (3,) is that of light against the run's picture, or None if the scenes cannot be compared; `pose` is the
    camera's before the patch; `scene` that before the scene, or None if it is partly behind the camera, or the patch
    has no place in it; `quad` the number of the placement that it shows; `evidence` says whether the photograph is
    scored.
    """

    photo: PhotoFile
    fit: CardFit
    swatches: Swatches
    gain: Floats | None
    pose: Pose
    scene: Pose | None
    view: View
    patch: Bytes
    evidence: Evidence
    quad: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """What is doubtful about a photograph that may be scored, in words."""
        pure = self.evidence.purity or 0.0
        screen = (f"its colours look like a screen's ({pure:.2f}, ink mostly below {PUREST})",) * (pure > PUREST)
        return (*self.fit.flags, *screen)

    def to_dict(self) -> dict[str, Any]:
        """The geometry of the photograph for photos.json."""
        return {
            "photo": self.photo.name,
            "fiducials": list(self.fit.tags),
            **{f"{name}_px": getattr(self.fit, name) for name in ("residual", "worst", "uncertain")},
            **{name: getattr(self.fit.surface, name) for name in ("k1", "bend")},
            "flags": list(self.flags),
            "patch": self.pose.to_dict(),
            "scene": None if self.scene is None else self.scene.to_dict(),
            **self.evidence.to_dict(),
        }


def measure_photo(
    photo: PhotoFile,
    pixels: Bytes,
    picture: Bytes,
    expected: Expected,
    detected_card: CardDetection = CardDetection(),
) -> PhotoMeasurement:
    """Locate the patch in a photograph, and cut out the view. `picture` is the run's, without the patch. Raises
    ValueError: in one line, why the photograph cannot be scored."""
    card, box, record = expected.card, expected.card.patch, expected.patch
    fit = _locate_card(pixels, expected, detected_card)
    surface = fit.surface
    flat_picture, flat = flattened(pixels, surface, card)
    if not visible(surface.homography, box.corners):
        raise ValueError("the patch would lie behind the camera")
    quad, scene, position = _find_scene(ideal_photo(pixels, surface), picture, expected, photo.row, surface.resting)
    gain = None if position.cells is None else gains(position.cells)
    matched_scene = scene if position.match is None else position.match.scene
    hidden_part = _hidden_part(record.hiding(photo.row, quad), picture, card, (matched_scene, surface.resting), gain)
    swatches = without_covered(nominal(card), measure_swatches(flat_picture, flat, card))
    swatches = replace(swatches, valid=swatches.valid & np.logical_not(hidden_part.swatches))
    corners = from_corners(box.corners, surface.project(box.corners))
    patch = rectify.rectify(flat_picture, flat, box, rectify.natural_size(corners, box))
    inside = resemblance.cells_inside(surface.project, box, (pixels.shape[0], pixels.shape[1]))
    looks = {arm: resemblance.expected_look(texture, swatches, card) for arm, texture in expected.textures.items()}
    slack = int(record.medium == "cloth")  # its folds move what it shows
    evidence = Evidence(
        resemblance.resemblance(patch, inside, looks, expected.arm, hidden_part, slack),
        None if record.medium == "screen" else resemblance.purity(swatches, card),
        position if record.fixed else None,
    )
    view, frame = photo_view(pixels, record.size[0]), Box(0, 0, record.size[1], record.size[0])
    of_scene = pose(view.frame() @ scene, frame) if record.fixed and visible(scene, frame.corners) else None
    of_patch = pose(view.frame() @ corners, box)
    return PhotoMeasurement(photo, fit, swatches, gain, of_patch, of_scene, view, patch, evidence, quad)


def _find_scene(
    photo: Bytes, picture: Bytes, expected: Expected, row: int, ground: Floats
) -> tuple[int, Floats, ScenePlace]:
    """The placement nearest to the middle that shows its scene, else the nearest: its number, scene and place."""
    card, sides = expected.card, np.array(expected.patch.size[::-1])
    scenes = [ground @ from_corners(np.array(quad) * sides, card.patch.corners) for quad in expected.patch.quads[row]]
    off = [np.hypot(*(project(scene, sides / 2) - np.array(photo.shape[1::-1]) / 2)) for scene in scenes]
    order = sorted(range(len(scenes)), key=off.__getitem__)
    places = ((i, scenes[i], place(photo, picture, scenes[i], card, ground)) for i in order)
    nearest = next(places)
    return next((at for at in itertools.chain([nearest], places) if at[2].belongs), nearest)


def _hidden_part(
    hiding: NDArray[np.bool_] | None, picture: Bytes, card: Card, at: tuple[Floats, Floats], gain: Floats | None
) -> HiddenPart:
    """Read `hiding` and the run's picture, pixels (H,W), where the card lies (`at`: see `at_points`)."""
    if hiding is None:
        return HiddenPart()
    cells, ends = cell_centres(card.patch), np.array([swatch.box.corners for swatch in card.chart])
    swatches = at_points(hiding, *at, np.concatenate([ends, ends.mean(1, keepdims=True)], 1))
    light = LIGHT[at_points(picture, *at, cells)]
    look = None if gain is None else np.asarray(np.clip(light * gain, 0, 1) ** (1 / 2.2), np.float64)
    return HiddenPart(at_points(hiding, *at, cells), look, np.asarray(swatches.any(1, keepdims=True)))


def at_points(values: NDArray[Any], scene: Floats, ground: Floats, points: Floats) -> NDArray[Any]:
    """The values of the run's picture, (H,W) or (H,W,C), where points (...,2) of the flat card, in mm, lie in it;
    beyond the picture its edge goes on. `scene` and `ground` map the picture's pixels and mm to the photograph's."""
    at = project(np.asarray(np.linalg.inv(scene), np.float64), project(ground, points))
    x, y = (np.clip(np.floor(at[..., i]).astype(int), 0, values.shape[1 - i] - 1) for i in (0, 1))
    return np.asarray(values[y, x])


def detect_card(pixels: Bytes, card: Card) -> CardDetection:
    """The tags of a photograph, and the card if it can be located."""
    detection = detect(pixels, card)
    with suppress(ValueError):
        return CardDetection(detection, locate(grey_picture(pixels), card, detection.corners))
    return CardDetection(detection)


def _locate_card(pixels: Bytes, expected: Expected, detected_card: CardDetection) -> CardFit:
    """The card in the photograph. Raises ValueError with the tags that were detected."""
    card = expected.card
    detection = detect(pixels, card) if detected_card.detection is None else detected_card.detection
    if detection.duplicates:
        raise ValueError(f"the card is there more than once (fiducial {detection.duplicates[0]}); photograph one")
    fit, k1 = detected_card.fit, detected_card.k1
    if fit is not None and (k1 is None or (k1 == fit.surface.k1 and not fit.flags)):
        return fit
    if len(detection.corners) >= MIN_TAGS:
        return locate(grey_picture(pixels), card, detection.corners, k1)
    count, numbers = len(detection.corners), ", ".join(str(tag.number) for tag in card.tags)
    for arm in expected.textures:
        if len({*detection.foreign} & {*tag_numbers(card_words(expected.patch.id, arm))}) >= 2:
            raise ValueError(f"it shows the card of the arm {arm}, not of {expected.arm} (--arm {arm} scores it)")
    if detection.foreign and not detection.corners:
        foreign = ", ".join(map(str, detection.foreign[:4]))
        raise ValueError(f"it shows another card: fiducials {foreign}, not {numbers}; is it the print of this run?")
    if len(detect(np.ascontiguousarray(pixels[:, ::-1]), card).corners) >= MIN_TAGS:
        raise ValueError("it is mirrored: the card is there, seen in a mirror or printed as one")
    raise ValueError(f"{count} of the fiducials {numbers} found, {MIN_TAGS} are needed (nearer, or sharper)")


def file_name(photo: PhotoFile) -> str:
    """The name of the PNG written for a photograph, in its own folder. It is unique: `a.jpg` becomes `a.jpg.png`, so
    a photograph `a.jpg.png` gets another suffix."""
    path = Path(photo.name)
    keep = path.suffix == ".png" and Path(path.stem).suffix.lower() not in SUFFIXES
    return photo.name if keep else f"{photo.name}.png"
