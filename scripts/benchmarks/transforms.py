"""The fused geometry against one bare `grid_sample`, kornia and torchvision."""

import kornia.geometry.transform as kornia
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as torchvision
from torch import Tensor

from transforms import Affine, Compose, Perspective, Sobol

from .table import BenchmarkTable
from .timing import astronaut, median_seconds, there_and_back

#: Turn, zoom, shift, look at an angle: four stages, thirteen of their eighteen coordinates in use.
TURN, ZOOM, SHIFT, TILT = Affine(degrees=20), Affine(scale=(0.9, 1.3)), Affine(translate=0.1), Perspective(0.1)
STAGES = (TURN, ZOOM, SHIFT, TILT)
VIEWS, SIZE = 16, 224


def run(rounds: int = 15) -> list[BenchmarkTable]:
    """The fused geometry of four stages against one bare grid_sample, and against four resamples by kornia and
    torchvision."""
    image, fused = astronaut(SIZE), Compose(STAGES)
    u = Sobol()(VIEWS, fused.dims, seed=0)
    parts = [
        Compose([stage]).values(part)
        for stage, part in zip(STAGES, u.split([s.dims for s in STAGES], -1), strict=True)
    ]
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
    seconds = median_seconds({name: there_and_back(image, views) for name, views in runs.items()}, rounds)
    bare, ours = seconds["one bare grid_sample"], seconds["ours: four stages, fused"]
    title = (
        f"{VIEWS} views of {SIZE}x{SIZE}, forward and backward, {torch.get_num_threads()} threads, {rounds} rounds"
    )
    rows = {name: (1e3 * s, s / bare, s / ours) for name, s in seconds.items()}
    return [BenchmarkTable(title, {"ms": ".1f", "/ grid_sample": ".2f", "/ ours": ".2f"}, rows)]
