"""Methods of reduction: error against the mean over each pixel's area, and time at a reduction by four."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.sampling.warp import warp_by_matrix

from .table import Table
from .timing import Contestants, compare, photograph, there_and_back

VIEWS, SIZE = 16, 224
REDUCTIONS = (1.2, 1.41, 1.7, 2.0, 2.83, 4.0)
#: (image, (N,3,3) from the view's pixels to the image's, side of the view) -> (N,C,side,side).
Way = Callable[[Tensor, Tensor, int], Tensor]
WAYS: dict[str, Way] = {
    "bilinear": lambda image, matrix, side: warp_by_matrix(image, matrix, (side, side)),
    "pyramid": lambda image, matrix, side: warp_by_matrix(image, matrix, (side, side), antialias=True),
    "2 x 2 samples": lambda image, matrix, side: finer(image, matrix, side, 2),
    "3 x 3 samples": lambda image, matrix, side: finer(image, matrix, side, 3),
}


def run(rounds: int = 15) -> list[Table]:
    """Methods of reduction: error against an ideal camera, alias, coverage of the gradient, and time."""
    noise = torch.rand(1, 3, 300, 300, generator=torch.Generator().manual_seed(0))
    pictures = {"a photograph": photograph(300), "white noise": noise}
    tables = [errors(what, image, squeeze) for what, image in pictures.items() for squeeze in (1.0, 2.0)]
    return [*tables, times(rounds)]


def errors(what: str, image: Tensor, squeeze: float) -> Table:
    """RMS error against the mean of 12 x 12 samples a pixel, by factor of reduction."""

    def rms(way: Way, factor: float) -> float:
        side = int(200 / factor)
        matrix = reduction(factor, squeeze, 300, side)
        error = way(image, matrix, side) - finer(image, matrix, side, 12)
        return 1e3 * float(error.square().mean().sqrt())

    rows = {name: tuple(rms(way, factor) for factor in REDUCTIONS) for name, way in WAYS.items()}
    title = f"RMS error x 1000 on {what}, reduced by a factor across and by 1/{squeeze:g} of it down"
    return Table(title, {f"{factor:g}": ".1f" for factor in REDUCTIONS}, rows, "lines")


def times(rounds: int) -> Table:
    """Time, what is left of waves that the small picture cannot hold, and the share of pixels that get a gradient."""
    plate = zone_plate(512)
    quarter = reduction(4, 1, 512, 128, turn=0.0)
    y, x = torch.meshgrid(*[torch.arange(128.0)] * 2, indexing="ij")
    lost = (x**2 + y**2).sqrt() * 4 / (2 * 512) > 0.25
    image = photograph(4 * SIZE)
    matrix = reduction(4, 1, 4 * SIZE, SIZE).expand(VIEWS, 3, 3)
    runs: Contestants = {
        name: there_and_back(image, lambda leaf, way=way: way(leaf, matrix, SIZE))  # type: ignore[misc]
        for name, way in WAYS.items()
    }
    seconds = compare(runs, rounds)
    rows = {}
    for name, way in WAYS.items():
        alias = (way(plate, quarter, 128)[0, 0] - 0.5)[lost].square().mean().sqrt()
        leaf = torch.rand(1, 1, 512, 512).requires_grad_()
        way(leaf, quarter, 128).sum().backward()
        assert leaf.grad is not None
        share = (leaf.grad != 0).float().mean()
        rows[name] = (1e3 * seconds[name], seconds[name] / seconds["bilinear"], float(alias), float(share))
    title = f"A reduction by four: {VIEWS} views of {SIZE}x{SIZE} of one image of {4 * SIZE}, forward and backward"
    columns = {"ms": ".1f", "/ bilinear": ".2f", "alias RMS": ".3f", "coverage": ".2f"}
    return Table(title, columns, rows, "bars")


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
