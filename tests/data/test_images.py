"""Reading and writing pictures: exact if the format allows it, conversions noted, one-line errors."""

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from attacks.data.images import load_image, save_image, to_bytes

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def tensor(array):
    """(H,W,3) or (H,W) of 0..255 -> what `load_image` must give."""
    array = np.broadcast_to(array[:, :, None], (*array.shape, 3)) if array.ndim == 2 else array
    return torch.tensor(array.copy()).permute(2, 0, 1).float() / 255


def test_a_png_holds_every_level_exactly(tmp_path):
    image = (torch.arange(256 * 3).reshape(3, 16, 16) % 256).float() / 255
    save_image(tmp_path / "a.png", image)
    result, notes = load_image(tmp_path / "a.png")
    assert result.dtype == torch.float32
    assert torch.equal(result, image)
    assert notes == []


@pytest.mark.parametrize("offset", [-0.49, -0.1, 0.1, 0.49])
def test_values_are_rounded_not_truncated(offset):
    whole = torch.arange(1, 255).reshape(1, 2, 127).expand(3, -1, -1)
    assert np.array_equal(to_bytes((whole + offset) / 255), whole.permute(1, 2, 0).numpy())


def test_values_out_of_range_are_clamped():
    assert to_bytes(torch.tensor([-0.3, 1.3, 1.0])[:, None, None]).ravel().tolist() == [0, 255, 255]


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif"])
def test_a_plain_picture_is_read_exactly(tmp_path, name):
    Image.fromarray(RGB).save(tmp_path / name)
    result, notes = load_image(tmp_path / name)
    assert torch.equal(result, tensor(RGB)) and notes == []


def test_a_postscript_program_is_refused_and_not_run(tmp_path, monkeypatch):
    """Pillow would pass it to Ghostscript, whatever the file name."""
    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *source, **more: ran.append(source))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x\.png` cannot be read"):
        load_image(tmp_path / "x.png")
    assert not ran
