"""What the script writes, the plan of the pages, and its refusals; and the PDF, rasterised by PDFium: positions are
exact, and its pixels are unchanged."""

import dataclasses
import hashlib
import io
import itertools
import json
import math
import sys
import zlib

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium
import pytest
import skimage.color
import torch
from PIL import Image, ImageCms, ImageFont

from attacks.commands import main
from attacks.perturbations.patch.card import card, letters, parse_card
from attacks.perturbations.patch.card_raster import patch_picture
from attacks.perturbations.patch.physical_patch import WIDTH
from attacks.physical.paper import BLEED, FOOT, MARGIN, MARK, OVERLAP, PAPERS, RULER, draw_page, font_file, plan
from attacks.physical.sheet import pixels, subject, write_sheet
from tests.helpers.prints import ID, MM, detect_tags, edges, fake_run, frame_texture, on_page, rasterise
from transforms import resize


def test_the_script_writes_all_files_with_their_resolution(tmp_path, capsys):
    run = fake_run(tmp_path / "run", width=42.0)
    assert main(["print", str(run), "--dpi", "150"]) == 0
    assert "1 sheet, a4 210 x 297 mm; patch 42.0 x 42.0 mm" in capsys.readouterr().out
    folder = run / "print"
    assert sorted(path.name for path in folder.iterdir()) == ["card.png", "sheet.json", "sheet.pdf", "sheet.png"]
    record = json.loads((folder / "sheet.json").read_text())
    digest = hashlib.sha256((run / "patch.png").read_bytes()).hexdigest()
    assert [record[key] for key in ("schema", "id", "arm", "sha256", "dpi")] == [2, ID, "eot", digest, 150]
    layout = card(42, 42, f"{ID}  eot")
    assert parse_card(record["card"]) == layout
    assert record["card"] == json.loads(json.dumps(dataclasses.asdict(layout)))
    for name, size in (("card", (layout.width, layout.height)), ("sheet", (210, 297))):
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.mode == "RGB" and picture.info["dpi"] == pytest.approx((150, 150), abs=0.02)
            assert picture.size == tuple(round(side * 150 / MM) for side in size)


@pytest.mark.slow
def test_each_arm_has_its_own_card_in_its_own_folder_and_an_unknown_one_is_refused(tmp_path, error_line):
    run = fake_run(tmp_path / "run")
    (run / "patches").mkdir()
    Image.fromarray(frame_texture(seed=5)).save(run / "patches" / "noise.png")
    result = {arm: write_sheet(run, dpi=150, arm=arm) for arm in ("eot", "noise")}
    assert [result[arm].folder.name for arm in result] == ["print", "print_noise"]
    numbers = [{tag.number for tag in result[arm].plan.card.tags} for arm in result]
    assert not numbers[0] & numbers[1] and len(numbers[0]) == 4
    assert "one of the run's: eot, noise; got" in error_line("print", run, "--arm", "no_eot")


def test_the_words_on_a_card_are_read_where_they_stand(tmp_path):
    """The label in pixels is that of Pillow's font, and no shape of it touches a tag, a swatch or the patch."""
    layout = card(100, 100, f"{ID}  no_eot")
    boxes = letters(layout)
    scale = min(b.height for b in boxes)
    mask = ImageFont.load_default_imagefont().getmask(f"up  {ID}  no_eot")
    text = np.array(mask).reshape(mask.size[::-1]) > 0
    dots = np.zeros((9, round(max(b.x + b.width for b in boxes) / scale) + 1), bool)
    for box in boxes:
        row, start, length = (round(v / scale) for v in (box.y - layout.label.y, box.x - layout.label.x, box.width))
        dots[row, start : start + length] = True
    columns = np.flatnonzero(text.any(0))
    assert np.array_equal(dots[:, 12 + columns], text[2:, columns]) and dots[:, :7].any()
    rest = [layout.patch, *(tag.box for tag in layout.tags), *(item.box for item in layout.chart)]
    module = layout.tags[0].box.width / 8
    (low, high) = np.array(layout.label.corners)[[0, 2]]
    for start, end in (np.array(box.corners)[[0, 2]] for box in rest):
        assert max(*(low - end), *(start - high)) >= 0.99 * module


@pytest.mark.slow
def test_tiles_in_pixels_are_the_card_bit_for_bit_and_old_pages_go(tmp_path):
    run = fake_run(tmp_path / "run")
    arguments = [str(run), "--paper", "letter", "--dpi", "150", "--out", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sheet-9.png").touch()  # of a folder that holds no print yet
    assert main(["print", *arguments, "--width-mm", "260"]) == 0
    record = json.loads((tmp_path / "out" / "sheet.json").read_text())
    raster = np.asarray(Image.open(tmp_path / "out" / "card.png"))
    result = np.zeros_like(raster)
    for i, page in enumerate(record["pages"]):
        picture = np.asarray(Image.open(tmp_path / "out" / f"sheet-{i + 1}.png"))
        x, y, left, top, width, height = (
            round(page[name] * 150 / MM) for name in ("x", "y", "left", "top", "width", "height")
        )
        tile = picture[top : top + height, left : left + width]
        np.testing.assert_array_equal(tile, raster[y : y + height, x : x + width])
        result[y : y + height, x : x + width] = tile
    np.testing.assert_array_equal(result, raster)
    assert (tmp_path / "out" / "sheet-9.png").stat().st_size == 0
    (tmp_path / "out" / "sheet-notes.png").touch()
    assert main(["print", *arguments, "--width-mm", "60"]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"card.png", "sheet.json", "sheet.pdf", "sheet.png", "sheet-notes.png"}


SIZES = [(5, 5), (100, 100), (142, 180), (240, 60), (60, 240), (300, 300), (900, 225), (143, 9)]


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("size", SIZES)
def test_a_plan_covers_the_card_within_the_margins(paper, size):
    layout = card(*size)
    result = plan(layout, paper, 300)
    pixel = MM / 300
    assert {result.width, result.height} == set(PAPERS[paper]) and len(result.pages) == result.rows * result.columns
    frame = MARGIN + BLEED + MARK
    for page in result.pages:
        assert page.left >= frame - pixel and page.left + page.tile.width <= result.width - frame + pixel
        assert page.top >= frame - pixel and page.top + page.tile.height <= result.height - FOOT - frame + pixel
    for line, start, side, length in (
        (result.pages[: result.columns], "x", "width", layout.width),
        (result.pages[:: result.columns], "y", "height", layout.height),
    ):
        spans = [(getattr(page.tile, start), getattr(page.tile, side)) for page in line]
        assert spans[0][0] == 0 and sum(spans[-1]) == pytest.approx(length, abs=pixel)
        for first, second in itertools.pairwise(spans):
            assert sum(first) - second[0] >= OVERLAP - 2 * pixel
    for width, down in (PAPERS[paper], PAPERS[paper][::-1]):
        if layout.width <= width - 2 * frame and layout.height <= down - FOOT - 2 * frame:
            assert len(result.pages) == 1


@pytest.mark.parametrize(("width", "height"), [(40, 40), (220, 55), (1200, 1200), (2000, 500)])
def test_text_and_marks_stay_within_the_margins_without_overlap(width, height):
    layout = card(width, height, "vp-ffffffff  one_view")
    result = plan(layout, "a4", 600)
    for page in (result.pages[0], result.pages[-1]):
        fills, texts = draw_page(result, page)
        spans = []
        for line in texts:
            font = ImageFont.truetype(str(font_file(line.bold)), 100)
            long = font.getlength(line.text) * line.size / 100
            left = line.x - {"start": 0, "middle": long / 2}[line.anchor]
            spans.append((left, left + long, line.y - 0.75 * line.size, line.y + 0.2 * line.size))
        marks = [(b.x, b.x + b.width, b.y, b.y + b.height) for fill in fills for b in fill.boxes]
        for x0, x1, y0, y1 in [*spans, *marks]:
            assert x0 >= MARGIN - 0.01 and x1 <= result.width - MARGIN + 0.01, (x0, x1)
            assert y0 >= MARGIN - 0.1 and y1 <= result.height - MARGIN + 0.1, (y0, y1)
        for single, other in itertools.chain(itertools.combinations(spans, 2), itertools.product(spans, marks)):
            beside = single[1] <= other[0] or other[1] <= single[0]
            assert beside or single[3] <= other[2] or other[3] <= single[2], (single, other)


def test_alpha_is_paper_and_mixes_as_premultiplied_layers_do(tmp_path):
    texture = np.random.default_rng(1).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    texture[0, :, 3], texture[-1, :, 3] = 0, 255
    over_white = subject(fake_run(tmp_path, texture)).texture
    assert (over_white[0] == 255).all() and (over_white[-1] == texture[-1, :, :3]).all()
    colour, alpha = np.split(np.moveaxis(texture / 255, 2, 0)[None], [3], axis=1)
    scaled = [resize(torch.from_numpy(v), (30, 50), "torch_bilinear") for v in (colour * alpha, alpha)]
    expected = (scaled[0] + 1 - scaled[1])[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(patch_picture(over_white, (30, 50)) - expected).max() <= 0.501


def test_a_width_that_differs_from_the_run_and_a_card_that_the_attack_has_not_seen_are_noted(tmp_path, capsys):
    run = fake_run(tmp_path, frame_texture((8, 8)), width=50)
    for seen in (True, False):
        placement = json.loads((run / "placement.json").read_text()) | {"card": seen}
        (run / "placement.json").write_text(json.dumps(placement))
        assert main(["print", str(run), "--width-mm", "30", "--dpi", "150"]) == 0
        notes = capsys.readouterr().err
        assert "note: the run placed a patch 50 mm wide; one of 30 mm" in notes
        assert ("has not seen the card" in notes) != seen
    assert write_sheet(fake_run(tmp_path, frame_texture((8, 8))), dpi=150).plan.card.patch.width == WIDTH


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["run", "--width-mm", "0"], "`width`"),
        (["run", "--width-mm", "nan"], "`width`"),
        (["run", "--width-mm", "1e300"], "`width`"),
        (["run", "--width-mm", "wide"], "--width-mm"),
        (["run", "--width-mm", "5000"], "megapixels"),
        (["run", "--paper", "a3"], "--paper"),
        (["run", "--dpi", "299"], "--dpi"),
        (["run", "--bogus"], "--bogus"),
        (["run/patch.png"], "no folder"),
        (["."], "perturbation=patch"),
        ([], "RUN"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(arguments, about, tmp_path, monkeypatch, error_line):
    monkeypatch.chdir(tmp_path)
    fake_run(tmp_path / "run")
    files = sorted(tmp_path.rglob("*"))
    line = error_line("print", *arguments)
    assert about in line and len(line) < 400
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("patch.png", b"no picture"),
        ("placement.json", b"{"),
        ("placement.json", b"\xff"),
        ("placement.json", b'{"width_mm": 1' + b"0" * 400 + b"}"),
    ],
)
def test_a_broken_run_is_named(name, content, tmp_path, error_line):
    run = fake_run(tmp_path)
    (run / name).write_bytes(content)
    assert name in error_line("print", run)
    Image.fromarray(np.zeros((24, 24), np.uint16)).save(run / "patch.png")
    assert "8 bits" in error_line("print", run)
    assert not (run / "print").exists()


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, error_line):
    run = fake_run(tmp_path)
    for name in ("cv2", "reportlab", "reportlab.pdfbase.pdfmetrics"):
        with monkeypatch.context() as bare:
            bare.setitem(sys.modules, name, None)
            assert 'pip install "viewproof[physical]"' in error_line("print", run, "--dpi", "150")
    assert math.isclose(write_sheet(run, 20, dpi=150).plan.card.patch.height, 20)


# --- The PDF

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
        axes = ("x", "width"), ("y", "height")
        inside = [box for box in boxes if all(0 <= box[x] - sheet[x] <= sheet[s] - box[s] for x, s in axes)]
        off = [edges(picture, on_page(box, sheet), 600) for box in inside]
        assert np.abs(off).max() < BAR
        value += len(off)
        assert _ruler(picture, page) == pytest.approx(np.arange(0, RULER + 1, 10), abs=BAR)
    assert value >= 4
    if len(pages) == 1:
        assert {*detect_tags(picture[::4, ::4])} == {tag["number"] for tag in record["card"]["tags"]}


def _ruler(picture, page):
    """The positions of the long ticks from the first one, in mm."""
    base = page[1] - MARGIN - FOOT + 9
    top, low, right = (round(mm * 600 / MM) for mm in (base - 3.8, base - 3.2, 112))
    dark = (255.0 - picture[top:low, :right, 1]).mean(axis=0)
    groups = np.split(np.flatnonzero(dark > 0), np.flatnonzero(np.diff(np.flatnonzero(dark > 0)) > 1) + 1)
    centres = np.array([np.average(group, weights=dark[group]) for group in groups]) * MM / 600
    return centres - centres[0]


def test_the_pixels_in_the_pdf_are_unchanged(tmp_path):
    texture = frame_texture((24, 36))
    result = write_sheet(fake_run(tmp_path, texture), 60, "a4", 300)
    target = patch_picture(texture.astype(np.float32), pixels(result.plan.card, (24, 36), 300))
    assert target.shape == (472, 709, 3)
    patch, *chart = _images(result.folder / "sheet.pdf")
    assert patch == (["FlateDecode"], target.tobytes())
    colours = [(["FlateDecode"], bytes(swatch.colour)) for swatch in result.plan.card.chart]
    assert chart == colours, "the chart is of pixels too, so that a driver colours both alike"
    assert b"/Interpolate" not in (result.folder / "sheet.pdf").read_bytes()


def test_a_texture_finer_than_the_print_keeps_every_texel(tmp_path):
    result = write_sheet(fake_run(tmp_path, texture := frame_texture((300, 400))), 30, "a4", 150)
    assert _images(result.folder / "sheet.pdf")[0] == (["FlateDecode"], texture.tobytes())


def _images(path):
    with pypdfium2.PdfDocument(path) as document:
        images = document[0].get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE])
        return [(image.get_filters(), bytes(image.get_data(decode_simple=True))) for image in images]


def test_the_colours_of_a_print_are_srgb_by_its_own_profile(tmp_path):
    """LittleCMS, from the embedded profile to CIELAB, against the formulas of IEC 61966-2-1 and Bradford."""
    result = write_sheet(fake_run(tmp_path), 50, dpi=150)
    content = (result.folder / "sheet.pdf").read_bytes()
    streams = (part.split(b"endstream")[0].lstrip(b"\r\n") for part in content.split(b"stream")[1:])
    contents = [zlib.decompressobj().decompress(part) for part in streams if part[:1] == b"x"]
    (profile,) = (part for part in contents if part[36:40] == b"acsp")
    assert content.count(b"/DefaultRGB") == content.count(b"/ICCBased") == 1
    colours = np.array([swatch.colour for swatch in result.plan.card.chart], np.uint8)[None]
    lab, source = ImageCms.createProfile("LAB"), ImageCms.ImageCmsProfile(io.BytesIO(profile))
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    result_lab = ImageCms.profileToProfile(Image.fromarray(colours), source, lab, intent, "LAB")
    value = np.asarray(result_lab).astype(float)
    value = np.dstack([value[..., 0] / 2.55, value[..., 1:].astype(np.uint8).astype(np.int8)])
    to_d50 = [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
    light = np.where(colours <= 10, colours / 3294.6, ((colours / 255 + 0.055) / 1.055) ** 2.4)
    expected = skimage.color.xyz2lab(light @ np.array(to_d50).T, "D50")
    assert np.abs(value - expected).max() < 1.01, "8 bits hold a whole step of a and b"
    with Image.open(result.folder / "card.png") as picture:
        assert picture.info["srgb"] == 0


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
    sides = np.array([result.plan.card.width, result.plan.card.height])
    assert np.array(trim[2:]) - trim[:2] == pytest.approx(sides * 72 / MM)
    assert np.abs(np.array(bleed) - trim) * MM / 72 == pytest.approx([BLEED] * 4, abs=1e-3)
    assert result.plan.card.words in info["Title"] and result.plan.card.words.split()[0] in text
    for target in ("print at 100 %, no scaling; this line must measure 100 mm", "authorised testing", "sRGB colours"):
        assert target in text
    assert b"/PrintScaling /None" in first and b"DCTDecode" not in first and b"/FontFile2" in first
    write_sheet(tmp_path, 50)
    assert (result.folder / "sheet.pdf").read_bytes() == first
