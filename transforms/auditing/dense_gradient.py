"""The "dense gradient" trick, kept as a labelled diagnostic: it is not the gradient of what it computes.

A bilinear read gives no gradient to a tap of weight zero. The trick of the web post that this answers
(stackoverflow: "Can you affine warp a tensor while preserving gradient flow?") computes the read, but lets every one
of the four taps pass the whole gradient. More pixels receive something; what they receive points elsewhere.
For a gradient that is dense *and* right, antialias, or take the expectation over views.
"""

from __future__ import annotations

from torch import Tensor

from transforms.sampling.read import Border, Value
from transforms.sampling.warp import sample

_TAPS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))


def dense(images: Tensor, points: Tensor, *, border: Border = "replicate", value: Value = 0.0) -> Tensor:
    """Read `images` (N,C,H,W) at pixel `points` (N,h,w,2): bilinear values, and a straight-through gradient of 1 to
    each of the four neighbours whatever its weight is; none to `points`.

    The gradient's mass is four times the true one (more where a border repeats a pixel). `audit(...,
    straight_through=True)` prints how far it is off for a pipeline. Borders as in `transforms.sampling.warp.sample`.
    """
    true = sample(images, points, border=border, value=value).detach()
    corner = points.detach().floor()
    for tap in _TAPS:
        whole = sample(images, corner + corner.new_tensor(tap), kernel="nearest", border=border, value=value)
        true = true + (whole - whole.detach())
    return true
