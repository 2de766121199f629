"""The stage `ResizePad`: every size and every position, to the pixel."""

import torch

from transforms import resize
from transforms.camera import ResizePad


def test_resize_pad_places_the_resized_picture_in_the_frame(photo):
    stage, u = ResizePad((0.5, 1.1), "pil_bicubic", 0.25), torch.rand(12, 3)
    views = stage(photo.float().expand(12, -1, -1, -1), u)
    assert views.shape == (12, 3, 88, 132)
    places = set()
    for view, row in zip(views, u.tolist(), strict=True):
        side = min(40 + int(row[0] * 49), 88)
        small = resize(photo.float(), side, "pil_bicubic").clamp(0, 1)[0]
        height, width = small.shape[1:]
        left, top = int(row[1] * (132 - width + 1)), int(row[2] * (88 - height + 1))
        expected = torch.full((3, 88, 132), 0.25)
        expected[:, top : top + height, left : left + width] = small
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)
        places.add((side, left, top))
    assert len(places) == 12
    ends = torch.tensor([[0.0, 0, 0], [1 - 2**-24] * 3])
    assert stage(photo.float().expand(2, -1, -1, -1), ends).shape == (2, 3, 88, 132)
