"""Near duplicates: a re-encoded or resized copy counts as its original, another picture does not."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data.gallery import tiles
from attacks.data.images import to_bytes
from attacks.experiment.build.data import data
from attacks.experiment.build.duplicates import near_duplicates
from attacks.schema import groups


@pytest.fixture(scope="module")
def pictures():
    return tiles(128, ("astronaut", "chelsea", "coffee")).images[::3]


def encoded(image, kind, **options):
    """The picture after a file format."""
    buffer = io.BytesIO()
    Image.fromarray(to_bytes(image)).save(buffer, kind, **options)
    pixels = np.asarray(Image.open(buffer).convert("RGB"))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


def clusters(images):
    names = [str(i) for i in range(len(images))]
    return near_duplicates(names, images, names)


def test_different_tiles_of_one_photograph_stay_apart(pictures):
    assert clusters(pictures) == (tuple(str(i) for i in range(len(pictures))), [])


@pytest.mark.parametrize("quality", [90, 60])
def test_a_copy_joins_its_original(pictures, quality):
    some = pictures[:4]
    copies = torch.stack([encoded(image, "JPEG", quality=quality) for image in some])
    joined, notes = clusters(torch.cat([some, copies]))
    assert joined == ("0", "1", "2", "3") * 2
    assert notes[0] == "4 and 0 are near duplicates: they count as one picture"
    assert len(notes) == 4


def test_joining_is_transitive_and_keeps_given_clusters(pictures):
    some = torch.stack([pictures[0], pictures[1], pictures[0], pictures[1], pictures[2]])
    joined, notes = near_duplicates(list("abcde"), some, ["one", "two", "three", "three", "four"])
    assert joined == ("one", "one", "one", "one", "four")
    assert len(notes) == 2


def test_near_duplicates_in_a_folder_are_one_cluster_with_a_note(pictures, tmp_path):
    for name, image in zip(("a.png", "b.png", "c.jpg"), pictures[[0, 1, 0]], strict=True):
        Image.fromarray(to_bytes(image)).save(tmp_path / name)
    queries, _, _ = data(groups.FolderConfig(path=str(tmp_path), size=128))
    assert queries.clusters == ("a.png", "b.png", "a.png")
    assert "c.jpg and a.png are near duplicates: they count as one picture" in queries.notes


def test_near_duplicates_join_the_clusters_of_a_table(pictures, tmp_path):
    for i, image in enumerate(pictures[[0, 1, 0, 2]]):
        Image.fromarray(to_bytes(image)).save(tmp_path / f"{i}.png")
    (tmp_path / "list.csv").write_text("path,cluster\n0.png,one\n1.png,one\n2.png,two\n3.png,two\n")
    queries, _, _ = data(groups.FolderConfig(path=str(tmp_path / "list.csv"), size=128))
    assert queries.clusters == ("cluster one",) * 4
