"""The parts of scoring photographs that need no run: files, views, ranges, intervals."""

import io
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data.images import load_image, to_bytes
from attacks.data.pictures import square
from attacks.eot.bank import bank
from attacks.evaluation.per_image import measure_summary
from attacks.inference.bounded import interval
from attacks.perturbations.patch.card import Box
from attacks.perturbations.patch.inks import Inks
from attacks.physical import score
from attacks.physical.colour_fit import ColourFit
from attacks.physical.photo_measure import file_name
from attacks.physical.photo_report import merge_stages, ranges
from attacks.physical.photos import PhotoFile, list_photos, read_photo
from attacks.physical.rectify import from_corners, pose, project
from attacks.physical.score import make_judge, predict, score_views, with_poses
from attacks.physical.views import Rerun, photo_view
from attacks.run import compose
from attacks.study.assembly import build
from attacks.study.printer import reprint
from tests.helpers.photographs import stored_scores
from tests.helpers.prints import physical
from tests.helpers.recomputation import share
from tests.helpers.wrong import refused
from transforms import Affine, Compose, Perspective, Viewpoint
from transforms.colour.lut import ColourMap, nodes
from transforms.wrappers import OnLayers


def test_the_central_square_equals_that_of_the_runs_pictures(photo):
    pixels = to_bytes(photo[0].float())
    ours = photo_view(pixels, 40)
    theirs = square(photo[0].float(), 40)
    assert (ours.left, ours.top, ours.side) == (20, 0, 80)
    assert (ours.pixels - theirs).abs().max() <= 2 / 255


def test_a_range_of_angles_may_cross_180_degrees():
    poses = [seen_from(roll=(degrees, degrees)) for degrees in (170.0, -170.0, 175.0)]
    result = ranges(poses, [0.5, -0.25, 0.0])
    assert result["viewpoint"]["roll"] == [170, 190] and result["exposure"]["stops"] == [-0.25, 0.5]
    assert ranges([], []) == {}


def seen_from(shift=0.0, **place):
    """The pose before a scene that a camera sees from one place."""
    view = Compose([Viewpoint(**place), Affine(translate=(shift, shift))])
    pulls = [stage.matrix(torch.zeros(1, stage.dims, dtype=torch.float64))[0] for stage in view.stages]
    return pose(np.linalg.inv((pulls[0] @ pulls[1]).numpy()), Box(-1, -1, 2, 2))


@pytest.mark.parametrize("fov", [25.0, 40.0, 60.0])
def test_the_stages_have_the_ranges_of_the_camera(fov):
    draw, count = np.random.default_rng(round(fov)), 12
    names = ("yaw", "pitch", "roll", "distance", "shift")
    places = draw.uniform((5, -30, -40, 1.1, -0.1), (40, 10, 20, 1.6, 0.1), (count, 5))
    poses = []
    for *values, shift in places:
        place = {name: (value, value) for name, value in zip(names, values, strict=False)}
        poses.append(seen_from(shift, fov=(fov, fov), **place))
    result = ranges(poses, [])
    assert result["perspective"]["jitter"] < 1e-3
    assert result["viewpoint"].pop("fov") == pytest.approx([fov, fov], abs=0.01)
    for i, name in enumerate(names[:4]):
        assert result["viewpoint"][name] == pytest.approx([places[:, i].min(), places[:, i].max()], abs=1e-4)
    assert result["affine"]["translate"] == pytest.approx([places[:, 4].min(), places[:, 4].max()], abs=1e-4)
    angles = np.degrees(np.arccos(np.prod(np.cos(np.deg2rad(places[:, :2])), 1)))
    assert [pose.angle for pose in poses] == pytest.approx(angles)


def test_views_of_the_stages_equal_the_photographs():
    """Whatever the photographs: a view of the stages equals each of them, and no corner is behind the camera."""
    draw = np.random.default_rng(0)
    square, box = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]), Box(-1, -1, 2, 2)
    poses = [pose(from_corners(square, square + draw.uniform(-0.3, 0.3, (4, 2))), box) for _ in range(8)]
    stages = ranges(poses, [])
    jitter = stages["perspective"]["jitter"]
    for item in poses:
        place = {name: (getattr(item, name),) * 2 for name in ("yaw", "pitch", "distance")}
        fov = tuple(stages["viewpoint"]["fov"])
        camera = Viewpoint(roll=(item.degrees,) * 2, fov=fov, **place).matrix(torch.zeros(1, 5).double())[0].numpy()
        shift = np.eye(3)
        shift[:2, 2] = -item.matrix[:2, 2]
        shifts = project(camera @ shift @ item.matrix, square) - square
        assert np.abs(shifts).max() <= jitter + 1e-3
    Viewpoint(**stages["viewpoint"])  # raises where a corner is behind the camera


def test_only_measured_values_replace_stages():
    names = ("viewpoint", "affine2", "contrast", "exposure", "downscale")
    original = {name: {"value": number} for number, name in enumerate(names)}
    assert merge_stages(original, {}) == original
    for measured, order in (("affine", "contrast exposure downscale"), ("affine exposure", "contrast downscale")):
        measured_stages = {name: {"degrees": 3} for name in measured.split()}
        result = merge_stages(original, measured_stages)
        assert list(result) == [*measured.split(), *order.split()]
        assert result == measured_stages | {name: original[name] for name in order.split()}


def single_scores(rows):
    """Clusters of one picture each."""
    return list(map(str, rows))


def test_intervals_equal_those_of_the_run():
    values, hits = torch.tensor([0.1, 0.5, 0.9, 0.3]), torch.tensor([True, False, True, True])
    assert score.photo_summary(values, [0, 0, 0, 0], ["a"] * 4) == interval(values.double(), -1)
    for clusters in (single_scores([0, 0, 0, 1]), ["a"] * 4):  # of one cluster: pictures
        of_two = score.photo_summary(values, [0, 0, 0, 1], clusters)
        assert of_two[:3] == pytest.approx(interval(torch.tensor([0.5, 0.3]), -1)[:3], abs=1e-6)
    of_one = score.photo_summary(hits, [0] * 4, ["a"] * 4, 0.0)
    assert of_one[:3] == pytest.approx(interval(hits.double())[:3])


@pytest.mark.parametrize("pictures", [2, 3, 4, 30])
@pytest.mark.parametrize("tiles", [1, 3])
def test_the_share_of_several_clusters_is_that_of_their_pictures_means(pictures, tiles):
    draw = np.random.default_rng(pictures)
    rows = np.repeat(np.arange(pictures * tiles), draw.integers(1, 20, pictures * tiles))
    hits = draw.random(len(rows)) < draw.random(pictures * tiles)[rows]
    means = np.array([hits[rows == i].mean() for i in range(pictures * tiles)]).reshape(pictures, tiles).mean(1)
    target = share(means, np.bincount(rows // tiles))
    result = score.photo_summary(torch.from_numpy(hits), rows.tolist(), single_scores(rows // tiles), 0.0)
    assert result.kind == target.pop("kind") == "interval"
    assert result[:3] == pytest.approx([*target.values()])


def test_a_clip_counts_once_however_many_frames_it_has():
    """The interval of clips is that of their means; frames that are added to a clip tell nothing new."""
    draw = np.random.default_rng(0)
    means, long = torch.from_numpy(draw.random(7)), []
    for count in (1, 3, 40):
        photos = [PhotoFile(Path(), f"{i}/{j}", 0, f"{i}") for j in range(count) for i in range(7)]
        values = means.repeat(count)
        clips = score.by_clip(score.PhotoScores(values, values, values, (0,) * len(photos)), photos)
        assert clips.rows == (0,) * 7 and clips.success == pytest.approx(means)
        long.append(score.figures(clips, ["one"])["success"])
    assert long[1] == pytest.approx(long[0]) == long[2] and long[0].high - long[0].low > 0.3


def test_the_map_has_every_photograph_in_the_cell_of_its_distance_and_angle():
    draw = np.random.default_rng(1)
    success, distances = torch.from_numpy(draw.random(60) < 0.5), draw.uniform(1, 4, 60)
    angles = draw.uniform(0, 50, 60)
    scores = score.PhotoScores(success.double(), success, success, (0,) * 60)
    photos = [PhotoFile(Path(), f"{i}", 0) for i in range(60)]
    poses = map(lambda far, turn: SimpleNamespace(distance=far, angle=turn), distances, angles)
    measurements = [SimpleNamespace(pose=at, photo=photo) for at, photo in zip(poses, photos, strict=True)]
    cells = score.success_map(scores, measurements, ["one"])
    assert sum(cell["photographs"] for cell in cells) == 60
    assert [(cell["distance"], cell["angle"]) for cell in cells] == sorted((c["distance"], c["angle"]) for c in cells)
    for cell in cells:
        near = np.abs(np.log2(distances / cell["distance"])) < 1 / 6
        inside = near & (np.abs(angles - cell["angle"]) < 7.5)
        assert inside.sum() == cell["photographs"]
        assert cell["success"] == interval(success[inside].double())._asdict()


def test_the_control_is_compared_pose_by_pose():
    draw = np.random.default_rng(2)
    success, control = (torch.from_numpy(draw.random(20) < share) for share in (0.8, 0.3))
    scores = score.PhotoScores(success.double(), success, success, (0,) * 20)
    photos = [PhotoFile(Path(), f"{i}", 0) for i in range(20)]
    controls = {f"{i}": bool(control[i]) for i in draw.permutation(20)[:12]} | {"elsewhere": True}
    at = [i for i in range(20) if f"{i}" in controls]
    result = score.control_difference(controls, scores, photos, ["one"])
    assert result["pairs"] == 12
    assert result["difference"] == interval(success[at].double() - control[at].double(), -1)._asdict()
    assert score.control_difference({"elsewhere": True}, scores, photos, ["one"]) is None


#: Seven tiles of one place and one of another.
PLACES = ("park",) * 7 + ("street",)


def compare_scores(folder, pictures, clusters=PLACES, times=4):
    """Photographs of some pictures that repeat what the run's views of each show, unequally often."""
    item = [row for i, row in enumerate(pictures) for _ in range(times * (1 + i % 3))]
    successes = torch.tensor([row < 7 for row in item])
    photos = score.PhotoScores(successes.float() / 2, ~successes, successes, tuple(item))
    return score.compare_arms(photos, score.digital(folder, 8, sorted({*pictures}), "eot"), clusters, "eot")


@pytest.fixture
def successes(tmp_path):
    """The scores of a run in which seven pictures of eight are fooled in all of their views."""
    success = torch.arange(8)[:, None].expand(8, 100) < 7
    stored_scores(tmp_path, success.float() / 2, success.clone())
    return tmp_path


@pytest.mark.parametrize("pictures", [range(8), [0, 7], [6, 7, 1], [7], [2, 4]])
def test_photographs_that_repeat_the_run_differ_by_nothing(successes, pictures):
    content = compare_scores(successes, [*pictures])
    original = [row == 7 for row in pictures]
    share_fooled = 0.5 if any(original) and not all(original) else float(not all(original))
    assert content["photographs"]["success"]["mean"] == content["digital"]["eot"]["success"]["mean"] == share_fooled
    assert [content["difference"][name]["mean"] for name in score.MEASURES] == [0, 0, 0]
    kinds = {row["kind"] for row in content["difference"].values()}  # three tests need seven pairs
    assert (kinds, content["needed"]) == (({"range"}, 7) if len(pictures) > 1 else ({"interval"}, None))


def test_the_figures_of_the_run_are_those_of_its_own_table(successes):
    hits = [float(row < 7) for row in range(8)]
    rows = [
        {"cluster": name, "views": 100, "success": hit, "cosine": hit / 2}
        for name, hit in zip(PLACES, hits, strict=True)
    ]
    content = compare_scores(successes, range(8))
    for name in ("success", "cosine"):
        assert content["digital"]["eot"][name] == measure_summary(name, rows)
    assert content["photographs"]["success"]["low"] < 0.05  # two places, however many tiles
    difference = compare_scores(successes, range(8), clusters=single_scores(range(8)))["photographs"]["success"]
    assert difference["low"] > 0.35 and difference["mean"] == 0.875


def test_every_photograph_has_its_own_file():
    names = "a/b.jpg a-b.jpg a--b.jpg a/b.png a-b.png b.jpg b.jpg.png b.png b.PNG c.d.png"
    result = [file_name(PhotoFile(Path(name), name, 0)) for name in names.split()]
    assert len(set(result)) == len(result) and all(name.endswith(".png") for name in result)
    assert file_name(PhotoFile(Path("x"), "a/street--03.png", 0)) == "a/street--03.png"


def test_a_photograph_is_matched_to_its_picture_by_name(tmp_path):
    for name in ("a--1.jpg", "a-b--2.jpg", "c.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    result, notes = list_photos(tmp_path, ["a", "a-b", "c"])
    assert [(photo.name, photo.row) for photo in result] == [("a--1.jpg", 0), ("a-b--2.jpg", 1), ("c.png", 2)]
    assert notes == ["b.png: left out, the picture that it shows is unknown; name it PICTURE--b.png"]
    assert [photo.row for photo in list_photos(tmp_path, ["x"])[0]] == [0] * 4
    assert {photo.row for photo in list_photos(tmp_path, ["a", "c"], "c")[0]} == {1}
    for name in ("a--walk", "a/run", "b--not", "other"):
        (tmp_path / name).mkdir(parents=True)
        for frame in ("1.jpg", "2.jpg"):
            (tmp_path / name / frame).write_bytes(b"")
    result, notes = list_photos(tmp_path, ["a", "a-b", "c"])
    clips = {photo.name: (photo.row, photo.clip) for photo in result if photo.clip}
    assert clips == {f"{clip}/{i}.jpg": (0, clip) for clip in ("a--walk", "a/run") for i in (1, 2)}
    assert len(result) == 7 and sum("b--not/" in note for note in notes) == 2
    refused("--picture", list_photos, tmp_path, ["a"], "z")
    refused("none of the run's pictures", list_photos, tmp_path, ["p", "q"])
    with pytest.raises(FileNotFoundError, match="no folder"):
        list_photos(tmp_path / "missing", ["a"])


@pytest.mark.parametrize("tag", [0x0100, 0x011A, 0x0154])
def test_a_text_in_the_exif_where_a_number_belongs_changes_no_pixel(tmp_path, tag):
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112], exif[0x010F] = 6, "maker"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).save(buffer, "JPEG", exif=exif)
    at = buffer.getvalue().index(struct.pack(">H", 0x010F))
    corrupt = buffer.getvalue()[:at] + struct.pack(">H", tag) + buffer.getvalue()[at + 2 :]
    (tmp_path / "a.jpg").write_bytes(corrupt)
    with Image.open(buffer) as picture:
        expected = np.rot90(np.asarray(picture), -1)
    assert np.array_equal(read_photo(tmp_path / "a.jpg"), expected)
    assert np.array_equal(to_bytes(load_image(tmp_path / "a.jpg")[0]), expected)


@pytest.mark.parametrize("error", [struct.error("no integer"), TypeError("no number"), IndexError("no tag")])
def test_whatever_pillow_raises_refuses_one_photograph_in_one_line(tmp_path, monkeypatch, error):
    def getexif(_):
        raise error

    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image.Image, "getexif", getexif)
    refused(rf"cannot be read \({type(error).__name__}: {error}\)", read_photo, tmp_path / "a.png")


SIZE = (48, 64)
IDENTITY_FIT = ColourFit(1, np.hstack([np.zeros((3, 1)), np.eye(3)]), 32, 0.0, 0.0)


def seen(corners):
    """A photograph in whose view the scene has these corners, in the stage frame."""
    box = Box(0, 0, SIZE[1], SIZE[0])
    return SimpleNamespace(scene=pose(from_corners(box.corners, corners), box), photo=SimpleNamespace(row=0))


def test_a_pose_maps_the_view_back_to_the_scene():
    rng = np.random.default_rng(0)
    flat = np.array([[-1.3, -0.9], [1.2, -1.1], [1.4, 1.0], [-1.2, 0.8]])
    corners = [flat + rng.uniform(-0.15, 0.15, (4, 2)) for _ in range(5)]
    camera = Compose([OnLayers(), Perspective(0.2), Affine(degrees=20)])
    views = with_poses(camera, [seen(item) for item in corners])
    assert len(views.stages) == 2
    matrices = views.stages[1].matrix((torch.arange(5, dtype=torch.float64)[:, None] + 0.5) / 5)
    square = np.array([[-4 / 3, -1], [4 / 3, -1], [4 / 3, 1], [-4 / 3, 1]])
    for matrix, item in zip(matrices.numpy(), corners, strict=True):
        np.testing.assert_allclose(project(matrix, item), square, atol=1e-6)


def test_only_the_colours_of_the_printer_are_replaced():
    table = nodes(2).T.reshape(3, 2, 2, 2).float()
    camera = Affine(degrees=5)
    for original in ([ColourMap(table, "other")], [Inks()], []):
        change = reprint(Compose([OnLayers([*original, Perspective(0.1)]), camera]), table)
        sheet, second = change.stages
        assert [type(stage) for stage in sheet.stages] == [ColourMap, Perspective] and second is camera
    sheet, second = reprint(Compose([camera]), table).stages
    assert [stage.name for stage in sheet.stages] == ["measured"] and second is camera


@pytest.mark.slow
def test_an_ideal_printer_predicts_what_the_run_has_measured():
    words = ["data.count=3", "data.size=64", "perturbation.size=[16,16]", "evaluate.views=16", "sanity=none"]
    run = compose("patch", words)
    study = build(run)
    study = replace(study, queries=replace(study.queries, clusters=("one", "one", "other")))
    view = study.perturbation.evaluated(study.queries.images, torch.rand(1, 3, 16, 16))
    quads = ((run.perturbation.quad,),) * 3
    origin = Rerun(Path(), study, {}, physical(("a", "b", "c"), quads, (64, 64)))
    judge = make_judge(study)
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)
    box = Box(0, 0, 64, 64)
    pose_of_all = pose(from_corners(box.corners, square), box)

    def photographs(*rows, scene=pose_of_all):
        photos = [PhotoFile(Path(), f"{i}", row) for i, row in enumerate(rows)]
        return [SimpleNamespace(scene=scene, quad=0, photo=photo) for photo in photos]

    rows, held_out = torch.arange(3), bank(study.transforms, 16, seed=run.seed, purpose="evaluate")
    original = score_views(judge, view, rows, held_out._replace(u=held_out.u.float())).cosine.view(3, 16).mean(1)
    # A pose that changes nothing: the views differ in light and file alone.
    fixed = Compose([stage for stage in study.transforms.stages if not isinstance(stage, Affine | Perspective)])
    u = bank(fixed, 64, seed=5, purpose="test").u.float()
    flat = score_views(judge, view, rows, held_out._replace(transforms=fixed, u=u)).cosine.view(3, 64).mean(1)
    for pictures, weights in (((1,), (0, 1, 0)), ((0, 1, 2, 2), (0.25, 0.25, 0.5)), ((0, 1), (0.5, 0.5, 0))):
        result, share_of = predict(origin, judge, view, photographs(*pictures), IDENTITY_FIT), torch.tensor(weights)
        assert result.printer["cosine"].mean == pytest.approx(float(original @ share_of.float()), abs=1e-3)
        assert result.poses["cosine"].mean == pytest.approx(float(flat @ share_of.float()), abs=0.03)
    # Of the second picture no pose is known, so there is no figure of the same pictures.
    assert predict(origin, judge, view, photographs(0) + photographs(1, scene=None), IDENTITY_FIT).poses is None
