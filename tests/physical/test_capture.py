"""What tells photographs apart: their camera, their time, and files of one photograph; and the size of a print."""

import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

from attacks.perturbations.patch.card import card
from attacks.physical.colour_fit import Swatches, colour_terms, least_squares_map, nominal, without_covered
from attacks.physical.photo_measure import Evidence
from attacks.physical.photos import list_photos, read_capture
from attacks.physical.resemblance import Resemblance
from attacks.physical.scoring import _size_notes
from attacks.physical.simulation.camera import print_raster
from attacks.physical.surface_fit import CardFit
from tests.helpers.wrong import refused

RANDOM = np.random.default_rng
PICTURE = Image.fromarray(cv2.resize(RANDOM(0).integers(0, 256, (9, 12, 3), np.uint8), (400, 300)))


def exif(lens="wide", time="2026:01:01 12:00:00", fraction="10"):
    tags = Image.Exif()
    tags[0x010F], tags[0x0110] = "Maker", "Model"
    tags.get_ifd(0x8769).update({0xA434: lens, 0x9003: time, 0x9291: fraction, 0x920A: 4.2})
    return tags


def save(path, picture=PICTURE, **options):
    if path.suffix == ".heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    picture.save(path, **options)
    return read_capture(path)


@pytest.mark.parametrize("ending", ["jpg", "avif", "heic", "webp"])
def test_files_of_one_photograph_are_the_same_in_any_format_and_size(tmp_path, ending):
    pixels, capture = save(tmp_path / "a.png")
    copied_pixels, copy = save(tmp_path / f"b.{ending}", quality=80, exif=exif())
    assert np.abs(pixels.astype(int) - copied_pixels).mean() < 5 and capture.equals(copy) and copy.equals(capture)
    assert capture.equals(save(tmp_path / f"c.{ending}", PICTURE.resize((200, 150)), quality=80)[1])
    movement = PICTURE.transform(PICTURE.size, Image.Transform.AFFINE, (1, 0, 4, 0, 1, 0))
    assert not capture.equals(save(tmp_path / f"d.{ending}", movement, quality=80)[1])
    captures = [save(tmp_path / f"{i}.{ending}", exif=exif(fraction=str(i)))[1] for i in (10, 11)]
    assert copy.equals(captures[0]) and not copy.equals(captures[1])  # from a tripod


def test_a_camera_is_its_model_lens_and_size(tmp_path):
    lens_a, lens_b = (save(tmp_path / f"{lens}.jpg", exif=exif(lens))[1].camera for lens in ("wide", "tele"))
    turn = save(tmp_path / "u.jpg", PICTURE.transpose(Image.Transpose.ROTATE_90), exif=exif("wide"))[1].camera
    assert lens_a == turn and len({lens_a, lens_b, save(tmp_path / "none.jpg")[1].camera}) == 3


def test_photographs_that_need_a_package_have_one_error(tmp_path, monkeypatch):
    for i in range(3):
        (tmp_path / f"{i}.heic").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    refused(r'pip install "viewproof\[heic\]"', list_photos, tmp_path, ["a"])


def test_a_truncated_photograph_is_refused(tmp_path):
    for ending in ("avif", "heic"):
        save(path := tmp_path / f"a.{ending}")
        path.write_bytes(path.read_bytes()[:-40])
        refused("cannot be read", read_capture, path)


@pytest.mark.parametrize("side", range(4))
def test_a_chart_with_a_covered_side_has_the_colours_of_the_rest(side):
    layout = card(100, 100)
    source = nominal(layout)
    raster = np.array([[swatch.colour for swatch in layout.chart]], np.uint8)
    light_of_ink = print_raster(raster, 0.8)[0].astype(float)
    light = light_of_ink.copy()
    light[8 * side : 8 * side + 8] = RANDOM(side).uniform(0, 1, 3)
    swatches = Swatches(light, np.ones((32, 3), bool))
    maps = [least_squares_map(source, swatches, 2) for swatches in (swatches, without_covered(source, swatches))]
    errors = [
        np.abs(np.cbrt((colour_terms(source, 2) @ fit.T).clip(0)) - np.cbrt(light_of_ink)).mean() for fit in maps
    ]
    assert errors[1] < 0.03 < errors[0]
    chart = Swatches(light_of_ink, swatches.valid)
    assert without_covered(source, chart).valid.all()


def test_doubtful_photographs_are_flagged_and_not_refused():
    surfaces = (SimpleNamespace(is_bent=tilt) for tilt in (False, True, False))
    fits = [CardFit(surface, (), off, off, 0.1, None) for surface, off in zip(surfaces, (0.6, 0.6, 1.0), strict=True)]
    assert [bool(fit.flags) for fit in fits] == [False, True, True] and "folded" in fits[1].flags[0]
    assert Evidence(Resemblance(0.95, "", 0.0, 0.0, 0.0), 1.0, None).refusal is None


@pytest.mark.parametrize(("size", "note"), [(0.97, True), (1.0, False), (1.03, True), (0.99, False)])
def test_the_size_of_a_print_is_noted(size, note):
    sizes = size + RANDOM(0).normal(0, 0.002, 12)
    places = [SimpleNamespace(match=SimpleNamespace(larger=value)) for value in sizes]
    notes = _size_notes([SimpleNamespace(evidence=SimpleNamespace(place=place)) for place in [None, *places]])
    assert bool(notes) == note and (not note or f"{100 * np.median(sizes):.1f}%" in notes[0])
