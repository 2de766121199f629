"""Photographs and tables of scenes for the tests."""

import csv

import numpy as np
from PIL import Image

from attacks.data.scenes import placements_in, read_scenes

#: Size of the attacked squares.
SIDE = 40
CORNERS = ["x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"]
#: Pillow's operation from a displayed picture to the stored one, by EXIF orientation.
STORED_FORMS = {
    3: Image.Transpose.ROTATE_180,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


def photo(path, pixels, orientation=1):
    """Save (H,W) or (H,W,3) in [0,1], the displayed picture, in a camera's EXIF orientation."""
    image = Image.fromarray((np.asarray(pixels) * 255).round().astype(np.uint8)).convert("RGB")
    exif = image.getexif()
    if orientation != 1:
        image = image.transpose(STORED_FORMS[orientation])
        exif[0x0112] = orientation
    image.save(path, exif=exif)
    return path


def noise(path, seed, width=40, height=40):
    return photo(path, np.random.default_rng(seed).random((height, width, 3)))


def blob(width, height, points, sigma):
    """Soft white dots on black, (H,W), round points in edge coordinates."""
    y, x = np.mgrid[:height, :width] + 0.5
    return sum(np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * sigma**2)) for px, py in points).clip(0, 1)


def table(path, *rows, columns=("path", *CORNERS)):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def box(left, top, right, bottom):
    """The eight numbers of an upright quad."""
    return [left, top, right, top, right, bottom, left, bottom]


def read(path, size=SIDE, texture=(8, 8)):
    """The shelf, the places and the notes of a table."""
    shelf, photos = read_scenes(str(path), size)
    places, notes = placements_in(photos, size, texture)
    return shelf, places, notes
