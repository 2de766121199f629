"""Tables of scenes, whose errors are one line with the position; one patch for all of them: its gradient, and the
records of a run."""

import csv
import json

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from attacks import EOT, PGD, attack
from attacks.data.images import load_image
from attacks.data.pictures import square, to_square
from attacks.data.scenes import BUNDLED_TABLE, placements_in, quad_of, read_scenes, read_scenes_table
from attacks.perturbations.patch.patch import Patch
from attacks.schema.data import ScenesConfig
from attacks.schema.groups import PatchConfig
from attacks.study.data import data
from tests.helpers.runs import call
from tests.helpers.solving import Dot
from transforms import Affine, Compose
from transforms.compose import seen

double = torch.float64
#: Size of the attacked squares.
SIDE = 40
CORNERS = ["x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"]
#: Pillow's operation from a displayed picture to the stored one, by EXIF orientation.
STORED_FORMS = {
    3: Image.Transpose.ROTATE_180,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


def photo(path, pixels, orientation=1):
    """Save (H,W) or (H,W,3) in [0,1], the displayed picture, in a camera's EXIF orientation."""
    image = Image.fromarray((np.asarray(pixels) * 255).round().astype(np.uint8)).convert("RGB")
    exif = image.getexif()
    if orientation != 1:
        image = image.transpose(STORED_FORMS[orientation])
        exif[0x0112] = orientation
    image.save(path, exif=exif)
    return path


def noise(path, seed, width=40, height=40):
    return photo(path, np.random.default_rng(seed).random((height, width, 3)))


def blob(width, height, points, sigma):
    """Soft white dots on black, (H,W), round points in edge coordinates."""
    y, x = np.mgrid[:height, :width] + 0.5
    return sum(np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * sigma**2)) for px, py in points).clip(0, 1)


def table(path, *rows, columns=("path", *CORNERS)):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def box(left, top, right, bottom):
    """The eight numbers of an upright quad."""
    return [left, top, right, top, right, bottom, left, bottom]


def read(path, size=SIDE, texture=(8, 8)):
    """The shelf, the places and the notes of a table."""
    shelf, photos = read_scenes(str(path), size)
    places, notes = placements_in(photos, size, texture)
    return shelf, places, notes


QUAD = box(4, 6, 20, 22)
LINE = ",".join(map(str, QUAD))
HEAD = ",".join(["path", *CORNERS])


@pytest.fixture
def mine(tmp_path):
    for i, name in enumerate(("a.png", "b.png")):
        noise(tmp_path / name, i)
    photo(tmp_path / "small.png", [[1.0] * 8] * 8)
    photo(tmp_path / "dark.png", [[0.2] * 40] * 40)
    photo(tmp_path / "corner.png", [[float(x > 30) for x in range(40)]] * 40)
    return tmp_path


def test_a_table_lists_the_places_of_each_photograph(mine):
    columns = ("path", *CORNERS, "mask", "identity", "cluster", "weight")
    first = ["a.png", *QUAD, "corner.png", "anna", "", ""]
    rows = [first, ["b.png", *[""] * 8, "dark.png", "", "", 2], ["a.png", *QUAD, "", "", "street", 0.5]]
    ((entry, places), second), _ = read_scenes_table(table(mine / "x.csv", *rows, columns=columns))
    assert (entry.path, entry.name, entry.label, entry.cluster) == (mine / "a.png", "a.png", "anna", "street")
    assert (entry.weight, second.entry.weight) == (0.5, 2)
    corners = [QUAD[i : i + 2] for i in range(0, 8, 2)]
    assert [quad_of(place) for place in places] == [corners, corners] and "mask" not in places[1].cells
    assert places[0].file("mask") == mine / "corner.png" and second.placements[0].file("mask") == mine / "dark.png"
    assert second.entry.label is quad_of(second.placements[0]) is None


def test_bundled_photographs_have_valid_places():
    shelf, result, notes = read(BUNDLED_TABLE)
    assert len(shelf) == 4 and not notes
    assert result.cover is not None and result.cover.flatten().tolist().count(0) == 3  # one has two places
    assert ((result.quads >= 0) & (result.quads <= 1)).all()
    assert read_scenes("bundled", 40)[0].digests == shelf.digests


WRONG = {
    "no places": ("path,identity\na.png,anna\n", r"line 2: nothing says where the patch lies"),
    "missing corner": ("path,x1,y1,x2,y2,x3,y3,x4\na.png,1,1,9,1,9,9,1\n", r"line 2: it has x1.* but no y4"),
    "an empty cell": (f"{HEAD}\na.png,4,,20,6,20,22,4,22\n", r"line 2: it has .* but no y1"),
    "not a number": (f"{HEAD}\na.png,{LINE}\nb.png,4,6,2O,6,20,22,4,22\n", r"x\.csv line 3: `x2` must be .*'2O'"),
    "not finite": (f"{HEAD}\na.png,nan{LINE[1:]}\n", r"line 2: `x1` must be a number; got 'nan'"),
    "two identities": (
        f"{HEAD},identity\na.png,{LINE},anna\na.png,{LINE},bert\n",
        r"line 3: .*one `identity` .*got anna and",
    ),
    "two weights": (f"{HEAD},weight\na.png,{LINE},1\na.png,{LINE},2\n", r"line 3: .*one `weight` .*1\.0 and 2"),
    "missing photo": (f"{HEAD}\nnowhere.png,{LINE}\n", r"x\.csv line 2: .*nowhere\.png` does not exist"),
    "folded": (f"{HEAD}\na.png,4,6,20,22,20,6,4,22\n", r"line 2: the quad in `a\.png` folds over"),
    "collinear": (f"{HEAD}\na.png,4,6,12,6,20,6,4,22\n", r"line 2: the quad in `a\.png` .*three corners in a line"),
    "outside": (f"{HEAD}\na.png,4,6,41,6,20,22,4,22\n", r"line 2: the corner \(41, 6\) lies beyond `a\.png`, 40x40"),
    "relative corners": (f"{HEAD}\na.png,0.1,0.1,0.9,0.1,0.9,0.9,0.1,0.9\n", r"line 2: .* pixels .*40x40, no shares"),
    "missing mask": ("path,mask\na.png,nowhere.png\n", r"line 2: `mask`: .*nowhere\.png` does not exist"),
    "a small mask": ("path,mask\na.png,small.png\n", r"line 2: `mask` must be as .*40x40; small\.png has 8x8"),
    "a dark mask": ("path,mask\na.png,dark.png\n", r"line 2: `mask` dark\.png is dark all over"),
    "mask dark in the quad": (f"{HEAD},mask\na.png,{LINE},corner.png\n", r"line 2: `mask` is dark all over the quad"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_table_gives_a_one_line_error(mine, text, message):
    (mine / "x.csv").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        read(mine / "x.csv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "message"), [("a.png", "must be a .csv"), ("none.csv", "is no file")])
def test_other_files_are_refused(mine, name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_scenes(str(mine / name), 40)


@pytest.fixture
def three(tmp_path):
    """Two places in the first photograph, one in the others; no two overlap."""
    for i, name in enumerate("abc"):
        noise(tmp_path / f"{name}.png", i)
    rows = [
        ["a.png", *box(2, 3, 18, 19)],
        ["b.png", 8, 5, 30, 9, 28, 33, 6, 30],
        ["a.png", *box(20, 21, 36, 37)],
        ["c.png", *box(10, 10, 26, 26)],
    ]
    return tmp_path, rows


def gradient(images, places, anchor, encoder=None, views=None):
    """The gradient of the first step in the texture (1,3,8,8); one view of each picture."""
    encoder = encoder or nn.Flatten().eval()
    parts = {"objective": Dot(), "perturbation": Patch((8, 8), places), "optimiser": PGD()}
    eot = EOT(views or Compose(), views=1)
    step = next(attack(images, anchor, encoder=encoder, eot=eot, steps=1, **parts))
    return step.estimate.grad


def test_the_gradient_over_scenes_is_the_mean_of_single_gradients(three):
    folder, rows = three
    bend = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 6), nn.Tanh()).to(double).eval()
    shelf, places, _ = read(table(folder / "x.csv", *rows))
    assert places.cover.flatten(1).tolist() == [[1, 1], [1, 0], [1, 0]]  # two are padded
    images, anchor = shelf.read(range(3)).double(), torch.randn(3, 6, dtype=double)
    joint = gradient(images, places, anchor, bend)
    separate = []
    for i, name in enumerate(shelf.names):
        original = table(folder / "one.csv", *(row for row in rows if row[0] == name))
        separate.append(gradient(images[i : i + 1], read(original)[1], anchor[i : i + 1], bend))
    torch.testing.assert_close(joint, sum(separate) / 3, rtol=1e-9, atol=1e-15)
    assert all(item.abs().max() > 0 for item in separate)
    rotated, other, _ = read(table(folder / "y.csv", *reversed(rows)))
    order = [shelf.names.index(name) for name in rotated.names]
    assert order == [2, 0, 1]
    torch.testing.assert_close(gradient(images[order], other, anchor[order], bend), joint, rtol=1e-9, atol=1e-15)
    texture = torch.rand(1, 3, 8, 8, dtype=double)
    single = seen(Patch((8, 8), places).scene(images, texture))
    two = seen(Patch((8, 8), other).scene(images[order], texture))
    torch.testing.assert_close(two, single[order], rtol=0, atol=1e-12)


def test_every_place_receives_the_texture_and_its_gradients_add_up(three):
    folder, rows = three
    pair = [row for row in rows if row[0] == "a.png"]
    shelf, places, _ = read(table(folder / "x.csv", *pair))
    image, anchor = shelf.read([0]).double(), torch.randn(1, 3 * SIDE * SIDE, dtype=double)
    texture = torch.rand(1, 3, 8, 8, dtype=double)
    result, expected, parts = seen(Patch((8, 8), places).scene(image, texture)), image.clone(), []
    for row in pair:
        original = read(table(folder / "one.csv", row))[1]
        part = seen(Patch((8, 8), original).scene(image, texture))
        expected = torch.where((part - image).abs() > 1e-9, part, expected)
        parts.append(gradient(image, original, anchor))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(image, places, anchor), sum(parts), rtol=1e-9, atol=1e-12)


def test_a_subset_of_pictures_keeps_its_places(three):
    folder, rows = three
    shelf, places, _ = read(table(folder / "x.csv", *rows))
    patch, images = Patch((8, 8), places), shelf.read(range(3)).double()
    texture, views = torch.rand(1, 3, 8, 8, dtype=double), Compose([Affine(degrees=20)])
    u = torch.rand(3, views.dims, dtype=double)
    batch = views(patch.scene(images, texture), u)
    for some in ([2, 0], [1]):
        part = views(patch.take(torch.tensor(some)).scene(images[some], texture), u[some])
        torch.testing.assert_close(part, batch[some], rtol=0, atol=1e-12)


def scenes(path, **more):
    return ScenesConfig(path=str(path), size=SIDE, **more)


PATCH = PatchConfig(size=[8, 8], quad=[[0, 0], [1, 0], [1, 1], [0, 1]], start_from="grey", shape="rectangle")


def test_queries_gallery_and_identities_work_as_for_a_folder(three):
    folder, rows = three
    path = table(
        folder / "x.csv",
        *([*row, "anna" if row[0] == "c.png" else ""] for row in rows),
        columns=("path", *CORNERS, "identity"),
    )
    queries, gallery, truth = data(scenes(path, gallery=str(path), count=2), PATCH)
    assert queries.names == ("a.png", "b.png") and len(queries.placements.quads) == 2
    assert gallery.names == ("a.png", "b.png", "c.png") and truth.tolist() == [0, 1]
    assert gallery.labels == (None, None, "anna")
    queries, gallery, truth = data(scenes(path), PATCH)
    assert [gallery.names[row] for row in truth] == ["a.png", "b.png", "c.png"] and len(gallery) == 3
    assert data(scenes(path))[0].placements is None


def test_photographs_that_cannot_be_read_are_left_out_with_their_places(three):
    folder, rows = three
    (folder / "a.png").write_bytes(b"no")
    path = table(folder / "x.csv", *rows)
    with pytest.raises(ValueError, match=r"x\.csv line 2: .*a\.png` cannot be read"):
        data(scenes(path), PATCH)
    queries, _, _ = data(scenes(path, unreadable="skip"), PATCH)
    assert queries.names == ("b.png", "c.png") and tuple(queries.placements.quads.shape) == (2, 1, 4, 2)


@pytest.mark.nightly
def test_a_run_records_the_placement_of_the_patch(three, monkeypatch, capsys):
    folder, rows = three
    noise(folder / "wide.png", 5, 60, 40)
    path = table(folder / "y.csv", ["wide.png", 20, 10, 40, 12, 40, 30, 20, 30], rows[0], rows[2])
    short = ["attack.steps=2", "attack.views=2", "evaluate.views=8", "evaluate.refine=0", f"data.size={SIDE}"]
    short.append("sanity=none")
    out = ["data.count=null", f"data.path={path}", f"hydra.run.dir={folder / 'run'}"]
    assert call(monkeypatch, "config=patch_universal", "perturbation.size=[8,10]", *short, *out) == 0
    assert "eot" in capsys.readouterr().out
    result = json.loads((folder / "run" / "placement.json").read_text())
    assert result["pictures"] == ["wide", "a"] and result["size"] == [SIDE, SIDE] and result["texture"] == [8, 10]
    assert result["target"] is not None and [len(quads) for quads in result["quads"]] == [1, 2]
    corners = np.array([[10, 10], [30, 12], [30, 30], [10, 30]]) / SIDE
    np.testing.assert_allclose(result["quads"][0][0], corners, atol=1e-12)
    with Image.open(folder / "run" / "patch.png") as patch:
        assert patch.size == (10, 8)


def light(picture, grey=0.02):
    """The centroid of the pixels lighter than the background, in edge coordinates."""
    weight = (picture.mean(0).to(double) - grey).clamp(min=0)
    rows, columns = (torch.arange(n, dtype=double) + 0.5 for n in weight.shape)
    return torch.stack([(weight.sum(0) * columns).sum(), (weight.sum(1) * rows).sum()]) / weight.sum()


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("form", [(901, 1403), (1402, 905), (700, 700)], ids=["portrait", "landscape", "square"])
def test_a_mark_in_the_photograph_lies_at_its_mapped_point(tmp_path, form, orientation):
    width, height = form
    mark = (0.41 * width + 0.3, 0.62 * height - 0.2)
    picture = photo(tmp_path / "a.png", blob(width, height, [mark], 14), orientation)
    x, y = mark
    _, places, _ = read(table(tmp_path / "x.csv", ["a.png", x, y, x + 99, y, x + 99, y + 99, x, y + 99]), 224)
    result = light(square(load_image(picture)[0], 224))
    assert (places.quads[0, 0, 0] * 224 - result).abs().max() < 0.1


@pytest.mark.parametrize("size", [(1403, 901), (900, 1400), (300, 300)])
def test_the_map_of_points_matches_the_square_to_1e_6_pixels(size):
    height, width = size
    short = min(size)
    points = torch.rand(50, 2, dtype=double) * torch.tensor([width, height], dtype=double)
    # The longer side and the offset of the crop are whole numbers of pixels.
    long = [int(224 * side / short) for side in (width, height)]
    expected = [points[:, i] * long[i] / side - (long[i] - 224) // 2 for i, side in enumerate((width, height))]
    torch.testing.assert_close(to_square(points, size, 224) * 224, torch.stack(expected, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(to_square(points, (short, short), 224) * short, points, rtol=0, atol=1e-6)


def test_the_picture_is_the_central_square_with_quads_beyond_its_edge(tmp_path):
    picture = noise(tmp_path / "a.png", 0, 60, 40)
    shelf, places, notes = read(table(tmp_path / "x.csv", ["a.png", *box(5, 10, 25, 30)]))
    assert torch.equal(shelf.read([0])[0], square(load_image(picture)[0], SIDE))
    expected = torch.tensor([[-5, 10], [15, 10], [15, 30], [-5, 30]], dtype=double) / 40
    torch.testing.assert_close(places.quads[0, 0], expected)
    assert "25% of the quad is outside the central square of `a.png`" in notes[0]
    assert not read(table(tmp_path / "x.csv", ["a.png", *box(10, 0, 50, 40)]))[2]
    for quad in (box(0, 0, 9, 9), [0, 0, 9.9, 0, 9.9, 40, 0, 40]):
        with pytest.raises(ValueError, match=r"line 2: the quad lies outside the central square of `a\.png`"):
            read(table(tmp_path / "x.csv", ["a.png", *quad]))


def test_a_mirrored_quad_is_noted(tmp_path):
    noise(tmp_path / "a.png", 0)
    left, right = [4, 6, 20, 6, 20, 22, 4, 22], [20, 6, 4, 6, 4, 22, 20, 22]
    assert not read(table(tmp_path / "x.csv", ["a.png", *left]))[2]
    assert "mirrored" in read(table(tmp_path / "x.csv", ["a.png", *right]))[2][0]


def test_a_mask_on_whole_texels_covers_the_mean_of_its_pixels(tmp_path):
    noise(tmp_path / "a.png", 0)
    mask = np.random.default_rng(1).integers(0, 2, (40, 40)).astype(float)
    photo(tmp_path / "mask.png", mask)
    columns = ("path", *CORNERS, "mask")
    upright, rotated = box(4, 6, 28, 30), [28, 6, 28, 30, 4, 30, 4, 6]
    path = table(tmp_path / "x.csv", *(["a.png", *quad, "mask.png"] for quad in (upright, rotated)), columns=columns)
    _, places, _ = read(path, texture=(8, 8))
    region = torch.tensor(mask[6:30, 4:28])[None, None]
    torch.testing.assert_close(places.cover[0, 0], F.avg_pool2d(region, 3)[0, 0].float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(places.cover[0, 1], F.avg_pool2d(region, 3)[0, 0].rot90(1).float(), rtol=0, atol=1e-5)


def test_a_mask_through_perspective_is_the_mean_over_each_texel(tmp_path):
    noise(tmp_path / "a.png", 0, 200, 160)
    y, x = np.mgrid[:160, :200] + 0.5
    photo(tmp_path / "mask.png", ((x - 90) ** 2 + (y - 85) ** 2 < 45**2).astype(float))
    quad = [40, 30, 160, 20, 150, 140, 50, 120]
    row = ["a.png", *quad, "mask.png"]
    _, places, _ = read(table(tmp_path / "x.csv", row, columns=("path", *CORNERS, "mask")), 160, (12, 10))
    corners = np.float32([(0, 0), (10, 0), (10, 12), (0, 12)])
    matrix = cv2.getPerspectiveTransform(corners, np.float32(quad).reshape(4, 2))
    fine = 40
    v, u = (np.mgrid[: 12 * fine, : 10 * fine] + 0.5) / fine
    px, py, w = np.einsum("ij,jhw->ihw", matrix, np.stack([u, v, np.ones_like(u)]))
    inside = (px / w - 90) ** 2 + (py / w - 85) ** 2 < 45**2
    expected = inside.reshape(12, fine, 10, fine).mean((1, 3))
    assert 0.1 < expected.mean() < 0.9
    # The edge of the mask consists of whole pixels; a texel is ten pixels wide.
    assert np.abs(places.cover[0, 0].numpy() - expected).max() < 0.04
    assert abs(float(places.cover.mean()) - expected.mean()) < 0.002


def test_a_mask_without_a_quad_places_the_texture_on_its_light_part(tmp_path):
    noise(tmp_path / "a.png", 0)
    mask = np.zeros((40, 40))
    mask[8:24, 12:28] = 1
    mask[8:16, 12:20] = 0
    photo(tmp_path / "mask.png", mask)
    path = table(tmp_path / "x.csv", ["a.png", "mask.png"], columns=("path", "mask"))
    shelf, places, _ = read(path, texture=(16, 16))
    assert (places.quads[0, 0] * 40).tolist() == [[12, 8], [28, 8], [28, 24], [12, 24]]
    texture, image = torch.rand(1, 3, 16, 16, dtype=double), shelf.read([0]).double()
    light_part = torch.from_numpy(mask) > 0
    expected = torch.where(light_part, F.pad(texture, (12, 12, 8, 16)), image)
    result = seen(Patch((16, 16), places).scene(image, texture))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
