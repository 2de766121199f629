"""Images read at points, as the stages read them."""

import torch

from transforms.sampling.read import Resampling
from transforms.sampling.warp import warp


def sample(images, points, visible=None, **options):
    """`images` (B,C,H,W) read at `points` (N,h,w,2) of the pixel frame, and the border value where not `visible`."""
    places = (2 * points + 1).to(torch.promote_types(images.dtype, points.dtype))
    w = torch.ones_like(places[..., 0]) if visible is None else visible.to(places)
    return warp(images, lambda *_: (places.clone(), w), points.shape[1:3], Resampling(**options))
