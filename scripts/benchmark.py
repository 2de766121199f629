"""How long things take, as ratios within one run.

    python scripts/benchmark.py transforms     # the fused geometry against grid_sample, kornia and torchvision
    python scripts/benchmark.py antialias      # ways to shrink: error against an ideal camera, and time

Contestants take turns, round by round, and medians are compared: a noisy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable

import kornia.geometry.transform as kornia
import skimage.data
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as torchvision
from torch import Tensor

from transforms import Affine, Compose, Perspective, Sobol
from transforms.sampling import warp_by_matrix

#: Turn, zoom, shift, look at an angle: four stages, thirteen of their eighteen coordinates in use.
TURN, ZOOM, SHIFT, TILT = Affine(degrees=20), Affine(scale=(0.9, 1.3)), Affine(translate=0.1), Perspective(0.1)
STAGES = (TURN, ZOOM, SHIFT, TILT)
VIEWS, SIZE = 16, 224

Contestants = dict[str, Callable[[], object]]


def compare(contestants: Contestants, rounds: int) -> dict[str, float]:
    """The median seconds of each, over rounds in which all take turns; the first round is not counted. Who goes first
    changes from round to round: a contestant inherits the memory that the one before it has freed."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for i in range(rounds + 1):
        for name in random.Random(i).sample(names, len(names)):
            began = time.perf_counter()
            contestants[name]()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def photograph(size: int) -> Tensor:
    """A square photograph, (1,3,size,size) in [0,1]."""
    image = torch.tensor(skimage.data.astronaut(), dtype=torch.float32).permute(2, 0, 1)[None] / 255
    return F.interpolate(image, (size, size), mode="bilinear", antialias=True)


def there_and_back(image: Tensor, views: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """The forward and the backward pass, down to the gradient of the one image."""

    def run() -> None:
        leaf = image.clone().requires_grad_()
        found = views(leaf)
        found.backward(torch.ones_like(found))

    return run


def transforms(rounds: int) -> None:
    """Four geometric stages: one fused resample against one bare `grid_sample`, and against four resamples each."""
    image, fused = photograph(SIZE), Compose(STAGES)
    u = Sobol()(VIEWS, fused.dims, seed=0)
    parts = [stage.values(part) for stage, part in zip(STAGES, u.split([s.dims for s in STAGES], -1), strict=True)]
    angle, zoom, shift = parts[0][:, 0], parts[1][:, 1], parts[2][:, 3:] * SIZE
    corners = torch.tensor([[0.0, 0.0], [1, 0], [1, 1], [0, 1]]) * SIZE
    ends = corners + parts[3].unflatten(-1, (4, 2)) * SIZE / 2
    generator = torch.Generator().manual_seed(0)
    jitter = 0.1 * torch.randn(VIEWS, 2, 3, generator=generator)
    grid = F.affine_grid(torch.eye(2, 3) + jitter, [VIEWS, 3, SIZE, SIZE], align_corners=False)

    def by_kornia(leaf: Tensor) -> Tensor:
        views = leaf.expand(VIEWS, -1, -1, -1)
        views = kornia.rotate(views, -angle)
        views = kornia.scale(views, zoom[:, None])
        views = kornia.translate(views, shift)
        matrix = kornia.get_perspective_transform(corners.expand(VIEWS, -1, -1) - 0.5, ends - 0.5)
        return kornia.warp_perspective(views, matrix, (SIZE, SIZE), align_corners=False)

    def by_torchvision(leaf: Tensor) -> Tensor:
        bilinear, views = torchvision.InterpolationMode.BILINEAR, []
        for i in range(VIEWS):  # one set of parameters a call
            view = torchvision.rotate(leaf, -float(angle[i]), bilinear)
            view = torchvision.affine(view, 0.0, [0, 0], float(zoom[i]), [0.0], bilinear)
            view = torchvision.affine(view, 0.0, shift[i].tolist(), 1.0, [0.0], bilinear)
            views.append(torchvision.perspective(view, corners.tolist(), ends[i].tolist(), bilinear))
        return torch.cat(views)

    runs = {
        "one bare grid_sample": lambda leaf: F.grid_sample(leaf.expand(VIEWS, -1, -1, -1), grid, align_corners=False),
        "ours: four stages, fused": lambda leaf: fused(leaf, u),
        "ours, antialias=False": lambda leaf: Compose(STAGES, antialias=False)(leaf, u),
        "kornia: the same four": by_kornia,
        "torchvision: the same four": by_torchvision,
    }
    seconds = compare({name: there_and_back(image, views) for name, views in runs.items()}, rounds)
    print(f"{VIEWS} views of {SIZE}x{SIZE}, forward and backward, {torch.get_num_threads()} threads, {rounds} rounds")
    print(f"{'':28} {'ms':>8} {'/ grid_sample':>14} {'/ ours':>8}")
    bare, ours = seconds["one bare grid_sample"], seconds["ours: four stages, fused"]
    for name, s in seconds.items():
        print(f"{name:28} {1e3 * s:8.1f} {s / bare:14.2f} {s / ours:8.2f}")


def antialias(rounds: int) -> None:
    """Each way to shrink: its error against the mean over each pixel's area, and its time at a reduction by four."""
    ways: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
        "bilinear": lambda image, matrix, side: warp_by_matrix(image, matrix, (side, side)),
        "pyramid": lambda image, matrix, side: warp_by_matrix(image, matrix, (side, side), antialias=True),
        "2 x 2 samples": lambda image, matrix, side: finer(image, matrix, side, 2),
        "3 x 3 samples": lambda image, matrix, side: finer(image, matrix, side, 3),
    }
    reductions = (1.2, 1.41, 1.7, 2.0, 2.83, 4.0)
    noise = torch.rand(1, 3, 300, 300, generator=torch.Generator().manual_seed(0))
    for what, image in (("a photograph", photograph(300)), ("white noise", noise)):
        for squeeze in (1.0, 2.0):
            print(f"\nRMS error x 1000 on {what}, reduced by a factor across and by 1/{squeeze:g} of it down")
            print(f"{'':14}" + "".join(f"{factor:8g}" for factor in reductions))
            for name, way in ways.items():
                errors = []
                for factor in reductions:
                    side = int(200 / factor)
                    matrix = reduction(factor, squeeze, 300, side)
                    goal = finer(image, matrix, side, 12)
                    errors.append((way(image, matrix, side) - goal).square().mean().sqrt())
                print(f"{name:14}" + "".join(f"{1e3 * float(error):8.1f}" for error in errors))
    plate = zone_plate(512)
    quarter = reduction(4, 1, 512, 128, turn=0.0)
    y, x = torch.meshgrid(*[torch.arange(128.0)] * 2, indexing="ij")
    gone = (x**2 + y**2).sqrt() * 4 / (2 * 512) > 0.25
    image = photograph(4 * SIZE)
    matrix = reduction(4, 1, 4 * SIZE, SIZE).expand(VIEWS, 3, 3)
    runs: Contestants = {
        name: there_and_back(image, lambda leaf, way=way: way(leaf, matrix, SIZE))  # type: ignore[misc]
        for name, way in ways.items()
    }
    seconds = compare(runs, rounds)
    print(f"\nA reduction by four: {VIEWS} views of {SIZE}x{SIZE} of one image of {4 * SIZE}, forward and backward")
    print(f"{'':14} {'alias RMS':>10} {'coverage':>10} {'ms':>8} {'/ bilinear':>11}")
    for name, way in ways.items():
        alias = (way(plate, quarter, 128)[0, 0] - 0.5)[gone].square().mean().sqrt()
        leaf = torch.rand(1, 1, 512, 512).requires_grad_()
        way(leaf, quarter, 128).sum().backward()
        assert leaf.grad is not None
        share = (leaf.grad != 0).float().mean()
        s, plain = seconds[name], seconds["bilinear"]
        print(f"{name:14} {alias:10.3f} {share:10.2f} {1e3 * s:8.1f} {s / plain:11.2f}")


def reduction(factor: float, squeeze: float, size: int, side: int, turn: float = 0.3) -> Tensor:
    """(1,3,3) from the view's pixels to the image's, about the centres; `factor / squeeze` downwards."""
    c, s = math.cos(turn), math.sin(turn)
    linear = torch.tensor([[c, -s], [s, c]]) @ torch.tensor([factor, factor / squeeze]).diag()
    matrix = torch.eye(3)
    matrix[:2, :2] = linear
    matrix[:2, 2] = (size - 1) / 2 - linear @ torch.full((2,), (side - 1) / 2)
    return matrix[None]


def finer(image: Tensor, matrix: Tensor, side: int, times: int) -> Tensor:
    """The mean of times x times bilinear samples of each pixel."""
    split = torch.tensor([[1 / times, 0, (1 / times - 1) / 2], [0, 1 / times, (1 / times - 1) / 2], [0, 0, 1]])
    return F.avg_pool2d(warp_by_matrix(image, matrix @ split, (side * times, side * times)), times)


def zone_plate(n: int) -> Tensor:
    """(1,1,n,n): from no cycle at a corner to half a cycle per pixel along the far edges."""
    y, x = torch.meshgrid(*[torch.arange(float(n))] * 2, indexing="ij")
    return (0.5 + 0.5 * torch.cos(math.pi * (x**2 + y**2) / (2 * n)))[None, None]


BENCHMARKS = {"transforms": transforms, "antialias": antialias}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None, help="of torch; all cores by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    BENCHMARKS[arguments.benchmark](arguments.rounds)


if __name__ == "__main__":
    main()
