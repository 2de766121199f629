"""What the script writes, the plan of the pages, and its refusals."""

import dataclasses
import hashlib
import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from attacks.commands import main
from attacks.perturbations.patch.card import card, letters, parse_card
from attacks.perturbations.patch.card_raster import patch_picture
from attacks.physical.paper import BLEED, FOOT, MARGIN, MARK, OVERLAP, PAPERS, draw_page, plan
from attacks.physical.pdf import font_file
from attacks.physical.sheet import WIDTH, subject, write_sheet
from tests.helpers.prints import ID, MM, fake_run, frame_texture
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
    assert parse_card(record["card"]) == layout and record["card"] == json.loads(
        json.dumps(dataclasses.asdict(layout))
    )
    for name, size in (("card", (layout.width, layout.height)), ("sheet", (210, 297))):
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.mode == "RGB" and picture.info["dpi"] == pytest.approx((150, 150), abs=0.02)
            assert picture.size == tuple(round(side * 150 / MM) for side in size)


@pytest.mark.parametrize("seen", [True, False])
def test_a_card_that_the_attack_has_not_seen_is_noted(tmp_path, seen):
    run = fake_run(tmp_path / "run", width=42.0)
    placement = json.loads((run / "placement.json").read_text()) | {"card": seen}
    (run / "placement.json").write_text(json.dumps(placement))
    assert any("has not seen the card" in note for note in write_sheet(run, dpi=150).notes) != seen


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
    for box in rest:
        difference = (
            layout.label.x - (box.x + box.width),
            box.x - (layout.label.x + layout.label.width),
            layout.label.y - (box.y + box.height),
            box.y - (layout.label.y + layout.label.height),
        )
        assert max(difference) >= 0.99 * module


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
            difference = (
                single[1] <= other[0] or other[1] <= single[0] or single[3] <= other[2] or other[3] <= single[2]
            )
            assert difference, (single, other)


def test_alpha_is_paper_and_mixes_as_premultiplied_layers_do(tmp_path):
    texture = np.random.default_rng(1).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    texture[0, :, 3], texture[-1, :, 3] = 0, 255
    over_white = subject(fake_run(tmp_path, texture)).texture
    assert (over_white[0] == 255).all() and (over_white[-1] == texture[-1, :, :3]).all()
    colour, alpha = np.split(np.moveaxis(texture / 255, 2, 0)[None], [3], axis=1)
    scaled = [resize(torch.from_numpy(v), (30, 50), "torch_bilinear") for v in (colour * alpha, alpha)]
    expected = (scaled[0] + 1 - scaled[1])[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(patch_picture(over_white, (30, 50)) - expected).max() <= 0.501


def test_a_width_that_differs_from_the_run_is_noted(tmp_path, capsys):
    run = fake_run(tmp_path, frame_texture((8, 8)), width=50)
    assert main(["print", str(run), "--width-mm", "30", "--dpi", "150"]) == 0
    assert "note: the run placed a patch 50 mm wide; one of 30 mm" in capsys.readouterr().err
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
        ("placement.json", b"{}"),
        ("placement.json", b"\xff"),
        ("placement.json", b'{"texture": [24, 25], "width_mm": null}'),
        ("placement.json", b'{"texture": [24, 24], "width_mm": NaN}'),
        ("placement.json", b'{"texture": [24, 24], "width_mm": true}'),
        ("placement.json", b'{"texture": [24, 24], "width_mm": 1' + b"0" * 400 + b"}"),
        ("placement.json", b"[" * 100_000),
    ],
)
def test_a_broken_run_is_named(name, content, tmp_path, error_line):
    run = fake_run(tmp_path)
    (run / name).write_bytes(content)
    assert name in error_line("print", run)
    assert not (run / "print").exists()


def test_other_modes_are_refused(tmp_path, error_line):
    run = fake_run(tmp_path)
    Image.fromarray(np.zeros((24, 24), np.uint16)).save(run / "patch.png")
    assert "8 bits" in error_line("print", run)


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, error_line):
    run = fake_run(tmp_path)
    for name in ("cv2", "reportlab", "reportlab.pdfbase.pdfmetrics"):
        with monkeypatch.context() as bare:
            bare.setitem(sys.modules, name, None)
            assert 'pip install "viewproof[physical]"' in error_line("print", run, "--dpi", "150")
    assert math.isclose(write_sheet(run, 20, dpi=150).plan.card.patch.height, 20)
