"""The sheets of views, pixel for pixel with the values below each, and of an attacked picture behind each resizer."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from attacks.evaluation.deployment import Example
from attacks.evaluation.rare.failure import PictureFailure
from attacks.report import view_sheet
from attacks.report.panels import SUCCESS, draw_deployment
from attacks.report.view_sheet import COLUMNS, MAX_VIEWS, draw_failures
from attacks.resizers.pipeline import OPEN

NAMES = ("none", "Pillow lanczos", "OpenCV area", *OPEN)


def test_long_names_are_wrapped_between_words():
    font = ImageFont.load_default(size=view_sheet.FONT)
    text = "perspective bottom-right corner right (of half side)"
    lines = view_sheet.wrap(text, 120, font)
    assert len(lines) > 1 and " ".join(" ".join(lines).split()) == text
    assert all(font.getlength(line) <= 140 for line in lines)
    assert view_sheet.wrap(text, 1000, font) == [text]


def test_a_sheet_holds_the_original_and_the_views_pixel_for_pixel():
    original, views = torch.zeros(3, 40, 60), [torch.full((3, 30, 70), level / 255) for level in (50, 100, 150)]
    image = view_sheet.view_sheet_figure(original, views, ["angle (deg)"], [["1"], ["2"], ["3"]], columns=2)
    height = 40 + 2 * view_sheet.GAP + 2 * view_sheet.LEADING  # a row: pictures, "view 1", one value
    head = (image.width - view_sheet.GAP) - 2 * (70 + view_sheet.GAP)  # width of the column left of the views
    assert image.height == view_sheet.GAP + 2 * height and head > 60
    assert image.getpixel((view_sheet.GAP, view_sheet.GAP)) == (0, 0, 0)
    for i, level in enumerate((50, 100, 150)):
        row, column = divmod(i, 2)
        left = image.width - (2 - column) * (70 + view_sheet.GAP)
        top = view_sheet.GAP + row * height + 5  # centred in 40 rows
        box = image.crop((left, top, left + 70, top + 30))
        assert box.getextrema() == ((level, level),) * 3
        below = image.crop((left, top + 35 + view_sheet.GAP + view_sheet.LEADING, left + 70, row * height + height))
        assert below.convert("L").getextrema()[0] < 128, "the value is written below its view"


@pytest.mark.parametrize("pictures", [1, 20])
def test_the_sheet_has_the_pictures_of_each_arm_that_fail_most_often(tmp_path, monkeypatch, pictures):
    calls, sheet = [], view_sheet.view_sheet_figure
    monkeypatch.setattr("attacks.report.view_sheet.view_sheet_figure", lambda *a: calls.append(a) or sheet(*a))
    pairs = [(arm, i) for arm in ("clean", "eot") for i in range(pictures)]
    view = torch.zeros(3, 8, 8)
    failures = [PictureFailure(f"{i}", "", arm, i / 100, 0, 1, 1, 1, "x", {"angle": i}, view) for arm, i in pairs]
    draw_failures(tmp_path / "failure.png", failures)
    ((original, views, names, values, columns),) = calls
    assert original is None and names == ["picture", "arm", "P(failure)", "angle"] and columns <= COLUMNS
    limit = min(pictures, MAX_VIEWS // 2)
    expected = [(f"{pictures - 1 - i}", arm) for arm in ("clean", "eot") for i in range(limit)]
    assert [(row[0], row[1]) for row in values] == expected
    assert len(views) == len(values) and (tmp_path / "failure.png").stat().st_size > 100


def test_a_frame_marks_the_resizers_with_which_the_attack_succeeds(tmp_path):
    frame = np.array([int(SUCCESS[i : i + 2], 16) for i in (1, 3, 5)])

    def area(*hits):
        grey = torch.full((24, 30, 3), 128, dtype=torch.uint8)
        example = Example(grey.repeat(4, 4, 1), dict.fromkeys(NAMES, grey), {name: name in hits for name in NAMES})
        draw_deployment(tmp_path / "deployment.png", example)
        pixels = np.array(Image.open(tmp_path / "deployment.png").convert("RGB"))
        return int((pixels == frame).all(2).sum())

    single, both = area("OpenCV linear"), area("OpenCV linear", "OpenCV area")
    assert area() == 0 < single and abs(both / single - 2) < 0.2
