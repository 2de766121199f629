"""Files that are written by threads: their content and order are those of one after the other, and so are errors."""

import hashlib

import pytest
import torch

from attacks import Linf
from attacks.data.images import load_image, save_image
from attacks.experiment.exhibits import Exhibits
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import Unwritten

ROWS = range(6)
FILES = {arm: torch.rand(6, 3, 8, 9, generator=torch.Generator().manual_seed(len(arm))) for arm in ("clean", "eot")}


@pytest.fixture
def exhibits(tmp_path):
    names = tuple(f"{row}.png" for row in ROWS)
    return Exhibits(tmp_path, names, FILES["clean"], Linf(0.1), torch.device("cpu"), ALONE)


def test_files_are_those_of_one_after_the_other(exhibits, tmp_path):
    with exhibits.writing(ROWS, FILES, FILES) as writer:
        pictures = {arm: writer.pictures(arm, ROWS) for arm in reversed(FILES)}
        digests = writer.digests()
    assert [*digests] == [f"pictures/{arm}/{name}" for arm in FILES for name in exhibits.names]
    for arm, images in FILES.items():
        assert torch.equal(pictures[arm], exhibits.pictures(arm, ROWS))
        for name, image in zip(exhibits.names, images, strict=True):
            path = tmp_path / "pictures" / arm / name
            save_image(tmp_path / "alone.png", image)
            assert path.read_bytes() == (tmp_path / "alone.png").read_bytes()
            assert digests[f"pictures/{arm}/{name}"] == hashlib.sha256(path.read_bytes()).hexdigest()
            assert torch.equal(load_image(path)[0], (image * 255).round() / 255)


def test_an_error_of_a_thread_is_raised_by_the_write_and_other_files_exist(exhibits, tmp_path):
    (tmp_path / "pictures" / "clean" / "2.png").mkdir(parents=True)
    with pytest.raises(Unwritten, match=r"2\.png cannot be written: it is a folder"):  # noqa: SIM117
        with exhibits.writing(ROWS, FILES, FILES) as writer:
            writer.pictures("eot", ROWS)
            writer.pictures("clean", ROWS)
    assert len([*tmp_path.rglob("*.png")]) == 12
    assert not [*tmp_path.rglob("*.tmp")]


@pytest.mark.parametrize(("error", "complete"), [(FloatingPointError, True), (KeyboardInterrupt, False)])
def test_an_error_lets_the_files_be_written_and_a_signal_does_not(exhibits, tmp_path, monkeypatch, error, complete):
    monkeypatch.setattr("attacks.experiment.exhibits.THREADS", 1)
    with pytest.raises(error), exhibits.writing(ROWS, FILES, FILES):
        raise error
    assert (len([*tmp_path.rglob("*.png")]) == 12) == complete
    assert not [*tmp_path.rglob("*.tmp")]
