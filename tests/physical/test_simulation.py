"""Simulated photographs: their geometry, the effects of light, lens and sensor, and the command line."""

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml

from attacks.commands import main
from attacks.physical.simulation import camera, shots
from attacks.physical.simulation.shots import LIMITS, Ranges, Shot, draw_shot, map_points
from attacks.physical.simulation.simulate import simulate
from tests.helpers.card_simulation import CARD, QUAD, RANDOM, card_dots, flat, printed_run, smooth, take_photo
from transforms import Compose
from transforms.geometry.affine import Affine, Perspective
from transforms.geometry.viewpoint import Viewpoint
from transforms.sampling.homography import homography, invert, transform
from transforms.scene import Layer, Scene

ROOT = Path(__file__).resolve().parents[2]
SQUARE = torch.tensor([[[-1.0, -1], [1, -1], [1, 1], [-1, 1]]], dtype=torch.float64)


@pytest.fixture(scope="module")
def dots():
    return card_dots(RANDOM(1).integers(0, 256, (20, 20, 3), np.uint8))


@pytest.fixture
def run(tmp_path, dots):
    return printed_run(tmp_path / "run", dots)


def card_light(scene, ink, shot, size, quad=QUAD):
    """The light of a photograph before lens and sensor, and the card's corners in it."""
    truth = take_photo(flat(0), shot, size, scene, quad)
    output, plane = shots.frame(size) @ shots.view_homography(shot)[:, [0, 1, 3]], shots.from_shares(scene.shape[:2])
    dots = np.array([[0.1, 0, 0.05], [0, 0.1, 0.05], [0, 0, 1]])  # ten a millimetre
    at = output @ shots.four_point_homography(CARD.patch.corners, map_points(plane, quad)) @ dots
    light = camera.enlarge(scene, min(size))
    x, y = (1 / side for side in light.shape[1::-1])
    back = plane @ np.array([[x, 0, x / 2], [0, y, y / 2], [0, 0, 1]])
    return camera.render(light, output @ back, ink, at, size), np.array(truth.card)


# --- Geometry


def test_a_frontal_pose_shows_scene_and_card_unchanged(dots):
    scene = smooth(400, 400)
    quad = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
    result = take_photo(camera.print_raster(dots, 0), size=(400, 400), scene=scene, quad=quad)
    expected = scene.copy()  # five dots a pixel, whose light adds up
    mean = camera.to_light(dots / np.float32(255)).reshape(260, 5, 260, 5, 3).mean((1, 3))
    expected[70:330, 70:330] = np.rint(camera.to_display(mean) * 255)
    inner = slice(1, -1)  # at its edge the scene borders on mid-grey
    assert np.abs(result.pixels.astype(int) - expected)[inner, inner].max() <= 1
    np.testing.assert_allclose(result.patch, [(99.5, 99.5), (299.5, 99.5), (299.5, 299.5), (99.5, 299.5)], atol=1e-9)
    np.testing.assert_allclose(result.tags[str(CARD.tags[0].number)][0], (72.5, 72.5), atol=1e-9)


def stages(seed):
    """Two geometric stages of ours with their coordinates, and the same values as a shot."""
    u = torch.from_numpy(RANDOM(seed).random((1, 18)))
    affine = Affine(degrees=20, scale=(0.75, 1.3), translate=0.1)
    view, corner = Viewpoint(yaw=30, pitch=30, distance=(0.9, 1.2), fov=(40, 40)), Perspective(0.15)
    angle, scale, _, right, down = affine.values(u[:, :5])[0].tolist()
    yaw, pitch, _, distance, _ = view.values(u[:, 5:10])[0].tolist()
    shift = tuple(map(tuple, corner.values(u[:, 10:])[0].reshape(4, 2).tolist()))
    return [affine, view, corner], u, Shot(angle, scale, right, down, shift, yaw, pitch, distance)


@pytest.mark.parametrize("size", [(64, 64), (96, 128), (130, 90)], ids=str)
def test_the_geometry_equals_that_of_the_transforms(size):
    for seed in range(20):
        result, u, shot = stages(seed)
        back = torch.eye(3, dtype=torch.float64)[None]
        for stage, original in zip(result, u.split([5, 5, 8], 1), strict=True):
            back = back @ stage.matrix(original)  # from the view to the scene
        ours = transform(invert(back), SQUARE)[0][0].numpy() * min(size) / 2 + (np.array(size[::-1]) - 1) / 2
        theirs = map_points(shots.frame(size) @ shots.view_homography(shot)[:, [0, 1, 3]], SQUARE[0].numpy())
        np.testing.assert_allclose(theirs, ours, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 120), (120, 160)], ids=str)
def test_the_picture_equals_that_of_the_transforms(size, dots):
    made, u, shot = stages(3)
    scene, coarse = smooth(*size), card_dots(smooth(8, 8, 5))
    light, ink = camera.enlarge(scene, min(size)), camera.print_raster(coarse, 0)
    quad = ((0.2, 0.3), (0.7, 0.2), (0.75, 0.8), (0.25, 0.7))
    result, _ = card_light(scene, ink, shot, size, quad)
    square = torch.tensor([[0, 0], [130, 0], [130, 130], [0, 130]], dtype=torch.float64)
    corners = map_points(shots.from_shares(size), quad)
    at = shots.four_point_homography(CARD.patch.corners, corners)
    pull = homography(torch.from_numpy(map_points(at, square.numpy())), SQUARE[0])
    layers = [torch.from_numpy(p).permute(2, 0, 1)[None] for p in (light, ink)]
    base = Layer(layers[0], None, torch.eye(3, dtype=torch.float64)[None])
    stack = Scene((base, Layer(layers[1], None, pull)), size)
    grey = float(camera.to_light(np.array(0.5)))
    ours = Compose(made, value=grey)(stack, u)[0].permute(1, 2, 0).numpy()
    assert np.abs(result - ours).mean() < 0.01 and np.abs(result - light.mean()).mean() > 0.1


def test_the_central_square_of_a_long_photograph_equals_a_square_photograph(dots):
    _, _, shot = stages(1)
    ink = camera.print_raster(dots, 1)
    square, long = take_photo(ink, shot, (200, 200)), take_photo(ink, shot, (200, 260))
    np.testing.assert_allclose(np.array(long.patch) - (30, 0), square.patch, atol=1e-9)
    assert np.abs(long.pixels[:, 30:230].astype(int) - square.pixels).max() <= 1


@pytest.mark.slow
def test_the_light_of_a_uniform_card_has_its_area_and_centre():
    for seed in range(5):
        _, _, shot = stages(seed)
        shot = dataclasses.replace(shot, scale=0.6)
        black = np.zeros((50, 50, 3), np.uint8)
        (white, corners), (empty, _) = (card_light(black, flat(v), shot, (240, 240)) for v in (0.8, 0.0))
        light = (white - empty)[..., 0].astype(float)
        x, y = np.moveaxis(np.stack([corners, np.roll(corners, -1, 0)]), -1, 0)
        cross = x[0] * y[1] - x[1] * y[0]
        assert light.sum() == pytest.approx(0.8 * cross.sum() / 2, rel=2e-3)
        middle = [(light.sum(1 - axis) @ np.arange(240)) / light.sum() for axis in (1, 0)]
        area = 3 * cross.sum()
        assert middle == pytest.approx([((x[0] + x[1]) @ cross) / area, ((y[0] + y[1]) @ cross) / area], abs=0.02)


def test_a_card_is_opaque_and_its_edge_is_not_darkened():
    _, _, shot = stages(2)
    shot = dataclasses.replace(shot, scale=0.8)
    white = np.full((40, 40, 3), 255, np.uint8)
    black, corners = card_light(white, flat(0), shot, (200, 200))
    inside = cv2.fillConvexPoly(np.zeros((200, 200), np.uint8), np.int32(np.rint(corners)), 1)
    assert black[cv2.erode(inside, np.ones((5, 5), np.uint8)) > 0].max() == 0
    repeat, _ = card_light(white, flat(1), shot, (200, 200))
    assert np.abs(repeat[cv2.dilate(inside, np.ones((5, 5), np.uint8)) > 0] - 1).max() < 1e-5


def test_outside_scene_and_horizon_is_mid_grey():
    result = take_photo(flat(1), Shot(pitch=75, scale=0.7), scene=np.full((40, 40, 3), 255, np.uint8))
    assert (result.pixels[:30] == 128).all() and (result.pixels == 255).any()
    with pytest.raises(ValueError, match="behind the camera"):
        take_photo(flat(1), Shot(pitch=75, distance=0.3))


# --- Draws and files


def test_draws_stay_in_their_ranges_and_record_values_with_units():
    ranges = Ranges(yaw=(-40, 40), distance=(1, 2))
    draws = [draw_shot(ranges, RANDOM(i)) for i in range(200)]
    for name in LIMITS.keys() - {"shift", "jitter"}:
        values, (low, high) = [getattr(shot, name) for shot in draws], getattr(ranges, name)
        assert low <= min(values) and max(values) <= high
        assert np.ptp(values) >= 0.9 * (high - low)
    shift = np.abs([shot.corners for shot in draws])
    assert 0.14 < shift.max() <= 0.15 and 0.09 < max(abs(shot.down) for shot in draws) <= 0.1
    assert len(draws[0].to_dict()) == len(dataclasses.fields(Shot)) and "degrees (deg)" in draws[0].to_dict()


@pytest.mark.slow
def test_a_photograph_depends_only_on_its_seed_and_number(run, tmp_path):
    def result(name, **source):
        return [path.read_bytes() for path in simulate(run, tmp_path / name, size=(96, 128), **source)]

    three, two, other = result("a", count=3, seed=7), result("b", count=2, seed=7), result("c", count=2, seed=8)
    assert three[:2] == two and not set(two) & set(other) and len(set(three)) == 3


def test_truth_describes_each_file(run, tmp_path):
    files = simulate(run, tmp_path / "photos", count=8, size=(96, 128), ranges=Ranges(blur=(2, 2)), ink=0.5)
    truth = json.loads((tmp_path / "photos" / "truth.json").read_text())
    assert [photo["file"] for photo in truth["photos"]] == [path.name for path in files]
    assert files[1].name == "street--0002.jpg" and all(path.is_file() for path in files)
    assert (truth["id"], truth["ink"]) == ("vp-00000005", 0.5)
    assert (truth["size"], truth["view_px"]) == ([96, 128], [15.5, -0.5, 96])
    assert {photo["quad"] for photo in truth["photos"] if photo["picture"] == "street"} == {0, 1}
    for photo in truth["photos"]:
        assert photo["values"]["blur (px)"] == 2 and set(photo["tags_px"]) == {str(tag.number) for tag in CARD.tags}
        patch, card = np.array(photo["patch_px"], np.float32), np.array(photo["card_px"], np.float32)
        assert all(cv2.pointPolygonTest(card, tuple(map(float, at)), False) > 0 for at in patch)
    assert cv2.imread(str(files[0])).shape == (96, 128, 3)


def test_the_simulation_is_independent_of_the_transforms():
    for path in (ROOT / "attacks/physical/simulation").glob("*.py"):
        assert not re.search(r"^\s*(from|import) (transforms|torch|kornia)\b", path.read_text(), re.M), path


def test_an_ideal_printer_is_exact_and_a_real_one_has_fewer_colours():
    dots = RANDOM(0).integers(0, 256, (50, 60, 3), np.uint8)
    ideal = camera.to_light(dots / np.float32(255))
    real, half, blank = (camera.print_raster(dots, strength) for strength in (1, 0.5, 0))
    np.testing.assert_array_equal(blank, ideal)
    np.testing.assert_allclose(half, (real + ideal) / 2, atol=1e-6)
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, 2)
    grey = camera.print_raster(ramp, 1)[0] / camera.PAPER
    assert np.ptp(grey, axis=1).max() < 1e-5 and (np.diff(grey[:, 0]) >= 0).all()
    assert grey[0, 0] == pytest.approx(10**-camera.DENSEST) and grey[-1, 0] == pytest.approx(1)
    assert (grey[1:-1, 0] <= np.maximum(camera.to_light(ramp[0, 1:-1, 0] / 255), grey[0, 0] + 1e-6)).all()


def test_default_ranges_are_those_of_the_camera_preset():
    stages = yaml.safe_load((ROOT / "configs/transforms/camera.yaml").read_text())["stages"]
    ours = Ranges()
    assert list(ours.degrees) == stages["affine"]["degrees"] and list(ours.scale) == stages["affine"]["scale"]
    assert list(ours.shift) == stages["affine"]["translate"] and ours.jitter == stages["perspective"]["jitter"]
    assert list(ours.contrast) == stages["contrast"]["factor"]
    view = [float(camera.to_display(camera.to_light(np.array(0.5)) * 2**stops)) - 0.5 for stops in ours.stops]
    assert view == pytest.approx(stages["brightness"]["amount"], abs=2e-4)


def test_light_is_multiplied_by_the_gains_of_the_shot():
    light = np.full((101, 201, 3), 0.1, np.float32)
    result = camera.lit(light, Shot(stops=1, red=0.5, blue=-1, gradient=0.25, brighter=0))
    np.testing.assert_allclose(result[50, 100], [0.1 * 2**1.5, 0.2, 0.1], rtol=1e-5)
    right, left = result[50, 150, 1], result[50, 50, 1]
    assert right / left == pytest.approx(2 ** (0.5 * 50 / 50.5), rel=1e-5)
    assert result[0, 100, 1] == pytest.approx(result[-1, 100, 1])


def test_the_tone_curve_has_its_pivot_at_mid_grey():
    near = camera.to_light(np.array([0.49, 0.5, 0.51], np.float32))[None, :, None].repeat(3, 2)
    steep = camera.develop(near, Shot(contrast=1.2))[0, :, 0].astype(int)
    assert steep.tolist() == [round(255 * (0.5 + 1.2 * d)) for d in (-0.01, 0, 0.01)]


def test_blur_has_its_variance_and_preserves_the_light():
    point = np.zeros((81, 81, 3), np.float32)
    point[40, 40] = 1
    result = camera.blurred(point, Shot(blur=1.5, motion=9.0, along=30))[..., 0].astype(float)
    at = np.arange(81) - 40.0
    x, y = (result * at).sum(), (result * at[:, None]).sum()
    xx, yy, xy = (result * at**2).sum(), (result * at[:, None] ** 2).sum(), (result * np.outer(at, at)).sum()
    way = 9**2 / 12
    c, s = math.cos(math.radians(30)), math.sin(math.radians(30))
    assert (result.sum(), x, y) == pytest.approx((1, 0, 0), abs=1e-4)
    share = 1 / 6  # the mean gain of a line between pixels
    expected = (1.5**2 + way * c * c + share, 1.5**2 + way * s * s + share, way * c * s)
    assert (xx, yy, xy) == pytest.approx(expected, abs=0.1)


def test_noise_has_the_variance_of_shot_and_read_noise():
    for level in (0.02, 0.3):
        light = np.full((300, 300, 3), level, np.float32)
        result = camera.add_noise(light, Shot(shot=1e-3, read=3e-3), RANDOM(0))
        assert result.mean() == pytest.approx(level, rel=2e-3)
        assert result.var() == pytest.approx(1e-3 * level + 9e-6, rel=0.02)
    assert (camera.add_noise(light * 0, Shot(), RANDOM(0)) == 0).all()


# --- The command line


def test_the_script_follows_its_options(run, tmp_path, capsys):
    out = tmp_path / "deep" / "photos"
    options = "--count 2 --size 160x90 --degrees 5 --scale 0.9 --quality 60 70 --ink 0 --yaw 30"
    assert main(["simulate", str(run), str(out), *options.split()]) == 0
    assert "2 photographs" in capsys.readouterr().out
    truth = json.loads((out / "truth.json").read_text())
    ranges = truth["ranges"]
    assert (ranges["degrees"], ranges["scale"], ranges["quality"]) == ([-5, 5], [0.9, 0.9], [60, 70])
    assert (ranges["yaw"], ranges["jitter"], truth["size"], truth["ink"]) == ([-30, 30], 0, [90, 160], 0)
    assert main(["simulate", str(run), str(tmp_path / "more"), "--count", "1", "--size", "64x64"]) == 0
    assert json.loads((tmp_path / "more" / "truth.json").read_text())["ranges"]["jitter"] == 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--size 640", "WIDTHxHEIGHT"),
        ("--count many", "--count"),
        ("--moire 1", "--moire"),
        ("--size 20x10", "`size`"),
        ("--count 0", "`count`"),
        ("--seed -1", "`seed`"),
        ("--ink 2", "`ink`"),
        ("--scale 1 0.5", "`scale`"),
        ("--scale nan", "`scale`"),
        ("--jitter 0.5", "`jitter`"),
        ("--degrees 1 2 3", "`--degrees`"),
        ("--pitch 75 --distance 0.2 --count 30", "behind the camera"),
    ],
)
def test_an_option_out_of_range_is_refused_in_one_line(run, tmp_path, error_line, options, message):
    assert message in error_line("simulate", run, tmp_path / "photos", "--size", "64x64", *options.split())


LINES = [[[[0, 0], [1, 1], [2, 2], [0, 1]]]] * 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda run: shutil.rmtree(run), "does not exist"),
        (lambda run: (run / "placement.json").unlink(), "perturbation=patch"),
        (lambda run: shutil.rmtree(run / "print"), "viewproof print"),
        (lambda run: (run / "print" / "card.png").unlink(), "viewproof print"),
        (lambda run: (run / "print" / "card.png").write_bytes(b"no"), "cannot be read"),
        (lambda run: (run / "print" / "sheet.json").write_text("{"), "not JSON"),
        (lambda run: (run / "print" / "sheet.json").write_text("{}"), "KeyError"),
        (lambda run: change(run / "print" / "sheet.json", dpi=300), "print the run again"),
        (lambda run: change(run / "placement.json", pictures=[], quads=[]), "must name a picture"),
        (lambda run: change(run / "placement.json", quads=[[], []]), "one quad"),
        (lambda run: change(run / "placement.json", quads=LINES, masks=[[None]] * 2), "in a line"),
        (lambda run: (run / "pictures" / "clean" / "bench.png").unlink(), "bench.png` does not exist"),
    ],
)
def test_a_run_that_cannot_be_photographed_is_refused_in_one_line(run, tmp_path, error_line, broken, message):
    broken(run)
    assert message in error_line("simulate", run, tmp_path / "photos", "--size", "64x64", "--count", "1")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_old_and_new_photographs_are_not_mixed_in_a_folder(run, tmp_path, error_line):
    (tmp_path / "old.jpg").touch()
    assert "empty folder" in error_line("simulate", run, tmp_path)


def test_without_opencv_the_error_names_the_extra(run, tmp_path, error_line, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("attacks.physical.simulation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert 'pip install "viewproof[physical]"' in error_line("simulate", run, tmp_path / "photos")
