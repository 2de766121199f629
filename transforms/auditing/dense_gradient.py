"""The "dense gradient" trick, kept as a labelled diagnostic: it is not the gradient of what it computes."""

import torch
from torch import Tensor

from transforms.auditing.minification import Warp
from transforms.sampling.read import Border, Value
from transforms.sampling.warp import sample

_TAPS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))


def dense(images: Tensor, points: Tensor, *, border: Border = "replicate", value: Value = 0.0) -> Tensor:
    """Read `images` (N,C,H,W) at pixel `points` (N,h,w,2): bilinear values, and a straight-through gradient of 1 to
    each of the four neighbours whatever its weight is; none to `points`. Borders as in `sample`."""
    true = sample(images, points, border=border, value=value).detach()
    corner = points.detach().floor()
    for tap in _TAPS:
        neighbour = sample(images, corner + corner.new_tensor(tap), kernel="nearest", border=border, value=value)
        true = true + (neighbour - neighbour.detach())
    return true


def deviation(leaf: Tensor, views: Tensor, warp: Warp, cotangent: Tensor) -> tuple[float, float]:
    """The cosine between the dense and the true gradient for `cotangent`, and the ratio of their mass sum |g| for
    ones. `views` (1,C,h,w) is the warp of `leaf` (1,C,H,W), with its graph; pixels outside are left out."""
    dense_views = dense(leaf, warp.points)
    inside = warp.inside[:, None].to(views)
    pairs = []
    for out in (cotangent * inside, inside.expand_as(views)):
        pairs.append([torch.autograd.grad(v, leaf, out, retain_graph=True)[0] for v in (views, dense_views)])
    (true, dense_), (true_mass, dense_mass) = pairs
    cosine = torch.nn.functional.cosine_similarity(dense_.flatten(), true.flatten(), dim=0)
    return float(cosine), float(dense_mass.abs().sum() / true_mass.abs().sum())
