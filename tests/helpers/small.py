"""A small encoder, smooth pictures and the sets of the tests of the sanity report."""

import torch
import torch.nn.functional as F
from torch import nn

from attacks import L2, Linf, Universal

SETS = [Linf(0.1), L2(1.0), Universal(Linf(0.1)), Universal(L2(1.0))]
ids = ["linf", "l2", "universal-linf", "universal-l2"]


def small(seed=0, width=8, kernel=5, features=12, size=(20, 22)):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(3, width, kernel, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(features))
        net(torch.zeros(1, 3, *size))
    return net.eval().requires_grad_(False)


def smooth():
    """Two pictures (2,3,20,22)."""
    rough = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    return F.interpolate(rough, (20, 22), mode="bilinear")
