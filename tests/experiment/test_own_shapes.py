"""Pictures at their own shape: no square is cut, and each file comes out as large as it went in."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attacks import load_encoder, verify
from attacks.commands import main
from attacks.data.images import load_image
from attacks.data.pictures import shape_ranges
from attacks.experiment.embeddings import embed_gallery
from attacks.experiment.unit import Unit
from attacks.experiment.units import units_of
from attacks.schema.composition import compose
from attacks.study.assembly import build
from attacks.study.data import data
from tests.helpers.galleries import noise
from tests.helpers.recomputation import read
from tests.helpers.runs import call

CPU = torch.device("cpu")
#: (width, height) of the files, of which two are alike and do not stand together.
SIZES = {"a": (90, 30), "b": (60, 40), "c": (90, 30), "d": (40, 60)}
TINY = [
    "config=smoke",
    "attack.steps=2",
    "evaluate.views=4",
    "evaluate.refine=0",
    "data.size=null",
    "data.count=null",
]


def picture(number, width, height):
    levels = (noise(number, height, width) * 255).byte().permute(1, 2, 0)
    return Image.fromarray(levels.numpy())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of several shapes, the last turned by its EXIF entry, and a table of masks for them."""
    root = tmp_path_factory.mktemp("shapes")
    for number, (name, size) in enumerate(SIZES.items()):
        picture(number, *size).save(root / f"{name}.png")
        mask = Image.new("L", size)
        mask.paste(255, (0, 0, size[0] // 2, size[1]))
        mask.save(root / f"{name}.mask.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture(9, 50, 80).save(root / "turned.jpg", quality=95, exif=exif)
    lines = [f"{name}.png,{name}.mask.png" for name in SIZES]
    (root / "masks.csv").write_text("\n".join(["path,mask", *lines]))
    (root / "plain.csv").write_text("\n".join(["path", *(f"{name}.png" for name in SIZES), "turned.jpg"]))
    return root


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=12), st.integers(1, 5), st.integers(1, 20))
def test_ranges_are_all_rows_in_order_of_one_shape_and_few_pixels(shapes, limit, pixels):
    ranges = [*shape_ranges(shapes, limit, pixels)]
    assert [row for rows in ranges for row in rows] == [*range(len(shapes))]
    for rows in ranges:
        height, width = shapes[rows.start]
        assert {shapes[row] for row in rows} == {(height, width)} and len(rows) <= limit
        assert len(rows) == 1 or len(rows) * height * width <= pixels
    for rows, successor in pairwise(ranges):  # none could be longer
        height, width = shapes[rows.start]
        full = len(rows) == limit or (len(rows) + 1) * height * width > pixels
        assert full or shapes[successor.start] != shapes[rows.start]


def test_units_are_of_one_shape_and_the_gallery_is_embedded_as_it_is(folder):
    run = compose("smoke", [*TINY[1:], "data=folder", f"data.path={folder / 'plain.csv'}"])
    study, encoder = build(run), load_encoder("pocket")
    names, shapes = study.queries.names, study.queries.shapes
    assert [*shapes] == sorted(shapes) and names == ("a.png", "c.png", "b.png", "turned.jpg", "d.png")
    assert units_of(study) == [Unit(0, 2, 0), Unit(2, 3, 1), Unit(3, 4, 2), Unit(4, 5, 3)]
    rows = embed_gallery(study.gallery, encoder, CPU, 64).rows
    singles = torch.cat([encoder(load_image(folder / name)[0][None]) for name in study.gallery.names])
    torch.testing.assert_close(rows, singles, rtol=0, atol=1e-5)


def test_masks_are_of_their_picture_alone(folder):
    run = compose("smoke", [*TINY[1:], "data=folder", f"data.path={folder / 'masks.csv'}", "perturbation.mask=table"])
    study = build(run)
    for unit in units_of(study):
        part = study.only(range(unit.start, unit.stop))
        delta = part.perturbation.noise(part.queries.images, torch.Generator().manual_seed(0))
        left, right = delta.chunk(2, dim=3)
        assert left.abs().mean() > 0 and not right.any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["perturbation.shared=true"], "perturbation.shared=true needs pictures of one shape: set data.size, or"),
        (["perturbation.mask=mask.png"], "perturbation.mask=FILE"),
        (["perturbation=l2", "perturbation.eps=40dB"], "in dB"),
        (["attack=radius"], "attack=radius"),
        (["evaluate.deploy=2", "evaluate.explain=1"], "switch off evaluate.deploy, evaluate.explain"),
    ],
)
def test_what_needs_one_shape_is_refused(folder, words, message):
    with pytest.raises(ValueError, match=f"`data.size=null` keeps .* {message}"):
        build(compose("smoke", [*TINY[1:], "data=folder", f"data.path={folder / 'plain.csv'}", *words]))


@pytest.mark.slow
@pytest.mark.parametrize("table", ["plain", "masks"])
def test_files_are_as_large_as_they_came_within_eps_and_verified(folder, table, tmp_path, monkeypatch, capsys):
    words = [*TINY, "data=folder", f"data.path={folder / table}.csv", "perturbation.eps=4/255"]
    words += ["perturbation.mask=table"] if table == "masks" else ["evaluate.maps=[[brightness, contrast]]"]
    out = tmp_path / "run"
    assert call(monkeypatch, *words, f"hydra.run.dir={out}") == 0
    scores = {name: row["cosine"] for name, row in read(out)["arms"].items()}
    encoder, cosines = load_encoder("pocket"), []
    for path in sorted((out / "pictures" / "eot").iterdir()):
        source = next(folder.glob(f"{path.stem}.[pj]*g"))
        clean, attacked = (load_image(name)[0] for name in (source, path))
        change = ((attacked - clean) * 255).round().abs()
        assert attacked.shape == clean.shape and change.max() == 4
        if table == "masks":
            assert not change[..., clean.shape[2] // 2 :].any()
        cosines.append(F.cosine_similarity(*(encoder(x[None]) for x in (clean, attacked))).item())
    assert len(cosines) == len(read(out)["queries"])
    result = verify(out)
    assert not result.problems and scores["clean"]["mean"] > scores["eot"]["mean"]
    assert main(["judge", str(out), "--on", "pocket", "--out", str(tmp_path)]) == 0
    assert "pocket" in capsys.readouterr().out


@pytest.mark.slow
def test_a_cache_knows_the_pictures_of_their_own_shape(folder, tmp_path):
    node = compose(
        "smoke", ["data=folder", "data.size=null", "data.count=null", f"data.path={folder}", f"data.cache={tmp_path}"]
    ).data
    first, second = data(node)[0], data(node)[0]
    assert first.digests == second.digests and first.shapes == second.shapes and len(first.shapes) == 9
