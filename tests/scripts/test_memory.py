"""The estimator's memory depends on the chunk, not on the number of views."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks import EOT
from tests.helpers.solving import estimate
from transforms import Affine, Compose, Perspective, scene_of

ROOT = Path(__file__).parents[2]
VIEWS = Compose([Affine(degrees=30, scale=(0.7, 1.3)), Perspective(0.2)])


def saved_bytes(u):
    """The most bytes that autograd held for a backward pass at once, while the views `u` were estimated."""
    alive, most = 0, 0

    class Held:
        def __init__(self, tensor):
            self.tensor = tensor

    def change(by):
        nonlocal alive, most
        alive += by
        most = max(most, alive)

    def pack(tensor):
        held, size = Held(tensor), tensor.untyped_storage().nbytes()
        change(size)
        weakref.finalize(held, change, -size)
        return held

    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Softplus(), nn.Flatten()).eval()
    images = torch.rand(3, 3, 12, 14)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        estimate(
            EOT(VIEWS, chunk=6),
            torch.zeros_like(images),
            lambda part, rows: scene_of(images[rows] + part),
            lambda pixels, _: net(pixels).square().mean(1),
            u,
        )
    return most


def test_saved_tensors_do_not_grow_with_views():
    u = torch.rand(8, VIEWS.dims)  # repeated, because views differ in what they save
    assert 1e4 < saved_bytes(u.repeat(32, 1)) <= 1.05 * saved_bytes(u)


@pytest.mark.slow
def test_process_memory_does_not_grow_with_views():
    # All 256 views at once would take half as much again.
    program = """if True:
        import resource, sys, torch
        from torch import nn
        from attacks import EOT
        from tests.helpers.solving import estimate
        from transforms import Affine, Compose, scene_of
        torch.set_num_threads(1)
        net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten()).eval()
        images, eot = torch.rand(1, 3, 64, 64), EOT(Compose([Affine(degrees=20)]), chunk=2)
        u = torch.rand(int(sys.argv[1]), 5)
        scene = lambda part, rows: scene_of(images[rows] + part)
        estimate(eot, torch.zeros_like(images), scene, lambda pixels, rows: net(pixels).square().mean(1), u)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    few, many = (
        int(subprocess.run([sys.executable, "-c", program, n], cwd=ROOT, capture_output=True, check=True).stdout)
        for n in ("8", "256")
    )
    assert many <= 1.05 * few
