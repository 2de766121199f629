"""What scoring photographs leaves behind: tables, pictures, the fitted colours and the preset of a second patch."""

import json
import math
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from attacks.data.images import to_bytes
from attacks.physical.colour_fit import ColourFit
from attacks.physical.photo_measure import PhotoMeasurement, file_name
from attacks.physical.rectify import Pose
from attacks.report.environment import environment
from attacks.report.sheets import from_file
from attacks.report.words import count_text, interval_text
from attacks.runtime.files import atomic, write_json, write_text
from attacks.runtime.tables import write_rows

#: Photographs on the contact sheet, at most, how many beside each other, and a picture's side.
MAX_TILES, COLUMNS, SIDE = 48, 4, 150
LINE = 14
COLUMNS_OF_CSV = (
    *("photo", "picture", "fiducials", "residual_px", "uncertain_px", "flags", "k1", "bend"),
    *("distance", "angle", "yaw", "pitch", "degrees", "stops"),
    *("delta_e", "delta_e_fitted", "cosine", "nearest", "recognised", "success"),
    *("correlation", "hidden", "missing_share", "glare", "cut", "purity", "scene_correlation", "scene_matches"),
    *("scene_turned", "scene_stretched", "scene_larger", "scene_away", "stretch", "reason"),
)


def write_photo_report(
    folder: Path,
    content: dict[str, Any],
    measurements: tuple[Sequence[PhotoMeasurement], Sequence[PhotoMeasurement]],
    config: dict[str, Any],
    fit: ColourFit | None,
    stops: dict[str, float],
) -> None:
    """Write photos.json, photos.csv, photos.html, rectified/, overview.png, colour.json (of a fit) and preset.yaml,
    from the `measurements` that are scored and those left out, the `config` of the run's manifest.json, and the
    exposure of each photograph by its name (`stops`)."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "photos.json").is_file() and (folder / "rectified").is_dir():
        shutil.rmtree(folder / "rectified")  # of photographs before these
    write_json(folder / "photos.json", content)
    photos, all_measurements = [*content["photos"], *content["refused"]], [*measurements[0], *measurements[1]]
    flat = (x | x["patch"] | {"fiducials": len(x["fiducials"]), "flags": "; ".join(x["flags"])} for x in photos)
    write_rows(folder / "photos.csv", [{name: row.get(name) for name in COLUMNS_OF_CSV} for row in flat])
    for measurement in all_measurements:
        _save(folder / "rectified" / file_name(measurement.photo), measurement.patch)
    _save(folder / "overview.png", overview(all_measurements[:MAX_TILES], photos[:MAX_TILES]))
    alt = "What the encoder got of each photograph, and its patch from the front; red: the attack succeeded"
    values = {"text": photo_table(content), "grid": _grid(content["map"]), "content": content}
    picture = from_file(folder / "overview.png", alt)
    write_text(folder / "photos.html", environment().get_template("photos.html").render(values, overview=picture))
    colour = folder / "colour.json"
    if fit is None:
        colour.unlink(missing_ok=True)  # of photographs before these
    else:
        write_json(colour, fit.to_dict())
    stages = ranges([item.scene for item in measurements[0] if item.scene is not None], list(stops.values()))
    write_text(folder / "preset.yaml", preset_text(config, stages, None if fit is None else colour))


def photo_table(content: dict[str, Any]) -> str:
    """Each photograph, then all of them beside the run's own figures, for the terminal."""
    photos = content["photos"]
    wide = max(9, *(len(photo["photo"]) for photo in photos)) + 2
    lines = [f"{'photograph':<{wide}}{'tags':<6}{'px off':<8}{'dE2000':<8}{'cosine':<8}{'success':<9}nearest"]
    for photo in photos:
        figures = (photo[key] for key in ("residual_px", "delta_e"))
        off, change = ("-" if value is None else f"{value:.2f}" for value in figures)
        lines.append(
            f"{photo['photo']:<{wide}}{len(photo['fiducials']):<6}{off:<8}{change:<8}{photo['cosine']:<8.3f}"
            f"{'yes' if photo['success'] else 'no':<9}{'; '.join([photo['nearest'], *photo['flags']])}"
        )
    lines += ["", *_figures(content)]
    if count := len(content["left_out"]):
        lines.append(f"left out: {count} of {count + len(photos)}, each named above")
    colour = content["colour"]
    lines.append(
        f"colours: none fitted, {content['no_colour']}"
        if colour is None
        else f"colours: dE2000 {colour['delta_e']:.1f} as photographed"
        f"{', without the exposure' if colour['exposure'] == 'scene' else ''}, {colour['delta_e_held_out']:.1f} on "
        f"held-out swatches after a fit of degree {colour['degree']} ({colour['swatches']} swatches)"
    )
    return "\n".join(lines)


def _figures(content: dict[str, Any]) -> list[str]:
    """The scores of all photographs, the digital ones, and where the difference comes from."""
    prediction, arm = content["prediction"], content["arm"]
    clips = f" with {count_text(content['clips'], 'clip')}" if content["clips"] else ""
    rows = {f"{count_text(len(content['photos']), 'photograph')}{clips}": content["photographs"]}
    for name, row in content["digital"].items():
        rows[f"digital, {name}"] = row
        if name == arm and prediction is not None:
            rows["  your printer"] = prediction["printer"]
            if prediction["poses"] is not None:
                rows["  printer and poses"] = prediction["poses"]
    rows[f"difference to {arm}"] = content["difference"]
    wide = max(map(len, rows)) + 2
    lines = [f"{'':<{wide}}{'cosine to clean':<26}{'recall@1':<26}{'success':<8}"]
    for name, row in rows.items():
        lines.append(f"{name:<{wide}}" + "".join(f"{interval_text(cell, 3):<26}" for cell in row.values()).rstrip())
    if content["needed"] is not None:
        lines.append(f"difference to {arm}: ranges; an interval needs {content['needed']} clusters or pictures")
    if prediction is not None:
        shares = ", ".join(f"{name} {value:+.3f}" for name, value in prediction["gap"].items() if value is not None)
        change = content["difference"]["success"]["mean"]
        lines.append(f"success, photographs against digital {change:+.3f}: {shares}")
    if (control := content["control"]) is not None:
        value, pairs = interval_text(control["difference"], 3, "+"), count_text(control["pairs"], "pair")
        lines.append(f"success, patch minus random patch, {pairs} from the same pose: {value}")
    angles, distances = _grid(content["map"])
    lines += ["", f"{'distance':<14}" + "".join(f"{f'about {angle} degrees':<26}" for angle in angles).rstrip()]
    for distance, cells in distances:
        texts = (interval_text(cell["success"], 2) if cell else "-" for cell in cells)
        lines.append(f"{f'about {distance:.1f}':<14}" + "".join(f"{text:<26}" for text in texts).rstrip())
    return lines


def _grid(cells: Sequence[dict[str, Any]]) -> tuple[list[int], list[tuple[float, list[Any]]]]:
    """The angles of a map, and for each of its distances the cells, None where there is none."""
    by_place = {(cell["distance"], cell["angle"]): cell for cell in cells}
    distances, angles = (sorted({place[i] for place in by_place}) for i in (0, 1))
    return angles, [(far, [by_place.get((far, angle)) for angle in angles]) for far in distances]


def overview(measurements: Sequence[PhotoMeasurement], photos: Sequence[dict[str, Any]]) -> NDArray[np.uint8]:
    """For each photograph the view that was scored and the rectified patch, with the scores; the frame is red where
    the attack succeeded, and crossed out where the photograph is left out."""
    columns = min(COLUMNS, len(measurements))
    width, height = 2 * SIDE + 14, SIDE + 2 * LINE + 10
    sheet = Image.new("RGB", (columns * width, -(-len(measurements) // columns) * height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(LINE - 3)
    for i, (measurement, photo) in enumerate(zip(measurements, photos, strict=True)):
        x, y = i % columns * width + 4, i // columns * height + 4
        reason = photo.get("reason")
        colour = "#555555" if reason else "#c53030" if photo["success"] else "#2f855a"
        draw.rectangle((x - 2, y - 2, x + SIDE + 1, y + SIDE + 1), outline=colour, width=2)
        for left, pixels in ((x, to_bytes(measurement.view.pixels)), (x + SIDE + 4, measurement.patch)):
            sheet.paste(ImageOps.contain(Image.fromarray(pixels), (SIDE, SIDE)), (left, y))
        if reason:
            draw.line((x, y, x + SIDE, y + SIDE), colour, 3)
            draw.line((x, y + SIDE, x + SIDE, y), colour, 3)
            name, scores = f"{photo['photo'][-32:]}: left out", textwrap.shorten(reason, 50, placeholder=" ...")
        else:
            name = f"{photo['photo'][-32:]}{': flagged' * bool(photo['flags'])}"
            scores = f"{photo['cosine']:.2f}  {photo['nearest'][-38:]}"
        draw.text((x, y + SIDE + 3), name, "black", font)
        draw.text((x, y + SIDE + 3 + LINE), scores, colour, font)
    return np.asarray(sheet)


def _save(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG", compress_level=1)  # four times as fast as 6


#: Stages of the run that set the camera's pose; the measured ones replace them.
POSES = ("affine", "perspective", "viewpoint", "crop")
#: The largest jitter that keeps every quad convex (see `transforms.Perspective`), and the field of view in degrees
#: where none can be measured: that of `transforms.Viewpoint`.
MAX_JITTER, FIELD_OF_VIEW = 0.499, 40.0


def ranges(poses: Sequence[Pose], stops: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Stages with the measured ranges, from the smallest value to the largest: of the `poses` before the scene where
    it could be located ({} for none), and of each photograph's exposure, relative to the run's picture or to the
    median photograph (`stops`; () if it is unknown)."""
    if not poses:
        return {}
    roll = float(scipy.stats.circmean([pose.degrees for pose in poses], 180, -180))
    converging, recession = (np.array(x) for x in ([p.matrix[2, :2] for p in poses], [p.recession for p in poses]))
    slope = math.tan(math.radians(FIELD_OF_VIEW / 2))
    if (recession**2).sum() > 1e-4 * len(poses):
        slope = max(1e-3, float((converging * recession).sum() / (recession**2).sum()))
    slope = min(slope, min(pose.distance for pose in poses) / 1.45)  # no corner is ever behind the camera
    # What a pinhole before the scene's middle does not explain: how far it moves a corner, of half the side.
    off = float(np.abs(converging - slope * recession).sum(1).max())
    fov = round(math.degrees(2 * math.atan(slope)), 2)
    stages: dict[str, dict[str, Any]] = {
        "perspective": {"jitter": round(min(MAX_JITTER, off / max(1 - off, off)), 4)},
        "viewpoint": {key: _span([getattr(pose, key) for pose in poses]) for key in ("yaw", "pitch", "distance")}
        | {"roll": _span([roll + (pose.degrees - roll + 180) % 360 - 180 for pose in poses]), "fov": [fov, fov]},
        "affine": {"translate": _span([value / 2 for pose in poses for value in pose.matrix[:2, 2].tolist()])},
    }
    if stops:
        stages["exposure"] = {"stops": _span(list(stops))}
    return stages


def _span(values: Sequence[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


def merge_stages(stages: dict[str, Any], measured_stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The run's stages with the measured ones in place of theirs: the pose first, then all others in their order."""
    names = (*POSES, *measured_stages)
    remaining_stages = {name: value for name, value in stages.items() if re.sub(r"\d+$", "", name) not in names}
    return {**measured_stages, **remaining_stages} if measured_stages else dict(stages)


def preset_text(config: dict[str, Any], stages: dict[str, dict[str, Any]], colour: Path | None) -> str:
    """The preset as YAML, with the run's whole configuration, the measured `stages` and the file of a `colour`
    map."""
    config = json.loads(json.dumps(config))  # YAML writes a node that occurs twice as an alias
    groups = {key: value for key, value in config.items() if isinstance(value, dict) and "name" in value}
    names = {key: str(value["name"]) for key, value in groups.items()} | {"transforms": "identity"}
    # The checks by their name alone: values would win over `sanity=none` on the command line.
    body: dict[str, Any] = {key: value for key, value in config.items() if key not in ("show", "sanity")}
    body["transforms"] |= {"name": "measured", "stages": merge_stages(body["transforms"]["stages"], stages)}
    if colour is not None:  # the groups that depend on a printer have the measured one
        file, printer = str(colour.resolve()), body.get("printer") or {"name": "none"}
        if printer["name"] in ("none", "generic", "family"):
            printer = {"stages": printer.get("stages", {}), "name": "measured"}
        body["printer"], names["printer"] = {**printer, "intent": "relative", "colour": file}, printer["name"]
        if not isinstance(body["perturbation"].get("gamut"), list | None):
            body["perturbation"]["gamut"] = None
        if body.get("penalty", {}).get("name") == "nps":
            body["penalty"]["palette"] = file
    defaults = [f"override /{key}: {name}" for key, name in names.items()]
    head = "# A run once more, with the printer and the camera as measured in photographs of its first patch."
    lines = ["# @package _global_", head, "defaults:", *(f"  - {line}" for line in defaults), ""]
    dump = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return "\n".join([*lines, dump])
