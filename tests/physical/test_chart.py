"""The colour chart alone: printed, photographed, and measured."""

import json

import numpy as np
import pytest
from PIL import Image

from attacks.commands import main
from attacks.perturbations.patch.card_raster import card_picture
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.physical.chart import CELLS, PAPER, chart_card, measured_printer
from attacks.physical.colour_fit import colour_difference, colour_terms
from attacks.physical.simulation.camera import print_raster, to_light
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Shot

QUAD = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))


def photo(path, **options):
    raster = card_picture(chart_card(), np.full((1, 1, 3), 255, np.float32), 100)
    shot = Shot(**{"degrees": 4, "blur": 0.6, "read": 0.001} | options)
    scene, light, rng = np.full((64, 64, 3), 90, np.uint8), print_raster(raster, 1.0), np.random.default_rng(0)
    result = take_photograph(scene, QUAD, chart_card(), light, 100, shot, (800, 900), rng)
    Image.fromarray(result.pixels).save(path)
    return path


@pytest.mark.slow
def test_a_photograph_of_the_chart_gives_the_ink_in_any_light(tmp_path):
    """The truth is the simulator's ink, relative to its paper."""
    colours = np.random.default_rng(1).integers(0, 256, (1, 400, 3)).astype(np.uint8)
    paper = print_raster(np.full((1, 1, 3), 255, np.uint8), 1.0)
    true = (PAPER * print_raster(colours, 1.0) / paper)[0].astype(np.float64)
    light = to_light(colours[0] / np.float32(255)).astype(np.float64)
    for lamp in ({"stops": -0.3}, {"stops": -1.2, "red": 0.3, "blue": -0.3, "gradient": 0.3}):
        out = tmp_path / "printer.json"
        fit = measured_printer([photo(tmp_path / "a.png", **lamp)], out)
        assert colour_difference(light, true).mean() > 10
        assert colour_difference(colour_terms(light, fit.degree) @ fit.coefficients.T, true).mean() < 2.5
        np.testing.assert_allclose(read_colour_map(str(out)), fit.table(), atol=1e-6)


def test_the_chart_holds_each_colour_once_and_white_in_every_part():
    card = chart_card()
    grid = card.chart[-(CELLS**2) :]
    colours = [item.colour for item in grid if item.colour != (255,) * 3]
    assert len(colours) == len(set(colours)) == CELLS**2 - 17
    for item in grid:
        inside = item.box.x >= card.patch.x and item.box.x + item.box.width <= card.patch.x + card.patch.width
        assert inside and item.box.y + item.box.height <= card.patch.y + card.patch.height
    white = np.array([[item.box.x, item.box.y] for item in grid if item.colour == (255,) * 3])
    middle = np.array([card.width / 2, card.height / 2])
    assert all(((white > middle) == quarter).all(1).sum() >= 3 for quarter in ([0, 0], [0, 1], [1, 0], [1, 1]))


@pytest.mark.slow
def test_the_commands_print_and_measure_the_chart(tmp_path, capsys):
    assert main(["print", "--chart", "--dpi", "150", "--paper", "letter", "--out", str(tmp_path / "chart")]) == 0
    assert sorted(path.name for path in (tmp_path / "chart").iterdir()) == ["card.png", "sheet.pdf", "sheet.png"]
    with Image.open(tmp_path / "chart" / "sheet.png") as sheet:
        sheet.point(lambda value: round(0.8 * value)).save(tmp_path / "photo.png")
    out = tmp_path / "printer.json"
    assert main(["score", "--chart", str(tmp_path / "photo.png"), "--out", str(out)]) == 0
    assert "printer=measured printer.colour=" in capsys.readouterr().out
    assert json.loads(out.read_text())["kind"] == "polynomial"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["print", "run", "--chart"], "drop RUN"),
        (["print"], "RUN"),
        (["score", "run"], "PHOTOS"),
        (["score", "--chart", "white.png"], "less exposure"),
        (["score", "--chart", "nothing.png"], "0 of the chart's 4 fiducials"),
    ],
)
def test_errors_are_one_line(arguments, about, tmp_path, monkeypatch, error_line):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (200, 200)).save("nothing.png")
    raster = card_picture(chart_card(), np.full((1, 1, 3), 255, np.float32), 100)
    Image.fromarray(np.pad(raster, ((20, 20), (20, 20), (0, 0)), constant_values=255)).save("white.png")
    assert about in error_line(*arguments)
