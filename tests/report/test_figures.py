"""Figures, colours and texts of the pages; sheets of views, pixel for pixel with the values below each."""

import html
import itertools
import math
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from attacks.evaluation import per_image
from attacks.evaluation.deployment import Example
from attacks.evaluation.rare.failure import PictureFailure
from attacks.report import sheets, words
from attacks.report.captions import loss_caption, places_caption
from attacks.report.colours import DARK, LIGHT, RAMP, contrast_ratio, page_colours, shade
from attacks.report.figures import dots, drift_curve, loss_curve, response_curve
from attacks.report.page import render_page
from attacks.report.panels import SUCCESS, draw_deployment
from attacks.report.sheets import COLUMNS, MAX_VIEWS, draw_failures
from attacks.report.words import MEASURES, interval_text, measure_groups, measure_value, number_words, p_value, short
from attacks.resizers.pipeline import OPEN
from tests.helpers import report_pages
from tests.test_rooms import ROOT


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_text_and_lines_have_enough_contrast(palette):
    for text, ground in itertools.product(("ink", "dim", "link"), ("paper", "panel", "mark")):
        assert contrast_ratio(palette[text], palette[ground]) >= 4.5  # of WCAG 2.2, and 3 of lines
    assert min(contrast_ratio(palette[arm], palette["paper"]) for arm in words.ARMS) >= 3
    assert set(LIGHT) == set(DARK) and len(set(palette.values())) == len(palette)


def test_contrast_is_that_of_wcag():
    assert contrast_ratio("#000000", "#ffffff") == contrast_ratio("#ffffff", "#000000") == pytest.approx(21)
    assert contrast_ratio("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the guideline's near miss


def test_cells_are_legible_and_darker_for_a_stronger_attack():
    values = [i / 200 for i in range(-40, 241)]
    for measure, way in (("success", 1), ("cosine", -1)):
        cells = [shade(measure, value) for value in values]
        assert min(contrast_ratio(*cell) for cell in cells) >= 4.5
        light = [contrast_ratio(ground, "#000000") for ground, _ in cells]
        assert all(way * (b - a) <= 1e-9 for a, b in itertools.pairwise(light))
    assert shade("success", 0)[0] == RAMP[0] == shade("cosine", 1)[0] and shade("success", 1)[0] == RAMP[-1]


def test_the_page_sets_the_colours_of_a_drawing_except_its_cells():
    assert page_colours("fill: #1a56a8; stroke: #1d2530") == "fill: var(--eot); stroke: var(--ink)"
    assert page_colours("fill: #ffffff") == "fill: #ffffff"
    assert not {shade("success", i / 1000)[0] for i in range(1001)} & set(LIGHT.values())


@pytest.mark.slow
def test_a_drawing_is_deterministic_and_shows_every_arm():
    trace, curves = (report_pages.trace(), "away", report_pages.arm_values()), report_pages.response()["curves"]
    cases = [(3, loss_curve, trace), (4, drift_curve, (report_pages.drift(),)), (5, response_curve, (curves[0], "c"))]
    for arms, curve, content in cases:
        svg = curve(*content)
        assert svg == curve(*content)
        assert len(set(re.findall(r"stroke: var\(--(eot|no_eot|one_view|noise|clean)\)", svg))) == arms
        assert svg.startswith("<svg ") and "<title id=" in svg and "<desc id=" in svg
        assert "DejaVu" not in svg and "<style" not in svg and "#" + "1d2530" not in svg


def test_the_table_has_the_measures_of_the_arms():
    rows = report_pages.arm_values()
    groups = dict(measure_groups(rows, {}))
    assert [measure.key for measure in groups["Verification"]] == ["tar 0.001", "tar 0.01"]
    assert measure_value(rows["eot"], "tar 0.01") == rows["eot"]["tar"]["0.01"]
    assert measure_value(rows["noise"], "knn") is None and measure_value({}, "tar 0.01") is None
    keys = {measure.key for group in groups.values() for measure in group}
    assert {"knn", "median_rank", "cosine_p10"} <= keys and not {"goal_cosine", "budget_used", "tar"} & keys
    (group,) = measure_groups({"eot": {"cosine": rows["eot"]["cosine"], "tar": None}}, {})
    assert [measure.key for measure in group[1]] == ["cosine"]


def test_a_small_p_value_is_not_shown_as_zero():
    texts = "\N{EN DASH}", "< 0.001", "< 0.001", "0.0010", "0.049", "1.0"
    assert tuple(p_value(p) for p in (None, 0.0, 0.00099, 0.001, 0.0494, 1.0)) == texts
    assert p_value(None, 6) == "too few clusters: 6 needed"


def test_numbers_are_as_short_as_they_may_be():
    values = -25.714286, 0.0, 1.43178, 224.0, 3024.0
    assert " ".join(map(short, values)) == "-25.7 0 1.43 224 3024"


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        ((0.87, 0.812, 0.931, "interval"), {}, "0.87 [0.81, 0.93]"),
        ((0.87, 0.812, 0.931, "range"), {}, "0.87 (0.81 to 0.93)"),
        ((0.9912, 0.982, 0.9994, "interval"), {}, "0.991 [0.982, 0.999]"),
        ((1.0, 1.0, 1.0, "range"), {}, "1.00 (1.00 to 1.00)"),
        ((-0.0004, -0.2, 0.1, "interval"), {"sign": "+"}, "+0.00 [-0.20, +0.10]"),
        ((12.0, 3.0, 40.0, "interval"), {"digits": 0}, "12 [3, 40]"),
    ],
)
def test_an_interval_has_brackets_and_as_many_digits_as_it_supports(value, options, text):
    row = dict(zip(("mean", "low", "high", "kind"), value, strict=True))
    assert interval_text(row, **options) == " ".join(number_words(row, **options)) == text


def places(*success):
    return places_caption({str(i): value for i, value in enumerate(success)}, True)


def trace(*losses):
    return [report_pages.Line("eot", "pgd", 0.0, loss, i, i) for i, loss in enumerate(losses)]


FALLING, SETTLED, RISING = [1 - i / 20 for i in range(20)], [0.5**i for i in range(20)], [i / 20 for i in range(20)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (places(0.9, 0.6, 0.4), "Success is one half or more from 0 to 1; least 0.40 at 2."),
        (places(0.9, 0.2, 0.9), "Success is one half or more in 2 of 3 places; least 0.20 at 1."),
        (places(0.9, 0.6), "Success is one half or more in 2 of 2 places; least 0.60 at 1."),
        (places(0.2, 0.3), "Success is one half or more nowhere; most 0.30 at 1."),
        (loss_caption(trace(*FALLING), None), "The loss still falls at the end (26% of its gain"),
        (loss_caption(trace(*SETTLED), None), "The loss has settled (0% of its gain"),
        (loss_caption(trace(*RISING), None), "The loss has not fallen"),
        (loss_caption(trace(0.5, 0.4), {"checks": []}), "The loss was compared too rarely"),
    ],
)
def test_a_line_says_what_its_rows_show(line, text):
    assert line.startswith(text) and len(line.split()) <= 20


def test_the_docs_define_the_measures_with_the_words_of_the_pages():
    rows = [f"|`{m.key}`|{m.name}|{m.meaning}|{m.table}|" for m in MEASURES.values()]
    assert "\n".join(rows) in (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    assert {*MEASURES} == {*per_image.COLUMNS, "tar_FAR"} - {"survived"}
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "attacks/report").rglob("*.html")):
        assert not re.search(r"share of [\w ]*views\s+(that|lost)", path.read_text(encoding="utf-8")), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "note"), [(True, "Star: the success differs"), (None, "Too few clusters to test so many")]
)
def test_a_map_marks_the_range_of_the_attack_and_significant_cells(p, note):
    content = report_pages.content()
    (grid,) = content["response"]["maps"]
    content["response"]["maps"] = [grid | {"p": p and grid["p"], "needed": 11}]
    page = html.unescape(render_page(content, report_pages.manifest()))
    tables = re.findall('<table class="heat">.*?</table>', page[page.index('id="response"') :], re.DOTALL)
    bounds = [(*side["trained"], side["values"]) for side in map(grid.get, "xy")]
    ranges = (sum(low <= value <= high for value in values) for low, high, values in bounds)
    assert tables[0].count("trained") == math.prod(ranges) > 0
    stars = sum(value < 0.05 for row in grid["p"] for value in row) if p else 0
    assert tables[0].count(">*") == stars and ">*" not in "".join(tables[1:]) and note in page


def test_a_notebook_shows_the_picture_of_the_arms_without_pyplot():
    assert dots({"eot": {"mean": 0.5, "low": 0.2, "high": 0.8}}, "success")._repr_png_().startswith(b"\x89PNG")


NAMES = ("none", "Pillow lanczos", "OpenCV area", *OPEN)


def test_long_names_are_wrapped_between_words():
    font = ImageFont.load_default(size=sheets.FONT)
    text = "perspective bottom-right corner right (of half side)"
    lines = sheets.wrap(text, 120, font)
    assert len(lines) > 1 and " ".join(" ".join(lines).split()) == text
    assert all(font.getlength(line) <= 140 for line in lines)
    assert sheets.wrap(text, 1000, font) == [text]


def test_a_sheet_holds_the_original_and_the_views_pixel_for_pixel():
    original, views = torch.zeros(3, 40, 60), [torch.full((3, 30, 70), level / 255) for level in (50, 100, 150)]
    image = sheets.view_sheet_figure(original, views, ["angle (deg)"], [["1"], ["2"], ["3"]], columns=2)
    height = 40 + 2 * sheets.GAP + 2 * sheets.LEADING  # a row: pictures, "view 1", one value
    head = (image.width - sheets.GAP) - 2 * (70 + sheets.GAP)  # width of the column left of the views
    assert image.height == sheets.GAP + 2 * height and head > 60
    assert image.getpixel((sheets.GAP, sheets.GAP)) == (0, 0, 0)
    for i, level in enumerate((50, 100, 150)):
        row, column = divmod(i, 2)
        left = image.width - (2 - column) * (70 + sheets.GAP)
        top = sheets.GAP + row * height + 5  # centred in 40 rows
        box = image.crop((left, top, left + 70, top + 30))
        assert box.getextrema() == ((level, level),) * 3
        below = image.crop((left, top + 35 + sheets.GAP + sheets.LEADING, left + 70, row * height + height))
        assert below.convert("L").getextrema()[0] < 128, "the value is written below its view"


@pytest.mark.parametrize("pictures", [1, 20])
def test_the_sheet_has_the_pictures_of_each_arm_that_fail_most_often(tmp_path, monkeypatch, pictures):
    calls, sheet = [], sheets.view_sheet_figure
    monkeypatch.setattr("attacks.report.sheets.view_sheet_figure", lambda *a: calls.append(a) or sheet(*a))
    pairs = [(arm, i) for arm in ("clean", "eot") for i in range(pictures)]
    view = torch.zeros(3, 8, 8)
    failures = [
        PictureFailure(i / 100, 0, 1, 9, *[0] * 4, "plain", f"{i}", "", arm, 9, {"angle": i}, view)
        for arm, i in pairs
    ]
    draw_failures(tmp_path / "failure.png", failures)
    ((original, views, names, values, columns),) = calls
    assert original is None and names == ["picture", "arm", "P at most", "estimate"] and columns <= COLUMNS
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
