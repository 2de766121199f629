"""Near duplicates: a copy that was saved again counts as its original wherever it lies, another picture does not."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data.gallery import on_shelf, tiles
from attacks.data.images import to_bytes
from attacks.data.pictures import make_shelf
from attacks.schema.data import BundledConfig, FolderConfig, ScenesConfig
from attacks.schema.task import RetrievalConfig
from attacks.schema.validate import Run
from attacks.study import data as duplicates
from attacks.study.data import data
from attacks.study.task import check_gallery


@pytest.fixture(scope="module")
def pictures():
    return tiles(128, ("astronaut", "chelsea", "coffee")).images[::3]


def save_copy(image, file, side=128, **options):
    """The picture as a file, perhaps of another format and size."""
    Image.fromarray(to_bytes(image)).resize((side, side), Image.LANCZOS).save(file, **options)


def gallery(images, labels=None, clusters=()):
    names = [str(i) for i in range(len(images))]
    shelf = replace(make_shelf(names, lambda i: images[i]), clusters=tuple(clusters))
    return duplicates.join_duplicates(on_shelf(replace(shelf, labels=tuple(labels or shelf.labels))))


def noisy(images, seed=0):
    """Other pixels of the same pictures."""
    change = torch.randint(-2, 3, images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + change / 255).clamp(0, 1).mul(255).round() / 255


def test_different_tiles_of_one_photograph_are_no_duplicates(pictures):
    result = gallery(pictures)
    assert result.originals == tuple(range(len(pictures))) and result.label_numbers is None
    assert not result.duplicates


def test_joining_is_transitive_and_keeps_given_clusters(pictures):
    source_images = torch.stack([pictures[0], pictures[1], pictures[2]])
    result = gallery(
        torch.cat([source_images, noisy(source_images[:2])]), clusters=["one", "two", "four", "three", "three"]
    )
    assert result.clusters == tuple(f"cluster {name}" for name in ("one", "one", "four", "one", "one"))
    assert result.originals == (0, 1, 2, 0, 1) and result.label_numbers.tolist() == [0, 1, 2, 0, 1]
    assert [pair[:2] for pair in result.duplicates] == [("3", "0"), ("4", "1")]


@pytest.mark.parametrize("seed", range(12))
def test_labels_or_else_looks_say_which_pictures_show_one_thing(pictures, seed):
    """Against connected components, over random copies and labels: no two labels ever meet."""
    draw = np.random.default_rng(seed)
    looks, labels = draw.integers(0, 4, 12), draw.choice(["x", "y", None, None], 12).tolist()
    images = torch.stack([noisy(pictures[look], i) for i, look in enumerate(looks)])
    result = gallery(images, labels)
    numbers = torch.arange(12) if result.label_numbers is None else result.label_numbers
    for i in range(12):
        gallery_of_run = {labels[j] for j in range(12) if looks[j] == looks[i]} - {None}
        for j in range(i):
            if None not in (labels[i], labels[j]):
                assert (numbers[i] == numbers[j]) == (labels[i] == labels[j])
            elif looks[i] == looks[j] and len(gallery_of_run) < 2:
                assert numbers[i] == numbers[j] and result.clusters[i] == result.clusters[j]
            elif looks[i] != looks[j] and not gallery_of_run:
                assert numbers[i] != numbers[j]


COPIES = {
    "bytes": (".png", {}),
    "jpeg": (".jpg", {"quality": 95}),
    "small": (".jpg", {"quality": 75, "side": 64}),
    "webp": (".webp", {"quality": 80}),
    "large": (".bmp", {"side": 300}),
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("folder_key", ["path", "gallery"])
def test_a_copy_of_a_query_is_no_impostor(pictures, tmp_path, kind, folder_key):
    """Between the queries and their gallery, within each, and with identities that say otherwise."""
    ending, options = COPIES[kind]
    folders = {name: tmp_path / name for name in ("path", "gallery")}
    for folder in folders.values():
        folder.mkdir()
    for i, image in enumerate(pictures[:5]):
        save_copy(image, folders["path"] / f"{i}.png")
        save_copy(image, folders[folder_key] / f"copy {i}{ending}", **options)
    save_copy(pictures[5], folders["gallery"] / "other.png")
    node = FolderConfig(path=str(folders["path"]), gallery=str(folders["gallery"]), size=128)
    queries, gallery_of_run, truth = data(node)
    numbers = dict(zip(gallery_of_run.names, gallery_of_run.originals, strict=True))
    copies = {name: name.split()[1][0] for name in gallery_of_run.names if name.startswith("copy")}
    assert len(copies) == 5 or (kind, folder_key) == ("bytes", "gallery")
    assert all(numbers[name] == numbers[f"{i}.png"] for name, i in copies.items())
    assert len(set(gallery_of_run.originals)) == 6 and set(map(len, (queries.clusters, truth))) == {len(queries)}
    assert len(set(queries.clusters)) == 5
    assert (gallery_of_run.label_numbers is None) == (not copies) == (not gallery_of_run.duplicates)
    assert ("near duplicates" in " ".join(queries.notes)) == bool(copies)
    if not copies:
        return
    lines = [f"{folder / file.name},{file.name}" for folder in folders.values() for file in folder.iterdir()]
    (tmp_path / "list.csv").write_text("\n".join(["path,identity", *lines]))
    if kind == "bytes":  # equal pixels cannot be of two
        with pytest.raises(ValueError, match="two identities"):
            data(replace(node, path=str(tmp_path / "list.csv"), gallery=None))
        return
    _, gallery_of_run, _ = data(replace(node, path=str(tmp_path / "list.csv"), gallery=None))
    assert gallery_of_run.label_numbers is None and {pair.counts for pair in gallery_of_run.duplicates} == {"apart"}


def test_hashes_in_a_cache_change_nothing_and_save_the_reading(pictures, tmp_path, monkeypatch):
    full_shelf = on_shelf(make_shelf("abcdef", lambda i: noisy(pictures)[i // 2] if i % 2 else pictures[i // 2]))
    plain, first = duplicates.join_duplicates(full_shelf), duplicates.join_duplicates(full_shelf, str(tmp_path))
    monkeypatch.setattr(duplicates, "Phash", None)
    assert plain == first == duplicates.join_duplicates(full_shelf, str(tmp_path)) and plain.duplicates


def listing(folder, kind, count):
    if kind == "folder":
        return folder
    lines = [f"p/{i}.png" for i in range(count)]
    (folder.parent / f"list{kind}").write_text("\n".join([*["path"][: kind == ".csv"], *lines]))
    return folder.parent / f"list{kind}"


@pytest.mark.parametrize("kind", ["folder", ".csv", ".txt"])
@pytest.mark.parametrize("count", [1, None])
def test_the_default_gallery_is_all_of_the_path_and_nothing_of_ours(pictures, tmp_path, kind, count):
    (tmp_path / "p").mkdir()
    for i, image in enumerate(pictures[:7]):
        save_copy(image, tmp_path / "p" / f"{i}.png")
    path = str(listing(tmp_path / "p", kind, 7))
    queries, gallery_of_run, truth = data(FolderConfig(path=path, size=64, count=count))
    assert len(queries) == (count or 7) and sorted(gallery_of_run.names) == [f"{i}.png" for i in range(7)]
    assert gallery_of_run.source == "all of data.path" and [gallery_of_run.names[row] for row in truth] == list(
        queries.names
    )


def test_the_bundled_gallery_is_the_tiles(pictures, tmp_path):
    save_copy(pictures[0], tmp_path / "0.png")
    _, ours, _ = data(FolderConfig(path=str(tmp_path), gallery="bundled", size=64))
    assert ours.source == "the bundled tiles" and len(ours) > 200


def test_bundled_pictures_keep_the_bundled_tiles():
    for node in (BundledConfig(size=128), ScenesConfig(path="bundled", size=64, count=1)):
        queries, gallery_of_run, truth = data(node)
        assert gallery_of_run.source == "the bundled tiles" and len(gallery_of_run) >= 215
        equals = (gallery_of_run.cluster_numbers == gallery_of_run.cluster_numbers[truth[0]]).nonzero()[:, 0].tolist()
        photographs = {
            re.split("[-.]", name)[0] for name in (queries.names[0], *(gallery_of_run.names[row] for row in equals))
        }
        assert len(equals) > 1 and len(photographs) == 1


@pytest.mark.parametrize("copies", [1, 3])
def test_a_gallery_of_one_thing_is_refused_with_the_fix(pictures, tmp_path, copies):
    for i in range(copies):
        save_copy(pictures[0], tmp_path / f"{i}.jpg", quality=95 - i)
    _, gallery_of_run, _ = data(FolderConfig(path=str(tmp_path), size=64))
    with pytest.raises(ValueError, match=r"`data.gallery` must show two things .*data.gallery=bundled"):
        check_gallery(Run(task=RetrievalConfig()), gallery_of_run)
