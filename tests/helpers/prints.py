"""Small runs of a patch, and the position error of a print."""

import json
import math
from dataclasses import asdict

import cv2
import numpy as np
import pypdfium2
from PIL import Image

from attacks.perturbations.patch.physical_patch import PhysicalPatch

MM = 25.4
ID = "vp-0123abcd"
QUAD = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))


def frame_texture(size=(24, 24), seed=0):
    """A random texture (h,w,3) with a black edge two texels wide, so that its outline can be measured on white."""
    texture = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    texture[:2] = texture[-2:] = 0
    texture[:, :2] = texture[:, -2:] = 0
    return texture


def fake_run(folder, texture=None, width=None):
    """A folder with the files of a run that printing reads."""
    folder.mkdir(parents=True, exist_ok=True)
    texture = frame_texture() if texture is None else texture
    Image.fromarray(texture).save(folder / "patch.png")
    patch = physical(size=(8, 8), texture=texture.shape[:2], width_mm=width)
    (folder / "placement.json").write_text(json.dumps(asdict(patch)))
    return folder


def physical(pictures=("a",), quads=((QUAD,),), size=(48, 48), texture=(16, 16), **values):
    """A patch that nothing hides, as a run records it."""
    values = {"id": ID, "masks": tuple((None,) * len(row) for row in quads)} | values
    return PhysicalPatch(pictures=pictures, quads=quads, size=size, texture=texture, **values)


def rasterise(path, dpi=600):
    """(size in points, (H,W,3) uint8) of each page of a PDF.

    PDFium stretches a page to whole pixels. So the page is first made a whole number of pixels large, to the right
    and below, where nothing stands.
    """
    with pypdfium2.PdfDocument(path) as document:
        for i in range(len(document)):
            page = document[i]
            size = width, height = page.get_size()
            rows, columns = (math.ceil(side * dpi / 72) for side in (height, width))
            page.set_mediabox(0, height - (rows - 1e-3) * 72 / dpi, (columns - 1e-3) * 72 / dpi, height)
            picture = page.render(scale=dpi / 72).to_numpy()[..., ::-1]
            assert picture.shape == (rows, columns, 3)
            yield size, picture


def edges(picture, box, dpi, reach=0.4):
    """How many mm the four edges of a black box on white lie off: left, right, upper, lower.

    Each edge is the place where the white of a strip across it, `reach` mm to both sides, would end if it were solid.
    """
    grey = picture[..., 1]  # the measured mark is black on white
    ppm = dpi / MM
    middle = (slice(*_pixels(box["y"] + 0.4 * box["height"], box["y"] + 0.6 * box["height"], ppm)), slice(None))
    middle_columns = (slice(None), slice(*_pixels(box["x"] + 0.4 * box["width"], box["x"] + 0.6 * box["width"], ppm)))
    rows, columns = grey[middle].mean(axis=0), grey[middle_columns].mean(axis=1)
    ends = [(rows, box["x"], True), (rows, box["x"] + box["width"], False)]
    ends += [(columns, box["y"], True), (columns, box["y"] + box["height"], False)]
    return [_edge(line, at, entering, ppm, reach) - at for line, at, entering in ends]


def detect_tags(picture):
    """{number: corners (4, 2)} of the fiducials that OpenCV sees."""
    family = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_APRILTAG_36h11)
    corners, numbers, _ = cv2.aruco.ArucoDetector(family).detectMarkers(np.ascontiguousarray(picture))
    return {} if numbers is None else {int(n): c[0] for n, c in zip(numbers.ravel(), corners, strict=True)}


def _pixels(start, stop, ppm):
    return round(start * ppm), max(round(stop * ppm), round(start * ppm) + 1)


def _edge(line, at, entering, ppm, reach):
    start, stop = int((at - reach) * ppm), int((at + reach) * ppm) + 1
    white = line[start:stop].sum() / 255
    return ((start + white) if entering else (stop - white)) / ppm


def on_page(box, page):
    """A box of the card (of `sheet.json`) on its page."""
    return {**box, "x": page["left"] + box["x"] - page["x"], "y": page["top"] + box["y"] - page["y"]}
