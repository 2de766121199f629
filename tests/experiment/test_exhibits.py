"""Files that are written by threads: their content and order are those of one after the other, and so are errors."""

import hashlib

import pytest
import torch

from attacks import Linf
from attacks.data.images import save_image
from attacks.experiment.exhibits import Exhibits
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import Unwritten

ROWS = range(6)
FILES = {arm: torch.rand(6, 3, 8, 9, generator=torch.Generator().manual_seed(len(arm))) for arm in ("clean", "eot")}


@pytest.fixture
def exhibits(tmp_path):
    names = tuple(f"{row}.png" for row in ROWS)
    return Exhibits(tmp_path, names, ((8, 9),) * 6, Linf(0.1), torch.device("cpu"), ALONE)


def test_files_are_those_of_one_after_the_other(exhibits, tmp_path):
    digests = exhibits.write(ROWS, FILES, FILES)
    assert [*digests] == [f"pictures/{arm}/{name}" for arm in FILES for name in exhibits.names]
    for arm, images in FILES.items():
        assert torch.equal(exhibits.pictures(arm, ROWS), (images * 255).round() / 255)
        for name, image in zip(exhibits.names, images, strict=True):
            path = tmp_path / "pictures" / arm / name
            save_image(tmp_path / "alone.png", image)
            assert path.read_bytes() == (tmp_path / "alone.png").read_bytes()
            assert digests[f"pictures/{arm}/{name}"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_error_of_a_thread_is_raised_and_leaves_no_part_of_a_file(exhibits, tmp_path):
    (tmp_path / "pictures" / "clean" / "2.png").mkdir(parents=True)
    with pytest.raises(Unwritten, match=r"2\.png cannot be written: is a directory"):
        exhibits.write(ROWS, FILES, FILES)
    assert not [*tmp_path.rglob("*.tmp")]
