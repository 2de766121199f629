"""The PDF, rasterised by PDFium: positions are exact, and its pixels are unchanged."""

import json

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium
import pytest
from PIL import Image

from attacks.perturbations.patch.card_raster import patch_picture
from attacks.physical.paper import BLEED, FOOT, MARGIN, RULER
from attacks.physical.sheet import pixels, write_sheet
from tests.helpers.prints import MM, detect_tags, edges, fake_run, frame_texture, on_page, rasterise

BAR = 0.01  # mm


def make_print(*arguments):
    """A print, and the content of its sheet.json."""
    result = write_sheet(*arguments)
    return result, json.loads((result.folder / "sheet.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "width", "shape", "page"),
    [
        ("a4", 100, (24, 24), (210, 297)),
        ("letter", 73.37, (24, 31), (215.9, 279.4)),
        ("a4", 220, (20, 80), (297, 210)),
        ("letter", 37, (80, 20), (215.9, 279.4)),
        ("letter", 380, (20, 80), (279.4, 215.9)),
    ],
)
def test_patch_tags_and_ruler_have_their_positions_on_each_page(tmp_path, paper, width, shape, page):
    result, record = make_print(fake_run(tmp_path, frame_texture(shape)), width, paper, 150)
    pages = list(rasterise(result.folder / "sheet.pdf"))
    assert record["card"]["patch"]["width"] == width
    assert record["card"]["patch"]["height"] == pytest.approx(width * shape[0] / shape[1])
    boxes, value = [record["card"]["patch"], *(tag["box"] for tag in record["card"]["tags"])], 0
    for sheet, (size, picture) in zip(record["pages"], pages, strict=True):
        assert np.array(size) * MM / 72 == pytest.approx(page, abs=1e-4)
        assert sheet["left"] * 2 + sheet["width"] == pytest.approx(page[0], abs=0.3), "centred"
        inside = [
            box for box in boxes if _is_inside(box, sheet, "x", "width") and _is_inside(box, sheet, "y", "height")
        ]
        off = [edges(picture, on_page(box, sheet), 600) for box in inside]
        assert np.abs(off).max() < BAR
        value += len(off)
        assert _ruler(picture, page) == pytest.approx(np.arange(0, RULER + 1, 10), abs=BAR)
    assert value >= 4
    if len(pages) == 1:
        assert {*detect_tags(picture[::4, ::4])} == {tag["number"] for tag in record["card"]["tags"]}


def _is_inside(box, sheet, start, side):
    return sheet[start] <= box[start] and box[start] + box[side] <= sheet[start] + sheet[side]


def _ruler(picture, page):
    """The positions of the long ticks from the first one, in mm."""
    base = page[1] - MARGIN - FOOT + 9
    line = (
        255.0 - picture[round((base - 3.8) * 600 / MM) : round((base - 3.2) * 600 / MM), : round(112 * 600 / MM), 1]
    )
    dark = line.mean(axis=0)
    groups = np.split(np.flatnonzero(dark > 0), np.flatnonzero(np.diff(np.flatnonzero(dark > 0)) > 1) + 1)
    centres = np.array([np.average(group, weights=dark[group]) for group in groups]) * MM / 600
    return centres - centres[0]


def test_the_pixels_in_the_pdf_are_unchanged(tmp_path):
    texture = frame_texture((24, 36))
    result = write_sheet(fake_run(tmp_path, texture), 60, "a4", 300)
    target = patch_picture(texture.astype(np.float32), pixels(result.plan.card, (24, 36), 300))
    assert target.shape == (472, 709, 3)
    assert _images(result.folder / "sheet.pdf") == [(["FlateDecode"], target.tobytes())]
    assert b"/Interpolate" not in (result.folder / "sheet.pdf").read_bytes()


def test_a_texture_finer_than_the_print_keeps_every_texel(tmp_path):
    texture = frame_texture((300, 400))
    result = write_sheet(fake_run(tmp_path, texture), 30, "a4", 150)
    assert _images(result.folder / "sheet.pdf") == [(["FlateDecode"], texture.tobytes())]


def _images(path):
    with pypdfium2.PdfDocument(path) as document:
        images = document[0].get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE])
        return [(image.get_filters(), bytes(image.get_data(decode_simple=True))) for image in images]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "width", "shape", "count"),
    [("a4", 100, (24, 24), 1), ("letter", 380, (20, 80), 2), ("a4", 230, (24, 24), 4)],
)
def test_every_page_of_the_pdf_is_its_picture(tmp_path, paper, width, shape, count):
    """The PNG files and the PDF draw one description; PDFium is the oracle."""
    result, record = make_print(fake_run(tmp_path, frame_texture(shape)), width, paper, 150)
    pages = list(rasterise(result.folder / "sheet.pdf", 150))
    names = ["sheet"] if count == 1 else [f"sheet-{i}" for i in range(1, count + 1)]
    rims = _rims(record, np.asarray(Image.open(result.folder / "card.png")).shape[:2], 150 / MM)
    assert len(pages) == count
    for i, (name, (_, page)) in enumerate(zip(names, pages, strict=True)):
        picture = np.asarray(Image.open(result.folder / f"{name}.png")).astype(int)
        off = np.abs(page[: picture.shape[0], : picture.shape[1]] - picture).max(2)
        assert off.mean() < 2.0, name
        at = {key: round(record["pages"][i][key] * 150 / MM) for key in ("x", "y", "width", "height", "left", "top")}
        part = np.s_[at["y"] : at["y"] + at["height"], at["x"] : at["x"] + at["width"]]
        assert off[_enlarged_area(at, 0)][~rims[part]].max() < 25, "the texture was sampled on another grid, no more"
        gap = round(0.9 * BLEED * 150 / MM)
        page[_enlarged_area(at, 1)] = 255  # PDFium clips to whole pixels
        assert (page[_enlarged_area(at, gap)] == 255).all(), "nothing lies beside the tile"


def _enlarged_area(at, by):
    """The pixels of a tile on its page, and a margin around it."""
    top, left = at["top"] - by, at["left"] - by
    return np.s_[top : top + at["height"] + 2 * by, left : left + at["width"] + 2 * by]


def _rims(record, size, dense):
    """Where PDFium rounds to whole pixels: the pixels at the edges of a swatch, a shape of one rectangle."""
    rims = np.zeros(size, bool)
    for swatch in record["card"]["chart"]:
        x, y, width, height = (swatch["box"][name] * dense for name in ("x", "y", "width", "height"))
        rim = np.zeros(size, bool)
        rim[int(y) - 1 : int(y + height) + 2, int(x) - 1 : int(x + width) + 2] = True
        rim[int(y) + 2 : int(y + height) - 1, int(x) + 2 : int(x + width) - 1] = False
        rims |= rim
    return rims


@pytest.mark.slow
def test_the_pdf_has_page_boxes_and_equal_runs_give_equal_files(tmp_path):
    result = write_sheet(fake_run(tmp_path), 50)
    first = (result.folder / "sheet.pdf").read_bytes()
    with pypdfium2.PdfDocument(result.folder / "sheet.pdf") as document:
        trim, bleed = document[0].get_trimbox(), document[0].get_bleedbox()
        info = document.get_metadata_dict()
        text = document[0].get_textpage().get_text_range()
    assert np.array(trim[2:]) - trim[:2] == pytest.approx(
        [result.plan.card.width * 72 / MM, result.plan.card.height * 72 / MM]
    )
    assert np.abs(np.array(bleed) - trim) * MM / 72 == pytest.approx([BLEED] * 4, abs=1e-3)
    assert result.plan.card.words in info["Title"] and result.plan.card.words.split()[0] in text
    for target in ("print at 100 %, no scaling; this line must measure 100 mm", "authorised testing", "sRGB colours"):
        assert target in text
    assert b"/PrintScaling /None" in first and b"DCTDecode" not in first and b"/FontFile2" in first
    write_sheet(tmp_path, 50)
    assert (result.folder / "sheet.pdf").read_bytes() == first
