"""The estimator's memory depends on the chunk, not on the number of views."""

import weakref
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from attacks import EOT
from tests.helpers.solving import estimate
from transforms import Affine, Compose, Perspective
from transforms.scene import scene_of

VIEWS = Compose([Affine(degrees=30, scale=(0.7, 1.3)), Perspective(0.2)])


@dataclass(eq=False)
class Handle:
    """A tensor that autograd has saved."""

    tensor: torch.Tensor


def estimate_of(eot, net, images, u):
    return estimate(
        eot,
        torch.zeros_like(images),
        lambda part, rows: scene_of(images[rows] + part),
        lambda pixels, _: net(pixels).square().mean(1),
        u,
    )


def saved_bytes(u):
    """The peak of bytes saved by autograd during an estimate over the views `u`."""
    changes = []

    def pack(tensor):
        handle, size = Handle(tensor), tensor.untyped_storage().nbytes()
        changes.append(size)
        weakref.finalize(handle, changes.append, -size)
        return handle

    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Softplus(), nn.Flatten()).eval()
    images = torch.rand(3, 3, 12, 14)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda handle: handle.tensor):
        estimate_of(EOT(VIEWS, chunk=6), net, images, u)
    return max(accumulate(changes))


def test_saved_tensors_do_not_grow_with_views():
    u = torch.rand(8, VIEWS.dims).repeat(3, 1)  # repeated, because the saved bytes differ between chunks of six views
    assert 1e4 < saved_bytes(u.repeat(11, 1)) <= saved_bytes(u)
