"""Scores a folder of photographs of a run's patch: `viewproof score`."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from attacks.data.images import load_texture, to_bytes
from attacks.encoders.description import description_rows
from attacks.perturbations.patch.card import Card
from attacks.physical import colour_fit, photo_report, score
from attacks.physical.colour_fit import ColourFit
from attacks.physical.detect import Floats
from attacks.physical.photo_measure import CardDetection, Expected, PhotoMeasurement, detect_card, measure_photo
from attacks.physical.photos import Capture, PhotoFile, list_photos, read_capture, read_photo
from attacks.physical.sheet import ARMS, arm_folder, read_patch, read_texture, subject, texture_file
from attacks.physical.surface_fit import shared_lens
from attacks.physical.views import Rerun, read_sheet, rerun
from attacks.runtime.untrusted import mapping, read_untrusted, refuse_links

Result = TypeVar("Result")
SCHEMA = 3
#: The arm whose photographs, from the same poses, the patch is compared with.
CONTROL = "noise"
#: An error names at most so many photographs.
MAX_NAMES = 5
#: The fewest photographs that tell the size of a print, and how far off it is noted.
MIN_SIZES, SIZE_OFF = 3, 0.02


@dataclass(frozen=True)
class Colours:
    """The colour map fitted to all photographs; the gain of light (3,) of each photograph, by its name;
    the number of gains measured on the scene (0: they are against the median photograph); and the reason if there is
    no map."""

    fit: ColourFit | None
    gains: dict[str, Floats]
    comparisons: int
    reason: str

    @property
    def stops(self) -> dict[str, float]:
        """Exposures: the gains of green, against which `transforms.colour.WhiteBalance` has those of red and blue."""
        return {name: float(np.log2(gain[1])) for name, gain in self.gains.items()}

    @property
    def notes(self) -> list[str]:
        if self.fit is None or self.comparisons:
            return []
        return [
            f"colours: in fewer than half of {len(self.gains)} photographs the scene round the card can be compared "
            "with the run's picture, so colour.json holds the exposure that they have in common, and preset.yaml "
            "darkens or lightens the patch by it; photograph the card in the run's own scene, and more of that"
        ]


@dataclass(frozen=True)
class ScoringResult:
    """What was written: the folder, the content of photos.json, and notes."""

    folder: Path
    content: dict[str, Any]
    notes: tuple[str, ...]


def score_photos(
    run: Path,
    photos: Path,
    picture: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    program: str | None = None,
    arm: str = "eot",
) -> ScoringResult:
    """Score a folder of photographs and write the results. Those that do not show the arm's patch in its scene (see
    `attacks.physical.photo_measure`) are listed with the reason, and left out of all figures. Raises ValueError or
    OSError in one line; also where no photograph could be scored.

    Args:
        picture: of the run, that all photographs show (see `list_photos`).
        out: the folder; None: see `arm_folder`.
        program: see `rerun`.
        arm: of the run, whose print was photographed.
    """
    folder = arm_folder(run, "photos", arm) if out is None else out
    if out is None:
        refuse_links(run)
    if folder.resolve() == photos.resolve():
        raise ValueError(f"`{folder}` holds the photographs, so results cannot go there: `--out` another folder")
    patch = read_patch(run)
    shots, notes = list_photos(photos, patch.pictures, picture)
    expectation = expected(run, arm)
    origin = rerun(run, device, program)  # before the photographs: it may raise
    scored_photos, refused_photos = list[PhotoMeasurement](), list[PhotoMeasurement]()

    def measure(photo: PhotoFile) -> PhotoMeasurement:
        clean = to_bytes(origin.study.queries.images[photo.row])  # as in pictures/clean, which `rerun` checks
        return measure_photo(photo, read_photo(photo.path), clean, expectation, detections[photo.name])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        detections, reasons = _detect_cards(shots, expectation.card, pool)
        items = [photo for photo in shots if photo.name in detections]
        for photo, result in zip(items, pool.map(partial(_attempt, measure), items), strict=True):
            if isinstance(result, str):
                reasons[photo.name] = result
            else:
                (scored_photos if result.evidence.refusal is None else refused_photos).append(result)
    notes += [f"{photo.name}: left out, {reasons[photo.name]}" for photo in shots if photo.name in reasons]
    notes += [f"{measurement.photo.name}: left out, {measurement.evidence.refusal}" for measurement in refused_photos]
    if not scored_photos:
        raise ValueError(f"none of {len(shots)} photographs could be scored; {'; '.join(notes[-MAX_NAMES:])}")
    content, colours = _content(origin, scored_photos, expectation, notes)
    content["simulated"] = (photos / "truth.json").is_file()
    content["refused"] = [
        item.to_dict() | {"picture": patch.pictures[item.photo.row], "reason": item.evidence.refusal}
        for item in refused_photos
    ]
    measurements, config = (scored_photos, refused_photos), origin.manifest["config"]
    photo_report.write_photo_report(folder, content, measurements, config, colours.fit, colours.stops)
    return ScoringResult(folder, content, (*notes, *content["notes"]))


def _attempt(function: Callable[[PhotoFile], Result], photo: PhotoFile) -> Result | str:
    """What a function makes of a photograph; what it raises, as a text."""
    try:
        return function(photo)
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def _detect_cards(
    photos: Sequence[PhotoFile], card: Card, pool: ThreadPoolExecutor
) -> tuple[dict[str, CardDetection], dict[str, str]]:
    """The tags of each photograph with the lens of its camera, by name; and why the others are left out."""

    def examine(photo: PhotoFile) -> tuple[Capture, CardDetection]:
        pixels, capture = read_capture(photo.path)
        return capture, detect_card(pixels, card)

    captures, detections, reasons = dict[str, Capture](), dict[str, CardDetection](), dict[str, str]()
    for photo, result in zip(photos, pool.map(partial(_attempt, examine), photos), strict=True):
        if isinstance(result, str):
            reasons[photo.name] = result
        elif names := [name for name, capture in captures.items() if capture.equals(result[0])]:
            reasons[photo.name] = f"it is the same photograph as {names[0]}"
        else:
            captures[photo.name], detections[photo.name] = result
    for camera in {capture.camera for capture in captures.values()}:
        names = [name for name, capture in captures.items() if capture.camera == camera]
        fits = (detections[name].fit for name in names)
        k1 = shared_lens([fit.lens for fit in fits if fit is not None and fit.lens is not None])
        detections |= {name: dataclasses.replace(detections[name], k1=k1) for name in names}
    return detections, reasons


def expected(run: Path, arm: str) -> Expected:
    """What photographs of an arm's print should show. Raises ValueError if none or another patch was printed."""
    source, path = subject(run, arm), arm_folder(run, "print", arm) / "sheet.json"
    if not path.is_file():
        option = "" if arm == ARMS[0] else f" --arm {arm}"
        raise ValueError(f"`{path.parent}` has no sheet.json: print it first, viewproof print {run}{option}")
    print_data = read_sheet(path)
    if (print_data.id, print_data.arm, print_data.sha256) != (name := source.patch.id, arm, source.sha256):
        raise ValueError(
            f"`{path}` is the print of {print_data.id} {print_data.arm} {print_data.sha256[:8]}, and the patch "
            f"is {name} {arm} {source.sha256[:8]}: print it again, and photograph that"
        )
    arms = (name for name in ARMS if name != arm and (run / "patches" / f"{name}.png").is_file())
    textures = {arm: source.texture} | {name: read_texture(texture_file(run, name)) for name in arms}
    return Expected(source.patch, arm, print_data.card, textures)


def colours_of_photos(measurements: Sequence[PhotoMeasurement], card: Card) -> Colours:
    """Fit the colours of all photographs together, at the exposure of the run's pictures if at least half of the
    photographs can be compared with them, else at the median photograph's."""
    scene_gains = [item.gain for item in measurements]
    comparable = sum(gain is not None for gain in scene_gains)
    if 2 * comparable < len(scene_gains):
        comparable, scene_gains = 0, [None] * len(scene_gains)
    common, gains = colour_fit.pool([item.swatches for item in measurements], scene_gains)
    by_name = {item.photo.name: gain for item, gain in zip(measurements, gains, strict=True)}
    try:
        return Colours(colour_fit.fit_colours(colour_fit.nominal(card), common), by_name, comparable, "")
    except ValueError as error:
        return Colours(None, by_name, comparable, str(error))


def _content(
    origin: Rerun, measurements: Sequence[PhotoMeasurement], expectation: Expected, notes: Sequence[str]
) -> tuple[dict[str, Any], Colours]:
    judge, card = score.make_judge(origin.study), expectation.card
    photo_scores = score.judge_photos(judge, measurements)
    colours = colours_of_photos(measurements, card)
    queries, pictures = origin.study.queries, sorted(set(photo_scores.rows))
    photos, control = [item.photo for item in measurements], origin.folder / f"photos_{CONTROL}" / "photos.json"
    entries = read_untrusted(control).get("photos", []) if control.is_file() and expectation.arm != CONTROL else []
    controls = {str(mapping(entry).get("photo")): bool(mapping(entry).get("success")) for entry in entries}
    digital_scores = score.digital(origin.folder, len(queries), pictures, expectation.arm)
    table = [
        measurement.to_dict()
        | _colour_record(measurement, card, colours)
        | {
            "picture": origin.patch.pictures[measurement.photo.row],
            "cosine": float(photo_scores.cosine[i]),
            "nearest": photo_scores.nearest[i],
            "recognised": bool(photo_scores.recall_at_1[i]),
            "success": bool(photo_scores.success[i]),
        }
        for i, measurement in enumerate(measurements)
    ]
    fit, colour = colours.fit, None
    if fit is not None:
        colour = {
            "degree": fit.degree,
            "swatches": fit.swatches,
            "exposure": "scene" if colours.comparisons else "median photograph",
            "compared": colours.comparisons,
            "delta_e": fit.nominal_error,
            "delta_e_held_out": fit.held_out_error,
        }
    content = {
        "schema": SCHEMA,
        "run": str(origin.folder),
        "id": expectation.patch.id,
        "arm": expectation.arm,
        "made": str(origin.manifest["started"])[:10],
        "size": origin.patch.size[0],
        "encoder": dict(description_rows(origin.study.identity)),
        "target": origin.patch.target,
        "photos": table,
        "left_out": list(notes),
        "colour": colour,
        "no_colour": colours.reason or None,
        "notes": [
            *colours.notes,
            *_subset_notes(origin, pictures),
            *_flag_notes(measurements),
            *_size_notes(measurements),
        ],
        "clips": len({photo.clip for photo in photos} - {None}),
        "map": score.success_map(photo_scores, measurements, queries.clusters),
        "control": score.control_difference(controls, photo_scores, photos, queries.clusters),
        **score.compare_arms(score.by_clip(photo_scores, photos), digital_scores, queries.clusters, expectation.arm),
    }
    content["prediction"] = None
    if fit is not None:
        texture = load_texture(texture_file(origin.folder, expectation.arm))
        images = origin.study.queries.images.to(origin.study.device)
        perturbation = origin.study.perturbation.for_arm(expectation.arm)
        attacked_pictures = perturbation.evaluated(images, texture[None].to(images))
        content["prediction"] = score.predict(origin, judge, attacked_pictures, measurements, fit).to_dict(content)
    return content, colours


def _subset_notes(origin: Rerun, rows: Sequence[int]) -> list[str]:
    queries, places = origin.study.queries, max(len(origin.patch.quads[row]) for row in rows)
    number, count, fit = len(rows), len(queries), len({*rows} & {*queries.attacked})
    part = (
        f"digital figures: of the pictures that were photographed, {number} of {count}; those of the run are of all"
    )
    note_of_fit = f"pictures: the patch was made from {fit} of {number}, which say nothing of other scenes"
    several = f"places: the attack fills up to {places} of a picture at once, and a photograph shows one card"
    return [part] * (number < count) + [note_of_fit] * (fit > 0) + [several] * (places > 1)


def _flag_notes(measurements: Sequence[PhotoMeasurement]) -> list[str]:
    photos = [item for item in measurements if item.flags]
    texts = [f"{item.photo.name}: {'; '.join(item.flags)}" for item in photos[:MAX_NAMES]]
    rest = f", and {len(photos) - MAX_NAMES} more" * (len(photos) > MAX_NAMES)
    return [f"flagged: {len(photos)} photographs, scored all the same: {', '.join(texts)}{rest}"] * bool(photos)


def _size_notes(measurements: Sequence[PhotoMeasurement]) -> list[str]:
    """Whether the card is larger or smaller than it should be by the same factor in all photographs."""
    places = [item.evidence.place for item in measurements]
    sizes = np.array([place.match.larger for place in places if place is not None and place.match is not None])
    if len(sizes) < MIN_SIZES:
        return []
    size = float(np.median(sizes))
    error = 1.4826 * float(np.median(np.abs(sizes - size))) / len(sizes) ** 0.5
    if abs(size - 1) < max(SIZE_OFF, 3 * error):
        return []
    text = f"size: in its scene the card is {size:.1%} of the size that it should have (median of {len(sizes)}), "
    return [text + "as if printed to fit the page: print it at 100 %, and check the ruler"]


def _colour_record(measurement: PhotoMeasurement, card: Card, colours: Colours) -> dict[str, Any]:
    """The mean CIEDE2000 of a photograph's swatches: to nominal colours, and to the common fit at its exposure."""
    name, is_valid = measurement.photo.name, measurement.swatches.valid.all(1)
    content: dict[str, Any] = {"stops": colours.stops[name], "delta_e": None, "delta_e_fitted": None}
    if not is_valid.any():
        return content
    source, light_of_photo = colour_fit.nominal(card)[is_valid], measurement.swatches.light[is_valid]
    content["delta_e"] = float(colour_fit.colour_difference(source, light_of_photo).mean())
    if colours.fit is not None:
        light = colour_fit.colour_terms(source, colours.fit.degree) @ colours.fit.coefficients.T * colours.gains[name]
        content["delta_e_fitted"] = float(colour_fit.colour_difference(light, light_of_photo).mean())
    return content
