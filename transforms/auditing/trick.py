"""How far the dense-gradient trick of `transforms.auditing.dense_gradient` is off for a step that is a warp."""

from __future__ import annotations

import torch
from torch import Tensor

from transforms.auditing.dense_gradient import dense
from transforms.auditing.minification import Warp


def compare(leaf: Tensor, views: Tensor, warp: Warp, cotangent: Tensor) -> tuple[float, float]:
    """How far the trick is off for a known warp: (cosine of its gradient to the true one for `cotangent`, ratio of
    the gradients' mass sum |g| for a cotangent of ones). `views` (1,C,h,w) is the warp of `leaf` (1,C,H,W), with its
    graph; what the warp does not show is left out."""
    tricked = dense(leaf, warp.points)
    shown = warp.inside[:, None].to(views)
    pairs = []
    for out in (cotangent * shown, shown.expand_as(views)):
        pairs.append([torch.autograd.grad(v, leaf, out, retain_graph=True)[0] for v in (views, tricked)])
    (true, trick), (true_mass, trick_mass) = pairs
    cosine = torch.nn.functional.cosine_similarity(trick.flatten(), true.flatten(), dim=0)
    return float(cosine), float(trick_mass.abs().sum() / true_mass.abs().sum())
