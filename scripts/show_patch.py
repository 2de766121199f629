"""The pictures in docs/physical/, from a run that was printed, photographed and scored.

    python scripts/show_patch.py outputs/my_patch photos docs/physical

Writes small JPEG files: views.jpg (the four arms under six views), sheet.jpg, photographs.jpg (two that show the
whole card), overview.jpg (the first ones as they were scored) and README.jpg (a photograph, the sheet, the scores).
Where `photos/truth.json` holds the true position of the patch, prints the distance of the detected one from it.
"""

import json
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.runtime.command_line import Parser, exit_status
from attacks.runtime.files import atomic

#: The height of a row of overview.png and the width of a column, and how many are shown.
CELL, ROWS, COLUMNS = (314, 188), 2, 4
#: Errors are given for a patch of this width in pixels.
WIDTH = 300
GAP, QUALITY = 12, 68


def corners(patch: dict[str, Any], width: float, height: float) -> NDArray[np.float64]:
    """(4,2): the detected corners in pixels of a patch of that size in mm, from its entry in photos.json."""
    half = min(width, height) / 2
    square = np.array([[-width, -height], [width, -height], [width, height], [-width, height]]) / 2
    shifted_quad = square + np.array(patch["corners"]) * half
    angle = np.deg2rad(patch["degrees"])
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.asarray(patch["scale"] * shifted_quad @ turn + np.array(patch["centre"]))


def errors(run: Path, photos: Path) -> tuple[dict[str, NDArray[np.float64]], int]:
    """How far off the worst corner of each scored photograph is, in pixels of a patch `WIDTH` wide, by the number of
    detected fiducials ("4", or "2 or 3"); and how many photographs there are."""
    box = json.loads((run / "print" / "sheet.json").read_text())["card"]["patch"]
    truth = {
        panel["file"]: np.array(panel["patch_px"])
        for panel in json.loads((photos / "truth.json").read_text())["photos"]
    }
    offsets: dict[str, list[float]] = {}
    for photo in json.loads((run / "photos" / "photos.json").read_text())["photos"]:
        true = truth[photo["photo"]]
        off = np.linalg.norm(corners(photo["patch"], box["width"], box["height"]) - true, axis=1).max()
        wide = np.linalg.norm(true - np.roll(true, -1, 0), axis=1).mean()
        offsets.setdefault("4" if len(photo["fiducials"]) == 4 else "2 or 3", []).append(float(off * WIDTH / wide))
    return {name: np.array(panel) for name, panel in offsets.items()}, len(truth)


def picture_of_height(path: Path, height: int) -> Image.Image:
    """A picture in that height."""
    with Image.open(path) as file:
        picture = file.convert("RGB")
    return picture.resize((round(picture.width * height / picture.height), height), Image.Resampling.LANCZOS)


def side_by_side(pictures: list[Image.Image]) -> Image.Image:
    """Pictures of one height in a row."""
    starts = [0, *accumulate(panel.width + GAP for panel in pictures)]
    row = Image.new("RGB", (starts[-1] - GAP, pictures[0].height), "white")
    for panel, x in zip(pictures, starts, strict=False):
        row.paste(panel, (x, 0))
    return row


def comparison_pictures(run: Path, photos: Path) -> dict[str, Image.Image]:
    """The pictures by name."""
    entries = json.loads((run / "photos" / "photos.json").read_text())["photos"]
    entries.sort(key=lambda photo: -len(photo["fiducials"]))  # whole cards first
    score_rows = [photo["photo"] for photo in entries]
    sheet = next(path for name in ("sheet.png", "sheet-1.png") if (path := run / "print" / name).is_file())
    with Image.open(run / "photos" / "overview.png") as file:
        grid = file.convert("RGB")
    columns, rows = min(COLUMNS, grid.width // CELL[0]), min(ROWS, grid.height // CELL[1])
    overview = grid.crop((0, 0, columns * CELL[0], rows * CELL[1]))
    part = grid.crop((0, 0, min(2, columns) * CELL[0], rows * CELL[1]))
    first = [picture_of_height(photos / name, 360) for name in score_rows[:2]]
    height = part.height
    return {
        "views": picture_of_height(run / "views.png", 700),
        "sheet": picture_of_height(sheet, 760),
        "photographs": side_by_side(first),
        "overview": overview,
        "README": side_by_side(
            [picture_of_height(photos / score_rows[0], height), picture_of_height(sheet, height), part]
        ),
    }


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 after an error of one line."""
    parser = Parser(description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, printed and scored")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="the photographs that were scored")
    parser.add_argument("out", type=Path, metavar="OUT", help="where to write")
    return exit_status(lambda: write_pictures(**vars(parser.parse_args(arguments))))


def write_pictures(run: Path, photos: Path, out: Path) -> None:
    """Write the pictures; print the errors where the true position is known."""
    try:
        pictures = comparison_pictures(run, photos)
        offsets, count = errors(run, photos) if (photos / "truth.json").is_file() else ({}, 0)
    except (OSError, StopIteration, KeyError) as error:
        missing = str(error) or "print/sheet.png is missing"
        raise ValueError(f"{missing}; print, photograph and score the run first") from None
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        with atomic(out / f"{name}.jpg") as temporary:
            picture.save(temporary, format="JPEG", quality=QUALITY, progressive=True)
    if count:
        print(f"scored: {sum(map(len, offsets.values()))} of {count} photographs")
    for name, off in sorted(offsets.items()):
        median, high, worst = np.percentile(off, [50, 95, 100])
        print(
            f"{name} fiducials, {len(off)} photographs: worst corner off by {median:.2f} px (median), "
            f"{high:.2f} (95 %), {worst:.2f} (worst) of a patch {WIDTH} px wide"
        )


if __name__ == "__main__":
    sys.exit(main())
