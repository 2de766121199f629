"""One patch for the user's scenes: its gradient, and the records of a run."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attacks import EOT, PGD, attack
from attacks.eot.protocols import Objective
from attacks.perturbations.patch.patch import Patch
from attacks.schema.patch import PatchConfig, ScenesConfig
from attacks.study.data import data
from tests.helpers.runs import call
from tests.helpers.scenery import CORNERS, SIDE, box, document, noise, read, table
from transforms import Affine, Compose
from transforms.compose import seen

double = torch.float64


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


class Dot(Objective):
    def __call__(self, features, anchor):
        return (features * anchor).sum(1)


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
    single, two = (
        seen(Patch((8, 8), at).scene(images[rows], texture)) for at, rows in ((places, [0, 1, 2]), (other, order))
    )
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


def test_padding_places_change_nothing(three):
    folder, rows = three
    shelf, places, _ = read(table(folder / "x.csv", *rows))
    assert places.cover.flatten(1).tolist() == [[1, 1], [1, 0], [1, 0]]
    texture, images = torch.rand(1, 3, 8, 8, dtype=double), shelf.read(range(3)).double()
    result = seen(Patch((8, 8), places).scene(images, texture))
    for i, name in enumerate(shelf.names):
        original = read(table(folder / "one.csv", *(row for row in rows if row[0] == name)))[1]
        separate = seen(Patch((8, 8), original).scene(images[i : i + 1], texture))
        torch.testing.assert_close(result[i : i + 1], separate, rtol=0, atol=1e-12)


def test_a_subset_of_pictures_keeps_its_places(three):
    folder, rows = three
    shelf, places, _ = read(table(folder / "x.csv", *rows))
    patch, images = Patch((8, 8), places), shelf.read(range(3)).double()
    texture, views = torch.rand(1, 3, 8, 8, dtype=double), Compose([Affine(degrees=20)])
    u = torch.rand(3, views.dims, dtype=double)
    whole = views(patch.scene(images, texture), u)
    for some in ([2, 0], [1]):
        part = views(patch.take(torch.tensor(some)).scene(images[some], texture), u[some])
        torch.testing.assert_close(part, whole[some], rtol=0, atol=1e-12)


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
    folder, _ = three
    noise(folder / "wide.png", 5, 60, 40)
    places = {"wide.png": {"quads": [[[20, 10], [40, 12], [40, 30], [20, 30]]]}}
    places["a.png"] = {"quads": [[[2, 3], [18, 3], [18, 19], [2, 19]], [[20, 21], [36, 21], [36, 37], [20, 37]]]}
    short = ["attack.steps=2", "attack.views=2", "evaluate.views=8", "evaluate.refine=0", f"data.size={SIDE}"]
    short.append("sanity=none")
    out = ["data.count=null", f"data.path={document(folder / 'x.json', places)}", f"hydra.run.dir={folder / 'run'}"]
    assert call(monkeypatch, "config=patch_universal", "perturbation.size=[8,10]", *short, *out) == 0
    assert "eot" in capsys.readouterr().out
    result = json.loads((folder / "run" / "placement.json").read_text())
    assert result["pictures"] == ["wide", "a"] and result["size"] == [SIDE, SIDE] and result["texture"] == [8, 10]
    assert result["target"] is not None and [len(quads) for quads in result["quads"]] == [1, 2]
    np.testing.assert_allclose(
        result["quads"][0][0], np.array([[10, 10], [30, 12], [30, 30], [10, 30]]) / SIDE, atol=1e-12
    )
    with Image.open(folder / "run" / "patch.png") as patch:
        assert patch.size == (10, 8)
