"""Pictures in memory as files: every form of the same pictures gives the same files, and the same metrics."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from attacks.data import images
from attacks.data.images import as_path, load_image, save_image
from attacks.notebook import robustness

PIXELS = torch.randint(0, 256, (5, 3, 48, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IMAGES = PIXELS.float() / 255


class Mapped(Dataset):
    """A dataset that does not end by IndexError, of pictures or of pairs."""

    def __init__(self, labels=None):
        self.labels = labels

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        return IMAGES[i % 5] if self.labels is None else (IMAGES[i % 5], self.labels[i % 5])


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(IMAGES)


def pil():
    return [Image.fromarray(np.ascontiguousarray(item.permute(1, 2, 0).numpy())) for item in PIXELS]


FORMS = {
    "tensor": lambda: IMAGES,
    "float64": lambda: IMAGES.double().requires_grad_(),
    "bytes": lambda: PIXELS,
    "list": lambda: list(IMAGES),
    "batches": lambda: [IMAGES[:2], IMAGES[2:]],
    "pil": pil,
    "dataset": Mapped,
    "pairs without a word": lambda: Mapped([{"box": i} for i in range(5)]),
    "stream": Streamed,
    "loader": lambda: DataLoader(Mapped(), batch_size=2),
    "loader of rows": lambda: DataLoader(TensorDataset(IMAGES), batch_size=3),
    "generator": lambda: (each for each in IMAGES),
}


def rows(path):
    with path.open(newline="") as file:
        return [(path.parent / row["path"], row.get("identity") or "") for row in csv.DictReader(file)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_pictures_gives_the_same_files(tmp_path, form):
    path = as_path(FORMS[form](), tmp_path)
    assert path == as_path(IMAGES, tmp_path)  # the same folder, which is named by the content
    assert [item.name for item in tmp_path.iterdir()] == [path.parent.name]
    for (file, label), image in zip(rows(path), IMAGES, strict=True):
        assert label == "" and torch.equal(load_image(file)[0], image)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("labels", [["cat", "dog", "cat", "a,b", "dog"], [0, 1, 0, 2, 1]])
def test_labels_are_identities(tmp_path, labels, loaded):
    pairs = Mapped(labels)
    match = [label for _, label in rows(as_path(DataLoader(pairs, batch_size=2) if loaded else pairs, tmp_path))]
    assert match == list(map(str, labels))


def test_a_path_stays_and_paths_are_listed(tmp_path, monkeypatch):
    assert as_path("some/folder", tmp_path) == Path("some/folder") and list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    save_image("b.png", IMAGES[0])
    assert [file for file, _ in rows(as_path(["b.png"], tmp_path / "out"))] == [tmp_path / "b.png"]


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (IMAGES * 2 - 1, r"pictures\[0\]` must lie in \[0, 1\]; got -1 to 1: leave out Normalize"),
        ([IMAGES[0], IMAGES[0] * torch.nan], r"pictures\[1\]` must lie in \[0, 1\]; got nan.*not finite"),
        (PIXELS.long(), r"pictures\[0\]` must be floating .*; got int64"),
        (IMAGES[:, :1], r"got one shaped \(1, 48, 64\)"),
        ([None], "got a NoneType"),
        ({"a": 1}, "got dict"),
        ([], "at least one"),
    ],
)
def test_other_pictures_are_refused_in_one_line_and_nothing_is_left(tmp_path, pictures, message):
    with pytest.raises(ValueError, match=message) as error:
        as_path(pictures, tmp_path)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_too_many_pictures_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_PICTURES", 4)
    with pytest.raises(ValueError, match="at most 4"):
        as_path(iter(IMAGES), tmp_path)


@pytest.mark.slow
def test_a_folder_its_files_and_a_tensor_give_the_same_metrics(tmp_path):
    small = {"attack.views": 2, "evaluate.views": 4, "evaluate.refine": 0, "data.size": 48, "data.count": 2}
    folder = tmp_path / "source"
    folder.mkdir()
    for i, image in enumerate(IMAGES):
        save_image(folder / f"{i:04}.png", image)
    forms = {"folder": folder, "files": sorted(folder.iterdir()), "tensor": IMAGES}
    answers = {}
    for name, pictures in forms.items():
        result = robustness("pocket", pictures, preset="smoke", steps=2, out=tmp_path / name, **small)
        answers[name] = {key: result.metrics[key] for key in ("arms", "queries", "pixels", "primary", "gallery")}
    assert len({json.dumps(item, sort_keys=True) for item in answers.values()}) == 1, answers
