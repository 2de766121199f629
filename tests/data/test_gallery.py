"""Galleries: tiles of the bundled photographs, and the user's pictures."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data import gallery
from attacks.data.gallery import FLAT, HELD_OUT, PHOTOS, Pictures, evenly, on_shelf, photographs, tiles
from attacks.data.gallery import gather as gather
from attacks.data.images import save_image
from attacks.data.pictures import read_files
from attacks.schema.data import BundledConfig
from tests.helpers.galleries import all_pictures, noise

SIZE = 128


@pytest.fixture(scope="module")
def all_tiles():
    return tiles(SIZE)


def pictures(*seeds, names="abcdef"):
    return Pictures(tuple(names[: len(seeds)]), torch.stack([noise(seed) for seed in seeds]), (f"of {seeds}",))


def spread_of_pixels(tile):
    """The root mean square distance of a channel's pixels from their mean."""
    return float(np.sqrt(tile.numpy().reshape(3, -1).var(axis=1).mean()))


def test_all_fitting_tiles_but_flat_ones_make_the_gallery(all_tiles):
    fit = {
        f"{name}-{row}-{column}": photo[:, row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
        for name, photo in photographs().items()
        for row in range(photo.shape[1] // SIZE)
        for column in range(photo.shape[2] // SIZE)
    }
    assert len(set(all_tiles.names)) == len(all_tiles)  # so no two overlap
    assert all(torch.equal(i, fit[name]) for name, i in zip(all_tiles.names, all_tiles.images, strict=True))
    assert set(all_tiles.names) == {name for name, tile in fit.items() if spread_of_pixels(tile) > FLAT}
    assert len(all_tiles) < len(fit)


def test_a_tile_of_one_colour_is_flat_whichever_the_colour(tmp_path, monkeypatch):
    orange = torch.tensor([1.0, 0.5, 0.0])[:, None, None].expand(3, 20, 20)
    save_image(tmp_path / "orange.png", orange)
    save_image(tmp_path / "noise.png", noise(0))
    monkeypatch.setattr(gallery, "PHOTOS", tmp_path)
    assert tiles(20).names == ("noise-0-0",)


def test_queries_are_cut_from_the_judged_photographs_and_all_photographs_fit_in_three_megabytes():
    assert BundledConfig().photos == list(HELD_OUT)
    assert len(HELD_OUT) >= 10
    assert sum(path.stat().st_size for path in PHOTOS.iterdir()) <= 3_000_000


def test_tiles_of_chosen_photographs(all_tiles):
    selection = tiles(SIZE, HELD_OUT)
    assert {name.rsplit("-", 2)[0] for name in selection.names} == set(HELD_OUT)
    assert set(selection.names) == {name for name in all_tiles.names if name.rsplit("-", 2)[0] in HELD_OUT}


@pytest.mark.parametrize(
    ("size", "chosen", "message"),
    [
        *((5000, chosen, r"`size` must be at most .* got 5000") for chosen in (None, ("coffee",))),
        (SIZE, ["coffee", "tea"], r"`photos` must.*'tea'"),
    ],
)
def test_a_size_that_no_photograph_holds_and_an_unknown_photograph_are_refused(size, chosen, message):
    with pytest.raises(ValueError, match=message) as error:
        tiles(size, chosen)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_spread_is_even_and_without_repeats(count):
    six = pictures(*range(6))
    result = six.spread(count)
    rows = [six.names.index(name) for name in result.names]
    gaps = [b - a for a, b in zip(rows, [*rows[1:], 6], strict=True)]
    assert len(result) == len(result.images) == count
    assert rows[0] == 0
    assert max(gaps) - min(gaps) <= 1
    assert torch.equal(result.images, six.images[rows])
    assert result.notes == six.notes


@pytest.mark.parametrize("count", range(1, 13))
def test_spread_takes_as_many_of_each_cluster_as_their_sizes_allow(count):
    clusters = list("aaaaaabbbbbc")
    rows = evenly(clusters, count)
    assert rows == sorted(set(rows)) and len(rows) == count
    counts = {name: sum(clusters[row] == name for row in rows) for name in "abc"}
    sizes = {name: clusters.count(name) for name in "abc"}
    short = [counts[name] for name in "abc" if counts[name] < sizes[name]]
    assert all(counts[name] <= min(short, default=6) + 1 for name in "abc")  # no cluster gives two more than another
    assert len(set(short)) <= 2


@pytest.mark.parametrize("count", [0, -1, 3])
def test_spread_refuses_counts_out_of_range(count):
    with pytest.raises(ValueError, match=rf"1\.\.2.*{count}"):
        pictures(1, 2).spread(count)


def test_galleries_of_two_shelves_hold_each_picture_in_one_row():
    queries, others = pictures(1, 2).shelf(), pictures(3, 2, 1, 4, names="wxyz").shelf()
    union, rows = on_shelf(queries).joined(others)
    assert union.names == ("a", "b", "w", "z") and rows == [2, 1, 0, 3]
    assert torch.equal(all_pictures(union), torch.stack([noise(seed) for seed in (1, 2, 3, 4)]))
    second = gather(queries, others)
    assert second.names == union.names and second.digests == union.digests
    assert torch.equal(all_pictures(second), all_pictures(union))
    assert [len(shelf) for shelf in second.shelves] == [0, 4] and second.order.tolist() == [2, 1, 0, 3]


def test_other_pictures_of_a_joined_name_get_prefixes_until_it_is_unique():
    first = pictures(1, 2, names=["a", "gallery/a"]).shelf()
    union, _ = on_shelf(first).joined(pictures(3, 2, 4).shelf())
    assert union.names == ("a", "gallery/a", "gallery/gallery/a", "c")
    assert torch.equal(all_pictures(union)[2], noise(3))


def test_a_shelf_of_another_size_keeps_8_bits():
    result = pictures(1, 2).shelf(12).read([0, 1])
    assert result.shape == (2, 3, 12, 12)
    assert torch.equal(result, (result * 255).round() / 255)


def test_a_folder_is_read_by_name_cut_to_the_centre_and_resized_as_pillow_does(tmp_path):
    sizes = {"b.png": (20, 20), "A.PNG": (20, 20), "wide.png": (20, 31), "large.png": (60, 40)}
    for seed, (name, size) in enumerate(sizes.items()):
        save_image(tmp_path / name, noise(seed, *size))
    (tmp_path / "read.me").write_text("not a picture, and not taken for one")
    shelf = read_files(tmp_path, 20)
    assert shelf.names == ("A.PNG", "b.png", "large.png", "wide.png")
    assert torch.equal(shelf.read([0, 1, 3]), torch.stack([noise(1), noise(0), noise(2, 20, 31)[:, :, 5:25]]))
    with Image.open(tmp_path / "large.png") as picture:
        small = picture.resize((20, 30), Image.Resampling.BICUBIC).crop((0, 5, 20, 25))
    expected = torch.tensor(list(small.tobytes())).view(20, 20, 3).permute(2, 0, 1)
    assert ((shelf.read([2])[0] * 255).round() - expected).abs().max() <= 1  # Pillow rounds between its passes
    notes = shelf.remarks()
    assert [re.match(r"\S+:", note)[0] for note in notes] == ["large.png:", "wide.png:"]
    assert "40x60" in notes[0]
