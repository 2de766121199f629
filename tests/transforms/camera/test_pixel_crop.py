"""The stage `PixelCrop`: every place, as slices."""

import pytest
import torch

from transforms.camera import PixelCrop


def test_each_window_is_a_slice_at_a_place_of_its_own(photo):
    stage, u = PixelCrop(3), torch.cartesian_prod(torch.arange(4), torch.arange(4)) / 4
    views = stage(photo.expand(16, -1, -1, -1), u)
    assert torch.equal(stage.values(u), (4 * u).floor())
    for view, (left, top) in zip(views, stage.values(u).int().tolist(), strict=True):
        assert torch.equal(view, photo[0, :, top : top + 77, left : left + 117])
    assert torch.equal(PixelCrop()(photo, torch.rand(1, 2)), photo)


def test_a_picture_must_be_larger_than_the_margin(photo):
    with pytest.raises(ValueError, match="`margin` must be less than each side of the picture, 120x80; got 80"):
        PixelCrop(80)(photo, torch.rand(1, 2))
